"""A browser that shows the built page, and words for what one does with it."""

from __future__ import annotations

import base64
import re
import shutil
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from steerers.cli import web

PATIENCE = 120.0
"""Seconds that anything may take on a busy machine."""
SMALL = "side=320&keypoints=500"
"""Settings with which the network is quick."""
OWN = re.compile(
    r"(update|content-autofill|optimizationguide-pa)\.googleapis\.com|(accounts|clients\d|www)\.google\.com"
)
"""Hosts that Chromium asks for itself, whatever page it shows."""
STATE = """
const done = arguments[arguments.length - 1];
window.steerers.then(async (page) => {
  const body = %s;
  done({ value: await body(page, ...Array.from(arguments).slice(0, -1)) });
}).catch((error) => done({ error: String(error) }));
"""
FOUND = """({session, settings}) => session.match && {
  turn: session.match.turn, matches: session.match.scores.length, curve: session.match.curve !== null,
  inliers: session.match.homography.inliers.filter(Boolean).length,
  angle: session.match.angle === null ? null : session.match.angle * 180 / Math.PI,
  strategy: settings.strategy,
}"""


def program(*names: str) -> str:
    """Where a program is; without it the test is skipped."""
    for name in names:
        if found := shutil.which(name):
            return found
    pytest.skip(f"there is no {' or '.join(names)} on this machine")


def built_page() -> Path:
    if not (web.PAGE / "index.html").is_file():
        pytest.skip("the page is not built: make web")
    return web.PAGE


@contextmanager
def served(isolated: bool = True) -> Iterator[str]:
    """The address of the page, served by the command's server, or by one without its headers."""
    page = built_page()
    if isolated:
        server = web.make_server(web.HOST, 0, page)
    else:
        server = ThreadingHTTPServer((web.HOST, 0), partial(Plain, directory=str(page)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{web.HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Elsewhere(socketserver.ThreadingTCPServer):
    """Stands for the world outside: a proxy that lets nothing through and notes what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Note(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked.append(self.rfile.readline(2000).decode("latin-1").strip())
                self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        super().__init__((web.HOST, 0), Note)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Plain(SimpleHTTPRequestHandler):
    """What any host does, quietly."""

    extensions_map = web.Handler.extensions_map

    def log_message(self, format: str, *values: Any) -> None:
        pass


class Browser:
    """Chromium without a screen. What it asks of other machines is noted in ``elsewhere``, and not answered."""

    def __init__(self, downloads: Path) -> None:
        self.elsewhere = Elsewhere()
        webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of steerers[dev]")
        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium", "chromium-browser", "google-chrome")
        for word in (
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900",
            f"--proxy-server=http://{web.HOST}:{self.elsewhere.server_address[1]}", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-default-apps",
            f"--gcm-checkin-url=http://{web.HOST}:9/",  # push messages: not even on about:blank does it do without
        ):  # fmt: skip
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(program("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_script_timeout(PATIENCE)
        self.driver.set_page_load_timeout(PATIENCE)
        self.driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
        )
        self.downloads = downloads

    def open(self, url: str) -> None:
        """Go there and wait until the example pair is matched."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.wait_for(lambda: self.found() is not None)

    def ask(self, function: str, *values: Any) -> Any:
        """What a function of the page says, which may be asynchronous."""
        answer = self.driver.execute_async_script(STATE % function, *values)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def found(self) -> Any:
        """What was found last, or ``None``."""
        return self.ask(FOUND)

    def floats(self, expression: str) -> NDArray[np.float32]:
        """An array of the page."""
        text = self.ask(f"""(page) => {{
          const bytes = new Uint8Array(Float32Array.from({expression}).buffer);
          let text = ''; for (const byte of bytes) text += String.fromCharCode(byte);
          return btoa(text);
        }}""")
        return np.frombuffer(base64.b64decode(text), "<f4")

    def change(self, settings: dict[str, Any]) -> Any:
        """Change settings and wait for the next match; what was found."""
        self.ask(
            """async (page, settings) => {
              const before = page.turns;
              await page.change(settings);
              while (page.turns === before) await new Promise((resolve) => setTimeout(resolve, 10));
            }""",
            settings,
        )
        return self.found()

    def choose(self, place: int, path: Path) -> None:
        self.driver.find_element("id", f"file{place}").send_keys(str(path))

    def drop(self, *paths: Path) -> None:
        """Drop files onto the stage."""
        files = [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in paths]
        self.ask(
            """(page, files) => {
              const data = new DataTransfer();
              for (const [name, text] of files) {
                const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
                data.items.add(new File([bytes], name));
              }
              const options = { dataTransfer: data, bubbles: true, cancelable: true, clientX: 300, clientY: 300 };
              document.querySelector('#canvas').dispatchEvent(new DragEvent('drop', options));
            }""",
            files,
        )

    def text(self, id: str) -> str:
        return str(self.driver.find_element("id", id).get_attribute("textContent"))

    def click(self, id: str) -> None:
        self.driver.find_element("id", id).click()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"waited in vain; the page says: {self.text('message')!r}"
            time.sleep(0.05)

    def downloaded(self, name: str) -> bytes:
        path = self.downloads / name
        self.wait_for(lambda: path.is_file() and path.stat().st_size > 0)
        return path.read_bytes()

    def asked_elsewhere(self) -> list[str]:
        """What the page asked of other machines."""
        return [line for line in self.elsewhere.asked if not OWN.search(line)]

    def close(self) -> None:
        self.driver.quit()
        self.elsewhere.shutdown()
        self.elsewhere.server_close()

    def errors(self) -> list[str]:
        """What the console complained of since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

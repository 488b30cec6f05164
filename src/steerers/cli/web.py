"""``steerers web``: serve the page where photographs are turned and matches follow, from this machine."""

from __future__ import annotations

import argparse
import errno
import logging
import socket
import webbrowser
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from steerers._console import Option, flag
from steerers.cli import options
from steerers.cli.options import Command

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parents[1] / "web"
"""Where ``make web`` puts the page; wheels have it."""
HOST, PORT, LAST_PORT = "127.0.0.1", 8765, 65535
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",  # these two let the network use several threads
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of the page, and nothing else."""

    protocol_version = "HTTP/1.1"
    extensions_map = {  # noqa: RUF012, as the class above has it
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".mjs": "text/javascript; charset=utf-8",
        ".json": "application/json",
        ".svg": "image/svg+xml",
        ".jpg": "image/jpeg",
        ".txt": "text/plain; charset=utf-8",
        ".wasm": "application/wasm",
        "": "application/octet-stream",
    }  # not what the system says, which may know .js and .mjs by other names

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def list_directory(self, path: Any) -> None:
        """Folders are not listed."""
        self.send_error(404)

    def log_message(self, format: str, *values: Any) -> None:
        logger.debug("%s: %s", self.address_string(), format % values)


def make_server(host: str, port: int, page: Path) -> ThreadingHTTPServer:
    """A server of the page that listens already; ``port`` 0 is any that is free.

    Raises:
        ValueError: if the page is not there, or cannot be served at that address.
    """
    if not (page / "index.html").is_file():
        raise ValueError(f"the page is not built: there is no {page / 'index.html'}; in a checkout, make web builds it")
    kind = _server(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        return kind((host, port), partial(Handler, directory=str(page)))
    except OSError as error:
        raise ValueError(_refusal(error, host, port)) from None


def _server(family: socket.AddressFamily) -> Callable[..., ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True

    return Server


def _refusal(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken: give another with --port, or --port 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than you have: give one above 1023 with --port"
    return f"cannot listen at {host}: {error.strerror or error}; --host takes an address of this machine"


def address(host: str, port: int) -> str:
    """What to type into a browser."""
    shown = {"0.0.0.0": "localhost", "::": "localhost", "127.0.0.1": "localhost"}.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    with make_server(arguments.host, arguments.port, PAGE) as server:
        url = address(arguments.host, server.server_address[1])
        options.say(f"the page is at {url} (Ctrl-C ends)")
        if arguments.open and not webbrowser.open(url):
            logger.warning("no browser could be opened: open %s yourself", url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            options.say("the page is no longer served")
    return 0


def parse_port(text: str) -> int:
    """0 to 65535."""
    if not (text.isascii() and text.isdigit() and int(text) <= LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to {LAST_PORT}")
    return int(text)


COMMAND = Command(
    description="Serve a page on which a photograph is turned and its matches follow at once, because descriptions are "
    "steered, not computed again. The network runs in the browser: nothing is uploaded, and nothing is loaded from "
    "elsewhere.",
    example="""\
  steerers web --open
  steerers web --port 9000
  steerers web --host 0.0.0.0
""",
    options=(
        Option("--port", "0 for any that is free (default: %(default)s)", parse_port, "N", PORT),
        Option("--host", "address to listen at; 0.0.0.0 is all of this machine's (default: %(default)s)", default=HOST),
        flag("--open", "open it in a browser"),
    ),
    run=run,
)

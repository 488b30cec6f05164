"""``steerers web``: what is served, how, and what is refused."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import assert_refused, run_command
from steerers.cli import web

FILES = {
    "index.html": b"<!doctype html>", "assets/a.js": b"1", "assets/b.mjs": b"2", "assets/c.wasm": b"\0asm",
    "assets/d.css": b"p{}", "model/compact.onnx": b"onnx", "model/model.json": b"{}", "examples/e.jpg": b"jpeg",
    "favicon.svg": b"<svg/>",
}  # fmt: skip
TYPES = {
    "/": "text/html; charset=utf-8", "/index.html": "text/html; charset=utf-8",
    "/assets/a.js": "text/javascript; charset=utf-8", "/assets/b.mjs": "text/javascript; charset=utf-8",
    "/assets/c.wasm": "application/wasm", "/assets/d.css": "text/css; charset=utf-8",
    "/model/compact.onnx": "application/octet-stream", "/model/model.json": "application/json",
    "/examples/e.jpg": "image/jpeg", "/favicon.svg": "image/svg+xml",
}  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page that stands for the built one."""
    for name, content in FILES.items():
        path = tmp_path / "page" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "secret.txt").write_text("not to be served")
    monkeypatch.setattr(web, "PAGE", tmp_path / "page")
    return tmp_path / "page"


@pytest.fixture
def server(page: Path) -> Iterator[http.client.HTTPConnection]:
    """A connection to a running server of it."""
    with web.make_server(web.HOST, 0, page) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        connection = http.client.HTTPConnection(web.HOST, serving.server_address[1], timeout=10)
        yield connection
        connection.close()
        serving.shutdown()
        thread.join()


def get(connection: http.client.HTTPConnection, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response, response.read()


def test_files_come_with_their_types_and_the_headers_of_isolation(server: http.client.HTTPConnection) -> None:
    for path, kind in TYPES.items():
        response, content = get(server, path)
        assert (response.status, response.getheader("Content-Type")) == (200, kind), path
        assert content == FILES[path[1:] or "index.html"]
        for name, value in web.HEADERS.items():
            assert response.getheader(name) == value


@pytest.mark.parametrize(
    "path", ["/nothing.js", "/assets/", "/model", "/../secret.txt", "/%2e%2e/secret.txt", "/assets/../../secret.txt"]
)
def test_nothing_else_is_served(server: http.client.HTTPConnection, path: str) -> None:
    response, content = get(server, path)
    if response.status == 301:  # of a folder, to the same with a slash
        response, content = get(server, response.getheader("Location", ""))
    assert response.status == 404
    assert b"not to be served" not in content


def test_other_methods_are_refused(server: http.client.HTTPConnection) -> None:
    server.request("POST", "/", b"photograph")
    assert server.getresponse().status == 501


def test_a_taken_port(page: Path) -> None:
    with socket.socket() as taken:
        taken.bind((web.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"port {port} is taken: give another with --port, or --port 0 for any that is free"
        assert_refused(["web", "--port", str(port)], message)


def test_a_page_that_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "PAGE", tmp_path / "nowhere")
    assert_refused(["web"], "the page is not built")
    assert_refused(["web"], "in a checkout, make web builds it")


@pytest.mark.parametrize("port", ["-1", "65536", "x", "", "1.5"])
def test_ports_that_are_none(port: str) -> None:
    assert_refused(["web", f"--port={port}"], f"{port!r} is not a port: a whole number from 0 to 65535")


def test_an_address_of_another_machine(page: Path) -> None:
    assert_refused(["web", "--host", "192.0.2.1", "--port", "0"], "--host takes an address of this machine")
    assert_refused(["web", "--host", "no such host.invalid", "--port", "0"], "--host takes an address of this machine")


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://localhost:9/"), ("0.0.0.0", "http://localhost:9/"), ("::1", "http://[::1]:9/")],
)
def test_what_to_type(host: str, url: str) -> None:
    assert web.address(host, 9) == url


@pytest.mark.parametrize("opens", [True, False])
def test_opening_and_interrupting(page: Path, monkeypatch: pytest.MonkeyPatch, opens: bool) -> None:
    opened: list[str] = []

    def pretend(url: str) -> bool:
        opened.append(url)
        return opens

    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", pretend)
    monkeypatch.setattr("steerers.cli.web.ThreadingHTTPServer.serve_forever", interrupt)
    code, out, err = run_command("web", "--port", "0", "--open")
    (url,) = opened
    assert code == 0
    assert out.startswith(f"the page is at {url} (Ctrl-C ends)\n")
    assert out.endswith("the page is no longer served\n")
    assert ("no browser could be opened" in out + err) is not opens

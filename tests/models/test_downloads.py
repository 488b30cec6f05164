"""Downloads from a server on the loopback interface; nothing here needs a network."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from helpers import contents
from steerers._weights import WeightsError
from steerers.models import downloads
from steerers.models.downloads import WeightFile

CONTENT = bytes(range(256)) * 1024
SHA256 = hashlib.sha256(CONTENT).hexdigest()
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")
UNPRIVILEGED = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="permissions do not bind this user"
)


@dataclass
class Reply:
    body: bytes = CONTENT
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None  # Content-Length other than that of the body
    delay: float = 0.0


class Server(ThreadingHTTPServer):
    """Answers from ``replies``, counts what was asked and remembers the headers of the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: dict[str, Reply] = {}
        self.asked: Counter[str] = Counter()
        self.last_headers: dict[str, str] = {}

    def url(self, path: str, reply: Reply | None = None) -> str:
        if reply is not None:
            self.replies[path] = reply
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        self.server.last_headers = dict(self.headers)
        reply = self.server.replies.get(self.path, Reply(b"gone", 404))
        time.sleep(reply.delay)
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(reply.body) if reply.announced is None else reply.announced))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("STEERERS_HOME", str(folder))
    monkeypatch.setenv("no_proxy", "*")
    return folder


def closed_port_url() -> str:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as unused:
        return f"http://127.0.0.1:{unused.server_port}/w.pth"


# Where the cache is


def test_home_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert downloads.home() == cache
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEERERS_HOME", "here")
    assert downloads.home() == tmp_path / "here"


@POSIX
@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x/cache"}, "/x/cache/steerers"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/u/.cache/steerers"),
        ("linux", {}, "/home/u/.cache/steerers"),
        ("darwin", {}, "/home/u/Library/Caches/steerers"),
        ("win32", {"LOCALAPPDATA": "/x/local"}, "/x/local/steerers"),
        ("win32", {}, "/home/u/AppData/Local/steerers"),
    ],
)
def test_home_without_choice_is_the_user_cache(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"STEERERS_HOME": "", "HOME": "/home/u", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert downloads.home() == Path(expected)


# Downloading


def test_good_download(server: Server, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = WeightFile("w.pth", (server.url("/w.pth", Reply()),), SHA256.upper())
    assert downloads.find(file) is None
    path = downloads.fetch(file)
    assert path == cache / "w.pth" == downloads.find(file)
    assert path.read_bytes() == CONTENT
    assert server.last_headers["User-Agent"].startswith("steerers/")
    assert downloads.fetch(file) == path
    assert server.asked["/w.pth"] == 1, "a cached file is not downloaded again"
    assert contents(cache) == ["w.pth"]
    assert capfd.readouterr() == ("", ""), "no bar under two seconds"


def test_progress_bar_goes_to_a_terminal_when_slow(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("tqdm.std.time", count(0.0, 3.0).__next__)  # at every look three seconds later
    downloads.fetch(WeightFile("w.pth", (server.url("/w", Reply()),)))
    output, errors = capsys.readouterr()
    assert output == ""
    assert "w.pth: 100%" in errors


@POSIX
def test_downloaded_file_has_ordinary_permissions(server: Server) -> None:
    umask = os.umask(0o022)
    try:
        path = downloads.fetch(WeightFile("w.pth", (server.url("/w", Reply()),)))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_file_url(tmp_path: Path) -> None:
    source = tmp_path / "with space.pth"
    source.write_bytes(CONTENT)
    path = downloads.fetch(WeightFile("w.pth", (source.as_uri(),), SHA256))
    assert path.read_bytes() == CONTENT


def test_redirect_is_followed_within_http_alone(server: Server, cache: Path, tmp_path: Path) -> None:
    server.url("/w.pth", Reply())
    moved = server.url("/moved", Reply(b"", 302, {"Location": "/w.pth"}))
    assert downloads.fetch(WeightFile("w.pth", (moved,), SHA256)).read_bytes() == CONTENT
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    for location, reason in ((secret.as_uri(), "not allowed"), ("ftp://127.0.0.1/w.pth", "unknown url type")):
        bad = server.url("/bad", Reply(b"", 302, {"Location": location}))
        with pytest.raises(WeightsError, match=reason):
            downloads.fetch(WeightFile("other.pth", (bad,)))
    assert contents(cache) == ["w.pth"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.3)


BAD_REPLIES = {
    "wrong checksum": (Reply(CONTENT[:-1] + b"!"), "wrong checksum"),
    "broken transfer": (Reply(CONTENT[:1000], announced=len(CONTENT)), f"1000 of {len(CONTENT)} bytes"),
    "broken before the first byte": (Reply(b"", announced=len(CONTENT)), f"0 of {len(CONTENT)} bytes"),
    "not found": (Reply(b"gone", 404), "404"),
    "server error": (Reply(b"", 500), "500"),
    "web page": (Reply(b"<html>log in", headers={"Content-Type": "text/html; charset=utf-8"}), "web page"),
    "stalled": (Reply(delay=0.6), "timed out"),
}


@pytest.mark.parametrize("kind", BAD_REPLIES)
@pytest.mark.usefixtures("impatient")
def test_failure_leaves_nothing_and_says_why(kind: str, server: Server, cache: Path) -> None:
    reply, reason = BAD_REPLIES[kind]
    url = server.url("/w.pth", reply)
    with pytest.raises(WeightsError) as caught:
        downloads.fetch(WeightFile("w.pth", (url,), SHA256))
    message = str(caught.value)
    for part in ("w.pth", url, reason, str(cache), "--weights FILE", "STEERERS_HOME"):
        assert part in message
    assert "\n" not in message
    assert contents(cache) == []


@pytest.mark.parametrize("kind", BAD_REPLIES)
@pytest.mark.usefixtures("impatient")
def test_mirror_is_tried_after_a_failure(kind: str, server: Server, cache: Path) -> None:
    urls = (server.url("/first", BAD_REPLIES[kind][0]), server.url("/mirror", Reply()), server.url("/third", Reply()))
    path = downloads.fetch(WeightFile("w.pth", urls, SHA256))
    assert path.read_bytes() == CONTENT
    assert server.asked == {"/first": 1, "/mirror": 1}
    assert contents(cache) == ["w.pth"]


def test_broken_transfer_is_noticed_without_a_checksum(server: Server, cache: Path) -> None:
    url = server.url("/w", Reply(CONTENT[:1000], announced=len(CONTENT)))
    with pytest.raises(WeightsError, match="broken transfer"):
        downloads.fetch(WeightFile("w.pth", (url,)))
    assert contents(cache) == []


def test_no_server_names_file_addresses_and_folder(cache: Path) -> None:
    urls = (closed_port_url(), closed_port_url())
    with pytest.raises(WeightsError) as caught:
        downloads.fetch(WeightFile("w.pth", urls, size=58_500_000, licence="MIT", note="Ask the authors."))
    message = str(caught.value)
    for part in ("w.pth", "58.5 MB", "MIT", *urls, str(cache), "--weights FILE", "STEERERS_HOME", "Ask the authors."):
        assert part in message
    assert contents(cache) == []


def test_file_without_address_asks_no_server(cache: Path) -> None:
    file = WeightFile("w.pth", note="Fill in the form.")
    with pytest.raises(WeightsError, match=r"cannot be downloaded.*Fill in the form"):
        downloads.fetch(file)
    assert not cache.exists()
    cache.mkdir()
    (cache / "w.pth").write_bytes(CONTENT)
    assert downloads.fetch(file) == cache / "w.pth"


def test_damaged_cached_file_is_refused_and_kept(server: Server, cache: Path) -> None:
    cache.mkdir()
    damaged = cache / "w.pth"
    damaged.write_bytes(CONTENT[:-1])
    file = WeightFile("w.pth", (server.url("/w", Reply()),), SHA256)
    for ask in (downloads.fetch, downloads.find):
        with pytest.raises(WeightsError, match="Delete") as caught:
            ask(file)
        assert str(damaged) in str(caught.value)
    assert downloads.find(file, check=False) == damaged
    assert damaged.exists()
    assert server.asked == {}


@POSIX
def test_full_disk_leaves_nothing(server: Server, cache: Path) -> None:
    import resource

    url = server.url("/w", Reply())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT) // 2, hard))
    try:
        with pytest.raises(WeightsError, match="could not be downloaded") as caught:
            downloads.fetch(WeightFile("w.pth", (url,), SHA256))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert contents(cache) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), MemoryError()])
def test_interrupt_leaves_nothing_and_releases_the_lock(
    failure: BaseException, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WeightFile("w.pth", (server.url("/w", Reply()),), SHA256)

    def interrupted(*_: object, **__: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("steerers._console.Bar.update", interrupted)
        with pytest.raises(type(failure)):
            downloads.fetch(file)
    assert contents(cache) == []
    assert downloads.fetch(file).read_bytes() == CONTENT


def test_home_that_cannot_be_a_folder(server: Server, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(WeightsError, match="set STEERERS_HOME") as caught:
        downloads.fetch(WeightFile("w.pth", (server.url("/w", Reply()),)))
    assert str(cache) in str(caught.value)


@UNPRIVILEGED
def test_read_only_cache_serves_what_it_has(cache: Path) -> None:
    cache.mkdir()
    (cache / "w.pth").write_bytes(CONTENT)
    cache.chmod(0o555)
    try:
        assert downloads.fetch(WeightFile("w.pth", sha256=SHA256)) == cache / "w.pth"
        with pytest.raises(WeightsError, match="cannot be stored"):
            downloads.fetch(WeightFile("other.pth", (closed_port_url(),)))
    finally:
        cache.chmod(0o755)


# Two at once

FETCH = """
import sys
from steerers.models.downloads import WeightFile, fetch
print("ready", flush=True)
sys.stdin.readline()
print(fetch(WeightFile("w.pth", (sys.argv[1],), sys.argv[2])), flush=True)
"""


def test_two_processes_download_once(server: Server, cache: Path) -> None:
    url = server.url("/w.pth", Reply(delay=0.5))
    command = [sys.executable, "-c", FETCH, url, SHA256]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        mine = downloads.fetch(WeightFile("w.pth", (url,), SHA256))
        theirs = other.communicate(timeout=30)[0].strip()
    assert theirs == str(mine) == str(cache / "w.pth")
    assert server.asked["/w.pth"] == 1
    assert contents(cache) == ["w.pth"]


def test_threads_download_once(server: Server, cache: Path) -> None:
    file = WeightFile("w.pth", (server.url("/w.pth", Reply(delay=0.2)),), SHA256)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(downloads.fetch(file))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert paths == [cache / "w.pth"] * 4
    assert server.asked["/w.pth"] == 1


@POSIX
def test_lock_of_a_killed_process_does_not_block(server: Server, cache: Path) -> None:
    cache.mkdir()
    lock = cache / ".w.pth.lock"
    hold = (
        "import fcntl, sys, time; handle = open(sys.argv[1], 'ab'); fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(60)"
    )
    file = WeightFile("w.pth", (server.url("/w.pth", Reply()),), SHA256)
    with subprocess.Popen([sys.executable, "-c", hold, str(lock)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiting = threading.Thread(target=downloads.fetch, args=(file,), daemon=True)
        waiting.start()
        waiting.join(timeout=0.4)
        assert waiting.is_alive(), "the lock is respected while its process lives"
        assert server.asked == {}
        holder.kill()
        waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert lock.exists(), "a lock file left behind is no lock"
    assert contents(cache) == ["w.pth"]

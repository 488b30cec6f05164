"""Weights against a server on the loopback interface; nothing here needs a network."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import stat
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from steerers.models import weights
from steerers.models.weights import WeightFile, WeightsError

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


def contents(folder: Path) -> list[str]:
    """What lies in a folder, lock files aside."""
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.is_dir() else []


# Describing a file


@pytest.mark.parametrize("name", ["", ".", "..", "a/b.pth", "../b.pth", "a\\b.pth", "/etc/passwd", "C:b.pth"])
def test_name_with_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must be a plain file name"):
        WeightFile(name)


@pytest.mark.parametrize("url", ["ftp://h/w.pth", "data:,x", "w.pth", "/tmp/w.pth", "javascript:1"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="https, http or file"):
        WeightFile("w.pth", (url,))


@pytest.mark.parametrize("digest", ["", "abc", SHA256[:-1] + "g", SHA256 + "0"])
def test_malformed_checksum_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        WeightFile("w.pth", sha256=digest)


# Where the cache is


def test_home_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert weights.home() == cache
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEERERS_HOME", "here")
    assert weights.home() == tmp_path / "here"


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
    assert weights.home() == Path(expected)


# Downloading


def test_good_download(server: Server, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = WeightFile("w.pth", (server.url("/w.pth", Reply()),), SHA256.upper())
    assert weights.find(file) is None
    path = weights.fetch(file)
    assert path == cache / "w.pth" == weights.find(file)
    assert path.read_bytes() == CONTENT
    assert server.last_headers["User-Agent"].startswith("steerers/")
    assert weights.fetch(file) == path
    assert server.asked["/w.pth"] == 1, "a cached file is not downloaded again"
    assert contents(cache) == ["w.pth"]
    assert capfd.readouterr() == ("", ""), "no bar under two seconds"


@pytest.mark.parametrize("progress", [True, False])
def test_progress_bar_goes_to_stderr_when_slow(
    progress: bool, server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bar = tqdm
    asked: dict[str, Any] = {}

    def impatient(**options: Any) -> Any:
        asked.update(options)
        return bar(**{**options, "delay": 0})

    monkeypatch.setattr(weights, "tqdm", impatient)
    weights.fetch(WeightFile("w.pth", (server.url("/w", Reply()),)), progress=progress)
    output, errors = capfd.readouterr()
    assert (asked["delay"], asked["total"]) == (2, len(CONTENT))
    assert output == ""
    assert ("w.pth" in errors) == progress


@POSIX
def test_downloaded_file_has_ordinary_permissions(server: Server) -> None:
    umask = os.umask(0o022)
    try:
        path = weights.fetch(WeightFile("w.pth", (server.url("/w", Reply()),)))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_file_url(tmp_path: Path) -> None:
    source = tmp_path / "with space.pth"
    source.write_bytes(CONTENT)
    path = weights.fetch(WeightFile("w.pth", (source.as_uri(),), SHA256))
    assert path.read_bytes() == CONTENT


def test_redirect_is_followed_within_http_alone(server: Server, cache: Path, tmp_path: Path) -> None:
    server.url("/w.pth", Reply())
    moved = server.url("/moved", Reply(b"", 302, {"Location": "/w.pth"}))
    assert weights.fetch(WeightFile("w.pth", (moved,), SHA256)).read_bytes() == CONTENT
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    for location, reason in ((secret.as_uri(), "not allowed"), ("ftp://127.0.0.1/w.pth", "unknown url type")):
        bad = server.url("/bad", Reply(b"", 302, {"Location": location}))
        with pytest.raises(WeightsError, match=reason):
            weights.fetch(WeightFile("other.pth", (bad,)))
    assert contents(cache) == ["w.pth"]


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
def test_failure_leaves_nothing_and_says_why(kind: str, server: Server, cache: Path) -> None:
    reply, reason = BAD_REPLIES[kind]
    url = server.url("/w.pth", reply)
    with pytest.raises(WeightsError) as caught:
        weights.fetch(WeightFile("w.pth", (url,), SHA256), timeout=0.3 if kind == "stalled" else 30)
    message = str(caught.value)
    for part in ("w.pth", url, reason, str(cache), "--weights FILE", "STEERERS_HOME"):
        assert part in message
    assert "\n" not in message
    assert contents(cache) == []


@pytest.mark.parametrize("kind", BAD_REPLIES)
def test_mirror_is_tried_after_a_failure(kind: str, server: Server, cache: Path) -> None:
    urls = (server.url("/first", BAD_REPLIES[kind][0]), server.url("/mirror", Reply()), server.url("/third", Reply()))
    path = weights.fetch(WeightFile("w.pth", urls, SHA256), timeout=0.3 if kind == "stalled" else 30)
    assert path.read_bytes() == CONTENT
    assert server.asked == {"/first": 1, "/mirror": 1}
    assert contents(cache) == ["w.pth"]


def test_broken_transfer_is_noticed_without_a_checksum(server: Server, cache: Path) -> None:
    url = server.url("/w", Reply(CONTENT[:1000], announced=len(CONTENT)))
    with pytest.raises(WeightsError, match="broken transfer"):
        weights.fetch(WeightFile("w.pth", (url,)))
    assert contents(cache) == []


def test_no_server_names_file_addresses_and_folder(cache: Path) -> None:
    urls = (closed_port_url(), closed_port_url())
    with pytest.raises(WeightsError) as caught:
        weights.fetch(WeightFile("w.pth", urls, size=58_500_000, licence="MIT", note="Ask the authors."), timeout=5)
    message = str(caught.value)
    for part in ("w.pth", "58.5 MB", "MIT", *urls, str(cache), "--weights FILE", "STEERERS_HOME", "Ask the authors."):
        assert part in message
    assert contents(cache) == []


def test_file_without_address_asks_no_server(cache: Path) -> None:
    file = WeightFile("w.pth", note="Fill in the form.")
    with pytest.raises(WeightsError, match=r"cannot be downloaded.*Fill in the form"):
        weights.fetch(file)
    assert not cache.exists()
    cache.mkdir()
    (cache / "w.pth").write_bytes(CONTENT)
    assert weights.fetch(file) == cache / "w.pth"


def test_damaged_cached_file_is_refused_and_kept(server: Server, cache: Path) -> None:
    cache.mkdir()
    damaged = cache / "w.pth"
    damaged.write_bytes(CONTENT[:-1])
    file = WeightFile("w.pth", (server.url("/w", Reply()),), SHA256)
    for ask in (weights.fetch, weights.find):
        with pytest.raises(WeightsError, match="Delete") as caught:
            ask(file)
        assert str(damaged) in str(caught.value)
    assert weights.find(file, check=False) == damaged
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
            weights.fetch(WeightFile("w.pth", (url,), SHA256))
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
        patch.setattr(tqdm, "update", interrupted)
        with pytest.raises(type(failure)):
            weights.fetch(file)
    assert contents(cache) == []
    assert weights.fetch(file).read_bytes() == CONTENT


def test_home_that_cannot_be_a_folder(server: Server, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(WeightsError, match="set STEERERS_HOME") as caught:
        weights.fetch(WeightFile("w.pth", (server.url("/w", Reply()),)))
    assert str(cache) in str(caught.value)


@UNPRIVILEGED
def test_read_only_cache_serves_what_it_has(cache: Path) -> None:
    cache.mkdir()
    (cache / "w.pth").write_bytes(CONTENT)
    cache.chmod(0o555)
    try:
        assert weights.fetch(WeightFile("w.pth", sha256=SHA256)) == cache / "w.pth"
        with pytest.raises(WeightsError, match="cannot be stored"):
            weights.fetch(WeightFile("other.pth", (closed_port_url(),)))
    finally:
        cache.chmod(0o755)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_bad_timeout(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        weights.fetch(WeightFile("w.pth"), timeout=timeout)


# Two at once

FETCH = """
import sys
from steerers.models.weights import WeightFile, fetch
print("ready", flush=True)
sys.stdin.readline()
print(fetch(WeightFile("w.pth", (sys.argv[1],), sys.argv[2]), progress=False), flush=True)
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
        mine = weights.fetch(WeightFile("w.pth", (url,), SHA256))
        theirs = other.communicate(timeout=30)[0].strip()
    assert theirs == str(mine) == str(cache / "w.pth")
    assert server.asked["/w.pth"] == 1
    assert contents(cache) == ["w.pth"]


def test_threads_download_once(server: Server, cache: Path) -> None:
    file = WeightFile("w.pth", (server.url("/w.pth", Reply(delay=0.2)),), SHA256)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(weights.fetch(file))) for _ in range(4)]
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
        waiting = threading.Thread(target=weights.fetch, args=(file,), daemon=True)
        waiting.start()
        waiting.join(timeout=0.4)
        assert waiting.is_alive(), "the lock is respected while its process lives"
        assert server.asked == {}
        holder.kill()
        waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert lock.exists(), "a lock file left behind is no lock"
    assert contents(cache) == ["w.pth"]


# Writing whole or not at all


def test_atomic_write_replaces_on_success(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with weights.atomic_write(target) as temporary:
        assert (temporary.parent, temporary.suffix) == (target.parent, ".json")
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert contents(tmp_path) == ["report.json"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("existed", [True, False])
def test_atomic_write_failure_leaves_the_old_file(existed: bool, failure: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    if existed:
        target.write_text("old")

    def write_half() -> None:
        with weights.atomic_write(target) as temporary:
            temporary.write_text("ne")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert contents(tmp_path) == (["report.json"] if existed else [])
    assert not existed or target.read_text() == "old"


def test_atomic_write_without_writing_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with pytest.raises(FileNotFoundError), weights.atomic_write(target):
        pass
    assert target.read_text() == "old"


def test_atomic_write_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the folder does not exist") as caught:
        weights.atomic_write(tmp_path / "no" / "report.json").__enter__()
    assert caught.value.filename == str((tmp_path / "no").resolve())


@POSIX
def test_atomic_write_keeps_permissions_and_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with weights.atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


@POSIX
def test_atomic_write_to_a_device(tmp_path: Path) -> None:
    with weights.atomic_write(os.devnull) as temporary:
        temporary.write_text("gone")
    assert Path(os.devnull).is_char_device()


@POSIX
def test_atomic_write_of_a_long_name(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 125 + ".json")
    with weights.atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"


# The files of others


def a_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"conv.weight": torch.randn(4, 3, generator=generator), "bn.num_batches_tracked": torch.tensor(7)}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(actual) == sorted(expected)
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype
        assert torch.equal(actual[key], value)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt", ".PTH"])
@pytest.mark.parametrize("zipped", [True, False])
def test_load_state_of_torch_files(suffix: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save(a_state(), path, _use_new_zipfile_serialization=zipped)
    assert_same(weights.load_state(path), a_state())
    assert_same(weights.load_state(str(path)), a_state())


def test_load_state_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(a_state(), path)
    assert_same(weights.load_state(path), a_state())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_load_state_of_training_checkpoints(prefix: str, checkpoint: bool, tmp_path: Path) -> None:
    wrapped = {prefix + key: value for key, value in a_state().items()}
    training = {"model": wrapped, "n": 8, "optimizer": {"state": {}}, "steerer": {"generator": torch.eye(2)}}
    path = tmp_path / "latest.pth"
    torch.save(training if checkpoint else wrapped, path)
    assert_same(weights.load_state(path), a_state())


def test_prefix_of_some_names_stays(tmp_path: Path) -> None:
    state = {"module.weight": torch.ones(1), "weight": torch.zeros(1)}
    torch.save(state, tmp_path / "w.pth")
    assert_same(weights.load_state(tmp_path / "w.pth"), state)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (torch.eye(2), "a tensor of shape"),
        ([torch.eye(2)], "type list"),
        ({}, "a dict"),
        ({"weight": torch.eye(2), "epoch": 3}, "'epoch' is an object of type int"),
        ({0: torch.eye(2)}, "entry 0"),
        ({"state_dict": {"w": torch.eye(2)}}, "'state_dict' is a dict with the entries 'w'"),
        ({"model": {"w": torch.eye(2), "epoch": 3}}, "'epoch'"),
    ],
)
def test_load_state_of_something_else(content: object, found: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(content, path)
    with pytest.raises(WeightsError, match=found) as caught:
        weights.load_state(path)
    assert str(path) in str(caught.value)


def test_load_tensor(tmp_path: Path) -> None:
    steerer = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    torch.save(steerer, tmp_path / "bare.pth")
    torch.save({"model": a_state(), "steerer": {"generator": steerer}}, tmp_path / "latest.pth")
    torch.save(torch.nn.Parameter(steerer), tmp_path / "parameter.pth")
    save_file({"generator": steerer}, tmp_path / "one.safetensors")
    for name in ("bare.pth", "latest.pth", "parameter.pth", "one.safetensors"):
        loaded = weights.load_tensor(tmp_path / name)
        assert torch.equal(loaded, steerer)
        assert not loaded.requires_grad


@pytest.mark.parametrize("content", [a_state(), [1, 2], {"a": 1}])
def test_load_tensor_of_something_else(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="expected a single tensor"):
        weights.load_tensor(tmp_path / "w.pth")


class Touch:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def torch_bytes(content: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("reader", [weights.load_state, weights.load_tensor])
@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle 2", "pickle 5"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_is_refused_and_not_run(kind: str, reader: Any, tmp_path: Path) -> None:
    mark, path = tmp_path / "ran", tmp_path / "evil.pth"
    evil = {"weight": Touch(mark)}
    path.write_bytes(
        {
            "zip": lambda: torch_bytes(evil),
            "legacy": lambda: torch_bytes(evil, _use_new_zipfile_serialization=False),
            "pickle 2": lambda: pickle.dumps(evil, protocol=2),
            "pickle 5": lambda: pickle.dumps(evil, protocol=5),
        }[kind]()
    )
    with pytest.raises(WeightsError, match="refused") as caught:
        reader(path)
    assert not mark.exists()
    assert str(path) in str(caught.value)
    assert "weights_only" not in str(caught.value), "no advice to load it unsafely"
    if kind in ("zip", "legacy", "pickle 2"):
        assert "open" in str(caught.value)


def test_whole_module_is_refused_by_name(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"torch\.nn\.modules\.linear\.Linear"):
        weights.load_state(tmp_path / "w.pth")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not found</html>", CONTENT[7:], b"PK\x03\x04" + b"\0" * 40],
    ids=["empty", "page", "bytes", "zip"],
)
def test_not_weights(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError) as caught:
        weights.load_state(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_torch_file(kept: float, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    whole = torch_bytes({"w": torch.zeros(64, 64)}, _use_new_zipfile_serialization=zipped)
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(WeightsError) as caught:
        weights.load_state(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("reader", [weights.load_state, weights.load_tensor, weights.load])
@pytest.mark.parametrize("name", ["missing.pth", "missing.safetensors", "folder.pth", "folder.safetensors", "w.txt"])
def test_file_that_cannot_be_opened(name: str, reader: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.startswith("folder"):
        path.mkdir()
    with pytest.raises(WeightsError) as caught:
        reader(path)
    assert str(path) in str(caught.value)


# The files of this package

METADATA = {"model": "compact", "representation": "40x0 + 18x1", "group": "SO2", "licence": "MIT", "é": "ü"}


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(path, a_state(), METADATA)
    state, metadata = weights.load(path)
    assert_same(state, a_state())
    assert set(metadata) == {*METADATA, "sha256", "metadata_sha256", "format_version"}
    assert metadata.items() >= METADATA.items()
    assert_same(weights.load_state(path), a_state())
    assert contents(tmp_path) == ["w.safetensors"]
    weights.save(path, {"w": torch.ones(3)}, metadata)
    again, stamped = weights.load(path)
    assert_same(again, {"w": torch.ones(3)})
    assert stamped["sha256"] != metadata["sha256"]
    assert stamped["metadata_sha256"] == metadata["metadata_sha256"]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool]
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shape=st.lists(st.integers(0, 4), max_size=4))
def test_round_trip_of_every_type_and_shape(dtype: torch.dtype, shape: list[int], tmp_path: Path) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(3).abs().to(dtype)
    weights.save(tmp_path / "w.safetensors", {"w": tensor}, {})
    assert_same(weights.load(tmp_path / "w.safetensors")[0], {"w": tensor})


def test_shared_and_strided_tensors_are_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    state = {"a": base, "tied": base, "turned": base.T, "part": base[:, 1:3]}
    weights.save(tmp_path / "w.safetensors", state, {})
    assert_same(weights.load(tmp_path / "w.safetensors")[0], {k: v.detach() for k, v in state.items()})


def test_hash_is_of_the_contents_alone(tmp_path: Path) -> None:
    def stamp(state: dict[str, Tensor], metadata: dict[str, str]) -> str:
        weights.save(tmp_path / "w.safetensors", state, metadata)
        return weights.load(tmp_path / "w.safetensors")[1]["sha256"]

    state = a_state()
    reference = stamp(state, {})
    assert stamp(dict(reversed(state.items())), METADATA) == reference
    weight = state["conv.weight"]
    for changed in (weight.reshape(3, 4), weight + 1e-6, weight.double(), weight.view(torch.int32)):
        assert stamp({**state, "conv.weight": changed}, {}) != reference
    assert stamp({"other": weight, "bn.num_batches_tracked": torch.tensor(7)}, {}) != reference


def rewrite(path: Path, change: Any) -> None:
    """Change the JSON header of a safetensors file, leaving its tensors as they are."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: h["__metadata__"].update(sha256="0" * 64), "tensors"),
        (lambda h: h["__metadata__"].update(group="C4"), "metadata"),
        (lambda h: h["__metadata__"].update(extra="x"), "metadata"),
        (lambda h: h["__metadata__"].pop("licence"), "metadata"),
        (lambda h: h["__metadata__"].pop("sha256"), "no 'sha256'"),
        (lambda h: h["__metadata__"].pop("metadata_sha256"), "no 'metadata_sha256'"),
        (lambda h: h["__metadata__"].update(format_version="2"), "format version '2'"),
        (lambda h: h.pop("__metadata__"), "not a file of steerers"),
        (lambda h: h["conv.weight"].update(shape=[3, 4]), "tensors"),
        (lambda h: h.update({"renamed": h.pop("conv.weight")}), "tensors"),
        (lambda h: h["conv.weight"].update(shape=[300, 4]), "safetensors"),
    ],
)
def test_tampered_header_is_refused(change: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(path, a_state(), METADATA)
    rewrite(path, change)
    with pytest.raises(WeightsError, match=reason) as caught:
        weights.load(path)
    assert str(path) in str(caught.value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_flipped_bit_or_lost_tail_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(path, a_state(), METADATA)
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[position:]
    path.write_bytes(raw)
    try:
        state, metadata = weights.load(path)
    except WeightsError:
        return
    assert_same(state, a_state())  # only white space of the header may change unnoticed
    assert metadata.items() >= METADATA.items()


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(path, a_state(), METADATA)

    def half(tensors: object, target: Path, metadata: object) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, "save_file", half)
    with pytest.raises(OSError, match="No space"):
        weights.save(path, {"w": torch.ones(1)}, {})
    assert_same(weights.load(path)[0], a_state())
    assert contents(tmp_path) == ["w.safetensors"]


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights.save(path, a_state(), {})
    state, _ = weights.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert_same(state, a_state())


@pytest.mark.parametrize(
    ("name", "state", "metadata", "error"),
    [
        ("w.pth", {}, {}, ValueError),
        ("w.safetensors", {"w": 1.0}, {}, TypeError),
        ("w.safetensors", {"w": torch.ones(1)}, {"steps": 100}, TypeError),
    ],
)
def test_save_of_wrong_arguments(name: str, state: Any, metadata: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        weights.save(tmp_path / name, state, metadata)
    assert contents(tmp_path) == []


# Into a network -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.pop("bias"), "1 names .*bias"),
        (lambda s: s.update(extra=torch.zeros(1)), "1 names .*extra"),
        (lambda s: s.update(weight=torch.zeros(3, 2)), "1 names .*weight"),
        (lambda s: s.update({f"{n}": torch.zeros(1) for n in range(4)}), r"4 names .*\(0, 1, 2, \.\.\.\)"),
    ],
)
def test_only_weights_of_the_same_names_and_shapes_go_into_a_network(change: Any, named: str) -> None:
    network, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    state = dict(other.state_dict())
    weights.load_into(network, state, "a.pth", "a line")
    assert torch.equal(network.weight, other.weight)
    torch.nn.init.zeros_(network.weight)
    change(state)
    with pytest.raises(WeightsError, match=f"a.pth: not the weights of a line: {named}"):
        weights.load_into(network, state, "a.pth", "a line")
    assert not network.weight.any()  # nothing is loaded in part

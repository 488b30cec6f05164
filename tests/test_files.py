"""Writing whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from helpers import contents, run_on_full_disk
from steerers._files import MAX_DEPTH, atomic_write, parse_json, read_json, writing

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")


def test_atomic_write_replaces_on_success(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with atomic_write(target) as temporary:
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
        with atomic_write(target) as temporary:
            temporary.write_text("ne")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert contents(tmp_path) == (["report.json"] if existed else [])
    assert not existed or target.read_text() == "old"


def test_atomic_write_without_writing_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    with pytest.raises(FileNotFoundError), atomic_write(target):
        pass
    assert target.read_text() == "old"


def test_atomic_write_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the folder does not exist") as caught:
        atomic_write(tmp_path / "no" / "report.json").__enter__()
    assert caught.value.filename == str((tmp_path / "no").resolve())


@POSIX
def test_atomic_write_keeps_permissions_and_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


@POSIX
def test_atomic_write_to_a_device(tmp_path: Path) -> None:
    with atomic_write(os.devnull) as temporary:
        temporary.write_text("gone")
    assert Path(os.devnull).is_char_device()


@POSIX
def test_atomic_write_of_a_long_name(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 125 + ".json")
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"


@POSIX
def test_atomic_write_to_a_loop_of_links(tmp_path: Path) -> None:
    """Resolving such a path is an error of its own kind in Python before 3.13."""
    (tmp_path / "a.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "b.json").symlink_to(tmp_path / "a.json")
    with atomic_write(tmp_path / "a.json") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a.json").read_text() == "new"


# JSON -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        (b"[" * 100_000, "not JSON.*recursion"),
        (b'{"a":' * 100_000, "not JSON.*recursion"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested more than 64 deep"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested more than 64 deep"),
        (b"1" * 5000, "not JSON"),
    ],
    ids=range(8),
)
def test_json_that_is_none_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json: .*{reason}"):
        read_json(path)


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "é"], "b": {"c": {}}}
    (tmp_path / "a.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == value
    nested = parse_json("[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1))
    assert str(nested).count("[") == MAX_DEPTH - 1
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing.json")


# Full disks -----------------------------------------------------------------------------------------------------------

WRITERS = """
from pathlib import Path
import io, sys
import numpy as np
import PIL.Image
from steerers._files import atomic_write

noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
for name, write in {
    "a.bin": lambda path: path.write_bytes(noise.tobytes()),
    "a.npy": lambda path: np.save(path, noise),
    "a.npz": lambda path: np.savez(path, noise),
    "a.png": lambda path: PIL.Image.fromarray(noise).save(path),
    "a.jpg": lambda path: PIL.Image.fromarray(noise).save(path, quality=100),
}.items():
    Path(name).write_bytes(b"old")
    try:
        with atomic_write(name) as temporary:
            write(temporary)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}")
"""


@POSIX
def test_whoever_writes_a_full_disk_is_named(tmp_path: Path) -> None:
    lines, _ = run_on_full_disk(WRITERS, tmp_path, 20_000)
    names = ["a.bin", "a.npy", "a.npz", "a.png", "a.jpg"]
    assert lines == [f"{name}: the disk is full (File too large)" for name in names]
    assert contents(tmp_path) == sorted(names)
    assert {(tmp_path / name).read_bytes() for name in names} == {b"old"}


@POSIX
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_is_named() -> None:
    with (
        pytest.raises(OSError, match=r"the disk is full \(No space left on device\): '/dev/full'"),
        atomic_write("/dev/full") as path,
    ):
        path.write_text("lost")


def test_errors_that_know_their_file_stay() -> None:
    for error in (FileNotFoundError(2, "No such file", "input.jpg"), ValueError("no image"), OSError("no errno")):
        with pytest.raises(type(error)) as caught, writing("report.json"):
            raise error
        assert caught.value is error


def test_errors_of_an_open_file_get_its_name() -> None:
    with pytest.raises(OSError, match="the disk is full") as caught, writing("log.jsonl"):
        raise OSError(28, "No space left on device")
    assert (caught.value.errno, caught.value.filename) == (28, "log.jsonl")
    with pytest.raises(PermissionError, match=r"Permission denied: 'log.jsonl'"), writing("log.jsonl"):
        raise OSError(13, "Permission denied")

"""Writing whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from helpers import contents
from steerers._files import atomic_write

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

"""Reconstructions of a rendered scene, whole and damaged: what a check of them counts and finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets.workspaces import NAMES, write_scene
from steerers.datasets.check_colmap import check, survey
from steerers.datasets.colmap import Colmap
from steerers.datasets.views import Views

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def source(root: Path) -> Colmap:
    return Colmap(root, views=Views(size=160))


def test_check_finds_nothing_wrong_with_what_is_right(root: Path, tmp_path: Path) -> None:
    assert check(root) == []
    assert check(write_scene(tmp_path, "text", depths=True)) == []


def test_check_lists_what_is_missing_or_broken(tmp_path: Path) -> None:
    assert "no reconstruction" in check(tmp_path)[0]
    write_scene(tmp_path, depths=True)
    depths = tmp_path / "stereo" / "depth_maps"
    (tmp_path / "images" / NAMES[0]).unlink()
    (tmp_path / "images" / NAMES[1]).write_bytes(b"no picture")
    (depths / f"{NAMES[0]}.geometric.bin").unlink()
    (depths / f"{NAMES[2]}.geometric.bin").write_bytes(b"240&180&1&1234")
    (depths / f"{NAMES[3]}.geometric.bin").write_bytes(b"text")
    problems = check(tmp_path)
    expected = ["0.png: no such photograph", "0.png.geometric.bin: no such depth map", "cannot read image"]
    expected += ["2.png.geometric.bin: a damaged depth map", "3.png.geometric.bin: not a depth map"]
    for part in expected:
        assert sum(part in problem for problem in problems) == 1, problems
    assert len(problems) == len(expected)


def test_a_survey_counts_and_its_quick_one_opens_no_photograph(tmp_path: Path, source: Colmap) -> None:
    write_scene(tmp_path, depths=True)
    model = source.scenes[0].reconstruction
    counted = {"photographs": len(NAMES), "points": len(model.points)}
    assert survey(tmp_path) == ({**counted, "pairs": len(source)}, [])
    (tmp_path / "images" / NAMES[0]).write_bytes(b"no picture")
    (tmp_path / "stereo" / "depth_maps" / f"{NAMES[1]}.geometric.bin").write_bytes(b"no depth")
    assert len(check(tmp_path)) == 2
    assert survey(tmp_path, quick=True) == (counted, [])
    (tmp_path / "images" / NAMES[0]).unlink()
    (tmp_path / "stereo" / "depth_maps" / f"{NAMES[1]}.geometric.bin").unlink()
    missing = check(tmp_path, quick=True)
    assert ["no such photograph" in missing[0], "no such depth map" in missing[1], len(missing)] == [True, True, 2]


def test_check_says_when_training_would_take_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scene(tmp_path)
    monkeypatch.setattr("steerers.datasets.check_colmap.MIN_SHARED", 10_000)
    counts, (problem,) = survey(tmp_path)
    assert counts["pairs"] == 0
    assert "training takes none of its" in problem

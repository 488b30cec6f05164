"""``steerers extract``, ``pairs``, ``match-pairs`` and ``status``: what they say, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import steerers
from collection.photographs import save_blank, save_views
from helpers import assert_refused, contents, run_command
from steerers.collection import Collection

MODEL = ("--model", "upright-sift", "--num-keypoints", "60")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    save_views(folder, [f"s t/é{index}.jpg" for index in range(4)])
    (folder / "broken.jpg").write_bytes(b"no picture")
    return folder


def test_step_by_step(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, warned = run_command("extract", photos, "-o", out, *MODEL)
    assert (code, said) == (0, f"4 photographs with features, 1 failed, 0 left: {out}\n")
    assert "warning: broken.jpg is left out: cannot read image broken.jpg: it is not an image" in warned
    assert run_command("pairs", out, "--sequential", "1", "--similar", "1")[0] == 0
    code, said, _ = run_command("pairs", out, "--exhaustive")
    assert (code, said) == (0, f"6 pairs of 4 photographs: {out / 'pairs.txt'}\n")
    half = run_command("match-pairs", out, "--shard-size", "2", "--shard", "1/2", "--threshold", "0.2")
    assert half[:2] == (0, f"4 pairs matched, 2 left: {out}\n")
    assert run_command("match-pairs", out, "--threshold", "0.2")[:2] == (0, f"6 pairs matched, 0 left: {out}\n")
    code, said, _ = run_command("status", out)
    assert code == 0
    assert re.search(r"photographs +4 +1 +0\n", said)
    assert re.search(r"pairs +6 +0 +0\n", said)
    assert "failed: broken.jpg: cannot read image" in said
    assert len(Collection.open(out).matches("s t/é0.jpg", "s t/é1.jpg")) > 5


def test_one_file(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "features.h5"
    assert run_command("extract", photos, "-o", out, *MODEL, "--float32")[:2] == (0, f"wrote {out}\n")
    assert len(steerers.load_features(out, "s t/é2.jpg")) > 20
    assert contents(tmp_path) == ["features.h5"]
    assert_refused(["extract", photos, "-o", out, "--shard", "1/2"], "--shard goes with a folder, and")
    assert_refused(["match-pairs", out], "is a file; a collection is a folder")


def test_strict(photos: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "out", tmp_path / "out.h5"):
        code, _, said = run_command("extract", photos, "-o", out, *MODEL, "--strict", "--quiet")
        assert code == 2
        assert said.startswith("steerers: photographs that could not be read: 1, such as broken.jpg: cannot read image")
        assert out.exists()


def test_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    code, _, said = run_command("extract", tmp_path / "photos", "-o", tmp_path / "out", *MODEL, "--quiet")
    assert (code, said.count("\n")) == (2, 1)
    assert "none of 1 photographs could be read; a.jpg: " in said


def test_many_failures_are_counted(tmp_path: Path) -> None:
    save_blank(tmp_path / "photos" / "good.png", (64, 48))
    for index in range(4):
        (tmp_path / "photos" / f"{index}.jpg").touch()
    run_command("extract", tmp_path / "photos", "-o", tmp_path / "out", *MODEL)
    said = run_command("status", tmp_path / "out", "--failures", "3").out
    assert said.count("failed: ") == 3
    assert said.endswith("and 1 more; --failures N shows N\n")


def test_one_photograph(tmp_path: Path) -> None:
    save_views(tmp_path / "photos", ["a.png"])
    assert run_command("extract", tmp_path / "photos", "-o", tmp_path / "out", *MODEL).code == 0
    assert_refused(["pairs", tmp_path / "out", "--exhaustive"], "pairs need two photographs with features, and")
    assert_refused(["match-pairs", tmp_path / "out"], "has no pairs to match; choose some with steerers pairs")


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/2/3", "1/0"])
def test_parts_of_the_work(text: str, tmp_path: Path) -> None:
    assert_refused(["match-pairs", tmp_path, "--shard", text], f"'{text}' is not a part of the work such as 2/8")


def test_what_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(["extract", tmp_path / "empty", "-o", tmp_path / "out"], "no photographs in")
    assert_refused(["extract", tmp_path / "none", "-o", tmp_path / "out"], "there is no folder")
    assert_refused(["extract", photos, "-o", tmp_path / "out", "--model", "none"], "unknown model 'none'")
    for command in (["pairs", tmp_path / "empty", "--exhaustive"], ["match-pairs", tmp_path], ["status", tmp_path]):
        assert_refused(command, "there is no collection in")
    assert_refused(["pairs", tmp_path / "empty"], "say which pairs: --exhaustive")
    run_command("extract", photos, "-o", tmp_path / "out", *MODEL)
    assert_refused(["extract", photos, "-o", tmp_path / "out", "--model", "sift"], "was made with model upright-sift")
    assert_refused(["extract", photos, "-o", tmp_path / "out", *MODEL, "--float32"], "with descriptions float16, not")
    assert_refused(["pairs", tmp_path / "out", "--gps", "3"], "0 of 4 photographs have a GPS position")

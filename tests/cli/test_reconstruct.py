"""``steerers reconstruct``, and ``steerers export`` of collections."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collection.photographs import save_blank, save_views
from collection.scenes import make_collection, make_scene
from helpers import assert_refused, contents, run_command
from steerers.collection import Collection, default_choice
from steerers.collection.store import Photograph

pycolmap = pytest.importorskip("pycolmap")
pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = ("--model", "upright-sift")


def command(folder: Path, *more: str) -> list[str]:
    """For a collection whose pairs are matched."""
    return ["reconstruct", str(folder.with_name(f"{folder.name}-photos")), "-o", str(folder), *MODEL, *more]


def test_what_is_left_is_done_and_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_collection(out, [make_scene(5, points=200)], false_pairs=[(0, 3)])
    done = run_command(*command(out))
    assert done.code == 0, done.err
    assert "5 of 5 photographs are registered, in one model" in done.out
    assert "10 of 10 matched pairs are explained by geometry; the rotations of 1 of them contradict" in done.out
    assert f"wrote {out / 'report.html'}" in done.out
    assert f"pairs as in {out / 'pairs.txt'}" in done.err
    again = run_command(*command(out))
    assert again.out == done.out
    assert run_command("status", out).code == 0
    kept = run_command(*command(out, "--keep-contradicted", "--mapper", "global", "--cameras", "each", "--no-gps"))
    assert kept.code == 0, kept.err


def test_two_scenes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_collection(out, [make_scene(4, seed=1, points=200), make_scene(4, seed=2, points=200)])
    done = run_command(*command(out))
    assert done.code == 0
    assert "8 of 8 photographs are registered, in 2 models of 4, 4 that nothing joins" in done.out
    assert contents(out / "sparse") == ["0", "1", "mapping.json"]


def test_one_photograph_none_and_a_broken_one(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    asked = ["reconstruct", photos, "-o", tmp_path / "out", *MODEL, "--quiet"]
    assert_refused(asked, f"no photographs in {photos}")
    (photos / "broken.jpg").write_bytes(b"no picture")
    assert_refused(asked, "photographs that could not be read: 1, such as broken.jpg")
    save_views(photos, ["one.jpg"])
    assert_refused(asked, "pairs need two photographs with features")
    assert_refused([*asked, "--strict"], "photographs that could not be read: 1, such as broken.jpg")


def test_all_the_same_photograph(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    save_views(photos, ["0.jpg"], size=(240, 180))
    for index in range(1, 4):
        shutil.copy(photos / "0.jpg", photos / f"{index}.jpg")
    asked = ["reconstruct", photos, "-o", tmp_path / "out", *MODEL, "--quiet"]
    assert_refused(asked, "none of 4 photographs could be reconstructed: every pair is explained by a homography")
    assert_refused(asked, f"(see {tmp_path / 'out/report.html'})")


def test_photographs_without_anything_to_see(tmp_path: Path) -> None:
    for index in range(3):
        save_blank(tmp_path / "photos" / f"{index}.png", (160, 120))
    asked = ["reconstruct", tmp_path / "photos", "-o", tmp_path / "out", *MODEL, "--quiet"]
    assert_refused(asked, "none of 3 photographs could be reconstructed: no pair is explained by geometry")


def test_a_database_of_another_model(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    make_collection(out, [make_scene(3, points=200)])
    make_collection(other, [make_scene(3, points=200)], seed=5)
    assert run_command("export", "colmap", other, "-o", out / "colmap.db").code == 0
    assert_refused(
        ["export", "colmap", out, "-o", out / "colmap.db", "--quiet"], "it is of another model or other options"
    )


def test_export(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_collection(out, [make_scene(4, points=200)], prefix="scene_", suffix=".jpg")
    done = run_command("export", "colmap", out)
    assert (done.code, done.out) == (
        0, f"4 photographs, 4 cameras, 6 matched and 6 verified pairs: {out / 'colmap/database.db'}\n"
    )  # fmt: skip
    assert run_command("export", "hloc", out).out == "".join(
        f"wrote {out / 'hloc' / name}\n" for name in ("features.h5", "matches.h5", "pairs.txt")
    )
    assert run_command("export", "opensfm", out, "-o", tmp_path / "dataset").code == 0
    assert contents(tmp_path / "dataset") == ["features", "matches"]


def test_refusals(tmp_path: Path) -> None:
    out = tmp_path / "out"
    collection = make_collection(out, [make_scene(2, points=200)])
    photos = collection.photos
    for arguments, message in (
        (["export", "colmap"], "say which collection: steerers export colmap OUT"),
        (["export", "hloc", tmp_path], "there is no collection in"),
        (["export", "compact", out], "a folder goes with colmap, hloc, opensfm, and compact is a model"),
        (["export", "colmap", out, "--opset", "18"], "--opset goes with a model, not with colmap"),
        (["export", "colmap", out, "--max-distance", "0"], "'0' is not a number above 0"),
        (["export", "colmap", out, "--min-inliers", "3"], "min_inliers must be at least 8"),
        (["reconstruct", photos, "-o", tmp_path / "x.h5"], "a reconstruction is a folder"),
        (["reconstruct", photos, "-o", out, "--mapper", "magic"], "unknown mapper 'magic'"),
        (["reconstruct", photos, "-o", out, "--loop"], "say which pairs: --exhaustive"),
        (["reconstruct", photos, "-o", out, "--min-model-size", "1"], "min_model_size must be at least 2"),
        (["reconstruct", photos, "-o", out, "--model", "compact"], "was made with model upright-sift, not compact"),
    ):
        assert_refused([*arguments, "--quiet"], message)
    (out / "matches/0000.h5").unlink()
    assert_refused(["export", "colmap", out, "--quiet"], f"{out} has no matches: steerers match-pairs")


def test_without_pycolmap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_views(tmp_path / "photos", ["0.jpg", "1.jpg"])
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    asked = ["reconstruct", tmp_path / "photos", "-o", tmp_path / "out", "--quiet"]
    assert_refused(asked, 'pip install "steerers[colmap]"')
    assert not (tmp_path / "out").exists()


def test_default_pairs() -> None:
    few = [Photograph(str(k), (4, 3)) for k in range(100)]
    assert default_choice(few).exhaustive
    many = default_choice([*few, Photograph("x", (4, 3))])
    assert (many.exhaustive, many.similar, many.sequential, many.gps) == (False, 20, 5, None)
    placed = [Photograph(str(k), (4, 3), position=(1.0, 2.0, None)) for k in range(101)]
    assert default_choice(placed).gps == 20


def test_pairs_chosen_by_default_are_chosen_again_when_photographs_come(tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    save_views(photos, ["0.jpg", "1.jpg"])
    asked = ["reconstruct", photos, "-o", out, *MODEL, "--num-keypoints", "60"]
    run_command(*asked)
    assert Collection.open(out).pairs() == [("0.jpg", "1.jpg")]
    save_views(photos, ["0.jpg", "1.jpg", "2.jpg"])
    run_command(*asked)
    assert len(Collection.open(out).pairs()) == 3
    (out / "pairs.txt").write_text("1.jpg\t2.jpg\n")  # by hand: it stays
    run_command(*asked)
    assert Collection.open(out).pairs() == [("1.jpg", "2.jpg")]
    run_command(*asked, "--exhaustive")
    assert len(Collection.open(out).pairs()) == 3


KILLING = """
import os, random, signal, sys, time
from steerers.cli import main
import steerers.collection, steerers.pipeline, h5py, cv2, poselib, pycolmap

def run(arguments, seconds=None):
    "Run a command in a process of its own, and kill it after a time; how long it took."
    start, child = time.monotonic(), os.fork()
    if not child:
        os._exit(main([*arguments, "--quiet"]))
    while seconds is not None and time.monotonic() - start < seconds:
        if os.waitpid(child, os.WNOHANG)[0]:
            return 0
        time.sleep(0.001)
    if seconds is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status == 0 or (status == signal.SIGKILL and seconds is not None), status
    return time.monotonic() - start

draw = random.Random(0)
whole = run(sys.argv[1].split("|"))
for _ in range(4):
    run(sys.argv[2].split("|"), draw.uniform(0.1, 0.9) * whole)
run(sys.argv[2].split("|"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    scenes = [make_scene(5, seed=1, points=200), make_scene(4, seed=2, points=200)]
    for name in ("whole", "killed"):
        make_collection(tmp_path / name, scenes)
    asked = ["|".join(command(Path(name))) for name in ("whole", "killed")]
    done = subprocess.run(
        [sys.executable, "-c", KILLING, *asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, killed = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "killed"))
    assert whole == killed
    assert contents(tmp_path / "whole") == contents(tmp_path / "killed")
    assert [path.name for path in (tmp_path / "killed").iterdir() if path.name.startswith(".sparse")] == []

"""``steerers align``, by running it."""

from __future__ import annotations

import json
from pathlib import Path

import PIL.Image
import pytest

from helpers import assert_refused, contents, run_command
from steerers.images.load import to_uint8
from terrain import make_terrain, view_of

pytest.importorskip("rasterio")
pytest.importorskip("scipy")
pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = ("--model", "upright-sift", "--num-keypoints", "500")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a.png``, ``b.png`` on its side, and ``c.png``, which shows something else."""
    made, terrain = tmp_path_factory.mktemp("images"), make_terrain(360, seed=4)
    views = {"a": (terrain, 0), "b": (terrain, 90), "c": (make_terrain(360, seed=9), 0)}
    for name, (ground, degrees) in views.items():
        PIL.Image.fromarray(to_uint8(view_of(ground, (180, 180), degrees, (220, 170))[0])).save(made / f"{name}.png")
    return made


def test_everything_is_written(folder: Path, tmp_path: Path) -> None:
    out = {name: tmp_path / name for name in ("out.tif", "t.json", "t.tfm", "squares.png")}
    asked = ["-o", out["out.tif"], "--json", out["t.json"], "--itk", out["t.tfm"], "--picture", out["squares.png"]]
    done = run_command("align", folder / "a.png", folder / "b.png", *asked, *QUICK)
    assert done.code == 0, done.err
    first, *wrote = done.out.splitlines()
    assert "matches agree with a similarity, rotated by" in first
    assert wrote == [f"wrote {path}" for path in out.values()]
    assert contents(tmp_path) == sorted(out)
    told = json.loads(out["t.json"].read_text())
    assert (told["fixed"], told["kind"], told["mirrored"]) == (str(folder / "a.png"), "similarity", False)
    assert told["num_inliers"] > 50
    assert "AffineTransform_double_2_2" in out["t.tfm"].read_text()
    again = run_command("align", folder / "a.png", folder / "b.png", *asked, *QUICK, "--quiet")  # overwrites
    assert (again.code, again.out) == (0, "")
    same = json.loads(out["t.json"].read_text())
    assert same["fixed_to_moving"] == told["fixed_to_moving"]


def test_images_that_do_not_belong_together(folder: Path, tmp_path: Path) -> None:
    done = run_command("align", folder / "a.png", folder / "c.png", "-o", tmp_path / "out.tif", *QUICK)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(
        "steerers: the images cannot be aligned: that they show the same thing has a probability of 0."
    )
    assert contents(tmp_path) == []


def test_refusals(folder: Path, tmp_path: Path) -> None:
    a, b = folder / "a.png", folder / "b.png"
    (tmp_path / "broken.tif").write_bytes(b"II*\0broken")
    out = ["-o", tmp_path / "out.tif"]
    for arguments, message in (
        ([a, b], "say what to write: -o OUT.tif, --json, --itk or --picture"),
        ([a, b, "-o", tmp_path / "out.png"], "its ending must be .tif or .tiff"),
        ([a, b, "--itk", tmp_path / "out.json"], "its ending must be .tfm or .txt"),
        ([a, b, "-o", tmp_path / "no/out.tif"], "there is no folder"),
        ([tmp_path / "none.tif", b, *out], "no such file"),
        ([a, tmp_path / "broken.tif", *out], "is no raster that rasterio reads"),
        ([a, b, *out, "--transform", "rigid"], "unknown transform 'rigid'"),
        ([a, b, *out, "--mirror", "maybe"], "unknown mirror 'maybe'"),
        ([a, b, *out, "--max-distance", "0"], "'0' is not a number above 0"),
        ([a, b, *out, "--nodata", "300"], "of which 300 is none"),
        ([a, b, "-o", tmp_path / "x.tif", "--picture", tmp_path / "x.gif2"], "is no picture"),
        ([a, b, "--json", a], "it is an input, or another output"),
    ):
        assert_refused(["align", *arguments, *QUICK, "--quiet"], message)

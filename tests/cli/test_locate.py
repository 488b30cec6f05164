"""``steerers index`` and ``steerers locate``: what they say, write and refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from helpers import EXAMPLES, assert_refused, contents, run_command
from maps.places import photo_matrix, write_map, write_photo

pytest.importorskip("rasterio")
pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map with an index by SIFT, two photographs of it, and one of elsewhere."""
    folder = tmp_path_factory.mktemp("located")
    write_map(folder / "map.tif")
    (folder / "photos").mkdir()
    for degrees in (20, 250):
        write_photo(folder / "photos" / f"{degrees}.png", photo_matrix(degrees))
    with PIL.Image.open(EXAMPLES / "brick.jpg") as opened:
        opened.resize((256, 192)).save(folder / "brick.png")
    ran = run_command("index", folder / "map.tif", "--model", "sift", "--num-keypoints", "512")
    assert ran.code == 0, ran.err
    assert "540 x 460 pixels of 0.5 m, 2 tiles at 2 resolutions" in ran.out
    assert f"index: {folder / 'map.tif.steerers.h5'}" in ran.out
    return folder


def test_photographs_are_located_and_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    photos = folder / "photos", folder / "brick.png", tmp_path / "broken.jpg"
    ran = run_command("locate", *photos, folder / "map.tif", "-o", tmp_path / "out")
    assert ran.code == 0
    assert "broken.jpg" in ran.err  # it is told of, and the others are looked for all the same
    assert "upper edge 19." in ran.out or "upper edge 20." in ran.out
    assert f"{folder / 'brick.png'}: not on map.tif: the best place on it has a probability of 0." in ran.out
    assert f"2 of 3 photographs are on {folder / 'map.tif'}" in ran.out
    each = [f"{name}{ending}" for name in ("20", "250") for ending in (".points", ".tif", "-map.jpg")]
    assert contents(tmp_path / "out") == sorted([*each, "photographs.geojson", "report.html"])
    features = json.loads((tmp_path / "out" / "photographs.geojson").read_text())["features"]
    assert [feature["properties"]["found"] for feature in features] == [True, True, False]
    assert features[2]["geometry"] is None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "2 of 3 photographs are on map.tif." in page
    assert page.count("<polygon") == 2
    assert "Not on the map" in page
    assert "<td>brick.png</td><td>the best place on it has" in page
    assert "http" not in page.replace("http://www.w3.org", "")  # it needs nothing else


def test_not_on_this_map_is_exit_code_3(folder: Path, tmp_path: Path) -> None:
    for stale in ("brick.tif", "brick.points", "brick-map.jpg"):  # of an earlier run, which had found it
        (tmp_path / stale).write_text("")
    ran = run_command("locate", folder / "brick.png", folder / "map.tif", "-o", tmp_path)
    assert (ran.code, ran.err) == (3, "")
    assert "not on map.tif" in ran.out
    assert contents(tmp_path) == ["photographs.geojson"]


def test_warped_with_a_position(folder: Path, tmp_path: Path) -> None:
    near = ["--near", "121.0319,24.2190", "--within", "50", "--resolution", "0.45"]
    ran = run_command("locate", folder / "photos" / "20.png", folder / "map.tif", "-o", tmp_path, "--warp", *near)
    assert (ran.code, ran.err) == (0, "")
    import rasterio

    with rasterio.open(tmp_path / "20.tif") as dataset:
        assert dataset.count == 4
        assert not dataset.gcps[0]
        assert dataset.res[0] == pytest.approx(0.45, rel=0.02)
    assert contents(tmp_path) == ["20-map.jpg", "20.points", "20.tif", "photographs.geojson"]


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    photo, chart, out = folder / "photos" / "20.png", folder / "map.tif", ["-o", tmp_path / "out"]
    PIL.Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(tmp_path / "bare.png")
    write_map(tmp_path / "lost.tif", crs=None)
    (tmp_path / "20.png").write_bytes(photo.read_bytes())
    (tmp_path / "file").write_text("")
    for arguments, message in [
        (["locate", photo, tmp_path / "bare.png", *out], "does not say where it lies: give --corners"),
        (["locate", photo, tmp_path / "lost.tif", *out], "coordinate reference system: give --crs"),
        (["index", tmp_path / "none.tif"], "no such file"),
        (["locate", tmp_path / "none.jpg", chart, *out], "no such photograph"),
        (["locate", photo, tmp_path / "20.png", chart, *out], "files of one name"),
        (["locate", photo, chart, "-o", tmp_path / "file"], "it is a file"),
        (["locate", chart, chart, "-o", folder], "it is an input"),
        (["locate", tmp_path / "file", chart, *out], "file"),
        (["locate", photo, chart, *out, "--near", "999,0"], "is not a longitude and a latitude"),
        (["locate", photo, chart, *out, "--no-gps", "--within", "50"], "--within needs a position"),
        (["locate", photo, chart, *out, "--model", "upright-sift"], "was made with model sift, not upright-sift"),
        (["locate", photo, chart, *out, "--bands", "1"], "was made of the bands (1, 2, 3), not (1,)"),
        (["index", chart, "--corners", "1,2 3,4"], "are not four corners"),
        (["index", chart, "--num-keypoints", "99"], "was made with num-keypoints 512, not 99"),
    ]:
        assert_refused(arguments, message)
    assert contents(tmp_path / "out") == []


def test_a_map_that_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copy2(folder / "map.tif.steerers.h5", tmp_path / "map.tif.steerers.h5")
    write_map(tmp_path / "map.tif", np.zeros((1, 460, 540), np.uint8))
    arguments = ["locate", folder / "brick.png", tmp_path / "map.tif", "-o", tmp_path / "out"]
    assert_refused(arguments, "map.tif has changed since")

"""Rasters and coordinates, against GDAL's own conventions and files made by rasterio."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steerers.images.exif import ground_distance
from steerers.maps.coordinates import Georeference, check_crs, transform_coordinates
from steerers.maps.geotiff import write_geotiff
from steerers.maps.rasters import open_map, open_raster

rasterio = pytest.importorskip("rasterio")

UTM = "EPSG:32651"


def checks(width: int = 60, height: int = 40) -> NDArray[np.uint8]:
    """(3, H, W) whose values say where they are."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4, y * 6, (x + y) % 256]).astype(np.uint8)


def write(path: Path, pixels: NDArray[Any], **told: Any) -> Path:
    count, height, width = pixels.shape
    profile = {"crs": UTM, "transform": rasterio.Affine(2, 0, 300_000, 0, -2, 2_680_000), "driver": "GTiff", **told}
    with rasterio.open(path, "w", width=width, height=height, count=count, dtype=pixels.dtype, **profile) as dataset:
        dataset.write(pixels)
    return path


def rotated(degrees: float, metres: float) -> Any:
    c, s = metres * math.cos(math.radians(degrees)), metres * math.sin(math.radians(degrees))
    return rasterio.Affine(c, s, 300_000, s, -c, 2_680_000)


def test_a_window_shows_its_pixels(tmp_path: Path) -> None:
    pixels = checks()
    with open_map(write(tmp_path / "map.tif", pixels)) as opened:
        shown, valid = opened.read((10, 5, 40, 25))
        assert (shown == np.moveaxis(pixels[:, 5:25, 10:40], 0, 2)).all()
        assert valid.all()
        assert (opened.read_bands((10, 5, 40, 25)) == pixels[:, 5:25, 10:40]).all()


def test_a_window_beyond_the_map_is_grey_there(tmp_path: Path) -> None:
    pixels = checks()
    with open_map(write(tmp_path / "map.tif", pixels)) as opened:
        shown, valid = opened.read((-10, -5, 20, 15))
        far, nowhere = opened.read((100, 100, 120, 120))
    assert (shown[5:, 10:] == np.moveaxis(pixels[:, :15, :20], 0, 2)).all()
    assert valid[5:, 10:].all()
    assert valid.sum() == 15 * 20
    assert (shown[~valid] == 128).all()
    assert (far == 128).all()
    assert not nowhere.any()


def test_a_smaller_picture_of_a_window_is_its_mean(tmp_path: Path) -> None:
    pixels = checks()
    with open_map(write(tmp_path / "map.tif", pixels)) as opened:
        shown, _ = opened.read((-8, 0, 60, 40), (17, 10))
    mean = pixels.reshape(3, 10, 4, 15, 4).mean(axis=(2, 4))
    assert np.abs(np.moveaxis(shown[:, 2:], 2, 0) - mean).max() <= 1


@pytest.mark.parametrize("size", [(0, 4), (4, 0)])
def test_a_window_without_size_is_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    with open_map(write(tmp_path / "map.tif", checks())) as opened, pytest.raises(ValueError, match="must have a size"):
        opened.read((0, 0, 4, 4), size)


@settings(max_examples=25, deadline=None)
@given(st.floats(-180, 180), st.floats(0.05, 50), st.floats(0, 59), st.floats(0, 39))
def test_rotated_geotransforms(degrees: float, metres: float, x: float, y: float) -> None:
    """Pixels go to where GDAL has them, and back; a step of a pixel has its length, and north is where it is."""
    transform = rotated(degrees, metres)
    matrix = np.array(transform).reshape(3, 3) @ np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    place = Georeference(check_crs(UTM, "it"), matrix, (60, 40))
    expected = (np.array(transform).reshape(3, 3) @ (x + 0.5, y + 0.5, 1))[:2]
    assert np.allclose(place.to_crs([[x, y]])[0], expected, rtol=0, atol=1e-6)
    assert np.allclose(place.to_pixels([expected])[0], (x, y), atol=1e-4)
    assert np.allclose(place.from_lonlat(place.to_lonlat([[x, y]]))[0], (x, y), atol=1e-3)
    step = place.metres((x, y))
    assert math.sqrt(abs(np.linalg.det(step))) == pytest.approx(metres, rel=0.001)
    assert place.resolution((x, y)) == pytest.approx(metres, rel=0.01)
    (lon0, lat0), (lon1, lat1) = place.to_lonlat([[x, y], [x + 10, y]])
    assert 10 * np.linalg.norm(step[:, 0]) == pytest.approx(ground_distance((lat0, lon0), (lat1, lon1)), rel=0.005)
    turn = math.degrees(math.atan2(step[1, 0], step[0, 0]))  # of the x axis from east; the grid is 0.8 degrees off
    assert abs((turn - degrees + 180) % 360 - 180) < 1.5


def test_rasterio_reads_what_is_written(tmp_path: Path) -> None:
    """A rotated one of several tiles, with an alpha band, comes back as it was."""
    pixels = np.concatenate([np.tile(checks(), (1, 14, 9)), np.full((1, 560, 540), 255, np.uint8)])
    matrix = np.array(rotated(30, 0.5)).reshape(3, 3) @ np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    place = Georeference(check_crs(UTM, "it"), matrix, (540, 560))
    path = tmp_path / "out.tif"
    write_geotiff(path, (540, 560), lambda t: pixels[:, t[1] : t[3], t[0] : t[2]], bands=4, place=place, alpha=True)
    with rasterio.open(path) as dataset:
        assert (dataset.read() == pixels).all()
        assert np.allclose(dataset.transform, rotated(30, 0.5), atol=1e-6)
        assert dataset.crs.to_epsg() == 32651
        assert [kind.name for kind in dataset.colorinterp] == ["red", "green", "blue", "alpha"]
    with open_map(path) as opened:
        assert np.allclose(opened.place.matrix, matrix)


def test_what_is_projective_is_written_as_control_points(tmp_path: Path) -> None:
    matrix = np.array([[1e-5, 2e-6, 120.0], [1e-6, -1e-5, 24.0], [0, 0, 1]])
    matrix[2] = [1e-4, 2e-5, 1]
    place, path = Georeference(check_crs("EPSG:4326", "it"), matrix, (60, 40)), tmp_path / "photo.tif"
    write_geotiff(path, (60, 40), lambda t: checks(), bands=3, place=place)
    with rasterio.open(path) as dataset:
        points, crs = dataset.gcps
        assert crs.to_epsg() == 4326
        assert (points[0].row, points[0].col) == (0, 0)  # the corner, where ours is (-0.5, -0.5)
        assert (points[0].x, points[0].y) == pytest.approx(tuple(place.to_crs([[-0.5, -0.5]])[0]))
    with open_map(path) as opened:
        at = [[0, 0], [59, 0], [30, 39]]
        assert np.allclose(opened.place.to_crs(at), place.to_crs(at), atol=1e-9)


def test_corners_and_coordinate_systems_given_by_hand(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.png", checks(), driver="PNG", crs=None, transform=None)
    corners = [[120.0, 24.1], [120.2, 24.11], [120.21, 24.0], [120.01, 24.01]]
    with open_map(bare, corners=corners) as opened:
        edges = [[-0.5, -0.5], [59.5, -0.5], [59.5, 39.5], [-0.5, 39.5]]
        assert np.allclose(opened.place.to_lonlat(edges), corners, atol=1e-9)
    (tmp_path / "bare.pgw").write_text("2\n0\n0\n-2\n300001\n2679999\n")  # a world file counts from pixel centres
    with open_map(bare, crs=UTM) as opened:
        assert np.allclose(opened.place.to_crs([[0, 0], [1, 1]]), [[300_001, 2_679_999], [300_003, 2_679_997]])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, "does not say where it lies: give its corners"),
        ({"crs": "EPSG:99999"}, "is no coordinate reference system"),
        ({"crs": 'LOCAL_CS["table",UNIT["metre",1]]'}, "is no coordinate reference system of the earth"),
        ({"corners": [[0, 0], [1, 1]]}, "corners must be four pairs"),
        ({"corners": [[0, 0], [1, 1], [2, 2], [3, 3]]}, "on a line"),
        ({"corners": [[0, 0], [1, 0], [1, 1], [0, 1]], "bands": [1, 2, 4]}, "bands must be one or three numbers"),
    ],
)
def test_what_is_no_map_is_refused(tmp_path: Path, told: dict[str, Any], message: str) -> None:
    bare = write(tmp_path / "bare.png", checks(), driver="PNG", crs=None, transform=None)
    with pytest.raises(ValueError, match=message):
        open_map(bare, **told)


def test_a_map_without_crs_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not in which coordinate reference system: give its CRS"):
        open_map(write(tmp_path / "map.tif", checks(), crs=None))
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_map(tmp_path / "none.tif")
    (tmp_path / "text.tif").write_text("not a raster")
    with pytest.raises(ValueError, match=r"text\.tif is no raster"):
        open_raster(tmp_path / "text.tif")
    flat = rasterio.Affine(1, 2, 0, 2, 4, 0)
    with pytest.raises(ValueError, match="makes all of it a line"):
        open_map(write(tmp_path / "flat.tif", checks(), transform=flat))


def test_bands(tmp_path: Path) -> None:
    """One is grey; of five, three, and one may say which; a palette has its colours."""
    pixels = checks()
    with open_map(write(tmp_path / "grey.tif", pixels[:1])) as opened:
        assert (opened.read()[0] == pixels[0][..., None]).all()
    five = np.concatenate([pixels, pixels[:2] // 2])
    with open_map(write(tmp_path / "five.tif", five, photometric="minisblack")) as opened:
        assert (opened.read()[0] == np.moveaxis(pixels, 0, 2)).all()
    with open_map(tmp_path / "five.tif", bands=[5, 1, 2]) as opened:
        assert (opened.read()[0] == np.moveaxis(five[[4, 0, 1]], 0, 2)).all()
    path = write(tmp_path / "palette.tif", pixels[:1] // 128)
    with rasterio.open(path, "r+") as dataset:
        dataset.write_colormap(1, {0: (10, 20, 30, 255), 1: (200, 100, 50, 255)})
    with open_map(path) as opened:
        expected = np.where(pixels[0][..., None] // 128, (200, 100, 50), (10, 20, 30))
        assert (opened.read()[0] == expected).all()


def test_deep_values_are_stretched_by_what_is_there(tmp_path: Path) -> None:
    """The same whatever window is read; neither a few wild values nor those without data change anything."""
    values = (1000 + 40 * np.mgrid[:40, :60][1:2]).astype(np.uint16)
    values[0, 3, 3], values[0, :, 0] = 65535, 0
    with open_map(write(tmp_path / "deep.tif", values, nodata=0)) as opened:
        shown, valid = opened.read()
        part, _ = opened.read((20, 10, 30, 20))
    assert not valid[:, 0].any()
    assert valid[:, 1:].all()
    assert (shown[:, 0] == 128).all()
    assert shown[10, 1, 0] == 0
    assert shown[10, 59, 0] == 255
    assert abs(int(shown[10, 30, 0]) - 127) <= 2
    assert (part == shown[10:20, 20:30]).all()
    real = np.where(np.arange(60) < 30, np.nan, 7.0)[None, None].repeat(40, axis=1).astype(np.float32)
    with open_map(write(tmp_path / "real.tif", real)) as opened:
        shown, valid = opened.read()
    assert (valid == (np.arange(60) >= 30)).all()
    assert (shown == 128).all()  # constant


def test_transparent_pixels_are_not_there(tmp_path: Path) -> None:
    pixels = np.concatenate([checks(), np.where(np.arange(60) < 20, 0, 255)[None, None].repeat(40, 1)]).astype(np.uint8)
    with open_map(write(tmp_path / "alpha.tif", pixels, photometric="rgb", alpha="yes")) as opened:
        assert (opened.read()[1] == (np.arange(60) >= 20)).all()


@pytest.mark.parametrize(("crs", "west", "step"), [("EPSG:4326", 179.0, 0.05), ("EPSG:3857", 20_000_000.0, 2000.0)])
def test_a_map_across_the_antimeridian(crs: str, west: float, step: float) -> None:
    matrix = np.array([[step, 0, west], [0, -step, step * 20], [0, 0, 1]])
    place = Georeference(check_crs(crs, "it"), matrix, (60, 40))
    at = np.array([[0.0, 10], [59, 10], [30, 30]])
    lonlat = place.to_lonlat(at)
    assert lonlat[0, 0] >= 179
    assert lonlat[1, 0] < -178
    assert np.allclose(place.from_lonlat(lonlat), at, atol=1e-6)
    assert place.resolution() == pytest.approx(step if step > 1 else step * 111_195, rel=0.01)


def test_places_that_a_projection_does_not_have() -> None:
    space = "+proj=tpers +lat_0=40 +lon_0=10 +h=400000 +tilt=30 +azi=20 +R=6371000 +units=m"
    found = transform_coordinates("EPSG:4326", space, [[10, 40], [-170, -40], [10.5, 40.5]])
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()

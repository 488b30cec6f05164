"""Photographs of a small map with known pose: where they are found, on maps of every kind, and what is written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest

from helpers import EXAMPLES
from maps.places import METRES, NORTH, PHOTO, SIZE, UTM, WEST, photo_matrix, picture, write_map, write_photo
from steerers.collection.manifest import Extraction
from steerers.images.exif import ground_distance
from steerers.maps import Located, LocateOptions, Locator, Prior, locate, open_map
from steerers.maps.coordinates import map_points
from steerers.maps.outputs import draw_on_map, to_geojson, write_photograph, write_points, write_warped
from steerers.maps.space import View

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("scipy")

SIFT = Extraction("sift", num_keypoints=512)
"""Takes little time, and has no rotations of matches."""
QUICK = LocateOptions(num_keypoints=512, iterations=2, guesses=2)
HEADING = 137.0
CORNERS = np.array([[0, 0], [PHOTO[0] - 1, 0], [PHOTO[0] - 1, PHOTO[1] - 1], [0, PHOTO[1] - 1]], float)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    write_map(folder / "map.tif")
    write_photo(folder / "photo.png", photo_matrix(HEADING))
    return folder


@pytest.fixture(scope="module")
def located(folder: Path) -> Located:
    """By compact, with nothing known."""
    return locate(folder / "photo.png", folder / "map.tif", options=QUICK)


def check(located: Located, matrix: np.ndarray, within: float = 2.0) -> None:
    """It is where it was taken, in pixels of the map."""
    assert located.found, located.reason
    assert located.matrix is not None
    assert np.abs(map_points(located.matrix, CORNERS) - map_points(matrix, CORNERS)).max() < within


def test_a_photograph_is_found(located: Located) -> None:
    check(located, photo_matrix(HEADING))
    assert located.probability > 0.95
    assert located.heading == pytest.approx(HEADING, abs=1.0 + 0.9)  # the grid of UTM is 0.8 degrees off north here
    assert located.resolution == pytest.approx(0.9 * METRES, rel=0.01)
    assert located.inliers > 50
    assert 0 < located.rmse < 2 * METRES
    lon, lat = rasterio.warp.transform(UTM, "EPSG:4326", [WEST + METRES * 270.5], [NORTH - METRES * 230.5])
    assert ground_distance((lat[0], lon[0]), (located.centre[1], located.centre[0])) < 1.0


def test_it_is_found_again_in_the_same_place(folder: Path, located: Located) -> None:
    again = locate(folder / "photo.png", folder / "map.tif", options=QUICK)
    assert np.array_equal(again.matrix, located.matrix)
    assert again.probability == located.probability


def test_a_photograph_of_elsewhere_is_not_found(folder: Path, tmp_path: Path) -> None:
    with PIL.Image.open(EXAMPLES / "brick.jpg") as opened:
        opened.resize((256, 192)).save(tmp_path / "brick.png")
    found = locate(tmp_path / "brick.png", folder / "map.tif", options=QUICK)
    assert not found.found
    assert found.probability < 0.5
    assert "the best place on it has a probability of 0." in found.reason
    with pytest.raises(ValueError, match="was not found"):
        found.to_crs([[0, 0]])


def test_what_is_known_beforehand(folder: Path, tmp_path: Path, located: Located) -> None:
    lon, lat = located.centre
    opened, index = open_map(folder / "map.tif"), tmp_path / "index.h5"
    with opened as raster, Locator(raster, index, extraction=SIFT, options=QUICK) as locator:
        near = locator(folder / "photo.png", Prior((lon, lat), 30.0, 0.9 * METRES))
        check(near, photo_matrix(HEADING))
        assert near.tiles < located.tiles
        far = locator(folder / "photo.png", Prior((lon + 1, lat), 500.0))
        assert not far.found
        assert far.reason == "its position is more than 500 m from the map"
        off = locator(folder / "photo.png", Prior((lon + 0.0006, lat), 20.0))  # 60 m beside, on the map
        assert not off.found


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"position": (200.0, 0.0)}, "position must be"),
        ({"within": 0.0}, "within must be"),
        ({"resolution": -1.0}, "resolution must be"),
    ],
)
def test_wrong_priors(told: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Prior(**told)


@pytest.mark.parametrize("told", [{"tiles": 0}, {"threshold": 0.0}, {"threshold": 1.0}, {"iterations": 0}])
def test_wrong_options(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(told))):
        LocateOptions(**told)


# Maps of every kind ---------------------------------------------------------------------------------------------------


def heading_of(view: View) -> float:
    """Of the upper edge in the middle, by the places of two pixels."""
    (lon0, lat0), (lon1, lat1) = view.to_lonlat([[159.5, 119.5], [159.5, 118.5]])
    return math.degrees(math.atan2((lon1 - lon0) * math.cos(math.radians(lat0)), lat1 - lat0)) % 360


def by_sift(photo: Path, path: Path, **told: Any) -> Located:
    with open_map(path, **told) as raster, Locator(raster, extraction=SIFT, options=QUICK) as locator:
        return locator(photo)


def test_five_bands_of_deep_values_with_a_part_without_data(folder: Path, tmp_path: Path) -> None:
    colours = np.moveaxis(picture(), 2, 0)
    deep = 2000 + 9 * np.concatenate([colours, colours[:2] // 3]).astype(np.uint16)
    deep[:, :, :60] = 0
    check(by_sift(folder / "photo.png", write_map(tmp_path / "map.tif", deep, nodata=0)), photo_matrix(HEADING))


def test_one_band_and_a_rotated_geotransform(folder: Path, tmp_path: Path) -> None:
    """The pixels are the same, but north is elsewhere."""
    c, s = METRES * math.cos(0.5), METRES * math.sin(0.5)
    grey = np.moveaxis(picture(), 2, 0)[1:2]
    path = write_map(tmp_path / "map.tif", grey, transform=rasterio.Affine(c, s, WEST, s, -c, NORTH))
    found = by_sift(folder / "photo.png", path)
    check(found, photo_matrix(HEADING))
    assert found.heading == pytest.approx(HEADING - math.degrees(0.5), abs=2)


def test_a_map_across_the_antimeridian(folder: Path, tmp_path: Path) -> None:
    step = METRES / 111_195
    path = write_map(
        tmp_path / "map.tif", crs="EPSG:4326", transform=rasterio.Affine(step, 0, 180 - 270 * step, 0, -step, 0.001)
    )
    found = by_sift(folder / "photo.png", path)
    check(found, photo_matrix(HEADING))
    assert abs(found.centre[0]) > 179.99
    shape = to_geojson([found])["features"][0]["geometry"]
    assert shape["type"] == "MultiPolygon"
    xs = [[x for x, _ in part[0]] for part in shape["coordinates"]]
    assert sorted(max(abs(x) for x in part) for part in xs) == [180, 180]
    assert {all(x > 0 for x in part) for part in xs} == {True, False}
    assert all(abs(x) <= 180 for part in xs for x in part)


def test_a_photograph_larger_than_a_map_that_is_given_by_its_corners(tmp_path: Path) -> None:
    """It shows the whole map, and what is around it."""
    size, matrix = (760, 680), np.eye(3)
    matrix[:2, 2] = (-110.0, -110.0)
    write_photo(tmp_path / "photo.png", matrix, size)
    PIL.Image.fromarray(picture()).save(tmp_path / "map.png")
    corners = [[120.0, 24.003], [120.003, 24.003], [120.003, 24.0], [120.0, 24.0]]
    found = by_sift(tmp_path / "photo.png", tmp_path / "map.png", corners=corners)
    assert found.found
    assert found.matrix is not None
    at = [[110, 110], [110 + SIZE[0], 110], [110, 110 + SIZE[1]]]
    assert np.abs(map_points(found.matrix, at) - map_points(matrix, at)).max() < 2
    assert found.to_lonlat([[109.5, 109.5]])[0] == pytest.approx(corners[0], abs=1e-5)


def test_a_photograph_from_space(tmp_path: Path) -> None:
    """Rendered from a map of five degrees by a tilted camera: a homography is kilometres off, the camera is not."""
    step = 0.01
    path = write_map(tmp_path / "map.tif", crs="EPSG:4326", transform=rasterio.Affine(step, 0, 10.0, 0, -step, 47.0))
    view = View(12.2, 43.6, 420_000, 18.0, 20.0, 100.0, 480, PHOTO)
    x, y = np.meshgrid(np.arange(PHOTO[0]), np.arange(PHOTO[1]))
    lonlat = view.to_lonlat(np.stack([x, y], axis=-1).reshape(-1, 2))
    at = np.stack([(lonlat[:, 0] - 10) / step - 0.5, (47 - lonlat[:, 1]) / step - 0.5], axis=1).astype(np.float32)
    at = at.reshape(PHOTO[1], PHOTO[0], 2)
    assert (at > 0).all()
    assert (at < SIZE).all()
    PIL.Image.fromarray(cv2.remap(picture(), at, None, cv2.INTER_LINEAR)).save(tmp_path / "photo.png")
    found = by_sift(tmp_path / "photo.png", path)
    assert found.found, found.reason
    assert found.view is not None
    assert found.place is not None
    errors = []
    for pixel in ([159.5, 119.5], *CORNERS):
        true_lon, true_lat = view.to_lonlat([pixel])[0]
        both = found.to_lonlat([pixel])[0], found.place.to_lonlat([pixel])[0]  # by the camera, and by the homography
        errors.append([ground_distance((lat, lon), (true_lat, true_lon)) for lon, lat in both])
    camera, flat = np.max(errors, axis=0)
    assert camera < 1.5 * 1112  # metres of a pixel of the map
    assert flat > 2 * camera
    assert np.allclose(found.to_pixels(found.to_crs(CORNERS)), CORNERS, atol=0.01)
    assert found.rmse < 1500
    assert {"longitude", "latitude", "height", "tilt"} == set(found.properties()["camera"])
    assert found.heading == pytest.approx(heading_of(view), abs=1)


# What is written ------------------------------------------------------------------------------------------------------


def test_geotiff_with_control_points(located: Located, folder: Path, tmp_path: Path) -> None:
    write_photograph(tmp_path / "photo.tif", located)
    with rasterio.open(tmp_path / "photo.tif") as dataset, PIL.Image.open(folder / "photo.png") as photo:
        assert (np.moveaxis(dataset.read(), 0, 2) == np.asarray(photo)).all()
        points, crs = dataset.gcps
        assert crs.to_epsg() == 32651
        for point in points:
            expected = located.to_crs([[point.col - 0.5, point.row - 0.5]])[0]
            assert (point.x, point.y) == pytest.approx(tuple(expected), abs=1e-6)
    with open_map(tmp_path / "photo.tif") as opened:  # and it is a map itself
        assert np.allclose(opened.place.to_crs(CORNERS), located.to_crs(CORNERS), atol=0.01)


def test_warped_geotiff(located: Located, folder: Path, tmp_path: Path) -> None:
    """Where it is not transparent, it shows what the map shows there, but for the light."""
    write_warped(tmp_path / "warped.tif", located)
    with open_map(tmp_path / "warped.tif") as warped, open_map(folder / "map.tif") as chart:
        assert warped.place.matrix[0, 1] == warped.place.matrix[1, 0] == 0  # upright
        shown, valid = warped.read()
        y, x = np.nonzero(valid)
        assert 0.3 < valid.mean() < 0.7  # a rectangle that is rotated
        at = np.rint(chart.place.to_pixels(warped.place.to_crs(np.stack([x, y], axis=1)))).astype(int)
        inside = ((at >= 0) & (at < SIZE)).all(axis=1)
        own = picture()[at[inside, 1], at[inside, 0]].mean(axis=1)
        assert np.corrcoef(own, shown[y[inside], x[inside]].mean(axis=1))[0, 1] > 0.95


def test_geojson(located: Located) -> None:
    found = json.loads(json.dumps(to_geojson([located])))["features"][0]
    ring = np.array(found["geometry"]["coordinates"][0])
    assert found["geometry"]["type"] == "Polygon"
    assert (ring[0] == ring[-1]).all()
    x, y = (ring - ring.mean(axis=0)).T
    assert (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() > 0  # counter-clockwise
    told = found["properties"]
    assert told["found"] is True
    assert told["crs"] == UTM
    assert told["centre"] == pytest.approx(list(located.centre))
    assert {"heading", "resolution", "inliers", "rmse", "probability", "photograph"} <= set(told)


def test_points_for_qgis(located: Located, tmp_path: Path) -> None:
    write_points(tmp_path / "photo.points", located)
    first, header, *lines = (tmp_path / "photo.points").read_text().splitlines()
    assert first.startswith("#CRS: PROJCS[")
    assert rasterio.crs.CRS.from_wkt(first.removeprefix("#CRS: ")).to_epsg() == 32651
    assert header == "mapX,mapY,sourceX,sourceY,enable,dX,dY,residual"
    rows = np.array([[float(value) for value in line.split(",")] for line in lines])
    assert len(rows) == located.inliers
    assert (rows[:, 3] < 0).all()  # downwards
    pixels = located.to_pixels(rows[:, :2])  # the corner of the first pixel is (0, 0) there
    off = np.hypot(pixels[:, 0] + 0.5 - rows[:, 2], -(pixels[:, 1] + 0.5) - rows[:, 3])
    assert np.allclose(off, rows[:, 7], atol=1e-6)
    assert np.allclose(np.hypot(rows[:, 5], rows[:, 6]), rows[:, 7], atol=1e-6)


def test_picture_on_the_map(located: Located, folder: Path) -> None:
    with open_map(folder / "map.tif") as raster:
        drawn = np.asarray(draw_on_map(raster, located, 200)).astype(float)
    assert drawn.shape == (200, 408, 3)
    left, right = drawn[:, :200], drawn[:, 208:]
    middle = np.s_[80:120, 80:120]
    assert np.corrcoef(left[middle].ravel(), right[middle].ravel())[0, 1] > 0.8
    assert ((np.abs(left - (255, 196, 0)).sum(axis=2)) < 3).mean() > 0.01  # the outline

"""Cameras above the earth: known poses are found again, by points and on photographs rendered from a map."""

from __future__ import annotations

import math

import numpy as np
import pytest

from steerers.images.exif import ground_distance
from steerers.maps.space import RADIUS, View, fit_view

pytest.importorskip("rasterio")

VIEWS = [
    View(10.0, 45.0, 410_000, 0.0, 0.0, 30.0, 2500, (1200, 800)),
    View(-70.0, -20.0, 410_000, 25.0, 130.0, -60.0, 3000, (1200, 800)),
    View(179.5, 5.0, 380_000, 40.0, -80.0, 170.0, 4000, (1200, 800)),
]


def pinhole(view: View, lonlat: np.ndarray) -> np.ndarray:
    """Pixels by a pinhole camera in space, written out in vectors."""

    def up(lon: float, lat: float) -> np.ndarray:
        lon, lat = math.radians(lon), math.radians(lat)
        return np.array([math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)])

    zenith = up(view.longitude, view.latitude)
    east = np.cross([0, 0, 1], zenith)
    east /= np.linalg.norm(east)
    north = np.cross(zenith, east)
    azimuth, tilt, roll = (math.radians(value) for value in (view.azimuth, view.tilt, view.roll))
    ahead = math.sin(azimuth) * east + math.cos(azimuth) * north
    axis = -math.cos(tilt) * zenith + math.sin(tilt) * ahead
    top = math.cos(tilt) * ahead + math.sin(tilt) * zenith  # up in a photograph that is not rolled
    right = np.cross(axis, top)
    camera = (RADIUS + view.height) * zenith
    rays = np.stack([RADIUS * up(lon, lat) for lon, lat in lonlat]) - camera
    u, v = (view.focal * (rays @ side) / (rays @ axis) for side in (right, -top))
    x = math.cos(roll) * u - math.sin(roll) * v
    y = math.sin(roll) * u + math.cos(roll) * v
    return np.stack([x + (view.size[0] - 1) / 2, y + (view.size[1] - 1) / 2], axis=1)


def grid(view: View, count: int = 6) -> np.ndarray:
    across, down = (np.linspace(0, side - 1, count) for side in view.size)
    return np.stack(np.meshgrid(across, down), axis=-1).reshape(-1, 2)


@pytest.mark.parametrize("view", VIEWS)
def test_the_projection_is_that_of_a_pinhole_camera(view: View) -> None:
    pixels = grid(view)
    lonlat = view.to_lonlat(pixels)
    assert np.isfinite(lonlat).all()
    assert np.allclose(pinhole(view, lonlat), pixels, atol=1e-3)
    assert np.allclose(view.to_pixels(lonlat), pixels, atol=1e-3)


@pytest.mark.parametrize("view", VIEWS)
def test_a_pose_is_found_again(view: View) -> None:
    """From points that are known to a pixel: centre and corners to about the size of a pixel on the ground."""
    rng = np.random.default_rng(0)
    pixels = rng.uniform(0, view.size, (60, 2))
    lonlat = view.to_lonlat(pixels)
    middle = view.to_lonlat([[(view.size[0] - 1) / 2, (view.size[1] - 1) / 2], [(view.size[0] - 1) / 2, 0]])
    north = middle[1, 1] - middle[0, 1]
    east = ((middle[1, 0] - middle[0, 0] + 180) % 360 - 180) * math.cos(math.radians(middle[0, 1]))
    heading, gsd = math.degrees(math.atan2(east, north)), view.height / view.focal / math.cos(math.radians(view.tilt))
    found = fit_view(pixels + rng.normal(0, 1, pixels.shape), lonlat, view.size, heading + 8, 1.2 * gsd)
    assert found is not None
    corners = np.array([[0, 0], [view.size[0] - 1, 0], [0, view.size[1] - 1], [599.5, 399.5]])
    for (lon0, lat0), (lon1, lat1) in zip(view.to_lonlat(corners), found.to_lonlat(corners), strict=True):
        assert ground_distance((lat0, lon0), (lat1, lon1)) < 4 * gsd
    if view.tilt:  # straight down, height and focal length can hardly be told apart
        assert found.height == pytest.approx(view.height, rel=0.25)


def test_few_points_and_impossible_ones_are_no_view() -> None:
    assert fit_view(np.zeros((5, 2)), np.zeros((5, 2)), (100, 100), 0.0, 100.0) is None


def test_what_shows_no_earth_has_no_place() -> None:
    view = View(0.0, 0.0, 400_000, 70.0, 0.0, 0.0, 800, (1000, 1000))  # the horizon is 70.2 degrees from straight down
    assert np.isnan(view.to_lonlat([[500, 0]])).all()
    assert np.isnan(view.to_pixels([[180.0, 0.0]])).all()

"""Bundle adjustment of a plane, its straightening and its place on the Earth, against scenes whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import seeds
from steerers.collection.georeference import NotAlignedError, from_enu
from steerers.geometry import estimate_similarity
from steerers.maps.adjustment import (
    Link,
    _System,
    adjust,
    components,
    distorted,
    inverse_of,
    spanning_tree,
    straightened,
    transfer,
)
from steerers.maps.coordinates import LONLAT, transform_coordinates
from steerers.maps.rectification import place_on_ground, rectify, utm_zone
from steerers.maps.transforms import Array

pytest.importorskip("rasterio")
pytest.importorskip("scipy")

SIZE, FOCAL = (400, 300), 380.0
SMALL = settings(max_examples=10)
GROUND = np.stack(np.meshgrid(np.arange(-50.0, 180, 10), np.arange(-50.0, 180, 10)), axis=-1).reshape(-1, 2)


def camera(x: float, y: float, height: float, turn: float, tilt: tuple[float, float]) -> tuple[Array, Array]:
    """(3, 3) from the ground, z = 0 with z down, to pixels of a camera above it; and its centre."""
    c, s = math.cos(turn), math.sin(turn)
    about = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    (a, b), (d, e) = ((math.cos(angle), math.sin(angle)) for angle in tilt)
    rotation = np.array([[1, 0, 0], [0, a, -b], [0, b, a]]) @ np.array([[d, 0, e], [0, 1, 0], [-e, 0, d]]) @ about
    centre = np.array([x, y, -height])
    K = np.array([[FOCAL, 0, (SIZE[0] - 1) / 2], [0, FOCAL, (SIZE[1] - 1) / 2], [0, 0, 1]])
    return K @ np.column_stack([rotation[:, 0], rotation[:, 1], -rotation @ centre]), centre


def flight(seed: int, count: int = 9, noise: float = 0.0, lens: float = 0.0) -> tuple[list[Link], list[Array], Array]:
    """Links of photographs in rows, each rotated and tilted, the (3, 3) maps from the ground, and the centres."""
    rng = np.random.default_rng(seed)
    cameras = [
        camera(
            60.0 * (k % 3), 50.0 * (k // 3), 100 + 8 * rng.normal(), rng.uniform(-3, 3), tuple(rng.normal(0, 0.06, 2))
        )
        for k in range(count)
    ]
    ground = rng.uniform(-60, 180, (1500, 2))
    links = []
    for i in range(count):
        for j in range(i + 1, count):
            p, q = (transfer(cameras[k][0], ground) for k in (i, j))
            both = np.all([((xy > 0) & (xy < np.array(SIZE) - 1)).all(axis=1) for xy in (p, q)], axis=0)
            if both.sum() < 20:
                continue
            p, q = (distorted(xy[both], SIZE, lens) + rng.normal(0, noise, (both.sum(), 2)) for xy in (p, q))
            q[::9] += rng.normal(0, 60 * (noise > 0), q[::9].shape)  # some are wrong
            links.append(Link(i, j, p, q, cameras[j][0] @ inverse_of(cameras[i][0]), int(both.sum())))
    return links, [found for found, _ in cameras], np.stack([centre for _, centre in cameras])


@SMALL
@given(seed=seeds, lens=st.floats(-0.15, 0.15))
def test_a_lens_there_and_back(seed: int, lens: float) -> None:
    xy = np.random.default_rng(seed).uniform(0, 1, (50, 2)) * (np.array(SIZE) - 1)
    np.testing.assert_allclose(distorted(straightened(xy, SIZE, lens), SIZE, lens), xy, atol=1e-3)
    np.testing.assert_allclose(straightened(xy, SIZE, 0.0), xy)


def test_what_no_lens_sees_has_no_place() -> None:
    far = np.array([[5000.0, 5000.0], [200.0, 150.0]])
    found = distorted(far, SIZE, -0.3)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


def test_the_slopes_are_those_of_the_residuals() -> None:
    links, _, _ = flight(0, count=4, noise=0.5)
    root, start = spanning_tree(range(4), links)
    system = _System(links, start, root, [SIZE] * 4)
    at = system.begin + np.random.default_rng(1).normal(0, 1e-3, len(system.begin))
    slopes = system.jacobian(at).toarray()  # type: ignore[attr-defined]
    for k in range(len(at)):
        step = np.zeros(len(at))
        step[k] = 1e-6
        numeric = (system.residuals(at + step) - system.residuals(at - step)) / 2e-6
        np.testing.assert_allclose(slopes[:, k], numeric, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("lens", [0.0, -0.04])
def test_all_homographies_are_found(lens: float) -> None:
    links, truth, _ = flight(2, noise=0.3, lens=lens)
    rough = np.array([[1, 0.02, 4], [-0.02, 1, -3], [0, 0, 1]])  # by as much is each pair off at first
    start = [Link(one.first, one.second, one.points0, one.points1, rough @ one.H, one.weight) for one in links]
    found = adjust([SIZE] * 9, start, range(9))
    assert found.distortion == pytest.approx(lens, abs=0.01)
    left = np.concatenate([found.residuals(link) for link in links])
    assert np.median(left) < 0.7  # noise alone makes 0.5
    off = []
    for link in links:  # where the truth has them
        p, q = (distorted(transfer(truth[k], GROUND), SIZE, lens) for k in (link.first, link.second))
        both = np.all([((xy > 0) & (xy < np.array(SIZE) - 1)).all(axis=1) for xy in (p, q)], axis=0)
        off.append(found.residuals(Link(link.first, link.second, p[both], q[both], link.H, 0)))
    assert np.median(np.concatenate(off)) < 0.3  # less than the noise of a match
    assert np.quantile(np.concatenate(off), 0.95) < 1.0


def test_groups() -> None:
    links, _, _ = flight(3, count=4)
    far = Link(5, 6, links[0].points0, links[0].points1, links[0].H, 30)
    assert components(8, [*links, far]) == [[0, 1, 2, 3], [5, 6], [4], [7]]
    assert components(3, []) == [[0], [1], [2]]


def test_a_tree_takes_the_links_with_the_most_inliers() -> None:
    def link(i: int, j: int, shift: float, weight: int) -> Link:
        return Link(i, j, np.zeros((0, 2)), np.zeros((0, 2)), np.array([[1, 0, shift], [0, 1, 0], [0, 0, 1.0]]), weight)

    root, maps = spanning_tree(range(3), [link(0, 1, 10, 90), link(1, 2, 10, 80), link(0, 2, 500, 20)])
    assert root == 1
    places = [transfer(maps[k], np.zeros((1, 2)))[0, 0] for k in range(3)]
    assert places == pytest.approx([10, 0, -10])  # what is at 0 of image 0 is at 10 of image 1


# Straightened ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_a_slanted_plane_is_straightened(known: bool) -> None:
    _, truth, centres = flight(4)
    slanted = camera(20, 20, 120, 0.4, (0.35, -0.2))[0]  # as a photograph at a slant sees it
    maps = {index: slanted @ inverse_of(ground) for index, ground in enumerate(truth)}
    focals = dict.fromkeys(maps, FOCAL if known else None)
    found = rectify(maps, dict.fromkeys(maps, SIZE), focals)
    cameras = np.stack([found.cameras[k] for k in range(9)])
    assert (cameras[:, 2] < 0).all()
    ground = np.array([[x, y] for x in (0.0, 60, 120) for y in (0.0, 50, 100)])
    on_plane = transfer(found.maps[3], transfer(truth[3], ground))
    for aims, mine in ((ground, on_plane), (centres[:, :2], cameras[:, :2])):
        to_ground, _ = estimate_similarity(mine, aims, 1000.0)
        assert to_ground is not None
        off = np.linalg.norm(transfer(to_ground, mine) - aims, axis=1).max()
        assert off < (0.3 if known else 12)  # of an extent of 150


def test_on_the_ground() -> None:
    _, truth, centres = flight(5)
    origin = np.array([47.1, 15.4, 0.0])
    maps = {index: truth[0] @ inverse_of(ground) for index, ground in enumerate(truth)}
    plane = rectify(maps, dict.fromkeys(maps, SIZE), dict.fromkeys(maps, FOCAL))
    rng = np.random.default_rng(0)
    enu = np.column_stack([centres[:, 0], -centres[:, 1], -centres[:, 2]]) + rng.normal(0, 0.2, centres.shape)
    degrees = from_enu(enu, origin)
    names = {index: f"{index}.jpg" for index in maps}
    positions = {names[k]: (float(degrees[k, 0]), float(degrees[k, 1]), 500.0 * k) for k in maps}  # altitudes are wild
    found = place_on_ground(plane, names, positions)
    assert found.crs == "EPSG:32633"
    assert found.placement.error < 0.5
    aims = transform_coordinates(LONLAT, found.crs, from_enu(np.array([[60.0, -50, 0], [0, 0, 0]]), origin)[:, [1, 0]])
    ground = np.array([[60.0, 50.0], [0.0, 0.0]])
    on_plane = transfer(plane.maps[0], transfer(truth[0], ground))
    np.testing.assert_allclose(transfer(found.matrix, on_plane), aims, atol=1.5)
    few = dict(list(positions.items())[:2])
    with pytest.raises(NotAlignedError, match="2 of the photographs have a GPS position, and three are needed"):
        place_on_ground(plane, names, few)
    mirrored = {name: (lat, 2 * 15.4 - lon, None) for name, (lat, lon, _) in positions.items()}
    with pytest.raises(NotAlignedError, match="taken from below"):
        place_on_ground(plane, names, mirrored)


@pytest.mark.parametrize(
    ("longitude", "latitude", "zone"),
    [
        (15.4, 47.1, 32633),
        (-98.1, 30.2, 32614),
        (151.2, -33.9, 32756),
        (179.99, 1, 32660),
        (-180, 1, 32601),
        (0, 85, 32661),
        (0, -85, 32761),
    ],
)
def test_zones(longitude: float, latitude: float, zone: int) -> None:
    assert utm_zone(longitude, latitude) == f"EPSG:{zone}"

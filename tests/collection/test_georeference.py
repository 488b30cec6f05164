"""Alignment to GPS: the Earth against pycolmap's, positions that are wrong by a country, and what cannot be aligned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import seeds
from steerers.collection.georeference import (
    NotAlignedError,
    Position,
    align,
    common_origin,
    fit_similarity,
    from_enu,
    to_ecef,
    to_enu,
)

pycolmap = pytest.importorskip("pycolmap")
HOME = np.array([57.7, 11.97, 120.0])


@given(st.floats(-89, 89), st.floats(-180, 180), st.floats(-100, 9000), seeds)
def test_the_earth(latitude: float, longitude: float, altitude: float, seed: int) -> None:
    origin = np.array([latitude, longitude, altitude])
    metres = np.random.default_rng(seed).uniform(-3000, 3000, (5, 3))
    places = from_enu(metres, origin)
    np.testing.assert_allclose(to_enu(places, origin), metres, atol=2e-3)
    theirs = pycolmap.GPSTransform(pycolmap.GPSTransformEllipsoid.WGS84)
    np.testing.assert_allclose(to_ecef(places), theirs.ellipsoid_to_ecef(places), atol=1e-3)
    np.testing.assert_allclose(to_enu(places, origin), theirs.ellipsoid_to_enu(places, *origin), atol=2e-3)


def make_flight(
    rng: np.random.Generator, count: int = 12, noise: float = 2.0
) -> tuple[dict[str, np.ndarray], dict[str, Position], np.ndarray]:
    """Centres of a model, GPS positions, and where the photographs were in metres around :data:`HOME`."""
    metres = rng.uniform(-100, 100, (count, 3)) * (1, 1, 0.1)
    R, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    R *= np.sign(np.linalg.det(R))
    centres = (metres - rng.uniform(-50, 50, 3)) @ R.T * 0.037
    names = [f"{k:02d}.jpg" for k in range(count)]
    measured = from_enu(metres + noise * rng.uniform(-1.7, 1.7, metres.shape), HOME)  # that deviation, and no tail
    return (
        dict(zip(names, centres, strict=True)),
        {name: (float(a), float(b), float(c)) for name, (a, b, c) in zip(names, measured, strict=True)},
        metres,
    )


@given(seeds)
@example(79)
@example(964)
@example(331470)
def test_a_model_comes_to_metres(seed: int) -> None:
    centres, positions, metres = make_flight(np.random.default_rng(seed), 12, 1.0)
    found = align(centres, positions, HOME)
    placed = found.transform(np.stack(list(centres.values())))
    assert np.linalg.norm(placed - metres, axis=1).max() < 6.0
    assert found.wrong == ()
    assert found.error < 4.0
    np.testing.assert_allclose(found.transform.R @ found.transform.R.T, np.eye(3), atol=1e-9)
    assert np.linalg.det(found.transform.R) > 0


@pytest.mark.parametrize("count", [9, 40])
def test_positions_wrong_by_a_country(count: int) -> None:
    centres, positions, metres = make_flight(np.random.default_rng(count), count, 1.0)
    positions["02.jpg"] = (48.85, 2.35, 35.0)
    positions["05.jpg"] = (57.7, -11.97, 120.0)  # the sign was lost
    origin = common_origin(list(positions.values()))
    assert np.linalg.norm(to_enu(origin[None], HOME)) < 300
    found = align(centres, positions, HOME)
    assert found.wrong == ("02.jpg", "05.jpg")
    assert found.offsets["02.jpg"] > 1e6
    placed = found.transform(np.stack(list(centres.values())))
    assert np.linalg.norm(placed - metres, axis=1).max() < 5.0


def test_positions_without_altitude() -> None:
    rng = np.random.default_rng(1)
    centres, positions, metres = make_flight(rng, 20, 0.5)
    flat = {name: np.array([*place[:2], 30.0]) for name, place in zip(centres, metres, strict=True)}
    unknown: dict[str, Position] = {name: (*position[:2], None) for name, position in positions.items()}
    origin = common_origin(list(unknown.values()))
    assert origin[2] == 0.0
    found = align(flat, unknown, origin)
    assert found.error < 2.0
    assert found.transform.scale == pytest.approx(1.0, rel=0.02)
    assert found.transform.R[2, 2] == pytest.approx(1.0, abs=1e-6)  # up stays up


def test_altitudes_that_drift_are_not_used() -> None:
    rng = np.random.default_rng(2)
    centres, positions, metres = make_flight(rng, 20, 1.0)
    assert not align(centres, positions, HOME).level
    drifting: dict[str, Position] = {
        name: (latitude, longitude, float(8 * k + rng.normal(0, 20)))
        for k, (name, (latitude, longitude, _)) in enumerate(positions.items())
    }
    found = align(centres, drifting, HOME)
    assert found.level
    assert found.wrong == ()
    placed = found.transform(np.stack(list(centres.values())))
    assert np.median(np.linalg.norm((placed - metres)[:, :2], axis=1)) < 5.0
    assert found.error == pytest.approx(np.median(list(found.offsets.values())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda positions: dict(list(positions.items())[:2]), "2 of its photographs have a GPS position"),
        (lambda positions: dict.fromkeys(positions, (57.7, 11.97, 3.0)), "on a line or in one point"),
        (lambda positions: {n: (p[0], 11.97, 120.0) for n, p in positions.items()}, "lie on a line"),
        (
            lambda positions: dict(
                zip(positions, [(57.7 + 0.01 * (k % 5), 11.97 + 0.013 * (k % 3), 5.0 * (k % 7)) for k in range(12)])  # noqa: B905
            ),
            "do not follow it",
        ),
    ],
)
def test_what_cannot_be_aligned(change: object, message: str) -> None:
    centres, positions, _ = make_flight(np.random.default_rng(0))
    with pytest.raises(NotAlignedError, match=message):
        align(centres, change(positions), HOME)  # type: ignore[operator]


def test_a_flight_along_a_line() -> None:
    line = {f"{k}.jpg": np.array([k * 1.0, 0.0, 0.0]) for k in range(8)}
    places = from_enu(np.array([[10.0 * k, 0.0, 0.0] for k in range(8)]), HOME)
    positions: dict[str, Position] = {f"{k}.jpg": tuple(places[k]) for k in range(8)}  # type: ignore[misc]
    with pytest.raises(NotAlignedError, match="on a line"):
        align(line, positions, HOME)


def test_similarity_of_too_little() -> None:
    assert fit_similarity(np.zeros((3, 3)), np.ones((3, 3))) is None
    line = np.arange(3.0)[:, None] * np.ones(3)
    assert fit_similarity(line, line) is None

"""The probability that two images show the same thing, on matches whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steerers.features import Features, Matches, load_matches
from steerers.geometry import jacobians
from steerers.verdict import gather, likelihood, probability

SIZE = (800, 600)


def features(size: tuple[int, int] = SIZE) -> Features:
    return Features(torch.zeros(0, 2), torch.zeros(0, 4), torch.zeros(0), size)


def homography(rng: np.random.Generator) -> np.ndarray:
    """A rotation by any angle, with some scale, shift and perspective."""
    angle, scale = rng.uniform(-math.pi, math.pi), rng.uniform(0.7, 1.4)
    c, s = scale * math.cos(angle), scale * math.sin(angle)
    return np.array([[c, s, 300], [-s, c, 300], [*rng.uniform(-1e-4, 1e-4, 2), 1]])


def make_matches(right: int, wrong: int, seed: int, *, rotations: bool = True, size: tuple[int, int] = SIZE) -> Matches:
    """Some that a homography explains, to half a pixel and ten degrees, and some that are anything."""
    rng = np.random.default_rng(seed)
    H, count = homography(rng), right + wrong
    p0 = rng.uniform(0, size, (count, 2))
    mapped = np.column_stack([p0, np.ones(count)]) @ H.T
    p1 = np.where(
        np.arange(count)[:, None] < right,
        mapped[:, :2] / mapped[:, 2:] + rng.normal(0, 0.5, (count, 2)),
        rng.uniform(0, size, (count, 2)),
    )
    linear = jacobians(H, p0)
    own = np.degrees(np.arctan2(linear[:, 0, 1] - linear[:, 1, 0], linear[:, 0, 0] + linear[:, 1, 1]))
    angles = np.where(np.arange(count) < right, own + rng.normal(0, 8, count), rng.uniform(-180, 180, count))
    return Matches(
        keypoints0=p0.astype(np.float32),
        keypoints1=p1.astype(np.float32),
        scores=np.ones(count, np.float32),
        indices=np.stack([np.arange(count)] * 2, axis=1),
        angles=angles.astype(np.float32) if rotations else None,
        features0=features(size),
        features1=features(size),
    )


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_what_a_homography_explains_belongs_together_and_what_nothing_explains_does_not(seed: int, known: bool) -> None:
    assert make_matches(60, 60, seed, rotations=known).probability > 0.95
    assert make_matches(0, 60, seed, rotations=known).probability < 0.5


@pytest.mark.parametrize("known", [True, False])
def test_more_that_agree_is_more_likely(known: bool) -> None:
    means = [
        np.mean([make_matches(right, 50, seed, rotations=known).probability for seed in range(3)])
        for right in (0, 10, 30, 100)
    ]
    assert means == sorted(means)
    assert means[0] < 0.2
    assert means[-1] > 0.98


def test_rotations_of_matches_tell_few_right_ones_from_chance() -> None:
    """With ten right ones of sixty, of which some that are wrong agree by chance too."""
    seeds = range(4)
    right, chance = ([gather(make_matches(count, 50, seed)).planar for seed in seeds] for count in (10, 0))
    assert min(right) > max(chance)
    twisted = [replace(make_matches(10, 50, seed), angles=np.full(60, 77.0, np.float32)) for seed in seeds]
    assert np.median([gather(one).planar for one in twisted]) <= np.median(chance) + 1


def test_scene_that_is_not_flat() -> None:
    """Points of any depth seen by two cameras: no homography explains them, a fundamental matrix does."""
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.uniform(-2, 2, (150, 2)), rng.uniform(4, 12, 150)])
    K = np.array([[700.0, 0, 400], [0, 700, 300], [0, 0, 1]])
    seen = [(points + shift) @ K.T for shift in ([0, 0, 0], [1.0, 0.2, 0.3])]
    p0, p1 = (each[:, :2] / each[:, 2:] for each in seen)
    angles = rng.normal(0, 6, 150).astype(np.float32)
    matches = replace(
        make_matches(0, 150, 0), keypoints0=p0.astype(np.float32), keypoints1=p1.astype(np.float32), angles=angles
    )
    found = gather(matches)
    assert found.epipolar > 130
    assert found.planar < 60
    assert matches.probability > 0.95


def test_sanity_of_homographies() -> None:
    matches = make_matches(60, 0, 3)
    assert gather(matches).sane
    mirrored = replace(matches, keypoints1=matches.keypoints1 * np.array([-1, 1], np.float32) + 800)
    found = gather(mirrored)
    assert not found.sane
    assert found.planar == 0  # their rotations are those of no mirror


def test_larger_images_have_larger_pixels() -> None:
    """The same matches of images four times as large are judged alike."""
    matches = make_matches(12, 40, 5)
    larger = replace(
        matches,
        keypoints0=4 * matches.keypoints0,
        keypoints1=4 * matches.keypoints1,
        features0=features((3200, 2400)),
        features1=features((3200, 2400)),
    )
    assert gather(larger).planar == pytest.approx(gather(matches).planar, abs=2)


def test_matches_of_a_file_are_judged_without_features(tmp_path: Path) -> None:
    matches = make_matches(60, 30, 1)
    matches.save(tmp_path / "m.h5")
    assert load_matches(tmp_path / "m.h5").probability == pytest.approx(matches.probability, abs=0.02)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_few_matches(count: int) -> None:
    assert 0 <= make_matches(count, 0, 0).probability < 0.5
    assert 0 <= make_matches(count, 0, 0, rotations=False).probability < 0.5


@given(st.floats(-50, 50))
def test_likelihood(logit: float) -> None:
    assert likelihood(logit) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-12)


def test_a_smaller_prior_is_less_likely() -> None:
    evidence = gather(make_matches(12, 40, 2))
    even, seldom = probability(evidence), probability(evidence, 0.1)
    assert seldom / (1 - seldom) == pytest.approx(even / (1 - even) / 9)

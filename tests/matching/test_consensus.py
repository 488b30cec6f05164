"""The consensus of matches: what is told of neighbours, what changes nothing, what is kept; files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import randn, seeds
from steerers._weights import WeightsError, save
from steerers.geometry import rotation, wrap_degrees
from steerers.matching.assignment import Assignment
from steerers.matching.consensus import (
    CLOSE,
    EXACT,
    FEWEST,
    LEAST,
    NEIGHBOURS,
    Candidates,
    Consensus,
    beside_lines,
    neighbourhoods,
)

angles = st.floats(-math.pi, math.pi)


def drawn(seed: int, count: int = 40) -> Candidates:
    """Places and rotations at random."""
    generator = torch.Generator().manual_seed(seed)
    points = 600 * torch.rand(2, count, 2, generator=generator, dtype=torch.float64)
    turns = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64) - math.pi
    scores = torch.rand(count, generator=generator)
    return Candidates(points[0], points[1], scores, torch.rand(count, 2, generator=generator), turns, 0.3)


def network(seed: int, **options: float) -> Consensus:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Consensus(**options).requires_grad_(False)  # type: ignore[arg-type]


def moved(points: Tensor, angle: float, scale: float, shift: Tensor) -> Tensor:
    """As an image is that is rotated counter-clockwise, scaled and shifted; y goes down."""
    return scale * points @ rotation(-angle).to(points) + shift.to(points)


# What is told ---------------------------------------------------------------------------------------------------------


def unit(points: Tensor) -> list[tuple[float, float]]:
    mean = points.mean(dim=0)
    spread = math.sqrt(sum(float((p - mean).square().sum()) for p in points) / len(points))
    return [(float(x) / spread, float(y) / spread) for x, y in points - mean]


@given(seed=seeds, count=st.integers(2, 30))
def test_neighbours_and_what_is_told_of_them_against_loops(seed: int, count: int) -> None:
    of = drawn(seed, count)
    first, second = unit(of.points0), unit(of.points1)
    near, told = neighbourhoods(of, count=5)
    assert near.shape == (count, min(5, count - 1))
    for i in range(count):
        apart = {j: max(math.dist(first[i], first[j]), math.dist(second[i], second[j])) for j in range(count) if j != i}
        expected = sorted(apart, key=lambda j: apart[j])[: near.shape[1]]
        assert [apart[j] for j in near[i].tolist()] == pytest.approx([apart[j] for j in expected], abs=1e-5)
        for j, numbers in zip(near[i].tolist(), told[i].tolist(), strict=True):
            length0, length1 = math.dist(first[i], first[j]), math.dist(second[i], second[j])
            way0, way1 = (math.atan2(p[i][1] - p[j][1], p[j][0] - p[i][0]) for p in (first, second))
            turn, own, other = way1 - way0, float(of.angles[i]), float(of.angles[j])
            waves = [f(a) for a in (turn - own, turn - other, other - own) for f in (math.cos, math.sin)]
            ratio = math.log((length1 + CLOSE) / (length0 + CLOSE))
            close = min(4.0, min(length0, length1) / CLOSE) / 2
            far = 0.5 * math.log(max(length0, length1) + CLOSE) + 1
            assert numbers == pytest.approx([*waves, ratio, abs(ratio), far, close], abs=2e-3)


@given(seed=seeds, turn0=angles, turn1=angles, scale0=st.floats(0.1, 10), scale1=st.floats(0.1, 10))
def test_rotating_scaling_and_shifting_the_images_changes_nothing(
    seed: int, turn0: float, turn1: float, scale0: float, scale1: float
) -> None:
    of, consensus, shift = (drawn(seed), network(seed), 1000 * randn(2, 2, seed=seed))
    change = turn1 - turn0
    other = Candidates(
        moved(of.points0, turn0, scale0, shift[0]),
        moved(of.points1, turn1, scale1, shift[1]),
        of.scores,
        of.rivals,
        of.angles + change,
        of.angle + change,
    )
    torch.testing.assert_close(consensus(of).sigmoid(), consensus(other).sigmoid(), atol=2e-3, rtol=0)


def two_cameras(seed: int, count: int) -> tuple[Candidates, Tensor]:
    """Places of points in space, seen by two cameras, and (3, 3) their fundamental matrix in pixels."""
    generator = torch.Generator().manual_seed(seed)
    space = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 4 + torch.tensor([-2.0, -2.0, 4.0])
    K = torch.tensor([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]], dtype=torch.float64)
    turn, shift = torch.eye(3, dtype=torch.float64), torch.tensor([0.7, 0.2, 0.3], dtype=torch.float64)
    turn[0, 0] = turn[2, 2] = math.cos(0.2)
    turn[0, 2], turn[2, 0] = math.sin(0.2), -math.sin(0.2)
    seen0, seen1 = space @ K.mT, (space @ turn.mT + shift) @ K.mT
    cross = torch.linalg.cross(shift[None].expand(3, 3), torch.eye(3, dtype=torch.float64)).mT  # (3, 3), of a product
    fundamental = K.inverse().mT @ cross @ turn @ K.inverse()
    points = (seen[:, :2] / seen[:, 2:] for seen in (seen0, seen1))
    alone = torch.ones(count), torch.ones(count, 2)
    return Candidates(*points, *alone, torch.zeros(count).double(), 0.0), fundamental


@given(seed=seeds)
def test_distances_from_epipolar_lines_against_the_true_fundamental_matrix(seed: int) -> None:
    right, wrong = 40, 15
    of, fundamental = two_cameras(seed, right + wrong)
    points1 = of.points1.clone()
    points1[right:] += 80 * randn(wrong, 2, seed=seed)
    of = replace(of, points1=points1)
    weights = (torch.arange(right + wrong) < right).float()
    told = beside_lines(of, weights)
    rays0, rays1 = (torch.cat([p, torch.ones(len(p), 1).double()], dim=1) for p in (of.points0, of.points1))
    lines1, lines0 = rays0 @ fundamental.mT, rays1 @ fundamental
    off = (rays1 * lines1).sum(dim=1).abs()
    spread0, spread1 = (
        (p[:right] - p[:right].mean(dim=0)).square().sum(dim=1).mean().sqrt() for p in (of.points0, of.points1)
    )
    slopes = lines0[:, :2].square().sum(dim=1) * spread0**2 + lines1[:, :2].square().sum(dim=1) * spread1**2
    logs = torch.log(off / slopes.sqrt() + EXACT)
    typical = logs[:right].mean()
    expected = torch.stack([logs / 3 + 1, (logs - typical) / 3, torch.full_like(logs, math.log(right + 1) / 5)], dim=1)
    torch.testing.assert_close(told, expected.float(), atol=2e-3, rtol=0)
    assert float(told[:right, 0].max()) < float(told[right:, 0].median())


def test_few_candidates_say_nothing_of_epipolar_lines() -> None:
    assert not beside_lines(drawn(0, FEWEST - 1), torch.ones(FEWEST - 1)).any()
    assert bool(beside_lines(drawn(0, FEWEST), torch.zeros(FEWEST)).isfinite().all())


@given(seed=seeds)
def test_candidates_have_no_order(seed: int) -> None:
    of, consensus = drawn(seed, NEIGHBOURS + 1), network(seed)
    order = torch.randperm(len(of), generator=torch.Generator().manual_seed(seed))
    told = of.points0, of.points1, of.scores, of.rivals, of.angles
    shuffled = Candidates(*(each[order] for each in told), of.angle)
    torch.testing.assert_close(consensus(of)[:, order], consensus(shuffled), atol=1e-4, rtol=1e-4)


def test_places_that_are_the_same_are_no_fault() -> None:
    of = drawn(0)
    same = replace(of, points0=of.points0[:1].expand(len(of), 2), points1=of.points1[:1].expand(len(of), 2))
    assert bool(torch.isfinite(network(0)(same)).all())


# What is kept ---------------------------------------------------------------------------------------------------------


def found(of: Candidates) -> tuple[Assignment, Tensor, Tensor]:
    """An assignment with these candidates, no two of one keypoint, and the keypoints of both images."""
    count = len(of)
    indices = torch.stack([torch.arange(count).flip(0), torch.arange(count)], dim=1)
    assignment = Assignment(indices, of.scores.float(), of.angle, of.angles)
    return assignment, of.points0.flip(0), of.points1


@given(seed=seeds, threshold=st.floats(0, 0.99))
def test_those_above_the_threshold_are_kept_the_best_first(seed: int, threshold: float) -> None:
    of, consensus = replace(drawn(seed), rivals=torch.ones(40, 2)), network(seed).above(threshold)
    assignment, points0, points1 = found(of)
    kept = consensus.choose(assignment, points0, points1)
    probability = consensus(of)[-1].sigmoid()
    expected = [k for k in probability.argsort(descending=True).tolist() if float(probability[k]) > threshold]
    assert kept.indices[:, 1].tolist() == expected
    assert kept.indices[:, 0].tolist() == [len(of) - 1 - k for k in expected]
    torch.testing.assert_close(kept.scores, probability[expected])
    assert kept.angles is not None
    torch.testing.assert_close(kept.angles, of.angles[expected])
    assert (kept.angle is None) == (not expected)


def test_what_has_no_neighbourhood_or_rotation_stays_as_it_is() -> None:
    consensus = network(0)
    for count in range(LEAST):
        assignment, points0, points1 = found(drawn(0, count))
        kept = consensus.choose(assignment, points0, points1)
        assert torch.equal(kept.indices, assignment.indices)
        assert torch.equal(kept.scores, assignment.scores)
    assignment, points0, points1 = found(drawn(0))
    without = replace(assignment, angles=None)
    assert consensus.choose(without, points0, points1) is without


def rivals(seed: int, count: int) -> tuple[Assignment, Tensor, Tensor]:
    """Candidates of few keypoints, each of which has several."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, 8, (count, 2), generator=generator).unique(dim=0)
    scores = torch.rand(len(pairs), generator=generator).sort(descending=True).values
    turns = torch.zeros(len(pairs), dtype=torch.float64)
    points = 600 * torch.rand(2, 8, 2, generator=generator, dtype=torch.float64)
    return Assignment(pairs, scores, 0.0, turns), points[0], points[1]


@given(seed=seeds, count=st.integers(1, 40))
def test_rivals_are_told_of_one_another(seed: int, count: int) -> None:
    assignment, points0, points1 = rivals(seed, count)
    of = Candidates.of(assignment, points0, points1)
    pairs, scores = assignment.indices.tolist(), assignment.scores.tolist()
    for k, pair in enumerate(pairs):
        for side in (0, 1):
            total = sum(score for other, score in zip(pairs, scores, strict=True) if other[side] == pair[side])
            assert float(of.rivals[k, side]) == pytest.approx(scores[k] / total, abs=1e-5)
    assert torch.equal(of.points0, points0[assignment.indices[:, 0]])
    assert torch.equal(of.points1, points1[assignment.indices[:, 1]])


@given(seed=seeds, count=st.integers(1, 40))
def test_of_rivals_those_stay_that_are_the_likeliest_of_both_keypoints(seed: int, count: int) -> None:
    assignment, points0, points1 = rivals(seed, count)
    consensus = network(seed).above(0.0)
    kept = consensus.choose(assignment, points0, points1)
    few = len(assignment) < LEAST
    of = Candidates.of(assignment, points0, points1)
    likely = (assignment.scores if few else consensus(of)[-1].sigmoid()).tolist()
    pairs = assignment.indices.tolist()
    order = sorted(range(len(pairs)), key=lambda k: -likely[k])
    expected = [
        pairs[k]
        for place, k in enumerate(order)
        if not any(pairs[k][side] == pairs[other][side] for other in order[:place] for side in (0, 1))
    ]
    assert kept.indices.tolist() == expected
    assert kept.scores.tolist() == sorted(kept.scores.tolist(), reverse=True)


def test_of_very_many_candidates_the_best_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assignment, points0, points1 = rivals(0, 40)
    monkeypatch.setattr("steerers.matching.consensus.MOST", 5)
    kept = network(0).above(0.0).choose(assignment, points0, points1)
    assert set(map(tuple, kept.indices.tolist())) <= set(map(tuple, assignment.indices[:5].tolist()))


def test_the_rotation_is_that_of_those_that_are_kept() -> None:
    of = drawn(3)
    turns = torch.full((40,), math.radians(70), dtype=torch.float64)
    assignment, points0, points1 = found(replace(of, angles=turns, angle=math.radians(70)))
    kept = network(3).above(0.0).choose(assignment, points0, points1)
    assert kept.angle is not None
    assert wrap_degrees(math.degrees(kept.angle)) == pytest.approx(70)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, math.nan])
def test_wrong_thresholds_are_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\), got"):
        network(0).above(threshold)


# Files ----------------------------------------------------------------------------------------------------------------


def test_files_keep_it(tmp_path: Path) -> None:
    consensus, of = network(5), drawn(5)
    consensus.save(tmp_path / "mine.safetensors", {"model": "compact-6"})
    again = Consensus.load(tmp_path / "mine.safetensors", "compact-6")
    assert torch.equal(consensus(of), again(of))
    with pytest.raises(WeightsError, match=r"mine\.safetensors: a consensus for model 'compact-6', not for 'sift'"):
        Consensus.load(tmp_path / "mine.safetensors", "sift")


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "other.safetensors", {"weight": torch.zeros(3)}, {"kind": "steerer"})
    with pytest.raises(WeightsError, match=r"other\.safetensors: not a consensus, which steerers fit-consensus writes"):
        Consensus.load(tmp_path / "other.safetensors")
    save(tmp_path / "less.safetensors", {"weight": torch.zeros(3)}, {"kind": "consensus"})
    with pytest.raises(WeightsError, match=r"less\.safetensors: not the weights of a consensus"):
        Consensus.load(tmp_path / "less.safetensors")

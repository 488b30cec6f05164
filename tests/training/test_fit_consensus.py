"""Learning a consensus: from candidates with a truth, from photographs, from reconstructions."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import steerers
from datasets.workspaces import write_scene
from helpers import EXAMPLES, assert_refused, run_command, seeds
from steerers.datasets.reconstruction import open_scenes
from steerers.datasets.views import Views
from steerers.geometry import rotation
from steerers.matching.consensus import CANDIDATE, Candidates, Consensus
from steerers.pipeline import Pipeline
from steerers.training.fit_consensus import (
    RIGHT,
    SCENES,
    UNRELATED,
    VIEWS,
    WRONG,
    ConsensusOptions,
    Example,
    augmented,
    candidate_finder,
    fit_consensus,
    learn,
    loss_of,
    measure,
    scene_examples,
    view_examples,
)

QUICK = ConsensusOptions(
    pairs=3, views=4, unrelated=12, steps=6, batch=2, drawn=Views(size=224, scale=(0.6, 1.2), tilt=1.5)
)


@pytest.fixture(scope="module")
def matcher() -> Pipeline:
    return steerers.load("upright-sift-so2", num_keypoints=300, max_size=320)


def example_of(seed: int, right: int = 30, wrong: int = 60, kind: str = VIEWS) -> Example:
    """Two images rotated, scaled and bent a little against each other, and matches at random."""
    generator = torch.Generator().manual_seed(seed)
    turn, scale, *_ = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    angle, count = 2 * math.pi * turn - math.pi, right + wrong
    points0, points1 = 500 * torch.rand(2, count, 2, generator=generator, dtype=torch.float64)
    true = (0.5 + scale) * points0 @ rotation(-angle) + 3 * torch.randn(count, 2, generator=generator)
    points1[:right] = true[:right]
    angles = angle + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    angles[right:] += math.pi * (2 * torch.rand(wrong, generator=generator, dtype=torch.float64) - 1)
    errors = torch.full((count,), math.inf)
    errors[:right] = 1.0
    scores = 0.05 + 0.4 * torch.rand(count, generator=generator)
    rivals = torch.ones(count, 2)
    return Example(Candidates(points0.float(), points1.float(), scores, rivals, angles, angle), errors, kind)


def test_what_agrees_is_learnt() -> None:
    """Descriptions say nothing here, and of 90 candidates 30 are right."""
    options = ConsensusOptions(steps=150, batch=2, thinned=0.3)
    consensus = learn([example_of(seed) for seed in range(24)], options, lambda items, what, length: items)
    recall, precision, before = measure(consensus.above(0.5), [example_of(seed) for seed in range(100, 110)])
    assert before == pytest.approx(1 / 3)
    assert recall > 0.9
    assert precision > 0.9


def test_the_same_seed_gives_the_same_network() -> None:
    examples = [example_of(seed) for seed in range(4)]
    first, second, other = (
        learn(examples, ConsensusOptions(steps=3, seed=seed), lambda items, what, length: items) for seed in (1, 1, 2)
    )
    states = [torch.cat([value.flatten() for value in found.state_dict().values()]) for found in (first, second, other)]
    torch.testing.assert_close(states[0], states[1], atol=1e-4, rtol=1e-4)  # threads add up in any order
    assert float((states[0] - states[2]).abs().max()) > 0.1


@given(seed=seeds, thinned=st.sampled_from([0.0, 1.0]))
def test_harder_examples_are_parts_of_what_was_there(seed: int, thinned: float) -> None:
    whole = example_of(seed % 7)
    part = augmented(whole, seed, thinned)
    assert len(part.errors) == len(part.candidates) <= len(whole.candidates)
    assert int((part.errors <= RIGHT).sum()) <= 30
    known = {round(float(score), 6) for score in whole.candidates.scores}
    assert {round(float(score), 6) for score in part.candidates.scores} <= known
    assert torch.all(part.candidates.points0.abs() <= 1e4)


@given(seed=seeds)
def test_exchanged_and_mirrored_examples_are_still_true(seed: int) -> None:
    """Of the right ones, rotations are still those by which ways from one to the other turn."""
    part = augmented(example_of(seed % 5, right=40, wrong=0), seed, 0.0).candidates

    def direction(points: Tensor) -> Tensor:
        away = points[1:] - points[:-1]
        return torch.atan2(-away[:, 1], away[:, 0])

    far = (part.points0[1:] - part.points0[:-1]).norm(dim=1) > 100
    turned = direction(part.points1) - direction(part.points0) - part.angles[1:].float()
    assert float(turned.cos()[far].min()) > 0.8


def test_what_is_not_told_counts_for_nothing() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    errors = torch.tensor([0.0, (RIGHT + WRONG) / 2, math.inf])
    alone = loss_of(logits[:, [0, 2]], errors[[0, 2]])
    torch.testing.assert_close(loss_of(logits, errors), alone)
    expected = torch.nn.functional.softplus(torch.stack([-logits[:, 0], logits[:, 2]])).mean()
    torch.testing.assert_close(alone, expected)


# Pairs ----------------------------------------------------------------------------------------------------------------


def test_views_know_how_far_candidates_are_off(matcher: Pipeline) -> None:
    photos = [EXAMPLES / "coffee.jpg", EXAMPLES / "camera.jpg"]
    found = list(view_examples(candidate_finder(matcher), photos, QUICK, random.Random(0)))
    assert [example.kind for example in found] == [VIEWS, VIEWS]
    right = torch.cat([example.errors <= RIGHT for example in found]).float().mean()
    likely = torch.cat([example.errors[example.candidates.scores > 0.5] <= RIGHT for example in found]).float()
    assert len(likely) > 20
    assert float(likely.mean()) > 0.8 > float(right)


@pytest.mark.parametrize("half", [False, True])
def test_reconstructions_know_it_too(matcher: Pipeline, tmp_path: Path, half: bool) -> None:
    """Also where images are stored smaller than the model says."""
    import PIL.Image

    home = write_scene(tmp_path / "street")
    for path in home.rglob("*.png") if half else ():
        with PIL.Image.open(path) as image:
            small = image.resize((image.width // 2, image.height // 2), PIL.Image.Resampling.LANCZOS)
        small.save(path)
    (scene,) = open_scenes(home)
    finder = candidate_finder(matcher)
    features = [finder.extract(scene.images / name) for name in scene.reconstruction.names]
    found = list(scene_examples(finder, scene, features, ConsensusOptions(pairs=2), random.Random(0)))
    assert [example.kind for example in found] == [SCENES] * 2
    likely = torch.cat([example.errors[example.candidates.scores > 0.5] <= RIGHT for example in found]).float()
    assert len(likely) > 5
    assert float(likely.mean()) > 0.7


def test_all_sources_together(matcher: Pipeline, tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_scene(tmp_path / name)
    shown: list[str] = []

    def show(items: object, what: str, length: int) -> object:
        shown.append(what)
        return items

    fit = fit_consensus(matcher, images=EXAMPLES, reconstructions=[tmp_path], options=QUICK, progress=show)  # type: ignore[arg-type]
    assert fit.counts[SCENES] == 6
    assert fit.counts[VIEWS] == 4
    assert 0 < fit.counts[UNRELATED] <= 12  # a pair without candidates is none
    photographs = ["views of photographs", "unrelated photographs"]
    assert shown == ["describing one", "describing other", *photographs, "learning"]
    assert isinstance(fit.consensus, Consensus)
    assert "of held-out pairs" in fit.summary()


def test_candidates_are_all_that_is_not_hopeless(matcher: Pipeline) -> None:
    options = candidate_finder(matcher).strategy.options  # type: ignore[attr-defined]
    assert options.threshold == CANDIDATE


# What is refused ------------------------------------------------------------------------------------------------------


def test_matchers_without_rotations_are_refused() -> None:
    with pytest.raises(ValueError, match="dual-softmax tells no rotation of every match, which a consensus needs"):
        candidate_finder(steerers.load("sift"))


def test_nothing_to_learn_from_is_refused(matcher: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a consensus is learnt from photographs, reconstructions or both, and none"):
        fit_consensus(matcher)
    write_scene(tmp_path / "bent", distortion=0.1)
    with pytest.raises(
        ValueError, match="epipolar lines need pinhole cameras, but 4 of the model have lens distortion"
    ):
        fit_consensus(matcher, reconstructions=[tmp_path / "bent"], options=QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"views": -1}, "views must not be negative, got -1"),
        ({"unrelated": -1}, "unrelated must not be negative, got -1"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite, got nan"),
        ({"thinned": 1.5}, r"thinned must be in \[0, 1\], got 1.5"),
        ({"held_out": 1.0}, r"held_out must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConsensusOptions(**options)  # type: ignore[arg-type]


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "mine.safetensors"
    options = ["--model", "upright-sift-so2", "--images", str(EXAMPLES), "--num-views", "2", "--steps", "2"]
    options += ["--num-unrelated", "12"]
    ran = run_command("fit-consensus", *options, "-o", out)
    assert ran.code == 0
    assert "of held-out pairs" in ran.out
    assert str(out) in ran.out
    Consensus.load(out, "upright-sift")  # whose descriptions those are


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "mine.pth"], "cannot write mine.pth: the file of a consensus ends in .safetensors"),
        (["-o", "mine.safetensors"], "say what to learn from: --images PHOTOGRAPHS, --colmap RECONSTRUCTION, or both"),
        (["-o", "no/mine.safetensors", "--images", "."], "cannot write no/mine.safetensors: there is no folder no"),
        (["-o", "mine.safetensors", "--images", "none"], "none"),
        (["-o", "mine.safetensors", "--colmap", "none"], "none: no reconstruction"),
    ],
)
def test_the_command_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(["fit-consensus", "--model", "upright-sift-so2", *options], message)

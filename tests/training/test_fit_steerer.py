"""Setting A: a steerer for a frozen descriptor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.nn.functional as F

import steerers
from helpers import EXAMPLES, describe_image, randn
from steerers.cli import main
from steerers.datasets.views import Views
from steerers.features import Keypoints
from steerers.models.base import Descriptor
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer
from steerers.training.fit_steerer import Fit, FitOptions, closed_form, fit_examples, make_examples, mean_accuracy
from steerers.training.objectives.descriptions import Described

PHOTOGRAPHS = [EXAMPLES / f"{name}.jpg" for name in ("astronaut", "camera", "coffee", "hubble")]
QUICK = FitOptions(num_pairs=5, rotations=2, num_keypoints=80, steps=10, views=Views(size=160))


def fit_steerer(descriptor: Descriptor, images: Sequence[Path], options: FitOptions) -> Fit:
    """:func:`steerers.fit` for C4, with the losses and the held-out accuracy."""
    return fit_examples(*make_examples(descriptor, images, "C4", options=options), "C4", options)


def synthetic_examples(steerer: Steerer, count: int, noise: float, seed: int = 0) -> list[Described]:
    """Descriptions that a known steerer relates, rotated by angles of its group."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for k in range(count):
        order = steerer.group.order
        angle = (k % order) * 2 * math.pi / order if order else math.pi / 4 * (k % 8)
        second = randn(60, steerer.dim, seed=seed + k, dtype=torch.float32)
        first = steerer.steer(second, angle) + noise * torch.randn(second.shape, generator=generator)
        matches = F.pad(torch.arange(60)[:, None].repeat(1, 2), (1, 0))
        angles = torch.tensor([angle], dtype=torch.float64)
        examples.append(Described(F.normalize(first, dim=1)[None], F.normalize(second, dim=1)[None], angles, matches))
    return examples


@pytest.mark.parametrize("start", ["orthogonal", "least-squares"])
@pytest.mark.parametrize("spec", [("6x0 + 5x1 + 4x2", "C4"), ("4x0 + 6x1", "C3"), ("4x0 + 3x1 + 3x2 + 2x3", "SO2")])
def test_the_closed_form_recovers_a_known_steerer(spec: tuple[str, str], start: str) -> None:
    truth = Steerer.from_spec(*spec)
    examples = synthetic_examples(truth, 24, noise=0.05)
    found = closed_form(examples, truth.group, start, torch.Generator())  # type: ignore[arg-type]
    representation, _ = Steerer.from_matrix(found, truth.group).nearest_representation()
    assert representation.is_equivalent(Representation.parse(*spec))
    assert float((found - truth.generator()).norm() / truth.generator().norm()) < 0.1


@pytest.mark.parametrize(("group", "start", "gain"), [("C4", "random", 0.2), ("SO2", "least-squares", 0.0)])
def test_gradient_descent_improves_on_its_start(group: str, start: str, gain: float) -> None:
    """From anywhere for C4; a random start of SO(2) ends in local optima, as the paper says of initialisations."""
    truth = Steerer.freq1(8, group)
    examples = synthetic_examples(truth, 16, noise=0.3)
    options = FitOptions(start=start, steps=250, learning_rate=0.02)  # type: ignore[arg-type]
    fit = fit_examples(examples, examples[:8], Group.parse(group), options)
    assert fit.accuracy > fit.start_accuracy + gain
    assert sum(fit.losses[-20:]) < 0.9 * sum(fit.losses[:20])
    assert len(fit.losses) == 250


def test_upright_sift_gets_its_own_steerer_back() -> None:
    fit = fit_steerer(UprightSift(), PHOTOGRAPHS, FitOptions(num_pairs=9, num_keypoints=250, steps=0))
    representation, _ = fit.steerer.nearest_representation()
    assert str(representation) == "32x0 + 32x1 + 32x2"  # the paper's Example: 32, 32 and 64 dimensions
    exact = Steerer.from_permutation(c4_permutation(), "C4").generator()
    cosine = float((fit.steerer.generator().double() * exact).sum() / (fit.steerer.generator().norm() * exact.norm()))
    assert cosine > 0.8
    assert fit.accuracy > fit.unsteered_accuracy + 0.2
    assert fit.accuracy > 0.9 * fit.same_rotation_accuracy
    assert "held-out matching accuracy" in fit.summary()


def test_the_same_seed_gives_the_same_steerer() -> None:
    one, same = (fit_steerer(UprightSift(), PHOTOGRAPHS, QUICK) for _ in range(2))
    assert torch.equal(one.steerer.generator(), same.steerer.generator())
    assert one.losses == same.losses
    state = torch.get_rng_state()
    steerers.fit(UprightSift(), PHOTOGRAPHS, "C4", options=QUICK)
    assert torch.equal(state, torch.get_rng_state())  # nobody's global generator is touched


def test_any_callable_can_be_fitted() -> None:
    sift = UprightSift()
    calls = []

    def describe(image: torch.Tensor, keypoints: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(image.shape))
        return describe_image(sift, image, Keypoints(keypoints, torch.ones(len(keypoints))))

    options = FitOptions(num_pairs=8, num_keypoints=100, steps=3, views=Views(size=224))
    steerer = steerers.fit(describe, PHOTOGRAPHS, "SO2", options=options)
    assert steerer.group == Group(None)
    assert steerer.dim == 128
    assert not steerer.learnable
    assert set(calls) == {(3, 224, 224)}


def test_photographs_may_be_anything_that_is_an_image(tmp_path: Path) -> None:
    """A path, a Pillow image, an array or a tensor: the same photographs are described alike."""
    pictures = [PIL.Image.open(path).convert("RGB").resize((220, 180)) for path in PHOTOGRAPHS[:3]]
    arrays = [np.asarray(picture) for picture in pictures]
    tensors = [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays]
    paths = [tmp_path / f"{k}.png" for k in range(3)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    options = FitOptions(num_pairs=2, rotations=1, num_keypoints=50, views=Views(size=96))
    kinds: list[list[Any]] = [pictures, arrays, tensors, [str(path) for path in paths]]
    made = [make_examples(UprightSift(), kind, "C4", options=options)[0] for kind in kinds]
    for examples in made:
        assert [len(example.matches) for example in examples] == [len(example.matches) for example in made[0]]
        assert torch.equal(examples[0].first, made[0][0].first)


@pytest.mark.parametrize(("count", "fraction", "held_out"), [(7, 0.3, 2), (2, 0.01, 1), (3, 0.99, 2)])
def test_held_out_photographs_are_not_fitted_to(count: int, fraction: float, held_out: int) -> None:
    """Each photograph is of one grey, by which its descriptions tell it; at least one is held out, and one is not."""

    class Grey(UprightSift):
        def detect_one(self, image: torch.Tensor, num_keypoints: int, mask: torch.Tensor | None) -> Keypoints:
            return Keypoints(torch.tensor([[32.0, 32.0]]), torch.ones(1))

        def describe_one(self, image: torch.Tensor, keypoints: Keypoints) -> torch.Tensor:
            return torch.stack([image[0, 32, 32], torch.tensor(1.0)])[None]

    photographs = [torch.full((3, 200, 200), 0.1 * k) for k in range(1, count + 1)]
    options = FitOptions(num_pairs=24, rotations=1, held_out=fraction, views=Views(size=64, photometric=0.0))
    examples = make_examples(Grey(), photographs, "C4", options=options)
    greys = [{round(float(e.first[0, 0, 0] / e.first[0, 0, 1]), 2) for e in part} for part in examples]
    assert [len(part) for part in examples] == [24, 4]
    assert [len(part) for part in greys] == [count - held_out, held_out]
    assert not greys[0] & greys[1]


def test_a_broken_photograph_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot use a photograph: .*broken.jpg"):
        steerers.fit(UprightSift(), [path, path], "C4", options=QUICK)


def test_a_frozen_descriptor_stays_as_it_is() -> None:
    class Frozen(UprightSift):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(128))
            self.batch_norm = torch.nn.BatchNorm1d(128)

        def describe_one(self, image: torch.Tensor, keypoints: Keypoints) -> torch.Tensor:
            return self.batch_norm(super().describe_one(image, keypoints) @ self.weight)

    descriptor = Frozen().train()
    before = {name: value.clone() for name, value in descriptor.state_dict().items()}
    steerers.fit(descriptor, PHOTOGRAPHS, "C4", options=QUICK)
    assert all(torch.equal(value, before[name]) for name, value in descriptor.state_dict().items())
    assert descriptor.weight.grad is None
    assert not descriptor.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pairs": 0}, "num_pairs must be at least 1, got 0"),
        ({"steps": -1}, "steps must not be negative"),
        ({"seed": 10**30}, "seed must be 0 to"),
        ({"held_out": 1.0}, "held_out must be between 0 and 1"),
        ({"radius": 0.0}, "radius must be positive"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite, got inf"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
        ({"start": "nonsense"}, "unknown start 'nonsense'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FitOptions(**options)  # type: ignore[arg-type]


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2 photographs"):
        steerers.fit(UprightSift(), PHOTOGRAPHS[:1], "C4", options=QUICK)
    with pytest.raises(TypeError, match="descriptor must be a Descriptor or a callable, got str"):
        steerers.fit("sift", PHOTOGRAPHS, "C4", options=QUICK)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such folder of images"):
        steerers.fit(UprightSift(), tmp_path / "missing", "C4")
    blank = [torch.full((3, 400, 400), 0.5) for _ in range(3)]
    with pytest.raises(ValueError, match="no keypoints of the two views correspond"):
        steerers.fit(UprightSift(), blank, "C4", options=QUICK)
    with pytest.raises(ValueError, match=r"must give a \(\d+, D\) tensor, one row a keypoint, got \(3, 8\)"):
        steerers.fit(lambda image, xy: torch.zeros(3, 8), PHOTOGRAPHS, "C4", options=QUICK)
    with pytest.raises(ValueError, match="not finite"):
        steerers.fit(lambda image, xy: torch.full((len(xy), 8), math.nan), PHOTOGRAPHS, "C4", options=QUICK)


def test_accuracy_of_no_examples_is_not_a_number() -> None:
    assert math.isnan(mean_accuracy(None, []))


def test_the_command_writes_a_steerer_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.safetensors"
    folder = tmp_path / "photographs"
    folder.mkdir()
    for path in PHOTOGRAPHS:
        (folder / path.name).write_bytes(path.read_bytes())
    options = ["--num-pairs", "4", "--num-keypoints", "80", "--steps", "5"]
    code = main(["fit", "--model", "upright-sift", "--images", str(folder), "--group", "C4", "-o", str(out), *options])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "nearest representation of C4" in printed
    steerer = Steerer.load(out)
    assert steerer.dim == 128
    assert steerer.group == Group(4)
    assert out.with_suffix(".png").stat().st_size > 1000
    assert out.stat().st_mode == out.with_suffix(".png").stat().st_mode  # readable by others, as any new file
    matcher = steerers.load("upright-sift", steerer=out, num_keypoints=50)
    assert matcher.strategy.name == "max-matches"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--images": "missing"}, "no such folder of images: missing"),
        ({"-o": "steerer.pth"}, "the file of a steerer ends in .safetensors"),
        ({"--group": "C1"}, "order of a cyclic group must be at least 2"),
        ({"--model": "nonsense"}, "unknown model 'nonsense'"),
        ({"--start": "nonsense"}, "unknown start 'nonsense'"),
    ],
)
def test_the_command_refuses_bad_input(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"--model": "upright-sift", "--images": str(EXAMPLES), "--group": "C4", "-o": "x.safetensors", **change}
    code = main(["fit", *[word for option in options.items() for word in option]])
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

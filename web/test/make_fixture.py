"""What Python makes of fixed inputs, for the page's tests: ``python web/test/make_fixture.py`` writes ``fixture.json``.

tests/web/test_fixture.py holds the file to the package, and the tests beside it hold the page to the file.
"""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from steerers.geometry import circular_mode, estimate_homography, rotate_image, rotation_about_centre
from steerers.images.load import load_image, make_picture
from steerers.matching.extrema import Continuous
from steerers.matching.harmonics import Rotated
from steerers.matching.strategies import make_strategy
from steerers.models.onnx import graph_name
from steerers.models.zoo import build
from steerers.steering.steerer import Steerer

FIXTURE = Path(__file__).parent / "fixture.json"
SPREAD, FREQUENCY1 = "8x0 + 4x1 + 4x2 + 4x-3 + 4x4 + 4x5 + 4x6", "14x1"
TURNS = (0.0, 0.7, -2.3)
CASES: tuple[tuple[str, str, int | None], ...] = (
    (SPREAD, "dual-softmax", 16),
    (SPREAD, "max-similarity", 16),
    (SPREAD, "max-similarity", 8),
    (SPREAD, "max-similarity", 32),
    (SPREAD, "max-similarity", None),
    (SPREAD, "max-matches", 16),
    (SPREAD, "subset", 8),
    (FREQUENCY1, "procrustes", None),
    (FREQUENCY1, "max-similarity", 4),
)
TEMPERATURE, THRESHOLD = 20.0, 0.05
KEYPOINTS = 40  # of the network's picture that are compared


def floats(values: Any) -> str:
    """Float32 in base64."""
    return base64.b64encode(np.ascontiguousarray(np.asarray(values, dtype="<f4")).tobytes()).decode()


def make_fixture() -> dict[str, Any]:
    return {
        "steering": [_steering(spec) for spec in (SPREAD, FREQUENCY1)],
        "matching": [_matching(*case, turn) for case in CASES for turn in TURNS],
        "modes": _modes(),
        "turned": [_turned(angle) for angle in (0.4, math.pi / 2, -2.0)],
        "shrunk": _shrunk(),
        "homography": _homography(),
        "network": _network(),
    }


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _descriptions(spec: str) -> tuple[Steerer, Tensor, Tensor]:
    """A steerer, and descriptions of two pictures of which most show the same, turned by 1.1 radians, with noise."""
    steerer, generator = Steerer.from_spec(spec, "SO2"), _generator()
    first = torch.randn(41, steerer.dim, generator=generator)
    order = torch.randperm(len(first), generator=generator)[:37]
    second = steerer.steer(first[order], 1.1) + 0.35 * torch.randn(37, steerer.dim, generator=generator)
    second[30:] = torch.randn(7, steerer.dim, generator=generator)
    return steerer, first, second


def _frequencies(steerer: Steerer) -> list[int]:
    return [int(frequency) for frequency in steerer.export()[0]["steerer.frequencies"].tolist()]


def _steering(spec: str) -> dict[str, Any]:
    steerer, first, second = _descriptions(spec)
    rotations = tuple(2 * math.pi * k / 16 for k in range(16))
    everything = slice(0, len(first)), slice(0, len(second))
    tried = Rotated(first, second, steerer, rotations, maximum=True).block(everything[0])(everything[1])[0]
    every = Continuous(first, second, steerer).block(everything[0])(everything[1])[0]
    return {
        "spec": spec,
        "frequencies": _frequencies(steerer),
        "descriptions0": floats(first),
        "descriptions1": floats(second),
        "steered": [{"angle": angle, "descriptions": floats(steerer.steer(second, angle))} for angle in TURNS],
        "largest": floats(tried),
        "highest": floats(every),
    }


def _matching(spec: str, strategy: str, order: int | None, turn: float) -> dict[str, Any]:
    """The second picture turned by an angle, its descriptions steered, then matched."""
    steerer, first, second = _descriptions(spec)
    tries = strategy in ("max-similarity", "max-matches", "subset")
    options: dict[str, Any] = {"order": order} if tries else {}
    made = make_strategy(strategy, steerer, inverse_temperature=TEMPERATURE, threshold=THRESHOLD, **options)
    found = made.match(first, steerer.steer(second, turn))
    return {
        "spec": spec,
        "turn": turn,
        "options": {
            "strategy": strategy, "order": order, "inverseTemperature": TEMPERATURE, "threshold": THRESHOLD
        },
        "indices": found.indices.tolist(),
        "scores": _rounded(found.scores),
        "angle": None if found.angle is None else round(found.angle, 6),
        "angles": None if found.angles is None else _rounded(found.angles),
    }  # fmt: skip


def _rounded(values: Any) -> list[Any]:
    listed: list[Any] = np.round(np.asarray(values, dtype=np.float64), 6).tolist()
    return listed


def _modes() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    modes = []
    for count in (1, 7, 200):
        angles = np.concatenate([rng.normal(2.9, 0.1, count), rng.uniform(-4, 4, count // 2)])
        weights = rng.uniform(0.1, 1, len(angles))
        mode = circular_mode(angles, weights)
        modes.append({"angles": _rounded(angles), "weights": _rounded(weights), "mode": round(mode, 6)})
    return modes


def _turned(angle: float) -> dict[str, Any]:
    image = torch.rand(3, 7, 9, generator=_generator())
    turned, _ = rotate_image(image, angle, fill=0.5)
    transform, canvas = rotation_about_centre((9, 7), angle)
    return {
        "angle": angle,
        "size": {"width": 9, "height": 7},
        "image": floats(image),
        "turned": floats(turned),
        "canvas": {"width": canvas[0], "height": canvas[1]},
        "map": transform[:2].flatten().tolist(),
    }


def _shrunk() -> dict[str, Any]:
    levels = (make_picture(47, 61) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    shrunk = load_image(PIL.Image.fromarray(levels), max_size=23)
    small = (shrunk.tensor * 255).round().to(torch.uint8).permute(1, 2, 0)
    return {
        "width": 61,
        "height": 47,
        "pixels": base64.b64encode(levels.tobytes()).decode(),
        "size": {"width": small.shape[1], "height": small.shape[0]},
        "shrunk": base64.b64encode(small.numpy().tobytes()).decode(),
    }


def _homography() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    matrix = np.array([[0.9, 0.3, 20], [-0.25, 1.1, 40], [1e-4, -2e-4, 1]])
    points = rng.uniform(0, 600, (120, 2))
    mapped = np.c_[points, np.ones(120)] @ matrix.T
    others = mapped[:, :2] / mapped[:, 2:] + rng.normal(0, 0.4, (120, 2))
    others[80:] = rng.uniform(0, 600, (40, 2))
    points, others = points.astype(np.float32), others.astype(np.float32)
    found = estimate_homography(points, others, 3.0)
    assert found.H is not None
    return {
        "points0": floats(points),
        "points1": floats(others),
        "matrix": found.H.ravel().tolist(),
        "inliers": found.inliers.tolist(),
    }


def _network() -> dict[str, Any]:
    """What PyTorch finds in a picture, with the embedded network.

    Of whole numbers alone: nothing is rounded, which one machine may do otherwise than another.
    """
    model = build("compact-single")
    y, x = torch.arange(117)[:, None], torch.arange(150)
    levels = torch.stack([(x * x // 60 + y * y // (40 + 9 * c) + x * y // 50) % 256 for c in range(3)]).to(torch.uint8)
    with torch.no_grad():
        ((keypoints, descriptions),) = model.extractor.extract(levels[None].float() / 255, num_keypoints=KEYPOINTS)
    return {
        "model": graph_name(model),
        "width": levels.shape[2],
        "height": levels.shape[1],
        "pixels": base64.b64encode(levels.permute(1, 2, 0).contiguous().numpy().tobytes()).decode(),
        "keypoints": floats(keypoints.xy),
        "descriptions": floats(descriptions),
    }


if __name__ == "__main__":
    FIXTURE.write_text(json.dumps(make_fixture()) + "\n", encoding="utf-8")

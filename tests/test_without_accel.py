"""Everything that exists for speed can be missing: with the import of :mod:`steerers.accel` blocked, matches stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import EXAMPLES

BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "steerers.accel" or name.startswith("steerers.accel."):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""
STRATEGIES = """
import torch
from steerers.matching.strategies import STRATEGIES, make_strategy
from steerers.steering.steerer import Steerer

generator = torch.Generator().manual_seed(0)
first, noise = torch.randn(2, 90, 32, generator=generator)
for name in STRATEGIES:
    steerer = Steerer.freq1(32) if "procrustes" in name else Steerer.spread(32)
    second = steerer.steer(first, 1.3) + 0.1 * noise
    found = make_strategy(name, steerer).match(first, second)
    results[name] = found.indices.numpy()
    results[name + " scores"] = found.scores.numpy()
    results[name + " angle"] = -1 if found.angle is None else found.angle
"""
FUSED = """
try:
    make_strategy("dual-softmax", kernels="fused").match(first, second)
except ValueError as error:
    results["fused"] = str(error)
"""
PHOTOGRAPHS = """
import steerers
matches = steerers.load()(*pair)
results["keypoints"] = matches.keypoints0, matches.keypoints1
results["angle"] = matches.angle
"""
REFINEMENT = """
import torch
from steerers.refinement import refine_places

generator = torch.Generator().manual_seed(0)
image = torch.rand(15, 15, generator=generator)
image = torch.nn.functional.interpolate(image[None, None], size=(120, 120), mode="bicubic")[0, 0]
xy0 = 30 + 60 * torch.rand(40, 2, generator=generator)
found = refine_places(image, image, xy0, xy0 + 0.4)
results["places"], results["moved"] = found.keypoints1.numpy(), found.moved.numpy()
"""
FUSED_REFINEMENT = """
try:
    refine_places(image, image, xy0, xy0, form="fused")
except ValueError as error:
    results["fused"] = str(error)
"""


def run(code: str, folder: Path, *, blocked: bool) -> dict[str, np.ndarray]:
    """What code leaves in ``results``, in a process of its own."""
    folder.mkdir()
    paths = [str(EXAMPLES / f"maupertuis_{k}.jpg") for k in (0, 1)]
    whole = [
        BLOCK if blocked else "",
        f"results, pair = {{}}, {paths!r}",
        code,
        "import sys",
        "assert not any(name.split('.')[:2] == ['steerers', 'accel'] for name in sys.modules)" if blocked else "",
        f"import numpy; numpy.savez({str(folder / 'results.npz')!r}, **results)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(whole)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "results.npz") as results:
        return dict(results)


def both(code: str, folder: Path, more: str = "") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What it leaves without :mod:`steerers.accel`, where more code is run, and with it."""
    return run(code + more, folder / "without", blocked=True), run(code, folder / "with", blocked=False)


def test_every_strategy(tmp_path: Path) -> None:
    found, expected = both(STRATEGIES, tmp_path, FUSED)
    assert str(found.pop("fused")) == "the fused kernels cannot run: steerers.accel is missing"
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    assert len(found["max-similarity"]) > 60


def test_refinement(tmp_path: Path) -> None:
    found, expected = both(REFINEMENT, tmp_path, FUSED_REFINEMENT)
    assert str(found.pop("fused")) == "matches cannot be registered by one kernel: steerers.accel is missing"
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    assert found["moved"].sum() > 20


def test_photographs(tmp_path: Path) -> None:
    """Networks round otherwise in their fast form, which may move a keypoint in hundreds."""
    found, expected = both(PHOTOGRAPHS, tmp_path)
    own, fast = ({tuple(row) for row in np.hstack(each["keypoints"]).round(1)} for each in (found, expected))
    assert len(own) > 500
    assert len(own & fast) > 0.99 * len(own | fast)
    assert float(found["angle"]) == pytest.approx(float(expected["angle"]), abs=0.01)

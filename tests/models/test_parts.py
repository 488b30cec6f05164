"""The embedded network: built offline from the file that is shipped, and what it does under a rotation."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import steerers
from helpers import EXAMPLES
from steerers import _weights
from steerers._weights import WeightsError
from steerers.benchmarks.metrics import reprojection_errors, rotation_at_centre
from steerers.geometry import rotate_image, transform_points
from steerers.images.load import load_image, to_uint8
from steerers.models import parts, zoo
from steerers.models.compact import Compact, Pyramid

pytestmark = pytest.mark.usefixtures("one_thread")

SPREAD = "40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6"


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("a connection was asked for")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("STEERERS_HOME", str(tmp_path / "home"))


def test_compact_is_built_from_what_is_shipped() -> None:
    entry = zoo.find("compact")
    assert entry.weights == ()
    assert entry.dim == 256
    model = zoo.build("compact")
    assert isinstance(model.extractor, Pyramid)
    assert model.extractor.scales == (1.0, 0.5)
    network = model.extractor.extractor
    assert isinstance(network, Compact)
    assert isinstance(zoo.build("compact-single").extractor, Compact)
    assert not any(module.training or isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in network.parameters())
    assert network.dim == 256
    steerer = model.steerer
    assert steerer is not None
    assert str(steerer.group) == "SO2"
    assert str(steerer.representation) == SPREAD
    assert not steerer.learnable
    torch.testing.assert_close(steerer.generator(), steerers.Steerer.spread(256).generator())


def test_compact_needs_no_more_than_torch_numpy_pillow_and_safetensors() -> None:
    """On a machine with a GPU and little else."""
    others = ("tqdm", "cv2", "poselib", "h5py", "kornia", "matplotlib", "pycolmap", "onnx", "requests")
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in others)
    code = f"import sys; {blocked}import steerers; print(steerers.load('compact').model.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "compact-6\n", done.stderr


def test_the_file_is_small_and_says_nothing_of_the_machine() -> None:
    assert zoo.COMPACT.stat().st_size < 10_000_000
    _, metadata = _weights.load(zoo.COMPACT)
    recipe = json.loads(metadata["config"])
    assert not {"path", "colmap"} & recipe["data"].keys()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(bytes(data))


def resave(path: Path, change: str) -> None:
    tensors, metadata = _weights.load(path)
    if change == "config":
        del metadata["config"]
    elif change == "newer":
        recipe = json.loads(metadata["config"])
        recipe["model"]["compact"]["of_tomorrow"] = 1
        metadata["config"] = json.dumps(recipe)
    elif change == "shape":
        recipe = json.loads(metadata["config"])
        recipe["model"]["compact"]["hidden"] += 1
        metadata["config"] = json.dumps(recipe)
    elif change == "kind":
        metadata["config"] = "[]"
    else:
        tensors = {name: value for name, value in tensors.items() if "describer" not in name}
    _weights.save(path, tensors, metadata)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, ""),
        (alter, ""),
        (Path.unlink, ""),
        (lambda path: resave(path, "config"), "does not say which compact network"),
        (lambda path: resave(path, "kind"), "does not say which compact network"),
        (lambda path: resave(path, "newer"), "does not say which compact network it is of .*of_tomorrow"),
        (lambda path: resave(path, "shape"), "not the weights of a compact network: describer.first.bias has shape"),
        (lambda path: resave(path, "names"), "not the weights of a compact network"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    path = Path(shutil.copy(zoo.COMPACT, tmp_path / "mine.safetensors"))
    assert isinstance(parts.compact(path).build({}), Compact)
    damage(path)
    with pytest.raises((WeightsError, OSError), match=rf"mine\.safetensors.*{message}"):
        parts.compact(path).build({})


def test_a_file_without_a_steerer_is_named(tmp_path: Path) -> None:
    _weights.save(tmp_path / "mine.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(WeightsError, match=r"mine\.safetensors does not hold a steerer"):
        parts.shipped(tmp_path / "mine.safetensors", "compact").build({})


@pytest.mark.parametrize("name", ["astronaut.jpg", "coffee.jpg"])
def test_photographs_match_under_an_oblique_rotation(name: str) -> None:
    first = load_image(EXAMPLES / name, max_size=400).tensor
    rotated, transform = rotate_image(first, math.radians(135))
    matcher = steerers.load("compact", num_keypoints=1000, consensus=False)
    matches = matcher(to_uint8(first), to_uint8(rotated.clamp(0, 1)))
    assert matches.angle is not None
    assert abs((matches.angle - 135 + 180) % 360 - 180) <= 10
    expected = transform_points(transform, torch.from_numpy(matches.keypoints0).double()).numpy()
    right = np.linalg.norm(expected - matches.keypoints1, axis=1) < 3
    assert right.sum() >= 400
    assert right.mean() >= 0.95
    homography, inliers = matches.homography()
    assert homography is not None
    assert inliers.sum() >= 400


def test_two_photographs_of_a_board_match_under_an_oblique_rotation() -> None:
    second, rotation = rotate_image(load_image(EXAMPLES / "board_1.jpg").tensor, math.radians(135))
    truth = rotation.numpy() @ np.loadtxt(EXAMPLES / "board_H.txt")
    matches = steerers.load("compact", num_keypoints=1000)(EXAMPLES / "board_0.jpg", to_uint8(second.clamp(0, 1)))
    assert (reprojection_errors(matches.keypoints0, matches.keypoints1, truth) < 5).sum() >= 150
    expected = rotation_at_centre(truth, load_image(EXAMPLES / "board_0.jpg").stored_size)
    assert expected is not None
    assert matches.angle is not None
    assert abs((matches.angle - expected + 180) % 360 - 180) <= 10

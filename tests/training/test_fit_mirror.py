"""What a reflection does to descriptions."""

from __future__ import annotations

import math
from pathlib import Path

import PIL.Image
import pytest
import torch

import steerers
from helpers import EXAMPLES, assert_refused, randn, run_command
from steerers.steering.steerer import Steerer
from steerers.training.fit_mirror import fit_mirror

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for name in ("astronaut", "camera", "coffee"):
        PIL.Image.open(EXAMPLES / f"{name}.jpg").convert("RGB").resize((200, 150)).save(folder / f"{name}.png")
    return folder


def test_upright_sift_is_mirrored_by_a_permutation(photographs: Path) -> None:
    """Its 4 x 4 cells change places and its 8 directions are mirrored; the fit knows nothing of that."""
    found = fit_mirror(steerers.load("upright-sift"), photographs, num_keypoints=300)
    cell, direction = torch.meshgrid(torch.arange(16), torch.arange(8), indexing="ij")
    mirrored = (cell // 4) * 4 + 3 - cell % 4
    permutation = (mirrored * 8 + (4 - direction) % 8).flatten()
    matrix = found.steerer.generator().double()
    assert found.cosine > 0.97
    assert found.unmirrored < 0.9
    strongest = matrix.abs().argmax(dim=1)
    assert float((strongest == permutation).double().mean()) > 0.95
    torch.testing.assert_close(matrix @ matrix, torch.eye(128).double(), atol=1e-4, rtol=0)  # its own inverse


def test_the_mirror_of_compact(photographs: Path) -> None:
    """It is orthogonal and its own inverse, and a rotation goes the other way in it."""
    model = steerers.load().model
    assert model.mirror is not None
    assert model.steerer is not None
    descriptions = randn(20, 256, dtype=torch.float32)
    mirrored = model.mirror.steer(descriptions, math.pi)
    torch.testing.assert_close(model.mirror.steer(mirrored, math.pi), descriptions, atol=1e-3, rtol=0)
    image = steerers.load(num_keypoints=100, max_size=200)
    own = image.extract(photographs / "coffee.png").descriptions
    there = model.steerer.steer(model.mirror.steer(own, math.pi), -0.7)
    back = model.mirror.steer(model.steerer.steer(own, 0.7), math.pi)
    assert float(torch.nn.functional.cosine_similarity(there, back).mean()) > 0.99


def test_the_command(photographs: Path, tmp_path: Path) -> None:
    asked = ["fit", "--model", "upright-sift", "--images", photographs, "--group", "mirror"]
    done = run_command(*asked, "-o", tmp_path / "mirror.safetensors", "--num-keypoints", "100")
    assert done.code == 0, done.err
    assert "cosine of mirrored descriptions with those of mirrored photographs that were held out: 1.000" in done.out
    assert str(Steerer.load(tmp_path / "mirror.safetensors").group) == "C2"
    assert_refused([*asked, "-o", tmp_path / "mirror.pth"], "the file of a steerer ends in .safetensors")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a.png").write_bytes((photographs / "coffee.png").read_bytes())
    asked[4] = tmp_path / "one"
    assert_refused([*asked, "-o", tmp_path / "x.safetensors"], "fitting needs at least 2 photographs")


def test_which_models_have_a_mirror() -> None:
    """That of compact is of its weights, whatever finds the keypoints."""
    assert steerers.load("compact-single").model.mirror is not None
    assert steerers.load("upright-sift").model.mirror is None

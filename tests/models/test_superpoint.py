"""SuperPoint with random weights, and its suppression against the same done one by one."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import describe_image, detect_image, extract_image
from steerers._weights import WeightsError
from steerers.features import Keypoints
from steerers.models.superpoint import LICENCE_NOTE, SuperPoint, suppress

OFFICIAL = {
    **{f"conv{stage}{half}": None for stage in (1, 2, 3, 4) for half in "ab"},
    **{f"conv{head}{half}": None for head in "PD" for half in "ab"},
}


@pytest.fixture(scope="module")
def model() -> SuperPoint:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SuperPoint()
        with torch.no_grad():  # a random network is all but indifferent between pixels
            model.network.get_submodule("convPb").weight.mul_(30)
        return model


def random_image(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def cosines(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.cosine_similarity(a, b, dim=-1)


# Suppression ----------------------------------------------------------------------------------------------------------


def one_by_one(heat: Tensor, threshold: float, radius: int) -> Tensor:
    kept = torch.zeros_like(heat, dtype=torch.bool)
    left = heat > threshold
    for index in heat.flatten().argsort(descending=True).tolist():
        y, x = divmod(index, heat.shape[1])
        if left[y, x]:
            kept[y, x] = True
            left[max(y - radius, 0) : y + radius + 1, max(x - radius, 0) : x + radius + 1] = False
    return kept


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 24),
    width=st.integers(1, 24),
    radius=st.integers(1, 5),
    threshold=st.sampled_from([-1.0, 0.3, 2.0]),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_suppression_is_greedy(
    *, height: int, width: int, radius: int, threshold: float, seed: int, dtype: torch.dtype
) -> None:
    order = torch.randperm(height * width, generator=torch.Generator().manual_seed(seed))
    heat = (order.to(dtype) / len(order)).view(height, width)
    assert torch.equal(suppress(heat, threshold, radius), one_by_one(heat, threshold, radius))


def test_suppression_of_a_ramp_ends() -> None:
    ramp = torch.linspace(0, 1, 60)[None]
    assert suppress(ramp, 0.5, 4)[0].nonzero().flatten().tolist() == [34, 39, 44, 49, 54, 59]


# Keypoints and descriptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 47), (200, 300)])
def test_any_size(model: SuperPoint, size: tuple[int, int]) -> None:
    height, width = size
    image = random_image(height, width)
    keypoints, descriptions = extract_image(model, image, num_keypoints=40)
    assert descriptions.shape == (len(keypoints), 256)
    assert len(keypoints) == {1: 0, 7: 0, 33: len(keypoints), 200: 40}[height]
    assert len(keypoints) > 0 or height < 9
    assert (keypoints.xy >= 4).all()
    assert (keypoints.xy <= torch.tensor([width - 5, height - 5])).all()
    assert (keypoints.scores > 0.005).all()
    assert (keypoints.scores.diff() <= 0).all()
    near = torch.cdist(keypoints.xy, keypoints.xy, p=torch.inf).fill_diagonal_(torch.inf)
    assert (near > 4).all()
    assert (cosines(describe_image(model, image, keypoints), descriptions) > 0.999).all()
    foreign = Keypoints(torch.tensor([[0.0, 0.0], [width - 1, height - 1], [-5.0, 1e4]]), torch.ones(3))
    torch.testing.assert_close(describe_image(model, image, foreign).norm(dim=1), torch.ones(3))


def test_mask_and_border(model: SuperPoint) -> None:
    image = random_image(80, 120)
    mask = torch.zeros(80, 120, dtype=torch.bool)
    mask[:, 30:70] = True
    every = detect_image(model, image, num_keypoints=10**6)
    inside = every.select((every.xy[:, 0] >= 30) & (every.xy[:, 0] < 70))
    assert 5 < len(inside) < len(every)
    masked = detect_image(model, image, num_keypoints=5, mask=mask)
    torch.testing.assert_close(masked.xy, inside.xy[:5])
    whole = SuperPoint(border=0)
    whole.load_state_dict(model.state_dict())
    xy = detect_image(whole, image, num_keypoints=10**6).xy
    assert ((xy < 4) | (xy > torch.tensor([115, 75]))).any()


def test_descriptions_are_read_at_the_centres_of_cells(model: SuperPoint) -> None:
    """Cell (j, i) is 8 x 8 pixels, and its centre is the pixel (8 j + 3.5, 8 i + 3.5)."""
    image = random_image(64, 48)
    with torch.no_grad():
        _, features = model._forward(image[None])
    cells = torch.cartesian_prod(torch.arange(6), torch.arange(8))  # x, y
    described = describe_image(model, image, Keypoints(8.0 * cells + 3.5, torch.ones(48)))
    torch.testing.assert_close(described, features[0][:, cells[:, 1], cells[:, 0]].T)


def test_half_turn() -> None:
    """With kernels that a half turn leaves as they are, the keypoints rotate with the image: the frame is right."""
    model = SuperPoint(threshold=0.0)
    with torch.no_grad():
        for convolution in model.network.children():
            convolution.weight.copy_((convolution.weight + convolution.weight.flip(-2, -1)) / 2)
        last = model.network.get_submodule("convPb")
        last.weight.mul_(30)
        for values in (last.weight, last.bias):
            values[:64] = (values[:64] + values[:64].flip(0)) / 2
    image = random_image(64, 96)
    found = detect_image(model, image, num_keypoints=10**6).xy
    rotated = torch.tensor([95.0, 63.0]) - detect_image(model, image.rot90(2, (1, 2)), num_keypoints=10**6).xy
    distances = torch.cdist(found, rotated)
    assert len(found) > 20
    assert (distances.min(dim=1).values < 0.5).float().mean() > 0.95


def test_channels_are_the_pixels_of_a_cell() -> None:
    """Whatever the image, a network that is sure of channel 8 y + x finds the pixel (x, y) of every cell."""
    model = SuperPoint(border=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.network.get_submodule("convPb").bias[8 * 2 + 5] = 9.0
    xy = detect_image(model, random_image(24, 16), num_keypoints=100).xy
    assert sorted(map(tuple, xy.tolist())) == [(x, y) for x in (5, 13) for y in (2, 10, 18)]


def test_needs_no_kornia(model: SuperPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    assert len(detect_image(model, random_image(48, 48), num_keypoints=3)) == 3


def test_options() -> None:
    with pytest.raises(ValueError, match="nms_radius must be at least 1 pixel, got 0"):
        SuperPoint(nms_radius=0)
    with pytest.raises(ValueError, match="border must not be negative, got -1"):
        SuperPoint(border=-1)
    assert len(detect_image(SuperPoint(threshold=1.0), random_image(48, 48), num_keypoints=3)) == 0


# Weights --------------------------------------------------------------------------------------------------------------


def test_official_names() -> None:
    names = {name.rpartition(".")[0] for name in SuperPoint().network.state_dict()}
    assert names == set(OFFICIAL)
    assert sum(parameter.numel() for parameter in SuperPoint().parameters()) == 1_300_865


def test_weights_round_trip_and_licence(model: SuperPoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "superpoint_v1.pth"
    torch.save(model.network.state_dict(), path)
    caplog.set_level(logging.WARNING)
    fresh = SuperPoint().load_weights(path)
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("steerers.models.superpoint", LICENCE_NOTE)
    ]
    image = random_image(48, 64)
    for ours, theirs in zip(
        extract_image(model, image, num_keypoints=9), extract_image(fresh, image, num_keypoints=9), strict=True
    ):
        torch.testing.assert_close(getattr(ours, "xy", ours), getattr(theirs, "xy", theirs))
    assert not any(parameter.requires_grad for parameter in fresh.parameters())


def test_weights_of_something_else(model: SuperPoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "superglue.pth"
    state = dict(model.network.state_dict())
    del state["convDb.bias"]
    torch.save(state | {"gnn.layers.0": torch.ones(1)}, path)
    message = r"not the weights of SuperPoint: 1 names missing \(convDb.bias\); 1 names unknown \(gnn.layers.0\)"
    with pytest.raises(WeightsError, match=message):
        SuperPoint().load_weights(path)
    assert not caplog.records

"""Frozen networks with random weights, and SuperPoint's suppression against the same done one by one."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import describe_image, detect_image, extract_image
from steerers._weights import WeightsError
from steerers.features import Keypoints
from steerers.models.base import Combined
from steerers.models.frozen import ALIKED_DIMS, LICENCE_NOTE, Aliked, Disk, FrozenExtractor, SuperPoint, XFeat, suppress

kornia_feature = pytest.importorskip("kornia.feature")

SIZES = [(1, 1), (1, 9), (3, 5), (33, 47), (96, 130)]
MAKERS: dict[str, Callable[[], FrozenExtractor]] = {
    "disk": lambda: Disk(threshold=-1e3),
    "xfeat": lambda: XFeat(threshold=0.0),
    "aliked": lambda: Aliked("aliked-t16"),
    "superpoint": SuperPoint,
}


@pytest.fixture(scope="module", params=MAKERS)
def model(request: pytest.FixtureRequest) -> FrozenExtractor:
    return lively(request.param)


def lively(name: str) -> FrozenExtractor:
    """A random network that tells places apart, which fresh ones hardly do."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = MAKERS[name]()
        norms = [module for module in model.network.modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.train()
            norm.momentum = None
        describe_image(model, random_image(96, 96), points((0, 0)))
        if isinstance(model, Aliked):
            model.network.desc_head.agg_weights.normal_()
        elif isinstance(model, SuperPoint):
            for convolution in model.network.children():
                convolution.weight.mul_(6**0.5)
                convolution.weight.sub_(convolution.weight.mean(dim=(1, 2, 3), keepdim=True))
    model.train(False)
    return model


def random_image(height: int, width: int, seed: int = 0) -> Tensor:
    """Noise on two scales, so that keypoints are neither everywhere nor nowhere."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, -(-height // 8), -(-width // 8), generator=generator)
    coarse = nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")[0]
    return 0.7 * coarse + 0.3 * torch.rand(3, height, width, generator=generator)


def points(*xy: tuple[float, float]) -> Keypoints:
    return Keypoints(torch.tensor(xy), torch.ones(len(xy)))


def cosines(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.cosine_similarity(a, b, dim=-1)


# Keypoints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_any_size(model: FrozenExtractor, size: tuple[int, int]) -> None:
    height, width = size
    image = random_image(height, width)
    keypoints, descriptions = extract_image(model, image, num_keypoints=50)
    assert descriptions.shape == (len(keypoints), model.dim)
    assert len(keypoints) <= 50
    assert (keypoints.xy >= 0).all()
    assert (keypoints.xy <= torch.tensor([width - 1, height - 1])).all()
    assert (keypoints.scores.diff() <= 0).all()
    assert len(keypoints) > 0 or min(size) < 9
    foreign = describe_image(model, image, points((0, 0), (width - 1, height - 1), (0.3, 0.6), (-9, 1e4)))
    assert torch.isfinite(foreign).all()
    torch.testing.assert_close(foreign.norm(dim=1), torch.ones(4))


def test_the_number_of_keypoints_keeps_the_best(model: FrozenExtractor) -> None:
    image = random_image(64, 96)
    every = detect_image(model, image, num_keypoints=10**6)
    few = detect_image(model, image, num_keypoints=11)
    assert len(every) > 20
    assert len(few) == 11
    torch.testing.assert_close(few.xy, every.xy[:11])
    torch.testing.assert_close(few.scores, every.scores[:11])


def test_a_mask_acts_before_the_best_are_chosen(model: FrozenExtractor) -> None:
    image = random_image(64, 96)
    every = detect_image(model, image, num_keypoints=10**6)
    mask = torch.zeros(64, 96, dtype=torch.bool)
    mask[:, 40:70] = True
    x, y = every.xy.round().long().unbind(-1)
    expected = every.select(mask[y, x])
    assert len(expected) > 5
    assert not mask[y[:5], x[:5]].all()
    keypoints, descriptions = extract_image(model, image, num_keypoints=5, mask=mask)
    torch.testing.assert_close(keypoints.xy, expected.xy[:5])
    assert len(descriptions) == 5
    assert len(detect_image(model, image, num_keypoints=5, mask=torch.zeros_like(mask))) == 0


# Descriptions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(64, 96), (61, 83), (200, 300)])
def test_describe_agrees_with_extract(model: FrozenExtractor, size: tuple[int, int]) -> None:
    image = random_image(*size)
    keypoints, descriptions = extract_image(model, image, num_keypoints=100)
    assert (cosines(describe_image(model, image, keypoints), descriptions) > 0.999).all()
    assert cosines(descriptions, descriptions.roll(1, 0)).mean() < 0.9


def test_descriptions_are_the_networks_own() -> None:
    image = random_image(64, 96)
    for name, model in ((name, lively(name)) for name in ("disk", "xfeat", "aliked")):
        keypoints, descriptions = extract_image(model, image, num_keypoints=10**6)
        with torch.no_grad():
            if name == "xfeat":
                network = kornia_feature.XFeat(top_k=10**6, detection_threshold=0.0).eval()
                network.net = model.network
                found = network.detectAndCompute(image[None])[0]
                xy, own = found["keypoints"], found["descriptors"]
            else:
                options = {"score_threshold": -1e3} if name == "disk" else {}
                features = model.network(image[None], **options)[0]
                xy, own = features.keypoints, features.descriptors
        assert len(xy) == len(keypoints)
        distances, nearest = torch.cdist(keypoints.xy, xy.float(), compute_mode="donot_use_mm_for_euclid_dist").min(
            dim=1
        )
        assert distances.max() < 1e-3
        # XFeat's authors read the map up to half a pixel beside the right place.
        assert cosines(descriptions, own[nearest]).min() > (0.98 if name == "xfeat" else 0.999)


def test_padding_leaves_the_image_where_it_is(model: FrozenExtractor) -> None:
    """An image of odd sides is described as if its outermost pixels had been repeated before."""
    image = random_image(83, 123)
    # On the right and below, to a multiple of the stride; ALIKED pads around the centre by itself.
    left, top = (2, 6) if isinstance(model, Aliked) else (0, 0)
    rows = 5 if isinstance(model, SuperPoint) else 13
    padded = nn.functional.pad(image[None], (left, 5 - left, top, rows - top), mode="replicate")[0]
    xy = torch.tensor([[20.0, 20.0], [33.5, 40.25], [70.0, 58.0]])
    expected = describe_image(model, padded, Keypoints(xy + torch.tensor([left, top]), torch.ones(3)))
    assert (cosines(describe_image(model, image, Keypoints(xy, torch.ones(3))), expected) > 0.9999).all()


def test_aliked_takes_whole_pixels_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head cuts coordinates to whole pixels: a keypoint on one is not taken for the pixel before."""
    model = Aliked("aliked-t16")
    seen = []
    head = model.network.desc_head
    patches = head.get_patches_func
    monkeypatch.setattr(head, "get_patches_func", lambda x, at, size: seen.append(at) or patches(x, at, size))
    xy = torch.stack((torch.arange(200.0), torch.arange(200.0) % 40), dim=-1)
    describe_image(model, random_image(40, 200), Keypoints(xy, torch.ones(200)))
    assert torch.equal(seen[0], xy.long())


def test_keypoints_of_one_described_by_another() -> None:
    image = random_image(70, 90)
    combined = Combined(XFeat(threshold=0.0), Aliked("aliked-n16rot"))
    keypoints, descriptions = extract_image(combined, image, num_keypoints=20)
    assert descriptions.shape == (20, 128)
    torch.testing.assert_close(descriptions, describe_image(combined.descriptor, image, keypoints))


def test_extract_runs_the_network_once(model: FrozenExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = model._forward
    monkeypatch.setattr(model, "_forward", lambda image: calls.append(1) or forward(image))  # type: ignore[func-returns-value]
    extract_image(model, random_image(33, 47), num_keypoints=10)
    assert len(calls) == 1


# The pixel frame ------------------------------------------------------------------------------------------------------


def make_symmetric(model: FrozenExtractor) -> None:
    """Make the kernels the same after a half turn; the score map then rotates with the image, if it is right."""
    with torch.no_grad():
        for name, module in model.network.named_modules():
            if isinstance(module, nn.Conv2d):
                module.weight.copy_((module.weight + module.weight.flip(-2, -1)) / 2)
                if name.endswith("offset_conv"):
                    module.weight.zero_()
                    module.bias.zero_()
        if isinstance(model, XFeat):  # its keypoint head sees a cell's 64 pixels, and names them, as channels
            first, last = model.network.keypoint_head[0].layer[0].weight, model.network.keypoint_head[3]
            first.copy_((first + first.flip(1)) / 2)
        elif isinstance(model, SuperPoint):
            last = model.network.get_submodule("convPb")
            last.weight.mul_(30)
        if isinstance(model, XFeat | SuperPoint):
            for values in (last.weight, last.bias):
                values[:64] = (values[:64] + values[:64].flip(0)) / 2


@pytest.mark.parametrize("name", MAKERS)
def test_half_turn(name: str) -> None:
    model = MAKERS[name]()
    make_symmetric(model)
    image = random_image(96, 128)
    found = detect_image(model, image, num_keypoints=10**6).xy
    rotated = torch.tensor([127.0, 95.0]) - detect_image(model, image.rot90(2, (1, 2)), num_keypoints=10**6).xy
    assert len(found) > 20
    distances = torch.cdist(found, rotated, compute_mode="donot_use_mm_for_euclid_dist")
    # A tie decided by rounding may cost a keypoint; a wrong frame would move them all.
    assert (distances.min(dim=1).values < 1e-2).float().mean() > 0.97
    assert abs(len(found) - len(rotated)) <= 0.03 * len(found)


# Frozen ---------------------------------------------------------------------------------------------------------------


def test_frozen_yet_fit_for_learning_a_steerer(model: FrozenExtractor) -> None:
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.train().modules())
    _, descriptions = extract_image(model, random_image(64, 96), num_keypoints=10)
    steerer = nn.Linear(model.dim, model.dim, bias=False)
    steerer(descriptions).square().sum().backward()
    assert steerer.weight.grad is not None


def test_random_weights_are_announced_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.WARNING)
    fresh, loaded = XFeat(), XFeat()
    loaded.load_state_dict(fresh.state_dict())
    for model in (fresh, fresh, loaded, copy.deepcopy(loaded)):
        detect_image(model, random_image(33, 47), num_keypoints=5)
    assert [record.getMessage() for record in caplog.records] == [
        "XFeat runs with random weights: load_weights(path) has not been called"
    ]


# Weights --------------------------------------------------------------------------------------------------------------


def layouts(model: FrozenExtractor) -> dict[str, object]:
    """The ways in which a file may hold the weights."""
    state = model.network.state_dict()
    bare = {name: value for name, value in state.items() if not name.endswith("hw_grid")}
    return {
        "authors": {"extractor": bare} if isinstance(model, Disk) else bare,
        "kornia": {f"net.{name}": value for name, value in state.items()} if isinstance(model, XFeat) else state,
        "own": model.state_dict(),
        "checkpoint": {"optimizer": {"state": {0: torch.ones(1)}, "groups": [1]}, "model": bare, "step": 3},
        "parallel": {f"module.{name}": value for name, value in bare.items()},
        "old": {name: value for name, value in bare.items() if not name.endswith("num_batches_tracked")},
    }


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("layout", ["authors", "kornia", "own", "checkpoint", "parallel", "old"])
def test_weights_round_trip(name: str, layout: str, tmp_path: Path) -> None:
    source, target = MAKERS[name](), MAKERS[name]()
    path = tmp_path / "weights.pth"
    torch.save(layouts(source)[layout], path)
    assert target.load_weights(path) is target
    for key, value in source.state_dict().items():
        assert torch.equal(value, target.state_dict()[key]), key


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source = XFeat()
    save_file(dict(source.network.state_dict()), tmp_path / "xfeat.safetensors")
    state = XFeat().load_weights(str(tmp_path / "xfeat.safetensors")).state_dict()
    assert all(torch.equal(value, state[key]) for key, value in source.state_dict().items())


def test_weights_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    disk = Disk()
    torch.save(XFeat().network.state_dict(), path)
    with pytest.raises(WeightsError, match=r"weights.pth: not the weights of DISK: 26 names missing \(unet\..*unknown"):
        disk.load_weights(path)
    torch.save({"extractor": {"unet.path_down.0.1.3.bias": torch.ones(16)}}, path)
    with pytest.raises(WeightsError, match="25 names missing"):
        disk.load_weights(path)
    torch.save(Aliked("aliked-n16").network.state_dict(), path)
    with pytest.raises(
        WeightsError, match=r"not the weights of ALIKED \(aliked-n32\): desc_head.agg_weights has shape"
    ):
        Aliked("aliked-n32").load_weights(path)
    torch.save(disk.network.state_dict() | {"unet.path_down.0.1.3.bias": 7}, path)
    with pytest.raises(WeightsError, match=r"unet.path_down.0.1.3.bias is int, not a tensor"):
        disk.load_weights(path)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    model = XFeat()
    with pytest.raises(WeightsError, match=r"none\.pth: No such file"):
        model.load_weights(tmp_path / "none.pth")
    for suffix in ("pth", "safetensors"):
        broken = tmp_path / f"broken.{suffix}"
        broken.write_bytes(b"nonsense")
        with pytest.raises(
            WeightsError, match=rf"broken\.{suffix}: .*not a (file of tensors|safetensors file)"
        ) as caught:
            model.load_weights(broken)
        assert "weights_only" not in str(caught.value)  # torch's advice to load the file unsafely
    torch.save(torch.ones(3), tmp_path / "tensor.pth")
    with pytest.raises(WeightsError, match="expected named tensors, found Tensor"):
        model.load_weights(tmp_path / "tensor.pth")


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ALIKED_DIMS)
def test_aliked_variants(variant: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Aliked(variant, threshold=0.0)
    _, descriptions = extract_image(model, random_image(33, 47), num_keypoints=9)
    assert model.dim == (64 if variant == "aliked-t16" else 128)
    assert descriptions.shape == (9, model.dim)


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"variant must be one of aliked-t16, .*, got 'n16'"):
        Aliked("n16")
    for make in (Disk, XFeat, Aliked, SuperPoint):
        with pytest.raises(ValueError, match="nms_radius must be at least 1 pixel, got 0"):
            make(nms_radius=0)
    with pytest.raises(ValueError, match="border must not be negative, got -1"):
        SuperPoint(border=-1)


@pytest.mark.parametrize(("make", "title"), [(Disk, "DISK"), (Aliked, "ALIKED"), (XFeat, "XFeat")])
def test_without_kornia(make: Callable[[], object], title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setitem(sys.modules, "kornia.feature", None)
    with pytest.raises(ImportError, match=rf'^{title} needs kornia: pip install "steerers\[kornia\]"$'):
        make()


# SuperPoint -----------------------------------------------------------------------------------------------------------


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


def test_keypoints_stay_apart_and_off_the_border() -> None:
    model, image = lively("superpoint"), random_image(200, 300)
    keypoints = detect_image(model, image, num_keypoints=10**6)
    assert len(keypoints) > 40
    assert (keypoints.xy >= 4).all()
    assert (keypoints.xy <= torch.tensor([295, 195])).all()
    assert (keypoints.scores > 0.005).all()
    near = torch.cdist(keypoints.xy, keypoints.xy, p=torch.inf).fill_diagonal_(torch.inf)
    assert (near > 4).all()
    whole = SuperPoint(border=0)
    whole.load_state_dict(model.state_dict())
    xy = detect_image(whole, image, num_keypoints=10**6).xy
    assert ((xy < 4) | (xy > torch.tensor([295, 195]))).any()


def test_descriptions_are_read_at_the_centres_of_cells() -> None:
    """Cell (j, i) is 8 x 8 pixels, and its centre is the pixel (8 j + 3.5, 8 i + 3.5)."""
    model, image = SuperPoint(), random_image(64, 48)
    with torch.no_grad():
        _, features = model._forward(image[None])
    cells = torch.cartesian_prod(torch.arange(6), torch.arange(8))  # x, y
    described = describe_image(model, image, Keypoints(8.0 * cells + 3.5, torch.ones(48)))
    torch.testing.assert_close(described, features[0][:, cells[:, 1], cells[:, 0]].T)


def test_channels_are_the_pixels_of_a_cell() -> None:
    """Whatever the image, a network that is sure of channel 8 y + x finds the pixel (x, y) of every cell."""
    model = SuperPoint(border=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.network.get_submodule("convPb").bias[8 * 2 + 5] = 9.0
    xy = detect_image(model, random_image(24, 16), num_keypoints=100).xy
    assert sorted(map(tuple, xy.tolist())) == [(x, y) for x in (5, 13) for y in (2, 10, 18)]


def test_needs_no_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    assert len(detect_image(lively("superpoint"), random_image(48, 48), num_keypoints=3)) == 3


def test_official_names() -> None:
    names = {name.rpartition(".")[0] for name in SuperPoint().network.state_dict()}
    assert names == {f"conv{stage}{half}" for stage in "1234PD" for half in "ab"}
    assert sum(parameter.numel() for parameter in SuperPoint().parameters()) == 1_300_865


def test_the_licence_is_told_with_the_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = dict(SuperPoint().network.state_dict())
    caplog.set_level(logging.WARNING)
    torch.save(
        {name: value for name, value in state.items() if name != "convDb.bias"} | {"gnn": state["convDb.bias"]},
        tmp_path / "superglue.pth",
    )
    message = r"not the weights of SuperPoint: 1 names missing \(convDb.bias\); 1 names unknown \(gnn\)"
    with pytest.raises(WeightsError, match=message):
        SuperPoint().load_weights(tmp_path / "superglue.pth")
    assert not caplog.records
    torch.save(state, tmp_path / "superpoint_v1.pth")
    SuperPoint().load_weights(tmp_path / "superpoint_v1.pth")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("steerers.models.frozen", LICENCE_NOTE)
    ]

"""DeDoDe against kornia's implementation, the official names and the official sizes."""

from __future__ import annotations

import importlib
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import describe_image, detect_image
from steerers.features import Keypoints
from steerers.geometry import to_normalised, to_pixels
from steerers.models.dedode import PATCH, DedodeDescriptor, DedodeDetector, dinov2_backbone
from steerers.models.sampling import KeypointSampling

VGG = "0|1|3|4|7|8|10|11|14|15|17|18|20|21|23|24|27|28|30|31|33|34|36|37"
TENSOR = "weight|bias|running_mean|running_var|num_batches_tracked"
Network = DedodeDetector | DedodeDescriptor


class Patches(nn.Module):
    """A stand-in for DINOv2: a random linear map of each patch."""

    def __init__(self, channels: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, channels, PATCH, stride=PATCH)

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.embed(images)
        return patches


@torch.no_grad()
def randomise(network: nn.Module, seed: int = 0) -> None:
    """Random weights and statistics that keep activations, and so the output, of order one."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            gain = 2 if module.kernel_size == (3, 3) else 1  # the encoder's follow a ReLU, which takes half the signal
            module.weight.normal_(std=math.sqrt(gain / module.weight[0].numel()), generator=generator)
            assert module.bias is not None
            module.bias.normal_(std=0.1, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.2, generator=generator)
            module.running_var.uniform_(0.6, 1.4, generator=generator)
            module.weight.uniform_(0.8, 1.2, generator=generator)
            module.bias.normal_(std=0.2, generator=generator)


def make(kind: str, **options: Any) -> Network:
    network: Network
    if kind.startswith("detector"):
        network = DedodeDetector(kind[-1], **options)  # type: ignore[arg-type]
    else:
        backbone = {"backbone": Patches()} if kind[-1] == "G" else {}
        network = DedodeDescriptor(kind[-1], **backbone, **options)  # type: ignore[arg-type]
    randomise(network)
    return network.eval()


def maps(network: Network, images: Tensor) -> Tensor:
    return network.logits(images)[:, None] if isinstance(network, DedodeDetector) else network.description_map(images)


def random_image(height: int, width: int, seed: int = 0) -> Tensor:
    """Coarse noise, so that neighbouring pixels have something to do with each other."""
    noise = torch.rand(1, 3, height // 4, width // 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size=(height, width), mode="bilinear")[0]


def all_keypoints(xy: Tensor) -> Keypoints:
    return Keypoints(xy, torch.ones(len(xy)))


@pytest.fixture(scope="module")
def detector() -> DedodeDetector:
    network = make("detector L")
    assert isinstance(network, DedodeDetector)
    return network


@pytest.fixture(scope="module")
def descriptor() -> DedodeDescriptor:
    network = make("descriptor B")
    assert isinstance(network, DedodeDescriptor)
    return network


@pytest.fixture(scope="module")
def descriptor_g() -> DedodeDescriptor:
    network = make("descriptor G")
    assert isinstance(network, DedodeDescriptor)
    return network


# Official names and sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "parameters", "tensors", "scales", "blocks"),
    [
        (lambda: DedodeDetector("L"), 14_559_749, 416, "8|4|2|1", 8),
        (lambda: DedodeDetector("B"), 13_297_477, 308, "8|4|2|1", 5),
        (lambda: DedodeDescriptor("B"), 13_518_817, 308, "8|4|2|1", 5),
        (lambda: DedodeDescriptor("G", backbone=Patches()), 18_811_361, 364, "14|8|4|2|1", 5),
    ],
    ids=["detector L", "detector B", "descriptor B", "descriptor G"],
)
def test_names_and_sizes_are_official(network: Any, parameters: int, tensors: int, scales: str, blocks: int) -> None:
    built = network()
    names = list(built.state_dict())
    assert sum(p.numel() for p in built.parameters()) == parameters
    assert len(names) == tensors
    prefix = r"vgg\." if "14" in scales else ""
    encoder = re.compile(rf"encoder\.{prefix}layers\.({VGG})\.({TENSOR})")
    block = rf"(block1|hidden_blocks\.[0-{blocks - 1}])\.[013]\.({TENSOR})"
    decoder = re.compile(rf"decoder\.layers\.({scales})\.({block}|out_conv\.(weight|bias))")
    assert [name for name in names if not (encoder.fullmatch(name) or decoder.fullmatch(name))] == []
    assert sum(p.numel() for n, p in built.named_parameters() if n.startswith("encoder")) == 10_592_064
    assert list(built.decoder.layers) == scales.split("|")


# kornia ---------------------------------------------------------------------------------------------------------------


class KorniaBackbone(nn.Module):
    """The stand-in behind the interface that kornia's encoder of G expects."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = [backbone]

    def forward(self, images: Tensor) -> tuple[list[Tensor], list[tuple[int, int]]]:
        patches = self.backbone[0](images)
        return [patches], [(patches.shape[-2], patches.shape[-1])]


@pytest.fixture
def kornia_models(monkeypatch: pytest.MonkeyPatch) -> Any:
    """kornia's networks, without the classifier that it builds and throws away and without a download."""
    pytest.importorskip("kornia")
    encoder, vgg, models = (
        importlib.import_module(f"kornia.feature.dedode.{name}") for name in ("encoder", "vgg", "dedode_models")
    )
    features = vgg.make_layers(vgg.cfgs["E"], batch_norm=True)
    monkeypatch.setattr(encoder, "vgg19_bn", lambda: SimpleNamespace(features=features))
    return models


def kornia_detector_b(models: Any) -> Any:
    """The smaller detector, which kornia has no name for, of kornia's parts."""
    channels = {"8": (512, 512, 257), "4": (512, 256, 129), "2": (256, 64, 33), "1": (96, 32, 2)}
    refiners = {scale: models.ConvRefiner(*c, hidden_blocks=5, residual=True) for scale, c in channels.items()}
    return models.DeDoDeDetector(models.VGG19(), models.Decoder(nn.ModuleDict(refiners)))


@pytest.mark.parametrize("kind", ["detector L", "detector B", "descriptor B", "descriptor G"])
def test_agrees_with_kornia(kind: str, kornia_models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make(kind)
    if kind == "descriptor G":
        backbone = ours.encoder._hidden[0]
        encoder = importlib.import_module("kornia.feature.dedode.encoder")
        monkeypatch.setattr(encoder, "FrozenDINOv2", lambda **_: KorniaBackbone(backbone))
    build = {
        "detector L": kornia_models.dedode_detector_L,
        "detector B": lambda: kornia_detector_b(kornia_models),
        "descriptor B": kornia_models.dedode_descriptor_B,
        "descriptor G": kornia_models.dedode_descriptor_G,
    }
    oracle = build[kind]().eval()
    oracle.load_state_dict(ours.state_dict(), strict=True)
    normalise = importlib.import_module("kornia.enhance").normalize
    for size in [(64, 64), (45, 78)] if kind != "descriptor G" else [(70, 70), (42, 84)]:
        images = torch.stack([random_image(*size, seed) for seed in (0, 1)])
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        with torch.no_grad():
            expected, got = oracle(normalise(images, mean, std)), maps(ours, images)
        assert got.shape == expected.shape == (2, 1 if "detector" in kind else 256, *size)
        assert 0.3 < float(expected.std()) < 5
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_detects_and_describes_as_kornia(
    detector: DedodeDetector, descriptor: DedodeDescriptor, kornia_models: Any
) -> None:
    dedode = importlib.import_module("kornia.feature.dedode").DeDoDe("L", "B", amp_dtype=torch.float32)
    dedode.detector.load_state_dict(detector.state_dict())
    dedode.descriptor.load_state_dict(descriptor.state_dict())
    image = random_image(60, 88)
    points, scores, descriptions = dedode.eval()(image[None], n=60, pad_if_not_divisible=False)
    keypoints = detect_image(detector, image, num_keypoints=60)
    torch.testing.assert_close(keypoints.xy, points[0] - 0.5, atol=1e-4, rtol=0)
    torch.testing.assert_close(keypoints.scores, scores[0], atol=0, rtol=1e-3)
    torch.testing.assert_close(describe_image(descriptor, image, keypoints), descriptions[0], atol=2e-4, rtol=0)


# Detect and describe --------------------------------------------------------------------------------------------------


def test_keypoints_are_pixels_of_the_logits(detector: DedodeDetector) -> None:
    image = random_image(40, 72)
    network = DedodeDetector("L", sampling=KeypointSampling(coverage=False)).eval()
    network.load_state_dict(detector.state_dict())
    keypoints = detect_image(network, image, num_keypoints=50)
    with torch.no_grad():
        logits = network.logits(image[None])[0]
    x, y = keypoints.xy.long().unbind(1)
    torch.testing.assert_close(logits[y, x], logits.flatten().topk(50).values)


def test_mask_does_not_cost_keypoints(detector: DedodeDetector) -> None:
    mask = torch.zeros(48, 64, dtype=torch.bool)
    mask[:, :20] = True
    keypoints = detect_image(detector, random_image(48, 64), num_keypoints=100, mask=mask)
    assert len(keypoints) == 100
    assert float(keypoints.xy[:, 0].max()) <= 19


@pytest.mark.parametrize("size", [(8, 8), (8, 61), (37, 50)])
def test_any_size(size: tuple[int, int], detector: DedodeDetector, descriptor: DedodeDescriptor) -> None:
    image = torch.rand(3, *size)
    keypoints = detect_image(detector, image, num_keypoints=30)
    assert describe_image(descriptor, image, keypoints).shape == (30, descriptor.dim)


@pytest.mark.parametrize("kind", ["detector L", "descriptor B"])
def test_a_rotation_of_image_and_kernels_rotations_the_map(kind: str) -> None:
    """With kernels rotated too, the whole network must commute with a quarter turn, on sides of a multiple of 8."""
    network = make(kind)
    image = random_image(40, 56)[None]
    with torch.no_grad():
        expected = torch.rot90(maps(network, image), 1, dims=(-2, -1))
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(torch.rot90(module.weight, 1, dims=(-2, -1)).clone())
        rotated = maps(network, torch.rot90(image, 1, dims=(-2, -1)))
    torch.testing.assert_close(rotated, expected, atol=1e-4, rtol=1e-4)


def test_descriptions_are_read_at_their_pixels(descriptor: DedodeDescriptor) -> None:
    image = random_image(32, 48)
    ys, xs = torch.tensor([0, 5, 31, 17]), torch.tensor([0, 47, 20, 33])
    described = describe_image(descriptor, image, all_keypoints(torch.stack((xs, ys), dim=1).float()))
    with torch.no_grad():
        expected = descriptor.description_map(image[None])[0, :, ys, xs].T
    torch.testing.assert_close(described, expected, atol=1e-4, rtol=0)
    assert describe_image(descriptor, image, all_keypoints(torch.zeros(0, 2))).shape == (0, 256)


# Descriptor G ---------------------------------------------------------------------------------------------------------


def test_g_describes_any_size_in_the_frame_of_the_image(descriptor_g: DedodeDescriptor) -> None:
    """The same place of the same image at a size that fits and at one that does not."""
    fitting, other = (70, 98), (73, 96)
    generator = torch.Generator().manual_seed(0)
    smooth = F.interpolate(torch.rand(1, 3, 5, 6, generator=generator), size=(140, 196), mode="bicubic")
    images = [F.interpolate(smooth, size=size, mode="bilinear", antialias=True)[0] for size in (fitting, other)]
    xy = to_pixels(torch.rand(40, 2, generator=generator) * 1.8 - 0.9, fitting[::-1])
    same = to_pixels(to_normalised(xy, fitting[::-1]), other[::-1])
    a = describe_image(descriptor_g, images[0], all_keypoints(xy))
    b = describe_image(descriptor_g, images[1], all_keypoints(same))
    a, b = a - a.mean(0), b - a.mean(0)
    nearest = (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T).argmax(1)
    assert (nearest == torch.arange(40)).float().mean() > 0.9
    with pytest.raises(ValueError, match="multiple of 14, got 73 x 96"):
        descriptor_g.description_map(images[1][None])


def test_the_backbone_is_hidden_and_frozen_but_moves() -> None:
    backbone = Patches().train()
    network = DedodeDescriptor("G", backbone=backbone).train()
    assert not backbone.training
    assert not any(p.requires_grad for p in backbone.parameters())
    assert {id(p) for p in network.parameters()}.isdisjoint(id(p) for p in backbone.parameters())
    network.to("meta")
    assert backbone.embed.weight.is_meta


def test_g_without_or_with_a_wrong_backbone() -> None:
    image = torch.rand(1, 3, 28, 28)
    with pytest.raises(ValueError, match="dinov2_backbone"):
        DedodeDescriptor("G").eval().description_map(image)
    with pytest.raises(ValueError, match=r"\(1, 1024, 2, 2\), got \(1, 8, 2, 2\)"):
        DedodeDescriptor("G", backbone=Patches(8)).eval().description_map(image)
    with pytest.raises(ValueError, match="architecture 'G' alone"):
        DedodeDescriptor("B", backbone=Patches())


def official_dinov2(channels: int, depth: int, grid: int) -> dict[str, Tensor]:
    """Random weights under the names of the official DINOv2 files."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, channels),
        "pos_embed": (1, grid * grid + 1, channels),
        "mask_token": (1, channels),
        "patch_embed.proj.weight": (channels, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (channels,),
        "norm.weight": (channels,),
        "norm.bias": (channels,),
    }
    block = {
        "attn.qkv": (3 * channels, channels),
        "attn.proj": (channels, channels),
        "mlp.fc1": (4 * channels, channels),
        "mlp.fc2": (channels, 4 * channels),
    }
    for i in range(depth):
        for name, (out, into) in block.items():
            shapes |= {f"blocks.{i}.{name}.weight": (out, into), f"blocks.{i}.{name}.bias": (out,)}
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "ls1.gamma", "ls2.gamma"):
            shapes[f"blocks.{i}.{name}"] = (channels,)
    generator = torch.Generator().manual_seed(0)
    return {
        name: 0.1 * torch.randn(shape, generator=generator) + float(name.endswith(("norm1.weight", "gamma")))
        for name, shape in shapes.items()
    }


def reference_tokens(weights: dict[str, Tensor], images: Tensor, heads: int) -> Tensor:
    """DINOv2 written out, for the image size of the position embedding: (B, N, C) normalised patch tokens."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    embed = F.conv2d(images, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=PATCH)
    x = torch.cat((weights["cls_token"].expand(len(images), -1, -1), embed.flatten(2).mT), dim=1) + weights["pos_embed"]
    for i in range(sum(name.endswith("ls1.gamma") for name in weights)):
        q, k, v = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + weights[f"blocks.{i}.ls1.gamma"] * linear(attended, f"blocks.{i}.attn.proj")
        hidden = F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1"))
        x = x + weights[f"blocks.{i}.ls2.gamma"] * linear(hidden, f"blocks.{i}.mlp.fc2")
    return norm(x, "norm")[:, 1:]


def test_dinov2_backbone_reads_the_official_names() -> None:
    pytest.importorskip("kornia")
    weights = official_dinov2(channels=128, depth=2, grid=4)
    backbone = dinov2_backbone(weights)
    images = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    expected = reference_tokens(weights, images, heads=2)
    assert not backbone.training
    torch.testing.assert_close(backbone(images).flatten(2).mT, expected, atol=1e-4, rtol=1e-4)
    assert backbone(torch.rand(1, 3, 70, 42)).shape == (1, 128, 5, 3)


def test_dinov2_backbone_in_g() -> None:
    pytest.importorskip("kornia")
    network = DedodeDescriptor("G", backbone=dinov2_backbone(official_dinov2(1024, 1, 4)), dtype=torch.bfloat16).eval()
    described = describe_image(network, torch.rand(3, 40, 60), all_keypoints(torch.tensor([[3.0, 4.0], [50.0, 30.0]])))
    assert described.shape == (2, 256)
    assert len(network.state_dict()) == 364


def test_dinov2_backbone_refuses_other_weights() -> None:
    pytest.importorskip("kornia")
    with pytest.raises(ValueError, match="pos_embed"):
        dinov2_backbone({"encoder.layers.0.weight": torch.zeros(1)})
    registers = official_dinov2(64, 1, 2) | {"register_tokens": torch.zeros(1, 4, 64)}
    with pytest.raises(ValueError, match="register_tokens"):
        dinov2_backbone(registers)


# Precision, training, errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["detector B", "descriptor B"])
def test_half_precision_is_near_and_returns_float32(kind: str, dtype: torch.dtype) -> None:
    full, half = make(kind), make(kind, dtype=dtype)
    image = random_image(48, 64)[None]
    with torch.no_grad():
        expected, got = maps(full, image), maps(half, image)
    assert got.dtype == torch.float32
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert float((got - expected).std() / expected.std()) < (0.05 if dtype == torch.bfloat16 else 0.01)
    assert not torch.equal(got, expected)


def test_the_precision_is_that_of_the_network_whatever_surrounds_it(descriptor: DedodeDescriptor) -> None:
    image = random_image(32, 32)[None]
    with torch.no_grad():
        expected = descriptor.description_map(image)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = descriptor.description_map(image)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(("dtype", "remedy"), [(torch.float16, "dtype=torch.float32"), (torch.float32, "weights")])
@pytest.mark.parametrize("kind", ["detector B", "descriptor B"])
def test_what_is_not_finite_is_refused(kind: str, dtype: torch.dtype, remedy: str) -> None:
    network = make(kind, dtype=dtype)
    with torch.no_grad():
        network.encoder.layers[0].weight.mul_(1e6 if dtype == torch.float16 else math.inf)
    with pytest.raises(ValueError, match=rf"{kind} in {dtype} gave \w+ that are not finite.*{remedy}"):
        maps(network, random_image(32, 32)[None])


def test_float64_goes_through() -> None:
    network = make("detector B").double()
    assert maps(network, random_image(16, 16)[None].double()).dtype == torch.float64


@pytest.mark.parametrize("kind", ["detector B", "descriptor G"])
def test_gradients_reach_every_parameter(kind: str) -> None:
    network = make(kind).train()
    images = torch.stack([random_image(28, 42, seed) for seed in (0, 1)])
    maps(network, images).square().mean().backward()
    missing = [name for name, p in network.named_parameters() if p.grad is None]
    assert missing == []


def test_detect_and_describe_leave_the_mode_and_give_tensors_that_can_be_trained_with(
    detector: DedodeDetector, descriptor: DedodeDescriptor
) -> None:
    image = random_image(32, 40)
    keypoints = detect_image(detector, image, num_keypoints=20)
    described = describe_image(descriptor, image, keypoints)
    assert not detector.training
    assert not descriptor.training
    assert not any(t.is_inference() or t.requires_grad for t in (keypoints.xy, keypoints.scores, described))
    weight = torch.ones(256, requires_grad=True)
    (described * weight).sum().backward()
    torch.testing.assert_close(weight.grad, described.sum(0))


def test_describing_in_training_mode_has_gradients() -> None:
    network = make("descriptor B").train()
    assert isinstance(network, DedodeDescriptor)
    described = describe_image(network, random_image(32, 40), all_keypoints(torch.rand(5, 2) * 30))
    assert described.requires_grad
    assert network.training


def test_wrong_arguments(detector: DedodeDetector, descriptor: DedodeDescriptor) -> None:
    with pytest.raises(ValueError, match=r"one of \['B', 'L'\], got 'G'"):
        DedodeDetector("G")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one of \['B', 'G'\], got 'L'"):
        DedodeDescriptor("L")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got torch\.float64"):
        DedodeDetector("B", dtype=torch.float64)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\) with sides of at least 8, got \(1, 1, 32, 32\)"):
        detect_image(detector, torch.rand(1, 32, 32), num_keypoints=5)
    with pytest.raises(ValueError, match="at least 8"):
        descriptor.description_map(torch.rand(1, 3, 7, 40))
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        detector.logits(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))

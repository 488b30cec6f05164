"""From configurations to networks and steerers; every configuration of the paper takes a step at a small size."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datasets.workspaces import write_scene
from helpers import CONFIG_FOLDER
from steerers._weights import WeightsError
from steerers.datasets.colmap import Colmap
from steerers.datasets.folder import Photographs
from steerers.datasets.pairs import PairBatch, draw_rotations
from steerers.datasets.photos import PhotoStore, find_photos
from steerers.datasets.views import Views
from steerers.models import parts, zoo
from steerers.models.classical import UprightSift
from steerers.models.compact import Compact
from steerers.models.dedode import PATCH, DedodeDescriptor, DedodeDetector
from steerers.models.downloads import WeightFile
from steerers.steering.steerer import Steerer
from steerers.training import build
from steerers.training.build import (
    build_detector,
    build_network,
    build_objective,
    build_steerer,
    needed_weights,
    overview,
    published,
)
from steerers.training.config import (
    TRAINABLE,
    ModelConfig,
    SteererConfig,
    TrainConfig,
    ValidationConfig,
    load_config,
    parse_config,
)
from steerers.training.objectives import Objective
from steerers.training.objectives.keypoints import KeypointOptions
from steerers.training.run_folder import MODEL, export_model

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
CONFIGS = sorted(CONFIG_FOLDER.glob("*.toml"))
SMALL = {"compact": {"dim": 32, "hidden": 32}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of weights, and no way to fill it."""
    monkeypatch.setenv("STEERERS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build, "fetch", refuse_download)
    return tmp_path / "home"


def refuse_download(file: WeightFile) -> Path:
    raise WeightsError(f"a test wanted {file.name}")


# Every configuration --------------------------------------------------------------------------------------------------


class Patches(nn.Module):
    """Stands for DINOv2: (B, 3, H, W) to (B, 1024, H / 14, W / 14)."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(images, PATCH).repeat(1, 342, 1, 1)[:, :1024]


def reduced(config: TrainConfig) -> TrainConfig:
    """The same with tiny views, few keypoints of a detector without weights, and random networks."""
    large = config.model.kind == "dedode-g"
    weights = str(random_weights(config.model.kind)) if config.model.kind not in TRAINABLE else ""
    model = {"weights": weights, "detector": "upright-sift", "backbone_weights": "dinov2.pth" if large else ""}
    return dataclasses.replace(
        config,
        batch=1,
        precision="float32",
        data=dataclasses.replace(
            config.data, views=dataclasses.replace(config.data.views, size=56 if large else 64, resize="letterbox")
        ),
        model=dataclasses.replace(config.model, **model),
        matching=dataclasses.replace(config.matching, num_keypoints=60, radius=3.0),
        keypoints=reduced_keypoints(config.keypoints),
        distillation=dataclasses.replace(
            config.distillation, teachers=("compact-1",) if config.distillation.teachers else ()
        ),
        validation=ValidationConfig(pairs=1, rotations=(0,)),
    )


def random_weights(kind: str) -> Path:
    """The file of a frozen model, here in the empty cache of weights."""
    path = Path(os.environ["STEERERS_HOME"]) / f"random-{kind}.pth"
    path.parent.mkdir(exist_ok=True)
    torch.save(parts.frozen_network(kind).network.state_dict(), path)
    return path


def reduced_keypoints(options: KeypointOptions) -> KeypointOptions:
    if options.prior == "sfm":
        return dataclasses.replace(options, num_keypoints=16, dedode=dataclasses.replace(options.dedode, targets=16))
    if options.targets == "repeated":
        return dataclasses.replace(options, num_keypoints=16)
    return dataclasses.replace(options, num_keypoints=16, most=16)


def batch_of(config: TrainConfig, photographs: Path) -> PairBatch:
    """A pair that is rotated, where the configuration rotates pairs, with what a detector may need."""
    source = Photographs(PhotoStore.open(find_photos(photographs), 96), config.data.views)
    for seed in range(20):
        rotations0, rotations1 = draw_rotations(config.data.rotations, [seed])
        if not torch.equal(rotations0, rotations1) or config.data.rotations.startswith("joint"):
            break
    batch = source.make([source.read(0)], rotations0, rotations1, [seed], CPU)
    points = torch.rand(1, 20, 2, generator=torch.Generator().manual_seed(0)) * batch.images0.shape[-1]
    moved, seen = batch.warp.forward(points)
    detections = (points, torch.where(seen[..., None], moved, torch.nan))
    return dataclasses.replace(batch, detections=detections, known=(batch.masks0, batch.masks1))


def trained_parts(config: TrainConfig) -> set[str]:
    """What a configuration says is trained, by the beginnings of names."""
    if config.matching.prototype:
        return {"prototype"}
    if config.setting == "detector":
        return {"detector"}
    return {"A": {"steerer"}, "B": {"descriptor", "steerer"}, "C": {"descriptor"}, "joint": {"network"}}[config.setting]


def loss_of(objective: Objective, batch: PairBatch) -> Tensor:
    terms = objective(batch, 0.0)
    return torch.stack([term.weight * term.total / term.count.clamp(min=1) for term in terms.values()]).sum()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_takes_a_step(path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "load_dinov2", lambda path: Patches())
    config = reduced(load_config(path))
    objective = build_objective(config).train()
    loss = loss_of(objective, batch_of(config, photographs))
    assert loss.item() > 0
    loss.backward()
    networks = objective.networks()
    assert set(networks) == trained_parts(config)
    trained = {id(parameter) for part in networks.values() for parameter in part.parameters()}
    assert all(p.grad is None for p in objective.parameters() if id(p) not in trained), "a gradient of what is frozen"
    for name, part in networks.items():
        followed = [p for p in part.parameters() if p.grad is not None and p.grad.any()]
        assert followed, f"no gradient of {name}"
        before = followed[0].detach().clone()
        torch.optim.AdamW(followed, lr=1e-3).step()
        assert not torch.equal(followed[0].detach(), before)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_built_without_its_weights(path: Path) -> None:
    config = load_config(path)
    assert set(build_objective(config, pretrained=False).networks()) == trained_parts(config)


def test_weights_that_are_not_here_are_asked_for() -> None:
    for name, wanted in (("a-c4-b", "dedode_descriptor_B.pth"), ("c-c4-perm-b", "vgg19_bn-c79401a0.pth")):
        with pytest.raises(WeightsError, match=f"a test wanted {wanted}"):
            build_objective(load_config(next(path for path in CONFIGS if path.stem == name)))


# Networks -------------------------------------------------------------------------------------------------------------


def test_the_seed_gives_the_start_and_leaves_the_global_generator() -> None:
    def start(seed: int) -> dict[str, Tensor]:
        config = parse_config({"seed": seed, "model": SMALL, "steerer": {"kind": "random", "learn": True}})
        return build_objective(config).state_dict()

    before = torch.get_rng_state()
    first, again, other = start(3), start(3), start(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(name.startswith("network.") and not torch.equal(first[name], other[name]) for name in first)
    assert any(name.startswith("steerer.") and not torch.equal(first[name], other[name]) for name in first)


def test_compact_without_rotations_and_steerer(photographs: Path) -> None:
    """What the embedded model is compared with, to know what rotations and a steerer cost it on upright images."""
    changed = {"data.rotations": "none", "steerer.kind": "none"}
    config = reduced(load_config(CONFIG_FOLDER / "compact.toml", changed))
    objective = build_objective(config).train()
    assert objective.steerer is None
    loss = loss_of(objective, batch_of(config, photographs))
    loss.backward()
    assert loss.item() > 0
    assert all(parameter.grad is not None for _, parameter in objective.trained())


LEARNED = {"group": "C4", "kind": "random", "learn": True}


@pytest.mark.parametrize("kind", [name for name in (*zoo.ZOO, *zoo.ALIASES) if name not in TRAINABLE])
def test_setting_a_takes_every_model_of_the_zoo(kind: str) -> None:
    """Its network is of the published length, and nothing but the steerer is trained."""
    values = {"setting": "A", "model": {"kind": kind}, "steerer": LEARNED}
    values["data"] = {"rotations": "C4", "views": {"size": 560}}
    objective = build_objective(parse_config(values), pretrained=False)
    assert list(objective.networks()) == ["steerer"]
    assert objective.steerer is not None
    assert objective.steerer.dim == zoo.find(kind).dim
    for setting in ("B", "C", "joint", "detector"):
        message = (
            f"model.kind {kind!r} stays as it is: setting 'A' fits a steerer to it, but setting {setting!r} trains"
        )
        with pytest.raises(ValueError, match=message):
            build_objective(parse_config(values | {"setting": setting}))


def test_a_frozen_model_has_its_own_keypoints_unless_another_detector_is_named() -> None:
    values = {"setting": "A", "model": {"kind": "upright-sift"}, "steerer": LEARNED, "data": {"rotations": "C4"}}
    own = build_objective(parse_config(values))
    assert isinstance(own.descriptor, UprightSift)
    assert own._frozen[0] is own.descriptor
    superpoint = {"kind": "superpoint", "weights": str(random_weights("superpoint")), "detector": "upright-sift"}
    other = build_objective(parse_config(values | {"model": superpoint})).train()
    assert isinstance(other._frozen[0], UprightSift)
    expected = torch.load(superpoint["weights"])
    assert all(torch.equal(value, expected[name]) for name, value in other.descriptor.network.state_dict().items())
    assert not other.descriptor.training
    assert not any(parameter.requires_grad for parameter in other.descriptor.parameters())
    with pytest.raises(ValueError, match="model: detector_weights are those of a detector: set detector too"):
        parse_config(values | {"model": {"kind": "superpoint", "detector_weights": "a.pth"}})
    with pytest.raises(WeightsError, match=r"gone\.pth: no such file"):
        build_objective(parse_config(values | {"model": {"kind": "superpoint", "weights": "gone.pth"}}))


def test_precision_reaches_dedode_that_chooses_its_own() -> None:
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        for kind in ("dedode-b", "dedode-detector-l"):
            network = build_network(parse_config({"model": {"kind": kind}}).model, precision)
            assert isinstance(network, (DedodeDescriptor, DedodeDetector))
            assert network.dtype == dtype


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"setting": "detector", "model": {"kind": "dedode-b"}}, "trains a detector, not model.kind 'dedode-b'"),
        ({"setting": "C", "model": {"kind": "dedode-detector-l"}}, "trains a descriptor, not model.kind"),
        ({"setting": "joint", "model": {"kind": "dedode-b"}}, "setting 'joint' needs model.kind 'compact'"),
        (
            {"setting": "joint", "model": SMALL, "steerer": {"kind": "none"}},
            "views cannot be rotated against each other",
        ),
        ({"setting": "C", "model": SMALL}, "set model.detector"),
        (
            {"setting": "C", "model": {**SMALL, "detector": "shift"}},
            "model.detector: unknown model 'shift'.*dedode-l-so2",
        ),
        ({"setting": "B", "model": {**SMALL, "detector": "sift"}}, "learnable steerer"),
        ({"model": {**SMALL, "weights": "vgg"}}, "'vgg' is for DeDoDe's networks"),
        (
            {"model": SMALL, "optimiser": {"learning_rates": {"netwrk": 1e-4}}},
            "begins with 'netwrk'; there are network",
        ),
        ({"model": SMALL, "optimiser": {"learning_rates": {"steerer": 1e-4}}}, "begins with 'steerer'"),
        ({"model": {"kind": "dedode-g"}, "setting": "C"}, "multiple of 14 pixels, got data.views.size 384"),
        (
            {"setting": "detector", "model": {"kind": "dedode-detector-l"}, "keypoints": {"prior": "sfm"}},
            "'sfm' needs points of a reconstruction",
        ),
        ({"model": SMALL, "keypoints": {"prior": "sfm"}}, r"setting 'joint' .* not 'sfm', which is DeDoDe's"),
        (
            {"model": SMALL, "steerer": {"group": "C4", "kind": "perm"}},
            "C4 does not have all the rotations of .* 'SO2'",
        ),
        (
            {"model": SMALL, "steerer": {"group": "C2", "kind": "perm"}, "data": {"rotations": "C4"}},
            "C2 does not have all the rotations of .* 'C4'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], message: str) -> None:
    for pretrained in (True, False):
        with pytest.raises(ValueError, match=message):
            build_objective(parse_config(values), pretrained=pretrained)


# Weights --------------------------------------------------------------------------------------------------------------


def test_a_published_file_is_found_by_its_name(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = DedodeDescriptor("B").state_dict()
    torch.save(wanted, tmp_path / "downloaded.pth")
    asked: list[str] = []

    def download(file: WeightFile) -> Path:
        asked.append(file.name)
        return tmp_path / "downloaded.pth"

    monkeypatch.setattr(build, "fetch", download)
    config = ModelConfig(kind="dedode-b", weights="dedode_descriptor_B.pth")
    assert dict(needed_weights(config)) == {"dedode_descriptor_B.pth": "to be downloaded"}
    state = build_network(config).state_dict()
    assert asked == ["dedode_descriptor_B.pth"]
    assert all(torch.equal(state[name], value) for name, value in wanted.items())
    home.mkdir()
    (home / "dedode_descriptor_B.pth").write_bytes(b"")
    assert dict(needed_weights(config)) == {"dedode_descriptor_B.pth": "here"}


def test_vgg_starts_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = DedodeDetector("L").encoder.state_dict()
    torch.save({name.replace("layers.", "features."): value for name, value in encoder.items()}, tmp_path / "vgg.pth")
    monkeypatch.setattr(build, "fetch", lambda file: tmp_path / "vgg.pth")
    network = build_network(ModelConfig(kind="dedode-b", weights="vgg"))
    state = network.encoder.state_dict()
    assert all(torch.equal(state[name], value) for name, value in encoder.items())


def test_what_is_neither_a_file_nor_published_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'dedode_B.pth': there is no such file.*dedode_descriptor_B.pth.*vgg"):
        published("dedode_B.pth")
    with pytest.raises(WeightsError, match=r"gone/model.safetensors: .*No such file"):
        build_network(ModelConfig(weights=str(tmp_path / "gone/model.safetensors")))
    missing = ModelConfig(kind="dedode-g", weights="runs/none/model.safetensors", detector="superpoint")
    assert dict(needed_weights(missing)) == {
        "dinov2_vitl14_pretrain.pth": "to be downloaded",
        "superpoint_v1.pth": "missing",
        "runs/none/model.safetensors": "missing",
    }


def test_the_weights_of_frozen_models_are_told_beforehand() -> None:
    for config, expected in (
        (ModelConfig(kind="upright-sift"), {}),
        (ModelConfig(kind="disk"), {"depth-save.pth": "to be downloaded"}),
        (ModelConfig(kind="disk", weights="mine.pth"), {"mine.pth": "missing"}),
        (
            ModelConfig(kind="disk", detector="dedode-l-c4"),
            {"depth-save.pth": "to be downloaded", "dedode_detector_C4.pth": "to be downloaded"},
        ),
        (
            ModelConfig(kind="dedode-g-c4-perm"),
            {
                "G_C4_Perm_descriptor_setting_C.pth": "to be downloaded",
                "dinov2_vitl14_pretrain.pth": "to be downloaded",
                "dedode_detector_C4.pth": "to be downloaded",
            },
        ),
    ):
        assert dict(needed_weights(config)) == expected


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(DedodeDetector("L").state_dict(), tmp_path / "detector.pth")
    with pytest.raises(WeightsError, match=r"detector.pth: not the weights of model.kind 'dedode-b': \d+ names"):
        build_network(ModelConfig(kind="dedode-b", weights=str(tmp_path / "detector.pth")))


def test_a_run_starts_from_another_one(tmp_path: Path) -> None:
    config = parse_config({"model": SMALL, "seed": 5})
    objective = build_objective(config)
    export_model(objective, config, 1, tmp_path)
    again = build_network(dataclasses.replace(config.model, weights=str(tmp_path / MODEL)))
    assert isinstance(again, Compact)
    expected = objective.networks()["network"].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())


# Detectors ------------------------------------------------------------------------------------------------------------


def test_a_detector_of_a_run_gives_the_keypoints(tmp_path: Path) -> None:
    config = parse_config({"setting": "detector", "model": {"kind": "dedode-detector-l"}})
    objective = build_objective(config)
    export_model(objective, config, 1, tmp_path)
    detector = build_detector(ModelConfig(detector="dedode-l-c4", detector_weights=str(tmp_path / MODEL)))
    expected = objective.networks()["detector"].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in detector.state_dict().items())


# Steerers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize(
    ("group", "kind", "spec"),
    [
        ("SO2", "inv", "32x0"),
        ("SO2", "freq1", "16x1"),
        ("SO2", "spread", "8x0 + 2x1 + 2x2 + 2x3 + 2x4 + 2x5 + 2x6"),
        ("C4", "inv", "32x0"),
        ("C4", "freq1", "16x1"),
        ("C4", "perm", "8x0 + 8x1 + 8x2"),
    ],
)
def test_kinds_of_steerers(group: str, kind: str, spec: str, learn: bool) -> None:
    steerer = build_steerer(SteererConfig(group=group, kind=kind, learn=learn), 32, 0)
    assert steerer is not None
    assert steerer.learnable == learn
    nearest, residual = steerer.nearest_representation()
    expected = Steerer.from_spec(spec, group).representation
    assert residual < 1e-4
    assert expected is not None
    assert sorted(nearest.terms) == sorted(expected.terms)


def test_a_steerer_from_a_file_is_trained_or_not_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "steerer.safetensors"
    for saved in (Steerer.perm(16), Steerer.random(16, "C4", generator=torch.Generator().manual_seed(0))):
        saved.save(path)
        for learn in (False, True):
            steerer = build_steerer(SteererConfig(group="C4", kind=str(path), learn=learn), 16, 0)
            assert steerer is not None
            assert steerer.learnable == learn
            torch.testing.assert_close(steerer.generator().float(), saved.generator().float())
    with pytest.raises(ValueError, match=r"steerer\.safetensors: a steerer of C4, but the group shall be C8"):
        build_steerer(SteererConfig(group="C8", kind=str(path)), 16, 0)
    with pytest.raises(ValueError, match="length 32"):
        build_steerer(SteererConfig(group="C4", kind=str(path)), 32, 0)


def test_a_steerer_from_a_published_file(tmp_path: Path) -> None:
    """Its group is that of the configuration."""
    matrix = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    torch.save({"steerer": {"generator": matrix}}, tmp_path / "latest.pth")
    for group in ("C4", "SO2"):
        for learn in (False, True):
            config = SteererConfig(group=group, kind=str(tmp_path / "latest.pth"), learn=learn)
            steerer = build_steerer(config, 16, 0)
            assert steerer is not None
            assert (str(steerer.group), steerer.learnable) == (group, learn)
            assert torch.equal(steerer.generator(), matrix)
    with pytest.raises(ValueError, match=r"other\.pth: No such file"):
        build_steerer(SteererConfig(kind=str(tmp_path / "other.pth")), 16, 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            SteererConfig(kind="spred"),
            "steerer.kind must be inv, freq1, perm, spread, random, none or a file, got 'spred'",
        ),
        (SteererConfig(group="C4", kind="spread"), "'spread' is for SO2, not C4"),
        (SteererConfig(group="SO3"), "SO3"),
        (SteererConfig(kind="absent.safetensors"), "absent.safetensors"),
    ],
)
def test_a_wrong_steerer_is_named(config: SteererConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_steerer(config, 32, 0)


# In words -------------------------------------------------------------------------------------------------------------


def test_the_overview_says_what_validation_measures_apart(tmp_path: Path) -> None:
    street, absent = write_scene(tmp_path / "street"), tmp_path / "absent"
    values: dict[str, Any] = {"model": SMALL, "steerer": {"max_frequency": 2}, "data": {"views": {"size": 96}}}
    values["validation"] = {"kinds": ["plain", "tilt"], "scenes": [str(street), str(absent)], "pairs": 8}
    lines = list(overview(parse_config(values), []))
    place = next(place for place, (title, _) in enumerate(lines) if title == "validation")
    pairs = len(Colmap(street, views=Views()))
    assert lines[place + 1] == (
        "",
        f"by kind, 8 pairs each at angles of their own: plain, tilt, {street} ({pairs} pairs, at tracks alone), "
        f"{absent} (not there)",
    )
    values["data"]["colmap"] = [str(street)]
    with pytest.raises(ValueError, match=r"validation.scenes: .*street is trained on as well \(data.colmap .*street\)"):
        list(overview(parse_config(values), []))
    del values["data"]["colmap"], values["validation"]
    assert not any("by kind" in text for _, text in overview(parse_config(values), []))

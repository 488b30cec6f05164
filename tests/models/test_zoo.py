"""The zoo with random weights: found, fetched from a server on the loopback interface, or refused."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import steerers
from helpers import describe_image, detect_image, extract_image
from steerers import Group, Keypoints, Steerer, _weights
from steerers._weights import WeightsError
from steerers.accel.networks.compact import FastCompact
from steerers.accel.networks.dedode import FastDedodeDescriptor, FastDedodeDetector
from steerers.matching.fingerprints import fingerprint
from steerers.models import dedode, downloads, parts, zoo
from steerers.models.base import Combined, SingleDescriptor, SingleExtractor
from steerers.models.compact import Compact
from steerers.models.dedode import DedodeDescriptor, DedodeDetector
from steerers.models.downloads import WeightFile
from steerers.models.frozen import SuperPointNetwork
from steerers.models.parts import Part
from steerers.models.sampling import KeypointSampling
from steerers.models.zoo import DETECTORS, SHIPPED, ZOO, Entry, find, locate, make_zoo, with_detector

DEDODE_B = {"dedode-b", "dedode-b-c4", "dedode-b-c4-perm", "dedode-b-so2-spread", "dedode-b-so2-spread-b"}
DEDODE_G = {"dedode-g", "dedode-g-c4-perm", "dedode-g-so2-spread"}
FROZEN = {"disk", "aliked-n16", "aliked-n16rot", "aliked-t16", "aliked-n32", "xfeat", "superpoint"}
PUBLISHED = {file.name: file for entry in ZOO.values() for file in entry.weights} | {
    file.name: file for entry in DETECTORS.values() for file in entry.part.weights
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of DeDoDe and SuperPoint under official names; one file stands for several."""
    folder = tmp_path_factory.mktemp("store")
    networks = {"detector": DedodeDetector("L"), "descriptor": DedodeDescriptor("B"), "superpoint": SuperPointNetwork()}
    for name, network in networks.items():
        torch.save(network.state_dict(), folder / name)
    for name in PUBLISHED:
        if name.startswith("dedode_detector"):
            os.link(folder / "detector", folder / name)
        elif name.startswith(("dedode_descriptor_B", "B_")) and "steerer" not in name:
            os.link(folder / "descriptor", folder / name)
    os.link(folder / "superpoint", folder / "superpoint_v1.pth")
    generator = torch.Generator().manual_seed(0)
    for name in ("B_C4_steerer_setting_A.pth", "B_SO2_Spread_steerer_setting_B.pth"):
        torch.save(torch.randn(256, 256, generator=generator) / 16, folder / name)
    return folder


@pytest.fixture(scope="module")
def kornia_store(store: Path) -> Path:
    pytest.importorskip("kornia")
    for name, network in (("xfeat", parts.frozen_network("xfeat")), ("disk", parts.frozen_network("disk"))):
        torch.save(network.network.state_dict(), store / find(name).weights[0].name)
    return store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and no way out to the network."""
    folder = tmp_path / "home"
    monkeypatch.setenv("STEERERS_HOME", str(folder))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", _no_network)
    return folder


def _no_network(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "no network in tests")


def picture(height: int = 96, width: int = 96) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(1, 3, height // 8, width // 8, generator=generator)
    return nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)[0]


def stored(store: Path, entry: Entry) -> list[Path]:
    return [store / file.name for file in entry.weights]


# The tables -----------------------------------------------------------------------------------------------------------


def test_the_zoo_has_the_models_of_the_paper_and_the_frozen_ones() -> None:
    assert set(ZOO) >= {"upright-sift", "sift", "orb"} | DEDODE_B | DEDODE_G | FROZEN
    assert set(DETECTORS) == {"dedode-l", "dedode-l-v2", "dedode-l-c4", "dedode-l-so2"}
    assert not set(ZOO) & set(DETECTORS)


@pytest.mark.parametrize("entry", ZOO.values(), ids=ZOO)
def test_entries_are_whole(entry: Entry) -> None:
    assert ZOO[entry.name] is entry
    assert (entry.group is None) == (entry.steerer is None)
    assert entry.licence
    assert entry.summary
    assert (entry.name in DEDODE_B | DEDODE_G) == (entry.detector is not None)
    expected = {None: "dual-softmax", Group(4): "max-matches", Group(None): "max-similarity"}[entry.group]
    if entry.name in ("disk-so2", "xfeat-so2", "upright-sift-so2"):  # max-similarity fails there: docs/results.md
        expected = "max-matches"
    assert (entry.strategy or zoo.suitable_strategy(entry.group)) == expected


@pytest.mark.parametrize("file", PUBLISHED.values(), ids=PUBLISHED)
def test_published_files(file: WeightFile) -> None:
    assert all(url.startswith("https://") and url.endswith(f"/{file.name}") for url in file.urls)
    assert file.size is not None
    assert file.licence
    assert (file.name == "superpoint_v1.pth") == (not file.urls) == bool(file.note)
    if "huggingface.co/kornia/dedode" in "".join(file.urls):  # the checksums are those of the mirror
        assert ("huggingface" in file.urls[0]) == (file.sha256 is not None)


@pytest.mark.parametrize(
    ("name", "detector", "files"),
    [
        ("dedode-b", "dedode-l", ["dedode_descriptor_B"]),
        ("dedode-b-c4", "dedode-l-c4", ["dedode_descriptor_B", "B_C4_steerer_setting_A"]),
        ("dedode-b-c4-perm", "dedode-l-c4", ["B_C4_Perm_descriptor_setting_C"]),
        ("dedode-b-so2-spread", "dedode-l-so2", ["B_SO2_Spread_descriptor_setting_C"]),
        (
            "dedode-b-so2-spread-b",
            "dedode-l-so2",
            ["B_SO2_Spread_descriptor_setting_B", "B_SO2_Spread_steerer_setting_B"],
        ),
        ("dedode-g", "dedode-l", ["dedode_descriptor_G", "dinov2_vitl14_pretrain"]),
        ("dedode-g-c4-perm", "dedode-l-c4", ["G_C4_Perm_descriptor_setting_C", "dinov2_vitl14_pretrain"]),
        ("dedode-g-so2-spread", "dedode-l-so2", ["G_SO2_Spread_descriptor_setting_C", "dinov2_vitl14_pretrain"]),
    ],
)
def test_dedode_goes_with_its_detector_and_steerer(name: str, detector: str, files: list[str]) -> None:
    entry = ZOO[name]
    assert entry.detector is DETECTORS[detector].part
    assert [file.name for file in entry.weights] == [DETECTORS[detector].part.weights[0].name] + [
        f"{stem}.pth" for stem in files
    ]


@given(angle=st.floats(-7, 7))
def test_spread_is_the_official_matrix(angle: float) -> None:
    part = ZOO["dedode-b-so2-spread"].steerer
    assert part is not None
    steerer = part.build({})
    blocks = [torch.zeros(40, 40)]
    blocks += [torch.tensor([[0.0, j], [-j, 0.0]]) for j in range(1, 7) for _ in range(18)]
    official = torch.block_diag(*blocks).double()
    torch.testing.assert_close(steerer.matrix(angle), torch.matrix_exp(angle * official), atol=1e-9, rtol=0)
    torch.testing.assert_close(steerer.generator(), official)


# DeDoDe ---------------------------------------------------------------------------------------------------------------


def test_dedode_b_is_downloaded_once(store: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"

    def serve(part: Part[Any]) -> Part[Any]:
        """The same, with its file published in a folder."""
        (file,) = part.weights
        path = Path(shutil.copy(store / file.name, served))
        changed = replace(file, urls=(path.as_uri(),), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        return replace(part, weights=(changed,))

    served.mkdir()
    entry = find("dedode-b")
    assert entry.detector is not None
    changed = replace(entry, descriptor=serve(entry.descriptor), detector=serve(entry.detector))
    monkeypatch.setitem(ZOO, "dedode-b", changed)
    matcher = steerers.load("dedode-b", num_keypoints=64, fast=False)
    assert sorted(path.name for path in home.iterdir() if not path.name.startswith(".")) == [
        "dedode_descriptor_B.pth",
        "dedode_detector_L.pth",
    ]
    assert matcher.model.steerer is None
    assert (matcher.strategy.name, matcher.strategy.options.inverse_temperature) == ("dual-softmax", 20.0)
    assert matcher.strategy.options.threshold == 0.01
    features = matcher.extract(picture())
    assert features.descriptions.shape == (64, 256)
    assert features.model == "dedode-b"
    expected = torch.load(store / "descriptor", weights_only=True)
    actual = matcher.model.extractor.descriptor.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(actual[key], value) for key, value in expected.items())
    shutil.rmtree(served)
    locate(find("dedode-b"))  # from the cache


def test_offline_the_files_their_addresses_and_the_folder_are_named(home: Path) -> None:
    with pytest.raises(WeightsError) as error:
        steerers.load("dedode-b-c4")
    message = str(error.value)
    for file in find("dedode-b-c4").weights:
        assert file.name in message
        assert all(url in message for url in file.urls)
    assert str(home) in message
    assert "--weights FILE" in message


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("dedode-b-c4", "max-matches"),
        ("dedode-b-so2-spread-b", "max-similarity"),
        ("dedode-b-c4-perm", "max-matches"),
        ("dedode-b-so2-spread", "max-similarity"),
    ],
)
def test_steerers_are_the_published_matrices_or_fixed(store: Path, name: str, strategy: str) -> None:
    entry = find(name)
    matcher = steerers.load(name, weights=stored(store, entry), num_keypoints=32)
    steerer = matcher.model.steerer
    assert steerer is not None
    assert steerer.group == entry.group
    assert entry.steerer is not None
    if entry.steerer.weights:
        assert torch.equal(steerer.generator(), torch.load(store / entry.weights[-1].name, weights_only=True))
    else:
        assert steerer.orthogonal
    found = matcher(picture(), picture())
    assert (found.model, found.strategy) == (name, strategy)


def test_dedode_g_has_its_backbone(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kornia")
    seen: list[list[str]] = []

    def backbone(state: dict[str, Tensor]) -> nn.Module:
        seen.append(sorted(state))
        return nn.Conv2d(3, 1024, dedode.PATCH, stride=dedode.PATCH)

    monkeypatch.setattr(dedode, "dinov2_backbone", backbone)
    files = [
        store / "dedode_detector_C4.pth",
        tmp_path / "G_C4_Perm_descriptor_setting_C.pth",
        tmp_path / "dinov2_vitl14_pretrain.pth",
    ]
    torch.save(DedodeDescriptor("G").state_dict(), files[1])
    torch.save({"pos_embed": torch.zeros(1, 2, 3)}, files[2])
    matcher = steerers.load("dedode-g-c4-perm", weights=files, num_keypoints=16)
    assert seen == [["pos_embed"]]
    assert matcher.extract(picture()).descriptions.shape == (16, 256)


def test_a_wrong_dinov2_is_refused_with_its_path(tmp_path: Path) -> None:
    pytest.importorskip("kornia")
    path = tmp_path / "dinov2_vitl14_pretrain.pth"
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(WeightsError, match=rf"{path.name}: state_dict is not that of a DINOv2"):
        find("dedode-g").descriptor.build({path.name: path})


def test_weights_of_something_else_are_refused(store: Path, tmp_path: Path) -> None:
    detector, descriptor = tmp_path / "dedode_detector_L.pth", tmp_path / "dedode_descriptor_B.pth"
    os.link(store / "detector", descriptor)
    os.link(store / "detector", detector)
    with pytest.raises(
        WeightsError, match=r"dedode_descriptor_B.pth: not the weights of DeDoDe descriptor B: \d+ names"
    ):
        steerers.load("dedode-b", weights=[detector, descriptor])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.eye(128), r"descriptions of length 256, but its steerer acts on length 128"),
        (torch.zeros(256, 3), "not a square matrix"),
        (torch.full((256, 256), math.nan), "NaN"),
        (torch.zeros(256, 256, dtype=torch.long), "floating-point"),
        ({"a": torch.eye(2), "b": torch.eye(2)}, "not a steerer: a state dict of 2 tensors"),
    ],
)
def test_a_steerer_that_does_not_fit_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    path = tmp_path / "B_C4_steerer_setting_A.pth"
    torch.save(content, path)
    entry = replace(find("dedode-b-c4"), descriptor=Part(lambda _: DedodeLike()), detector=None)
    with pytest.raises(ValueError, match=message):
        entry.build({path.name: path})


class DedodeLike(SingleExtractor):
    dim = 256

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        raise NotImplementedError

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        raise NotImplementedError


# Weights that the user gives ------------------------------------------------------------------------------------------


def test_where_one_file_is_needed_any_name_will_do(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.bin"
    os.link(store / "superpoint", path)
    assert locate(find("superpoint"), [path]) == {"superpoint_v1.pth": path}
    for given_weights in (path, str(path), [path]):
        model = steerers.load("superpoint", weights=given_weights).model
        assert (model.name, model.extractor.dim) == ("superpoint", 256)


def test_several_files_are_told_apart_by_their_names(store: Path, tmp_path: Path, home: Path) -> None:
    entry = find("dedode-b-c4")
    paths = stored(store, entry)
    assert locate(entry, paths[::-1]) == {path.name: path for path in paths}
    other_ending = tmp_path / "B_C4_steerer_setting_A.safetensors"
    save_file({"generator": torch.eye(256)}, other_ending)
    assert locate(entry, [*paths[:2], other_ending])["B_C4_steerer_setting_A.pth"] == other_ending
    home.mkdir()
    os.link(paths[2], home / paths[2].name)
    assert locate(entry, paths[:2])[paths[2].name] == home / paths[2].name  # what is not given is in the cache


def test_given_files_are_asked_for_no_checksum_but_cached_ones_are(store: Path, home: Path) -> None:
    home.mkdir()
    os.link(store / "superpoint", home / "superpoint_v1.pth")
    with pytest.raises(WeightsError, match="is damaged or not the published file"):
        steerers.load("superpoint")
    assert steerers.load("superpoint", weights=home / "superpoint_v1.pth").model.name == "superpoint"


@pytest.mark.parametrize(
    ("name", "given_names", "message"),
    [
        ("sift", ["a.pth"], "a.pth is none of the weights of model 'sift', which needs no weights"),
        ("superpoint", ["missing.pth"], "missing.pth: no such file"),
        ("dedode-b", ["a.pth"], "which needs dedode_detector_L.pth, dedode_descriptor_B.pth"),
        ("dedode-b-so2-spread-b", ["B_C4_steerer_setting_A.pth"], "which needs .*B_SO2_Spread_steerer_setting_B.pth"),
        ("superpoint", ["a.pth", "a.pth"], "which needs superpoint_v1.pth"),
        ("dedode-b", ["dedode_detector_L.pth", "dedode_detector_L.pt"], "are both given as dedode_detector_L.pth"),
    ],
)
def test_given_files_that_do_not_fit(tmp_path: Path, name: str, given_names: list[str], message: str) -> None:
    paths = [tmp_path / given_name for given_name in given_names]
    for path in paths:
        if path.name != "missing.pth":
            path.write_bytes(b"")
    with pytest.raises(WeightsError, match=message):
        steerers.load(name, weights=paths)


def test_superpoint_is_never_downloaded_and_its_licence_is_told(
    store: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(WeightsError, match=r"cannot be downloaded.*non-commercial") as error:
        steerers.load("superpoint")
    assert str(home) in str(error.value)
    steerers.load("superpoint", weights=store / "superpoint_v1.pth")
    assert "non-commercial research use only" in caplog.text


# Frozen networks, detectors of others ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FROZEN - {"superpoint"}))
def test_frozen_models_have_the_dimension_that_is_listed(name: str, tmp_path: Path) -> None:
    pytest.importorskip("kornia")
    path = tmp_path / "_weights.pth"
    torch.save(parts.frozen_network(name).network.state_dict(), path)
    matcher = steerers.load(name, weights=path)
    assert matcher.model.extractor.dim == find(name).dim
    assert (matcher.model.name, matcher.strategy.name) == (name, "dual-softmax")


def test_keypoints_of_one_model_described_by_another(kornia_store: Path) -> None:
    files = [kornia_store / "superpoint_v1.pth", kornia_store / "xfeat.pt"]
    both = steerers.load("xfeat", detector="superpoint", weights=files, num_keypoints=20)
    superpoint = steerers.load("superpoint", weights=files[0], num_keypoints=20)
    xfeat = steerers.load("xfeat", weights=files[1]).model.extractor
    features, image = both.extract(picture()), picture()
    assert features.model == "xfeat@superpoint"
    assert len(features) > 5
    assert torch.equal(features.keypoints, superpoint.extract(image).keypoints)
    described = describe_image(xfeat, image, Keypoints(features.keypoints, features.scores))
    torch.testing.assert_close(features.descriptions, described)
    with pytest.raises(ValueError, match="cannot be matched by 'xfeat@superpoint'"):
        both.match(superpoint.extract(image), features)


def test_dedode_with_another_detector_does_not_need_its_own(store: Path) -> None:
    v2 = with_detector(find("dedode-b"), "dedode-l-v2")
    assert [file.name for file in v2.weights] == ["dedode_detector_L_v2.pth", "dedode_descriptor_B.pth"]
    matcher = steerers.load("dedode-b", detector="dedode-l-v2", weights=stored(store, v2), num_keypoints=10)
    assert isinstance(matcher.model.extractor, Combined)
    assert isinstance(matcher.model.extractor.detector, FastDedodeDetector)
    assert matcher.extract(picture()).model == "dedode-b@dedode-l-v2"
    assert [file.name for file in with_detector(find("dedode-b"), "upright-sift").weights] == [
        "dedode_descriptor_B.pth"
    ]


def test_a_model_stands_for_its_detector() -> None:
    assert with_detector(find("disk"), "dedode-b-c4").detector is DETECTORS["dedode-l-c4"].part
    superpoint: object = find("superpoint").descriptor
    assert with_detector(find("disk"), "superpoint").detector is superpoint
    for name, own in (("dedode-b", "dedode-l"), ("dedode-b", "dedode-g"), ("disk", "disk"), ("sift", "sift")):
        assert with_detector(find(name), own) is find(name)
    with pytest.raises(ValueError, match=r"unknown detector 'no-such'; use dedode-l, .* a model: compact"):
        steerers.load("disk", detector="no-such")


def test_a_steerer_stays_with_another_detector() -> None:
    matcher = steerers.load("upright-sift", detector="orb", num_keypoints=50)
    assert matcher.model.steerer is not None
    image = picture(160, 200)
    m = matcher(image, image.rot90(1, dims=(1, 2)))
    assert m.model == "upright-sift@orb"
    assert m.angle == 90.0


def test_what_is_fitted_to_descriptions_stays_with_another_detector() -> None:
    """Its file names the model that it was fitted to, whose descriptions these still are."""
    entry = with_detector(find("compact"), "orb")
    assert (entry.name, entry.fitted_to) == (f"{find('compact').name}@orb", find("compact").fitted_to)
    assert steerers.load("compact", detector="orb", num_keypoints=50).model.mirror is not None


def test_a_descriptor_that_needs_orientations_says_so(store: Path) -> None:
    matcher = steerers.load("sift", detector="superpoint", weights=store / "superpoint_v1.pth")
    with pytest.raises(ValueError, match="orientation"):
        matcher.extract(picture())


def test_no_download_where_another_file_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    fetch = downloads.fetch

    def counting(file: WeightFile) -> Path:
        asked.append(file.name)
        return fetch(file)

    monkeypatch.setattr(downloads, "fetch", counting)
    with pytest.raises(WeightsError, match=r"Model 'disk@superpoint' also needs depth-save.pth \(https://"):
        locate(with_detector(find("disk"), "superpoint"))
    assert asked == ["superpoint_v1.pth"]


@pytest.mark.parametrize(("name", "extra"), [("disk", "kornia"), ("dedode-g", "dinov2")])
def test_a_missing_extra_is_named_before_any_download(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(ImportError, match=rf"model '{name}' needs kornia: pip install \"steerers\[{extra}\]\""):
        steerers.load(name)


def test_an_entry_without_a_detector_is_refused() -> None:
    class Blind(SingleDescriptor):
        dim = 2

        def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
            raise NotImplementedError

    entry = Entry("blind", "", 2, None, "", Part(lambda _: Blind()))
    with pytest.raises(TypeError, match="model 'blind' needs a detector: Blind finds no keypoints"):
        entry.build({})


# Steerers of the package ----------------------------------------------------------------------------------------------


def ship(folder: Path, name: str, steerer: Steerer, monkeypatch: pytest.MonkeyPatch, **metadata: str) -> None:
    steerer.save(folder / f"{name}.safetensors", metadata)
    monkeypatch.setattr(zoo, "ZOO", make_zoo(folder))


def test_steerers_are_small_and_listed_as_far_as_they_ship(tmp_path: Path) -> None:
    assert sum(path.stat().st_size for path in SHIPPED.glob("*.safetensors")) < 1_000_000
    assert {"superpoint-c4", "disk-so2"} & set(make_zoo(tmp_path)) == set()
    shipped = {path.stem for path in SHIPPED.glob("*.safetensors")}
    assert set(ZOO) - set(make_zoo(tmp_path)) == shipped
    assert shipped <= {f"{base}-{group}" for base in (*FROZEN, "upright-sift") for group in ("c4", "so2")}


@pytest.mark.parametrize(
    ("group", "steerer", "strategy"),
    [
        ("c4", Steerer.perm(256), "max-matches"),
        ("so2", Steerer.random(256, "SO2", generator=torch.Generator().manual_seed(0)), "max-similarity"),
    ],
)
def test_a_shipped_steerer_makes_a_model(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, steerer: Steerer, strategy: str
) -> None:
    name = f"superpoint-{group}"
    ship(tmp_path, name, steerer, monkeypatch, model="superpoint")
    assert list(zoo.ZOO).index(name) == list(zoo.ZOO).index("superpoint") + 1
    matcher = steerers.load(name, weights=store / "superpoint_v1.pth", num_keypoints=30)
    assert (matcher.model.name, matcher.strategy.name) == (name, strategy)
    assert matcher.model.steerer is not None
    assert not any(parameter.requires_grad for parameter in matcher.model.steerer.parameters())
    torch.testing.assert_close(matcher.model.steerer.generator(), steerer.generator().detach())
    assert matcher(picture(), picture()).model == name
    assert with_detector(find(name), "superpoint") is find(name)  # whose network then runs once


@pytest.mark.parametrize(
    ("steerer", "metadata", "message"),
    [
        (Steerer.perm(128), {}, "descriptions of length 256, but its steerer acts on length 128"),
        (Steerer.perm(256, "C8"), {}, "model 'superpoint-c4' needs a steerer for C4, got one for C8"),
        (Steerer.perm(256), {"model": "disk"}, "a steerer for model 'disk', not for 'superpoint'"),
    ],
)
def test_a_shipped_steerer_that_does_not_fit_is_refused(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steerer: Steerer,
    metadata: dict[str, str],
    message: str,
) -> None:
    ship(tmp_path, "superpoint-c4", steerer, monkeypatch, **metadata)
    with pytest.raises(ValueError, match=message):
        steerers.load("superpoint-c4", weights=store / "superpoint_v1.pth")


# What the user chooses ------------------------------------------------------------------------------------------------


def test_a_steerer_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    Steerer.random(128, "SO2", generator=torch.Generator().manual_seed(0)).save(path, {"model": "upright-sift"})
    matcher = steerers.load("upright-sift", steerer=path)
    assert matcher.strategy.name == "max-similarity"
    assert matcher.model.steerer is not None
    assert matcher.model.steerer.group == Group(None)
    assert steerers.load("upright-sift").model.steerer.group == Group(4)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="a steerer for model 'upright-sift', not for 'sift'"):
        steerers.load("sift", steerer=path)
    _weights.save(tmp_path / "none.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(WeightsError, match="does not hold a steerer"):
        steerers.load("upright-sift", steerer=tmp_path / "none.safetensors")
    Steerer.perm(64).save(tmp_path / "short.safetensors")
    with pytest.raises(ValueError, match="descriptions of length 128, but its steerer acts on length 64"):
        steerers.load("upright-sift", steerer=tmp_path / "short.safetensors")
    with pytest.raises((OSError, ValueError), match=r"missing\.safetensors"):
        steerers.load("upright-sift", steerer=tmp_path / "missing.safetensors")


def test_a_published_steerer_of_ones_own(tmp_path: Path) -> None:
    """A matrix in a .pth, whose name says the group."""
    matrix = Steerer.perm(128).generator().float()
    torch.save({"steerer.weight": matrix}, tmp_path / "mine_C4.pth")
    matcher = steerers.load("sift", steerer=tmp_path / "mine_C4.pth")
    assert (matcher.strategy.name, str(matcher.model.steerer.group)) == ("max-matches", "C4")  # type: ignore[union-attr]
    assert torch.equal(matcher.model.steerer.generator(), matrix)  # type: ignore[union-attr]
    torch.save(matrix, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"mine\.pth: a matrix that does not say of which group"):
        steerers.load("sift", steerer=tmp_path / "mine.pth")
    torch.save(torch.eye(64), tmp_path / "short_C4.pth")
    with pytest.raises(ValueError, match="descriptions of length 128, but its steerer acts on length 64"):
        steerers.load("sift", steerer=tmp_path / "short_C4.pth")


@pytest.mark.parametrize("fast", [True, False])
def test_precision_and_sampling_reach_the_networks(store: Path, fast: bool) -> None:
    files = stored(store, find("dedode-b"))
    sampling = KeypointSampling(coverage=False, nms_size=3, subpixel=True, border=4)
    matcher = steerers.load(
        "dedode-b", weights=files, precision="bfloat16", sampling=sampling, num_keypoints=30, fast=fast
    )
    kinds = (FastDedodeDetector, FastDedodeDescriptor) if fast else (DedodeDetector, DedodeDescriptor)
    networks: list[Any] = [module for module in matcher.model.extractor.modules() if isinstance(module, kinds)]
    assert [network.dtype for network in networks] == [torch.bfloat16] * 2
    features = matcher.extract(picture())
    assert features.descriptions.dtype == torch.float32
    assert float(features.keypoints.min()) >= 3.5
    plain = steerers.load("dedode-b", weights=files, num_keypoints=30, fast=fast).extract(picture())
    assert not torch.equal(plain.keypoints, features.keypoints)


def test_the_fast_form_finds_the_same(store: Path) -> None:
    files = stored(store, find("dedode-b-c4-perm"))
    for name, weights_given in (("dedode-b-c4-perm", files), ("compact", [])):
        fast, plain = (
            steerers.load(name, weights=weights_given, num_keypoints=40, fast=fast).extract(picture(90, 104))
            for fast in (True, False)
        )
        torch.testing.assert_close(fast.keypoints, plain.keypoints, atol=1e-4, rtol=0)
        torch.testing.assert_close(fast.descriptions, plain.descriptions, atol=1e-4, rtol=1e-4)


def test_the_compact_network_in_half_precision() -> None:
    half, full = (steerers.load("compact", precision=name, num_keypoints=50) for name in ("float16", "float32"))
    assert any(isinstance(module, FastCompact) for module in half.model.extractor.modules())
    assert not any(isinstance(module, Compact) for module in half.model.extractor.modules())
    keypoints, descriptions = extract_image(full.model.extractor, picture(), num_keypoints=50)
    described = describe_image(half.model.extractor, picture(), keypoints)
    assert described.dtype == torch.float32
    assert nn.functional.cosine_similarity(described, descriptions).min() > 0.999
    with pytest.raises(
        ValueError, match="model 'compact-6' without its fast form runs in float32 only, not in bfloat16"
    ):
        steerers.load("compact", precision="bfloat16", fast=False)


def test_configuring_for_speed_leaves_the_model_as_it_is(store: Path) -> None:
    sampling = KeypointSampling(coverage=False, nms_size=3)
    model = zoo.build("dedode-b", weights=stored(store, find("dedode-b")))
    configured = zoo.configure(model, "bfloat16", sampling)
    before, after = (
        next(m for m in extractor.modules() if isinstance(m, DedodeDetector | FastDedodeDetector))
        for extractor in (model.extractor, configured.extractor)
    )
    assert (before.sampling, before.dtype) == (KeypointSampling(), torch.float32)
    assert (after.sampling, after.dtype) == (sampling, torch.bfloat16)


@pytest.mark.parametrize("options", [{}, {"precision": "bfloat16"}, {"fast": False}])
def test_a_model_is_configured_once(options: dict[str, Any]) -> None:
    model = zoo.configure(zoo.build("compact"))
    with pytest.raises(
        ValueError, match="model 'compact-6' is already configured: its networks are in their fast form"
    ):
        zoo.configure(model, **options)


def test_fast_networks_among_others() -> None:
    """The compact network as the detector of another model, which has no fast form."""
    plain = zoo.build("upright-sift", detector="compact")
    fast, image = zoo.configure(plain), picture(120, 136)
    assert isinstance(fast.extractor, Combined)
    assert any(isinstance(module, FastCompact) for module in fast.extractor.modules())
    assert any(isinstance(module, Compact) for module in plain.extractor.modules())
    found, expected = (detect_image(model.extractor, image, num_keypoints=30) for model in (fast, plain))
    torch.testing.assert_close(found.xy, expected.xy, atol=1e-4, rtol=0)


def test_on_a_cpu_the_plain_compact_network_stays() -> None:
    """It is as fast there; a network of DeDoDe beside it, or half precision, is exchanged all the same."""
    cpu, plain = torch.device("cpu"), zoo.build("compact")
    assert zoo.configure(plain, device=cpu) is plain
    assert zoo.configure(plain, device=torch.device("cuda")) is not plain
    assert zoo.configure(plain, "float16", device=cpu) is not plain


def test_fingerprints_tell_fast_networks_apart() -> None:
    prints = [
        fingerprint(zoo.configure(zoo.build("compact"), precision, fast=fast).extractor)
        for precision, fast in (("float32", True), ("float32", True), ("bfloat16", True), ("float32", False))
    ]
    assert prints[0] == prints[1]  # so that what was predicted before is found again
    assert len(set(prints)) == 3
    network = steerers.load("compact").model.extractor
    next(network.parameters()).data[0] += 1
    assert fingerprint(network) not in prints


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "float8"}, "unknown precision 'float8'; use one of float32, bfloat16, float16"),
        ({"precision": "float16"}, "model 'sift' runs in float32 only, not in float16"),
        ({"sampling": KeypointSampling(border=4)}, "model 'sift' has no choice of how its keypoints are sampled"),
    ],
)
def test_choices_that_a_model_does_not_have(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steerers.load("sift", **options)  # type: ignore[arg-type]


def test_an_unknown_strategy_costs_no_download() -> None:
    with pytest.raises(ValueError, match="unknown strategy 'nonsense'"):
        steerers.load("dedode-b", strategy="nonsense")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.safetensors")), ids=lambda path: path.stem)
def test_shipped_steerers_are_sound(path: Path) -> None:
    """They load, belong to their model, and say how they were made."""
    entry = find(path.stem)
    assert entry.steerer is not None
    steerer = entry.steerer.build({})
    assert (steerer.dim, steerer.group) == (entry.dim, entry.group)
    _, metadata = _weights.load(path)
    assert metadata["setting"] == "A"
    assert float(metadata["accuracy"]) > float(metadata["accuracy.unsteered"]) + 0.2
    assert not any("/" in value for value in metadata.values())  # no paths of the machine that made them


def test_a_steerer_serves_every_model_of_the_same_descriptions(tmp_path: Path) -> None:
    Steerer.perm(128).save(tmp_path / "mine.safetensors", {"model": "upright-sift"})
    assert find("upright-sift-so2").fitted_to == "upright-sift"
    matcher = steerers.load("upright-sift-so2", steerer=tmp_path / "mine.safetensors")
    assert matcher.model.steerer is not None
    assert matcher.model.steerer.group == Group(4)


def test_aliases_lead_to_models() -> None:
    assert all(find(alias) is ZOO[name] for alias, name in zoo.ALIASES.items())

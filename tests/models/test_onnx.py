"""The compact network as ONNX: onnxruntime finds what PyTorch finds at any size, and the file says how to match."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import EXAMPLES, extract_image, randn
from steerers import Steerer, __version__
from steerers.images.load import to_uint8
from steerers.matching.strategies import make_strategy
from steerers.models import onnx as export
from steerers.models.classical import UprightSift
from steerers.models.compact import Compact, CompactConfig, Pyramid
from steerers.models.sampling import KeypointSampling
from steerers.models.zoo import Model

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = EXAMPLES.parent
CONFIG = CompactConfig(channels=(4, 6, 8), blocks=(1, 1), dim=12, hidden=10)
COUNT = 150


def small_model(seed: int = 0, sampling: KeypointSampling | None = None, config: CompactConfig = CONFIG) -> Model:
    """An untrained network whose normalisations have something to fold."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Compact(config) if sampling is None else Compact(config, sampling)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                module.running_mean.normal_(std=0.1)
    steerer = Steerer.from_spec("2x0 + 3x1 + 2x-3", "SO2")
    return Model("small", network.eval(), steerer, "max-similarity", order=6, inverse_temperature=30.0, threshold=0.1)


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    noise = torch.rand(1, 3, height // 3 + 1, width // 3 + 1, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size=(height, width), mode="bicubic")[0].clamp(0, 1)


@pytest.fixture(scope="module")
def any_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "compact.onnx"
    assert export.export_onnx(small_model(), path, num_keypoints=COUNT, metadata={"licence": "MIT"}).close
    return path


def run(path: Path, images: Tensor) -> list[Any]:
    session = onnxruntime.InferenceSession(path)
    return list(session.run(list(export.OUTPUTS), {export.INPUT: images.numpy()}))


def assert_same(model: Model, image: Tensor, keypoints: Any, scores: Any, descriptions: Any) -> int:
    """The rows of one image are what the network extracts, filled up with scores of -1; how many are not filling."""
    with torch.no_grad():
        found, described = extract_image(model.extractor, image, num_keypoints=COUNT)
    n = len(found)
    assert keypoints.shape == (COUNT, 2)
    assert (scores[:n] > 0).all()
    assert (scores[n:] == -1).all()
    np.testing.assert_allclose(keypoints[:n], found.xy.numpy(), atol=1e-3)
    np.testing.assert_allclose(scores[:n], found.scores.numpy(), rtol=1e-4)
    np.testing.assert_allclose(descriptions[:n], described.numpy(), atol=1e-4)
    assert np.isfinite(descriptions).all()
    return n


# What is found --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(117, 150), (64, 80), (33, 130), (13, 11), (9, 9), (6, 40), (1, 1)])
def test_any_size(any_size: Path, height: int, width: int) -> None:
    image = picture(height, width)
    n = assert_same(small_model(), image, *(output[0] for output in run(any_size, image[None])))
    assert (n > 0) == (min(height, width) > 30)  # the border takes the rest


def test_a_network_with_all_options(tmp_path: Path) -> None:
    config = CompactConfig((4, 6, 8, 8), (1, 1, 1), 12, 10, context=1, antialias=2, fine=1, spread=0.6)
    model = small_model(config=config)
    export.export_onnx(model, tmp_path / "full.onnx", num_keypoints=COUNT)
    for size in ((117, 150), (61, 83), (33, 130)):
        image = picture(*size)
        assert assert_same(model, image, *(output[0] for output in run(tmp_path / "full.onnx", image[None]))) > 20


def test_logits_farther_apart_than_exponentials_tell(tmp_path: Path) -> None:
    """An exporter may leave out that a small number is added, so that logarithms of nothing were infinite."""
    model = small_model(config=CompactConfig((4, 6, 8, 8), (1, 1, 1), 12, 10, spread=0.6))
    model.extractor.trunk.head[2].weight.data *= 2000  # type: ignore[union-attr, index, operator]
    image = picture(117, 150)
    logits = model.extractor.logits(image[None])  # type: ignore[operator]
    assert float(logits.detach().amax() - logits.detach().amin()) > 200
    export.export_onnx(model, tmp_path / "far.onnx", num_keypoints=COUNT)
    keypoints, scores, descriptions = (output[0] for output in run(tmp_path / "far.onnx", image[None]))
    with torch.no_grad():
        found, described = extract_image(model.extractor, image, num_keypoints=COUNT)
    np.testing.assert_allclose(keypoints[: len(found)], found.xy.numpy(), atol=1e-3)
    np.testing.assert_allclose(scores[: len(found)], found.scores.numpy(), atol=1e-4)
    np.testing.assert_allclose(descriptions[: len(found)], described.numpy(), atol=1e-3)


@pytest.mark.parametrize(("height", "width"), [(64, 80), (61, 83), (90, 47)])
def test_partly_blank_pictures(any_size: Path, height: int, width: int) -> None:
    image = picture(height, width)
    image[:, :, : width // 2] = 0.3
    keypoints, scores, descriptions = (output[0] for output in run(any_size, image[None]))
    n = assert_same(small_model(), image, keypoints, scores, descriptions)
    assert 0 < n < COUNT
    assert keypoints[:n, 0].min() > width // 2 - 20
    blank = torch.full_like(image, 0.3)
    assert assert_same(small_model(), blank, *(output[0] for output in run(any_size, blank[None]))) == 0


def test_a_batch(any_size: Path) -> None:
    images = torch.stack([picture(60, 70, seed) for seed in range(3)])
    outputs = run(any_size, images)
    for k, image in enumerate(images):
        assert_same(small_model(), image, *(output[k] for output in outputs))


def test_nothing_is_found_where_nothing_is_to_be_seen(any_size: Path) -> None:
    image = picture(72, 90)
    image[:, :, :50] = 0.25
    outputs = [output[0] for output in run(any_size, image[None])]
    assert assert_same(small_model(), image, *outputs) > 0
    assert (outputs[0][outputs[1] > 0, 0] > 39).all()
    assert (run(any_size, torch.full((1, 3, 40, 50), 0.5))[1] == -1).all()


def test_one_size_and_another_opset(tmp_path: Path) -> None:
    sampling = KeypointSampling(coverage=False)  # neither suppression nor sub-pixel positions nor a border
    model, path, image = small_model(sampling=sampling), tmp_path / "fixed.onnx", picture(50, 61)
    assert export.export_onnx(model, path, num_keypoints=COUNT, size=(61, 50), opset=18).close
    assert assert_same(model, image, *(output[0] for output in run(path, image[None]))) == COUNT
    written = onnx.load(path)
    assert [imported.version for imported in written.opset_import] == [18]
    assert shape(written.graph.input[0]) == [1, 3, 50, 61]
    with pytest.raises(Exception, match="invalid dimensions"):
        run(path, picture(50, 62)[None])


def test_the_model_stays_as_it_was(any_size: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.extractor.state_dict().items()}
    export.export_onnx(model, tmp_path / "again.onnx", num_keypoints=COUNT, size=(32, 32))
    after = model.extractor.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert capfd.readouterr() == ("", "")  # nor does the exporter talk


# The file -------------------------------------------------------------------------------------------------------------


def shape(value: Any) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_names_and_shapes(any_size: Path) -> None:
    graph = onnx.load(any_size).graph
    assert {value.name: shape(value) for value in graph.input} == {"image": ["batch", 3, "height", "width"]}
    assert {value.name: shape(value) for value in graph.output} == {
        "keypoints": ["batch", COUNT, 2],
        "scores": ["batch", COUNT],
        "descriptions": ["batch", COUNT, 12],
    }
    assert "BatchNormalization" not in {node.op_type for node in graph.node}


def test_metadata(any_size: Path) -> None:
    metadata = onnxruntime.InferenceSession(any_size).get_modelmeta().custom_metadata_map
    frequencies = json.loads(metadata.pop("steerer.frequencies"))
    assert frequencies == [0, 0, 1, 1, 1, 1, 1, 1, -3, -3, -3, -3]
    assert metadata == {
        "model": "small",
        "licence": "MIT",
        "steerers_version": __version__,
        "strategy": "max-similarity",
        "order": "6",
        "inverse_temperature": "30.0",
        "threshold": "0.1",
        "num_keypoints": str(COUNT),
        "steerer.group": "SO2",
        "steerer.dim": "12",
        "steerer.kind": "blocks",
        "steerer.spec": "2x0 + 3x1 + 2x-3",
    }


def test_metadata_of_other_models() -> None:
    network = small_model().extractor
    plain = export.matching_metadata(Model("plain", network))
    assert plain["strategy"] == "dual-softmax"
    assert not any(name.startswith("steerer.") or name == "order" for name in plain)
    learned = Model("learned", network, Steerer.random(12), "max-matches")
    told = export.matching_metadata(learned)
    assert (told["steerer.kind"], told["order"]) == ("learnable", "8")
    assert "steerer.frequencies" not in told
    continuous = Model("continuous", network, Steerer.freq1(12), "max-similarity", order=None)
    assert export.matching_metadata(continuous)["order"] == "continuous"


def test_a_graph_is_one_scale() -> None:
    model = small_model()
    assert export.matching_metadata(replace(model, extractor=Pyramid(model.extractor)))["model"] == "small-single"
    for name in ("compact", "compact-single"):
        assert export.graph_name(export.load_exportable(name)) == "compact-6-single"


def test_nothing_of_this_machine_is_in_the_file(any_size: Path) -> None:
    written = any_size.read_bytes()
    for trace in (b"compact.py", b"export.py", b"site-packages", str(ROOT).encode()):
        assert trace not in written


def test_the_code_in_the_documentation(any_size: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import PIL.Image

    image = to_uint8(picture(90, 120))
    for name in ("a.png", "b.png"):
        PIL.Image.fromarray(image).save(tmp_path / name)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8"), re.DOTALL)
    shutil.copy(any_size, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    model = small_model()
    with torch.no_grad():
        found, described = extract_image(
            model.extractor, torch.from_numpy(image).movedim(2, 0) / 255, num_keypoints=COUNT
        )
    np.testing.assert_allclose(names["keypoints0"], found.xy, atol=1e-3)
    np.testing.assert_allclose(names["descriptions0"], F.normalize(described), atol=1e-4)
    first = F.normalize(randn(60, 12, dtype=torch.float32))
    assert model.steerer is not None
    second = F.normalize(model.steerer.steer(first, 0.7) + 0.1 * randn(60, 12, seed=1, dtype=torch.float32)).flip(0)
    np.testing.assert_allclose(names["steer"](first.numpy(), 0.7), model.steerer.steer(first, 0.7), atol=1e-6)
    strategy = make_strategy("max-similarity", model.steerer, order=6, inverse_temperature=30.0, threshold=0.1)
    expected = strategy.match(first, second).indices
    assert len(expected) > 30
    assert {*map(tuple, names["match"](first.numpy(), second.numpy()).tolist())} == {*map(tuple, expected.tolist())}


# Refusals -------------------------------------------------------------------------------------------------------------


def test_a_graph_of_another_network_does_not_agree(any_size: Path) -> None:
    network = small_model(seed=1).extractor
    assert isinstance(network, Compact)
    assert not export.compare(any_size, network).close


def test_a_file_that_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "compare", lambda *_: export.Agreement(0.9, 1.0))
    with pytest.raises(ValueError, match=r"onnxruntime finds 90\.0 % of the keypoints"):
        export.export_onnx(small_model(), tmp_path / "wrong.onnx", num_keypoints=5, size=(32, 32))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Model("sift", UprightSift()), {}, "model 'sift' cannot be exported to ONNX"),
        (small_model(sampling=KeypointSampling()), {}, "by coverage, which is not exported"),
        (small_model(), {"num_keypoints": 0}, "num_keypoints must be at least 1, got 0"),
        (small_model(), {"size": (0, 5)}, r"size must be a positive width and height, got \(0, 5\)"),
        (small_model(), {"opset": 17}, "opset must be 18 to 23, got 17"),
    ],
)
def test_refusals(tmp_path: Path, model: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export.export_onnx(model, tmp_path / "x.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["sift", "dedode-b", "upright-sift-so2"])
def test_models_that_cannot_be_exported_are_refused_without_weights(name: str, elsewhere: Path) -> None:
    with pytest.raises(ValueError, match=f"model '{name}' cannot be exported to ONNX"):
        export.load_exportable(name)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else True)
    with pytest.raises(ImportError, match=r'needs onnxscript: pip install "steerers\[onnx\]"'):
        export.export_onnx(small_model(), tmp_path / "x.onnx")

"""``steerers export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import steerers
from helpers import assert_refused
from steerers.cli import main
from steerers.models import onnx

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_embedded_network(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "compact", "--num-keypoints", "300"]) == 0
    out, error = capsys.readouterr()
    assert "wrote compact.onnx (18." in out
    assert "compact-6-single, images of any size at one scale, 300 keypoints, opset 20" in out
    assert "compact-6 has several scales: run the file on each size of an image, see docs/onnx.md" in out
    assert "onnxruntime finds 100.0 % of PyTorch's keypoints; least cosine of descriptions 1.000000" in out
    assert error == ""
    session = onnxruntime.InferenceSession(elsewhere / "compact.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert (metadata["model"], metadata["licence"], metadata["order"]) == ("compact-6-single", "MIT", "16")
    noise = torch.rand(1, 3, 40, 50, generator=torch.Generator().manual_seed(0))
    image = F.interpolate(noise, size=(161, 207), mode="bicubic").clamp(0, 1)
    keypoints, scores, _ = session.run(None, {"image": image.numpy()})
    features = steerers.load("compact-single", num_keypoints=300).extract(image[0])  # a graph is one scale
    assert int((scores >= 0).sum()) == len(features)
    distance = torch.cdist(features.keypoints.double(), torch.from_numpy(keypoints[0]).double()).amin(dim=1)
    assert float((distance < 1e-3).double().mean()) > 0.99


def test_options_reach_the_exporter(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def pretend(model: Any, path: Path, **options: Any) -> onnx.Agreement:
        path.write_bytes(b"onnx")
        asked.update(options, model=model.name)
        return onnx.Agreement(1.0, 1.0)

    monkeypatch.setattr(onnx, "export_onnx", pretend)
    arguments = ["export", "compact", "-o", "x.onnx", "--num-keypoints", "7", "--size", "640x480", "--opset", "18"]
    assert main(arguments) == 0
    assert asked == {
        "model": "compact-6", "num_keypoints": 7, "size": (640, 480), "opset": 18, "metadata": {"licence": "MIT"}
    }  # fmt: skip
    assert (
        "wrote x.onnx (0.0 MB): compact-6-single, images of 640 x 480 pixels at one scale, 7 keypoints, opset 18"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sift"], "model 'sift' cannot be exported to ONNX: only the compact network can; use compact"),
        (["dedode-b"], "model 'dedode-b' cannot be exported to ONNX"),
        (["nothing"], "unknown model 'nothing'"),
        (["compact", "--out", "graph.pt"], "cannot write graph.pt: the file of a graph ends in .onnx"),
        (["compact", "--out", "missing/x.onnx"], "there is no folder missing"),
        (["compact", "--size", "640"], "'640' is not a width and height such as 640x480"),
        (["compact", "--opset", "7"], "opset must be 18 to 23, got 7"),
        (["compact", "--num-keypoints", "0"], "'0' is not a whole number of at least 1"),
        (["compact", "--num-keypoints", "1000000000000"], "num_keypoints must be at most 65536, got 1000000000000"),
        (["compact", "--size", "100000x100000"], "size must be at most 16.8 megapixels, got 100000 x 100000"),
    ],
)
def test_refusals(elsewhere: Path, arguments: list[str], message: str) -> None:
    assert_refused(["export", *arguments], message)
    assert not list(elsewhere.iterdir())

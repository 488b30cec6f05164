"""``steerers models``, and the options by which commands take weights and detectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from steerers.cli import main
from steerers.images.load import to_uint8
from steerers.models.frozen import SuperPointNetwork
from steerers.models.zoo import DETECTORS, ZOO


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("STEERERS_HOME", str(folder))
    return folder


@pytest.fixture
def superpoint(tmp_path: Path) -> Path:
    path = tmp_path / "superpoint_v1.pth"
    torch.save(SuperPointNetwork().state_dict(), path)
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    import PIL.Image

    noise: Tensor = torch.rand(1, 3, 12, 16, generator=torch.Generator().manual_seed(0))
    pixels = torch.nn.functional.interpolate(noise, size=(96, 128), mode="bicubic").clamp(0, 1)[0]
    path = tmp_path / "image.png"
    PIL.Image.fromarray(to_uint8(pixels)).save(path)
    return path


def table(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Lines of ``steerers models`` by their first word."""
    assert main(["models"]) == 0
    return {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}


def listing(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert main(["models", "--json"]) == 0
    return {model["name"]: model for model in json.loads(capsys.readouterr().out)["models"]}


# The list -------------------------------------------------------------------------------------------------------------


def test_every_model_and_detector_has_a_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(capsys)
    assert set(lines) == {"model", "detector", "Weights", *ZOO, *DETECTORS}
    assert str(home) in lines["Weights"]
    assert lines["upright-sift"].split()[1:6] == ["128", "C4", "-", "Apache-2.0", "embedded"]
    assert lines["compact-6"].split()[1:6] == ["256", "SO2", "-", "MIT", "embedded"]
    assert lines["compact-6"].endswith("(default), or compact")
    assert lines["dedode-b-c4-perm"].split()[1:5] == ["256", "C4", "113", "MB"]
    assert "missing: 113 MB to download" in lines["dedode-b"]
    assert "missing: 1352 MB to download" in lines["dedode-g"]
    assert "missing: by hand" in lines["superpoint"]
    assert "non-commercial" in lines["superpoint"]
    assert "missing: 58.5 MB to download" in lines["dedode-l-v2"]


def test_weights_that_are_here_are_told(home: Path, superpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    superpoint.rename(home / superpoint.name)
    (home / "dedode_detector_L.pth").write_bytes(bytes(1000))  # listings look at no checksum
    lines = table(capsys)
    assert "  here  " in lines["superpoint"]
    assert "  here  " in lines["dedode-l"]
    assert "missing: 54.3 MB to download" in lines["dedode-b"]


def test_json_says_where_every_file_is(home: Path, superpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listing(capsys)["superpoint"]
    superpoint.rename(home / superpoint.name)
    after = listing(capsys)["superpoint"]
    assert (before["status"], after["status"]) == ("missing: by hand", "here")
    (file,) = after["weights"]
    assert file["path"] == str(home / superpoint.name)
    assert after["bytes"] == file["bytes"] == (home / superpoint.name).stat().st_size
    models = listing(capsys)
    assert list(models) == list(ZOO)
    assert [name for name, model in models.items() if model["default"]] == ["compact-6"]
    assert (models["compact-6"]["also"], models["compact-1"]["also"]) == (["compact"], [])
    assert models["sift"]["group"] is None
    assert models["dedode-g-so2-spread"]["group"] == "SO2"
    assert [file["name"] for file in models["dedode-b-c4"]["weights"]] == [
        file.name for file in ZOO["dedode-b-c4"].weights
    ]


def test_json_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.json"
    assert main(["models", "--json", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert [entry["name"] for entry in json.loads(path.read_text())["detectors"]] == list(DETECTORS)
    assert main(["models", "--json", str(tmp_path / "no" / "models.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


# Weights and detectors of other commands ------------------------------------------------------------------------------


def test_match_takes_weights_and_a_detector(
    superpoint: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = ["match", str(image), str(image), "--model", "upright-sift", "--detector", "superpoint"]
    assert main([*command, "--weights", str(superpoint), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["model"] == "upright-sift@superpoint"
    assert "(upright-sift@superpoint, max-matches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "superpoint"], "superpoint_v1.pth (5.2 MB, licence non-commercial) is not in {home} and cannot"),
        (["--weights", "a.pth"], "a.pth is none of the weights of model 'compact-6', which needs no weights"),
        (["--model", "superpoint", "--weights", "a.pth", "--weights", "b.pth"], "which needs superpoint_v1.pth"),
        (["--detector", "no-such"], "unknown detector 'no-such'; use dedode-l,"),
    ],
)
def test_wrong_weights_and_detectors_end_with_one_line(
    image: Path, home: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["match", str(image), str(image), *arguments]) == 2
    error = capsys.readouterr().err
    assert message.format(home=home) in error
    assert error.count("\n") == 1

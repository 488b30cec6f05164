"""``steerers eval`` as users call it, on a sequence made from a photograph."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from steerers.cli import main
from steerers.geometry import rotation_about_centre, warp_image
from steerers.images import load_image, to_uint8

PHOTOGRAPH = Path(__file__).parents[2] / "examples" / "astronaut.jpg"
QUICK = ["--num-keypoints", "400", "--max-size", "320"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same pair in both layouts: a photograph and a mild perspective view of it."""
    image = load_image(PHOTOGRAPH, max_size=320).tensor
    H = torch.tensor([[1.0, 0.08, -4], [-0.05, 0.95, 6], [1e-4, -5e-5, 1]], dtype=torch.float64)
    H = rotation_about_centre((320, 320), math.radians(5))[0] @ H
    second = warp_image(image, H, (320, 320)).clamp(0, 1)
    made = {}
    for name, images, matrix in (("oxford", "img{}.webp", "H1to2p.txt"), ("hpatches", "{}.ppm", "H_1_2")):
        made[name] = tmp_path_factory.mktemp(name)
        sequence = made[name] / "portrait"
        sequence.mkdir()
        for k, tensor in enumerate((image, second), start=1):
            PIL.Image.fromarray(to_uint8(tensor)).save(sequence / images.format(k), lossless=True)
        np.savetxt(sequence / matrix, H.numpy())
    return made


@pytest.mark.parametrize("benchmark", ["oxford", "hpatches"])
def test_tables_of_several_models(
    folders: dict[str, Path], benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "out.json", tmp_path / "out.md"
    arguments = ["eval", benchmark, "--data", str(folders[benchmark]), *QUICK]
    arguments += ["--models", "upright-sift,upright-sift:tta,sift", "--rotation", "upright,quarter"]
    assert main([*arguments, "--json", str(out), "--markdown", str(table)]) == 0
    assert capsys.readouterr().out == table.read_text()
    report = json.loads(out.read_text())
    assert report["benchmark"] == benchmark
    assert [t["rotation"] for t in report["tables"]] == ["upright", "quarter"]
    assert [t["num_pairs"] for t in report["tables"]] == [1, 3]
    for t in report["tables"]:
        assert [row["label"] for row in t["rows"]] == ["upright-sift", "upright-sift:tta", "sift"]
        for row in t["rows"]:
            assert row["auc"]["3"] > 0.6
            assert row["precision"] > 0.8
            assert row["num_failed"] == 0
    steered, augmented, sift = report["tables"][1]["rows"]
    assert steered["angle_error_median"] < 15  # of the perspective view itself
    assert (steered["extractions_per_pair"], augmented["extractions_per_pair"]) == (2, 5)
    assert sift["angle_error_median"] is None


def test_kept_matches_make_another_threshold_cheap(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    arguments = ["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", "orb", "--cache", str(cache)]
    assert main(arguments) == 0
    assert len(list(cache.iterdir())) == 1
    from steerers.benchmarks import protocol

    def refuse(*_: object) -> None:
        raise AssertionError("matched again")

    monkeypatch.setattr(protocol, "predict", refuse)
    assert main([*arguments, "--threshold", "1", "--seed", "5"]) == 0
    assert "USAC_MAGSAC, 1 px" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data", "no-such-folder"], "there is no folder no-such-folder; get the eight affine covariant sequences"),
        (["--models", "no-such"], "unknown model 'no-such'"),
        (["--models", "sift,sift"], "'sift' is named twice"),
        (["--models", "sift:max-matches"], "needs a steerer"),
        (["--models", "sift,"], "not a list of names"),
        (["--rotation", "sideways"], "unknown rotation 'sideways'; use one of upright, fixed, quarter, all, joint"),
        (["--sequences", "no-such"], "has no sequence 'no-such'; it has portrait"),
        (["--device", "no-such"], "unknown device"),
        (["--json", "no-such-folder/out.json"], "there is no folder no-such-folder"),
        (["--threshold", "0"], "threshold must be positive"),
        (["--num-keypoints", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    arguments = ["eval", "oxford", "--data", str(folders["oxford"]), *QUICK, "--models", "orb", *extra]
    try:
        code = main(arguments)
    except SystemExit as stop:  # what argparse itself refuses
        code = int(stop.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["eval", "oxford", "--help"])
    assert stop.value.code == 0
    assert "example:" in capsys.readouterr().out

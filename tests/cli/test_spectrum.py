"""``steerers spectrum`` as users call it."""

from __future__ import annotations

import shutil
from pathlib import Path

import PIL.Image
import pytest
import torch

from helpers import CONFIG_FOLDER
from steerers.cli import main
from steerers.models.classical import c4_permutation
from steerers.steering.steerer import Steerer
from steerers.training.config import SteererConfig
from steerers.training.run_folder import MODEL
from training.runs import fake_run, make_photographs, make_run, small_config

pytestmark = pytest.mark.usefixtures("one_thread")
PERM = Steerer.perm(8).eigenvalues().to(torch.complex64)
VALUES = torch.stack([factor * PERM for factor in torch.linspace(1, 1.3, 5).tolist()])  # (5, 8)


def spectrum(*arguments: object) -> int:
    return main(["spectrum", *map(str, arguments)])


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    output = capsys.readouterr()
    assert output.err.count("\n") == 1, output.err
    return output.err


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photographs(tmp_path_factory.mktemp("data") / "photographs")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, photographs: Path) -> dict[str, tuple[Path, dict[str, float]]]:
    root = tmp_path_factory.mktemp("runs")
    return {
        group: (root / group, make_run(root / group, photographs, small_config(group, steps=2)))
        for group in ("C4", "SO2")
    }


def table(text: str) -> list[list[str]]:
    """The cells of the lines that begin with a number of dimensions."""
    return [line.split() for line in text.splitlines() if line.split()[0].isdigit()]


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fake_run(tmp_path / "perm", VALUES, [0, 100, 200, 300, 400])
    assert spectrum(run) == 0
    text = capsys.readouterr().out
    assert "perm: C4 from random, 8 eigenvalues at 5 steps" in text
    for when, factor in (("step 0", "1.000"), ("step 400", "1.300")):
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{when}:"))
        assert "nearest 2x0 + 2x1 + 2x2 (residual of the eigenvalues 0.000)" in line
        assert "8 of 8 within 0.1" in line
        assert f"common factor {factor}" in line
    assert "has not ended yet" in text
    assert table(text)[0] == ["8", "1.300", "1.0000"]
    for dim, smallest, share in table(text)[1:]:
        assert (smallest, share) == ("1.300", f"{int(dim) / 8:.4f}")
    with PIL.Image.open(run / "spectrum.png") as picture, PIL.Image.open(run / "spectrum.gif") as animation:
        assert picture.width > 2 * picture.height * 0.9
        assert animation.n_frames == 5
    assert {path.name for path in run.iterdir()} == {"config.json", "spectrum.npz", "spectrum.png", "spectrum.gif"}


@pytest.mark.parametrize("group", ["C4", "SO2"])
def test_accuracy_before_and_after(
    trained: dict[str, tuple[Path, dict[str, float]]],
    photographs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    group: str,
) -> None:
    folder, at_end = trained[group]
    outputs = ["--out", tmp_path / "a.png", "--gif", tmp_path / "a.gif"]
    assert spectrum(folder, "--data", photographs, "--dims", "4", "--cache", tmp_path / "cache", *outputs) == 0
    text = capsys.readouterr().out
    assert "steerer of step 2, averaged: nearest" in text
    assert ("real parts" if group == "SO2" else "magnitudes") in text
    before, after = table(text)
    assert before[0] == "8"
    assert int(after[0]) in (3, 4)
    assert float(before[3]) == pytest.approx(at_end["accuracy"], abs=6e-4)
    assert [float(cell) for cell in before[4:-1]] == pytest.approx(
        [at_end["accuracy@0"], at_end["accuracy@90"]], abs=6e-4
    )
    assert before[-1] == "-"
    assert len(after) == len(before)
    assert "within 0.01 of the accuracy:" in text
    assert not (folder / "spectrum.png").exists()


def test_nothing_is_concluded_from_no_accuracy(
    trained: dict[str, tuple[Path, dict[str, float]]],
    photographs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("steerers.training.spectrum.TELLING", 1.01)
    outputs = ["--out", tmp_path / "a.png", "--gif", tmp_path / "a.gif"]
    assert spectrum(trained["C4"][0], "--data", photographs, "--dims", "4", *outputs) == 0
    text = capsys.readouterr().out
    assert "nothing can be concluded: the accuracy of all 8 dimensions is below 1.01" in text
    assert "within 0.01 of the accuracy" not in text


def test_several_runs_are_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        fake_run(tmp_path / name, VALUES, group=group)
        for name, group in (("one", "C4"), ("two", "SO2"), ("three", "C8"))
    ]
    assert spectrum(*runs, "--out", tmp_path / "figure.png") == 0
    output = capsys.readouterr().out
    assert [name for name in ("one", "two", "three") if f"{name}: " in output] == ["one", "two", "three"]
    assert not list(tmp_path.rglob("*.gif"))
    with PIL.Image.open(tmp_path / "figure.png") as picture:
        assert picture.width / 3 == pytest.approx((picture.height - 30) / 2)
    assert spectrum(*runs, "--out", tmp_path / "figure.png", "--gif", tmp_path / "figure.gif") == 0
    with PIL.Image.open(tmp_path / "figure.gif") as animation:
        assert animation.n_frames == 5
        assert animation.width == 3 * (animation.height - 30)


def test_a_steerer_that_cannot_be_diagonalised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is drawn all the same; what needs eigenvectors says why it is missing."""
    sheared = Steerer.from_matrix(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), "C4")
    sheared.save(tmp_path / "sheared.safetensors")
    assert spectrum(tmp_path / "sheared.safetensors") == 0
    assert "no representation is near: the steerer's matrix cannot be diagonalised" in capsys.readouterr().out
    assert (tmp_path / "sheared.png").exists()


def test_a_run_of_the_embedded_model(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the README has it: train compact, then look at its spectrum, which is fixed."""
    monkeypatch.chdir(tmp_path)
    small = ["steps=1", "batch=2", "data.views.size=48", "validation.pairs=1", "precision=float32"]
    words = ["--data", str(photographs), "--out", "runs/mine", "--device", "cpu", "--set", *small]
    assert main(["train", str(CONFIG_FOLDER / "compact.toml"), *words]) == 0
    capsys.readouterr()
    assert spectrum("runs/mine") == 0
    text = capsys.readouterr().out
    assert "runs/mine: the steerer of this run is fixed, so that training does not move its eigenvalues" in text
    spread = "40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6"
    assert f"steerer: nearest {spread} (residual of the matrix 0.000)" in text
    assert "wrote runs/mine/spectrum.png" in text
    with PIL.Image.open("runs/mine/spectrum.png") as picture:
        assert picture.width > 300
    assert spectrum("runs/mine", "--out", "other.jpg") == 0
    assert Path("other.jpg").exists()


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steerer", [Steerer.perm(8), Steerer.spread(16, learnable=True)], ids=["C4", "SO2"])
def test_the_file_of_a_steerer(tmp_path: Path, capsys: pytest.CaptureFixture[str], steerer: Steerer) -> None:
    path = tmp_path / "mine.safetensors"
    steerer.save(path)
    assert spectrum(path) == 0
    text = capsys.readouterr().out
    assert f"{steerer.group}, {steerer.dim} eigenvalues" in text
    assert f"{steerer.dim} of {steerer.dim} within 0.1" in text
    assert "residual of the matrix 0.000" in text
    with PIL.Image.open(tmp_path / "mine.png") as picture:
        assert picture.format == "PNG"
    assert spectrum(path, "--out", tmp_path / "other.jpg", "--dims", f"{steerer.dim},2") == 0
    assert table(capsys.readouterr().out)[0][0] == str(steerer.dim)
    assert (tmp_path / "other.jpg").exists()


def test_the_steerer_of_a_run_by_its_file(
    trained: dict[str, tuple[Path, dict[str, float]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spectrum(trained["SO2"][0] / MODEL, "--out", tmp_path / "file.png") == 0
    assert "SO2, 8 eigenvalues" in capsys.readouterr().out


# Patches --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs with room for whole patches."""
    return make_photographs(tmp_path_factory.mktemp("larger") / "photographs", count=3, size=140)


def test_patches_of_upright_sift(larger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every frequency follows quarter turns exactly."""
    assert spectrum("upright-sift", "--patches", larger, "--count", "4", "--out", tmp_path / "a.png") == 0
    title, head, *rows, wrote = capsys.readouterr().out.splitlines()
    assert title == "upright-sift: 32x0 + 32x1 + 32x2, 3 photographs"
    assert head.split() == [
        "frequency",
        "blocks",
        "patches",
        "most",
        "excited",
        "block",
        "excitation",
        "angle",
        "error",
        "deviation",
    ]
    assert wrote == f"wrote {tmp_path / 'a.png'}"
    for index, row in enumerate(row.split() for row in rows):
        frequency, blocks, patches, strongest, excitation, error, deviation = row
        assert (frequency, blocks, patches) == (str(index), "32", "4")
        assert 32 * index <= int(strongest) < 32 * (index + 1)
        assert 0 < float(excitation) < 1
        assert (error, deviation) == ("0.0°", "0.000")
    with PIL.Image.open(tmp_path / "a.png") as overview:
        assert overview.height > 3 * 140
    for options, cells in ((("--frequency", "2"), ("2", "32")), (("--block", "40"), ("1", "1"))):
        arguments = ("--patches", larger, "--count", "3", "--num-photos", "2", *options, "--out", tmp_path / "b.png")
        assert spectrum("upright-sift", *arguments) == 0
        title, _, row, _ = capsys.readouterr().out.splitlines()
        assert title.endswith(", 2 photographs")
        assert tuple(row.split()[:3]) == (*cells, "3")
        with PIL.Image.open(tmp_path / "b.png") as detail:
            assert detail.width > detail.height  # a row a patch, with all rotations


@pytest.mark.parametrize("group", ["C4", "SO2"])
def test_patches_of_a_run(
    trained: dict[str, tuple[Path, dict[str, float]]], larger: Path, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    """Of a learned steerer the blocks are those that it is nearly made of; the descriptor is the run's."""
    folder, _ = trained[group]
    assert spectrum(folder, "--patches", larger, "--count", "2") == 0
    text = capsys.readouterr().out
    assert f"wrote {folder / 'patches.png'}" in text
    with PIL.Image.open(folder / "patches.png") as picture:
        assert picture.width > 300
    (folder / "patches.png").unlink()
    assert text.startswith(f"{group}: ")
    assert sum(int(line.split()[1]) for line in text.splitlines()[2:-1]) <= 8


def test_patches_of_the_file_of_a_steerer(larger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.safetensors"
    Steerer.from_permutation(c4_permutation(), "C4", learnable=True).save(path, {"model": "upright-sift"})
    assert spectrum(path, "--model", "upright-sift", "--patches", larger, "--count", "2") == 0
    *_, last, wrote = capsys.readouterr().out.splitlines()
    assert last.split()[-2:] == ["0.0°", "0.000"]  # the same matrix, found as one
    assert wrote == f"wrote {tmp_path / 'mine-patches.png'}"
    assert spectrum(path, "--model", "sift", "--patches", larger) == 2
    assert "a steerer for model 'upright-sift', not for 'sift'" in told(capsys)


def test_patches_that_cannot_be_shown(
    trained: dict[str, tuple[Path, dict[str, float]]],
    photographs: Path,
    larger: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, good = trained["C4"][0], tmp_path / "good.safetensors"
    Steerer.perm(8).save(good)
    out = ("--out", tmp_path / "x.png")
    for arguments, message in (
        (("upright-sift", "--patches", tmp_path / "nowhere"), "no such folder or tar of images"),
        (("upright-sift", "--patches", run), "no images in"),
        (("nonsense", "--patches", larger), "nonsense is no run, no file of a steerer, and no model"),
        (("sift", "--patches", larger), "model 'sift' has no steerer"),
        (("upright-sift", "--patches", larger, "--model", "disk"), "--model goes with the file of a steerer"),
        (("upright-sift", "--patches", larger, "--frequency", "3"), "no block of frequency 3; it has 0, 1, 2"),
        (("upright-sift", "--patches", larger, "--block", "96"), "--block must be 0 to 95 here, got 96"),
        (("upright-sift", "compact", "--patches", larger), "--patches looks at one steerer, got upright-sift, compact"),
        (("upright-sift", "--patches", larger, "--dims", "4"), "--dims does not go with --patches"),
        (("upright-sift", "--patches", larger, "--data", larger), "--data does not go with --patches"),
        ((good, "--patches", larger), "good.safetensors holds a steerer, but no descriptor: name it with --model"),
        ((run, "--patches", larger, "--model", "disk"), "--model does not go with the folder of a run"),
        ((run, "--patches", photographs), "has a keypoint far enough from its border"),
        ((tmp_path, "--patches", larger), "it is not the folder of a run"),
        ((run, "--frequency", "1"), "--frequency goes with --patches"),
        ((run, "--num-photos", "1"), "--num-photos goes with --patches"),
        ((good, "--model", "disk"), "--model goes with --patches"),
    ):
        assert spectrum(*arguments, *out) == 2, arguments
        assert message in told(capsys)
    assert not (tmp_path / "x.png").exists()
    assert spectrum("upright-sift", "--patches", larger, "--out", tmp_path / "x.txt") == 2
    assert "is no picture" in told(capsys)


# What cannot be shown -------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line(tmp_path: Path, photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = fake_run(tmp_path / "run", VALUES), fake_run(tmp_path / "other", VALUES)
    fixed = fake_run(tmp_path / "fixed", VALUES, steerer=SteererConfig("C4", "perm", False))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"nothing")
    good = tmp_path / "good.safetensors"
    Steerer.perm(8).save(good)
    (tmp_path / "notes.txt").write_text("not a steerer")
    for arguments, message in (
        ((tmp_path / "nowhere",), "nowhere: there is no such run"),
        ((tmp_path,), "no config.json: it is not the folder of a run"),
        ((photographs,), "it is not the folder of a run"),
        ((fixed,), "fixed has no model.safetensors: it is not a run, or has not ended yet"),
        ((fixed, "--data", photographs), "--data is for the folder of a run that trained its steerer"),
        ((fixed, "--gif", tmp_path / "x.gif"), "--gif is for the folder of a run that trained its steerer"),
        ((run, fixed, "--out", tmp_path / "x.png"), "is fixed, so that its eigenvalues stay as they are; draw them by"),
        ((tmp_path / "nowhere.safetensors",), "nowhere.safetensors"),
        ((damaged,), "damaged.safetensors"),
        ((tmp_path / "notes.txt",), "notes.txt"),
        ((run, other), "--out"),
        ((run, good, "--out", tmp_path / "x.png"), "good.safetensors: the file of a steerer is drawn by itself"),
        ((good, "--data", photographs), "--data is for the folder of a run"),
        ((good, "--gif", tmp_path / "x.gif"), "--gif is for the folder of a run"),
        ((run, "--data", photographs), "no model.safetensors"),
        ((run, "--gif", tmp_path / "x.png"), "an animation ends in .gif"),
        ((run, "--out", tmp_path / "x.gif", "--gif", tmp_path / "x.gif"), "another output"),
        ((run, "--out", tmp_path / "x.txt"), "no picture"),
        ((run, "--out", tmp_path / "missing" / "x.png"), "there is no folder"),
        ((run, "--dims", "9"), "dimensions must be 1 to 8"),
    ):
        assert spectrum(*arguments) == 2, arguments
        assert message in told(capsys)
    for path in (run, other):
        assert not (path / "spectrum.png").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("run", "--dims", "8,"),
        ("run", "--dims", "0"),
        ("run", "--pairs", "none"),
        ("run", "--patches"),
        ("run", "--patches", "photographs", "--block", "-1"),
        ("run", "--patches", "photographs", "--frequency", "1.5"),
        ("run", "--patches", "photographs", "--frequency", "inf"),
        ("run", "--patches", "photographs", "--frequency", "1", "--block", "1"),
    ],
)
def test_bad_options_are_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        spectrum(*arguments)
    assert ended.value.code == 2
    assert "see steerers spectrum --help" in told(capsys)


def test_data_that_is_not_there(
    trained: dict[str, tuple[Path, dict[str, float]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained["C4"][0], tmp_path / "run")
    assert spectrum(run, "--data", tmp_path / "nowhere") == 2
    assert "nowhere" in told(capsys)
    assert spectrum(run, "--data", tmp_path / "nowhere", "--device", "teapot") == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n"), "teapot" in output.err) == ("", 1, True)

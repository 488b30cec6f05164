"""``steerers train`` as users call it, with a small network on photographs that the tests make."""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
import torch.distributed as dist

from datasets.scenes import cameras_around, street, write_detections, write_megadepth
from datasets.workspaces import write_scene
from helpers import CONFIG_FOLDER, assert_refused, run_command, run_on_full_disk
from steerers import _console
from steerers._weights import load
from steerers.cli import INTERRUPTED, make_parser
from steerers.datasets.photos import PhotoStore
from steerers.images.load import to_uint8
from steerers.steering.steerer import Steerer
from steerers.training import loop
from steerers.training.run_folder import (
    CHECKPOINT,
    CONFIG,
    LOG,
    MODEL,
    SPECTRUM,
    RunLog,
    locked,
    read_checkpoint,
    read_config,
    read_log,
    read_spectrum,
)
from terrain import make_terrain

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIGS = CONFIG_FOLDER
TINY = """
setting = "joint"
steps = 4
batch = 2
checkpoint_every = 2
log_every = 1
[data.views]
size = 48
[model.compact]
dim = 32
hidden = 32
[matching]
num_keypoints = 32
radius = 3.0
[keypoints]
most = 16
num_keypoints = 16
[validation]
every = 2
pairs = 2
rotations = [0, 90]
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for seed in range(3):
        PIL.Image.fromarray(to_uint8(make_terrain(72, seed))).save(folder / f"{seed}.png")
    return folder


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without weights, GPU or torchrun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEERERS_HOME", str(tmp_path / "home"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def config(workplace: Path) -> Path:
    path = workplace / "tiny.toml"
    path.write_text(TINY)
    return path


def run(*words: object) -> int:
    """The command, as the whole command line would run it; bad input raises."""
    arguments = make_parser().parse_args(["train", *map(str, words)])
    with _console.shown(logging.INFO, sys.stdout):
        return int(arguments.run(arguments))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load(folder / MODEL)[0]


# Training -------------------------------------------------------------------------------------------------------------


def test_a_run_from_photographs(config: Path, photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert run(config, "--data", photographs, "--device", "cpu") == 0
    folder = Path("runs/tiny")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("finished at step 4 of 4; held out: nll ")
    assert "accuracy" in lines[0]
    assert "90°: " in lines[0]
    assert lines[0].endswith(f"written to {folder}")
    assert lines[1:] == ["drew losses.png, accuracy.png, repeatability.png"]
    for name in ("losses.png", "accuracy.png", "repeatability.png"):
        assert PIL.Image.open(folder / name).size[0] > 500
    assert [entry["step"] for entry in read_log(folder) if "loss" in entry] == [1, 2, 3, 4]
    assert json.loads((folder / "config.json").read_text())["name"] == "tiny"
    assert read_checkpoint(folder)["step"] == 4
    assert any(name.startswith("network.") for name in weights_of(folder))


def test_changes_reach_the_run(config: Path, photographs: Path) -> None:
    changes = ["steps=1", "steerer.kind=freq1", "data.rotations=C4", "validation.every=0"]
    assert run(config, "--out", "a/run", "--data", photographs, "--device", "cpu", "--set", *changes) == 0
    saved = read_checkpoint(Path("a/run"))["config"]
    assert (saved["steps"], saved["steerer"]["kind"], saved["data"]["rotations"]) == (1, "freq1", "C4")


def test_a_resumed_run_equals_the_uninterrupted_one(
    config: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [config, "--data", photographs, "--device", "cpu", "--cache", "cache"]
    assert run(*options, "--out", "whole") == 0
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "step", interrupting(RunLog.step, at=2))
        assert run(*options, "--out", "broken") == INTERRUPTED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "interrupted at step 2 of 4, checkpoint written to broken; not validated"
    assert lines[-1] == (
        f"go on with: steerers train {config} --data {photographs} --out broken --device cpu --cache cache --resume"
    )
    assert run(*options, "--out", "broken", "--resume") == 0
    whole, broken = weights_of(Path("whole")), weights_of(Path("broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    losses = [[entry["loss"] for entry in read_log(Path(name)) if "loss" in entry] for name in ("whole", "broken")]
    assert losses[0] == losses[1]


def test_what_is_damaged_beside_a_checkpoint_does_not_keep_it_from_going_on(config: Path, photographs: Path) -> None:
    learned = ["steerer.group=C4", "steerer.kind=random", "steerer.learn=true", "data.rotations=C4"]
    words = ["train", config, "--data", photographs, "--device", "cpu", "--out", "run"]
    options = ["--set", *learned, "spectrum_every=1"]
    assert run_command(*words, "--max-minutes", "1e-6", *options).code == 0
    folder = Path("run")
    (folder / SPECTRUM).write_bytes((folder / SPECTRUM).read_bytes()[:100])
    (folder / LOG).write_bytes(b"\xff{\n" + (folder / LOG).read_bytes())
    (folder / CONFIG).write_bytes(b"{")
    code, out, err = run_command(*words, "--resume", *options)
    assert code == 0, err
    assert out.startswith("finished at step 4 of 4")
    assert re.search(r"spectrum\.npz: (damaged|a damaged) .*; eigenvalues are recorded anew from step 1\n", err)
    assert re.search(r"log\.jsonl: line 1 is damaged .*; 1 line is left out\n", err)
    assert "Traceback" not in err
    assert read_config(folder).steerer.learn
    assert [entry["step"] for entry in read_log(folder) if "loss" in entry] == [1, 2, 3, 4]
    assert read_spectrum(folder)[0] == [2, 3, 4]


def test_a_broken_photograph_is_named_and_left_out(config: Path, photographs: Path, workplace: Path) -> None:
    folder = shutil.copytree(photographs, workplace / "mixed")
    (folder / "broken.jpg").write_bytes(b"no image")
    words = ["train", config, "--data", folder, "--device", "cpu", "--set", "steps=1"]
    code, out, err = run_command(*words, "--out", "run")
    assert (code, out.partition(";")[0]) == (0, "finished at step 1 of 1")
    assert err.count("broken.jpg") == 1
    assert "1 of 4 photographs cannot be used: cannot read image" in err
    assert sum(read_checkpoint(Path("run"))["pairs"]) == 2  # of three, one is held out
    code, out, err = run_command(*words, "data.max_broken=0", "--out", "strict")
    assert (code, out) == (2, "")
    assert "steerers: cannot use a photograph: cannot read image" in err
    code, out, _ = run_command("data", "check", folder)
    assert code == 1
    assert "broken.jpg" in out


FULL = """
from steerers.cli import main

words = ["--device", "cpu", "--data", "photographs"]
print(main(["train", "tiny.toml", *words, "--out", "run", "--set", "steps=1"]))
print(main(["train", "tiny.toml", *words, "--out", "cached", "--cache", "cache"]))
fit = ["--images", "photographs", "--num-pairs", "4", "--steps", "0", "--num-keypoints", "64"]
print(main(["fit", "--model", "upright-sift", *fit, "-o", "mine.safetensors"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_full_disk_is_one_line_that_names_the_file(config: Path, photographs: Path, workplace: Path) -> None:
    """The checkpoint, the decoded photographs and the steerer need more room than there is."""
    shutil.copytree(photographs, workplace / "photographs")
    out, err = run_on_full_disk(FULL, workplace, 10_000)
    assert [line for line in out if line.isdigit()] == ["2", "2", "2"]
    told = [line for line in err if line.startswith("steerers: ")]
    expected = [r"run/checkpoint\.pt", r"cache/photos-\w+\.npy", r"mine\.safetensors"]
    for line, name in zip(told, expected, strict=True):
        assert re.fullmatch(rf"steerers: {name}: the disk is full \(File too large\)", line)
    assert not [path for path in workplace.rglob("*") if path.name.startswith(".steerers-")]
    assert not list(workplace.rglob("*.npy"))
    assert not list(workplace.rglob("*.safetensors"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_real_interruption(config: Path, photographs: Path) -> None:
    """Ctrl-C while it trains: a checkpoint within the step, no validation, which would take hours, no traceback."""
    long = ["steps=100000", "validation.every=0", "validation.pairs=99999"]
    words = ["train", config, "--data", photographs, "--device", "cpu", "--set", *long]
    command = [sys.executable, "-u", "-m", "steerers", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = [process.stderr.readline()]
        while told[-1] and not told[-1].startswith("step 1 of 100,000, "):
            told.append(process.stderr.readline())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert told[:2] == ["reading photographs\n", "training\n"]
    assert process.returncode == INTERRUPTED
    assert "stopping after this step, with a checkpoint; Ctrl-C again stops at once" in err
    assert "Traceback" not in err
    first, *_, last = out.splitlines()
    found = re.fullmatch(r"interrupted at step (\d+) of 100000, checkpoint written to runs/tiny; not validated", first)
    assert found
    assert last.endswith("--resume")
    assert read_checkpoint(Path("runs/tiny"))["step"] == int(found[1])


def test_an_interruption_before_there_is_anything_is_one_line(
    config: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ["train", config, "--data", photographs, "--device", "cpu"]
    for place in ("importlib.import_module", "steerers.datasets.photos.Photo.load"):
        with monkeypatch.context() as patched:
            patched.setattr(place, interrupt)
            code, out, err = run_command(*words)
        assert (code, out, err.splitlines()[-1]) == (INTERRUPTED, "", "steerers: interrupted")
    assert not Path("runs").exists()


def interrupting(step: Callable[..., None], at: int) -> Callable[..., None]:
    """Ctrl-C in the middle of a step."""

    def logged(log: RunLog, number: int, *arguments: Any, **options: Any) -> None:
        step(log, number, *arguments, **options)
        if number == at:
            signal.raise_signal(signal.SIGINT)

    return logged


def test_the_time_is_kept(config: Path, photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "--data", photographs, "--device", "cpu", "--out", "run", "--max-minutes", "1e-6") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("out of time at step 1 of 4")
    assert lines[-1].endswith("--resume")
    assert read_checkpoint(Path("run"))["step"] == 1


def test_without_matplotlib_one_line_names_the_extra(
    config: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run(config, "--data", photographs, "--device", "cpu", "--out", "run", "--set", "steps=1") == 0
    assert 'no plots: plots need matplotlib: pip install "steerers[plots]"' in capsys.readouterr().out
    assert not list(Path("run").glob("*.png"))


def test_training_needs_few_packages(config: Path, photographs: Path) -> None:
    """A bare machine with a GPU has PyTorch, NumPy, Pillow and little else."""
    blocked = ("h5py", "cv2", "poselib", "kornia", "matplotlib", "pycolmap", "msgspec", "pydantic", "tyro", "tqdm")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); from steerers.cli import main; sys.exit(main())"
    words = ["train", config, "--data", photographs, "--device", "cpu", "--set", "steps=1"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("finished at step 1 of 1")


def test_torchrun_joins_its_processes_and_leaves_them(
    config: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    joined: list[tuple[str, int]] = []

    def seen(*arguments: Any, **options: Any) -> loop.Ended:
        joined.append((dist.get_backend(), dist.get_world_size()))
        return trained(*arguments, **options)

    trained = loop.train
    monkeypatch.setattr(loop, "train", seen)
    assert run(config, "--data", photographs, "--device", "cpu", "--out", "run", "--set", "steps=1") == 0
    assert joined == [("gloo", 1)]
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match=r"no data: there is no gone"):
        run(config, "--data", "gone", "--device", "cpu", "--out", "other")
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="--device is cpu or cuda, got 'cuda:1'"):
        run(config, "--data", photographs, "--device", "cuda:1", "--out", "other")


SIFT = """
setting = "A"
steps = 40
batch = 3
[data]
rotations = "C4"
[data.views]
size = 128
photometric = 0.0
[model]
kind = "upright-sift"
[steerer]
group = "C4"
kind = "random"
learn = true
[matching]
num_keypoints = 128
radius = 2.0
[optimiser]
learning_rate = 6e-3
weight_decay = 0.0
[validation]
every = 0
pairs = 2
"""


def test_a_steerer_of_a_frozen_model_is_trained_and_used(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the configuration to matches of a rotated photograph."""
    (workplace / "sift.toml").write_text(SIFT)
    (workplace / "photographs").mkdir()
    for seed in range(4):
        PIL.Image.fromarray(to_uint8(make_terrain(200, seed))).save(f"photographs/{seed}.png")
    PIL.Image.open("photographs/0.png").rotate(90).save("rotated.png")
    assert run("sift.toml", "--data", "photographs", "--device", "cpu", "--dry-run") == 0
    assert (lines := shown(capsys))["network"] == "upright-sift, frozen"
    assert lines["keypoints"] == "128 of its own, frozen"
    assert run("sift.toml", "--data", "photographs", "--device", "cpu") == 0
    left = workplace / "runs/sift" / MODEL
    assert list(load(left)[0]) == ["steerer.generator"]
    assert Steerer.load(left).dim == 128
    match = ("match", "photographs/0.png", "rotated.png", "--steerer", left, "--json", "found.json")
    assert run_command(*match, "--model", "upright-sift").code == 0
    found = json.loads(Path("found.json").read_text())
    assert found["angle_deg"] == pytest.approx(90)
    assert found["num_inliers"] > 50
    assert_refused([*match, "--model", "sift"], "a steerer for model 'upright-sift', not for 'sift'")


# Refusing -------------------------------------------------------------------------------------------------------------


def test_a_run_is_not_written_over(config: Path, photographs: Path) -> None:
    folder = Path("run")
    folder.mkdir()
    (folder / CHECKPOINT).write_bytes(b"of an earlier run")
    with pytest.raises(ValueError, match="run has a checkpoint already: go on from it with --resume"):
        run(config, "--data", photographs, "--out", folder)
    with pytest.raises(ValueError, match="not a checkpoint"):
        run(config, "--data", photographs, "--out", folder, "--resume", "--device", "cpu")
    assert (folder / CHECKPOINT).read_bytes() == b"of an earlier run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.toml"], r"absent\.toml: the configuration cannot be read"),
        (["tiny.toml", "--device", "cpu"], "no data: set data.path, or give --data"),
        (["tiny.toml", "--data", "gone", "--device", "cpu"], "no data: there is no gone"),
        (["tiny.toml", "--resume"], "cannot resume: runs/tiny has no checkpoint"),
        (["tiny.toml", "--out", "tiny.toml/run"], "cannot write a run to tiny.toml/run: .*tiny.toml is a file"),
        (["tiny.toml", "--set", "stps=3"], "unknown key 'stps'"),
        (["tiny.toml", "--set", "steps"], "must look like name=value, got 'steps'"),
        (["tiny.toml", "--data", ".", "--device", "npu"], "unknown device 'npu'"),
    ],
)
def test_bad_input_is_named(config: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(*words)
    assert not Path("runs").exists()


@pytest.mark.parametrize("minutes", ["0", "-1", "soon", "nan", "inf"])
def test_minutes_are_positive(config: Path, minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(config, f"--max-minutes={minutes}")
    assert ended.value.code == 2
    assert f"'{minutes}' is not a positive number of minutes" in capsys.readouterr().err


def test_tensorboard_is_asked_for_before_any_work(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"steerers\[tensorboard\]"):
        run(config, "--tensorboard", "--data", "gone")


def test_a_run_that_diverges_is_one_line(config: Path, photographs: Path) -> None:
    words = ["--data", photographs, "--device", "cpu", "--out", "run", "--set", "optimiser.learning_rate=1e20"]
    code, out, err = run_command("train", config, *words, "log_every=100")
    assert (code, out) == (2, "")
    told = [line for line in err.splitlines() if line.startswith("steerers: ")]
    assert len(told) == 1
    assert re.search(r"at step 2 the loss is not finite .*; there is no checkpoint yet; .* lower", told[0])
    assert not (Path("run") / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimiser.learning_rate=inf", "optimiser.learning_rate must be a finite number, got inf"),
        ("optimiser.learning_rate=nan", "optimiser.learning_rate must be a finite number, got nan"),
        ("optimiser.learning_rate=-1", "optimiser: learning_rate must be positive and at most 1e30, got -1.0"),
        ("optimiser.warm_up=-1", "optimiser: warm_up must be finite and not negative, got -1"),
        (f"steps={'[' * 3000}", "steps: it is nested too deeply"),
        (f"{'.'.join('a' * 3000)}=1", "it is nested too deeply"),
        (f"steps={'9' * 400}", "steps must be a number of 64 bits, got 999"),
    ],
    ids=lambda value: value[:30],
)
def test_absurd_values_are_one_line(config: Path, change: str, message: str) -> None:
    assert_refused(["train", config, "--dry-run", "--set", change], message)


def test_a_second_process_is_refused_before_any_work(
    config: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steerers.training.run_folder._PATIENCE", 0.0)
    words = ["train", config, "--data", photographs, "--device", "cpu", "--out", "run", "--set", "steps=1"]
    with locked(Path("run")):
        assert_refused(words, "another process trains in run: wait until it ends, or name another folder with --out")
    assert run_command(*words).code == 0


def test_a_loss_that_is_not_finite_is_bad_input(
    config: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*arguments: Any, **options: Any) -> loop.Ended:
        raise FloatingPointError("at step 3 the loss is nan")

    monkeypatch.setattr(loop, "train", diverge)
    with pytest.raises(ValueError, match="at step 3 the loss is nan"):
        run(config, "--data", photographs, "--device", "cpu")


# Looking --------------------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The lines of a dry run by their titles, those without one joined to the line before."""
    lines: dict[str, str] = {}
    title = ""
    for line in capsys.readouterr().out.splitlines():
        title = line[:15].strip() or title
        lines[title] = f"{lines[title]}; {line[15:]}" if title in lines else line[15:]
    return lines


def test_a_dry_run_says_what_would_run_and_does_nothing(
    config: Path, photographs: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "--data", photographs, "--dry-run", "--set", "optimiser.warm_up=1") == 0
    lines = shown(capsys)
    assert lines["run"] == "tiny: keypoints and descriptions of one network"
    assert lines["steerer"] == "SO2, 32 x 32, fixed: spread, 8x0 + 2x1 + 2x2 + 2x3 + 2x4 + 2x5 + 2x6"
    assert lines["data"].startswith("folder, rotations SO2, views of 48 x 48 pixels")
    assert f"{photographs}: 3 photographs, a pair each; of them 1 held out" in lines["data"]
    assert lines["schedule"] == "4 steps of 2 pairs; warm-up over 1, then a cosine to 0"
    assert lines["folder"] == "runs/tiny (new)"
    assert [path.name for path in workplace.iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "b-so2-spread-b",
            {
                "run": "b-so2-spread-b: setting B, descriptor and steerer together",
                "network": "dedode-b, 13,518,817 parameters, trained; from vgg",
                "keypoints": "5,000 of dedode-l-so2, frozen",
                "steerer": "SO2, 256 x 256, trained from spread, 40x0 + 18x1 + 18x2 + 18x3 + 18x4 + 18x5 + 18x6",
                "data": "megadepth, rotations SO2, views of 512 x 512 pixels, squashed; "
                "none given: set data.path, or give --data",
                "optimiser": "AdamW, weight decay 1e-05, gradient clipped to 0.01",
                "learning rate": "1e-05 of descriptor.encoder (10,592,064 parameters); 0.0002 of descriptor.decoder "
                "(2,926,753 parameters); 0.0002 of steerer (65,536 parameters)",
                "schedule": "100,000 steps of 8 pairs; a cosine to 0",
                "precision": "bfloat16",
                "weights": "vgg19_bn-c79401a0.pth (to be downloaded); dedode_detector_SO2.pth (to be downloaded)",
            },
        ),
        (
            "a-c4-g",
            {
                "network": "dedode-g, 18,811,361 parameters, frozen; from dedode_descriptor_G.pth",
                "steerer": "C4, 256 x 256, trained from random",
                "learning rate": "0.001 of steerer (65,536 parameters)",
            },
        ),
        (
            "a-c4-disk",
            {
                "network": "disk, frozen",
                "keypoints": "5,000 of dedode-l-c4, frozen",
                "steerer": "C4, 128 x 128, trained from random",
                "weights": "depth-save.pth (to be downloaded); dedode_detector_C4.pth (to be downloaded)",
            },
        ),
        ("dagger-b", {"steerer": "none", "network": "dedode-b, 13,518,817 parameters, trained; from vgg"}),
        (
            "prototype-so2-freq1-b",
            {
                "prototype": "trained, for prototype-procrustes",
                "steerer": "SO2, 256 x 256, fixed: freq1, 128x1",
                "weights": "dedode_detector_SO2.pth (to be downloaded); runs/c-so2-freq1-b/model.safetensors (missing)",
            },
        ),
        ("detector-c4", {"network": "dedode-detector-l, 14,559,749 parameters, trained; from vgg"}),
    ],
)
def test_a_dry_run_of_the_paper_s(name: str, expected: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CONFIGS / f"{name}.toml", "--dry-run") == 0
    lines = shown(capsys)
    assert {title: lines[title] for title in expected} == expected


def test_a_dry_run_does_not_touch_data_that_is_not_there(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = ["data.colmap=['street']", "data.colmap_fraction=0.25"]
    assert run(config, "--dry-run", "--data", "gone", "also.tar", "--set", *mixed) == 0
    data = shown(capsys)["data"]
    assert "gone is not there; also.tar is not there; for 25% of the steps street (not there)" in data


def test_a_dry_run_tells_of_mosaics(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "--dry-run", "--data", "gone", "--set", "data.mosaics.fraction=0.6") == 0
    assert "for 60% of the steps mosaics of 3 x 3 photographs at zooms of 0.25 to 1.2" in shown(capsys)["data"]


def test_mosaics_need_photographs(config: Path) -> None:
    for changes, message in (
        (["data.source='colmap'"], "they need source 'folder', not 'colmap'"),
        (["data.colmap_fraction=0.5"], "mosaics.fraction and colmap_fraction add up to 1.1 > 1"),
    ):
        with pytest.raises(ValueError, match=message):
            run(config, "--dry-run", "--set", "data.mosaics.fraction=0.6", *changes)


def test_a_dry_run_counts_the_pairs_of_megadepth(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("0001", "0015"):
        write_megadepth(workplace / "MegaDepth", name, street(), cameras_around(3, size=(48, 36), focal=40, spread=0.2))
    assert run(CONFIGS / "c-c4-perm-b.toml", "--dry-run", "--data", "MegaDepth") == 0
    assert "MegaDepth: 3 pairs, 3 held out" in shown(capsys)["data"]


def test_a_dry_run_of_a_detector_asks_for_the_points_of_megadepth(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cameras = cameras_around(3, size=(48, 36), focal=40, spread=0.2)
    for name in ("0001", "0015"):
        write_megadepth(workplace / "MegaDepth", name, street(), cameras)
    with pytest.raises(ValueError, match="have no points of their reconstructions"):
        run(CONFIGS / "detector-c4.toml", "--dry-run", "--data", "MegaDepth")
    for name in ("0001", "0015"):
        write_detections(workplace / "MegaDepth", name, street(), cameras)
    assert run(CONFIGS / "detector-c4.toml", "--dry-run", "--data", "MegaDepth") == 0
    assert "MegaDepth: 3 pairs, 3 held out" in shown(capsys)["data"]


def test_a_dry_run_of_reconstructions_decodes_nothing(
    config: Path, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scene(workplace / "street", depths=True)
    shutil.copytree(workplace / "street", workplace / "tracks", ignore=shutil.ignore_patterns("stereo"))
    monkeypatch.setattr(PhotoStore, "open", lambda *_: pytest.fail("decoded"))
    alone = ["--dry-run", "--cache", "cache", "--set", "data.source=colmap", "data.held_out=0.3"]
    assert run(config, "--data", "street", *alone) == 0
    assert re.search(r"street: \d+ pairs, \d+ held out", shown(capsys)["data"])
    with pytest.raises(ValueError, match="not every photograph of tracks has a depth map"):
        run(config, "--data", "tracks", *alone)
    beside = ["--dry-run", "--data", "gone", "--set", "data.colmap=['tracks']"]
    assert run(config, *beside, "data.colmap_fraction=0.25") == 0
    assert re.search(r"for 25% of the steps tracks \(\d+ pairs\)", shown(capsys)["data"])
    with pytest.raises(ValueError, match=r"setting 'detector' .*tracks has a depth map"):
        run(config, *beside, "data.colmap_fraction=0.25", "setting=detector")
    assert not (workplace / "cache").exists()


def test_help_says_what_the_minutes_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    assert "loading and the final validation come on top" in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_refuses_what_a_run_would(config: Path) -> None:
    with pytest.raises(ValueError, match="does not have all the rotations"):
        run(config, "--dry-run", "--set", "steerer.group=C4", "steerer.kind=perm")

"""``steerers train``: a descriptor, a steerer or a detector, as a configuration says."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerers.cli import INTERRUPTED, options

if TYPE_CHECKING:
    import torch

    from steerers.training.config import TrainConfig
    from steerers.training.loop import Ended

EXAMPLE = """example:
  steerers train configs/c-c4-perm-b.toml --data MegaDepth --out runs/perm
  steerers train configs/c-c4-perm-b.toml --data MegaDepth --out runs/perm --resume
  steerers train mine.toml --data photographs/ more.tar --set steps=2000 data.views.size=256 steerer.kind=freq1
  steerers train configs/b-so2-b.toml --dry-run
  torchrun --nproc-per-node 4 -m steerers train configs/c-c4-perm-b.toml --data MegaDepth
"""
NOT_LOSSES = {"step", "gradient", "learning_rate", "seconds"}


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a descriptor, a steerer or a detector",
        description="Train what a TOML file says: the paper's Settings A, B and C, rotation-consistent detectors, or "
        "the embedded network; from MegaDepth, COLMAP reconstructions or photographs. Ctrl-C ends a run with a "
        "checkpoint, from which --resume goes on.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="TOML file; configs/ holds the paper's")
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="folders or tars of photographs, the root of MegaDepth, or reconstructions (default: data.path)",
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="folder of the run (default: runs/NAME)")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change the configuration, as in steps=2000 or data.views.size=256",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint of the run")
    parser.add_argument(
        "--max-minutes",
        type=options.above_zero("a positive number of minutes"),
        metavar="M",
        help="end after so long, with a checkpoint; loading and the final validation come on top",
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps (default: cuda where there is one)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where decoded photographs are kept for the next run")
    parser.add_argument("--dry-run", action="store_true", help="show what would run")
    parser.add_argument("--tensorboard", action="store_true", help="log for TensorBoard too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, say what was reached, draw the losses; or only show what would run."""
    from steerers.training.config import load_config, parse_change

    config = load_config(arguments.config, dict(map(parse_change, arguments.set)))
    folder: Path = arguments.out or Path("runs") / config.name
    if arguments.dry_run:
        from steerers.training.overview import overview

        for title, text in overview(config, arguments.data, folder, arguments.device, arguments.cache):
            options.say(f"{title:<15}{text}")
        return 0
    _check_run(folder, arguments.resume)
    if arguments.tensorboard:
        _check_tensorboard()
    with processes(arguments.device) as (device, rank):
        ended = _train(arguments, config, folder, device)
    if rank > 0:
        return 0
    options.say(reached(ended, config, folder))
    options.say(plot(folder))
    if ended.reason == "finished":
        return 0
    options.say(f"go on with: {_command(arguments, folder)}")
    return INTERRUPTED if ended.reason == "interrupted" else 0


def _train(arguments: argparse.Namespace, config: TrainConfig, folder: Path, device: torch.device) -> Ended:
    from steerers.training.build import build_objective
    from steerers.training.loop import train
    from steerers.training.sources import build_sources, needs_detections, places_of

    for place in places_of(config.data, arguments.data):
        if not place.exists():
            raise ValueError(f"no data: there is no {place}")
    objective = build_objective(config)
    detections = needs_detections(config)
    sources = build_sources(config.data, arguments.data, device, arguments.cache, detections=detections)
    try:
        return train(
            config,
            objective,
            sources,
            folder,
            device=device,
            resume=arguments.resume,
            max_minutes=arguments.max_minutes,
            tensorboard=arguments.tensorboard,
        )
    except FloatingPointError as error:
        raise ValueError(str(error)) from error


def _check_run(folder: Path, resume: bool) -> None:
    """Refuse to write over a run, to go on with what is none, and a folder that cannot be made."""
    from steerers.training.loop import CHECKPOINT

    begun = (folder / CHECKPOINT).exists()
    if begun and not resume:
        raise ValueError(
            f"{folder} has a checkpoint already: go on from it with --resume, name another folder with --out, or "
            "delete it"
        )
    if resume and not begun:
        raise ValueError(f"cannot resume: {folder} has no checkpoint; leave --resume out, or name the run with --out")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"cannot write a run to {folder}: {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise ValueError(f"cannot write a run to {folder}: {nearest} is closed")


def _check_tensorboard() -> None:
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise ImportError('TensorBoard is not installed: pip install "steerers[tensorboard]"')


@contextmanager
def processes(device: str | None) -> Iterator[tuple[torch.device, int]]:
    """The device and the rank of this process; under ``torchrun`` it joins the others for as long as the block."""
    import torch
    import torch.distributed as dist

    from steerers.pipeline import parse_device

    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        yield parse_device(name), 0
        return
    if name not in ("cpu", "cuda"):
        raise ValueError(f"torchrun gives each process its own GPU: --device is cpu or cuda, got {name!r}")
    chosen = parse_device(name if name == "cpu" else f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield chosen, dist.get_rank()
    finally:
        dist.destroy_process_group()


# What was reached -----------------------------------------------------------------------------------------------------


def reached(ended: Ended, config: TrainConfig, folder: Path) -> str:
    """One line on how a run ended."""
    how = {"finished": "finished", "time": "out of time", "interrupted": "interrupted"}[ended.reason]
    measured = []
    for name, value in ended.validation.items():
        if "@" not in name:
            rotated = by_rotation(ended.validation, name)
            each = ", ".join(f"{degrees}°: {value:.3f}" for degrees, value in rotated.items())
            measured.append(f"{name} {value:.3f}" + (f" ({each})" if len(rotated) > 1 and name != "nll" else ""))
    held_out = f"; held out: {', '.join(measured)}" if measured else ""
    return f"{how} at step {ended.step} of {config.steps}{held_out}; written to {folder}"


def by_rotation(measured: dict[str, float], name: str) -> dict[int, float]:
    """What validation measured under that name, by degrees."""
    parts = ((key.partition("@"), value) for key, value in measured.items())
    return {int(degrees): value for (own, at, degrees), value in parts if own == name and at}


def plot(folder: Path) -> str:
    """Draw the losses and the measures of a run into its folder; a line on what was drawn."""
    from steerers.training.log import read_log
    from steerers.viz import plots

    entries = read_log(folder)
    drawn = []
    for name, (series, limits) in {
        "losses": ({**_losses(entries), **_measures(entries, "nll", mean=True)}, None),
        "accuracy": (_measures(entries, "accuracy"), (0.0, 1.0)),
        "repeatability": (_measures(entries, "repeatability"), (0.0, 1.0)),
    }.items():
        if not series:
            continue
        few = max(len(steps) for steps, _ in series.values()) < 30
        path = folder / f"{name}.png"
        try:
            plots.curves(path, series, xlabel="step", ylabel=name, ylim=limits, markers=few)
        except ImportError as error:
            return f"no plots: {error}"
        drawn.append(path.name)
    return f"drew {', '.join(drawn)}" if drawn else "no plots: nothing was logged"


Series = dict[str, tuple[list[float], list[float]]]


def _losses(entries: list[dict[str, Any]]) -> Series:
    steps = [entry for entry in entries if "loss" in entry]
    names = dict.fromkeys(name for e in steps for name in e if name not in NOT_LOSSES and not name.endswith("_ms"))
    found = {name: [entry for entry in steps if name in entry] for name in names}
    return {name: ([e["step"] for e in those], [e[name] for e in those]) for name, those in found.items()}


def _measures(entries: list[dict[str, Any]], name: str, *, mean: bool = False) -> Series:
    """What was measured on held-out pairs: its mean, or by rotation."""
    series: Series = {}
    for entry in entries:
        measured = entry.get("validation", {})
        rotated: dict[str, float] = {f"{name}, {key}°": value for key, value in by_rotation(measured, name).items()}
        if mean:
            rotated = {f"{name}, held out": measured[name]} if name in measured else {}
        for label, value in rotated.items():
            steps, values = series.setdefault(label, ([], []))
            steps.append(entry["step"])
            values.append(value)
    return series


def _command(arguments: argparse.Namespace, folder: Path) -> str:
    """The command line that goes on with a run."""
    words = ["steerers", "train", str(arguments.config)]
    words += ["--data", *map(str, arguments.data)] if arguments.data else []
    words += ["--out", str(folder)]
    words += ["--set", *arguments.set] if arguments.set else []
    words += ["--device", arguments.device] if arguments.device else []
    words += ["--cache", str(arguments.cache)] if arguments.cache else []
    return shlex.join([*words, "--resume"])

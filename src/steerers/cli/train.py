"""``steerers train``: a descriptor, a steerer or a detector, as a configuration says."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from steerers._console import INTERRUPTED, Option, flag, tell
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    import torch

    from steerers.training.config import TrainConfig
    from steerers.training.loop import Ended


def run(arguments: argparse.Namespace) -> int:
    """Train, say what was reached, draw the losses; or only show what would run."""
    from steerers.training import loop
    from steerers.training.config import load_config, parse_change
    from steerers.training.run_folder import check_folder, check_tensorboard

    config = load_config(arguments.config, dict(map(parse_change, arguments.set)))
    folder: Path = arguments.out or Path("runs") / config.name
    if arguments.dry_run:
        return _show(arguments, config, folder)
    check_folder(folder, resume=arguments.resume)
    if arguments.tensorboard:
        check_tensorboard()
    with loop.join_processes(arguments.device) as device:
        ended, first = _train(arguments, config, folder, device), loop.rank() == 0
    if not first:
        return 0
    options.say(_reached(ended, config, folder))
    options.say(_draw(folder))
    if ended.reason == "finished":
        return 0
    options.say(f"go on with: {_command(arguments, folder)}")
    return INTERRUPTED if ended.reason == "interrupted" else 0


def _show(arguments: argparse.Namespace, config: TrainConfig, folder: Path) -> int:
    from steerers.training.build import overview
    from steerers.training.run_folder import has_checkpoint

    for title, text in overview(config, arguments.data, arguments.cache):
        options.say(f"{title:<15}{text}")
    options.say(f"{'device':<15}{arguments.device or 'cuda where there is one, else cpu'}")
    options.say(f"{'folder':<15}{folder} ({'has a checkpoint' if has_checkpoint(folder) else 'new'})")
    return 0


def _train(arguments: argparse.Namespace, config: TrainConfig, folder: Path, device: torch.device) -> Ended:
    from steerers.training import loop
    from steerers.training.build import build_objective
    from steerers.training.feed import build_sources, data_paths, needs_detections

    for path in data_paths(config.data, arguments.data):
        if not path.exists():
            raise ValueError(f"no data: there is no {path}")
    if config.data.source != "folder":  # photographs say so themselves, with how far they are
        tell(f"reading {config.data.source}")
    objective, detections = build_objective(config), needs_detections(config)
    sources = build_sources(
        config.data, arguments.data, device, arguments.cache, detections=detections, validation=config.validation
    )
    try:
        return loop.train(
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


def _reached(ended: Ended, config: TrainConfig, folder: Path) -> str:
    """One line on how a run ended."""
    from steerers.viz.plots import by_rotation

    if ended.reason == "interrupted":
        return f"interrupted at step {ended.step} of {config.steps}, checkpoint written to {folder}; not validated"
    how = {"finished": "finished", "time": "out of time"}[ended.reason]
    measured = []
    for name, value in ended.validation.items():
        if "@" not in name:
            rotated = by_rotation(ended.validation, name)
            each = ", ".join(f"{degrees}°: {value:.3f}" for degrees, value in rotated.items())
            measured.append(f"{name} {value:.3f}" + (f" ({each})" if len(rotated) > 1 and name != "nll" else ""))
    held_out = f"; held out: {', '.join(measured)}" if measured else ""
    return f"{how} at step {ended.step} of {config.steps}{held_out}; written to {folder}"


def _draw(folder: Path) -> str:
    """Draw the losses and the measures of a run into its folder; a line on what was drawn."""
    from steerers.training.run_folder import read_log
    from steerers.viz.plots import draw_run

    try:
        drawn = draw_run(read_log(folder), folder)
    except ImportError as error:
        return f"no plots: {error}"
    return f"drew {', '.join(drawn)}" if drawn else "no plots: nothing was logged"


def _command(arguments: argparse.Namespace, folder: Path) -> str:
    """The command line that goes on with a run."""
    words = ["steerers", "train", str(arguments.config)]
    words += ["--data", *map(str, arguments.data)] if arguments.data else []
    words += ["--out", str(folder)]
    words += ["--set", *arguments.set] if arguments.set else []
    words += ["--device", arguments.device] if arguments.device else []
    words += ["--cache", str(arguments.cache)] if arguments.cache else []
    return shlex.join([*words, "--resume"])


COMMAND = Command(
    description="Train what a TOML file says: the paper's Settings A, B and C, rotation-consistent detectors, or "
    "the embedded network; from MegaDepth, COLMAP reconstructions or photographs. Ctrl-C ends a run after its step, "
    "with a checkpoint, from which --resume goes on; a second one ends it at once.",
    example="""\
  steerers train configs/c-c4-perm-b.toml --data MegaDepth --out runs/perm
  steerers train configs/c-c4-perm-b.toml --data MegaDepth --out runs/perm --resume
  steerers train mine.toml --data photographs/ more.tar --set steps=2000 data.views.size=256 steerer.kind=freq1
  steerers train configs/b-so2-b.toml --dry-run
  torchrun --nproc-per-node 4 -m steerers train configs/c-c4-perm-b.toml --data MegaDepth
""",
    options=(
        Option("config", "TOML file; configs/ holds the paper's", Path, "CONFIG"),
        Option(
            "--data",
            "folders or tars of photographs, the root of MegaDepth, or reconstructions (default: data.path)",
            Path,
            "PATH",
            default=[],
            action="extend",
            nargs="+",
        ),
        Option("--out", "folder of the run (default: runs/NAME)", Path, "RUN"),
        Option(
            "--set",
            "change the configuration, as in steps=2000 or data.views.size=256",
            metavar="KEY=VALUE",
            default=[],
            action="extend",
            nargs="+",
        ),
        flag("--resume", "go on from the checkpoint of the run"),
        Option(
            "--max-minutes",
            "end after so long, with a checkpoint; loading and the final validation come on top",
            partial(options.above_zero, what="a positive number of minutes"),
            "M",
        ),
        Option("--device", "cpu, cuda, cuda:1, mps (default: cuda where there is one)"),
        Option("--cache", "where decoded photographs are kept for the next run", Path, "DIR"),
        flag("--dry-run", "show what would run"),
        flag("--tensorboard", "log for TensorBoard too"),
    ),
    run=run,
)

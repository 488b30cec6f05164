"""``steerers spectrum``: the eigenvalues of a steerer, and how they came to lie where they do."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steerers import viz
from steerers._console import Option, positive, progress
from steerers._devices import parse_device
from steerers._files import atomic_write
from steerers.cli import options
from steerers.cli.options import Command

if TYPE_CHECKING:
    from torch import Tensor

    from steerers.steering.representations import Group
    from steerers.steering.steerer import Steerer
    from steerers.training.spectrum import Records, Reduction

SIZE, SIZE_MOVING, SIZE_OF_SEVERAL = 560, 480, 320
COUNT = 12
"""Patches that are drawn, unless another number is asked for."""
PATCH_OPTIONS = ("model", "weights", "frequency", "block", "count", "num_photos")
"""Options that ask for nothing without ``--patches``."""


def _dims(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _natural(text: str) -> int:
    return int(options.number(text, lambda value: value >= 0 and value.is_integer(), "a whole number of at least 0"))


def run(arguments: argparse.Namespace) -> int:
    """Draw, describe, measure."""
    parse_device(arguments.device)
    if arguments.patches is not None:
        from steerers.cli.patches import show_patches

        return show_patches(arguments, arguments.count or COUNT)
    for option in PATCH_OPTIONS:
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option.replace('_', '-')} goes with --patches")
    paths: list[Path] = arguments.paths
    files = [path for path in paths if path.is_file() or path.suffix == ".safetensors"]
    if not files and not _is_fixed(paths):
        return _show_runs(arguments)
    if len(paths) > 1:
        raise ValueError(f"{files[0]}: the file of a steerer is drawn by itself; several are runs, by their folders")
    for option in ("data", "gif"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} is for the folder of a run that trained its steerer; {paths[0]} is none")
    return _show_steerer(paths[0], arguments) if files else _show_fixed(paths[0], arguments)


def _is_fixed(paths: Sequence[Path]) -> bool:
    """Whether it is one run, whose steerer was not trained."""
    from steerers.training.run_folder import read_config
    from steerers.training.spectrum import has_fixed_steerer

    return len(paths) == 1 and has_fixed_steerer(read_config(paths[0]))


def _show_fixed(folder: Path, arguments: argparse.Namespace) -> int:
    """The eigenvalues of a run's steerer, which training left where they were."""
    from steerers.training.run_folder import model_of

    path = model_of(folder)
    options.say(f"{folder}: the steerer of this run is fixed, so that training does not move its eigenvalues")
    return _show_steerer(path, arguments, folder)


def _show_steerer(path: Path, arguments: argparse.Namespace, folder: Path | None = None) -> int:
    """The eigenvalues of the steerer in a file, which is alone or in the folder of a run."""
    from steerers.steering.steerer import Steerer
    from steerers.training.spectrum import common_factor

    picture = arguments.out or (path.with_suffix(".png") if folder is None else folder / "spectrum.png")
    name = path.stem if folder is None else folder.resolve().name
    _check_outputs(picture, None, arguments)
    steerer = Steerer.load(path)
    values = steerer.eigenvalues()
    note = f"{steerer.group}, {steerer.dim} eigenvalues"
    drawn = viz.Spectrum(values, steerer.group, name, note, common_factor(values, steerer.group))
    options.say(f"{path}: {note}")
    options.say(_place("eigenvalues", values, steerer.group))
    options.say(_nearest("steerer", steerer))
    _show_sizes(values, steerer.group, arguments.dims)
    options.save(viz.draw_spectra([[drawn]]), picture)
    options.say_wrote(picture)
    return 0


def _show_runs(arguments: argparse.Namespace) -> int:
    from steerers.training.spectrum import read_records

    paths: list[Path] = arguments.paths
    if len(paths) > 1 and arguments.out is None:
        raise ValueError("several runs are drawn in one picture: say with --out where it shall be")
    picture = arguments.out or paths[0] / "spectrum.png"
    animation = arguments.gif or (paths[0] / "spectrum.gif" if len(paths) == 1 else None)
    runs = [read_records(path) for path in paths]
    _check_outputs(picture, animation, arguments)
    for records in runs:
        _show_run(records, arguments)
    _draw(runs, picture, animation)
    options.say_wrote(picture, animation)
    return 0


def _check_outputs(picture: Path, animation: Path | None, arguments: argparse.Namespace) -> None:
    options.check_output(picture, picture=True)
    if animation is not None:
        if animation.suffix.lower() != ".gif":
            raise ValueError(f"cannot write {animation}: an animation ends in .gif")
        options.check_output(animation)
    options.check_distinct([picture, animation], arguments.paths)


def _draw(runs: Sequence[Records], picture: Path, animation: Path | None) -> None:
    from steerers.training import spectrum

    size = SIZE if len(runs) == 1 else SIZE_OF_SEVERAL
    options.save(viz.draw_spectra(spectrum.start_and_end(runs), size), picture)
    if animation is not None:
        size = SIZE_MOVING if len(runs) == 1 else SIZE_OF_SEVERAL
        moving = [viz.draw_spectra(rows, size) for rows in progress(spectrum.frames(runs), "drawing")]
        with atomic_write(animation) as temporary:
            viz.save_animation(moving, temporary)


# Text -----------------------------------------------------------------------------------------------------------------


def _show_run(records: Records, arguments: argparse.Namespace) -> None:
    from steerers.training.run_folder import load_steerer

    group, steps = records.group, records.steps
    count = records.values.shape[1]
    options.say(
        f"{records.name}: {group} from {records.config.steerer.kind}, {count} eigenvalues at {len(steps)} steps"
    )
    options.say(_place(f"step {steps[0]:,}", records.values[0], group))
    options.say(_place(f"step {steps[-1]:,}", records.values[-1], group))
    values = records.values[-1]
    try:
        steerer, step = load_steerer(records.folder)
    except ValueError as error:
        if arguments.data:
            raise
        options.say(f"  the steerer itself is not looked at: {error}")
    else:
        averaged = ", averaged" if records.config.optimiser.ema else ""
        options.say(_nearest(f"steerer of step {step:,}{averaged}", steerer))
        values = steerer.eigenvalues()
    measured = _measure(records, values, arguments) if arguments.data else None
    _show_sizes(values, group, arguments.dims, measured)


def _place(when: str, values: Tensor, group: Group) -> str:
    """Where eigenvalues lie."""
    from steerers.training.spectrum import summarise

    found = summarise(values, group)
    return (
        f"  {when}: nearest {found.representation} (residual of the eigenvalues {found.residual:.3f}); {found.near} of "
        f"{len(values)} within {viz.NEAR:g} of an admissible place; common factor {found.factor:.3f}"
    )


def _nearest(title: str, steerer: Steerer) -> str:
    try:
        representation, residual = steerer.nearest_representation()
    except ValueError as error:
        return f"  {title}: no representation is near: {error}"
    return f"  {title}: nearest {representation} (residual of the matrix {residual:.3f})"


def _measure(records: Records, values: Tensor, arguments: argparse.Namespace) -> list[Reduction]:
    from steerers.training import spectrum
    from steerers.training.run_folder import load_run

    device = parse_device(arguments.device)
    wanted = spectrum.reductions(values, records.group, arguments.dims or spectrum.default_dims(len(values)))
    source = spectrum.held_out(records.config, arguments.data, device, arguments.cache)
    run = load_run(records.folder)
    return spectrum.measure(run, source, wanted, pairs=arguments.pairs, device=device)


def _show_sizes(values: Tensor, group: Group, dims: list[int] | None, measured: list[Reduction] | None = None) -> None:
    """Sorted magnitudes, and what is left of them in fewer dimensions."""
    from steerers.training import spectrum

    sizes = spectrum.magnitudes(values, group)
    small = int((sizes < spectrum.common_factor(values, group) / 2).sum())
    shown = sizes.log() if group.continuous else sizes
    what = "real parts" if group.continuous else "magnitudes"
    indices = [0, len(sizes) // 4, len(sizes) // 2, 3 * len(sizes) // 4, len(sizes) - 1]
    sample = ", ".join(f"{float(shown[index]):.3f}" for index in indices)
    options.say(f"  {what}, largest, quartiles, smallest: {sample}; {small} below half of the common factor")
    rows = measured or spectrum.reductions(values, group, dims or spectrum.default_dims(len(values)))
    for line in _table(rows, group).splitlines():
        options.say(f"  {line}")
    if measured and measured[0].accuracy["accuracy"] < spectrum.TELLING:
        options.say(
            f"  nothing can be concluded: the accuracy of all {measured[0].dim} dimensions is below "
            f"{spectrum.TELLING:g}; train longer, or measure on data like that of the run"
        )
    elif measured and len(measured) > 1:
        fewest = spectrum.allowed(measured)
        options.say(f"  within {spectrum.TOLERANCE:g} of the accuracy: {fewest.dim} of {len(values)} dimensions")


def _table(rows: Sequence[Reduction], group: Group) -> str:
    """A line for each number of dimensions."""
    degrees = [name for name in rows[0].accuracy if "@" in name]
    table = [["dimensions", "least real part" if group.continuous else "least magnitude", "fraction of weight"]]
    table += [[str(row.dim), f"{row.smallest:.3f}", f"{row.fraction:.4f}"] for row in rows]
    if rows[0].accuracy:
        table[0] += ["accuracy", *(f"{name.partition('@')[2]}°" for name in degrees), "the rest alone"]
        for line, row in zip(table[1:], rows, strict=True):
            line += [f"{row.accuracy[name]:.3f}" for name in ("accuracy", *degrees)]
            line += ["-" if math.isnan(row.rest) else f"{row.rest:.3f}"]
    return options.table(table, ">" * len(table[0]))


COMMAND = Command(
    description="Of a run with a learnable steerer: its eigenvalues at start and end as a picture, all between as "
    "an animation, the nearest representation, and how many dimensions small eigenvalues allow to leave out "
    "(paper, Figure 4 and section 6.5). Of several runs: one picture. Of the file of a steerer, and of a run whose "
    "steerer is fixed: its eigenvalues. With --patches: what excites its blocks, the irreps, and how their responses "
    "rotate (appendix A.1).",
    example="""\
  steerers spectrum runs/c4-perm
  steerers spectrum runs/c4-perm --data photographs/ --dims 256,128,64
  steerers spectrum runs/c4-inv runs/c4-perm runs/so2-spread --out figure.png --gif figure.gif
  steerers spectrum disk-c4.safetensors
  steerers spectrum compact --patches photographs/ --out patches.png
  steerers spectrum disk-c4.safetensors --model disk --patches photographs/ --frequency 2

The fraction of weight is that of the sum of squared magnitudes, of a rotation by one radian for SO2; the rest alone is
the accuracy of the dimensions that are left out. Excitation is the length of the blocks relative to that of the
description; the blocks follow if their response rotates by the frequency times the angle.
""",
    options=(
        Option(
            "paths", "folder of a run, or a steerer's .safetensors; with --patches also a model", Path, "RUN", nargs="+"
        ),
        Option("--out", "the picture (default: spectrum.png or patches.png in the run)", Path, "FILE"),
        Option("--gif", "the animation (default: spectrum.gif in the run)", Path, "FILE"),
        Option(
            "--data",
            "data of the kind that the run was trained on, such as folders of photographs: measures, on what is held "
            "out of it, the matching accuracy before and after dimensions are left out",
            Path,
            "PATH",
            nargs="+",
        ),
        Option(
            "--dims", "dimensions to keep, with commas between (default: all, 3/4, 1/2, 3/8 and 1/4)", _dims, "LIST"
        ),
        Option("--pairs", "to measure at each rotation (default: as the run did)", positive, "N"),
        options.DEVICE,
        Option("--cache", "where decoded photographs are kept", Path, "DIR"),
        Option(
            "--patches",
            "folders or tars of photographs: draw the patches that excite the blocks of each frequency most, and how "
            "these respond as the patches rotate",
            Path,
            "PATH",
            nargs="+",
        ),
        Option("--model", "whose descriptions the steerer of a file steers, for --patches", metavar="NAME"),
        options.WEIGHTS,
        (
            Option("--frequency", "for --patches: its blocks, in detail", _natural, "J"),
            Option("--block", "for --patches: this one, in detail, from 0 on", _natural, "K"),
        ),
        Option("--count", f"for --patches: how many (default: {COUNT})", positive, "N"),
        Option("--num-photos", "for --patches: as many, spread over the photographs (default: all)", positive, "N"),
    ),
    run=run,
)

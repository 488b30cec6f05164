"""The eigenvalues of a run's steerer (paper, Figure 4 and section 6.5).

Where they lie during training, how near they are to a representation, and how many dimensions the small ones among them
allow to leave out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from steerers import viz
from steerers.datasets.pairs import PairSource
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer
from steerers.training.config import TrainConfig
from steerers.training.feed import build_sources
from steerers.training.loop import validate
from steerers.training.objectives import Measures
from steerers.training.objectives.descriptions import Described, DescriptorObjective, Matcher
from steerers.training.objectives.joint import JointObjective
from steerers.training.run_folder import SPECTRUM, LoadedRun, read_config, read_spectrum

FRAMES = 60
TOLERANCE = 0.01
"""How much accuracy a reduction may cost that is said to be allowed."""
TELLING = 0.05
"""The least accuracy of all dimensions with which that of fewer says anything."""

# Records --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Records:
    """The eigenvalues that a run recorded, from its start on; the run may still go on."""

    folder: Path
    config: TrainConfig
    steps: list[int]
    values: Tensor  # (T, D) complex64

    @property
    def name(self) -> str:
        """That of the folder, which tells runs of one configuration apart."""
        return self.folder.resolve().name

    @property
    def group(self) -> Group:
        """The group of the steerer."""
        return Group.parse(self.config.steerer.group)


def has_fixed_steerer(config: TrainConfig) -> bool:
    """Whether a run has a steerer that is not trained."""
    return config.setting != "detector" and config.steerer.kind != "none" and not config.steerer.learn


def read_records(folder: Path) -> Records:
    """The eigenvalues that a run recorded, and its configuration.

    Raises:
        ValueError: if the folder is not that of a run, or of one whose steerer is not trained, or is damaged.
    """
    config = read_config(folder)
    if config.setting == "detector" or config.steerer.kind == "none":
        raise ValueError(f"{folder}: this run has no steerer")
    if has_fixed_steerer(config):
        raise ValueError(
            f"{folder}: the steerer of this run is fixed, so that its eigenvalues stay as they are; draw them by "
            f"themselves, with `steerers spectrum {folder}`"
        )
    if not (folder / SPECTRUM).exists():
        raise ValueError(f"{folder} has no {SPECTRUM} yet: it comes with the first checkpoint")
    return Records(folder, config, *read_spectrum(folder))


# Eigenvalues ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Where eigenvalues lie.

    Attributes:
        representation: the admissible one with the nearest eigenvalues.
        residual: relative distance of the eigenvalues from those of the representation.
        near: how many are within 0.1 of an admissible place, after division by the common factor.
        factor: the common factor of the group element: of the smallest rotation, for SO(2) of a rotation by one radian.
    """

    representation: Representation
    residual: float
    near: int
    factor: float


def summarise(values: Tensor, group: Group) -> Summary:
    """Where (D,) eigenvalues of a generator lie.

    Raises:
        ValueError: if they are not those of a real matrix.
    """
    representation, residual = Steerer.from_matrix(_normal_form(values), group).nearest_representation()
    near = int((distances(values, group) <= viz.NEAR).sum())
    return Summary(representation, residual, near, common_factor(values, group))


def magnitudes(values: Tensor, group: Group) -> Tensor:
    """(D,) float64 absolute values of the group element's eigenvalues, largest first.

    The group element is the smallest rotation of C_n, a rotation by one radian of SO(2).
    """
    precise = values.to(torch.complex128)
    sizes = precise.real.exp() if group.continuous else precise.abs()
    return sizes.sort(descending=True).values


def common_factor(values: Tensor, group: Group) -> float:
    """The median of the larger half of the magnitudes."""
    return float(magnitudes(values, group)[: (len(values) + 1) // 2].median())


def distances(values: Tensor, group: Group) -> Tensor:
    """(D,) how far eigenvalues are from the nearest admissible place, after division by the common factor."""
    factor = max(common_factor(values, group), torch.finfo(torch.float64).tiny)
    precise = values.to(torch.complex128)
    if group.order is None:
        centred = precise - math.log(factor)
        return torch.hypot(centred.real, centred.imag - centred.imag.round())
    unit, step = precise / factor, 2 * math.pi / group.order
    angle = (unit.angle() / step).round() * step
    return (unit - torch.polar(torch.ones_like(angle), angle)).abs()


def _normal_form(values: Tensor) -> Tensor:
    """The (D, D) block-diagonal matrix with the given eigenvalues."""
    blocks = []
    for value in values.tolist():
        if value.imag == 0:
            blocks.append(torch.tensor([[value.real]], dtype=torch.float64))
        elif value.imag > 0:
            a, b = value.real, value.imag
            blocks.append(torch.tensor([[a, -b], [b, a]], dtype=torch.float64))
    matrix = torch.block_diag(*blocks) if blocks else torch.zeros(0, 0)
    if len(matrix) != len(values):
        raise ValueError("the eigenvalues are not those of a real matrix: they must come in conjugate pairs")
    return matrix


# Dimensions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """What is left of descriptions in the span of the eigenvectors with the ``dim`` largest eigenvalues.

    Attributes:
        smallest: the least magnitude that is kept; of SO(2) the least real part.
        fraction: of the sum of squared magnitudes.
        accuracy: matching accuracy, the mean and at each rotation (``@degrees``), where it was measured.
        rest: the accuracy of what is left out, by itself.
    """

    dim: int
    smallest: float
    fraction: float
    accuracy: dict[str, float] = field(default_factory=dict)
    rest: float = math.nan


def default_dims(dim: int) -> list[int]:
    """The dimension, and 3/4, 1/2, 3/8 and 1/4 of it: of 256 that is 256, 192, 128, 96 and 64."""
    return sorted({min(dim, max(2, dim * eighths // 8)) for eighths in (8, 6, 4, 3, 2)}, reverse=True)


def reductions(values: Tensor, group: Group, dims: Sequence[int]) -> list[Reduction]:
    """What reductions to ``dims`` keep, most dimensions first, and before them all.

    It is one less where a pair of conjugate eigenvalues would be torn apart.
    """
    for dim in dims:
        if not 1 <= dim <= len(values):
            raise ValueError(f"dimensions must be 1 to {len(values)}, which is what descriptions have, got {dim}")
    sizes = magnitudes(values, group)
    energy = sizes.square().cumsum(0) / sizes.square().sum()
    kept = {_kept(values, group, dim) for dim in (len(values), *dims)}
    least = sizes.log() if group.continuous else sizes
    return [Reduction(d, float(least[d - 1]), float(energy[d - 1])) for d in sorted(kept, reverse=True)]


def _kept(values: Tensor, group: Group, dim: int) -> int:
    """How many of the largest eigenvalues are kept of at most ``dim``, conjugates together."""
    upper = values.to(torch.complex128)[values.imag >= 0]
    sizes = upper.real if group.continuous else upper.abs()
    counts = torch.where(upper.imag > 0, 2, 1)[sizes.argsort(descending=True, stable=True)].cumsum(0)
    fitting = counts[counts <= dim]
    if not len(fitting):
        raise ValueError(f"dimensions must be at least 2 here: the largest eigenvalues are a conjugate pair, got {dim}")
    return int(fitting[-1])


def allowed(measured: Sequence[Reduction]) -> Reduction:
    """The reduction to the fewest dimensions that costs at most 0.01 of the accuracy."""
    full = measured[0].accuracy["accuracy"]
    good = [reduction for reduction in measured if reduction.accuracy["accuracy"] >= full - TOLERANCE]
    return min(good, key=lambda reduction: reduction.dim)


def held_out(config: TrainConfig, paths: Sequence[Path], device: torch.device, cache: Path | None = None) -> PairSource:
    """The pairs that the validation of a run uses."""
    data = replace(config.data, colmap=(), colmap_fraction=0.0)
    return build_sources(data, paths, device, cache).validation


def measure(
    run: LoadedRun,
    source: PairSource,
    wanted: Sequence[Reduction],
    *,
    pairs: int | None = None,
    device: torch.device | None = None,
) -> list[Reduction]:
    """Reductions with the matching accuracy of the reduced descriptions, measured as the validation of the run is.

    Args:
        source: see :func:`held_out`.
        pairs: at each rotation; by default as many as the validation of the run takes.

    Raises:
        ValueError: if the steerer has no basis of eigenvectors, or there are no true matches.
    """
    device, objective = device or torch.device("cpu"), run.objective
    if not isinstance(objective, (DescriptorObjective, JointObjective)) or objective.steerer is None:
        raise ValueError("this run has no steerer, so that there is nothing to reduce by")
    validation = replace(run.config.validation, pairs=pairs or run.config.validation.pairs)
    config = replace(run.config, validation=validation)
    matcher = objective.matcher
    objective.matcher = _Shorter(matcher, objective.steerer, [reduction.dim for reduction in wanted]).to(device)
    try:
        measured = validate(config, objective.to(device), source, device)
    finally:
        objective.matcher = matcher
    if not any(":accuracy" in name for name in measured):
        raise ValueError("nothing was measured: there are no true matches between the held-out views")
    reduced = []
    for reduction in wanted:
        own = {name.split(":")[1]: value for name, value in measured.items() if name.startswith(f"{reduction.dim}:")}
        accuracy = {name: value for name, value in own.items() if name.startswith("accuracy")}
        reduced.append(replace(reduction, accuracy=accuracy, rest=own.get("rest", math.nan)))
    return reduced


class _Shorter(Matcher):
    """Measures matches of reduced descriptions, for several dimensions at once, in place of an objective's matcher."""

    def __init__(self, matcher: Matcher, steerer: Steerer, dims: Sequence[int]) -> None:
        super().__init__(matcher.steerer, matcher.options)
        parts = {f"{dim}:accuracy": steerer.reduced(dim) for dim in dims}
        parts |= {f"{dim}:rest": rest for dim in dims if (rest := _left_out(steerer, dim)) is not None}
        self.parts = {name: (projection, Matcher(own, matcher.options)) for name, (projection, own) in parts.items()}
        self.matchers = nn.ModuleList(own for _, own in self.parts.values())  # so that they move to the device

    @torch.no_grad()
    def measure(self, pairs: Described) -> Measures:
        measures: Measures = {}
        with torch.autocast(pairs.first.device.type, enabled=False):
            for name, (projection, matcher) in self.parts.items():
                shorten = projection.to(pairs.first.device, torch.float32).mT  # (D, d)
                shorter = replace(pairs, first=pairs.first.float() @ shorten, second=pairs.second.float() @ shorten)
                measures[name] = matcher.measure(shorter)["accuracy"]
        return measures


def _left_out(steerer: Steerer, dim: int) -> tuple[Tensor, Steerer] | None:
    """The projection to what :meth:`Steerer.reduced` leaves out, and its steerer, as a control.

    It keeps the largest eigenvalues of the opposite rotation, which has the same eigenvectors. ``None`` if nothing is
    left out, or the steerer has eigenvalues of zero and so no opposite.
    """
    generator, group = steerer.generator().detach().double().cpu(), steerer.group
    if dim == steerer.dim:
        return None
    try:
        projection, opposite = Steerer.from_matrix(_opposite(generator, group), group).reduced(steerer.dim - dim)
        return projection, Steerer.from_matrix(_opposite(opposite.generator(), group), group)
    except (ValueError, RuntimeError):
        return None


def _opposite(generator: Tensor, group: Group) -> Tensor:
    inverse: Tensor = -generator if group.continuous else torch.linalg.inv(generator)
    return inverse


# Pictures -------------------------------------------------------------------------------------------------------------


def start_and_end(runs: Sequence[Records]) -> list[list[viz.Spectrum]]:
    """Rows for :func:`steerers.viz.draw_spectra`: one run's start beside its end, several runs' starts above ends."""
    starts, ends = ([_spectrum(run, index, when) for run in runs] for index, when in ((0, "start"), (-1, "end")))
    return [starts + ends] if len(runs) == 1 else [starts, ends]


def frames(runs: Sequence[Records], most: int = FRAMES) -> list[list[list[viz.Spectrum]]]:
    """The rows of each picture of an animation: runs side by side, from start to end at the same time."""
    count = min(most, max(len(run.steps) for run in runs))
    times = [number / max(1, count - 1) for number in range(count)]  # 0 is the start, 1 the end
    return [[[_spectrum(run, round(time * (len(run.steps) - 1))) for run in runs]] for time in times]


def _spectrum(run: Records, index: int, when: str = "") -> viz.Spectrum:
    note = ", ".join(filter(None, [str(run.group), when, f"step {run.steps[index]:,}"]))
    factor = common_factor(run.values[index], run.group)
    extent = viz.spectrum_extent(run.values, run.group)
    return viz.Spectrum(run.values[index], run.group, run.name, note, factor, extent)

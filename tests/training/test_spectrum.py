"""Eigenvalues of runs: where they lie, and what small ones allow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import assert_near, groups, randn, representations, seeds
from steerers import viz
from steerers.steering.representations import Group, Representation
from steerers.steering.steerer import Steerer
from steerers.training import spectrum
from steerers.training.config import ModelConfig, OptimiserConfig
from steerers.training.objectives.descriptions import Described, Matcher, MatchingOptions
from steerers.training.objectives.joint import JointObjective
from steerers.training.run_folder import MODEL, load_run
from steerers.training.spectrum import (
    Records,
    Reduction,
    allowed,
    common_factor,
    default_dims,
    distances,
    frames,
    held_out,
    magnitudes,
    measure,
    read_records,
    reductions,
    start_and_end,
    summarise,
)
from training.runs import CPU, fake_run, make_run, small_config
from training.tiny import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")
C4, SO2 = Group(4), Group(None)


# Where eigenvalues lie ------------------------------------------------------------------------------------------------


def scaled(values: Tensor, group: Group, factor: float) -> Tensor:
    """Eigenvalues of the generator of a group element that is ``factor`` times as large."""
    return values + math.log(factor) if group.continuous else values * factor


@given(representations(), st.floats(0.2, 5))
def test_a_representation_is_found_whatever_its_factor(representation: Representation, factor: float) -> None:
    group = representation.group
    found = summarise(scaled(representation.eigenvalues(), group, factor), group)
    assert found.representation.is_equivalent(representation)
    assert found.residual < 1e-6
    assert found.near == representation.dim
    assert found.factor == pytest.approx(factor)


@given(groups(), st.integers(1, 10), seeds)
def test_distances_are_to_the_nearest_of_all_admissible_places(group: Group, dim: int, seed: int) -> None:
    values = torch.complex(randn(dim, seed=seed), 3 * randn(dim, seed=seed + 1))
    factor = common_factor(values, group)
    if group.order is None:
        places, unit = 1j * torch.arange(-20, 21, dtype=torch.float64), values - math.log(factor)
    else:
        places, unit = torch.polar(torch.ones(group.order).double(), group.angles()), values / factor
    assert_near(distances(values, group), (unit[:, None] - places).abs().amin(dim=1), 1e-9)


def test_small_eigenvalues_do_not_move_the_common_factor() -> None:
    values = torch.tensor([1.2, -1.2, 1.2j, -1.2j, 0.01, -0.02, 0.03j, -0.03j])
    found = summarise(values, C4)
    assert found.factor == pytest.approx(1.2)
    assert found.near == 4
    assert 0 < found.residual < 1


def test_the_residual_is_that_of_a_normal_steerer() -> None:
    """Of an orthogonal basis, eigenvalues say all that the matrix does."""
    steerer = Steerer.from_matrix(
        torch.block_diag(1.1 * Steerer.perm(8).generator(), torch.tensor([[0.4]]).double()), C4
    )
    representation, residual = steerer.nearest_representation()
    found = summarise(steerer.eigenvalues(), C4)
    assert found.representation.is_equivalent(representation)
    assert found.residual == pytest.approx(residual, abs=1e-9)


def test_no_eigenvalues_but_zero() -> None:
    assert summarise(torch.zeros(4, dtype=torch.complex64), C4).near == 0
    assert summarise(torch.zeros(4, dtype=torch.complex64), SO2).near == 4


def test_eigenvalues_of_no_real_matrix_are_refused() -> None:
    with pytest.raises(ValueError, match="conjugate pairs"):
        summarise(torch.tensor([1j, 1 + 0j]), C4)


def test_magnitudes_are_those_of_the_group_element() -> None:
    values = torch.tensor([0.3 + 0.4j, 0.3 - 0.4j, -2 + 0j])
    assert_near(magnitudes(values, C4), torch.tensor([2, 0.5, 0.5]), 1e-6)
    assert_near(magnitudes(values, SO2), torch.tensor([0.3, 0.3, -2]).exp(), 1e-6)


# Dimensions -----------------------------------------------------------------------------------------------------------


def test_default_dimensions() -> None:
    assert default_dims(256) == [256, 192, 128, 96, 64]
    assert default_dims(3) == [3, 2]
    assert default_dims(1) == [1]


@given(st.sampled_from(["C4", "C5", "SO2"]), st.integers(2, 12), seeds)
def test_reductions_keep_what_the_reduced_steerer_has(group: str, dim: int, seed: int) -> None:
    steerer = Steerer.random(dim, group, generator=torch.Generator().manual_seed(seed))
    values = steerer.eigenvalues()
    for wanted in range(2, dim + 1):
        whole, *fewer = reductions(values, steerer.group, [wanted])
        assert whole.dim == dim
        assert whole.fraction == pytest.approx(1)
        found = fewer[0] if fewer else whole
        reduced = steerer.reduced(wanted)[1]
        assert found.dim == reduced.dim
        kept = reduced.eigenvalues()
        least = float(kept.real.min() if steerer.group.continuous else kept.abs().min())
        assert found.smallest == pytest.approx(least, abs=1e-4)
        energy = magnitudes(values, steerer.group).square()
        assert found.fraction == pytest.approx(float(energy[: found.dim].sum() / energy.sum()))


@pytest.mark.parametrize(("dims", "message"), [([0], "1 to 4"), ([5], "1 to 4.*got 5"), ([1], "at least 2")])
def test_impossible_dimensions_are_refused(dims: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reductions(torch.tensor([2j, -2j, 1, 1]), C4, dims)


def test_what_a_reduction_may_cost() -> None:
    measured = [Reduction(d, 0, 0, {"accuracy": a}) for d, a in ((8, 0.5), (6, 0.52), (4, 0.492), (2, 0.4))]
    assert allowed(measured).dim == 4


@pytest.mark.parametrize("group", ["C4", "SO2"])
def test_idle_dimensions_can_be_left_out(group: str) -> None:
    """Eight dimensions rotate with the image, the other four are noise and have small eigenvalues."""
    good = Steerer.from_spec("2x0 + 3x1", group)
    idle = 0.1 * torch.eye(4).double() if group == "C4" else -2 * torch.eye(4).double()
    basis = torch.linalg.qr(randn(12, 12, seed=3))[0] @ torch.diag(torch.linspace(0.5, 2, 12).double())
    whole = basis @ torch.block_diag(good.generator(), idle) @ torch.linalg.inv(basis)
    angles = torch.tensor([math.pi / 2, math.pi], dtype=torch.float64)
    second = torch.cat([randn(2, 40, 8), 3 * randn(2, 40, 4, seed=1)], dim=2)
    first = torch.cat([good.steer(second[..., :8], angles[:, None]), 3 * randn(2, 40, 4, seed=2)], dim=2)
    matches = torch.cartesian_prod(torch.arange(2), torch.arange(40))[:, [0, 1, 1]]
    real = torch.ones(2, 40, dtype=torch.bool)
    steerer = Steerer.from_matrix(whole.float(), group, learnable=True)
    shorter = spectrum._Shorter(Matcher(steerer, MatchingOptions()), steerer, [12, 8])
    pairs = Described((first @ basis.T).float(), (second @ basis.T).float(), angles, matches, (real, real))
    measured = shorter.measure(pairs)
    accuracy = {name: total / count for name, (total, count) in measured.items()}
    assert set(accuracy) == {"12:accuracy", "8:accuracy", "8:rest"}
    assert accuracy["8:accuracy"] == 1
    assert accuracy["8:rest"] < 0.2
    assert accuracy["12:accuracy"] < 1


def test_without_an_opposite_there_is_no_control() -> None:
    steerer = Steerer.from_matrix(torch.diag(torch.tensor([1.0, -1.0, 0.0])), "C4")
    assert set(spectrum._Shorter(Matcher(steerer, MatchingOptions()), steerer, [2]).parts) == {"2:accuracy"}


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["C4", "SO2"])
def test_what_is_measured_of_all_dimensions_is_what_the_run_measured(
    trained: dict[str, tuple[Path, dict[str, float]]], photographs: Path, group: str
) -> None:
    folder, at_end = trained[group]
    run = load_run(folder)
    assert run.objective.steerer is not None
    rows = reductions(run.objective.steerer.eigenvalues(), Group.parse(group), [SMALL.dim, 4])
    measured = measure(run, held_out(run.config, [photographs], CPU), rows)
    assert [row.dim for row in measured] == [row.dim for row in rows]
    assert measured[0].accuracy == pytest.approx({k: v for k, v in at_end.items() if k.startswith("accuracy")})
    assert math.isnan(measured[0].rest)
    assert 0 <= measured[1].rest <= 1
    assert measured[1].accuracy.keys() == measured[0].accuracy.keys()
    again = measure(run, held_out(run.config, [photographs], CPU), rows)  # the objective is as it was
    assert again[0].accuracy == measured[0].accuracy


def test_descriptors_with_a_detector_and_frozen_ones(tmp_path: Path, photographs: Path) -> None:
    """Setting B, and Setting A for the descriptor that it leaves; its file of origin is read for A alone."""
    model = ModelConfig(compact=SMALL, detector="sift")
    common = {"model": model, "steps": 1, "optimiser": OptimiserConfig()}
    make_run(tmp_path / "b", photographs, small_config("C4", setting="B", **common))
    trained = load_run(tmp_path / "b")
    frozen = replace(model, weights=str(tmp_path / "b" / MODEL))
    make_run(tmp_path / "a", photographs, small_config("C4", setting="A", **(common | {"model": frozen})))
    again = load_run(tmp_path / "a")
    for run in (trained, again):
        assert run.objective.steerer is not None
        values = run.objective.steerer.eigenvalues()
        assert measure(run, held_out(run.config, [photographs], CPU), reductions(values, C4, [2]))[0].dim == SMALL.dim
    ours, theirs = (run.objective.state_dict() for run in (again, trained))
    for name in ours:
        if name.startswith("descriptor."):
            torch.testing.assert_close(ours[name], theirs[name])


def test_nothing_to_measure_is_told(trained: dict[str, tuple[Path, dict[str, float]]], photographs: Path) -> None:
    run = load_run(trained["C4"][0])
    assert isinstance(run.objective, JointObjective)
    run.objective.matching = replace(run.config.matching, radius=1e-6)
    with pytest.raises(ValueError, match="no true matches"):
        measure(run, held_out(run.config, [photographs], CPU), [Reduction(8, 0, 0)], pairs=1)


# Pictures -------------------------------------------------------------------------------------------------------------


VALUES = torch.tensor([[1, -1, 1j, -1j]])


def records(tmp_path: Path, name: str, length: int, group: str = "C4") -> Records:
    values = torch.linspace(0.5, 2, length)[:, None] * VALUES
    return read_records(fake_run(tmp_path / name, values, list(range(0, 10 * length, 10)), group))


def test_start_and_end_have_the_same_axes(tmp_path: Path) -> None:
    one, two = records(tmp_path, "one", 3), records(tmp_path, "two", 5, "SO2")
    ((start, end),) = start_and_end([one])
    assert (start.title, start.note, end.note) == ("one", "C4, start, step 0", "C4, end, step 20")
    assert start.extent == end.extent == viz.spectrum_extent(one.values, C4)
    assert (start.factor, end.factor) == (pytest.approx(0.5), pytest.approx(2))
    above, below = start_and_end([one, two])
    assert [spectrum.title for spectrum in above] == [spectrum.title for spectrum in below] == ["one", "two"]
    assert [spectrum.note for spectrum in below] == ["C4, end, step 20", "SO2, end, step 40"]


def test_an_animation_shows_start_and_end_and_no_more_than_asked(tmp_path: Path) -> None:
    short, long = records(tmp_path, "short", 3), records(tmp_path, "long", 30)
    moving = frames([short, long], 7)
    steps = [[spectrum.note for spectrum in row] for (row,) in moving]
    assert len(steps) == 7
    assert steps[0] == ["C4, step 0", "C4, step 0"]
    assert steps[-1] == ["C4, step 20", "C4, step 290"]
    assert len({spectrum.extent for (row,) in moving for spectrum in row[1:]}) == 1
    assert len(frames([short])) == 3
    assert len(frames([records(tmp_path, "single", 1)])) == 1

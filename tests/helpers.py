"""What several test files share: random groups, representations and angles, and textbook forms to compare with."""

from __future__ import annotations

import contextlib
import io
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from steerers.cli import main
from steerers.features import Keypoints
from steerers.models.base import Descriptor, Detector, Extractor
from steerers.steering.representations import Group, Representation

EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIG_FOLDER = Path(__file__).parents[1] / "configs"
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-9}

seeds = st.integers(0, 2**32 - 1)

# Strategies -----------------------------------------------------------------------------------------------------------


def cyclic_groups(max_order: int = 12) -> st.SearchStrategy[Group]:
    """C_2 to C_max_order, odd orders included."""
    return st.integers(2, max_order).map(Group)


def groups(max_order: int = 12) -> st.SearchStrategy[Group]:
    """SO(2) about half of the time, else a cyclic group."""
    return st.just(Group(None)) | cyclic_groups(max_order)


def frequencies(group: Group) -> st.SearchStrategy[int]:
    """Every frequency of C_n; -6 to 6 of SO(2)."""
    return st.integers(-6, 6) if group.order is None else st.integers(0, group.order - 1)


def representations_of(
    group: Group, max_terms: int = 4, max_multiplicity: int = 3
) -> st.SearchStrategy[Representation]:
    """Representations of one group, terms in any order and repeated at will."""
    term = st.tuples(st.integers(1, max_multiplicity), frequencies(group))
    return st.lists(term, min_size=1, max_size=max_terms).map(lambda terms: Representation(group, tuple(terms)))


def representations(
    of: st.SearchStrategy[Group] | None = None, max_terms: int = 4, max_multiplicity: int = 3
) -> st.SearchStrategy[Representation]:
    """Representations of random groups (by default any), of dimension 1 to 24."""
    return (groups() if of is None else of).flatmap(
        lambda group: representations_of(group, max_terms, max_multiplicity)
    )


def angles_of(group: Group) -> st.SearchStrategy[float]:
    """Rotations of a group in radians, of both signs and beyond a full turn."""
    if group.order is None:
        return st.floats(-10, 10)
    step = 2 * math.pi / group.order
    return st.integers(-30, 30).map(lambda k: k * step)


@st.composite
def acting(
    draw: st.DrawFn, count: int = 1, of: st.SearchStrategy[Group] | None = None
) -> tuple[Representation, list[float]]:
    """A representation and ``count`` rotations of its group."""
    representation = draw(representations(of))
    return representation, [draw(angles_of(representation.group)) for _ in range(count)]


@st.composite
def permutations_of(draw: st.DrawFn, group: Group, max_cycles: int = 4) -> Tensor:
    """(D,) permutations that represent C_n: cycles of any lengths that divide n, on shuffled coordinates."""
    order = group.order or 0
    divisors = [length for length in range(1, order + 1) if order % length == 0]
    lengths = draw(st.lists(st.sampled_from(divisors), min_size=1, max_size=max_cycles))
    shuffled = draw(st.permutations(range(sum(lengths))))
    permutation, start = torch.empty(len(shuffled), dtype=torch.long), 0
    for length in lengths:
        cycle = torch.tensor(shuffled[start : start + length])
        permutation[cycle] = cycle.roll(-1)
        start += length
    return permutation


# Random tensors -------------------------------------------------------------------------------------------------------


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal entries from a generator of its own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_orthogonal(dim: int, seed: int = 0) -> Tensor:
    """(dim, dim) float64 orthogonal matrix."""
    return torch.linalg.qr(randn(dim, dim, seed=seed))[0]


def random_basis(dim: int, seed: int = 0) -> Tensor:
    """(dim, dim) float64 matrix with condition number of at most 4, far from orthogonal."""
    stretch = torch.linspace(0.5, 2.0, dim, dtype=torch.float64)
    return random_orthogonal(dim, seed) @ torch.diag(stretch) @ random_orthogonal(dim, seed + 1)


# Textbook forms -------------------------------------------------------------------------------------------------------


def textbook_matrix(representation: Representation, angle: float) -> Tensor:
    """(D, D) float64 direct sum of the paper's irreducible blocks, written out one by one."""
    blocks = []
    order = representation.group.order
    for multiplicity, frequency in representation.terms:
        c, s = math.cos(frequency * angle), math.sin(frequency * angle)
        single = frequency == 0 or 2 * frequency == order
        block = torch.tensor([[c]] if single else [[c, -s], [s, c]], dtype=torch.float64)
        blocks += [block] * multiplicity
    return torch.block_diag(*blocks)


def count_near(values: Tensor, target: complex, within: float = 1e-6) -> int:
    """How many complex numbers lie near ``target``."""
    return int(((values - target).abs() < within).sum())


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Same shape, and every entry within ``tolerance``, absolute and relative; dtypes may differ."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def assert_same_multiset(actual: Tensor, expected: Tensor, within: float = 1e-6) -> None:
    """The same complex numbers, equally often, in any order."""
    assert actual.shape == expected.shape
    for value in unique_values(expected.tolist(), within):
        assert count_near(actual, value, within) == count_near(expected, value, within), value


def unique_values(values: Iterable[complex], within: float) -> list[complex]:
    """One of each cluster of nearby values."""
    kept: list[complex] = []
    for value in values:
        if all(abs(value - other) >= within for other in kept):
            kept.append(value)
    return kept


class Ran(NamedTuple):
    """What a command line left behind."""

    code: int
    out: str
    err: str


def run_command(*arguments: str | Path) -> Ran:
    """Run ``steerers`` with these arguments in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # what argparse itself refuses, and help
            code = int(stop.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


def assert_refused(arguments: Sequence[str | Path], message: str) -> None:
    """A command line ends with exit code 2 and one line on standard error that holds ``message``, before any other."""
    code, out, err = run_command(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"steerers( \w[\w-]*)*: [^\n]+\n", err), err
    assert message in err


def run_on_full_disk(code: str, folder: Path, room: int) -> tuple[list[str], list[str]]:
    """The lines that Python code prints, as output and as errors, in a process of its own, where no file can be longer
    than ``room`` bytes."""
    limit = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails then, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
"""
    done = subprocess.run([sys.executable, "-c", limit + code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def contents(folder: Path) -> list[str]:
    """What lies in a folder, lock files aside."""
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.is_dir() else []


# One image at a time --------------------------------------------------------------------------------------------------


def detect_image(model: Detector, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
    """The keypoints of a (3, H, W) image with an (H, W) mask."""
    masks = None if mask is None else mask[None]
    return model.detect(image[None], num_keypoints=num_keypoints, masks=masks)[0]


def describe_image(model: Descriptor, image: Tensor, keypoints: Keypoints) -> Tensor:
    """The (N, D) descriptions of keypoints of a (3, H, W) image."""
    return model.describe(image[None], [keypoints])[0]


def extract_image(
    model: Extractor, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None
) -> tuple[Keypoints, Tensor]:
    """Keypoints of a (3, H, W) image with an (H, W) mask, and their descriptions."""
    masks = None if mask is None else mask[None]
    return model.extract(image[None], num_keypoints=num_keypoints, masks=masks)[0]

"""Keypoints of a collection in their exact places, before it is mapped.

A keypoint is matched with many photographs. Registration of the two patches of each match (:mod:`steerers.refinement`)
tells by how much the keypoint of the second photograph would have to move to lie where that of the first is seen; moved
for one pair alone it would leave the others. So what all pairs say is put together along tracks, as Dusmanu et al.
(ECCV 2020) and pixel-perfect SfM (Lindenberger et al., ICCV 2021) do: the moves ``u`` of all keypoints are those that
minimise

    sum over matches (i, j) of |u_j - A_ij u_i - d_ij|^2  +  sum over keypoints of |u_i|^2,

where ``d_ij`` is the move that registration found and ``A_ij`` how a small move in the first photograph looks in the
second; each match weighs as its covariance says, a keypoint as exactly as detectors place one, and a match that
contradicts the others weighs little. Every keypoint moves once, and has one place in all of its pairs.

Photographs that were shrunk to be matched are registered twice: as they were matched, which finds the place, and then,
from there, at up to twice that size, which makes it more exact.

Matches that could not be registered are not used any more where a pair has others: most are not one thing seen twice,
but lie on each other's epipolar lines by chance, and would join two tracks.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerers._console import Progress
from steerers._parallel import spread, spread_on
from steerers._tables import Table, write_table
from steerers.collection.shards import Shards, cut
from steerers.collection.store import PAIRS_A_SHARD, Collection, Pair, Photograph
from steerers.collection.verification import Adjusted, Verified, view_of
from steerers.features import angle_of_each
from steerers.geometry import DETECTED, DOUBTED, EXACT
from steerers.images.load import load_image
from steerers.refinement import RefinedKeypoints, RefineOptions, Shown, refine_keypoints

AT_ONCE = 8
"""Pairs that are registered together, on all threads."""
OPEN, MEGAPIXELS = 32, 40
"""Photographs that are kept, decoded, for the pairs that follow: so many, and so large together, at about 25 MB a
megapixel."""
FINER, WORTH = 2.0, 1.1
"""How many times larger than they were matched photographs are registered at most, as far as they are stored so large;
and at least, or it is not worth a second time."""
NEAR = 1.0
"""Pixels of the larger image, by which a place moves that is registered again; what would move farther is not better
known than before."""
ROUNDS = 8
"""Solutions, each with the weights that follow from the one before."""

KIND = "adjusted keypoints"
"""Of the file, see :class:`~steerers._tables.Table`."""


def finer(shrunk: float, resize: str) -> float:
    """How many times larger than it was matched a photograph is registered, by the stored pixels of a matched one."""
    return min(shrunk, FINER) if resize == "fit" and shrunk >= WORTH else 1.0


def adjust(
    verified: Verified,
    options: RefineOptions | None = None,
    *,
    keep_contradicted: bool = False,
    device: torch.device | str = "cpu",
) -> Adjusted:
    """Bring the keypoints of a collection to their exact places, by the inliers of its verified pairs.

    What pairs say is kept in ``refined/``, so that an interrupted run goes on; the places in ``refined/keypoints.h5``.

    Raises:
        OSError: naming the file, if a photograph cannot be read again or a file cannot be written.
    """
    options, pairs = options or RefineOptions(), verified.chosen(keep_contradicted)
    told = {"refinement": asdict(options), "finer": [FINER, WORTH, NEAR]}
    about = {**told, "matching": verified.collection.manifest.matching, **verified.about}
    shards = _refine_pairs(verified, pairs, options, about, torch.device(device))
    path, about = shards.folder / "keypoints.h5", {**about, "pairs": _checksum(pairs)}
    if not _is_made(path, about):
        _write(path, about, verified, _solve(verified.collection, shards, pairs))
    keypoints, about = _read(path)
    return Adjusted(keypoints, lambda pair: _registered(shards, pair), about)


def _registered(shards: Shards, pair: Pair) -> NDArray[np.bool_] | None:
    """(K,) which matches of a pair were registered; ``None`` if it was not tried."""
    if shards.shard_of(pair) is None:
        return None
    found: NDArray[np.bool_] = shards.read(pair, "registered")[0].astype(bool)
    return found


def _checksum(pairs: Iterable[Pair]) -> str:
    return hashlib.sha256("".join(f"{first}\t{second}\n" for first, second in pairs).encode()).hexdigest()


def _is_made(path: Path, about: dict[str, Any]) -> bool:
    """Whether the places are there, and of these pairs."""
    try:
        with Table(path, KIND) as table:
            return bool(table.about == about)
    except (OSError, ValueError):
        return False


def _read(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    with Table(path, KIND) as table:
        names = (str(row["name"]) for row in table.rows)
        return {name: table.read(index, "keypoints")[0] for index, name in enumerate(names)}, table.about


def _write(path: Path, about: dict[str, Any], verified: Verified, moves: dict[str, NDArray[np.float32]]) -> None:
    with write_table(path, KIND, about) as table:
        for name in verified.names:
            table.append({"name": name}, {"keypoints": verified.collection.keypoints(name) + moves[name]})


# What pairs say -------------------------------------------------------------------------------------------------------


def _refine_pairs(
    verified: Verified, pairs: Sequence[Pair], options: RefineOptions, about: dict[str, Any], device: torch.device
) -> Shards:
    """Register the inliers of pairs, those of one shard after another; what is there stays."""
    collection = verified.collection
    folder = collection.folder / "refined"
    shards = Shards(folder, "refined pairs", folder / "plan.txt", 2, lambda row: (str(row["name0"]), str(row["name1"])))
    plan = shards.extend(pairs, PAIRS_A_SHARD, about, _check)
    left = [number for number in range(len(plan)) if not shards.done(number)]
    images = _Images(collection, device)
    total, done = sum(map(len, plan)), sum(len(shard) for n, shard in enumerate(plan) if n not in left)
    with Progress("refining", total, "pair", done=done) as progress:
        for number in left:
            with shards.write(number, about) as table:
                for some in cut(plan[number], AT_ONCE):
                    images.open(list(dict.fromkeys(chain.from_iterable(some))))
                    found = spread_on(device, lambda pair: _register(verified, images, pair, options), some)
                    for (first, second), told in zip(some, found, strict=True):
                        table.append({"name0": first, "name1": second}, told._asdict())
                        progress.advance()
    return shards


def _check(table: Table) -> None:
    """Refuse a shard in which numbers are missing.

    Raises:
        ValueError: saying so.
    """
    counts = [table.lengths(column) for column in _Registered._fields[1:]]
    if any(count != counts[0] for count in counts):
        raise ValueError(f"{table.path}: damaged, a pair lacks numbers")


class _Seen(NamedTuple):
    """A photograph as it was shown to the model, and larger; the same where it is not stored so."""

    shown: Shown
    larger: Shown

    @property
    def pixels(self) -> int:
        """Of both."""
        shown, larger = (image.resolutions.image.numel() for image in self)
        return shown if self.larger is self.shown else shown + larger


class _Images:
    """The photographs of a collection, of which few are kept."""

    def __init__(self, collection: Collection, device: torch.device) -> None:
        self.collection, self.device = collection, device
        self._kept: OrderedDict[str, _Seen] = OrderedDict()

    def open(self, names: Sequence[str]) -> None:
        """Decode those of some names that are not there, on all threads, and forget those used longest ago."""
        missing = [name for name in names if name not in self._kept]
        self._kept.update(zip(missing, spread(self._read, missing), strict=True))
        for name in names:
            self._kept.move_to_end(name)
        pixels = sum(seen.pixels for seen in self._kept.values())
        while len(self._kept) > len(names) and (len(self._kept) > OPEN or pixels > MEGAPIXELS * 1e6):
            pixels -= self._kept.popitem(last=False)[1].pixels

    def __getitem__(self, name: str) -> _Seen:
        return self._kept[name]

    def _read(self, name: str) -> _Seen:
        how = self.collection.manifest.extraction
        assert how.max_size != "default"  # Extraction has said what that stands for
        load = partial(load_image, self.collection.photos / name, resize=how.resize, exif=how.exif)
        image = load(max_size=how.max_size)
        shown = Shown.of(image, self.device)
        times = 1.0 if how.max_size is None else finer(max(image.stored_size) / how.max_size, how.resize)
        if how.max_size is None or times == 1:
            return _Seen(shown, shown)
        return _Seen(shown, Shown.of(load(max_size=round(times * how.max_size)), self.device))


class _Registered(NamedTuple):
    """What registration says of a pair: which of its K matches it placed, and of these M what :class:`Moves` has."""

    registered: NDArray[np.uint8]  # (K,)
    indices: NDArray[np.int32]  # (M, 2)
    moves: NDArray[np.float32]  # (M, 2) stored pixels of the second photograph
    linear: NDArray[np.float32]  # (M, 2, 2)
    covariances: NDArray[np.float32]  # (M, 2, 2)


def _refine_twice(
    image0: _Seen,
    image1: _Seen,
    keypoints: tuple[NDArray[np.float32], NDArray[np.float32]],
    degrees: NDArray[np.float32] | None,
    options: RefineOptions,
) -> RefinedKeypoints:
    """Register (K, 2) keypoints of two photographs as they were matched and, where one is stored larger, those that
    were registered once more, from where they are."""
    found = refine_keypoints(image0.shown, image1.shown, *keypoints, degrees, options=options)
    if image0.larger is image0.shown and image1.larger is image1.shown:
        return found
    (job,) = np.nonzero(found.told)
    again = refine_keypoints(
        image0.larger,
        image1.larger,
        keypoints[0][job],
        found.keypoints1[job],
        None if degrees is None else degrees[job],
        options=replace(options, max_shift=min(NEAR, options.max_shift)),
    )
    for whole, part in zip(found, again, strict=True):
        whole[job[again.told]] = part[again.told]
    return found


def _register(verified: Verified, images: _Images, pair: Sequence[str], options: RefineOptions) -> _Registered:
    """Register the inliers of a pair."""
    first, second = pair
    matches, inliers = verified.collection.matches(first, second), verified.two_view((first, second)).inliers
    indices, degrees = matches.indices[inliers], angle_of_each(matches)
    degrees = None if degrees is None else degrees[inliers]
    keypoints0, keypoints1 = (verified.collection.keypoints(name)[indices[:, k]] for k, name in enumerate(pair))
    found = _refine_twice(images[first], images[second], (keypoints0, keypoints1), degrees, options)
    told = found.told
    registered = np.zeros(len(matches), dtype=np.uint8)
    registered[np.flatnonzero(inliers)[told]] = 1
    moves = (found.keypoints1 - keypoints1)[told]
    return _Registered(registered, indices[told], moves, found.linear[told], found.covariances[told])


# Together -------------------------------------------------------------------------------------------------------------


class Moves(NamedTuple):
    """What E matches say of the moves of N keypoints: ``u[second] = linear @ u[first] + moves``, nearly."""

    first: Tensor  # (E,)
    second: Tensor  # (E,)
    moves: Tensor  # (E, 2) float64
    linear: Tensor  # (E, 2, 2)
    covariances: Tensor  # (E, 2, 2)


def _solve(collection: Collection, shards: Shards, pairs: Sequence[Pair]) -> dict[str, NDArray[np.float32]]:
    """The moves of the keypoints of every photograph."""
    photographs = collection.photographs()
    starts = dict(zip((p.name for p in photographs), np.cumsum([0, *(p.count for p in photographs)]), strict=False))
    deviations = torch.cat([_deviations(collection, photograph) for photograph in photographs])
    found = [_moves(shards, pair, starts) for pair in pairs]
    if not found:
        return {photograph.name: np.zeros((photograph.count, 2), np.float32) for photograph in photographs}
    moves = Moves(*(torch.cat(parts) for parts in zip(*found, strict=True)))
    solved = solve_moves(moves, deviations).float().split([photograph.count for photograph in photographs])
    return {photograph.name: own.numpy() for photograph, own in zip(photographs, solved, strict=True)}


def _deviations(collection: Collection, photograph: Photograph) -> Tensor:
    """(N,) of where keypoints were detected, in stored pixels."""
    return torch.full((photograph.count,), DETECTED * view_of(collection, photograph).shrunk, dtype=torch.float64)


def _moves(shards: Shards, pair: Pair, starts: dict[str, int]) -> Moves:
    """What a pair says, of keypoints that are counted through all photographs."""
    indices, *told = shards.read(pair, *_Registered._fields[1:])
    first, second = (torch.from_numpy(indices[:, k].astype(np.int64)) + int(starts[n]) for k, n in enumerate(pair))
    return Moves(first, second, *(torch.from_numpy(numbers).double() for numbers in told))


def solve_moves(told: Moves, deviations: Tensor) -> Tensor:
    """(N, 2) moves of N keypoints that agree best with what matches say, and with where they were detected.

    A match that is far from the solution, by its covariance, counts less in the next (Cauchy's weights). A keypoint
    that would move by more than four of its deviations stays: its matches are not of one thing.

    Args:
        deviations: (N,) of where keypoints were detected.
    """
    floor = (EXACT / DETECTED * deviations[told.second]).square()[:, None, None] * torch.eye(2).double()
    trusted = torch.linalg.inv(told.covariances + floor)  # (E, 2, 2)
    prior = deviations.square().reciprocal()
    solved = torch.zeros(len(deviations), 2, dtype=torch.float64)
    weight = torch.ones(len(told.first), dtype=torch.float64)
    for _ in range(ROUNDS):
        solved = _least_squares(told, trusted * weight[:, None, None], prior, solved)
        misfit = _apply(told, solved) - told.moves  # (E, 2)
        distance = torch.einsum("ei,eij,ej->e", misfit, trusted, misfit)
        weight = 1 / (1 + distance / DOUBTED**2)
    return torch.where(solved.norm(dim=1, keepdim=True) <= 4 * deviations[:, None], solved, 0.0)


def _apply(told: Moves, moves: Tensor) -> Tensor:
    """(E, 2) ``u[second] - linear @ u[first]``."""
    return moves[told.second] - (told.linear @ moves[told.first][..., None])[..., 0]


def _least_squares(told: Moves, trusted: Tensor, prior: Tensor, start: Tensor, tolerance: float = 1e-6) -> Tensor:
    """(N, 2) minimum of the weighted squares, by conjugate gradients; preconditioned by each keypoint's own block."""

    def gathered(forces: Tensor) -> Tensor:
        """The transpose of :func:`_apply`."""
        total = torch.zeros_like(start).index_add_(0, told.second, forces)
        return total.index_add_(0, told.first, -(told.linear.mT @ forces[..., None])[..., 0])

    def weighed(residual: Tensor) -> Tensor:
        return (trusted @ residual[..., None])[..., 0]

    def normal(moves: Tensor) -> Tensor:
        return gathered(weighed(_apply(told, moves))) + prior[:, None] * moves

    blocks = prior[:, None, None] * torch.eye(2).double()
    blocks = blocks.index_add(0, told.second, trusted)
    inverse = torch.linalg.inv(blocks.index_add_(0, told.first, told.linear.mT @ trusted @ told.linear))
    target = gathered(weighed(told.moves))
    moves, residual = start, target - normal(start)
    direction = ahead = (inverse @ residual[..., None])[..., 0]
    size = (residual * ahead).sum()
    enough = tolerance**2 * (target * (inverse @ target[..., None])[..., 0]).sum()
    for _ in range(500):
        if size <= enough:
            break
        along = normal(direction)
        step = size / (direction * along).sum()
        moves, residual = moves + step * direction, residual - step * along
        ahead = (inverse @ residual[..., None])[..., 0]
        size, before = (residual * ahead).sum(), size
        direction = ahead + size / before * direction
    return moves

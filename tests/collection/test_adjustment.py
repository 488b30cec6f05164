"""Keypoints in their exact places: what pairs say of them, put together along tracks."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from helpers import randn, seeds
from steerers.collection import Choice, Collection, choose_pairs, extract, match_pairs, verify
from steerers.collection.adjustment import Moves, _least_squares, adjust, solve_moves
from steerers.collection.verification import Verified
from steerers.geometry import DETECTED
from terrain import make_terrain, save, view_of

pytestmark = pytest.mark.usefixtures("one_thread")


def tracks(count: int, length: int, seed: int) -> tuple[Tensor, Moves]:
    """Tracks of keypoints that were detected off their places: (N, 2) by how much, and what their matches say.

    The photographs of a track are rotated and scaled against each other, and every two of them are matched.
    """
    keypoints = count * length
    turns = torch.polar(1 + 0.3 * torch.tanh(randn(length, seed=seed)), randn(length, seed=seed + 1))
    maps = torch.stack([turns.real, -turns.imag, turns.imag, turns.real], dim=1).view(-1, 2, 2)
    off = DETECTED * randn(keypoints, 2, seed=seed + 2)
    pairs = [(t * length + a, t * length + b) for t in range(count) for a, b in combinations(range(length), 2)]
    first, second = torch.tensor(pairs).unbind(dim=1)
    linear = maps[second % length] @ torch.linalg.inv(maps[first % length])
    true = (linear @ off[first][..., None])[..., 0] - off[second]  # where the first is seen, from the second
    covariances = 1e-4 * torch.eye(2).double().expand(len(pairs), 2, 2)
    return off, Moves(first, second, true, linear, covariances)


def misfit(told: Moves, moves: Tensor) -> Tensor:
    """(E,) by how much the two keypoints of matches are apart, once they are moved."""
    return (moves[told.second] - (told.linear @ moves[told.first][..., None])[..., 0] - told.moves).norm(dim=1)


@given(seed=seeds)
@settings(max_examples=15)
def test_all_matches_of_a_track_agree(seed: int) -> None:
    _, told = tracks(20, 5, seed)
    moves = solve_moves(told, torch.full((100,), DETECTED, dtype=torch.float64))
    stays = (moves == 0).all(dim=1)
    apart = misfit(told, moves)[~(stays[told.first] | stays[told.second])]
    assert float(misfit(told, torch.zeros_like(moves)).median()) > 0.3
    assert float(apart.quantile(0.9)) < 0.01
    assert float(stays.double().mean()) < 0.1


def test_wrong_matches_are_overruled() -> None:
    _, told = tracks(30, 6, 3)
    wrong = torch.arange(len(told.moves)) % 9 == 0
    moves = told.moves.clone()
    moves[wrong] += 2.0
    solved = solve_moves(told._replace(moves=moves), torch.full((180,), DETECTED, dtype=torch.float64))
    assert float(misfit(told, solved)[~wrong].quantile(0.9)) < 0.05
    assert float(misfit(told, solved)[wrong].median()) < 0.1


def test_keypoints_without_matches_stay() -> None:
    _, told = tracks(2, 3, 0)
    solved = solve_moves(told, torch.full((8,), DETECTED, dtype=torch.float64))
    assert torch.equal(solved[6:], torch.zeros(2, 2, dtype=torch.float64))
    assert bool((solved[:6].norm(dim=1) > 0).all())


@given(seed=seeds)
@settings(max_examples=15)
def test_against_the_textbook(seed: int) -> None:
    """Conjugate gradients against the normal equations of all keypoints, written out and solved at once."""
    _, told = tracks(3, 4, seed)
    spread = randn(len(told.first), 2, 2, seed=seed + 5)
    trusted = spread @ spread.mT + 0.1 * torch.eye(2)
    prior = 0.5 + randn(12, seed=seed + 6).abs()
    rows = torch.zeros(len(told.first), 2, 12, 2, dtype=torch.float64)
    for match, (i, j) in enumerate(zip(told.first, told.second, strict=True)):
        rows[match, :, j] += torch.eye(2)
        rows[match, :, i] -= told.linear[match]
    flat = rows.flatten(2)  # (E, 2, 24)
    normal = torch.einsum("eia,eij,ejb->ab", flat, trusted, flat) + torch.diag(prior.repeat_interleave(2))
    expected = torch.linalg.solve(normal, torch.einsum("eia,eij,ej->a", flat, trusted, told.moves)).view(12, 2)
    found = _least_squares(told, trusted, prior, torch.zeros(12, 2, dtype=torch.float64), tolerance=1e-10)
    assert float((found - expected).abs().max()) < 1e-7


# A collection ---------------------------------------------------------------------------------------------------------

NAMES = ["0.png", "1.png", "2.png", "3.png"]


def seen(number: int) -> tuple[Tensor, np.ndarray]:
    """A photograph of the map, and the way from the map to it."""
    return view_of(make_terrain(300, seed=1), (100 + 12 * number, 150), 35 * number, (200, 160))


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """Four views of one map, each rotated further."""
    folder = tmp_path_factory.mktemp("adjusted")
    for number, name in enumerate(NAMES):
        save(seen(number)[0], folder / "photos" / name)
    collection = Collection.create(folder / "out", folder / "photos", "upright-sift-so2", num_keypoints=200)
    extract(collection)
    choose_pairs(collection, Choice(exhaustive=True))
    match_pairs(collection)
    return verify(collection)


def errors(
    verified: Verified, keypoints: dict[str, np.ndarray], maps: dict[str, np.ndarray] | None = None
) -> np.ndarray:
    """Pixels between matched keypoints and where the views have them."""
    maps = maps or {name: seen(number)[1] for number, name in enumerate(NAMES)}
    found = []
    for pair in verified.chosen(False):
        indices = verified.collection.matches(*pair).indices[verified.two_view(pair).inliers]
        here, there = (
            np.c_[keypoints[name][indices[:, k]], np.ones(len(indices))] @ np.linalg.inv(maps[name]).T
            for k, name in enumerate(pair)
        )
        found.append(np.linalg.norm(here[:, :2] / here[:, 2:] - there[:, :2] / there[:, 2:], axis=1))
    return np.concatenate(found)


def test_keypoints_move_to_one_place(verified: Verified) -> None:
    before = {name: verified.keypoints(name) for name in NAMES}
    adjusted = adjust(verified)
    after = dict(adjusted.keypoints)
    assert np.median(errors(verified, after)) < 0.4 * np.median(errors(verified, before))
    again = verify(verified.collection, adjusted=adjusted)
    assert np.array_equal(again.keypoints("0.png"), after["0.png"])
    for pair in again.chosen(False):
        registered = adjusted.registered(pair)
        assert registered is not None
        assert not (again.two_view(pair).inliers & ~registered).any()
    assert adjusted.registered(("0.png", "nowhere.png")) is None


def test_what_was_shrunk_is_registered_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are more exact if photographs that are stored larger than they were matched are looked at once more."""
    terrain, found = make_terrain(600, seed=2), []
    views = [view_of(terrain, (250 + 30 * number, 300), 35 * number, (400, 320)) for number in range(3)]
    names = [f"{number}.png" for number in range(3)]
    for name, (view, _) in zip(names, views, strict=True):
        save(view, tmp_path / "photos" / name)
    collection = Collection.create(
        tmp_path / "out", tmp_path / "photos", "upright-sift-so2", num_keypoints=200, max_size=200
    )
    extract(collection)
    choose_pairs(collection, Choice(exhaustive=True))
    match_pairs(collection)
    verified = verify(collection)
    maps = {name: to_view for name, (_, to_view) in zip(names, views, strict=True)}
    for worth in (1.1, 3.0):
        monkeypatch.setattr("steerers.collection.adjustment.WORTH", worth)
        found.append(np.median(errors(verified, dict(adjust(verified).keypoints), maps)))
    assert found[0] < 0.8 * found[1]


def test_a_second_time_nothing_is_done(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    first = adjust(verified)
    monkeypatch.setattr("steerers.collection.adjustment._register", None)
    monkeypatch.setattr("steerers.collection.adjustment._solve", None)
    second = adjust(verified)
    assert all(np.array_equal(second.keypoints[name], first.keypoints[name]) for name in NAMES)


def test_where_few_were_registered_all_matches_are_used(verified: Verified) -> None:
    adjusted = adjust(verified)
    pair = verified.chosen(False)[0]
    count = len(verified.collection.matches(*pair))
    assert adjusted.usable(pair, count, 8).sum() < count
    assert adjusted.usable(pair, count, count + 1).all()


def test_a_damaged_file_is_made_again(verified: Verified) -> None:
    expected = adjust(verified)
    path = verified.collection.folder / "refined" / "keypoints.h5"
    path.write_bytes(b"no table")
    assert np.array_equal(adjust(verified).keypoints["1.png"], expected.keypoints["1.png"])


def test_a_photograph_that_is_gone(verified: Verified, tmp_path: Path) -> None:
    adjust(verified)
    shard = verified.collection.folder / "refined" / "0000.h5"
    shard.unlink()
    photograph = verified.collection.photos / "1.png"
    moved = photograph.rename(tmp_path / "1.png")
    with pytest.raises(FileNotFoundError, match=r"1\.png"):
        adjust(verified)
    moved.rename(photograph)
    assert not shard.exists()

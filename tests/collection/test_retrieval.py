"""Similar photographs: a vector of what no rotation changes, and the nearest by a plain search."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collection.photographs import make_features, save_views
from helpers import acting, randn, random_basis, seeds
from steerers import Steerer
from steerers.collection import Choice, Collection, choose_pairs, extract, retrieval
from steerers.collection.retrieval import Similarities, Vocabulary
from steerers.images.exif import Taken
from steerers.steering.irreps import Irreps
from steerers.steering.representations import Representation

ANGLES = st.floats(-10, 10)


def learned(dim: int = 12, seed: int = 0) -> Steerer:
    """A matrix that acts as a representation does, in another basis."""
    generator = Steerer.spread(dim, 2).generator().double()
    basis = random_basis(dim, seed)
    return Steerer.from_matrix(basis @ generator @ torch.linalg.inv(basis), "SO2")


@given(acting(), seeds)
def test_no_rotation_changes_the_invariants(drawn: tuple[Representation, list[float]], seed: int) -> None:
    representation, (angle,) = drawn
    steerer = Steerer.from_representation(representation)
    irreps = Irreps.of(steerer)
    descriptions = randn(5, steerer.dim, seed=seed)
    before, after = irreps.invariants(descriptions), irreps.invariants(steerer.steer(descriptions, angle))
    torch.testing.assert_close(before, after, atol=1e-6, rtol=1e-6)  # the root of a product that is nearly 0
    single = irreps.invariants(descriptions.float())
    torch.testing.assert_close(single.double(), before, atol=2e-3, rtol=2e-3)


@given(ANGLES, seeds)
def test_no_rotation_changes_those_of_a_learned_steerer(angle: float, seed: int) -> None:
    steerer = learned(seed=seed)
    irreps = Irreps.of(steerer)
    blocks = torch.randn(6, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    descriptions = blocks @ torch.linalg.inv(irreps.basis).mT
    turned = steerer.steer(descriptions, angle)
    turned = turned * (descriptions.norm(dim=1) / turned.norm(dim=1))[:, None]  # both are normalised, and so differ
    scale = (irreps.coordinates(turned)[:, 0] / irreps.coordinates(descriptions)[:, 0])[:, None]
    expected = irreps.invariants(descriptions) * scale
    torch.testing.assert_close(irreps.invariants(turned), expected, atol=1e-6, rtol=1e-5)


@given(acting(), seeds)
def test_invariants_by_the_responses_one_by_one(drawn: tuple[Representation, list[float]], seed: int) -> None:
    """The plain form: complex numbers, block after block."""
    irreps = Irreps.of(Steerer.from_representation(drawn[0]))
    descriptions = randn(3, drawn[0].dim, seed=seed)
    responses = irreps.responses(descriptions)
    still = [responses[:, index].real for index in irreps.of_frequency(0)]
    turning = [index for index, frequency in enumerate(irreps.frequencies) if frequency]
    products = []
    for frequency in sorted({irreps.frequencies[index] for index in turning}):
        blocks = irreps.of_frequency(frequency)
        for first, second in pairwise(blocks):
            product = responses[:, first] * responses[:, second].conj()
            products.append(product / product.abs().sqrt())
    expected = [*still, *(responses[:, index].abs() for index in turning)]
    expected += [product.real for product in products] + [product.imag for product in products]
    torch.testing.assert_close(irreps.invariants(descriptions), torch.stack(expected, dim=1), atol=1e-8, rtol=1e-6)


@given(seeds)
def test_no_rotation_changes_a_vector(seed: int) -> None:
    steerer = Steerer.spread(32, 3)
    samples = [randn(40, 32, seed=seed + index).float() for index in range(3)]
    vocabulary = Vocabulary.learn(samples, Irreps.of(steerer), words=4, axes=8, seed=seed)
    angles = 2 * math.pi * torch.rand(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before = vocabulary.vector(samples[0])
    after = vocabulary.vector(steerer.steer(samples[0], angles))
    assert float(before.norm()) == pytest.approx(1)
    assert float(before @ after) > 0.99
    assert vocabulary.vector(samples[0][:0]).norm() == 0


def test_the_same_words_every_time() -> None:
    samples = [randn(300, 16, seed=index).float() for index in range(3)]
    first, second, other = (Vocabulary.learn(samples, None, words=8, axes=6, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.words, second.words)
    assert not torch.equal(first.words, other.words)
    assert (first.words.shape, first.axes.shape) == ((8, 6), (6, 16))


def test_fewer_descriptions_than_words() -> None:
    one = torch.ones(1, 4)
    assert len(Vocabulary.learn([one.expand(9, 4)], None).words) == 1
    assert torch.isfinite(Vocabulary.learn([one], None).vector(one)).all()


@given(st.integers(2, 40), st.integers(1, 6), st.none() | st.integers(1, 5), seeds)
def test_the_nearest_are_those_of_a_plain_search(count: int, nearest: int, beyond: int | None, seed: int) -> None:
    vectors = torch.nn.functional.normalize(randn(count, 8, seed=seed).float(), dim=1).half()
    names = [str(index) for index in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_ROWS", 7)
        patch.setattr(retrieval, "_COLUMNS", 5)
        found = Similarities(names, vectors).nearest(nearest, beyond)
    cosines = vectors.float() @ vectors.float().mT
    expected = []
    for index in range(count):
        others = [other for other in range(count) if abs(other - index) > (beyond or 0)]
        others.sort(key=lambda other: -float(cosines[index, other]))
        expected += [(names[index], names[other]) for other in others[:nearest]]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("beyond", [None, 3])
def test_of_very_many_faiss_lists_candidates(beyond: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all of those that a plain search finds, of vectors in groups, as photographs of one place are."""
    pytest.importorskip("faiss")
    places, count = randn(50, 32, seed=1), 2000
    vectors = places[torch.arange(count) % 50] + 0.3 * randn(count, 32, seed=2)
    vectors = torch.nn.functional.normalize(vectors.float(), dim=1).half()
    vectors[7] = 0
    similarities = Similarities([str(index) for index in range(count)], vectors)
    expected = set(similarities.nearest(5, beyond))
    monkeypatch.setattr(retrieval, "EXACT", 1000)
    found = similarities.nearest(5, beyond)
    assert len(found) == len(set(found)) == 5 * (count - 1)
    assert len(expected.intersection(found)) > 0.97 * len(expected)
    assert not any("7" in pair for pair in found)


def test_very_many_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.nn.functional.normalize(randn(30, 8).float(), dim=1).half()
    similarities = Similarities([str(index) for index in range(30)], vectors)
    expected = similarities.nearest(3)
    monkeypatch.setattr(retrieval, "EXACT", 20)
    monkeypatch.setitem(sys.modules, "faiss", None)
    told: list[str] = []
    monkeypatch.setattr(retrieval, "tell", told.append)
    assert similarities.nearest(3) == expected
    assert told == ["30 photographs are compared all with all; faster with steerers[faiss]"]


def make(tmp_path: Path, names: list[str]) -> Collection:
    save_views(tmp_path / "photos", names)
    return Collection.create(tmp_path / "out", tmp_path / "photos", "upright-sift", num_keypoints=200)


def test_neighbours_are_found_upside_down(tmp_path: Path) -> None:
    """Views of a map, each a step further and every other one on its head."""
    collection = make(tmp_path, [f"{index}.png" for index in range(10)])
    extract(collection)
    pairs = choose_pairs(collection, Choice(similar=2))
    steps = [abs(int(first[:-4]) - int(second[:-4])) for first, second in pairs]
    assert sum(step <= 3 for step in steps) >= 0.8 * len(steps)
    assert sum(step % 2 for step in steps) >= len(steps) // 3  # such as are on their heads to each other
    loops = choose_pairs(collection, Choice(sequential=1, loop=True))
    assert {abs(int(first[:-4]) - int(second[:-4])) for first, second in loops} >= {1, 2}
    assert 9 < len(loops) <= 9 + 10


def test_photographs_that_are_all_the_same(tmp_path: Path) -> None:
    collection = make(tmp_path, [f"{index}.png" for index in range(4)])
    features = make_features(50)
    with collection.write_features(0) as writer:
        for index in range(4):
            writer.add(f"{index}.png", features, Taken((120, 90)))
    assert len(choose_pairs(collection, Choice(similar=3))) == 6


def test_a_photograph_without_keypoints_is_similar_to_none() -> None:
    vectors = torch.eye(4).half()
    vectors[2] = 0
    pairs = Similarities("abcd", vectors).nearest(3)
    assert sorted(pairs) == [(first, second) for first in "abd" for second in "abd" if first != second]


def test_photographs_without_keypoints(tmp_path: Path) -> None:
    collection = make(tmp_path, ["0.png", "1.png"])
    with collection.write_features(0) as writer:
        for index in range(2):
            writer.add(f"{index}.png", make_features(0), Taken((120, 90)))
    with pytest.raises(ValueError, match=r"no photograph of .* has keypoints to be compared by"):
        choose_pairs(collection, Choice(similar=1))

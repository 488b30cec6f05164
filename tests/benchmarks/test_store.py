"""Work done once: features at hand for later pairs, and predictions that outlive an interruption."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import h5py
import numpy as np
import pytest
from torch import Tensor

from benchmarks.dots import Stub, dots, draw, make_run
from steerers.benchmarks import feature_cache, store
from steerers.benchmarks.protocol import Pair, Prediction, Settings, predict
from steerers.benchmarks.runs import Run
from steerers.benchmarks.store import predict_or_load
from steerers.benchmarks.views import count_bytes
from steerers.features import Keypoints

IMAGES = 6
TIMES = ("extraction_seconds", "matching_seconds")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    """Each two of some images."""
    folder = tmp_path_factory.mktemp("collection")
    paths = [folder / f"{k}.png" for k in range(IMAGES)]
    for k, path in enumerate(paths):
        draw(dots() + np.array([k, -k]), path, marked=k > 0)
    return [Pair(f"{a.stem} {b.stem}", "", a, b) for a, b in combinations(paths, 2)]


def assert_same(first: Prediction, second: Prediction) -> None:
    """All but the times."""
    for field in Prediction.__dataclass_fields__:
        if field not in ("matches", *TIMES):
            np.testing.assert_equal(getattr(first, field), getattr(second, field), field)
    for field in ("keypoints0", "keypoints1", "scores", "indices", "angle", "model", "strategy"):
        np.testing.assert_array_equal(getattr(first.matches, field), getattr(second.matches, field))


# Features -------------------------------------------------------------------------------------------------------------


class Slow(Stub):
    """Takes a second more for each image, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0.0

    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        self._clock += 1 + self._calls
        return super().detect(image, num_keypoints=num_keypoints)


def test_each_image_is_described_once_for_all_of_its_pairs(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load_at = feature_cache.load_at
    monkeypatch.setattr(
        feature_cache, "load_at", lambda path, **options: (loaded.append(path), load_at(path, **options))[1]
    )
    first, second = Stub(), Stub(1.0)
    runs = [make_run(first, label="a"), make_run(first, "max-matches", "b", order=4), make_run(second, label="c")]
    predict(runs, pairs)
    assert (first._calls, second._calls) == (IMAGES, IMAGES)
    assert len(loaded) == len(set(loaded)) == IMAGES


def test_what_does_not_fit_is_described_again_with_the_same_result(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, pressed = Stub(), Stub()
    (expected,) = predict([make_run(stub)], pairs)
    monkeypatch.setattr(feature_cache, "FEATURE_BYTES", 1)
    monkeypatch.setattr(feature_cache, "PIXEL_BYTES", 1)
    (found,) = predict([make_run(pressed)], pairs)
    assert stub._calls == IMAGES
    assert pressed._calls > 2 * IMAGES
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def test_where_some_fit_what_was_used_last_is_used_first(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that always start with the oldest would find little but their first image at hand: 14 extractions."""
    features = make_run().pipeline.extract(pairs[0].image0)
    monkeypatch.setattr(
        feature_cache, "FEATURE_BYTES", 4 * count_bytes(features.keypoints, features.descriptions, features.scores)
    )
    stub = Stub()
    predict([make_run(stub)], pairs)
    assert IMAGES < stub._calls <= 12


def test_every_pair_counts_the_seconds_of_its_own_images(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(feature_cache, "now", lambda _: slow._clock)
    (found,) = predict([make_run(slow)], pairs)
    order = dict.fromkeys(path for pair in pairs for path in (pair.image0, pair.image1))
    seconds = {path: 1.0 + k for k, path in enumerate(order)}
    assert [prediction.extractions for prediction in found] == [2] * len(pairs)
    assert [prediction.extraction_seconds for prediction in found] == [
        seconds[pair.image0] + seconds[pair.image1] for pair in pairs
    ]


# Interruptions --------------------------------------------------------------------------------------------------------


class Interrupted(Stub):
    """Stops once, after so many images; the same settings as a whole one."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def detect(self, image: Tensor, *, num_keypoints: int, mask: Tensor | None = None) -> Keypoints:
        if self._calls == self._after:
            self._after = -1
            raise KeyboardInterrupt
        return super().detect(image, num_keypoints=num_keypoints)


@pytest.fixture(params=[0.0, 1e9], ids=["a file a pair", "a file at the end"])
def part_seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(store, "PART_SECONDS", request.param)
    seconds: float = request.param
    return seconds


def interrupt(runs: list[Run], pairs: list[Pair], folder: Path, **options: object) -> None:
    with pytest.raises(KeyboardInterrupt):
        predict_or_load(runs, pairs, cache=folder, **options)  # type: ignore[arg-type]


def test_an_interrupted_prediction_goes_on(pairs: list[Pair], tmp_path: Path, part_seconds: float) -> None:
    seen: list[str] = []

    def observe(pair: Pair, *_: object) -> float:
        seen.append(pair.name)
        return float(pair.name[0])

    runs = [make_run(Interrupted(after=4), label="a"), make_run(Stub(1.0), label="b")]
    whole = predict(runs[1:], pairs, None, observe)[0]
    seen.clear()
    interrupt(runs, pairs, tmp_path, observe=observe, made={"device": "here"})
    assert len(seen) == 2 * 3  # 3 pairs of 4 images, by two extractors
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == (6 if part_seconds == 0 else 2)
    assert all(".part-" in part.name and part.suffix == ".h5" for part in parts)
    found = predict_or_load(runs, pairs, None, observe, cache=tmp_path, made={"device": "there"})
    assert len(seen) == 2 * len(pairs)
    for predictions in found:
        assert predictions.made == {"device": "there", "continued_from": [{"device": "here"}]}
        assert [one.observed for one in predictions.pairs] == [float(pair.name[0]) for pair in pairs]
    for one, other in zip(found[1].pairs, whole, strict=True):
        assert_same(one, other)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 2
    assert not any("part" in name for name in files)
    again = predict_or_load(runs, pairs, None, observe, cache=tmp_path)
    assert len(seen) == 2 * len(pairs)
    assert [predictions.made for predictions in again] == [predictions.made for predictions in found]


def test_a_run_goes_on_beside_one_that_starts(pairs: list[Pair], tmp_path: Path) -> None:
    first = Interrupted(after=5)  # 4 pairs, all of the first image
    interrupt([make_run(first, label="a")], pairs, tmp_path)
    calls, second = first._calls, Stub()
    found = predict_or_load([make_run(first, label="a"), make_run(second, label="b")], pairs, cache=tmp_path)
    assert [len(predictions.pairs) for predictions in found] == [len(pairs)] * 2
    assert (first._calls - calls, second._calls) == (IMAGES, IMAGES)  # pair 0-5 is left, and so is image 0
    for one, other in zip(found[0].pairs, found[1].pairs, strict=True):
        np.testing.assert_array_equal(one.matches.keypoints1, other.matches.keypoints1)


def test_parts_of_another_configuration_are_left_alone(pairs: list[Pair], tmp_path: Path) -> None:
    interrupt([make_run(Interrupted(after=4))], pairs, tmp_path)
    (part,) = tmp_path.iterdir()
    for settings in (Settings(max_size=100), Settings(short_side=100), Settings(short_side=120)):
        predict_or_load([make_run(Interrupted(after=-1))], pairs[:1], settings, cache=tmp_path)
    assert part.exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_an_image_changed_in_place_is_matched_anew(pairs: list[Pair], tmp_path: Path) -> None:
    pair = pairs[0]
    image0 = tmp_path / pair.image0.name
    content = pair.image0.read_bytes()
    image0.write_bytes(content)
    changed = Pair(pair.name, "", image0, pair.image1)
    extractor = Stub()
    predict_or_load([make_run(extractor)], [changed], cache=tmp_path / "kept")
    predict_or_load([make_run(extractor)], [pair], cache=tmp_path / "kept")  # the same image elsewhere
    assert extractor._calls == 2
    draw(dots() + 3.0, image0, marked=False)
    image0.write_bytes(image0.read_bytes() + bytes(max(0, len(content) - image0.stat().st_size)))
    predict_or_load([make_run(extractor)], [changed], cache=tmp_path / "kept")
    assert extractor._calls == 4


def test_a_damaged_part_is_named(pairs: list[Pair], tmp_path: Path) -> None:
    run = make_run(Interrupted(after=4))
    interrupt([run], pairs, tmp_path)
    (part,) = tmp_path.iterdir()
    with h5py.File(part, "r+") as file:
        del file["pairs"]
    with pytest.raises(ValueError, match=rf"{part.name}: no part of a file of predictions; delete it"):
        predict_or_load([run], pairs, cache=tmp_path)
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"{part.name}: not a file of predictions, or damaged"):
        predict_or_load([run], pairs, cache=tmp_path)


def test_nothing_is_written_without_a_folder(
    pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        predict_or_load([make_run(Interrupted(after=4))], pairs)
    assert list(tmp_path.iterdir()) == []

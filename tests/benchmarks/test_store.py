"""Predictions that are kept: a file a pair, whatever interrupts or damages them."""

from __future__ import annotations

import errno
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from benchmarks.dots import IMAGES, Stub, assert_same, dots, draw, draw_collection, make_run, predict_all
from steerers.benchmarks.predict import Pair, ViewSettings
from steerers.benchmarks.runs import Run
from steerers.benchmarks.store import is_kept, predict_or_load
from steerers.features import Keypoints

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    return draw_collection(tmp_path_factory.mktemp("collection"))


# Configurations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"settings": ViewSettings(max_size=100)},
        {"settings": ViewSettings(short_side=100)},
        {"settings": ViewSettings(short_side=120)},
        {"settings": ViewSettings(mask_corners=True)},
        {"settings": ViewSettings(resize="squash")},
        {"runs": [make_run(strategy="max-matches", order=4)]},
        {"runs": [make_run(threshold=0.2)]},
        {"runs": [make_run(num_keypoints=8)]},
        {"runs": [make_run(Stub(0.5))]},
        {"pair": {"rotation1": 40}},
        {"pair": {"name": "other 1-2"}},
    ],
)
def test_another_configuration_is_computed_anew(pairs: list[Pair], tmp_path: Path, change: dict[str, Any]) -> None:
    wanted = {"runs": [make_run()], "settings": ViewSettings(), "pairs": pairs[:1], "cache": tmp_path}
    predict_or_load(**wanted)  # type: ignore[arg-type]
    (kept,) = tmp_path.iterdir()
    if "pair" in change:
        change = {"pairs": [replace(pairs[0], **change["pair"])]}
    predict_or_load(**{**wanted, **change})  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 2
    assert [path.name for path in kept.iterdir()] == ["00000.npz"]


def test_canvases_are_told_apart_where_an_image_is_rotated(pairs: list[Pair], tmp_path: Path) -> None:
    for rotation, folders in ((0, 1), (40, 3)):
        rotated = [replace(pairs[0], rotation1=rotation)]
        for canvas in ("grow", "keep"):
            predict_or_load([make_run()], rotated, ViewSettings(canvas=canvas), cache=tmp_path)  # type: ignore[arg-type]
        assert len(list(tmp_path.iterdir())) == folders


def test_what_is_kept_is_known(pairs: list[Pair], tmp_path: Path) -> None:
    run, views = make_run(), ViewSettings()
    assert not is_kept(run, pairs[:2], views, cache=tmp_path)
    predict_or_load([run], pairs[:2], views, cache=tmp_path)
    assert is_kept(run, pairs[:2], views, cache=tmp_path)
    assert not is_kept(run, pairs[:1], views, cache=tmp_path)
    assert not is_kept(run, pairs[:2], ViewSettings(max_size=100), cache=tmp_path)
    assert not is_kept(run, pairs[:2], views, cache=None)
    next(tmp_path.glob("*/00001.npz")).unlink()
    assert not is_kept(run, pairs[:2], views, cache=tmp_path)


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


# Interruptions --------------------------------------------------------------------------------------------------------


class Interrupted(Stub):
    """Stops once, after so many images; the same settings as a whole one."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        if self._calls == self._after:
            self._after = -1
            raise KeyboardInterrupt
        return super().detect_one(image, num_keypoints, None)


def interrupt(runs: list[Run], pairs: list[Pair], folder: Path, **options: object) -> None:
    with pytest.raises(KeyboardInterrupt):
        predict_or_load(runs, pairs, cache=folder, **options)  # type: ignore[arg-type]


def test_an_interrupted_prediction_goes_on(pairs: list[Pair], tmp_path: Path) -> None:
    seen: list[str] = []

    def observe(pair: Pair, *_: object) -> float:
        seen.append(pair.name)
        return float(pair.name[0])

    runs = [make_run(Interrupted(after=4), label="a"), make_run(Stub(1.0), label="b")]
    whole = predict_all(runs[1:], pairs, None, observe)[0]
    seen.clear()
    interrupt(runs, pairs, tmp_path, observe=observe, made={"device": "here"})
    assert len(seen) == 2 * 3  # 3 pairs of 4 images, by two extractors
    for folder in tmp_path.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["00000.npz", "00001.npz", "00002.npz"]
    found = predict_or_load(runs, pairs, None, observe, cache=tmp_path, made={"device": "there"})
    assert len(seen) == 2 * len(pairs)
    for predictions in found:
        assert predictions.made == {"device": "there", "continued_from": [{"device": "here"}]}
        assert [one.observed for one in predictions.pairs] == [float(pair.name[0]) for pair in pairs]
    for one, other in zip(found[1].pairs, whole, strict=True):
        assert_same(one, other)
    assert [len(list(folder.iterdir())) for folder in tmp_path.iterdir()] == [len(pairs)] * 2
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


def test_nothing_is_written_without_a_folder(
    pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        predict_or_load([make_run(Interrupted(after=4))], pairs)
    assert list(tmp_path.iterdir()) == []


# Damage ---------------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def flip_a_byte_of_the_scores(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        scores = archive.getinfo("scores.npy")
    content = bytearray(path.read_bytes())
    content[scores.header_offset + 30 + len("scores.npy") + scores.compress_size // 2] ^= 255
    path.write_bytes(bytes(content))


def rewrite(path: Path, **changes: np.ndarray | None) -> None:
    with np.load(path) as file:
        arrays = {**file, **changes}
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})


def drop_the_scores(path: Path) -> None:
    rewrite(path, scores=None)


def drop_a_match(path: Path) -> None:
    with np.load(path) as file:
        fewer = file["scores"][:-1]
    rewrite(path, scores=fewer)


def forget_the_config(path: Path) -> None:
    rewrite(path, about=np.array("{}"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_configuration(path: Path) -> None:
    with np.load(path) as file:
        about = str(file["about"])
    rewrite(path, about=np.array(about.replace('"num_keypoints": 100', '"num_keypoints": 7')))


DAMAGES = [truncate, flip_a_byte_of_the_scores, drop_the_scores, drop_a_match, forget_the_config, empty]


@pytest.mark.parametrize("damage", [*DAMAGES, another_configuration])
def test_a_damaged_file_is_removed_and_its_pair_matched_again(
    pairs: list[Pair], tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    stub = Stub()
    (expected,) = predict_or_load([make_run(stub)], pairs, cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    broken, calls = folder / "00007.npz", stub._calls
    damage(broken)
    caplog.set_level("INFO")
    (found,) = predict_or_load([make_run(stub)], pairs, cache=tmp_path)
    assert stub._calls == calls + 2
    for one, other in zip(found.pairs, expected.pairs, strict=True):
        assert_same(one, other)
    (said,) = caplog.messages
    assert said.startswith(f"{broken}: not a file of predictions, or damaged (")
    assert said.endswith("); removed, and matched again")
    caplog.clear()
    predict_or_load([make_run(stub)], pairs, cache=tmp_path)
    assert caplog.messages == [f"matched before, taken from {tmp_path}: stub"]
    assert stub._calls == calls + 2


def test_a_file_that_cannot_be_opened_is_left_alone(pairs: list[Pair], tmp_path: Path) -> None:
    predict_or_load([make_run()], pairs[:1], cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "00000.npz").unlink()
    (folder / "00000.npz").mkdir()
    with pytest.raises(IsADirectoryError):
        predict_or_load([make_run()], pairs[:1], cache=tmp_path)


def test_a_file_is_kept_whole_or_not_at_all(pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, data: bytes) -> None:
        path.open("wb").write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="the disk is full") as caught:
        predict_or_load([make_run()], pairs, cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []
    assert Path(caught.value.filename).parent == folder

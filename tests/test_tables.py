"""Features and matches in HDF5 files: what comes back, what is refused, and the same bytes whoever writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import steerers
from helpers import contents, randn, run_on_full_disk, seeds
from steerers._tables import Table, write_table
from steerers.features import Features, Matches, load_features, load_matches

FLIPPED = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)


def make_features(count: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32) -> Features:
    return Features(
        100 * randn(count, 2, seed=seed).float(),
        randn(count, 8, seed=seed + 1, dtype=dtype),
        randn(count, seed=seed + 2).float(),
        (640, 480),
        "compact",
        FLIPPED,
    )


def make_matches(count: int = 4, angles: bool = True, seed: int = 0) -> Matches:
    draw = np.random.default_rng(seed)
    return Matches(
        draw.normal(size=(count, 2)).astype(np.float32),
        draw.normal(size=(count, 2)).astype(np.float32),
        draw.random(count).astype(np.float32),
        draw.integers(0, 99, (count, 2)),
        angle=12.345678901234567 if angles else None,
        angles=draw.normal(size=count).astype(np.float32) if angles else None,
        model="compact",
        strategy="max-similarity",
    )


def same(first: Any, second: Any) -> bool:
    """Equal in value, shape and type."""
    if isinstance(first, (torch.Tensor, np.ndarray)):
        return type(first) is type(second) and first.dtype == second.dtype and bool((first == second).all())
    return bool(first == second)


# What comes back ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 40), seeds, st.sampled_from([torch.float16, torch.float32, torch.float64]))
def test_features_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int, dtype: torch.dtype
) -> None:
    path = tmp_path_factory.mktemp("features") / "a.h5"
    features = make_features(count, seed, dtype)
    features.save(path)
    found = steerers.load_features(path)
    assert all(same(getattr(features, field.name), getattr(found, field.name)) for field in fields(Features))


@given(st.integers(0, 40), st.booleans(), seeds)
def test_matches_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, count: int, angles: bool, seed: int
) -> None:
    path = tmp_path_factory.mktemp("matches") / "a.h5"
    matches = make_matches(count, angles, seed)
    matches.save(path)
    found = steerers.load_matches(path)
    assert all(same(getattr(matches, field.name), getattr(found, field.name)) for field in fields(Matches))


def test_half_is_asked_for(tmp_path: Path) -> None:
    features = make_features(2000)
    features.save(tmp_path / "whole.h5")
    features.save(tmp_path / "half.h5", half=True)
    found = load_features(tmp_path / "half.h5").descriptions
    assert found.dtype == torch.float16
    assert torch.equal(found, features.descriptions.half())
    whole, half = ((tmp_path / name).stat().st_size for name in ("whole.h5", "half.h5"))
    assert whole - half == 2000 * 8 * 2
    assert half < 2000 * (8 * 2 + 12) + 30_000  # the numbers, and little else


def test_half_does_not_hold_large_numbers(tmp_path: Path) -> None:
    features = replace(make_features(), descriptions=1e6 * torch.ones(5, 8))
    with pytest.raises(ValueError, match="model 'compact' are too large for float16; keep them as float32"):
        features.save(tmp_path / "a.h5", half=True)
    assert contents(tmp_path) == []


def test_bfloat16_is_kept_as_float32(tmp_path: Path) -> None:
    features = make_features(dtype=torch.bfloat16)
    features.save(tmp_path / "a.h5")
    assert torch.equal(load_features(tmp_path / "a.h5").descriptions, features.descriptions.float())


def test_features_match_as_before(tmp_path: Path) -> None:
    matcher = steerers.load("upright-sift", num_keypoints=100)
    image = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    features = matcher.extract(np.kron(image, np.ones((4, 4, 1), np.uint8)))
    features.save(tmp_path / "a.h5")
    found = load_features(tmp_path / "a.h5")
    expected, matches = matcher.match(features, features), matcher.match(found, found)
    assert len(matches) > 50
    np.testing.assert_array_equal(matches.indices, expected.indices)
    np.testing.assert_array_equal(matches.scores, expected.scores)


# Tables ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5) | st.none()), max_size=8))
def test_rows_of_any_lengths(tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int | None]]) -> None:
    path = tmp_path_factory.mktemp("tables") / "a.h5"
    rows = []
    for index, (first, second) in enumerate(lengths):
        arrays = {"a": np.full((first, 2), index, np.float32)}
        if second is not None:
            arrays["b"] = np.full(second, index, np.int32)  # type: ignore[assignment]
        rows.append(({"name": f"né {index}"}, arrays))
    with write_table(path, "things", {"made": "here"}) as table:
        for row in rows:
            table.append(*row)
    with Table(path, "things") as found:
        assert (found.about, len(found)) == ({"made": "here"}, len(lengths))
        assert found.lengths("a") == [first for first, _ in lengths]
        assert found.lengths("b") == [second or 0 for _, second in lengths]
        for index, (told, arrays) in enumerate(rows):
            assert found.rows[index] == told
            for name, array in arrays.items():
                (read,) = found.read(index, name)
                assert read.dtype == array.dtype
                np.testing.assert_array_equal(read, array)


def test_the_same_bytes_in_another_process_and_second(tmp_path: Path) -> None:
    code = (
        "import sys, time, numpy as np\n"
        "from steerers._tables import write_table\n"
        "time.sleep(float(sys.argv[2])); waste = [bytes(1 << 20) for _ in range(int(sys.argv[3]))]\n"
        "draw = np.random.default_rng(0)\n"
        "with write_table(sys.argv[1], 'things', {'b': 1, 'a': 'x' * 300}) as table:\n"
        "    for index in range(40):\n"
        "        values = draw.normal(size=(37 * index, 3)).astype(np.float32)\n"
        "        table.append({'name': str(index)}, {'values': values, 'more': np.arange(index)})\n"
    )
    for name, wait, waste in (("a.h5", "0", "0"), ("b.h5", "1.1", "7")):
        subprocess.run([sys.executable, "-c", code, name, wait, waste], cwd=tmp_path, check=True)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


# What is refused ------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def changed(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return apply


def packed(file: Any) -> None:
    values = file["keypoints"].pop("values")[()]
    file["keypoints"].create_dataset("values", data=values, compression="gzip")


def promised(file: Any) -> None:
    del file["keypoints/values"]
    file["keypoints"].create_dataset("values", (5, 2, 10**12), "f4", chunks=(1, 2, 1000))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "truncated file"),
        (lambda path: path.write_bytes(b"no HDF5"), "file signature not found"),
        (changed(lambda file: file.attrs.pop("steerers")), "steerers"),
        (changed(lambda file: file.attrs.__setitem__("steerers", "matches")), "it holds 'matches'"),
        (changed(lambda file: file.attrs.__setitem__("format", 9)), "its format is 9, and this version"),
        (changed(lambda file: file.pop("rows")), "rows"),
        (changed(lambda file: file.pop("scores")), "there is no column scores"),
        (changed(lambda file: file["rows"].__setitem__(slice(0, 2), 0)), "not JSON"),
        (changed(lambda file: file["scores/ends"].__setitem__(0, 9)), "column scores are not one behind the other"),
        (changed(lambda file: file["scores/values"].resize(4, axis=0)), "column scores are not one behind the other"),
        (changed(lambda file: file["descriptions/values"].__setitem__(0, np.nan)), "are not finite"),
        (changed(promised), "more than are there"),
    ],
)
def test_damaged_features_are_refused_in_a_line(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "some features.h5"
    make_features().save(path)
    damage(path)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        load_features(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_packed_values_are_refused_where_they_are_larger(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    replace(make_features(5000), keypoints=torch.zeros(5000, 2)).save(path)
    changed(packed)(path)
    with pytest.raises(ValueError, match="more than are there"):
        load_features(path)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"size": [640]}, "damaged"),
        ({"size": [640, 0.5]}, "its size is"),
        ({"orientation": [[1, 0]]}, "its orientation"),
        ({"orientation": "up"}, "incomplete"),
        ({"model": None}, None),
        ({"error": "broken"}, "could not be read when they were extracted: broken"),
    ],
)
def test_rows_that_say_something_else(told: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    row, arrays = make_features().to_row()
    with write_table(tmp_path / "a.h5", "features") as table:
        table.append({**row, **told}, arrays)
    if message is None:
        assert load_features(tmp_path / "a.h5").model == "None"
    else:
        with pytest.raises(ValueError, match=message):
            load_features(tmp_path / "a.h5")


def test_features_by_their_name(tmp_path: Path) -> None:
    row, arrays = make_features().to_row()
    with write_table(tmp_path / "a.h5", "features") as table:
        for name in ("b/é 1.jpg", "c.jpg", "d.jpg", "e.jpg"):
            table.append({"name": name, **row}, arrays)
    assert len(load_features(tmp_path / "a.h5", "b/é 1.jpg")) == 5
    for name, asked in ((None, "give the name of one"), ("x", "none of them is 'x'")):
        with pytest.raises(ValueError, match=rf"of 4 photographs \('b/é 1.jpg', 'c.jpg', 'd.jpg', \.\.\.\): {asked}"):
            load_features(tmp_path / "a.h5", name)


def test_files_of_the_other_kind_and_none(tmp_path: Path) -> None:
    make_features().save(tmp_path / "f.h5")
    make_matches().save(tmp_path / "m.h5")
    with pytest.raises(ValueError, match=r"m\.h5: not a file of features of steerers, or damaged \(it holds 'matches'"):
        load_features(tmp_path / "m.h5")
    with pytest.raises(ValueError, match=r"f\.h5: not a file of matches"):
        load_matches(tmp_path / "f.h5")
    with pytest.raises(FileNotFoundError, match=r"no such file of features: .*x\.h5"):
        load_features(tmp_path / "x.h5")


@pytest.mark.parametrize("name", ["scores", "indices", "angles"])
def test_matches_of_other_lengths_and_types(name: str, tmp_path: Path) -> None:
    for values in (np.zeros(3, np.float32), np.zeros((4, 2), np.complex64)):
        replace(make_matches(), **{name: values}).save(tmp_path / "a.h5")
        with pytest.raises(ValueError, match=r"a\.h5: .*its matches \d"):
            load_matches(tmp_path / "a.h5")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")
def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    code = """
import torch
from steerers.features import Features
features = Features(torch.zeros(3000, 2), torch.ones(3000, 64), torch.zeros(3000), (640, 480))
try:
    features.save("some features.h5")
except OSError as error:
    print(error.filename, error.strerror)
"""
    out, err = run_on_full_disk(code, tmp_path, 100_000)
    assert out == ["some features.h5 the disk is full (File too large)"]
    assert err == []
    assert contents(tmp_path) == []

"""Arrays of objects are read, and what else a pickle holds is not run."""

from __future__ import annotations

import codecs
import io
import os
import pickle
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import contents
from steerers.datasets.safe_arrays import read_dictionary, read_named, write_named

numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text() | st.binary()
values = st.recursive(
    numbers, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


class Trap:
    """Calls something when it is unpickled by an incautious reader."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def save(path: Path, value: Any, protocol: int = 4) -> None:
    """What ``np.save`` writes of a dictionary, with any protocol."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        pickle.dump(np.array(value, dtype=object), file, protocol=protocol)


@given(st.dictionaries(st.text() | st.integers(), values), st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(tmp_path_factory: pytest.TempPathFactory, value: dict[Any, Any], protocol: int) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.npy"
    save(path, value, protocol)
    assert read_dictionary(path) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_and_scalars_come_back(tmp_path: Path, protocol: int) -> None:
    value = {"array": np.arange(6.0).reshape(2, 3), "scalar": np.float32(0.5), "order": OrderedDict(a=np.array("x"))}
    save(tmp_path / "a.npy", value, protocol)
    found = read_dictionary(tmp_path / "a.npy")
    np.testing.assert_array_equal(found["array"], value["array"])
    assert found["scalar"] == np.float32(0.5)
    assert found["order"] == value["order"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_in_a_file_is_run(tmp_path: Path, protocol: int) -> None:
    trace = str(tmp_path / "trace")
    for trap in (Trap(os.mkdir, trace), Trap(eval, f"__import__('os').mkdir({trace!r})"), Trap(map, print, [1])):
        save(tmp_path / "a.npy", {"a": np.ones(2), "b": [trap]}, protocol)
        with pytest.raises(ValueError, match=r"a.npy: a damaged dictionary, or none \(it asks for .*no array needs\)"):
            read_dictionary(tmp_path / "a.npy")
        np.savez(tmp_path / "a.npz", a=np.array([trap], dtype=object))
        with pytest.raises(ValueError, match=r"a.npz: a damaged scene, or none \(it asks for"):
            read_named(tmp_path / "a.npz", ["a"], "scene")
    assert not (tmp_path / "trace").exists()


def own_pickle(path: Path, content: bytes) -> None:
    """A file that says it holds a dictionary, and whose pickle was written by hand."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        file.write(content)


def laughs(depth: int) -> Any:
    """A list of ten times the same list of ten times the same list..."""
    value: list[Any] = [1.0] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


class Copies:
    """The same bytes, decoded again each time they are named."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return codecs.encode, (self.text, "latin1")


TEXT = "a" * 100_000
GREEDY: dict[str, Any] = {
    "bytes by their number": Trap(bytes, 10**10),
    "a bytearray by its number": Trap(bytearray, 10**10),
    "a list of a range": Trap(list, range(10**10)),
    "a set of a range": Trap(set, range(10**10)),
    "an array by its shape": Trap(np.ndarray, (10**10,)),
    "an array that repeats itself": Trap(np.ndarray, (10**12,), np.dtype("f8"), b"12345678", 0, (0,)),
    "a reconstruction by its shape": Trap(np._core.multiarray._reconstruct, np.ndarray, (10**10,), b"b"),
    "a scalar by its type": Trap(np._core.multiarray.scalar, np.dtype("V1000000000")),
    "a list of lists of lists": laughs(12),
    "bytes that are named again": [Copies(TEXT) for _ in range(1000)],
}


@pytest.mark.parametrize("greedy", GREEDY)
@pytest.mark.parametrize("protocol", [2, 4])
def test_no_small_file_fills_the_memory(tmp_path: Path, greedy: str, protocol: int) -> None:
    save(tmp_path / "a.npy", {"a": GREEDY[greedy]}, protocol)
    assert (tmp_path / "a.npy").stat().st_size < 150_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"a\.npy: a damaged dictionary, or none \(it (asks for|makes|grows)"):
            read_dictionary(tmp_path / "a.npy")
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_objects_are_not_made_of_numbers(tmp_path: Path) -> None:
    """A type may say of itself that it holds numbers where it holds objects; NumPy would take them for addresses."""
    honest = pickle.dumps(np.array([None], dtype=object), protocol=2)
    told = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ft"  # the end of what a type says of itself: flags of 63
    start, end = honest.split(told)
    objects = end.index(b"]")  # in place of the list of objects, eight bytes
    lie = start + told.replace(b"K\x3f", b"K\x00") + end[:objects]
    lie += b"c_codecs\nencode\nX\x08\x00\x00\x00AAAAAAAAX\x06\x00\x00\x00latin1\x86Rtb."
    own_pickle(tmp_path / "a.npy", lie)
    with pytest.raises(ValueError, match=r"a\.npy: a damaged dictionary, or none"):
        read_dictionary(tmp_path / "a.npy")


def test_types_of_which_no_array_is_read(tmp_path: Path) -> None:
    for dtype in (np.dtype([("a", "f8")]), np.dtype("V8"), np.dtype("M8[s]")):
        save(tmp_path / "a.npy", {"a": np.zeros(2, dtype)}, 2)
        with pytest.raises(ValueError, match=r"it asks for arrays of type '(V|M)8', which are not read"):
            read_dictionary(tmp_path / "a.npy")
    save(tmp_path / "a.npy", {"a": np.arange(3.0).astype(">f8"), "b": np.array(["x", "yz"]), "c": np.str_("")}, 2)
    found = read_dictionary(tmp_path / "a.npy")
    np.testing.assert_array_equal(found["a"], np.arange(3.0))
    assert (found["b"].tolist(), found["c"]) == (["x", "yz"], "")


@pytest.mark.parametrize(
    ("descr", "shape"), [("<f8", (10**12,)), ("<f8", (10**6, 10**6)), ("|S0", (10**12,)), ("<f8", (3,)), ("|O", (9,))]
)
def test_headers_that_promise_more_than_there_is(tmp_path: Path, descr: str, shape: tuple[int, ...]) -> None:
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
    member.write(bytes(16) if descr != "|O" else pickle.dumps(np.array([None], dtype=object)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", member.getvalue())
    with pytest.raises(ValueError, match=r"a\.npz: a damaged file of arrays, or none"):
        read_named(tmp_path / "a.npz", ["a"])


def test_a_packed_file_of_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_named(tmp_path / "a.npz", {"a": np.zeros(10**5), "b": np.zeros(10**5)})
    assert (tmp_path / "a.npz").stat().st_size < 5000
    monkeypatch.setattr("steerers.datasets.safe_arrays.MAX_BYTES", 10**6)
    assert read_named(tmp_path / "a.npz", ["a"])["a"].sum() == 0
    with pytest.raises(ValueError, match=r"a\.npz: .*unpacked it has 1,600,256 bytes, more than the 1,000,000"):
        read_named(tmp_path / "a.npz", ["a", "b"])


def test_arrays_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_named(tmp_path / "a.npz", {"a": np.arange(3)})

    def fail(path: Path, data: bytes) -> None:
        path.open("wb").write(data[:50])
        raise RuntimeError

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(RuntimeError):
        write_named(tmp_path / "a.npz", {"a": np.arange(4)})
    assert read_named(tmp_path / "a.npz", ["a"])["a"].tolist() == [0, 1, 2]
    assert contents(tmp_path) == ["a.npz"]


def test_bytes_are_encoded_in_one_way_alone(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", {"a": Trap(codecs.encode, "x", "rot13")}, 2)
    with pytest.raises(ValueError, match="it asks for the codec 'rot13'"):
        read_dictionary(tmp_path / "a.npy")


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))])
def test_plain_arrays_are_read_too(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    np.savez_compressed(tmp_path / "a.npz", plain=array, names=np.array(["x", "y"]))
    found = read_named(tmp_path / "a.npz", ["plain", "names"])
    np.testing.assert_array_equal(found["plain"], array)
    assert found["names"].tolist() == ["x", "y"]


@pytest.mark.parametrize("order", "<>")
def test_characters_that_do_not_exist_do_not_crash(tmp_path: Path, order: str) -> None:
    text = np.array(["abc", "d"]).astype(f"{order}U3")
    text.view(f"{order}u4")[1] = 0x110000
    np.savez(tmp_path / "a.npz", a=text)
    save(tmp_path / "a.npy", {"a": text})
    for name in ("a.npz", "a.npy"):
        with pytest.raises(ValueError, match=rf"{name}: .*its text holds characters that do not exist"):
            read_named(tmp_path / name, ["a"])


def test_structures_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(2, [("x", "U3")]), b=np.zeros(2, "M8[s]"))
    for name in "ab":
        with pytest.raises(ValueError, match=r"a\.npz: .*arrays of .* are not read"):
            read_named(tmp_path / "a.npz", [name])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.ones(1), b=np.ones(1))
    save(tmp_path / "a.npy", {"a": 1, "b": 2})
    for name in ("a.npz", "a.npy"):
        assert set(read_named(tmp_path / name, ["a"])) == {"a"}
        with pytest.raises(ValueError, match=rf"{name}: it has no other, more; it has a, b"):
            read_named(tmp_path / name, ["other", "a", "more"])
    with pytest.raises(FileNotFoundError):
        read_dictionary(tmp_path / "no.npy")
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"a.npy: a scene holds a dictionary, this file a ndarray"):
        read_dictionary(tmp_path / "a.npy", "scene")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{"path": "abcdef"}], dtype=object))
    save(tmp_path / "a.npy", {"a": np.ones(100)})
    for name in ("a.npz", "a.npy"):
        whole = (tmp_path / name).read_bytes()
        for data in (b"", b"no array", whole[:60], whole[: len(whole) // 2]):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(ValueError, match=rf"{name}: a damaged file of arrays, or none"):
                read_named(tmp_path / name, ["a"])
    np.savez(tmp_path / "a.npz", a=np.array([{"path": "abcdef"}], dtype=object))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole.replace(b"abcdef", b"abcdeg"))
    with pytest.raises(ValueError, match=r"a damaged file of arrays, or none \(Bad CRC"):
        read_named(tmp_path / "a.npz", ["a"])

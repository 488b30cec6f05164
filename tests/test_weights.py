"""Reading and writing weights: no code is run, no damage goes unnoticed, nothing is written by half."""

from __future__ import annotations

import errno
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from helpers import contents
from steerers import _weights
from steerers._weights import WeightsError

CONTENT = bytes(range(256)) * 1024


# The files of others


def a_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"conv.weight": torch.randn(4, 3, generator=generator), "bn.num_batches_tracked": torch.tensor(7)}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(actual) == sorted(expected)
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype
        assert torch.equal(actual[key], value)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt", ".PTH"])
@pytest.mark.parametrize("zipped", [True, False])
def test_load_state_of_torch_files(suffix: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save(a_state(), path, _use_new_zipfile_serialization=zipped)
    assert_same(_weights.load_state(path), a_state())
    assert_same(_weights.load_state(str(path)), a_state())


def test_load_state_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(a_state(), path)
    assert_same(_weights.load_state(path), a_state())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_load_state_of_training_checkpoints(prefix: str, checkpoint: bool, tmp_path: Path) -> None:
    wrapped = {prefix + key: value for key, value in a_state().items()}
    training = {"model": wrapped, "n": 8, "optimizer": {"state": {}}, "steerer": {"generator": torch.eye(2)}}
    path = tmp_path / "latest.pth"
    torch.save(training if checkpoint else wrapped, path)
    assert_same(_weights.load_state(path), a_state())


def test_prefix_of_some_names_stays(tmp_path: Path) -> None:
    state = {"module.weight": torch.ones(1), "weight": torch.zeros(1)}
    torch.save(state, tmp_path / "w.pth")
    assert_same(_weights.load_state(tmp_path / "w.pth"), state)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (torch.eye(2), "a tensor of shape"),
        ([torch.eye(2)], "type list"),
        ({}, "an empty dict"),
        ({"weight": torch.eye(2), "epoch": 3}, "'epoch' is an object of type int"),
        ({0: torch.eye(2)}, "entry 0"),
        ({"state_dict": {"w": torch.eye(2)}}, "'state_dict' is a dict with the entries 'w'"),
        ({"model": {"w": torch.eye(2), "epoch": 3}}, "'epoch'"),
    ],
)
def test_load_state_of_something_else(content: object, found: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(content, path)
    with pytest.raises(WeightsError, match=found) as caught:
        _weights.load_state(path)
    assert str(path) in str(caught.value)


def test_load_matrix(tmp_path: Path) -> None:
    steerer = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    torch.save(steerer, tmp_path / "bare.pth")
    torch.save({"model": a_state(), "steerer": {"generator": steerer}}, tmp_path / "latest.pth")
    torch.save(torch.nn.Parameter(steerer), tmp_path / "parameter.pth")
    save_file({"generator": steerer}, tmp_path / "one.safetensors")
    for name in ("bare.pth", "latest.pth", "parameter.pth", "one.safetensors"):
        loaded = _weights.load_matrix(tmp_path / name)
        assert torch.equal(loaded, steerer)
        assert not loaded.requires_grad


@pytest.mark.parametrize("content", [a_state(), [1, 2], {"a": 1}])
def test_load_matrix_of_something_else(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="not a steerer"):
        _weights.load_matrix(tmp_path / "w.pth")


class Touch:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def torch_bytes(content: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("reader", [_weights.load_state, _weights.load_matrix])
@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle 2", "pickle 5"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_is_refused_and_not_run(kind: str, reader: Any, tmp_path: Path) -> None:
    mark, path = tmp_path / "ran", tmp_path / "evil.pth"
    evil = {"weight": Touch(mark)}
    path.write_bytes(
        {
            "zip": lambda: torch_bytes(evil),
            "legacy": lambda: torch_bytes(evil, _use_new_zipfile_serialization=False),
            "pickle 2": lambda: pickle.dumps(evil, protocol=2),
            "pickle 5": lambda: pickle.dumps(evil, protocol=5),
        }[kind]()
    )
    with pytest.raises(WeightsError, match="refused") as caught:
        reader(path)
    assert not mark.exists()
    assert str(path) in str(caught.value)
    assert "weights_only" not in str(caught.value), "no advice to load it unsafely"
    if kind in ("zip", "legacy", "pickle 2"):
        assert "open" in str(caught.value)


def test_whole_module_is_refused_by_name(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"torch\.nn\.modules\.linear\.Linear"):
        _weights.load_state(tmp_path / "w.pth")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not found</html>", CONTENT[7:], b"PK\x03\x04" + b"\0" * 40],
    ids=["empty", "page", "bytes", "zip"],
)
def test_not_weights(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError) as caught:
        _weights.load_state(path)
    assert str(path) in str(caught.value)


class Grows:
    """Asks for as many bytes as one likes when it is unpickled, which PyTorch allows."""

    def __reduce__(self) -> Any:
        return bytearray, (10**12,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_asks_for_memory_is_refused(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    content = {"w": torch.zeros(3), "more": Grows()}
    path.write_bytes(torch_bytes(content, _use_new_zipfile_serialization=zipped))
    with pytest.raises(WeightsError, match=r"w\.pth: refused, it asks for the Python object builtins\.bytearray"):
        _weights.load_state(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_name_without_end_is_cut_short(zipped: bool, tmp_path: Path) -> None:
    """PyTorch would search its own message for a word with as many steps as the name has pairs of characters."""
    path, asked = tmp_path / "w.pth", b"\x80\x02c" + b"a" * 20_000 + b"\nb\n."
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("w/data.pkl", asked)
            archive.writestr("w/version", "3\n")
    else:
        start = torch_bytes({}, _use_new_zipfile_serialization=False)
        path.write_bytes(start[: start.rindex(b"\x80\x02", 0, -10)] + asked)
    with pytest.raises(WeightsError, match=r"w\.pth: refused, it asks for the Python object a{200};"):
        _weights.load_state(path)
    path.write_bytes(path.read_bytes().replace(b"aaa\nb", "aaé\nb".encode()))  # or in letters of any alphabet
    with pytest.raises(WeightsError, match=r"w\.pth: (refused|empty, cut short)"):
        _weights.load_state(path)


def test_a_packed_file_is_refused(tmp_path: Path) -> None:
    """A thousandth of what it becomes."""
    path = tmp_path / "w.pth"
    whole = zipfile.ZipFile(io.BytesIO(torch_bytes({"w": torch.zeros(300, 300)})))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))
    assert path.stat().st_size < 5000
    with pytest.raises(WeightsError, match=r"w\.pth: refused, not a file of tensors"):
        _weights.load_state(path)


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_torch_file(kept: float, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    whole = torch_bytes({"w": torch.zeros(64, 64)}, _use_new_zipfile_serialization=zipped)
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(WeightsError) as caught:
        _weights.load_state(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("reader", [_weights.load_state, _weights.load_matrix, _weights.load])
@pytest.mark.parametrize("name", ["missing.pth", "missing.safetensors", "folder.pth", "folder.safetensors", "w.txt"])
def test_file_that_cannot_be_opened(name: str, reader: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.startswith("folder"):
        path.mkdir()
    with pytest.raises(WeightsError) as caught:
        reader(path)
    assert str(path) in str(caught.value)


# The files of this package

METADATA = {"model": "compact", "representation": "40x0 + 18x1", "group": "SO2", "licence": "MIT", "é": "ü"}


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    _weights.save(path, a_state(), METADATA)
    state, metadata = _weights.load(path)
    assert_same(state, a_state())
    assert set(metadata) == {*METADATA, "sha256", "metadata_sha256", "format_version"}
    assert metadata.items() >= METADATA.items()
    assert_same(_weights.load_state(path), a_state())
    assert contents(tmp_path) == ["w.safetensors"]
    _weights.save(path, {"w": torch.ones(3)}, metadata)
    again, stamped = _weights.load(path)
    assert_same(again, {"w": torch.ones(3)})
    assert stamped["sha256"] != metadata["sha256"]
    assert stamped["metadata_sha256"] == metadata["metadata_sha256"]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool]
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shape=st.lists(st.integers(0, 4), max_size=4))
def test_round_trip_of_every_type_and_shape(dtype: torch.dtype, shape: list[int], tmp_path: Path) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(3).abs().to(dtype)
    _weights.save(tmp_path / "w.safetensors", {"w": tensor}, {})
    assert_same(_weights.load(tmp_path / "w.safetensors")[0], {"w": tensor})


def test_shared_and_strided_tensors_are_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    state = {"a": base, "tied": base, "rotated": base.T, "part": base[:, 1:3]}
    _weights.save(tmp_path / "w.safetensors", state, {})
    assert_same(_weights.load(tmp_path / "w.safetensors")[0], {k: v.detach() for k, v in state.items()})


def test_hash_is_of_the_contents_alone(tmp_path: Path) -> None:
    def stamp(state: dict[str, Tensor], metadata: dict[str, str]) -> str:
        _weights.save(tmp_path / "w.safetensors", state, metadata)
        return _weights.load(tmp_path / "w.safetensors")[1]["sha256"]

    state = a_state()
    reference = stamp(state, {})
    assert stamp(dict(reversed(state.items())), METADATA) == reference
    weight = state["conv.weight"]
    for changed in (weight.reshape(3, 4), weight + 1e-6, weight.double(), weight.view(torch.int32)):
        assert stamp({**state, "conv.weight": changed}, {}) != reference
    assert stamp({"other": weight, "bn.num_batches_tracked": torch.tensor(7)}, {}) != reference


def rewrite(path: Path, change: Any) -> None:
    """Change the JSON header of a safetensors file, leaving its tensors as they are."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: h["__metadata__"].update(sha256="0" * 64), "tensors"),
        (lambda h: h["__metadata__"].update(group="C4"), "metadata"),
        (lambda h: h["__metadata__"].update(extra="x"), "metadata"),
        (lambda h: h["__metadata__"].pop("licence"), "metadata"),
        (lambda h: h["__metadata__"].pop("sha256"), "no 'sha256'"),
        (lambda h: h["__metadata__"].pop("metadata_sha256"), "no 'metadata_sha256'"),
        (lambda h: h["__metadata__"].update(format_version="2"), "format version '2'"),
        (lambda h: h.pop("__metadata__"), "not a file of steerers"),
        (lambda h: h["conv.weight"].update(shape=[3, 4]), "tensors"),
        (lambda h: h.update({"renamed": h.pop("conv.weight")}), "tensors"),
        (lambda h: h["conv.weight"].update(shape=[300, 4]), "safetensors"),
    ],
)
def test_tampered_header_is_refused(change: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    _weights.save(path, a_state(), METADATA)
    rewrite(path, change)
    with pytest.raises(WeightsError, match=reason) as caught:
        _weights.load(path)
    assert str(path) in str(caught.value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_flipped_bit_or_lost_tail_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    _weights.save(path, a_state(), METADATA)
    raw = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[position:]
    path.write_bytes(raw)
    try:
        state, metadata = _weights.load(path)
    except WeightsError:
        return
    assert_same(state, a_state())  # only white space of the header may change unnoticed
    assert metadata.items() >= METADATA.items()


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    _weights.save(path, a_state(), METADATA)

    def half(target: Path, data: bytes) -> None:
        with target.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", half)
        with pytest.raises(OSError, match=r"the disk is full .*w\.safetensors"):
            _weights.save(path, {"w": torch.ones(1)}, {})
    assert_same(_weights.load(path)[0], a_state())
    assert contents(tmp_path) == ["w.safetensors"]


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    _weights.save(path, a_state(), {})
    state, _ = _weights.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert_same(state, a_state())


def test_save_of_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must end in"):
        _weights.save(tmp_path / "w.pth", {}, {})
    with pytest.raises(TypeError):
        _weights.save(tmp_path / "w.safetensors", {"w": torch.ones(1)}, {"steps": 100})  # type: ignore[dict-item]
    assert contents(tmp_path) == []


# Into a network -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.pop("bias"), "1 names .*bias"),
        (lambda s: s.update(extra=torch.zeros(1)), "1 names .*extra"),
        (lambda s: s.update(weight=torch.zeros(3, 2)), r"weight has shape \(3, 2\), not \(2, 3\)"),
        (lambda s: s.update({f"{n}": torch.zeros(1) for n in range(4)}), r"4 names .*\(0, 1, 2, \.\.\.\)"),
    ],
)
def test_only_weights_of_the_same_names_and_shapes_go_into_a_network(change: Any, named: str) -> None:
    network, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    state = dict(other.state_dict())
    _weights.load_into(network, state, "a.pth", "a line")
    assert torch.equal(network.weight, other.weight)
    torch.nn.init.zeros_(network.weight)
    change(state)
    with pytest.raises(WeightsError, match=f"a.pth: not the weights of a line: {named}"):
        _weights.load_into(network, state, "a.pth", "a line")
    assert not network.weight.any()  # nothing is loaded in part

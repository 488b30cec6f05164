"""Weights read without running code, and written whole or not at all.

Two kinds of files pass through here. Files of others (``.pth``, ``.safetensors``), which
:mod:`steerers.models.downloads` finds or fetches, are read by :func:`load_state` or :func:`load_matrix`. Files of this
package are safetensors with metadata, written by :func:`save` and read by :func:`load`, which refuses altered ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from steerers._files import StrPath, atomic_write
from steerers._version import __version__

FORMAT_VERSION = 1
_RESERVED = ("format_version", "sha256", "metadata_sha256")
_TORCH_SUFFIXES = (".pth", ".pt", ".ckpt")
_PICTURES = {
    "JPEG": rb"\xff\xd8\xff", "PNG": rb"\x89PNG", "TIFF": rb"II\*\0|MM\0\*", "WEBP": rb"RIFF....WEBP", "BMP": b"BM",
    "GIF": b"GIF8",
}  # fmt: skip
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
_LEGACY_PICKLES = 5  # of which a file of PyTorch before 1.6 is made, before its numbers
_LONGEST_NAME = 200  # of what a pickle asks for; PyTorch's own have 40 characters


class WeightsError(ValueError):
    """Weights that cannot be had, read or trusted; the message says which file, why, and what would do."""


def load_state(path: StrPath) -> dict[str, Tensor]:
    """The state dict in a ``.safetensors``, ``.pth``, ``.pt`` or ``.ckpt`` file, on the CPU.

    Of a training checkpoint, a dict whose entry ``"model"`` is a dict of tensors (``{"model": ..., "steerer": ...,
    "optimizer": ..., ...}``), the ``"model"`` part is returned. The prefixes that ``DataParallel`` (``module.``) and
    ``torch.compile`` (``_orig_mod.``) put before every name are removed.

    Raises:
        WeightsError: The file is missing, damaged, of another kind, or holds anything but tensors.
    """
    content = read(path)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not content:
        raise WeightsError(f"{path}: expected a state dict, found {_describe(content)}")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise WeightsError(f"{path}: expected a state dict, but its entry {key!r} is {_describe(value)}")
    return _strip_wrappers(content)


def load_into(
    network: nn.Module, state: Mapping[str, Any], path: StrPath, title: str, optional: Set[str] = frozenset()
) -> None:
    """Give a network weights that have exactly its names and shapes.

    Args:
        path: where ``state`` was read from, and ``title`` whose weights it should hold; for the message.
        optional: names that may be missing.

    Raises:
        WeightsError: if a name is missing, unknown, of another shape, or not that of a tensor.
    """
    expected = network.state_dict()
    missing, unknown = expected.keys() - state.keys() - optional, state.keys() - expected.keys()
    faults = [
        f"{len(names)} names {fault} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"
        for fault, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    for name in sorted(expected.keys() & state.keys()):
        value = state[name]
        if not isinstance(value, Tensor):
            faults.append(f"{name} is {type(value).__name__}, not a tensor")
        elif value.shape != expected[name].shape:
            faults.append(f"{name} has shape {tuple(value.shape)}, not {tuple(expected[name].shape)}")
    if faults:
        raise WeightsError(f"{path}: not the weights of {title}: {'; '.join(faults[:3])}")
    network.load_state_dict(state, strict=not optional)


def load_matrix(path: StrPath) -> Tensor:
    """The (D, D) matrix in a file of others, as steerers are published, on the CPU.

    The file holds it alone, or a state dict in which it is the only matrix or the only one under the name of a steerer
    or generator, or a training checkpoint whose ``"steerer"`` part is one of these. A 1 x 1 convolution is one too.

    Raises:
        WeightsError: The file is missing, damaged or of another kind; or holds no such matrix, or several.
    """
    content = read(path, any_ending=True)
    part = content["steerer"] if isinstance(content, dict) and "steerer" in content else content
    tensors = part if isinstance(part, dict) else {"": part}
    matrices = {name: value for name, value in tensors.items() if isinstance(value, Tensor) and value.ndim > 1}
    if len(matrices) > 1:
        matrices = {name: value for name, value in matrices.items() if re.search("steerer|generator", str(name))}
    if len(matrices) != 1:
        raise WeightsError(f"{path}: not a steerer: {_describe_instead(content)}")
    ((name, matrix),) = matrices.items()
    bias = tensors.get(str(name).removesuffix("weight") + "bias")
    if isinstance(bias, Tensor) and bool(bias.any()):
        raise WeightsError(f"{path}: not a steerer: {name!r} comes with a bias, and a steerer is linear")
    if matrix.shape[2:] == (1, 1):
        matrix = matrix[:, :, 0, 0]
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise WeightsError(f"{path}: not a steerer: {_describe(matrix)}, not a square matrix")
    return matrix.detach().float() if matrix.dtype.itemsize == 2 else matrix.detach()


def load_steerer(path: StrPath) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a steerer's file; of a file of others its matrix, as generator, and no metadata.

    Raises:
        WeightsError: as :func:`load` and :func:`load_matrix` do.
    """
    if Path(path).suffix.lower() == ".safetensors" and _is_own(path):
        return load(path)
    return {"steerer.generator": load_matrix(path)}, {}


def _is_own(path: StrPath) -> bool:
    """Whether :func:`save` wrote a safetensors file; what cannot be read is for :func:`load` to refuse."""
    try:
        return bool(set(_RESERVED) & read_header(path)[1].keys())
    except WeightsError:
        return True


def read_header(path: StrPath) -> tuple[list[str], dict[str, str]]:
    """The names of the tensors of a safetensors file, and its metadata, as it gives them; no tensor is read."""
    with _safetensors(path) as content:
        return list(content.keys()), content.metadata() or {}


def save(path: StrPath, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to a ``.safetensors`` file, whole or not at all.

    ``"format_version"``, ``"sha256"`` (of names, types, shapes and values of the tensors) and ``"metadata_sha256"``
    (of the other metadata) are added; values given for them are replaced, so that what :func:`load` returned can be
    saved again.
    """
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {os.fspath(path)!r}")
    tensors = {  # a copy each: safetensors refuses tensors that share memory, such as tied weights
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for key, value in state.items()
    }
    own = {key: text for key, text in metadata.items() if key not in _RESERVED}
    stamps = (str(FORMAT_VERSION), _hash_tensors(tensors), _hash_metadata(own))
    with atomic_write(path) as temporary:
        temporary.write_bytes(to_bytes(tensors, own | dict(zip(_RESERVED, stamps, strict=True))))


def load(path: StrPath) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (on the CPU) and metadata of a file that :func:`save` wrote.

    Raises:
        WeightsError: The file is missing, damaged, altered since it was saved, or was not written by :func:`save`.
    """
    tensors, metadata = _read_safetensors(path)
    missing = [key for key in _RESERVED if key not in metadata]
    if missing:
        raise WeightsError(f"{path}: not a file of steerers (its metadata has no {missing[0]!r})")
    if metadata["format_version"] != str(FORMAT_VERSION):
        raise WeightsError(
            f"{path}: format version {metadata['format_version']!r}, but steerers {__version__} reads version "
            f"{FORMAT_VERSION}: update steerers"
        )
    own = {key: text for key, text in metadata.items() if key not in _RESERVED}
    for part, stamp, actual in (
        ("tensors", metadata["sha256"], _hash_tensors(tensors)),
        ("metadata", metadata["metadata_sha256"], _hash_metadata(own)),
    ):
        if stamp != actual:
            raise WeightsError(f"{path}: damaged or altered (SHA-256 of its {part} is {actual}, recorded {stamp})")
    return tensors, metadata


def _hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _hash_metadata(metadata: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode()).hexdigest()


@contextmanager
def opened(path: StrPath) -> Iterator[BufferedReader]:
    """A file open for reading; one that cannot be had is a :class:`WeightsError`."""
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror or error}") from error


def read(path: StrPath, *, any_ending: bool = False) -> Any:
    """Whatever a ``.safetensors``, ``.pth``, ``.pt`` or ``.ckpt`` file holds; never by running code in it.

    With ``any_ending`` other files are read as PyTorch's, for those whom users name as they like.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".safetensors":
        return _read_safetensors(path)[0]
    if any_ending or suffix in _TORCH_SUFFIXES:
        return _read_torch(path)
    raise WeightsError(f"{path}: unknown kind of file, expected .safetensors or {', '.join(_TORCH_SUFFIXES)}")


def _read_torch(path: StrPath) -> Any:
    with opened(path) as stream:
        try:
            _check_pickles(stream)
            return torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # damaged bytes make torch raise nearly anything
            raise WeightsError(f"{path}: {_image_instead(path) or _why_refused(error)}") from error


def _check_pickles(stream: BufferedReader) -> None:
    """Refuse a file that PyTorch would take much memory or time for: an archive that is packed, which its own are not;
    a ``bytearray``, which may be of any size and which no weights need; a name that it would search for long."""
    size = stream.seek(0, os.SEEK_END)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as archive:
            if sum(member.file_size for member in archive.infolist()) > size:
                raise UnpicklingError("packed")
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    _check_names(io.BytesIO(archive.read(name)))
    else:
        stream.seek(0)
        for _ in range(_LEGACY_PICKLES):
            _check_names(stream)
    stream.seek(0)


def _check_names(stream: IO[bytes]) -> None:
    """Look at what a pickle asks for, to its end, or to where it is none, for PyTorch to refuse."""
    try:
        asked = (str(name) for opcode, name, _ in pickletools.genops(stream) if opcode.name == "GLOBAL")
        for name in asked:
            dotted = name.replace(" ", ".").replace("__builtin__", "builtins")
            if len(dotted) > _LONGEST_NAME or dotted == "builtins.bytearray":
                raise UnpicklingError(f"GLOBAL {dotted[:_LONGEST_NAME]}")
    except UnicodeDecodeError:
        raise
    except ValueError:
        return


def _image_instead(path: StrPath) -> str | None:
    """The reason where an image was taken for weights."""
    with opened(path) as stream:
        start = stream.read(12)
    kind = next((kind for kind, form in _PICTURES.items() if re.match(form, start, re.DOTALL)), None)
    return None if kind is None else f"an image ({kind}), not a file of tensors"


def _why_refused(error: Exception) -> str:
    """The reason without torch's own text, which advises to load the file unsafely."""
    forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
    if forbidden:
        return f"refused, it asks for the Python object {forbidden[1]}; only tensors are read, code is never run"
    if isinstance(error, UnpicklingError):
        return "refused, not a file of tensors (damaged, or of another kind); code in it is never run"
    return "empty, cut short, or not a PyTorch file"


def _read_safetensors(path: StrPath) -> tuple[dict[str, Tensor], dict[str, str]]:
    with _safetensors(path) as content:
        # A copy each: otherwise the tensors stay mapped to the file, which then cannot be replaced on Windows.
        return {key: content.get_tensor(key).clone() for key in content.keys()}, content.metadata() or {}  # noqa: SIM118


@contextmanager
def _safetensors(path: StrPath) -> Iterator[Any]:
    """A safetensors file, open; one that cannot be read is a :class:`WeightsError`."""
    with opened(path):
        pass
    try:
        with safe_open(path, framework="pt") as content:
            yield content
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{path}: cut short, damaged, or not a safetensors file ({error})") from error


def _strip_wrappers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = list(state)
    while prefix := next((p for p in _WRAPPER_PREFIXES if all(name.startswith(p) for name in names)), None):
        names = [name.removeprefix(prefix) for name in names]
    return {name: value.detach() for name, value in zip(names, state.values(), strict=True)}


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, dict) and not value:
        return "an empty dict"
    if isinstance(value, dict):
        return f"a dict with the entries {', '.join(map(repr, list(value)[:5]))}{', ...' if len(value) > 5 else ''}"
    return f"an object of type {type(value).__name__}"


def _describe_instead(content: object) -> str:
    """What else than a steerer a file holds."""
    if not isinstance(content, dict) or "model" in content or not content:
        return _describe(content)
    tensors = [name for name, value in content.items() if isinstance(value, Tensor)]
    if len(tensors) < len(content):
        return _describe(content)
    return f"a state dict of {len(tensors)} tensors, such as {tensors[0]}: the weights of a network"

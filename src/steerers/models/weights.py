"""Weights: found in the cache or downloaded, checked, read without running code, and written whole or not at all.

Two kinds of files pass through here. Files of others (``.pth``, ``.safetensors``) are described by a
:class:`WeightFile`, come by :func:`fetch` and are read by :func:`load_state` or :func:`load_tensor`. Files of this
package are safetensors with metadata, written by :func:`save` and read by :func:`load`, which refuses altered ones.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import string
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PureWindowsPath
from pickle import UnpicklingError
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from steerers._version import __version__

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

StrPath = str | os.PathLike[str]

FORMAT_VERSION = 1
_RESERVED = ("format_version", "sha256", "metadata_sha256")
_TORCH_SUFFIXES = (".pth", ".pt", ".ckpt")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
_BLOCK_BYTES = 1 << 16
_LOCK_POLL_SECONDS = 0.1


class WeightsError(ValueError):
    """Weights that cannot be had, read or trusted; the message says which file, why, and what would do."""


@dataclass(frozen=True)
class WeightFile:
    """A file of weights published somewhere.

    Attributes:
        name: File name in the cache, without a folder.
        urls: Addresses (https, http or file), tried in order. Empty if the file cannot be downloaded.
        sha256: Checksum in hexadecimal, checked where known.
        size: Bytes, possibly approximate; only shown.
        licence: Licence of the weights.
        note: How to get the file by hand where it cannot be downloaded.
    """

    name: str
    urls: tuple[str, ...] = ()
    sha256: str | None = None
    size: int | None = None
    licence: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or PureWindowsPath(self.name).name != self.name:
            raise ValueError(f"name must be a plain file name such as 'detector.pth', got {self.name!r}")
        if self.sha256 is not None and (len(self.sha256) != 64 or not set(self.sha256) <= set(string.hexdigits)):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, got {self.sha256!r}")
        for url in self.urls:
            if urlsplit(url).scheme not in ("https", "http", "file"):
                raise ValueError(f"urls must be https, http or file addresses, got {url!r}")


def home() -> Path:
    """The folder of downloaded weights: ``$STEERERS_HOME``, or ``steerers`` in the user's cache folder."""
    chosen = os.environ.get("STEERERS_HOME")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _user_cache() / "steerers"
    except RuntimeError as error:
        raise WeightsError(f"no folder for weights ({error}): set STEERERS_HOME to one") from error


def _user_cache() -> Path:
    platform: str = sys.platform
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if platform == "win32":
        chosen, default = os.environ.get("LOCALAPPDATA"), "AppData/Local"
    else:
        chosen, default = os.environ.get("XDG_CACHE_HOME"), ".cache"
    return Path(chosen) if chosen and os.path.isabs(chosen) else Path.home() / default


def find(file: WeightFile, *, check: bool = True) -> Path | None:
    """The path of ``file`` in the cache, or None; never touches the network.

    Args:
        check: Compare the checksum where known. ``check=False`` is for listings, which only ask what is there.

    Raises:
        WeightsError: The cached file does not have the known checksum.
    """
    path = home() / file.name
    if not path.is_file():
        return None
    if check and file.sha256 is not None:
        with _opened(path) as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
        if actual != file.sha256.lower():
            raise WeightsError(
                f"{path} is damaged or not the published file: its SHA-256 is {actual}, expected "
                f"{file.sha256.lower()}. Delete {path} and try again"
            )
    return path


def fetch(file: WeightFile, *, progress: bool = True, timeout: float = 30.0) -> Path:
    """The path of ``file`` in the cache, downloaded first if it is not there.

    Processes that ask at once wait for one another, and one of them downloads. The file appears in the cache only
    when it is complete and its checksum, where known, is right.

    Args:
        progress: Show a bar on stderr if the download takes over two seconds.
        timeout: Seconds without an answer after which an address is given up.

    Raises:
        WeightsError: No address gave the file, or the cached file does not have the known checksum.
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
    found = find(file)
    if found is not None:
        return found
    folder = home()
    if not file.urls:
        raise WeightsError(f"{_label(file)} is not in {folder} and cannot be downloaded. {_by_hand(file, folder)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f".{file.name}.lock"):
            return find(file) or _download(file, folder, progress=progress, timeout=timeout)
    except OSError as error:
        raise WeightsError(
            f"{_label(file)} cannot be stored in {folder} ({_explain(error)}): set STEERERS_HOME to a folder that can "
            "be written, or name the file with --weights FILE"
        ) from error


def _label(file: WeightFile) -> str:
    details = [f"{file.size / 1e6:.1f} MB"] if file.size is not None else []
    details += [f"licence {file.licence}"] if file.licence else []
    return f"{file.name} ({', '.join(details)})" if details else file.name


def _by_hand(file: WeightFile, folder: Path) -> str:
    note = f" {file.note}" if file.note else ""
    return (
        f"Put the file into {folder}, or name it with --weights FILE, or set STEERERS_HOME to a folder that has "
        f"it.{note}"
    )


def _download(file: WeightFile, folder: Path, *, progress: bool, timeout: float) -> Path:
    """Try the addresses in order; the caller holds the lock."""
    target = folder / file.name
    failures = []
    for url in file.urls:
        try:
            _transfer(url, file, target, progress=progress, timeout=timeout)
        except (WeightsError, OSError, HTTPException, ValueError) as error:
            failures.append(f"{url} ({_explain(error)})")
        else:
            return target
    raise WeightsError(f"{_label(file)} could not be downloaded: {'; '.join(failures)}. {_by_hand(file, folder)}")


def _transfer(url: str, file: WeightFile, target: Path, *, progress: bool, timeout: float) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": f"steerers/{__version__}"})
    digest, received = hashlib.sha256(), 0
    with _opener().open(request, timeout=timeout) as response, atomic_write(target) as temporary:
        expected = _announced_length(response.headers)
        with (
            temporary.open("xb") as sink,
            tqdm(
                total=expected or file.size,
                desc=file.name,
                unit="B",
                unit_scale=True,
                delay=2,
                disable=not progress,
                file=sys.stderr,
            ) as bar,
        ):
            while block := response.read(_BLOCK_BYTES):
                sink.write(block)
                digest.update(block)
                received += len(block)
                bar.update(len(block))
        if expected is not None and received != expected:
            raise WeightsError(f"broken transfer: {received} of {expected} bytes arrived")
        if file.sha256 is not None and digest.hexdigest() != file.sha256.lower():
            raise WeightsError(f"wrong checksum: SHA-256 {digest.hexdigest()}, expected {file.sha256.lower()}")


def _announced_length(headers: Mapping[str, str]) -> int | None:
    """The length a server promises. A web page is refused: portals and moved files answer so, with status 200."""
    if headers.get("Content-Type", "").startswith("text/html"):
        raise WeightsError("a web page came instead of the file")
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _opener() -> urllib.request.OpenerDirector:
    """An opener without ftp and data addresses, also after a redirect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.FileHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _explain(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return str(error.reason)
    return str(error) or type(error).__name__


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold ``path`` against other processes and threads. The lock is the system's, so it ends with its process."""
    with path.open("ab") as handle:
        while not _try_lock(handle.fileno()):
            time.sleep(_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            _unlock(handle.fileno())


def _try_lock(descriptor: int) -> bool:
    """Take the lock if it is free. Where the file system has no locks, the worst case is to download twice."""
    if sys.platform == "win32":
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


def _unlock(descriptor: int) -> None:
    """Unlock by hand: a forked child that still has the descriptor open would otherwise keep the lock."""
    with suppress(OSError):
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


_UMASK_LOCK = threading.Lock()


@contextmanager
def atomic_write(path: StrPath) -> Iterator[Path]:
    """Write a file whole or not at all.

    Yields a path that does not exist yet, in the same folder and with the same suffix (libraries choose formats by
    it). What is written there replaces ``path`` when the block ends; if the block raises, it is removed and ``path``
    stays as it was. A link is followed. Devices and pipes cannot be replaced and are yielded as they are.

    Example:
        >>> with atomic_write("report.json") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("{}")
    """
    asked = Path(path)
    if asked.exists() and not asked.is_file():
        yield asked
        return
    target = asked.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", str(target.parent))
    temporary = target.with_name(f".steerers-{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        elif temporary.exists():
            temporary.chmod(0o666 & ~_umask())  # some libraries write for the owner alone
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The mask of modes of new files; it can only be read by setting it."""
    with _UMASK_LOCK:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask


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


def load_into(network: nn.Module, state: Mapping[str, Tensor], path: StrPath, title: str) -> None:
    """Give a network weights that have exactly its names and shapes.

    Args:
        path: where ``state`` was read from, and ``title`` whose weights it should hold; for the message.

    Raises:
        WeightsError: if a name is missing, unknown or of another shape.
    """
    expected = network.state_dict()
    wrong = [
        name
        for name in sorted(state.keys() | expected.keys())
        if name not in state or name not in expected or state[name].shape != expected[name].shape
    ]
    if wrong:
        some = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise WeightsError(
            f"{path}: not the weights of {title}: {len(wrong)} names are missing, unknown or of another shape ({some})"
        )
    network.load_state_dict(state)


def load_tensor(path: StrPath) -> Tensor:
    """The single tensor in a file, on the CPU, as the published steerers are stored.

    A file with one named tensor will do as well, and so will a training checkpoint whose ``"steerer"`` part is one.

    Raises:
        WeightsError: The file is missing, damaged, of another kind, or does not hold exactly one tensor.
    """
    content = read(path)
    if isinstance(content, dict) and isinstance(content.get("steerer"), dict):
        content = content["steerer"]
    if isinstance(content, dict) and len(content) == 1:
        content = next(iter(content.values()))
    if not isinstance(content, Tensor):
        raise WeightsError(f"{path}: expected a single tensor, found {_describe(content)}")
    return content.detach()


def save(path: StrPath, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to a ``.safetensors`` file, whole or not at all.

    ``"format_version"``, ``"sha256"`` (of names, types, shapes and values of the tensors) and ``"metadata_sha256"``
    (of the other metadata) are added; values given for them are replaced, so that what :func:`load` returned can be
    saved again.
    """
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {os.fspath(path)!r}")
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"metadata must map str to str, got {key!r}: {text!r}")
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"state must map names to tensors, but state[{key!r}] is {_describe(value)}")
    tensors = {  # a copy each: safetensors refuses tensors that share memory, such as tied weights
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for key, value in state.items()
    }
    own = {key: text for key, text in metadata.items() if key not in _RESERVED}
    stamps = (str(FORMAT_VERSION), _hash_tensors(tensors), _hash_metadata(own))
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=own | dict(zip(_RESERVED, stamps, strict=True)))


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
def _opened(path: StrPath) -> Iterator[Any]:
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
    with _opened(path) as stream:
        try:
            return torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # damaged bytes make torch raise nearly anything
            raise WeightsError(f"{path}: {_why_refused(error)}") from error


def _why_refused(error: Exception) -> str:
    """The reason without torch's own text, which advises to load the file unsafely."""
    forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
    if forbidden:
        return f"refused, it asks for the Python object {forbidden[1]}; only tensors are read, code is never run"
    if isinstance(error, UnpicklingError):
        return "refused, not a file of tensors (damaged, or of another kind); code in it is never run"
    return f"empty, cut short, or not a PyTorch file ({str(error).split('. ')[0] or type(error).__name__})"


def _read_safetensors(path: StrPath) -> tuple[dict[str, Tensor], dict[str, str]]:
    with _opened(path):
        pass
    try:
        with safe_open(path, framework="pt") as content:
            # A copy each: otherwise the tensors stay mapped to the file, which then cannot be replaced on Windows.
            return {key: content.get_tensor(key).clone() for key in content.keys()}, content.metadata() or {}  # noqa: SIM118
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
    if isinstance(value, dict):
        return f"a dict with the entries {', '.join(map(repr, list(value)[:5]))}{', ...' if len(value) > 5 else ''}"
    return f"an object of type {type(value).__name__}"

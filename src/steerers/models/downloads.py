"""Files of weights that others publish: described, found in the cache, or downloaded and checked.

A file is described by a :class:`WeightFile` and comes by :func:`fetch`; :mod:`steerers._weights` reads it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError, URLError

from filelock import FileLock

from steerers._console import Bar
from steerers._files import atomic_write
from steerers._version import __version__
from steerers._weights import WeightsError, opened

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 16
_TIMEOUT = 30.0  # seconds without an answer after which an address is given up


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
        with opened(path) as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
        if actual != file.sha256.lower():
            raise WeightsError(
                f"{path} is damaged or not the published file: its SHA-256 is {actual}, expected "
                f"{file.sha256.lower()}. Delete {path} and try again"
            )
    return path


def fetch(file: WeightFile) -> Path:
    """The path of ``file`` in the cache, downloaded first if it is not there.

    Processes that ask at once wait for one another, and one of them downloads. The file appears in the cache only
    when it is complete and its checksum, where known, is right. A bar on stderr shows a download of over two seconds.

    Raises:
        WeightsError: No address gave the file, or the cached file does not have the known checksum.
    """
    found = find(file)
    if found is not None:
        logger.debug("weights: %s", found)
        return found
    folder = home()
    if not file.urls:
        raise WeightsError(f"{_label(file)} is not in {folder} and cannot be downloaded. {_by_hand(file, folder)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{file.name}.lock"):
            return find(file) or _download(file, folder)
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


def _download(file: WeightFile, folder: Path) -> Path:
    """Try the addresses in order; the caller holds the lock."""
    target = folder / file.name
    failures = []
    for url in file.urls:
        try:
            _transfer(url, file, target)
        except (WeightsError, OSError, HTTPException, ValueError) as error:
            failures.append(f"{url} ({_explain(error)})")
        else:
            return target
    raise WeightsError(f"{_label(file)} could not be downloaded: {'; '.join(failures)}. {_by_hand(file, folder)}")


def _transfer(url: str, file: WeightFile, target: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": f"steerers/{__version__}"})
    opener = urllib.request.build_opener(_NoFtp)
    digest, received = hashlib.sha256(), 0
    logger.info("downloading %s from %s", _label(file), url)
    with opener.open(request, timeout=_TIMEOUT) as response, atomic_write(target) as temporary:
        expected = _announced_length(response.headers)
        look = {"total": expected or file.size, "unit": "B", "unit_scale": True}
        with temporary.open("xb") as sink, Bar(file.name, **look) as shown:
            while block := response.read(_BLOCK_BYTES):
                sink.write(block)
                digest.update(block)
                received += len(block)
                shown.update(len(block))
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


class _NoFtp(urllib.request.FTPHandler):
    """Refuses a redirect from http to ftp; those to files urllib refuses itself."""

    def ftp_open(self, request: urllib.request.Request) -> NoReturn:
        raise URLError(f"unknown url type: {request.type}")


def _explain(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return str(error.reason)
    return str(error) or type(error).__name__

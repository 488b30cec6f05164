"""Files: written whole or not at all, and JSON read however it is damaged."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

StrPath = str | os.PathLike[str]
MAX_DEPTH = 64
"""Most lists and tables within one another in a file: no file of this package has ten, and Python's stack ends."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last is a limit of the process, or of the file system
_UMASK_LOCK = threading.Lock()


@contextmanager
def atomic_write(path: StrPath, temporary_name: str | None = None) -> Iterator[Path]:
    """Write a file whole or not at all.

    Yields a path that does not exist yet, in the same folder and with the same suffix (libraries choose formats by
    it). What is written there replaces ``path`` when the block ends; if the block raises, it is removed and ``path``
    stays as it was. A link is followed. Devices and pipes cannot be replaced and are yielded as they are.

    Args:
        temporary_name: of the file in the meantime, by default one that nobody else has. Who holds a lock on ``path``
            names it, and so overwrites what a writer that was killed left behind.

    Raises:
        OSError: naming ``path``, if it cannot be written; of a full disk it says so, in whatever words the library that
            wrote it did.

    Example:
        >>> with atomic_write("report.json") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("{}")
    """
    asked = Path(path)
    if asked.exists() and not asked.is_file():
        with writing(asked):
            yield asked
        return
    target = Path(os.path.realpath(asked))  # resolve() would raise RuntimeError where links go in a loop
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", str(target.parent))
    temporary = target.with_name(temporary_name or f".steerers-{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        elif temporary.exists():
            temporary.chmod(0o666 & ~_umask())  # some libraries write for the owner alone
        os.replace(temporary, target)
    except Exception as error:
        _raise_named(error, asked, temporary)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: StrPath) -> Iterator[None]:
    """Errors of the system in the block, which know nothing of the file if it is open already, name ``path``."""
    try:
        yield
    except OSError as error:
        _raise_named(error, path)


def write_text(path: Path, content: str) -> None:
    """Write a text file whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _raise_named(error: Exception, path: StrPath, temporary: Path | None = None) -> NoReturn:
    """Raise an error in writing ``path``, for now under a ``temporary`` name, as one that gives the path."""
    code, reason, shown = None, "", os.fspath(path)
    if not isinstance(error, OSError) or error.errno is None:
        code = None if temporary is None else _why_no_more(temporary)
    elif error.filename is None or str(error.filename) in (shown, str(temporary)):
        code, reason = error.errno, error.strerror or str(error)
    if code is None:
        raise error  # it is about something else
    raise OSError(code, f"the disk is full ({os.strerror(code)})" if code in _FULL else reason, shown) from error


def _why_no_more(path: Path) -> int | None:
    """The error of the system if nothing more can be written to a file; libraries say it in words of their own."""
    try:
        with path.open("ab") as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        return error.errno if error.errno in _FULL else None
    return None


def _umask() -> int:
    """The mask of modes of new files; it can only be read by setting it."""
    with _UMASK_LOCK:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask


def checksum(path: Path) -> str:
    """SHA-256 of the content of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: StrPath) -> Any:
    """What a file of JSON holds.

    Raises:
        ValueError: naming the file, if it is damaged, or nested beyond :data:`MAX_DEPTH`.
    """
    try:
        return parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a text; ValueError for what is none, or nested beyond :data:`MAX_DEPTH`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"damaged, or not JSON ({error})") from error
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Refuse lists and tables nested beyond :data:`MAX_DEPTH`, which no function that calls itself could walk."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"its lists and tables are nested more than {MAX_DEPTH} deep")

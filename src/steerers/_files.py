"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

StrPath = str | os.PathLike[str]

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


def write_text(path: Path, content: str) -> None:
    """Write a text file whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _umask() -> int:
    """The mask of modes of new files; it can only be read by setting it."""
    with _UMASK_LOCK:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask

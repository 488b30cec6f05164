"""The progress bar of everything that may take longer than two seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The items behind a progress bar that appears after two seconds, or without one where tqdm is missing."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    shown: Iterable[T] = tqdm(items, desc=what, total=total, delay=2, leave=False, file=sys.stderr, disable=None)
    return shown

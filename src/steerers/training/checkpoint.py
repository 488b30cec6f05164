"""Checkpoints: everything a run needs to go on, written whole or not at all, with a checksum in front."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from steerers._files import atomic_write

_MAGIC = b"steerers checkpoint 1\n"
_DIGEST_BYTES = 32


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted; the message names it."""


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors, numbers, strings, lists and dicts."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    with atomic_write(path) as temporary, temporary.open("xb") as file:
        file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        file.flush()
        os.fsync(file.fileno())  # the one before is replaced: this one must be there even if the machine goes down


def read(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU.

    Raises:
        CheckpointError: naming the file, if it is missing, damaged, or no checkpoint.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if not data.startswith(_MAGIC):
        raise CheckpointError(f"{path}: not a checkpoint of this version of steerers")
    digest, payload = data[len(_MAGIC) :][:_DIGEST_BYTES], data[len(_MAGIC) + _DIGEST_BYTES :]
    if hashlib.sha256(payload).digest() != digest:
        raise CheckpointError(f"{path}: a damaged checkpoint (its checksum is wrong); delete it, or copy it again")
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError) as error:
        raise CheckpointError(f"{path}: a damaged checkpoint ({error})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: not a checkpoint: it holds {type(state).__name__}")
    return state

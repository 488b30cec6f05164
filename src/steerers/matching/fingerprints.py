"""What modules and strategies compute, told apart by their checksums: for what is kept and must not be mixed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from steerers._choices import TTA
from steerers.matching.strategies import SoftmaxStrategy, Strategy


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of what a module computes: its classes, public settings and tensors.

    A setting whose text holds an address is never equal to another, so nothing is shared or reused by mistake.
    """
    parts: list[Any] = []
    for name, part in module.named_modules():
        public = {key: _plain(value) for key, value in vars(part).items() if key[0] != "_" and key != "training"}
        held = [inner for value in vars(part).values() if isinstance(value, tuple) for inner in value]
        hidden = [fingerprint(inner) for inner in held if isinstance(inner, nn.Module)]
        parts.append([name, f"{type(part).__module__}.{type(part).__qualname__}", public, hidden])
    parts.append({key: _plain(value) for key, value in module.state_dict().items()})
    return sha256(parts)


_COMPUTING = ("tile", "kernels", "precision", "graphs", "refine")  # options that change no match


def describe_strategy(strategy: Strategy, tta: int | None = None, consensus: nn.Module | None = None) -> dict[str, Any]:
    """Name and options of a strategy, or of test-time augmentation with it; steerers and tensors by their hash, and so
    what chooses among its matches, if anything does.

    How it is computed is left out: that does not change what is matched, or, as the precision of kernels, by a match
    in thousands.
    """
    told = {option.name: getattr(strategy, option.name) for option in fields(strategy) if option.init}
    if isinstance(strategy, SoftmaxStrategy):
        told = {**vars(told.pop("options")), **told}
    if tta is not None:
        told["order"] = tta
    options = {name: _plain(value) for name, value in told.items() if name not in _COMPUTING}
    chooses = {} if consensus is None else {"consensus": fingerprint(consensus)}
    return {"name": strategy.name if tta is None else TTA, **options, **chooses}


def _plain(value: object) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, nn.Module):
        return fingerprint(value)
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()]
    if isinstance(value, FunctionType) and value.__closure__ is None and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"  # its text would hold an address
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def sha256(value: Any) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

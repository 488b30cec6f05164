"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from steerers._devices import parse_device


def test_what_is_there_is_accepted() -> None:
    assert parse_device("cpu") == torch.device("cpu") == parse_device(torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such", "unknown device 'no-such'; use cpu, cuda, cuda:1 or mps"),
        ("xla", "unknown device 'xla'; use cpu"),
        ("cuda:99", "device 'cuda:99' is not available"),
    ],
)
def test_what_is_not_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_device(name)

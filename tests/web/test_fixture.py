"""The fixture that the page's mathematics is tested by is what the package makes now."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from typing import Any

import numpy as np
import pytest

from helpers import EXAMPLES

WEB = EXAMPLES.parent / "web"
BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")


PICTURES = ("pixels", "shrunk")
"""What is kept as bytes, not as floats."""


def decoded(value: str, kind: str) -> Any:
    return np.frombuffer(base64.b64decode(value), kind).astype(np.float64)


def assert_alike(found: Any, expected: Any, path: str = "") -> None:
    """The same but for rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for name in expected:
            assert_alike(found[name], expected[name], f"{path}.{name}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], dict | list):
        assert len(found) == len(expected), path
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_alike(one, other, f"{path}[{index}]")
    elif path.endswith(PICTURES):  # a value that is half way between two levels is rounded to either
        off = np.abs(decoded(found, "u1") - decoded(expected, "u1"))
        assert off.max() <= 1, path
        assert off.mean() < 1e-3, path
    elif isinstance(expected, str) and BASE64.fullmatch(expected):
        np.testing.assert_allclose(decoded(found, "<f4"), decoded(expected, "<f4"), rtol=1e-4, atol=1e-4, err_msg=path)
    elif isinstance(expected, float | list):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=path)
    else:
        assert found == expected, path


@pytest.mark.usefixtures("one_thread")
def test_the_fixture_is_the_packages() -> None:
    spec = importlib.util.spec_from_file_location("make_fixture", WEB / "test" / "make_fixture.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert_alike(json.loads(json.dumps(maker.make_fixture())), json.loads(maker.FIXTURE.read_text(encoding="utf-8")))

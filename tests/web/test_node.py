"""The page's mathematics and network in Node: what ``npm test`` says in web/."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from helpers import EXAMPLES

WEB = EXAMPLES.parent / "web"
pytestmark = pytest.mark.web


def test_what_npm_test_says() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm on this machine")
    if not (WEB / "node_modules").is_dir():
        pytest.skip("the page's packages are not installed: make web")
    if not (WEB / "static" / "model" / "compact.onnx").is_file():
        pytest.skip("the page's model is not there: make web")
    done = subprocess.run([npm, "test"], cwd=WEB, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

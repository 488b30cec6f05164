"""Killed at any moment, in any step, and run again: nothing is lost, and the same bytes come out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collection.photographs import bytes_of, save_views

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")

CODE = """
import os, random, signal, sys, time
from steerers.cli import main
import steerers.collection, steerers.pipeline, h5py, cv2

def run(arguments, seconds=None):
    "Run a command in a process of its own, and kill it after a time; whether it ended by itself, and how long it took."
    start, child = time.monotonic(), os.fork()
    if not child:
        os._exit(main([*arguments, "--quiet"]))
    while seconds is not None and time.monotonic() - start < seconds:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True, 0
        time.sleep(0.001)
    if seconds is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status == 0 or (status == signal.SIGKILL and seconds is not None), status
    return status == 0, time.monotonic() - start

draw = random.Random(int(sys.argv[1]))
steps = (
    ("extract", "photos", "-o", "{}", "--model", "upright-sift", "--num-keypoints", "60", "--shard-size", "2"),
    ("pairs", "{}", "--sequential", "3", "--similar", "2"),
    ("match-pairs", "{}", "--shard-size", "4"),
)
kills = 0
for step in steps:
    _, whole = run([part.format("whole") for part in step])
    for _ in range(5):
        ended, _ = run([part.format("killed") for part in step], draw.uniform(0, 1.2 * whole))
        kills += not ended
    run([part.format("killed") for part in step])
print(kills)
"""


def test_killed_at_random_moments(tmp_path: Path) -> None:
    save_views(tmp_path / "photos", [f"{index}.jpg" for index in range(9)])
    done = subprocess.run([sys.executable, "-c", CODE, "0"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3  # of 15
    whole, killed = bytes_of(tmp_path / "whole"), bytes_of(tmp_path / "killed")
    assert sorted(whole) == sorted(killed)
    assert whole == killed
    left = [path.name for path in (tmp_path / "killed").rglob(".*.h5")]
    assert left == []

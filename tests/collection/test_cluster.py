"""Shards on a local Ray cluster of two workers, one of which is killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collection.photographs import bytes_of, save_views
from helpers import assert_refused
from steerers.collection import Choice, Collection, choose_pairs, cluster, extract, match_pairs

NAMES = [f"{index}.jpg" for index in range(8)]
with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs steerers[ray]")


def make(folder: Path, name: str) -> Collection:
    return Collection.create(folder / name, folder / "photos", "upright-sift", num_keypoints=60, shard_size=1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, and ``whole``, the collection of them that one process makes."""
    folder = tmp_path_factory.mktemp("cluster")
    save_views(folder / "photos", NAMES)
    whole = make(folder, "whole")
    extract(whole)
    choose_pairs(whole, Choice(sequential=3))
    match_pairs(whole, shard_size=3)
    return folder


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of the workers
        module.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield module
        module.shutdown()


@with_ray
def test_a_worker_that_dies_is_replaced(
    expected: Path, ray: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, started = cluster._start, 0

    def start(*arguments: Any) -> Any:
        nonlocal started
        started += 1
        worker = real(*arguments)  # not kept: whose handle is gone makes room for others
        if started in (1, 4):  # the first of each step
            pid = ray.get(worker.pid.remote())
            give = worker.do.remote

            class Doomed:
                """Its first shard is its last."""

                class do:  # noqa: N801
                    @staticmethod
                    def remote(number: int) -> Any:
                        promise = give(number)
                        os.kill(pid, signal.SIGKILL)
                        return promise

            return Doomed
        return worker

    monkeypatch.setattr(cluster, "_start", start)
    collection = make(expected, "by ray")
    cluster.extract_on_ray(collection)
    assert started == 3
    choose_pairs(collection, Choice(sequential=3))
    cluster.match_on_ray(collection, shard_size=3)
    assert started == 6
    assert caplog.text.count("a worker died; shard 0 is done again") == 2
    assert bytes_of(expected / "by ray") == bytes_of(expected / "whole")


@with_ray
def test_a_shard_of_which_all_die(expected: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(cluster._Worker):
        def do(self, number: int) -> str | None:
            os.kill(os.getpid(), signal.SIGKILL)
            return None

    monkeypatch.setattr(cluster, "_Worker", Dying)
    with pytest.raises(ValueError, match=r"3 workers died of shard [01]: is there enough memory"):
        cluster.extract_on_ray(make(expected, "dying"))


@with_ray
def test_errors_of_a_shard_come_as_they_are(expected: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = make(expected, "failing")
    (expected / "failing" / "features").write_text("no folder")
    with pytest.raises(OSError, match="features"):
        cluster.extract_on_ray(collection)
    with pytest.raises(ValueError, match="the Ray cluster has no GPU to work on"):
        cluster.extract_on_ray(make(expected, "no gpu"), device="cuda")


def test_without_ray(expected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = ["--model", "upright-sift", "--num-keypoints", "60"]
    out = expected / "without"
    assert_refused(
        ["extract", expected / "photos", "-o", out, *told, "--ray"], "Ray is not installed: pip install steerers[ray]"
    )

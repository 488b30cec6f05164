"""Matchers from their specs, with one network where they share it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from benchmarks.dots import Stub, make_run, predict_all
from helpers import EXAMPLES
from steerers.benchmarks.predict import Pair
from steerers.benchmarks.runs import describe_matching, load_runs, share_extractors
from steerers.refinement import RefineOptions

pytestmark = pytest.mark.usefixtures("one_thread")


def test_equal_extractors_become_one() -> None:
    runs = share_extractors([make_run(Stub(), label="a"), make_run(Stub(), label="b"), make_run(Stub(1.0))])
    extractors = [run.pipeline.model.extractor for run in runs]
    assert extractors[0] is extractors[1]
    assert extractors[0] is not extractors[2]
    assert [run.pipeline.model.name for run in runs] == ["a", "b", "stub"]


def test_load_runs_reads_specs_and_shares_networks() -> None:
    specs = ["upright-sift", "upright-sift:tta:8", "upright-sift:max-similarity", "sift"]
    runs = load_runs(specs, num_keypoints=50)
    assert [run.label for run in runs] == specs
    assert [run.pipeline.strategy_name for run in runs] == ["max-matches", "tta", "max-similarity", "dual-softmax"]
    assert [run.pipeline.tta for run in runs] == [None, 8, None, None]
    assert len({id(run.pipeline.model.extractor) for run in runs}) == 2


def test_refined_runs_are_others(tmp_path: Path) -> None:
    """Kept predictions tell them apart; places differ, and of a rotated image they are those of the unrotated one."""
    with PIL.Image.open(EXAMPLES / "camera.jpg") as picture:
        picture.resize((240, 180)).save(tmp_path / "a.png")
    runs = load_runs(["upright-sift", "upright-sift?refine=1", "upright-sift?refine=0"], num_keypoints=200)
    told = [describe_matching(run.pipeline) for run in runs]
    assert told[0] == told[2]
    assert told[1] == {**told[0], "refinement": asdict(RefineOptions())}
    predicted = predict_all(runs, [Pair("a", "a", tmp_path / "a.png", tmp_path / "a.png", 0, 90)])
    plain, refined, _ = (found[0].matches for found in predicted)
    off = [np.median(np.linalg.norm(found.keypoints1 - found.keypoints0, axis=1)) for found in (plain, refined)]
    assert off[1] <= off[0] < 0.1
    assert not np.array_equal(plain.keypoints1, refined.keypoints1)


def test_load_runs_combines_detectors_and_models() -> None:
    (run,) = load_runs(["upright-sift@sift:tta"], num_keypoints=50)
    names = [type(part).__name__ for part in run.pipeline.model.extractor.children()]
    assert names == ["Sift", "UprightSift"]
    with pytest.raises(ValueError, match=r"disk\.pth is none of the weights of the models sift, orb"):
        load_runs(["sift", "orb"], num_keypoints=50, weights=["disk.pth"])


def test_load_runs_reads_options() -> None:
    specs = ["sift:mutual-nearest?ratio=0.85", "sift?threshold=0.3&inverse_temperature=15", "sift:mutual-nearest"]
    nearest, softmax, plain = (run.pipeline.strategy for run in load_runs(specs, num_keypoints=50))
    assert (nearest.ratio, nearest.threshold) == (0.85, -1.0)  # type: ignore[attr-defined]
    assert (plain.ratio, plain.threshold) == (None, -1.0)  # type: ignore[attr-defined]
    assert (softmax.name, softmax.options.threshold, softmax.options.inverse_temperature) == ("dual-softmax", 0.3, 15.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sift?", r"write MODEL\[@DETECTOR\]"),
        ("sift?ratio", "'ratio' is none of the options"),
        ("sift?device=1", "'device=1' is none of the options inverse_temperature=, threshold=, ratio=, "),
        ("sift?threshold=high", "threshold must be a number, got 'high'"),
        ("upright-sift:subset?seed=1.5", "seed must be a whole number, got '1.5'"),
        ("sift?ratio=0.8", "strategy 'dual-softmax' has no option 'ratio'"),
        ("sift:mutual-nearest?ratio=2", "ratio must be above 0 and at most 1, got 2.0"),
        ("sift:mutual-nearest:4", "has no option 'order'"),
    ],
)
def test_wrong_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_runs([spec], num_keypoints=50)


@pytest.mark.parametrize(
    "spec", ["", ":tta", "sift@", "sift@orb@orb", "sift:", "sift:tta:x", "sift:tta:4:4", "no-such", "sift:no-such"]
)
def test_wrong_specs_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|unknown"):
        load_runs([spec], num_keypoints=50)

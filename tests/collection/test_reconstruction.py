"""From matched pairs to a report: what is written, what is said, what is not done twice."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from collection.scenes import Scene, make_collection, make_scene
from helpers import EXAMPLES, contents
from steerers.collection import Collection, VerificationOptions
from steerers.collection.georeference import Position, fit_similarity, from_enu
from steerers.collection.mapping import centres_of
from steerers.collection.reconstruction import (
    DATABASE,
    REFINED,
    ReconstructionOptions,
    Result,
    reconstruct,
    reconstruct_matched,
)
from steerers.refinement import RefineOptions

pycolmap = pytest.importorskip("pycolmap")
pytestmark = pytest.mark.usefixtures("one_thread")


class Page(HTMLParser):
    """Checks that tags are closed, and collects the text."""

    EMPTY = ("meta", "path", "rect", "br")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_all_of_it(tmp_path: Path) -> None:
    scene = make_scene(6, points=250)
    places = from_enu(scene.centres * 20, np.array([57.7, 11.97, 120.0]))
    positions: list[Position] = [(a, b, c) for a, b, c in places.tolist()]
    positions[2] = (48.85, 2.35, 35.0)
    collection = make_collection(
        tmp_path / "out", [scene], focal=True, camera="x", positions=positions, false_pairs=[(0, 4)]
    )
    result = reconstruct_matched(collection)
    assert result.sentences[0] == "6 of 6 photographs are registered, in one model"
    assert "the rotations of 1 of them contradict their loops" in result.sentences[2]
    assert re.fullmatch(r"aligned to GPS by 5 photographs, [\d.]+ m off at the median", result.sentences[3])
    assert re.fullmatch(
        r"the GPS position of scene a/02 é.jpg is 1,\d\d\d km from where the model has it, and was not used",
        result.sentences[4],
    )
    numbers = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert numbers == result.numbers
    assert numbers["registered"] == 6
    assert numbers["models"][0]["mean_reprojection_error"] == pytest.approx(
        result.models[0].compute_mean_reprojection_error(), abs=1e-3
    )
    assert numbers["models"][0]["mean_track_length"] == pytest.approx(
        result.models[0].compute_mean_track_length(), abs=1e-3
    )
    assert set(contents(tmp_path / "out")) >= {
        "cameras.geojson", "colmap", "origin.json", "points.ply", "report.html", "report.json", "sparse", "verified",
    }  # fmt: skip
    origin = json.loads((tmp_path / "out/origin.json").read_text(encoding="utf-8"))
    assert origin["latitude"] == pytest.approx(57.7, abs=0.01)
    assert pycolmap.Reconstruction(tmp_path / "out/sparse/0").num_reg_images() == 6
    source = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    page = Page(source)
    assert "From above, north up." in page.text
    assert "scene a/02 é.jpg" in page.text
    assert not re.search(r"(?:src|href)=|url\(", source)  # nothing is loaded


def test_from_photographs(tmp_path: Path) -> None:
    """Four views of the village, each rotated by another angle, to cameras that are where they were."""
    truth = json.loads((EXAMPLES / "village/cameras.json").read_text(encoding="utf-8"))
    centres = {camera["name"]: camera["centre"] for camera in truth["cameras"][:4]}
    (tmp_path / "photos").mkdir()
    for name in centres:
        shutil.copy(EXAMPLES / "village" / name, tmp_path / "photos")
    options = ReconstructionOptions(cameras="one")
    result = reconstruct(tmp_path / "photos", tmp_path / "out", options=options, num_keypoints=600, max_size=480)
    assert result.sentences[0] == "4 of 4 photographs are registered, in one model"
    found = centres_of(result.models[0])
    source, target = (np.array([where[name] for name in sorted(centres)]) for where in (found, centres))
    aligned = fit_similarity(source, target)
    assert aligned is not None
    assert np.linalg.norm(aligned(source) - target, axis=1).max() < 1.0  # metres, from 87 away
    again = replace(options, refinement=RefineOptions())
    refined = reconstruct(tmp_path / "photos", tmp_path / "out", options=again, num_keypoints=600, max_size=480)
    before, after = (one.numbers["models"][0] for one in (result, refined))
    assert after["mean_reprojection_error"] < 0.5 * before["mean_reprojection_error"]
    assert after["mean_track_length"] > 0.95 * before["mean_track_length"]
    assert (tmp_path / "out" / DATABASE).is_file()
    assert (tmp_path / "out" / REFINED).is_file()
    other = replace(again, verification=VerificationOptions(threshold=1.0))  # its database is made anew
    assert reconstruct_matched(Collection.open(tmp_path / "out"), other).numbers["registered"] == 4


def test_a_second_time_nothing_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(4, points=200)])
    first = reconstruct_matched(collection)
    page = (tmp_path / "out/report.html").read_bytes()
    monkeypatch.setattr("steerers.collection.mapping._incremental", None)
    monkeypatch.setattr("steerers.collection.verification._verify", None)
    second = reconstruct_matched(collection)
    assert second.numbers == first.numbers
    assert (tmp_path / "out/report.html").read_bytes() == page


def test_two_scenes_are_said_to_be_two(tmp_path: Path) -> None:
    scenes = [make_scene(4, seed=1, points=200), make_scene(5, seed=2, points=200)]
    result = reconstruct_matched(make_collection(tmp_path / "out", scenes))
    assert result.sentences[0].startswith("9 of 9 photographs are registered, in 2 models of 5, 4 that nothing joins")
    assert [model.num_reg_images() for model in result.models] == [5, 4]
    assert "Model 1: 4 photographs" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def nothing(tmp_path: Path, scene: Scene) -> Result:
    result = reconstruct_matched(make_collection(tmp_path / "out", [scene]))
    assert result.models == []
    assert not (tmp_path / "out/points.ply").exists()
    Page((tmp_path / "out/report.html").read_text(encoding="utf-8"))
    return result


def test_one_photograph(tmp_path: Path) -> None:
    result = nothing(tmp_path, make_scene(1))
    assert result.sentences[0] == "none of 1 photographs could be reconstructed: it takes two at least"
    assert result.numbers["not_registered"] == {"scene a/00 é.jpg": "in no pair that was matched"}


def test_the_same_photograph_again_and_again(tmp_path: Path) -> None:
    scene = make_scene(1)
    same = Scene(np.repeat(scene.poses, 4, axis=0), np.repeat(scene.rolls, 4), scene.points)
    result = nothing(tmp_path, same)
    assert result.sentences[0].startswith(
        "none of 4 photographs could be reconstructed: every pair is explained by a homography"
    )


def test_photographs_of_nothing(tmp_path: Path) -> None:
    scene = make_scene(3)
    result = nothing(tmp_path, Scene(scene.poses, scene.rolls, scene.points[:10]))
    assert result.sentences[0].endswith("no pair is explained by geometry")
    assert "none of its pairs is explained by geometry (at most" in str(result.numbers["not_registered"])


def test_names_are_escaped(tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "<b>out", [make_scene(3, points=200)], prefix="<script>&")
    reconstruct_matched(collection)
    source = (tmp_path / "<b>out/report.html").read_text(encoding="utf-8")
    assert "<script" not in source
    assert "<b>out" not in source
    assert "&lt;script&gt;&amp;" in source
    Page(source)


def test_without_pycolmap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(2)])
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(ImportError, match=r'pip install "steerers\[colmap\]"'):
        reconstruct_matched(collection)
    assert not (tmp_path / "out/verified").exists()  # before any work


def test_contradicted_pairs_on_request(tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "out", [make_scene(6, points=200)], false_pairs=[(1, 4)])
    reconstruct_matched(collection, ReconstructionOptions(keep_contradicted=True))
    with pycolmap.Database.open(tmp_path / "out" / DATABASE) as database:
        assert database.num_verified_image_pairs() == 15

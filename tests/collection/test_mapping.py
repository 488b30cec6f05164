"""Mapping by pycolmap of scenes that are known: cameras, several models, a place on the Earth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from collection.scenes import Scene, make_collection, make_scene
from helpers import run_on_full_disk
from steerers.collection import mapping
from steerers.collection.colmap import write_database
from steerers.collection.georeference import Position, fit_similarity, from_enu
from steerers.collection.mapping import MappingOptions, Placed, centres_of, map_database, write_geojson, write_points
from steerers.collection.verification import verify

pycolmap = pytest.importorskip("pycolmap")
pytestmark = pytest.mark.usefixtures("one_thread")
HOME = np.array([57.7, 11.97, 120.0])


def reconstruct(
    folder: Path, scenes: Sequence[Scene], positions: dict[str, Position] | None = None, **options: object
) -> list[Placed]:
    if not folder.exists():
        write_database(verify(make_collection(folder, scenes, focal=True, camera="x")), folder / "database.db")
    return map_database(
        folder / "database.db",
        folder / "nowhere",
        folder / "sparse",
        MappingOptions(**options),  # type: ignore[arg-type]
        positions=positions,
    )


def camera_errors(model: object, scene: Scene, prefix: str = "scene a") -> np.ndarray:
    """How far the cameras of a model are from the true ones, after alignment, in the scene's units."""
    centres = centres_of(model)
    names = sorted(centres)
    source = np.stack([centres[name] for name in names])
    target = scene.centres[[int(name.removeprefix(f"{prefix}/")[:2]) for name in names]]
    found = fit_similarity(source, target)
    assert found is not None
    return np.linalg.norm(found(source) - target, axis=1)


@pytest.mark.parametrize("mapper", ["incremental", "global"])
def test_cameras_are_where_they_are(tmp_path: Path, mapper: str) -> None:
    scene = make_scene(6, points=250)
    model = reconstruct(tmp_path / "out", [scene], mapper=mapper)[0].model
    assert model.num_reg_images() == 6
    assert camera_errors(model, scene).max() < 0.15
    assert model.compute_mean_reprojection_error() < 0.6
    assert sorted(path.name for path in (tmp_path / "out/sparse").iterdir()) == ["0", "mapping.json"]
    there = pycolmap.Reconstruction(tmp_path / "out/sparse/0")
    assert there.num_points3D() == model.num_points3D()


def test_two_scenes_are_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = [make_scene(4, seed=1, points=200), make_scene(6, seed=2, points=200)]
    models = [one.model for one in reconstruct(tmp_path / "out", scenes)]
    assert [model.num_reg_images() for model in models] == [6, 4]
    assert camera_errors(models[0], scenes[1], "scene b").max() < 0.15
    assert camera_errors(models[1], scenes[0]).max() < 0.15
    monkeypatch.setattr(mapping, "_incremental", None)  # the second time they are read
    again = reconstruct(tmp_path / "out", scenes)
    assert [one.model.num_reg_images() for one in again] == [6, 4]
    with pytest.raises(TypeError):
        reconstruct(tmp_path / "out", scenes, min_model_size=5)
    assert len(list((tmp_path / "out/sparse").iterdir())) == 3  # what failed has not touched what was there
    assert not list((tmp_path / "out").glob(".sparse*"))


def test_one_photograph_and_the_same_one_again_make_no_model(tmp_path: Path) -> None:
    assert reconstruct(tmp_path / "one", [make_scene(1)]) == []
    scene = make_scene(1)
    same = Scene(np.repeat(scene.poses, 4, axis=0), np.repeat(scene.rolls, 4), scene.points)
    assert reconstruct(tmp_path / "same", [same]) == []


def test_a_full_disk(tmp_path: Path) -> None:
    write_database(verify(make_collection(tmp_path / "out", [make_scene(4, points=1500)])), tmp_path / "database.db")
    code = """
from pathlib import Path
from steerers.collection.mapping import map_database
try:
    map_database(Path("database.db"), Path("nowhere"), Path("sparse"))
except OSError as error:
    print(error.strerror, error.filename)
"""
    lines, _ = run_on_full_disk(code, tmp_path, 70_000)
    assert lines == ["the disk is full (File too large) sparse"]
    assert not (tmp_path / "sparse").exists()
    assert not list(tmp_path.glob(".sparse*"))


def positions_of(scene: Scene, metres: float = 20.0) -> dict[str, Position]:
    places = from_enu(scene.centres * metres, HOME)
    return {f"scene a/{k:02d} é.jpg": (a, b, c) for k, (a, b, c) in enumerate(places.tolist())}


def test_a_model_on_the_earth(tmp_path: Path) -> None:
    scene = make_scene(7, points=250)
    positions = positions_of(scene)
    positions["scene a/03 é.jpg"] = (48.85, 2.35, 35.0)
    (placed,) = reconstruct(tmp_path / "out", [scene], positions)
    assert placed.alignment is not None
    assert placed.alignment.wrong == ("scene a/03 é.jpg",)
    assert placed.alignment.error < 1.0
    centres = centres_of(placed.model)
    there = centres_of(pycolmap.Reconstruction(tmp_path / "out/sparse/0"))
    assert all(np.allclose(there[name], centre) for name, centre in centres.items())
    (again,) = reconstruct(tmp_path / "out", [scene], positions)
    assert again.alignment is not None
    assert again.alignment.wrong == placed.alignment.wrong
    assert all(np.allclose(centres_of(again.model)[name], centre, atol=1e-6) for name, centre in centres.items())
    truth = from_enu(scene.centres * 20.0, HOME)
    path = tmp_path / "cameras.geojson"
    assert write_geojson([placed], path)
    features = json.loads(path.read_text(encoding="utf-8"))["features"]
    assert [feature["properties"]["name"] for feature in features] == sorted(centres)
    for feature, (latitude, longitude, altitude) in zip(features, truth.tolist(), strict=True):
        east, north, up = feature["geometry"]["coordinates"]
        assert abs(north - latitude) < 3e-5  # three metres
        assert abs(east - longitude) < 6e-5
        assert abs(up - altitude) < 3
    assert [feature["properties"]["gps_wrong"] for feature in features] == [k == 3 for k in range(7)]
    write_points(placed.model, tmp_path / "points.ply")
    head = (tmp_path / "points.ply").read_bytes()[:200]
    assert f"element vertex {placed.model.num_points3D()}".encode() in head


def test_without_gps(tmp_path: Path) -> None:
    scene = make_scene(4, points=200)
    path = tmp_path / "cameras.geojson"
    for positions, reason in (
        (None, "GPS was left aside"),
        ({}, "no photograph has a GPS position"),
        ({"x": (1.0, 2.0, None)}, "three are needed"),
    ):
        (placed,) = reconstruct(tmp_path / "out", [scene], positions)  # type: ignore[arg-type]
        assert placed.alignment is None
        assert reason in placed.reason
        path.touch()  # of another time
        assert not write_geojson([placed], path)
        assert not path.exists()


def test_errors_of_refined_keypoints_are_smaller() -> None:
    assert MappingOptions().of_keypoints().max_error == 4.0
    assert MappingOptions().of_keypoints(registered=1.0).max_error == 2.0
    assert MappingOptions().of_keypoints(registered=1.6).max_error == 1.25
    assert MappingOptions(max_error=3.0).of_keypoints(registered=1.6).max_error == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mapper": "magic"}, "mapper must be"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"min_model_size": 1}, "min_model_size"),
        ({"max_error": 0.0}, "max_error"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MappingOptions(**options)  # type: ignore[arg-type]

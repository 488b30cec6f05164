"""COLMAP databases of collections, opened by pycolmap: what is in them, what is added, what is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from collection.scenes import FOCAL, SIZE, make_collection, make_scene
from helpers import run_on_full_disk
from steerers.collection.colmap import Written, to_colmap, write_database
from steerers.collection.verification import Verified, verify

pycolmap = pytest.importorskip("pycolmap")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def verified(tmp_path: Path) -> Verified:
    return verify(
        make_collection(tmp_path / "out", [make_scene(5)], focal=True, camera="Pin hole", false_pairs=[(0, 3)])
    )


def test_what_pycolmap_reads(tmp_path: Path, verified: Verified) -> None:
    path = tmp_path / "out/colmap/database.db"
    written = write_database(verified, path)
    assert written == Written(photographs=5, cameras=1, matched=10, verified=9)
    collection = verified.collection
    with pycolmap.Database.open(path) as database:
        (camera,) = database.read_all_cameras()
        assert camera.has_prior_focal_length
        assert (camera.width, camera.height, camera.model_name) == (*SIZE, "SIMPLE_RADIAL")
        np.testing.assert_allclose(camera.params, [FOCAL, SIZE[0] / 2, SIZE[1] / 2, 0])
        images = {image.name: image.image_id for image in database.read_all_images()}
        assert sorted(images) == verified.names
        for name, image_id in images.items():
            expected = collection.keypoints(name).astype(np.float64) + 0.5
            there = np.asarray(database.read_keypoints(image_id))
            assert there.dtype == np.float32
            assert np.array_equal(there[:, :2], expected.astype(np.float32))
        for verdict in verified.good:
            ids = [images[name] for name in verdict.pair]
            matches = collection.matches(*verdict.pair).indices
            assert np.array_equal(database.read_matches(*ids), matches)
            kept = verdict in verified.consistent
            assert database.exists_two_view_geometry(*ids) == kept
            if kept:
                check_geometry(database.read_two_view_geometry(*ids), database, ids, verdict.inliers)


def check_geometry(found: object, database: object, ids: list[int], inliers: int) -> None:
    """COLMAP's inliers agree with its matrices, in its pixels."""
    assert found.config == pycolmap.TwoViewGeometryConfiguration.CALIBRATED  # type: ignore[attr-defined]
    indices = np.asarray(found.inlier_matches)  # type: ignore[attr-defined]
    assert len(indices) == inliers
    points = [
        np.column_stack([np.asarray(database.read_keypoints(k))[i, :2], np.ones(len(i))])  # type: ignore[attr-defined]
        for k, i in zip(ids, indices.T, strict=True)
    ]
    lines = points[0] @ np.asarray(found.F).T  # type: ignore[attr-defined]
    assert np.abs((points[1] * lines).sum(axis=1) / np.linalg.norm(lines[:, :2], axis=1)).max() < 4.0
    assert found.E is not None  # type: ignore[attr-defined]


def test_keypoints_are_half_a_pixel_more_exactly() -> None:
    ours = np.array([[0.0, 1024.25], [2050.125, 4097.0]], np.float32)
    assert to_colmap(ours).tolist() == [[0.5, 1024.75], [2050.625, 4097.5]]


def test_a_second_time_and_after_a_kill(tmp_path: Path, verified: Verified) -> None:
    path = tmp_path / "database.db"
    write_database(verified, path)
    before = contents(path)
    write_database(verified, path)
    assert contents(path) == before
    with closing(sqlite3.connect(path)) as database, database:  # as if a process had been killed in between
        database.execute(
            "DELETE FROM two_view_geometries WHERE rowid IN (SELECT rowid FROM two_view_geometries LIMIT 4)"
        )
        database.execute("DELETE FROM matches WHERE rowid IN (SELECT rowid FROM matches LIMIT 7)")
        database.execute("DELETE FROM keypoints WHERE image_id = 3")
    write_database(verified, path)
    assert contents(path) == before


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the tables that we fill."""
    with closing(sqlite3.connect(path)) as database:
        return {
            table: sorted(database.execute(f"SELECT * FROM {table}"), key=repr)
            for table in ("cameras", "images", "keypoints", "matches", "two_view_geometries")
        }


def test_contradicted_pairs_come_and_go(tmp_path: Path, verified: Verified) -> None:
    path = tmp_path / "database.db"
    assert write_database(verified, path, keep_contradicted=True).verified == 10
    assert write_database(verified, path).verified == 9


def test_pairs_that_are_taken_out(tmp_path: Path, verified: Verified) -> None:
    path = tmp_path / "database.db"
    write_database(verified, path)
    verified.collection.set_pairs(verified.collection.pairs()[3:])
    fewer = verify(verified.collection)
    assert write_database(fewer, path).verified == len(fewer.consistent) < len(verified.consistent)


@pytest.mark.parametrize(
    ("focal", "camera", "cameras", "count", "prior"),
    [
        (True, "x", "auto", 1, True),
        (True, "", "auto", 3, True),
        (False, "x", "auto", 3, False),
        (True, "x", "each", 3, True),
        (False, "", "one", 1, False),
    ],
)
def test_cameras(tmp_path: Path, focal: bool, camera: str, cameras: str, count: int, prior: bool) -> None:
    verified = verify(make_collection(tmp_path / "out", [make_scene(3)], focal=focal, camera=camera))
    path = tmp_path / "database.db"
    assert write_database(verified, path, cameras=cameras).cameras == count  # type: ignore[arg-type]
    with pycolmap.Database.open(path) as database:
        for found in database.read_all_cameras():
            assert found.has_prior_focal_length == prior
            assert found.focal_length == pytest.approx(FOCAL if prior else 1.2 * max(SIZE))


def test_a_database_of_another_model_is_refused(tmp_path: Path, verified: Verified) -> None:
    path = tmp_path / "database.db"
    write_database(verified, path)
    before = contents(path)
    other = verify(make_collection(tmp_path / "other", [make_scene(5)], seed=7))
    with pytest.raises(
        ValueError, match=r"has other keypoints of 'scene a/00 é.jpg' than .*other: it is of another model"
    ):
        write_database(other, path)
    fewer = verify(make_collection(tmp_path / "fewer", [make_scene(4)]))
    with pytest.raises(ValueError, match=r"holds 1 photographs that are not in .*fewer, such as 'scene a/04 é.jpg'"):
        write_database(fewer, path)
    assert contents(path) == before


@pytest.mark.parametrize("content", [b"not a database, but long enough to be one", b"SQLite format 3\0" + bytes(200)])
def test_what_is_no_database_is_refused(tmp_path: Path, verified: Verified, content: bytes) -> None:
    path = tmp_path / "database.db"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"database.db.*(no|not a) COLMAP database"):
        write_database(verified, path)
    assert path.read_bytes() == content


def test_a_full_disk(tmp_path: Path, verified: Verified) -> None:
    code = f"""
from pathlib import Path
from steerers.collection import Collection
from steerers.collection.colmap import write_database
from steerers.collection.verification import verify
try:
    write_database(verify(Collection.open({str(verified.collection.folder)!r})), Path("database.db"))
except OSError as error:
    print(error.strerror, error.filename)
"""
    lines, _ = run_on_full_disk(code, tmp_path, 90_000)
    assert lines == ["the disk is full (No space left on device) database.db"]

"""The descriptions of MegaDepth's scenes: what they say, and what is wrong with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.scenes import cameras_around, save_scene_info, street, write_megadepth
from steerers.datasets.megadepth import MegaDepth
from steerers.datasets.scene_info import (
    IMC_2021_SCENES,
    LEFT_OUT_BY_LOFTR,
    TEST_SCENES,
    SceneInfo,
    list_scenes,
    read_scene_info,
    scenes_of,
    weigh_pairs,
)
from steerers.datasets.views import Views


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("MegaDepth")
    write_megadepth(made, "0001", street(), cameras_around(3, size=(48, 36), focal=40, spread=0.2))
    return made


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(root, tmp_path / "MegaDepth")
    return tmp_path / "MegaDepth"


# Which pairs ----------------------------------------------------------------------------------------------------------


def info_of(overlaps: list[float], name: str = "0003") -> SceneInfo:
    """A scene of two photographs that says whatever of its pairs."""
    return SceneInfo(
        name,
        ("a.jpg", "b.jpg"),
        ("a.h5", "b.h5"),
        np.tile(np.eye(3), (2, 1, 1)),
        np.tile(np.eye(4), (2, 1, 1)),
        np.tile([0, 1], (len(overlaps), 1)),
        np.array(overlaps),
    )


def test_pairs_weigh_by_scene_and_list() -> None:
    weights = weigh_pairs(info_of([0.005, 0.01, 0.2, 0.35, 0.4, 0.9, 1.0]))
    once, twice = 4**-0.75, 4**-0.75 + 2**-0.75
    np.testing.assert_allclose(weights, [0, 0, once, once, twice, twice, 0])
    weights = weigh_pairs(info_of([0.2, 0.4, 0.9, 1.0]), max_overlap=0.9)
    np.testing.assert_allclose(weights, [2**-0.75, 2**-0.75 + 1, 0, 0])


def test_long_lists_are_sub_sampled() -> None:
    info = info_of(np.linspace(0, 1, 1000).tolist())
    weights = weigh_pairs(info, max_pairs=50)
    assert 50 < (weights > 0).sum() <= 100
    np.testing.assert_allclose(weights.sum(), 2 * 50**0.25)
    np.testing.assert_array_equal(weights, weigh_pairs(info, max_pairs=50))
    other = info_of(np.linspace(0, 1, 1000).tolist(), "0004")
    assert not np.array_equal(weights, weigh_pairs(other, max_pairs=50))


def test_splits_are_those_of_the_literature() -> None:
    assert (len(TEST_SCENES), len(LEFT_OUT_BY_LOFTR), len(IMC_2021_SCENES)) == (2, 13, 8)
    names = ["0001", "0015", "0022", "0121", "5016", "0008", "1589", "0360"]
    assert scenes_of("train", names) == ["0001", "0360"]
    assert scenes_of("test", names) == ["0015", "0022"]


# What is broken -------------------------------------------------------------------------------------------------------


def test_a_scene_is_read_from_npy_and_npz_alike(copy: Path) -> None:
    path = copy / "prep_scene_info" / "0001.npy"
    first = read_scene_info(path)
    values = np.load(path, allow_pickle=True).item()
    np.savez(path.with_suffix(".npz"), **values)
    path.unlink()
    second = read_scene_info(path.with_suffix(".npz"))
    assert (
        first.image_paths == second.image_paths == (None, *(f"Undistorted_SfM/0001/images/{n}.jpg" for n in range(3)))
    )
    np.testing.assert_array_equal(first.poses, second.poses)
    assert first.listed.tolist() == first.posed.tolist() == first.calibrated.tolist() == [False, True, True, True]
    assert first.usable_pairs.all()
    assert list_scenes(copy)["0001"].suffix == ".npz"
    assert len(MegaDepth(copy, views=Views())) == 3


def test_damaged_descriptions_are_named(copy: Path) -> None:
    path = copy / "prep_scene_info" / "0001.npy"
    whole = path.read_bytes()
    for data in (b"", b"no array", whole[:100], whole[: len(whole) // 2], b"PK\x03\x04" + whole[4:]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"0001.npy: a damaged scene description"):
            MegaDepth(copy, views=Views())


def changed(root: Path, **changes: Any) -> Path:
    """The description of scene 0001 with some values exchanged; ``None`` leaves one out."""
    values = np.load(root / "prep_scene_info" / "0001.npy", allow_pickle=True).item() | changes
    return save_scene_info(root, "0001", {key: value for key, value in values.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": None, "poses": None}, "it has no poses, pairs; it has image_paths, depth_paths"),
        ({"overlaps": np.ones(2)}, "there are 3 pairs but 2 overlaps"),
        ({"image_paths": ["a.jpg"]}, "the lists have different lengths: image_paths 1, depth_paths 4"),
        ({"image_paths": [1, 2, 3, 4]}, r"image_paths\[0\] must be a path or None, got int"),
        ({"poses": [None, np.eye(3), None, None]}, r"poses\[1\] must be 4 x 4, got shape \(3, 3\)"),
        ({"pairs": np.array([[1, 2], [2, 3], [3, 4]])}, "1 of its pairs have no data; see `steerers data check"),
        ({"pairs": np.array([[1, 2], [2, 3], [0, 3]])}, "1 of its pairs have no data"),
        ({"poses": [None] + [-np.eye(4)] * 3}, "3 of its pairs have no data"),
        ({"intrinsics": [None] + [np.full((3, 3), np.nan)] * 3}, "3 of its pairs have no data"),
    ],
)
def test_wrong_descriptions_are_named(copy: Path, changes: dict[str, Any], message: str) -> None:
    path = changed(copy, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        MegaDepth(copy, views=Views())
    assert str(path) in str(caught.value)


def test_a_description_is_a_dictionary(copy: Path) -> None:
    save_scene_info(copy, "0001", np.zeros(3))
    with pytest.raises(ValueError, match=r"0001.npy: a scene description holds a dictionary, this file a ndarray"):
        MegaDepth(copy, views=Views())


def test_a_folder_without_descriptions_is_no_megadepth(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no MegaDepth: .*prep_scene_info is missing"):
        MegaDepth(tmp_path, views=Views())
    (tmp_path / "prep_scene_info").mkdir()
    with pytest.raises(ValueError, match="holds no scene"):
        MegaDepth(tmp_path, views=Views())

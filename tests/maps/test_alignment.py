"""Images laid over each other, whose true map is known: rotated, mirrored, bent, large, and unrelated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import steerers
from steerers.geometry import transform_points
from steerers.images.load import to_uint8
from steerers.maps import AlignOptions, NotAlignedError, Transform, align
from steerers.maps.alignment import draw_alignment
from steerers.pipeline import Pipeline
from terrain import make_terrain, view_of

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("scipy")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]

SIZE = (240, 180)
Place = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def sift() -> Pipeline:
    """Quick, and knows quarter turns; it has no map for mirrored descriptions."""
    return steerers.load("upright-sift", num_keypoints=600)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Place]:
    """A folder with a fixed image, and moving ones of it; and where pixels of the fixed image are in ``quarter``."""
    folder = tmp_path_factory.mktemp("scene")
    terrain = make_terrain(420, seed=3)
    fixed, to_fixed = view_of(terrain, (200, 200), 0, SIZE)
    moving, to_moving = view_of(terrain, (215, 190), 90, SIZE)
    small, _ = view_of(terrain, (205, 195), 4, SIZE, zoom=1.1)
    other, _ = view_of(make_terrain(420, seed=8), (200, 200), 0, SIZE)
    pixels = {"fixed": fixed, "quarter": moving, "mirrored": moving.flip(2), "turned": small, "other": other}
    for name, view in pixels.items():
        PIL.Image.fromarray(to_uint8(view.contiguous())).save(folder / f"{name}.png")
    matrix = torch.from_numpy(to_moving @ np.linalg.inv(to_fixed))
    return folder, lambda xy: transform_points(matrix, torch.from_numpy(xy)).numpy()


def corners() -> np.ndarray:
    right, bottom = SIZE[0] - 1.0, SIZE[1] - 1.0
    return np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]])


def off(found: Transform, truth: np.ndarray, xy: np.ndarray) -> float:
    return float(np.linalg.norm(found.to_moving(xy) - truth, axis=1).max())


@pytest.mark.parametrize("kind", ["similarity", "affine", "homography", "auto"])
def test_a_quarter_turn(scene: tuple[Path, Place], sift: Pipeline, kind: Any) -> None:
    folder, place = scene
    found = align(folder / "fixed.png", folder / "quarter.png", matcher=sift, options=AlignOptions(transform=kind))
    assert found.transform.kind == ("similarity" if kind == "auto" else kind)
    assert not found.transform.mirrored
    assert off(found.transform, place(corners()), corners()) < 0.5
    assert found.error < 0.2
    assert "rotated by 90." in found.summary() or "rotated by 89." in found.summary()


@pytest.mark.parametrize("mirror", ["auto", "yes"])
def test_a_mirror_image_that_is_described_again(scene: tuple[Path, Place], sift: Pipeline, mirror: Any) -> None:
    folder, place = scene
    truth = place(corners())
    truth[:, 0] = SIZE[0] - 1 - truth[:, 0]
    found = align(folder / "fixed.png", folder / "mirrored.png", matcher=sift, options=AlignOptions(mirror=mirror))
    assert found.transform.mirrored
    assert off(found.transform, truth, corners()) < 0.5
    assert "mirrored and rotated" in found.summary()


def test_a_mirror_image_of_features_alone(scene: tuple[Path, Place], tmp_path: Path) -> None:
    folder, place = scene
    matcher = steerers.load(num_keypoints=500, max_size=256)
    assert matcher.model.mirror is not None
    truth = place(corners())
    truth[:, 0] = SIZE[0] - 1 - truth[:, 0]
    found = align(folder / "fixed.png", folder / "mirrored.png", tmp_path / "out.tif", matcher=matcher)
    assert found.transform.mirrored
    assert off(found.transform, truth, corners()) < 0.5
    with rasterio.open(tmp_path / "out.tif") as dataset:
        pixels = dataset.read()
    there = pixels[3] > 0
    fixed = np.moveaxis(np.asarray(PIL.Image.open(folder / "fixed.png"), np.float64), 2, 0)
    assert there.mean() > 0.5
    assert np.abs(pixels[:3] - fixed)[:, there].mean() < 8  # what lies there is the same
    assert draw_alignment(folder / "fixed.png", folder / "mirrored.png", found.transform, 100).size == (100, 75)


def test_a_mirror_image_is_refused_if_it_may_not_be_one(scene: tuple[Path, Place], sift: Pipeline) -> None:
    folder, _ = scene
    with pytest.raises(NotAlignedError, match="the images cannot be aligned"):
        align(folder / "fixed.png", folder / "mirrored.png", matcher=sift, options=AlignOptions(mirror="no"))


def test_other_images_are_refused(scene: tuple[Path, Place], sift: Pipeline, tmp_path: Path) -> None:
    folder, _ = scene
    with pytest.raises(NotAlignedError, match="the images cannot be aligned"):
        align(folder / "fixed.png", folder / "other.png", tmp_path / "out.tif", matcher=sift)
    assert not (tmp_path / "out.tif").exists()


def test_a_bent_image(scene: tuple[Path, Place], sift: Pipeline, tmp_path: Path) -> None:
    folder, _ = scene
    fixed = np.asarray(PIL.Image.open(folder / "fixed.png"))
    y, x = np.mgrid[: SIZE[1], : SIZE[0]].astype(np.float64)
    to_x, to_y = x + 3 * np.sin(y / 40), y + 3 * np.cos(x / 50)  # of the moving image, where they are in the fixed one
    import cv2

    moving = cv2.remap(fixed, to_x.astype(np.float32), to_y.astype(np.float32), cv2.INTER_LINEAR)
    PIL.Image.fromarray(255 - moving[..., ::-1]).save(tmp_path / "stained.png")  # other colours, too
    PIL.Image.fromarray(moving).save(tmp_path / "bent.png")
    matcher = replace(sift, num_keypoints=1000)
    inside = (x > 20) & (x < 220) & (y > 20) & (y < 160)
    aims, places = np.stack([to_x, to_y], axis=-1)[inside], np.stack([x, y], axis=-1)[inside]
    errors = {}
    for local in (False, True):
        options = AlignOptions(transform="affine", local=local, mirror="no")
        found = align(folder / "fixed.png", tmp_path / "bent.png", matcher=matcher, options=options)
        errors[local] = float(np.median(np.linalg.norm(found.transform.to_moving(aims) - places, axis=1)))
    assert errors[True] < 0.15
    assert errors[False] > 1.0
    assert found.bending is not None
    assert found.bending.without > 5 * found.bending.error
    assert "bent (" in found.summary()


def test_large_images_are_refined_by_tiles(tmp_path: Path) -> None:
    """Matched at a sixth of their size, then in full."""
    terrain = make_terrain(900, seed=5)
    fixed, to_fixed = view_of(terrain, (450, 440), 0, (768, 600))
    moving, to_moving = view_of(terrain, (440, 450), 93, (600, 768), zoom=1.06)
    for name, view in (("fixed", fixed), ("moving", moving)):
        PIL.Image.fromarray(to_uint8(view)).save(tmp_path / f"{name}.png")
    truth = torch.from_numpy(to_moving @ np.linalg.inv(to_fixed))
    box = np.array([[100.0, 100], [660, 100], [660, 500], [100, 500]])
    aims = transform_points(truth, torch.from_numpy(box)).numpy()
    matcher = steerers.load("upright-sift", num_keypoints=600, max_size=128)
    errors = {}
    for tiles in (0, 4):
        options = AlignOptions(transform="similarity", tiles=tiles, mirror="no")
        found = align(tmp_path / "fixed.png", tmp_path / "moving.png", matcher=matcher, options=options)
        errors[tiles] = off(found.transform, aims, box)
    assert found.num_tiles == 4
    assert errors[4] < 0.1
    assert errors[0] > 2 * errors[4]


def test_one_band_of_sixteen_bits_without_data_in_part(
    scene: tuple[Path, Place], sift: Pipeline, tmp_path: Path
) -> None:
    folder, place = scene
    grey = np.asarray(PIL.Image.open(folder / "quarter.png").convert("L"), np.uint16) * 13 + 2000
    grey[:40, :60] = 0
    told = {"driver": "GTiff", "width": SIZE[0], "height": SIZE[1], "count": 1, "dtype": "uint16", "nodata": 0}
    with rasterio.open(tmp_path / "grey.tif", "w", **told) as dataset:
        dataset.write(grey, 1)
    found = align(folder / "fixed.png", tmp_path / "grey.tif", tmp_path / "out.tif", matcher=sift)
    assert off(found.transform, place(corners()), corners()) < 0.5
    assert not ((found.moving[:, 0] < 59) & (found.moving[:, 1] < 39)).any()
    with rasterio.open(tmp_path / "out.tif") as dataset:
        assert (dataset.count, dataset.dtypes[0], dataset.nodata) == (1, "uint16", 0)
        assert dataset.read(1).max() > 2000


def test_options_are_checked() -> None:
    for wrong, message in (
        ({"transform": "rigid"}, "transform must be one of auto, similarity, affine, homography, got 'rigid'"),
        ({"mirror": "maybe"}, "mirror must be one of auto, yes, no, got 'maybe'"),
        ({"threshold": 0.0}, "threshold must be a positive number of pixels, got 0"),
        ({"threshold": math.nan}, "threshold must be a positive number of pixels"),
        ({"tiles": -1}, "tiles must not be negative, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            AlignOptions(**wrong)  # type: ignore[arg-type]

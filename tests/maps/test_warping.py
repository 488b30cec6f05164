"""Moving images in the frame of fixed ones: every type of numbers, bands, nodata, placement, and scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from steerers.maps.rasters import open_raster
from steerers.maps.transforms import Array, Displacements, Transform
from steerers.maps.warping import write_warped

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("scipy")
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

FIXED, MOVING = (70, 50), (60, 40)
SHIFT = np.array([[1.0, 0, -8], [0, 1, -6], [0, 0, 1]])


def save(path: Path, pixels: NDArray[Any], **told: Any) -> Path:
    count, height, width = pixels.shape
    profile = {"driver": "GTiff", "width": width, "height": height, "count": count, "dtype": pixels.dtype, **told}
    with rasterio.open(path, "w", **profile) as dataset:
        dataset.write(pixels)
    return path


def ramp(dtype: str, bands: int = 1, size: tuple[int, int] = MOVING) -> NDArray[Any]:
    y, x = np.mgrid[: size[1], : size[0]]
    return np.stack([(2 + x + 1.5 * y + 10 * band) for band in range(bands)]).astype(dtype)


def warp(
    folder: Path,
    moving: NDArray[Any],
    matrix: Array = SHIFT,
    *,
    local: Displacements | None = None,
    how: Any = "linear",
    nodata: float | None = None,
    fixed: Any = None,
    own: Any = None,
) -> tuple[NDArray[Any], Any]:
    """What is written, and its profile."""
    save(folder / "moving.tif", moving, **(own or {}))
    save(folder / "fixed.tif", np.zeros((1, FIXED[1], FIXED[0]), np.uint8), **(fixed or {}))
    with open_raster(folder / "fixed.tif") as first, open_raster(folder / "moving.tif") as second:
        transform = Transform("affine", matrix, first.size, second.size, local)
        write_warped(folder / "out.tif", second, transform, first, resampling=how, nodata=nodata)
    with rasterio.open(folder / "out.tif") as dataset:
        return dataset.read(), {**dataset.profile, "kinds": [kind.name for kind in dataset.colorinterp]}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "uint32", "float32", "float64"])
@pytest.mark.parametrize("how", ["nearest", "linear", "cubic"])
def test_every_type_of_numbers_moves_whole_pixels_exactly(tmp_path: Path, dtype: str, how: str) -> None:
    moving = ramp(dtype)
    found, profile = warp(tmp_path, moving, how=how)
    assert profile["dtype"] == dtype
    np.testing.assert_allclose(found[0, 6:46, 8:68], moving[0], rtol=1e-6)
    if dtype.startswith("float"):
        assert np.isnan(profile["nodata"])
        there = ~np.isnan(found[0])
    else:
        assert profile["kinds"][-1] == "alpha"
        there = found[1] > 0
        assert found[1].max() == np.iinfo(dtype).max
    assert there[6:46, 8:68].all()
    assert there.sum() == MOVING[0] * MOVING[1]


@pytest.mark.parametrize("bands", [1, 3, 5])
def test_bands_stay(tmp_path: Path, bands: int) -> None:
    found, profile = warp(tmp_path, ramp("uint16", bands))
    assert profile["count"] == bands + 1
    assert (found[:-1, 6:46, 8:68] == ramp("uint16", bands)).all()


def test_an_alpha_band_of_its_own(tmp_path: Path) -> None:
    moving = ramp("uint8", 4)
    moving[3] = 255
    moving[3, :, :30] = 0
    found, profile = warp(tmp_path, moving, own={"photometric": "rgb", "alpha": "yes"})
    assert profile["count"] == 4
    assert (found[3] > 0).sum() == 30 * 40


def test_nodata_does_not_bleed(tmp_path: Path) -> None:
    """Half a pixel beside what has no data, interpolation would mix the two."""
    moving = ramp("float32") + 100
    moving[0, 10:20, 10:20] = -9999
    half = SHIFT + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    for how in ("nearest", "linear", "cubic"):
        found, profile = warp(tmp_path, moving, half, how=how, own={"nodata": -9999})
        assert profile["nodata"] == -9999
        values = found[0][found[0] != -9999]
        assert len(values) > 1500
        assert values.min() > 100
    found, profile = warp(tmp_path, moving, half, nodata=-1, own={"nodata": -9999})
    assert profile["nodata"] == -1
    assert found[0][found[0] != -1].min() > 100


def test_nodata_that_the_type_does_not_have(tmp_path: Path) -> None:
    for dtype, value in (("uint8", -1), ("uint8", 300), ("int16", 0.5)):
        with pytest.raises(ValueError, match=f"has numbers of type {dtype}, of which {value:g} is none"):
            warp(tmp_path, ramp(dtype), nodata=value)


def test_against_pixels_sampled_one_by_one(tmp_path: Path) -> None:
    """Linear interpolation of a ramp is the ramp, wherever the transform leads, the local part included."""
    matrix = np.array([[0.6, -0.5, 25], [0.55, 0.7, -8], [0, 0, 1]])
    local = Displacements.sampled(lambda xy: np.stack([np.sin(xy[:, 1] / 9), np.cos(xy[:, 0] / 8)], axis=1), FIXED)
    found, _ = warp(tmp_path, ramp("float64"), matrix, local=local)
    transform = Transform("affine", matrix, FIXED, MOVING, local)
    y, x = np.mgrid[: FIXED[1], : FIXED[0]]
    places = transform.to_moving(np.stack([x, y], axis=-1).reshape(-1, 2))
    expected = (2 + places[:, 0] + 1.5 * places[:, 1]).reshape(FIXED[1], FIXED[0])
    inside = ((places >= 0) & (places <= np.array(MOVING) - 1)).all(axis=1).reshape(expected.shape)
    assert inside.sum() > 500
    assert np.abs(found[0] - expected)[inside].max() < 0.05  # OpenCV interpolates in steps of 1/32 pixel


def test_finer_images_are_reduced_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    moving = rng.integers(0, 2, (1, 400, 400)).astype(np.uint8) * 255  # black and white: its mean is grey
    matrix = np.array([[8.0, 0, 3.5], [0, 8, 3.5], [0, 0, 1]])
    found, _ = warp(tmp_path, moving, matrix)
    assert found[0][found[1] > 0].std() < 40  # 127 if pixels were picked
    labels, _ = warp(tmp_path, moving, matrix, how="nearest")
    assert set(np.unique(labels[0])) == {0, 255}


def test_the_place_is_that_of_the_fixed_image(tmp_path: Path) -> None:
    rotated = rasterio.Affine(0.8, 0.6, 500_000, 0.6, -0.8, 5_200_000)
    _, profile = warp(tmp_path, ramp("uint8"), fixed={"crs": "EPSG:32633", "transform": rotated})
    assert profile["crs"].to_epsg() == 32633
    assert np.allclose([*profile["transform"]], [*rotated])


def test_no_overlap_is_all_outside(tmp_path: Path) -> None:
    found, _ = warp(tmp_path, ramp("uint8"), np.array([[1.0, 0, 1000], [0, 1, 0], [0, 0, 1]]))
    assert not found.any()

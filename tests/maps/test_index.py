"""The index of a map: what it keeps, that it goes on where it was interrupted, and what it refuses."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import contents, run_on_full_disk
from maps.places import SIZE, picture, write_map
from steerers.collection.manifest import Extraction
from steerers.maps import index as indexing
from steerers.maps.index import MapIndex, index_map, index_path, level_sizes
from steerers.maps.rasters import open_map
from steerers.steering.irreps import Irreps

pytest.importorskip("rasterio")

SIFT = Extraction("upright-sift", num_keypoints=256)
"""Takes no time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("map")
    with open_map(write_map(folder / "map.tif")) as raster:
        index_map(raster, extraction=SIFT).close()
    return folder


def test_levels_halve_until_one_fits_into_a_cell() -> None:
    assert level_sizes((4103, 3894)) == [(4103, 3894), (2052, 1947), (1026, 974), (513, 487), (257, 244)]
    assert level_sizes((512, 100)) == [(512, 100)]


def test_what_is_kept(folder: Path) -> None:
    assert contents(folder) == ["map.tif", "map.tif.steerers.h5"]  # and nothing of the parts
    with MapIndex.open(index_path(folder / "map.tif")) as index:
        assert index.size == SIZE
        assert [tile.level for tile in index.tiles] == [0, 1]
        for tile in index.tiles:
            features = index.features(tile)
            left, top, right, bottom = tile.window
            assert (left, top, right, bottom) == (0, 0, *SIZE)
            xy = features.keypoints.numpy()
            assert len(features) > 100
            assert (xy >= (left - 0.5, top - 0.5)).all()
            assert (xy <= (right, bottom)).all()
            assert (features.scores.diff() <= 0).all()
        assert len(index.features(index.tiles[0])) <= 256


def test_tiles_are_where_their_pictures_are(folder: Path) -> None:
    """Descriptions of a picture of the map find themselves in the index, at their places."""
    with MapIndex.open(index_path(folder / "map.tif")) as index:
        pipeline = replace(index.extraction.load(), max_size=None)
        own = pipeline.extract(picture())
        for tile in index.tiles:
            found = pipeline.match(own, index.features(tile))
            off = np.linalg.norm(found.keypoints0 - found.keypoints1, axis=1)
            assert len(found) > 20 / (1 + tile.level)
            assert np.median(off) < 1 + tile.level
        assert pipeline.model.steerer is not None
        alike = index.similarities(own.descriptions, Irreps.of(pipeline.model.steerer))
        assert alike.shape == (2,)
        assert float(alike[0]) > 0.6


def test_large_maps_have_overlapping_tiles_and_no_keypoint_twice(tmp_path: Path) -> None:
    pixels = np.moveaxis(np.tile(picture(), (2, 2, 1)), 2, 0)  # 1080 x 920
    with open_map(write_map(tmp_path / "map.tif", pixels)) as raster:
        index = index_map(raster, extraction=SIFT)
    with index:
        first = [tile.window for tile in index.tiles if tile.level == 0]
        assert set(first) == {(0, 0, 1024, 920), (512, 0, 1080, 920)}
        xy = torch.cat([index.features(tile).keypoints for tile in index.tiles if tile.level == 0])
        assert len(xy.unique(dim=0)) < len(xy)  # tiles share what lies in both
        one = index.features(index.tiles[0]).keypoints
        assert len(one.unique(dim=0)) == len(one)


def test_an_interrupted_index_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Finished parts are not described again, and the result is the same, byte for byte."""
    shutil.copy2(folder / "map.tif", tmp_path / "map.tif")
    monkeypatch.setattr(indexing, "_AT_ONCE", 1)
    described: list[int] = []
    describe = indexing._describe

    def interrupted(table, raster, pipeline, level, column, row):  # type: ignore[no-untyped-def]
        described.append(level)
        if len(described) == 2:
            raise KeyboardInterrupt
        describe(table, raster, pipeline, level, column, row)

    monkeypatch.setattr(indexing, "_describe", interrupted)
    with open_map(tmp_path / "map.tif") as raster:
        with pytest.raises(KeyboardInterrupt):
            index_map(raster, extraction=SIFT)
        assert contents(tmp_path) == ["map.tif", "map.tif.steerers.h5.parts"]
        index_map(raster, extraction=SIFT).close()
        assert described == [0, 1, 1]
        index_map(raster, extraction=SIFT).close()  # it is there
    assert described == [0, 1, 1]
    assert contents(tmp_path) == ["map.tif", "map.tif.steerers.h5"]
    made, other = ((each / "map.tif.steerers.h5").read_bytes() for each in (tmp_path, folder))
    assert made == other


def test_an_index_of_something_else_is_refused(tmp_path: Path, folder: Path) -> None:
    for name in ("map.tif", "map.tif.steerers.h5"):
        shutil.copy2(folder / name, tmp_path / name)
    path, index = tmp_path / "map.tif", tmp_path / "map.tif.steerers.h5"
    with open_map(path) as raster:
        with pytest.raises(ValueError, match="was made with model upright-sift, not sift: remove"):
            index_map(raster, extraction=Extraction("sift", num_keypoints=256))
        with pytest.raises(ValueError, match="was made with num-keypoints 256, not 99"):
            index_map(raster, extraction=replace(SIFT, num_keypoints=99))
    os.utime(path, (1, 1))  # as after a copy: the same content is the same map
    with open_map(path) as raster:
        index_map(raster, extraction=SIFT).close()
    with open_map(path, bands=[3, 2, 1]) as raster, pytest.raises(ValueError, match="was made of the bands"):
        index_map(raster, extraction=SIFT)
    write_map(path, np.moveaxis(picture()[::-1], 2, 0))
    with open_map(path) as raster, pytest.raises(ValueError, match=r"map\.tif has changed since .* was made"):
        index_map(raster, extraction=SIFT)
    index.write_bytes(index.read_bytes()[:2000])
    with pytest.raises(ValueError, match="not a file of map index of steerers, or damaged"):
        MapIndex.open(index)


def test_maps_that_show_nothing_are_refused(tmp_path: Path) -> None:
    grey = np.full((1, 60, 80), 99, np.uint8)
    for name, told in (("plain.tif", {}), ("empty.tif", {"nodata": 99})):
        opened = open_map(write_map(tmp_path / name, grey, **told))
        with opened as raster, pytest.raises(ValueError, match="shows nothing that could be described"):
            index_map(raster, extraction=SIFT)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """Of an index, and of a GeoTIFF: when it is begun, while tiles are written, and only when it is closed."""
    write_map(tmp_path / "map.tif")
    code = """
import resource
import numpy as np
from steerers.collection.manifest import Extraction
from steerers.maps import index_map, open_map
from steerers.maps.geotiff import write_geotiff
noise = np.random.default_rng(0).integers(0, 255, (3, 512, 512)).astype(np.uint8)
for room in (1000, 100_000, 3_000_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, 3_000_000))
    try:
        write_geotiff("out.tif", (1024, 1024), lambda tile: noise, bands=3)
    except OSError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 3_000_000))
try:
    index_map(open_map("map.tif"), extraction=Extraction("upright-sift", num_keypoints=256))
except OSError as error:
    print(error)
"""
    out, _ = run_on_full_disk(code, tmp_path, 3_000_000)
    full = "[Errno 27] the disk is full (File too large)"
    assert out == [f"{full}: 'out.tif'"] * 3 + [f"{full}: 'map.tif.steerers.h5.parts/000000.h5'"]
    assert contents(tmp_path) == ["map.tif", "map.tif.steerers.h5.parts"]
    assert contents(tmp_path / "map.tif.steerers.h5.parts") == []

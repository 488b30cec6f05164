"""From configurations to data (photographs, MegaDepth and reconstructions), and which pairs batches are of."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from datasets.scenes import cameras_around, street, write_detections, write_megadepth
from datasets.workspaces import write_scene
from helpers import CONFIG_FOLDER
from steerers.datasets.colmap import Colmap, export
from steerers.datasets.folder import Mosaics, Photographs
from steerers.datasets.pairs import PairBatch, PairSource, draw_rotations
from steerers.training.build import build_objective
from steerers.training.config import DataConfig, TrainConfig, ValidationConfig, load_config, parse_config
from steerers.training.feed import (
    Feed,
    build_sources,
    check_dense,
    check_kinds,
    data_paths,
    find_scenes,
    needs_detections,
    read_pair,
)
from steerers.training.objectives.dedode_keypoints import DedodeOptions
from training.tiny import Numbers, config_of

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
CONFIGS = sorted(CONFIG_FOLDER.glob("*.toml"))


def check_batch(source: PairSource, rotations: Any = "SO2") -> PairBatch:
    """A batch of the first pairs, with points that come back to where they were."""
    seeds = [1, 2]
    read = [source.read(n % len(source)) for n in seeds]
    batch = source.make(read, *draw_rotations(rotations, seeds), seeds, CPU)
    grid = torch.rand(2, 400, 2, generator=torch.Generator().manual_seed(0)) * (batch.images0.shape[-1] - 1)
    moved, seen = batch.warp.forward(grid)
    back, again = batch.warp.backward(moved.nan_to_num())
    both = seen & again
    assert both.any()
    assert float((back - grid)[both].norm(dim=-1).median()) < 1
    return batch


def test_photographs_are_split_and_drawn(photographs: Path, tmp_path: Path) -> None:
    config = parse_config({"data": {"views": {"size": 64}, "held_out": 0.3}}).data
    sources = build_sources(config, [photographs], CPU, tmp_path / "cache")
    ((training, fraction),) = sources.training
    assert fraction == 1
    assert len(training) + len(sources.validation) == 6
    assert check_batch(training).images0.shape == (2, 3, 64, 64)
    assert list((tmp_path / "cache").glob("photos-*.npy"))


def test_the_configuration_says_where_data_lies_unless_the_call_does(photographs: Path) -> None:
    config = DataConfig(path=("a", "b.tar"))
    assert data_paths(config) == [Path("a"), Path("b.tar")]
    assert data_paths(config, [photographs]) == [photographs]
    with pytest.raises(ValueError, match=r"set data.path, or give --data \(source 'folder'\)"):
        data_paths(DataConfig())
    with pytest.raises(ValueError, match="MegaDepth has one root, got a, b"):
        data_paths(DataConfig(source="megadepth"), ["a", "b"])


def test_megadepth_trains_on_its_scenes_and_validates_on_the_test_scenes(tmp_path: Path) -> None:
    for name in ("0001", "0015"):
        write_megadepth(tmp_path, name, street(), cameras_around(3, size=(80, 60), focal=70, spread=0.2))
    config = parse_config({"data": {"source": "megadepth", "views": {"size": 128, "photometric": 0.0}}}).data
    sources = build_sources(config, [tmp_path], CPU)
    ((training, fraction),) = sources.training
    assert fraction == 1
    assert training.weights is not None
    assert len(training.weights) == len(training) > 0
    assert len(sources.validation) > 0
    assert check_batch(training, "C4").images0.shape == (2, 3, 128, 128)


def small(config: TrainConfig) -> TrainConfig:
    """The same with tiny views, few keypoints and a random network."""
    return dataclasses.replace(
        config,
        precision="float32",
        data=dataclasses.replace(config.data, views=dataclasses.replace(config.data.views, size=64)),
        model=dataclasses.replace(config.model, weights=""),
        keypoints=dataclasses.replace(config.keypoints, num_keypoints=16, dedode=DedodeOptions(targets=16)),
    )


@pytest.mark.parametrize("name", ["detector-c4", "detector-so2"])
def test_detectors_learn_from_the_points_of_megadepth(name: str, tmp_path: Path) -> None:
    cameras = cameras_around(3, size=(80, 60), focal=70, spread=0.2)
    for scene in ("0001", "0015"):
        write_megadepth(tmp_path, scene, street(), cameras)
    config = small(load_config(next(path for path in CONFIGS if path.stem == name)))
    assert needs_detections(config)
    with pytest.raises(ValueError, match=r"scenes have no points .*detections_0001.npy; .*prep_keypoints.py"):
        build_sources(config.data, [tmp_path], CPU, detections=needs_detections(config))
    for scene in ("0001", "0015"):
        write_detections(tmp_path, scene, street(), cameras)
    sources = build_sources(config.data, [tmp_path], CPU, detections=needs_detections(config))
    batch = check_batch(sources.training[0][0], config.data.rotations)
    assert batch.anchors is None
    assert batch.detections is not None
    assert batch.detections[0].isfinite().any()
    assert batch.known is not None
    assert batch.known[0].any()
    objective = build_objective(config).train()
    terms = objective(batch, 0.0)
    assert set(terms) == {"keypoints", "matchability"}
    loss = torch.stack([term.weight * term.total / term.count.clamp(min=1) for term in terms.values()]).sum()
    assert loss.item() > 0
    loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in objective.parameters())
    assert math.isfinite(objective.measure(check_batch(sources.validation, config.data.rotations))["nll"][0])


def test_points_are_for_keypoints_that_are_trained_towards_them() -> None:
    named = {path.stem: load_config(path) for path in CONFIGS}
    assert {name for name, config in named.items() if needs_detections(config)} == {"detector-c4", "detector-so2"}


def test_reconstructions_alone_and_beside_photographs(tmp_path: Path, photographs: Path) -> None:
    write_scene(tmp_path / "street")
    views = {"size": 96, "photometric": 0.0}
    alone = parse_config({"data": {"source": "colmap", "views": views, "held_out": 0.3}}).data
    sources = build_sources(alone, [tmp_path / "street"], CPU)
    ((training, _),) = sources.training
    assert len(training) > 0
    assert len(sources.validation) > 0
    assert check_batch(training).anchors is not None
    both = {"views": views, "colmap": [str(tmp_path / "street")], "colmap_fraction": 0.25}
    mixed = build_sources(parse_config({"data": both}).data, [photographs], CPU)
    assert [fraction for _, fraction in mixed.training] == [0.75, 0.25]
    assert isinstance(mixed.validation, Photographs)
    three = build_sources(
        parse_config({"data": {**both, "mosaics": {"fraction": 0.5, "cell": 64}}}).data, [photographs], CPU
    )
    assert [fraction for _, fraction in three.training] == [0.25, 0.5, 0.25]
    mosaics = three.training[1][0]
    assert isinstance(mosaics, Mosaics)
    assert mosaics.chosen == three.training[0][0].chosen  # nothing that is held out
    check_batch(mosaics)
    with pytest.raises(
        ValueError, match=r"data.held_out: \w+ 0.0 holds out none of \d+ pairs; choose another fraction"
    ):
        build_sources(dataclasses.replace(alone, held_out=0.0), [tmp_path / "street"], CPU)


def test_keypoints_are_not_trained_where_only_tracks_are_known(tmp_path: Path, photographs: Path) -> None:
    street = write_scene(tmp_path / "street")
    alone = parse_config({"data": {"source": "colmap", "views": {"size": 96}, "held_out": 0.3}}).data
    mixed = {"views": {"size": 96}, "colmap": [str(street)]}
    beside = parse_config({"data": {**mixed, "colmap_fraction": 0.25}}).data
    tracks = build_sources(alone, [street], CPU).training
    for setting in ("A", "B", "C"):
        check_dense(setting, tracks)
    with pytest.raises(ValueError, match=r"'joint' .*street has a depth map; .*data.colmap with data.colmap_fraction"):
        check_dense("joint", tracks)
    check_dense("joint", tracks, photographs=True)
    check_dense("joint", build_sources(beside, [photographs], CPU).training)
    for training in (tracks, build_sources(beside, [photographs], CPU).training):
        with pytest.raises(ValueError, match=r"'detector' .*depth map; make them .*or train on photographs alone"):
            check_dense("detector", training)
    street = write_scene(tmp_path / "dense" / "street", depths=True)
    dense = build_sources(alone, [street], CPU).training
    check_dense("detector", dense)
    check_dense("joint", dense)
    ((source, _),) = dense
    (street / "stereo" / "depth_maps" / f"{source.names(0)[1]}.geometric.bin").write_bytes(b"120&90&1&")
    expected = r"pair 0 of .*street cannot be read: .*a damaged depth map.*; `steerers data check .*street` lists"
    with pytest.raises(ValueError, match=expected):
        read_pair(source, 0)


# Validation by kind ---------------------------------------------------------------------------------------------------


def test_kinds_are_of_the_photographs_that_are_held_out(photographs: Path) -> None:
    config = parse_config({"data": {"views": {"size": 64, "tilt": 3.0}, "held_out": 0.3}}).data
    validation = ValidationConfig(kinds=("plain", "scale", "sensors"), pairs=4)
    sources = build_sources(config, [photographs], CPU, validation=validation)
    assert list(sources.kinds) == ["plain", "scale", "sensors"]
    assert isinstance(sources.validation, Photographs)
    for source in sources.kinds.values():
        assert isinstance(source, Photographs)
        assert source.store is sources.validation.store
        assert source.chosen == sources.validation.chosen
        assert check_batch(source).images0.shape == (2, 3, 64, 64)
    assert sources.validation.views == config.views
    assert build_sources(config, [photographs], CPU).kinds == {}


def test_scenes_are_held_out_by_the_names_of_their_folders(tmp_path: Path, photographs: Path) -> None:
    street, other = write_scene(tmp_path / "street"), write_scene(tmp_path / "other", depths=True)
    export(street, tmp_path / "carried")
    config = parse_config({"data": {"views": {"size": 96, "tilt": 4.0, "photometric": 1.0}}}).data
    paths = (str(street), str(other), str(tmp_path / "carried" / "tracks.npz"))
    validation = ValidationConfig(kinds=("tilt",), scenes=paths)
    sources = build_sources(config, [photographs], CPU, tmp_path / "cache", validation=validation)
    assert list(sources.kinds) == ["tilt", "street", "other", "carried"]
    sources.open()
    for name, dense in (("street", False), ("other", True), ("carried", False)):
        source = sources.kinds[name]
        assert isinstance(source, Colmap)
        assert source.dense is dense
        assert (source.views.size, source.views.tilt, source.views.photometric) == (96, 1.0, 0.0)
        assert check_batch(source).anchors is not None
    check_kinds("joint", sources.kinds)
    check_kinds("detector", {"other": sources.kinds["other"]})
    message = r"validation.scenes: not every photograph of .*street has a depth map.*`steerers data depth .*street`"
    with pytest.raises(ValueError, match=message):
        check_kinds("detector", sources.kinds)


def test_scenes_that_are_missing_or_trained_on_are_refused(tmp_path: Path, photographs: Path) -> None:
    street = write_scene(tmp_path / "scenes" / "street")
    (tmp_path / "link").symlink_to(street)

    def build(scenes: Sequence[Path], data: Path = photographs, **changes: Any) -> None:
        config = dataclasses.replace(parse_config({"data": {"views": {"size": 96}}}).data, **changes)
        validation = ValidationConfig(kinds=("tilt",), scenes=tuple(map(str, scenes)))
        build_sources(config, [data], CPU, validation=validation)

    with pytest.raises(ValueError, match=r"validation.scenes: there is no .*absent$"):
        build([tmp_path / "absent"])
    with pytest.raises(ValueError, match=r"scenes/street/images: no reconstruction"):
        build([street / "images"])
    for held, trained in (
        (street, street),
        (tmp_path / "link", street),
        (street, street.parent),
        (street.parent, street),
        (street / "tracks.npz", street),
    ):
        message = rf"validation.scenes: {held} is trained on as well \(data.colmap {trained}\): leave it out of one"
        with pytest.raises(ValueError, match=message):
            build([held], colmap=(str(trained),), colmap_fraction=0.1)
    with pytest.raises(ValueError, match=r"street is trained on as well \(data.path .*street/images\)"):
        build([street], street / "images")
    with pytest.raises(ValueError, match=r"street is trained on as well \(data.path .*street\)"):
        build([street], street, source="colmap")
    with pytest.raises(ValueError, match=r"there are two kinds 'street'; rename the folder of .*again/street"):
        build([street, tmp_path / "again" / "street"])
    with pytest.raises(ValueError, match="there are two kinds 'tilt'"):
        build([tmp_path / "tilt"])


def test_a_tar_beside_scenes_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "photographs.tar").touch()
    validation = ValidationConfig(scenes=(str(tmp_path),))
    assert find_scenes(DataConfig(), [tmp_path / "photographs.tar"], validation) == {tmp_path.name: tmp_path}


# Batches --------------------------------------------------------------------------------------------------------------


def feed_of(sources: Sequence[tuple[PairSource, float]], **changes: Any) -> Feed:
    return Feed(config_of(**changes), sources, CPU)


def test_every_pair_comes_once_before_any_comes_again() -> None:
    source = Numbers(7)
    with feed_of([(source, 1.0)], batch=3, steps=21) as feed:
        for step in range(21):
            feed.batch(step)
    drawn = [index for batch in source.drawn for index in batch]
    epochs = [drawn[start : start + 7] for start in range(0, 63, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 5  # each in an order of its own


def test_nothing_is_read_beyond_the_last_step() -> None:
    source = Numbers(7)
    with feed_of([(source, 1.0)], batch=2, steps=5) as feed:
        feed.batch(4)
        assert not feed.read
        assert not feed.made
    assert len(source.drawn) == 1


class Broken(Numbers):
    root = "photographs"

    def read(self, index: int) -> int:
        raise OSError("disk on fire")


def test_a_pair_that_cannot_be_read_is_named_with_its_source() -> None:
    expected = r"pair \d of photographs cannot be read: disk on fire; `steerers data check photographs` lists"
    with feed_of([(Broken(3), 1.0)]) as feed, pytest.raises(ValueError, match=expected):
        feed.batch(0)


def test_weighted_pairs_are_drawn_by_their_weights() -> None:
    source = Numbers(4, torch.tensor([1.0, 0.0, 3.0, 0.0]))
    feed = feed_of([(source, 1.0)], batch=8)
    counts = Counter(index for step in range(250) for index in feed._indices(step))
    assert set(counts) == {0, 2}
    assert counts[2] / 2000 == pytest.approx(0.75, abs=0.04)


def test_sources_are_drawn_by_their_fractions() -> None:
    feed = feed_of([(Numbers(3), 0.2), (Numbers(3), 0.0), (Numbers(3), 0.6)])
    counts = Counter(feed._choose(step) for step in range(2000))
    assert set(counts) == {0, 2}
    assert counts[2] / 2000 == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("weights", [None, torch.arange(1.0, 12.0)])
def test_processes_draw_what_one_would(weights: Tensor | None) -> None:
    config, sources = config_of(batch=6), [(Numbers(11, weights), 1.0)]
    whole, *parts = (
        [(feed._indices(step), feed._seeds(step)) for step in range(9)]
        for feed in (Feed(config, sources, CPU), *(Feed(config, sources, CPU, rank=rank, world=3) for rank in range(3)))
    )
    assert len({seed for _, seeds in whole for seed in seeds}) == 54
    for step, expected in enumerate(whole):
        for k in (0, 1):
            assert [value for part in parts for value in part[step][k]] == expected[k]
    with pytest.raises(ValueError, match="batch 4 is not a multiple of the 3 processes"):
        Feed(config_of(batch=4), sources, CPU, world=3)

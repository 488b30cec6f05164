"""Files for hloc and OpenSfM, opened by their layouts as those programs do."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from collection.scenes import make_collection, make_scene
from steerers.collection import exports
from steerers.collection.exports import hloc_pair, to_opensfm, write_hloc, write_opensfm
from steerers.collection.verification import Verified, verify

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def verified(tmp_path: Path) -> Verified:
    scene = make_scene(5, points=200)
    collection = make_collection(tmp_path / "out", [scene], prefix="scene_", suffix=".jpg", false_pairs=[(0, 3)])
    return verify(collection)


def hloc_names(path: Path) -> set[str]:
    """The groups with datasets, as hloc lists them."""
    names = []
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda _, item: names.append(item.parent.name.strip("/")) if isinstance(item, h5py.Dataset) else None
        )
    return set(names)


def hloc_matches(path: Path, first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    """The matches of a pair, as hloc reads them."""
    with h5py.File(path, "r") as file:
        group = file[hloc_pair(first, second)]
        matches, scores = group["matches0"].__array__(), group["matching_scores0"].__array__()
    index = np.flatnonzero(matches != -1)
    return np.stack([index, matches[index]], axis=1), scores[index]


def test_hloc(tmp_path: Path, verified: Verified) -> None:
    files = write_hloc(verified, tmp_path / "hloc")
    assert [path.name for path in files] == ["features.h5", "matches.h5", "pairs.txt"]
    assert hloc_names(files[0]) == set(verified.names)
    with h5py.File(files[0], "r") as file:
        for name in verified.names:
            group, features = file[name], verified.collection.features(name)
            keypoints = group["keypoints"].__array__()
            assert keypoints.dtype == np.float32
            assert np.array_equal(keypoints, features.keypoints.numpy())
            assert group["descriptors"].shape == (128, len(keypoints))
            assert group["scores"].shape == (len(keypoints),)
            assert group["image_size"].__array__().tolist() == [640, 480]
    pairs = [tuple(line.split()) for line in files[2].read_text(encoding="utf-8").splitlines()]
    assert pairs == [verdict.pair for verdict in verified.consistent]
    assert len(pairs) == 9
    for pair in pairs:
        indices, scores = hloc_matches(files[1], *pair)
        inliers = verified.two_view(pair).inliers
        expected = verified.collection.matches(*pair).indices[inliers]
        assert sorted(map(tuple, indices.tolist())) == sorted(map(tuple, expected.tolist()))
        assert len(scores) == len(expected)
    assert len(write_hloc(verified, tmp_path / "all", keep_contradicted=True)[2].read_text().splitlines()) == 10


def test_hloc_with_many_keypoints(tmp_path: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    """int16 ends at 32767; beyond, indices are wider."""
    for most, expected in ((32_767, np.int16), (10, np.int32)):
        monkeypatch.setattr(exports, "HLOC_MOST_KEYPOINTS", most)
        path = write_hloc(verified, tmp_path / "hloc")[1]
        with h5py.File(path, "r") as file:
            assert file[hloc_pair(*verified.consistent[0].pair)]["matches0"].dtype == expected


def test_hloc_refuses_what_it_would_misread(tmp_path: Path) -> None:
    spaced = verify(make_collection(tmp_path / "out", [make_scene(2, points=200)]))
    with pytest.raises(ValueError, match=r"divides the lines of pairs.txt at spaces: rename 'scene a/00 é.jpg'"):
        write_hloc(spaced, tmp_path / "hloc")
    with pytest.raises(ValueError, match=r"one name, a-b/c, for the pairs"):
        exports._check_hloc_names([], [("a/b", "c"), ("a-b", "c")])
    assert not (tmp_path / "hloc").exists()


def test_opensfm(tmp_path: Path, verified: Verified) -> None:
    features, matches = write_opensfm(verified, tmp_path / "dataset")
    for name in verified.names:
        with np.load(features / f"{name}.features.npz") as stored:
            assert int(stored["OPENSFM_FEATURES_VERSION"]) == 1
            points, size = stored["points"], (640, 480)
            assert points.shape == (len(stored["descriptors"]), 4)
            assert stored["colors"].shape == (len(points), 3)
        pixels = points[:, :2].astype(np.float64) * max(size) - 0.5 + np.array(size) / 2  # as OpenSfM goes back
        np.testing.assert_allclose(pixels, verified.collection.keypoints(name), atol=1e-3)
        found = pickle.loads(gzip.decompress((matches / f"{name}_matches.pkl.gz").read_bytes()))
        expected = {verdict.pair[1] for verdict in verified.consistent if verdict.pair[0] == name}
        assert set(found) == expected
        for other, indices in found.items():
            assert len(indices) == int(verified.two_view((name, other)).inliers.sum())
            assert indices.shape[1] == 2


def test_opensfm_places() -> None:
    places = to_opensfm(np.array([[-0.5, -0.5], [319.5, 239.5], [639.5, 479.5]], np.float32), (640, 480))
    np.testing.assert_allclose(places[:, :2], [[-0.5, -0.375], [0, 0], [0.5, 0.375]], atol=1e-7)

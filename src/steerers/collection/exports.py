"""The files of other programs: what hloc and OpenSfM read of a collection.

Both keep keypoints with the centre of the top-left pixel at (0, 0), as we do; hloc adds the half pixel when it imports
them into COLMAP.
"""

from __future__ import annotations

import gzip
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._console import Progress
from steerers._files import atomic_write, write_text
from steerers.adapters.hloc import MAX_KEYPOINTS as HLOC_MOST_KEYPOINTS
from steerers.collection.store import Pair, Photograph
from steerers.collection.verification import Verified

KEYPOINT_SIZE = 1.0
"""Pixels, for OpenSfM, which weighs observations by it; our keypoints have none."""


def write_hloc(verified: Verified, folder: Path, *, keep_contradicted: bool = False) -> list[Path]:
    """Write ``features.h5``, ``matches.h5`` and ``pairs.txt`` as hloc has them; the files.

    Keypoints are float32: in hloc's usual float16 half a pixel is lost beyond pixel 1024. Matches are those that
    geometry explains, so that hloc's ``import_matches`` can go with ``skip_geometric_verification``.

    Raises:
        ValueError: if two pairs would have the same name in hloc, which writes slashes as dashes, or a name has a
            space, at which hloc divides the lines of ``pairs.txt``.
    """
    pairs = verified.chosen(keep_contradicted)
    _check_hloc_names(verified.names, pairs)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "features.h5", folder / "matches.h5", folder / "pairs.txt"]
    _write_hloc_features(verified, files[0])
    _write_hloc_matches(verified, pairs, files[1])
    write_text(files[2], "".join(f"{first} {second}\n" for first, second in pairs))
    return files


def _check_hloc_names(names: list[str], pairs: list[Pair]) -> None:
    spaced = next((name for name in names if any(letter.isspace() for letter in name)), None)
    if spaced is not None:
        raise ValueError(f"hloc divides the lines of pairs.txt at spaces: rename {spaced!r}, and extract anew")
    known: dict[str, Pair] = {}
    for pair in pairs:
        other = known.setdefault(hloc_pair(*pair), pair)
        if other != pair:
            raise ValueError(f"hloc has one name, {hloc_pair(*pair)}, for the pairs {other} and {pair}: rename one")


def hloc_pair(first: str, second: str) -> str:
    """The group of a pair in ``matches.h5``."""
    return f"{first.replace('/', '-')}/{second.replace('/', '-')}"


def _write_hloc_features(verified: Verified, path: Path) -> None:
    import h5py

    photographs = verified.collection.photographs()
    with (
        atomic_write(path) as temporary,
        h5py.File(temporary, "w") as file,
        Progress("writing features", len(photographs), "photograph") as progress,
    ):
        for photograph in photographs:
            features = verified.collection.features(photograph.name)
            group = file.create_group(photograph.name)
            keypoints = group.create_dataset("keypoints", data=verified.keypoints(photograph.name))
            keypoints.attrs["uncertainty"] = 1.0
            group.create_dataset("descriptors", data=features.descriptions.numpy().T)  # (D, N)
            group.create_dataset("scores", data=features.scores.numpy())
            group.create_dataset("image_size", data=np.array(photograph.size, np.int64))
            progress.advance()


def _write_hloc_matches(verified: Verified, pairs: list[Pair], path: Path) -> None:
    import h5py

    counts = {photograph.name: photograph.count for photograph in verified.collection.photographs()}
    with (
        atomic_write(path) as temporary,
        h5py.File(temporary, "w") as file,
        Progress("writing matches", len(pairs), "pair") as progress,
    ):
        for pair in pairs:
            indices, scores = inlier_matches(verified, pair)
            # hloc's own matchers keep indices as int16; ours are int32 from there on, which it reads as well
            kind = np.int16 if counts[pair[1]] <= HLOC_MOST_KEYPOINTS else np.int32
            matches0, scores0 = np.full(counts[pair[0]], -1, kind), np.zeros(counts[pair[0]], np.float32)
            matches0[indices[:, 0]], scores0[indices[:, 0]] = indices[:, 1], scores
            group = file.create_group(hloc_pair(*pair))
            group.create_dataset("matches0", data=matches0)
            group.create_dataset("matching_scores0", data=scores0)
            progress.advance()


def inlier_matches(verified: Verified, pair: Pair) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(K, 2) indices and (K,) scores of the matches of a pair that its geometry explains."""
    matches, inliers = verified.collection.matches(*pair), verified.two_view(pair).inliers
    return matches.indices[inliers], matches.scores[inliers]


# OpenSfM --------------------------------------------------------------------------------------------------------------


def write_opensfm(verified: Verified, folder: Path, *, keep_contradicted: bool = False) -> list[Path]:
    """Write ``features/NAME.features.npz`` and ``matches/NAME_matches.pkl.gz`` into a dataset of OpenSfM; its folders.

    Its next steps are ``extract_metadata``, ``create_tracks`` and ``reconstruct``; detection and matching are done.
    The photographs must be in ``folder/images`` under their names.
    """
    photographs = verified.collection.photographs()
    partners: dict[str, list[str]] = defaultdict(list)
    for first, second in verified.chosen(keep_contradicted):
        partners[first].append(second)
    with Progress("writing features and matches", len(photographs), "photograph") as progress:
        for photograph in photographs:
            _write_opensfm_features(verified, photograph, folder / "features" / f"{photograph.name}.features.npz")
            name = photograph.name
            matches = {other: inlier_matches(verified, (name, other))[0] for other in partners[name]}
            _write_opensfm_matches(matches, folder / "matches" / f"{name}_matches.pkl.gz")
            progress.advance()
    return [folder / "features", folder / "matches"]


def to_opensfm(keypoints: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float32]:
    """(N, 4) places, sizes and angles as OpenSfM has them: from the image's middle, in units of its longer side."""
    longer = max(size)
    places = (keypoints.astype(np.float64) + 0.5 - np.array(size) / 2) / longer
    rest = np.tile([KEYPOINT_SIZE / longer, 0.0], (len(keypoints), 1))
    return np.column_stack([places, rest]).astype(np.float32)


def _write_opensfm_features(verified: Verified, photograph: Photograph, path: Path) -> None:
    features = verified.collection.features(photograph.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        np.savez_compressed(
            temporary,
            points=to_opensfm(verified.keypoints(photograph.name), photograph.size),
            descriptors=features.descriptions.float().numpy(),
            colors=np.full((len(features), 3), 128, np.uint8),
            OPENSFM_FEATURES_VERSION=1,
        )


def _write_opensfm_matches(partners: dict[str, NDArray[np.int32]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = gzip.compress(pickle.dumps(partners), mtime=0)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)

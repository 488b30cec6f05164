"""Files of every kind that the package reads, damaged in every way that hypothesis thinks of.

Reading one either succeeds or raises the documented kind of error with the name of the file, takes no more than a
bounded amount of memory, and ends. ``make fuzz`` looks longer.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.workspaces import CAMERAS, model_of
from helpers import CONFIG_FOLDER
from steerers import Steerer, _weights
from steerers._tables import write_table
from steerers._weights import WeightsError, load_matrix, load_state
from steerers.benchmarks import satast, store, summary, two_view
from steerers.benchmarks.aims import read_manifest
from steerers.benchmarks.homographies import read_homography
from steerers.benchmarks.predict import Prediction
from steerers.cli.intrinsics import read_intrinsics
from steerers.collection import Extraction, Manifest
from steerers.datasets.check import check_data
from steerers.datasets.megadepth import read_depth
from steerers.datasets.photos import find_photos
from steerers.datasets.reconstruction import Reconstruction, covisible, read_colmap_depth
from steerers.datasets.scene_info import read_detections, read_scene_info
from steerers.features import Features, Matches, load_features, load_matches
from steerers.images.load import ImageError, load_image
from steerers.maps.index import MapIndex
from steerers.matching.consensus import Consensus
from steerers.training.config import load_config
from steerers.training.run_folder import read_config, read_log, read_spectrum

MEMORY = 2**30
"""Bytes that reading any of these small files may ask for, at most."""
SECONDS = 60
"""After which reading is taken not to end."""
Parts = dict[str, bytes]


# What is damaged ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        parts: a valid one, in parts of which one is damaged: the whole file, the members of an archive, or several
            files that belong together.
        write: the parts into a folder; the path to be read.
        read: what is under test.
        error: the kind that it documents.
    """

    parts: Callable[[], Parts]
    write: Callable[[Path, Parts], Path]
    read: Callable[[Path], object]
    error: type[Exception] | tuple[type[Exception], ...] = ValueError


def whole(name: str, content: Callable[[], bytes]) -> dict[str, Any]:
    """A file that is damaged as it is."""

    def write(folder: Path, parts: Parts) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(parts[""])
        return path

    return {"parts": lambda: {"": content()}, "write": write}


def members(name: str, content: Callable[[], bytes]) -> dict[str, Any]:
    """An ``.npz`` file whose members are damaged, under a checksum that holds."""

    def parts() -> Parts:
        with zipfile.ZipFile(io.BytesIO(content())) as archive:
            return {member: archive.read(member) for member in archive.namelist()}

    def write(folder: Path, parts: Parts) -> Path:
        with zipfile.ZipFile(folder / name, "w") as archive:
            for member, data in parts.items():
                archive.writestr(member, data)
        return folder / name

    return {"parts": parts, "write": write}


def written(save: Callable[[Path], object], name: str) -> Callable[[], bytes]:
    """What a function writes to a path."""

    def content() -> bytes:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder) / name)
            return (Path(folder) / name).read_bytes()

    return content


def picture(ending: str, **options: Any) -> Callable[[], bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    return written(lambda path: PIL.Image.fromarray(pixels).save(path, **options), f"a{ending}")


def model(binary: bool) -> Parts:
    """A small reconstruction, by its files."""
    import tempfile

    made = model_of(CAMERAS[:2])
    for index in sorted(made.point3D_ids())[20:]:
        made.delete_point3D(index)
    with tempfile.TemporaryDirectory() as folder:
        (made.write_binary if binary else made.write_text)(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def files(folder: Path, parts: Parts) -> Path:
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    return folder


def saved_arrays(**arrays: Any) -> Callable[[], bytes]:
    def content() -> bytes:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    return content


def saved_dictionary(values: Mapping[Any, Any]) -> Callable[[], bytes]:
    def content() -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, np.array(values, dtype=object), allow_pickle=True)
        return buffer.getvalue()

    return content


def dumped(value: Any) -> Callable[[], bytes]:
    return lambda: json.dumps(value).encode()


def torch_file(value: Any, **options: Any) -> Callable[[], bytes]:
    def content() -> bytes:
        buffer = io.BytesIO()
        torch.save(value, buffer, **options)
        return buffer.getvalue()

    return content


def steerer_parts() -> Parts:
    """The metadata of steerers, and where their tensors are, under stamps that hold."""
    return {f"{kind}/{key}": text.encode() for kind in STEERERS for key, text in STEERERS[kind].export()[1].items()}


STEERERS = {
    "blocks": Steerer.spread(16),
    "permutation": Steerer.perm(8, "C4"),
    "matrix": Steerer.from_matrix(torch.eye(6), "C3"),
}


def write_steerer(folder: Path, parts: Parts) -> Path:
    """All of them; the folder."""
    for kind, steerer in STEERERS.items():
        metadata = {key.partition("/")[2]: data for key, data in parts.items() if key.startswith(f"{kind}/")}
        text = {key: data.decode("latin-1") for key, data in metadata.items()}
        _weights.save(folder / f"{kind}.safetensors", steerer.export()[0], text)
    return folder


def read_steerers(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        Steerer.load(path).eigenvalues()


K, R = [[50.0, 0, 16], [0, 50, 12], [0, 0, 1]], np.eye(3).tolist()
SCENE = {
    "image_paths": np.array(["a.jpg", None, "c.jpg"], dtype=object),
    "depth_paths": np.array(["a.h5", None, "c.h5"], dtype=object),
    "intrinsics": np.array([np.array(K), None, np.array(K)], dtype=object),
    "poses": np.array([np.eye(4), None, np.eye(4)], dtype=object),
    "pairs": np.array([[0, 2], [2, 0]]),
    "overlaps": np.array([0.3, 0.5]),
}
POINTS = {0: np.arange(12.0).reshape(4, 3), 2: np.zeros((0, 3))}
CONFIG: dict[str, Any] = {"model": "sift", "strategy": {"name": "dual-softmax"}, "num_keypoints": 9}
MATCHES = Matches(
    np.ones((3, 2), np.float32), np.ones((3, 2), np.float32), np.ones(3, np.float32), np.zeros((3, 2), np.int64), 0.5
)
FEATURES = Features(torch.ones(3, 2), torch.ones(3, 4), torch.ones(3), (32, 24), "sift")
MANIFEST_JSON = Manifest("photos", Extraction("sift"), "0" * 64)
PREDICTION = Prediction(MATCHES, (4, 3), (4, 3), (8, 6), (8, 6), (9, 9), 0.5, 2, 0.1, 0.2)
REPORT = {
    "benchmark": "sat-ast",
    "settings": {"num_keypoints": [5000], "max_size": 784, "estimator": {"name": "poselib"}},
    "environment": {"steerers": "1.2", "commit": "0123"},
    "tables": [
        {
            "rotation": "upright",
            "num_pairs": 40,
            "rows": [
                {"label": "a", "model": "a", "strategy": {"name": "subset", "order": 4}, "auc": {"10": 0.5}},
                {"label": "b", "model": "b", "strategy": {"name": "subset"}, "auc": {"10": None}},
            ],
        }
    ],
}
ANNOTATION = {
    "correspondences": [{"pts_src": [[1.0, 2.0], [3, 4]], "pts_dst": [[5.0, 6.0], [7, 8]]}],
    "query_path": "data\\a.png",
    "pred_path": "data\\b.png",
}
MANIFEST = b"query,candidate,positive,split\na.jpg,b.jpg,1,north-up\na.jpg,c.jpg,0,north-up\n"
LOG = b"".join(b'{"step": %d, "loss": 0.5, "validation": {"accuracy": 0.1}}\n' % n for n in range(5))
SPECTRUM = {"steps": np.arange(3), "eigenvalues": np.ones((3, 4), np.complex64)}


def fixed_steerer() -> bytes:
    return written(STEERERS["blocks"].save, "a.safetensors")()


def consensus() -> bytes:
    return written(lambda path: Consensus().save(path, {"model": "compact-6"}), "a.safetensors")()


def tracks() -> bytes:
    return written(Reconstruction._of(model_of(CAMERAS[:2])).save, "tracks.npz")()


def predictions() -> bytes:
    about = {"config": CONFIG, "made": {}, "time": 1.5}
    return written(lambda path: store.write(path, PREDICTION, about), "a.npz")()


def depth_map() -> bytes:
    import h5py

    def save(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("depth", data=np.ones((12, 16), np.float32), compression="gzip")

    return written(save, "a.h5")()


def map_index() -> bytes:
    """Of a map of one cell."""

    def save(path: Path) -> None:
        facts = {
            "map": "a.tif", "bytes": 9, "modified": 1, "sha256": "", "size": [90, 70], "bands": [1], "crs": "",
            "cell": 512, "matrix": np.eye(3).tolist(), "extraction": {"model": "sift"}, "checksum": "",
        }  # fmt: skip
        arrays = {"keypoints": np.ones((3, 2), np.float32), "descriptions": np.ones((3, 8), np.float16)}
        arrays |= {"scores": np.ones(3, np.float32), "vector": np.ones((1, 4), np.float16)}
        with write_table(path, "map index", facts) as table:
            table.append({}, {"mean": np.ones(8), "axes": np.ones((2, 8)), "words": np.ones((2, 2))})
            table.append({"cell": [0, 0, 0]}, arrays)

    return written(save, "a.h5")()


def photographs() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(2):
            data = picture(".png")()
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


# How it is read -------------------------------------------------------------------------------------------------------


def transform() -> bytes:
    from steerers.maps.transforms import Displacements, Transform

    local = Displacements(np.zeros((4, 5, 2)), (20, 15))
    return Transform("affine", np.eye(3), (20, 15), (20, 15), local).to_json().encode()


def read_transform(path: Path) -> None:
    from steerers.maps.transforms import Transform

    Transform.load(path).to_moving([[1.0, 2.0]])


def read_image(path: Path) -> None:
    load_image(path, max_size=16, exif="apply")
    load_image(path)


def read_map_index(path: Path) -> None:
    with MapIndex.open(path) as index:
        for tile in index.tiles:
            index.features(tile)


def read_mask(path: Path) -> None:
    load_image(np.zeros((24, 32), np.uint8), max_size=16, mask=path)


def read_tracks(path: Path) -> None:
    covisible(Reconstruction.load(path)).usable()


def read_model(folder: Path) -> None:
    covisible(Reconstruction.read(folder)).usable()


def read_scene(path: Path) -> None:
    info = read_scene_info(path)
    assert len(info.usable_pairs) == len(info.pairs)
    list(info.problems())


def read_points(path: Path) -> None:
    read_detections(path, list(POINTS))


def read_report(path: Path) -> None:
    report = summary.make_report(summary.find_reports([path], path.parent, "redi"), "redi")
    json.dumps(report.to_json())
    report.to_markdown()


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()


def read_annotation(path: Path) -> None:
    touch(path.parent / "data", "a.png", "b.png")
    satast.read_pair(path, path.parent)


def read_cameras(path: Path) -> None:
    touch(path.parent, "0.jpg", "1.jpg", "2.jpg")
    two_view.list_pairs(path.parent)


def read_camera(path: Path) -> None:
    read_intrinsics(str(path))


def read_list(path: Path) -> None:
    touch(path.parent, "a.jpg", "b.jpg", "c.jpg")
    read_manifest(path)


def read_tar(path: Path) -> None:
    for photo in find_photos(path):
        photo.load(max_size=16)


def check(path: Path) -> None:
    """A check finds what is wrong and raises nothing, whatever lies there."""
    check_data(path)


NAMED = (ValueError, OSError)  # the system's own, of a path in the file that cannot be one
WEIGHTS = {"model": {"module.w": torch.zeros(3, 4), "module.b": torch.zeros(4).half()}, "step": 3}
ENTRIES = [{"name": f"{n}.jpg", "K": K, "R": R, "t": [n, 0.0, 1.0]} for n in range(3)]
KINDS = {
    "transform": Kind(**whole("transform.json", transform), read=read_transform),
    **{
        f"image {ending}": Kind(**whole(f"a{ending}", picture(ending, **options)), read=read_image, error=ImageError)
        for ending, options in {
            ".png": {}, ".jpg": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
            ".tif": {"compression": "tiff_lzw"}, ".webp": {}, ".gif": {}, ".bmp": {}, ".ppm": {}, ".ico": {},
        }.items()
    },
    "mask": Kind(**whole("mask.png", picture(".png")), read=read_mask),
    "steerer": Kind(**whole("a.safetensors", fixed_steerer), read=Steerer.load, error=WeightsError),
    "consensus": Kind(**whole("a.safetensors", consensus), read=Consensus.load, error=WeightsError),
    "steerer, metadata": Kind(steerer_parts, write_steerer, read_steerers, WeightsError),
    "weights .pth": Kind(**whole("a.pth", torch_file(WEIGHTS)), read=load_state, error=WeightsError),
    "weights .pth, legacy": Kind(
        **whole("a.pth", torch_file(WEIGHTS, _use_new_zipfile_serialization=False)), read=load_state, error=WeightsError
    ),
    "steerer .pth": Kind(**whole("a_C4.pth", torch_file(torch.eye(8))), read=load_matrix, error=WeightsError),
    "tracks.npz": Kind(**whole("tracks.npz", tracks), read=read_tracks),
    "tracks.npz, members": Kind(**members("tracks.npz", tracks), read=read_tracks),
    "COLMAP, binary": Kind(partial(model, True), files, read_model),
    "COLMAP, text": Kind(partial(model, False), files, read_model),
    "COLMAP, checked": Kind(partial(model, True), files, check),
    "tracks, checked": Kind(**members("tracks.npz", tracks), read=check),
    "COLMAP, depth map": Kind(**whole("a.bin", lambda: b"4&3&1&" + bytes(48)), read=read_colmap_depth),
    "scene_info.npz": Kind(**whole("a.npz", saved_arrays(**SCENE)), read=read_scene),
    "scene_info.npz, members": Kind(**members("a.npz", saved_arrays(**SCENE)), read=read_scene),
    "scene_info.npy": Kind(**whole("a.npy", saved_dictionary(SCENE)), read=read_scene),
    "detections.npy": Kind(**whole("a.npy", saved_dictionary(POINTS)), read=read_points),
    "features.h5": Kind(**whole("a.h5", written(FEATURES.save, "a.h5")), read=load_features),
    "matches.h5": Kind(**whole("a.h5", written(MATCHES.save, "a.h5")), read=load_matches),
    "manifest.json": Kind(**whole("manifest.json", written(MANIFEST_JSON.write, "manifest.json")), read=Manifest.read),
    "map index": Kind(**whole("a.h5", map_index), read=read_map_index),
    "depth.h5": Kind(**whole("a.h5", depth_map), read=read_depth),
    "photographs.tar": Kind(**whole("a.tar", photographs), read=read_tar),
    "photographs.tar, checked": Kind(**whole("a.tar", photographs), read=check),
    "cameras.json": Kind(**whole("cameras.json", dumped(ENTRIES)), read=read_cameras, error=NAMED),
    "report.json": Kind(**whole("report.json", dumped(REPORT)), read=read_report),
    "annotation.json": Kind(**whole("annotation_a.json", dumped(ANNOTATION)), read=read_annotation, error=NAMED),
    "manifest.csv": Kind(**whole("manifest.csv", lambda: MANIFEST), read=read_list, error=NAMED),
    "homography": Kind(**whole("H1to2p", lambda: b"1 0.5 -3\n0 1.5 2e-3\n1e-4 0 1\n"), read=read_homography),
    "intrinsics": Kind(**whole("K.txt", lambda: b"50 0 16\n0 50 12\n0 0 1\n"), read=read_camera),
    "intrinsics.json": Kind(**whole("K.json", dumped({"K": K})), read=read_camera),
    "config.toml": Kind(**whole("a.toml", (CONFIG_FOLDER / "compact.toml").read_bytes), read=load_config),
    "run, config.json": Kind(
        **whole("run/config.json", dumped({"setting": "joint", "data": {"views": {"size": 32}}, "batch": 4})),
        read=lambda path: read_config(path.parent),
    ),
    "run, log.jsonl": Kind(**whole("run/log.jsonl", lambda: LOG), read=lambda path: read_log(path.parent)),
    "run, spectrum.npz": Kind(
        **members("spectrum.npz", saved_arrays(**SPECTRUM)), read=lambda path: read_spectrum(path.parent)
    ),
    "predictions": Kind(**whole("a.npz", predictions), read=partial(store.read, config=CONFIG)),
    "predictions, members": Kind(**members("a.npz", predictions), read=partial(store.read, config=CONFIG)),
}  # fmt: skip


# Damage ---------------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 2, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    b"-1", b"0", b"1e999", b"NaN", b"-Infinity", b"9" * 30, b"9" * 400, b"null", b"true", b'""', b"[]", b"{}",
    b"[" * 200 + b"]" * 200, b'{"a":' * 100 + b"1" + b"}" * 100, b"[" * 50_000, b"\xff\xfe", b"\0", b"../../etc/passwd",
)  # fmt: skip
places = st.integers(0, 40) | st.integers(0, 2**20)


def flip(data: bytes, place: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[place % len(data)] ^= value
    return bytes(changed)


def number(data: bytes, place: int, form: str, value: int) -> bytes:
    """Another number where one may be."""
    size = struct.calcsize(form)
    place %= max(1, len(data) - size)
    return data[:place] + struct.pack(form, value % 2 ** (8 * size)) + data[place + size :]


def text(data: bytes, place: int, word: bytes) -> bytes:
    """Another word, in place of one where there are words."""
    import re

    found = list(re.finditer(rb"-?\d+(\.\d+)?|\w+", data))
    if not found:
        return data + word
    start, end = found[place % len(found)].span()
    return data[:start] + word + data[end:]


def cut(data: bytes, place: int) -> bytes:
    return data[: place % len(data)]


def leave_out(data: bytes, place: int, count: int) -> bytes:
    place %= len(data)
    return data[:place] + data[place + count :]


def repeat(data: bytes, place: int, count: int, times: int) -> bytes:
    place %= len(data)
    return data[:place] + times * data[place : place + count] + data[place:]


damages = st.one_of(
    st.builds(lambda *a: partial(flip, place=a[0], value=a[1]), places, st.integers(1, 255)),
    st.builds(
        lambda *a: partial(number, place=a[0], form=a[1], value=a[2]),
        places,
        st.sampled_from(["<B", "<H", ">H", "<I", ">I", "<Q", ">Q"]),
        st.sampled_from(NUMBERS),
    ),
    st.builds(lambda *a: partial(text, place=a[0], word=a[1]), places, st.sampled_from(TEXTS)),
    st.builds(lambda place: partial(cut, place=place), places),
    st.builds(lambda *a: partial(leave_out, place=a[0], count=a[1]), places, st.integers(1, 64)),
    st.builds(
        lambda *a: partial(repeat, place=a[0], count=a[1], times=a[2]), places, st.integers(1, 64), st.integers(1, 4)
    ),
)


@contextmanager
def bounded() -> Iterator[None]:
    """Within, this process gets little more memory than it has, and not for ever (POSIX)."""
    if sys.platform == "win32":
        yield
        return
    import resource

    def stop(*_: object) -> None:
        raise TimeoutError(f"reading has not ended after {SECONDS} seconds")

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if LINUX else None
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    if taken is not None:
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


LINUX = Path("/proc/self/statm").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@cache
def valid(name: str) -> Parts:
    return KINDS[name].parts()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_damaged_is_read(name: str, tmp_path: Path) -> None:
    KINDS[name].read(KINDS[name].write(tmp_path, valid(name)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=2 * settings.default.max_examples)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(name: str, data: st.DataObject, folder: Path) -> None:
    kind, parts = KINDS[name], dict(valid(name))
    for _ in range(data.draw(st.integers(1, 3), "damages")):
        part = data.draw(st.sampled_from(sorted(parts)), "part")
        if parts[part]:
            parts[part] = data.draw(damages, "damage")(parts[part])
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    path = kind.write(home, parts)
    with bounded():
        try:
            kind.read(path)
        except kind.error as error:
            said = str(error)
        else:
            return
    assert str(home) in said

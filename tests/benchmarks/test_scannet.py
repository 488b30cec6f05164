"""ScanNet-1500 on drawn scenes whose cameras are known, in the layouts of LoFTR and of SuperGlue, whole and damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from benchmarks.cameras import K, camera, project, rotation, world
from benchmarks.dots import DOTS, SIZE, Stub, draw, make_run, table_rows
from helpers import assert_refused, run_command
from steerers.benchmarks.offers import Rotation
from steerers.benchmarks.scannet import HELP, SCANNET, list_scannet, measure_pair, pose_path, read_pose
from steerers.benchmarks.two_view import PoseEstimator
from terrain import make_prediction

SCENES = {"scene0707_00": 1, "scene0708_02": 2, "scene0806_00": 3}
FRAMES = (15, 585)
STORED = (1296, 968)
LIST, INTRINSICS, TEXT = "test.npz", "intrinsics.npz", "scannet_test_pairs_with_gt.txt"

pytestmark = pytest.mark.usefixtures("one_thread")


def stored_K() -> np.ndarray:
    """Intrinsics at 1296 x 968 of cameras whose images are drawn at another size, edges to edges."""
    sx, sy = STORED[0] / SIZE[0], STORED[1] / SIZE[1]
    return np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1]]) @ K


def pose(R: np.ndarray, t: np.ndarray) -> np.ndarray:
    return np.vstack([np.column_stack([R, t]), [0, 0, 0, 1]])


def draw_scene(folder: Path, seed: int, names: tuple[str, str]) -> np.ndarray:
    """Two views of a world; the (4, 4) pose from the first camera to the second. A name says nothing of the format."""
    for name, (R, t) in zip(names, ((np.eye(3), np.zeros(3)), camera(seed)), strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(project(world(seed), R, t), path.with_suffix(".png"), marked=name == names[1])
        path.with_suffix(".png").rename(path)
    return pose(*camera(seed))


def make_loftr(folder: Path) -> Path:
    """In a world whose origin is neither camera."""
    to_world = pose(rotation(np.array([1.0, 2, 3]), 50), np.array([1.0, -2, 0.5]))
    rows, intrinsics = [], {}
    for scene, seed in SCENES.items():
        inside = folder / "scannet_test_1500" / scene
        relative = draw_scene(inside / "color", seed, (f"{FRAMES[0]}.jpg", f"{FRAMES[1]}.jpg"))
        (inside / "pose").mkdir()
        for frame, camera_to_world in zip(FRAMES, (to_world, to_world @ np.linalg.inv(relative)), strict=True):
            np.savetxt(inside / "pose" / f"{frame}.txt", camera_to_world)
        rows.append([int(scene[5:9]), int(scene[10:]), *FRAMES])
        intrinsics[scene] = np.diag([640 / STORED[0], 480 / STORED[1], 1]) @ stored_K()
    np.savez(folder / LIST, name=np.array(rows, np.uint16), rel_pose=np.zeros((3, 12), np.float32))
    np.savez(folder / INTRINSICS, **intrinsics, scene0809_00=np.eye(3))
    return folder


def make_superglue(folder: Path) -> Path:
    lines = []
    for scene, seed in SCENES.items():
        names = tuple(f"scans_test/{scene}/sens/frame-{frame:06d}.color.jpg" for frame in FRAMES)
        relative = draw_scene(folder, seed, names)  # type: ignore[arg-type]
        numbers = [*stored_K().ravel(), *stored_K().ravel(), *relative.ravel()]
        lines.append(" ".join([*names, "0", "0", *(f"{number:.6g}" for number in numbers)]))
    (folder / TEXT).write_text("\n".join(lines) + "\n")
    return folder


LAYOUTS: dict[str, Callable[[Path], Path]] = {"loftr": make_loftr, "superglue": make_superglue}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in LAYOUTS.items()}


@pytest.fixture
def copied(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A layout to be damaged."""
    return lambda layout: Path(shutil.copytree(folders[layout], tmp_path / layout))


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_hold_the_same_cameras(folders: dict[str, Path], layout: str) -> None:
    pairs = list_scannet(folders[layout])
    assert [pair.sequence for pair in pairs] == list(SCENES)
    for pair, seed in zip(pairs, SCENES.values(), strict=True):
        R, t = camera(seed)
        np.testing.assert_allclose(pair.K0, K, rtol=1e-5)
        np.testing.assert_allclose(pair.K1, K, rtol=1e-5)
        np.testing.assert_allclose(pair.R, R, atol=1e-5)
        np.testing.assert_allclose(pair.t, t, atol=1e-5)
        assert pair.image0.is_file()
        assert pair.image0 != pair.image1
    assert len({pair.name for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_intrinsics_follow_the_stored_size(copied: Callable[[str], Path], layout: str) -> None:
    folder = copied(layout)
    for size in (STORED, (640, 480)):
        for path in folder.rglob("*.jpg"):
            PIL.Image.new("L", size).save(path)
        pair, *_ = list_scannet(folder)
        points = np.array([[0.1, -0.2, 1.0], [0.3, 0.25, 1.0]])
        stored = points @ stored_K().T
        found = points @ pair.K0.T
        scale = np.array(size) / STORED
        np.testing.assert_allclose(found[:, :2], (stored[:, :2] + 0.5) * scale - 0.5, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scenes_are_chosen_by_name_and_the_others_need_not_be_there(copied: Callable[[str], Path], layout: str) -> None:
    folder = copied(layout)
    for path in folder.rglob("scene0806_00"):
        shutil.rmtree(path)
    (pair,) = list_scannet(folder, scenes=["scene0708_02"])
    assert pair.sequence == "scene0708_02"
    with pytest.raises(ValueError, match="has no scene 'scene0001_00'; it has scene0707_00, scene0708_02"):
        list_scannet(folder, scenes=["scene0001_00"])
    with pytest.raises(
        ValueError, match=r"[24] of (6|12) files are missing, such as .*scene0806_00.*; get ScanNet-1500"
    ):
        list_scannet(folder)


def test_lists_lie_in_the_folder_or_one_below_or_elsewhere(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["loftr"]
    images = tmp_path / "images"
    shutil.copytree(folder / "scannet_test_1500", images)
    elsewhere = tmp_path / "lists"
    elsewhere.mkdir()
    for name in (LIST, INTRINSICS):
        shutil.copy(folder / name, elsewhere)
    assert len(list_scannet(tmp_path)) == len(list_scannet(images, elsewhere / LIST)) == 3
    shutil.copy(folders["superglue"] / TEXT, elsewhere)
    with pytest.raises(ValueError, match=r"holds several lists of pairs: give one by --pairs, .*test\.npz, .*with_gt"):
        list_scannet(tmp_path)


def test_missing_files_say_what_to_get(copied: Callable[[str], Path], tmp_path: Path) -> None:
    assert "https://github.com/zju3dv/LoFTR" in HELP
    assert "https://github.com/magicleap/SuperGluePretrainedNetwork" in HELP
    with pytest.raises(ValueError, match=r"there is no folder .*no-such; get ScanNet-1500 as LoFTR has it"):
        list_scannet(tmp_path / "no-such")
    with pytest.raises(ValueError, match=r"there is none of test\.npz, scannet_test_pairs_with_gt\.txt.*; get ScanNet"):
        list_scannet(tmp_path)
    with pytest.raises(ValueError, match=r"there is no list of pairs .*none\.txt; get ScanNet"):
        list_scannet(tmp_path, tmp_path / "none.txt")
    loftr, superglue = copied("loftr"), copied("superglue")
    shutil.rmtree(superglue / "scans_test")
    with pytest.raises(
        ValueError, match=r"names scans_test/scene0707_00/sens/frame-000015\.color\.jpg, which is neither"
    ):
        list_scannet(superglue)
    (loftr / "scannet_test_1500" / "scene0708_02" / "pose" / "585.txt").unlink()
    with pytest.raises(ValueError, match=r"1 of 12 files are missing, such as .*pose/585\.txt; get ScanNet"):
        list_scannet(loftr)
    (loftr / INTRINSICS).unlink()
    with pytest.raises(ValueError, match=r"there is no .*intrinsics\.npz; get ScanNet"):
        list_scannet(loftr)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (LIST, {"name": np.zeros((3, 5), int)}, r"name must be \(N, 4\) whole numbers"),
        (LIST, {"name": np.zeros((3, 4))}, "whole numbers"),
        (LIST, {"name": np.zeros((0, 4), int)}, "it lists no pairs"),
        (LIST, {"names": np.zeros((3, 4), int)}, "it has no name; it has names"),
        (LIST, {"name": np.array([[{"a": 1}] * 4], object)}, "whole numbers"),
        (INTRINSICS, {"scene0707_00": np.eye(3)}, "it has no scene0708_02, scene0806_00; it has scene0707_00"),
        (INTRINSICS, dict.fromkeys(SCENES, np.eye(2)), "scene0707_00 must be 3 x 3 finite numbers"),
        (INTRINSICS, dict.fromkeys(SCENES, -np.eye(3)), r"K must be \[\[fx, 0, cx\]"),
    ],
)
def test_damaged_arrays_are_named(
    copied: Callable[[str], Path], name: str, changes: dict[str, np.ndarray], message: str
) -> None:
    folder = copied("loftr")
    np.savez(folder / name, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        list_scannet(folder)
    assert str(folder / name) in str(caught.value)


def test_a_damaged_archive_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("loftr")
    (folder / LIST).write_bytes((folder / LIST).read_bytes()[:100])
    with pytest.raises(ValueError, match=r"test\.npz: a damaged list of pairs, or none"):
        list_scannet(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 0 0 " * 3, "cannot reshape array of size 12"),
        ("one " * 16, "could not convert"),
        ("-inf " * 16, "must be 4 x 4 finite numbers"),
        ("2 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1", "R must be a rotation"),
        ("1 0 0 0 0 1 0 0 0 0 1 0 1 2 3 1", r"the last row must be 0 0 0 1, got \[1.0, 2.0, 3.0, 1.0\]"),
    ],
)
def test_damaged_poses_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "15.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"15\.txt: not the pose of a camera, 4 x 4 numbers \(.*{message}"):
        read_pose(path)
    assert pose_path(Path("s/color/15.jpg")) == Path("s/pose/15.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words[:-1], "38 in all, got 37; get ScanNet"),
        (lambda words: [*words, "1"], "38 in all, got 39"),
        (lambda words: [*words[:2], "0", "1", *words[4:]], "quarter turns must be 0 0"),
        (lambda words: [*words[:4], "f", *words[5:]], "could not convert string"),
        (lambda words: [*words[:4], "-5", *words[5:]], r"line 2: intrinsics: K must be \[\[fx, 0, cx\]"),
        (lambda words: [*words[:4], "nan", *words[5:]], "intrinsics must be 3 x 3 finite numbers"),
        (lambda words: [*words[:22], "7", *words[23:]], "the pose: R must be a rotation"),
        (lambda words: [*words[:-1], "2"], "the last row must be 0 0 0 1"),
    ],
)
def test_damaged_lines_are_named(
    copied: Callable[[str], Path], change: Callable[[list[str]], list[str]], message: str
) -> None:
    folder = copied("superglue")
    first, second, third = (folder / TEXT).read_text().splitlines()
    (folder / TEXT).write_text("\n".join([first, " ".join(change(second.split())), third]))
    with pytest.raises(ValueError, match=rf"gt\.txt, line 2: .*{message.removeprefix('line 2: ')}"):
        list_scannet(folder)


@pytest.mark.parametrize(("content", "message"), [(b"\n\n", "it lists no pairs"), (b"\xff\xfe", "not a list of pairs")])
def test_lists_of_nothing_are_refused(copied: Callable[[str], Path], content: bytes, message: str) -> None:
    folder = copied("superglue")
    (folder / TEXT).write_bytes(content)
    with pytest.raises(ValueError, match=rf"gt\.txt: {message}"):
        list_scannet(folder)


@pytest.mark.parametrize(
    ("size", "message"), [((480, 640), "is 480 x 640: an image of ScanNet is 1296 x 968"), (None, "cannot read image")]
)
def test_images_of_another_shape_are_refused(
    copied: Callable[[str], Path], size: tuple[int, int] | None, message: str
) -> None:
    folder = copied("loftr")
    path = folder / "scannet_test_1500" / "scene0707_00" / "color" / "585.jpg"
    if size is None:
        path.write_bytes(b"no image")
    else:
        PIL.Image.new("L", size).save(path)
    with pytest.raises(ValueError, match=message) as caught:
        list_scannet(folder)
    assert str(path) in str(caught.value)


# Measuring ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotation", ["upright", "c4", "so2"])
def test_a_perfect_matcher_scores_100_and_a_shuffled_one_0(
    folders: dict[str, Path], layout: str, rotation: Rotation
) -> None:
    pairs = list_scannet(folders[layout])
    benchmark = SCANNET[("upright", "c4", "so2").index(rotation)]
    assert benchmark.rotation == rotation
    found = benchmark.run(
        [make_run(), make_run(Stub(shuffle=True), label="shuffled")], pairs, rotation, options=PoseEstimator("poselib")
    )
    perfect, shuffled = table_rows(benchmark, found)
    assert perfect["num_matches"] == DOTS
    assert perfect["auc"]["5"] > 0.75
    assert perfect["auc"]["20"] > 0.93
    assert shuffled["auc"] == {"5": 0.0, "10": 0.0, "20": 0.0}


def test_the_threshold_is_in_pixels_of_640_x_480(folders: dict[str, Path]) -> None:
    """Images are stored at a quarter of that: 4 pixels there are 1 here, where the noise is."""
    pair = list_scannet(folders["loftr"])[0]
    points = world(7, 150)
    R, t = camera(1)
    points0, points1 = project(points, np.eye(3), np.zeros(3)), project(points, R, t)
    points1 = points1 + np.random.default_rng(0).normal(0, 0.4, points1.shape)
    prediction = make_prediction(points0, points1, size=SIZE)
    inliers = [
        measure_pair(pair, prediction, PoseEstimator("opencv", threshold)).num_inliers for threshold in (0.2, 1.6, 16.0)
    ]
    assert inliers[0] < 60 < inliers[1] < inliers[2] > 145


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rotations"), [("scannet-1500", [0, 0, 0]), ("scannet-c4", [0, 90, 180]), ("scannet-so2", [0, 10, 20])]
)
def test_command(folders: dict[str, Path], elsewhere: Path, name: str, rotations: list[int]) -> None:
    data = ["--data", folders["superglue"], "--models", "sift", "--num-keypoints", "200"]
    ran = run_command("eval", name, *data, "--json", "out.json")
    assert ran.code == 0, ran.err
    assert "longest side 640 px" in ran.out
    assert "plain RANSAC, 0.5 px at 640 x 480 over the mean focal" in ran.out
    assert "(paper)" not in ran.out
    assert ("| sift | dual-softmax | keep |" in ran.out) == (name == "scannet-so2")
    (table,) = json.loads((elsewhere / "out.json").read_text())["tables"]
    assert [pair["rotation1"] for pair in table["rows"][0]["pairs"]] == rotations
    again = run_command("eval", name, *data, "--pairs", folders["superglue"] / TEXT, "--estimator", "poselib")
    assert "matched before" in again.err
    assert "Pose by poselib, 1 px at the evaluated size" in again.out


def test_bad_input_of_the_command(elsewhere: Path) -> None:
    assert_refused(["eval", "scannet-c4", "--data", "no-such"], "there is no folder no-such; get ScanNet-1500 as LoFTR")
    assert_refused(["eval", "scannet-c4", "--data", ".", "--pairs", "no.npz"], "there is no list of pairs no.npz; get")
    assert_refused(["eval", "scannet-c4", "--data", ".", "--canvas", "keep"], "unrecognized arguments: --canvas keep")
    assert list(elsewhere.iterdir()) == []

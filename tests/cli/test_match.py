"""``steerers match``: what it prints and writes, and what bad input gets."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from PIL.Image import Transpose

from helpers import EXAMPLES, Ran, assert_refused, run_command
from steerers.geometry import rotation_about_centre, transform_points
from steerers.models.classical import UprightSift, c4_permutation
from steerers.steering.steerer import Steerer

pytestmark = pytest.mark.usefixtures("one_thread")
HOUSE = EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"
QUICK = ("--num-keypoints", "300", "--max-size", "400")
SIZE = (360, 280)  # of the pictures made here: not square, so that a rotation shows in the frame
ROTATION = {1: Transpose.ROTATE_90, 2: Transpose.ROTATE_180, 3: Transpose.ROTATE_270}
KEYS = {
    "image0", "image1", "model", "strategy", "verified_by", "angle_deg", "num_matches", "num_inliers",
    "probability", "homography", "pose", "keypoints0", "keypoints1", "scores", "angles_deg", "inliers", "seconds",
}  # fmt: skip


Run = Callable[..., Ran]
Matched = Callable[..., dict[str, Any]]


@pytest.fixture
def run() -> Run:
    """Run ``steerers match`` in this process."""
    return partial(run_command, "match")


@pytest.fixture
def matched(run: Run, tmp_path: Path) -> Matched:
    """Run a match that must work, and give its JSON."""

    def call(image0: Path, image1: Path, *options: str | Path) -> dict[str, Any]:
        ran = run(image0, image1, *QUICK, "--json", tmp_path / "report.json", *options)
        assert (ran.code, ran.err) == (0, "")
        report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
        return report

    return call


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder for output alone."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good and bad input."""
    folder = tmp_path_factory.mktemp("input")
    photograph = astronaut()
    photograph.save(folder / "good.png")
    for k, rotation in ROTATION.items():
        photograph.transpose(rotation).save(folder / f"rotated_{k}.png")
    (folder / "empty.jpg").touch()
    jpeg = (EXAMPLES / "coffee.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (folder / "text.jpg").write_text("this is no picture\n")
    (folder / "folder").mkdir()
    (folder / "folder.png").mkdir()
    PIL.Image.new("RGB", (1, 1), "red").save(folder / "pixel.png")
    PIL.Image.new("RGB", (300, 200), (90, 120, 30)).save(folder / "plain.png")
    PIL.Image.new("L", (20, 10), 255).save(folder / "small_mask.png")
    return folder


def astronaut() -> PIL.Image.Image:
    """A part of the photograph, of SIZE."""
    return PIL.Image.open(EXAMPLES / "astronaut.jpg").crop((60, 0, 60 + SIZE[0], SIZE[1]))


def left_half(size: tuple[int, int]) -> PIL.Image.Image:
    mask = PIL.Image.new("L", size, 0)
    mask.paste(255, (0, 0, size[0] // 2, size[1]))
    return mask


def moved(report: dict[str, Any], transform: torch.Tensor) -> np.ndarray:
    """(K,) pixels between the second keypoints and the first ones mapped by a 3 x 3 matrix."""
    expected = transform_points(transform, torch.tensor(report["keypoints0"], dtype=torch.float64))
    distance: np.ndarray = (expected - torch.tensor(report["keypoints1"])).norm(dim=1).numpy()
    return distance


# What is written ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "degrees"), [(1, 90.0), (3, -90.0)])
def test_report_of_a_quarter_turn(run: Run, files: Path, out: Path, k: int, degrees: float) -> None:
    first, second, path = files / "good.png", files / f"rotated_{k}.png", out / "report.json"
    ran = run(first, second, *QUICK, "--model", "upright-sift", "--json", path)  # whose quarter turns are exact
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert set(report) == KEYS
    assert (report["image0"], report["image1"]) == (str(first), str(second))
    assert (report["model"], report["strategy"]) == ("upright-sift", "max-matches")
    assert report["verified_by"] == "homography"
    assert report["angle_deg"] == pytest.approx(degrees)
    assert report["angles_deg"] is None
    count = report["num_matches"]
    assert type(count) is type(report["num_inliers"]) is int
    assert count > 200
    assert np.shape(report["keypoints0"]) == np.shape(report["keypoints1"]) == (count, 2)
    assert len(report["scores"]) == len(report["inliers"]) == count
    assert all(type(inlier) is bool for inlier in report["inliers"])
    assert sum(report["inliers"]) == report["num_inliers"] > 0.9 * count
    assert all(type(score) is float and 0 < score <= 1 for score in report["scores"])
    assert report["scores"] == sorted(report["scores"], reverse=True)
    assert 0 < report["seconds"] < 100

    truth, _ = rotation_about_centre(SIZE, math.radians(degrees))
    assert np.mean(moved(report, truth) < 0.5) > 0.9
    H = torch.tensor(report["homography"], dtype=torch.float64)
    corners = torch.tensor([[0, 0], [SIZE[0], 0], [0, SIZE[1]], SIZE], dtype=torch.float64)
    assert float((transform_points(H, corners) - transform_points(truth, corners)).norm(dim=1).max()) < 0.3

    summary = f"{count} matches, {report['num_inliers']} inliers, rotated by {degrees:.1f} degrees counter-clockwise"
    assert re.fullmatch(
        re.escape(f"{summary}, the same thing with probability 1.00 (upright-sift, max-matches, ")
        + r"\d+\.\d s\)\n"
        + re.escape(f"wrote {path}\n"),
        ran.out,
    )
    assert os.listdir(out) == ["report.json"]


def test_report_of_the_default_model(matched: Matched, files: Path) -> None:
    report = matched(files / "good.png", files / "rotated_3.png", *QUICK)
    assert (report["model"], report["strategy"]) == ("compact-6", "max-similarity")
    assert report["angle_deg"] == pytest.approx(-90, abs=1)
    assert len(report["angles_deg"]) == report["num_matches"] > 150
    assert report["num_inliers"] > 0.9 * report["num_matches"]
    truth, _ = rotation_about_centre(SIZE, math.radians(-90))
    assert np.mean(moved(report, truth) < 1.5) > 0.9


def test_squashed_images_are_matched_in_stored_pixels(run: Run, files: Path, out: Path) -> None:
    squash = ("--num-keypoints", "300", "--max-size", "200", "--resize", "squash", "--model", "upright-sift")
    ran = run(
        files / "good.png", files / "rotated_1.png", *squash, "--json", out / "m.json", "--out", out / "matches.png"
    )
    assert ran.code == 0
    report = json.loads((out / "m.json").read_text())
    assert report["angle_deg"] == pytest.approx(90)
    truth, _ = rotation_about_centre(SIZE, math.pi / 2)
    assert report["num_inliers"] > 100
    assert np.median(moved(report, truth)) < 0.5
    with PIL.Image.open(out / "matches.png") as opened:  # in the shapes of the stored images
        assert opened.width == pytest.approx(640 / SIZE[0] * sum(SIZE), abs=60)


def test_a_square_needs_a_side(run: Run, files: Path) -> None:
    ran = run(files / "good.png", files / "good.png", "--resize", "squash", "--max-size", "none")
    check_refused(ran, "resize 'squash' needs a max_size, to which both sides are brought; the paper's is 784")
    check_refused(run(files / "good.png", files / "good.png", "--resize", "crop"), "invalid choice: 'crop'")


@pytest.mark.parametrize(("name", "kind"), [("matches.png", "PNG"), ("matches.JPG", "JPEG")])
def test_picture(run: Run, files: Path, out: Path, name: str, kind: str) -> None:
    ran = run(files / "good.png", files / "rotated_1.png", *QUICK, "--out", out / name)
    assert ran.code == 0
    assert f"wrote {out / name}\n" in ran.out
    assert os.listdir(out) == [name]
    with PIL.Image.open(out / name) as opened:
        assert (opened.format, opened.mode) == (kind, "RGB")
        pixels = np.asarray(opened).astype(float)
    height, width = pixels.shape[:2]
    scale = 640 / SIZE[0]  # the rotated picture is the higher one
    assert 640 < height < 740
    assert width == pytest.approx(scale * sum(SIZE), abs=60)
    assert pixels.std() > 30
    saturation = pixels.max(axis=2) - pixels.min(axis=2)
    assert (saturation > 120).mean() > 0.01  # the lines


def test_without_output_only_prints(run: Run, files: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    ran = run(files / "good.png", files / "good.png", *QUICK)
    assert ran.code == 0
    found = r"\d+ matches, \d+ inliers, rotated by 0\.0 degrees counter-clockwise"
    assert re.fullmatch(found + r", the same thing with probability 1\.00 \(.*\)\n", ran.out)
    assert os.listdir(out) == []


def test_output_of_a_former_run_is_replaced(run: Run, files: Path, out: Path) -> None:
    for name in ("m.png", "m.json"):
        (out / name).write_bytes(b"old")
    assert run(files / "pixel.png", files / "pixel.png", "--out", out / "m.png", "--json", out / "m.json").code == 0
    with PIL.Image.open(out / "m.png") as opened:
        opened.load()
    assert json.loads((out / "m.json").read_text())["num_matches"] == 0
    assert sorted(os.listdir(out)) == ["m.json", "m.png"]


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "degrees"),
    [("dual-softmax", None), ("max-similarity", 90.0), ("subset", 90.0), ("invariant", None), ("tta", 90.0)],
)
def test_strategy(matched: Matched, files: Path, strategy: str, degrees: float | None) -> None:
    report = matched(files / "good.png", files / "rotated_1.png", "--strategy", strategy)
    assert report["strategy"] == strategy
    assert report["angle_deg"] == (None if degrees is None else pytest.approx(degrees, abs=1))
    if strategy in ("max-similarity", "subset"):
        assert len(report["angles_deg"]) == report["num_matches"]
        assert np.mean(np.isclose(report["angles_deg"], 90, atol=5)) > 0.9
    else:
        assert report["angles_deg"] is None
    if degrees is not None:
        assert report["num_inliers"] > 150


def test_order(matched: Matched, files: Path) -> None:
    """Two rotations: a half turn is found, a quarter turn cannot be."""
    options = ("--strategy", "max-similarity", "--order", "2")
    report = matched(files / "good.png", files / "rotated_2.png", *options)
    assert abs(report["angle_deg"]) == pytest.approx(180, abs=1)
    assert report["num_inliers"] > 150
    report = matched(files / "good.png", files / "rotated_1.png", *options)
    assert report["num_inliers"] < 30


def test_angles(matched: Matched, files: Path) -> None:
    """In degrees: of those given, the right one is found."""
    options = ("--strategy", "max-matches", "--angles", "0,90,190")
    report = matched(files / "good.png", files / "rotated_2.png", *options)
    assert abs(report["angle_deg"]) == pytest.approx(180, abs=1)
    assert report["num_inliers"] > 150
    report = matched(files / "good.png", files / "rotated_1.png", *options)
    assert report["angle_deg"] == pytest.approx(90, abs=1)


def test_a_published_steerer(matched: Matched, files: Path, tmp_path: Path) -> None:
    """A bare matrix, whose group its name says."""
    path = tmp_path / "mine_C4.pth"
    torch.save(Steerer.from_permutation(c4_permutation(), "C4").generator().float(), path)
    report = matched(files / "good.png", files / "rotated_1.png", "--model", "upright-sift", "--steerer", path)
    assert report["angle_deg"] == pytest.approx(90)
    assert report["num_inliers"] > 150


def test_verify_fundamental(matched: Matched) -> None:
    """A house from two places: the inliers agree with the known epipolar geometry, and are more than a plane's."""
    options = ("--max-size", "700", "--num-keypoints", "1000")
    report = matched(*HOUSE, *options, "--verify", "fundamental")
    flat = matched(*HOUSE, *options, "--verify", "homography")
    assert (report["verified_by"], flat["verified_by"]) == ("fundamental", "homography")
    assert report["keypoints0"] == flat["keypoints0"]
    assert report["homography"] == flat["homography"]
    assert report["num_inliers"] > flat["num_inliers"] + 50
    K, pose = np.loadtxt(EXAMPLES / "maupertuis_K.txt"), np.loadtxt(EXAMPLES / "maupertuis_pose.txt")
    x, y, z = pose[:, 3]
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ pose[:, :3]
    F = np.linalg.inv(K).T @ essential @ np.linalg.inv(K)
    points0, points1 = (
        np.pad(report[key], ((0, 0), (0, 1)), constant_values=1) for key in ("keypoints0", "keypoints1")
    )
    lines = points0 @ F.T
    distance = np.abs((lines * points1).sum(axis=1)) / np.linalg.norm(lines[:, :2], axis=1)
    inliers = np.array(report["inliers"])
    assert np.mean(distance[inliers] < 3) > 0.9
    assert np.median(distance[~inliers]) > 5 * np.median(distance[inliers])


def degrees_between(R0: np.ndarray, R1: np.ndarray) -> float:
    """Degrees between two rotations."""
    return math.degrees(math.acos(min(1.0, (np.trace(R0.T @ R1) - 1) / 2)))


K_FILE = EXAMPLES / "maupertuis_K.txt"


def test_pose(run: Run, out: Path) -> None:
    """The known pose of a house from two places, and of the second view on its side, with intrinsics of its own."""
    options = ("--max-size", "700", "--num-keypoints", "1000", "--json", out / "m.json")
    K, truth = np.loadtxt(K_FILE), np.loadtxt(EXAMPLES / "maupertuis_pose.txt")
    with PIL.Image.open(HOUSE[1]) as opened:
        opened.transpose(Transpose.ROTATE_90).save(out / "side.png")
        width = opened.width
    (out / "side.json").write_text(json.dumps({"fx": K[1, 1], "fy": K[0, 0], "cx": K[1, 2], "cy": width - 1 - K[0, 2]}))
    on_its_side = np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1]])  # x' = y, y' = -x
    for second, own, turn in (
        (HOUSE[1], [], np.eye(3)),
        (out / "side.png", ["--intrinsics1", out / "side.json"], on_its_side),
    ):
        ran = run(HOUSE[0], second, *options, "--intrinsics", K_FILE, *own)
        assert (ran.code, ran.err) == (0, "")
        report = json.loads((out / "m.json").read_text())
        assert report["verified_by"] == "pose"
        pose = report["pose"]
        assert set(pose) == {"R", "t", "convention", "num_inliers"}
        assert pose["num_inliers"] == report["num_inliers"] == sum(report["inliers"]) > 200
        R, t = np.array(pose["R"]), np.array(pose["t"])
        assert np.linalg.norm(t) == pytest.approx(1)
        assert degrees_between(R, turn @ truth[:, :3]) < 0.5
        true_t = turn @ truth[:, 3] / np.linalg.norm(truth[:, 3])
        assert math.degrees(math.acos(t @ true_t)) < 2
        x, y, z = -R.T @ t
        assert f"stands from it towards ({x:.2f}, {y:.2f}, {z:.2f}): right, down, ahead" in ran.out
        assert f"rotated by {degrees_between(R, np.eye(3)):.1f} degrees against A" in ran.out


def test_inliers_and_pose_are_asked_for_apart(matched: Matched, files: Path) -> None:
    """What verifies may be another model than the pose; and where nothing matches there is no pose."""
    pair, camera = (files / "good.png", files / "rotated_1.png"), ("--intrinsics", "400,400,180,140")
    report = matched(*pair, *camera, "--intrinsics1", "90,400,140,180", "--verify", "homography")  # no such camera
    assert report["verified_by"] == "homography"
    assert report["pose"]["num_inliers"] != report["num_inliers"]
    assert matched(*pair)["pose"] is None
    nothing = matched(files / "plain.png", files / "plain.png", "--intrinsics", "400,400,150,100")
    assert nothing["pose"] is None
    assert (nothing["verified_by"], nothing["num_inliers"]) == ("pose", 0)


def test_no_pose_is_said(run: Run, files: Path) -> None:
    ran = run(files / "plain.png", files / "plain.png", "--intrinsics", "400,400,150,100")
    assert (ran.code, ran.err) == (0, "")
    assert "no pose: the matches do not determine one\n" in ran.out


def test_intrinsics_of_another_size_are_doubted(run: Run, files: Path) -> None:
    """Of the picture at half its size."""
    ran = run(files / "plain.png", files / "plain.png", "--intrinsics", "400,400,150,100", "--intrinsics1", "1,1,75,50")
    assert ran.code == 0
    assert ran.err == (
        "warning: the intrinsics of B have their centre at (75, 50), far from that of its 300 x 200 pixels; they must "
        "be for the image as stored, in full size\n"
    )


def test_intrinsics_are_not_written_over(run: Run, files: Path, out: Path) -> None:
    (out / "K.json").write_text('{"K": [1, 1, 0, 0]}')
    ran = run(files / "good.png", files / "good.png", "--intrinsics", out / "K.json", "--json", out / "K.json")
    check_refused(ran, "it is an input, or another output")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--verify", "pose"], "a pose needs the intrinsics of both cameras: give --intrinsics, of A or of both"),
        (["--intrinsics1", "1,1,0,0"], "a pose needs the intrinsics of both cameras: give --intrinsics"),
        (["--intrinsics", "no.txt"], "no intrinsics: 'no.txt' is no file; give fx,fy,cx,cy in pixels, or a file with"),
        (["--intrinsics", "1,2,3"], "no intrinsics: '1,2,3' is no file"),
        (["--intrinsics", "1,2,3,four"], "no intrinsics: '1,2,3,four' is no file"),
        (["--intrinsics", "1,2,3,nan"], "1,2,3,nan holds no intrinsics; give fx,fy,cx,cy in pixels"),
        (["--intrinsics", "-1,2,3,4"], "--intrinsics -1,2,3,4 must be a finite 3 x 3 intrinsic matrix with positive"),
        (["--intrinsics", "1,1,3,4", "--intrinsics1", "1,0,3,4"], "--intrinsics1 1,0,3,4 must be a finite 3 x 3"),
        (["--intrinsics", "."], ".: Is a directory"),
    ],
)
def test_bad_intrinsics(run: Run, files: Path, options: list[str], message: str) -> None:
    joined = [f"{name}={value}" for name, value in zip(options[::2], options[1::2], strict=True)]
    check_refused(run(files / "good.png", files / "good.png", *joined), message)


def test_masks(matched: Matched, files: Path, tmp_path: Path) -> None:
    middle = SIZE[0] // 2
    left_half(SIZE).save(tmp_path / "left.png")
    left_half(SIZE).transpose(Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "right.png")
    pair = files / "good.png", files / "good.png"
    first = matched(*pair, "--mask0", tmp_path / "left.png")
    assert first["num_matches"] > 50
    assert max(x for x, _ in first["keypoints0"]) < middle
    second = matched(*pair, "--mask1", tmp_path / "right.png")
    assert min(x for x, _ in second["keypoints1"]) > middle - 1
    neither = matched(*pair, "--mask0", tmp_path / "left.png", "--mask1", tmp_path / "right.png")
    assert neither["num_inliers"] < 10


def test_exif(matched: Matched, files: Path, tmp_path: Path) -> None:
    """A stored quarter turn that the tag undoes: upright matching works once it is applied; pixels stay stored."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # a viewer rotates the stored picture clockwise
    stored = tmp_path / "stored.png"
    astronaut().transpose(Transpose.ROTATE_90).save(stored, exif=exif)
    options = ("--strategy", "dual-softmax")
    ignored = matched(files / "good.png", stored, *options)
    assert ignored["num_inliers"] < 30
    assert matched(files / "good.png", stored, *options, "--exif", "ignore")["keypoints1"] == ignored["keypoints1"]
    applied = matched(files / "good.png", stored, *options, "--exif", "apply")
    assert applied["num_inliers"] > 150
    truth, _ = rotation_about_centre(SIZE, math.pi / 2)
    assert np.mean(moved(applied, truth) < 0.5) > 0.9


def test_numbers(matched: Matched, files: Path) -> None:
    pair = files / "good.png", files / "rotated_1.png"
    assert matched(*pair, "--num-keypoints", "40")["num_matches"] <= 40
    strict = matched(*pair, "--threshold", "0.9")
    assert 0 < strict["num_matches"] < matched(*pair)["num_matches"]
    assert min(strict["scores"]) > 0.9
    shrunk = matched(*pair, "--max-size", "180")
    assert max(x for x, _ in shrunk["keypoints0"]) > 200  # pixels of the stored image all the same


# What is the truth, if an empty one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pixel.png", "plain.png"])
@pytest.mark.parametrize("verify", ["homography", "fundamental"])
def test_nothing_to_match(matched: Matched, files: Path, out: Path, name: str, verify: str) -> None:
    report = matched(files / name, files / "good.png", "--out", out / "m.png", "--verify", verify)
    assert report["num_matches"] == report["num_inliers"] == 0
    assert report["angle_deg"] is report["homography"] is None
    assert report["keypoints0"] == report["keypoints1"] == report["scores"] == report["inliers"] == []
    with PIL.Image.open(out / "m.png") as opened:
        assert opened.height > 640


def test_unknown_rotation_is_said(run: Run, files: Path) -> None:
    ran = run(files / "plain.png", files / "plain.png")
    assert ran.out.startswith("probably not the same thing (probability 0.00): no matches (compact-6, max-similarity, ")


def test_nothing_in_common(matched: Matched) -> None:
    report = matched(EXAMPLES / "coffee.jpg", EXAMPLES / "hubble.jpg")
    assert report["num_inliers"] < 10
    assert report["probability"] < 0.3


def test_what_is_said_of_nothing_in_common(run: Run) -> None:
    ran = run(EXAMPLES / "coffee.jpg", EXAMPLES / "hubble.jpg")
    assert ran.out.startswith("probably not the same thing (probability 0.00): no matches (compact-6, max-similarity, ")
    ran = run(EXAMPLES / "coffee.jpg", EXAMPLES / "hubble.jpg", "--no-consensus")
    assert ran.code == 0
    said = (
        r"probably not the same thing \(probability 0\.[0-4]\d\): \d+ matches, of which \d agree, as some do by chance"
    )
    assert re.match(said, ran.out)
    assert "rotated" not in ran.out


def test_20000_by_15000(matched: Matched, tmp_path: Path) -> None:
    """Read, matched and mapped back to its own 300 million pixels."""
    small = PIL.Image.open(EXAMPLES / "camera.jpg").crop((0, 64, 512, 448)).point(lambda v: 255 * (v > 110))
    small = small.convert("1")
    small.save(tmp_path / "small.png")
    small.resize((20000, 15000), PIL.Image.Resampling.NEAREST).save(tmp_path / "large.png", compress_level=1)
    report = matched(tmp_path / "small.png", tmp_path / "large.png")
    factor = 20000 / 512
    truth = torch.tensor([[factor, 0, (factor - 1) / 2], [0, factor, (factor - 1) / 2], [0, 0, 1]])
    assert report["num_matches"] > 100
    assert np.mean(moved(report, truth) < 1.5 * factor) > 0.8  # within 1.5 pixels of the small one


@pytest.mark.parametrize("kind", ["grey", "palette", "16-bit"])
def test_kinds_of_images(matched: Matched, files: Path, tmp_path: Path, kind: str) -> None:
    photograph = astronaut()
    if kind == "grey":
        made = photograph.convert("L")
    elif kind == "palette":
        made = photograph.quantize(64)
    else:
        made = PIL.Image.fromarray(np.asarray(photograph.convert("L")).astype(np.uint16) * 9 + 700)
    assert made.mode == {"grey": "L", "palette": "P", "16-bit": "I;16"}[kind]
    made.save(tmp_path / "made.png")
    report = matched(tmp_path / "made.png", files / "rotated_1.png")
    assert report["angle_deg"] == pytest.approx(90, abs=1)
    assert report["num_inliers"] > 100


def test_no_keypoints_where_transparent(matched: Matched, files: Path, tmp_path: Path) -> None:
    cut = astronaut().convert("RGBA")
    cut.putalpha(left_half(SIZE))
    cut.save(tmp_path / "cut.png")
    report = matched(tmp_path / "cut.png", files / "good.png")
    assert report["num_inliers"] > 50
    assert max(x for x, _ in report["keypoints0"]) < SIZE[0] // 2


# What bad input gets --------------------------------------------------------------------------------------------------


def check_refused(ran: Ran, message: str) -> None:
    assert (ran.code, ran.out) == (2, "")
    assert re.fullmatch(r"steerers( match)?: [^\n]+\n", ran.err), ran.err
    assert message in ran.err


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.jpg", "no such image: {}"),
        ("empty.jpg", "cannot read image {}: the file is empty"),
        ("truncated.jpg", "cannot read image {}: image file is truncated"),
        ("text.jpg", "cannot read image {}: it is not an image"),
        ("folder", "cannot read image {}: it is a directory"),
    ],
)
def test_bad_images(run: Run, files: Path, out: Path, name: str, message: str, place: int) -> None:
    images = [files / "good.png", files / "good.png"]
    images[place] = files / name
    ran = run(*images, *QUICK, "--out", out / "m.png", "--json", out / "m.json")
    check_refused(ran, message.format(files / name))
    assert os.listdir(out) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "no-such"], "unknown model 'no-such'"),
        (["--strategy", "no-such"], "unknown strategy 'no-such'; use one of dual-softmax, max-matches"),
        (["--strategy", "procrustes"], "procrustes needs every frequency to be 1"),
        (["--strategy", "max-matches", "--model", "sift"], "needs a steerer, and this model has none"),
        (["--device", "no-such"], "unknown device 'no-such'; use cpu"),
        (["--device", "cuda:99"], "device 'cuda:99' is not available"),
        (["--model", "upright-sift", "--order", "8"], "order 8 needs rotations that a C4 steerer does not have; use 4"),
        (
            ["--model", "upright-sift", "--order", "continuous", "--strategy", "max-similarity"],
            "the rotations of C4 only",
        ),
        (["--model", "upright-sift", "--angles", "0,45"], "C4 rotates by multiples of 90 degrees only, got 45 degrees"),
        (["--angles", "0,90,0"], "angles holds 0 degrees twice"),
        (["--angles", "0,up"], "argument --angles: 'up' is not an angle in degrees"),
        (["--angles", ""], "argument --angles: '' is not an angle in degrees"),
        (["--angles", "nan"], "argument --angles: 'nan' is not an angle in degrees"),
        (["--angles", "0,90", "--order", "8"], "argument --order: not allowed with argument --angles"),
        (["--order", "many"], "argument --order: 'many' is neither a whole number of at least 2 nor 'continuous'"),
        (["--order", "-4"], "argument --order: '-4' is neither"),
        (["--order", "1"], "argument --order: '1' is neither"),
        (["--exif", "maybe"], "argument --exif: invalid choice: 'maybe'"),
        (["--verify", "maybe"], "argument --verify: invalid choice: 'maybe'"),
        (["--num-keypoints", "-5"], "argument --num-keypoints: '-5' is not a whole number of at least 1"),
        (["--num-keypoints", "2.5"], "argument --num-keypoints: '2.5' is not a whole number of at least 1"),
        (["--max-size", "-1"], "argument --max-size: '-1' is not a whole number of at least 1"),
        (["--max-size", "0"], "argument --max-size: '0' is not a whole number of at least 1"),
        (["--threshold", "-0.1"], "threshold must be in [0, 1), got -0.1"),
        (["--threshold", "nan"], "threshold must be in [0, 1), got nan"),
        (["--threshold", "low"], "argument --threshold: invalid float value: 'low'"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["third.jpg"], "unrecognized arguments: third.jpg"),
    ],
)
def test_bad_options(run: Run, files: Path, out: Path, options: list[str], message: str) -> None:
    outputs = "--out", out / "m.png", "--json", out / "m.json"
    ran = run(files / "good.png", files / "pixel.png", *outputs, *options)
    check_refused(ran, message)
    assert os.listdir(out) == []


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small_mask.png", f"small_mask.png is 20 x 10 pixels but the image is stored with {SIZE[0]} x {SIZE[1]}"),
        ("missing.png", "no such image: "),
        ("text.jpg", "it is not an image"),
    ],
)
def test_bad_masks(run: Run, files: Path, out: Path, name: str, message: str, place: int) -> None:
    ran = run(files / "good.png", files / "good.png", f"--mask{place}", files / name, "--json", out / "m.json")
    check_refused(ran, message)
    assert os.listdir(out) == []


@pytest.mark.parametrize("option", ["--out", "--json"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such/m.png", "there is no folder"),
        ("folder.png", "it is a folder"),
        ("text.jpg/m.png", "there is no folder"),
    ],
)
def test_bad_output(run: Run, files: Path, option: str, name: str, message: str) -> None:
    before = sorted(files.rglob("*"))
    path = files / name
    check_refused(run(files / "good.png", files / "good.png", option, path), f"cannot write {path}: {message}")
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize("name", ["m.xyz", "m", "m.png.json", ".png"])
def test_unknown_kinds_of_pictures(run: Run, files: Path, out: Path, name: str) -> None:
    ran = run(files / "good.png", files / "good.png", "--out", out / name)
    check_refused(ran, f"cannot write {out / name}: ")
    assert ran.err.endswith("is no picture; use .png or .jpg\n")
    assert os.listdir(out) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_folder_that_takes_no_files(run: Run, files: Path) -> None:
    check_refused(run(files / "good.png", files / "good.png", "--json", "/proc/m.json"), "cannot write /proc/m.json: ")


def test_nan_descriptions(run: Run, files: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        UprightSift, "describe_one", lambda self, image, keypoints: torch.full((len(keypoints), 128), math.nan)
    )
    model = ("--model", "upright-sift")
    ran = run(files / "good.png", files / "good.png", *QUICK, *model, "--out", out / "m.png", "--json", out / "m.json")
    check_refused(ran, "descriptions of model 'upright-sift' are not finite (NaN or infinite)")
    assert os.listdir(out) == []


@pytest.mark.parametrize("model", ["upright-sift", "sift", "orb"])
def test_model_with_more_keypoints_than_there_can_be(matched: Matched, files: Path, model: str) -> None:
    """It is a limit, not a demand: what there is comes back."""
    report = matched(files / "good.png", files / "rotated_1.png", "--model", model, "--num-keypoints", str(2**31 - 1))
    assert report["model"] == model
    assert report["num_inliers"] > 100
    if model != "upright-sift":
        assert (report["strategy"], report["angle_deg"]) == ("dual-softmax", None)


# Whole files or none --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.png", "m.json"])
def test_full_disk_leaves_the_old_file(
    run: Run, files: Path, out: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The device fills up halfway through the file."""

    def half(self: Any, path: Any, *_: Any, **__: Any) -> None:
        target = self if isinstance(self, Path) else Path(path)
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(PIL.Image.Image, "save", half)
    monkeypatch.setattr(Path, "write_text", half)
    (out / name).write_bytes(b"precious")
    option = "--out" if name.endswith("png") else "--json"
    check_refused(run(files / "pixel.png", files / "pixel.png", option, out / name), "No space left on device")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {name: b"precious"}


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are not text exist on Linux alone")
def test_names_that_are_not_text(run: Run, files: Path, out: Path) -> None:
    """A name in another encoding, and an output that takes UTF-8 alone: the file is written, so the run succeeded."""
    path = Path(os.fsdecode(os.fsencode(out) + b"/\xff.json"))
    ran = run(files / "pixel.png", files / "pixel.png", "--json", path)
    assert path.is_file()
    assert (ran.code, ran.err) == (0, "")


# In a process of its own ----------------------------------------------------------------------------------------------


def test_process_works(files: Path, out: Path) -> None:
    arguments = [files / "good.png", files / "rotated_1.png", *QUICK, "--out", out / "m.jpg", "--json", out / "m.json"]
    command = [sys.executable, "-m", "steerers", "match", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"rotated by (89\.\d|90\.\d) degrees", done.stdout)
    assert sorted(os.listdir(out)) == ["m.jpg", "m.json"]


# Standard input and output --------------------------------------------------------------------------------------------


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("place", [0, 1])
def test_an_image_from_standard_input(
    matched: Matched, files: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    pair = [files / "good.png", files / "rotated_1.png"]
    expected = matched(*pair, "--model", "upright-sift")
    give(monkeypatch, pair[place].read_bytes())
    pair[place] = Path("-")
    found = matched(*pair, "--model", "upright-sift")
    assert found["keypoints0"] == expected["keypoints0"]
    assert found[f"image{place}"] == "-"


def test_a_mask_from_standard_input(matched: Matched, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = io.BytesIO()
    PIL.Image.fromarray(np.indices(SIZE[::-1])[1] < 100).save(mask, "png")
    give(monkeypatch, mask.getvalue())
    found = matched(files / "good.png", files / "rotated_1.png", "--model", "upright-sift", "--mask0", "-")
    assert np.array(found["keypoints0"])[:, 0].max() < 100


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["-", "-"], b"", "standard input (-) can be read once: give it for one of the images and masks"),
        (["-", "GOOD", "--mask0", "-"], b"", "standard input (-) can be read once"),
        (["-", "GOOD"], b"", "cannot read image (bytes): the file is empty"),
        (["-", "GOOD"], b"nothing", "cannot read image (bytes): it is not an image"),
        (["GOOD", "GOOD", "--json", "-", "--out", "-"], b"", "cannot write -: it is an input, or another output"),
    ],
)
def test_what_standard_streams_cannot_be(
    files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], content: bytes, message: str
) -> None:
    give(monkeypatch, content)
    assert_refused(["match", *(word.replace("GOOD", str(files / "good.png")) for word in arguments)], message)


def test_a_picture_and_json_on_standard_output(files: Path, tmp_path: Path) -> None:
    """As bytes, with nothing else among them, and nothing written to a file that is called -."""
    words = [sys.executable, "-m", "steerers", "match", "-", files / "rotated_1.png", "--model", "orb", "--out", "-"]
    content = (files / "good.png").read_bytes()
    done = subprocess.run(words, input=content, capture_output=True, check=True, cwd=tmp_path)
    assert PIL.Image.open(io.BytesIO(done.stdout)).format == "PNG"
    assert re.fullmatch(rb"\d+ matches, .*\s", done.stderr)
    assert list(tmp_path.iterdir()) == []

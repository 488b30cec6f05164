"""``steerers figure``: every figure on small pictures, the numbers it prints, and what bad input gets."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from helpers import EXAMPLES, assert_refused, run_command
from steerers.geometry import rotation_about_centre, transform_points
from steerers.models.classical import c4_permutation
from steerers.steering.steerer import Steerer
from terrain import make_terrain, save, view_of

pytestmark = pytest.mark.usefixtures("one_thread", "elsewhere")
QUICK = ("--num-keypoints", "200", "--max-size", "400")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph, the same after a quarter turn, and what cannot be used."""
    folder = tmp_path_factory.mktemp("input")
    photograph = PIL.Image.open(EXAMPLES / "astronaut.jpg").crop((60, 0, 420, 280)).resize((240, 187))
    photograph.save(folder / "good.png")
    photograph.transpose(PIL.Image.Transpose.ROTATE_90).save(folder / "rotated.png")
    PIL.Image.new("RGB", (80, 60), (90, 120, 30)).save(folder / "plain.png")
    (folder / "text.jpg").write_text("this is no picture\n")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "figure.png"


def drawn(out: Path) -> tuple[int, int]:
    """The size of the picture, which is not empty."""
    with PIL.Image.open(out) as picture:
        assert picture.mode == "RGB"
        assert np.asarray(picture).std() > 10
        return picture.size


def counts(line: str) -> tuple[int, ...]:
    """Of matches and inliers."""
    return tuple(map(int, re.findall(r"(\d+) (?:matches|inliers)", line)))


# Figures --------------------------------------------------------------------------------------------------------------


def test_matches(files: Path, out: Path) -> None:
    pair = files / "good.png", files / "rotated.png"
    ran = run_command("figure", "matches", *pair, *reversed(pair), "--model", "upright-sift", *QUICK, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    first, second, wrote = ran.out.splitlines()
    for line, images in ((first, pair), (second, pair[::-1])):
        assert line.startswith(f"{images[0]} {images[1]}: ")
        matches, inliers = counts(line)
        assert matches >= inliers > 100
    assert wrote == f"wrote {out}"
    width, height = drawn(out)
    assert height > width  # two pairs, below each other


def test_similarity(files: Path, out: Path) -> None:
    """The most similar place after a quarter turn is the true one."""
    options = ("--at", "120,90", "--diameter", "8", "--model", "upright-sift", "--step", "2")
    ran = run_command("figure", "similarity", files / "good.png", files / "rotated.png", *options, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    head, *rows, wrote = (line.split() for line in ran.out.splitlines())
    assert head == ["rotation", "similarity", "x", "y"]
    assert [row[0] for row in rows] == ["0°", "90°", "180°", "270°"]
    assert max(rows, key=lambda row: float(row[1]))[0] == "90°"
    truth = transform_points(rotation_about_centre((240, 187), math.pi / 2)[0], torch.tensor([120.0, 90.0]))
    assert [float(cell) for cell in rows[1][2:]] == pytest.approx(truth.tolist(), abs=2)
    assert wrote == ["wrote", str(out)]
    assert drawn(out)[0] > 1000


def test_similarity_in_stored_pixels(files: Path, out: Path) -> None:
    """Shrunk images change neither where a keypoint is asked for nor where it is found."""
    options = ("--at", "120,90", "--diameter", "6", "--model", "upright-sift", "--step", "1", "--max-size", "120")
    ran = run_command("figure", "similarity", files / "good.png", files / "good.png", *options, "--out", out)
    upright = ran.out.splitlines()[1].split()
    assert float(upright[1]) > 0.98
    assert [float(cell) for cell in upright[2:]] == pytest.approx([120, 90], abs=2)


def test_similarity_of_the_best_keypoint(files: Path, out: Path) -> None:
    options = ("--model", "compact-single", "--order", "4", "--step", "6")
    ran = run_command("figure", "similarity", files / "good.png", files / "rotated.png", *options, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()[1:-1]]
    assert max(rows, key=lambda row: float(row[1]))[0] == "90°"


@pytest.mark.parametrize(
    ("options", "least"), [(("--rotate", "30"), 0.6), (("--model", "upright-sift", "--rotate", "180"), 0.999)]
)
def test_overview(files: Path, out: Path, options: tuple[str, ...], least: float) -> None:
    ran = run_command("figure", "overview", files / "good.png", *options, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    steered, unsteered = map(float, re.findall(r"(?:steered|as it is) (-?[\d.]+)", ran.out))
    assert steered >= least
    assert unsteered < steered - 0.2
    drawn(out)


def test_upright_sift(files: Path, out: Path) -> None:
    ran = run_command("figure", "upright-sift", files / "good.png", "--at", "120,90", "--diameter", "8", "--out", out)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == ["largest difference between permuted and rotated bins: 0", f"wrote {out}"]
    drawn(out)
    best = run_command("figure", "upright-sift", files / "good.png", "--out", out)
    assert best.out.startswith("largest difference between permuted and rotated bins: 0\n")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--rotate", "90"),
        ("--rotate", "270", "--max-size", "150"),
        ("--rotate", "90", "--resize", "squash", "--max-size", "180"),
        ("--steerer", "learned.safetensors"),
    ],
)
def test_half_turn(files: Path, out: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steered, the rotated image matches as the upright one would; as it is, hardly. A learned steerer is a matrix."""
    monkeypatch.chdir(out.parent)
    matrix = Steerer.from_permutation(c4_permutation(), "C4").generator().float()
    Steerer.from_matrix(matrix, "C4").save("learned.safetensors", {"model": "upright-sift"})
    pair = files / "good.png", files / "good.png"
    ran = run_command("figure", "half-turn", *pair, "--model", "upright-sift", *QUICK, *options, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    above, below, _ = ran.out.splitlines()
    assert above.startswith("descriptions as they are: ")
    degrees = next((option for option in options if option in ("90", "270")), "180")
    assert below.startswith(f"those of the second image steered by {360 - int(degrees)}°: ")  # what training knows
    assert counts(below)[0] > 1.5 * counts(above)[0]
    assert counts(below)[1] > 5 * counts(above)[1]
    drawn(out)


def test_half_turn_of_two_photographs(out: Path) -> None:
    house = EXAMPLES / "maupertuis_0.jpg", EXAMPLES / "maupertuis_1.jpg"
    ran = run_command("figure", "half-turn", *house, "--num-keypoints", "500", "--max-size", "320", "--out", out)
    above, below, _ = ran.out.splitlines()
    assert counts(below)[0] > 1.5 * counts(above)[0]
    assert counts(below)[1] > 3 * counts(above)[1]


# AIMS -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs and their maps, the first ones less alike."""
    folder = tmp_path_factory.mktemp("aims")
    lines = ["query,candidate,positive,split"]
    for place, (degrees, zoom) in enumerate(((20.0, 0.8), (200.0, 0.9), (100.0, 1.0))):
        terrain = make_terrain(240, seed=30 + place)
        save(view_of(terrain, (120, 120), degrees, (180, 120))[0], folder / f"p{place}.png")
        save(view_of(terrain, (120, 118), 0.0, (170, 170), zoom)[0], folder / f"t{place}.png")
        lines += [f"p{place}.png,t{k}.png,{int(k == place)},others" for k in range(3)]
    (folder / "manifest.csv").write_text("\n".join(lines))
    return folder


AIMS = ("--num-keypoints", "300", "--short-side", "120", "--model", "sift")


def test_aims(aims: Path, out: Path) -> None:
    shared = ("figure", "aims", "--data", aims, *AIMS, "--most", "300", "--out", out)
    every = run_command(*shared)
    assert every.code == 0
    *told, wrote = every.out.splitlines()
    inliers = [counts(line)[1] for line in told]
    assert len(told) == 3
    assert inliers == sorted(inliers, reverse=True)
    assert {line.split(":")[0] for line in told} == {f"p{k}.png t{k}.png" for k in range(3)}
    assert wrote == f"wrote {out}"
    _, height = drawn(out)
    again = run_command(*shared, "--count", "2")
    assert again.out.splitlines()[:2] == [told[0], told[2]]  # spread from the most to the least
    assert "matched before" in again.err
    assert drawn(out)[1] == pytest.approx(height * 2 / 3, abs=2)
    some = run_command(*shared, "--most", str(inliers[1]), "--count", "1", "--pick", "most")
    assert some.out.splitlines()[0] == told[1]


def test_aims_takes_what_the_benchmark_kept(aims: Path, out: Path, tmp_path: Path) -> None:
    cache = ("--cache", tmp_path / "cache")
    models = ("--models" if option == "--model" else option for option in AIMS)
    assert run_command("eval", "aims", "--data", aims, *models, *cache, "--no-report").code == 0
    kept = sorted(path.name for path in (tmp_path / "cache").iterdir())
    figure = ("figure", "aims", "--data", aims, *AIMS, "--most", "300", "--count", "1", "--out", out)
    ran = run_command(*figure, *cache)
    assert f"matched before, taken from {tmp_path / 'cache'}: sift" in ran.err
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == kept
    anew = run_command(*figure, "--no-cache")
    assert (anew.out, anew.err) == (ran.out, "")


def test_aims_without_such_pairs(aims: Path, out: Path) -> None:
    arguments = ["figure", "aims", "--data", aims, *AIMS, "--no-cache", "--out", out]
    message = r"none of the 3 true pairs has 900 to 1000 inliers: they have"
    assert_refused([*arguments, "--least", "900", "--most", "1000"], message)
    assert_refused([*arguments, "--least", "30", "--most", "20"], "--least 30 is more than --most 20")


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["matches", "good.png"], "images go in pairs, A B C D ..., got 1"),
        (["matches", "good.png", "rotated.png", "good.png"], "images go in pairs, A B C D ..., got 3"),
        (["matches", "good.png", "missing.png"], "no such image: "),
        (["matches"], "the following arguments are required: A B"),
        (["similarity", "good.png", "text.jpg"], "cannot read image "),
        (["similarity", "good.png", "good.png", "--model", "sift"], "model 'sift' has no steerer, and this figure"),
        (["similarity", "good.png", "good.png", "--at", "400,20"], "--at 400,20 lies outside of "),
        (["similarity", "good.png", "good.png", "--at", "-1,20"], "expected one argument"),
        (["similarity", "good.png", "good.png", "--at=-1,20"], "--at -1,20 lies outside of "),
        (["similarity", "good.png", "good.png", "--at", "20"], "'20' is not a pixel such as 320,240"),
        (["similarity", "good.png", "good.png", "--at", "nan,20"], "'nan,20' is not a pixel such as 320,240"),
        (["similarity", "good.png", "good.png", "--at", "1,2,3"], "'1,2,3' is not a pixel such as 320,240"),
        (["similarity", "good.png", "good.png", "--step", "0"], "'0' is not a whole number of at least 1"),
        (["similarity", "good.png", "good.png", "--model", "upright-sift", "--order", "8"], "C8 is not a subgroup"),
        (["similarity", "good.png", "good.png", "--order", "1"], "a cyclic group must be at least 2, got 1"),
        (["similarity", "plain.png", "good.png"], "no keypoint is found in "),
        (["similarity", "plain.png", "good.png", "--model", "upright-sift", "--at", "40,30"], "flat around (40, 30)"),
        (["overview", "good.png", "--model", "orb"], "model 'orb' has no steerer"),
        (["overview", "good.png", "--model", "upright-sift", "--rotate", "45"], "C4 rotates by multiples of 90"),
        (["overview", "good.png", "--diameter", "0"], "'0' is not a number above 0"),
        (["overview", "plain.png", "--model", "upright-sift", "--at", "40,30"], "flat around (40, 30)"),
        (["upright-sift", "plain.png"], "no keypoint is found in "),
        (["upright-sift", "plain.png", "--at", "40,30"], "flat around (40, 30)"),
        (["upright-sift", "good.png", "--model", "compact"], "unrecognized arguments: --model compact"),
        (["half-turn", "good.png", "good.png", "--model", "sift"], "model 'sift' has no steerer"),
        (["half-turn", "good.png", "good.png", "--rotate", "45"], "invalid choice: '45'"),
        (["half-turn", "good.png", "good.png", "--strategy", "subset"], "unrecognized arguments: --strategy subset"),
        (["aims", "--data", "nowhere"], "there is no manifest nowhere/manifest.csv"),
        (["aims", "--data", "nowhere", "--pick", "best"], "invalid choice: 'best'"),
        (["no-such"], "invalid choice: 'no-such'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(files: Path, out: Path, arguments: list[str], message: str) -> None:
    given = [str(files / word) if word.endswith((".png", ".jpg")) else word for word in arguments]
    assert_refused(["figure", *given, *(["--out", out] if arguments != ["no-such"] else [])], message)
    assert not out.exists()


@pytest.mark.parametrize("name", ["matches", "similarity", "half-turn", "overview", "upright-sift"])
def test_outputs_are_checked_first(files: Path, tmp_path: Path, name: str) -> None:
    images = [files / "good.png", files / "rotated.png"][: 1 if name in ("overview", "upright-sift") else 2]
    assert_refused(["figure", name, *images], "the following arguments are required: --out")
    for path, message in (
        (tmp_path / "missing" / "x.png", "there is no folder"),
        (tmp_path / "x.txt", "'.txt' is no picture"),
        (files / "good.png", "it is an input, or another output"),
    ):
        assert_refused(["figure", name, *images, "--out", path], message)

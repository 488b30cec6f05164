"""AIMS: curves against their definition, scores against known inliers, and a generated set of map crops."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from torch import Tensor

from benchmarks.dots import table_rows
from steerers.benchmarks import aims
from steerers.benchmarks.aims import AIMS, AimsOutcome, AimsPair, measure_pair, paper_estimator, read_manifest
from steerers.benchmarks.benchmark import Evaluation
from steerers.benchmarks.metrics import PrecisionRecall, apply
from steerers.benchmarks.predict import ViewSettings, hash_pairs
from steerers.benchmarks.runs import Run, load_runs
from steerers.features import Keypoints
from steerers.models.base import SingleExtractor
from terrain import make_prediction, make_terrain, save, view_of

HEADER = "query,candidate,positive,split"

pytestmark = pytest.mark.usefixtures("one_thread")


# Scores ---------------------------------------------------------------------------------------------------------------


def matched(good: int, moved: int, by: float, bad: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points under a homography: exact ones, ones off by so many pixels in any direction, and wrong ones."""
    generator = np.random.default_rng(seed)
    points0 = generator.uniform(0, 560, (good + moved + bad, 2))
    H = np.array([[0.8, 0.5, 30], [-0.5, 0.8, 300], [1e-5, 2e-5, 1]])
    points1 = apply(H, points0)
    direction = generator.uniform(0, 2 * math.pi, moved)
    points1[good : good + moved] += by * np.stack([np.cos(direction), np.sin(direction)], axis=1)
    points1[good + moved :] = generator.uniform(0, 560, (bad, 2))
    return points0, points1


def a_pair(**options: object) -> AimsPair:
    return AimsPair("q t", "q", Path("q"), Path("t"), positive=True, split="others", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("by", "expected"), [(0.0, 140), (4.7, 140), (5.5, 120)])
def test_the_score_is_the_number_of_inliers(by: float, expected: int) -> None:
    prediction = make_prediction(*matched(120, 20, by, 0), size=(864, 576))
    outcome = measure_pair(a_pair(), prediction, paper_estimator())
    assert (outcome.num_inliers, outcome.failed) == (expected, False)


def test_the_estimator_is_opencvs_own() -> None:
    for seed in range(4):
        points0, points1 = matched(40, 40, 3.0, 200, seed)
        prediction = make_prediction(points0, points1, size=(576, 576))
        outcome = measure_pair(a_pair(), prediction, paper_estimator())
        matches = prediction.matches
        _, inliers = cv2.findHomography(
            matches.keypoints0, matches.keypoints1, cv2.USAC_MAGSAC, 5.0, None, 10_000, 0.999
        )
        assert outcome.num_inliers == int(inliers.sum())


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_matches_fail_with_score_0(count: int) -> None:
    points = np.random.default_rng(0).uniform(0, 500, (count, 2))
    outcome = measure_pair(a_pair(), make_prediction(points, points), paper_estimator())
    assert (outcome.num_inliers, outcome.failed) == (0, True)


def outcome_of(positive: bool, split: str, num_inliers: int, failed: bool = False) -> AimsOutcome:
    pair = replace(a_pair(), positive=positive, split=split)  # type: ignore[arg-type]
    found = measure_pair(pair, make_prediction(np.zeros((0, 2)), np.zeros((0, 2))), paper_estimator())
    return replace(found, num_inliers=num_inliers, failed=failed)


def test_a_row_by_hand() -> None:
    found = [
        outcome_of(True, "north-up", 50),
        outcome_of(False, "north-up", 0, failed=True),
        outcome_of(True, "others", 10),
        outcome_of(False, "others", 10),
        outcome_of(False, "others", 20),
        outcome_of(True, "others", 0, failed=True),
    ]
    row = aims.summarise(found)
    assert row["ap"]["north-up"] == 1.0
    assert row["ap"]["all-others"] == pytest.approx(1 / 2 * 1 / 3 + 1 / 2 * 2 / 4)
    assert row["ap"]["all"] == pytest.approx(1 / 3 * 1 + 1 / 3 * 2 / 4 + 1 / 3 * 3 / 6)
    assert (row["num_failed"], row["num_positive"]) == (2, 3)
    assert row["num_inliers_positive"] == pytest.approx(20)
    assert row["num_inliers_negative"] == pytest.approx(10)


def test_a_split_without_positive_pairs_has_no_precision() -> None:
    row = aims.summarise([outcome_of(True, "others", 9), outcome_of(False, "north-up", 3)])
    assert row["ap"] == {"north-up": None, "all-others": 1.0, "all": 1.0}


# A generated set ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs, each with the map of its place and two others; shapes and resolutions differ."""
    folder = tmp_path_factory.mktemp("aims")
    lines = [HEADER]
    for place, (degrees, split) in enumerate([(10.0, "north-up"), (140.0, "others"), (250.0, "others")]):
        terrain = make_terrain(300, seed=place)
        save(view_of(terrain, (150, 150), degrees, (240, 160))[0], folder / f"photos/p{place}.png")
        save(view_of(terrain, (148, 152), 0, (260, 260), zoom=1.3)[0], folder / f"tiles/t{place}.jpg", quality=95)
        lines += [f"photos/p{place}.png,tiles/t{k}.jpg,{int(k == place)},{split}" for k in range(3)]
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def sift() -> Run:
    return load_runs(["sift"], num_keypoints=400)[0]


def test_a_good_matcher_scores_100(data: Path, sift: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = read_manifest(data / "manifest.csv")
    evaluation = AIMS.run([sift], pairs, views=ViewSettings(short_side=160), cache=tmp_path)
    (row,) = table_rows(AIMS, evaluation)
    assert row["ap"] == {"north-up": 1.0, "all-others": 1.0, "all": 1.0}
    assert row["num_inliers_positive"] > 60
    assert row["num_inliers_negative"] < 12
    for outcome in evaluation.rows[0].outcomes:
        assert outcome.positive == (outcome.num_inliers > 30)
    for prediction in evaluation.rows[0].predictions.pairs:  # from 240 x 160 and 260 x 260
        assert (prediction.size0, prediction.size1) == ((240, 160), (160, 160))

    monkeypatch.setattr(type(sift.pipeline.model.extractor), "extract", lambda *_, **__: pytest.fail("matched again"))
    strict = AIMS.run([sift], pairs, views=ViewSettings(short_side=160), options=paper_estimator(0.3), cache=tmp_path)
    assert table_rows(AIMS, strict)[0]["num_inliers_positive"] < row["num_inliers_positive"]
    with pytest.raises(pytest.fail.Exception):  # another size is another prediction
        AIMS.run([sift], pairs, views=ViewSettings(short_side=159), cache=tmp_path)


class Blind(SingleExtractor):
    """Finds nothing."""

    dim = 128

    def detect_one(self, image: Tensor, num_keypoints: int, mask: Tensor | None) -> Keypoints:
        return Keypoints(image.new_zeros(0, 2), image.new_zeros(0))

    def describe_one(self, image: Tensor, keypoints: Keypoints) -> Tensor:
        return image.new_zeros(0, self.dim)


def test_a_blind_matcher_fails_everywhere_and_has_the_fraction_of_positives(data: Path, sift: Run) -> None:
    model = replace(sift.pipeline.model, extractor=Blind())
    run = Run("blind", replace(sift.pipeline, model=model))
    evaluation = AIMS.run([run], read_manifest(data / "manifest.csv"), views=ViewSettings(short_side=160))
    (row,) = table_rows(AIMS, evaluation)
    assert row["ap"] == pytest.approx({"north-up": 1 / 3, "all-others": 1 / 3, "all": 1 / 3})
    assert (row["num_failed"], row["num_pairs"]) == (9, 9)


@pytest.fixture(scope="module")
def evaluation(data: Path, sift: Run) -> Evaluation[AimsPair, AimsOutcome]:
    return AIMS.run([sift], read_manifest(data / "manifest.csv"), views=ViewSettings(short_side=100))


def test_the_report_shows_the_papers_rows_below(evaluation: Evaluation[AimsPair, AimsOutcome]) -> None:
    report = AIMS.make_report([evaluation], {"device": "CPU"}, views=ViewSettings(short_side=100), paper=True)
    (table,) = report.tables
    ours, *papers = table.rows
    assert ours["label"] == "sift"
    assert len(papers) == 4
    assert papers[-1]["ap"] == {"north-up": 0.64, "all-others": 0.59, "all": 0.60}
    assert "| 100.0 | 100.0 | 100.0 |" in table.to_markdown()
    assert "| 64.0 | 59.0 | 60.0 | - |" in table.to_markdown()
    assert table.facts["num_positive"] == 3
    assert "shortest side 100 px" in report.description
    assert "average precision of about 33.3 %" in report.description
    assert list(report.plots) == [f"precision-recall-{group}.png" for group in ("north-up", "all-others", "all")]
    hidden = AIMS.make_report([evaluation], {})
    assert [row["label"] for row in hidden.tables[0].rows] == ["sift"]


def test_the_plotted_steps_have_the_area_of_the_precision(
    evaluation: Evaluation[AimsPair, AimsOutcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steerers.viz import plots

    curve = PrecisionRecall(np.array([3.0, 1.0]), np.array([0.9, 0.4]), np.array([0.5, 1.0]))
    drawn: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def record(path: Path, series: dict[str, tuple[np.ndarray, np.ndarray]], *, step: str, **_: object) -> None:
        assert step == "pre"
        drawn.update(series)

    monkeypatch.setattr(plots, "curves", record)
    monkeypatch.setattr(aims, "curves_of", lambda _: dict.fromkeys(aims.GROUPS, curve))
    AIMS.make_report([evaluation], {}).plots["precision-recall-all.png"](tmp_path / "a.png")
    ((label, (x, y)),) = drawn.items()
    assert label == "sift, 65.0"
    assert np.sum(np.diff(x) * y[1:]) / 1e4 == pytest.approx(curve.average_precision)


# Manifests ------------------------------------------------------------------------------------------------------------


def write(folder: Path, *lines: str, header: str = HEADER, **options: str) -> Path:
    for name in ("a.jpg", "b.jpg", "t1.jpg", "t2.jpg"):
        (folder / "images").mkdir(exist_ok=True)
        (folder / "images" / name).write_bytes(b"")
    path = folder / "manifest.csv"
    path.write_text("\n".join([header, *lines]) + "\n", **options)  # type: ignore[arg-type]
    return path


def test_pairs_of_a_photograph_stand_together(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "images/a.jpg,images/t1.jpg,1,north-up",
        "images/b.jpg,images/t1.jpg,0,others",
        "",
        "images/a.jpg, images/t2.jpg ,0,north-up",
    )
    pairs = read_manifest(path)
    assert [(p.image0.name, p.image1.name, p.positive, p.split) for p in pairs] == [
        ("a.jpg", "t1.jpg", True, "north-up"),
        ("a.jpg", "t2.jpg", False, "north-up"),
        ("b.jpg", "t1.jpg", False, "others"),
    ]
    assert pairs[0].image0 == tmp_path / "images/a.jpg"
    assert str(tmp_path) not in str([pair.key() for pair in pairs])


def test_the_hash_knows_the_truth(tmp_path: Path) -> None:
    lines = ("images/a.jpg,images/t1.jpg,1,others", "images/a.jpg,images/t2.jpg,0,others")
    first = hash_pairs(read_manifest(write(tmp_path, *lines)))
    assert first != hash_pairs(read_manifest(write(tmp_path, lines[0], lines[1].replace(",0,", ",1,"))))
    assert first != hash_pairs(read_manifest(write(tmp_path, *(line.replace("others", "north-up") for line in lines))))
    again = write(tmp_path, *lines, encoding="utf-8-sig")
    assert first == hash_pairs(read_manifest(again))


def test_columns_may_come_in_any_order_and_with_others(tmp_path: Path) -> None:
    path = write(tmp_path, "x,1,others,images/t1.jpg,images/a.jpg", header="note,positive,split,candidate, query")
    (pair,) = read_manifest(path)
    assert (pair.image0.name, pair.image1.name, pair.positive) == ("a.jpg", "t1.jpg", True)


GOOD = "images/a.jpg,images/t1.jpg,1,others"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images/a.jpg,images/t2.jpg,yes,others", "line 3: positive must be 0 or 1, got 'yes'"),
        ("images/a.jpg,images/t2.jpg,1,south-up", "line 3: split must be north-up or others, got 'south-up'"),
        ("images/c.jpg,images/t2.jpg,1,others", "line 3: there is no query .*c.jpg"),
        ("images/a.jpg,images/t3.jpg,1,others", "line 3: there is no candidate .*t3.jpg"),
        ("images/a.jpg,,1,others", "line 3: candidate is empty"),
        ("images/a.jpg,images/t2.jpg,1", "line 3: 3 fields, but the header has 4"),
        ("images/a.jpg,images/t2.jpg,1,others,x", "line 3: 5 fields, but the header has 4"),
        (GOOD, "line 3: the same query and candidate as in line 2"),
        ("images/a.jpg,images/t2.jpg,1,north-up", "line 3: images/a.jpg is north-up here but others in line 2"),
        ('images/a.jpg,"images/t2.jpg,1,others', "not a CSV file"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_manifest(write(tmp_path, GOOD, line))


def test_errors_of_the_whole(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no manifest .*manifest.csv; get the Astronaut Image"):
        read_manifest(tmp_path / "manifest.csv")
    with pytest.raises(ValueError, match="line 1: the header lacks positive, split"):
        read_manifest(write(tmp_path, header="query,candidate"))
    with pytest.raises(ValueError, match="lists 1 pairs and no positive one"):
        read_manifest(write(tmp_path, GOOD.replace(",1,", ",0,")))
    with pytest.raises(ValueError, match="lists 0 pairs"):
        read_manifest(write(tmp_path))
    latin = write(tmp_path, GOOD)
    latin.write_bytes(b"query,candidate,positive,split\n\xe9.jpg,t,1,others\n")
    with pytest.raises(ValueError, match="not a CSV file in UTF-8"):
        read_manifest(latin)

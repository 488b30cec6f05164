"""SatAst: annotations, errors against known homographies, and a generated pair of views of a map."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dots import table_rows
from steerers.benchmarks.metrics import apply
from steerers.benchmarks.predict import ViewSettings, hash_pairs
from steerers.benchmarks.runs import Run, load_runs
from steerers.benchmarks.satast import SAT_AST, AnnotatedPair, NormalisedEstimator, list_pairs, measure_pair, summarise
from terrain import make_prediction, make_terrain, save, view_of

SIZE0, SIZE1 = (240, 160), (200, 230)

pytestmark = pytest.mark.usefixtures("one_thread")


def write_annotation(
    folder: Path, name: str, points0: object, points1: object, *, before: object = (), **more: object
) -> Path:
    """As the annotators' tool wrote them: rounds of correspondences, and paths of Windows."""
    path = folder / "annotations-v1" / f"annotation_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "iterations_completed": 2,
        "correspondences": [
            {"iteration": 1, "pts_src": before, "pts_dst": before},
            {"iteration": 2, "pts_src": points0, "pts_dst": points1},
        ],
        "query_path": f"data\\{name}\\@1.0@-2.5@{name}@.png",
        "pred_path": f"data\\{name}\\pred_0__rot90__@.png",
        **more,
    }
    path.write_text(json.dumps(content))
    return path


def marked(seed: int = 0, count: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).uniform([90, 60], [130, 100], (count, 2))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two photographs of maps, rotated, of which nothing is square."""
    folder = tmp_path_factory.mktemp("satast")
    for index, name in enumerate(("ISS001-E-1", "ISS001-E-2")):
        terrain = make_terrain(300, seed=10 + index)
        photograph, to_photograph = view_of(terrain, (150, 150), 70.0 * (index + 1), SIZE0)
        satellite, to_satellite = view_of(terrain, (145, 155), 0.0, SIZE1, zoom=0.9)
        save(photograph, folder / "data" / name / f"@1.0@-2.5@{name}@.png")
        save(satellite, folder / "data" / name / "pred_0__rot90__@.png")
        H = to_satellite @ np.linalg.inv(to_photograph)
        write_annotation(folder, name, marked().tolist(), apply(H, marked()).tolist(), before=[[0.0, 0.0]])
    return folder


@pytest.fixture(scope="module")
def sift() -> Run:
    return load_runs(["sift"], num_keypoints=500)[0]


# Reading --------------------------------------------------------------------------------------------------------------


def test_the_last_round_of_annotations_counts(data: Path) -> None:
    pairs = list_pairs(data)
    assert [pair.name for pair in pairs] == ["ISS001-E-1", "ISS001-E-2"]
    np.testing.assert_array_equal(pairs[0].points0, marked())
    assert pairs[0].image0 == data / "data" / "ISS001-E-1" / "@1.0@-2.5@ISS001-E-1@.png"
    assert pairs[0].image1.is_file()
    assert "points1" in pairs[0].key()
    assert hash_pairs(pairs) != hash_pairs(pairs[:1])


def test_annotations_may_lie_in_the_folder_itself(data: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(data / "data")
    for path in (data / "annotations-v1").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert hash_pairs(list_pairs(tmp_path)) == hash_pairs(list_pairs(data))


@pytest.mark.parametrize(
    ("points0", "points1", "more", "message"),
    [
        ([], [], {}, "must be equally many points"),
        ([[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]], {}, r"got shapes \(1, 2\) and \(2, 2\)"),
        ([[1.0, math.nan]], [[1.0, 2.0]], {}, "NaN or infinite"),
        ([[1.0, 10**400]], [[1.0, 2.0]], {}, r"not an annotation of SatAst \(OverflowError"),
        ([[1.0, 2.0]], [[1.0, 2.0]], {"correspondences": []}, "not an annotation of SatAst"),
        ([[1.0, 2.0]], [[1.0, 2.0]], {"query_path": 5}, "not an annotation of SatAst"),
        ([[1.0, 2.0]], [[1.0, 2.0]], {}, r"names .*, which is not there; get https://github.com/georg-bn/satast"),
    ],
)
def test_broken_annotations_are_named(
    tmp_path: Path, points0: object, points1: object, more: dict[str, object], message: str
) -> None:
    path = write_annotation(tmp_path, "ISS002-E-9", points0, points1, **more)
    with pytest.raises(ValueError, match=message) as caught:
        list_pairs(tmp_path)
    assert str(path) in str(caught.value)


def test_missing_data_says_what_to_get(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere; get https"):
        list_pairs(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no annotation_\*\.json"):
        list_pairs(tmp_path)
    for version in ("annotations-v1", "annotations-v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "annotation_ISS1.json").write_text("{}")
    with pytest.raises(ValueError, match=r"several versions .*\(annotations-v1, annotations-v2\)"):
        list_pairs(tmp_path)


# Errors ---------------------------------------------------------------------------------------------------------------


def a_pair(points0: np.ndarray, points1: np.ndarray) -> AnnotatedPair:
    return AnnotatedPair("p", "p", Path("a"), Path("b"), points0=points0, points1=points1)


def spread(count: int = 60) -> np.ndarray:
    return np.random.default_rng(5).uniform([5, 5], [195, 145], (count, 2))


@pytest.mark.parametrize("stored", [1, 3])
def test_a_perfect_matcher_scores_100_and_a_shifted_one_what_the_threshold_says(stored: int) -> None:
    """Matches at 200 x 150, annotations in stored pixels, of which there are ``stored`` as many a side."""
    points0 = spread()
    H = np.array([[0.9, 0.2, 3], [-0.2, 0.9, 30], [1e-4, 0, 1]])
    matched1 = apply(H, points0)

    def stored_pixels(points: np.ndarray) -> np.ndarray:
        return (points + 0.5) * stored - 0.5

    truth0, truth1 = stored_pixels(points0[:10]), stored_pixels(matched1[:10])
    for shift in (0.0, 4.0, 12.0):  # in stored pixels
        moved = matched1 + np.array([shift / stored, 0])
        prediction = make_prediction(points0, moved, stored=(200 * stored, 150 * stored))
        outcome = measure_pair(a_pair(truth0, truth1), prediction, NormalisedEstimator())
        np.testing.assert_allclose(outcome.errors, shift, atol=0.02)
        assert outcome.num_inliers == len(points0)
        row = summarise([outcome])
        for pixels in (5, 10, 20, 30):
            expected = max(0.0, (pixels - shift + shift / (2 * 10)) / pixels) if shift < pixels else 0.0
            assert row["auc"][str(pixels)] == pytest.approx(expected, abs=0.01)


def test_a_shuffled_matcher_scores_0() -> None:
    points0 = spread()
    points1 = np.random.default_rng(1).permutation(points0)
    outcome = measure_pair(a_pair(points0[:8], points0[:8]), make_prediction(points0, points1), NormalisedEstimator())
    assert summarise([outcome])["auc"]["5"] == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("count", [0, 3])
def test_failures_are_infinite_errors_of_all_their_points(count: int) -> None:
    good = measure_pair(a_pair(spread(3), spread(3)), make_prediction(spread(), spread()), NormalisedEstimator())
    few = measure_pair(
        a_pair(spread(9), spread(9)), make_prediction(spread(count), spread(count)), NormalisedEstimator()
    )
    assert few.failed
    assert few.errors == [math.inf] * 9
    row = summarise([good, few])
    assert (row["num_failed"], row["num_points"]) == (1, 12)
    assert row["auc"]["30"] == pytest.approx(3 / 12, abs=0.01)


def test_collinear_matches_are_no_error() -> None:
    line = np.stack([np.linspace(10, 150, 30)] * 2, axis=1)
    outcome = measure_pair(a_pair(spread(2), spread(2)), make_prediction(line, line), NormalisedEstimator())
    assert len(outcome.errors) == 2


def test_the_threshold_must_be_positive() -> None:
    with pytest.raises(ValueError, match="threshold must be positive and finite, got 0"):
        NormalisedEstimator(threshold=0)


# A generated set ------------------------------------------------------------------------------------------------------


def test_known_views_upright_and_rotated(data: Path, sift: Run) -> None:
    pairs = list_pairs(data)
    views, estimator = ViewSettings(max_size=240), NormalisedEstimator(threshold=0.01)
    evaluations = [
        SAT_AST.run([sift], pairs, rotation, views=views, options=estimator) for rotation in ("upright", "quarter")
    ]
    for evaluation, number in zip(evaluations, (2, 6), strict=True):
        (row,) = table_rows(SAT_AST, evaluation)
        assert (row["num_pairs"], row["num_failed"], row["num_points"]) == (number, 0, 6 * number)
        assert row["auc"]["5"] > 0.85
        assert row["error_median"] < 1.0
    report = SAT_AST.make_report(evaluations, {"device": "CPU"}, options=estimator, views=views)
    first, second = report.tables
    assert sorted(second.rows[0]["by_rotation"]) == ["180", "270", "90"]
    assert report.settings["auc_pixels"] == [5.0, 10.0, 20.0, 30.0]
    assert "threshold 0.01, confidence 0.99999999, 100000 iterations" in report.description
    assert list(report.plots) == ["errors-upright.png", "errors-quarter.png"]
    json.dumps(report.to_json(), allow_nan=False)
    assert "| sift | dual-softmax |" in first.to_markdown()

"""The paper's numbers: some of every table, typed from it by hand, and the shape of all of them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from steerers.benchmarks import paper


def find(benchmark: str, variant: str, label: str) -> dict[str, Any]:
    (row,) = [row for row in paper.rows(benchmark, variant) if row["label"] == label]
    return row


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("SIFT", (78, 78, 79)),
        ("ORB", (79, 85, 87)),
        ("RELF, multiple@SuperPoint", (92, 93, 94)),
        ("C4-B@SuperPoint, Max matches C4-steered", (82, 82, 83)),
        ("SO2-Spread-B@SuperPoint, Max similarity C8-steered", (96, 97, 97)),
        ("SO2-Spread-B@DeDoDe-SO2, Max similarity C8-steered", (95, 97, 98)),
    ],
)
def test_roto_360(label: str, expected: tuple[int, int, int]) -> None:
    precision = find("roto-360", "", label)["precision"]
    assert [precision[key] for key in ("3", "5", "10")] == pytest.approx([value / 100 for value in expected])


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("SE2-LoFTR", (58, 51, 52)),
        ("C4-B@DeDoDe-SO2, Max matches C4-steered", (52, 51, 51)),
        ("SO2-Freq1-B@DeDoDe-SO2, Procrustes", (64, 59, 60)),
    ],
)
def test_aims(label: str, expected: tuple[int, int, int]) -> None:
    assert list(find("aims", "", label)["ap"].values()) == pytest.approx([value / 100 for value in expected])


@pytest.mark.parametrize(
    ("variant", "label", "expected"),
    [
        ("1500", "DeDoDe-B@DeDoDe, Dual softmax", (49, 65, 77)),
        ("1500", "DeDoDe-B@DeDoDe-C4, Project to invariant subspace", (39, 55, 68)),
        ("1500", "SO2-Spread-B@DeDoDe-SO2, Dual softmax", (50, 66, 79)),
        ("1500", "SO2-Spread-B@DeDoDe-SO2, Max similarity C8-steered", (49, 66, 78)),
        ("1500", "DISK@DeDoDe, Dual softmax", (34, 49, 62)),
        ("c4", "DeDoDe-B@DeDoDe, Dual softmax", (12, 17, 20)),
        ("c4", "DeDoDe-B@DeDoDe, Dual softmax + TTA C4", (46, 61, 73)),
        ("c4", "DeDoDe-G@DeDoDe, Max matches C4-steered", (31, 45, 57)),
        ("c4", "C4-Perm-G@DeDoDe-C4, Max matches C4-steered", (53, 69, 82)),
        ("c4", "DISK@DeDoDe, Max matches C4-steered", (26, 41, 54)),
        ("so2", "DeDoDe-B@DeDoDe-SO2, Max matches C8-steered", (34, 51, 65)),
        ("so2", "SO2-Spread-B@DeDoDe-SO2, Max matches C8-steered", (46, 63, 76)),
        ("so2", "SO2-Freq1-B@DeDoDe-SO2, Prototype Procrustes", (41, 58, 72)),
        ("so2", "C4-Perm-G@DeDoDe-C4, Subset C4-steered", (43, 60, 73)),
        ("joint", "DeDoDe-B@DeDoDe, Dual softmax", (46, 62, 74)),
        ("joint", "DISK@DeDoDe, Dual softmax", (29, 45, 58)),
        ("joint", "DeDoDe-B†@DeDoDe, Dual softmax", (50, 66, 78)),
    ],
)
def test_megadepth(variant: str, label: str, expected: tuple[int, int, int]) -> None:
    auc = find("megadepth", variant, label)["auc"]
    assert [auc[key] for key in ("5", "10", "20")] == pytest.approx([value / 100 for value in expected])


@pytest.mark.parametrize(
    ("label", "milliseconds", "plus_minus"),
    [
        ("DeDoDe-B, Dual softmax", 63.4, 0.03),
        ("DeDoDe-B, Dual softmax + TTAx8", 513.0, 0.09),
        ("DeDoDe-B-SO2, Max matches C8-steered", 141.4, 0.05),
        ("DeDoDe-B-SO2, Prototype Procrustes", 63.9, 0.02),
        ("DeDoDe-G, Dual softmax + TTAx4", 872.5, 0.11),
        ("DeDoDe-G-C4, Max similarity C4-steered", 221.3, 0.05),
    ],
)
def test_runtime(label: str, milliseconds: float, plus_minus: float) -> None:
    total = find("runtime", "", label)["seconds"]["total"]
    assert 1e3 * total["mean"] == pytest.approx(milliseconds)
    assert 1e3 * total["plus_minus"] == pytest.approx(plus_minus)


def test_every_table_is_whole() -> None:
    counts = {(name, v): len(paper.rows(name, v)) for name, variants in paper.experiments().items() for v in variants}
    assert counts == {
        ("roto-360", ""): 8,
        ("aims", ""): 4,
        ("megadepth", "1500"): 20,
        ("megadepth", "c4"): 27,
        ("megadepth", "so2"): 25,
        ("megadepth", "joint"): 4,
        ("runtime", ""): 16,
    }


def test_rows_fit_the_tables() -> None:
    for benchmark, variants in paper.experiments().items():
        for variant in variants:
            found = paper.rows(benchmark, variant)
            assert len({row["label"] for row in found}) == len(found)
            for row in found:
                assert next(iter(row)) == "label"
                assert row["source"] == "paper"
                assert row["table"] in range(1, 7)
                json.dumps(row, allow_nan=False)
                for key in ("precision", "ap", "auc"):
                    values = list(row.get(key, {}).values())
                    assert all(0 < value < 1 for value in values)
                    if key != "ap":
                        assert values == sorted(values)  # a looser threshold scores more


def test_the_paper_is_in_proportion() -> None:
    """One rotation more costs one matching more: a slip of the pen among the times would show."""
    times = {row["label"]: row["seconds"]["total"]["mean"] for row in paper.rows("runtime")}
    plain = times["DeDoDe-B, Dual softmax"]
    four, eight = times["DeDoDe-B-C4, Max matches C4-steered"], times["DeDoDe-B-SO2, Max matches C8-steered"]
    assert math.isclose((four - plain) / 3, (eight - plain) / 7, rel_tol=0.05)


def test_rows_are_the_callers_own() -> None:
    paper.rows("aims")[0]["ap"]["all"] = 1.0
    assert paper.rows("aims")[0]["ap"]["all"] == 0.52


@pytest.mark.parametrize(("benchmark", "variant"), [("oxford", ""), ("megadepth", "c5"), ("roto-360", "fixed")])
def test_no_such_experiment(benchmark: str, variant: str) -> None:
    assert paper.rows(benchmark, variant) == []

"""Configurations: what is read, what is refused, and by which message."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers import CONFIG_FOLDER
from steerers._weights import load
from steerers.models.zoo import COMPACT_1
from steerers.training.config import (
    OptimiserConfig,
    TrainConfig,
    ValidationConfig,
    load_config,
    parse_change,
    parse_config,
    to_dict,
)

CONFIGS = sorted(CONFIG_FOLDER.glob("*.toml"))

NESTED = """
setting = "B"
steps = 20
precision = "bfloat16"
[data]
path = ["photographs", "more.tar"]
rotations = "C4"
[data.views]
size = 128
scale = [0.5, 2]
[model.compact]
hidden = 96
dim = 64
[steerer]
group = "C4"
kind = "perm"
learn = true
[optimiser]
learning_rate = 1e-3
[optimiser.learning_rates]
"descriptor.encoder" = 1e-5
[validation]
rotations = [0, 90]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# Reading --------------------------------------------------------------------------------------------------------------


def test_an_empty_table_is_the_default() -> None:
    assert parse_config({}) == TrainConfig()


def test_nested_tables_reach_their_places(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, NESTED))
    assert (config.setting, config.steps, config.precision) == ("B", 20, "bfloat16")
    assert config.data.path == ("photographs", "more.tar")
    assert config.data.views.size == 128
    assert config.data.views.scale == (0.5, 2.0)
    assert isinstance(config.data.views.scale[1], float)
    assert (config.model.compact.hidden, config.model.compact.dim) == (96, 64)
    assert config.optimiser.learning_rates == {"descriptor.encoder": 1e-5}
    assert config.validation.rotations == (0, 90)
    assert config.batch == TrainConfig().batch


def test_the_file_gives_a_run_its_name(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "", "c4-perm.toml")).name == "c4-perm"
    assert load_config(write(tmp_path, 'name = "other"', "c4-perm.toml")).name == "other"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_paper_s_configurations_survive_a_round_trip(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert parse_config(to_dict(config)) == config
    assert parse_config(json.loads(json.dumps(to_dict(config)))) == config


def test_there_is_a_configuration_for_every_kind_of_row() -> None:
    assert len(CONFIGS) >= 20
    loaded = [load_config(path) for path in CONFIGS]
    described = [config for config in loaded if config.setting in "ABC"]
    assert {(config.setting, config.steerer.group) for config in described} == {
        (s, g) for s in "ABC" for g in ("C4", "SO2")
    }
    assert {config.steerer.kind for config in described} == {"inv", "freq1", "perm", "spread", "random", "none"}
    assert {config.model.kind for config in described} == {"dedode-b", "dedode-g", "disk"}
    assert {config.data.rotations for config in loaded if config.setting == "detector"} == {"C4", "SO2"}


def test_the_paper_s_hyperparameters() -> None:
    for path in CONFIGS:
        config = load_config(path)
        if config.setting == "joint":  # not the paper's
            continue
        fitted = config.setting == "A"
        assert (config.batch, config.steps) == (8, 10_000 if fitted else 100_000), path
        assert config.optimiser.clip == (0 if fitted else 0.01), path
        assert config.optimiser.weight_decay == (0 if fitted else 1e-5), path
        if config.setting != "detector":
            half_view = config.data.views.size / 2
            assert math.isclose(config.matching.radius, 0.01 * half_view), path
            assert config.matching.num_keypoints == 5000, path
            assert config.data.views.resize == "squash", path
            assert config.model.detector == f"dedode-l-{config.data.rotations.removeprefix('joint-').lower()}", path
        assert config.optimiser.rate_of("steerer.action.weight") == (1e-3 if fitted else 2e-4), path


def test_names_of_older_runs_are_read() -> None:
    assert parse_config({"data": {"colmap_share": 0.2}}) == parse_config({"data": {"colmap_fraction": 0.2}})
    shipped = json.loads(load(COMPACT_1)[1]["config"])
    assert "colmap_share" in shipped["data"]
    data = parse_config(shipped).data
    assert (data.colmap_fraction, data.mosaics.fraction) == (0.2, 0.6)


def test_options_that_are_gone_are_read_where_they_were_off() -> None:
    assert json.loads(load(COMPACT_1)[1]["config"])["keypoints"]["matchability"] == 0.0
    assert parse_config({"keypoints": {"matchability": 0.0}}) == TrainConfig()
    with pytest.raises(ValueError, match=r"unknown key 'keypoints\.matchability'"):
        parse_config({"keypoints": {"matchability": 0.5}})


# Refusing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 5}, "unknown key 'step'; known: .*steps"),
        ({"data": {"view": {}}}, r"unknown key 'data.view'; known: .*data\.views"),
        ({"data": {"views": {"sice": 1}}}, r"unknown key 'data.views.sice'; known: .*data\.views\.size"),
        ({"steps": "many"}, "steps must be a whole number, got 'many'"),
        ({"steps": 1.5}, "steps must be a whole number, got 1.5"),
        ({"steps": True}, "steps must be a whole number, got True"),
        ({"compile": 1}, "compile must be true or false, got 1"),
        ({"optimiser": {"clip": "no"}}, "optimiser.clip must be a number, got 'no'"),
        ({"optimiser": {"clip": True}}, "optimiser.clip must be a number, got True"),
        ({"model": {"kind": "disc"}}, r"model: kind must be one of compact, .*, or in setting A .*disk.*; got 'disc'"),
        ({"model": {"detector": 3}}, "model.detector must be a string, got 3"),
        ({"data": "photographs"}, "data must be a table, got 'photographs'"),
        ({"data": {"path": "photographs"}}, "data.path must be a list"),
        ({"data": {"path": ["a", 1]}}, r"data.path\[1\] must be a string, got 1"),
        ({"data": {"views": {"scale": [0.5, 1.0, 2.0]}}}, "data.views.scale must be a list of 2"),
        ({"data": {"rotations": "C5"}}, "data.rotations must be one of none, C4, SO2, .*got 'C5'"),
        ({"optimiser": {"learning_rates": 1e-4}}, "optimiser.learning_rates must be a table"),
        ({"optimiser": {"learning_rates": {"a": "b"}}}, "optimiser.learning_rates.a must be a number"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"name": "a/b"}, "name must be a plain name"),
        ({"name": ".."}, "name must be a plain name"),
        ({"data": {"held_out": 1.0}}, r"data: held_out must be in \[0, 1\), got 1.0"),
        ({"data": {"max_photo_size": 8}}, "data: max_photo_size"),
        ({"data": {"views": {"resize": "crop"}}}, "data.views.resize must be one of letterbox, squash, got 'crop'"),
        ({"data": {"views": {"resize": "squash"}}}, "data: views.resize 'squash' is for photographs that are shown"),
        ({"data": {"views": {"size": 8}}}, "data.views: size of a view must be at least 32"),
        ({"optimiser": {"learning_rate": 0}}, "optimiser: learning_rate must be positive and at most 1e30, got 0"),
        ({"optimiser": {"learning_rate": -1e-3}}, "optimiser: learning_rate must be positive and .*, got -0.001"),
        ({"optimiser": {"learning_rate": math.nan}}, "optimiser.learning_rate must be a finite number, got nan"),
        ({"optimiser": {"learning_rate": math.inf}}, "optimiser.learning_rate must be a finite number, got inf"),
        ({"optimiser": {"learning_rates": {"a": -1}}}, "optimiser: learning_rates must be 0 to 1e30, got -1.0 for"),
        ({"optimiser": {"learning_rates": {"a": math.inf}}}, "optimiser.learning_rates.a must be a finite number"),
        ({"optimiser": {"learning_rate": 1e300}}, r"optimiser: learning_rate must be .* at most 1e30, got 1e\+300"),
        ({"optimiser": {"clip": -math.inf}}, "optimiser.clip must be a finite number, got -inf"),
        ({"data": {"views": {"scale": [0.5, math.inf]}}}, r"data.views.scale\[1\] must be a finite number, got inf"),
        ({"data": {"max_broken": 1.0}}, r"data: max_broken must be in \[0, 1\), got 1.0"),
        ({"steps": 10**400}, r"steps must be a number of 64 bits, got 1000+\.\.\.$"),
        ({"optimiser": {"clip": 10**400}}, "optimiser.clip must be a number of 64 bits, got 1000"),
        ({"steps": "x" * 1000}, r"steps must be a whole number, got 'x+\.\.\.$"),
        ({"optimiser": {"ema": 1}}, "optimiser: ema must be in"),
        ({"optimiser": {"weight_decay": -1}}, "optimiser: weight_decay must be 0 to 1e6, got -1"),
        ({"validation": {"every": -1}}, "validation: every must not be negative"),
        (
            {"validation": {"kinds": ["tilt", "rain"]}},
            r"validation.kinds\[1\] must be one of plain, tilt, scale, light, blur, noise, weather, sensors, got",
        ),
        ({"validation": {"kinds": "tilt"}}, "validation.kinds must be a list, got 'tilt'"),
        ({"validation": {"scenes": [1]}}, r"validation.scenes\[0\] must be a string, got 1"),
        (
            {"validation": {"kinds": ["tilt"]}, "data": {"source": "megadepth"}},
            "validation.kinds are views of photographs: they need data.source 'folder', not 'megadepth'; validation.sc",
        ),
        ({"matching": {"radius": 0}}, "matching: radius must be positive"),
        ({"keypoints": {"suppress": 2}}, "keypoints: suppress must be odd"),
        ({"keypoints": {"prior": "sfm", "most": 9}}, "keypoints: most does not apply to DeDoDe's objective"),
        ({"keypoints": {"targets": "repeated"}}, "keypoints: targets 'repeated' .* set keypoints.prior to 'none'"),
        (
            {"keypoints": {"targets": "repeated", "prior": "none", "most": 9, "area": 9.0}},
            "keypoints: area, most do not apply to targets 'repeated', which are as many as are found by both views",
        ),
        (
            {"keypoints": {"targets": "repeated", "prior": "sfm"}},
            "keypoints: targets does not apply to DeDoDe's objective",
        ),
        ({"keypoints": {"dedode": {"targets": 9}}}, "keypoints: dedode is DeDoDe's objective, of prior 'sfm'"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_config(values)


def test_kinds_of_validation() -> None:
    assert (ValidationConfig().kinds, ValidationConfig().scenes) == ((), ())
    config = parse_config({"validation": {"kinds": ["tilt", "scale"], "scenes": ["church"]}})
    assert config.validation == ValidationConfig(kinds=("tilt", "scale"), scenes=("church",))
    assert parse_config({"validation": {"scenes": ["a"]}, "data": {"source": "colmap"}}).validation.scenes == ("a",)
    with pytest.raises(ValueError, match=r"kinds must be of plain, tilt, .*sensors, got \('rain',\)"):
        ValidationConfig(kinds=("rain",))  # type: ignore[arg-type]


def test_the_file_is_named_too(tmp_path: Path) -> None:
    for text, message in (
        ("stps = 3", "unknown key 'stps'"),
        ("steps = ", "not a TOML file"),
        ("a = 1\na = 2", "TOML"),
    ):
        path = write(tmp_path, text)
        with pytest.raises(ValueError, match=message) as error:
            load_config(path)
        assert str(error.value).startswith(str(path))
    with pytest.raises(ValueError, match=r"absent\.toml: the configuration cannot be read"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ValueError, match="not a TOML file"):
        load_config(tmp_path / "latin.toml")


def test_a_mark_of_the_byte_order_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbfsteps = 7\r\n")
    assert load_config(path).steps == 7


def test_what_is_nested_without_end_is_named(tmp_path: Path) -> None:
    deep = 3000
    for text in (
        f"steps = {'[' * deep}",
        f"steps = {'{a = ' * deep}",
        f"[{'.'.join('a' * deep)}]",
        f"{'.'.join('a' * deep)} = 1",
    ):
        path = write(tmp_path, text)
        with pytest.raises(ValueError, match=r"it is nested too deeply|not a TOML file") as error:
            load_config(path)
        assert str(error.value).startswith(str(path))
        assert len(str(error.value)) < 300
    with pytest.raises(ValueError, match="steps: it is nested too deeply"):
        parse_change(f"steps={'[' * deep}")
    with pytest.raises(ValueError, match="it is nested too deeply"):
        load_config(write(tmp_path, ""), {".".join("a" * deep): 1})


# Changes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("steps=200", "steps", 200),
        ("optimiser.clip = 1e-2", "optimiser.clip", 0.01),
        ("compile=true", "compile", True),
        ("steerer.kind=perm", "steerer.kind", "perm"),
        ('steerer.kind="perm"', "steerer.kind", "perm"),
        ("data.path=[\"a b\", 'c']", "data.path", ["a b", "c"]),
        ("model.weights=runs/a=b/model.safetensors", "model.weights", "runs/a=b/model.safetensors"),
        ("model.weights=", "model.weights", ""),
    ],
)
def test_a_change_is_toml_or_a_bare_string(text: str, name: str, value: object) -> None:
    assert parse_change(text) == (name, value)


@pytest.mark.parametrize("text", ["steps", "=3", "", "  = 3"])
def test_a_change_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(ValueError, match="must look like name=value"):
        parse_change(text)


def test_changes_win_over_the_file_and_make_tables(tmp_path: Path) -> None:
    path = write(tmp_path, NESTED)
    changes = {
        "steps": 7,
        "data.views.size": 64,
        "keypoints.most": 9,
        'optimiser.learning_rates."descriptor.encoder"': 0.5,
    }
    config = load_config(path, changes)
    assert (config.steps, config.data.views.size, config.keypoints.most) == (7, 64, 9)
    assert config.data.views.scale == (0.5, 2.0)
    assert config.optimiser.learning_rates == {"descriptor.encoder": 0.5}
    unquoted = load_config(path, {"optimiser.learning_rates.descriptor.encoder": 0.25})
    assert unquoted.optimiser.learning_rates == {"descriptor.encoder": 0.25}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stps": 7}, "unknown key 'stps'"),
        ({"data.size": 7}, "unknown key 'data.size'"),
        ({"steps.more": 7}, "steps is a value and no table, so that it has no more"),
        ({"data views": 7}, "'data views' is no name of an option"),
        ({"steps": "perm"}, "steps must be a whole number, got 'perm'"),
    ],
)
def test_a_wrong_change_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(write(tmp_path, NESTED), changes)


# Learning rates -------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3})?", fullmatch=True), st.floats(0, 1), max_size=4))
def test_dotted_and_nested_rates_are_one(rates: dict[str, float]) -> None:
    flat = parse_config({"optimiser": {"learning_rates": rates}})
    assert flat.optimiser.learning_rates == rates
    assume(not any(other.startswith(f"{name}.") for name in rates for other in rates))  # of TOML, a value or a table
    nested: dict[str, Any] = {}
    for name, rate in rates.items():
        first, _, rest = name.partition(".")
        if rest:
            nested.setdefault(first, {})[rest] = rate
        else:
            nested[first] = rate
    assert parse_config({"optimiser": {"learning_rates": nested}}).optimiser.learning_rates == rates


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "clip", "ema"])
def test_no_option_of_the_optimiser_is_infinite_or_negative(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must"):
        OptimiserConfig(**{name: value})

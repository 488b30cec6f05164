"""The configuration of a run: a TOML file read into dataclasses; unknown keys and wrong values are errors."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from steerers.datasets.folder import MosaicOptions
from steerers.datasets.pairs import Rotations, check_options
from steerers.datasets.views import Views
from steerers.models import zoo
from steerers.models.compact import CompactConfig
from steerers.models.zoo import TRAINABLE
from steerers.training.objectives.descriptions import MatchingOptions, Setting
from steerers.training.objectives.distillation import DistillationOptions
from steerers.training.objectives.keypoints import KeypointOptions

Kind = Literal["plain", "tilt", "scale", "light", "blur", "noise", "weather", "sensors"]
"""Changes by which held-out photographs are measured apart; :mod:`steerers.training.kinds` says what each is."""

_RENAMED = {"data.colmap_share": "colmap_fraction", "data.mosaics.share": "fraction"}  # since older runs
_GONE = {"keypoints.matchability": 0.0}  # since older runs, and the value at which it changed nothing


@dataclass(frozen=True)
class DataConfig:
    """Where pairs come from.

    Attributes:
        source: ``folder`` (photographs in folders or tars), ``megadepth`` or ``colmap``.
        path: folders, tars, the root of MegaDepth, or reconstructions; the command line's ``--data`` takes precedence.
        colmap: reconstructions to be mixed in beside photographs: COLMAP's, or what
            ``steerers.datasets.colmap.export`` made of them.
        colmap_fraction: of the steps, that draw from them.
        rotations: how views are rotated.
        max_photo_size: longest side to which photographs are shrunk when they are decoded.
        max_broken: fraction of the photographs of folders and tars, but at least one, that may be broken: they are
            left out with a warning. With 0 none may be.
        held_out: fraction of the photographs that validation uses; of MegaDepth it is the test scenes.
        mosaics: views of several photographs side by side, mixed in beside those of single ones, for larger changes of
            scale; source ``folder`` only.
    """

    source: Literal["folder", "megadepth", "colmap"] = "folder"
    path: tuple[str, ...] = ()
    colmap: tuple[str, ...] = ()
    colmap_fraction: float = 0.0
    rotations: Rotations = "SO2"
    max_photo_size: int = 768
    max_broken: float = 0.05
    held_out: float = 0.1
    views: Views = field(default_factory=Views)
    mosaics: MosaicOptions = field(default_factory=MosaicOptions)

    def __post_init__(self) -> None:
        check_options(self, "be in [0, 1)", lambda value: 0 <= value < 1, "held_out", "colmap_fraction", "max_broken")
        check_options(self, "be at least 32 pixels", lambda value: value >= 32, "max_photo_size")
        if self.views.resize == "squash" and self.source == "folder":
            raise ValueError(
                "views.resize 'squash' is for photographs that are shown whole, of source 'megadepth' or 'colmap'; of "
                "those in folders a part is drawn (views.scale, tilt, perspective), whose aspect is always kept"
            )
        if self.mosaics.fraction and self.source != "folder":
            raise ValueError(f"mosaics are made of photographs: they need source 'folder', not {self.source!r}")
        if self.mosaics.fraction + self.colmap_fraction > 1:
            raise ValueError(
                f"mosaics.fraction and colmap_fraction add up to {self.mosaics.fraction + self.colmap_fraction:g} > 1"
            )


@dataclass(frozen=True)
class ModelConfig:
    """What is trained.

    Attributes:
        kind: ``compact`` (the embedded network), ``dedode-b``, ``dedode-g`` or ``dedode-detector-l``; in Setting A also
            any other model of ``steerers models``, with its own weights.
        weights: what training starts from: a file (of DeDoDe, or ``model.safetensors`` of another run), the name of a
            published file, such as ``dedode_descriptor_B.pth``, that is downloaded where the cache has none, or
            ``vgg`` for the encoder of DeDoDe from ImageNet; empty is random. Of another model: the file of its
            descriptor, if it is not in the cache.
        detector: whose keypoints a descriptor is trained at: a detector or model of ``steerers models``. If it is
            empty, another model than those that can be trained has its own.
        detector_weights: its file, if it is not in the cache; ``model.safetensors`` of a run for one of DeDoDe's.
        backbone_weights: DINOv2's file for ``dedode-g``, if it is not in the cache.
    """

    kind: str = "compact"
    weights: str = ""
    detector: str = ""
    detector_weights: str = ""
    backbone_weights: str = ""
    compact: CompactConfig = field(default_factory=CompactConfig)

    def __post_init__(self) -> None:
        models = zoo.names()
        if self.kind not in (*TRAINABLE, *models):
            frozen = ", ".join(name for name in models if name not in TRAINABLE)
            raise ValueError(
                f"kind must be one of {', '.join(TRAINABLE)}, or in setting A another model: {frozen}; got "
                f"{self.kind!r}"
            )
        if self.detector_weights and not self.detector:
            raise ValueError("detector_weights are those of a detector: set detector too")


@dataclass(frozen=True)
class SteererConfig:
    """The steerer.

    Attributes:
        kind: ``inv``, ``freq1``, ``perm``, ``spread`` or ``random``, or ``none``; or a file that
            :meth:`steerers.Steerer.load` reads.
        learn: whether it is trained (Settings A and B).
        max_frequency: of ``spread``.
    """

    group: str = "SO2"
    kind: str = "spread"
    learn: bool = False
    max_frequency: int = 6


@dataclass(frozen=True)
class OptimiserConfig:
    """AdamW with warm-up and a cosine to zero.

    Attributes:
        learning_rate: of everything that ``learning_rates`` does not name.
        learning_rates: by the start of a parameter's name, such as ``descriptor.encoder``; the longest that fits.
        warm_up: steps over which the learning rates rise.
        clip: most length of the gradient (of the networks, not of the steerer); 0 is off.
        ema: decay of the average of the weights; 0 is off.
    """

    learning_rate: float = 2e-4
    learning_rates: dict[str, float] = field(default_factory=dict)
    weight_decay: float = 1e-5
    warm_up: int = 0
    clip: float = 0.0
    ema: float = 0.0

    def __post_init__(self) -> None:
        # Beyond 1e30 and 1e6 the optimiser itself overflows, before there is a loss to be looked at.
        check_options(self, "be positive and at most 1e30", lambda value: 0 < value <= 1e30, "learning_rate")
        for name, rate in self.learning_rates.items():
            if not 0 <= rate <= 1e30:
                raise ValueError(f"learning_rates must be 0 to 1e30, got {rate} for {name!r}")
        check_options(self, "be 0 to 1e6", lambda value: 0 <= value <= 1e6, "weight_decay")
        check_options(self, "be in [0, 1)", lambda value: 0 <= value < 1, "ema")
        check_options(self, "be finite and not negative", lambda value: 0 <= value < math.inf, "warm_up", "clip")

    def rate_of(self, name: str) -> float:
        """The learning rate of the parameter of that name."""
        return self.learning_rates.get(self.prefix_of(name), self.learning_rate)

    def prefix_of(self, name: str) -> str:
        """The entry of ``learning_rates`` that a parameter of that name goes by; empty if there is none."""
        return max((prefix for prefix in self.learning_rates if name.startswith(prefix)), key=len, default="")


@dataclass(frozen=True)
class ValidationConfig:
    """Held-out likelihood and accuracy.

    Attributes:
        every: steps between validations; 0 validates at the end alone.
        pairs: of each validation and rotation.
        rotations: degrees by which the second views are rotated.
        kinds: changes that are measured apart beside that, on the held-out photographs of source ``folder``; second
            views are rotated by an angle of their own, of those that ``data.rotations`` has.
        scenes: reconstructions that are measured likewise, each by the name of its folder; nothing of them may be
            trained on. Without depth maps there is no repeatability.
    """

    every: int = 1000
    pairs: int = 64
    rotations: tuple[int, ...] = (0, 45, 90, 180)
    kinds: tuple[Kind, ...] = ()
    scenes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_options(self, "not be negative", lambda value: value >= 0, "every", "pairs")
        known = typing.get_args(Kind)
        check_options(self, f"be of {', '.join(known)}", lambda kinds: set(kinds) <= set(known), "kinds")


@dataclass(frozen=True)
class TrainConfig:
    """A run.

    Attributes:
        name: of the run, and of its folder; by default that of the configuration's file.
        setting: the paper's ``A``, ``B`` or ``C`` for a descriptor (``C`` without steerer and with ``joint``
            rotations is the dagger), ``detector``, or ``joint`` for keypoints and descriptions of one network.
        batch: pairs a step, over all processes.
        precision: of the networks' forward and backward pass.
        compile: the networks, by ``torch.compile``; the first step then takes a minute or two.
        cuda_graphs: record the passes of the compact network's trunk once and replay them, on one GPU.
        spectrum_every: steps between records of the steerer's eigenvalues.
    """

    name: str = "run"
    setting: Literal[Setting, "detector", "joint"] = "joint"
    steps: int = 10_000
    batch: int = 8
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    cuda_graphs: bool = False
    checkpoint_every: int = 1000
    log_every: int = 50
    spectrum_every: int = 100
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    steerer: SteererConfig = field(default_factory=SteererConfig)
    matching: MatchingOptions = field(default_factory=MatchingOptions)
    keypoints: KeypointOptions = field(default_factory=KeypointOptions)
    distillation: DistillationOptions = field(default_factory=DistillationOptions)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "checkpoint_every", "log_every", "spectrum_every")
        check_options(self, "be at least 1", lambda value: value >= 1, *counts)
        check_options(self, "not be negative", lambda value: value >= 0, "seed")
        if self.name in ("", "..") or Path(self.name).name != self.name:
            raise ValueError(f"name must be a plain name such as 'c4-perm', got {self.name!r}")
        if self.validation.kinds and self.data.source != "folder":
            raise ValueError(
                f"validation.kinds are views of photographs: they need data.source 'folder', not "
                f"{self.data.source!r}; validation.scenes names reconstructions"
            )


# Reading --------------------------------------------------------------------------------------------------------------


def load_config(path: Path, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """The configuration of a TOML file, with changes by dotted names such as ``{"data.views.size": 128}``.

    Raises:
        ValueError: naming the file and the key that is unknown or has a wrong value.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # as some editors write it, with a mark in front
    except OSError as error:
        raise ValueError(f"{path}: the configuration cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a TOML file ({_deep(error)})") from error
    values.setdefault("name", path.stem)
    try:
        for name, value in (changes or {}).items():
            _put(values, name, value)
        return parse_config(values)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {_deep(error)}") from error


def _deep(error: Exception) -> str:
    """The message of an error, or that of one of nested tables or lists without end."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def parse_change(text: str) -> tuple[str, Any]:
    """The name and the value of ``name=value``; the value is TOML's, or else a string without quotes.

    A part of a name that has dots itself is quoted: ``optimiser.learning_rates."descriptor.encoder"=1e-5``.

    Example:
        >>> parse_change("data.views.scale=[0.5, 2]"), parse_change("steerer.kind=perm")
        (('data.views.scale', [0.5, 2]), ('steerer.kind', 'perm'))
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals:
        raise ValueError(f"a change must look like name=value, got {text!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {_deep(error)}") from error


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    """Change a value of nested tables, by a dotted name as TOML splits it."""
    try:
        inner: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        raise ValueError(f"{name!r} is no name of an option, such as steps or data.views.size") from None
    keys: list[str] = []
    while isinstance(inner, dict):
        ((key, inner),) = inner.items()
        keys.append(key)
    table: Any = values
    for depth, key in enumerate(keys[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            above, rest = ".".join(keys[:depth]), ".".join(keys[depth:])
            raise ValueError(f"{above} is a value and no table, so that it has no {rest}")
    table[keys[-1]] = value


def parse_config(values: dict[str, Any]) -> TrainConfig:
    """The configuration of nested tables; keys may have the names that they had in older runs."""
    config: TrainConfig = _build(TrainConfig, renamed(values), "")
    return config


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """The configuration as nested tables, defaults included."""
    return dataclasses.asdict(config)


def renamed(values: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Nested tables, with the keys of older runs under their names of today, and without those that are gone."""
    return {
        _RENAMED.get(where + key, key): renamed(value, f"{where}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if where + key not in _GONE or value != _GONE[where + key]
    }


def flatten(table: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables with its dotted name."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


# Typed values, read without a library: training must run where there is but PyTorch, NumPy, Pillow and safetensors ----


def _build(kind: Any, values: dict[str, Any], where: str) -> Any:
    """A dataclass from a table; ``where`` the table is, with a dot, or nothing."""
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise ValueError(f"unknown key {where + key!r}; known: {', '.join(where + name for name in sorted(hints))}")
    converted = {key: _convert(hints[key], value, where + key) for key, value in values.items()}
    try:
        return kind(**converted)
    except ValueError as error:
        raise ValueError(f"{where.rstrip('.') or 'configuration'}: {error}") from error


def _convert(hint: Any, value: Any, name: str) -> Any:
    """A value of TOML or JSON as the type that a field asks for."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _build(hint, _checked(isinstance(value, dict), value, name, "a table"), f"{name}.")
    if origin is dict:
        table = _checked(isinstance(value, dict), value, name, "a table")
        return {key: _convert(arguments[1], item, f"{name}.{key}") for key, item in flatten(table)}
    if origin is Literal:
        return _checked(value in arguments, value, name, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        _checked(isinstance(value, (list, tuple)), value, name, "a list")
        hints = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
        _checked(len(hints) == len(value), value, name, f"a list of {len(hints)}")
        return tuple(
            _convert(own, item, f"{name}[{n}]") for n, (own, item) in enumerate(zip(hints, value, strict=True))
        )
    if type(value) is int:  # TOML's have 64 bits, Python's any number
        _checked(-(2**63) <= value < 2**63, value, name, "a number of 64 bits")
    if hint is float and type(value) is int:
        return float(value)
    if hint is float and type(value) is float:
        return _checked(math.isfinite(value), value, name, "a finite number")
    return _checked(type(value) is hint, value, name, _PLAIN[hint])


_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def _checked(fits: bool, value: Any, name: str, what: str) -> Any:
    if not fits:
        shown = repr(value)
        raise ValueError(f"{name} must be {what}, got {shown if len(shown) <= 100 else f'{shown[:100]}...'}")
    return value

"""hloc's shape: an extractor and a matcher for its ``extract_features`` and ``match_features``.

hloc finds models as modules of its own packages ``hloc.extractors`` and ``hloc.matchers``; :func:`register` puts ours
there, under the name ``steerers``, and :func:`feature_conf` and :func:`match_conf` make the configurations that name
them. hloc is imported by :func:`register` alone.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from steerers._choices import DEFAULT_MODEL, MAX_SIZE
from steerers.adapters.lightglue import Extractor, Matcher

NAME = "steerers"
"""Of the extractor and of the matcher, in hloc."""
MAX_KEYPOINTS = 2**15 - 1
"""hloc keeps numbers of matches in 16 bits."""

Conf = dict[str, Any]


class SteerersExtractor:
    """The part of an extractor that is ours; hloc's ``BaseModel`` calls it.

    Images come as hloc reads them, and keypoints are pixels of these, the centre of the top-left one at (0, 0), as hloc
    expects. hloc resizes: here no image is shrunk.
    """

    default_conf: ClassVar[Conf] = {
        "model": DEFAULT_MODEL, "max_keypoints": 4096, "detector": None, "weights": (), "precision": "float32",
        "tile": None,
    }  # fmt: skip
    required_inputs: ClassVar[list[str]] = ["image"]

    def _init(self, conf: Conf) -> None:
        given = _options(conf, self.default_conf)
        count = given.pop("max_keypoints")
        if isinstance(count, int) and count > MAX_KEYPOINTS:
            raise ValueError(f"max_keypoints must be at most {MAX_KEYPOINTS}, as hloc keeps matches, got {count}")
        self.extractor = Extractor(given.pop("model"), num_keypoints=count, max_size=None, **given)

    def _forward(self, data: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """Of (B, 1 or 3, H, W) images: B tensors each, the descriptors (D, N)."""
        found = self.extractor(data)
        counts = found["num_keypoints"].tolist()
        return {
            "keypoints": [rows[:n] for rows, n in zip(found["keypoints"], counts, strict=True)],
            "keypoint_scores": [rows[:n] for rows, n in zip(found["keypoint_scores"], counts, strict=True)],
            "descriptors": [rows[:n].mT for rows, n in zip(found["descriptors"], counts, strict=True)],
        }


class SteerersMatcher:
    """The part of a matcher that is ours; hloc's ``BaseModel`` calls it."""

    default_conf: ClassVar[Conf] = {
        "model": DEFAULT_MODEL, "steerer": None, "weights": (), "strategy": None, "order": "default", "angles": None,
        "threshold": None,
    }  # fmt: skip
    required_inputs: ClassVar[list[str]] = ["descriptors0", "descriptors1"]

    def _init(self, conf: Conf) -> None:
        given = _options(conf, self.default_conf)
        if given.get("threshold") is None:
            given.pop("threshold", None)
        self.matcher = Matcher(given.pop("model"), **given)

    def _forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of (B, D, N) and (B, D, M) descriptors."""
        pairs = {f"image{which}": {"descriptors": data[f"descriptors{which}"].mT} for which in (0, 1)}
        found = self.matcher(pairs)
        return {key: found[key] for key in ("matches0", "matching_scores0", "matches1", "matching_scores1")}


def register() -> None:
    """Make hloc know the extractor and the matcher ``steerers``; once a process, before its ``main`` functions run.

    Raises:
        ImportError: if hloc is not installed.
    """
    try:
        from hloc import extractors, matchers
        from hloc.utils.base_model import BaseModel
    except ImportError as error:
        raise ImportError(
            f"hloc cannot be imported ({error}); install it: https://github.com/cvg/Hierarchical-Localization"
        ) from error
    for package, ours in ((extractors, SteerersExtractor), (matchers, SteerersMatcher)):
        module = types.ModuleType(f"{package.__name__}.{NAME}", ours.__doc__)
        made = types.new_class(ours.__name__, (ours, BaseModel))
        made.__module__ = module.__name__  # hloc takes the one class that a module defines itself
        setattr(module, ours.__name__, made)
        sys.modules[module.__name__] = module


def feature_conf(
    model: str = DEFAULT_MODEL, *, max_keypoints: int = 4096, resize_max: int = MAX_SIZE, **options: Any
) -> Conf:
    """The configuration for ``hloc.extract_features.main``.

    Args:
        model: see ``steerers models``.
        resize_max: images are shrunk by hloc so that no side is longer.
        options: of :attr:`SteerersExtractor.default_conf`.
    """
    given = {"name": NAME, "model": model, "max_keypoints": max_keypoints, **options}
    _options(given, SteerersExtractor.default_conf)
    return {
        "output": f"feats-steerers-{_named(model)}-n{max_keypoints}-r{resize_max}",
        "model": given,
        "preprocessing": {"grayscale": False, "resize_max": resize_max},
    }


def match_conf(model: str = DEFAULT_MODEL, **options: Any) -> Conf:
    """The configuration for ``hloc.match_features.main``.

    Args:
        model: that made the features.
        options: of :attr:`SteerersMatcher.default_conf`, such as ``strategy`` and ``order``.
    """
    given = {"name": NAME, "model": model, **options}
    _options(given, SteerersMatcher.default_conf)
    how = "".join(f"-{options[key]}" for key in ("strategy", "order") if key in options)
    return {"output": f"matches-steerers-{_named(model)}{how}", "model": given}


def _named(model: str) -> str:
    """Of the model, as what it makes is named: by its generation, since hloc leaves out what a file has already."""
    from steerers.models import zoo

    return zoo.ALIASES.get(model, Path(model).name)


def _options(conf: Conf, known: Conf) -> Conf:
    """A configuration without its name; what is not known is refused, which hloc itself does not do."""
    given = {key: value for key, value in conf.items() if key != "name"}
    for key in given:
        if key not in known:
            raise ValueError(f"unknown option {key!r} in a configuration of steerers; use {', '.join(known)}")
    return given

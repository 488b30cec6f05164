"""steerers: match images whatever their in-plane rotation.

>>> import steerers
>>> matcher = steerers.load()                      # doctest: +SKIP
>>> matches = matcher("a.jpg", "b.jpg")            # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from steerers._version import __version__

if TYPE_CHECKING:
    from steerers.adapters.lightglue import Matcher
    from steerers.collection import Collection
    from steerers.features import Features, Keypoints, Matches, load_features, load_matches
    from steerers.pipeline import Pipeline, load
    from steerers.steering.equivariance import assert_equivariant
    from steerers.steering.representations import Group, Representation
    from steerers.steering.steerer import Steerer
    from steerers.training.fit_steerer import fit

_HOME = {
    "Collection": "collection",
    "Features": "features",
    "Group": "steering.representations",
    "Keypoints": "features",
    "Matcher": "adapters.lightglue",
    "Matches": "features",
    "Pipeline": "pipeline",
    "Representation": "steering.representations",
    "Steerer": "steering.steerer",
    "assert_equivariant": "steering.equivariance",
    "fit": "training.fit_steerer",
    "load": "pipeline",
    "load_features": "features",
    "load_matches": "features",
}

__all__ = [
    "Collection",
    "Features",
    "Group",
    "Keypoints",
    "Matcher",
    "Matches",
    "Pipeline",
    "Representation",
    "Steerer",
    "__version__",
    "assert_equivariant",
    "fit",
    "load",
    "load_features",
    "load_matches",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: ``import steerers`` alone stays fast."""
    if name in _HOME:
        return getattr(importlib.import_module(f"steerers.{_HOME[name]}"), name)
    raise AttributeError(f"module 'steerers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

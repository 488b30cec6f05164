"""Pictures, drawn with Pillow alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steerers.viz.matches import draw_matches
    from steerers.viz.spectra import NEAR, Spectrum, draw_spectra, draw_spectrum, save_animation, spectrum_extent

__all__ = ["NEAR", "Spectrum", "draw_matches", "draw_spectra", "draw_spectrum", "save_animation", "spectrum_extent"]


def __getattr__(name: str) -> Any:
    """Names are imported when first used: a command that may draw does not wait for PyTorch before it must."""
    if name in __all__:
        home = "matches" if name == "draw_matches" else "spectra"
        return getattr(importlib.import_module(f"steerers.viz.{home}"), name)
    raise AttributeError(f"module 'steerers.viz' has no attribute {name!r}")

"""Pictures, drawn with Pillow alone."""

from steerers.viz.matches import draw_matches
from steerers.viz.spectra import NEAR, Spectrum, draw_spectra, draw_spectrum, save_animation, spectrum_extent

__all__ = ["NEAR", "Spectrum", "draw_matches", "draw_spectra", "draw_spectrum", "save_animation", "spectrum_extent"]

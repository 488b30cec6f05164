"""Maps: where a photograph was taken, by what it shows; images laid over one another."""

from steerers.maps.alignment import align
from steerers.maps.registration import Alignment, AlignOptions, NotAlignedError
from steerers.maps.transforms import Displacements, Transform

__all__ = ["AlignOptions", "Alignment", "Displacements", "NotAlignedError", "Transform", "align"]

"""Maps: where a photograph was taken, by what it shows; images laid over one another."""

from steerers.maps.alignment import align
from steerers.maps.mosaics import Mosaic, MosaicOptions, mosaic, mosaic_matched
from steerers.maps.planarity import NotFlatError
from steerers.maps.registration import Alignment, AlignOptions, NotAlignedError
from steerers.maps.transforms import Displacements, Transform

__all__ = [
    "AlignOptions",
    "Alignment",
    "Displacements",
    "Mosaic",
    "MosaicOptions",
    "NotAlignedError",
    "NotFlatError",
    "Transform",
    "align",
    "mosaic",
    "mosaic_matched",
]

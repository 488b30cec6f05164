"""Maps: where a photograph was taken, by what it shows; images laid over one another."""

from steerers.maps.alignment import align
from steerers.maps.finder import LocateOptions, Prior
from steerers.maps.index import MapIndex, index_map
from steerers.maps.locating import Located, Locator, locate
from steerers.maps.mosaics import Mosaic, MosaicOptions, mosaic, mosaic_matched
from steerers.maps.planarity import NotFlatError
from steerers.maps.rasters import Raster, open_map, open_raster
from steerers.maps.registration import Alignment, AlignOptions, NotAlignedError
from steerers.maps.transforms import Displacements, Transform

__all__ = [
    "AlignOptions",
    "Alignment",
    "Displacements",
    "LocateOptions",
    "Located",
    "Locator",
    "MapIndex",
    "Mosaic",
    "MosaicOptions",
    "NotAlignedError",
    "NotFlatError",
    "Prior",
    "Raster",
    "Transform",
    "align",
    "index_map",
    "locate",
    "mosaic",
    "mosaic_matched",
    "open_map",
    "open_raster",
]

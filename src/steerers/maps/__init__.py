"""Maps: where a photograph was taken, by what it shows."""

from steerers.maps.finder import LocateOptions, Prior
from steerers.maps.index import MapIndex, index_map
from steerers.maps.locating import Located, Locator, locate
from steerers.maps.rasters import Raster, open_map, open_raster

__all__ = [
    "LocateOptions",
    "Located",
    "Locator",
    "MapIndex",
    "Prior",
    "Raster",
    "index_map",
    "locate",
    "open_map",
    "open_raster",
]

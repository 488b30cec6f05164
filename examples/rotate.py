"""Rotate a picture counter-clockwise, to try matching on: ``python examples/rotate.py IN OUT --degrees 90``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import PIL.Image

from steerers.geometry import rotate_image
from steerers.images.load import load_image, to_uint8


def main() -> None:
    """Read, rotation, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, metavar="IN")
    parser.add_argument("target", type=Path, metavar="OUT")
    parser.add_argument("--degrees", type=float, default=90.0)
    arguments = parser.parse_args()
    rotated, _ = rotate_image(load_image(arguments.source).tensor, math.radians(arguments.degrees))
    PIL.Image.fromarray(to_uint8(rotated.clamp(0, 1))).save(arguments.target, quality=92)


if __name__ == "__main__":
    main()

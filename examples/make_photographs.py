"""Make the photographs of this folder from the packages that carry the originals; see README.md for their licences.

Usage::

    pip download --no-deps scikit-image==0.26.0 && unzip scikit_image-0.26.0-*.whl -d skimage
    pip download --no-deps --no-binary :all: kapture==1.1.12 && tar xzf kapture-1.1.12.tar.gz
    python make_photographs.py skimage/skimage/data kapture-1.1.12/samples/maupertuis_openMVG .
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

LONGEST_SIDE = 1024
QUALITY = 90
SINGLES = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "camera": "camera.png",
    "coffee": "coffee.png",
    "hubble": "hubble_deep_field.jpg",
    "retina": "retina.jpg",
}
# (file, (qw, qx, qy, qz), t) with X_camera = R X_world + t: kapture_ChateauMaupertuisTest/sensors/trajectories.txt.
MAUPERTUIS_VIEWS = (
    (
        "MaupertuisTest_02.jpg",
        (-0.998910461708425, -0.00453656747248832, 0.04469528889071139, 0.012634880134154806),
        (-0.05192442081168915, 0.0033595231788458987, 0.023251648243200338),
    ),
    (
        "MaupertuisTest_03.jpg",
        (0.9994093094857858, 0.014523313845190485, 0.014628602828796078, -0.027497444379005715),
        (-0.2853156316847549, 0.04167739266383628, 0.16494736104224184),
    ),
)
# f, cx, cy, k1, k2 of both views at 1600 x 1200 (kapture's RADIAL model): sensors.txt beside trajectories.txt.
MAUPERTUIS_CAMERA = (
    1668.7938300915464,
    827.2989627028306,
    602.7682435713901,
    -0.15063858971626434,
    0.19775746608000222,
)

Array = NDArray[np.float64]


def shrunk(image: Image.Image) -> Image.Image:
    """The image with its longest side at most ``LONGEST_SIDE``."""
    factor = min(1.0, LONGEST_SIDE / max(image.size))
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)


def save(image: Image.Image, path: Path) -> None:
    """Write a JPEG without metadata."""
    image.save(path, quality=QUALITY, optimize=True)


def rotation_matrix(quaternion: tuple[float, float, float, float]) -> Array:
    """The (3, 3) rotation of a quaternion (w, x, y, z)."""
    w, *xyz = np.asarray(quaternion) / np.linalg.norm(quaternion)
    x, y, z = xyz
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + 2 * w * cross + 2 * cross @ cross, dtype=np.float64)


def relative_pose() -> Array:
    """(3, 4) ``[R | t]`` with ``X1 = R X0 + t`` and ``|t| = 1``."""
    (_, q0, t0), (_, q1, t1) = MAUPERTUIS_VIEWS
    rotation = rotation_matrix(q1) @ rotation_matrix(q0).T
    translation = np.asarray(t1) - rotation @ np.asarray(t0)
    return np.column_stack([rotation, translation / np.linalg.norm(translation)])


def undistorted(image: Image.Image) -> tuple[Image.Image, Array]:
    """Take the lens' radial distortion out and shrink; returns the (3, 3) intrinsics of the result as well."""
    f, cx, cy, k1, k2 = MAUPERTUIS_CAMERA
    intrinsics = np.array([[f, 0, cx], [0, f, cy], [0, 0, 1]])
    maps = cv2.initUndistortRectifyMap(
        intrinsics, np.array([k1, k2, 0, 0, 0]), np.eye(3), intrinsics, image.size, cv2.CV_32FC1
    )
    straight = shrunk(Image.fromarray(cv2.remap(np.asarray(image), *maps, cv2.INTER_LANCZOS4)))
    s = straight.width / image.width
    return straight, np.array([[s, 0, (s - 1) / 2], [0, s, (s - 1) / 2], [0, 0, 1]]) @ intrinsics


def make_singles(skimage_data: Path, out: Path) -> None:
    """Convert the single photographs."""
    for name, source in SINGLES.items():
        with Image.open(skimage_data / source) as image:
            save(shrunk(image), out / f"{name}.jpg")


def make_two_views(samples: Path, out: Path) -> None:
    """Make the two views of the house, their intrinsics, and the relative pose."""
    for i, (source, _, _) in enumerate(MAUPERTUIS_VIEWS):
        with Image.open(samples / "images" / source) as image:
            straight, intrinsics = undistorted(image)
        save(straight, out / f"maupertuis_{i}.jpg")
    np.savetxt(out / "maupertuis_K.txt", intrinsics, fmt="%.9g")
    np.savetxt(out / "maupertuis_pose.txt", relative_pose(), fmt="%.9g")


def main() -> None:
    """Read the folders from the command line."""
    parser = argparse.ArgumentParser(description="Make the example photographs from the packages that carry them.")
    parser.add_argument("skimage_data", type=Path, help="skimage/data of scikit-image's wheel")
    parser.add_argument("maupertuis", type=Path, help="samples/maupertuis_openMVG of kapture's source package")
    parser.add_argument("out", type=Path, help="folder to write to")
    args = parser.parse_args()
    make_singles(args.skimage_data, args.out)
    make_two_views(args.maupertuis, args.out)


if __name__ == "__main__":
    main()

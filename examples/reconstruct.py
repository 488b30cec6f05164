"""A folder of photographs to a COLMAP reconstruction to train on: ``python examples/reconstruct.py PHOTOS OUT``.

SIFT, exhaustive matching and incremental mapping by pycolmap (``pip install "steerers[colmap]"``), on the CPU. Writes
``OUT/images`` (what was registered, shrunk if asked for) and ``OUT/sparse`` (the largest model, with cameras and
observations in the pixels of those images, without the keypoints that no track uses), which is what
``steerers.datasets.colmap.Colmap`` reads. With ``--undistort`` both are those of pinholes, for ``steerers data depth``
and ``steerers eval cameras``. The database stays in ``OUT/work`` and makes a second run start where the first one
stopped.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Match, map, shrink, and print what came of it as one line of JSON."""
    options = parse(arguments)
    try:
        import pycolmap
    except ImportError:
        print('needs pycolmap: pip install "steerers[colmap]"', file=sys.stderr)  # noqa: T201
        return 2
    names = sorted(
        str(p.relative_to(options.photos)) for p in options.photos.rglob("*") if p.suffix.lower() in SUFFIXES
    )
    if len(names) < 2:
        print(f"{options.photos}: {len(names)} photographs, need two at least", file=sys.stderr)  # noqa: T201
        return 2
    work = options.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    match(pycolmap, options, names, work / "database.db")
    model = reconstruct(pycolmap, options, work)
    if model is None:
        print(f"{options.photos}: no two photographs could be reconstructed", file=sys.stderr)  # noqa: T201
        return 1
    written = write(pycolmap, model, options)
    print(json.dumps({"photos": len(names), **statistics(written)}))  # noqa: T201
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="folder of photographs, searched to its depth")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write, made if it is not there")
    parser.add_argument("--model", default="SIMPLE_RADIAL", help="camera model of COLMAP (default: %(default)s)")
    parser.add_argument("--one-camera", action="store_true", help="photographs of one size share one camera")
    parser.add_argument("--max-size", type=int, default=1600, help="longest side that SIFT sees (default: %(default)s)")
    parser.add_argument("--features", type=int, default=8192, help="keypoints an image at most (default: %(default)s)")
    parser.add_argument("--guided", action="store_true", help="match again along epipolar lines: slower, more tracks")
    parser.add_argument(
        "--max-error",
        type=float,
        default=2.0,
        help="of reprojection, of observations kept (default: %(default)s pixels)",
    )
    parser.add_argument("--long-side", type=int, help="shrink the photographs that are written to this longest side")
    parser.add_argument(
        "--undistort", action="store_true", help="write photographs and cameras without lens distortion"
    )
    parser.add_argument("--quality", type=int, default=90, help="of the JPEG files written (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=-1, help="-1 for all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the mapper (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not options.photos.is_dir():
        parser.error(f"PHOTOS: {options.photos} is not a folder")
    return options


def match(pycolmap: Any, options: argparse.Namespace, names: Sequence[str], database: Path) -> None:
    """Keypoints of every photograph and verified matches of every two, into the database."""
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads, extraction.max_image_size = options.threads, options.max_size
    extraction.sift.max_num_features = options.features
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model = options.model
    mode = pycolmap.CameraMode.SINGLE if options.one_camera else pycolmap.CameraMode.PER_IMAGE
    for group in by_size(options.photos, names) if options.one_camera else [list(names)]:
        pycolmap.extract_features(
            database,
            options.photos,
            image_names=group,
            camera_mode=mode,
            reader_options=reader,
            extraction_options=extraction,
        )
    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads, matching.guided_matching = options.threads, options.guided
    pycolmap.match_exhaustive(database, matching_options=matching)


def by_size(photos: Path, names: Sequence[str]) -> list[list[str]]:
    """Names grouped by the size of their photographs."""
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        with PIL.Image.open(photos / name) as image:
            groups[image.size].append(name)
    return list(groups.values())


def reconstruct(pycolmap: Any, options: argparse.Namespace, work: Path) -> Any | None:
    """The model with the most photographs, or ``None``."""
    mapping = pycolmap.IncrementalPipelineOptions()
    mapping.num_threads, mapping.random_seed = options.threads, options.seed
    mapping.min_model_size = 3
    mapping.mapper.filter_max_reproj_error = options.max_error
    mapping.triangulation.complete_max_reproj_error = options.max_error
    mapping.triangulation.merge_max_reproj_error = options.max_error
    models = pycolmap.incremental_mapping(work / "database.db", options.photos, work, options=mapping)
    return max(models.values(), key=lambda model: model.num_reg_images(), default=None)


def write(pycolmap: Any, model: Any, options: argparse.Namespace) -> Any:
    """Photographs and model into ``OUT``, undistorted if asked for; what was written."""
    out = options.out / "work" / "distorted" if options.undistort else options.out
    shrunk = shrink(pycolmap, model, options, out / "images")
    (out / "sparse").mkdir(exist_ok=True)
    shrunk.write_binary(str(out / "sparse"))
    if not options.undistort:
        return shrunk
    flat = options.out / "work" / "undistorted"
    pycolmap.undistort_images(
        flat, out / "sparse", out / "images", jpeg_quality=options.quality, num_threads=options.threads
    )
    for part in ("images", "sparse"):  # COLMAP also makes folders for depth maps that are not there
        shutil.copytree(flat / part, options.out / part, dirs_exist_ok=True)
    return pycolmap.Reconstruction(options.out / "sparse")


def shrink(pycolmap: Any, model: Any, options: argparse.Namespace, images: Path) -> Any:
    """The model without unused keypoints, in the pixels of the photographs that are written to ``images``."""
    small = pycolmap.Reconstruction()
    for camera in model.cameras.values():
        rescaled = copy.deepcopy(camera)
        rescaled.rescale(*target_size(options, camera))
        small.add_camera_with_trivial_rig(rescaled)
    kept: dict[tuple[int, int], int] = {}  # (image, keypoint) to its index among the keypoints that are kept
    for image_id in model.reg_image_ids():
        image = model.images[image_id]
        scale = write_image(options, image.name, model.cameras[image.camera_id], images)
        used = [i for i, point in enumerate(image.points2D) if point.has_point3D()]
        kept |= {(image_id, i): k for k, i in enumerate(used)}
        xy = np.array([image.points2D[i].xy for i in used]).reshape(-1, 2) * scale
        copied = pycolmap.Image(name=image.name, keypoints=xy, camera_id=image.camera_id, image_id=image_id)
        small.add_image_with_trivial_frame(copied, image.cam_from_world())
    for point in model.points3D.values():
        seen = [(e.image_id, kept[e.image_id, e.point2D_idx]) for e in point.track.elements]
        small.add_point3D(point.xyz, pycolmap.Track([pycolmap.TrackElement(*e) for e in seen]), point.color)
    small.update_point_3d_errors()
    return small


def target_size(options: argparse.Namespace, camera: Any) -> tuple[int, int]:
    """(width, height) of the photographs of a camera as they are written."""
    scale = min(1.0, (options.long_side or 1e9) / max(camera.width, camera.height))
    return round(camera.width * scale), round(camera.height * scale)


def write_image(options: argparse.Namespace, name: str, camera: Any, images: Path) -> NDArray[np.float64]:
    """One photograph into ``images``; returns by what its x and y were scaled."""
    target = images / name
    target.parent.mkdir(parents=True, exist_ok=True)
    size = target_size(options, camera)
    with PIL.Image.open(options.photos / name) as image:
        image.convert("RGB").resize(size, PIL.Image.Resampling.LANCZOS).save(target, quality=options.quality)
    return np.array(size) / (camera.width, camera.height)


def statistics(model: Any) -> dict[str, float]:
    """How much was registered and how well."""
    return {
        "registered": model.num_reg_images(),
        "points": model.num_points3D(),
        "observations": model.compute_num_observations(),
        "mean_track_length": round(model.compute_mean_track_length(), 3),
        "mean_reprojection_error": round(model.compute_mean_reprojection_error(), 3),
    }


if __name__ == "__main__":
    sys.exit(main())

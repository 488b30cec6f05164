"""What became of a collection, in numbers and in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steerers._version import __version__
from steerers.collection.mapping import Placed
from steerers.collection.verification import Verdict, Verified

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Model:
    """What is shown of a model: P points and C cameras."""

    names: list[str]
    centres: Array  # (C, 3)
    forward: Array  # (C, 3) where cameras look
    observed: list[int]  # points that each camera sees
    points: Array  # (P, 3)
    colours: NDArray[np.uint8]  # (P, 3)
    errors: Array  # (P,) mean reprojection error, stored pixels
    tracks: NDArray[np.int64]  # (P,)
    place: Placed

    @classmethod
    def of(cls, place: Placed) -> Model:
        """Read a model of pycolmap."""
        model = place.model
        images = sorted((model.images[index] for index in model.reg_image_ids()), key=lambda image: str(image.name))
        points = list(model.points3D.values())
        rotations = [np.asarray(image.cam_from_world().rotation.matrix()) for image in images]
        return cls(
            [image.name for image in images],
            np.array([image.projection_center() for image in images], np.float64).reshape(-1, 3),
            np.array([rotation[2] for rotation in rotations], np.float64).reshape(-1, 3),
            [int(image.num_points3D) for image in images],
            np.array([point.xyz for point in points], np.float64).reshape(-1, 3),
            np.array([point.color for point in points], np.uint8).reshape(-1, 3),
            np.array([point.error for point in points], np.float64),
            np.array([point.track.length() for point in points], np.int64),
            place,
        )


# Numbers --------------------------------------------------------------------------------------------------------------


def summarise(verified: Verified, models: Sequence[Model]) -> dict[str, Any]:
    """The numbers of a report, as JSON can hold them."""
    registered = {name for model in models for name in model.names}
    kinds = Counter(verdict.kind for verdict in verified.verdicts)
    return {
        "version": __version__,
        "photographs": len(verified.names),
        "failed": verified.collection.failures(),
        "pairs": {
            "matched": len(verified.verdicts),
            "verified": len(verified.good),
            "kinds": dict(sorted(kinds.items())),
            "contradicted": _contradicted(verified),
        },
        "rotations": {name: round(degrees, 2) for name, degrees in verified.orientations().items()},
        "registered": len(registered),
        "not_registered": _why_not(verified, [name for name in verified.names if name not in registered]),
        "models": [_model_row(model) for model in models],
    }


def _contradicted(verified: Verified) -> list[dict[str, Any]]:
    found = verified.consistency
    rows = zip(verified.good, found.kept, found.agreeing.tolist(), found.contradicting.tolist(), strict=True)
    return [
        {
            "pair": list(verdict.pair),
            "inliers": verdict.inliers,
            "angle": round(verdict.angle, 1),
            "loops_agreeing": agreeing,
            "loops_contradicting": contradicting,
        }
        for verdict, kept, agreeing, contradicting in rows
        if not kept
    ]


def _model_row(model: Model) -> dict[str, Any]:
    alignment = model.place.alignment
    return {
        "photographs": len(model.names),
        "points": len(model.points),
        "observations": int(model.tracks.sum()),
        "mean_track_length": round(float(model.tracks.mean()), 3),
        "mean_reprojection_error": round(float(model.errors.mean()), 3),
        "gps": model.place.reason
        if alignment is None
        else {
            "error_m": round(alignment.error, 3),
            "altitudes": not alignment.level,
            "used": len(alignment.offsets) - len(alignment.wrong),
            "wrong": {name: round(alignment.offsets[name], 1) for name in alignment.wrong},
        },
    }


def _why_not(verified: Verified, names: Iterable[str]) -> dict[str, str]:
    """Why photographs are in no model, as far as their pairs tell."""
    matches = _most((verdict, verdict.matches) for verdict in verified.verdicts)
    good = _most((verdict, verdict.inliers) for verdict in verified.good)
    consistent = _most((verdict, verdict.inliers) for verdict in verified.consistent)
    told = {}
    for name in names:
        if name not in matches:
            told[name] = "in no pair that was matched"
        elif name not in good:
            told[name] = f"none of its pairs is explained by geometry (at most {matches[name]} matches)"
        elif name not in consistent:
            told[name] = "its pairs contradict their loops"
        else:
            told[name] = f"the mapper could not place it (at most {consistent[name]} inliers with another photograph)"
    return told


def _most(numbers: Iterable[tuple[Verdict, int]]) -> dict[str, int]:
    """The largest number of a pair of each photograph."""
    most: dict[str, int] = {}
    for verdict, number in numbers:
        for name in verdict.pair:
            most[name] = max(number, most.get(name, 0))
    return most


def sentences(numbers: Mapping[str, Any]) -> list[str]:
    """What is to be said of a reconstruction, the most important first."""
    models, pairs = numbers["models"], numbers["pairs"]
    told = [_models_told(numbers)]
    if models:
        best = models[0]
        told.append(
            f"{best['points']:,} points, observed {best['mean_track_length']:.2f} times on average, reprojected to "
            f"{best['mean_reprojection_error']:.2f} pixels"
        )
    told.append(
        f"{pairs['verified']:,} of {pairs['matched']:,} matched pairs are explained by geometry; the rotations of "
        f"{len(pairs['contradicted']):,} of them contradict their loops"
    )
    told += [sentence for number, model in enumerate(models) for sentence in _gps_told(number, model, len(models))]
    if numbers["failed"]:
        told.append(f"{len(numbers['failed'])} photographs could not be read")
    return told


def _models_told(numbers: Mapping[str, Any]) -> str:
    models, count = numbers["models"], numbers["photographs"]
    if not models:
        return f"none of {count} photographs could be reconstructed: {_why_nothing(numbers)}"
    if len(models) == 1:
        return f"{numbers['registered']} of {count} photographs are registered, in one model"
    sizes = ", ".join(str(model["photographs"]) for model in models)
    return (
        f"{numbers['registered']} of {count} photographs are registered, in {len(models)} models of {sizes} that "
        "nothing joins: different scenes, or too little overlap between them"
    )


def _why_nothing(numbers: Mapping[str, Any]) -> str:
    pairs = numbers["pairs"]
    if numbers["photographs"] < 2:
        return "it takes two at least"
    if not pairs["matched"]:
        return "no pair was matched"
    if not pairs["verified"]:
        return "no pair is explained by geometry"
    if pairs["kinds"].get("planar", 0) == pairs["verified"]:
        return "every pair is explained by a homography, so they show something flat, or were taken from one place"
    return "too few matches, or all taken from one place"


def _gps_told(number: int, model: Mapping[str, Any], count: int) -> list[str]:
    which, gps = f"model {number}: " if count > 1 else "", model["gps"]
    if isinstance(gps, str):
        return [which + gps]
    told = [f"{which}aligned to GPS by {gps['used']} photographs, {gps['error_m']:.2g} m off at the median"]
    if not gps["altitudes"]:
        told.append(
            f"{which}GPS altitudes are missing or wrong, and were not used: photographs count as taken at one height"
        )
    for name, off in gps["wrong"].items():
        far = f"{off / 1000:,.0f} km" if off >= 10_000 else f"{off:,.0f} m"
        told.append(f"{which}the GPS position of {name} is {far} from where the model has it, and was not used")
    return told

"""The benchmarks as ``steerers eval`` offers them: words, options and defaults, for the command line without PyTorch.

What a benchmark does is a record in a module of its own, which carries its offer; see
:mod:`steerers.benchmarks.benchmark`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from steerers._choices import DEFAULT_MODEL, MAP_KEYPOINTS, NUM_KEYPOINTS, Cameras
from steerers._console import Option, Options, flag, four_corners, names, positive, precision

MAX_SIZE = 800
"""Longest side of the evaluated images in pixels, unless a benchmark has its own."""
SPEC = "MODEL[@DETECTOR][:STRATEGY[:ORDER]][?OPTION=VALUE&...]"
"""How a model and its matching are written."""

Rotation = Literal["upright", "fixed", "quarter", "all", "joint", "c4", "so2"]
ROTATIONS: dict[Rotation, str] = {
    "upright": "as stored",
    "fixed": "second image of pair i rotated by (50 i + 40) mod 360 degrees",
    "quarter": "second image rotated by 90, 180 and 270 degrees",
    "all": "second image rotated by 0, 10, ..., 350 degrees",
    "joint": "both images rotated by the same 90, 180 and 270 degrees",
    "c4": "second image of pair i rotated by (i mod 4) 90 degrees",
    "so2": "second image of pair i rotated by (i mod 36) 10 degrees",
}
Canvas = Literal["keep", "grow"]
CANVASES: dict[Canvas, str] = {
    "keep": "on a canvas of its own size, corners cut",
    "grow": "on a canvas that holds it whole",
}
EstimatorName = Literal["poselib", "opencv"]
THRESHOLDS: dict[EstimatorName, float] = {"poselib": 1.0, "opencv": 0.5}
"""Of the inliers of poses, pixels."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The words, options and defaults of a benchmark.

    Attributes:
        help: one line, for the list of benchmarks.
        about: what its own help says first.
        example: at least one line ``  steerers eval NAME ...``.
        data: what ``--data`` is; ``None`` if the benchmark needs none.
        models: the default of ``--models``; so are ``num_keypoints``, ``max_size`` and ``short_side`` those of their
            options, and ``None`` leaves an option out.
        seed: whether it draws anything itself; strategies have seeds of their own.
        paper: the experiment of the paper and its variant, whose rows ``--no-paper`` hides.
        keeps_matches: whether it has matches to keep, so that there are options for where.
        rotations: the default of ``--rotation``, with commas between; ``None`` leaves it out.
        canvas: the default of ``--canvas``; ``None`` leaves it and ``--mask-corners`` out: images are rotated by whole
            quarter turns, or not at all.
        own_options: those that no other benchmark has.
    """

    name: str
    help: str
    about: str
    example: str
    data: str | None
    models: str = f"{DEFAULT_MODEL},upright-sift,sift,orb"
    num_keypoints: int = NUM_KEYPOINTS
    max_size: int | None = MAX_SIZE
    short_side: int | None = None
    seed: bool = True
    paper: tuple[str, str] | None = None
    keeps_matches: bool = True
    rotations: str | None = None
    canvas: Canvas | None = None
    own_options: Options = ()


SEQUENCES = Option("--sequences", "names of the sequences (default: all)", names, "LIST")


# Homographies ---------------------------------------------------------------------------------------------------------


def _homographies(name: str, images: str, example: str, *more: Option) -> Offer:
    return Offer(
        name=name,
        help=f"homographies on {images}",
        about=f"Homography estimation on {images}, upright or rotated: area under the curve of the corner error, "
        "precision of the matches, repeatability of the detector, error of the angle, and times.",
        example=example,
        data="the folder that holds the sequences",
        rotations="upright",
        canvas="grow",
        own_options=(
            SEQUENCES,
            Option(
                "--threshold",
                "within which of the homography a match is an inlier; the estimator, MAGSAC, weighs matches at all "
                "distances, so that its homographies hardly depend on it (default: %(default)s)",
                float,
                "PX",
                3.0,
            ),
            *more,
        ),
    )


OXFORD = _homographies(
    "oxford",
    "the Oxford affine sequences",
    "  steerers eval oxford --data oxford --models compact,sift,orb --rotation fixed --report out\n",
)
HPATCHES = _homographies(
    "hpatches",
    "the HPatches sequences",
    """\
  steerers eval hpatches --data hpatches-sequences-release --models upright-sift:max-matches,upright-sift:tta \\
      --rotation upright,quarter,joint --no-cache
""",
    flag("--skip-large", "leave out the eight sequences that D2-Net and LoFTR leave out"),
)
ALIGNMENT = Offer(
    name="alignment",
    help="images laid over each other, on the Oxford affine sequences",
    about="What `steerers align` makes of the matches of the Oxford affine sequences, upright or rotated: area under "
    "the curve of the corner error, for a similarity, an affine map, a homography or what suits, with a local part or "
    "without. MODEL?refine=1 registers the patches of matches first. Needs steerers[maps].",
    example="  steerers eval alignment --data oxford --models 'compact,compact?refine=1' --rotation upright,fixed\n",
    data="the folder that holds the sequences",
    rotations="upright",
    canvas="grow",
    own_options=(
        SEQUENCES,
        Option("--transform", "auto, similarity, affine or homography (default: %(default)s)", str, "NAME", "auto"),
        flag("--local", "and a smooth local part"),
        Option("--threshold", "within which a match agrees (default: %(default)s)", float, "PX", 3.0),
    ),
)
SAT_AST = Offer(
    name="sat-ast",
    help="homographies from astronauts' photographs to satellite images (SatAst)",
    about="Homographies between photographs by astronauts and satellite images, upright or rotated: area under the "
    "curve of the errors of points that were marked by hand.",
    example="""\
  steerers eval sat-ast --data satast --models compact,sift --rotation upright,quarter --report out
""",
    data="the folder that holds annotations-v1 and data",
    max_size=1024,
    seed=False,
    rotations="upright,quarter",
    canvas="grow",
    own_options=[
        Option(
            "--threshold",
            "of the estimator's inliers, for images that span -1 to 1 (default: %(default)s)",
            float,
            "T",
            0.001,
        )
    ],
)
AIMS = Offer(
    name="aims",
    help="which satellite images show an astronaut's photograph (AIMS)",
    about="Retrieval of satellite images for photographs by astronauts: average precision, by the number of inliers of "
    "the homography of each pair, for photographs with North up, all others and all.",
    example="""\
  steerers eval aims --data aims --models dedode-b-so2-spread@dedode-l-so2,compact,sift --report out

manifest.csv in the folder lists the pairs, paths from its folder, positive 1 if both show the same place:
  query,candidate,positive,split
  photos/ISS052-E-8329.jpg,tiles/13_2804_4286.jpg,1,north-up
  photos/ISS052-E-8329.jpg,tiles/13_2806_4286.jpg,0,north-up
  photos/ISS056-E-6047.jpg,tiles/14_10052_14788.jpg,1,others
""",
    data="the folder that holds manifest.csv (see below) and the images",
    num_keypoints=10_000,
    max_size=None,
    short_side=576,
    paper=("aims", ""),
    own_options=(
        Option("--manifest", "the manifest (default: manifest.csv in DIR)", Path, "FILE"),
        Option("--threshold", "of the estimator's inliers (default: %(default)s)", float, "PX", 5.0),
    ),
)


# Matches --------------------------------------------------------------------------------------------------------------

ROTO_ORIGINAL, ROTO_LIKE = "Roto-360", "Roto-360-like"
"""What the data of Roto-360 is called, and what is made like it."""
ROTO_SCENES = 10
ROTO_360 = Offer(
    name="roto-360",
    help="precision of matches of rotated photographs",
    about="Roto-360: each of ten photographs against itself, rotated by all multiples of 10 degrees: precision at 3, 5 "
    "and 10 pixels, number of matches and keypoints. With --make, such data is made from a folder of photographs.",
    example="""\
  steerers eval roto-360 --data roto360 --models compact,sift:mutual-nearest --report out
  steerers eval roto-360 --make photographs --data roto360-like
""",
    data="the folder that holds the scenes, or is to",
    max_size=3000,  # RELF halves what is larger
    seed=False,
    paper=("roto-360", ""),
    own_options=(
        Option("--sequences", "names of the scenes (default: all)", names, "LIST"),
        Option("--make", "make data in --data from these photographs", Path, "IMAGES"),
        Option(
            "--scenes",
            "photographs for --make, the first ones by name (default: %(default)s)",
            positive,
            "N",
            ROTO_SCENES,
        ),
    ),
)
COLLECTIONS = Offer(
    name="collections",
    help="a folder of photographs without ground truth",
    about="Pairs of photographs of one place, such as those of a drone, without ground truth: how many are verified by "
    "geometry, their inliers and angles, and how well the angles agree around three images.",
    example="""\
  steerers eval collections --data flight --models compact,sift --neighbours 5 --report out
  steerers eval collections --data flight --models compact,sift --gps 80 --geometry fundamental
""",
    data="the folder that holds the photographs",
    own_options=(
        (
            Option(
                "--neighbours",
                "match each photograph with the K that follow it in the order of names (default: with all)",
                positive,
                "K",
            ),
            Option("--gps", "match those taken at most so far apart, by their EXIF positions", float, "METRES"),
        ),
        Option(
            "--pairs",
            "match at most N pairs, the nearest in the order of names, or on the ground with --gps",
            positive,
            "N",
        ),
        Option(
            "--geometry", "what verifies a pair: homography or fundamental (default: %(default)s)", default="homography"
        ),
        Option("--min-inliers", "that a verified pair has (default: %(default)s)", positive, "N", 30),
        Option("--threshold", "of inliers, pixels of the resized images (default: %(default)s)", float, "PX", 3.0),
    ),
)


# Poses ----------------------------------------------------------------------------------------------------------------


def _estimator_options(estimator: EstimatorName) -> tuple[Option, ...]:
    """The options of an estimator, and which sequences; ``estimator`` is the default."""
    about = "opencv is that of the paper (default: %(default)s)"
    often = "estimate every pair so often, with other seeds (default: %(default)s)"
    thresholds = ", ".join(f"{threshold:g} for {name}" for name, threshold in THRESHOLDS.items())
    return (
        SEQUENCES,
        Option("--estimator", about, default=estimator, choices=tuple(THRESHOLDS)),
        Option("--threshold", f"of inliers (default: {thresholds})", float, "PX"),
        Option("--runs", often, positive, "N", 1, dest="repeats"),
    )


def _poses(name: str, images: str, folder: str, *more: Option, **told: Any) -> Offer:
    """A benchmark of relative pose on published pairs, by the paper's estimator; ``folder`` is that of the example."""
    return Offer(
        name=name,
        help=f"relative pose on {images}",
        about=f"Relative pose on {images}: area under the curve of the pose error at 5, 10 and 20 degrees.",
        example=f"  steerers eval {name} --data {folder} --models dedode-b,dedode-b-c4 --runs 5\n",
        own_options=(*_estimator_options("opencv"), *more),
        **told,
    )


def _megadepth(variant: str, rotated: str = "", canvas: Canvas | None = None) -> Offer:
    return _poses(
        f"megadepth-{variant}",
        f"MegaDepth-1500{rotated}",
        "megadepth",
        data="the folder that holds LoFTR's scene files and Undistorted_SfM",
        num_keypoints=20_000,
        max_size=1024,
        paper=("megadepth", variant),
        canvas=canvas,
    )


MEGADEPTH = {
    "1500": _megadepth("1500"),
    "c4": _megadepth("c4", f", the {ROTATIONS['c4']}"),
    "so2": _megadepth("so2", f", the {ROTATIONS['so2']}", "keep"),
    "joint": _megadepth("joint", f", {ROTATIONS['joint']}"),
}

SCANNET_LISTS = ("test.npz", "scannet_test_pairs_with_gt.txt", "scannet_sample_pairs_with_gt.txt")
"""The lists of pairs that LoFTR and SuperGlue have."""
SCANNET_SIZE = (640, 480)
"""At which both protocols match."""


def _scannet(variant: str, rotated: str = "", canvas: Canvas | None = None) -> Offer:
    return _poses(
        f"scannet-{variant}",
        f"ScanNet-1500{rotated}",
        "scannet",
        Option("--pairs", f"the list of pairs (default: {' or '.join(SCANNET_LISTS[:2])} in DIR)", Path, "FILE"),
        data="the folder that holds the list of pairs and the images, as LoFTR or SuperGlue have them",
        num_keypoints=5000,
        max_size=SCANNET_SIZE[0],
        canvas=canvas,
    )


SCANNET = {
    "1500": _scannet("1500"),
    "c4": _scannet("c4", f", the {ROTATIONS['c4']}"),
    "so2": _scannet("so2", f", the {ROTATIONS['so2']}", "keep"),
}
CAMERAS = Offer(
    name="cameras",
    help="relative pose on your own images with cameras",
    about="Relative pose on sequences of images with a cameras.json or a COLMAP model each, upright or rotated: area "
    "under the curve of the pose error at 5, 10 and 20 degrees.",
    example="""\
  steerers eval cameras --data strecha --models compact,sift --rotation upright,fixed --apart 1,2,3
""",
    data="a folder of sequences, each with a cameras.json, or with a COLMAP model beside its images/",
    max_size=1024,
    rotations="upright",
    canvas="grow",
    own_options=(
        *_estimator_options("poselib"),
        Option(
            "--apart",
            "pairs (i, i + k) of a sequence for each k (default: %(default)s)",
            lambda text: [positive(number) for number in names(text)],
            "LIST",
            "1,2,3",
        ),
    ),
)


# Without matches ------------------------------------------------------------------------------------------------------


def _angles(text: str) -> tuple[float, ...]:
    try:
        angles = tuple(map(float, names(text)))
    except ValueError:
        angles = ()
    if not angles or len(set(angles)) < len(angles) or not all(map(math.isfinite, angles)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different angles in degrees with commas between")
    return angles


RUNTIME = Offer(
    name="runtime",
    help="how long description and matching take",
    about="Time description and matching, apart and together, of random image tensors with random keypoints, for every "
    "strategy and for test-time augmentation with 4 and 8 rotations.",
    example="""\
  steerers eval runtime --models dedode-b,dedode-b-c4-perm,dedode-b-so2 --random-weights --device cuda --report out
  steerers eval runtime --models upright-sift --strategies dual-softmax,max-matches,tta:4 --repeats 10
""",
    data=None,
    models=DEFAULT_MODEL,
    num_keypoints=5000,
    max_size=None,
    paper=("runtime", ""),
    keeps_matches=False,
    own_options=(
        Option("--strategies", "STRATEGY[:ORDER], with commas between (default: all)", names, "LIST"),
        Option("--size", "side of the square images: %(default)s", positive, "PX", 784),
        Option("--repeats", "pairs that are timed: %(default)s", positive, "N", 100),
        Option("--warm-up", "pairs before them: %(default)s", int, "N", 3),
        flag("--random-weights", "models without their weights, which time does not depend on"),
        precision(),
    ),
)
EQUIVARIANCE = Offer(
    name="equivariance",
    help="how well a steerer steers",
    about="Compare steered descriptions with those computed anew from rotated photographs: cosine and rank over "
    "angles. And how far the cosines between two photographs change when both are rotated alike (Theorem 5.1).",
    example="""\
  steerers eval equivariance --data photographs --models compact,disk-c4@upright-sift --report out
  steerers eval equivariance --data photographs --models upright-sift-so2 --angles 0,15,30,45 --num-photos 20
""",
    data="a folder of photographs, any will do",
    models=f"{DEFAULT_MODEL},upright-sift,upright-sift-so2",
    num_keypoints=512,
    max_size=640,
    seed=False,
    keeps_matches=False,
    own_options=(
        Option("--angles", "degrees, with commas between (default: every 10)", _angles, "LIST"),
        Option("--num-photos", "as many, spread over the folder (default: all)", positive, "N"),
        Option("--margin", "between disc and border (default: %(default)g)", float, "PX", 16.0),
    ),
)
RETRIEVAL = Offer(
    name="retrieval",
    help="whether rotated photographs find their neighbours",
    about="Look for each photograph among all others, as it is and rotated by a random angle, by vectors that are "
    "pooled from its descriptions as they are, and from what no rotation changes in them, as `steerers pairs "
    "--similar` does. What shall be found are those next to it in its folder, in the order of names.",
    example="""\
  steerers eval retrieval --data strecha --models compact,upright-sift --report out
""",
    data="a folder with photographs, or folders of them, taken one after the other",
    models=f"{DEFAULT_MODEL},upright-sift,sift",
    max_size=1024,
    keeps_matches=False,
    own_options=(Option("--within", "places apart of neighbours, at most (default: %(default)s)", positive, "N", 2),),
)

VERDICT = Offer(
    name="verdict",
    help="whether two images show the same thing: fit and check the probability",
    about="Fit the probability that two images show the same thing, which `steerers match` prints, on one half of the "
    "data, and check it on the other: photographs next to each other in a folder and views of one photograph, and "
    "photographs of different folders and views of different photographs.",
    example="""\
  steerers eval verdict --data scenes --photos photographs --models compact --report out
""",
    data="a folder with folders of photographs of one thing each, such that those next to each other overlap",
    models=DEFAULT_MODEL,
    max_size=640,
    keeps_matches=False,
    own_options=(
        Option(
            "--photos", "photographs of different things, KIND_NAME.jpg if they have kinds", Path, "DIR", required=True
        ),
        Option("--pairs", "of neighbours, and photographs (default: %(default)s)", positive, "N", 100),
    ),
)
MAP = Offer(
    name="map",
    help="where on a map photographs were taken",
    about="Look for photographs on a map, as `steerers locate` does, with nothing known beforehand and, with --within, "
    "with the GPS positions of truth.csv: how many are placed within 20, 50 and 100 pixels of the truth on the map, "
    "the error of the angle to north, false answers, seconds a photograph, how many of the best answers are right, "
    "however unlikely; and of photographs of elsewhere, how many are taken to be on the map. MODEL:tta:8 describes "
    "every photograph at eight rotations.",
    example="""\
  steerers eval map --data fongyuan --corners '120.71,24.26 120.72,24.26 120.72,24.25 120.71,24.25' --within 500

truth.csv in the folder, beside map.* and photos, has a row a photograph; checked is 1 if the centre is known:
  file,gps_lat,gps_lon,yaw_deg,centre_x,centre_y,checked
  0001.jpg,24.26109861,120.7207478,156.0,3168.0,1492.1,1
""",
    data="a folder with a map (map.tif, .jpg or .png), photos and truth.csv",
    models=DEFAULT_MODEL,
    num_keypoints=MAP_KEYPOINTS,
    max_size=None,
    seed=False,
    keeps_matches=False,
    own_options=(
        Option("--corners", "of a map that does not say where it lies, as of `steerers locate`", four_corners, "LIST"),
        Option("--within", "look also with a position that is known to so many metres", float, "M"),
        Option("--elsewhere", "photographs that are not on the map", Path, "DIR"),
        Option("--num-photos", "of those, spread over the folder (default: %(default)s)", positive, "N", 100),
        Option("--indexes", "keep the index of each model in this folder (default: in none)", Path, "DIR"),
    ),
)
LOCALISATION = Offer(
    name="localisation",
    help="how exact matched places are, as detected and refined",
    about="Match every photograph with itself, rotated, scaled, blurred or with noise, and measure how many pixels "
    "matched places are from where they should be: as they were detected, and refined as by `steerers match --refine`.",
    example="""\
  steerers eval localisation --data photographs --models compact,upright-sift,sift --num-photos 10
""",
    data="a folder of photographs",
    models=f"{DEFAULT_MODEL},upright-sift-so2,sift",
    max_size=800,
    keeps_matches=False,
    own_options=(Option("--num-photos", "as many, spread over the folder (default: all)", positive, "N"),),
)


Turn = Literal["upright", "quarter-random"]
TURNS: dict[Turn, str] = {
    "upright": "as stored",
    "quarter-random": "every photograph rotated by a random quarter turn, without EXIF data",
}
"""How the photographs of a reconstruction are shown."""
COLMAP_SIFT = "colmap-sift"
"""COLMAP's own features, beside models by their names."""


def read_rotations(text: str, known: Collection[str], use: str) -> list[str]:
    """Different names of what is known, with commas between; ``use`` says to people what that is."""
    found = names(text)
    for index, name in enumerate(found):
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown rotation {name!r}; use {use}")
        if name in found[:index]:
            raise argparse.ArgumentTypeError(f"rotation {name!r} is named twice")
    return found


def _turns(text: str) -> list[str]:
    return read_rotations(text, TURNS, " or ".join(TURNS))


RECONSTRUCTION = Offer(
    name="reconstruction",
    help="COLMAP models of photographs in any orientation, beside COLMAP's SIFT",
    about="Reconstruct folders of photographs as `steerers reconstruct` does, or with --refine (MODEL?refine=1), and "
    f"with COLMAP's own SIFT ({COLMAP_SIFT}) by the same mapper: how many photographs are registered, points, lengths "
    "of tracks, reprojection errors, seconds and, where a folder has a cameras.json, how far cameras are off. Needs "
    "steerers[colmap].",
    example="""\
  steerers eval reconstruction --data strecha --models 'compact,compact?refine=1,colmap-sift' \\
      --rotation upright,quarter-random --work work --report out
""",
    data="a folder of photographs, or a folder of such folders",
    models=f"{DEFAULT_MODEL},{DEFAULT_MODEL}?refine=1,{COLMAP_SIFT}",
    max_size=1024,
    keeps_matches=False,
    own_options=(
        Option("--rotation", f"{' or '.join(TURNS)}, or both (default: %(default)s)", _turns, "LIST", "upright"),
        Option("--scenes", "names of the folders (default: all)", names, "LIST"),
        Option(
            "--cameras",
            "that share their parameters, as of `steerers reconstruct` (default: %(default)s)",
            default="auto",
            choices=get_args(Cameras),
        ),
        Option("--work", "keep all steps here, so that an interrupted run goes on (default: nowhere)", Path, "DIR"),
    ),
)

OFFERS: tuple[Offer, ...] = (
    OXFORD, HPATCHES, ALIGNMENT, ROTO_360, *MEGADEPTH.values(), *SCANNET.values(), CAMERAS, AIMS, SAT_AST, COLLECTIONS,
    RUNTIME, EQUIVARIANCE, RETRIEVAL, VERDICT, MAP, LOCALISATION, RECONSTRUCTION,
)  # fmt: skip
"""All that there are, in the order of the help."""

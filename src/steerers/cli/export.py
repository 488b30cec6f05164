"""``steerers export``: the embedded network for other runtimes, as ONNX, or a collection for other programs."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from steerers._choices import NUM_KEYPOINTS
from steerers._console import Option, positive
from steerers.cli import options
from steerers.cli.options import Command

COLLECTIONS = ("colmap", "hloc", "opensfm")
"""Programs that a collection is written for."""


def run(arguments: argparse.Namespace) -> int:
    """Export what the first word names."""
    if arguments.what in COLLECTIONS:
        return _export_collection(arguments)
    if arguments.folder is not None:
        raise ValueError(f"a folder goes with {', '.join(COLLECTIONS)}, and {arguments.what} is a model")
    return _export_onnx(arguments)


def _export_collection(arguments: argparse.Namespace) -> int:
    """Verify the pairs of a collection and write the files of another program."""
    if arguments.folder is None:
        raise ValueError(f"say which collection: steerers export {arguments.what} OUT")
    for name in ("num_keypoints", "size", "opset"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} goes with a model, not with {arguments.what}")
    from steerers.collection import Collection, verify
    from steerers.collection.colmap import write_database
    from steerers.collection.exports import write_hloc, write_opensfm
    from steerers.collection.reconstruction import DATABASE, REFINED, verify_refined

    collection = Collection.open(arguments.folder)
    if not collection.matched():
        raise ValueError(f"{collection.folder} has no matches: steerers match-pairs {collection.folder} makes them")
    how, keep = options.verification(arguments), arguments.keep_contradicted
    refine = partial(verify_refined, keep_contradicted=keep)
    verified = (refine if arguments.refine else verify)(collection, how)
    if arguments.what == "colmap":
        out: Path = arguments.out or collection.folder / (REFINED if arguments.refine else DATABASE)
        done = write_database(verified, out, cameras=arguments.cameras, keep_contradicted=keep)
        options.say(
            f"{done.photographs} photographs, {done.cameras} cameras, {done.matched} matched and {done.verified} "
            f"verified pairs: {out}"
        )
        return 0
    write = write_hloc if arguments.what == "hloc" else write_opensfm
    options.say_wrote(*write(verified, arguments.out or collection.folder / arguments.what, keep_contradicted=keep))
    return 0


def _export_onnx(arguments: argparse.Namespace) -> int:
    """Export, compare, say how well it agrees."""
    out: Path = arguments.out or Path(f"{arguments.what}.onnx")
    if out.suffix != ".onnx":
        raise ValueError(f"cannot write {out}: the file of a graph ends in .onnx")
    options.check_output(out)
    from steerers.models.onnx import OPSET, export_onnx, graph_name, load_exportable
    from steerers.models.zoo import find

    model = load_exportable(arguments.what)
    opset, count = arguments.opset or OPSET, arguments.num_keypoints or NUM_KEYPOINTS
    agreement = export_onnx(
        model,
        out,
        num_keypoints=count,
        size=arguments.size,
        opset=opset,
        metadata={"licence": find(arguments.what).licence},
    )
    images = "any size" if arguments.size is None else f"{arguments.size[0]} x {arguments.size[1]} pixels"
    options.say(
        f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB): {graph_name(model)}, images of {images} at one scale, "
        f"{count} keypoints, opset {opset}"
    )
    if graph_name(model) != model.name:
        options.say(f"{model.name} has several scales: run the file on each size of an image, see docs/onnx.md")
    options.say(
        f"onnxruntime finds {100 * agreement.keypoints:.1f} % of PyTorch's keypoints; least cosine of descriptions "
        f"{agreement.cosine:.6f}"
    )
    return 0


COMMAND = Command(
    description="Write the embedded network as one ONNX file, from images (B, 3, H, W) in [0, 1] to keypoints "
    "(B, K, 2) in pixels, scores (B, K) and descriptions (B, K, D). What matching needs (steerer, rotations, "
    "temperature, threshold) is in its metadata. The file is compared with PyTorch before it is kept. Or write a "
    "collection with its verified pairs for another program: a COLMAP database, or the files of hloc or OpenSfM.",
    example="""\
  steerers export compact --out compact.onnx
  steerers export compact --out fixed.onnx --num-keypoints 1024 --size 640x480 --opset 18
  steerers export colmap collection --out database.db
  steerers export hloc collection --out outputs
""",
    options=(
        Option("what", f"the model: compact; or {', '.join(COLLECTIONS)}", metavar="WHAT"),
        Option("folder", "the folder of a collection", Path, "OUT", nargs="?"),
        Option(
            "-o --out",
            "of a model the file, .onnx (default: NAME.onnx); of a collection a database or a folder (default: in OUT)",
            Path,
            "PATH",
        ),
        Option(
            "--num-keypoints",
            "of a model: rows of the outputs; where an image has fewer keypoints, rows of score -1 fill up (default: "
            f"{NUM_KEYPOINTS})",
            positive,
            "K",
        ),
        Option(
            "--size", "of a model: the only size of images that it will take (default: any)", options.parse_size, "WxH"
        ),
        Option("--opset", "of a model: version of ONNX's operators, 18 to 23 (default: 20)", positive, "N"),
        *options.VERIFICATION,
        options.REFINE_TRACKS,
        options.CAMERAS,
    ),
    run=run,
)

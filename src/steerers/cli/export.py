"""``steerers export NAME``: the embedded network for other runtimes, as ONNX."""

from __future__ import annotations

import argparse
from pathlib import Path

from steerers._choices import NUM_KEYPOINTS
from steerers._console import Option, positive
from steerers.cli import options
from steerers.cli.options import Command


def run(arguments: argparse.Namespace) -> int:
    """Export, compare, say how well it agrees."""
    out: Path = arguments.out or Path(f"{arguments.model}.onnx")
    if out.suffix != ".onnx":
        raise ValueError(f"cannot write {out}: the file of a graph ends in .onnx")
    options.check_output(out)
    from steerers.models.onnx import OPSET, export_onnx, graph_name, load_exportable
    from steerers.models.zoo import find

    model = load_exportable(arguments.model)
    opset = arguments.opset or OPSET
    agreement = export_onnx(
        model,
        out,
        num_keypoints=arguments.num_keypoints,
        size=arguments.size,
        opset=opset,
        metadata={"licence": find(arguments.model).licence},
    )
    images = "any size" if arguments.size is None else f"{arguments.size[0]} x {arguments.size[1]} pixels"
    options.say(
        f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB): {graph_name(model)}, images of {images} at one scale, "
        f"{arguments.num_keypoints} keypoints, opset {opset}"
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
    "temperature, threshold) is in its metadata. The file is compared with PyTorch before it is kept.",
    example="""\
  steerers export compact --out compact.onnx
  steerers export compact --out fixed.onnx --num-keypoints 1024 --size 640x480 --opset 18
""",
    options=(
        Option("model", "the model: compact", metavar="NAME"),
        Option("-o --out", "the file, .onnx (default: NAME.onnx)", Path, "FILE"),
        Option(
            "--num-keypoints",
            "rows of the outputs; where an image has fewer keypoints, rows of score -1 fill up (default: %(default)s)",
            positive,
            "K",
            NUM_KEYPOINTS,
        ),
        Option("--size", "the only size of images that it will take (default: any)", options.parse_size, "WxH"),
        Option("--opset", "version of ONNX's operators, 18 to 23 (default: 20)", positive, "N"),
    ),
    run=run,
)

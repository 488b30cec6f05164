"""What the page needs of the package: ``python web/prepare.py`` puts model and examples into ``web/static``.

The network is what ``steerers export compact`` writes, with its weights stored in half precision, which halves what a
visitor loads; it computes in float32 as before. What matching must know goes into ``model.json``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from steerers.cli import main
from steerers.images.load import load_image
from steerers.models.onnx import INPUT, OUTPUTS

ROOT = Path(__file__).parents[1]
STATIC = ROOT / "web" / "static"
NUM_KEYPOINTS = 2048
EXAMPLES = (
    {"name": "A house from two sides", "pictures": ["maupertuis_0.jpg", "maupertuis_1.jpg"]},
    {"name": "A board, seen askew", "pictures": ["board_0.jpg", "board_1.jpg"]},
)
NEAR, ENOUGH, LEAST_COSINE = 0.01, 0.99, 0.999
"""How near, in pixels, a keypoint must stay when weights are halved, of how many, and how like its description."""
LARGE = 10_000
"""Arrays of fewer numbers are kept as they are: those of the finest features, which place keypoints, are 0.1 MB."""


def prepare() -> None:
    (STATIC / "model").mkdir(parents=True, exist_ok=True)
    path = STATIC / "model" / "compact.onnx"
    if main(["export", "compact", "--out", str(path), "--num-keypoints", str(NUM_KEYPOINTS), "--quiet"]):
        raise SystemExit("the model was not exported")
    whole = path.read_bytes()
    graph = onnx.load_from_string(whole)
    halve(graph)
    onnx.save(graph, path)
    check(whole, path.read_bytes())
    told = {entry.key: entry.value for entry in graph.metadata_props}
    (STATIC / "model" / "model.json").write_text(json.dumps(described(told, path), indent=1) + "\n", encoding="utf-8")
    (STATIC / "examples").mkdir(exist_ok=True)
    for name in ("LICENSE-kapture.txt", *(name for example in EXAMPLES for name in example["pictures"])):
        shutil.copy(ROOT / "examples" / name, STATIC / "examples" / name)
    (STATIC / "examples" / "examples.json").write_text(json.dumps(EXAMPLES, indent=1) + "\n", encoding="utf-8")


def halve(graph: onnx.ModelProto) -> None:
    """Store large arrays of weights in half precision, and cast them when they are read."""
    kept, casts = [], []
    for tensor in graph.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < LARGE:
            kept.append(tensor)
            continue
        half = f"{tensor.name}_half"
        kept.append(numpy_helper.from_array(values.astype(np.float16), half))
        casts.append(helper.make_node("Cast", [half], [tensor.name], to=TensorProto.FLOAT))
    nodes = list(graph.graph.node)
    del graph.graph.initializer[:], graph.graph.node[:]
    graph.graph.initializer.extend(kept)
    graph.graph.node.extend([*casts, *nodes])
    onnx.checker.check_model(graph)


def check(whole: bytes, halved: bytes) -> None:
    """Both graphs must find the same in an example.

    Raises:
        SystemExit: if they do not.
    """
    import onnxruntime

    image = load_image(ROOT / "examples" / "coffee.jpg", max_size=320).tensor[None].numpy()
    (xy0, _, descriptions0), (xy1, _, descriptions1) = (
        onnxruntime.InferenceSession(graph).run(list(OUTPUTS), {INPUT: image}) for graph in (whole, halved)
    )
    distance, nearest = torch.cdist(torch.tensor(xy0[0]).double(), torch.tensor(xy1[0]).double()).min(dim=1)
    near = distance < NEAR
    first, second = torch.tensor(descriptions0[0])[near], torch.tensor(descriptions1[0])[nearest[near]]
    cosine = float(torch.cosine_similarity(first, second, dim=1).min())
    if float(near.double().mean()) < ENOUGH or cosine < LEAST_COSINE:
        raise SystemExit(f"halved weights move keypoints: {int(near.sum())} of {len(near)} stay, least cosine {cosine}")


def described(told: dict[str, str], path: Path) -> dict[str, object]:
    """What the page reads: the model and how it is matched."""
    return {
        "name": told["model"],
        "version": told["steerers_version"],
        "licence": told["licence"],
        "frequencies": json.loads(told["steerer.frequencies"]),
        "spec": told["steerer.spec"],
        "strategy": told["strategy"],
        "order": int(told["order"]),
        "inverseTemperature": float(told["inverse_temperature"]),
        "threshold": float(told["threshold"]),
        "keypoints": NUM_KEYPOINTS,
        "bytes": path.stat().st_size,
    }


if __name__ == "__main__":
    prepare()

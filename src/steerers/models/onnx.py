"""The embedded network as one ONNX graph, from images to keypoints and descriptions, for runtimes without PyTorch.

Everything that extracting does is in the graph: padding to the stride, suppression, the best K, sub-pixel positions,
descriptions. What matching needs to know (the steerer and the options that suit the model) is in the file's metadata.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers._choices import NUM_KEYPOINTS
from steerers._files import StrPath, atomic_write
from steerers._version import __version__
from steerers.geometry import nearest_points
from steerers.images.load import make_picture
from steerers.matching.strategies import OverRotations, make_strategy
from steerers.models import zoo
from steerers.models.base import check_tried
from steerers.models.compact import CELL, Compact, Pyramid, fold_batch_norms, textured_cells
from steerers.models.sampling import choose_keypoints, sample_descriptions
from steerers.models.zoo import Model

OPSET, OLDEST_OPSET, NEWEST_OPSET = 20, 18, 23
INPUT, OUTPUTS = "image", ("keypoints", "scores", "descriptions")
NEAR = 1e-3
"""How near, in pixels, a keypoint of the graph must be to that of the network."""
ENOUGH, LEAST_COSINE = 0.995, 0.9999
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_TRIED = ((117, 150), (96, 203))  # (height, width), no multiples of a stride


class Agreement(NamedTuple):
    """How far a graph, run by onnxruntime, gives what the network gives in PyTorch."""

    keypoints: float  # fraction of the network's keypoints that the graph has too
    cosine: float  # least cosine of their descriptions

    @property
    def close(self) -> bool:
        """Whether it is as near as rounding allows, a few ties apart."""
        return self.keypoints >= ENOUGH and self.cosine >= LEAST_COSINE


def export_onnx(
    model: Model,
    path: StrPath,
    *,
    num_keypoints: int = NUM_KEYPOINTS,
    size: tuple[int, int] | None = None,
    opset: int = OPSET,
    metadata: Mapping[str, str] | None = None,
) -> Agreement:
    """Write the model's extractor as ONNX, and compare it with the network; a file that disagrees is not written.

    The graph has one input, ``image``, (B, 3, H, W) float32 RGB in [0, 1], and three outputs: ``keypoints`` (B, K, 2),
    pixels of the image with the centre of the top-left one at (0, 0), best first; ``scores`` (B, K), -1 where an image
    has fewer keypoints; ``descriptions`` (B, K, D), not normalised. For the metadata see :func:`matching_metadata`.

    Args:
        num_keypoints: K.
        size: (width, height) of the only images that the graph will take, one at a time; by default it takes any.
        opset: version of ONNX's operators.
        metadata: more to say in the file.

    Raises:
        ValueError: for a model that is not a compact network, for options that are out of range, and if onnxruntime
            does not find what PyTorch finds.
        ImportError: if the extra ``onnx`` is not installed.
    """
    network = _network(model)
    _check(num_keypoints, size, opset)
    graph = ExtractionGraph(network, num_keypoints).eval()
    described = {**(metadata or {}), **matching_metadata(model), "num_keypoints": str(num_keypoints)}
    with atomic_write(path) as temporary:
        _write(_translate(graph, size, opset), temporary, described)
        agreement = compare(temporary, network, [(size[1], size[0])] if size else _TRIED)
        if not agreement.close:
            raise ValueError(
                f"{path} was not written: onnxruntime finds {100 * agreement.keypoints:.1f} % of the keypoints that "
                f"PyTorch finds, with cosines of descriptions down to {agreement.cosine:.5f}; try another opset"
            )
    return agreement


def load_exportable(name: str) -> Model:
    """The model of that name in the zoo; one that cannot be exported is refused before any download.

    Raises:
        ValueError: for an unknown name, or a model that is not a compact network.
    """
    if zoo.find(name).weights:  # files of others, none of which is a compact network
        raise _refusal(name)
    model = zoo.build(name)
    _network(model)
    return model


def graph_name(model: Model) -> str:
    """The model that a graph is: ``compact-single`` of ``compact`` too, since a graph is one scale."""
    return f"{model.name}-single" if isinstance(model.extractor, Pyramid) else model.name


def matching_metadata(model: Model) -> dict[str, str]:
    """What is needed to match the descriptions: the model, its strategy with its options, and its steerer.

    A fixed SO(2) steerer is told by ``steerer.frequencies``, the frequency of each coordinate as JSON: those of
    frequency 0 stay as they are, and each two neighbours of frequency f rotate by f times the angle.
    """
    strategy = make_strategy(
        model.strategy,
        model.steerer,
        order=model.order,
        inverse_temperature=model.inverse_temperature,
        threshold=model.threshold,
    )
    told = {"model": graph_name(model), "steerers_version": __version__, "strategy": strategy.name}
    if isinstance(strategy, OverRotations):
        told["order"] = "continuous" if strategy.order is None else str(strategy.order)
    told |= {"inverse_temperature": str(model.inverse_temperature), "threshold": str(model.threshold)}
    if model.steerer is not None:
        tensors, described = model.steerer.export()
        told |= described
        if "steerer.frequencies" in tensors:
            told["steerer.frequencies"] = json.dumps(tensors["steerer.frequencies"].tolist())
    return told


def compare(path: StrPath, network: Compact, sizes: Sequence[tuple[int, int]] = _TRIED) -> Agreement:
    """Run a written graph and its network on pictures of noise of those sizes (height, width); the worse of each."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(Path(path).read_bytes(), options, providers=["CPUExecutionProvider"])
    found = [_compare_on(session, network, make_picture(height, width)) for height, width in sizes]
    return Agreement(*(min(values) for values in zip(*found, strict=True)))


def _compare_on(session: Any, network: Compact, image: Tensor) -> Agreement:
    ran = session.run(list(OUTPUTS), {INPUT: image[None].numpy()})
    xy, scores, descriptions = (torch.from_numpy(output[0]) for output in ran)
    with torch.no_grad():
        ((keypoints, expected),) = network.extract(image[None], num_keypoints=len(scores))
    found = scores >= 0
    if not len(keypoints) or not found.any():
        return Agreement(float(len(keypoints) == int(found.sum())), 1.0)
    distance, nearest = nearest_points(keypoints.xy.double(), xy[found].double())
    near = distance < NEAR
    cosines = F.cosine_similarity(descriptions[found][nearest[near]], expected[near], dim=1)
    more = max(int(found.sum()) - len(keypoints), 0)
    return Agreement(int(near.sum()) / (len(keypoints) + more), float(cosines.min()) if len(cosines) else 0.0)


# The graph ------------------------------------------------------------------------------------------------------------


class ExtractionGraph(nn.Module):
    """What :meth:`Compact.extract` does, with a number of keypoints that does not depend on the images.

    Sizes stay symbols while the graph is made, which rules out some of what the network itself does: remainders, and
    slices by a size.
    """

    def __init__(self, network: Compact, num_keypoints: int) -> None:
        super().__init__()
        self.network, self.num_keypoints = network, num_keypoints

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keypoints (B, K, 2), best first, their scores (B, K) and descriptions (B, K, D) of (B, 3, H, W) images.

        Where an image has fewer than K keypoints, rows of score -1 fill up.
        """
        rows, columns = (torch.arange(n, device=image.device) for n in image.shape[-2:])
        padded = _padded(image, self.network.config.stride)
        logits, *features = self.network.trunk(padded)
        logits = logits[:, 0].index_select(1, rows).index_select(2, columns)  # (B, H, W)
        allowed = textured_cells(_padded(image, CELL)).index_select(1, rows // CELL).index_select(2, columns // CELL)
        xy, scores, real = choose_keypoints(logits, self.num_keypoints, allowed, self.network.sampling)
        size = (padded.shape[-1], padded.shape[-2])
        sampled = [sample_descriptions(maps, xy, size) for maps in features]
        return xy, torch.where(real, scores, -1.0), self.network.describer(torch.cat(sampled, dim=2))


def _padded(image: Tensor, multiple: int) -> Tensor:
    """Rows and columns repeated at the end up to a multiple."""
    for dim in (2, 3):
        n = image.shape[dim]
        index = torch.arange((n + multiple - 1) // multiple * multiple, device=image.device)
        image = image.index_select(dim, index.clamp(max=n - 1))
    return image


# Steps ----------------------------------------------------------------------------------------------------------------


def _network(model: Model) -> Compact:
    """A copy of the model's network, as it is exported: on the CPU, in float32, folded."""
    network = model.extractor.extractor if isinstance(model.extractor, Pyramid) else model.extractor
    if not isinstance(network, Compact):
        raise _refusal(model.name)
    if network.sampling.coverage:
        raise ValueError(f"model {model.name!r} samples keypoints by coverage, which is not exported; turn it off")
    return fold_batch_norms(copy.deepcopy(network).cpu().float()).requires_grad_(False)


def _refusal(name: str) -> ValueError:
    return ValueError(
        f"model {name!r} cannot be exported to ONNX: only the compact network can; use compact"
        " (and fast=False where steerers.load() loads it)"
    )


def _check(num_keypoints: int, size: tuple[int, int] | None, opset: int) -> None:
    check_tried(num_keypoints, size or _TRIED[0])
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ValueError(f"opset must be {OLDEST_OPSET} to {NEWEST_OPSET}, got {opset}")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'exporting to ONNX needs {", ".join(missing)}: pip install "steerers[onnx]"')


def _translate(graph: ExtractionGraph, size: tuple[int, int] | None, opset: int) -> Any:
    """The graph as PyTorch's ONNX program."""
    names = {} if size else {0: "batch", 2: "height", 3: "width"}
    dims = dict.fromkeys(names, torch.export.Dim.DYNAMIC)
    example = torch.rand(1, 3, size[1], size[0]) if size else torch.rand(2, 3, *_TRIED[0])
    with _quiet(), torch.no_grad():
        program = torch.export.export(graph, (example,), dynamic_shapes=(dims,) if dims else None)
        return torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes=(names,) if names else None,
        )


def _write(program: Any, path: Path, metadata: Mapping[str, str]) -> None:
    """One file with the weights inside, and without the exporter's notes on source lines of this machine."""
    import onnx

    proto = program.model_proto
    for noted in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        noted.doc_string = ""
        del noted.metadata_props[:]
    for noted in (*proto.graph.input, *proto.graph.output):
        del noted.metadata_props[:]
    onnx.helper.set_model_props(proto, dict(metadata))
    proto.producer_name, proto.producer_version = "steerers", __version__
    onnx.checker.check_model(proto)
    onnx.save(proto, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which warns of what is missing or deprecated inside PyTorch and means nothing to a user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

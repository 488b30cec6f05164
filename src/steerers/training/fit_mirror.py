"""What a reflection of the image does to descriptions: a linear map, as a rotation's is, found in closed form.

Keypoints of photographs are described, and again in the mirror images. The orthogonal map that takes the one nearest to
the other, both ways alike, is its own inverse: a steerer of C2, whose half turn is the reflection left to right. Where
descriptions have frequencies, it takes each to its conjugate, since a rotation seen in a mirror goes the other way; no
more than the photographs tells it so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.photos import find_images
from steerers.images.load import load_image
from steerers.pipeline import Pipeline
from steerers.steering.steerer import Steerer

MAX_SIDE = 512
"""Of a photograph, in pixels."""
HELD_OUT = 5
"""Of so many photographs one is held out."""


@dataclass(frozen=True, eq=False)
class MirrorFit:
    """A reflection, and what is known about it.

    Attributes:
        steerer: of C2; half a turn is the reflection.
        cosine: mean, on held-out photographs, of mirrored descriptions with those of the mirrored image; ``unmirrored``
            of the descriptions as they are.
    """

    steerer: Steerer
    cosine: float
    unmirrored: float
    photographs: int

    def summary(self) -> str:
        """One line for people."""
        return (
            f"cosine of mirrored descriptions with those of mirrored photographs that were held out: "
            f"{self.cosine:.3f} (unmirrored {self.unmirrored:.3f}); {self.photographs} photographs"
        )


def fit_mirror(
    matcher: Pipeline,
    images: str | os.PathLike[str],
    *,
    num_photos: int = 200,
    num_keypoints: int = 512,
    progress: Callable[[Iterable[Any], str, int], Iterable[Any]] | None = None,
) -> MirrorFit:
    """Fit what a reflection does to the descriptions of a model, from a folder of photographs.

    Raises:
        ValueError: if there are fewer than two photographs, or nothing is found in them.
    """
    sources = find_images(images)[:num_photos]
    if len(sources) < 2:
        raise ValueError(f"fitting needs at least 2 photographs, one of them to be held out, got {len(sources)}")
    dim = matcher.model.extractor.dim
    cross = torch.zeros(dim, dim, dtype=torch.float64)
    held_out: list[tuple[Tensor, Tensor]] = []
    for index, source in enumerate(progress(sources, "describing", len(sources)) if progress else sources):
        image = torch.rot90(load_image(source, max_size=MAX_SIDE).tensor, index % 4, dims=(1, 2)).contiguous()
        pair = _describe(matcher, image.to(matcher.device), num_keypoints)
        if index % HELD_OUT == 0:
            held_out.append(pair)
        else:
            cross += pair[1].mT @ pair[0] + pair[0].mT @ pair[1]
    if not bool(cross.any()) or not any(len(first) for first, _ in held_out):
        raise ValueError("no keypoints were found in the photographs")
    left, _, right = torch.linalg.svd(cross)
    reflection = left @ right
    first, second = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    return MirrorFit(
        Steerer.from_matrix(reflection.float(), "C2"),
        float((first @ reflection.mT * second).sum(dim=1).mean()),
        float((first * second).sum(dim=1).mean()),
        len(sources),
    )


@torch.no_grad()
def _describe(matcher: Pipeline, image: Tensor, num_keypoints: int) -> tuple[Tensor, Tensor]:
    """(N, D) float64 descriptions of the keypoints of a (3, H, W) image, and of the same in its mirror image."""
    extractor = matcher.model.extractor
    keypoints, first = extractor.extract(image[None], num_keypoints=num_keypoints)[0]
    x, y = keypoints.xy.unbind(dim=1)
    flipped = replace(keypoints, xy=torch.stack([image.shape[2] - 1 - x, y], dim=1))
    if keypoints.orientations is not None:
        flipped = replace(flipped, orientations=math.pi - keypoints.orientations)
    second = extractor.describe(image.flip(2).contiguous()[None], [flipped])[0]
    unit = [F.normalize(found.double(), dim=1).cpu() for found in (first, second)]
    return unit[0], unit[1]

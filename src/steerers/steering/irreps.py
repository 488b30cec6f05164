"""The irreducible blocks of a steerer, what excites them, and how they respond to a rotation (paper, appendix A.1).

In the right basis a steerer acts on blocks of one or two coordinates. The block of a description is a complex number,
real where it has one coordinate: its *response*. If the image rotates by ``t``, the response of a block of frequency
``j`` is multiplied by ``exp(i j t)``. So what excites frequency 0 looks the same after every rotation, what excites
frequency 2 after half a turn, and what excites frequency 1 after a whole one only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.features import Keypoints
from steerers.geometry import transform_points, window_at
from steerers.steering.equivariance import Describes
from steerers.steering.representations import Representation
from steerers.steering.steerer import Steerer

DIAMETER = 16.0
"""In pixels, of keypoints without a scale."""
SIDE = 4.0
"""Of a keypoint's patch, in diameters: the inner part of what SIFT describes, which is half as wide again."""
CONTEXT = 1.5
"""How far around a keypoint its surroundings rotate, in sides of its patch."""
PER_PHOTO = 2
"""Patches of a photograph, at most."""


# Blocks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Irreps:
    """The basis of description space in which a steerer acts block by block.

    Attributes:
        basis: (D, D) float64; the coordinates are ``descriptions @ basis.T``.
        representation: how it acts there: exactly for a fixed steerer, nearly for a learned one.
    """

    basis: Tensor
    representation: Representation

    @classmethod
    def of(cls, steerer: Steerer) -> Irreps:
        """Those of a steerer.

        Raises:
            ValueError: if its matrix cannot be diagonalised.
        """
        if steerer.representation is None:
            found = steerer.block_diagonalise()
            return cls(found.basis, found.representation)
        return cls(steerer.block_basis(), steerer.representation)

    @cached_property
    def frequencies(self) -> list[int]:
        """Of the blocks, in their order; none is negative, as blocks that rotate the other way are mirrored."""
        return [self.representation.group.fold(frequency) for frequency, _ in self.representation.blocks()]

    def of_frequency(self, frequency: int) -> list[int]:
        """The indices of the blocks of a frequency."""
        return [index for index, own in enumerate(self.frequencies) if own == frequency]

    def coordinates(self, descriptions: Tensor) -> Tensor:
        """(..., D) float64 coordinates of (..., D) descriptions, which are normalised first."""
        unit = F.normalize(descriptions.detach().double().cpu(), dim=-1)
        return unit @ self.basis.mT

    def responses(self, descriptions: Tensor) -> Tensor:
        """(..., B) complex128: each block of (..., D) descriptions as a complex number."""
        return torch.complex(*self._parts(self.coordinates(descriptions)))

    def _parts(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """(..., B) real and imaginary parts of the blocks of (..., D) coordinates."""
        steps, device = self._steps, coordinates.device
        imaginary = coordinates[..., steps.imaginary.to(device)] * steps.sign.to(coordinates)
        return coordinates[..., steps.real.to(device)], imaginary

    def invariants(self, descriptions: Tensor) -> Tensor:
        """(..., C) what no rotation changes in (..., D) descriptions, which are normalised first.

        These are the responses of frequency 0; the magnitudes of all others; and of each of those its product with the
        conjugate of the next of the same frequency, real and imaginary part, divided by the root of its magnitude so
        that it is as large as they are. Up to a rotation for each frequency, they determine the description.
        """
        steps, device = self._steps, descriptions.device
        unit = F.normalize(descriptions.detach().to(torch.promote_types(descriptions.dtype, torch.float32)), dim=-1)
        real, imaginary = self._parts(unit @ self.basis.to(unit).mT)
        still, turning = steps.still.to(device), steps.turning.to(device)
        magnitudes = torch.hypot(real, imaginary)
        first, second = steps.pairs.to(device)  # (P,) each
        root = (magnitudes[..., first] * magnitudes[..., second]).sqrt().clamp(min=1e-12)
        along = (real[..., first] * real[..., second] + imaginary[..., first] * imaginary[..., second]) / root
        across = (imaginary[..., first] * real[..., second] - real[..., first] * imaginary[..., second]) / root
        return torch.cat([real[..., still], magnitudes[..., turning], along, across], dim=-1)

    @cached_property
    def _steps(self) -> _Steps:
        """Where the parts of the blocks are among the coordinates, and which blocks are multiplied."""
        real, imaginary, sign, place = [], [], [], 0
        for (own, size), frequency in zip(self.representation.blocks(), self.frequencies, strict=True):
            real.append(place)
            imaginary.append(place + size - 1)
            sign.append(0 if size == 1 else 1 if own == frequency else -1)
            place += size
        turning = [index for index, frequency in enumerate(self.frequencies) if frequency]
        pairs: list[tuple[int, int]] = []
        for frequency in sorted({self.frequencies[index] for index in turning}):
            blocks = self.of_frequency(frequency)
            pairs += pairwise(blocks)
        joined = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).mT
        lists = (real, imaginary, self.of_frequency(0), turning)
        where = [torch.tensor(values, dtype=torch.long) for values in lists]
        return _Steps(where[0], where[1], torch.tensor(sign), where[2], where[3], joined)


@dataclass(frozen=True, eq=False)
class _Steps:
    """What :meth:`Irreps.invariants` needs to know: of every block the coordinate of its real and of its imaginary
    part, and the sign of the latter (0 where it has none); which blocks are of frequency 0 and which are not; and (2,
    P) blocks that are multiplied."""

    real: Tensor
    imaginary: Tensor
    sign: Tensor
    still: Tensor
    turning: Tensor
    pairs: Tensor


# What excites them ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Patch:
    """Where in a photograph some blocks are excited."""

    photo: int
    keypoint: Keypoints  # one, in pixels of the photograph
    excitation: float  # length of the blocks, relative to that of the description
    block: int  # the one with the largest part in it


def patch_side(keypoint: Keypoints) -> float:
    """In pixels, of the patch of one keypoint."""
    return SIDE * (DIAMETER if keypoint.scales is None else float(keypoint.scales[0]))


def find_patches(
    described: Iterable[tuple[Keypoints, Tensor]], irreps: Irreps, parts: Sequence[Sequence[int]]
) -> list[list[Patch]]:
    """For each of some sets of blocks, the patches that excite it, most first.

    There are at most :data:`PER_PHOTO` of a photograph, and those are apart.

    Args:
        described: of each photograph its keypoints and their (N, D) descriptions.
        parts: indices of blocks.
    """
    found: list[list[Patch]] = [[] for _ in parts]
    for photo, (keypoints, descriptions) in enumerate(described):
        if len(keypoints) == 0:
            continue
        lengths = irreps.responses(descriptions).abs()  # (N, B)
        overlapping = _overlapping(keypoints)  # (N, N)
        for blocks, patches in zip(parts, found, strict=True):
            own = lengths[:, list(blocks)]  # (N, b)
            excitations = own.norm(dim=1)
            for _ in range(PER_PHOTO):
                value, index = excitations.max(dim=0)
                if value > 0:
                    strongest = blocks[int(own[index].argmax())]
                    patches.append(Patch(photo, keypoints.select(index[None]), float(value), strongest))
                excitations = excitations.masked_fill(overlapping[index], 0.0)
    return [sorted(patches, key=lambda patch: -patch.excitation) for patches in found]


def whole_patches(keypoints: Keypoints, width: int, height: int) -> Tensor:
    """(N,) bool, which keypoints of an image have a patch that stays inside, however it rotates."""
    diameters = keypoints.xy.new_full((len(keypoints),), DIAMETER) if keypoints.scales is None else keypoints.scales
    reach = (SIDE * math.sqrt(0.5) * diameters)[:, None]
    last = keypoints.xy.new_tensor([width - 1, height - 1])
    return ((keypoints.xy >= reach) & (keypoints.xy <= last - reach)).all(dim=1)


def _overlapping(keypoints: Keypoints) -> Tensor:
    """(N, N) bool, which patches have pixels in common; each has with itself."""
    diameters = torch.full((len(keypoints),), DIAMETER) if keypoints.scales is None else keypoints.scales.cpu()
    apart = torch.cdist(keypoints.xy.double().cpu(), keypoints.xy.double().cpu(), p=math.inf)
    return apart <= SIDE / 2 * (diameters[:, None] + diameters)


# How they respond -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Response:
    """How blocks of one frequency respond to a patch that rotates.

    Attributes:
        angles: (A,) radians, the first 0.
        found: (A,) complex128: the rotation, and the scaling, that best explains the responses by the first; of a
            single block it is their quotient. The blocks follow if it is :attr:`ideal`.
        deviations: (A,) distance of the responses to the ideal ones, relative to their length.
    """

    frequency: int
    angles: Tensor
    found: Tensor
    deviations: Tensor

    @property
    def ideal(self) -> Tensor:
        """(A,) complex128: rotated by the frequency times the angle."""
        return _ideal(self.frequency, self.angles)

    @property
    def angle_error(self) -> float:
        """Mean over the rotations, in degrees, by which the responses point elsewhere."""
        return float(torch.rad2deg((self.found / self.ideal).angle().abs())[1:].mean())

    @property
    def deviation(self) -> float:
        """Mean over the rotations."""
        return float(self.deviations[1:].mean())


@dataclass(frozen=True, eq=False)
class Excited:
    """Blocks of one frequency, the patches that excite them most, and their response to each as it rotates.

    Attributes:
        images: (3, H, W) photographs that the patches lie in.
    """

    frequency: int
    blocks: Sequence[int]
    images: list[Tensor]
    patches: list[Patch]
    responses: list[Response]

    @property
    def excitation(self) -> float:
        """Mean over the patches; so are the errors."""
        return fmean(patch.excitation for patch in self.patches)

    @property
    def angle_error(self) -> float:
        """In degrees, see :class:`Response`."""
        return fmean(response.angle_error for response in self.responses)

    @property
    def deviation(self) -> float:
        """See :class:`Response`."""
        return fmean(response.deviation for response in self.responses)

    @property
    def strongest(self) -> int:
        """The block that has the largest part in most patches."""
        return Counter(patch.block for patch in self.patches).most_common(1)[0][0]


@torch.no_grad()
def rotate_patch(
    describe: Describes, image: Tensor, patch: Patch, irreps: Irreps, blocks: Sequence[int], angles: Sequence[float]
) -> Response:
    """Rotate the surroundings of a patch of a (3, H, W) photograph, describe it anew each time, and see what responds.

    Args:
        blocks: of one frequency.
        angles: radians, the first 0.
    """
    x, y = patch.keypoint.xy[0].round().int().tolist()
    made = [window_at(image, (x, y), math.ceil(CONTEXT * patch_side(patch.keypoint)), angle) for angle in angles]
    keypoints = [
        Keypoints(transform_points(transform, patch.keypoint.xy), patch.keypoint.scores, patch.keypoint.scales)
        for _, transform in made
    ]
    described = describe.describe(torch.stack([window for window, _ in made]), keypoints)
    responses = irreps.responses(torch.cat(described))[:, list(blocks)]  # (A, b)
    first, turned = responses[0], torch.tensor(angles, dtype=torch.float64)
    frequency = irreps.frequencies[blocks[0]]
    length = first.norm().clamp(min=1e-12)
    found = responses @ first.conj() / length**2
    deviations = (responses - first * _ideal(frequency, turned)[:, None]).norm(dim=1) / length
    return Response(frequency, turned, found, deviations)


def _ideal(frequency: int, angles: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angles), frequency * angles)

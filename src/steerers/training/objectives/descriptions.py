"""The paper's objective: descriptions of true matches are alike once the second is steered to the first."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.datasets.pairs import PairBatch, check_options, correspondences
from steerers.features import Keypoints
from steerers.models.base import Combined, Descriptor, Detector, Extractor
from steerers.steering.steerer import Steerer
from steerers.training.objectives import Measures, Objective, Real, Term, Terms

Setting = Literal["A", "B", "C"]


@dataclass(frozen=True)
class MatchingOptions:
    """The descriptor's objective.

    Attributes:
        num_keypoints: of each view.
        radius: in pixels, how near two keypoints are that correspond.
        inverse_temperature: of the dual softmax.
        prototype: train the prototype of ``prototype-procrustes`` (a Freq1 steerer) instead of steering by the
            known rotation: both descriptions are aligned to it.
    """

    num_keypoints: int = 5000
    radius: float = 2.56
    inverse_temperature: float = 20.0
    prototype: bool = False

    def __post_init__(self) -> None:
        names = ("num_keypoints", "radius", "inverse_temperature")
        check_options(self, "be positive", lambda value: value > 0, *names)


@dataclass(frozen=True, eq=False)
class Described:
    """Descriptions of both views of B pairs, and which of them are true matches."""

    first: Tensor  # (B, N, D)
    second: Tensor  # (B, M, D)
    angles: Tensor  # (B,) radians, the rotation that takes the second view to the first
    matches: Tensor  # (K, 3) indices (pair, first, second)
    real: Real | None = None  # by default all


class Matcher(nn.Module):
    """Steering and comparing: what all that trains on descriptions shares. It computes in float32 at least."""

    def __init__(self, steerer: Steerer | None, options: MatchingOptions) -> None:
        super().__init__()
        self.steerer, self.options = steerer, options
        self.prototype: nn.Parameter | None = None
        if options.prototype:
            if steerer is None or not _rotations_with_the_image(steerer):
                raise ValueError("a prototype is for a fixed Freq1 steerer: set steerer.kind to 'freq1'")
            self.prototype = nn.Parameter((torch.arange(steerer.dim) % 2 == 0).float())
            self.rotating = Steerer.freq1(steerer.dim)  # by any angle, also where the steerer is of C_n

    def networks(self) -> dict[str, nn.Module]:
        """What is trained of it; see :meth:`Objective.networks`."""
        trained: dict[str, nn.Module] = {}
        if self.steerer is not None and self.steerer.learnable:
            trained["steerer"] = self.steerer
        if self.prototype is not None:
            trained["prototype"] = nn.ParameterDict({"prototype": self.prototype})
        return trained

    def aligned(self, first: Tensor, second: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Unit (B, N, D) and (B, M, D) descriptions that may be compared, from those of views (B,) ``angles`` apart."""
        if self.prototype is not None:
            return self._to_prototype(first, self.prototype), self._to_prototype(second, self.prototype)
        if self.steerer is not None:
            second = self.steerer.steer(second, angles[:, None])
        return F.normalize(first, dim=2), F.normalize(second, dim=2)

    def _to_prototype(self, descriptions: Tensor, prototype: Tensor) -> Tensor:
        """Each description rotated to where it is most like the prototype.

        It is what the strategy ``prototype-procrustes`` does, which works in place and so has no gradient. Of frequency
        1, a rotation by t is ``cos(t) d + sin(t) q`` with the quarter turn q of d, and most like it at the angle of
        ``(<d, prototype>, <q, prototype>)``.
        """
        quarter = self.rotating.steer(descriptions, math.pi / 2)
        likeness = torch.stack([descriptions, quarter], dim=-2) @ prototype.to(descriptions)  # (B, N, 2)
        cosine, sine = F.normalize(likeness, dim=-1).split(1, dim=-1)
        return F.normalize(cosine * descriptions + sine * quarter, dim=-1)

    def terms(self, pairs: Described) -> tuple[Term, Tensor]:
        """The negative log-likelihood of the true matches, and the (K,) probability of each, without gradient."""
        with torch.autocast(pairs.first.device.type, enabled=False):
            unit0, unit1 = self.aligned(pairs.first.float(), pairs.second.float(), pairs.angles)
            each = matching_nll(unit0, unit1, pairs.matches, self.options.inverse_temperature, pairs.real)
            nothing = 0.0 * (unit0.sum() + unit1.sum())  # keeps every parameter in the graph where nothing matches
            return Term(each.sum() + nothing, each.new_full((), len(each))), each.detach().neg().exp()

    @torch.no_grad()
    def measure(self, pairs: Described) -> Measures:
        """Likelihood and accuracy of the true matches."""
        count = float(len(pairs.matches))
        with torch.autocast(pairs.first.device.type, enabled=False):
            unit0, unit1 = self.aligned(pairs.first.float(), pairs.second.float(), pairs.angles)
            nll = matching_nll(unit0, unit1, pairs.matches, self.options.inverse_temperature, pairs.real)
            accuracy = matching_accuracy(unit0, unit1, pairs.matches, pairs.real)
        return {"nll": (float(nll.sum()), count), "accuracy": (accuracy * count, count)}


def _rotations_with_the_image(steerer: Steerer) -> bool:
    """Whether it is a fixed steerer of frequency 1 alone, in pairs of coordinates."""
    representation = steerer.representation
    return representation is not None and steerer.group.order != 2 and {f for _, f in representation.terms} == {1}


class DescriptorObjective(Objective):
    """The paper's objective (10) over keypoints of a frozen detector.

    Setting A freezes the descriptor (in evaluation mode) and trains the steerer; B trains both; C trains the descriptor
    for a fixed steerer, or for none: with both views rotated alike, that is the model with the dagger (appendix B.1).
    """

    def __init__(
        self,
        descriptor: Descriptor,
        steerer: Steerer | None,
        detector: Detector,
        setting: Setting,
        options: MatchingOptions,
    ) -> None:
        super().__init__()
        self.options, self.setting = options, setting
        if (steerer is not None and steerer.learnable) != (setting in ("A", "B")) and not options.prototype:
            raise ValueError(f"setting {setting} {'needs a' if setting != 'C' else 'takes no'} learnable steerer")
        self.descriptor, self.steerer = descriptor, steerer
        # A tuple keeps the detector out of parameters(), state_dict() and the modes of training.
        self._frozen = (detector.eval().requires_grad_(False),)
        self.matcher = Matcher(steerer, options)
        if setting == "A":
            descriptor.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.setting == "A":
            self.descriptor.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._frozen[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]  # so that to(device) takes the detector along
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def networks(self) -> Mapping[str, nn.Module]:
        descriptor = {} if self.setting == "A" else {"descriptor": self.descriptor}
        return {**descriptor, **self.matcher.networks()}

    def extractor(self) -> Extractor:
        return Combined(self._frozen[0], self.descriptor)

    def forward(self, batch: PairBatch, progress: float) -> Terms:
        nll, _ = self.matcher.terms(self._describe(batch))
        return {"nll": nll}

    @torch.no_grad()
    def measure(self, batch: PairBatch) -> Measures:
        return self.matcher.measure(self._describe(batch))

    def _describe(self, batch: PairBatch) -> Described:
        """Both views go through the network at once, as in the original: its batch statistics are those of both.

        A frozen descriptor is given all that the detector says of its keypoints. Where that is more than their places,
        points that are known to correspond are left out, of which no more than that is known.
        """
        images, masks = torch.cat([batch.images0, batch.images1]), torch.cat([batch.masks0, batch.masks1])
        found, real = detect_frozen(self._frozen[0], images, self.options.num_keypoints, masks)
        (xy0, xy1), (real0, real1) = torch.stack([one.xy for one in found]).chunk(2), real.chunk(2)
        framed = found[0].scales is not None or found[0].orientations is not None
        if self.setting != "A" or not framed:
            xy0, real0 = with_anchors(xy0, real0, batch, 0)
            xy1, real1 = with_anchors(xy1, real1, batch, 1)
            found = [Keypoints(xy, xy.new_ones(len(xy))) for xy in torch.cat([xy0, xy1])]
        matches = correspondences(xy0, xy1, batch.warp, self.options.radius, real0, real1)
        with self._frozen_mode(images.device):
            first, second = torch.stack(self.descriptor.describe(images, found)).chunk(2)
        return Described(first, second, batch.angles, matches, (real0, real1))

    @contextlib.contextmanager
    def _frozen_mode(self, device: torch.device) -> Iterator[None]:
        """In Setting A without gradients, and not in half precision."""
        if self.setting != "A":
            yield
            return
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield


@torch.no_grad()
def detect_frozen(
    detector: Detector, images: Tensor, num_keypoints: int, masks: Tensor
) -> tuple[list[Keypoints], Tensor]:
    """Keypoints of a frozen detector, filled up to N of every image, and (B, N) bool which of them are real.

    Not in half precision.
    """
    with torch.autocast(images.device.type, enabled=False):
        found = detector.detect(images, num_keypoints=num_keypoints, masks=masks)
    count = max(1, *map(len, found))
    lengths = torch.tensor([len(keypoints) for keypoints in found], device=images.device)
    return [_filled(one, count, images.device) for one in found], torch.arange(count).to(lengths) < lengths[:, None]


def _filled(keypoints: Keypoints, count: int, device: torch.device) -> Keypoints:
    """Keypoints with others after them that mean nothing, but can be described."""

    def more(values: Tensor | None, value: float) -> Tensor | None:
        return None if values is None else F.pad(values.to(device), (0, count - len(keypoints)), value=value)

    xy = F.pad(keypoints.xy.to(device), (0, 0, 0, count - len(keypoints)))
    return Keypoints(xy, xy.new_ones(count), more(keypoints.scales, 1.0), more(keypoints.orientations, 0.0))


def with_anchors(xy: Tensor, real: Tensor, batch: PairBatch, side: int) -> tuple[Tensor, Tensor]:
    """Keypoints and the points that are known to correspond, where the data has such."""
    if batch.anchors is None:
        return xy, real
    anchors = batch.anchors[side].to(xy)
    known = anchors.isfinite().all(dim=2)
    return torch.cat([xy, anchors.nan_to_num()], dim=1), torch.cat([real, known], dim=1)


# Likelihood and accuracy ----------------------------------------------------------------------------------------------


def matching_nll(
    unit0: Tensor, unit1: Tensor, matches: Tensor, inverse_temperature: float = 20.0, real: Real | None = None
) -> Tensor:
    """The paper's objective: (K,) negative logarithms of equation (1) for true matches of a batch of pairs.

    Args:
        unit0: (B, N, D) unit descriptions; ``unit1`` (B, M, D), steered before they were normalised.
        matches: (K, 3) indices (pair, first, second) of true matches.
        real: which descriptions are real; by default all.
    """
    scores = inverse_temperature * (unit0 @ unit1.mT)  # (B, N, M)
    pair, i, j = matches.unbind(dim=1)
    by_row, by_column = _masked(scores, real)
    log_rows, log_columns = by_row.logsumexp(dim=2), by_column.logsumexp(dim=1)  # (B, N), (B, M)
    return log_rows[pair, i] + log_columns[pair, j] - 2 * scores[pair, i, j]


@torch.no_grad()
def matching_accuracy(unit0: Tensor, unit1: Tensor, matches: Tensor, real: Real | None = None) -> float:
    """Fraction of true matches that are mutual nearest neighbours, 0 of none; see :func:`matching_nll`."""
    if not len(matches):
        return 0.0
    by_row, by_column = _masked(unit0 @ unit1.mT, real)
    pair, i, j = matches.unbind(dim=1)
    mutual = (by_row.argmax(dim=2)[pair, i] == j) & (by_column.argmax(dim=1)[pair, j] == i)
    return float(mutual.float().mean())


def _masked(scores: Tensor, real: Real | None) -> tuple[Tensor, Tensor]:
    """(B, N, M) scores with which a row compares columns, and a column rows: never with what only fills up."""
    if real is None:
        return scores, scores
    return scores.masked_fill(~real[1][:, None], -math.inf), scores.masked_fill(~real[0][..., None], -math.inf)

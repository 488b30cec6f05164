"""Setting A: a steerer for a frozen descriptor (paper, section 5.1), from unlabelled photographs.

The descriptor is run once over rotated views of the photographs; what is kept are descriptions and which of them
correspond. Fitting the steerer to those takes seconds: a closed-form start, then gradient descent on the objective that
``steerers train`` has too, the paper's (6).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers.datasets.pairs import ViewWarp, check_options, correspondences, generator_of, mix
from steerers.datasets.photos import find_images
from steerers.datasets.views import Views, draw_homographies, relight_views, render_views
from steerers.images.load import ImageError, ImageSource, load_image
from steerers.models.base import Descriptor, Detector
from steerers.steering.equivariance import Describer, describe_image
from steerers.steering.representations import Group
from steerers.steering.steerer import Steerer
from steerers.training.objectives.descriptions import Described, Matcher, MatchingOptions

Start = Literal["orthogonal", "least-squares", "random", "identity"]
Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]

CLOSED_FORM_ORDER = 8  # rotations of SO(2) that the closed-form start is solved on


@dataclass(frozen=True)
class FitOptions:
    """How a steerer is fitted.

    Attributes:
        num_pairs: pairs of views that are described, over all photographs.
        rotations: rotations at which each view is described; every two of a pair are an example.
        num_keypoints: keypoints a view.
        radius: in pixels, how near two keypoints are that correspond.
        held_out: fraction of the photographs that the accuracy is measured on.
        start: where gradient descent begins; ``orthogonal`` and ``least-squares`` are closed-form solutions.
        steps: of gradient descent; 0 keeps the start.
        batch: examples a step.
        learning_rate: of Adam, decaying to zero along a cosine.
        inverse_temperature: of the dual softmax.
        seed: of everything that is drawn; the same seed gives the same steerer.
    """

    num_pairs: int = 200
    rotations: int = 3
    num_keypoints: int = 512
    radius: float = 2.5
    held_out: float = 0.1
    views: Views = field(default_factory=Views)
    start: Start = "orthogonal"
    steps: int = 500
    batch: int = 4
    learning_rate: float = 2e-3
    inverse_temperature: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("num_pairs", "rotations", "num_keypoints", "batch")
        check_options(self, "be at least 1", lambda value: value >= 1, *counts)
        numbers = ("radius", "learning_rate", "inverse_temperature")
        check_options(self, "be positive and finite", lambda value: 0 < value < math.inf, *numbers)
        check_options(self, "be 0 to 2^63 - 1", lambda value: 0 <= value < 2**63, "seed")
        check_options(self, "not be negative", lambda value: value >= 0, "steps")
        check_options(self, "be between 0 and 1", lambda value: 0 < value < 1, "held_out")
        if self.start not in get_args(Start):
            raise ValueError(f"unknown start {self.start!r}; use orthogonal, least-squares, random or identity")


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted steerer with what is known about it."""

    steerer: Steerer
    losses: list[float]  # of every step
    accuracy: float  # fraction of held-out correspondences that are mutual nearest after steering
    start_accuracy: float  # the same for the start
    unsteered_accuracy: float  # without a steerer
    same_rotation_accuracy: float  # of views rotated alike, without a steerer: the most that steering can reach
    num_examples: int
    num_matches: int

    def summary(self) -> str:
        """One line for people."""
        accuracies = (self.accuracy, self.start_accuracy, self.unsteered_accuracy, self.same_rotation_accuracy)
        steered, start, unsteered, alike = (f"{100 * accuracy:.1f} %" for accuracy in accuracies)
        return (
            f"held-out matching accuracy {steered} steered (start {start}), {unsteered} unsteered, {alike} for views "
            f"rotated alike; {self.num_matches} matches in {self.num_examples} examples"
        )


def fit(
    descriptor: Describer,
    images: str | os.PathLike[str] | Sequence[ImageSource],
    group: str | Group = "C4",
    *,
    detector: Detector | None = None,
    options: FitOptions | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Steerer:
    """Fit a steerer to a frozen descriptor: Setting A, for any callable.

    Args:
        descriptor: a :class:`~steerers.models.base.Descriptor`, or any callable that maps a (3, H, W) RGB image in
            [0, 1] and (N, 2) keypoints in its pixels to (N, D) descriptions.
        images: a folder, or photographs.
        group: ``"C4"`` for quarter turns, ``"C8"`` and so on, ``"SO2"`` for every angle.
        detector: whose keypoints are described; by default the descriptor's own, or SIFT's for a callable.
        progress: wraps the loops, ``progress(iterable, what, length)``.

    Returns:
        The fixed steerer. :func:`make_examples` and :func:`fit_examples` give the losses and accuracies beside.
    """
    fitting, testing = make_examples(
        descriptor, images, group, detector=detector, options=options, device=device, progress=progress
    )
    return fit_examples(fitting, testing, group, options, progress).steerer


def make_examples(
    descriptor: Describer,
    images: str | os.PathLike[str] | Sequence[ImageSource],
    group: str | Group,
    *,
    detector: Detector | None = None,
    options: FitOptions | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> tuple[list[Described], list[Described]]:
    """Run a frozen descriptor over rotated views of photographs: pairs to fit to, and held-out ones.

    This is the slow part of a fit; :func:`fit_examples` can be called on the result as often as needed.
    """
    options, progress = options or FitOptions(), progress or _no_progress
    sources: Sequence[ImageSource] = find_images(images) if isinstance(images, (str, os.PathLike)) else images
    if len(sources) < 2:
        raise ValueError(f"fitting needs at least 2 photographs, one of them to be held out, got {len(sources)}")
    describe, detector = _on_device(descriptor, detector, torch.device(device))
    make = _ExampleMaker(describe, detector, Group.parse(group), options, torch.device(device))
    order = torch.randperm(len(sources), generator=generator_of(options.seed)).tolist()
    held_out = min(max(1, round(options.held_out * len(order))), len(order) - 1)
    last = options.num_pairs + max(4, options.num_pairs // 8)
    fitting, testing = range(options.num_pairs), range(options.num_pairs, last)  # the pairs, each with its own seed
    return (
        make([sources[k] for k in order[held_out:]], progress(fitting, "describing", len(fitting))),
        make([sources[k] for k in order[:held_out]], progress(testing, "describing held-out", len(testing))),
    )


def fit_examples(
    fitting: Sequence[Described],
    testing: Sequence[Described],
    group: str | Group,
    options: FitOptions | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Fit a steerer to pairs, wherever they come from: the seam for other sources of them, such as MegaDepth."""
    fitting = [pair for pair in fitting if len(pair.matches)]
    if not fitting:
        raise ValueError("no keypoints of the two views correspond: are the photographs empty, or is radius too small?")
    if not any(len(pair.matches) for pair in testing):
        raise ValueError("no keypoints of the held-out views correspond: use more photographs or pairs")
    options, group, progress = options or FitOptions(), Group.parse(group), progress or _no_progress
    rng = torch.Generator().manual_seed(options.seed)
    start = closed_form(fitting, group, options.start, rng)
    steerer = Steerer.from_matrix(start, group, learnable=True).to(fitting[0].first.device)
    start_accuracy = mean_accuracy(steerer, testing)
    losses = _descend(steerer, fitting, options, rng, progress)
    alike = [pair for pair in testing if abs(math.remainder(float(pair.angles), 2 * math.pi)) < 1e-6]
    return Fit(
        steerer=Steerer.from_matrix(steerer.generator().detach().cpu(), group),
        losses=losses,
        accuracy=mean_accuracy(steerer, testing),
        start_accuracy=start_accuracy,
        unsteered_accuracy=mean_accuracy(None, testing),
        same_rotation_accuracy=mean_accuracy(None, alike),
        num_examples=len(fitting),
        num_matches=sum(len(pair.matches) for pair in fitting),
    )


def mean_accuracy(steerer: Steerer | None, examples: Sequence[Described]) -> float:
    """Fraction of all true matches that are mutual nearest neighbours once the second view is steered to the first."""
    matcher = Matcher(steerer, MatchingOptions())
    measured = [matcher.measure(pair)["accuracy"] for pair in examples]
    total = sum(count for _, count in measured)
    return sum(found for found, _ in measured) / total if total else float("nan")


def _descend(
    steerer: Steerer, examples: Sequence[Described], options: FitOptions, rng: torch.Generator, progress: Progress
) -> list[float]:
    """The losses of every step of gradient descent, which changes the steerer."""
    matcher = Matcher(steerer, MatchingOptions(inverse_temperature=options.inverse_temperature))
    optimiser = torch.optim.Adam(steerer.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, options.steps))
    losses: list[float] = []
    for _ in progress(range(options.steps), "fitting", options.steps):
        chosen = torch.randint(len(examples), (options.batch,), generator=rng).tolist()
        terms = [matcher.terms(examples[k])[0] for k in chosen]
        loss = torch.stack([term.total / term.count for term in terms]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def _no_progress(items: Iterable[Any], what: str, length: int) -> Iterable[Any]:
    return items


# Examples -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ExampleMaker:
    """Runs the frozen descriptor over rotated views of photographs."""

    describe: Describer
    detector: Detector
    group: Group
    options: FitOptions
    device: torch.device

    @torch.no_grad()
    def __call__(self, sources: Sequence[ImageSource], pairs: Iterable[int]) -> list[Described]:
        examples: list[Described] = []
        for pair in pairs:
            try:
                photo = load_image(sources[pair % len(sources)], max_size=4 * self.options.views.size).tensor
            except ImageError as error:
                raise ValueError(f"cannot use a photograph: {error}") from error
            examples += self._pair(photo.to(self.device), mix(self.options.seed, pair))
        return examples

    def _pair(self, photo: Tensor, seed: int) -> list[Described]:
        """Two views of a photograph, each at all rotations; every rotation of one with every rotation of the other is
        an example."""
        views, rotations = self.options.views, self._draw_rotations(seed)
        sides, count = [mix(seed, side) for side in (0, 1)], len(rotations)
        maps = draw_homographies([(int(photo.shape[2]), int(photo.shape[1]))] * 2, views, sides)  # (2, 3, 3)
        maps, rotations = maps.repeat_interleave(count, dim=0), rotations.repeat(2)  # (2 T, 3, 3) and (2 T,)
        images, masks, from_photos = render_views([photo] * len(rotations), maps, rotations, views.size)
        images = relight_views(images, views, [mix(side, k) for side in sides for k in range(count)])
        described = [self._describe(image, mask) for image, mask in zip(images, masks, strict=True)]
        examples = []
        for i, j in itertools.product(range(count), range(count, 2 * count)):
            (xy0, first), (xy1, second) = described[i], described[j]
            warp = ViewWarp(from_photos[i, None], from_photos[j, None], masks[i, None], masks[j, None])
            matches = correspondences(xy0, xy1, warp, self.options.radius)
            examples.append(Described(first, second, (rotations[i] - rotations[j])[None], matches))
        return examples

    def _draw_rotations(self, seed: int) -> Tensor:
        """(T,) different rotations of the group; both views get the same, so that some examples are rotated alike."""
        rng = generator_of(seed)
        if self.group.order is None:
            return 2 * math.pi * torch.rand(self.options.rotations, generator=rng, dtype=torch.float64)
        return self.group.angles()[torch.randperm(self.group.order, generator=rng)[: self.options.rotations]]

    def _describe(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(1, N, 2) keypoints of a view and their (1, N, D) descriptions, of unit length."""
        (keypoints,) = self.detector.detect(image[None], num_keypoints=self.options.num_keypoints, masks=mask[None])
        descriptions = describe_image(self.describe, image, keypoints)
        if not isinstance(descriptions, Tensor) or descriptions.ndim != 2 or len(descriptions) != len(keypoints):
            what = tuple(descriptions.shape) if isinstance(descriptions, Tensor) else type(descriptions).__name__
            raise ValueError(f"the descriptor must give a ({len(keypoints)}, D) tensor, one row a keypoint, got {what}")
        if not bool(torch.isfinite(descriptions).all()):
            raise ValueError("the descriptor gave descriptions that are not finite (NaN or infinite)")
        return keypoints.xy[None], F.normalize(descriptions.float(), dim=1)[None]


def _on_device(descriptor: Describer, detector: Detector | None, device: torch.device) -> tuple[Describer, Detector]:
    """The descriptor, and the detector: the descriptor's own where it has one."""
    if detector is None and isinstance(descriptor, Detector):
        detector = descriptor
    if detector is None:
        from steerers.models.classical import UprightSift

        detector = UprightSift()
    detector.to(device).eval()
    if isinstance(descriptor, Descriptor):
        descriptor.to(device).eval()
    elif not callable(descriptor):
        raise TypeError(f"descriptor must be a Descriptor or a callable, got {type(descriptor).__name__}")
    return descriptor, detector


# The start ------------------------------------------------------------------------------------------------------------


def closed_form(examples: Sequence[Described], group: Group, start: Start, rng: torch.Generator) -> Tensor:
    """The (D, D) generator from which gradient descent begins.

    For C_n all matches are solved at once: the smallest rotation ``R`` is found from the pairs whose rotation it is.
    For SO(2) the same is done for C_8 with the nearest rotations, and the generator is the logarithm.
    """
    dim = int(examples[0].first.shape[2])
    if start == "random":
        return Steerer.random(dim, group, generator=rng, learnable=False).generator()
    if start == "identity":
        return Steerer.inv(dim, group).generator().float()
    order = group.order or CLOSED_FORM_ORDER
    rotated, target = _matched(examples, order)
    cross = target.mT @ rotated  # (D, D): sum of target rotated'
    if start == "orthogonal":
        left, _, right = torch.linalg.svd(cross)
        element = left @ right
    else:
        gram = rotated.mT @ rotated
        element = torch.linalg.solve(gram + 1e-3 * gram.diagonal().mean() * torch.eye(dim).to(gram), cross, left=False)
    return (element if group.order is not None else _real_logarithm(element) * (order / (2 * math.pi))).float()


def _matched(examples: Sequence[Described], order: int) -> tuple[Tensor, Tensor]:
    """Descriptions that the smallest rotation of C_order takes to one another, (K, D) float64 each, both ways."""
    rotated, target, step = [], [], 2 * math.pi / order
    for pair in examples:
        nearest = round(float(pair.angles) / step)
        if abs(float(pair.angles) - nearest * step) > math.radians(12):
            continue
        _, i, j = pair.matches.unbind(dim=1)
        first, second = pair.first[0, i].double(), pair.second[0, j].double()
        for steps, before, after in ((nearest, second, first), (-nearest, first, second)):
            if steps % order == 1:
                rotated.append(before)
                target.append(after)
    if not rotated:
        raise ValueError("no example shows the smallest rotation of the group: use more pairs or rotations")
    return torch.cat(rotated), torch.cat(target)


def _real_logarithm(element: Tensor) -> Tensor:
    """The principal logarithm of a matrix that is nearly a rotation; eigenvalues keep their direction only."""
    values, vectors = torch.linalg.eig(element)
    angles = torch.complex(torch.zeros_like(values.real), values.angle())
    logarithm: Tensor = (vectors @ torch.diag(angles) @ torch.linalg.inv(vectors)).real
    return logarithm

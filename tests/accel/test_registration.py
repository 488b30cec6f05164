"""Registration by one kernel against the operators: on a GPU where there is one, otherwise by Triton's interpreter.

The interpreter is chosen when Triton is first imported, so that these run in a process of their own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from steerers import refinement
from steerers.accel import registration
from steerers.benchmarks.speed.refinement import ANGLE, RefinementSettings, _matches
from steerers.refinement import Refined, RefineOptions, refine_places
from steerers.resolutions import Resolutions

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
kernels = pytest.mark.skipif(not INTERPRETED and DEVICE.type == "cpu", reason="needs a GPU or Triton's interpreter")
cuda = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
FEW = 6 if INTERPRETED else 300
OPTIONS = RefineOptions(iterations=4) if INTERPRETED else RefineOptions()


def test_interpreted(interpret: Callable[[], None]) -> None:
    interpret()


@pytest.fixture(autouse=True)
def small_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few are filled up in the interpreter."""
    if INTERPRETED:
        monkeypatch.setattr(registration, "MULTIPLE", 4)


Case = tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]


def case(count: int = FEW, size: tuple[int, int] = (400, 300), seed: int = 0) -> Case:
    """Two views whose scales differ, and matches of them; of these every third begins more than a pixel off."""
    views, (xy0, xy1), _ = _matches(DEVICE, RefinementSettings(*size, count, seed=seed))
    wrong = 0.8 * (torch.arange(count, device=DEVICE) % 3 == 0)[:, None]
    return views, xy0, xy1 + wrong, torch.full((count,), ANGLE, device=DEVICE)


def assert_same(found: Refined, expected: Refined, least: float = 0.5) -> None:
    """The same matches moved, but for one in hundreds that rounding decides, to the same places."""
    assert float((found.moved == expected.moved).double().mean()) > 0.99
    both = found.moved & expected.moved
    assert float(both.double().mean()) >= least
    torch.testing.assert_close(found.keypoints1[both], expected.keypoints1[both], atol=2e-3, rtol=0)
    torch.testing.assert_close(found.linear[both], expected.linear[both], atol=1e-3, rtol=0)
    largest = expected.covariances[both].amax(dim=(1, 2))[:, None, None]
    torch.testing.assert_close(
        found.covariances[both] / largest, expected.covariances[both] / largest, atol=1e-2, rtol=0
    )
    neither = ~found.moved & ~expected.moved
    assert torch.equal(found.keypoints1[neither], expected.keypoints1[neither])
    assert bool(found.covariances[neither].isinf().all())


def both_forms(views: tuple[Tensor, ...], *matches: Tensor | None, **more: object) -> tuple[Refined, Refined]:
    more = {"options": OPTIONS, **more}
    return tuple(refine_places(*views, *matches, form=form, **more) for form in ("fused", "together"))  # type: ignore[return-value, arg-type]


@kernels
@pytest.mark.parametrize("masked", [False, True])
def test_the_same_places(masked: bool) -> None:
    views, *matches = case()
    mask = torch.ones(300, 400, dtype=torch.bool, device=DEVICE)
    mask[:150] = False
    assert_same(*both_forms(views, *matches, **({"mask1": mask} if masked else {})), least=0.2 if masked else 0.8)


@kernels
def test_without_angles() -> None:
    views, xy0, xy1, _ = case()
    assert_same(*both_forms(views, xy0, xy1, None))


@kernels
def test_the_other_way_round() -> None:
    """The template is of the coarser image, whichever that is; and too large a scale is left alone."""
    (first, second), xy0, xy1, angles = case()
    small = torch.nn.functional.interpolate(second[None, None], scale_factor=0.5, mode="area")[0, 0]
    assert_same(*both_forms((first, small), xy0, (xy1 + 0.5) / 2 - 0.5, angles))
    assert_same(*both_forms((small, first), (xy1 + 0.5) / 2 - 0.5, xy0, -angles))
    (first, second), xy0, xy1, angles = case(min(FEW, 30))  # so far apart that scale can be told at a fiftieth
    found, expected = both_forms((first, second), xy0, 100 + xy1 / 50, angles)
    assert not bool(found.moved.any())
    torch.testing.assert_close(found.linear, expected.linear)


@kernels
def test_a_large_patch() -> None:
    views, *matches = case(2 if INTERPRETED else FEW)
    assert_same(*both_forms(views, *matches, options=RefineOptions(radius=9, iterations=2 if INTERPRETED else 12)))


@kernels
def test_what_repeats_stays() -> None:
    """Waves of three pixels along both axes: from more than a pixel off, the next one is nearly as near."""
    side = torch.arange(120, dtype=torch.float32, device=DEVICE)
    grid = 0.5 + 0.1 * ((2 * math.pi * side / 3).cos()[:, None] + (2 * math.pi * side / 3).cos())
    xy0 = torch.tensor([[40.0, 50.0]], device=DEVICE)
    start, angles = xy0 + torch.tensor([1.3, 0.2], device=DEVICE), torch.zeros(1, device=DEVICE)
    for max_repeat, moves in ((10.0, True), (0.95, False)):
        forms = both_forms((grid, grid), xy0, start, angles, options=RefineOptions(max_repeat=max_repeat))
        assert [form.moved.tolist() for form in forms] == [[moves], [moves]]


@kernels
def test_what_cannot_be_told_stays() -> None:
    """Flat images, keypoints beyond the border and those that are no numbers."""
    views, xy0, xy1, angles = case(3)
    flat = torch.full_like(views[0], 0.5)
    assert not bool(refine_places(flat, flat, xy0, xy1, angles, form="fused", options=OPTIONS).moved.any())
    far = torch.tensor([[-1e6, 3.0], [1e30, 1e30], [math.nan, 20.0]], device=DEVICE)
    found = refine_places(*views, far, xy1, angles, form="fused", options=OPTIONS)
    assert not bool(found.moved.any())
    assert torch.equal(found.keypoints1, xy1)


@kernels
@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_matches(count: int) -> None:
    """They are filled up, and what fills them up is nobody's neighbour."""
    views, *matches = case()
    found, expected = both_forms(views, *(tensor[:count] for tensor in matches))
    assert len(found.keypoints1) == count
    torch.testing.assert_close(found.linear, expected.linear, atol=1e-3, rtol=0)


def test_where_the_kernel_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    views, *matches = case(3)
    with pytest.raises(ValueError, match="cannot be registered by one kernel: it takes float32, not float64"):
        refine_places(*(view.double() for view in views), *matches, form="fused")  # type: ignore[misc]
    with pytest.raises(ValueError, match="it takes a radius up to 15, not 16"):
        refine_places(*views, *matches, form="fused", options=RefineOptions(radius=16))
    monkeypatch.setattr(registration, "unavailable", lambda _: "Triton is not installed")
    with pytest.raises(ValueError, match="one kernel: Triton is not installed"):
        refine_places(*views, *matches, form="fused")
    monkeypatch.setattr(refinement, "accel", None)
    with pytest.raises(ValueError, match=r"one kernel: steerers\.accel is missing"):
        refine_places(*views, *matches, form="fused")


def test_numbers_are_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "MULTIPLE", 4)
    filled = registration.filled_up(torch.ones(5, 2))
    assert filled.shape == (8, 2)
    assert bool(filled[5:].isnan().all())
    assert registration.filled_up(filled) is filled
    monkeypatch.setattr(registration, "MOST_RECORDED", 4)
    assert registration.filled_up(torch.ones(5, 2)).shape == (5, 2)


# On a GPU; without fixtures, so that they can be called where there is no pytest --------------------------------------


@cuda
def test_cuda_by_default_and_recorded() -> None:
    """Images of several sizes and numbers of matches in turn, each often enough to be replayed."""
    cases = [case(250), case(230, (500, 400), seed=1), case(700, (320, 240), seed=2)]
    expected = [refine_places(*views, *matches, form="together") for views, *matches in cases]
    for _ in range(4):
        for (views, *matches), plain in zip(cases, expected, strict=True):
            assert_same(refine_places(*views, *matches), plain)
    for function in (refinement._maps_and_levels, refinement._register_fused):
        recordings = registration._recordings(function)
        assert recordings.capacity, "it was not recorded"
        assert len(recordings._recorded) >= 2
    registration.forget_recordings()
    assert not recordings._recorded
    views, *matches = cases[0]
    assert_same(refine_places(*views, *matches), expected[0])


@cuda
def test_cuda_is_the_cpus_result() -> None:
    views, *matches = case(400)
    mask = torch.ones(300, 400, dtype=torch.bool)
    mask[:, :190] = False
    for mask1 in (None, mask):
        on_cpu = (*(view.cpu() for view in views), *(tensor.cpu() for tensor in matches))
        plain = refine_places(*on_cpu, mask1=mask1, form="together")
        found = refine_places(*views, *matches, mask1=None if mask1 is None else mask1.to(DEVICE))
        assert found.keypoints1.is_cuda
        assert_same(Refined(*(part.cpu() for part in found)), plain, least=0.2)


@cuda
def test_cuda_many_matches_are_not_recorded() -> None:
    views, *matches = case(registration.MOST_RECORDED + 100)
    assert_same(refine_places(*views, *matches, form="fused"), refine_places(*views, *matches, form="together"))


@cuda
def test_cuda_large_patches_repetitions_and_resolutions() -> None:
    views, *matches = case(300)
    assert_same(*both_forms(views, *matches, options=RefineOptions(radius=12)))
    for index in (0, 3):
        made, plain = (Resolutions(view, None).level(index) for view in (views[0], views[0].cpu()))
        torch.testing.assert_close(made.values.cpu(), plain.values, atol=1e-5, rtol=0)
        assert torch.equal(made.size.cpu(), plain.size)
    test_what_repeats_stays()
    test_what_cannot_be_told_stays()
    test_the_other_way_round()
    test_without_angles()
    for count in (0, 1, 2):
        test_few_matches(count)


@cuda
def test_cuda_inference_mode_and_another_stream() -> None:
    views, *matches = case(260)
    plain = refine_places(*views, *matches, form="together")
    for _ in range(3):
        with torch.inference_mode():
            assert_same(refine_places(*views, *matches), plain)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = refine_places(*views, *matches)
    stream.synchronize()
    assert_same(found, plain)

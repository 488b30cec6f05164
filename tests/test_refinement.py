"""Places of matches: exact where the truth is known, left alone where nothing can be told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import steerers
from helpers import EXAMPLES, run_command
from steerers import refinement, resolutions
from steerers.features import Matches, load_matches
from steerers.geometry import rotation
from steerers.images.load import load_image
from steerers.refinement import COARSEST, Refined, RefineOptions, local_maps, refine_places
from steerers.resolutions import BLUR, Resolutions

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 160
TYPES = (torch.float32, torch.float64)


class Scene:
    """A picture that is known everywhere: a sum of waves, of which an image is what is seen through an affine map."""

    def __init__(self, seed: int = 0, finest: float = 0.16, count: int = 24) -> None:
        made = torch.Generator().manual_seed(seed)
        angle = 2 * math.pi * torch.rand(count, generator=made, dtype=torch.float64)
        length = finest * torch.rand(count, generator=made, dtype=torch.float64).sqrt()
        self.waves = 2 * math.pi * length * torch.stack([angle.cos(), angle.sin()])  # (2, count)
        self.phases = 2 * math.pi * torch.rand(count, generator=made, dtype=torch.float64)

    def seen(self, linear: Tensor | None = None, offset: tuple[float, float] = (0.0, 0.0), size: int = SIZE) -> Tensor:
        """The image whose pixel x shows the place ``linear^-1 (x - offset)``."""
        side = torch.arange(size, dtype=torch.float64)
        xy = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1) - torch.tensor(offset).double()
        xy = xy if linear is None else xy @ torch.linalg.inv(linear).mT
        return 0.5 + 0.05 * (xy @ self.waves + self.phases).cos().sum(dim=-1)


def points(count: int = 40, margin: float = 30.0, seed: int = 1) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return margin + (SIZE - 1 - 2 * margin) * torch.rand(count, 2, generator=made, dtype=torch.float64)


def shaken(xy: Tensor, by: float, seed: int = 2) -> Tensor:
    return xy + by * (2 * torch.rand(xy.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_resolutions_above_one_another_give_what_each_gives(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, masked: bool
) -> None:
    """A GPU registers matches of all scales together, in one image of all resolutions; a CPU one after the other."""
    scene, scales = Scene(), (0.5, 0.7, 1.0, 1.4, 2.0)
    xy0 = points(60, seed=4)
    maps = torch.stack([scales[k % 5] * rotation(0.3).double() for k in range(60)])
    images = scene.seen().to(dtype), scene.seen(torch.eye(2).double() * 1.2).to(dtype)
    xy1 = shaken(1.2 * xy0, 0.4)
    masks = {}
    if masked:
        masks = {"mask1": torch.ones(SIZE, SIZE, dtype=torch.bool)}
        masks["mask1"][:60] = False
    monkeypatch.setattr(refinement, "local_maps", lambda *_: maps.to(dtype))
    monkeypatch.setattr(refinement, "SETTLED", -1.0)  # a GPU takes all steps
    apart, together = (refined(*images, xy0, xy1, form=form, **masks) for form in ("apart", "together"))
    views = [Resolutions(image, None) for image in images]
    assert len(refinement._groups(views, maps.to(dtype))) == 5
    assert len(refinement._groups(views, maps.to(dtype), together=True)) == 1
    assert bool(apart.moved.any())
    assert torch.equal(apart.moved, together.moved)
    torch.testing.assert_close(
        together.keypoints1, apart.keypoints1, atol=1e-3 if dtype == torch.float32 else 1e-9, rtol=0
    )


def test_what_has_settled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same places, as far as a step that counts as none moves them."""
    image = Scene().seen()
    xy0 = points(60)
    xy1 = xy0 + torch.linspace(0, 1, 60, dtype=torch.float64)[:, None] * (shaken(xy0, 1.5) - xy0)
    rows: list[int] = []
    at = refinement.Level.at

    def counted(self: refinement.Level, xy: Tensor) -> Tensor:
        rows.append(len(xy))
        return at(self, xy)

    monkeypatch.setattr(refinement.Level, "at", counted)
    found, needed = refined(image, image, xy0, xy1), sum(rows)
    rows.clear()
    monkeypatch.setattr(refinement, "FEWER", 0.0)
    expected = refined(image, image, xy0, xy1)
    assert needed < 0.9 * sum(rows)
    assert torch.equal(found.moved, expected.moved)
    assert float(found.moved.double().mean()) > 0.8
    torch.testing.assert_close(found.keypoints1, expected.keypoints1, atol=refinement.SETTLED, rtol=0)


def test_on_a_gpu_resolutions_are_made_in_fewer_steps() -> None:
    image = torch.rand(31, 45, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernels = torch.rand(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for dim in (0, 1):
        each = [resolutions._filtered(image, kernel, dim) for kernel in kernels]
        expected = torch.stack(each, dim=dim + 1).flatten(dim, dim + 1)
        torch.testing.assert_close(resolutions._spread(image, kernels, dim), expected)


@given(st.lists(st.floats(-10, 10) | st.just(math.nan), min_size=1, max_size=9))
def test_medians_of_what_is_known(values: list[float]) -> None:
    given_values = torch.tensor([values, values], dtype=torch.float64)
    expected = given_values.nanmedian(dim=1).values
    torch.testing.assert_close(refinement._median(given_values), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_what_is_no_number_is_nobodys_neighbour(count: int, known: bool) -> None:
    """A GPU fills matches up with such."""
    xy0 = points(count)
    xy1, angles = shaken(1.3 * xy0 @ rotation(0.4).mT, 0.3), torch.full((count,), 0.4, dtype=torch.float64)
    maps = local_maps(xy0, xy1, angles if known else None, 16)
    nothing = torch.full((24, 2), math.nan, dtype=torch.float64)
    first, second, turns = torch.cat([xy0, nothing]), torch.cat([xy1, nothing]), torch.cat([angles, nothing[:, 0]])
    padded = local_maps(first, second, turns if known else None, 16)
    torch.testing.assert_close(padded[:count], maps)
    if known:
        assert bool((refinement._moving(padded)[count:] == refinement._NONE).all())


def refined(image0: Tensor, image1: Tensor, xy0: Tensor, xy1: Tensor, angle: float = 0.0, **more: object) -> Refined:
    angles = torch.full((len(xy0),), angle, dtype=image0.dtype)
    return refine_places(image0, image1, xy0, xy1, angles, **more)  # type: ignore[arg-type]


def off_by(found: Refined, truth: Tensor) -> Tensor:
    return (found.keypoints1.double() - truth).norm(dim=1)


# Where the truth is known ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@given(
    angle=st.floats(-math.pi, math.pi),
    zoom=st.floats(0.5, 2.0),
    offset=st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=12, deadline=None)
def test_similarities_are_found_to_a_hundredth_of_a_pixel(
    dtype: torch.dtype, angle: float, zoom: float, offset: tuple[float, float], seed: int
) -> None:
    """Translations, rotations and scales, of either image the finer one; places are off by up to a pixel before."""
    scene = Scene(seed, finest=0.16 / max(1.0, 1 / zoom))
    linear = zoom * rotation(angle)
    centre = torch.tensor([(SIZE - 1) / 2] * 2, dtype=torch.float64)
    size = math.ceil(SIZE * max(1.0, zoom) * 1.1)
    moved = torch.tensor([(size - 1) / 2] * 2, dtype=torch.float64) + torch.tensor(offset) - linear @ centre
    xy0 = points()
    truth = xy0 @ linear.mT + moved
    image0, image1 = scene.seen(), scene.seen(linear, (float(moved[0]), float(moved[1])), size)
    found = refined(image0.to(dtype), image1.to(dtype), xy0, shaken(truth, 0.7 * min(1.0, zoom)), angle)
    inside = ((truth > 20 * max(1.0, zoom)) & (truth < size - 1 - 20 * max(1.0, zoom))).all(dim=1)
    assert float(found.moved[inside].float().mean()) > 0.8
    assert float(off_by(found, truth)[found.moved].median()) < 0.01 * max(1.0, zoom)
    assert float(off_by(found, truth)[found.moved].max()) < 0.1 * max(1.0, zoom)


@given(angle=st.floats(-math.pi, math.pi), tilt=st.floats(0.7, 1.3), seed=st.integers(0, 2**16))
@settings(max_examples=8, deadline=None)
def test_neighbours_tell_shear_and_scale(angle: float, tilt: float, seed: int) -> None:
    """Exact places of neighbours give nearly the exact map: the rotation and the scale, as prior, count as two of them.
    With a third of false matches it is about the same."""
    linear = rotation(angle) @ torch.diag(torch.tensor([tilt, 1.1], dtype=torch.float64))
    xy0 = points(200, margin=0.0, seed=seed)
    xy1 = xy0 @ linear.mT
    angles = torch.full((200,), angle, dtype=torch.float64)
    maps = local_maps(xy0, xy1, angles, 16)
    prior = rotation(angle) * math.sqrt(1.1 * tilt)
    unknown = float((prior - linear).abs().max())
    assert float((maps - linear).abs().amax(dim=(1, 2)).median()) < 0.4 * unknown + 0.02
    false = torch.arange(200) % 3 == 0
    wild = torch.where(false[:, None], points(200, margin=0.0, seed=seed + 1), xy1)
    maps = local_maps(xy0, wild, angles, 16)
    assert float((maps[~false] - linear).abs().amax(dim=(1, 2)).median()) < 0.7 * unknown + 0.03


def test_without_angles_neighbours_tell_the_rotation_too() -> None:
    scene, linear = Scene(3), rotation(2.0)
    offset = torch.tensor([80.0, 80.0], dtype=torch.float64) - linear @ torch.tensor([80.0, 80.0], dtype=torch.float64)
    xy0 = points(60)
    truth = xy0 @ linear.mT + offset
    image1 = scene.seen(linear, (float(offset[0]), float(offset[1])))
    found = refine_places(scene.seen(), image1, xy0, shaken(truth, 0.5))
    assert float(off_by(found, truth)[found.moved].median()) < 0.01
    assert float(found.moved.float().mean()) > 0.7


def test_the_plain_form_finds_the_same() -> None:
    """Written out for one match after another, with the interpolating Gaussian evaluated at every place."""
    scene, linear = Scene(5), rotation(0.4)
    offset = torch.tensor([-20.7, 38.4], dtype=torch.float64)
    xy0 = points(5, margin=60.0)
    truth = xy0 @ linear.mT + offset
    image0, image1 = scene.seen(), scene.seen(linear, (-20.7, 38.4))
    start = shaken(truth, 0.6)
    found = refined(image0, image1, xy0, start, 0.4)
    plain = torch.stack([register_plainly(image0, image1, *pair, linear) for pair in zip(xy0, start, strict=True)])
    assert bool(found.moved.all())
    assert float((found.keypoints1 - plain).norm(dim=1).max()) < 0.02
    assert float((plain - truth).norm(dim=1).max()) < 0.02


def register_plainly(image0: Tensor, image1: Tensor, xy0: Tensor, xy1: Tensor, linear: Tensor) -> Tensor:
    """Gauss-Newton over an affine map and the least squares of brightness and contrast, by numerical derivatives."""
    side = torch.arange(-7.0, 8.0, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1).view(-1, 2)
    window = torch.exp(-0.5 * (grid / 3.5).square().sum(dim=1)).sqrt()
    template = interpolated_plainly(image0, xy0 + grid)
    parameters = torch.cat([xy1, linear.flatten()])

    def seen(p: Tensor) -> Tensor:
        return interpolated_plainly(image1, p[:2] + grid @ p[2:].view(2, 2).mT)

    for _ in range(8):
        now = seen(parameters)
        steps = [1e-4 * torch.eye(6, dtype=torch.float64)[k] for k in range(6)]
        slopes = torch.stack([(seen(parameters + step) - seen(parameters - step)) / 2e-4 for step in steps], dim=1)
        # now + slopes @ change = gain * template + offset, by weighted least squares
        system = torch.cat([slopes, -template[:, None], -torch.ones_like(template)[:, None]], dim=1) * window[:, None]
        parameters = parameters + torch.linalg.lstsq(system, (-now * window)[:, None]).solution[:6, 0]
    return parameters[:2]


def interpolated_plainly(image: Tensor, xy: Tensor) -> Tensor:
    """(P,) what the Gaussian makes of all pixels at each place."""
    of_x, of_y = (torch.exp(-0.5 * ((torch.arange(SIZE) - p[:, None]) / BLUR) ** 2) for p in xy.unbind(dim=1))
    of_x, of_y = (of / of.sum(dim=1, keepdim=True) for of in (of_x, of_y))  # (P, SIZE)
    return ((of_y @ image) * of_x).sum(dim=1)


@pytest.mark.parametrize("dtype", TYPES)
def test_light_changes_nothing(dtype: torch.dtype) -> None:
    scene = Scene(7)
    xy0 = points()
    image0, image1 = scene.seen().to(dtype), scene.seen(offset=(0.3, -0.2)).to(dtype)
    start = shaken(xy0 + torch.tensor([0.3, -0.2]), 0.5)
    found, darker = refined(image0, image1, xy0, start), refined(image0, 0.3 * image1 + 0.1, xy0, start)
    assert float((found.keypoints1 - darker.keypoints1).abs().max()) < 1e-3


def test_covariances_are_the_scatter() -> None:
    """Squared errors over what the covariances say have the mean of a chi-squared with two degrees of freedom."""
    scene, noise = Scene(11), torch.Generator().manual_seed(0)
    xy0 = points(60)
    truth, ratios = xy0 + torch.tensor([0.4, 0.2]), []
    for _ in range(6):
        images = [
            image + 0.02 * torch.randn(SIZE, SIZE, generator=noise, dtype=torch.float64)
            for image in (scene.seen(), scene.seen(offset=(0.4, 0.2)))
        ]
        found = refined(images[0], images[1], xy0, truth)
        error = (found.keypoints1 - truth)[found.moved]
        ratios.append((error[:, None] @ torch.linalg.inv(found.covariances[found.moved]) @ error[..., None]).flatten())
    assert 1.4 < float(torch.cat(ratios).mean()) < 3.0  # 2


# What cannot be told --------------------------------------------------------------------------------------------------


def unmoved(found: Refined, start: Tensor, least: float = 1.0) -> None:
    """Most places are where they were, to the bit, and have an infinite covariance."""
    stays = ~found.moved
    assert float(stays.float().mean()) >= least
    assert torch.equal(found.keypoints1[stays], start.to(found.keypoints1)[stays])
    assert bool(torch.isinf(found.covariances[stays]).all())


@pytest.mark.parametrize("dtype", TYPES)
def test_noise_moves_next_to_nothing(dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(0)
    image0, image1 = (torch.rand(SIZE, SIZE, generator=made, dtype=dtype) for _ in range(2))
    xy = points(200)
    unmoved(refined(image0, image1, xy, xy), xy, least=0.97)


def test_two_scenes_have_nothing_in_common() -> None:
    xy = points(200)
    found = refined(Scene(1).seen(), Scene(2).seen(), xy, xy)
    unmoved(found, xy, least=0.7)
    assert float((found.keypoints1 - xy).norm(dim=1).max()) <= RefineOptions().max_shift * 1.5


@pytest.mark.parametrize("kind", ["flat", "edge", "nearly flat"])
def test_flat_places_and_edges_stay(kind: str) -> None:
    across = torch.linspace(-4, 4, SIZE, dtype=torch.float64)
    image = {
        "flat": torch.full((SIZE, SIZE), 0.5, dtype=torch.float64),
        "edge": torch.sigmoid(8 * across).expand(SIZE, SIZE).clone(),
        "nearly flat": 0.5 + 1e-5 * Scene(1).seen(),
    }[kind]
    xy = torch.stack([torch.full((30,), (SIZE - 1) / 2), torch.linspace(40, 120, 30)], dim=1).double()
    noise = 1e-3 * torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = shaken(xy, 0.8)
    unmoved(refined(image, image + (noise if kind == "edge" else 0), xy, start), start)


def test_a_grating_does_not_lead_to_its_next_line() -> None:
    """Places that are nearly as near to the next line stay; the others go to their own."""
    side = torch.arange(SIZE, dtype=torch.float64)
    image = 0.5 + 0.2 * (torch.cos(2 * math.pi * side / 3.2)[:, None] + torch.cos(2 * math.pi * side / 3.2))
    xy = points(300)
    some = torch.arange(300) % 6 == 0  # their neighbours tell the map
    found = refined(image, image, xy, torch.where(some[:, None], shaken(xy, 1.5), xy))
    moved = found.moved & some
    assert float((off_by(found, xy)[moved] < 0.05).float().mean()) > 0.9
    assert 0.2 < float(found.moved[some].float().mean()) < 0.9


def test_patches_over_the_border_stay() -> None:
    image, xy = Scene(1).seen(), torch.tensor([[2.0, 80.0], [80.0, 1.0], [157.5, 80.0], [-3.0, 500.0]]).double()
    unmoved(refined(image, image, xy, xy), xy)


def test_masks_are_not_looked_at() -> None:
    """What lies under a mask changes no place, and patches that are mostly under one stay."""
    image0, image1, xy = Scene(1).seen(), Scene(1).seen(offset=(0.25, 0.0)), points(100)
    mask = torch.ones(SIZE, SIZE, dtype=torch.bool)
    mask[:, 80:] = False
    spoilt = torch.where(mask, image1, torch.rand(SIZE, SIZE, dtype=torch.float64))
    start = shaken(xy + torch.tensor([0.25, 0.0]), 0.4)
    found = refined(image0, spoilt, xy, start, mask1=mask)
    assert not bool(found.moved[xy[:, 0] > 82].any())
    assert float(found.moved[xy[:, 0] < 70].float().mean()) > 0.9
    assert float(off_by(found, xy + torch.tensor([0.25, 0.0]))[found.moved].max()) < 0.1


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_matches(count: int) -> None:
    image, xy = Scene(1).seen(), points(count)
    found = refined(image, image, xy, xy + 0.3)
    assert [len(part) for part in found] == [count] * 4
    assert float(off_by(found, xy).sum()) < 0.02 * (count or 1)


def test_threads_change_nothing() -> None:
    image, xy = Scene(1).seen().float(), points(300)
    start, threads = shaken(xy, 0.5), torch.get_num_threads()
    one = refined(image, image, xy, start)
    torch.set_num_threads(2)
    try:
        two = refined(image, image, xy, start)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 1}, "radius must be at least 2, got 1"),
        ({"iterations": 0}, "iterations must be a positive number, got 0"),
        ({"max_shift": math.nan}, "max_shift must be a positive number, got nan"),
        ({"max_deviation": math.inf}, "max_deviation must be a positive number, got inf"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RefineOptions(**options)  # type: ignore[arg-type]


# Matches --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A photograph and the same turned by a quarter, in which a place is known to the bit."""
    folder = tmp_path_factory.mktemp("turned")
    with PIL.Image.open(EXAMPLES / "camera.jpg") as picture:
        small = picture.convert("L").resize((320, 240))
    small.save(folder / "a.png")
    small.transpose(PIL.Image.Transpose.ROTATE_90).save(folder / "b.png")
    return folder / "a.png", folder / "b.png"


def truth_of(matches: Matches) -> np.ndarray:
    """Where a quarter turn counter-clockwise puts keypoints of an image that is 320 wide."""
    return np.stack([matches.keypoints0[:, 1], 319 - matches.keypoints0[:, 0]], axis=1)


def error_of(matches: Matches) -> float:
    return float(np.median(np.linalg.norm(matches.keypoints1 - truth_of(matches), axis=1)))


def test_a_quarter_turn_of_a_photograph(turned: tuple[Path, Path]) -> None:
    plain, matcher = steerers.load(), steerers.load(refine=True)
    before, after = plain(*turned), matcher(*turned)
    assert before.covariances is None
    assert error_of(before) > 0.2
    assert error_of(after) < 0.01
    assert after.covariances is not None
    assert after.covariances.shape == (len(after), 2, 2)
    again = before.refine(*turned)
    assert np.array_equal(again.keypoints1, after.keypoints1)
    assert np.array_equal(again.keypoints0, before.keypoints0)
    without = replace(before, angles=None, angle=None).refine(*turned)
    assert error_of(without) < 0.02


def test_places_in_stored_pixels_whatever_the_model_saw(turned: tuple[Path, Path], tmp_path: Path) -> None:
    """EXIF that is applied to one image, and images that are shrunk."""
    with PIL.Image.open(turned[1]) as picture:
        exif = picture.getexif()
        exif[0x0112] = 6
        picture.save(tmp_path / "b.png", exif=exif)
    matcher = steerers.load("upright-sift", exif="apply", max_size=200, refine=True)
    matches = matcher(turned[0], tmp_path / "b.png")
    assert len(matches) > 50
    assert error_of(matches) < 0.1
    covariances = matches.covariances
    assert covariances is not None
    assert np.isfinite(covariances[:, 0, 0]).mean() > 0.3


def test_covariances_are_kept_in_files(turned: tuple[Path, Path], tmp_path: Path) -> None:
    matches = steerers.load("upright-sift", refine=True)(*turned)
    matches.save(tmp_path / "m.h5")
    again = load_matches(tmp_path / "m.h5")
    assert matches.covariances is not None
    assert again.covariances is not None
    assert np.array_equal(again.covariances, matches.covariances)


def test_homographies_by_covariances(turned: tuple[Path, Path]) -> None:
    """Of a quarter turn the homography is known; there is no worse one by what is known of the places."""
    plain = steerers.load("upright-sift")(*turned)
    with pytest.raises(ValueError, match="weighted needs covariances, which matches have after refine"):
        plain.homography(weighted=True)
    matches = plain.refine(*turned)
    robust, weighted = matches.homography(), matches.homography(weighted=True)
    assert np.array_equal(robust.inliers, weighted.inliers)
    errors = []
    for H, _ in (robust, weighted):
        assert H is not None
        mapped = np.column_stack([matches.keypoints0, np.ones(len(matches))]) @ H.T
        errors.append(float(np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - truth_of(matches), axis=1).mean()))
    assert errors[1] < 0.02
    assert errors[1] < errors[0]


def test_images_that_were_loaded(turned: tuple[Path, Path]) -> None:
    matches = steerers.load("upright-sift")(*turned)
    loaded = matches.refine(*(load_image(path) for path in turned))
    assert np.array_equal(loaded.keypoints1, matches.refine(*turned).keypoints1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_images_that_lie_where_they_are_matched(turned: tuple[Path, Path], device: str) -> None:
    """As ``eval --device cuda`` has them; and, since a CPU has no other device, in another precision."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    image = load_image(turned[0])
    moved = replace(image, tensor=image.tensor.to(device, torch.float64 if device == "cpu" else torch.float32))
    grey = refinement.Shown.of(moved, device).resolutions.image
    torch.testing.assert_close(grey.cpu().float(), refinement.Shown.of(image).resolutions.image)


def test_other_images_are_refused(turned: tuple[Path, Path]) -> None:
    matches = steerers.load("upright-sift")(*turned)
    with pytest.raises(ValueError, match="image0 has 240 x 320 pixels, but matches are of one of 320 x 240"):
        matches.refine(turned[1], turned[0])


def test_on_the_command_line(turned: tuple[Path, Path], tmp_path: Path) -> None:
    ran = run_command("match", *turned, "--model", "upright-sift", "--refine", "--json", tmp_path / "m.json")
    assert ran.code == 0, ran.err
    plain = run_command("match", *turned, "--model", "upright-sift", "--json", tmp_path / "p.json")
    assert plain.code == 0
    assert (tmp_path / "m.json").read_text() != (tmp_path / "p.json").read_text()


@pytest.mark.parametrize("zoom", [60.0, 1 / 60])
def test_what_differs_too_much_in_scale_is_left_alone(zoom: float) -> None:
    """Nothing is reduced further than that: on a GPU it could not be."""
    image, xy = Scene(1).seen(), points(20)
    first, second = Resolutions(image, None), Resolutions(image, None)
    found = refine_places(first, second, xy, zoom * (xy - 80) + 80, torch.zeros(20))
    assert not found.moved.any()
    assert all(level <= COARSEST for views in (first, second) for level in views._levels)

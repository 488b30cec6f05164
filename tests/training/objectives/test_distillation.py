"""A network that is taught the mean of what others say of rotated views."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import assert_near
from steerers._weights import load
from steerers.datasets.pairs import PairBatch
from steerers.models.compact import Compact, FeatureMaps
from steerers.models.sampling import peaks
from steerers.training.build import build_objective, build_teacher
from steerers.training.config import parse_config
from steerers.training.objectives.distillation import (
    DistillationOptions,
    DistilledObjective,
    Taught,
    logit_terms,
    rotate_maps,
    rotate_points,
)
from steerers.training.objectives.joint import JointObjective
from steerers.training.objectives.keypoints import KeypointOptions
from training.runs import make_photographs, make_run, small_config
from training.tiny import OPTIONS, STILL, batch_of, compact, photographs, small_steerer

pytestmark = pytest.mark.usefixtures("one_thread")


def distilled(network: Compact, teacher: Compact, **options: Any) -> DistilledObjective:
    chosen = DistillationOptions(margin=2, **options)
    return DistilledObjective(network, small_steerer(), OPTIONS, KeypointOptions(), [teacher], chosen)


def bumps(xy: Tensor, size: int) -> Tensor:
    """(1, S, S) paraboloids of height 0 at (N, 2) places, the highest of them at each pixel."""
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="xy"), dim=-1)
    return -(grid[None] - xy[:, None, None]).square().sum(dim=3).amin(dim=0)[None].float()


# Rotations ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 3), st.sampled_from([9, 16]))
def test_quarter_turns_move_pixels(turns: int, size: int) -> None:
    maps = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(turns))
    angles = torch.full((2,), turns * math.pi / 2)
    assert_near(rotate_maps(maps, angles), maps.rot90(turns, (2, 3)), 1e-4)


@given(st.floats(-math.pi, math.pi), st.floats(-6, 6), st.floats(-6, 6))
def test_points_go_where_maps_do(angle: float, x: float, y: float) -> None:
    """The top of a smooth hill stays the top; bicubic sampling moves it by less than a twentieth of a pixel."""
    xy, angles = 15.5 + torch.tensor([[[x, y]]]), torch.tensor([angle])
    hill = (bumps(xy[0], 32) / 8).exp()
    there = rotate_points(xy, angles, hill)
    turned = rotate_maps(hill[:, None], angles)[:, 0]
    assert_near(peaks((turned.clamp(min=1e-6)).log(), there.round().long()), there, 0.05)
    assert_near(rotate_points(there, -angles, hill), xy, 1e-4)


def test_half_precision_does_not_move_views() -> None:
    """A grid of 8 bits would be a third of a pixel off, as far as the network learns to place keypoints."""
    maps = torch.linspace(0, 1, 64).expand(1, 1, 64, 64)
    angles = torch.tensor([0.7])
    xy = torch.tensor([[[60.3, 3.2]]])
    with torch.autocast("cpu", torch.bfloat16):
        rotated, moved = rotate_maps(maps, angles), rotate_points(xy, angles, maps)
    torch.testing.assert_close(rotated, rotate_maps(maps, angles), atol=0, rtol=0)
    torch.testing.assert_close(moved, rotate_points(xy, angles, maps), atol=0, rtol=0)


def test_only_square_maps_are_rotated() -> None:
    with pytest.raises(ValueError, match=r"only square maps are rotated in place, got \(4, 5\)"):
        rotate_maps(torch.zeros(1, 1, 4, 5), torch.zeros(1))


# Logits ---------------------------------------------------------------------------------------------------------------


def test_a_constant_is_no_difference_and_a_shift_is_one() -> None:
    xy = torch.tensor([[[10.25, 9.5], [20.0, 21.25]]])
    target, real = bumps(xy[0], 32), torch.ones(1, 2, dtype=torch.bool)
    allowed = torch.ones_like(target, dtype=torch.bool)
    same = logit_terms(target + 7, target, allowed, xy, real, DistillationOptions())
    assert float(same["logits"].total) < 1e-4
    assert float(same["places"].total) < 1e-4
    moved = logit_terms(bumps(xy[0] + 0.3, 32), target, allowed, xy, real, DistillationOptions())
    assert_near(moved["places"].total / moved["places"].count, torch.tensor(0.3 * math.sqrt(2)), 1e-3)
    assert float(moved["logits"].total / moved["logits"].count) > 0.1


def test_what_is_not_allowed_and_what_only_fills_up_do_not_count() -> None:
    xy = torch.tensor([[[10.0, 10.0], [25.0, 25.0]]])
    target, real = bumps(xy[0], 32), torch.tensor([[True, False]])
    allowed = torch.ones_like(target, dtype=torch.bool)
    allowed[:, 18:] = False
    logits = target.clone()
    logits[:, 18:] += torch.arange(32.0) ** 2
    terms = logit_terms(logits, target, allowed, xy, real, DistillationOptions())
    assert float(terms["logits"].total) < 1e-4
    assert float(terms["places"].count) == 1
    everywhere = logit_terms(logits, target, torch.ones_like(allowed), xy, real, DistillationOptions())
    assert float(everywhere["logits"].total) > 1


@given(st.floats(0, 5000))
def test_how_low_logits_are_away_from_keypoints_does_not_matter(lower: float) -> None:
    """Logits whose keypoints were rewarded are hundreds lower everywhere else."""
    xy, real = torch.tensor([[[10.25, 9.5]]]), torch.ones(1, 1, dtype=torch.bool)
    target = bumps(xy[0], 32).clamp(min=-40).requires_grad_()
    low = torch.where(target.detach() > -20, target.detach(), target.detach() - lower)
    allowed = torch.ones_like(low, dtype=torch.bool)
    for pair in ((low, target), (target, low)):
        term = logit_terms(*pair, allowed, xy, real, DistillationOptions())["logits"]
        assert float(term.total.detach()) < 1e-4
    raised = torch.where(target.detach() > -20, target.detach(), -3.0)  # keypoints where the teachers have none
    assert float(logit_terms(raised, target.detach(), allowed, xy, real, DistillationOptions())["logits"].total) > 1


def test_what_fills_up_may_lie_beyond_the_border() -> None:
    xy = torch.tensor([[[10.0, 10.0], [-0.8, 31.9]]])
    target, real = bumps(xy[0, :1], 32), torch.tensor([[True, False]])
    terms = logit_terms(target, target, torch.ones_like(target).bool(), xy, real, DistillationOptions())
    assert float(terms["places"].count) == 1


def test_tops_that_are_far_away_are_not_pulled() -> None:
    xy = torch.tensor([[[10.0, 10.0]]])
    far = bumps(xy[0] + 1.0, 32)  # diagonally: more than a pixel
    real = torch.ones(1, 1, dtype=torch.bool)
    allowed = torch.ones_like(far, dtype=torch.bool)
    assert float(logit_terms(far, bumps(xy[0], 32), allowed, xy, real, DistillationOptions())["places"].count) == 0


# The objective --------------------------------------------------------------------------------------------------------


def test_a_network_that_is_its_own_teacher_has_nothing_to_learn_unrotated() -> None:
    network = compact().eval()
    batch = batch_of(photographs(views=STILL, size=48), "none")
    terms = distilled(network, network, rotations=1).eval()(batch, 0.0)
    assert set(terms) == {"logits", "places", "descriptions"}
    for name, term in terms.items():
        assert float(term.count) > 0, name
        assert float(term.total / term.count) < 1e-3, name


def test_the_target_is_the_mean_over_rotations() -> None:
    """By quarter turns, which are exact, and by hand."""
    network = compact().eval()
    objective = distilled(compact(1), network, rotations=4)
    images = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(3))
    taught = objective._teach(images, torch.zeros(2))
    turned = [network(images.rot90(k, (2, 3))).logits.rot90(-k, (1, 2)) for k in range(4)]
    assert taught.seen[:, 2:-2, 2:-2].all()
    assert not taught.seen[:, 0].any()
    inside = (slice(None), slice(3, -3), slice(3, -3))  # the margin itself is a matter of rounding
    assert_near(taught.logits[inside], torch.stack(turned).mean(dim=0)[inside], 1e-4)


class Turning(nn.Module):
    """Describes by a description that rotates as the steerer says, by the angle that its map holds."""

    def __init__(self, base: Tensor) -> None:
        super().__init__()
        self.base = base

    def describe_at(self, maps: FeatureMaps, xy: Tensor) -> Tensor:
        return small_steerer().steer(self.base.expand(*xy.shape[:2], -1), maps.features[0][:, None])


def test_descriptions_are_steered_back() -> None:
    base = F.normalize(torch.randn(8, generator=torch.Generator().manual_seed(0)), dim=0)
    objective = distilled(compact(), compact(1))
    objective._teachers = [Turning(base)]  # type: ignore[list-item]
    views = []
    for start in (0.3, 0.3 + math.pi):
        angles = torch.tensor([start, start + 1])
        views.append((angles, FeatureMaps((angles,), torch.zeros(2, 20, 20), (20, 20))))
    xy = torch.tensor([[9.0, 8.0], [0.0, 0.0]]).expand(2, 2, 2)
    target, seen = objective._descriptions(Taught(torch.zeros(2, 20, 20), torch.ones(2, 20, 20).bool(), views), xy)
    assert seen[:, 0].all()
    assert_near(F.normalize(target[:, 0], dim=1), base.expand(2, -1), 1e-5)


def test_pairs_teach_beside_as_much_as_they_are_asked_to() -> None:
    network, teacher = compact(1).eval(), compact().eval()
    batch = batch_of(photographs())
    alone = JointObjective(network, small_steerer(), OPTIONS, KeypointOptions()).eval()(batch, 0.5)
    both = distilled(network, teacher, pairs=0.25).eval()(batch, 0.5)
    taught = distilled(network, teacher).eval()(batch, 0.5)
    assert set(both) == set(alone) | set(taught)
    for name, term in alone.items():
        assert both[name].weight == 0.25 * term.weight
        assert_near(both[name].total, term.total, 1e-4)
    for name, term in taught.items():
        assert both[name].weight == term.weight


def test_it_learns_and_statistics_stay() -> None:
    teacher = compact().eval()
    network = compact(1)
    objective = distilled(network, teacher).train()
    assert list(objective.networks()) == ["network", "steerer"]
    assert not any("teacher" in name for name in objective.state_dict())
    batch = batch_of(photographs())
    optimiser, found = torch.optim.Adam(network.parameters(), lr=1e-2), []
    before = {name: value.clone() for name, value in network.named_buffers()}
    for _ in range(15):
        terms = objective(batch, 0.0)
        loss = sum((t.weight * t.total / t.count.clamp(min=1) for t in terms.values()), torch.zeros(()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    assert found[-1] < 0.8 * found[0]
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    several = nn.SyncBatchNorm.convert_sync_batchnorm(objective).train()
    norms = [module for module in several.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert norms
    assert not any(norm.training for norm in norms)
    assert set(objective.eval().measure(batch)) == {"nll", "accuracy", "repeatability"}


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_run_is_taught_by_another(tmp_path: Path) -> None:
    photos = make_photographs(tmp_path / "photos")
    fixed = {"steerer": {"group": "SO2", "kind": "freq1"}}
    plain = small_config("SO2", steps=2, steerer=parse_config(fixed).steerer)
    make_run(tmp_path / "first", photos, plain)
    teacher = str(tmp_path / "first" / "model.safetensors")
    assert isinstance(build_teacher(teacher), Compact)
    options = DistillationOptions(teachers=(teacher,), margin=2)
    measured = make_run(tmp_path / "second", photos, small_config("SO2", steerer=plain.steerer, distillation=options))
    assert math.isfinite(measured["nll"])
    _, metadata = load(tmp_path / "second" / "model.safetensors")
    assert '"teachers": ["model.safetensors"]' in metadata["config"]
    assert str(tmp_path) not in metadata["config"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"distillation": {"teachers": ["sift"]}}, "must be compact networks with keypoints, and 'sift' is none"),
        ({"distillation": {"teachers": ["disk"]}}, "must be compact networks with keypoints, and 'disk' is none"),
        (
            {"distillation": {"teachers": ["compact-1"]}, "model": {"compact": {"dim": 64}}},
            "the first describes by 256 numbers, but model.compact.dim is 64",
        ),
        (
            {"distillation": {"teachers": ["compact"]}, "setting": "detector", "model": {"kind": "dedode-detector-l"}},
            "distillation.teachers teach in setting 'joint', not in 'detector'",
        ),
        (
            {
                "distillation": {"teachers": ["compact"]},
                "steerer": {"group": "C4", "kind": "perm"},
                "data": {"rotations": "C4"},
            },
            "descriptions of views at any rotation need a steerer of SO2",
        ),
        ({"distillation": {"teachers": ["nobody"]}}, "unknown model 'nobody'"),
        (
            {"distillation": {"teachers": ["compact"]}, "steerer": {"kind": "none"}, "data": {"rotations": "none"}},
            "descriptions of views at any rotation need a steerer of SO2",
        ),
        (
            {"distillation": {"teachers": ["compact"]}, "steerer": {"learn": True}},
            "the steerer stays that of the teachers",
        ),
        ({"distillation": {"rotations": 0}}, "rotations must be at least 1"),
        ({"distillation": {"margin": -1}}, "margin must not be negative"),
        ({"distillation": {"teacher": "compact"}}, "unknown key 'distillation.teacher'"),
    ],
)
def test_what_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_objective(parse_config(values))


# Unchanged light ------------------------------------------------------------------------------------------------------


def test_teachers_may_see_views_in_the_light_of_their_photographs() -> None:
    """A network that is its own teacher has something to learn then: to say the same in another light."""
    views = dataclasses.replace(STILL, photometric=1.0, sensors=1.0)
    batch, network = batch_of(photographs(views=views, size=48), "none"), compact().eval()
    assert not torch.equal(batch.images0, batch.unchanged[0])
    lit = dataclasses.replace(batch, images0=batch.unchanged[0], images1=batch.unchanged[1])

    def off(batch: PairBatch, name: str, unchanged: bool) -> float:
        term = distilled(network, network, rotations=1, unchanged=unchanged).eval()(batch, 0.0)[name]
        return float(term.total / term.count)

    for name in ("logits", "descriptions"):
        nothing = max(off(batch, name, False), off(lit, name, True))
        assert off(batch, name, True) > 10 * nothing


def test_pairs_without_views_in_unchanged_light_are_refused() -> None:
    batch = dataclasses.replace(batch_of(photographs()), unchanged=None)
    with pytest.raises(ValueError, match="these pairs are known in the light alone that they are shown in"):
        distilled(compact(1), compact(), unchanged=True)(batch, 0.0)

"""Pictures of noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from steerers.images.noise import make_picture


def test_a_picture_is_the_same_every_time() -> None:
    picture = make_picture(52, 70)
    assert picture.shape == (3, 52, 70)
    assert 0 <= picture.min() < picture.max() <= 1
    assert torch.equal(picture, make_picture(52, 70))
    assert not torch.equal(picture, make_picture(52, 70, seed=1))


def test_there_is_something_to_see_at_every_scale() -> None:
    picture = make_picture(256, 256)
    for cell in (1, 2, 4, 8, 16):
        assert F.avg_pool2d(picture, cell).std() > 0.05

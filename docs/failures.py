"""Three pairs that are hard or fail, for docs/models.md: ``python docs/failures.py`` draws them (assets/failures.jpg).

It prints what the model card says of them: how many matches there are, how many agree with one homography, and how
likely the verdict says it is that both images show the same thing; with consensus, and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps

import steerers
from steerers.viz.canvas import stack
from steerers.viz.matches import draw_matches

EXAMPLES = Path(__file__).parents[1] / "examples"
PICTURE = Path(__file__).parent / "assets" / "failures.jpg"
WIDTH = 720


def pairs() -> Iterator[tuple[str, PIL.Image.Image, PIL.Image.Image]]:
    """What is hard, and the two images, the second rotated."""
    first, second, brick, cup = (
        PIL.Image.open(EXAMPLES / f"{name}.jpg").convert("RGB")
        for name in ("maupertuis_0", "maupertuis_1", "brick", "coffee")
    )
    small = second.resize((second.width // 8, second.height // 8), PIL.Image.Resampling.LANCZOS)
    yield "an eighth of the size", first, rotated(small, 40)
    middle = brick.width // 2
    left, right = brick.crop((0, 0, middle, brick.height)), brick.crop((middle, 0, brick.width, brick.height))
    yield "two parts of a wall of bricks", left, rotated(right, 20)
    yield "a mirror image", cup, rotated(PIL.ImageOps.mirror(cup), 30)


def rotated(image: PIL.Image.Image, degrees: float) -> PIL.Image.Image:
    """Rotated counter-clockwise, on a canvas that holds it whole."""
    return image.rotate(degrees, PIL.Image.Resampling.BICUBIC, expand=True)


def main() -> None:
    """Match, print and draw."""
    matcher, plain = steerers.load(), steerers.load(consensus=False)
    pictures = []
    for what, *both in pairs():
        loaded = [matcher.load_image(image) for image in both]
        features = matcher.extract(loaded)
        found, alone = matcher.match(*features), plain.match(*features)
        inliers = found.homography(threshold=3.0)[1] if len(found) >= 4 else np.zeros(len(found), np.bool_)
        told = f"{len(found)} matches, {int(inliers.sum())} agree, probability {found.probability:.2f}"
        print(f"{what}: {told}; without consensus {len(alone)}, {alone.probability:.2f}")  # noqa: T201
        drawn = draw_matches(loaded[0], loaded[1], found, inliers, height=540)
        pictures.append(drawn.resize((WIDTH, round(drawn.height * WIDTH / drawn.width)), PIL.Image.Resampling.LANCZOS))
    stack(pictures).save(PICTURE, quality=74, optimize=True)


if __name__ == "__main__":
    main()

"""vismatch's shape: two images in, a dictionary of arrays out.

vismatch, once image-matching-models, has some fifty matchers behind one call. A program that was written for them takes
:class:`VismatchMatcher` as it is; vismatch itself is not needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from steerers._choices import DEFAULT_MODEL
from steerers._files import StrPath
from steerers.features import Features, Matches
from steerers.geometry import estimate_homography, rotate_image
from steerers.images.load import load_image
from steerers.pipeline import load

Picture = StrPath | PIL.Image.Image | NDArray[Any] | Tensor
"""A path, a Pillow image, or (3, H, W) numbers in [0, 1], as vismatch has them."""
Array = NDArray[Any]


class VismatchMatcher(nn.Module):
    """Matches two images, and finds the homography between them.

    Args:
        device: where the network runs.
        max_num_keypoints: most keypoints an image.
        model: see ``steerers models``.
        ransac_iters: most samples that are tried for the homography.
        ransac_conf: probability with which that may stop early.
        ransac_reproj_thresh: most pixels between an inlier and where the homography puts it.
        options: of :func:`steerers.load`, such as ``strategy``.
    """

    def __init__(
        self,
        device: str = "cpu",
        max_num_keypoints: int = 2048,
        *,
        model: StrPath = DEFAULT_MODEL,
        ransac_iters: int = 2000,
        ransac_conf: float = 0.995,
        ransac_reproj_thresh: float = 3,
        **options: Any,
    ) -> None:
        super().__init__()
        self.device = device
        self.ransac_iters, self.ransac_conf, self.ransac_reproj_thresh = ransac_iters, ransac_conf, ransac_reproj_thresh
        self._pipeline = load(model, device=device, num_keypoints=max_num_keypoints, **options)

    @property
    def name(self) -> str:
        """Of the matcher."""
        return type(self).__name__

    @staticmethod
    def load_image(path: StrPath, resize: int | tuple[int, int] | None = None, rot_angle: float = 0) -> Tensor:
        """A (3, H, W) tensor in [0, 1].

        Args:
            resize: the height and width, or one number for both; the shape of the image is not kept.
            rot_angle: degrees by which it is rotated counter-clockwise about its centre; the size stays, and corners
                are lost.
        """
        image = load_image(path).tensor
        if resize is not None:
            size = [resize, resize] if isinstance(resize, int) else list(resize)
            image = F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0].clamp(0, 1)
        return image if rot_angle % 360 == 0 else rotate_image(image, np.radians(rot_angle), expand=False)[0]

    def forward(self, img0: Picture, img1: Picture) -> dict[str, Any]:
        """Match two images.

        Returns:
            Arrays of pixels (x, y) with the centre of the top-left one at (0, 0), ``all_kpts0`` (N, 2) and
            ``all_desc0`` (N, D) of image 0, ``matched_kpts0`` (K, 2) and ``matched_confidences`` (K,), ``inlier_kpts0``
            (I, 2), which agree with the homography ``H`` (3, 3) from image 0 to image 1, or None, and their number
            ``num_inliers``; of image 1 likewise. Beyond what vismatch has: ``angle``, the rotation in degrees,
            counter-clockwise, that brings image 0 onto image 1, or None, and ``angles`` (K,) of every match, or None.
        """
        matches, (all0, desc0), (all1, desc1) = self._match(img0, img1)
        H, inliers = estimate_homography(
            matches.keypoints0,
            matches.keypoints1,
            self.ransac_reproj_thresh,
            confidence=self.ransac_conf,
            max_iterations=self.ransac_iters,
        )
        return {
            "num_inliers": int(inliers.sum()),
            "H": H,
            "all_kpts0": all0,
            "all_kpts1": all1,
            "all_desc0": desc0,
            "all_desc1": desc1,
            "matched_kpts0": matches.keypoints0,
            "matched_kpts1": matches.keypoints1,
            "inlier_kpts0": matches.keypoints0[inliers],
            "inlier_kpts1": matches.keypoints1[inliers],
            "matched_confidences": matches.scores,
            "angle": matches.angle,
            "angles": matches.angles,
        }

    def _forward(self, img0: Picture, img1: Picture) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
        """What vismatch's own base class, and its ensembles, ask of a matcher: matched and all keypoints of both
        images, descriptions, and probabilities."""
        matches, (all0, desc0), (all1, desc1) = self._match(img0, img1)
        return matches.keypoints0, matches.keypoints1, all0, all1, desc0, desc1, matches.scores

    def extract(self, img: Picture) -> dict[str, Array]:
        """The keypoints ``all_kpts0`` (N, 2) and descriptions ``all_desc0`` (N, D) of an image."""
        keypoints, descriptions = _arrays(self._pipeline.extract(_source(img)))
        return {"all_kpts0": keypoints, "all_desc0": descriptions}

    def _match(self, img0: Picture, img1: Picture) -> tuple[Matches, tuple[Array, Array], tuple[Array, Array]]:
        matches = self._pipeline(_source(img0), _source(img1))
        return matches, _arrays(matches.features0), _arrays(matches.features1)


def _source(picture: Picture) -> Any:
    """As the pipeline takes it; resampling may have left numbers a little outside of [0, 1]."""
    if isinstance(picture, np.ndarray):
        picture = torch.from_numpy(picture)
    if not isinstance(picture, Tensor):
        return picture
    if picture.ndim != 3 or picture.shape[0] != 3:
        raise ValueError(f"an image must have shape (3, H, W), got {tuple(picture.shape)}")
    return picture.clamp(0, 1) if picture.is_floating_point() else picture


def _arrays(features: Features | None) -> tuple[Array, Array]:
    """Keypoints and descriptions."""
    assert features is not None  # of a pipeline's matches
    return features.keypoints.cpu().numpy(), features.descriptions.float().cpu().numpy()

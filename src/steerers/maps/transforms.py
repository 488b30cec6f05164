"""How the pixels of one image lie in another: a similarity, affine map or homography, and a smooth local part.

A :class:`Transform` leads from the pixels of a *fixed* image to those of a *moving* one, which is the direction in
which the moving image is resampled, and ITK's. It is kept as JSON, and written as ITK's ``.tfm``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steerers._choices import Kind
from steerers._files import StrPath, read_json, write_text
from steerers.geometry import Size
from steerers.maps.coordinates import map_points

Array = NDArray[np.float64]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the stiffest to the most pliable."""

FORMAT = "steerers transform 1"
CONVENTION = "pixels of the images as stored, x right and y down, the centre of the top-left pixel at (0, 0)"
MOST_NODES = 65
"""Of a grid of displacements, along a side."""
ITK_NODES = 257
"""Of one that ITK interpolates linearly."""
_SETTLED, _STEPS = 1e-9, 200  # of the search for the inverse, in pixels


def need_scipy() -> None:
    """Raise an error that says how to install SciPy, if it is missing."""
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'places, alignments and mosaics are computed by SciPy: pip install "steerers[maps]"'
        ) from error


@dataclass(frozen=True, eq=False)
class Displacements:
    """A smooth field of displacements over an image: values on a grid from its first pixel to its last, between which
    cubic splines interpolate; beyond the image it goes on as at its border.

    Attributes:
        values: (rows, columns, 2) pixels along x and y.
        size: (width, height) of the image.
    """

    values: Array
    size: Size

    @classmethod
    def sampled(cls, field: Callable[[Array], Array], size: Size, most: int = MOST_NODES) -> Displacements:
        """Of a function of (N, 2) pixels, at no more than ``most`` nodes along a side."""
        columns, rows = (max(4, min(most, math.ceil(side / 2) + 1)) for side in size)
        nodes = _nodes(size, (columns, rows))
        return cls(field(nodes.reshape(-1, 2)).reshape(rows, columns, 2), size)

    @property
    def spacing(self) -> tuple[float, float]:
        """Pixels from one node to the next, along x and y."""
        rows, columns = self.values.shape[:2]
        return max(self.size[0] - 1, 1) / (columns - 1), max(self.size[1] - 1, 1) / (rows - 1)

    @cached_property
    def _splines(self) -> list[Any]:
        from scipy.interpolate import RectBivariateSpline

        down, across = (np.arange(count, dtype=np.float64) for count in self.values.shape[:2])
        return [RectBivariateSpline(down, across, self.values[..., axis]) for axis in (0, 1)]

    def __call__(self, xy: Array) -> Array:
        """(N, 2) displacements at (N, 2) pixels."""
        limits = np.array(self.values.shape[1::-1]) - 1.0
        columns, rows = np.clip(np.nan_to_num(xy / self.spacing), 0, limits).T
        return np.stack([spline.ev(rows, columns) for spline in self._splines], axis=1)


def _nodes(size: Size, counts: tuple[int, int]) -> Array:
    """(rows, columns, 2) pixels of a grid of (columns, rows) nodes, from the first pixel to the last."""
    along_x, along_y = (np.linspace(0, max(side - 1, 1), count) for side, count in zip(size, counts, strict=True))
    return np.stack(np.meshgrid(along_x, along_y), axis=-1)


@dataclass(frozen=True, eq=False)
class Transform:
    """From pixels of a fixed image to those of a moving one: ``x -> H (x + u(x))``.

    Attributes:
        kind: of ``matrix``.
        matrix: (3, 3) ``H``, oriented: its last coordinate is positive in the middle of the fixed image.
        fixed_size: (width, height) of the fixed image; ``moving_size`` likewise.
        local: ``u``, a smooth field of displacements in pixels of the fixed image, or ``None``.
    """

    kind: Kind
    matrix: Array
    fixed_size: Size
    moving_size: Size
    local: Displacements | None = None

    def __post_init__(self) -> None:
        matrix = np.asarray(self.matrix, np.float64)
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-300:
            raise ValueError(f"matrix must be an invertible 3 x 3 matrix, got {matrix.tolist()}")
        weight = float(matrix[2] @ [(self.fixed_size[0] - 1) / 2, (self.fixed_size[1] - 1) / 2, 1])
        if weight == 0:
            raise ValueError("the middle of the fixed image goes to infinity")
        scale = matrix[2, 2] if matrix[2, 2] * weight > 0 else math.copysign(np.linalg.norm(matrix), weight)
        object.__setattr__(self, "matrix", matrix / scale)

    @property
    def mirrored(self) -> bool:
        """Whether one image is a mirror image of the other."""
        return bool(np.linalg.det(self.matrix) < 0)

    def to_moving(self, xy: ArrayLike) -> Array:
        """(N, 2) pixels of the moving image where (N, 2) of the fixed one are; NaN beyond the horizon."""
        points = np.asarray(xy, np.float64).reshape(-1, 2)
        return _mapped(self.matrix, points if self.local is None else points + self.local(points))

    def to_fixed(self, xy: ArrayLike) -> Array:
        """(N, 2) pixels of the fixed image where (N, 2) of the moving one are."""
        aim = self.unbent(xy)
        if self.local is None:
            return aim
        found = aim.copy()
        for _ in range(_STEPS):  # x = aim - u(x), a contraction where the field does not fold
            last, found = found, aim - self.local(found)
            if np.nanmax(np.abs(found - last), initial=0.0) < _SETTLED:
                break
        return found

    def unbent(self, xy: ArrayLike) -> Array:
        """(N, 2) pixels of the moving image in the frame of the fixed one, by the matrix alone."""
        inverse = np.asarray(np.linalg.inv(self.matrix), np.float64)
        width, height = self.moving_size
        weight = float(inverse[2] @ [(width - 1) / 2, (height - 1) / 2, 1])
        return _mapped(inverse * (np.sign(weight) or 1.0), np.asarray(xy, np.float64).reshape(-1, 2))

    # Files ------------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`to_json` says."""
        told: dict[str, Any] = {
            "format": FORMAT,
            "convention": CONVENTION,
            "kind": self.kind,
            "mirrored": self.mirrored,
            "fixed_size": list(self.fixed_size),
            "moving_size": list(self.moving_size),
            "fixed_to_moving": self.matrix.tolist(),
            "moving_to_fixed": (np.linalg.inv(self.matrix) / np.linalg.inv(self.matrix)[2, 2]).tolist(),
            "local": None,
        }
        if self.local is not None:
            back = Displacements.sampled(lambda y: self.to_fixed(_mapped(self.matrix, y)) - y, self.fixed_size)
            told["local"] = {
                "convention": "x of the fixed image goes to fixed_to_moving (x + displacements(x)); back, with y = "
                "moving_to_fixed (m), to y + inverse_displacements(y); rows of [dx, dy] in pixels of the fixed image, "
                "from its first pixel to its last, cubic splines between",
                "spacing": list(self.local.spacing),
                "displacements": self.local.values.tolist(),
                "inverse_displacements": back.values.tolist(),
            }
        return told

    def save(self, path: StrPath, more: Mapping[str, Any] | None = None) -> None:
        """Write :meth:`to_json` to a file, whole or not at all, which :meth:`load` reads."""
        write_text(Path(path), self.to_json(more))

    def to_json(self, more: Mapping[str, Any] | None = None) -> str:
        """As the text of JSON, with ``more`` beside."""
        return json.dumps({**self.to_dict(), **(more or {})}, allow_nan=False) + "\n"

    @classmethod
    def load(cls, path: StrPath) -> Transform:
        """What :meth:`save` wrote.

        Raises:
            ValueError: naming the file, if it is none, or damaged.
        """
        told = read_json(path)
        try:
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']!r:.40}, not {FORMAT!r}")
            fixed, moving = (_size(told[name]) for name in ("fixed_size", "moving_size"))
            found = cls(told["kind"], np.array(told["fixed_to_moving"], np.float64), fixed, moving)
            if told["local"] is None:
                return found
            values = np.array(told["local"]["displacements"], np.float64)
            if values.ndim != 3 or values.shape[2] != 2 or min(values.shape[:2]) < 4 or not np.isfinite(values).all():
                raise ValueError(f"its displacements are of shape {values.shape}")
            return replace(found, local=Displacements(values, fixed))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no transform of `steerers align`, or damaged ({error})") from error

    def to_itk(self) -> str:
        """The text of ITK's ``.tfm``: points of the fixed image to those of the moving one.

        Points are pixels, as in :data:`CONVENTION`, which is ITK's physical space of images with spacing 1, origin 0
        and no direction. A similarity or affine map is exact. ITK has no homographies: these, and what has a local
        part, are written as a field of displacements over the fixed image, linear between its nodes.
        """
        if self.local is None and self.kind != "homography":
            numbers = [*self.matrix[:2, :2].ravel(), *self.matrix[:2, 2]]
            return _itk("AffineTransform_double_2_2", numbers, [0.0, 0.0])
        field = Displacements.sampled(lambda x: self.to_moving(x) - x, self.fixed_size, ITK_NODES)
        if not np.isfinite(field.values).all():
            raise ValueError("the horizon of the homography crosses the fixed image, of which ITK has no transform")
        rows, columns = field.values.shape[:2]
        told = [columns, rows, 0, 0, *field.spacing, 1, 0, 0, 1]  # size, origin, spacing, direction
        return _itk("DisplacementFieldTransform_double_2_2", field.values.ravel(), told)


def transfer(H: Array, xy: Array) -> Array:
    """(N, 2) points through a (3, 3) projective map; infinite where they have no place."""
    return np.nan_to_num(map_points(H, xy), nan=np.inf)


def _size(values: Any) -> Size:
    width, height = values
    if not (type(width) is type(height) is int) or min(width, height) < 1:
        raise ValueError(f"a size is two whole numbers, got {values!r:.40}")
    return width, height


def _itk(name: str, parameters: ArrayLike, fixed: ArrayLike) -> str:
    numbers, told = (" ".join(map(repr, np.asarray(v, np.float64).tolist())) for v in (parameters, fixed))
    head = f"#Insight Transform File V1.0\n#Transform 0\nTransform: {name}\n"
    return f"{head}Parameters: {numbers}\nFixedParameters: {told}\n"


def _mapped(matrix: Array, points: Array) -> Array:
    """(N, 2) points through an oriented projective map; NaN beyond its horizon."""
    homogeneous = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ matrix.T
    ahead = homogeneous[:, 2:] > 1e-12 * np.abs(matrix[2]).max()
    return np.asarray(np.where(ahead, homogeneous[:, :2] / np.where(ahead, homogeneous[:, 2:], 1.0), np.nan))

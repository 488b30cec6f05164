"""Reading images: modes, EXIF, masks, resizing, and the map back to stored pixels."""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import threading
import warnings
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import EXAMPLES
from steerers.geometry import rotate_image, rotation, rotation_of, transform_points
from steerers.images.decode import header_size
from steerers.images.load import ImageError, Resize, load_image, make_picture, to_grey, to_uint8

SIZE = (40, 24)  # (width, height)
DOT = (29, 5)  # (x, y), off centre so that no rotation or flip maps it to itself
ORIENTATION_TAG = 0x0112
ORIENTATIONS = range(1, 9)
# What a viewer does with each orientation, in Pillow's own words.
VIEWER = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def dot_array(size: tuple[int, int] = SIZE, dot: tuple[int, int] = DOT, low: int = 20, high: int = 230) -> np.ndarray:
    array = np.full((size[1], size[0]), low, np.uint8)
    array[dot[1], dot[0]] = high
    return array


def brightest(tensor: Tensor) -> Tensor:
    """(2,) float64 (x, y) of the brightest pixel."""
    index = int(tensor.sum(0).argmax())
    return torch.tensor([index % tensor.shape[2], index // tensor.shape[2]], dtype=torch.float64)


def with_orientation(orientation: int) -> PIL.Image.Exif:
    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    return exif


def png(width: int, height: int, rows: bytes) -> bytes:
    """A black-and-white PNG written by hand, to have huge ones at no cost."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def check_dot(image: Any, dot: tuple[int, int] = DOT, tolerance: float = 0.0) -> None:
    """The brightest pixel of the tensor is the dot of the stored image, to ``tolerance`` pixels of the tensor."""
    expected = transform_points(torch.linalg.inv(image.to_stored), torch.tensor(dot, dtype=torch.float64))
    assert (brightest(image.tensor) - expected).abs().max() <= tolerance + 1e-9


# Modes ----------------------------------------------------------------------------------------------------------------


MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa", "RGBX"]


def in_mode(mode: str) -> PIL.Image.Image:
    grey = PIL.Image.fromarray(dot_array(low=0, high=255))
    if mode in ("La", "RGBa"):
        return grey.convert({"La": "LA", "RGBa": "RGBA"}[mode]).convert(mode)
    if mode == "PA":
        return grey.convert("P").convert("PA")
    return grey.convert("RGB").convert(mode) if mode in ("HSV", "LAB") else grey.convert(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_keeps_the_dot(mode: str) -> None:
    image = load_image(in_mode(mode))
    assert image.tensor.shape == (3, SIZE[1], SIZE[0])
    assert image.tensor.dtype == torch.float32
    assert image.tensor.is_contiguous()
    assert image.stored_size == SIZE
    assert torch.equal(image.to_stored, torch.eye(3, dtype=torch.float64))
    assert image.mask is None
    assert image.name == ""
    check_dot(image)
    expected = torch.from_numpy(dot_array(low=0, high=255) / np.float32(255)).expand(3, -1, -1)
    torch.testing.assert_close(image.tensor, expected, atol=1.5 / 255, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_shrinks(mode: str) -> None:
    wide = in_mode(mode).resize((400, 240), PIL.Image.Resampling.NEAREST)
    check_dot(load_image(wide, max_size=40), (29 * 10 + 4, 5 * 10 + 4), tolerance=0.6)


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *[(mode, "a.png") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")],
        *[(mode, "a.tif") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I;16B", "I", "F")],
        *[(mode, "a.jpg") for mode in ("L", "RGB", "CMYK")],
        *[(mode, "a.webp") for mode in ("RGB", "RGBA")],
        ("RGB", "a.bmp"),
        ("P", "a.gif"),
        ("RGB", "a.ppm"),
        ("L", "a.pgm"),
        ("RGB", "a.jp2"),
    ],
)
def test_files(tmp_path: Path, mode: str, name: str) -> None:
    block = np.zeros((32, 48), np.uint8)
    block[8:16, 24:32] = 255
    grey = PIL.Image.fromarray(block)
    if mode.startswith("I;16"):
        order = ">" if mode.endswith("B") else "<"
        raw = (block.astype(np.uint16) * 7).astype(f"{order}u2").tobytes()
        picture = PIL.Image.frombytes(mode, grey.size, raw)
    else:
        picture = grey.convert(mode)
    options: dict[str, Any] = {"quality": 95} if name.endswith("jpg") else {}
    picture.save(tmp_path / name, **options)
    image = load_image(tmp_path / name)
    assert image.name == str(tmp_path / name)
    torch.testing.assert_close(
        image.tensor, torch.from_numpy(block / np.float32(255)).expand(3, -1, -1), atol=0.08, rtol=0
    )
    assert load_image(str(tmp_path / name), max_size=24).tensor.shape == (3, 16, 24)


def test_colours_are_rgb() -> None:
    array = np.zeros((2, 3, 3), np.uint8)
    array[:, 0], array[:, 1], array[:, 2] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    expected = torch.eye(3)[:, None].expand(3, 2, 3)
    for source in (array, PIL.Image.fromarray(array), PIL.Image.fromarray(array).convert("CMYK")):
        torch.testing.assert_close(load_image(source).tensor, expected)


def test_palette_uses_its_colours() -> None:
    picture = PIL.Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    expected = torch.tensor([[10, 200], [20, 100], [30, 50]])[:, None] / 255
    torch.testing.assert_close(load_image(picture).tensor, expected)


def test_first_frame(tmp_path: Path) -> None:
    frames = [PIL.Image.fromarray(dot_array(dot=dot)) for dot in (DOT, (3, 3))]
    for name in ("a.gif", "a.tif"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        check_dot(load_image(tmp_path / name))


def test_one_pixel() -> None:
    for max_size in (None, 1, 5):
        image = load_image(np.full((1, 1), 255, np.uint8), max_size=max_size)
        assert image.tensor.tolist() == [[[1.0]]] * 3
        assert torch.equal(image.to_stored, torch.eye(3, dtype=torch.float64))


# More than 8 bits -----------------------------------------------------------------------------------------------------


def ramp(dtype: Any, low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 30).reshape(5, 6).astype(dtype)


def check_stretched(tensor: Tensor, values: np.ndarray) -> None:
    values = values.astype(np.float64)
    expected = (values - values.min()) / (values.max() - values.min())
    torch.testing.assert_close(tensor.double(), torch.from_numpy(expected).expand(3, -1, -1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_deep_modes_are_stretched(mode: str) -> None:
    values = ramp(np.float32 if mode == "F" else np.int32, 300, 3000)
    if mode.startswith("I;16"):
        raw = values.astype(">u2" if mode.endswith("B") else "<u2").tobytes()
        picture = PIL.Image.frombytes(mode, (6, 5), raw)
    else:
        picture = PIL.Image.fromarray(values)
    assert picture.mode == mode
    check_stretched(load_image(picture).tensor, values)


@pytest.mark.parametrize("low", [0, -(2**31), 2**31 - 1000])
def test_mode_i_keeps_small_steps_of_large_values(low: int) -> None:
    values = low + np.arange(30, dtype=np.int64).reshape(5, 6)
    check_stretched(load_image(PIL.Image.fromarray(values.astype(np.int32))).tensor, values)


def test_uint16_arrays_share_one_range() -> None:
    values = np.stack([ramp(np.uint16, 100, 200), ramp(np.uint16, 100, 300), ramp(np.uint16, 200, 500)], axis=2)
    expected = torch.from_numpy((values.astype(np.float32) - 100) / 400).permute(2, 0, 1)
    torch.testing.assert_close(load_image(values).tensor, expected)
    torch.testing.assert_close(load_image(values.astype(">u2")).tensor, expected)
    check_stretched(load_image(values[..., 0]).tensor, values[..., 0])
    check_stretched(load_image(values[..., :1]).tensor, values[..., 0])


def test_uint16_alpha() -> None:
    values = np.full((1, 3, 4), 1000, np.uint16)
    values[0, :, 0] = (0, 1000, 2000)
    values[0, 0] = 0  # transparent, and so outside the range that is stretched
    values[0, 1:, 3] = 65535
    image = load_image(values)
    torch.testing.assert_close(image.tensor[0], torch.tensor([[0.5, 0.0, 1.0]]))
    assert image.mask is not None
    assert image.mask.tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    "source", [np.full((4, 5), 777, np.uint16), PIL.Image.new("F", (5, 4), 1e30), PIL.Image.new("I", (5, 4), -3)]
)
def test_constant_is_mid_grey(source: Any) -> None:
    image = load_image(source)
    assert torch.equal(image.tensor, torch.full((3, 4, 5), 0.5))
    assert image.mask is None


def test_not_finite_is_masked() -> None:
    values = ramp(np.float32, -2, 5)
    bad = np.zeros((5, 6), bool)
    bad[0, 1] = bad[2, 3] = bad[4, 0] = True
    values[0, 1], values[2, 3], values[4, 0] = np.nan, np.inf, -np.inf
    image = load_image(PIL.Image.fromarray(values))
    assert image.mask is not None
    assert np.array_equal(image.mask.numpy(), ~bad)
    assert (image.tensor[:, torch.from_numpy(bad)] == 0.5).all()
    good = image.tensor[0].numpy()[~bad]
    np.testing.assert_allclose(good, (values[~bad] + 2) / 7, atol=1e-6)
    assert torch.isfinite(load_image(PIL.Image.fromarray(values), max_size=3).tensor).all()


def test_nothing_finite() -> None:
    image = load_image(PIL.Image.new("F", (3, 2), math.nan))
    assert torch.equal(image.tensor, torch.full((3, 2, 3), 0.5))
    assert image.mask is not None
    assert not image.mask.any()


def test_extreme_floats_stay_finite() -> None:
    values = np.array([[-3e38, 0, 3e38]], np.float32)
    check_stretched(load_image(PIL.Image.fromarray(values)).tensor, values)


def test_transparent_value_of_a_16_bit_png_is_no_data(tmp_path: Path) -> None:
    values = np.array([[0, 1000, 2000, 3000]], np.uint16)
    PIL.Image.frombytes("I;16", (4, 1), values.tobytes()).save(tmp_path / "a.png", transparency=0)
    image = load_image(tmp_path / "a.png")
    assert image.mask is not None
    assert image.mask.tolist() == [[False, True, True, True]]
    torch.testing.assert_close(image.tensor[0], torch.tensor([[0.5, 0.0, 0.5, 1.0]]))


def test_shrunk_float_stays_in_range() -> None:
    checks = (np.indices((64, 64)).sum(0) // 7 % 2).astype(np.float32)
    tensor = load_image(checks, max_size=23).tensor
    assert tensor.min() >= 0
    assert tensor.max() <= 1


# Alpha ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["RGBA", "LA", "array", "float", "P", "RGB key", "L key"])
def test_alpha(tmp_path: Path, kind: str) -> None:
    """A white image whose left column is transparent."""
    alpha = np.full((4, 6), 255, np.uint8)
    alpha[:, 0] = 0
    rgba = np.dstack([np.full((4, 6, 3), 255, np.uint8), alpha])
    key = np.where(alpha == 0, 7, 255).astype(np.uint8)
    path = tmp_path / "a.png"
    source: Any = path
    if kind == "RGB key":
        PIL.Image.fromarray(np.dstack([key] * 3)).save(path, transparency=(7, 7, 7))
    elif kind == "L key":
        PIL.Image.fromarray(key).save(path, transparency=7)
    elif kind == "P":
        palette = PIL.Image.fromarray((alpha == 0).astype(np.uint8)).convert("P")
        palette.putpalette([255, 255, 255, 9, 9, 9])
        palette.save(path, transparency=bytes([255, 0]))
    else:
        source = {
            "RGBA": PIL.Image.fromarray(rgba),
            "LA": PIL.Image.fromarray(rgba).convert("LA"),
            "array": rgba,
            "float": rgba / 255.0,
        }[kind]
    image = load_image(source)
    assert image.mask is not None
    assert np.array_equal(image.mask.numpy(), alpha != 0)
    torch.testing.assert_close(image.tensor[:, :, 0], torch.full((3, 4), 0.5), atol=0.5 / 255 + 1e-6, rtol=0)
    torch.testing.assert_close(image.tensor[:, :, 1:], torch.ones(3, 4, 5))


def test_half_transparent_is_allowed_and_blended() -> None:
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[..., 0], rgba[..., 3] = 255, 102  # red at 40 %
    for source in (rgba, rgba / 255.0):
        image = load_image(source)
        assert image.mask is None
        expected = torch.tensor([0.4 + 0.6 * 0.5, 0.3, 0.3])[:, None, None].expand(3, 2, 2)
        torch.testing.assert_close(image.tensor, expected, atol=1.5 / 255, rtol=0)


def test_hidden_colour_does_not_bleed_when_shrunk() -> None:
    rgba = np.zeros((64, 64, 4), np.uint8)
    rgba[:, :32] = (255, 0, 0, 0)  # invisible red
    rgba[:, 32:] = (128, 128, 128, 255)
    tensor = load_image(rgba, max_size=16).tensor
    torch.testing.assert_close(tensor, torch.full((3, 16, 16), 128 / 255), atol=1e-6, rtol=0)


# Arrays and tensors ---------------------------------------------------------------------------------------------------


def test_sources_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (12, 17, 3), dtype=np.uint8)
    PIL.Image.fromarray(rgb).save(tmp_path / "a.png")
    chw = torch.from_numpy(rgb).permute(2, 0, 1)
    sources = [
        tmp_path / "a.png",
        os.fspath(tmp_path / "a.png"),
        PIL.Image.open(tmp_path / "a.png"),
        rgb,
        rgb.astype(np.float64) / 255,
        np.asfortranarray(rgb),
        rgb[::-1, ::-1][::-1, ::-1],
        chw,
        chw.contiguous(),
        chw / 255,
        (chw.double() / 255).requires_grad_(),
    ]
    expected = chw / 255
    for source in sources:
        for max_size in (None, 17, 100):
            tensor = load_image(source, max_size=max_size).tensor
            torch.testing.assert_close(tensor, expected)
            assert not tensor.requires_grad
    assert load_image(sources[2]).name == str(tmp_path / "a.png")
    shrunk = [load_image(source, max_size=9).tensor for source in sources]
    for tensor in shrunk[1:]:
        torch.testing.assert_close(tensor, shrunk[0], atol=2 / 255, rtol=0)


def test_grey_tensor_and_half_precision() -> None:
    grey = torch.rand(1, 4, 5)
    torch.testing.assert_close(load_image(grey).tensor, grey.expand(3, 4, 5))
    half = grey.to(torch.bfloat16)
    torch.testing.assert_close(load_image(half).tensor, half.float().expand(3, 4, 5))


def test_the_source_is_left_alone() -> None:
    tensor, array, picture = torch.rand(3, 4, 5), np.random.default_rng(0).random((4, 5, 3)), in_mode("P")
    before = tensor.clone(), array.copy(), picture.copy()
    for source in (tensor, array, picture):
        load_image(source, max_size=3, exif="apply").tensor.zero_()
        load_image(source).tensor.zero_()
    assert torch.equal(tensor, before[0])
    assert np.array_equal(array, before[1])
    assert picture.mode == "P"
    assert picture.tobytes() == before[2].tobytes()


@pytest.mark.parametrize("ending", ["jpg", "tif", "png"])
def test_the_content_of_a_file_is_what_the_file_is(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    PIL.Image.fromarray(dot_array()).convert("RGB").save(path, exif=with_orientation(6))
    expected = load_image(path, max_size=30, exif="apply")
    with path.open("rb") as file:
        sources = [path.read_bytes(), file, io.BytesIO(path.read_bytes()), Pipe(path.read_bytes())]
        for source in sources:
            found = load_image(source, max_size=30, exif="apply")  # type: ignore[arg-type]
            assert torch.equal(found.tensor, expected.tensor)
            assert torch.equal(found.to_stored, expected.to_stored)
            assert found.name == (str(path) if source is file else "")
        with pytest.raises(ImageError, match=rf"cannot read image {path}: the file is empty, or was read before"):
            load_image(file)


class Pipe:
    """What can be read once, in pieces of its own, and no more is known of it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int) -> bytes:
        piece, self._content = self._content[: min(size, 100)], self._content[min(size, 100) :]
        return piece


def test_a_pipe_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        name = "zeros"

        def read(self, size: int) -> bytes:
            return bytes(100)

    monkeypatch.setattr("steerers.images.decode.MAX_STREAM", 10_000)
    with pytest.raises(ImageError, match=r"cannot read image zeros: it goes on beyond 10,000 bytes; give the path"):
        load_image(Endless())  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_that_has_a_path(tmp_path: Path) -> None:
    """As in ``steerers match <(curl ...) b.jpg``."""
    os.mkfifo(tmp_path / "pipe")
    content = io.BytesIO()
    PIL.Image.fromarray(dot_array()).save(content, "png")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content.getvalue()])
    writer.start()
    found = load_image(tmp_path / "pipe")
    writer.join()
    assert torch.equal(found.tensor, load_image(dot_array()).tensor)


def test_a_mask_may_be_the_content_of_a_file() -> None:
    mask = io.BytesIO()
    PIL.Image.fromarray(dot_array() > 100).save(mask, "png")
    for source in (mask.getvalue(), io.BytesIO(mask.getvalue()), Pipe(mask.getvalue())):
        found = load_image(dot_array(), mask=source).mask  # type: ignore[arg-type]
        assert found is not None
        assert torch.equal(found, torch.from_numpy(dot_array() > 100))


def heif(brand: str) -> bytes:
    """What begins as such a file does; the picture in it is PNG."""
    picture = io.BytesIO()
    PIL.Image.fromarray(dot_array()).save(picture, "png")
    return struct.pack(">I", 24) + b"ftyp" + brand.encode() + picture.getvalue()


@pytest.mark.parametrize(
    ("brand", "message"),
    [
        ("heic", r'it is HEIC, which needs pillow-heif: pip install "steerers\[heif\]"'),
        ("mif1", r'it is HEIC, which needs pillow-heif: pip install "steerers\[heif\]"'),
        ("avif", "it is AVIF, which Pillow reads from 11.3 on: pip install --upgrade pillow"),
        ("mp42", "it is not an image, or damaged, or in a format Pillow does not read"),
    ],
)
def test_what_to_install_for_the_photographs_of_telephones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brand: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(PIL.Image, "ID", [name for name in PIL.Image.ID if name != "AVIF"])  # as in an older Pillow
    path = tmp_path / "a.heic"
    path.write_bytes(heif(brand))
    with pytest.raises(ImageError, match=f"cannot read image {path}: {message}"):
        load_image(path)


def test_photographs_of_telephones_are_read_by_pillow_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is asked when one is met, and only then; another stands for it here."""
    registered = []

    class Stand(ModuleType):
        @staticmethod
        def register_heif_opener() -> None:
            registered.append(True)
            PIL.Image.register_open("HEIF", opened, lambda prefix: prefix[4:12] == b"ftypheic")

    def opened(file: BinaryIO, _: str | bytes) -> PIL.Image.Image:
        file.seek(12)
        return PIL.Image.open(io.BytesIO(file.read()))

    monkeypatch.setitem(sys.modules, "pillow_heif", Stand("pillow_heif"))
    monkeypatch.setattr(PIL.Image, "ID", PIL.Image.ID[:])
    monkeypatch.setattr(PIL.Image, "OPEN", dict(PIL.Image.OPEN))
    load_image(EXAMPLES / "coffee.jpg", max_size=20)
    assert not registered
    assert torch.equal(load_image(heif("heic")).tensor, load_image(dot_array()).tensor)
    assert registered == [True]


def test_rounding_just_outside_the_range_is_clamped() -> None:
    tensor = load_image(torch.tensor([[[-1e-6, 1 + 1e-6]]])).tensor
    assert tensor.tolist() == [[[0.0, 1.0]]] * 3


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (np.zeros((2, 3, 5), np.uint8), ValueError, r"shape \(H, W\).*got \(2, 3, 5\)"),
        (np.zeros((2, 3, 2), np.uint8), ValueError, r"got \(2, 3, 2\)"),
        (np.zeros((3, 20, 20), np.uint8), ValueError, "torch tensor"),
        (np.zeros(4, np.uint8), ValueError, r"got \(4,"),
        (np.zeros((1, 2, 3, 3), np.uint8), ValueError, "shape"),
        (np.zeros((2, 3), np.int64), TypeError, "uint8, uint16, or float.*got int64"),
        (np.zeros((2, 3), bool), TypeError, "got bool"),
        (np.full((2, 3), 255.0), ValueError, r"\[0, 1\], got values from 255 to 255"),
        (np.full((2, 3), -0.5, np.float32), ValueError, "from -0.5"),
        (np.full((2, 3), np.nan), ValueError, "nan"),
        (torch.zeros(2, 3), ValueError, r"\(3, H, W\).*got \(2, 3\)"),
        (torch.zeros(4, 5, 3), ValueError, r"got \(4, 5, 3\)"),
        (torch.zeros(2, 3, 5, 5), ValueError, r"shape \(3, H, W\).*got \(2, 3, 5, 5\); of several images .* extract"),
        (torch.zeros(3, 5, 5, dtype=torch.int32), TypeError, "uint8, or float.*int32"),
        (torch.full((3, 5, 5), 2.0), ValueError, "from 2 to 2"),
        (np.zeros((0, 3), np.uint8), ImageError, "no pixels: its size is 3 x 0"),
        (np.zeros((4, 0, 3)), ImageError, "no pixels"),
        (torch.zeros(3, 0, 4), ImageError, "no pixels"),
        (PIL.Image.new("RGB", (0, 3)), ImageError, "no pixels"),
        (None, TypeError, "a path, bytes, a file opened in binary mode, a Pillow image, .* tensor, got NoneType"),
        ([[1, 2]], TypeError, "got list"),
        (["a.png"], TypeError, "got list"),
        (b"a.png", ImageError, r"cannot read image \(bytes\): it is not an image"),
        (b"", ImageError, r"cannot read image \(bytes\): the file is empty$"),
        (io.BytesIO(), ImageError, r"cannot read image \(a file\): the file is empty, or was read before"),
        (io.StringIO("a.png"), TypeError, "must be opened in binary mode, got one that reads <class 'str'>"),
    ],
)
def test_bad_sources(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_image(source)


def test_bad_options() -> None:
    array = dot_array()
    with pytest.raises(ValueError, match="max_size must be at least 1 pixel, got 0"):
        load_image(array, max_size=0)
    with pytest.raises(TypeError, match=r"max_size must be a whole number of pixels or None, got 1\.5"):
        load_image(array, max_size=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exif must be 'ignore' or 'apply', got 'yes'"):
        load_image(array, exif="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="resize must be 'fit' or 'squash', got 'crop'"):
        load_image(array, resize="crop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="resize 'squash' needs a max_size, to which both sides are brought"):
        load_image(array, resize="squash")
    with pytest.raises(ValueError, match="max_size must be at least 1 pixel, got 0"):
        load_image(array, max_size=0, resize="squash")
    with pytest.raises(ValueError, match="max_size must be at most 31622 to squash images to it, got 31623"):
        load_image(array, max_size=31623, resize="squash")


# Broken files ---------------------------------------------------------------------------------------------------------


def check_broken(path: Path, reason: str) -> None:
    with pytest.raises(ImageError, match=reason) as caught:
        load_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^no such image: .*missing\.png$"):
        load_image(tmp_path / "missing.png")
    check_broken(tmp_path, "it is a directory")


def test_empty_and_other_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    check_broken(tmp_path / "empty.png", "the file is empty")
    for name, content in (("text.jpg", b"not an image\n" * 50), ("zeros.png", bytes(1000))):
        (tmp_path / name).write_bytes(content)
        check_broken(tmp_path / name, "it is not an image")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "lzw.tif", "a.gif", "a.webp", "a.bmp", "a.jp2", "a.ppm"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.9])
def test_truncated_files(tmp_path: Path, name: str, part: float) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / name
    options: dict[str, Any] = {"compression": "tiff_lzw"} if name == "lzw.tif" else {}
    PIL.Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(path, **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Pillow's, on truncated TIFF directories
        check_broken(path, "cannot read image")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.touch(mode=0)
    with pytest.raises(PermissionError, match=r"a\.png"):
        load_image(path)


def test_broken_picture_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with PIL.Image.open(path) as picture, pytest.raises(ImageError, match=r"a\.png"):
        load_image(picture)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_broken_exif_is_none(tmp_path: Path, name: str) -> None:
    PIL.Image.fromarray(dot_array()).convert("RGB").save(tmp_path / name, exif=b"Exif\0\0garbage garbage")
    for exif in ("ignore", "apply"):
        image = load_image(tmp_path / name, exif=exif)
        assert torch.equal(image.to_stored, torch.eye(3, dtype=torch.float64))


# EXIF -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("name", ["a.png", "a.tif", "lzw.tif", "a.jpg"])
def test_exif(tmp_path: Path, name: str, orientation: int) -> None:
    """Upright as a viewer shows it, or as stored; the dot is found at the same stored pixel either way."""
    path = tmp_path / name
    array = dot_array(low=0, high=255)
    options: dict[str, Any] = {"compression": "tiff_lzw"} if name == "lzw.tif" else {}
    PIL.Image.fromarray(array).save(path, exif=with_orientation(orientation), **options)
    stored = load_image(path)
    assert stored.stored_size == SIZE
    assert torch.equal(stored.orientation, torch.eye(2, dtype=torch.float64))
    check_dot(stored)

    upright = load_image(path, exif="apply")
    assert upright.stored_size == SIZE
    viewed = PIL.Image.fromarray(to_grey(stored.tensor))
    if not name.endswith("jpg"):
        assert np.array_equal(np.asarray(viewed), array)
    viewed = viewed.transpose(VIEWER[orientation]) if orientation in VIEWER else viewed
    assert np.array_equal(to_grey(upright.tensor), np.asarray(viewed))
    assert upright.tensor.is_contiguous()
    check_dot(upright)
    found = transform_points(upright.to_stored, brightest(upright.tensor))
    assert found.tolist() == list(DOT)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_of_a_picture(orientation: int) -> None:
    picture = PIL.Image.fromarray(dot_array())
    picture.getexif()[ORIENTATION_TAG] = orientation
    check_dot(load_image(picture, exif="apply"))
    assert torch.equal(load_image(picture).to_stored, torch.eye(3, dtype=torch.float64))


def test_a_tiff_opened_by_the_caller_is_taken_as_pillow_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    PIL.Image.fromarray(dot_array()).save(path, exif=with_orientation(6), compression="tiff_lzw")
    with PIL.Image.open(path) as picture:
        image = load_image(picture, exif="apply")
        assert image.stored_size == picture.size == (24, 40)
        assert np.array_equal(to_grey(image.tensor), np.asarray(picture))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_orientation(orientation: int) -> None:
    picture = PIL.Image.fromarray(dot_array())
    picture.getexif()[ORIENTATION_TAG] = orientation
    for max_size in (None, 17):
        matrix = load_image(picture, exif="apply", max_size=max_size).orientation
        assert matrix.dtype == torch.float64
        assert torch.equal(matrix @ matrix.T, torch.eye(2, dtype=torch.float64))
        quarters = {1: 0, 3: 2, 6: 3, 8: 1}.get(orientation)
        if quarters is None:
            assert rotation_of(matrix) is None
        else:
            assert torch.equal(matrix, rotation(quarters * math.pi / 2))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_orientation_out_of_range_is_none(tmp_path: Path, orientation: int) -> None:
    PIL.Image.fromarray(dot_array()).save(tmp_path / "a.png", exif=with_orientation(orientation))
    assert torch.equal(load_image(tmp_path / "a.png", exif="apply").to_stored, torch.eye(3, dtype=torch.float64))


# Resizing and the way back --------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    max_size=st.none() | st.integers(1, 320),
    orientation=st.sampled_from(ORIENTATIONS),
)
def test_edges_map_to_edges(width: int, height: int, max_size: int | None, orientation: int) -> None:
    picture = PIL.Image.new("L", (width, height))
    picture.getexif()[ORIENTATION_TAG] = orientation
    image = load_image(picture, max_size=max_size, exif="apply")
    new_height, new_width = image.tensor.shape[1:]
    longest = max(width, height) if max_size is None else min(max_size, max(width, height))
    assert max(new_width, new_height) == longest
    if max(width, height) == longest:
        assert image.to_stored.abs()[:2, :2].sum() == 2

    def corners(w: int, h: int) -> Tensor:
        return torch.tensor([[x, y] for x in (-0.5, w - 0.5) for y in (-0.5, h - 0.5)], dtype=torch.float64)

    mapped = transform_points(image.to_stored, corners(new_width, new_height))
    distance = torch.cdist(mapped, corners(width, height))
    assert (distance < 1e-9 * max(width, height)).sum(0).tolist() == [1] * 4
    assert (distance < 1e-9 * max(width, height)).sum(1).tolist() == [1] * 4
    # Where a corner goes is what the orientation says: (stored offset) -> (offset in the tensor).
    stored_corner = transform_points(torch.linalg.inv(image.to_stored), torch.full((2,), -0.5, dtype=torch.float64))
    rows = zip(image.orientation, (new_width, new_height), strict=True)
    expected = [-0.5 if row.sum() > 0 else n - 0.5 for row, n in rows]
    torch.testing.assert_close(stored_corner, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_aspect_is_kept() -> None:
    for size in ((4000, 3000), (3000, 4001), (1920, 1080), (777, 776)):
        tensor = load_image(PIL.Image.new("L", size), max_size=512).tensor
        height, width = tensor.shape[1:]
        assert abs(width - size[0] * 512 / max(size)) <= 0.5
        assert abs(height - size[1] * 512 / max(size)) <= 0.5


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize(("name", "max_size"), [("a.png", 97), ("a.tif", 300), ("a.jpg", 300), ("a.jpg", 40)])
def test_a_blob_is_found_again_after_shrinking(tmp_path: Path, name: str, orientation: int, max_size: int) -> None:
    """The centroid of a blob, mapped back, to a tenth of a pixel of the shrunk image; JPEG is decoded shrunk here."""
    size, centre = (641, 437), torch.tensor([400.3, 120.8], dtype=torch.float64)
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    blob = np.exp(-((x - float(centre[0])) ** 2 + (y - float(centre[1])) ** 2) / (2 * 20.0**2))
    path = tmp_path / name
    PIL.Image.fromarray((255 * blob).round().astype(np.uint8)).save(path, exif=with_orientation(orientation))
    image = load_image(path, max_size=max_size, exif="apply")
    check_dot(image, (400, 121), tolerance=0.6)
    weight = (image.tensor[0].double() - 0.1).clamp_min(0)
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in weight.shape), indexing="ij")
    found = torch.stack([(weight * columns).sum(), (weight * rows).sum()]) / weight.sum()
    error = (transform_points(image.to_stored, found) - centre).norm() * max_size / size[0]
    assert error < 0.1


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    for source in (stripes, stripes / 255.0):
        tensor = load_image(source, max_size=60).tensor[:, 4:-4, 4:-4]
        torch.testing.assert_close(tensor, torch.full_like(tensor, 0.5), atol=0.02, rtol=0)


def test_half_turn_finds_the_points_again() -> None:
    """Rotating by 180 degrees, and shrinking, are consistent: each point goes to its opposite, to 1e-4 px."""
    generator = torch.Generator().manual_seed(0)
    source = torch.rand(3, 75, 101, generator=generator)
    rotated, transform = rotate_image(source, math.pi)
    for max_size in (None, 64, 33):
        image, image_rotated = load_image(source, max_size=max_size), load_image(rotated, max_size=max_size)
        torch.testing.assert_close(image_rotated.tensor, image.tensor.flip(1, 2), atol=1e-5, rtol=0)
        height, width = image.tensor.shape[1:]
        points = torch.rand(50, 2, generator=generator) * torch.tensor([width - 1, height - 1])
        opposite = torch.tensor([width - 1, height - 1]) - points
        stored = transform_points(image.to_stored, points)
        stored_rotated = transform_points(image_rotated.to_stored, opposite)
        assert (transform_points(transform, stored) - stored_rotated).abs().max() < 1e-4


# Squashing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(300, 200), (131, 257), (40, 24), (64, 64), (1, 90)])
@pytest.mark.parametrize("name", ["a.png", "grey.png", "a.jpg"])
def test_squashed_as_the_authors_do(tmp_path: Path, size: tuple[int, int], name: str) -> None:
    """To the bit what ``Image.open(path).resize((W, H))`` gives, be it larger or smaller."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, (size[1], size[0]) if name == "grey.png" else (size[1], size[0], 3), dtype=np.uint8)
    PIL.Image.fromarray(levels).save(tmp_path / name)
    for side in (64, 97):
        with PIL.Image.open(tmp_path / name) as opened:
            expected = np.asarray(opened.resize((side, side))) / np.float32(255)
        image = load_image(tmp_path / name, max_size=side, resize="squash")
        assert image.tensor.shape == (3, side, side)
        found = image.tensor.permute(1, 2, 0).numpy()
        assert np.array_equal(found, expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, axis=2))
        assert image.stored_size == size


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    side=st.integers(1, 120),
    orientation=st.sampled_from(ORIENTATIONS),
    data=st.data(),
)
def test_squashed_pixels_are_found_there_and_back(
    width: int, height: int, side: int, orientation: int, data: st.DataObject
) -> None:
    """The centre of a stored pixel, as written out for each axis: half-pixel centres, then the viewer's rotation."""
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    picture = PIL.Image.new("L", (width, height))
    picture.getexif()[ORIENTATION_TAG] = orientation
    image = load_image(picture, max_size=side, resize="squash", exif="apply")
    assert image.tensor.shape == (3, side, side)
    u, v = (x + 0.5) * side / width - 0.5, (y + 0.5) * side / height - 0.5
    flipped_u, flipped_v = side - 1 - u, side - 1 - v
    seen = {
        1: (u, v), 2: (flipped_u, v), 3: (flipped_u, flipped_v), 4: (u, flipped_v),
        5: (v, u), 6: (flipped_v, u), 7: (flipped_v, flipped_u), 8: (v, flipped_u),
    }[orientation]  # fmt: skip
    there = transform_points(torch.linalg.inv(image.to_stored), torch.tensor([x, y], dtype=torch.float64))
    np.testing.assert_allclose(there, seen, atol=1e-9 * max(width, height, side))
    back = transform_points(image.to_stored, torch.tensor(seen, dtype=torch.float64))
    np.testing.assert_allclose(back, (x, y), atol=1e-9 * max(width, height, side))
    matrix = image.orientation
    assert sorted(matrix.abs().flatten().tolist()) == [0, 0, 1, 1]
    assert torch.equal(matrix @ matrix.T, torch.eye(2, dtype=torch.float64))
    assert image.upright_size == ((width, height) if orientation <= 4 else (height, width))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("side", [80, 333])
def test_a_blob_is_found_again_after_squashing(tmp_path: Path, orientation: int, side: int) -> None:
    """The centroid of a blob, mapped back to the stored image, which is shrunk along x and enlarged along y."""
    size, centre = (341, 97), torch.tensor([200.3, 41.8], dtype=torch.float64)
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    blob = np.exp(-((x - float(centre[0])) ** 2 + (y - float(centre[1])) ** 2) / (2 * 9.0**2))
    path = tmp_path / "a.png"
    PIL.Image.fromarray((255 * blob).round().astype(np.uint8)).save(path, exif=with_orientation(orientation))
    image = load_image(path, max_size=side, resize="squash", exif="apply")
    weight = (image.tensor[0].double() - 0.1).clamp_min(0)
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in weight.shape), indexing="ij")
    found = torch.stack([(weight * columns).sum(), (weight * rows).sum()]) / weight.sum()
    assert (transform_points(image.to_stored, found) - centre).abs().max() < 0.05


def test_squashed_floats_stay_in_range() -> None:
    checks = (np.indices((64, 48)).sum(0) // 7 % 2).astype(np.float32)
    for side in (23, 101):
        tensor = load_image(checks, max_size=side, resize="squash").tensor
        assert tensor.shape == (3, side, side)
        assert tensor.min() >= 0
        assert tensor.max() <= 1


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_masks_are_squashed_and_rotated_with_the_image(orientation: int) -> None:
    picture = PIL.Image.fromarray(dot_array())
    picture.getexif()[ORIENTATION_TAG] = orientation
    image = load_image(picture, exif="apply", mask=mask_array(), max_size=100, resize="squash")
    assert image.mask is not None
    assert image.mask.shape == (100, 100)
    x, y = brightest(image.tensor).long().tolist()
    assert not image.mask[y, x]
    assert 0 < int((~image.mask).sum()) <= 4 * 6  # 2.5 x 4.2 of its pixels make one of the mask's


# Masks ----------------------------------------------------------------------------------------------------------------


def mask_array() -> np.ndarray:
    mask = np.ones((SIZE[1], SIZE[0]), bool)
    mask[DOT[1], DOT[0]] = False
    return mask


def test_mask_sources_agree(tmp_path: Path) -> None:
    mask = mask_array()
    grey = PIL.Image.fromarray(mask.astype(np.uint8) * 3)
    grey.save(tmp_path / "mask.png")
    palette = PIL.Image.fromarray(mask.astype(np.uint8)).convert("P")
    palette.putpalette([0, 0, 0, 0, 9, 0])
    sources = [
        mask,
        mask.astype(np.uint8),
        mask[..., None],
        mask * 0.25,
        np.dstack([mask, np.zeros_like(mask), mask]),
        np.dstack([np.ones((*mask.shape, 3), np.uint8), mask]),
        torch.from_numpy(mask),
        torch.from_numpy(mask).to(torch.uint8),
        torch.from_numpy(mask)[None],
        torch.from_numpy(mask).to(torch.bfloat16),
        tmp_path / "mask.png",
        str(tmp_path / "mask.png"),
        grey,
        PIL.Image.fromarray(mask),
        PIL.Image.fromarray(mask.astype(np.int32)),
        PIL.Image.fromarray(np.where(mask, np.float32(1), np.float32(np.nan))),
        palette,
        PIL.Image.merge("LA", [PIL.Image.new("L", SIZE, 9), PIL.Image.fromarray(mask.astype(np.uint8))]),
    ]
    for source in sources:
        result = load_image(dot_array(), mask=source).mask
        assert result is not None
        assert result.dtype == torch.bool
        assert np.array_equal(result.numpy(), mask)


def test_mask_joins_alpha() -> None:
    rgba = np.full((2, 3, 4), 255, np.uint8)
    rgba[0, 0, 3] = 0
    mask = np.ones((2, 3), bool)
    mask[1, 2] = False
    result = load_image(rgba, mask=mask).mask
    assert result is not None
    assert result.tolist() == [[False, True, True], [True, True, False]]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("max_size", [None, 13])
def test_mask_rotations_with_the_image(tmp_path: Path, orientation: int, max_size: int | None) -> None:
    """The mask is in the stored frame, whatever its own tag says: it hides the dot wherever the dot goes."""
    for name, exif in (("image.png", orientation), ("mask.tif", 6)):
        array = dot_array() if name == "image.png" else mask_array().astype(np.uint8)
        PIL.Image.fromarray(array).save(tmp_path / name, exif=with_orientation(exif))
    image = load_image(tmp_path / "image.png", exif="apply", mask=tmp_path / "mask.tif", max_size=max_size)
    assert image.mask is not None
    assert image.mask.shape == image.tensor.shape[1:]
    assert image.mask.is_contiguous()
    x, y = brightest(image.tensor).long().tolist()
    assert not image.mask[y, x]
    if max_size is None:
        assert int((~image.mask).sum()) == 1


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 60),
    height=st.integers(1, 60),
    max_size=st.integers(1, 60),
    resize=st.sampled_from(["fit", "squash"]),
    seed=st.integers(0, 10**6),
)
def test_disallowed_stays_disallowed(width: int, height: int, max_size: int, resize: Resize, seed: int) -> None:
    """A pixel is allowed if and only if all that it overlaps is, be it larger than those of the mask or smaller."""
    mask = np.random.default_rng(seed).random((height, width)) > 0.02
    image = load_image(np.zeros((height, width), np.uint8), max_size=max_size, resize=resize, mask=mask)
    assert image.mask is not None
    sy, sx = height / image.mask.shape[0], width / image.mask.shape[1]
    for (y, x), allowed in np.ndenumerate(image.mask.numpy()):
        rows = slice(math.floor(y * sy + 1e-9), math.ceil((y + 1) * sy - 1e-9))
        columns = slice(math.floor(x * sx + 1e-9), math.ceil((x + 1) * sx - 1e-9))
        assert allowed == mask[rows, columns].all()


def test_bad_masks(tmp_path: Path) -> None:
    array = dot_array()
    with pytest.raises(ValueError, match="mask is 24 x 40 pixels but the image is stored with 40 x 24"):
        load_image(array, mask=np.ones((40, 24), bool))
    with pytest.raises(ValueError, match="mask is 20 x 12 pixels but the image is stored with 40 x 24"):
        load_image(array, max_size=20, mask=np.ones((12, 20), bool))
    with pytest.raises(ValueError, match="mask must have shape"):
        load_image(array, mask=np.ones((24, 40, 2), bool))
    with pytest.raises(TypeError, match="mask must be bool, integer or float"):
        load_image(array, mask=np.full((24, 40), "a"))
    with pytest.raises(TypeError, match="got int"):
        load_image(array, mask=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such image"):
        load_image(array, mask=tmp_path / "mask.png")
    path = tmp_path / "huge.png"
    path.write_bytes(png(30000, 30000, b""))  # without pixels, so that it cannot be decoded
    with pytest.raises(ValueError, match=r"mask .*huge\.png is 30000 x 30000 pixels but the image is stored"):
        load_image(array, mask=path)


# Large images ---------------------------------------------------------------------------------------------------------


def test_300_megapixels(tmp_path: Path) -> None:
    """20000 x 15000, white but for a black block; Pillow's limit and its warning do not show."""
    width, height = 20000, 15000
    white, block = b"\0" + b"\xff" * (width // 8), b"\0" + b"\xff" * 500 + bytes(500) + b"\xff" * 1500
    path = tmp_path / "large.png"
    path.write_bytes(png(width, height, white * 3000 + block * 4000 + white * 8000))
    limit = PIL.Image.MAX_IMAGE_PIXELS
    image = load_image(path, max_size=1000)
    assert limit == PIL.Image.MAX_IMAGE_PIXELS
    assert image.stored_size == (width, height)
    assert image.tensor.shape == (3, 750, 1000)
    dark = (image.tensor[0] < 0.5).nonzero().flip(1).double()  # (N, 2) x, y
    stored = transform_points(image.to_stored, torch.stack([dark.min(0).values - 0.5, dark.max(0).values + 0.5]))
    assert stored.round().tolist() == [[4000, 3000], [8000, 7000]]


def test_large_tiff_and_jpeg(tmp_path: Path) -> None:
    """Just above Pillow's limit, which is checked again when a TIFF is decoded."""
    size = (10000, 9000)
    for name in ("a.tif", "a.jpg"):
        PIL.Image.new("L", size, 200).save(tmp_path / name)
        image = load_image(tmp_path / name, max_size=100)
        assert image.stored_size == size
        torch.testing.assert_close(image.tensor, torch.full((3, 90, 100), 200 / 255), atol=1e-3, rtol=0)


def test_more_than_a_gigapixel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png(40000, 25001, b""))
    for max_size in (None, 100):
        with pytest.raises(ImageError, match=r"huge\.png is 40000 x 25001 = 1000 megapixels.*tiles or reduce"):
            load_image(path, max_size=max_size)
    path.write_bytes(png(2**31 - 1, 2**31 - 1, b""))
    with pytest.raises(ImageError, match=r"huge\.png is 2147483647 x 2147483647"):
        load_image(path)
    with pytest.raises(ImageError, match="image array is 40000 x 25001"):
        load_image(np.broadcast_to(np.uint8(0), (25001, 40000)))


def test_pillow_limit_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From several threads, with good and broken files; images above the caller's own small limit load."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 100)
    good, tiff, broken = tmp_path / "good.png", tmp_path / "good.tif", tmp_path / "broken.png"
    PIL.Image.fromarray(dot_array()).save(good)
    PIL.Image.fromarray(dot_array()).save(tiff)
    broken.write_bytes(b"nothing")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(25):
                check_dot(load_image(good))
                check_dot(load_image(tiff))
                with pytest.raises(ImageError):
                    load_image(broken)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert PIL.Image.MAX_IMAGE_PIXELS == 100


def test_a_picture_of_the_caller_is_held_against_our_limit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TIFF is held against Pillow's limit once more when it is decoded."""
    PIL.Image.fromarray(dot_array()).save(tmp_path / "a.tif")
    with PIL.Image.open(tmp_path / "a.tif") as picture:
        monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 10)
        check_dot(load_image(picture))


def test_an_icon_that_holds_a_huge_image_is_not_decoded(tmp_path: Path) -> None:
    """Pillow decodes icons as it opens them; this one says that it is of 256 x 256 pixels."""
    held = png(30000, 30000, b"")
    entry = struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(held), 22)
    (tmp_path / "a.ico").write_bytes(entry + held)
    check_broken(tmp_path / "a.ico", "it holds an image that is larger than the file says")
    PIL.Image.fromarray(dot_array()).save(tmp_path / "b.ico", sizes=[SIZE])
    check_dot(load_image(tmp_path / "b.ico"))


def test_a_program_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.eps"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\n")
    check_broken(path, "it is PostScript, a program")


def test_no_memory_for_the_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise MemoryError

    PIL.Image.fromarray(dot_array()).save(tmp_path / "a.png")
    monkeypatch.setattr(PIL.PngImagePlugin.PngImageFile, "load", load)
    check_broken(tmp_path / "a.png", "its pixels need more memory than there is")


# Open files -----------------------------------------------------------------------------------------------------------


def test_open_files_are_read_as_their_paths_are(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    PIL.Image.fromarray(dot_array()).save(path)
    expected = load_image(path)
    held = io.BytesIO(path.read_bytes())
    with path.open("rb") as file:
        for source in (file, held):
            found = load_image(source)
            assert torch.equal(found.tensor, expected.tensor)
            assert not source.closed
            source.seek(0)  # a file is read from where it is
        assert load_image(file).name == str(path)
    assert load_image(held).name == ""
    held.name = "a.tar, member b.png"
    held.truncate(50)
    held.seek(0)
    with pytest.raises(ImageError, match=r"cannot read image a\.tar, member b\.png: "):
        load_image(held)


def test_sizes_are_known_without_decoding(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(png(30000, 20000, b""))
    assert header_size(path) == (30000, 20000)
    path.write_bytes(png(40000, 40000, b""))
    with pytest.raises(ImageError, match="1600 megapixels"):
        header_size(path)
    assert header_size(PIL.Image.new("L", (3, 2))) == (3, 2)


# Back to bytes --------------------------------------------------------------------------------------------------------


def test_to_uint8_is_the_inverse() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (16, 48, 3), dtype=np.uint8)
    tensor = load_image(rgb).tensor
    result = to_uint8(tensor)
    assert np.array_equal(result, rgb)
    assert result.dtype == np.uint8
    assert result.flags.c_contiguous
    assert np.array_equal(to_uint8(tensor.double()), rgb)
    assert to_uint8(torch.tensor([-0.5, 0.501, 2.0]).reshape(3, 1, 1)).ravel().tolist() == [0, 128, 255]


def test_to_grey() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(to_grey(load_image(levels).tensor), levels)
    rgb = np.random.default_rng(0).integers(0, 256, (16, 48, 3), dtype=np.uint8)
    expected = np.asarray(PIL.Image.fromarray(rgb).convert("L")).astype(int)
    assert np.abs(to_grey(load_image(rgb).tensor).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("function", [to_uint8, to_grey])
def test_back_to_bytes_checks_its_input(function: Any) -> None:
    for bad in (torch.zeros(4, 5), torch.zeros(1, 4, 5), torch.zeros(4, 5, 3), torch.zeros(3, 4, 5, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"\(3, H, W\) float"):
            function(bad)


# Noise ----------------------------------------------------------------------------------------------------------------


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

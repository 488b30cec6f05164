"""Focal length, camera and altitude from EXIF data; positions are in tests/benchmarks/test_collections_pairs.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from PIL.ExifTags import GPS, Base
from PIL.TiffImagePlugin import IFDRational

from collection.photographs import save_taken
from steerers.images.exif import Taken, read_taken

SENSOR = {Base.FocalLength: 8.8, Base.FocalPlaneXResolution: 2000.0, Base.FocalPlaneResolutionUnit: 3}
"""8.8 mm on 2000 pixels a centimetre: 1760 pixels."""


def test_nothing_is_said(tmp_path: Path) -> None:
    save_taken(tmp_path / "a.jpg")
    assert read_taken(tmp_path / "a.jpg") == Taken((8, 6))


def test_the_camera_is_maker_model_and_lens(tmp_path: Path) -> None:
    main = {Base.Make: "DJI\0 ", Base.Model: " FC 330\n", Base.Software: "x"}
    save_taken(tmp_path / "a.jpg", main=main, details={Base.LensModel: "20 mm"})
    assert read_taken(tmp_path / "a.jpg").camera == "DJI FC 330 20 mm"


@pytest.mark.parametrize("size", [(3600, 2400), (2400, 3600), (36, 24)])
def test_the_equivalent_for_film_is_of_the_diagonal(size: tuple[int, int], tmp_path: Path) -> None:
    save_taken(tmp_path / "a.jpg", size=size, details={Base.FocalLengthIn35mmFilm: 50, **SENSOR})
    assert read_taken(tmp_path / "a.jpg").focal == pytest.approx(50 / 36 * max(size))


def test_the_focal_length_on_the_sensor(tmp_path: Path) -> None:
    save_taken(tmp_path / "a.jpg", size=(2000, 1500), details=SENSOR)
    assert read_taken(tmp_path / "a.jpg").focal == pytest.approx(1760)
    made = {Base.ExifImageWidth: 4000, Base.ExifImageHeight: 3000}  # and shrunk since
    save_taken(tmp_path / "b.jpg", size=(2000, 1500), details={**SENSOR, **made})
    assert read_taken(tmp_path / "b.jpg").focal == pytest.approx(880)
    inches = {Base.FocalPlaneXResolution: 5080.0, Base.FocalPlaneResolutionUnit: 2}
    save_taken(tmp_path / "c.jpg", size=(2000, 1500), details={**SENSOR, **inches})
    assert read_taken(tmp_path / "c.jpg").focal == pytest.approx(1760)


@pytest.mark.parametrize(
    "tags",
    [
        {Base.FocalLengthIn35mmFilm: 0},
        {Base.FocalLength: 8.8},
        {**SENSOR, Base.FocalPlaneResolutionUnit: 9},
        {**SENSOR, Base.FocalPlaneXResolution: IFDRational(0, 0)},
        {**SENSOR, Base.FocalPlaneResolutionUnit: 5},  # 1,760,000 pixels
    ],
)
def test_a_focal_length_that_cannot_be_right(tags: dict[int, object], tmp_path: Path) -> None:
    save_taken(tmp_path / "a.jpg", size=(2000, 1500), details=tags)
    assert read_taken(tmp_path / "a.jpg").focal is None


@pytest.mark.parametrize(
    ("tags", "metres"),
    [
        ({GPS.GPSAltitude: 120.5}, 120.5),
        ({GPS.GPSAltitude: 3.5, GPS.GPSAltitudeRef: b"\1"}, -3.5),
        ({GPS.GPSAltitude: 3.5, GPS.GPSAltitudeRef: b"\0"}, 3.5),
        ({GPS.GPSAltitude: IFDRational(0, 0)}, None),
        ({}, None),
    ],
)
def test_altitudes(tags: dict[int, object], metres: float | None, tmp_path: Path) -> None:
    save_taken(tmp_path / "a.jpg", (10.0, -20.0), gps=tags)
    position = read_taken(tmp_path / "a.jpg").position
    assert position is not None
    assert position[:2] == (10.0, -20.0)
    assert position[2] == (None if metres is None else pytest.approx(metres))
    assert position[2] is None or math.isfinite(position[2])

"""Which pairs of a folder: all, neighbours, the nearest, and by the positions in EXIF data."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL.ExifTags import GPS, IFD
from PIL.TiffImagePlugin import IFDRational

from steerers.benchmarks.collections import Selection, list_images, list_pairs
from steerers.benchmarks.predict import Pair
from steerers.datasets.photos import ENDINGS
from steerers.images.exif import Position, ground_distance, read_position
from steerers.images.load import ImageError

NAMES = ("a.jpg", "b.JPG", "c.jpg", "d.jpg", "e.jpg")
METRE = 180 / 3.141592653589793 / 6_371_008.8  # of latitude, in degrees


def photograph(path: Path, position: Position | None = None, **changes: object) -> None:
    image = PIL.Image.new("RGB", (8, 6))
    exif = image.getexif()
    if position is not None:
        tags: dict[int, object] = exif.get_ifd(IFD.GPSInfo)
        for value, place, reference, letters in (
            (position[0], GPS.GPSLatitude, GPS.GPSLatitudeRef, "NS"),
            (position[1], GPS.GPSLongitude, GPS.GPSLongitudeRef, "EW"),
        ):
            degrees, rest = divmod(abs(value), 1)
            minutes, seconds = divmod(60 * rest, 1)
            tags[place] = (degrees, minutes, 60 * seconds)
            tags[reference] = letters[value < 0]
        for name, changed in changes.items():
            tags[GPS[name]] = changed
    image.save(path, exif=exif)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five photographs: a and e at one place, b 10 m, c 30 m and d 100 m north of it."""
    for name, north in zip(NAMES, (0, 10, 30, 100, 0), strict=True):
        photograph(tmp_path / name, (-20.5 + north * METRE, -98.25))
    (tmp_path / "notes.txt").write_text("no photograph")
    (tmp_path / "f.jpg").mkdir()
    return tmp_path


def letters(pairs: list[Pair]) -> list[str]:
    return [pair.image0.name[0] + pair.image1.name[0] for pair in pairs]


def test_all_pairs_by_default(folder: Path) -> None:
    pairs = list_pairs(folder)
    assert letters(pairs) == ["".join(pair) for pair in combinations("abcde", 2)]
    assert pairs[0].name == "a.jpg b.JPG"
    assert str(folder) not in str(pairs[0].key())


def test_all_endings_of_photographs_count_but_not_folders_below(tmp_path: Path) -> None:
    for ending in ENDINGS:
        (tmp_path / f"x{ending}").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.jpg").touch()
    assert [path.name for path in list_images(tmp_path)] == [f"x{ending}" for ending in sorted(ENDINGS)]


def test_neighbours_in_the_order_of_names(folder: Path) -> None:
    assert letters(list_pairs(folder, Selection(neighbours=1))) == ["ab", "bc", "cd", "de"]
    assert letters(list_pairs(folder, Selection(neighbours=2))) == ["ab", "ac", "bc", "bd", "cd", "ce", "de"]
    assert len(list_pairs(folder, Selection(neighbours=9))) == 10


def test_at_most_so_many_the_nearest(folder: Path) -> None:
    assert letters(list_pairs(folder, Selection(most=4))) == ["ab", "bc", "cd", "de"]
    assert letters(list_pairs(folder, Selection(most=6))) == ["ab", "ac", "bc", "bd", "cd", "de"]
    assert letters(list_pairs(folder, Selection(gps=50, most=2))) == ["ab", "ae"]


def test_by_distance_on_the_ground(folder: Path) -> None:
    assert letters(list_pairs(folder, Selection(gps=5))) == ["ae"]
    assert letters(list_pairs(folder, Selection(gps=12))) == ["ab", "ae", "be"]
    assert letters(list_pairs(folder, Selection(gps=40))) == ["ab", "ac", "ae", "bc", "be", "ce"]


def test_positions_with_their_hemispheres(tmp_path: Path) -> None:
    for place in ((30.171223, -98.089991), (-33.85, 151.21), (0.0, 0.0)):
        photograph(tmp_path / "a.jpg", place)
        assert read_position(tmp_path / "a.jpg") == pytest.approx(place, abs=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"GPSLatitudeRef": "up"},
        {"GPSLatitude": (95.0, 0.0, 0.0)},
        {"GPSLongitude": (1.0,)},
        {"GPSLatitude": (IFDRational(0, 0), 0.0, 0.0)},
    ],
)
def test_a_position_that_cannot_be_read_is_none(tmp_path: Path, changes: dict[str, object]) -> None:
    photograph(tmp_path / "a.jpg", (10.0, 20.0), **changes)
    assert read_position(tmp_path / "a.jpg") is None


def test_no_position(tmp_path: Path) -> None:
    photograph(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    assert read_position(tmp_path / "a.jpg") is None
    with pytest.raises(ImageError, match=r"cannot read image .*b\.jpg: it is not an image"):
        read_position(tmp_path / "b.jpg")


@pytest.mark.usefixtures("strict_pillow")
def test_a_position_of_a_large_photograph(tmp_path: Path) -> None:
    photograph(tmp_path / "a.jpg", (10.0, 20.0))
    assert read_position(tmp_path / "a.jpg") == pytest.approx((10.0, 20.0))


places = st.tuples(st.floats(-89, 89), st.floats(-180, 180))


@given(places, places)
def test_distances_are_symmetric_and_within_half_the_earth(first: Position, second: Position) -> None:
    distance = ground_distance(first, second)
    assert distance == pytest.approx(ground_distance(second, first))
    assert 0 <= distance <= 20_016_000
    assert ground_distance(first, first) == 0


def test_known_distances() -> None:
    assert ground_distance((0, 179.9995), (0, -179.9995)) == pytest.approx(111.2, abs=0.1)  # across the date line
    assert ground_distance((48.8584, 2.2945), (48.8530, 2.3499)) == pytest.approx(4100, abs=50)  # Eiffel, Notre-Dame


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere; give --data a folder with at least two"):
        list_pairs(tmp_path / "nowhere")
    (folder / "e.jpg").unlink()
    with pytest.raises(ValueError, match=r"no two photographs of .* are within 0.1 m; the nearest are 10.0 m apart"):
        list_pairs(folder, Selection(gps=0.1))
    photograph(folder / "g.jpg")
    photograph(folder / "h.jpg")
    with pytest.raises(ValueError, match=r"g\.jpg has no GPS position .*, nor have 1 others of 6"):
        list_pairs(folder, Selection(gps=10))
    (tmp_path / "empty").mkdir()
    photograph(tmp_path / "empty" / "a.jpg")
    with pytest.raises(ValueError, match="holds 1 photographs"):
        list_pairs(tmp_path / "empty")


@pytest.mark.parametrize("gps", [0.0, float("nan")])
def test_distances_that_make_no_sense(gps: float) -> None:
    with pytest.raises(ValueError, match="gps must be a positive"):
        Selection(gps=gps)

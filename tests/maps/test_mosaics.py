"""Mosaics of photographs of a map whose truth is known; scenes that are not flat, not joined, or no photographs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from PIL.ExifTags import GPS, IFD

from collection.photographs import save_blank
from collection.scenes import make_collection, make_scene
from helpers import assert_refused, contents, run_command
from steerers.collection.georeference import from_enu, to_enu
from steerers.images.load import to_uint8
from steerers.maps import MosaicOptions, NotFlatError, mosaic, mosaic_matched
from steerers.maps.compositing import Composite, Layer
from steerers.maps.rasters import open_raster
from terrain import make_terrain, view_of

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("scipy")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
QUICK = ("--model", "upright-sift", "--num-keypoints", "600")
SIZE, METRES = (200, 150), 0.5
ORIGIN = np.array([47.1, 15.4, 0.0])


def save_view(
    terrain, path: Path, centre: tuple[float, float], degrees: float, *, gps: bool, bright: float = 1.0
) -> None:  # type: ignore[no-untyped-def]
    """A photograph of a place of a map, of which a pixel is half a metre, north up."""
    view, _ = view_of(terrain, centre, degrees, SIZE)
    image = PIL.Image.fromarray(to_uint8((view * bright).clamp(0, 1)))
    exif = image.getexif()
    if gps:
        tags = exif.get_ifd(IFD.GPSInfo)
        latitude, longitude, _ = from_enu(np.array([[centre[0] * METRES, -centre[1] * METRES, 0.0]]), ORIGIN)[0]
        for value, tag, reference, letter in (
            (latitude, GPS.GPSLatitude, GPS.GPSLatitudeRef, "N"),
            (longitude, GPS.GPSLongitude, GPS.GPSLongitudeRef, "E"),
        ):
            minutes = (float(value) % 1) * 60
            tags[tag], tags[reference] = (math.floor(value), math.floor(minutes), (minutes % 1) * 60), letter
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif, quality=95)


@pytest.fixture(scope="module")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six photographs in two rows, quarter turns apart, one of them darker; and the ground."""
    folder, terrain = tmp_path_factory.mktemp("flight"), make_terrain(420, seed=6)
    PIL.Image.fromarray(to_uint8(terrain)).save(folder / "ground.png")
    for index in range(6):
        centre = (120.0 + 70 * (index % 3), 140.0 + 60 * (index // 3))
        bright = 0.8 if index == 4 else 1.0
        save_view(terrain, folder / f"photos/{index}.jpg", centre, 90 * (index % 4), gps=True, bright=bright)
    return folder


@pytest.fixture(scope="module")
def made(flight: Path) -> Path:
    """Its mosaic by the command, with all that it writes."""
    asked = ["-o", flight / "out.tif", "--picture", flight / "layout.png", "--json", flight / "out.json", *QUICK]
    done = run_command("mosaic", flight / "photos", *asked)
    assert done.code == 0, done.err
    assert done.out.startswith("6 of 6 photographs in ")
    assert [line for line in done.out.splitlines() if line.startswith("wrote")] == [
        f"wrote {flight / name}" for name in ("out.tif", "out.json", "layout.png")
    ]
    return flight


def test_it_shows_the_ground(made: Path) -> None:
    """At every pixel, by what the file says of where that lies."""
    with open_raster(made / "out.tif") as raster:
        place, (width, height) = raster.place, raster.size
        pixels, there = raster.read()
    assert there.sum() > 2.2 * SIZE[0] * SIZE[1]
    assert np.diag(place.matrix)[:2] == pytest.approx([METRES, -METRES], rel=0.03)  # north is up
    assert place.matrix[0, 1] == place.matrix[1, 0] == 0
    xy = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)[there]
    lonlat = place.to_lonlat(xy)
    enu = to_enu(np.column_stack([lonlat[:, ::-1], np.zeros(len(xy))]), ORIGIN)
    columns, rows = np.rint(enu[:, :2] / [METRES, -METRES]).astype(int).T
    ground = np.asarray(PIL.Image.open(made / "ground.png"))
    off = np.abs(pixels[there].astype(float) - ground[rows, columns])
    assert off.mean() < 8  # of values that deviate by 40
    mirrored = ground[rows, ground.shape[1] - 1 - columns]
    assert np.abs(pixels[there].astype(float) - mirrored).mean() > 3 * off.mean()


def test_what_it_says(made: Path) -> None:
    told = json.loads((made / "out.json").read_text())
    assert (told["photographs"], told["shown"], told["left_out"]) == (6, 6, {})
    assert told["error_px"]["median"] < 1
    assert told["flat"] > 0.85
    assert told["gps"]["median_m"] < 1
    assert PIL.Image.open(made / "layout.png").width > 100


def test_again_goes_on_from_its_folder(made: Path) -> None:
    assert "features" in contents(made / "out.collection")
    before = (made / "out.collection/features/0000.h5").stat().st_mtime_ns
    how = MosaicOptions(gps=False, scale=0.5)
    same = {"folder": made / "out.collection", "model": "upright-sift", "num_keypoints": 600}
    found = mosaic(made / "photos", made / "plain.tif", options=how, **same)  # type: ignore[arg-type]
    assert (made / "out.collection/features/0000.h5").stat().st_mtime_ns == before
    assert (found.numbers["gps"], found.numbers["not_georeferenced"]) == (None, "it was not asked for")
    with open_raster(made / "plain.tif") as plain:
        assert plain.georeference is None
        assert plain.size == found.size


def test_tiles_do_not_show(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is blended in several blocks is what is blended in one."""
    paths = sorted((made / "photos").iterdir())[:2]
    images = [np.asarray(PIL.Image.open(path)) for path in paths]
    layers = [
        Layer(str(n), lambda _, image=image: image, SIZE, np.array([[1, 0, 60.0 * n], [0, 1, 0], [0, 0, 1]]))  # type: ignore[misc]
        for n, image in enumerate(images)
    ]
    size = (260, 150)
    whole = Composite(layers, size).draw((0, 0, *size))
    monkeypatch.setattr("steerers.maps.compositing.BLOCK", 64)
    parts = Composite(layers, size)
    drawn = np.concatenate([parts.draw((left, 0, min(left + 100, 260), 150)) for left in (0, 100, 200)], axis=2)
    assert (drawn[3] == whole[3]).all()
    assert (whole[3] == 255).all()
    assert np.abs(drawn.astype(int) - whole)[:3].max() <= 3


# What is refused ------------------------------------------------------------------------------------------------------


def test_a_scene_that_is_not_flat(tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "scene", [make_scene(4, points=300)])
    with pytest.raises(
        NotFlatError, match=r"the scene is not flat: .* a plane explains \d+% within 5 pixels"
    ) as caught:
        mosaic_matched(collection, tmp_path / "out.tif")
    assert caught.value.exit_code == 3
    assert "pixels off; steerers reconstruct takes such scenes" in str(caught.value)
    assert not (tmp_path / "out.tif").exists()


def test_photographs_that_are_not_joined(flight: Path, tmp_path: Path) -> None:
    terrain, other = make_terrain(420, seed=6), make_terrain(420, seed=11)
    for name, ground, centre in (
        ("0", terrain, (120.0, 140.0)),
        ("1", terrain, (170.0, 140.0)),
        ("2", terrain, (150.0, 170.0)),
        ("8", other, (150.0, 150.0)),
        ("9", other, (190.0, 150.0)),
    ):
        save_view(ground, tmp_path / f"photos/{name}.jpg", centre, 0, gps=False)
    (tmp_path / "photos/broken.jpg").write_bytes(b"no image")
    done = run_command("mosaic", tmp_path / "photos", "-o", tmp_path / "out.tif", *QUICK)
    assert done.code == 0, done.err
    assert "the photographs are not joined: 3 of them are shown, and groups of 2 left out" in done.err
    assert "left out: 8.jpg is in another group of 2" in done.out
    assert "left out: broken.jpg could not be read" in done.out
    assert "not georeferenced: 0 of the photographs have a GPS position, and three are needed" in done.out


def test_refusals(flight: Path, tmp_path: Path) -> None:
    photos = flight / "photos"
    save_view(make_terrain(300, seed=1), tmp_path / "one/0.jpg", (150, 150), 0, gps=False)
    for arguments, message in (
        ([photos, "-o", tmp_path / "out.png"], "its ending must be .tif or .tiff"),
        ([photos, "-o", tmp_path / "no/out.tif"], "there is no folder"),
        ([photos, "-o", tmp_path / "out.tif", "--scale", "0"], "'0' is not a number above 0"),
        ([photos, "-o", tmp_path / "out.tif", "--refine"], "unrecognized arguments: --refine"),
        ([tmp_path / "none", "-o", tmp_path / "out.tif"], "there is no folder"),
        ([tmp_path / "one", "-o", tmp_path / "out.tif"], "a mosaic needs two photographs or more"),
        (
            [photos, "-o", tmp_path / "out.tif", "--folder", flight / "out.collection", "--max-size", "100"],
            "was made with",
        ),
    ):
        assert_refused(["mosaic", *arguments, *QUICK, "--quiet"], message)
    for index in range(3):
        save_blank(tmp_path / "blank" / f"{index}.png", (160, 120))
    done = run_command("mosaic", tmp_path / "blank", "-o", tmp_path / "out.tif", *QUICK, "--quiet")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("steerers: no two of 3 photographs overlap")
    with pytest.raises(ValueError, match="scale must be a positive number, got 0"):
        MosaicOptions(scale=0)

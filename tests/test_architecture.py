"""The order of the rooms: who may import whom, and no circles; see docs/architecture.md."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from helpers import EXAMPLES


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", EXAMPLES.parent / "docs" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_has_a_room(rooms: ModuleType) -> None:
    known = {name for names in rooms.LEVELS for name in names}
    assert {rooms.room(module) for module in rooms.modules()} == known


def test_no_import_is_against_the_order(rooms: ModuleType) -> None:
    assert rooms.against_the_order(rooms.read_imports()) == []


def test_no_module_imports_in_a_circle(rooms: ModuleType) -> None:
    assert rooms.circles(rooms.read_imports()) == []


def test_image_files_are_opened_in_one_place() -> None:
    """So that one limit holds, and one kind of error."""
    sources = (EXAMPLES.parent / "src").rglob("*.py")
    assert [path.name for path in sources if "Image.open(" in path.read_text(encoding="utf-8")] == ["decode.py"]


def test_circles_and_wrong_edges_are_found(rooms: ModuleType) -> None:
    imports = {"matching.a": {"models.b"}, "models.b": {"accel.c"}, "accel.c": {"matching.a"}, "models.d": {"models.b"}}
    assert rooms.circles(imports) == [["accel.c", "matching.a", "models.b"]]
    assert rooms.against_the_order({"steering.a": {"models.b"}, "models.b": {"steering.a"}}) == [
        "steering.a imports models.b: steering lies below models"
    ]


def test_the_picture_is_drawn_from_the_source(rooms: ModuleType) -> None:
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.draw(rooms.read_imports()), "run: python docs/rooms.py"

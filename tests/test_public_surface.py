"""The public surface, line by line: what changes in it is changed knowingly.

``tests/public_surface.txt`` has every public name of ``steerers`` with its signature. Where a change is meant, run
``python tests/test_public_surface.py``, look at the difference, and follow CONTRIBUTING.md, "What is promised".
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import steerers

RECORDED = Path(__file__).with_name("public_surface.txt")


def surface() -> Iterator[str]:
    """A line for every public name, and for every public member that a public class has of this package."""
    for name in sorted(steerers.__all__):
        value = getattr(steerers, name)
        if not inspect.isclass(value):
            yield f"{name}{signature(value)}" if callable(value) else name
            continue
        yield f"class {name}{signature(value)}"
        own = [cls for cls in value.__mro__ if cls.__module__.startswith("steerers")]
        members = {member for cls in own for member in vars(cls) if is_public(member)} - fields_of(value)
        for member in sorted(members):
            yield f"    {describe(value, member)}"


def is_public(name: str) -> bool:
    return name == "__call__" or not (name.startswith("_") or name == "extra_repr")


def fields_of(cls: type) -> set[str]:
    """The fields of a dataclass, which stand in its signature."""
    return {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()


def describe(cls: type, name: str) -> str:
    """A method with its signature, or an attribute."""
    static = inspect.getattr_static(cls, name)
    if isinstance(static, (classmethod, staticmethod)) or inspect.isfunction(static):
        kind = {classmethod: "classmethod ", staticmethod: "staticmethod "}.get(type(static), "")
        return f"{kind}{name}{signature(getattr(cls, name))}"
    return name


class Plain:
    """An annotation without the quotes that postponed ones come with."""

    def __init__(self, annotation: object) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def signature(function: Callable[..., object]) -> str:
    given = inspect.signature(function)
    empty = inspect.Signature.empty
    parameters = [
        parameter if parameter.annotation is empty else parameter.replace(annotation=Plain(parameter.annotation))
        for parameter in given.parameters.values()
    ]
    returned = empty if given.return_annotation is empty else Plain(given.return_annotation)
    return str(given.replace(parameters=parameters, return_annotation=returned)).replace("<factory>", "...")


def test_the_surface_is_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), list(surface())
    changed = [line for line in difflib.ndiff(recorded, found) if line[0] in "+-"]
    assert changed == [], "the public surface has changed; if that is meant: python tests/test_public_surface.py"


def test_every_public_name_says_what_it_is() -> None:
    for name in set(steerers.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(steerers, name)), name


def test_unknown_names_are_unknown() -> None:
    assert not hasattr(steerers, "no_such")
    assert set(steerers.__all__) <= set(dir(steerers))


if __name__ == "__main__":
    RECORDED.write_text("\n".join([*surface(), ""]), encoding="utf-8")
    sys.stdout.write(f"wrote {RECORDED}\n")

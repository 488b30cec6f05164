"""What the manual's pages of the API need beyond docstrings, as an extension of griffe, which reads the source.

Docstrings refer to others by Sphinx's roles, which become links where the manual has what they name. Fields of
dataclasses have their shapes and meaning in a comment behind them, which becomes their docstring.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

import steerers

ROLE = re.compile(r":(class|func|meth|attr|data|mod|exc):`(~?)([\w.]+)`")
COMMENT = re.compile(r"^\s*\w+: [^#\"']*?#\s*(.+)$")


def full_name(name: str, role: str, obj: griffe.Object) -> str:
    """The dotted path of what a role in the docstring of ``obj`` names."""
    package, _, rest = name.partition(".")
    if package == "steerers":
        public, dot, below = rest.partition(".")
        return f"steerers.{steerers._HOME[public]}.{public}{dot}{below}" if public in steerers._HOME else name
    if role in ("meth", "attr") and "." not in name:
        return f"{obj.path if obj.is_class else obj.parent and obj.parent.path}.{name}"
    return f"{obj.module.path}.{name}"


class Docstrings(griffe.Extension):
    """Links for roles, and docstrings for fields."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        def link(found: re.Match[str]) -> str:
            role, short, name = found.groups()
            shown = name.rpartition(".")[2] if short else name
            return f'<autoref optional identifier="{full_name(name, role, obj)}"><code>{shown}</code></autoref>'

        if obj.docstring:
            obj.docstring.value = ROLE.sub(link, obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and attr.lineno is not None and attr.lineno == attr.endlineno:
            comment = COMMENT.match(attr.lines_collection[attr.filepath][attr.lineno - 1])
            if comment:
                attr.docstring = griffe.Docstring(comment[1], lineno=attr.lineno, parent=attr)

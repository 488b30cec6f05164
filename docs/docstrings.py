"""What the manual's pages of the API need beyond docstrings, as an extension of griffe, which reads the source.

Docstrings refer to others by Sphinx's roles, which become links where the manual has what they name. Fields of
dataclasses have their shapes and meaning in a comment behind them, which becomes their docstring. Defaults that are
constants of ``_choices.py`` are shown by their value.
"""

from __future__ import annotations

import io
import re
import tokenize
from typing import Any

import griffe

import steerers
from steerers import _choices

ROLE = re.compile(r":(class|func|meth|attr|data|mod|exc):`(~?)([\w.]+)`")


def full_name(name: str, role: str, obj: griffe.Object) -> str:
    """The dotted path of what a role in the docstring of ``obj`` names."""
    package, _, rest = name.partition(".")
    if package == "steerers":
        public, dot, below = rest.partition(".")
        return f"steerers.{steerers._HOME[public]}.{public}{dot}{below}" if public in steerers._HOME else name
    if role in ("meth", "attr") and "." not in name:
        return f"{obj.path if obj.is_class else obj.parent and obj.parent.path}.{name}"
    return f"{obj.module.path}.{name}"


def comment_of(line: str) -> str:
    """The comment behind a line of code, without its mark; empty if there is none."""
    tokens = tokenize.generate_tokens(io.StringIO(line.strip()).readline)
    return "".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)


def by_value(default: Any) -> Any:
    """A default as it is, or its value where it is a constant that users choose by."""
    value = vars(_choices).get(str(default))
    return repr(value) if isinstance(value, str | int) else default


class Docstrings(griffe.Extension):
    """Links for roles, docstrings for fields, values of constants."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        def link(found: re.Match[str]) -> str:
            role, short, name = found.groups()
            shown = name.rpartition(".")[2] if short else name
            return f'<autoref optional identifier="{full_name(name, role, obj)}"><code>{shown}</code></autoref>'

        if obj.docstring:
            obj.docstring.value = ROLE.sub(link, obj.docstring.value)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            parameter.default = by_value(parameter.default)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.value = by_value(attr.value)
        if attr.docstring is None and attr.lineno is not None and attr.lineno == attr.endlineno:
            comment = comment_of(attr.lines_collection[attr.filepath][attr.lineno - 1])
            if comment:
                attr.docstring = griffe.Docstring(comment, lineno=attr.lineno, parent=attr)

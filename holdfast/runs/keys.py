"""The keys of an experiment, as its own source tells them: type, usual value, meaning (the comment beside each)."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from holdfast.core.config import Choice
from holdfast.runs.experiment import Experiment

WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Choice: "choice"}


@dataclass(frozen=True)
class Key:
    """One key of an experiment."""

    name: str
    kind: str
    usual: str
    meaning: str


def experiment_keys() -> list[Key]:
    """Every key that a file may have, in the order of the source.

    >>> experiment_keys()[0].name, [key.usual for key in experiment_keys() if key.name == "rounds"]
    ('task', ['24'])
    """
    hints = {**typing.get_type_hints(Experiment), "task": str}
    said = comments(Experiment)
    fields = [field for field in dataclasses.fields(Experiment) if field.name != "given"]
    return [Key(f.name, words_of(hints[f.name]), usual(f.default), said.get(f.name, "")) for f in fields]


def comments(kind: type) -> dict[str, str]:
    """The comment on the last line of each field of a dataclass that has one."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    [body] = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            comment = re.search(r"  # (.*)$", text, re.MULTILINE)
            found[node.target.id] = comment[1] if comment else ""
    return found


def words_of(hint: Any) -> str:
    """A type in words.

    >>> words_of(int | None), words_of(tuple[str, ...]), words_of(typing.Literal["a", "b"])
    ('whole number', 'list of text', '"a" or "b"')
    """
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(words_of(one) for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f'"{word}"' for word in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        inner = [words_of(one) for one in typing.get_args(hint) if one is not Ellipsis]
        return f"list of {inner[0]}" + ("s" if inner[0].endswith("number") else "")
    return WORDS.get(hint, str(getattr(hint, "__name__", hint)))


def usual(value: object) -> str:
    """A usual value as a file would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str | Choice) else str(value)

"""A choice is a name with options: ``"dirichlet:0.1"``, ``{name = "fedprox", mu = 0.1}``, ``"my.module:Thing"``.

Partitions, scenarios, algorithms, absences, trusts and attacks are all chosen this way: each is a frozen dataclass
whose fields are its options. There is no registry, only a dict of names to classes.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import HoldfastError, brief, nearest
from holdfast.core.modules import import_path, told
from holdfast.core.rivals import RIVALS, rival


@dataclass(frozen=True)
class Choice:
    """A name and its options, as the experiment says them."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    argument: str | None = None  # "0.1" of "dirichlet:0.1": the first option, by position

    @classmethod
    def parse(cls, spec: object, key: str) -> Choice:
        """Read a choice from a string or a table.

        >>> Choice.parse("fedprox:mu=0.1", "algorithm").options
        {'mu': '0.1'}
        >>> Choice.parse("intervals:away=[[3, 5, 9], [0, 1, 2]]", "scenario").options  # a list as in TOML
        {'away': '[[3, 5, 9], [0, 1, 2]]'}
        """
        if isinstance(spec, Choice):
            return spec
        if isinstance(spec, Mapping):
            options = dict(spec)
            name = options.pop("name", None)
            if not isinstance(name, str):
                raise HoldfastError(f'{key}: a table needs a name, as in {key} = {{name = "..."}}.')
            named = cls.parse(name, key)
            return dataclasses.replace(named, options={**named.options, **options})
        name, _, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
        if not isinstance(spec, str) or not name:
            raise HoldfastError(
                f'{key}: expected a name such as "name:option=value" or your own "module:Name", got {brief(spec)}.'
            )
        if "." in name or not rest:
            return cls(spec if rest else name)
        if "=" not in rest:
            return cls(name, argument=rest)
        options = {}
        for part in split_commas(rest):
            option, equals, value = part.partition("=")
            if not equals:
                raise HoldfastError(f"{key}: {part!r} in {spec!r} is not of the form option=value.")
            if option.strip() in options:
                raise HoldfastError(f"{key}: {spec!r} names {option.strip()!r} twice.")
            options[option.strip()] = value.strip()
        return cls(name, options)

    @property
    def head(self) -> str:
        """The name with its argument."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"

    def __str__(self) -> str:
        return " ".join([self.head, *(f"{option}={value}" for option, value in self.options.items())])

    def as_json(self) -> object:
        """What parse() reads back to the same choice."""
        return {"name": self.head, **self.options} if self.options else self.head


def split_commas(text: str) -> list[str]:
    """The parts between commas, but for those within a list.

    >>> split_commas("away=[[3, 5], [1, 2]],seed=1")
    ['away=[[3, 5], [1, 2]]', 'seed=1']
    """
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def choose(kinds: Mapping[str, type[Any]], choice: Choice, key: str) -> Any:
    """The object a choice names: one of the known kinds, or a user's own by import path."""
    kind: Any = kinds.get(choice.name) or rival(key, choice.name)
    argument = choice.argument
    if kind is None and (":" in choice.name or (argument and argument.isidentifier())):
        kind = import_path(choice.name if argument is None else f"{choice.name}:{argument}", key)
        argument = None
        if not isinstance(kind, type):
            if choice.options:
                raise HoldfastError(f"{key}: {choice.name!r} is not a class, so it takes no options.")
            return kind
    if kind is None:
        known = [*kinds, *RIVALS.get(key, {})]
        raise HoldfastError(f"{key}: {choice.name!r} is not known; {nearest(choice.name, known)}")
    if not dataclasses.is_dataclass(kind):
        try:
            return kind(**choice.options)
        except Exception as error:  # a user's own code
            raise HoldfastError(f"{key}: {choice} cannot be made: {told(error)}.") from error
    hints = typing.get_type_hints(kind)
    make: Any = kind
    fields = [f.name for f in dataclasses.fields(kind) if f.init]
    options = dict(choice.options)
    if argument is not None:
        first = next((f.name for f in dataclasses.fields(kind) if f.init and not f.kw_only), None)
        if first is None:
            names = f"only options by name ({', '.join(fields)})" if fields else "no option"
            raise HoldfastError(f"{key}: {choice.name!r} takes {names}, got {argument!r}.")
        options = {first: argument, **options}
    values = {}
    for option, value in options.items():
        if option not in fields:
            hint = nearest(option, fields) if fields else "it has none"
            raise HoldfastError(f"{key}: {choice.name!r} has no option {option!r}; {hint}")
        values[option] = convert(value, hints[option], f"{key}.{option}")
    for option in required(kind):
        if option not in values:
            raise HoldfastError(f"{key}: {choice.name!r} needs the option {option!r}.")
    try:
        return make(**values)
    except ValueError as error:
        raise HoldfastError(f"{key}: {choice.name!r}: {error}") from None


def refuse_other(base: type, made: object, choice: Choice, key: str) -> None:
    """Refuse a user's own part that is of another kind."""
    if not isinstance(made, base):
        raise HoldfastError(f"{key}: {choice} is no {key}; derive a class from {base.__module__}.{base.__name__}.")


def required(kind: Any) -> list[str]:
    """The options of a kind that have no usual value."""
    missing = dataclasses.MISSING
    fields = (f for f in dataclasses.fields(kind) if f.init)
    return [f.name for f in fields if f.default is missing and f.default_factory is missing]


def convert(value: object, hint: Any, key: str) -> Any:
    """The value as its declared type: text from the command line is read, anything else must fit.

    >>> convert("3", int, "rounds"), convert(1, float, "lr"), convert("none", int | None, "workers")
    (3, 1.0, None)
    """
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if type(None) in typing.get_args(hint) and (value is None or value == "none"):
            return None
        return convert(value, type(value) if type(value) in kinds else kinds[0], key)
    if typing.get_origin(hint) is typing.Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            words = [str(word) for word in allowed]
            hint, known = nearest(value if isinstance(value, str) else "", words), f"known: {', '.join(words)}"
            told = known if hint == known else f"{hint} ({known})"
            raise HoldfastError(f"{key}: {brief(value)} is not known; {told}")
        return value
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        inner = typing.get_args(hint)
        kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is Ellipsis else list(inner)
        if len(kinds) != len(value):
            raise HoldfastError(f"{key}: expected {len(kinds)} values, got {len(value)}.")
        return tuple(
            convert(item, kind, f"{key}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))
        )
    if typing.get_origin(hint) is tuple and not isinstance(value, str):
        raise HoldfastError(f"{key}: expected a list, got {brief(value)}.")
    if isinstance(value, str) and hint is not str:
        return convert(_read(value, hint, key), hint, key)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 1023:
        return float(value)
    if hint is float and value != value:
        raise HoldfastError(f"{key}: expected a number, got nan.")
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise HoldfastError(f"{key}: expected {_english(hint)}, got {brief(value)}.")
    return value


def _read(text: str, hint: Any, key: str) -> object:
    try:
        if hint is int:
            return int(text)
        if hint is float:
            return float(text)
    except ValueError:
        raise HoldfastError(f"{key}: expected {_english(hint)}, got {brief(text)}.") from None
    if hint is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if typing.get_origin(hint) is tuple and text.startswith("["):
        return _list(text, key)
    if typing.get_origin(hint) is tuple:
        return [part.strip() for part in text.replace(",", "/").split("/")]
    raise HoldfastError(f"{key}: expected {_english(hint)}, got {brief(text)}.")


def _list(text: str, key: str) -> list[Any]:
    """A list as a file writes it."""
    try:
        return list(json.loads(text))
    except (ValueError, RecursionError):
        raise HoldfastError(f"{key}: expected a list such as [1, 2], got {brief(text)}.") from None


def _english(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, str(hint))

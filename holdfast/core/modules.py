"""Users' own modules: where they are searched, how a part is imported from one, and which files belong to it.

They are searched in one folder, that of the experiment's file (or what its key `modules` says), besides wherever Python
looks anyway.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.core.errors import HoldfastError, plain

NOT_THEIRS = ("/site-packages/", "/lib/python3", "<", str(Path(__file__).parents[1]))  # in the path of a file
_searched: list[str] = []  # the folders that search() has put at the end of sys.path, the latest first


def search(folder: Path | str) -> None:
    """Search own modules in this folder from now on; last of all, so that no file there hides an installed module.

    A module that another such folder has of the same name is forgotten: each experiment has its own.
    """
    place = str(Path(folder).resolve())
    if _searched[:1] == [place] and place in sys.path:
        return
    others = [other for other in _searched if other != place]
    try:
        here = {path.stem for path in Path(place).glob("*")}  # few: to ask each module for its home would take long
    except OSError as error:
        raise HoldfastError(f"modules: cannot read the folder {plain(place, 200)}: {error.strerror}.") from None
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top in here and module is not None and home_of(module) in others and has_module(Path(place), top):
            del sys.modules[name]
    if place in sys.path and place not in _searched:
        return  # the user's own way of searching it
    _searched[:] = [place, *others]
    sys.path[:] = [path for path in sys.path if path not in _searched] + _searched


def home_of(module: ModuleType) -> str:
    """The folder in which Python searched for a module or for the package that it is part of."""
    path = getattr(module, "__file__", None)
    if path is None:
        return ""
    levels = module.__name__.count(".") + (Path(path).stem == "__init__")
    parents = Path(path).resolve().parents
    return str(parents[levels]) if levels < len(parents) else ""


def has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def import_path(path: str, key: str) -> Any:
    """The object that ``package.module:name`` names."""
    module, _, name = path.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise HoldfastError(f"{key}: {module!r} is a module of Python itself; call yours otherwise.")
    try:
        found = importlib.import_module(module)
    except (ImportError, TypeError, ValueError) as error:  # the last two: not a module's name at all
        where = "is it beside the experiment's file, in the current folder, in that of `modules`, or on PYTHONPATH?"
        raise HoldfastError(f"{key}: cannot import {module!r} ({error}); {where}") from None
    except Exception as error:
        raise HoldfastError(f"{key}: importing {module!r} failed: {told(error)}.") from error
    try:
        return getattr(found, name)
    except AttributeError:
        raise HoldfastError(f"{key}: module {module!r} has no {name!r} (it is {found.__file__}).") from None


def path_of(thing: object) -> str | None:
    """The import path of a class or function; none where it has none, such as a lambda's, or one of a script.

    >>> path_of(path_of), path_of(lambda: 0)
    ('holdfast.core.modules:path_of', None)
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or getattr(sys.modules.get(str(module)), name, None) is not thing:
        return None
    return f"{module}:{name}"


def told(error: BaseException) -> str:
    """An error of a user's own code in one line: its kind, its words, and the line of theirs that raised it."""
    words = str(error).strip().splitlines()
    where, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not any(part in file for part in NOT_THEIRS):
            where = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return plain(type(error).__name__ + (f": {words[0].rstrip('.')}" if words else ""), 300) + where


def files_of(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The files of these modules and of all that they import, as far as they lie in the folder; by relative path.

    A package comes whole, with whatever Python files it has.
    """
    found: dict[str, Path] = {}
    left = list(names)
    while left:
        top = left.pop().partition(".")[0]
        if not has_module(folder, top):
            continue
        package = folder / top
        files = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [folder / f"{top}.py"]
        for file in files:
            place = file.relative_to(folder).as_posix()
            if place not in found:
                found[place] = file
                left += imported_by(file)
    return found


def imported_by(file: Path) -> list[str]:
    """The names of the modules that a file imports, relative ones left out: those lie in its own package."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise HoldfastError(f"{file} cannot be read as Python: {plain(str(error), 200)}.") from None
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module)
    return names

"""The reference of keys, choices and commands, made of the code: `make reference` writes docs/reference.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import typer
from rich.markup import escape
from rich.table import Table

from holdfast.cli import app
from holdfast.cli.checking import KINDS, first_sentence, options_of
from holdfast.cli.screen import screen
from holdfast.runs.experiment import CHOICES
from holdfast.runs.keys import experiment_keys

HEAD = """# Reference

*Made of the code by `make reference`; a test holds the two together.*

## Keys of an experiment

Each may stand in the file (`rounds = 12`), be changed on the command line (`--set rounds=12`) and be an argument of
`holdfast.Experiment(rounds=12)` in Python. A key that is not listed is an error. Where the type is *choice*, the value
is a name with options, `"dirichlet:0.1"` or `{name = "dirichlet", mu = 0.1}`, or your own as `"module:Name"`.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *key_lines(), "", *choice_lines(), *command_lines()]).rstrip() + "\n"


def key_lines() -> Iterator[str]:
    yield from row("key", "type", "usual value", "what it is")
    yield from row("---", "---", "---", "---")
    for key in experiment_keys():
        kind = f"[{key.kind}](#{key.name})" if key.name in CHOICES and key.name in KINDS else key.kind
        yield from row(f"`{key.name}`", kind, f"`{key.usual}`", key.meaning)


def choice_lines() -> Iterator[str]:
    yield "## Choices\n"
    yield "Options stand with their usual values; those without one must be given."
    for name, (title, choices) in KINDS.items():
        yield f"\n### {name}\n\n{title[0].upper()}{title[1:]}.\n"
        yield from row("name", "what it is", "options")
        yield from row("---", "---", "---")
        for choice, kind in choices.items():
            options = plain(options_of(kind))
            yield from row(f"`{choice}`", plain(first_sentence(kind)), f"`{options}`" if options else "")


def command_lines() -> Iterator[str]:
    yield "\n## Commands\n"
    yield "`holdfast --version` shows the version, `holdfast --debug COMMAND` tracebacks; every command has `--help`."
    for name, command in commands(typer.main.get_command(app), "holdfast"):
        help_text = (command.help or "").strip().split("\n\n")[0].replace("\n", " ")
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        shown = " ".join([name, *(str(p.make_metavar(click.Context(command))) for p in arguments)])
        yield f"\n### `{shown}`\n\n{plain(help_text)}\n"
        options = [p for p in command.params if isinstance(p, click.Option) and p.name != "help"]
        if options:
            yield from row("option", "what it is")
            yield from row("---", "---")
        for option in options:
            names = ", ".join([*option.opts, *option.secondary_opts])
            value = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
            yield from row(f"`{names}{value}`", plain(option.help or "") + default_of(option))


def default_of(option: click.Option) -> str:
    """A default that the help does not tell itself."""
    hidden = option.default in (None, False, True, ()) or "default:" in (option.help or "")
    return "" if hidden else f" [default: {option.default}]"


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its whole name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for word, inner in command.commands.items():
        if not inner.hidden:
            yield from commands(inner, f"{name} {word}")


def row(*cells: str) -> Iterator[str]:
    yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def plain(text: str) -> str:
    """A text without the backslashes that keep brackets from being markup."""
    return " ".join(text.replace("\\[", "[").split())


def show_keys() -> None:
    """`holdfast keys`."""
    view = Table("key", "usual value", "what it is", box=None, padding=(0, 2, 0, 0))
    for key in experiment_keys():
        view.add_row(key.name, key.usual, escape(f"{key.meaning} ({key.kind})"))
    screen().print(view)


if __name__ == "__main__":
    sys.stdout.write(reference())

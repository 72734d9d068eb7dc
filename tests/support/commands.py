"""Reads a command as the command line would, without doing it."""

from __future__ import annotations

import click
import typer

from holdfast.cli import app


def understand(words: list[str]) -> bool:
    """Whether there is such a command with such options; what is not understood is an error."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="holdfast")
    while isinstance(command, click.Group):
        while words[0].startswith("-"):
            words = words[1:]
        name, words = words[0], words[1:]
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command.make_context("holdfast", list(words)) is not None

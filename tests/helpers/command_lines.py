"""Whether a command line can be given so, without carrying it out."""

from __future__ import annotations

import shlex

import click
import typer

from fedoptax.cli.main import app


def parse(line: str) -> click.Context:
    """Parses `fedoptax …`: each command, option and type of value must be one that the program has.

    Raises:
      click.UsageError: it is not.
    """
    command: click.Command = typer.main.get_command(app)
    arguments = shlex.split(line, comments=True)[1:]
    context: click.Context | None = None
    while True:
        context = command.make_context(command.name or "fedoptax", list(arguments), parent=context)
        if not isinstance(command, click.Group):
            return context
        _, found, arguments = command.resolve_command(context, list(arguments))
        assert found is not None, line
        command = found

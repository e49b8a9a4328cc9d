"""The command line in tests: run in this process, or only parsed."""

import shlex

import click
import pytest
import typer

from fedoptax.cli.main import app, main

SMALL = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3", "--rounds", "4"]


def fedoptax(*arguments: object) -> int:
    """Run a command in this process and return its exit status."""
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    return int(stopped.value.code or 0)


def parse(line: str) -> click.Context:
    """Parse `fedoptax ...` without running it: each command, option and type of value must exist.

    Raises:
      click.UsageError: one does not.
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

"""The command line in tests: run in this process, or only parsed."""

import shlex
from collections.abc import Callable
from typing import Any

import click
import pytest
import typer

from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli import runs, setup
from fedoptax.cli.main import app, main

SMALL = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3", "--rounds", "4"]


made: dict[str, Any] = {}


def made_once(make: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """`make`, which gives what it made before for the same arguments, if the first is one of these names."""

    def give(name: str, *more: Any, **options: Any) -> Any:
        key = repr((make.__name__, name, more, sorted(options.items())))
        if name not in names:
            return make(name, *more, **options)
        if key not in made:
            made[key] = make(name, *more, **options)
        return made[key]

    return give


def fedoptax(*arguments: object) -> int:
    """Run a command in this process and return its exit status; commands share tasks, algorithms and so programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "load_task", made_once(setup.load_task, "digits", "quadratic", "synthetic"))
        patch.setattr(runs, "build", made_once(runs.build, *ALGORITHMS))
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
        _, command, arguments = command.resolve_command(context, list(arguments))

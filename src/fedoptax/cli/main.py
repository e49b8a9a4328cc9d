"""The command line: its commands, and the exit status of errors.

The modules that do the work import JAX, which takes seconds, so each is imported when its command runs.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar, get_type_hints

import click
import typer
import typer.core

from fedoptax import __version__
from fedoptax._progress import status
from fedoptax.cli import options
from fedoptax.errors import RunError, UsageError, shorten
from fedoptax.experiments.signals import terminable

# else typer 0.20 writes [default: 1] as \[default: 1] for rich, which does not print our help
typer.core.HAS_RICH = False


T = TypeVar("T")
Load = Callable[[], Callable[[T], None]]


def command(group: typer.Typer, name: str, form: type[T]) -> Callable[[Load[T]], None]:
    """Add a command whose options are the fields of `form`; the decorated function imports what does its work."""

    def add(load: Load[T]) -> None:
        def work(**values: Any) -> None:
            with status("starting"):
                function = load()
            function(form(**values))

        hints, own = get_type_hints(form), inspect.get_annotations(form)
        parameters = [
            inspect.Parameter(
                of.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=of.default_factory(),  # type: ignore[operator]  # `option` makes one
                annotation=Annotated[hints[of.name], of.metadata["parameter"]],
            )
            for of in sorted(fields(form), key=lambda of: of.name not in own)  # type: ignore[arg-type]
        ]
        work.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        work.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        group.command(name, help=inspect.getdoc(form))(work)

    return add


def show_help(context: typer.Context) -> None:
    """Show the help of a group of commands that is given alone."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def show_version_or_help(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Show what `fedoptax` alone shows."""
    if version:
        print(f"fedoptax {__version__}")
    else:
        show_help(context)


app = typer.Typer(
    callback=show_version_or_help,
    help="Adaptive federated optimization: run, compare and report federated optimizers on real data.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data, deploy = (
    typer.Typer(callback=show_help, invoke_without_command=True, help=help, rich_markup_mode=None)
    for help in (
        "Fetch and check data sets, and show partitions.",
        "Run an algorithm on a real network, through Flower.",
    )
)
app.add_typer(data, name="data")
app.add_typer(deploy, name="deploy")


@command(app, "run", options.Run)
def _run() -> Callable[[options.Run], None]:
    from fedoptax.cli.run import run

    return run


@command(app, "compare", options.Compare)
def _compare() -> Callable[[options.Compare], None]:
    from fedoptax.cli.compare import compare

    return compare


@command(app, "tune", options.Tune)
def _tune() -> Callable[[options.Tune], None]:
    from fedoptax.cli.tune import tune

    return tune


@command(app, "resume", options.Resume)
def _resume() -> Callable[[options.Resume], None]:
    from fedoptax.cli.resume import resume

    return resume


@command(app, "report", options.Report)
def _report() -> Callable[[options.Report], None]:
    from fedoptax.cli.report import report

    return report


@command(app, "list", options.List)
def _list() -> Callable[[options.List], None]:
    from fedoptax.cli.listing import list_names

    return list_names


@command(app, "bytes", options.Bytes)
def _bytes() -> Callable[[options.Bytes], None]:
    from fedoptax.cli.listing import show_bytes

    return show_bytes


@command(data, "fetch", options.Fetch)
def _fetch() -> Callable[[options.Fetch], None]:
    from fedoptax.cli.data import fetch

    return fetch


@command(data, "check", options.Check)
def _check() -> Callable[[options.Check], None]:
    from fedoptax.cli.data import check

    return check


@command(data, "partition", options.Partition)
def _partition() -> Callable[[options.Partition], None]:
    from fedoptax.cli.partition import show_partition

    return show_partition


@command(deploy, "init", options.Init)
def _init() -> Callable[[options.Init], None]:
    _check_flower()
    from fedoptax.cli.deploy import init

    return init


@command(deploy, "local", options.Local)
def _local() -> Callable[[options.Local], None]:
    _check_flower()
    from fedoptax.cli.deploy import local

    return local


def _check_flower() -> None:
    if find_spec("flwr") is None:
        raise UsageError("deploy needs Flower: pip install 'fedoptax[flower]'")


def main(arguments: list[str] | None = None) -> None:
    """Run the console command.

    Its status is 0, 1 (it failed), 2 (wrong arguments), 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP); errors are one
    line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    with terminable() as signal:
        try:
            status = app(args=given, prog_name="fedoptax", standalone_mode=False) or 0
            message = "interrupted"  # Typer returns 130 then
        except Exception as error:
            message, status = _describe(error)
        if status:
            print(f"fedoptax: {shorten(' '.join(message.split()), 2000)}", file=sys.stderr)
        sys.exit(128 + signal() if status == 130 and signal() else status)


def _describe(error: Exception) -> tuple[str, int]:
    """Return the message of an error, and its exit status."""
    if isinstance(error, UsageError | RunError):
        return str(error), error.status
    if isinstance(error, click.ClickException):  # of the argument parser
        return error.format_message(), 2
    if isinstance(error, OSError) and error.filename:
        return f"'{error.filename}': {error.strerror}", 1
    if os.environ.get("FEDOPTAX_DEBUG"):
        raise error
    return f"{type(error).__name__}: {error} (FEDOPTAX_DEBUG=1 shows where)", 1


if __name__ == "__main__":
    main()

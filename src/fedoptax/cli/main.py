"""The command line: its commands, and the exit status of errors.

The modules that do the work import JAX, which takes seconds, so `fedoptax.cli` imports each when its command runs.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Annotated, Any, TypeVar, get_type_hints

import click
import typer
import typer.core
from typer.models import OptionInfo

from fedoptax import __version__, cli
from fedoptax._progress import status
from fedoptax.cli import options
from fedoptax.errors import RunError, UsageError, shorten
from fedoptax.experiments.signals import terminable

# else typer 0.20 writes [default: 1] as \[default: 1] for rich, which does not print our help
typer.core.HAS_RICH = False


Form = TypeVar("Form")


def add_command(group: typer.Typer, name: str, form: type[Form], load: Callable[[], Callable[[Form], None]]) -> None:
    """Add a command whose options are the fields of `form`; `load` imports the function that does its work."""

    def work(**values: Any) -> None:
        if group is deploy and find_spec("flwr") is None:
            raise UsageError("deploy needs Flower: pip install 'fedoptax[flower]'")
        with status("starting"):
            function = load()
        function(form(**values))

    hints, own = get_type_hints(form), inspect.get_annotations(form)
    parameters = []
    for of in sorted(fields(form), key=lambda of: of.name not in own):  # type: ignore[arg-type]
        about, default = of.metadata["parameter"], of.default_factory()  # type: ignore[operator]  # `option` makes one
        if isinstance(about, OptionInfo) and not about.param_decls:  # else a flag would have a `--no-` too
            about.param_decls = (f"--{of.name.rstrip('_').replace('_', '-')}",)
        kind, annotation = inspect.Parameter.KEYWORD_ONLY, Annotated[hints[of.name], about]
        parameters.append(inspect.Parameter(of.name, kind, default=default, annotation=annotation))
    work.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    work.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    group.command(name, help=inspect.getdoc(form))(work)


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
add_command(app, "run", options.Run, lambda: cli.run.run)
add_command(app, "compare", options.Compare, lambda: cli.many_runs.compare)
add_command(app, "tune", options.Tune, lambda: cli.many_runs.tune)
add_command(app, "resume", options.Resume, lambda: cli.resume.resume)
add_command(app, "predict", options.Predict, lambda: cli.predict.predict)
add_command(app, "export", options.Export, lambda: cli.predict.export)
add_command(app, "report", options.Report, lambda: cli.report.report)
add_command(app, "list", options.List, lambda: cli.listing.list_names)
add_command(app, "bytes", options.Bytes, lambda: cli.listing.show_bytes)
add_command(data, "fetch", options.Fetch, lambda: cli.data.fetch)
add_command(data, "check", options.Check, lambda: cli.data.check)
add_command(data, "partition", options.Partition, lambda: cli.data.partition)
add_command(deploy, "init", options.Init, lambda: cli.deploy.init)
add_command(deploy, "add-node", options.AddNode, lambda: cli.deploy.add_node)
add_command(deploy, "local", options.Local, lambda: cli.deploy.local)


def main(arguments: list[str] | None = None) -> None:
    """Run the console command.

    Its status is 0, 1 (it failed), 2 (wrong arguments), 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP); errors are one
    line.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal's encoding lacks is escaped
    with terminable() as signal:
        try:
            status = app(args=arguments, prog_name="fedoptax", standalone_mode=False) or 0
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
        return re.sub(r"( Did you mean .+?\?)\1", r"\1", error.format_message()), 2  # Click and Typer both suggest
    if isinstance(error, OSError) and error.filename:
        return f"'{error.filename}': {error.strerror}", 1
    if os.environ.get("FEDOPTAX_DEBUG"):
        raise error
    return f"{type(error).__name__}: {error} (FEDOPTAX_DEBUG=1 shows where)", 1


if __name__ == "__main__":
    main()

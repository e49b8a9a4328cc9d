"""The command line: its commands, and the exit status of errors.

The modules that do the work import JAX, which takes seconds, so each is imported when its command runs.
"""

import inspect
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Annotated, Any, get_origin

import click
import typer
import typer.core

from fedoptax import __version__
from fedoptax._progress import status
from fedoptax.cli import options
from fedoptax.cli.options import Parameter, ProcessOptions, parameters_of, read_form
from fedoptax.engine.options import Option
from fedoptax.errors import RunError, UsageError, shorten
from fedoptax.experiments.signals import terminable

# else typer 0.20 writes [default: 1] as \[default: 1] for rich, which does not print our help
typer.core.HAS_RICH = False

PANEL = "rich_help_panel"
GROUPS = ("Data", "Model", "Algorithm", "Rounds", "Search", "Evaluation", "Network", "Hardware", "Output")
"""The headings of a command's options in `--help`, in their order."""


class Command(typer.core.TyperCommand):
    """A command whose `--help` shows its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments and then each group of options."""
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *GROUPS)}
        for parameter in self.get_params(ctx):
            group = "Arguments" if isinstance(parameter, click.Argument) else getattr(parameter, PANEL, None)
            if record := parameter.get_help_record(ctx):
                rows[group or "Output"].append(record)
        for name, records in rows.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def add_command(group: typer.Typer, name: str, form: Any, function: str) -> None:
    """Add a command whose parameters are the fields of `form`; `function`, MODULE:NAME of this room, does its work."""
    parameters = parameters_of(form)
    declared = {key.rstrip("_"): one.about for key, one in parameters.items() if isinstance(one.about, Option)}
    flags = {key: about.flags[-1] if about.flags else f"--{key.replace('_', '-')}" for key, about in declared.items()}

    def work(**values: Any) -> None:
        if group is deploy and find_spec("flwr") is None:
            raise UsageError("deploy needs Flower: pip install 'fedoptax[flower]'")
        try:
            options = read_form(form, values)
            if isinstance(options, ProcessOptions):
                join_processes(options)
            with status("starting"):
                module, _, action = function.partition(":")
                run = getattr(import_module(f"fedoptax.cli.{module}"), action)
            run(options)
        except UsageError as error:
            raise UsageError(_with_dashes(str(error), flags)) from error

    inspected = [_inspected(*item, flags) for item in parameters.items()]
    work.__signature__ = inspect.Signature(inspected)  # type: ignore[attr-defined]  # typer reads it
    work.__annotations__ = {one.name: one.annotation for one in inspected}
    help = str(inspect.getdoc(form))
    group.command(name, cls=Command, help=help, short_help=help.splitlines()[0])(work)


def join_processes(options: ProcessOptions) -> None:
    """Connect this process to the others of a distributed run, if it is one of several."""
    place = options.coordinator, options.processes, options.process
    if options.distributed:
        from fedoptax.distributed import join

        join(*place)
    elif any(value is not None for value in place):
        raise UsageError("coordinator, --processes and --process need --distributed")


def _inspected(name: str, parameter: Parameter, flags: Mapping[str, str]) -> inspect.Parameter:
    kind, default, about = parameter
    if get_origin(kind) is dict:
        kind, default = list[str], []
    if isinstance(about, Option):
        text = about.default_text or ("" if default in (None, [], ...) or default is False else f"{default}")
        help = _with_dashes(about.help, flags) + (f" [default: {text}]" if text else "")
        names = about.flags or (flags[name.rstrip("_")],)  # else a flag would have a `--no-` too
        panel: Any = {PANEL: about.group}
        info: Any = typer.Option(*names, help=help, metavar=about.metavar, show_default=False, **panel)
    else:
        info = typer.Argument(help=about)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _with_dashes(message: str, flags: Mapping[str, str]) -> str:
    """Write names of options in a text as flags: the first word, and words with an underscore or in backquotes."""

    def write(match: re.Match[str]) -> str:
        word = match[0].strip("`")
        is_name = match.start() == 0 or "_" in word or word != match[0]
        return flags.get(word, match[0]) if is_name else match[0]

    return re.sub(r"'[^']*'|`[a-z_]+`|(?<![-\w.])[a-z_]+\b(?!=)", write, message)


def show_help(context: typer.Context) -> None:
    """Show the help of a group of commands without a command."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def show_version_or_help(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Show the help of `fedoptax` without a command."""
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
    for help in ("Fetch and check data sets, and show partitions.", "Run an algorithm on a network, through Flower.")
)
app.add_typer(data, name="data")
app.add_typer(deploy, name="deploy")
add_command(app, "run", options.RunForm, "runs:run")
add_command(app, "compare", options.CompareForm, "searches:compare")
add_command(app, "tune", options.TuneForm, "searches:tune")
add_command(app, "resume", options.ResumeForm, "runs:resume")
add_command(app, "predict", options.PredictForm, "predict:predict")
add_command(app, "export", options.ExportForm, "predict:export")
add_command(app, "report", options.ReportForm, "report:report")
add_command(app, "list", options.ListForm, "listing:list_names")
add_command(app, "bytes", options.BytesForm, "sizes:show_bytes")
add_command(data, "fetch", options.FetchForm, "data:fetch")
add_command(data, "check", options.CheckForm, "data:check")
add_command(data, "describe", options.DescribeForm, "data:describe")
add_command(data, "partition", options.PartitionForm, "data:partition")
add_command(deploy, "init", options.InitForm, "deploy:init")
add_command(deploy, "add-node", options.AddNodeForm, "deploy:add_node")
add_command(deploy, "local", options.LocalForm, "deploy:local")
add_command(deploy, "status", options.DeploymentStatusForm, "deploy:show_status")


def main(arguments: list[str] | None = None) -> None:
    """Run the console command: status 0, 1 (failed), 2 (wrong arguments), 130 (Ctrl-C), 143 (SIGTERM), 129 (SIGHUP)."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters missing from the terminal's encoding are escaped
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
    if isinstance(error, UsageError | RunError):
        return str(error), error.status
    if isinstance(error, click.NoSuchOption) and re.fullmatch("--(client[-_]|server[-_])?lr|--tau", error.option_name):
        name = {"--lr": "client_lr"}.get(error.option_name, error.option_name[2:].replace("-", "_"))
        return f"{error.option_name} is a hyper-parameter: write --set {name}=VALUE", 2
    if isinstance(error, click.ClickException):  # of the argument parser
        return re.sub(r"( Did you mean .+?\?)\1", r"\1", error.format_message()), 2  # Click and Typer both suggest
    if isinstance(error, OSError) and error.filename:
        return f"'{error.filename}': {error.strerror}", 1
    if os.environ.get("FEDOPTAX_DEBUG"):
        raise error
    return f"{type(error).__name__}: {error} (FEDOPTAX_DEBUG=1 shows where)", 1


if __name__ == "__main__":
    main()

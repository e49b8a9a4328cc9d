"""The command line: its commands, and the exit status of errors.

The modules that do the work import JAX, which takes seconds, so each is imported when its command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from fedoptax import __version__
from fedoptax._progress import status
from fedoptax.cli.data import app as data_app
from fedoptax.cli.deploy import deploy_app
from fedoptax.cli.options import Bytes, Compare, Json, Resume, Run, Tune, command
from fedoptax.errors import RunError, Stopped, UsageError, check_number, shorten
from fedoptax.experiments.signals import terminable

# else typer 0.20 writes [default: 1] as \[default: 1] for rich, which does not print our help
typer.core.HAS_RICH = False

app = typer.Typer(
    name="fedoptax",
    help="Adaptive federated optimization: run, compare and report federated optimizers on real data.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


class Listing(StrEnum):
    """What `fedoptax list` can list."""

    tasks = "tasks"
    algorithms = "algorithms"
    presets = "presets"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Adaptive federated optimization: run, compare and report federated optimizers on real data."""
    if version:
        print(f"fedoptax {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@command(app)
def run(given: Run) -> None:
    """Run one algorithm on one task.

    Example: fedoptax run --task digits --algorithm fedadam --set server_lr=0.03 --rounds 100 --out runs/a
    """
    with status("starting"):
        from fedoptax.cli import run as work
    work.run(given)


@command(app)
def compare(given: Compare) -> None:
    """Run several algorithms on one task over seeds and write a report.

    Example: fedoptax compare --task digits --algorithms fedavg,fedadam,fedyogi --seeds 3 --out runs/b
    """
    with status("starting"):
        from fedoptax.cli import compare as work
    work.compare(given)


@command(app)
def tune(given: Tune) -> None:
    """Search for an algorithm's hyper-parameters, all points on one compilation, and write a report with heat maps.

    Example: fedoptax tune --algorithm fedadam --grid client_lr=1e-3..1 --grid server_lr=1e-3..1 --out runs/c
    """
    with status("starting"):
        from fedoptax.cli import tune as work
    work.tune(given)


@command(app)
def resume(given: Resume) -> None:
    """Continue a run, a comparison or a search that was interrupted.

    Example: fedoptax resume runs/a
    """
    with status("starting"):
        from fedoptax.cli import resume as work
    work.resume(given)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder with one or more runs in it.")],
    out: Annotated[Path | None, typer.Option(help="Where to write. Default: the folder itself.")] = None,
    target: Annotated[float | None, typer.Option(help="Value of the metric for `rounds to target`.")] = None,
) -> None:
    """Write one HTML page, PNG figures, and CSV and Markdown tables about the runs in a folder.

    Example: fedoptax report runs/b
    """
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is not a folder with runs")
    if target is not None:
        check_number("--target", target)
    with status("writing the report"):
        from fedoptax.report import write_report

        page = write_report(folder, out, target)
    print(f"report: {page}")


@app.command("list")
def list_(what: Annotated[Listing, typer.Argument(help="tasks, algorithms or presets.")], json: Json = False) -> None:
    """List the tasks, the algorithms, or the papers' settings of the tasks.

    Example: fedoptax list algorithms --json
    """
    with status("starting"):
        from fedoptax.cli import listing as work
    work.list_names(what.value, json)


@command(app, "bytes")
def bytes_(given: Bytes) -> None:
    """Show what each algorithm sends: bytes down and up, per client, per round and in a whole run.

    Example: fedoptax bytes --task digits --algorithm fedadam
    """
    with status("starting"):
        from fedoptax.cli import listing as work
    work.show_bytes(given)


def main(arguments: list[str] | None = None) -> None:
    """Run the console command.

    Its status is 0, 1 (it failed), 2 (wrong arguments), 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP); errors are one
    line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    with terminable() as signal:
        status = _exit_status(lambda: app(args=given, prog_name="fedoptax", standalone_mode=False))
        sys.exit(128 + signal() if status == 130 and signal() else status)


def _exit_status(work: Callable[[], Any]) -> int:
    try:
        status = work()
        return _fail("interrupted", 130) if status == 130 else 0  # what typer makes of Ctrl-C
    except UsageError as error:
        return _fail(error, 2)
    except Stopped as error:
        return _fail(error, error.status)
    except RunError as error:
        return _fail(error, 1)
    except typer.Exit as error:
        return error.exit_code
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except MemoryError:
        return _fail("not enough memory", 1)
    except OSError as error:
        return _fail(f"'{error.filename}': {error.strerror}" if error.filename else error, 1)
    except Exception as error:
        if hasattr(error, "format_message"):  # of the argument parser
            return _fail(error.format_message(), 2)
        if os.environ.get("FEDOPTAX_DEBUG"):
            raise
        text = str(error).strip().splitlines() or [""]
        return _fail(f"{type(error).__name__}: {text[0]} (FEDOPTAX_DEBUG=1 shows where)", 1)


def _fail(message: object, status: int) -> int:
    print(f"fedoptax: {shorten(' '.join(str(message).split()), 2000)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()

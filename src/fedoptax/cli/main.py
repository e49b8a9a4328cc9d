"""The command line. It parses and prints; the work is done by `fedoptax.cli.run`, imported when a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from fedoptax import __version__
from fedoptax.cli.data import app as data_app
from fedoptax.cli.deploy import deploy_app
from fedoptax.cli.garbage import import_kept, leave_at_exit
from fedoptax.cli.options import (
    PROCESSES,
    RUN,
    CheckpointEvery,
    CohortSize,
    DataDir,
    Json,
    Mesh,
    Model,
    NumClients,
    Rounds,
    Set,
    Task,
    taking,
)
from fedoptax.cli.streams import forgiving_streams
from fedoptax.errors import LONGEST, RunError, Stopped, UsageError, brief
from fedoptax.experiments.signals import ended_at_once, terminable
from fedoptax.supervision import attach, forget_the_others, is_worker, leave, loss_of_contact, supervise

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


Algorithm = Annotated[str, typer.Option(help="Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.")]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="NAME=VALUES",
        help="Values by commas, or LOW..HIGH in half decades (also :decade, :quarter). Default: the rates, 1e-3..10.",
    ),
]
Select = Annotated[
    str | None, typer.Option(help="What ranks points: train_loss (default), or a metric such as test_accuracy.")
]
Last = Annotated[int | None, typer.Option(help="Its mean over so many last rounds. Default: 100, at most a tenth.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Adaptive federated optimization: run, compare and report federated optimizers on real data."""
    if version:
        print(f"fedoptax {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
@taking({**RUN, **PROCESSES})
def run(
    task: Task = "digits",
    algorithm: Algorithm = "fedadam",
    seed: Annotated[int, typer.Option(help="Seed of initialisation, cohorts and data order.")] = 0,
    **options: Any,
) -> None:
    """Run one algorithm on one task.

    Example: fedoptax run --task digits --algorithm fedadam --set server_lr=0.03 --rounds 100 --out runs/a
    """
    _read_ahead(task, options)
    load_commands().run(task=task, algorithm=algorithm, seed=seed, **_renamed(options))


@app.command()
@taking(RUN)
def compare(
    task: Task = "digits",
    algorithms: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "fedavg,fedadam",
    seeds: Annotated[int, typer.Option(help="Seeds 0 ... n-1, each run by every algorithm.")] = 3,
    tune: Annotated[
        bool, typer.Option("--tune", help="First search every algorithm's rates, with the same number of points.")
    ] = False,
    budget: Annotated[int | None, typer.Option(help="Points for each algorithm, with --tune. Default: 16.")] = None,
    grid: Grid = None,
    select: Select = None,
    last: Last = None,
    **options: Any,
) -> None:
    """Run several algorithms on one task over seeds and write a report.

    Example: fedoptax compare --task digits --algorithms fedavg,fedadam,fedyogi --seeds 3 --out runs/b
    """
    own = {"task": task, "algorithms": algorithms, "seeds": seeds}
    given: dict[str, Any] = {"budget": budget, "grid": grid, "select": select, "last": last}
    given = {name: value for name, value in given.items() if value is not None}
    if given and not tune:
        raise UsageError(f"--{next(iter(given))}: given without --tune, allowed is with it")
    search = {"budget": 16, "grid": None, "select": "train_loss", "last": None} | given if tune else None
    _read_ahead(task, options)
    load_commands().compare(**own, search=search, **_renamed(options))


@app.command()
@taking(RUN)
def tune(
    task: Task = "digits",
    algorithm: Algorithm = "fedadam",
    grid: Grid = None,
    select: Select = None,
    last: Last = None,
    search: Annotated[str, typer.Option(help="grid, or optuna (extra `optuna`) within the grid's ranges.")] = "grid",
    trials: Annotated[int | None, typer.Option(help="Points of --search optuna. Default: 25.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialisation, cohorts and data order, the same for all.")] = 0,
    **options: Any,
) -> None:
    """Search for an algorithm's hyper-parameters, all points on one compilation, and write a report with heat maps.

    Example: fedoptax tune --algorithm fedadam --grid client_lr=1e-3..1 --grid server_lr=1e-3..1 --out runs/c
    """
    own = {"task": task, "algorithm": algorithm, "grid": grid, "select": select or "train_loss", "last": last}
    own |= {"search": search, "trials": trials, "seed": seed}
    _read_ahead(task, options)
    load_commands("tune_commands").tune(**own, **_renamed(options))


@app.command()
@taking(PROCESSES)
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a comparison.")],
    rounds: Annotated[int | None, typer.Option(help="A new total of rounds, for a run. Default: as begun.")] = None,
    data_dir: DataDir = None,
    checkpoint_every: CheckpointEvery = None,
    mesh: Mesh = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="The folder is your own: follow its links, call the MODULE:FUNCTION it names."),
    ] = False,
    **options: Any,
) -> None:
    """Continue a run or a comparison that was interrupted.

    Example: fedoptax resume runs/a
    """
    load_commands().resume(folder, rounds, data_dir, checkpoint_every, trust, mesh, options)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder with one or more runs in it.")],
    out: Annotated[Path | None, typer.Option(help="Where to write. Default: the folder itself.")] = None,
    target: Annotated[float | None, typer.Option(help="Value of the metric for `rounds to target`.")] = None,
) -> None:
    """Write one HTML page, PNG figures, and CSV and Markdown tables about the runs in a folder.

    Example: fedoptax report runs/b
    """
    commands = load_commands()
    commands.report(folder, out, target)


@app.command("list")
def list_(
    what: Annotated[Listing, typer.Argument(help="tasks, algorithms or presets.")],
    json: Json = False,
) -> None:
    """List the tasks, the algorithms, or the papers' settings of the tasks.

    Example: fedoptax list algorithms --json
    """
    commands = load_commands("listing")
    commands.list_names(what.value, json)


@app.command("bytes")
def bytes_(
    task: Task = "digits",
    algorithms: Annotated[
        str, typer.Option("--algorithm", "--algorithms", help="Names separated by commas, or all.")
    ] = "all",
    model: Model = None,
    num_clients: NumClients = None,
    data_dir: DataDir = None,
    set_: Set = None,
    cohort_size: CohortSize = None,
    rounds: Rounds = None,
    json: Json = False,
) -> None:
    """Show what each algorithm sends: bytes down and up, for a client, a round and a whole run.

    Example: fedoptax bytes --task digits --algorithm fedadam
    """
    commands = load_commands("listing")
    commands.show_bytes(task, algorithms, model, num_clients, data_dir, set_ or [], cohort_size, rounds, json)


def load_commands(name: str = "commands") -> Any:
    """The module that does the work; importing it, with JAX, takes seconds."""
    from fedoptax._progress import status

    with status("starting"), ended_at_once():
        return import_kept(f"fedoptax.{name}")


def _read_ahead(task: str, options: Mapping[str, Any]) -> None:
    """Begins to read the task's data while the commands are imported, which takes one core."""
    from fedoptax.data.images import read_ahead

    read_ahead(task, options["data_dir"], options["partition"])


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Shared options as the functions in `fedoptax.cli.run` take them."""
    return {("settings" if name == "set_" else name): value for name, value in options.items()}


def main(arguments: list[str] | None = None) -> None:
    """The console command: status 0, 1 (it failed), 2 (wrong arguments), 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP).

    Errors are one line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    forgiving_streams()
    attach()
    leave_at_exit()
    if "--distributed" in given and not is_worker():
        sys.exit(supervise(given))
    with terminable() as signal:
        status = _status(lambda: _command(given))
        status = 128 + signal() if status == 130 and signal() else status
        if is_worker():
            leave(status)
        sys.exit(status)


def _command(arguments: list[str]) -> Any:
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(f"argument: {argument!a} given, allowed is text in UTF-8")
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            raise UsageError(f"argument: {argument!r} given, allowed is one with a value")
    return app(args=arguments, prog_name="fedoptax", standalone_mode=False)


def _status(command: Callable[[], Any]) -> int:
    try:
        status = command()
        if status == 130:  # what the argument parser makes of Ctrl-C
            return _fail("interrupted", 130)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except UsageError as error:
        return _fail(error, 2)
    except Stopped as error:
        return _fail(error, error.status)
    except RunError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        forget_the_others()
        return _fail("interrupted", 130)
    except MemoryError:
        forget_the_others()
        return _fail("not enough memory", 1)
    except SystemExit as stopped:  # other versions of the parser: Ctrl-C (130), and a pipe closed by its reader
        if stopped.code == 130:
            return _fail("interrupted", 130)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        forget_the_others()
        return _fail(f"'{error.filename}': {error.strerror}" if error.filename else error, 1)
    except Exception as error:
        if hasattr(error, "format_message"):  # of the argument parser
            return _fail(error.format_message(), 2)
        forget_the_others()
        if lost := loss_of_contact(error):
            return _fail(lost, 1)
        if os.environ.get("FEDOPTAX_DEBUG"):
            raise
        text = str(error).strip().splitlines() or [""]
        return _fail(f"{type(error).__name__}: {text[0]} (FEDOPTAX_DEBUG=1 shows where)", 1)


def _fail(what: object, status: int) -> int:
    print(f"fedoptax: {brief(' '.join(str(what).split()), 2 * LONGEST)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()

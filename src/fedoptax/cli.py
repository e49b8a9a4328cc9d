"""The command line. It parses and prints; the work is done by `fedoptax.commands`, imported when a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fedoptax import __version__
from fedoptax.cli_options import (
    Aggregate,
    Alpha,
    AlphaFine,
    Augment,
    BatchSize,
    Beta,
    CheckpointEvery,
    Classes,
    ClientColumn,
    ClientStates,
    CohortSize,
    Compress,
    DataDir,
    Devices,
    Engine,
    EvalEvery,
    Examples,
    Exponent,
    Fault,
    ImageSize,
    Json,
    LabelColumn,
    LocalEpochs,
    LocalSteps,
    Model,
    NumClients,
    Out,
    Overwrite,
    Partition,
    PartitionSeed,
    Preset,
    Privacy,
    Rounds,
    Set,
    Shards,
    Sigma,
    Similarity,
    Task,
    TestFraction,
    Weighting,
)
from fedoptax.data_cli import app as data_app
from fedoptax.deploy_cli import deploy_app
from fedoptax.errors import LONGEST, RunError, Stopped, UsageError, brief
from fedoptax.interrupt import ended_at_once, terminable

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


@app.command()
def run(
    task: Task = "digits",
    algorithm: Annotated[
        str, typer.Option(help="Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.")
    ] = "fedadam",
    set_: Set = None,
    preset: Preset = "tuned",
    rounds: Rounds = None,
    cohort_size: CohortSize = None,
    batch_size: BatchSize = None,
    local_epochs: LocalEpochs = None,
    local_steps: LocalSteps = None,
    weighting: Weighting = None,
    eval_every: EvalEvery = None,
    model: Model = None,
    partition: Partition = None,
    alpha: Alpha = None,
    alpha_fine: AlphaFine = None,
    beta: Beta = None,
    classes: Classes = None,
    shards: Shards = None,
    similarity: Similarity = None,
    sigma: Sigma = None,
    exponent: Exponent = None,
    augment: Augment = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    test_fraction: TestFraction = None,
    image_size: ImageSize = None,
    num_clients: NumClients = None,
    devices: Devices = None,
    partition_seed: PartitionSeed = 0,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of initialisation, cohorts and data order.")] = 0,
    client_states: ClientStates = "auto",
    examples: Examples = "auto",
    engine: Engine = "compiled",
    fault: Fault = None,
    aggregate: Aggregate = "mean",
    privacy: Privacy = None,
    compress: Compress = None,
    checkpoint_every: CheckpointEvery = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Run one algorithm on one task.

    Example: fedoptax run --task digits --algorithm fedadam --set server_lr=0.03 --rounds 100 --out runs/a
    """
    commands = load_commands()
    commands.run(**locals_without_commands(locals()))


@app.command()
def compare(
    task: Task = "digits",
    algorithms: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "fedavg,fedadam",
    seeds: Annotated[int, typer.Option(help="Seeds 0 ... n-1, each run by every algorithm.")] = 3,
    set_: Set = None,
    preset: Preset = "tuned",
    rounds: Rounds = None,
    cohort_size: CohortSize = None,
    batch_size: BatchSize = None,
    local_epochs: LocalEpochs = None,
    local_steps: LocalSteps = None,
    weighting: Weighting = None,
    eval_every: EvalEvery = None,
    model: Model = None,
    partition: Partition = None,
    alpha: Alpha = None,
    alpha_fine: AlphaFine = None,
    beta: Beta = None,
    classes: Classes = None,
    shards: Shards = None,
    similarity: Similarity = None,
    sigma: Sigma = None,
    exponent: Exponent = None,
    augment: Augment = None,
    client_column: ClientColumn = None,
    label_column: LabelColumn = None,
    test_fraction: TestFraction = None,
    image_size: ImageSize = None,
    num_clients: NumClients = None,
    devices: Devices = None,
    partition_seed: PartitionSeed = 0,
    data_dir: DataDir = None,
    client_states: ClientStates = "auto",
    examples: Examples = "auto",
    engine: Engine = "compiled",
    fault: Fault = None,
    aggregate: Aggregate = "mean",
    privacy: Privacy = None,
    compress: Compress = None,
    checkpoint_every: CheckpointEvery = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Run several algorithms on one task over seeds and write a report.

    Example: fedoptax compare --task digits --algorithms fedavg,fedadam,fedyogi --seeds 3 --out runs/b
    """
    commands = load_commands()
    commands.compare(**locals_without_commands(locals()))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a comparison.")],
    rounds: Annotated[int | None, typer.Option(help="A new total of rounds, for a run. Default: as begun.")] = None,
    data_dir: DataDir = None,
    checkpoint_every: CheckpointEvery = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="The folder is your own: follow its links, call the MODULE:FUNCTION it names."),
    ] = False,
) -> None:
    """Continue a run or a comparison that was interrupted.

    Example: fedoptax resume runs/a
    """
    commands = load_commands()
    commands.resume(folder, rounds, data_dir, checkpoint_every, trust)


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
    from fedoptax.progress import status

    with status("starting"), ended_at_once():
        return import_module(f"fedoptax.{name}")


def locals_without_commands(names: dict[str, Any]) -> dict[str, Any]:
    """A command's arguments, as given to the function of the same name in `fedoptax.commands`."""
    return {("settings" if name == "set_" else name): value for name, value in names.items() if name != "commands"}


def main(arguments: list[str] | None = None) -> None:
    """The console command: status 0, 1 (it failed), 2 (wrong arguments), 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP).

    Errors are one line.
    """
    with terminable() as signal:
        status = _status(lambda: app(args=arguments, prog_name="fedoptax", standalone_mode=False))
        sys.exit(128 + signal() if status == 130 and signal() else status)


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
        return _fail("interrupted", 130)
    except MemoryError:
        return _fail("not enough memory", 1)
    except SystemExit as stopped:  # other versions of the parser: Ctrl-C (130), and a pipe closed by its reader
        if stopped.code == 130:
            return _fail("interrupted", 130)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"'{error.filename}': {error.strerror}" if error.filename else error, 1)
    except Exception as error:
        if hasattr(error, "format_message"):  # of the argument parser
            return _fail(error.format_message(), 2)
        if os.environ.get("FEDOPTAX_DEBUG"):
            raise
        text = str(error).strip().splitlines() or [""]
        return _fail(f"{type(error).__name__}: {text[0]} (FEDOPTAX_DEBUG=1 shows where)", 1)


def _fail(what: object, status: int) -> int:
    print(f"fedoptax: {brief(' '.join(str(what).split()), 2 * LONGEST)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()

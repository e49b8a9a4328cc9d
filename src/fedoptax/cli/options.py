"""The options that commands share, as dataclasses, and how a command takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from fedoptax.errors import UsageError

Options = TypeVar("Options")

DataDir = Annotated[
    Path | None, typer.Option(help="Folder with one subfolder per data set. Default: $FEDOPTAX_DATA, else the cache.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in --out.")]
Set = Annotated[
    list[str],
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter; ALGORITHM.NAME=VALUE for one algorithm."),
]


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is learned, and how its examples are divided among clients."""

    task: Annotated[str, typer.Option(help="Task, see `fedoptax list tasks`; or file:PATH for your own data.")] = (
        "digits"
    )
    model: Annotated[str | None, typer.Option(help="Model, see `fedoptax list tasks --json`. Default: the task's.")] = (
        None
    )
    partition: Annotated[
        str | None, typer.Option(help="How examples are divided among clients. Default: the task's.")
    ] = None
    alpha: Annotated[
        float | None, typer.Option(help="Dirichlet concentration, > 0; smaller is less iid. Default: 0.3.")
    ] = None
    num_clients: Annotated[int | None, typer.Option(help="Clients in the federation. Default: the task's.")] = None
    client_column: Annotated[str | None, typer.Option(help="Column or array of client ids, for --task file:PATH.")] = (
        None
    )
    label_column: Annotated[str | None, typer.Option(help="Column or array of labels, for --task file:PATH.")] = None
    task_set: Annotated[
        list[str],
        typer.Option(
            "--task-set",
            metavar="NAME=VALUE",
            help="Any other option of the task (see `fedoptax list tasks --json`), such as classes=1 or augment=crop.",
        ),
    ] = field(default_factory=list)
    partition_seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0
    data_dir: DataDir = None

    def task_arguments(self) -> dict[str, Any]:
        """The options of `load_task` that were given, by name; not `seed` and `data_dir`.

        Raises:
          UsageError: `--task-set` has another form, or repeats an option.
        """
        from fedoptax.experiments.build import parse_value

        names = ("model", "partition", "alpha", "num_clients", "client_column", "label_column")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        for name, text in split_pairs("--task-set", self.task_set).items():
            name = name.replace("-", "_")
            if name in given:
                raise UsageError(f"--task-set: {name} is given twice")
            given[name] = parse_value(text)
        return given


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """How rounds are run; None stands for the task's or the algorithm's default."""

    set_: Set = field(default_factory=list)
    preset: Annotated[str, typer.Option(help="Where settings start from: tuned, none, paper or paper:NAME.")] = "tuned"
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. Default: the task's.")] = None
    cohort_size: Annotated[int | None, typer.Option(help="Clients per round. Default: the task's.")] = None
    batch_size: Annotated[int | None, typer.Option(help="Examples per local step. Default: the task's.")] = None
    local_epochs: Annotated[
        int | None, typer.Option(help="Passes of a client over its examples per round. Default: the task's.")
    ] = None
    local_steps: Annotated[int | None, typer.Option(help="Local steps of a client per round, instead of epochs.")] = (
        None
    )
    weighting: Annotated[
        str | None, typer.Option(help="examples or uniform. Default: as in the algorithm's paper.")
    ] = None
    eval_every: Annotated[int | None, typer.Option(help="Rounds between evaluations. Default: the task's.")] = None
    aggregate: Annotated[
        str,
        typer.Option(help="mean, median, trimmed_mean:0.2, norm_clipping:1.0, krum:2 or krum:2,keep=5."),
    ] = "mean"
    privacy: Annotated[
        str | None,
        typer.Option(
            help="Client-level differential privacy, as clip=1.0,noise_multiplier=0.5,delta=1e-5.", metavar="..."
        ),
    ] = None
    compress: Annotated[
        str | None,
        typer.Option(help="Codec of uploads: qsgd:bits=4, topk:fraction=0.01 or sign.", metavar="CODEC"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LearningOptions(TaskOptions, RoundOptions):
    """The options that simulations and deployments share."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How a simulation computes its rounds."""

    fault: Annotated[
        list[str],
        typer.Option(
            "--fault", metavar="NAME=VALUE", help="Failing clients: dropout (a rate), deadline (virtual seconds) ..."
        ),
    ] = field(default_factory=list)
    client_loop: Annotated[
        str, typer.Option(help="loop (a device's clients one after another), vmap (all at once), or auto: the faster.")
    ] = "auto"
    mesh: Annotated[
        int | None, typer.Option(help="Devices (cores of a CPU) that share each round's cohort. Default: all.")
    ] = None
    client_states: Annotated[str, typer.Option(help="Where clients' states live: auto, device or host.")] = "auto"
    examples: Annotated[str, typer.Option(help="Where training examples live: auto, device or stream (from disk).")] = (
        "auto"
    )
    engine: Annotated[str, typer.Option(help="compiled, or eager (plain Python, same result, to debug).")] = "compiled"
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where results go."""

    track: Annotated[
        list[str],
        typer.Option("--track", metavar="NAME", help="Also write for tensorboard, mlflow or wandb (offline)."),
    ] = field(default_factory=list)
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: a new one under runs/.")] = None
    overwrite: Overwrite = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """A run by several processes."""

    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one of several processes of a run, each on its own devices.")
    ] = False
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of process 0. Default: found from Slurm, MPI ...")
    ] = None
    processes: Annotated[int | None, typer.Option(help="Number of processes, likewise.")] = None
    process: Annotated[int | None, typer.Option(help="Number of this process, from 0, likewise.")] = None


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(LearningOptions, EngineOptions, OutputOptions):
    """The options that run, compare and tune share."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search for hyper-parameters takes; None stands for the default."""

    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            metavar="NAME=VALUES",
            help="Values by commas, or LOW..HIGH in half decades (or :decade, :quarter). Default: the rates, 1e-3..10.",
        ),
    ] = field(default_factory=list)
    select: Annotated[
        str | None, typer.Option(help="What ranks points: train_loss (default), or a metric such as test_accuracy.")
    ] = None
    last: Annotated[
        int | None, typer.Option(help="Rounds at the end over which it is averaged. Default: 100, at most a tenth.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Run(ExperimentOptions, ProcessOptions):
    """The options of `fedoptax run`."""

    algorithm: Annotated[str, typer.Option(help="Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.")] = (
        "fedadam"
    )
    seed: Annotated[int, typer.Option(help="Seed of initialisation, cohorts and data order.")] = 0


@dataclass(frozen=True, kw_only=True)
class Compare(ExperimentOptions, SearchOptions):
    """The options of `fedoptax compare`."""

    algorithms: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "fedavg,fedadam"
    seeds: Annotated[int, typer.Option(help="Seeds 0 ... n-1, each run by every algorithm.")] = 3
    tune: Annotated[
        bool, typer.Option("--tune", help="First search every algorithm's rates, with the same number of points.")
    ] = False
    budget: Annotated[int | None, typer.Option(help="Points per algorithm, with --tune. Default: 16.")] = None


@dataclass(frozen=True, kw_only=True)
class Tune(ExperimentOptions, SearchOptions):
    """The options of `fedoptax tune`."""

    algorithm: Annotated[str, typer.Option(help="Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.")] = (
        "fedadam"
    )
    search: Annotated[str, typer.Option(help="grid, or optuna (extra `optuna`) within the grid's ranges.")] = "grid"
    trials: Annotated[int | None, typer.Option(help="Points of --search optuna. Default: 25.")] = None
    seed: Annotated[int, typer.Option(help="Seed of initialisation, cohorts and data order, the same for all.")] = 0


@dataclass(frozen=True, kw_only=True)
class Resume(ProcessOptions):
    """The options of `fedoptax resume`."""

    folder: Annotated[Path, typer.Argument(help="The folder of a run, a comparison or a search.")]
    rounds: Annotated[int | None, typer.Option(help="A new total of rounds, for a run. Default: as begun.")] = None
    data_dir: DataDir = None
    checkpoint_every: Annotated[float | None, typer.Option(help="Seconds between checkpoints. Default: 60.")] = None
    mesh: Annotated[int | None, typer.Option(help="Devices that share each round's cohort. Default: as begun.")] = None


@dataclass(frozen=True, kw_only=True)
class Bytes(TaskOptions):
    """The options of `fedoptax bytes`."""

    algorithms: Annotated[
        str, typer.Option("--algorithm", "--algorithms", help="Names separated by commas, or all.")
    ] = "all"
    set_: Set = field(default_factory=list)
    cohort_size: Annotated[int | None, typer.Option(help="Clients per round. Default: the task's.")] = None
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. Default: the task's.")] = None
    json: Json = False


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[[Options], None]], None]:
    """Add a command to `app` whose options are the fields of its only parameter, a dataclass."""

    def add(work: Callable[[Options], None]) -> None:
        (form,) = (hint for key, hint in get_type_hints(work).items() if key != "return")
        hints = get_type_hints(form, include_extras=True)

        def call(**values: Any) -> None:
            work(form(**values))

        of_fields = {f.name: f for f in fields(form)}
        names = [name for kind in form.__mro__ for name in inspect.get_annotations(kind)]  # its own first
        parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_default_of(of_fields[name]), annotation=hints[name]
            )
            for name in names
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name or work.__name__, help=inspect.getdoc(work))(call)

    return add


def _default_of(of: Any) -> Any:
    if of.default_factory is not MISSING:
        return of.default_factory()
    return inspect.Parameter.empty if of.default is MISSING else of.default


def split_pairs(option: str, texts: list[str]) -> dict[str, str]:
    """`NAME=VALUE` texts of a repeatable option as a dictionary."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"{option} must be NAME=VALUE, got {text!r}")
        if name in pairs:
            raise UsageError(f"{option}: {name} is given twice")
        pairs[name] = value
    return pairs

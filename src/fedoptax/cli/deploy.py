"""`fedoptax deploy init` and `fedoptax deploy local`: an algorithm on a real network, through Flower."""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fedoptax._progress import bar, status
from fedoptax.cli.options import Json, LearningOptions, command
from fedoptax.errors import RunError, Stopped, UsageError, check_int

deploy_app = typer.Typer(help="Run an algorithm on a real network, through Flower.", rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class DeploymentOptions(LearningOptions):
    """What is trained, and how; the app's config has the same names."""

    algorithm: Annotated[str, typer.Option(help="Algorithm, see `fedoptax list algorithms`, or MODULE:FUNCTION.")] = (
        "fedadam"
    )
    seed: Annotated[int, typer.Option(help="Seed of initialisation, cohorts and data order.")] = 0
    quorum: Annotated[float, typer.Option(help="Fraction of the cohort that is enough for a round.")] = 0.5
    round_timeout: Annotated[float, typer.Option(help="Seconds a round waits for replies once it has a quorum.")] = (
        600.0
    )
    wait_limit: Annotated[float, typer.Option(help="Seconds a round waits for a quorum.")] = 600.0
    max_examples: Annotated[int, typer.Option(help="Most examples believed of a client; 0: the task's.")] = 0
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints; 0: after every round.")] = 0.0
    track: Annotated[
        list[str], typer.Option("--track", metavar="NAME", help="Also write for tensorboard, mlflow or wandb.")
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Init(DeploymentOptions):
    """The options of `fedoptax deploy init`."""

    folder: Annotated[Path, typer.Argument(help="A new folder for the app and the keys.")]
    nodes: Annotated[int, typer.Option(help="SuperNodes, one per client: so many keys are made.")] = 4
    host: Annotated[
        list[str],
        typer.Option(help="Name or address of the server, for its certificate. Default: this machine's own."),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Local(DeploymentOptions):
    """The options of `fedoptax deploy local`."""

    nodes: Annotated[
        int | None, typer.Option(help="SuperNodes, one per client. Default: 4, or as many as there are keys.")
    ] = None
    app: Annotated[Path | None, typer.Option(help="A folder by `fedoptax deploy init`. Default: a new one.")] = None
    port: Annotated[int, typer.Option(help="Port of the SuperLink; 0: a free one.")] = 0
    node_port: Annotated[int, typer.Option(help="Port of the first SuperNode; 0: free ones.")] = 0
    start_timeout: Annotated[float, typer.Option(help="Seconds a process may take to start.")] = 120.0
    time_limit: Annotated[float, typer.Option(help="Seconds until all is stopped.")] = 86400.0
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/deployment.")] = None
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None
    json: Json = False


PLACE = ("rounds", "data_dir")
"""The options of a deployment that may also be given when its app is there already."""


@deploy_app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Run an algorithm on a real network, through Flower."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@command(deploy_app)
def init(given: Init) -> None:
    """Write a ready Flower app, with certificates and node keys for a local trial.

    Example: fedoptax deploy init federation --nodes 4 --task digits --algorithm scaffold --set client_lr=0.1
    """
    _need_flower()
    with status("starting"):
        from fedoptax.deploy.app import check_empty, write_app
        from fedoptax.deploy.keys import HOSTS, make_keys, write_keys
    check_empty(given.folder)
    keys = make_keys(check_int("--nodes", given.nodes), given.host or HOSTS)
    write_app(given.folder / "app", _make_deployment(given, given.nodes))
    write_keys(given.folder / "keys", keys)
    print(f"app: {given.folder / 'app'}\nkeys: {given.folder / 'keys'}")
    print(f"try it here with: fedoptax deploy local --app {shlex.quote(str(given.folder))}")


@command(deploy_app)
def local(given: Local) -> None:
    """Run a real federation on this machine: a SuperLink and SuperNodes with TLS and node authentication.

    Example: fedoptax deploy local --nodes 4 --task digits --algorithm fedadam --rounds 5 --out runs/network
    """
    _need_flower()
    with status("starting"):
        from fedoptax._files import read_json
        from fedoptax.deploy.app import check_empty, read_app, write_app
        from fedoptax.deploy.keys import make_keys, write_keys
        from fedoptax.deploy.local import LocalSettings
        from fedoptax.storage.checkpoint import rounds_of
        from fedoptax.storage.folder import prepare
        from fedoptax.trackers import as_trackers
    if given.resume is not None and given.out not in (None, given.resume):
        raise UsageError(f"--out must be the folder that is resumed, got '{given.out}'")
    out = given.resume or given.out or Path("runs") / "deployment"
    default_work = out.with_name(out.name + "-network")
    work = given.app or default_work
    if given.resume is None:
        prepare(out)
    if given.app is None and given.resume is None:
        nodes = check_int("--nodes", 4 if given.nodes is None else given.nodes)
        check_empty(work)
        deployment = _make_deployment(given, nodes)
    else:
        _refuse_changes(given)
        deployment = read_app(work / "app")
        nodes = len(list((work / "keys").glob("node-*.pub")))
        if given.nodes not in (None, nodes):
            raise UsageError(f"--nodes must be {nodes}, the number of keys in '{work / 'keys'}', got {given.nodes}")
    settings = LocalSettings(
        nodes, given.port, given.node_port, given.time_limit, given.start_timeout, data_dir=given.data_dir
    )
    as_trackers(deployment.tracker_names)
    rounds = deployment.rounds if given.rounds is None else given.rounds
    if given.resume is not None:
        config = out / "config.json"
        if given.rounds is None and config.is_file():  # the run may have been made longer than its app says
            rounds = read_json(config).get("rounds", rounds)
        check_int("--rounds", rounds, max(rounds_of(out), default=1))
    if not work.exists():
        write_app(work / "app", deployment)
        write_keys(work / "keys", make_keys(nodes))
    again = f"fedoptax deploy local --resume {shlex.quote(str(out))} --rounds {rounds}"
    again += f" --app {shlex.quote(str(work))}" if work != default_work else ""
    overrides = {"out": str(out.absolute()), "resume": given.resume is not None, "rounds": rounds}
    try:
        _run(work, out, settings, overrides, deployment.algorithm)
    except KeyboardInterrupt:
        raise Stopped(f"stopped after round {_rounds_done(out)} of {rounds}; continue with: {again}") from None
    except RunError as error:
        raise RunError(f"{error} (after round {_rounds_done(out)}; continue with: {again})") from error
    _print_result(out, given.json)


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise UsageError("deploy needs Flower: pip install 'fedoptax[flower]'")


def _make_deployment(given: DeploymentOptions, nodes: int) -> Any:
    """Make the `Deployment` of the command line, checked as server and clients will check it."""
    from fedoptax.cli.setup import choose_hyperparameters, load, paper_options, round_arguments, with_task_defaults
    from fedoptax.deploy.config import Deployment, is_own_function
    from fedoptax.engine.plan import make_plan
    from fedoptax.experiments.build import parse_settings
    from fedoptax.tasks import recipe_of

    if is_own_function(given.task):
        arguments, rounds, task = given.task_arguments(), {"cohort_size": nodes} | round_arguments(given), None
        hyperparameters = parse_settings(given.set_, [given.algorithm])[given.algorithm]
    else:
        arguments, rounds = paper_options(given)
        if "num_clients" in recipe_of(given.task).option_types():
            arguments.setdefault("num_clients", nodes)
        task = load(given, arguments)
        if task.num_clients != nodes:
            raise UsageError(f"--nodes must be {task.num_clients}, the task's number of clients, got {nodes}")
        rounds = with_task_defaults(given.task, task, rounds)
        hyperparameters = choose_hyperparameters(given, [given.algorithm])[given.algorithm]
    names = ("algorithm", "aggregate", "seed", "quorum", "round_timeout", "wait_limit", "max_examples")
    deployment = Deployment(
        task={"name": given.task, "partition_seed": given.partition_seed, **arguments},
        hyperparameters=hyperparameters,
        privacy=given.privacy or "",
        compress=given.compress or "",
        checkpoint_every=given.checkpoint_every,
        track=",".join(given.track),
        **{name: getattr(given, name) for name in names},
        **rounds,
    )
    algorithm = deployment.build_algorithm()
    if task is not None:
        make_plan(deployment, task, algorithm)
    return deployment


def _refuse_changes(given: Local) -> None:
    """Refuse options of the deployment, which its app has already."""
    own = {f.name for f in fields(Local)} - set(Local.__annotations__) - set(PLACE)
    for f in fields(given):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if f.name in own and getattr(given, f.name) != default:
            option = f.name.rstrip("_").replace("_", "-")
            raise UsageError(f"--{option} cannot be given with --app or --resume: it stands in the app's config")


def _run(work: Path, out: Path, settings: Any, overrides: dict[str, Any], label: str) -> None:
    """Run the app in `work` and wait for its end."""
    import tomli_w

    from fedoptax._files import write_atomically
    from fedoptax.deploy.local import LocalFederation, last_words
    from fedoptax.storage.folder import read_summary
    from fedoptax.storage.history import read_lines

    config, log = work / "run-config.toml", work / "run-log.txt"
    write_atomically(config, tomli_w.dumps(overrides).encode())
    with ExitStack() as stack:
        with status("starting a SuperLink and SuperNodes"):
            federation = stack.enter_context(LocalFederation(work, settings))
        update = stack.enter_context(bar(label, overrides["rounds"], _rounds_done(out)))

        def watch() -> None:
            if lines := read_lines(out):
                update(len(lines), f"train_loss {json.loads(lines[-1])['train_loss']:.4g}")

        federation.run(work / "app", config, log, watch)
    summary = read_summary(out)
    if summary.get("status") != "completed":
        raise RunError(summary.get("message") or last_words(log))


def _rounds_done(out: Path) -> int:
    from fedoptax.storage.history import read_lines

    return len(read_lines(out))


def _print_result(out: Path, as_json: bool) -> None:
    from fedoptax.storage.folder import read_summary

    summary = read_summary(out)
    if as_json:
        keys = ("rounds_done", "final", "bytes_down", "bytes_up")
        print(json.dumps({"out": str(out), **{key: summary.get(key) for key in keys}}, indent=1))
        return
    print(", ".join(f"{name} {value:.4g}" for name, value in summary["final"].items() if value is not None))
    print(f"results: {out}")

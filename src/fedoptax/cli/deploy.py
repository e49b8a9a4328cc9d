"""`fedoptax deploy init` and `fedoptax deploy local`: an algorithm on a real network, through Flower."""

import json
import shlex
import sys
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedoptax._files import read_json, write_atomically
from fedoptax._progress import bar, status
from fedoptax.cli.options import AddNode, DeploymentOptions, Init, Local
from fedoptax.cli.printing import print_summary
from fedoptax.cli.setup import choose_hyperparameters, choose_options, load, with_task_defaults
from fedoptax.deploy.app import check_empty, place_node, read_app, write_app
from fedoptax.deploy.config import Deployment, is_own_function, simulation_command
from fedoptax.deploy.keys import describe_keys, describe_node, make_keys, write_keys
from fedoptax.deploy.local import LocalFederation, LocalSettings, last_words
from fedoptax.deploy.proxy import make_proxy
from fedoptax.engine.plan import make_plan
from fedoptax.errors import RunError, Stopped, UsageError, check_int
from fedoptax.storage.checkpoint import least_total
from fedoptax.storage.folder import prepare, read_summary
from fedoptax.storage.history import read_lines
from fedoptax.tasks import recipe_of
from fedoptax.trackers import as_trackers


def init(given: Init) -> None:
    """Write an app and keys."""
    check_empty(given.folder)
    count = len(given.key) or check_int("--nodes", 4 if given.nodes is None else given.nodes)
    if given.nodes not in (None, count):
        raise UsageError(f"--nodes must be {count}, the number of keys, got {given.nodes}")
    keys = make_keys(0 if given.key else count, given.host)
    keys |= {f"node-{partition}.pub": file.read_bytes() for partition, file in enumerate(given.key)}
    deployment = replace(make_deployment(given, count), **describe_keys(keys))
    write_app(given.folder / "app", deployment)
    write_keys(given.folder / "keys", keys)
    write_atomically(given.folder / "nginx.conf", make_proxy().encode())
    for partition, node in deployment.nodes.items():
        print(f"partition {partition}: {node}")
    print(f"app: {given.folder / 'app'}\nkeys: {given.folder / 'keys'}")
    if not given.key:
        print(f"try it here with: fedoptax deploy local --app {shlex.quote(str(given.folder))}")
    _print_simulation(deployment)


def add_node(given: AddNode) -> None:
    """Write a key into the app's table of nodes."""
    public = given.key.read_bytes()
    node = describe_node(public)
    partition = place_node(given.folder / "app", given.partition, node)
    write_atomically(given.folder / "keys" / f"node-{partition}.pub", public)
    print(f"partition {partition}: {node}")


def local(given: Local) -> None:
    """Run an app, which is there or made now, to its end."""
    if given.round is not None and given.resume is None:
        raise UsageError("--round needs --resume, the folder of a run")
    if given.resume is not None and given.out not in (None, given.resume):
        raise UsageError(f"--out must be the folder that is resumed, got '{given.out}'")
    out = given.resume or given.out or Path("runs") / "deployment"
    default_work = out.with_name(out.name + "-network")
    work, is_new = given.app or default_work, given.app is None and given.resume is None
    if given.resume is None:
        prepare(out)
    if is_new:
        check_empty(work)
        nodes = check_int("--nodes", 4 if given.nodes is None else given.nodes)
        deployment = make_deployment(given, nodes)
    else:
        for of in fields(DeploymentOptions):
            if of.name not in ("rounds", "data_dir") and getattr(given, of.name) != getattr(Local(), of.name):
                option = of.name.rstrip("_").replace("_", "-")
                raise UsageError(f"--{option} cannot be given with --app or --resume: it stands in the app's config")
        deployment = read_app(work / "app")
        nodes = len(list((work / "keys").glob("node-*.pub")))
        if given.nodes not in (None, nodes):
            raise UsageError(f"--nodes must be {nodes}, the number of keys in '{work / 'keys'}', got {given.nodes}")
        if not all((work / "keys" / f"node-{partition}").is_file() for partition in range(nodes)):
            raise UsageError(f"'{work / 'keys'}' must hold the private key of every node")
    as_trackers(deployment.tracker_names)
    settings = LocalSettings(nodes, given.port, given.node_port, given.time_limit, given.start_timeout, given.data_dir)
    rounds = deployment.rounds if given.rounds is None else given.rounds
    if given.resume is not None:
        config = out / "config.json"
        if given.rounds is None and config.is_file():  # the run may have been made longer than its app says
            rounds = read_json(config)["rounds"]
        check_int("--rounds", rounds, least_total(out, given.round))
    if is_new:
        keys = make_keys(nodes)
        write_app(work / "app", replace(deployment, **describe_keys(keys)))
        write_keys(work / "keys", keys)
    _print_simulation(replace(deployment, rounds=rounds))
    remedy = f"continue with: fedoptax deploy local --resume {shlex.quote(str(out))} --rounds {rounds}"
    remedy += f" --app {shlex.quote(str(work))}" if work != default_work else ""
    overrides = {"out": str(out.absolute()), "resume": given.resume is not None, "rounds": rounds}
    overrides |= {} if given.round is None else {"resume-round": given.round}
    try:
        _run(work, out, settings, overrides, deployment.algorithm)
    except KeyboardInterrupt:
        raise Stopped(f"stopped after round {len(read_lines(out))} of {rounds}; {remedy}") from None
    except RunError as error:
        raise RunError(f"{error} (after round {len(read_lines(out))}; {remedy})") from error
    print_summary(out, given.json)


def make_deployment(given: DeploymentOptions, nodes: int) -> Deployment:
    """Make the deployment of the command line, checked as server and clients will check it."""
    task_arguments, options = choose_options(given)
    task = None
    if is_own_function(given.task):
        options = {"cohort_size": nodes} | options
    else:
        if "num_clients" in recipe_of(given.task).option_types():
            task_arguments.setdefault("num_clients", nodes)
        task = load(given, task_arguments)
        if task.num_clients != nodes:
            raise UsageError(f"--nodes must be {task.num_clients}, the task's number of clients, got {nodes}")
        options = with_task_defaults(given.task, task, options)
    names = ["algorithm", "quorum", "round_timeout", "wait_limit", "max_examples", "checkpoint_every"]
    names += ["eval_fraction", "eval_min_nodes", "upload_bound", "loss_bound"]
    deployment = Deployment(
        task={"name": given.task, "partition_seed": given.partition_seed, **task_arguments},
        hyperparameters=choose_hyperparameters(given, [given.algorithm])[given.algorithm],
        privacy=given.privacy or "",
        compress=given.compress or "",
        track=",".join(given.track),
        **{name: getattr(given, name) for name in names},
        **options,
    )
    algorithm = deployment.build_algorithm()
    if task is not None:
        make_plan(deployment, task, algorithm, given.algorithm)
    return deployment


def _print_simulation(deployment: Deployment) -> None:
    """Tell the simulation that a deployment equals."""
    if command := simulation_command(deployment):
        print(f"the same in simulation: {command}", file=sys.stderr)


def _run(work: Path, out: Path, settings: LocalSettings, overrides: dict[str, Any], label: str) -> None:
    """Run the app in `work` and wait for its end."""
    config, log, before = work / "run-config.toml", work / "run-log.txt", read_summary(out)
    write_atomically(config, tomli_w.dumps(overrides).encode())
    with ExitStack() as stack:
        with status("starting a SuperLink and SuperNodes"):
            federation = stack.enter_context(LocalFederation(work, settings))
        done, total = len(read_lines(out)), overrides["rounds"]

        def print_round(number: int, note: str) -> None:
            print(f"round {number} of {total}: {note}", file=sys.stderr, flush=True)

        update = stack.enter_context(bar(label, total, done, enabled=None if sys.stderr.isatty() else print_round))

        def watch() -> None:
            nonlocal done
            lines = read_lines(out)
            for number, line in enumerate(lines[done:], start=done + 1):
                row, metric = json.loads(line), read_json(out / "config.json").get("primary_metric")
                shown = [name for name in (metric, "train_loss") if row.get(name) is not None]
                update(number, ", ".join(f"{name} {row[name]:.4g}" for name in shown))
            done = len(lines)  # fewer than before where a round is repeated

        federation.run(work / "app", config, log, watch)
    summary = read_summary(out)
    if summary.get("status") != "completed" or summary == before:  # then the run did not begin
        raise RunError(summary.get("message") or last_words(log))

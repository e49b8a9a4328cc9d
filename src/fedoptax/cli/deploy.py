"""`fedoptax deploy`: an algorithm on a real network, through Flower."""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import tomli_w
from click.core import ParameterSource

from fedoptax._files import read_json, write_atomically
from fedoptax._progress import bar, status
from fedoptax.cli.options import AddNodeForm, DeploymentOptions, DeploymentStatusForm, InitForm, LocalForm, ResumeForm
from fedoptax.cli.printing import print_summary
from fedoptax.cli.setup import choose, load, with_task_defaults
from fedoptax.data.schema import Schema
from fedoptax.deploy.app import check_empty, check_task, place_node, read_app, write_app
from fedoptax.deploy.config import TABLE, Deployment, is_own_function, simulation_command
from fedoptax.deploy.keys import describe_keys, describe_node, make_keys, write_keys
from fedoptax.deploy.local import LocalFederation, last_words
from fedoptax.deploy.proxy import make_proxy
from fedoptax.deploy.status import describe_status, read_status
from fedoptax.deploy.tables import OPTIONS
from fedoptax.engine.plan import make_plan
from fedoptax.errors import RunError, Stopped, UsageError, check_choice, check_int, check_number
from fedoptax.experiments.build import WRAPPERS
from fedoptax.storage.checkpoint import least_total
from fedoptax.storage.folder import prepare, read_summary
from fedoptax.storage.history import read_lines
from fedoptax.tasks import recipe_of
from fedoptax.tasks.recipe import PREFIX, TEXT_PREFIX
from fedoptax.trackers import as_trackers


def init(options: InitForm) -> None:
    """Write an app and keys."""
    check_empty(options.folder)
    count = len(options.key) or check_int("nodes", 4 if options.nodes is None else options.nodes)
    if options.nodes not in (None, count):
        raise UsageError(f"nodes must be {count}, the number of keys, got {options.nodes}")
    _check_files("key", options.key)
    keys = make_keys(0 if options.key else count, options.host)
    keys |= {f"node-{partition}.pub": file.read_bytes() for partition, file in enumerate(options.key)}
    deployment = _write_new(options.folder, make_deployment(options, count), keys)
    write_atomically(options.folder / "nginx.conf", make_proxy().encode())
    for partition, node in deployment.nodes.items():
        print(f"partition {partition}: {node}")
    print(f"app: {options.folder / 'app'}\nkeys: {options.folder / 'keys'}")
    if not options.key:
        more = " --data-file FILE ..., one for each node" if deployment.task["name"] == TABLE else ""
        print(f"try it here with: fedoptax deploy local --app {shlex.quote(str(options.folder))}{more}")
    _print_simulation(deployment)


def add_node(options: AddNodeForm) -> None:
    """Write a key into the app's table of nodes."""
    _check_files("key", [options.key])
    public = options.key.read_bytes()
    node = describe_node(public)
    partition = place_node(options.folder / "app", options.partition, node)
    path = options.folder / "keys" / f"node-{partition}.pub"
    print(f"partition {partition}: {node}")
    if not path.exists():
        print(f"cohort-size is as before; a task that is a function must now have {partition + 1} clients")
    write_atomically(path, public)


def local(options: LocalForm) -> None:
    """Run an existing or a new app to its end."""
    if options.resume_round is not None and options.resume is None:
        raise UsageError("resume_round needs --resume, the folder of a run")
    if options.resume is not None and options.out not in (None, options.resume):
        raise UsageError(f"out must be the folder in --resume, got '{options.out}'")
    out = options.resume or options.out or Path("runs") / "deployment"
    default_work = _work_folder(out)
    work, is_new = options.app or default_work, options.app is None and options.resume is None
    if options.resume is None:
        prepare(out)
    if is_new:
        check_empty(work)
        nodes = len(options.data_file) or check_int("nodes", 4 if options.nodes is None else options.nodes)
        if options.nodes not in (None, nodes):
            raise UsageError(f"nodes must be {nodes}, the number of data files, got {options.nodes}")
        deployment = make_deployment(options, nodes)
    else:
        deployment, nodes = _read_app(options, work)
    as_trackers(deployment.tracker_names)
    files = nodes if deployment.task["name"] == TABLE else 0
    if len(options.data_file) != files:
        what = f"{files} files of deploy local, one for each node" if files else "no file without --schema"
        raise UsageError(f"data_file must name {what}, got {len(options.data_file)}")
    _check_files("data_file", options.data_file)
    ports, limits = (options.port, options.node_port), (options.time_limit, options.start_timeout)
    federation = LocalFederation(work, nodes, *ports, *limits, options.data_dir, options.data_file)
    rounds = options.run.get("rounds", deployment.rounds)
    if options.resume is not None:
        if "rounds" not in options.run and (out / "config.json").is_file():  # which may be more than its app says
            rounds = read_json(out / "config.json")["rounds"]
        check_int("rounds", rounds, least_total(out, options.resume_round))
    if is_new:
        _write_new(work, deployment, make_keys(nodes))
    else:
        check_task(work / "app", nodes)
    _print_simulation(replace(deployment, rounds=rounds))
    remedy = f"continue with: fedoptax deploy local --resume {shlex.quote(str(out))} --rounds {rounds}"
    places = [("app", work if work != default_work else None), ("data-dir", options.data_dir)]
    places += [("data-file", path) for path in options.data_file]
    remedy += "".join(f" --{name} {shlex.quote(str(path))}" for name, path in places if path)
    overrides = {"out": str(out.absolute()), "resume": (out / "config.json").is_file(), "rounds": rounds}
    overrides |= {} if options.resume_round is None else {"resume-round": options.resume_round}
    try:
        _run(federation, out, overrides, deployment.algorithm)
    except KeyboardInterrupt:
        raise Stopped(f"stopped after round {len(read_lines(out))} of {rounds}; {remedy}") from None
    except RunError as error:
        raise RunError(f"{error} (after round {len(read_lines(out))}; {remedy})") from error
    print_summary(out, options.json)


def resume_deployment(options: ResumeForm, changes: Mapping[str, Any]) -> None:
    """Continue a deployment on this machine with changed options."""
    folder = options.folder
    if not _work_folder(folder).is_dir():
        remedy = f"with flwr run and resume=true, or here with fedoptax deploy local --resume {folder} --app FOLDER"
        raise UsageError(f"'{_work_folder(folder)}' is missing: continue {remedy}")
    for name in changes.keys() - {"resume_round", "rounds"}:
        raise UsageError(f"{name} does not apply to a deployment")
    local(LocalForm(resume=folder, resume_round=options.resume_round, run=options.run, data_dir=options.data_dir))


def _with_absolute_paths(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's table for processes that run in other folders."""
    prefix, colon, path = str(task["name"]).partition(":")
    if prefix + colon not in (PREFIX, TEXT_PREFIX):
        return dict(task)
    paths = {"base", "base_adapter", "schema"} | ({"model"} if prefix + colon == TEXT_PREFIX else set())
    absolute = {name: str(Path(task[name]).expanduser().absolute()) for name in paths & task.keys()}
    return {**task, **absolute, "name": f"{prefix}:{Path(path).expanduser().absolute()}"}


def show_status(options: DeploymentStatusForm) -> None:
    """Print the state of a deployment, once or until it ends."""
    while True:
        state = read_status(options.run_folder)
        print(json.dumps(state) if options.json else "\n".join(describe_status(state)), flush=True)
        if not options.watch or state["status"] != "running":
            return
        time.sleep(2)
        print("\x1b[H\x1b[J" if sys.stdout.isatty() else "")


def _read_app(options: LocalForm, work: Path) -> tuple[Deployment, int]:
    """Read an app and the number of its nodes; options that its config has cannot be used."""
    source = click.get_current_context().get_parameter_source
    names = {of.name for of in fields(DeploymentOptions)} | options.run.keys()
    for name in sorted(names - {"rounds", "data_dir"}):
        if source(name) == ParameterSource.COMMANDLINE:
            raise UsageError(f"{name.rstrip('_')} cannot be used with --app or --resume: the app's config sets it")
    keys = work / "keys"
    nodes = len(list(keys.glob("node-*.pub")))
    if options.nodes not in (None, nodes):
        raise UsageError(f"nodes must be {nodes}, the number of keys in '{keys}', got {options.nodes}")
    if not all((keys / f"node-{partition}").is_file() for partition in range(nodes)):
        raise UsageError(f"'{keys}' must have the private key of every node")
    return read_app(work / "app"), nodes


def make_deployment(options: DeploymentOptions, nodes: int) -> Deployment:
    """Make the deployment of the command line, checked as server and clients will check it."""
    name, task = options.algorithm, None
    is_table = options.schema is not None and not options.task.startswith("file:")
    if is_table and options.task != DeploymentOptions().task:
        raise UsageError(f"task cannot be used with the schema of tables at nodes, got {options.task}")
    options = replace(options, task=TABLE) if is_table else options
    settings, task_arguments, run = choose(options, [name])
    if is_table:
        for option in task_arguments:
            check_choice("option of tables at nodes", option, OPTIONS)
        check_number("test_fraction", task_arguments.get("test_fraction", 0), 0, 1)
        task_arguments["schema"] = Schema.read(str(options.schema)).to_toml()
        run = {"eval_fraction": float("asynchronous" not in run)} | run
    if is_own_function(options.task):
        if task_arguments and not is_table:
            raise UsageError(f"{next(iter(task_arguments))} cannot be used with a task that is a function")
        run = {"cohort_size": nodes} | run
    else:
        if "num_clients" in recipe_of(options.task).option_types():
            task_arguments.setdefault("num_clients", nodes)
        task = load(options, task_arguments)
        if task.devices is not None:
            raise UsageError("devices cannot be deployed: nodes hold their own examples")
        if task.num_clients != nodes:
            raise UsageError(f"nodes must be {task.num_clients}, the task's number of clients, got {nodes}")
        run = with_task_defaults(options.task, task, run)
    run |= {name: getattr(options, name) or "" for name in WRAPPERS} | {"track": ",".join(options.trackers)}
    table = _with_absolute_paths({"name": options.task, "partition_seed": options.partition_seed, **task_arguments})
    deployment = Deployment(task=table, algorithm=name, hyperparameters=settings.hyperparameters[name], **run)
    algorithm = deployment.build_algorithm()
    if task is not None:
        make_plan(deployment.run_options, task, algorithm, name)
    return deployment


def _write_new(folder: Path, deployment: Deployment, keys: dict[str, bytes]) -> Deployment:
    """Write an app with its keys, or nothing if its task cannot be built, and return its deployment."""
    deployment = replace(deployment, **describe_keys(keys))
    write_app(folder / "app", deployment)
    try:
        check_task(folder / "app", len(deployment.nodes))
    except UsageError:
        shutil.rmtree(folder)
        raise
    write_keys(folder / "keys", keys)
    return deployment


def _work_folder(out: Path) -> Path:
    """Return where the app and the processes of a run folder are; `out` may be `.`, which has no name of its own."""
    return out.with_name(f"{out.name}-network") if out.name else _work_folder(out.absolute())


def _check_files(name: str, files: Sequence[Path]) -> None:
    if missing := [file for file in files if not file.is_file()]:
        raise UsageError(f"{name} must be a file that exists, got '{missing[0]}'")


def _print_simulation(deployment: Deployment) -> None:
    if command := simulation_command(deployment):
        print(f"the same in simulation: {command}", file=sys.stderr)


def _run(federation: LocalFederation, out: Path, overrides: dict[str, Any], label: str) -> None:
    work, before = federation.work, read_summary(out)
    config, log = work / "run-config.toml", work / "run-log.txt"
    write_atomically(config, tomli_w.dumps(overrides).encode())
    with ExitStack() as stack:
        with status("starting a SuperLink and SuperNodes"):
            stack.enter_context(federation)
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
        raise RunError((summary != before and summary.get("message")) or last_words(log))

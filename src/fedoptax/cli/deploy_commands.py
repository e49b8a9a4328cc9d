"""What `fedoptax deploy init` and `fedoptax deploy local` do."""

from __future__ import annotations

import json as json_
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedoptax._progress import Update, bar, status
from fedoptax.cli.setup import check_measures
from fedoptax.deploy.app_folder import check_empty, read_app, write_app, write_keys
from fedoptax.deploy.config import Deployment, build_task
from fedoptax.deploy.keys import check_hosts
from fedoptax.deploy.local import LocalFederation, LocalSettings
from fedoptax.deploy.resuming import refuse_fewer, rounds_planned
from fedoptax.deploy.toml_text import toml_text
from fedoptax.engine.plan import make_plan
from fedoptax.errors import RunError, Stopped, UsageError, check_int
from fedoptax.experiments.build import parse_settings, parse_value, preset
from fedoptax.storage import folder as storage
from fedoptax.storage.history import read_lines
from fedoptax.tasks import recipe_of
from fedoptax.tasks.recipe import TASK_OPTIONS

NAME = "federation"  # of the app, for Flower
FIELDS = (
    "rounds",
    "cohort_size",
    "batch_size",
    "local_epochs",
    "local_steps",
    "weighting",
    "eval_every",
    "seed",
    "aggregate",
    "privacy",
    "compress",
)
NETWORK = ("quorum", "round_timeout", "wait_limit", "checkpoint_every", "max_examples")


def init(folder: Path, nodes: int, hosts: list[str], data_dir: Path | None, **options: Any) -> None:
    """`fedoptax deploy init`."""
    deployment = _deployment(options, nodes)
    check_empty(folder)
    _check(deployment, nodes, data_dir)
    _write(folder, deployment, nodes, tuple(hosts))
    print(f"app: {folder / 'app'}\nkeys: {folder / 'keys'}")
    print(f"try it here with: fedoptax deploy local --app {shlex.quote(str(folder))}")


def local(
    out: Path | None, app: Path | None, resume: Path | None, json: bool, place: Mapping[str, Any], **options: Any
) -> None:
    """`fedoptax deploy local`."""
    if resume is not None and out not in (None, resume):
        raise UsageError(f"--out: '{out}' given with --resume, allowed is the folder that is resumed")
    target = resume or out or Path("runs") / "deployment"
    work = app or target.with_name(target.name + "-network")
    begin_new = app is None and resume is None
    nodes, data_dir = place["nodes"], place["data_dir"]
    if begin_new:
        nodes = 4 if nodes is None else nodes
        _settings(place, nodes)
        deployment = _deployment(options, nodes)
        check_empty(work)
    else:
        given = [name for name in options if options[name] is not None and name != "rounds"]
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')}: given with --app or --resume, allowed is with a new app")
        deployment = read_app(work / "app")
        found = len(list((work / "keys").glob("node-*.pub")))
        if nodes not in (None, found):
            raise UsageError(f"--nodes: {nodes} given, allowed is the number of keys in '{work / 'keys'}', {found}")
        nodes = found
    settings = _settings(place, nodes)
    if resume is None:
        storage.prepare(target)
    rounds = options.get("rounds")
    if rounds is None:  # not the app's of a run that was made longer
        rounds = deployment.rounds if resume is None else rounds_planned(resume, deployment.rounds)
    check_int("rounds", rounds)
    if resume is not None:
        refuse_fewer(resume, rounds)
    _check(deployment, settings.nodes, data_dir)
    if begin_new:
        _write(work, deployment, settings.nodes, None)
    _run(work, target, settings, rounds, resume is not None, deployment.algorithm)
    _tell(target, json)


def _settings(place: Mapping[str, Any], nodes: int) -> LocalSettings:
    return LocalSettings(**{name: value for name, value in {**place, "nodes": nodes}.items() if value is not None})


def _run(work: Path, target: Path, settings: LocalSettings, rounds: int, resume: bool, label: str) -> None:
    overrides = work / "run-config.toml"
    lines = [f"out = {toml_text(str(target.absolute()))}", f"resume = {str(resume).lower()}", f"rounds = {rounds}"]
    storage.write_atomically(overrides, ("\n".join(lines) + "\n").encode())
    log = work / "run-log.txt"
    log.unlink(missing_ok=True)
    again = f"fedoptax deploy local --resume {shlex.quote(str(target))} --rounds {rounds}"
    if work != target.with_name(target.name + "-network"):
        again += f" --app {shlex.quote(str(work))}"
    try:
        with ExitStack() as stack:
            with status("starting a SuperLink and SuperNodes"):
                federation = stack.enter_context(LocalFederation(work, settings))
            update = stack.enter_context(bar(label, rounds, _rounds_done(target) if resume else 0))
            federation.run(work / "app", overrides, log, _watcher(target, update))
    except KeyboardInterrupt:
        raise Stopped(f"stopped after round {_rounds_done(target)} of {rounds}; continue with: {again}") from None
    summary = storage.read_json(target / "summary.json") if (target / "summary.json").is_file() else {}
    if summary.get("status") != "completed":
        from fedoptax.deploy.local import last_words

        reason = summary.get("message") or last_words(log)
        raise RunError(f"{reason} (after round {_rounds_done(target)}; continue with: {again})")


def _watcher(target: Path, update: Update) -> Callable[[], None]:
    def watch() -> None:
        lines = read_lines(target)
        if lines:
            loss = json_.loads(lines[-1]).get("train_loss")
            update(len(lines), "" if loss is None else f"train_loss {loss:.4g}")

    return watch


def _rounds_done(target: Path) -> int:
    return len(read_lines(target))


def _tell(target: Path, json: bool) -> None:
    summary = storage.read_json(target / "summary.json")
    if json:
        keys = ("rounds_done", "final", "bytes_down", "bytes_up")
        print(json_.dumps({"out": str(target), **{key: summary.get(key) for key in keys}}, indent=1))
        return
    print(", ".join(f"{name} {value:.4g}" for name, value in summary["final"].items() if value is not None))
    print(f"results: {target}")


def _deployment(options: Mapping[str, Any], nodes: int) -> Deployment:
    """The deployment of the command line, with the task's defaults for what is not given."""
    name, algorithm = options["task"] or "digits", options["algorithm"] or "fedadam"
    own_function = ":" in name and not name.startswith("file:")
    recipe = None if own_function else recipe_of(name)
    task: dict[str, Any] = {"name": name}
    for setting in options["task_settings"] or []:
        left, equals, text = setting.partition("=")
        if not equals or left not in (*TASK_OPTIONS, "partition_seed"):
            raise UsageError(f"--task-set: '{setting}' given, allowed is NAME=VALUE with {', '.join(TASK_OPTIONS)}")
        task[left] = parse_value(text)
    if recipe is not None and ("num_clients" in recipe.option_types() or recipe.num_clients):
        task.setdefault("num_clients", nodes)
    chosen = parse_settings(options["settings"] or [], [algorithm])[algorithm]
    hyperparameters = (preset(name, algorithm) | chosen) if recipe is not None else chosen
    defaults = dict(recipe.defaults) if recipe is not None else {}
    check_measures(options)
    given = {field: options[field] for field in (*FIELDS, *NETWORK) if options.get(field) is not None}
    if "local_epochs" in given:
        defaults.pop("local_steps", None)
    if "cohort_size" in defaults:
        defaults["cohort_size"] = min(defaults["cohort_size"], nodes)
    values = {"cohort_size": nodes} | defaults | given
    return Deployment(task=task, algorithm=algorithm, hyperparameters=hyperparameters, **values)


def _check(deployment: Deployment, nodes: int, data_dir: Path | None) -> None:
    """Refuses here what server or clients would refuse."""
    run_options = deployment.options
    algorithm = deployment.build_algorithm()
    if ":" in str(deployment.task["name"]) and not str(deployment.task["name"]).startswith("file:"):
        return  # a function of the app, which is there when it runs
    with status(f"loading {deployment.task['name']}"):
        task = build_task(deployment, data_dir=None if data_dir is None else str(data_dir))
    make_plan(run_options, task, algorithm)
    if task.clients.num_clients != nodes:
        raise UsageError(
            f"--nodes: {nodes} given, allowed is one a client; the task has {task.clients.num_clients} "
            "(see --task-set num_clients=N)"
        )


def _write(folder: Path, deployment: Deployment, nodes: int, hosts: tuple[str, ...] | None) -> None:
    if hosts:
        check_hosts(hosts)  # before anything is there
    write_app(folder / "app", deployment, NAME)
    if hosts:
        write_keys(folder / "keys", nodes, hosts)
    else:
        write_keys(folder / "keys", nodes)

"""Hyper-parameters by task, of `presets.toml`: tuned here, and the papers' own, by name such as `paper:fafed-low`."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, NamedTuple

from fedoptax.errors import UsageError, check_choice
from fedoptax.names import BASELINES


@dataclass(frozen=True)
class PaperSetting:
    """One experiment of a paper; algorithms without an entry have the tuned values of the task."""

    source: str
    convention: str  # that its learning rates belong to
    task: Mapping[str, Any] = field(default_factory=dict)  # options of `load_task`
    run: Mapping[str, Any] = field(default_factory=dict)  # options of `fedoptax.run`
    hyperparameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by algorithm
    name: str = ""
    grid: Mapping[str, str] = field(default_factory=dict)  # the paper's grid, as a user would type it


class Settings(NamedTuple):
    """Hyper-parameters by algorithm, the source of its learning rates, and the paper's setting if any."""

    hyperparameters: dict[str, dict[str, Any]]
    rates: dict[str, str]
    paper: PaperSetting | None


def choose_settings(
    task: str, names: Sequence[str], values: Mapping[str, Any] = {}, preset: str = "tuned", model: str | None = None
) -> Settings:
    """Choose algorithms' hyper-parameters: the `values`, see `by_algorithm`, else those of the paper or the preset."""
    from fedoptax.experiments.build import by_algorithm  # imports JAX, which names of presets do without

    settings = Settings({}, {}, find_setting(task, preset))
    for name, typed in by_algorithm("set", values, names).items():
        start, origin = find_preset(task, name, model)
        if settings.paper is not None and name in settings.paper.hyperparameters:
            start, origin = dict(settings.paper.hyperparameters[name]), f"paper:{settings.paper.name}"
        elif preset == "none":
            start = {}
        settings.hyperparameters[name] = start | typed
        settings.rates[name] = describe_rates(name, start, typed, origin)
    return settings


def find_preset(task: str, algorithm: str, model: str | None = None) -> tuple[dict[str, Any], str]:
    """Return an algorithm's hyper-parameters on a task, and their source.

    They are those tuned here with the model, else with the task's default model, else those of the task's first paper,
    else none. The baselines take FedAvg's client learning rate; a task of the user's starts from the digits' values.
    """
    if algorithm in BASELINES:
        values, origin = find_preset(task, "fedavg", model)
        return {name: value for name, value in values.items() if name == "client_lr"}, origin
    # a task without presets of its own starts from a near one's
    lender = "digits" if ":" in task else "cifar100" if task == "cifar100-coarse" else task
    for key in (f"{task}:{model}", lender):
        if algorithm in PRESETS.get(key, {}):
            return dict(PRESETS[key][algorithm]), f"preset of {key}" if key == lender != task else "preset"
    name, paper = next(iter(PAPERS.get(lender, {}).items()), ("", PaperSetting("", "")))
    return dict(paper.hyperparameters.get(algorithm, {})), f"paper:{name}"


def describe_rates(algorithm: str, values: Collection[str], typed: Collection[str], origin: str) -> str:
    """Say where an algorithm's learning rates come from: the user if typed, else the origin of `values`, else default.

    Of FedAvg with `client_lr` typed that is `"user, preset"`.
    """
    from fedoptax.experiments.build import parameters_of

    rates = [name for name in parameters_of(algorithm) if name in ("client_lr", "server_lr", "lr")]
    origins = ["user" if name in typed else origin if name in values else "default" for name in rates]
    return ", ".join(dict.fromkeys(origins))


def find_setting(task: str, preset: str, argument: str = "preset") -> PaperSetting | None:
    """Return the paper's setting that `paper` or `paper:NAME` means for a task; None for `tuned` and `none`."""
    settings = PAPERS.get(task, {})
    others = ["tuned", "none"] if argument == "preset" else ["NAME=VALUES"]
    allowed = [*others, *(f"paper:{known}" for known in settings), *(["paper"] if settings else [])]
    check_choice(f"{argument} (of task '{task}')", preset, allowed)
    kind, _, name = preset.partition(":")
    return settings[name or next(iter(settings))] if kind == "paper" else None


def find_grid(task: str, preset: str, grid: str, algorithms: Sequence[str]) -> dict[str, str]:
    """Return the grid that `paper` (of the preset, else the task's first) or `paper:NAME` means for some algorithms."""
    from fedoptax.experiments.build import parameters_of

    setting = find_setting(task, preset if grid == "paper" and preset.startswith("paper") else grid, "grid")
    stated, grids = setting.grid if setting else {}, dict[str, str]()
    for name in algorithms:
        values = {key.removeprefix(f"{name}."): text for key, text in stated.items() if text}
        if not (values := {f"{name}.{key}": text for key, text in values.items() if key in parameters_of(name)}):
            raise UsageError(f"grid {grid} of task '{task}' has nothing of {name}")
        grids |= values
    return grids


def _powers(value: Any) -> Any:
    """Return TOML's value with texts such as `10^-0.5` as numbers."""
    if isinstance(value, dict):
        return {name: _powers(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(_powers, value))
    return 10.0 ** float(value[3:]) if isinstance(value, str) and re.fullmatch(r"10\^-?[\d.]+", value) else value


def _columns(table: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return a table's hyper-parameters by task and algorithm; what is no list holds for all tasks, and "" is none."""
    columns: dict[str, dict[str, dict[str, Any]]] = {task: {} for task in table["tasks"]}
    for i, column in enumerate(columns.values()):
        for algorithm in (name for name in table if name != "tasks"):
            cells = {name: row[i] if isinstance(row, list) else row for name, row in table[algorithm].items()}
            if values := {name: cell for name, cell in cells.items() if cell != ""}:
                column[algorithm] = values
    return columns


def _settings(task: str, name: str, stated: Mapping[str, Any]) -> dict[str, PaperSetting]:
    """Return the settings of a table: one, or one for each number of epochs, each in the active reading too."""
    base = _TABLES["bases"][name.partition("-")[0]]
    fields: dict[str, Any] = {key: {**base.get(key, {}), **stated.get(key, {})} for key in ("task", "run", "grid")}
    rates = fields["hyperparameters"] = dict(stated.get("hyperparameters") or base.get("hyperparameters", {}))
    if "table" in base:  # where the rates of Yogi are those of Adam for every task
        rates |= _columns(base["table"])[task]
        rates |= {"fedyogi": rates["fedadam"], "scaffold": rates["fedavg"], "scaffold_adam": rates["fedadam"]}
    note = f"; {stated['note']}" if "note" in stated else ""
    first = PaperSetting(base["source"], stated.get("convention", base["convention"]) + note, **fields)
    settings = {}
    for i, epochs in enumerate(stated.get("epochs", [None])):
        run = first.run if epochs is None else {**first.run, "local_epochs": epochs}
        one = replace(first, run=run, name=f"{name}-{epochs}-epoch{'s'[: epochs > 1]}" if i else name)
        settings[one.name] = one
        if {**base, **stated}.get("active"):
            devices = {"num_clients": run["cohort_size"], "devices": one.task["num_clients"]}
            settings[f"{one.name}-active"] = replace(one, task={**one.task, **devices}, name=f"{one.name}-active")
    return settings


_TABLES = _powers(tomllib.loads(files("fedoptax.experiments").joinpath("presets.toml").read_text(encoding="utf-8")))

PRESETS: dict[str, dict[str, dict[str, Any]]] = _columns(_TABLES["tuned"])
"""Tuned hyper-parameters by task, or task:model, and algorithm."""

PAPERS: dict[str, dict[str, PaperSetting]] = {
    task: {name: one for key, stated in settings.items() for name, one in _settings(task, key, stated).items()}
    for task, settings in _TABLES["papers"].items()
}
"""Paper settings by task and name; the first of a task is what `--preset paper` means."""

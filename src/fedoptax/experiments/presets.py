"""Hyper-parameters by task, of `presets.toml`: those that were tuned here, and the papers' own settings.

A task may have settings of several papers; the first is its `paper`, each can be asked for by name (`paper:fafed-low`).
"""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from fedoptax.errors import UsageError, check_choice
from fedoptax.names import BASELINES


@dataclass(frozen=True)
class PaperSetting:
    """One experiment of a paper: its place there, and the convention that its learning rates belong to.

    With options of `load_task` and of `fedoptax.run`, and hyper-parameters by algorithm; an algorithm that is not named
    keeps what the task has tuned for it. `grid` is what the paper searches, as a user types it.
    """

    source: str
    convention: str
    task: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""
    grid: Mapping[str, str] = field(default_factory=dict)


class Settings(NamedTuple):
    """Hyper-parameters by algorithm, where its learning rates come from, and the paper's setting if asked for."""

    hyperparameters: dict[str, dict[str, Any]]
    rates: dict[str, str]
    paper: PaperSetting | None


def choose_settings(
    task: str,
    algorithms: Sequence[str],
    values: Mapping[str, Any] = MappingProxyType({}),
    preset: str = "tuned",
    model: str | None = None,
) -> Settings:
    """Choose hyper-parameters: the given `values`, see `by_algorithm`, else those of the paper or the task's preset.

    Raises:
      UsageError: a name is unknown.
    """
    paper = find_setting(task, preset)
    from fedoptax.experiments.build import by_algorithm  # imports JAX, which names of presets do without

    chosen = by_algorithm("set", values, algorithms)
    settings = Settings({}, {}, paper)
    for name, typed in chosen.items():
        values, origin = find_preset(task, name, model)
        if paper is not None and name in paper.hyperparameters:
            values, origin = dict(paper.hyperparameters[name]), f"paper:{paper.name}"
        elif preset == "none":
            values = {}
        settings.hyperparameters[name] = values | typed
        settings.rates[name] = describe_rates(name, values, typed, origin)
    return settings


def find_preset(task: str, algorithm: str, model: str | None = None) -> tuple[dict[str, Any], str]:
    """Return the hyper-parameters kept for an algorithm on a task, and where they come from.

    They are those tuned here with the model, else with the task's default model, else those of the task's first paper,
    else none. The baselines take FedAvg's client learning rate. A file of the user's own starts from those of the
    digits: a starting point, not more.
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

    Examples:
      >>> describe_rates("fedavg", {"server_lr": 1.0}, ["client_lr"], "preset")
      'user, preset'
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
    found: dict[str, str] = {}
    for name in algorithms:
        own = {key.removeprefix(f"{name}."): text for key, text in (setting.grid if setting else {}).items()}
        if not (own := {f"{name}.{key}": text for key, text in own.items() if key in parameters_of(name)}):
            raise UsageError(f"grid {grid} of task '{task}' has nothing of {name}")
        found |= own
    return found


def _powers(value: Any) -> Any:
    """Return TOML's value with texts such as `10^-0.5` as numbers."""
    if isinstance(value, dict):
        return {name: _powers(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(_powers, value))
    is_power = isinstance(value, str) and re.fullmatch(r"10\^-?[\d.]+", value)
    return 10.0 ** float(value[3:]) if is_power else value


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
    base = _BASES[name.partition("-")[0]]
    fields: dict[str, Any] = {key: {**base.get(key, {}), **stated.get(key, {})} for key in ("task", "run", "grid")}
    rates = fields["hyperparameters"] = dict(stated.get("hyperparameters") or base.get("hyperparameters", {}))
    if "table" in base:  # of the paper's five methods on all its tasks
        rates |= _columns(base["table"])[task]
        rates |= {"scaffold": rates["fedavg"], "scaffold_adam": rates["fedadam"]}
    note = f"; {stated['note']}" if "note" in stated else ""
    first = PaperSetting(base["source"], stated.get("convention", base["convention"]) + note, **fields)
    settings = {}
    for i, epochs in enumerate(stated.get("epochs", [None])):
        run = first.run if epochs is None else {**first.run, "local_epochs": epochs}
        one = replace(first, run=run, name=f"{name}-{epochs}-epoch{'s'[: epochs > 1]}" if i else name)
        settings[one.name] = one
        if base.get("active"):
            devices = {"num_clients": run["cohort_size"], "devices": one.task["num_clients"]}
            settings[f"{one.name}-active"] = replace(one, task={**one.task, **devices}, name=f"{one.name}-active")
    return settings


_TABLES = _powers(tomllib.loads(files("fedoptax.experiments").joinpath("presets.toml").read_text(encoding="utf-8")))

_BASES = _TABLES["bases"]

PRESETS: dict[str, dict[str, dict[str, Any]]] = _columns(_TABLES["tuned"]) | _TABLES["tuned_models"]
"""Tuned hyper-parameters by task, or task:model, and algorithm."""

PAPERS: dict[str, dict[str, PaperSetting]] = {
    task: {name: one for key, stated in settings.items() for name, one in _settings(task, key, stated).items()}
    for task, settings in _TABLES["papers"].items()
}
"""Paper settings by task and name; the first of a task is what `--preset paper` means."""

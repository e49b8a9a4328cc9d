"""Hyper-parameters by task, of `presets.toml`: those that were tuned here, and the papers' own settings.

A task may have settings of several papers; the first is its `paper`, each can be asked for by name (`paper:fafed-low`).
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from fedoptax.errors import check_choice


@dataclass(frozen=True)
class PaperSetting:
    """One experiment of a paper: its place there, and the convention that its learning rates belong to.

    With options of `load_task` and of `fedoptax.run`, and hyper-parameters by algorithm; an algorithm that is not named
    keeps what the task has tuned for it.
    """

    source: str
    convention: str
    task: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""


def find_setting(task: str, preset: str) -> PaperSetting | None:
    """Return the paper's setting that `paper` or `paper:NAME` means for a task; None for `tuned` and `none`."""
    settings = PAPERS.get(task, {})
    allowed = ["tuned", "none", *(f"paper:{known}" for known in settings), *(["paper"] if settings else [])]
    check_choice(f"--preset (of task '{task}')", preset, allowed)
    kind, _, name = preset.partition(":")
    return settings[name or next(iter(settings))] if kind == "paper" else None


def _powers(value: Any) -> Any:
    """Return TOML's value with texts such as `10^-0.5` as numbers."""
    if isinstance(value, dict):
        return {name: _powers(item) for name, item in value.items()}
    is_power = isinstance(value, str) and re.fullmatch(r"10\^-?[\d.]+", value)
    return 10.0 ** float(value[3:]) if is_power else value


def _setting(name: str, own: Mapping[str, Any], bases: Mapping[str, Any]) -> PaperSetting:
    base = bases[own["base"]]
    return PaperSetting(
        base["source"],
        own.get("convention", base["convention"]),
        {**base.get("task", {}), **own.get("task", {})},
        {**base.get("run", {}), **own.get("run", {})},
        own.get("hyperparameters", base.get("hyperparameters", {})),
        name,
    )


_TABLES = _powers(tomllib.loads(files("fedoptax.experiments").joinpath("presets.toml").read_text(encoding="utf-8")))

PRESETS: dict[str, dict[str, Mapping[str, Any]]] = _TABLES["tuned"]
"""Tuned hyper-parameters by task, or task:model, and algorithm."""

PAPERS: dict[str, dict[str, PaperSetting]] = {
    task: {name: _setting(name, own, _TABLES["bases"]) for name, own in settings.items()}
    for task, settings in _TABLES["papers"].items()
}
"""Paper settings by task and name; the first of a task is what `--preset paper` means."""

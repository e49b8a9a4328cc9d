"""What the HTML page says: texts and tables for its template, numbers for its script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedoptax.report.curves import Curve, curve, higher_is_better, metric_names, thin
from fedoptax.report.groups import Group
from fedoptax.report.load import Run
from fedoptax.report.partition import SHOWN, Partition, partitions, title
from fedoptax.report.style import DASHES, MARKERS, look
from fedoptax.report.tables import final_table, shown_columns, shown_rows
from fedoptax.report.verdict import verdicts
from fedoptax.report.words import count, data_size, faults_in_words, listed, metric_name, one_of, setting

#: Points a curve has at most on the page.
POINTS = 2000


def page(groups: Sequence[Group], runs: Sequence[Run], target: float | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The template's content and the script's data."""
    table = final_table(runs, target)
    found = verdicts(table)
    parts, metrics = partitions(groups), metric_names(groups)
    winners = {verdict.leader for verdict in found if verdict.clear}
    leading_only = all((run.path.parent / "tune.json").is_file() for run in runs)
    content = {
        "intro": intro(groups, leading_only),
        "facts": facts(groups),
        "verdicts": [] if leading_only else [verdict.text for verdict in found],
        "warnings": problems(groups),
        "columns": shown_columns(table),
        "rows": [
            {"cells": row, "label": row["algorithm"], "look": look_of(group), "best": row["algorithm"] in winners}
            for row, group in zip(shown_rows(table), groups, strict=True)
        ],
        "settings": [settings(group) for group in groups],
        "partitions": [{"title": part.title, "sentence": part.sentence, "seed": part.seed} for part in parts],
        "environment": environment(runs),
        "commands": commands(runs),
        "thinned": any(len(run.rows) > POINTS for run in runs),
        "points": POINTS,
        "sort_key": _sort_key,
        "leading_only": leading_only,
    }
    data = {
        "groups": [_group_data(group, metrics) for group in groups],
        "metrics": [
            {"name": name, "label": metric_name(name), "higher": higher_is_better(groups, name)} for name in metrics
        ],
        "partitions": [_partition_data(part) for part in parts],
    }
    return content, data


def intro(groups: Sequence[Group], leading_only: bool = False) -> str:
    """What was done, in a few sentences; `leading_only` says that the runs are the best points of searches."""
    configs = [group.config for group in groups]
    tasks = list(dict.fromkeys(title(config) for config in configs))
    models = [str(config["task"]["model"]) for config in configs if config["task"].get("model")]
    trained = f"the {one_of(models)} model" if models else "a model"
    what = count(len(groups), "configuration") if _repeated(groups) else count(len(groups), "algorithm")
    what = f"The {count(len(groups), 'best point')}" if leading_only else what
    who = groups[0].label if len(groups) == 1 else what
    seeds = one_of([len(group.runs) for group in groups])
    each = "each " if len(groups) > 1 else ""
    text = f"{who} {each}trained {trained} on {listed(tasks[:4])}{' and more' if len(tasks) > 4 else ''}"
    text += f", with {seeds} seed{'' if seeds == '1' else 's'}. "
    described = {str(config["task"].get("description") or "").strip().rstrip(".") for config in configs}
    text += f"The task: {described.pop()}. " if len(described) == 1 and described != {""} else ""
    text += f"In each of {_field(configs, 'rounds')} rounds, {_field(configs, 'cohort_size')} of "
    text += f"{_clients(configs)} clients were drawn, trained locally on their own data ({_work(configs)}) and "
    return text + "sent their updates to the server."


def facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The settings that all groups share, or their values."""
    configs = [group.config for group in groups]
    pairs = [
        ("Clients", _clients(configs)),
        ("Cohort", _field(configs, "cohort_size")),
        ("Rounds", _field(configs, "rounds")),
        ("Batch size", _field(configs, "batch_size")),
        ("Local epochs", _field(configs, "local_epochs")),
        ("Local steps", _field(configs, "local_steps")),
        ("Weighting", _field(configs, "weighting")),
        ("Faults", _used(configs, "faults", "none", faults_in_words)),
        ("Aggregation", _used(configs, "aggregate", "mean", str)),
        ("Seeds", one_of([len(group.runs) for group in groups])),
        ("Parameters", _field(configs, "num_params")),
    ]
    return [(name, text) for name, text in pairs if text]


def problems(groups: Sequence[Group]) -> list[str]:
    """A line for every run that did not come to its end."""
    lines = []
    for group in groups:
        for run in group.runs:
            if run.status == "completed":
                continue
            done, rounds = run.summary.get("rounds_done"), run.config["rounds"]
            state = {"running": "was still running, or was killed,"}.get(run.status, run.status)
            text = f"{group.label}, seed {run.config['seed']}: {state} after {done} of {rounds} rounds"
            message = run.summary.get("message")
            lines.append(f"{text}: {message}" if message else f"{text}.")
    return lines


def settings(group: Group) -> dict[str, Any]:
    """An algorithm's hyper-parameters and what it sends."""
    algorithm, size = group.config["algorithm"], group.config.get("bytes") or {}
    hypers = algorithm.get("hyperparameters") or {}
    return {
        "label": group.label,
        "look": look_of(group),
        "hyperparameters": [(name, setting(value)) for name, value in hypers.items()],
        "up": data_size(size.get("up_per_client")),
        "down": data_size(size.get("down_per_client")),
        "reference": algorithm.get("reference") or "",
    }


def environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions and devices of all runs."""
    records = [{"fedoptax": run.config.get("fedoptax")} | (run.config.get("environment") or {}) for run in runs]
    names = dict.fromkeys(name for record in records for name in record)
    values = {name: [record[name] for record in records if record.get(name)] for name in names}
    return [(name, one_of(found)) for name, found in values.items() if found]


def commands(runs: Sequence[Run]) -> list[str]:
    """The commands that made the runs, as far as the runs know them."""
    return list(dict.fromkeys(run.command for run in runs if run.command))


def look_of(group: Group) -> dict[str, Any]:
    """How the page draws a group."""
    style = look(group.index)
    return {
        "color": style.color,
        "marker": MARKERS[style.marker],
        "dash": DASHES.index(style.dash),
        "dasharray": " ".join(f"{2 * length:g}" for length in style.dash),
    }


def _group_data(group: Group, metrics: Sequence[str]) -> dict[str, Any]:
    curves = {name: curve(group, name) for name in metrics}
    return {
        "label": group.label,
        **look_of(group),
        "diverged": group.diverged,
        "seeds": [run.config["seed"] for run in group.runs],
        "curves": {name: _curve_data(thin(c, POINTS)) for name, c in curves.items() if c is not None},
    }


def _curve_data(c: Curve) -> dict[str, Any]:
    return {
        "rounds": c.rounds.tolist(),
        "megabytes": _short(c.megabytes),
        "seeds": [_short(values) for values in c.seeds],
    }


def _partition_data(part: Partition) -> dict[str, Any]:
    return {
        "clients": len(part.sizes),
        "sizes": part.sizes[:SHOWN].tolist(),
        "counts": None if part.counts is None else part.counts.tolist(),
        "top": part.top_share,
        "edges": part.edges.tolist(),
        "bins": part.bins.tolist(),
    }


def _short(values: np.ndarray) -> list[float | None]:
    """Six significant digits: finer than a screen."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _sort_key(value: Any) -> str:
    """A cell's sorting value for the page; nothing for a missing number, which is sorted last."""
    return "" if isinstance(value, float) and math.isnan(value) else str(value)


def _repeated(groups: Sequence[Group]) -> bool:
    return len({group.config["algorithm"]["name"] for group in groups}) < len(groups)


def _clients(configs: Sequence[Any]) -> str:
    sizes = [(config.get("partition") or {}).get("sizes") for config in configs]
    known = [len(size) if size else config["task"].get("num_clients") for size, config in zip(sizes, configs)]
    return one_of([value for value in known if value is not None])


def _field(configs: Sequence[Any], name: str) -> str:
    return one_of([config[name] for config in configs if config.get(name) is not None])


def _used(configs: Sequence[Any], name: str, default: str, words: Callable[[Any], str]) -> str:
    """What the configs say of a field that only some have; nothing if none does."""
    values = [words(config[name]) if config.get(name) else default for config in configs]
    return "" if set(values) == {default} else one_of(values)


def _work(configs: Sequence[Any]) -> str:
    epochs, steps = _field(configs, "local_epochs"), _field(configs, "local_steps")
    parts = [f"{epochs} epoch{'' if epochs == '1' else 's'}"] if epochs else []
    parts += [f"{steps} step{'' if steps == '1' else 's'}"] if steps else []
    return f"{' or '.join(parts) or 'local steps'}, batches of {_field(configs, 'batch_size') or 'its size'}"

"""What `fedoptax list` and `fedoptax bytes` do."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Any

from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.command_options import algorithm_names, load, print_table
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.plan import Plan, checked_plan, whole
from fedoptax.engine.program import Fixed, program
from fedoptax.experiments.build import build, parse_settings, preset
from fedoptax.experiments.papers import PAPERS, PaperSetting
from fedoptax.storage.config import summary
from fedoptax.tasks import TASKS, recipe_of


def list_names(what: str, json: bool) -> None:
    """`fedoptax list`."""
    if what == "tasks":
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "summary": recipe.summary,
                "model": recipe.model,
                "models": list(recipe.models),
                "num_clients": recipe.num_clients,
                "partitions": list(recipe.partitions),
                "presets": [f"paper:{setting}" for setting in PAPERS.get(name, {})],
                **recipe.defaults,
            }
            for name, recipe in TASKS.items()
        ]
    elif what == "presets":
        rows = [
            {"name": f"{task} paper:{name}", "summary": f"{setting.source}; {setting.convention}", **_plain(setting)}
            for task, settings in PAPERS.items()
            for name, setting in settings.items()
        ]
    else:
        rows = [{"name": name, "summary": summary(constructor)} for name, constructor in ALGORITHMS.items()]
    if json:
        print(json_.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['summary']}")


def _plain(setting: PaperSetting) -> dict[str, Any]:
    hyperparameters = {name: dict(values) for name, values in setting.hyperparameters.items()}
    return {"task": dict(setting.task), "run": dict(setting.run), "hyperparameters": hyperparameters}


def show_bytes(
    task: str,
    algorithms: str,
    model: str | None,
    num_clients: int | None,
    data_dir: Path | None,
    settings: list[str],
    cohort_size: int | None,
    rounds: int | None,
    json: bool,
) -> None:
    """`fedoptax bytes`."""
    names = algorithm_names(algorithms)
    chosen = parse_settings(settings, names)
    loaded = load({"task": task, "model": model, "num_clients": num_clients, "data_dir": data_dir})
    defaults = recipe_of(task).defaults
    cohort = min(defaults["cohort_size"], loaded.clients.num_clients) if cohort_size is None else cohort_size
    total = whole("rounds", defaults["rounds"] if rounds is None else rounds)
    plan = checked_plan(Plan(cohort, LocalWork(defaults["batch_size"])), loaded)
    rows: list[dict[str, Any]] = []
    for name in names:
        built = program(loaded, Fixed(build(name, preset(task, name) | chosen[name])), plan)
        one = {"down": built.bytes_down, "up": built.bytes_up}
        rows.append(
            {
                "algorithm": name,
                "num_params": built.num_params,
                **{f"{way}_per_client": n for way, n in one.items()},
                **{f"{way}_per_round": n * cohort for way, n in one.items()},
                **{f"{way}_total": n * cohort * total for way, n in one.items()},
            }
        )
    if json:
        print(json_.dumps(rows, indent=1))
        return
    print(
        f"{loaded.name}, {rows[0]['num_params']:,} parameters, {cohort} clients a round, {total} rounds; payload bytes"
    )
    columns = [key for key in rows[0] if key != "num_params"]
    print_table([columns] + [[_grouped(row[key]) for key in columns] for row in rows])


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)

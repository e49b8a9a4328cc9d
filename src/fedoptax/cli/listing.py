"""`fedoptax list` and `fedoptax bytes`."""

from __future__ import annotations

import json
from typing import Any

from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.options import Bytes
from fedoptax.cli.setup import algorithm_names, load, print_table
from fedoptax.engine.plan import RunOptions, make_plan
from fedoptax.engine.program import Fixed, program
from fedoptax.errors import check_int
from fedoptax.experiments.build import build, parse_settings, preset
from fedoptax.experiments.presets import PAPERS, PaperSetting
from fedoptax.storage.config import summary
from fedoptax.tasks import TASKS, recipe_of


def list_names(what: str, as_json: bool) -> None:
    """Print the tasks, the algorithms or the papers' settings."""
    if what == "tasks":
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "summary": recipe.summary,
                "model": recipe.model,
                "models": list(recipe.models),
                "num_clients": recipe.num_clients,
                "partitions": list(recipe.partitions),
                "options": {option: kind.__name__ for option, kind in recipe.option_types().items()},
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
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['summary']}")


def _plain(setting: PaperSetting) -> dict[str, Any]:
    hyperparameters = {name: dict(values) for name, values in setting.hyperparameters.items()}
    return {"task": dict(setting.task), "run": dict(setting.run), "hyperparameters": hyperparameters}


def show_bytes(given: Bytes) -> None:
    """Print what each algorithm sends and receives."""
    names = algorithm_names(given.algorithms)
    chosen = parse_settings(given.set_, names)
    loaded = load(given)
    defaults = recipe_of(given.task).defaults
    cohort = (
        min(defaults["cohort_size"], loaded.clients.num_clients) if given.cohort_size is None else given.cohort_size
    )
    total = check_int("--rounds", defaults["rounds"] if given.rounds is None else given.rounds)
    options = RunOptions(cohort_size=cohort, batch_size=defaults["batch_size"])
    rows: list[dict[str, Any]] = []
    for name in names:
        algorithm = build(name, preset(given.task, name) | chosen[name])
        built = program(loaded, Fixed(algorithm), make_plan(options, loaded, algorithm))
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
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    size = rows[0]["num_params"]
    print(f"{loaded.name}, {size:,} parameters, {cohort} clients per round, {total} rounds; bytes of payload")
    columns = [key for key in rows[0] if key != "num_params"]
    print_table([columns] + [[_grouped(row[key]) for key in columns] for row in rows])


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)

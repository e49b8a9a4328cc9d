"""`fedoptax list` and `fedoptax bytes`."""

import json
from dataclasses import asdict
from typing import Any

from fedoptax.algorithms import ALGORITHMS
from fedoptax.algorithms.baselines import BASELINES
from fedoptax.cli.options import Bytes, List
from fedoptax.cli.printing import print_table
from fedoptax.cli.setup import algorithm_names, load, task_arguments, with_task_defaults
from fedoptax.engine.options import RunOptions
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Fixed, program
from fedoptax.experiments.build import build
from fedoptax.experiments.presets import PAPERS, choose_settings
from fedoptax.storage.config import summary
from fedoptax.tasks import TASKS


def list_names(options: List) -> None:
    """Print the tasks, the algorithms or the papers' settings."""
    rows: list[dict[str, Any]]
    if options.what == "tasks":
        rows = [
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
    elif options.what == "presets":
        rows = [
            {**asdict(setting), "name": f"{task} paper:{name}", "summary": f"{setting.source}; {setting.convention}"}
            for task, settings in PAPERS.items()
            for name, setting in settings.items()
        ]
    else:
        rows = [
            {"name": name, "summary": summary(constructor)} for name, constructor in (ALGORITHMS | BASELINES).items()
        ]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print_table([[row["name"], row["summary"]] for row in rows], left=True)


def show_bytes(options: Bytes) -> None:
    """Print what each algorithm sends and receives."""
    names = algorithm_names(options.algorithms)
    hyperparameters = choose_settings(options.task, names, options.set_, model=options.model).hyperparameters
    task = load(options, task_arguments(options))
    run = RunOptions(**with_task_defaults(options.task, task, options.run))
    cohort, rounds = run.cohort_size, run.rounds
    spans = {"per_client": 1, "per_round": cohort, "total": cohort * rounds}
    rows: list[dict[str, Any]] = []
    for name in names:
        algorithm = build(name, hyperparameters[name])
        built = program(task, Fixed(algorithm), make_plan(run, task, algorithm))
        row = {"algorithm": name, "num_params": built.num_params}
        for span, messages in spans.items():
            row |= {f"down_{span}": messages * built.bytes_down, f"up_{span}": messages * built.bytes_up}
        rows.append(row)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    size = rows[0]["num_params"]
    print(f"{task.name}, {size:,} parameters, {cohort} clients per round, {rounds} rounds; bytes of payload")
    columns = [key for key in rows[0] if key != "num_params"]
    lines = [[row["algorithm"], *(f"{row[key]:,}" for key in columns[1:])] for row in rows]
    print_table([columns, *lines])

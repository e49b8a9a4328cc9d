"""`fedoptax bytes`."""

import json
from typing import Any

from fedoptax.cli.options import BytesForm
from fedoptax.cli.printing import print_table
from fedoptax.cli.setup import load, task_arguments, with_task_defaults
from fedoptax.engine.options import RunOptions
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Fixed, program
from fedoptax.experiments.build import build
from fedoptax.experiments.presets import choose_settings
from fedoptax.names import split_algorithms


def show_bytes(options: BytesForm) -> None:
    """Print what each algorithm sends and receives."""
    names = split_algorithms(options.algorithms)
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
    print_table([columns, *([row["algorithm"], *(f"{row[key]:,}" for key in columns[1:])] for row in rows)])

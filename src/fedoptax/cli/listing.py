"""`fedoptax list`, which imports no JAX."""

import json
import textwrap
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from fedoptax.cli.options import ListForm
from fedoptax.experiments.presets import PAPERS
from fedoptax.names import summarize_algorithms
from fedoptax.tasks import TASKS


def list_names(options: ListForm) -> None:
    """Print the tasks, the algorithms or the papers' settings."""
    rows: list[dict[str, Any]] = []
    if options.what == "tasks":
        for name, recipe in TASKS.items():
            row: dict[str, Any] = {"name": name, "summary": recipe.summary, "model": recipe.model}
            row |= {"models": list(recipe.models), "num_clients": recipe.num_clients}
            row["partitions"] = list(recipe.partitions)
            row["options"] = {option: kind.__name__ for option, kind in recipe.option_types().items()}
            row["presets"] = [f"paper:{setting}" for setting in PAPERS.get(name, {})]
            rows.append({**row, **recipe.defaults})
    elif options.what == "presets":
        rows = [
            {**asdict(setting), "name": f"{task} paper:{name}", "summary": f"{setting.source}; {setting.convention}"}
            for task, settings in PAPERS.items()
            for name, setting in settings.items()
        ]
    else:
        rows = [{"name": name, "summary": summary} for name, summary in summarize_algorithms().items()]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        names_of = defaultdict[str, list[str]](list)  # presets of a paper have one summary
        for row in rows:
            names_of[row["summary"]].append(row["name"])
        for summary, names in names_of.items():
            for name in names[:-1]:
                print(name)
            print(textwrap.fill(f"{names[-1]:<17}  {summary}", 80, subsequent_indent=" " * 19))

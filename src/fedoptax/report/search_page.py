"""What the page says of searches for hyper-parameters."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedoptax.report.searches import Cell, HeatMap, Search, Tested, heat_map
from fedoptax.report.style import SHADES
from fedoptax.report.words import in_sentence, listed, number, setting


def search_sections(searches: Sequence[Search], folder: Path) -> list[dict[str, Any]]:
    """For the template: a section for each search; links lead from `folder`."""
    return [_section(search, folder) for search in searches]


def sentence(search: Search) -> str:
    """What was searched, by which rule, and what was found."""
    rule, best = search.tuning.rule, search.best
    lost = sum(point.run.status == "diverged" for point in search.points)
    text = f"{len(search.points)} of {search.tuning.size} points" + (f", of which {lost} diverged" if lost else "")
    over = "in the last round" if rule.last == 1 else f"over the last {rule.last} rounds"
    text += f", ranked by the mean {in_sentence(rule.metric)} {over}"
    if best is None:
        return f"{text}. None came to its end."
    values = listed([f"{name} {setting(value)}" for name, value in best.values.items()])
    return f"{text}. Best: {values}, {in_sentence(rule.metric)} {number(best.score)}."


def edge_warnings(search: Search) -> list[str]:
    """A line for every best value at an end of its grid."""
    lines = []
    for name, which in search.edges.items():
        values = search.tuning.grid[name]
        ends = f"{setting(min(values))} to {setting(max(values))}"
        lines.append(f"The best {name} is the {which} of its grid ({ends}): a better one may lie beyond.")
    return lines


def _section(search: Search, folder: Path) -> dict[str, Any]:
    found, rule = heat_map(search), search.tuning.rule
    metric = search.judged[0]
    extra = [] if metric == rule.metric else [in_sentence(metric)]
    own = _link(search.folder / "report.html", folder)
    return {
        "algorithm": search.algorithm,
        "sentence": sentence(search),
        "warnings": edge_warnings(search),
        "map": None if found is None else _map(found, folder),
        "link": own if own != "./report.html" and (search.folder / "report.html").is_file() else "",
        "headers": [*search.tuning.grid, in_sentence(rule.metric), *extra, "status"],
        "points": [_point(point, search, bool(extra), folder) for point in search.ranked],
    }


def _point(point: Tested, search: Search, with_metric: bool, folder: Path) -> dict[str, Any]:
    cells = [{"text": setting(value), "key": value} for value in point.values.values()]
    cells += [{"text": number(point.score), "key": _key(point.score)}]
    cells += [{"text": number(point.metric), "key": _key(point.metric)}] if with_metric else []
    cells += [{"text": point.run.status, "key": point.run.status}]
    return {"cells": cells, "best": point is search.best, "link": _link(point.run.path / "history.jsonl", folder)}


def _map(found: HeatMap, folder: Path) -> dict[str, Any]:
    over = "in the last round" if found.last == 1 else f"mean of the last {found.last} rounds"
    caption = f"{found.algorithm}: {in_sentence(found.metric)}, {over}; darker is better"
    if found.others:
        caption += f"; the best over {listed(found.others)}"
    return {
        "caption": f"{caption}. The frame marks the point that was chosen, × one that diverged.",
        "x": found.x,
        "y": found.y,
        "columns": found.columns,
        "rows": [
            {"name": name, "cells": [_cell(cell, folder) for cell in cells]}
            for name, cells in zip(found.rows, found.cells)
        ],
    }


def _cell(cell: Cell | None, folder: Path) -> dict[str, Any] | None:
    if cell is None:
        return None
    known = math.isfinite(cell.value)
    return {
        "value": number(cell.value, 3) if known else "×",
        "shade": f"s{round(cell.shade * (SHADES - 1))}" if known else "lost",
        "text": cell.text,
        "best": cell.best,
        "link": _link(cell.folder / "history.jsonl", folder),
    }


def _key(value: float) -> str:
    return "" if math.isnan(value) else str(value)


def _link(target: Path, folder: Path) -> str:
    """A relative link that stays below the report's folder; nothing for what lies elsewhere.

    Folders have the names that others gave them: one such as `javascript:x` must not become a scheme.
    """
    path = os.path.relpath(target.resolve(), folder.resolve())
    return "" if path.startswith("..") else "./" + quote(Path(path).as_posix().encode("utf-8", "surrogateescape"))

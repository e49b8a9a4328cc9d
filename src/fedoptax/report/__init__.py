"""Reports on runs: tables, figures and one HTML page, from nothing but the folders the runs left."""

from __future__ import annotations

import re
from pathlib import Path

from fedoptax.errors import RunError
from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run, found_runs, load_runs
from fedoptax.report.tables import final_table, history_table, to_markdown

__all__ = [
    "Group", "Run", "final_table", "group_runs", "history_table", "load_runs", "to_markdown", "write_report",
]  # fmt: skip

_OURS = re.compile(r"(metric-rounds|metric-megabytes|train-loss-rounds|(partition|heat-map|profile)(-\d+)?)\.png")


def write_report(path: str | Path, out: str | Path | None = None, target: float | None = None) -> Path:
    """Writes report.html, figures/*.png, table.csv, table.md and history.csv of all runs at or below a folder.

    Each file appears whole or not at all; what an earlier report left is replaced. Searches get heat maps, curves and
    points.csv; where there are only searches, the runs are the best points of each.

    Args:
      path: a run, a comparison, a search, or a folder with any of these below it.
      out: where to write; None means `path` itself.
      target: the value that "rounds to target" asks for; None takes 95 % of the best algorithm's final value.

    Returns:
      The path of report.html.

    Raises:
      RunError: no run there, a damaged one, or the report cannot be written.
    """
    from fedoptax.report.figures import figures
    from fedoptax.report.html import render
    from fedoptax.report.search_figures import search_figures
    from fedoptax.report.searches import LEADING, load_searches, points_table
    from fedoptax.report.tables import to_csv
    from fedoptax.report.titles import title_of
    from fedoptax.storage.folder import write_atomically

    runs, searches = found_runs(path), load_searches(Path(path))
    runs = runs or [point.run for search in searches for point in search.ranked[:LEADING]] or load_runs(path)
    folder = Path(path if out is None else out)
    if (folder / "figures").is_symlink():  # of a folder from others: it may lead anywhere
        raise RunError(f"'{folder / 'figures'}' is a link; a folder is allowed")
    table = final_table(runs, target)
    pictures = {f"figures/{name}": data for name, data in (figures(runs) | search_figures(searches)).items()}
    texts = {
        "table.csv": to_csv(table),
        "table.md": to_markdown(table),
        "history.csv": to_csv(history_table(runs)),
        "report.html": render(runs, title_of(runs), target, searches, folder),
    }
    if searches:
        texts["points.csv"] = to_csv(points_table(searches))
    stale = _left_over(folder) - {folder / name for name in (*pictures, *texts)}
    for name, data in {**pictures, **{name: text.encode("utf-8", "replace") for name, text in texts.items()}}.items():
        write_atomically(folder / name, data)
    try:
        for file in stale:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"'{folder}' holds files of an earlier report that cannot be removed: {error}") from error
    return folder / "report.html"


def _left_over(folder: Path) -> set[Path]:
    """The files of an earlier report that not every report has."""
    if not (folder / "report.html").is_file():
        return set()  # there was none: what bears such a name is somebody's own
    pictures = {path for path in (folder / "figures").glob("*.png") if _OURS.fullmatch(path.name)}
    return {path for path in {*pictures, folder / "points.csv"} if path.is_file()}

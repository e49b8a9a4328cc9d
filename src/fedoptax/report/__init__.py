"""Reports on runs: tables, figures and one HTML page, from nothing but the folders that runs leave."""

import re
from pathlib import Path

from fedoptax._files import write_atomically
from fedoptax.report.figures import draw_figures
from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run, load_runs
from fedoptax.report.page import render
from fedoptax.report.report import load_report
from fedoptax.report.searches import tabulate_points
from fedoptax.report.tables import final_table, history_table, to_csv, to_latex, to_markdown

_NOT_ALWAYS = re.compile(
    r"points\.csv|(metric-rounds|metric-megabytes|train-loss-rounds|network-seconds|clients(-end)?"
    r"|(partition|heat-map|profile)(-\d+)?)\.(png|svg|pdf)"
)


def write_report(
    path: str | Path, out: str | Path | None = None, target: float | None = None, early: int | None = None
) -> Path:
    """Write report.html, figures (PNG, SVG, PDF), table.csv, .md and .tex, and history.csv of all runs in a folder.

    Searches get heat maps, profiles and points.csv; where there are only searches, the runs are their best points.
    Each file appears whole or not at all, and what an earlier report left is replaced.

    Args:
      path: a run, a comparison, a search, or a folder with any of these below it.
      out: where to write; None means `path` itself.
      target: the value for "rounds to target"; None: 95 % of the best algorithm's final value.
      early: the number of first rounds for early progress; None: a fifth of all.

    Returns:
      The path of report.html.

    Raises:
      UsageError: `path` is not a folder, the target not finite, or `early` below 1.
      RunError: there is no run, one is damaged, or the report cannot be written.
    """
    report = load_report(path, target, early)
    folder = Path(path if out is None else out)
    figures = draw_figures(report)
    files = {f"figures/{name}": data for name, data in figures.items()}
    texts = {
        "table.csv": to_csv(report.table),
        "table.md": to_markdown(report.table),
        "table.tex": to_latex(report.table),
        "history.csv": to_csv(history_table(report.runs)),
        "report.html": render(report, figures, folder),
    }
    if report.searches:
        texts["points.csv"] = to_csv(tabulate_points([result for result, _ in report.searches]))
    files |= {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    has_report = (folder / "report.html").is_file()  # other files with such names are the user's
    for name, data in files.items():
        write_atomically(folder / name, data)
    for file in [*(folder / "figures").glob("*"), folder / "points.csv"] if has_report else []:
        if _NOT_ALWAYS.fullmatch(file.name) and file.relative_to(folder).as_posix() not in files:
            file.unlink(missing_ok=True)
    return folder / "report.html"

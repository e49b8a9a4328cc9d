"""The numbers of a report: one row a group, one row a round, and both as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run
from fedoptax.report.words import DASH, data_size, duration, in_sentence, number, one_of, spread

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
#: Share of the best group's final value that makes the automatic target.
TARGET_SHARE = 0.95


def final_table(runs: Sequence[Run], target: float | None = None) -> pd.DataFrame:
    """What every algorithm reached and what it cost, one row a group of seeds.

    End values (`final`, `best`, `last_mean`, `train_loss`) are means over the completed seeds, `counted` of them; over
    the seeds that did not diverge if none completed.

    Columns: `algorithm`, `problem` (equal where rows can be ranked), `metric`, `higher_is_better`, `seeds`, `counted`,
    `final` and `final_std` (n − 1 below; NaN for one seed), `best` (over all evaluated rounds), `last_mean` (over the
    evaluated ones of the last `last_window` rounds, min(100, rounds // 10) but at least 1), `train_loss`, `target`,
    `rounds_to_target` (median over all seeds; inf if not reached), `bytes_to_target` (of all clients, both ways, up to
    that round; likewise), `bytes_up` and `bytes_down` (a client and round),
    `total_bytes` (mean over seeds), `seconds_per_round` (median over rounds and seeds), `participants` (a round, mean
    over rounds and seeds) and `epsilon` (at the end, the largest of the seeds), `client_spread` and `client_worst` (the
    standard deviation of the metric over clients, and its mean over the worst tenth of them, at the last evaluated
    round, mean over seeds), all NaN where runs do not have them, `complete`, `status`.

    Args:
      runs: from `load_runs`.
      target: the metric's value to be reached; None takes 95 % of the best group's final value (105 % where lower is
        better) for each task.
    """
    import pandas as pd

    groups = group_runs(runs)
    rows = [_row(group) for group in groups]
    for row, group in zip(rows, groups, strict=True):
        row["target"] = _automatic_target(row, rows) if target is None else float(target)
        row["rounds_to_target"] = _rounds_to(group, row["target"])
        row["bytes_to_target"] = _bytes_to(group, row["target"])
    return pd.DataFrame(rows, columns=list(_COLUMNS))


_COLUMNS = (
    "algorithm", "problem", "metric", "higher_is_better", "seeds", "counted", "final", "final_std", "best",
    "last_mean", "last_window", "train_loss", "target", "rounds_to_target", "bytes_to_target", "client_spread",
    "client_worst", "bytes_up", "bytes_down", "total_bytes", "seconds_per_round", "participants", "epsilon",
    "complete", "status",
)  # fmt: skip


def history_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Every round of every run in one long table: the columns `algorithm` and `seed`, then the history's."""
    import pandas as pd

    parts = []
    for group in group_runs(runs):
        for run in group.runs:
            part = run.rows.copy()
            part.insert(0, "algorithm", group.label)
            part.insert(1, "seed", int(run.config["seed"]))
            parts.append(part)
    filled = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(filled, ignore_index=True)


def _row(group: Group) -> dict[str, Any]:
    window = max(1, min(100, int(group.config["rounds"]) // 10))
    measured = [_measured(run) for run in group.counted]
    finals = [float(values.iloc[-1]) for values in measured if len(values)]
    size = group.config.get("bytes") or {}
    return {
        "algorithm": group.label,
        "problem": group.problem,
        "metric": group.metric,
        "higher_is_better": group.higher_is_better,
        "seeds": len(group.runs),
        "counted": len(finals),
        "final": _mean(finals),
        "final_std": _std(finals),
        "best": _mean([_best(values, group.higher_is_better) for values in measured if len(values)]),
        "last_mean": _mean([_last_mean(values, window) for values in measured if len(values)]),
        "last_window": window,
        "train_loss": _mean([_last(run, "train_loss") for run in group.counted]),
        "client_spread": _over_clients(group, "spread"),
        "client_worst": _over_clients(group, "worst_decile"),
        "bytes_up": _number(size.get("up_per_client")),
        "bytes_down": _number(size.get("down_per_client")),
        "total_bytes": _mean([_total_bytes(run) for run in group.runs]),
        "seconds_per_round": _seconds(group),
        "participants": _mean(
            [float(run.rows["participants"].mean()) for run in group.runs if "participants" in run.rows]
        ),
        "epsilon": _largest([_last(run, "epsilon") for run in group.runs]),
        "complete": group.complete,
        "status": group.status,
    }


def _over_clients(group: Group, what: str) -> float:
    """A number about the primary metric over clients, at the end."""
    column = f"client_{group.metric.removeprefix('test_')}_{what}"
    return _mean([_last(run, column) for run in group.counted])


def _automatic_target(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> float:
    rivals = [other for other in rows if other["problem"] == row["problem"] and math.isfinite(other["final"])]
    finals = [other["final"] for other in rivals if other["complete"]] or [other["final"] for other in rivals]
    if not finals:
        return NAN
    best = max(finals) if row["higher_is_better"] else min(finals)
    slack = (1 - TARGET_SHARE) * abs(best)
    return best - slack if row["higher_is_better"] else best + slack


def _rounds_to(group: Group, target: float) -> float:
    """The median over seeds of the first round that reaches the target; a seed that never does counts as inf."""
    return _median([_first_round(run, group, target) for run in group.runs]) if math.isfinite(target) else NAN


def _bytes_to(group: Group, target: float) -> float:
    """The median over seeds of the bytes sent both ways up to that round; inf and NaN as there."""
    if not math.isfinite(target):
        return NAN
    return _median([_bytes_until(run, _first_round(run, group, target)) for run in group.runs])


def _first_round(run: Run, group: Group, target: float) -> float:
    values = _measured(run)
    hits = values[values >= target] if group.higher_is_better else values[values <= target]
    return float(hits.index[0]) if len(hits) else math.inf


def _bytes_until(run: Run, round: float) -> float:
    columns = [name for name in ("bytes_up", "bytes_down") if name in run.rows]
    if math.isinf(round):
        return math.inf
    return float(run.rows.loc[run.rows["round"] <= round, columns].to_numpy().sum()) if columns else NAN


def _median(values: Sequence[float]) -> float:
    """The median; NaN if one is NaN."""
    if any(math.isnan(value) for value in values):
        return NAN
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) / 2


def _measured(run: Run) -> pd.Series:
    """The primary metric at the rounds where it was evaluated, by round."""
    rows = run.rows.set_index("round")
    return rows[run.metric].dropna() if run.metric in rows else rows.index.to_series().astype(float).iloc[:0]


def _best(values: pd.Series, higher: bool) -> float:
    return float(values.max() if higher else values.min())


def _last_mean(values: pd.Series, window: int) -> float:
    """The mean over the last `window` rounds up to the last evaluated one."""
    rounds = values.index.to_numpy()
    return float(values[rounds > rounds[-1] - window].mean())


def _last(run: Run, column: str) -> float:
    if column not in run.rows:
        return NAN
    values = run.rows[column].dropna()
    return float(values.iloc[-1]) if len(values) else NAN


def _total_bytes(run: Run) -> float:
    columns = [name for name in ("bytes_up", "bytes_down") if name in run.rows]
    return float(run.rows[columns].to_numpy().sum()) if columns and len(run.rows) else NAN


def _seconds(group: Group) -> float:
    import pandas as pd

    parts = [run.rows["seconds"].dropna() for run in group.runs if "seconds" in run.rows]
    parts = [part for part in parts if len(part)]
    return float(pd.concat(parts).median()) if parts else NAN


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else NAN


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else NAN


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=NAN)


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return NAN
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Column:
    """A column of the final table as it is shown.

    Attributes:
      header: its title.
      hint: what exactly it holds.
      text: what a cell says.
      key: what a cell is sorted by.
    """

    header: str
    hint: str
    text: Callable[[dict[str, Any]], str]
    key: Callable[[dict[str, Any]], float | str]


def shown_columns(table: pd.DataFrame) -> list[Column]:
    """The final table's columns in the order and words of the report."""
    metric = one_of([in_sentence(name) for name in table["metric"]])
    window = one_of(table["last_window"])
    target = one_of([number(value, 3) for value in table["target"]])
    return [
        Column("Algorithm", "", lambda r: str(r["algorithm"]), lambda r: str(r["algorithm"])),
        Column(
            f"Final {metric}",
            "mean ± standard deviation over seeds, at the last evaluated round",
            _final_text,
            lambda r: r["final"],
        ),
        Column("Seeds", "runs that differ by nothing but their seed", _seeds_text, lambda r: r["seeds"]),
        Column("Best", "best value at any evaluated round, mean over seeds", *_measure("best")),
        Column(
            f"Mean of last {window}",
            "mean over the evaluated ones of the last rounds, and over seeds",
            *_measure("last_mean"),
        ),
        Column("Train loss", "in the last round, mean over seeds", *_measure("train_loss")),
        Column(
            f"Rounds to {target}",
            f"first evaluated round with {metric} of {target}, median over seeds",
            _rounds_text,
            lambda r: r["rounds_to_target"],
        ),
        Column(
            f"Sent to {target}",
            "by and to all clients up to that round, median over seeds",
            _bytes_text,
            lambda r: r["bytes_to_target"],
        ),
        Column("Up", "bytes a client sends in a round", *_size("bytes_up")),
        Column("Down", "bytes a client receives in a round", *_size("bytes_down")),
        Column("Total sent", "all clients, all rounds, both ways", *_size("total_bytes")),
        Column("Time a round", "median, without compilation", _time_text, lambda r: r["seconds_per_round"]),
        *_circumstances(table),
        Column("Status", "", lambda r: str(r["status"]), lambda r: str(r["status"])),
    ]


def _circumstances(table: pd.DataFrame) -> list[Column]:
    """Columns that are shown if any run has them."""
    hint = "clients whose uploads counted, of a round's cohort; mean over rounds and seeds"
    columns = {
        "client_spread": Column(
            "Clients' spread",
            "standard deviation of the metric over clients' own test examples, last evaluated round, mean over seeds",
            *_measure("client_spread"),
        ),
        "client_worst": Column(
            "Worst tenth", "mean of the metric over the worst tenth of the clients, likewise", *_measure("client_worst")
        ),
        "participants": Column("Took part", hint, *_measure("participants")),
        "epsilon": Column("Epsilon", "privacy spent at the end, the largest of the seeds", *_measure("epsilon")),
    }
    return [column for name, column in columns.items() if table[name].notna().any()]


def shown_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The final table's rows as dictionaries."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _final_text(row: dict[str, Any]) -> str:
    return spread(row["final"], row["final_std"])


def _seeds_text(row: dict[str, Any]) -> str:
    whole, counted = int(row["seeds"]), int(row["counted"])
    return str(whole) if counted == whole else f"{counted} of {whole}"


def _rounds_text(row: dict[str, Any]) -> str:
    rounds = row["rounds_to_target"]
    if math.isnan(rounds):
        return DASH
    return "not reached" if math.isinf(rounds) else f"{rounds:g}"


def _bytes_text(row: dict[str, Any]) -> str:
    sent = row["bytes_to_target"]
    return "not reached" if math.isinf(sent) else data_size(sent)


def _time_text(row: dict[str, Any]) -> str:
    return duration(row["seconds_per_round"])


def _measure(name: str) -> tuple[Callable[[dict[str, Any]], str], Callable[[dict[str, Any]], float]]:
    return lambda row: number(row[name]), lambda row: row[name]


def _size(name: str) -> tuple[Callable[[dict[str, Any]], str], Callable[[dict[str, Any]], float]]:
    return lambda row: data_size(row[name]), lambda row: row[name]


def to_markdown(table: pd.DataFrame) -> str:
    """The final table as a GitHub Markdown table, columns aligned in the source too."""
    columns = shown_columns(table)
    cells = [[_escape(column.header) for column in columns]]
    cells += [[_escape(column.text(row)) for column in columns] for row in shown_rows(table)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    left = [column.header in ("Algorithm", "Status") for column in columns]
    rule = [f":{'-' * (w - 1)}" if is_left else f"{'-' * (w - 1)}:" for w, is_left in zip(widths, left, strict=True)]
    lines = [_markdown_line(cells[0], widths, left), f"| {' | '.join(rule)} |"]
    lines += [_markdown_line(line, widths, left) for line in cells[1:]]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    padded = [
        cell.ljust(width) if is_left else cell.rjust(width)
        for cell, width, is_left in zip(cells, widths, left, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _escape(text: str) -> str:
    safe = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_csv(table: pd.DataFrame) -> str:
    """A table as CSV with full precision; `inf` rounds to a target are rounds that were not enough."""
    return table.drop(columns=["problem"], errors="ignore").to_csv(index=False, lineterminator="\n")

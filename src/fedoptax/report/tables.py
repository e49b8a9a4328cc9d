"""The numbers of a report: one row per group, one row per round, and both as text."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedoptax.report import words
from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run
from fedoptax.report.paired import LEAST_PAIRS, LEVEL, compare_groups
from fedoptax.tasks.metrics import Column

NAN = float("nan")
TARGET_SHARE = 0.95  # share of the best group's final value that makes the automatic target

_TO_TARGET = ("target", "rounds_to_target", "bytes_to_target", "gradients_to_target", "virtual_seconds_to_target")

Row = dict[str, Any]


def final_table(runs: Sequence[Run], target: float | None = None, early: int | None = None) -> pd.DataFrame:
    """Tabulate results and costs of every algorithm, one row per group of seeds.

    `shown_columns` explains the columns. Final values are means over the completed seeds, `counted` of them, or over
    the seeds that did not diverge if none completed. `problem` is equal where rows can be ranked, `finals`, `earlies`
    and `arrivals` (rounds to the target) are values by seed, and `compare_groups` adds the comparison with the best
    mean. Costs to a target that is never reached are inf; missing values are NaN.

    Args:
      runs: from `load_runs`.
      target: the metric's value to be reached; None takes 95 % of the best group's final value (105 % where lower is
        better) for each task.
      early: the number of first rounds for the column `early`; None: a fifth of all, of the group with the fewest.
    """
    groups = group_runs(runs)
    rounds = [int(group.config["rounds"]) for group in groups]
    fewest = {group.problem: min(n for of, n in zip(groups, rounds) if of.problem == group.problem) for group in groups}
    rows = [_final_row(group, early or max(1, fewest[group.problem] // 5)) for group in groups]
    for row, group in zip(rows, groups, strict=True):
        sign = 1 if row["higher_is_better"] else -1
        rivals = [other for other in rows if other["problem"] == row["problem"] and math.isfinite(other["final"])]
        ended = [other for other in rivals if other["complete"]]
        best = max((sign * other["final"] for other in ended or rivals), default=NAN)
        row["target"] = sign * (best - (1 - TARGET_SHARE) * abs(best)) if target is None else float(target)
        row |= _costs_to_target(group, row["target"])
    compare_groups(rows)
    return pd.DataFrame(rows)


def history_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Tabulate every round of every run: the columns `algorithm` and `seed`, then the history's numbers."""
    parts = {(group.label, int(run.config["seed"])): run.rows for group in group_runs(runs) for run in group.runs}
    filled = {key: rows for key, rows in parts.items() if len(rows)} or parts
    return pd.concat(filled, names=["algorithm", "seed"]).reset_index([0, 1])


def _final_row(group: Group, first: int) -> Row:
    window = max(1, min(100, int(group.config["rounds"]) // 10))
    measured = {int(run.config["seed"]): values for run in group.counted_runs if len(values := _measured(run))}
    late = [values[values.index > values.index[-1] - window] for values in measured.values()]
    finals = pd.Series({seed: _end(run) for run in group.counted_runs if (seed := run.config["seed"]) in measured})
    earlies = {seed: float(values[values.index <= first].mean()) for seed, values in measured.items()}
    weighting, of_paper = group.config.get("weighting"), group.config.get("paper_weighting")
    size = group.config.get("bytes") or {}
    split, metric, _ = Column.parse(group.metric) or Column("", "")
    spread, worst = (str(Column("client", metric, summary)) for summary in ("spread", "worst_decile"))
    seconds = [run.rows["seconds"].dropna() for run in group.runs if "seconds" in run.rows]
    return {
        "algorithm": group.label,
        "problem": group.problem,
        "metric": group.metric,
        "commonest": (group.config.get("majority") or {}).get(split, NAN) if metric == "accuracy" else NAN,
        "higher_is_better": group.higher_is_better,
        "seeds": len(group.runs),
        "counted": int(finals.count()),
        "finals": finals.to_dict(),
        "final": finals.mean(skipna=False),
        "final_std": finals.std(),
        **_best_rounds(group),
        "last_mean": _mean([values.mean() for values in late]),
        "last_window": window,
        "last_evaluations": _median([len(values) for values in late]),
        "earlies": earlies,
        "early": _mean(list(earlies.values())),
        "early_window": first,
        "early_rounds": {tuple(values.index[values.index <= first]) for values in measured.values()},
        "is_share": group.runs[0].is_share,
        "train_loss": _mean([_last(run, "train_loss") for run in group.counted_runs]),
        **dict.fromkeys(_TO_TARGET),
        "client_spread": _mean([_last(run, spread) for run in group.counted_runs]),
        "client_worst": _mean([_last(run, worst) for run in group.counted_runs]),
        **_personalized(group),
        "bytes_up": float(size.get("up_per_client", NAN)),
        "bytes_down": float(size.get("down_per_client", NAN)),
        "total_bytes": _mean([run.bytes_per_round().sum(min_count=1) for run in group.counted_runs]),
        "virtual_seconds": _mean([_virtual_seconds(run).sum(min_count=1) for run in group.counted_runs]),
        "seconds_per_round": pd.concat(seconds).median() if seconds else NAN,
        "participants": _mean([run.rows["participants"].mean() for run in group.runs if "participants" in run.rows]),
        "epsilon": pd.Series([_last(run, "epsilon") for run in group.runs], dtype=float).max(),
        "weighting": f"{weighting} (paper: {of_paper})" if of_paper not in (None, weighting) else weighting or "",
        "rates": group.config.get("rates") or "",
        "complete": all(run.is_complete for run in group.runs) and bool(finals.count() == len(group.runs)),
        "status": group.status,
    }


def _best_rounds(group: Group) -> Row:
    """The values of the best evaluated rounds, from the runs' summaries or else by the metric."""
    rounds = []
    for run in group.counted_runs:
        values = _measured(run)
        if best := run.summary.get("best"):
            rounds.append((best["round"], best["metric"], best["value"], values.get(best["round"], NAN)))
        elif len(values):
            place = int(values.argmax() if group.higher_is_better else values.argmin())
            rounds.append((values.index[place], group.metric, values.iloc[place], values.iloc[place]))
    metric = rounds[0][1] if rounds else group.metric
    return {
        "best_metric": metric,
        "best": _mean([value for _, name, value, _ in rounds if name == metric]),
        "best_round": _median([float(round) for round, *_ in rounds]),
        "at_best": _mean([value for *_, value in rounds]) if metric != group.metric else NAN,
    }


def _personalized(group: Group) -> Row:
    """The metric over clients before and after local steps from the global model, mean over seeds."""
    parts = [run.summary["personalized"] for run in group.counted_runs if run.summary.get("personalized")]
    row: Row = {"local_steps": parts[0]["steps"] if parts else NAN}
    for when in ("before", "after"):
        for what, name in (("mean", ""), ("spread", "_spread"), ("worst_decile", "_worst")):
            row[f"{when}{name}"] = _mean([part[when][what] for part in parts])
    return row


def _costs_to_target(group: Group, target: float) -> Row:
    """Return the rounds, and their cost, until the metric reaches a target: inf if never, median over seeds."""
    arrivals: dict[int, float] = {}
    costs: dict[str, list[float]] = {name: [] for name in ("rounds", "bytes", "virtual_seconds")}
    for run in group.runs if math.isfinite(target) else []:
        values = _measured(run)
        hits = values[values >= target] if group.higher_is_better else values[values <= target]
        at = float(hits.index[0]) if len(hits) else math.inf
        costs["rounds"].append(at)
        arrivals[int(run.config["seed"])] = at
        for name, by_round in (("bytes", run.bytes_per_round()), ("virtual_seconds", _virtual_seconds(run))):
            total = float(by_round[run.rows["round"] <= at].sum(min_count=1))
            costs[name].append(math.inf if math.isinf(at) and not math.isnan(total) else total)
    medians = {f"{name}_to_target": _median(values) for name, values in costs.items()}
    gradients = medians["rounds_to_target"] * group.runs[0].gradients_per_round
    return {**medians, "gradients_to_target": gradients, "arrivals": arrivals}


def _virtual_seconds(run: Run) -> pd.Series:
    return run.rows.get("virtual_seconds", pd.Series(NAN, run.rows.index))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else NAN


def _measured(run: Run) -> pd.Series:
    rows = run.rows.set_index("round")
    return rows[run.metric].dropna() if run.metric in rows else pd.Series(dtype=float)


def _end(run: Run) -> float:
    """The metric at the end; NaN if a completed run ended without a finite value on held-out examples."""
    is_whole = run.is_complete and run.metric.startswith(("test_", "val_"))
    return float(run.rows[run.metric].iloc[-1]) if is_whole else _last(run, run.metric)


def _last(run: Run, column: str) -> float:
    values = run.rows.get(column, pd.Series(dtype=float)).dropna()
    return float(values.iloc[-1]) if len(values) else NAN


def _mean(values: Sequence[float]) -> float:
    return float(pd.Series(values, dtype=float).mean())  # of values that are not NaN


class TableColumn(NamedTuple):
    """A column of the final table as a reader sees it."""

    name: str  # of the table's column by which it is sorted
    header: str
    hint: str  # its exact meaning

    @property
    def is_text(self) -> bool:
        """Whether it is aligned to the left."""
        return self.name in ("algorithm", "weighting", "rates", "status")

    def text(self, row: Row) -> str:
        """Write a row's cell."""
        name, value = self.name, row[self.name]
        if self.is_text:
            return str(value)
        if name == "final":
            return words.format_spread(value, row["final_std"])
        if name == "seeds":
            return str(value) if row["counted"] == value else f"{row['counted']} of {value}"
        if name.endswith("behind"):
            return write_behind(row, name.removesuffix("behind"))
        if name.startswith("after"):
            before = words.format_number(row[name.replace("after", "before")])
            return words.DASH if math.isnan(value) else f"{before} → {words.format_number(value)}"
        if math.isinf(value) and name.endswith("_to_target"):
            return "not reached"
        if name in ("rounds_to_target", "best_round", "gradients_to_target"):
            return words.DASH if math.isnan(value) else f"{value:{',.0f' if name == 'gradients_to_target' else 'g'}}"
        if "bytes" in name:
            return words.format_quantity(value, "B")
        return words.format_quantity(value, "s") if "seconds" in name else words.format_number(value)


def write_behind(row: Row, prefix: str = "", is_short: bool = False) -> str:
    """Write how far a row is behind the best mean, with its 95 % interval and p; in short without the interval."""
    if row[f"{prefix}standing"]:
        return str(row[f"{prefix}standing"])
    digits = 4 if prefix == "rounds_" else 2
    behind, low, high = (words.format_number(row[f"{prefix}{name}"], digits) for name in ("behind", "low", "high"))
    if behind == words.DASH:
        return behind
    if math.isnan(row[f"{prefix}p"]):
        return f"{behind}, too few seeds" if row[f"{prefix}pairs"] < LEAST_PAIRS else behind
    if is_short:
        return f"{behind}, p {row[f'{prefix}p']:.2g}"
    within = ", within a point" if not prefix and row["p_within_point"] < LEVEL else ""
    return f"{behind} [{low}, {high}], p {row[f'{prefix}p']:.2g}{within}"


SHORT = ("algorithm", "final", "behind", "rounds_to_target", "bytes_to_target")
"""The columns on a terminal and in LaTeX; the page shows these and the next four before the others."""
FIRST = (*SHORT, "seeds", "weighting", "train_loss", "status")
_COLUMNS = (
    ("algorithm", "Algorithm", "with the settings that differ where it has several rows"),
    ("final", "Final {metric}", "mean ± standard deviation over seeds, last evaluated round"),
    ("behind", "Behind {leading}", "mean difference over common seeds, its 95 % interval, and p of a paired t-test, "
     "corrected over all pairs of methods (Holm); best: all others are significantly behind; within a point: "
     "equivalent within 0.01 by two one-sided tests, corrected too"),
    ("rounds_to_target", "Rounds to {target}", "first such evaluated round, median over seeds"),
    ("bytes_to_target", "Bytes to {target}", "of all clients, both ways, up to then"),
    ("seeds", "Seeds", "runs that differ by nothing but their seed"),
    ("weighting", "Weighting", "of the uploads in their mean, with the paper's own where it is another"),
    ("train_loss", "Train loss", "in the last round, mean over seeds"),
    ("best", "Best {chosen}", "at the evaluated round where it was best, mean over seeds"),
    ("best_round", "Best round", "this round, the earliest if several are equal, median over seeds"),
    ("last_mean", "Mean of last {window}", "mean over the last rounds ({evaluations} evaluated) and over seeds"),
    ("early", "Mean of first {early}", "mean over the first rounds, as far as they were evaluated, and over seeds"),
    ("early_behind", "Behind {leading} early", "of this mean; one family of tests with the next column"),
    ("rounds_behind", "Rounds later", "than the first to reach {target}; where all seeds of both do"),
    ("gradients_to_target", "Gradients to {target}", "minibatch gradients up to then, of cohorts of average clients"),
    ("bytes_up", "Upload", "bytes that a client sends in a round, payload only"),
    ("bytes_down", "Download", "bytes that a client receives in a round, payload only"),
    ("total_bytes", "Total bytes", "of all sampled clients, both ways, mean over seeds; 1 MB is 10⁶ bytes"),
    ("seconds_per_round", "Time per round", "wall time, median over rounds and seeds, without compilation"),
)  # fmt: skip
_OPTIONAL = (
    ("at_best", "{metric_title} then", "at the best round, mean over seeds"),
    ("client_spread", "Client std", "standard deviation over clients' own held-out examples, mean over seeds"),
    ("client_worst", "Worst 10 %", "mean over the worst tenth of the clients, and over seeds"),
    ("after", "Personalized", "mean over clients and seeds, before → after {local_steps} steps from the model in use"),
    ("after_spread", "Personalized std", "standard deviation over clients, before → after"),
    ("after_worst", "Personalized worst 10 %", "mean over the worst tenth of the clients, before → after"),
    ("virtual_seconds", "Virtual time", "all rounds, by the clients' speeds, however many gradients a step needs"),
    ("virtual_seconds_to_target", "Virtual time to {target}", "first such evaluated round, median over seeds"),
    ("participants", "Participants", "clients per round whose uploads counted, mean over rounds and seeds"),
    ("epsilon", "Epsilon", "privacy spent at the end, the largest of the seeds"),
    ("rates", "Rates from", "where the learning rates come from; tuned: a search"),
    ("status", "Status", "completed, or how many seeds ended otherwise"),
)  # fmt: skip


def shown_columns(table: pd.DataFrame) -> list[TableColumn]:
    """Choose the columns of the final table in the order and words of the report."""
    metric = words.join_values(map(words.metric_words, table["metric"]))
    texts = {
        "metric": metric,
        "metric_title": words.metric_title(metric),
        "target": words.join_values(words.format_number(value, 3) for value in table["target"].dropna()) or "target",
        "chosen": words.join_values(map(words.metric_words, table["best_metric"])),
        "leading": words.join_values(np.where(table["higher_is_better"], "highest", "lowest")),
        "window": words.join_values(table["last_window"]),
        "evaluations": words.join_values(table["last_evaluations"].dropna().astype(int)),
        "early": words.join_values(table["early_window"]),
        "local_steps": words.join_values(table["local_steps"].dropna().astype(int)),
    }
    optional = [column for column in _OPTIONAL if (table[column[0]].notna() & (table[column[0]] != "")).any()]
    columns = (*_COLUMNS, *optional)
    return [TableColumn(name, header.format(**texts), hint.format(**texts)) for name, header, hint in columns]


def table_rows(table: pd.DataFrame) -> list[Row]:
    """The rows of a table as dictionaries."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def short_table(table: pd.DataFrame) -> list[list[str]]:
    """Return the header and the rows of the table's most important columns, which fit a terminal."""
    columns = [column for name in SHORT for column in shown_columns(table) if column.name == name]
    rows = [[c.text(row) if c.name != "behind" else write_behind(row, is_short=True) for c in columns]
        for row in table_rows(table)]  # fmt: skip
    return [[column.header for column in columns], *rows]


def to_latex(table: pd.DataFrame) -> str:
    """Write the most important columns for LaTeX with the package booktabs."""
    header, *rows = [[cell.replace("→", "to") for cell in row] for row in short_table(table)]
    form = "l" + "r" * len(header[1:])
    text = pd.DataFrame(rows, columns=header).to_latex(index=False, escape=True, column_format=form)
    return text.replace("±", "$\\pm$").replace("–", "--").replace("′", "$'$")


def to_markdown(table: pd.DataFrame) -> str:
    """Write the final table as a GitHub Markdown table."""

    def write(text: str) -> str:
        return escape(" ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|"), quote=False)

    columns = shown_columns(table)
    rows = [[column.header for column in columns], [":--" if column.is_text else "--:" for column in columns]]
    rows += [[column.text(row) for column in columns] for row in table_rows(table)]
    return "".join(f"| {' | '.join(map(write, row))} |\n" for row in rows)


def to_csv(table: pd.DataFrame) -> str:
    """Write a table as CSV with full precision; `inf` rounds to a target mean that it was not reached."""
    internal = {"problem", "commonest", "finals", "earlies", "early_rounds", "arrivals", "is_share"}
    shown = [name for name in table.columns if name not in internal and not name.endswith("_p_within_point")]
    return table[shown].to_csv(index=False, lineterminator="\n")

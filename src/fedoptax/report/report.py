"""Everything that a report says, computed once for tables, figures and page, with verdicts as far as seeds allow."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedoptax.errors import check_int, check_number
from fedoptax.experiments.tuning import SearchResult
from fedoptax.report.clients import ClientBands, find_client_bands
from fedoptax.report.curves import MetricCurves, find_metrics
from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run, find_folders, load_run, load_runs
from fedoptax.report.paired import LEAST_PAIRS, LEVEL
from fedoptax.report.partition import Partition, find_partitions
from fedoptax.report.searches import HeatMap, Profile, load_searches, make_heat_map, make_profiles
from fedoptax.report.tables import Row, final_table, table_rows
from fedoptax.report.words import format_count, format_number, format_spread, join_words, metric_words

BEST_POINTS = 6  # the number of points whose curves the report on a search shows


class Verdict(NamedTuple):
    """The verdict on the groups of one task."""

    leader: str  # the label of the group with the best mean of final values
    is_clear: bool  # whether its distance from each other group is significant
    text: str


class Report(NamedTuple):
    """A report on runs."""

    runs: Sequence[Run]
    groups: Sequence[Group]
    metrics: Sequence[MetricCurves]  # first the primary one, or that of the search
    table: pd.DataFrame  # as `final_table` makes it
    verdicts: Sequence[Verdict]
    partitions: Sequence[Partition]
    client_bands: Sequence[ClientBands]
    searches: Sequence[tuple[SearchResult, HeatMap | None]]
    profiles: Sequence[Profile]
    is_of_search: bool  # whether the runs are the best points of searches


def load_report(path: str | Path, target: float | None = None, early: int | None = None) -> Report:
    """Evaluate all runs and searches at or below a folder, or else the best points of the searches; see `final_table`.

    Raises:
      UsageError: the target is not finite, or `early` is below 1.
      RunError: there is no run, or one is damaged.
    """
    if target is not None:
        check_number("target", target)
    if early is not None:
        check_int("early", early)
    searches = load_searches(Path(path))
    best = [load_run(one.folder, {"command": of.search.command}) for of in searches for one in of.ranked[:BEST_POINTS]]
    is_of_search = bool(best) and all(mark == "tune.json" for _, mark, _ in find_folders(Path(path)))
    runs = best if is_of_search else load_runs(path)
    groups = group_runs(runs)
    table = final_table(runs, target, early)
    order = [group.algorithm for group in groups] + [result.search.algorithm for result in searches]
    searches.sort(key=lambda result: order.index(result.search.algorithm))
    metrics = find_metrics(groups)
    if is_of_search:  # all of the page is by the metric that ranks the points
        metrics.sort(key=lambda metric: metric.name != searches[0].search.rule.metric)
    verdicts, partitions = [] if is_of_search else find_verdicts(table), find_partitions(groups)
    maps = [(result, make_heat_map(result)) for result in searches]
    return Report(
        runs, groups, metrics, table, verdicts, partitions, find_client_bands(groups), maps, make_profiles(searches),
        is_of_search,
    )  # fmt: skip


def find_verdicts(table: pd.DataFrame) -> list[Verdict]:
    """Judge each task on which at least two groups completed; other groups are not ranked."""
    verdicts = []
    for _, of_one in table.groupby("problem", sort=False):
        ended = [row for row in table_rows(of_one) if row["complete"] and math.isfinite(row["final"])]
        unranked = [row["algorithm"] for row in table_rows(of_one) if not row["complete"] and row["counted"]]
        verdicts += [_judge(ended, unranked)] if len(ended) > 1 else []
    return verdicts


def _judge(rows: Sequence[Row], unranked: Sequence[str]) -> Verdict:
    (leader,) = [row for row in rows if row["standing"]]
    name, metric = leader["algorithm"], metric_words(leader["metric"])
    text = f"{name} has the {leader['standing']} final {metric}, {format_spread(leader['final'], leader['final_std'])}"
    common = set.intersection(*(set(row["finals"]) for row in rows))
    if len(common) >= LEAST_PAIRS and any(row["finals"].keys() != common for row in rows):
        text += f", by the mean over the {format_count(len(common), 'seed')} in common"
    if math.isfinite(leader["commonest"]):
        text += f", against {format_number(leader['commonest'])} for the commonest class"
    if unranked:
        text += f"; {join_words(unranked)}, of which not all seeds completed, cannot be ranked"
    if any(math.isnan(row["final_std"]) for row in rows):
        why = "Each ran with one seed" if all(row["seeds"] == 1 for row in rows) else "Some ran with one seed"
        return Verdict(name, False, f"{text}. {why}, so how far chance moves these values is unknown.")
    if any(row["pairs"] < LEAST_PAIRS for row in rows if row is not leader):
        text += f"; too few seeds in common for a paired test, which needs {LEAST_PAIRS}."
        return Verdict(name, False, text)
    text = f"{text} ({format_count(leader['seeds'], 'seed')}); {_describe_tests(rows, '', leader['higher_is_better'])}."
    close = [row["algorithm"] for row in rows if row["p_within_point"] < LEVEL]
    text += f" Equivalent within a percentage point: {join_words(close)}." if close else ""
    early = [row for row in rows if row["early_standing"]]
    if early and any(math.isfinite(row["early_p"]) for row in rows):
        text += f" Early, as the mean of the first {format_count(early[0]['early_window'], 'round')}, "
        text += f"{early[0]['algorithm']} has the {early[0]['early_standing']}, {format_number(early[0]['early'])}; "
        text += f"{_describe_tests(rows, 'early_', leader['higher_is_better'])}."
    return Verdict(name, leader["standing"] == "best", f"{text} Tests are paired over seeds, with Holm's correction.")


def _describe_tests(rows: Sequence[Row], prefix: str, higher_is_better: bool) -> str:
    """Say of which others the leader's distance is significant, with the next one's or the smallest p."""
    others = [row for row in rows if not row[f"{prefix}standing"] and math.isfinite(row[f"{prefix}p"])]
    near = [row for row in others if not row[f"{prefix}p"] < LEVEL]
    if near:
        names = join_words([row["algorithm"] for row in near]) if len(near) <= 4 else f"{len(near)} others"
        least = min(row[f"{prefix}p"] for row in near)
        return f"the difference from {names} is not significant (p {'≥ ' if least < 1 else ''}{least:.2g})"
    second = min(others, key=lambda row: row[f"{prefix}behind"])
    gap, low, high = (format_number(second[f"{prefix}{name}"], 2) for name in ("behind", "low", "high"))
    worse = "lower" if higher_is_better else "higher"
    p = f"p ≤ {max(row[f'{prefix}p'] for row in others):.2g}"
    if len(others) == 1:
        return f"{second['algorithm']} is significantly {worse}, by {gap} [{low}, {high}] ({p.replace('≤ ', '')})"
    return f"all others are significantly {worse} ({p}); {second['algorithm']} follows, {gap} {worse} [{low}, {high}]"

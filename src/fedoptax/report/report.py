"""Everything that a report says, computed once for tables, figures and page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedoptax.errors import check_int, check_number
from fedoptax.experiments.tuning import SearchResult
from fedoptax.report.clients import ClientBands, find_client_bands
from fedoptax.report.curves import Metric, find_metrics
from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run, check_related, find_folders, load_run, load_runs
from fedoptax.report.partition import Partition, find_partitions
from fedoptax.report.searches import HeatMap, Profile, load_searches, make_heat_map, make_profiles
from fedoptax.report.tables import final_table
from fedoptax.report.verdicts import Verdict, find_verdicts

BEST_POINTS = 6  # the number of points whose curves the report on a search shows


@dataclass(frozen=True, eq=False)
class Report:
    """A report on runs."""

    runs: Sequence[Run]
    groups: Sequence[Group]
    metrics: Sequence[Metric]  # first the primary one, or that of the search
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
      UsageError: the target is not finite, `early` is below 1, or runs deep below the folder are unrelated.
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
    of_searches = [(result.folder, result.search.task["name"]) for result in searches]
    of_runs = [] if is_of_search else [(run.path, run.config["task"]["name"]) for run in runs]
    check_related(Path(path), of_searches + of_runs)
    groups = group_runs(runs)
    table = final_table(runs, target, early)
    order = [group.algorithm for group in groups] + [result.search.algorithm for result in searches]
    searches.sort(key=lambda result: order.index(result.search.algorithm))
    metrics = find_metrics(groups)
    if is_of_search:  # all of the page is by the metric that ranks the points
        metrics.sort(key=lambda metric: metric.name != searches[0].search.rule.metric)
    return Report(
        runs=runs,
        groups=groups,
        metrics=metrics,
        table=table,
        verdicts=[] if is_of_search else find_verdicts(table),
        partitions=find_partitions(groups),
        client_bands=find_client_bands(groups),
        searches=[(result, make_heat_map(result)) for result in searches],
        profiles=make_profiles(searches),
        is_of_search=is_of_search,
    )

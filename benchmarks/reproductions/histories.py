"""Histories of a recipe's runs in two files: NAME.parquet has every round, NAME.toml how the runs were made.

A row is a round of a run. `run` is the run's place (STEP/ALGORITHM/seed-N, STEP/point-N of a search, or
STEP/tuning/ALGORITHM/point-N), `config` and `summary` are its config.json and summary.json; all three repeat, which
costs nothing in Parquet. Losses and metrics are float32 wherever that keeps them exactly. Left out are the classes of
each client's examples, the seconds of single rounds (`summary` has their median and their sum), and of the searches
before a comparison all metrics but the one that ranks their points.
"""

import json
import math
import os
import platform
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from fedoptax._files import read_json
from fedoptax.experiments.selection import Rule
from fedoptax.report.load import Run

RUNS = Path(__file__).parent / "runs"
QUEUE = Path(__file__).parent / "queue.parquet"
REPEATED = ("run", "config", "summary")
ENDED = ("completed", "stopped early", "diverged")


def pack(place: Path, name: str, commit: str, runs: Path = RUNS) -> None:
    """Add the folder of a step to a recipe's histories, in place of what they have of it.

    Runs in progress are left out.
    """
    about, tables = {}, []
    if (runs / f"{name}.toml").is_file():
        about = tomllib.loads((runs / f"{name}.toml").read_text(encoding="utf-8"))
        rows = pd.read_parquet(runs / f"{name}.parquet")
        tables = [rows[~rows["run"].str.startswith(f"{place.name}/")]]
    done = [path.parent for path in sorted(place.rglob("summary.json")) if read_json(path)["status"] != "running"]
    tables += [read_run(run, run.relative_to(place.parent).as_posix()) for run in done]
    about[place.name] = describe_step(place, commit)
    table = pd.concat(tables, ignore_index=True)
    for column in table.columns.difference(REPEATED):
        values = pd.to_numeric(table[column], errors="coerce").astype(float)
        whole = column == "round" or column.startswith("bytes_")
        exact = whole or np.array_equal(values, values.astype(np.float32), equal_nan=True)
        table[column] = values.astype("Int64" if whole else "float32" if exact else "float64")
    table = table.astype(dict.fromkeys(REPEATED, "category"))
    runs.mkdir(exist_ok=True)
    # losses are seldom alike: bytes of one place side by side instead of a dictionary, two thirds of the file
    varied = [column for column in table.select_dtypes("float") if table[column].nunique() * 8 > len(table)]
    forms = {"use_dictionary": [column for column in table if column not in varied], "use_byte_stream_split": varied}
    table.to_parquet(runs / f"{name}.parquet", compression="zstd", compression_level=19, index=False, **forms)
    (runs / f"{name}.toml").write_text(tomli_w.dumps(about), encoding="utf-8")


def has_ended(step: Path) -> bool:
    """Return whether a step's folder has the results of all its runs."""
    if not (step / "compare.json").is_file() and not (step / "tune.json").is_file():
        return False
    runs = [path for path in step.rglob("summary.json") if path.relative_to(step).parts[0] != "tuning"]
    ended = [read_json(path)["status"] in ENDED for path in runs]
    return all(ended) and len(ended) >= expected_runs(step)


def expected_runs(step: Path) -> int:
    """Count the runs of a comparison's seeds, or the points of a search."""
    if (step / "tune.json").is_file():
        record = read_json(step / "tune.json")
        return record["trials"] or math.prod(map(len, record["grid"].values()))
    record = read_json(step / "compare.json")
    return len(record["algorithms"]) * len(record["seeds"])


def read_run(folder: Path, place: str) -> pd.DataFrame:
    """Read a run's folder as rows."""
    config, summary = read_json(folder / "config.json"), read_json(folder / "summary.json")
    (config.get("partition") or {}).pop("label_counts", None)
    rows = pd.read_json(folder / "history.jsonl", lines=True, precise_float=True)
    if "seconds" in rows:
        summary["seconds_per_round"] = float(rows.pop("seconds").median())
    if "/tuning/" in place:
        ranking = read_json(folder.parent / "tune.json")["rule"]["metric"]
        rows = rows[rows.columns.intersection(["round", "train_loss", ranking])]
    if rows.empty:  # diverged before a round was recorded: a round 0 keeps its place
        rows = pd.DataFrame({"round": [0]})
    for column, value in zip(REPEATED, (place, json.dumps(config), json.dumps(summary)), strict=True):
        rows[column] = value
    return rows


def describe_step(step: Path, commit: str) -> dict[str, Any]:
    """Return what the TOML file says of a step: command, versions, dates, and what was searched."""
    summaries = [read_json(path) for path in step.rglob("summary.json")]
    ended = [time.gmtime(summary["ended"]) for summary in summaries if "ended" in summary]
    record = read_json(step / ("compare.json" if (step / "compare.json").is_file() else "tune.json"))
    searches = record.get("tunings", {}) if "algorithms" in record else {record["algorithm"]: record}
    hyperparameters = record.get("hyperparameters", {})
    config = min(step.rglob("config.json"), key=lambda path: path.relative_to(step).parts[0] == "tuning")
    where = read_json(config).get("environment", {})
    device, jax = where.get("device", "cpu").removeprefix("gpu: "), {"jax": where["jax"]} if "jax" in where else {}
    return {
        "command": record["command"].partition(" --out ")[0],
        "is_whole": has_ended(step),
        "first": time.strftime("%Y-%m-%d", min(ended)),
        "last": time.strftime("%Y-%m-%d", max(ended)),
        "seconds": round(sum(summary["seconds"] for summary in summaries)),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores" if device.startswith("cpu") else device,
        "python": where.get("python", platform.python_version()),
        "versions": {name: version(name) for name in ("fedoptax", "jax", "optax", "numpy")} | jax,
        "algorithms": record.get("algorithms", [record.get("algorithm")]),
        "searches": {
            algorithm: {name: search[name] for name in ("seed", "rule")}
            | describe_points(step, algorithm, search["grid"])
            | {"found": {k: v for k, v in hyperparameters.get(algorithm, {}).items() if k in search["grid"]}}
            for algorithm, search in searches.items()
        },
    }


def describe_points(step: Path, algorithm: str, grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of points of a search, and the values that they have: of one that zooms more than its grid."""
    place = step / "tuning" / algorithm if (step / "tuning").is_dir() else step
    points = [read_json(path)["algorithm"]["hyperparameters"] for path in place.glob("point-*/config.json")]
    values = {name: {point[name] for point in points if name in point} - {*grid[name]} for name in grid}
    return {
        "points": len(points),
        "grid": {name: sorted({*grid[name]} | more) if (more := values[name]) else grid[name] for name in grid},
    }


@dataclass(frozen=True)
class Step:
    """The runs of a step, by algorithm and seed, and the points of its search, if it is one."""

    name: str
    about: Mapping[str, Any]
    runs: Mapping[str, Mapping[int, Run]]
    points: Mapping[str, Run]

    @property
    def any_run(self) -> Run:
        """A run, for what all have in common: the first of those with the most rounds, as some may have diverged."""
        return max(
            (run for runs in (self.points, *self.runs.values()) for run in runs.values()), key=lambda run: len(run.rows)
        )

    @property
    def devices(self) -> str:
        """Words for the runs on one device where that is not the number of the cores, as with older versions."""
        runs = dict(self.points) | {
            f"{name} seed {s}": run for name, some in self.runs.items() for s, run in some.items()
        }
        others = [
            name for name, run in runs.items()
            if run.config["mesh"] > 1 or not run.config["environment"]["device"].startswith("cpu")
        ]  # fmt: skip
        more = f" (more for {', '.join(others)})" if others else ""
        return f", one device{more}" if len(others) < len(runs) else ""

    @property
    def size(self) -> int:
        """The number of runs."""
        return len(self.points) + sum(map(len, self.runs.values()))

    @property
    def seed(self) -> int:
        """The seed of the search."""
        return int(next(iter(self.about["searches"].values()))["seed"])

    def rule(self) -> Rule:
        """How the points of the search are ranked."""
        return Rule(**next(iter(self.about["searches"].values()))["rule"])

    @cached_property
    def scores(self) -> list[tuple[dict[str, Any], float]]:
        """Return each point's values and its score, best first, those without a score last."""
        rule, grid = self.rule(), next(iter(self.about["searches"].values()))["grid"]
        found = []
        for run in self.points.values():
            rounds = zip(run.rows["round"], run.rows[rule.metric])
            rows = [{"round": place, rule.metric: None if math.isnan(value) else value} for place, value in rounds]
            values = {name: run.config["algorithm"]["hyperparameters"].get(name) for name in grid}
            found.append((values, rule.score(rows, run.summary["status"])))
        sign = -1 if rule.higher_is_better else 1
        return sorted(found, key=lambda point: (math.isnan(point[1]), sign * point[1]))


def read(name: str, runs: Path = RUNS) -> dict[str, Step]:
    """Read the steps of a recipe, each from its own files or from the queue, whichever has more runs."""
    steps = read_queue(name)
    if (runs / f"{name}.toml").is_file():
        about = tomllib.loads((runs / f"{name}.toml").read_text(encoding="utf-8"))
        table = pd.read_parquet(runs / f"{name}.parquet")
        for step in about:
            diverged = _count_diverged(table, step)
            for algorithm, search in about[step]["searches"].items():
                search["diverged"] = diverged[algorithm.replace(":", ".")]
        own = [_make_step(step, about[step], dict(_split(table, step))) for step in about]
        least = {name: step.size for name, step in steps.items()}
        # a comparison of which nothing but searches has run has no step yet
        steps |= {step.name: step for step in own if step.size >= max(1, least.get(step.name, 0))}
    return steps


def read_queue(name: str) -> dict[str, Step]:
    """Read the steps of a recipe of which jobs of the queue, NAME/STEP/ALGORITHM/seed-N, have ended."""
    if not QUEUE.is_file():
        return {}
    entries = tomllib.loads(QUEUE.with_suffix(".toml").read_text(encoding="utf-8"))["runs"]
    jobs = {f"{e['name']}/{a}/seed-{seed}" for e in entries for a in e["algorithms"] for seed in e.get("seeds", [0])}
    table = pd.read_parquet(QUEUE)
    table = table[table["job"].str.startswith(f"{name}/") & table["status"].isin(ENDED)]
    steps = {}
    for step, rows in table.groupby(table["run"].str.split("/").str[0], sort=False):
        ended = rows.drop_duplicates("job")
        summaries = [json.loads(text) for text in ended["summary"]]
        days = sorted(time.strftime("%Y-%m-%d", time.gmtime(summary["ended"])) for summary in summaries)
        about = {
            "is_whole": {job for job in jobs if job.startswith(f"{name}/{step}/")} <= set(ended["job"]),
            "first": days[0], "last": days[-1], "searches": {}, "python": "3",
            "seconds": sum(summary["seconds"] for summary in summaries), "machine": ended["device"].iloc[0],
            "commit": ended["commit"].iloc[0], "versions": {"jax": ended["jax"].iloc[0]},
            "algorithms": list(dict.fromkeys(ended["run"].str.split("/").str[1])),
        }  # fmt: skip
        rows = rows.drop(columns=["job", "command", "status", "device", "commit", "jax"])
        steps[step] = _make_step(step, about, dict(_split(rows, step)))
    return steps


def _count_diverged(table: pd.DataFrame, step: str) -> Counter[str]:
    """Count the points that diverged in the searches before a comparison, by algorithm."""
    points = table.loc[table["run"].str.startswith(f"{step}/tuning/"), ["run", "summary"]].drop_duplicates("run")
    return Counter(points["run"].str.split("/").str[2][points["summary"].str.contains('"status": "diverged"')])


def _split(table: pd.DataFrame, step: str) -> Iterator[tuple[str, Run]]:
    """Yield a step's runs by their place in it; of searches that came before a comparison, none."""
    part = table[table["run"].str.startswith(f"{step}/") & ~table["run"].str.startswith(f"{step}/tuning/")]
    firsts = part.drop_duplicates("run")
    rounds = part[part["round"] > 0].drop(columns=list(REPEATED))
    by_run = dict(iter(rounds.groupby(part["run"], sort=False, observed=True)))
    for place, config, summary in zip(firsts["run"], firsts["config"], firsts["summary"]):
        rows = by_run.get(place, rounds[:0])
        yield place.removeprefix(f"{step}/"), Run(Path(place), json.loads(config), rows, json.loads(summary))


def _make_step(name: str, about: Mapping[str, Any], found: Mapping[str, Run]) -> Step:
    points = {place: run for place, run in found.items() if place.startswith("point-")}
    runs: dict[str, dict[int, Run]] = {algorithm: {} for algorithm in about["algorithms"]} if not points else {}
    for place, run in found.items():
        if place not in points:
            runs.setdefault(place.split("/")[0], {})[int(run.config["seed"])] = run
    return Step(name, about, runs, points)

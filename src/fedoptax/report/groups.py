"""Runs that differ only by their seed, taken together under one label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedoptax.report.load import Run
from fedoptax.report.words import faults_in_words, setting

#: Fields of a config that follow from the others, name the place, differ by seed, or change no result (see
#: `record.refuse_another`): they make no new group.
NOT_SETTINGS = frozenset(
    {
        "format", "kind", "fedoptax", "seed", "num_params", "bytes", "partition", "environment", "command",
        "primary_metric", "higher_is_better", "out", "trackers", "task.seed", "task.description", "task.data_dir",
        "algorithm.reference", "client_states", "client_loop", "mesh", "deployment.experiment",
    }
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm with one set of settings, a run a seed.

    Attributes:
      label: what tables and figures call it; no two groups share one.
      index: its place, which gives its colour and marker everywhere.
      runs: one a seed, in the order they were found.
      problem: the same for groups that solve the same task and so can be ranked.
    """

    label: str
    index: int
    runs: tuple[Run, ...]
    problem: str

    @property
    def config(self) -> Mapping[str, Any]:
        """The config of the first run."""
        return self.runs[0].config

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return str(self.config["algorithm"]["name"])

    @property
    def metric(self) -> str:
        """The history column that the group is judged by."""
        return self.runs[0].metric

    @property
    def higher_is_better(self) -> bool:
        """Whether more of `metric` is better."""
        return self.runs[0].higher_is_better

    @property
    def complete(self) -> bool:
        """Whether every run came to its end."""
        return all(run.status == "completed" for run in self.runs)

    @property
    def diverged(self) -> bool:
        """Whether any run diverged."""
        return any(run.status == "diverged" for run in self.runs)

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that end values are taken from.

        These are the completed ones; if there is none, all that did not diverge.
        """
        whole = tuple(run for run in self.runs if run.status == "completed")
        return whole or tuple(run for run in self.runs if run.status != "diverged")

    @property
    def status(self) -> str:
        """The status of all runs, or how many of them have which."""
        states = [run.status for run in self.runs]
        if len(set(states)) == 1:
            return states[0]
        odd = [state for state in dict.fromkeys(states) if state != "completed"]
        return ", ".join(f"{states.count(state)} of {len(states)} {state}" for state in odd)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The groups of some runs, in the order of each group's first run."""
    members: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    settings: list[dict[str, str]] = []
    for run in runs:
        key, plain = _free_key(run, members)
        if key not in members:
            settings.append(plain)
        members[key].append(run)
    labels = _labels(settings)
    return [
        Group(label, index, tuple(group), _problem(plain, group[0]))
        for index, (label, plain, group) in enumerate(zip(labels, settings, members.values(), strict=True))
    ]


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        full = f"{prefix}{name}"
        if full in NOT_SETTINGS:
            continue
        if full == "faults":  # eight numbers, of which most say nothing
            flat[full] = faults_in_words(item)
            continue
        flat |= flatten(item, f"{full}.") if isinstance(item, dict) else {full: item}
    return flat


def _free_key(
    run: Run, members: Mapping[tuple[tuple[str, str], ...], list[Run]]
) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """The run's settings; a repetition of settings and seed is counted, so that it does not pass as a seed."""
    plain = {name: setting(value) for name, value in flatten(run.config).items()}
    copy = 1
    while True:
        counted = plain | {"copy": str(copy)}
        key = tuple(sorted(counted.items()))
        if all(other.config["seed"] != run.config["seed"] for other in members.get(key, [])):
            return key, counted
        copy += 1


def _problem(plain: Mapping[str, str], run: Run) -> str:
    task = {name: value for name, value in plain.items() if name.startswith("task.")}
    return repr((sorted(task.items()), run.metric, run.higher_is_better))


def _labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The algorithm's name each, followed by what tells it from others of that name."""
    by_name: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for plain in settings:
        by_name[plain["algorithm.name"]].append(plain)
    labels: list[str] = []
    for plain in settings:
        name = plain["algorithm.name"]
        namesakes = by_name[name]
        fields = dict.fromkeys(field for other in namesakes for field in other)
        differing = [field for field in fields if len({other.get(field) for other in namesakes}) > 1]
        parts = [f"{field.rsplit('.', 1)[-1]}={plain[field]}" for field in differing if field in plain]
        label = f"{name} ({', '.join(parts)})" if parts else name
        while label in labels:
            label += "′"
        labels.append(label)
    return labels

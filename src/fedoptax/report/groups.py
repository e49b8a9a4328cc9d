"""Runs that differ only by their seed, taken together under one label."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flax.traverse_util import flatten_dict

from fedoptax.engine.options import RunOptions, options_of
from fedoptax.names import BASELINES
from fedoptax.report.load import Run
from fedoptax.report.words import describe_faults, format_count, format_setting, join_words

#: Config fields that make no group: they follow from others, name a place, differ by seed, or change no result.
NOT_SETTINGS = {
    "format", "kind", "fedoptax", "seed", "num_params", "bytes", "gradients_per_step", "partition", "environment",
    "command", "primary_metric", "higher_is_better", "out", "trackers", "task.seed", "task.description",
    "task.data_dir", "algorithm.reference", "deployment.experiment", "rates", "metrics",
    "majority", "positive", "client_names", "paper_weighting",  # which older versions did not record
    *(name for name, about in options_of(RunOptions).items() if not about.changes_result),
}  # fmt: skip
#: Settings that should be equal where methods are ranked, so that rows name them where they are not.
FOOTING = (
    "rounds", "cohort_size", "batch_size", "local_epochs", "local_steps", "stop_after", "eval_every", "eval_last",
    "asynchronous", "aggregate", "secure_aggregation", "faults", "speeds", "wrappers.compress", "wrappers.privacy",
    "wrappers.personal",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm with one set of settings, one run per seed."""

    label: str  # in tables and figures; no two groups share one
    index: int  # the position in the report, which decides colour and marker
    runs: tuple[Run, ...]  # in the order of the folders
    problem: str  # equal for groups that solve the same task and so can be ranked
    config: Mapping[str, Any]  # of the first run
    metric: str  # the history column that the group is judged by
    higher_is_better: bool

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return str(self.config["algorithm"]["name"])

    @property
    def is_diverged(self) -> bool:
        """Whether any run diverged."""
        return any(run.status == "diverged" for run in self.runs)

    @property
    def counted_runs(self) -> tuple[Run, ...]:
        """The runs that final values are taken from: the completed ones, else all that did not diverge."""
        completed = tuple(run for run in self.runs if run.is_complete)
        return completed or tuple(run for run in self.runs if run.status != "diverged")

    @property
    def status(self) -> str:
        """The status of all runs, or how many have which."""
        states = [run.status for run in self.runs]
        if len(set(states)) == 1:
            return states[0]
        odd = [state for state in dict.fromkeys(states) if state != "completed"]
        return ", ".join(f"{states.count(state)} of {len(states)} {state}" for state in odd)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by their settings, in the order of each group's first run."""
    members: dict[frozenset[tuple[str, str]], list[Run]] = defaultdict(list)
    settings: list[dict[str, str]] = []
    for run in runs:
        plain = {name: format_setting(value) for name, value in flatten(run.config).items()} | {"copy": "1"}
        key = frozenset(plain.items())
        while any(other.config["seed"] == run.config["seed"] for other in members[key]):
            plain["copy"] = str(int(plain["copy"]) + 1)  # a repetition must not pass as another seed
            key = frozenset(plain.items())
        if not members[key]:
            settings.append(plain)
        members[key].append(run)
    groups = []
    for index, (label, plain, of) in enumerate(zip(_labels(settings), settings, members.values(), strict=True)):
        metric, higher_is_better = of[0].metric, of[0].higher_is_better
        problem = repr((_task_of(plain), metric, higher_is_better))
        groups.append(Group(label, index, tuple(of), problem, of[0].config, metric, higher_is_better))
    return groups


def title_of(groups: Sequence[Group]) -> str:
    """Write a heading: the algorithms and the tasks, or how many there are."""
    names = list(dict.fromkeys(group.algorithm for group in groups))
    tasks = list(dict.fromkeys(str(run.config["task"]["name"]) for group in groups for run in group.runs))
    who = join_words(names) if len(names) <= 3 else format_count(len(names), "algorithm")
    where = join_words(tasks) if len(tasks) <= 3 else format_count(len(tasks), "task")
    return f"{who} on {where}"


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the settings in a config to one level with dotted names."""
    faults = {"faults": describe_faults(config["faults"])} if "faults" in config else {}
    flat = flatten_dict({**config, **faults}, sep=".")
    return {name: item for name, item in flat.items() if not {name, name.partition(".")[0]} & NOT_SETTINGS}


def _task_of(plain: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(item for item in plain.items() if item[0].startswith("task."))


def _differs(field: str, settings: Sequence[Mapping[str, str]]) -> bool:
    return len({plain.get(field) for plain in settings}) > 1


def _labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Name each group by its algorithm and the settings that differ within that name, or make footing unequal."""
    labels: list[str] = []
    for plain in settings:
        name = plain["algorithm.name"]
        namesakes = [other for other in settings if other["algorithm.name"] == name]
        rivals = [other for other in settings if _task_of(other) == _task_of(plain)]
        rivals = [other for other in rivals if not {name, other["algorithm.name"]} & set(BASELINES)]
        differing = [
            field for field in dict.fromkeys(field for other in settings for field in other)
            if _differs(field, namesakes) or (field in FOOTING and _differs(field, rivals))
        ]  # fmt: skip
        parts = [f"{field.rsplit('.', 1)[-1]}={plain[field]}" for field in differing if field in plain]
        label = f"{name} ({', '.join(parts)})" if parts else name
        while label in labels:
            label += "′"
        labels.append(label)
    return labels

"""What a run's files must look like to be believed: they may come from other people, or be damaged.

`storage.folder.read_json` says that a file is JSON; this says that its fields are of the types and sizes that
reports and resuming rely on. What nobody relies on may be anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedoptax.errors import RunError, brief

LARGEST = 2**53
"""The largest whole number that is believed: of rounds, examples, bytes."""

_Law = tuple[Callable[[Any], bool], str]  # what holds of a value, and how to say it


def is_whole(value: Any) -> bool:
    """Whether it is a number of rounds, examples or bytes that is believed."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_number(value: Any) -> bool:
    """NaN is one: JSON of other programs may hold it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isinf(_float(value))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_rectangle(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(row, list) and row for row in value):
        return False
    return all(len(row) == len(value[0]) and all(map(is_whole, row)) for row in value)


def _table_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _or_none(law: _Law) -> _Law:
    return (lambda value: value is None or law[0](value)), f"{law[1]} or null"


_TEXT: _Law = (lambda value: isinstance(value, str), "text")
_BOOL: _Law = (lambda value: isinstance(value, bool), "true, false")
_WHOLE: _Law = (is_whole, "a whole number")
_NUMBER: _Law = (_is_number, "a number")
_TABLE: _Law = (lambda value: isinstance(value, dict), "an object")
_SIZES: _Law = (_list_of(is_whole), "a list of whole numbers")
_COUNTS: _Law = (_is_rectangle, "a list of equally long lists of whole numbers")

_NEEDED: dict[str, _Law] = {
    "task": _TABLE,
    "task.name": _TEXT,
    "algorithm": _TABLE,
    "algorithm.name": _TEXT,
    "rounds": _WHOLE,
    "seed": _WHOLE,
}
_CONFIG: dict[str, _Law] = {
    "algorithm.hyperparameters": _TABLE,
    "algorithm.reference": _TEXT,
    **dict.fromkeys(
        ("cohort_size", "batch_size", "local_epochs", "local_steps", "eval_every", "num_params", "mesh"), _WHOLE
    ),
    "weighting": _TEXT,
    **dict.fromkeys(("client_states", "aggregate", "client_loop"), _TEXT),
    "faults": _TABLE,
    "wrappers": (_table_of(_TEXT[0]), "an object of texts"),
    "bytes": _TABLE,
    "bytes.down_per_client": _NUMBER,
    "bytes.up_per_client": _NUMBER,
    "primary_metric": _TEXT,
    "higher_is_better": _BOOL,
    "partition": _TABLE,
    "partition.sizes": _SIZES,
    "partition.label_counts": _COUNTS,
    "partition.heterogeneity": _NUMBER,
    "environment": _TABLE,
    "trackers": (_list_of(_TEXT[0]), "a list of texts"),
}
_SUMMARY: dict[str, _Law] = {"status": _TEXT}
_SUMMARY_FREE: dict[str, _Law] = {"rounds_done": _WHOLE, "message": _TEXT}
_COMPARISON: dict[str, _Law] = {
    "algorithms": (_list_of(_TEXT[0]), "a list of texts"),
    "seeds": _SIZES,
    "hyperparameters": (_table_of(_TABLE[0]), "an object of objects"),
    "task": _TABLE,
    "task.name": _TEXT,
    "options": _TABLE,
}
_PLAIN = _list_of(lambda value: isinstance(value, str | bool) or (_is_number(value) and math.isfinite(value)))
_TUNING: dict[str, _Law] = {
    "algorithm": _TEXT,
    "grid": (_table_of(lambda value: bool(value) and _PLAIN(value)), "an object of lists of numbers and words"),
    "fixed": _TABLE,
    "rule": _TABLE,
    "rule.metric": _TEXT,
    "rule.last": _WHOLE,
    "rule.higher_is_better": _BOOL,
    "seed": _WHOLE,
    "task": _TABLE,
    "task.name": _TEXT,
    "options": _TABLE,
    "options.rounds": _WHOLE,
    "search": _TEXT,
    "trials": _WHOLE,
    "command": _or_none(_TEXT),
}


def check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Checks a run's config.json.

    Raises:
      RunError: a field is missing or of another type; the message names the file and the field.
    """
    _check(path, config, _NEEDED | {name: _or_none(law) for name, law in _CONFIG.items()})


def check_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Checks a run's summary.json.

    Raises:
      RunError: as in `check_config`.
    """
    _check(path, summary, _SUMMARY | {name: _or_none(law) for name, law in _SUMMARY_FREE.items()})


def check_comparison(path: Path, stored: Mapping[str, Any]) -> None:
    """Checks a comparison's compare.json, all of whose fields make folders or runs.

    Raises:
      RunError: as in `check_config`; or an algorithm has no hyper-parameters.
    """
    _check(path, stored, _COMPARISON)
    if missing := [name for name in stored["algorithms"] if name not in stored["hyperparameters"]]:
        raise RunError(f"'{path}' is damaged: algorithm '{brief(missing[0])}' has no hyper-parameters")
    tunings = stored.get("tunings", {})
    if not isinstance(tunings, dict) or not all(isinstance(tuning, dict) for tuning in tunings.values()):
        raise RunError(f"'{path}' is damaged: 'tunings' is {brief(tunings)}, an object of objects is expected")
    for name, tuning in tunings.items():
        check_tuning(path, tuning)
        if name not in stored["algorithms"] or tuning["algorithm"] != name:
            raise RunError(f"'{path}' is damaged: the search '{brief(name)}' is of no algorithm that is compared")


def check_tuning(path: Path, stored: Mapping[str, Any]) -> None:
    """Checks a search's tune.json.

    Raises:
      RunError: as in `check_config`; or a search that this version does not know.
    """
    _check(path, stored, _TUNING)
    if stored["search"] not in ("grid", "optuna"):
        raise RunError(f"'{path}' is damaged: 'search' is {brief(stored['search'])}, grid or optuna is expected")


def _check(path: Path, content: Mapping[str, Any], laws: Mapping[str, _Law]) -> None:
    for field, (holds, kind) in laws.items():
        outer, _, inner = field.partition(".")
        value = content.get(outer)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else None
        if not holds(value):
            given = "missing" if value is None else brief(value)
            raise RunError(f"'{path}' is damaged: '{field}' is {given}, {kind} is expected")

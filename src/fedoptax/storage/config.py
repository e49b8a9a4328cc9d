"""The config.json of a run: enough to repeat the run, and to report on it without the data."""

import inspect
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zlib import crc32

import jax
import numpy as np

import fedoptax
from fedoptax._files import read_json, reading, to_plain, write_json
from fedoptax.algorithms import ALGORITHMS
from fedoptax.data.heterogeneity import label_counts, measures
from fedoptax.engine.evaluation import describe_metrics, primary_metric
from fedoptax.engine.faults import Faults, as_faults
from fedoptax.engine.options import RunOptions, options_of
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import Program
from fedoptax.engine.sampling import random_settings
from fedoptax.errors import RunError
from fedoptax.tasks.custom import fingerprint
from fedoptax.tasks.metrics import Column
from fedoptax.tasks.task import Task, positive_class

FORMAT = 1
CHECKED_ROWS = 10_000  # of each split, evenly spread, that `data_checksum` is computed from
MAY_CHANGE = {
    "environment", "fedoptax", "trackers", "gradients_per_step", "rates", "metrics", "random", "deployment",
    "paper_weighting", "command", "client_names", "majority", "positive",
}  # fmt: skip
"""What may change when a run is resumed, besides the options that say so."""


def run_config(
    task: Task, algorithm: Mapping[str, Any], options: RunOptions, plan: Plan, built: Program,
    wrappers: Mapping[str, str], trackers: Sequence[Any] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the config of a run as plain data.

    `algorithm` holds its `name` and `hyperparameters`; `wrappers` are the texts of `experiments.build.WRAPPERS`. The
    program tells bytes and parameters. Trackers that have a name are noted.
    """
    options = replace(options, weighting=plan.weighting, client_states=plan.client_states, mesh=plan.mesh)
    names = [tracker for tracker in trackers if isinstance(tracker, str)]
    doc = inspect.getdoc(ALGORITHMS.get(algorithm["name"], lambda: None))
    paper = doc and doc.partition("\n")[0].partition(":")[0].rstrip(".")  # the docstring begins with it
    device = jax.devices()[0]
    split = "val" if task.test is None and task.validation is not None else "test"
    is_measured = bool(task.test or task.validation)
    primary = primary_metric(task) if is_measured else task.primary_metric
    splits = (part or {} for part in (task.clients.examples, task.test, task.validation))
    rows = [{name: np.asarray(a)[:: len(a) // CHECKED_ROWS + 1] for name, a in part.items()} for part in splits]
    classes, positive = list(map(str, () if task.classes is None else task.classes)), positive_class(task)
    return {
        "format": FORMAT,
        "kind": "run",
        "fedoptax": fedoptax.__version__,
        "task": {"name": task.name, "description": task.description, **task.spec},
        "algorithm": {**algorithm, "reference": paper},
        **record_options(options),
        **({"speeds_crc32": crc32(path.read_bytes())} if (path := Path(options.speeds or "")).is_file() else {}),
        "data_checksum": fingerprint(*rows),
        "random": random_settings(),
        **({"wrappers": dict(wrappers)} if wrappers else {}),
        **({"trackers": names} if names else {}),
        "num_params": built.num_params,
        "bytes": {"down_per_client": built.bytes_down, "up_per_client": built.bytes_up},
        "gradients_per_step": plan.gradients_per_step,
        "primary_metric": None if primary is None else str(Column(split, primary)),
        "metrics": metrics_record(task) if is_measured else {},
        "higher_is_better": task.higher_is_better,
        "majority": task.majority_rates(),
        "positive": [positive, classes[positive]] if len(classes) == 2 else None,
        **({"client_names": list(task.client_names)} if task.client_names is not None else {}),
        "partition": partition_record(task),
        "environment": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            **{name: version(name) for name in ("torch", "transformers", "peft") if name in sys.modules},
            "device": f"{device.platform}: {device.device_kind} x {jax.device_count()}",
            "system": f"{platform.system()} {platform.machine()}",
        },
    }


def record_options(options: RunOptions) -> dict[str, Any]:
    """Return the options of a run as config.json names them: always, or only where they are set and have an effect."""
    record = {}
    for name, about in options_of(RunOptions).items():
        value = getattr(options, name)
        value = asdict(value) if isinstance(value, Faults) else to_plain(value)
        default = RunOptions.__dataclass_fields__[name].default
        is_set = value != default if not about.needs else getattr(options, about.needs) is not None
        if about.in_config == "always" or (about.in_config == "if set" and is_set):
            record[name] = value
    return record


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run's config.json."""
    path = folder / "config.json"
    config = read_record(path)
    with reading(f"'{path}'", "the config of a run"):
        values = config["task"]["name"], config["algorithm"]["name"], config["rounds"], config["seed"]
        if not all(map(isinstance, values, (str, str, int, int))):
            raise TypeError("names must be texts, rounds and seed whole numbers")
        config["algorithm"]["hyperparameters"] = dict(config["algorithm"].get("hyperparameters") or {})
    return config


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass as a file that `read_record` reads."""
    write_json(path, {"format": FORMAT, **asdict(record)})


def read_record(path: Path) -> dict[str, Any]:
    """Read config.json, compare.json or tune.json, if this version supports its format."""
    content = read_json(path)
    if (version := content.pop("format", None)) != FORMAT:
        raise RunError(f"'{path}' has format {version!r}; this version of fedoptax reads {FORMAT}")
    return content


def check_same_experiment(folder: Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Check that a run to continue is the one in a folder, by comparing its config there with a new one."""
    config = to_plain(config)
    for name, new in (config.get("random") or {}).items():
        if (old := (stored.get("random") or {}).get(name)) != new:
            remedy = f"continue it with jax.config.update({name!r}, {old!r})"
            raise RunError(f"'{folder}' was made with {name}={old!r}, got {new!r}: {remedy}")
    options = options_of(RunOptions)
    may_change = MAY_CHANGE.union(name for name, about in options.items() if about.may_change)
    for name in sorted({*config, *options, "wrappers"} - may_change):
        old, new = stored.get(name), config.get(name)
        if old != new:
            raise RunError(f"'{folder}' belongs to another experiment: its {name} is {old!r}, got {new!r}")


def metrics_record(task: Task) -> dict[str, dict[str, Any]]:
    """Return by metric which way is better, and its format."""
    metrics = describe_metrics(task).items()
    return {name: {"higher_is_better": one.higher_is_better, "format": one.format} for name, one in metrics}


def partition_record(task: Task) -> dict[str, Any]:
    """Return the sizes of the clients, measures of their differences, and the classes of the first thousand."""
    sizes, counts = task.clients.sizes, count_labels(task)
    return {
        "sizes": sizes.tolist(),
        "label_counts": None if counts is None else counts[:1000].tolist(),
        "measures": {name: round(value, 4) for name, value in measures(counts, sizes).items()},
    }


def count_labels(task: Task) -> np.ndarray | None:
    """Return the number of examples per client and class, int64 (N, C); None for examples without a class."""
    labels = np.asarray(task.clients.examples.get(task.label or "", ()))
    is_whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    if not is_whole or not 0 <= labels.min() <= labels.max() < 10_000:  # numbers, not classes
        return None
    return label_counts(labels, np.split(np.arange(len(labels)), task.clients.offsets[1:-1]), int(labels.max()) + 1)


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `fedoptax.run` as JSON keeps them: aggregators and trackers by name, objects left out."""
    stored = {name: to_plain(value) for name, value in options.items() if name != "trackers"}
    if (faults := as_faults(options.get("faults"))) is not None:
        stored["faults"] = asdict(faults)
    names = [one for one in options.get("trackers") or () if isinstance(one, str)]
    return stored | ({"trackers": names} if names else {})

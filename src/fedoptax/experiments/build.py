"""From what a user types to an algorithm: names, `module:function`, `NAME=VALUE` settings, presets, wrappers."""

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms import ALGORITHMS
from fedoptax.algorithms.baselines import BASELINES
from fedoptax.errors import UsageError, check_choice
from fedoptax.experiments.presets import PAPERS, PRESETS
from fedoptax.schedules import is_schedule, parse_schedule
from fedoptax.wrappers import with_compression, with_privacy
from fedoptax.wrappers.codecs import CODECS, Codec

Constructor = Callable[..., FedAlgorithm]
RATES = ("client_lr", "server_lr", "lr")
"""The learning rates among all hyper-parameters."""
WRAPPERS = ("privacy", "compress")
PRIVACY = ("clip", "noise_multiplier", "delta", "target_quantile", "clip_lr", "bit_noise", "seed")
"""The arguments of `with_privacy` that can be typed; the first three are needed."""

_BORROWED = {"cifar100-coarse": "cifar100"}  # tasks without presets of their own start from a near one's


def find_constructor(name: str) -> Constructor:
    """Return the constructor of a name in `ALGORITHMS`, or of `module:function`, also of the current folder."""
    if isinstance(name, str) and re.search(r"[,\s]", name.strip()):
        raise UsageError(f"algorithm must be one name, got '{name}'; several: fedoptax compare --algorithms A,B")
    if not isinstance(name, str) or ":" not in name:
        check_choice("algorithm", name, [*ALGORITHMS, *BASELINES])
        return (ALGORITHMS | BASELINES)[name]
    module_name, _, attribute = name.rpartition(":")
    if "/" in module_name or module_name.endswith(".py"):
        typed = module_name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise UsageError(
            f"algorithm must be a name or MODULE:FUNCTION, got '{name}' (did you mean '{typed}:{attribute}'?)"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"algorithm must be a name or MODULE:FUNCTION, got '{name}' ({error})") from error


def parse_settings(settings: Iterable[str], algorithms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the hyper-parameters by algorithm that texts set.

    `NAME=VALUE` is for every algorithm that has it, `ALGORITHM.NAME=VALUE` for one.
    """
    parameters = {name: parameters_of(name) for name in algorithms}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for setting in settings:
        left, equals, text = setting.partition("=")
        if not equals or not left or not text:
            raise UsageError(f"--set must be NAME=VALUE or ALGORITHM.NAME=VALUE, got '{setting}'")
        parameter, names = find_algorithms("--set", left, parameters)
        for name in names:
            chosen[name][parameter] = parse_value(text)
    return chosen


def find_algorithms(option: str, text: str, parameters: Mapping[str, Iterable[str]]) -> tuple[str, list[str]]:
    """Return NAME and the algorithms that have it, of `NAME` or `ALGORITHM.NAME`; `parameters` are by algorithm."""
    scope, dot, parameter = text.rpartition(".")
    if dot:
        check_choice(f"{option} algorithm", scope, list(parameters))
    scoped = [scope] if dot else list(parameters)
    known = sorted({known for name in scoped for known in parameters[name]})
    check_choice(f"{option} hyper-parameter", parameter, known)
    return parameter, [name for name in scoped if parameter in parameters[name]]


def parse_value(text: str) -> Any:
    """Return a number, true, false, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parameters_of(algorithm: str) -> Mapping[str, inspect.Parameter]:
    """Return the hyper-parameters that the constructor of a name takes."""
    constructor = find_constructor(algorithm)
    try:
        return inspect.signature(constructor).parameters
    except (TypeError, ValueError) as error:  # no function, or one written in C that does not say
        raise UsageError(f"algorithm must be a function with named parameters, got {constructor!r}") from error


def preset(task: str, algorithm: str, model: str | None = None) -> dict[str, Any]:
    """Return the hyper-parameters kept for an algorithm on a task: tuned here, else of its first paper, else none.

    Those tuned with the model come before those tuned with the task's default. The baselines take FedAvg's client
    learning rate. A file of the user's own starts from those of the digits: a starting point, not more.
    """
    if algorithm in BASELINES:
        return {name: value for name, value in preset(task, "fedavg", model).items() if name == "client_lr"}
    if found := _find_tuned(task, algorithm, model):
        return dict(PRESETS[found][algorithm])
    settings = list(PAPERS.get(_lender(task), {}).values())
    return dict(settings[0].hyperparameters.get(algorithm, {})) if settings else {}


def name_preset(task: str, algorithm: str, model: str | None = None) -> str:
    """Name what `preset` gives: the task's own preset, that of another task, or a paper's."""
    found = _find_tuned(task, "fedavg" if algorithm in BASELINES else algorithm, model)
    if found is None:
        return f"paper:{next(iter(PAPERS.get(_lender(task), {'': None})))}"
    return f"preset of {found}" if found == _lender(task) != task else "preset"


def _find_tuned(task: str, algorithm: str, model: str | None) -> str | None:
    """Return the key of `PRESETS` that has an algorithm: that of the model, else of the task, else None."""
    keys = f"{task}:{model}", _lender(task)
    return next((key for key in keys if algorithm in PRESETS.get(key, {})), None)


def _lender(task: str) -> str:
    return "digits" if task.startswith("file:") else _BORROWED.get(task, task)


def describe_rates(algorithm: str, values: Mapping[str, Any], chosen: Collection[str], origin: str) -> str:
    """Say where an algorithm's learning rates come from: `--set` if chosen, else the origin of `values`, else default.

    Examples:
      >>> describe_rates("fedavg", {"client_lr": 0.1, "server_lr": 1.0}, ["client_lr"], "preset")
      '--set, preset'
    """
    names = [name for name in parameters_of(algorithm) if name in RATES]
    return ", ".join(dict.fromkeys(
        "--set" if name in chosen else origin if name in values else "default" for name in names
    ))  # fmt: skip


def build(name: str, hyperparameters: Mapping[str, Any]) -> FedAlgorithm:
    """Return the algorithm of a name with hyper-parameters."""
    parameters = parameters_of(name)
    for parameter in hyperparameters if name in ALGORITHMS else ():
        check_choice(f"hyper-parameter of {name}", parameter, parameters)
    for parameter, info in parameters.items():
        if info.default is info.empty and parameter not in hyperparameters:
            raise UsageError(f"{name} needs {parameter}, and no preset has it; give --set {parameter}=VALUE")
    values = {name: parse_schedule(value) if is_schedule(value) else value for name, value in hyperparameters.items()}
    algorithm = find_constructor(name)(**values)
    if not isinstance(algorithm, FedAlgorithm):
        raise UsageError(f"algorithm '{name}' must return a FedAlgorithm, got {type(algorithm).__name__}")
    return algorithm


def wrap(algorithm: FedAlgorithm, privacy: str | None = None, compress: str | None = None) -> FedAlgorithm:
    """Return `algorithm` with privacy and compression as they were typed; None leaves it as it is.

    Args:
      algorithm: the algorithm.
      privacy: see `parse_privacy`.
      compress: the name of a codec, alone or with arguments: `sign`, `qsgd:bits=4,bucket=512`.
    """
    if privacy is not None:
        algorithm = with_privacy(algorithm, **parse_privacy(privacy))
    if compress is not None:
        algorithm = with_compression(algorithm, parse_codec(compress))
    return algorithm


def parse_privacy(text: str) -> dict[str, Any]:
    """Return the arguments of `with_privacy` in a text such as `clip=1.0,noise_multiplier=0.5,delta=1e-5`.

    `seed=none` draws the noise's seed from the operating system.
    """
    given = parse_pairs("--privacy", text.split(","), PRIVACY)
    if missing := [name for name in PRIVACY[:3] if name not in given]:
        raise UsageError(f"--privacy needs clip, noise_multiplier and delta, got no {', '.join(missing)} in '{text}'")
    if given.get("seed") == "none":
        given["seed"] = None
    return given


def with_secret_seed(text: str) -> str:
    """Return a privacy text for a deployment, where it goes to every node: the noise's seed is drawn by the server."""
    given = parse_privacy(text)
    if given.get("seed") is not None:
        raise UsageError(
            "--privacy of a deployment must have no seed (or seed=none): it goes to every node, and whoever knows the "
            f"seed can subtract the noise; got '{text}'"
        )
    return text if "seed" in given else f"{text},seed=none"


def parse_codec(text: str) -> Codec:
    """Return the codec of a text such as `topk:fraction=0.01`."""
    name, colon, rest = text.partition(":")
    check_choice("--compress", name, CODECS)
    make: Callable[..., Codec] = CODECS[name]
    names = inspect.signature(make).parameters
    return make(**parse_pairs(f"--compress {name}", rest.split(",") if colon else (), names))


def parse_pairs(option: str, texts: Iterable[str], names: Collection[str]) -> dict[str, Any]:
    """Return the `NAME=VALUE` texts of an option as a dictionary; NAME is one of `names`."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not equals or not value:
            allowed = f"NAME=VALUE with a name of {', '.join(names)}" if names else "given without arguments"
            raise UsageError(f"{option} must be {allowed}, got '{text}'")
        name = name.replace("-", "_")
        check_choice(f"{option} argument", name, names)
        if name in given:
            raise UsageError(f"{option}: {name} is given twice")
        given[name] = parse_value(value)
    return given

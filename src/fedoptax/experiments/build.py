"""From what a user types to an algorithm: names, `module:function`, `NAME=VALUE` settings, presets."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms import ALGORITHMS
from fedoptax.errors import UsageError, unknown
from fedoptax.experiments.papers import PAPERS, PaperSetting, paper_setting
from fedoptax.experiments.presets import PRESETS
from fedoptax.schedules import is_schedule, parse_schedule

Constructor = Callable[..., FedAlgorithm]
_BORROWED = {"cifar100-coarse": "cifar100"}  # tasks without presets of their own start from a near one's


def find_constructor(name: str) -> Constructor:
    """The constructor of a name in `ALGORITHMS`, or of `module:function` on the path or in the current folder.

    Raises:
      UsageError: no such name, module or function.
    """
    if ":" not in name:
        return ALGORITHMS[name] if name in ALGORITHMS else unknown("algorithm", name, ALGORITHMS)
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UsageError(f"algorithm: '{name}' given, allowed is MODULE:FUNCTION")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        constructor = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"algorithm: '{name}' given, allowed is MODULE:FUNCTION ({error})") from error
    if not callable(constructor):
        raise UsageError(f"algorithm: '{name}' is not a function that makes an algorithm")
    return constructor


def parse_settings(settings: Iterable[str], algorithms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`NAME=VALUE` (for every algorithm that has it) and `ALGORITHM.NAME=VALUE` as hyper-parameters by algorithm.

    Raises:
      UsageError: no `=`, an algorithm that is not run, or a name that no algorithm has.
    """
    names = list(algorithms)
    parameters = {name: parameter_names(find_constructor(name)) for name in names}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
    for setting in settings:
        left, equals, text = setting.partition("=")
        if not equals or not left or not text:
            raise UsageError(f"--set: '{setting}' given, allowed is NAME=VALUE or ALGORITHM.NAME=VALUE")
        scope, dot, parameter = left.rpartition(".")
        if dot and scope not in names:
            unknown("--set: algorithm", scope, names)
        having = [name for name in ([scope] if dot else names) if parameter in parameters[name]]
        if not having:
            allowed = parameters[scope] if dot else {p for known in parameters.values() for p in known}
            unknown("--set: hyper-parameter", parameter, allowed)
        for name in having:
            chosen[name][parameter] = parse_value(text)
    return chosen


def parse_value(text: str) -> Any:
    """A number, true, false, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parameter_names(constructor: Constructor) -> list[str]:
    """The hyper-parameters that a constructor takes."""
    return list(_parameters(constructor))


def _parameters(constructor: Constructor) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(constructor).parameters
    except ValueError as error:  # some functions written in C do not say
        raise UsageError(f"algorithm: {constructor!r} given, allowed is a function with named parameters") from error


def preset(task: str, algorithm: str) -> dict[str, Any]:
    """The hyper-parameters kept for an algorithm on a task: tuned here, else of its first paper, else none.

    A file of one's own starts from those of the digits: a starting point, not more.
    """
    task = "digits" if task.startswith("file:") else _BORROWED.get(task, task)
    tuned = PRESETS.get(task, {}).get(algorithm)
    if tuned is None:
        settings = list(PAPERS.get(task, {}).values())
        tuned = settings[0].hyperparameters.get(algorithm, {}) if settings else {}
    return dict(tuned)


def find_preset(task: str, name: str) -> PaperSetting | None:
    """The paper setting that `--preset` means; None for `tuned` and `none`.

    Raises:
      UsageError: an unknown preset.
    """
    return None if name in ("tuned", "none") else paper_setting(task, name)


def build(name: str, hyperparameters: Mapping[str, Any]) -> FedAlgorithm:
    """The algorithm of a name with hyper-parameters.

    Raises:
      UsageError: a required hyper-parameter is missing, or one is out of its range.
    """
    constructor = find_constructor(name)
    parameters = _parameters(constructor)
    if name in ALGORITHMS and (other := sorted(hyperparameters.keys() - parameters)):
        unknown(f"hyper-parameter of {name}", other[0], parameters)
    for parameter, info in parameters.items():
        if info.default is info.empty and parameter not in hyperparameters:
            raise UsageError(f"{name}: {parameter} is needed and no preset has it; give --set {parameter}=VALUE")
    values = {name: parse_schedule(value) if is_schedule(value) else value for name, value in hyperparameters.items()}
    algorithm = constructor(**values)
    if not isinstance(algorithm, FedAlgorithm):
        raise UsageError(f"algorithm: '{name}' returned {type(algorithm).__name__}, allowed is a FedAlgorithm")
    return algorithm

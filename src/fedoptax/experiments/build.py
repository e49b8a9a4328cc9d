"""Algorithms by name or `MODULE:FUNCTION`, with hyper-parameters and wrappers."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms import ALGORITHMS
from fedoptax.algorithms.baselines import BASELINES
from fedoptax.errors import UsageError, check_choice, shorten
from fedoptax.experiments.parsing import parse_pairs
from fedoptax.names import check_algorithm
from fedoptax.schedules import is_schedule, parse_schedule
from fedoptax.wrappers import with_compression, with_personal, with_privacy
from fedoptax.wrappers.codecs import CODECS, Codec

Constructor = Callable[..., FedAlgorithm]
Algorithms = Sequence[str | Constructor] | Mapping[str, str | Constructor | FedAlgorithm]
"""Algorithms to compare: names, functions that make one, or by name also an algorithm itself."""
_NAMED: dict[str, Constructor] = {}  # by `name_algorithms`, in this process
WRAPPERS = ("personal", "privacy", "compress")
PRIVACY = ("clip", "noise_multiplier", "delta", "target_quantile", "clip_lr", "bit_noise", "seed")
"""The arguments of `with_privacy` that can be typed; the first three are needed."""


def find_constructor(name: str) -> Constructor:
    """Return the constructor of a name in `ALGORITHMS`, or of `MODULE:FUNCTION`, also of the current folder."""
    if name in _NAMED:
        return _NAMED[name]
    check_algorithm(name)
    return import_function("algorithm", name) if ":" in name else (ALGORITHMS | BASELINES)[name]


def name_algorithms(algorithms: Algorithms) -> list[str]:
    """Return the names of algorithms; those of functions and objects are known to `find_constructor` from now on."""
    if isinstance(algorithms, str) or not isinstance(algorithms, Sequence | Mapping):
        raise UsageError(f"algorithms must be a list of names or functions, or a dictionary, got {shorten(algorithms)}")
    named: dict[str, Any] = dict(algorithms) if isinstance(algorithms, Mapping) else {}
    for one in () if isinstance(algorithms, Mapping) else algorithms:
        name = one if isinstance(one, str) else getattr(one, "__name__", "")
        if not name or name in named:
            raise UsageError(f"algorithms must be a dictionary for objects and equal names, got {shorten(one)}")
        named[name] = one
    folders = [str(name).replace(":", ".") for name in named]  # of their runs, beside that of the searches
    for name, folder in zip(named, folders):
        is_folder = name == str(name) and re.fullmatch(r"\w[^/\\\x00-\x1f\ud800-\udfff]{,99}", folder)
        if not is_folder or folder == "tuning" or folders.count(folder) > 1:
            raise UsageError(f"algorithms must have names for different folders, got {shorten(list(named))}")
    for name, one in named.items():
        if name in (*ALGORITHMS, *BASELINES) and one not in (name, (ALGORITHMS | BASELINES)[name]):
            raise UsageError(f"algorithms: {name} is already the name of another algorithm")
        if one != name:
            make = partial(lambda algorithm: algorithm, one) if isinstance(one, FedAlgorithm) else one
            _NAMED[name] = find_constructor(one) if isinstance(one, str) else make
        find_constructor(name)  # which must exist
    return list(named)


def import_function(argument: str, text: str) -> Any:
    """Import MODULE:FUNCTION, also from the current folder; an error names `argument`."""
    module, _, attribute = text.rpartition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if not callable(function := getattr(importlib.import_module(module), attribute)):
            raise TypeError(f"it is no function, but {type(function).__name__}")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{argument} must be a name or MODULE:FUNCTION, got '{text}' ({shorten(error)})") from error
    return function


def parameters_of(algorithm: str) -> Mapping[str, inspect.Parameter]:
    """Return the hyper-parameters of a named constructor."""
    return inspect.signature(find_constructor(algorithm)).parameters


def by_algorithm(
    argument: str, values: Mapping[str, Any], algorithms: Iterable[str], others: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return hyper-parameters by algorithm: of all that have NAME, or of one for ALGORITHM.NAME; all have `others`."""
    parameters = {name: [*parameters_of(name), *others] for name in algorithms}
    chosen: dict[str, dict[str, Any]] = {algorithm: {} for algorithm in parameters}
    for key, value in sorted(values.items(), key=lambda item: "." in item[0]):  # those of one algorithm come last
        algorithm, dot, name = key.rpartition(".")
        if dot:
            check_choice(f"{argument}: algorithm", algorithm, list(parameters))
        scope = [algorithm] if dot else list(parameters)
        known = sorted({name for one in scope for name in parameters[one]})
        check_choice(f"{argument}: hyper-parameter", name, known)
        for algorithm in scope:
            if name in parameters[algorithm]:
                chosen[algorithm][name] = value
    return chosen


def build(name: str, hyperparameters: Mapping[str, Any]) -> FedAlgorithm:
    """Return the algorithm of a name with hyper-parameters."""
    parameters = parameters_of(name)
    for parameter in hyperparameters if name in ALGORITHMS else ():
        check_choice(f"hyper-parameter of {name}", parameter, parameters)
    for parameter, info in parameters.items():
        is_open = info.kind in (info.VAR_POSITIONAL, info.VAR_KEYWORD)
        if info.default is info.empty and not is_open and parameter not in hyperparameters:
            raise UsageError(f"{name} needs {parameter}, which no preset has: set {parameter}=VALUE")
    values = {name: parse_schedule(value) if is_schedule(value) else value for name, value in hyperparameters.items()}
    algorithm = find_constructor(name)(**values)
    if not isinstance(algorithm, FedAlgorithm):
        raise UsageError(f"algorithm '{name}' must return a FedAlgorithm, got {type(algorithm).__name__}")
    return algorithm


def wrap(
    algorithm: FedAlgorithm, privacy: str | None = None, compress: str | None = None, personal: str | None = None,
    seed: int = 0,
) -> FedAlgorithm:  # fmt: skip
    """Return `algorithm` with its wrappers, unless None, as users type them: see `parse_privacy`, `parse_codec`.

    `personal` is patterns of the parameters that stay at the clients, separated by commas; see `with_personal`. `seed`
    is the run's, which is that of the noise, too, unless `privacy` names one.
    """
    if personal is not None:
        algorithm = with_personal(algorithm, personal.split(","))
    if privacy is not None:
        algorithm = with_privacy(algorithm, **{"seed": seed} | parse_privacy(privacy))
    if compress is not None:
        algorithm = with_compression(algorithm, parse_codec(compress))
    return algorithm


def parse_privacy(text: str) -> dict[str, Any]:
    """Return `with_privacy`'s arguments in `clip=1.0,noise_multiplier=0.5,delta=1e-5`; `seed=none` draws the seed."""
    arguments = parse_pairs("privacy", text.split(","), PRIVACY)
    if missing := [name for name in PRIVACY[:3] if name not in arguments]:
        raise UsageError(f"privacy needs clip, noise_multiplier and delta, got no {', '.join(missing)} in '{text}'")
    return arguments | ({"seed": None} if arguments.get("seed") == "none" else {})


def with_secret_seed(text: str) -> str:
    """Return a privacy text for a deployment, where it goes to every node: the noise's seed is drawn by the server."""
    arguments = parse_privacy(text)
    if arguments.get("seed") is not None:
        raise UsageError(f"privacy of a deployment must have no seed, or nodes could subtract the noise: '{text}'")
    return text if "seed" in arguments else f"{text},seed=none"


def parse_codec(text: str) -> Codec:
    """Return the codec of a name, with or without arguments: `sign`, `qsgd:bits=4,bucket=512`."""
    name, colon, rest = text.partition(":")
    check_choice("compress", name, CODECS)
    make: Callable[..., Codec] = CODECS[name]
    names = tuple(inspect.signature(make).parameters)
    return make(**parse_pairs(f"compress {name}", rest.split(",") if colon else (), names))

"""The names of the algorithms, for the command line to list and check without importing JAX, which is slow."""

import ast
import re
from pathlib import Path
from typing import Any

from fedoptax.errors import UsageError, check_choice

ALGORITHMS = (
    "fedavg", "fedavgm", "fedadagrad", "fedyogi", "fedadam", "fedadabound", "fedams", "fedamsgrad", "fedprox",
    "scaffold", "scaffold_adam", "local_amsgrad", "fedlamb", "stem", "fafed", "naive_adaptive", "local_adaalter",
    "lookahead", "mimelite", "mime", "fedexp", "delta_sgd", "fedcm", "feddyn", "fednova", "fedlion", "fedadamw",
    "fedada2", "fadamgc", "diloco", "muloco",
)  # fmt: skip
BASELINES = ("local", "centralized")
"""What stands beside them where simulations are run; see `fedoptax.experiments.client_models`."""


def summarize_algorithms() -> dict[str, str]:
    """Return by name the first line of each constructor's docstring, read from the source files."""
    names, lines = (*ALGORITHMS, *BASELINES), {}
    for path in (Path(__file__).parent / "algorithms").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                lines[node.name] = (ast.get_docstring(node) or node.name).splitlines()[0]
    return {name: lines[name] for name in names}


def check_algorithm(name: Any) -> None:
    """Check that `name` is an algorithm or a baseline, or may be MODULE:FUNCTION; else it is a `UsageError`."""
    if not isinstance(name, str) or ":" not in name:
        check_choice("algorithm", name, [*ALGORITHMS, *BASELINES, "MODULE:FUNCTION"])


def split_algorithms(text: str) -> list[str]:
    """Return the algorithms of a list with commas or blanks, or `all`; one that is unknown is a `UsageError`."""
    names = list(ALGORITHMS) if text == "all" else [name for name in re.split(r"[,\s]+", text) if name]
    if not names or len(set(names)) != len(names):
        raise UsageError(f"algorithms must be different names separated by commas, or all, got {text!r}")
    for name in names:
        check_algorithm(name)
    return names

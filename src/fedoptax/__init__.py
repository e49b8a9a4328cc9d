"""fedoptax: adaptive federated optimization in JAX.

`__init__.pyi` lists the public names and their modules. Each is loaded when first used, so that `import fedoptax`
and `fedoptax --help` are quick.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {alias.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
_MODULES = {"codecs": "wrappers.codecs", "eager": "engine.eager", "metrics": "tasks.metrics"}

__all__ = [name for name, home in _HOMES.items() if home != __name__]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if name in _MODULES or home == __name__:
        return import_module(f"{__name__}.{_MODULES.get(name, name)}")
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    missing = {"torch"} if find_spec("torch") is None else set()  # help() looks up all names
    return sorted({*globals(), *_HOMES, *_MODULES} - missing)

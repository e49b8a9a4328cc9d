"""Python's search for garbage, kept from where there is none to be found: it would take a command a second."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib import import_module
from types import ModuleType


def import_kept(name: str) -> ModuleType:
    """Imports a module without looking for garbage meanwhile, nor ever in what it leaves, which stays to the end."""
    if name in sys.modules:
        return sys.modules[name]
    enabled = gc.isenabled()
    gc.disable()
    try:
        module = import_module(name)
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
    return module


def leave_at_exit() -> None:
    """At the end the system takes the memory back at once; Python would look through all of JAX first."""
    atexit.register(gc.freeze)

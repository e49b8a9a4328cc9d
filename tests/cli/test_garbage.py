"""Python's garbage collector is kept out of what a command imports, and out of its end; nothing else changes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys
from fedoptax.cli.garbage import import_kept, leave_at_exit

{before}
passes = []
gc.callbacks.append(lambda phase, info: passes.append(phase))
module = import_kept("{name}")
during, kept = len(passes), gc.get_freeze_count()
gc.callbacks.clear()
assert module is sys.modules["{name}"]
print(gc.isenabled(), during, kept > 1000)
if import_kept("{name}") is module and gc.get_freeze_count() == kept:
    leave_at_exit()
"""


def told(name: str, before: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name, before=before)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_no_garbage_is_looked_for_while_importing_nor_in_what_was_imported() -> None:
    assert told("numpy") == ["True", "0", "True"]


def test_a_collector_that_was_off_stays_off() -> None:
    assert told("numpy", "gc.disable()") == ["False", "0", "True"]


def test_what_is_there_is_not_imported_again_and_no_garbage_is_kept_for_it() -> None:
    assert told("numpy", "import numpy") == ["True", "0", "False"]

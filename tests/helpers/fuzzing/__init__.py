"""Targets for fuzzing: everything that reads what others wrote, each as `bytes -> None`.

A target turns bytes into the file, message or folder it stands for and has it read. It returns when they were read or
refused as they should be, and raises anything else: that is a finding. `tests/test_fuzz_*.py` run every target for a
moment in a process with little memory; `benchmarks/fuzz.py` runs them for long.
"""

from __future__ import annotations

from fuzzing.target import Finding, Target, targets

__all__ = ["Finding", "Target", "targets"]

"""How many rounds a deployment is to have when it is resumed; what was done is never cut."""

from __future__ import annotations

from pathlib import Path

from fedoptax.errors import UsageError
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import rounds_of


def rounds_planned(folder: Path, default: int) -> int:
    """The rounds that the run in `folder` was last to have; `default` where there is no run yet.

    Raises:
      RunError: its config is damaged.
    """
    path = folder / "config.json"
    return storage.read_json(path).get("rounds", default) if path.is_file() else default


def refuse_fewer(folder: Path, rounds: int) -> None:
    """Checks that a run's new total is not below the rounds that are done: the history would lose the others.

    Raises:
      UsageError: it is.
    """
    done = max(rounds_of(folder), default=0)
    if rounds < done:
        raise UsageError(f"rounds: {rounds} given, allowed is {done} or more, as {done} are done in '{folder}'")

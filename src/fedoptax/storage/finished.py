"""Whether a run folder holds a run that came to its end."""

from __future__ import annotations

from pathlib import Path

from fedoptax.errors import RunError
from fedoptax.storage import folder as storage
from fedoptax.storage.history_file import check_mark


def is_whole(folder: Path) -> bool:
    """Whether a run is at its end, and its results are what it wrote; else it is continued from its checkpoint."""
    try:
        summary = storage.read_json(folder / "summary.json")
        if summary.get("status") not in ("completed", "diverged"):
            return False
        if summary.get("history"):
            check_mark(folder, summary["history"])
        storage.check_params(folder / "params.npz")
    except (RunError, ValueError):
        return False
    return True

"""summary.json: how a run stands, or ended, in one small file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedoptax.storage import folder as storage
from fedoptax.storage.history import History


def write_summary(
    folder: Path,
    status: str,
    message: str | None,
    history: History,
    compile_seconds: float,
    mark: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes the summary of a run, and returns it.

    Args:
      folder: of the run.
      status: `"running"`, `"completed"`, `"interrupted"` or `"diverged"`.
      message: one line about a status that needs it.
      history: the rounds done.
      compile_seconds: spent on compiling for this run; 0 where another run had done it.
      mark: length and checksum of the history's file, see `HistoryFile.mark`.

    Raises:
      RunError: it cannot be written.
    """
    rows = history.rows
    metrics = [
        name
        for name in (rows[-1] if rows else {})
        if name in ("train_loss", "epsilon") or name.startswith(("test_", "client_"))
    ]
    summary = {
        "status": status,
        "message": message,
        "rounds_done": len(rows),
        "final": {name: history.last(name) for name in metrics},
        "bytes_down": sum(row["bytes_down"] for row in rows),
        "bytes_up": sum(row["bytes_up"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
        "compile_seconds": compile_seconds,
        "history": mark,
    }
    storage.write_json(folder / "summary.json", summary)
    return summary

"""Finished, broken-off and running runs, read back from their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedoptax.errors import RunError, brief
from fedoptax.storage.folder import FORMAT, read_json
from fedoptax.storage.history_file import check_mark
from fedoptax.storage.stored import check_config, check_summary, is_whole

if TYPE_CHECKING:
    import pandas as pd

#: What history columns that are not metrics mean to the tables and curves.
COST_COLUMNS = ("round", "bytes_up", "bytes_down", "seconds", "dropped", "late", "rejected")
#: Columns of runs with faults or privacy: they are drawn like metrics, but after them.
CIRCUMSTANCES = ("participants", "virtual_seconds", "epsilon")

_OF_THE_TABLE = ("algorithm", "seed")  # columns of the table of all runs, which a history cannot have
_BEYOND = 1e100  # taken for infinite: sums and squares of smaller numbers are finite


@dataclass(frozen=True, eq=False)
class Run:
    """One run as its folder tells it.

    Attributes:
      path: the run folder.
      config: config.json.
      rows: a row a round, all columns numeric; what is missing, not finite or beyond 1e100 is NaN.
      summary: summary.json, with at least `status` and `rounds_done`.
      command: the command line that made it, if its comparison says so.
    """

    path: Path
    config: Mapping[str, Any]
    rows: pd.DataFrame
    summary: Mapping[str, Any]
    command: str | None = None

    @property
    def metric(self) -> str:
        """The history column that the run is judged by."""
        return self.config.get("primary_metric") or "train_loss"

    @property
    def higher_is_better(self) -> bool:
        """Whether more of `metric` is better."""
        return bool(self.config.get("higher_is_better")) if self.config.get("primary_metric") else False

    @property
    def status(self) -> str:
        """`completed`, `interrupted`, `diverged` or `running`."""
        return str(self.summary["status"])

    @property
    def metrics(self) -> list[str]:
        """The columns of `rows` that measure quality."""
        return [name for name in self.rows.columns if name not in COST_COLUMNS]


def load_runs(path: str | Path) -> list[Run]:
    """All runs at or below a folder: comparisons in their own order, the rest by name, without those of searches.

    Args:
      path: a run folder, a comparison folder, or a folder with any of these below it.

    Raises:
      RunError: there is no run, or one is damaged or of another format; one line that says which.
    """
    runs = found_runs(path)
    if not runs:
        raise RunError(f"'{Path(path)}' holds no run: there is no config.json in it or below it")
    return runs


def found_runs(path: str | Path) -> list[Run]:
    """As `load_runs`, but there may be none.

    Raises:
      RunError: it is no folder, or a run in it is damaged.
    """
    root = Path(path)
    if not root.is_dir():
        raise RunError(f"'{root}' is not a folder with runs")
    return [load_run(folder, command) for folder, command in _run_folders(root, set())]


def _run_folders(root: Path, seen: set[Path], command: str | None = None) -> Iterator[tuple[Path, str | None]]:
    """The run folders at or below `root` with their commands; a run holds no other runs.

    Links are followed, but to no folder that was `seen` before: they may lead in circles.
    """
    place = root.resolve()
    if place in seen:
        return
    seen.add(place)
    if (root / "config.json").is_file():
        yield root, command
        return
    if (root / "tune.json").is_file():
        return
    first: list[str] = []
    if (root / "compare.json").is_file():
        comparison = writable(read_json(root / "compare.json"))
        _check_format(root / "compare.json", comparison)
        command = _text_or_none(comparison.get("command"))
        first = [str(name) for name in _list_or_empty(comparison.get("algorithms"))]
    try:
        children = [child for child in root.iterdir() if child.is_dir() and not child.name.startswith(".")]
    except OSError as error:
        raise RunError(f"'{root}' cannot be read: {error.strerror}") from error
    for child in sorted(children, key=lambda child: (_place(child.name, first), _natural(child.name))):
        yield from _run_folders(child, seen, command)


def load_run(folder: Path, command: str | None) -> Run:
    """The run in a folder.

    Raises:
      RunError: it is damaged, or of another format.
    """
    config = writable(read_json(folder / "config.json"))
    _check_format(folder / "config.json", config)
    check_config(folder / "config.json", config)
    rows = _read_history(folder / "history.jsonl")
    summary: dict[str, Any] = {"status": "running", "rounds_done": len(rows)}
    if (folder / "summary.json").is_file():
        summary |= writable(read_json(folder / "summary.json"))
        check_summary(folder / "summary.json", summary)
    if summary.get("history"):
        try:
            check_mark(folder, summary["history"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"'{folder}' is damaged: {brief(error)}") from error
    return Run(folder, config, rows, summary, command or _text_or_none(config.get("command")))


def _check_format(path: Path, content: Mapping[str, Any]) -> None:
    if content.get("format") != FORMAT:
        given = brief(repr(content.get("format")))
        raise RunError(f"'{path}' has format {given}; this version of fedoptax reads format {FORMAT}")


def _read_history(path: Path) -> pd.DataFrame:
    """The numeric columns of a history; a last line without its line end is left out if it is not whole."""
    import pandas as pd

    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
    except OSError as error:
        raise RunError(f"'{path}' cannot be read: {error.strerror}") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parse_row(line)
        if row is None and number == len(lines):
            break
        if row is None:
            raise RunError(f"'{path}' is damaged at line {number}: not a JSON object")
        last = rows[-1]["round"] if rows else 0
        if not is_whole(row.get("round")) or not last < row["round"]:
            given = brief(repr(row.get("round")))
            raise RunError(f"'{path}' is damaged at line {number}: round {given} after {last}")
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row if name not in _OF_THE_TABLE)
    columns = {name: [row.get(name) for row in rows] for name in {"round": None} | names}
    numeric = {writable(name): values for name, values in columns.items() if all(map(_is_number, values))}
    frame = pd.DataFrame(numeric, dtype=float)
    return frame.where(frame.abs() < _BEYOND).astype({"round": int})


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _is_number(value: Any) -> bool:
    """Whether a cell can be a float64; whole numbers of JSON have no bound."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= 2**1023
    return value is None or isinstance(value, float)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sorting key that puts seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _place(name: str, names: list[str]) -> int:
    return names.index(name) if name in names else len(names)


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def writable(value: Any) -> Any:
    """JSON's value with `?` for every lone surrogate, which JSON can hold, and no file and no data frame."""
    if isinstance(value, dict):
        return {writable(name): writable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [writable(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None

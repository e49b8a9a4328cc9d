"""network.jsonl: of every round who took part, who was left out and why, and the bytes on the wire."""

from __future__ import annotations

import json
from pathlib import Path

from fedoptax.deploy.rounds import RoundReport
from fedoptax.errors import RunError
from fedoptax.storage import folder as storage

NAME = "network.jsonl"


class NetworkFile:
    """The file in a run folder while the run writes it: of an earlier one the whole lines of the rounds done are kept.

    Args:
      folder: the run folder.
      done: rounds done.

    Raises:
      RunError: it cannot be read or written.
    """

    def __init__(self, folder: Path, done: int) -> None:
        self._path = folder / NAME
        if self._path.exists():
            storage.write_atomically(self._path, _kept(self._path, done))

    def append(self, round: int, cohort: list[int], report: RoundReport) -> None:
        """Adds a round's line.

        Args:
          round: its number, from 1.
          cohort: the partitions that were asked.
          report: what happened.

        Raises:
          RunError: it cannot be written.
        """
        line = {
            "round": round,
            "cohort": cohort,
            "accepted": list(report.replies),
            "faults": [{"partition": i, "node": node, "reason": reason} for i, node, reason in report.faults],
            "wire_bytes_down": report.bytes_down,
            "wire_bytes_up": report.bytes_up,
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(f"'{self._path}' cannot be written: {error.strerror}") from error


def _kept(path: Path, done: int) -> bytes:
    """The whole lines of rounds up to `done`, in order; of a round that was repeated the last, which is what counts."""
    lines: dict[int, bytes] = {}
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"'{path}' cannot be read: {error.strerror}") from error
    for line in data.split(b"\n")[:-1]:  # what follows the last end of a line was torn by a kill
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        number = value.get("round") if isinstance(value, dict) else None
        if type(number) is int and 1 <= number <= done:
            lines[number] = line + b"\n"
    return b"".join(lines[number] for number in sorted(lines))

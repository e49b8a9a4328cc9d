"""Telling trackers of a run without letting them harm it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedoptax.errors import brief
from fedoptax.storage.history import Row
from fedoptax.trackers import Tracked, Tracker


class Told:
    """Some trackers as one. One that raises an error is left out from then on, with a line that says so."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def start(self, run: Tracked) -> None:
        """See `Tracker.start`."""
        self._tell(lambda tracker: tracker.start(run))

    def rows(self, rows: Sequence[Row]) -> None:
        """See `Tracker.rows`."""
        if rows:
            self._tell(lambda tracker: tracker.rows(rows))

    def end(self, summary: Mapping[str, Any]) -> None:
        """See `Tracker.end`."""
        self._tell(lambda tracker: tracker.end(summary))

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                why = brief(" ".join(f"{type(error).__name__}: {error}".split()))
                print(f"fedoptax: {type(tracker).__name__} no longer follows the run: {why}", file=sys.stderr)

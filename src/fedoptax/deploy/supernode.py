"""`fedoptax-supernode`: Flower's SuperNode with its own arguments, which looks for messages more often.

Flower's looks every 3 seconds, and its SuperExec every second: longer than a round of a small model takes. This one
begins with a tenth of a second after each message and comes back to Flower's pauses in some minutes without one.
"""

import os
import time
from collections.abc import Callable
from importlib.metadata import entry_points

IDLE, BUSY = 3.0, 0.5  # seconds that Flower's SuperNode sleeps without a message, and while a ClientApp works
SHORT, GROWTH = 0.1, 1.02


class Pauses:
    """A `time.sleep` that shortens Flower's two pauses and leaves others as they are."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep, self._idle = sleep, SHORT

    def __call__(self, seconds: float) -> None:
        """Sleep."""
        if seconds == BUSY:
            seconds = self._idle = SHORT
        elif seconds == IDLE:
            seconds = self._idle = min(IDLE, self._idle * GROWTH)
        self._sleep(seconds)


def main() -> None:
    """Run `flower-supernode`."""
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(SHORT))
    time.sleep = Pauses(time.sleep)  # type: ignore[assignment]
    (script,) = entry_points(group="console_scripts", name="flower-supernode")
    script.load()()


if __name__ == "__main__":
    main()

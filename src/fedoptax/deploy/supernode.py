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


def with_short_pauses(sleep: Callable[[float], None]) -> Callable[[float], None]:
    """Return a `time.sleep` that shortens Flower's two pauses and leaves others as they are."""
    idle = SHORT

    def sleep_less(seconds: float) -> None:
        nonlocal idle
        if seconds in (IDLE, BUSY):
            seconds = idle = SHORT if seconds == BUSY else min(IDLE, idle * GROWTH)
        sleep(seconds)

    return sleep_less


def main() -> None:
    """Run `flower-supernode`."""
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(SHORT))
    time.sleep = with_short_pauses(time.sleep)  # type: ignore[assignment]
    (script,) = entry_points(group="console_scripts", name="flower-supernode")
    script.load()()


if __name__ == "__main__":
    main()

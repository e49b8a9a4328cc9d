"""A progress bar on a terminal or in a notebook: rounds, rounds per second, the metric, time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[int, str], None]
"""`update(rounds_done, note)`: moves the bar and shows a short note (the current metric)."""


@contextmanager
def bar(description: str, total: int, done: int = 0, enabled: bool | Update | None = None) -> Iterator[Update]:
    """Show a bar of `total` rounds, `done` of them already done.

    `enabled=None` shows it if stderr is a terminal or a notebook's; an `Update` is called instead of a bar.
    """
    if callable(enabled):
        yield enabled
        return
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules if enabled is None else enabled):
        yield lambda done, note: None
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=done, desc=description, unit=" rounds", dynamic_ncols=True) as progress:

        def update(now: int, note: str) -> None:
            progress.set_postfix_str(note, refresh=False)
            progress.update(now - progress.n)

        yield update


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show that something without a count is going on, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{text} ...", end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(end="\x1b[K", file=sys.stderr, flush=True)  # clears the line

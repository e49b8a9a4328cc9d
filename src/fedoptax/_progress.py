"""A progress bar on standard error, if that is a terminal: rounds, rounds per second, the metric, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[int, str], None]
"""`update(rounds_done, note)`: moves the bar and shows a short note (the current metric)."""


@contextmanager
def bar(description: str, total: int, done: int = 0, enabled: bool | Update | None = None) -> Iterator[Update]:
    """Show a bar of `total` rounds, `done` of them already done.

    `enabled=None` shows it if stderr is a terminal; an `Update` is called instead of a bar.
    """
    if callable(enabled):
        yield enabled
        return
    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield lambda done, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[note]}", style="bold", markup=False),
        TextColumn("left", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False, refresh_per_second=8) as progress:
        bar_id = progress.add_task(description, total=total, completed=done, rate="compiling", note="")

        def update(now: int, note: str) -> None:
            progress.update(bar_id, completed=now, note=note)
            speed = progress.tasks[0].speed
            progress.update(bar_id, rate=f"{speed:.1f} rounds/s" if speed else "" if now > done else "compiling")

        yield update


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show that something without a count is going on, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield

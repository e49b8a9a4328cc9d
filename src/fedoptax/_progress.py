"""Progress bars, progress lines in a log, tables in a notebook."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from typing import Any

Update = Callable[[int, str], None]
"""`update(rounds_done, note)`: moves the bar and shows a short note (the current metric)."""
SECONDS = 30.0
"""Between the lines that stand for a bar in a log file."""


@contextmanager
def bar(
    description: str, total: int, done: int = 0, enabled: bool | Update | None = None, each: int = 0
) -> Iterator[Update]:
    """Show a bar of `total` rounds, `done` of them already done.

    `enabled=None` shows it if stderr is a terminal or a notebook's, and otherwise prints a line every `SECONDS`, and
    one after `each` rounds if that is a number above 0: after every run of several. An `Update` is called instead.
    """
    if callable(enabled):
        yield enabled
    elif enabled is False:
        yield lambda done, note: None
    elif enabled or sys.stderr.isatty() or "ipykernel" in sys.modules:
        from tqdm import tqdm

        is_first = True
        with tqdm(total=total, initial=done, desc=description, unit=" rounds", dynamic_ncols=True) as progress:

            def update(now: int, note: str) -> None:
                nonlocal is_first
                if is_first:  # by then it has compiled, or found runs that were done: neither is its speed
                    progress.initial, progress.n, progress.start_t, is_first = now, now, time.time(), False
                progress.set_postfix_str(note, refresh=False)
                progress.update(now - progress.n)

            yield update
    else:
        yield _lines(description, total, each)


def _lines(description: str, total: int, each: int) -> Update:
    last, before, shown = time.monotonic(), -1, 0  # when the time left was estimated, the rounds done by then and now

    def update(now: int, note: str) -> None:
        nonlocal last, before, shown
        seconds, left = time.monotonic() - last, ""
        if seconds >= SECONDS and before >= 0:
            left = f", {seconds / max(now - before, 1) * (total - now):.0f} s left"
        earlier = now - 1 if before < 0 else shown
        if seconds >= SECONDS or (each and now // each > earlier // each):
            rounds = "" if each else f"round {now} of {total}, "
            with suppress(OSError):  # what reads the lines may have ended; the run goes on
                print(f"{description}: {rounds}{note}{left}", file=sys.stderr, flush=True)
        if seconds >= SECONDS or before < 0:  # at first: by then it has compiled, or found runs that were done
            last, before = time.monotonic(), now
        shown = now

    return update


def part_of(update: Update, index: int, count: int, before: int, rounds: int, what: str) -> Update:
    """Turn the update of all runs into that of run `index` of `count`; the runs before it have `before` rounds."""

    def of_run(done: int, note: str) -> None:
        about = ", ".join(filter(None, (what, f"round {done} of {rounds}", note)))
        update(before + done, f"run {index + 1} of {count}: {about}")

    return of_run


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


def html_table(rows: Sequence[Mapping[str, Any]], caption: str) -> str:
    """Write rows as an HTML table below a caption, all text escaped, a dash for None and NaN."""
    import pandas as pd  # here: heavy

    table = pd.DataFrame(list(rows), dtype=object)
    html = table.where(table.notna(), "–").to_html(index=False, float_format="{:.4g}".format)
    return f"<p>{escape(caption)}</p>\n{html}"

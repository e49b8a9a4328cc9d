"""The command line in this process, with nothing trained: what it answers and what it leaves."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from fuzzing.target import LONGEST, check

UNFORESEEN = "FEDOPTAX_DEBUG"  # what the command line says of an error that nobody thought of


class Answer(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str


def fedoptax(*arguments: str) -> Answer:
    """Runs a command in this process."""
    from fedoptax.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    status: Any = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            # with --distributed a process of its own would do the work, whose answers these streams do not hold
            main([argument for argument in arguments if argument != "--distributed"])
        except SystemExit as stopped:
            status = stopped.code or 0
    return Answer(status, out.getvalue(), err.getvalue())


def check_answer(answer: Answer, arguments: Sequence[str]) -> None:
    """The law of every command: a status of 0, 1 or 2, and an error of one line that somebody thought of."""
    about = f"{list(arguments)!r} gives {answer.status}: {answer.err[:300]!r}"
    check(answer.status in (0, 1, 2), about)
    check("Traceback" not in answer.err + answer.out and UNFORESEEN not in answer.err, about)
    lines = [line for line in answer.err.splitlines() if not line.startswith("preset: ")]
    check(len(lines) == (0 if answer.status == 0 else 1), f"{len(lines)} lines; {about}")
    if lines:
        check(lines[0].startswith("fedoptax: ") and len(lines[0]) <= 2 * LONGEST + 10, about)
        check(not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", lines[0]), f"controls; {about}")


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """All that a folder holds, links not followed."""
    found: dict[str, bytes | None] = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            plain = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = path.read_bytes() if plain else None
    return found


@contextlib.contextmanager
def untrained() -> Iterator[None]:
    """Every run ends at once as if it had been trained: the same checks before it, the same files behind it."""
    from unittest.mock import patch

    from fedoptax.experiments import run as experiment
    from fedoptax.report import figures

    built = SimpleNamespace(num_params=1, bytes_down=4, bytes_up=4)
    with (
        patch.object(experiment, "execute", _execute),
        patch.object(experiment, "program", lambda *given: built),
        patch.object(experiment, "eager_program", lambda *given: built),
        patch.object(figures, "figures", lambda runs: {}),
    ):
        yield


def _execute(task: Any, built: Any, hypers: Any, settings: Any) -> Any:
    from fedoptax.experiments import run as experiment
    from fedoptax.storage import folder as storage
    from fedoptax.storage.config import run_config
    from fedoptax.storage.history import History
    from fedoptax.storage.history_file import HistoryFile

    config = run_config(task, settings, built)
    row = {"round": 1, "train_loss": 0.5, "bytes_down": 4, "bytes_up": 4, "seconds": 0.1}
    if settings.resume_from is not None:
        there = storage.read_json(settings.resume_from / "config.json")
        if there["task"]["name"] != task.name:
            raise experiment.RunError(f"'{settings.resume_from}' belongs to another experiment")
    if settings.out is not None:
        storage.write_json(settings.out / "config.json", config)
        HistoryFile(settings.out, [row])
        storage.write_json(settings.out / "summary.json", {"status": "completed", "rounds_done": 1})
    return experiment.RunResult(History([row]), None, None, None, "completed", None, settings.out)

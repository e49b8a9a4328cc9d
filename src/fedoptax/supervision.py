"""A process of a distributed run and the one that watches it.

When another process fails, JAX's runtime may end this one on the spot, with pages of native log. So `fedoptax run
--distributed` starts itself once more as a worker and waits: the worker does the work, its native log goes to a file,
and whatever becomes of it ends as one line and an exit status. The worker ends when the process that watches it does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from fedoptax.errors import brief

_VARIABLE = "FEDOPTAX_WORKER"  # the numbers of the worker's files: output, errors, and the pipe that ends with us
_FOLDER = "fedoptax: the results are in "
_STATUS = "fedoptax: ends with status "
_forgotten: list[bool] = []
_LOST = re.compile(
    r"gloo|nccl|connection (reset|closed|refused)|broken pipe|unhealthy|coordination service|heartbeat|"
    r"distributed service|Socket closed",
    re.IGNORECASE,
)


def is_worker() -> bool:
    """Whether this process does the work."""
    return _VARIABLE in os.environ


def supervise(arguments: Sequence[str]) -> int:
    """Runs the command line in a worker; its exit status, 1 where it was ended from outside, with one line about it."""
    out, err = os.dup(1), os.dup(2)
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "fedoptax.cli.main", *arguments],
            stdout=log,
            stderr=log,
            pass_fds=(out, err, reading),
            env={**os.environ, _VARIABLE: f"{out},{err},{reading}"},
            process_group=0,  # so that Ctrl-C comes to it once, from here
        )
        for number in (out, err, reading):
            os.close(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                signal.signal(number, lambda number, frame: _pass_on(worker, number))
        status = worker.wait()
        os.close(writing)
        log.seek(0)
        text = log.read().decode(errors="replace")
    if os.environ.get("FEDOPTAX_DEBUG"):
        print(text, file=sys.stderr)
    if status >= 0:
        return status
    if told := re.search(f"^{_STATUS}(\\d+)$", text, re.MULTILINE):
        return int(told[1])  # it has said why, and was ended while it took its leave
    print(f"fedoptax: {_reason(-status, text)}", file=sys.stderr)
    return 1


def attach() -> None:
    """In a worker: standard output and errors are those of the process that watches, and it ends when that one does."""
    if not is_worker():
        return
    out, err, reading = map(int, os.environ[_VARIABLE].split(","))
    for number in (out, err, reading):
        os.set_inheritable(number, False)
    sys.stdout = os.fdopen(out, "w", buffering=1)
    sys.stderr = os.fdopen(err, "w", buffering=1, errors="backslashreplace")

    def watch() -> None:
        os.read(reading, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def note_folder(folder: object) -> None:
    """In a worker: leaves word of the folder of results, should it be ended on the spot."""
    if is_worker():
        os.write(2, f"{_FOLDER}{folder}\n".encode())


def loss_of_contact(error: Exception) -> str | None:
    """The one line about an error, if it says that another process of the run has failed; else None."""
    if not is_worker() or "jax" not in sys.modules or not _LOST.search(str(error)):
        return None
    import jax

    if not jax.distributed.is_initialized():
        return None
    return "another process of this run ended or cannot be reached" + _remedy(_folder_of(_own_log()))


def forget_the_others() -> None:
    """For an end of which the other processes do not know: they are not waited for, and see the connection close."""
    _forgotten.append(True)


def leave(status: int) -> NoReturn:
    """Ends a worker, in good order with the others unless `forget_the_others` was called."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"{_STATUS}{status}\n".encode())
    if not _forgotten and "jax" in sys.modules:
        import jax

        with suppress(RuntimeError, ValueError):
            jax.distributed.shutdown()
    os._exit(status)


def _pass_on(worker: subprocess.Popen[bytes], number: int) -> None:
    with suppress(OSError):
        worker.send_signal(number)


def _reason(number: int, log: str) -> str:
    """What to say of a worker that was ended by a signal."""
    if number == signal.SIGABRT and _LOST.search(log):
        what = "another process of this run ended or does not answer"
        if "DEADLINE_EXCEEDED" in log and not _folder_of(log):
            what = "--distributed: not all processes met at the coordinator in time"
        return what + _remedy(_folder_of(log))
    return f"its working process was ended by {signal.Signals(number).name}" + _remedy(_folder_of(log))


def _folder_of(log: str) -> str | None:
    found = re.search(f"^{_FOLDER}(.*)$", log, re.MULTILINE)
    return found[1] if found else None


def _own_log() -> str:
    with suppress(OSError):
        return os.pread(2, 2**16, 0).decode(errors="replace")
    return ""


def _remedy(folder: str | None) -> str:
    return "" if folder is None else f"; continue with: fedoptax resume {brief(folder)} --distributed"

"""A run on disk: config.json, history.jsonl, summary.json, params.npz, best.npz and checkpoints/ in one folder.

Every file is written beside its place and moved there, except the history, which only grows; a reader ignores an
unfinished last line. A lock keeps a second process out.
"""

import io
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout

from fedoptax._files import pack_arrays, read_arrays, read_json, read_params_file, reading
from fedoptax.algorithm import Tree
from fedoptax.errors import RunError, UsageError, check_type, shorten
from fedoptax.tree import leaf_names

MARKS = ("config.json", "compare.json", "tune.json")
"""The files that tell a folder of results from another."""


class Status(StrEnum):
    """The state of a run, as summary.json has it."""

    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED_EARLY = "stopped early"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"


ENDED = (Status.COMPLETED, Status.STOPPED_EARLY)
"""The statuses of runs that ended as they should."""

LOCK = ".lock"


def prepare(out: str | Path, overwrite: bool = False, remove: bool = True) -> Path:
    """Check that results may be written to `out`, and empty a folder with earlier results if `overwrite`.

    Without `remove` they stay, so that all options can be checked before anything is lost.
    """
    check_type("out", out, str | Path)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out must be a folder, but '{folder}' is a file")
    if folder.is_dir() and not all(map(_is_leftover, folder.iterdir())):
        marks = [name for name in MARKS if (folder / name).is_file()]  # other programs write a config.json, too
        if not marks or (marks == ["config.json"] and read_json(folder / marks[0]).get("kind") != "run"):
            raise UsageError(f"out must be a new or empty folder, but '{folder}' has other files")
        if not overwrite:
            raise UsageError(f"out: '{folder}' already has results; choose another folder, overwrite it or resume it")
        if remove:
            with locked(folder):  # what tells that it holds results goes last, so that a killed process can be repeated
                for path in sorted(folder.iterdir(), key=lambda path: path.name in MARKS):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    elif path.name != LOCK:
                        path.unlink()
    return folder


@contextmanager
def locked(folder: Path, seconds: float = 0.0) -> Iterator[None]:
    """Lock a folder of results for this process, creating it if needed; wait this long for another process."""
    lock = FileLock(folder / LOCK, timeout=seconds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise RunError(f"'{folder}' is in use by another process") from None
    except OSError as error:
        raise RunError(f"'{folder}' cannot be written: {error.strerror}") from error
    try:
        for path in folder.iterdir():
            if path.name != LOCK and path.is_file() and _is_leftover(path):
                path.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary.json with its `status`, `rounds_done` and `message`; empty if there is none yet."""
    path = folder / "summary.json"
    if not path.is_file():
        return {}
    summary = {"message": None, **read_json(path)}
    with reading(f"'{path}'", "the summary of a run"):
        return summary | {"status": str(summary["status"]), "rounds_done": int(summary["rounds_done"])}


def is_finished(folder: Path) -> bool:
    """Return whether a run came to its end; else it is continued from its checkpoint."""
    try:
        return (folder / "config.json").is_file() and read_summary(folder).get("status") in (*ENDED, Status.DIVERGED)
    except RunError:
        return False


def check_names(params: Tree) -> None:
    """Check that files can hold the names of the parameters (arrays, or structs), and give them back."""
    names = [name or "params" for name in leaf_names(params)]
    for name in names:
        with suppress(ValueError, struct.error):  # not in UTF-8, or too long
            if list(read_arrays(io.BytesIO(pack_arrays({name: np.zeros(())})))) == [name] and names.count(name) == 1:
                continue
        raise UsageError(f"parameters must have unique names that are valid in a file, got {shorten(repr(name))}")


def read_params(name: str, path: str | Path, like: Tree) -> Tree:
    """Return the parameters in a run's folder or a file, in the structure, shapes and dtypes of `like` (structs).

    If they cannot be read, or are those of another model, a `UsageError` names the argument `name`.
    """
    arrays, (leaves, structure) = read_params_file(name, path), jax.tree.flatten(like)
    wanted = dict(zip([name or "params" for name in leaf_names(like)], leaves))
    if {name: array.shape for name, array in arrays.items()} != {name: leaf.shape for name, leaf in wanted.items()}:
        raise UsageError(f"{name} must have the parameters of the task's model, got '{path}'")
    return jax.tree.unflatten(structure, [arrays[name].astype(leaf.dtype) for name, leaf in wanted.items()])


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves by name (`dense1/kernel`), as NumPy arrays, bfloat16 as float32, which an `.npz` can hold."""
    arrays = zip(leaf_names(tree), map(np.asarray, jax.tree.leaves(tree)))
    return {name or "params": a.astype("f4") if a.dtype.kind == "V" else a for name, a in arrays}


def _is_leftover(path: Path) -> bool:
    """Return whether a file is a lock, or one that a killed process did not finish."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(".tmp"))

"""A run on disk: config.json, history.jsonl, summary.json, params.npz and checkpoints/ in one folder.

Every file is written beside its place and moved there, except the history, which only grows; a reader ignores an
unfinished last line. A lock keeps a second process out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.errors import RunError, UsageError, brief
from fedoptax.history import Row, finite_or_none, to_json_line

FORMAT = 1
_DEEPEST = 50  # of JSON in a run's files


def prepare(out: str | Path, overwrite: bool = False) -> Path:
    """Checks that results may be written to `out`; removes earlier results there if `overwrite`.

    Raises:
      UsageError: the folder holds something, and `overwrite` is False or it is not fedoptax's.
      RunError: it cannot be written to.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out: '{folder}' is a file, allowed is a folder to be made")
    if folder.is_dir() and any(folder.iterdir()):
        ours = any((folder / name).is_file() for name in ("config.json", "compare.json", "sweep.json"))
        if not ours:
            raise UsageError(f"out: '{folder}' holds other files, allowed is a new or empty folder")
        if not overwrite:
            raise UsageError(
                f"out: '{folder}' holds results already; give another folder, --overwrite, or `fedoptax resume`"
            )
        with locked(folder):  # not under the feet of a running process
            shutil.rmtree(folder)
    parent = next(p for p in [folder, *folder.absolute().parents] if p.exists())
    if not os.access(parent, os.W_OK):
        raise RunError(f"out: '{folder}' cannot be written (no permission in '{parent}')")
    return folder


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # no link can wait there
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"'{path}' cannot be written: {error.strerror}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes strict JSON atomically, a line a field; numbers that are not finite become null."""

    def dump(item: Any) -> str:
        return json.dumps(item, allow_nan=False, ensure_ascii=False)

    lines = [f" {dump(name)}: {dump(item)}" for name, item in _plain(value).items()]
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "replace"))


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      RunError: the file is missing, damaged, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise RunError(f"'{path}' is damaged: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise RunError(f"'{path}' cannot be read: {brief(getattr(error, 'strerror', None) or error)}") from error
    if not isinstance(value, dict):
        raise RunError(f"'{path}' is damaged: a JSON object is expected")
    level: list[Any] = [value]
    for _ in range(_DEEPEST):  # what reads it may go down by recursion
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in inner for item in items]
    if level:
        raise RunError(f"'{path}' is damaged: it is nested more than {_DEEPEST} deep")
    return value


def read_back(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value as `read_json` would give it after `write_json`, to be compared with a stored one."""
    return json.loads(json.dumps(_plain(value)))


def append_rows(folder: Path, rows: list[Row]) -> None:
    """Adds rows to the run's history."""
    try:
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(map(to_json_line, rows)))
    except OSError as error:
        raise RunError(f"'{folder / 'history.jsonl'}' cannot be written: {error.strerror}") from error


def read_rows(folder: Path, rounds: int) -> list[Row]:
    """The first `rounds` rows of a run's history.

    Raises:
      RunError: there are fewer whole rows than that, or one is damaged.
    """
    path = folder / "history.jsonl"
    rows: list[Row] = []
    for number, line in enumerate(read_lines(folder)[:rounds], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RunError(f"'{path}' is damaged at line {number}") from error
        if not isinstance(row, dict):
            raise RunError(f"'{path}' is damaged at line {number}: not a JSON object")
        if row.get("round") != number:
            raise RunError(f"'{path}' is damaged: round {row.get('round')} at line {number}")
        rows.append(row)
    if len(rows) < rounds:
        raise RunError(f"'{path}' holds {len(rows)} rounds, the checkpoint is of round {rounds}")
    return rows


def read_lines(folder: Path) -> list[str]:
    """The whole lines of a run's history; a last line without its end, of a process that was killed, is left out."""
    path = folder / "history.jsonl"
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except ValueError:
        raise RunError(f"'{path}' is damaged: not UTF-8") from None
    except OSError as error:
        raise RunError(f"'{path}' cannot be read: {error.strerror}") from error
    return text.split("\n")[:-1]


def rewrite_rows(folder: Path, rows: list[Row]) -> None:
    """Replaces the run's history."""
    write_atomically(folder / "history.jsonl", "".join(map(to_json_line, rows)).encode())


def write_params(path: Path, params: Any) -> None:
    """Writes a parameter tree as `.npz`, one array a leaf named by its key path (`dense1/kernel`)."""
    import io

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **named_leaves(params))
    write_atomically(path, buffer.getvalue())


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a tree by key path, as NumPy arrays (bfloat16 as float32, which NumPy's files can hold)."""
    import jax

    def array(leaf: Any) -> np.ndarray:
        value = np.asarray(leaf)
        return value.astype(np.float32) if value.dtype.kind == "V" or value.dtype.name == "bfloat16" else value

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/") or "params": array(a) for path, a in leaves}


def check_plain(folder: Path) -> None:
    """Checks that a run folder holds nothing but files and folders: one from others may hold links that lead anywhere.

    Raises:
      RunError: it holds a link, a pipe or the like.
    """
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            if not stat.S_ISDIR(mode := path.lstat().st_mode) and not stat.S_ISREG(mode):
                raise RunError(f"'{path}' is no plain file (a link or the like); a run folder holds none")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the run folder for this process.

    Raises:
      RunError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        place = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise RunError(f"'{folder / '.lock'}' cannot be opened: {error.strerror}") from error
    with os.fdopen(place, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"'{folder}' is in use by another process") from error
        yield


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, str | int | bool) or value is None:
        return value
    return finite_or_none(value) if isinstance(value, float) else str(value)

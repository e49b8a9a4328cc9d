"""A run on disk: config.json, history.jsonl, summary.json, params.npz and checkpoints/ in one folder.

Every file is written beside its place and moved there, except the history, which only grows; a reader ignores an
unfinished last line. JSON files carry a checksum of themselves. A lock keeps a second process out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax._files import write_atomically
from fedoptax.errors import RunError, UsageError, brief
from fedoptax.storage.history import Row, finite_or_none

FORMAT = 1
MARKS = ("config.json", "compare.json", "tune.json", "sweep.json")
"""What tells a folder of results from another."""

WRITTEN = (*MARKS, "history.jsonl", "history.parquet", "summary.json", "params.npz")
_CHECKSUM = b'{\n "checksum": "'
_DEEPEST = 50  # of JSON in a run's files


def prepare(out: str | Path, overwrite: bool = False, remove: bool = True) -> Path:
    """Checks that results may be written to `out`; removes earlier results there if `overwrite`.

    Without `remove` they stay: what is asked for is to be checked whole before anything is lost.

    Raises:
      UsageError: the folder holds something, and `overwrite` is False or it is not fedoptax's.
      RunError: it cannot be written to.
    """
    folder = Path(out)
    if folder.is_symlink() and not folder.exists():
        raise UsageError(f"out: '{folder}' is a link to what is not there, allowed is a folder to be made")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out: '{folder}' is a file, allowed is a folder to be made")
    if folder.is_dir() and not all(map(_is_leftover, folder.iterdir())):
        ours = any((folder / name).is_file() for name in MARKS)
        if not ours:
            raise UsageError(f"out: '{folder}' holds other files, allowed is a new or empty folder")
        if not overwrite:
            raise UsageError(
                f"out: '{folder}' holds results already; give another folder, --overwrite, or `fedoptax resume`"
            )
        if remove:
            with locked(folder):  # not under the feet of a running process
                _remove(folder)
    parent = next(p for p in [folder, *folder.absolute().parents] if p.exists())
    if not os.access(parent, os.W_OK):
        raise RunError(f"out: '{folder}' cannot be written (no permission in '{parent}')")
    return folder


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes strict JSON atomically, a line a field; numbers that are not finite become null.

    The first line is a checksum: SHA-256 of the bytes of all lines after it.
    """

    def dump(item: Any) -> str:
        return json.dumps(item, allow_nan=False, ensure_ascii=False)

    lines = [f" {dump(name)}: {dump(item)}" for name, item in _plain(value).items()]
    body = (",\n".join(lines) + "\n}\n").encode("utf-8", "replace")
    write_atomically(path, _CHECKSUM + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, without its checksum if it has one.

    Raises:
      RunError: the file is missing, damaged, or not an object.
    """
    try:
        data = path.read_bytes()
        value = json.loads(data)
    except RecursionError:
        raise RunError(f"'{path}' is damaged: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise RunError(f"'{path}' cannot be read: {brief(getattr(error, 'strerror', None) or error)}") from error
    if not isinstance(value, dict):
        raise RunError(f"'{path}' is damaged: a JSON object is expected")
    checksum = value.pop("checksum", None)
    if checksum is not None and hashlib.sha256(data.partition(b'",\n')[2]).hexdigest() != checksum:
        raise RunError(
            f"'{path}' is damaged: its checksum does not fit (if it was changed on purpose, remove its checksum line)"
        )
    level: list[Any] = [value]
    for _ in range(_DEEPEST):  # what reads it may go down by recursion
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in inner for item in items]
    if level:
        raise RunError(f"'{path}' is damaged: it is nested more than {_DEEPEST} deep")
    return value


def read_status(folder: Path) -> str | None:
    """The status of a run by its summary.json; None if there is none yet.

    Raises:
      RunError: it is damaged.
    """
    path = folder / "summary.json"
    return read_json(path).get("status") if path.is_file() else None


def read_back(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value as `read_json` would give it after `write_json`, to be compared with a stored one."""
    return json.loads(json.dumps(_plain(value)))


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
        if not isinstance(row, dict) or row.get("round") != number:
            raise RunError(f"'{path}' is damaged at line {number}: not the row of round {number}")
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


def write_params(path: Path, params: Any) -> None:
    """Writes a parameter tree as `.npz`, one array a leaf named by its key path (`dense1/kernel`)."""
    import io

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **named_leaves(params))
    write_atomically(path, buffer.getvalue())


def check_params(path: Path) -> None:
    """Checks that a file of parameters is whole.

    Raises:
      ValueError: it is missing, or its own checksums do not fit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if (bad := archive.testzip()) is not None:
                raise ValueError(f"'{path}' is damaged: {bad}")
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"'{path}' cannot be read: {error}") from error


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
def locked(folder: Path, new: bool = False) -> Iterator[None]:
    """Holds the run folder for this process.

    Args:
      folder: it is made if it is not there.
      new: there must be no results in it yet.

    Raises:
      RunError: another process holds it, or has filled a folder that should be new.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    try:
        place = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise RunError(f"'{path}' cannot be opened: {error.strerror}") from error
    with os.fdopen(place, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(file.fileno()), path.stat())  # else its holder has removed it meanwhile
        except OSError:
            ours = False
        if not ours:
            raise RunError(f"'{folder}' is in use by another process")
        if new and any((folder / name).is_file() for name in MARKS):
            raise RunError(f"'{folder}' was filled by another process meanwhile; give another folder")
        for leftover in folder.iterdir():
            if _is_leftover(leftover) and any(leftover.name.startswith(f".{name}.") for name in WRITTEN):
                leftover.unlink(missing_ok=True)
        yield


def _is_leftover(path: Path) -> bool:
    """Whether a file is a lock, or one that a killed process did not finish."""
    return path.name == ".lock" or (path.name.startswith(".") and path.name.endswith(".tmp"))


def _remove(folder: Path) -> None:
    """Removes a folder; what tells that it holds results goes last, so that a killed process can be repeated.

    Of a link to a folder, link and folder stay: it says where results are wanted.
    """
    for path in sorted(folder.iterdir(), key=lambda path: path.name in MARKS):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()
    if folder.is_symlink():
        (folder / ".lock").unlink(missing_ok=True)
    else:
        shutil.rmtree(folder)


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

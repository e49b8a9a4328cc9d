"""Atomically written files, and JSON with errors that name the file."""

import io
import json
import math
import os
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.errors import DataError, RunError, UsageError, shorten


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a power cut does not undo a rename; nothing on Windows."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write strict JSON atomically, one line per field; numbers that are not finite become null."""
    dump = partial(json.dumps, allow_nan=False, ensure_ascii=False)
    lines = [f" {dump(name)}: {dump(item)}" for name, item in to_plain(value).items()]
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "replace"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    with reading(f"'{path}'", "JSON"):
        value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise RunError(f"'{path}' is damaged: it must be a JSON object")
    return value


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays by name as an `.npz` file; `np.savez` would confuse some names with its arguments."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_arrays(file: Any) -> dict[str, np.ndarray]:
    """Return the arrays by name of an `.npz` file, a path or an open one, in its order."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name.removesuffix(".npy"): arrays[name] for name in arrays.zip.namelist()}


def read_params_file(name: str, path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays by name of an `.npz` file of parameters, or of a run's folder; else raise a `UsageError`."""
    file = Path(path).expanduser()
    file = file / "params.npz" if file.is_dir() else file
    try:
        return read_arrays(file)
    except Exception as error:  # a damaged archive raises one of a dozen
        reason = shorten(getattr(error, "strerror", None) or error)
        raise UsageError(f"{name} must be a run's folder or .npz file of parameters, got '{path}': {reason}") from error


def to_plain(value: Any) -> Any:
    """Return `value` as `read_json` would after `write_json`."""
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "__array__"):
        return to_plain(np.asarray(value).tolist())
    if isinstance(value, str | int | bool) or value is None:
        return value
    return finite_or_none(value) if isinstance(value, float) else getattr(value, "__qualname__", str(value))


def finite_or_none(value: Any) -> Any:
    """Return `value`, or None for a float that is NaN or infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def reading(name: object, kind: str, but: Any = (UsageError, RunError)) -> Iterator[None]:
    """Turn any error in reading a file, `but` some, into one line that names it: damaged files fail in many ways."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        reason = shorten(getattr(error, "strerror", None) or (error if " " in str(error) else repr(error)))
        raise DataError(f"{name} cannot be read as {kind}: {reason}") from error

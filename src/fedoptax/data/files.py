"""The files of data sets: folders, formats and published hashes."""

import gzip
import lzma
import os
import shlex
import zlib
from pathlib import Path

from fedoptax.data.registry import DATA_SETS
from fedoptax.errors import DataError, UsageError, shorten

ENVIRONMENT = "FEDOPTAX_DATA"


def find_data_dir(data_dir: str | Path | None = None) -> Path:
    """Find the folder of the data sets, one subfolder for each; it need not exist yet.

    None for `data_dir` means the environment's `FEDOPTAX_DATA`, else the user's cache folder; `~` is the user's home.
    An empty string is a `UsageError`.
    """
    folder = os.environ.get(ENVIRONMENT) or None if data_dir is None else data_dir
    if folder is None:
        import pooch  # only here: most runs name their folder, and the command line should start fast

        return Path(pooch.os_cache("fedoptax"))
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise UsageError(f"data_dir must be the path of a folder, got {folder!r}")
    return Path(os.path.expanduser(folder))


def find_file(path: Path) -> Path | None:
    """Find a file, plain or compressed with `.gz` or `.xz` added to its name; `None` if there is neither."""
    return next(filter(Path.is_file, (path.with_name(path.name + suffix) for suffix in ("", ".gz", ".xz"))), None)


def require_file(data_dir: str | Path | None, dataset: str, *names: str) -> Path:
    """Return the path of the first of `names` in a data set's folder, plain or compressed.

    If there is none, a `DataError` says how to get it.
    """
    folder = find_data_dir(data_dir) / dataset
    for name in names:
        if path := find_file(folder / name):
            return path
    published = DATA_SETS.get(dataset)
    how = (published and published.by_hand) or f"`fedoptax data fetch {dataset}` downloads it"
    where = f"--data-dir (data_dir=) or {ENVIRONMENT} names the folder that holds '{dataset}'"
    raise DataError(f"{names[0]} not found in {folder}: {how}; {where}")


def read_file(path: Path) -> bytes:
    """Read a file, decompressed if its content is gzip or xz; a `DataError` if it cannot be read or is damaged."""
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"\xfd7zXZ\0"):
            return lzma.decompress(data)
        return data
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, reason: object) -> DataError:
    """Make the error of a file that is not as it was published, which says how to get it again."""
    folder = next((folder for folder in path.absolute().parents if folder.name in DATA_SETS), None)
    how = "fetch it again from where it came"
    if folder is not None:
        command = shlex.join(["fedoptax", "data", "fetch", folder.name, "--data-dir", str(folder.parent)])
        how = DATA_SETS[folder.name].by_hand or f"delete it, and run `{command}`"
    return DataError(f"{path} is damaged ({shorten(reason)}): {how}")

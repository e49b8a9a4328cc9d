"""Where the data sets lie: one folder with one subfolder a data set, each in its upstream format."""

from __future__ import annotations

import os
from pathlib import Path

from fedoptax.errors import DataError, UsageError

ENVIRONMENT = "FEDOPTAX_DATA"


def find_data_dir(data_dir: str | Path | None = None) -> Path:
    """The folder that holds the data sets; it is not created, and need not exist yet.

    Args:
      data_dir: an explicit folder (`~` is the user's home); `None` means the environment's `FEDOPTAX_DATA`,
        else the user's cache folder.

    Returns:
      The folder's path.

    Raises:
      UsageError: `data_dir` is the empty string.
    """
    if data_dir is not None:
        if not str(data_dir):
            raise UsageError("data_dir: '' given; the path of a folder is allowed")
        return Path(data_dir).expanduser()
    if from_environment := os.environ.get(ENVIRONMENT):
        return Path(from_environment).expanduser()
    import pooch  # only here: most runs name their folder, and the command line should start fast

    return Path(pooch.os_cache("fedoptax"))


def require(data_dir: str | Path | None, dataset: str, filename: str) -> Path:
    """The path of one file of a data set, packed as `filename.gz` or unpacked as `filename`.

    Args:
      data_dir: as in `find_data_dir`.
      dataset: the data set's subfolder, such as `"mnist"`.
      filename: the file's upstream name, with or without its `.gz`.

    Returns:
      The path of the file that is there; the packed one where both are.

    Raises:
      DataError: neither is there; the message names the file, the folder and the remedy.
    """
    folder = find_data_dir(data_dir) / dataset
    plain = filename.removesuffix(".gz")
    for name in (f"{plain}.gz", plain):
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{plain}.gz: not found (nor {plain}) in {folder}; `fedoptax data fetch {dataset}` downloads it, or "
        f"name the folder that holds '{dataset}' with --data-dir (data_dir=) or {ENVIRONMENT}"
    )

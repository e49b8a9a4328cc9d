"""Where the files of a data set are that is read from several, all of them unpacked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedoptax.data.location import ENVIRONMENT, find_data_dir
from fedoptax.errors import DataError


def any_there(data_dir: str | Path | None, dataset: str, names: Iterable[str]) -> bool:
    """Whether one of the files is in the data set's folder."""
    return any((find_data_dir(data_dir) / dataset / name).is_file() for name in names)


def require_all(data_dir: str | Path | None, dataset: str, names: Iterable[str]) -> list[Path]:
    """The paths of the files.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`.
      dataset: the data set's subfolder.
      names: of the files.

    Raises:
      DataError: one is not there.
    """
    folder = find_data_dir(data_dir) / dataset
    for name in names:
        if not (folder / name).is_file():
            raise missing(folder, name)
    return [folder / name for name in names]


def missing(folder: Path, filename: str, also: str = "") -> DataError:
    """The error for a file that is not there, with the remedy.

    Args:
      folder: of the data set.
      filename: in it.
      also: the other names under which it was looked for.
    """
    alternatives = f" (nor {also})" if also else ""
    return DataError(
        f"{filename}: not found{alternatives} in {folder}; "
        f"name the folder that holds '{folder.name}' with --data-dir (data_dir=) or {ENVIRONMENT}"
    )

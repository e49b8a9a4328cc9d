"""The columns of a user's table or archive: their names, and which of them look like ids rather than features."""

from pathlib import Path

import numpy as np

from fedoptax.data.datasets.source import Source
from fedoptax.data.readers import TABLES, open_archive, read_frame
from fedoptax.errors import DataError, UsageError, shorten

FEWEST = 20
"""Rows from which a column without repetitions counts as ids."""
NAMED = 10


def column_names(path: Path, **cells: str | None) -> list[str] | None:
    """Return the names of a table's columns or of an archive's arrays; None for what has none, as a folder of images.

    Raises:
      DataError: the file cannot be read.
    """
    suffix = path.suffix.lower()
    if path.is_dir() or not path.exists() or suffix not in (*TABLES, ".npz"):
        return None
    if suffix == ".npz":
        with open_archive(path) as archive:
            return list(archive)
    return list(read_frame(path, [], 0, **cells).columns)


def check_has_clients(path: Path, names: list[str] | None) -> None:
    """Refuse a table or archive, with these names, that does not say which client holds an example.

    Raises:
      UsageError: it has no column or array `client`.
    """
    if names is not None and "client" not in names:
        kind = "array" if path.suffix.lower() == ".npz" else "column"
        raise UsageError(
            f"{path} has no {kind} 'client', only {shorten(', '.join(map(repr, names)))}: give --client-column "
            f"(client_column=) for the {kind} of the client ids, or --partition (partition=) dirichlet or iid to make "
            "clients of the examples"
        )


def find_ids(source: Source) -> list[str]:
    """Return a warning about the columns that look like ids, and one about those that only tell the clients apart.

    Ids are whole numbers of which hardly any occurs twice. A column tells clients apart if it is constant within each.
    """
    x, groups = source.train["x"], source.train_groups
    if x.ndim != 2 or len(x) < FEWEST:
        return []
    names = source.columns or [f"x[:, {i}]" for i in range(x.shape[1])]
    unique, constant = [], []
    starts = order = None
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(np.unique(groups, return_inverse=True)[1][order])) + 1])
    for name, column in zip(names, x.T):
        if np.all(column == np.round(column)) and len(np.unique(column)) >= 0.99 * len(column):
            unique.append(name)
        elif starts is not None and 1 < len(starts) <= len(x) // 2 and np.ptp(column):
            low, high = (ufunc.reduceat(column[order], starts) for ufunc in (np.minimum, np.maximum))
            constant += [name] if np.array_equal(low, high) else []
    reasons = ((unique, "differs in every row, as an id does"), (constant, "is constant within each client"))
    return [
        f"warning: {', '.join(map(repr, found[:NAMED]))} {why}; leave out what says nothing about new examples"
        + (f": --task-set drop={','.join(found[:NAMED])}" if source.columns else "")
        for found, why in reasons
        if found
    ]


def choose_features(path: Path, names: list[str] | None, drop: str, others: list[str]) -> list[str]:
    """Return the columns of a table without those that `drop` names, separated by commas, and without the `others`."""
    dropped = [name.strip() for name in drop.split(",")]
    if names is None or path.suffix.lower() not in TABLES:
        raise UsageError(f"drop must not be given but for a table, got '{path}'")
    if missing := [name for name in dropped if name not in names]:
        raise DataError(f"{path} lacks {missing[0]!r}; it has {shorten(', '.join(map(repr, names)))}")
    return [name for name in names if name not in (*dropped, *others)]

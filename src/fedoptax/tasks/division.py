"""Who holds what: a data set's training and test examples divided among clients, as a task's options ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fedoptax.data import partition as partitions
from fedoptax.data.federated import FederatedData
from fedoptax.data.sources import Source
from fedoptax.errors import UsageError
from fedoptax.tasks.recipe import Options, Recipe

CENTRAL = (
    "dirichlet", "iid", "dirichlet-by-class", "classes", "shards", "similarity", "lognormal", "powerlaw",
)  # fmt: skip
"""The ways to divide any labelled data set."""

NATURAL = ("writers", "roles", "users", "articles", "parts", "clients")
"""Names of the clients that a data set has by nature."""

PARTITION_OPTIONS: dict[str, tuple[str, ...]] = {
    "iid": ("num_clients",),
    "dirichlet": ("num_clients", "alpha"),
    "dirichlet-by-class": ("num_clients", "alpha"),
    "pachinko": ("num_clients", "alpha", "alpha_fine"),
    "classes": ("num_clients", "classes"),
    "shards": ("num_clients", "shards"),
    "similarity": ("num_clients", "similarity"),
    "lognormal": ("num_clients", "sigma"),
    "powerlaw": ("num_clients", "exponent"),
    **dict.fromkeys(NATURAL, ("num_clients",)),
}
"""The options of `load_task` that each partition has."""

DEFAULTS: dict[tuple[str, str], Any] = {
    ("dirichlet", "alpha"): 0.3,
    ("dirichlet-by-class", "alpha"): 0.3,
    ("pachinko", "alpha"): 0.1,
    ("pachinko", "alpha_fine"): 10.0,
    ("classes", "classes"): 2,
    ("shards", "shards"): 2,
    ("similarity", "similarity"): 0.0,
    ("lognormal", "sigma"): 1.0,
    ("powerlaw", "exponent"): 1.5,
}
"""The value of a partition's option where none is given."""


class Division(NamedTuple):
    """A data set after it was divided.

    Attributes:
      clients: the training examples and who holds them.
      test: the test examples.
      test_owners: the client of each test example, int (m,), or None if nobody knows.
      spec: what was done, by the names of `load_task`'s options.
    """

    clients: FederatedData
    test: dict[str, np.ndarray]
    test_owners: np.ndarray | None
    spec: dict[str, Any]


def divide(source: Source, recipe: Recipe, given: Options) -> Division:
    """Divides a data set as `given` asks, or else by the task's default partition.

    Test examples are divided like the training examples: to the same natural clients, or so that a client's test labels
    are distributed like its training labels. Where no test example belongs to a client that trains (MNIST's writers),
    all are kept with their own clients.

    Raises:
      UsageError: an option of another partition, or a number out of range.
    """
    name = given.partition or recipe.partitions[0]
    settings = _settings(name, given)
    if name in NATURAL:
        division = _natural(source, name, given.num_clients)
    else:
        count = recipe.num_clients if given.num_clients is None else given.num_clients
        labels = np.asarray(source.train["y"])
        parts = _parts(name, source, labels, count, settings, given.seed)
        clients = FederatedData.from_parts(source.train, parts)
        division = Division(clients, source.test, _owners(source, labels, parts, given.seed), {})
    spec = {"partition": name, **settings, "num_clients": division.clients.num_clients, "partition_seed": given.seed}
    return division._replace(spec=spec)


def _settings(name: str, given: Options) -> dict[str, Any]:
    """The partition's own options, with defaults; refuses those of other partitions."""
    own = PARTITION_OPTIONS[name]
    for option in sorted({option for options in PARTITION_OPTIONS.values() for option in options} - set(own)):
        value = getattr(given, option)
        if value is not None:
            raise UsageError(f"{option}: {value!r} given, the options of partition '{name}' are {', '.join(own)}")
    return {
        option: DEFAULTS[name, option] if getattr(given, option) is None else getattr(given, option)
        for option in own
        if option != "num_clients"
    }


def _parts(
    name: str, source: Source, labels: np.ndarray, clients: int, settings: dict[str, Any], seed: int
) -> list[np.ndarray]:
    if name == "iid":
        return partitions.iid(labels, clients, seed)
    if name == "dirichlet":
        return partitions.dirichlet(labels, clients, settings["alpha"], seed)
    if name == "dirichlet-by-class":
        return partitions.dirichlet_by_class(labels, clients, settings["alpha"], seed)
    if name == "pachinko":
        assert source.train_coarse is not None
        alphas = {"alpha_coarse": settings["alpha"], "alpha_fine": settings["alpha_fine"]}
        return partitions.pachinko(source.train_coarse, labels, clients, seed=seed, **alphas)
    if name == "classes":
        return partitions.classes_per_client(labels, clients, settings["classes"], seed)
    if name == "shards":
        with _told_as("shards", "shards_per_client"):
            return partitions.shards(labels, clients, settings["shards"], seed)
    if name == "similarity":
        with _told_as("similarity", "s"):
            return partitions.similarity(labels, clients, settings["similarity"], seed)
    return partitions.by_size(labels, clients, seed=seed, distribution=name, **settings)


@contextmanager
def _told_as(option: str, argument: str) -> Iterator[None]:
    """What is said of a function's `argument` is said of the option that a person gave."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace(f"{argument}:", f"{option}:", 1)) from error


def _owners(source: Source, labels: np.ndarray, parts: list[np.ndarray], seed: int) -> np.ndarray | None:
    of_test = np.asarray(source.test["y"])
    return partitions.divide_test(labels, parts, of_test, seed) if len(of_test) else None


def _natural(source: Source, name: str, wanted: int | None) -> Division:
    """One client for each writer, role or user: all of them, or the first `wanted`."""
    groups = source.train_groups
    assert groups is not None
    if np.any(groups[1:] < groups[:-1]):  # only then are examples moved, and a map from a file read
        order = np.argsort(groups, kind="stable")
        groups, train = groups[order], {field: array[order] for field, array in source.train.items()}
    else:
        train = source.train
    ids, starts = np.unique(groups, return_index=True)
    if wanted is not None and not 1 <= wanted <= len(ids):
        raise UsageError(f"num_clients: {wanted} given, allowed is 1 to {len(ids)}, the number of {name}")
    if wanted is not None and wanted < len(ids):
        end, ids = starts[wanted], ids[:wanted]
        groups, train = groups[:end], {field: array[:end] for field, array in train.items()}
    clients = FederatedData.from_groups(train, groups)
    if source.test_groups is None or not len(source.test_groups):
        return Division(clients, source.test, None, {})
    theirs = np.isin(source.test_groups, ids)
    if wanted is None or not theirs.any():  # also of others, who are numbered after those who train
        inverse = np.unique(source.test_groups[~theirs], return_inverse=True)[1]
        owners = np.empty(len(theirs), np.int64)
        owners[theirs] = np.searchsorted(ids, source.test_groups[theirs])
        owners[~theirs] = len(ids) + inverse
        return Division(clients, source.test, owners, {})
    test = {field: array[theirs] for field, array in source.test.items()}
    return Division(clients, test, np.searchsorted(ids, source.test_groups[theirs]), {})

"""What a named task is made of, the options it takes, and how its examples are divided among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np

from fedoptax.data import partition as partitions
from fedoptax.data.datasets.source import Source
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError, check_choice, check_int, check_number
from fedoptax.tasks.task import DTYPES, Task

NATURAL = ("writers", "roles", "users", "articles", "parts", "clients")
"""Names of the clients that a data set has by nature."""

PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    "dirichlet": {"alpha": 0.3},
    "iid": {},
    "dirichlet-by-class": {"alpha": 0.3},
    "classes": {"classes": 2},
    "shards": {"shards": 2},
    "similarity": {"similarity": 0.0},
    "lognormal": {"sigma": 1.0},
    "powerlaw": {"exponent": 1.5},
    "pachinko": {"alpha": 0.1, "alpha_fine": 10.0},
    **{name: {} for name in NATURAL},
}
"""The options of each partition, beside `num_clients`, with their defaults."""

CENTRAL = tuple(name for name in PARTITION_OPTIONS if name not in (*NATURAL, "pachinko"))
"""The partitions of any labelled data set."""


@dataclass(frozen=True)
class TaskOptions:
    """The options of `load_task`; None stands for the task's default, and no task takes all of them.

    Attributes:
      partition: how the training examples are divided: `"iid"`, `"dirichlet"` (equal sizes, each client its own class
        distribution), `"dirichlet-by-class"` (unequal sizes), `"pachinko"` (CIFAR-100), `"classes"` (a few classes per
        client), `"shards"` (a few runs of sorted labels), `"similarity"` (a part iid, the rest sorted), `"lognormal"`
        or `"powerlaw"` (iid in unequal sizes), or the data's own clients (`"writers"`, `"roles"`, `"users"`,
        `"articles"`, `"parts"`, `"clients"`).
      alpha: concentration of the Dirichlet partitions, > 0, smaller is less iid, default 0.3; over the coarse labels
        of `"pachinko"`, default 0.1; of `synthetic` its α, >= 0, default 1.
      alpha_fine: concentration over the fine labels of `"pachinko"`, > 0; default 10.
      beta: of `synthetic` its β, the variance between the devices' data, >= 0, default 1.
      classes: classes per client, for `partition="classes"`; default 2.
      shards: shards per client, for `partition="shards"`; default 2.
      similarity: percent of the examples that are divided iid, for `partition="similarity"`; default 0.
      sigma: deviation of the logarithm of the sizes, for `partition="lognormal"`; default 1.
      exponent: of the sizes' tail, for `partition="powerlaw"`; default 1.5.
      num_clients: N; of natural clients the first N are taken.
      devices: of image tasks: the number of devices without data of their own, >= N; each round N active ones, which
        must be the cohort, are allocated the N shares (a reading of Fed-LAMB's experiments).
      model: `"logistic"`, `"mlp"`, `"cnn"`, …
      augment: of CIFAR: `"crop"` (24×24, flip, standardise; default for ResNet-18), `"standardize"` or `"none"`.
      client_column, label_column, test_fraction, image_size: of `file:PATH`, see `fedoptax.data.custom.load_file`.
      compute_dtype: `"bfloat16"` computes the training loss and its gradients in it, see `with_compute_dtype`; default
        `"float32"`.
      seed: of the partition, or of the data where a task draws them.
      data_dir: folder with one subfolder per data set; None takes `$FEDOPTAX_DATA`, else the user's cache folder.

    Raises:
      UsageError: a value of another type, or no task's.
    """

    partition: str | None = None
    alpha: float | None = None
    alpha_fine: float | None = None
    beta: float | None = None
    classes: int | None = None
    shards: int | None = None
    similarity: float | None = None
    sigma: float | None = None
    exponent: float | None = None
    num_clients: int | None = None
    devices: int | None = None
    model: str | None = None
    augment: str | None = None
    client_column: str | None = None
    label_column: str | None = None
    test_fraction: float | None = None
    image_size: int | None = None
    compute_dtype: str | None = None
    seed: int = 0
    data_dir: str | Path | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if TASK_OPTIONS[name] is int:
                check_int(name, value)
            elif TASK_OPTIONS[name] is float:
                check_number(name, value)
            elif not isinstance(value, str):
                raise UsageError(f"{name} must be text, got {value!r}")
        check_int("seed", self.seed, 0, 2**63 - 1)
        if self.compute_dtype is not None:
            check_choice("compute_dtype", self.compute_dtype, DTYPES)

    def given(self) -> dict[str, Any]:
        """The options that are not None, but for `seed` and `data_dir`, which every task takes."""
        return {name: getattr(self, name) for name in TASK_OPTIONS if getattr(self, name) is not None}


TASK_OPTIONS: dict[str, type] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(TaskOptions).items() if name not in ("seed", "data_dir")
}
"""The type of each option that a task may or may not take: str, int or float."""


@dataclass(frozen=True)
class Recipe:
    """A named task and its defaults.

    Attributes:
      build: makes the task from its name, its recipe and the options.
      summary: one line for `fedoptax list tasks`.
      model: the default model.
      num_clients: the default number of clients; 0 where the data decide.
      models: allowed models, the default among them.
      options: the options that apply, apart from those of a partition.
      partitions: allowed ways of dividing the examples, the default first; none if the task has its clients by nature.
      defaults: defaults of a run (rounds, cohort_size, batch_size, local_epochs, eval_every).
    """

    build: Callable[[str, Recipe, TaskOptions], Task]
    summary: str
    model: str
    num_clients: int
    models: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def option_types(self) -> dict[str, type]:
        """The options that the task takes, with their types; every task takes `seed` and `data_dir` besides."""
        names = {*self.options, "compute_dtype"} | ({"model"} if self.models else set())
        if self.partitions:
            names |= {"partition", "num_clients"}.union(*(PARTITION_OPTIONS[name] for name in self.partitions))
        return {name: kind for name, kind in TASK_OPTIONS.items() if name in names}


def check_options(name: str, recipe: Recipe, options: TaskOptions) -> None:
    """Check that the task `name` takes the options."""
    allowed = recipe.option_types()
    for option in options.given():
        if option not in allowed:
            raise UsageError(f"{option} must not be given for task '{name}', which takes {', '.join(allowed)}")
    if options.model is not None:
        check_choice("model", options.model, recipe.models)
    if options.partition is not None:
        check_choice("partition", options.partition, recipe.partitions)


class Division(NamedTuple):
    """A data set divided among clients.

    Attributes:
      clients: the training examples and who holds them.
      test: the test examples.
      test_owners: the client of each test example, int (m,), or None if that is not known.
      spec: how it was divided, by the names of `load_task`'s options.
    """

    clients: FederatedData
    test: dict[str, np.ndarray]
    test_owners: np.ndarray | None
    spec: dict[str, Any]


def make_task(
    name: str,
    recipe: Recipe,
    options: TaskOptions,
    source: Source,
    spec: Mapping[str, Any],
    learned: Mapping[str, Any],
    **attributes: Any,
) -> Task:
    """Divide a data set by the options, and return the task of it: `learned` and `attributes` are `Task`'s."""
    division = divide(source, recipe, options)
    return Task(
        name=name,
        clients=division.clients,
        test=division.test,
        test_owners=division.test_owners,
        description=recipe.summary,
        spec={**spec, **division.spec},
        **learned,
        **attributes,
    )


def divide(source: Source, recipe: Recipe, options: TaskOptions) -> Division:
    """Divide a data set by the partition of the options, or else the task's default.

    Test examples are divided like the training examples: to the same natural clients, or so that a client's test labels
    are distributed like its training labels. Where no test example belongs to a client that trains (MNIST's writers),
    all are kept with their own clients.
    """
    name = options.partition or recipe.partitions[0]
    settings = _partition_settings(name, options)
    if name in NATURAL:
        clients, test, test_owners = _divide_by_groups(source, name, options.num_clients)
    else:
        labels, test, test_owners = np.asarray(source.train["y"]), source.test, None
        count = check_int("num_clients", options.num_clients or recipe.num_clients, 1, len(labels))
        parts = _partition(name, source, labels, count, settings, options.seed)
        clients = FederatedData.from_parts(source.train, parts)
        if len(test["y"]):
            test_owners = partitions.divide_test(labels, parts, np.asarray(test["y"]), options.seed)
    spec = {"partition": name, **settings, "num_clients": clients.num_clients, "partition_seed": options.seed}
    return Division(clients, test, test_owners, spec)


def _partition_settings(name: str, options: TaskOptions) -> dict[str, Any]:
    """The partition's own options, with defaults; refuses those of other partitions."""
    defaults = PARTITION_OPTIONS[name]
    given = options.given()
    for option in sorted({option for others in PARTITION_OPTIONS.values() for option in others} - set(defaults)):
        if option in given:
            takes = ", ".join(["num_clients", *defaults])
            raise UsageError(f"{option} must not be given for partition '{name}', which takes {takes}")
    return {option: given.get(option, default) for option, default in defaults.items()}


def _partition(
    name: str, source: Source, labels: np.ndarray, clients: int, settings: dict[str, Any], seed: int
) -> list[np.ndarray]:
    match name:
        case "iid":
            return partitions.iid(labels, clients, seed)
        case "dirichlet":
            return partitions.dirichlet(labels, clients, settings["alpha"], seed)
        case "dirichlet-by-class":
            return partitions.dirichlet_by_class(labels, clients, settings["alpha"], seed)
        case "pachinko":
            assert source.train_coarse is not None
            check_number("alpha", settings["alpha"], 0.0, open_low=True)
            alphas = {"alpha_coarse": settings["alpha"], "alpha_fine": settings["alpha_fine"]}
            return partitions.pachinko(source.train_coarse, labels, clients, seed=seed, **alphas)
        case "classes":
            return partitions.classes_per_client(labels, clients, settings["classes"], seed)
        case "shards":
            check_int("shards", settings["shards"], 1, len(labels) // clients)
            return partitions.shards(labels, clients, settings["shards"], seed)
        case "similarity":
            check_number("similarity", settings["similarity"], 0.0, 100.0, open_high=False)
            return partitions.similarity(labels, clients, settings["similarity"], seed)
    return partitions.by_size(labels, clients, seed=seed, distribution=name, **settings)


def _divide_by_groups(
    source: Source, name: str, num_clients: int | None
) -> tuple[FederatedData, dict[str, np.ndarray], np.ndarray | None]:
    """Make a client of each writer, role or user, or of the first `num_clients`: clients, test, test owners."""
    train, groups = source.train, source.train_groups
    assert groups is not None
    if np.any(groups[1:] < groups[:-1]):  # only then are examples moved, and a map from a file read
        order = np.argsort(groups, kind="stable")
        groups, train = groups[order], {field: array[order] for field, array in train.items()}
    ids, starts = np.unique(groups, return_index=True)
    if num_clients is not None and num_clients > len(ids):
        raise UsageError(f"num_clients must be <= {len(ids)}, the number of {name}, got {num_clients}")
    if num_clients is not None and num_clients < len(ids):
        end, ids = starts[num_clients], ids[:num_clients]
        groups, train = groups[:end], {field: array[:end] for field, array in train.items()}
    clients = FederatedData.from_groups(train, groups)
    if source.test_groups is None or not len(source.test_groups):
        return clients, source.test, None
    is_of_client = np.isin(source.test_groups, ids)
    owners = np.searchsorted(ids, source.test_groups)
    if num_clients is not None and is_of_client.any():
        return clients, {field: array[is_of_client] for field, array in source.test.items()}, owners[is_of_client]
    others = np.unique(source.test_groups[~is_of_client], return_inverse=True)[1]
    owners[~is_of_client] = len(ids) + others  # those who only test are numbered after those who train
    return clients, source.test, owners

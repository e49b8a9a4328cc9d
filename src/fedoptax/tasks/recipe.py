"""The recipe of a named task: its parts, its options, and how its examples are divided among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np

from fedoptax.data import partition as partitions
from fedoptax.data.datasets.source import Source
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError, check_choice, check_int, check_number, check_type

if TYPE_CHECKING:
    from fedoptax.models import Model
    from fedoptax.tasks.task import Task

PREFIX, TEXT_PREFIX = "file:", "text:"
"""The beginnings of the names of tasks on a file, and on texts."""

NATURAL = ("writers", "roles", "users", "articles", "parts", "clients")
"""Names of the clients that a data set has by nature."""

_BY_LABEL: dict[str, tuple[Callable[..., partitions.Parts], dict[str, Any]]] = {
    "dirichlet": (partitions.dirichlet, {"alpha": 0.3}),
    "iid": (partitions.iid, {}),
    "dirichlet-by-class": (partitions.dirichlet_by_class, {"alpha": 0.3}),
    "classes": (partitions.classes_per_client, {"classes": 2}),
    "shards": (lambda y, n, shards, seed: partitions.shards(y, n, shards, seed), {"shards": 2}),
    "similarity": (lambda y, n, similarity, seed: partitions.similarity(y, n, similarity, seed), {"similarity": 0.0}),
    "lognormal": (partial(partitions.by_size, distribution="lognormal"), {"sigma": 1.0}),
    "powerlaw": (partial(partitions.by_size, distribution="powerlaw"), {"exponent": 1.5}),
}
"""The partitions of any labelled data set: `(labels, num_clients, seed=..., **options)`, and the options' defaults."""

CENTRAL = tuple(_BY_LABEL)

PARTITION_OPTIONS: dict[str, dict[str, Any]] = {
    **{name: options for name, (_, options) in _BY_LABEL.items()},
    "pachinko": {"alpha": 0.1, "alpha_fine": 10.0},
    **{name: {} for name in NATURAL},
}
"""The options of each partition, beside `num_clients`, with their defaults."""


def defer_import(path: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
    """Return `partial` of a function, `MODULE:FUNCTION` of fedoptax, that is imported when called, as JAX is slow."""

    def call(*others: Any, **more: Any) -> Any:
        module, _, name = path.partition(":")
        return getattr(import_module(f"fedoptax.{module}"), name)(*arguments, *others, **options, **more)

    return call


MODELS: dict[str, Callable[..., Model]] = {
    **{name: defer_import(f"models:{name}") for name in ("logistic", "mlp")},
    "mlp_dropout": defer_import("models:mlp", dropout=0.5),  # Fed-LAMB's on MNIST; the text has no rate
    **{name: defer_import(f"models:{name}") for name in ("cnn", "emnist_cnn", "resnet18")},
    "resnet18_unstrided": defer_import("models:resnet18", strides=False),
    **{name: defer_import(f"models:{name}") for name in ("resnet9", "cifar_cnn", "fafed_fmnist_cnn")},
    **{name: defer_import(f"models:{name}") for name in ("fafed_cifar_cnn", "lenet", "vit")},
    "vit_small": defer_import("models:vit", width=64, depth=3, heads=4),
}
"""Builders of image classifiers by name; each takes `(input_shape, num_classes)`."""


@dataclass(frozen=True)
class TaskOptions:
    """The options of `load_task`; None is the task's default, and no task has all of them.

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
      classes, shards: how many per client, for the partitions of these names; default 2.
      similarity: percent of the examples that are divided iid, for `partition="similarity"`; default 0.
      sigma: deviation of the logarithm of the sizes, for `partition="lognormal"`; default 1.
      exponent: of the sizes' tail, for `partition="powerlaw"`; default 1.5.
      num_clients: N; of natural clients the first N are taken (of a file, features are scaled by all of its clients).
      devices: of image tasks: the number of devices without data of their own, >= N; each round N active ones, which
        must be the cohort, are allocated the N shares (a reading of Fed-LAMB's experiments).
      model: `"logistic"`, `"mlp"`, `"cnn"`, …
      augment: of CIFAR: `"crop"` (24×24 at random, flip, standardise; default for ResNet-18), `"center"` (24×24 in the
        centre, no flip), `"standardize"` or `"none"`.
      drop: columns of a table at `file:PATH` that are no features, separated by commas.
      client_column, label_column, split, test_fraction, image_size (one number), separator, decimal, target: of
        `file:PATH`, see `fedoptax.data.custom.load_file`; `text:PATH` has the first and the fourth (default 0.1), too.
      schema: of a table, a TOML file or its text, see `fedoptax.data.schema`.
      class_weight: of classes, weights of the training loss: `"balanced"`, or `"yes=5,no=1"`.
      loss: of a number to predict: `"squared"` (the default), `"huber"` or `"poisson"`.
      test_examples: of Stack Overflow: `"sample"`, 10,000 sentences drawn from all (the default), or `"all"`.
      validation_fraction: share of each client's training examples that is held out to choose by, in (0, 1), see
        `with_validation`; default none.
      metrics: of classes, further metrics by name, such as `"auroc,f1"`, see `with_metrics`.
      context, weight, freeze_a, lora_alpha, lora_targets, lora_dropout, base_adapter: of `text:PATH`, see
        `fedoptax.tasks.pretrained`.
      lora, base: train low-rank changes, of rank `lora`, of the parameters in `base`, a run folder or `.npz` file; see
        `with_lora`.
      compute_dtype: `"bfloat16"` computes the training loss and its gradients in it, see `with_compute_dtype`; default
        `"float32"`.
      seed: of the partition, or of the data where a task draws them.
      data_dir: folder with one subfolder per data set; None: `$FEDOPTAX_DATA`, else the user's cache folder.
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
    drop: str | None = None
    label_column: str | None = None
    split: str | None = None
    test_fraction: float | None = None
    image_size: int | None = None
    separator: str | None = None
    decimal: str | None = None
    schema: str | Path | None = None
    target: str | None = None
    class_weight: str | None = None
    loss: str | None = None
    test_examples: str | None = None
    validation_fraction: float | None = None
    metrics: str | None = None
    lora: int | None = None
    base: str | None = None
    compute_dtype: str | None = None
    context: int | None = None
    weight: str | None = None
    freeze_a: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None
    lora_dropout: float | None = None
    base_adapter: str | None = None
    seed: int = 0
    data_dir: str | Path | None = None

    def __post_init__(self) -> None:
        checks: dict[type, Callable[[str, Any], object]] = {int: check_int, float: check_number}
        for name, value in self.chosen().items():
            checks.get(TASK_OPTIONS[name], partial(check_type, kinds=str | Path))(name, value)
        check_int("seed", self.seed, 0, 2**63 - 1)

    def chosen(self) -> dict[str, Any]:
        """The options that are not None, except `seed` and `data_dir`, which every task has."""
        return {name: getattr(self, name) for name in TASK_OPTIONS if getattr(self, name) is not None}


TASK_OPTIONS: dict[str, type] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(TaskOptions).items() if name not in ("seed", "data_dir")
}
"""The type of each option that a task may or may not take: str, int or float."""


@dataclass(frozen=True)
class Recipe:
    """A named task and its defaults.

    `build` makes the task, `summary` is its line in `fedoptax list tasks`, and `defaults` are those of a run. Of
    `models` there are none where there is no choice, of `partitions` (the default first) none where the task draws its
    clients; `num_clients` is 0 where the data decide. `options` are those beside the model's and the partitions'.
    """

    build: Callable[[str, Recipe, TaskOptions], Task]
    summary: str
    model: str
    num_clients: int = 0
    models: Mapping[str, Callable[..., Model]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def option_types(self) -> dict[str, type]:
        """The options of the task, with their types, besides `seed` and `data_dir`."""
        names = {*self.options, "validation_fraction", "compute_dtype", "metrics"}
        names |= {"model", "lora", "base"} if self.models else set()
        if self.partitions:
            names |= {"partition", "num_clients"}.union(*(PARTITION_OPTIONS[name] for name in self.partitions))
        return {name: kind for name, kind in TASK_OPTIONS.items() if name in names}

    def check(self, name: str, options: TaskOptions) -> None:
        """Check that the task `name` has the options."""
        allowed = self.option_types()
        for option, value in options.chosen().items():
            if option not in allowed:
                raise UsageError(f"{option} does not apply to task '{name}', which takes {', '.join(allowed)}")
            if option in ("model", "partition") and option not in self.options:
                check_choice(option, value, self.models if option == "model" else self.partitions)


def make_task(name: str, recipe: Recipe, options: TaskOptions, source: Source, **attributes: Any) -> Task:
    """Divide a data set among clients by the options, or else the recipe's defaults, and return the task of it.

    Test examples are divided like the training examples: to the same natural clients, or so that a client's test labels
    are distributed like its training labels. Where no test example belongs to a client that trains (MNIST's writers),
    all are kept with their own clients. `attributes` are those of `Task` that say what is learned, and how.
    """
    from fedoptax.tasks.task import Task

    partition, chosen = options.partition or recipe.partitions[0], options.chosen()
    defaults = PARTITION_OPTIONS[partition]
    if others := chosen.keys() & set().union(*PARTITION_OPTIONS.values()) - defaults.keys():
        takes = ", ".join(["num_clients", *defaults])
        raise UsageError(f"{min(others)} does not apply to partition '{partition}', which takes {takes}")
    settings = {option: chosen.get(option, default) for option, default in defaults.items()}
    if partition in NATURAL:
        division = _divide_by_groups(source, partition, options.num_clients)
    else:
        num_clients = options.num_clients or recipe.num_clients
        division = _divide_by_labels(source, partition, num_clients, settings, options.seed)
    num_clients = division["clients"].num_clients
    if options.devices is not None and options.devices < num_clients:
        raise UsageError(f"devices must be >= num_clients, {num_clients}, got {options.devices}")
    spec = {"model": options.model or recipe.model, **{name: chosen[name] for name in recipe.options if name in chosen}}
    spec |= {"partition": partition, **settings, "num_clients": num_clients, "partition_seed": options.seed}
    if source.class_names is not None:
        attributes["classes"] = source.class_names
    return Task(name=name, description=recipe.summary, spec=spec, devices=options.devices, **division, **attributes)


def _divide_by_labels(source: Source, partition: str, n: int, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Divide the examples among `n` clients that the partition makes: `clients`, `test` and `test_owners` of `Task`."""
    labels, tests = (part["y"] for part in (source.train, source.test))
    if labels.dtype.kind == "f":  # of numbers to predict their tenths count as classes
        tenths = np.quantile(labels, np.arange(0.1, 1, 0.1))
        labels, tests = np.searchsorted(tenths, labels), np.searchsorted(tenths, tests)
    if partition == "pachinko":
        assert source.train_coarse is not None
        alphas = {"alpha_coarse": settings["alpha"], "alpha_fine": settings["alpha_fine"]}
        parts = partitions.pachinko(source.train_coarse, labels, n, seed=seed, **alphas)
    else:
        parts = _BY_LABEL[partition][0](labels, n, seed=seed, **settings)
    clients = FederatedData.from_parts(source.train, parts)
    if not len(tests):
        return {"clients": clients}
    owners = partitions.divide_test(labels, parts, tests, seed)
    return {"clients": clients, "test": source.test, "test_owners": owners}


def _divide_by_groups(source: Source, partition: str, num_clients: int | None) -> dict[str, Any]:
    """Make a client of each writer, role or user, or of the first: `clients`, `test` and `test_owners` of `Task`."""
    train, groups, test, test_groups = source.train, source.train_groups, source.test, source.test_groups
    assert groups is not None
    if np.any(groups[1:] < groups[:-1]):  # only then are examples moved, and a map from a file read
        order = np.argsort(groups, kind="stable")
        groups, train = groups[order], {field: array[order] for field, array in train.items()}
    ids = np.unique(groups)[:num_clients]
    if num_clients is not None and num_clients > len(ids):
        raise UsageError(f"num_clients must be <= {len(ids)}, the number of {partition}, got {num_clients}")
    end = np.searchsorted(groups, ids[-1], side="right")
    starts = np.flatnonzero(groups[1:end] != groups[: end - 1]) + 1
    clients = FederatedData({field: array[:end] for field, array in train.items()}, np.array([0, *starts, end]))
    named = {"client_names": tuple(map(str, ids))} if partition == "clients" else {}
    if test_groups is None or not len(test_groups):
        return {"clients": clients, "test": test if len(test["y"]) else None, **named}
    is_of_client, owners = np.isin(test_groups, ids), np.searchsorted(ids, test_groups)
    if num_clients is not None and is_of_client.any():
        owners, test = owners[is_of_client], {field: array[is_of_client] for field, array in test.items()}
    else:  # those who only test are numbered after those who train
        others, owners[~is_of_client] = np.unique(test_groups[~is_of_client], return_inverse=True)
        owners[~is_of_client] += len(ids)
        named = {name: names + tuple(map(str, others)) for name, names in named.items()}
    return {"clients": clients, "test": test, "test_owners": owners, **named}

"""A task on your own data: `file:PATH`, classes or a number of the examples in a file or a folder of images."""

import os
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.custom import load_file
from fedoptax.data.datasets.source import Source
from fedoptax.data.readers import TABLES, find_separator, find_white
from fedoptax.data.schema import Schema
from fedoptax.data.statistics import add_up_clients
from fedoptax.errors import DataError, UsageError, shorten
from fedoptax.tasks.images import cross_entropy
from fedoptax.tasks.recipe import PREFIX, Recipe, TaskOptions, make_task
from fedoptax.tasks.tables import class_weights, default_metrics, learn_table
from fedoptax.tasks.task import Task, positive_class, with_metrics

MAX_CLASSES = 10  # that are counted one by one before the first round


def custom_data(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """Classes, or a number, of the examples in a user's file; see `fedoptax.data.custom.load_file` for the formats.

    Images reach the model divided by 1, 255 or 65535, see `fedoptax.data.readers.find_white`; arrays of one dimension
    standardised by mean and deviation of each feature over all training examples; tables as their schema says.
    """
    path = Path(os.path.expanduser(name.removeprefix(PREFIX)))
    schema = None if options.schema is None else Schema.read(options.schema)
    drop = None if options.drop is None else [name.strip() for name in options.drop.split(",")]
    names = "image_size", "test_fraction", "target", "split", "separator", "decimal", "seed"
    others = {name: getattr(options, name) for name in names}
    columns: dict[str, Any] = {"drop": drop, "client": options.client_column, "label": options.label_column}
    source = load_file(path, schema=schema, **columns, **others)
    contents = fingerprint(source.train, source.test, {"train": source.train_groups, "test": source.test_groups})
    is_image = len(source.input_shape) == 3
    if not is_image and options.compute_dtype not in (None, "float32"):
        raise UsageError("compute_dtype must be float32 for features that the model standardises")
    if source.train_groups is None and options.partition in (None, "clients"):
        kind = "column" if source.columns else "array"
        remedy = "name it by client_column, or make clients by `partition`, such as dirichlet or iid"
        raise UsageError(f"{path}: no {kind} names the clients: {remedy}")
    if source.schema is None and options.loss is not None:
        raise UsageError(f"loss applies to a table with a number as its target, got {options.loss!r}")
    how, weights = "", None
    if source.schema is None:
        if source.num_classes < 2:
            raise DataError(f"{path} must have two classes or more")
        counts = np.bincount(source.train["y"], minlength=source.num_classes)
        weights = class_weights(options.class_weight, source.class_names or (), counts)
    if is_image:
        model = options.model or ("cnn" if min(source.input_shape[:2]) >= 4 else recipe.model)
        white = 255.0 if path.is_dir() else find_white(str(path), source.train["x"], source.test["x"])
        net = recipe.models[model](source.input_shape, source.num_classes)
        learned = cross_entropy(net, white or 1.0, weights=weights) | {"inputs": {"white": white}}
        how = f", divided by {white:g}" if white and white > 1 else ""
    else:
        model = options.model or recipe.model
        net = recipe.models[model](source.input_shape, source.num_classes or 1)
        train, test = ({**part, "x": part["x"].astype(np.float32, copy=False)} for part in (source.train, source.test))
        if source.schema is None:
            deviation = train["x"].std(0, dtype=np.float64)
            scale = np.where(deviation > 0, deviation, 1.0)  # so that a constant feature becomes 0
            learned = cross_entropy(net, scale, shift=train["x"].mean(0, dtype=np.float64), weights=weights)
        else:
            prepared = add_up_clients(source.schema, train["x"], train["y"], source.train_groups)
            train, test = ({**part, "x": prepared.fill_in(part["x"])} for part in (train, test))
            learned = learn_table(source.schema, prepared, net, options.loss, options.class_weight)
        source = source._replace(train=train, test=test)
        if source.schema is not None and path.suffix.lower() in TABLES:
            separator = find_separator(path, **source.schema.cells)
            how = "" if separator == TABLES[path.suffix.lower()] else f", separated by {separator!r}"
    task = make_task(name, recipe, replace(options, model=model), source, **learned)
    what = f"{source.num_classes} classes" if source.num_classes else "a number to predict"
    stored = {} if schema is None or source.schema is None else {"schema": source.schema.to_toml()}
    task = replace(
        task,
        description=f"{path.name}, {what}",
        spec={**task.spec, "contents": contents, **stored},
        notes=tuple(describe_data(task, source, how)),
    )
    metrics = None if schema is None or options.metrics else default_metrics(schema)
    return with_metrics(task, metrics) if metrics else task


def describe_data(task: Task, source: Source, how: str) -> list[str]:
    """Describe a file in lines: clients, features and `how` they are read, labels, split, schema."""
    sizes, partition, shape = task.clients.sizes, task.spec["partition"], source.input_shape
    where = f"made by partition {partition}"
    if partition == "clients":
        column = task.spec.get("client_column") or (source.schema and source.schema.client) or "client"
        where = f"as '{column}' names them"
    what = f"{shape[0]} feature{'' if shape == (1,) else 's'}"
    if len(shape) > 1:
        what = f"arrays of shape {'×'.join(map(str, shape))}"
    elif source.columns is not None:
        what += f" ({shorten(', '.join(source.columns), 120)})"
    y = np.concatenate([source.train["y"], source.test["y"]])
    if source.num_classes:
        names = source.class_names or tuple(map(str, range(source.num_classes)))
        counts = np.bincount(y, minlength=source.num_classes)
        classes = ", ".join(f"{name} {count:,}" for name, count in zip(names[:MAX_CLASSES], counts))
        learned = f"{source.num_classes} classes ({classes}{', ...' if len(names) > MAX_CLASSES else ''})"
        learned += f", positive {names[positive_class(task)]}" if source.num_classes == 2 else ""
    else:
        learned = f"a number to predict ({y.min():g} to {y.max():g}, mean {y.mean():.4g})"
    tested = 0 if task.test is None else len(task.test["y"])
    counts = np.bincount(() if task.test_owners is None else task.test_owners, minlength=len(sizes))[: len(sizes)]
    untested = [f"{name} ({size})" for name, size, tests in zip(task.client_names or (), sizes, counts) if not tests]
    lines = [
        f"clients: {len(sizes)}, {where}; {sizes.min():,} to {sizes.max():,} training examples each",
        f"examples: {what}{how}; {learned}",
        f"split: {sizes.sum():,} training examples, {tested:,} test examples",
    ]
    schema, kinds = source.schema, Counter(c.kind for c in source.schema.columns.values()) if source.schema else {}
    if "schema" not in task.spec and kinds.keys() - {"number"}:
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines.append(f"schema: inferred ({counted}); `fedoptax data describe` writes it to a file to edit")
    notes = [] if schema is None else [*schema.notes]
    if untested and counts.any():
        small = shorten(", ".join(untested), 200)
        notes.append(f"without a test example ({len(untested)} clients, with their training examples): {small}")
    return lines + [f"warning: {note}" for note in notes]


def fingerprint(*parts: Mapping[Any, Any]) -> str:
    """A checksum of examples, clients or parameters, 8 hexadecimal digits (CRC-32): a resumed run needs the same."""
    crc = 0
    for name, array in ((name, a) for part in parts for name, a in part.items() if a is not None):
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        plain = np.ascontiguousarray(array.astype(str) if array.dtype.hasobject else array)
        crc = zlib.crc32(plain.view(np.uint8).data, crc)
    return f"{crc:08x}"

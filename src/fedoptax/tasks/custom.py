"""A task on your own data: `file:PATH`, classification of the examples in a file or a folder of images."""

import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedoptax.data.columns import check_has_clients, choose_features, column_names, find_ids
from fedoptax.data.custom import load_file
from fedoptax.data.datasets.source import Source
from fedoptax.data.readers import TABLES, find_separator, find_white
from fedoptax.errors import UsageError, shorten
from fedoptax.tasks.images import cross_entropy
from fedoptax.tasks.recipe import MODELS, PREFIX, Recipe, TaskOptions, make_task
from fedoptax.tasks.task import Task

MOST_CLASSES = 10
"""Classes that are counted one by one before the first round."""


def custom_data(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """Classification on a user's file; see `fedoptax.data.custom.load_file` for the formats.

    Images reach the model divided by 1, 255 or 65535, see `fedoptax.data.readers.find_white`; examples of one dimension
    (tables) reach it standardised with the mean and deviation of each feature over all training examples.
    """
    path = Path(os.path.expanduser(name.removeprefix(PREFIX)))
    cells = {name: value for name in ("separator", "decimal") if (value := getattr(options, name)) is not None}
    names = column_names(path, **cells)
    if options.client_column is None and options.partition is None:
        check_has_clients(path, names)
    others = [options.label_column or "label", options.client_column or "client"]
    source = load_file(
        path,
        features=None if options.drop is None else choose_features(path, names, options.drop, others),
        client=options.client_column,
        label=options.label_column,
        image_size=options.image_size,
        test_fraction=options.test_fraction,
        seed=options.seed,
        **cells,
    )
    contents, warnings = fingerprint(source), find_ids(source)
    is_image = len(source.input_shape) == 3
    if not is_image and options.compute_dtype not in (None, "float32"):
        raise UsageError("compute_dtype must be float32 for features that the model standardises")
    if source.train_groups is None:
        if options.partition == "clients":
            raise UsageError(f"partition must not be 'clients' where a file names none, as {path.name}")
        options = replace(options, partition=options.partition or "dirichlet")
    model = options.model or ("cnn" if is_image and min(source.input_shape[:2]) >= 4 else recipe.model)
    net = MODELS[model](source.input_shape, source.num_classes)
    how = ""
    if is_image:
        white = find_white(str(path), source.train["x"], source.test["x"])
        learned = cross_entropy(net, white or 1.0) | {"inputs": {"white": white}}
        how = f", divided by {white:g}" if white and white > 1 else ""
    else:
        source = source._replace(train=_as_float(source.train), test=_as_float(source.test))
        shift, deviation = _statistics(source.train["x"])
        learned = cross_entropy(net, deviation, shift=shift)
        if source.columns is not None:
            learned["inputs"] = {"columns": source.columns, **cells}
            separator = find_separator(path, **cells)
            how = "" if separator in (None, TABLES[path.suffix.lower()]) else f", separated by {separator!r}"
    task = make_task(name, recipe, replace(options, model=model), source, **learned)
    return replace(
        task,
        description=f"{path.name}, {source.num_classes} classes",
        spec={**task.spec, "contents": contents},
        notes=(*describe_data(task, source, how), *warnings),
    )


def describe_data(task: Task, source: Source, how: str) -> list[str]:
    """Say in three lines what was understood of a file: clients, features and `how` they are read, classes, split."""
    sizes, partition = task.clients.sizes, task.spec["partition"]
    where = f"as '{task.spec.get('client_column', 'client')}' names them" if partition == "clients" else "made"
    where = f"{where} by partition {partition}" if where == "made" else where
    shape = source.input_shape
    what = (
        f"{shape[0]} feature{'' if shape == (1,) else 's'}"
        if len(shape) == 1
        else f"arrays of shape {'×'.join(map(str, shape))}"
    )
    if source.columns is not None:
        what += f" ({shorten(', '.join(source.columns), 120)})"
    labels = np.concatenate([source.train["y"], source.test["y"]])
    counts = np.bincount(labels, minlength=source.num_classes)
    names = source.class_names or tuple(map(str, range(source.num_classes)))
    classes = ", ".join(f"{name} {count:,}" for name, count in zip(names[:MOST_CLASSES], counts))
    more = ", ..." if len(names) > MOST_CLASSES else ""
    held, tested = int(sizes.sum()), 0 if task.test is None else len(task.test["y"])
    return [
        f"clients: {len(sizes)}, {where}; {sizes.min():,} to {sizes.max():,} training examples each",
        f"examples: {what}{how}; {source.num_classes} classes ({classes}{more})",
        f"split: {held:,} examples to train on, {tested:,} to test on",
    ]


def fingerprint(source: Source) -> str:
    """A checksum of examples and clients, 8 hexadecimal digits (CRC-32): a resumed run needs the same ones."""
    groups = {"train": source.train_groups, "test": source.test_groups}
    arrays = [(name, a) for part in (source.train, source.test, groups) for name, a in part.items() if a is not None]
    crc = 0
    for name, array in arrays:
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        plain = np.ascontiguousarray(array.astype(str) if array.dtype.hasobject else array)
        crc = zlib.crc32(plain.view(np.uint8).data, crc)
    return f"{crc:08x}"


def _as_float(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**part, "x": part["x"].astype(np.float32, copy=False)}


def _statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each feature; of a constant one 1, so that it becomes 0."""
    deviation = x.std(0, dtype=np.float64)
    return x.mean(0, dtype=np.float64), np.where(deviation > 0, deviation, 1.0)

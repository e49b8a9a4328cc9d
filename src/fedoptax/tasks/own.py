"""A task on one's own data: `file:PATH`, classification of the examples in a file or a folder of images."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from fedoptax.data.own import load_file
from fedoptax.data.sources import Source
from fedoptax.errors import UsageError
from fedoptax.models import MODELS
from fedoptax.tasks.division import CENTRAL, divide
from fedoptax.tasks.images import image_classification
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.task import Task

PREFIX = "file:"
"""What a task's name begins with when it is a file."""


def own_data(name: str, recipe: Recipe, given: Options) -> Task:
    """Classification on a user's file; see `fedoptax.data.own.load_file` for the formats.

    Images of whole numbers reach the model as x / 255; examples of one dimension (tables) are standardised with the
    mean and deviation of each feature over all training examples.
    """
    path = name.removeprefix(PREFIX)
    if not path or "\0" in path:
        raise UsageError(f"task: '{name}' given, allowed is file:PATH")
    source = load_file(
        Path(path).expanduser(),
        client=given.client_column,
        label=given.label_column,
        image_size=given.image_size,
        test_fraction=given.test_fraction,
        seed=given.seed,
    )
    contents = fingerprint(source)
    is_image = len(source.input_shape) == 3
    source = source if is_image else standardized(source)
    if source.train_groups is None and given.partition in (None, "clients"):
        if given.partition == "clients":
            raise UsageError(f"partition: 'clients' given, {Path(path).name} does not say whose its examples are")
        given = given._replace(partition="dirichlet")
    division = divide(source, recipe, given)
    model = given.model or ("cnn" if is_image and min(source.input_shape[:2]) >= 4 else recipe.model)
    asked = {
        option: getattr(given, option)
        for option in ("client_column", "label_column", "image_size", "test_fraction")
        if getattr(given, option) is not None
    }
    return image_classification(
        name,
        MODELS[model](source.input_shape, source.num_classes),
        255.0 if source.train["x"].dtype == np.uint8 else 1.0,
        division.clients,
        division.test if len(next(iter(division.test.values()))) else None,
        f"{Path(path).name}, {source.num_classes} classes",
        {"model": model, **asked, **division.spec, "contents": contents},
        test_owners=division.test_owners,
    )


def fingerprint(source: Source) -> str:
    """What tells a file's contents from those of another of the same shape: 8 hexadecimal digits (CRC-32).

    A run that goes on, days later, is to have the same examples and clients.
    """
    groups = {"train": source.train_groups, "test": source.test_groups}
    arrays = [(name, a) for part in (source.train, source.test, groups) for name, a in part.items() if a is not None]
    crc = 0
    for name, array in arrays:
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        plain = np.ascontiguousarray(array.astype(str) if array.dtype.hasobject else array)
        crc = zlib.crc32(plain.view(np.uint8).data, crc)
    return f"{crc:08x}"


def standardized(source: Source) -> Source:
    """The source with every feature of mean 0 and deviation 1 over the training examples; constant ones are 0."""
    x = source.train["x"].astype(np.float64)
    mean, deviation = x.mean(0), x.std(0)
    scale = np.where(deviation > 0, deviation, 1.0)

    def of(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**part, "x": ((part["x"] - mean) / scale).astype(np.float32)}

    return source._replace(train=of(source.train), test=of(source.test))


RECIPE = Recipe(
    own_data,
    "your own file: .npz, .csv, .parquet, or a folder of images",
    model="mlp",
    num_clients=10,
    models=tuple(MODELS),
    options=("client_column", "label_column", "test_fraction", "image_size"),
    partitions=("clients", *CENTRAL),
    defaults={"rounds": 100, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 1},
)

"""New examples for a trained model: from arrays, tables and texts in memory, or from a file or a folder of images.

A model says in plain data how its examples are read (`Task.inputs`):

    schema: what the columns of a table mean, as a text, see `fedoptax.data.schema`.
    fill: what stands for an empty cell, for each feature.
    white: the number that stands for white in an image (files have 255); None for images that were standardised.
    text: "characters", "words" (between white space) or "bag" (also words, in any order): what a text consists of.
    start, unknown: the names of the tokens that stand before a text, and for what is not among the model's tokens.
    pad: the id that fills up a text shorter than the model's input.
    vocabulary: of a bag, its words, numbered from 1.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data import readers
from fedoptax.data.readers import DataFrame
from fedoptax.data.schema import Schema
from fedoptax.errors import DataError, UsageError

Fields = Mapping[str, Any]
"""The form of one example: name -> something with `shape` and `dtype`."""

TEXT = "text"  # the column of a table that holds texts, and what is known of them in `inputs`


def read_inputs(
    path: Path, inputs: Mapping[str, Any], fields: Fields, classes: Sequence[str]
) -> tuple[dict[str, np.ndarray], DataFrame]:
    """Read the examples in a file (.csv, .tsv, .parquet, .npz) or in a folder of images, in the order of their paths.

    Also returns a table that identifies the examples: the other columns of a table, or the images' paths. A file that
    does not exist, or of a kind that the model does not read, is a `UsageError`; one that is broken, a `DataError`.
    """
    import pandas as pd

    suffix = path.suffix.lower()
    if not path.exists():
        raise UsageError(f"input must be a file or a folder, but there is no '{path}'")
    if path.is_dir() and inputs.get("white"):
        files = readers.find_files(path)
        if not files:
            raise DataError(f"{path} has no images ({', '.join(sorted(readers.IMAGES))})")
        names = [file.relative_to(path).as_posix() for file in files]
        return _decode(files, inputs["white"], fields["x"]), pd.DataFrame({"file": names})
    if suffix in readers.TABLES and inputs.keys() & {"schema", TEXT}:
        schema = schema_of(inputs)
        cells = schema.cells if schema is not None and readers.TABLES[suffix] else {}
        about: dict[str, Any] = {} if schema is None else {**schema.columns, schema.target.column: schema.target}
        header = readers.read_frame(path, [], 0, **cells).columns  # what is no number stays as written, such as 007
        texts = [name for name in header if name not in about or about[name].kind != "number"]
        frame = readers.read_frame(path, texts, **cells)
        examples = as_examples(frame, inputs, fields, classes, path)
        if schema is not None:
            frame = frame.drop(columns=list(schema.used))
        return examples, frame
    if suffix != ".npz":
        known = [*(readers.TABLES if inputs.keys() & {"schema", TEXT} else ()), ".npz"]
        folder = " or a folder of images" if inputs.get("white") else ""
        raise UsageError(f"input must be {', '.join(known)}{folder} for this model, got '{path}'")
    with readers.open_archive(path) as archive:
        arrays = {name: archive[name] for name in fields if name in archive}
    examples = as_examples(arrays, inputs, fields, classes)
    return examples, pd.DataFrame(index=range(len(next(iter(examples.values())))))


def as_examples(
    x: Any, inputs: Mapping[str, Any], fields: Fields, classes: Sequence[str], where: object = "x"
) -> dict[str, np.ndarray]:
    """Return examples in a model's form, `{field: array (n, …)}`.

    x is arrays by field, or one array if the model has one field; a table with the model's columns, or with a column
    `text`; or a list of texts. The `classes` of a model of text are its tokens; messages call a table `where`. What is
    missing, of another shape, or not a number that the model's type can hold is a `DataError`.
    """
    if hasattr(x, "columns") and (schema := schema_of(inputs)) is not None:
        frame, x = x, schema.encode(where, x)
        for note in schema.describe_unseen(frame):
            logging.getLogger("fedoptax").warning("note: %s", note)
        x = np.where(np.isnan(x), np.asarray(inputs["fill"], np.float32), x) if "fill" in inputs else x
    elif hasattr(x, "columns"):
        readers.check_columns(where, x.columns, [TEXT])
        x = x[TEXT].fillna("").tolist()
    if TEXT in inputs and not isinstance(x, Mapping) and all(isinstance(text, str) for text in x):
        return _encode(x, inputs, fields, classes)
    arrays = dict(x) if isinstance(x, Mapping) else {next(iter(fields)): x}
    if missing := [name for name in fields if name not in arrays]:
        raise DataError(f"x must have the field '{missing[0]}', got {', '.join(arrays) or 'none'}")
    examples = {name: _convert(name, arrays[name], form, inputs) for name, form in fields.items()}
    if len({len(array) for array in examples.values()}) > 1:
        raise DataError(f"x must have fields of one length, got {[len(array) for array in examples.values()]}")
    return examples


def schema_of(inputs: Mapping[str, Any]) -> Schema | None:
    """Return the schema of a model of tables, None for other models."""
    return Schema.read(inputs["schema"]) if "schema" in inputs else None


def _convert(name: str, values: Any, form: Any, inputs: Mapping[str, Any]) -> np.ndarray:
    array = readers.as_numbers(f"field '{name}'", values)
    if "white" in inputs:
        readers.check_pixels(f"field '{name}'", np.asarray(values), inputs["white"])
    if form.shape == () and array.shape[1:] == (1,):
        array = array[:, 0]
    if array.shape[1:] != form.shape:
        raise DataError(f"field '{name}' must have the shape (n, {', '.join(map(str, form.shape))}), got {array.shape}")
    converted = array.astype(form.dtype)
    if not np.issubdtype(form.dtype, np.floating) and np.any(converted != array):
        raise DataError(f"field '{name}' must hold numbers of {np.dtype(form.dtype)}, got others")
    return converted


def _decode(files: Sequence[Path], white: float, form: Any) -> dict[str, np.ndarray]:
    height, width, channels = form.shape
    images = readers.stack_images(files, (height, width)).astype(np.float32)
    if channels == 1 and images.shape[-1] == 3:
        images = images @ np.array([[0.299], [0.587], [0.114]], np.float32)  # as Pillow does (ITU-R 601-2)
    with readers.reading("a folder of images", f"images of {channels} channels"):
        images = np.broadcast_to(images, (*images.shape[:3], channels)) * np.float32(white / 255)
    return {"x": (images if np.issubdtype(form.dtype, np.floating) else np.rint(images)).astype(form.dtype)}


def _encode(texts: Sequence[str], inputs: Mapping, fields: Fields, classes: Sequence[str]) -> dict[str, np.ndarray]:
    """Number the tokens of texts; of a text that is too long the end counts, of a bag the beginning."""
    length = fields["x"].shape[0]
    x = np.full((len(texts), length), inputs.get("pad", 0), fields["x"].dtype)
    split = [list(text) if inputs["text"] == "characters" else text.split() for text in texts]
    if inputs["text"] == "bag":
        ids = {word: i for i, word in enumerate(inputs["vocabulary"], start=1)}
        rows = [[ids[word] for word in words if word in ids][:length] for words in split]
    else:
        ids = {token: i for i, token in enumerate(classes)}
        start = [ids[inputs["start"]]] if "start" in inputs else []
        unknown = ids.get(inputs["unknown"], 0)
        rows = [[*start, *(ids.get(token, unknown) for token in tokens)][-length:] for tokens in split]
    for target, numbers in zip(x, rows):
        target[: len(numbers)] = numbers
    counts = np.array([len(words) for words in split])
    return {"x": x} | ({"words": counts.astype(fields["words"].dtype)} if "words" in fields else {})

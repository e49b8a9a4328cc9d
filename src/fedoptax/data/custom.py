"""Your own data: files of arrays, tables, and folders of images.

Whatever the format, the same data gives the same `Source`: classes are numbered in sorted order, by value if all are
whole numbers, else as text (or in the order that the data state); client ids are int64 if all are whole numbers, else
text; float64 becomes float32, whole numbers fit int32, and examples of one number get a dimension of 1.
"""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedoptax.data import readers
from fedoptax.data.datasets.source import Source, holdout
from fedoptax.data.describe import infer_file
from fedoptax.data.schema import WHOLE, Schema, as_texts, sort_names
from fedoptax.errors import DataError, UsageError, check_number, check_type, shorten

_FORMATS = ".npz, .csv, .tsv, .parquet, or a folder of images (client/class/image)"


class _Part(NamedTuple):
    """The training or the test part: examples (n, …), their labels, and their clients or None."""

    x: np.ndarray
    y: list[str] | np.ndarray  # an array holds numbers to predict
    client: list[str] | None = None


def load_file(
    path: str | Path, *, client: str | None = None, label: str | None = None,
    features: str | Sequence[str] | None = None, drop: Sequence[str] | None = None, split: str | None = None,
    test_fraction: float | None = None, image_size: readers.Size | None = None, separator: str | None = None,
    decimal: str | None = None, schema: Schema | None = None, target: str | None = None, seed: int = 0,
) -> Source:  # fmt: skip
    """Read your own file or folder, with the format of its ending.

    Args:
      path: `.npz` with arrays of n rows, and perhaps a test part in arrays of the same names with `_test` at the end;
        `.csv`, `.tsv` (UTF-8, with a header) or `.parquet` with one row per example; or a folder of images at
        `client/class/image`, or below `train/` and `test/` in it, of which hidden files are passed over and links are
        followed. Images have 8 bits per channel and one page.
      client: the array or column of the client ids; None takes the schema's, or `client` if it is there.
      label: the array or column of the labels; None: `y` of an archive, `label` of a table.
      features: the array of the examples, None for `x`; or the columns of a table, None for all others but `drop`.
      drop: columns of a table that are not used.
      split: a column of a table that says `train` or `test` in every row; None if all rows are training examples.
      test_fraction: of every client's examples, to hold out if there is no test part; None is 0.2, or 0 with `split`.
      image_size: the height and width to resize images to, one number for a square; None if all are of one size.
      separator: between the cells of a `.csv` or `.tsv` file, one character; None guesses among , ; tab and |.
      decimal: the decimal point of the numbers in it, `"."` (also for None) or `","`.
      schema: what the columns of a table mean; None looks at the table, see `fedoptax.data.describe`. Empty cells that
        are to be filled are NaN in the result. With a schema each client draws its test rows for itself, so that a
        client with a file of its own draws the same.
      target: `"number"` or `"class"`, what the labels of a table are where it may be either.
      seed: of the choice of held-out examples.

    Raises:
      UsageError: there is no such file, it is of another format, or an option does not apply to it.
      DataError: the file is broken or lacks something; the message names the column and row.
    """
    texts = {"client": client, "label": label, "split": split, "separator": separator, "decimal": decimal}
    for name, value in texts.items():
        check_type(name, value, str | None)
    check_type("path", path, str | os.PathLike)
    path = Path(path)
    if test_fraction is not None:
        check_number("test_fraction", test_fraction, 0, 1)
    if not path.exists():
        raise UsageError(f"{path} does not exist; allowed is {_FORMATS}")
    if not path.is_dir() and path.suffix.lower() not in _READERS:
        raise UsageError(f"path must be {_FORMATS}, got '{path}'")
    read: Callable[..., Source] = _load_images if path.is_dir() else _READERS[path.suffix.lower()]
    others = {"features": features, "drop": drop, "image_size": image_size, "schema": schema, "target": target}
    options: dict[str, Any] = {name: value for name, value in {**texts, **others}.items() if value is not None}
    stated = {"label", "target", "features", "separator", "decimal"} if schema is not None else set()
    if wrong := options.keys() - (inspect.signature(read).parameters.keys() - stated):
        what = "the schema" if wrong & stated else f"'{path}'"
        raise UsageError(f"{min(wrong)} does not apply to {what}, got {options[min(wrong)]!r}")
    source = read(path, **options)
    if test_fraction is None:
        test_fraction = 0.0 if len(source.test["y"]) or split is not None else 0.2
    return holdout(source, test_fraction, seed, schema is not None) if test_fraction else source


def _load_arrays(path: Path, features: str = "x", label: str = "y", client: str | None = None) -> Source:
    with readers.open_archive(path) as archive:
        client = "client" if client is None and "client" in archive else client
        names = [name for name in (features, label, client) if name is not None]
        ends = ("", "_test") if any(f"{name}_test" in archive for name in names) else ("",)
        readers.check_columns(path, archive.files, [f"{name}{end}" for end in ends for name in names])
        columns = [[(f"{path}: '{n}{end}'", np.atleast_1d(archive[f"{n}{end}"])) for n in names] for end in ends]
    parts = [_Part(readers.as_numbers(*x), _as_names(*y), *(_as_names(*c) for c in rest)) for x, y, *rest in columns]
    return _build(str(path), *parts)


def _load_table(
    path: Path, label: str | None = None, client: str | None = None, features: str | Sequence[str] | None = None,
    drop: Sequence[str] = (), split: str | None = None, separator: str | None = None, decimal: str | None = None,
    schema: Schema | None = None, target: str | None = None,
) -> Source:  # fmt: skip
    cells = {"separator": separator, "decimal": decimal}
    if schema is None:
        header = list(readers.read_frame(path, [], 0, **cells).columns)
        label, client = label or "label", "client" if client is None and "client" in header else client
        texts = [name for name in (label, client, split) if name is not None]
        others = [name for name in header if name not in (*texts, *drop)]
        columns = others if features is None else [features] if isinstance(features, str) else list(features)
        if label not in header:
            known = shorten(", ".join(map(repr, header)))
            raise DataError(f"{path} lacks {label!r}: name the label by label_column; it has {known}")
        readers.check_columns(path, header, [*texts, *columns, *drop])
        schema = infer_file(path, label, client, target, columns, **cells)
    else:
        schema = schema.without([*drop, *(name for name in (client, split) if name and name in schema.columns)])
    label, client = schema.target.column, client or schema.client
    frame = readers.read_frame(path, [n for n in (*schema.texts, client, split) if n], **schema.cells)
    texts = [name for name in (label, client, split) if name is not None]
    readers.check_columns(path, frame.columns, [*texts, *schema.used])
    if not schema.used and len(frame):
        raise DataError("; ".join([f"{path} has no columns of features besides {', '.join(texts)}", *schema.notes]))
    x, numbers = schema.encode(path, frame), None
    if schema.target.kind == "number":
        texts.remove(label)
        numbers = readers.read_features(path, frame, [label])[:, 0]
    names = {name: np.array(_as_names(f"{path}: column {name!r}", as_texts(frame[name])), object) for name in texts}
    splits = names[split] if split else np.full(len(frame), "train", object)
    if wrong := set(splits) - {"train", "test"}:
        raise DataError(f"{path}: column {split!r} must be 'train' or 'test' in every row, got {min(wrong)!r}")
    parts = []
    for rows in (splits == "train", splits == "test"):
        y = names[label][rows].tolist() if numbers is None else numbers[rows]
        parts.append(_Part(x[rows], y, names[client][rows].tolist() if client else None))
    source = _build(str(path), *parts, class_names=schema.target.classes or None)
    schema = replace(schema, notes=schema.notes + schema.describe_unseen(frame))
    return source._replace(columns=schema.features, schema=schema)


def _load_images(root: Path, image_size: readers.Size | None = None) -> Source:
    top = {e.name.lower(): e for e in root.iterdir() if e.is_dir() and not e.name.startswith(".")}
    if "train" in top and (others := top.keys() - {"train", "test"}):
        raise DataError(f"{root} must have no folder besides train and test, got {top[min(others)].name!r}")
    folders = [top[name] for name in ("train", "test") if name in top] if "train" in top else [root]
    files = [readers.find_files(folder) for folder in folders]
    if wrong := [p for folder, part in zip(folders, files) for p in part if len(p.relative_to(folder).parts) != 3]:
        raise DataError(f"{wrong[0]}: images must be at client/class/image")
    if not files[0]:
        raise DataError(f"{root} has no training images ({', '.join(sorted(readers.IMAGES))}) at client/class/")
    images = readers.stack_images([path for part in files for path in part], image_size)
    train, *test = [
        _Part(x, [path.parent.name for path in part], [path.parent.parent.name for path in part])
        for part, x in zip(files, np.split(images, [len(files[0])]))
    ]
    return _build(str(root), train, *test)


def _as_names(where: str, values: Any) -> list[str]:
    """Return labels or client ids, whole numbers or text, as text."""
    names = []
    for row, value in enumerate(values):
        is_time = isinstance(value, np.datetime64 | np.timedelta64)  # of which item() may make a whole number
        name = value.item() if getattr(value, "ndim", None) == 0 and not is_time else value
        name = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
        if not isinstance(name, str | int) or name == "":
            raise DataError(f"{where}, row {row + 1}: a whole number or text is needed, got {shorten(repr(name), 40)}")
        names.append(str(name).encode(errors="backslashreplace").decode())
    return names


def _build(where: str, train: _Part, test: _Part | None = None, *, class_names: Sequence[str] | None = None) -> Source:
    if len(train.x) == 0:
        raise DataError(f"{where} has no training examples")
    test = test or _Part(train.x[:0], train.y[:0], None if train.client is None else [])
    forms = [f"{part.x.dtype}{list(part.x.shape[1:])}" for part in (train, test)]
    if forms[0] != forms[1] or (train.client is None) != (test.client is None):
        raise DataError(f"{where}: test examples must be {forms[0]}, with clients if these have, got {forms[1]}")
    for part in (train, test):
        lengths = [len(column) for column in part if column is not None]
        if len(set(lengths)) > 1:
            raise DataError(f"{where}: examples, labels and clients must be equally many, got {lengths}")
    labels = set() if isinstance(train.y, np.ndarray) else {*train.y, *test.y}
    classes = sort_names(labels) if class_names is None else list(class_names)
    if other := labels.difference(classes):
        raise DataError(f"{where}: class {min(other)!r} is none of the {len(classes)} of the schema")
    ids = [] if train.client is None or test.client is None else [*train.client, *test.client]
    for names in (labels, set(ids)):
        if len({re.sub(r"^(-?[0-9]+)\.0+$", r"\1", name) for name in names}) < len(names):
            raise DataError(f"{where} has the same number in two forms, such as 1 and 1.0")
    code = {name: i for i, name in enumerate(classes)}
    y = [np.array([code[v] for v in p.y], np.int32) if isinstance(p.y, list) else p.y for p in (train, test)]
    groups: list[Any] = [None, None]
    if train.client is not None and ids:
        groups = np.split(np.array(ids, np.int64 if all(map(WHOLE.fullmatch, ids)) else None), [len(train.client)])
    about: dict[str, Any] = {"train_groups": groups[0], "test_groups": groups[1], "class_names": tuple(classes) or None}
    return Source({"x": train.x, "y": y[0]}, {"x": test.x, "y": y[1]}, len(classes), train.x.shape[1:], **about)


_READERS: dict[str, Callable[..., Source]] = {".npz": _load_arrays, **dict.fromkeys(readers.TABLES, _load_table)}

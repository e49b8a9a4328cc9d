"""Your own data: files of arrays, tables, folders of images, and data sets of Hugging Face and PyTorch.

Whatever the format, the same data gives the same `Source`: classes are numbered in sorted order, by value if all are
whole numbers, else as text (or in the order that the data state); client ids are int64 if all are whole numbers, else
text; float64 becomes float32, whole numbers fit int32, and examples of one number get a dimension of 1.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.datasets.source import Source, holdout
from fedoptax.data.readers import (
    IMAGES,
    TABLES,
    Size,
    as_numbers,
    check_columns,
    read_features,
    read_frame,
    stack_images,
)
from fedoptax.errors import DataError, UsageError, check_number, shorten

_FORMATS = ".npz, .csv, .tsv, .parquet, or a folder of images (client/class/image)"
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # whole numbers as int64 prints them; "007" is a name

ClientOf = Callable[[int], Any] | ArrayLike
"""The client of each item of a PyTorch data set: a function of its index, or one value per item."""


class _Part(NamedTuple):
    """The training or the test part: examples (n, …), their labels, and their clients or None."""

    x: np.ndarray
    y: list[str]
    client: list[str] | None


def load_file(
    path: str | Path,
    *,
    client: str | None = None,
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    split: str | None = None,
    test_fraction: float | None = None,
    image_size: Size | None = None,
    seed: int = 0,
) -> Source:
    """Read a file or folder of your own, whose name tells its format.

    Args:
      path: `.npz` with arrays of n rows, and perhaps a test part in arrays of the same names with `_test` at the end;
        `.csv`, `.tsv` (UTF-8, with a header) or `.parquet` with one row per example; or a folder of images at
        `client/class/image`, or below `train/` and `test/` in it, of which hidden files are passed over.
      client: the array or column of the client ids; None takes `client` if it is there, else there are no clients.
      label: the array or column of the labels; None takes `y` of an archive, `label` of a table.
      features: the array of the examples, None for `x`; or the columns of a table, None for all others.
      split: a column of a table that says `train` or `test` in every row; None if all rows are training examples.
      test_fraction: of every client's examples, to hold out if there is no test part; 0 for none, None for 0.2.
      image_size: the height and width to resize images to, one number for a square; None if all are of one size.
      seed: of the choice of what is held out.

    Raises:
      UsageError: there is no such file, it is of another format, or an option does not apply to it.
      DataError: the file is broken or lacks something; the message names the column and row.
    """
    path = Path(path)
    if test_fraction is not None:
        check_number("test_fraction", test_fraction, 0, 1)
    check_path(path)
    read: Callable[..., Source] = _load_images if path.is_dir() else _READERS[path.suffix.lower()]
    given = {"client": client, "label": label, "features": features, "split": split, "image_size": image_size}
    options = {name: value for name, value in given.items() if value is not None}
    if others := options.keys() - inspect.signature(read).parameters:
        raise UsageError(f"{min(others)} does not apply to '{path}', got {options[min(others)]!r}")
    source = read(path, **options)
    if test_fraction is None:
        test_fraction = 0.0 if len(source.test["y"]) else 0.2
    return holdout(source, test_fraction, seed) if test_fraction else source


def check_path(path: Path) -> None:
    """Check that `load_file` can read a path, by its ending.

    Raises:
      UsageError: it does not exist, or is of another kind.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist; allowed is {_FORMATS}")
    if not path.is_dir() and path.suffix.lower() not in _READERS:
        raise UsageError(f"path must be {_FORMATS}, got '{path}'")


def from_dataset(
    dataset: Any,
    *,
    test: Any = None,
    x: str | Sequence[str] | None = None,
    label: str = "label",
    client: str | ClientOf | None = None,
    test_client: ClientOf | None = None,
    image_size: Size | None = None,
    channels_first: bool = False,
) -> Source:
    """Take a data set of Hugging Face's `datasets` or a map-style one of PyTorch, which you have loaded.

    Of Hugging Face: a `Dataset`, or the splits `train` and `test` of a `DatasetDict`. Of PyTorch: items (x, y), where x
    is a tensor, an array, a number or a Pillow image; each is read once, so random transforms are applied once.

    Args:
      dataset: the training examples, or the `DatasetDict`.
      test: the test examples in the same form, or None.
      x: of Hugging Face, the column of the examples (images, or numbers of one shape), or several columns of one number
        each, which become (n, columns); None takes all but those of the labels and the clients.
      label: of Hugging Face, the column of the labels: a `ClassLabel`, whose order is kept, whole numbers or text.
      client: of Hugging Face, the column of the client ids, None for `client` if it is there; of PyTorch, the client of
        each item, None for no clients.
      test_client: of PyTorch, the client of each test item.
      image_size: as in `load_file`.
      channels_first: examples are (channels, height, width), PyTorch's order; they become (height, width, channels).

    Raises:
      UsageError, DataError: `dataset` is no such data set, lacks something, or holds no numbers of one shape.
    """
    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset, "test": test}
    if splits.get("train") is None:
        raise DataError(f"dataset must have a split 'train', got {', '.join(map(str, splits))}")
    parts: list[_Part] = []
    class_names = None
    for split, ids in (("train", client), ("test", test_client)):
        part = splits.get(split)
        if part is None or (split == "test" and len(part) == 0):
            continue
        if hasattr(part, "features") and hasattr(part, "column_names"):
            parts.append(_columns(split, part, x, label, client, image_size))
            class_names = getattr(splits["train"].features[label], "names", None)
        elif hasattr(part, "__len__") and hasattr(part, "__getitem__"):
            parts.append(_items(split, part, ids, image_size))
        else:
            raise UsageError(f"dataset must be a data set with a length and items, got {type(part).__name__}")
        if channels_first and parts[-1].x.ndim > 2:
            parts[-1] = parts[-1]._replace(x=np.moveaxis(parts[-1].x, 1, -1))
    return _build("dataset", *parts, class_names=class_names)


def _load_arrays(path: Path, features: str = "x", label: str = "y", client: str | None = None) -> Source:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            client = "client" if client is None and "client" in archive else client
            names = [name for name in (features, label, client) if name is not None]
            ends = ("", "_test") if any(f"{name}_test" in archive for name in names) else ("",)
            arrays = {name + end: archive[name + end] for end in ends for name in names}
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"{path} cannot be read as a NumPy archive: {shorten(error)}") from None
    train, *test = [
        _Part(
            as_numbers(f"{path}: '{features}{end}'", arrays[features + end]),
            _as_names(f"{path}: '{label}{end}'", arrays[label + end]),
            None if client is None else _as_names(f"{path}: '{client}{end}'", arrays[client + end]),
        )
        for end in ends
    ]
    return _build(str(path), train, *test)


def _load_table(
    path: Path,
    label: str = "label",
    client: str | None = None,
    features: Sequence[str] | None = None,
    split: str | None = None,
) -> Source:
    frame = read_frame(path, [name for name in (label, client or "client", split) if name is not None])
    client = "client" if client is None and "client" in frame.columns else client
    texts = [name for name in (label, client, split) if name is not None]
    columns = [name for name in frame.columns if name not in texts] if features is None else list(features)
    check_columns(path, frame, [*texts, *columns])
    if not columns:
        raise DataError(f"{path} has no columns of features besides {', '.join(texts)}")
    x = read_features(path, frame, columns)
    names = {name: np.array(_as_names(f"{path}: column {name!r}", frame[name].tolist()), object) for name in texts}
    parts = names[split] if split else np.full(len(frame), "train", object)
    if others := set(parts) - {"train", "test"}:
        raise DataError(f"{path}: column {split!r} must say 'train' or 'test', got {min(others)!r}")
    train, test = (
        _Part(x[rows], names[label][rows].tolist(), names[client][rows].tolist() if client else None)
        for rows in (parts == "train", parts == "test")
    )
    return _build(str(path), train, test)._replace(columns=tuple(columns))


def _load_images(root: Path, image_size: Size | None = None) -> Source:
    top = {entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    folders = [root / name for name in ("train", "test")] if "train" in top <= {"train", "test"} else [root]
    files = [_image_files(folder) for folder in folders]
    if not files[0]:
        raise DataError(f"{root} holds no images to train on at client/class/image ({', '.join(sorted(IMAGES))})")
    images = stack_images([(str(path), path) for part in files for path in part], image_size)
    train, *test = [
        _Part(x, [path.parent.name for path in part], [path.parent.parent.name for path in part])
        for part, x in zip(files, np.split(images, [len(files[0])]))
    ]
    return _build(str(root), train, *test)


def _image_files(folder: Path) -> list[Path]:
    """Return the images at client/class/image, sorted; refuse images in other places."""
    found = []
    for path in sorted(folder.rglob("*"), key=lambda path: path.parts):
        parts = path.relative_to(folder).parts
        if path.suffix.lower() in IMAGES and path.is_file() and not any(part.startswith(".") for part in parts):
            if len(parts) != 3:
                raise DataError(f"{path}: an image must lie at client/class/image")
            found.append(path)
    return found


def _columns(
    split: str, part: Any, x: str | Sequence[str] | None, label: str, client: Any, image_size: Size | None
) -> _Part:
    """Read the columns of a Hugging Face data set."""
    client = "client" if client is None and "client" in part.column_names else client
    others = [name for name in part.column_names if name not in (label, client)]
    columns = others if x is None else [x] if isinstance(x, str) else list(x)
    if missing := [name for name in (*columns, label, client) if name and name not in part.column_names]:
        raise DataError(f"dataset: split '{split}' lacks the column '{missing[0]}'; it has {part.column_names}")
    if not columns or len(part) == 0:
        raise DataError(f"dataset: split '{split}' must hold examples besides the labels and the clients")
    if any(type(part.features[name]).__name__ == "Image" for name in columns):
        if len(columns) > 1:
            raise DataError(f"x must name the column of the images, got the columns {', '.join(columns)}")
        rows = part.select_columns(columns).with_format(None)
        examples = stack_images(((f"{split}: image {i}", rows[i][columns[0]]) for i in range(len(rows))), image_size)
    else:
        arrays = part.select_columns(columns).with_format("numpy")[:]
        found = [as_numbers(f"dataset: split '{split}', column '{name}'", arrays[name]) for name in columns]
        if len(found) > 1 and any(array.shape[1:] != (1,) for array in found):
            raise DataError(f"x must name several columns only of one number each, got {', '.join(columns)}")
        examples = found[0] if len(found) == 1 else np.concatenate([a.astype(np.float32) for a in found], axis=1)
    texts = part.select_columns([name for name in (label, client) if name]).with_format(None)[:]

    def names_of(name: str) -> list[str]:
        known, values = getattr(part.features[name], "names", None), texts[name]
        if known is not None:
            values = [None if value is None or value < 0 else known[value] for value in values]
        return _as_names(f"dataset: split '{split}', column '{name}'", values)

    return _Part(examples, names_of(label), names_of(client) if client else None)


def _items(split: str, part: Any, client: ClientOf | None, image_size: Size | None) -> _Part:
    """Read the items (x, y) of a PyTorch data set."""
    where = f"dataset: {split}"
    items = [part[i] for i in range(len(part))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(f"{where} must hold pairs (x, y), and at least one")
    if hasattr(items[0][0], "getbands"):  # a Pillow image
        examples = stack_images(((f"{where}: image {i}", item[0]) for i, item in enumerate(items)), image_size)
    else:
        try:
            examples = np.stack([np.asarray(item[0]) for item in items])
        except (TypeError, ValueError, RuntimeError) as error:  # of shapes that differ; a tensor with a gradient
            raise DataError(f"{where}: x must be numbers of one shape: {shorten(error)}") from None
    ids = np.asarray([client(i) for i in range(len(items))] if callable(client) else client)
    if client is not None and ids.shape != (len(items),):
        raise UsageError(f"client must be one id for each of the {len(items)} items, got shape {ids.shape}")
    names = None if client is None else _as_names(f"{where}: client", ids)
    return _Part(as_numbers(f"{where}: x", examples), _as_names(f"{where}: y", [item[1] for item in items]), names)


def _as_names(where: str, values: Any) -> list[str]:
    """Return labels or client ids, whole numbers or text, as text."""
    names = []
    for row, value in enumerate(values.tolist() if isinstance(values, np.ndarray) else values):
        name = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
        name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        if not isinstance(name, str | int) or name == "":
            raise DataError(f"{where}, row {row + 1}: a whole number or text is needed, got {shorten(repr(name), 40)}")
        names.append(str(name))
    return names


def _build(where: str, train: _Part, test: _Part | None = None, *, class_names: Sequence[str] | None = None) -> Source:
    """Number the classes and the clients of both parts."""
    if len(train.x) == 0:
        raise DataError(f"{where} holds no training examples")
    test = test or _Part(train.x[:0], [], None if train.client is None else [])
    forms = [f"{part.x.dtype}{list(part.x.shape[1:])}" for part in (train, test)]
    if forms[0] != forms[1] or (train.client is None) != (test.client is None):
        raise DataError(f"{where}: test examples must be {forms[0]}, and have clients only if these do, got {forms[1]}")
    for part in (train, test):
        lengths = [len(column) for column in part if column is not None]
        if len(set(lengths)) > 1:
            raise DataError(f"{where}: examples, labels and clients must be as many, got {lengths}")
    classes = list(class_names) if class_names is not None else _ordered([*train.y, *test.y])
    if other := {*train.y, *test.y}.difference(classes):
        raise DataError(f"{where}: class {min(other)!r} is not one of the {len(classes)} that the training part states")
    code = {name: i for i, name in enumerate(classes)}
    train_groups = test_groups = None
    if train.client is not None and test.client is not None:
        ids = [*train.client, *test.client]
        groups = np.array(ids, np.int64) if all(map(_WHOLE.fullmatch, ids)) else np.array(ids)
        train_groups, test_groups = np.split(groups, [len(train.client)])
    return Source(
        train={"x": train.x, "y": np.array([code[name] for name in train.y], np.int32)},
        test={"x": test.x, "y": np.array([code[name] for name in test.y], np.int32)},
        num_classes=len(classes),
        input_shape=train.x.shape[1:],
        train_groups=train_groups,
        test_groups=test_groups,
        class_names=tuple(classes),
    )


def _ordered(names: Iterable[str]) -> list[str]:
    different = set(names)
    return sorted(different, key=int if all(map(_WHOLE.fullmatch, different)) else str)


_READERS: dict[str, Callable[..., Source]] = {".npz": _load_arrays, **dict.fromkeys(TABLES, _load_table)}

"""Tables and images as arrays, read alike where they are trained on and where they are predicted."""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedoptax.errors import DataError, check_int, shorten

if TYPE_CHECKING:
    import pandas

TABLES = {".csv": ",", ".tsv": "\t", ".parquet": None}
"""The endings of tables, and what separates the cells."""
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}

Size = int | tuple[int, int]
"""Pixels: height and width, or one number for a square."""


def read_frame(path: Path, texts: Sequence[str], rows: int | None = None) -> "pandas.DataFrame":
    """Read a table, or its first rows; columns in `texts` are kept as written, others are numbers if they can be."""
    import pandas as pd

    separator = TABLES[path.suffix.lower()]
    try:
        if separator is None:
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path).slice(0, rows)
            return table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas only warns of rows that are too long
            return pd.read_csv(
                path,
                sep=separator,
                dtype=dict.fromkeys(texts, str),
                index_col=False,
                keep_default_na=False,
                na_values=[""],
                encoding="utf-8-sig",
                low_memory=False,
                nrows=rows,
            )
    except (OSError, ValueError, Warning) as error:  # pandas' and Arrow's errors are kinds of ValueError
        raise DataError(f"{path} cannot be read as a table: {shorten(error)}") from None


def check_columns(where: object, frame: "pandas.DataFrame", columns: Sequence[str]) -> None:
    """Check that a table has these columns."""
    if missing := [name for name in columns if name not in frame.columns]:
        raise DataError(
            f"{where} lacks the column {missing[0]!r}; it has {shorten(', '.join(map(repr, frame.columns)))}"
        )


def read_features(where: object, frame: "pandas.DataFrame", columns: Sequence[str]) -> np.ndarray:
    """Return columns of numbers as float32 (rows, columns)."""
    import pandas as pd

    x = np.empty((len(frame), len(columns)), np.float32)
    for i, name in enumerate(columns):
        with np.errstate(over="ignore"):  # infinity is found afterwards
            numbers = pd.to_numeric(frame[name], errors="coerce")
            cells = numbers.to_numpy(np.float32, na_value=np.nan)
        if (is_text := (numbers.isna() & frame[name].notna()).to_numpy()).any():
            row = int(np.argmax(is_text))
            text = shorten(repr(frame[name].iloc[row]), 40)
            raise DataError(f"{where}: column {name!r}, row {row + 1}: a number is needed, got {text}")
        x[:, i] = as_numbers(f"{where}: column {name!r}", cells)[:, 0]
    return x


def as_numbers(where: str, values: Any) -> np.ndarray:
    """Return features (n, …) as they are trained on: float64 as float32, whole numbers within int32, (n,) as (n, 1)."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0 or 0 in array.shape[1:]:
        raise DataError(f"{where} must hold numbers, as many for every example, got {array.dtype}{list(array.shape)}")
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is found afterwards
            array = array.astype(np.float32) if array.dtype.itemsize > 4 else array
        if not (finite := np.isfinite(array).all(tuple(range(1, array.ndim)))).all():
            raise DataError(f"{where}, row {np.argmin(finite) + 1}: holds NaN, infinity or a number beyond float32")
    elif array.dtype.itemsize > 4:
        limits = np.iinfo(np.int32)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise DataError(f"{where} must be within int32, got {array.min()} to {array.max()}")
        array = array.astype(np.int32)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return array if array.ndim > 1 else array[:, None]


def stack_images(images: Iterable[tuple[str, Any]], image_size: Size | None) -> np.ndarray:
    """Decode files or Pillow images, upright: uint8 (n, height, width, 1), or 3 channels if one has colour.

    A grey image among coloured ones has its channel three times, transparency is dropped, palettes are looked up.
    """
    from PIL import Image, ImageOps

    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    for side in size or ():
        check_int("image_size", side, 1, 10_000)
    arrays: list[np.ndarray] = []
    for name, image in images:
        try:
            with Image.open(image) if isinstance(image, Path) else nullcontext(image) as opened:
                if opened.mode.startswith(("I", "F")):
                    raise ValueError(f"8 bits per channel are needed, got mode {opened.mode}")
                upright = ImageOps.exif_transpose(opened).convert("L" if opened.mode in ("1", "L", "LA") else "RGB")
            if size is not None:
                upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        except Exception as error:  # Pillow's decoders fail in many ways
            raise DataError(f"{name} cannot be read as an image: {shorten(error)}") from None
        arrays.append(np.asarray(upright).reshape(upright.height, upright.width, -1))
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            first = "×".join(map(str, arrays[0].shape[:2]))
            raise DataError(f"{name} must have {first} pixels as the first image, or image_size= must be given")
    channels = max(array.shape[2] for array in arrays)
    return np.stack([np.broadcast_to(array, (*array.shape[:2], channels)) for array in arrays])

"""Tables and images as arrays, read alike where they are trained on and where they are predicted."""

import csv
import re
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any

import numpy as np

from fedoptax._files import reading as reading
from fedoptax.errors import DataError, UsageError, check_choice, check_int, shorten

if TYPE_CHECKING:
    from pandas import DataFrame, Series
else:  # pandas is slow to import
    DataFrame = Series = Any

THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3}|(\.[0-9]{3})+,[0-9]+)")
TABLES = {".csv": ",", ".tsv": "\t", ".parquet": None}
"""The endings of tables, and what separates the cells."""
IMAGES = {".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
IMAGES |= {".avif", ".heic", ".heif"}  # an error where Pillow cannot read them, not left out

Size = int | tuple[int, int]
"""Pixels: height and width, or one number for a square."""


@contextmanager
def open_archive(path: Path) -> Iterator[Any]:
    """Open the arrays of a `.npz` file."""
    with reading(path, "a NumPy archive"), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        yield archive


def read_frame(path: Path, texts: Sequence[str], rows: int | None = None, /, **cells: str | None) -> DataFrame:
    """Read a table, or its first rows; columns in `texts` stay as written, others are numbers if they can be.

    `cells` are the arguments `separator` and `decimal` of `find_separator`.
    """
    import pandas as pd

    with reading(path, "a table"):
        if (separator := find_separator(path, **cells)) is None:
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as file:  # read_table refuses a name twice in its own words
                table = file.read() if rows is None else file.schema_arrow.empty_table()
                frame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
            frame = frame.rename(columns=lambda name: name.removeprefix("\ufeff"))
            return frame.filter(regex="^(?!__index_level_[0-9]+__$)")  # what pandas calls an index without a name
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas only warns of rows that are too long
            options: dict[str, Any] = {"sep": separator, "decimal": cells.get("decimal") or ".", "nrows": rows}
            options |= {"dtype": dict.fromkeys(texts, str), "keep_default_na": False, "na_values": [""]}
            options["skip_blank_lines"] = separator in "".join(_first_lines(path)[:1])  # else an empty cell
            frame = pd.read_csv(path, **options, encoding="utf-8-sig", index_col=False, low_memory=False)
            for name in frame.columns.difference(texts) if cells.get("decimal") == "," else ():
                frame[name] = _with_points(frame[name])
        header = next(csv.reader(_first_lines(path), delimiter=separator))
        return frame.set_axis([new or old for new, old in zip(header, frame.columns)], axis=1)  # "a", "a", not "a.1"


def _with_points(column: "Series[Any]") -> "Series[Any]":
    """Write decimal commas as points where a cell that is no number, such as NA, has left all of a column as texts."""
    if column.dtype.kind in "iufb":
        return column
    if wrong := next(filter(THOUSANDS.fullmatch, map(str, column)), None):
        raise ValueError(f"column {column.name!r} must have no points for thousands, got {wrong!r}")
    return column.replace(r"^(\s*[+-]?\d+),(\d+\s*)$", r"\1.\2", regex=True)


def find_separator(path: Path, separator: str | None = None, decimal: str | None = None) -> str | None:
    """Return the separator of a .csv or .tsv file; None for a .parquet file.

    The guess is the first of its usual one and , ; tab | by which the first lines have the same number of cells > 1.
    """
    usual, separator = TABLES[path.suffix.lower()], "\t" if separator == "\\t" else separator
    check_choice("decimal", decimal or ".", (".", ","))
    if separator is not None and (len(separator) != 1 or separator in '"\r\n' or separator == (decimal or ".")):
        raise UsageError(f"separator must be one character other than decimal, got {separator!r}")
    if usual is None and (separator or decimal):
        raise UsageError(f"separator and decimal do not apply to '{path}', got {separator or decimal!r}")
    if usual is None or separator is not None:
        return separator
    lines = _first_lines(path)
    for guess in dict.fromkeys((usual, *",;\t|")):
        rows = list(csv.reader(lines, delimiter=guess))
        sizes = {len(row) for row in rows[:-1] or rows}  # the last may be cut within a cell
        if guess != decimal and len(sizes) == 1 and max(sizes) > 1:
            return guess
    return usual


def _first_lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(islice(filter(str.strip, file), 10))


def check_columns(where: object, names: Iterable[Any], columns: Sequence[str]) -> None:
    """Check that the `names` of a table or archive contain each of `columns` once, up to white space around them."""
    known = Counter(str(name).replace("\ufeff", "").strip() for name in names)
    for name, uses in Counter(columns).items():
        if name not in names:
            raise DataError(f"{where} lacks {name!r}; it has {shorten(', '.join(map(repr, names)))}")
        if known[name.strip()] > 1 or uses > 1:
            raise DataError(f"{where} {'cannot use' if uses > 1 else 'has'} {name!r} more than once")


def read_features(where: object, frame: DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Return columns of numbers as float32 (rows, columns); a cell that is a text of a number counts as one."""
    import pandas as pd

    x = np.empty((len(frame), len(columns)), np.float32)
    for i, name in enumerate(columns):
        column = frame[name]
        if not pd.api.types.is_numeric_dtype(column.dtype):
            column = column.astype(object)  # else pandas makes numbers of times, periods and durations
        numbers = pd.to_numeric(column, errors="coerce")
        if numbers.dtype.kind == "c":
            numbers = pd.Series(np.nan, column.index)
        if (is_text := (numbers.isna() & column.notna()).to_numpy(bool)).any():
            row = int(np.argmax(is_text))
            text = shorten(repr(column.iloc[row]), 40)
            raise DataError(f"{where}: column {name!r}, row {row + 1}: a number is needed, got {text}")
        with np.errstate(over="ignore"):  # infinity is found afterwards
            cells = numbers.to_numpy(np.float32, na_value=np.nan)
        x[:, i] = as_numbers(f"{where}: column {name!r}", cells)[:, 0]
    return x


def as_numbers(where: str, values: Any) -> np.ndarray:
    """Return features (n, …) as they are trained on: float64 as float32, whole numbers within int32, (n,) as (n, 1)."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0 or 0 in array.shape[1:]:
        raise DataError(f"{where} must hold numbers, equally many per example, got {array.dtype}{list(array.shape)}")
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is found afterwards
            array = array.astype(np.float32) if array.dtype.itemsize > 4 else array
        if not (finite := np.isfinite(array).all(tuple(range(1, array.ndim)))).all():
            raise DataError(f"{where}, row {np.argmin(finite) + 1}: is empty, NaN, infinite or beyond float32")
    elif array.dtype.itemsize > 4:
        limits = np.iinfo(np.int32)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise DataError(f"{where} must be within int32, got {array.min()} to {array.max()}")
        array = array.astype(np.int32)
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return array if array.ndim > 1 else array[:, None]


def find_white(where: str, *arrays: np.ndarray) -> float | None:
    """Return the number of white by the range of images, 1, 255 or 65535, else a `DataError`; None if standardised."""
    filled = [array for array in arrays if array.size]
    low, high, dtype = min(map(np.min, filled)), max(map(np.max, filled)), filled[0].dtype
    if low < 0 and dtype.kind == "f":
        return None
    white = next((white for white in (1.0, 255.0, 65535.0) if 0 <= low <= high <= white), None)
    if white is None or (white > 1 and not all(map(_is_whole, filled))):
        allowed = "0 to 1, of whole numbers to 255 or 65535, or of floats around 0"
        raise DataError(f"{where}: the range of images must be {allowed}, got {dtype} from {low} to {high}")
    return white


def check_pixels(where: str, array: np.ndarray, white: float | None) -> None:
    """Check that images have the range of those that a model was trained on, by its `white` of `find_white`."""
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if white is None:
        is_right, allowed = array.dtype.kind == "f", "standardised floats"
    else:
        top = {"bool": 1, "uint8": 255}.get(array.dtype.name, white)  # whatever the range of these few images
        is_right = low >= 0 and high <= white <= top and (high > 1 or white == 1 or _is_whole(array))
        allowed = f"pixels from 0 to {white:g}"
    if not is_right:
        raise DataError(f"{where} must hold {allowed}, got {array.dtype} from {low} to {high}")


def _is_whole(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.all(array == np.rint(array)))


def find_files(root: Path, endings: Container[str] = IMAGES) -> list[Path]:
    """Find the files, images by default, in a folder and below, in the order of their paths; hidden ones are left out.

    Links are followed, but to nowhere or back to a folder above, which is a `DataError`.
    """

    def files_in(folder: Path) -> Iterator[Path]:
        if folder.resolve() in {parent.resolve() for parent in folder.parents if parent.is_relative_to(root)}:
            raise ValueError(f"{folder} is a link to a folder above it")
        for path in folder.iterdir():
            mode = 0 if path.name.startswith(".") else path.stat().st_mode
            if S_ISDIR(mode):
                yield from files_in(path)
            elif S_ISREG(mode) and path.suffix.lower() in endings:
                yield path

    with reading(root, "a folder"):
        return sorted(files_in(root), key=lambda path: path.parts)


def stack_images(files: Iterable[Path], image_size: Size | None) -> np.ndarray:
    """Decode image files, upright: uint8 (n, height, width, 1), or 3 channels if one has colour.

    A grey image among coloured ones has its channel three times, transparency is dropped, palettes are looked up.
    Images of more than 8 bits per channel or of several pages or frames are refused, but for previews in photographs.
    """
    from PIL import Image, ImageOps

    size = image_size if isinstance(image_size, tuple | list | None) else (image_size, image_size)
    for side in size or ():
        check_int("image_size", side, 1, 10_000)
    arrays: list[np.ndarray] = []
    for file in files:
        with reading(file, "an image"), Image.open(file) as opened:
            if opened.mode.startswith(("I", "F")) or _is_deep(opened):
                raise ValueError(f"8 bits per channel are needed, got more, read as mode {opened.mode}")
            if getattr(opened, "is_animated", False) and opened.format != "MPO":  # a JPEG with previews
                raise ValueError("one page or frame is needed, got several")
            upright = ImageOps.exif_transpose(opened).convert("L" if opened.mode in ("1", "L", "LA") else "RGB")
            if size is not None:
                height, width = size
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
        arrays.append(np.asarray(upright).reshape(upright.height, upright.width, -1))
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            first = "×".join(map(str, arrays[0].shape[:2]))
            raise DataError(f"{file} must have {first} pixels as the first image, unless image_size= resizes them")
    channels = max(array.shape[2] for array in arrays)
    return np.stack([np.broadcast_to(array, (*array.shape[:2], channels)) for array in arrays])


def _is_deep(image: Any) -> bool:
    """Whether Pillow would cut the channels of a file to 8 bits: a 16-bit raw mode, or a PPM's maximum over 255."""
    tiles = [(tile[0], tile[3]) for tile in getattr(image, "tile", ())]
    return any(re.search(r";16[BLN]", str(how)) or (codec.startswith("ppm") and how[1] > 255) for codec, how in tiles)

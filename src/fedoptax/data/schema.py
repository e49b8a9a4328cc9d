"""The schema of a table, a short TOML file that a person can edit, and the conversion of tables to arrays.

    client = "site"                       # the column of the client ids; a node's own file does without
    min_count = 5                         # statistics of fewer rows of a client are left out
    target = {column = "outcome", kind = "class", classes = ["0_no", "1_yes"], positive = "1_yes"}  # kind or "number"

    [columns]
    age = {kind = "number", missing = "median", indicator = true, scale = "standard"}
    livch = {kind = "category", categories = ["0", "1", "2", "3+"], missing = "most-frequent"}
    urban = {kind = "boolean", categories = ["N", "Y"]}
    visit = {kind = "date", start = "2020-03-01"}
    patient = {kind = "ignore"}

A number is one feature, a date the days since `start`, a boolean 0 or 1, a category one feature per value; a value that
is none of them is 0 in all. `indicator` adds a feature that is 1 where the cell was empty. `separator` and `decimal`
say how the cells of a .csv file are read, if that is unusual.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.readers import DataFrame, Series, check_columns, read_features
from fedoptax.errors import DataError, UsageError, check_choice, check_flag, check_int, check_type, shorten

MISSING = {
    "number": ("median", "mean", "zero", "refuse"),
    "date": ("median", "mean", "zero", "refuse"),
    "boolean": ("most-frequent", "zero", "refuse"),
    "category": ("most-frequent", "own-category", "zero", "refuse"),
    "ignore": ("",),
}
"""By kind of column what may stand for an empty cell, learned from the training examples."""
SCALED = {"number": "standard", "date": "standard", "boolean": "standard"}
"""The kinds whose features are standardised unless the schema says otherwise."""
EMPTY = {"", "na", "n/a", "nan", "null", "none", "?", ".", "-"}
"""Words, in small letters, that stand for an empty cell among numbers, dates and truth values; elsewhere only ""."""
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")  # whole numbers as int64 prints them; "007" is a name
DATES = ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")


@dataclass(frozen=True)
class ColumnSchema:
    """The kind of a column of features; see this module."""

    kind: str
    categories: tuple[str, ...] = ()
    start: str = ""
    format: str = ""
    missing: str = ""
    indicator: bool = False
    scale: str = ""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, MISSING)
        defaults = {"missing": MISSING[self.kind][0], "scale": SCALED.get(self.kind, "none")}
        defaults |= {"format": DATES[0]} if self.kind == "date" else {}
        for name, default in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or default)
        check_type("categories", self.categories, list | tuple)
        object.__setattr__(self, "categories", tuple(self.categories))
        check_choice("missing", self.missing, MISSING[self.kind])
        check_choice("scale", self.scale, ("standard", "none"))
        check_flag("indicator", self.indicator)
        if self.kind == "date":
            to_days("start", [self.start], self)
        if len(set(self.categories)) < len(self.categories) or not all(isinstance(c, str) for c in self.categories):
            raise UsageError(f"categories must be different texts, got {list(self.categories)}")
        if {"boolean": len(self.categories) != 2, "category": not self.categories}.get(self.kind):
            wanted = "two texts, the second for true" if self.kind == "boolean" else "texts"
            raise UsageError(f"categories must be {wanted}, got {list(self.categories)}")

    @property
    def features(self) -> tuple[str, ...]:
        """What follows the column's name in the names of its features."""
        empty = ("=(empty)",) if self.missing == "own-category" else ()
        values = tuple(f"={c}" for c in self.categories) + empty if self.kind == "category" else ("",)
        return () if self.kind == "ignore" else values + ((" is empty",) if self.indicator else ())

    def encode(self, where: object, name: str, column: Series[Any]) -> np.ndarray:
        """Return the column's features, float32 (rows, features); NaN where an empty cell is to be filled."""
        is_empty = self.is_empty(column)
        if self.missing == "refuse" and is_empty.any():
            raise DataError(f"{where}: column {name!r}, row {int(np.argmax(is_empty)) + 1}: the cell is empty")
        if self.kind == "number":
            filled = column.astype(object).mask(is_empty, 0) if is_empty.any() else column
            x = read_features(where, filled.to_frame(name), [name])
        elif self.kind == "date":
            days = to_days(f"{where}: column {name!r}", column.astype(object).mask(is_empty, self.start).tolist(), self)
            x = days.astype(np.float32)[:, None]
        else:
            x = np.eye(len(self.categories) + 1, dtype=np.float32)[self.codes(column)][:, :-1]
            if self.kind == "boolean":
                if wrong := np.flatnonzero((self.codes(column) < 0) & ~is_empty).tolist():
                    allowed, got = " or ".join(map(repr, self.categories)), shorten(repr(column.iloc[wrong[0]]), 40)
                    raise DataError(f"{where}: column {name!r}, row {wrong[0] + 1} must be {allowed}, got {got}")
                x = x[:, 1:]
            if self.missing == "own-category":
                x = np.column_stack([x, is_empty]).astype(np.float32)
        if self.missing != "own-category":
            x = np.where(is_empty[:, None], np.float32(np.nan), x)
        return np.column_stack([x, is_empty]).astype(np.float32) if self.indicator else x

    def is_empty(self, column: Series[Any]) -> np.ndarray:
        """Return whether each cell is empty, (rows,)."""
        words = EMPTY if self.kind in SCALED else {""}
        if column.dtype.kind in "iuf":  # the cells of a large table need not be texts
            return column.isna().to_numpy(bool)
        return np.array([text is None or text.lower() in words for text in as_texts(column)], bool)

    def codes(self, column: Series[Any]) -> np.ndarray:
        """Return the place of each cell among the categories, (rows,), or -1."""
        place = {category: i for i, category in enumerate(self.categories)}
        texts = (text or "" for text in as_texts(column))  # whole numbers beside empty cells may be written 1.0
        return np.array([place.get(text, place.get(text.removesuffix(".0"), -1)) for text in texts], np.int64)


@dataclass(frozen=True)
class Target:
    """The column that is predicted: one of `classes`, or a number."""

    column: str
    kind: str = "class"
    classes: tuple[str, ...] = ()
    positive: str | None = None

    def __post_init__(self) -> None:
        check_type("target: column", self.column, str)
        check_choice("target: kind", self.kind, ("class", "number"))
        check_type("target: classes", self.classes, list | tuple)
        object.__setattr__(self, "classes", tuple(self.classes))
        if not all(isinstance(name, str) for name in self.classes) or len(set(self.classes)) < len(self.classes):
            raise UsageError(f"target: classes must be different texts, got {list(self.classes)}")
        if self.positive is not None:
            check_choice("target: positive", self.positive, self.classes)


@dataclass(frozen=True)
class Schema:
    """The schema of a table; see this module."""

    target: Target
    columns: Mapping[str, ColumnSchema]
    client: str | None = None
    min_count: int = 1
    separator: str | None = None
    decimal: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def read(cls, source: str | Path) -> Schema:
        """Read a schema: a file, or its text.

        What is no schema, or no file, is a `UsageError`, whose message names the column and the entry.
        """
        text, where = str(source), "schema"
        if "\n" not in text:
            where = f"schema '{source}'"
            try:
                text = Path(source).expanduser().read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise UsageError(f"{where} cannot be read: {error}") from error
        try:
            content = tomllib.loads(text)
            target, columns = content.pop("target", None), content.pop("columns", None)
            check_type("[columns]", columns, dict)
            for name in content:
                check_choice("entry", name, ("client", "min_count", "separator", "decimal"))
            check_int("min_count", content.get("min_count", 1))
            read = {name: _read_table(ColumnSchema, f"column {name!r}", table) for name, table in columns.items()}
            return cls(_read_table(Target, "[target]", target), read, **content)
        except (tomllib.TOMLDecodeError, UsageError) as error:
            raise UsageError(f"{where}: {error}") from error

    def to_toml(self) -> str:
        """Return the schema as a text that `read` reads."""
        top = {name: getattr(self, name) for name in ("client", "min_count", "separator", "decimal")}
        lines = [f"{name} = {_quote(value)}" for name, value in top.items() if value is not None]
        lines += ["", "[target]", *(f"{n} = {_quote(v)}" for n, v in asdict(self.target).items() if v), "", "[columns]"]
        for name, column in self.columns.items():
            entries = {n: v for n, v in asdict(column).items() if v and (column.kind != "ignore" or n == "kind")}
            lines.append(f"{_quote(name)} = {{{', '.join(f'{n} = {_quote(v)}' for n, v in entries.items())}}}")
        return "\n".join(lines) + "\n"

    @property
    def used(self) -> dict[str, ColumnSchema]:
        """The columns of features."""
        return {name: column for name, column in self.columns.items() if column.kind != "ignore"}

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features: `age`, `age is empty`, `livch=3+`."""
        return tuple(f"{name}{end}" for name, column in self.used.items() for end in column.features)

    @property
    def roles(self) -> list[tuple[ColumnSchema, str]]:
        """The column of each feature, and whether this is its `value`, a `category` of it, or the `indicator`."""
        roles = []
        for column in self.used.values():
            role, count = "category" if column.kind == "category" else "value", len(column.features)
            roles += [(column, role)] * (count - column.indicator) + [(column, "indicator")] * column.indicator
        return roles

    @property
    def texts(self) -> list[str]:
        """The columns of a file to read as text."""
        names = [name for name, column in self.columns.items() if column.kind in ("category", "boolean", "date")]
        return [*names, self.target.column] if self.target.kind == "class" else names

    @property
    def cells(self) -> dict[str, str]:
        """How the cells of a .csv file are read, if that was said."""
        cells = {"separator": self.separator, "decimal": self.decimal}
        return {name: value for name, value in cells.items() if value is not None}

    def encode(self, where: object, frame: DataFrame) -> np.ndarray:
        """Return the features of a table, float32 (rows, features); NaN where an empty cell is to be filled.

        A missing column, or a cell not of its kind, is a `DataError`, whose message names the column and row.
        """
        check_columns(where, frame.columns, list(self.used))
        parts = [column.encode(where, name, frame[name]) for name, column in self.used.items()]
        return np.concatenate([np.zeros((len(frame), 0), np.float32), *parts], axis=1)

    def without(self, names: Sequence[str]) -> Schema:
        """Return the schema with some columns ignored."""
        for name in names:
            check_choice("drop", name, self.columns)
        return replace(self, columns={**self.columns, **dict.fromkeys(names, ColumnSchema("ignore"))})

    def describe_unseen(self, frame: DataFrame) -> tuple[str, ...]:
        """Describe, a line for each column, the cells that are none of its categories, and not empty."""
        used = {name: c for name, c in self.used.items() if c.kind == "category"}
        counts = {name: int(np.sum((c.codes(frame[name]) < 0) & ~c.is_empty(frame[name]))) for name, c in used.items()}
        rows = f"of {len(frame)} rows"
        return tuple(f"column {name!r}: unknown categories in {n} {rows}" for name, n in counts.items() if n)


def as_texts(column: Series[Any]) -> list[str | None]:
    """Return the cells of a column as texts without blanks around them; None for an empty one, "1" for 1.0."""
    import pandas as pd

    def as_text(value: Any) -> str | None:
        if pd.api.types.is_scalar(value) and pd.isna(value):
            return None
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        return str(value).strip() or None

    return [as_text(value) for value in column.tolist()]


def sort_names(names: set[str]) -> list[str]:
    """Sort names by value if all are whole numbers, else as texts."""
    return sorted(names, key=int if all(map(WHOLE.fullmatch, names)) else str)


def to_days(where: str, cells: Sequence[Any], column: ColumnSchema) -> np.ndarray:
    """Return dates as days since the column's `start`, float64 (rows,)."""
    import pandas as pd

    start = pd.to_datetime(column.start, format=DATES[0], utc=True, errors="coerce")
    if pd.isna(start):
        raise UsageError(f"start must be a date such as 2020-03-01, got {column.start!r}")
    texts, days = pd.Series([str(cell).strip() for cell in cells]), np.full(len(cells), np.nan)
    for form in (column.format, DATES[0]):  # a date of Parquet, or the start, is written as ISO 8601 has it
        dates = pd.to_datetime(texts, format=form, utc=True, errors="coerce")
        days = np.where(np.isnan(days), ((dates - start) / pd.Timedelta(days=1)).to_numpy(float), days)
    if np.isnan(days).any():
        row = int(np.argmax(np.isnan(days)))
        raise DataError(f"{where}, row {row + 1}: a date is needed, got {shorten(repr(cells[row]), 40)}")
    return days


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_table(kind: Any, where: str, table: Any) -> Any:
    check_type(where, table, dict)
    for name in table:
        check_choice(f"{where}: entry", name, [of.name for of in fields(kind)])
    try:
        return kind(**table)
    except (TypeError, UsageError) as error:
        raise UsageError(f"{where}: {error}") from error

"""A first look at a table: the kinds of its columns, and warnings."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np

from fedoptax.data.readers import DataFrame, Series, check_columns, find_separator, read_features, read_frame
from fedoptax.data.schema import DATES, EMPTY, ColumnSchema, Schema, Target, as_texts, sort_names, to_days
from fedoptax.errors import DataError, UsageError, check_choice, shorten

NUMBER = re.compile(r"[+-]?(?!0[0-9])([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
PADDED = re.compile("[+-]?0[0-9]+")  # "007" is a name
DECIMAL_COMMA = re.compile(r"[+-]?(0|[1-9][0-9]*)(,[0-9]+)?")
NO_THOUSANDS = re.compile(r"[+-]?(0|[0-9]{4,}),[0-9]+|.*,([0-9]{1,2}|[0-9]{4,})")
TRUTH = {"true": "false", "yes": "no", "y": "n", "t": "f"}
MOST_CATEGORIES, MOST_MIXED, MOST_CLASSES, MOST_DECIMALS = 100, 40, 50, 20
"""Different values up to which texts are categories (half of 40 if most are numbers), and labels, decimals classes."""
MIN_ROWS, SMALL = 20, 10
"""Rows from which a column without repetitions counts as an identifier; rows of a small client."""
IGNORE = 'leave it out (drop={0}, or kind = "ignore" in the schema)'


def infer_file(
    path: Path, label: str, client: str | None = None, target: str | None = None, columns: Sequence[str] | None = None,
    **cells: str | None,
) -> Schema:  # fmt: skip
    """Look at a file; see `infer_schema`. `cells` are the `separator` and `decimal` of `readers.find_separator`."""
    from pandas.api import types

    names, commas = [name for name in (label, client) if name is not None], list[str]()
    no_numbers = [client] if target in ("number", "guess") else names
    head = read_frame(path, [], 0, **cells)
    check_columns(path, head.columns, [*names, *(columns or ())])
    frame = read_frame(path, names, **cells)
    if find_separator(path, **cells) is not None:
        raw = read_frame(path, list(head.columns), **cells)
        as_written = [n for n in set(frame.columns) if list(frame.columns).count(n) == 1 and n not in no_numbers and (
            not types.is_numeric_dtype(frame[n].dtype) or types.is_bool_dtype(frame[n].dtype)
            or any(PADDED.fullmatch(text or "") for text in as_texts(raw[n])))]  # fmt: skip
        commas = [n for n in as_written if (values := [t for t in as_texts(raw[n]) if t and t.lower() not in EMPTY])
            and all(map(DECIMAL_COMMA.fullmatch, values)) and "," in "".join(values)]  # fmt: skip
        sure = [n for n in commas if any(map(NO_THOUSANDS.fullmatch, filter(None, as_texts(raw[n]))))]
        if sure and cells.get("decimal") is None and find_separator(path, **cells) != ",":
            schema = infer_file(path, label, client, target, columns, **cells | {"decimal": ","})
            return replace(schema, notes=(f"column {min(sure)!r} has decimal commas, which are read", *schema.notes))
        frame = read_frame(path, [*names, *(set(as_written) - set(commas))], **cells) if as_written else frame
    schema = infer_schema(frame, label, client, target, columns)
    if not cells.get("decimal") and (written := [name for name in commas if name in schema.columns]):
        note = f"column {written[0]!r} has commas in its numbers, which are texts unless decimal=',' is set"
        schema = replace(schema, notes=(note, *schema.notes))
    return replace(schema, separator=cells.get("separator"), decimal=cells.get("decimal"))


def infer_schema(
    frame: DataFrame, label: str, client: str | None = None, target: str | None = None,
    columns: Sequence[str] | None = None,
) -> Schema:  # fmt: skip
    """Infer the kinds of a table's columns; the `notes` of the result explain the choices.

    `target` is `"class"` or `"number"`, where the labels may be either; `"guess"` takes the likelier. `columns` are
    those of features, the others are left out; None: all but the label and the client. Labels that may be either are a
    `UsageError` unless `target` says which.
    """
    if target is not None:
        check_choice("target", target, ("class", "number", "guess"))
    names = [n for n in frame.columns if n not in (label, client)] if columns is None else list(columns)
    check_columns("table", frame.columns, [*names, label])
    inferred = {name: _infer_column(frame[name]) for name in names}
    schemas = {name: column for name, (column, _) in inferred.items()}
    notes = [f"column {name!r} {note}" for name, (_, note) in inferred.items() if note]
    names = [n for n in names if frame[n].dtype.kind in "iuf" or schemas[n].kind not in ("number", "ignore")]
    notes += _find_ids(frame, names, client)
    return Schema(_infer_target(label, frame[label], target), schemas, client, notes=tuple(notes))


def describe_target(frame: DataFrame, schema: Schema) -> str:
    """Describe the target."""
    if schema.target.kind == "number":
        numbers = read_features("table", frame[[schema.target.column]].ffill().bfill(), [schema.target.column])
        return f"{schema.target.column!r} is a number, {numbers.min():g} to {numbers.max():g}"
    texts = [text for text in as_texts(frame[schema.target.column]) if text is not None]
    counts = Counter(texts)
    shares = [f"{name} {counts[name] / len(texts):.1%}" for name in schema.target.classes[:MIN_ROWS]]
    positive = f"; positive is {schema.target.positive!r}" if schema.target.positive else ""
    return f"{schema.target.column!r} is one of {len(schema.target.classes)} classes ({', '.join(shares)}){positive}"


def find_faults(frame: DataFrame, schema: Schema) -> list[str]:
    """Return warnings about a table, one line each, besides the `notes` of the schema."""
    lines = []
    y = np.array([text or "" for text in as_texts(frame[schema.target.column])], object)
    for name, column in schema.used.items():
        texts = as_texts(frame[name])
        counts = Counter(text for text in texts if text is not None)
        once = [text for text, count in counts.items() if count == 1]
        if counts and len(set(texts)) == 1:
            only = shorten(repr(next(iter(counts))), 40)
            lines.append(f"column {name!r} is {only} in every row: {IGNORE.format(name)}")
        elif sum(counts.values()) < len(texts) / 10:
            lines.append(f"column {name!r} is empty in {1 - sum(counts.values()) / len(texts):.0%} of the rows")
        elif column.kind == "category" and once:
            lines.append(f"column {name!r} has categories with a single row: {shorten(', '.join(once), 80)}")
        with suppress(DataError, ValueError):  # a cell of another kind, which the notes report
            x = column.encode("table", name, frame[name])
            if len(counts) > 1 and _tells_label(x[y != ""], y[y != ""], schema):
                advice = f"if it is only known afterwards, {IGNORE.format(name)}"
                lines.append(f"column {name!r} determines the label: {advice}")
    if schema.target.kind == "class":
        rare = [name for name, count in Counter(y.tolist()).items() if name and count < MIN_ROWS]
        lines += [f"classes of fewer than {MIN_ROWS} rows: {shorten(', '.join(rare), 200)}"] if rare else []
    if schema.client is not None:
        sizes = Counter(as_texts(frame[schema.client]))
        small = [f"{name} ({count})" for name, count in sizes.items() if count < SMALL]
        lines += [f"clients of fewer than {SMALL} rows: {shorten(', '.join(small), 200)}"] if small else []
    return lines


def _tells_label(x: np.ndarray, y: np.ndarray, schema: Schema) -> bool:
    """Whether a tree of three levels over one column finds a class that is not the commonest, or the number."""
    from sklearn.metrics import f1_score, r2_score
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    x = np.nan_to_num(x, nan=-1e9)
    if schema.target.kind == "number":
        numbers = y.astype(float)
        tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=5).fit(x, numbers)
        return bool(r2_score(numbers, tree.predict(x)) > 0.95)
    rarer = [name for name, _ in Counter(y.tolist()).most_common()][1:]
    tree = DecisionTreeClassifier(max_depth=3, min_samples_leaf=5).fit(x, y)
    return bool(rarer) and max(f1_score(y, tree.predict(x), labels=rarer, average=None, zero_division=0)) > 0.95


def _infer_column(column: Series) -> tuple[ColumnSchema, str]:
    from pandas.api import types

    if types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype) and column.notna().any():
        is_whole = column.notna().all()
        return ColumnSchema("number", missing="mean" if is_whole else "median", indicator=not is_whole), ""
    texts = as_texts(column)
    present = [text for text in texts if text is not None]
    values = [text for text in present if text.lower() not in EMPTY]
    of_numbers = {"missing": "median", "indicator": True} if len(values) < len(texts) else {"missing": "mean"}
    different = set(values)
    if not present:
        return ColumnSchema("ignore"), "is empty: ignored"
    if types.is_bool_dtype(column.dtype) or _truth_values(different):
        values_of = _truth_values(different) or ("False", "True")
        return ColumnSchema("boolean", values_of, indicator=len(values) < len(texts)), ""
    if formats := [form for form in DATES if values and _are_dates(values, form)]:
        if len(formats) > 1:
            options = " or ".join(f'format = "{form}"' for form in formats)
            return ColumnSchema("ignore"), f'has ambiguous dates: choose kind = "date", start = "2020-01-01", {options}'
        some = ColumnSchema("date", start="1970-01-01", format=formats[0])
        start = np.datetime64("1970-01-01") + int(np.floor(to_days("date", values, some).min()))
        return replace(some, start=str(start), **of_numbers), f"is a date: days since {start}"
    are_texts = all(isinstance(value, str) for value in column.dropna().tolist())
    share = sum(map(bool, map(NUMBER.fullmatch, values))) / max(len(values), 1)
    if share == 1 or not are_texts:  # of what is no text, such as durations, the reader says what is needed
        return ColumnSchema("number", **of_numbers), ""
    are_names = any(map(PADDED.fullmatch, different)) or 2 * len(different) < min(len(values), MOST_MIXED)
    if share >= 0.5 and not are_names:
        wrong = next(i for i, text in enumerate(texts) if text and not NUMBER.fullmatch(text) and text in different)
        text = shorten(repr(texts[wrong]), 40)
        note = f'has numbers, but {text} in row {wrong + 1}: correct it, or choose kind = "category"'
        return ColumnSchema("number", **of_numbers), note
    categories = tuple(sort_names(set(present)))
    if len(categories) > MOST_CATEGORIES or (len(present) >= 20 and len(categories) >= 0.99 * len(present)):
        return ColumnSchema("ignore"), f"has {len(categories)} different texts, as an identifier or free text: ignored"
    missing = "own-category" if len(present) < len(texts) else "most-frequent"
    are_many = 2 * len(categories) > len(present) >= MIN_ROWS
    note = f"has {len(categories)} different texts in {len(present)} rows, each a category" if are_many else ""
    if different == {"train", "test"}:
        note = "says train or test, but is a feature: set the task option `split` to it"
    return ColumnSchema("category", categories, missing=missing), note


def _find_ids(frame: DataFrame, names: Sequence[str], client: str | None) -> list[str]:
    """Find columns of whole numbers of which hardly any occurs twice, and those that are constant in each client."""
    lines, count = [], len(frame)
    sizes = 0 if client is None or list(frame.columns).count(client) != 1 else frame[client].nunique()
    for name in names if count >= MIN_ROWS else ():
        different = (values := frame[name]).nunique()
        if different >= 0.99 * count and values.dtype.kind in "iuf" and (values == values.round()).all():
            lines.append(f"column {name!r} differs in every row, as an identifier does: {IGNORE.format(name)}")
        elif 1 < sizes <= count // 2 and different > 1 and values.groupby(frame[client]).nunique().max() == 1:
            lines.append(f"column {name!r} is constant within each client: {IGNORE.format(name)}")
    return lines


def _infer_target(label: str, column: Series, kind: str | None) -> Target:
    texts = [text for text in as_texts(column) if text is not None]
    if len(column) and not texts:
        raise DataError(f"label column {label!r} is empty")
    different, are_numbers = set(texts), any(all(map(form.fullmatch, texts)) for form in (NUMBER, DECIMAL_COMMA))
    has_decimals = are_numbers and any(not re.fullmatch("[+-]?[0-9]+", text) for text in different)
    is_unclear = len(different) > (MOST_DECIMALS if has_decimals else MOST_CLASSES)
    if kind == "guess":
        are_most = are_numbers or 2 * sum(map(bool, map(NUMBER.fullmatch, texts))) > len(texts)
        kind = "number" if is_unclear and are_most else "class"
    if kind is None and is_unclear:
        what = "decimals" if has_decimals else "values"
        remedy = "by the task option target=number or target=class, or in a schema"
        raise UsageError(f"label column {label!r} has {len(different)} different {what}: say what it is {remedy}")
    if kind == "number":
        return Target(label, "number")
    classes = sort_names(different)
    rarer = min(classes, key=lambda name: (texts.count(name), -classes.index(name))) if len(classes) == 2 else None
    return Target(label, "class", tuple(classes), rarer)


def _truth_values(values: set[str]) -> tuple[str, str] | None:
    pairs = permutations(values) if len(values) == 2 else ()
    return next(((no, yes) for no, yes in pairs if TRUTH.get(yes.lower()) == no.lower()), None)


def _are_dates(texts: Sequence[str], form: str) -> bool:
    looks_so = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?" if form == "ISO8601" else r"[0-9]{1,2}([./])[0-9]{1,2}\1[0-9]{4}"
    if not all(re.fullmatch(looks_so, text) for text in texts):
        return False
    with suppress(DataError):
        to_days("", texts, ColumnSchema("date", start="1970-01-01", format=form))
        return True
    return False

"""What other programs write is read with the right value, or refused in one line that names the column or file."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedoptax as fx
from fedoptax.data.custom import load_file
from fedoptax.data.inputs import as_examples, read_inputs
from fedoptax.data.readers import find_white
from fedoptax.data.schema import ColumnSchema, Schema, Target
from files import write
from refusals import DAYS, NUMBERS, SPANS, refused

RNG = np.random.default_rng(0)


def parquet(path: Path, names: list[str], *columns: Any) -> Path:
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in columns], names=names), path)
    return path


def csv(path: Path, text: str, encoding: str = "utf-8") -> Path:
    return write(path, text.encode(encoding))


DAYS_SINCE = [0.0, 1.0]  # the earliest
KINDS: dict[str, tuple[Any, list[float] | str]] = {  # column -> its numbers, or words of the refusal
    "timestamp": (pa.array(DAYS), DAYS_SINCE),
    "timestamp with zone": (pa.array(DAYS, pa.timestamp("us", "UTC")), DAYS_SINCE),
    "timestamp, all missing": (pa.array([None, None], pa.timestamp("us")), "no columns of features"),
    "timestamp by code": (pa.array(DAYS).dictionary_encode(), DAYS_SINCE),
    "duration": (pa.array(SPANS), "Timedelta"),
    "date": (pa.array([day.date() for day in DAYS]), DAYS_SINCE),
    "time of day": (pa.array([datetime.time(1), datetime.time(2)]), "time(1, 0)"),
    "text by code": (pa.array(["a", "b"]).dictionary_encode(), [1, 0, 0, 1]),
    "list": (pa.array([[1], [2]]), "row 1"),
    "number by code": (pa.array([3, 1]).dictionary_encode(), [3, 1]),
    "decimal": (pa.array([decimal.Decimal("1.5"), decimal.Decimal("-2")]), [1.5, -2]),
    "boolean": (pa.array([True, False]), [1, 0]),
    "half": (pa.array(np.array([0.5, 2], np.float16)), [0.5, 2]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_parquet_is_numbers_or_refused(tmp_path, kind):
    column, expected = KINDS[kind]
    path = parquet(tmp_path / "a.parquet", list(NUMBERS), column, NUMBERS["label"], NUMBERS["client"])
    if isinstance(expected, str):
        refused(lambda: load_file(path), "a.parquet", "'f'" if "columns" not in expected else "", expected)
    else:
        assert load_file(path, test_fraction=0.0).train["x"].ravel().tolist() == expected


@pytest.mark.parametrize("name", ["label", "client"])
def test_labels_and_clients_are_texts_as_they_are_in_a_csv_file(tmp_path, name):
    for cells in (pa.array([1.0, 2.0]), pa.array([" 1", "2 "]), pa.array([1, 2]).dictionary_encode(), KINDS["date"][0]):
        path = parquet(tmp_path / "a.parquet", list(NUMBERS), *(NUMBERS | {name: cells}).values())
        source = load_file(path, test_fraction=0.0)
        found = source.class_names if name == "label" else tuple(map(str, source.train_groups))
        assert found == (("1", "2") if cells is not KINDS["date"][0] else tuple(str(day.date()) for day in DAYS))
    path = parquet(tmp_path / "a.parquet", list(NUMBERS), *(NUMBERS | {name: pa.array(["a", None])}).values())
    refused(lambda: load_file(path), f"'{name}', row 2")


FRAMES: dict[str, tuple[Any, list[float] | None]] = {  # a DataFrame's column f -> its numbers; None: refused
    "times with zone": (pd.to_datetime(DAYS).tz_localize("UTC"), None), "durations": (pd.to_timedelta(SPANS), None),
    "periods": (pd.period_range("2020", periods=2, freq="D"), None), "objects": (pd.Series(DAYS, dtype=object), None),
    "categories of times": (pd.Categorical(pd.to_datetime(DAYS)), None), "complex": ([1 + 1j, 2], None),
    "Arrow's times": (pd.Series(DAYS).astype(pd.ArrowDtype(pa.timestamp("ns"))), None),
    "Arrow's durations": (pd.Series(SPANS).astype(pd.ArrowDtype(pa.duration("ns"))), None),
    "text": (["1", "2.5"], [1, 2.5]), "categories": (pd.Categorical([3, 4]), [3, 4]),
    "Arrow's decimals": (pd.Series([1.5, 2]).astype(pd.ArrowDtype(pa.decimal128(5, 2))), [1.5, 2]),
}  # fmt: skip


SCHEMA = Schema(Target("y", "number"), dict.fromkeys("fg", ColumnSchema("number", missing="refuse")))


def predicted(frame: pd.DataFrame) -> np.ndarray:
    """The examples of a model of the columns f and g."""
    return as_examples(frame, {"schema": SCHEMA.to_toml()}, {"x": np.zeros(2, np.float32)}, ())["x"]


@pytest.mark.parametrize("kind", FRAMES)
def test_a_column_that_is_predicted_is_numbers_or_refused(kind):
    column, expected = FRAMES[kind]
    frame = pd.DataFrame({"f": column, "g": [0.0, 0.0]})
    if expected is None:
        refused(lambda: predicted(frame), "'f', row 1")
    else:
        assert predicted(frame)[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("names", "twice"),
    [
        (["f", "label", "label"], "'label'"), (["f", "label", "f"], "'f'"), (["f", "label", " label"], "'label'"),
        (["client", "label", "client"], "'client'"), (["label", "f", "\ufefff"], "'f'"),
    ],
)  # fmt: skip
def test_a_name_twice_is_refused(tmp_path, names, twice):
    refused(lambda: load_file(csv(tmp_path / "a.csv", f"{','.join(names)}\n1,2,3\n4,5,6\n")), "a.csv", twice)
    path = parquet(tmp_path / "a.parquet", names, [1, 2], [3, 4], [5, 6])
    refused(lambda: load_file(path), "a.parquet", twice)


def test_a_column_has_one_use_and_an_unused_one_may_stand_twice(tmp_path):
    path = csv(tmp_path / "a.csv", "f,note,note,label\n1,x,y,a\n2,x,y,b\n")
    assert load_file(path, features="f", test_fraction=0.0).columns == ("f",)
    for options in ({"features": ["f", "label"]}, {"features": ["f", "f"]}, {"client": "label", "features": ["f"]}):
        refused(lambda: load_file(path, **options), "a.csv", "more than once")  # noqa: B023


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, mark):
    for text in ("größe,label\n1,☃\n2,b\n", '"größe","label"\r\n1,☃\r\n2,b\r\n'):
        source = load_file(csv(tmp_path / "a.csv", mark + text), test_fraction=0.0)
        assert (source.columns, source.class_names) == (("größe",), ("b", "☃"))
    path = parquet(tmp_path / "a.parquet", [f"{mark}f", "label", "__index_level_0__"], [1, 2], ["a", "b"], [1, 0])
    assert load_file(path, test_fraction=0.0).columns == ("f",)
    refused(lambda: load_file(csv(tmp_path / "b.csv", "größe,label\n1,a\n", "latin-1")), "b.csv", "utf-8")


TEXTS: list[tuple[str, dict[str, str], list[float] | str]] = [  # file, options -> column f, or the refusal
    ("label,f\na,1.5\nb,2\n", {}, [1.5, 2]), ("label;f\na;1.5\nb;2\n", {}, [1.5, 2]),
    ("label\tf\na\t1.5\nb\t2\n", {}, [1.5, 2]), ("label|f\na|1.5\nb|2\n", {}, [1.5, 2]),
    ("label;f\na;1,5\nb;-2,25e1\n", {"decimal": ","}, [1.5, -22.5]),
    ("label,x;f\na;1,5\nb;2,5\n", {"decimal": ",", "label": "label,x"}, [1.5, 2.5]),
    ("label;f\na;1,5\nb;2\n", {}, [1.5, 2]), ("label;f\na;1,5\nb;NA\na;2\n", {}, [1.5, 0, np.nan, 1, 2, 0]),
    ("label:f\na:1\nb:2\n", {"separator": ":"}, [1, 2]),
    ("label\tf\na\t1\nb\t2\n", {"separator": r"\t"}, [1, 2]), ("label;f\na;1\n", {"separator": ","}, "lacks 'label'"),
    ("label;f;n\n" + 'a;1,5;"x\ny"\n' * 6, {"features": "f"}, [1.5] * 6),
    ("label,f\na,1\n", {"separator": ";;"}, "separator"),
    ("id;label;f\n1.234.567;a;1,5\n1.234.568;b;2\n", {"decimal": ",", "features": "f"}, [1.5, 2]),
    ("label,f\na,1\n", {"separator": ",", "decimal": ","}, "separator"),
    ("label,f\na,1\n", {"decimal": ";"}, "decimal"), ("label;f\na;1,5\nb;1.234\n", {"decimal": ","}, "thousands"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "expected"), TEXTS)
def test_separators_and_decimals(tmp_path, text, options, expected):
    path = csv(tmp_path / "a.csv", text)
    if isinstance(expected, str):
        refused(lambda: load_file(path, **options), expected)
    else:
        np.testing.assert_array_equal(load_file(path, **options, test_fraction=0.0).train["x"].ravel(), expected)


def test_a_model_reads_new_cells_as_those_that_it_was_trained_on(tmp_path):
    cells = [f"{i / 10};{i % 2};{i % 3}".replace(".", ",") for i in range(30)]
    path = csv(tmp_path / "a.csv", "f;label;client\n" + "\n".join(cells))
    task = fx.load_task(f"file:{path}", decimal=",", model="logistic")
    assert "1 feature (f), separated by ';'" in task.notes[1] and task.spec["decimal"] == ","
    fields = {"x": np.zeros(1, np.float32)}
    examples, _ = read_inputs(csv(tmp_path / "b.csv", "n;f\n1;2,5\n"), task.inputs, fields, ())
    assert examples["x"].tolist() == [[2.5]]
    empty, _ = read_inputs(csv(tmp_path / "d.csv", "f\n1\n\n2\n"), task.inputs, fields, ())
    assert empty["x"].ravel().tolist() == [1, pytest.approx(task.inputs["fill"][0]), 2]
    refused(lambda: read_inputs(csv(tmp_path / "c.csv", "n;f\n1;1.234\n"), task.inputs, fields, ()), "thousands")


BYTES = np.concatenate([[0, 255], RNG.integers(0, 256, 24 * 16 - 2)]).reshape(24, 4, 4, 1)


def image_task(folder: Path, x: np.ndarray) -> fx.Task:
    np.savez(folder / "a.npz", x=x, y=np.arange(24) % 2, client=np.arange(24) % 3)
    return fx.load_task(f"file:{folder / 'a.npz'}", model="logistic")


@pytest.mark.parametrize(
    ("x", "white"),
    [
        *((BYTES.astype(dtype), 255) for dtype in ("u1", "i4", "f2", "f4")), (BYTES.astype("f4") * 257, 65535),
        ((BYTES > 99).astype("u1"), 1), (BYTES / 255, 1), (BYTES / 50 - 2, None),
        (BYTES - 100, "int64 from -100 to 155"), (BYTES + 0.25, "float64 from 0.25 to 255.25"),
    ],
)  # fmt: skip
def test_white_is_found_by_the_range_of_the_pixels(x, white):
    if isinstance(white, str):
        refused(lambda: find_white("a.npz", x), "a.npz", white)
    else:
        assert find_white("a.npz", x) == white


def test_pixels_are_divided_by_white(tmp_path):
    task, scaled = image_task(tmp_path, BYTES * 257), image_task(tmp_path, BYTES / 255)
    assert task.inputs == {"white": 65535} and "divided by 65535" in task.notes[1] and "by" not in scaled.notes[1]
    params = jax.jit(task.init)(jax.random.key(0))
    losses = [jax.jit(t.loss)(params, t.clients.client(0), jax.random.key(0)) for t in (task, scaled)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


PREDICTED: list[tuple[float | None, str, dict[str, str | None]]] = [  # white, type -> what is predicted, or refused
    (255, "u1", {"i8": None, "f4": None, "?": "0 to 255", "f4/255": "0 to 255", "u2*257": "0 to 255"}),
    (1, "f4", {"f4/255": None, "?": None, "u1": "0 to 1", "i8": "0 to 1"}),
    (65535, "i4", {"u2*257": None, "u1": "0 to 65535", "f4/255": "0 to 65535"}),
    (None, "f4", {"f4-99": None, "u1": "standardised floats"}),
]


@pytest.mark.parametrize(("white", "dtype", "cases"), PREDICTED)
def test_new_pixels_have_the_range_of_those_trained_on(white, dtype, cases):
    forms = {"f4/255": BYTES / 255, "u2*257": (BYTES * 257).astype("u2"), "f4-99": BYTES - 99.0}
    inputs, fields = {"white": white}, {"x": np.zeros((4, 4, 1), dtype)}
    for form, words in cases.items():
        x = forms.get(form, BYTES > 99 if form == "?" else BYTES.astype(form[:2]))
        if words is None:
            assert np.array_equal(as_examples(x, inputs, fields, ())["x"], x.astype(dtype))
        else:
            refused(lambda: as_examples(x, inputs, fields, ()), "'x'", words, str(x.dtype))  # noqa: B023

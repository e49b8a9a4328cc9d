"""Tables of one's own: which columns, and cells that are refused by column and row."""

import sys

import numpy as np
import pytest

from fedoptax.data.own import table
from fedoptax.errors import DataError, UsageError
from own_files import table_of, vectors, write_csv, write_parquet


def assert_refused(path, *words, **options):
    with pytest.raises(DataError) as error:
        table.load(path, **options)
    message = str(error.value)
    assert "\n" not in message
    for word in (path.name, *words):
        assert word in message


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def test_columns_can_be_named(tmp_path):
    train = vectors()
    columns = table_of(train)
    columns = {"kind": columns.pop("label"), "site": columns.pop("client"), **columns, "note": ["text"] * len(train.y)}
    for name, write in (("a.csv", write_csv), ("a.parquet", write_parquet)):
        path = write(tmp_path / name, columns)
        source = table.load(path, label="kind", client="site", features=["f2", "f0"])
        np.testing.assert_array_equal(source.train["x"], train.x[:, [2, 0]])
        np.testing.assert_array_equal(source.train_groups, train.client)
        assert table.load(path, label="kind", features=["f0"]).train_groups is None
        assert_refused(path, "column 'note', row 1", "'text'", label="kind", client="site")
        assert_refused(path, "lacks the column 'label'", "'kind', 'site', 'f0'")
        assert_refused(path, "lacks the column 'f9'", label="kind", features=["f9"])


def test_types_of_features(tmp_path):
    columns = {"label": [0, 1], "i": [1, -2], "f": [0.5, 1e3], "b": [True, False]}
    for name, write in (("a.csv", write_csv), ("a.parquet", write_parquet)):
        source = table.load(write(tmp_path / name, columns))
        assert source.train["x"].dtype == np.float32
        np.testing.assert_array_equal(source.train["x"], [[1, 0.5, 1], [-2, 1000, 0]])


def test_text_of_many_languages_and_quotes(tmp_path):
    path = text(tmp_path / "a.csv", '\ufefff,label,client\r\n1,"a ""b"", c",Zoë\r\n\r\n2,NA,李\r\n')
    source = table.load(path)
    np.testing.assert_array_equal(source.train["y"], [1, 0])  # NA is a name, not a missing cell
    np.testing.assert_array_equal(source.train_groups, ["Zoë", "李"])


CELLS = {
    "text": ("f,g,label\n1,2,a\n3,high,b\n", ["column 'g', row 2", "'high'"]),
    "missing": ("f,g,label\n1,,a\n", ["column 'g', row 1", "missing"]),
    "short row": ("f,label,g\n1,a,2\n1,a\n", ["column 'g', row 2", "missing"]),
    "nan": ("f,label\n1,a\nnan,b\n", ["column 'f', row 2", "'nan'"]),
    "inf": ("f,label\n1,a\n-inf,b\n", ["column 'f', row 2", "-inf"]),
    "beyond float32": ("f,label\n1e39,a\n", ["column 'f', row 1", "float32"]),
    "a date": ("f,label\n2020-01-01,a\n", ["column 'f', row 1", "'2020-01-01'"]),
    "a long cell": (f"f,label\n{'x' * 1000},a\n", ["column 'f', row 1", "xxx…"]),
    "no label": ("f,label\n1,a\n2,\n", ["column 'label', row 2", "missing"]),
    "no client": ("f,label,client\n1,a,\n2,b,c\n", ["column 'client', row 1", "missing"]),
    "long row": ("f,label\n1,a\n2,b,9\n", ["Expected 2 fields"]),
    "all rows long": ("f,label\n1,a,9\n2,b,9\n", ["cannot be read"]),
    "same name twice": ("f,label,f\n1,a,2\n", ["two columns named 'f'"]),
    "a name of two lines": ('"a\nb",label\nx,a\n', ["column 'a\\nb', row 1", "'x'"]),
    "only names": ("label,client\na,b\n", ["no columns of features"]),
    "no rows": ("f,label\n", ["no training examples"]),
    "nothing": ("", ["0 columns"]),
    "open quote": ('f,label\n1,"a\n', ["cannot be read"]),
    "no header": ("1,2\n3,4\n", ["lacks the column 'label'"]),
}


@pytest.mark.parametrize("kind", CELLS)
def test_wrong_cells_are_named(tmp_path, kind):
    content, words = CELLS[kind]
    assert_refused(text(tmp_path / "a.csv", content), *words)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"f": [1.0, None], "label": [0, 1]}, ["column 'f', row 2", "missing"]),
        ({"f": [1, None], "label": [0, 1]}, ["column 'f', row 2", "missing"]),
        ({"f": ["x", "1"], "label": [0, 1]}, ["column 'f', row 1", "'x'"]),
        ({"f": [[1, 2], [3]], "label": [0, 1]}, ["column 'f', row 1", "array([1, 2])"]),
        ({"f": np.array(["2020", "2021"], "datetime64[ns]"), "label": [0, 1]}, ["column 'f'", "datetime64"]),
        ({"f": [1, 2], "label": [0.5, 1.0]}, ["column 'label'", "0.5"]),
        ({"f": [1, 2], "label": [None, 1]}, ["column 'label', row 1", "missing"]),
        ({"f": [1, 2], "label": [b"\xff", b"b"]}, ["column 'label'", "whole number or text"]),
        ({"f": [1, 2], "label": ["a", None]}, ["column 'label', row 2", "missing"]),
        ({"f": [1, 2], "label": ["a", "b"], "client": ["", "b"]}, ["column 'client', row 1", "missing"]),
    ],
)
def test_wrong_cells_of_parquet_are_named(tmp_path, columns, words):
    assert_refused(write_parquet(tmp_path / "a.parquet", columns), *words)


def test_the_split_column_says_train_or_test(tmp_path):
    path = text(tmp_path / "a.csv", "f,label,part\n1,a,train\n2,b,test\n3,a,dev\n")
    assert_refused(path, "column 'part'", "'dev'", "'train' or 'test'", split="part")
    assert_refused(text(path, "f,label,part\n1,a,test\n"), "no training examples", split="part")
    source = table.load(text(path, "f,label,part\n1,a,train\n2,b,train\n"), split="part")
    assert len(source.test["y"]) == 0 and source.input_shape == (1,)


def test_short_rows_cannot_fill_the_memory(tmp_path):
    """20,001 columns in the header and 10,000 rows of one cell: 60 KB of text, 1.6 GB of cells."""
    header = ",".join([f"f{i}" for i in range(20_000)] + ["label"])
    path = text(tmp_path / "a.csv", header + "\n" + "1\n" * 10_000)
    assert_refused(path, "its cells take", "1073741824", max_bytes=2**30)


def test_a_long_name_that_repeats_is_refused_without_its_copies(tmp_path):
    """A label of 100 KB 100,000 times: 10 GB as text, one entry of a dictionary in the file."""
    pa = pytest.importorskip("pyarrow")
    label = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), ["x" * 100_000])
    path = write_parquet(tmp_path / "a.parquet", {"f": np.zeros(100_000), "label": label})
    assert_refused(path, "column 'label', row 1", "100000 characters")


def test_limits(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"f": np.zeros(10_000), "label": np.zeros(10_000, int)})
    assert path.stat().st_size < 5_000
    assert_refused(path, "160000 bytes", "at most 100000 (max_bytes)", max_bytes=100_000)
    assert_refused(text(tmp_path / "b.csv", "," * 100_001), "100002 columns")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"PAR1" + bytes(40) + b"PAR1", b"a,label\n\xff,1\n"])
def test_damaged_files_are_refused_in_one_line(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    assert_refused(path)


def test_cut_and_flipped_parquet_is_refused_or_read(tmp_path):
    """Whatever happens to its bytes, there is a table or one line."""
    good = write_parquet(tmp_path / "good.parquet", table_of(vectors())).read_bytes()
    rng, messages = np.random.default_rng(0), []
    path = tmp_path / "a.parquet"
    for _ in range(150):
        data = bytearray(good[: rng.integers(8, len(good) + 1)] if rng.random() < 0.2 else good)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        path.write_bytes(data)
        try:
            table.load(path)
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


def test_parquet_without_pyarrow_comes_with_a_remedy(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", table_of(vectors()))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"^path: .*a\.parquet' given.*pip install pyarrow"):
        table.load(path)


def test_another_ending_and_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"^path: .*a\.xlsx' given.*\.csv.*\.parquet"):
        table.load(tmp_path / "a.xlsx")
    assert_refused(tmp_path / "a.csv", "not a file")

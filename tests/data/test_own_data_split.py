"""A test part held out of every client; the one entry for files and folders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisions import quick
from fedoptax.data.own import holdout, load_file
from fedoptax.data.sources import Source
from fedoptax.errors import DataError, UsageError
from own_files import (
    assert_same_source,
    pictures,
    table_of,
    vectors,
    write_csv,
    write_folder,
    write_npz,
    write_parquet,
)


def source_of(groups):
    n = len(groups)
    train = {"x": np.arange(n)[:, None], "y": np.arange(n, dtype=np.int32) % 3}
    test = {name: array[:0] for name, array in train.items()}
    return Source(train, test, 3, (1,), np.array(groups), np.array(groups)[:0])


@quick
@given(st.lists(st.sampled_from("abc"), min_size=30, max_size=60), st.floats(0.1, 0.95), st.integers(0, 3))
def test_the_stated_fraction_of_every_client_is_held_out(groups, fraction, seed):
    whole = source_of(groups)
    source = holdout(whole, fraction, seed)
    ids = np.concatenate([source.train["x"], source.test["x"]])[:, 0]
    np.testing.assert_array_equal(np.sort(ids), np.arange(len(groups)))  # each example in one part
    for part, of_part in ((source.train, source.train_groups), (source.test, source.test_groups)):
        assert np.all(np.diff(part["x"][:, 0]) > 0)  # in the order of the file
        np.testing.assert_array_equal(part["y"], part["x"][:, 0] % 3)
        np.testing.assert_array_equal(of_part, whole.train_groups[part["x"][:, 0]])
    for client in set(groups):
        size, kept = groups.count(client), int((source.train_groups == client).sum())
        assert kept >= 1
        assert abs(size - kept - fraction * size) <= 0.5 + 1e-9 or kept == 1
    assert_same_source(source, holdout(whole, fraction, seed))


def test_small_clients_keep_an_example_and_another_seed_takes_others():
    source = holdout(source_of(["a", "b", "b", *"ccccc"]), 0.9, seed=0)
    assert list(source.train_groups) == ["a", "b", "c"]
    many = source_of(["a"] * 50)
    assert not np.array_equal(holdout(many, 0.5, 0).test["x"], holdout(many, 0.5, 1).test["x"])


def test_data_without_clients_is_split_as_one():
    source = holdout(source_of(["a"] * 10)._replace(train_groups=None, test_groups=None), 0.3, seed=0)
    assert (len(source.train["y"]), len(source.test["y"])) == (7, 3)
    assert source.train_groups is None and source.test_groups is None


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_wrong_fraction_is_named(fraction):
    with pytest.raises(UsageError, match=r"^fraction: .*given.*allowed"):
        holdout(source_of(["a"] * 10), fraction, 0)


def test_what_cannot_be_held_out():
    with pytest.raises(UsageError, match="too small for clients of 2 examples"):
        holdout(source_of(["a", "a", "b", "b"]), 0.1, 0)
    with pytest.raises(UsageError, match="3 test examples already"):
        holdout(holdout(source_of(["a"] * 10), 0.3, 0), 0.3, 0)


# --- load_file


@pytest.mark.parametrize("name", ["a.npz", "a.NPZ", "a.csv", "a.parquet", "folder"])
def test_the_name_tells_the_format(tmp_path, name):
    path, train = tmp_path / name, vectors(n=40)
    if name == "folder":
        write_folder(path, pictures(each=5))
    elif name.lower() == "a.npz":
        with path.open("wb") as file:
            write_npz(file, train)
    else:
        (write_csv if name == "a.csv" else write_parquet)(path, table_of(train))
    source = load_file(str(path))
    total = 30 if name == "folder" else 40
    assert len(source.train["y"]) + len(source.test["y"]) == total
    assert len(source.test["y"]) == pytest.approx(total / 5, abs=2)
    assert set(source.test_groups) <= set(source.train_groups)
    assert len(load_file(path, test_fraction=0).test["y"]) == 0
    assert len(load_file(path, test_fraction=0.5).test["y"]) == pytest.approx(total / 2, abs=2)
    assert_same_source(source, load_file(path, seed=0))
    assert not np.array_equal(source.test["x"], load_file(path, seed=1).test["x"])


def test_a_test_part_of_the_file_is_kept(tmp_path):
    path = write_npz(tmp_path / "a.npz", vectors(0, 20), vectors(1, 6))
    source = load_file(path)
    assert (len(source.train["y"]), len(source.test["y"])) == (20, 6)
    assert_same_source(source, load_file(path, test_fraction=0))
    with pytest.raises(UsageError, match=r"^test_fraction: 0.3 given, but .*a\.npz' has test examples"):
        load_file(path, test_fraction=0.3)


def test_names_of_columns_reach_the_reader(tmp_path):
    train = vectors(n=20)
    columns = table_of(train)
    columns = {"kind": columns.pop("label"), "site": columns.pop("client"), **columns}
    source = load_file(write_csv(tmp_path / "a.csv", columns), label="kind", client="site", test_fraction=0)
    np.testing.assert_array_equal(source.train_groups, train.client)
    np.savez(tmp_path / "a.npz", x=train.x, kind=train.y, site=train.client)
    again = load_file(tmp_path / "a.npz", label="kind", client="site", test_fraction=0)
    assert_same_source(source, again)
    write_folder(tmp_path / "folder", pictures(each=5))
    assert load_file(tmp_path / "folder", image_size=3).input_shape == (3, 3, 3)


@pytest.mark.parametrize(
    ("name", "options", "start"),
    [
        ("a.json", {}, "path: "),
        ("a", {}, "path: "),
        ("folder", {"client": "c"}, "client: 'c' given"),
        ("folder", {"label": "c"}, "label: 'c' given"),
        ("a.csv", {"image_size": 8}, "image_size: 8 given"),
        ("a.csv", {"test_fraction": 1.0}, "test_fraction: 1.0 given"),
        ("a.csv", {"test_fraction": -0.1}, "test_fraction: -0.1 given"),
    ],
)
def test_wrong_options_are_named(tmp_path, name, options, start):
    write_csv(tmp_path / "a.csv", table_of(vectors()))
    write_folder(tmp_path / "folder", pictures())
    for other in ("a.json", "a"):
        (tmp_path / other).write_text("{}")
    with pytest.raises(UsageError) as error:
        load_file(tmp_path / name, **options)
    assert str(error.value).startswith(start) and "\n" not in str(error.value)


def test_an_unknown_ending_comes_with_what_is_allowed(tmp_path):
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(UsageError, match=r"\.npz, \.csv, \.tsv, \.parquet, or a folder of images"):
        load_file(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"a\.csv: not found"):
        load_file(tmp_path / "a.csv")

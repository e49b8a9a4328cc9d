"""One's own data is the same source in whatever format it comes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedoptax.data.own import huggingface, image_folder, load_file, npz, table, torch_dataset
from fedoptax.data.partition import natural
from own_files import (
    Items,
    Part,
    assert_same_source,
    pictures,
    table_of,
    vectors,
    write_csv,
    write_folder,
    write_npz,
    write_parquet,
)

names = st.one_of(
    st.lists(st.integers(-3, 12).map(str), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["", "0"]).flatmap(lambda z: st.integers(0, 9).map(lambda i: z + str(i))), min_size=2),
    st.lists(st.text("abÄ漢 1", min_size=1, max_size=5).map(lambda t: f"n{t}e"), min_size=1, max_size=4),
)


def from_huggingface(train, test, x_type):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(x=x_type(datasets), label=datasets.Value("string"), client=datasets.Value("string"))

    def split(part):
        x = [Image.fromarray(row.squeeze()) for row in part.x] if part.x.dtype == np.uint8 else part.x
        columns = {"x": list(x), "label": list(part.y), "client": list(part.client)}
        return datasets.Dataset.from_dict(columns, features=features)

    return huggingface.from_dataset(datasets.DatasetDict(train=split(train), test=split(test)))


def from_torch(train, test):
    items = [Items(part.x, part.y) for part in (train, test)]
    return torch_dataset.from_dataset(
        items[0], train.client, test=items[1], test_client_of=lambda i: str(test.client[i])
    )


@settings(deadline=None, max_examples=12)
@given(labels=names, clients=names, seed=st.integers(0, 9))
def test_vectors_are_the_same_source_in_every_format(tmp_path_factory, labels, clients, seed):
    folder = tmp_path_factory.mktemp("data")
    train, test = vectors(seed, 25, 3, labels, clients), vectors(seed + 1, 7, 3, labels, clients)
    columns = table_of(train, test)
    source = npz.load(write_npz(folder / "a.npz", train, test))
    np.testing.assert_array_equal(source.train["x"], train.x)
    assert source.train["y"].dtype == np.int32
    for name, write in (("a.csv", write_csv), ("a.tsv", write_csv), ("a.parquet", write_parquet)):
        assert_same_source(source, table.load(write(folder / name, columns), split="split"))
    assert_same_source(source, from_huggingface(train, test, lambda d: d.List(d.Value("float32"))))
    assert_same_source(source, from_torch(train, test))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_the_same_source_in_every_format(tmp_path, channels):
    train, test = pictures(0, channels=channels), pictures(1, each=1, channels=channels)
    write_folder(tmp_path / "images" / "train", train)
    write_folder(tmp_path / "images" / "test", test)
    source = image_folder.load(tmp_path / "images")
    np.testing.assert_array_equal(source.train["x"], train.x)
    assert source.num_classes == 3 and source.input_shape == (5, 4, channels)
    assert_same_source(source, npz.load(write_npz(tmp_path / "a.npz", train, test)))
    assert_same_source(source, from_huggingface(train, test, lambda d: d.Image()))
    assert_same_source(source, from_torch(train, test))
    as_images = [Part([Image.fromarray(x.squeeze()) for x in part.x], part.y, part.client) for part in (train, test)]
    assert_same_source(source, from_torch(*as_images))


def test_whole_numbers_as_numbers_or_as_text(tmp_path):
    train = vectors(labels=("2", "10", "7"), clients=("3", "20", "-1"))
    numbers = Part(train.x, train.y.astype(np.int64), train.client.astype(np.int16))
    source = npz.load(write_npz(tmp_path / "text.npz", train))
    assert_same_source(source, npz.load(write_npz(tmp_path / "numbers.npz", numbers)))
    assert_same_source(source, table.load(write_parquet(tmp_path / "numbers.parquet", table_of(numbers))))
    assert source.train_groups.dtype == np.int64
    assert source.class_names == ("2", "7", "10")
    np.testing.assert_array_equal(source.train_groups, numbers.client)
    np.testing.assert_array_equal(np.array([2, 7, 10])[source.train["y"]], numbers.y)  # in the order of the numbers


def test_names_that_only_look_like_numbers_stay_names(tmp_path):
    train = vectors(labels=("7", "07"), clients=("1", "1.0"))
    source = npz.load(write_npz(tmp_path / "a.npz", train))
    assert source.class_names == ("07", "7")
    np.testing.assert_array_equal(source.train_groups, train.client)
    np.testing.assert_array_equal(np.array(["07", "7"])[source.train["y"]], train.y)


def test_the_natural_clients_of_a_file(tmp_path):
    train = vectors(clients=("zoe", "bob"))
    source = load_file(write_csv(tmp_path / "a.csv", table_of(train)), test_fraction=0)
    parts = natural(source.train_groups)
    assert [sorted(set(train.client[part])) for part in parts] == [["bob"], ["zoe"]]

"""Data sets of Hugging Face: which columns and splits, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from fedoptax.data.own import huggingface
from fedoptax.errors import DataError, UsageError
from own_files import pictures, vectors

datasets = pytest.importorskip("datasets")


def make(columns, **features):
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features) if features else None)


def assert_refused(dataset, *words, **options):
    with pytest.raises(DataError) as error:
        huggingface.from_dataset(dataset, **options)
    message = str(error.value)
    assert message.startswith("dataset: ") and "\n" not in message
    for word in words:
        assert word in message


def test_several_columns_of_numbers_are_features():
    data = make(
        {"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "c": [True, False, True], "client": [7, 7, 8], "label": [1, 0, 1]}
    )
    source = huggingface.from_dataset(data)
    np.testing.assert_array_equal(source.train["x"], [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1]])
    assert source.train["x"].dtype == np.float32
    np.testing.assert_array_equal(source.train_groups, [7, 7, 8])
    np.testing.assert_array_equal(huggingface.from_dataset(data, x=["b", "a"]).train["x"][0], [0.5, 1])
    assert huggingface.from_dataset(data, x="a").train["x"].dtype == np.int32


def test_arrays_of_several_dimensions():
    rows = np.arange(24).reshape(4, 2, 3)
    nested = datasets.List(datasets.List(datasets.Value("int64")))
    for feature in (nested, datasets.Array2D((2, 3), "int64")):
        data = make({"m": rows.tolist(), "label": list("abab")}, m=feature, label=datasets.Value("string"))
        source = huggingface.from_dataset(data)
        np.testing.assert_array_equal(source.train["x"], rows)
        assert source.train_groups is None


def test_class_labels_keep_their_order_and_number():
    labels = datasets.ClassLabel(names=["z", "unused", "a"])
    data = make(
        {"f": [1.0, 2.0], "label": [2, 0], "client": [0, 1]},
        f=datasets.Value("float32"),
        label=labels,
        client=datasets.ClassLabel(names=["zoe", "ann"]),
    )
    source = huggingface.from_dataset(data)
    assert source.class_names == ("z", "unused", "a")
    np.testing.assert_array_equal(source.train["y"], [2, 0])
    np.testing.assert_array_equal(source.train_groups, ["zoe", "ann"])
    assert_refused(
        make({"f": [1.0, 2.0], "label": [0, -1]}, f=datasets.Value("float32"), label=labels), "row 2", "missing"
    )
    assert_refused(make({"f": [1.0, 2.0], "label": [0, None]}, f=datasets.Value("float32"), label=labels), "row 2")


def test_splits_may_number_the_classes_differently_but_not_have_others():
    def split(names):
        return make({"f": [1.0], "label": [0]}, f=datasets.Value("float32"), label=datasets.ClassLabel(names=names))

    source = huggingface.from_dataset(datasets.DatasetDict(train=split(["a", "b"]), test=split(["b", "a"])))
    assert (source.train["y"], source.test["y"]) == ([0], [1])
    assert_refused(datasets.DatasetDict(train=split(["a", "b"]), test=split(["a", "c"])), "class 'c'", "2")


def test_more_rows_than_a_batch_in_the_order_of_a_selection():
    data = make({"f": np.arange(2500.0), "label": np.arange(2500) % 3, "client": [f"c{i % 7}" for i in range(2500)]})
    order = np.random.default_rng(0).permutation(2500)
    source = huggingface.from_dataset(data.select(order))
    np.testing.assert_array_equal(source.train["x"][:, 0], order)
    np.testing.assert_array_equal(source.train["y"], order % 3)
    assert list(source.train_groups[:9]) == [f"c{i % 7}" for i in order[:9]]


def test_a_format_that_was_set_does_not_matter():
    data = make({"f": [1.0, 2.0], "label": ["a", "b"]}).with_format("pandas")
    np.testing.assert_array_equal(huggingface.from_dataset(data).train["x"], [[1.0], [2.0]])


def test_only_train_and_test_are_taken():
    data = make({"f": [1.0, 2.0], "label": ["a", "b"]})
    splits = datasets.DatasetDict(validation=data, test=data.select([1]), train=data)
    source = huggingface.from_dataset(splits)
    assert (len(source.train["y"]), len(source.test["y"])) == (2, 1)
    assert len(huggingface.from_dataset(datasets.DatasetDict(train=data, test=data.select([]))).test["y"]) == 0
    assert_refused(datasets.DatasetDict(dev=data), "'train'", "dev")


def images(x, **more):
    data = {"image": [Image.fromarray(row.squeeze()) for row in x], **more}
    return make(data, image=datasets.Image(), **{name: datasets.Value("string") for name in more})


def test_images_are_decoded_and_resized():
    part = pictures()
    data = images(part.x, label=list(part.y), client=list(part.client))
    np.testing.assert_array_equal(huggingface.from_dataset(data).train["x"], part.x)
    assert huggingface.from_dataset(data, image_size=(3, 2)).input_shape == (3, 2, 3)
    mixed = datasets.DatasetDict(train=images(part.x[:1, :, :, 0], label=["a"]), test=images(part.x[:1], label=["a"]))
    assert huggingface.from_dataset(mixed).input_shape == (5, 4, 3)
    assert_refused(data, "bytes", max_bytes=100)


def test_wrong_images_are_named():
    part = pictures()
    sizes = images([part.x[0], part.x[1, :3]], label=["a", "b"])
    assert_refused(sizes, "column 'image', row 2", "3×4", "image_size=")
    assert_refused(images(part.x[:2], label=["a", "b"], note=["c", "d"]), "image, note", "x=")
    stored = [{"bytes": b"no image", "path": None}]
    broken = make({"image": stored, "label": ["a"]}, image=datasets.Image(), label=datasets.Value("string"))
    assert_refused(broken, "column 'image', row 1", "cannot be read as an image")
    undecoded = broken.cast_column("image", datasets.Image(decode=False))
    assert_refused(undecoded, "column 'image', row 1", "dict given")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"f": [1.0, None], "label": [0, 1]}, ["column 'f', row 2", "NaN"]),
        ({"f": ["a", "b"], "label": [0, 1]}, ["column 'f'", "numbers"]),
        ({"f": [[1], [2, 3]], "label": [0, 1]}, ["column 'f'", "one shape"]),
        ({"f": [[1, 2], [3, 4]], "g": [1, 2], "label": [0, 1]}, ["column 'f'", "(2,)"]),
        ({"f": [1, 2], "label": [0.5, 1.0]}, ["column 'label', row 1", "0.5"]),
        ({"f": [1, 2], "label": ["a", None]}, ["column 'label', row 2", "None"]),
        ({"f": [1, 2], "label": ["a", ""]}, ["column 'label', row 2", "missing"]),
        ({"f": [1, 2], "label": [[1], [2]]}, ["column 'label', row 1", "[1]"]),
        ({"f": [1, 2], "kind": [0, 1]}, ["lacks the column 'label'", "f, kind"]),
        ({"label": [0, 1]}, ["no columns"]),
        ({"f": [], "label": []}, ["no training examples"]),
    ],
)
def test_wrong_columns_are_named(columns, words):
    assert_refused(make(columns), *words)


def test_limits_and_names_that_are_missing():
    train = vectors(n=5)
    data = make({"x": train.x.tolist(), "label": list(train.y)})
    assert_refused(data, "more than 10 bytes", max_bytes=10)
    assert_refused(data, "'writer'", client="writer")
    assert_refused(datasets.DatasetDict(train=data, test=data.remove_columns("x")), "split 'test'", "'x'")


@pytest.mark.parametrize("given", [[1, 2], None, {"train": [1]}])
def test_what_is_no_data_set(given):
    with pytest.raises(UsageError, match=r"^dataset: \w+ given; a datasets.Dataset or DatasetDict is allowed"):
        huggingface.from_dataset(given)


def test_a_streaming_data_set_is_refused():
    with pytest.raises(UsageError, match="IterableDataset given"):
        huggingface.from_dataset(make({"f": [1], "label": [0]}).to_iterable_dataset())

"""Map-style data sets of PyTorch: their protocol alone, and the real ones where torch is."""

import numpy as np
import pytest
from PIL import Image

from fedoptax.data.own import torch_dataset
from fedoptax.errors import DataError, UsageError
from own_files import Items, pictures, vectors


def assert_refused(kind, call, *words):
    with pytest.raises(kind) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


class Tensor:
    """As much of a tensor as is used; one that has a gradient refuses to be an array."""

    def __init__(self, values, has_gradient=False):
        self.values, self.has_gradient = np.asarray(values), has_gradient

    @property
    def ndim(self):
        return self.values.ndim

    def item(self):
        return self.values.item()

    def __array__(self, dtype=None, copy=None):
        if self.has_gradient:
            raise RuntimeError("Can't call numpy() on\nTensor that requires grad")
        return self.values


def test_tensors_become_arrays_and_clients_come_from_a_function_or_an_array():
    part = vectors(n=8, labels=("3", "12"))
    items = Items([Tensor(x) for x in part.x], [Tensor(int(y)) for y in part.y])
    source = torch_dataset.from_dataset(items, lambda i: Tensor(i // 4))
    np.testing.assert_array_equal(source.train["x"], part.x)
    np.testing.assert_array_equal(np.array([3, 12])[source.train["y"]], part.y.astype(int))
    np.testing.assert_array_equal(source.train_groups, [0, 0, 0, 0, 1, 1, 1, 1])
    assert torch_dataset.from_dataset(items).train_groups is None
    for client_of in (list(part.client), part.client.astype(object)):
        np.testing.assert_array_equal(torch_dataset.from_dataset(items, client_of).train_groups, part.client)


def test_every_item_is_kept_as_it_was_read_first_to_last():
    """A random transform gives another item at every reading."""

    class Random:
        readings = 0

        def __len__(self):
            return 5

        def __getitem__(self, i):
            self.readings += 1
            return np.array([i, self.readings]), self.readings

    data = Random()
    source = torch_dataset.from_dataset(data)
    np.testing.assert_array_equal(source.train["x"][:, 0], np.arange(5))
    assert data.readings == 6  # the first is looked at once more
    np.testing.assert_array_equal(source.train["x"][:, 1], 2 + source.train["y"])  # x and y of one reading


def test_channels_first_become_channels_last():
    part = pictures()
    items = Items(np.moveaxis(part.x, -1, 1) / np.float32(255), part.y)
    source = torch_dataset.from_dataset(items, channels_first=True)
    assert source.input_shape == (5, 4, 3)
    np.testing.assert_allclose(source.train["x"] * 255, part.x, rtol=1e-6)
    assert torch_dataset.from_dataset(items).input_shape == (3, 5, 4)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([[1.0], [2.0, 3.0]], [0, 1], ["item 1", "float64[2]", "float64[1]"]),
        ([np.float32([1]), np.float64([1])], [0, 1], ["item 1", "float64[1]", "float32[1]"]),
        ([[1.0], [np.nan]], [0, 1], ["x, row 2", "NaN"]),
        (["a", "b"], [0, 1], ["x", "<U1", "numbers"]),
        ([[1.0], [2.0]], [0.5, 1], ["y, row 1", "0.5"]),
        ([[1.0], [2.0]], [[0, 1], [1, 0]], ["y, row 1", "[0, 1]"]),
        ([Tensor([1.0], has_gradient=True)], [0], ["item 0", "requires grad"]),
        ([Image.new("L", (2, 2)), Image.new("L", (3, 2))], [0, 1], ["item 1", "2×3"]),
        ([], [], ["no examples"]),
    ],
)
def test_wrong_items_are_named(x, y, words):
    assert_refused(DataError, lambda: torch_dataset.from_dataset(Items(x, y)), "dataset", *words)


@pytest.mark.parametrize("items", [[1, 2], [(1, 2, 3)], ["ab"], [{"x": 1, "y": 2}]])
def test_items_that_are_no_pairs(items):
    assert_refused(DataError, lambda: torch_dataset.from_dataset(items), "item 0", "a pair (x, y) is allowed")


def test_wrong_arguments_are_named():
    items = Items(np.zeros((3, 2), np.float32), [0, 1, 0])
    load = torch_dataset.from_dataset
    assert_refused(UsageError, lambda: load(5), "dataset: int given")
    assert_refused(UsageError, lambda: load(items, [0, 1]), "client_of: shape (2,) given", "3 items")
    assert_refused(DataError, lambda: load(items, [0.5, 1, 1]), "client_of", "float64")
    assert_refused(DataError, lambda: load(items, [0, 1, 1], test=items), "clients are given for one")
    assert_refused(DataError, lambda: load(items, max_bytes=20), "3 items take 24 bytes", "at most 20")
    assert_refused(UsageError, lambda: load(items, test=5), "test: int given")


def test_errors_of_the_data_set_itself_are_not_hidden():
    class Fails(Items):
        def __getitem__(self, i):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        torch_dataset.from_dataset(Fails([1], [0]))


def test_real_torch():
    torch = pytest.importorskip("torch")
    x, y = torch.arange(12.0).reshape(4, 3), torch.tensor([0, 1, 1, 0])
    source = torch_dataset.from_dataset(torch.utils.data.TensorDataset(x, y), torch.tensor([5, 5, 6, 6]))
    np.testing.assert_array_equal(source.train["x"], x.numpy())
    np.testing.assert_array_equal(source.train["y"], [0, 1, 1, 0])
    np.testing.assert_array_equal(source.train_groups, [5, 5, 6, 6])
    needs_gradient = torch.utils.data.TensorDataset(x.clone().requires_grad_(), y)
    assert_refused(DataError, lambda: torch_dataset.from_dataset(needs_gradient), "item 0")

"""Wrong arguments of the data room: the exception, and the argument that its one line names."""

import numpy as np

import fedoptax as fx
from fedoptax.data.check import check, fetch
from fedoptax.data.custom import load_file
from fedoptax.data.files import find_data_dir
from fedoptax.data.heterogeneity import label_counts
from fedoptax.data.partition import (
    by_size,
    classes_per_client,
    dirichlet,
    dirichlet_by_class,
    divide_test,
    iid,
    natural,
    pachinko,
    shards,
    similarity,
)
from fedoptax.errors import DataError, UsageError
from fedoptax.tasks import analytic
from refusals import refusals

NAN = float("nan")

X = {"x": np.ones((3, 2))}


def make_task(**changes):
    clients = fx.FederatedData.from_clients([X])
    functions = dict.fromkeys(("init", "loss", "metrics"), lambda *arguments: 0.0)
    return fx.Task(**{"name": "task", "clients": clients, **functions, **changes})


PARTITIONS = [
    (lambda: iid(10, 11, 0), UsageError, "num_clients"), (lambda: iid(10, 0, 0), UsageError, "num_clients"),
    (lambda: iid(10, 3, -1), UsageError, "seed"), (lambda: iid([[1, 2]], 1, 0), UsageError, "labels"),
    (lambda: dirichlet([0, 1], 1, 0.0, 0), UsageError, "alpha"),
    (lambda: dirichlet_by_class([0, 1], 2, -1.0, 0), UsageError, "alpha"), (lambda: natural([]), UsageError, "groups"),
    (lambda: classes_per_client([0, 1], 1, 3, 0), UsageError, "classes"),
    (lambda: classes_per_client([0, 1, 1], 2, 2, 0), UsageError, "classes"),
    (lambda: shards([0, 1], 2, 2, 0), UsageError, "shards_per_client"),
    (lambda: similarity([0, 1], 1, 100.1, 0), UsageError, "similarity must"),
    (lambda: by_size(9, 4, seed=0, sigma=-1.0), UsageError, "sigma"),
    (lambda: by_size(9, 4, seed=0, distribution="lognorm"), UsageError, "distribution"),
    (lambda: pachinko([0, 0], [0, 1], 1, seed=0, alpha_fine=NAN), UsageError, "alpha_fine"),
    (lambda: divide_test([1], [np.array([0])], [[1]], 0), UsageError, "test_labels"),
]  # fmt: skip
FEDERATIONS = [
    (lambda: fx.FederatedData.from_clients([]), DataError, "clients"),
    (lambda: fx.FederatedData.from_clients([{}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones(2)}, {"y": np.ones(2)}]), DataError, "client 1"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones(2), "y": np.ones(3)}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"x": np.array([1, NAN])}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"x": np.array([1, 2**31])}]), DataError, "client 0: field 'x', row 2"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ma.masked_equal([1, 2], 2)}]), DataError, "client 0: .* masked"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones(2, ">f4")}]), DataError, "client 0: .* native"),
    (lambda: fx.FederatedData.from_clients([{"mask": np.ones(2)}]), DataError, "client 0: field"),
    (lambda: fx.FederatedData.from_clients([{"x": [[1, 2], [3]]}]), DataError, "client 0: field"),
    (lambda: fx.FederatedData.from_clients(None), UsageError, "clients"),
    (lambda: fx.FederatedData.from_parts({"x": np.ones(2)}, [np.array([2])]), DataError, "parts"),
    (lambda: fx.FederatedData.from_parts(np.ones(2), [[0]]), DataError, "examples"),
    (lambda: fx.FederatedData.from_parts(X, [[0], np.array([1.0])]), DataError, r"parts\[1\] .* float64\[1\]"),
    (lambda: fx.FederatedData.from_parts(X, [[0], np.ones(2, bool)]), DataError, r"parts\[1\] .* bool\[2\]"),
    (lambda: fx.FederatedData.from_parts(X, [[0, 1, 0], [1, 0, 1]]), DataError, r"parts\[0\] .* boolean mask"),
    (lambda: fx.FederatedData.from_parts(X, None), UsageError, "parts"),
    (lambda: fx.FederatedData(X, np.array([0, 0, 3])), DataError, "client 0"),
    (lambda: label_counts([0, 1, 1], [np.array([0.0])], 2), DataError, r"parts\[0\]"),
]
TASKS = [
    (lambda: make_task(clients=[X, X]), UsageError, "clients"), (lambda: make_task(init={}), UsageError, "init"),
    (lambda: make_task(metrics="accuracy"), UsageError, "metrics"),
    (lambda: make_task(predict=3), UsageError, "predict"), (lambda: make_task(devices=2.5), UsageError, "devices"),
    (lambda: make_task(test=[np.ones((3, 2))]), UsageError, "test"),
    (lambda: make_task(test={"x": np.ones((3, 2)), "y": np.ones(2)}), DataError, "test: fields"),
    (lambda: make_task(test={"x": np.ones((3, 2, 5))}), DataError, "test: field 'x' .* 2 axes .* got 3 axes"),
    (lambda: make_task(test={"x": np.ones((3, 2), "u1")}), DataError, "test: field 'x' .* float64 .* got .* uint8"),
    (lambda: make_task(test={"x": np.full((3, 2), NAN)}), DataError, "test: field 'x', row 1"),
    (lambda: make_task(test=X, test_owners=np.zeros(2, int)), DataError, "test_owners"),
    (lambda: fx.load_task("mnist", data_dir=3), UsageError, "data_dir"),
    (lambda: fx.load_task("digits", separator=";"), UsageError, "separator"),
    (lambda: fx.with_lora(fx.load_task("digits"), {"other": np.ones(3)}, 2), UsageError, "base must hold dense"),
    (lambda: fx.with_lora(make_task(init=lambda key: np.ones(3)), {"w": X["x"]}, 2), UsageError, "init of task"),
    (lambda: analytic.quadratic(noise=-1.0), UsageError, "noise must"),
    (lambda: analytic.synthetic(beta=NAN), UsageError, "beta must"),
]  # fmt: skip
DATA_SETS = [
    (lambda: find_data_dir(""), UsageError, "data_dir"), (lambda: fetch("minst"), UsageError, "data set"),
    (lambda: check("minst"), UsageError, "data set"), (lambda: fetch("femnist", "nowhere"), DataError, "femnist"),
]  # fmt: skip
CUSTOM = [
    (lambda: load_file("nowhere.npz"), UsageError, "nowhere.npz"), (lambda: load_file(__file__), UsageError, "path"),
    (lambda: load_file("nowhere.npz", test_fraction=1.0), UsageError, "test_fraction"),
    (lambda: load_file(None), UsageError, "path"),
    (lambda: load_file("nowhere.csv", client=["a"]), UsageError, "client"),
]  # fmt: skip


test_a_wrong_argument_is_named = refusals(
    (call, error, f"^{argument}") for call, error, argument in [*PARTITIONS, *FEDERATIONS, *TASKS, *DATA_SETS, *CUSTOM]
)


def test_longer_sequences_may_be_held_out():
    assert make_task(test={"x": np.ones((3, 5))}).test["x"].shape == (3, 5)


def test_masks_are_masks():
    y = np.array([0, 1, 1, 0, 1])
    examples, masks = {"x": np.arange(5)}, [y == label for label in (0, 1)]
    clients = fx.FederatedData.from_parts(examples, masks)
    assert [client["x"].tolist() for client in map(clients.client, range(2))] == [[0, 3], [1, 2, 4]]
    np.testing.assert_array_equal(label_counts(y, masks, 2), [[2, 0], [0, 3]])
    np.testing.assert_array_equal(divide_test(y, masks, [0, 1], 0), [0, 1])

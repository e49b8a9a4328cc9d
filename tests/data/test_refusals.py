"""Wrong arguments of the data room: the exception, and the argument that its one line names."""

import numpy as np
import pytest

import fedoptax as fx
from fedoptax.data.check import check
from fedoptax.data.custom import from_dataset, holdout, load_file
from fedoptax.data.datasets import cifar, digits, stackoverflow, wikitext
from fedoptax.data.fetch import fetch
from fedoptax.data.files import find_data_dir
from fedoptax.data.heterogeneity import heterogeneity, label_counts, label_skew, quantity_skew
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
    with_shared,
)
from fedoptax.errors import DataError, UsageError

NAN = float("nan")

PARTITIONS = [
    (lambda: iid(10, 0, 0), UsageError, "num_clients"),
    (lambda: iid(10, 11, 0), UsageError, "num_clients"),
    (lambda: iid(10, 3, -1), UsageError, "seed"),
    (lambda: iid([[1, 2]], 1, 0), UsageError, "labels"),
    (lambda: dirichlet([0, 1], 3, 1.0, 0), UsageError, "num_clients"),
    (lambda: dirichlet([0, 1], 1, 0.0, 0), UsageError, "alpha"),
    (lambda: dirichlet([], 1, 1.0, 0), UsageError, "labels"),
    (lambda: dirichlet_by_class([0, 1], 1, -1.0, 0), UsageError, "alpha"),
    (lambda: dirichlet_by_class([0, 1], 2, 1.0, 0, min_size=2), UsageError, "min_size"),
    (lambda: classes_per_client([0, 1], 3, 1, 0), UsageError, "num_clients"),
    (lambda: classes_per_client([0, 1], 1, 3, 0), UsageError, "classes"),
    (lambda: classes_per_client([0, 1, 2], 2, 1, 0), UsageError, "classes"),
    (lambda: classes_per_client([0, 1, 1], 2, 2, 0), UsageError, "classes"),
    (lambda: shards([0, 1], 2, 2, 0), UsageError, "shards_per_client"),
    (lambda: shards([0, 1], 2, 0, 0), UsageError, "shards_per_client"),
    (lambda: similarity([0, 1], 1, 100.1, 0), UsageError, "s"),
    (lambda: by_size(3, 4, seed=0), UsageError, "num_clients"),
    (lambda: by_size([], 1, seed=0), UsageError, "labels"),
    (lambda: by_size(9, 4, seed=0, sigma=-1.0), UsageError, "sigma"),
    (lambda: by_size(9, 4, seed=0, distribution="powerlaw", exponent=0.0), UsageError, "exponent"),
    (lambda: by_size(9, 4, seed=0, distribution="lognorm"), UsageError, "distribution"),
    (lambda: pachinko([0, 0], [0, 1], 3, seed=0), UsageError, "num_clients"),
    (lambda: pachinko([0, 0], [0, 1], 1, seed=0, alpha_coarse=0.0), UsageError, "alpha_coarse"),
    (lambda: pachinko([0, 0], [0, 1], 1, seed=0, alpha_fine=NAN), UsageError, "alpha_fine"),
    (lambda: pachinko([0], [0, 1], 1, seed=0), UsageError, "coarse"),
    (lambda: pachinko([0, 0, 1], [0, 1, 1], 1, seed=0), UsageError, "coarse"),
    (lambda: pachinko([], [], 1, seed=0), UsageError, "fine"),
    (lambda: natural([]), UsageError, "groups"),
    (lambda: with_shared(iid(30, 3, 0), 1.1, 0), UsageError, "fraction"),
    (lambda: divide_test([], [], [1], 0), UsageError, "train_labels"),
    (lambda: divide_test([1], [np.array([0])], [[1]], 0), UsageError, "test_labels"),
    (lambda: label_counts([0, 5], [np.array([0, 1])], 2), UsageError, "labels"),
    (lambda: heterogeneity([[1, 1], [0, 0]]), UsageError, "counts"),
    (lambda: label_skew([1, 2]), UsageError, "counts"),
    (lambda: quantity_skew([]), UsageError, "sizes"),
    (lambda: quantity_skew([-1, 5]), UsageError, "sizes"),
]
FEDERATIONS = [
    (lambda: fx.FederatedData.from_clients([]), DataError, "clients"),
    (lambda: fx.FederatedData.from_clients([{}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones((0, 2))}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones(2)}, {"y": np.ones(2)}]), DataError, "client 1"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones(2)}, {"x": np.ones((2, 2))}]), DataError, "client 1"),
    (lambda: fx.FederatedData.from_clients([{"x": np.ones(2), "y": np.ones(3)}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"x": np.array([1, NAN])}]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_clients([{"mask": np.ones(2)}]), DataError, "field"),
    (lambda: fx.FederatedData.from_clients([{"x": np.array(["a"])}]), DataError, "field"),
    (lambda: fx.FederatedData.from_parts({"x": np.ones(2)}, []), DataError, "clients"),
    (lambda: fx.FederatedData.from_parts({"x": np.ones(2)}, [np.array([2])]), DataError, "parts"),
    (lambda: fx.FederatedData.from_parts({"x": np.ones(2)}, [np.array([], int)]), DataError, "client 0"),
    (lambda: fx.FederatedData.from_groups({"x": np.ones(2)}, np.array([1, 0])), DataError, "groups"),
]
DATA_SETS = [
    (lambda: find_data_dir(""), UsageError, "data_dir"),
    (lambda: fetch("minst"), UsageError, "data set"),
    (lambda: check("minst"), UsageError, "data set"),
    (lambda: fetch("femnist", "nowhere"), DataError, "femnist"),
    (lambda: cifar.load100("nowhere", "superclass"), UsageError, "labels"),
    *(
        (lambda name=name: stackoverflow.load_nwp("nowhere", **{name: 0}), UsageError, name)
        for name in ("vocabulary", "length", "max_sentences", "test_examples", "max_clients")
    ),
    *(
        (lambda name=name: stackoverflow.load_tags(**{name: 2**40}), UsageError, name)
        for name in ("vocabulary", "tags")
    ),
    (lambda: stackoverflow.load_tags("nowhere", max_words=0), UsageError, "max_words"),
    (lambda: wikitext.load("nowhere", clients="writers"), UsageError, "clients"),
    (lambda: wikitext.load("nowhere", clients=0), UsageError, "clients"),
    (lambda: wikitext.load("nowhere", length=0), UsageError, "length"),
    (lambda: wikitext.load("nowhere", part="train"), UsageError, "part"),
]
CUSTOM = [
    (lambda: load_file("nowhere.npz"), UsageError, "nowhere.npz"),
    (lambda: load_file(__file__), UsageError, "path"),
    (lambda: load_file("nowhere.npz", test_fraction=1.0), UsageError, "test_fraction"),
    (lambda: holdout(digits.load(), 0.5, 0), UsageError, "fraction"),
    (lambda: from_dataset(3), UsageError, "dataset"),
    (lambda: from_dataset({"test": [(1, 2)]}), DataError, "dataset"),
    (lambda: from_dataset([(1, 2), (2, 3)], client=["a"]), UsageError, "client"),
    (lambda: from_dataset([]), DataError, "dataset"),
    (lambda: from_dataset([(1, 2, 3)]), DataError, "dataset"),
    (lambda: from_dataset([([1], 2), ([1, 2], 2)]), DataError, "dataset"),
    (lambda: from_dataset([([1], 2.5)]), DataError, "dataset: train: y, row 1"),
    (lambda: from_dataset([([NAN], 2)]), DataError, "dataset: train: x, row 1"),
]


@pytest.mark.parametrize(("call", "exception", "argument"), [*PARTITIONS, *FEDERATIONS, *DATA_SETS, *CUSTOM])
def test_a_wrong_argument_is_named_in_one_line(call, exception, argument):
    with pytest.raises(exception, match=rf"(?s)^{argument}\b") as error:
        call()
    assert "\n" not in str(error.value)

"""The same small federation, written in every format that a user may have."""

import csv
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image


class Part(NamedTuple):
    """Examples x (n, …), labels (n,) and clients (n,), as a user has them."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray


def vectors(seed=0, n=30, features=3, labels=("ant", "bee", "cow"), clients=("a", "b", "c")):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    return Part(x, rng.choice(labels, n), rng.choice(clients, n))


def pictures(seed=0, clients=("a", "b"), labels=("0", "1", "10"), each=2, size=(5, 4), channels=3):
    """In the order in which the files of a folder are read."""
    rng = np.random.default_rng(seed)
    cells = [(client, label) for client in clients for label in labels for _ in range(each)]
    x = rng.integers(0, 256, (len(cells), *size, channels), np.uint8)
    return Part(x, np.array([label for _, label in cells]), np.array([client for client, _ in cells]))


def write_npz(path, train, test=None):
    parts = {"": train} if test is None else {"": train, "_test": test}
    arrays = {f"{name}{end}": value for end, part in parts.items() for name, value in part._asdict().items()}
    np.savez_compressed(path, **arrays)
    return path


def table_of(train, test=None):
    """Column -> values; a column `split` where there is a test part."""
    whole = train if test is None else Part(*(np.concatenate(pair) for pair in zip(train, test)))
    columns = {f"f{i}": whole.x[:, i] for i in range(whole.x.shape[1])}
    columns |= {"client": whole.client, "label": whole.y}
    if test is not None:
        columns["split"] = np.repeat(["train", "test"], [len(train.y), len(test.y)])
    return columns


def write_csv(path, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))
    return path


def write_parquet(path, columns):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
    return path


def write_folder(root, part, suffix=".png"):
    for i, (x, label, client) in enumerate(zip(*part)):
        folder = root / str(client) / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x.squeeze()).save(folder / f"{i:04}{suffix}")
    return root


class Items:
    """What `torch.utils.data.Dataset` is to those who read it."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def assert_same_source(a, b):
    for part_a, part_b in ((a.train, b.train), (a.test, b.test)):
        assert part_a.keys() == part_b.keys() == {"x", "y"}
        for name in part_a:
            assert part_a[name].dtype == part_b[name].dtype
            np.testing.assert_array_equal(part_a[name], part_b[name])
    assert (a.num_classes, a.input_shape, a.class_names) == (b.num_classes, b.input_shape, b.class_names)
    for groups_a, groups_b in ((a.train_groups, b.train_groups), (a.test_groups, b.test_groups)):
        assert (groups_a is None) == (groups_b is None)
        if groups_a is not None:
            assert groups_a.dtype == groups_b.dtype
            np.testing.assert_array_equal(groups_a, groups_b)

"""The real data sets where they are, and tiny ones in the same formats."""

import gzip
import hashlib
import json
import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from fedoptax.data.registry import DATA_SETS


def real_data(dataset: str) -> Path:
    """The folder with the subfolder `dataset`, or the test is skipped."""
    root = Path(os.environ.get("FEDOPTAX_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (root / dataset).is_dir():
        pytest.skip(f"the data set '{dataset}' is not at hand: set FEDOPTAX_DATA to the folder that holds it")
    return root


def write(path: Path, data: bytes) -> Path:
    """Write bytes, compressed if the name ends with `.gz`; make the folders above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_tff(path: Path, clients: Mapping[str, Mapping[str, Any]], **storage: Any) -> Path:
    """Write TensorFlow Federated's HDF5 layout of `{client: {field: array or list of byte strings}}`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_group("examples")
        for client, fields in clients.items():
            group = file.create_group(f"examples/{client}")
            for field, value in fields.items():
                group.create_dataset(field, data=np.asarray(value), **storage)
    return path


def write_leaf(path: Path, users: Mapping[str, tuple[np.ndarray, Sequence[int]]], /, **changes: Any) -> Path:
    """Write LEAF's JSON of `{user: (images uint8 (n, 784), labels)}`; `changes` replace members of the document."""
    document = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": (x / 255).tolist(), "y": [int(k) for k in y]} for name, (x, y) in users.items()},
    }
    return write(path, json.dumps(document | changes).encode())


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes or 32-bit integers."""
    code, kind = (0x08, "u1") if array.dtype == np.uint8 else (0x0C, ">i4")
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.astype(kind).tobytes()


def write_mnist(root: Path, dataset: str = "mnist") -> Path:
    """Write MNIST's four files with 12 training and 6 test images, and QMNIST's two beside `mnist`; compressed."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 6)):
        x, y = rng.integers(0, 256, (count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8)
        write(root / dataset / f"{part}-images-idx3-ubyte.gz", idx(x))
        write(root / dataset / f"{part}-labels-idx1-ubyte.gz", idx(y))
        rows = np.zeros((count + 3, 8), np.int32)  # it goes on with digits that MNIST left out
        rows[:count, 0], rows[:, 2] = y, 100 + np.arange(count + 3) // 4
        name = "qmnist-train-labels-idx2-int" if part == "train" else "qmnist-test-labels-idx2-int"
        write(root / "qmnist" / f"{name}.gz", idx(rows))
    return root


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, files: Mapping[str, Any]) -> Path:
    """Write pickles of `{path: content}`, and publish their hashes for the time of the test."""
    published = {}
    for path, content in files.items():
        data = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
        write(root / dataset / path, data)
        published[path.removesuffix(".gz")] = f"md5:{hashlib.md5(data).hexdigest()}"
    item = DATA_SETS[dataset].downloads[0]
    members = tuple(file._replace(hash=published.get(file.path)) for file in item.members)
    monkeypatch.setitem(DATA_SETS, dataset, DATA_SETS[dataset]._replace(downloads=(item._replace(members=members),)))
    return root


def cifar_batch(x: np.ndarray, **labels: Sequence[int]) -> dict[str, Any]:
    """The content of one of CIFAR's files, of images (n, 3, 32, 32)."""
    return {"data": x.reshape(len(x), -1), **{name: list(values) for name, values in labels.items()}}


def write_femnist(root: Path, train: Mapping[str, Any], test: Mapping[str, Any]) -> Path:
    """Write LEAF's FEMNIST of `{writer: (images uint8 (n, 784), labels)}`; the training file is compressed."""
    write_leaf(root / "femnist" / "train" / "1.json.gz", train)
    write_leaf(root / "femnist" / "test" / "1.json", test)
    return root


def write_shakespeare(root: Path, train: Mapping[str, list[bytes]], test: Mapping[str, list[bytes]]) -> Path:
    """Write Shakespeare's two files of `{role: snippets}`."""
    for part, roles in (("train", train), ("test", test)):
        clients = {role: {"snippets": np.array(snippets, "S")} for role, snippets in roles.items()}
        write_tff(root / "shakespeare" / f"shakespeare_{part}.h5", clients)
    return root


def write_wikitext(root: Path, train: str, test: str) -> Path:
    """Write WikiText-2's two files."""
    write(root / "wikitext-2" / "train.txt", train.encode())
    write(root / "wikitext-2" / "test.txt", test.encode())
    return root


def patients(n=240, seed=0):
    """Four hospitals, one of three rows; an identifier, a date, empty cells, a text, a rare outcome and a number."""
    rng = np.random.default_rng(seed)
    age, dose = rng.integers(20, 90, n), rng.normal(5, 2, n).round(2)
    frame = pd.DataFrame(
        {
            "id": np.arange(n) + 1000,
            "hospital": np.where(np.arange(n) < 3, "4_small", rng.choice(["1_north", "2_east", "3_west"], n)),
            "age": age,
            "dose": np.where(rng.random(n) < 0.2, None, dose),
            "ward": rng.choice(["a", "b", ""], n, p=[0.5, 0.4, 0.1]),
            "smokes": rng.choice(["yes", "no"], n),
            "visit": [f"2021-0{month}-1{day}" for month, day in rng.integers(1, 9, (n, 2))],
        }
    )
    score = (age - 55) / 20 + np.nan_to_num(dose - 5) / 2 + rng.normal(0, 0.5, n)
    return frame.assign(outcome=np.where(score > 1.2, "1_yes", "0_no"), cost=(100 * score + 300).round(2))

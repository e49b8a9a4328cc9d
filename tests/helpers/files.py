"""What tests of files share: the real data sets where they are, tiny ones in their formats, the form of an error."""

import gzip
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest


def real_data(dataset):
    """The folder with the subfolder `dataset`, or the test is skipped."""
    root = Path(os.environ.get("FEDOPTAX_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (root / dataset).is_dir():
        pytest.skip(f"the data set '{dataset}' is not at hand: set FEDOPTAX_DATA to the folder that holds it")
    return root


def assert_one_line(error, path, *words):
    """The error is one line that names the file and says each of `words`."""
    message = str(error.value)
    assert "\n" not in message
    for word in (path.name, *words):
        assert word in message


def write(path, data):
    """Writes bytes, packed if the name ends with `.gz`; makes the folders above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_tff(path, clients, **storage):
    """TensorFlow Federated's HDF5 layout of `{client: {field: array or list of byte strings}}`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_group("examples")
        for client, fields in clients.items():
            group = file.create_group(f"examples/{client}")
            for field, value in fields.items():
                group.create_dataset(field, data=np.asarray(value), **storage)
    return path


def write_leaf(path, users, **changes):
    """LEAF's JSON of `{user: (images uint8 (n, 784), labels)}`; `changes` replace members of the document."""
    document = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": (x / 255).tolist(), "y": [int(k) for k in y]} for name, (x, y) in users.items()},
    }
    return write(path, json.dumps(document | changes).encode())


def nothing_is_kept(cache):
    """Whether a cache folder holds nothing, neither whole nor in part."""
    return not cache.is_dir() or not list(cache.iterdir())

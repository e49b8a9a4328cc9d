"""The real data sets give the same federations, bit for bit, as before the readers were rewritten."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import fedoptax as fx
from files import real_data

EXPECTED = json.loads((Path(__file__).parent / "federation_checksums.json").read_text())
"""Task and partition -> SHA-256 of all clients' arrays, their sizes, the test arrays and their owners, for seed 0."""

FOLDERS = {"emnist-cr": "femnist"}


def checksum(task: fx.Task) -> str:
    digest = hashlib.sha256()
    parts = {"clients": task.clients.examples, "sizes": {"": task.clients.sizes}, "test": task.test or {}}
    if task.test_owners is not None:
        parts["test_owners"] = {"": task.test_owners.astype(np.int64)}
    for part, arrays in parts.items():
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            digest.update(f"{part}/{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.data)
    return digest.hexdigest()


QUICK = ("digits dirichlet", "mnist dirichlet", "shakespeare roles")


@pytest.mark.parametrize("key", [pytest.param(k, marks=[] if k in QUICK else pytest.mark.long) for k in EXPECTED])
def test_every_partition_of_a_real_data_set_is_the_recorded_one(key):
    name, partition = key.split()
    data_dir = None if name == "digits" else real_data(FOLDERS.get(name, name))
    assert checksum(fx.load_task(name, partition=partition, seed=0, data_dir=data_dir)) == EXPECTED[key]

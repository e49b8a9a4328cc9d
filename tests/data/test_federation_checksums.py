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


def keys_of(name: str) -> list[str]:
    return [key for key in EXPECTED if key.split()[0] == name]


def checksums(keys: list[str]) -> dict[str, str]:
    name = keys[0].split()[0]
    data_dir = None if name == "digits" else real_data(FOLDERS.get(name, name))
    return {key: checksum(fx.load_task(name, partition=key.split()[1], seed=0, data_dir=data_dir)) for key in keys}


NAMES = list(dict.fromkeys(key.split()[0] for key in EXPECTED))
QUICK = ("digits", "mnist", "shakespeare")


@pytest.mark.parametrize("name", QUICK)
def test_a_real_data_set_gives_the_recorded_federation(name):
    keys = keys_of(name)[:1]
    assert checksums(keys) == {key: EXPECTED[key] for key in keys}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_partition_of_a_real_data_set_is_the_recorded_one(name):
    keys = keys_of(name)
    assert checksums(keys) == {key: EXPECTED[key] for key in keys}

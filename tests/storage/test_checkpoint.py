"""Checkpoints under damage, killed processes and full disks: only intact ones are used, and none is lost."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax._files import read_json, write_json
from fedoptax.engine.client_states import OnDevice, OnHost
from fedoptax.storage.checkpoint import restore_checkpoint, rounds_of, save_checkpoint
from fedoptax.storage.history import HistoryFile
from full_disks import largest_file
from refusals import refused

NO_CLIENTS = OnDevice((), 0)


def server(value: float) -> dict[str, Any]:
    return {"a": jnp.full(300, value), "b": jnp.int32(7)}


def save(folder: Path, rounds: tuple[int, ...] = (1, 2), clients: Any = NO_CLIENTS) -> HistoryFile:
    """A run folder with a history and a checkpoint after each of these rounds, whose state is the round's number."""
    history = HistoryFile(folder, [])
    for number in rounds:
        history.append([{"round": number, "train_loss": 1 / number}])
        save_checkpoint(folder, number, server(number), clients, history.sync)
    return history


def restore(folder: Path, clients: Any = NO_CLIENTS, at_most: int = 99) -> int:
    number, state = restore_checkpoint(folder, server(0), clients, at_most)
    np.testing.assert_array_equal(state["a"], np.full(300, number, np.float32))
    return number


def test_a_flipped_bit_in_any_file_takes_the_checkpoint_before(tmp_path):
    rng = np.random.default_rng(0)
    host = OnHost({"c": np.zeros(3, np.float32)}, 5)
    host.take(lambda: np.array([1, 4]))
    host.put({"c": np.ones((2, 3), np.float32)})
    save(tmp_path / "a", clients=host)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a" / "checkpoints" / "2").rglob("*")]
    files = [path for path in files if (tmp_path / "a" / path).is_file() and (tmp_path / "a" / path).stat().st_size]
    assert {path.parts[2] for path in files} == {"states.npz", "clients", "checkpoint.json"}
    assert restore(tmp_path / "a", host) == 2
    for file in files:
        path = tmp_path / "a" / file
        whole = path.read_bytes()
        for place in rng.integers(0, len(whole), 20):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            assert restore(tmp_path / "a", host) == 1, (file, place)
            path.write_bytes(whole)
    (tmp_path / "a" / files[3]).unlink()
    assert restore(tmp_path / "a", host) == 1


def test_a_checkpoint_is_used_only_with_its_part_of_the_history(tmp_path):
    save(tmp_path)
    path = tmp_path / "history.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 3, "tr')  # of a writer that was killed: nobody's part
    assert restore(tmp_path) == 2
    path.write_bytes(whole.replace(b"0.5", b"0.4"))
    assert restore(tmp_path) == 1
    path.write_bytes(whole[:-1])
    assert restore(tmp_path) == 1
    path.write_bytes(whole.replace(b"1.0", b"1.1"))
    refused(lambda: restore(tmp_path), "can be used (round 2: history.jsonl has changed; round 1: ")


def test_leftovers_of_killed_processes_are_ignored_and_removed(tmp_path):
    save(tmp_path, (1,))
    place = tmp_path / "checkpoints"
    for name in (".2.17.tmp", ".0.old.tmp"):
        shutil.copytree(place / "1", place / name)
    assert restore(tmp_path) == 1 and rounds_of(tmp_path) == [1]
    save_checkpoint(tmp_path, 2, server(2), NO_CLIENTS)
    assert sorted(path.name for path in place.iterdir()) == ["1", "2"]
    (place / "2").rename(place / "5")  # its manifest says round 2
    assert restore(tmp_path) == 1


def test_a_full_disk_is_one_line_and_keeps_the_checkpoints(tmp_path):
    save(tmp_path, (1, 2))
    wanted = r"checkpoint of round 3 cannot be written: .*File too large$"
    noise = jnp.asarray(np.random.default_rng(0).normal(size=5000))  # which cannot be packed into less
    for size in (100, 1000):  # less than a list of arrays takes, and less than the arrays
        with largest_file(size), pytest.raises(fx.RunError, match=wanted):
            save_checkpoint(tmp_path, 3, {"a": noise, "b": jnp.int32(7)}, NO_CLIENTS)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    assert restore(tmp_path) == 2


def test_every_dtype_and_shape_comes_back(tmp_path):
    tree = {
        "a": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "b": (jnp.float32(0.1), jnp.zeros((0, 4), jnp.int8), jnp.array([True, False])),
        "c": jnp.array([1, 2**31 + 3], jnp.uint32),
    }
    save_checkpoint(tmp_path, 1, tree, OnDevice({"d": jnp.float16(2)}, 3))
    clients = OnDevice({"d": jnp.float16(0)}, 3)
    _, found = restore_checkpoint(tmp_path, jax.tree.map(jnp.zeros_like, tree), clients, 1)
    jax.tree.map(np.testing.assert_array_equal, found, tree)
    assert jax.tree.map(lambda a: a.dtype, found) == jax.tree.map(lambda a: a.dtype, tree)
    np.testing.assert_array_equal(clients.tree["d"], np.full(3, 2, np.float16))
    refused(lambda: restore_checkpoint(tmp_path, {"a": tree["a"]}, clients, 1), "belong to another experiment")


def test_client_states_elsewhere_and_checkpoints_of_another_version_are_refused(tmp_path):
    save(tmp_path, (1,))
    refused(lambda: restore(tmp_path, OnHost({"c": np.zeros(3, np.float32)}, 5)), "client_states='device'")
    manifest = tmp_path / "checkpoints" / "1" / "checkpoint.json"
    write_json(manifest, read_json(manifest) | {"format": 1})
    refused(lambda: restore(tmp_path), "another version")
    manifest.unlink()
    refused(lambda: restore(tmp_path), "checkpoint.json")


def test_only_the_last_two_are_kept(tmp_path):
    save(tmp_path, (1, 2, 3, 4))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]
    assert restore(tmp_path, at_most=3) == 3
    save(tmp_path, (2,))  # of a run that went back: the later ones are another future
    assert rounds_of(tmp_path) == [2]

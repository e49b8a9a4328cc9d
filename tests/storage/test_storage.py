"""Files of a run: checksums, locks, leftovers of killed processes, disks that fill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.client_states import OnHost
from fedoptax.storage import folder as storage
from fedoptax.storage.history_file import HistoryFile, check_mark
from full_disks import largest_file

VALUE = {"status": "completed", "final": {"test_accuracy": 0.125}, "rounds_done": 64}


def test_no_flipped_bit_changes_what_json_says(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    storage.write_json(path, VALUE)
    whole = path.read_bytes()
    assert storage.read_json(path) == VALUE and json.loads(whole)["rounds_done"] == 64
    refused = 0
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            found = storage.read_json(path)
        except fx.RunError:
            refused += 1
        else:  # the name "checksum" itself was hit: the rest is as it was
            assert {name: found[name] for name in VALUE} == VALUE
    assert refused > 8 * len(whole) * 0.8


def test_json_that_was_changed_on_purpose_loses_its_checksum_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    storage.write_json(path, {"rounds": 5, "seed": 1})
    path.write_text(path.read_text().replace('"rounds": 5', '"rounds": 6'))
    with pytest.raises(fx.RunError, match=r"its checksum does not fit .if it was changed on purpose, remove"):
        storage.read_json(path)
    path.write_text('{\n "rounds": 6,\n "seed": 1\n}\n')
    assert storage.read_json(path) == {"rounds": 6, "seed": 1}


def test_a_folder_of_leftovers_is_as_good_as_new(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in (".lock", ".config.json.17.tmp"):
        (tmp_path / "a" / name).touch()
    assert storage.prepare(tmp_path / "a") == tmp_path / "a"
    with storage.locked(tmp_path / "a", new=True):
        assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]


def test_a_folder_filled_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    storage.prepare(tmp_path / "a")
    with storage.locked(tmp_path / "a", new=True):
        storage.write_json(tmp_path / "a" / "config.json", VALUE)
    with (
        pytest.raises(fx.RunError, match="was filled by another process meanwhile"),
        storage.locked(tmp_path / "a", new=True),
    ):
        pass
    with storage.locked(tmp_path / "a"):
        assert storage.read_json(tmp_path / "a" / "config.json") == VALUE


def test_a_lock_whose_folder_was_removed_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the lock and taking it, its holder removes the folder and another process makes it anew."""
    (tmp_path / "a").mkdir()
    flock = storage.fcntl.flock

    def slow(file: object, flags: int) -> None:
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / ".lock").touch()
        flock(file, flags)

    monkeypatch.setattr(storage.fcntl, "flock", slow)
    with pytest.raises(fx.RunError, match="is in use by another process"), storage.locked(tmp_path / "a"):
        pass


def test_a_removal_that_was_killed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a"
    (folder / "checkpoints" / "4").mkdir(parents=True)
    storage.write_json(folder / "config.json", VALUE)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(storage.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            storage.prepare(folder, overwrite=True)
    storage.prepare(folder, overwrite=True)
    assert not folder.exists()


def test_a_history_on_a_full_disk_keeps_whole_rows(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path, [{"round": 1}])
    before = history.mark()
    with largest_file(20), pytest.raises(fx.RunError, match=r"history.jsonl' cannot be written: File too large"):
        history.append([{"round": 2}, {"round": 3}])
    assert (tmp_path / "history.jsonl").read_bytes() == b'{"round": 1}\n' and history.mark() == before
    history.append([{"round": 2}])
    check_mark(tmp_path, history.mark())
    check_mark(tmp_path, before)
    assert storage.read_rows(tmp_path, 2) == [{"round": 1}, {"round": 2}]


def test_a_file_on_a_full_disk_keeps_its_content(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "summary.json", VALUE)
    with largest_file(50), pytest.raises(fx.RunError, match=r"summary.json' cannot be written: File too large"):
        storage.write_json(tmp_path / "summary.json", {"status": "x" * 100})
    assert storage.read_json(tmp_path / "summary.json") == VALUE
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_client_states_on_a_full_disk_are_an_error_and_no_signal(tmp_path: Path) -> None:
    states = OnHost({"c": np.zeros(1000, np.float32)}, 9, tmp_path / "s")
    states.take(lambda: np.array([0, 8]))
    with largest_file(5000), pytest.raises(fx.RunError, match=r"client states cannot be written to .*: File too large"):
        states.put({"c": np.ones((2, 1000), np.float32)})


def test_params_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "params.npz"
    storage.write_params(path, {"w": np.arange(100.0)})
    storage.check_params(path)
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"is damaged: w.npy"):
        storage.check_params(path)
    path.write_bytes(data[:400])
    with pytest.raises(ValueError, match="cannot be read"):
        storage.check_params(path)
    with pytest.raises(ValueError, match="cannot be read"):
        storage.check_params(tmp_path / "none.npz")

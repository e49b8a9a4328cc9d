"""Folders of results: who may write to one, leftovers of killed processes, disks that fill, damaged files."""

import json
import subprocess
import sys

import numpy as np
import pytest

import fedoptax as fx
from fedoptax._files import read_json, write_json
from fedoptax.storage import folder as storage
from fedoptax.storage.config import read_config
from full_disks import largest_file
from refusals import refused

VALUE = {"status": "completed", "final": {"test_accuracy": 0.125}, "rounds_done": 64}
CONFIG = {
    "format": 1, "task": {"name": "digits"}, "algorithm": {"name": "fedavg", "hyperparameters": {"client_lr": 0.1}},
    "rounds": 3, "seed": 0,
}  # fmt: skip


def test_json_holds_null_for_non_finite_numbers(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, VALUE | {"loss": np.float32("nan"), "sizes": np.arange(2), "grid": (1.5, float("inf"))})
    assert read_json(path) == VALUE | {"loss": None, "sizes": [0, 1], "grid": [1.5, None]}


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "\xff", "{" * 100_000, json.dumps(CONFIG | {"format": 99})),
        *(json.dumps({k: v for k, v in CONFIG.items() if k != name}) for name in CONFIG),
        *(json.dumps(CONFIG | {name: value}) for name in CONFIG for value in ("x", None, [1])),
        json.dumps(CONFIG | {"algorithm": {"name": "fedavg", "hyperparameters": 3}}),
    ],
)
def test_a_damaged_config_is_one_line_that_names_it(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    refused(lambda: read_config(tmp_path), "config.json")


def test_only_a_new_folder_or_one_of_results_with_overwrite_is_taken(tmp_path):
    out, mine, file = tmp_path / "a", tmp_path / "mine", tmp_path / "file"
    assert storage.prepare(out) == out and not out.exists()
    (out / "checkpoints" / "4").mkdir(parents=True)
    write_json(out / "config.json", CONFIG | {"kind": "run"})
    refused(lambda: storage.prepare(out), "already has results")
    storage.prepare(out, overwrite=True, remove=False)
    assert (out / "config.json").is_file()
    storage.prepare(out, overwrite=True)
    assert [path for path in out.iterdir() if path.name != ".lock"] == []
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    refused(lambda: storage.prepare(mine, overwrite=True), "has other files")
    write_json(mine / "config.json", {"model_type": "llama"})  # of another program
    refused(lambda: storage.prepare(mine, overwrite=True), "has other files")
    file.touch()
    refused(lambda: storage.prepare(file, overwrite=True), "is a file")
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_leftovers_of_a_killed_process_are_no_results(tmp_path):
    for name in (".lock", ".config.json.17.tmp"):
        (tmp_path / name).touch()
    storage.prepare(tmp_path)
    with storage.locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_second_process_is_kept_out_until_the_first_ends(tmp_path):
    code = (
        "import sys; from pathlib import Path; from fedoptax.storage.folder import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        refused(storage.locked(tmp_path).__enter__, "is in use by another process")
        write_json(tmp_path / "tune.json", VALUE)
        refused(lambda: storage.prepare(tmp_path, overwrite=True), "is in use by another process")
        holder.kill()
    with storage.locked(tmp_path):
        assert read_json(tmp_path / "tune.json") == VALUE


def test_a_file_on_a_full_disk_keeps_its_content(tmp_path):
    write_json(tmp_path / "summary.json", VALUE)
    with largest_file(50), pytest.raises(fx.RunError, match=r"summary.json' cannot be written: File too large"):
        write_json(tmp_path / "summary.json", {"status": "x" * 100})
    assert read_json(tmp_path / "summary.json") == VALUE
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(("summary", "is_finished"), [
    ('{"status": "completed", "rounds_done": 3}', True), ('{"status": "diverged", "rounds_done": 0}', True),
    ('{"status": "stopped early", "rounds_done": 2}', True), ('{"status": "running", "rounds_done": 3}', False),
    ('{"status": "completed"}', False), (None, False), ("{", False),
])  # fmt: skip
def test_a_run_is_finished_when_its_summary_says_so(tmp_path, summary, is_finished):
    (tmp_path / "config.json").touch()
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    assert storage.is_finished(tmp_path) == is_finished

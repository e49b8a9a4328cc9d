"""Run folders from others: nothing they name is run, nothing is written outside them, nothing makes a report hang."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fedoptax.errors import RunError
from fedoptax.report import final_table, load_runs, write_report
from fedoptax.report.partition import partition
from fedoptax.storage import folder as storage
from fuzzing.command import check_answer, fedoptax, tree_of, untrained
from fuzzing.run_targets import comparison, config, files, search, within, write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a module that tells when it is imported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDOPTAX_DEBUG", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "hostile_module.py").write_text("open('imported', 'w').close()\n\ndef make(command=''):\n    pass\n")
    return work


def refused(*arguments: str, status: int = 1) -> str:
    with untrained():
        answer = fedoptax(*arguments)
    check_answer(answer, arguments)
    assert answer.status == status, answer
    return answer.err


@pytest.mark.parametrize("name", ["os:system", "hostile_module:make", "subprocess:run"])
def test_code_that_a_folder_names_is_not_run(here: Path, name: str) -> None:
    algorithm = {"name": name, "hyperparameters": {"command": "touch owned"}}
    write(here / "one", files(algorithm=algorithm))
    pair = comparison() | {"algorithms": [name], "hyperparameters": {name: {"command": "touch owned"}}}
    write(here / "pair", {"compare.json": json.dumps(pair).encode()})
    for folder in ("one", "pair"):
        before = tree_of(here)
        assert f"names the code '{name}'" in refused("resume", folder, status=2)
        assert tree_of(here) == before
    write_report(here / "one")
    assert not (here / "owned").exists() and not (here / "imported").exists()


def test_sound_folders_are_taken(here: Path) -> None:
    write(here / "one", files())
    write(here / "pair", {"compare.json": json.dumps(comparison()).encode()})
    for arguments in (["resume", "one"], ["resume", "pair"], ["report", "one"], ["report", "."]):
        with untrained():
            answer = fedoptax(*arguments)
        assert (answer.status, answer.err) == (0, "")


def test_code_of_ones_own_runs_when_it_is_trusted(here: Path) -> None:
    write(here / "one", files(algorithm={"name": "hostile_module:make", "hyperparameters": {}}))
    assert "returned NoneType" in refused("resume", "one", "--trust", status=2)
    assert (here / "imported").exists()


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"seeds": ["/../../victim"]}, "'seeds'"),
    ({"seeds": [-1]}, "'seeds'"),
    ({"algorithms": ["fedavg", 3]}, "'algorithms'"),
    ({"algorithms": ["fedavg", "../victim"]}, "has no hyper-parameters"),
    ({"hyperparameters": {"fedavg": [], "fedadam": {}}}, "'hyperparameters'"),
    ({"options": {"out": "victim"}}, "unknown option 'out'"),
    ({"options": {"overwrite": True}}, "unknown option 'overwrite'"),
    ({"task": {"name": None}}, "'task.name' is missing"),
    ({"format": 2}, "format 1"),
    ({"tunings": {"../victim": within(search()) | {"algorithm": "../victim"}}}, "of no algorithm that is compared"),
    ({"tunings": {"fedavg": within(search()) | {"algorithm": "fedadam"}}}, "of no algorithm that is compared"),
    ({"tunings": [1]}, "'tunings'"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=lambda change: str(change)[:40])
def test_a_comparison_cannot_lead_out_of_its_folder(here: Path, change: dict[str, Any], reason: str) -> None:
    write(here / "victim", files())
    write(here / "pair", {"compare.json": json.dumps(comparison() | change).encode()})
    before = tree_of(here)
    assert reason in refused("resume", "pair")
    assert tree_of(here) == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"algorithm": "../victim"}, "unknown name '../victim'"),
        ({"algorithm": "os:system"}, "names the code 'os:system'"),
        ({"options": {"rounds": 1, "out": "victim"}}, "unknown option 'out'"),
        ({"grid": {"client_lr": [[1]]}}, "'grid'"),
        ({"search": "../x"}, "'search'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["tune.json", "compare.json"])
def test_a_search_cannot_lead_out_of_its_folder(here: Path, place: str, change: dict[str, Any], reason: str) -> None:
    write(here / "victim", files())
    hostile = search() | change
    name = hostile["algorithm"]
    pair = comparison() | {"algorithms": [name], "hyperparameters": {name: {}}, "tunings": {name: within(hostile)}}
    write(here / "one", {place: json.dumps(hostile if place == "tune.json" else pair).encode()})
    before = tree_of(here)
    status = 2 if reason.startswith(("unknown name", "names")) else 1
    assert reason in refused("resume", "one", status=status)
    assert {k: v for k, v in tree_of(here).items() if "one/" not in str(k)} == {
        k: v for k, v in before.items() if "one/" not in str(k)
    }


def test_a_partition_s_seed_below_zero_is_refused(here: Path) -> None:
    write(here / "one", files(task={"name": "quadratic", "num_clients": 3, "partition_seed": -1}))
    assert "seed of the partition: -1 given" in refused("resume", "one", status=2)


def searched(here: Path, **changes: Any) -> Path:
    """A search of one point, its tune.json changed."""
    write(here / "search", {"tune.json": json.dumps(search() | changes).encode()})
    write(here / "search" / "point-0", files())
    return here / "search"


@pytest.mark.parametrize("command", [{}, 1.5, ["fedoptax"], True])
def test_a_search_s_command_is_text(here: Path, command: object) -> None:
    with pytest.raises(RunError, match=r"'command' is .*, text or null is expected"):
        write_report(searched(here, command=command))


@pytest.mark.parametrize("change", [{"command": None}, {"algorithm": "\ud800"}, {"command": "\ud800"}], ids=ascii)
def test_a_search_is_reported_whatever_its_words_are(here: Path, change: dict[str, Any]) -> None:
    place = searched(here, **change)
    write_report(place)
    assert (place / "report.html").is_file()


def test_a_history_is_read_beside_columns_of_the_table_s_own(here: Path) -> None:
    row = {"round": 1, "train_loss": 0.5, "seed": 0.25, "algorithm": 3.5, "bytes_up": 8}
    write(here / "one", files() | {"history.jsonl": json.dumps(row).encode() + b"\n"})
    write_report(here / "one")
    lines = (here / "one" / "history.csv").read_text().splitlines()
    assert lines[0].split(",")[:2] == ["algorithm", "seed"] and lines[1].startswith("fedavg,0,")


def test_a_round_is_a_whole_number(here: Path) -> None:
    write(here / "one", files() | {"history.jsonl": b'{"round": true, "train_loss": 0.5}\n'})
    with pytest.raises(RunError, match="line 1: round True after 0"):
        write_report(here / "one")


@pytest.mark.parametrize(
    "name", [".lock", "history.jsonl", "checkpoints", "client-states", "summary.json", "config.json"]
)
def test_a_folder_with_links_is_not_resumed(here: Path, name: str) -> None:
    write(here / "victim", files())
    write(here / "one", files())
    (here / "one" / name).unlink(missing_ok=True)
    (here / "one" / name).symlink_to(here / "victim" / "config.json")
    before = tree_of(here)
    assert "no plain file" in refused("resume", "one")
    assert tree_of(here) == before


def test_a_folder_with_a_pipe_is_not_resumed(here: Path) -> None:
    write(here / "one", files())
    (here / "one" / "summary.json").unlink()
    os.mkfifo(here / "one" / "summary.json")
    assert "no plain file" in refused("resume", "one", "--rounds", "5")


def test_a_lock_that_is_a_link_is_not_followed(here: Path) -> None:
    (here / "precious").write_text("keep me")
    (here / "one").mkdir()
    (here / "one" / ".lock").symlink_to(here / "precious")
    with pytest.raises(RunError, match=r"\.lock"), storage.locked(here / "one"):
        pass
    assert (here / "precious").read_text() == "keep me"


def test_a_report_is_not_written_through_a_link(here: Path) -> None:
    write(here / "one", files())
    (here / "elsewhere").mkdir()
    (here / "one" / "figures").symlink_to(here / "elsewhere")
    for name in ("report.html", "table.md"):  # these are replaced, not written to
        (here / "one" / name).symlink_to(here / "elsewhere" / name)
    with pytest.raises(RunError, match="'one/figures' is a link"):
        write_report(Path("one"))
    (here / "one" / "figures").unlink()
    write_report(Path("one"))
    assert list((here / "elsewhere").iterdir()) == []
    assert (here / "one" / "report.html").is_file() and not (here / "one" / "report.html").is_symlink()


def test_links_in_circles_are_walked_once(here: Path) -> None:
    for i in range(6):
        (here / "runs" / f"level-{i}").mkdir(parents=True)
    for i in range(6):
        for name in "abc":
            (here / "runs" / f"level-{i}" / name).symlink_to(here / "runs" / f"level-{(i + 1) % 6}")
    write(here / "runs" / "level-3" / "one", files())
    start = time.process_time()
    assert [run.path.name for run in load_runs(Path("runs"))] == ["one"]
    assert time.process_time() - start < 2


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"rounds": -1}, "'rounds' is -1, a whole number is expected"),
    ({"rounds": True}, "'rounds' is True"),
    ({"seed": 10**400}, "'seed' is 1000"),
    ({"seed": "\x1b[2J"}, "'seed' is ?[2J"),
    ({"task": []}, "'task' is [], an object"),
    ({"algorithm": {"name": "a", "hyperparameters": 3}}, "'algorithm.hyperparameters' is 3"),
    ({"partition": {"sizes": [1, -2]}}, "'partition.sizes' is [1, -2]"),
    ({"partition": {"sizes": ["1"]}}, "'partition.sizes'"),
    ({"partition": {"sizes": [2, 2], "label_counts": [[1, 1], [2]]}}, "equally long lists"),
    ({"partition": {"sizes": [2], "label_counts": [[]]}}, "equally long lists"),
    ({"partition": {"sizes": [2], "heterogeneity": "x"}}, "'partition.heterogeneity'"),
    ({"bytes": {"up_per_client": "many"}}, "'bytes.up_per_client' is many, a number or null"),
    ({"environment": ["3"]}, "'environment'"),
    ({"primary_metric": 5}, "'primary_metric' is 5, text or null"),
    ({"task": {"name": "x" * 10**6, "deep": json.loads("[" * 60 + "]" * 60)}}, "nested more than 50 deep"),
]


@pytest.mark.parametrize(("change", "reason"), DAMAGED, ids=lambda change: str(change)[:40])
def test_a_damaged_config_is_refused_by_field(here: Path, change: dict[str, Any], reason: str) -> None:
    write(here / "one", files(**change))
    for command in ("report", "resume"):
        error = refused(command, "one")
        assert reason in error and "one/config.json" in error


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("config.json", b"[" * 100_000, "nested too deeply"),
        ("config.json", b"\xff", "cannot be read"),
        ("config.json", b"{} {}", "cannot be read"),
        ("summary.json", b'{"status": ["completed"]}', "'status' is"),
        ("summary.json", b'{"status": "completed", "message": {}}', "'message' is {}"),
        ("history.jsonl", b"[" * 100_000 + b"\n", "line 1"),
        ("history.jsonl", b'{"round": 1e999}\n', "round inf after 0"),
        ("history.jsonl", b'{"round": 100000000000000000000}\n', "after 0"),
    ],
)
def test_damaged_files_are_named(here: Path, name: str, data: bytes, reason: str) -> None:
    write(here / "one", files() | {name: data})
    error = refused("report", "one")
    assert reason in error and name in error


def test_numbers_of_a_history_that_no_float_holds_are_left_out(here: Path) -> None:
    rows = b'{"round": 1, "train_loss": 1' + b"0" * 400 + b', "\\ud800": 2}\n{"round": 2, "train_loss": 1e999}\n'
    write(here / "one", files() | {"history.jsonl": rows})
    (run,) = load_runs(here / "one")
    assert "train_loss" not in run.rows and list(run.rows["round"]) == [1, 2]
    write_report(here / "one")


@pytest.mark.parametrize("values", [(1.7e308, 1.7e308), (1.7e308, -1.7e308), (1e200, 0.0)])
def test_seeds_whose_squares_no_float_holds_are_reported_on(here: Path, values: tuple[float, float]) -> None:
    for seed, value in enumerate(values):
        row = {"round": 1, "train_loss": 0.5, "test_distance": value, "bytes_up": 1.7e308, "bytes_down": 1.7e308}
        write(here / "runs" / str(seed), files(seed=seed) | {"history.jsonl": json.dumps(row).encode() + b"\n"})
    (row,) = final_table(load_runs(here / "runs")).to_dict("records")
    assert row["counted"] == sum(value < 1e100 and value > -1e100 for value in values)
    assert math.isnan(row["final_std"]) and math.isnan(row["total_bytes"])
    write_report(here / "runs")


def test_a_history_that_is_no_text_or_no_objects_is_not_resumed(here: Path) -> None:
    for data in (b"\xff\xfe\n", b"[1]\n", b"[" * 100_000 + b"\n"):
        (here / "history.jsonl").write_bytes(data)
        with pytest.raises(RunError, match="is damaged"):
            storage.read_rows(here, 1)


def test_sizes_far_apart_make_a_histogram_at_once() -> None:
    start = time.process_time()
    found = partition(config(partition={"sizes": [0, 1, 2**53]}))
    assert found is not None
    assert found.bins.sum() == 3 and len(found.bins) <= 24 and found.edges[-1] > 2**53
    assert time.process_time() - start < 1


@pytest.mark.parametrize("value", [10**400, -(10**400), [1], {}, "1e999", None])
def test_hyper_parameters_that_are_no_numbers_are_refused_by_name(here: Path, value: Any) -> None:
    write(here / "one", files(algorithm={"name": "fedavg", "hyperparameters": {"client_lr": value}}))
    assert "client_lr: " in refused("resume", "one", status=2)
    write(here / "two", files(algorithm={"name": "fedavg", "hyperparameters": {"client_lr": 0.1, "other": value}}))
    assert "hyper-parameter of fedavg: unknown name 'other'" in refused("resume", "two", status=2)

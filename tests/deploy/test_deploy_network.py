"""Real processes on loopback, with TLS and node authentication: the network computes what the eager round does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import fedoptax as fx
from federations import (
    ALGORITHMS,
    assert_params,
    deployment,
    need_flower,
    network_lines,
    processes_of,
    task_of,
    wait_until,
)
from fedoptax.storage.folder import read_json

need_flower()

from fedoptax.deploy.app_folder import write_app, write_keys  # noqa: E402
from fedoptax.deploy.local import LocalFederation, LocalSettings  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    work = tmp_path_factory.mktemp("federation")
    write_keys(work / "keys", 3)
    with LocalFederation(work, LocalSettings(3, time_limit=900)) as running:
        yield running
    assert processes_of(work) == {}


@pytest.fixture(scope="module")
def runs(federation: LocalFederation) -> Path:
    """Five rounds of four algorithms, all at once on one SuperLink."""

    def one(name: str) -> None:
        folder = federation.work / name
        out = folder / "run"
        write_app(folder / "app", replace(deployment(name), out=str(out)), f"trial-{name}")
        (folder / "run.toml").write_text("resume = false\n")
        federation.run(folder / "app", folder / "run.toml", folder / "log.txt", lambda: None)

    with ThreadPoolExecutor(len(ALGORITHMS)) as pool:
        list(pool.map(one, ALGORITHMS))
    return federation.work


@pytest.mark.parametrize("name", ALGORITHMS)
def test_five_rounds_over_the_network_equal_the_eager_round(runs: Path, name: str) -> None:
    given, out = deployment(name), runs / name / "run"
    algorithm = given.build_algorithm()
    wanted = fx.run(task_of(), algorithm, rounds=5, cohort_size=2, batch_size=50, seed=3, engine="eager", label=name)
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [set(row) for row in rows] == [set(row) for row in wanted.history]
    for row, simulated in zip(rows, wanted.history):
        assert row["train_loss"] == pytest.approx(simulated["train_loss"], rel=1e-4)
        assert row["test_accuracy"] == pytest.approx(simulated["test_accuracy"], abs=0.005)
        for column in ("round", "bytes_up", "bytes_down"):
            assert row[column] == simulated[column]
    assert_params(out, wanted.params)
    summary = read_json(out / "summary.json")
    assert (summary["status"], summary["rounds_done"]) == ("completed", 5)
    lines = network_lines(out)
    assert all(line["faults"] == [] and line["accepted"] == line["cohort"] for line in lines)
    for line, row in zip(lines[1:], rows[1:]):  # equal arrays, such as the zeros of the first round, are sent once
        assert row["bytes_down"] < line["wire_bytes_down"] < 3 * row["bytes_down"] + 20_000


def test_the_report_reads_the_runs(runs: Path) -> None:
    from fedoptax.report.load import load_runs

    assert [run.status for name in ALGORITHMS for run in load_runs(runs / name / "run")] == ["completed"] * 4


def test_client_states_are_on_the_nodes_for_their_owner_only(runs: Path) -> None:
    files = list((runs / "nodes").rglob("*.state"))
    assert files and {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_node_with_an_unregistered_key_is_refused(federation: LocalFederation, runs: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "other", 1)
    federation.stop_node(0)
    (log := runs / "nodes" / "0" / "log.txt").unlink()
    process = federation.start_node(0, key=tmp_path / "other" / "node-0")
    wait_until(lambda: process.poll() is not None or "uthenti" in log.read_text(), 60, "refusal")
    assert "SuperNode ID" not in log.read_text()
    federation.stop_node(0)


def test_a_node_without_the_ca_is_refused(federation: LocalFederation, runs: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "other", 1)
    federation.stop_node(1)
    (log := runs / "nodes" / "1" / "log.txt").unlink()
    process = federation.start_node(1, ca=tmp_path / "other" / "ca.crt")
    wait_until(lambda: process.poll() is not None or "onnection attempt failed" in log.read_text(), 60, "refusal")
    assert "SuperNode ID" not in log.read_text()
    federation.stop_node(1)

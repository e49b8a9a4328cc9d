"""Flower's real processes on loopback, with TLS and node authentication: equal to the simulation; hostile nodes."""

import json
import os
import re
import shlex
import signal
from dataclasses import replace

import numpy as np
import pytest

import fedoptax as fx
from command_line import fedoptax
from federations import (
    assert_params,
    deployment,
    expected_params,
    keys_of,
    network_lines,
    processes_of,
    task_of,
    wait_until,
    write_network,
)
from fedoptax._files import read_json
from fedoptax.deploy.app import write_app
from fedoptax.deploy.keys import make_keys, write_keys
from fedoptax.deploy.local import LocalFederation
from fedoptax.report.load import load_runs
from fedoptax.storage.history import read_rows

KINDS = ("fedadam", "fedlamb", "mime")  # without client states, with them, of two exchanges


def test_a_round_over_the_network_is_the_simulation_and_leaves_no_process(tmp_path, capsys):
    out, simulated = tmp_path / "run", tmp_path / "simulated"
    task = ["--task", "digits", "--model", "logistic", "--nodes", 1, "--batch-size", 100]
    algorithm = ["--algorithm", "fedadam", "--set", "client_lr=0.1", "--set", "server_lr=0.1", "--rounds", 1]
    limits = ["--time-limit", 600, "--wait-limit", 500]
    assert fedoptax("deploy", "local", *task, *algorithm, *limits, "--out", out, "--json") == 0
    wait_until(lambda: not processes_of(tmp_path), 10, "the processes end")
    text, told = capsys.readouterr()
    command = re.search("the same in simulation: fedoptax (.*)", told)
    assert "round 1 of 1: test_accuracy" in told
    assert command and fedoptax(*shlex.split(command[1]), "--out", simulated) == 0
    (row,), printed = read_rows(simulated, 1), json.loads(text)
    assert printed["rounds_done"] == 1 and printed["bytes_up"] == row["bytes_up"]
    with np.load(out / "params.npz") as ours, np.load(simulated / "params.npz") as wanted:
        assert set(ours) == set(wanted) == {"dense1/kernel", "dense1/bias"}
        for name, values in wanted.items():
            np.testing.assert_allclose(ours[name], values, rtol=1e-4, atol=2e-5)
            assert np.abs(values).max() > 1e-3
    assert fedoptax("deploy", "local", "--resume", out, "--rounds", 0) == 2


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    work = tmp_path_factory.mktemp("federation")
    write_keys(work / "keys", make_keys(3))
    with LocalFederation(work, 3, time_limit=1100) as running:
        yield running
    wait_until(lambda: not processes_of(work), 10, "the processes end")


@pytest.fixture(scope="module")
def runs(federation):
    """Five rounds of some algorithms on one SuperLink."""
    for name in KINDS:
        folder = federation.work / name
        given = replace(deployment(name), out=str(folder / "run"), **keys_of(federation.work / "keys"))
        write_app(folder / "app", given, f"trial-{name}")
        (folder / "run.toml").write_text("resume = false\n")
        federation.run(folder / "app", folder / "run.toml", folder / "log.txt", lambda: None)
    return federation.work


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_five_rounds_over_the_network_equal_the_eager_round(runs, name):
    given, out = deployment(name), runs / name / "run"
    algorithm = given.build_algorithm()
    wanted = fx.run(task_of(), algorithm, rounds=5, cohort_size=2, batch_size=50, seed=3, engine="eager", label=name)
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    for row, simulated in zip(rows, wanted.history):
        assert row.keys() == simulated.keys()
        assert row["train_loss"] == pytest.approx(simulated["train_loss"], rel=1e-4)
        assert row["test_accuracy"] == pytest.approx(simulated["test_accuracy"], abs=0.005)
        for column in ("round", "bytes_up", "bytes_down"):
            assert row[column] == simulated[column]
    assert_params(out, wanted.params)
    assert read_json(out / "summary.json")["status"] == "completed"
    for line in network_lines(out):
        assert line["faults"] == [] and line["accepted"] == line["cohort"]
    assert [run.status for run in load_runs(out)] == ["completed"]


FAULTY = '''"""A client that misbehaves by round and partition."""

import time

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedoptax.deploy.flower import client_app, to_record

good = client_app()
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return good(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    fault = message.content["order"]["round"], context.node_config["partition-id"]
    if fault == (3, 0):
        raise MemoryError("this node has no memory left")
    reply = good(message, context)
    packed, numbers = reply.content["arrays"]["arrays"].data, reply.content["metrics"]
    line, _, rest = packed.partition(b"\\n")
    if fault == (0, 0):
        numbers["train-loss"] = 1e39
    elif fault == (0, 1):
        packed = line + b"\\n" + np.full(len(rest) // 4, 1e30, np.float32).tobytes()
    elif fault == (1, 0):
        packed = line + b"\\n" + np.full(len(rest) // 4, np.nan, np.float32).tobytes()
    elif fault == (1, 1):
        packed = packed.replace(b"[10]", b"[1, 10]")
    elif fault == (2, 0):
        packed = packed.replace(b"{", b'{"more": ["float32", [5000000]], ') + bytes(20_000_000)
    elif fault == (2, 1):
        numbers["num-examples"] = -5
    elif fault == (3, 1):
        time.sleep(SLEEP)
    elif fault == (4, 0):
        packed = packed[:-1]
    reply.content["arrays"] = to_record(packed)
    return reply
'''


@pytest.mark.long
def test_faulty_and_dying_nodes_are_left_out_and_the_rest_is_exact(tmp_path):
    out = tmp_path / "run"
    given = deployment("scaffold", cohort_size=3, rounds=6, quorum=0.3, round_timeout=60.0, out=str(out))
    (write_network(tmp_path, given, 3, "faulty") / "client.py").write_text(FAULTY.replace("SLEEP", "90"))
    (tmp_path / "resume.toml").write_text("resume = true\nrounds = 8\n")
    with LocalFederation(tmp_path, 3, time_limit=1100) as federation:
        was_killed = False

        def watch() -> None:
            nonlocal was_killed
            if len(network_lines(out)) >= 5 and not was_killed:
                was_killed = True
                os.killpg(federation.nodes[2].pid, signal.SIGKILL)

        federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", watch)
        log = tmp_path / "nodes" / "2" / "log.txt"

        def has_returned() -> bool:  # the SuperLink refuses the node until it has missed the dead one's heartbeats
            if federation.nodes[2].poll() is not None:
                federation.start_node(2)
            return "SuperNode ID" in log.read_text()

        federation.start_node(2)
        wait_until(has_returned, 240, "the return of the killed node")
        federation.run(tmp_path / "app", tmp_path / "resume.toml", tmp_path / "log2.txt", lambda: None)
    wait_until(lambda: not processes_of(tmp_path), 10, "the processes end")
    lines = network_lines(out)
    faults = {(line["round"] - 1, fault["partition"]): fault["reason"] for line in lines for fault in line["faults"]}
    wanted = {
        (0, 1): "upload: norm", (1, 0): "NaN or infinity", (1, 1): "instead of ['float32'", (2, 0): "instead of none",
        (2, 1): "num-examples: -5", (3, 0): "no memory left", (3, 1): "no reply in time", (4, 0): "bytes",
        (0, 0): "train-loss", (4, 1): "did not answer",
    }  # fmt: skip
    assert all(text in faults[key] for key, text in wanted.items())
    assert was_killed and [line["accepted"] for line in lines[:5]] == [[2]] * 5
    seconds = [row["seconds"] for row in read_rows(out, 8)]
    assert seconds[4] < 60 <= seconds[3]  # a node that hangs costs one timeout
    text = (tmp_path / "log.txt").read_text()
    assert text.count("reply left out") >= 8 and "PRIVATE KEY" not in text
    assert read_json(out / "summary.json")["status"] == "completed"
    assert [line["accepted"] for line in lines[6:]] == [[0, 1, 2]] * 2  # it came back, and with its state
    assert_params(out, expected_params(given, [line["accepted"] for line in lines]))


@pytest.mark.long
def test_asynchronous_rounds_use_the_late_answers_of_a_slow_node(tmp_path):
    out = tmp_path / "run"
    rates = {"client_lr": 0.5, "server_lr": 0.1}
    given = deployment("fedadam", hyperparameters=rates, rounds=12, asynchronous=3, out=str(out))
    client = "import time\n\nfrom fedoptax.deploy import client, flower\n\ntrain = client.NodeClient.train\n"
    client += "client.NodeClient.train = lambda self, *a: (time.sleep(3 * (self.partition == 2)), train(self, *a))[1]\n"
    package = write_network(tmp_path, given, 3, "slow")
    (package / "client.py").write_text(client + "app = flower.client_app()\n")
    with LocalFederation(tmp_path, 3, time_limit=600) as federation:
        federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", lambda: None)
    wait_until(lambda: processes_of(tmp_path) == {}, 10, "the end of the worker that was still training")
    lines, rows = network_lines(out), read_rows(out, 12)
    assert all(len(line["accepted"]) == 2 and line["faults"] == [] for line in lines)
    late = [s for line in lines for i, s in zip(line["accepted"], line["staleness"]) if i == 2]
    assert late and max(late) >= 1
    assert [row["staleness"] for row in rows] == [sum(line["staleness"]) / 2 for line in lines]
    assert rows[-1]["test_accuracy"] > 0.5
    assert read_json(out / "summary.json")["status"] == "completed"

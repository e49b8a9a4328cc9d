"""Real processes that fail: wrong replies, late ones, a node that is killed and returns. Rounds go on without them."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from federations import assert_params, deployment, expected_params, need_flower, network_lines, processes_of, wait_until
from fedoptax.storage.folder import read_json

need_flower()

from fedoptax.deploy.app_folder import write_app, write_keys  # noqa: E402
from fedoptax.deploy.local import LocalFederation, LocalSettings  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

FAULTY = '''"""A client that misbehaves by round and partition."""

import time

import numpy as np
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from fedoptax.deploy.flower_client import client_app

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
    arrays, numbers = reply.content["arrays"], reply.content["metrics"]
    name = next(iter(arrays))
    if fault == (1, 0):
        arrays[name] = Array(np.full_like(arrays[name].numpy(), np.nan))
    elif fault == (1, 1):
        arrays[name] = Array(arrays[name].numpy().reshape(1, -1))
    elif fault == (2, 0):
        arrays[name] = Array(np.zeros(5_000_000, np.float32))
    elif fault == (2, 1):
        numbers["num-examples"] = -5
    elif fault == (3, 1):
        time.sleep(SLEEP)
    return reply
'''


def test_faulty_and_dying_nodes_are_left_out_and_the_rest_is_exact(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = deployment("scaffold", cohort_size=3, rounds=5, quorum=0.3, round_timeout=60.0, out=str(out))
    write_app(tmp_path / "app", given, "faulty")
    write_keys(tmp_path / "keys", 3)
    (tmp_path / "app" / "fedoptax_app" / "client_app.py").write_text(FAULTY.replace("SLEEP", "90"))
    (tmp_path / "run.toml").write_text("resume = false\n")
    (tmp_path / "resume.toml").write_text("resume = true\nrounds = 7\n")
    with LocalFederation(tmp_path, LocalSettings(3, time_limit=1100)) as federation:
        killed = threading.Event()

        def watch() -> None:
            if len(network_lines(out)) >= 4 and not killed.is_set():
                killed.set()
                os.killpg(federation.nodes[2].pid, signal.SIGKILL)

        federation.run(tmp_path / "app", tmp_path / "run.toml", tmp_path / "log.txt", watch)
        # The SuperLink takes the node back when it has missed the dead one's heartbeats, after about a minute.
        node_log = tmp_path / "nodes" / "2" / "log.txt"

        def returned() -> bool:
            federation.revive()
            return node_log.read_text().count("SuperNode ID") == 2

        wait_until(returned, 240, "the return of the killed node")
        federation.run(tmp_path / "app", tmp_path / "resume.toml", tmp_path / "log.txt", lambda: None)
    assert processes_of(tmp_path) == {}
    lines = network_lines(out)
    faults = dict[tuple[int, int], str]()
    for line in lines:
        for fault in line["faults"]:
            faults.setdefault((line["round"] - 1, fault["partition"]), fault["reason"])
    assert "NaN or infinity" in faults[1, 0]
    assert "instead of float32" in faults[1, 1]
    assert "instead of float32[" in faults[2, 0] or "bytes" in faults[2, 0]
    assert "num-examples: -5 instead of a whole number from 1" in faults[2, 1]
    assert "no memory left" in faults[3, 0]
    assert "no reply in time" in faults[3, 1]
    assert all(fault["node"] for line in lines for fault in line["faults"])
    assert killed.is_set() and [line["accepted"] for line in lines[:4]] == [[0, 1, 2], [2], [2], [2]]
    log = (tmp_path / "log.txt").read_text()
    assert log.count("reply left out") >= 5 and "PRIVATE KEY" not in log
    assert read_json(out / "summary.json")["status"] == "completed"
    assert [line["accepted"] for line in lines[5:]] == [[0, 1, 2]] * 2  # it came back, and with its state:
    assert_params(out, expected_params(replace(given), [line["accepted"] for line in lines]))

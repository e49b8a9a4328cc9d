"""Kill −9 of node, worker, server and proxy at random moments of a run: the result is the undisturbed one's."""

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from federations import (
    assert_params,
    deployment,
    expected_params,
    network_lines,
    processes_of,
    wait_until,
    write_network,
)
from fedoptax._files import read_json
from fedoptax.deploy.local import LocalFederation, free_ports
from fedoptax.deploy.proxy import make_proxy

ROUNDS, LAST = 30, 18  # the last round in which something may be due; a round takes about a second
VICTIMS = ["worker", "worker", "node", "server", "proxy"]
RETURN = 5.0  # seconds until a service manager starts a node again


class Chaos:
    """Kills what is due in a round, at a random moment of it, and starts nodes and proxy again."""

    def __init__(self, federation: LocalFederation, seed: int) -> None:
        self.federation, self.work, self.rng = federation, federation.work, random.Random(seed)
        (self.port,) = free_ports([0])
        (self.work / "nginx.conf").write_text(make_proxy(self.port, federation.port))
        self.due = sorted((self.rng.randint(2, LAST), self.rng.random(), kind) for kind in VICTIMS)
        self.done, self.returns = list[str](), 0.0
        self.start_proxy()
        for node in range(federation.num_nodes):
            self.kill(federation.nodes[node])
            federation.start_node(node, port=self.port)

    def start_proxy(self) -> None:
        command = ["nginx", "-e", "stderr", "-p", ".", "-c", "nginx.conf"]
        self.proxy = subprocess.Popen(command, cwd=self.work, stderr=subprocess.DEVNULL, start_new_session=True)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and all of its session."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def watch(self) -> None:
        """Called about twice a second."""
        for node, process in self.federation.nodes.items():
            if process.poll() is not None and time.monotonic() > self.returns:  # Flower refuses it for a minute
                self.federation.start_node(node, port=self.port)
                self.returns = time.monotonic() + RETURN
        if self.proxy.poll() is not None:
            self.start_proxy()
        if not self.due or len(network_lines(self.work / "run")) < self.due[0][0]:
            return
        _, moment, kind = self.due.pop(0)
        time.sleep(moment)
        self.done.append(kind)
        if kind == "proxy":
            self.kill(self.proxy)
        elif kind == "node":
            self.returns = time.monotonic() + RETURN
            self.kill(self.federation.nodes[self.rng.randrange(self.federation.num_nodes)])
        else:
            part = {"worker": "fedoptax.deploy.worker", "server": "flwr-serverapp"}[kind]
            while not (pids := [pid for pid, command in processes_of(self.work).items() if part in command]):
                time.sleep(0.1)
            os.kill(self.rng.choice(pids), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx (Debian: nginx-light)")
def test_killed_nodes_workers_servers_and_proxies_change_no_result(tmp_path: Path) -> None:
    out = tmp_path / "run"
    limits = {"quorum": 1.0, "round_timeout": 60.0, "wait_limit": 200.0}
    given = deployment("scaffold", rounds=ROUNDS, out=str(out), **limits)
    write_network(tmp_path, given, 3, "kills")
    with LocalFederation(tmp_path, 3, time_limit=3500) as federation:
        chaos = Chaos(federation, int.from_bytes(os.urandom(4)))
        print(chaos.due)  # shown if it fails
        try:
            for attempt in range(2 * len(VICTIMS)):
                settings = tmp_path / f"{attempt}.toml"
                settings.write_text(f"resume = {'true' if (out / 'config.json').is_file() else 'false'}\n")
                federation.run(tmp_path / "app", settings, tmp_path / f"log-{attempt}.txt", chaos.watch)
                if read_json(out / "summary.json")["status"] == "completed":
                    break
        finally:
            chaos.kill(chaos.proxy)
    wait_until(lambda: not processes_of(tmp_path), 20, "workers end with their nodes")
    assert sorted(chaos.done) == sorted(VICTIMS)
    lines = network_lines(out)
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    assert all(line["accepted"] == line["cohort"] and line["state_lost"] == [] for line in lines)
    assert_params(out, expected_params(given, [line["accepted"] for line in lines]))

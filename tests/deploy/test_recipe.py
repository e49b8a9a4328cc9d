"""docs/deploy.md is executed word for word: a server and two nodes as three hosts, in network namespaces."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from command_line import fedoptax
from federations import network_lines, processes_of, wait_until
from fedoptax.deploy.local import stop
from fedoptax.storage.history import read_rows

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
PAGE = Path("docs/deploy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'```bash title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL)
HOSTS = ("server", "node a", "node b")
NAME = "superlink.example.org"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30, capture_output=True)


class Hosts:
    """Three hosts on one bridge, each with a network namespace, a home of its own and a name that resolves."""

    def __init__(self, work: Path) -> None:
        self.work, self.started = work, list[subprocess.Popen[bytes]]()
        self.spaces = {host: f"fedoptax-{os.getpid()}-{number}" for number, host in enumerate(HOSTS)}

    def connect(self) -> None:
        server = self.spaces["server"]
        for number, (host, space) in enumerate(self.spaces.items()):
            self.home(host).mkdir()
            names = Path("/etc/netns", space)
            names.mkdir(parents=True)
            (names / "hosts").write_text(f"127.0.0.1 localhost\n10.83.0.1 {NAME}\n")
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            if number == 0:
                ip("-n", server, "link", "add", "lan", "type", "bridge")
            else:
                ip("-n", server, "link", "add", f"to{number}", "type", "veth", "peer", "name", "lan", "netns", space)
                ip("-n", server, "link", "set", f"to{number}", "master", "lan", "up")
            ip("-n", space, "addr", "add", f"10.83.0.{number + 1}/24", "dev", "lan")
            ip("-n", space, "link", "set", "lan", "up")

    def home(self, host: str) -> Path:
        return self.work / host.replace(" ", "-")

    def start(self, host: str, script: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a script in a host's home; return its process and its log."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "FLOWER_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        log = self.work / f"log-{len(self.started)}.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.spaces[host], "bash", "-ec", script],
                cwd=self.home(host), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={**kept, "PATH": path, "HOME": str(self.home(host)), "FLWR_TELEMETRY_ENABLED": "0"},
            )  # fmt: skip
        self.started.append(process)
        return process, log

    def run(self, host: str, script: str) -> str:
        """Run a script to its end; return what it wrote."""
        process, log = self.start(host, script)
        process.wait(600)
        assert process.returncode == 0, f"{script}\n{log.read_text()}"
        return log.read_text()

    def start_superlink(self, host: str, script: str) -> subprocess.Popen[bytes]:
        process, log = self.start(host, script)
        wait_until(lambda: "Uvicorn running" in log.read_text() or process.poll() is not None, 120, "the SuperLink")
        assert process.poll() is None, log.read_text()
        return process

    def close(self) -> None:
        stop(self.started)
        for pid in processes_of(self.work):  # those whose parents were killed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], timeout=30, capture_output=True)
            shutil.rmtree(Path("/etc/netns", space), ignore_errors=True)


@pytest.fixture
def hosts(tmp_path):
    if missing := [name for name in ("ip", "nginx", "ssh-keygen") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)} (Debian: iproute2, nginx-light, openssh-client)")
    probe = f"fedoptax-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, timeout=30).returncode:
        pytest.skip("needs network namespaces (`ip netns add`), so root and a kernel that has them")
    ip("netns", "del", probe)
    made = Hosts(tmp_path)
    try:
        made.connect()
        yield made
    finally:
        made.close()


def test_the_recipe_runs_as_it_is_written_and_survives_a_killed_superlink(hosts):
    assert [host for host, _ in BLOCKS] == ["node a", "node b", *["server"] * 4, "node a", "node b", *["server"] * 4]
    key_a, key_b, init, superlink, proxy, register, node_a, node_b, run, resume, status, evaluate = BLOCKS
    server, out = hosts.home("server"), hosts.home("server") / "federation" / "runs" / "a"

    for host, script in (key_a, key_b):
        hosts.run(host, script)
        for public in hosts.home(host).glob("*.pub"):  # institutions send the public halves
            shutil.copy(public, server)
    hosts.run(*init)
    for host in HOSTS[1:]:
        shutil.copy(server / "federation" / "keys" / "ca.crt", hosts.home(host))
    first = hosts.start_superlink(*superlink)
    hosts.start(*proxy)
    hosts.run(*register)
    nodes = [hosts.start(*node) for node in (node_a, node_b)]
    for port, opens in ((8443, True), (8000, False)):  # nodes reach the proxy, and not the operators' port
        ask = f"{sys.executable} -c \"import socket; socket.create_connection(('{NAME}', {port}), 5)\""
        process, _ = hosts.start("node a", ask)
        assert (process.wait(60) == 0) == opens, port

    hosts.start(*run)
    wait_until(lambda: len(network_lines(out)) >= 3, 400, "three rounds")
    family = [psutil.Process(first.pid), *psutil.Process(first.pid).children()]  # bash, if it waits, and the SuperLink
    next(each for each in family if "flower-superlink" in each.cmdline()[1]).kill()
    first.wait(30)
    hosts.start_superlink(*superlink)
    told = hosts.run(*resume)  # with the nodes as they are
    assert "completed after round 10 of 10" in told, told
    assert all(process.poll() is None for process, _ in nodes)
    assert "completed: 10 of 10 rounds are done" in hosts.run(*status)

    command = re.search("the same in simulation: fedoptax (.*)", told)
    assert command and fedoptax(*shlex.split(command[1]), "--out", hosts.work / "simulated") == 0
    (*_, last), (*_, simulated) = read_rows(out, 10), read_rows(hosts.work / "simulated", 10)
    assert abs(last["test_accuracy"] - simulated["test_accuracy"]) < 1.5 / 359  # one example at most
    assert last["test_accuracy"] > 0.95

    hosts.run(*evaluate)
    (row,) = read_rows(out.with_name("a-evaluated"), 1)
    assert row["evaluated"] == 2 and row["nodes_accuracy"] == pytest.approx(last["test_accuracy"])

"""What `deploy init` writes: an app that reads back as it was, keys that nobody else may read; and wrong settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import deployment, need_flower, processes_of, wait_until
from fedoptax.deploy import guard
from fedoptax.deploy.config import Deployment, build_task, from_table, to_table
from fedoptax.deploy.processes import Processes, free_ports, wait_for_port
from fedoptax.errors import RunError, UsageError


def flat(table: dict[str, Any]) -> dict[str, Any]:
    """As Flower hands a table to the app."""
    inner = {f"{k}.{n}": v for k, values in table.items() if isinstance(values, dict) for n, v in values.items()}
    return {k: v for k, v in table.items() if not isinstance(v, dict)} | inner


def test_a_deployment_comes_back_from_its_table() -> None:
    given = deployment("fafed", hyperparameters={"lr": 1, "rule": "adam", "x": True}, quorum=1, resume=True)
    assert from_table(flat(to_table(given))) == given


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"rounds": "5"}, "type int"), ({"rounds": True}, "type int"), ({"quorum": 0.0}, "quorum"),
     ({"quorum": 1.5}, "quorum"), ({"colour": 1}, "allowed are"), ({"round-timeout": -1.0}, "round_timeout"),
     ({"round-timeout": float("nan")}, "round_timeout"), ({"rounds.x": 1}, "allowed are"),
     ({"weighting": "a"}, "weighting"),
     ({"max-examples": -1}, "max_examples"), ({"checkpoint-every": 0}, "checkpoint_every")],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_table(flat(to_table(deployment())) | wrong)


PRIVACY = "clip=1.0,noise_multiplier=2.0,delta=1e-4"


@pytest.mark.parametrize("text", [PRIVACY, f"{PRIVACY},seed=none"])
def test_nodes_never_get_the_seed_of_the_noise(text: str) -> None:
    import jax

    given = from_table(flat(to_table(deployment("fedadam", privacy=text))))
    assert given.privacy == f"{PRIVACY},seed=none"
    server, node = (given.build_algorithm().init({"w": np.zeros(2, np.float32)}) for _ in range(2))
    assert not np.array_equal(jax.random.key_data(server.key), jax.random.key_data(node.key))


def test_a_seed_of_the_noise_that_nodes_would_get_is_refused() -> None:
    with pytest.raises(UsageError, match=r"seed=0' given, allowed is no seed .* subtract the noise"):
        deployment("fedadam", privacy=f"{PRIVACY},seed=0")


def test_lists_cannot_stand_in_the_config() -> None:
    with pytest.raises(UsageError, match="allowed are texts, numbers"):
        to_table(deployment(hyperparameters={"client_lr": [0.1]}))


def test_a_task_can_be_a_function_of_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_deployed_task.py").write_text(
        "from fedoptax import load_task\ndef make(partition):\n    return load_task('digits', num_clients=3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert build_task(Deployment({"name": "own_deployed_task:make"}, "fedavg"), 1).clients.num_clients == 3
    for name in ("own_deployed_task:other", "nowhere:make"):
        with pytest.raises(UsageError, match="MODULE:FUNCTION"):
            build_task(Deployment({"name": name}, "fedavg"))


def test_the_app_folder_reads_back_and_holds_no_secret(tmp_path: Path) -> None:
    need_flower()
    from fedoptax.deploy.app_folder import read_app, write_app, write_keys

    given = deployment("scaffold", out='runs/a "quoted" \\ name\n \x7f \x85 é \U0001f680')
    with pytest.raises(UsageError, match="characters of Unicode"):
        write_app(tmp_path / "app", deployment("scaffold", out="runs/\udcff"), "trial")
    write_app(tmp_path / "app", given, "trial")
    write_keys(tmp_path / "keys", 2)
    assert read_app(tmp_path / "app") == given
    text = "".join(path.read_text() for path in (tmp_path / "app").rglob("*") if path.is_file())
    assert "PRIVATE" not in text and str(tmp_path) not in text
    table = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert table["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedoptax_app.server_app:app"
    with pytest.raises(UsageError, match="new or empty"):
        write_app(tmp_path / "app", given, "trial")
    (tmp_path / "app" / "pyproject.toml").write_text("[tool")
    with pytest.raises(UsageError, match="allowed is the"):
        read_app(tmp_path / "app")


def test_private_keys_have_mode_600_and_certificates_name_their_hosts(tmp_path: Path) -> None:
    need_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    from fedoptax.deploy.app_folder import write_keys

    before = os.umask(0)
    try:
        write_keys(tmp_path / "keys", 2, ("superlink.example.org", "192.0.2.7"))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()}
    private = {name for name, mode in modes.items() if mode == 0o600}
    assert private == {"server.key", "node-0", "node-1"} and (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "keys").iterdir():
        assert ("PRIVATE KEY" in path.read_text()) == (path.name in private)
    ca, server = (
        x509.load_pem_x509_certificate((tmp_path / "keys" / n).read_bytes()) for n in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    key = load_ssh_private_key((tmp_path / "keys" / "node-0").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "keys" / "node-0.pub").read_bytes())
    assert key.public_key() == public


@pytest.mark.parametrize("host", ["", "münchen.example", "a b", "a..b", "x" * 64, f"{'a.' * 127}aa"])
def test_a_host_that_no_certificate_can_name_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    need_flower()
    from fedoptax.deploy import commands

    with pytest.raises(UsageError, match=r"--host: .* given, allowed is an address"):
        commands._write(tmp_path / "new", deployment(), 1, ("superlink.example.org", host))
    assert not (tmp_path / "new").exists()


STUBBORN = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
CHILD = STUBBORN + "time.sleep(600)"
PARENT = STUBBORN + f"subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True); time.sleep(600)"


def test_processes_end_with_their_children_even_if_they_do_not_want_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "GRACE", 0.5)
    with Processes(60) as processes:
        mark = f"{tmp_path}-child"
        environment = {**os.environ, "MARK": mark}
        group = processes.start([sys.executable, "-c", PARENT], tmp_path / "log", environment).pid
        wait_until(lambda: len(processes_of(Path(mark))) == 2, 30, "a child in a session of its own")
    assert not guard.alive(group) and processes_of(Path(mark)) == {}
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_processes_end_when_their_owner_is_killed_or_the_time_is_up(tmp_path: Path) -> None:
    for seconds, kill in ((600, True), (2, False)):
        code = (
            "import os, sys, time\nfrom pathlib import Path\nfrom fedoptax.deploy.processes import Processes\n"
            f"with Processes({seconds}) as p:\n"
            "    command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
            f"    log = Path({str(tmp_path / 'log')!r})\n"
            "    g = p.start(command, log, os.environ)\n"
            "    print(g.pid, flush=True)\n    time.sleep(600)\n"
        )
        owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        assert guard.alive(group)
        if kill:
            owner.send_signal(signal.SIGKILL)
        end = time.monotonic() + 15
        while _running(group) and time.monotonic() < end:
            time.sleep(0.1)
        owner.kill()
        owner.wait()
        owner.stdout.close()
        assert not _running(group)


def _running(group: int) -> bool:
    """Whether the process is there and not just waiting for its parent to take note of its end."""
    try:
        return Path(f"/proc/{group}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_is_not_there_or_does_not_listen_is_one_line(tmp_path: Path) -> None:
    with Processes(60) as processes:
        with pytest.raises(RunError, match="cannot be started"):
            processes.start([str(tmp_path / "nothing")], tmp_path / "log", {})
        ended = processes.start([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", os.environ)
        with pytest.raises(RunError, match="the thing ended with status 3"):
            wait_for_port(free_ports(1)[0], ended, 10, "the thing")

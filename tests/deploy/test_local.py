"""`fedoptax deploy local` as a person uses it: refusals, Ctrl-C, a killed server, resuming; no process is left."""

import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import fedoptax as fx
from command_line import fedoptax, parse
from federations import assert_params, deployment, expected_params, keys_of, network_lines, processes_of, wait_until
from fedoptax._files import read_json, write_json
from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.deploy import make_deployment
from fedoptax.cli.main import read_form
from fedoptax.cli.options import InitForm, LocalForm
from fedoptax.deploy import local as local_module
from fedoptax.deploy.app import read_app, write_app
from fedoptax.deploy.config import build_task
from fedoptax.deploy.keys import make_keys, write_keys
from fedoptax.deploy.local import LocalFederation, stop
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.storage.history import read_rows

DOCUMENTED = re.findall(
    r"fedoptax deploy \w+ [^\n]*--task digits(?:[^\\\n]|\\\n)*", Path("docs/deploy.md").read_text(encoding="utf-8")
)


@pytest.mark.long
@pytest.mark.parametrize("command", DOCUMENTED)
def test_the_examples_of_the_docs_learn_as_well_as_tuned_rates(command):
    given = parse(command.replace("\\\n", "")).params
    form = InitForm if "init" in command else LocalForm
    made = make_deployment(read_form(form, given), given["nodes"] or 4)
    options = {"rounds": made.rounds, "cohort_size": made.cohort_size, "batch_size": made.batch_size}
    task, make = build_task(made), ALGORITHMS[made.algorithm]
    grid = {"client_lr": [0.1, 0.3, 1.0], "server_lr": [0.03, 0.1, 0.3, 1.0]}
    tuned = [point.history.last("test_accuracy") for point in fx.sweep(task, make, grid=grid, **options)]
    reached = fx.run(task, made.build_algorithm(), **options).history.last("test_accuracy")
    assert reached >= max(tuned) - 0.01


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_quickstart_reaches_the_accuracy_of_its_simulation(tmp_path, monkeypatch, capsys):
    (readme,) = re.findall("fedoptax (deploy local [^\n#]*)", Path("README.md").read_text(encoding="utf-8"))
    (documented,) = [command.removeprefix("fedoptax ") for command in DOCUMENTED if "deploy local" in command]
    given = [read_form(LocalForm, parse(f"fedoptax {command}").params) for command in (readme, documented)]
    assert make_deployment(given[0], 4) == make_deployment(given[1], 4)
    monkeypatch.chdir(tmp_path)
    assert fedoptax(*shlex.split(documented)) == 0
    command = re.search("the same in simulation: fedoptax (.*)", capsys.readouterr().err)
    assert command and fedoptax(*shlex.split(command[1]), "--out", "simulated") == 0
    reached, simulated = (read_rows(tmp_path / out, 5)[-1]["test_accuracy"] for out in ("runs/network", "simulated"))
    assert abs(reached - simulated) < 1.5 / 359  # one test example at most
    assert reached > 0.92


LOGISTIC = ["--task", "digits", "--model", "logistic", "--algorithm", "fedavg", "--set", "client_lr=0.1"]


def test_init_writes_an_app_and_keys_once(tmp_path, capsys):
    folder = tmp_path / "new"
    assert fedoptax("deploy", "init", folder, "--nodes", 2, "--host", "a b", *LOGISTIC) == 2
    assert fedoptax("deploy", "init", folder, "--nodes", 2, "--privacy", "clip=1,noise_multiplier=1,delta=1e-3,seed=1",
                    *LOGISTIC) == 2  # fmt: skip
    assert fedoptax("deploy", "init", folder, "--nodes", 0, *LOGISTIC) == 2
    assert not folder.exists()
    assert fedoptax("deploy", "init", folder, "--nodes", 2, *LOGISTIC, "--rounds", 7, "--quorum", 0.9) == 0
    assert f"deploy local --app {folder}" in capsys.readouterr().out
    made = read_app(folder / "app")
    assert (made.rounds, made.quorum, made.cohort_size, made.task["num_clients"]) == (7, 0.9, 2, 2)
    assert len(list((folder / "keys").glob("node-*.pub"))) == 2 and made.nodes == keys_of(folder / "keys")["nodes"]
    assert fedoptax("deploy", "init", folder, *LOGISTIC) == 2
    own = tmp_path / "own"
    assert fedoptax("deploy", "init", own, "--nodes", 3, "--task", "fedoptax_app.task:make", "--algorithm", "fedavg",
                    "--set", "client_lr=0.1") == 0  # fmt: skip
    assert read_app(own / "app").cohort_size == 3
    make = runpy.run_path(str(own / "app" / "fedoptax_app" / "task.py"))["make"]
    assert (make(None).num_clients, make(1).num_clients) == (3, 1)


SMALL_TASK = "import fedoptax as fx\nmake = lambda i: fx.load_task('digits', num_clients=2)"
FAILING = "raise KeyError('age, of which the table has no column: ' + 300 * 'x')"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("def make(partition): " + FAILING, 300 * "x"), ("import nowhere", "No module named 'nowhere'"),
     ("import fedoptax as fx\nmake = lambda i: fx.load_task('digits', num_clients=4)", "clients must be <= 2, got 4")],
)  # fmt: skip
def test_a_task_of_the_current_folder_comes_into_the_app_and_is_called_before_anything_starts(
    tmp_path, monkeypatch, capsys, text, reason
):
    monkeypatch.chdir(tmp_path)
    made = ["--nodes", 2, "--task", "mine:make", "--algorithm", "rule:make", "--set", "client_lr=0.1"]
    Path("rule.py").write_text("import fedoptax as fx\nmake = lambda client_lr, **more: fx.fedavg(client_lr, **more)")
    for source, status in ((text, 2), (SMALL_TASK, 0)):
        Path("mine.py").write_text(source)
        assert fedoptax("deploy", "init", "new", *made) == status and Path("new").exists() == (status == 0)
    assert Path("new/app/fedoptax_app/task.py").read_text() == SMALL_TASK
    assert read_app(Path("new/app")).algorithm == "fedoptax_app.algorithm:make"
    Path("new/app/fedoptax_app/task.py").write_text(text)
    assert fedoptax("deploy", "local", "--app", "new", "--out", "out") == 2
    assert capsys.readouterr().err.count(reason) == 2 and not Path("out").exists() and not Path("new/nodes").exists()


def test_a_key_is_given_its_partition_and_can_lose_it(tmp_path, capsys):
    for name in "abcd":
        make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", f"clinic {name}", "-f", tmp_path / name]
        subprocess.run(make, check=True, timeout=30)
    (tmp_path / "rsa.pub").write_text("ssh-rsa AAAA nobody\n")
    (tmp_path / "new.pub").write_text("ssh-new AAAA nobody\n")
    a, b, c, d = (tmp_path / f"{name}.pub" for name in "abcd")
    folder = tmp_path / "new"
    own = ["--task", "fedoptax_app.task:make", "--algorithm", "fedavg", "--set", "client_lr=0.1"]
    for kind in ("rsa", "new"):
        assert fedoptax("deploy", "init", folder, "--key", a, "--key", tmp_path / f"{kind}.pub", *own) == 2
    assert fedoptax("deploy", "init", folder, "--key", a, "--task", "fedoptax_app.client:make", *own[2:]) == 2
    assert fedoptax("deploy", "init", folder, "--key", a, "--key", a, *own) == 2
    assert fedoptax("deploy", "init", folder, "--key", a, "--nodes", 2, *own) == 2
    assert not folder.exists()
    assert fedoptax("deploy", "init", folder, "--key", a, "--key", b, *own) == 0
    assert fedoptax("deploy", "local", "--app", folder, "--out", tmp_path / "out") == 2  # the keys are with the nodes
    assert fedoptax("deploy", "add-node", folder, c) == 0 and "must now have 3" in capsys.readouterr().out
    assert fedoptax("deploy", "add-node", folder, d, "--partition", 4) == 2
    assert fedoptax("deploy", "add-node", folder, a, "--partition", 1) == 2
    assert fedoptax("deploy", "add-node", folder, d, "--partition", 1) == 0
    nodes = read_app(folder / "app").nodes
    assert nodes == keys_of(folder / "keys")["nodes"]
    assert [nodes[i][-8:] for i in "012"] == ["clinic a", "clinic d", "clinic c"]
    shown = subprocess.run(["ssh-keygen", "-l", "-f", d], check=True, timeout=30, capture_output=True, text=True).stdout
    assert nodes["1"] in shown
    named = tmp_path / "named"
    assert fedoptax("deploy", "init", named, "--key", a, "--key", b, *LOGISTIC) == 0
    assert fedoptax("deploy", "add-node", named, c) == 2  # the task has two clients
    assert "--partition must be set, as the task has 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["--nodes", 0], "nodes"), (["--nodes", 2, "--num-clients", 3], "nodes"), (["--port", 80], "port"),
     (["--nodes", 2, "--node-port", 65535], "--node-port"), (["--time-limit", 0], "--time-limit"),
     (["--start-timeout", "inf"], "--start-timeout"), (["--quorum", 2], "quorum"),
     (["--asynchronous", 9], "asynchronous"), (["--data-file", "a.csv"], "without --schema"),
     (["--staleness-exponent", -1], "--staleness-exponent"), (["--resume", "missing"], "pyproject")],
)  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_starts(tmp_path, capsys, arguments, name):
    given = [str(tmp_path / a) if a == "missing" else a for a in arguments]
    out = [] if "--resume" in arguments else ["--out", tmp_path / "run"]
    assert fedoptax("deploy", "local", *given, *out, *([] if "--resume" in arguments else LOGISTIC)) == 2
    error = capsys.readouterr().err
    assert name in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_keeps_its_app_and_its_rounds(tmp_path, capsys):
    out, work = tmp_path / "run", tmp_path / "run-network"
    write_app(work / "app", deployment("fedadam", rounds=4))
    (work / "keys").mkdir()
    for name in ("node-0", "node-0.pub"):
        (work / "keys" / name).touch()
    (out / "checkpoints" / "6").mkdir(parents=True)
    write_json(out / "config.json", {"rounds": 8})
    for wrong, name in (
        (["--rounds", 5], "--rounds"), (["--nodes", 2], "--nodes"), (["--seed", 0], "--seed"),
        (["--set", "client_lr=1"], "--set"), (["--out", tmp_path / "other"], "--out"),
    ):  # fmt: skip
        assert fedoptax("deploy", "local", "--resume", out, *wrong) == 2
        assert name in capsys.readouterr().err
    assert fedoptax("deploy", "local", "--resume", out, "--round", 5) == 2
    assert "one of [6], got 5" in capsys.readouterr().err and not (work / "superlink").exists()
    server = socket.create_server(("127.0.0.1", 0))
    with server:  # the SuperLink's port is taken
        port = server.getsockname()[1]
        assert fedoptax("deploy", "local", "--resume", out, "--port", port, "--start-timeout", 30) == 1
    assert re.search(rf"port {port} cannot be used: .*--resume {out} --rounds 8", capsys.readouterr().err)
    wait_until(lambda: not processes_of(tmp_path), 10, "the processes end")


def test_a_run_that_cannot_begin_does_not_pass_for_the_completed_one_before(tmp_path, monkeypatch, capsys):
    out, work = tmp_path / "run", tmp_path / "run-network"
    write_app(work / "app", deployment("fedadam", rounds=4))
    write_keys(work / "keys", make_keys(1))
    write_json(out / "summary.json", {"status": "completed", "rounds_done": 4})
    refusal = "UsageError: the run in the folder is another"
    monkeypatch.setattr(LocalFederation, "_start", lambda federation: None)
    monkeypatch.setattr(LocalFederation, "run", lambda federation, app, config, log, watch: log.write_text(refusal))
    assert fedoptax("deploy", "local", "--resume", out) == 1  # flwr run itself ends with 0 whatever happens
    assert refusal in capsys.readouterr().err


STUBBORN = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
CHILD = STUBBORN + "time.sleep(600)"
PARENT = STUBBORN + f"subprocess.Popen([sys.executable, '-c', {CHILD!r}], start_new_session=True); time.sleep(600)"


def test_processes_end_with_their_children_even_against_their_will(tmp_path, monkeypatch):
    monkeypatch.setattr(local_module, "GRACE", 0.5)
    process = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    family = psutil.Process(process.pid)
    wait_until(family.children, 30, "a child in a session of its own")
    (child,) = family.children()
    stop([process])
    assert process.poll() is not None and not child.is_running()


def start(*arguments: str) -> subprocess.Popen[str]:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "from fedoptax.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code, "deploy", "local", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("program", "seconds"), [("flwr-serverapp", 10), ("flower-superlink", 60)])
def test_ctrl_c_and_a_killed_server_lose_no_round_and_leave_no_process(tmp_path, program, seconds):
    out, work = tmp_path / "run", tmp_path / "run-network"
    given = deployment("scaffold", hyperparameters={"client_lr": 0.05, "server_lr": 1.0}, rounds=5, out=str(out))
    new = ["--nodes=3", "--algorithm=scaffold", "--set=client_lr=0.05", "--set=server_lr=1.0", "--rounds=5", "--seed=3"]
    new += ["--cohort-size=2", "--batch-size=50", "--quorum=1.0", f"--out={out}", "--model=logistic"]
    new += ["--partition=dirichlet-by-class"]

    first = start(*new)
    wait_until(lambda: len(network_lines(out)) >= 1 or first.poll() is not None, 400, "a round")
    first.send_signal(signal.SIGINT)
    _, error = first.communicate(timeout=60)
    assert first.returncode == 130, error
    assert "stopped after round" in error and f"--resume {out}" in error
    wait_until(lambda: not processes_of(work), 10, "the processes end")
    assert read_json(out / "summary.json")["status"] == "interrupted"

    second = start("--resume", str(out))
    wait_until(lambda: len(network_lines(out)) >= 3 or second.poll() is not None, 400, "another round")
    assert second.poll() is None, second.communicate()
    (server,) = [pid for pid, command in processes_of(work).items() if program in command]
    os.kill(server, signal.SIGKILL)
    _, error = second.communicate(timeout=300)
    assert second.returncode == 1 and f"--resume {out}" in error, error
    wait_until(lambda: not processes_of(work), seconds, "the processes end")
    assert read_json(out / "summary.json")["rounds_done"] == max(rounds_of(out)) >= 2

    third = start("--resume", str(out), "--json")
    text, error = third.communicate(timeout=600)
    assert third.returncode == 0, error
    assert '"rounds_done": 5' in text
    wait_until(lambda: not processes_of(work), 10, "the processes end")
    assert_params(out, expected_params(given, [line["accepted"] for line in network_lines(out)]))

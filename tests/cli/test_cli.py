"""The command line as a person meets it: commands, files, errors in one line, exit statuses, Ctrl-C, quiet pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedoptax.cli.command_options import again, with_preset
from fedoptax.cli.main import main

SMALL = ["--task", "digits", "--model", "logistic", "--num-clients", "8", "--cohort-size", "3", "--rounds", "4"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's: no data folder, a new cache."""
    monkeypatch.delenv("FEDOPTAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def fedoptax(*arguments: object) -> int:
    """Runs the command in this process and gives its exit status."""
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    return int(stopped.value.code or 0)


def test_run_writes_results_and_report_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    assert fedoptax("run", *SMALL, "--algorithm", "fedadam", "--set", "server_lr=0.03", "--out", out) == 0
    printed = capsys.readouterr()
    assert "test_accuracy" in printed.out and printed.out.endswith(f"results: {out}\n")
    assert printed.err == ""  # no terminal: no bar
    config = json.loads((out / "config.json").read_text())
    assert config["algorithm"]["hyperparameters"]["server_lr"] == 0.03
    assert (config["cohort_size"], config["task"]["num_clients"]) == (3, 8)
    assert len((out / "history.jsonl").read_text().splitlines()) == 4
    assert json.loads((out / "summary.json").read_text())["status"] == "completed"
    assert (out / "params.npz").is_file()
    assert fedoptax("report", out) == 0
    assert capsys.readouterr().out == f"report: {out / 'report.html'}\n"
    assert {"report.html", "table.csv", "table.md", "history.csv", "figures"} <= {p.name for p in out.iterdir()}


def test_compare_runs_all_over_seeds_and_ends_with_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b"
    given = ["--algorithms", "fedavg,fedadam", "--seeds", "2", "--set", "fedadam.tau=0.01"]
    assert fedoptax("compare", *SMALL, *given, "--out", out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert sorted(p.parent.relative_to(out).as_posix() for p in out.rglob("config.json")) == [
        f"{name}/seed-{seed}" for name in ("fedadam", "fedavg") for seed in (0, 1)
    ]
    rows = [
        json.loads((out / name / "seed-1" / "history.jsonl").read_text().splitlines()[0])
        for name in ("fedavg", "fedadam")
    ]
    config = json.loads((out / "fedadam" / "seed-0" / "config.json").read_text())
    assert config["algorithm"]["hyperparameters"]["tau"] == 0.01
    assert rows[0]["bytes_down"] == rows[1]["bytes_down"]
    # What is complete is not run again; what is missing is.
    (out / "fedadam" / "seed-1" / "summary.json").unlink()
    before = (out / "fedavg" / "seed-0" / "history.jsonl").read_bytes()
    assert fedoptax("resume", out) == 0
    assert (out / "fedavg" / "seed-0" / "history.jsonl").read_bytes() == before
    assert (out / "fedadam" / "seed-1" / "summary.json").is_file()


def test_json_output_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedoptax("run", *SMALL, "--out", tmp_path / "a", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rounds"] == 4 and 0 <= printed["final"]["test_accuracy"] <= 1
    assert fedoptax("list", "algorithms", "--json") == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"fedavg", "fedavgm", "fedadagrad", "fedyogi", "fedadam", "fedams", "fedamsgrad"} <= set(names)
    assert fedoptax("list", "tasks", "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)][:3] == ["digits", "mnist", "fashion-mnist"]


def test_bytes_are_those_of_the_real_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "digits", "--model", "logistic", "--cohort-size", "3", "--rounds", "4"]
    assert fedoptax("bytes", *options, "--algorithm", "fedavg,fedadam", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    size = 4 * (64 * 10 + 10)
    for row in rows:
        assert (row["down_per_client"], row["up_per_round"], row["up_total"]) == (size, 3 * size, 12 * size)
    assert fedoptax("run", *SMALL, "--algorithm", "fedavg", "--out", tmp_path / "a") == 0
    history = [json.loads(line) for line in (tmp_path / "a" / "history.jsonl").read_text().splitlines()]
    assert sum(row["bytes_up"] for row in history) == rows[0]["up_total"]
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["bytes_down"] == rows[0]["down_total"]
    assert fedoptax("bytes", *options) == 0
    assert "7,800" in capsys.readouterr().out


def test_resume_continues_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    assert fedoptax("run", *SMALL, "--out", out) == 0
    assert fedoptax("resume", out, "--rounds", "6") == 0
    assert [json.loads(line)["round"] for line in (out / "history.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    capsys.readouterr()
    assert fedoptax("resume", out, "--rounds", "3") == 2
    assert "--rounds: 3 given, allowed is at least the 6 that are done" in capsys.readouterr().err


WRONG = [
    (["run", "--task", "digit"], 2, "unknown name 'digit'; did you mean 'digits'?"),
    (["run", "--algorithm", "fedadm"], 2, "algorithm: unknown name 'fedadm'; did you mean 'fedadam'?"),
    (["run", "--algoritm", "fedadam"], 2, "--algoritm"),
    (["run", "--set", "client_lr=-0.1"], 2, "client_lr: -0.1 given, allowed is a number > 0"),
    (["run", "--set", "clientlr=0.1"], 2, "--set: hyper-parameter: unknown name 'clientlr'; did you mean 'client_lr'?"),
    (["run", "--set", "client_lr"], 2, "--set: 'client_lr' given, allowed is NAME=VALUE"),
    (["run", "--set", "fedavg.client_lr=1"], 2, "--set: algorithm: unknown name 'fedavg'"),
    (["run", "--cohort-size", "51"], 2, "cohort_size: 51 given, allowed is at most the number of clients, 50"),
    (["run", "--rounds", "0"], 2, "rounds: 0 given"),
    (["run", "--partition-seed", "-1"], 2, "seed of the partition: -1 given, allowed is a whole number from 0"),
    (["run", "--rounds", "many"], 2, "--rounds"),
    (["run", "--partition", "random"], 2, "unknown name 'random'"),
    (["run", "--alpha", "0"], 2, "alpha"),
    (["run", "--model", "transformer"], 2, "model of task 'digits': unknown name 'transformer'"),
    (["run", "--num-clients", "0"], 2, "num_clients"),
    (["run", "--preset", "paper"], 2, "--preset (of task 'digits'): unknown name 'paper'"),
    (["run", "--preset", "none"], 2, "fedadam: client_lr is needed and no preset has it; give --set client_lr=VALUE"),
    (["run", "--algorithm", "nowhere:alg", "--preset", "none"], 2, "No module named 'nowhere'"),
    (["run", "--engine", "fast"], 2, "engine: 'fast' given"),
    (["compare", "--algorithms", "fedavg,fedavg"], 2, "--algorithms: 'fedavg,fedavg' given"),
    (["compare", "--seeds", "0"], 2, "--seeds: 0 given"),
    (["compare", "--cohort-size", "51"], 2, "cohort_size: 51 given"),
    (["run", "--mesh", "99"], 2, "mesh: 99 given, allowed is a whole number from 1 to"),
    (["compare", "--mesh", "0"], 2, "mesh: 0 given"),
    (["compare", "--client-loop", "fast"], 2, "client_loop: 'fast' given"),
    (["run", "--set", "client_lr=1e300"], 2, "client_lr: 1e+300 given, allowed is a number from 1.18e-38 to 3.4e+38"),
    (["run", "--set", "tau=1e-300"], 2, "tau: 1e-300 given, allowed is a number from 1.18e-38"),
    (["tune", "--grid", "client_lr=1e-300..1"], 2, "client_lr: 1e-300 given, allowed is a number from 1.18e-38"),
    (["run", "--local-epochs", "2", "--local-steps", "3"], 2, "--local-epochs: given with --local-steps"),
    (["run", "--weighting", ""], 2, "argument: '' given, allowed is one with a value"),
    (["run", "--out="], 2, "argument: '--out=' given, allowed is one with a value"),
    (["compare", "--budget", "4"], 2, "--budget: given without --tune"),
    (["compare", "--select", "train_loss"], 2, "--select: given without --tune"),
    (["compare", "--seeds", "99999999999"], 2, "--seeds: 99999999999 given, allowed is a whole number from 1 to 10000"),
    (["report", ".", "--target", "nan"], 2, "--target: nan given, allowed is a finite number"),
    (["run", "--process", "1"], 2, "--process: given without --distributed"),
    (["list", "models"], 2, "models"),
    (["report", "nowhere"], 2, "folder: 'nowhere' given"),
    (["resume", "nowhere"], 2, "folder: 'nowhere' given"),
    (["frobnicate"], 2, "frobnicate"),
    (["run", "--task", "mnist", "--data-dir", "nowhere"], 1, "train-images-idx3-ubyte.gz: not found"),
]


@pytest.mark.parametrize(
    ("arguments", "status", "text"), WRONG, ids=lambda a: " ".join(a) if isinstance(a, list) else ""
)
def test_wrong_input_ends_with_one_line_and_leaves_nothing(
    arguments: list[str], status: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", "result"] if arguments[0] in ("run", "compare") else []
    assert fedoptax(*arguments, *out) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1 and printed.err.startswith("fedoptax: ") and text in printed.err
    assert not (tmp_path / "result").exists()


def test_a_truncated_data_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x09abc")
        (folder / f"{part}-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03")
    assert fedoptax("run", "--task", "mnist", "--data-dir", tmp_path / "data", "--out", "result") == 1
    error = capsys.readouterr().err
    assert "train-labels-idx1-ubyte" in error and error.count("\n") == 1 and not (tmp_path / "result").exists()


def test_existing_results_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedoptax("run", *SMALL, "--out", "a") == 0
    before = (tmp_path / "a" / "history.jsonl").read_bytes()
    assert fedoptax("run", *SMALL, "--out", "a") == 2
    assert "holds results already" in capsys.readouterr().err
    assert (tmp_path / "a" / "history.jsonl").read_bytes() == before


@pytest.mark.long
def test_a_diverging_run_says_so_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wild = ["--algorithms", "fedavg,fedavgm", "--seeds", "1", "--set", "fedavg.server_lr=1e38"]
    assert fedoptax("compare", *SMALL, *wild, "--out", "b") == 1
    error = capsys.readouterr().err
    assert "fedavg diverged in round" in error and "fedavgm" not in error and error.count("\n") == 1
    assert json.loads((tmp_path / "b" / "fedavgm" / "seed-0" / "summary.json").read_text())["status"] == "completed"
    assert (tmp_path / "b" / "report.html").is_file()


def test_an_algorithm_of_ones_own_by_module_and_name(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(
        "import fedoptax as fx\n\n\ndef slow(client_lr=0.1):\n    return fx.fedavg(client_lr)\n"
    )
    assert fedoptax("run", *SMALL, "--algorithm", "my_module:slow", "--out", "a") == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["algorithm"]["name"] == "my_module:slow"
    assert fedoptax("resume", "a", "--rounds", "5") == 2  # it names code: only when told so
    assert fedoptax("resume", "a", "--rounds", "5", "--trust") == 0


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedoptax() == 0
    assert "Commands:" in capsys.readouterr().out
    assert fedoptax("--version") == 0
    assert capsys.readouterr().out.startswith("fedoptax ")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert fedoptax("run", *SMALL, "--out", tmp_path / "file" / "a") == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and error.count("\n") == 1


def test_help_has_an_example_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "compare", "resume", "report", "list", "bytes"):
        assert fedoptax(command, "--help") == 0
        assert f"fedoptax {command}" in capsys.readouterr().out


@pytest.mark.long
def test_a_run_with_states_on_the_host_is_resumed_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = ["--algorithm", "scaffold", "--client-states", "host"]
    assert fedoptax("run", *SMALL, *host, "--checkpoint-every", "0", "--out", "a") == 0
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoints").iterdir()) == ["3", "4"]
    (tmp_path / "a" / "summary.json").unlink()  # killed before it was written
    capsys.readouterr()
    assert fedoptax("resume", "a", "--rounds", "3") == 2
    assert "at least the 4 that are done" in capsys.readouterr().err
    assert fedoptax("resume", "a", "--rounds", "5") == 0
    assert fedoptax("run", *SMALL, "--algorithm", "scaffold", "--rounds", "5", "--out", "b") == 0
    with np.load("a/params.npz") as resumed, np.load("b/params.npz") as whole:
        for name in whole:
            np.testing.assert_array_equal(resumed[name], whole[name])
    assert fedoptax("run", *SMALL, "--checkpoint-every", "-1", "--out", "c") == 2
    assert "checkpoint_every: -1.0 given, allowed is a number of seconds >= 0" in capsys.readouterr().err


def test_results_that_were_damaged_are_mended_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "b" / "fedavg" / "seed-0"
    params, summary, history = (run / name for name in ("params.npz", "summary.json", "history.jsonl"))
    with monkeypatch.context() as patched:
        patched.setattr("fedoptax.cli.run.write_report", lambda out: out / "report.html")
        one = ["--algorithms", "fedavg", "--seeds", "1"]
        assert fedoptax("compare", *SMALL, *one, "--out", "b", "--json") == 0
        (tmp_path / "b" / "table.md").touch()
        whole = params.read_bytes()
        for path, data in ((params, whole[:300] + b"?" + whole[301:]), (summary, summary.read_bytes()[:-20])):
            path.write_bytes(data)
            assert fedoptax("resume", "b") == 0
            assert params.read_bytes() == whole and json.loads(summary.read_text())["status"] == "completed"
    history.write_text(history.read_text().replace('"train_loss": ', '"train_loss": 1', 1))
    for command in ("resume", "report"):
        capsys.readouterr()
        assert fedoptax(command, run) == 1
        error = capsys.readouterr().err
        assert "history.jsonl is not as it was written" in error and error.count("\n") == 1
    assert params.read_bytes() == whole


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedoptax.cli.main", *arguments],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip


def wait_for_rows(path: Path, rows: int, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if path.is_file() and path.read_text().count("\n") >= rows:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError(f"{path} has no {rows} rows after two minutes")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.long) for n in (signal.SIGTERM, signal.SIGKILL))]
)
def test_an_interrupted_run_resumes_to_the_same_end(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM keep the rounds done; `kill -9` loses at most those since the last checkpoint."""
    long = ["run", *SMALL, "--rounds", "200000", "--set", "client_lr=0.01", "--out", "a"]
    process = start(long, tmp_path)
    wait_for_rows(tmp_path / "a" / "history.jsonl", 20, process)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    end = 30
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert "continue with: fedoptax resume a" in error and "Traceback" not in error
        done = (tmp_path / "a" / "history.jsonl").read_text().count("\n")
        assert json.loads((tmp_path / "a" / "summary.json").read_text())["rounds_done"] == done < 200_000
        end = done + 3
    assert fedoptax("resume", "a", "--rounds", end) == 0
    assert fedoptax("run", *SMALL, "--rounds", end, "--set", "client_lr=0.01", "--out", "b") == 0
    with np.load(tmp_path / "a" / "params.npz") as resumed, np.load(tmp_path / "b" / "params.npz") as whole:
        for name in whole:
            np.testing.assert_array_equal(resumed[name], whole[name])


def test_importing_and_help_are_quick() -> None:
    for code, loaded in (("import fedoptax", "jax"), ("import fedoptax.cli.main", "jax")):
        check = f"{code}; import sys; sys.exit('{loaded}' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ["run", "--seed", "-1"],
        ["run", "--cohort-size", "51"],
        ["run", "--checkpoint-every", "-1"],
        ["run", "--rounds", "3000000000"],
        ["compare", "--algorithms", "fedavg", "--seeds", "1", "--checkpoint-every", "-1"],
        ["compare", "--algorithms", "fedavg", "--seeds", "1", "--mesh", "99"],
        ["tune", "--algorithm", "fedavg", "--grid", "client_lr=0.1", "--batch-size", "0"],
        ["tune", "--algorithm", "fedavg", "--grid", "client_lr=0.1", "--select", "nonsense"],
    ],
    ids=" ".join,
)
def test_what_is_refused_costs_no_earlier_results_and_makes_no_folder(wrong: list[str], tmp_path: Path) -> None:
    out = tmp_path / "a"
    given = [*wrong, "--model", "logistic", "--out", str(out), "--overwrite"]
    assert fedoptax(*given) == 2
    assert not out.exists()
    (out / "config.json").parent.mkdir()
    (out / "config.json").write_text("{}")
    assert fedoptax(*given) == 2
    assert (out / "config.json").read_text() == "{}"


def test_own_measure_of_local_work_replaces_the_papers() -> None:
    arguments = {"task": "mnist", "preset": "paper:fafed-low", "local_epochs": 2, "local_steps": None}
    given = with_preset(arguments)
    assert (given["local_epochs"], given.get("local_steps"), given["batch_size"]) == (2, None, 50)
    assert with_preset(arguments | {"local_epochs": None})["local_steps"] == 10


def test_bytes_counts_what_was_asked_for_and_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("--rounds", "-5"), ("--rounds", "0"), ("--cohort-size", "0")):
        assert fedoptax("bytes", name, value, "--algorithms", "fedavg") == 2
        assert f": {value} given, allowed is a whole number >= 1" in capsys.readouterr().err
    assert fedoptax("bytes", "--num-clients", "5", "--algorithms", "fedavg") == 0


def test_the_command_that_continues_can_be_pasted() -> None:
    assert again(Path("my runs/a b"), ["fedavg"]) == "fedoptax resume 'my runs/a b'"


def test_a_wrong_option_of_resume_is_not_kept_and_divergence_is_not_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    short = ["--rounds", "2", "--seeds", "1", "--set", "fedavg.client_lr=1e30"]
    assert fedoptax("compare", "--algorithms", "fedavg,fedadam", *short, "--out", out) == 1
    kept = (out / "compare.json").read_bytes()
    for wrong in (["--mesh", "99"], ["--checkpoint-every", "-1"]):
        assert fedoptax("resume", out, *wrong) == 2
        assert (out / "compare.json").read_bytes() == kept
    capsys.readouterr()
    assert fedoptax("resume", out) == 1
    assert "fedavg diverged in round 1" in capsys.readouterr().err

"""run, resume, compare, report, list and bytes on the command line, with the files that they write."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command_line import SMALL, fedoptax
from fedoptax.cli.run import resume_command


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


def test_compare_runs_every_algorithm_over_seeds_and_writes_a_report(
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
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    capsys.readouterr()
    assert fedoptax("resume", out, "--rounds", "3") == 2
    assert "--rounds" in capsys.readouterr().err


def test_earlier_results_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedoptax("run", *SMALL, "--out", "a") == 0
    before = (tmp_path / "a" / "history.jsonl").read_bytes()
    assert fedoptax("run", *SMALL, "--out", "a") == 2
    assert "holds results already" in capsys.readouterr().err
    assert (tmp_path / "a" / "history.jsonl").read_bytes() == before


def test_own_algorithm_by_module_and_name(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(
        "import fedoptax as fx\n\n\ndef slow(client_lr=0.1):\n    return fx.fedavg(client_lr)\n"
    )
    assert fedoptax("run", *SMALL, "--algorithm", "my_module:slow", "--out", "a") == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["algorithm"]["name"] == "my_module:slow"
    assert fedoptax("resume", "a", "--rounds", "5") == 0


def test_help_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedoptax() == 0
    assert "Commands:" in capsys.readouterr().out
    assert fedoptax("--version") == 0
    assert capsys.readouterr().out.startswith("fedoptax ")


def test_every_command_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "compare", "resume", "report", "list", "bytes"):
        assert fedoptax(command, "--help") == 0
        assert f"fedoptax {command}" in capsys.readouterr().out


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
def test_interrupted_run_resumes_bit_for_bit(tmp_path: Path, number: signal.Signals) -> None:
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


def test_importing_does_not_load_jax() -> None:
    for code, loaded in (("import fedoptax", "jax"), ("import fedoptax.cli.main", "jax")):
        check = f"{code}; import sys; sys.exit('{loaded}' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_resume_command_can_be_pasted() -> None:
    assert shlex.split(resume_command(Path("my runs/a b"))) == ["fedoptax", "resume", "my runs/a b"]


def test_resume_keeps_no_wrong_option_and_reports_earlier_divergence(
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

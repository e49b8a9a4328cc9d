"""run, resume, compare, report, list and bytes on the command line, with the files that they write."""

import contextlib
import io
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import SMALL, fedoptax
from fedoptax.cli.runs import errors_name
from fedoptax.engine.client_states import OnDevice
from fedoptax.errors import Stopped
from fedoptax.experiments.result import Interrupted, RunResult
from fedoptax.storage.history import History, read_rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of FedAdam over four rounds, and what it printed on either stream."""
    out = tmp_path_factory.mktemp("finished") / "a"
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        assert fedoptax("run", *SMALL, "--algorithm", "fedadam", "--set", "server_lr=0.03", "--out", out) == 0
    return out, printed.getvalue(), errors.getvalue()


@pytest.mark.usefixtures("without_figures")
def test_run_writes_results_and_report_reads_them(finished, capsys):
    out, printed, errors = finished
    assert "test_accuracy" in printed and printed.endswith(f"results: {out}\n")
    assert errors.startswith("loaded digits: 8 clients") and errors.count("\n") == 1  # no terminal: no bar
    config = json.loads((out / "config.json").read_text())
    assert config["algorithm"]["hyperparameters"]["server_lr"] == 0.03
    assert (config["cohort_size"], config["task"]["num_clients"]) == (3, 8)
    assert [row["round"] for row in read_rows(out)] == [1, 2, 3, 4]
    assert json.loads((out / "summary.json").read_text())["status"] == "completed"
    assert (out / "params.npz").is_file()
    assert fedoptax("report", out) == 0
    assert capsys.readouterr().out == f"report: {out / 'report.html'}\n"
    assert {"report.html", "table.csv", "table.md", "history.csv"} <= {p.name for p in out.iterdir()}


def test_resume_continues_a_run_and_run_does_not_overwrite_it(finished, capsys):
    out = shutil.copytree(finished[0], "a")
    assert fedoptax("resume", out) == 0
    assert "'a' is finished, nothing to do" in capsys.readouterr().err
    assert fedoptax("run", *SMALL, "--out", out) == 2
    assert "already has results" in capsys.readouterr().err
    assert fedoptax("resume", out, "--rounds", "6") == 0
    assert [row["round"] for row in read_rows(Path(out))] == [1, 2, 3, 4, 5, 6]
    capsys.readouterr()
    assert fedoptax("resume", out, "--rounds", "3") == 2
    assert "--rounds" in capsys.readouterr().err
    assert fedoptax("resume", out, "--round", "5") == 2
    assert "one of [4, 6], got 5" in capsys.readouterr().err
    assert fedoptax("resume", out, "--round", "4", "--rounds", "5") == 0
    assert [row["round"] for row in read_rows(Path(out))] == [1, 2, 3, 4, 5]


def test_bytes_are_those_of_the_run(finished, capsys):
    options = ["--task", "digits", "--model", "logistic", "--cohort-size", "3", "--rounds", "4"]
    assert fedoptax("bytes", *options, "--algorithm", "fedadam", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    size = 4 * (64 * 10 + 10)
    assert (row["down_per_client"], row["up_per_round"], row["up_total"]) == (size, 3 * size, 12 * size)
    assert sum(done["bytes_up"] for done in read_rows(finished[0])) == row["up_total"]
    assert json.loads((finished[0] / "summary.json").read_text())["bytes_down"] == row["down_total"]


@pytest.mark.usefixtures("without_figures")
def test_compare_reports_all_runs_and_resume_completes_them(tmp_path, capsys):
    """FedAvg diverges, which is status 1, one line, and no harm to FedAdam."""
    out = tmp_path / "b"
    given = ["--algorithms", "fedavg,fedadam", "--seeds", "2", "--set", "fedadam.tau=0.01"]
    assert fedoptax("compare", *SMALL, *given, "--set", "fedavg.server_lr=1e38", "--out", out) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"report: {out / 'report.html'}" and (out / "report.html").is_file()
    error = printed.err.splitlines()[-1]  # after a warning about rates that were chosen for one alone
    assert "fedavg diverged in round" in error and "fedadam" not in error
    assert sorted(p.parent.relative_to(out).as_posix() for p in out.rglob("config.json")) == [
        f"{name}/seed-{seed}" for name in ("fedadam", "fedavg") for seed in (0, 1)
    ]
    config = json.loads((out / "fedadam" / "seed-0" / "config.json").read_text())
    assert config["algorithm"]["hyperparameters"]["tau"] == 0.01
    kept = (out / "compare.json").read_bytes()
    for wrong in (["--mesh", "99"], ["--checkpoint-every", "-1"]):
        assert fedoptax("resume", out, *wrong) == 2
        assert (out / "compare.json").read_bytes() == kept
    # What is complete is not run again; what is missing is.
    (out / "fedadam" / "seed-1" / "summary.json").unlink()
    before = (out / "fedadam" / "seed-0" / "history.jsonl").stat().st_mtime_ns
    capsys.readouterr()
    assert fedoptax("resume", out) == 1
    assert "fedavg diverged in round" in capsys.readouterr().err
    assert (out / "fedadam" / "seed-0" / "history.jsonl").stat().st_mtime_ns == before
    assert json.loads((out / "fedadam" / "seed-1" / "summary.json").read_text())["status"] == "completed"


def test_own_algorithm_by_module_and_name(tmp_path):
    (tmp_path / "my_module.py").write_text(
        "import fedoptax as fx\n\n\ndef slow(client_lr=0.1):\n    return fx.fedavg(client_lr)\n"
    )
    assert fedoptax("run", *SMALL, "--algorithm", "my_module:slow", "--out", "a") == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["algorithm"]["name"] == "my_module:slow"
    assert fedoptax("resume", "a", "--rounds", "5") == 0


@pytest.mark.usefixtures("without_figures")
def test_a_function_is_a_task_whose_tuned_rates_are_compared(tmp_path, capsys):
    code = "return fx.load_task('digits', model='logistic', num_clients=6)"
    Path("my_task.py").write_text(f"import fedoptax as fx\n\n\ndef make(partition):\n    {code}\n")
    small = ["--task", "my_task:make", "--rounds", "2"]
    assert fedoptax("tune", *small, "--algorithm", "fedavg", "--trials", "2", "--out", "tuned") == 0
    best = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    assert best["task"]["function"] == "my_task:make" and best["search"] == "zoom"
    assert "learning rates: preset" not in capsys.readouterr().err
    names = ["--algorithms", "fedavg,scaffold", "--seeds", "1", "--from", "tuned", "--out", "b"]
    assert fedoptax("compare", *small, *names, "--tune", "--grid", "fedavg.client_lr=0.1,1") == 2
    assert "--grid: fedavg.client_lr is of an algorithm that --from has searched" in capsys.readouterr().err
    assert fedoptax("compare", *small[:2], *names, "--rounds", "3", "--aggregate", "median") == 0
    printed = capsys.readouterr()
    assert "the search for fedavg was with rounds 2, not 3; aggregate mean, not median; a seed of the" in printed.err
    assert "weighting: examples for all methods (not in the paper of scaffold;" in printed.err
    assert "learning rates: preset of digits, a starting point; `fedoptax tune --task my_task:make`" in printed.err
    assert max(map(len, printed.out.splitlines())) <= 100 and "highest final test accuracy" in printed.out
    rates = json.loads((tmp_path / "b" / "compare.json").read_text())["rates"]
    assert (rates["fedavg"], rates["scaffold"]) == ("tuned", "preset of digits")
    assert fedoptax("resume", "b") == 0
    names[3], names[-1] = "4,2", "d"
    assert fedoptax("compare", *small, *names) == 0 and "a seed of the" not in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "d" / "fedavg").iterdir()) == ["seed-2", "seed-4"]
    summary = tmp_path / "tuned" / "point-002" / "summary.json"
    summary.write_text(summary.read_text().replace("completed", "interrupted"))
    assert fedoptax("compare", *small, *names[:-1], "c") == 2 and "is not finished" in capsys.readouterr().err


def test_help_shows_commands_and_an_example_of_each(capsys):
    assert fedoptax("--version") == 0 and capsys.readouterr().out.startswith("fedoptax ")
    for group, commands in (("", "run compare resume report list bytes"), ("data", "fetch check partition")):
        assert fedoptax(*group.split()) == 0
        shown = capsys.readouterr().out
        for command in commands.split():
            assert command in shown and fedoptax(*group.split(), command, "--help") == 0
            assert f"Example: fedoptax {group} {command}".replace("  ", " ") in capsys.readouterr().out


QUICK = (
    "--help", "run --help", "list tasks", "list tasks --json", "list algorithms", "list presets",
    "run --task digit", "run --task file:notes.txt", "run --algorithm fedadm", "run --rounds 0", "run --engine fast",
    "compare --algorithms fedavg,fedadm", "bytes --algorithm fedadm",
    "export a --out a.onnx", "predict a --input a.csv --out a.txt",
)  # fmt: skip


def test_help_names_and_wrong_words_do_not_wait_for_jax():
    code = """
import contextlib, sys
import fedoptax
from fedoptax.cli.main import main
for line in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main(line.split())
    assert "jax" not in sys.modules, line
"""
    done = subprocess.run([sys.executable, "-c", code, *QUICK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_resume_command_can_be_pasted():
    stopped = RunResult(History(), (), (), OnDevice((), 1), "interrupted", "stopped after round 3 of 9", signal=15)
    with pytest.raises(Stopped, match="round 3 of 9; continue with: ") as error, errors_name(Path("my runs/a b")):
        raise Interrupted(stopped)
    assert shlex.split(str(error.value))[-3:] == ["fedoptax", "resume", "my runs/a b"]
    assert error.value.status == 128 + 15

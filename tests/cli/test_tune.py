"""tune and compare --tune on the command line, and where every row's learning rates come from."""

import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from command_line import SMALL, fedoptax
from fedoptax.cli.options import RunForm
from fedoptax.cli.setup import choose
from fedoptax.report.searches import load_searches
from fedoptax.storage.history import read_rows

QUADRATIC = ["--task", "quadratic", "--num-clients", "8", "--cohort-size", "3", "--batch-size", "5", "--rounds", "4"]

GRID = ["--grid", "client_lr=0.01..1:decade", "--grid", "server_lr=0.01,0.1"]


def test_tune_ranks_points_and_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedoptax.report.figures.draw_curves", lambda *given: Figure())  # tests/report draws them
    out = tmp_path / "a"
    assert fedoptax("tune", *QUADRATIC, "--algorithm", "fedadam", *GRID, "--out", out) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:2] == ["client_lr", "server_lr"] and "mean train_loss of last 1" in printed[0]
    scores = [float(line.split()[2]) for line in printed[1:7]]
    assert scores == sorted(scores) and printed[7] == "6 points"
    assert re.fullmatch(r"best: --set client_lr=\S+ --set server_lr=\S+", printed[8])
    assert printed[9].startswith("fedadam: The best client_lr is the highest that was searched (0.01 to 1): a better")
    assert printed[-1] == f"report: {out / 'report.html'}"
    ours = {"report.html", "points.csv", "table.csv", "figures", "tune.json", "point-001", "point-006"}
    assert ours <= {p.name for p in out.iterdir()}
    assert {p.name for p in (out / "figures").iterdir()} >= {"heat-map.png", "profile-1.png"}
    page = (out / "report.html").read_text()
    assert "6 of 6 points" in page and page.count("data:image/svg+xml") >= 2
    (search,) = load_searches(out)
    for point in search.trials:  # what heat maps and profiles show
        assert point.score == pytest.approx(read_rows(point.folder)[-1]["train_loss"])
    times = {p: p.stat().st_mtime_ns for p in out.glob("point-*/history.jsonl")}
    assert fedoptax("resume", out) == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("point-*/history.jsonl")} == times
    assert fedoptax("tune", *QUADRATIC, *GRID, "--out", out) == 2  # holds results


def rates_of(folder: str) -> dict[str, str]:
    paths = Path(folder).glob("*/seed-0/config.json")
    return {path.parent.parent.name: json.loads(path.read_text())["rates"] for path in paths}


@pytest.mark.usefixtures("without_figures")
def test_rates_that_differ_are_warned_of_and_shown(capsys):
    compare = ["compare", *SMALL, "--algorithms", "fedavg fedprox", "--seeds", "1", "--rounds", "1"]
    assert fedoptax(*compare, "--set", "fedprox.client_lr=0.1", "--out", "a") == 0
    printed = capsys.readouterr()
    assert "warning: learning rates differ in source (fedavg: preset; fedprox: user, preset)" in printed.err
    assert rates_of("a") == {"fedavg": "preset", "fedprox": "user, preset"}
    table = Path("a/table.md").read_text()
    assert "Rates from" in table and "| user, preset |" in table
    before = Path("a/compare.json").read_bytes()
    assert fedoptax("resume", "a") == 0 and Path("a/compare.json").read_bytes() == before
    grid = ["--tune", "--grid", "client_lr=0.1", "--rounds", "1", "--out", "b"]
    assert fedoptax("compare", *SMALL, "--algorithms", "fedavg", "--seeds", "1", *grid) == 0
    assert rates_of("b") == {"fedavg": "tuned"}
    shutil.rmtree("b/tuning")
    assert fedoptax("resume", "b", "--engine", "eager") == 0  # of a search, too
    assert json.loads(Path("b/tuning/fedavg/point-001/config.json").read_text())["engine"] == "eager"


def test_paper_preset_is_named_with_the_others(capsys):
    """The files of the task are not there; the line comes before they are read."""
    assert fedoptax("run", "--task", "mnist", "--preset", "paper", "--algorithm", "fedlamb", "--data-dir", ".") == 1
    printed = capsys.readouterr().err
    assert printed.startswith("preset: paper:fedlamb, ") and "other presets: " in printed


def test_typed_options_replace_those_of_a_preset():
    _, task, rounds = choose(RunForm(task="mnist", preset="paper:fedlamb-shards", run={"rounds": 7}), ["fedavg"])
    assert {"rounds": 7, "cohort_size": 25, "batch_size": 32, "weighting": "uniform"}.items() <= rounds.items()
    assert (task["partition"], task["shards"], task["num_clients"]) == ("shards", 2, 50)
    settings, *_ = choose(RunForm(task="emnist-cr", preset="paper", set_={"fedadam.tau": 0.5}), ["fedadam", "fedavg"])
    tau, server_lr = (settings.hyperparameters["fedadam"][name] for name in ("tau", "server_lr"))
    assert tau == 0.5 and server_lr == pytest.approx(10**-2.5)

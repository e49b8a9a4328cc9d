"""tune and compare --tune on the command line."""

import json
import re
from pathlib import Path

import pytest

from command_line import fedoptax
from fedoptax.report.searches import load_searches

SMALL = ["--task", "quadratic", "--num-clients", "8", "--cohort-size", "3", "--batch-size", "5", "--rounds", "4"]

GRID = ["--grid", "client_lr=0.01..1:decade", "--grid", "server_lr=0.01,0.1"]


def test_tune_ranks_points_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    assert fedoptax("tune", *SMALL, "--algorithm", "fedadam", *GRID, "--out", out) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:2] == ["client_lr", "server_lr"] and "mean train_loss of last 1" in printed[0]
    scores = [float(line.split()[2]) for line in printed[1:7]]
    assert scores == sorted(scores) and printed[7] == "6 points"
    assert re.fullmatch(r"best: --set client_lr=\S+ --set server_lr=\S+", printed[8])
    assert (
        printed[9]
        == "fedadam: The best client_lr is the highest that was searched (0.01 to 1): a better one may lie beyond."
    )
    assert printed[-1] == f"report: {out / 'report.html'}"
    ours = {"report.html", "points.csv", "table.csv", "figures", "tune.json", "point-001", "point-006"}
    assert ours <= {p.name for p in out.iterdir()}
    assert {p.name for p in (out / "figures").iterdir()} >= {"heat-map.png", "profile-1.png"}
    page = (out / "report.html").read_text()
    assert "6 of 6 points" in page and page.count("data:image/svg+xml") >= 2
    (search,) = load_searches(out)
    for point in search.trials:  # what heat maps and profiles show
        rows = [json.loads(line) for line in (point.folder / "history.jsonl").read_text().splitlines()]
        assert point.score == pytest.approx(rows[-1]["train_loss"])
    times = {p: p.stat().st_mtime_ns for p in out.glob("point-*/history.jsonl")}
    assert fedoptax("resume", out) == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("point-*/history.jsonl")} == times
    assert fedoptax("tune", *SMALL, *GRID, "--out", out) == 2  # holds results


@pytest.mark.long  # tests/experiments/test_comparison.py shows it without the command line
def test_compare_tunes_each_algorithm_and_runs_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b"
    given = ["--algorithms", "fedavg,fedadam", "--seeds", "2", "--tune", "--budget", "4"]
    assert fedoptax("compare", *SMALL, *given, "--out", out) == 0
    printed = capsys.readouterr()
    assert "best: --set fedavg.client_lr=" in printed.out and "best: --set fedadam.client_lr=" in printed.out
    compared = json.loads((out / "compare.json").read_text())
    for search in load_searches(out):
        assert len(search.trials) == 4
        winner, name = search.hyperparameters, search.search.algorithm
        assert compared["hyperparameters"][name] == winner
        assert search.search.seed == 2, "not a seed that is compared"
        for seed in (0, 1):
            config = json.loads((out / name / f"seed-{seed}" / "config.json").read_text())
            assert config["algorithm"]["hyperparameters"] == winner
    page = (out / "report.html").read_text()
    assert 'href="./tuning/fedavg/report.html"' in page
    assert (out / "tuning" / "fedavg" / "report.html").is_file()
    table = (out / "table.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table[1:]] == ["fedavg", "fedadam"]  # no point of a search among them

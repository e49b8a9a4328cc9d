"""Faults and aggregators at the command line: given, resumed, reported, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import SMALL, fedoptax
from test_report import ramp, write_run

from fedoptax.report.groups import group_runs
from fedoptax.report.load import load_runs
from fedoptax.report.page import facts
from fedoptax.report.tables import final_table, to_markdown

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's: no data folder, a new cache."""
    monkeypatch.delenv("FEDOPTAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_a_run_with_faults_is_resumed_with_them_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    given = ["--fault", "dropout=0.4", "--fault", "deadline=3", "--aggregate", "trimmed_mean:0.1"]
    assert fedoptax("run", *SMALL, "--algorithm", "fedavg", *given, "--out", out) == 0
    assert fedoptax("resume", out, "--rounds", "6") == 0
    config = json.loads((out / "config.json").read_text())
    assert config["aggregate"] == "trimmed_mean:0.1" and config["faults"]["dropout"] == 0.4
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    counted = [[row[n] for n in ("participants", "dropped", "late", "rejected")] for row in rows]
    assert len(rows) == 6 and all(sum(row) == 3 for row in counted) and sum(row[1] for row in counted) > 0
    assert all(0 <= row["virtual_seconds"] <= 3 for row in rows)
    assert fedoptax("report", out) == 0
    page = (out / "report.html").read_text()
    assert "<dt>Faults</dt><dd>dropout 0.4, deadline 3 s (a step 1 s, spread 0.5, jitter 0.1)</dd>" in page
    assert "<dt>Aggregation</dt><dd>trimmed_mean:0.1</dd>" in page and ">Took part</th>" in page


WRONG = [
    (["--fault", "dropuot=0.1"], "faults: unknown name 'dropuot'; did you mean 'dropout'?"),
    (["--fault", "dropout=1.5"], "faults: dropout=1.5 given, allowed is a number from 0 to 1"),
    (["--fault", "dropout"], "--fault: 'dropout' given, allowed is NAME=VALUE"),
    (["--fault", "deadline=soon"], "faults: deadline='soon' given, allowed is a number > 0"),
    (["--aggregate", "average"], "aggregate: 'average' given, allowed is one of mean, median"),
    (["--aggregate", "trimmed_mean:0.5"], "aggregate: trimmed_mean:0.5 given, allowed is a fraction"),
    (["--aggregate", "krum:1"], "aggregate: krum:1 given with 3 clients a round, allowed with at least 5"),
]


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=lambda a: " ".join(a) if isinstance(a, list) else "")
def test_wrong_input_ends_with_one_line_and_leaves_nothing(
    command: str, arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedoptax(command, *SMALL, *arguments, "--out", "result") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1 and printed.err.startswith("fedoptax: ") and text in printed.err
    assert not (tmp_path / "result").exists()


def test_reports_tell_participation_and_epsilon_only_where_there_are_any(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", ramp(0.9, 4))
    failing = write_run(
        tmp_path / "failing", ramp(0.8, 4), faults={"dropout": 0.3, "scaled": 0.1, "scale": -10.0}, aggregate="median"
    )
    rows = [json.loads(line) for line in (failing / "history.jsonl").read_text().splitlines()]
    for row, count in zip(rows, (7, 8, 6, 10)):
        row |= {"participants": count, "dropped": 10 - count, "late": 0, "rejected": 0, "epsilon": row["round"] / 2}
    (failing / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = load_runs(tmp_path)
    table = final_table(runs)
    assert table["participants"].tolist()[0] == 7.75 and table["epsilon"].tolist()[0] == 2.0
    assert "Took part" in to_markdown(table) and "Epsilon" in to_markdown(table)
    told = dict(facts(group_runs(runs)))
    assert [group.label for group in group_runs(runs)] == [
        "fedadam (faults=dropout 0.3, scaled 0.1 (by -10), aggregate=median)", "fedadam"
    ]  # fmt: skip
    assert told["Faults"] == "dropout 0.3, scaled 0.1 (by -10) or none" and told["Aggregation"] == "median or mean"
    assert runs[0].metrics == ["train_loss", "test_accuracy", "test_loss", "participants", "epsilon"]
    alone = final_table(load_runs(plain))
    assert "Took part" not in to_markdown(alone) and "Epsilon" not in to_markdown(alone)
    assert not {"Faults", "Aggregation"} & set(dict(facts(group_runs(load_runs(plain)))))

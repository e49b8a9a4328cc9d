"""Every algorithm trains from the command line with its preset, and one page reports them all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.main import main
from fedoptax.experiments.build import build, preset
from fedoptax.tasks import TASKS

DATA = Path(os.environ.get("FEDOPTAX_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.parametrize("task", TASKS)
def test_presets_build(task: str) -> None:
    named = [name for name in ALGORITHMS if preset(task, name)]
    assert len(named) >= 5  # AFO's five methods at least
    for name in named:
        build(name, preset(task, name))
    assert task not in ("digits", "mnist") or set(named) == set(ALGORITHMS)


@pytest.mark.long
@pytest.mark.parametrize(("task", "rounds", "accuracy"), [("digits", 40, 0.75), ("mnist", 8, 0.5)])
def test_all_algorithms_train_with_their_presets(
    task: str, rounds: int, accuracy: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if task != "digits" and not (DATA / task).is_dir():
        pytest.skip(f"no folder {task}/ under $FEDOPTAX_DATA or shared/data")
    out = tmp_path / "all"
    options = ["--rounds", str(rounds), "--eval-every", str(rounds), "--seeds", "1", "--data-dir", str(DATA)]
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--task", task, "--algorithms", "all", *options, "--out", str(out)])
    assert not stopped.value.code, capsys.readouterr().err
    reached = {
        name: json.loads((out / name / "seed-0" / "summary.json").read_text())["final"]["test_accuracy"]
        for name in ALGORITHMS
    }
    assert {name: value for name, value in reached.items() if value < accuracy} == {}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ALGORITHMS)

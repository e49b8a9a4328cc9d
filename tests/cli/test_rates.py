"""Every row says where its learning rates come from."""

import json
from pathlib import Path

import pytest

from command_line import SMALL, fedoptax

pytestmark = pytest.mark.usefixtures("without_figures")


def rates_of(folder: str) -> dict[str, str]:
    return {
        path.parent.parent.name: json.loads(path.read_text())["rates"]
        for path in Path(folder).glob("*/seed-0/config.json")
    }


def test_rates_that_differ_are_warned_of_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["compare", *SMALL, "--algorithms", "fedavg fedprox", "--seeds", "1", "--rounds", "1"]
    assert fedoptax(*compare, "--set", "fedprox.client_lr=0.1", "--out", "a") == 0
    printed = capsys.readouterr()
    assert "warning: learning rates come from different places (fedavg: preset; fedprox: user, preset)" in printed.err
    assert rates_of("a") == {"fedavg": "preset", "fedprox": "user, preset"}
    table = Path("a/table.md").read_text()
    assert "Rates from" in table and "| user, preset |" in table
    before = Path("a/compare.json").read_bytes()
    assert fedoptax("resume", "a") == 0 and Path("a/compare.json").read_bytes() == before
    assert fedoptax(*compare, "--out", "b") == 0
    assert "warning" not in capsys.readouterr().err and set(rates_of("b").values()) == {"preset"}


def test_a_search_gives_tuned_rates(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--tune", "--grid", "client_lr=0.03,0.1"]
    assert fedoptax("compare", *SMALL, "--algorithms", "fedavg", "--seeds", "1", *grid, "--out", "a") == 0
    assert rates_of("a") == {"fedavg": "tuned"}


def test_paper_preset_is_named_with_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """The files of the task are not there; the line comes before they are read."""
    assert fedoptax("run", "--task", "mnist", "--preset", "paper", "--algorithm", "fedlamb", "--data-dir", ".") == 1
    printed = capsys.readouterr().err
    assert printed.startswith("preset: paper:fedlamb, ") and "there is also paper:fedlamb-active, " in printed

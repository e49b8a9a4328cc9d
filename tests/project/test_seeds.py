"""docs/seeds.md names presets, algorithms, arguments, files and pages that exist."""

import inspect
import re
from pathlib import Path

import fedoptax as fx
from fedoptax.experiments.presets import PAPERS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
ROWS = [row.split("|")[2:4] for row in TEXT.splitlines() if row.startswith("| ")]
QUOTED = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_preset_exists_and_every_setting_of_the_texts_is_named() -> None:
    named = {tuple(name.split(" paper:")) for name in QUOTED if " paper:" in name}
    assert len(named) > 30
    assert {(task, name) for task, name in named if name not in PAPERS.get(task, {})} == set()
    missing = {(task, name) for task, settings in PAPERS.items() for name in settings} - named
    assert {name for _, name in missing if not re.search("-active|-epochs?$|shards", name)} == set()


def test_every_algorithm_argument_and_file_exists() -> None:
    arguments = {a for make in fx.ALGORITHMS.values() for a in inspect.signature(make).parameters}
    arguments |= set(inspect.signature(fx.fedopt).parameters)
    for name in QUOTED:
        if "/" in name:
            assert (ROOT / name).exists(), name
        elif re.fullmatch(r"[a-z][a-z0-9_]+", name) and name != "convergence_measure":
            assert name in {*fx.ALGORITHMS, *fx.TASKS, *arguments} or hasattr(fx, name), name


def test_every_row_has_a_page_or_says_why_not() -> None:
    for where, page in ROWS:
        assert "left out" in where or "](" in page or where.strip() == "where", where
    for link in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / "docs" / link).exists(), link

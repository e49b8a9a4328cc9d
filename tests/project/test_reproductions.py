"""The gallery: every recipe has what it needs, its commands exist, and its index and pages tell what was measured."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import parse
from fedoptax.experiments.presets import find_setting

FOLDER = Path(__file__).parents[2] / "benchmarks" / "reproductions"
WORDS = ("reproduced", "partly", "not reproduced", "not measured yet")


def load_run() -> Any:
    spec = importlib.util.spec_from_file_location("reproductions_run", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run = load_run()


@pytest.mark.parametrize("name", run.names())
def test_a_recipe_is_whole_and_its_commands_exist(name: str) -> None:
    recipe = run.read(name)
    assert recipe["verdict"]["word"] in WORDS
    assert all(recipe[field].strip() for field in ("title", "claim", "source", "published"))
    assert {"full"} <= set(recipe["settings"]) <= {"reduced", "full"}
    steps = [step["name"] for step in recipe["steps"]]
    assert len(set(steps)) == len(steps) > 0
    for step in recipe["steps"]:
        for kind in recipe["settings"]:
            given = parse(f"fedoptax {step[kind]}").params
            if (given.get("preset") or "none").startswith("paper"):
                find_setting(given["task"], given["preset"])


@pytest.mark.parametrize("name", run.names())
def test_a_measured_page_says_what_the_recipe_says(name: str) -> None:
    recipe, page = run.read(name), FOLDER / "results" / f"{name}.md"
    assert page.is_file() == (recipe["verdict"]["word"] != "not measured yet")
    if not page.is_file():
        return
    text = page.read_text(encoding="utf-8")
    assert f"**Verdict: {recipe['verdict']['word']}.**" in text
    kind = run.measured(recipe)
    for part in (recipe["claim"], recipe["settings"][kind], recipe["verdict"]["why"], "cores", "fedoptax 0"):
        assert part.strip() in text
    for step in recipe["steps"]:
        assert f"`fedoptax {step[kind]}`" in text
    for figure in re.findall(r"\]\(([^)]+\.png)\)", text):
        assert (page.parent / figure).is_file(), figure


def test_the_index_lists_the_recipes() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == run.index()

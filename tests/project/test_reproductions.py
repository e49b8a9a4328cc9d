"""The gallery: recipes name existing commands and claims that can be tested; pages are made from histories alone."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import claims
import fafed_complexity
import histories
import measures
import pages
from command_line import parse
from fedoptax._files import read_json
from fedoptax.experiments.presets import find_setting
from fedoptax.report import Run
from histories import Step


@pytest.mark.parametrize("name", pages.names())
def test_a_recipe_is_whole_and_its_commands_exist(name):
    recipe = pages.read(name)
    assert all(recipe[field].strip() for field in ("title", "claim", "source", "published"))
    assert {"full"} <= set(recipe["settings"]) - {"paper"} <= {"reduced", "full"} and recipe["settings"]["paper"]
    steps = [step["name"] for step in recipe["steps"]]
    assert len(set(steps)) == len(steps) > 0
    assert {claim["step"] for claim in recipe.get("claims", ()) if "step" in claim} <= set(steps)
    for step in recipe["steps"]:
        for kind in {"full", pages.measured(recipe)}:
            options = parse(f"fedoptax {step[kind]}").params
            if (options.get("preset") or "none").startswith("paper"):
                find_setting(options["task"], options["preset"])


def test_pages_are_what_the_histories_say():
    rendered = pages.render()
    assert pages.find_stale(rendered) == []  # else: make pages
    for path, text in rendered.items():
        figures = re.findall(r"\]\(([^)]+\.png)\)", text)
        assert all((path.parent / figure).is_file() for figure in figures)
    path, text = next((path, text) for path, text in rendered.items() if re.search(r"\d\.\d ± ", text))
    by_hand = re.sub(r"(\d)(\.\d ± )", lambda found: f"{(int(found[1]) + 1) % 10}{found[2]}", text, count=1)
    assert pages.find_stale(rendered | {path: by_hand}) == [path]


def test_theory_s_page_agrees_with_itself():
    found = 0  # rows with a slope, which is that of the row's numbers, up to rounding and the mean over seeds
    for line in (fafed_complexity.RESULTS / "theory.md").read_text(encoding="utf-8").splitlines():
        if fitted := re.search(r" (-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\] \| (.*) \|$", line):
            (slope, low, high), verdict, cells = map(float, fitted.groups()[:3]), fitted[4], line.split(" | ")
            exact = [[float(value) for value in cell.split(" = ")[-1].split(", ")] for cell in cells[2:4]]
            if verdict.endswith("reproduced"):  # of rates that decay: the last two values, of twice the rounds
                exact = [[1, 2], exact[0][-2:]]
                assert verdict.startswith("falls") == (high < 0)
            else:
                assert verdict.startswith("reproduced") == (low <= float(cells[4]))
            assert np.polyfit(*np.log(exact), 1)[0] == pytest.approx(slope, abs=0.03) and low <= slope <= high
            found += 1
    assert found > 10


@pytest.mark.parametrize(("name", "problem"), fafed_complexity.PROBLEMS.items())
def test_the_page_of_fafed_s_complexity_is_what_was_measured(name, problem):
    place = fafed_complexity.RESULTS / "fafed-complexity"
    found = {(a, n): read_json(place / f"{name}-{a}-{n}.json") for a in problem.rates for n in problem.clients}
    page = place.with_suffix(".md").read_text(encoding="utf-8")
    assert fafed_complexity.section(problem, found) in page


def make_step(values: dict[str, list[float]], metric: str = "test_accuracy") -> Step:
    """Runs of three rounds, evaluated after each, by seed; the values are those of all rounds."""
    config = {"rounds": 3, "primary_metric": metric, "higher_is_better": True}
    runs = {
        name: {seed: Run(Path(), config, pd.DataFrame({"round": [1, 2, 3], metric: value}), {"status": "completed"})
               for seed, value in enumerate(seeds)}
        for name, seeds in values.items()
    }  # fmt: skip
    return Step("step", {}, runs, {})


def make_recipe(claim: dict) -> dict:
    return {"settings": {"paper": "ours"}, "steps": [{"name": "step", "title": "A step"}], "claims": [claim]}


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([0.9, 0.91, 0.9, 0.92], [0.8, 0.8, 0.81, 0.8], "holds"),
        ([0.8, 0.8, 0.81, 0.8], [0.9, 0.91, 0.9, 0.92], "contradicted"),
        ([0.9, 0.7, 0.8, 0.85], [0.8, 0.8, 0.81, 0.8], "undecided"),
        ([0.9, 0.9], [0.8, 0.8], "untested, in line"),
        ([0.8, 0.8], [0.9, 0.9], "untested, against"),
        ([], [0.9, 0.9], "no data"),
        ([0.8, 0.801, 0.8], [0.8, 0.8, 0.801], "undecided"),
    ],
)
def test_a_claim_is_what_its_test_says(ours, theirs, outcome):
    recipe = make_recipe({"says": "a is above b", "step": "step", "above": ["a"], "below": ["b"], "rounds": [-2, -1]})
    (claim,) = claims.make_claims(recipe, {"step": make_step({"a": ours, "b": theirs})}, {})
    assert claim.outcome == outcome and "rounds 2 to 3 (2 evaluations)" in claim.measure
    (missing,) = claims.make_claims(recipe, {}, {})  # its step was not run
    assert missing.outcome == "no data" and claims.verdict([missing]) == "open"
    words = {"holds": "partly", "contradicted": "not reproduced", "no data": "open"}
    beside = [claims.replace(claim, says=f"Ours: {claim.says}"), missing]  # ours, which counts for nothing
    assert claims.verdict([claim, *beside]) == words.get(outcome, f"not reproduced ({outcome.split(',')[0]})")
    assert claims.verdict(beside) == "open"
    level = make_recipe({"says": "", "step": "step", "level": ["c", "a"], "below": ["b"]})
    (test,) = claims.make_claims(level, {"step": make_step({"a": ours, "b": theirs, "c": [0.1] * 3})}, {})[0].tests
    assert (test.outcome == "holds") == (ours[:1] == theirs[:1])  # then within a point, else points apart


def test_a_run_that_diverged_counts_with_all_rounds_and_is_named():
    step = make_step({"a": [[0.7, 0.8, 0.9]] * 3, "b": [[0.1, 0.2, 0.3]] * 3})
    step.runs["b"][2].summary["status"] = "diverged"
    measure = measures.Measure("test_accuracy", True, target=0.8)
    test = measures.compare("a", "b", step, measure)
    assert (test.other, test.difference) == ("b (diverged)", 1.0)


def test_a_method_is_held_against_itself_in_another_step_by_a_cost():
    """The first step reaches 0.8 in round 2, the second never, which counts with the cost of all three rounds."""
    steps = {name: make_step({"a": [values] * 3}) for name, values in (("b", [0.7, 0.8, 0.9]), ("c", [0.1, 0.2, 0.3]))}
    for seconds, step in enumerate(steps.values(), 1):
        for run in step.runs["a"].values():
            run.rows["virtual_seconds"] = float(seconds)
    claim = {"says": "", "step": "step", "other_step": "c", "above": ["a"], "target": 0.8, "cost": "virtual_seconds"}
    (made,) = claims.make_claims(make_recipe(claim), {"step": steps["b"], "c": steps["c"]}, {})
    assert made.tests[0].difference == 6.0 - 2.0 and made.measure == "virtual seconds to a test accuracy of 80 percent"
    for run in steps["c"].runs["a"].values():
        run.rows["virtual_seconds"] = 0.5  # 1.5 in all: cheaper, but it never arrives
    (test,) = claims.make_claims(make_recipe(claim), {"step": steps["b"], "c": steps["c"]}, {})[0].tests
    assert (test.pairs, test.difference, test.p, test.outcome) == (3, float("inf"), 0.25, "undecided")  # by a sign test


def test_a_search_has_more_points_near_its_best_than_another():
    rule = {"metric": "test_accuracy", "last": 1, "higher_is_better": True}
    steps = {}
    searches = [("step", 0, [0.9, 0.895, 0.7]), ("c", 0, [0.95, 0.9, 0.1])]
    searches += [(f"{name}-seed-{k}", k, values) for name, _, values in searches for k in (1, 2)]
    for name, seed, values in searches:
        made = make_step({name: [[0, 0, value] for value in values]})
        points = {f"point-{i}": run for i, run in made.runs[name].items()}
        for run in points.values():
            run.config["algorithm"] = {"hyperparameters": {"lr": 1}}
        steps[name] = Step(name, {"searches": {name: {"seed": seed, "rule": rule, "grid": {"lr": [1]}}}}, {}, points)
    claim = {"says": "", "step": "step", "other_step": "c", "near": 0.01}
    recipe = make_recipe(claim)
    (test,) = claims.make_claims(recipe, steps, {})[0].tests
    assert (test.one, test.other, test.outcome) == ("2 points of step", "1 points of c", "untested, in line")
    recipe["steps"] += [{"name": f"{name}-seed-{k}", "repeats": name} for name in ("step", "c") for k in (1, 2)]
    (test,) = claims.make_claims(recipe, steps, {})[0].tests
    assert (test.pairs, test.difference, test.p, test.outcome) == (3, 1, 0.25, "undecided")  # by a sign test


def test_histories_keep_every_value_and_replace_a_step(tmp_path):
    place = tmp_path / "step"
    for seed, loss in ((0, 0.1), (1, 1 / 3)):
        run = place / "fedavg" / f"seed-{seed}"
        run.mkdir(parents=True, exist_ok=True)
        rows = [{"round": 1, "train_loss": loss, "seconds": 2.0}, {"round": 2, "train_loss": None, "seconds": 4.0}]
        (run / "history.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (run / "config.json").write_text(json.dumps({"seed": seed, "partition": {"label_counts": [[1]]}}))
        (run / "summary.json").write_text(json.dumps({"status": "completed", "seconds": 6.0, "ended": 1.0}))
    record = {"algorithms": ["fedavg"], "seeds": [0, 1], "command": "fedoptax compare --out runs/a"}
    (place / "compare.json").write_text(json.dumps(record))
    assert histories.has_ended(place)
    for _ in range(2):
        histories.pack(place, "name", "abc", tmp_path)
    step = histories.read("name", tmp_path)["step"]
    assert [run.rows["train_loss"].iloc[0] for run in step.runs["fedavg"].values()] == [0.1, 1 / 3]
    assert step.about["command"] == "fedoptax compare" and step.any_run.summary["seconds_per_round"] == 3.0
    assert len(pd.read_parquet(tmp_path / "name.parquet")) == 4 and step.any_run.config["partition"] == {}

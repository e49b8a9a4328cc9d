"""Searches: the same numbers as runs one by one, one compilation, an honest ranking, and no work done twice."""

import math
import pickle
import shutil
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import fedoptax as fx
from fedoptax._files import read_arrays, read_json, write_json
from fedoptax.experiments import tuning
from fedoptax.experiments.tuning import AllDiverged, Rule, Search, SearchResult, Trial, rule_for
from fedoptax.storage import folder as storage
from fedoptax.storage.history import read_lines
from refusals import refused

TASK = fx.load_task("quadratic", num_clients=8)
SYNTHETIC = fx.load_task("synthetic", num_clients=6)
DIGITS = fx.load_task("digits", model="logistic", num_clients=8)
SMALL = {"rounds": 4, "cohort_size": 3, "batch_size": 5}
GRID = {"client_lr": [0.03, 0.1], "server_lr": [0.01, 0.1]}


def test_a_point_equals_the_run_of_its_values(tmp_path):
    tuned = fx.tune(TASK, "fedadam", GRID, tmp_path, **SMALL)
    assert [dict(one.values) for one in tuned.trials] == [
        {"client_lr": a, "server_lr": b} for a in GRID["client_lr"] for b in GRID["server_lr"]
    ]
    one = tuned.trials[1]
    alone = fx.run(TASK, fx.fedadam(**one.values), **SMALL)
    assert one.score == pytest.approx(alone.history[-1]["train_loss"], rel=1e-4)  # the last tenth of 4 rounds is 1
    params = read_arrays(one.folder / "params.npz")
    for name, leaf in storage.named_leaves(alone.params).items():
        np.testing.assert_allclose(params[name], leaf, rtol=0, atol=1e-4)
    assert tuned.best is min(tuned.trials, key=lambda one: one.score)
    assert tuned.hyperparameters == dict(tuned.best.values)
    words = fx.tune(TASK, "scaffold", {"option": ["I", "II"], "client_lr": [0.1]}, tmp_path / "b", **SMALL)
    assert words.trials[0].score != words.trials[1].score  # each is an algorithm of its own


def test_a_diverged_point_is_stopped_and_never_best(tmp_path):
    tuned = fx.tune(TASK, "fedavg", {"client_lr": [0.1, 1e30]}, tmp_path, **SMALL)
    lost = tuned.trials[1]
    assert lost.status == "diverged" and math.isnan(lost.score) and len(read_lines(lost.folder)) < 4
    assert tuned.best is tuned.trials[0] and tuned.edges == {"client_lr": "lowest"}
    with pytest.raises(AllDiverged, match="fedavg: all 2 points of the search diverged") as caught:
        fx.tune(TASK, "fedavg", {"client_lr": [1e29, 1e30]}, tmp_path / "b", **SMALL)
    again = pickle.loads(pickle.dumps(caught.value))  # as a pool of processes brings it home
    assert type(again) is AllDiverged and str(again) == str(caught.value)


def test_finished_points_are_not_run_again(tmp_path):
    """Stopped after a point and in the middle of the next, the search goes on to the same end."""
    whole = fx.tune(TASK, "fedadam", GRID, tmp_path / "whole", **SMALL)

    def stop(done: int, note: str) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    spec = Search.read(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        tuning.run_searches(TASK, {tmp_path / "broken": spec}, tmp_path / "broken", tuning.Execution(stop))
    before = (tmp_path / "broken" / "point-001" / "summary.json").stat().st_mtime_ns
    again = fx.tune(TASK, "fedadam", GRID, tmp_path / "broken", **SMALL)
    assert (tmp_path / "broken" / "point-001" / "summary.json").stat().st_mtime_ns == before
    assert [one.score for one in again.trials] == [one.score for one in whole.trials]
    place, values = again.best.folder, again.best.values
    named = {"label": "fedadam", "weighting": "examples", "out": place, "resume_from": place, "hyperparameters": values}
    fx.run(TASK, fx.fedadam(**values), **SMALL | named | {"rounds": 9})
    assert [one.score for one in SearchResult.read(tmp_path / "broken").trials] == [one.score for one in whole.trials]
    same = {name: np.asarray(values, np.float64) for name, values in GRID.items()}
    assert fx.tune(TASK, "fedadam", same, tmp_path / "broken", **SMALL).best.values == whole.best.values
    refused(lambda: fx.tune(TASK, "fedadam", {"client_lr": [0.3]}, tmp_path / "broken", **SMALL), "another search")
    (place / "config.json").unlink()
    refused(lambda: fx.tune(TASK, "fedadam", GRID, tmp_path / "broken", **SMALL), "config.json")


def test_scores_by_hand(tmp_path):
    rows = [
        {"train_loss": value, "test_accuracy": a} for value, a in ((4.0, 0.1), (2.0, None), (1.0, 0.5), (0.5, 0.75))
    ]
    assert Rule("train_loss", 2).score(rows, "completed") == 0.75
    assert Rule("test_accuracy", 3, True).score(rows, "completed") == 0.625
    assert Rule("train_loss", 1).score([*rows, {"train_loss": None}], "completed") == 0.5  # the last one there is
    assert math.isnan(Rule("train_loss", 2).score(rows, "diverged"))
    assert math.isnan(Rule("other", 2).score(rows, "completed"))
    tried = [Trial({}, score, "completed", tmp_path) for score in (2.0, math.nan, 1.0, 1.0)]
    assert Rule().best(tried) is tried[2]
    assert Rule(higher_is_better=True).best(tried) is tried[0]
    assert Rule().best(tried[1:2]) is None
    late = {"train_loss": 0.5, "test_loss": None}  # the last round is evaluated, so this is not finite
    assert math.isnan(Rule("test_loss", 2).score([{"test_loss": 0.5}, late], "completed"))


def test_the_rule_is_that_of_the_paper_unless_another_is_asked_for():
    assert rule_for(DIGITS, "train_loss", None, 1500) == Rule("train_loss", 100, False)
    assert rule_for(DIGITS, "train_loss", None, 40) == Rule("train_loss", 4, False)
    assert rule_for(DIGITS, "test_accuracy", 5, 40) == Rule("test_accuracy", 5, True)
    assert rule_for(DIGITS, "test_loss", 5, 40) == Rule("test_loss", 5, False)
    assert rule_for(TASK, "test_excess", 5, 40) == Rule("test_excess", 5, False)
    refused(lambda: rule_for(DIGITS, "accuracy", None, 40), "select")
    refused(lambda: rule_for(DIGITS, "train_loss", 0, 40), "last")
    refused(lambda: rule_for(DIGITS, "train_loss", 41, 40), "last")


REFUSALS: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    ("fedavg", {"client_lr": [0.1, -1.0]}, {}, "client_lr"), ("fedavg", {"rate": [1.0]}, {}, "rate"),
    ("fedavg", {}, {}, "grid"), ("fedavg", "paper", {}, "grid"), ("fedavg", {"client_lr": [1, 1]}, {}, "different"),
    ("fedavg", {"client_lr": [0.1, math.nan]}, {}, "finite"), ("fedavg", {"client_lr": 0.1}, {}, "client_lr"),
    ("fedavg", {"client_lr": [1]}, {"search": "grid", "trials": 1}, "trials needs"),
    ("fedavg", None, {"trials": 0}, "trials"), ("fedavg", {"client_lr": [0.1, 1]}, {"trials": 1}, "2 points"),
    ("fedavg", {"client_lr": ["cosine(1, 9)"]}, {"trials": 3}, "numbers > 0"),
    ("fedavg", {"weighting": ["examples", "paper"], "client_lr": [0.1]}, {}, "weighting"),
    (fx.fedavg, {"client_lr": [0.1]}, {}, "algorithm"),
    ("fedavg", {"client_lr": [0.1]}, {"cohort_size": 100}, "cohort_size"),
    ("fedavg", {"client_lr": [0.1]}, {"cohort": 3}, "cohort_size"),
    ("fedavg", {"client_lr": [0.1]}, {"label": "a"}, "label"),
    ("fedavg", {"client_lr": [0.1], "weighting": ["examples", "uniform"]},
     {"wrappers": {"privacy": "clip=1,noise_multiplier=1,delta=1e-5"}}, "weighting"),
    ("fedavg", {"client_lr": [0.1]}, {"aggregate": fx.Krum(1)}, "aggregate"),
    ("fedavg", {"client_lr": [0.1]}, {"trackers": ["paper"]}, "trackers"),
    ("fedavg", {"client_lr": [0.1]}, {"wrappers": {"hat": "x"}}, "wrappers"),
    ("fedavg", {"client_lr": [0.1]}, {"search": "random"}, "search"),
    ("fedavg", {"client_lr": [0.1]}, {"select": "accuracy"}, "select"),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "grid", "options", "argument"), REFUSALS)
def test_a_wrong_argument_is_one_line_and_leaves_nothing_behind(tmp_path, algorithm, grid, options, argument):
    """Else the call with the right option would find another search in the folder."""
    refused(lambda: fx.tune(TASK, algorithm, grid, tmp_path / "x", **SMALL | options), argument)
    assert list(tmp_path.iterdir()) == []


def test_aggregator_and_faults_are_part_of_a_search(tmp_path):
    grid, faults = {"client_lr": [0.1]}, fx.Faults(dropout=0.2)
    options: dict[str, Any] = SMALL | {"faults": faults, "rounds": np.int64(4), "cohort_size": np.int64(3)}
    median = fx.tune(TASK, "fedavg", grid, tmp_path, aggregate=fx.Median(), **options)
    described = SMALL | {"weighting": "examples", "aggregate": "median", "faults": asdict(faults)}
    assert read_json(tmp_path / "tune.json")["options"] == described
    assert read_json(tmp_path / "point-001" / "config.json")["aggregate"] == "median"
    refused(lambda: fx.tune(TASK, "fedavg", grid, tmp_path, aggregate=fx.TrimmedMean(0.4), **options), "another search")
    again = fx.tune(TASK, "fedavg", grid, tmp_path, aggregate="median", faults=faults, **SMALL)
    assert again.best.score == median.best.score
    assert Search.read(tmp_path).options["aggregate"] == "median"


def test_a_search_zooms_over_rates_and_weighting_and_goes_on_where_it_stopped(tmp_path):
    options: dict[str, Any] = SMALL | {"fixed": {"server_lr": 1.0}, "trials": 9, "select": "val_accuracy"}
    task = fx.with_validation(SYNTHETIC, 0.3)
    whole = fx.tune(task, "fedavg", {"weighting": ["examples", "uniform"]}, tmp_path / "a", **options)
    assert whole.search.search == "zoom" and len(whole.trials) == 9 and len(whole.explored["client_lr"]) > 2
    configs = [read_json(one.folder / "config.json") for one in whole.trials]
    assert [config["weighting"] for config in configs] == [one.values["weighting"] for one in whole.trials]
    assert all("weighting" not in config["algorithm"]["hyperparameters"] for config in configs)
    shutil.rmtree(tmp_path / "a" / "point-009")
    (tmp_path / "a" / "point-008" / "summary.json").unlink()
    again = fx.tune(task, "fedavg", {"weighting": ["examples", "uniform"]}, tmp_path / "a", **options)
    assert again == SearchResult.read(tmp_path / "a") == whole


def test_a_budget_extends_a_grid_of_numbers_but_not_to_values_that_the_algorithm_refuses(tmp_path):
    grid = {"momentum": [0.99, 0.999], "client_lr": [0.001]}
    found = fx.tune(TASK, "fedavgm", grid, tmp_path, trials=6, fixed={"server_lr": 0.1}, **SMALL)
    assert [one.values["momentum"] for one in found.trials[:2]] == [0.99, 0.999]
    assert {one.values["client_lr"] for one in found.trials} > {0.001} and len(found.trials) == 6
    assert all(0.9 < one.values["momentum"] < 1 for one in found.trials)


def test_optuna_finds_the_better_end_and_goes_on_where_it_stopped(tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed (pip install 'fedoptax[optuna]')")
    grid = {"client_lr": [1e-4, 0.3]}
    options = SMALL | {"search": "optuna", "rounds": 3}
    whole = fx.tune(TASK, "fedavg", grid, tmp_path / "whole", trials=12, **options)
    rates = [one.values["client_lr"] for one in whole.trials]
    assert len(set(rates)) == 12 and all(1e-4 <= rate <= 0.3 for rate in rates)
    assert whole.best.values["client_lr"] > 0.03
    fx.tune(TASK, "fedavg", grid, tmp_path / "part", trials=5, **options)
    spec = read_json(tmp_path / "part" / "tune.json")
    write_json(tmp_path / "part" / "tune.json", spec | {"trials": 12})
    again = fx.tune(TASK, "fedavg", grid, tmp_path / "part", trials=12, **options)
    assert [one.values for one in again.trials] == [one.values for one in whole.trials]

"""The papers' settings: the numbers of their tables, and that every one of them can be asked for by name."""

from __future__ import annotations

import math

import pytest

import fedoptax as fx
from fedoptax.experiments.build import build, find_preset, preset
from fedoptax.experiments.papers import PAPERS, paper_setting
from fedoptax.tasks.recipe import PARTITION_OPTIONS, TaskOptions, check_options

ALL = [(task, name) for task, settings in PAPERS.items() for name in settings]

# Adaptive Federated Optimization: exponents of the client and server learning rates and of tau, by method.
PUBLISHED = {
    "cifar100": ("-1 -1.5 -1.5 -1.5 -1", "-1 0 0 0 .5", "-2 -1 -1"),
    "emnist-ae": ("1.5 1 1 .5 1", "-1.5 -1.5 -1.5 0 0", "-3 -3 -3"),
    "emnist-cr": ("-1.5 -1.5 -1.5 -1.5 -1", "-1 -2.5 -2.5 -.5 0", "-2 -4 -4"),
    "shakespeare": ("0 0 0 0 0", "-.5 -2 -2 -.5 0", "-1 -3 -3"),
    "stackoverflow-lr": ("2 2 2 2 2", "1 -.5 -.5 0 0", "-2 -5 -5"),
    "stackoverflow-nwp": ("-.5 -.5 -.5 -.5 -.5", "-1.5 -2 -2 0 0", "-4 -5 -5"),
}
METHODS = ("fedadagrad", "fedadam", "fedyogi", "fedavgm", "fedavg")
RUNS = {  # batch, rounds, cohort
    "cifar10": (20, 4000, 10),
    "cifar100": (20, 4000, 10),
    "emnist-cr": (20, 1500, 10),
    "emnist-ae": (20, 3000, 10),
    "shakespeare": (4, 1200, 10),
    "stackoverflow-nwp": (16, 1500, 50),
    "stackoverflow-lr": (100, 1500, 10),
}


@pytest.mark.parametrize("task", PUBLISHED)
def test_learning_rates_and_tau_are_the_published_ones(task: str) -> None:
    client, server, tau = ([float(x) for x in text.split()] for text in PUBLISHED[task])
    given = paper_setting(task, "paper").hyperparameters
    assert set(given) == set(METHODS)
    for i, method in enumerate(METHODS):
        assert math.log10(given[method]["client_lr"]) == pytest.approx(client[i])
        assert math.log10(given[method]["server_lr"]) == pytest.approx(server[i])
        if i < 3:
            assert math.log10(given[method]["tau"]) == pytest.approx(tau[i])
        assert given[method].get("debias", False) == (method in ("fedadam", "fedyogi"))
    assert "debias=true" in paper_setting(task, "paper").convention


@pytest.mark.parametrize("task", RUNS)
def test_batch_rounds_and_cohort_are_the_published_ones(task: str) -> None:
    run = paper_setting(task, "paper").run
    assert (run["batch_size"], run["rounds"], run["cohort_size"]) == RUNS[task]
    assert (run["local_epochs"], run["weighting"]) == (1, "examples")


@pytest.mark.parametrize(("task", "name"), ALL)
def test_every_setting_fits_its_task_and_builds_its_algorithms(task: str, name: str) -> None:
    setting = paper_setting(task, f"paper:{name}")
    recipe = fx.tasks.recipe_of(task)
    check_options(task, recipe, TaskOptions(**setting.task))
    partition = setting.task.get("partition", recipe.partitions[0])
    assert set(setting.task) - {"partition", "model", "devices", "num_clients"} <= set(PARTITION_OPTIONS[partition])
    for algorithm, hyperparameters in setting.hyperparameters.items():
        build(algorithm, hyperparameters)
    assert setting.source
    assert setting.convention


def test_without_a_tuned_preset_the_papers_is_taken() -> None:
    assert preset("shakespeare", "fedavg") == {"client_lr": 1, "server_lr": 1}
    assert preset("digits", "fedadam") == {"client_lr": 0.1, "server_lr": 0.1}
    assert preset("file:own.csv", "fedadam") == preset("digits", "fedadam")
    assert preset("shakespeare", "fafed") == {}


def test_unknown_presets_are_refused_by_name() -> None:
    assert find_preset("digits", "tuned") is None
    with pytest.raises(fx.UsageError, match=r"--preset \(of task 'digits'\): unknown name 'paper'"):
        find_preset("digits", "paper")
    with pytest.raises(fx.UsageError, match="did you mean 'paper:fafed-low'"):
        find_preset("mnist", "paper:fafed-lo")

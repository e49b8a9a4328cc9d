"""Presets: the papers' published numbers, and that every algorithm trains with what is kept for a task."""

import math

import pytest

import fedoptax as fx
from fedoptax.algorithms import ALGORITHMS
from fedoptax.experiments.build import build
from fedoptax.experiments.grids import paper_grids
from fedoptax.experiments.presets import PAPERS, PRESETS, find_grid, find_preset, find_setting
from fedoptax.tasks import TASKS
from fedoptax.tasks.recipe import PARTITION_OPTIONS, TaskOptions
from refusals import refused

ALL = [(task, name) for task, settings in PAPERS.items() for name in settings]

# Adaptive Federated Optimization: exponents of the client and server learning rates and of tau, by method.
PUBLISHED = {
    "cifar10": ("-1.5 -1.5 -1.5 -1.5 -.5", "-1 -2 -2 -.5 0", "-2 -3 -3"),  # by way of Flower's baseline
    "cifar100": ("-1 -1.5 -1.5 -1.5 -1", "-1 0 0 0 .5", "-2 -1 -1"),
    "emnist-ae": ("1.5 1 1 .5 1", "-1.5 -1.5 -1.5 0 0", "-3 -3 -3"),
    "emnist-cr": ("-1.5 -1.5 -1.5 -1.5 -1", "-1 -2.5 -2.5 -.5 0", "-2 -4 -4"),
    "shakespeare": ("0 0 0 0 0", "-.5 -2 -2 -.5 0", "-1 -3 -3"),
    "stackoverflow-lr": ("2 2 2 2 2", "1 -.5 -.5 0 0", "-2 -5 -5"),
    "stackoverflow-nwp": ("-.5 -.5 -.5 -.5 -.5", "-1.5 -2 -2 0 0", "-4 -5 -5"),
}
METHODS = ("fedadagrad", "fedadam", "fedyogi", "fedavgm", "fedavg")
RUNS = {  # batch, rounds, cohort
    "cifar10": (20, 4000, 10), "cifar100": (20, 4000, 10), "emnist-cr": (20, 1500, 10), "emnist-ae": (20, 3000, 10),
    "shakespeare": (4, 1200, 10), "stackoverflow-nwp": (16, 1500, 50), "stackoverflow-lr": (100, 1500, 10),
}  # fmt: skip


@pytest.mark.parametrize("task", PUBLISHED)
def test_learning_rates_and_tau_are_the_published_ones(task):
    given = find_setting(task, "paper").hyperparameters
    assert set(given) == {*METHODS, "scaffold", "scaffold_adam"}
    assert (given["scaffold"], given["scaffold_adam"]) == (given["fedavg"], given["fedadam"])
    assert given["fedadagrad"]["initial_accumulator"] == 0
    for rate, text in zip(("client_lr", "server_lr", "tau"), PUBLISHED[task]):
        exponents = list(map(float, text.split()))
        assert [math.log10(given[m][rate]) for m in METHODS[: len(exponents)]] == pytest.approx(exponents)
    assert [method for method in METHODS if given[method].get("debias")] == ["fedadam", "fedyogi"]
    assert "debias=true" in find_setting(task, "paper").convention


@pytest.mark.parametrize("task", RUNS)
def test_batch_rounds_and_cohort_are_the_published_ones(task):
    run = find_setting(task, "paper").run
    assert (run["batch_size"], run["rounds"], run["cohort_size"]) == RUNS[task]
    assert (run["local_epochs"], run["weighting"]) == (1, "examples")


@pytest.mark.parametrize(("task", "name"), ALL)
def test_every_setting_fits_its_task_and_builds_its_algorithms(task, name):
    setting = find_setting(task, f"paper:{name}")
    recipe = fx.tasks.recipe_of(task)
    recipe.check(task, TaskOptions(**setting.task))
    partition = setting.task.get("partition", recipe.partitions[0])
    assert set(setting.task) - {"partition", "model", "devices", "num_clients"} <= set(PARTITION_OPTIONS[partition])
    assert setting.task.get("num_clients", 10) * setting.task.get("classes", 10) >= 10, "a class has no client"
    for algorithm, hyperparameters in setting.hyperparameters.items():
        build(algorithm, hyperparameters)
    assert setting.source
    assert setting.convention


@pytest.mark.parametrize(("task", "name"), [row for row in ALL if row[0] != "wikitext-2"])  # its text has no grid
def test_the_papers_grids_fit(task, name):
    methods = [m for m in find_setting(task, f"paper:{name}").hyperparameters if m not in ("local_amsgrad", "stem")]
    grids = paper_grids(task, f"paper:{name}", methods)
    assert all(grids.values())
    values, rates = grids["fedavg"]["client_lr"], find_setting(task, f"paper:{name}").hyperparameters["fedavg"]
    assert values[0] <= rates["client_lr"] <= values[-1]


def test_unknown_presets_are_refused_by_name():
    assert find_setting("digits", "tuned") is None
    refused(lambda: find_setting("digits", "paper"), "preset")
    refused(lambda: find_grid("wikitext-2", "paper", "paper", ["fedavg"]), "has nothing of fedavg")
    refused(lambda: find_setting("mnist", "paper:fafed-lo"), "paper:fafed-low")


@pytest.mark.parametrize("task", TASKS)
def test_presets_build(task):
    named = [name for name in ALGORITHMS if find_preset(task, name)[0]]
    assert len(named) >= 5  # AFO's five methods at least
    models = [key.partition(":")[2] for key in PRESETS if key.startswith(f"{task}:")]
    assert set(models) <= set(fx.tasks.recipe_of(task).models)
    for name in named:
        for model in (None, *models):
            build(name, find_preset(task, name, model)[0])
    assert task not in ("digits", "mnist") or set(named) == set(ALGORITHMS)

"""Presets: the papers' published numbers, and that every algorithm trains with what is kept for a task."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

import fedoptax as fx
from fedoptax.algorithms import ALGORITHMS
from fedoptax.cli.main import main
from fedoptax.experiments.build import build
from fedoptax.experiments.grids import parse_grids
from fedoptax.experiments.presets import PAPERS, PRESETS, find_grid, find_preset, find_setting
from fedoptax.tasks import TASKS
from fedoptax.tasks.recipe import PARTITION_OPTIONS, TaskOptions

DATA = Path(os.environ.get("FEDOPTAX_DATA") or Path(__file__).parents[3] / "shared" / "data")
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
    "cifar10": (20, 4000, 10), "cifar100": (20, 4000, 10), "emnist-cr": (20, 1500, 10), "emnist-ae": (20, 3000, 10),
    "shakespeare": (4, 1200, 10), "stackoverflow-nwp": (16, 1500, 50), "stackoverflow-lr": (100, 1500, 10),
}  # fmt: skip


@pytest.mark.parametrize("task", PUBLISHED)
def test_learning_rates_and_tau_are_the_published_ones(task: str) -> None:
    client, server, tau = ([float(x) for x in text.split()] for text in PUBLISHED[task])
    given = find_setting(task, "paper").hyperparameters
    assert set(given) == {*METHODS, "scaffold", "scaffold_adam"}
    assert (given["scaffold"], given["scaffold_adam"]) == (given["fedavg"], given["fedadam"])
    assert given["fedadagrad"]["initial_accumulator"] == 0
    for i, method in enumerate(METHODS):
        assert math.log10(given[method]["client_lr"]) == pytest.approx(client[i])
        assert math.log10(given[method]["server_lr"]) == pytest.approx(server[i])
        if i < 3:
            assert math.log10(given[method]["tau"]) == pytest.approx(tau[i])
        assert given[method].get("debias", False) == (method in ("fedadam", "fedyogi"))
    assert "debias=true" in find_setting(task, "paper").convention


@pytest.mark.parametrize("task", RUNS)
def test_batch_rounds_and_cohort_are_the_published_ones(task: str) -> None:
    run = find_setting(task, "paper").run
    assert (run["batch_size"], run["rounds"], run["cohort_size"]) == RUNS[task]
    assert (run["local_epochs"], run["weighting"]) == (1, "examples")


@pytest.mark.parametrize(("task", "name"), ALL)
def test_every_setting_fits_its_task_and_builds_its_algorithms(task: str, name: str) -> None:
    setting = find_setting(task, f"paper:{name}")
    recipe = fx.tasks.recipe_of(task)
    recipe.check(task, TaskOptions(**setting.task))
    partition = setting.task.get("partition", recipe.partitions[0])
    assert set(setting.task) - {"partition", "model", "devices", "num_clients"} <= set(PARTITION_OPTIONS[partition])
    for algorithm, hyperparameters in setting.hyperparameters.items():
        build(algorithm, hyperparameters)
    assert setting.source
    assert setting.convention


def test_the_texts_settings_are_there() -> None:
    active = find_setting("cifar10", "paper:fedlamb-resnet9-10-1-epoch-active")
    assert (active.task["devices"], active.task["num_clients"], active.run["cohort_size"]) == (10, 5, 5)
    assert active.run["local_epochs"] == 1 and active.hyperparameters["fedlamb"]["phi"] == "identity"
    for task, settings in PAPERS.items():  # FedAMS's τ of .01 has one reading
        for setting in settings.values():
            assert setting.hyperparameters.get("fedams", {}).get("eps", 1e-4) == 1e-4, task


@pytest.mark.parametrize(("task", "name"), ALL)
def test_the_papers_grids_fit(task: str, name: str) -> None:
    methods = [m for m in find_setting(task, f"paper:{name}").hyperparameters if m not in ("local_amsgrad", "stem")]
    grids = parse_grids(find_grid(task, "tuned", f"paper:{name}", methods), methods)
    assert all(grids.values())
    values, rates = grids["fedavg"]["client_lr"], find_setting(task, f"paper:{name}").hyperparameters["fedavg"]
    assert task == "wikitext-2" or values[0] <= rates["client_lr"] <= values[-1]


def test_a_grid_without_anything_of_an_algorithm_is_refused() -> None:
    assert find_grid("mnist", "paper:fafed-low", "paper", ["stem"]) == {
        "stem.lr": "0.001,0.01,0.02,0.05,0.1",
        "stem.alpha": "0.1,0.9",
    }
    with pytest.raises(fx.UsageError, match="delta_sgd"):
        find_grid("mnist", "tuned", "paper", ["delta_sgd"])
    with pytest.raises(fx.UsageError, match=r"^grid .* NAME=VALUES"):
        find_grid("digits", "tuned", "paper", ["fedavg"])


def preset(*names: str) -> dict[str, Any]:
    return find_preset(*names)[0]


def test_the_papers_preset_stands_in_for_a_tuned_one() -> None:
    assert preset("shakespeare", "fedavg") == {"client_lr": 1, "server_lr": 1}
    assert preset("digits", "fedadam") == {"client_lr": 0.1, "server_lr": 0.1}
    assert preset("file:own.csv", "fedadam") == preset("digits", "fedadam")
    assert preset("shakespeare", "fafed") == {}


def test_what_was_tuned_with_the_model_comes_first() -> None:
    tuned = PRESETS["shakespeare:gpt_small"]
    assert preset("shakespeare", "fedadam", "gpt_small") == tuned["fedadam"] != preset("shakespeare", "fedadam")
    assert find_preset("shakespeare", "fedadam", "gpt_small")[1] == "preset"
    assert preset("shakespeare", "fedyogi", "gpt_small") == preset("shakespeare", "fedyogi", "rnn")
    assert find_preset("shakespeare", "fedyogi", "gpt_small")[1] == "paper:afo"


def test_unknown_presets_are_refused_by_name() -> None:
    assert find_setting("digits", "tuned") is None
    with pytest.raises(fx.UsageError, match="preset"):
        find_setting("digits", "paper")
    with pytest.raises(fx.UsageError, match="paper:fafed-low"):
        find_setting("mnist", "paper:fafed-lo")


@pytest.mark.parametrize("task", TASKS)
def test_presets_build(task: str) -> None:
    named = [name for name in ALGORITHMS if preset(task, name)]
    assert len(named) >= 5  # AFO's five methods at least
    models = [key.partition(":")[2] for key in PRESETS if key.startswith(f"{task}:")]
    assert set(models) <= set(fx.tasks.recipe_of(task).models)
    for name in named:
        for model in (None, *models):
            build(name, find_preset(task, name, model)[0])
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

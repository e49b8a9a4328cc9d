"""Comparisons in Python: every algorithm over every seed, continued where they stopped."""

import shutil
from typing import Any

import pytest

import fedoptax as fx
from fedoptax._files import read_json, write_json
from fedoptax.experiments.comparison import Comparison
from fedoptax.experiments.selection import Rule
from fedoptax.experiments.tuning import Search, SearchResult
from refusals import refused

TASK = fx.load_task("quadratic", num_clients=8)
SMALL: dict[str, Any] = {"rounds": 3, "cohort_size": 3, "batch_size": 5}


def losses(compared: fx.Compared) -> dict[str, list[list[float | None]]]:
    return {name: [h.column("train_loss") for h in histories] for name, histories in compared.histories.items()}


def test_rates_are_searched_first_and_every_algorithm_runs_over_every_seed(tmp_path):
    names, given = ["fedavg", "fedadam"], {"seeds": 2, "grids": {"fedavg": {"client_lr": [1e-3, 0.03]}}, **SMALL}
    given["hyperparameters"] = {"fedadam": {"client_lr": 1e30, "server_lr": 1e30}}
    compared = fx.compare(TASK, names, tmp_path / "a", **given)
    assert set(compared.histories) == {"fedavg", "fedadam"}
    assert len(compared.diverged) == 2 and all(line.startswith("fedadam diverged") for line in compared.diverged)
    config = read_json(tmp_path / "a" / "tuning" / "fedavg" / "point-001" / "config.json")
    assert config["seed"] == 2, "not a seed that is compared"
    found = compared.comparison.hyperparameters["fedavg"]
    assert found["client_lr"] == 0.03
    compiled = [read_json(tmp_path / "a" / "fedavg" / f"seed-{i}" / "summary.json")["compile_seconds"] for i in (0, 1)]
    assert compiled[0] > 0 == compiled[1]  # once for all seeds
    algorithm = fx.fedavg(**found)
    for seed, history in enumerate(compared.histories["fedavg"]):
        alone = fx.run(TASK, algorithm, seed=seed, **SMALL)
        assert history.column("train_loss") == pytest.approx(alone.history.column("train_loss"))
    before = (tmp_path / "a" / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "a" / "fedavg" / "seed-1")
    assert losses(fx.compare(TASK, names, tmp_path / "a", **given, checkpoint_every=5)) == losses(compared)
    assert (tmp_path / "a" / "fedavg" / "seed-0" / "summary.json").stat().st_mtime_ns == before
    refused(lambda: fx.compare(TASK, names, tmp_path / "a", **given | {"rounds": 4}), "another comparison")
    slower = {"hyperparameters": {"fedadam": {"client_lr": 1e-30, "server_lr": 1e30}}}
    refused(lambda: fx.compare(TASK, names, tmp_path / "a", **given | slower), "another comparison")
    other = fx.compare(TASK, ["fedavg"], tmp_path / "a", seeds=[5], budget=1, overwrite=True, **SMALL)
    assert len(other.histories["fedavg"]) == 1 and not (tmp_path / "a" / "fedadam").exists()
    assert other.comparison.tunings["fedavg"].seed == 6


def test_functions_and_objects_are_compared_with_one_weighting_and_searched_rates(tmp_path, caplog):
    def mine(client_lr: float, server_lr: float) -> fx.FedAlgorithm:
        return fx.fedavg(client_lr, server_lr)

    rule: dict[str, Any] = {"select": "test_excess", "last": 2}
    compared = fx.compare(TASK, [mine], tmp_path / "a", seeds=1, budget=3, eval_last=2, eval_every=9, **rule, **SMALL)
    assert compared.comparison.tunings["mine"].rule == Rule("test_excess", 2)
    assert len(SearchResult.read(tmp_path / "a" / "tuning" / "mine").trials) == 3
    assert {"server_lr", "client_lr"} == set(compared.comparison.tunings["mine"].grid)
    assert [row["round"] for row in compared.histories["mine"][0] if row["test_excess"] is not None] == [2, 3]
    algorithms, given = {"a": fx.scaffold(0.01), "b": fx.scaffold}, {"b": {"client_lr": 0.01}}
    compared = fx.compare(TASK, algorithms, tmp_path / "b", seeds=1, hyperparameters=given, **SMALL)
    assert losses(compared)["a"] == losses(compared)["b"]
    config = read_json(tmp_path / "b" / "a" / "seed-0" / "config.json")
    assert (config["weighting"], config["paper_weighting"]) == ("examples", "uniform")
    for _ in range(2):  # the second call finds all done, though its schedule is another object
        decaying = {"b": {"client_lr": fx.schedules.parse_schedule("cosine(0.1, 5)")}}
        fx.compare(TASK, {"b": fx.scaffold}, tmp_path / "d", seeds=1, hyperparameters=decaying, **SMALL)
    assert [message for message in caplog.messages if "if b was changed" in message] == caplog.messages[:1]
    paper = fx.compare(TASK, ["scaffold"], tmp_path / "c", seeds=1, weighting="paper", **SMALL)
    assert read_json(paper.folder / "scaffold" / "seed-0" / "config.json")["weighting"] == "uniform"


@pytest.mark.parametrize(
    ("algorithms", "options", "argument"),
    [
        ([], {}, "algorithms"), ("fedavg", {}, "algorithms"), (["fedavg", "fedsgd"], {}, "fedsgd"),
        ([fx.fedavg(0.1)], {}, "dictionary"), ({"fedadam": fx.fedavg}, {}, "name of another"),
        *(({name: fx.fedavg, "a.b": fx.fedavg}, {}, "folders") for name in ("a:b", "../a", "..", "tuning")),
        *((["fedavg"], {"seeds": seeds}, "seeds") for seeds in (0, [0, 0], [-1])),
        (["fedavg"], {"hyperparameters": {"fedavgg": {}}}, "fedavgg"), (["fedavg"], {"grids": {"a": {}}}, "grids"),
        (["fedavg"], {"hyperparameters": {"fedavg": {"client_lr": -1.0}}}, "client_lr"),
        (["fedavg"], {"grids": {"fedavg": {"client_lr": []}}}, "grid"),
        (["fedavg"], {"cohort_size": 100}, "cohort_size"), (["fedavg"], {"label": "a"}, "label"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_and_leaves_nothing_behind(tmp_path, algorithms, options, argument):
    refused(lambda: fx.compare(TASK, algorithms, tmp_path / "a", **SMALL | options), argument)
    assert list(tmp_path.iterdir()) == []


SEARCH = {"grid": {"a": 1}, "rule": 3, "search": "x", "options": {}, "format": 99, "extra": 1}
COMPARISON = {"algorithms": 3, "hyperparameters": {}, "seeds": ["x"], "tunings": {"a": {}}, "format": 9, "new": 1}


def test_damaged_files_are_one_line(tmp_path):
    fx.compare(TASK, ["fedavg"], tmp_path, seeds=1, grids={"fedavg": {"client_lr": [0.1]}}, **SMALL)
    for kind, place, changes in ((Comparison, "", COMPARISON), (Search, "tuning/fedavg", SEARCH)):
        (file,) = (tmp_path / place).glob("*.json")
        good = read_json(file)
        for name, value in changes.items():
            write_json(file, good | {name: value})
            refused(lambda: kind.read(tmp_path / place), file.name)  # noqa: B023

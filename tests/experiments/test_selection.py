"""The best round of a run and its parameters, and runs that stop early: equal in both engines, and when resumed."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.options import RunOptions
from fedoptax.experiments.selection import Selection, make_watch
from fedoptax.storage.folder import read_summary
from same_results import assert_same_results
from small import small_task

ROUNDS, EVERY, PATIENCE = 14, 2, 2
OPTIONS: dict[str, Any] = {"cohort_size": 3, "batch_size": 4, "eval_every": EVERY, "seed": 3, "mesh": 1}
TASK, ALGORITHM = fx.with_validation(small_task(), 0.3), fx.fedavg(1.5)  # it overshoots, so the last is not the best
KEPT = {"rounds": ROUNDS, "keep": "best", **OPTIONS}


@cache
def whole(engine: str = "compiled") -> fx.RunResult:
    return fx.run(TASK, ALGORITHM, engine=engine, **KEPT)


def best_by_hand(column: str = "val_nll") -> tuple[int, float, int]:
    """The best round, its value, and the round of the first evaluation that is the second without a better one."""
    best, value, waited = 0, float("inf"), 0
    for row in fx.run(TASK, ALGORITHM, rounds=ROUNDS, **OPTIONS).history:
        if row[column] is not None:
            best, value, waited = (row["round"], row[column], 0) if row[column] < value else (best, value, waited + 1)
            if waited == PATIENCE:
                return best, value, row["round"]
    raise AssertionError("it never waits that long")


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("engine", ["compiled", pytest.param("eager", marks=pytest.mark.long)])
def test_the_best_parameters_are_those_of_the_best_round(engine):
    result = whole(engine)
    values = {row["round"]: row["val_nll"] for row in result.history if row["val_nll"] is not None}
    assert result.best == (min(values, key=lambda r: values[r]), "val_nll", min(values.values()))
    assert result.best is not None and 0 < result.best.round < ROUNDS
    short = fx.run(TASK, ALGORITHM, engine=engine, rounds=result.best.round, **OPTIONS)
    assert_equal(result.best_params, short.params)
    assert short.best_params is None and short.best == result.best
    assert_equal(result.params, fx.run(TASK, ALGORITHM, engine=engine, rounds=ROUNDS, **OPTIONS).params)


@pytest.mark.parametrize(
    ("engine", "metric", "column"), [("compiled", "nll", "val_nll"), ("eager", "test_nll", "test_nll")]
)
def test_a_run_stops_after_so_many_evaluations_without_a_better_one(engine, metric, column):
    best, value, end = best_by_hand(column)
    result = fx.run(TASK, ALGORITHM, rounds=ROUNDS, stop_after=f"{PATIENCE}:{metric}", engine=engine, **OPTIONS)
    assert end < ROUNDS and end - best == PATIENCE * EVERY
    assert (result.status, len(result.history)) == ("stopped early", end)
    assert f"{column} has not improved in 2 evaluations since round {best}" in str(result.message)
    assert result.history[best - 1][column] == pytest.approx(value, rel=1e-5)


def test_a_resumed_run_keeps_the_same_and_stops_at_the_same_round(tmp_path):
    options = KEPT | {"stop_after": PATIENCE}
    fx.run(TASK, ALGORITHM, out=tmp_path / "whole", **options)
    end = read_summary(tmp_path / "whole")["rounds_done"]
    for first in (2, best_by_hand()[0] + EVERY):  # before the best round, and after it
        part = tmp_path / f"part-{first}"
        fx.run(TASK, ALGORITHM, out=part, **options | {"rounds": first})
        for _ in range(2):  # again, once it has stopped
            result = fx.run(TASK, ALGORITHM, resume_from=part, **options)
            assert (result.status, len(result.history)) == ("stopped early", end)
            assert_equal(result.best_params, whole().best_params)
            assert_same_results(part, tmp_path / "whole")
            assert_same_results(part, tmp_path / "whole", "best.npz")
            assert read_summary(part)["best"] == read_summary(tmp_path / "whole")["best"]
    fx.run(TASK, ALGORITHM, out=tmp_path / "odd", **options | {"rounds": best_by_hand()[0] + 1})
    result = fx.run(TASK, ALGORITHM, resume_from=tmp_path / "odd", **options)
    assert len(result.history) == end, "the evaluation after its last round does not count"


def test_early_stopping_follows_the_metric_of_keep():
    watch = make_watch(TASK, RunOptions(keep="best:test_nll", stop_after=2, rounds=9))
    assert watch.stopping.metric == "test_nll"
    assert make_watch(TASK, RunOptions(stop_after="2:nll")).stopping.metric == "val_nll"


def test_the_last_round_of_a_run_that_is_continued_stays_the_best(tmp_path, monkeypatch):
    """It was evaluated as the last one, although no multiple of `eval_every`."""
    values = fx.run(TASK, ALGORITHM, rounds=ROUNDS, **OPTIONS | {"eval_every": 1}).history.column("val_nll")
    best = 1 + int(np.argmin(np.array(values, float)))
    options = OPTIONS | {"eval_every": best - 1, "keep": "best"}
    fx.run(TASK, ALGORITHM, rounds=best, out=tmp_path / "run", **options)
    monkeypatch.chdir(tmp_path)  # the same folder by another name, which is not removed
    more = {"resume_from": "run", "out": tmp_path / "run", "overwrite": True, "rounds": ROUNDS}
    result = fx.run(TASK, ALGORITHM, **options, **more)
    assert result.best is not None and result.best.round == best
    assert_equal(result.best_params, fx.run(TASK, ALGORITHM, rounds=best, **OPTIONS).params)


def test_predictions_are_of_the_best_parameters_where_they_were_kept(tmp_path):
    task = replace(TASK, predict=lambda params, batch: jnp.tanh(batch["x"] @ params["hidden"]["kernel"]))
    result = fx.run(task, ALGORITHM, out=tmp_path, **KEPT)
    models = {params: fx.load_model(tmp_path, params) for params in ("best", "last", None)}
    x = task.clients.examples["x"]
    for params, model in models.items():
        kept = result.params if params == "last" else result.best_params
        np.testing.assert_array_equal(model.params["out/bias"], kept["out"]["bias"])
        assert np.array_equal(model.predict(x), result.predict(x)) == (params != "last")


def test_parameters_of_every_nth_round_are_those_of_a_run_of_so_many_rounds(tmp_path):
    fx.run(TASK, ALGORITHM, rounds=5, save_every=2, out=tmp_path / "run", **OPTIONS)
    fx.run(TASK, ALGORITHM, rounds=4, out=tmp_path / "shorter", **OPTIONS)
    assert sorted(path.name for path in (tmp_path / "run").glob("params-*")) == ["params-2.npz", "params-4.npz"]
    assert (tmp_path / "run" / "params-4.npz").read_bytes() == (tmp_path / "shorter" / "params.npz").read_bytes()


def test_a_metric_that_is_never_a_number_is_never_the_best_and_early_stopping_refuses_it(tmp_path):
    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        nothing = jnp.zeros(len(batch["y"]))
        return {"never": (nothing, nothing), "zero": nothing}

    task = small_task(metrics=metrics, primary_metric="never", higher_is_better=True)
    options = {"rounds": ROUNDS, "out": tmp_path, **OPTIONS}
    result = fx.run(task, ALGORITHM, keep="best", **options)
    assert result.best is None and result.best_params is None
    assert set(result.history.column("test_never")) == {None} and result.history.last("test_zero") == 0
    with pytest.raises(fx.UsageError, match="stop_after needs finite values, and test_never had none in 2 evaluations"):
        fx.run(task, ALGORITHM, stop_after=2, **options | {"overwrite": True})


def test_evaluations_without_a_number_count_as_not_better():
    selection = Selection("val_auroc", True)
    for round, value in enumerate([None, 0.5, None, 0.4, 0.6, 0.6], start=1):
        selection.add({"round": round, "val_auroc": value})
    assert selection.best == (5, "val_auroc", 0.6) and selection.waited == 1
    watch = make_watch(TASK, RunOptions(eval_every=1, stop_after="2"))
    row = {"train_loss": 1.0, "val_nll": None}
    watch.add([{"round": round, **row} for round in range(1, 5)])  # resumed: none of these was evaluated
    assert watch.stopping is not None and watch.stopping.waited == 0

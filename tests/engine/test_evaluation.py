"""Evaluation: averages over the test examples, and what the clients see of them, against NumPy."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data, summarize
from refusals import refused
from small import SIZES, small_task

OWNED_BY = np.array([0, 4, 0, 2, 2, 2, 4, 0, 0, 2, 4])  # of the 11 test examples; clients 1 and 3 have none


def values_task(higher_is_better: bool = True, **changes: Any) -> fx.Task:
    """A metric that is each example's first feature, and one weighted by the second."""

    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        x = batch["x"]
        return {"first": x[:, 0], "tokens": (x[:, :2], jnp.abs(x[:, 2:]))}

    settings = {"metrics": metrics, "primary_metric": "first", "higher_is_better": higher_is_better}
    return small_task(**(settings | changes))


def rows(task: fx.Task) -> np.ndarray:
    return np.asarray(task.test["x"], np.float64)


def columns(task: fx.Task) -> dict[str, float]:
    found = jax.jit(lambda d: evaluate(task, None, d))(evaluation_data(task))
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("owners", [None, OWNED_BY, OWNED_BY + len(SIZES)])
def test_validation_has_columns_of_its_own_and_stands_for_clients_without_test_examples(owners):
    task = fx.with_validation(values_task(test_owners=owners), 0.4)
    x, found = task.validation["x"][:, 0], columns(task)
    assert found["val_first"] == pytest.approx(x.mean(), rel=1e-5)
    assert found["test_first"] == pytest.approx(rows(task)[:, 0].mean(), rel=1e-5)
    of = np.array([x[i == task.validation_owners].mean() for i in np.unique(task.validation_owners)])
    if owners is OWNED_BY:  # those who train
        of = np.array([rows(task)[i == OWNED_BY, 0].mean() for i in (0, 2, 4)])
    assert found["client_first_mean"] == pytest.approx(of.mean(), rel=1e-5)
    by_client = fx.evaluate_clients(task, None)["first"]
    np.testing.assert_allclose(by_client[np.isfinite(by_client)], of, rtol=1e-5)


@pytest.mark.parametrize(("batch", "higher"), [(500, True), (4, False), (1, True)])
def test_averages_are_weighted_padding_counts_for_nothing_and_every_client_once(batch, higher):
    task = values_task(higher, test_owners=OWNED_BY, eval_batch=batch)
    x, weights, found = rows(task)[:, 0], np.abs(rows(task)[:, 2:]), columns(task)
    of = np.array([x[i == OWNED_BY].mean() for i in (0, 2, 4)])
    worst = of.min() if higher else of.max()
    assert found == pytest.approx({
        "test_first": x.mean(), "test_tokens": (weights * rows(task)[:, :2]).sum() / weights.sum(),
        "client_first_mean": of.mean(), "client_first_spread": of.std(), "client_first_worst_decile": worst,
    }, rel=1e-5)  # fmt: skip
    by_client = fx.evaluate_clients(task, task.init(jax.random.key(0)))
    np.testing.assert_allclose(by_client["first"], [of[0], np.nan, of[1], np.nan, of[2]], rtol=1e-5)
    assert set(columns(values_task(eval_batch=batch))) == {"test_first", "test_tokens"}


@pytest.mark.parametrize("higher", [True, False])
def test_the_worst_decile_is_the_worst_tenth_of_the_present_clients(higher):
    rng = np.random.default_rng(0)
    values, present = rng.normal(size=40), rng.random(40) < 0.6
    there = np.sort(values[present])
    tenth = math.ceil(len(there) / 10)
    assert tenth > 1
    worst = (there[:tenth] if higher else there[-tenth:]).mean()
    found = summarize(jnp.where(present, jnp.asarray(values, jnp.float32), jnp.nan), higher)
    assert float(found["worst_decile"]) == pytest.approx(worst, rel=1e-5)
    assert float(found["mean"]) == pytest.approx(there.mean(), rel=1e-5)


def test_metrics_of_averages_are_computed_per_client_too():
    x = rows(values_task())[:, 0]
    of = [math.exp(x[i == OWNED_BY].mean()) for i in (0, 2, 4)]

    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        return {"exp": fx.metrics.perplexity(batch["x"][:, 0])}

    found = columns(replace(values_task(metrics=metrics, test_owners=OWNED_BY), primary_metric="exp"))
    assert found["test_exp"] == pytest.approx(math.exp(x.mean()), rel=1e-5)
    assert found["client_exp_mean"] == pytest.approx(np.mean(of), rel=1e-5)
    assert found["client_exp_worst_decile"] == pytest.approx(max(of), rel=1e-5)


def test_owners_that_do_not_fit_or_lack_and_missing_fields_are_named():
    for owners in (np.zeros(10, int), np.zeros(11), np.full(11, -1)):
        refused(lambda: evaluation_data(small_task(test_owners=owners)), "test_owners")  # noqa: B023
    refused(lambda: fx.evaluate_clients(small_task(validation=small_task().test), None), "test_owners")
    task = values_task(test={"y": np.zeros(3, np.int32)})
    words = "test of task 'small' must have the field 'x', which its metrics read"
    refused(lambda: column_names(task, None, evaluation_data(task)), words)

"""Metrics beyond means: AUROC and F1 against scikit-learn, exact and binned, for all and per client; and refusals."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

import fedoptax as fx
from fedoptax.engine.evaluation import column_names, describe_metrics, evaluate, evaluation_data, primary_metric
from fedoptax.tasks import metrics
from fedoptax.tasks.metrics import Column, higher_is_better, total_of
from refusals import refusals
from small import small_task

RNG = np.random.default_rng(0)


def scored_task(probabilities: Any, labels: Any, owners: Any = None, **changes: Any) -> fx.Task:
    """A task that predicts the probabilities that its test examples hold."""
    test = {"p": np.asarray(probabilities, np.float32), "y": np.asarray(labels, np.int32)}
    settings = {
        "test": test,
        "test_owners": owners,
        "predict": lambda params, batch: jnp.where(batch["p"] < 0, jnp.nan, batch["p"]),  # examples may not be NaN
        "classes": (),
        "clients": fx.FederatedData.from_clients([{"y": np.array([0, 0, 1], np.int32)}] * 7),
        "metrics": lambda params, batch: {"nll": -jnp.log(batch["p"][:, 0])},
        "eval_batch": 7,
    }
    return fx.with_metrics(small_task(**(settings | changes)), "auroc,f1")


def columns(task: fx.Task) -> dict[str, float]:
    found = jax.jit(lambda params, data: evaluate(task, params, data))(task.init(None), evaluation_data(task))
    return {name: float(value) for name, value in found.items()}


def draw(classes: int, examples: int, digits: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that say something about their labels; of few digits they tie."""
    labels = np.concatenate([np.arange(classes), RNG.integers(0, classes, examples - classes)])
    logits = RNG.normal(size=(examples, classes)) + np.eye(classes)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if classes == 2:
        second = probabilities[:, 1].round(digits)
        return np.stack([1 - second, second], 1), labels
    return probabilities, labels


def by_sklearn(probabilities: np.ndarray, labels: np.ndarray, positive: int = 1) -> tuple[float, float]:
    predicted, classes = probabilities.argmax(1), probabilities.shape[1]
    if classes == 2:
        f1 = f1_score(labels, predicted, pos_label=positive)
        return roc_auc_score(labels, probabilities[:, 1].astype(np.float32)), f1
    return roc_auc_score(labels, probabilities, multi_class="ovr"), f1_score(labels, predicted, average="macro")


@pytest.mark.parametrize(("classes", "examples", "digits"), [(2, 300, 1), (10, 200, 9), (2, 2, 9)])
def test_auroc_and_f1_are_those_of_scikit_learn(classes, examples, digits):
    probabilities, labels = draw(classes, examples, digits)
    task = scored_task(probabilities, labels)
    found = columns(task)
    auroc, f1 = by_sklearn(probabilities, labels)
    assert (found["test_auroc"], found["test_f1"]) == pytest.approx((auroc, f1), abs=1e-6)


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_each_client_has_its_own_and_one_without_both_classes_counts_for_nothing(classes):
    probabilities, labels = draw(classes, 80)
    owners = RNG.integers(0, 5, 80)
    labels[owners == 3] = 1  # AUROC is not defined there
    task = scored_task(probabilities, labels, owners, primary_metric="auroc", devices=9)
    expected = np.full(5, np.nan)
    for i in (0, 1, 2, 4):
        expected[i] = by_sklearn(probabilities[owners == i], labels[owners == i])[0]
    params, data = task.init(None), evaluation_data(task)
    np.testing.assert_allclose(fx.evaluate_clients(task, params)["auroc"], expected, atol=1e-6)
    models = jax.tree.map(lambda a: jnp.stack([a] * 9), params)
    stacked = jax.jit(lambda models, data: evaluate(task, ((), models), data, model_of=lambda _, m: m))(models, data)
    for found in (columns(task), stacked):
        assert float(found["test_auroc"]) == pytest.approx(by_sklearn(probabilities, labels)[0], abs=1e-6)
        assert float(found["client_auroc_mean"]) == pytest.approx(np.nanmean(expected), abs=1e-6)
        assert float(found["client_auroc_worst_decile"]) == pytest.approx(np.nanmin(expected), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_bins_add_up_over_nodes_and_are_within_their_bound(classes):
    parts = [draw(classes, 100) for _ in range(3)]

    @jax.jit
    def from_sums(parts: Any) -> Any:
        binned = [fx.metrics.auroc(jnp.float32(p), y).binned for p, y in parts]
        sums = jax.tree.map(lambda *rows: sum(a.sum(0) for a in rows), *[metric.values for metric in binned])
        return binned[0].result(sums), binned[0].bound(sums)

    exact, _ = by_sklearn(*(np.concatenate(arrays) for arrays in zip(*parts)))
    result, bound = from_sums(parts)
    assert abs(result - exact) <= bound + 1e-6 and bound < 0.01


def test_the_positive_class_is_the_schemas_or_the_second_whoever_holds_the_data():
    probabilities, labels = draw(2, 60)
    for inputs, positive in (({}, 1), ({"positive": "no"}, 0)):
        clients = fx.FederatedData.from_clients([{"y": np.array([1, 1, 1, 0], np.int32)}])
        task = scored_task(probabilities, labels, clients=clients, inputs=inputs, classes=("no", "yes"))
        found = columns(task)
        assert float(found["test_f1"]) == pytest.approx(by_sklearn(probabilities, labels, positive)[1], abs=1e-6)


@pytest.mark.parametrize(
    ("given", "undefined"), [({"one_class": ([[0.2, 0.8]] * 3, [1, 1, 1])}, {"auroc"}),
     ({"nothing_positive": ([[0.9, 0.1]] * 3, [0, 0, 0])}, {"auroc", "f1"}),
     ({"nan": ([[0.9, 0.1], [-1, -1]], [0, 1])}, {"auroc", "nll"}),
     ({"ties": ([[0.5, 0.5]] * 4, [0, 1, 0, 1])}, set())],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)  # fmt: skip
def test_what_is_not_defined_is_nan(given, undefined):
    ((probabilities, labels),) = given.values()
    task = scored_task(probabilities, labels)
    found = columns(task)
    assert {name.removeprefix("test_") for name, value in found.items() if np.isnan(value)} == undefined
    if not undefined:
        assert float(found["test_auroc"]) == 0.5


def test_calibration_brier_and_what_has_no_variance_by_hand():
    p, y = jnp.array([[0.9, 0.1], [0.95, 0.05], [0.3, 0.7]]), jnp.array([0, 1, 1])
    assert total_of(metrics.calibration_error(p, y)) == pytest.approx((0.85 + 0.3) / 3)  # (0, 0.1] has two
    assert total_of(metrics.calibration_error(p, y, 0)) == pytest.approx((0.1 + 0.95 + 0.3) / 3)
    assert total_of(metrics.brier(jnp.array([[0.5, 0.3, 0.2]]), jnp.array([1]))) == pytest.approx(0.78)
    assert all(np.isnan([total_of(metrics.auprc(p, 0 * y + 1)), total_of(metrics.r2(p[:, 0], jnp.ones(3)))]))
    assert np.isnan(metrics.confusion(p, y, "ab")["confusion_a_as_b"].result(jnp.zeros(2)))  # of no examples


def rows(batch: Any) -> jax.Array:
    return batch["x"][:, 0]


WRONG: list[Any] = [
    (lambda b: jnp.mean(rows(b)), r"'it': values and weights must be one row per example, got \(\) and"),
    (lambda b: rows(b) - rows(b)[:, None], r"'it': .* got \(8191, 8191\) and"),
    (lambda b: fx.metrics.r2(rows(b), rows(b)[:, None]), r"'it' must .* got shape \(8191, 8191\)"),
    (lambda b: (rows(b)[:, None], rows(b)), r"'it': .* one row .* got \(8191, 1\) and \(8191,\)"),
    (lambda b: (rows(b), 1.0), r"'it': .* one row .* got \(8191,\) and \(\)"),
    (lambda b: rows(b)[None], r"'it': .* one row per example, got \(1, 8191\) and"),
    (lambda b: jnp.mean(rows(b), keepdims=True), r"'it' must .* got shape \(1,\)"),
    (lambda b: (rows(b),) * 3, r"'it': .* got \(3, 8191\) and"), (lambda b: None, r"'it': .*None"),
    (lambda b: fx.metrics.Metric(jnp.ones(3), jnp.sum), r"'it' must .* got shape \(3,\)"),
    (lambda b: fx.metrics.Metric(b["x"], lambda sums: sums), r"'it' must return one number, got float32\[4\]"),
]  # fmt: skip


def describe(metric: Any) -> Any:
    task = small_task(metrics=lambda params, batch: {"it": metric(batch)}, primary_metric="it")
    return describe_metrics(task), column_names(task, None, evaluation_data(task))


def images(y: np.ndarray, test_y: Any = None) -> fx.Task:
    clients = fx.FederatedData.from_clients([{"x": np.zeros((len(y), 4)), "y": y}])
    test = None if test_y is None else {"x": np.zeros((len(test_y), 4)), "y": test_y}
    return fx.tasks.image_classification("own", fx.models.mlp((4,), 2), 1.0, clients, test)


test_labels_that_are_no_classes_are_refused = refusals([
    *((partial(images, y), "y of task 'own' must be classes") for y in (np.array([-1, 1]), np.zeros((2, 1), int))),
    (partial(images, np.array([0, 1]), np.array([1, -1])), "y of task 'own' must be classes"),
    (partial(fx.with_metrics, images(np.array([0, 1])), ["auroc"]), "metrics must be"),
])  # fmt: skip
test_a_metric_of_another_shape_is_refused_by_name = refusals([
    *((partial(describe, metric), reason) for metric, reason in WRONG),
    (lambda: describe_metrics(small_task(metrics=lambda params, batch: 3)), "must return values by name, got "),
])  # fmt: skip


def test_a_metric_says_which_way_is_better_and_the_short_form_by_its_name():
    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        plain = dict.fromkeys(("my_error", "supply_recall", "cost"), rows(batch))
        return plain | {"loss_rate": fx.metrics.mean(rows(batch))}

    task = small_task(metrics=metrics, primary_metric="cost", higher_is_better=False)
    found = {name: metric.higher_is_better for name, metric in describe_metrics(task).items()}
    assert found == {"loss_rate": True, "my_error": False, "supply_recall": True, "cost": False}
    assert primary_metric(replace(task, primary_metric=None)) == "cost"
    found = describe_metrics(replace(task, primary_metric="my_error", higher_is_better=None))
    assert not found["my_error"].higher_is_better


@pytest.mark.parametrize(
    ("name", "column", "higher"),
    [("test_accuracy", ("test", "accuracy", ""), True), ("val_my_cost", ("val", "my_cost", ""), False),
     ("client_my_cost_worst_decile", ("client", "my_cost", "worst_decile"), False),
     ("client_accuracy_spread", ("client", "accuracy", "spread"), False), ("train_loss", ("train", "loss", ""), False),
     ("nodes_accuracy_bound", ("nodes", "accuracy", "bound"), False), ("test_val_mean", ("test", "val_mean", ""), True),
     ("bytes_up", None, True), ("virtual_seconds", None, False), ("round", None, True), ("test_", None, True),
     ("test_cross_entropy", ("test", "cross_entropy", ""), False)],
)  # fmt: skip
def test_a_column_is_taken_apart_in_one_place(name, column, higher):
    found = Column.parse(name)
    assert found == column and (found is None or str(found) == name)
    assert higher_is_better(name, {"my_cost": False, "accuracy": True}) is higher

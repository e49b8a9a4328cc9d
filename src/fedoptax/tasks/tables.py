"""Tasks on tables: classification, perhaps weighted, or regression."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedoptax.algorithm import Tree
from fedoptax.data.schema import Schema
from fedoptax.data.statistics import Preparation
from fedoptax.errors import DataError, UsageError, check_choice, parse_number
from fedoptax.models import Model
from fedoptax.tasks.images import cross_entropy, scaled
from fedoptax.tasks.metrics import Metric, r2, root_mean
from fedoptax.tasks.metrics import mean as mean_of
from fedoptax.tasks.task import Batch, at_least_float32, masked_mean

LOSSES = ("squared", "huber", "poisson")


def learn_table(
    schema: Schema, prepared: Preparation, model: Model, loss: str | None = None, class_weight: str | None = None
) -> dict[str, Any]:
    """Return the attributes of `Task` for tables with a schema and the preprocessing of their features.

    The model has an output for each class, or one for a number. `loss`, of a number, is one of `LOSSES`;
    `class_weight`, of classes, is that of `class_weights`. One that does not apply is a `UsageError`, a single class a
    `DataError`.
    """
    inputs: dict[str, Any] = {"schema": schema.to_toml(), "fill": [float(value) for value in prepared.fill]}
    if schema.target.kind == "class":
        if loss is not None:
            raise UsageError(f"loss applies to a number as the target, got loss={loss!r} for classes")
        if len(classes := schema.target.classes) < 2:
            raise DataError(f"label column {schema.target.column!r} must have two classes or more")
        inputs["positive"] = schema.target.positive or (classes[1] if len(classes) == 2 else None)
        weights = class_weights(class_weight, classes, prepared.classes)
        return cross_entropy(model, prepared.scale, shift=prepared.shift, weights=weights) | {"inputs": inputs}
    if class_weight is not None:
        raise UsageError(f"class_weight applies to classes, got {class_weight!r} for a number as the target")
    return regression(model, prepared, loss or "squared") | {"inputs": inputs}


def default_metrics(schema: Schema) -> str | None:
    """Return the metrics of a table with a schema besides accuracy and loss, for `fedoptax.with_metrics`."""
    count = len(schema.target.classes)
    few = "auroc,auprc,f1,balanced_accuracy,brier,calibration_error" + ",confusion" * (count <= 3)
    return few if 2 <= count <= 10 else None


def regression(model: Model, prepared: Preparation, loss: str = "squared") -> dict[str, Any]:
    """Return the attributes of `Task` for regression; metrics: `mae` and `rmse` in the target's units, `r2`, `loss`.

    The model's output is in standard deviations about the mean of the federation's training examples; with the Poisson
    loss, for counts, it is the logarithm of the rate by this mean, which must be positive (else a `DataError`). The
    Huber loss is squared up to one deviation, then linear.
    """
    check_choice("loss", loss, LOSSES)
    mean, deviation = prepared.target
    if loss == "poisson" and mean <= 0:
        raise DataError(f"loss poisson needs a target of counts, got one with the mean {mean:g}")

    def output_of(params: Tree, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        x = scaled(params, batch["x"], prepared.scale, prepared.shift)
        return at_least_float32(model.apply(params, x, key))[:, 0]

    def predict(params: Tree, batch: Batch) -> jax.Array:
        output = output_of(params, batch)
        return mean * jnp.exp(output) if loss == "poisson" else mean + deviation * output

    def losses_of(output: jax.Array, y: jax.Array) -> jax.Array:
        if loss == "poisson":
            return jnp.exp(output) - y / mean * output
        difference = output - (y - mean) / deviation
        return optax.huber_loss(difference) if loss == "huber" else jnp.square(difference) / 2

    def metrics(params: Tree, batch: Batch) -> dict[str, Metric | jax.Array]:
        y, predicted = batch["y"].astype(jnp.float32), predict(params, batch)
        off = predicted - y
        errors: dict[str, Any] = {"mae": mean_of(jnp.abs(off), higher_is_better=False)}
        fit = r2((predicted - mean) / deviation, (y - mean) / deviation)  # near 0, so that squares keep their digits
        return errors | {"rmse": root_mean(jnp.square(off)), "r2": fit, "loss": losses_of(output_of(params, batch), y)}

    def mean_loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        return masked_mean(losses_of(output_of(params, batch, key), batch["y"]), batch)

    learned = {"init": model.init, "loss": mean_loss, "metrics": metrics, "predict": predict}
    return learned | {"primary_metric": "rmse", "higher_is_better": False}


def class_weights(text: str | None, names: Sequence[str], counts: np.ndarray) -> np.ndarray | None:
    """Return the weight of each class in the training loss, (C,), or None for equal ones.

    `text` is `"balanced"`, for n / (C · n_c) of the federation's n training examples, where a class without examples is
    a `DataError`; or `"yes=5,no=1"`, where classes that are left out have 1.
    """
    if text is None:
        return None
    if text == "balanced":
        if not np.all(counts > 0):
            raise DataError(f"class_weight balanced needs training examples of class {names[int(np.argmin(counts))]!r}")
        return counts.sum() / (len(counts) * counts)
    weights = dict.fromkeys(names, 1.0)
    for pair in text.split(","):
        name, _, value = pair.rpartition("=")
        check_choice("class_weight", name.strip() or pair, ["balanced", *names])
        weights[name.strip()] = parse_number(f"class_weight of {name.strip()!r}", value, 0)
    return np.array(list(weights.values()))

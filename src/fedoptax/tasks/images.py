"""Image classification: digits, MNIST, Fashion-MNIST, CIFAR and EMNIST characters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.data.images import Load, read
from fedoptax.errors import UsageError
from fedoptax.models import MODELS
from fedoptax.models.model import Model
from fedoptax.tasks.augmentation import AUGMENTATIONS, Augmentation, cropped_shape
from fedoptax.tasks.division import divide
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.task import Task, masked_mean


def classification(load: Load, scale: float) -> Callable[[str, Recipe, Options], Task]:
    """The maker of a task on `load`'s images; models see x / scale, or what the augmentation makes of it."""

    def make(name: str, recipe: Recipe, given: Options) -> Task:
        model = given.model or recipe.model
        augment = given.augment or ("crop" if model.startswith("resnet18") and "augment" in recipe.options else "none")
        source = read(load, given.data_dir, given.partition)
        division = divide(source, recipe, given)
        spec = {
            "model": model,
            **({"augment": augment} if "augment" in recipe.options else {}),
            **({"devices": given.devices} if given.devices is not None else {}),
            **division.spec,
        }
        if given.devices is not None and given.devices < division.clients.num_clients:
            least = division.clients.num_clients
            raise UsageError(f"devices: {given.devices} given, allowed is at least num_clients, {least}")
        shape = cropped_shape(source.input_shape) if augment == "crop" else source.input_shape
        return image_classification(
            name,
            MODELS[model](shape, source.num_classes),
            scale,
            division.clients,
            division.test,
            recipe.summary,
            spec,
            augment=AUGMENTATIONS[augment],
            test_owners=division.test_owners,
            devices=given.devices,
        )

    return make


def image_classification(
    name: str,
    model: Model,
    scale: float,
    clients: FederatedData,
    test: Mapping[str, np.ndarray] | None,
    description: str = "",
    spec: Mapping[str, Any] | None = None,
    augment: Augmentation | None = None,
    test_owners: np.ndarray | None = None,
    devices: int | None = None,
) -> Task:
    """Cross-entropy on examples `x` (n, …), given to the model as x / scale, with labels `y` (n,).

    Metrics: `accuracy`, and `loss`, the cross-entropy in nats.

    Args:
      name, clients, test, description, spec, test_owners, devices: as in `Task`.
      model: x to logits.
      scale: the largest pixel.
      augment: `(x / scale, key) -> x`, applied to each batch; the key is None in evaluation.
    """

    def logits(params: Tree, batch: Any, key: jax.Array | None = None) -> jax.Array:
        dtype = jax.tree.leaves(params)[0].dtype
        x = batch["x"].astype(dtype) / jnp.asarray(scale, dtype)
        if augment is not None:
            x = augment(x, key)
        return model.apply(params, x, key)

    def loss(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, batch, key), batch["y"])
        return masked_mean(losses, {"mask": batch["mask"]})

    def metrics(params: Tree, batch: Any) -> dict[str, jax.Array]:
        out = logits(params, batch)
        return {
            "accuracy": (jnp.argmax(out, axis=-1) == batch["y"]).astype(jnp.float32),
            "loss": optax.softmax_cross_entropy_with_integer_labels(out, batch["y"]),
        }

    return Task(
        name,
        model.init,
        loss,
        metrics,
        clients,
        test,
        "accuracy",
        True,
        description,
        dict(spec or {}),
        test_owners=test_owners,
        devices=devices,
    )

"""Reconstruction of images: the EMNIST autoencoder of "Adaptive Federated Optimization"."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedoptax.algorithm import Tree
from fedoptax.data.images import emnist, read
from fedoptax.models import autoencoder
from fedoptax.tasks.division import divide
from fedoptax.tasks.recipe import Options, Recipe
from fedoptax.tasks.task import Task


def emnist_autoencoder(name: str, recipe: Recipe, given: Options) -> Task:
    """EMNIST AE: images inverted (ink 1, background 0) and flattened; metric `mse_x1000`, lower is better.

    The loss is the *sum* over the batch of each example's mean squared error, as in the paper's released code, so the
    paper's client learning rates apply as they are (Reddi et al. 2021, Appendix C and Table 8).
    """
    source = read(emnist, given.data_dir, given.partition)
    division = divide(source, recipe, given)
    model = autoencoder()

    def errors(params: Tree, batch: Any, key: jax.Array | None = None) -> jax.Array:
        """Mean squared error of each example, (batch,)."""
        dtype = jax.tree.leaves(params)[0].dtype
        x = 1 - batch["x"].reshape(len(batch["x"]), -1).astype(dtype) / 255
        return jnp.mean(jnp.square(model.apply(params, x, key) - x), axis=1)

    def loss(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch["mask"], errors(params, batch, key), 0))

    def metrics(params: Tree, batch: Any) -> dict[str, jax.Array]:
        return {"mse_x1000": 1000 * errors(params, batch)}

    return Task(
        name,
        model.init,
        loss,
        metrics,
        division.clients,
        division.test,
        "mse_x1000",
        False,
        recipe.summary,
        {"model": recipe.model, **division.spec},
        test_owners=division.test_owners,
    )

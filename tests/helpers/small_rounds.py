"""Small problems with gradients by hand, and rounds over them, for the tests of the algorithms."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.eager import run_round

PLAIN = ("scaffold", "local_amsgrad", "naive_adaptive", "fafed", "stem", "mime", "mimelite", "local_adaalter",
         "lookahead")  # fmt: skip
ALL: dict[str, Callable[..., FedAlgorithm]] = {name: fx.ALGORITHMS[name] for name in PLAIN} | {
    "scaffold_I": partial(fx.scaffold, server_lr=0.9, option="I"),
    "local_amsgrad_bias": partial(fx.local_amsgrad, bias_correction="momentum"),
    "fedlamb": partial(fx.fedlamb, weight_decay=0.01),
    "fedlamb_reset": partial(fx.fedlamb, phi="identity", layers="module", momentum="reset", bias_correction="both"),
    "fafed_released": partial(fx.fafed, variant="released"), "fedprox": partial(fx.fedprox, mu=0.1),
    "mime_adam": partial(fx.mime, base="adam"), "mimelite_adam": partial(fx.mimelite, base="adam"),
    "clipped": lambda lr: fx.with_clipping(fx.fafed(lr), 1.0),
}  # fmt: skip
OFTEN = ("fafed",)
every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.long]) for name in ALL]
)
"""In `make test` one of them, the others with the long tests."""


def quadratic(params: Any, batch: Any) -> tuple[jax.Array, Any]:
    """½ a‖x − b‖² summed over the leaves, for a batch (a, b) of scalars."""
    a, b = batch
    residual = jax.tree.map(lambda p: p - jnp.asarray(b, p.dtype), params)
    loss = sum(jnp.sum(jnp.asarray(0.5 * a, r.dtype) * r * r) for r in jax.tree.leaves(residual))
    return loss, tree.scale(a, residual)


def scalars(start: float) -> Any:
    return {"x": jnp.float32(start)}


def model(dtype: Any = jnp.float32) -> Any:
    return {"a": {"kernel": jnp.linspace(-1.0, 2.0, 6, dtype=dtype).reshape(2, 3), "bias": jnp.zeros(3, dtype)}}


def federate(
    alg: FedAlgorithm, params: Any, batches: list, rounds: int, grad_fn: Callable = quadratic
) -> tuple[Any, list, list]:
    """Runs rounds; `batches[i]` is client i's list each round. Returns server, clients, the x of every round."""

    def a_round(server: Any, clients: list) -> Any:
        return run_round(alg, grad_fn, server, clients, batches)[:2]

    run = jax.jit(a_round) if rounds > 10 else a_round
    server, clients = alg.init(params), [alg.init_client(params) for _ in batches]
    path = [alg.params(server)]
    for _ in range(rounds):
        server, clients = run(server, clients)
        path.append(alg.params(server))
    return server, clients, path


def close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=atol)


TWO = [[(1.0, -1.0)] * 10, [(4.0, 2.0)] * 10]  # optimum Σ a b / Σ a = 7/5

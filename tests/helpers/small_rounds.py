"""Small problems with gradients by hand, and rounds over them, for the tests of the algorithms."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms import fafed, fedprox, naive_adaptive, stem
from fedoptax.algorithms.fedlamb import fedlamb, local_amsgrad
from fedoptax.algorithms.mime import mime, mimelite
from fedoptax.algorithms.scaffold import scaffold
from fedoptax.algorithms.shared_state import local_adaalter, lookahead
from fedoptax.engine.eager import run_round
from fedoptax.wrappers import with_clipping

ALL: dict[str, Callable[..., FedAlgorithm]] = {
    "scaffold": lambda lr: scaffold(lr), "scaffold_I": lambda lr: scaffold(lr, 0.9, option="I"),
    "local_amsgrad": lambda lr: local_amsgrad(lr),
    "local_amsgrad_bias": lambda lr: local_amsgrad(lr, bias_correction="momentum"),
    "fedlamb": lambda lr: fedlamb(lr, weight_decay=0.01),
    "fedlamb_reset": lambda lr: fedlamb(lr, phi="identity", layers="module", momentum="reset", bias_correction="both"),
    "naive_adaptive": lambda lr: naive_adaptive(lr), "fafed": lambda lr: fafed(lr),
    "fafed_released": lambda lr: fafed(lr, variant="released"), "stem": lambda lr: stem(lr),
    "mime": lambda lr: mime(lr), "mime_adam": lambda lr: mime(lr, base="adam"), "mimelite": lambda lr: mimelite(lr),
    "mimelite_adam": lambda lr: mimelite(lr, base="adam"), "local_adaalter": lambda lr: local_adaalter(lr),
    "lookahead": lambda lr: lookahead(lr), "fedprox": lambda lr: fedprox(lr, 0.1),
    "clipped": lambda lr: with_clipping(fafed(lr), 1.0),
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
    alg: FedAlgorithm, params: Any, batches: list, rounds: int, grad_fn: Callable = quadratic, cohorts: Any = None
) -> tuple[Any, list, list]:
    """Runs rounds; `batches[i]` is client i's list each round. Returns server, clients, the x of every round."""
    everyone = list(range(len(batches)))

    def a_round(cohort: list[int]) -> Callable:
        own = [batches[i] for i in cohort]

        def run(server: Any, clients: list) -> Any:
            return run_round(alg, grad_fn, server, clients, own, num_clients=len(batches))[:2]

        return jax.jit(run) if rounds > 10 else run

    runs = [(cohort, a_round(cohort)) for cohort in (cohorts or [everyone])]
    server, clients = alg.init(params), [alg.init_client(params) for _ in batches]
    path = [alg.params(server)]
    for r in range(rounds):
        cohort, run = runs[r % len(runs)]
        server, new = run(server, [clients[i] for i in cohort])
        for i, state in zip(cohort, new):
            clients[i] = state
        path.append(alg.params(server))
    return server, clients, path


def close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=atol)


TWO = [[(1.0, -1.0)] * 10, [(4.0, 2.0)] * 10]  # optimum Σ a b / Σ a = 7/5

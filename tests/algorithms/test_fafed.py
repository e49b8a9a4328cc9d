"""FAFED, STEM and the naive method on Theorem 1's problem, and the number of gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fedoptax.algorithm import Batches
from fedoptax.algorithms import fafed, naive_adaptive, stem
from fedoptax.algorithms.fedopt import fedadam
from small_rounds import close, federate, quadratic, scalars


def theorem1(params: Any, batch: Any) -> tuple[jax.Array, Any]:
    """Theorem 1: f₁ = 3x² (|x| ≤ 1) else 6|x| − 2 (as printed; the gradient is what matters); f₂ = f₃ = −f₁/3."""
    x = params["x"]
    gradient = batch * jnp.clip(2.0 * x, -2.0, 2.0)
    return batch * jnp.where(jnp.abs(x) <= 1, x * x, 2.0 * jnp.abs(x) - 1.0), {"x": gradient}


THEOREM1 = [[jnp.float32(3.0)], [jnp.float32(-1.0)], [jnp.float32(-1.0)]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: fafed(0.1, rho=1.0),
        lambda: fafed(0.1, rho=1.0, variant="released"),
        lambda: stem(0.05),
        lambda: fedadam(0.01, 0.1),
    ],
    ids=["fafed", "released", "stem", "fedadam"],
)
def test_fafed_and_fedadam_converge_on_theorem_1(make: Callable) -> None:
    _, _, path = federate(make(), scalars(10.0), [own * 2 for own in THEOREM1], 600, theorem1)
    assert abs(float(path[-1]["x"])) < 0.01


def test_naive_adaptive_does_not_move_where_v_is_zero() -> None:
    _, _, path = federate(naive_adaptive(0.1), scalars(1.0), [[(0.0, 0.0)]], 2)
    assert float(path[-1]["x"]) == 1.0


@pytest.mark.parametrize("make", [lambda: stem(0.5), lambda: fafed(0.5), lambda: fafed(0.5, variant="released")])
def test_a_client_without_batches_uploads_the_model_that_it_got(make: Callable) -> None:
    def towards(params: Any, batch: Any) -> Any:
        return 0.5 * (params["x"] - batch) ** 2, {"x": params["x"] - batch}

    algorithm = make()
    server, _, path = federate(algorithm, scalars(0.0), [[jnp.float32(1.0)]] * 2, 3, towards)
    message = algorithm.broadcast(server)
    upload, _, _ = algorithm.client_update(towards, message, algorithm.init_client(scalars(0.0)), [])
    assert float(path[-1]["x"]) > 0.1
    close(upload.params, message.params)
    close(upload.m, message.m)


def test_fafed_computes_k_gradients_in_round_0_and_2k_later() -> None:
    count = 0

    def tick(_: Any) -> None:
        nonlocal count
        count += 1

    def counted(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        loss, grads = quadratic(params, batch)
        jax.debug.callback(tick, loss)
        return loss, grads

    alg, params = fafed(0.1), scalars(3.0)

    @jax.jit
    def work(server: Any, clients: Any) -> Any:
        def one(client: Any, b: jax.Array) -> Any:
            return alg.client_update(counted, alg.broadcast(server), client, Batches(jnp.int32(5), lambda k: (1.0, b)))

        return jax.vmap(one)(clients, jnp.arange(3.0))

    clients = jax.tree.map(lambda a: jnp.stack([a] * 3), alg.init_client(params))
    for t, expected in ((0, 15), (1, 30), (9, 30)):
        count = 0
        jax.block_until_ready(work(alg.init(params)._replace(t=jnp.int32(t)), clients))
        jax.effects_barrier()
        assert count == expected

"""FAFED, STEM and the naive method against hand computation and direct simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.algorithm import Batches
from fedoptax.algorithms import fafed, fafed_schedule, naive_adaptive, stem
from fedoptax.algorithms.fedopt import fedadam
from small_rounds import close, federate, quadratic, scalars

# ---------------------------------------------------------------- FAFED, STEM, naive


def theorem1(params: Any, batch: Any) -> tuple[jax.Array, Any]:
    """Theorem 1: f₁ = 3x² (|x| ≤ 1) else 6|x| − 2 (as printed; the gradient is what matters); f₂ = f₃ = −f₁/3."""
    x = params["x"]
    gradient = batch * jnp.clip(2.0 * x, -2.0, 2.0)
    return batch * jnp.where(jnp.abs(x) <= 1, x * x, 2.0 * jnp.abs(x) - 1.0), {"x": gradient}


THEOREM1 = [[jnp.float32(3.0)], [jnp.float32(-1.0)], [jnp.float32(-1.0)]]


def test_naive_adaptive_walks_away_from_the_optimum() -> None:
    _, _, path = federate(naive_adaptive(0.1, 0.5), scalars(10.0), THEOREM1, 20, theorem1)
    assert float(path[1]["x"]) == pytest.approx(10 + 0.1 / (3 * 0.5**0.5), rel=1e-6)  # 10.047140…
    for t in range(1, 21):
        step = float(path[t]["x"] - path[t - 1]["x"])
        assert step == pytest.approx(0.1 / (3 * (1 - 0.5**t) ** 0.5), abs=5e-6)


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


def simulate_fafed(
    x: float,
    data: list,
    rounds: int,
    lr: Callable,
    alpha: Callable,
    beta: float,
    rho: float,
    variant: str,
    cohorts: list,
) -> list[float]:
    """Algorithm 2 with plain numbers; A = 1 when beta is None."""

    def a_of(v: float) -> float:
        return 1.0 if beta is None else v**0.5 + rho

    path, prev, t, m, v = [x], [x] * len(data), 0, 0.0, 0.0
    for r in range(rounds):
        ends = []
        for i in cohorts[r % len(cohorts)]:
            if r == 0:
                g = float(np.mean([a * (x - b) for a, b in data[i]]))
                ends.append((x, g, g * g, len(data[i])))
                continue
            y, mi, vi, old = x, m, v, prev[i]
            for k, (a, b) in enumerate(data[i]):
                g, g_old = a * (y - b), a * (old - b)
                mi = g + (1 - alpha(t + k)) * (mi - g_old)
                vi = 0.0 if beta is None else beta * vi + (1 - beta) * g * g
                old = y
                if k + 1 < len(data[i]) or variant == "released":
                    y -= lr(t + k) * mi / a_of(v)
            prev[i] = old
            ends.append((y, mi, vi, len(data[i])))
        x, m, v, steps = (float(np.mean(part)) for part in zip(*ends))
        last = 0 if r == 0 else t + round(steps) - 1
        if r == 0:
            x -= lr(0) * m
        elif variant == "paper":
            x -= lr(last) * m / a_of(v)
        t = last + 1
        path.append(x)
    return path


FAFED_DATA = [[(1.0, -1.0), (2.0, 0.5), (0.5, 1.0)], [(3.0, 2.0)], [(1.5, 0.0), (1.0, 4.0)]]


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("cohorts", [[[0, 1, 2]], [[0, 2], [1, 2]]], ids=["full", "partial"])
def test_fafed_against_a_direct_simulation(variant: str, scheduled: bool, cohorts: list) -> None:
    lr, alpha = fafed_schedule(0.1, 2.0, 1.5, 9.0) if scheduled else (0.05, 0.3)
    _, _, path = federate(fafed(lr, alpha, 0.8, 0.1, variant), scalars(3.0), FAFED_DATA, 7, cohorts=cohorts)

    def eta(t: int) -> float:
        return 0.2 / (1.5 + t) ** (1 / 3) if scheduled else 0.05

    expected = simulate_fafed(
        3.0,
        FAFED_DATA,
        7,
        eta,
        lambda t: min(1.0, 9.0 * eta(t - 1) ** 2) if scheduled else 0.3,
        0.8,
        0.1,
        variant,
        cohorts,
    )
    close([p["x"] for p in path], expected, rtol=2e-5)


def test_stem_against_a_direct_simulation_and_as_fafed_with_a_equal_to_1() -> None:
    _, _, path = federate(stem(0.05, 0.3), scalars(3.0), FAFED_DATA, 6)
    expected = simulate_fafed(3.0, FAFED_DATA, 6, lambda t: 0.05, lambda t: 0.3, None, None, "paper", [[0, 1, 2]])
    close([p["x"] for p in path], expected, rtol=2e-5)
    rho = 1e8  # A = √v + ρ = ρ to float precision; round 0 does not divide by A

    def lr(t: Any) -> jax.Array:
        return jnp.where(jnp.asarray(t) == 0, 0.05, 0.05 * rho)

    _, _, same = federate(fafed(lr, 0.3, rho=rho), scalars(3.0), FAFED_DATA, 6)
    close([p["x"] for p in same], [p["x"] for p in path])


def test_stem_with_alpha_1_one_client_one_step_is_sgd() -> None:
    _, _, path = federate(stem(0.1, 1.0), scalars(1.0), [[(1.0, 0.0)]], 5)
    close([p["x"] for p in path], [0.9**t for t in range(6)])


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


def test_fafed_schedule_is_equation_5() -> None:
    lr, alpha = fafed_schedule(rho=0.01, h=100.0, w=1.0, c=0.5)
    close([lr(0), lr(7), alpha(0), alpha(1), alpha(8)], [1.0, 0.5, 0.5, 0.5, 0.125])
    assert float(fafed_schedule(1.0, 1.0, 1.0, 3.0)[1](1)) == 1.0  # cut off


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
    sweep = jax.vmap(work, in_axes=(0, None))  # three servers at once: the branch not taken has no steps
    for t, expected in ((0, 45), (1, 90)):
        count = 0
        servers = jax.tree.map(lambda a: jnp.stack([a] * 3), alg.init(params)._replace(t=jnp.int32(t)))
        jax.block_until_ready(jax.jit(sweep)(servers, clients))
        jax.effects_barrier()
        assert count == expected

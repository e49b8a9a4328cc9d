"""SCAFFOLD, Local AMSGrad and Fed-LAMB against hand computation and direct simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedoptax import _tree as tree
from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms.fedlamb import fedlamb, local_amsgrad
from fedoptax.algorithms.fedopt import fedavg
from fedoptax.algorithms.scaffold import scaffold
from small_rounds import TWO, close, federate, model, quadratic, scalars

# ---------------------------------------------------------------- SCAFFOLD


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_reaches_the_optimum_where_fedavg_does_not(option: str) -> None:
    _, clients, path = federate(scaffold(0.05, option=option), scalars(5.0), TWO, 120)
    assert float(path[-1]["x"]) == pytest.approx(1.4, abs=1e-4)
    assert float(sum(c["x"] for c in clients)) == pytest.approx(0.0, abs=1e-3)  # cᵢ = ∇fᵢ(x*)
    _, _, drifted = federate(fedavg(0.05), scalars(5.0), TWO, 120)
    assert abs(float(drifted[-1]["x"]) - 1.4) > 0.1


def test_scaffold_reaches_the_optimum_with_partial_participation() -> None:
    server, clients, path = federate(scaffold(0.05), scalars(5.0), TWO, 400, cohorts=[[0], [1], [1], [0]])
    assert float(path[-1]["x"]) == pytest.approx(1.4, abs=1e-3)
    assert float(server.control["x"]) == pytest.approx(float(sum(c["x"] for c in clients)) / 2, abs=1e-5)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_one_round_by_hand(option: str) -> None:
    # One client of four, a = 1, b = 0, η_l = 0.1, K = 2 from x = 1: y = 1, 0.9, 0.81; cᵢ⁺ = 0.19/0.2 or ∇f(1) = 1.
    server, clients, _ = federate(scaffold(0.1, 0.5, option), scalars(1.0), [[(1.0, 0.0)] * 2] * 4, 1, cohorts=[[0]])
    control = 1.0 if option == "I" else 0.95
    assert float(server.params["x"]) == pytest.approx(1 - 0.5 * 0.19)
    assert float(clients[0]["x"]) == pytest.approx(control, rel=1e-5)
    assert float(server.control["x"]) == pytest.approx(control / 4, rel=1e-5)


def test_scaffold_uses_the_steps_really_taken() -> None:
    alg = scaffold(0.1)
    server = alg.init(scalars(1.0))._replace(control=scalars(3.0))
    upload, client, _ = alg.client_update(quadratic, alg.broadcast(server), scalars(1.0), [(1.0, 0.0)] * 3)
    y = 1.0
    for _ in range(3):
        y -= 0.1 * (y - 1.0 + 3.0)
    assert float(client["x"]) == pytest.approx(1.0 - 3.0 + (1.0 - y) / 0.3, rel=1e-5)
    for option in ("I", "II"):
        alg = scaffold(0.1, option=option)
        upload, client, loss = alg.client_update(quadratic, alg.broadcast(server), scalars(1.0), [])
        assert (float(upload.delta["x"]), float(upload.control_delta["x"])) == (0.0, 0.0)
        assert (float(client["x"]), float(loss)) == (1.0, 0.0)


# ---------------------------------------------------------------- Local AMSGrad and Fed-LAMB


@pytest.mark.parametrize("momentum", ["persist", "reset"])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_local_amsgrad_against_a_direct_simulation(momentum: str, bias_correction: bool) -> None:
    alg = local_amsgrad(0.1, 0.8, 0.9, 1e-3, 0.01, momentum, bias_correction)
    batches = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0)]]
    server, _, path = federate(alg, scalars(5.0), batches, 4)
    theta, v_max, ms, ss = 5.0, 0.01, [0.0, 0.0], [0, 0]
    for r in range(4):
        ends = []
        for i, own in enumerate(batches):
            y, v, m, s = theta, v_max, ms[i] * (momentum == "persist"), ss[i] * (momentum == "persist")
            for a, b in own:
                g = a * (y - b)
                m, v, s = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g, s + 1
                y -= 0.1 * m / (1 - 0.8**s if bias_correction else 1) / (v_max**0.5 + 1e-3)
            ms[i], ss[i] = m, s
            ends.append((y, v))
        theta, v_max = np.mean([y for y, _ in ends]), max(v_max, np.mean([v for _, v in ends]))
        assert float(path[r + 1]["x"]) == pytest.approx(theta, rel=1e-5)
    assert float(server.v_max["x"]) == pytest.approx(v_max, rel=1e-5)


@pytest.mark.parametrize(
    ("phi", "scale"), [("clip", lambda n: min(max(n, 1e-3), 10.0)), ("identity", float), (jnp.sqrt, np.sqrt)]
)
@pytest.mark.parametrize("layers", ["tensor", "module"])
def test_fedlamb_moves_each_layer_by_its_length(phi: Any, scale: Callable, layers: str) -> None:
    params, alg = model(), fedlamb(0.05, phi=phi, layers=layers, weight_decay=0.1)
    upload, _, _ = alg.client_update(quadratic, alg.broadcast(alg.init(params)), alg.init_client(params), [(1.0, 3.0)])
    moved = tree.sub(upload.params, params)
    groups = [("a", "kernel"), ("a", "bias")] if layers == "tensor" else [("a",)]
    for group in groups:
        before, change = params, moved
        for key in group:
            before, change = before[key], change[key]
        norm = float(optax.tree.norm(before))
        assert float(optax.tree.norm(change)) == pytest.approx(0.05 * scale(norm), rel=1e-5, abs=1e-9)


def test_fedlamb_with_one_layer_has_the_direction_of_fed_ams() -> None:
    params = {"w": jnp.array([1.0, -2.0, 0.5])}

    def move(alg: FedAlgorithm) -> np.ndarray:
        message = alg.broadcast(alg.init(params))
        upload, _, _ = alg.client_update(quadratic, message, alg.init_client(params), [(1.0, 3.0)])
        return np.asarray(tree.sub(upload.params, params)["w"])

    lamb, ams = move(fedlamb(0.01)), move(local_amsgrad(0.01))
    close(lamb / np.linalg.norm(lamb), ams / np.linalg.norm(ams))


def test_fedlamb_with_a_zero_direction_does_not_move() -> None:
    params = {"w": jnp.array([1.0, 1.0])}
    alg = fedlamb(0.1)
    upload, _, _ = alg.client_update(quadratic, alg.broadcast(alg.init(params)), alg.init_client(params), [(1.0, 1.0)])
    close(upload.params, params, rtol=0, atol=0)

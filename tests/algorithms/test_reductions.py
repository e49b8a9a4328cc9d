"""Where one algorithm is another, and where SCAFFOLD is better than FedAvg."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedoptax as fx
import laws
from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm
from laws import Factory
from small_rounds import TWO, close, federate, model, quadratic, scalars

SGD: dict[str, Factory] = {
    "fedprox": lambda: fx.fedprox(0.1, 5.0),  # one step from x: the proximal term is 0
    "stem without momentum": lambda: fx.stem(0.1, alpha=1.0),
    "fedexp": lambda: fx.fedexp(0.1),  # one client agrees with itself: η_g = 1
    "clipping out of reach": lambda: fx.with_clipping(fx.scaffold(0.1), 1e6),
}


@pytest.mark.parametrize("name", SGD)
def test_one_client_and_one_step_is_sgd(name: str) -> None:
    laws.reduces_to_sgd(SGD[name])


def lr_by_rho(t: Any) -> jax.Array:  # A = √v + ρ = ρ to float precision; round 0 does not divide by A
    return jnp.where(jnp.asarray(t) == 0, 0.05, 0.05 * 1e8)


UNEVEN = [[(1.0, -1.0), (2.0, 0.5), (0.5, 1.0)], [(3.0, 2.0)], [(1.5, 0.0), (1.0, 4.0)]]
SAME: dict[str, tuple[FedAlgorithm, FedAlgorithm, Any, Any, float]] = {  # two algorithms, x, batches, tolerance
    "fedopt of sgd and sgd": (fx.fedopt(optax.sgd(0.25), optax.sgd(1.0)), fx.fedavg(0.25), model(), UNEVEN, 0),
    "mimelite without momentum": (fx.mimelite(0.05, b1=0.0), fx.fedavg(0.05), scalars(5.0), TWO, 1e-5),
    "fednova with equal steps": (fx.fednova(0.05), fx.fedavg(0.05), scalars(5.0), TWO, 1e-5),
    "fafed with A = 1": (fx.fafed(lr_by_rho, 0.3, rho=1e8), fx.stem(0.05, 0.3), scalars(3.0), UNEVEN, 1e-5),
}

ONE_STEP = [[(1.0, 2.0)], [(2.0, -1.0)]]


def test_fedadam_does_not_change_if_client_lr_and_tau_are_scaled_together() -> None:
    """Reddi et al. 2021, Section 3: with one local step, in which Δ is linear in the client's rate."""
    _, _, path = federate(fx.fedadam(0.1, 0.3, tau=0.01), scalars(5.0), ONE_STEP, 4)
    _, _, scaled = federate(fx.fedadam(0.4, 0.3, tau=0.04), scalars(5.0), ONE_STEP, 4)
    close(path, scaled)
    _, _, other = federate(fx.fedadam(0.4, 0.3, tau=0.01), scalars(5.0), ONE_STEP, 4)
    assert abs(float(other[1]["x"] - path[1]["x"])) > 1e-3


def test_fedadagrad_without_momentum_is_adagrad_on_the_mean_change() -> None:
    """β₁ = 0: x ← x + η Δ/(√(τ² + Σ Δ²) + τ), in NumPy; with one step from x Δ is −η_l times the mean gradient."""
    _, _, path = federate(fx.fedadagrad(0.1, 0.3, b1=0.0, tau=0.05), scalars(5.0), ONE_STEP, 5)
    x, v = 5.0, 0.05**2
    for reached in path[1:]:
        delta = -0.1 * np.mean([a * (x - b) for ((a, b),) in ONE_STEP])
        v += delta**2
        x += 0.3 * delta / (np.sqrt(v) + 0.05)
        assert float(reached["x"]) == pytest.approx(x, rel=1e-5)


def test_fedadam_with_a_large_tau_is_fedavgm_up_to_scale() -> None:
    tau, b1 = 1e6, 0.9  # the step η (1 − β₁)/τ is FedAvgM's, as m averages where FedAvgM sums
    large = fx.fedadam(0.1, 0.7 * tau / (1 - b1), b1, tau=tau, initial_accumulator=0)
    _, _, path = federate(large, scalars(5.0), TWO, 5)
    close(path, federate(fx.fedavgm(0.1, 0.7, b1), scalars(5.0), TWO, 5)[2], rtol=1e-4)


def test_mime_of_one_client_takes_the_clients_own_gradient() -> None:
    """With c = ∇f(x) of the same minibatch a step is SGD; the exchange before it moves nothing."""
    _, _, path = federate(fx.mime(0.1, b1=0.0), scalars(5.0), [[(1.0, 2.0)]], 4)
    _, _, sgd = federate(fx.fedavg(0.1), scalars(5.0), [[(1.0, 2.0)]], 2)
    close([path[0], path[2], path[4]], sgd)
    close([path[1], path[3]], [path[0], path[2]])


@pytest.mark.parametrize("name", SAME)
def test_one_algorithm_is_another(name: str) -> None:
    """Bit for bit, or to float tolerance."""
    one, other, start, batches, rtol = SAME[name]
    paths = [federate(algorithm, start, batches, 6)[2] for algorithm in (one, other)]
    close(*paths, rtol=rtol, atol=rtol / 10)


def first_step(algorithm: FedAlgorithm, params: Any, batch: Any) -> Any:
    message, client = algorithm.broadcast(algorithm.init(params)), algorithm.init_client(params)
    return tree.sub(algorithm.client_update(quadratic, message, client, [batch])[0].params, params)


def test_fedlamb_with_one_layer_has_the_direction_of_fed_ams() -> None:
    params = {"w": jnp.array([1.0, -2.0, 0.5])}
    lamb, ams = (np.asarray(first_step(a, params, (1.0, 3.0))["w"]) for a in (fx.fedlamb(0.01), fx.local_amsgrad(0.01)))
    close(lamb / np.linalg.norm(lamb), ams / np.linalg.norm(ams))


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [(fx.scaffold(0.05, option="I"), 120), (fx.scaffold(0.05), 120), (fx.feddyn(0.05, alpha=1.0), 200)],
    ids=["scaffold I", "scaffold", "feddyn"],
)
def test_scaffold_reaches_the_optimum_where_fedavg_does_not(algorithm: FedAlgorithm, rounds: int) -> None:
    """So does FedDyn: what their clients keep are their gradients at the optimum."""
    _, clients, path = federate(algorithm, scalars(5.0), TWO, rounds)
    assert float(path[-1]["x"]) == pytest.approx(1.4, abs=1e-4)
    assert float(sum(c["x"] for c in clients)) == pytest.approx(0.0, abs=1e-3)
    _, _, drifted = federate(fx.fedavg(0.05), scalars(5.0), TWO, 120)
    assert abs(float(drifted[-1]["x"]) - 1.4) > 0.1


def test_scaffold_reaches_the_optimum_with_partial_participation() -> None:
    server, clients, path = federate(fx.scaffold(0.05), scalars(5.0), TWO, 400, cohorts=[[0], [1], [1], [0]])
    assert float(path[-1]["x"]) == pytest.approx(1.4, abs=1e-3)
    assert float(server.shared["x"]) == pytest.approx(float(sum(c["x"] for c in clients)) / 2, abs=1e-5)


def test_fednova_reaches_the_mean_optimum_where_unequal_steps_pull_fedavg_away() -> None:
    batches = [[(1.0, -1.0)] * 2, [(1.0, 2.0)] * 10]  # optimum 1/2; FedAvg weighs by steps: 3/2
    assert float(federate(fx.fednova(0.005), scalars(5.0), batches, 400)[2][-1]["x"]) == pytest.approx(0.5, abs=0.03)
    assert float(federate(fx.fedavg(0.005), scalars(5.0), batches, 400)[2][-1]["x"]) == pytest.approx(1.5, abs=0.03)


@pytest.mark.parametrize("option", ["I", "II"])
def test_a_client_of_scaffold_without_batches_keeps_its_control(option: str) -> None:
    algorithm = fx.scaffold(0.1, option=option)
    server = algorithm.init(scalars(1.0))._replace(shared=scalars(3.0))
    upload, client, loss = algorithm.client_update(quadratic, algorithm.broadcast(server), scalars(1.0), [])
    assert (float(upload.delta["x"]), float(upload.control_delta["x"])) == (0.0, 0.0)
    assert (float(client["x"]), float(loss)) == (1.0, 0.0)

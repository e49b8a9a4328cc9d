"""Where one algorithm is another, and where SCAFFOLD is better than FedAvg."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import fedoptax as fx
import laws
from fedoptax.algorithm import FedAlgorithm
from laws import Factory
from small_rounds import TWO, close, federate, model, scalars

SGD: dict[str, Factory] = {
    "fedprox": lambda: fx.fedprox(0.1, 5.0),  # one step from x: the proximal term is 0
    "stem without momentum": lambda: fx.stem(0.1, alpha=1.0),
    "fedexp": lambda: fx.fedexp(0.1),  # one client agrees with itself: η_g = 1
}


@pytest.mark.parametrize("name", SGD)
def test_one_client_and_one_step_is_sgd(name):
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


@pytest.mark.parametrize("name", SAME)
def test_one_algorithm_is_another(name):
    """Bit for bit, or to float tolerance."""
    one, other, start, batches, rtol = SAME[name]
    paths = [federate(algorithm, start, batches, 6)[2] for algorithm in (one, other)]
    close(*paths, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [(fx.scaffold(0.05, option="I"), 120), (fx.scaffold(0.05), 120), (fx.feddyn(0.05, alpha=1.0), 200)],
    ids=["scaffold I", "scaffold", "feddyn"],
)
def test_scaffold_reaches_the_optimum_where_fedavg_does_not(algorithm, rounds):
    """So does FedDyn: what their clients keep are their gradients at the optimum."""
    _, clients, path = federate(algorithm, scalars(5.0), TWO, rounds)
    assert float(path[-1]["x"]) == pytest.approx(1.4, abs=1e-4)
    assert float(sum(c["x"] for c in clients)) == pytest.approx(0.0, abs=1e-3)
    _, _, drifted = federate(fx.fedavg(0.05), scalars(5.0), TWO, 120)
    assert abs(float(drifted[-1]["x"]) - 1.4) > 0.1

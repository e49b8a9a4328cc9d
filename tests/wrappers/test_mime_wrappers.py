"""Mime, the shared client optimizers and the wrappers against hand computation and direct simulation."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedoptax import _tree as tree
from fedoptax.algorithms.fafed import fafed
from fedoptax.algorithms.fedopt import fedavg
from fedoptax.algorithms.fedprox import fedprox, with_prox
from fedoptax.algorithms.mime import mime, mimelite
from fedoptax.algorithms.shared_state import local_adaalter, lookahead
from fedoptax.errors import UsageError
from fedoptax.wrappers import with_clipping
from small_rounds import ALL, TWO, close, every, federate, model, quadratic, scalars

# ---------------------------------------------------------------- Mime


def test_mimelite_without_momentum_is_uniform_fedavg() -> None:
    _, _, lite = federate(mimelite(0.05, b1=0.0), scalars(5.0), TWO, 5)
    _, _, avg = federate(fedavg(0.05), scalars(5.0), TWO, 5)
    close([p["x"] for p in lite], [p["x"] for p in avg])


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_mime_against_a_direct_simulation(base: str, corrected: bool) -> None:
    data = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0)]]
    alg = (mime if corrected else mimelite)(0.02, base, 0.8, 0.9, 0.1)
    _, _, path = federate(alg, scalars(5.0), data, 5)
    x, m, v, c = 5.0, 0.0, 0.0, 0.0
    for r in range(5):
        ends, gradients = [], []
        for own in data:
            y = x
            for a, b in own:
                g = a * (y - b) - a * (x - b) + c if corrected else a * (y - b)
                y -= 0.02 * (0.8 * m + 0.2 * g) / (v**0.5 + 0.1 if base == "adam" else 1.0)
            ends.append(y)
            gradients.append(np.mean([a * (x - b) for a, b in own]))
        x, c = float(np.mean(ends)), float(np.mean(gradients))
        m, v = 0.8 * m + 0.2 * c, 0.9 * v + 0.1 * c * c
        assert float(path[r + 1]["x"]) == pytest.approx(x, rel=1e-5)


def test_mime_reaches_the_optimum() -> None:
    _, _, path = federate(mime(0.02, b1=0.5), scalars(5.0), TWO, 150)
    assert float(path[-1]["x"]) == pytest.approx(1.4, abs=1e-3)


# ---------------------------------------------------------------- shared client optimizers


def test_local_adaalter_against_a_direct_simulation() -> None:
    data = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0)]]
    server, _, path = federate(local_adaalter(0.3, 0.5, 0.7), scalars(5.0), data, 5)
    x, b2 = 5.0, 0.25
    for r in range(5):
        ends = []
        for own in data:
            y, a2 = x, b2
            for step, (a, b) in enumerate(own, start=1):
                g = a * (y - b)
                y -= 0.3 * g / (b2 + step * 0.49) ** 0.5
                a2 += g * g
            ends.append((y, a2))
        x, b2 = (float(np.mean(part)) for part in zip(*ends))
        assert float(path[r + 1]["x"]) == pytest.approx(x, rel=1e-5)
    assert float(server.client_opt_state["x"]) == pytest.approx(b2, rel=1e-5)


def test_lookahead_against_a_direct_simulation() -> None:
    data = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0), (1.0, 1.0)]]
    _, _, path = federate(lookahead(0.1, 0.4, 0.8, 0.9, 1e-3), scalars(5.0), data, 5)
    x, m0, v0, t0 = 5.0, 0.0, 0.0, 0
    for r in range(5):
        ends = []
        for own in data:
            y, m, v, t = x, m0, v0, t0
            for a, b in own:
                g = a * (y - b)
                m, v, t = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g, t + 1
                y -= 0.1 * (1 - 0.9**t) ** 0.5 / (1 - 0.8**t) * m / (v**0.5 + 1e-3)
            ends.append((y, m, v, t))
        y, m0, v0, t0 = (float(np.mean(part)) for part in zip(*ends))
        x += 0.4 * (y - x)
        assert float(path[r + 1]["x"]) == pytest.approx(x, rel=1e-5)


# ---------------------------------------------------------------- wrappers


def test_fedprox_by_hand() -> None:
    # a = 1, b = 0, η_l = 0.1, μ = 2 from x = 1: y = 0.9; then g = 0.9 + 2(0.9 − 1) = 0.7 and y = 0.83.
    _, _, path = federate(fedprox(0.1, 2.0), scalars(1.0), [[(1.0, 0.0)] * 2], 1)
    assert float(path[1]["x"]) == pytest.approx(0.83)


@every
def test_prox_and_clipping_keep_everything_else(name: str) -> None:
    alg = ALL[name](0.05)
    data = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0)]]
    plain = federate(alg, model(), data, 2)
    for wrapped in (with_prox(alg, 0.0), with_clipping(alg, 1e6)):
        assert wrapped.weighting == alg.weighting
        close(federate(wrapped, model(), data, 2), plain)
    proxed, clipped = (
        federate(with_prox(alg, 5.0), model(), data, 2),
        federate(with_clipping(alg, 0.1), model(), data, 2),
    )
    if name not in ("clipped", "fedlamb_reset"):
        assert float(optax.tree.norm(tree.sub(clipped[2][-1], plain[2][-1]))) > 1e-6
    assert float(optax.tree.norm(tree.sub(proxed[2][-1], plain[2][-1]))) > 1e-6


def test_prox_changes_both_gradients_of_fafed_and_leaves_the_loss() -> None:
    alg, points = fafed(0.1, 0.3), []

    def spy(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        points.append(float(params["x"]))
        return quadratic(params, batch)

    message = alg.init(scalars(2.0))._replace(t=jnp.int32(1), m=scalars(1.0))
    plain, _, loss = alg.client_update(spy, message, scalars(4.0), [(1.0, 0.0)])
    prox, _, prox_loss = with_prox(alg, 3.0).client_update(spy, message, scalars(4.0), [(1.0, 0.0)])
    assert points == [4.0, 2.0, 4.0, 2.0]
    assert float(loss) == float(prox_loss) == 2.0
    assert float(plain.m["x"]) == pytest.approx(2 + 0.7 * (1 - 4))
    assert float(prox.m["x"]) == pytest.approx(2 + 0.7 * (1 - (4 + 3.0 * (4 - 2))))


def test_clipping_by_hand() -> None:
    params = {"u": jnp.zeros(1), "v": jnp.zeros(1)}
    alg = with_clipping(fedavg(1.0), 0.5)
    grads = {"u": jnp.array([3.0]), "v": jnp.array([4.0])}
    upload, _, _ = alg.client_update(lambda p, b: (jnp.float32(0), grads), alg.broadcast(alg.init(params)), (), [0])
    close(upload.delta, {"u": [-0.3], "v": [-0.4]})
    zero = tree.zeros_like(grads)
    upload, _, _ = alg.client_update(lambda p, b: (jnp.float32(0), zero), alg.broadcast(alg.init(params)), (), [0])
    close(upload.delta, zero)


def test_wrappers_can_be_imported_first() -> None:
    code = "from fedoptax.algorithms.fedprox import fedprox, with_prox; fedprox(0.1, 0.1)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_prox_needs_the_received_parameters() -> None:
    alg = fedavg(0.1)
    bare = with_prox(alg._replace(broadcast=lambda server: server.params), 0.1)
    with pytest.raises(UsageError, match="field 'params'"):
        bare.client_update(quadratic, bare.broadcast(bare.init(scalars(1.0))), (), [(1.0, 0.0)])

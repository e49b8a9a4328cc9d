"""The wrappers of gradients: by hand, and around every algorithm."""

import jax.numpy as jnp
import optax

from fedoptax import tree
from fedoptax.algorithms import with_prox
from fedoptax.algorithms.fedopt import fedavg
from fedoptax.wrappers import with_clipping
from small_rounds import ALL, close, every, federate, model


@every
def test_prox_and_clipping_keep_everything_else(name):
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


def test_clipping_by_hand():
    params = {"u": jnp.zeros(1), "v": jnp.zeros(1)}
    alg = with_clipping(fedavg(1.0), 0.5)
    grads = {"u": jnp.array([3.0]), "v": jnp.array([4.0])}
    upload, _, _ = alg.client_update(lambda p, b: (jnp.float32(0), grads), alg.broadcast(alg.init(params)), (), [0])
    close(upload.delta, {"u": [-0.3], "v": [-0.4]})
    zero = tree.zeros_like(grads)
    upload, _, _ = alg.client_update(lambda p, b: (jnp.float32(0), zero), alg.broadcast(alg.init(params)), (), [0])
    close(upload.delta, zero)

"""Forms that every algorithm of the papers keeps: bytes, dtypes, traced hyper-parameters, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedoptax.algorithm import Batches, Cohort, accumulate, accumulate_result, accumulate_zero, nbytes
from fedoptax.algorithms.fafed import fafed, fafed_schedule, naive_adaptive, stem
from fedoptax.algorithms.fedlamb import fedlamb, local_amsgrad
from fedoptax.algorithms.fedopt import fedavg
from fedoptax.algorithms.fedprox import fedprox
from fedoptax.algorithms.mime import mime, mimelite
from fedoptax.algorithms.scaffold import scaffold
from fedoptax.algorithms.shared_state import local_adaalter, lookahead
from fedoptax.engine.eager import run_round
from fedoptax.errors import UsageError
from fedoptax.wrappers import with_clipping
from small_rounds import ALL, STATEFUL, VECTORS, close, every, federate, model, quadratic

pytestmark = pytest.mark.long  # the laws hold every algorithm to the same in `make test`

# ---------------------------------------------------------------- laws, all algorithms


@every
def test_bytes(name: str) -> None:
    alg, params = ALL[name](0.05), model()
    server, client = alg.init(params), alg.init_client(params)
    message = alg.broadcast(server)
    upload, _, _ = alg.client_update(quadratic, message, client, [(1.0, 1.0)])
    down, up, down_scalars, up_scalars = VECTORS[name]
    size = nbytes(params)
    assert nbytes(message) == down * size + down_scalars
    assert nbytes(upload) == up * size + up_scalars
    assert (nbytes(client) > 0) == (name in STATEFUL)
    scheduled = ALL[name](optax.constant_schedule(0.05))
    extra = 0 if message is server else 4
    assert nbytes(scheduled.broadcast(scheduled.init(params))) == nbytes(message) + extra


@every
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_states_keep_their_form_with_a_traced_hyper_parameter(name: str, dtype: Any) -> None:
    params = model(dtype)

    def rounds(lr: Any) -> list[Any]:
        alg = ALL[name](lr)
        server, client = alg.init(params), alg.init_client(params)
        states = [(server, client)]
        for _ in range(2):
            message = alg.broadcast(server)
            upload, client, _ = alg.client_update(quadratic, message, client, [(1.0, 1.0), (2.0, 0.0)])
            server = alg.server_update(server, upload, Cohort(1, 1))
            states.append((server, client))
        return states

    with jax.numpy_dtype_promotion("strict" if dtype == jnp.float32 else "standard"):
        states = jax.jit(rounds)(jnp.float32(0.05))
    for state in states:
        assert jax.tree.structure(state) == jax.tree.structure(states[0])
        for old, new in zip(jax.tree.leaves(states[0]), jax.tree.leaves(state)):
            assert (old.shape, old.dtype) == (new.shape, new.dtype)
            assert np.isfinite(np.asarray(new, np.float32)).all()
    assert all(a.dtype in (dtype, jnp.int32) for a in jax.tree.leaves(states))


@every
def test_eager_equals_compiled_and_does_not_recompile(name: str) -> None:
    """Ways of a round with K = 3, 1, 2: lists, vmapped `Batches` with traced K, and (some algorithms) a client loop."""
    counts = [3, 1, 2]
    table = jnp.array([[1.0, 2.0, 0.5], [3.0, 9.0, 9.0], [1.5, 1.0, 9.0]])
    lists = [[(table[i, k], jnp.float32(k - i)) for k in range(n)] for i, n in enumerate(counts)]
    alg = ALL[name](0.05)
    traces = 0

    def one(message: Any, client: Any, i: jax.Array) -> Any:
        batches = Batches(jnp.array(counts)[i], lambda k: (table[i, k], (k - i).astype(jnp.float32)))
        return alg.client_update(quadratic, message, client, batches)

    @jax.jit
    def vmapped(server: Any, clients: Any) -> Any:
        nonlocal traces
        traces += 1
        message = alg.broadcast(server)
        uploads, clients, _ = jax.vmap(one, in_axes=(None, 0, 0))(message, clients, jnp.arange(3))
        total = accumulate_zero(jax.tree.map(lambda a: a[0], uploads))
        for i in range(3):
            total = accumulate(total, 1 / 3, jax.tree.map(lambda a, i=i: a[i], uploads))
        mean = accumulate_result(total, jax.tree.map(lambda a: a[0], uploads))
        return alg.server_update(server, mean, Cohort(3, 3)), clients

    @jax.jit
    def looped(server: Any, clients: Any) -> Any:
        message = alg.broadcast(server)

        def body(clients: Any, i: jax.Array) -> Any:
            upload, state, _ = one(message, jax.tree.map(lambda a: a[i], clients), i)
            return jax.tree.map(lambda a, s: a.at[i].set(s), clients, state), upload

        clients, uploads = jax.lax.scan(body, clients, jnp.arange(3))
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), uploads)
        wide = jax.tree.map(lambda a: jnp.mean(a.astype(jnp.float32), axis=0), uploads)
        return alg.server_update(server, accumulate_result(wide, like), Cohort(3, 3)), clients

    params = model()
    eager, eager_clients = alg.init(params), [alg.init_client(params) for _ in range(3)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *eager_clients)
    a, b = (alg.init(params), stacked), (alg.init(params), stacked)
    for _ in range(2):
        eager, eager_clients, _ = run_round(alg, quadratic, eager, eager_clients, lists)
        a = vmapped(*a)
        b = looped(*b) if name in ("scaffold_I", "fedlamb", "fafed", "mime") else a
    expected = (eager, jax.tree.map(lambda *s: jnp.stack(s), *eager_clients))
    close(a, expected, rtol=2e-5, atol=2e-6)
    close(b, expected, rtol=2e-5, atol=2e-6)
    assert traces == 1


@every
def test_traced_and_scheduled_learning_rates_equal_constants(name: str) -> None:
    params, data = model(), [[(1.0, 1.0)] * 2, [(2.0, 0.0)]]

    def final(lr: Any) -> Any:
        return federate(ALL[name](lr), params, data, 2)[2][-1]

    expected = final(0.05)
    close(jax.jit(final)(jnp.float32(0.05)), expected, rtol=2e-5)
    close(final(optax.constant_schedule(0.05)), expected, rtol=2e-5)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: scaffold(0.0), "client_lr"),
        (lambda: scaffold(0.1, -1.0), "server_lr"),
        (lambda: scaffold(0.1, option="III"), "option"),
        (lambda: local_amsgrad(0.1, b1=1.0), "b1"),
        (lambda: local_amsgrad(0.1, eps=0.0), "eps"),
        (lambda: local_amsgrad(0.1, v0=0.0), "v0"),
        (lambda: local_amsgrad(0.1, momentum="keep"), "momentum"),
        (lambda: fedlamb(0.1, b2=-0.1), "b2"),
        (lambda: fedlamb(0.1, weight_decay=-1.0), "weight_decay"),
        (lambda: fedlamb(0.1, phi="square"), "phi"),
        (lambda: fedlamb(0.1, layers="block"), "layers"),
        (lambda: fafed(float("nan")), "lr"),
        (lambda: fafed(0.1, alpha=0.0), "alpha"),
        (lambda: fafed(0.1, alpha=1.1), "alpha"),
        (lambda: fafed(0.1, beta=1.0), "beta"),
        (lambda: fafed(0.1, rho=0.0), "rho"),
        (lambda: fafed(0.1, variant="other"), "variant"),
        (lambda: stem(0.1, alpha=-0.5), "alpha"),
        (lambda: naive_adaptive(0.1, b2=1.0), "b2"),
        (lambda: fafed_schedule(1.0, 1.0, 0.0, 1.0), "w"),
        (lambda: mime(0.1, base="yogi"), "base"),
        (lambda: mimelite(0.1, b1=1.0), "b1"),
        (lambda: mimelite(0.1, base="adam", eps=0.0), "eps"),
        (lambda: local_adaalter(0.1, b0=-1.0), "b0"),
        (lambda: local_adaalter(0.1, eps=0.0), "eps"),
        (lambda: lookahead(0.1, alpha=0.0), "alpha"),
        (lambda: fedprox(0.1, mu=-1.0), "mu"),
        (lambda: with_clipping(fedavg(0.1), 0.0), "max_norm"),
    ],
)
def test_wrong_hyper_parameters_fail_when_constructed(make: Callable, name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: .* given, allowed is "):
        make()

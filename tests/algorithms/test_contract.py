"""The contract's few operations: local steps, the weighted mean, bytes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.algorithm import BatchList
from laws_table import ROWS, kinds_quickly


def step(carry: Any, batch: Any) -> tuple[Any, jax.Array]:
    return carry + batch, 2.0 * batch


def test_local_steps_run_each_batch_once_whether_their_number_is_traced_or_not():
    values = jnp.asarray([2.0, 4.0, 8.0, 16.0])

    @jax.jit
    def run(n: jax.Array) -> Any:
        return fx.local_steps(step, jnp.float32(1.0), fx.Batches(n, lambda k: values[k]))

    for n in range(5):
        carry, loss = run(jnp.int32(n))
        listed = fx.local_steps(step, jnp.float32(1.0), [values[k] for k in range(n)])
        assert (float(carry), float(loss)) == (float(listed[0]), float(listed[1]))
    many = jax.vmap(run)(jnp.arange(5))  # masked lanes
    assert not hasattr(fx.Batches, "__len__"), "that would be the number of its fields"
    np.testing.assert_allclose(many, [[1, 3, 7, 15, 31], [0, 4, 6, 28 / 3, 15]], rtol=1e-6)


def test_weighted_mean_by_hand():
    trees = [{"a": jnp.asarray([1.0, 2.0]), "n": jnp.int32(3)}, {"a": jnp.asarray([5.0, 6.0]), "n": jnp.int32(4)}]
    mean = fx.weighted_mean(trees, [1, 3])
    np.testing.assert_allclose(mean["a"], [4.0, 5.0])
    assert mean["n"].dtype == jnp.int32 and int(mean["n"]) == 4  # 3.75, rounded
    np.testing.assert_allclose(fx.weighted_mean(trees)["a"], [3.0, 4.0])
    halves = fx.weighted_mean([{"a": jnp.asarray(1.0, jnp.bfloat16)}] * 257)["a"]
    assert halves.dtype == jnp.bfloat16 and float(halves) == 1.0  # a bfloat16 sum of 257 ones stops at 256
    doubles = fx.weighted_mean([np.asarray([1.0]), np.asarray([4.0])], [1, 2])
    assert doubles.dtype == jnp.float32 and float(doubles[0]) == 3.0


def test_nbytes_is_the_size_of_a_message():
    tree = {"a": jnp.ones((3, 4)), "b": (jnp.ones(5, jnp.bfloat16), np.int64(1)), "none": ()}
    assert fx.nbytes(tree) == 48 + 10 + 8
    assert fx.nbytes(jax.eval_shape(lambda: jnp.ones((3, 4)))) == 48


@pytest.mark.parametrize("name", kinds_quickly)
def test_gradients_per_step_are_those_computed(name):
    algorithm = ROWS[name]()
    calls = []

    def grad_fn(params: Any, batch: Any) -> Any:
        calls.append(batch)
        return jnp.sum(params["w"] ** 2) * batch, {"w": 2 * params["w"] * batch}

    server, client = (init({"w": jnp.ones(2)}) for init in (algorithm.init, algorithm.init_client))
    for _ in range(2):  # FAFED's and STEM's first round has a rule of its own
        calls.clear()
        for _ in range(algorithm.exchanges):
            server, (client,), _ = fx.eager.run_round(algorithm, grad_fn, server, [client], [[1.0, 2.0, 3.0]])
    assert len(calls) == algorithm.exchanges * max(3 * algorithm.gradients_per_step, 1)


def test_in_an_eager_round_each_client_has_a_key_of_its_own():
    def draw(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        return (*fx.fedavg(0.1).client_update(grad_fn, message, client, batches)[:2], jax.random.uniform(batches.key))

    algorithm = fx.fedavg(0.1)._replace(client_update=draw)
    for lists in ([[1.0], [1.0]], [BatchList([1.0]), BatchList([1.0])]):
        server = algorithm.init(jnp.zeros(2))
        info = fx.eager.run_round(algorithm, lambda p, b: (0.0, p), server, [(), ()], lists)[2]
        assert info.client_losses[0] != info.client_losses[1]

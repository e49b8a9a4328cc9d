"""Minibatches: every example once per epoch, padding without effect, gradients of the task."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.engine.batches import LocalWork, Minibatch, client_batches, task_grad_fn
from small import batch_maker, ragged_clients, small_task


def draw_rows(size: jax.Array, epochs: int) -> tuple[jax.Array, list[jax.Array]]:
    """The number of steps of a client with rows 500 … 500 + size, and the rows and masks of 76 steps."""
    rows, work = {"row": jnp.arange(1000)}, LocalWork(8, epochs=epochs)
    batches = client_batches(rows, jnp.int32(500), size, jax.random.key(3), work, capacity=300)
    steps = jax.vmap(lambda k: batches.get(k).examples)(jnp.arange(76))
    return batches.num_steps, [steps["row"], steps["mask"]]


def test_an_epoch_is_every_example_of_a_client_once():
    """In an order of its own, whatever the number of epochs."""
    draw = jax.jit(lambda size: [draw_rows(size, epochs) for epochs in (1, 2)])
    for size in (1, 7, 64, 300):
        (one, alone), (two, both) = jax.device_get(draw(jnp.int32(size)))
        first, rows = (drawn[:n][mask[:n]].tolist() for n, (drawn, mask) in ((one, alone), (two, both)))
        assert two == 2 * one == 2 * -(-size // 8)
        assert sorted(rows[:size]) == sorted(rows[size:]) == list(range(500, 500 + size))
        assert rows[:size] == first
        assert size < 7 or rows[:size] != rows[size:]


def test_local_steps_run_cyclically_through_one_permutation():
    steps = batch_maker(small_task(), LocalWork(4, 1, 7))(0, jax.random.key(0))
    x = np.concatenate([np.asarray(step.examples["x"][:, 0]) for step in steps])
    assert x.tolist() == (x[:7].tolist() * 4) and len(set(x[:7])) == 7  # 28 places for 7 examples: each 4 times
    small = batch_maker(small_task(), LocalWork(4, 1, 2))(3, jax.random.key(0))
    assert np.asarray(small[1].examples["mask"]).tolist() == [True, False, False, False]


def test_a_task_can_ask_for_clipped_gradients():
    batch = Minibatch({**ragged_clients().client(2), "mask": np.ones(11, bool)}, jax.random.key(1))
    params = small_task().init(jax.random.key(0))
    clipped, whole = (jax.jit(task_grad_fn(small_task(clip_norm=c)))(params, batch)[1] for c in (0.1, None))
    norm = math.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(whole)))
    assert norm > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b * 0.1 / norm, rtol=1e-5), clipped, whole)

"""Values that wait for others are the same values, and XLA no longer copies the weights that it updates."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedoptax as fx
from fedoptax.engine.batches import minibatch_form, task_grad_fn
from fedoptax.waiting import LARGE, after, after_backward

WIDTH = 256
PARAMS = {"first": np.ones((16, WIDTH), "f"), "second": np.ones((WIDTH, WIDTH), "f"), "third": np.ones((WIDTH, 4), "f")}


def loss_of(params, x):
    return jnp.tanh(jnp.tanh(x @ params["first"]) @ params["second"] @ params["third"]).sum()


def descent(wait):
    def step(_, params):
        loss, grads = jax.value_and_grad(loss_of)(params, jnp.ones((8, 16)))
        _, grads = wait(loss, grads)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    return jax.jit(lambda params, steps: lax.fori_loop(0, steps, step, params))


def copies_in_loop(wait):
    """How often a step copies an array of the second layer's shape."""
    program = descent(wait).lower(PARAMS, np.int32(3)).compile().as_text()
    copied = re.compile(rf"f32\[{WIDTH},{WIDTH}\]\S* copy\(")
    return sum(len(copied.findall(part)) for part in program.split("\n\n") if "ENTRY" not in part)


def test_xla_copies_weights_that_a_backward_pass_still_reads():
    assert copies_in_loop(lambda loss, grads: (loss, grads)) == 1  # if not, `after_backward` is of no use any more


def test_weights_are_overwritten_when_gradients_wait_for_the_backward_pass():
    assert copies_in_loop(after_backward) == 0


def test_waiting_changes_no_number():
    plain = descent(lambda loss, grads: (loss, grads))(PARAMS, np.int32(3))
    waited = descent(after_backward)(PARAMS, np.int32(3))
    for name, wanted in plain.items():
        np.testing.assert_array_equal(waited[name], wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_what_is_not_finite_stays_where_it_is(value):
    grads = {"a": jnp.full((2, 3), value), "b": jnp.ones((2, LARGE)), "c": jnp.ones(LARGE), "d": jnp.zeros((2, 0))}
    loss, waited = jax.jit(after_backward)(jnp.float32(7), grads)
    assert loss == 7
    for name, wanted in grads.items():
        np.testing.assert_array_equal(waited[name], wanted)
    assert jax.jit(after)(jnp.float32(value), 0.25) == 0.25


@pytest.mark.parametrize("shapes", [[(2, 3), (3, 2)], [(2, LARGE)], [(LARGE,), (LARGE,)], []])
def test_where_nothing_is_to_be_won_the_gradients_are_handed_on(shapes):
    loss, grads = jnp.float32(1), [jnp.ones(shape) for shape in shapes]
    same_loss, same = after_backward(loss, grads)
    assert same_loss is loss
    assert all(a is b for a, b in zip(same, grads, strict=True))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_dtypes_are_kept(dtype):
    grads = [jnp.ones((2, 3), jnp.float32), jnp.ones((2, LARGE), dtype)]
    loss, waited = after_backward(jnp.float32(1), grads)
    assert [loss.dtype, *(g.dtype for g in waited)] == [jnp.float32, jnp.float32, dtype]


def test_the_engines_gradients_wait():
    task = fx.load_task("digits", model="logistic")
    wide = replace(
        task,
        init=lambda key: PARAMS,
        loss=lambda params, batch, key: loss_of(params, batch["x"].reshape(-1, 64)[:, :16]),
    )
    minibatch = minibatch_form(wide, 8)
    assert " optimization_barrier" in str(jax.make_jaxpr(task_grad_fn(wide))(PARAMS, minibatch))

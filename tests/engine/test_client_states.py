"""Client states on the device and on the host: the same bits, interrupted or not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine import client_states as states
from fedoptax.engine.client_states import OnDevice, OnHost
from fedoptax.engine.plan import RunOptions, make_plan
from small import line

INITIAL = {"a": np.array([1.0, 2.0], np.float32), "b": (jnp.asarray(3, jnp.bfloat16), np.int32(4))}


def cohort(*ids: int) -> Any:
    return lambda: np.array(ids)


def bump(tree: Any) -> Any:
    return jax.tree.map(lambda a: a + jnp.arange(1, len(a) + 1, dtype=a.dtype).reshape(-1, *[1] * (a.ndim - 1)), tree)


def test_rows_are_initial_until_their_client_comes_back_and_are_saved(tmp_path):
    first, second = OnHost(INITIAL, 9), OnHost(INITIAL, 9)
    first.put(bump(first.take(cohort(7, 2))))
    first.put(bump(first.take(cohort(2, 5))))
    first.save(tmp_path)
    second.put(bump(second.take(cohort(0, 1))))  # forgotten when the saved rows are loaded
    second.load(tmp_path)
    for saved in (first, second):
        rows = saved.of(np.arange(9))
        np.testing.assert_array_equal(rows["a"][:, 0], [1, 1, 4, 1, 1, 3, 1, 2, 1])  # 2: +2 then +1; 5: +2; 7: +1
        np.testing.assert_array_equal(rows["b"][0].astype("f4"), np.array([3, 3, 6, 3, 3, 5, 3, 4, 3], "f4"))
        assert (rows["b"][0].dtype, rows["b"][1].dtype) == (jnp.bfloat16, np.int32)


def test_states_and_examples_that_do_not_fit_are_elsewhere(monkeypatch):
    for room, places in ((552, ("device", "device")), (551, ("device", "stream")), (95, ("host", "stream"))):
        monkeypatch.setattr(states, "host_bytes", lambda room=room: 4 * room)  # states take 96 bytes, examples 552
        plan = make_plan(RunOptions(cohort_size=3), line(), fx.scaffold(0.1))
        assert (plan.client_states, plan.examples) == places


@pytest.mark.parametrize(
    "make",
    [
        lambda: fx.scaffold(0.3),
        *(pytest.param(m, marks=pytest.mark.long) for m in (lambda: fx.fedlamb(0.05), lambda: fx.fafed(0.1))),
    ],
)
def test_host_states_and_streamed_examples_give_the_same_bits_interrupted_or_not(make, tmp_path):
    options: dict[str, Any] = {"cohort_size": 3, "batch_size": 4, "seed": 3}
    algorithm, task = make(), line()
    whole = fx.run(task, algorithm, rounds=5, client_states="device", **options)
    assert isinstance(whole.clients, OnDevice)
    assert set(whole.history[0]) == {"round", "train_loss", "bytes_down", "bytes_up", "seconds"}
    out = tmp_path / "host"
    options |= {"client_states": "host", "examples": "stream"}
    fx.run(task, algorithm, rounds=3, out=out, **options)
    result = fx.run(task, algorithm, rounds=5, resume_from=out, **options)
    jax.tree.map(np.testing.assert_array_equal, result.params, whole.params)
    jax.tree.map(np.testing.assert_array_equal, result.clients.of(np.arange(8)), whole.clients.tree)

"""LoRA: what is trained, where it starts, and what it equals."""

import jax
import jax.numpy as jnp
import numpy as np

import fedoptax as fx

DIGITS = fx.load_task("digits")
BASE = DIGITS.init(jax.random.key(5))
BATCH = {"x": DIGITS.test["x"][:7], "y": DIGITS.test["y"][:7], "mask": np.ones(7, bool)}


def test_it_starts_at_the_base_and_trains_low_rank_changes_and_a_head_of_another_size():
    task = fx.with_lora(DIGITS, BASE, rank=3)
    params, loss, whole_loss = jax.jit(task.init)(jax.random.key(1)), jax.jit(task.loss), jax.jit(DIGITS.loss)
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == {
        "dense1": {"kernel": {"a": (64, 3), "b": (3, 200)}},
        "dense2": {"kernel": {"a": (200, 3), "b": (3, 10)}},
    }
    key = jax.random.key(2)
    assert loss(params, BATCH, key) == whole_loss(BASE, BATCH, key)
    moved = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.1), params)
    whole = {name: dict(layer) for name, layer in BASE.items()}
    for name, layer in moved.items():
        whole[name]["kernel"] = BASE[name]["kernel"] + layer["kernel"]["a"] @ layer["kernel"]["b"]
    np.testing.assert_allclose(loss(moved, BATCH, key), whole_loss(whole, BATCH, key), rtol=1e-5)
    np.testing.assert_allclose(task.predict(moved, BATCH), DIGITS.predict(whole, BATCH), rtol=1e-4)
    other = {**BASE, "dense2": {"kernel": np.ones((200, 4)), "bias": np.ones(4)}}
    params = fx.with_lora(DIGITS, other, rank=2).init(jax.random.key(1))
    assert set(params["dense1"]["kernel"]) == {"a", "b"}
    assert params["dense2"]["kernel"].shape == (200, 10) and params["dense2"]["bias"].shape == (10,)


def test_a_run_folder_is_a_base_and_only_the_changes_are_sent(tmp_path):
    first = fx.run(DIGITS, fx.fedavg(client_lr=0.1), rounds=2, out=tmp_path / "a", progress=False)
    task = fx.load_task("digits", lora=2, base=str(tmp_path / "a"))
    assert task.spec["lora"] == 2 and task.spec["base"] == str(tmp_path / "a")
    result = fx.run(task, fx.fedavg(client_lr=0.3), rounds=20, out=tmp_path / "b", progress=False)
    assert result.history.rows[0]["bytes_up"] == 10 * 4 * 2 * (64 + 200 + 200 + 10)
    assert result.history.last("train_loss") < 0.8 * first.history.last("train_loss")
    x = DIGITS.test["x"]
    np.testing.assert_array_equal(fx.load_model(tmp_path / "b").predict(x), result.predict(x))

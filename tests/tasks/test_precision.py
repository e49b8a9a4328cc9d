"""Training in bfloat16: the passes are short, what is kept and sent is not, and learning hardly suffers."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from command_line import fedoptax
from fedoptax.engine.batches import Minibatch, task_grad_fn

pytestmark = pytest.mark.usefixtures("clean_home")

LONG = fx.load_task("digits", model="logistic", num_clients=8)
SHORT = fx.load_task("digits", model="logistic", num_clients=8, compute_dtype="bfloat16")


def a_batch(task: fx.Task) -> Minibatch:
    examples = {name: jnp.asarray(array[:20]) for name, array in task.clients.examples.items()}
    return Minibatch({**examples, "mask": jnp.arange(20) < 17}, jax.random.key(1))


def test_gradients_are_computed_short_and_come_back_long() -> None:
    params = jax.tree.map(lambda a: a + 0.1, LONG.init(jax.random.key(0)))
    loss, grads = task_grad_fn(SHORT)(params, a_batch(SHORT))
    wanted_loss, wanted = task_grad_fn(LONG)(params, a_batch(LONG))
    assert loss.dtype == jnp.float32 and {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    assert float(loss) == pytest.approx(float(wanted_loss), rel=2**-7)
    for got, exact in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted)):
        scale = float(jnp.abs(exact).max())
        np.testing.assert_allclose(got, exact, rtol=0, atol=0.02 * scale)
        assert not np.array_equal(got, exact)
    program = str(jax.make_jaxpr(task_grad_fn(SHORT))(params, a_batch(SHORT)))
    multiplies = [line for line in program.splitlines() if "dot_general" in line]
    assert multiplies and all("bf16" in line for line in multiplies)


@pytest.mark.long
def test_states_and_messages_stay_long() -> None:
    options = {"rounds": 2, "cohort_size": 3, "batch_size": 10}
    tasks = [fx.load_task("quadratic", num_clients=8, compute_dtype=dtype) for dtype in ("bfloat16", "float32")]
    short, long = (fx.run(task, fx.fafed(lr=0.01), **options) for task in tasks)
    forms = [[(a.shape, a.dtype) for a in jax.tree.leaves((r.params, r.state))] for r in (short, long)]
    assert forms[0] == forms[1]
    assert short.history[-1]["bytes_up"] == long.history[-1]["bytes_up"]


@pytest.mark.long
def test_digits_are_learned_about_as_well() -> None:
    options = {"rounds": 20, "cohort_size": 8, "batch_size": 10}
    accuracies = [
        fx.run(task, fx.fedadam(client_lr=0.1, server_lr=0.03), **options).history.last("test_accuracy")
        for task in (LONG, SHORT)
    ]
    assert accuracies[0] > 0.8 and accuracies[1] == pytest.approx(accuracies[0], abs=0.03)


def test_it_is_part_of_a_run_and_of_resuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--task", "quadratic", "--algorithm", "fedavg", "--set", "client_lr=0.1", "--rounds", "2"]
    assert fedoptax(*command, "--compute-dtype", "bfloat16", "--out", tmp_path / "a") == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    assert config["task"]["compute_dtype"] == "bfloat16"
    assert fedoptax("resume", tmp_path / "a", "--rounds", 3) == 0
    capsys.readouterr()
    assert fedoptax(*command, "--compute-dtype", "float8", "--out", tmp_path / "b") == 2
    told = capsys.readouterr().err.strip()
    assert "compute_dtype: unknown name 'float8'" in told and "allowed: bfloat16, float32" in told and "\n" not in told
    assert not (tmp_path / "b").exists()


def test_another_dtype_is_refused() -> None:
    with pytest.raises(fx.UsageError, match=r"compute_dtype: unknown name 'int8'"):
        fx.with_compute_dtype(LONG, "int8")
    assert fx.with_compute_dtype(LONG, "float32") is LONG

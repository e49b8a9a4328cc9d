"""A program is compiled once, ahead if asked, and stops at a non-finite state."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.data import device_data
from fedoptax.engine.faults import Faults
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import Fixed, program
from small import small_task


def test_one_compilation_serves_any_number_of_rounds_and_every_seed() -> None:
    task, algorithm = small_task(), fx.fedadam(0.3, 0.1)
    built = program(task, Fixed(algorithm), Plan(3, LocalWork(4)), ())
    fx.run(task, algorithm, rounds=3, cohort_size=3, batch_size=4)
    compiled = built.timings["compile"]
    assert compiled > 0
    for seed in (1, 2):
        fx.run(task, algorithm, rounds=9 + seed, cohort_size=3, batch_size=4, seed=seed, eval_every=2)
    assert built.timings["compile"] == compiled


def test_a_program_can_be_compiled_while_the_caller_goes_on() -> None:
    task, algorithm = small_task(), fx.scaffold(client_lr=0.05, server_lr=1.0)
    key, rates = jax.random.key(3), Faults().rates()

    def after(ahead: bool) -> tuple[Any, dict[str, float]]:
        built = program(task, lambda: algorithm, Plan(3, LocalWork(4), faults=True))
        if ahead:
            built.prepare({}, device_data(task), key)
            built.prepare({}, device_data(task), key)
        server, client = built.start({}, key)
        clients = OnDevice(client, task.num_clients).tree
        numbers = [np.int32(n) for n in (0, 2, 1, 2)]
        done = built.advance({}, server, clients, device_data(task), key, *numbers, rates)
        return jax.device_get((done.server, done.clients, done.rows)), built.timings

    (one, alone), (two, beside) = after(False), after(True)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert alone["compile"] <= alone["waited"] and beside["waited"] < beside["compile"]


def test_a_sweep_compiles_once_and_keeps_diverged_points() -> None:
    task = small_task()
    make: Callable[..., fx.FedAlgorithm] = lambda client_lr: fx.fedavg(client_lr, 1e10)  # noqa: E731
    points = fx.sweep(task, make, {"client_lr": [0.1, 1e30, 0.3]}, rounds=6, cohort_size=3, batch_size=4)
    assert [p.status for p in points] == ["completed", "diverged", "completed"]
    assert [p.hyperparameters["client_lr"] for p in points] == [0.1, 1e30, 0.3]
    compiled = program(task, make, Plan(3, LocalWork(4)), ("client_lr",)).timings["compile"]
    fx.sweep(task, make, {"client_lr": [0.2]}, rounds=6, cohort_size=3, batch_size=4)
    assert program(task, make, Plan(3, LocalWork(4)), ("client_lr",)).timings["compile"] == compiled > 0


def test_a_state_that_changes_form_is_refused_by_name() -> None:
    base = fx.fedavg(0.1)
    narrowed = base._replace(
        server_update=lambda s, m, c: s._replace(params=jax.tree.map(lambda a: a.astype("bfloat16"), s.params))
    )
    with pytest.raises(fx.UsageError, match=r"server_update.*hidden.*bfloat16"):
        fx.run(small_task(), narrowed, rounds=1, cohort_size=2)

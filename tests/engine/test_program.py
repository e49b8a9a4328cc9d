"""A program is compiled once, and stops at a non-finite state."""

from collections.abc import Callable

import jax

import fedoptax as fx
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.plan import Plan
from fedoptax.engine.program import Fixed, program
from small import small_task


def test_one_compilation_serves_any_number_of_rounds_and_every_seed():
    task, algorithm = small_task(), fx.fedadam(0.3, 0.1)
    built = program(task, Fixed(algorithm), Plan(3, LocalWork(4)), ())
    fx.run(task, algorithm, rounds=3, cohort_size=3, batch_size=4)
    compiled = built.compile_seconds()
    for seed in (1, 2):
        fx.run(task, algorithm, rounds=9 + seed, cohort_size=3, batch_size=4, seed=seed, eval_every=2)
    assert built.compile_seconds() == compiled > 0
    with jax.default_matmul_precision("highest"):  # another program
        assert program(task, Fixed(algorithm), Plan(3, LocalWork(4)), ()) is not built


def test_a_sweep_compiles_once_and_keeps_diverged_points():
    task = small_task()
    make: Callable[..., fx.FedAlgorithm] = lambda client_lr: fx.fedavg(client_lr, 1e10)  # noqa: E731
    points = fx.sweep(task, make, {"client_lr": [0.1, 1e30, 0.3]}, rounds=6, cohort_size=3, batch_size=4)
    assert [p.status for p in points] == ["completed", "diverged", "completed"]
    assert [p.hyperparameters["client_lr"] for p in points] == [0.1, 1e30, 0.3]
    compiled = program(task, make, Plan(3, LocalWork(4)), ("client_lr",)).compile_seconds()
    fx.sweep(task, make, {"client_lr": [0.2]}, rounds=6, cohort_size=3, batch_size=4)
    assert program(task, make, Plan(3, LocalWork(4)), ("client_lr",)).compile_seconds() == compiled > 0

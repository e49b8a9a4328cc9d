"""Options of a run are checked once; the plan is made of them, the task and the algorithm."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fedoptax as fx
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.mesh import choose_mesh
from fedoptax.engine.plan import SMALL_MODEL, Plan, RunOptions, make_plan, runs_sequentially
from refusals import refusals, refused
from small import small_task

REFUSED: list[dict[str, Any]] = [
    {"rounds": 0}, {"rounds": 2.5}, {"rounds": True}, {"cohort_size": 0}, {"batch_size": "20"}, {"local_epochs": -1},
    {"local_steps": 0}, {"eval_every": 2**31}, {"seed": -1}, {"seed": 2**32}, {"mesh": 0}, {"mesh": 1.0},
    {"weighting": "size"}, {"client_loop": "scan"}, {"client_states": "disk"}, {"examples": "tape"},
    {"engine": "lazy"}, {"secure_aggregation": 0.0}, {"cohort_size": 2, "secure_aggregation": 8.0},
    {"aggregate": "median", "secure_aggregation": 8.0}, {"aggregate": "norm_clipping:1", "secure_aggregation": 8.0},
]  # fmt: skip


test_a_value_outside_its_range_is_refused_by_name = refusals(
    (partial(RunOptions, **options), next(iter(options))) for options in REFUSED
)


FEDAVG = fx.fedavg(0.1)
PRIVATE = FEDAVG._replace(epsilon=lambda rounds, size, clients: 1.0, weighting="uniform")


def plan_of(algorithm: fx.FedAlgorithm, **options: Any) -> Plan:
    return make_plan(RunOptions(**{"cohort_size": 3} | options), small_task(), algorithm)


test_options_that_do_not_fit_the_task_are_refused = refusals([
    (partial(plan_of, FEDAVG, mesh=2, engine="eager"), "mesh"),
    (partial(plan_of, FEDAVG, cohort_size=6, aggregate="krum:2"), "aggregate"),
    (partial(plan_of, FEDAVG, mesh=99), r"mesh.*JAX_NUM_CPU_DEVICES"),
    (partial(plan_of, fx.with_compression(PRIVATE, fx.codecs.qsgd()), secure_aggregation=8), "compress"),
])  # fmt: skip


def test_a_private_algorithm_needs_a_uniform_mean():
    plan = plan_of(PRIVATE)
    assert (str(plan.aggregate), plan.weighting) == ("mean", "uniform")
    assert str(plan_of(PRIVATE, secure_aggregation=8).aggregate) == "secure:8.0"  # is one, too
    for name, value in (("weighting", "examples"), ("aggregate", "median"), ("aggregate", "norm_clipping:1")):
        refused(lambda: plan_of(PRIVATE, **{name: value}), name)  # noqa: B023


def test_the_mesh_is_all_devices_but_at_most_one_per_client(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert [choose_mesh(mesh, size) for mesh, size in ((None, 30), (None, 3), (5, 3))] == [8, 3, 5]
    assert choose_mesh(None, 3, "eager") == 1
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert choose_mesh(None, 3) == 8
    refused(lambda: choose_mesh(4, 3), "mesh")
    refused(lambda: choose_mesh(None, 3, "eager"), "engine")


LARGE = {"init": lambda key: {"w": jnp.zeros(SMALL_MODEL + 1)}}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the choice on a CPU")
@pytest.mark.parametrize(
    ("sizes", "changes", "options", "is_sequential"),
    [((4, 4, 4), {}, {}, False), ((4, 4, 5), {}, {}, True), ((4, 4, 5), {}, {"work": LocalWork(2, steps=3)}, False),
     ((4, 4, 4), {}, {"mesh": 2}, True), ((4, 4, 4), LARGE, {}, True), ((4, 4, 4), {}, {"cohort_size": 200}, True),
     ((4, 4, 4), {}, {"client_loop": "loop"}, True), ((4, 4, 5), LARGE, {"client_loop": "vmap"}, False)],
)  # fmt: skip
def test_clients_run_sequentially_or_at_once_by_model_and_sizes(sizes, changes, options, is_sequential):
    plan = Plan(**{"cohort_size": 2, "work": LocalWork(2)} | options)
    assert runs_sequentially(plan, small_task(sizes=sizes, **changes)) is is_sequential

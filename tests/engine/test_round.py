"""A round equals the papers' transcriptions, and the engines agree, in all its forms."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.plan import Plan
from fedoptax.engine.sampling import sample_cohort
from laws_table import noisy_fedavg
from oracles import fedopt as oracle
from oracles.compare import BITES, TOLERANCE, errors
from oracles.problem import flatten
from refusals import refusals
from small import EngineProblem, line, masked_loss, noisy_loss, plain_loss, small_task

RULES: dict[str, dict[str, Any]] = {
    "fedavg": {"client_lr": 0.3, "server_lr": 1.0}, "fedadam": {"client_lr": 0.3, "server_lr": 0.1, "tau": 1e-2},
    "fedams": {"client_lr": 0.3, "server_lr": 0.1},
}  # fmt: skip
ROUNDS, SEED = 4, 11
LONG = pytest.mark.long


def rounds_of(task: fx.Task, algorithm: fx.FedAlgorithm, **options: Any) -> list[np.ndarray]:
    """The parameters after 1, 2, … rounds, from as many runs."""
    options = {"cohort_size": 3, "batch_size": 4, "seed": SEED} | options
    runs = (fx.run(task, algorithm, rounds=r, **options).params for r in range(1, ROUNDS + 1))
    return [flatten(jax.tree.map(np.asarray, params)) for params in runs]


@pytest.mark.parametrize(
    ("rule", "client_loop", "dtype"),
    [
        ("fedadam", "loop", "float64"),
        pytest.param("fedams", "vmap", "float64", marks=LONG),
        pytest.param("fedavg", "loop", "float64", marks=LONG),
        pytest.param("fedadam", "loop", "float32", marks=LONG),
    ],
)
def test_the_engine_equals_algorithm_2(rule, client_loop, dtype):
    with jax.enable_x64(dtype == "float64"):
        task = small_task(dtype=dtype)
        problem = EngineProblem(task, Plan(3, LocalWork(4, epochs=2)), SEED, ROUNDS)
        want = oracle.run(problem, rule, **RULES[rule])
        got = rounds_of(task, fx.ALGORITHMS[rule](**RULES[rule]), local_epochs=2, client_loop=client_loop)
        assert max(errors(got, want).values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("examples", ["device", pytest.param("stream", marks=LONG)])
def test_a_mean_by_examples_takes_the_task_s_own_weights(examples):
    task = line()
    assert np.ptp(task.weights), "else equal weights are no others"
    equal = replace(task, client_weights=np.full(task.num_clients, 7))
    options = {"rounds": 2, "cohort_size": 3, "batch_size": 4, "examples": examples}
    result = fx.run(equal, fx.fedavg(0.3), **options)
    want = fx.run(task, fx.fedavg(0.3), **options, weighting="uniform")
    jax.tree.map(np.testing.assert_array_equal, result.params, want.params)


@LONG
def test_the_comparison_with_algorithm_2_notices_a_wrong_order_of_examples():
    task = small_task()
    want = oracle.run(EngineProblem(task, Plan(3, LocalWork(4)), SEED + 1, ROUNDS), "fedavg", **RULES["fedavg"])
    assert max(errors(rounds_of(task, fx.fedavg(**RULES["fedavg"])), want).values()) > BITES


DROPOUT = {"faults": {"dropout": 0.3, "deadline": 2.6}}
MEDIAN = {"aggregate": "median", **DROPOUT}
SECURE = {"secure_aggregation": 4.0}
ASYNCHRONOUS = {"asynchronous": 5, "cohort_size": 2, "rounds": 8, "speeds": "lognormal:1"}
LOOP, VMAP, EAGER = {"client_loop": "loop"}, {"client_loop": "vmap"}, {"engine": "eager"}
masked, noisy, plain = (cache(partial(small_task, loss)) for loss in (masked_loss, noisy_loss, plain_loss))


@cache
def noisy_line() -> fx.Task:
    """`line` with dropout on the inputs."""

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        keep = jax.random.bernoulli(key, 0.7, batch["x"].shape)
        return line().loss(params, batch | {"x": jnp.where(keep, batch["x"], 0)}, key)

    return replace(line(), loss=loss)


PAIRS = [  # algorithm, task, what both have, the one, the other
    ("fafed", noisy_line, MEDIAN, LOOP, VMAP),
    ("noisy fedavg", line, SECURE, LOOP, EAGER),
    ("fedadam", line, ASYNCHRONOUS, LOOP, EAGER),
    pytest.param("fafed", noisy, MEDIAN, LOOP, VMAP, marks=LONG),
    pytest.param("scaffold", noisy, MEDIAN, LOOP, VMAP, marks=LONG),
    pytest.param("scaffold", noisy, MEDIAN, LOOP, EAGER, marks=LONG),
    pytest.param("noisy fedavg", masked, SECURE, LOOP, EAGER, marks=LONG),
    pytest.param("fedadam", masked, ASYNCHRONOUS, LOOP, EAGER, marks=LONG),
    pytest.param("fedadam", masked, ASYNCHRONOUS, LOOP, VMAP, marks=LONG),
    pytest.param("fedadam", masked, {**ASYNCHRONOUS, **LOOP}, {"examples": "stream"}, {}, marks=LONG),
    pytest.param("noisy fedavg", masked, DROPOUT, VMAP, {"examples": "stream"}, marks=LONG),
    pytest.param("scaffold", masked, {**SECURE, **DROPOUT}, LOOP, EAGER, marks=LONG),
    *(
        pytest.param(name, masked, {}, {**LOOP, **SECURE}, LOOP, marks=LONG)
        for name in ("fedavg", "fedadam", "scaffold", "fedlamb", "fafed")
    ),
    pytest.param("fedadam", noisy, {"local_epochs": 2}, LOOP, EAGER, marks=LONG),
    pytest.param("scaffold", masked, {"local_steps": 5}, LOOP, VMAP, marks=LONG),
    pytest.param("scaffold", noisy, LOOP, {"client_states": "host", "examples": "stream"}, {}, marks=LONG),
    pytest.param("scaffold", noisy, VMAP, {"client_states": "host"}, {"examples": "stream"}, marks=LONG),
    pytest.param("fedavg", plain, {}, LOOP, VMAP, marks=LONG),
    pytest.param("fedavg", plain, {"weighting": "uniform"}, VMAP, EAGER, marks=LONG),
    pytest.param("fedlamb", masked, DROPOUT, LOOP, VMAP, marks=LONG),
    pytest.param("fedlamb", masked, MEDIAN, LOOP, EAGER, marks=LONG),
    pytest.param("fafed", masked, {"aggregate": "norm_clipping:4.0"}, LOOP, EAGER, marks=LONG),
    pytest.param("fafed", masked, DROPOUT, LOOP, {"client_loop": "loop", "client_states": "host"}, marks=LONG),
    pytest.param("fedadam", masked, {"aggregate": "krum:0,keep=2", **DROPOUT}, LOOP, EAGER, marks=LONG),
    pytest.param("fedadam", masked, {"aggregate": "trimmed_mean:0.2"}, LOOP, EAGER, marks=LONG),
    pytest.param("fedadam", plain, {"local_steps": 5}, VMAP, EAGER, marks=LONG),
    pytest.param("scaffold", masked, {}, {}, {"faults": {}}, marks=LONG),
    pytest.param("scaffold", masked, {"examples": "stream", **DROPOUT}, LOOP, EAGER, marks=LONG),
    pytest.param("fedyogi", noisy, {"weighting": "uniform"}, LOOP, EAGER, marks=LONG),
]
MAKE = {
    "fedavg": lambda: fx.fedavg(0.3), "fedadam": lambda: fx.fedadam(0.3, 0.1),
    "fedyogi": lambda: fx.fedyogi(0.3, 0.1), "scaffold": lambda: fx.scaffold(0.3),
    "fedlamb": lambda: fx.fedlamb(0.05), "fafed": lambda: fx.fafed(0.1), "noisy fedavg": noisy_fedavg,
}  # fmt: skip


made = cache(lambda name: MAKE[name]())  # pairs share programs


@pytest.mark.parametrize(("name", "make_task", "both", "one", "other"), PAIRS)
def test_engines_agree(name, make_task, both, one, other):
    """Parameters, all states and the whole history, however the same rounds are run."""
    task, algorithm = make_task(), made(name)
    shared = {"rounds": 4, "cohort_size": 5, "batch_size": 4, "seed": 3, **both}
    a, b = (fx.run(task, algorithm, **shared, **options) for options in (one, other))
    states = [r.clients.of(range(task.num_clients)) if hasattr(r.clients, "of") else r.clients.tree for r in (a, b)]
    left, right = (jax.tree.leaves((r.params, r.state, s)) for r, s in zip((a, b), states))
    for x, y in zip(left, right, strict=True):
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=1e-4, atol=1e-5)
    for column in a.history[0].keys() & b.history[0].keys() - {"seconds"}:
        values = (np.asarray(r.history.column(column), float) for r in (a, b))
        np.testing.assert_allclose(*values, rtol=1e-4, err_msg=column)


OWN, UPDATE = fx.fedavg(0.1), fx.fedavg(0.1).client_update
WRONG_LISTS: list[Any] = [  # clients, batches, num_clients
    ([], [], None, "clients"), ([()], [], None, "batches"), ([(), ()], [[], []], 1, "num_clients"),
    (3, [[]], None, "clients"), ([()], 3, None, "batches"), ([()], [[]], "two", "num_clients"),
    ([()], [[]], None, r"server must be a state that algorithm\.init"),
]  # fmt: skip
test_lists_that_do_not_fit_are_refused = refusals(
    (partial(fx.eager.run_round, OWN, None, None, clients, batches, num_clients=count), argument)
    for clients, batches, count, argument in WRONG_LISTS
)


PARAMS = {"w": jnp.ones(2), "b": jnp.ones(())}
WRONG_GRADIENTS: dict[str, tuple[Any, str]] = {
    "no function": (None, r"function of \(params, batch\)"),
    "the loss alone": (lambda p, b: jnp.ones(()), r"\(loss, gradient\)"),
    "a loss per example": (lambda p, b: (jnp.ones(4), p), r"float32\[4\]"),
    "a whole loss": (lambda p, b: (1, p), r"int32\[\]"),
    "turned round": (lambda p, b: (p, jnp.ones(())), "names"),
    "other names": (lambda p, b: (jnp.ones(()), {"w": p["w"]}), "names"),
    "other shapes": (lambda p, b: (jnp.ones(()), p | {"w": jnp.ones((2, 1))}), r"'w'.*float32\[2, 1\]"),
    "whole numbers": (lambda p, b: (jnp.ones(()), p | {"b": jnp.int32(1)}), r"'b'.*int32\[\]"),
}


test_a_gradient_of_another_form_is_refused = refusals({
    which: (partial(fx.eager.run_round, OWN, grad_fn, OWN.init(PARAMS), [()], [[1]]), f"^grad_fn.*{form}")
    for which, (grad_fn, form) in WRONG_GRADIENTS.items()
})  # fmt: skip
WRONG_ALGORITHMS: dict[str, tuple[dict[str, Any], str]] = {
    "no loss": ({"client_update": lambda g, m, c, b: UPDATE(g, m, c, b)[:2]}, "client_update must return"),
    "a complex upload": ({"client_update": lambda g, m, c, b: (jnp.array(1j), c, jnp.ones(()))}, "real numbers"),
    "a loss per step": ({"client_update": lambda g, m, c, b: (*UPDATE(g, m, c, b)[:2], jnp.ones(3))}, r"float32\[3\]"),
    "bfloat16": (
        {"server_update": lambda s, m, c: jax.tree.map(lambda a: a.astype("bfloat16"), s)},
        "hidden.*bfloat16",
    ),
    "arguments": ({"server_update": lambda server, mean: server}, r"server_update.*\(server, mean_upload, cohort\)"),
    "no state": ({"server_update": lambda server, mean, cohort: None}, "server_update must keep"),
    "other parameters": ({"params": lambda server: {"w": jnp.ones(3)}}, "params must keep"),
    "no function": ({"broadcast": 3}, "broadcast"),
    "weighting": ({"weighting": "sum"}, "weighting"),
}


def run_once(**changes: Any) -> fx.RunResult:
    return fx.run(small_task(), OWN._replace(**changes), rounds=1, cohort_size=2)


test_an_own_algorithm_of_another_form_is_refused = refusals(
    {which: (partial(run_once, **changes), text) for which, (changes, text) in WRONG_ALGORITHMS.items()}
)


def test_work_is_exact_for_clients_of_unequal_size():
    """One giant among clients of a few examples costs a round without it nothing: the number of steps is dynamic."""
    counted: list[int] = []

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: counted.append(1))
        return masked_loss(params, batch, key)

    task, algorithm = small_task(loss, sizes=(4, 4, 400, 3)), fx.fedavg(0.1)
    for seed in range(3):
        cohort = sample_cohort(jax.random.key(seed), 0, 4, 2)
        counted.clear()
        fx.run(task, algorithm, rounds=1, cohort_size=2, batch_size=4, seed=seed, client_loop="loop")
        jax.effects_barrier()
        assert len(counted) == sum(-(-int(task.clients.sizes[i]) // 4) for i in cohort)

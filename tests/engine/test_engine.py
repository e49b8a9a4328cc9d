"""The compiled engine equals the papers' transcriptions, and the eager round, in all its forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedoptax as fx
from fedoptax import threefry
from fedoptax.engine.batches import LocalWork, client_batches, form_of_grad_fn, minibatch_form, task_grad_fn
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.data import device_data
from fedoptax.engine.faults import Faults
from fedoptax.engine.plan import SMALL_MODEL, Plan, runs_sequentially
from fedoptax.engine.program import Fixed, _program, _Timed, program
from oracles import fedopt as oracle
from oracles.compare import BITES, TOLERANCE, errors
from oracles.problem import flatten
from small import EngineProblem, masked_loss, noisy_loss, plain_loss, small_task

RULES: dict[str, dict[str, Any]] = {
    "fedavg": {"client_lr": 0.3, "server_lr": 1.0},
    "fedavgm": {"client_lr": 0.2, "server_lr": 0.7, "momentum": 0.9},
    "fedadagrad": {"client_lr": 0.3, "server_lr": 0.2, "b1": 0.0, "tau": 1e-2},
    "fedyogi": {"client_lr": 0.3, "server_lr": 0.1, "tau": 1e-2},
    "fedadam": {"client_lr": 0.3, "server_lr": 0.1, "tau": 1e-2},
    "fedams": {"client_lr": 0.3, "server_lr": 0.1},
    "fedamsgrad": {"client_lr": 0.3, "server_lr": 0.05},
}
MAIN_RULES = ("fedavg", "fedadam", "fedams")  # the others run with the long tests
ROUNDS, SEED = 5, 11


def rounds_of(task: fx.Task, algorithm: fx.FedAlgorithm, rounds: int = ROUNDS, **options: Any) -> list[Any]:
    """The parameters after 1, 2, … rounds, from as many runs."""
    given = {"cohort_size": 3, "batch_size": 4, "seed": SEED} | options
    return [fx.run(task, algorithm, rounds=r, **given).params for r in range(1, rounds + 1)]


def assert_trees_equal(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


def assert_trees_close(a: Any, b: Any, rtol: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=rtol), a, b)


@pytest.mark.parametrize(
    ("rule", "client_loop", "dtype"),
    [
        *((rule, "loop", "float64") for rule in MAIN_RULES),
        *(pytest.param(rule, "loop", "float64", marks=pytest.mark.long) for rule in RULES if rule not in MAIN_RULES),
        *(pytest.param(rule, "loop", "float32", marks=pytest.mark.long) for rule in RULES),
        ("fedadam", "vmap", "float64"),
    ],
)
def test_engine_equals_algorithm_2(rule: str, client_loop: str, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        task = small_task(dtype=dtype)
        plan = Plan(3, LocalWork(4, epochs=2))
        want = oracle.run(EngineProblem(task, plan, SEED, ROUNDS), rule, **RULES[rule])
        got = rounds_of(task, fx.ALGORITHMS[rule](**RULES[rule]), local_epochs=2, client_loop=client_loop)
        worst = max(errors([flatten(jax.tree.map(np.asarray, p)) for p in got], want).values())
    assert worst < TOLERANCE[dtype]


@pytest.mark.long
def test_the_comparison_with_algorithm_2_notices_a_wrong_order_of_examples() -> None:
    task = small_task()
    problem = EngineProblem(task, Plan(3, LocalWork(4)), SEED + 1, ROUNDS)
    want = oracle.run(problem, "fedavg", **RULES["fedavg"])
    got = rounds_of(task, fx.fedavg(**RULES["fedavg"]))
    assert max(errors([flatten(jax.tree.map(np.asarray, p)) for p in got], want).values()) > BITES


@pytest.mark.long
@pytest.mark.parametrize("loss", [masked_loss, plain_loss, noisy_loss])
@pytest.mark.parametrize("work", [{"local_epochs": 2}, {"local_steps": 5}])
def test_eager_compiled_loop_and_vmap_are_one(loss: Any, work: dict[str, int]) -> None:
    task, algorithm = small_task(loss), fx.fedyogi(0.3, 0.1)
    options = {"rounds": 4, "cohort_size": 3, "batch_size": 4, "weighting": "uniform", **work}
    compiled = fx.run(task, algorithm, client_loop="loop", **options)
    for other in ({"engine": "eager"}, {"client_loop": "vmap"}):
        result = fx.run(task, algorithm, **options, **other)
        assert_trees_close(compiled.params, result.params, 1e-5)
        assert_trees_close(compiled.state, result.state, 1e-5)
        for column in ("train_loss", "test_nll"):
            np.testing.assert_allclose(compiled.history.column(column), result.history.column(column), rtol=1e-5)


def test_a_loss_without_mask_is_the_mean_over_real_examples() -> None:
    plain, masked = (fx.run(small_task(loss), fx.fedavg(0.3), rounds=3, cohort_size=3, batch_size=4).params
                     for loss in (plain_loss, masked_loss))  # fmt: skip
    assert_trees_close(plain, masked, 1e-6)


def test_padding_is_inert_bit_for_bit() -> None:
    """What lies in the padded places of a minibatch (here: anything) changes no bit."""
    data = device_data(small_task())
    batches = client_batches(data.examples, data.offsets[1], data.sizes[1], jax.random.key(3), LocalWork(8), 11)
    batch = batches.get(0).examples
    mask = np.asarray(batch["mask"])
    assert mask.tolist() == [True] * 3 + [False] * 5
    garbage = jnp.where(mask[:, None], batch["x"], jnp.asarray([1e30, -7.0, 0.0, 3.0]))
    params = small_task().init(jax.random.key(0))
    value = jax.jit(jax.value_and_grad(masked_loss))
    assert_trees_equal(
        value(params, batch, jax.random.key(1)), value(params, {**batch, "x": garbage}, jax.random.key(1))
    )


def test_batches_hold_every_example_once_an_epoch() -> None:
    data = device_data(small_task())
    for i, size in enumerate((7, 3, 11, 1)):
        batches = client_batches(
            data.examples, data.offsets[i], data.sizes[i], jax.random.key(i), LocalWork(4, epochs=3), 11
        )
        steps = -(-size // 4)
        assert int(batches.num_steps) == 3 * steps
        own = np.sort(np.asarray(data.examples["x"][data.offsets[i] : data.offsets[i] + size, 0]))
        orders = []
        for epoch in range(3):
            taken = [batches.get(epoch * steps + j).examples for j in range(steps)]
            x = np.concatenate([np.asarray(b["x"])[np.asarray(b["mask"])][:, 0] for b in taken])
            np.testing.assert_array_equal(np.sort(x), own)
            orders.append(x.tolist())
        assert size < 7 or orders[0] != orders[1]


def test_local_steps_runs_cyclically_through_one_permutation() -> None:
    data = device_data(small_task())
    batches = client_batches(data.examples, data.offsets[0], data.sizes[0], jax.random.key(0), LocalWork(4, 1, 7), 11)
    x = np.concatenate([np.asarray(batches.get(k).examples["x"][:, 0]) for k in range(7)])
    assert x.tolist() == (x[:7].tolist() * 4) and len(set(x[:7])) == 7  # 28 places over 7 examples: each 4 times
    small = client_batches(data.examples, data.offsets[3], data.sizes[3], jax.random.key(0), LocalWork(4, 1, 2), 11)
    assert np.asarray(small.get(1).examples["mask"]).tolist() == [True, False, False, False]


def test_the_order_of_the_cohort_and_clients_of_weight_zero_do_not_matter() -> None:
    algorithm, grad_fn = fx.fedadam(0.3, 0.1), jax.value_and_grad(lambda p, b: jnp.mean((p["w"] - b) ** 2))
    server = algorithm.init({"w": jnp.asarray([1.0, -2.0])})
    batches = [[jnp.asarray([1.0, 2.0])], [jnp.asarray([3.0, 0.5])] * 2, [jnp.asarray([jnp.nan, 0.0])]]
    round_ = fx.eager.run_round
    one, _, info = round_(algorithm, grad_fn, server, [(), ()], batches[:2], [1.0, 3.0])
    two, _, _ = round_(algorithm, grad_fn, server, [(), ()], batches[1::-1], [3.0, 1.0])
    three, _, info3 = round_(algorithm, grad_fn, server, [(), (), ()], batches, [1.0, 3.0, 0.0], num_clients=9)
    assert_trees_close(one, two, 1e-6)
    assert_trees_equal(one, three)
    assert float(info.train_loss) == float(info3.train_loss)


def test_one_compilation_serves_any_number_of_rounds_and_every_seed() -> None:
    task, algorithm = small_task(), fx.fedadam(0.3, 0.1)
    built = program(task, Fixed(algorithm), Plan(3, LocalWork(4)))
    fx.run(task, algorithm, rounds=3, cohort_size=3, batch_size=4)
    compiled = built.timings["compile"]
    assert compiled > 0
    for seed in (1, 2):
        fx.run(task, algorithm, rounds=9 + seed, cohort_size=3, batch_size=4, seed=seed, eval_every=2)
    assert built.timings["compile"] == compiled


@pytest.mark.parametrize("work", [LocalWork(4), LocalWork(4, steps=3)])
def test_the_form_of_a_minibatch_is_known_beforehand(work: LocalWork) -> None:
    task, n = small_task(), jnp.int32
    data = device_data(task)

    def first() -> Any:
        batches = client_batches(data.examples, n(0), n(5), threefry.key(0), work, int(task.clients.sizes.max()))
        return batches.get(n(0))

    assert minibatch_form(task, 4) == jax.eval_shape(first)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("loss", [masked_loss, noisy_loss, plain_loss])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_form_of_a_gradient_is_known_without_tracing_it(loss: Any, dtype: str, clip_norm: float | None) -> None:
    task = replace(small_task(loss=loss), clip_norm=clip_norm)
    params = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, dtype), jax.eval_shape(task.init, threefry.key(0)))
    batch = minibatch_form(task, 4)
    guessed = jax.eval_shape(form_of_grad_fn(task, params, batch), params, batch)
    assert guessed == jax.eval_shape(task_grad_fn(task), params, batch)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("size", [1, 7, 64, 65, 300])
def test_an_epoch_is_every_example_of_a_client_once(size: int, double: bool) -> None:
    with jax.enable_x64(double):
        examples = {"row": jnp.arange(1000)}
        batches = client_batches(
            examples, jnp.int32(500), jnp.int32(size), threefry.key(size), LocalWork(8, epochs=2), capacity=300
        )
        steps = [batches.get(k).examples for k in range(int(batches.num_steps))]
    rows = [int(row) for step in steps for row in np.asarray(step["row"])[np.asarray(step["mask"])]]
    assert len(steps) == 2 * -(-size // 8)
    assert sorted(rows[:size]) == sorted(rows[size:]) == list(range(500, 500 + size))


@pytest.mark.parametrize("guarded", [False, True])
def test_a_program_can_be_compiled_ahead_while_the_caller_goes_on(guarded: bool) -> None:
    task, algorithm = small_task(), fx.scaffold(client_lr=0.05, server_lr=1.0)
    key, rates = threefry.key(3), Faults().rates() if guarded else None

    def after(plan: Plan, ahead: bool) -> tuple[Any, dict[str, float]]:
        built = _program.__wrapped__(task, Fixed(algorithm), plan, ())  # anew, not the one that others made
        if ahead:
            begin = built.prepare({}, device_data(task), key)
            begin()
            begin()
        server, client = built.start({}, key)
        clients = OnDevice(client, task.num_clients).tree
        numbers = [np.int32(n) for n in (0, 2, 1, 2)]
        done = built.advance({}, server, clients, device_data(task), key, *numbers, rates)
        return jax.device_get((done.server, done.clients, done.rows)), built.timings

    plan = Plan(3, LocalWork(4), faults=guarded)
    (one, alone), (two, beside) = after(plan, False), after(plan, True)
    assert_trees_equal(one, two)
    assert alone["compile"] <= alone["waited"] and beside["waited"] < beside["compile"]


def test_what_fails_in_compiling_ahead_is_raised_by_the_call() -> None:
    class Refused:
        def lower(self, *args: Any) -> Refused:
            return self

        def compile(self) -> None:
            raise ValueError("not today")

    refused = _Timed(Refused(), {"compile": 0.0, "waited": 0.0}, lambda *given: given)
    refused.prepare(1)()
    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            refused(1)


def test_a_program_takes_keys_of_jax_and_ours() -> None:
    task, algorithm = small_task(), fx.fedadam(0.3, 0.1)
    built = program(task, Fixed(algorithm), Plan(3, LocalWork(4)))

    def params(key: jax.Array) -> Any:
        server, _ = built.start({}, key)
        numbers = [np.int32(n) for n in (0, 2, 1, 2)]
        return built.advance({}, server, (), device_data(task), key, *numbers).server

    for mine, theirs in zip(jax.tree.leaves(params(threefry.key(3))), jax.tree.leaves(params(jax.random.key(3)))):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("client_loop", ["loop", "vmap"])
def test_a_clients_work_is_traced_once_for_its_form_and_once_for_the_rounds(client_loop: str) -> None:
    algorithm, traces = fx.fedadam(client_lr=0.05, server_lr=0.01), []

    def counted(*given: Any) -> Any:
        traces.append(given)
        return algorithm.client_update(*given)

    fx.run(small_task(), algorithm._replace(client_update=counted), rounds=2, cohort_size=2, client_loop=client_loop)
    assert len(traces) == 2


def test_data_are_arguments_of_the_program_not_constants() -> None:
    rng = np.random.default_rng(0)
    clients = fx.FederatedData.from_clients(
        [{"x": rng.normal(size=(500, 4)).astype("f4"), "y": np.zeros(500, np.int32)} for _ in range(20)]
    )
    task = small_task(clients=clients)
    built = program(task, Fixed(fx.fedavg(0.1)), Plan(3, LocalWork(4)))
    key, n = jax.random.key(0), jnp.int32
    server, client = built.start({}, key)
    words = jax.random.key_data(key)
    arguments = ({}, server, client, device_data(task), words, n(0), n(1), n(1), n(1))
    text = built.advance.jitted.lower(*arguments).as_text()
    assert len(text) < 400_000  # the data alone would take more than that as text


def test_work_is_exact_for_clients_of_unequal_size() -> None:
    """One giant among clients of a few examples costs a round without it nothing: the trip count is dynamic."""
    counted: list[int] = []

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: counted.append(1))
        return masked_loss(params, batch, key)

    task = small_task(loss, sizes=(4, 4, 400, 3))
    for seed in range(3):
        problem = EngineProblem(task, Plan(2, LocalWork(4)), seed, 1)
        counted.clear()
        fx.run(task, fx.fedavg(0.1), rounds=1, cohort_size=2, batch_size=4, seed=seed, client_loop="loop")
        jax.effects_barrier()
        assert len(counted) == sum(-(-int(task.clients.sizes[i]) // 4) for i in problem.cohorts[0])


def test_a_sweep_compiles_once_and_keeps_diverged_points() -> None:
    task = small_task()
    make: Callable[..., fx.FedAlgorithm] = lambda client_lr: fx.fedavg(client_lr, 1e10)  # noqa: E731
    points = fx.sweep(task, make, {"client_lr": [0.1, 1e30, 0.3]}, rounds=6, cohort_size=3, batch_size=4)
    assert [p.status for p in points] == ["completed", "diverged", "completed"]
    assert [p.hyperparameters["client_lr"] for p in points] == [0.1, 1e30, 0.3]
    built = program(task, make, Plan(3, LocalWork(4)), ("client_lr",))
    assert built.timings["compile"] > 0
    with pytest.raises(fx.UsageError, match="client_lr: -1"):
        fx.sweep(task, fx.fedavg, {"client_lr": [0.1, -1.0]})
    with pytest.raises(fx.UsageError, match="rounds: 0 given"):
        fx.sweep(task, fx.fedavg, {"client_lr": [0.1]}, rounds=0)


def test_a_state_that_changes_form_is_refused_by_name() -> None:
    base = fx.fedavg(0.1)
    grown = base._replace(
        server_update=lambda s, m, c: s._replace(params=jax.tree.map(lambda a: a.astype("bfloat16"), s.params))
    )
    with pytest.raises(fx.UsageError, match=r"server_update.*hidden.*bfloat16.*allowed is no change"):
        fx.run(small_task(), grown, rounds=1, cohort_size=2)


def test_schedules_are_evaluated_on_the_server_and_travel() -> None:
    task = small_task()
    scheduled = fx.fedavg(optax.exponential_decay(0.3, 1, 0.5), server_lr=lambda r: 1.0 + r)
    want = oracle.run(
        EngineProblem(task, Plan(3, LocalWork(4)), SEED, ROUNDS), "fedavg", lambda r: 0.3 * 0.5**r, lambda r: 1.0 + r
    )
    got = rounds_of(task, scheduled)
    assert max(errors([flatten(jax.tree.map(np.asarray, p)) for p in got], want).values()) < TOLERANCE["float32"]
    plan = Plan(3, LocalWork(4))
    constant = program(task, Fixed(fx.fedavg(0.3)), plan)
    travels = program(task, Fixed(scheduled), plan)
    assert (travels.bytes_down - constant.bytes_down, travels.bytes_up - constant.bytes_up) == (4, 0)


LARGE = {"init": lambda key: {"w": jnp.zeros(SMALL_MODEL + 1)}}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the choice on a CPU")
@pytest.mark.parametrize(
    ("sizes", "changes", "options", "in_turn"),
    [
        ((4, 4, 4), {}, {}, False),
        ((4, 4, 5), {}, {}, True),
        ((4, 4, 5), {}, {"work": LocalWork(2, steps=3)}, False),
        ((4, 4, 4), {}, {"mesh": 2}, True),
        ((4, 4, 4), LARGE, {}, True),
        ((4, 4, 4), {}, {"cohort_size": 200}, True),
        ((4, 4, 4), {}, {"client_loop": "loop"}, True),
        ((4, 4, 5), LARGE, {"client_loop": "vmap"}, False),
    ],
)
def test_loop_or_vmap_by_model(
    sizes: tuple[int, ...], changes: dict[str, Any], options: dict[str, Any], in_turn: bool
) -> None:
    plan = Plan(**{"cohort_size": 2, "work": LocalWork(2)} | options)
    assert runs_sequentially(plan, small_task(sizes=sizes, **changes)) is in_turn


@pytest.mark.filterwarnings("error:Casting complex values")
@pytest.mark.parametrize("options", [{"engine": "eager"}, {"client_loop": "loop"}, {"client_loop": "vmap"}], ids=repr)
def test_complex_uploads_keep_both_parts(options: dict[str, Any]) -> None:
    """Each client sends its loss times some complex numbers: their mean is the mean loss times these."""
    base, factors = fx.fedavg(0.3), np.asarray([1 + 2j, 3j], np.complex64)

    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        upload, client, loss = base.client_update(grad_fn, message, client, batches)
        return (upload, loss * factors), client, loss

    algorithm = base._replace(
        init=lambda params: (base.init(params), jnp.zeros(2, jnp.complex64)),
        broadcast=lambda server: base.broadcast(server[0]),
        client_update=client_update,
        server_update=lambda server, mean, cohort: (base.server_update(server[0], mean[0], cohort), mean[1]),
        params=lambda server: base.params(server[0]),
    )
    result = fx.run(small_task(), algorithm, rounds=2, cohort_size=3, batch_size=4, **options)
    np.testing.assert_allclose(result.state[1], result.history[-1]["train_loss"] * factors, rtol=1e-5)

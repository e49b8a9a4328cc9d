"""Buffered asynchronous rounds: the schedule, and the round that follows it."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.batches import LocalWork
from fedoptax.engine.plan import RunOptions, make_plan
from fedoptax.engine.sampling import round_key
from fedoptax.engine.schedule import client_speeds, make_schedule
from fedoptax.experiments.build import build
from fedoptax.experiments.presets import find_preset
from fedoptax.storage.history import History
from oracles.compare import BITES, TOLERANCE, errors
from oracles.problem import Tree, flatten, grad
from refusals import refusals, refused
from small import batch_maker, line, real_examples, small_task

SEED, ROUNDS = 11, 8
SPEEDS = np.array([1.0, 3.3, 0.71, 9.7, 1.9, 4.1, 0.37])
OPTIONS: dict[str, Any] = {"rounds": ROUNDS, "cohort_size": 2, "batch_size": 4, "seed": SEED, "speeds": "lognormal:1"}
FEDADAM = fx.fedadam(0.1, 0.05)


@pytest.fixture
def table(tmp_path):
    """Speeds of the small task's clients, in another order than theirs."""
    lines = [f"{i},{SPEEDS[i]}" for i in (3, 0, 6, 1, 2, 5, 4)]
    path = tmp_path / "speeds.csv"
    path.write_text("\n".join(["client,seconds", *lines]) + "\n")
    return str(path)


def run(algorithm: fx.FedAlgorithm = FEDADAM, **changes: Any) -> fx.RunResult:
    return fx.run(line(), algorithm, **(OPTIONS | {"asynchronous": 5} | changes))


def fedbuff(
    task: fx.Task, buffer: int, server_rate: float, exponent: float, is_fedasync: bool = False
) -> list[tuple[Tree, float]]:
    """FedBuff (Nguyen et al. 2022), Algorithms 1 and 2, with all clients at work: x₁, x₂, … and when each was made.

    A client whose upload waits in the buffer begins again after the server's step. FedAsync (Xie et al. 2019) mixes the
    client's parameters with the server's of now, not with those that the client was sent.
    """
    make_batches, key = batch_maker(task, LocalWork(4)), jax.random.key(SEED)
    work = SPEEDS * -(-task.clients.sizes // 4)
    x = flatten(jax.tree.map(np.asarray, task.init(key)))
    sent = {i: (x, 0, work[i]) for i in range(7)}  # what a client works on: model, its number, when it is done
    path: list[tuple[Tree, float]] = []
    while len(path) < ROUNDS:
        received: list[tuple[int, Tree, int]] = []
        while len(received) < buffer:
            i = min(sent, key=lambda i: sent[i][2])
            model, born, now = sent.pop(i)
            received.append((i, model, len(path) - born))
        delta = {n: np.zeros_like(x[n]) for n in x}
        total = sum(task.clients.sizes[i] for i, _, _ in received)
        for i, model, staleness in received:
            y = model
            for batch in make_batches(i, round_key(key, len(path))):
                g = grad(y, real_examples(batch.examples))
                y = {n: y[n] - 0.3 * g[n] for n in y}
            origin = x if is_fedasync else model
            share = task.clients.sizes[i] / total * (1 + staleness) ** -exponent
            delta = {n: delta[n] + share * (y[n] - origin[n]) for n in x}
        x = {n: x[n] + server_rate * delta[n] for n in x}
        path.append((x, now))
        sent |= {i: (x, len(path), now + work[i]) for i, _, _ in received}
    return path


def trajectory(algorithm: fx.FedAlgorithm, **changes: Any) -> tuple[list[Tree], History]:
    task = small_task(dtype="float64")
    results = [
        fx.run(task, algorithm, **(OPTIONS | {"asynchronous": 7, "rounds": r + 1} | changes)) for r in range(ROUNDS)
    ]
    return [flatten(jax.tree.map(np.asarray, result.params)) for result in results], results[-1].history


@pytest.mark.parametrize("exponent", [0.5, pytest.param(0.0, marks=pytest.mark.long)])
def test_asynchronous_rounds_equal_fedbuff(table, exponent):
    with jax.enable_x64(True):
        task = small_task(dtype="float64")
        want = fedbuff(task, 3, 0.7, exponent)
        got, history = trajectory(fx.fedavg(0.3, 0.7), cohort_size=3, staleness_exponent=exponent, speeds=table)
        other = fedbuff(task, 3, 0.7, 0.5 - exponent)
    assert max(errors(got, [x for x, _ in want]).values()) < TOLERANCE["float64"]
    assert max(errors(got, [x for x, _ in other]).values()) > BITES  # the weights matter
    np.testing.assert_allclose(np.cumsum(history.column("virtual_seconds")), [now for _, now in want], rtol=1e-6)
    assert max(history.column("staleness")) > 1


def test_uploads_of_parameters_are_mixed_as_in_fedasync(table):
    base = fx.fedavg(0.3)

    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        upload, client, loss = base.client_update(grad_fn, base.broadcast(base.init(message)), client, batches)
        return jax.tree.map(jax.numpy.add, message, upload.delta), client, loss

    same: dict[str, Any] = dict.fromkeys(("init", "broadcast", "params"), lambda tree: tree)
    changes = {"client_update": client_update, "server_update": lambda server, mean, cohort: mean}
    sends_parameters = base._replace(**same, **changes)
    with jax.enable_x64(True):
        want = fedbuff(small_task(dtype="float64"), 1, 1.0, 0.5, is_fedasync=True)
        got, _ = trajectory(sends_parameters, cohort_size=1, speeds=table)
    assert max(errors(got, [x for x, _ in want]).values()) < TOLERANCE["float64"]


def test_the_schedule_is_that_of_clients_at_work():
    """Followed by its rows alone: who was sent which model, when, and that its slot still held it."""
    n, buffer, concurrency, rounds = 12, 3, 7, 200
    seconds = np.random.default_rng(0).lognormal(0, 1, n)
    made = make_schedule(seconds, buffer, concurrency, rounds, 4)
    ends = np.cumsum(made.seconds)
    begun: dict[int, int] = dict.fromkeys(range(n), 0)  # the earliest step whose model a client can have been sent
    model_in: dict[int, int] = {}
    for step in range(rounds):
        clients, starts = made.clients[step], step - made.staleness[step]
        assert len(set(clients.tolist())) == buffer and np.all(np.diff(clients) > 0)
        model_in[int(made.slot[step])] = step
        assert [model_in[int(slot)] for slot in made.slots[step]] == starts.tolist()
        for client, start in zip(clients.tolist(), starts.tolist()):
            assert begun[client] <= start <= step
            earliest = 0.0 if start == 0 else ends[start - 1]
            assert ends[step] >= earliest + seconds[client] - 1e-9
            begun[client] = step + 1
    starts = (np.arange(rounds)[:, None] - made.staleness).ravel()
    np.testing.assert_array_equal(np.bincount(starts)[:100], made.sent[:100])  # all of which have been answered
    assert made.slot.max() < concurrency
    np.testing.assert_allclose(made.weights, (1 + made.staleness) ** -0.5)
    # as many work at any time as may: so much work is done
    assert abs(seconds[made.clients].sum() / ends[-1] - concurrency) < 0.1 * concurrency
    shorter = make_schedule(seconds, buffer, concurrency, 50, 4)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:50]), shorter, made)
    other = make_schedule(seconds, buffer, concurrency, 50, 5)
    assert not np.array_equal(other.clients, shorter.clients)


def test_clients_of_equal_speed_are_drawn_equally_often():
    made = make_schedule(np.ones(20), 2, 5, 4000, 1)
    counts = Counter(made.clients.ravel().tolist())
    assert len(counts) == 20 and max(abs(counts[i] - 400) for i in range(20)) < 80


def test_a_client_keeps_its_speed_and_a_table_is_read_by_client(table):
    key = jax.random.key(3)
    speeds = client_speeds("lognormal:0.5", key, 20_000)
    assert np.log(speeds).std() == pytest.approx(0.5, rel=0.03)
    np.testing.assert_array_equal(client_speeds("lognormal:0.5", key, 9), speeds[:9])
    np.testing.assert_allclose(client_speeds(table, key, 7), SPEEDS, rtol=1e-6)
    np.testing.assert_array_equal(client_speeds("lognormal:0", key, 3), np.ones(3))


@pytest.mark.parametrize(
    "text", ["client,time\n0,1\n", *("client,seconds\n0,1\n" + row for row in ("0,2", "1,0", "1,"))]
)
def test_a_table_of_speeds_that_does_not_fit_is_refused(tmp_path, text):
    path = tmp_path / "speeds.csv"
    path.write_text(text)
    refused(lambda: client_speeds(str(path), jax.random.key(0), 2), "client" if "0,2" in text else "seconds")


@pytest.mark.parametrize("algorithm", [FEDADAM, pytest.param(fx.fedavgm(0.1, 0.5), marks=pytest.mark.long)])
def test_without_staleness_it_is_the_synchronous_round(algorithm):
    """All clients at work and in every step: the same bits, and the same virtual time."""
    a = run(algorithm, cohort_size=8, asynchronous=8, client_loop="loop", speeds="lognormal:1")
    b = run(algorithm, cohort_size=8, asynchronous=None, client_loop="loop", speeds="lognormal:1")
    jax.tree.map(np.testing.assert_array_equal, a.state, b.state)
    assert a.history.column("train_loss") == b.history.column("train_loss")
    np.testing.assert_allclose(a.history.column("virtual_seconds"), b.history.column("virtual_seconds"), rtol=1e-6)
    assert set(a.history.column("staleness")) == {0.0}


STATEFUL = {"scaffold", "local_amsgrad", "fedlamb", "stem", "fafed", "naive_adaptive", "feddyn", "fadamgc"}
STATEFUL |= {"diloco", "muloco", "scaffold_adam"}


def test_every_algorithm_has_a_plan_whose_clients_keep_nothing_and_the_others_are_refused_by_name():
    options = RunOptions(asynchronous=5, cohort_size=2)
    for name in fx.ALGORITHMS:
        algorithm = build(name, find_preset("digits", name)[0])
        if name in STATEFUL:
            refused(lambda: make_plan(options, line(), algorithm, name), "asynchronous", name)  # noqa: B023
        else:
            assert make_plan(options, line(), algorithm, name).concurrency == 5
    refused(lambda: make_plan(options, line(), fx.mime(0.1), "mime"), "asynchronous", "exchange")


PRIVATE = fx.with_privacy(fx.fedavg(0.1), clip=1.0, noise_multiplier=1.0, delta=1e-5)


test_what_makes_no_sense_is_refused_by_name = refusals([
    (partial(run, asynchronous=9), "asynchronous must be <= 8"), (partial(run, asynchronous=0), "asynchronous"),
    (partial(run, faults={"dropout": 0.1}), "asynchronous.*faults"),
    (partial(run, aggregate="median"), "asynchronous.*aggregate"),
    (partial(run, client_states="host"), "asynchronous.*client_states"),
    (partial(run, staleness_exponent=-1), "staleness_exponent"),
    *((partial(run, speeds=text), "speeds") for text in ("fast", "lognormal:wide", "lognormal:-1")),
    (partial(run, fx.scaffold(0.1), label="scaffold"), "asynchronous.*scaffold"),
    (partial(run, PRIVATE), "asynchronous.*private"),
])  # fmt: skip


def test_speeds_give_virtual_time_to_synchronous_rounds_and_to_a_deadline():
    """A round lasts as long as its slowest client; the results stay as they were."""
    plain, timed = run(asynchronous=None, speeds=None), run(asynchronous=None)
    np.testing.assert_array_equal(plain.params, timed.params)
    assert "virtual_seconds" not in plain.history[0]
    late, slow = (run(asynchronous=None, faults=faults) for faults in ({"deadline": 2.0}, {"step_seconds": 3.0}))
    for row, late_row, slow_row in zip(timed.history, late.history, slow.history):
        assert late_row["virtual_seconds"] == pytest.approx(min(row["virtual_seconds"], 2.0))
        assert slow_row["virtual_seconds"] == pytest.approx(3 * row["virtual_seconds"])

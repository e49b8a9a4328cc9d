"""What is believed of an upload's size: uneven honest clients are never left out, greater lies are."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from federations import deployment, task_of
from fedoptax.data.federated import FederatedData
from fedoptax.deploy.server import Reply, UploadBound, next_state
from fedoptax.engine.batches import LocalWork, client_batches, task_grad_fn
from fedoptax.engine.sampling import round_key
from fedoptax.tasks.task import Task

SIZES, WORK, ROUNDS = (1, 1, 2, 5, 10, 50, 100, 1000, 3000, 10_000), LocalWork(50, 1), 20


@cache
def uneven_task() -> Task:
    """Digits, drawn with replacement: each client has two classes, clients of one example the hardest of theirs."""
    rng, examples = np.random.default_rng(0), task_of().clients.examples
    parts = []
    for client, size in enumerate(SIZES):
        rows = np.flatnonzero(np.isin(examples["y"], [client, (client + 1) % 10]))
        parts.append(rng.choice(rows, size))
    clients = [{name: array[rows] for name, array in examples.items()} for rows in parts]
    clients[0]["y"] = (clients[0]["y"] + 1) % 10  # its only example has a wrong label
    return replace(task_of(), clients=FederatedData.from_clients(clients))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "scaffold" else pytest.mark.long) for name in fx.ALGORITHMS]
)
def test_no_honest_client_is_left_out_however_uneven_the_sizes(name):
    rates = {"hyperparameters": {"lr": 0.01, "max_steps": 255}} if name == "fedlion" else {}
    algorithm, task = deployment(name, **rates).build_algorithm(), uneven_task()
    grad_fn = task_grad_fn(task)
    examples = {field: jnp.asarray(array) for field, array in task.clients.examples.items()}

    @jax.jit
    def update(message, state, client, offset, size, round):  # type: ignore[no-untyped-def]
        key = jax.random.fold_in(round_key(jax.random.key(0), round), client)
        batches = client_batches(examples, offset, size, key, WORK, max(SIZES))
        return algorithm.client_update(grad_fn, message, state, batches)

    params = task.init(jax.random.key(0))
    server, states = algorithm.init(params), [algorithm.init_client(params)] * len(SIZES)
    rng, bound = np.random.default_rng(1), UploadBound(10.0, WORK)
    for round in range(ROUNDS):
        cohort = sorted(rng.choice(len(SIZES), int(rng.integers(2, len(SIZES) + 1)), replace=False))
        message, replies = algorithm.broadcast(server), dict[int, Reply]()
        for i in cohort:
            place = np.int32(i), np.int32(task.clients.offsets[i]), np.int32(SIZES[i]), np.int32(round)
            upload, states[i], loss = update(message, states[i], *place)
            decoded = algorithm.decode(upload) if algorithm.decode else upload
            replies[i] = Reply(jax.device_get(decoded), float(loss), SIZES[i])
        assert bound.find_outliers(replies) == {}, f"round {round}, cohort {cohort}"
        bound = bound.learn(replies)
        server, _, is_finite = next_state(algorithm, server, list(replies.values()), algorithm.weighting, len(SIZES))
        assert is_finite


def reply(size: float, examples: int = 50, loss: float = 1.0) -> Reply:
    return Reply({"w": np.array([size, 0.0])}, loss, examples)


def test_a_lie_of_ten_times_the_others_is_named_with_both_numbers_and_moves_the_bound_no_further():
    bound = UploadBound(10.0, WORK)
    for _ in range(20):
        replies = {0: reply(2.0), 1: reply(3.0), 2: reply(29.9)}
        assert bound.find_outliers(replies) == {}
        bound = bound.learn(replies)
        replies[2] = reply(30.1)
        (reason,) = bound.find_outliers(replies).values()
        assert reason.startswith("upload: norm 30.1 instead of at most 30, ")
    assert bound.find_outliers({0: reply(0.1), 1: reply(25.0)}) == {}  # as in rounds before
    assert set(bound.find_outliers({0: reply(0.1), 1: reply(31.0)})) == {1}


def test_who_takes_more_steps_may_go_further_and_a_loss_is_no_upload():
    bound = UploadBound(10.0, LocalWork(50, 2))
    replies = {0: reply(2.0, 1), 1: reply(2.0, 50), 2: reply(790.0, 2000)}
    assert bound.find_outliers(replies) == {}
    assert set(bound.find_outliers(replies | {2: reply(810.0, 2000)})) == {2}
    assert bound.find_outliers(replies | {2: reply(2.0, 50, 999.0)}) == {}
    (reason,) = bound.find_outliers(replies | {2: reply(2.0, 50, 1001.0)}).values()
    assert reason.startswith("train-loss: 1e+03 instead of at most 1e+03")
    assert UploadBound(0.0, WORK).find_outliers(replies | {2: reply(1e30)}) == {}

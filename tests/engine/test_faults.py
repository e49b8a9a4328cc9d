"""Clients that fail: who, how often, and what the round makes of it."""

import json
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.batches import LocalWork, count_local_steps, task_grad_fn
from fedoptax.engine.eager import run_round
from fedoptax.engine.faults import COUNTS, Outcome, as_faults, sample_outcomes
from fedoptax.engine.sampling import round_key, sample_cohort
from fedoptax.engine.schedule import client_speeds
from refusals import refusals, refused
from small import LINE_SIZES as SIZES
from small import batch_maker, line
from small_rounds import close

EVERYTHING = fx.Faults(dropout=0.2, deadline=2.6, speed_spread=0.6)
OPTIONS: dict[str, Any] = {"cohort_size": 6, "batch_size": 4, "seed": 4, "weighting": "examples"}
ROUNDS = 8
SCAFFOLD = fx.scaffold(0.1)


def run(algorithm: fx.FedAlgorithm, rounds: int = ROUNDS, faults: Any = EVERYTHING, **changes: Any) -> fx.RunResult:
    return fx.run(line(), algorithm, rounds=rounds, faults=faults, **(OPTIONS | changes))


def outcomes(round: int) -> tuple[np.ndarray, Outcome]:
    key = jax.random.key(OPTIONS["seed"])
    cohort = sample_cohort(key, round, len(SIZES), OPTIONS["cohort_size"])
    steps = count_local_steps(jnp.asarray(SIZES)[cohort], LocalWork(OPTIONS["batch_size"]))
    rates = EVERYTHING.rates(client_speeds(f"lognormal:{EVERYTHING.speed_spread}", key, len(SIZES)))
    return np.asarray(cohort), jax.tree.map(np.asarray, sample_outcomes(rates, key, round, cohort, steps))


def sends_nan(made: fx.FedAlgorithm, limit: float) -> fx.FedAlgorithm:
    """The algorithm, whose uploads are NaN where the training loss is above a limit."""

    def client_update(*arguments: Any) -> Any:
        upload, client, loss = made.client_update(*arguments)
        return jax.tree.map(lambda a: jnp.where(loss > limit, jnp.nan, a), upload), client, loss

    return made._replace(client_update=client_update)


def test_clients_fail_as_often_as_asked_and_independently():
    n = 20_000
    key = jax.random.key(1)
    rates = fx.Faults(dropout=0.3, deadline=6.0, step_seconds=2).rates(client_speeds("lognormal:0.5", key, n))
    draw = jax.jit(lambda r: sample_outcomes(rates, key, r, jnp.arange(n), jnp.full(n, 2)))
    first, second = (jax.tree.map(np.asarray, draw(r)) for r in (0, 1))
    slack = 4 * math.sqrt(0.25 / n)
    for drawn in (first, second):
        assert abs(drawn.dropped.mean() - 0.3) < slack and not (drawn.late & drawn.dropped).any()
        z = math.log(6 / 4) / 0.5  # late: ln(2 · 2) + N(0, 0.5²) > ln 6, among those that did not drop out
        assert abs(drawn.late[~drawn.dropped].mean() - 0.5 * math.erfc(z / math.sqrt(2))) < 1.3 * slack
    assert abs((first.dropped & second.dropped).mean() - 0.09) < slack  # another round, another draw
    assert abs((first.dropped[::2] & first.dropped[1::2]).mean() - 0.09) < 1.5 * slack  # and another client
    assert np.log(first.seconds / 4).std() == pytest.approx(0.5, rel=0.03)
    np.testing.assert_array_equal(first.seconds, second.seconds)  # the speed is the client's own


def test_a_clients_outcome_does_not_depend_on_the_cohort():
    key, rates = jax.random.key(1), EVERYTHING.rates(np.linspace(0.3, 3, 12))
    all_ = sample_outcomes(rates, key, 5, jnp.arange(12), jnp.full(12, 3))
    some = sample_outcomes(rates, key, 5, jnp.asarray([2, 11, 7]), jnp.full(3, 3))
    for a, b in zip(all_, some):
        np.testing.assert_array_equal(np.asarray(a)[[2, 11, 7]], np.asarray(b))


def test_a_round_with_faults_is_a_round_of_the_clients_that_count():
    """Against `run_round` over them alone: weights renormalised, |S| their number, N all, other states unchanged."""
    task, base, key, make_batches = line(), SCAFFOLD, jax.random.key(OPTIONS["seed"]), batch_maker(line(), LocalWork(4))
    limit = 4.5
    made = sends_nan(base, limit)
    result = fx.run(task, made, rounds=ROUNDS, faults=EVERYTHING, **OPTIONS)
    server, states = base.init(jnp.full(3, 2.0)), [base.init_client(jnp.full(3, 2.0)) for _ in SIZES]
    grad_fn, rejected = jax.jit(task_grad_fn(task)), 0
    for r in range(ROUNDS):
        cohort, drawn = outcomes(r)
        batches, losses = {}, {}
        for i in map(int, cohort[drawn.answers]):
            batches[i] = make_batches(i, round_key(key, r))
            losses[i] = float(base.client_update(grad_fn, base.broadcast(server), states[i], batches[i])[2])
        counting, row = [i for i in batches if losses[i] <= limit], result.history[r]
        rejected += len(batches) - len(counting)
        assert [row[name] for name in COUNTS] == [
            len(counting), drawn.dropped.sum(), drawn.late.sum(), len(batches) - len(counting)
        ]  # fmt: skip
        seconds = 2.6 if drawn.late.any() else drawn.seconds[drawn.answers].max()
        assert row["virtual_seconds"] == pytest.approx(seconds, rel=1e-5)
        assert row["bytes_down"] == 6 * 24 and row["bytes_up"] == 24 * drawn.answers.sum()
        if not counting:
            assert row["train_loss"] is None
            continue
        server, new, info = run_round(
            base, grad_fn, server, [states[i] for i in counting], [batches[i] for i in counting],
            [SIZES[i] for i in counting], num_clients=len(SIZES),
        )  # fmt: skip
        assert row["train_loss"] == pytest.approx(float(info.train_loss), rel=1e-5)
        for i, state in zip(counting, new):
            states[i] = state
    assert rejected > 0
    close(result.params, base.params(server))
    close(result.clients.tree, jnp.stack(states))


@pytest.mark.parametrize(
    ("faults", "which"),
    [
        ({"dropout": 1 - 1e-7}, "dropped"),
        ({"deadline": 1e-6}, "late"),
        pytest.param({}, "rejected", marks=pytest.mark.long),
    ],
)
def test_a_round_without_any_upload_changes_nothing(faults, which):
    made = sends_nan(SCAFFOLD, -1.0) if which == "rejected" else SCAFFOLD
    result = fx.run(line(), made, rounds=3, faults=faults, **OPTIONS)
    assert result.status == "completed" and len(result.history) == 3
    np.testing.assert_array_equal(result.params, np.full(3, 2.0))
    np.testing.assert_array_equal(result.clients.tree, np.zeros((8, 3)))
    for row in result.history:
        assert row["train_loss"] is None and row["participants"] == 0 and row[which] == 6
        assert row["bytes_up"] == (144 if which == "rejected" else 0)
        assert row.get("virtual_seconds") == (pytest.approx(1e-6) if which == "late" else None)


WRONG: list[Any] = [
    {"dropout": 1.5}, {"dropout": 1}, {"dropout": True}, {"dropout": "often"}, {"speed_spread": -1}, {"deadline": 0},
    {"step_seconds": 0.0}, {"drop": 0.1}, {"scaled": 0.1}, 0.3,
]  # fmt: skip


test_wrong_values_are_refused = refusals((partial(as_faults, wrong), "faults") for wrong in WRONG)


def test_epsilon_is_in_every_row_and_in_the_summary(tmp_path):
    asked: list[tuple[int, int, int]] = []

    def epsilon(rounds: int, cohort_size: int, num_clients: int) -> float:
        asked.append((rounds, cohort_size, num_clients))
        return rounds / 4 if rounds > 1 else math.inf

    private = SCAFFOLD._replace(epsilon=epsilon)
    options = OPTIONS | {"weighting": "uniform"}
    result = fx.run(line(), private, rounds=5, out=tmp_path / "a", **options)
    assert result.history.column("epsilon") == [None, 0.5, 0.75, 1.0, 1.25]
    assert asked == [(r, 6, 8) for r in range(1, 6)]
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["final"]["epsilon"] == 1.25
    refused(lambda: fx.run(line(), fx.mime(0.1), rounds=2, faults={"dropout": 0.1}, cohort_size=2), "two exchanges")
    refused(lambda: fx.run(line(), fx.mime(0.1), rounds=2, aggregate="krum:1", cohort_size=6), "two exchanges")

"""Clients that fail: who, how often, what the round makes of it; the same in every engine and after resuming."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_experiment import assert_same_results

import fedoptax as fx
from fedoptax.engine.batches import LocalWork, client_batches, local_steps_of, task_grad_fn
from fedoptax.engine.data import device_data
from fedoptax.engine.eager import run_round
from fedoptax.engine.faults import COUNTS, Fate, fate_of_round, parse_faults
from fedoptax.engine.sampling import cohort_of_round, round_key
from fedoptax.experiments.result import DivergedError
from fedoptax.tasks.task import Task, masked_mean

SIZES = (7, 3, 11, 1, 6, 4, 9, 5)
EVERYTHING = fx.Faults(dropout=0.2, deadline=2.6, nonfinite=0.15, scaled=0.25, scale=1.5, speed_spread=0.6)
OPTIONS: dict[str, Any] = {"cohort_size": 6, "batch_size": 4, "seed": 4, "weighting": "examples"}
ROUNDS = 8


@cache
def line() -> Task:
    """One vector to be learned, as the mean of the clients' vectors: small, so that XLA compiles it quickly."""
    rng = np.random.default_rng(0)
    clients = [{"x": (rng.normal(size=(n, 3)) + i / 4).astype(np.float32)} for i, n in enumerate(SIZES)]

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        return masked_mean(jnp.sum(jnp.square(params - batch["x"]), axis=1), {"mask": batch["mask"]})

    data = fx.FederatedData.from_clients(clients)
    return Task("line", lambda key: jnp.full(3, 2.0), loss, lambda p, b: {}, data, label=None, spec={"made": "here"})


@cache
def algorithm(name: str) -> fx.FedAlgorithm:
    made = {
        "fedadam": lambda: fx.fedadam(0.1, 0.05),
        "scaffold": lambda: fx.scaffold(0.1),
        "fedlamb": lambda: fx.fedlamb(0.05),
        "fafed": lambda: fx.fafed(lambda t: 0.05 / (1 + t), rho=1.0),
    }
    return made[name]()


def run(name: str, rounds: int = ROUNDS, faults: Any = EVERYTHING, **changes: Any) -> fx.RunResult:
    return fx.run(line(), algorithm(name), rounds=rounds, faults=faults, **(OPTIONS | changes))


def fate(round: int, faults: fx.Faults = EVERYTHING) -> tuple[np.ndarray, Fate]:
    key = jax.random.key(OPTIONS["seed"])
    cohort = cohort_of_round(key, round, len(SIZES), OPTIONS["cohort_size"])
    steps = local_steps_of(jnp.asarray(SIZES)[cohort], LocalWork(OPTIONS["batch_size"]))
    drawn = fate_of_round(faults.rates(), key, round, cohort, steps)
    return np.asarray(cohort), jax.tree.map(np.asarray, drawn)


def assert_close(a: Any, b: Any, rtol: float = 1e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=1e-6), a, b)


# --- who fails ---


def test_clients_fail_as_often_as_asked_and_independently() -> None:
    n = 20_000
    faults = fx.Faults(
        dropout=0.3, nonfinite=0.1, scaled=0.2, deadline=6.0, step_seconds=2, speed_spread=0.5, jitter=0.2
    )
    draw = jax.jit(lambda r: fate_of_round(faults.rates(), jax.random.key(1), r, jnp.arange(n), jnp.full(n, 2)))
    first, second = (jax.tree.map(np.asarray, draw(r)) for r in (0, 1))
    slack = 4 * math.sqrt(0.25 / n)
    for f in (first, second):
        assert abs(f.dropped.mean() - 0.3) < slack
        assert abs(f.nonfinite.mean() - 0.1) < slack and abs(f.scaled.mean() - 0.2) < slack
        assert abs((f.nonfinite & f.scaled).mean() - 0.02) < slack and not (f.late & f.dropped).any()
        # late: ln(2 · 2) + N(0, 0.5² + 0.2²) > ln 6, among those who did not drop out
        z = math.log(6 / 4) / math.hypot(0.5, 0.2)
        assert abs(f.late[~f.dropped].mean() - 0.5 * math.erfc(z / math.sqrt(2))) < 1.3 * slack
    assert abs((first.dropped & second.dropped).mean() - 0.09) < slack  # another round, another draw
    logs = np.log([first.seconds / 4, second.seconds / 4])
    assert logs[0].std() == pytest.approx(math.hypot(0.5, 0.2), rel=0.03)
    assert (logs[0] - logs[1]).std() == pytest.approx(0.2 * math.sqrt(2), rel=0.03)  # the speed is the client's own


def test_a_clients_fate_does_not_depend_on_who_else_is_there() -> None:
    key, rates = jax.random.key(1), EVERYTHING.rates()
    all_ = fate_of_round(rates, key, 5, jnp.arange(12), jnp.full(12, 3))
    some = fate_of_round(rates, key, 5, jnp.asarray([2, 11, 7]), jnp.full(3, 3))
    for a, b in zip(all_, some):
        np.testing.assert_array_equal(np.asarray(a)[[2, 11, 7]], np.asarray(b))


def test_nobody_fails_without_rates_and_everybody_with_rate_1() -> None:
    never = fate(0, fx.Faults())[1]
    assert not (never.dropped | never.late | never.nonfinite | never.scaled).any()
    always = fate(0, fx.Faults(dropout=1.0, nonfinite=1.0, scaled=1.0))[1]
    assert always.dropped.all() and always.nonfinite.all() and always.scaled.all()


# --- what a round makes of it ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "aggregate"),
    [
        ("scaffold", "mean"),
        pytest.param("fedlamb", "median", marks=pytest.mark.long),
        pytest.param("fafed", "norm_clipping:4.0", marks=pytest.mark.long),
        pytest.param("fedadam", "krum:0,keep=2", marks=pytest.mark.long),
    ],
)
def test_eager_and_compiled_loop_and_vmap_are_one(name: str, aggregate: str) -> None:
    eager = run(name, aggregate=aggregate, engine="eager")
    counts = {column: eager.history.column(column) for column in COUNTS}
    assert all(sum(row) > 0 for row in counts.values())  # everything happened
    for loop in ("auto", "vmap") if name == "fedlamb" else ("auto",):
        compiled = run(name, aggregate=aggregate, client_loop=loop)
        for what in ("params", "state", "clients"):
            a, b = (getattr(r, what) if what != "clients" else r.clients.tree for r in (eager, compiled))
            assert_close(a, b, 1e-4)
        assert {column: compiled.history.column(column) for column in COUNTS} == counts
        for column in ("train_loss", "virtual_seconds"):
            a, b = (np.asarray(r.history.column(column), float) for r in (eager, compiled))
            np.testing.assert_allclose(a, b, rtol=1e-4)


def test_a_round_is_one_of_those_whose_uploads_count() -> None:
    """Against `run_round` over them alone: weights renormalised, |S| their number, N all, the others' states kept."""
    faults = fx.Faults(dropout=0.2, deadline=2.6, nonfinite=0.15, speed_spread=0.6)
    result = run("scaffold", faults=faults)
    task, made, key, data = line(), algorithm("scaffold"), jax.random.key(OPTIONS["seed"]), device_data(line())
    server, states = made.init(jnp.full(3, 2.0)), [made.init_client(jnp.full(3, 2.0)) for _ in SIZES]
    grad_fn = jax.jit(task_grad_fn(task))
    for r in range(ROUNDS):
        cohort, f = fate(r, faults)
        counting = [int(i) for i in cohort[f.answers & ~f.nonfinite]]
        row = result.history[r]
        assert [row[name] for name in COUNTS] == [
            len(counting), f.dropped.sum(), f.late.sum(), (f.answers & f.nonfinite).sum()
        ]  # fmt: skip
        assert row["virtual_seconds"] == pytest.approx(2.6 if f.late.any() else f.seconds[f.answers].max(), rel=1e-5)
        assert row["bytes_down"] == 6 * 24 and row["bytes_up"] == 24 * f.answers.sum()
        batches = []
        for i in counting:
            own = jax.random.fold_in(round_key(key, r), i)
            made_batches = client_batches(data.examples, data.offsets[i], data.sizes[i], own, LocalWork(4), 11)
            batches.append([made_batches.get(k) for k in range(int(made_batches.num_steps))])
        weights = [SIZES[i] for i in counting]
        server, new, info = run_round(
            made, grad_fn, server, [states[i] for i in counting], batches, weights, num_clients=len(SIZES)
        )
        assert row["train_loss"] == pytest.approx(float(info.train_loss), rel=1e-5)
        for i, state in zip(counting, new):
            states[i] = state
    assert_close(result.params, made.params(server))
    assert_close(result.clients.tree, jnp.stack(states))


@pytest.mark.parametrize("faults", [{"dropout": 1.0}, {"nonfinite": 1.0}, {"deadline": 1e-6}], ids=str)
def test_a_round_without_anybody_changes_nothing_and_the_run_goes_on(faults: dict[str, float]) -> None:
    result = run("scaffold", rounds=3, faults=faults)
    assert result.status == "completed" and len(result.history) == 3
    np.testing.assert_array_equal(result.params, np.full(3, 2.0))
    np.testing.assert_array_equal(result.clients.tree, np.zeros((8, 3)))
    which = dict(zip(("dropout", "nonfinite", "deadline"), ("dropped", "rejected", "late")))[next(iter(faults))]
    for row in result.history:
        assert row["train_loss"] is None and row["participants"] == 0 and row[which] == 6
        assert row["bytes_up"] == (144 if which == "rejected" else 0)
        assert row.get("virtual_seconds") == (pytest.approx(1e-6) if which == "late" else None)


def test_too_few_for_krum_change_nothing() -> None:
    result = run("fedadam", aggregate="krum:0,keep=2")
    before = None
    for r, row in enumerate(result.history):
        assert (row["train_loss"] is None) == (row["participants"] < 4)
        before = before or (r if row["train_loss"] is None else None)
    assert before is not None  # it happened
    a, b = (run("fedadam", rounds=r, aggregate="krum:0,keep=2") for r in (before, before + 1) if r)
    np.testing.assert_array_equal(a.params, b.params)


def test_a_server_that_diverges_is_still_told() -> None:
    """Uploads that are finite, and squares of them that are not."""
    with pytest.raises(DivergedError, match="diverged in round 1") as error:
        run("fedadam", faults=fx.Faults(scaled=1.0, scale=1e30), aggregate="krum:0,keep=2")
    assert len(error.value.result.history) == 0
    np.testing.assert_array_equal(error.value.result.params, np.full(3, 2.0))


def test_without_faults_nothing_is_counted() -> None:
    result = fx.run(line(), algorithm("scaffold"), rounds=2, **OPTIONS)
    assert set(result.history[0]) == {"round", "train_loss", "bytes_down", "bytes_up", "seconds"}
    quiet = run("scaffold", rounds=2, faults={})
    assert_close(result.params, quiet.params)
    assert quiet.history[0]["participants"] == 6 and "virtual_seconds" not in quiet.history[0]


# --- files, sweeps, wrong values ---


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    run("scaffold", out=tmp_path / "whole", client_states="host")
    run("scaffold", rounds=3, out=tmp_path / "part")
    run("scaffold", out=tmp_path / "part", resume_from=tmp_path / "part")
    assert_same_results(tmp_path / "part", tmp_path / "whole")
    config = json.loads((tmp_path / "part" / "config.json").read_text())
    assert config["faults"]["dropout"] == 0.2 and "aggregate" not in config
    for change, what in (({"faults": None}, "faults"), ({"aggregate": "median"}, "aggregate")):
        with pytest.raises(fx.RunError, match=f"another experiment: its {what} is"):
            run("scaffold", rounds=9, resume_from=tmp_path / "part", **change)


@pytest.mark.long
def test_points_of_a_sweep_meet_the_same_failures() -> None:
    points = fx.sweep(
        line(), lambda client_lr: fx.scaffold(client_lr), {"client_lr": [0.1, 0.05]}, rounds=4, faults=EVERYTHING,
        **OPTIONS,
    )  # fmt: skip
    assert points[0].history.column("participants") == points[1].history.column("participants")
    assert_close(points[0].params, run("scaffold", rounds=4).params)


WRONG = [
    ({"dropout": 1.5}, "dropout=1.5 given, allowed is a number from 0 to 1"),
    ({"nonfinite": -0.1}, "nonfinite=-0.1 given"),
    ({"scaled": "often"}, "scaled='often' given"),
    ({"scaled": True}, "scaled=True given"),
    ({"scale": math.nan}, "scale=nan given, allowed is a number"),
    ({"deadline": 0}, "deadline=0 given, allowed is a number > 0"),
    ({"step_seconds": 0.0}, "step_seconds=0.0 given, allowed is a number > 0"),
    ({"jitter": -1}, "jitter=-1 given, allowed is a number >= 0"),
    ({"drop": 0.1}, "unknown name 'drop'; did you mean 'dropout'?"),
    (0.3, "0.3 given, allowed is fedoptax.Faults(...)"),
]


@pytest.mark.parametrize(("faults", "text"), WRONG, ids=str)
def test_wrong_values_are_refused(faults: Any, text: str) -> None:
    with pytest.raises(fx.UsageError, match="faults") as error:
        run("scaffold", faults=faults)
    assert text in str(error.value)


def test_settings_of_the_command_line_are_values_by_name() -> None:
    assert parse_faults(["dropout=0.3", "deadline=20"]) == {"dropout": 0.3, "deadline": 20} and parse_faults([]) is None
    for wrong in ("dropout", "=0.1", "dropout="):
        with pytest.raises(fx.UsageError, match="allowed is NAME=VALUE"):
            parse_faults([wrong])


def test_too_small_a_cohort_for_the_aggregator_is_refused() -> None:
    with pytest.raises(fx.UsageError, match="krum:2 given with 6 clients a round, allowed with at least 7"):
        run("scaffold", aggregate="krum:2")


# --- privacy ---


@pytest.mark.parametrize("engine", ["compiled", "eager"])
def test_a_private_server_clips_what_was_multiplied_on_the_way(engine: str) -> None:
    clip = 0.1
    private = fx.with_privacy(fx.fedavg(0.1), clip, 0.0, 1e-3)
    task, options = line(), OPTIONS | {"weighting": "uniform", "engine": engine, "rounds": 1}
    moved = {
        scale: np.linalg.norm(fx.run(task, private, faults=fx.Faults(scaled=1.0, scale=scale), **options).params - 2.0)
        for scale in (1.0, -1000.0)
    }
    assert 0 < moved[1.0] <= clip
    assert 0 < moved[-1000.0] <= clip


def test_epsilon_is_of_those_who_hold_data() -> None:
    """All shares take part in every round where they are dealt out to devices: nothing is sampled."""
    private = fx.with_privacy(fx.fedavg(0.1), 1.0, 2.0, 1e-3)
    task = fx.load_task("digits", num_clients=10, devices=40, model="logistic")
    result = fx.run(task, private, rounds=2, cohort_size=10, weighting="uniform", local_steps=1)
    assert private.epsilon is not None
    assert result.history.column("epsilon")[-1] == pytest.approx(private.epsilon(2, 10, 10))
    assert private.epsilon(2, 10, 10) > private.epsilon(2, 10, 40)


def test_epsilon_is_told_in_every_row_and_at_the_end(tmp_path: Path) -> None:
    asked: list[tuple[int, int, int]] = []

    def epsilon(rounds: int, cohort_size: int, num_clients: int) -> float:
        asked.append((rounds, cohort_size, num_clients))
        return rounds / 4 if rounds > 1 else math.inf

    private = algorithm("scaffold")._replace(epsilon=epsilon)
    options = OPTIONS | {"weighting": "uniform"}
    result = fx.run(line(), private, rounds=5, out=tmp_path / "a", **options)
    assert result.history.column("epsilon") == [None, 0.5, 0.75, 1.0, 1.25]
    assert asked == [(r, 6, 8) for r in range(1, 6)]
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["final"]["epsilon"] == 1.25
    with pytest.raises(fx.UsageError, match="aggregate: median given with an algorithm that accounts for privacy"):
        fx.run(line(), private, rounds=5, aggregate="median", **options)

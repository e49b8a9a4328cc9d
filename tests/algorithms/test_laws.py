"""One table: every algorithm and variant against every law of `laws.py`; and faulty algorithms, which must fail."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import fedoptax as fx
import laws
import laws_broken as broken
import theory
from fedoptax.experiments.presets import PRESETS
from laws import LAWS, Factory
from laws_table import CORE, KINDS, ROWS, TABLE, WRAPPED

ALL_ROWS = ROWS | WRAPPED
NEEDS_ENGINE = {laws.padding_is_inert, laws.engines_agree, laws.interrupted_equals_whole, laws.bytes_are_what_is_sent}


def marks(name: str, law: Any) -> list[Any]:
    """By default one algorithm of each kind, and the laws that compile programs anew for `CORE` alone."""
    is_quick = name in CORE or (name in KINDS and law not in NEEDS_ENGINE)
    if law is laws.engines_agree:  # tests/engine/test_round.py has FAFED's in `make test`
        is_quick = False
    return [] if is_quick else [pytest.mark.long]


@pytest.mark.parametrize(
    ("name", "law"),
    [pytest.param(name, law, id=f"{name}-{law.__name__}", marks=marks(name, law)) for name in ALL_ROWS for law in LAWS],
)
def test_law(name, law):
    law(ALL_ROWS[name])


def test_every_algorithm_is_in_the_table():
    assert set(TABLE) == set(fx.ALGORITHMS)


FAULTS: list[tuple[Any, Factory, Any, str]] = [
    (laws.reduces_to_sgd, broken.doubled, AssertionError, "Not equal to tolerance"),
    (laws.order_does_not_matter, broken.depends_on_order, AssertionError, "Not equal to tolerance"),
    (laws.weight_zero_counts_for_nothing, broken.takes_the_maximum, AssertionError, "Arrays are not equal"),
    (laws.padding_is_inert, broken.reads_padding, AssertionError, "Arrays are not equal"),
    (laws.dtypes_stay, broken.promotes, AssertionError, "float32 in a bfloat16 run"),
    (laws.compiles_once, broken.recompiles, AssertionError, "traced 2 times for three rounds"),
    (laws.hyperparameters_can_be_traced, broken.keeps_a_constant, AssertionError, "Not equal to tolerance"),
    (laws.same_key_same_result, broken.draws_from_numpy, AssertionError, "Arrays are not equal"),
    (laws.engines_agree, broken.counts_steps_in_python, AssertionError, "Not equal to tolerance"),
    (laws.interrupted_equals_whole, broken.counts_on_the_host, AssertionError, "Arrays are not equal"),
    (laws.continues_in_another_process, broken.hides_its_round, AssertionError, "Arrays are not equal"),
    (laws.bytes_are_what_is_sent, broken.sends_more, AssertionError, "bytes down"),
]


@pytest.mark.parametrize(
    ("law", "fault", "error", "text"),
    [
        pytest.param(*case, id=case[1].__name__, marks=[pytest.mark.long] if case[0] in NEEDS_ENGINE else [])
        for case in FAULTS
    ],
)
def test_a_faulty_algorithm_is_caught(law, fault, error, text):
    with pytest.raises(error, match=text):
        law(fault)


def test_every_law_has_been_seen_to_fail():
    assert {law for law, *_ in FAULTS} == {*LAWS, laws.reduces_to_sgd}


def distances(result: fx.RunResult) -> np.ndarray:
    return np.array(result.history.column("test_distance"), float)


def test_naive_adaptive_walks_away_for_every_choice_of_its_parameters():
    """Theorem 1: round t adds η/(3√(1−βᵗ)), whatever η and β are."""
    grid = {"lr": [1e-3, 0.1, 1.0, 10.0], "b2": [0.0, 0.5, 0.9, 0.999]}
    points = fx.sweep(fx.load_task("counterexample"), fx.naive_adaptive, grid, rounds=60, cohort_size=3, batch_size=1)
    t = np.arange(1, 61)
    for point in points:
        lr, b2 = (point.hyperparameters[name] for name in ("lr", "b2"))
        expected = 10 + np.cumsum(lr / 3 / np.sqrt(1 - b2**t))
        np.testing.assert_allclose(distances(point), expected, rtol=3e-5, err_msg=str(point.hyperparameters))
        assert np.all(np.diff(distances(point)) > 0)


SIGNS = {"fedlion", "fedada2", "diloco", "muloco"}
"""With one local step their clients step by about a sign: they walk away like `naive_adaptive`, or do not settle."""
CONVERGE = sorted(set(fx.ALGORITHMS) - {"naive_adaptive", "fedlamb"} - SIGNS)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("fafed", "fedadam") else pytest.mark.long) for n in CONVERGE]
)
def test_the_others_converge_on_the_counterexample(name):
    """FAFED and FedAdam, as the paper has it, and all that share their adaptivity, with the presets of the task."""
    defaults: Any = dict(fx.TASKS["counterexample"].defaults)
    algorithm = fx.ALGORITHMS[name](**PRESETS["counterexample"][name])
    result = fx.run(fx.load_task("counterexample"), algorithm, **defaults)
    assert distances(result)[-10:].max() < 0.1


@pytest.mark.long
def test_the_error_of_fafed_falls_linearly_with_the_number_of_clients():
    """Linear speed-up: with independent noise the stationary squared error is that of a mean over N clients, slope −1.

    A depends on the clients' mean square gradient, whose expectation does not depend on N, so given A the iteration is
    linear in the noise and E‖x − x*‖² ∝ 1/N. With 10 seeds of 16 coordinates each estimate has a relative spread of
    √(2/160) = 0.11, and a line through log₂N = 1 … 5 then a slope of standard error 0.11/(ln 2 √10) = 0.05. The band is
    four of them.
    """
    counts, flat = [2, 4, 8, 16, 32], np.zeros((32, theory.DIMENSION))

    def squared_errors(noise: float, counts: list[int]) -> np.ndarray:
        problem = theory.Quadratics(flat + 1, flat, noise)
        make = partial(fx.fafed, 0.1, alpha=0.3, rho=0.1)
        run = theory.simulation(make, problem, 60, lambda server, uploads, x, weights: theory.square(x))
        return np.array([run(3, n)[:, -1].mean() for n in counts])

    errors = squared_errors(2.0, counts)
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -1.2 < slope < -0.8, f"slope {slope:.3f} of {errors}"
    assert squared_errors(0.0, [32])[0] < 0.1 * errors.min()  # what is left is variance, not the way from the start

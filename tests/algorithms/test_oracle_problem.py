"""The problem of the oracles: its clients are ragged and heterogeneous, and a run that stands still is refused."""

import numpy as np
import pytest

from oracles.compare import assert_moves
from oracles.problem import loss_and_grad, make, zeros

PROBLEM = make()


def test_problem_is_ragged_and_clients_disagree() -> None:
    assert {len(own) for own in PROBLEM.data} == {1, 2, 3, 4, 5, 6}
    assert {len(batch["y"]) for own in PROBLEM.data for batch in own} == {2, 3, 4}
    assert len({PROBLEM.examples(i) for i in range(7)}) >= 6
    drawn = [i for cohort in PROBLEM.cohorts for i in cohort]
    assert set(drawn) == set(range(7))
    assert len({drawn.count(i) for i in range(7)}) > 1
    grads = [loss_and_grad(PROBLEM.params, own[0])[1]["out/kernel"].ravel() for own in PROBLEM.data]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a in grads for b in grads if a is not b]
    assert min(cosines) < -0.2


def test_a_run_that_stands_still_is_refused() -> None:
    with pytest.raises(AssertionError, match="moved by 0"):
        assert_moves(PROBLEM, [PROBLEM.params] * 6)
    with pytest.raises(AssertionError, match="not finite"):
        assert_moves(PROBLEM, [{n: a + np.nan for n, a in zeros(PROBLEM.params).items()}] * 6)

"""The problem of the oracles: its gradient is right, and its clients are ragged and heterogeneous."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles.compare import assert_moves, grad_fn
from oracles.problem import Tree, flatten, loss_and_grad, make, nest, zeros

PROBLEM = make()


def nudged(params: Tree, seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    return {n: a + rng.normal(size=a.shape) / 3 for n, a in params.items()}


@pytest.mark.parametrize("client", range(7))
def test_loss_and_gradient_equal_the_jax_ones(client: int) -> None:
    params = nudged(PROBLEM.params, client)
    with jax.enable_x64(True):
        for batch in PROBLEM.data[client]:
            loss, want = loss_and_grad(params, batch)
            tree = jax.tree.map(jnp.asarray, nest(params))
            got_loss, got = grad_fn(tree, jax.tree.map(jnp.asarray, batch))
            assert got_loss.dtype == jnp.float64
            assert float(got_loss) == pytest.approx(loss, rel=1e-13)
            for name, leaf in flatten(got).items():
                np.testing.assert_allclose(leaf, want[name], rtol=1e-11, atol=1e-14)


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

"""Running the library on the problem, and comparing it with an oracle."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import FedAlgorithm
from fedoptax.engine.eager import run_round
from oracles.problem import Problem, Tree, flatten, nest

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
BITES = 1e-3
"""How far variants must be apart: a million tolerances in float64, ten in float32."""


def log_probabilities(params: Any, batch: Any) -> jax.Array:
    """Those of the labels, by example."""
    h = jnp.tanh(batch["x"] @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logp = jax.nn.log_softmax(h @ params["out"]["kernel"] + params["out"]["bias"])
    return jnp.take_along_axis(logp, batch["y"][:, None], axis=1)[:, 0]


grad_fn = jax.jit(jax.value_and_grad(lambda params, batch: -jnp.mean(log_probabilities(params, batch))))
_CONVERTED: dict[tuple[int, str], tuple[Any, Any]] = {}


def converted(batch: Any, dtype: str) -> Any:
    """The batch as JAX arrays, made once; the NumPy batch is kept too, so that its id stays its own."""
    key = (id(batch), dtype)
    if key not in _CONVERTED:
        _CONVERTED[key] = batch, {"x": jnp.asarray(batch["x"], dtype), "y": jnp.asarray(batch["y"])}
    return _CONVERTED[key][1]


def eager_rounds(
    algorithm: FedAlgorithm, grad_fn: Any, problem: Problem, dtype: str, weighting: str, convert: Any = converted
) -> tuple[list[Tree], list[float], list[Any]]:
    """Eager rounds: parameters and training loss after each, and the clients' states after the last.

    One with several exchanges has as many of the library's rounds for each, with the same cohort and minibatches.
    """
    params = jax.tree.map(lambda a: jnp.asarray(a, dtype), nest(problem.params))
    server, states = algorithm.init(params), [algorithm.init_client(params) for _ in problem.data]
    path, losses = [], []
    for r, cohort in enumerate(problem.cohorts):
        batches = [[convert(b, dtype) for b in problem.batches(r, i)] for i in cohort]
        weights = None if weighting == "uniform" else [problem.examples(i) for i in cohort]
        for _ in range(algorithm.exchanges):
            old = [states[i] for i in cohort]
            server, new, info = run_round(algorithm, grad_fn, server, old, batches, weights, problem.num_clients)
            for i, state in zip(cohort, new):
                states[i] = state
        now = algorithm.params(server)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(now)), "the dtype of the parameters changed"
        path.append(flatten(jax.tree.map(np.asarray, now)))
        losses.append(float(info.train_loss))
    return path, losses, states


def error(got: Tree, want: Tree, leaf: str) -> float:
    """max|a − b| / max|b| of one leaf; a leaf that must be zero must be exactly zero."""
    gap, scale = np.max(np.abs(got[leaf] - want[leaf])), np.max(np.abs(want[leaf]))
    if not np.isfinite(gap):
        return float("inf")
    return float(gap / scale) if scale > 0 else (0.0 if gap == 0 else float("inf"))


def errors(got: Iterable[Tree], want: Iterable[Tree]) -> dict[tuple[int, str], float]:
    """The relative error of every leaf after every round."""
    got, want = list(got), list(want)
    assert len(got) == len(want), f"{len(got)} rounds against {len(want)}"
    return {(r, n): error(a, b, n) for r, (a, b) in enumerate(zip(got, want)) for n in b}


def assert_moves(problem: Problem, trajectory: Sequence[Tree], still: Sequence[str] = (), since: int = 0) -> None:
    """Every round from `since` on moves every leaf but `still` by 1e-3 of its size; the values stay sane."""
    assert len(trajectory) >= 5
    for r, (old, new) in enumerate(zip([problem.params, *trajectory], trajectory)):
        for n in new:
            size = max(float(np.max(np.abs(new[n]))), 1e-12)
            move = float(np.max(np.abs(new[n] - old[n]))) / size
            assert np.all(np.isfinite(new[n])), f"round {r}, {n}: not finite"
            assert size < 1e2, f"round {r}, {n}: grew to {size:.1e}"
            assert n in still or r < since or move > 1e-3, f"round {r}, {n}: moved by {move:.1e} only"


def assert_matches(
    make: Callable[[], FedAlgorithm],
    problem: Problem,
    trajectory: Iterable[Tree],
    dtype: str,
    weighting: str = "uniform",
    still: Sequence[str] = (),
    since: int = 0,
) -> None:
    """The library equals the oracle, round by round and leaf by leaf, on a trajectory that moves."""
    want = list(trajectory)
    assert_moves(problem, want, still, since)
    with jax.enable_x64(dtype == "float64"):
        got, _, _ = eager_rounds(make(), grad_fn, problem, dtype, weighting)
    found = errors(got, want)
    wrong = {key: value for key, value in found.items() if not value <= TOLERANCE[dtype]}
    if wrong:
        first = min(wrong)
        worst = [max(v for (s, _), v in found.items() if s == r) for r in range(len(want))]
        raise AssertionError(
            f"{dtype}: differs first in round {first[0]} at {first[1]} by {wrong[first]:.2e}; worst a round: "
            + " ".join(f"{w:.1e}" for w in worst)
        )


def assert_differ(got: Iterable[Tree], want: Iterable[Tree]) -> None:
    """Two trajectories are far outside every tolerance of each other."""
    worst = max(errors(got, want).values())
    assert worst > BITES, f"they are only {worst:.1e} apart"

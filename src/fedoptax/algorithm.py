"""The contract: what a federated algorithm is, and the few operations every algorithm is written with.

An algorithm is six pure functions (and the weighting of its paper). The engines decide how clients are run;
the algorithm decides what is sent, what is remembered and what is computed. The weighted mean of the uploads
is the only operation that crosses clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any
"""Any pytree of arrays: parameters, states, messages."""

GradFn = Callable[[Tree, Any], tuple[jax.Array, Tree]]
"""`grad_fn(params, batch) -> (loss, grads)`, the convention of `jax.value_and_grad`."""

Step = Callable[[Tree, Any], tuple[Tree, jax.Array]]
"""`step(carry, batch) -> (carry, loss)`: one local step of a client."""


class Cohort(NamedTuple):
    """Who took part in a round: `size` clients, |S|, of `num_clients`, N."""

    size: Any
    num_clients: Any


class FedAlgorithm(NamedTuple):
    """A federated optimization algorithm as pure functions; hyper-parameters are closed over and may be traced.

    Attributes:
      init: `params -> server`, the server's state before the first round.
      init_client: `params -> client`, what one client keeps between rounds; `()` when it keeps nothing.
      broadcast: `server -> message`, everything a sampled client receives.
      client_update: `(grad_fn, message, client, batches) -> (upload, client, loss)`, a client's round. `batches` is
        a list of minibatches or a `Batches`; `loss` is the mean loss over the local steps, a scalar.
      server_update: `(server, mean_upload, cohort) -> server`, where `cohort` is a `Cohort`.
      params: `server -> params`, the model to evaluate and save.
      weighting: how the paper averages uploads, `"examples"` or `"uniform"`; a run may choose otherwise,
        but for a private algorithm.
      decode: `sent -> upload`, what the receiver makes of an upload before the mean; None where uploads are sent
        as they are averaged (see `with_compression`).
      epsilon: `(rounds, cohort_size, num_clients) -> ε`, the privacy spent; None without privacy (see `with_privacy`).
    """

    init: Callable[[Tree], Tree]
    init_client: Callable[[Tree], Tree]
    broadcast: Callable[[Tree], Tree]
    client_update: Callable[[GradFn, Tree, Tree, Any], tuple[Tree, Tree, jax.Array]]
    server_update: Callable[[Tree, Tree, Cohort], Tree]
    params: Callable[[Tree], Tree]
    weighting: str = "examples"
    decode: Callable[[Tree], Tree] | None = None
    epsilon: Callable[[int, int, int], float] | None = None


class Batches(NamedTuple):
    """A client's minibatches, made on demand: `get(k)` is batch k of `num_steps` (which may be a traced value)."""

    num_steps: Any
    get: Callable[[Any], Any]


def num_steps(batches: Batches | Sequence[Any]) -> Any:
    """K, the number of local steps that `batches` holds: an int, or a traced int32 in a compiled round."""
    return batches.num_steps if isinstance(batches, Batches) else len(batches)


def local_steps(step: Step, carry: Tree, batches: Batches | Sequence[Any]) -> tuple[Tree, jax.Array]:
    """Runs `step` once on each of a client's minibatches, in order.

    Args:
      step: `(carry, batch) -> (carry, loss)`. The carry keeps its structure, shapes and dtypes.
      carry: any pytree, at least the client's local parameters.
      batches: a list (a plain Python loop, for debugging) or a `Batches` (a `fori_loop` with a dynamic bound:
        exact work when clients run one after another, masked lanes when they are vmapped).

    Returns:
      The last carry, and the mean of the losses over the steps (0 when there are no steps).
    """
    total = jnp.zeros((), jnp.result_type(float))

    def accumulate(state: tuple[Tree, jax.Array], batch: Any) -> tuple[Tree, jax.Array]:
        carry, total = state
        carry, loss = step(carry, batch)
        return carry, total + loss.astype(total.dtype)

    state = (carry, total)
    if isinstance(batches, Batches):
        state = jax.lax.fori_loop(0, batches.num_steps, lambda k, s: accumulate(s, batches.get(k)), state)
    else:
        for batch in batches:
            state = accumulate(state, batch)
    carry, total = state
    return carry, total / jnp.maximum(num_steps(batches), 1).astype(total.dtype)


def decoded(algorithm: FedAlgorithm, sent: Tree) -> Tree:
    """The upload that takes part in the mean, of what a client sent."""
    return sent if algorithm.decode is None else algorithm.decode(sent)


def weighted_mean(trees: Sequence[Tree], weights: Sequence[Any] | jax.Array | None = None) -> Tree:
    """Σ wᵢ treeᵢ / Σ wᵢ, leaf by leaf, in each leaf's own dtype (half-precision leaves are summed in float32).

    Args:
      trees: uploads of equal structure, one a client.
      weights: one non-negative number a client, not all zero; `None` means uniform.

    Returns:
      The mean; integer leaves (step counters) are rounded to the nearest integer.

    Raises:
      ValueError: no trees, not as many weights as trees, or weights (where they are known) of no positive sum.
    """
    if not trees:
        raise ValueError("weighted_mean: at least one tree is needed, 0 were given")
    w = jnp.ones(len(trees)) if weights is None else jnp.asarray(weights, jnp.result_type(float))
    if w.shape != (len(trees),):
        raise ValueError(f"weighted_mean: weights of shape {w.shape} given for {len(trees)} trees; one each is allowed")
    if not isinstance(w, jax.core.Tracer) and not (jnp.all(w >= 0) and jnp.sum(w) > 0):
        raise ValueError(f"weighted_mean: weights {w} given; allowed are numbers >= 0, not all 0")
    w = w / jnp.sum(w)
    total = accumulate_zero(trees[0])
    for tree, weight in zip(trees, w):
        total = accumulate(total, weight, tree)
    return accumulate_result(total, trees[0])


def accumulate_zero(like: Tree) -> Tree:
    """An empty sum for uploads like `like` (arrays or shape/dtype structs): a leaf at least float32, or complex64."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, _sum_dtype(a.dtype)), like)


def accumulate(total: Tree, weight: Any, upload: Tree) -> Tree:
    """total + weight·upload; an upload of weight 0 adds nothing, even where it is not finite."""

    def leaf(t: jax.Array, u: jax.Array) -> jax.Array:
        w = jnp.asarray(weight, jnp.finfo(t.dtype).dtype)  # real: as a complex number it would make ∞ a NaN
        return t + jnp.where(w == 0, jnp.zeros((), t.dtype), w * u.astype(t.dtype))

    return jax.tree.map(leaf, total, upload)


def accumulate_result(total: Tree, like: Tree) -> Tree:
    """The finished sum in the dtypes of `like`; integers are rounded."""

    def leaf(t: jax.Array, a: Any) -> jax.Array:
        dtype = jax.dtypes.canonicalize_dtype(a.dtype)  # of NumPy's doubles, when JAX has none
        return (jnp.round(t) if jnp.issubdtype(dtype, jnp.integer) else t).astype(dtype)

    return jax.tree.map(leaf, total, like)


def _sum_dtype(dtype: Any) -> Any:
    wide = jax.dtypes.canonicalize_dtype(dtype) in (jnp.float64, jnp.complex128)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.complex128 if wide else jnp.complex64
    return jnp.float64 if wide else jnp.float32


def nbytes(tree: Tree) -> int:
    """Bytes of a message: the sum of its leaves' sizes (arrays, or the structs of `jax.eval_shape`)."""
    return sum(int(a.size) * jnp.dtype(a.dtype).itemsize for a in jax.tree.leaves(jax.tree.map(_abstract, tree)))


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    array = jnp.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, array.dtype)

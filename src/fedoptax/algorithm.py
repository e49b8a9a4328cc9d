"""The contract: what a federated algorithm is, and the few operations every algorithm is written with.

An algorithm is six pure functions (and the weighting of its paper). The engines decide how clients are run;
the algorithm decides what is sent, stored and computed. The weighted mean of the uploads
is the only operation that crosses clients.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.errors import UsageError, check_choice, check_function, shorten
from fedoptax.tree import Tree, accumulate, accumulate_result, accumulate_zero, leaf_names

Server = TypeVar("Server")
Message = TypeVar("Message")
Client = TypeVar("Client")
Upload = TypeVar("Upload")
Result = TypeVar("Result")

GradFn = Callable[[Tree, Tree], tuple[jax.Array, Tree]]
"""`grad_fn(params, batch) -> (loss, grads)`, the convention of `jax.value_and_grad`."""

ClientResult = tuple[Upload, Client, jax.Array]
"""`(upload, client, loss)`: what a client sends, what it keeps, and its mean loss."""

Step = Callable[[Tree, Tree], tuple[Tree, jax.Array]]
"""`step(carry, batch) -> (carry, loss)`: one local step of a client."""


class Cohort(NamedTuple):
    """Who took part in a round: `size` clients, |S|, of `num_clients`, N."""

    size: int | jax.Array
    num_clients: int


@dataclass(frozen=True)  # no tuple: its length would be the number of fields
class Batches:
    """A client's minibatches of a round, made on demand, and its random key.

    Attributes:
      num_steps: K, how many there are; may be traced.
      get: `k -> minibatch`, for k = 0, …, K − 1.
      key: for the client's random numbers; it differs by client, round and seed, and is the same in every engine.
      examples: makes one batch of all the client's examples.
    """

    num_steps: Any
    get: Callable[[Any], Any]
    key: Any = None
    examples: Callable[[], Any] | None = None


class BatchList(list[Any]):
    """A client's minibatches of a round in a list, for rounds in plain Python, and its random key; see `Batches`."""

    def __init__(self, batches: Iterable[Any], key: Any = None) -> None:
        super().__init__(batches)
        self.key = key


Minibatches = Batches | BatchList | Sequence[Any]
"""A client's minibatches of a round, as `client_update` receives them."""


class FedAlgorithm(NamedTuple, Generic[Server, Message, Client, Upload]):
    """A federated optimization algorithm as pure functions; hyper-parameters are closed over and may be traced.

    Its types are those of the server's state, the message, a client's state and the upload: each a tree of arrays.

    Attributes:
      init: `params -> server`, the server's state before the first round.
      init_client: `params -> client`, the state that a client keeps between rounds; `()` if none.
      broadcast: `server -> message`, everything a sampled client receives.
      client_update: `(grad_fn, message, client, batches) -> (upload, client, loss)`, a client's round. `batches` is
        a `Batches`, or in plain Python a `BatchList`; a random algorithm draws from `batches.key`. `loss` is the mean
        loss over the local steps, a scalar.
      server_update: `(server, mean_upload, cohort) -> server`, where `cohort` is a `Cohort`.
      params: `server -> params`, the model to evaluate and save.
      weighting: how the paper averages uploads, `"examples"` or `"uniform"`; a run may choose otherwise,
        but for a private algorithm.
      decode: `sent -> upload`, applied by the receiver before the mean; None if uploads are sent as they are (see
        `with_compression`).
      epsilon: `(rounds, cohort_size, num_clients) -> ε`, the privacy spent; None without privacy (see `with_privacy`).
      client_params: `(params, client) -> params`, the model that a client uses, where it is not the server's (see
        `with_personal`); None where it is.
      gradients_per_step: how often a client calls `grad_fn` for each minibatch in a round, on average; 0: once a round.
      exchanges: how many rounds in a row see the same cohort and the same minibatches: an algorithm that asks its
        cohort twice before a step has 2, and knows from its state which exchange it is (see `mime`).
    """

    init: Callable[[Tree], Server]
    init_client: Callable[[Tree], Client]
    broadcast: Callable[[Server], Message]
    client_update: Callable[[GradFn, Message, Client, Minibatches], ClientResult[Upload, Client]]
    server_update: Callable[[Server, Upload, Cohort], Server]
    params: Callable[[Server], Tree]
    weighting: str = "examples"
    decode: Callable[[Any], Upload] | None = None
    epsilon: Callable[[int, int, int], float] | None = None
    gradients_per_step: float = 1
    exchanges: int = 1
    client_params: Callable[[Tree, Client], Tree] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if any("<locals>" in getattr(part, "__qualname__", "") for part in self):
            remedy = "send its constructor and hyper-parameters, as functools.partial(fedoptax.fedadam, 0.1, 0.03)"
            raise UsageError(f"a FedAlgorithm cannot be pickled, as its functions cannot: {remedy}")
        return FedAlgorithm, tuple(self)

    def __deepcopy__(self, memo: Any) -> "FedAlgorithm":
        return self


FUNCTIONS = {
    "init": "params", "init_client": "params", "broadcast": "server", "params": "server",
    "client_update": "grad_fn, message, client, batches", "server_update": "server, mean_upload, cohort",
    "decode": "sent", "epsilon": "rounds, cohort_size, num_clients",
    "client_params": "params, client",
}  # fmt: skip
"""The functions of a `FedAlgorithm`, and their arguments."""


def check_algorithm(algorithm: Any) -> None:
    """Check that `algorithm` is a `FedAlgorithm` whose functions can be called."""
    if not isinstance(algorithm, FedAlgorithm):
        raise UsageError(f"algorithm must be a FedAlgorithm, such as fedavg(0.1), got {shorten(repr(algorithm))}")
    for name, arguments in FUNCTIONS.items():
        if getattr(algorithm, name) is not None or name not in ("decode", "epsilon", "client_params"):
            check_function(f"{name} of the algorithm", getattr(algorithm, name), arguments)
    check_choice("weighting of the algorithm", algorithm.weighting, ("examples", "uniform"))


def num_steps(batches: Minibatches) -> Any:
    """K, the number of local steps that `batches` holds: an int, or a traced int32 in a compiled round."""
    return batches.num_steps if isinstance(batches, Batches) else len(batches)


def steps_or_one(batches: Minibatches) -> jax.Array:
    """K as a floating-point number to divide by: 1 for a client without minibatches."""
    return jnp.maximum(num_steps(batches), 1).astype(float)


def local_steps(step: Step, carry: Tree, batches: Minibatches) -> tuple[Tree, jax.Array]:
    """Run `step` once on each of a client's minibatches, in order.

    Args:
      step: `(carry, batch) -> (carry, loss)`. The carry keeps its structure, shapes and dtypes.
      carry: any pytree, at least the client's local parameters.
      batches: a list (a plain Python loop, for debugging) or a `Batches` (a `fori_loop` with a dynamic bound:
        exact work when clients run one after another, masked lanes when they are vmapped).

    Returns:
      The last carry, and the mean of the losses over the steps (0 when there are no steps).
    """

    def run_step(state: tuple[Tree, jax.Array], batch: Tree) -> tuple[Tree, jax.Array]:
        carry, total = state
        carry, loss = step(carry, batch)
        return carry, total + loss.astype(total.dtype)

    state = (carry, jnp.zeros((), float))
    if isinstance(batches, Batches):
        state = jax.lax.fori_loop(0, batches.num_steps, lambda k, s: run_step(s, batches.get(k)), state)
    else:
        for batch in batches:
            state = run_step(state, batch)
    carry, total = state
    return carry, total / steps_or_one(batches)


def first_batches(batches: Minibatches, count: int) -> Minibatches:
    """The first `count` minibatches of a client's round, or all if there are fewer."""
    if isinstance(batches, Batches):
        return replace(batches, num_steps=jnp.minimum(batches.num_steps, count))
    return batches[:count]


def mean_gradient(grad_fn: GradFn, params: Tree, batches: Minibatches) -> tuple[Tree, jax.Array]:
    """(1/K) Σₖ g(params; ξₖ) over a client's minibatches, in the dtypes of `params`, and the mean loss there.

    The sum is at least float32. Several papers call this the client's full-batch gradient.
    """

    def step(total: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        loss, grads = grad_fn(params, batch)
        return accumulate(total, 1 / steps_or_one(batches), grads), loss

    total, loss = local_steps(step, accumulate_zero(params), batches)
    return accumulate_result(total, params), loss


def cond(condition: Any, if_true: Callable[[], Result], if_false: Callable[[], Result]) -> Result:
    """`if_true()` or `if_false()`: in a compiled program by `jax.lax.cond`, else by a plain `if`."""
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, if_true, if_false)
    return if_true() if condition else if_false()


def decoded(algorithm: FedAlgorithm, sent: Tree) -> Tree:
    """The decoded upload of a client, for the mean."""
    return sent if algorithm.decode is None else algorithm.decode(sent)


def weighted_mean(trees: Sequence[Tree], weights: Sequence[Any] | jax.Array | None = None) -> Tree:
    """Σ wᵢ treeᵢ / Σ wᵢ, leaf by leaf, in each leaf's own dtype (half-precision leaves are summed in float32).

    Args:
      trees: uploads of equal structure, one per client.
      weights: one non-negative number per client, not all zero; `None` means uniform.

    Returns:
      The mean; integer leaves (step counters) are rounded to the nearest integer.

    Raises:
      UsageError: there are no trees, not as many weights as trees, or (where they are known) weights below 0 or all 0.
    """
    if not trees:
        raise UsageError("trees must hold at least one upload, got none")
    forms = [[(name, np.shape(a)) for name, a in zip(leaf_names(t), jax.tree.leaves(t), strict=True)] for t in trees]
    if any(form != forms[0] for form in forms):
        raise UsageError("trees must have the same names and shapes")
    trees = [jax.tree.map(jnp.asarray, t) for t in trees]
    try:
        w = jnp.ones(len(trees)) if weights is None else jnp.asarray(weights, float)
    except (TypeError, ValueError):
        raise UsageError(f"weights must be numbers, got {shorten(repr(weights))}") from None
    if w.shape != (len(trees),):
        raise UsageError(f"weights must be one number for each of {len(trees)} trees, got shape {w.shape}")
    if not isinstance(w, jax.core.Tracer) and not (jnp.all(w >= 0) and 0 < jnp.sum(w) < jnp.inf):
        raise UsageError(f"weights must be finite, >= 0 and not all 0, got {w}")
    w = w / jnp.sum(w)
    total = accumulate_zero(trees[0])
    for tree, weight in zip(trees, w):
        total = accumulate(total, weight, tree)
    return accumulate_result(total, trees[0])


def nbytes(tree: Tree) -> int:
    """Bytes of a message: the sum of its leaves' sizes (arrays, or the structs of `jax.eval_shape`)."""
    leaves = [leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return sum(int(leaf.size) * jnp.dtype(leaf.dtype).itemsize for leaf in leaves)

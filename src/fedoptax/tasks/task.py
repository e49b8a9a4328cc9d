"""What is learned: a model's loss and metrics over the examples of a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError
from fedoptax.hyper import check_positive

LossFn = Callable[[Tree, Any, jax.Array], jax.Array]


@dataclass(frozen=True, eq=False)
class Task:
    """A federated learning problem.

    Attributes:
      name: for tables and files.
      init: `key -> params`.
      loss: `(params, batch, key) -> scalar`, the mean loss over a batch `{field: array (batch, …)}`; `key` is for
        dropout. The last batch of a client may be padded; a loss that reads `batch["mask"]` (bool, True for a real
        example) takes care of that itself (see `masked_mean`); one that does not is averaged over the real
        examples one by one, which is the same for any mean over examples.
      metrics: `(params, batch) -> {name: values}`, per-example values (batch,), averaged over the test examples. A
        pair (values, weights) instead gives a weighted average, Σ weights · values / Σ weights.
      clients: the training examples and who holds them.
      test: central test examples `{field: array (n, …)}`, or None.
      primary_metric: the metric that reports lead with; default `accuracy` if there is one, else the first by name.
      higher_is_better: of the primary metric.
      description: one line for people.
      spec: what it takes to build the task again, written to a run's config.
      label: the field that holds the class, for pictures of the partition; None if there is none.
      derived: further metrics, `{name: function}` of the averaged ones: perplexity is `exp` of the mean loss.
      test_owners: the client that each test example belongs to, whole numbers (n,), for metrics client by client;
        those that train have their numbers, others come after them. None if nobody knows.
      clip_norm: every minibatch gradient is clipped to this global 2-norm, where a paper's model needs it; None: not.
      eval_batch: test examples that are evaluated together, by the memory that their activations take.
      devices: if given, the number of clients, who hold no data of their own: each round the examples of `clients`, as
        many shares as the cohort has clients, are allocated to the active ones (Fed-LAMB, Section 4).

    Raises:
      UsageError: `clip_norm` is not a number > 0, or `eval_batch` not a whole number from 1.
    """

    name: str
    init: Callable[[jax.Array], Tree]
    loss: LossFn
    metrics: Callable[[Tree, Any], dict[str, Any]]
    clients: FederatedData
    test: Mapping[str, np.ndarray] | None = None
    primary_metric: str | None = None
    higher_is_better: bool = True
    description: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    label: str | None = "y"
    derived: Mapping[str, Callable[[Mapping[str, jax.Array]], jax.Array]] = field(default_factory=dict)
    test_owners: np.ndarray | None = None
    clip_norm: float | None = None
    eval_batch: int = 500
    devices: int | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            check_positive(clip_norm=self.clip_norm)
        whole = isinstance(self.eval_batch, int | np.integer) and not isinstance(self.eval_batch, bool)
        if not whole or self.eval_batch < 1:
            raise UsageError(f"eval_batch: {self.eval_batch!r} given, allowed is a whole number >= 1")

    @property
    def num_clients(self) -> int:
        """N, the number of clients that cohorts are drawn from."""
        return self.clients.num_clients if self.devices is None else self.devices


def masked_mean(values: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
    """The mean of per-example `values` (batch,) over the real examples of a padded batch; 0 when there are none."""
    mask = batch.get("mask")
    if mask is None:
        return jnp.mean(values)
    total = jnp.sum(jnp.where(mask, values, jnp.zeros((), values.dtype)))
    return total / jnp.maximum(jnp.sum(mask), 1).astype(values.dtype)


def padded_loss(loss: LossFn, params: Tree, batch: Mapping[str, jax.Array], key: jax.Array) -> jax.Array:
    """`loss` on a padded batch (with its `mask`) such that padding counts for nothing.

    A loss that asks for the mask gets it. For any other, the mean over real examples of the loss of each alone.
    """
    if _reads_mask(loss, params, batch, key):
        return loss(params, batch, key)
    examples = {name: value for name, value in batch.items() if name != "mask"}

    def one(example: Tree, key: jax.Array) -> jax.Array:
        return loss(params, jax.tree.map(lambda a: a[None], example), key)

    losses = jax.vmap(one)(examples, jax.random.split(key, batch["mask"].shape[0]))
    return masked_mean(losses, batch)


def _reads_mask(loss: LossFn, params: Tree, batch: Mapping[str, jax.Array], key: jax.Array) -> bool:
    asked = _Asked()

    def tried(params: Tree, without: Mapping[str, jax.Array], key: jax.Array) -> Any:
        try:
            return loss(params, _Unmasked(without, asked), key)
        except KeyError as error:  # caught here: what passes JAX's functions costs a tenth of a second
            if error.args == ("mask",):
                asked.mask = True  # also where the loss copied the batch before
                return None
            raise

    without = {name: value for name, value in batch.items() if name != "mask"}
    jax.eval_shape(tried, params, without, key)
    return asked.mask


@dataclass(eq=False)
class _Asked:
    """Whether anybody asked for the mask."""

    mask: bool = False


class _Unmasked(dict[Any, Any]):
    """A batch without its mask that tells `asked` when a loss looks for that, in whichever way."""

    def __init__(self, batch: Mapping[str, Any], asked: _Asked) -> None:
        super().__init__(batch)
        self.asked = asked

    def __getitem__(self, name: Any) -> Any:
        self._note(name)
        return super().__getitem__(name)

    def __contains__(self, name: Any) -> bool:
        self._note(name)
        return super().__contains__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        self._note(name)
        return super().get(name, default)

    def _note(self, name: Any) -> None:
        self.asked.mask |= name == "mask"


jax.tree_util.register_pytree_node(  # a loss may be jitted
    _Unmasked,
    lambda batch: (tuple(batch.values()), (tuple(batch), batch.asked)),
    lambda form, values: _Unmasked(dict(zip(form[0], values)), form[1]),
)


def check_task(task: Any) -> None:
    """Checks that `task` is one.

    Raises:
      UsageError: it is something else, such as a task's name.
    """
    if not isinstance(task, Task):
        raise UsageError(f"task: {task!r} given, allowed is a fedoptax.Task, such as load_task('digits')")

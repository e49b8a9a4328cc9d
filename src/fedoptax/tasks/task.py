"""A federated learning problem: a model's loss and metrics, and the examples of its clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from fedoptax._html import html_table
from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError, check_choice, check_int, check_number, check_positive

LossFn = Callable[[Tree, Any, jax.Array], jax.Array]
DTYPES = ("float32", "bfloat16")
"""What a training loss may be computed in."""


@dataclass(frozen=True, eq=False)
class Task:
    """A federated learning problem.

    Attributes:
      name: for tables and files.
      init: `key -> params`.
      loss: `(params, batch, key) -> scalar`, the mean loss over a batch `{field: array (batch, …)}`; `key` is for
        dropout. The last batch of a client may be padded: a loss that reads `batch["mask"]` (bool, True for a real
        example) handles that itself, see `masked_mean`; of any other, the mean over single real examples is taken.
      metrics: `(params, batch) -> {name: values}`, one value per example (batch,), averaged over the test examples. A
        pair (values, weights) instead gives a weighted average, Σ weights · values / Σ weights.
      clients: the training examples and who holds them.
      test: central test examples `{field: array (n, …)}`, or None.
      primary_metric: the metric that reports lead with; default `accuracy` if there is one, else the first by name.
      higher_is_better: of the primary metric.
      description: one line for people.
      spec: the options that build the task again, written to a run's config.
      label: the field that holds the class, for pictures of the partition; None if there is none.
      derived: further metrics, `{name: function}` of the averaged ones: perplexity is `exp` of the mean loss.
      test_owners: the client that each test example belongs to, whole numbers (n,), for metrics per client; clients
        that train have their numbers, others come after them. None if that is not known.
      validation: examples `{field: array (m, …)}` to choose by, held out from those of `clients` (`with_validation`).
      validation_owners: the client that each of them belongs to, whole numbers (m,).
      clip_norm: every minibatch gradient is clipped to this global 2-norm, where a paper's model needs it; None: not.
      eval_batch: test examples that are evaluated together; bounds the memory of their activations.
      notes: lines about the data that are shown before the first round.
      predict: `(params, batch) -> outputs` (batch, …) for new examples, of which it reads no label; None: no outputs.
      classes: the names of the classes that `predict` gives probabilities (batch, C) of; () names them by number. None:
        its outputs are values.
      inputs: how new examples are read, as plain data; see `fedoptax.data.inputs`.
      devices: if given, the number of clients, which hold no data of their own: each round the examples of `clients`,
        as many shares as the cohort has clients, are allocated to the active ones (Fed-LAMB, Section 4).

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
    validation: Mapping[str, np.ndarray] | None = None
    validation_owners: np.ndarray | None = None
    clip_norm: float | None = None
    eval_batch: int = 500
    notes: tuple[str, ...] = ()
    predict: Callable[[Tree, Any], jax.Array] | None = None
    classes: Sequence[str] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    devices: int | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            check_positive(clip_norm=self.clip_norm)
        check_int("eval_batch", self.eval_batch)

    @property
    def num_clients(self) -> int:
        """N, the number of clients that cohorts are drawn from."""
        return self.clients.num_clients if self.devices is None else self.devices

    def _repr_html_(self) -> str:
        examples, sizes = self.clients.examples, self.clients.sizes
        row: dict[str, Any] = {"clients": self.num_clients, "training examples": int(sizes.sum())}
        row["per client"] = f"{sizes.min():,} to {sizes.max():,}"
        row["test examples"] = max((len(array) for array in (self.test or {}).values()), default=0)
        row |= {name: "×".join(map(str, array.shape[1:])) or "number" for name, array in examples.items()}
        if self.classes is not None and self.label in examples:
            row["classes"] = len(self.classes) or int(examples[self.label].max()) + 1
        return html_table([row], f"{self.name}: {self.description}")


def masked_mean(values: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
    """The mean of per-example `values` (batch,) over the real examples of a padded batch; 0 when there are none."""
    mask = batch.get("mask")
    if mask is None:
        return jnp.mean(values)
    total = jnp.sum(jnp.where(mask, values, jnp.zeros((), values.dtype)))
    return total / jnp.maximum(jnp.sum(mask), 1).astype(values.dtype)


def at_least_float32(x: jax.Array) -> jax.Array:
    """x in float32 if its type is narrower: what a loss is computed of."""
    return x.astype(np.promote_types(x.dtype, np.float32))


def padded_loss(loss: LossFn, params: Tree, batch: Mapping[str, jax.Array], key: jax.Array) -> jax.Array:
    """Evaluate `loss` on a padded batch (with its `mask`) such that padding does not count.

    A loss that reads the mask is called with it. For any other, the mean over real examples of the loss of each alone.
    """
    traced = jax.make_jaxpr(lambda mask: loss(params, {**batch, "mask": mask}, key))(batch["mask"]).jaxpr
    (reads_mask,) = dce_jaxpr(traced, [True] * len(traced.outvars))[1]  # whether an output depends on the input
    if reads_mask:
        return loss(params, batch, key)
    examples = {name: value for name, value in batch.items() if name != "mask"}

    def loss_of_one(example: Tree, key: jax.Array) -> jax.Array:
        return loss(params, jax.tree.map(lambda a: a[None], example), key)

    losses = jax.vmap(loss_of_one)(examples, jax.random.split(key, batch["mask"].shape[0]))
    return masked_mean(losses, batch)


def with_compute_dtype(task: Task, dtype: str) -> Task:
    """Return `task` with its training loss computed in `dtype`.

    Parameters and floating-point inputs are cast at the beginning of every loss, each once, so both passes through the
    model are in `dtype`. In float32 stay the statistics of fedoptax's norms and, of the tasks of `load_task`, what is
    done to pixels before the model and to logits behind it; a loss of your own that wants the same casts its logits.
    Gradients come back in the parameters' own type, so steps, messages and states are as before. (Mixed precision as in
    Micikevicius et al. 2018; bfloat16 has the range of float32, so the loss needs no scaling.)

    Args:
      task: any task.
      dtype: `"bfloat16"`, or `"float32"` for the task as it is.

    Raises:
      UsageError: another type, or no task.

    Example:
      >>> import fedoptax as fx
      >>> task = fx.with_compute_dtype(fx.load_task("quadratic"), "bfloat16")
      >>> task.spec["compute_dtype"]
      'bfloat16'
    """
    check_task(task)
    check_choice("compute_dtype", dtype, DTYPES)
    if dtype == "float32":
        return task
    loss, narrow = task.loss, jnp.dtype(dtype)

    def cast(a: jax.Array) -> jax.Array:
        return a.astype(narrow) if jnp.issubdtype(a.dtype, jnp.floating) else a

    def narrow_loss(params: Tree, batch: Any, key: jax.Array) -> jax.Array:
        return loss(jax.tree.map(cast, params), jax.tree.map(cast, batch), key).astype(jnp.float32)

    return replace(task, loss=narrow_loss, spec={**task.spec, "compute_dtype": dtype})


def with_validation(task: Task, fraction: float) -> Task:
    """Return `task` with a share of each client's training examples held out, as its validation examples.

    A client of n examples gives the nearest whole number to fraction · n, but keeps at least one. Which ones is drawn
    by the seed of the partition, so all seeds of a comparison have the same. Test examples stay as they are. The arrays
    are copied to memory.

    Args:
      task: any task without validation examples.
      fraction: a number in (0, 1).

    Raises:
      UsageError: another number, no client has an example to spare, or the task has validation examples already.

    Example:
      >>> import fedoptax as fx
      >>> task = fx.with_validation(fx.load_task("digits"), 0.1)
      >>> int(task.clients.sizes.sum()), len(task.validation["y"])
      (1288, 150)
    """
    check_task(task)
    check_number("validation_fraction", fraction, 0, 1, open_low=True)
    if task.validation is not None:
        raise UsageError(f"task '{task.name}' must have no validation examples yet")
    clients, rest, owners = task.clients.split(fraction, task.spec.get("partition_seed", 0))
    if not len(owners):
        raise UsageError(f"validation_fraction must leave a client of task '{task.name}' examples, got {fraction}")
    total, givers = int(task.clients.offsets[-1]), len(np.unique(owners))
    note = f"validation: {len(owners):,} of {total:,} training examples, of {givers:,} clients"
    return replace(
        task,
        clients=clients,
        validation=rest,
        validation_owners=owners,
        spec={**task.spec, "validation_fraction": fraction},
        notes=(*task.notes, note),
    )


def check_task(task: Any) -> None:
    """Check that `task` is a `Task`."""
    if not isinstance(task, Task):
        raise UsageError(f"task must be a fedoptax.Task, such as load_task('digits'), got {task!r}")

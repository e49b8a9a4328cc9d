"""A federated learning problem: a model's loss and metrics, and the examples of its clients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._progress import html_table
from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError, check_choice, check_function, check_int, check_number, check_output, check_type
from fedoptax.tasks.metrics import METRICS, confusion
from fedoptax.tree import leaf_names, sum_dtype

Batch = Mapping[str, jax.Array]
"""Examples, field by field (batch, …), with their `mask` where some are padding."""
LossFn = Callable[[Tree, Batch, jax.Array], jax.Array]


class Frozen:
    """Arrays that a task's functions read but that are not trained, such as a pretrained base.

    Compiled programs take them as arguments: captured as they are, they would be constants, compiled in once more.
    """

    def __init__(self, arrays: Tree = ()) -> None:
        self._arrays: ContextVar[Tree] = ContextVar("arrays", default=arrays)

    def __reduce__(self) -> tuple[Any, ...]:  # a ContextVar cannot be pickled
        return type(self), (self.arrays,)

    @property
    def arrays(self) -> Tree:
        """The arrays; within `bound`, their tracers."""
        return self._arrays.get()

    @contextmanager
    def bound(self, arrays: Tree) -> Iterator[None]:
        """Let functions that are traced within it read these arrays."""
        token = self._arrays.set(arrays)
        try:
            yield
        finally:
            self._arrays.reset(token)


@dataclass(frozen=True, eq=False)
class Task:
    """A federated learning problem.

    Attributes:
      name: for tables and files.
      init: `key -> params`.
      loss: `(params, batch, key) -> scalar`, the mean loss over a batch `{field: array (batch, …)}`; `key` is for
        dropout. The last batch of a client may be padded: a loss that reads `batch["mask"]` (bool, True for a real
        example) handles that itself, see `masked_mean`; of any other, the mean over single real examples is taken.
      metrics: `(params, batch) -> {name: values}`, one row per example (batch, …), averaged over the test examples. A
        pair (values, weights) of one shape gives a weighted average, Σ weights · values / Σ weights; a
        `fedoptax.metrics.Metric` gives any number that follows from sums, or from all scores.
      clients: the training examples and who holds them.
      test: central test examples `{field: array (n, …)}`, or None.
      primary_metric: the metric that reports lead with; default `accuracy` if there is one, else the first by name.
      higher_is_better: of the primary metric, unless it is a `Metric`, which says so itself; None: by words in its
        name, such as `loss` and `error`.
      description: one line for people.
      spec: the options that build the task again, written to a run's config.
      label: the field that holds the class, for pictures of the partition; None if there is none.
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
      client_names: the names of the training clients, then of those that only test; None: their numbers.
      devices: if given, the number of clients, which hold no data of their own: each round the examples of `clients`,
        as many shares as the cohort has clients, are allocated to the active ones (Fed-LAMB, Section 4).
      frozen: the arrays that its functions read but that are not trained.
      client_weights: the clients' weights in a mean by examples, finite and above 0, in a deployment whole numbers,
        (clients,); None: their numbers of examples.
      is_pretrained: whether `init` starts from a trained model, so that runs also evaluate what it is before the first
        round.

    Raises:
      UsageError, DataError: an attribute is of another type, a function takes other arguments, a number is out of
        range, or the held-out examples do not fit each other, their owners or the clients' examples.
    """

    name: str
    init: Callable[[jax.Array], Tree]
    loss: LossFn
    metrics: Callable[[Tree, Batch], dict[str, Any]]
    clients: FederatedData
    test: Mapping[str, np.ndarray] | None = None
    primary_metric: str | None = None
    higher_is_better: bool | None = None
    description: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    label: str | None = "y"
    test_owners: np.ndarray | None = None
    validation: Mapping[str, np.ndarray] | None = None
    validation_owners: np.ndarray | None = None
    clip_norm: float | None = None
    eval_batch: int = 500
    notes: tuple[str, ...] = ()
    predict: Callable[[Tree, Batch], jax.Array] | None = None
    classes: Sequence[str] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    client_names: tuple[str, ...] | None = None
    devices: int | None = None
    frozen: Frozen = field(default_factory=Frozen)
    client_weights: np.ndarray | None = None
    is_pretrained: bool = False

    def __post_init__(self) -> None:
        for name, types in KINDS.items():
            check_type(f"{name} of task '{self.name}'", getattr(self, name), types)
        for name, arguments in FUNCTIONS.items():
            if name != "predict" or self.predict is not None:
                check_function(f"{name} of task '{self.name}'", getattr(self, name), arguments)
        self.clients.check_held_out("test", self.test, self.test_owners)
        self.clients.check_held_out("validation", self.validation, self.validation_owners)
        ends = [np.max(one) + 1 for one in (self.test_owners, self.validation_owners) if one is not None and len(one)]
        if self.client_names is not None and len(self.client_names) < (count := max([self.clients.num_clients, *ends])):
            raise UsageError(f"client_names must be {count} names or more, got {len(self.client_names)}")
        if self.devices is not None:
            check_int("devices", self.devices)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, 0, open_low=True)
        check_int("eval_batch", self.eval_batch)
        weights = self.weights
        if weights.shape != (self.clients.num_clients,) or not np.all((weights > 0) & np.isfinite(weights)):
            raise UsageError(f"client_weights of task '{self.name}' must be a number above 0 for each client")

    @property
    def weights(self) -> np.ndarray:
        """The weights of the clients (or shares, with `devices`) in a mean by examples, (clients,)."""
        return self.clients.sizes if self.client_weights is None else np.asarray(self.client_weights)

    def majority_rates(self) -> dict[str, float]:
        """Return by `test` and `val` the share of the commonest class, the accuracy of always saying it."""
        rates = {}
        for split, examples in {"test": self.test, "val": self.validation}.items():
            labels = np.asarray((examples or {}).get(self.label or "", ()))
            if self.classes is not None and len(labels) and labels.ndim == 1 and labels.dtype.kind in "iu":
                rates[split] = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
        return rates

    @property
    def num_clients(self) -> int:
        """N, the number of clients that cohorts are drawn from."""
        return self.clients.num_clients if self.devices is None else self.devices

    def __reduce__(self) -> tuple[Any, ...]:
        if "loader" not in vars(self):
            remedy = "only tasks of load_task can be; create it again in the other process"
            raise UsageError(f"task '{self.name}' cannot be pickled, because of its functions: {remedy}")
        return vars(self)["loader"], ()

    def __deepcopy__(self, memo: Any) -> "Task":
        return self  # nothing of it changes

    def _repr_html_(self) -> str:
        sizes, fields = self.clients.sizes, self.clients.examples.items()
        row: dict[str, Any] = {"clients": self.num_clients, "training examples": int(sizes.sum())}
        row["per client"] = f"{sizes.min():,} to {sizes.max():,}"
        row["test examples"] = max(map(len, (self.test or {}).values()), default=0)
        row |= {name: "×".join(map(str, array.shape[1:])) or "number" for name, array in fields}
        return html_table([row], f"{self.name}: {self.description}")


FUNCTIONS = {"init": "key", "loss": "params, batch, key", "metrics": "params, batch", "predict": "params, batch"}
KINDS: dict[str, Any] = {
    "clients": FederatedData, "test": Mapping | None, "validation": Mapping | None, "higher_is_better": bool | None,
    "classes": list | tuple | np.ndarray | None,
}  # fmt: skip


def jit(task: Task, function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` of a function that calls the task's, with the task's frozen arrays as an argument of the program."""

    def with_frozen(arrays: Tree, *arguments: Any) -> Any:
        with task.frozen.bound(arrays):
            return function(*arguments)

    return partial(jax.jit(with_frozen, **options), task.frozen.arrays)


def masked_mean(values: jax.Array, batch: Batch) -> jax.Array:
    """The mean of per-example `values` (batch,) over the real examples of a padded batch; 0 when there are none.

    It is computed in at least float32 and returned so; whole numbers and booleans count as floating-point ones. Values
    of another shape than the mask, or without one not of one dimension, are a `UsageError`.
    """
    mask = batch.get("mask")
    numbers = check_output("values", values, (None,) if mask is None else mask.shape, "real", verb="be")
    numbers = numbers.astype(sum_dtype(numbers))
    if mask is None:
        return jnp.mean(numbers)
    total = jnp.sum(jnp.where(mask, numbers, jnp.zeros((), numbers.dtype)))
    return total / jnp.maximum(jnp.sum(mask), 1).astype(numbers.dtype)


def at_least_float32(x: jax.Array) -> jax.Array:
    """x in float32 if its type is narrower, for losses."""
    return x.astype(np.promote_types(x.dtype, np.float32))


def padded_loss(loss: LossFn, params: Tree, batch: Batch, key: jax.Array, name: str = "loss") -> jax.Array:
    """Evaluate `loss` on a padded batch (with its `mask`) such that padding does not count.

    A loss whose value depends on the mask is called with it. For any other, the mean over real examples of the loss of
    each alone. One that returns anything but a floating-point number is a `UsageError`, which calls it `name`.
    """

    def loss_of(batch: Tree, key: jax.Array = key) -> jax.Array:
        return check_output(name, loss(params, batch, key))

    mask = batch["mask"]
    if depends_on_argument(lambda mask: loss_of({**batch, "mask": mask}), mask):
        return loss_of(batch)
    rows = jax.tree.map(lambda a: a[:, None], {**batch, "mask": jnp.ones_like(mask)})
    return masked_mean(jax.vmap(loss_of)(rows, jax.random.split(key, len(mask))), batch)


def depends_on_argument(function: Callable[[Any], Any], argument: Any) -> bool:
    """Whether the arrays that `function` returns depend on its argument (arrays, or structs); nothing is computed.

    `jax.vmap` over the argument alone does not map outputs that do not depend on it.
    """
    stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), argument)
    try:
        jax.eval_shape(jax.vmap(function, out_axes=None), stacked)
    except ValueError:  # JAX refuses a mapped output; an error of the function itself comes again when it is called
        return True
    return False


def with_compute_dtype(task: Task, dtype: str) -> Task:
    """Return `task` with its training loss computed in `dtype`.

    Parameters and floating-point inputs are cast at the beginning of every loss, each once, so both passes through the
    model are in `dtype`. In float32 stay the statistics of fedoptax's norms and, of the tasks of `load_task`, what is
    done to pixels before the model and to logits behind it; a loss of your own that wants the same casts its logits.
    Gradients come back in the parameters' own type, so steps, messages and states are as before. (Mixed precision as in
    Micikevicius et al. 2018; bfloat16 has the range of float32, so the loss needs no scaling.)

    `dtype` is `"bfloat16"`, or `"float32"` for the task as it is; another one is a `UsageError`.

    Example:
      >>> import fedoptax as fx
      >>> task = fx.with_compute_dtype(fx.load_task("quadratic"), "bfloat16")
      >>> task.spec["compute_dtype"]
      'bfloat16'
    """
    check_task(task)
    check_choice("compute_dtype", dtype, ("float32", "bfloat16"))
    if dtype == "float32":
        return task
    loss, narrow = task.loss, jnp.dtype(dtype)

    def cast(a: jax.Array) -> jax.Array:
        return a.astype(narrow) if jnp.issubdtype(a.dtype, jnp.floating) else a

    def narrow_loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        value = loss(jax.tree.map(cast, params), jax.tree.map(cast, batch), key)
        return check_output(f"loss of task '{task.name}'", value).astype(jnp.float32)

    return replace(task, loss=narrow_loss, spec={**task.spec, "compute_dtype": dtype})


def with_validation(task: Task, fraction: float) -> Task:
    """Return `task` with a share of each client's training examples held out, as its validation examples.

    A client of n examples gives the nearest whole number to fraction · n, but keeps at least one. Which ones is drawn
    by the seed of the partition, so all seeds of a comparison have the same. Test examples and
    `client_weights` stay as they are. The arrays are copied to memory.

    It is a `UsageError` if `fraction` is not in (0, 1), no client gives an example, or there are such examples.

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
        raise UsageError(f"validation_fraction must hold out an example of task '{task.name}', got {fraction}")
    total, givers = int(task.clients.offsets[-1]), len(np.unique(owners))
    note = f"validation: {len(owners):,} of {total:,} training examples, of {givers:,} clients"
    spec, notes = {**task.spec, "validation_fraction": fraction}, (*task.notes, note)
    return replace(task, clients=clients, validation=rest, validation_owners=owners, spec=spec, notes=notes)


def with_metrics(task: Task, names: str) -> Task:
    """Return a task of classes with further metrics, by name.

    The positive class, of two, is the one that a table's schema says, else the second.

    `names`, separated by commas, are of `fedoptax.metrics.METRICS`, or `confusion` for `fedoptax.metrics.confusion`. An
    unknown one is a `UsageError`, as is a task without `predict` for probabilities, or whole numbers (n,) as labels.
    """
    check_task(task)
    check_type("metrics", names, str)
    chosen, predict, metrics, label = names.split(","), task.predict, task.metrics, task.label or ""
    for name in chosen:
        check_choice("metrics", name, [*METRICS, "confusion"])
    labels = task.clients.examples.get(label, np.zeros(0))
    if predict is None or task.classes is None or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(f"metrics '{names}' need a task that predicts classes, and '{task.name}' does not")
    positive = positive_class(task)

    def more(params: Tree, batch: Batch) -> dict[str, Any]:
        outputs, values = predict(params, batch), dict(metrics(params, batch))
        values |= {name: METRICS[name](outputs, batch[label], positive) for name in chosen if name != "confusion"}
        names = task.classes or list(map(str, range(outputs.shape[-1])))
        return values | (confusion(outputs, batch[label], names) if "confusion" in chosen else {})

    return replace(task, metrics=more, spec={**task.spec, "metrics": names})


def positive_class(task: Task) -> int:
    """Return which class of two is the positive one: as a table's schema says, else the second."""
    stated = task.inputs.get("positive")
    return 1 if stated is None else list(task.classes or ()).index(stated)


def check_task(task: Any) -> None:
    """Check that `task` is a `Task` whose functions can be called and whose parameters are arrays."""
    if not isinstance(task, Task):
        raise UsageError(f"task must be a fedoptax.Task, such as load_task('digits'), got {task!r}")
    _check_parameters(task)


@lru_cache(maxsize=4)
def _check_parameters(task: Task) -> None:
    def check(key: jax.Array) -> None:
        params = task.init(key)
        try:
            leaves = list(zip(leaf_names(params), jax.tree.leaves(params)))
        except ValueError as error:  # keys that cannot be sorted
            raise UsageError(f"init of task '{task.name}' must return a tree of arrays: {error}") from error
        if not leaves:
            raise UsageError(f"init of task '{task.name}' must return at least one array, got {params!r}")
        for path, leaf in leaves:
            name = f"parameter '{path}' of task '{task.name}'"
            if isinstance(leaf, bool | int | float | complex):
                raise UsageError(f"{name} must be an array of floating-point numbers, got {leaf!r}")
            check_output(name, leaf, np.shape(leaf), verb="be")

    jax.eval_shape(check, jax.random.key(0))

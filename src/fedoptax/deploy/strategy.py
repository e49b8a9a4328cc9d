"""`FedoptaxStrategy`: the FedOpt algorithms in place of the strategy of an existing Flower project.

The clients stay as they are: ClientApps that train a model and return its parameters and the number of examples, as
Flower's own `FedAvg` wants them. So it takes the algorithms whose server sends the parameters alone and takes back
their change: FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi, FedAMS. The rate of the local steps is then the
ClientApp's. For the others, whose clients do more, there are the apps of `fedoptax.deploy.flower`.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedoptax.algorithm import FedAlgorithm, Tree, weighted_mean
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptUpload
from fedoptax.deploy.flower import flower_log
from fedoptax.deploy.options import UPLOAD_BOUND
from fedoptax.deploy.server import Reply, UploadBound, check_count, is_float32, next_state
from fedoptax.deploy.wire import REASON, WireError, check_values, shown
from fedoptax.engine.client_states import OnDevice
from fedoptax.errors import UsageError, check_int, check_number
from fedoptax.storage.checkpoint import restore_checkpoint, rounds_of, save_checkpoint

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # of PyTorch's normalisation layers
Named = dict[str, np.ndarray]


def is_buffer(name: str, array: np.ndarray) -> bool:
    """Return whether an array is a statistic of batch normalisation, or holds no real numbers: not a parameter."""
    return name.rsplit(".", 1)[-1] in BUFFERS or not np.issubdtype(array.dtype, np.floating)


class FedoptaxStrategy(FedAvg):
    """Flower's FedAvg with a `FedAlgorithm` of the FedOpt family as its server.

    Statistics (`buffer`) are averaged; the server's optimizer never sees them. A reply with other names, shapes or
    dtypes than the model's, numbers that are not finite, a count out of range or a change out of all proportion to the
    others' is left out and logged.

    Args:
      algorithm: the algorithm.
      seed: of the choice of nodes, a function of it and the round.
      max_examples: the most examples that a client is believed to have.
      upload_bound: how many times larger than the others' a client's change may be, see `UploadBound`; 0 is any.
      buffer: `(name, array) -> bool`, which arrays are statistics.
      checkpoint: a folder; the server's whole state is saved there after every round that changed it, and `start`
        continues from it.
      **options: Flower's for `FedAvg`, such as `fraction_train` and `min_available_nodes`.

    A number out of range is a `UsageError`.
    """

    def __init__(
        self,
        algorithm: FedAlgorithm,
        *,
        seed: int = 0,
        max_examples: int = 10**9,
        upload_bound: float = UPLOAD_BOUND,
        buffer: Callable[[str, np.ndarray], bool] = is_buffer,
        checkpoint: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_number("upload_bound", upload_bound, 0)
        self.algorithm, self.buffer, self.seed = algorithm, buffer, seed
        self.max_examples, self._bound = check_int("max_examples", max_examples), UploadBound(upload_bound, None)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds as Flower's `FedAvg` does, after the last saved one if there is a checkpoint."""
        self._begin(initial_arrays)
        done = 0
        if self._checkpoint is not None and rounds_of(self._checkpoint):
            done, state = restore_checkpoint(self._checkpoint, self._state(), OnDevice((), 0), num_rounds)
            self._put(*state)
            flower_log.info("continuing after round %d", done)
        self._done = done
        evaluate = evaluate_fn and (lambda number, arrays: evaluate_fn(number + done, arrays))
        rest, configs = num_rounds - done, (train_config, evaluate_config)
        result = super().start(grid, self._arrays(), rest, timeout, *configs, evaluate_fn=evaluate)
        result.arrays = self._arrays()
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, name, {number + done: metrics for number, metrics in getattr(result, name).items()})
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the round's messages: the model, to a fraction of the nodes."""
        return super().configure_train(*self._drawing("train", server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the server with all valid replies; without any, or if it is not finite, nothing changes.

        The metrics are the means of those that all valid replies have, and `replies`, their number.
        """
        sound = dict(_sound(replies, self._read))
        if not sound:
            return None, None
        params, statistics = self._split()
        updates: dict[int, Reply] = {}
        for node, (model, metrics, count) in sound.items():
            change = {name: model[name] - self._model[name] for name in params}
            loss = metrics.get("train_loss", metrics.get("train-loss", 0.0))
            updates[node] = Reply(FedOptUpload(change, ()), loss, count)
        for node, reason in self._bound.find_outliers(updates).items():
            flower_log.info("node %s: reply left out: %s", node, reason)
            del updates[node], sound[node]
        cohort, size = list(updates.values()), max(self._num_nodes, len(sound))
        server, _, is_finite = next_state(self.algorithm, self._server, cohort, self.algorithm.weighting, size)
        if not is_finite:
            flower_log.info("round %d changes nothing: the server's new state is not finite", server_round)
            return None, None
        self._bound = self._bound.learn(updates)
        sent_back = [{name: jnp.asarray(model[name]) for name in statistics} for model, _, _ in sound.values()]
        self._put(server, weighted_mean(sent_back, [reply.examples for reply in cohort]))
        if self._checkpoint is not None:
            save_checkpoint(self._checkpoint, server_round + self._done, self._state(), OnDevice((), 0))
        means = _mean([(metrics, count) for _, metrics, count in sound.values()])
        return self._arrays(), MetricRecord({**means, "replies": len(sound)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the model, to a fraction of the nodes."""
        return super().configure_evaluate(*self._drawing("evaluate", server_round, arrays, config, grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of the metrics that all valid replies have, weighted by their examples."""
        rows = [row for _, row in _sound(replies, self._read_metrics)]
        return MetricRecord(_mean(rows)) if rows else None

    def _begin(self, arrays: ArrayRecord) -> None:
        self._model = {name: array.numpy() for name, array in arrays.items()}
        self._server = self.algorithm.init(self._split()[0])
        message = self.algorithm.broadcast(self._server)
        if not isinstance(message, FedOptMessage) or jax.tree.leaves((message.lr, message.shared)):
            raise UsageError(
                "algorithm must be FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi, FedAMS with a constant rate; the "
                "clients of the others do more than train (see fedoptax deploy init)"
            )

    def _drawing(
        self, kind: str, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[int, ArrayRecord, ConfigRecord, Any]:
        """Return FedAvg's arguments, so that it draws by our seed: it takes Python's generator and the nodes' order."""
        number += self._done
        random.seed(f"{self.seed} {kind} {number}")
        self._num_nodes = len(list(grid.get_node_ids()))
        return number, arrays, config, SimpleNamespace(get_node_ids=lambda: sorted(grid.get_node_ids()))

    def _read(self, content: RecordDict) -> tuple[Named, dict[str, float], int]:
        """Return the model, the metrics and the number of examples of a reply."""
        if len(content.array_records) != 1:
            raise WireError(f"{len(content.array_records)} ArrayRecords instead of 1")
        (arrays,) = content.array_records.values()
        if arrays.keys() != self._model.keys():
            raise WireError(f"arrays {shown(list(arrays))} instead of {shown(list(self._model))}")
        model = {name: _read_array(name, arrays[name], like) for name, like in self._model.items()}
        return model, *self._read_metrics(content)

    def _read_metrics(self, content: RecordDict) -> tuple[dict[str, float], int]:
        """Return the metrics of a reply, all of them finite, and its number of examples."""
        if len(content.metric_records) != 1:
            raise WireError(f"{len(content.metric_records)} MetricRecords instead of 1")
        (metrics,) = content.metric_records.values()
        count = check_count(metrics, self.max_examples)
        values = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        for name, value in values.items():
            if not is_float32(value):
                raise WireError(f"{shown(name)}: {value} instead of a finite number of float32")
        return {name: value for name, value in values.items() if name != "num-examples"}, count

    def _split(self) -> tuple[Tree, Tree]:
        """Return the model's parameters and statistics."""
        arrays = {name: jnp.asarray(array) for name, array in self._model.items()}
        statistics = {name: arrays[name] for name, array in self._model.items() if self.buffer(name, array)}
        return {name: array for name, array in arrays.items() if name not in statistics}, statistics

    def _put(self, server: Tree, statistics: Tree) -> None:
        self._server, arrays = server, {**statistics, **self.algorithm.params(server)}
        self._model |= {name: np.asarray(array).astype(self._model[name].dtype) for name, array in arrays.items()}

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord({name: Array(array) for name, array in self._model.items()})

    def _state(self) -> Tree:
        return self._server, self._split()[1]


def _sound(replies: Iterable[Message], read: Callable[[RecordDict], Any]) -> Iterator[tuple[int, Any]]:
    """Yield each node with the result of `read` for its reply, in the nodes' order; refused replies are logged."""
    for message in sorted(replies, key=lambda message: message.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            if message.has_error():
                raise WireError(f"error {message.error.code}: {shown(message.error.reason)}")
            yield node, read(message.content)
        except Exception as error:  # untrusted content in whatever form
            flower_log.info("node %s: reply left out: %s: %s", node, type(error).__name__, shown(error, REASON))


def _read_array(name: str, array: Array, like: np.ndarray) -> np.ndarray:
    """Return an array of a reply, whose declaration and bytes must have the form of the model's and finite numbers."""
    wanted, form = f"{like.dtype.name}{list(like.shape)}", f"{array.dtype}{list(array.shape)}"
    if form == wanted:
        value = array.numpy()
        form = f"{value.dtype.name}{list(value.shape)}"
    if form != wanted:
        raise WireError(f"array '{name}': {shown(form)} instead of {wanted}")
    return check_values(name, value)


def _mean(rows: Sequence[tuple[dict[str, float], int]]) -> dict[str, float]:
    """Return the means of the metrics that all replies have, weighted by their examples."""
    names, total = set.intersection(*(set(values) for values, _ in rows)), sum(count for _, count in rows)
    return {name: sum(values[name] * count for values, count in rows) / total for name in sorted(names)}

"""`FedoptaxStrategy`: the FedOpt algorithms in place of the strategy of an existing Flower project.

The clients stay as they are: ClientApps that train a model and return its parameters and the number of examples, as
Flower's own `FedAvg` wants them. So it takes the algorithms whose server sends the parameters alone and takes back
their change: FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi, FedAMS. The rate of the local steps is then the
ClientApp's. For the others, whose clients do more, there are the apps of `fedoptax.deploy.flower`.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedoptax.algorithm import FedAlgorithm, Tree, weighted_mean
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptUpload
from fedoptax.deploy.flower import flower_log, from_record
from fedoptax.deploy.options import UPLOAD_BOUND
from fedoptax.deploy.server import Reply, UploadBound, check_count, is_float32, next_state
from fedoptax.deploy.wire import WireError, shown, unpack
from fedoptax.engine.client_states import OnDevice
from fedoptax.errors import UsageError, check_int, check_number
from fedoptax.storage.checkpoint import restore_checkpoint, rounds_of, save_checkpoint
from fedoptax.tree import escape_key

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # of PyTorch's normalisation layers
Named = dict[str, np.ndarray]


def is_buffer(name: str, array: np.ndarray) -> bool:
    """Return whether an array is a statistic of batch normalisation, or holds no real numbers: not a parameter."""
    return name.rsplit(".", 1)[-1] in BUFFERS or not np.issubdtype(array.dtype, np.floating)


class FedoptaxStrategy(Strategy):
    """A Flower strategy with the server of a `FedAlgorithm` of the FedOpt family.

    Statistics (`buffer`) are averaged; the server's optimizer never sees them. A reply with other names, shapes or
    dtypes than the model's, numbers that are not finite, a count out of range or a change out of all proportion to the
    others' is left out and logged.

    Args:
      algorithm: the algorithm.
      fraction_train: the fraction of the connected nodes that trains in a round, in (0, 1].
      fraction_evaluate: the fraction that evaluates, in [0, 1].
      min_nodes: a round waits for this many connected nodes, and asks at least this many.
      seed: of the choice of nodes, a function of it and the round.
      max_examples: the most examples that a client is believed to have.
      upload_bound: how many times larger than the others' a client's change may be, see `UploadBound`; 0 is any.
      buffer: `(name, array) -> bool`, which arrays are statistics.
      checkpoint: a folder; the server's whole state is saved there after every round, and `start` continues from it.

    Raises:
      UsageError: a number is out of range.
    """

    def __init__(
        self,
        algorithm: FedAlgorithm,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_nodes: int = 2,
        seed: int = 0,
        max_examples: int = 10**9,
        upload_bound: float = UPLOAD_BOUND,
        buffer: Callable[[str, np.ndarray], bool] = is_buffer,
        checkpoint: str | Path | None = None,
    ) -> None:
        check_number("fraction_train", fraction_train, 0, 1, open_low=True, open_high=False)
        check_number("fraction_evaluate", fraction_evaluate, 0, 1, open_high=False)
        check_number("upload_bound", upload_bound, 0)
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_nodes, self.max_examples = check_int("min_nodes", min_nodes), check_int("max_examples", max_examples)
        self.algorithm, self.buffer, self.seed = algorithm, buffer, seed
        self._bound = UploadBound(upload_bound, None)
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
        """Run the rounds as Flower's `Strategy.start` does, after the last saved one if there is a checkpoint."""
        self.summary()
        self._begin(initial_arrays)
        result, done = Result(), self._restore(num_rounds)
        result.arrays = self._arrays()

        def evaluate_here(number: int) -> None:
            if evaluate_fn and (metrics := evaluate_fn(number, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        if done == 0:
            evaluate_here(0)
        for number in range(done + 1, num_rounds + 1):
            flower_log.info("[ROUND %d/%d]", number, num_rounds)
            messages = self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid)
            arrays, trained = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))
            if arrays is not None and trained is not None:
                result.arrays, result.train_metrics_clientapp[number] = arrays, trained
            if self._checkpoint is not None:
                save_checkpoint(self._checkpoint, number, self._state(), OnDevice((), 0))
            messages = self.configure_evaluate(number, result.arrays, evaluate_config or ConfigRecord(), grid)
            tested = self.aggregate_evaluate(number, grid.send_and_receive(messages, timeout=timeout))
            if tested is not None:
                result.evaluate_metrics_clientapp[number] = tested
            evaluate_here(number)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the round's messages: the model, to a fraction of the nodes."""
        return self._messages(server_round, arrays, config, grid, self.fraction_train, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the server with all valid replies; without any, or if it is not finite, nothing changes."""
        sound = dict(_sound(replies, self._read))
        if not sound:
            return None, None
        params, statistics = self._split()
        updates: dict[int, Reply] = {}
        for node, (model, count, loss) in sound.items():
            change = {name: model[name] - self._model[name] for name in params}
            updates[node] = Reply(FedOptUpload(change, ()), loss, count)
        for node, reason in self._bound.find_outliers(updates).items():
            flower_log.info("node %s: reply left out: %s", node, reason)
            del updates[node], sound[node]
        cohort, size = list(updates.values()), max(self._num_nodes, len(sound))
        server, loss, is_finite = next_state(self.algorithm, self._server, cohort, self.algorithm.weighting, size)
        if not is_finite:
            flower_log.info("round %d changes nothing: the server's new state is not finite", server_round)
            return None, None
        self._bound = self._bound.learn(updates)
        sent_back = [{name: jnp.asarray(model[name]) for name in statistics} for model, _, _ in sound.values()]
        self._put(server, weighted_mean(sent_back, [reply.examples for reply in cohort]))
        return self._arrays(), MetricRecord({"train-loss": loss, "replies": len(sound)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the model, to a fraction of the nodes."""
        return self._messages(server_round, arrays, config, grid, self.fraction_evaluate, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of the metrics that all valid replies have, weighted by their examples."""
        rows = [row for _, row in _sound(replies, self._read_metrics)]
        if not rows:
            return None
        names = set.intersection(*(set(values) for values, _ in rows)) - {"num-examples"}
        total = sum(count for _, count in rows)
        return MetricRecord({n: sum(count * values[n] for values, count in rows) / total for n in sorted(names)})

    def summary(self) -> None:
        """Log the strategy's settings."""
        flower_log.info("FedoptaxStrategy: %g of the nodes per round, seed %d", self.fraction_train, self.seed)

    def _begin(self, arrays: ArrayRecord) -> None:
        self._model = {name: array.numpy() for name, array in arrays.items()}
        self._server = self.algorithm.init(self._split()[0])
        message = self.algorithm.broadcast(self._server)
        if not isinstance(message, FedOptMessage) or jax.tree.leaves((message.lr, message.shared)):
            raise UsageError(
                "algorithm must be FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi, FedAMS with a constant rate; the "
                "clients of the others do more than train (see fedoptax deploy init)"
            )

    def _messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, fraction: float, kind: str
    ) -> list[Message]:
        if fraction == 0:
            return []
        while len(nodes := sorted(grid.get_node_ids())) < self.min_nodes:
            flower_log.info("waiting for nodes: %d of %d are connected", len(nodes), self.min_nodes)
            time.sleep(1)
        self._num_nodes, config["server-round"] = len(nodes), number
        size = max(self.min_nodes, int(fraction * len(nodes)))
        chosen = random.Random(f"{self.seed} {kind} {number}").sample(nodes, size)
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, kind) for node in chosen]

    def _read(self, content: RecordDict) -> tuple[Named, int, float]:
        """Return the model, the number of examples and the training loss (0 if there is none) of a reply."""
        values, count = self._read_metrics(content)
        arrays = from_record(_only(content.array_records, "ArrayRecord"))
        like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in self._model.items()}
        model = unpack({escape_key(name): array for name, array in arrays.items()}, like)
        return model, count, values.get("train-loss", values.get("train_loss", 0.0))

    def _read_metrics(self, content: RecordDict) -> tuple[dict[str, float], int]:
        """Return the metrics of a reply, all of them finite, and its number of examples."""
        metrics = _only(content.metric_records, "MetricRecord")
        values = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        for name, value in values.items():
            if not is_float32(value):
                raise WireError(f"{shown(name)}: {value} instead of a finite number of float32")
        return values, check_count(metrics, self.max_examples)

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

    def _restore(self, num_rounds: int) -> int:
        if self._checkpoint is None or not rounds_of(self._checkpoint):
            return 0
        done, state = restore_checkpoint(self._checkpoint, self._state(), OnDevice((), 0), num_rounds)
        self._put(*state)
        flower_log.info("continuing after round %d", done)
        return done


def _sound(replies: Iterable[Message], read: Callable[[RecordDict], Any]) -> Iterator[tuple[int, Any]]:
    """Yield each node with the result of `read` for its reply, in the nodes' order; refused replies are logged."""
    for message in sorted(replies, key=lambda message: message.metadata.src_node_id):
        node = message.metadata.src_node_id
        try:
            if message.has_error():
                raise WireError(f"error {message.error.code}: {shown(message.error.reason)}")
            yield node, read(message.content)
        except WireError as error:
            flower_log.info("node %s: reply left out: %s", node, error)


def _only(records: Any, kind: str) -> Any:
    if len(records) != 1:
        raise WireError(f"{len(records)} {kind}s instead of 1")
    return next(iter(records.values()))

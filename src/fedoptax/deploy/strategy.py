"""`FedoptaxStrategy`: the FedOpt algorithms in place of the strategy of an existing Flower project.

The clients stay as they are: ClientApps that train a model and return its parameters and the number of examples, as
Flower's own `FedAvg` wants them. So it takes the algorithms whose server sends the parameters alone and takes back
their change: FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi, FedAMS. The rate of the local steps is then the
ClientApp's. For the others, whose clients do more, there is `flower_server` with `flower_client`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from logging import INFO
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore import log

from fedoptax.algorithm import FedAlgorithm, Tree, weighted_mean
from fedoptax.algorithms.fedopt import FedOptMessage, FedOptUpload
from fedoptax.deploy.flower_records import from_record
from fedoptax.deploy.server import Reply, believable, next_state
from fedoptax.deploy.wire import WireError, escaped, shown, unpack
from fedoptax.engine.client_states import OnDevice
from fedoptax.errors import UsageError
from fedoptax.storage.checkpoint import Checkpoints

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # of PyTorch's normalisation layers
Named = dict[str, np.ndarray]


def is_buffer(name: str, array: np.ndarray) -> bool:
    """Whether an array is a statistic of batch normalisation, or holds no real numbers: not a parameter."""
    return name.rsplit(".", 1)[-1] in BUFFERS or not np.issubdtype(array.dtype, np.floating)


class FedoptaxStrategy(Strategy):
    """A Flower strategy whose server is a `FedAlgorithm` of the FedOpt family.

    Statistics (`buffer`) are averaged as they come back; the server's optimizer never sees them. A reply with other
    names, shapes or dtypes than the model's, with numbers that are not finite or a count out of range is left out and
    logged.

    Args:
      algorithm: the algorithm.
      fraction_train: the part of the connected nodes that trains in a round, in (0, 1].
      fraction_evaluate: the part that evaluates, in [0, 1].
      min_nodes: a round waits for so many connected nodes, and asks at least so many.
      seed: of the choice of nodes, a function of it and the round.
      max_examples: the most examples that a client is believed to have.
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
        buffer: Callable[[str, np.ndarray], bool] = is_buffer,
        checkpoint: str | Path | None = None,
    ) -> None:
        if not 0 < fraction_train <= 1 or not 0 <= fraction_evaluate <= 1:
            given = f"{fraction_train!r}, {fraction_evaluate!r}"
            raise UsageError(
                f"fraction_train, fraction_evaluate: {given} given, allowed is a part of the nodes up to 1"
            )
        if min_nodes < 1 or max_examples < 1:
            raise UsageError(f"min_nodes, max_examples: {min_nodes}, {max_examples} given, allowed is 1 or more")
        self.algorithm, self.buffer, self.seed = algorithm, buffer, seed
        self.fraction_train, self.fraction_evaluate, self.min_nodes = fraction_train, fraction_evaluate, min_nodes
        self.max_examples = max_examples
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._server: Tree = None
        self._model: Named = {}  # as it was last sent
        self._num_nodes = 0

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
        """Runs the rounds as Flower's `Strategy.start` does, from the last saved one on if there is a checkpoint."""
        self.summary()
        self._begin(initial_arrays)
        checkpoints = None if self._checkpoint is None else Checkpoints(self._checkpoint)
        result, done = Result(), 0
        if checkpoints is not None and checkpoints.rounds():
            done = self._restore(checkpoints, num_rounds)
        result.arrays = self._arrays()
        if evaluate_fn and done == 0 and (metrics := evaluate_fn(0, result.arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = metrics
        for number in range(done + 1, num_rounds + 1):
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            asked = self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid)
            arrays, trained = self.aggregate_train(number, grid.send_and_receive(asked, timeout=timeout))
            if arrays is not None and trained is not None:
                result.arrays, result.train_metrics_clientapp[number] = arrays, trained
            if checkpoints is not None:
                checkpoints.save(number, self._saved(), OnDevice((), 0))
            asked = self.configure_evaluate(number, result.arrays, evaluate_config or ConfigRecord(), grid)
            tested = self.aggregate_evaluate(number, grid.send_and_receive(asked, timeout=timeout))
            if tested is not None:
                result.evaluate_metrics_clientapp[number] = tested
            if evaluate_fn and (metrics := evaluate_fn(number, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[number] = metrics
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's messages: the model, to a part of the nodes."""
        if self._server is None:
            self._begin(arrays)
        return self._messages(server_round, arrays, config, grid, self.fraction_train, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's update with all sound replies; without any, or if it is not finite, nothing changes."""
        sound: list[tuple[int, Named, int, float]] = []
        for message in replies:
            try:
                sound.append((message.metadata.src_node_id, *self._read(message)))
            except WireError as error:
                log(INFO, "node %s: reply left out: %s", message.metadata.src_node_id, error)
        if not sound:
            return None, None
        sound.sort(key=lambda reply: reply[0])  # the sum does not depend on who was first
        statistics = [name for name, array in self._model.items() if self.buffer(name, array)]
        updates = [
            Reply(
                FedOptUpload({n: model[n] - self._model[n] for n in self._model if n not in statistics}, ()),
                loss,
                count,
            )
            for _, model, count, loss in sound
        ]
        size = max(self._num_nodes, len(sound))
        server, loss, finite = next_state(self.algorithm, self._server, updates, self.algorithm.weighting, size)
        if not finite:
            log(INFO, "round %d changes nothing: the server's new state is not finite", server_round)
            return None, None
        self._server = server
        if statistics:
            mean = weighted_mean(
                [{n: jnp.asarray(model[n]) for n in statistics} for _, model, _, _ in sound],
                [count for _, _, count, _ in sound],
            )
            self._model |= {n: np.asarray(mean[n]).astype(self._model[n].dtype) for n in statistics}
        self._take_params()
        return self._arrays(), MetricRecord({"train-loss": loss, "replies": len(sound)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model, to a part of the nodes."""
        if self.fraction_evaluate == 0:
            return []
        return self._messages(server_round, arrays, config, grid, self.fraction_evaluate, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the metrics that all sound replies have, weighted by their examples."""
        rows: list[tuple[int, dict[str, float]]] = []
        for message in replies:
            try:
                numbers = _only(_content(message).metric_records, "MetricRecord")
                rows.append((self._count(numbers), _finite_numbers(numbers)))
            except WireError as error:
                log(INFO, "node %s: reply left out: %s", message.metadata.src_node_id, error)
        if not rows:
            return None
        names = set.intersection(*(set(values) for _, values in rows)) - {"num-examples"}
        total = sum(count for count, _ in rows)
        return MetricRecord({n: sum(count * values[n] for count, values in rows) / total for n in sorted(names)})

    def summary(self) -> None:
        """Logs what the strategy is."""
        log(INFO, "FedoptaxStrategy: %g of the nodes a round, seed %d", self.fraction_train, self.seed)

    def _begin(self, arrays: ArrayRecord) -> None:
        self._model = {name: array.numpy() for name, array in arrays.items()}
        params = {n: jnp.asarray(a) for n, a in self._model.items() if not self.buffer(n, a)}
        self._server = self.algorithm.init(params)
        message = self.algorithm.broadcast(self._server)
        plain = isinstance(message, FedOptMessage) and not jax.tree.leaves((message.lr, message.client_opt_state))
        if not plain:
            raise UsageError(
                "algorithm: its clients do more than train the model; allowed here are FedAvg, FedAvgM, FedAdagrad, "
                "FedAdam, FedYogi and FedAMS with a constant client rate (for others: fedoptax deploy init)"
            )

    def _messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, fraction: float, kind: str
    ) -> list[Message]:
        _, connected = sample_nodes(grid, self.min_nodes, self.min_nodes)  # waits for them; its own choice has no seed
        self._num_nodes = len(connected)
        wanted = max(self.min_nodes, int(fraction * len(connected)))
        chosen = random.Random(f"{self.seed} {kind} {number}").sample(sorted(connected), wanted)
        config["server-round"] = number
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, kind) for node in chosen]

    def _read(self, message: Message) -> tuple[Named, int, float]:
        """Model, examples and training loss (0 if there is none) of a reply."""
        content = _content(message)
        numbers = _only(content.metric_records, "MetricRecord")
        given = from_record(_only(content.array_records, "ArrayRecord"))
        like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in self._model.items()}
        model = unpack({escaped(name): array for name, array in given.items()}, like)
        values = _finite_numbers(numbers)
        return model, self._count(numbers), values.get("train-loss", values.get("train_loss", 0.0))

    def _count(self, numbers: Any) -> int:
        count = numbers.get("num-examples")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= self.max_examples:
            raise WireError(f"num-examples: {shown(count)} instead of a whole number from 1 to {self.max_examples}")
        return count

    def _take_params(self) -> None:
        params = self.algorithm.params(self._server)
        self._model |= {name: np.asarray(a).astype(self._model[name].dtype) for name, a in params.items()}

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord({name: Array(array) for name, array in self._model.items()})

    def _saved(self) -> Tree:
        return self._server, {n: jnp.asarray(a) for n, a in self._model.items() if self.buffer(n, a)}

    def _restore(self, checkpoints: Checkpoints, num_rounds: int) -> int:
        done, (self._server, statistics) = checkpoints.restore(self._saved(), OnDevice((), 0), num_rounds)
        self._model |= {n: np.asarray(a).astype(self._model[n].dtype) for n, a in statistics.items()}
        self._take_params()
        log(INFO, "continuing after round %d", done)
        return done


def _content(message: Message) -> RecordDict:
    if message.has_error():
        raise WireError(f"error {message.error.code}: {shown(message.error.reason)}")
    return message.content


def _only(records: Any, kind: str) -> Any:
    if len(records) != 1:
        raise WireError(f"{len(records)} {kind}s instead of 1")
    return next(iter(records.values()))


def _finite_numbers(numbers: Any) -> dict[str, float]:
    values = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
    for name, value in values.items():
        if not believable(value):
            raise WireError(f"{shown(name)}: {value} instead of a finite number of float32")
    return values

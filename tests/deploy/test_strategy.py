"""`FedoptaxStrategy` in a Flower project: the simulation's algorithm, ordinary clients, statistics left alone."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedYogi

import fedoptax as fx
from fedoptax.deploy.strategy import FedoptaxStrategy

RATE = 0.1
NODES = (11, 22, 33, 44)
DATA = {node: np.random.default_rng(node).normal(size=(node % 5 + 3, 4)).astype(np.float32) for node in NODES}
START = {"fc.weight": np.zeros(3, np.float32), "fc.bias": np.zeros((), np.float32)}
BATCH_NORM = {"bn.running_var": np.ones(2, np.float32), "bn.num_batches_tracked": np.array(0, np.int64)}
Spoil = Callable[[int, int, RecordDict], None]


def loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((batch[:, :3] @ params["fc.weight"] + params["fc.bias"] - batch[:, 3]) ** 2)


@pytest.fixture(autouse=True)
def in_a_run(inside_a_flower_run):
    """Messages can be made."""


class FakeGrid:
    """Nodes that train as ordinary ClientApps do: three steps of gradient descent."""

    def __init__(self, spoil: Spoil = lambda node, number, content: None) -> None:
        self.spoil, self.asked = spoil, list[list[int]]()

    def get_node_ids(self) -> Iterable[int]:
        return list(DATA)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self.asked.append([m.metadata.dst_node_id for m in messages])
        return [self._answer(message) for message in reversed(messages)]

    def _answer(self, message: Message) -> Message:
        node, number = message.metadata.dst_node_id, message.content["config"]["server-round"]
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        params = {name: jnp.asarray(model[name]) for name in START}
        numbers: dict[str, Any] = {"num-examples": len(DATA[node]), "train_loss": float(loss(params, DATA[node]))}
        if message.metadata.message_type == "evaluate":
            return Message(RecordDict({"m": MetricRecord(numbers)}), reply_to=message)
        for _ in range(3):
            params = jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params, DATA[node]))
        model |= {name: np.asarray(array) for name, array in params.items()}
        if "bn.running_var" in model:
            model["bn.running_var"] = np.full(2, node, np.float32)
            model["bn.num_batches_tracked"] = np.array(3 * number, np.int64)
        arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(numbers)})
        self.spoil(node, number, content)
        return Message(content, reply_to=message)


def record(model: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def model_of(result: Any) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in result.arrays.items()}


def simulated(algorithm: fx.FedAlgorithm, cohorts: list[list[int]]) -> Any:
    server = algorithm.init(jax.tree.map(jnp.asarray, START))
    for cohort in cohorts:
        batches, sizes = [[DATA[node]] * 3 for node in cohort], [len(DATA[node]) for node in cohort]
        server, _, _ = fx.eager.run_round(
            algorithm, jax.value_and_grad(loss), server, [()] * len(cohort), batches, sizes
        )
    return algorithm.params(server)


@pytest.mark.parametrize(
    "make", [fx.fedadam, *(pytest.param(make, marks=pytest.mark.long) for make in (fx.fedavg, fx.fedams))]
)
def test_the_strategy_equals_the_simulation(make):
    algorithm = make(client_lr=RATE, server_lr=0.05)
    grid = FakeGrid()
    result = FedoptaxStrategy(algorithm, fraction_train=0.5, seed=7).start(grid, record(START), num_rounds=4)
    assert len({tuple(sorted(c)) for c in grid.asked}) > 1 and all(len(c) == 2 for c in grid.asked)
    wanted = simulated(algorithm, [sorted(cohort) for cohort in grid.asked])
    for name, array in model_of(result).items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)


def test_options_of_ours_equal_flowers_own_strategies():
    """docs/conformance.md: Flower's FedAdam corrects with r + 1 in round r, and its FedYogi does not correct."""
    sent = {"client_lr": RATE, "tau": 1e-2, "initial_accumulator": 0}
    adam = fx.fedadam(server_lr=lambda r: 0.05 * jnp.sqrt(1 - 0.99 ** (r + 2.0)) / (1 - 0.9 ** (r + 2.0)), **sent)
    for theirs, ours in ((FedAdam, adam), (FedYogi, fx.fedyogi(server_lr=0.05, **sent))):
        strategy = theirs(eta=0.05, beta_1=0.9, beta_2=0.99, tau=1e-2)
        result = model_of(strategy.start(FakeGrid(), record(START), num_rounds=5))
        wanted = simulated(ours, [sorted(DATA)] * 5)
        for name, array in result.items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-5)


def test_statistics_are_averaged_and_never_seen_by_the_optimizer():
    algorithm = fx.fedadam(client_lr=RATE, server_lr=0.05)
    grid = FakeGrid()
    result = FedoptaxStrategy(algorithm).start(grid, record(START | BATCH_NORM), num_rounds=3)
    model, sizes = model_of(result), {node: len(rows) for node, rows in DATA.items()}
    mean = sum(node * n for node, n in sizes.items()) / sum(sizes.values())
    np.testing.assert_allclose(model["bn.running_var"], mean, rtol=1e-6)
    assert model["bn.num_batches_tracked"] == 9 and model["bn.num_batches_tracked"].dtype == np.int64
    wanted = simulated(algorithm, [sorted(DATA)] * 3)
    np.testing.assert_allclose(model["fc.weight"], wanted["fc.weight"], rtol=1e-5, atol=1e-6)


def weight(shape: Any, value: float = 0.0, dtype: Any = np.float32) -> tuple[str, str, Array]:
    return "arrays", "fc.weight", Array(np.full(shape, value, dtype))


BAD: dict[str, tuple[str, str, Any]] = {  # record, what of it, and what it is in a bad reply
    "NaN": weight(3, np.nan), "shape": weight((3, 1)), "promoted": weight(3, dtype=np.float64),
    "enormous": weight(3, 1e30), "count": ("metrics", "num-examples", 10**12),
    "loss beyond float32": ("metrics", "train_loss", 1e39),
    "extra": ("", "more", ArrayRecord({"x": Array(np.zeros(1))})),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_left_out(case):
    algorithm, (record_, name, value) = fx.fedadam(client_lr=RATE, server_lr=0.05), BAD[case]

    def spoil(node: int, number: int, content: RecordDict) -> None:
        if (node, number) == (33, 2):
            (content[record_] if record_ else content)[name] = value

    result = FedoptaxStrategy(algorithm).start(FakeGrid(spoil), record(START), num_rounds=3)
    rest = [node for node in sorted(DATA) if node != 33]
    wanted = simulated(algorithm, [sorted(DATA), rest, sorted(DATA)])
    np.testing.assert_allclose(model_of(result)["fc.weight"], wanted["fc.weight"], rtol=1e-5, atol=1e-6)
    assert result.train_metrics_clientapp[2]["replies"] == 3


def test_a_checkpoint_keeps_the_optimizers_moments(tmp_path):
    algorithm = fx.fedadam(client_lr=RATE, server_lr=0.05)
    start = record(START | BATCH_NORM)
    whole = FedoptaxStrategy(algorithm).start(FakeGrid(), start, num_rounds=4)
    FedoptaxStrategy(algorithm, checkpoint=tmp_path).start(FakeGrid(), start, num_rounds=2)
    grid = FakeGrid()
    evaluated: list[int] = []
    continued = FedoptaxStrategy(algorithm, checkpoint=tmp_path).start(
        grid, start, num_rounds=4, evaluate_fn=lambda number, arrays: evaluated.append(number)
    )
    assert len(grid.asked) == 2 and list(continued.train_metrics_clientapp) == [3, 4] and evaluated == [2, 3, 4]
    for name, array in model_of(whole).items():
        np.testing.assert_array_equal(array, model_of(continued)[name])


@pytest.mark.parametrize("make", [lambda: fx.scaffold(0.1), lambda: fx.fedlamb(0.1), lambda: fx.fafed(0.1)])
def test_an_algorithm_whose_clients_do_more_is_refused(make):
    with pytest.raises(fx.UsageError, match="algorithm"):
        FedoptaxStrategy(make()).start(FakeGrid(), record(START), num_rounds=1)


def test_the_example_of_the_migration_page_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "flower-migration.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "flower-migration.md", "exec"), names)
    grid = FakeGrid()
    names["app"](grid, None)
    assert len(grid.asked) == 3 and (tmp_path / "server-state" / "checkpoints").is_dir()

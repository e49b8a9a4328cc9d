"""A training loop of a user's own as a client: it sends the change of the parameters, whatever it does."""

import jax
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from federations import deployment, need_flower
from fedoptax.deploy.client import default_client
from fedoptax.deploy.server import upload_form
from oracles.compare import grad_fn
from oracles.problem import make
from small import small_task
from torch_models import Net, assert_close, cross_entropy, net, rounds, torch

PROBLEM = make()


def as_tensors(batch):
    return {name: torch.tensor(array) for name, array in batch.items()}


def sgd(module, examples, config):
    """The loop of an institution: its own optimizer, its own order of the examples."""
    optimizer = torch.optim.SGD(module.parameters(), lr=config.get("lr", config["client_lr"]))
    for batch in examples:
        optimizer.zero_grad()
        cross_entropy(module, as_tensors(batch)).backward()
        optimizer.step()
    return sum(len(batch["y"]) for batch in examples)


def in_one(algorithm):
    """`algorithm` for `rounds`, which gives a client its minibatches: the loop takes them in one piece."""
    update = algorithm.client_update
    return algorithm._replace(client_update=lambda g, message, state, own: update(g, message, state, [own]))


@pytest.mark.parametrize(
    "algorithm", [fx.fedadam(0.1, 0.03), fx.fedyogi(lambda r: 0.1 / (1 + r), 0.03)], ids=["constant", "scheduled"]
)
def test_a_loop_of_sgd_equals_the_algorithms_clients(algorithm) -> None:
    with jax.enable_x64(True):
        want = rounds(algorithm, grad_fn, PROBLEM, "float64")
        looped = ft.with_loop(algorithm, net(PROBLEM, "float64"), sgd, {"client_lr": 0.1})
        got = rounds(in_one(looped), None, PROBLEM, "float64")
        assert_close(got[0], want[0], rtol=1e-9, atol=1e-10)


def test_wrappers_and_any_optimizer_go_with_a_loop() -> None:
    def adam(module, examples, config):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            loss = cross_entropy(module, examples)
            loss.backward()
            optimizer.step()
        return len(examples["y"]), loss.item()

    module, losses = Net(), []
    algorithm = fx.with_compression(ft.with_loop(fx.fedavg(0.1), module, adam), fx.codecs.topk(0.5))
    params, batch = (
        ft.params_from_module(module),
        as_tensors({"x": np.float32(PROBLEM.batches(0, 3)[0]["x"]), "y": PROBLEM.batches(0, 3)[0]["y"]}),
    )
    server, clients = algorithm.init(params), [algorithm.init_client(params)] * 2
    for _ in range(8):
        server, clients, info = fx.eager.run_round(algorithm, None, server, clients, [[batch], [batch]])
        losses.append(float(info.train_loss))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("algorithm", "train", "argument"),
    [
        (fx.scaffold(0.1), sgd, "algorithm"),
        (fx.lookahead(0.1), sgd, "algorithm"),
        (fx.fedavg(0.1), lambda module, examples, config: None, "number of examples"),
        (fx.fedavg(0.1), lambda module, examples, config: (0, 1.0), "number of examples"),
    ],
    ids=["control variates", "averaged optimizer state", "nothing returned", "no examples"],
)
def test_what_cannot_be_a_loops_client_is_refused(algorithm, train, argument: str) -> None:
    module = Net()
    params, looped = ft.params_from_module(module), ft.with_loop(algorithm, module, train)
    client = looped.init_client(params)
    with pytest.raises(fx.UsageError, match=argument):
        looped.client_update(None, looped.broadcast(looped.init(params)), client, [[]])


def test_a_deployed_loop_is_told_the_round_and_tells_its_examples() -> None:
    need_flower()
    from fedoptax.torch.app import LoopClient

    told = []

    def train(module, examples, config):
        told.append((config, {name: array.shape for name, array in examples.items()}))
        with torch.no_grad():
            module.out.bias += 1
        return 5, 0.25

    given, module = deployment("fedadam", compress="topk:fraction=0.5"), Net()
    base = default_client(small_task(), given, 2)
    client = LoopClient(base.task, base.algorithm, base.work, base.partition, base.seed, given, module, train)
    params = ft.params_from_module(module)
    message = base.algorithm.broadcast(base.algorithm.init(params))
    upload, _, loss, examples = client.train(message, base.algorithm.init_client(params), 4)
    assert (loss, examples) == (0.25, 5)
    wanted = upload_form(base.task, base.algorithm, base.work)
    assert jax.tree.map(np.shape, upload) == jax.tree.map(np.shape, wanted)
    ((config, shapes),) = told
    assert config.items() >= {"client_lr": 0.05, "batch_size": 50, "local_epochs": 1, "seed": 3, "round": 4}.items()
    assert shapes == {"x": (11, 4), "y": (11,)}

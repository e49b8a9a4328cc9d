"""A training loop of a user's own as a client: it sends the change of the parameters, whatever it does."""

import jax
import numpy as np
import pytest

import fedoptax as fx
import fedoptax.torch as ft
from federations import deployment, need_flower
from fedoptax.wrappers.uploads import upload_form
from oracles.compare import grad_fn
from oracles.problem import make
from small import ragged_clients, small_task
from small_rounds import close
from torch_models import Net, NormNet, cross_entropy, net, rounds, torch, torch_task

PROBLEM, CLIENTS = make(), small_task().clients


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
def test_a_loop_of_sgd_equals_the_algorithms_clients(algorithm):
    with jax.enable_x64(True):
        want = rounds(algorithm, grad_fn, PROBLEM, "float64")
        looped = ft.with_loop(algorithm, net(PROBLEM, "float64"), sgd, {"client_lr": 0.1})
        got = rounds(in_one(looped), None, PROBLEM, "float64")
        close(got[0], want[0], rtol=1e-9, atol=1e-10)


def test_wrappers_and_any_optimizer_go_with_a_loop():
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


@pytest.mark.parametrize(("algorithm", "train", "argument"), [
    (fx.scaffold(0.1), sgd, "algorithm"), (fx.lookahead(0.1), sgd, "algorithm"),
    (fx.fedavg(0.1), lambda module, examples, config: None, "number of examples"),
    (fx.fedavg(0.1), lambda module, examples, config: (0, 1.0), "number of examples"),
], ids=["control variates", "averaged optimizer state", "nothing returned", "no examples"])  # fmt: skip
def test_what_cannot_be_a_loops_client_is_refused(algorithm, train, argument):
    module = Net()
    params, looped = ft.params_from_module(module), ft.with_loop(algorithm, module, train)
    client = looped.init_client(params)
    with pytest.raises(fx.UsageError, match=argument):
        looped.client_update(None, looped.broadcast(looped.init(params)), client, [[]])


def test_a_deployed_loop_is_told_the_round_and_tells_its_examples(monkeypatch):
    need_flower()
    from fedoptax.torch.app import loop_app

    monkeypatch.setattr("fedoptax.torch.app.client_app", lambda make: make)
    told = []

    def train(module, examples, config):
        told.append((config, {name: array.shape for name, array in examples.items()}))
        with torch.no_grad():
            module.norm(torch.zeros(2, 5))
        return 5, 0.25

    given, module = deployment("fedadam", compress="topk:fraction=0.5"), NormNet()
    task, params = ft.module_task("norm", module, cross_entropy, {}, CLIENTS), ft.params_from_module(module)
    client = loop_app(module, train)(task, given, 2)
    message = client.algorithm.broadcast(client.algorithm.init(params))
    upload, state, loss, examples = client.train(message, client.algorithm.init_client(params), 4)
    assert (loss, examples) == (0.25, 5) and state.inner.buffers["norm/num_batches_tracked"] == 1
    wanted = upload_form(client.algorithm, jax.eval_shape(task.init, jax.random.key(0)))
    assert jax.tree.map(np.shape, upload) == jax.tree.map(np.shape, wanted)
    ((config, shapes),) = told
    assert config.items() >= {"client_lr": 0.05, "batch_size": 50, "local_epochs": 1, "seed": 3, "round": 4}.items()
    assert shapes == {"x": (11, 4), "y": (11,)}


OPTIONS = {"rounds": 3, "cohort_size": 3, "batch_size": 4, "local_epochs": 2, "seed": 1}


class Loop:
    """Full-batch descent with noise on the inputs, that remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str]] = []

    def __call__(self, module, examples, config):
        assert module.training
        self.calls.append((len(examples["y"]), type(examples["y"]).__name__, str(examples["y"].dtype)))
        optimizer = torch.optim.SGD(module.parameters(), lr=config["lr"])
        batch = as_tensors(examples)
        for _ in range(3):
            optimizer.zero_grad()
            noise = 0.01 * torch.randn_like(batch["x"])
            loss = cross_entropy(module, {**batch, "x": batch["x"] + noise})
            loss.backward()
            optimizer.step()
        return len(batch["y"]), loss


def looped(module, loop, **changes):
    return ft.with_loop(fx.fedadam(lambda r: 0.1, 0.1), module, loop, {"lr": 0.1, **changes})


def test_a_run_calls_the_loop_with_each_clients_examples_once_a_round(tmp_path):
    module, loop = Net(), Loop()
    task, sizes = torch_task(module=module), [7, 3, 11, 1, 6, 4, 9]
    whole = fx.run(task, looped(module, loop), **OPTIONS)
    assert len(loop.calls) == 9 and {call[1:] for call in loop.calls} == {("ndarray", "int64")}
    assert all(call[0] in sizes for call in loop.calls)
    assert whole.history[-1]["train_loss"] < whole.history[0]["train_loss"]
    fx.run(task, looped(module, Loop()), out=tmp_path / "a", **(OPTIONS | {"rounds": 1}))
    resumed = fx.run(task, looped(module, Loop()), resume_from=tmp_path / "a", **OPTIONS)
    close(resumed.params, whole.params, rtol=0, atol=0)
    at_once = fx.run(task, looped(module, Loop()), client_loop="vmap", **OPTIONS)
    close(at_once.params, whole.params, rtol=1e-5, atol=1e-6)


def test_running_statistics_of_a_loop_stay_with_their_client():
    module, clients = NormNet(), ragged_clients((7, 3, 11, 2, 6))
    task = ft.module_task("norm", module, cross_entropy, {}, clients)
    result = fx.run(task, looped(module, Loop()), **OPTIONS | {"cohort_size": 5, "rounds": 2})
    assert result.clients.tree.buffers["norm/num_batches_tracked"].tolist() == [6] * 5
    assert len({float(a) for a in result.clients.tree.buffers["norm/running_mean"][:, 0]}) > 3


class Output(dict):
    __getattr__ = dict.__getitem__


def own_error(*arguments):
    raise KeyError("a mistake of the user's own")


@pytest.mark.parametrize(
    ("part", "function", "kind", "text"),
    [
        ("loss", own_error, KeyError, "user's own"),
        ("metric", own_error, KeyError, "user's own"),
        ("loop", own_error, KeyError, "user's own"),
        ("loss", lambda m, b: Output(loss=cross_entropy(m, b)), fx.UsageError, r"loss .* Output, whose \.loss"),
        ("loss", lambda m, b: m(b["x"])[:, 0], fx.UsageError, r"loss .*float32\[\d\]"),
        ("loss", lambda m, b: cross_entropy(m, b).detach(), fx.UsageError, "loss .* depends on"),
        ("loss", lambda m, b: 0.5, fx.UsageError, "loss .* float"),
        ("metric", lambda m, b: m(b["x"]), fx.UsageError, r"metric 'own' .*float32\[11, 3\]"),
        ("metric", lambda m, b: None, fx.UsageError, "metric 'own' .*None"),
        ("loop", lambda m, e, c: None, fx.UsageError, "number of examples"),
        ("loop", lambda m, e, c: (3, torch.ones(2)), fx.UsageError, "train's loss"),
        ("loop", lambda m, e: 3, fx.UsageError, r"train .*\(module, examples, config\)"),
    ],
)
def test_an_error_in_a_users_function_comes_out_as_itself(part, function, kind, text):
    module, twin = Net(), small_task()
    metrics = {"own": function} if part == "metric" else {}
    test = twin.test if part == "metric" else None
    loss = function if part == "loss" else cross_entropy
    task = ft.module_task("small", module, loss, metrics, twin.clients, test)

    def run():
        algorithm = looped(module, function) if part == "loop" else fx.fedavg(0.1)
        fx.run(task, algorithm, **OPTIONS)

    with pytest.raises(kind, match=text) as error:
        run()
    assert kind is fx.UsageError or error.traceback[-1].name == "own_error"
    fx.run(torch_task(module=module), fx.fedavg(0.1), **OPTIONS)  # nothing of it is left


@pytest.mark.parametrize("kind", ["module_task", "with_module"])
def test_a_minibatch_of_one_example_under_batch_normalisation_is_refused_before_the_first_round(kind):
    module, rounds = NormNet(), []
    if kind == "module_task":
        module.norm = torch.nn.BatchNorm1d(5, track_running_stats=False)
    algorithm = fx.fedavg(0.1) if kind == "module_task" else ft.with_module(fx.fedavg(0.1), module, cross_entropy)
    data = fx.FederatedData.from_clients([small_task().clients.client(i) for i in (0, 2, 4)])  # of 7, 11, 6
    task = ft.module_task("norm", module, cross_entropy, {}, data)
    for batch_size, is_refused in ((5, True), (3, True), (4, False), (20, False)):
        run = {"rounds": 1, "cohort_size": 2, "client_loop": "loop", "mesh": 1, "batch_size": batch_size}
        if is_refused:
            with pytest.raises(fx.UsageError, match=r"batch_size .* one example.*'norm'"):
                fx.run(task, algorithm, progress=lambda *row: rounds.append(row), **run)
        else:
            assert fx.run(task, algorithm, **run).status == "completed"
    assert not rounds

"""What a PyTorch client's round costs beside the same round in plain PyTorch, for the CNN of EMNIST.

Usage: python benchmarks/torch_client.py [--repetitions 10] [--steps 20]

One client takes local steps on batches of 20. Plain PyTorch, a module task, `with_module` and an eager round of it take
turns within each repetition, so that a slow hour is slow for all of them; printed is each one's median over plain
PyTorch's. A round begins with the server's parameters and ends with the upload.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedoptax as fx
import fedoptax.torch as ft
from fedoptax.deploy.client import NodeClient
from fedoptax.engine.batches import LocalWork

BATCH_SIZE = 20
ALGORITHMS: dict[str, tuple[fx.FedAlgorithm, Callable[[Any], torch.optim.Optimizer]]] = {
    "FedAvg": (fx.fedavg(0.01), lambda params: torch.optim.SGD(params, 0.01)),
    "Fed-LAMB": (fx.fedlamb(0.01), lambda params: ft.FedLAMB(params, 0.01)),
    "FAFED": (fx.fafed(0.01), lambda params: ft.FAFED(params, 0.01)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    examples = make_examples(args.steps * BATCH_SIZE)
    print(f"{torch.get_num_threads()} threads, {args.steps} steps of {BATCH_SIZE}, {args.repetitions} repetitions\n")
    print("| algorithm | plain PyTorch, ms | module task | with_module | with_module, eager |\n|---|---|---|---|---|")
    for name, (algorithm, make_optimizer) in ALGORITHMS.items():
        rounds = make_rounds(algorithm, make_optimizer, examples)
        times = measure(list(rounds.values()), args.repetitions)
        plain, *others = (statistics.median(each) for each in times)
        print(f"| {name} | {1e3 * plain:.0f} |" + "".join(f" {other / plain:.2f} |" for other in others), flush=True)


def measure(rounds: list[Callable[[], Any]], repetitions: int) -> list[list[float]]:
    """Seconds of each kind of round, in turns, the first, which compiles, left out."""
    times: list[list[float]] = [[] for _ in rounds]
    for repetition in range(repetitions + 1):
        for run_round, seconds in zip(rounds, times):
            start = time.perf_counter()
            run_round()
            if repetition:
                seconds.append(time.perf_counter() - start)
    return times


def make_rounds(
    algorithm: fx.FedAlgorithm, make_optimizer: Callable[[Any], torch.optim.Optimizer], examples: dict[str, np.ndarray]
) -> dict[str, Callable[[], Any]]:
    """The rounds of one client: the second of a federation of one, as an algorithm's first may do less."""
    module, work = make_cnn(), LocalWork(BATCH_SIZE)
    task = ft.module_task("emnist-like", module, loss, {}, fx.FederatedData.from_clients([examples]))
    wrapped = ft.with_module(algorithm, module, loss)
    params = ft.params_from_module(module)

    def make_round(own: fx.FedAlgorithm) -> Callable[[], Any]:
        client, server = NodeClient(task, own, work, 0, 0), own.init(params)
        upload, state, _, _ = client.train(own.broadcast(server), own.init_client(params), 0)
        server = own.server_update(server, jax.tree.map(jax.numpy.asarray, upload), fx.Cohort(1, 1))
        return lambda: client.train(own.broadcast(server), state, 1)

    def make_eager_round() -> Callable[[], Any]:
        starts = range(0, len(examples["y"]), BATCH_SIZE)
        no_gradient: Any = None
        batches = [{field: a[i : i + BATCH_SIZE] for field, a in examples.items()} for i in starts]
        server, client = wrapped.init(params), wrapped.init_client(params)
        server, (state,), _ = fx.eager.run_round(wrapped, no_gradient, server, [client], [batches])
        message = wrapped.broadcast(server)
        return lambda: jax.block_until_ready(wrapped.client_update(no_gradient, message, state, batches))

    return {
        "plain": make_plain_round(make_optimizer, {name: torch.tensor(a) for name, a in examples.items()}),
        "module task": make_round(algorithm),
        "with_module": make_round(wrapped),
        "eager": make_eager_round(),
    }


def make_plain_round(make_optimizer: Callable[[Any], Any], examples: dict[str, Tensor]) -> Callable[[], list[Tensor]]:
    """The round as one writes it without this package."""
    module = make_cnn()
    optimizer = make_optimizer(module.parameters())
    start = [p.detach().clone() for p in module.parameters()]

    def take_steps() -> None:
        module.train()
        for rows in torch.randperm(len(examples["y"])).split(BATCH_SIZE):
            batch = {name: tensor[rows] for name, tensor in examples.items()}

            def closure(batch: dict[str, Tensor] = batch) -> Tensor:
                optimizer.zero_grad()
                value = loss(module, batch)
                value.backward()
                return value

            optimizer.step(closure)

    def run_round() -> list[Tensor]:
        with torch.no_grad():
            for p, value in zip(module.parameters(), start):
                p.copy_(value)
        take_steps()
        return [p.detach() - value for p, value in zip(module.parameters(), start)]

    take_steps()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return run_round


def make_cnn() -> nn.Module:
    """The CNN of Reddi et al. 2021 for EMNIST, 1.2 million parameters."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    return nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 62)
    )


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The cross entropy of a batch."""
    return functional.cross_entropy(module(batch["x"].unsqueeze(1)), batch["y"].long())


def make_examples(size: int) -> dict[str, np.ndarray]:
    """Images of noise in EMNIST's form: what they show costs nothing."""
    rng = np.random.default_rng(0)
    return {"x": rng.random((size, 28, 28), np.float32), "y": rng.integers(62, size=size).astype(np.int32)}


if __name__ == "__main__":
    main()

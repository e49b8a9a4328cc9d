"""Flower's simulation on Ray, with its FedAdam: `python run_flower.py SHAPE`."""

import os
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from flwr.simulation import run_simulation
from networks import client_tensors, make_network
from torch.nn.functional import cross_entropy
from work import CLIENT_LR, SERVER_BETAS, SERVER_EPS, SERVER_LR, SHAPES, TIMED_ROUNDS, report

name = sys.argv[1]
shape = SHAPES[name]
client_app, server_app = ClientApp(), ServerApp()
kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    if client not in kept:
        kept[client] = client_tensors(name, client)
    x, y = kept[client]
    model = make_network(name)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=CLIENT_LR)
    for images, labels in zip(x.split(shape.batch), y.split(shape.batch), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(answer), reply_to=message)


class TimedFedAdam(FedAdam):
    """FedAdam that notes the clock after every round."""

    moments: list[float]

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        if failed := [reply for reply in replies if reply.has_error()]:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0].error.reason}")
        result = super().aggregate_train(server_round, replies)
        self.moments.append(time.perf_counter())
        return result


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = TimedFedAdam(
        fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=shape.clients, min_train_nodes=shape.clients,
        eta=SERVER_LR, beta_1=SERVER_BETAS[0], beta_2=SERVER_BETAS[1], tau=SERVER_EPS,
    )  # fmt: skip
    strategy.moments = []
    weights = ArrayRecord(make_network(name).state_dict())
    strategy.start(grid=grid, initial_arrays=weights, num_rounds=TIMED_ROUNDS + 2)
    after = strategy.moments[1:]  # the first two rounds warm up
    report([end - begin for begin, end in pairwise(after)])


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # Ray's workers import `networks` and `work`
    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server_app, client_app, num_supernodes=shape.clients, backend_config=one_core)

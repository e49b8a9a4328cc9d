"""FedAdam as a plain loop in PyTorch, as a user would write it: `python run_torch.py SHAPE`."""

import sys

import torch
from networks import DEVICE, client_tensors, make_network, mean_loss
from torch.nn.functional import cross_entropy
from work import CLIENT_LR, SERVER_BETAS, SERVER_EPS, SERVER_LR, SHAPES, report, time_rounds

name = sys.argv[1]
shape = SHAPES[name]
layout = torch.channels_last if name == "cnn" else torch.preserve_format  # the faster for convolutions on a CPU
model = make_network(name).to(DEVICE, memory_format=layout)
params = list(model.parameters())
server = torch.optim.Adam(params, lr=SERVER_LR, betas=SERVER_BETAS, eps=SERVER_EPS)


def split(client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = client_tensors(name, client)
    x = x.to(memory_format=layout) if name == "cnn" else x
    return list(zip(x.split(shape.batch), y.split(shape.batch), strict=True))


clients = [split(client) for client in range(shape.clients)]


def run_round() -> None:
    before = [p.detach().clone() for p in params]
    mean = [torch.zeros_like(p) for p in params]
    for batches in clients:
        with torch.no_grad():
            torch._foreach_copy_(params, before)
        optimizer = torch.optim.SGD(params, lr=CLIENT_LR)
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for total, start, end in zip(mean, before, params, strict=True):
                total += (start - end) / shape.clients
    with torch.no_grad():
        torch._foreach_copy_(params, before)
    for p, delta in zip(params, mean, strict=True):
        p.grad = delta
    server.step()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


report(time_rounds(run_round), mean_loss(name, model))

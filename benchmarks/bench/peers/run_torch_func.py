"""FedAdam with all clients at once, by `torch.func`: `python run_torch_func.py SHAPE`.

`vmap(grad)` over stacked parameters; on a GPU a whole round is one CUDA graph. `nn.LSTM` has no rule for `vmap`, so
`lstm` has cells written out, as fedoptax has.
"""

import sys

import torch
from networks import DEVICE, client_tensors, make_network, mean_loss
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from work import CLIENT_LR, SERVER_BETAS, SERVER_EPS, SERVER_LR, SHAPES, report, time_rounds


class CellLSTM(nn.Module):
    """`CharacterLSTM` with the same parameters, and a loop over time."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.embedding, self.lstm, self.output = network.embedding, network.lstm, network.output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = self.embedding(x)
        for layer in range(self.lstm.num_layers):
            w, u, b, c = (getattr(self.lstm, f"{n}_l{layer}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            hidden = cell = inputs.new_zeros(len(x), self.lstm.hidden_size)
            outputs = []
            for gates in (inputs @ w.T + (b + c)).unbind(1):
                i, f, g, o = (gates + hidden @ u.T).chunk(4, -1)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                hidden = o.sigmoid() * cell.tanh()
                outputs.append(hidden)
            inputs = torch.stack(outputs, 1)
        return self.output(inputs).transpose(1, 2)


name = sys.argv[1]
shape = SHAPES[name]
torch.backends.cudnn.benchmark = True
model = make_network(name).to(DEVICE)
network = CellLSTM(model) if name == "lstm" else model
params = dict(network.named_parameters())
adam = {"lr": SERVER_LR, "betas": SERVER_BETAS, "eps": SERVER_EPS, "capturable": DEVICE.type == "cuda"}
server = torch.optim.Adam(params.values(), **adam)
x, y = map(torch.stack, zip(*(client_tensors(name, client) for client in range(shape.clients)), strict=True))
gradients = vmap(grad(lambda p, x, y: cross_entropy(functional_call(network, p, (x,)), y)))


def run_round() -> None:
    clients = {key: p.detach().expand(shape.clients, *p.shape) for key, p in params.items()}
    for images, labels in zip(x.split(shape.batch, 1), y.split(shape.batch, 1), strict=True):
        step = gradients(clients, images, labels)
        clients = {key: p - CLIENT_LR * step[key] for key, p in clients.items()}
    for key, p in params.items():
        p.grad = p.detach() - clients[key].mean(0)
    server.step()


def on_gpu() -> None:
    graph.replay()
    torch.cuda.synchronize()


if DEVICE.type == "cuda":
    start = [p.detach().clone() for p in params.values()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # capture needs libraries and the optimizer's state ready
            run_round()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_round()
    with torch.no_grad():  # begin again, in the same memory
        torch._foreach_copy_(list(params.values()), start)
        for state in server.state.values():
            torch._foreach_zero_(list(state.values()))

report(time_rounds(on_gpu if DEVICE.type == "cuda" else run_round), mean_loss(name, model))

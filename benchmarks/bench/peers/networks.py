"""The models of the benchmark in PyTorch, for the peers that train PyTorch modules."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from work import SHAPES, examples

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as JAX by default
torch.manual_seed(0)


class CharacterLSTM(nn.Module):
    """The two-layer LSTM of Shakespeare: 8 numbers per character, 256 units."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, 90)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.lstm(self.embedding(x))[0]).transpose(1, 2)


def make_network(name: str) -> nn.Module:
    """The model of a shape; the CNN is that of EMNIST without dropout."""
    if name == "lstm":
        return CharacterLSTM()
    if name == "tiny":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62),
    )  # fmt: skip


def client_tensors(name: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One client's examples on the device; images as PyTorch has them, channels before height and width."""
    x, y = (torch.from_numpy(array) for array in examples(name, client))
    return (x if name == "lstm" else x.permute(0, 3, 1, 2).contiguous()).to(DEVICE), y.to(DEVICE)


@torch.no_grad()
def mean_loss(name: str, model: nn.Module) -> float:
    """The loss of all clients' examples, by which peers can be compared that train alike."""
    losses = [cross_entropy(model(x), y) for x, y in (client_tensors(name, c) for c in range(SHAPES[name].clients))]
    return float(torch.stack(losses).mean())

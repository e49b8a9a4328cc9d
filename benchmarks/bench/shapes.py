"""The work that is timed: synthetic examples of fixed shapes, the same as the peers get, and its floating-point work.

In mlp, cnn, tiny, lstm and resnet18 (AFO's, with all stages at one resolution) all clients take part in every round,
for one epoch. `ragged` has clients of log-normal sizes, of which a cohort is drawn.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import fedoptax as fx

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import work

from fedoptax.models import functional, logistic, mlp, resnet18, shakespeare_rnn
from fedoptax.models.layers import Conv, Linear, flat, max_pool
from fedoptax.models.model import Model

ALGORITHM = fx.fedadam(client_lr=0.05, server_lr=0.01)  # what the peers run: SGD at the clients, Adam at the server


TIME = work.SEQUENCE
SHAPES = work.SHAPES
RAGGED_CLIENTS, RAGGED_BATCH = 3400, 20


class PlainCNN(nnx.Module):
    """The EMNIST CNN as the peers have it: without dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1, self.conv2 = Conv(1, 32, 3, rngs=rngs), Conv(32, 64, 3, rngs=rngs)
        self.dense1, self.dense2 = Linear(9216, 128, rngs=rngs), Linear(128, 62, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(max_pool(nnx.relu(self.conv2(nnx.relu(self.conv1(x)))), 2))
        return self.dense2(nnx.relu(self.dense1(x)))


def model_of(name: str) -> Model:
    image = (28, 28, 1)
    return {
        "mlp": lambda: mlp(image, 10),
        "cnn": lambda: functional(lambda rngs: PlainCNN(rngs)),
        "tiny": lambda: logistic(image, 10),
        "lstm": lambda: shakespeare_rnn(),
        "resnet18": lambda: resnet18((24, 24, 3), 10, strides=False),
    }[name]()


def task_of(name: str) -> fx.Task:
    """The task of a shape; no test examples, as the peers evaluate nothing in the timed rounds."""
    shape = SHAPES[name]
    clients = [dict(zip("xy", map(narrow, work.examples(name, client)))) for client in range(shape.clients)]
    return task_on(name, fx.FederatedData.from_clients(clients))


def task_on(name: str, data: fx.FederatedData, model: Model | None = None) -> fx.Task:
    """The task of a shape on other examples, or with another model."""
    model = model_of(name) if model is None else model

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        x = batch["x"].astype(jnp.float32) if batch["x"].dtype == jnp.uint8 else batch["x"]
        logits = model.apply(params, x, key).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return fx.masked_mean(losses.reshape(losses.shape[0], -1).mean(-1), {"mask": batch["mask"]})

    return fx.Task(name, model.init, loss, lambda params, batch: {"none": jnp.zeros(())}, data, None, "none")


def narrow(array: np.ndarray) -> np.ndarray:
    """Whole numbers in 32 bits."""
    return array.astype(np.int32) if array.dtype.kind == "i" else array


def ragged_sizes(clients: int = RAGGED_CLIENTS, mean: float = 100.0, sigma: float = 1.0, seed: int = 0) -> np.ndarray:
    """Log-normal numbers of examples with the given mean, at least 1."""
    draws = np.random.default_rng(seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, clients)
    return np.maximum(np.round(draws), 1).astype(int)


def image_task(name: str, sizes: np.ndarray) -> fx.Task:
    """`name`'s model on clients of the given sizes; pixels of one byte, so that thousands of clients fit."""
    rng = np.random.default_rng(0)
    total = int(sizes.sum())
    x = rng.integers(0, 256, (total, 28, 28, 1), dtype=np.uint8)
    y = rng.integers(0, 10, total, dtype=np.int32)
    return task_on(name, fx.FederatedData({"x": x, "y": y}, np.concatenate([[0], np.cumsum(sizes)])))


def flops(name: str) -> float:
    """Multiplications and additions of a round: forward, and two backward (one in a first layer)."""
    shape = SHAPES[name]
    n = shape.clients * shape.steps * shape.batch
    if name == "lstm":  # per sequence and step of time: input and recurrent weights of both layers, and the output
        first, rest = 8 * 1024, 256 * 1024 * 3 + 256 * 90
        return n * TIME * 2.0 * (3 * first + 3 * rest)
    if name == "cnn":
        first, rest = 26 * 26 * 9 * 32, 24 * 24 * 288 * 64 + 9216 * 128 + 128 * 62
    elif name == "resnet18":
        widths = [64] * 5 + [128] * 4 + [256] * 4 + [512] * 4  # of the 3 × 3 convolutions, on 6 × 6 pixels
        first = 12 * 12 * 147 * 64
        rest = 36 * sum(9 * i * o + (i != o) * i * o for i, o in pairwise(widths))
    else:
        first, rest = (784 * 200, 200 * 10) if name == "mlp" else (784 * 10, 0)
    return n * 2.0 * (2 * first + 3 * rest)

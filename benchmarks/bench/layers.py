"""What each special form of a layer saves: a round with it and without it, in turn, as a ratio.

    python benchmarks/bench/layers.py [--shapes cnn,lstm] [--turns 3] [--json out.json]

Each row is a shape of `shapes.py` on the default of the command line (a device per core) with one form off: what one
would write instead. `off / on` is the median over turns of the two rounds' times, taken one after the other, so a
machine that slows down slows both. A form that stays saves at least 5 % of a round of one shape.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedoptax as fx
from bench.shapes import ALGORITHM, SHAPES, task_of, task_on
from fedoptax.models import Model, functional
from fedoptax.models.layers import Conv, Linear, conv, conv_and_pool, flat, max_pool
from fedoptax.models.recurrent import LSTM


class PatchesConv(Conv):
    """A convolution by patches, whatever its size."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return conv(x, self.kernel[...], lowering="patches") + self.bias[...]


class LaxConv(Conv):
    """XLA's convolution, grouped where clients are vmapped."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return conv(x, self.kernel[...], lowering="lax") + self.bias[...]


class TransposedConv(Conv):
    """A convolution by patches whose gradients are JAX's: pads and sums of shifted images."""

    def __call__(self, x: jax.Array) -> jax.Array:
        size, _, channels, out = self.kernel.shape
        height, width = (length - size + 1 for length in x.shape[1:3])
        places = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
        patches = jnp.concatenate(places, axis=-1).reshape(-1, size * size * channels)
        return (patches @ self.kernel[...].reshape(-1, out)).reshape(-1, height, width, out) + self.bias[...]


def lax_stem(in_features: int, out_features: int, size: int, rngs: nnx.Rngs) -> Conv:
    """XLA's convolution for images of one channel only."""
    return (LaxConv if in_features == 1 else Conv)(in_features, out_features, size, rngs=rngs)


class CNN(nnx.Module):
    """The `cnn` of the shapes with another convolution or pool."""

    def __init__(self, layer: Callable[..., Any], pool: Callable[[jax.Array], jax.Array], rngs: nnx.Rngs) -> None:
        self.conv1, self.conv2 = layer(1, 32, 3, rngs=rngs), layer(32, 64, 3, rngs=rngs)
        self.dense1, self.dense2 = Linear(9216, 128, rngs=rngs), Linear(128, 62, rngs=rngs)
        self.pool = pool

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(self.pool(nnx.relu(self.conv2(nnx.relu(self.conv1(x))))))
        return self.dense2(nnx.relu(self.dense1(x)))


class SmallCNN(nnx.Module):
    """Fed-LAMB's CNN without dropout; `pooled` applies a layer and pools."""

    def __init__(self, pooled: Callable[[Conv, jax.Array], jax.Array], rngs: nnx.Rngs) -> None:
        self.conv1, self.conv2 = Conv(1, 10, 5, rngs=rngs), Conv(10, 20, 5, rngs=rngs)
        self.dense1, self.dense2 = Linear(320, 50, rngs=rngs), Linear(50, 62, rngs=rngs)
        self.pooled = pooled

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.pooled(self.conv2, nnx.relu(self.pooled(self.conv1, x))))
        return self.dense2(nnx.relu(self.dense1(flat(x))))


class MLP(nnx.Module):
    """`mlp` and `tiny` with Flax's dense layers."""

    def __init__(self, sizes: tuple[int, ...], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(nnx.Linear(inputs, outputs, rngs=rngs) for inputs, outputs in pairwise(sizes))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = flat(x)
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class ScanLSTM(LSTM):
    """The LSTM as a scan that JAX differentiates."""

    def __call__(self, x: jax.Array) -> jax.Array:
        projected = x @ self.kernel[...] + self.bias[...]

        def step(carry: tuple[jax.Array, jax.Array], projected: jax.Array) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(projected + h @ self.recurrent[...], 4, axis=-1)
            c = nnx.sigmoid(f) * c + nnx.sigmoid(i) * jnp.tanh(g)
            h = nnx.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], self.recurrent.shape[0]), x.dtype)
        return lax.scan(step, (zero, zero), projected)[1]


class CharacterModel(nnx.Module):
    """`lstm` with the layers of `ScanLSTM`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(90, 8, rngs=rngs)
        self.layers = nnx.List([ScanLSTM(8, 256, rngs=rngs), ScanLSTM(256, 256, rngs=rngs)])
        self.dense = nnx.Linear(256, 90, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.embedding(ids.T)
        for layer in self.layers:
            x = layer(x)
        return self.dense(x.swapaxes(0, 1))


def pool_by_windows(x: jax.Array) -> jax.Array:
    """XLA's window reduction."""
    return nnx.max_pool(x, (2, 2), (2, 2))


def pool_by_reshape(x: jax.Array) -> jax.Array:
    return max_pool(x, 2)


def small_cnn(pooled: Callable[[Conv, jax.Array], jax.Array]) -> Callable[[], Model]:
    return lambda: functional(lambda rngs: SmallCNN(pooled, rngs))


OFF: dict[str, tuple[str, Callable[[], Model]]] = {
    "Winograd (patches instead)": ("cnn", lambda: functional(lambda rngs: CNN(PatchesConv, pool_by_reshape, rngs))),
    "pooling by a reshape (XLA's window reduction instead)": (
        "cnn", lambda: functional(lambda rngs: CNN(Conv, pool_by_windows, rngs)),
    ),
    "the LSTM's backward pass (a differentiated scan instead)": ("lstm", lambda: functional(CharacterModel)),
    "narrow dense layers (nnx.Linear instead)": ("tiny", lambda: functional(lambda rngs: MLP((784, 10), rngs))),
    "narrow dense layers (nnx.Linear instead), mlp": (
        "mlp", lambda: functional(lambda rngs: MLP((784, 200, 10), rngs)),
    ),
    "small convolutions pooled at once (in turn instead)": ("cnn", small_cnn(lambda layer, x: max_pool(layer(x), 2))),
    "gradients as products, of a GPU (JAX's transposed patches instead)": (
        "cnn", lambda: functional(lambda rngs: CNN(TransposedConv, pool_by_reshape, rngs)),
    ),
    "patches of one channel, of a GPU (XLA's convolution instead)": (
        "cnn", lambda: functional(lambda rngs: CNN(lax_stem, pool_by_reshape, rngs)),
    ),
    "patches and Winograd (XLA's convolution instead)": (  # last: minutes on a CPU
        "cnn", lambda: functional(lambda rngs: CNN(LaxConv, pool_by_reshape, rngs)),
    ),
}  # fmt: skip
"""What is off, the shape, and its model then."""
ON: dict[str, Callable[[], Model]] = {
    "small convolutions pooled at once (in turn instead)": small_cnn(
        lambda layer, x: conv_and_pool(x, layer.kernel[...]) + layer.bias[...]
    )
}
"""The model with it on, where that is not the shape's own."""


def seconds_per_round(task: fx.Task, rounds: int) -> float:
    shape = SHAPES[task.name]
    begun = time.perf_counter()
    fx.run(task, ALGORITHM, rounds=rounds, cohort_size=shape.clients, batch_size=shape.batch, eval_every=10**6)
    return (time.perf_counter() - begun) / rounds


def measure(name: str, off: Model, on: Model | None, turns: int, seconds: float) -> dict[str, float]:
    """Rounds of the shape with `on` (None: its own model) and `off`, `turns` times in turn, about `seconds` each."""
    own = task_of(name)
    tasks = {"on": task_on(name, own.clients, on) if on else own, "off": task_on(name, own.clients, off)}
    for task in tasks.values():
        seconds_per_round(task, 1)  # compiles
    rounds = {way: max(1, round(seconds / seconds_per_round(task, 2))) for way, task in tasks.items()}
    for way, task in tasks.items():
        if rounds[way] > 2:
            seconds_per_round(task, rounds[way])  # compiles, if it is another program
    times = {way: [0.0] * turns for way in tasks}
    for turn in range(turns):
        for way, task in tasks.items():
            times[way][turn] = seconds_per_round(task, rounds[way])
    ratios = np.array(times["off"]) / np.array(times["on"])
    medians = {f"{way}_ms": float(1e3 * np.median(times[way])) for way in tasks}
    return medians | {"ratio": float(np.median(ratios)), "low": float(ratios.min()), "high": float(ratios.max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="shapes to measure, with commas between them")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each timed call")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    found = {}
    print("| off | shape | off, ms | on, ms | off / on (least to most) |\n|---|---|---|---|---|")
    for what, (shape, build) in OFF.items():
        if shape not in options.shapes.split(","):
            continue
        on = ON[what]() if what in ON else None
        found[what] = one = measure(shape, build(), on, options.turns, options.seconds)
        spread = f"{one['ratio']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
        print(f"| {what} | {shape} | {one['off_ms']:.1f} | {one['on_ms']:.1f} | {spread} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

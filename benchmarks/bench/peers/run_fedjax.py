"""FedJAX's federated averaging with a server optimizer: `python run_fedjax.py SHAPE`."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from work import CLIENT_LR, SERVER_BETAS, SERVER_EPS, SERVER_LR, SHAPES, examples, report, time_rounds

jax.tree_map, jax.tree_leaves = jax.tree.map, jax.tree.leaves  # gone from JAX since FedJAX's last release
import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

name = sys.argv[1]
shape = SHAPES[name]
WEIGHTS = {
    "tiny": {"out": (784, 10)},
    "mlp": {"hidden": (784, 200), "out": (200, 10)},
    "cnn": {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "hidden": (9216, 128), "out": (128, 62)},
}


def init(key: jax.Array) -> dict[str, Any]:
    params = {}
    for number, (layer, size) in enumerate(WEIGHTS[name].items()):
        fan_in = jnp.prod(jnp.array(size[:-1]))
        weight = jax.random.normal(jax.random.fold_in(key, number), size) / jnp.sqrt(fan_in)
        params[layer] = {"weight": weight, "bias": jnp.zeros(size[-1])}
    return params


def convolve(layer: dict[str, Any], x: jax.Array) -> jax.Array:
    out = jax.lax.conv_general_dilated(x, layer["weight"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(out + layer["bias"])


def logits(params: dict[str, Any], x: jax.Array) -> jax.Array:
    if name == "cnn":
        x = convolve(params["conv2"], convolve(params["conv1"], x))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    if name != "tiny":
        x = jax.nn.relu(x @ params["hidden"]["weight"] + params["hidden"]["bias"])
    return x @ params["out"]["weight"] + params["out"]["bias"]


def loss(params: dict[str, Any], batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, batch["x"])), batch["y"][:, None], axis=1).mean()


federation = fedjax.InMemoryFederatedData(
    {f"{client:05d}".encode(): dict(zip("xy", examples(name, client), strict=True)) for client in range(shape.clients)}
)
algorithm = fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(CLIENT_LR),
    fedjax.optimizers.adam(SERVER_LR, *SERVER_BETAS, SERVER_EPS),
    fedjax.ShuffleRepeatBatchHParams(batch_size=shape.batch, num_epochs=1),
)
state = algorithm.init(init(jax.random.PRNGKey(0)))
keys = jax.random.split(jax.random.PRNGKey(1), shape.clients)


def run_round() -> None:
    global state
    cohort = [(client, data, key) for (client, data), key in zip(federation.clients(), keys, strict=True)]
    state, _ = algorithm.apply(state, cohort)
    jax.block_until_ready(state.params)


report(time_rounds(run_round))

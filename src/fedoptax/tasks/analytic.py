"""Tasks made from formulas: the FAFED paper's counter-example, quadratics with a known optimum, synthetic(α, β)."""

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.algorithm import Tree
from fedoptax.data.federated import FederatedData
from fedoptax.errors import check_int, check_number
from fedoptax.tasks.task import Batch, Task, masked_mean

FEATURES, CLASSES = 60, 10  # of synthetic(α, β)


def counterexample() -> Task:
    """The one-dimensional problem of Theorem 1 (Wu et al. 2023, FAFED): three clients, x₀ = 10, optimum 0.

    f₁(x) = 3x² for |x| ≤ 1, else 6|x| − 2; f₂ = f₃ = −x² for |x| ≤ 1, else −2|x| + 1; f = (f₁ + f₂ + f₃)/3. An
    example (a, c) is a function: a x² for |x| ≤ 1, else 2a|x| − c. Each client holds one, so one epoch is one step, on
    the exact gradient. As printed, f₁ jumps by 1 at |x| = 1 (6|x| − 3 would be continuous), which shows in reported
    losses only: the gradients are those of the proof, 6 and −2 at x₀.

    Parameters: `{"x": ()}`. Metric: `distance`, |x|.
    """
    functions = [(3.0, 2.0), (-1.0, -1.0), (-1.0, -1.0)]
    clients = FederatedData.from_clients([{"a": np.array([a]), "c": np.array([c])} for a, c in functions])

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        x = params["x"]
        a, c = batch["a"].astype(x.dtype), batch["c"].astype(x.dtype)
        return masked_mean(jnp.where(jnp.abs(x) <= 1, a * x * x, 2 * a * jnp.abs(x) - c), batch)

    return Task(
        name="counterexample",
        init=lambda key: {"x": jnp.asarray(10.0)},
        loss=loss,
        metrics=lambda params, batch: {"distance": jnp.abs(params["x"] - batch["optimum"])},
        clients=clients,
        test={"optimum": np.zeros(1)},
        primary_metric="distance",
        higher_is_better=False,
        description="Theorem 1 of the FAFED paper: adaptive steps diverge if each client has its own v",
        spec={"partition_seed": 0},
        label=None,
    )


def quadratic(
    num_clients: int = 20, *, dimension: int = 10, examples: int = 20, noise: float = 1.0, heterogeneity: float = 1.0,
    condition: float = 10.0, seed: int = 0,
) -> Task:  # fmt: skip
    """Clients with quadratics of different curvature and centre, and a known optimum.

    fᵢ(x) = meanⱼ ½ (x − bᵢⱼ)ᵀ Hᵢ (x − bᵢⱼ); f is their mean and f's optimum x* = (Σ Hᵢ)⁻¹ Σ Hᵢ b̄ᵢ. Hᵢ is a random
    rotation of eigenvalues spread evenly in log from 1/condition to 1; bᵢⱼ = bᵢ + noise·εᵢⱼ and
    bᵢ = 1 + heterogeneity·εᵢ with standard normal ε. x₀ = 0. Where b differs between clients of different H, local
    steps drift: `fedavg` with several stops away from x*. An example is a function, (H, b).

    Parameters: `{"x": (dimension,)}`, float64 under `jax.enable_x64`. Metrics: `distance`, ‖x − x*‖, and `excess`,
    f(x) − f(x*) = ½ (x − x*)ᵀ H̄ (x − x*). x* is the task's test example: `task.test["optimum"][0]`.

    `noise` and `heterogeneity` are ≥ 0: without noise every minibatch gradient is exact, without both all clients have
    one optimum. `condition` is ≥ 1, and `examples` the bᵢⱼ per client.
    """
    counts = {"num_clients": num_clients, "dimension": dimension, "examples": examples}
    for name, count in counts.items():
        check_int(name, count)
    numbers = {"noise": noise, "heterogeneity": heterogeneity, "condition": condition}
    for name, number in numbers.items():
        check_number(name, number, 1.0 if name == "condition" else 0.0)
    rng = np.random.default_rng(seed)
    eigenvalues = np.geomspace(1 / condition, 1, dimension) if dimension > 1 else np.ones(1)
    matrices, pull, clients = [], np.zeros(dimension), []
    for _ in range(num_clients):
        rotation = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
        matrix = (rotation * eigenvalues) @ rotation.T
        matrix = (matrix + matrix.T) / 2
        b = 1 + heterogeneity * rng.normal(size=dimension) + noise * rng.normal(size=(examples, dimension))
        matrices.append(matrix)
        pull += matrix @ b.mean(axis=0)
        clients.append({"H": np.broadcast_to(matrix, (examples, dimension, dimension)), "b": b})
    optimum = np.linalg.solve(np.sum(matrices, axis=0), pull)

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        x = params["x"]
        return masked_mean(_energy(batch["H"].astype(x.dtype), x - batch["b"].astype(x.dtype)), batch)

    def metrics(params: Tree, batch: Batch) -> dict[str, jax.Array]:
        gap = params["x"].astype(batch["optimum"].dtype) - batch["optimum"]
        return {"distance": jnp.sqrt(jnp.sum(gap * gap, axis=-1)), "excess": _energy(batch["H"], gap)}

    return Task(
        name="quadratic",
        init=lambda key: {"x": jnp.zeros(dimension)},
        loss=loss,
        metrics=metrics,
        clients=FederatedData.from_clients(clients),
        test={"H": np.mean(matrices, axis=0)[None], "optimum": optimum[None]},
        primary_metric="distance",
        higher_is_better=False,
        description=f"Quadratics of different curvature and centre in {dimension} dimensions, with a known optimum",
        spec={**counts, **numbers, "partition_seed": seed},
        label=None,
    )


def synthetic(alpha: float = 1.0, beta: float = 1.0, num_clients: int = 30, *, seed: int = 0) -> Task:
    """synthetic(α, β) (Li et al. 2020, FedProx, Section 5.1): logistic regression, 60 features, 10 classes.

    Device k labels with y = argmax(W_k x + b_k), entries of W_k and b_k ~ N(u_k, 1), u_k ~ N(0, α). Its x ~ N(v_k, Σ),
    Σ diagonal with Σ_jj = j^−1.2, entries of v_k ~ N(B_k, 1), B_k ~ N(0, β): β says how much the devices' data differ.
    α and β are variances, as the text has it (the authors' program takes them for standard deviations; the same at 0
    and 1). Sizes are 50 + ⌊e^(4 + 2ε)⌋, from that program, "a power law". Of each device a random fifth goes to the
    common test set.

    α is meant to say how much the devices' models differ, but as published it changes nothing: u_k, one number for all
    entries, adds the same to all ten logits, which argmax does not see. The models differ by the unit variance of their
    entries, whatever α is.

    Parameters: `{"kernel": (60, 10), "bias": (10,)}`, starting at 0. Metrics: `accuracy`, and `loss` (cross-entropy).
    """
    check_number("alpha", alpha, 0.0)
    check_number("beta", beta, 0.0)
    check_int("num_clients", num_clients)
    rng = np.random.default_rng(seed)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations
    train, test = [], []
    for _ in range(num_clients):
        size = 50 + int(rng.lognormal(4, 2))
        u, shift = rng.normal(0, np.sqrt(alpha)), rng.normal(0, np.sqrt(beta))
        kernel, bias = rng.normal(u, 1, (FEATURES, CLASSES)), rng.normal(u, 1, CLASSES)
        x = rng.normal(shift, 1, FEATURES) + spread * rng.normal(size=(size, FEATURES))
        examples = {"x": x.astype(np.float32), "y": np.argmax(x @ kernel + bias, axis=1).astype(np.int32)}
        cut = round(0.2 * size)  # the examples are in random order
        test.append({name: value[:cut] for name, value in examples.items()})
        train.append({name: value[cut:] for name, value in examples.items()})

    def log_probabilities(params: Tree, batch: Batch) -> jax.Array:
        x = batch["x"].astype(params["kernel"].dtype)
        return jax.nn.log_softmax(x @ params["kernel"] + params["bias"])

    def cross_entropy(log_p: jax.Array, batch: Batch) -> jax.Array:
        return -jnp.take_along_axis(log_p, batch["y"][:, None], axis=1)[:, 0]

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        return masked_mean(cross_entropy(log_probabilities(params, batch), batch), batch)

    def metrics(params: Tree, batch: Batch) -> dict[str, jax.Array]:
        log_p = log_probabilities(params, batch)
        is_right = jnp.argmax(log_p, axis=-1) == batch["y"]
        return {"accuracy": is_right.astype(jnp.float32), "loss": cross_entropy(log_p, batch)}

    return Task(
        name="synthetic",
        init=lambda key: {"kernel": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)},
        loss=loss,
        metrics=metrics,
        clients=FederatedData.from_clients(train),
        test={name: np.concatenate([part[name] for part in test]) for name in ("x", "y")},
        primary_metric="accuracy",
        predict=lambda params, batch: jnp.exp(log_probabilities(params, batch)),
        classes=(),
        description=f"synthetic({alpha:g}, {beta:g}): logistic regression on devices with different models and data",
        spec={"alpha": alpha, "beta": beta, "num_clients": num_clients, "partition_seed": seed},
    )


def _energy(matrix: jax.Array, gap: jax.Array) -> jax.Array:
    """½ gapᵀ H gap for a batch of (H, gap)."""
    return 0.5 * jnp.einsum("bi,bij,bj->b", gap, matrix, gap)

"""The rows of the laws' table: every algorithm, and variants of some."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import fedoptax as fx
from fedoptax.algorithm import FedAlgorithm
from laws import Factory


def fedavg_scheduled(client_lr: float = 0.2, server_lr: float = 0.8) -> FedAlgorithm:
    def decay(r: Any) -> jax.Array:
        return 1 / (1 + jnp.asarray(r, float))

    return fx.fedavg(lambda r: client_lr * decay(r), lambda r: server_lr * decay(r))


def noisy_fedavg(client_lr: float = 0.1, spread: float = 0.05) -> FedAlgorithm:
    """Clients that add noise from their keys."""
    base = fx.fedavg(client_lr)

    def client_update(grad_fn: Any, message: Any, client: Any, batches: Any) -> Any:
        upload, client, loss = base.client_update(grad_fn, message, client, batches)
        noise = jax.tree.map(lambda a: jax.random.normal(batches.key, a.shape, a.dtype), upload.delta)
        return upload._replace(delta=fx.tree.add_scaled(upload.delta, spread, noise)), client, loss

    return base._replace(client_update=client_update)


TABLE: dict[str, Factory] = {
    "fedavg": partial(fx.fedavg, client_lr=0.1),
    "fedavgm": partial(fx.fedavgm, client_lr=0.1, server_lr=0.7),
    "fedadagrad": partial(fx.fedadagrad, client_lr=0.1, server_lr=0.1),
    "fedyogi": partial(fx.fedyogi, client_lr=0.1, server_lr=0.05),
    "fedadam": partial(fx.fedadam, client_lr=0.1, server_lr=0.05),
    "fedadabound": partial(fx.fedadabound, client_lr=0.1, server_lr=0.05),
    "fedams": partial(fx.fedams, client_lr=0.1, server_lr=0.05),
    "fedamsgrad": partial(fx.fedamsgrad, client_lr=0.1, server_lr=0.02),
    "fedprox": partial(fx.fedprox, client_lr=0.1, mu=0.3),
    "scaffold": partial(fx.scaffold, client_lr=0.1),
    "scaffold_adam": partial(fx.scaffold_adam, client_lr=0.1, server_lr=0.05),
    "local_amsgrad": partial(fx.local_amsgrad, lr=0.01),
    "fedlamb": partial(fx.fedlamb, lr=0.05, weight_decay=0.01),
    "stem": partial(fx.stem, lr=0.05),
    "fafed": partial(fx.fafed, lr=0.05, rho=0.1),
    "naive_adaptive": partial(fx.naive_adaptive, lr=0.05),
    "local_adaalter": partial(fx.local_adaalter, lr=0.3),
    "lookahead": partial(fx.lookahead, client_lr=0.05, eps=1e-3),
    "mimelite": partial(fx.mimelite, client_lr=0.1),
    "mime": partial(fx.mime, client_lr=0.1),
    "fedexp": partial(fx.fedexp, client_lr=0.1),
    "delta_sgd": partial(fx.delta_sgd),
    "fedcm": partial(fx.fedcm, client_lr=0.1, alpha=0.3),
    "feddyn": partial(fx.feddyn, client_lr=0.1, alpha=0.5),
    "fednova": partial(fx.fednova, client_lr=0.1, momentum=0.5),
    "fedlion": partial(fx.fedlion, lr=0.01, max_steps=3),
    "fedadamw": partial(fx.fedadamw, client_lr=0.02),
    "fedada2": partial(fx.fedada2, client_lr=0.05, server_lr=0.1),
    "fadamgc": partial(fx.fadamgc, client_lr=0.02, eps=1e-3),
    "diloco": partial(fx.diloco, client_lr=0.02, eps=1e-3),
    "muloco": partial(fx.muloco, client_lr=0.02, eps=1e-3),
}
VARIANTS: dict[str, Factory] = {
    "fedavg scheduled": fedavg_scheduled,
    "fedadam debias": partial(fx.fedadam, client_lr=0.1, server_lr=0.05, debias=True),
    "fedyogi debias": partial(fx.fedyogi, client_lr=0.1, server_lr=0.05, debias=True),
    "fedopt average": lambda lr=0.1, momentum=0.5, server_lr=0.8: fx.fedopt(
        optax.sgd(lr, momentum=momentum), optax.sgd(server_lr), client_state="average"
    ),
    "fedopt server": lambda lr=0.1, momentum=0.5, server_lr=0.8: fx.fedopt(
        optax.sgd(lr, momentum=momentum), optax.sgd(server_lr, momentum=0.5), client_state="server"
    ),
    "scaffold momentum": lambda client_lr=0.1, server_lr=0.8, momentum=0.5: fx.scaffold(
        client_lr, server_lr, server_optimizer=optax.sgd(1.0, momentum=momentum)
    ),
    "scaffold I": partial(fx.scaffold, client_lr=0.1, option="I"),
    "fedlamb reset module": partial(fx.fedlamb, lr=0.05, layers="module", momentum="reset"),
    "fedlamb device": partial(fx.fedlamb, lr=0.05, second_moment="device", gradient="start"),
    "fedlamb once": partial(fx.fedlamb, lr=0.05, b2=0.9, bias_correction="both", gradient="once", momentum="reset"),
    "local_amsgrad unbiased": partial(fx.local_amsgrad, lr=0.01, bias_correction="momentum"),
    "fafed norm": partial(fx.fafed, lr=0.05, rho=0.1, adaptive="adagrad_norm", initial_batches=1),
    "fafed global": partial(fx.fafed, lr=0.05, rho=0.1, adaptive="global"),
    "fafed released": partial(fx.fafed, lr=0.05, rho=0.1, variant="released"),
    "fafed scheduled": lambda rho=0.1, h=1.0, w=1.0, c=5.0: fx.fafed(*fx.fafed_schedule(rho, h, w, c), rho=rho),
    "mime adam": partial(fx.mime, client_lr=0.02, base="adam", eps=0.1),
    "mime previous": partial(fx.mime, client_lr=0.1, control="previous"),
    "fedexp released": partial(fx.fedexp, client_lr=0.1, variant="released"),
    "fadamgc reset": partial(fx.fadamgc, client_lr=0.02, eps=1e-3, moments="reset"),
    "prox scaffold": lambda client_lr=0.1, mu=0.3: fx.with_prox(fx.scaffold(client_lr), mu),
    "prox fafed": lambda lr=0.05, mu=0.3: fx.with_prox(fx.fafed(lr, rho=0.1), mu),
    "clipping fedadam": lambda client_lr=0.1, max_norm=0.5: fx.with_clipping(fx.fedadam(client_lr, 0.05), max_norm),
    "clipping fedlamb": lambda lr=0.05, max_norm=0.5: fx.with_clipping(fx.fedlamb(lr), max_norm),
}
WRAPPED: dict[str, Factory] = {
    "noisy fedavg": noisy_fedavg,
    "personal fedadam": lambda client_lr=0.1, server_lr=0.05: fx.with_personal(
        fx.fedadam(client_lr, server_lr), keep="bias"
    ),
    "personal scaffold": lambda client_lr=0.1: fx.with_personal(fx.scaffold(client_lr), keep="bias"),
    "private fedadam": lambda server_lr=0.05, clip=0.5, noise_multiplier=0.1: fx.with_privacy(
        fx.with_prox(fx.fedadam(0.1, server_lr), 0.1), clip, noise_multiplier, 1e-3
    ),
    "quantised fedadam": lambda client_lr=0.1, server_lr=0.05: fx.with_prox(
        fx.with_compression(fx.fedadam(client_lr, server_lr), fx.codecs.qsgd(bits=2, bucket=4)), 0.1
    ),
    "sparse fafed": lambda lr=0.05, rho=0.1: fx.with_compression(fx.fafed(lr, rho=rho), fx.codecs.topk(0.25)),
    "quantised private stem": lambda lr=0.05, clip=1.0, noise_multiplier=0.1: fx.with_compression(
        fx.with_privacy(fx.stem(lr), clip, noise_multiplier, 1e-3), fx.codecs.qsgd(bits=4)
    ),
}
ROWS = TABLE | VARIANTS
KINDS = ("fedavg", "scaffold", "fedlamb", "fafed", "mime", "delta_sgd")
"""One algorithm of each kind: Δ alone, control variates, layers, two gradients a step, two exchanges, its own rate."""
kinds_quickly = [pytest.param(name, marks=[] if name in KINDS else pytest.mark.long) for name in ROWS]
"""All rows; with the quick tests those of `KINDS`."""
CORE = ("fafed",)
"""The row that keeps every law in `make test`, for its clients have states and two gradients a step."""

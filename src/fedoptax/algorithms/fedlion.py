"""FedLion: sign steps at the clients from a momentum that all share; the changes are whole numbers.

Tang, Chang 2024, *FedLion: Faster Adaptive Federated Optimization with Fewer Communication*, Algorithm 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, GradFn, Minibatches, Tree, local_steps, num_steps
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptState, replace_updates
from fedoptax.errors import check_decay, check_int
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr, value_at
from fedoptax.wrappers import codecs


class FedLionUpload(NamedTuple):
    """Up: the sum of the client's signs (x − y)/γ, whole numbers from −K to K, coded as such; and m."""

    signs: Tree
    m: Tree


def fedlion(lr: LearningRate, b1: Number = 0.9, b2: Number = 0.99, max_steps: int = 127) -> FedOpt[FedLionUpload]:
    """FedLion (Tang and Chang 2024, Algorithm 1): K local steps of Lion from the shared m, whose mean is the next m.

    Step: y ← y − γ sign(β₁ m + (1−β₁) g); m ← β₂ m + (1−β₂) g. The upload is (x − y)/γ, whole numbers that take
    ⌈log₂(2·max_steps + 1)⌉ bits each (8 by default; 16 above 127), and m. Server: x ← x − γ mean (x − y)/γ,
    m ← mean m. m starts at 0; means are uniform.

    Args:
      lr: γ > 0, a number or a schedule over rounds.
      b1, b2: β₁ and β₂ in [0, 1).
      max_steps: the largest K of a client, 1 to 32,767. One that takes more makes the round diverge.
    """
    check_lr(lr=lr)
    check_decay(b1=b1, b2=b2)
    check_int("max_steps", max_steps, 1, 2**15 - 1)
    codec = codecs.integers(max_steps)

    def init(params: Tree) -> FedOptState:
        return FedOptState(params, (), jnp.zeros((), jnp.int32), tree.zeros_like(params))

    def client_update(
        grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches
    ) -> ClientResult[FedLionUpload, Tree]:
        x, gamma, steps = message.params, resolve_lr(lr, message.lr), num_steps(batches)

        def step(carry: tuple[Tree, Tree], batch: Tree) -> tuple[tuple[Tree, Tree], jax.Array]:
            signs, m = carry
            loss, g = grad_fn(tree.add_scaled(x, -gamma, signs), batch)  # at y = x − γ Σ sign
            signs = tree.add(signs, jax.tree.map(jnp.sign, tree.ema(b1, m, g)))
            return (signs, tree.ema(b2, m, g)), loss

        (signs, m), loss = local_steps(step, (tree.zeros_like(x), message.shared), batches)
        m = tree.select(steps <= max_steps, m, tree.full_like(m, jnp.nan))
        return FedLionUpload(jax.tree.map(lambda a: codecs.encode_array(codec, a), signs), m), client, loss

    def decode(sent: FedLionUpload) -> FedLionUpload:
        signs = jax.tree.map(lambda _, coded: codecs.decode_array(codec, coded), sent.m, sent.signs)
        return FedLionUpload(signs, sent.m)

    def server_update(server: FedOptState, mean: FedLionUpload, cohort: Cohort) -> FedOptState:
        x = tree.add_scaled(server.params, -value_at(lr, server.round), mean.signs)
        return FedOptState(x, (), server.round + 1, mean.m)

    return replace_updates(lr, init, client_update, server_update)._replace(decode=decode)

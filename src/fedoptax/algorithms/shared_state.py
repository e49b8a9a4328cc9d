"""FedOpt with a shared client optimizer: its state is averaged and broadcast with x. Local AdaAlter and Lookahead.

Both are special cases of Algorithm 1 of Reddi et al. 2021 (Section 1): `fedopt(…, client_state="average")`.
"""

import jax
import jax.numpy as jnp
import optax

from fedoptax import tree
from fedoptax.algorithm import GradFn, Minibatches, Tree, local_steps
from fedoptax.algorithms import optimizers
from fedoptax.algorithms.fedopt import FedOpt, FedOptMessage, FedOptResult, FedOptState, FedOptUpload, _fedopt, _sgd
from fedoptax.errors import check_number, check_positive
from fedoptax.schedules import LearningRate, Number, check_lr, resolve_lr


def local_adaalter(lr: LearningRate, b0: Number = 1.0, eps: Number = 1.0) -> FedOpt[FedOptUpload]:
    """Local AdaAlter (Xie et al. 2019, *Local AdaAlter*, the algorithm of that name): AdaGrad with a lazy denominator.

    Client, from the shared x and A² = B²: at local step t′ = 1, 2, … y ← y − η g/√(B² + t′ ε²) and A² ← A² + g², so all
    clients divide by the same numbers and the gradients of a round count from the next round on. Server: x ← mean y,
    B² ← mean A²; B² starts at b₀². As `fedopt(…, client_state="average")` with a server step of 1 and uniform weights;
    t′ is 0 at a synchronisation and does not travel: two vectors each way.

    Args:
      lr: η > 0, a number or a schedule over rounds.
      b0: b₀ ≥ 0.
      eps: ε > 0.
    """
    check_lr(lr=lr)
    check_number("b0", b0, 0)
    check_positive(eps=eps)
    fedopt = _fedopt(lr, optimizers.descend(1.0), client_state="average")

    def init(params: Tree) -> FedOptState:
        return fedopt.init(params)._replace(shared=tree.full_like(params, b0**2))

    def client_update(grad_fn: GradFn, message: FedOptMessage, client: Tree, batches: Minibatches) -> FedOptResult:
        x, b_squared, eta = message.params, message.shared, resolve_lr(lr, message.lr)

        def step(carry: tuple, batch: Tree) -> tuple[tuple, jax.Array]:
            y, a_squared, t = carry
            loss, g = grad_fn(y, batch)
            t = t + 1
            root = jax.tree.map(lambda b: jnp.sqrt(b + t.astype(b.dtype) * jnp.asarray(eps**2, b.dtype)), b_squared)
            y = tree.add(y, tree.divide(tree.scale(-eta, g), root))
            return (y, tree.add(a_squared, tree.square(g)), t), loss

        (y, a_squared, _), loss = local_steps(step, (x, b_squared, jnp.zeros((), jnp.int32)), batches)
        return FedOptUpload(tree.sub(y, x), a_squared), client, loss

    return fedopt._replace(init=init, client_update=client_update, weighting="uniform")


def lookahead(
    client_lr: LearningRate, alpha: Number = 0.5, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-8
) -> FedOpt[FedOptUpload]:
    """Federated Lookahead (Zhang et al. 2019b, Algorithm 1, as Reddi et al. 2021 extend it), with Adam inside.

    Clients run K steps of Adam (the fast weights) from x and the shared moments; server: x ← x + α (mean y − x) (the
    slow weights), the moments and their step count ← their means over the clients (unequal K: the mean count,
    rounded). Adam is m ← β₁ m + (1−β₁) g; v ← β₂ v + (1−β₂) g²; y ← y − η √(1−β₂ᵗ)/(1−β₁ᵗ) m/(√v + ε). Three vectors
    and one count each way.

    Args:
      client_lr: η > 0, a number or a schedule over rounds.
      alpha: α > 0, the slow weights' step; 1 is plain averaging.
      b1, b2: β₁ and β₂ in [0, 1).
      eps: ε > 0.
    """
    check_positive(alpha=alpha, eps=eps)
    adam = optimizers.scale_by_fedadam(b1, b2, optimizers.MomentOptions(tau=eps, debias=True))
    return _fedopt(client_lr, optimizers.descend(alpha), lambda lr: optax.chain(adam, _sgd(lr)), "average")

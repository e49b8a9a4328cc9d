"""Client-level differential privacy on any algorithm: clipped changes, a uniform mean, Gaussian noise at the server.

McMahan et al. 2018, *Learning Differentially Private Recurrent Language Models* (DP-FedAvg with fixed-size sampling);
Andrew et al. 2021, *Differentially Private Learning with Adaptive Clipping*, Algorithm 1. See docs/privacy.md.

The ε that rounds spend is computed by Google's dp-accounting (the extra `privacy`). Neighbours differ by one client
replaced by any other. The mean of |S| uploads of norm ≤ C then moves by at most 2C/|S| and its noise has the standard
deviation zC/|S|: z/2 times the sensitivity. That ratio is what RdpAccountant's formulas take under REPLACE_ONE
(`_compute_rdp_sample_wor_gaussian`: "the ratio … to the l2-sensitivity"; the docstring of `GaussianDpEvent`, s/C, is
that of add-or-remove), hence the factor 1/2. A test checks this convention.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

from fedoptax import tree
from fedoptax.algorithm import ClientResult, Cohort, FedAlgorithm, GradFn, Minibatches, Tree, check_algorithm
from fedoptax.errors import UsageError, check_int, check_number, check_positive, is_traced
from fedoptax.schedules import Number
from fedoptax.wrappers import uploads
from fedoptax.wrappers.uploads import Message


class PrivacyState(NamedTuple):
    """The server: the algorithm's state, the key of the noise, the clip C if it adapts (else `()`)."""

    inner: Tree
    key: jax.Array
    clip: Tree


class PrivateUpload(NamedTuple):
    """Up: the change divided by the clip, clipped to norm 1; 1 if it was not longer, else 0 (`()` if C is fixed)."""

    change: Tree
    below: Tree


def with_privacy(
    algorithm: FedAlgorithm, clip: Number, noise_multiplier: Number, delta: float,
    target_quantile: Number | None = None, clip_lr: Number = 0.2, bit_noise: Number | None = None,
    nonnegative: Sequence[str] | None = None, seed: int | None = 0,
) -> FedAlgorithm:  # fmt: skip
    """Make the published models differentially private, the client as a whole (McMahan et al. 2018).

    A client's upload, as a change against what it received, is clipped: all its numbers together to 2-norm C. The mean
    over the cohort S is uniform. The server adds noise of standard deviation zC/|S| to each coordinate, once, and gives
    the sum to the algorithm. An upload that is not finite counts as 0, and so does such a loss. The server clips again
    what it receives, so a client that does not keep to the rules cannot weigh more than one that does.

    The result's `epsilon(rounds, |S|, N)` is the ε that is spent at `delta`, for replacing one client by any other when
    cohorts have a fixed size and are sampled uniformly without replacement, as the engines do. It covers the
    algorithm's server state, and so the models; not the training loss, nor the uploads, which the server sees.

    Args:
      algorithm: any algorithm with one exchange per step and no whole numbers in its uploads, not yet compressed.
      clip: C > 0, in units of the upload; with `target_quantile` its first value.
      noise_multiplier: z ≥ 0; 0 clips without noise (ε = ∞).
      delta: δ in (0, 1), well below 1/N.
      target_quantile: γ in [0, 1): after each round C ← C exp(−η (b̃ − γ)), where b̃ is the noised part of the clients
        that were not clipped (Andrew et al. 2021, Algorithm 1). None keeps C.
      clip_lr: η > 0 of that rule.
      bit_noise: σ_b > z/2, the noise of the sum behind b̃. None is |S|/20, the paper's, or z where that is more. The
        update's noise is raised to z/√(1 − (z/2σ_b)²), so that both together spend as much as z alone.
      nonnegative: names of the upload's fields that hold second moments; the server sets negative ones to 0 after the
        noise. None knows those of this package, and refuses fields that it does not know.
      seed: of the noise. It must be secret where privacy matters: None draws it from the operating system.

    Raises:
      UsageError: a number is outside its range; dp-accounting is not installed; the upload is coded already, or (when a
        client runs) holds whole numbers or fields of unknown sign.
    """
    check_algorithm(algorithm)
    is_adaptive = target_quantile is not None
    check_positive(clip=clip, clip_lr=clip_lr)
    check_number("noise_multiplier", noise_multiplier, 0)
    check_number("delta", delta, 0, 1, open_low=True)
    if find_spec("dp_accounting") is None:
        raise UsageError("with_privacy needs dp-accounting: pip install 'fedoptax[privacy]'")
    if is_adaptive:
        check_number("target_quantile", target_quantile, 0, 1)
    if bit_noise is not None and not is_adaptive:
        raise UsageError("bit_noise needs target_quantile")
    if bit_noise is not None:
        is_known = not is_traced(noise_multiplier)  # with σ_b <= z/2 the count alone exceeds the budget of z
        check_number("bit_noise", bit_noise, float(noise_multiplier) / 2 if is_known else 0, open_low=True)
    if algorithm.decode is not None:
        raise UsageError("algorithm must not code its uploads (as fedlion): with_compression(with_privacy(...), codec)")
    if algorithm.exchanges > 1:
        raise UsageError("algorithm must have one exchange per step: each round is accounted as a new cohort")
    words = uploads.key_words(seed)
    names = uploads.SECOND_MOMENTS if nonnegative is None else nonnegative
    names = (names,) if isinstance(names, str) else tuple(names)

    def init(params: Tree) -> PrivacyState:
        start = jnp.asarray(clip, jnp.float32) if is_adaptive else ()
        return PrivacyState(algorithm.init(params), uploads.first_key(words, params), start)

    def broadcast(server: PrivacyState) -> Message:
        return Message(algorithm.broadcast(server.inner), server.clip)

    def client_update(grad_fn: GradFn, message: Message, client: Tree, batches: Minibatches) -> ClientResult:
        upload, new, loss = algorithm.client_update(grad_fn, message.inner, client, batches)
        _check_upload(upload, names, must_know_all=nonnegative is None)
        change, limit = uploads.change_of(message.inner, upload), message.added if is_adaptive else clip
        norm = tree.norm(change)
        client = tree.select(jnp.isfinite(norm), new, client)
        below = (norm <= jnp.asarray(limit, norm.dtype)).astype(jnp.float32) if is_adaptive else ()
        return PrivateUpload(scale_into_ball(change, limit), below), client, jnp.where(jnp.isfinite(loss), loss, 0)

    def decode(sent: PrivateUpload) -> PrivateUpload:
        below = jnp.clip(jnp.nan_to_num(sent.below), 0, 1) if is_adaptive else ()
        return PrivateUpload(scale_into_ball(sent.change, 1.0), below)

    def server_update(server: PrivacyState, mean: PrivateUpload, cohort: Cohort) -> PrivacyState:
        key, use = uploads.split_key(server.key)
        z, size, length = noise_multiplier, jnp.asarray(cohort.size, jnp.float32), clip
        new_clip = server.clip
        if is_adaptive:
            z, sigma = split_noise(noise_multiplier, bit_noise, size)
            part = mean.below + sigma / size * jax.random.normal(jax.random.fold_in(use, 1), (), jnp.float32)
            length, new_clip = server.clip, server.clip * jnp.exp(-clip_lr * (part - target_quantile))
        change = add_noise(mean.change, jax.random.fold_in(use, 0), length, jnp.asarray(z, jnp.float32) / size)
        upload = uploads.upload_of(algorithm.broadcast(server.inner), change)
        upload = tree_map_with_path(lambda p, a: jnp.maximum(a, 0) if uploads.is_nonnegative(p, names) else a, upload)
        return PrivacyState(algorithm.server_update(server.inner, upload, cohort), key, new_clip)

    return algorithm._replace(
        init=init, broadcast=broadcast, client_update=client_update, server_update=server_update,
        params=lambda server: algorithm.params(server.inner), weighting="uniform", decode=decode,
        epsilon=partial(epsilon, noise_multiplier, delta),
    )  # fmt: skip


def scale_into_ball(change: Tree, radius: Number) -> Tree:
    """change / max(‖change‖, radius), a tree of 2-norm at most 1; 0 if `change` is not finite.

    Clipped vectors end two units in the last place inside the ball, so that rounding does not move them out again.
    """
    norm = tree.norm(change)
    limit = jnp.asarray(radius, norm.dtype)
    coarsest = max((float(jnp.finfo(a.dtype).eps) for a in jax.tree.leaves(change)), default=0.0)
    factor = jnp.where(norm <= limit, 1 / limit, (1 - 2 * coarsest) / jnp.maximum(norm, limit))
    finite = jnp.isfinite(norm)

    def leaf(a: jax.Array) -> jax.Array:
        return jnp.where(finite, factor * a.astype(factor.dtype), 0).astype(a.dtype)

    return jax.tree.map(leaf, change)


def add_noise(mean: Tree, key: jax.Array, length: Number, spread: Number) -> Tree:
    """length · (mean + spread · n), where n is standard normal noise, independent in every coordinate."""
    leaves, structure = jax.tree.flatten(mean)

    def leaf(a: jax.Array, key: jax.Array) -> jax.Array:
        wide = tree.sum_dtype(a)
        noise = jnp.asarray(spread, wide) * jax.random.normal(key, a.shape, wide)
        return (jnp.asarray(length, wide) * (a.astype(wide) + noise)).astype(a.dtype)

    return jax.tree.unflatten(structure, [leaf(a, jax.random.fold_in(key, i)) for i, a in enumerate(leaves)])


def split_noise(noise_multiplier: Number, bit_noise: Number | None, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(z_Δ, σ_b): the noise multipliers of the update and of the count, which together spend as much as z alone.

    z⁻² = z_Δ⁻² + (2σ_b)⁻² (Andrew et al. 2021, Theorem 1). σ_b ≥ z by default keeps z_Δ below 1.16 z.
    """
    z = jnp.asarray(noise_multiplier, jnp.float32)
    default = jnp.where(z > 0, jnp.maximum(size / 20, z), 0.0)
    sigma = default if bit_noise is None else jnp.asarray(bit_noise, jnp.float32)
    part = jnp.where(z > 0, z / (2 * jnp.where(sigma > 0, sigma, 1.0)), 0.0)
    return z / jnp.sqrt(1 - part * part), sigma


def _check_upload(upload: Tree, nonnegative: Sequence[str], must_know_all: bool) -> None:
    leaves = tree_leaves_with_path(upload)
    for name in () if must_know_all else nonnegative:
        if not any(uploads.is_nonnegative(path, [name]) for path, _ in leaves):
            raise UsageError(f"nonnegative '{name}' is no field of the upload")
    for path, leaf in leaves:
        if not uploads.is_floating(leaf):
            raise UsageError(f"algorithm must only upload floating-point numbers, got {leaf.dtype} at {keystr(path)}")
    for path, _ in leaves:  # only now: no setting helps where whole numbers are sent
        field = uploads.field_of(path)
        is_known = field in uploads.VECTORS or uploads.is_nonnegative(path, nonnegative)
        if must_know_all and not is_known:
            needed = "the upload's fields that noise must not make negative, or be ()"
            raise UsageError(f"nonnegative must name {needed}: '{field}' may hold second moments")


def epsilon(noise_multiplier: Number, delta: float, rounds: int, cohort_size: int, num_clients: int) -> float:
    """The ε ≥ 0 at δ that `rounds` rounds spend, each a Gaussian mean over a cohort sampled without replacement.

    The smaller of two upper bounds: Rényi accounting of the sampled mechanism (Wang, Balle, Kasiviswanathan 2019,
    Theorem 27, via dp-accounting), and the exact ε of the mechanism without sampling (Balle, Wang 2018), the
    only one when everyone takes part. Infinity for z = 0.
    """
    if is_traced(noise_multiplier):
        raise UsageError("noise_multiplier must be a number to compute ε, got a traced value")
    check_int("rounds", rounds, 0)
    check_int("cohort_size", cohort_size, 1, num_clients)
    ratio = float(noise_multiplier) / 2
    if rounds == 0 or ratio == 0:
        return 0.0 if rounds == 0 else math.inf
    import dp_accounting  # here, because it takes seconds, and is an extra

    with np.errstate(all="ignore"):  # its exponentials underflow, as they may
        everyone = float(dp_accounting.get_epsilon_gaussian(ratio / math.sqrt(rounds), delta))
        if cohort_size == num_clients:
            return everyone
        orders, a_round = _renyi(ratio, int(cohort_size), int(num_clients))
        return min(everyone, float(dp_accounting.rdp.compute_epsilon(orders, rounds * a_round, delta)[0]))


@lru_cache(maxsize=64)
def _renyi(ratio: float, cohort_size: int, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the Rényi divergences of one round at them; cached, as they take half a second."""
    import dp_accounting

    noise = dp_accounting.GaussianDpEvent(ratio)
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(num_clients, cohort_size, noise))
    return accountant.orders, accountant.rdp

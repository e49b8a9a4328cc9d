"""`with_privacy`: clipping, sensitivity, the algorithms it fits, adaptive clips, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedoptax as fx
from fedoptax import tree
from fedoptax.algorithm import FedAlgorithm, decoded
from fedoptax.wrappers.privacy import PrivateUpload, scale_into_ball, split_noise
from refusals import refused
from sending import a_round, leaf, sender, stacked_round
from small_rounds import ALL, close, every, federate, model, scalars

DELTA = 1e-5


def silent(algorithm: FedAlgorithm, clip: float = 1.0, **options: Any) -> FedAlgorithm:
    """Private but for the noise."""
    return fx.with_privacy(algorithm, clip, 0.0, DELTA, **options)


@pytest.mark.parametrize("norm", [0.0, 2.0, 2.0002, 1e18])
def test_all_leaves_are_clipped_together(norm):
    own = {"u": leaf([0.6 * norm, 0.0]), "v": {"w": leaf([[0.0], [-0.8 * norm]])}}
    algorithm = silent(sender(), 2.0)
    after = algorithm.params(a_round(algorithm, algorithm.init(tree.zeros_like(own)), [own])[0])
    shrink = min(1.0, 2.0 / norm) if norm else 1.0
    close(after, jax.tree.map(lambda a: shrink * np.asarray(a), own), rtol=1e-6, atol=0)


def test_clipping_twice_changes_nothing_more():
    rng = np.random.default_rng(3)
    for dtype in ("float32", "bfloat16", "float16"):
        for scale in (0.1, 1.0, 30.0):
            once = scale_into_ball({"a": jnp.asarray(scale * rng.normal(size=501), dtype)}, 1.5)
            assert float(np.linalg.norm(np.asarray(once["a"], np.float64))) <= 1.0
            np.testing.assert_array_equal(scale_into_ball(once, 1.0)["a"], once["a"])


SIZE, DIMENSION = 3, 4
NUMBERS = st.one_of(st.floats(-5, 5, width=32), st.floats(width=32), st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
VECTOR = st.lists(NUMBERS, min_size=DIMENSION, max_size=DIMENSION)


@jax.jit
def clipped_mean(own: jax.Array) -> jax.Array:
    """What the server makes of the uploads of `SIZE` clients, clip 0.7, without noise."""
    algorithm = silent(sender(), 0.7)
    server = algorithm.init({"w": jnp.zeros(DIMENSION)})
    return algorithm.params(stacked_round(algorithm, server, {"w": own}))["w"]


@settings(deadline=None, max_examples=100)
@given(st.lists(VECTOR, min_size=SIZE, max_size=SIZE), VECTOR, st.integers(0, SIZE - 1))
def test_one_client_moves_the_mean_by_at_most_two_clips_over_the_cohort(own, other, i):
    before, after = np.array(own, np.float32), np.array(own, np.float32)
    after[i] = other
    moved = np.asarray(clipped_mean(after), np.float64) - np.asarray(clipped_mean(before), np.float64)
    assert np.linalg.norm(moved) <= 2 * 0.7 / SIZE * (1 + 1e-6)


def test_the_server_clips_what_a_client_did_not():
    algorithm = silent(sender(), 0.7, target_quantile=0.5)
    for change, below in (([1e6, 0.0], 1e9), ([np.nan, 1.0], np.nan), ([np.inf, 1.0], -1e9)):
        seen = decoded(algorithm, PrivateUpload({"w": leaf(change)}, leaf(below)))
        assert np.linalg.norm(seen.change["w"]) <= 1 and 0 <= float(seen.below) <= 1
    honest = PrivateUpload({"w": leaf([0.6, -0.79])}, leaf(1.0))
    close(decoded(algorithm, honest), honest, rtol=0, atol=0)
    message, lost = algorithm.broadcast(algorithm.init({"w": leaf([0.0, 0.0])})), [{"w": leaf([np.nan, 1.0])}]
    upload, _, loss = algorithm.client_update(lambda y, batch: (leaf(np.nan), batch), message, (), lost)
    assert loss == 0 == tree.norm(upload.change), "a client that diverges counts as 0"
    algorithm, params = silent(fx.scaffold(0.1)), {"w": leaf([0.0, 0.0])}
    message, before = algorithm.broadcast(algorithm.init(params)), algorithm.init_client(params)
    after = algorithm.client_update(lambda y, batch: (leaf(np.nan), batch), message, before, lost)[1]
    close(after, before, rtol=0, atol=0)  # and starts from its state again


REFUSED = {"local_adaalter": "nonnegative"} | dict.fromkeys(("lookahead", "mime", "mime_adam"), "algorithm must")
DATA = [[(1.0, -1.0), (2.0, 0.5)], [(3.0, 2.0)]]


@every
def test_without_noise_and_with_a_long_clip_nothing_changes(name):
    clip = 1e18  # longer than every change: v of `fedlamb_reset` grows about 500 times a round
    algorithm = ALL[name](0.05)
    if name in REFUSED:
        return refused(lambda: federate(silent(algorithm, clip), model(), DATA, 1), REFUSED[name])
    private = silent(algorithm, clip)
    assert private.weighting == "uniform"
    server, clients, path = federate(private, model(), DATA, 3)
    plain_server, plain_clients, plain_path = federate(algorithm, model(), DATA, 3)
    close((server.inner, clients, path), (plain_server, plain_clients, plain_path), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["fafed", "local_adaalter", pytest.param("fedlamb", marks=[pytest.mark.long])])
def test_noise_makes_no_second_moment_negative(name):
    options: dict[str, Any] = {"nonnegative": ("client_opt_state",)} if name == "local_adaalter" else {}
    private = fx.with_privacy(ALL[name](0.01), 1.0, 3.0, DELTA, **options)
    server, _, path = federate(private, model(), DATA, 4)
    moments = getattr(server.inner, "v" if name == "fafed" else "shared")
    values = np.concatenate([np.ravel(a) for a in jax.tree.leaves(moments)])
    assert (values >= 0).all() and np.isfinite(np.concatenate([np.ravel(a) for a in jax.tree.leaves(path[-1])])).all()
    assert (values == 0).any() or name == "fedlamb", "only of a running maximum is no value 0"


@pytest.mark.parametrize(("noise", "rel"), [(0.0, 0.03), pytest.param(1.0, 0.2, marks=pytest.mark.long)])
def test_the_clip_converges_to_the_quantile_of_the_norms(noise, rel):
    """41 clients with norms 10^(i/20): the clip starts 1000 times too short and ends where γ of them are below it."""
    norms = 10 ** (np.arange(41) / 20)
    own = {"w": leaf(np.stack([norms, 0 * norms], axis=1))}
    algorithm = fx.with_privacy(sender(), 1e-2, noise, DELTA, target_quantile=0.7, clip_lr=0.3)

    @jax.jit
    def rounds(server: Any) -> Any:
        return jax.lax.fori_loop(0, 150, lambda r, s: stacked_round(algorithm, s, own), server)

    clip = float(rounds(algorithm.init({"w": jnp.zeros(2)})).clip)
    assert clip == pytest.approx(np.quantile(norms, 0.7), rel=rel)


def test_an_adaptive_round_by_hand():
    algorithm = silent(sender(), 2.0, target_quantile=0.5, clip_lr=0.2)
    server = algorithm.init({"w": jnp.zeros(1)})
    assert float(algorithm.broadcast(server).added) == 2.0
    after, _, _ = a_round(algorithm, server, [{"w": leaf([a])} for a in (1.0, 2.0, -8.0)])
    assert float(algorithm.params(after)["w"][0]) == pytest.approx((1 + 2 - 2) / 3, rel=1e-5)
    assert float(after.clip) == pytest.approx(2 * np.exp(-0.2 * (2 / 3 - 0.5)), rel=1e-6)
    again, _, _ = a_round(algorithm, after, [{"w": leaf([a])} for a in (1.0, 8.0, 8.0)])
    moved = float((algorithm.params(again)["w"] - algorithm.params(after)["w"])[0])
    assert moved == pytest.approx((1 + 2 * float(after.clip)) / 3, rel=1e-5)


def test_update_and_count_share_the_budget_of_the_noise_multiplier():
    """z⁻² = z_Δ⁻² + (2σ_b)⁻², and the paper's σ_b = |S|/20 where the cohort is large."""
    for z, bit_noise, size in ((1.0, None, 400), (1.0, None, 10), (0.3, 2.0, 10), (4.0, None, 10)):
        update, count = map(float, split_noise(z, bit_noise, jnp.float32(size)))
        assert count == pytest.approx(bit_noise or max(size / 20, z))
        assert update**-2 + (2 * count) ** -2 == pytest.approx(z**-2, rel=1e-5)
        assert z <= update < 1.16 * z
    assert list(map(float, split_noise(0.0, None, jnp.float32(100)))) == [0.0, 0.0]
    algorithm = fx.with_privacy(sender(), 3.0, 0.3, DELTA, target_quantile=0.5, bit_noise=0.2)
    zero = {"w": jnp.zeros(20000)}
    noise = algorithm.params(a_round(algorithm, algorithm.init(zero), [zero] * 4)[0])["w"]
    assert float(jnp.std(noise)) == pytest.approx(3.0 / 4 * 0.3 / np.sqrt(1 - (0.3 / 0.4) ** 2), rel=0.02)
    noisy = fx.with_privacy(sender(), 1.0, 1.0, DELTA, target_quantile=0.5, clip_lr=1.0, bit_noise=2.0)
    start, keys = noisy.init({"w": jnp.zeros(1)}), jax.random.bits(jax.random.key(0), (500, 2), jnp.uint32)
    ends = jax.vmap(lambda key: a_round(noisy, start._replace(key=key), [{"w": leaf([0.0])}] * 4)[0].clip)(keys)
    counts = 0.5 - np.log(np.asarray(ends))  # all four clients are below the clip
    assert counts.mean() == pytest.approx(1, abs=0.1) and counts.std() == pytest.approx(2 / 4, rel=0.15)


def test_of_parameters_in_an_upload_the_change_is_clipped():
    private, x = silent(fx.stem(0.1), 1.0), {"w": jnp.full(3, 100.0)}
    arguments = private.broadcast(private.init(x)), private.init_client(x), [0]
    upload = private.client_update(lambda y, batch: (jnp.float32(0), jax.tree.map(jnp.zeros_like, y)), *arguments)[0]
    assert float(jnp.abs(upload.change.params["w"]).max()) == 0


def test_clients_do_not_receive_the_key_of_the_noise():
    server = fx.with_compression(silent(fx.fedavg(0.1), seed=7), fx.codecs.qsgd(2), seed=7).init(scalars(1.0))
    assert not np.array_equal(server.key, server.inner.key)


def test_algorithms_that_cannot_be_private_are_refused_in_one_line():
    private = silent(fx.fedavg(0.1))
    for coded in (private, fx.with_compression(fx.fedavg(0.1), fx.codecs.sign())):
        refused(lambda: silent(coded), "algorithm must not code")  # noqa: B023
    counting = silent(fx.fafed(*fx.fafed_schedule(0.1, 1.0, 1.0, 5.0), rho=0.1))
    refused(lambda: federate(counting, scalars(1.0), DATA, 1), "algorithm must only upload", "int32 at .steps")
    refused(lambda: federate(silent(fx.fedavg(0.1), nonnegative="nu"), scalars(1.0), DATA, 1), "'nu' is no field of")
    refused(lambda: silent(fx.fedavg(0.1), bit_noise=3.0), "bit_noise needs target_quantile")
    bare = fx.fedavg(0.1)._replace(client_update=lambda g, m, c, b: (m.params, c, jnp.float32(0)))
    refused(lambda: federate(silent(bare), scalars(1.0), DATA, 1), "nonnegative must name")
    refused(lambda: federate(silent(bare, nonnegative=()), scalars(1.0), DATA, 1), "must upload a NamedTuple", "dict")
    refused(lambda: federate(fx.with_compression(bare, fx.codecs.sign()), scalars(1.0), DATA, 1), "got dict")


def test_a_missing_accountant_is_reported_at_once(monkeypatch):
    monkeypatch.setattr("fedoptax.wrappers.privacy.find_spec", lambda name: None)
    refused(lambda: silent(fx.fedavg(0.1)), "dp-accounting")

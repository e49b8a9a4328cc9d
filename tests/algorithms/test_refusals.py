"""Wrong arguments are refused when an algorithm is made, in one line that names the argument."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import fedoptax as fx
import laws
from fedoptax.schedules import parse_schedule
from fedoptax.wrappers.accounting import epsilon

codecs = fx.codecs


def private(**changes: Any) -> fx.FedAlgorithm:
    return fx.with_privacy(fx.fedavg(0.1), **({"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5} | changes))


def sent_rate(schedule: Callable[..., Any]) -> Any:
    algorithm = fx.fedavg(schedule)
    return algorithm.broadcast(algorithm.init(jnp.ones(2)))


REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "a rate below 0": (lambda: fx.fedavg(-0.1), "client_lr"),
    "a rate of 0": (lambda: fx.fedavg(0.1, 0), "server_lr"),
    "a rate that is not a number": (lambda: fx.fedavg(math.nan), "client_lr"),
    "a rate as text": (lambda: fx.fedavg("0.1"), "client_lr"),  # type: ignore[arg-type]
    "fedavgm momentum": (lambda: fx.fedavgm(0.1, 1.0, 1.0), "momentum"),
    "fedadagrad tau": (lambda: fx.fedadagrad(0.1, 0.1, tau=0.0), "tau"),
    "fedadam b2": (lambda: fx.fedadam(0.1, 0.1, b2=1.0), "b2"),
    "fedyogi b1": (lambda: fx.fedyogi(0.1, 0.1, b1=-0.1), "b1"),
    "fedams eps": (lambda: fx.fedams(0.1, 0.1, eps=-1e-3), "eps"),
    "fedadam debias as text": (lambda: fx.fedadam(0.1, 0.1, debias="False"), "debias"),  # type: ignore[arg-type]
    "fedadam debias traced": (lambda: jax.jit(lambda d: fx.fedadam(0.1, 0.1, debias=d).init({}))(True), "debias"),
    "fedadam initial_accumulator": (lambda: fx.fedadam(0.1, 0.1, initial_accumulator=-1), "initial_accumulator"),
    "fedopt optimizer": (lambda: fx.fedopt(optax.sgd(0.1), 0.1), "server_optimizer"),
    "fedopt client_state": (lambda: fx.fedopt(optax.sgd(0.1), optax.sgd(1.0), "keep"), "client_state"),
    "fedprox mu": (lambda: fx.fedprox(0.1, mu=-1.0), "mu"),
    "scaffold client_lr": (lambda: fx.scaffold(0.0), "client_lr"),
    "scaffold server_lr": (lambda: fx.scaffold(0.1, -1.0), "server_lr"),
    "scaffold option": (lambda: fx.scaffold(0.1, option="III"), "option"),
    "local_amsgrad b1": (lambda: fx.local_amsgrad(0.1, b1=1.0), "b1"),
    "local_amsgrad eps": (lambda: fx.local_amsgrad(0.1, eps=0.0), "eps"),
    "local_amsgrad v0": (lambda: fx.local_amsgrad(0.1, v0=0.0), "v0"),
    "local_amsgrad momentum": (lambda: fx.local_amsgrad(0.1, momentum="keep"), "momentum"),
    "local_amsgrad correction": (lambda: fx.local_amsgrad(0.1, bias_correction=True), "bias_correction"),
    "local_amsgrad stateless v": (
        lambda: fx.local_amsgrad(0.1, second_moment="device", momentum="reset"),
        "second_moment.*momentum",
    ),
    "fedlamb second_moment": (lambda: fx.fedlamb(0.1, second_moment="client"), "second_moment"),
    "fedlamb gradient": (lambda: fx.fedlamb(0.1, gradient="first"), "gradient"),
    "fafed adaptive": (lambda: fx.fafed(0.1, adaptive="norm"), "adaptive"),
    "fafed initial_batches": (lambda: fx.fafed(0.1, initial_batches=0), "initial_batches"),
    "fafed_theory smoothness": (lambda: fx.fafed_theory(0.0, 4, 5, 10), "smoothness"),
    "fafed_theory steps": (lambda: fx.fafed_theory(1.0, 4, 0, 10), "steps"),
    "scaffold optimizer": (lambda: fx.scaffold(0.1, server_optimizer="adam"), "server_optimizer"),  # type: ignore[arg-type]
    "scaffold_adam tau": (lambda: fx.scaffold_adam(0.1, 0.1, tau=0.0), "tau"),
    "fedadabound gamma": (lambda: fx.fedadabound(0.1, 0.1, gamma=0.0), "gamma"),
    "fedadabound decay": (lambda: fx.fedadabound(0.1, 0.1, decay=1), "decay"),  # type: ignore[arg-type]
    "fedopt states of two forms": (
        lambda: fx.fedopt(optax.adam(0.1), optax.sgd(1.0), "server").init(jnp.ones(2)),
        "client_state.*client_optimizer.*server_optimizer",
    ),
    "mime control": (lambda: fx.mime(0.1, control="old"), "control"),
    "mime in private": (lambda: fx.with_privacy(fx.mime(0.1), 1.0, 1.0, 1e-5), "algorithm must have one exchange"),
    "fedlamb b2": (lambda: fx.fedlamb(0.1, b2=-0.1), "b2"),
    "fedlamb weight_decay": (lambda: fx.fedlamb(0.1, weight_decay=-1.0), "weight_decay"),
    "fedlamb phi": (lambda: fx.fedlamb(0.1, phi="square"), "phi"),
    "fedlamb layers": (lambda: fx.fedlamb(0.1, layers="block"), "layers"),
    "fafed lr": (lambda: fx.fafed(math.inf), "lr"),
    "fafed alpha of 0": (lambda: fx.fafed(0.1, alpha=0.0), "alpha"),
    "fafed alpha above 1": (lambda: fx.fafed(0.1, alpha=1.1), "alpha"),
    "fafed beta": (lambda: fx.fafed(0.1, beta=1.0), "beta"),
    "fafed rho": (lambda: fx.fafed(0.1, rho=0.0), "rho"),
    "fafed variant": (lambda: fx.fafed(0.1, variant="other"), "variant"),
    "fafed_schedule w": (lambda: fx.fafed_schedule(1.0, 1.0, 0.0, 1.0), "w"),
    "stem alpha": (lambda: fx.stem(0.1, alpha=-0.5), "alpha"),
    "naive_adaptive b2": (lambda: fx.naive_adaptive(0.1, b2=1.0), "b2"),
    "fedexp eps": (lambda: fx.fedexp(0.1, eps=0.0), "eps"),
    "fedexp variant": (lambda: fx.fedexp(0.1, variant="new"), "variant"),
    "delta_sgd delta": (lambda: fx.delta_sgd(delta=-0.1), "delta"),
    "fedcm alpha": (lambda: fx.fedcm(0.1, alpha=0.0), "alpha"),
    "feddyn alpha": (lambda: fx.feddyn(0.1, alpha=0.0), "alpha"),
    "fednova momentum": (lambda: fx.fednova(0.1, momentum=1.0), "momentum"),
    "fedlion max_steps": (lambda: fx.fedlion(0.1, max_steps=0), "max_steps"),
    "fedlion steps": (lambda: laws.eager_rounds(fx.fedlion(0.1, max_steps=2)), "max_steps"),
    "fedadamw second_moment": (lambda: fx.fedadamw(0.1, second_moment="none"), "second_moment"),
    "fedada2 client": (lambda: fx.fedada2(0.1, 0.1, client="adam"), "client"),
    "fadamgc moments": (lambda: fx.fadamgc(0.1, moments="zero"), "moments"),
    "diloco weight_decay": (lambda: fx.diloco(0.1, weight_decay=-0.1), "weight_decay"),
    "muloco beta": (lambda: fx.muloco(0.1, beta=1.0), "beta"),
    "mime base": (lambda: fx.mime(0.1, base="yogi"), "base"),
    "mimelite b1": (lambda: fx.mimelite(0.1, b1=1.0), "b1"),
    "mimelite eps": (lambda: fx.mimelite(0.1, base="adam", eps=0.0), "eps"),
    "local_adaalter b0": (lambda: fx.local_adaalter(0.1, b0=-1.0), "b0"),
    "local_adaalter eps": (lambda: fx.local_adaalter(0.1, eps=0.0), "eps"),
    "lookahead alpha": (lambda: fx.lookahead(0.1, alpha=0.0), "alpha"),
    "clipping max_norm": (lambda: fx.with_clipping(fx.fedavg(0.1), 0.0), "max_norm"),
    "privacy clip": (lambda: private(clip=0.0), "clip"),
    "privacy noise_multiplier": (lambda: private(noise_multiplier=-1.0), "noise_multiplier"),
    "privacy delta of 0": (lambda: private(delta=0.0), "delta"),
    "privacy delta of 1": (lambda: private(delta=1.0), "delta"),
    "privacy target_quantile": (lambda: private(target_quantile=1.5), "target_quantile"),
    "privacy clip_lr": (lambda: private(target_quantile=0.5, clip_lr=-1.0), "clip_lr"),
    "privacy bit_noise below z/2": (lambda: private(target_quantile=0.5, bit_noise=0.5), "bit_noise"),
    "privacy seed below 0": (lambda: private(seed=-1), "seed"),
    "epsilon rounds": (lambda: epsilon(1.0, 1e-5, -1, 1, 2), "rounds"),
    "epsilon of too large a cohort": (lambda: epsilon(1.0, 1e-5, 1, 3, 2), "cohort_size"),
    "compression codec": (lambda: fx.with_compression(fx.fedavg(0.1), "qsgd"), "codec"),  # type: ignore[arg-type]
    "compression seed": (lambda: fx.with_compression(fx.fedavg(0.1), codecs.qsgd(), seed=-3), "seed"),
    "qsgd bits": (lambda: codecs.qsgd(1), "bits"),
    "qsgd bucket": (lambda: codecs.qsgd(bucket=0), "bucket"),
    "qsgd norm": (lambda: codecs.qsgd(norm="l1"), "norm"),
    "topk fraction of 0": (lambda: codecs.topk(0), "fraction"),
    "topk fraction above 1": (lambda: codecs.topk(1.1), "fraction"),
    "schedule without its rounds": (lambda: parse_schedule("cosine(0.1)"), "schedule .*rounds"),
    "schedule of an unknown name": (lambda: parse_schedule("cosin(0.1, 2)"), "schedule .*cosine"),
    "schedule of a rate below 0": (lambda: parse_schedule("constant(-1)"), "lr"),
    "schedule of half a round": (lambda: parse_schedule("staircase(0.1, 0.5)"), "every"),
    "schedule of no rounds": (lambda: parse_schedule("cosine(0.1, 0)"), "rounds"),
    "schedule of infinity": (lambda: parse_schedule("constant(1e999)"), "schedule"),
    "schedule that calls a function": (lambda: parse_schedule("constant(__import__('os').getcwd())"), "schedule"),
    "schedule of a module": (lambda: parse_schedule("fx.constant(1)"), "schedule"),
    "schedule too deep to parse": (lambda: parse_schedule("constant(" * 500 + "1" + ")" * 500), "schedule"),
    "weighted_mean of nothing": (lambda: fx.weighted_mean([]), "trees"),
    "weighted_mean with too many weights": (lambda: fx.weighted_mean([jnp.ones(1)], [1.0, 2.0]), "weights"),
    "weighted_mean with weights of 0": (lambda: fx.weighted_mean([jnp.ones(2)] * 2, [0, 0]), "weights"),
    "weighted_mean with a weight below 0": (lambda: fx.weighted_mean([jnp.ones(2)] * 2, [-1, 2]), "weights"),
    "weighted_mean with text for weights": (lambda: fx.weighted_mean([jnp.ones(2)] * 2, ["a", "b"]), "weights"),
    "weighted_mean of other names": (lambda: fx.weighted_mean([{"a": jnp.ones(2)}, {"b": jnp.ones(2)}]), "trees"),
    "weighted_mean of other shapes": (lambda: fx.weighted_mean([jnp.ones(2), jnp.ones(3)]), "trees"),
    "a schedule of no argument": (lambda: fx.fedavg(lambda: 0.1), r"client_lr.*\(round\)"),
    "a schedule of text": (lambda: sent_rate(lambda r: "x"), "the schedule .* got .*str"),
    "a schedule of two numbers": (lambda: sent_rate(lambda r: jnp.ones(2)), r"the schedule .* float32\[2\]"),
    "no algorithm to clip": (lambda: fx.with_clipping(fx.fedavg, 1.0), "algorithm"),  # type: ignore[arg-type]
    "no algorithm to compress": (lambda: fx.with_compression("fedavg", codecs.sign()), "algorithm"),  # type: ignore[arg-type]
    "no algorithm to make private": (lambda: fx.with_privacy(3, 1.0, 1.0, 1e-5), "algorithm"),  # type: ignore[arg-type]
    "weighted_mean with a weight of nan": (lambda: fx.weighted_mean([jnp.ones(2)] * 2, [1, math.nan]), "weights"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_argument_is_refused_by_name(case: str) -> None:
    call, argument = REFUSALS[case]
    with pytest.raises(fx.UsageError, match=f"^{argument}") as caught:
        call()
    assert "\n" not in str(caught.value)

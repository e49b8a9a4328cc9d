"""Wrong arguments are refused when an algorithm is made, in one line that names the argument."""

import inspect
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
from fedoptax.wrappers.privacy import epsilon
from refusals import refusals

codecs = fx.codecs
SIGNS = fx.with_compression(fx.fedavg(0.1), codecs.sign())


def private(**changes: Any) -> fx.FedAlgorithm:
    return fx.with_privacy(fx.fedavg(0.1), **({"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5} | changes))


def sent_rate(schedule: Callable[..., Any]) -> Any:
    algorithm = fx.fedavg(schedule)
    return algorithm.broadcast(algorithm.init(jnp.ones(2)))


WITHOUT_MESSAGE = fx.fedavg(0.1)._replace(broadcast=lambda server: server.params)
REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "fedavgm momentum": (lambda: fx.fedavgm(0.1, 1.0, 1.0), "momentum"),
    "fedadam b2": (lambda: fx.fedadam(0.1, 0.1, b2=1.0), "b2"),
    "fedadam debias traced": (lambda: jax.jit(lambda d: fx.fedadam(0.1, 0.1, debias=d).init({}))(True), "debias"),
    "fedopt optimizer": (lambda: fx.fedopt(optax.sgd(0.1), 0.1), "server_optimizer"),
    "fedopt client_state": (lambda: fx.fedopt(optax.sgd(0.1), optax.sgd(1.0), "keep"), "client_state"),
    "local_amsgrad correction": (lambda: fx.local_amsgrad(0.1, bias_correction=True), "bias_correction"),
    "fedams of devices": (lambda: fx.local_amsgrad(0.1, second_moment="device", momentum="reset"), "second_.*momentum"),
    "fafed_theory smoothness": (lambda: fx.fafed_theory(0.0, 4, 5, 10), "smoothness"),
    "fafed_theory steps": (lambda: fx.fafed_theory(1.0, 4, 0, 10), "steps"),
    "fedopt states of two forms": (
        lambda: fx.fedopt(optax.adam(0.1), optax.sgd(1.0), "server").init(jnp.ones(2)),
        "client_state.*client_optimizer.*server_optimizer",
    ),
    "mime in private": (lambda: fx.with_privacy(fx.mime(0.1), 1.0, 1.0, 1e-5), "algorithm must have one exchange"),
    "fafed alpha above 1": (lambda: fx.fafed(0.1, alpha=1.1), "alpha"),
    "clipping max_norm": (lambda: fx.with_clipping(fx.fedavg(0.1), 0.0), "max_norm"),
    "prox without the parameters": (lambda: laws.eager_rounds(fx.with_prox(WITHOUT_MESSAGE, 0.1)), "algorithm"),
    "compression twice": (lambda: laws.eager_rounds(fx.with_compression(SIGNS, codecs.sign())), "algorithm"),
    "privacy clip": (lambda: private(clip=0.0), "clip"),
    "privacy delta of 1": (lambda: private(delta=1.0), "delta"),
    "privacy target_quantile": (lambda: private(target_quantile=1.5), "target_quantile"),
    "privacy bit_noise below z/2": (lambda: private(target_quantile=0.5, bit_noise=0.5), "bit_noise"),
    "privacy seed below 0": (lambda: private(seed=-1), "seed"),
    "epsilon rounds": (lambda: epsilon(1.0, 1e-5, -1, 1, 2), "rounds"),
    "compression codec": (lambda: fx.with_compression(fx.fedavg(0.1), "qsgd"), "codec"),  # type: ignore[arg-type]
    "compression seed": (lambda: fx.with_compression(fx.fedavg(0.1), codecs.qsgd(), seed=-3), "seed"),
    "qsgd bits": (lambda: codecs.qsgd(1), "bits"),
    "topk fraction above 1": (lambda: codecs.topk(1.1), "fraction"),
    "schedule without its rounds": (lambda: parse_schedule("cosine(0.1)"), "schedule .*rounds"),
    "schedule of an unknown name": (lambda: parse_schedule("cosin(0.1, 2)"), "schedule .*cosine"),
    "schedule of a rate below 0": (lambda: parse_schedule("constant(-1)"), "lr"),
    "schedule of half a round": (lambda: parse_schedule("staircase(0.1, 0.5)"), "every"),
    "schedule that calls a function": (lambda: parse_schedule("constant(__import__('os').getcwd())"), "schedule"),
    "schedule of a set of lists": (lambda: parse_schedule("constant({[1]})"), "schedule"),
    "schedule too deep to parse": (lambda: parse_schedule("constant(" * 500 + "1" + ")" * 500), "schedule"),
    "weighted_mean of nothing": (lambda: fx.weighted_mean([]), "trees"),
    "weighted_mean with too many weights": (lambda: fx.weighted_mean([jnp.ones(1)], [1.0, 2.0]), "weights"),
    "weighted_mean with a weight below 0": (lambda: fx.weighted_mean([jnp.ones(2)] * 2, [-1, 2]), "weights"),
    "weighted_mean of other names": (lambda: fx.weighted_mean([{"a": jnp.ones(2)}, {"b": jnp.ones(2)}]), "trees"),
    "a schedule of no argument": (lambda: fx.fedavg(lambda: 0.1), r"client_lr.*\(round\)"),
    "a schedule of text": (lambda: sent_rate(lambda r: "x"), "the schedule .* got .*str"),
    "a schedule of two numbers": (lambda: sent_rate(lambda r: jnp.ones(2)), r"the schedule .* float32\[2\]"),
    "no algorithm to clip": (lambda: fx.with_clipping(fx.fedavg, 1.0), "algorithm"),  # type: ignore[arg-type]
    "no algorithm to compress": (lambda: fx.with_compression("fedavg", codecs.sign()), "algorithm"),  # type: ignore[arg-type]
    "no algorithm to make private": (lambda: fx.with_privacy(3, 1.0, 1.0, 1e-5), "algorithm"),  # type: ignore[arg-type]
    "weighted_mean with a weight of nan": (lambda: fx.weighted_mean([jnp.ones(2)] * 2, [1, math.nan]), "weights"),
}


test_a_wrong_argument_is_refused_by_name = refusals(
    {case: (call, f"^{word}") for case, (call, word) in REFUSALS.items()}
)


@pytest.mark.parametrize("name", fx.ALGORITHMS)
def test_every_argument_of_every_algorithm_is_checked(name):
    """Numbers below 0 and NaN, a text that is none of the choices, and a text in place of a number or a flag."""
    parameters = inspect.signature(fx.ALGORITHMS[name]).parameters
    rates = {argument: 0.1 for argument, p in parameters.items() if p.default is p.empty}
    for argument, parameter in parameters.items():
        is_number = isinstance(parameter.default, float) or parameter.default is parameter.empty
        text = "(" if argument == "adamw" else "other"  # no regular expression, and none of the choices
        for wrong in (text, -1.0, math.nan) if is_number or argument == "initial_accumulator" else (text,):
            with pytest.raises(fx.UsageError, match=f"^{argument} must"):
                fx.ALGORITHMS[name](**(rates | {argument: wrong}))

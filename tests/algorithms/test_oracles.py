"""Each algorithm equals its paper: a float64 transcription of the pseudo-code, round by round, leaf by leaf.

The problem has several clients of unequal K; "partial" draws three of seven, "full" all, "equal" all with K = 3.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedoptax as fx
from oracles import adaptive_clients, drift, fafed, fedlamb, fedopt, mime, scaffold, shared_state
from oracles.compare import assert_differ, assert_matches, assert_moves
from oracles.problem import Problem, Tree, full, make

PROBLEMS = {"partial": make(), "full": full(make()), "equal": full(make(steps=(3,) * 7))}


class Case(NamedTuple):
    """An algorithm of the library and its oracle; `still` are leaves, and `since` a round, that may not move."""

    library: Callable[[], fx.FedAlgorithm]
    oracle: Callable[[Problem], Iterable[Tree]]
    weighting: str = "uniform"
    problem: str = "partial"
    dtype: str = "float64"
    still: tuple[str, ...] = ()
    since: int = 0


CASES: dict[str, Case] = {}


def add(algorithm: str, library: Callable[[], fx.FedAlgorithm], oracle: Any, **options: Any) -> None:
    """A case, also in float32 if it is the first of its algorithm."""
    is_first = not any(name.split()[0] == algorithm for name in CASES)
    for dtype in ("float64", "float32") if is_first else ("float64",):
        CASES[f"{algorithm} {len(CASES)} {dtype}"] = Case(library, oracle, dtype=dtype, **options)


def add_all(algorithm: str, library: Any, oracle: Any, hypers: list[dict[str, Any]], **options: Any) -> None:
    """Cases of hyper-parameters that have the same names in the library and in the oracle."""
    for hyper in hypers:
        add(algorithm, partial(library, **hyper), lambda p, hyper=hyper: oracle(p, **hyper), **options)


def falling(first: float, factor: float = 0.8) -> Callable[[Any], Any]:
    """A schedule over rounds."""
    return lambda t: first * factor**t


# ---------------------------------------------------------------- the FedOpt family: Reddi et al. 2021, Algorithm 2

SERVERS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{"client_lr": falling(0.3), "server_lr": falling(2.5)}],
    "fedavgm": [{"client_lr": 0.2, "server_lr": 0.7, "momentum": 0.9}],
    "fedadagrad": [{"client_lr": 0.1, "server_lr": 0.5, "b1": 0.6, "tau": 0.1}],
    "fedyogi": [
        {"client_lr": 0.1, "server_lr": 0.2, "b1": 0.3, "b2": 0.7, "tau": 0.3},
        {"client_lr": 0.3, "server_lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-2, "debias": True},
    ],
    "fedadam": [
        {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "tau": 1e-2},
        {"client_lr": 0.3, "server_lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-2, "debias": True},
        {"client_lr": falling(0.4), "server_lr": falling(0.1), "tau": 1e-2},
    ],
    "fedadabound": [
        {"client_lr": 0.3, "server_lr": 0.02, "final_lr": 0.5, "gamma": 0.5},
        {"client_lr": 0.3, "server_lr": falling(0.1), "b2": 0.3, "final_lr": 1.0, "gamma": 0.1, "decay": False},
    ],
    "fedams": [{"client_lr": 0.3, "server_lr": 0.1, "b1": 0.5, "b2": 0.3, "eps": 1e-2}],
    "fedamsgrad": [{"client_lr": 0.3, "server_lr": 0.1, "b1": 0.5, "b2": 0.3, "eps": 1e-2}],
}
for rule, hypers in SERVERS.items():
    add_all(rule, fx.ALGORITHMS[rule], partial(fedopt.run, rule=rule), hypers, weighting="examples")
fedadam = partial(fedopt.run, rule="fedadam")
add_all("fedadam", fx.fedadam, partial(fedadam, weighting="uniform"), SERVERS["fedadam"][:1])
add_all("fedadam", fx.fedadam, fedadam, SERVERS["fedadam"][:1], weighting="examples", problem="full")
add(
    "fedopt",
    lambda: fx.fedopt(optax.sgd(0.2), optax.sgd(0.7, momentum=0.8)),
    lambda p: fedopt.run(p, "fedavgm", 0.2, 0.7, momentum=0.8),
    weighting="examples",
)
PROX: list[dict[str, Any]] = [{"client_lr": 0.3, "mu": 2.0}]
add_all("fedprox", fx.fedprox, partial(fedopt.run, rule="fedavg"), PROX, weighting="examples")
add(
    "fedprox",
    lambda: fx.with_prox(fx.fedyogi(0.3, 0.05, tau=1e-2), 2.0),
    lambda p: fedopt.run(p, "fedyogi", 0.3, 0.05, tau=1e-2, mu=2.0),
    weighting="examples",
)

# ---------------------------------------------------------------- SCAFFOLD: Karimireddy et al. 2020b, Algorithm 1

RATES: list[dict[str, Any]] = [
    {"client_lr": 0.1, "server_lr": 1.7},
    {"client_lr": falling(0.2), "server_lr": falling(1.2, 0.9)},
]
for number, option in ((2, "II"), (1, "I")):
    add_all("scaffold", partial(fx.scaffold, option=option), partial(scaffold.run, option=number), RATES)
by_examples = partial(scaffold.run, weighting="examples")
add_all("scaffold", fx.scaffold, by_examples, RATES[:1], weighting="examples", problem="full")
ADAM: list[dict[str, Any]] = [
    {"client_lr": 0.2, "server_lr": 0.05, "tau": 1e-2},
    {"client_lr": falling(0.2), "server_lr": falling(0.1), "b1": 0.5, "b2": 0.7, "tau": 0.1, "debias": True},
]


add_all("scaffold_adam", fx.scaffold_adam, partial(scaffold.run, rule="fedadam"), ADAM)
add(
    "scaffold",
    lambda: fx.scaffold(
        0.2, 0.05, "I", optax.chain(optax.scale_by_rms(0.7, eps=0.01, eps_in_sqrt=False), optax.scale(-1.0))
    ),
    lambda p: scaffold.run(p, 0.2, 0.05, option=1, rule="fedadam", b1=0.0, b2=0.7, tau=0.01, v0=0.0),
)
add("scaffold", lambda: fx.with_prox(fx.scaffold(0.2), 0.5), lambda p: scaffold.run(p, 0.2, mu=0.5))

# ---------------------------------------------------------------- Fed-AMS and Fed-LAMB: Karimi, Li, Li, Algorithm 1

AMS: list[dict[str, Any]] = [
    {"lr": 2e-2, "b1": 0.5, "b2": 0.7, "eps": 1e-2, "v0": 0.1},
    {"lr": falling(2e-2), "b1": 0.5, "b2": 0.7, "eps": 1e-2, "v0": 0.1},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "momentum": "reset"},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "bias_correction": "momentum"},
]
READINGS: list[dict[str, Any]] = [
    {"second_moment": "device"},
    {"gradient": "start"},
    {"gradient": "once", "second_moment": "device"},
    {"bias_correction": "both", "b1": 0.5, "b2": 0.6},
    {"bias_correction": "both", "b1": 0.5, "b2": 0.6, "momentum": "reset"},
    {"bias_correction": "both", "b1": 0.5, "b2": 0.6, "second_moment": "device", "gradient": "once"},
]
AMS += [{"lr": 1e-2, "b2": 0.7, "v0": 1e-2} | reading for reading in READINGS]
LAMB: list[dict[str, Any]] = [
    {"lr": 3e-2},
    {"lr": 3e-2, "b1": 0.5, "b2": 0.7, "v0": 1e-2, "weight_decay": 0.5},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "layers": "module"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.5, "bias_correction": "momentum"},
    *({"lr": 3e-2, "b2": 0.7, "weight_decay": 0.1} | reading for reading in READINGS),
]
lamb = partial(fedlamb.run, lamb=True)
add_all("local_amsgrad", fx.local_amsgrad, partial(fedlamb.run, lamb=False), AMS)
add_all("fedlamb", fx.fedlamb, lamb, LAMB)
add_all("fedlamb", fx.fedlamb, partial(lamb, weighting="examples"), LAMB[:1], weighting="examples", problem="full")
for layers in ("tensor", "module"):
    add(
        "fedlamb",
        lambda layers=layers: fx.fedlamb(3e-2, b2=0.9, weight_decay=0.1, phi="identity", layers=layers),
        lambda p, layers=layers: lamb(p, 3e-2, b2=0.9, weight_decay=0.1, phi=fedlamb.identity, layers=layers),
        still=("hidden/bias",) if layers == "tensor" else (),  # it starts at 0, and has a norm of its own
    )
add(
    "fedlamb",
    lambda: fx.fedlamb(5e-2, b2=0.9, phi=lambda norm: jnp.clip(norm, 0.2, 0.7)),
    lambda p: lamb(p, 5e-2, b2=0.9, phi=lambda norm: min(max(norm, 0.2), 0.7)),
)

# ---------------------------------------------------------------- FAFED, STEM, naive: Wu et al. 2023, Algorithms 1, 2

FAFED: list[dict[str, Any]] = [
    {"lr": 0.03, "alpha": 0.1, "beta": 0.9, "rho": 0.3},
    {"lr": 0.02, "alpha": 0.9, "beta": 0.1, "rho": 0.05},
    {"lr": 0.03, "alpha": 0.5, "beta": 0.5, "rho": 0.1, "variant": "released"},
    {"lr": 0.03, "rho": 0.1, "adaptive": "global", "initial_batches": 2},
    {"lr": 0.1, "rho": 0.1, "adaptive": "adagrad_norm", "initial_batches": 1},
]
add_all("fafed", fx.fafed, fafed.run, FAFED)
add_all("fafed", fx.fafed, fafed.run, FAFED[:1], problem="full")
add_all("fafed", fx.fafed, fafed.run, FAFED[:3:2], problem="equal")
for variant in ("paper", "released"):
    add(
        "fafed",
        lambda variant=variant: fx.fafed(*fx.fafed_schedule(0.1, 0.6, 1.5, 200.0), rho=0.1, variant=variant),
        lambda p, variant=variant: fafed.run(p, *fafed.equation_5(0.1, 0.6, 1.5, 200.0), rho=0.1, variant=variant),
    )
add_all("fafed", fx.fafed, partial(fafed.run, weighting="examples"), FAFED[:1], weighting="examples")
add(
    "fafed",
    lambda: fx.fafed(*fx.fafed_theory(0.3, 7, 3, 50, batch=3, rho=0.8)[:2], rho=0.8),
    lambda p: fafed.run(p, *fafed.theorem_2(0.3, 7, 3, 3, 0.8), rho=0.8),
)
stem = partial(fafed.run, adaptive=False)
add_all("stem", fx.stem, stem, [{"lr": 0.1, "alpha": 0.1}])
add_all("stem", fx.stem, stem, [{"lr": 0.2, "alpha": 0.9}], problem="equal")
add(
    "stem",
    lambda: fx.stem(*fx.fafed_schedule(1.0, 0.2, 1.5, 10.0)),
    lambda p: stem(p, *fafed.equation_5(1.0, 0.2, 1.5, 10.0)),
)
NAIVE = [{"lr": 0.03, "b2": 0.5}, {"lr": 0.01, "b2": 0.9}]
add_all("naive_adaptive", fx.naive_adaptive, fafed.run_naive, NAIVE)

# ---------------------------------------------------------------- Mime, MimeLite: Karimireddy et al. 2020a, Algorithm 1

MIME: list[dict[str, Any]] = [
    {"base": "sgd", "client_lr": 0.5, "b1": 0.5},
    {"base": "sgd", "client_lr": falling(0.3), "b1": 0.0},
    {"base": "adam", "client_lr": 0.02, "b1": 0.5, "b2": 0.9, "eps": 0.1},
    {"base": "adam", "client_lr": 0.02, "b1": 0.9, "b2": 0.99, "eps": 0.05},
]


def run_mime(problem: Problem, client_lr: Any, base: str, control: str = "current", **options: Any) -> Iterable[Tree]:
    """The paper's Mime, or that of one exchange, whose control is the round's before and 0 in the first."""
    control = {"current": "cohort"}.get(control, control)
    return mime.run(problem, client_lr, {"sgd": "sgdm"}.get(base, base), control=control, **options)


PREVIOUS = [hyper | {"control": "previous"} for hyper in MIME]
add_all("mimelite", fx.mimelite, partial(run_mime, mime=False), MIME)
add_all("mime", fx.mime, run_mime, MIME)
add_all("mime", fx.mime, run_mime, PREVIOUS, since=1)
by_examples = partial(run_mime, weighting="examples")
add_all("mime", fx.mime, by_examples, MIME[2:3], weighting="examples", problem="full")
add_all("mime", fx.mime, by_examples, PREVIOUS[2:3], weighting="examples", problem="full", since=1)

# ---------------------------------------------------------------- client optimizers whose state is averaged

for state, decay in (("reset", 0.0), ("average", 0.0), ("server", 0.5)):
    add(
        "fedopt",
        partial(fx.fedopt, optax.sgd(0.05, momentum=0.9), optax.sgd(0.8, momentum=decay or None), state),
        lambda p, state=state, decay=decay: shared_state.run_momentum(p, 0.05, 0.8, 0.9, state, server_decay=decay),
        weighting="examples",
    )
ADAALTER: list[dict[str, Any]] = [{"lr": 0.2, "eps": 0.3, "b0": 0.5}, {"lr": falling(0.1), "eps": 0.1, "b0": 0.1}]
LOOKAHEAD: list[dict[str, Any]] = [
    {"client_lr": 0.02, "alpha": 0.5, "b2": 0.999, "eps": 1e-3},
    {"client_lr": falling(0.02), "alpha": 0.8, "b2": 0.9, "eps": 1e-2},
]
add_all("local_adaalter", fx.local_adaalter, partial(shared_state.run_adaalter, weighting="uniform"), ADAALTER)
add_all("lookahead", fx.lookahead, shared_state.run_lookahead, LOOKAHEAD, weighting="examples")

# ---------------------------------------------------------------- FedExP, Δ-SGD, FedCM, FedDyn, FedNova

FEDEXP: list[dict[str, Any]] = [
    {"client_lr": 0.2, "eps": 1e-3},
    {"client_lr": falling(0.2), "eps": 0.1, "variant": "released"},
]
DELTA_SGD: list[dict[str, Any]] = [
    {},
    {"gamma": 0.5, "delta": 1.0, "lr0": 0.05, "theta0": 2.0, "server_lr": 0.8},
    {"gamma": 0.3, "variant": "released"},
]
FEDCM: list[dict[str, Any]] = [
    {"client_lr": 0.3, "alpha": 0.1},
    {"client_lr": falling(0.3), "alpha": 0.6, "server_lr": falling(1.2, 0.9)},
]
FEDNOVA: list[dict[str, Any]] = [{"client_lr": 0.2}, {"client_lr": falling(0.1), "server_lr": 1.3, "momentum": 0.7}]
add_all("fedexp", fx.fedexp, drift.run_fedexp, FEDEXP)
add_all("delta_sgd", fx.delta_sgd, drift.run_delta_sgd, DELTA_SGD)
add_all("fedcm", fx.fedcm, drift.run_fedcm, FEDCM)
add_all("fedcm", fx.fedcm, drift.run_fedcm, FEDCM[:1], problem="equal")
add_all("feddyn", fx.feddyn, drift.run_feddyn, [{"client_lr": 0.2, "alpha": 0.5}, {"client_lr": falling(0.1)}])
add_all("fednova", fx.fednova, drift.run_fednova, FEDNOVA, weighting="examples")

# ---------------------------------------------------------------- FedLion, FedAdamW, FedAda², FAdamGC, DiLoCo, MuLoCo

LION: list[dict[str, Any]] = [{"lr": 0.02}, {"lr": falling(0.05), "b1": 0.3, "b2": 0.6}]
ADAMW: list[dict[str, Any]] = [
    {"client_lr": 0.02, "eps": 1e-3},
    {"client_lr": falling(0.05), "alpha": 0.1, "weight_decay": 0.5, "b1": 0.5, "b2": 0.7, "eps": 1e-2},
    {"client_lr": 0.02, "eps": 1e-3, "second_moment": "whole"},
]
ADA2: list[dict[str, Any]] = [
    {"client_lr": 0.05, "server_lr": 0.05, "tau": 1e-2},
    {"client_lr": falling(0.05), "server_lr": 0.05, "client": "sm3", "server": "adam", "tau": 1e-2, "eps": 0.1},
]
LOCO: list[dict[str, Any]] = [
    {"client_lr": 0.02, "eps": 1e-3},
    {"client_lr": falling(0.02), "server_lr": 0.9, "momentum": 0.5, "weight_decay": 1.0, "b1": 0.5, "eps": 1e-2},
]
GC: list[dict[str, Any]] = [
    {"client_lr": 0.02, "eps": 1e-3},
    {"client_lr": falling(0.02), "server_lr": falling(1.2, 0.9), "b1": 0.5, "b2": 0.7, "eps": 1e-2},
    {"client_lr": 0.02, "b2": 0.7, "eps": 1e-2, "moments": "reset"},
]
MULOCO: list[dict[str, Any]] = [
    {"client_lr": 0.02, "momentum": 0.6, "weight_decay": 0.0, "beta": 0.95, "eps": 1e-3},
    {"client_lr": falling(0.05), "server_lr": 0.9, "momentum": 0.3, "weight_decay": 0.5, "beta": 0.5, "eps": 1e-2},
    {"client_lr": 0.02, "momentum": 0.6, "weight_decay": 0.0, "beta": 0.95, "adamw": "out", "eps": 1e-2},
]
add_all("fedlion", fx.fedlion, adaptive_clients.run_fedlion, LION)
add_all("fedadamw", fx.fedadamw, adaptive_clients.run_fedadamw, ADAMW)
add_all("fedada2", fx.fedada2, adaptive_clients.run_fedada2, ADA2)
add_all("diloco", fx.diloco, adaptive_clients.run_diloco, LOCO)
add_all("fadamgc", fx.fadamgc, adaptive_clients.run_fadamgc, GC)
add_all("fadamgc", fx.fadamgc, adaptive_clients.run_fadamgc, GC[:1], problem="full")
add_all("muloco", fx.muloco, adaptive_clients.run_diloco, MULOCO)


FIRST = {name.split()[0]: name for name in reversed(CASES)}.values()
QUICK = {*FIRST, *[name for name in CASES if name.startswith(("fedlamb", "fafed")) and name.endswith("float64")][::4]}
"""The first case of each algorithm, and every fourth of those whose texts have many readings."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.long) for n in CASES])
def test_the_library_equals_the_paper(name):
    case = CASES[name]
    problem = PROBLEMS[case.problem]
    assert_matches(case.library, problem, case.oracle(problem), case.dtype, case.weighting, case.still, case.since)


def test_every_algorithm_has_an_oracle():
    assert set(fx.ALGORITHMS) <= {name.split()[0] for name in CASES}


def test_the_problem_tells_variants_and_weights_apart():
    partial, equal = PROBLEMS["partial"], PROBLEMS["equal"]
    for one, other in (
        (fedopt.run(partial, "fedavg", 0.3), fedopt.run(partial, "fedavg", 0.3, weighting="uniform")),
        (fedopt.run(partial, "fedadam", 0.3, 0.05), fedopt.run(partial, "fedadam", 0.3, 0.05, debias=True)),
        (scaffold.run(partial, 0.2, option=1), scaffold.run(partial, 0.2, option=2)),
        (scaffold.run(partial, 0.2), scaffold.run(partial, 0.2, mu=0.5)),
        (fedlamb.run(partial, 3e-2, lamb=True), fedlamb.run(partial, 3e-2, lamb=True, momentum="reset")),
        (fedlamb.run(partial, 3e-2, lamb=True), fedlamb.run(partial, 3e-2, lamb=True, layers="module")),
        (fafed.run(equal, 0.01, rho=0.1), fafed.run(equal, 0.01, rho=0.1, variant="released")),
        (mime.run(partial, 0.1), mime.run(partial, 0.1, control="previous")),
    ):
        assert_differ(one, other)


def test_a_run_that_stands_still_is_refused():
    problem = PROBLEMS["partial"]
    with pytest.raises(AssertionError, match="moved by 0"):
        assert_moves(problem, [problem.params] * 6)
    with pytest.raises(AssertionError, match="not finite"):
        assert_moves(problem, [{n: a + np.nan for n, a in problem.params.items()}] * 6)


def test_alpha_of_equation_5_is_cut_at_one():
    """Theorem 2's c may make α > 1, outside line 7's (0, 1)."""
    with jax.enable_x64(True):
        lr, alpha = fx.fafed_schedule(0.1, 1.0, 1.5, 900.0)
        want_lr, want_alpha = fafed.equation_5(0.1, 1.0, 1.5, 900.0)
        assert want_alpha(1) > 1 > want_alpha(40)
        for t in range(1, 60):
            np.testing.assert_allclose(lr(jnp.asarray(t)), want_lr(t), rtol=1e-12)
            np.testing.assert_allclose(alpha(jnp.asarray(t)), min(want_alpha(t), 1.0), rtol=1e-12)

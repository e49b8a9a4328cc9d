"""Each algorithm equals its paper: a float64 transcription of the pseudo-code, round by round, leaf by leaf.

The problem has several clients of unequal K; "partial" draws three of seven, "full" all, "equal" all with K = 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedoptax as fx
from oracles import fafed, fedlamb, fedopt, mime, scaffold, shared_state
from oracles.compare import assert_differ, assert_matches
from oracles.problem import Problem, Tree, full, make

PROBLEMS = {"partial": make(), "full": full(make()), "equal": full(make(steps=(3,) * 7))}


class Case(NamedTuple):
    """An algorithm of the library and its oracle; `still` are leaves, and `since` a round, that may not move."""

    library: Callable[[], fx.FedAlgorithm]
    oracle: Callable[[Problem], list[Tree]]
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


def falling(first: float, factor: float = 0.8) -> Callable[[Any], Any]:
    """A schedule over rounds."""
    return lambda t: first * factor**t


# ---------------------------------------------------------------- the FedOpt family: Reddi et al. 2021, Algorithm 2

SERVERS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"client_lr": 0.3, "server_lr": 1.0}),
    ("fedavg", {"client_lr": falling(0.3), "server_lr": falling(2.5)}),
    ("fedavgm", {"client_lr": 0.2, "server_lr": 0.7, "momentum": 0.9}),
    ("fedavgm", {"client_lr": 0.3, "server_lr": 1.0, "momentum": 0.5}),
    ("fedadagrad", {"client_lr": 0.3, "server_lr": 0.2, "b1": 0.0, "tau": 1e-3}),
    ("fedadagrad", {"client_lr": 0.1, "server_lr": 0.5, "b1": 0.6, "tau": 0.1}),
    ("fedyogi", {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "tau": 1e-2}),
    ("fedyogi", {"client_lr": 0.1, "server_lr": 0.2, "b1": 0.3, "b2": 0.7, "tau": 0.3}),
    ("fedyogi", {"client_lr": 0.3, "server_lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-2, "debias": True}),
    ("fedadam", {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "tau": 1e-2}),
    ("fedadam", {"client_lr": 0.1, "server_lr": 0.2, "b1": 0.0, "b2": 0.5, "tau": 0.1}),
    ("fedadam", {"client_lr": 0.3, "server_lr": 0.03, "b1": 0.9, "b2": 0.99, "tau": 1e-2, "debias": True}),
    ("fedadam", {"client_lr": falling(0.4), "server_lr": falling(0.1), "tau": 1e-2}),
    ("fedams", {"client_lr": 0.3, "server_lr": 0.05, "b1": 0.9, "b2": 0.99, "eps": 1e-3}),
    ("fedams", {"client_lr": 0.3, "server_lr": 0.1, "b1": 0.5, "b2": 0.3, "eps": 1e-2}),
    ("fedamsgrad", {"client_lr": 0.3, "server_lr": 0.02, "b1": 0.9, "b2": 0.99, "eps": 1e-3}),
    ("fedamsgrad", {"client_lr": 0.3, "server_lr": 0.1, "b1": 0.5, "b2": 0.3, "eps": 1e-2}),
]
for rule, hyper in SERVERS:
    add(
        rule,
        lambda rule=rule, hyper=hyper: fx.ALGORITHMS[rule](**hyper),
        lambda problem, rule=rule, hyper=hyper: fedopt.run(problem, rule, **hyper),
        weighting="examples",
    )
for weighting, problem in (("uniform", "partial"), ("examples", "full")):
    add(
        "fedadam",
        lambda: fx.fedadam(0.3, 0.05, tau=1e-2),
        lambda p, w=weighting: fedopt.run(p, "fedadam", 0.3, 0.05, tau=1e-2, weighting=w),
        weighting=weighting,
        problem=problem,
    )
add(
    "fedopt",
    lambda: fx.fedopt(optax.sgd(0.2), optax.sgd(0.7, momentum=0.8)),
    lambda p: fedopt.run(p, "fedavgm", 0.2, 0.7, momentum=0.8),
    weighting="examples",
)
for mu in (0.1, 2.0):
    add(
        "fedprox",
        lambda mu=mu: fx.fedprox(0.3, mu),
        lambda p, mu=mu: fedopt.run(p, "fedavg", 0.3, mu=mu),
        weighting="examples",
    )
add(
    "fedprox around fedyogi",
    lambda: fx.with_prox(fx.fedyogi(0.3, 0.05, tau=1e-2), 2.0),
    lambda p: fedopt.run(p, "fedyogi", 0.3, 0.05, tau=1e-2, mu=2.0),
    weighting="examples",
)

# ---------------------------------------------------------------- SCAFFOLD: Karimireddy et al. 2020b, Algorithm 1

for number, option in ((2, "II"), (1, "I")):
    for rates in ((0.2, 1.0), (0.1, 1.7), (falling(0.2), falling(1.2, 0.9))):
        add(
            "scaffold",
            lambda rates=rates, option=option: fx.scaffold(*rates, option=option),
            lambda p, rates=rates, number=number: scaffold.run(p, *rates, number),
        )
for weighting, problem in (("examples", "partial"), ("uniform", "full")):
    add(
        "scaffold",
        lambda: fx.scaffold(0.2),
        lambda p, w=weighting: scaffold.run(p, 0.2, weighting=w),
        weighting=weighting,
        problem=problem,
    )
add("scaffold", lambda: fx.with_prox(fx.scaffold(0.2), 0.5), lambda p: scaffold.run(p, 0.2, mu=0.5))

# ---------------------------------------------------------------- Fed-AMS and Fed-LAMB: Karimi, Li, Li, Algorithm 1

PHI: dict[str, Any] = {
    "identity": ("identity", fedlamb.identity),
    "narrow": (lambda norm: jnp.clip(norm, 0.2, 0.7), lambda norm: min(max(norm, 0.2), 0.7)),
}
"""The library's φ and the oracle's; without one both take the default, clip(·, 1e-3, 10)."""
AMS: list[dict[str, Any]] = [
    {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "v0": 1e-4},
    {"lr": 2e-2, "b1": 0.5, "b2": 0.7, "eps": 1e-2, "v0": 0.1},
    {"lr": falling(2e-2), "b1": 0.5, "b2": 0.7, "eps": 1e-2, "v0": 0.1},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "momentum": "reset"},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "bias_correction": True},
    {"lr": 1e-2, "b1": 0.9, "b2": 0.9, "v0": 1e-2, "momentum": "reset", "bias_correction": True},
]
LAMB: list[dict[str, Any]] = [
    {"lr": 3e-2},
    {"lr": 3e-2, "b1": 0.5, "b2": 0.7, "v0": 1e-2, "weight_decay": 0.5},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "layers": "module"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "phi": "identity"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.1, "phi": "identity", "layers": "module"},
    {"lr": 5e-2, "b2": 0.9, "phi": "narrow"},
    {"lr": 3e-2, "b2": 0.9, "momentum": "reset"},
    {"lr": 3e-2, "b2": 0.9, "weight_decay": 0.5, "bias_correction": True},
]


def with_phi(hyper: dict[str, Any], side: int) -> dict[str, Any]:
    return {name: PHI[value][side] if name == "phi" else value for name, value in hyper.items()}


for hyper in AMS:
    add(
        "local_amsgrad",
        lambda hyper=hyper: fx.local_amsgrad(**hyper),
        lambda p, hyper=hyper: fedlamb.run(p, lamb=False, **hyper),
    )
for hyper in LAMB:
    # a zero bias with a norm of its own never moves under the identity
    is_still = hyper.get("phi") == "identity" and "layers" not in hyper
    add(
        "fedlamb",
        lambda hyper=hyper: fx.fedlamb(**with_phi(hyper, 0)),
        lambda p, hyper=hyper: fedlamb.run(p, lamb=True, **with_phi(hyper, 1)),
        still=("hidden/bias",) if is_still else (),
    )
add(
    "fedlamb",
    lambda: fx.fedlamb(3e-2, b2=0.9),
    lambda p: fedlamb.run(p, 3e-2, lamb=True, b2=0.9, weighting="examples"),
    weighting="examples",
    problem="full",
)

# ---------------------------------------------------------------- FAFED, STEM, naive: Wu et al. 2023, Algorithms 1, 2

FAFED: list[dict[str, Any]] = [
    {"lr": 0.03, "alpha": 0.1, "beta": 0.9, "rho": 0.3},
    {"lr": 0.02, "alpha": 0.9, "beta": 0.1, "rho": 0.05},
    {"lr": 0.03, "alpha": 0.5, "beta": 0.5, "rho": 0.1, "variant": "released"},
]
SCHEDULE = {"rho": 0.1, "h": 0.6, "w": 1.5, "c": 200.0}


def add_fafed(problem: str = "partial", weighting: str = "uniform", **hyper: Any) -> None:
    add(
        "fafed",
        lambda: fx.fafed(**hyper),
        lambda p: fafed.run(p, weighting=weighting, **hyper),
        problem=problem,
        weighting=weighting,
    )


for hyper in FAFED:
    for problem in ("partial", "full", "equal"):
        add_fafed(problem, **hyper)
add_fafed(weighting="examples", **FAFED[0])
for variant in ("paper", "released"):
    for problem in ("partial", "equal"):
        add(
            "fafed",
            lambda variant=variant: fx.fafed(*fx.fafed_schedule(**SCHEDULE), rho=SCHEDULE["rho"], variant=variant),
            lambda p, variant=variant: fafed.run(
                p, *fafed.equation_5(**SCHEDULE), rho=SCHEDULE["rho"], variant=variant
            ),
            problem=problem,
        )
for lr, alpha, problem in ((0.1, 0.1, "partial"), (0.2, 0.9, "equal")):
    add(
        "stem",
        lambda lr=lr, alpha=alpha: fx.stem(lr, alpha),
        lambda p, lr=lr, alpha=alpha: fafed.run(p, lr, alpha, adaptive=False),
        problem=problem,
    )
add(
    "stem",
    lambda: fx.stem(*fx.fafed_schedule(1.0, 0.2, 1.5, 10.0)),
    lambda p: fafed.run(p, *fafed.equation_5(1.0, 0.2, 1.5, 10.0), adaptive=False),
)
for lr, b2 in ((0.03, 0.5), (0.01, 0.9)):
    add(
        "naive_adaptive",
        lambda lr=lr, b2=b2: fx.naive_adaptive(lr, b2),
        lambda p, lr=lr, b2=b2: fafed.run_naive(p, lr, b2),
    )

# ---------------------------------------------------------------- Mime, MimeLite: Karimireddy et al. 2020a, Algorithm 1

MIME: list[dict[str, Any]] = [
    {"base": "sgd", "client_lr": 0.5, "b1": 0.5},
    {"base": "sgd", "client_lr": falling(0.3), "b1": 0.0},
    {"base": "adam", "client_lr": 0.02, "b1": 0.5, "b2": 0.9, "eps": 0.1},
    {"base": "adam", "client_lr": 0.02, "b1": 0.9, "b2": 0.99, "eps": 0.05},
]


def run_mime(problem: Problem, is_mime: bool, weighting: str = "uniform", **hyper: Any) -> list[Tree]:
    """Mime's control is that of the previous round, a deviation that the library declares; 0 in the first."""
    base, lr = {"sgd": "sgdm", "adam": "adam"}[hyper.pop("base")], hyper.pop("client_lr")
    return mime.run(problem, lr, base, is_mime, weighting=weighting, control="previous", **hyper)


for hyper in MIME:
    add(
        "mimelite",
        lambda hyper=hyper: fx.mimelite(**hyper),
        lambda p, hyper=hyper: run_mime(p, False, **hyper),
    )
    add(
        "mime",
        lambda hyper=hyper: fx.mime(**hyper),
        lambda p, hyper=hyper: run_mime(p, True, **hyper),
        since=1,
    )
add(
    "mime",
    lambda: fx.mime(**MIME[2]),
    lambda p: run_mime(p, True, "examples", **MIME[2]),
    weighting="examples",
    problem="full",
    since=1,
)

# ---------------------------------------------------------------- client optimizers whose state is averaged

for client_state in ("reset", "average"):
    add(
        "fedopt",
        lambda client_state=client_state: fx.fedopt(optax.sgd(0.05, momentum=0.9), optax.sgd(0.8), client_state),
        lambda p, client_state=client_state: shared_state.run_momentum(p, 0.05, 0.8, 0.9, client_state),
        weighting="examples",
    )
for rate, eps, b0 in ((0.5, 1.0, 1.0), (0.2, 0.3, 0.5), (falling(0.1), 0.1, 0.1)):
    add(
        "local_adaalter",
        lambda rate=rate, eps=eps, b0=b0: fx.local_adaalter(rate, b0, eps),
        lambda p, rate=rate, eps=eps, b0=b0: shared_state.run_adaalter(p, rate, eps, b0, weighting="uniform"),
    )
for rate, slow, b2, eps in ((0.02, 0.5, 0.999, 1e-3), (falling(0.02), 0.8, 0.9, 1e-2)):
    add(
        "lookahead",
        lambda rate=rate, slow=slow, b2=b2, eps=eps: fx.lookahead(rate, slow, b2=b2, eps=eps),
        lambda p, rate=rate, slow=slow, b2=b2, eps=eps: shared_state.run_lookahead(p, rate, slow, b2=b2, eps=eps),
        weighting="examples",
    )


@pytest.mark.parametrize("name", CASES)
def test_the_library_equals_the_paper(name: str) -> None:
    case = CASES[name]
    problem = PROBLEMS[case.problem]
    want = case.oracle(problem)
    assert_matches(case.library, problem, want, case.dtype, case.weighting, case.still, case.since)


def test_every_algorithm_has_an_oracle() -> None:
    assert set(fx.ALGORITHMS) <= {name.split()[0] for name in CASES}


def test_the_problem_tells_variants_and_weights_apart() -> None:
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


def test_alpha_of_equation_5_is_cut_at_one() -> None:
    """Theorem 2's c may make α > 1, outside line 7's (0, 1)."""
    with jax.enable_x64(True):
        lr, alpha = fx.fafed_schedule(0.1, 1.0, 1.5, 900.0)
        want_lr, want_alpha = fafed.equation_5(0.1, 1.0, 1.5, 900.0)
        assert want_alpha(1) > 1 > want_alpha(40)
        for t in range(1, 60):
            np.testing.assert_allclose(lr(jnp.asarray(t)), want_lr(t), rtol=1e-12)
            np.testing.assert_allclose(alpha(jnp.asarray(t)), min(want_alpha(t), 1.0), rtol=1e-12)

"""docs/conformance.md: options of ours equal the rules of other code bases, and the script prints its tables."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import optax
import pytest

import fedoptax as fx
from conformance import RULES, Server, correct_both, tables
from oracles.compare import assert_differ, assert_matches
from oracles.fedopt import local_changes
from oracles.problem import Problem, Tree, make, mean

CLIENT_LR = 0.3
SETTING = {"lr": 0.05, "b1": 0.9, "b2": 0.98, "tau": 1e-2}


def flower_lr(round: int) -> float:
    return SETTING["lr"] * correct_both(SETTING["b1"], SETTING["b2"], round + 2)


def make_openfl() -> fx.FedAlgorithm:
    return fx.fedopt(optax.sgd(CLIENT_LR), optax.adam(SETTING["lr"], eps=SETTING["tau"], b2=SETTING["b2"]))


def make_fedexp() -> fx.FedAlgorithm:
    rms = optax.scale_by_rms(SETTING["b2"], eps=(1 - SETTING["b2"]) * SETTING["tau"], eps_in_sqrt=True)
    scale = optax.scale(-SETTING["lr"] * correct_both(SETTING["b1"], SETTING["b2"], 1))
    server = optax.chain(optax.ema(SETTING["b1"], debias=False), rms, scale)
    return fx.fedopt(optax.sgd(CLIENT_LR), server)


adam, yogi = (partial(make, CLIENT_LR, *SETTING.values()) for make in (fx.fedadam, fx.fedyogi))
OURS: dict[str, Callable[[], fx.FedAlgorithm]] = {
    "Algorithm 2, APPFL": adam, "google-research": partial(adam, debias=True),
    "Flower": partial(fx.fedadam, CLIENT_LR, flower_lr, b2=SETTING["b2"], tau=SETTING["tau"], initial_accumulator=0),
    "FedLab, FL-bench, FL-Simulator": partial(adam, initial_accumulator=0), "OpenFL": make_openfl,
    "FedExP": make_fedexp, "Yogi: Algorithm 2, APPFL": yogi, "Yogi: google-research": partial(yogi, debias=True),
    "Yogi: Flower, FedLab, FL-bench": partial(yogi, initial_accumulator=0),
    "Yogi: FedScale": partial(yogi, initial_accumulator=SETTING["tau"]),
}  # fmt: skip


def run_rule(problem: Problem, name: str) -> list[Tree]:
    """x after every round: plain local steps, and the rule at the server."""
    x, trajectory = problem.params, []
    servers = {leaf: Server(RULES[name], **SETTING) for leaf in x}
    for t in range(len(problem.cohorts)):
        delta = mean(local_changes(problem, t, x, CLIENT_LR), problem.weights(t, "examples"))
        x = {leaf: x[leaf] + servers[leaf].step(delta[leaf]) for leaf in x}
        trajectory.append(x)
    return trajectory


@pytest.mark.parametrize("name", RULES)
def test_an_option_of_ours_equals_the_rule(name):
    assert_matches(OURS[name], make(), run_rule(make(), name), "float64", "examples")


def test_the_problem_tells_the_rules_apart():
    paths = [run_rule(make(), name) for name in RULES]
    for i, one in enumerate(paths):
        for other in paths[:i]:
            assert_differ(one, other)


@pytest.mark.long
def test_the_tables_of_the_page_are_what_the_script_prints():
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    assert all(table in page for table in tables().split("\n\n"))

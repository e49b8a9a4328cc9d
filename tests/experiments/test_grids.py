"""Grids, privacy and compression as a user types them."""

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedoptax as fx
from fedoptax.experiments.build import wrap
from fedoptax.experiments.grids import Zoom, coarse_rates, complete_grid, edges, log_grid, points, suggest_by_zoom
from fedoptax.experiments.grids import parse_grids as grids_of
from fedoptax.experiments.parsing import parse_pairs
from refusals import refusals, refused


def parse_grids(texts: list[str], algorithms: list[str]) -> dict[str, Any]:
    return grids_of(parse_pairs("grid", texts, parse=str), algorithms)


def test_values_and_ranges():
    grid = parse_grids(["client_lr=0.1,0.01", "server_lr=1e-2..1", "tau=1e-4..1e-2:decade"], ["fedadam"])["fedadam"]
    assert grid["client_lr"] == (0.01, 0.1)
    assert grid["server_lr"] == (0.01, 0.03162, 0.1, 0.3162, 1)  # four digits: what is printed is what was run
    assert grid["tau"] == (1e-4, 1e-3, 1e-2)
    assert len(parse_grids(["lr=1..10:quarter"], ["fedlamb"])["fedlamb"]["lr"]) == 5
    assert log_grid(0.02, 0.5) == (0.03162, 0.1, 0.3162)


def test_points_vary_the_last_name_fastest_and_have_edges():
    assert [tuple(one.values()) for one in points({"a": (1, 2), "b": (3, 4)})] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    grid = {"a": (1.0, 2.0, 3.0), "b": (0.0, 2.0), "c": (5.0,)}  # below a momentum of 0 is nothing
    assert edges(grid, {"a": 2.0, "b": 2.0, "c": 5.0}) == {"b": "highest"}
    assert edges(grid, {"a": 1.0, "b": 0.0, "c": 5.0}) == {"a": "lowest"}


WRONG = (
    *("client_lr", "client_lr=", "=1", "rate=1,2", "client_lr=1,1"),
    *("client_lr=1..0.1", "client_lr=0..1", "client_lr=-1..1", "client_lr=1..2:third", "client_lr=1.2..2"),
    *("client_lr=1..", "client_lr=..1", "client_lr=1e-3..inf", "client_lr=,", "client_lr=[1]"),
)
test_wrong_grids_are_refused = refusals((partial(parse_grids, [text], ["fedadam"]), "grid") for text in WRONG)


def test_grids_go_to_the_algorithms_that_have_their_names():
    grids = parse_grids(["client_lr=0.1,1", "lr=0.01,0.1"], ["fedavg", "fedlamb"])
    assert grids == {"fedavg": {"client_lr": (0.1, 1.0)}, "fedlamb": {"lr": (0.01, 0.1)}}
    grids = parse_grids(["fedavg.client_lr=1,2", "fedadam.client_lr=3"], ["fedavg", "fedadam", "scaffold"])
    assert grids == {"fedavg": {"client_lr": (1.0, 2.0)}, "fedadam": {"client_lr": (3.0,)}, "scaffold": {}}
    grids = parse_grids(["client_lr=1,2", "scaffold.client_lr=3"], ["fedavg", "scaffold"])
    assert grids == {"fedavg": {"client_lr": (1.0, 2.0)}, "scaffold": {"client_lr": (3.0,)}}
    for wrong, said in (("fedlamb.lr=1", "fedlamb"), ("server_rate=1,2", "server_rate"), ("client_lr=nan", "finite")):
        refused(lambda: parse_grids([wrong], ["fedavg"]), said)  # noqa: B023


@pytest.mark.parametrize(("budget", "sizes"), [(25, [4, 3]), (16, [3, 2]), (12, [3, 2]), (2, [1, 1]), (1, [1, 1])])
def test_half_of_a_budget_is_shared_out_evenly(budget, sizes):
    grid = coarse_rates(fx.fedadam, {}, budget)
    assert [len(values) for values in grid.values()] == sizes
    assert all(1e-3 <= value <= 10 for values in grid.values() for value in values)
    assert len(coarse_rates(fx.fedadam, {"server_lr": 0.1}, 16)["client_lr"]) == 8
    assert coarse_rates(fx.fedlamb, {}, 4)["lr"] == (1e-3, 0.1)  # the middles of two halves of 10⁻⁴ to 1


def test_every_rate_is_searched_beside_words_and_numbers_alone_are_a_grid():
    grid = complete_grid(fx.fedavg, {"weighting": ("examples", "uniform")}, {}, 16)
    assert isinstance(grid, Zoom) and list(grid) == ["weighting", "client_lr", "server_lr"] and len(points(grid)) <= 8
    for rates in ((0.1,), ("cosine(1, 9)",)):
        assert complete_grid(fx.fedavg, {"client_lr": rates}, {}, None) == {"client_lr": rates}
    assert isinstance(complete_grid(fx.fedavg, {"client_lr": (0.1,)}, {}, 4), Zoom)  # with a budget they are the start
    assert complete_grid(fx.fedavg, {}, {"client_lr", "server_lr"}, 16) == {} == coarse_rates(fx.fedlamb, {"lr"}, 4)


@settings(max_examples=40, deadline=None)
@given(x=st.floats(-6, 4), y=st.floats(-6, 4), slope=st.floats(-0.8, 0.8))
def test_a_search_that_zooms_leaves_its_range_for_the_best_and_repeats_no_point(x, y, slope):
    """It ends at most a coarse step from the best of a slanted bowl wherever that is, as extensions count as points."""
    grid, trials = {"a": (0.01, 0.1, 1.0), "b": (0.01, 1.0)}, list[tuple[dict[str, Any], float]]()
    for _ in range(30):
        point = suggest_by_zoom(grid, trials, maximize=False)
        assert point == suggest_by_zoom(grid, [(old, -score) for old, score in trials], maximize=True)
        assert not any(point == old or 0 < abs(point["a"] / old["a"] - 1) < 1e-3 for old, _ in trials)
        u, v = math.log10(point["a"]) - x, math.log10(point["b"]) - y
        trials.append((point, u * u + v * v + 2 * slope * u * v))
    best = min(trials, key=lambda trial: trial[1])[0]
    away = math.hypot(math.log10(best["a"]) - x, math.log10(best["b"]) - y)
    nearest = min(math.hypot(math.log10(p["a"]) - x, math.log10(p["b"]) - y) for p in points(grid))
    assert away <= max(1.0, 0.75 * nearest)


def test_a_search_whose_points_all_fail_goes_lower():
    trials = [(point, math.nan) for point in points({"a": (1.0, 10.0)})]
    assert suggest_by_zoom({"a": (1.0, 10.0)}, trials, False) == {"a": 0.1}
    assert suggest_by_zoom({"a": (1.0, 10.0)}, [*trials, ({"a": 0.1}, math.nan)], False) == {"a": 0.01}
    assert suggest_by_zoom({"lr": (0.01,)}, [({"lr": 0.01}, 1.0)], False) == {"lr": 1.0}  # an end of the default range
    many = [({"a": 1.0, "b": "x"}, 1.0), ({"a": 10.0, "b": "x"}, 2.0)]
    for _ in range(60):  # more than there are steps to halve
        many.append((suggest_by_zoom({"a": (1.0, 10.0), "b": ("x",)}, many, False), 3.0))
    assert len({point["a"] for point, _ in many}) == 62


PRIVACY = "clip=0.5,noise_multiplier=0.01,delta=1e-5"


def test_privacy_is_inside_and_compression_outside():
    assert wrap(direct := fx.fedavg(0.1)) is direct
    key, other = (wrap(fx.fedavg(0.1), PRIVACY, seed=seed).init(1.0).key.tolist() for seed in (0, 1))
    assert key != other  # the noise is another in runs of another seed, also where parameters are constants
    algorithm = wrap(fx.fedavg(0.1), PRIVACY, "qsgd:bits=2")
    assert algorithm.epsilon is not None and algorithm.weighting == "uniform"
    direct = fx.with_privacy(fx.fedavg(0.1), 0.5, 0.01, 1e-5)
    assert algorithm.epsilon(3, 5, 50) == direct.epsilon(3, 5, 50)
    assert type(algorithm.init(1.0)).__name__ == "CompressionState"


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"privacy": ""}, "privacy"), ({"privacy": "clip=1"}, "privacy .*noise_multiplier, delta"),
    ({"privacy": PRIVACY + ",clp=1"}, "privacy.*clip"), ({"privacy": PRIVACY + ",clip=1"}, "privacy.*clip"),
    ({"privacy": "clip=abc,noise_multiplier=1,delta=1e-5"}, "clip"),
    ({"privacy": "clip=1,noise_multiplier=1,delta=2"}, "delta"), ({"compress": "gzip"}, "compress"),
    ({"compress": "qsgd:"}, "compress qsgd"), ({"compress": "qsgd:bit=4"}, "compress qsgd.*bits"),
    ({"compress": "sign:x=1"}, "compress sign"), ({"compress": "sign:"}, "compress sign"),
]  # fmt: skip
test_a_mistake_is_refused_by_name = refusals(
    (partial(wrap, fx.fedavg(0.1), **options), f"^{argument}") for options, argument in MISTAKES
)

"""Grids as a user types them."""

from __future__ import annotations

import numpy as np
import pytest

import fedoptax as fx
from fedoptax.errors import UsageError
from fedoptax.grids import edges, log_grid, parse_grid, points


def test_values_and_ranges() -> None:
    grid = parse_grid(["client_lr=0.1,0.01", "server_lr=1e-2..1", "tau=1e-4..1e-2:decade"], fx.fedadam)
    assert grid["client_lr"] == (0.01, 0.1)
    np.testing.assert_allclose(grid["server_lr"], [1e-2, 10**-1.5, 0.1, 10**-0.5, 1])
    np.testing.assert_allclose(grid["tau"], [1e-4, 1e-3, 1e-2])
    assert len(parse_grid(["lr=1..10:quarter"], fx.fedlamb)["lr"]) == 5


def test_a_range_holds_only_whole_steps() -> None:
    np.testing.assert_allclose(log_grid(0.02, 0.5), [10**-1.5, 0.1, 10**-0.5])


def test_points_vary_the_last_name_fastest() -> None:
    assert points({"a": (1.0, 2.0), "b": (3.0, 4.0)}) == [
        {"a": 1.0, "b": 3.0},
        {"a": 1.0, "b": 4.0},
        {"a": 2.0, "b": 3.0},
        {"a": 2.0, "b": 4.0},
    ]


def test_edges() -> None:
    grid = {"a": (1.0, 2.0, 3.0), "b": (1.0, 2.0), "c": (5.0,)}
    assert edges(grid, {"a": 2.0, "b": 2.0, "c": 5.0}) == {"b": "highest"}
    assert edges(grid, {"a": 1.0, "b": 1.0, "c": 5.0}) == {"a": "lowest", "b": "lowest"}


@pytest.mark.parametrize(
    "text",
    [
        *("client_lr", "client_lr=", "=1", "rate=1,2", "client_lr=1,x", "client_lr=1,1", "client_lr=nan,1"),
        *("client_lr=1..0.1", "client_lr=0..1", "client_lr=-1..1", "client_lr=1..2:third", "client_lr=1.2..2"),
        *("client_lr=1..", "client_lr=..1", "client_lr=1e-3..inf", "client_lr=,"),
    ],
)
def test_wrong_grids_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_grid([text], fx.fedadam)
    assert "--grid" in str(error.value)
    assert "allowed" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="client_lr given twice"):
        parse_grid(["client_lr=1,2", "client_lr=3"], fx.fedadam)

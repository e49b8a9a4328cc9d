"""Points run at once are the runs they would be alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedoptax as fx

TASK = fx.load_task("synthetic", num_clients=8)
OPTIONS = {"rounds": 20, "cohort_size": 3, "batch_size": 20, "local_steps": 3, "eval_every": 7, "seed": 3}


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "grid"),
    [
        (fx.fedadam, {"client_lr": [0.01, 0.1], "server_lr": [0.01, 0.1]}),
        (fx.scaffold, {"client_lr": [0.01, 0.1]}),
    ],
    ids=["fedadam", "scaffold"],
)
def test_points_at_once_equal_points_alone(make, grid):
    alone = fx.sweep(TASK, make, grid, **OPTIONS)
    together = fx.sweep(TASK, make, grid, together=3, **OPTIONS)
    assert len(alone) == len(together)
    for one, other in zip(alone, together):
        assert one.hyperparameters == other.hyperparameters and one.status == other.status
        assert one.history.rows[0].keys() == other.history.rows[0].keys()
        for name in set(one.history.rows[0]) - {"seconds"}:
            values = [[np.nan if row[name] is None else row[name] for row in r.history] for r in (one, other)]
            np.testing.assert_allclose(*values, rtol=2e-4, atol=1e-5, err_msg=name)
        leaves = [jax.tree.leaves((r.params, r.state, r.clients.tree)) for r in (one, other)]
        for a, b in zip(*leaves):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)


@pytest.mark.long
def test_a_point_that_diverges_stops_alone():
    """On quadratics a rate of 100 grows beyond float32: the point ends where it would end alone, the other goes on."""
    task, grid = fx.load_task("quadratic", num_clients=8), {"client_lr": [0.01, 100.0]}
    alone = fx.sweep(task, fx.fedavg, grid, **OPTIONS)
    together = fx.sweep(task, fx.fedavg, grid, together=2, **OPTIONS)
    assert [r.status for r in together] == [r.status for r in alone] == ["completed", "diverged"]
    assert [len(r.history) for r in together] == [len(r.history) for r in alone]
    assert 0 < len(together[1].history) < 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(together[1].params))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"together": 0}, "together: 0 given, allowed is a whole number >= 1"),
        ({"together": 2, "mesh": 1}, "together: 2 given with mesh, allowed is 1"),
        ({"together": 2, "faults": {"dropout": 0.1}}, "together: 2 given with faults, allowed is 1"),
        ({"together": 2, "rounds": 0}, "rounds: 0 given, allowed is a whole number >= 1"),
        ({"together": 2, "cohort_size": 9}, "cohort_size: 9 given, allowed is at most"),
    ],
)
def test_what_does_not_go_together_is_refused(options, wanted):
    with pytest.raises(fx.UsageError, match=wanted):
        fx.sweep(TASK, fx.fedadam, {"client_lr": [0.1], "server_lr": [0.1]}, **{**OPTIONS, **options})


@pytest.mark.parametrize(
    "option", [{"out": "x"}, {"overwrite": True}, {"resume_from": "x"}, {"hyperparameters": {"b1": 0.5}}]
)
def test_what_belongs_to_one_run_is_refused(option, tmp_path, monkeypatch):
    """One folder for all points would hold the last one's results alone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fx.UsageError, match=f"^{next(iter(option))}: given for a sweep, allowed is for one run"):
        fx.sweep(TASK, fx.fedavg, {"client_lr": [0.1, 0.2]}, **OPTIONS, **option)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "grid", "options", "wanted"),
    [
        (fx.fedavg, {"client_lr": ["x"]}, {}, "grid: client_lr='x' given, allowed is a number"),
        (fx.fedavg, {"client_lr": [None]}, {}, "grid: client_lr=None given, allowed is a number"),
        (fx.fedavg, {"client_lr": 0.1}, {}, "grid: client_lr=0.1 given, allowed is a list of values"),
        (fx.fedavg, {"client_lr": "0.1"}, {}, "grid: client_lr='0.1' given, allowed is a list of values"),
        (fx.fedavg, [0.1], {}, "grid: .0.1. given, allowed are lists of values by"),
        (fx.fedavg, {"rate": [0.1]}, {}, "grid: rate given, allowed are the arguments of the constructor"),
        ("fedavg", {"client_lr": [0.1]}, {}, "make_algorithm: 'fedavg' given, allowed is a constructor"),
        (fx.fedavg, {"client_lr": [0.1]}, {"cohort": 3}, "option: unknown name 'cohort'; did you mean 'cohort_size'"),
    ],
)
def test_wrong_arguments_are_one_line(make, grid, options, wanted):
    with pytest.raises(fx.UsageError, match=wanted) as caught:
        fx.sweep(TASK, make, grid, **options)
    assert "\n" not in str(caught.value)

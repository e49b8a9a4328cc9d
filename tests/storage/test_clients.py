"""clients.parquet: each client's metrics at the evaluated rounds, equal to the history's summaries, and resumed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedoptax as fx
from fedoptax.algorithms.baselines import local
from fedoptax.experiments.record import split_options
from fedoptax.experiments.run import simulate
from fedoptax.storage.history import read_clients
from small import small_task

TASK, FEDAVG = fx.with_validation(small_task(), 0.3), fx.fedavg(0.3)
OPTIONS: dict[str, Any] = {"cohort_size": 3, "batch_size": 4, "eval_every": 2, "mesh": 1, "client_metrics": True}


@pytest.mark.parametrize("engine", ["compiled", "eager"])
def test_the_clients_of_every_evaluated_round_are_those_of_the_history(engine, tmp_path):
    result = fx.run(TASK, FEDAVG, rounds=5, out=tmp_path, engine=engine, **OPTIONS)
    table = read_clients(tmp_path)
    means = table.groupby("round")["nll"].mean()
    expected = {row["round"]: row["client_nll_mean"] for row in result.history if row["client_nll_mean"] is not None}
    assert list(expected) == means.index.tolist() == [2, 4, 5]
    assert means.to_numpy() == pytest.approx(list(expected.values()), rel=1e-5)
    last, by_client = table[table["round"] == 5], fx.evaluate_clients(TASK, result.params)["nll"]
    np.testing.assert_array_equal(last["client"], np.flatnonzero(np.isfinite(by_client)))
    np.testing.assert_allclose(last["nll"], by_client[np.isfinite(by_client)], rtol=1e-6)


def test_a_resumed_run_writes_the_same_file_and_does_not_do_without_it(tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    fx.run(TASK, FEDAVG, rounds=8, out=whole, **OPTIONS)
    fx.run(TASK, FEDAVG, rounds=4, out=part, **OPTIONS)
    fx.run(TASK, FEDAVG, rounds=8, resume_from=part, **OPTIONS)
    pd.testing.assert_frame_equal(read_clients(part), read_clients(whole))
    fx.run(TASK, FEDAVG, rounds=8, resume_from=part, resume_round=4, **OPTIONS)
    pd.testing.assert_frame_equal(read_clients(part), read_clients(whole))
    (part / "clients.parquet").write_bytes(b"PAR1")
    with pytest.raises(fx.RunError, match=r"clients\.parquet"):
        fx.run(TASK, FEDAVG, rounds=9, resume_from=part, **OPTIONS)


def test_clients_alone_are_measured_with_their_own_models(tmp_path):
    options = split_options({"rounds": 2, "out": tmp_path, **OPTIONS})
    result = simulate(TASK, local(0.3), *options, "local")
    values = read_clients(tmp_path)["nll"]
    last = result.history[-1]
    assert values.mean() == pytest.approx(last["client_nll_mean"], rel=1e-5)
    assert values.std(ddof=0) == pytest.approx(last["client_nll_spread"], rel=1e-5) != 0


def test_metrics_called_like_the_columns_of_round_and_client_leave_these_alone(tmp_path):
    task = replace(TASK, metrics=lambda params, batch: dict.fromkeys(("round", "client", "nll"), batch["x"][:, 0]))
    fx.run(task, FEDAVG, rounds=2, out=tmp_path, **OPTIONS)
    table = read_clients(tmp_path)
    assert set(table["round"]) == {2} and sorted(table["client"]) == np.unique(task.validation_owners).tolist()
    for name in ("round_", "client_"):
        pd.testing.assert_series_equal(table[name], table["nll"], check_names=False)

"""The spread of a metric over the clients: quantiles by hand, and where it is drawn."""

from pathlib import Path

import numpy as np
import pandas as pd

from fedoptax.report.curves import QUANTILES, find_client_bands
from fedoptax.report.figures import draw_figures
from fedoptax.report.page import render
from fedoptax.report.report import load_report
from run_folders import ramp, write_run


def test_quantiles_are_over_clients_and_their_mean_over_seeds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((2, 3, 20))  # seeds, rounds, clients
    for seed, by_round in enumerate(values):
        run = write_run(tmp_path / f"{seed}", ramp(0.9, 6), seed=seed)
        rounds, clients = np.repeat([2, 4, 6], 20), np.tile(np.arange(20), 3)
        table = pd.DataFrame({"round": rounds, "client": clients, "accuracy": by_round.reshape(-1)})
        table.to_parquet(run / "clients.parquet")
    write_run(tmp_path / "other", ramp(0.8, 6), name="fedavg")
    report = load_report(tmp_path)
    (bands,) = find_client_bands(report.groups)
    assert bands.rounds.tolist() == [2, 4, 6] and bands.group.algorithm == "fedadam"
    np.testing.assert_allclose(bands.values, np.quantile(values, QUANTILES, axis=2).mean(1).T)
    figures = draw_figures(report)
    assert "clients.png" in figures and "Clients over rounds" in render(report, figures, tmp_path)


def test_nothing_is_drawn_of_runs_without_metrics_of_clients(tmp_path: Path) -> None:
    write_run(tmp_path, ramp(0.9, 6))
    report = load_report(tmp_path)
    assert not report.client_bands
    assert "Clients over rounds" not in render(report, {}, tmp_path)

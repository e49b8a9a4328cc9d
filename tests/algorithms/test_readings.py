"""Each reading of a text gives the same compiled, in plain Python and over a network, with the same bytes."""

from pathlib import Path
from typing import Any

import pytest

import fedoptax as fx
from federations import assert_params, need_flower, run_in_memory, small_deployment, task_of
from fedoptax.storage.history import read_rows

READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "v of the device": ("fedlamb", {"lr": 0.01, "second_moment": "device", "gradient": "start"}),
    "one corrected gradient": ("fedlamb", {"lr": 0.01, "b2": 0.5, "gradient": "once", "bias_correction": "both"}),
    "corrected momentum": ("local_amsgrad", {"lr": 0.001, "momentum": "reset", "bias_correction": "momentum"}),
    "AdaGrad-Norm from one batch": ("fafed", {"lr": 0.02, "adaptive": "adagrad_norm", "initial_batches": 1}),
    "global adaptive rate": ("fafed", {"lr": 0.02, "adaptive": "global"}),
    "control variates and Adam": ("scaffold_adam", {"client_lr": 0.05, "server_lr": 0.03}),
    "AdaBound": ("fedadabound", {"client_lr": 0.05, "server_lr": 0.03}),
    "control of the cohort": ("mime", {"client_lr": 0.05}),
}
QUICK = ("AdaGrad-Norm from one batch",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.long) for n in READINGS])
def test_engines_and_a_network_agree(name: str, tmp_path: Path) -> None:
    need_flower()
    algorithm, hyperparameters = READINGS[name]
    deployed = small_deployment(tmp_path / "run", algorithm, hyperparameters=hyperparameters)
    run_in_memory(deployed)
    rows = read_rows(tmp_path / "run", 3)
    for engine in ("compiled", "eager"):
        options: dict[str, Any] = {"rounds": 3, "cohort_size": 2, "batch_size": 50, "seed": 3, "mesh": 1}
        result = fx.run(task_of(), deployed.build_algorithm(), engine=engine, **options)
        assert_params(tmp_path / "run", result.params)
        for column in ("bytes_up", "bytes_down"):
            assert [row[column] for row in rows] == result.history.column(column)

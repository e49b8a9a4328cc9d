"""From typed options to the settings of runs: presets, defaults, what was given."""

from typing import Any

import pytest

from fedoptax.cli.options import RunForm
from fedoptax.cli.setup import choose


def options_of(options: RunForm) -> tuple[dict[str, Any], dict[str, Any]]:
    return choose(options, ["fedavg"])[1:]


def test_preset_fills_what_was_not_given(capsys):
    task, rounds = options_of(RunForm(task="mnist", preset="paper:fedlamb-shards", run={"rounds": 7}))
    expected = {"rounds": 7, "cohort_size": 25, "batch_size": 32, "weighting": "uniform"}
    assert expected.items() <= rounds.items()
    assert (task["partition"], task["shards"], task["num_clients"]) == ("shards", 2, 50)
    assert "Fed-LAMB" in capsys.readouterr().err


def test_given_hyperparameters_replace_those_of_the_paper():
    options = RunForm(task="emnist-cr", preset="paper", set_={"fedadam.tau": 0.5})
    chosen = choose(options, ["fedadam", "fedavg"])[0].hyperparameters
    assert chosen["fedadam"]["tau"] == 0.5
    assert chosen["fedadam"]["server_lr"] == pytest.approx(10**-2.5)
    assert chosen["fedavg"] == {"client_lr": 0.1, "server_lr": 1.0}

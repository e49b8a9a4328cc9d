"""docs/tutorial-hospitals.md does what it says: its code and commands, in their order and as written."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from command_line import fedoptax
from fedoptax._files import read_json

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-hospitals.md"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("with_network", [False, True], ids=["simulation", "network"])
def test_the_tutorial_runs_as_written(with_network, tmp_path, monkeypatch, capsys):
    """Without the network its two commands, `deploy init` and `deploy local`, are left out."""
    if with_network:
        pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "tutorial"}, ""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        if language == "python":
            exec(compile(block, PAGE.name, "exec"), names)
        elif language == "text":  # what the command before prints
            assert all(line in printed for line in block.splitlines()), printed
        else:
            for line in block.splitlines():
                if with_network or not line.startswith("fedoptax deploy"):
                    assert fedoptax(*shlex.split(line)[1:]) == 0, line
                    printed = "".join(capsys.readouterr())
    assert "auroc" in printed  # of `predict --evaluate`
    predictions, cautious = pd.read_csv("predictions.csv"), pd.read_csv("cautious.csv")
    assert list(predictions.columns[-4:]) == ["prediction", "probability", "probability_0_no", "probability_1_yes"]
    assert sum(cautious.prediction == "1_yes") > sum(predictions.prediction == "1_yes")
    clients = pd.read_parquet("runs/model/clients.parquet")
    assert set(clients.name) == {"1_north", "2_east", "3_west", "4_small"} and {"auroc", "f1"} <= set(clients)
    final = read_json(Path("runs/model/summary.json"))
    assert final["worst_client"]["client"] in set(clients.name) and final["final"]["test_auroc"] > 0.75
    if with_network:
        assert read_json(Path("runs/network/summary.json"))["final"]["nodes_auroc"] > 0.6

"""What an operator sees of a deployment: `fedoptax deploy status`, and the figure of a round's seconds."""

import json

import pytest

from command_line import fedoptax
from federations import InMemory, network_lines, run_in_memory, small_deployment
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.status import list_left_out
from fedoptax.errors import RunError
from fedoptax.report.figures import draw_phases
from fedoptax.report.report import load_report
from fedoptax.storage.history import read_rows


class Failing(InMemory):
    """From the second round on the answer of partition 0 is an error."""

    def change(self, partition: int, reply: RawReply) -> RawReply:
        return reply if partition or len(self.orders) <= 2 else RawReply(b"", {}, "no disk")


def test_a_node_that_is_left_out_twice_in_a_round_counts_once():
    fault = {"partition": 1, "node": "b", "reason": "late"}
    assert list_left_out([{"faults": [fault, fault]}, {"faults": [fault]}]) == [fault | {"rounds": 2}]


def test_status_shows_nodes_phases_and_who_was_left_out_by_name(tmp_path, capsys):
    out = tmp_path / "run"
    given = small_deployment(out)
    network = Failing(given, tmp_path / "nodes")
    network.names[0] = "clinic-a"
    with pytest.raises(RunError, match="no quorum"):
        run_in_memory(given, network)
    (line,), (row,) = network_lines(out), read_rows(out, 1)
    assert set(line["seconds"]) == {"waiting", "training", "sending", "evaluating"}
    assert sum(line["seconds"].values()) == pytest.approx(row["seconds"], abs=0.05)
    assert 0 < line["seconds"]["training"] < row["seconds"]
    assert fedoptax("deploy", "status", out, "--watch") == 0  # it has ended
    text = capsys.readouterr().out
    assert "interrupted: 1 of" in text and "no disk" in text and "partition 0 (node clinic-a): connected" in text
    assert fedoptax("deploy", "status", out, "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert state["nodes"]["0"]["node"] == "clinic-a" and state["nodes"]["0"]["seen"] <= state["time"]
    assert draw_phases(load_report(out).runs[0]) is not None
    assert fedoptax("deploy", "status", tmp_path) == 2
    assert "run_folder must be the folder of a deployment" in capsys.readouterr().err

"""What an operator sees of a deployment while it runs, from files in its folder.

`network.jsonl` has a line for each round that is done: who took part, who was left out and why, the seconds of each
phase. `nodes.json` says, every few seconds, which round goes on and when each node was last connected.
"""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedoptax._files import read_json
from fedoptax.errors import UsageError
from fedoptax.storage.folder import Status, read_summary
from fedoptax.storage.history import read_lines

FILE, NODES = "network.jsonl", "nodes.json"
PHASES = ("waiting", "training", "sending", "evaluating")
"""Of a round: nobody works, or only nodes whose reply never comes; the last node that answers trains; its messages are
on their way; the server makes the new model, and server and nodes evaluate it. Together they are the round."""
RECENT = 10  # rounds whose mean is shown
LEFT_OUT = "left out of {rounds} rounds: partition {partition} (node {node}), at last: {reason}"


def list_left_out(rounds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return who was left out: by partition the number of rounds, and the node and the reason of the last."""
    left_out: dict[int, dict[str, Any]] = {}
    for fault in (fault for line in rounds for fault in line["faults"]):
        times = left_out.get(fault["partition"], {"rounds": 0})["rounds"] + 1
        left_out[fault["partition"]] = {**fault, "rounds": times}
    return [left_out[partition] for partition in sorted(left_out)]


def read_status(folder: Path) -> dict[str, Any]:
    """Return the state of the deployment in a folder, with all that `describe_status` tells.

    Raises:
      UsageError: the folder is not a deployment's.
      RunError: a file is damaged.
    """
    config, now = (read_json(folder / name) if (folder / name).is_file() else {} for name in ("config.json", NODES))
    if "deployment" not in config:
        raise UsageError(f"run_folder must be the folder of a deployment that has begun, got '{folder}'")
    rounds = [json.loads(line) for line in read_lines(folder, FILE)]
    recent = [line["seconds"] for line in rounds[-RECENT:] if line.get("seconds")]
    means = {phase: sum(line[phase] for line in recent) / len(recent) for phase in PHASES if recent}
    state = {"rounds": config["rounds"], "done": len(rounds), "seconds": means, "left_out": list_left_out(rounds)}
    return {"nodes": {}, **read_summary(folder), **state, **now}


def describe_status(state: Mapping[str, Any]) -> list[str]:
    """Return what `read_status` returns as lines."""
    lines = ["{status}: {done} of {rounds} rounds are done".format(**state)]
    if state["status"] == Status.RUNNING and "time" in state:
        lines[0] += ", round {round} is {phase}; written {ago}".format(**state, ago=_ago(state["time"]))
    elif state["message"]:
        lines[0] += f"; {state['message']}"
    for partition, node in state["nodes"].items():
        lines.append(f"partition {partition} (node {node['node']}): connected {_ago(node['seen'])}")
    if state["seconds"]:
        lines.append("seconds per round: " + ", ".join(f"{name} {s:.2f}" for name, s in state["seconds"].items()))
    return lines + list(map(LEFT_OUT.format_map, state["left_out"]))


def _ago(moment: float | None) -> str:
    return "never" if moment is None else f"{max(0.0, time.time() - moment):.0f} s ago"

"""The status of a running deployment, from files in its folder.

`network.jsonl` has a line for each round that is done: who took part, who was left out and why, the seconds of each
phase. `nodes.json` says, every few seconds, which round goes on and when each node was last connected.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from fedoptax._files import read_json, reading, write_json
from fedoptax.deploy.rounds import Network, Sleep
from fedoptax.errors import UsageError
from fedoptax.storage.folder import Status, read_summary
from fedoptax.storage.history import read_lines

FILE, NODES = "network.jsonl", "nodes.json"
REPORT_EVERY = 5.0  # seconds between two reports of which nodes are connected
RECENT = 10  # rounds whose mean is shown
LEFT_OUT = "left out of {rounds} rounds: partition {partition} (node {node}), latest: {reason}"


def list_left_out(rounds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return who was left out: by partition the number of rounds, and the node and the reason of the last."""
    faults = [fault for line in rounds for fault in {fault["partition"]: fault for fault in line["faults"]}.values()]
    counts, last = Counter(fault["partition"] for fault in faults), {fault["partition"]: fault for fault in faults}
    return [{**last[partition], "rounds": counts[partition]} for partition in sorted(last)]


class NodeReport:
    """Writes `nodes.json` into a run's folder."""

    def __init__(self, folder: Path, network: Network, num_clients: int) -> None:
        self._file, self._network, self._written = folder / NODES, network, 0.0
        self._nodes: dict[int, Any] = {i: {"node": network.names[i], "seen": None} for i in range(num_clients)}

    def during(self, round: int, phase: str, sleep: Sleep) -> Sleep:
        """Return a `sleep` for a phase of a round that also writes the file, every `REPORT_EVERY` seconds."""

        def report_and_sleep(seconds: float) -> None:
            if abs((now := time.time()) - self._written) >= REPORT_EVERY:  # the clock may go back
                self._written = now
                for partition in self._network.connected():
                    self._nodes[partition]["seen"] = now
                write_json(self._file, {"round": round, "phase": phase, "time": now, "nodes": self._nodes})
            sleep(seconds)

        return report_and_sleep


def read_status(folder: Path) -> dict[str, Any]:
    """Return the state of the deployment in a folder, for `describe_status`.

    Another folder is a `UsageError`, a damaged file a `RunError`.
    """
    config, now = (read_json(folder / name) if (folder / name).is_file() else {} for name in ("config.json", NODES))
    if "deployment" not in config:
        raise UsageError(f"run_folder must be the folder of a deployment that has started, got '{folder}'")
    with reading(f"'{folder / FILE}'", "the rounds of a deployment"):
        rounds = [json.loads(line) for line in read_lines(folder, FILE)]
    recent = [line["seconds"] for line in rounds[-RECENT:] if "seconds" in line]
    means = {phase: fmean(line[phase] for line in recent) for phase in (recent or [{}])[0]}
    state = {"rounds": config["rounds"], "done": len(rounds), "seconds": means, "left_out": list_left_out(rounds)}
    return {"nodes": {}, "status": Status.RUNNING, **read_summary(folder), **state, **now}


def describe_status(state: Mapping[str, Any]) -> list[str]:
    """Return the result of `read_status` as lines."""

    def ago(moment: float | None) -> str:
        return "never" if moment is None else f"{max(0.0, time.time() - moment):.0f} s ago"

    is_running = state["status"] == Status.RUNNING and "time" in state
    now = f", round {state['round']} is {state['phase']}; written {ago(state['time'])}" if is_running else ""
    message = f"; {state['message']}" if state.get("message") else ""
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in state["seconds"].items())
    return [
        f"{state['status']}: {state['done']} of {state['rounds']} rounds are done{now}{message}",
        *(f"partition {i} (node {node['node']}): connected {ago(node['seen'])}" for i, node in state["nodes"].items()),
        *([f"seconds per round: {seconds}"] if seconds else []),
        *map(LEFT_OUT.format_map, state["left_out"]),
    ]

"""What a hostile node, or a stranger at the port, does to a deployment: the table of results/network-attacks.md.

    python benchmarks/network_attacks.py                     # everything, continued where it was stopped
    python benchmarks/network_attacks.py --only fedavg,door  # some of it

SuperLink, SuperNodes, ServerApp and nginx are real processes on the loopback interface, anew for each name of `--only`;
the hostile node runs hostile_client.py. `--work` has a small file with the rows of each name, which is not made again,
and beside it the folder with all logs. The page is written once all are there.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fedoptax as fx
from attacks import commit, cpu
from fedoptax._files import read_json, write_json
from fedoptax.deploy.app import read_app, write_app
from fedoptax.deploy.config import Deployment, build_task
from fedoptax.deploy.keys import describe_keys, make_keys, write_keys
from fedoptax.deploy.local import ADDRESS, LocalFederation, free_ports, stop
from fedoptax.deploy.proxy import make_proxy
from fedoptax.experiments.presets import find_preset
from hostile_client import HOSTILE, VICTIM

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"client_lr": 0.3},
    "fedadam": {"client_lr": 0.1, "server_lr": 0.1},
    "scaffold": {"client_lr": 0.3},
    "fedlamb": {"lr": 0.05},
    "fafed": {"lr": 0.1, "alpha": 0.9, "rho": 0.1},
}
AGGREGATES = ("median", "trimmed_mean:0.34")
NODES, BATCH, SEED, FLIPS = 3, 50, 3, 4  # rounds with flipped signs
REFUSED = "WireError: order: "  # in the victim's log
LIMIT, REFUSAL = 1500.0, 90.0  # seconds for a federation, and for a refusal
UPLOADS = {"1e30": "every number of its upload 1e30", "times 1e8": "its upload × 10⁸",
           "just below": "its upload scaled to norm 9.99, just below the bound"}  # fmt: skip
REPLIES = {
    "loss 1e39": "a training loss of 1e39, not a float32", "loss 1e30": "a training loss of 1e30",
    "NaN": "an array of NaN", "shape": "an array of another shape",
    "declared": "an array that declares 4 TB and holds some KB", "cut": "half of its bytes",
    "last upload": "its upload of the round before again",
    "last reply": "its reply to the message of the round before again, and none to this round's",
}  # fmt: skip
FORGED = {"train": "the round's training order with the model × 30", "evaluation": "the same, to be evaluated",
          "keys": "the round's order to make keys again, under secure aggregation"}  # fmt: skip
STATEFUL = [
    "scaffold", "scaffold_adam", "local_amsgrad", "fedlamb", "stem", "fafed", "naive_adaptive", "feddyn", "fadamgc",
    "diloco", "muloco",
]  # fmt: skip
RESULTS = Path(__file__).parent / "results"
HEAD = """# Attacks on a deployment

Made by `python benchmarks/network_attacks.py` with real processes on the loopback interface: SuperLink, SuperNodes,
ServerApp, and nginx where a stranger comes. What is defended and what is not: [security](../../docs/security.md).

- Task `digits`, logistic regression, three clients, the third hostile; all are asked in each round, batch {batch}, 1
  local epoch, `quorum` 0.5, `upload-bound` 10, `loss-bound` 100. FedAvg and weighted mean, unless others are named.
- *Test loss*: of the server's model after that round, beside the same rounds of a simulation in which all are honest.
- *Counts*: it went into the mean, as security says of lies below the bounds. A run that diverged keeps the state of the
  round that its line names, and `fedoptax resume --round N` goes back further. 403 is the proxy's answer.
- Date: {date}. Machine: {cores} CPU cores ({cpu}), Linux {kernel}. Versions: fedoptax {fedoptax}, flwr {flwr},
  jax {jax}, Python {python}, nginx {nginx}. Commit {commit}.
"""
ALTERED = """from fedoptax.deploy.flower import client_app

open({marker!r}, "w").close()
app = client_app()
"""
TABLE = "| attack | what was sent | outcome | log line |\n|---|---|---|---|\n"


class Row(NamedTuple):
    """One line of the table."""

    attack: str
    sent: str
    outcome: str
    line: str


@dataclass(frozen=True)
class Run:
    """An app that was run to its end: its folder of results, and its log."""

    out: Path
    log: Path

    def read(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of network.jsonl or history.jsonl."""
        return [json.loads(line) for line in (self.out / name).read_text().splitlines()]

    def row(self, attack: str, sent: str, round: int, honest: Sequence[float] = ()) -> Row:
        """Say what became of the hostile node's reply in a round."""
        done, summary = self.read("network.jsonl"), read_json(self.out / "summary.json")
        if len(done) < round:
            what = f"{summary['status']}; the state after round {len(done)} is kept"
            return Row(attack, sent, what, find_line(self.log, "diverged|no quorum"))
        reasons = [fault["reason"] for fault in done[round - 1]["faults"] if fault["partition"] == HOSTILE]
        goes_on = len(done) > round or summary["status"] == "completed"
        after = "the run goes on" if goes_on else f"the run ended in the next round: {summary['status']}"
        loss = self.read("history.jsonl")[round - 1]["test_loss"]
        compared = f"; test loss {loss:.3g}, honest {honest[round - 1]:.3g}" if honest else ""
        what = f"{'left out by name' if reasons else 'counts'}, {after}{compared}"
        ended = f"round {round} of" if goes_on else "diverged in|no quorum"
        sought = rf"partition {HOSTILE} \(node .*{re.escape(reasons[0])}" if reasons else ended
        return Row(attack, sent, what, find_line(self.log, sought))


def lie_in_uploads(name: str, work: Path, **changes: Any) -> list[Row]:
    """One algorithm: three lies in the first three rounds; another run in which every upload has its sign flipped.

    `changes` may have another `aggregate`, for the honest simulation too.
    """
    lies = [*UPLOADS, ""]
    with started(work) as federation:  # one run after another: a node's worker is one run's
        flips = run_app(federation, "flips", ["sign flip"] * FLIPS, name, **changes)
        large = run_app(federation, "large", lies, name, **changes)
    task, algorithm = build_task(read_app(work / "flips-app")), fx.ALGORITHMS[name](**rates_of(name))
    same = {"rounds": FLIPS, "cohort_size": NODES, "batch_size": BATCH, "seed": SEED, **changes}
    losses = [row["test_loss"] for row in fx.run(task, algorithm, progress=False, **same).history]
    label = ", ".join([name, *changes.values()])
    rows = [large.row(f"{label}: {lie}", sent, i + 1, losses) for i, (lie, sent) in enumerate(UPLOADS.items())]
    return [*rows, flips.row(f"{label}: sign flip", f"− its upload, {FLIPS} rounds", FLIPS, losses)]


def send_bad_replies(work: Path) -> list[Row]:
    """Replies that are no replies, one per round."""
    with started(work) as federation:
        run = run_app(federation, "replies", [*REPLIES, ""], round_timeout=60.0)
    return [run.row(lie, sent, i + 1) for i, (lie, sent) in enumerate(REPLIES.items())]


def take_places(work: Path) -> list[Row]:
    """Nodes that are not who they say, in a federation with a fourth process."""
    with started(work, NODES + 1) as federation:
        run = run_app(federation, "claim", [""] * 2, claim=0, wait_limit=90.0)
        line = find_line(run.log, r"left out: it claims partition 0")
        is_out = line and [round["accepted"] for round in run.read("network.jsonl")] == [[0, 1]] * 2
        what = "left out by name, the run goes on" if is_out else "took part"
        rows = [Row("another's place", "node 2 claims partition 0", what, line)]
        write_keys(work / "other", make_keys(1))
        own, other = work / "keys", work / "other"
        for attack, sent, files in (
            ("one key twice", "a second process with node 0's key, while node 0 runs", {"key": own / "node-0"}),
            ("unregistered key", "a key that nobody registered", {"key": other / "node-0"}),
            ("another CA", "a node that trusts another CA than the server's", {"ca": other / "ca.crt"}),
        ):
            stop([federation.nodes[NODES]])
            process = federation.start_node(NODES, **files)
            log = work / "nodes" / str(NODES) / "log.txt"
            sought, end = r"CERTIFICATE|attempt failed|\[code|error '", time.monotonic() + REFUSAL
            while not find_line(log, f"{sought}|SuperNode ID") and process.poll() is None and time.monotonic() < end:
                time.sleep(0.5)
            line = find_line(log, sought)
            what = "connected" if find_line(log, "SuperNode ID") else "refused" if line else "no answer"
            rows.append(Row(attack, sent, what, line))
    return rows


def knock_at_the_door(work: Path) -> list[Row]:
    """Garbage at both ports while a run goes on; then a stranger with the address and the CA at the proxy."""
    with started(work, 1) as federation, proxy(work, federation.port) as port:
        stop([federation.nodes[0]])
        federation.start_node(0, port=port)
        ca, home, marker, taken = work / "keys" / "ca.crt", work / "stranger", work / "marker", list[int]()
        ports = (federation.port, port)
        run = run_app(federation, "run", [""] * 2, watch=lambda: taken.extend(throw_garbage(to, ca) for to in ports))
        status = read_json(run.out / "summary.json")["status"]
        sent = f"{sum(taken) / 1e6:.0f} MB of random bytes, bare and within TLS, to the ports of SuperLink and proxy"
        what = "the run goes on" if status == "completed" else f"the run ended: {status}"
        rows = [Row("garbage stream", sent, what, find_line(run.log, "^completed").partition(":")[0])]

        write_keys(work / "own", make_keys(1))
        shutil.copytree(work / "run-app", home / "app")
        (home / "app" / "fedoptax_app" / "client_app.py").write_text(ALTERED.format(marker=str(marker)))
        link = f'[superlink.x]\naddress = "{ADDRESS}:{port}"\nroot-certificates = "{ca}"\n'
        (home / "config.toml").write_text(link)
        for attack, sent, command in (
            ("registering a key", "`flwr supernode register`", ["supernode", "register", f"{work}/own/node-0.pub"]),
            ("starting a run", "`flwr run` of an app that would write a marker file", ["run", str(home / "app")]),
            ("stopping a run", "`flwr stop`", ["stop", "1"]),
        ):
            program = [str(Path(sys.executable).with_name("flwr")), *command, "x"]
            environment = {**os.environ, "FLWR_HOME": str(home)}
            with (log := home / f"{command[0]}.log").open("wb") as file:
                ended = subprocess.run(program, env=environment, timeout=120, stdout=file, stderr=file)
            line = find_line(log, "403")
            is_refused = ended.returncode and line and not marker.exists()
            note = ", and there is no marker file" if command[0] == "run" else ""
            rows.append(Row(attack, sent, f"refused{note}" if is_refused else "SUCCEEDED", line))
        return rows


def forge_orders(name: str, kinds: Sequence[str], work: Path, **changes: Any) -> list[Row]:
    """One algorithm: node 2 is honest to the server, and sends node 0 an order in the server's name in each round."""
    with started(work) as federation:
        run = run_app(federation, "forged", [*(f"forged {kind}" for kind in kinds), ""], name, **changes)
    task, algorithm = build_task(read_app(work / "forged-app")), fx.ALGORITHMS[name](**rates_of(name))
    same = {"rounds": len(kinds) + 1, "cohort_size": NODES, "batch_size": BATCH, "seed": SEED}
    losses = [row["test_loss"] for row in fx.run(task, algorithm, progress=False, **same).history]
    rows = run.read("history.jsonl")
    summary = read_json(run.out / "summary.json")
    blamed = find_line(run.log, rf"partition {VICTIM} \(")
    line = find_line(work / "nodes" / str(VICTIM) / "log.txt", REFUSED)
    what = f"{'refused' if line else 'OBEYED'}, {summary['status']} after round {len(rows)} of {len(losses)}"
    what += f"{', an honest node left out' if blamed else ''}"
    what += f"; test loss {rows[-1]['test_loss']:.3g}, honest {losses[len(rows) - 1]:.3g}" if rows else ""
    sent = "; ".join(FORGED[kind] for kind in kinds)
    return [Row(f"{name}: forged order", sent, what, line or blamed)]


GROUPS: dict[str, Callable[[Path], list[Row]]] = {name: partial(lie_in_uploads, name) for name in ALGORITHMS}
GROUPS |= {
    f"{name}-{aggregate.partition(':')[0]}": partial(lie_in_uploads, name, aggregate=aggregate)
    for name in ALGORITHMS
    for aggregate in AGGREGATES
}
GROUPS |= {f"orders-{name}": partial(forge_orders, name, ["train", "evaluation"]) for name in STATEFUL}
GROUPS["orders-secure"] = partial(forge_orders, "fedavg", ["keys"], secure_aggregation=8.0)
GROUPS |= {"replies": send_bad_replies, "places": take_places, "door": knock_at_the_door}


@contextmanager
def started(work: Path, nodes: int = NODES) -> Iterator[LocalFederation]:
    """A federation with new keys."""
    write_keys(work / "keys", make_keys(nodes))
    with LocalFederation(work, nodes, time_limit=LIMIT) as federation:
        yield federation


@contextmanager
def proxy(work: Path, superlink_port: int) -> Iterator[int]:
    """Run nginx in front of the SuperLink."""
    (port,) = free_ports([0])
    (work / "nginx.conf").write_text(make_proxy(port, superlink_port))
    with (work / "nginx.log").open("wb") as log:
        command = ["nginx", "-e", "stderr", "-p", ".", "-c", "nginx.conf"]
        process = subprocess.Popen(command, cwd=work, stdout=log, stderr=log)
    try:
        yield port
    finally:
        stop([process])


def run_app(
    federation: LocalFederation,
    label: str,
    lies: Sequence[str],
    name: str = "fedavg",
    claim: int = HOSTILE,
    **changes: Any,
) -> Run:
    """Run an app whose node 2 tells a lie per round; `watch` among the `changes` is called while it runs."""
    work, watch = federation.work, changes.pop("watch", lambda: None)
    run, app, nodes = Run(work / label, work / f"{label}.log"), work / f"{label}-app", min(NODES, len(federation.nodes))
    files = [f"node-{i}.pub" for i in range(nodes)]
    keys = describe_keys({name: (work / "keys" / name).read_bytes() for name in ("signing.pub", *files)})
    given = Deployment(
        task={"name": "digits", "model": "logistic", "num_clients": nodes}, algorithm=name,
        hyperparameters=rates_of(name), rounds=len(lies), cohort_size=nodes, batch_size=BATCH, seed=SEED,
        out=str(run.out), **keys, **changes,
    )  # fmt: skip
    write_app(app, given, label)
    client = f"from hostile_client import client_app\n\napp = client_app({list(lies)}, {claim})\n"
    (app / "fedoptax_app" / "client.py").write_text(client)
    (work / f"{label}.toml").write_text("resume = false\n")
    federation.run(app, work / f"{label}.toml", run.log, watch)
    return run


def rates_of(name: str) -> dict[str, Any]:
    """Return an algorithm's hyper-parameters: those of `ALGORITHMS`, else the task's preset."""
    return ALGORITHMS.get(name) or find_preset("digits", name, "logistic")[0]


def throw_garbage(port: int, ca: Path) -> int:
    """Send random bytes to a port, bare and within TLS; return how many it took."""
    taken, tls = 0, ssl.create_default_context(cafile=str(ca))
    for with_tls in (False, True):
        with suppress(OSError), socket.create_connection((ADDRESS, port), timeout=5) as bare:
            stream = tls.wrap_socket(bare, server_hostname=ADDRESS) if with_tls else bare
            for _ in range(4):
                stream.sendall(os.urandom(2**18))
                taken += 2**18
    return taken


def find_line(log: Path, pattern: str) -> str:
    """Return the first line of a log in which a pattern is found, without colours and Flower's level; else ""."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else ""
    lines = (re.sub(r"^[A-Z]+ *:\s+", "", line).strip(" │") for line in text.splitlines())
    return next((line for line in lines if re.search(pattern, line)), "")


def write_page(rows: Sequence[Row], page: Path) -> None:
    """Write the page."""
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]
    head = HEAD.format(
        batch=BATCH, date=datetime.date.today().isoformat(), cores=os.cpu_count(), cpu=cpu(), kernel=platform.release(),
        fedoptax=fx.__version__, flwr=version("flwr"), jax=jax.__version__, python=platform.python_version(),
        nginx=nginx, commit=commit(),
    )  # fmt: skip
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    table = [f"| {attack} | {sent} | {what} | `{line.replace('`', chr(39))}` |" for attack, sent, what, line in cells]
    page.write_text("\n".join([head, TABLE + "\n".join(table), ""]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), help="names, separated by commas")
    parser.add_argument("--work", type=Path, default=Path("runs") / "network-attacks", help="folder for rows and logs")
    given = parser.parse_args(arguments)
    work = given.work.absolute()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    for name in given.only.split(","):
        if (work / f"{name}.json").is_file():
            continue
        shutil.rmtree(work / name, ignore_errors=True)
        rows = GROUPS[name](work / name)
        write_json(work / f"{name}.json", {"rows": rows})
        for row in rows:
            print(*row, sep=" | ", flush=True)
    done = [name for name in GROUPS if (work / f"{name}.json").is_file()]
    rows = [Row(*row) for name in done for row in read_json(work / f"{name}.json")["rows"]]
    if len(done) == len(GROUPS):
        write_page(rows, RESULTS / "network-attacks.md")


if __name__ == "__main__":
    main()

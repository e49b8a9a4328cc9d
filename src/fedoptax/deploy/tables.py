"""A deployment with a table at each node: the statistics of the tables, and the task that follows from them.

The app has the schema. In two phases before the first round each node sends the counts and sums of its own training
rows (`fedoptax.data.statistics`), under secure aggregation masked; the preparation of features that follows from their
sum goes with every order. A file that does not fit the schema is refused at its node, whose log says why; the server
hears that it does not fit.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedoptax.data.custom import load_file
from fedoptax.data.datasets.source import Source
from fedoptax.data.federated import FederatedData
from fedoptax.data.schema import Schema
from fedoptax.data.statistics import Preparation, Sums, add_up, prepare, zero_sums
from fedoptax.deploy.client import INITIAL
from fedoptax.deploy.config import TABLE, Deployment
from fedoptax.deploy.evaluation import KIND
from fedoptax.deploy.rounds import Limits, Log, Network, Sleep, gather, wait_for_nodes
from fedoptax.deploy.secure import LIMBS, Numbers, SecureSum, decode_numbers, encode_numbers, threshold
from fedoptax.deploy.server import RawReply, Reply, check_count
from fedoptax.deploy.wire import WireError, unpack
from fedoptax.errors import DataError, RunError, UsageError, check_choice
from fedoptax.tasks.registry import CUSTOM
from fedoptax.tasks.tables import default_metrics, learn_table
from fedoptax.tasks.task import Task, with_metrics

LARGEST = float(np.finfo(np.float32).max)  # of a cell
OPTIONS = ("schema", "model", "loss", "class_weight", "metrics", "test_fraction")
PLACEHOLDER = '{"fill": [], "shift": [0], "scale": [1], "target": [1, 1], "classes": [1]}'  # of any sums, for checks


def read_own(deployment: Deployment, path: Any) -> Source:
    """Read a node's own file, which its config names `data-file`, as a simulation reads the rows of this client.

    If none is named, or it does not fit, that is a `RunError`; why stands in the node's log alone.
    """
    task: Mapping[str, Any] = deployment.task
    try:
        schema, fraction = replace(Schema.read(task["schema"]), client=None), task.get("test_fraction")
        seed = int(task.get("partition_seed", 0))
        return load_file(Path(str(path)).expanduser(), schema=schema, test_fraction=fraction, seed=seed)
    except (DataError, UsageError) as error:
        print(f"data-file: {error}", file=sys.stderr, flush=True)
        raise RunError("its data-file does not fit the schema; the node's log says why") from None


def add_up_own(deployment: Deployment, source: Source, first: str) -> tuple[Sums, Numbers]:
    """Return a node's sums, and their number of examples.

    `first` are the sums of all nodes in the first phase as JSON, which are none in this phase.
    """
    before = {name: np.array(values) for name, values in json.loads(first).items()} or None
    sums = add_up(Schema.read(str(deployment.task["schema"])), source.train["x"], source.train["y"], before)
    return sums, {"num-examples": len(source.train["y"])}


def encode_sums(weight: float, sums: Sums, numbers: Numbers) -> tuple[np.ndarray, Numbers]:
    """Return what a node contributes with its sums under secure aggregation."""
    return encode_numbers(np.concatenate([values.ravel() for values in sums.values()])).ravel(), {}


def gather_statistics(
    deployment: Deployment, network: Network, identity: Mapping[str, Any], log: Log, sleep: Sleep
) -> str:  # fmt: skip
    """Return the preparation of features, as JSON, that follows from the sums of all nodes.

    If too few nodes answered soundly that is `NoQuorum`, if no node has enough rows a `DataError`, and a `WireError` if
    a secure sum is impossible.
    """
    schema, phases, order = Schema.read(str(deployment.task["schema"])), list[Sums](), dict[str, Any]()
    zero, members = zero_sums(schema), list(range(len(deployment.nodes)))
    limits = Limits(deployment.quorum, deployment.round_timeout, deployment.wait_limit)
    minimum, ends = threshold(len(members), limits), np.cumsum([a.size for a in zero.values()])
    wait_for_nodes(network, len(members), limits, log, sleep=sleep)

    def check_sums(sums: Sums, rows: float = math.inf) -> Sums:
        if any(values.min(initial=0) < 0 for name, values in sums.items() if name != "total"):
            raise WireError("statistics: counts or squares below 0")
        bounds = {"total": sums["count"] * LARGEST, "squares": sums["count"] * LARGEST**2}
        if any((np.abs(values) > bounds.get(name, rows)).any() for name, values in sums.items()):
            raise WireError(f"statistics: more than {rows:g} rows can have")
        return sums

    def check(raw: RawReply) -> Reply:
        count = check_count(raw.numbers, deployment.max_examples or 2**31)
        return Reply(check_sums(unpack(raw.arrays, zero), count), 0.0, count)

    secure_sum = SecureSum(network, limits, log, sleep, lambda partition: order, minimum, 2**31, {}, KIND)
    for phase in range(2):
        first = {name: values.tolist() for name, values in phases[0].items()} if phases else {}
        order = {name: identity[name] for name in ("experiment", "session")}
        order |= {"round": phase, "base": INITIAL, "checkpoints": [INITIAL], "statistics": json.dumps(first)}
        if deployment.secure_aggregation is None:
            network.begin(b"", secure_sum.order, KIND)
            all_again = replace(limits, quorum=limits.needed(len(deployment.nodes)) / len(members))
            replies = gather(network, members, check, all_again, log, sleep=sleep).replies
            sums = {name: np.sum([reply.upload[name] for reply in replies.values()], axis=0) for name in zero}
        else:
            report, total, _ = secure_sum.collect(members, (), LIMBS * int(ends[-1]), "uniform")
            replies, numbers = report.replies, decode_numbers(total.reshape(-1, LIMBS), len(report.replies))
            parts = zip(zero.items(), np.split(numbers, ends[:-1]))
            sums = check_sums({name: values.reshape(a.shape) for (name, a), values in parts})
        members = list(replies)
        phases.append(sums)
    log(f"statistics: of {len(members)} nodes with {int(sums['count'][-1])} training rows")
    prepared = prepare(schema, *phases)
    return json.dumps({name: np.asarray(values).tolist() for name, values in prepared._asdict().items()})


def build_table_task(deployment: Deployment, prepared: str, source: Source | None = None) -> Task:
    """Build the task of a node, or the server's, which knows the form of the examples but none of them."""
    options, content = dict[str, Any](deployment.task), json.loads(prepared)
    arrays = {name: np.array(content[name]) for name in ("fill", "shift", "scale", "classes")}
    preparation = Preparation(target=tuple(content["target"]), **arrays)
    schema = Schema.read(str(options["schema"]))
    entries = [str(deployment.nodes[partition]) for partition in sorted(deployment.nodes, key=int)]
    names = [entry.partition(" ")[2] or entry for entry in entries]
    classes, test = schema.target.classes, None
    y = np.zeros(1, np.int32 if classes else np.float32)
    clients = [{"x": np.zeros((1, len(schema.features)), np.float32), "y": y}] * len(names)
    if source is not None:
        clients = [{**source.train, "x": preparation.fill_in(source.train["x"])}]
        test = {**source.test, "x": preparation.fill_in(source.test["x"])} if len(source.test["y"]) else None
    name = str(options.get("model", CUSTOM.model))
    check_choice("model", name, CUSTOM.models)
    model = CUSTOM.models[name]((len(schema.features),), len(classes) or 1)
    learned = learn_table(schema, preparation, model, options.get("loss"), options.get("class_weight"))
    learned |= {"classes": classes} if classes else {}
    task = Task(
        name=TABLE, clients=FederatedData.from_clients(clients), test=test, spec=dict(options),
        description="tables at nodes", client_names=tuple(names) if source is None else None, **learned,
    )  # fmt: skip
    metrics = options.get("metrics") or default_metrics(schema)
    return with_metrics(task, metrics) if metrics else task

"""A deployment with a table at each node: the statistics of the tables, and the task that follows from them.

The app has the schema. In two phases before the first round each node sends the counts and sums of its own training
rows (`fedoptax.data.statistics`), under secure aggregation masked; the preparation of features that follows from their
sum goes with every order. A file that does not fit the schema is refused at its node, whose log says why; the server
hears that it does not fit.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
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
from fedoptax.deploy.secure import (
    LIMBS,
    Contribute,
    decode_numbers,
    encode_numbers,
    gather_sum,
    make_ask,
    threshold,
)  # fmt: skip
from fedoptax.deploy.server import RawReply, Reply, check_count
from fedoptax.deploy.wire import WireError, pack, unpack
from fedoptax.errors import DataError, RunError, UsageError, check_choice
from fedoptax.tasks.registry import CUSTOM
from fedoptax.tasks.tables import default_metrics, learn_table
from fedoptax.tasks.task import Task, with_metrics

OPTIONS = ("schema", "model", "loss", "class_weight", "metrics", "test_fraction")


def read_own(deployment: Deployment, path: Any) -> Source:
    """Read a node's own file, which its config names `data-file`, as a simulation reads the rows of this client.

    Raises:
      RunError: none is named, or it does not fit; why stands in the node's log alone.
    """
    task = deployment.task
    try:
        fraction = None if (text := task.get("test_fraction")) is None else float(text)
        schema, seed = replace(Schema.read(str(task["schema"])), client=None), int(task.get("partition_seed", 0))
        return load_file(Path(str(path)).expanduser(), schema=schema, test_fraction=fraction, seed=seed)
    except (DataError, UsageError) as error:
        print(f"data-file: {error}", file=sys.stderr, flush=True)
        raise RunError("its data-file does not fit the schema; the node's log says why") from None


def add_up_own(deployment: Deployment, source: Source, first: str) -> Sums:
    """Return a node's sums; `first` are those of all nodes in the first phase as JSON, which are none in this phase."""
    before = {name: np.array(values) for name, values in json.loads(first).items()} or None
    return add_up(Schema.read(str(deployment.task["schema"])), source.train["x"], source.train["y"], before)


def answer_statistics(deployment: Deployment, source: Source, first: str) -> RawReply:
    """Return a node's sums as a reply, see `add_up_own`."""
    return RawReply(pack(add_up_own(deployment, source, first)), {"num-examples": len(source.train["y"])})


def code_statistics(deployment: Deployment, source: Source, first: str) -> Contribute:
    """Return what a node contributes under secure aggregation: its sums, see `add_up_own`."""

    def contribute(weight: float) -> tuple[np.ndarray, dict[str, Any]]:
        sums = add_up_own(deployment, source, first).values()
        return encode_numbers(np.concatenate([values.ravel() for values in sums])).ravel(), {}

    return contribute


def gather_statistics(
    deployment: Deployment, network: Network, identity: Mapping[str, Any], log: Log, sleep: Sleep
) -> str:  # fmt: skip
    """Return the preparation of features, as JSON, that follows from the sums of all nodes.

    Raises:
      NoQuorum: too few nodes answered soundly.
      DataError: no node has enough rows.
    """
    schema, phases, offered = Schema.read(str(deployment.task["schema"])), list[Sums](), dict[int, Reply]()
    limits = Limits(deployment.quorum, deployment.round_timeout, deployment.wait_limit)
    zero, members = zero_sums(schema), list(range(len(deployment.nodes)))
    form = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in zero.items()}
    minimum, ends = threshold(len(members), limits), np.cumsum([a.size for a in zero.values()])
    wait_for_nodes(network, len(members), limits, log, sleep=sleep)

    def check_sums(sums: Sums) -> Sums:
        if any(values.min(initial=0) < 0 for name, values in sums.items() if name != "total"):
            raise WireError("statistics: counts or squares below 0")
        return sums

    def make_order(order: dict[str, Any], partition: int) -> dict[str, Any]:
        return order

    def check(raw: RawReply) -> Reply:
        return Reply(check_sums(unpack(raw.arrays, form)), 0.0, check_count(raw.numbers, 2**31))

    for phase in range(2):
        first = {name: values.tolist() for name, values in phases[0].items()} if phases else {}
        order = {name: identity[name] for name in ("experiment", "session")}
        order |= {"round": phase, "base": INITIAL, "checkpoints": [INITIAL], "statistics": json.dumps(first)}
        if deployment.secure_aggregation is None:
            network.begin(b"", partial(make_order, order), KIND)
            replies = gather(network, members, check, limits, log, sleep=sleep).replies
            sums = {name: np.sum([reply.upload[name] for reply in replies.values()], axis=0) for name in form}
        else:
            ask = make_ask(network, partial(make_order, order), limits, minimum, log, sleep, KIND)
            size = LIMBS * int(ends[-1])
            report, total, _ = gather_sum(ask, members, (), size, "uniform", minimum, 2**31, offered)
            replies, numbers = report.replies, decode_numbers(total.reshape(-1, LIMBS), len(report.replies))
            parts = zip(zero.items(), np.split(numbers, ends[:-1]))
            sums = check_sums({name: values.reshape(a.shape) for (name, a), values in parts})
        members = list(replies)
        phases.append(sums)
    log(f"statistics: of {len(members)} nodes with {int(phases[0]['count'][-1])} training rows")
    prepared = prepare(schema, *phases)
    return json.dumps({name: np.asarray(values).tolist() for name, values in prepared._asdict().items()})


def build_table_task(deployment: Deployment, prepared: str, source: Source | None = None) -> Task:
    """Build the task of a node, or the server's, which knows the form of the examples but none of them."""
    options, content = deployment.task, json.loads(prepared)
    arrays = {name: np.array(content[name]) for name in ("fill", "shift", "scale", "classes")}
    preparation = Preparation(target=tuple(content["target"]), **arrays)
    schema = Schema.read(str(options["schema"]))
    names = [entry.partition(" ")[2] or entry for entry in map(str, deployment.nodes.values())]
    classes, test = schema.target.classes, None
    y = np.zeros(1, np.int32 if classes else np.float32)
    clients = [{"x": np.zeros((1, len(schema.features)), np.float32), "y": y}] * len(names)
    if source is not None:
        clients = [{**source.train, "x": preparation.fill_in(source.train["x"])}]
        test = {**source.test, "x": preparation.fill_in(source.test["x"])} if len(source.test["y"]) else None
    name = str(options.get("model", CUSTOM.model))
    check_choice("model", name, CUSTOM.models)
    model = CUSTOM.models[name]((len(schema.features),), len(classes) or 1)
    loss, weights = (None if (text := options.get(name)) is None else str(text) for name in ("loss", "class_weight"))
    learned = learn_table(schema, preparation, model, loss, weights) | ({"classes": classes} if classes else {})
    task = Task(
        name=TABLE, clients=FederatedData.from_clients(clients), test=test, spec=dict(options),
        description="tables at nodes", client_names=tuple(names) if source is None else None, **learned,
    )  # fmt: skip
    metrics = options.get("metrics") or default_metrics(schema)
    return with_metrics(task, str(metrics)) if metrics else task

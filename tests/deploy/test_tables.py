"""Nodes with nothing but a table each give what the simulation of the concatenated tables gives."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import fedoptax as fx
from command_line import fedoptax, parse
from federations import InMemory
from fedoptax._files import read_arrays, read_json
from fedoptax.cli.deploy import make_deployment
from fedoptax.cli.main import read_form
from fedoptax.cli.options import InitForm
from fedoptax.data.describe import infer_file
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.evaluation import compile_test_sums
from fedoptax.deploy.rounds import Arrived, NoQuorum
from fedoptax.deploy.secure import answer
from fedoptax.deploy.server import RawReply
from fedoptax.deploy.tables import add_up_own, build_table_task, encode_sums, gather_statistics, read_own
from fedoptax.deploy.wire import pack
from fedoptax.errors import RunError
from files import patients
from refusals import refused

IDENTITY = {"experiment": "0" * 32, "session": 1}
TRAINING = "--model linear --algorithm fedavg --set client_lr=0.1 --set server_lr=1 --rounds 3 --batch-size 20"


class Nodes(InMemory):
    """Nodes that answer requests for statistics at once."""

    def __init__(self, deployment, files):
        self._deployment, self._files, self._due = deployment, files, []
        self._memory, self.names = [{} for _ in files], {i: f"node-{i}" for i in range(len(files))}

    def connected(self):
        return set(self.names)

    def send(self, partitions):
        for i in partitions:
            asked = self._order(i)
            try:
                source, first = read_own(self._deployment, self._files[i]), asked["statistics"]
                sent, numbers = sums = add_up_own(self._deployment, source, first)
                if self._deployment.secure_aggregation is not None:
                    examples, contribute = len(source.train["y"]), lambda weight, sums=sums: encode_sums(weight, *sums)
                    sent, numbers = answer(i, 3, b"", asked, self._memory[i], examples, contribute)
                reply = RawReply(pack(sent), numbers)
            except RunError as error:
                reply = RawReply(b"", {}, str(error))
            self._due.append(Arrived(i, reply))
        return partitions


@pytest.fixture
def tables(tmp_path):
    """The whole table, the schema, and a file for each hospital."""
    frame = patients()
    whole, schema = tmp_path / "all.csv", tmp_path / "schema.toml"
    frame.to_csv(whole, index=False)
    description = replace(infer_file(whole, "outcome", "hospital").without(["id", "cost"]), min_count=5)
    schema.write_text(description.to_toml())
    files = []
    for name, rows in frame.groupby("hospital"):
        files.append(tmp_path / f"{name}.csv")
        rows.drop(columns="hospital").to_csv(files[-1], index=False)
    return whole, schema, files


def deployment_of(schema, count, **options):
    task = {"name": "table", "schema": schema.read_text(), "model": "linear"}
    nodes = {str(i): f"key{i} node-{i}" for i in range(count)}
    return Deployment(task=task, algorithm="fedavg", nodes=nodes, cohort_size=count, **options)


def test_nodes_hold_what_the_clients_of_the_simulation_hold(tables):
    whole, schema, files = tables
    made, lines = deployment_of(schema, len(files)), []
    prepared = gather_statistics(made, Nodes(made, files), IDENTITY, lines.append, lambda seconds: None)
    task = fx.load_task(f"file:{whole}", schema=str(schema), model="linear")
    server, key = build_table_task(made, prepared), jax.random.key(0)
    params = jax.jit(task.init)(key)
    assert server.client_names == ("node-0", "node-1", "node-2", "node-3")
    assert server.inputs["schema"] == task.inputs["schema"] and server.classes == task.classes
    np.testing.assert_allclose(server.inputs["fill"], task.inputs["fill"], rtol=1e-5)
    for i, file in enumerate(files):
        node = build_table_task(made, prepared, read_own(made, file))
        for field, rows in task.clients.client(i).items():
            np.testing.assert_allclose(node.clients.client(0)[field], rows, rtol=1e-6)
        np.testing.assert_allclose(node.test["x"], task.test["x"][task.test_owners == i], rtol=1e-6)
        owners = np.zeros(len(node.test["y"]), int)  # as in a task function that reads the node's file
        own = replace(task, clients=node.clients, client_names=None, test=node.test, test_owners=owners)
        assert compile_test_sums(own, i)[1] == len(owners)
        batch = node.clients.client(0)
        losses = (jax.jit(one.loss)(params, batch, key) for one in (node, task))
        np.testing.assert_allclose(*losses, rtol=1e-5)


def test_under_secure_aggregation_the_sums_are_the_same(tables):
    _, schema, files = tables
    prepared = [
        gather_statistics(made, Nodes(made, files), IDENTITY, lambda line: None, lambda seconds: None)
        for made in (deployment_of(schema, 4), deployment_of(schema, 4, secure_aggregation=8.0))
    ]
    plain, masked = map(json.loads, prepared)
    assert plain.keys() == masked.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(masked[name], values, rtol=1e-12)


@pytest.mark.parametrize("secure", [None, 8.0])
def test_a_file_that_does_not_fit_is_refused_at_its_node_and_the_others_go_on(tables, capsys, secure):
    _, schema, files = tables
    made, lines = deployment_of(schema, len(files), secure_aggregation=secure), []
    pd.read_csv(files[1]).drop(columns="dose").to_csv(files[1], index=False)
    gather_statistics(made, Nodes(made, files), IDENTITY, lines.append, lambda seconds: None)
    told = "\n".join(lines)
    assert "partition 1 (node node-1)" in told and "does not fit the schema" in told and "dose" not in told
    assert "statistics: of 3 nodes" in told
    assert "lacks 'dose'" in capsys.readouterr().err


def test_sums_that_no_rows_can_have_are_left_out(tables, monkeypatch):
    _, schema, files = tables
    made, lines, add_up = deployment_of(schema, len(files)), [], add_up_own

    def lie(deployment, source, first):
        sums, numbers = add_up(deployment, source, first)
        return {**sums, "total": sums["total"] + 1e30 * (len(source.train["y"]) == 2)}, numbers  # without values

    monkeypatch.setitem(Nodes.send.__globals__, "add_up_own", lie)
    gather_statistics(made, Nodes(made, files), IDENTITY, lines.append, lambda seconds: None)
    assert "partition 3 (node node-3): reply left out: statistics: more than 2 rows can have" in lines[0]


def test_the_second_phase_of_the_statistics_needs_as_many_nodes_as_the_first(tables, monkeypatch):
    _, schema, files = tables
    made, add_up, sizes = deployment_of(schema, len(files), quorum=0.5), add_up_own, []

    def fail(deployment, source, first):
        sizes.append(len(source.train["y"]))
        if len(sizes) in (1, 2, 6):  # two of four nodes answer, then one of the two
            raise RunError("down")
        return add_up(deployment, source, first)

    monkeypatch.setitem(Nodes.send.__globals__, "add_up_own", fail)
    with pytest.raises(NoQuorum, match="2 are needed"):
        gather_statistics(made, Nodes(made, files), IDENTITY, lambda line: None, lambda seconds: None)


def test_an_app_with_a_schema_is_written_and_what_it_cannot_have_is_refused(tables):
    def make(more):
        given = parse(f"fedoptax deploy init app --schema {tables[1]} {TRAINING} {more}").params
        return make_deployment(read_form(InitForm, given), 4)

    assert make("").task["schema"].startswith("client") and make("").eval_fraction == 1
    assert make("--eval-fraction 0").eval_fraction == 0 == make("--asynchronous 4 --cohort-size 2").eval_fraction
    app = tables[1].with_name("federation")
    assert fedoptax(*shlex.split(f"deploy init {app} --schema {tables[1]} {TRAINING}")) == 0
    refused(lambda: make("--validation-fraction 0.2"), "validation_fraction")
    refused(lambda: make("--task-set test_fraction=7"), "test_fraction")
    for wrong in ("--task-set loss=foo", "--cohort-size 9"):
        assert fedoptax(*shlex.split(f"deploy init {app}2 --schema {tables[1]} {TRAINING} {wrong}")) == 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", ["--cohort-size 4", "--secure-aggregation 8 --cohort-size 3"])
def test_four_nodes_give_the_parameters_and_metrics_of_the_simulation(tables, tmp_path, monkeypatch, more):
    whole, schema, files = tables
    monkeypatch.chdir(tmp_path)
    given = " ".join(f"--data-file {file}" for file in files)
    command = f"deploy local --schema {schema} {given} {TRAINING} {more} --out runs/network"
    assert fedoptax(*shlex.split(command)) == 0
    task = f"--task file:{whole} --schema {schema}"
    assert fedoptax(*shlex.split(f"run {task} {TRAINING} {more} --out runs/simulated")) == 0
    assert read_json(Path("runs/network/config.json"))["partition"] == {}
    there, here = (read_arrays(Path("runs", name, "params.npz")) for name in ("network", "simulated"))
    for name in here:
        np.testing.assert_allclose(there[name], here[name], atol=1e-5)
    final = [read_json(Path("runs", name, "summary.json"))["final"] for name in ("network", "simulated")]
    assert final[0]["nodes_accuracy"] == pytest.approx(final[1]["test_accuracy"], abs=1e-6)
    assert final[0]["nodes_auroc"] == pytest.approx(final[1]["test_auroc"], abs=final[0]["nodes_auroc_bound"] + 1e-6)

"""What `deploy init` writes: settings that read back unchanged, keys that nobody else may read; wrong settings."""

import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flwr.common.config import flatten_dict as flat  # as Flower hands a table to the app

from federations import deployment
from fedoptax.cli.options import RunForm
from fedoptax.deploy.app import read_app, write_app
from fedoptax.deploy.config import Deployment, build_task, from_table, to_table
from fedoptax.deploy.keys import make_keys, write_keys
from fedoptax.engine.options import RunOptions, options_of
from fedoptax.experiments.presets import find_preset
from refusals import refusals, refused


def test_a_deployment_comes_back_from_its_table():
    for given in (
        deployment("fafed", hyperparameters={"lr": 1, "rule": "adam", "x": True}, quorum=1, resume=True),
        deployment("own.module:make", hyperparameters={"client_lr": 0.5}),
        deployment(local_steps=3, weighting="uniform", aggregate="trimmed_mean:0.2", track="tensorboard"),
        deployment(cohort_size=3, secure_aggregation=8.0),
    ):
        assert from_table(flat(to_table(given))) == given
    refused(lambda: to_table(deployment(hyperparameters={"client_lr": [0.1]})), "hyperparameters")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rounds": "5"}, "rounds"), ({"rounds": True}, "rounds"), ({"rounds.x": 1}, "rounds"),
    ({"quorum": 0.0}, "quorum"), ({"quorum": 1.5}, "quorum"), ({"colour": 1}, "colour"), ({"mesh": 2}, "mesh"),
    ({"task": "digits"}, "task"), ({"round-timeout": -1.0}, "round_timeout"),
    ({"round-timeout": float("nan")}, "round_timeout"), ({"weighting": "a"}, "weighting"),
    ({"max-examples": -1}, "max_examples"), ({"resume": 1}, "resume"),
    ({"nodes.x": "SHA256:a"}, "nodes"), ({"nodes.0": "SHA256:a b", "nodes.1": "SHA256:a c"}, "nodes"),
    ({"checkpoint-every": -1}, "checkpoint_every"), ({"out": 1}, "out"), ({"track": "mlflow,foo"}, "track"),
]  # fmt: skip
test_a_wrong_setting_is_refused_by_name = refusals(
    (lambda wrong=wrong: from_table(flat(to_table(deployment())) | wrong), name) for wrong, name in WRONG
)


def test_another_algorithm_in_the_table_does_not_take_the_rates_of_the_first():
    table = flat(to_table(deployment("fedadam"))) | {"algorithm": "fedavg"}
    assert from_table(table).hyperparameters == find_preset("digits", "fedavg")[0] != {}
    own = from_table(table | {"hyperparameters.fedavg.client_lr": 0.5})
    assert own.hyperparameters == {"client_lr": 0.5} and own.build_algorithm()
    refused(lambda: from_table(table | {"hyperparameters.client_lr": 0.5}), "must be in a table")


PRIVACY = "clip=1.0,noise_multiplier=2.0,delta=1e-4"


@pytest.mark.parametrize("text", [PRIVACY, f"{PRIVACY},seed=none"])
def test_nodes_never_learn_the_seed_of_the_noise(text):
    given = from_table(flat(to_table(deployment("fedadam", privacy=text))))
    assert given.privacy == f"{PRIVACY},seed=none"
    server, node = (given.build_algorithm().init({"w": np.zeros(2, np.float32)}) for _ in range(2))
    assert not np.array_equal(jax.random.key_data(server.key), jax.random.key_data(node.key))
    refused(lambda: deployment("fedadam", privacy=f"{PRIVACY},seed=0"), "seed")


def test_a_task_can_be_a_function_of_the_app(tmp_path, monkeypatch):
    (tmp_path / "own_deployed_task.py").write_text(
        "from fedoptax import load_task\n"
        "def make(partition):\n    return load_task('digits', num_clients=3)\n"
        "def wrong(partition):\n    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = build_task(Deployment(task={"name": "own_deployed_task:make"}, algorithm="fedavg"), 1)
    assert made.clients.num_clients == 3
    for name in ("own_deployed_task:other", "own_deployed_task:wrong", "nowhere:make", ".:make"):
        refused(lambda name=name: build_task(Deployment(task={"name": name}, algorithm="fedavg")), "task")


def test_the_app_folder_reads_back_and_holds_no_secret(tmp_path):
    given = deployment("scaffold", out='runs/a "quoted" \\ name\n \x7f \x85 é \U0001f680')
    write_app(tmp_path / "app", given)
    write_keys(tmp_path / "keys", make_keys(2))
    assert read_app(tmp_path / "app") == given
    text = "".join(path.read_text() for path in (tmp_path / "app").rglob("*") if path.is_file())
    assert "PRIVATE" not in text and str(tmp_path) not in text
    table = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert table["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedoptax_app.server_app:app"
    refused(lambda: write_app(tmp_path / "app", given), "folder")
    (tmp_path / "app" / "pyproject.toml").write_text("[tool")
    refused(lambda: read_app(tmp_path / "app"), "pyproject")


def test_private_keys_have_mode_600_and_certificates_name_their_hosts(tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    before = os.umask(0)
    try:
        write_keys(tmp_path / "keys", make_keys(2, ("superlink.example.org", "192.0.2.7")))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()}
    private = {name for name, mode in modes.items() if mode == 0o600}
    assert private == {"server.key", "signing.key", "node-0", "node-1"}
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    contents = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    assert {name for name, content in contents.items() if b"PRIVATE KEY" in content} == private
    ca, server = (x509.load_pem_x509_certificate(contents[name]) for name in ("ca.crt", "server.crt"))
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "127.0.0.1", "::1"]
    key = load_ssh_private_key(contents["node-0"], None)
    assert key.public_key() == load_ssh_public_key(contents["node-0.pub"])


def test_options_have_the_same_names_in_simulation_and_deployment_apart_from_those_that_the_page_lists():
    page = Path("docs/deploy.md").read_text(encoding="utf-8")
    table = page.partition("| `fedoptax run` | the app | why |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    different = [{name for row in rows for name in re.findall("`-*([^`]+)`", row[column])} for column in (0, 1)]
    names = {f.name.rstrip("_") for f in fields(RunForm)} | options_of(RunOptions).keys()
    command = {name.replace("_", "-") for name in names - {"run", "faults", "trackers"}} | {"fault", "track"}
    app = set(to_table(deployment()))
    assert (command - app, app - command) == (different[0], different[1] - command)

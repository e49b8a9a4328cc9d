"""A node obeys the server alone: orders forged, changed, sent to another or again change nothing. No processes."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from flwr.app import ConfigRecord, Context, Message, RecordDict

import fedoptax as fx
from federations import deployment, keys_of, task_of
from fedoptax.deploy.app import write_app
from fedoptax.deploy.client import StateFolder
from fedoptax.deploy.config import Deployment, to_table
from fedoptax.deploy.flower import ARRAYS, METRICS, ORDER, SECURE, client_app, to_record
from fedoptax.deploy.keys import make_keys, write_keys
from fedoptax.deploy.orders import Signer, digest_of
from fedoptax.deploy.server import forms
from fedoptax.deploy.wire import WireError, pack
from fedoptax.errors import UsageError

pytestmark = pytest.mark.usefixtures("inside_a_flower_run")
EXPERIMENT, RUN, NODE = "0123456789abcdef" * 2, 2**64 - 1, 2**63 + 5
PARAMS = {"kernel": jax.ShapeDtypeStruct((4, 3), np.float32)}
MADE = {name: deployment(name).build_algorithm() for name in fx.ALGORITHMS}
STATEFUL = [name for name, made in MADE.items() if jax.tree.leaves(jax.eval_shape(made.init_client, PARAMS))]


class Server:
    """A server's key, a node with its folder, and messages between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.app = folder, client_app()
        for name in ("keys", "others"):
            write_keys(folder / name, make_keys(0))
        self.key = keys_of(folder / "keys")["server_key"]
        self.signer = Signer(folder / "keys" / "signing.key", self.key, RUN)
        self.records = RecordDict()

    def order(self, round: int = 1, session: int = 1, **more: Any) -> dict[str, Any]:
        return {"experiment": EXPERIMENT, "round": round, "base": 0, "checkpoints": [0], "session": session, **more}

    def message(self, given: Deployment, order: dict[str, Any], kind: str = "train", scale: float = 1.0) -> Message:
        """What the server sends: the arrays of an algorithm that has just begun, and a signed order."""
        task, algorithm = task_of(), given.build_algorithm()
        params = task.init(jax.random.key(0))
        sent = algorithm.broadcast(algorithm.init(params)) if kind == "train" else params
        arrays = pack(jax.tree.map(lambda a: (scale * np.asarray(a)).astype(a.dtype), sent))
        signed = self.signer.sign(order, kind, NODE, digest_of(arrays))
        return make_message(to_record(arrays), signed, kind)

    def deliver(self, given: Deployment, message: Message, run: int = RUN) -> Message:
        """Have the node's ClientApp answer a message."""
        settings = flatten_dict(to_table(replace(given, server_key=self.key)), sep=".")
        place = {"partition-id": 1, "state-dir": str(self.folder / "state")}
        return self.app(message, Context(run, NODE, place, self.records, settings))

    def contents(self) -> dict[str, bytes]:
        """The node's files, and what it keeps of a round of secure aggregation."""
        files = (self.folder / "state").rglob("*")
        kept = {SECURE: repr(dict(self.records.config_records.get(SECURE, {}))).encode()}
        return {str(path): path.read_bytes() for path in files if path.is_file()} | kept


def make_message(arrays: Any, order: dict[str, Any], kind: str) -> Message:
    message = Message(RecordDict({ARRAYS: arrays, ORDER: ConfigRecord(order)}), NODE, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return message


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path)


def forgeries(server: Server, given: Deployment, order: dict[str, Any], kind: str) -> dict[str, Message]:
    """Messages as another node may send them: it has seen signed ones of its own, and the honest one."""
    honest = server.message(given, order, kind)
    arrays, signed = honest.content[ARRAYS], dict(honest.content[ORDER])
    stranger = Signer(server.folder / "others" / "signing.key", keys_of(server.folder / "others")["server_key"], RUN)
    digest = digest_of(arrays[ARRAYS].data)
    other_kind = "evaluate" if kind == "train" else "train"
    orders = {
        "not signed": {name: value for name, value in signed.items() if name != "signature"},
        "no bytes": signed | {"signature": "x"},
        "signed by another": stranger.sign(order, kind, NODE, digest),
        "for another node": server.signer.sign(order, kind, NODE + 1, digest),
        "for another kind": server.signer.sign(order, other_kind, NODE, digest),
        **{f"another {name}": signed | {name: signed[name] + 1} for name in ("round", "base", "session", "number")},
        "another experiment": signed | {"experiment": EXPERIMENT[::-1]},
        "another stage": signed | {"stage": "other"},
        "more checkpoints": signed | {"checkpoints": []},
    }
    made = {name: make_message(arrays, order, kind) for name, order in orders.items()}
    scaled = server.message(given, order, kind, 30.0).content[ARRAYS]
    return made | {"other arrays": make_message(scaled, signed, kind)}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name == "scaffold" else pytest.mark.long) for name in STATEFUL]
)
def test_a_forged_order_changes_no_state(server, algorithm, kind):
    given = deployment(algorithm)
    form, _ = forms(task_of(), given.build_algorithm())
    folder = StateFolder(server.folder / "state", EXPERIMENT, 1)
    for round in (0, 1):
        folder.write(round, jax.tree.map(lambda s, r=round: np.full(s.shape, r, s.dtype), form))
    before = server.contents()
    for name, message in forgeries(server, given, server.order(), kind).items():
        with pytest.raises(WireError, match="order: "):
            server.deliver(given, message)
        assert server.contents() == before, name
    with pytest.raises(WireError, match="order: not signed"):
        server.deliver(given, server.message(given, server.order(), kind), run=RUN - 1)
    assert server.contents() == before
    assert server.deliver(given, server.message(given, server.order(), kind)).has_content()


def test_old_orders_are_refused_and_a_restarted_server_is_obeyed_from_where_it_goes_on(server):
    given = deployment("scaffold")
    first, _, second = (server.message(given, server.order(round)) for round in (0, 0, 1))
    assert server.deliver(given, first).has_content() and server.deliver(given, second).has_content()
    before = server.contents()
    with pytest.raises(WireError, match="order: number"):
        server.deliver(given, first)
    assert server.deliver(given, second).has_content(), "its worker may have been killed"
    assert server.contents() == before
    server.signer = Signer(server.folder / "keys" / "signing.key", server.key, RUN)  # its numbers begin again
    with pytest.raises(WireError, match="order: number"):
        server.deliver(given, server.message(given, server.order(2)))
    again = server.message(given, server.order(1, session=2))
    assert server.deliver(given, again).has_content()
    with pytest.raises(WireError, match="order: number"):
        server.deliver(given, second)


def test_the_partition_is_told_to_the_server_alone(server):
    given = deployment("fedavg")
    asked = server.signer.sign({}, "query", NODE, digest_of(b""))
    assert server.deliver(given, make_message(to_record(b""), asked, "query")).content[METRICS]["partition-id"] == 1
    with pytest.raises(WireError, match="order: not signed"):
        server.deliver(given, make_message(to_record(b""), {}, "query"))


def test_forged_requests_of_secure_aggregation_change_nothing_and_a_second_for_keys_keeps_the_first(server):
    given = deployment("scaffold", cohort_size=3, secure_aggregation=8.0)
    asked = server.order(0, stage="keys", members=[0, 1, 2])
    first = server.deliver(given, server.message(given, asked))
    before = server.contents()
    for stage in ("keys", "shares", "upload", "unmask"):
        for message in forgeries(server, given, asked | {"stage": stage}, "train").values():
            with pytest.raises(WireError, match="order: "):
                server.deliver(given, message)
    assert server.contents() == before
    again = server.deliver(given, server.message(given, asked))
    assert again.content[ARRAYS][ARRAYS].data == first.content[ARRAYS][ARRAYS].data
    for wrong, text in (
        ({"stage": "shares"}, "shares without mask-keys, encryption-keys"),
        ({"stage": "unmask"}, "unmask of round 0, which is not due"),
        ({"stage": "other"}, "stage: other instead of keys"),
    ):
        with pytest.raises(WireError, match=text):
            server.deliver(given, server.message(given, asked | wrong))


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")
def test_the_private_key_is_not_in_what_nodes_get_and_must_fit_the_public_one(server):
    from flwr.cli.build import build_fab_from_disk

    write_app(server.folder / "app", replace(deployment(), server_key=server.key), "federation")
    write_keys(server.folder / "app" / "keys", make_keys(1))  # in the wrong place
    bundle = build_fab_from_disk(server.folder / "app")
    assert server.key in read_all(bundle) and "PRIVATE" not in read_all(bundle)
    for path, public in (("nowhere", server.key), ("others/signing.key", server.key), ("keys/signing.key", "x")):
        with pytest.raises(UsageError, match="key must"):
            Signer(server.folder / path, public, RUN)


def read_all(bundle: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(bundle)) as files:
        return "".join(files.read(name).decode() for name in files.namelist())

"""The ClientApp of `network_attacks.py`: Flower's and fedoptax's own, but for one node, which tells a lie per round.

Or it sends orders in the server's name to partition 0: it has its own key, and knows the ids of all.
"""

import json
import math
import re
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedoptax.deploy import flower
from fedoptax.deploy.flower import ARRAYS, METRICS, ORDER
from fedoptax.deploy.wire import ALIGNMENT

HOSTILE = 2  # its partition
ANSWERED = "reply to message"
VICTIM, SERVER = 0, 1  # a partition, and the id under which Flower's server sends
FACTOR = 30  # of the forged model to the true one
MEANWHILE = 8.0  # seconds in which the victim answers the server, or obeys
JUST_BELOW = 9.99  # `upload-bound` is 10 times a median norm of at least 1


def client_app(lies: Sequence[str], claim: int = HOSTILE) -> ClientApp:
    """Return the app; partition 2 tells `lies`, one per round ("" is an honest reply), and claims to be `claim`."""
    honest, app = flower.client_app(), ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] != HOSTILE:
            return honest(message, context)
        return flower.make_reply(message, (), {"partition-id": claim})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if context.node_config["partition-id"] == HOSTILE:
            order, folder = message.content[ORDER], Path(str(context.node_config["state-dir"]))
            lie = lies[int(order["round"])]
            if lie.startswith("forged ") and order.get("stage", "shares") == "shares":
                time.sleep(MEANWHILE)  # the victim has done what the server asked
                forge(lie.removeprefix("forged "), message, context, folder.parents[2])
                time.sleep(MEANWHILE)  # and has it undone before the server asks again
            if "stage" not in order and not lie.startswith("forged "):
                tell(lie, reply, folder.with_name("last-reply.npz"))
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return honest(message, context)

    return app


def forge(kind: str, message: Message, context: Context, work: Path) -> None:
    """Send the victim the server's order to this node, changed."""
    order = dict(message.content[ORDER])
    arrays = {name: FACTOR * array for name, array in read(message).items()}
    if kind == "keys":
        order["stage"] = "keys"
    victim = int(re.findall(r"SuperNode ID: (\d+)", (work / "nodes" / str(VICTIM) / "log.txt").read_text())[-1])
    content = RecordDict({ARRAYS: flower.to_record(write(arrays)), ORDER: ConfigRecord(order)})
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = context.run_id, context.node_id, 1
    forged = Message(content, victim, "evaluate" if kind == "evaluation" else "train")
    forged.metadata.__dict__.update(_src_node_id=SERVER, _run_id=context.run_id)
    forged.metadata.__dict__["_message_id"] = forged.object_id
    objects, tree = get_all_nested_objects(forged), get_object_tree(forged)
    address = tomllib.loads((work / "flower" / "config.toml").read_text())["superlink"]["local"]["address"]
    key, ca = load_ssh_private_key((work / "keys" / f"node-{HOSTILE}").read_bytes(), None), work / "keys" / "ca.crt"
    identity = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    node, run = Node(node_id=context.node_id), context.run_id
    with FleetHttpClient.from_server_address(address, False, str(ca), interceptors=identity) as client:
        bare = message_to_proto(Message(metadata=forged.metadata, content=RecordDict()))
        request = PushMessagesRequest(
            node=node, messages_list=[bare], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        pushed = client.PushMessages(request)
        for one in pushed.objects_to_push:
            given = {"object_id": one, "object_content": objects[one].deflate(), "session_id": pushed.session_id}
            client.PushObject(PushObjectRequest(node=node, run_id=run, **given))


def tell(lie: str, reply: Message, memory: Path) -> None:
    """Change a reply; `memory` is the file with the one before."""
    arrays, numbers = read(reply), reply.content[METRICS]
    last = dict(np.load(memory)) if memory.exists() else {}
    np.savez(memory, **arrays, **{ANSWERED: reply.metadata.reply_to_message_id})
    values = {name: value for name, value in arrays.items() if np.issubdtype(value.dtype, np.floating)}
    name, like = next(iter(values.items()))
    factors = {"times 1e8": 1e8, "sign flip": -1.0}
    if lie == "just below":
        factors[lie] = JUST_BELOW / math.hypot(*(np.linalg.norm(value.astype(np.float64)) for value in values.values()))
    if lie in factors:
        for key, value in values.items():
            arrays[key] = (factors[lie] * value).astype(value.dtype)
    elif lie == "1e30":
        for key, value in values.items():
            arrays[key] = np.full_like(value, 1e30)
    elif lie == "NaN":
        arrays[name] = np.full_like(like, np.nan)
    elif lie == "shape":
        arrays[name] = like.reshape(1, -1)
    elif lie.startswith("loss "):
        numbers["train-loss"] = float(lie.removeprefix("loss "))
    elif lie == "last upload" and last:
        arrays = {key: last[key] for key in arrays}
    elif lie == "last reply" and last:
        reply.metadata.__dict__["_reply_to_message_id"] = str(last[ANSWERED])
    packed = write(arrays)
    if lie == "declared":
        packed = packed.replace(json.dumps(like.shape).encode(), b"[1000000, 1000000]", 1)
    elif lie == "cut":
        packed = packed[: len(packed) // 2]
    reply.content[ARRAYS] = flower.to_record(packed)


def read(message: Message) -> dict[str, np.ndarray]:
    """Return the arrays of a message by name, see `fedoptax.deploy.wire`."""
    line, _, rest = message.content[ARRAYS][ARRAYS].data.partition(b"\n")
    arrays, place = {}, 0
    for name, (dtype, shape) in json.loads(line).items():
        arrays[name] = np.frombuffer(rest, dtype, math.prod(shape), place).reshape(shape)
        place += arrays[name].nbytes
    return arrays


def write(arrays: dict[str, np.ndarray]) -> bytes:
    """Return arrays by name as a message."""
    line = json.dumps({name: (array.dtype.name, array.shape) for name, array in arrays.items()})
    line += " " * (-(len(line) + 1) % ALIGNMENT) + "\n"
    return line.encode() + b"".join(array.tobytes() for array in arrays.values())

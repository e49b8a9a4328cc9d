"""The ClientApp of `network_attacks.py`: Flower's and fedoptax's own, but for one node, which tells a lie per round."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flwr.app import Array, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedoptax.deploy import flower
from fedoptax.deploy.flower import ARRAYS, HELLO, METRICS, ORDER

HOSTILE = 2  # its partition
ANSWERED = "reply to message"
JUST_BELOW = 999.0  # `upload-bound` is 1000 times a median norm of at least 1


def client_app(lies: Sequence[str], claim: int = HOSTILE) -> ClientApp:
    """Return the app; partition 2 tells `lies`, one per round ("" is an honest reply), and claims to be `claim`."""
    honest, app = flower.client_app(), ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] != HOSTILE:
            return honest(message, context)
        return Message(RecordDict({HELLO: MetricRecord({"partition-id": claim})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if context.node_config["partition-id"] == HOSTILE:
            folder = Path(str(context.node_config["state-dir"]))
            tell(lies[int(message.content[ORDER]["round"])], reply, folder.with_name("last-reply.npz"))
        return reply

    return app


def tell(lie: str, reply: Message, memory: Path) -> None:
    """Change a reply; `memory` is the file with the one before."""
    arrays, numbers = reply.content[ARRAYS], reply.content[METRICS]
    last = dict(np.load(memory)) if memory.exists() else {}
    values = {name: array.numpy() for name, array in arrays.items()}
    np.savez(memory, **values, **{ANSWERED: reply.metadata.reply_to_message_id})
    values = {name: value for name, value in values.items() if np.issubdtype(value.dtype, np.floating)}
    name, like = next(iter(values.items()))
    factors = {"times 1e8": 1e8, "sign flip": -1.0}
    if lie == "just below":
        factors[lie] = JUST_BELOW / math.hypot(*(np.linalg.norm(value.astype(np.float64)) for value in values.values()))
    if lie in factors:
        for key, value in values.items():
            arrays[key] = Array((factors[lie] * value).astype(value.dtype))
    elif lie == "1e30":
        for key, value in values.items():
            arrays[key] = Array(np.full_like(value, 1e30))
    elif lie == "NaN":
        arrays[name] = Array(np.full_like(like, np.nan))
    elif lie == "shape":
        arrays[name] = Array(like.reshape(1, -1))
    elif lie == "declared":
        arrays[name] = Array("float32", (10**9,), "numpy.ndarray", arrays[name].data)
    elif lie == "header":
        header = io.BytesIO()
        form_of_4_tb = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(header, form_of_4_tb)
        arrays[name] = Array("float32", like.shape, "numpy.ndarray", header.getvalue() + like.tobytes())
    elif lie.startswith("loss "):
        numbers["train-loss"] = float(lie.removeprefix("loss "))
    elif lie == "last upload" and last:
        for key in arrays:
            arrays[key] = Array(last[key])
    elif lie == "last reply" and last:
        reply.metadata.__dict__["_reply_to_message_id"] = str(last[ANSWERED])

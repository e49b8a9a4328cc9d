"""What comes over the network, what a node keeps, and the configuration of a deployment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.target import Target, check, refusal


def _form() -> Any:
    return {"w": np.ones((2, 3), np.float32), "n": np.int32(1), "b": np.array([True, False])}


def _encode(record: dict[str, Any]) -> bytes:
    """A record as bytes that can be mutated: a line of JSON about each array, then its bytes."""
    parts = []
    for name, array in record.items():
        about = json.dumps([name, array.dtype, list(array.shape), array.stype, len(array.data)])
        parts.append(about.encode() + b"\n" + array.data)
    return b"".join(parts)


def _decode(data: bytes) -> dict[str, Any]:
    from fedoptax.deploy.wire import WireArray

    record = {}
    while b"\n" in data:
        line, _, data = data.partition(b"\n")
        try:
            name, dtype, shape, stype, size = json.loads(line)
            size = max(0, min(int(size), len(data)))
            record[name] = WireArray(dtype, tuple(shape), stype, data[:size])
            data = data[size:]
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
    return record


_WORDS = (
    b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"v\x00{'descr': '<f4', ", b"'fortran_order': True", b"'shape': (2, 3)",
    b"'|O'", b'"w"', b'"n"', b'"float32"', b'"bool"', b'"bfloat16"', b"[2, 3]", b"[]", b"[1e999]", b"\x00\x00\xc0\x7f",
    b"\x00\x00\x80\x7f", b'"numpy.ndarray"', b"\x1b[2J",
)  # fmt: skip


def _wire() -> Target:
    from fedoptax.deploy.wire import WireError, pack, unpack

    like = _form()

    def read(data: bytes, folder: Path) -> None:
        record = _decode(data)
        with refusal(WireError):
            tree = unpack(record, like)
            for name, array in tree.items():
                check(array.dtype == like[name].dtype and array.shape == like[name].shape, "of another form")
                check(bool(np.isfinite(array).all()), "not finite")

    return Target("wire", (_encode(pack(like)),), read, _WORDS)


def _reply() -> Target:
    """A whole reply through Flower's records: arrays, and a line of JSON with the numbers."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from fedoptax.deploy.flower_records import read_reply, read_request
    from fedoptax.deploy.server import check_reply
    from fedoptax.deploy.wire import WireError, pack

    like = _form()

    def numbers(data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    class Message:
        def __init__(self, content: RecordDict) -> None:
            self.content = content

        def has_error(self) -> bool:
            return False

    def read(data: bytes, folder: Path) -> None:
        line, _, rest = data.partition(b"\n")
        given = numbers(line)
        try:
            arrays = ArrayRecord({n: Array(a.dtype, a.shape, a.stype, a.data) for n, a in _decode(rest).items()})
            told = MetricRecord(given.get("metrics"))
            order = ConfigRecord(given.get("order"))
        except Exception:  # no record that Flower could carry
            return
        with refusal(WireError):
            reply = check_reply(read_reply(Message(RecordDict({"arrays": arrays, "metrics": told}))), like, 100)
            check(1 <= reply.examples <= 100 and np.isfinite(reply.loss), "numbers out of range")
        with refusal(WireError):
            from fedoptax.deploy.client import Order

            found, asked = read_request(RecordDict({"arrays": arrays, "order": order}))
            check(Order.read(asked).round >= 0 and found.keys() == dict(arrays).keys(), "an order out of range")

    head = {
        "metrics": {"num-examples": 5, "train-loss": 0.5, "state-lost": 0},
        "order": {"experiment": "0" * 32, "round": 1, "base": -1, "keep": -1},
    }
    words = (
        *_WORDS,
        b'"num-examples"',
        b'"train-loss"',
        b'"round"',
        b'"base"',
        b'"experiment"',
        b"1e400",
        b"101",
        b"2.0",
    )
    return Target("reply", (json.dumps(head).encode() + b"\n" + _encode(pack(like)),), read, words)


def _state() -> Target:
    """A client's state on the node's disk: either exactly what was kept, or none."""
    from fedoptax.deploy.memory import StateFolder, blob_size, from_blob, to_blob
    from fedoptax.deploy.wire import WireError

    like = _form()
    sound = to_blob(like)

    def read(data: bytes, folder: Path) -> None:
        states = StateFolder(folder / "states", "0" * 32, 3)
        states.write(7, data)
        (states.folder / "x.state").write_bytes(data)
        check(states.rounds() == [7], "rounds that are none")
        blob = states.read(7, blob_size(like))
        check((blob is None) == (len(data) > blob_size(like)), "a file that is too long was read")
        with refusal(WireError):
            tree = from_blob(data, like)
            check(data == sound or to_blob(tree) == data, "another state than was kept")

    return Target("client-state", (sound,), read)


def _app() -> Target:
    """The configuration of a deployment in its pyproject.toml."""
    from fedoptax.deploy.app_folder import pyproject, read_app
    from fedoptax.deploy.config import Deployment, build_task, to_table
    from fedoptax.errors import DataError, UsageError

    deployment = Deployment(
        {"name": "quadratic", "num_clients": 3}, "fedavg", {"client_lr": 0.1}, rounds=2, cohort_size=2
    )

    def read(data: bytes, folder: Path) -> None:
        (folder / "pyproject.toml").write_bytes(data)
        with refusal((UsageError, DataError)):
            found = read_app(folder)
            to_table(found)
            if ":" in found.algorithm or ":" in str(found.task["name"]):
                return  # a function of the app, which is code
            found.build_algorithm()
            if _light(found):
                build_task(found)

    def _light(found: Any) -> bool:
        size = found.task.get("num_clients", 1)
        return found.task["name"] in ("quadratic", "counterexample") and not (
            isinstance(size, int | float) and size > 99
        )

    words = (
        b"[tool.flwr.app.config]", b"[tool.flwr.app.config.task]", b"rounds = ", b"inf", b"nan", b"1979-05-27",
        b"[[a]]",
        b'"""', b"task = 1", b"algorithm = ", b"9" * 30, b'"fedadam"', b"true", b"[1, 2]", b"{a = 1}", b"quorum = ",
        b"client_lr = ", b"cosine(", b'"cosine(0.1, 3)"', b"\nout = ", b"seed = ", b"a.b = ", b"num_clients = ",
    )  # fmt: skip
    return Target("app-config", (pyproject(deployment, "app").encode(),), read, words)


TARGETS: dict[str, Callable[[], Target]] = {
    "wire": _wire,
    "reply": _reply,
    "client-state": _state,
    "app-config": _app,
}

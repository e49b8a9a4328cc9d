"""Between our named arrays and Flower's records: the only place that knows how Flower stores either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedoptax.deploy.server import RawReply
from fedoptax.deploy.wire import WireArray, WireError, shown

ARRAYS, ORDER, METRICS = "arrays", "order", "metrics"  # the records of a message


def to_record(arrays: Mapping[str, WireArray]) -> ArrayRecord:
    """Named arrays as one ArrayRecord."""
    return ArrayRecord({name: Array(a.dtype, a.shape, a.stype, a.data) for name, a in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, WireArray]:
    """An ArrayRecord as named arrays, unchecked."""
    return {name: WireArray(a.dtype, a.shape, a.stype, a.data) for name, a in record.items()}


def request(arrays: ArrayRecord, order: Mapping[str, Any]) -> RecordDict:
    """The content of a message to a client."""
    return RecordDict({ARRAYS: arrays, ORDER: ConfigRecord(dict(order))})


def read_request(content: RecordDict) -> tuple[dict[str, WireArray], dict[str, Any]]:
    """Arrays and order of a message.

    Raises:
      WireError: it has not exactly these.
    """
    arrays, order = content.get(ARRAYS), content.get(ORDER)
    if len(content) != 2 or not isinstance(arrays, ArrayRecord) or not isinstance(order, ConfigRecord):
        raise WireError(f"records {shown(list(content))} instead of '{ARRAYS}' and '{ORDER}'")
    return from_record(arrays), dict(order)


def reply_content(arrays: Mapping[str, WireArray], numbers: Mapping[str, int | float]) -> RecordDict:
    """The content of a reply."""
    return RecordDict({ARRAYS: to_record(arrays), METRICS: MetricRecord(dict(numbers))})


def read_reply(message: Message) -> RawReply:
    """A reply, unchecked; what cannot be a reply at all becomes one with an error."""
    if message.has_error():
        return RawReply({}, {}, f"error {message.error.code}: {shown(message.error.reason)}")
    try:
        content = message.content
        arrays, numbers = content.get(ARRAYS), content.get(METRICS)
        if len(content) != 2 or not isinstance(arrays, ArrayRecord) or not isinstance(numbers, MetricRecord):
            raise WireError(f"records {shown(list(content))} instead of '{ARRAYS}' and '{METRICS}'")
        return RawReply(from_record(arrays), dict(numbers))
    except Exception as error:  # foreign content in whatever form
        return RawReply({}, {"malformed": 1}, f"{type(error).__name__}: {shown(error)}")


def wire_bytes(message: Message) -> int:
    """Bytes of a message as it is serialised, without the transport's own (HTTP, TLS)."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())

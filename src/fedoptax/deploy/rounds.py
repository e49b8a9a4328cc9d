"""One round over an unreliable network: ask, wait, check, go on with a quorum; no word of Flower.

A cohort's member that is away, late or wrong is left out of the round, counted, and named in the round's report. The
round waits for everyone who is there until its time is up; while there is no quorum it asks again those who may still
answer, until the limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fedoptax.deploy.server import RawReply, Reply
from fedoptax.deploy.wire import WireArray, WireError
from fedoptax.errors import RunError

ASK_AGAIN = 5.0  # seconds between two requests of one round to a client that did not answer well
LOOK_AROUND = 5.0  # seconds between two looks at who is connected


class Arrived(NamedTuple):
    """A reply as it came: of which partition, from which node, and its bytes on the wire."""

    partition: int
    node: str
    reply: RawReply
    wire_bytes: int


class Network(Protocol):
    """What carries the messages of a deployment; the rounds need no more of it."""

    def begin(self, arrays: Mapping[str, WireArray], order: Callable[[int], Mapping[str, Any]]) -> None:
        """Makes ready a round's message, and forgets the round before; `order(partition)` goes with it to a client."""

    def connected(self) -> Mapping[int, str]:
        """The nodes that are there now, by partition."""

    def send(self, partition: int) -> int:
        """Sends the round's message to a partition's node; gives its bytes on the wire, 0 if it could not be sent."""

    def receive(self) -> list[Arrived]:
        """The replies to this round's messages that came since the last call."""

    def busy(self) -> set[int]:
        """The partitions that were sent a message of this round and have not answered it."""


class NoQuorum(RunError):
    """Too few replies to go on."""


@dataclass(frozen=True)
class Limits:
    """How long, and for how many, a round waits.

    Attributes:
      quorum: the part of the cohort whose replies are enough, in (0, 1].
      round_timeout: seconds for the replies of those who are there.
      wait_limit: seconds for a quorum altogether.
      poll: seconds between two looks for replies.
    """

    quorum: float = 0.5
    round_timeout: float = 600.0
    wait_limit: float = 600.0
    poll: float = 0.2

    def needed(self, cohort_size: int) -> int:
        """The number of replies that is enough, at least 1."""
        return max(1, math.ceil(self.quorum * cohort_size - 1e-9))


@dataclass
class RoundReport:
    """What happened in a round, by partition.

    Attributes:
      replies: the sound replies, in the cohort's order.
      faults: why somebody was left out or asked again, in order of time, as (partition, node, reason).
      bytes_down, bytes_up: bytes of the serialised messages sent, and of all replies received, sound or not.
      sent: requests sent.
    """

    replies: dict[int, Reply] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    sent: int = 0


def gather(
    network: Network,
    cohort: Sequence[int],
    check: Callable[[RawReply], Reply],
    limits: Limits,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] = time.sleep,
) -> RoundReport:
    """The sound replies of a cohort: all of those who answer in time, at least a quorum.

    Args:
      network: ready to send the round's message.
      cohort: the partitions that are asked.
      check: raises `WireError` for a reply that is not sound. Its sender is not asked again in this round.
      limits: of time and number.
      log: takes one line a fault.
      clock, sleep: of time, in seconds.

    Raises:
      NoQuorum: there is no quorum within `limits.wait_limit`, or there can be none any more.
    """
    report, needed = RoundReport(), limits.needed(len(cohort))
    wrong: set[int] = set()
    asked: dict[int, float] = {}
    begun = clock()

    def fault(partition: int, node: str, reason: str) -> None:
        report.faults.append((partition, node, reason))
        log(f"partition {partition} (node {node}): {reason}")

    def receive() -> None:
        for partition, node, raw, size in network.receive():
            report.bytes_up += size
            if partition not in cohort or partition in report.replies:
                continue
            try:
                report.replies[partition] = check(raw)
            except WireError as error:
                if raw.error is None:
                    wrong.add(partition)
                fault(partition, node, f"reply left out: {error}")

    looked, connected = -math.inf, dict[int, str]()
    while True:
        now = clock()
        if now - looked >= LOOK_AROUND:
            looked, connected = now, dict(network.connected())
        open_ = [i for i in cohort if i not in report.replies and i not in wrong]
        short = len(report.replies) < needed
        for i in open_:
            since = now - asked.get(i, -math.inf)
            lost = since >= limits.round_timeout  # a node that died with its message answers only a new one
            again = short and since >= ASK_AGAIN and (i not in network.busy() or lost)
            if i in connected and (i not in asked or again):
                if size := network.send(i):
                    report.bytes_down, report.sent = report.bytes_down + size, report.sent + 1
                asked[i] = now
        receive()
        open_ = [i for i in open_ if i not in report.replies and i not in wrong]
        awaited = [i for i in open_ if i in network.busy() and i in connected]
        spent = clock() - begun
        short = len(report.replies) < needed
        if not short and (not awaited or spent >= limits.round_timeout):
            break
        if short and len(report.replies) + len(open_) < needed:
            raise NoQuorum(_no_quorum(report, cohort, needed, "and too few others can still answer"))
        if short and spent >= limits.wait_limit:
            raise NoQuorum(_no_quorum(report, cohort, needed, f"within {limits.wait_limit:.0f} s"))
        sleep(limits.poll)
    told = {i for i, _, _ in report.faults}
    for i in cohort:
        if i in report.replies:  # perhaps asked again, and the first answer came
            continue
        if i in asked and i in connected and i in network.busy():
            fault(i, connected[i], "left out: no reply in time")
        elif i not in told:
            fault(i, connected.get(i, "?"), "left out: not there")
    report.replies = {i: report.replies[i] for i in cohort if i in report.replies}
    return report


def wait_for_nodes(
    network: Network,
    num_clients: int,
    limits: Limits,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] = time.sleep,
) -> None:
    """Waits until every partition has a node, at most `limits.wait_limit`; then the rounds see to their quorum."""
    begun, told = clock(), -1
    while len(connected := network.connected()) < num_clients and clock() - begun < limits.wait_limit:
        if len(connected) != told:
            told = len(connected)
            log(f"waiting for nodes: {told} of {num_clients} are connected")
        sleep(max(limits.poll, 1.0))


def _no_quorum(report: RoundReport, cohort: Sequence[int], needed: int, when: str) -> str:
    reasons = "; ".join(f"partition {i} (node {node}): {reason}" for i, node, reason in report.faults[-3:])
    return f"no quorum: {len(report.replies)} sound replies of {len(cohort)}, {needed} are needed, {when}" + (
        f" ({reasons})" if reasons else ""
    )

"""One round over an unreliable network: ask, wait, check, go on with a quorum; nothing here knows Flower.

A member of the cohort that is away, late or wrong is left out of the round, counted, and named in the round's report.
Each is asked once per round. The round waits until its time is up for everyone who was asked; without a quorum it goes
on waiting, also for nodes that come, until the limit.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fedoptax.algorithm import Tree
from fedoptax.deploy.server import UPLOAD_BOUND, RawReply, Reply, find_outliers
from fedoptax.deploy.wire import WireArray, WireError
from fedoptax.errors import RunError

Log = Callable[[str], None]
SHOWN = 10  # partitions that one line names


class Arrived(NamedTuple):
    """A reply as it arrived: from which partition and node, and its bytes on the wire."""

    partition: int
    node: str
    reply: RawReply
    wire_bytes: int


class Network(Protocol):
    """What carries the messages of a deployment."""

    def begin(
        self, arrays: Mapping[str, WireArray], order: Callable[[int], Mapping[str, Any]], kind: str = "train"
    ) -> None:
        """Start a round with its message and forget the round before; `order(partition)` goes with the message.

        `kind` is "train" or "evaluate".
        """

    def connected(self) -> Mapping[int, str]:
        """Return the nodes that can be asked now, by partition: connected, and not silent since an earlier round."""

    def absent(self, partition: int) -> tuple[str, str]:
        """Return the node that a partition had last, "?" if none, and why it cannot be asked."""

    def send(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Send the round's message to partitions; return its bytes on the wire for each that it could be sent to."""

    def receive(self) -> list[Arrived]:
        """Return the replies to this round's messages that arrived since the last call."""


class NoQuorum(RunError):
    """Too few replies to go on."""


@dataclass(frozen=True)
class Limits:
    """How long, and for how many, a round waits.

    Attributes:
      quorum: the fraction of the cohort whose replies are enough, in (0, 1].
      round_timeout: seconds that a round waits for replies once it has a quorum.
      wait_limit: seconds that a round waits for a quorum.
      upload_bound: how many times the median of the round an upload's norm or a loss may be; 0 is any.
      poll: seconds between two looks for replies; Flower's own strategies take 3.
    """

    quorum: float = 0.5
    round_timeout: float = 600.0
    wait_limit: float = 600.0
    upload_bound: float = UPLOAD_BOUND
    poll: float = 3.0

    def needed(self, cohort_size: int) -> int:
        """Return the number of replies that is enough, at least 1."""
        return max(1, math.ceil(self.quorum * cohort_size - 1e-9))


@dataclass
class RoundReport:
    """What happened in a round, by partition.

    Attributes:
      replies: the sound replies, in the cohort's order.
      senders: the nodes that replied.
      faults: why somebody was left out, in order of time, as (partition, node, reason).
      bytes_down, bytes_up: bytes of the messages sent, and of all replies received, sound or not.
      sent: requests sent.
      mean: under secure aggregation the mean upload and loss; the replies then have neither.
    """

    replies: dict[int, Reply] = field(default_factory=dict)
    senders: dict[int, str] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    sent: int = 0
    mean: tuple[Tree, float] | None = None

    def leave_out(self, partition: int, reason: str, log: Log, node: str | None = None) -> None:
        """Do without a member of the cohort, and without its reply if there is one; `node` is else the sender."""
        self.replies.pop(partition, None)
        self.faults.append((partition, node or self.senders[partition], reason))
        log("partition {} (node {}): {}".format(*self.faults[-1]))


def gather(
    network: Network,
    cohort: Sequence[int],
    check: Callable[[RawReply], Reply],
    limits: Limits,
    log: Log,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] = time.sleep,
) -> RoundReport:
    """Collect the sound replies of a cohort: of all who answer in time, at least a quorum.

    `network` is ready to send the round's message, `check` raises `WireError` for a reply that is not sound, and `log`
    takes one line per fault.

    Raises:
      NoQuorum: there is no quorum within `limits.wait_limit`, or there can be none any more.
    """
    report, needed = RoundReport(), limits.needed(len(cohort))
    asked, unanswered = set[int](), set(cohort)
    begun = clock()

    while True:
        nodes = network.connected()
        sent = network.send([i for i in cohort if i in nodes and i not in asked])
        asked |= sent.keys()
        report.bytes_down += sum(sent.values())
        for partition, node, raw, size in network.receive():
            report.bytes_up += size
            if partition not in unanswered:
                continue
            unanswered.remove(partition)
            report.senders[partition] = node
            try:
                report.replies[partition] = check(raw)
            except WireError as error:
                report.leave_out(partition, f"reply left out: {error}", log)
        spent = clock() - begun
        is_over = spent >= limits.round_timeout or not any(i in nodes for i in unanswered & asked)
        if is_over and len(report.replies) >= needed:
            for partition, reason in find_outliers(report.replies, limits.upload_bound).items():
                report.leave_out(partition, f"reply left out: {reason}", log)
        missing = needed - len(report.replies)
        is_hopeless = missing > len(unanswered)
        if is_hopeless or (is_over and missing <= 0) or (missing > 0 and spent >= limits.wait_limit):
            break
        sleep(limits.poll)
    late = "no reply yet" if is_hopeless else "no reply in time"
    for i in cohort:
        if i in unanswered:
            node, reason = (nodes[i], late) if i in asked and i in nodes else network.absent(i)
            report.leave_out(i, f"left out: {reason}", log, node)
    if missing > 0:
        when = "and too few others can still answer" if is_hopeless else f"within {limits.wait_limit:.0f} s"
        raise NoQuorum(_no_quorum(report, cohort, needed, when))
    report.sent = len(asked)
    report.replies = {i: report.replies[i] for i in cohort if i in report.replies}
    return report


def wait_for_nodes(
    network: Network,
    num_clients: int,
    limits: Limits,
    log: Log,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Any] = time.sleep,
) -> None:
    """Wait until every partition has a node, at most `limits.wait_limit`; then the rounds see to their quorum."""
    begun, last = clock(), -1
    while len(nodes := network.connected()) < num_clients and clock() - begun < limits.wait_limit:
        if len(nodes) != last:
            absent = [str(i) for i in range(num_clients) if i not in nodes]
            more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
            log(
                f"waiting for nodes: {len(nodes)} of {num_clients} are connected, not {', '.join(absent[:SHOWN])}{more}"
            )
        last = len(nodes)
        sleep(limits.poll)


def _no_quorum(report: RoundReport, cohort: Sequence[int], needed: int, when: str) -> str:
    reasons = "".join(f"; partition {i} (node {node}): {reason}" for i, node, reason in report.faults[-SHOWN:])
    return f"no quorum: {len(report.replies)} sound replies of {len(cohort)}, {needed} are needed, {when}{reasons}"

"""One round over an unreliable network: ask, wait, check, continue with a quorum; independent of Flower.

A member of the cohort that is absent, late or wrong is left out of the round, counted, and named in its report.
Each is asked once per round. The round waits until its time is up for everyone who was asked; without a quorum it goes
on waiting, also for nodes that come, until the limit. An asynchronous round waits for enough replies, whoever they are
from and whichever round's model they began with.
"""

import math
import random
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fedoptax.deploy.server import RawReply, Reply
from fedoptax.deploy.wire import REASON, WireError, quote
from fedoptax.errors import LONGEST, RunError

Log = Callable[[str], None]
Clock = Callable[[], float]
Sleep = Callable[[float], Any]
MakeOrder = Callable[[int], Mapping[str, Any]]
RESERVED = 150  # characters that others add to a message


class Arrived(NamedTuple):
    """A reply as it arrived, and from which partition."""

    partition: int
    reply: RawReply


class Network(Protocol):
    """The transport of a deployment's messages; `names` are those of the nodes, by partition."""

    names: Mapping[int, str]

    def begin(self, arrays: bytes, order: MakeOrder, kind: str = "train", at_work: Container[int] = ()) -> None:
        """Start a round ("train" or "evaluate") with its message; `order(partition)` goes with each that is sent.

        The rounds before are forgotten, apart from what the partitions `at_work` were asked.
        """

    def connected(self) -> Collection[int]:
        """Return the partitions that can be asked now: connected, and not at a request that was forgotten."""

    def absent(self, partition: int) -> str:
        """Return why a partition that is not connected cannot be asked."""

    def send(self, partitions: Sequence[int]) -> Collection[int]:
        """Send the round's message to partitions; return those that it could be sent to."""

    def receive(self) -> list[Arrived]:
        """Return the replies to messages that are not forgotten which arrived since the last call."""


class NoQuorum(RunError):
    """Too few replies to continue."""


@dataclass(frozen=True)
class Limits:
    """How long, and for how many, a round waits, see `NetworkOptions`; `poll` are seconds between looks for replies."""

    quorum: float = 0.5
    round_timeout: float = 600.0
    wait_limit: float = 600.0
    poll: float = 0.2

    def needed(self, cohort_size: int) -> int:
        """Return the number of replies needed, at least 1."""
        return max(1, math.ceil(self.quorum * cohort_size - 1e-9))


@dataclass
class RoundReport:
    """What happened in a round, by partition.

    The phases in `seconds` are waiting, training (that of the last node that answered), sending and evaluating.
    """

    replies: dict[int, Reply] = field(default_factory=dict)  # the valid ones, in the cohort's order
    faults: list[tuple[int, str, str]] = field(default_factory=list)  # left out: (partition, node, reason), by time
    sent: int = 0  # requests
    lost: list[int] = field(default_factory=list)  # who had lost its state
    seconds: dict[str, float] = field(default_factory=dict)  # of each phase
    mean: Reply | None = None  # under secure aggregation, of upload and loss; the replies then have neither

    def leave_out(self, partition: int, names: Mapping[int, str], reason: str, log: Log) -> None:
        """Leave out a member of the cohort, and its reply if any."""
        self.replies.pop(partition, None)
        self.faults.append((partition, names[partition], reason))
        log("partition {} (node {}): {}".format(*self.faults[-1]))


@dataclass
class Workers:
    """The clients of a run and their work in each round."""

    concurrency: int  # how many work at any time, at most
    buffer: int  # how many replies end a round
    at_work: dict[int, float] = field(default_factory=dict)  # who works, and since when
    inbox: list[Arrived] = field(default_factory=list)  # replies beyond those of the last round
    rng: random.Random = field(default_factory=random.Random)  # draws who works next


def gather(
    network: Network, cohort: Sequence[int], check: Callable[[RawReply], Reply], limits: Limits, log: Log,
    clock: Clock = time.monotonic, sleep: Sleep = time.sleep, workers: Workers | None = None,
    find_outliers: Callable[[Mapping[int, Reply]], Mapping[int, str]] = lambda replies: {},
) -> RoundReport:  # fmt: skip
    """Collect the valid replies of a cohort: of all nodes that answer in time, at least a quorum.

    `network` is ready to send the round's message, `check` raises `WireError` for an invalid reply,
    `log` takes one line per fault, and `find_outliers` returns why valid replies are too large.

    With `workers` the round is asynchronous, and `cohort` are all clients: the first `workers.buffer` replies end it,
    the others stay at work. Whoever answers, is too slow or goes away is replaced by one drawn from those that neither
    work nor answered in this round.

    Without a quorum within `limits.wait_limit` (a synchronous round's `round_timeout`, if longer), or if there can be
    none any more, it raises `NoQuorum`.
    """
    is_asynchronous, time_limit = workers is not None, limits.wait_limit if workers else limits.round_timeout
    wait_limit = max(time_limit, limits.wait_limit)
    workers = workers or Workers(len(cohort), len(cohort))
    at_work, needed = workers.at_work, limits.needed(workers.buffer)
    report, unanswered, begun, names = RoundReport(), set(cohort), clock(), network.names

    def leave_out_silent(i: int, late: str) -> None:
        reason = late if i in at_work and i in nodes else network.absent(i)
        report.leave_out(i, names, f"left out: {reason}", log)

    while True:
        nodes, spent = network.connected(), clock() - begun
        workers.inbox += network.receive()
        while workers.inbox and len(report.replies) < workers.buffer:
            partition, raw = workers.inbox.pop(0)
            if (since := at_work.pop(partition, None)) is None:
                continue
            unanswered.remove(partition)
            try:
                if raw.error is not None:
                    raise WireError(quote(raw.error, REASON))
                report.replies[partition] = check(raw)
                taken, training = min(clock() - since, clock() - begun), raw.numbers.get("train-seconds")
                if not isinstance(training, float) or not 0 <= training <= taken:
                    training = 0.0
                report.seconds = {"training": training, "sending": taken - training}
                if raw.numbers.get("state-lost") == 1:
                    report.lost.append(partition)
                    name = names[partition]
                    log(f"partition {partition} (node {name}): its state was lost, it continues from the initial one")
            except WireError as error:
                report.leave_out(partition, names, f"reply left out: {error}", log)
        if not (is_full := len(report.replies) == workers.buffer):
            for i in list(at_work) if is_asynchronous else ():
                if i not in nodes or clock() - at_work[i] >= limits.round_timeout:
                    leave_out_silent(i, "no reply in time")
                    unanswered.remove(i)
                    del at_work[i]
            idle = [i for i in cohort if i in nodes and i in unanswered and i not in at_work]
            places = workers.concurrency - len(at_work)
            sending = clock()
            sent = network.send(idle if len(idle) <= places else workers.rng.sample(idle, places))
            at_work |= dict.fromkeys(sent, sending)
            report.sent += len(sent)
        is_over = is_full or spent >= time_limit or not any(i in nodes for i in at_work)
        if is_over and len(report.replies) >= needed:
            for partition, reason in find_outliers(report.replies).items():
                report.leave_out(partition, names, f"reply left out: {reason}", log)
        missing = needed - len(report.replies)
        is_hopeless = missing > len(unanswered)
        if is_hopeless or (is_over and missing <= 0) or (missing > 0 and spent >= wait_limit):
            break
        sleep(limits.poll)
    late = "no reply yet" if is_hopeless else "no reply in time"
    for i in () if is_asynchronous else cohort:
        if i in unanswered:
            leave_out_silent(i, late)
    if missing > 0:
        when = "and too few other nodes can answer" if is_hopeless else f"within {wait_limit:.0f} s"
        text = f"no quorum: {len(report.replies)} valid replies of {workers.buffer}, {needed} are needed, {when}"
        reasons = [f"; partition {i} (node {node}): {reason}" for i, node, reason in report.faults]
        while len(text) + sum(map(len, reasons)) > LONGEST - RESERVED:  # whole reasons or none: the log has all
            reasons.pop(0)
        raise NoQuorum("".join([text, *reasons]))
    report.seconds["waiting"] = clock() - begun - sum(report.seconds.values())
    report.replies = {i: report.replies[i] for i in cohort if i in report.replies}
    return report


def wait_for_nodes(
    network: Network, count: int, limits: Limits, log: Log, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
) -> None:
    """Wait until all `count` partitions have a node, at most `limits.wait_limit`; the rounds wait for their quorum."""
    begun, last = clock(), -1
    while len(nodes := network.connected()) < count and clock() - begun < limits.wait_limit:
        if len(nodes) != last:
            absent = [str(i) for i in range(count) if i not in nodes]
            log(f"waiting for nodes: {len(nodes)} of {count} are connected, not {quote(', '.join(absent))}")
        last = len(nodes)
        sleep(limits.poll)

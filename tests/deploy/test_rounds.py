"""A round over an unreliable network: quorum, deadlines, bad replies. No processes; the clock is turned by hand."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedoptax.deploy.rounds import Arrived, Limits, NoQuorum, RoundReport, Workers, gather, wait_for_nodes
from fedoptax.deploy.server import RawReply, UploadBound, check_reply
from fedoptax.deploy.wire import pack
from fedoptax.engine.batches import LocalWork

UPLOAD = {"w": np.zeros(2, np.float32)}
LIMITS = Limits(quorum=0.5, round_timeout=60, wait_limit=300, poll=1)
Away = Callable[[float], set[int]]


def sound(value: float = 1.0, examples: Any = 10, loss: Any = 0.5) -> RawReply:
    return RawReply(pack({"w": np.full(2, value, np.float32)}), {"num-examples": examples, "train-loss": loss})


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TimedNetwork:
    """Clients that answer after some seconds, perhaps wrongly, or never (None)."""

    def __init__(self, clock: Clock, answers: Mapping[int, tuple[float, RawReply] | None], away: Away) -> None:
        self.clock, self.answers, self.away = clock, answers, away
        self.requests, self.names = list[int](), {i: f"node-{i}" for i in answers}
        self._due: list[tuple[float, int, RawReply]] = []

    def begin(self, arrays: bytes, order: Callable[[int], Mapping[str, Any]], *more: Any) -> None:
        raise AssertionError("not part of a round")

    def connected(self) -> set[int]:
        return self.answers.keys() - self.away(self.clock.now)

    def absent(self, partition: int) -> str:
        return "not connected"

    def send(self, partitions: Sequence[int]) -> Sequence[int]:
        for i in partitions:
            self.requests.append(i)
            if (answer := self.answers[i]) is not None:
                self._due.append((self.clock.now + answer[0], i, answer[1]))
        return partitions

    def receive(self) -> list[Arrived]:
        arrived = [due for due in self._due if due[0] <= self.clock.now]
        self._due = [due for due in self._due if due[0] > self.clock.now]
        return [Arrived(partition, reply) for _, partition, reply in arrived]


def run_round(
    answers: Mapping[int, tuple[float, RawReply] | None],
    limits: Limits = LIMITS,
    away: Away = lambda now: set(),
    factor: float = 1000.0,
) -> tuple[RoundReport, TimedNetwork, Clock, list[str]]:
    clock, lines = Clock(), list[str]()
    network = TimedNetwork(clock, answers, away)
    report = gather(
        network, list(answers), lambda raw: check_reply(raw, UPLOAD, 100), limits, lines.append, clock, clock.sleep,
        find_outliers=UploadBound(factor, LocalWork(1)).find_outliers,
    )  # fmt: skip
    return report, network, clock, lines


GOOD = (3.0, sound())


def test_all_replies_are_taken_in_the_cohorts_order_without_further_waiting():
    report, network, clock, lines = run_round({4: (9.0, sound()), 1: GOOD, 2: (5.0, sound())})
    assert list(report.replies) == [4, 1, 2] and report.faults == [] and lines == []
    assert clock.now == pytest.approx(9, abs=2) and network.requests == [4, 1, 2]
    assert report.sent == 3


BAD = {
    "nan": sound(np.nan),
    "extra leaf": RawReply(pack({"w": np.zeros(2, np.float32), "x": np.zeros(1)}), sound().numbers),
    "no arrays": RawReply(b"", sound().numbers), "no numbers": RawReply(sound().arrays, {}),
    "error": RawReply(b"", {}, "error 1: out of\nmemory"), "negative count": sound(examples=-5),
    "zero count": sound(examples=0), "enormous count": sound(examples=10**9), "fractional count": sound(examples=0.5),
    "list of counts": sound(examples=[1, 2]), "loss that is nan": sound(loss=float("nan")),
    "loss that is text": sound(loss="0"), "loss that is infinite as float32": sound(loss=-1e39),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_left_out_with_its_node_and_reason_in_one_line(case):
    report, network, _, lines = run_round({0: GOOD, 1: (1.0, BAD[case]), 2: GOOD})
    assert list(report.replies) == [0, 2] and network.requests.count(1) == 1
    assert [(i, node) for i, node, _ in report.faults] == [(1, "node-1")]
    assert lines[0].startswith("partition 1 (node node-1): reply left out: ") and "\n" not in lines[0]


@pytest.mark.parametrize(
    ("delay", "away", "seconds", "reason"),
    [(200.0, lambda now: set(), 60, "no reply in time"), (3.0, lambda now: {1}, 3, "not connected"),
     (200.0, lambda now: {1} if now > 10 else set(), 11, "not connected")],
    ids=["late", "away", "gone meanwhile"],
)  # fmt: skip
def test_with_a_quorum_the_round_waits_only_for_those_who_may_answer_in_time(delay, away, seconds, reason):
    report, _, clock, lines = run_round({0: GOOD, 1: (delay, sound()), 2: GOOD}, away=away)
    assert list(report.replies) == [0, 2] and clock.now == pytest.approx(seconds, abs=2)
    assert len(lines) == 1 and reason in lines[0]


def test_without_a_quorum_the_round_waits_for_nodes_that_come():
    report, _, clock, _ = run_round({0: GOOD, 1: GOOD, 2: GOOD}, away=lambda now: {1, 2} if now < 100 else {2})
    assert list(report.replies) == [0, 1] and 100 < clock.now < 110


def test_without_a_quorum_the_round_stops_at_the_limit_or_once_none_is_possible():
    with pytest.raises(NoQuorum, match=r"1 valid replies of 3, 2 are needed, within 300.*2 \(node node-2\): .*not"):
        run_round({0: GOOD, 1: None, 2: GOOD}, away=lambda now: {2})
    with pytest.raises(NoQuorum, match="are needed, within 900 s"):
        run_round({0: GOOD, 1: None, 2: GOOD}, away=lambda now: {2}, limits=replace(LIMITS, round_timeout=900.0))
    with pytest.raises(NoQuorum, match=r"too few other nodes can answer.*NaN or infinity"):
        run_round({0: GOOD, 1: (1.0, sound(np.nan)), 2: (1.0, sound(np.nan))})


@pytest.mark.parametrize(
    ("values", "accepted"),
    [([1, 1e30, 2], [0, 2]), ([1e30, 1, 2, 1e30], [1, 2]), ([0, 1e30, 0], [0, 2]), ([1, 1e30], [0]), ([0, 5], [0, 1]),
     ([1e30, 1e30, 1], [0, 1, 2])],
    ids=["one", "half", "zeros", "one of two", "no change", "most"],
)  # fmt: skip
def test_an_upload_out_of_proportion_is_left_out_unless_most_are(values, accepted):
    report, _, _, lines = run_round({i: (1.0, sound(value)) for i, value in enumerate(values)})
    assert list(report.replies) == accepted and len(lines) == len(values) - len(accepted)
    assert all(f"partition {i} (node node-{i}): reply left out: upload: norm 1.41e+30" in line
               for (i, _, _), line in zip(report.faults, lines))  # fmt: skip


def test_a_lost_state_is_told_and_a_reason_is_told_whole_or_not_at_all():
    lost = sound()._replace(numbers=sound().numbers | {"state-lost": 1})
    report, _, _, lines = run_round({0: GOOD, 1: (1.0, lost)})
    assert report.lost == [1] and lines == [
        "partition 1 (node node-1): its state was lost, it continues from the initial one"
    ]
    long = RawReply(b"", {}, "no memory for " + "x" * 500)
    with pytest.raises(NoQuorum) as error:
        run_round(dict.fromkeys(range(5), (1.0, long)))
    assert "…" not in str(error.value) and str(error.value).endswith("x" * 500)


def test_a_run_waits_for_all_nodes_until_the_limit():
    clock, lines = Clock(), list[str]()
    network = TimedNetwork(clock, {0: GOOD, 1: GOOD}, lambda now: {1} if now < 20 else set())
    wait_for_nodes(network, 2, LIMITS, lines.append, clock, clock.sleep)
    assert clock.now == pytest.approx(20, abs=2) and lines == ["waiting for nodes: 1 of 2 are connected, not 1"]
    wait_for_nodes(network, 3, LIMITS, lines.append, clock, clock.sleep)
    assert clock.now == pytest.approx(320, abs=3)


def run_asynchronous_rounds(
    answers: Mapping[int, tuple[float, RawReply] | None],
    concurrency: int,
    rounds: int,
    away: Away = lambda now: set(),
    at_work: Mapping[int, float] | None = None,
) -> tuple[list[RoundReport], TimedNetwork, Clock, Workers]:
    """Rounds of two replies each; `at_work` is who works already, and since when."""
    clock, workers = Clock(), Workers(concurrency, 2, dict(at_work or {}))
    network, reports = TimedNetwork(clock, answers, away), list[RoundReport]()
    for _ in range(rounds):
        assert len(workers.at_work) <= concurrency
        more = LIMITS, lambda line: None, clock, clock.sleep, workers
        reports.append(gather(network, list(answers), lambda raw: check_reply(raw, UPLOAD, 100), *more))
    return reports, network, clock, workers


def test_an_asynchronous_round_waits_for_enough_replies_and_throws_no_late_one_away():
    answers = {i: (seconds, sound()) for i, seconds in enumerate([2.0, 3.0, 5.0, 11.0, 2.0, 40.0, 7.0])}
    reports, network, clock, workers = run_asynchronous_rounds(answers, 4, 100)
    assert all(len(report.replies) == 2 and not report.faults for report in reports)
    replies = Counter(i for report in reports for i in report.replies)
    assert Counter(network.requests) - replies == Counter(workers.at_work.keys()) and replies.keys() == answers.keys()
    assert sum(report.sent for report in reports) == len(network.requests)
    work = sum(answers[i][0] * count for i, count in replies.items())
    assert work > 0.75 * 4 * clock.now  # four work at any time; an answer is seen a poll later


@pytest.mark.parametrize(
    ("away", "seconds", "reason"),
    [(lambda now: set(), 60, "no reply in time"), (lambda now: {3, 4} if now > 1 else set(), 2, "not connected")],
    ids=["hung", "gone"],
)
def test_the_places_of_silent_clients_are_freed(away, seconds, reason):
    answers = {**dict.fromkeys(range(3), (30.0, sound())), 3: None, 4: None}
    (report,), network, clock, workers = run_asynchronous_rounds(answers, 2, 1, away, {3: 0.0, 4: 0.0})
    assert clock.now == pytest.approx(seconds + 30, abs=3) and len(report.replies) == 2
    assert [(i, node, text) for i, node, text in report.faults if reason in text] == [
        (i, f"node-{i}", f"left out: {reason}") for i in (3, 4)
    ]
    assert not workers.at_work.keys() & {3, 4} and not set(network.requests) & {3, 4}


def test_without_enough_replies_a_quorum_ends_an_asynchronous_round():
    (report,), _, clock, _ = run_asynchronous_rounds({0: GOOD, 1: (1.0, sound(np.nan))}, 2, 1)
    assert list(report.replies) == [0] and clock.now == pytest.approx(3, abs=2)
    with pytest.raises(NoQuorum, match="0 valid replies of 2, 1 are needed, within 300 s"):
        run_asynchronous_rounds({0: None, 1: None, 2: None}, 1, 1, lambda now: {2} if now < 250 else set())

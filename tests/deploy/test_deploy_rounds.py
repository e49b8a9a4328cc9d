"""A round over an unreliable network: quorum, deadlines, bad replies. No processes; the clock is turned by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fedoptax.deploy.rounds import Arrived, Limits, NoQuorum, RoundReport, gather, wait_for_nodes
from fedoptax.deploy.server import RawReply, Reply, check_reply
from fedoptax.deploy.wire import WireArray, WireError, pack

UPLOAD = {"w": np.zeros(2, np.float32)}
LIMITS = Limits(quorum=0.5, round_timeout=60, wait_limit=300, poll=1)


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


class FakeNetwork:
    """Clients that answer after some seconds, wrongly, or never.

    `answers[partition]` holds for each request to it (delay, reply), the last for all further ones; None is silence.
    """

    def __init__(self, clock: Clock, answers: Mapping[int, list[tuple[float, RawReply] | None]]) -> None:
        self.clock, self.answers = clock, answers
        self.away: Callable[[float], set[int]] = lambda now: set()
        self.requests: dict[int, int] = dict.fromkeys(answers, 0)
        self._due: list[tuple[float, int, RawReply]] = []
        self._busy: list[int] = []  # a client that was asked twice is there twice

    def begin(self, arrays: Mapping[str, WireArray], order: Callable[[int], Mapping[str, Any]]) -> None:
        raise AssertionError("not part of a round")

    def connected(self) -> Mapping[int, str]:
        return {i: f"node-{i}" for i in self.answers if i not in self.away(self.clock.now)}

    def send(self, partition: int) -> int:
        number = self.requests[partition]
        self.requests[partition] += 1
        self._busy.append(partition)
        answer = self.answers[partition][min(number, len(self.answers[partition]) - 1)]
        if answer is not None:
            self._due.append((self.clock.now + answer[0], partition, answer[1]))
        return 100

    def receive(self) -> list[Arrived]:
        arrived = [due for due in self._due if due[0] <= self.clock.now]
        self._due = [due for due in self._due if due[0] > self.clock.now]
        for _, partition, _ in arrived:
            self._busy.remove(partition)
        return [Arrived(partition, f"node-{partition}", reply, 200) for _, partition, reply in arrived]

    def busy(self) -> set[int]:
        return set(self._busy)


def a_round(
    answers: Mapping[int, list[tuple[float, RawReply] | None]],
    limits: Limits = LIMITS,
    away: Callable[[float], set[int]] = lambda now: set(),
) -> tuple[RoundReport, FakeNetwork, Clock, list[str]]:
    clock, lines = Clock(), list[str]()
    network = FakeNetwork(clock, answers)
    network.away = away

    def check(raw: RawReply) -> Reply:
        return check_reply(raw, UPLOAD, 100)

    report = gather(network, list(answers), check, limits, lines.append, clock, clock.sleep)
    return report, network, clock, lines


GOOD = [(3.0, sound())]


def test_all_replies_are_taken_in_the_cohorts_order_without_further_waiting() -> None:
    report, _, clock, lines = a_round({4: [(9.0, sound())], 1: GOOD, 2: [(5.0, sound())]})
    assert list(report.replies) == [4, 1, 2] and report.faults == [] and lines == []
    assert clock.now == pytest.approx(9, abs=2)
    assert (report.bytes_down, report.bytes_up, report.sent) == (300, 600, 3)


BAD = {
    "nan": sound(np.nan),
    "infinity": sound(-np.inf),
    "shape": RawReply(pack({"w": np.zeros(3, np.float32)}), sound().numbers),
    "dtype": RawReply(pack({"w": np.zeros(2, np.float16)}), sound().numbers),
    "name": RawReply(pack({"v": np.zeros(2, np.float32)}), sound().numbers),
    "oversized": RawReply(pack({"w": np.zeros(10**6, np.float32)}), sound().numbers),
    "no arrays": RawReply({}, sound().numbers),
    "no numbers": RawReply(sound().arrays, {}),
    "negative count": sound(examples=-5),
    "zero count": sound(examples=0),
    "enormous count": sound(examples=10**9),
    "fractional count": sound(examples=0.5),
    "list of counts": sound(examples=[1, 2]),
    "loss that is nan": sound(loss=float("nan")),
    "loss that is text": sound(loss="0"),
    "loss that is infinite as float32": sound(loss=-1e39),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_left_out_with_node_and_reason_and_not_asked_again(case: str) -> None:
    report, network, _, lines = a_round({0: GOOD, 1: [(1.0, BAD[case])], 2: GOOD})
    assert list(report.replies) == [0, 2] and network.requests[1] == 1
    assert [(i, node) for i, node, _ in report.faults] == [(1, "node-1")]
    assert lines[0].startswith("partition 1 (node node-1): reply left out: ") and "\n" not in lines[0]


def test_a_late_reply_is_left_out_when_the_time_is_up() -> None:
    report, _, clock, lines = a_round({0: GOOD, 1: [(200.0, sound())], 2: GOOD})
    assert list(report.replies) == [0, 2] and clock.now == pytest.approx(60, abs=2)
    assert lines == ["partition 1 (node node-1): left out: no reply in time"]


def test_who_is_not_there_is_not_waited_for() -> None:
    report, network, clock, lines = a_round({0: GOOD, 1: GOOD, 2: GOOD}, away=lambda now: {1})
    assert list(report.replies) == [0, 2] and clock.now < 10 and network.requests[1] == 0
    assert lines == ["partition 1 (node ?): left out: not there"]


def test_who_goes_away_during_the_round_is_not_waited_for() -> None:
    report, _, clock, _ = a_round({0: GOOD, 1: [None], 2: GOOD}, away=lambda now: {1} if now > 10 else set())
    assert list(report.replies) == [0, 2] and 10 < clock.now < 20


def test_without_a_quorum_it_waits_for_nodes_to_come() -> None:
    away: Callable[[float], set[int]] = lambda now: {1, 2} if now < 100 else {2}  # noqa: E731
    report, _, clock, _ = a_round({0: GOOD, 1: GOOD, 2: GOOD}, away=away)
    assert list(report.replies) == [0, 1] and 100 < clock.now < 115


def test_a_client_that_failed_is_asked_again_while_there_is_no_quorum() -> None:
    failing = [(1.0, RawReply({}, {}, "error 1: out of memory")), (1.0, sound())]
    report, network, _, lines = a_round({0: failing, 1: [None]})
    assert list(report.replies) == [0] and network.requests[0] == 2
    assert "reply left out: error 1: out of memory" in lines[0]


def test_a_node_that_died_with_its_message_gets_a_new_one() -> None:
    report, network, clock, _ = a_round({0: [None, (1.0, sound())], 1: [(2.0, sound())]}, Limits(1.0, 60, 300, 1))
    assert list(report.replies) == [0, 1] and network.requests == {0: 2, 1: 1} and 60 < clock.now < 70


def test_who_was_asked_again_and_answered_the_first_time_is_not_left_out() -> None:
    limits = Limits(quorum=1.0, round_timeout=60, wait_limit=300, poll=1)
    report, network, _, lines = a_round({0: [(70.0, sound()), None], 1: GOOD}, limits)
    assert list(report.replies) == [0, 1] and network.requests[0] == 2
    assert report.faults == [] and lines == []


def test_an_upload_that_is_infinite_once_decoded_is_refused() -> None:
    def decode(tree: Any) -> Any:
        return {"w": tree["w"] * 2}

    assert check_reply(sound(1e38), UPLOAD, 100, decode).upload["w"][0] == np.float32(1e38)  # as it was sent
    with pytest.raises(WireError, match="infinity once it is decoded"):
        check_reply(sound(3e38), UPLOAD, 100, decode)


def test_it_stops_at_the_limit_with_the_numbers() -> None:
    with pytest.raises(NoQuorum, match="1 sound replies of 3, 2 are needed, within 300 s"):
        a_round({0: GOOD, 1: GOOD, 2: GOOD}, away=lambda now: {1, 2})


def test_it_stops_at_once_when_there_can_be_no_quorum() -> None:
    with pytest.raises(NoQuorum, match=r"too few others can still answer.*NaN or infinity"):
        a_round({0: GOOD, 1: [(1.0, sound(np.nan))], 2: [(1.0, sound(np.nan))]})


def test_the_number_that_is_enough() -> None:
    assert [Limits(quorum).needed(10) for quorum in (0.01, 0.5, 0.51, 0.7, 1.0)] == [1, 5, 6, 7, 10]
    assert Limits(0.5).needed(1) == 1


def test_the_run_waits_for_all_nodes_but_not_for_ever() -> None:
    clock, lines = Clock(), list[str]()
    network = FakeNetwork(clock, {0: GOOD, 1: GOOD})
    network.away = lambda now: {1} if now < 20 else set()
    wait_for_nodes(network, 2, LIMITS, lines.append, clock, clock.sleep)
    assert clock.now == pytest.approx(20, abs=2) and lines == ["waiting for nodes: 1 of 2 are connected"]
    wait_for_nodes(network, 3, LIMITS, lines.append, clock, clock.sleep)
    assert clock.now == pytest.approx(320, abs=3)

"""What `OperatorWatch` finds in the engine; test_incidents.py says when a line is logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.connections import Connections
from aioidem._engine.incidents import Event
from aioidem._engine.links import Link
from aioidem._engine.memory import ByteBudget
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.overdue import Trouble
from aioidem._engine.watch import OperatorWatch
from aioidem._log import LogLine, Phase
from aioidem._protocol.metadata import BrokerAddress

from .driver import Rig
from .test_doubt import doubted

BEGINS, CONTINUES, ENDS = Phase.BEGINS, Phase.CONTINUES, Phase.ENDS
FULL = "records use 100 of the 100 bytes that buffer_memory (100) has for them at present"


class Lookout:
    """A watch over brokers, partitions and a buffer that the test makes.

    The bootstrap servers are `b1:9092` and so on, and a broker is at `h` and its node id. There are
    100 bytes for records, and all of them are taken.
    """

    def __init__(self, servers: str = "b1:9092", brokers: tuple[int, ...] = (0, 1, 2)) -> None:
        self.connections = Connections(ProducerConfig.build(servers), lambda: 0.5)
        self.connections.learn([BrokerAddress(each, f"h{each}", 9092) for each in brokers])
        # The leader of each partition of topic t; a partition that is missing is not known.
        self.leaders: dict[int, int] = {}
        self.obstacle: Exception | None = None
        self.busy: list[Any] = []
        self.accumulator = SimpleNamespace(unsettled=0, first_queued_at=0.0)
        self.budget = ByteBudget(100)
        assert self.budget.try_take(100)
        transactions: Any = None
        self.outcomes = Outcomes(self.budget, transactions)
        partitions: Any = SimpleNamespace(
            busy=self.busy,
            leader_status=lambda state, now: f"status of {state.where} at {now}",
            obstacle=lambda _now: self.obstacle,
        )
        cluster: Any = SimpleNamespace(leader_of=self.leader_of)
        accumulator: Any = self.accumulator
        self.watch = OperatorWatch(
            cluster, self.connections, partitions, self.budget, self.outcomes, accumulator
        )

    def leader_of(self, topic: str, partition: int) -> object:
        assert topic == "t"
        leader = self.leaders.get(partition)
        return None if leader is None else SimpleNamespace(leader_id=leader)

    def partition(self, number: int, *, leader: int | None = None, **facts: Any) -> Any:
        """Add a busy partition, which has waiting records unless `active` says otherwise."""
        if leader is not None:
            self.leaders[number] = leader
        usual = {"active": True, "trouble": None, "doubted_since": None, "in_doubt": 1}
        told = usual | facts
        state = SimpleNamespace(
            topic="t",
            partition=number,
            where=f"t-{number}",
            active=told["active"],
            batches=SimpleNamespace(in_doubt=told["in_doubt"], doubted_since=told["doubted_since"]),
            setbacks=SimpleNamespace(trouble=told["trouble"]),
            leadership=SimpleNamespace(route=None),
            deadlines=SimpleNamespace(obstacle=lambda status, now: f"waits at {now} with {status}"),
        )
        self.busy.append(state)
        return state

    def up(self, node_id: int, now: float = 0.0) -> Link:
        assert self.connections.to(node_id, now, []) is None
        link = self.connections.nodes[node_id].link
        assert link is not None
        self.connections.opened(link, 13, now)
        return link

    def fail(self, node_id: int, error: Exception | None, now: float) -> None:
        """Let an attempt to connect to a broker fail."""
        node = self.connections.nodes[node_id]
        node.retry_at = 0.0
        assert self.connections.to(node_id, now, []) is None
        assert node.link is not None
        self.connections.drop(node.link, error, now)

    def look(self, now: float) -> list[Event]:
        """Let the watch look, and return the lines that it gives."""
        self.watch.look(now)
        return self.outcomes.take_events()

    def lines(self, now: float) -> list[tuple[LogLine, Phase]]:
        return [(each.line, each.phase) for each in self.look(now)]

    def texts(self, now: float) -> list[str]:
        """Return what the lines say, without what became of the records meanwhile."""
        return [each.text for each in self.look(now)]

    def suspects(self, now: float) -> bool:
        """Let the watch look, and return whether something may become an incident."""
        self.watch.look(now)
        assert self.watch.due_at - now in (0.0, 0.25, 1.0)
        return self.watch.due_at - now == 0.25

    def settle(self, acked: int = 0, not_written: int = 0, unknown: int = 0) -> None:
        counters = self.outcomes.counters
        counters.records_acked += acked
        counters.records_not_written += not_written
        counters.records_unknown += unknown


def trouble(since: float | None = None, *failures: str) -> Trouble:
    """Return the trouble of a partition that has had no leader since then."""
    made = Trouble(0.0)
    made.leaderless_since = since
    for each in failures:
        made.add(each)
    return made


# -- when it looks


def test_it_looks_at_each_turn_while_nothing_waits_and_wakes_nobody_for_it() -> None:
    lookout = Lookout()
    watch = lookout.watch
    assert (watch.due_at, watch.wakes_at) == (0.0, None)
    lookout.look(50.0)
    assert (watch.due_at, watch.wakes_at) == (50.0, None)


def test_it_looks_once_a_second_while_records_or_callers_wait() -> None:
    lookout = Lookout()
    watch = lookout.watch
    lookout.accumulator.unsettled = 3
    lookout.look(50.0)
    assert (watch.due_at, watch.wakes_at) == (51.0, 51.0)
    lookout.accumulator.unsettled = 0
    caller = lookout.budget.wait(10, lambda: None)
    lookout.look(60.0)
    assert (watch.due_at, watch.wakes_at) == (61.0, 61.0)
    lookout.budget.abandon(caller)
    lookout.look(61.0)
    assert (watch.due_at, watch.wakes_at) == (61.0, None)


def test_it_looks_again_soon_while_something_may_become_an_incident_or_end_as_one() -> None:
    """An incident begins after a second here, and is over after another one without it."""
    lookout = Lookout()
    lookout.fail(-1, OSError("refused"), 50.0)
    waits = []
    for now in (50.0, 51.0, 52.0):
        lookout.look(now)
        waits.append(lookout.watch.due_at - now)
        assert lookout.watch.wakes_at == lookout.watch.due_at
    lookout.up(0, 52.0)
    for now in (52.0, 53.0):
        lookout.look(now)
        waits.append(lookout.watch.due_at - now)
    assert waits == [0.25, 1.0, 1.0, 0.25, 0.0]
    assert lookout.watch.wakes_at is None


def test_it_looks_at_once_after_a_connection_has_ended() -> None:
    lookout = Lookout()
    lookout.accumulator.unsettled = 1
    lookout.look(50.0)
    lookout.watch.hurry()
    assert lookout.watch.due_at == 0.0
    assert lookout.watch.wakes_at == 51.0


def test_the_driver_is_expected_when_the_first_record_is_queued_and_then_once_a_second() -> None:
    lookout = Lookout()
    watch, accumulator = lookout.watch, lookout.accumulator
    assert watch.expected_at() is None
    accumulator.unsettled, accumulator.first_queued_at = 2, 40.0
    assert watch.expected_at() == 40.0, "a record wakes the driver"
    lookout.look(50.0)
    assert watch.expected_at() == 51.0, "the record waited already at the last look"
    accumulator.unsettled = 0
    assert watch.expected_at() == 51.0
    lookout.look(51.0)
    assert watch.expected_at() is None


def test_the_driver_is_expected_for_counted_events_if_no_record_is_queued_before() -> None:
    lookout = Lookout()
    watch, accumulator = lookout.watch, lookout.accumulator
    for _ in range(3):
        lookout.outcomes.event(LogLine.EPOCH_BUMPED, "bumped")
    assert len(watch.take(50.0)) == 1
    lookout.look(50.0)
    assert (watch.wakes_at, watch.expected_at()) == (60.0, 60.0)
    accumulator.unsettled, accumulator.first_queued_at = 1, 55.0
    assert watch.expected_at() == 55.0
    accumulator.first_queued_at = 65.0
    assert watch.expected_at() == 60.0


def test_the_driver_is_expected_for_events_that_were_counted_after_the_last_look() -> None:
    lookout = Lookout()
    lookout.look(50.0)
    woken = [lookout.watch.wakes_at]
    for _ in range(3):
        lookout.outcomes.event(LogLine.EPOCH_BUMPED, "bumped")
    assert len(lookout.watch.take(50.0)) == 1
    assert [*woken, lookout.watch.wakes_at] == [None, 60.0]
    busy = Lookout()
    busy.accumulator.unsettled = 1
    busy.look(50.0)
    busy.outcomes.event(LogLine.EPOCH_BUMPED, "bumped")
    busy.watch.take(50.0)
    assert busy.watch.wakes_at == 51.0


# -- what it gives


def test_events_that_repeat_are_counted_and_told_when_their_interval_is_over() -> None:
    lookout = Lookout()
    for text in ("first", "second", "third"):
        lookout.outcomes.event(LogLine.EPOCH_BUMPED, text)
    assert [each.text for each in lookout.watch.take(50.0)] == ["first"]
    assert lookout.watch.take(50.0) == []
    assert lookout.look(59.0) == []
    (told,) = lookout.look(60.0)
    assert (told.line, told.text) == (LogLine.EPOCH_BUMPED, "2 more in 10 s; the last: third")


def test_what_became_of_records_is_told_from_the_beginning_of_an_incident() -> None:
    lookout = Lookout()
    lookout.settle(100, 200, 300)
    lookout.fail(-1, OSError("refused"), 50.0)
    (begins,) = lookout.look(51.0)
    assert (begins.line, begins.phase) == (LogLine.NO_BROKER, BEGINS)
    assert "acknowledged" not in begins.text
    assert "acked" not in begins.fields
    lookout.settle(3, 5, 7)
    (continues,) = lookout.look(61.0)
    assert continues.phase is CONTINUES
    assert continues.text == (
        "still after 11 s: no broker can be reached for 11.0 s and 1 attempt: refused; "
        "records meanwhile: 3 acknowledged, 5 not written, 7 unknown"
    )
    lookout.settle(1, 1, 1)
    lookout.up(0, 62.0)
    assert lookout.look(62.0) == []
    (ends,) = lookout.look(63.0)
    assert ends.phase is ENDS
    assert ends.text == (
        "a broker can be reached again, after 12.0 s; "
        "records meanwhile: 4 acknowledged, 6 not written, 8 unknown"
    )
    counted = {"seconds": 12.0, "count": 0, "acked": 4, "not_written": 6, "unknown": 8}
    assert ends.fields == counted


def test_a_second_incident_counts_records_anew() -> None:
    lookout = Lookout()
    told = []
    for begun in (50.0, 80.0):
        lookout.fail(-1, OSError("refused"), begun)
        lookout.look(begun + 1.0)
        lookout.settle(2)
        lookout.up(-1, begun + 100.0)
        lookout.look(begun + 2.0)
        told += lookout.look(begun + 3.0)
        link = lookout.connections.nodes[-1].link
        assert link is not None
        lookout.connections.drop(link, None, begun + 3.0)
    assert [each.fields["acked"] for each in told] == [2, 2]


def test_the_last_look_of_a_closing_producer_ends_an_incident_that_is_over() -> None:
    lookout = Lookout()
    lookout.fail(-1, OSError("refused"), 50.0)
    lookout.look(51.0)
    lookout.settle(6)
    lookout.up(0, 51.5)
    lookout.watch.close(51.5)
    (ends,) = lookout.outcomes.take_events()
    assert (ends.line, ends.phase, ends.fields["acked"]) == (LogLine.NO_BROKER, ENDS, 6)


def test_a_closing_producer_tells_of_the_events_that_it_has_only_counted() -> None:
    lookout = Lookout()
    for number in range(LogLine.DATA_LOSS.burst + 2):
        lookout.outcomes.event(LogLine.DATA_LOSS, f"loss {number}")
    assert len(lookout.watch.take(50.0)) == LogLine.DATA_LOSS.burst
    lookout.watch.close(51.0)
    [line] = lookout.watch.take(51.0)
    assert line.text == f"2 more in 1 s; the last: loss {LogLine.DATA_LOSS.burst + 1}"


def test_an_incident_that_goes_on_does_not_end_with_the_producer() -> None:
    lookout = Lookout()
    lookout.fail(-1, OSError("refused"), 50.0)
    lookout.look(51.0)
    lookout.watch.close(51.5)
    assert lookout.outcomes.take_events() == []


# -- brokers


def test_that_no_broker_can_be_reached_is_told_of_all_attempts() -> None:
    lookout = Lookout()
    lookout.fail(-1, OSError("refused"), 50.0)
    lookout.fail(0, OSError("no route"), 50.5)
    assert lookout.look(50.75) == []
    (begins,) = lookout.look(51.0)
    assert (begins.line, begins.phase) == (LogLine.NO_BROKER, BEGINS)
    assert begins.text == ("no broker can be reached for 1.0 s and 2 attempts: refused; no route")
    assert begins.fields == {"seconds": 1.0, "count": 2}


def test_a_broker_that_refuses_the_client_is_told_at_once() -> None:
    lookout = Lookout()
    lookout.fail(0, OSError("no route"), 49.0)
    lookout.fail(-1, errors.SaslAuthenticationFailed("wrong password"), 50.0)
    lookout.fail(1, errors.SaslAuthenticationFailed("wrong user"), 49.5)
    told = {each.line: each for each in lookout.look(50.25)}
    refused = told[LogLine.AUTHENTICATION]
    assert refused.text == (
        "a bootstrap server (b1:9092) (and 1 more) refuses this client: "
        "[Error 58] SaslAuthenticationFailed: wrong password"
    )
    assert refused.fields == {"seconds": 0.75, "count": 2}


def test_a_client_that_gets_no_session_for_another_reason_is_told_so() -> None:
    lookout = Lookout()
    lookout.fail(0, errors.SslAuthenticationError("unknown authority"), 50.0)
    (told,) = lookout.look(50.0)
    assert told.text == (
        "no session with broker 0 (h0:9092): SslAuthenticationError: unknown authority"
    )


def test_while_a_broker_is_connected_only_the_refusals_of_leaders_count() -> None:
    lookout = Lookout()
    lookout.up(0, 40.0)
    lookout.fail(1, errors.SaslAuthenticationFailed("wrong"), 50.0)
    assert lookout.look(50.0) == []
    lookout.partition(0, leader=1)
    assert lookout.lines(50.25) == [(LogLine.AUTHENTICATION, BEGINS)]


def test_a_leader_that_cannot_be_reached_is_told_with_the_partitions_that_wait_for_it() -> None:
    lookout = Lookout()
    lookout.up(0, 40.0)
    lookout.fail(1, OSError("no route"), 50.0)
    lookout.fail(1, OSError("refused"), 50.5)
    lookout.partition(3, leader=1)
    lookout.partition(4, leader=1)
    lookout.partition(5, leader=0)
    lookout.partition(6, leader=-1)
    lookout.partition(7)
    lookout.partition(8, leader=1, active=False)
    assert lookout.suspects(50.75)
    (begins,) = lookout.look(51.0)
    assert (begins.line, begins.phase) == (LogLine.LEADER_UNREACHABLE, BEGINS)
    assert begins.text == (
        "broker 1 (h1:9092), the last leader of t-3 and 1 more partition with waiting records, "
        "cannot be reached for 1.0 s and 2 attempts: refused"
    )
    assert begins.fields == {"seconds": 1.0, "count": 2}


def test_a_partition_without_a_leader_does_not_wait_for_the_first_bootstrap_server() -> None:
    """Its number among the nodes, -1, stands for no leader in metadata."""
    lookout = Lookout()
    lookout.up(0, 40.0)
    lookout.fail(-1, OSError("no route"), 50.0)
    lookout.partition(3, leader=-1)
    lookout.partition(4)
    assert lookout.look(60.0) == []


def test_of_leaders_that_cannot_be_reached_the_first_one_needed_is_named() -> None:
    lookout = Lookout()
    lookout.up(0, 40.0)
    lookout.fail(1, OSError("no route"), 51.0)
    lookout.fail(2, None, 50.0)
    lookout.partition(0, leader=2)
    lookout.partition(1, leader=1)
    lookout.partition(2, leader=1)
    (text,) = lookout.texts(51.0)
    assert text == (
        "broker 2 (h2:9092) (and 1 more), the last leader of t-0 and 2 more partitions with "
        "waiting records, cannot be reached for 1.0 s and 1 attempt: the connection was closed"
    )


@pytest.mark.parametrize(
    ("told_before", "leader", "last_leader", "goes_on"),
    [
        (True, -1, 1, True),
        (True, None, 1, True),
        (True, -1, 0, False),
        (True, -1, None, False),
        (True, 0, 1, False),
        (False, -1, 1, False),
    ],
)
def test_a_leader_that_was_told_of_counts_until_there_is_another_one(
    told_before: bool, leader: int | None, last_leader: int | None, goes_on: bool
) -> None:
    """It is why there is none, unless the records went to another broker last, or nowhere."""
    lookout = Lookout()
    lookout.up(0, 40.0)
    lookout.fail(1, OSError("no route"), 50.0)
    state = lookout.partition(3, leader=1)
    if told_before:
        assert lookout.lines(55.0) == [(LogLine.LEADER_UNREACHABLE, BEGINS)]
    lookout.leaders.clear()
    if leader is not None:
        lookout.leaders[3] = leader
    state.leadership.route = None if last_leader is None else SimpleNamespace(leader_id=last_leader)
    held = [(LogLine.LEADER_UNREACHABLE, CONTINUES)] if told_before and goes_on else []
    assert lookout.lines(70.0) == held
    ended = [(LogLine.LEADER_UNREACHABLE, ENDS)] if told_before and not goes_on else []
    assert lookout.lines(71.0) == ended


def test_brokers_that_throttle_are_told_with_the_longest_delay() -> None:
    lookout = Lookout()
    links = [lookout.up(each, 40.0) for each in (2, 0, 1)]
    links[0].throttle(20_000, 50.0)
    links[2].throttle(30_500, 50.0)
    assert lookout.look(50.0) == []
    (begins,) = lookout.look(51.0)
    assert (begins.line, begins.phase) == (LogLine.THROTTLED, BEGINS)
    assert begins.text == (
        "broker 2 (h2:9092) (and 1 more) throttles this client (a quota): "
        "requests wait up to 30.5 s"
    )
    assert begins.fields == {"seconds": 1.0, "count": 2}
    links[0].throttle(0, 52.0)
    links[2].throttle(0, 52.0)
    assert [lookout.lines(now) for now in (52.0, 61.75, 62.0)] == [
        [],
        [],
        [(LogLine.THROTTLED, ENDS)],
    ]


# -- partitions


def test_a_missing_leader_is_told_of_the_partition_that_has_waited_longest() -> None:
    lookout = Lookout()
    lookout.partition(0, leader=-1, trouble=trouble(50.0))
    lookout.partition(1, trouble=trouble(49.5, "first", "second"))
    lookout.partition(2, leader=-1, trouble=trouble(49.75))
    lookout.partition(3, leader=-1, trouble=trouble(None))
    lookout.partition(4, leader=-1, trouble=trouble(40.0), active=False)
    lookout.partition(5, leader=2, trouble=trouble(40.0))
    lookout.partition(6, leader=-1)
    assert lookout.look(50.25) == []
    (begins,) = lookout.look(50.5)
    assert (begins.line, begins.phase) == (LogLine.LEADER_MISSING, BEGINS)
    assert begins.text == (
        "t-1 and 2 more partitions with waiting records: "
        "waits at 50.5 with status of t-1 at 50.5; last of 2 failures: second"
    )
    assert begins.fields == {"seconds": 1.0, "count": 3}


def test_a_single_partition_without_a_leader_is_told_alone() -> None:
    lookout = Lookout()
    lookout.partition(7, leader=-1, trouble=trouble(50.0))
    assert lookout.texts(51.0) == [
        "t-7 with waiting records: waits at 51.0 with status of t-7 at 51.0"
    ]


def test_batches_in_doubt_are_told_of_the_partition_that_has_been_in_doubt_for_longest() -> None:
    lookout = Lookout()
    lookout.partition(0, leader=1, doubted_since=50.0, in_doubt=4)
    lookout.partition(1, leader=1, doubted_since=49.0, in_doubt=2, trouble=trouble(None, "lost"))
    lookout.partition(2, leader=1, doubted_since=49.5, in_doubt=1)
    lookout.partition(3, leader=1)
    assert lookout.look(50.75) == []
    (begins,) = lookout.look(51.0)
    assert (begins.line, begins.phase) == (LogLine.IN_DOUBT, BEGINS)
    assert begins.text == (
        "7 batches of t-1 and 2 more partitions in doubt for 2.0 s: sent, and not known to be in "
        "the log; waits at 51.0 with status of t-1 at 51.0; last failure: lost"
    )
    assert begins.fields == {"seconds": 2.0, "count": 7}


def test_a_partition_may_be_in_doubt_and_without_a_leader() -> None:
    lookout = Lookout()
    lookout.partition(0, leader=-1, doubted_since=50.0, trouble=trouble(50.0))
    found = [(LogLine.LEADER_MISSING, BEGINS), (LogLine.IN_DOUBT, BEGINS)]
    assert lookout.lines(52.0) == found


# -- the buffer


def test_the_buffer_is_full_if_the_same_caller_waits_for_long() -> None:
    """It counts after a second, and is an incident after two."""
    lookout = Lookout()
    lookout.obstacle = errors.KafkaError("t-0: no leader")
    for _ in range(2):
        lookout.budget.wait(10, lambda: None)
    assert [lookout.suspects(now) for now in (50.0, 50.75, 51.0)] == [False, False, True]
    lookout.budget.wait(10, lambda: None)
    assert lookout.look(51.75) == []
    (begins,) = lookout.look(52.0)
    assert (begins.line, begins.phase) == (LogLine.BUFFER_FULL, BEGINS)
    assert begins.text == (
        f"3 callers of send wait for room, the first for 2.0 s: {FULL}; t-0: no leader"
    )
    assert begins.fields == {"seconds": 2.0, "count": 3}


def test_one_caller_waits_and_nothing_more_is_said_without_a_reason() -> None:
    lookout = Lookout()
    lookout.budget.wait(10, lambda: None)
    lookout.look(50.0)
    assert lookout.texts(52.5) == [f"1 caller of send waits for room, the first for 2.5 s: {FULL}"]


def test_callers_that_get_room_in_turn_do_not_make_the_buffer_full() -> None:
    lookout = Lookout()
    first = lookout.budget.wait(10, lambda: None)
    lookout.budget.wait(10, lambda: None)
    lookout.look(50.0)
    lookout.budget.abandon(first)
    assert not lookout.suspects(51.0), "the second one is the first now"
    assert not lookout.suspects(51.75)
    assert lookout.suspects(52.0)


def test_the_buffer_is_full_if_calls_that_do_not_wait_find_no_room_for_long() -> None:
    lookout = Lookout()
    lookout.obstacle = errors.KafkaError("t-0: no leader")
    lookout.outcomes.settled, lookout.accumulator.unsettled = 2, 5
    for now in (50.0, 51.5, 53.5):
        lookout.watch.no_room(now)
    (begins,) = lookout.look(53.75)
    assert (begins.line, begins.phase) == (LogLine.BUFFER_FULL, BEGINS)
    assert begins.text == (
        f"send_nowait has found no room 3 times in 3.8 s: {FULL}; t-0: no leader"
    )
    assert begins.fields == {"seconds": 3.75, "count": 3}


def test_calls_find_no_room_from_one_second_after_the_first_to_two_after_the_last() -> None:
    lookout = Lookout()
    lookout.accumulator.unsettled = 5
    lookout.watch.no_room(50.0)
    assert not lookout.suspects(50.75)
    assert lookout.suspects(51.0)
    assert lookout.lines(52.0) == [(LogLine.BUFFER_FULL, BEGINS)]
    lookout.watch.look(52.0)
    assert not lookout.suspects(52.0), "it goes on"
    assert lookout.suspects(52.25), "it is over, and may end"


@pytest.mark.parametrize(("seconds", "calls"), [(2.0, 2), (2.25, 1)])
def test_calls_belong_together_if_no_more_than_two_seconds_are_between_them(
    seconds: float, calls: int
) -> None:
    lookout = Lookout()
    lookout.accumulator.unsettled = 5
    lookout.watch.no_room(50.0)
    again = 50.0 + seconds
    lookout.watch.no_room(again)
    (begins,) = lookout.look(again + 2.0)
    assert begins.fields["count"] == calls
    assert begins.fields["seconds"] == again + 2.0 - (50.0 if calls == 2 else again)


def test_calls_that_find_no_room_count_anew_once_a_record_was_queued() -> None:
    """A record that is settled meanwhile was queued before."""
    lookout = Lookout()
    lookout.accumulator.unsettled = 5
    lookout.watch.no_room(50.0)
    lookout.accumulator.unsettled, lookout.outcomes.settled = 3, 2
    assert lookout.suspects(51.0)
    lookout.accumulator.unsettled = 4
    assert not lookout.suspects(51.0)
    lookout.watch.no_room(51.25)
    assert not lookout.suspects(52.0)
    (begins,) = lookout.look(53.25)
    assert begins.fields == {"seconds": 2.0, "count": 1}


# -- the watch of an engine


def incidents(rig: Rig) -> list[tuple[LogLine, Phase]]:
    """Let the watch look now, and return the lines of incidents that it gives."""
    rig.core.outcomes.take_events()
    rig.core.watch.look(rig.now)
    events = rig.core.outcomes.take_events()
    return [(each.line, each.phase) for each in events if each.phase is not Phase.ONCE]


def test_batches_are_in_doubt_also_after_an_earlier_one_was_acknowledged() -> None:
    """The others are resent and not answered, so they are in doubt as long as before."""
    rig = doubted(3)
    rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 2
    rig.tick(0.5)
    assert incidents(rig) == [(LogLine.IN_DOUBT, Phase.BEGINS)]
    rig.ack_all()
    assert incidents(rig) == [(LogLine.IN_DOUBT, Phase.ENDS)]


def test_the_partition_that_has_been_without_a_leader_for_longest_is_named() -> None:
    rig = Rig(partitions=2).start()
    rig.core.outcomes.take_events()
    for partition in (0, 1):
        rig.move_leader(-1, 1, partition=partition, seconds=0.5)
        rig.send(partition=partition)
        rig.tick(3.0)
    rig.core.watch.look(rig.now)
    (event,) = rig.core.outcomes.take_events()
    assert (event.line, event.phase) == (LogLine.LEADER_MISSING, Phase.BEGINS)
    assert event.text.startswith("t-0 and 1 more partition with waiting records: no leader")


def test_a_broker_that_throttles_no_more_is_no_condition() -> None:
    rig = Rig().start()
    link, *_ = rig.core.connections.links.values()
    link.throttle(5000, rig.now)
    assert link.throttle_at(rig.now) == 5.0
    link.throttle(0, rig.now)
    assert not link.throttle_at(rig.now)

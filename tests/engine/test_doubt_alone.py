"""`DoubtResolution` alone: when a leader is asked or read, and when it is disconnected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine.accusations import Accusations
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.partitions import Partitions
from aioidem._engine.recovery import Rung
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import AskProducers, ReadBack, Step
from aioidem._log import LogLine
from aioidem._protocol.producers import ProducersAnswer
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import assign_offsets

from .driver import (
    ACKED,
    NOT_LEADER,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    Request,
    Rig,
    T,
    pipelined,
)

HALF = 43_200_000.0
"""Half of the time after which a broker forgets a producer, in milliseconds."""
STAMP = 1_700_000_000_000


class Alone:
    """A `DoubtResolution` over the partition and the connections of a producer.

    The producer takes no steps by itself: only this `DoubtResolution` looks at the partition.
    """

    def __init__(self, rig: Rig, requests: Sequence[Request] = ()) -> None:
        core = rig.core
        self.rig = rig
        self.sent = requests
        self.now = rig.now
        self.state = rig.state()
        route = self.state.leadership.route
        assert route is not None
        self.link = core.connections.links[route.link_id]
        effects = Effects(
            core.outcomes, core.metadata, core.identity, core.transactions, Accusations()
        )
        self._requests = RequestLedger(core.connections, core.budget)
        partitions = Partitions(core.config, lambda: 0.5, core.cluster, core.connections, effects)
        self.of = DoubtResolution(
            core.config,
            core.cluster,
            core.connections,
            BrokerInquiries(core.config, partitions, self._requests, core.outcomes),
            self._requests,
            core.outcomes,
            effects,
        )
        core.outcomes.take_events()
        core.metadata.sent()
        core.metadata.answered(self.now, enough=True)

    def prepare(self, now: float) -> list[Step]:
        """Return the requests that are sent for the partition."""
        made = self._requests.begin_poll()
        self.of.prepare(self.state, now)
        return made

    def read_on(self, now: float) -> list[Step]:
        made = self._requests.begin_poll()
        self.of.read_on(now)
        return made

    def lines(self) -> list[tuple[LogLine, str]]:
        return [(event.line, event.text) for event in self.rig.core.outcomes.take_events()]

    def page(
        self, *stored: tuple[Request, int], code: int = 0, end: int, throttle: int = 0
    ) -> None:
        """Answer a read of the log with these batches, of which `end` is the high watermark."""
        data = b"".join(
            assign_offsets(request.only.data, base_offset=offset, leader_epoch=0)
            for request, offset in stored
        )
        answer = ReadBackAnswer(code, end, data, throttle_ms=throttle)
        self.of.on_read_back(self.link, self.asked(), answer, self.now)
        self.rig.collect()

    def asked(self) -> Outstanding:
        """Return the last request for a page."""
        asked = self.link.outstanding.values()
        return [each for each in asked if each.kind is RequestKind.READ_BACK][-1]

    def first_probe(self) -> int:
        """Return the last sequence of the batch that is resent first."""
        batch = self.state.recovery.next_probe(self.state.batches.unresolved, self.now)
        assert batch is not None
        return batch.wire_last

    def statuses(self) -> list[Any]:
        self.rig.collect()
        return self.rig.statuses[1:]


def in_doubt(batches: int = 2, **options: Any) -> Alone:
    """Return a partition with batches in doubt, whose leader is connected and may be asked."""
    rig, requests = pipelined(batches, **options)
    for request in requests:
        rig.fail(request, REQUEST_TIMED_OUT, poll=False)
    return Alone(rig, requests)


def forgotten(batches: int = 2, **options: Any) -> Alone:
    """Return such a partition, whose leader may have forgotten the producer."""
    alone = in_doubt(batches, **options)
    alone.of.see_clock(STAMP + HALF + 1.0, alone.now)
    return alone


def refused(**options: Any) -> Alone:
    """Return such a partition, whose leader has refused the oldest batch."""
    rig, _ = pipelined(3, **options)
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER, poll=False)
    alone = Alone(rig)
    assert alone.state.recovery.rung is Rung.REFUSED
    return alone


# -- the clock


def test_a_leader_may_have_forgotten_once_half_the_expiration_has_passed() -> None:
    """The clock is seen once; the engine's clock tells how much time has passed since."""
    alone = in_doubt()
    alone.of.see_clock(STAMP, alone.now)
    alone.of.see_clock(STAMP + HALF - 1_000_000.0, alone.now)
    alone.prepare(alone.now + 999.9)
    assert not alone.state.suspicion.suspect
    alone.prepare(alone.now + 1000.1)
    assert alone.state.suspicion.suspect


def test_a_clock_that_is_set_back_counts_as_not_set_back() -> None:
    alone = forgotten()
    alone.of.see_clock(STAMP - HALF, alone.now + 1.0)
    alone.of.see_clock(None, alone.now + 1.0)
    alone.prepare(alone.now + 1.0)
    assert alone.state.suspicion.suspect


def test_no_leader_has_forgotten_before_a_clock_was_seen() -> None:
    alone = in_doubt()
    alone.of.see_clock(None, alone.now)
    alone.prepare(alone.now + 1e9)
    assert not alone.state.suspicion.suspect


def test_the_only_batch_is_read_as_soon_as_its_own_records_are_old() -> None:
    """Until then it may be resent, though those before it are old. The engine wakes for that."""
    alone = in_doubt(1)
    first = alone.state.batches.unresolved[0].first_attempt
    assert first is not None
    first.sent_ms = STAMP
    alone.state.suspicion.acked(int(STAMP - HALF), -1)
    alone.of.see_clock(STAMP + HALF - 1000.0, alone.now)
    assert alone.prepare(alone.now) == []
    assert (alone.state.suspicion.suspect, alone.state.suspicion.exempt) == (True, True)
    turn = alone.of.turns_at(alone.state, alone.now)
    assert turn is not None
    assert turn == pytest.approx(alone.now + 1.001)
    [step] = alone.prepare(turn)
    assert isinstance(step, ReadBack)
    assert alone.of.turns_at(alone.state, turn) is None


def test_the_operator_is_told_once() -> None:
    alone = forgotten()
    alone.prepare(alone.now)
    alone.prepare(alone.now)
    ((line, text),) = alone.lines()
    assert line is LogLine.STATE_EXPIRED
    assert text.startswith(
        f"{T}-0: record timestamps are more than half of the brokers' "
        "producer.id.expiration.ms (86400 s) old"
    )


def test_who_permits_duplicates_is_not_told_and_nothing_is_read() -> None:
    alone = forgotten(in_doubt="resend")
    assert alone.prepare(alone.state.setbacks.retry_at) == []
    assert alone.state.suspicion.suspect
    assert alone.lines() == []


# -- DescribeProducers


def test_the_leader_is_asked_once_as_soon_as_its_connection_admits() -> None:
    alone = refused()
    alone.link.throttle(1_000, alone.now)
    assert alone.prepare(alone.now) == []
    assert alone.state.recovery.rung is Rung.ASKING
    (step,) = alone.prepare(alone.now + 1.0)
    assert isinstance(step, AskProducers)
    assert (step.link_id, step.topic, step.partition) == (alone.link.link_id, T, 0)
    assert alone.link.outstanding[step.token].kind is RequestKind.DESCRIBE_PRODUCERS
    assert alone.link.outstanding[step.token].subject is alone.state
    assert alone.prepare(alone.now + 1.0) == []
    assert alone.lines() == [], "no leader has forgotten the producer"


def test_a_leader_that_does_not_know_or_is_not_connected_is_not_asked() -> None:
    alone = refused()
    alone.link.note_producers(worth_asking=False)
    assert alone.prepare(alone.now) == []
    assert alone.state.recovery.rung is Rung.PROBING
    alone = refused()
    alone.rig.core.connections.drop(alone.link, None, alone.now)
    assert alone.prepare(alone.now) == []
    assert alone.state.recovery.rung is Rung.PROBING


@pytest.mark.parametrize(
    ("code", "again"), [(NOT_LEADER, True), (TOPIC_AUTHORIZATION_FAILED, False)]
)
def test_an_answer_with_an_error_names_no_batch_and_a_permanent_one_ends_the_asking(
    code: int, *, again: bool
) -> None:
    alone = refused()
    alone.prepare(alone.now)
    answer = ProducersAnswer(code, {4001: (0, 3)}, throttle_ms=1_000)
    alone.of.on_producers(alone.link, alone.state, answer, alone.now)
    assert alone.link.knows_producers is again
    assert alone.state.recovery.rung is Rung.PROBING
    assert alone.first_probe() == 3, "the newest"
    assert not alone.link.admits(alone.now + 0.9), "the broker asks for a pause"


def test_an_answer_names_the_newest_batch_of_this_producer() -> None:
    alone = refused()
    alone.prepare(alone.now)
    identity = alone.state.ledger.identity
    assert identity is not None
    known = {identity.producer_id: (0, 2), identity.producer_id + 1: (0, 3)}
    alone.of.on_producers(
        alone.link, alone.state, ProducersAnswer(0, known, throttle_ms=1_000), alone.now
    )
    assert alone.first_probe() == 2
    assert not alone.link.admits(alone.now + 0.9), "the broker asks for a pause"


# -- reading the log back


def test_the_log_is_read_after_the_last_acknowledged_offset() -> None:
    alone = forgotten()
    assert alone.prepare(alone.state.setbacks.retry_at - 0.001) == []
    (step,) = alone.prepare(alone.state.setbacks.retry_at)
    assert isinstance(step, ReadBack)
    assert (step.link_id, step.topic, step.partition) == (alone.link.link_id, T, 0)
    assert step.offset == alone.rig.outcomes[0].offset + 1
    assert step.leader_epoch == 0, "as long as it is the leader of this epoch"
    assert alone.link.outstanding[step.token].kind is RequestKind.READ_BACK
    assert alone.prepare(alone.state.setbacks.retry_at) == []


def test_the_log_is_read_once_the_connection_admits() -> None:
    alone = forgotten()
    alone.now = alone.state.setbacks.retry_at
    alone.link.throttle(1_000, alone.now)
    assert alone.prepare(alone.now) == []
    (step,) = alone.prepare(alone.now + 1.0)
    assert isinstance(step, ReadBack)
    assert alone.statuses() == [PENDING] * 2


def test_what_may_not_be_read_ends_unknown() -> None:
    alone = forgotten()
    alone.link.refuse_reading()
    assert alone.prepare(alone.state.setbacks.retry_at) == []
    assert alone.statuses() == [UNKNOWN] * 2


def reading(batches: int = 2) -> Alone:
    """Return a partition whose log is being read."""
    alone = forgotten(batches)
    alone.now = alone.state.setbacks.retry_at
    assert len(alone.prepare(alone.now)) == 1
    alone.lines()
    return alone


def test_a_passing_error_lets_the_log_be_read_again_after_a_pause() -> None:
    alone = reading()
    alone.page(code=NOT_LEADER, end=0, throttle=50)
    assert alone.rig.core.metadata.wanted
    assert alone.state.read_back.offset is None
    assert alone.state.setbacks.retry_at == alone.now + alone.rig.config.retry_backoff
    assert not alone.link.admits(alone.now + 0.049), "the broker asks for a pause"
    assert alone.link.may_read
    assert alone.statuses() == [PENDING] * 2
    assert alone.prepare(alone.state.setbacks.retry_at) != []


def test_a_permanent_error_ends_the_doubt_of_this_partition_and_others_are_read() -> None:
    alone = reading()
    alone.page(code=TOPIC_AUTHORIZATION_FAILED, end=0)
    assert alone.link.may_read
    assert alone.state.read_back.offset is None
    assert not alone.rig.core.metadata.wanted
    assert alone.statuses() == [UNKNOWN] * 2
    assert alone.prepare(alone.now) == []


def test_an_empty_page_below_the_high_watermark_is_asked_for_again_after_a_pause() -> None:
    """A broker sends no records while the client has reached its quota."""
    alone = reading(3)
    first = alone.sent[0]
    alone.page((first, 1), end=4)
    assert len(alone.read_on(alone.now)) == 1
    alone.page(end=4)
    assert alone.statuses() == [ACKED, PENDING, PENDING]
    assert alone.state.setbacks.retry_at == alone.now + alone.rig.config.retry_backoff
    assert not alone.rig.core.metadata.wanted
    assert alone.prepare(alone.state.setbacks.retry_at) == [], "it does not begin anew"
    assert alone.read_on(alone.state.setbacks.retry_at - 0.001) == []
    (step,) = alone.read_on(alone.state.setbacks.retry_at)
    assert isinstance(step, ReadBack)
    assert step.offset == 2


@pytest.mark.parametrize("code", [0, NOT_LEADER, TOPIC_AUTHORIZATION_FAILED])
def test_what_comes_of_an_earlier_reading_counts_for_nothing(code: int) -> None:
    """The partition moved to another leader since, or its connection was lost, and is read anew."""
    alone = reading()
    earlier = alone.asked()
    alone.state.lookup.end()
    alone.link.outstanding.clear()
    assert len(alone.prepare(alone.now)) == 1
    before = alone.state.read_back.offset, alone.state.setbacks.retry_at
    alone.of.on_read_back(alone.link, earlier, ReadBackAnswer(code, 0, b"", 50), alone.now)
    assert not alone.link.admits(alone.now + 0.049), "the broker asks for a pause"
    assert (alone.state.read_back.offset, alone.state.setbacks.retry_at) == before
    assert not alone.rig.core.metadata.wanted
    assert alone.statuses() == [PENDING] * 2
    alone.page(end=1)
    assert alone.statuses() == [UNKNOWN] * 2


def test_a_next_page_waits_until_the_connection_admits() -> None:
    alone = reading(3)
    alone.page((alone.sent[0], 1), end=20, throttle=1_000)
    assert alone.read_on(alone.now + 0.9) == []
    assert alone.of.reads_on()
    (step,) = alone.read_on(alone.now + 1.0)
    assert isinstance(step, ReadBack)
    assert step.offset == 2


def test_a_next_page_is_not_read_if_the_reading_has_ended() -> None:
    alone = reading(3)
    alone.page((alone.sent[0], 1), end=20)
    alone.state.lookup.end()
    assert alone.read_on(alone.now) == []
    assert not alone.of.reads_on()


def test_a_page_says_nothing_once_the_leader_is_known_to_remember() -> None:
    """Then the batches may be resent; that a page lacks them is no reason to give them up."""
    alone = reading()
    alone.state.suspicion.suspect = False
    alone.page(end=0)
    assert alone.state.read_back.offset is None
    assert alone.statuses() == [PENDING] * 2
    assert not alone.of.reads_on()


def test_a_page_says_nothing_without_a_clock() -> None:
    reader = reading()
    alone = Alone(reader.rig)
    alone.page(end=0)
    assert alone.state.read_back.offset is None
    assert alone.statuses() == [PENDING] * 2


def test_the_log_is_read_page_by_page() -> None:
    alone = reading(3)
    first, _, third = alone.sent
    alone.page((first, 1), end=20)
    assert alone.statuses() == [ACKED, PENDING, PENDING]
    assert alone.of.reads_on()
    (step,) = alone.read_on(alone.now)
    assert isinstance(step, ReadBack)
    assert step.offset == 2
    assert alone.link.outstanding[step.token].kind is RequestKind.READ_BACK
    assert not alone.of.reads_on()
    assert alone.read_on(alone.now) == []
    alone.page((third, 19), end=20)
    assert alone.statuses() == [ACKED, UNKNOWN, ACKED]
    assert not alone.of.reads_on()


def test_a_next_page_is_not_read_if_the_doubt_has_ended() -> None:
    alone = reading(3)
    alone.page((alone.sent[0], 1), end=20)
    alone.rig.core.accumulator.expire(alone.now + 1e6)
    assert alone.statuses() == [ACKED, UNKNOWN, UNKNOWN]
    assert alone.read_on(alone.now) == []
    assert not alone.of.reads_on()
    assert alone.state.read_back.offset is None, "the next doubt begins its own reading"


@pytest.mark.parametrize("why", ["the connection is closed", "the cluster is another"])
def test_a_next_page_is_not_read(why: str) -> None:
    alone = reading(3)
    alone.page((alone.sent[0], 1), end=20)
    if why == "the connection is closed":
        lost = errors.KafkaConnectionError("lost")
        alone.rig.core.connections.drop(alone.link, lost, alone.now)
    else:
        alone.of.forget_cluster()
        assert not alone.of.reads_on()
    assert alone.read_on(alone.now) == []
    assert not alone.of.reads_on()
    if why == "the connection is closed":
        assert alone.state.read_back.offset is None, "the log may be read anew"


# -- old leaders


def led_by_another(**options: Any) -> Alone:
    """Return a partition with batches in flight to broker 1, which broker 2 leads by now."""
    rig, requests = pipelined(2, brokers=2, **options)
    alone = Alone(rig, requests)
    assert rig.core.cluster.hint(T, 0, 2, 1)
    alone.link.rtt = None
    alone.link.progress(alone.now)
    return alone


@pytest.mark.parametrize(("rtt", "silence"), [(None, 2.0), (0.5, 2.0), (0.75, 2.25), (2.0, 6.0)])
def test_an_old_leader_is_disconnected_after_two_seconds_or_three_round_trips(
    rtt: float | None, silence: float
) -> None:
    alone = led_by_another()
    alone.link.rtt = rtt
    due = alone.now + silence
    assert alone.of.awaits(alone.state) == due
    assert list(alone.of.silent_leaders([alone.state], due - 0.001)) == []
    assert alone.of.old_leaders_owe
    ((link, reason, error),) = alone.of.silent_leaders([alone.state], due)
    assert link is alone.link
    assert reason == (
        f"{T}-0 has a new leader, whose turn comes when broker 1, the old leader, has answered; "
        f"it has sent nothing since {silence:.1f} s"
    )
    assert isinstance(error, errors.KafkaConnectionError)
    assert error.args == (reason,)


def test_the_time_of_a_throttle_is_no_silence() -> None:
    alone = led_by_another()
    assert not alone.of.old_leaders_owe, "nobody has looked"
    alone.link.throttle(5_000, alone.now)
    assert alone.of.awaits(alone.state) == alone.now + 7.0


def test_who_owes_nothing_is_not_disconnected() -> None:
    """Answers that came, a leader that stayed, and a connection that is gone are all no silence."""
    alone = led_by_another()
    assert list(alone.of.silent_leaders([alone.state], alone.now)) == []
    assert alone.of.old_leaders_owe
    for request in alone.sent:
        alone.rig.fail(request, REQUEST_TIMED_OUT, poll=False)
    owing: list[bool] = []
    for other in (alone, Alone(*pipelined(2))):
        assert other.of.awaits(other.state) is None
        assert list(other.of.silent_leaders([other.state], other.now + 99.0)) == []
        owing.append(other.of.old_leaders_owe)
    assert owing == [False, False]


def test_a_partition_whose_leader_or_connection_is_not_known_waits_for_nobody() -> None:
    alone = led_by_another()
    alone.rig.core.cluster.forget("cluster")
    assert alone.of.awaits(alone.state) is None
    alone = led_by_another()
    alone.rig.core.connections.drop(alone.link, None, alone.now)
    assert alone.of.awaits(alone.state) is None


def test_a_partition_that_owes_nothing_hides_no_other() -> None:
    rig = Rig(brokers=2, partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    rig.send(partition=1)
    assert rig.core.cluster.hint(T, 1, 2, 1)
    alone = Alone(rig)
    (leaving,) = alone.of.silent_leaders([rig.state(T, 0), rig.state(T, 1)], rig.now + 99.0)
    assert leaving.link is alone.link
    assert f"{T}-1 has a new leader" in leaving.reason

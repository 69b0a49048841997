"""`PartitionState`: how doubt is resolved, and how records end without an answer.

The partition stands alone (`partition_bench`): b1, b2 and so on are the batches with sequences 1, 2
and so on, and the record with sequence 0 was acknowledged at offset 0. A probe is a resend of a
batch in doubt, newest first, to learn whether the leader has stored it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.overdue import LeaderStatus
from aioidem._engine.read_back import WrittenBatch
from aioidem._engine.recovery import Rung
from aioidem.errors import KafkaError, OutOfOrderSequenceNumber, UnknownProducerId
from aioidem.structs import DeliveryStatus

from .driver import (
    ACKED,
    INVALID_RECORD,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    T,
)
from .partition_bench import (
    FIRST,
    GRACE,
    LEADER,
    PAUSE,
    RECONNECTED,
    SECOND,
    TIMEOUT,
    Bench,
    error,
)

UNLISTED = 12345

# -- the ladder


def refused(count: int = 2, **options: Any) -> tuple[Bench, list[Batch]]:
    """Return batches in doubt, of which the oldest was resent and answered OUT_OF_ORDER."""
    bench = Bench(**options)
    batches = bench.doubt(count)
    bench.now = bench.state.setbacks.retry_at
    bench.refuse(bench.send(batches[0]), OUT_OF_ORDER)
    assert bench.rung() is Rung.REFUSED
    bench.told.take()
    return bench, batches


def probing(count: int = 2, **options: Any) -> tuple[Bench, list[Batch]]:
    bench, batches = refused(count, **options)
    bench.advance()
    assert bench.rung() is Rung.PROBING
    return bench, batches


def probe(bench: Bench, batches: Sequence[Batch], *codes: int) -> None:
    """Probe all batches, and answer them, newest first, with these codes; the last one repeats."""
    told = [*codes, *codes[-1:] * (len(batches) - len(codes))]
    for batch, code in zip(reversed(batches), told, strict=True):
        assert bench.state.next_resend(bench.now) is batch
        bench.send(batch)
        bench.refuse(batch, code)


def test_the_ladder_is_climbed_when_nothing_is_outstanding() -> None:
    bench, (_, second) = refused()
    bench.send(second)
    bench.advance()
    assert bench.rung() is Rung.REFUSED
    assert bench.state.next_resend(200.0) is None
    bench.lose(second, written=False)
    bench.advance()
    assert bench.rung() is Rung.PROBING


def test_a_leader_that_can_tell_is_asked_once_before_batches_are_probed() -> None:
    bench, (first, second) = refused()
    state = bench.state

    def wants() -> bool:
        return state.ladder.wants_producers

    assert not wants()
    bench.advance(may_ask=True)
    assert bench.rung() is Rung.ASKING
    assert wants()
    assert state.next_resend(200.0) is None
    state.recovery.ask()
    assert not wants()
    state.ladder.on_producers((FIRST.epoch, first.wire_last))
    assert bench.rung() is Rung.PROBING
    assert state.next_resend(200.0) is first
    bench.ack(bench.send(first), 1)
    assert bench.rung() is Rung.CLEAR
    assert bench.told.meters.doubts == {"asked": 1}
    assert second.in_doubt


def test_an_answer_about_producers_that_nobody_waits_for_changes_nothing() -> None:
    bench, _ = refused()
    bench.state.ladder.on_producers((FIRST.epoch, 1))
    assert bench.rung() is Rung.REFUSED


def test_the_first_probe_that_succeeds_ends_the_ladder() -> None:
    bench, (first, second) = probing()
    bench.ack(bench.send(second), 2)
    assert bench.rung() is Rung.CLEAR
    assert bench.statuses == [ACKED, ACKED]
    assert bench.told.meters.doubts == {"probe": 2}
    assert first.state is BatchState.ACKED


def test_after_an_unlisted_code_probes_are_sent_one_at_a_time() -> None:
    bench, (first, second) = probing()
    bench.state.gate.question()
    assert bench.state.next_resend(bench.now) is second
    bench.send(second)
    assert bench.state.next_resend(bench.now) is None
    bench.state.gate.hear_of_state()
    assert bench.state.next_resend(bench.now) is first


@pytest.mark.parametrize("way", ["retriable", "lost", "not written"])
def test_a_probe_without_a_verdict_leaves_the_ladder(way: str) -> None:
    """What the other probes have shown does not count any more."""
    bench, (_, second) = probing()
    bench.send(second)
    if way == "retriable":
        bench.refuse(second, NOT_LEADER)
    else:
        bench.lose(second, written=way == "lost")
    assert bench.rung() is Rung.CLEAR


def test_a_retriable_code_before_the_probes_leaves_the_ladder_as_it_is() -> None:
    bench = Bench()
    first, second = bench.doubt(2)
    bench.state.begin_transaction(1, gated=False)
    bench.send(first)
    bench.send(second)
    bench.refuse(first, OUT_OF_ORDER)
    bench.refuse(second, NOT_LEADER)
    assert bench.rung() is Rung.REFUSED


def test_a_batch_without_doubt_that_is_out_of_order_is_a_loss() -> None:
    """The leader refuses the sequence after those that it acknowledged."""
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.refuse(batch, OUT_OF_ORDER)
    bench.advance()
    reason = "the leader refuses the sequence after those it acknowledged"
    assert bench.told.take() == [
        ("data loss", f"{T}-0", reason),
        ("bump", f"{T}-0", FIRST, reason),
    ]
    assert bench.rung() is Rung.CLEAR
    assert bench.state.setbacks.retry_at == 101.0
    assert bench.statuses == []


def test_out_of_order_is_no_loss_while_numbers_are_given_up() -> None:
    """The gap that they leave is the reason."""
    bench = Bench()
    failed, doubtful = bench.pipelined(2)
    bench.lose(doubtful)
    bench.refuse(failed, INVALID_RECORD)
    bench.told.take()
    bench.now = bench.state.setbacks.retry_at
    bench.refuse(bench.send(doubtful), OUT_OF_ORDER)
    bench.advance()
    assert bench.rung() is Rung.PROBING
    for _ in range(2):
        probe(bench, [doubtful], OUT_OF_ORDER)
        bench.advance()
        bench.now += PAUSE
    assert bench.statuses == [NOT_WRITTEN, UNKNOWN]
    assert bench.told.take() == []


@pytest.mark.parametrize("throttled", [0.0, 25.0])
def test_two_passes_of_refused_probes_are_a_loss(throttled: float) -> None:
    """The second one begins a pause after the first one, or the leader's throttle time after it."""
    bench, batches = probing()
    began = bench.now
    bench.now += 2.0
    probe(bench, batches, OUT_OF_ORDER)
    bench.advance(throttled=throttled)
    assert bench.state.recovery.pass_not_before == began + 2.0 + max(PAUSE, throttled)
    assert bench.rung() is Rung.PROBING
    bench.now = bench.state.recovery.pass_not_before - 0.1
    bench.advance(throttled=throttled)
    assert bench.state.next_resend(bench.now) is None
    bench.now += 0.1
    bench.advance(throttled=throttled)
    assert (bench.rung(), bench.statuses) == (Rung.PROBING, [])
    probe(bench, batches, OUT_OF_ORDER)
    bench.now += 1.0
    bench.advance()
    assert bench.told.names() == ["data loss", "bump"]
    assert bench.statuses == [UNKNOWN, UNKNOWN]
    for settlement in bench.told.settlements:
        assert isinstance(settlement.outcome.error, OutOfOrderSequenceNumber)
    assert bench.rung() is Rung.CLEAR
    assert bench.state.setbacks.retry_at == bench.now + 2.0
    assert bench.told.meters.doubts == {"unknown": 2}


def test_what_the_leader_called_a_duplicate_is_no_loss() -> None:
    """One batch that is in the log, perhaps not replicated, is enough to begin again."""
    bench, (first, second) = probing()
    second.find_appended()
    assert not first.appended
    probe(bench, [first, second], OUT_OF_ORDER)
    bench.advance()
    assert bench.rung() is Rung.CLEAR
    assert bench.told.take() == []
    assert bench.statuses == []


def unlisted() -> tuple[Bench, list[Batch]]:
    """Return two batches in doubt, no copy of which can be appended later, to be probed."""
    bench = Bench()
    batches = bench.pipelined(2)
    for batch in batches:
        bench.refuse(batch, UNLISTED)
    bench.advance()
    assert bench.rung() is Rung.PROBING
    bench.told.take()
    return bench, batches


def test_one_pass_is_enough_if_a_probe_is_refused_for_its_content() -> None:
    """That is no loss, and the records get the leader's error."""
    bench, batches = unlisted()
    probe(bench, batches, INVALID_RECORD, OUT_OF_ORDER)
    bench.advance()
    assert bench.statuses == [UNKNOWN, UNKNOWN]
    for settlement in bench.told.settlements:
        assert str(error(INVALID_RECORD).args[0]) in str(settlement.outcome.error)
    assert bench.told.names() == ["bump"]


@pytest.mark.parametrize("why", ["a copy may come", "no refusal for the content"])
def test_otherwise_it_takes_two_passes(why: str) -> None:
    bench, batches = unlisted()
    if why == "a copy may come":
        batches[1].go_astray()
    code = INVALID_RECORD if why == "a copy may come" else OUT_OF_ORDER
    probe(bench, batches, code)
    bench.advance()
    assert bench.statuses == []
    assert bench.rung() is Rung.PROBING
    bench.now += PAUSE
    probe(bench, batches, code)
    bench.advance()
    assert bench.statuses == [UNKNOWN, UNKNOWN]


def test_the_ladder_ends_when_no_doubt_is_left() -> None:
    for may_ask in (False, True):
        bench, batches = refused()
        bench.advance(may_ask=may_ask)
        assert bench.rung() is (Rung.ASKING if may_ask else Rung.PROBING)
        bench.state.endings.abandon(KafkaError("closed"), bench.told)
        assert not batches[0].in_doubt or batches[0].settled
        bench.told.take()
        bench.advance(may_ask=may_ask)
        assert bench.rung() is Rung.CLEAR
        assert bench.told.take() == []


def test_the_salvage_ends_when_no_batch_is_left() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.ack(second, 1)
    bench.advance()
    assert bench.rung() is Rung.SALVAGE
    bench.expire(first.deadline)
    assert bench.statuses == [ACKED, UNKNOWN]
    bench.advance()
    assert bench.rung() is Rung.CLEAR


@pytest.mark.parametrize("at", [Rung.REFUSED, Rung.ASKING, Rung.PROBING])
def test_a_suspect_leader_is_not_probed(at: Rung) -> None:
    """It may forget the producer between two probes; the log is read instead."""
    bench, batches = refused()
    if at is not Rung.REFUSED:
        bench.advance(may_ask=at is Rung.ASKING)
    assert bench.rung() is at
    bench.suspect()
    bench.advance(may_ask=True)
    assert bench.rung() is Rung.CLEAR
    assert bench.told.take() == []
    assert all(batch.in_doubt for batch in batches)


def test_resend_mode_renumbers_what_a_suspect_leader_refuses() -> None:
    """A second copy is permitted, and no probe would prove anything. It is no loss."""
    bench, batches = refused(resend=True)
    bench.suspect()
    bench.now = 103.0
    bench.advance()
    assert all(batch.forsaken for batch in batches)
    assert bench.told.names() == ["bump"]
    assert bench.state.setbacks.retry_at == 105.0
    assert bench.rung() is Rung.CLEAR
    assert bench.statuses == []


def test_resend_mode_stops_probing_a_suspect_leader() -> None:
    bench, batches = probing(resend=True)
    bench.suspect()
    bench.advance()
    assert bench.rung() is Rung.CLEAR
    assert not any(batch.forsaken for batch in batches)


def test_resend_mode_renumbers_what_no_probe_has_found() -> None:
    bench, batches = probing(resend=True)
    probe(bench, batches, OUT_OF_ORDER)
    bench.advance()
    bench.now += PAUSE
    probe(bench, batches, OUT_OF_ORDER)
    bench.advance()
    assert bench.told.names() == ["data loss", "bump"]
    assert all(batch.forsaken and batch.in_doubt for batch in batches)
    assert bench.statuses == []
    bench.state.adopt(SECOND)
    assert [batch.base for batch in batches] == [0, 1]


def test_what_comes_into_doubt_under_a_shared_id_ends_unknown_too() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.lose(first)
    shared = KafkaError("shared")
    bench.state.endings.disown(shared, bench.told)
    assert bench.statuses == [UNKNOWN]
    bench.lose(second)
    bench.advance()
    assert bench.statuses == [UNKNOWN, UNKNOWN]
    assert bench.told.take() == []


# -- what a success proves while the leader may have forgotten


def test_what_became_suspect_on_its_way_proves_nothing_below_it() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    assert second.attempt is not None
    assert second.attempt.knows_us
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.suspect()
    bench.ack(second, 2)
    assert bench.statuses == [ACKED]
    assert bench.state.recovery.salvaged == [first]


def test_a_success_with_nothing_in_doubt_below_it_begins_no_salvage() -> None:
    bench = Bench()
    bench.state.begin_transaction(1, gated=False)
    _, second = bench.send(), bench.send()
    bench.ack(second, 1)
    assert bench.rung() is Rung.CLEAR


def test_what_is_in_doubt_beside_a_gap_is_salvaged() -> None:
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, NOT_ENOUGH_REPLICAS)
    bench.ack(third, 3)
    assert bench.statuses == [ACKED, NOT_WRITTEN]
    assert (bench.rung(), bench.state.recovery.salvaged) == (Rung.SALVAGE, [first])


def renumbered(how: str = "in flight") -> tuple[Bench, list[Batch]]:
    """Return two batches in doubt under a former epoch that are in flight under the next.

    The first one may also be answered there: it is "refused", or "in doubt" there too.
    """
    bench, batches = refused(resend=True)
    bench.suspect()
    bench.advance()
    bench.state.adopt(SECOND)
    for batch in batches:
        assert batch.absent_here
        bench.send(batch)
    bench.told.take()
    if how == "refused":
        bench.refuse(batches[0], NOT_ENOUGH_REPLICAS)
    elif how == "in doubt":
        bench.refuse(batches[0], REQUEST_TIMED_OUT)
    return bench, batches


def test_what_is_refused_in_its_second_epoch_is_a_gap_there() -> None:
    """It ends UNKNOWN, because a copy may be stored under the first epoch."""
    bench, (first, second) = renumbered()
    bench.refuse(first, INVALID_RECORD)
    assert bench.statuses == [UNKNOWN]
    bench.told.take()
    bench.ack(second, 1)
    assert bench.told.names() == ["data loss"]


@pytest.mark.parametrize("how", ["refused", "in flight", "in doubt"])
def test_what_was_refused_in_its_second_epoch_below_a_success_is_a_gap_there(how: str) -> None:
    """It is resent by itself, because a copy may be stored under the first epoch."""
    bench, (first, second) = renumbered(how)
    bench.told.take()
    bench.ack(second, 1)
    assert bench.told.names() == (["data loss", "bump"] if how == "refused" else [])
    assert bench.statuses == [ACKED]
    assert bench.state.recovery.salvaged == [first]


@pytest.mark.parametrize("how", ["refused", "in flight", "in doubt"])
def test_what_expires_in_its_second_epoch_is_a_gap_there_if_it_was_refused(how: str) -> None:
    """A batch that is in flight, or in doubt in that epoch too, may be stored."""
    bench, (first, second) = renumbered(how)
    second.deadline += 100.0
    bench.expire(first.deadline)
    assert bench.statuses == [UNKNOWN]
    bench.told.take()
    bench.ack(second, 1)
    assert bench.told.names() == (["data loss"] if how == "refused" else [])


# -- reading the log


def suspect(count: int = 2) -> tuple[Bench, list[Batch]]:
    bench = Bench()
    batches = bench.doubt(count)
    bench.suspect()
    bench.told.take()
    return bench, batches


def written(batch: Batch, offset: int) -> WrittenBatch:
    return WrittenBatch(offset, offset + batch.count, *FIRST, batch.wire_base)


def test_the_log_is_read_for_doubt_that_no_resend_may_resolve() -> None:

    def wants(bench: Bench) -> bool:
        return bench.state.lookup.wanted

    bench = Bench()
    (batch,) = bench.doubt(1)
    assert not wants(bench), "the leader is not suspect"
    bench.suspect()
    assert wants(bench)
    assert bench.state.lookup.begin() == 1
    assert not wants(bench), "it is being read"
    bench.state.lookup.end()
    other = bench.send()
    assert not wants(bench), "a batch is in flight"
    bench.ack(other, 5)
    assert batch.in_doubt
    assert wants(bench)
    permitted = Bench(resend=True)
    permitted.doubt(1)
    permitted.suspect()
    assert not wants(permitted), "a second copy is permitted"
    mixed = Bench()
    rejected, lost = mixed.pipelined(2)
    mixed.refuse(rejected, NOT_ENOUGH_REPLICAS)
    mixed.suspect()
    mixed.lose(lost, written=False)
    assert not wants(mixed), "nothing is in doubt"
    mixed.lose(mixed.send(lost))
    assert wants(mixed), "one of two is"


def test_without_an_acknowledged_offset_the_log_is_not_read() -> None:
    bench = Bench()
    bench.lose(bench.send())
    assert bench.state.lookup.begin() is None


def test_reading_ends_when_all_batches_in_doubt_are_found() -> None:
    """Refused ones are not looked for, and the log may go on."""
    bench = Bench()
    refused, first, second = bench.pipelined(3)
    bench.lose(first, second)
    bench.suspect()
    bench.state.lookup.begin()
    page = [written(first, 3), written(second, 4)]
    bench.refuse(refused, NOT_ENOUGH_REPLICAS)
    bench.told.take()
    assert bench.state.lookup.take_page(page, 1000, bench.told) is None
    assert bench.state.read_back.offset is None
    assert bench.outcomes == [(ACKED, 3, 1, 1), (NOT_WRITTEN, -1, 1, 1), (ACKED, 4, 1, 1)]
    assert bench.told.names() == ["data loss", "bump"]
    assert bench.told.meters.doubts == {"read back": 2}
    assert bench.state.log.offset == 4


def test_a_batch_that_was_refused_is_not_looked_for() -> None:
    bench = Bench()
    doubtful, refused = bench.pipelined(2)
    bench.refuse(refused, NOT_ENOUGH_REPLICAS)
    bench.lose(doubtful)
    bench.state.lookup.begin()
    assert bench.state.lookup.take_page([written(doubtful, 1)], 1000, bench.told) is None
    assert bench.statuses == [ACKED]
    assert bench.state.batches.unresolved == [refused]


def test_reading_goes_on_until_the_end_of_the_log() -> None:
    """What is not found by then ends UNKNOWN."""
    bench, (first, second) = suspect()
    bench.state.lookup.begin()
    offsets = []
    for page in ([written(second, 5)], []):
        following = bench.state.lookup.take_page(page, 7, bench.told)
        assert following == bench.state.read_back.offset
        offsets.append((following, bench.statuses))
    assert offsets == [(6, [ACKED]), (None, [ACKED, UNKNOWN])]
    assert first.state is BatchState.UNKNOWN


def test_doubt_that_is_given_up_leaves_what_is_in_flight() -> None:
    bench, (first, second) = suspect()
    bench.send(first)
    bench.state.lookup.begin()
    bench.state.lookup.give_up_doubt(bench.told)
    assert bench.state.read_back.offset is None
    assert bench.statuses == [UNKNOWN]
    assert bench.state.batches.unresolved == [first]
    assert second.state is BatchState.UNKNOWN
    assert isinstance(bench.told.settlements[0].outcome.error, UnknownProducerId)


# -- deadlines


def test_at_its_deadline_ends_what_was_never_appended() -> None:
    """The errors count all records that end so together."""
    bench = Bench()
    bench.ack(bench.send(), 0)
    rejected = bench.send(records=3, deadline=200.0)
    bench.refuse(rejected, NOT_ENOUGH_REPLICAS)
    bench.queue(deadline=200.0)
    bench.queue(deadline=200.0)
    bench.queue(deadline=200.1)
    bench.told.take()
    bench.told.settlements.clear()
    bench.expire(199.9)
    assert bench.outcomes == []
    bench.expire(200.0)
    assert bench.outcomes == [(NOT_WRITTEN, -1, 0, 2), (NOT_WRITTEN, -1, 1, 3)]
    for settlement in bench.told.settlements:
        assert f"{T}-0: 5 records not written in delivery_timeout ({TIMEOUT:g} s)" in str(
            settlement.outcome.error
        )
    assert "waiting behind a batch" in str(bench.told.settlements[0].outcome.error)
    assert "sent once" in str(bench.told.settlements[1].outcome.error)
    assert bench.told.take() == [
        ("bump", f"{T}-0", FIRST, "a batch ended NOT_WRITTEN (DeliveryTimeoutError)")
    ]
    assert bench.state.unsettled == 1


def test_doubt_that_lasts_longer_does_so_whoever_leads_then() -> None:
    bench = Bench()
    bench.ack(bench.send(), 0)
    batch = bench.send(deadline=200.0)
    bench.told.settlements.clear()
    bench.now = 150.0
    bench.lose(batch)
    bench.expire(200.0, 150.1)
    bench.expire(200.1, None)  # the new leader has answered nothing yet
    bench.expire(200.0 + GRACE - 0.1, None)
    assert bench.outcomes == []
    bench.expire(200.0 + GRACE, None)
    assert bench.outcomes == [(UNKNOWN, -1, 1, 1)]


@pytest.mark.parametrize(("answered_at", "lasts"), [(None, 0.0), (150.0, 0.0), (150.1, GRACE)])
def test_doubt_lasts_longer_if_the_leader_has_answered_since(
    answered_at: float | None, lasts: float
) -> None:
    bench = Bench()
    bench.ack(bench.send(), 0)
    batches = [bench.send(records=2, deadline=200.0) for _ in range(2)]
    bench.told.settlements.clear()
    bench.now = 150.0
    bench.lose(*batches)
    if lasts:
        bench.expire(200.0 + lasts - 0.1, answered_at)
        assert bench.outcomes == []
    bench.expire(200.0 + lasts, answered_at)
    assert bench.outcomes == [(UNKNOWN, -1, 1, 2)] * 2
    for settlement in bench.told.settlements:
        assert f"{T}-0: 4 records not acknowledged, perhaps written," in str(
            settlement.outcome.error
        )
    assert bench.told.names() == ["bump"]


def test_a_batch_in_flight_ends_at_its_deadline_though_the_leader_answers_others() -> None:
    """No doubt arose that the leader could resolve in the grace time."""
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.expire(batch.deadline, answered_at=batch.deadline - 0.1)
    assert bench.statuses == [UNKNOWN]
    assert bench.state.batches.outstanding == 1


def test_records_without_a_producer_id_say_that_they_wait_for_it() -> None:
    connected = LeaderStatus("broker 1", leads=True, down_since=None, attempts=0, error=None)
    granted = "no acknowledgement of the leader, broker 1"
    waiting = Bench()
    waiting.state.ledger.identity = None
    assert (
        waiting.state.deadlines.obstacle(connected, 0.0) == "the cluster has granted no producer id"
    )
    assert Bench().state.deadlines.obstacle(connected, 0.0) == granted
    assert Bench(idempotent=False).state.deadlines.obstacle(connected, 0.0) == granted


def test_a_partition_without_a_leader_says_since_when() -> None:
    bench = Bench()
    leaderless = LEADER._replace(name=None, leads=False)
    bench.state.setbacks.leaderless(90.0)
    bench.state.setbacks.leaderless(95.0)
    assert bench.state.deadlines.obstacle(leaderless, 100.0) == "no leader for 10.0 s"


# -- the end of a transaction, a topic or the producer


def in_every_state(**options: Any) -> tuple[Bench, dict[str, Batch]]:
    """Return a partition with batches in each state, and a queued record."""
    bench = Bench(**options)
    refused, doubtful, flying = bench.pipelined(3)
    bench.refuse(refused, NOT_ENOUGH_REPLICAS)
    bench.lose(doubtful)
    sealed = bench.seal(2)
    bench.queue()
    bench.told.take()
    return bench, {"refused": refused, "doubtful": doubtful, "flying": flying, "sealed": sealed}


def test_the_end_of_the_producer_settles_everything() -> None:
    """What may have been appended ends UNKNOWN, also what is in flight."""
    bench, batches = in_every_state()
    reason = KafkaError("closed")
    bench.state.endings.abandon(reason, bench.told)
    assert bench.outcomes == [
        (NOT_WRITTEN, -1, 0, 1),
        (NOT_WRITTEN, -1, 1, 1),
        (UNKNOWN, -1, 1, 1),
        (UNKNOWN, -1, 1, 1),
        (NOT_WRITTEN, -1, 0, 2),
    ]
    assert (bench.state.batches.unresolved, bench.state.queue.count) == ([], 0)
    assert bench.state.batches.outstanding == 1
    assert bench.told.names() == ["bump"]
    assert batches["sealed"].state is BatchState.NOT_WRITTEN
    for settlement in bench.told.settlements:
        error = settlement.outcome.error
        assert isinstance(error, KafkaError)
        incident = error.incident
        assert (incident is not None) is (settlement.outcome.status is UNKNOWN)


@pytest.mark.parametrize("doubt", [None, NOT_WRITTEN, UNKNOWN])
def test_an_abort_settles_what_is_not_in_flight(doubt: DeliveryStatus | None) -> None:
    """Doubt may be left to the end of the transaction, which decides it. All numbers are given up.

    An outcome that is known counts as no doubt, and needs no incident.
    """
    bench, batches = in_every_state(transactional=True)
    reason = KafkaError("aborted")
    bench.state.endings.abort(reason, doubt, bench.told)
    settled = [(NOT_WRITTEN, -1, 0, 1), (NOT_WRITTEN, -1, 1, 1)]
    if doubt is not None:
        settled.append((doubt, -1, 1, 1))
    assert bench.outcomes == [*settled, (NOT_WRITTEN, -1, 0, 2)]
    left = [batches["flying"]] if doubt is not None else [batches["doubtful"], batches["flying"]]
    assert bench.state.batches.unresolved == left
    assert bench.told.names() == ["bump"]
    assert bench.state.queue.count == 0
    assert bench.told.meters.doubts == ({"unknown": 1} if doubt is UNKNOWN else {})
    for settlement in bench.told.settlements:
        error = settlement.outcome.error
        assert isinstance(error, KafkaError)
        assert (error.incident is not None) is (settlement.outcome.status is UNKNOWN)


def test_an_abort_gives_up_the_numbers_of_a_batch_that_it_leaves_in_doubt() -> None:
    """A late copy of it must not become part of the next transaction."""
    bench = Bench(transactional=True)
    (batch,) = bench.doubt(1)
    bench.state.endings.abort(KafkaError("aborted"), None, bench.told)
    assert bench.told.take() == [
        ("bump", f"{T}-0", FIRST, "the transaction is aborted (KafkaError)")
    ]
    assert bench.state.batches.unresolved == [batch]


def test_records_that_were_never_appended_are_taken_back_in_order() -> None:
    bench, batches = in_every_state()
    taken = bench.state.batches.reclaim()
    assert taken == [*batches["refused"].records, *batches["sealed"].records]
    assert bench.state.batches.unresolved == [batches["doubtful"], batches["flying"]]
    assert batches["refused"].state is batches["sealed"].state is BatchState.SPLIT
    assert bench.outcomes == []
    assert bench.told.take() == []
    assert bench.state.queue.count == 1


def test_a_new_route_is_taken_by_what_is_left_of_an_abandoned_partition() -> None:
    bench, batches = in_every_state()
    bench.state.endings.abandon(KafkaError("closed"), bench.told)
    assert not bench.state.follow(RECONNECTED)
    bench.lose(batches["flying"])
    assert bench.state.follow(RECONNECTED)


def test_a_pass_that_has_ended_counts_after_a_reconnect_but_the_leader_is_asked_anew() -> None:
    """A success on the new connection proves no earlier batch before the leader shows its state."""
    bench = Bench()
    older, newer = bench.doubt(2)
    bench.now = bench.state.setbacks.retry_at
    bench.refuse(bench.send(older), OUT_OF_ORDER)
    bench.advance()
    for batch in (newer, older):
        assert bench.state.next_resend(bench.now) is batch
        bench.refuse(bench.send(batch), OUT_OF_ORDER)
    bench.advance()
    assert bench.state.recovery.pauses
    bench.state.follow(RECONNECTED)
    assert bench.rung() is Rung.PROBING
    bench.now += PAUSE
    bench.advance()
    assert bench.state.next_resend(bench.now) is newer
    bench.ack(bench.send(newer), 5)
    assert bench.statuses == [ACKED]
    assert bench.rung() is Rung.SALVAGE

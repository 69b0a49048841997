"""The verdict about a batch that ended UNKNOWN, as a function of the incident and the log read.

DESIGN.md ("UNKNOWN is not the last word") has the proof of the rule.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest

from aioidem._broker.markers import end_marker
from aioidem._broker.virtual import idempotent_batch
from aioidem._engine.log_search import LogFacts, LoggedBatch, LogSearch, judge, logged_batch
from aioidem._records import Codec, ReadRecord, RecordBatch, assign_offsets, build_batch
from aioidem.errors import ProtocolError
from aioidem.incident import Acknowledged, Incident
from aioidem.resolution import Resolution, UndecidedReason, Verdict

TOPIC = UUID(int=1)
NOW = 1_700_000_100_000
DAY = 86_400.0
P, E = 4000, 3
CRC, CODEC = 0xABCD, 4
HALF = 1 << 30

ANCHOR = Acknowledged(offset=99, producer_id=P, producer_epoch=E, last_sequence=9)
INCIDENT = Incident(
    topic="orders",
    partition=3,
    topic_id=TOPIC,
    producer_id=P,
    producer_epoch=E,
    base_sequence=10,
    count=5,
    timestamp_ms=NOW,
    after=ANCHOR,
    crc=CRC,
    codec=CODEC,
)


def batch(
    base: int, count: int = 1, *, pid: int = P, epoch: int = E, sequence: int = 0, **more: Any
) -> LoggedBatch:
    """Return a batch with its first offset, by default of the incident's producer."""
    last = (sequence + count - 1) % (1 << 31) if sequence >= 0 else -1
    values = {"max_timestamp_ms": NOW, "crc": 1, "codec": CODEC} | more
    return LoggedBatch(base, base + count - 1, pid, epoch, sequence, last, **values)


def marker(base: int, *, epoch: int = E, commits: bool = True) -> LoggedBatch:
    return batch(base, epoch=epoch, sequence=-1, control=True, commits=commits)


def verdict(
    *log: LoggedBatch, incident: Incident = INCIDENT, begin: int = 99, **facts: Any
) -> Resolution:
    """Return the verdict after reading these batches; the first is the acknowledged one's."""
    search = LogSearch(incident, begin)
    search.read(log)
    told: dict[str, Any] = {"topic_id": TOPIC, "now_ms": NOW, "expiration": DAY} | facts
    return judge(incident, search, LogFacts(**told))


def reason(*log: LoggedBatch, **more: Any) -> UndecidedReason | None:
    found = verdict(*log, **more)
    assert (found.verdict is Verdict.UNDECIDED) == (found.reason is not None)
    assert found.detail
    return found.reason


ACKED = batch(97, 3, sequence=7)
MINE = batch(100, 5, sequence=10, crc=CRC)
OTHER = batch(100, 5, pid=7, sequence=10)
BUMPED = batch(105, epoch=E + 1)
ABSENT = (ACKED, OTHER, BUMPED)


def test_the_batch_in_the_log_is_written() -> None:
    """The batch's identity, number of records and checksum prove that it is the batch."""
    found = verdict(ACKED, MINE)
    assert (found.verdict, found.offset, found.committed) == (Verdict.WRITTEN, 100, True)
    assert verdict(ACKED, MINE, incident=INCIDENT.of_record(3)).offset == 103


def test_the_words_name_the_last_offset_that_was_read() -> None:
    """An empty log has no last offset: its end is not called offset -1."""
    assert "is not in orders-3, which was read up to offset 105" in verdict(*ABSENT).detail
    unacknowledged = dataclasses.replace(INCIDENT, after=None)
    found = verdict(incident=unacknowledged, begin=0)
    assert found.reason is UndecidedReason.NOT_FENCED
    assert found.detail.startswith("the batch is not in orders-3, which is empty, but a broker")


def test_an_absent_batch_needs_a_later_one_of_the_same_producer() -> None:
    """A newer epoch, or a later sequence of the same epoch, makes each leader refuse a copy."""
    assert verdict(*ABSENT).verdict is Verdict.ABSENT
    assert verdict(ACKED, OTHER, batch(105, sequence=15)).verdict is Verdict.ABSENT
    assert verdict(ACKED, OTHER, marker(105, epoch=E + 1)).verdict is Verdict.ABSENT
    assert reason(ACKED, OTHER) is UndecidedReason.NOT_FENCED
    assert reason(ACKED, batch(100, pid=7, epoch=E + 1)) is UndecidedReason.NOT_FENCED


@pytest.mark.parametrize(
    ("last", "refused"),
    [
        (batch(105, epoch=E - 1, sequence=50), False),  # an older epoch
        (batch(105, sequence=9), False),  # just before the wanted one
        (batch(105, sequence=11), True),
        (batch(105, sequence=(10 + HALF - 1)), True),
        (batch(105, sequence=(10 + HALF)), False),  # more than half of the sequences ahead
        (marker(105), False),  # a marker of the same epoch leaves the sequence
        (marker(105, epoch=E - 1), False),
    ],
)
def test_which_last_batch_makes_a_leader_refuse_the_wanted_one(
    last: LoggedBatch, refused: bool
) -> None:
    """Only a newer epoch and a later sequence do."""
    found = verdict(ACKED, OTHER, last)
    assert found.verdict is (Verdict.ABSENT if refused else Verdict.UNDECIDED)


def test_the_last_state_counts_and_no_earlier_one() -> None:
    """Brokers that forgot a newer epoch may have accepted an older one again: no fence is left."""
    forgotten = batch(106, sequence=5)
    assert reason(ACKED, OTHER, BUMPED, forgotten) is UndecidedReason.NOT_FENCED


def test_sequences_wrap() -> None:
    """After the highest sequence comes 0, which is later."""
    last = (1 << 31) - 1
    incident = Incident(
        topic="orders",
        partition=3,
        topic_id=TOPIC,
        producer_id=P,
        producer_epoch=E,
        base_sequence=last,
        count=1,
        timestamp_ms=NOW,
        after=ANCHOR,
    )
    assert verdict(ACKED, OTHER, batch(105, sequence=0), incident=incident).verdict is (
        Verdict.ABSENT
    )
    wrapped = batch(100, 5, sequence=last - 2, crc=CRC)
    assert wrapped.last_sequence == 1


def test_other_bytes_under_the_identity_are_not_the_batch() -> None:
    """Another client can have the same producer id (from another cluster), epoch and sequence."""
    other = UndecidedReason.OTHER_BYTES
    assert reason(ACKED, batch(100, 5, sequence=10, crc=CRC + 1), BUMPED) is other
    assert reason(ACKED, batch(100, 4, sequence=10, crc=CRC), batch(104), BUMPED) is other


def test_a_broker_may_change_the_checksum() -> None:
    """It does if it sets its own time or compresses anew, and the batch is still the same."""
    for change in ({"log_append": True}, {"codec": 1}):
        found = verdict(ACKED, batch(100, 5, sequence=10, crc=CRC + 1, **change))
        assert found.verdict is Verdict.WRITTEN


def test_a_missing_part_of_the_log_decides_nothing() -> None:
    """Compaction leaves gaps; the batch may have been there."""
    assert reason(ACKED, batch(101, 4, pid=7), BUMPED) is UndecidedReason.COMPACTION
    assert reason(ACKED, batch(100, 4, pid=7), BUMPED) is UndecidedReason.COMPACTION


def test_the_acknowledged_record_must_be_where_it_was() -> None:
    """If not, the log lost its end, and a copy may be at a lower offset than was read."""
    truncated = UndecidedReason.TRUNCATED
    for other in (
        batch(97, 3, pid=7, sequence=7),
        batch(97, 3, epoch=E + 1, sequence=7),
        batch(97, 3, sequence=8),
        batch(98, 3, sequence=7),
    ):
        rest = batch(other.last_offset + 1, 5, pid=7), batch(other.last_offset + 6, epoch=E + 1)
        assert reason(other, *rest) is truncated


def test_without_an_acknowledged_record_the_log_is_read_from_its_very_first_offset() -> None:
    """Only offset 0 certainly precedes each copy."""
    first = Incident(
        topic="orders",
        partition=3,
        topic_id=TOPIC,
        producer_id=P,
        producer_epoch=E,
        base_sequence=0,
        count=5,
        timestamp_ms=NOW,
    )
    bumped = batch(5, epoch=E + 1)
    others = batch(0, 5, pid=7)
    assert verdict(others, bumped, incident=first, begin=0).verdict is Verdict.ABSENT
    later = batch(1, 4, pid=7)
    assert reason(later, bumped, incident=first, begin=1) is UndecidedReason.RETENTION


def test_a_log_that_was_deleted_whole_is_gone() -> None:
    """Nothing was read, and the log begins after the place where the batch would be."""
    assert reason(log_start=100) is UndecidedReason.RETENTION
    first = dataclasses.replace(INCIDENT, after=None)
    assert reason(incident=first, begin=0, log_start=3) is UndecidedReason.RETENTION


def test_an_old_fence_may_be_forgotten() -> None:
    """Brokers forget a producer a day after its last batch; half of that covers their clocks."""
    assert verdict(*ABSENT, now_ms=NOW + DAY * 500).verdict is Verdict.ABSENT
    assert reason(*ABSENT, now_ms=NOW + DAY * 500 + 1) is UndecidedReason.FORGOTTEN
    assert reason(*ABSENT, expiration=10.0, now_ms=NOW + 5001) is UndecidedReason.FORGOTTEN


def test_another_topic_of_the_same_name_decides_nothing() -> None:
    """The incident's log is gone with its topic; without ids nobody can tell."""
    assert reason(*ABSENT, topic_id=UUID(int=2)) is UndecidedReason.TOPIC_GONE
    assert reason(*ABSENT, topic_id=None) is UndecidedReason.NO_TOPIC_ID


def test_a_batch_that_had_another_identity_before_cannot_be_absent() -> None:
    """With in_doubt="resend" a copy with the old sequence may be in the log."""
    values = {name: getattr(INCIDENT, name) for name in Incident.__slots__}
    resent = Incident(**(values | {"renumbered": True}))
    assert reason(*ABSENT, incident=resent) is UndecidedReason.RENUMBERED
    assert verdict(ACKED, MINE, incident=resent).verdict is Verdict.WRITTEN


def test_what_kept_the_log_from_being_read_is_the_reason() -> None:
    """A search that was not finished proves only what it found."""
    obstacle = UndecidedReason.RETENTION
    assert reason(*ABSENT, obstacle=obstacle, detail="gone") is obstacle
    assert verdict(ACKED, MINE, obstacle=obstacle, detail="gone").verdict is Verdict.WRITTEN
    nothing = judge(INCIDENT, None, LogFacts(None, NOW, DAY))
    assert nothing.reason is UndecidedReason.TIMED_OUT


@pytest.mark.parametrize(
    ("ended", "committed"),
    [((), None), ((marker(105),), True), ((marker(105, commits=False),), False)],
)
def test_the_end_of_a_transaction_says_who_sees_the_record(
    ended: tuple[LoggedBatch, ...], committed: bool | None
) -> None:
    """A record of an aborted transaction is in the log, but not for readers of committed data."""
    mine = batch(100, 5, sequence=10, crc=CRC, transactional=True)
    search = LogSearch(INCIDENT, 99)
    search.read([ACKED, mine, *ended])
    assert search.settled == bool(ended)
    found = verdict(ACKED, mine, *ended)
    assert (found.verdict, found.committed) == (Verdict.WRITTEN, committed)


def test_the_first_marker_after_the_batch_ends_its_transaction() -> None:
    """Markers of earlier and later transactions say nothing about it."""
    mine = batch(101, 5, sequence=10, crc=CRC, transactional=True)
    found = verdict(
        ACKED, marker(100, commits=False), mine, marker(106), marker(107, commits=False)
    )
    assert found.committed is True


def test_a_header_is_taken_from_the_bytes() -> None:
    """What a search needs of a batch is in its header."""
    stored = assign_offsets(idempotent_batch(10), base_offset=100, leader_epoch=2)
    read = logged_batch(RecordBatch(stored))
    assert read[:6] == (100, 100, *_identity(stored), 10, 10)
    assert (read.size, read.control, read.commits) == (1, False, None)
    for commits in (True, False):
        ended = logged_batch(RecordBatch(end_marker(P, E, commit=commits, stamp_ms=NOW)))
        assert (ended.control, ended.commits, ended.producer_id) == (True, commits, P)


def test_a_marker_that_decompresses_to_much_is_malformed() -> None:
    """A log of such markers would otherwise cost 64 MiB for each of them."""
    record = ReadRecord(0, NOW, b"\x00\x00\x00\x00", bytes(1 << 20), ())
    bomb = build_batch([record], codec=Codec.GZIP, control=True).data
    with pytest.raises(ProtocolError, match="more than 4096 bytes"):
        logged_batch(RecordBatch(bomb))


def _identity(data: bytes) -> tuple[int, int]:
    header = RecordBatch(data)
    return header.producer_id, header.producer_epoch


NOTHING_BEFORE = dataclasses.replace(INCIDENT, after=None)
"""The incident of a batch before which nothing was acknowledged."""


def test_a_marker_alone_fences_only_with_a_newer_epoch() -> None:
    """It leaves the sequence as it was, of which nothing was read."""
    for log in ((marker(0),), (batch(0, epoch=E - 1, sequence=50), marker(1))):
        found = verdict(*log, incident=NOTHING_BEFORE, begin=0)
        assert found.reason is UndecidedReason.NOT_FENCED
    assert verdict(marker(0, epoch=E + 1), incident=NOTHING_BEFORE, begin=0).verdict is (
        Verdict.ABSENT
    )


def test_the_first_of_two_copies_is_named() -> None:
    again = batch(105, 5, sequence=10, crc=CRC)
    assert verdict(ACKED, MINE, again).offset == 100
    others = [batch(base, 5, sequence=10, crc=7) for base in (100, 105)]
    found = verdict(ACKED, *others)
    assert found.reason is UndecidedReason.OTHER_BYTES
    assert "the batch at offset 100 of orders-3" in found.detail


def test_without_a_checksum_the_identity_and_the_number_of_records_are_enough() -> None:
    unknown = dataclasses.replace(INCIDENT, crc=None)
    assert verdict(ACKED, batch(100, 5, sequence=10, crc=7), incident=unknown).offset == 100
    shorter = verdict(ACKED, batch(100, 4, sequence=10, crc=7), incident=unknown)
    assert shorter.reason is UndecidedReason.OTHER_BYTES


def test_what_is_before_the_acknowledged_record_says_nothing() -> None:
    early = batch(50, 5, sequence=10, crc=CRC)
    assert verdict(early, ACKED, begin=0).verdict is Verdict.UNDECIDED
    assert verdict(early, ACKED, OTHER, BUMPED, begin=0).verdict is Verdict.ABSENT


def test_the_first_missing_offset_is_named_and_why_it_is_missing() -> None:
    later = batch(110, pid=7), batch(120, epoch=E + 1)
    for log_start, why in (
        (99, UndecidedReason.COMPACTION),
        (100, UndecidedReason.COMPACTION),
        (101, UndecidedReason.RETENTION),
    ):
        found = verdict(ACKED, *later, log_start=log_start)
        assert found.reason is why
        assert "has no record at offset 100 any more" in found.detail


def test_the_acknowledged_record_may_have_been_deleted_or_cut_off() -> None:
    for log_start, why in ((99, UndecidedReason.TRUNCATED), (100, UndecidedReason.RETENTION)):
        found = verdict(batch(98, 7, pid=7), BUMPED, log_start=log_start)
        assert found.reason is why


def test_a_log_that_begins_where_the_reading_ended_is_not_gone() -> None:
    for log_start, why in ((106, None), (107, UndecidedReason.RETENTION)):
        assert verdict(*ABSENT, log_start=log_start).reason is why


@pytest.mark.parametrize(
    ("ends", "committed", "seen"),
    [
        ((), None, "; its transaction is open"),
        ((marker(105, commits=False),), False, "; its transaction was aborted"),
        ((marker(105),), True, "; its transaction was committed"),
        ((marker(105)._replace(commits=None), marker(106, commits=False)), False, "was aborted"),
    ],
)
def test_what_became_of_the_transaction_is_told(
    ends: tuple[LoggedBatch, ...], committed: bool | None, seen: str
) -> None:
    mine = MINE._replace(transactional=True)
    found = verdict(ACKED, mine, *ends)
    assert (found.verdict, found.committed) == (Verdict.WRITTEN, committed)
    assert found.detail.startswith("its batch is in the log at offset 100")
    assert found.detail.endswith(seen)
    search = LogSearch(INCIDENT, 99)
    search.read([ACKED, mine, *ends])
    assert search.settled is (committed is not None)


def test_a_transaction_whose_end_was_not_read_is_not_called_open() -> None:
    """The reading ended behind the record, at the timeout for instance."""
    mine = MINE._replace(transactional=True)
    found = verdict(ACKED, mine, obstacle=UndecidedReason.TIMED_OUT, detail="no answer")
    assert (found.verdict, found.committed) == (Verdict.WRITTEN, None)
    assert "open" not in found.detail
    assert found.detail.endswith("it is not known whether its transaction was committed: no answer")


def test_a_record_outside_of_a_transaction_is_settled_when_it_is_found() -> None:
    search = LogSearch(INCIDENT, 99)
    search.read([ACKED])
    assert not search.settled
    search.read([MINE])
    assert search.settled


@pytest.mark.parametrize("lacks", ["log", "incident"])
def test_without_a_topic_id_the_topic_may_be_another_one(lacks: str) -> None:
    incident = dataclasses.replace(INCIDENT, topic_id=None) if lacks == "incident" else INCIDENT
    facts = {"topic_id": None} if lacks == "log" else {}
    assert reason(*ABSENT, incident=incident, **facts) is UndecidedReason.NO_TOPIC_ID

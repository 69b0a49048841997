"""The in-memory log of a replica of the embedded broker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioidem._broker.batch import StoredBatch, check_crc, parse_single_batch
from aioidem._broker.log import Log
from aioidem._broker.virtual import START_MS, idempotent_batch
from aioidem._records import read_batches


def stored(
    base_offset: int,
    count: int = 1,
    *,
    epoch: int = 0,
    stamp: int = START_MS,
    log_append_time: bool = False,
) -> StoredBatch:
    data = idempotent_batch(base_offset, timestamps_ms=[stamp] * count)
    return StoredBatch(
        data, parse_single_batch(data), base_offset, epoch, START_MS + 5, log_append_time
    )


def filled(*counts: int) -> Log:
    log = Log()
    for count in counts:
        log.append(stored(log.end_offset, count))
    return log


def test_a_batch_is_read_back_with_its_offset_and_leader_epoch() -> None:
    """A stored batch is read back with its offset and leader epoch."""
    (batch,) = read_batches(stored(1234, 3, epoch=9).wire())
    assert (batch.base_offset, batch.leader_epoch) == (1234, 9)
    assert batch.crc_ok()
    assert [r.offset for r in batch.records()] == [1234, 1235, 1236]


def test_log_append_time_replaces_the_records_time_and_keeps_the_checksum_right() -> None:
    """LogAppendTime replaces the timestamps of a batch, and its checksum is corrected."""
    kept = stored(10, 2, log_append_time=True)
    check_crc(kept.data, kept.header)
    (batch,) = read_batches(kept.wire())
    assert batch.crc_ok()
    assert batch.log_append
    assert [r.timestamp_ms for r in batch.records()] == [START_MS + 5] * 2
    assert kept.log_append_time_ms == kept.max_timestamp_ms == START_MS + 5


def test_reading_begins_with_the_batch_that_holds_the_offset() -> None:
    """A read begins with the batch that contains the offset."""
    log = filled(5, 5, 5)
    found = log.read(7, 10**6, log.end_offset, at_least_one=True)
    assert [b.base_offset for b in found] == [5, 10]


def test_reading_stops_below_the_high_watermark() -> None:
    """A read returns only batches that end below the offset `below`."""
    log = filled(5, 5, 5)
    assert [b.base_offset for b in log.read(0, 10**6, 10, at_least_one=True)] == [0, 5]
    assert log.read(0, 10**6, 4, at_least_one=True) == []


def test_reading_keeps_to_its_bytes_but_for_the_first_batch_when_asked() -> None:
    """A read keeps to its byte limit, except for the first batch if `at_least_one` is set."""
    log = filled(5, 5, 5)
    one = len(log.batches[0].data)
    assert len(log.read(0, 2 * one, 15, at_least_one=True)) == 2
    assert len(log.read(0, one - 1, 15, at_least_one=True)) == 1
    assert log.read(0, one - 1, 15, at_least_one=False) == []


def test_retention_forgets_whole_batches_from_the_head_and_never_the_newest() -> None:
    """Retention removes whole batches from the start of the log, and never the newest batch."""
    log = filled(5, 5, 5)
    log.enforce_retention(log.size - 1, below=15)
    assert (log.start_offset, log.end_offset) == (5, 15)
    log.enforce_retention(0, below=15)
    assert (log.start_offset, log.end_offset) == (10, 15)
    assert log.size == len(log.batches[0].data)


def test_retention_keeps_every_batch_that_reaches_the_high_watermark() -> None:
    """What is not committed stays, however large the log is."""
    log = filled(5, 5, 5)
    log.enforce_retention(0, below=7)
    assert (log.start_offset, log.end_offset) == (5, 15)


def test_offsets_are_found_by_time() -> None:
    """The log finds the first batch that reaches a time, and the batch of the newest timestamp."""
    log = Log()
    for offset, stamp in enumerate((10, 50, 30, 70)):
        log.append(stored(offset, stamp=stamp))
    found = log.first_batch_reaching(40, below=4)
    assert found is not None
    assert found.base_offset == 1
    assert log.first_batch_reaching(60, below=3) is None
    newest = log.newest_by_timestamp(below=3)
    assert newest is not None
    assert newest.base_offset == 1
    assert Log().newest_by_timestamp(below=0) is None


def test_the_end_of_an_epoch_is_where_the_next_one_begins() -> None:
    """A leader epoch ends where the next one begins."""
    log = Log()
    for epoch in (1, 1, 4, 6):
        log.append(stored(log.end_offset, 10, epoch=epoch))
    assert log.end_of_epoch(1) == (1, 20)
    assert log.end_of_epoch(2) == (1, 20)
    assert log.end_of_epoch(5) == (4, 30)
    assert log.end_of_epoch(6) == (6, 40)
    assert log.end_of_epoch(9) == (6, 40)
    assert log.end_of_epoch(0) == (0, 0), "no lower epoch: where the first one begins"
    log.delete_before(15)
    assert log.end_of_epoch(0) == (0, 15)
    assert log.end_of_epoch(1) == (1, 20)
    log.delete_before(40)
    assert log.end_of_epoch(1) == (1, 40)


def test_truncation_to_the_common_end_leaves_what_both_logs_share() -> None:
    """Truncating a follower at the common end leaves the batches that both logs share."""
    leader, follower = filled(5, 5), Log()
    follower.copy_from(leader)
    follower.append(stored(10, 3))
    leader.append(stored(10, 4))
    assert follower.common_end(leader) == 10
    assert follower.truncate(10)
    assert not follower.truncate(10)
    assert follower.end_offset == 10
    assert follower.size == leader.size - len(leader.batches[-1].data)


def test_logs_that_share_nothing_are_cut_to_the_start() -> None:
    """A log that shares no batch with the leader's is truncated to its start."""
    ours, theirs = filled(5), filled(5)
    assert ours.common_end(theirs) == 0
    assert ours.truncate(0)
    assert ours.end_offset == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
def test_every_offset_is_found_in_its_batch(counts: list[int], data: st.DataObject) -> None:
    """A read at any offset of the log begins with the batch that contains the offset."""
    log = filled(*counts)
    offset = data.draw(st.integers(0, log.end_offset - 1))
    (batch,) = log.read(offset, 1, log.end_offset, at_least_one=True)
    assert batch.base_offset <= offset <= batch.last_offset
    assert log.since(offset)[0] is batch

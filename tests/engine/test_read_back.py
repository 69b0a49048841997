"""`ReadBack` alone: pages of a log, and the batches in doubt that are found in them."""

from __future__ import annotations

import pytest

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import SEQUENCE_MODULUS, ProducerIdentity
from aioidem._engine.read_back import ReadBack, WrittenBatch, written_batches
from aioidem._engine.record import PendingRecord
from aioidem._records import assign_offsets, build_batch
from aioidem.errors import ProtocolError


def page(*counts: int, producer_id: int = 7) -> bytes:
    """Return the bytes of batches with these numbers of records, at sequence 5 and offset 0."""
    made = b""
    for count in counts:
        records = [PendingRecord(None, b"v", (), 0, None, 10) for _ in range(count)]
        built = build_batch(records, producer_id=producer_id, producer_epoch=2, base_sequence=5)
        made += bytes(built.data)
    return made


def batch(base: int, identity: ProducerIdentity | None) -> Batch:
    return Batch(
        ordinal=0,
        records=[PendingRecord(None, b"v", (), 0, None, 10)],
        data=b"data",
        identity=identity,
        base=base,
        deadline=90.0,
        max_timestamp_ms=0,
    )


def at(base_offset: int, next_offset: int, sequence: int = 5, epoch: int = 0) -> WrittenBatch:
    return WrittenBatch(base_offset, next_offset, 7, epoch, sequence, 1_700_000_000_000 + sequence)


def test_a_page_names_each_batch_and_where_it_ends() -> None:
    assert written_batches(page(3, 1)) == [(0, 3, 7, 2, 5, -1), (0, 1, 7, 2, 5, -1)]
    assert written_batches(b"") == []


def test_a_page_may_end_in_the_middle_of_a_batch_but_may_not_be_malformed() -> None:
    data = page(3, 1)
    assert written_batches(data[:-1]) == [(0, 3, 7, 2, 5, -1)]
    assert written_batches(page(3) + b"\0" * 7) == [(0, 3, 7, 2, 5, -1)]
    broken = bytearray(data)
    broken[16] = 9  # the magic byte
    with pytest.raises(ProtocolError):
        written_batches(bytes(broken))


def test_a_page_names_the_append_time_of_a_batch_and_no_other_time() -> None:
    """The newest timestamp of a batch is the append time only where its header says so."""
    created = page(2)
    appended = assign_offsets(created, base_offset=2, leader_epoch=0, log_append_time_ms=77)
    times = [each.log_append_time_ms for each in written_batches(created + appended)]
    assert times == [-1, 77]


@pytest.mark.parametrize(("acked", "first"), [(41, 42), (0, 1), (-1, None)])
def test_reading_begins_after_the_last_acknowledged_offset(acked: int, first: int | None) -> None:
    reading = ReadBack()
    assert reading.offset is None
    assert (reading.begin(acked), reading.offset) == (first, first)


@pytest.mark.parametrize(
    ("log", "following"),
    [
        ([at(10, 12), at(12, 13), at(13, 15)], 15),
        ([at(10, 12), at(12, 16)], None),
        ([at(10, 17)], None),
        ([], None),
    ],
)
def test_reading_goes_on_to_the_high_watermark(
    log: list[WrittenBatch], following: int | None
) -> None:
    reading = ReadBack()
    reading.begin(9)
    assert (reading.following(log, 16), reading.offset) == (following, following)


def test_reading_can_end_before_that() -> None:
    reading = ReadBack()
    reading.begin(9)
    reading.end()
    assert reading.offset is None


def test_batches_in_doubt_are_found_by_identity_and_sequence_in_the_order_of_the_log() -> None:
    first, second = batch(5, ProducerIdentity(7, 0)), batch(6, ProducerIdentity(7, 0))
    later = batch(SEQUENCE_MODULUS, ProducerIdentity(7, 1))
    unnumbered = batch(5, None)
    log = [at(0, 1, 6), at(1, 2, 5), at(2, 3, 5), at(3, 4, 5, 1), at(4, 5, 0, 1), at(5, 6, 9)]
    found = ReadBack().found(log, [first, second, later, unnumbered])
    assert found == [(second, log[0]), (first, log[1]), (later, log[4])]

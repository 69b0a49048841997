"""Records are encoded correctly, also where lookup tables of the pure-Python encoder end."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record import default_records as peer

from aioidem._records import ReadRecord, build_batch, payload_size, read_batches, record_size
from aioidem._records._decode import MIN_RECORD_SIZE

NOW = 1_795_250_000_000


def by_aiokafka(records: list[ReadRecord]) -> bytes:
    builder: Any = peer.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**31 - 1)
    for i, record in enumerate(records):
        builder.append(i, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def near(number: int) -> range:
    return range(number - 2, number + 3)


@pytest.mark.parametrize("edge", [64, 4096, 8192])
@pytest.mark.parametrize("key", [None, b"key"])
def test_records_are_right_where_a_table_ends(edge: int, key: bytes | None) -> None:
    """Records with sizes or times where a varint grows or a table ends have aiokafka's bytes."""
    first = ReadRecord(0, NOW, key, b"", ())
    sizes = [ReadRecord(0, NOW, key, b"v" * size, ()) for size in near(edge)]
    keys = [ReadRecord(0, NOW, b"k" * size, None, ()) for size in near(edge)]
    times = [ReadRecord(0, NOW + delta, key, b"v", ()) for delta in near(edge)]
    earlier = [ReadRecord(0, NOW - delta, key, b"v", ()) for delta in near(edge)]
    headers = [ReadRecord(0, NOW, key, b"", (("h" * s, b"x" * s),)) for s in near(edge)]
    many = [ReadRecord(0, NOW, key, b"v", ())] * (edge + 3)
    for records in (sizes, keys, times, earlier, headers, many):
        assert build_batch([first, *records]).data == by_aiokafka([first, *records])


@pytest.mark.parametrize("edge", near(8192 - 9))
def test_a_records_own_length_is_right_where_its_varint_grows(edge: int) -> None:
    records = [ReadRecord(0, NOW, None, b"v" * edge, ())]
    assert build_batch(records).data == by_aiokafka(records)


def test_runs_of_one_time_share_it_and_end_where_it_changes() -> None:
    """Runs of records with the same timestamp keep their timestamps."""
    stamps = [5, 5, 5, 7, 7, 5, 5, -1, -1, 9, 5]
    records = [ReadRecord(i, stamp, None, b"v", ()) for i, stamp in enumerate(stamps)]
    built = build_batch(records)
    assert read_batches(built.data)[0].records() == records
    assert (built.first_timestamp_ms, built.max_timestamp_ms) == (5, 9)


def test_a_first_record_without_a_time_is_not_taken_for_the_run_before_it() -> None:
    """Records without timestamps at the start of a batch are encoded as by aiokafka."""
    records = [ReadRecord(i, -1, None, b"v", ()) for i in range(3)]
    built = build_batch(records)
    assert built.data == by_aiokafka(records)
    assert (built.first_timestamp_ms, built.max_timestamp_ms) == (-1, -1)


def test_records_may_share_header_names_with_different_values() -> None:
    headers = [(("a", b"1"), ("b", None)), (("a", None), ("a", b"3")), (("b", b""),)]
    records = [ReadRecord(i, NOW, None, None, pairs) for i, pairs in enumerate(headers)]
    assert read_batches(build_batch(records).data)[0].records() == records


def test_the_size_of_the_smallest_record_is_seven_bytes() -> None:
    assert record_size(payload_size(None, None, ()), 0, 0) == MIN_RECORD_SIZE == 7

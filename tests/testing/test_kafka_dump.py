"""Parsing of what Kafka's DumpLogSegments prints; `on_kafka` has tests that run the tool."""

from __future__ import annotations

import pytest

from aioidem._testing.kafka_dump import LogDumpError, parse_dump, split_dumps


def batch(base: int) -> str:
    return (
        f"baseOffset: {base} lastOffset: {base} count: 1 baseSequence: {base} lastSequence: {base} "
        "producerId: 7 producerEpoch: 0 partitionLeaderEpoch: 0 isTransactional: false "
        "isControl: false deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1 size: 70 "
        "magic: 2 compresscodec: none crc: 1 isvalid: true"
    )


def test_dumps_are_split_by_partition_and_segments_joined() -> None:
    """`split_dumps` splits a dump by partition, and joins the segments of a partition."""
    printed = [
        *("Dumping /somewhere/t-0/00.log", "Log starting offset: 0", batch(0)),
        *("Dumping /somewhere/t-0/01.log", "Log starting offset: 1", batch(1)),
        *("Dumping /elsewhere/t-1/00.log", "Log starting offset: 0"),
    ]
    dumps = split_dumps(printed)
    assert list(dumps) == ["t-0", "t-1"]
    assert [each.base_offset for each in parse_dump(dumps["t-0"])] == [0, 1]
    assert parse_dump(dumps["t-1"]) == ()


def test_a_dump_that_names_no_file_is_refused() -> None:
    """`split_dumps` refuses a dump that does not begin with a file's name."""
    with pytest.raises(LogDumpError, match="began with"):
        split_dumps([batch(0)])


def test_a_record_that_ends_a_transaction_has_its_marker() -> None:
    """A dumped record that ends a transaction has the marker COMMIT or ABORT, and no payload."""
    record = "CreateTime: 1 keySize: 4 valueSize: 6 sequence: -1 headerKeys: []"
    [dumped] = parse_dump(
        [
            batch(0).replace("isControl: false", "isControl: true"),
            f"| offset: 0 {record} endTxnMarker: ABORT coordinatorEpoch: 3",
        ]
    )
    assert dumped.control
    assert [(each.marker, each.payload) for each in dumped.records] == [("ABORT", None)]

"""What is built of records: sizes, and what is read off a sealed batch again."""

from __future__ import annotations

import pytest

from aioidem._records import (
    BATCH_OVERHEAD,
    Codec,
    ReadRecord,
    assign_offsets,
    build_batch,
    build_body,
    checksum_and_codec,
    read_batches,
    record_size_bound,
    restamp,
)
from aioidem.errors import InternalError, ProtocolError, RecordError

RECORDS = [ReadRecord(i, 1_000 + i, b"key", b"value" * 100, ()) for i in range(3)]
CODECS = pytest.mark.parametrize("codec", Codec)


@CODECS
def test_a_body_knows_the_size_of_its_batch_and_how_well_it_was_compressed(codec: Codec) -> None:
    body, batch = build_body(RECORDS, codec), build_batch(RECORDS, codec=codec)
    assert body.batch_size == len(batch.data) == BATCH_OVERHEAD + len(body.data)
    assert body.uncompressed_size == batch.uncompressed_size
    assert body.compression == batch.compression_ratio
    assert body.compression == len(body.data) / (body.uncompressed_size - BATCH_OVERHEAD)
    assert (body.count, batch.count) == (3, 3)
    assert (body.first_timestamp_ms, body.max_timestamp_ms) == (1_000, 1_002)


@CODECS
def test_checksum_and_codec_are_read_off_a_batch(codec: Codec) -> None:
    data = build_batch(RECORDS, codec=codec, transactional=True).data
    (batch,) = read_batches(data)
    assert checksum_and_codec(data) == (batch.crc, codec)


def test_they_are_read_off_a_whole_batch_only() -> None:
    data = bytearray(build_batch(RECORDS).data)
    with pytest.raises(InternalError, match="a whole batch of magic 2"):
        checksum_and_codec(bytes(data[: BATCH_OVERHEAD - 1]))
    checksum_and_codec(bytes(data[:BATCH_OVERHEAD]))
    data[16] = 1
    with pytest.raises(InternalError, match="a whole batch of magic 2"):
        checksum_and_codec(bytes(data))
    with pytest.raises(ProtocolError, match="not a record batch of magic 2"):
        assign_offsets(bytes(data), base_offset=0, leader_epoch=0)
    with pytest.raises(InternalError, match="one whole batch of magic 2"):
        restamp(bytes(data), producer_id=1, producer_epoch=1, base_sequence=1)


def test_a_batch_gets_its_place_only_if_it_is_whole_and_the_place_can_be_written() -> None:
    data = build_batch(RECORDS).data
    for short in (b"", data[: BATCH_OVERHEAD - 1]):
        with pytest.raises(ProtocolError, match="not a record batch of magic 2"):
            assign_offsets(short, base_offset=0, leader_epoch=0)
        with pytest.raises(InternalError, match="one whole batch of magic 2"):
            restamp(short, producer_id=1, producer_epoch=1, base_sequence=1)
    with pytest.raises(ProtocolError, match=f"a batch of {len(data) + 1} bytes has the length"):
        assign_offsets(data + b"\0", base_offset=0, leader_epoch=0)
    with pytest.raises(InternalError, match="a batch's place cannot be encoded"):
        assign_offsets(data, base_offset=2**63, leader_epoch=0)
    with pytest.raises(InternalError, match="a batch's identity cannot be encoded"):
        restamp(data, producer_id=2**63, producer_epoch=1, base_sequence=1)
    with pytest.raises(InternalError, match="a batch's header cannot be encoded"):
        build_batch(RECORDS, producer_id=2**63)


def test_a_batch_needs_a_record_and_records_must_be_encodable() -> None:
    with pytest.raises(RecordError, match="at least one record"):
        build_body([])
    with pytest.raises(RecordError, match="cannot be encoded"):
        record_size_bound("text", None, ())  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="cannot be encoded"):
        build_body([ReadRecord(0, 0, None, "text", ())])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, b"", b"v" * 63, b"v" * 64, b"v" * 10_000])
def test_no_record_takes_more_than_its_bound(value: bytes | None) -> None:
    headers = (("h", b"w"),)
    bound = record_size_bound(b"key", value, headers)
    size = len(build_batch([ReadRecord(0, 0, b"key", value, headers)]).data) - BATCH_OVERHEAD
    assert size <= bound < size + 40
    assert record_size_bound(b"key", value, ()) < bound

"""Batches of arbitrary records survive a round trip, within aioidem and to and from aiokafka.

aiokafka has two implementations, in Python and in Cython. The tests use both, so that agreement
does not depend on a bug of one of them.
"""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from aiokafka.record import default_records as peer
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records import (
    BATCH_OVERHEAD,
    Codec,
    ReadRecord,
    assign_offsets,
    build_batch,
    payload_size,
    read_batches,
    record_size,
    record_size_bound,
    restamp,
)
from aioidem.errors import InternalError, ProtocolError, RecordError

INT64 = 2**63 - 1
NOW = 1_795_250_000_000
PEER_READERS = [peer._DefaultRecordBatchPy, peer._DefaultRecordBatchCython]  # noqa: SLF001
PEER_WRITERS = [peer._DefaultRecordBatchBuilderPy, peer._DefaultRecordBatchBuilderCython]  # noqa: SLF001

# Lengths at which a varint grows by a byte (64 and 8192), at which the encoder's table of varints
# ends (4096), and one far beyond both.
lengths = st.sampled_from([0, 1, 63, 64, 65, 4095, 4096, 8191, 8192, 8193, 70_000])
contents = st.binary(max_size=40) | st.builds(lambda size: b"x" * size, lengths)
nullable = st.none() | contents
header_keys = st.text(max_size=12) | st.builds(lambda size: "é" * size, st.integers(30, 70))
headers = st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=80)), max_size=4)
timestamps = (
    st.integers(NOW - 20, NOW + 20)
    | st.integers(NOW - 10_000_000, NOW + 10_000_000)
    | st.sampled_from([0, 1, 2**31, 2**32, 2**62, INT64])
    | st.integers(0, INT64)
)


@st.composite
def record_lists(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 12) -> list[ReadRecord]:
    count = draw(st.integers(min_size, max_size))
    one_time = draw(st.none() | timestamps)
    return [
        ReadRecord(
            offset,
            draw(timestamps) if one_time is None else one_time,
            draw(nullable),
            draw(nullable),
            tuple(draw(headers)),
        )
        for offset in range(count)
    ]


class Identity(TypedDict):
    producer_id: int
    producer_epoch: int
    base_sequence: int


class Flags(TypedDict):
    transactional: bool
    control: bool


identities = st.builds(
    Identity,
    producer_id=st.integers(-1, INT64),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 20) | st.integers(2**31 - 5, 2**31 - 1),
)
flags = st.builds(Flags, transactional=st.booleans(), control=st.booleans())
codecs = st.sampled_from(Codec)


def facts(batch: Any) -> list[tuple[Any, ...]]:
    """Return aiokafka's view of each record, in the field order of ReadRecord."""
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


@given(record_lists(), codecs, identities, flags, st.none() | st.integers(0, INT64))
def test_what_is_built_is_read(
    records: list[ReadRecord],
    codec: Codec,
    identity: Identity,
    flag: Flags,
    log_append_time_ms: int | None,
) -> None:
    built = build_batch(
        records, codec=codec, **identity, **flag, log_append_time_ms=log_append_time_ms
    )
    (batch,) = read_batches(built.data)
    assert batch.crc_ok()
    stamped = log_append_time_ms is not None
    if log_append_time_ms is not None:
        records = [record._replace(timestamp_ms=log_append_time_ms) for record in records]
    assert batch.records() == records
    assert (batch.codec, batch.log_append) == (codec, stamped)
    assert (batch.count, batch.last_offset_delta) == (len(records), len(records) - 1)
    assert built.count == batch.count
    assert built.max_timestamp_ms == batch.max_timestamp_ms
    assert built.first_timestamp_ms == batch.first_timestamp_ms
    assert {name: getattr(batch, name) for name in identity} == identity
    assert {name: getattr(batch, name) for name in flag} == flag


@given(record_lists(), codecs)
def test_the_uncompressed_size_is_that_of_the_batch_without_a_codec(
    records: list[ReadRecord], codec: Codec
) -> None:
    plain = build_batch(records)
    built = build_batch(records, codec=codec)
    assert plain.uncompressed_size == len(plain.data) == built.uncompressed_size
    ratio = (len(built.data) - BATCH_OVERHEAD) / (len(plain.data) - BATCH_OVERHEAD)
    assert built.compression_ratio == ratio
    assert plain.compression_ratio == 1.0


@pytest.mark.parametrize("reader", PEER_READERS)
@given(records=record_lists(), codec=codecs, identity=identities, transactional=st.booleans())
def test_aiokafka_reads_what_we_build(
    reader: Any,
    records: list[ReadRecord],
    codec: Codec,
    identity: Identity,
    transactional: bool,
) -> None:
    built = build_batch(records, codec=codec, transactional=transactional, **identity)
    batch = reader(built.data)
    assert batch.validate_crc()
    assert batch.compression_type == codec
    assert batch.is_transactional is transactional
    assert batch.is_control_batch is False
    assert batch.timestamp_type == 0
    assert batch.first_timestamp == built.first_timestamp_ms
    assert batch.max_timestamp == built.max_timestamp_ms
    assert {name: getattr(batch, name) for name in identity} == identity
    assert facts(batch) == records


@pytest.mark.parametrize("reader", PEER_READERS)
@given(records=record_lists(max_size=4), codec=codecs, stamp=st.integers(0, INT64))
def test_aiokafka_reads_what_a_broker_would_stamp(
    reader: Any, records: list[ReadRecord], codec: Codec, stamp: int
) -> None:
    """aiokafka reads our batches after `assign_offsets` set offset, leader epoch and time."""
    built = build_batch(records, codec=codec, transactional=True, control=True)
    data = assign_offsets(built.data, base_offset=77, leader_epoch=3, log_append_time_ms=stamp)
    batch = reader(data)
    assert batch.validate_crc()
    assert batch.is_control_batch is True
    assert batch.timestamp_type == 1
    assert facts(batch) == [
        record._replace(offset=record.offset + 77, timestamp_ms=stamp) for record in records
    ]


def written_by_peer(
    writer: Any, records: list[ReadRecord], codec: Codec, identity: Identity, *, txn: bool
) -> bytes:
    builder = writer(
        magic=2,
        compression_type=int(codec),
        is_transactional=txn,
        batch_size=2**31 - 1,
        **identity,
    )
    for record in records:
        assert builder.append(
            record.offset, record.timestamp_ms, record.key, record.value, list(record.headers)
        )
    return bytes(builder.build())


@pytest.mark.parametrize("writer", PEER_WRITERS)
@given(records=record_lists(), codec=codecs, identity=identities, transactional=st.booleans())
def test_we_read_what_aiokafka_writes(
    writer: Any,
    records: list[ReadRecord],
    codec: Codec,
    identity: Identity,
    transactional: bool,
) -> None:
    data = written_by_peer(writer, records, codec, identity, txn=transactional)
    (batch,) = read_batches(data)
    assert batch.crc_ok()
    assert batch.records() == records
    assert batch.transactional is transactional
    assert {name: getattr(batch, name) for name in identity} == identity


@pytest.mark.parametrize("writer", PEER_WRITERS)
@given(records=record_lists(), identity=identities, transactional=st.booleans())
def test_uncompressed_batches_are_aiokafkas_byte_for_byte(
    writer: Any, records: list[ReadRecord], identity: Identity, transactional: bool
) -> None:
    data = written_by_peer(writer, records, Codec.NONE, identity, txn=transactional)
    assert build_batch(records, transactional=transactional, **identity).data == data


@given(record_lists(), codecs, identities, identities, flags)
def test_restamping_gives_the_batch_that_the_other_identity_would_have_built(
    records: list[ReadRecord],
    codec: Codec,
    before: Identity,
    after: Identity,
    flag: Flags,
) -> None:
    """`restamp` returns what `build_batch` returns with the new id, epoch and base sequence."""
    first = build_batch(records, codec=codec, **before, **flag).data
    assert restamp(first, **after) == build_batch(records, codec=codec, **after, **flag).data
    assert restamp(restamp(first, **after), **before) == first


@given(
    record_lists(max_size=4),
    codecs,
    st.integers(0, 2**62),
    st.integers(-1, 2**31 - 1),
    st.none() | st.integers(0, INT64),
)
def test_offsets_are_assigned_without_touching_anything_else(
    records: list[ReadRecord],
    codec: Codec,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> None:
    data = build_batch(records, codec=codec, producer_id=1, producer_epoch=2, base_sequence=3).data
    stored = assign_offsets(
        data,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        log_append_time_ms=log_append_time_ms,
    )
    (batch,) = read_batches(stored)
    assert batch.crc_ok()
    assert (batch.base_offset, batch.leader_epoch) == (base_offset, leader_epoch)
    times = [r.timestamp_ms if log_append_time_ms is None else log_append_time_ms for r in records]
    assert batch.records() == [
        record._replace(offset=base_offset + record.offset, timestamp_ms=time)
        for record, time in zip(records, times, strict=True)
    ]
    assert len(stored) == len(data)
    if log_append_time_ms is None:
        assert stored[16:] == data[16:]
    else:
        assert stored[23:35] == data[23:35]
        assert stored[43:] == data[43:]


def test_a_wrong_crc_stays_wrong_when_offsets_are_assigned() -> None:
    data = bytearray(build_batch([ReadRecord(0, NOW, None, b"x", ())]).data)
    data[-1] ^= 1
    (batch,) = read_batches(assign_offsets(bytes(data), base_offset=5, leader_epoch=1))
    assert not batch.crc_ok()


@given(record_lists(max_size=4))
def test_the_same_records_give_the_same_bytes(records: list[ReadRecord]) -> None:
    for codec in Codec:
        assert (
            build_batch(records, codec=codec).data == build_batch(iter(records), codec=codec).data
        )


@given(st.lists(record_lists(max_size=3), max_size=4), st.data())
def test_batches_in_a_row_are_cut_apart_wherever_the_stream_ends(
    lists: list[list[ReadRecord]], data: st.DataObject
) -> None:
    """`read_batches` refuses an incomplete last batch, or leaves it out if ``partial`` is True."""
    batches = [build_batch(records).data for records in lists]
    stream = b"".join(batches)
    ends = [sum(map(len, batches[:i])) for i in range(len(batches) + 1)]
    cut = data.draw(st.integers(0, len(stream)))
    whole = max(i for i, end in enumerate(ends) if end <= cut)
    for kind in (bytes, bytearray, memoryview):
        got = read_batches(kind(stream[:cut]), partial=True)
        assert [batch.raw for batch in got] == batches[:whole]
    if cut not in ends:
        with pytest.raises(ProtocolError):
            read_batches(stream[:cut])


@given(record_lists())
def test_sizes_are_known_before_a_batch_is_built(records: list[ReadRecord]) -> None:
    first = records[0].timestamp_ms
    sizes = [
        record_size(payload_size(r.key, r.value, r.headers), i, r.timestamp_ms - first)
        for i, r in enumerate(records)
    ]
    assert BATCH_OVERHEAD + sum(sizes) == len(build_batch(records).data)
    for record, size in zip(records, sizes, strict=True):
        bound = record_size_bound(record.key, record.value, record.headers)
        assert size <= bound <= size + 21


def test_a_batch_of_more_records_than_any_table_holds_round_trips() -> None:
    records = [ReadRecord(i, NOW + i % 3, None, b"%d" % i, ()) for i in range(20_000)]
    (batch,) = read_batches(build_batch(records, codec=Codec.ZSTD).data)
    assert batch.records() == records


def test_records_are_read_one_by_one_without_reading_all() -> None:
    records = [ReadRecord(i, NOW, None, b"x", ()) for i in range(3)]
    (batch,) = read_batches(build_batch(records).data)
    assert next(batch.iter_records()) == records[0]


def test_any_object_with_the_four_attributes_is_a_record() -> None:
    class Mine:
        key = b"k"
        value = b"v"
        headers: list[tuple[str, bytes | None]] = [("h", None)]  # noqa: RUF012
        timestamp_ms = NOW

    (record,) = read_batches(build_batch([Mine()]).data)[0].records()
    assert record == ReadRecord(0, NOW, b"k", b"v", (("h", None),))


@pytest.mark.parametrize(
    "record",
    [
        ReadRecord(0, NOW, "text", b"v", ()),  # type: ignore[arg-type]
        ReadRecord(0, NOW, b"k", "text", ()),  # type: ignore[arg-type]
        ReadRecord(0, NOW, b"k", 5, ()),  # type: ignore[arg-type]
        ReadRecord(0, NOW, b"k", b"v", (("\ud800", b""),)),
        ReadRecord(0, NOW, b"k", b"v", ((b"h", b""),)),  # type: ignore[arg-type]
        ReadRecord(0, NOW, b"k", b"v", (("h", "text"),)),  # type: ignore[arg-type]
        ReadRecord(0, NOW, b"k", b"v", (("h",),)),  # type: ignore[arg-type]
        ReadRecord(0, NOW, b"k", b"v", 7),  # type: ignore[arg-type]
    ],
    ids=lambda record: repr(record[2:]),
)
def test_a_record_of_wrong_types_is_a_record_error_before_and_in_the_batch(
    record: ReadRecord,
) -> None:
    with pytest.raises(RecordError):
        record_size_bound(record.key, record.value, record.headers)
    with pytest.raises(RecordError):
        build_batch([ReadRecord(0, NOW, None, b"fine", ()), record])


@pytest.mark.parametrize(
    "times", [(2**63,), (5, 2**63), (-1, INT64), (-2,), (0, -2), ("now",), (1.5,)]
)
def test_a_time_that_does_not_fit_is_a_record_error(times: tuple[Any, ...]) -> None:
    with pytest.raises(RecordError):
        build_batch([ReadRecord(0, time, None, b"x", ()) for time in times])


def test_what_is_no_record_is_a_record_error() -> None:
    with pytest.raises(RecordError):
        build_batch([object()])  # type: ignore[list-item]


def test_a_batch_without_records_is_a_record_error() -> None:
    with pytest.raises(RecordError):
        build_batch([])


@pytest.mark.parametrize(
    "identity",
    [
        Identity(producer_id=2**63, producer_epoch=0, base_sequence=0),
        Identity(producer_id=0, producer_epoch=2**15, base_sequence=0),
        Identity(producer_id=0, producer_epoch=0, base_sequence=2**31),
    ],
)
def test_an_identity_that_does_not_fit_is_our_bug(identity: Identity) -> None:
    """`build_batch` and `restamp` raise InternalError for an id, epoch or sequence out of range."""
    records = [ReadRecord(0, NOW, None, b"x", ())]
    with pytest.raises(InternalError):
        build_batch(records, **identity)
    with pytest.raises(InternalError):
        restamp(build_batch(records).data, **identity)


def test_restamping_what_is_no_batch_is_our_bug() -> None:
    """`restamp` raises InternalError for bytes that are no batch."""
    for data in (b"", b"\x00" * 60, b"\x00" * 100):
        with pytest.raises(InternalError):
            restamp(data, producer_id=1, producer_epoch=1, base_sequence=1)


def test_assigning_offsets_to_what_is_no_single_batch_is_a_protocol_error() -> None:
    data = build_batch([ReadRecord(0, NOW, None, b"x", ())]).data
    for wrong in (b"", b"\x00" * 100, data[:-1], data + b"\x00", data + data):
        with pytest.raises(ProtocolError):
            assign_offsets(wrong, base_offset=1, leader_epoch=1)


def test_a_place_that_does_not_fit_is_our_bug() -> None:
    """`assign_offsets` raises InternalError for values out of range."""
    data = build_batch([ReadRecord(0, NOW, None, b"x", ())]).data
    for offset, epoch, time in ((2**63, 0, 0), (0, 2**31, None), (0, 0, 2**63)):
        with pytest.raises(InternalError):
            assign_offsets(data, base_offset=offset, leader_epoch=epoch, log_append_time_ms=time)

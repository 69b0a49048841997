"""Malformed batches raise ProtocolError only, and the memory for them stays within the limits."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records import (
    BATCH_OVERHEAD,
    Codec,
    ReadRecord,
    RecordBatch,
    build_batch,
    compress,
    read_batches,
)
from aioidem.errors import ProtocolError

NOW = 1_795_250_000_000
LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, COUNT_AT = 8, 16, 21, 23, 57
RECORDS = [
    ReadRecord(0, NOW, b"key", b"value" * 8, (("trace", b"\x00\x01"), ("none", None))),
    ReadRecord(1, NOW + 700, None, None, ()),
    ReadRecord(2, NOW - 1, b"", b"", (("é", b""),)),
    ReadRecord(3, NOW + 2**40, b"k" * 70, b"v" * 70, ()),
]
BATCHES = {codec: build_batch(RECORDS, codec=codec).data for codec in Codec}


def batch_of(section: bytes, count: int, codec: Codec = Codec.NONE, last_delta: int = -1) -> bytes:
    """Return a batch with a correct header and ``section`` as its records."""
    last_delta = max(count - 1, 0) if last_delta < 0 else last_delta
    tail = struct.pack(">hiqqqhii", codec, last_delta, NOW, NOW, -1, -1, -1, count)
    crc = crc32c(section, crc32c(tail))
    return struct.pack(">qiibI", 0, 49 + len(section), -1, 2, crc) + tail + section


def with_field(data: bytes, at: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    return bytes(changed)


def read_all(data: bytes) -> list[ReadRecord]:
    return [record for batch in read_batches(data) for record in batch.records()]


def refuses(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_all(data)


def unsigned(number: int) -> bytes:
    """Encode a varint without zigzag, so that a length or a count can have any bits."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))


def record_of(body: bytes) -> bytes:
    return unsigned(len(body) << 1) + body


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_cut_at_any_byte_is_refused(codec: Codec) -> None:
    data = BATCHES[codec]
    for end in range(1, len(data)):
        refuses(data[:end])
        assert read_batches(data[:end], partial=True) == []


@pytest.mark.parametrize("codec", Codec)
def test_records_cut_at_any_byte_are_refused_though_the_batch_is_whole(codec: Codec) -> None:
    section = BATCHES[codec][BATCH_OVERHEAD:]
    for end in range(len(section)):
        refuses(batch_of(section[:end], len(RECORDS), codec))


@pytest.mark.parametrize("codec", Codec)
def test_a_byte_too_many_is_refused(codec: Codec) -> None:
    section = BATCHES[codec][BATCH_OVERHEAD:]
    for extra in (b"\x00", b"\x00\x00\x00\x00", b"\xff", section):
        refuses(batch_of(section + extra, len(RECORDS), codec))


@pytest.mark.parametrize("codec", Codec)
def test_a_flipped_bit_is_refused_or_breaks_the_crc_where_the_crc_covers_it(codec: Codec) -> None:
    data = BATCHES[codec]
    for bit in range(len(data) * 8):
        at = bit // 8
        flipped = with_field(data, at, "B", data[at] ^ 1 << bit % 8)
        try:
            (batch,) = read_batches(flipped)
            batch.records()
        except ProtocolError:
            continue
        assert batch.crc_ok() is (at < MAGIC_AT), at


@pytest.mark.parametrize("codec", Codec)
@given(data=st.data())
def test_any_damage_to_the_records_ends_in_records_or_protocol_error(
    codec: Codec, data: st.DataObject
) -> None:
    section = bytearray(BATCHES[codec][BATCH_OVERHEAD:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(section) - 1))
        section[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        if not section:
            break
    count = data.draw(st.integers(0, 6))
    with suppress(ProtocolError):
        read_all(batch_of(bytes(section), count, codec, last_delta=100))


@given(st.binary(max_size=300), st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5))
def test_any_bytes_as_records_end_in_records_or_protocol_error(section: bytes, count: int) -> None:
    for codec in Codec:
        with suppress(ProtocolError):
            read_all(with_field(batch_of(section, 0, codec, 2**31 - 1), COUNT_AT, ">i", count))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_as_batches_end_in_batches_or_protocol_error(data: bytes, partial: bool) -> None:
    with suppress(ProtocolError):
        for batch in read_batches(data, partial=partial):
            batch.records()


def test_no_bytes_are_no_batches() -> None:
    assert read_batches(b"") == []


@pytest.mark.parametrize(
    "length", [-(2**31), -1, 0, 1, 48, 2**31 - 1, len(BATCHES[Codec.NONE])], ids=str
)
def test_an_absurd_batch_length_is_refused(length: int) -> None:
    data = with_field(BATCHES[Codec.NONE], LENGTH_AT, ">i", length)
    refuses(data)
    if length < 49:
        with pytest.raises(ProtocolError):
            read_batches(data, partial=True)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 3, 5, 2**31 - 1])
@pytest.mark.parametrize("codec", Codec)
def test_an_absurd_record_count_is_refused(codec: Codec, count: int) -> None:
    refuses(with_field(BATCHES[codec], COUNT_AT, ">i", count))


@pytest.mark.parametrize("delta", [-(2**31), -1, 0, 2])
def test_a_last_offset_below_that_of_a_record_is_refused(delta: int) -> None:
    refuses(with_field(BATCHES[Codec.NONE], LAST_DELTA_AT, ">i", delta))


@pytest.mark.parametrize("magic", [-128, -1, 0, 1, 3, 127])
def test_another_magic_is_refused(magic: int) -> None:
    refuses(with_field(BATCHES[Codec.NONE], MAGIC_AT, ">b", magic))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    refuses(with_field(BATCHES[Codec.NONE], ATTRIBUTES_AT, ">h", codec))


def test_attribute_bits_without_a_meaning_are_ignored() -> None:
    changed = with_field(BATCHES[Codec.NONE], ATTRIBUTES_AT, ">h", 0x7FC0)
    assert read_all(changed) == RECORDS


@pytest.mark.parametrize("true", Codec)
@pytest.mark.parametrize("claimed", Codec)
def test_records_under_another_codecs_name_are_refused(true: Codec, claimed: Codec) -> None:
    if true is not claimed:
        refuses(with_field(BATCHES[true], ATTRIBUTES_AT, ">h", claimed))


# Attributes 0, timestamp delta 0, offset delta 0. In WHOLE, a null key, a null value and no headers
# follow.
START = b"\x00\x00\x00"
WHOLE = START + b"\x01\x01\x00"
MANY = 2**31 - 1
SIX = b"\x80\x80\x80\x80\x80\x00"
LONGEST = b"\xff" * 4 + b"\x0f"


TOLD = {
    "a record's length runs past the end": (
        *("length -1", "length -2", "length one too large", "length 2^31 - 1"),
    ),
    "a record is not as long as it says": (
        *("length one too small", "length zero", "a byte after the headers"),
        "header count one too small",
    ),
    "a varint is longer than 5 bytes": (
        *("length of six bytes", "offset delta of six bytes", "key length of six bytes"),
        *("value length of six bytes", "header count of six bytes"),
        "header key length of six bytes",
    ),
    "a varint is longer than 10 bytes": ("timestamp of eleven bytes",),
    "a varint is out of range": (
        *("length beyond 32 bits", "length of 33 bits"),
        *("timestamp beyond 64 bits", "timestamp of 65 bits"),
    ),
    "1 records in 2 bytes": ("attributes only",),
    "a timestamp is out of range": ("timestamp that overflows",),
    "offset deltas are out of order": (
        *("offset delta -1", "offset delta 1", "offset delta 2^31 - 1"),
    ),
    "a key's length is below -1": ("key length -2",),
    "a value's length is below -1": ("value length -2",),
    "a header count runs past the end": (
        *("header count -1", "header count 1 of none", "header count 2^31 - 1"),
        "header count 3 in four bytes",
    ),
    "a header has no key": ("header key null",),
    "a length is below -1": ("header key length -2", "header value length -2"),
    "a length runs past the end": (
        "header key beyond the record",
        "header value beyond the record",
    ),
}
"""By reason that the error tells: the malformed records below."""


def test_the_record_that_the_malformed_ones_are_made_from_is_right() -> None:
    assert read_all(batch_of(record_of(WHOLE), 1)) == [ReadRecord(0, NOW, None, None, ())]


@pytest.mark.parametrize(
    "section",
    {
        "length -1": b"\x01" + WHOLE,
        "length -2": b"\x03" + WHOLE,
        "length one too small": unsigned((len(WHOLE) - 1) << 1) + WHOLE,
        "length one too large": unsigned((len(WHOLE) + 1) << 1) + WHOLE,
        "length 2^31 - 1": b"\xfe" + b"\xff" * 3 + b"\x0f" + WHOLE,
        "length of six bytes": b"\x8c\x80\x80\x80\x80\x00" + WHOLE,
        "length beyond 32 bits": b"\xff" * 4 + b"\x7f" + WHOLE,
        "length of 33 bits": b"\xff" * 4 + b"\x1f" + WHOLE,
        "length zero": b"\x00" + WHOLE,
        "attributes only": record_of(b"\x00"),
        "timestamp of eleven bytes": record_of(b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00"),
        "timestamp beyond 64 bits": record_of(b"\x00" + b"\xff" * 9 + b"\x7f\x00\x01\x01\x00"),
        "timestamp of 65 bits": record_of(b"\x00" + b"\xff" * 9 + b"\x03\x00\x01\x01\x00"),
        "timestamp that overflows": record_of(b"\x00\xfe" + b"\xff" * 8 + b"\x01\x00\x01\x01\x00"),
        "offset delta -1": record_of(b"\x00\x00\x01\x01\x01\x00"),
        "offset delta 1": record_of(b"\x00\x00\x02\x01\x01\x00"),
        "offset delta 2^31 - 1": record_of(b"\x00\x00\xfe\xff\xff\xff\x0f\x01\x01\x00"),
        "offset delta of six bytes": record_of(b"\x00\x00" + SIX + b"\x01\x01\x00"),
        "key length -2": record_of(START + b"\x03\x01\x00"),
        "key longer than the record": record_of(START + b"\x08\x01\x00"),
        "key length 2^31 - 1": record_of(START + b"\xfe\xff\xff\xff\x0f\x01\x00"),
        "key length of six bytes": record_of(START + b"\x80\x80\x80\x80\x80\x00\x01\x00"),
        "value length -2": record_of(START + b"\x01\x03\x00"),
        "value longer than the record": record_of(START + b"\x01\x08\x00"),
        "value length 2^31 - 1": record_of(START + b"\x01\xfe\xff\xff\xff\x0f\x00"),
        "value length of six bytes": record_of(START + b"\x01" + SIX + b"\x00"),
        "header count of six bytes": record_of(START + b"\x01\x01" + SIX),
        "header count 3 in four bytes": record_of(START + b"\x01\x01\x06" + b"\x00\x01" * 2),
        "header key length of six bytes": record_of(START + b"\x01\x01\x02" + SIX + b"\x01"),
        "header count -1": record_of(START + b"\x01\x01\x01"),
        "header count 1 of none": record_of(START + b"\x01\x01\x02"),
        "header count 2^31 - 1": record_of(START + b"\x01\x01\xfe\xff\xff\xff\x0f" + b"\x00" * 64),
        "header count one too small": record_of(START + b"\x01\x01\x02" + b"\x00\x01" * 2),
        "header key null": record_of(START + b"\x01\x01\x02\x01\x01"),
        "header key length -2": record_of(START + b"\x01\x01\x02\x03\x01"),
        "header key beyond the record": record_of(START + b"\x01\x01\x02\x20\x01"),
        "header value length -2": record_of(START + b"\x01\x01\x02\x00\x03"),
        "header value beyond the record": record_of(START + b"\x01\x01\x02\x00\x20"),
        "a byte after the headers": record_of(WHOLE + b"\x00"),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_malformed_record_is_refused(section: tuple[str, bytes]) -> None:
    reason = next((told for told, names in TOLD.items() if section[0] in names), "index out of")
    with pytest.raises(ProtocolError, match=f"a batch's records are malformed: .*{reason}"):
        read_all(batch_of(section[1], 1))
    # A length that is too large must not be satisfied by bytes of the records that follow.
    refuses(batch_of(section[1] + record_of(WHOLE) * 40, 1))


@pytest.mark.parametrize(
    ("name", "read"),
    [(b"caf\xe9", "caf\ufffd"), (b"\xff", "\ufffd"), (b"\xed\xa0\x80", "\ufffd" * 3)],
    ids=["latin-1", "no character", "a surrogate"],
)
def test_a_header_key_that_is_not_utf_8_is_read_with_replacements(name: bytes, read: str) -> None:
    """Brokers accept it, so the other records of its batch must stay readable."""
    odd = record_of(START + b"\x01\x01\x02" + unsigned(len(name) << 1) + name + b"\x02v")
    plain = record_of(b"\x00\x00\x02\x01\x01\x00")
    first, second = read_all(batch_of(odd + plain, 2))
    assert first.headers == ((read, b"v"),)
    assert second == ReadRecord(1, NOW, None, None, ())


def test_a_repeated_or_falling_offset_is_refused() -> None:
    zero, one = record_of(WHOLE), record_of(b"\x00\x00\x02\x01\x01\x00")
    assert [r.offset for r in read_all(batch_of(zero + one, 2))] == [0, 1]
    refuses(batch_of(zero + zero, 2))
    refuses(batch_of(one + zero, 2))


def test_varints_longer_than_need_be_are_read() -> None:
    padded = (
        b"\x00"  # attributes
        + (b"\x80" * 9 + b"\x00")  # timestamp delta 0
        + b"\x80\x00"  # offset delta 0
        + b"\x81\x80\x80\x80\x00"  # no key
        + b"\x81\x00"  # no value
        + b"\x80\x00"  # no headers
    )
    section = bytes((len(padded) << 1 | 0x80, 0x80, 0x00)) + padded
    assert read_all(batch_of(section, 1)) == [ReadRecord(0, NOW, None, None, ())]


def test_the_batches_before_a_malformed_one_do_not_excuse_it() -> None:
    """A malformed batch is refused even after well-formed batches."""
    good = BATCHES[Codec.NONE]
    refuses(good + with_field(good, MAGIC_AT, ">b", 1))


def traced_peak(work: Iterator[object]) -> int:
    tracemalloc.start()
    try:
        for _ in work:
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_decompression_bomb_is_refused_within_the_limit(codec: Codec) -> None:
    limit = 1 << 20
    bomb = batch_of(compress(codec, b"\x00" * (64 << 20)), 1, codec)
    (batch,) = read_batches(bomb, max_decompressed_bytes=limit)

    def attempt() -> Iterator[object]:
        with pytest.raises(ProtocolError):
            yield from batch.iter_records()

    assert traced_peak(attempt()) < 4 * limit + 2 * len(bomb)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_for_the_key_of_a_control_record_no_more_than_4_kib_is_decompressed(codec: Codec) -> None:
    """Whoever looks for markers reads one key of each, and a page may have thousands of them."""

    def batch(size: int, limit: int = 1 << 26) -> RecordBatch:
        record = ReadRecord(0, NOW, b"mark", b"x" * size, ())
        data = build_batch([record], codec=codec, control=True).data
        return read_batches(data, max_decompressed_bytes=limit)[0]

    assert batch(4000).control_key() == b"mark"
    with pytest.raises(ProtocolError):
        batch(4000, limit=4000).control_key()
    bomb = batch(1 << 20)
    assert len(bomb.records()) == 1

    def attempt() -> Iterator[object]:
        with pytest.raises(ProtocolError):
            yield bomb.control_key()

    assert traced_peak(attempt()) < 1 << 18


def test_a_control_batch_without_records_or_key_has_an_empty_key() -> None:
    assert read_batches(batch_of(b"", 0))[0].control_key() == b""
    assert read_batches(batch_of(record_of(WHOLE), 1))[0].control_key() == b""


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_the_limit_itself_is_allowed_and_a_byte_more_is_not(codec: Codec) -> None:
    built = build_batch([ReadRecord(0, NOW, None, b"x" * 100_000, ())], codec=codec)
    size = built.uncompressed_size - BATCH_OVERHEAD
    (batch,) = read_batches(built.data, max_decompressed_bytes=size)
    assert len(batch.records()) == 1
    (batch,) = read_batches(built.data, max_decompressed_bytes=size - 1)
    with pytest.raises(ProtocolError):
        batch.records()


def test_uncompressed_records_need_no_room_to_decompress() -> None:
    """The limit of decompressed bytes does not apply to uncompressed records."""
    (batch,) = read_batches(BATCHES[Codec.NONE], max_decompressed_bytes=1)
    assert batch.records() == RECORDS


def test_more_records_or_headers_than_allowed_are_refused() -> None:
    items = len(RECORDS) + sum(len(record.headers) for record in RECORDS)
    (batch,) = read_batches(BATCHES[Codec.NONE], max_items=items)
    assert batch.records() == RECORDS
    for allowed in (0, len(RECORDS) - 1, items - 1):
        (batch,) = read_batches(BATCHES[Codec.NONE], max_items=allowed)
        with pytest.raises(ProtocolError):
            batch.records()


def test_records_without_headers_are_counted_too() -> None:
    data = build_batch([ReadRecord(i, NOW, None, None, ()) for i in range(3)]).data
    (batch,) = read_batches(data, max_items=3)
    assert len(batch.records()) == 3
    (batch,) = read_batches(data, max_items=2)
    with pytest.raises(ProtocolError, match="3 records in 21 bytes"):
        batch.records()


def test_a_count_of_two_billion_allocates_nothing() -> None:
    section = record_of(START + b"\x01\x01" + unsigned(MANY << 1) + b"\x00" * 1000)
    for data in (batch_of(section, 1), with_field(batch_of(section, 1), COUNT_AT, ">i", MANY)):

        def attempt(data: bytes = data) -> Iterator[object]:
            with pytest.raises(ProtocolError):
                yield from read_batches(data)[0].iter_records()

        assert traced_peak(attempt()) < 200_000


def test_an_empty_batch_with_bytes_after_its_header_is_refused() -> None:
    assert read_all(batch_of(b"", 0)) == []
    refuses(batch_of(b"\x00", 0))
    for codec in Codec:
        assert read_all(batch_of(b"", 0, codec)) == []
        if codec:
            assert read_all(batch_of(compress(codec, b""), 0, codec)) == []
            refuses(batch_of(compress(codec, b"\x00"), 0, codec))


def told_of(data: bytes) -> str:
    with pytest.raises(ProtocolError) as raised:
        read_all(data)
    return str(raised.value)


def test_the_error_says_what_is_wrong_with_the_header() -> None:
    good = BATCHES[Codec.NONE]
    size = len(good)
    assert "7 bytes are no batch" in told_of(good[:7])
    assert "11 bytes are no batch" in told_of(good + good[:11])
    assert f"a batch of length {size - 12} is cut short" in told_of(good[:-1])
    assert "the length field of a batch is 48" in told_of(with_field(good, LENGTH_AT, ">i", 48))
    assert "the length field of a batch is -1" in told_of(with_field(good, LENGTH_AT, ">i", -1))
    assert "only 2 is supported" in told_of(with_field(good, MAGIC_AT, ">b", 3))
    for count, delta in ((-1, 3), (4, -1), (-1, -1)):
        data = with_field(with_field(good, COUNT_AT, ">i", count), LAST_DELTA_AT, ">i", delta)
        assert f"a batch has {count} records, the last at delta {delta}" in told_of(data)
    assert "the unknown codec 5" in told_of(with_field(good, ATTRIBUTES_AT, ">h", 5))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_is_told_by_its_magic_though_its_header_is_shorter(magic: int) -> None:
    """Its length may be as short as 14 bytes, and the magic is within the first five of them."""
    old = struct.pack(">qiIb", 0, 14, 0, magic) + bytes(9)
    assert f"a batch has magic {magic}; only 2 is supported" in told_of(old)
    for length, told in ((5, f"magic {magic}"), (4, "the length field of a batch is 4")):
        assert told in told_of(with_field(old, LENGTH_AT, ">i", length))
    assert "the length field of a batch is 14" in told_of(old[:MAGIC_AT])
    other = with_field(old, MAGIC_AT, ">b", 7)
    assert "the length field of a batch is 14" in told_of(other)


def test_a_batch_alone_is_exactly_one() -> None:
    good = BATCHES[Codec.NONE]
    size = len(good)
    with pytest.raises(ProtocolError, match="a batch of 60 bytes has no room for its header"):
        RecordBatch(good[:60])
    with pytest.raises(
        ProtocolError, match=f"a batch of {size - 1} bytes has the length {size - 12}"
    ):
        RecordBatch(good[:-1])
    assert RecordBatch(good) == RecordBatch(bytes(good)) != RecordBatch(BATCHES[Codec.GZIP])
    assert hash(RecordBatch(good)) == hash(RecordBatch(bytes(good)))
    assert RecordBatch(good) != good


@pytest.mark.parametrize(
    ("sequence", "last"), [(-1, -1), (0, 3), (5, 8), (2**31 - 2, 1), (2**31 - 4, 2**31 - 1)]
)
def test_the_last_sequence_wraps(sequence: int, last: int) -> None:
    built = build_batch(RECORDS, producer_id=7, producer_epoch=0, base_sequence=sequence)
    (batch,) = read_batches(built.data)
    assert (batch.last_sequence, batch.last_offset) == (last, 3)


def test_a_batch_without_records_may_be_empty() -> None:
    """Compaction leaves such batches, whatever their codec is."""
    for codec in Codec:
        assert read_all(batch_of(b"", 0, codec, last_delta=3)) == []


@pytest.mark.parametrize("delta", [-(2**63), 2**63 - 1])
def test_timestamps_reach_the_ends_of_their_range(delta: int) -> None:
    zigzag = (delta << 1) ^ (delta >> 63)
    section = record_of(b"\x00" + unsigned(zigzag & (2**64 - 1)) + b"\x00\x01\x01\x00")
    at_zero = bytearray(batch_of(section, 1))
    struct.pack_into(">qq", at_zero, 27, 0, 0)
    assert [record.timestamp_ms for record in read_all(bytes(at_zero))] == [delta]


@pytest.mark.parametrize("size", [63, 64, 127, 8191, 8192, 1 << 20])
def test_lengths_of_one_two_and_three_bytes_are_read(size: int) -> None:
    record = ReadRecord(0, NOW, b"k" * size, b"v" * size, (("h" * size, b"w" * size),))
    assert read_all(build_batch([record]).data) == [record]


def test_there_may_be_two_bytes_for_each_header_and_seven_for_each_record() -> None:
    body = START + b"\x01\x01" + b"\x06" + b"\x00\x01" * 3
    (record,) = read_all(batch_of(record_of(body), 1))
    assert record.headers == (("", None),) * 3
    assert len(read_all(batch_of(b"".join(shortest(i) for i in range(60)), 60))) == 60


def shortest(number: int) -> bytes:
    """Return a record of seven bytes with this offset delta, which is below 64."""
    return record_of(bytes((0, 0, number << 1, 1, 1, 0)))

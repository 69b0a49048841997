"""The message decoder is correct for every schema in use, and refuses malformed bytes safely.

The tests generate messages from the schemas of every version of every API that the embedded cluster
serves. For valid messages kio's own reader and writer give the expected result. The tests give kio
no malformed message, because kio can then end the process.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
import typing
import uuid
from datetime import UTC, datetime, timedelta
from functools import cache
from types import UnionType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.api_versions.v3 import response as api_versions
from kio.schema.create_topics.v7 import response as create_topics
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v4.response import FetchResponse as FetchResponseV4
from kio.schema.fetch_snapshot.v1 import response as fetch_snapshot
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.metadata.v1.request import MetadataRequest as MetadataRequestV1
from kio.schema.metadata.v12 import response as metadata
from kio.schema.produce.v8 import response as produce_v8
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_reader

from aioidem._protocol.codec import (
    MAX_ITEMS,
    RawErrorCode,
    decode,
    decode_prefix,
    encode,
    epoch_ms,
)
from aioidem._protocol.messages import request_type, response_type
from aioidem.errors import InternalError, ProtocolError

APIS = (0, 1, 2, 3, 10, 17, 18, 19, 20, 22, 24, 25, 26, 28, 32, 36, 44, 60, 61, 66)
EVERY_SCHEMA: list[Any] = [
    pytest.param(kind, id=f"{kind.__name__}-v{kind.__version__}")
    for api in APIS
    for version in schema_name_map[api_key_map[api]]
    for kind in (request_type(api, version), response_type(api, version))
    if kind is not None
] + [
    pytest.param(request_type(0, 14), id="ProduceRequest-v14"),
    pytest.param(response_type(0, 14), id="ProduceResponse-v14"),
]
ANY_SCHEMA = st.sampled_from([each.values[0] for each in EVERY_SCHEMA])

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGERS = {
    f"{sign}int{bits}": st.integers(
        *((0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    )
    for bits in (8, 16, 32, 64)
    for sign in ("u", "")
}


@cache
def values(kafka_type: str, seconds_only: bool) -> st.SearchStrategy[Any]:
    """Generate values that a field of this type can have, without null."""
    if kafka_type in INTEGERS:
        return INTEGERS[kafka_type]
    stamps = (
        st.integers(0, 250_000_000_000).map(lambda n: n * 1000)
        if seconds_only
        else (st.integers(0, 250_000_000_000_000))
    )
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
        "string": st.text(max_size=8) | st.just("x" * 300),
        "bytes": st.binary(max_size=8) | st.just(b"x" * 300),
        "records": st.binary(max_size=8) | st.just(b"x" * 300),
        "uuid": st.uuids().filter(lambda each: each.int != 0),
        "error_code": st.sampled_from(ErrorCode),
        "timedelta_i32": INTEGERS["int32"].map(lambda ms: timedelta(milliseconds=ms)),
        # kio's writer converts through a float, and so is inexact for longer times.
        "timedelta_i64": st.integers(-(2**41), 2**41).map(lambda ms: timedelta(milliseconds=ms)),
        "datetime_i64": stamps.map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
    }
    return strategies[kafka_type]


def entities(schema: Any, seconds_only: bool = False) -> st.SearchStrategy[Any]:
    """Generate messages of a schema with every field set."""
    return _entities(schema, seconds_only)


@cache
def _entities(schema: Any, seconds_only: bool) -> st.SearchStrategy[Any]:
    fields = {each.name: field_values(each, seconds_only) for each in dataclasses.fields(schema)}
    return st.builds(schema, **fields)


def field_values(field: dataclasses.Field[Any], seconds_only: bool) -> st.SearchStrategy[Any]:
    kind, nullable = without_none(field.type)
    is_array = typing.get_origin(kind) is tuple
    if is_array:
        kind, item_nullable = without_none(typing.get_args(kind)[0])
    else:
        item_nullable = nullable
    strategy = (
        entities(kind, seconds_only)
        if dataclasses.is_dataclass(kind)
        else values(field.metadata["kafka_type"], seconds_only)
    )
    # kio cannot write null for a tagged field whose default is not null.
    null_is_written = item_nullable and ("tag" not in field.metadata or field.default is None)
    if null_is_written and not (is_array and "tag" in field.metadata):
        strategy = st.none() | strategy
    if is_array:
        strategy = st.lists(strategy, max_size=3).map(tuple)
        if nullable:
            strategy = st.none() | strategy
    return strategy


def without_none(kind: Any) -> tuple[Any, bool]:
    if isinstance(kind, UnionType):
        return next(each for each in typing.get_args(kind) if each is not type(None)), True
    return kind, False


def make(schema: Any, **fields: Any) -> Any:
    """Make a message from plain int and str, although kio's annotations ask for its subtypes."""
    return schema(**fields)


slow_to_draw = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("schema", EVERY_SCHEMA)
@settings(max_examples=6, suppress_health_check=slow_to_draw)
@given(data=st.data())
def test_what_was_encoded_is_decoded_and_kio_reads_the_same(
    schema: type[Any], data: st.DataObject
) -> None:
    """A message survives encoding and decoding, and kio's reader agrees."""
    entity = data.draw(entities(schema, seconds_only=True))
    raw = encode(entity)
    assert decode(schema, raw) == entity
    assert entity_reader(schema)(raw, 0) == (entity, len(raw))


@pytest.mark.thorough
@settings(max_examples=300, suppress_health_check=slow_to_draw)
@given(data=st.data())
def test_any_buffer_is_read_alike(data: st.DataObject) -> None:
    """Messages in bytes, bytearray and memoryview are decoded alike."""
    schema = data.draw(ANY_SCHEMA)
    entity = data.draw(entities(schema))
    raw = encode(entity)
    assert decode(schema, raw) == entity
    assert decode(schema, memoryview(raw)) == decode(schema, bytearray(raw)) == entity


@pytest.mark.thorough
@settings(max_examples=400, suppress_health_check=slow_to_draw)
@given(data=st.data())
def test_a_mutated_message_is_read_or_refused_as_a_protocol_error(data: st.DataObject) -> None:
    schema = data.draw(ANY_SCHEMA)
    raw = bytearray(encode(data.draw(entities(schema))))
    places = st.lists(
        st.tuples(st.integers(0, max(len(raw) - 1, 0)), st.integers(0, 255)), max_size=6
    )
    for place, byte in data.draw(places):
        if raw:
            raw[place] = byte
    read_or_refuse(schema, bytes(raw))


@pytest.mark.thorough
@settings(max_examples=300, suppress_health_check=slow_to_draw)
@given(data=st.data())
def test_every_truncated_message_is_refused(data: st.DataObject) -> None:
    schema = data.draw(ANY_SCHEMA)
    raw = encode(data.draw(entities(schema)))
    for length in range(max(len(raw) - 200, 0), len(raw)):
        with pytest.raises(ProtocolError):
            decode(schema, raw[:length])


@settings(max_examples=500)
@given(schema=ANY_SCHEMA, raw=st.binary(max_size=300))
def test_arbitrary_bytes_are_read_or_refused_as_a_protocol_error(
    schema: type[Any], raw: bytes
) -> None:
    read_or_refuse(schema, raw)


def read_or_refuse(schema: type[Any], raw: bytes) -> None:
    refusal: ProtocolError | None = None
    try:
        assert isinstance(decode(schema, raw, trailing="ignore"), schema)
    except ProtocolError as error:
        refusal = error
    if refusal is not None:
        assert schema.__name__ in str(refusal)
        assert len(str(refusal)) < 300


# --- named hostile inputs -------------------------------------------------------------------------

HUGE_COUNTS = [2**31 - 1, 10_000_000, 1000, -2, -(2**31)]


def peak_bytes(schema: type[Any], raw: bytes) -> int:
    """Return the peak of allocated memory, in bytes, while the decoder refuses `raw`."""
    with pytest.raises(ProtocolError):
        decode(schema, raw)  # the first call builds the schema's decoder, which is kept
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(schema, raw)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", HUGE_COUNTS)
def test_array_count_beyond_the_frame_allocates_nothing(count: int) -> None:
    raw = count.to_bytes(4, "big", signed=True)
    assert peak_bytes(MetadataRequestV1, raw + bytes(64)) < 20_000


@pytest.mark.parametrize(
    "encoded", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x01"]
)
def test_compact_array_count_beyond_the_frame_allocates_nothing(encoded: bytes) -> None:
    raw = bytes(4) + encoded + bytes(64)
    assert peak_bytes(metadata.MetadataResponse, raw) < 20_000


def test_array_count_is_bounded_by_the_least_size_of_its_items() -> None:
    # The frame has 64 bytes left: room for 60 items of one byte, but a topic has three or more.
    raw = bytes(4) + b"\x01" + b"\x00" + bytes(4) + (61).to_bytes(1, "big") + bytes(64)
    with pytest.raises(ProtocolError, match="array of 60 items"):
        decode(metadata.MetadataResponse, raw)


def test_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="varint"):
        decode(metadata.MetadataResponse, bytes(4) + b"\xff\xff\xff\xff\xff\x01" + bytes(64))


def test_varint_beyond_32_bits_is_refused() -> None:
    with pytest.raises(ProtocolError, match="varint"):
        decode(metadata.MetadataResponse, bytes(4) + b"\xff\xff\xff\xff\x1f" + bytes(64))


def test_string_longer_than_the_frame_is_refused() -> None:
    raw = bytes(4) + b"\x02" + bytes(4) + b"\xff\x01abc" + bytes(64)
    with pytest.raises(ProtocolError, match="length 254"):
        decode(metadata.MetadataResponse, raw)
    with pytest.raises(ProtocolError, match="length 32767"):
        decode(MetadataRequestV1, b"\0\0\0\1\x7f\xffabc")


def test_negative_lengths_other_than_null_are_refused() -> None:
    one_topic = b"\0\0\0\1"
    with pytest.raises(ProtocolError, match="length -2"):
        decode(MetadataRequestV1, one_topic + b"\xff\xfe")
    with pytest.raises(ProtocolError, match="array of -2"):
        decode(MetadataRequestV1, b"\xff\xff\xff\xfe")


def test_null_where_the_schema_has_none_is_refused() -> None:
    assert decode(MetadataRequestV1, b"\xff\xff\xff\xff").topics is None
    with pytest.raises(ProtocolError, match="length -1"):
        decode(MetadataRequestV1, b"\0\0\0\1\xff\xff")
    with pytest.raises(ProtocolError, match="array of -1"):
        decode(produce_v8.ProduceResponse, b"\xff\xff\xff\xff\0\0\0\0")


API_VERSIONS_BODY = b"\0\0" + b"\x01" + bytes(4)  # no error, no APIs, no throttling


def test_unknown_tags_are_skipped_wherever_they_stand() -> None:
    inner = b"\x00\x00\x00\x03\x00\x0d" + b"\x02" + b"\x63\x03abc" + b"\x05\x00"
    raw = b"\0\0" + b"\x02" + inner + bytes(4) + b"\x01" + b"\xff\xff\xff\xff\x0f\x01z"
    response = decode(api_versions.ApiVersionsResponse, raw)
    assert [each.max_version for each in response.api_keys] == [13]


def test_known_tags_are_read_in_any_order_among_unknown_ones() -> None:
    epoch = b"\x01\x08" + (7).to_bytes(8, "big")
    raw = API_VERSIONS_BODY + b"\x03" + b"\x63\x01z" + b"\x03\x01\x01" + epoch
    response = decode(api_versions.ApiVersionsResponse, raw)
    assert (response.finalized_features_epoch, response.zk_migration_ready) == (7, True)


def test_tag_size_beyond_the_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="tagged field 99 of 127 bytes"):
        decode(api_versions.ApiVersionsResponse, API_VERSIONS_BODY + b"\x01\x63\x7fabc")


def test_tag_count_beyond_the_frame_is_refused() -> None:
    raw = API_VERSIONS_BODY + b"\xff\xff\xff\xff\x0f" + bytes(64)
    assert peak_bytes(api_versions.ApiVersionsResponse, raw) < 20_000


def test_duplicate_tags_are_refused() -> None:
    epoch = b"\x01\x08" + (7).to_bytes(8, "big")
    with pytest.raises(ProtocolError, match="comes twice"):
        decode(api_versions.ApiVersionsResponse, API_VERSIONS_BODY + b"\x02" + epoch + epoch)


@pytest.mark.parametrize("size", [0, 7, 9])
def test_known_tag_of_another_size_is_refused(size: int) -> None:
    raw = API_VERSIONS_BODY + b"\x01\x01" + size.to_bytes(1, "big") + bytes(size)
    with pytest.raises(ProtocolError):
        decode(api_versions.ApiVersionsResponse, raw)


def test_text_that_is_not_utf8_is_refused() -> None:
    for bad in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80"):
        raw = b"\0\0\0\1" + len(bad).to_bytes(2, "big") + bad
        with pytest.raises(ProtocolError, match="not UTF-8"):
            decode(MetadataRequestV1, raw)


def test_array_of_more_items_than_any_message_has_is_refused() -> None:
    count = MAX_ITEMS + 1
    raw = count.to_bytes(4, "big") + bytes(2 * count)
    with pytest.raises(ProtocolError, match=f"array of {count} items"):
        decode(MetadataRequestV1, raw)


def test_all_arrays_of_a_message_share_one_budget_those_in_tagged_fields_too() -> None:
    """The arrays of one message, tagged fields included, together hold at most `MAX_ITEMS`."""
    keys, features = 1000, MAX_ITEMS - 999
    plain = b"\0\0" + _uvarint(keys + 1) + bytes(7 * keys) + bytes(4)
    tagged = _uvarint(features + 1) + b"\2a\0\1\0\1\0" * features
    raw = plain + b"\1\0" + _uvarint(len(tagged)) + tagged
    with pytest.raises(ProtocolError, match=f"a message may have {MAX_ITEMS} in all"):
        decode(api_versions.ApiVersionsResponse, raw)
    fewer = _uvarint(3) + b"\2a\0\1\0\1\0" * 2
    raw = plain + b"\1\0" + _uvarint(len(fewer)) + fewer
    assert len(decode(api_versions.ApiVersionsResponse, raw).supported_features) == 2


def test_tagged_fields_count_as_items_known_or_not() -> None:
    """Tagged fields count as items, known or not: skipping 16 MiB of empty ones takes seconds."""
    few = MAX_ITEMS - 1
    plain = b"\0\0" + _uvarint(2) + bytes(7) + bytes(4)
    for tags, fits in ((few, True), (few + 1, False)):
        raw = plain + _uvarint(tags) + b"\x63\0" * tags
        if fits:
            assert len(decode(api_versions.ApiVersionsResponse, raw).api_keys) == 1
            continue
        with pytest.raises(ProtocolError, match=f"a message may have {MAX_ITEMS} in all"):
            decode(api_versions.ApiVersionsResponse, raw)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def test_long_list_within_the_frame_is_read() -> None:
    count = 50_000
    topics = decode(MetadataRequestV1, count.to_bytes(4, "big") + bytes(2 * count)).topics
    assert topics is not None
    assert len(topics) == count


def test_trailing_bytes_are_refused() -> None:
    raw = API_VERSIONS_BODY + b"\x00"
    decode(api_versions.ApiVersionsResponse, raw)
    with pytest.raises(ProtocolError, match="3 bytes follow"):
        decode(api_versions.ApiVersionsResponse, raw + b"abc")
    decode(api_versions.ApiVersionsResponse, raw + b"abc", trailing="ignore")


def test_an_answer_of_another_version_is_refused() -> None:
    answer = make(
        produce_v8.ProduceResponse,
        responses=(make(produce_v8.TopicProduceResponse, name="t", partition_responses=()),),
        throttle_time=timedelta(0),
    )
    with pytest.raises(ProtocolError):
        decode(typing.cast("Any", response_type(0, 9)), encode(answer))


# --- values a newer or stranger broker may send ---------------------------------------------------


def test_unknown_error_code_is_kept_as_its_number() -> None:
    raw = b"\x7f\xff" + b"\x01" + bytes(4) + b"\x00"
    response = decode(api_versions.ApiVersionsResponse, raw)
    assert response.error_code == 32767
    assert isinstance(response.error_code, RawErrorCode)
    assert encode(response) == raw


def test_known_error_codes_are_named() -> None:
    raw = b"\x00\x23" + b"\x01" + bytes(4) + b"\x00"
    response = decode(api_versions.ApiVersionsResponse, raw)
    assert response.error_code is ErrorCode.unsupported_version
    raw = bytes(2) + raw[2:]
    assert decode(api_versions.ApiVersionsResponse, raw).error_code is ErrorCode.none


def append_time(ms: int) -> bytes:
    """Return a Produce v8 answer for one partition with this log append time, in milliseconds."""
    partition = bytes(4 + 2 + 8) + ms.to_bytes(8, "big", signed=True) + bytes(8 + 4) + b"\xff\xff"
    return b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + partition + bytes(4)


def test_timestamp_keeps_its_milliseconds() -> None:
    for ms in (0, 1, 1_700_000_000_123, 253_402_300_799_999):
        response = decode(produce_v8.ProduceResponse, append_time(ms))
        moment = response.responses[0].partition_responses[0].log_append_time
        assert epoch_ms(moment) == ms
        assert encode(response) == append_time(ms)


def test_timestamp_minus_one_is_none_where_null_is_allowed() -> None:
    response = decode(produce_v8.ProduceResponse, append_time(-1))
    moment = response.responses[0].partition_responses[0].log_append_time
    assert moment is None
    assert epoch_ms(moment) == -1


@pytest.mark.parametrize("ms", [-2, -(2**63), 253_402_300_800_000, 2**63 - 1])
def test_timestamp_out_of_range_is_refused(ms: int) -> None:
    with pytest.raises(ProtocolError, match="timestamp"):
        decode(produce_v8.ProduceResponse, append_time(ms))


def test_absent_tagged_fields_have_their_defaults() -> None:
    topic = make(
        create_topics.CreatableTopicResult,
        name="t",
        topic_id=uuid.UUID(int=1),
        error_code=ErrorCode.none,
        error_message=None,
        configs=None,
    )
    raw = encode(topic)
    assert raw[-1] == 0
    assert decode(create_topics.CreatableTopicResult, raw).topic_config_error_code == 0


def test_absent_tagged_struct_without_a_default_is_one_of_zeroes() -> None:
    leader = make(fetch_snapshot.LeaderIdAndEpoch, leader_id=0, leader_epoch=0)
    partition = make(
        fetch_snapshot.PartitionSnapshot,
        index=1,
        error_code=ErrorCode.none,
        snapshot_id=make(fetch_snapshot.SnapshotId, end_offset=1, epoch=1),
        current_leader=leader,
        size=0,
        position=0,
        unaligned_records=b"",
    )
    raw = encode(partition)
    assert raw[-1] == 0
    assert decode(fetch_snapshot.PartitionSnapshot, raw).current_leader == leader


def test_client_id_of_a_flexible_header_has_the_old_form() -> None:
    header, end = decode_prefix(RequestHeader, b"\0\3\0\x0c\0\0\0\7\0\2ab\0rest", 0)
    assert (header.client_id, end) == ("ab", 13)
    header, _ = decode_prefix(RequestHeader, b"\0\3\0\x0c\0\0\0\7\xff\xff\0", 0)
    assert header.client_id is None


def test_reading_may_start_anywhere() -> None:
    raw = encode(MetadataRequestV1(topics=None))
    assert decode_prefix(MetadataRequestV1, b"xyz" + raw + b"more", 3)[1] == 3 + len(raw)


def test_encoding_a_value_that_does_not_fit_is_our_error() -> None:
    entity = make(FetchResponseV4, throttle_time=timedelta(days=1000), responses=())
    with pytest.raises(InternalError, match="FetchResponse v4"):
        encode(entity)

"""Produce requests have the bytes that kio writes, and no field of an answer is lost."""

from __future__ import annotations

import importlib
import io
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from aioidem._protocol.codec import decode, encode
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import MAX_THROTTLE_MS, decode_request, encode_response
from aioidem._protocol.produce import (
    LeaderNode,
    PartitionAnswer,
    decode_by_schema,
    decode_produce_response,
    encode_produce_request,
)
from aioidem._protocol.produce_v14 import (
    DEFAULT_RETAINED,
    PartitionProduceResponseV14,
    ProduceResponseV14,
    TopicProduceResponseV14,
    tagged_retained,
)
from aioidem._records import ReadRecord, build_batch
from aioidem.errors import InternalError, ProtocolError

VERSIONS = range(3, 15)
TOPIC_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def schemas(version: int, side: str) -> Any:
    return importlib.import_module(f"kio.schema.produce.v{min(version, 13)}.{side}")


def payload(framed: bytes) -> bytes:
    [only] = FrameSplitter(1 << 24).feed(framed)
    return only


def by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


# --- requests -------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=30)
batches = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=200)), max_size=4)
topics = st.lists(st.tuples(names, st.uuids().filter(lambda each: each.int), batches), max_size=4)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(
    topics=topics,
    transactional_id=st.none() | st.text(max_size=200),
    client_id=st.none() | names,
    acks=st.sampled_from([-1, 0, 1]),
    timeout_ms=st.integers(0, 2**31 - 1),
    correlation_id=st.integers(0, 2**31 - 1),
)
def test_requests_are_byte_for_byte_what_kio_writes(
    version: int,
    topics: list[Any],
    transactional_id: str | None,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    correlation_id: int,
) -> None:
    kinds = schemas(version, "request")
    entity = kinds.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=tuple(
            kinds.TopicProduceData(
                **({"topic_id": topic_id} if version >= 13 else {"name": name}),
                partition_data=tuple(
                    kinds.PartitionProduceData(index=index, records=records)
                    for index, records in batches
                ),
            )
            for name, topic_id, batches in topics
        ),
    )
    header = kinds.ProduceRequest.__header_schema__(
        request_api_key=0,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    framed = encode_produce_request(
        version,
        correlation_id=correlation_id,
        client_id=client_id,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topics=topics,
    )
    assert payload(framed) == by_kio(header) + by_kio(entity)
    read, request = decode_request(payload(framed))
    assert (read.api_version, read.correlation_id) == (version, correlation_id)
    assert request.__version__ == version
    assert by_kio(request) == by_kio(entity)


def request(version: int, topic_id: uuid.UUID | None = TOPIC_ID, size: int = 1) -> bytes:
    return encode_produce_request(
        version,
        correlation_id=1,
        client_id=None,
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        topics=[("topic", topic_id, [(0, bytes(size))])],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_of_any_size_are_read_back(version: int) -> None:
    for size in (0, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151):
        _, entity = decode_request(payload(request(version, size=size)))
        [topic] = getattr(entity, "topic_data")  # noqa: B009 - the schema depends on the version
        assert topic.partition_data[0].records == bytes(size)


def test_a_topic_without_an_id_is_refused_where_ids_are_sent() -> None:
    request(12, None)
    for version in (13, 14):
        with pytest.raises(InternalError, match="'topic'"):
            request(version, None)


@pytest.mark.parametrize("version", [-1, 2, 15])
def test_a_version_that_does_not_exist_is_refused(version: int) -> None:
    with pytest.raises(InternalError):
        request(version)
    with pytest.raises(InternalError):
        decode_produce_response(version, bytes(10))


# --- answers --------------------------------------------------------------------------------------


def answer(version: int, **partition: Any) -> Any:
    """Return an answer for one partition, with every field that the version requires."""
    kinds = schemas(version, "response")
    fields = {"index": 3, "error_code": ErrorCode.none, "base_offset": 42} | partition
    if version >= 8:
        fields = {"record_errors": ()} | fields
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "topic"}
    return kinds.ProduceResponse(
        responses=(
            kinds.TopicProduceResponse(
                **topic, partition_responses=(kinds.PartitionProduceResponse(**fields),)
            ),
        ),
        throttle_time=timedelta(milliseconds=partition.pop("throttle", 0)),
    )


def only_partition(version: int, entity: Any) -> PartitionAnswer:
    correlation_id, seen = decode_produce_response(version, payload(encode_response(entity, 9)))
    assert correlation_id == 9
    [partition] = seen.partitions
    return partition


@pytest.mark.parametrize("version", range(3, 14))
def test_absent_fields_have_their_defaults_in_every_version(version: int) -> None:
    assert only_partition(version, answer(version)) == PartitionAnswer(
        topic="topic" if version < 13 else None,
        topic_id=TOPIC_ID if version >= 13 else None,
        partition=3,
        error_code=ErrorCode.none,
        base_offset=42,
    )


@pytest.mark.parametrize("version", range(3, 14))
def test_every_field_of_every_version_reaches_the_view(version: int) -> None:
    """`decode_produce_response` returns every field that a version has."""
    kinds = schemas(version, "response")
    fields: dict[str, Any] = {
        "error_code": ErrorCode.not_leader_or_follower,
        "base_offset": 1 << 40,
        "log_append_time": datetime(2026, 11, 21, 9, 30, 15, 123_000, tzinfo=UTC),
    }
    expected: dict[str, Any] = {
        "error_code": ErrorCode.not_leader_or_follower,
        "base_offset": 1 << 40,
        "log_append_time_ms": 1_795_253_415_123,
    }
    if version >= 5:
        fields["log_start_offset"] = expected["log_start_offset"] = 17
    if version >= 8:
        fields["record_errors"] = (
            kinds.BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="bad\n"),
            kinds.BatchIndexAndErrorMessage(batch_index=4, batch_index_error_message=None),
        )
        fields["error_message"] = "moved\x07"
        expected["record_errors"] = ((2, "bad\\n"), (4, None))
        expected["error_message"] = "moved\\x07"
    if version >= 10:
        fields["current_leader"] = kinds.LeaderIdAndEpoch(leader_id=5, leader_epoch=8)
        expected |= {"leader_id": 5, "leader_epoch": 8}
    seen = only_partition(version, answer(version, **fields))
    for name, value in expected.items():
        assert getattr(seen, name) == value, name


@pytest.mark.parametrize("version", range(3, 14))
def test_answers_are_read_as_kio_reads_them(version: int) -> None:
    entity = answer(version, log_append_time=datetime(2026, 11, 21, 9, 30, 15, tzinfo=UTC))
    raw = by_kio(entity)
    assert decode(type(entity), raw) == entity_reader(type(entity))(raw, 0)[0] == entity


def test_new_leaders_addresses_are_returned_and_impossible_ones_left_out() -> None:
    """Addresses of new leaders (KIP-951) are returned, except for impossible ones."""
    kinds = schemas(13, "response")
    right = [(5, "host", 9092), (0, "host", 1), (1, "host", 65_535)]
    wrong = [(-1, "host", 9092), (6, "", 9092), (7, "host", 0), (8, "host", 65_536)]
    entity = kinds.ProduceResponse(
        responses=(),
        node_endpoints=tuple(
            kinds.NodeEndpoint(node_id=node, host=host, port=port)
            for node, host, port in wrong + right
        ),
    )
    _, seen = decode_produce_response(13, payload(encode_response(entity, 1)))
    assert seen.leaders == tuple(LeaderNode(*each) for each in right)


@pytest.mark.parametrize(("asked", "believed"), [(250, 250), (-1, 0), (2**31 - 1, MAX_THROTTLE_MS)])
def test_throttle_time_of_an_answer_is_clamped(asked: int, believed: int) -> None:
    kinds = schemas(13, "response")
    entity = kinds.ProduceResponse(responses=(), throttle_time=timedelta(milliseconds=asked))
    _, seen = decode_produce_response(13, payload(encode_response(entity, 1)))
    assert seen.throttle_ms == believed


@pytest.mark.parametrize("fields", [{"index": -1}, {"base_offset": -2}, {"base_offset": -(2**63)}])
def test_negative_partition_or_offset_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ProtocolError, match="partition"):
        only_partition(13, answer(13, **fields))


def test_other_negative_numbers_count_as_absent() -> None:
    """A negative leader id, leader epoch or log start offset counts as absent."""
    leader = schemas(13, "response").LeaderIdAndEpoch(leader_id=-7, leader_epoch=-9)
    seen = only_partition(13, answer(13, current_leader=leader, log_start_offset=-5))
    assert (seen.leader_id, seen.leader_epoch, seen.log_start_offset) == (-1, -1, -1)


def test_unknown_error_code_reaches_the_view_as_its_number() -> None:
    """An unknown error code is returned as its number."""
    raw = bytearray(payload(encode_response(answer(13), 1)))
    at = raw.index((3).to_bytes(4, "big") + b"\0\0") + 4
    raw[at : at + 2] = b"\x7f\xff"
    assert decode_produce_response(13, bytes(raw))[1].partitions[0].error_code == 32767


def test_a_partition_answered_twice_is_refused() -> None:
    entity = answer(13)
    twice = type(entity)(responses=entity.responses * 2)
    with pytest.raises(ProtocolError, match="twice"):
        decode_produce_response(13, payload(encode_response(twice, 1)))


def test_error_message_of_a_megabyte_is_cut() -> None:
    seen = only_partition(13, answer(13, error_message="x" * 1_000_000))
    assert seen.error_message is not None
    assert len(seen.error_message) < 400


@pytest.mark.parametrize("version", VERSIONS)
@given(raw=st.binary(max_size=120))
def test_any_bytes_as_an_answer_are_read_or_refused(version: int, raw: bytes) -> None:
    try:
        _, seen = decode_produce_response(version, raw)
    except ProtocolError:
        return
    assert seen.throttle_ms >= 0


def outcome(read: Any, version: int, raw: bytes) -> Any:
    try:
        return read(version, raw)
    except ProtocolError as error:
        return str(error)


@st.composite
def nearly_plain(draw: st.DrawFn) -> tuple[int, bytes]:
    """Generate an answer without errors (v9 to v14), sometimes with a byte changed or cut off."""
    version = draw(st.sampled_from([v for v in VERSIONS if v >= 9]))
    kinds = schemas(version, "response")
    small, wide = st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1)
    partition: Any = kinds.PartitionProduceResponse
    topic: Any = kinds.TopicProduceResponse
    extra: dict[str, Any] = {}
    if version == 14:
        partition, topic = PartitionProduceResponseV14, TopicProduceResponseV14
        extra["producer_state_batches_to_retain"] = draw(st.none() | st.integers(-1, 1000))
    topics = []
    for number in range(draw(st.integers(0, 2))):
        partitions = tuple(
            partition(
                index=draw(small),
                error_code=ErrorCode.none,
                base_offset=draw(small | wide),
                log_append_time=draw(st.none() | st.just(datetime(2026, 11, 21, tzinfo=UTC))),
                log_start_offset=draw(small | wide),
                record_errors=(),
                **extra,
            )
            for _ in range(draw(st.integers(0, 2)))
        )
        named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": f"topic{number}"}
        topics.append(topic(partition_responses=partitions, **named))
    whole: Any = ProduceResponseV14 if version == 14 else kinds.ProduceResponse
    entity = whole(responses=tuple(topics), throttle_time=timedelta(milliseconds=draw(small)))
    raw = bytearray(payload(encode_response(entity, 9)))
    if draw(st.booleans()):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 9)) == 0:
        del raw[draw(st.integers(0, len(raw))) :]
    return version, bytes(raw + draw(st.sampled_from([b"", b"", b"", b"x"])))


@given(made=nearly_plain())
def test_the_usual_answer_is_read_as_by_its_schema(made: tuple[int, bytes]) -> None:
    """`decode_produce_response` and the schema's decoder give the same result or error."""
    version, raw = made
    seen = outcome(decode_produce_response, version, raw)
    assert seen == outcome(decode_by_schema, version, raw)


# --- v14 ------------------------------------------------------------------------------------------


def v14(of_partition: int | None = None, of_topic: int | None = None) -> Any:
    partition: Any = PartitionProduceResponseV14
    topic: Any = TopicProduceResponseV14
    return ProduceResponseV14(
        responses=(
            topic(
                topic_id=TOPIC_ID,
                partition_responses=(
                    partition(
                        index=3,
                        error_code=ErrorCode.none,
                        base_offset=42,
                        record_errors=(),
                        producer_state_batches_to_retain=of_partition,
                    ),
                ),
                producer_state_batches_to_retain=of_topic,
            ),
        )
    )


@pytest.mark.parametrize(
    ("of_partition", "of_topic", "seen"),
    [
        (None, None, None),
        (20, None, 20),
        (None, 20, 20),
        (7, 20, 7),
        (5, None, 5),
        (0, 20, 0),
        (-1, None, -1),
        (2**31 - 1, None, 2**31 - 1),
    ],
)
def test_the_window_is_read_from_both_structs_and_the_partitions_wins(
    of_partition: int | None, of_topic: int | None, seen: int | None
) -> None:
    """The window in an answer is that of the partition, or else that of the topic.

    The window is KIP-1269's tagged field ProducerStateBatchesToRetain. In a Produce answer both the
    struct of a topic and that of a partition may have it.
    """
    assert only_partition(14, v14(of_partition, of_topic)).retained == seen


def test_a_v14_answer_that_says_nothing_is_byte_for_byte_a_v13_answer() -> None:
    """A v14 answer without KIP-1269's tagged field has the bytes of a v13 answer."""
    assert encode(v14()) == encode(answer(13))


def test_a_v14_answer_is_a_v13_answer_with_one_tag_more() -> None:
    plain, tagged = encode(answer(13)), encode(v14(20))
    assert len(tagged) == len(plain) + 6
    assert b"\x01\x01\x04\x00\x00\x00\x14" in tagged


def test_a_v13_answer_never_tells_a_window() -> None:
    """A v13 answer never gives a number of batches to retain, even with KIP-1269's field in it."""
    # A reader of v13 takes KIP-1269's field for an unknown tagged field.
    raw = payload(encode_response(v14(20, 20), 1))
    assert decode_produce_response(13, raw)[1].partitions[0].retained is None


PARTITION_TAG = b"\x01\x01\x04\x00\x00\x00\x14"


@pytest.mark.parametrize(
    "value", [b"", b"\x14", b"\0\0\x14", b"\0\0\0\0\x14", bytes(8), bytes(100)]
)
def test_a_window_that_is_not_four_bytes_is_ignored(value: bytes) -> None:
    raw = payload(encode_response(v14(20), 1))
    odd = raw.replace(PARTITION_TAG, b"\x01\x01" + bytes([len(value)]) + value)
    seen = decode_produce_response(14, odd)[1].partitions[0]
    assert (seen.retained, seen.base_offset) == (None, 42)


def test_a_malformed_window_of_the_partition_leaves_the_topics() -> None:
    """If a partition's number of batches to retain is malformed, that of its topic is read.

    The number is KIP-1269's tagged field. In a Produce answer both the struct of a topic and that
    of a partition may have it.
    """
    raw = payload(encode_response(v14(20, 30), 1))
    odd = raw.replace(PARTITION_TAG, b"\x01\x01\x01\x14")
    assert decode_produce_response(14, odd)[1].partitions[0].retained == 30


def test_the_window_is_found_among_unknown_tags() -> None:
    """KIP-1269's tagged field, the window, is found among unknown tagged fields."""
    raw = payload(encode_response(v14(20), 1))
    more = raw.replace(PARTITION_TAG, b"\x03\x09\x02zz" + PARTITION_TAG[1:] + b"\x63\x00")
    assert decode_produce_response(14, more)[1].partitions[0].retained == 20


def test_the_embedded_broker_tags_one_struct_and_leaves_the_default_out() -> None:
    assert tagged_retained(20, "partition") == 20
    assert tagged_retained(20, "topic") is None
    assert tagged_retained(DEFAULT_RETAINED, "partition") is None


def test_our_v14_reads_back_what_kio_writes_of_it() -> None:
    """Our decoder reads what kio's writer makes of our Produce v14 schema."""
    for entity in (v14(), v14(20), v14(None, 30), v14(6, 7)):
        assert decode(ProduceResponseV14, by_kio(entity)) == entity


def test_a_v14_request_is_a_v13_request() -> None:
    """A Produce v14 request has the bytes of v13 except for the version in its header."""
    arguments: dict[str, Any] = {
        "correlation_id": 7,
        "client_id": "c",
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1000,
        "topics": [("t", UUID(int=5), [(0, build_batch([ReadRecord(0, 1, None, b"v", ())]).data)])],
    }
    old, new = encode_produce_request(13, **arguments), encode_produce_request(14, **arguments)
    # The version is in bytes 6 and 7, after the length (4 bytes) and the API key (2 bytes).
    assert (old[6:8], new[6:8]) == (b"\x00\x0d", b"\x00\x0e")
    assert old[:6] + old[8:] == new[:6] + new[8:]

"""The headers and bodies that aioidem encodes have the bytes that kio writes."""

from __future__ import annotations

import copy
import io
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import (
    MAX_THROTTLE_MS,
    RequestHeader,
    UnsupportedRequestError,
    correlation_id_of,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    printable,
    request_head,
    request_type,
    response_type,
    throttle_ms,
)
from aioidem.errors import ProtocolError

correlation_ids = st.integers(-(2**31), 2**31 - 1)
client_ids = st.none() | st.text(max_size=20)


def schema(kind: Any) -> Any:
    """Check that a schema exists, and return it as Any, because tests fill it with plain types."""
    assert kind is not None
    return kind


def written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def payload(framed: bytes) -> bytes:
    [only] = FrameSplitter(1 << 20).feed(framed)
    return only


@given(correlation_id=correlation_ids, client_id=client_ids, version=st.sampled_from([8, 9]))
def test_request_headers_are_what_kio_writes(
    correlation_id: int, client_id: str | None, version: int
) -> None:
    header_type: Any = schema(request_type(3, version)).__header_schema__
    header = header_type(
        request_api_key=3,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    head = request_head(3, version, correlation_id, client_id, flexible=version == 9)
    assert head == written(header)


@given(correlation_id=correlation_ids, client_id=client_ids)
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_requests_are_read_back_with_their_headers(
    version: int, correlation_id: int, client_id: str | None
) -> None:
    kind = schema(request_type(22, version))
    entity = kind(
        transactional_id="tx",
        transaction_timeout=timedelta(seconds=60),
        **({"producer_id": 5, "producer_epoch": 1} if version >= 3 else {}),
    )
    framed = encode_request(entity, correlation_id=correlation_id, client_id=client_id)
    header = RequestHeader(22, version, correlation_id, client_id)
    assert decode_request(payload(framed)) == (header, entity)
    assert payload(framed).endswith(written(entity))


def test_the_version_in_the_header_may_be_another_than_the_entitys() -> None:
    """The version in a request's header may differ from the version of its schema."""
    entity = schema(request_type(0, 13))(
        acks=-1, timeout=timedelta(seconds=1), topic_data=(), transactional_id=None
    )
    framed = encode_request(entity, correlation_id=1, client_id="c", version=14)
    header, request = decode_request(payload(framed))
    assert header.api_version == 14
    assert type(request) is request_type(0, 14)


@given(correlation_id=correlation_ids)
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_responses_are_read_back_with_their_correlation_ids(
    version: int, correlation_id: int
) -> None:
    kind = schema(response_type(22, version))
    entity = kind(
        throttle_time=timedelta(0), error_code=ErrorCode.none, producer_id=7, producer_epoch=3
    )
    raw = payload(encode_response(entity, correlation_id))
    assert correlation_id_of(raw) == correlation_id
    assert decode_response(kind, raw) == (correlation_id, entity)
    header, at = entity_reader(kind.__header_schema__)(raw, 0)
    assert header.correlation_id == correlation_id
    assert raw[at:] == written(entity)


def test_the_answer_about_versions_has_the_oldest_header_in_every_version() -> None:
    """ApiVersions answers have response header v0 in every version (KIP-511)."""
    for version in range(5):
        kind = schema(response_type(18, version))
        more = {"throttle_time": timedelta(0)} if version else {}
        entity = kind(error_code=ErrorCode.none, api_keys=(), **more)
        assert payload(encode_response(entity, 3)) == b"\0\0\0\3" + written(entity)


def test_tags_in_a_response_header_are_skipped() -> None:
    kind = schema(response_type(22, 4))
    entity = kind(
        throttle_time=timedelta(0), error_code=ErrorCode.none, producer_id=7, producer_epoch=3
    )
    raw = b"\0\0\0\x09" + b"\x01\x21\x02zz" + written(entity)
    assert decode_response(kind, raw) == (9, entity)


def test_bytes_behind_a_response_are_refused() -> None:
    kind = schema(response_type(22, 4))
    entity = kind(
        throttle_time=timedelta(0), error_code=ErrorCode.none, producer_id=7, producer_epoch=3
    )
    with pytest.raises(ProtocolError, match="InitProducerIdResponse v4: 1 bytes follow"):
        decode_response(kind, payload(encode_response(entity, 1)) + b"\0")


def test_bytes_behind_a_request_are_refused() -> None:
    raw = request_head(18, 0, 1, None, flexible=False) + b"x"
    with pytest.raises(ProtocolError, match="1 bytes follow"):
        decode_request(raw)


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 15), (18, 99), (999, 0), (-1, 0)])
def test_request_without_a_schema_is_refused_with_its_header(api_key: int, version: int) -> None:
    raw = request_head(api_key, version, 77, "someone", flexible=True) + b"whatever"
    with pytest.raises(UnsupportedRequestError) as caught:
        decode_request(raw)
    assert caught.value.header == RequestHeader(api_key, version, 77, "someone")
    assert request_type(api_key, version) is None
    assert response_type(api_key, version) is None


def test_the_refusal_can_be_copied_and_pickled() -> None:
    """UnsupportedRequestError can be copied and pickled."""
    error = UnsupportedRequestError(RequestHeader(1, 2, 3, "c"))
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - pickled here
        assert same.header == error.header
        assert str(same) == str(error)


@given(raw=st.binary(max_size=60))
def test_any_bytes_as_a_request_are_read_or_refused(raw: bytes) -> None:
    try:
        header, _ = decode_request(raw)
    except ProtocolError:
        return
    assert isinstance(header, RequestHeader)


@pytest.mark.parametrize("raw", [b"", b"\0\0\0"])
def test_response_shorter_than_a_correlation_id_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="response of"):
        correlation_id_of(raw)


def test_correlation_id_is_read_from_any_buffer() -> None:
    assert correlation_id_of(memoryview(b"\0\0\1\0more")) == 256
    assert correlation_id_of(b"\0\0\1\0") == 256


@pytest.mark.parametrize(
    ("asked", "believed"),
    [
        (0, 0),
        (5000, 5000),
        (-1, 0),
        (-(2**31), 0),
        (2**31 - 1, MAX_THROTTLE_MS),
        (timedelta(milliseconds=-5), 0),
        (timedelta(milliseconds=1500), 1500),
        (timedelta(milliseconds=2**31 - 1), MAX_THROTTLE_MS),
    ],
)
def test_throttle_time_is_clamped(asked: int | timedelta, believed: int) -> None:
    assert throttle_ms(asked) == believed


@given(text=st.text(max_size=400))
def test_text_of_a_broker_is_printable_and_short(text: str) -> None:
    shown = printable(text, limit=50)
    assert shown.isprintable()
    assert len(shown) < 600
    if text.isprintable() and len(text) <= 50:
        assert shown == text


def test_text_of_a_broker_is_escaped_and_cut() -> None:
    assert printable("a\x1b[31m\n\u202eb") == "a\\x1b[31m\\n\\u202eb"
    assert printable("x" * 1_000_000) == "x" * 300 + "... (1000000 characters)"


def test_frames_announce_their_length() -> None:
    assert frame(b"abc") == b"\0\0\0\3abc"

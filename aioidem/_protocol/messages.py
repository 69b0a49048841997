"""Encode and decode requests and responses (header and body) of any API and version as frames.

Invariants:

- kio's schemas say which header a body has (`__header_schema__`). The ApiVersions response has the
  oldest header in all versions, so that a client can read it even if the broker lacks the version
  of the request.
- The error for a request of an unknown API or version (`UnsupportedRequestError`) contains the
  request's header, because an error response must repeat the header's correlation id.
- The schemas are kio's, except for Produce v14, which `produce_v14` defines. A schema is imported
  when it is first needed, because making its classes takes a millisecond or two.

Every message has a header, so headers are packed by hand, which is faster than kio. Tests compare
the bytes with those that kio writes.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache, lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from aioidem._protocol.codec import decode_prefix, encode
from aioidem._protocol.foreign_text import printable
from aioidem.errors import ProtocolError

if TYPE_CHECKING:
    from kio.schema.request_header.v1 import RequestHeader as RequestHeaderV1
    from kio.static.protocol import Payload, RequestPayload, ResponsePayload

__all__ = [
    "MAX_THROTTLE_MS",
    "RequestHeader",
    "UnsupportedRequestError",
    "correlation_id_of",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "encoded_client_id",
    "printable",
    "request_head",
    "request_type",
    "response_type",
    "throttle_ms",
]

R = TypeVar("R", bound="ResponsePayload")

MAX_THROTTLE_MS: Final = 300_000
"""The longest throttle time that is accepted from a broker, in milliseconds.

Real quotas throttle for seconds, and an absurd value must not stop the producer.
"""

_LENGTH: Final = Struct(">i")
_HEAD: Final = Struct(">hhi")
_NO_TAGS: Final = b"\x00"


class RequestHeader(NamedTuple):
    """The fields that every request starts with."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedRequestError(ProtocolError):
    """A request of an API or version without a schema; `header` holds its decoded header."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"no schema for API {header.api_key} version {header.api_version}")
        self.header = header

    def __reduce__(self) -> tuple[type[UnsupportedRequestError], tuple[RequestHeader]]:
        return type(self), (self.header,)


@cache
def request_type(api_key: int, version: int) -> type[RequestPayload] | None:
    """Return the schema of a request, or None if there is none."""
    if (api_key, version) == (0, 14):
        from aioidem._protocol.produce_v14 import ProduceRequestV14

        return ProduceRequestV14
    from kio.index import KioIndexError, load_request_schema

    try:
        return load_request_schema(api_key, version)
    except KioIndexError:
        return None


@cache
def response_type(api_key: int, version: int) -> type[ResponsePayload] | None:
    """Return the schema of a response, or None if there is none."""
    if (api_key, version) == (0, 14):
        from aioidem._protocol.produce_v14 import ProduceResponseV14

        return ProduceResponseV14
    from kio.index import KioIndexError, load_response_schema

    try:
        return load_response_schema(api_key, version)
    except KioIndexError:
        return None


@cache
def _oldest_request_header() -> type[RequestHeaderV1]:
    from kio.schema.request_header.v1 import RequestHeader

    return RequestHeader


@lru_cache(maxsize=64)
def encoded_client_id(client_id: str | None, flexible: bool) -> bytes:
    """Encode the end of a request header: the client id, and no tagged fields if `flexible`."""
    tags = _NO_TAGS if flexible else b""
    if client_id is None:
        return b"\xff\xff" + tags
    raw = client_id.encode()
    return len(raw).to_bytes(2, "big", signed=True) + raw + tags


def request_head(
    api_key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool
) -> bytes:
    """Encode a request header: version 2 (with no tagged fields) if `flexible`, else version 1."""
    return _HEAD.pack(api_key, version, correlation_id) + encoded_client_id(client_id, flexible)


def encode_request(
    entity: RequestPayload,
    *,
    correlation_id: int,
    client_id: str | None,
    version: int | None = None,
) -> bytes:
    """Encode a request as a frame, with its length prefix.

    Args:
        entity: The request.
        correlation_id: The correlation id in the header.
        client_id: The client id in the header, or None.
        version: The version in the header; None takes the entity's own.

    Raises:
        InternalError: A value does not fit its field.
    """
    schema = type(entity)
    head = request_head(
        schema.__api_key__,
        schema.__version__ if version is None else version,
        correlation_id,
        client_id,
        flexible=schema.__header_schema__.__version__ >= 2,
    )
    body = encode(entity)
    return b"".join((_LENGTH.pack(len(head) + len(body)), head, body))


def decode_request(frame: bytes) -> tuple[RequestHeader, RequestPayload]:
    """Decode a request of any API.

    Args:
        frame: The frame, without its length prefix.

    Raises:
        UnsupportedRequestError: The API or version has no schema; the error has the header.
        ProtocolError: The request is malformed.
    """
    start, at = decode_prefix(_oldest_request_header(), frame, 0)
    header = RequestHeader(
        start.request_api_key, start.request_api_version, start.correlation_id, start.client_id
    )
    schema = request_type(header.api_key, header.api_version)
    if schema is None:
        raise UnsupportedRequestError(header)
    if schema.__header_schema__.__version__ >= 2:
        _, at = decode_prefix(schema.__header_schema__, frame, 0)
    entity, end = decode_prefix(schema, frame, at)
    _refuse_trailing(schema, frame, end)
    return header, entity


def encode_response(entity: ResponsePayload, correlation_id: int) -> bytes:
    """Encode a response as a frame, with its length prefix."""
    tags = _NO_TAGS if type(entity).__header_schema__.__flexible__ else b""
    body = encode(entity)
    length = _LENGTH.pack(4 + len(tags) + len(body))
    return b"".join((length, _LENGTH.pack(correlation_id), tags, body))


def decode_response(entity_type: type[R], frame: bytes) -> tuple[int, R]:
    """Return the correlation id and the message of a response.

    Args:
        entity_type: The response's schema.
        frame: The frame, without its length prefix.

    Raises:
        ProtocolError: The frame is not a response of this type, or has bytes after the response.
    """
    header, at = decode_prefix(entity_type.__header_schema__, frame, 0)
    entity, end = decode_prefix(entity_type, frame, at)
    _refuse_trailing(entity_type, frame, end)
    return header.correlation_id, entity


def correlation_id_of(frame: bytes | memoryview) -> int:
    """Return the correlation id that every response starts with.

    Raises:
        ProtocolError: The frame is shorter than a correlation id.
    """
    if len(frame) < 4:
        raise ProtocolError(f"response of {len(frame)} bytes")
    return cast("int", _LENGTH.unpack_from(frame)[0])


def throttle_ms(asked: timedelta | int) -> int:
    """Return a response's throttle time in milliseconds, clamped to 0 ... `MAX_THROTTLE_MS`."""
    value = asked if isinstance(asked, int) else asked // timedelta(milliseconds=1)
    return min(max(value, 0), MAX_THROTTLE_MS)


def _refuse_trailing(schema: type[Payload], frame: bytes, end: int) -> None:
    if end != len(frame):
        label = f"{schema.__name__} v{schema.__version__}"
        raise ProtocolError(f"{label}: {len(frame) - end} bytes follow the message")

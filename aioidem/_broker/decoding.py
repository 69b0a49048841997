"""Decode request frames as a broker does.

Unlike `aioidem._protocol.messages.decode_request` this ignores bytes after the end of the message,
as Kafka does: librdkafka 2.16 sends three extra bytes when it requests the metadata of all topics
(v9 and up).
"""

from __future__ import annotations

from kio.schema.request_header.v1 import RequestHeader as RequestHeaderV1

from aioidem._broker.entities import Entity
from aioidem._protocol.codec import decode_prefix
from aioidem._protocol.messages import RequestHeader, request_type

__all__ = ["read_request"]


def read_request(frame: bytes) -> tuple[RequestHeader, Entity | None]:
    """Return the header and the message of a frame; ``frame`` has no length prefix.

    The message is None if kio has no schema for this version of the API.

    Raises:
        ProtocolError: The frame cannot be read.
    """
    start, at = decode_prefix(RequestHeaderV1, frame, 0)
    header = RequestHeader(
        start.request_api_key, start.request_api_version, start.correlation_id, start.client_id
    )
    schema = request_type(header.api_key, header.api_version)
    if schema is None:
        return header, None
    if schema.__header_schema__.__version__ > RequestHeaderV1.__version__:
        _, at = decode_prefix(schema.__header_schema__, frame, 0)
    request, _ = decode_prefix(schema, frame, at)
    return header, request

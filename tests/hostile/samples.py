"""Well-formed inputs for fuzzing to start with.

Random inputs would hardly ever get past the first length field of a parser.

There is one message per schema with one item in each array, frames cut from these, record batches
with every codec, decompression bombs, and the messages of the SASL mechanisms. Nothing is random.
"""

from __future__ import annotations

import dataclasses
import gzip
import typing
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from types import UnionType
from typing import Any

import lz4.frame
import zstandard
from kio.schema.errors import ErrorCode

from aioidem._broker.virtual import PlainRecord
from aioidem._protocol.messages import encode_response, response_type
from aioidem._protocol.versions import SPOKEN, ApiKey
from aioidem._records import Codec, build_batch

__all__ = ["READ", "batches", "bombs", "filled", "response"]

READ: tuple[tuple[int, int], ...] = tuple(
    (int(api), version)
    for api, (lowest, highest) in sorted(SPOKEN.items())
    for version in range(lowest, highest + 1)
    if response_type(api, version) is not None
)
"""Every API and version whose answers we read; an input's first byte selects one of them."""

_VALUES: dict[str, Any] = {
    "bool": True,
    "float64": 0.5,
    "string": "broker-0",
    "bytes": b"bytes",
    "records": b"",
    "uuid": uuid.UUID(int=7),
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(milliseconds=5),
    "timedelta_i64": timedelta(milliseconds=5),
    "datetime_i64": datetime(2025, 1, 1, tzinfo=UTC),
}


def filled(schema: Any, **values: Any) -> Any:
    """Make an instance with a value in every field; `values` are for the outermost fields."""
    made = {each.name: _value(each) for each in dataclasses.fields(schema)}
    return schema(**made | {name: value for name, value in values.items() if name in made})


def _value(field: dataclasses.Field[Any]) -> Any:
    kind = _without_none(field.type)
    if typing.get_origin(kind) is tuple:
        return (_item(_without_none(typing.get_args(kind)[0]), field),)
    return _item(kind, field)


def _item(kind: Any, field: dataclasses.Field[Any]) -> Any:
    if dataclasses.is_dataclass(kind):
        return filled(kind)
    kafka_type = field.metadata["kafka_type"]
    if kafka_type == "records":
        return batches()[0]
    return _VALUES.get(kafka_type, 1)


def _without_none(kind: Any) -> Any:
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        return next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def response(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    """Make a response with something in every field, as a frame with its length prefix."""
    made = _response(api_key, version)
    return made[:4] + correlation_id.to_bytes(4, "big") + made[8:]


@cache
def _response(api_key: int, version: int) -> bytes:
    schema: Any = response_type(api_key, version)
    more: dict[str, Any] = {}
    if api_key == ApiKey.API_VERSIONS:
        module = __import__(schema.__module__, fromlist=["ApiVersion"])
        more["api_keys"] = tuple(
            filled(module.ApiVersion, api_key=api, min_version=low, max_version=high)
            for api, (low, high) in SPOKEN.items()
        )
    return encode_response(filled(schema, **more), 0)


def batches() -> list[bytes]:
    """Return a record batch for each codec."""
    records = [
        PlainRecord(b"value" * 9, b"key", [("header", b"h"), ("null", None)]),
        PlainRecord(None, None),
    ]
    return [
        build_batch(records, producer_id=7, producer_epoch=0, base_sequence=3, codec=codec).data
        for codec in Codec
    ]


def bombs(size: int = 1 << 21) -> Iterator[tuple[Codec, bytes]]:
    """Yield codecs with short inputs that decompress, or claim to decompress, to many bytes."""
    zeros = bytes(size)
    yield Codec.GZIP, gzip.compress(zeros, mtime=0)
    yield Codec.LZ4, lz4.frame.compress(zeros)
    yield Codec.ZSTD, zstandard.ZstdCompressor().compress(zeros)
    yield (
        Codec.ZSTD,
        zstandard.ZstdCompressor(write_content_size=False).compress(zeros),
    )
    # Raw snappy that announces 2 GiB: its size as a varint, and no data.
    yield Codec.SNAPPY, b"\xff\xff\xff\xff\x07\x00"
    yield Codec.SNAPPY, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"\xff\xff\xff\xff\x00"

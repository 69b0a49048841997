"""Kafka's codecs, each in the framing that Java's client reads and writes.

- gzip: RFC 1952.
- snappy: xerial's blocks of 32 KiB (magic ``82 SNAPPY 00``). Raw snappy is read too, as in Java.
- lz4: the frame format (KIP-57) with independent blocks of 64 KiB, because Java's reader refuses
  linked ones.
- zstd: RFC 8878 (KIP-110).

Invariants: `decompress` never returns more than its limit. It holds at most about twice the limit
plus one block, because a library's buffer is copied into the result. Malformed bytes raise
`ProtocolError`. A codec's library is imported when the codec is first used, so a missing library
affects no other codec.

Rejected: several gzip members or frames in one batch (no Kafka client writes them, and any number
of empty ones would cost time without limit); trusting the size that a header announces (a library
would allocate that much memory at once); sending a batch uncompressed when compression does not pay
(a topic that requires a codec would make the broker compress it again).
"""

from __future__ import annotations

import enum
import importlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Final

from aioidem.errors import ConfigError, ProtocolError, UnsupportedCodecError

# Java decompresses a batch to any size; a limit protects the memory against hostile batches. 64 MiB
# is 64 times the largest batch that a broker accepts by default.
DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
# The largest window that zstd's own decoder accepts by default; level 22 uses all of it.
_ZSTD_MAX_WINDOW: Final = 1 << 27


class Codec(enum.IntEnum):
    """The compression of a batch, with its number in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Codec:
        """Return the codec for a value of ``compression.type``, or raise ConfigError."""
        for codec in cls:
            if codec.name.lower() == name:
                return codec
        names = ", ".join(codec.name.lower() for codec in cls)
        raise ConfigError(f"compression_type={name!r}: must be one of {names}")


# The legal levels of each codec (KIP-390); -1 is gzip's default.
LEVELS: Final[Mapping[Codec, Sequence[int]]] = MappingProxyType(
    {
        Codec.GZIP: (-1, *range(1, 10)),
        Codec.LZ4: range(1, 18),
        Codec.ZSTD: range(-131072, 23),
    }
)

# For each codec: pairs (the highest level of a range, how many bytes a core compresses at these
# levels in about half a millisecond, and never in more than one: `benchmarks/compression.py`).
_QUICK: Final[Mapping[Codec, Sequence[tuple[float, int]]]] = MappingProxyType(
    {
        Codec.GZIP: ((math.inf, 32 * 1024),),
        Codec.SNAPPY: ((math.inf, 512 * 1024),),
        Codec.LZ4: ((2, 256 * 1024), (math.inf, 32 * 1024)),
        Codec.ZSTD: (
            (-1, 128 * 1024),
            (3, 64 * 1024),
            (9, 32 * 1024),
            (12, 16 * 1024),
            (math.inf, 4 * 1024),
        ),
    }
)

_LIBRARIES: Final[Mapping[Codec, tuple[str, str]]] = MappingProxyType(
    {
        Codec.SNAPPY: ("cramjam", "aioidem[snappy]"),
        Codec.LZ4: ("lz4.frame", "lz4"),
        Codec.ZSTD: ("zstandard", "zstandard"),
    }
)


def require(codec: Codec) -> None:
    """Raise UnsupportedCodecError, which says what to install, if a codec's library is missing."""
    if codec in _LIBRARIES:
        _library(codec)


def _library(codec: Codec) -> ModuleType:
    module, package = _LIBRARIES[codec]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsupportedCodecError(
            f"{codec.name.lower()} needs a library that is not installed: pip install '{package}'"
        ) from error


def compress(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    """Compress ``data``.

    Args:
        codec: The codec.
        data: The bytes.
        level: The level, ignored by codecs that have none; None is the codec's default, as in Java.

    Raises:
        UnsupportedCodecError: The library is not installed.
        ConfigError: The level is not in `LEVELS`.
    """
    if level is not None and codec in LEVELS and level not in LEVELS[codec]:
        allowed = (
            "-1 or 1 to 9" if codec is Codec.GZIP else f"{LEVELS[codec][0]} to {LEVELS[codec][-1]}"
        )
        raise ConfigError(f"compression_level={level}: {codec.name.lower()} takes {allowed}")
    return _COMPRESS[codec](data, level)


def quick_bytes(codec: Codec, level: int | None) -> float:
    """Return how many bytes can be compressed on an event loop without delaying its other tasks.

    Compressing so many takes about half a millisecond. Handing them to a thread takes a fifth of
    that time, so only longer work is worth a thread.

    Args:
        codec: The codec.
        level: The level; None is the codec's default.
    """
    if codec is Codec.NONE:
        return math.inf
    default = 3 if codec is Codec.ZSTD else 0
    asked = default if level is None else level
    return next(nbytes for highest, nbytes in _QUICK[codec] if asked <= highest)


def _no_compress(data: bytes, level: int | None) -> bytes:  # noqa: ARG001
    return data


def _gzip_compress(data: bytes, level: int | None) -> bytes:
    # gzip.compress may put the current time into the header, but a retry must be byte-identical.
    deflater = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return deflater.compress(data) + deflater.flush()


def _snappy_compress(data: bytes, level: int | None) -> bytes:  # noqa: ARG001
    compress_raw = _library(Codec.SNAPPY).snappy.compress_raw
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(compress_raw(data[start : start + _XERIAL_BLOCK]))
        pieces += (len(block).to_bytes(4, "big"), block)
    return b"".join(pieces)


def _lz4_compress(data: bytes, level: int | None) -> bytes:
    lz4 = _library(Codec.LZ4)
    # Without a level Java uses lz4's fast compressor, which is level 0 here. The library has the
    # high compressor at levels 3 to 16; it treats 1 and 2 as 0. Java's highest level is 17.
    compressed: bytes = lz4.compress(
        data,
        compression_level=0 if level is None else min(level, 16),
        block_size=lz4.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return compressed


def _zstd_compress(data: bytes, level: int | None) -> bytes:
    compressor = _library(Codec.ZSTD).ZstdCompressor(level=3 if level is None else level)
    compressed: bytes = compressor.compress(data)
    return compressed


_COMPRESS: Final[Mapping[Codec, Callable[[bytes, int | None], bytes]]] = MappingProxyType(
    {
        Codec.NONE: _no_compress,
        Codec.GZIP: _gzip_compress,
        Codec.SNAPPY: _snappy_compress,
        Codec.LZ4: _lz4_compress,
        Codec.ZSTD: _zstd_compress,
    }
)


def decompress(codec: Codec, data: bytes, limit: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> bytes:
    """Decompress ``data``; with ``Codec.NONE`` return it unchanged, without applying the limit.

    Raises:
        ProtocolError: The bytes are malformed or end early, more bytes follow them, or they
            decompress to more than ``limit`` bytes.
        UnsupportedCodecError: The library is not installed.
    """
    if codec is Codec.NONE:
        return data
    name = codec.name.lower()
    decompressor = _DECOMPRESS[codec]
    try:
        plain = decompressor(data, limit)
    except (ProtocolError, UnsupportedCodecError):
        raise
    # Each library raises exceptions of its own, which all mean that the data is malformed.
    except Exception as error:
        raise ProtocolError(f"a batch's {name} data is malformed: {error}") from error
    if len(plain) > limit:
        raise ProtocolError(f"a batch's {name} data holds more than {limit} bytes")
    return plain


def _gzip_decompress(data: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(31)
    plain = inflater.decompress(data, limit + 1)
    if len(plain) <= limit and (not inflater.eof or inflater.unused_data):
        raise ProtocolError("a batch's gzip data is not one whole member")
    return plain


def _snappy_decompress(data: bytes, limit: int) -> bytes:
    snappy = _library(Codec.SNAPPY).snappy
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(snappy, data, limit)
    pos = len(_XERIAL_HEADER)
    if len(data) < pos:
        raise ProtocolError("a batch's snappy data ends in its header")
    plain = bytearray()
    while pos < len(data):
        start = pos + 4
        pos = start + int.from_bytes(data[pos:start], "big")
        if pos > len(data) or start > len(data):
            raise ProtocolError("a batch's snappy data ends in a block")
        plain += _snappy_block(snappy, data[start:pos], limit - len(plain))
    return bytes(plain)


def _snappy_block(snappy: ModuleType, block: bytes, limit: int) -> bytes:
    size = snappy.decompress_raw_len(block)
    if size > limit:
        raise ProtocolError(f"a block of a batch's snappy data holds {size} of {limit} bytes left")
    return bytes(snappy.decompress_raw(block))


def _lz4_decompress(data: bytes, limit: int) -> bytes:
    decompressor = _library(Codec.LZ4).LZ4FrameDecompressor()
    plain: bytes = decompressor.decompress(data, max_length=limit + 1)
    if len(plain) <= limit and (not decompressor.eof or decompressor.unused_data):
        raise ProtocolError("a batch's lz4 data is not one whole frame")
    return plain


def _zstd_decompress(data: bytes, limit: int) -> bytes:
    zstandard = _library(Codec.ZSTD)
    # The library allocates the size that the frame announces, so that size is checked first.
    if zstandard.frame_content_size(data) > limit:
        raise ProtocolError(f"a batch's zstd data claims more than {limit} bytes")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    plain: bytes = decompressor.decompress(data, max_output_size=limit, allow_extra_data=False)
    return plain


_DECOMPRESS: Final[Mapping[Codec, Callable[[bytes, int], bytes]]] = MappingProxyType(
    {
        Codec.GZIP: _gzip_decompress,
        Codec.SNAPPY: _snappy_decompress,
        Codec.LZ4: _lz4_decompress,
        Codec.ZSTD: _zstd_decompress,
    }
)

"""Codecs use Kafka's framing and option names, and load their libraries on first use."""

from __future__ import annotations

import gzip
import struct
import sys

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as peer
from hypothesis import given
from hypothesis import strategies as st

from aioidem._records import LEVELS, Codec, ReadRecord, build_batch, compress, decompress, require
from aioidem.errors import ConfigError, ProtocolError, UnsupportedCodecError

XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
REAL = [codec for codec in Codec if codec]
payloads = st.binary(max_size=2000) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=40), st.integers(0, 5000)
)
# No payload is empty: aiokafka rejects a Snappy header without a block, which no batch has.
filled = payloads.filter(bool)
PEER = {
    Codec.GZIP: (peer.gzip_encode, peer.gzip_decode),
    Codec.SNAPPY: (peer.snappy_encode, peer.snappy_decode),
    Codec.LZ4: (peer.lz4_encode, peer.lz4_decode),
    Codec.ZSTD: (peer.zstd_encode, peer.zstd_decode),
}


@pytest.mark.parametrize("codec", Codec)
@given(data=payloads)
def test_what_is_compressed_is_decompressed_and_the_same_each_time(
    codec: Codec, data: bytes
) -> None:
    compressed = compress(codec, data)
    assert compress(codec, data) == compressed
    assert decompress(codec, compressed) == data


@pytest.mark.parametrize("codec", REAL)
@given(data=filled)
def test_aiokafkas_codecs_and_ours_understand_each_other(codec: Codec, data: bytes) -> None:
    encode, decode = PEER[codec]
    assert decode(compress(codec, data)) == data
    assert decompress(codec, bytes(encode(data))) == data


def test_snappy_is_cut_into_xerial_blocks_of_32_kib() -> None:
    data = bytes(range(256)) * 300
    compressed = compress(Codec.SNAPPY, data)
    assert compressed.startswith(XERIAL)
    pos, sizes = len(XERIAL), []
    while pos < len(compressed):
        (length,) = struct.unpack_from(">i", compressed, pos)
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(compressed[pos + 4 :][:length]))))
        pos += 4 + length
    assert sizes == [32768, 32768, 11264]


def test_raw_snappy_is_read_as_java_reads_it() -> None:
    assert (
        decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw " * 99))) == b"raw " * 99
    )


def test_a_snappy_block_may_claim_no_more_than_the_limit() -> None:
    claim = b"\xff\xff\xff\xff\x0f\x00"
    for data in (claim, XERIAL + struct.pack(">i", len(claim)) + claim):
        with pytest.raises(ProtocolError):
            decompress(Codec.SNAPPY, data)


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 0, 7])
def test_a_snappy_block_of_an_absurd_length_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError):
        decompress(Codec.SNAPPY, XERIAL + struct.pack(">i", length) + b"\x00")


def test_lz4_is_a_frame_of_independent_blocks_of_64_kib_without_its_size() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, b"x" * 300_000))
    assert info["block_linked"] is False
    assert info["block_size"] == 65536
    assert info["content_size"] == 0
    assert info["skippable"] is False


def test_linked_lz4_blocks_with_checksums_and_size_are_read() -> None:
    data = bytes(range(256)) * 2000
    frame = lz4.frame.compress(
        data, block_linked=True, content_checksum=True, block_checksum=True, store_size=True
    )
    assert decompress(Codec.LZ4, frame) == data


def test_a_gzip_header_has_no_time_of_day_and_no_file_name() -> None:
    assert compress(Codec.GZIP, b"x")[3:8] == b"\x00" * 5


def test_zstd_frames_are_read_with_and_without_their_size() -> None:
    data = b"some text " * 50_000
    compressor = zstandard.ZstdCompressor()
    stream = compressor.compressobj()
    without = stream.compress(data) + stream.flush()
    assert zstandard.frame_content_size(without) == -1
    assert decompress(Codec.ZSTD, without) == data
    assert decompress(Codec.ZSTD, compressor.compress(data)) == data
    for frame in (without, compressor.compress(data)):
        with pytest.raises(ProtocolError):
            decompress(Codec.ZSTD, frame, len(data) - 1)


def test_a_zstd_frame_may_claim_no_more_than_the_limit() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + b"\x00" * 20
    with pytest.raises(ProtocolError):
        decompress(Codec.ZSTD, claim)


def test_a_zstd_window_beyond_128_mib_is_refused_and_one_of_it_is_read() -> None:
    def streamed(window_log: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(
            window_log=window_log, hash_log=10, chain_log=10, strategy=1, write_content_size=False
        )
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        frame: bytes = stream.compress(b"small") + stream.flush()
        return frame

    assert decompress(Codec.ZSTD, streamed(27)) == b"small"
    with pytest.raises(ProtocolError):
        decompress(Codec.ZSTD, streamed(28))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_second_frame_is_refused(codec: Codec) -> None:
    frame = compress(codec, b"once")
    with pytest.raises(ProtocolError):
        decompress(codec, frame + frame)


def test_a_gzip_checksum_that_is_wrong_is_refused() -> None:
    data = bytearray(gzip.compress(b"content"))
    data[-8] ^= 1
    with pytest.raises(ProtocolError):
        decompress(Codec.GZIP, bytes(data))


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_codec_is_found_by_kafkas_name(name: str) -> None:
    assert Codec.from_name(name).name == name.upper()


@pytest.mark.parametrize("name", ["", "GZIP", "brotli", "lz4 ", "producer"])
def test_a_codec_that_kafka_does_not_name_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="none, gzip, snappy, lz4, zstd"):
        Codec.from_name(name)


@pytest.mark.parametrize("codec", LEVELS)
def test_the_levels_of_kip_390_are_taken_and_others_are_config_errors(codec: Codec) -> None:
    levels = LEVELS[codec]
    data = b"level " * 1000
    for level in {levels[0], 1, levels[-1]}:
        assert decompress(codec, compress(codec, data, level)) == data
    for level in (levels[0] - 1, levels[-1] + 1, *([0] if codec is not Codec.ZSTD else [])):
        with pytest.raises(ConfigError, match=str(level)):
            compress(codec, data, level)


def test_gzip_takes_minus_1_for_its_default_as_kafka_does() -> None:
    assert compress(Codec.GZIP, b"x" * 99, -1) == compress(Codec.GZIP, b"x" * 99)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_codecs_without_levels_ignore_the_level(codec: Codec) -> None:
    assert compress(codec, b"x" * 99, 77) == compress(codec, b"x" * 99)


def test_a_level_changes_what_a_batch_is_compressed_to() -> None:
    records = [ReadRecord(0, 1, None, b"%d " % (i * i), ()) for i in range(2000)]
    fast = build_batch(records, codec=Codec.GZIP, level=1)
    best = build_batch(records, codec=Codec.GZIP, level=9)
    assert best.compression_ratio < fast.compression_ratio


@pytest.mark.parametrize(
    ("codec", "module", "named"),
    [
        (Codec.SNAPPY, "cramjam", "aioidem[snappy]"),
        (Codec.LZ4, "lz4.frame", "lz4"),
        (Codec.ZSTD, "zstandard", "zstandard"),
    ],
)
def test_a_missing_library_is_named_with_what_to_install(
    codec: Codec, module: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = compress(codec, b"before it went missing")
    require(codec)
    monkeypatch.setitem(sys.modules, module, None)
    for use in (
        lambda: require(codec),
        lambda: compress(codec, b"x"),
        lambda: decompress(codec, batch),
    ):
        with pytest.raises(UnsupportedCodecError) as caught:
            use()
        assert f"pip install '{named}'" in str(caught.value)
    for other in Codec:
        if other is not codec:
            require(other)

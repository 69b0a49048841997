"""`FrameSplitter` returns the same frames however a stream is cut, and refuses bad lengths."""

from __future__ import annotations

import itertools
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._protocol.frames import FrameSplitter, frame, recognise
from aioidem.errors import NotKafkaError, ProtocolError

LIMIT = 1000


def chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(each % (len(stream) + 1) for each in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_frames_come_out_whole_and_in_order_however_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    splitter = FrameSplitter(LIMIT)
    stream = b"".join(map(frame, payloads))
    out = [each for chunk in chunks(stream, cuts) for each in splitter.feed(chunk)]
    assert out == payloads
    assert splitter.pending == b""
    assert splitter.error is None


@given(chunks_=st.lists(st.binary(max_size=64), max_size=10))
def test_any_bytes_give_frames_or_a_typed_error_and_never_more_memory_than_came(
    chunks_: list[bytes],
) -> None:
    splitter = FrameSplitter(LIMIT)
    given_bytes = 0
    for chunk in chunks_:
        given_bytes += len(chunk)
        try:
            frames = splitter.feed(chunk)
        except (ProtocolError, NotKafkaError) as error:
            assert splitter.error is error  # noqa: PT017 - either outcome is right
            return
        assert all(0 < len(each) <= LIMIT for each in frames)
        assert len(splitter.pending) <= given_bytes


@pytest.mark.parametrize("data", [bytearray, memoryview, bytes])
def test_any_buffer_is_taken(data: type) -> None:
    """`FrameSplitter.feed` accepts bytes, bytearray and memoryview."""
    assert FrameSplitter(LIMIT).feed(data(frame(b"abc"))) == [b"abc"]


def test_the_largest_frame_allowed_is_taken_and_one_byte_more_is_not() -> None:
    assert FrameSplitter(LIMIT).feed(frame(bytes(LIMIT))) == [bytes(LIMIT)]
    with pytest.raises(NotKafkaError):
        FrameSplitter(LIMIT).feed(frame(bytes(LIMIT + 1)))


@pytest.mark.parametrize("length", [2**31 - 1, 0x15030302, 1213486160, LIMIT + 1])
def test_oversized_length_is_refused_before_anything_is_allocated(length: int) -> None:
    splitter = FrameSplitter(LIMIT)
    splitter.feed(frame(b"x"))
    # Compiling the pattern allocates memory, too, so it is done before the measurement.
    expected = re.compile(f"frame of {length} bytes")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=expected):
            splitter.feed(length.to_bytes(4, "big"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000


@pytest.mark.parametrize("length", [0, -1, -(2**31)])
def test_zero_and_negative_lengths_are_refused(length: int) -> None:
    head = length.to_bytes(4, "big", signed=True)
    with pytest.raises(NotKafkaError):
        FrameSplitter(LIMIT).feed(head)
    later = FrameSplitter(LIMIT)
    later.feed(frame(b"x"))
    with pytest.raises(ProtocolError, match=f"frame of {length} bytes"):
        later.feed(head)


def test_announced_frame_takes_only_the_memory_that_arrived() -> None:
    splitter = FrameSplitter(100 << 20)
    head = (100 << 20).to_bytes(4, "big")
    tracemalloc.start()
    try:
        splitter.feed(head)
        for _ in range(1000):
            assert splitter.feed(b"x") == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000
    assert len(splitter.pending) == 1004


def test_frames_before_a_bad_length_are_handed_out_first() -> None:
    splitter = FrameSplitter(LIMIT)
    assert splitter.feed(frame(b"one") + frame(b"two") + b"\xff\xff\xff\xff") == [b"one", b"two"]
    assert isinstance(splitter.error, ProtocolError)
    with pytest.raises(ProtocolError, match="frame of -1 bytes"):
        splitter.feed(b"")


def test_after_an_error_nothing_comes_out_any_more() -> None:
    """After an error the splitter raises that error again when it gets further bytes."""
    splitter = FrameSplitter(LIMIT)
    for data in (b"\xff\xff\xff\xff", frame(b"fine")):
        with pytest.raises(NotKafkaError):
            splitter.feed(data)


STRANGERS = [
    (b"\x15\x03\x03\x00\x02\x02\x28", "TLS"),
    (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
    (b"GET / HTTP/1.1\r\n", "HTTP"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    (b"AMQP\x00\x00\x09\x01", "AMQP"),
    (b"-ERR unknown command\r\n", "Redis"),
    (b"220 mail.example.org ESMTP\r\n", "SMTP"),
    (b"E\x00\x00\x00\x8fSFATAL\x00", "PostgreSQL"),
]


@pytest.mark.parametrize(("first_bytes", "name"), STRANGERS)
def test_strangers_are_named_by_their_first_bytes(first_bytes: bytes, name: str) -> None:
    """The error for bytes of another protocol names the protocol."""
    assert name in (recognise(first_bytes) or "")
    with pytest.raises(NotKafkaError, match=name):
        FrameSplitter(100 << 20).feed(first_bytes)


def test_unknown_strangers_are_shown_by_their_first_bytes() -> None:
    """The error for bytes of an unknown protocol shows the bytes."""
    assert recognise(b"hello") is None
    with pytest.raises(NotKafkaError, match=r"something else.*hello"):
        FrameSplitter(LIMIT).feed(b"hello there")


def test_a_stranger_later_in_the_stream_is_a_broken_stream() -> None:
    """Bytes of another protocol after a valid frame raise ProtocolError."""
    splitter = FrameSplitter(LIMIT)
    splitter.feed(frame(b"x"))
    with pytest.raises(ProtocolError):
        splitter.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_the_limit_may_be_raised_between_frames() -> None:
    splitter = FrameSplitter(10)
    splitter.feed(frame(b"hello"))
    splitter.max_frame_bytes = 100
    assert splitter.feed(frame(bytes(50))) == [bytes(50)]


def test_repr_tells_the_state() -> None:
    splitter = FrameSplitter(LIMIT)
    splitter.feed(frame(b"x") + b"\0\0")
    assert repr(splitter) == "<FrameSplitter after 1 frames, 2 bytes waiting>"
    with pytest.raises(ProtocolError):
        splitter.feed(b"\0\0")
    assert "broken" in repr(splitter)

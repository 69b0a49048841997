"""`FrameCutter` passes a stream's bytes on unchanged, whatever chunks the stream arrives in."""

from __future__ import annotations

import itertools
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._protocol.produce import encode_produce_request
from aioidem._testing.kafka_frames import (
    PASS,
    WHOLE,
    FrameCutter,
    Patch,
    RequestHead,
    Verdict,
    WholeFrame,
    request_head,
    response_head,
)

FATES = (PASS, WHOLE, Patch(6, b"\x00\x2a"))


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    payload = pack(">hhih", api_key, version, correlation_id, 4) + b"test" + body
    return pack(">i", len(payload)) + payload


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(
    st.lists(st.tuples(st.sampled_from(range(3)), st.binary(max_size=40)), max_size=12),
    st.lists(st.integers(0, 1000), max_size=30),
)
def test_however_the_stream_is_chunked_each_frame_meets_its_fate_and_no_byte_is_lost(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    """Whatever chunks a stream arrives in, each frame gets its verdict, and no byte is lost."""
    sent = [request(3, 12, number, body) for number, (_, body) in enumerate(frames)]
    judged: list[int] = []

    def judge(head: RequestHead) -> Verdict:
        judged.append(head.correlation_id)
        assert (head.api_key, head.api_version, head.client_id) == (3, 12, "test")
        return FATES[frames[head.correlation_id][0]]

    cutter = FrameCutter(request_head, judge)
    out = b""
    for chunk in chunked(b"".join(sent), cuts):
        for piece in cutter.feed(chunk):
            if isinstance(piece, WholeFrame):
                assert piece.data == sent[piece.head.correlation_id]
                assert frames[piece.head.correlation_id][0] == 1
                out += piece.data
            else:
                out += piece
    wanted = [
        data[:6] + b"\x00\x2a" + data[8:] if fate == 2 else data
        for data, (fate, _) in zip(sent, frames, strict=True)
    ]
    assert out == b"".join(wanted)
    assert judged == list(range(len(frames)))


def test_frames_that_pass_are_not_copied() -> None:
    """`FrameCutter` does not copy frames that pass."""
    data = b"".join(request(3, 12, number, bytes(100)) for number in range(50))
    [piece] = FrameCutter(request_head, lambda _: PASS).feed(data)
    assert piece is data


@pytest.mark.parametrize("length", [0, -1, 1 << 30, 0x16030100])
def test_what_is_no_frame_passes_unread(length: int) -> None:
    """`FrameCutter` passes on bytes that are no frame, and does not read them."""
    cutter = FrameCutter(request_head, lambda _: WHOLE)
    good = request(3, 12, 0, b"")
    rest = pack(">i", length) + b"anything" * 10
    pieces = [*cutter.feed(good + rest), *cutter.feed(b"more")]
    assert isinstance(pieces[0], WholeFrame)
    assert b"".join(bytes(each) for each in pieces[1:] if not isinstance(each, WholeFrame)) == (
        rest + b"more"
    )
    assert cutter.opaque


@pytest.mark.parametrize("version", range(3, 15))
def test_produce_without_an_answer_is_recognised_once_its_acks_are_there(
    version: int,
) -> None:
    """`request_head` recognises a Produce with acks=0 once the field acks has arrived."""
    for acks in (0, 1, -1):
        for transactional_id in (None, "t", "x" * 300):
            is_told_apart_once_its_acks_are_there(version, acks, transactional_id)


def is_told_apart_once_its_acks_are_there(
    version: int, acks: int, transactional_id: str | None
) -> None:
    data = encode_produce_request(
        version,
        correlation_id=7,
        client_id="me",
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topics=[],
    )
    payload = data[4:]
    head = request_head(payload, 0, len(payload))
    assert head == RequestHead(0, version, 7, "me", len(payload), acks != 0)
    for end in range(len(payload)):
        begun = request_head(payload[:end], 0, len(payload))
        assert begun in (None, head)


@given(st.binary(max_size=60), st.integers(1, 80))
def test_any_bytes_have_a_head_or_are_waited_for(data: bytes, size: int) -> None:
    """`request_head` and `response_head` accept any bytes; None means that more are needed."""
    head = request_head(data, 0, size)
    assert (head is None) <= (len(data) < size)
    answer = response_head(data, 0, size)
    assert (answer is None) == (size >= 4 and len(data) < 4)

"""The limit of an answer's length depends on the API and on the size of the request."""

from __future__ import annotations

import pytest

from aioidem._config import ProducerConfig
from aioidem._protocol.answer_limits import answer_limit, produce_answer_limit
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.versions import ApiKey
from aioidem.errors import ProtocolError

MOST = ProducerConfig.build("h:1").max_frame_bytes


def test_the_default_is_sixteen_mebibytes() -> None:
    assert MOST == 16 << 20


@pytest.mark.parametrize("api_key", ApiKey)
def test_no_answer_may_be_longer_than_the_user_says(api_key: ApiKey) -> None:
    """No API's limit is above the option `max_frame_bytes`."""
    assert answer_limit(api_key, MOST).max_bytes <= MOST
    assert answer_limit(api_key, 1024).max_bytes == 1024


def test_most_answers_are_short_and_raising_the_option_does_not_change_that() -> None:
    """The option `max_frame_bytes` raises the limit of long answers only, such as Metadata."""
    for most in (MOST, 1 << 30):
        assert answer_limit(ApiKey.INIT_PRODUCER_ID, most).max_bytes == 1 << 16
        assert answer_limit(ApiKey.DESCRIBE_CONFIGS, most).max_bytes == 1 << 20
        assert answer_limit(ApiKey.METADATA, most).max_bytes == most


def test_a_produce_answer_may_name_an_error_for_each_record_it_was_sent() -> None:
    """The limit of a Produce answer has room for an error text of each record sent (KIP-467)."""
    few = produce_answer_limit(1, 1, MOST).max_bytes
    assert few < 1 << 17
    assert produce_answer_limit(1, 10_000, MOST).max_bytes >= 10_000 * 400
    assert produce_answer_limit(1000, 1, MOST).max_bytes >= 1000 * 300
    assert produce_answer_limit(1000, 1 << 20, MOST).max_bytes == MOST


def test_the_error_names_the_api_the_size_and_the_limit() -> None:
    splitter = FrameSplitter(MOST)
    splitter.feed(frame(b"first"))
    limit = answer_limit(ApiKey.METADATA, MOST)
    with pytest.raises(
        ProtocolError,
        match=rf"Metadata answer of {MOST + 1} bytes announced; 1 to {MOST} are possible "
        r"\(the option max_frame_bytes\)",
    ):
        splitter.feed((MOST + 1).to_bytes(4, "big"), lambda _: limit)


def test_each_frame_of_one_read_has_its_own_limit() -> None:
    splitter = FrameSplitter(1000)
    limits = [answer_limit(ApiKey.METADATA, 500), answer_limit(ApiKey.METADATA, 5)]
    assert splitter.feed(frame(bytes(400)) + frame(bytes(5)), limits.__getitem__) == [
        bytes(400),
        bytes(5),
    ]
    whole = splitter.feed(frame(bytes(400)) + frame(bytes(6)), limits.__getitem__)
    assert whole == [bytes(400)]
    assert "Metadata answer of 6 bytes announced; 1 to 5" in str(splitter.error)
    assert splitter.pending == b""

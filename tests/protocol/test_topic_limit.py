"""The size limit of a topic's batches is read from a DescribeConfigs answer."""

from __future__ import annotations

from types import SimpleNamespace as Fields

import pytest
from kio.schema.errors import ErrorCode

from aioidem._protocol.topic_limit import topic_limit


def described(configs: dict[str, str | None], code: int = 0) -> Fields:
    """Return a broker's DescribeConfigs answer about one topic."""
    values = [Fields(name=name, value=value) for name, value in configs.items()]
    return Fields(results=[Fields(error_code=code, configs=values)])


@pytest.mark.parametrize(
    ("configs", "most"),
    [
        ({"max.message.bytes": "1000"}, 1000),
        ({"max.message.bytes": "1000", "segment.bytes": "900"}, 900),
        ({"max.message.bytes": "1000", "segment.bytes": "1100"}, 1000),
        ({"segment.bytes": "900"}, None),
        ({"max.message.bytes": "many"}, None),
        ({"max.message.bytes": None}, None),
        ({}, None),
    ],
)
def test_the_smaller_of_two_limits_holds(configs: dict[str, str | None], most: int | None) -> None:
    """The limit is the smaller of `max.message.bytes` and `segment.bytes`."""
    assert topic_limit(described(configs), "none") == most


@pytest.mark.parametrize(
    ("stored", "sent", "most"),
    [
        ("producer", "gzip", 700),
        ("gzip", "gzip", 700),
        ("uncompressed", "none", 700),
        (None, "gzip", 700),
        # The broker compresses these batches, and can enlarge them: 100 bytes are left for that.
        ("snappy", "none", 600),
        ("uncompressed", "gzip", None),
        ("lz4", "zstd", None),
    ],
)
def test_a_topic_that_compresses_anew_has_no_limit_on_the_wire(
    stored: str | None, sent: str, most: int | None
) -> None:
    """The limit is unknown if the broker decompresses our batches before it stores them."""
    configs = {"max.message.bytes": "700", "compression.type": stored}
    assert topic_limit(described(configs), sent) == most


def test_a_refusal_tells_nothing() -> None:
    """A config in an answer with an error code is ignored."""
    assert (
        topic_limit(
            described({"max.message.bytes": "700"}, code=ErrorCode.topic_authorization_failed),
            "none",
        )
        is None
    )

"""The producer warns of old records, as brokers may forget it (KIP-854), and of no others."""

from __future__ import annotations

import logging
import time

import pytest

from aioidem.broker import EmbeddedCluster

from .tools import bounded, producer_for

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
"""What brokers have for `producer.id.expiration.ms` by default."""


@pytest.mark.parametrize(
    ("age_ms", "warnings"), [(DAY_MS // 2 - 600_000, 0), (DAY_MS // 2 + 600_000, 1)]
)
@bounded(120)
async def test_records_older_than_half_of_the_expiration_are_warned_of(
    caplog: pytest.LogCaptureFixture, age_ms: int, warnings: int
) -> None:
    """Their age is taken from the clock that stamps records, in milliseconds since 1970."""
    caplog.set_level(logging.WARNING, "aioidem")
    stamp = int(time.time() * 1000) - age_ms
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster) as producer,
    ):
        for _ in range(2):
            await producer.send("t", b"v", timestamp=stamp / 1000)
            await producer.flush()
    told = [r for r in caplog.records if "record timestamps are more than half" in r.getMessage()]
    assert len(told) == warnings

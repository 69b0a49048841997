"""The judge of contents: each record is sent with the key, headers and time that its call gave it.

The judges of logs know a record by its value only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aioidem._engine.record_block import SharedHeaders
from aioidem._engine.steps import SendProduce
from aioidem.testing import ValueId

from .decoding import records_in

__all__ = ["Contents"]


class _Content(NamedTuple):
    key: bytes | None
    headers: SharedHeaders
    timestamp_ms: int


class Contents:
    """Compares the records in Produce requests with those that were queued.

    Args:
        complain: Is told what is wrong.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._expected: dict[ValueId, _Content] = {}

    def expect(
        self, value: ValueId, key: bytes | None, headers: SharedHeaders, timestamp_ms: int
    ) -> None:
        """Note a record that is to be queued; its timestamp is in milliseconds since the epoch."""
        self._expected[value] = _Content(key, headers, timestamp_ms)

    def sent(self, step: SendProduce) -> None:
        """Note a Produce request that the engine gives to the Sender."""
        for topic in step.topics:
            for _, data in topic.partitions:
                for value, record in records_in(data):
                    expected = self._expected.get(value)
                    found = _Content(record.key, record.headers, record.timestamp_ms)
                    if expected is not None and found != expected:
                        self._complain(f"{value} is sent as {found}, and was {expected}")

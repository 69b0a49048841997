"""The judge of reading: the producer's own reader finds in a batch what an independent one finds.

A producer reads batches only to look for records in doubt, so schedules use little of its reader.
The log also has what others wrote: now and then a batch of the producer is rewritten as one of
theirs, every second one damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from aioidem._engine.steps import SendProduce
from aioidem._records import read_batches
from aioidem.errors import ProtocolError

from .decoding import all_records
from .strange_batches import MalformedError, StrangeBatch, strange_batch, whole_records

__all__ = ["Reading"]

_EVERY = 4
_STRANGE = 12
_HEADER = 61
"""Bytes of a batch before its records."""


class Reading:
    """Reads one batch in four that a producer sends, by itself, behind another one, and cut short.

    Args:
        complain: Is told what is wrong.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._batches = 0
        self._last = b""

    def sent(self, step: SendProduce) -> None:
        """Note a Produce request that the engine gives to the Sender."""
        for topic in step.topics:
            for _, data in topic.partitions:
                self._batches += 1
                if self._batches % _EVERY == 0:
                    self._judge(data)
                if self._batches % _STRANGE == 0:
                    self.read_strange(strange_batch(all_records(data), Random(data)))

    def _judge(self, data: bytes) -> None:
        before, self._last = self._last, data
        cut = 1 + self._batches % (len(data) - 1)
        log = before + data + data[:cut]
        batches = read_batches(log, partial=True)
        if [batch.raw for batch in batches] != [each for each in (before, data) if each]:
            self._complain(f"{len(batches)} batches are read, the last cut to {cut} bytes")
            return
        try:
            read_batches(log)
        except ProtocolError:
            pass
        else:
            self._complain(f"a batch that is cut to {cut} bytes is read")
        batch = batches[-1]
        expected = [tuple(record)[1:] for record in all_records(data)]
        found = [(r.timestamp_ms, r.value, r.key, r.headers) for r in batch.iter_records()]
        if found != expected:
            self._complain(f"{len(found)} records are read as {found}, and are {expected}")
        if not batch.crc_ok() or batch.last_offset != batch.base_offset + len(expected) - 1:
            self._complain(f"a batch of {len(expected)} records ends at {batch.last_offset}")
        damaged = bytearray(data)
        damaged[-1 - self._batches % (len(data) - _HEADER)] ^= 1
        if read_batches(damaged)[0].crc_ok():
            self._complain("a batch with a bit turned has the right CRC")

    def read_strange(self, strange: StrangeBatch) -> None:
        """Read a batch that another client could have written, or a disk could have damaged."""
        expected: list[tuple[object, ...]] = []
        whole = strange.acceptable
        try:
            expected += whole_records(strange) if whole else ()
        except MalformedError:
            whole = False
        found: list[tuple[object, ...]] = []
        try:
            (batch,) = read_batches(strange.data)
            said = (
                batch.base_offset,
                batch.attributes,
                batch.last_offset_delta,
                batch.first_timestamp_ms,
                batch.max_timestamp_ms,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.count,
            )
            if said != strange[1:10]:
                self._complain(f"the header {strange[1:10]} is read as {said}")
            found += batch.iter_records()
        except ProtocolError:
            read = False
        else:
            read = True
        if (read, found) != (whole, expected):
            self._complain(
                f"of {strange.data.hex()}, {len(found)} records are read, "
                f"{'and' if read else 'but not'} all; {len(expected)} can be"
            )

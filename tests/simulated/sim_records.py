"""The records of a schedule, as the engine queues them: alone, or as a block.

`SimRecord` notes its outcome in the run's row of the record. `SimBlock` stands for the records of
one call, and `SimReceiver` passes their outcomes on to each of them.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from aioidem import errors
from aioidem._engine.record import Outcome as SharedOutcome
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import BLOCK, Columns, RecordBlock, SharedHeaders
from aioidem.structs import DeliveryStatus
from aioidem.testing import Anomaly, Outcome, Row, ValueId, make_value

from .schedule import Call

if TYPE_CHECKING:
    from .world import World

__all__ = ["OUTCOMES", "SimBlock", "SimReceiver", "SimRecord", "block_of", "incompressible"]

# Where the CRC of a value of `make_value` is, and where the bytes begin that it is computed from.
_CRC_AT, _CHECKED_FROM = 4, 8

OUTCOMES = {
    DeliveryStatus.ACKED: Outcome.ACKED,
    DeliveryStatus.NOT_WRITTEN: Outcome.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN: Outcome.UNKNOWN,
}


class SimRecord(PendingRecord):
    """A record of a schedule, which may send another record when its outcome comes."""

    __slots__ = ("_world", "follow_up", "row")

    def __init__(
        self,
        world: World,
        row: Row,
        call: Call,
        data: bytes,
        headers: SharedHeaders,
        stamp: int,
        size: int,
    ) -> None:
        super().__init__(call.key, data, headers, stamp, call.partition, size)
        self._world = world
        self.row = row
        self.follow_up: Call | None = None

    def settle(self, outcome: SharedOutcome, place: int) -> None:
        """Note the outcome of the record, and report it if it breaks a rule."""
        row, world = self.row, self._world
        if "there is no partition" in str(outcome.error):
            world.missing.refused(row.value)
        if (
            outcome.status is DeliveryStatus.NOT_WRITTEN
            and isinstance(outcome.error, errors.InvalidRecord)
            and self.key is not None
            and world.schedule.names_culprits
            and self.group in (None, BLOCK)  # a batch of the caller's fails as a whole
        ):
            world.report(Anomaly.BLAMED, f"{row.value}: {outcome.error}")
        if row.outcome is not Outcome.PENDING:
            world.report(Anomaly.CRASH, f"{row.value} settled twice: {outcome.status.value}")
        row.outcome = OUTCOMES[outcome.status]
        row.partition = outcome.partition
        row.settled = world.now
        if outcome.status is DeliveryStatus.ACKED and outcome.base_offset >= 0:
            row.offset = outcome.base_offset + place
        if world.partitioner is not None and self.row.value.partition < 0:
            complaint = world.partitioner.complaint(self.key, row, outcome.error)
            if complaint is not None:
                world.report(Anomaly.MISSTATED, complaint)
        if self.follow_up is not None and not world.closed:
            world.send(self.follow_up)


class SimBlock(RecordBlock):
    """The records of one call with many records; `record` returns each of them as a `SimRecord`."""

    __slots__ = ()

    memory = SimRecord.memory

    def record(self, index: int) -> PendingRecord:
        """Return one record."""
        assert isinstance(self.receiver, SimReceiver)
        return self.about(index, self.receiver.records[self.row(index)])


class SimReceiver:
    """Tells each record of a block its outcome."""

    def __init__(self, records: list[SimRecord]) -> None:
        self.records = records

    def take(self, rows: Sequence[int], outcome: SharedOutcome, place: int) -> None:
        """Tell some records the outcome of their batch."""
        for index, row in enumerate(rows):
            self.records[row].settle(outcome, place + index)


def block_of(records: list[SimRecord]) -> SimBlock:
    """Return records of one partition as a block."""
    columns = Columns(
        tuple(record.value for record in records),
        tuple(record.key for record in records),
        [record.headers for record in records] if any(r.headers for r in records) else (),
        array("q", [record.timestamp_ms for record in records]),
    )
    return SimBlock(columns, SimReceiver(records), records[0].partition)


def incompressible(value: ValueId, size: int) -> bytes:
    """Return a value as `make_value` makes it, with padding that no codec makes shorter."""
    bare = make_value(value)
    body = bare[_CHECKED_FROM:] + random.Random(str(value)).randbytes(size - len(bare))
    return bare[:_CRC_AT] + struct.pack(">I", crc32(body)) + body

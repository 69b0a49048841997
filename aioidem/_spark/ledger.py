"""The ledger of a Spark task that sends a load: a Parquet row with the outcome of each record.

Rows are written while the load runs. A row has the name of the record's producer, the record's call
(the number of the send call that made it, counted per producer), when it was sent, its topic and
partition, and its outcome. The record's value contains the same name and number
(`aioidem.testing.make_value`), so that an audit can pair row and record.

Invariants:

- A row is written after its record's outcome is known, so no row of a ledger changes later.
- A file gets its final name when it is complete; Spark's readers skip names that begin with a dot.
- Memory is bounded by `ROWS_PER_FILE` rows plus the records that end while a file is being written.
  Files are written in a thread, so the load does not wait for a disk.
- Rows are in the order in which records ended. If they were ordered by call, all later rows would
  have to wait while one record is in doubt.

Rejected: returning the rows to Spark and letting it write them. They would be visible only when the
whole job is over, and the rows of a failed task, the interesting ones, would be lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from aioidem._load.load import LoadDelivery
from aioidem._testing.history import ValueId, make_value
from aioidem.structs import DeliveryStatus

__all__ = [
    "LEDGER_COLUMNS",
    "LEDGER_SCHEMA",
    "ROWS_PER_FILE",
    "Ledger",
    "NumberedRecords",
    "smallest_value",
]

ROWS_PER_FILE: Final = 500_000
"""A file is written as soon as there are this many rows."""
SECONDS_PER_FILE: Final = 5.0
"""A file is written at the latest after this many seconds."""

LEDGER_SCHEMA: Final = (
    "producer string, topic string, in_flight int, call long, status string, partition int,"
    " offset long, sent_at timestamp, ended_at timestamp"
)
"""The columns of a ledger, as Spark reads them.

`call` is the number of the send call, counted per producer, and `in_flight` the producer's limit of
requests in flight. `partition` and `offset` are -1 where they are not known. Times are from the
sending machine's clock.
"""
LEDGER_COLUMNS: Final = tuple(part.split()[0] for part in LEDGER_SCHEMA.split(","))

_T = TypeVar("_T")

_STATUSES: Final = tuple(DeliveryStatus)
_CODE: Final = {status: code for code, status in enumerate(_STATUSES)}
_STAMP: Final = pa.timestamp("us", tz="UTC")


def smallest_value(producer: str, topic: str) -> int:
    """Return the size in bytes of the smallest value of a record of this producer and topic.

    A value contains its identity: producer, topic, partition and number of the call.
    """
    return len(make_value(ValueId(producer, topic, -1, 0)))


@dataclass(slots=True)
class _Rows:
    """The columns of the rows that are not written yet."""

    call: array[int] = field(default_factory=partial(array, "q"))
    status: array[int] = field(default_factory=partial(array, "b"))
    partition: array[int] = field(default_factory=partial(array, "i"))
    offset: array[int] = field(default_factory=partial(array, "q"))
    sent_at: array[int] = field(default_factory=partial(array, "q"))
    ended_at: array[int] = field(default_factory=partial(array, "q"))


class Ledger:
    """Collects rows and writes them to `folder`, in files named after the producer.

    Args:
        folder: an absolute path, or a URI that pyarrow knows (`s3://`, `hdfs://`, `gs://`).
        producer: the sender's name, unique among the ledgers of a folder.
        topic: the topic that is written to.
        in_flight: the producer's limit on requests in flight; written as a column, because the runs
            of a load differ in this limit.
    """

    def __init__(self, folder: str, producer: str, topic: str, in_flight: int) -> None:
        self.producer = producer
        self.topic = topic
        self.rows_written = 0
        self._folder = folder
        self._fixed = (producer, topic, in_flight)
        self._rows = _Rows()
        self._full = anyio.Event()
        self._files = 0

    def add(
        self,
        call: int,
        status: DeliveryStatus,
        partition: int,
        offset: int,
        sent_at: float,
        ended_at: float,
    ) -> None:
        """Add a record whose outcome is known; times are in seconds since the epoch."""
        rows = self._rows
        rows.call.append(call)
        rows.status.append(_CODE[status])
        rows.partition.append(partition)
        rows.offset.append(offset)
        rows.sent_at.append(_microseconds(sent_at))
        rows.ended_at.append(_microseconds(ended_at))
        if len(rows.call) >= ROWS_PER_FILE:
            self._full.set()

    async def kept_while(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """Await `run()` and return its result, and write the rows that are added meanwhile.

        The rows that are left when `run()` ends are written last.

        Raises:
            OSError: the folder cannot be written to.
        """
        done: list[_T] = []
        trouble: list[OSError] = []
        async with anyio.create_task_group() as tasks:

            async def keep() -> None:
                # Caught inside the task group, which would wrap it in an exception group.
                try:
                    await self._keep()
                except OSError as error:
                    trouble.append(error)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(keep)
            done.append(await run())
            tasks.cancel_scope.cancel()
        if trouble:
            raise trouble[0]
        await self.close()
        return done[0]

    async def _keep(self) -> None:
        while True:
            with anyio.move_on_after(SECONDS_PER_FILE):
                await self._full.wait()
            with anyio.CancelScope(shield=True):  # a file must not be left half written
                await self.close()

    async def close(self) -> None:
        """Write the rows collected so far.

        Raises:
            OSError: the folder cannot be written to.
        """
        rows, self._rows = self._rows, _Rows()
        self._full = anyio.Event()
        if rows.call:
            self._files += 1
            await anyio.to_thread.run_sync(self._write, rows, self._files)
            self.rows_written += len(rows.call)

    def _write(self, rows: _Rows, number: int) -> None:
        system, folder = fs.FileSystem.from_uri(self._folder)
        name = f"{self.producer}-{number:06}.parquet"
        unfinished = f"{folder}/.{name}"
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(unfinished) as file:
            pq.write_table(_table(self._fixed, rows), file)
        system.move(unfinished, f"{folder}/{name}")


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _table(fixed: tuple[str, str, int], rows: _Rows) -> Any:
    """Turn the rows into an Arrow table, without copying them."""
    count = len(rows.call)

    def column(kind: Any, values: array[int]) -> Any:
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])

    def constant(kind: Any, value: object) -> Any:
        return pa.repeat(pa.scalar(value, kind), count)

    producer, topic, in_flight = fixed
    statuses = pa.array([status.value for status in _STATUSES])
    return pa.table(
        {
            "producer": constant(pa.string(), producer),
            "topic": constant(pa.string(), topic),
            "in_flight": constant(pa.int32(), in_flight),
            "call": column(pa.int64(), rows.call),
            "status": pa.DictionaryArray.from_arrays(column(pa.int8(), rows.status), statuses),
            "partition": column(pa.int32(), rows.partition),
            "offset": column(pa.int64(), rows.offset),
            "sent_at": column(_STAMP, rows.sent_at),
            "ended_at": column(_STAMP, rows.ended_at),
        }
    )


class NumberedRecords:
    """Makes the numbered records of one producer, and enters their outcomes into its ledger.

    This class is a `Journal`, whose methods the load loop (`run_load`) calls. A record's timestamp
    is the `sent_at` of its row, truncated to milliseconds: `follow.py` pairs records and rows by
    this time.

    Args:
        ledger: gets a row for each record.
        size: the size of the values in bytes.
    """

    def __init__(self, ledger: Ledger, size: int) -> None:
        self._ledger = ledger
        self._size = size

    def record(self, number: int, sent_at: float) -> tuple[bytes, float]:
        """Return a record's value, and its timestamp in seconds since the epoch.

        The value contains the producer's name, the topic and the number. An audit recognises the
        record by these.
        """
        identity = ValueId(self._ledger.producer, self._ledger.topic, -1, number)
        return make_value(identity, self._size), _microseconds(sent_at) // 1000 / 1000

    def ended(self, number: int, delivery: LoadDelivery, sent_at: float, ended_at: float) -> None:
        """Add the record's row to the ledger."""
        partition = offset = -1
        if delivery.status is DeliveryStatus.ACKED:
            where = delivery.metadata
            partition, offset = where.partition, where.offset
        self._ledger.add(number, delivery.status, partition, offset, sent_at, ended_at)

"""A task's ledger: what a producer said of each record, as Parquet, while the load goes on.

One row per record: who sent it as which call, when, where it went and what became of it. Its value
says the same of itself (`aioidem.testing.make_value`), so that an audit can pair the two.

Invariants:

* A row is written once its record has ended, so a ledger holds no row that could still change.
* A file is complete when it has its name: Spark's readers pass over names that begin with a dot.
* Memory is bounded by `ROWS_PER_FILE` rows and what ends while a file is being written, which
  happens in a thread: the load does not wait for a disk.
* Rows are in the order of their ends. An order by call would hold back all of them behind one
  record in doubt.

Rejected: handing the rows to Spark to write. They would show only when the whole job is over, those
of a task that fails never, and those are the ones to look at.
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

from aioidem._load.load import Clock
from aioidem._producer.delivery import Delivery
from aioidem._producer.metrics import ProducerStatistics
from aioidem._producer.native import Producer
from aioidem._testing.history import ValueId, make_value
from aioidem.structs import DeliveryStatus

__all__ = [
    "LEDGER_COLUMNS",
    "LEDGER_SCHEMA",
    "ROWS_PER_FILE",
    "Ledger",
    "LedgerProducer",
    "smallest_value",
]

ROWS_PER_FILE: Final = 500_000
"""A file is written when so many rows have come together,"""
SECONDS_PER_FILE: Final = 5.0
"""or when so much time has passed."""

LEDGER_SCHEMA: Final = (
    "producer string, topic string, in_flight int, call long, status string, partition int,"
    " offset long, sent_at timestamp, ended_at timestamp"
)
"""The columns as Spark reads them. `partition` is -1 where none was named, `offset` likewise; times
are those of the machine that sent."""
LEDGER_COLUMNS: Final = tuple(part.split()[0] for part in LEDGER_SCHEMA.split(","))

_T = TypeVar("_T")

_STATUSES: Final = tuple(DeliveryStatus)
_CODE: Final = {status: code for code, status in enumerate(_STATUSES)}
_STAMP: Final = pa.timestamp("us", tz="UTC")


def smallest_value(producer: str, topic: str) -> int:
    """Bytes that a value needs to say where it comes from."""
    return len(make_value(ValueId(producer, topic, -1, 0)))


@dataclass(slots=True)
class _Rows:
    """Columns that grow."""

    call: array[int] = field(default_factory=partial(array, "q"))
    status: array[int] = field(default_factory=partial(array, "b"))
    partition: array[int] = field(default_factory=partial(array, "i"))
    offset: array[int] = field(default_factory=partial(array, "q"))
    sent_at: array[int] = field(default_factory=partial(array, "q"))
    ended_at: array[int] = field(default_factory=partial(array, "q"))


class Ledger:
    """Collects rows and writes them to `folder` as files named after the producer.

    Args:
        folder: an absolute path, or a URI that pyarrow knows (`s3://`, `hdfs://`, `gs://`).
        producer: who sends; no two ledgers of a folder have one name.
        topic: where to.
        in_flight: the limit this producer was given; a column, to tell runs apart.
    """

    def __init__(self, folder: str, producer: str, topic: str, in_flight: int) -> None:
        self.producer = producer
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
        """A record has ended; times in seconds since the epoch."""
        rows = self._rows
        rows.call.append(call)
        rows.status.append(_CODE[status])
        rows.partition.append(partition)
        rows.offset.append(offset)
        rows.sent_at.append(round(sent_at * 1e6))
        rows.ended_at.append(round(ended_at * 1e6))
        if len(rows.call) >= ROWS_PER_FILE:
            self._full.set()

    async def kept_while(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """What `run` returns; file after file is written meanwhile, and the last one then.

        Raises:
            OSError: the folder cannot be written to.
        """
        done: list[_T] = []
        trouble: list[OSError] = []
        async with anyio.create_task_group() as tasks:

            async def keep() -> None:
                # Caught inside: leaving the task group, it would be wrapped in an exception group.
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
            with anyio.CancelScope(shield=True):  # half a file is none
                await self.close()

    async def close(self) -> None:
        """Write what there is.

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


def _table(fixed: tuple[str, str, int], rows: _Rows) -> Any:
    """The rows as an Arrow table, without copying them."""
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


class LedgerProducer:
    """A producer whose every record is numbered and entered into a ledger: what a load needs of
    `aioidem.Producer`, with values of its own making instead of those it is given.

    Args:
        size: of the values, in bytes.
        clock: seconds since the epoch.
    """

    def __init__(self, producer: Producer, ledger: Ledger, size: int, clock: Clock) -> None:
        self._producer = producer
        self._ledger = ledger
        self._size = size
        self._clock = clock
        self._calls = 0
        self.start = producer.start
        self.close = producer.close
        self.wait_for_room = producer.wait_for_room
        self.flush = producer.flush
        self.partitions_for = producer.partitions_for
        self.begin_transaction = producer.begin_transaction
        self.commit_transaction = producer.commit_transaction

    def send_nowait(self, topic: str, value: bytes) -> Delivery:  # noqa: ARG002 - the load loop's
        """Queue the next record; raises what `Producer.send_nowait` does."""
        now = self._clock()
        named = ValueId(self._ledger.producer, topic, -1, self._calls)
        # The ledger's microseconds, cut to milliseconds: a record and its row are paired by time.
        stamp = round(now * 1e6) // 1000 / 1000
        delivery = self._producer.send_nowait(topic, make_value(named, self._size), timestamp=stamp)
        delivery.add_done_callback(partial(self._ended, self._calls, now))
        self._calls += 1
        return delivery

    def _ended(self, call: int, sent_at: float, delivery: Delivery) -> None:
        partition = offset = -1
        if delivery.status is DeliveryStatus.ACKED:
            where = delivery.metadata
            partition, offset = where.partition, where.offset
        self._ledger.add(call, delivery.status, partition, offset, sent_at, self._clock())

    def statistics(self) -> ProducerStatistics:
        """The producer's own."""
        return self._producer.statistics()

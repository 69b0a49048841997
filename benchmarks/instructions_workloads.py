"""The workloads of `instructions.py`, which runs this script under valgrind's callgrind.

    python instructions_workloads.py CHECKOUT loops
    python instructions_workloads.py CHECKOUT producer
    python instructions_workloads.py CHECKOUT client HOST:PORT

Each call of `os.getppid` is a mark: callgrind, which sees the call of the C library's function,
writes what was executed since the last mark to a file of its own. So the order of the marks is the
order of `LOOPS`, or of the two runs of `producer` or `client`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

RECORDS = 200
SHORT, LONG = 160, 320
"""The records of the two runs of the producer, which are subtracted."""
LOOPS = (
    "encode_records, values",
    "encode_records, keys and headers",
    "encode_columns",
    "payload_size",
    "record_size",
    "murmur2, 36 bytes",
    "partitions_of, 36 bytes",
)


class Record:
    """A record as the encoder reads it."""

    __slots__ = ("headers", "key", "timestamp_ms", "value")

    def __init__(
        self, key: bytes | None, value: bytes, headers: tuple[tuple[str, bytes], ...], time_ms: int
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = time_ms


def loops(checkout: str) -> None:
    """Run each of the hot loops over a batch of records."""
    # The package itself is not imported, which would take most of the time.
    package = ModuleType("aioidem")
    package.__path__ = [os.path.join(checkout, "aioidem")]  # noqa: PTH118 - pathlib is slow here
    sys.modules["aioidem"] = package
    from aioidem import _hot as hot

    now, value, headers = 1_700_000_000_000, b"x" * 100, (("trace", b"0123456789abcdef"),)
    keys = [b"a key as long as a UUID's %011d" % number for number in range(RECORDS)]
    plain: list[Any] = [Record(None, value, (), now) for _ in range(RECORDS)]
    keyed: list[Any] = [Record(key, value, headers, now + i // 20) for i, key in enumerate(keys)]
    values = (value,) * RECORDS

    def payload_sizes() -> None:
        for record in keyed:
            hot.payload_size(record.key, record.value, record.headers)

    def record_sizes() -> None:
        for number in range(RECORDS):
            hot.record_size(180, number, number // 20)

    def hashes() -> None:
        for key in keys:
            hot.murmur2(key)

    works: dict[str, Callable[[], object]] = {
        "encode_records, values": lambda: hot.encode_records(plain),
        "encode_records, keys and headers": lambda: hot.encode_records(keyed),
        "encode_columns": lambda: hot.encode_columns(
            values, None, (), now, None, 0, RECORDS, 0, now
        ),
        "payload_size": payload_sizes,
        "record_size": record_sizes,
        "murmur2, 36 bytes": hashes,
        "partitions_of, 36 bytes": lambda: hot.partitions_of(keys, 7),
    }
    for name in LOOPS:
        works[name]()  # CPython specialises code when it runs
        works[name]()
    os.getppid()
    for name in LOOPS:
        works[name]()
        os.getppid()


def producer(checkout: str) -> None:
    """Queue and deliver records twice, with an embedded cluster in the same process."""
    _import_from(checkout)
    import asyncio

    from opcodes import WORKLOADS, SteadyLoop, run

    def send(records: int) -> None:
        with asyncio.Runner(loop_factory=SteadyLoop) as runner:
            runner.run(run(WORKLOADS["queued"], records, None))

    send(SHORT)
    send(SHORT)
    for records in (SHORT, LONG):
        os.getppid()
        send(records)
    os.getppid()


def client(checkout: str, bootstrap: str) -> None:
    """Send and await one record at a time, twice, to a cluster in another process."""
    _import_from(checkout)
    import asyncio

    from opcodes import awaited

    from aioidem import Producer

    async def send() -> None:
        async with Producer(bootstrap) as sending:
            await awaited(sending, SHORT)
            for records in (SHORT, LONG):
                os.getppid()
                await awaited(sending, records)
            os.getppid()

    asyncio.run(send())


def _import_from(checkout: str) -> None:
    """Have aioidem imported from a checkout."""
    sys.path.insert(0, checkout)
    sys.modules["hypothesis"] = None  # type: ignore[assignment] # kio would import it


if __name__ == "__main__":
    gc.disable()
    _, checkout, what, *arguments = sys.argv
    if what == "client":
        client(checkout, *arguments)
    else:
        {"loops": loops, "producer": producer}[what](checkout)

"""Count the Python opcodes that the producer executes for one record.

    python benchmarks/opcodes.py
    python benchmarks/opcodes.py CHECKOUT

With the path of another checkout (`git worktree add --detach /tmp/before COMMIT`) that checkout is
measured, so two states of the tree can be compared. Time on a busy machine varies by more than the
cost of a method call; the number of opcodes does not, and shows what a change adds or saves.

A producer writes records of 100 bytes to the embedded cluster, in one of these ways:

- awaited: `await send()`, one record at a time, so each record is a batch and a request of its own;
- queued: 160 times `send_nowait()`, then `flush()`, so the records share a batch;
- keyed: the same with a key of 36 bytes and a header, to four partitions;
- tasks: 40 tasks, each of which awaits `send()`;
- many: `send_many()` of 160 values;
- drop-in: 160 times the drop-in's `await send()`, each of which returns a future, then `flush()`;
- drop-in, awaited: the drop-in's `send_and_wait()`, one record at a time.

The script counts what runs in `aioidem`, except for the embedded cluster and what that calls. It
also counts how often the library calls a Python function of another package (of asyncio or anyio,
say), whose own opcodes depend on that package's version. Two runs of different length are
subtracted, so what happens once (starting, metadata, the producer id) is left out. The engine's
figure is a part of the client's. Two runs count the same: all records have one timestamp, timers
follow a clock that the machine does not change, and garbage is not collected.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import selectors
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

AT_ONCE = 160
TASKS = 40
PARTITIONS = 4
VALUE = b"x" * 100
VALUES = [VALUE] * AT_ONCE
KEYS = [f"a key as long as a UUID's {number:011d}".encode() for number in range(AT_ONCE)]
HEADERS = (("trace", b"0123456789abcdef"),)
NOW = time.time()
"""The timestamp of all records, in seconds since the epoch."""
MICROSECOND = 1e-6
PATIENCE = 0.05
"""How many seconds of the machine's time the embedded cluster's bytes may take over loopback."""


class OpcodeCounter:
    """A trace function that counts opcodes by function, in the producer of one checkout.

    Args:
        checkout: The folder of the checkout that is measured.
    """

    def __init__(self, checkout: Path) -> None:
        self._library = f"{checkout / 'aioidem'}/"
        self.counts: Counter[str] = Counter()
        self.calls_out: Counter[str] = Counter()
        self._names: dict[Any, str | None] = {}
        self._counters: dict[str, Callable[[FrameType, str, object], Any]] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        """Begin to count the opcodes of a frame; `sys.settrace` calls this."""
        del event, arg
        name = self._name_of(frame)
        if name is None:
            self._count_call_out(frame)
            return None
        if self._serves_the_cluster(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._counter(name)
        return counter

    def _counter(self, name: str) -> Callable[[FrameType, str, object], Any]:
        """Make the trace function of the frames of one function."""
        counts = self.counts

        def count(frame: FrameType, event: str, arg: object) -> Any:
            del frame, arg
            if event == "opcode":
                counts[name] += 1
            return count

        return count

    def _count_call_out(self, frame: FrameType) -> None:
        """Count the call of a function that is not the library's, if the library calls it."""
        caller, code = frame.f_back, frame.f_code
        if caller is None or self._name_of(caller) is None or self._serves_the_cluster(frame):
            return
        if not self._is_cluster(code.co_filename):
            self.calls_out[f"{Path(code.co_filename).name}: {code.co_qualname}"] += 1

    def _serves_the_cluster(self, frame: FrameType) -> bool:
        """Return whether the embedded cluster has called this function, through others or not."""
        caller = frame.f_back
        while caller is not None:
            if self._is_cluster(caller.f_code.co_filename):
                return True
            caller = caller.f_back
        return False

    def _is_cluster(self, path: str) -> bool:
        folder = path.removeprefix(self._library).partition("/")[0].lstrip("_")
        return path.startswith(self._library) and folder in ("broker", "testing")

    def _name_of(self, frame: FrameType) -> str | None:
        """Return the name of a frame's function; None if it is not the client's."""
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code.co_filename, code.co_qualname)
        return self._names[code]

    def _name(self, path: str, function: str) -> str | None:
        if not path.startswith(self._library) or self._is_cluster(path):
            return None
        return f"{path.removeprefix(self._library)}: {function}"


class SteadySelector(selectors.DefaultSelector):
    """A selector with a clock of its own, which passes by the work and not by the machine's time.

    Each wait for events takes a microsecond, or the whole timeout if none arrive. So timers expire
    at the same place of every run, however busy the machine is.
    """

    now = 0.0
    """The time in seconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events that are there; without any, wait or let the timeout pass."""
        self.now += MICROSECOND
        events = super().select(0)
        if events or timeout == 0:
            return events
        events = super().select(PATIENCE if timeout else None)
        if not events and timeout:
            self.now += timeout
        return events


class SteadyLoop(asyncio.SelectorEventLoop):
    """An event loop with the clock of a `SteadySelector`."""

    def __init__(self) -> None:
        self._steady = SteadySelector()
        super().__init__(self._steady)

    def time(self) -> float:
        """Return the time of the selector."""
        return self._steady.now


async def awaited(producer: Any, records: int) -> None:
    """Send and await one record at a time."""
    for _ in range(records):
        await producer.send("t", VALUE)


async def queued(producer: Any, records: int) -> None:
    """Queue records that share batches."""
    for _ in range(records // AT_ONCE):
        for _ in range(AT_ONCE):
            producer.send_nowait("t", VALUE)
        await producer.flush()


async def keyed(producer: Any, records: int) -> None:
    """Queue records with a key and a header."""
    for _ in range(records // AT_ONCE):
        for key in KEYS:
            producer.send_nowait("t", VALUE, key=key, headers=HEADERS)
        await producer.flush()


async def tasks(producer: Any, records: int) -> None:
    """Await records in many tasks."""
    await asyncio.gather(*(awaited(producer, records // TASKS) for _ in range(TASKS)))


async def many(producer: Any, records: int) -> None:
    """Send columns of values."""
    for _ in range(records // AT_ONCE):
        await producer.send_many("t", VALUES)


async def drop_in(producer: Any, records: int) -> None:
    """Queue records as programs do that were written for aiokafka."""
    for _ in range(records // AT_ONCE):
        for _ in range(AT_ONCE):
            await producer.send("t", VALUE)
        await producer.flush()


async def drop_in_awaited(producer: Any, records: int) -> None:
    """Send and await one record at a time, as programs do that were written for aiokafka."""
    for _ in range(records):
        await producer.send_and_wait("t", VALUE)


@dataclass(frozen=True)
class Workload:
    """One way of sending.

    Attributes:
        send: Sends so many records.
        short: The records of the shorter run.
        long: The records of the longer run.
        drop_in: Whether the producer is the drop-in.
        partitions: The partitions of the topic.
    """

    send: Callable[[Any, int], Awaitable[None]]
    short: int
    long: int
    drop_in: bool = False
    partitions: int = 1


WORKLOADS = {
    "awaited": Workload(awaited, 10, 20),
    "queued": Workload(queued, 160, 320),
    "keyed": Workload(keyed, 160, 320, partitions=PARTITIONS),
    "tasks": Workload(tasks, 160, 320),
    "many": Workload(many, 160, 320),
    "drop-in": Workload(drop_in, 160, 320, drop_in=True),
    "drop-in, awaited": Workload(drop_in_awaited, 10, 20, drop_in=True),
}


async def run(workload: Workload, records: int, counter: OpcodeCounter | None) -> None:
    """Send records to an embedded cluster; a counter, if given, counts what that executes."""
    # The imports are here because `main` first puts the checkout's path in front.
    from aioidem import AIOKafkaProducer, Producer
    from aioidem.broker import EmbeddedCluster

    transport: Any = "tcp" if workload.drop_in or workload.send is awaited else "memory"
    async with EmbeddedCluster(brokers=1, transport=transport) as cluster:
        cluster.create_topic("t", partitions=workload.partitions)
        producer: Any
        if workload.drop_in:
            producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        else:
            producer = Producer(cluster.bootstrap_servers, connector=cluster.connector)
        sys.settrace(counter)
        try:
            async with producer:
                await (producer.send_and_wait if workload.drop_in else producer.send)("t", VALUE)
                await workload.send(producer, records)
        finally:
            sys.settrace(None)


def count(checkout: Path, workload: Workload, records: int) -> OpcodeCounter:
    """Run a workload, and count its opcodes and calls by function."""
    counter = OpcodeCounter(checkout)
    # Finalisers are functions too, and would be counted wherever the collector happens to run.
    gc.collect()
    gc.disable()
    try:
        with (
            asyncio.Runner(loop_factory=SteadyLoop) as runner,
            mock.patch("time.time", lambda: NOW),  # noqa: PT008 - a Mock costs more
        ):
            runner.run(run(workload, records, counter))
    finally:
        gc.enable()
    return counter


def per_record(checkout: Path, workload: Workload) -> tuple[dict[str, float], dict[str, float]]:
    """Return what one record costs, by function, the costliest first.

    Returns:
        The opcodes of the library's functions, and the calls of other packages' functions.
    """
    # The first producer of a process also fills caches, such as that of the codecs of requests.
    asyncio.run(run(workload, workload.short, None))
    fewer = count(checkout, workload, workload.short)
    more = count(checkout, workload, workload.long)
    records = workload.long - workload.short
    more.counts.subtract(fewer.counts)
    more.calls_out.subtract(fewer.calls_out)
    opcodes, calls = (
        {name: total / records for name, total in counts.most_common() if total > 0}
        for counts in (more.counts, more.calls_out)
    )
    return opcodes, calls


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", nargs="?", type=Path, default=here)
    parser.add_argument("--functions", type=int, default=15, help="how many functions to list")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    sys.path.insert(0, str(checkout))
    for name in options.only:
        opcodes, calls = per_record(checkout, WORKLOADS[name])
        engine = sum(cost for each, cost in opcodes.items() if each.startswith("_engine/"))
        print(
            f"{name}: {sum(opcodes.values()):.0f} opcodes per record, {engine:.0f} in the engine, "
            f"{sum(calls.values()):.1f} calls of other packages"
        )
        for costs in (opcodes, calls):
            for each, cost in list(costs.items())[: options.functions]:
                print(f"{cost:8.1f}  {each}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

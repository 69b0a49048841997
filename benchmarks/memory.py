"""Measure how much of a producer's memory its option `buffer_memory` covers.

    python benchmarks/memory.py
    python benchmarks/memory.py --gigabytes 10 --sizes 100 1000 --how nowait
    python benchmarks/memory.py CHECKOUT

With the path of another checkout (`git worktree add --detach /tmp/before COMMIT`) that checkout is
measured, so two states of the tree can be compared.

Each case runs in a process of its own, and the embedded cluster in another one that keeps 1 MiB of
each partition. The producer is warmed up: connected, with records acknowledged in each partition.
Then its values pass as fast as it queues them, so that the buffer is full most of the time. Printed
is by how much the process's resident size (VmHWM in /proc, so Linux only) exceeded at its peak what
it was after the warm-up, in MiB and in proportion to `buffer_memory`.

- nowait: `send_nowait`, and `wait_for_room` when there is no room; deliveries are not kept;
- keyed: the same with a key of 16 bytes and a header;
- await: tasks that each `await send()` again and again. The tasks exist before the warm-up ends, so
  that they do not count. What a task needs to wait for its record counts, and is no part of
  `buffer_memory`.

A resident size contains what the allocators hold and do not use: arenas of Python that are not
empty, and freed blocks of the C library. Therefore it also depends on what was freed before.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PARTITIONS = 4
KEPT_BY_BROKER = 1 << 20
KEY = b"k" * 16
HEADERS = [("trace", b"x" * 16)]
SETUP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """What one process does.

    Args:
        how: nowait, keyed or await.
        size: the size of a value in bytes.
        total: how many bytes of values pass.
        buffer_memory: the option, in bytes.
        tasks: how many tasks send, in the case await.
    """

    how: str
    size: int
    total: int
    buffer_memory: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process measured: bytes of growth at the peak, records, and CPU seconds."""

    growth: int
    records: int
    cpu: float


def serve(checkout: str, ready: Connection) -> None:
    """Run an embedded cluster until the other end of the pipe is closed."""
    sys.path.insert(0, checkout)
    from aioidem.broker import EmbeddedCluster

    async def run() -> None:
        configs = {"log.retention.bytes": str(KEPT_BY_BROKER)}
        async with EmbeddedCluster(default_partitions=PARTITIONS, configs=configs) as cluster:
            ready.send(cluster.bootstrap_servers)
            await asyncio.to_thread(ready.poll, None)

    asyncio.run(run())


def measured(checkout: str, bootstrap: str, case: Case, report: Connection) -> None:
    """Run one case, and report its finding."""
    sys.path.insert(0, checkout)
    report.send(asyncio.run(run_case(bootstrap, case)))


async def run_case(bootstrap: str, case: Case) -> Finding:
    """Warm a producer up, let the values pass, and return how the resident size has grown."""
    # The import is here because `measured` first puts the checkout's path in front.
    from aioidem import Producer

    records = case.total // case.size
    async with Producer(bootstrap, buffer_memory=case.buffer_memory) as producer:
        for number in range(1000):
            producer.send_nowait("t", b"warm", partition=number % PARTITIONS)
        await producer.flush()
        work = _awaiting if case.how == "await" else _queueing
        began = time.process_time()
        growth = await work(producer, case, records)
        return Finding(growth, records, time.process_time() - began)


async def _queueing(producer: Any, case: Case, records: int) -> int:
    from aioidem.errors import BufferFullError

    options = {"key": KEY, "headers": HEADERS} if case.how == "keyed" else {}
    before = _begin()
    for number in range(records):
        value = _value(case, number)
        while True:
            try:
                producer.send_nowait("t", value, **options)
                break
            except BufferFullError:
                await producer.wait_for_room(case.size)
    await producer.flush()
    return _peak() - before


async def _awaiting(producer: Any, case: Case, records: int) -> int:
    go = asyncio.Event()

    async def send(first: int) -> None:
        await go.wait()
        for number in range(first, records, case.tasks):
            await producer.send("t", _value(case, number))

    async with asyncio.TaskGroup() as tasks:
        for first in range(case.tasks):
            tasks.create_task(send(first))
        await asyncio.sleep(0)
        before = _begin()
        go.set()
    return _peak() - before


def _value(case: Case, number: int) -> bytes:
    """Return a value of its own for each record, as a program's records are."""
    return b"%0*d" % (case.size, number)


def _begin() -> int:
    """Reset the kernel's record of the peak, and return the resident size in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS:")


def _peak() -> int:
    return _status("VmHWM:")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def measure(checkout: Path, case: Case, patience: float) -> Finding:
    """Run a case against a cluster of its own."""
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    broker = fresh.Process(target=serve, args=(str(checkout), theirs), daemon=True)
    broker.start()
    theirs.close()
    try:
        if not ours.poll(SETUP_SECONDS):
            raise TimeoutError("the embedded cluster did not start")
        bootstrap = ours.recv()
        reader, writer = fresh.Pipe(duplex=False)
        client = fresh.Process(
            target=measured, args=(str(checkout), bootstrap, case, writer), daemon=True
        )
        client.start()
        writer.close()
        try:
            if not reader.poll(patience):
                raise TimeoutError(f"{case} has not ended after {patience:g} s")
            found: Finding = reader.recv()
        finally:
            client.join(10)
            client.kill()
        return found
    finally:
        ours.close()
        broker.join(10)
        broker.kill()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", nargs="?", type=Path, default=here)
    parser.add_argument("--gigabytes", type=float, default=0.2, help="how many pass in each case")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--how", nargs="+", default=["nowait", "keyed", "await"])
    parser.add_argument("--buffer-memory", type=int, default=33554432, help="bytes")
    parser.add_argument("--tasks", type=int, default=1_000, help="of the case await")
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds for one case")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    print("| case | value, bytes | growth, MiB | of buffer_memory | CPU per record, us |")
    print("|---|---:|---:|---:|---:|")
    for how in options.how:
        for size in options.sizes:
            total = int(options.gigabytes * 1e9)
            case = Case(how, size, total, options.buffer_memory, options.tasks)
            found = measure(checkout, case, options.patience)
            share = found.growth / case.buffer_memory
            cpu = found.cpu / found.records * 1e6
            cells = (how, f"{size:,}", f"{found.growth / 2**20:.1f}", f"{share:.0%}", f"{cpu:.2f}")
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

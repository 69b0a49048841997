"""Measure what a record costs where ten partitions are busy and many others are idle.

    python benchmarks/partitions.py
    python benchmarks/partitions.py CHECKOUT --partitions 10 10000

With the path of another checkout (`git worktree add --detach /tmp/before COMMIT`) that checkout is
measured, so two states of the tree can be compared.

A producer has written to each partition once (100 to a topic). Then it writes 200 records of 100
bytes to ten of them and flushes, again and again. The embedded cluster runs in a process of its
own, so what is measured is the producer. Printed are, per record:

- the producer's CPU time: the least of several rounds, because other processes only ever add to it;
- the Python opcodes of the producer (see `opcodes.py`), which do not depend on the machine.

Both are also given in proportion to those of the first line. A poll that looks at idle partitions
shows as a proportion that grows with their number.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from opcodes import OpcodeCounter

BUSY = 10
PER_TOPIC = 100
PER_FLUSH = 200
FLUSHES = 20
ROUNDS = 7
VALUE = b"x" * 100


def serve(checkout: str, topics: dict[str, int], ready: Connection) -> None:
    """Run an embedded cluster until the other end of the pipe is closed."""
    sys.path.insert(0, checkout)
    from aioidem.broker import EmbeddedCluster

    async def run() -> None:
        async with EmbeddedCluster(brokers=1) as cluster:
            for topic, partitions in topics.items():
                cluster.create_topic(topic, partitions=partitions)
            ready.send(cluster.bootstrap_servers)
            await asyncio.to_thread(ready.poll, None)

    asyncio.run(run())


async def write(producer: Any) -> None:
    """Write records to the busy partitions, and flush."""
    for number in range(PER_FLUSH):
        producer.send_nowait("t0", VALUE, partition=number % BUSY)
    await producer.flush()


async def measure(checkout: Path, bootstrap: str, topics: dict[str, int]) -> tuple[float, float]:
    """Return the microseconds of CPU time and the opcodes that a record costs the producer."""
    # The import is here because `main` first puts the checkout's path in front.
    from aioidem import Producer

    async with Producer(bootstrap) as producer:
        for topic, partitions in topics.items():
            await producer.send(topic, VALUE, partition=0)
            for index in range(1, partitions):
                producer.send_nowait(topic, VALUE, partition=index)
            await producer.flush()
        least = float("inf")
        for _ in range(ROUNDS):
            gc.collect()
            began = time.process_time()
            for _ in range(FLUSHES):
                await write(producer)
            least = min(least, time.process_time() - began)
        counter = OpcodeCounter(checkout)
        sys.settrace(counter)
        try:
            for _ in range(FLUSHES):
                # A coroutine is traced from its first step on, so each flush has a task of its own.
                await asyncio.create_task(write(producer))
        finally:
            sys.settrace(None)
    records = PER_FLUSH * FLUSHES
    return least / records * 1e6, sum(counter.counts.values()) / records


def at(checkout: Path, partitions: int) -> tuple[float, float]:
    """Measure with so many partitions, against a cluster of their own."""
    full, rest = divmod(partitions, PER_TOPIC)
    topics = {f"t{number}": PER_TOPIC for number in range(full)}
    if rest:
        topics[f"t{full}"] = rest
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    broker = fresh.Process(target=serve, args=(str(checkout), topics, theirs), daemon=True)
    broker.start()
    theirs.close()
    try:
        return asyncio.run(measure(checkout, ours.recv(), topics))
    finally:
        ours.close()
        broker.join(10)
        broker.kill()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", nargs="?", type=Path, default=here)
    parser.add_argument(
        "--partitions",
        type=int,
        nargs="+",
        default=[10, 100, 1_000, 10_000],
        help="how many partitions there are, ten of them busy (at least ten)",
    )
    options = parser.parse_args()
    if min(options.partitions) < BUSY:
        parser.error(f"{BUSY} partitions are busy, so there must be at least {BUSY}")
    checkout = options.checkout.resolve()
    sys.path.insert(0, str(checkout))
    first: tuple[float, float] | None = None
    for partitions in options.partitions:
        cpu, opcodes = at(checkout, partitions)
        first = first or (cpu, opcodes)
        print(
            f"{partitions:6} partitions, {BUSY} busy: {cpu:6.2f} us of CPU time a record "
            f"({cpu / first[0]:.2f}), {opcodes:6.0f} opcodes ({opcodes / first[1]:.2f})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Measure how long compression holds up the event loop, by codec and level, at batches of 1 MB.

    python benchmarks/compression.py
    python benchmarks/compression.py --codecs zstd:19 gzip --batches 10 --size 100
    AIOIDEM_NO_EXTENSIONS=1 python benchmarks/compression.py

For each codec and level one process sends batches to the embedded cluster, which runs in another
process. It sends them twice: with every batch compressed on the event loop, and as aioidem does,
which compresses large batches in a thread. In each case the table shows the longest time between
two questions of asyncio's loop to its selector: for so long, no other task could run.

That time is measured by two clocks. The CPU time of the loop's thread does not depend on other
programs, but lacks the time in which a thread kept the interpreter's lock from the loop. The
elapsed time contains that, and also what other programs took. The CPU time per batch is that of
the whole process, with its threads.

Half of each value is random digits, the rest text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import anyio
from machine import Machine

import aioidem
from aioidem.broker import EmbeddedCluster

CODECS: Final = (
    "gzip:1", "gzip", "gzip:9", "snappy", "lz4", "lz4:9", "lz4:17",
    "zstd:1", "zstd", "zstd:9", "zstd:12", "zstd:19", "zstd:22",
)  # fmt: skip
BATCH: Final = 1_000_000
DEADLINE: Final = 300.0
"""How many seconds one process may take."""
AT_ONCE: Final = 50
"""How many records are queued before the other tasks run."""


class Watch(selectors.DefaultSelector):
    """A selector that notes the longest time for which an event loop did not come back to it."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.cpu = self.elapsed = 0.0
        self._left = time.thread_time(), time.perf_counter()

    def select(self, timeout: float | None = None) -> Any:
        """Select as usual."""
        cpu, elapsed = time.thread_time(), time.perf_counter()
        self.cpu = max(self.cpu, cpu - self._left[0])
        self.elapsed = max(self.elapsed, elapsed - self._left[1])
        found = super().select(timeout)
        self._left = time.thread_time(), time.perf_counter()
        return found


def values(size: int) -> list[bytes]:
    """Return the values of one batch of 1 MB."""
    source = random.Random(1)
    text = b"{'customer': 'somebody', 'ordered': 'something', 'at': 'some time', 'number': '"
    made = []
    for _ in range(BATCH // (size + 8)):
        digits = b"%d" % source.randrange(10 ** (size // 2))
        made.append((text * (size // len(text) + 1))[: size - len(digits)] + digits)
    return made


async def send(watch: Watch, flags: argparse.Namespace) -> dict[str, float]:
    """Send the batches, and return what was measured, in milliseconds."""
    codec, _, level = flags.measure.partition(":")
    producer = aioidem.Producer(
        flags.bootstrap,
        compression_type=codec,
        compression_level=int(level) if level else None,
        batch_size=2 * BATCH,  # a flush ends each batch
        linger=60.0,
        delivery_timeout=200.0,
        max_request_size=2 * BATCH,
        request_timeout=60.0,
    )
    if flags.inline:
        producer._core.accumulator.drafts.quick = math.inf  # noqa: SLF001 - what is measured
    batch, began = values(flags.size), 0.0
    async with producer:
        for number in range(flags.batches + 1):
            if number == 1:  # the first batch imports the codec and opens the connection
                watch.forget()
                began = time.process_time()
            for place, value in enumerate(batch):
                producer.send_nowait("t", value)
                if place % AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            await producer.flush()
        spent = (time.process_time() - began) / flags.batches
        sent = producer.statistics().batches_sent
    return {
        "cpu": watch.cpu * 1e3,
        "elapsed": watch.elapsed * 1e3,
        "per_batch": spent * 1e3,
        "batches": sent,
    }


def measure(flags: argparse.Namespace) -> None:
    """Measure one codec in this process, and print what was measured."""
    watch = Watch()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
        print(json.dumps(runner.run(send(watch, flags))))


def measured(flags: argparse.Namespace, codec: str, bootstrap: str, *more: str) -> dict[str, float]:
    """Measure one codec in a process of its own."""
    done = subprocess.run(  # noqa: S603 - this script
        [
            sys.executable, __file__, "--measure", codec, "--bootstrap", bootstrap,
            "--batches", str(flags.batches), "--size", str(flags.size), *more,
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codecs", nargs="+", default=CODECS, help="such as zstd or zstd:19")
    parser.add_argument("--batches", type=int, default=5, help="batches of each measurement")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a value")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--inline", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        measure(flags)
        return 0
    machine = Machine.here()
    print(f"{machine.cpu}, {machine.cores} cores, load {machine.load}, {machine.python}")
    print(f"\nThe loop was held for at most, in ms; {aioidem.build_info()}\n")
    print("| codec | on the loop: CPU | elapsed | CPU per batch |", end="")
    print(" in a thread: CPU | elapsed | CPU per batch |\n|---|---:|---:|---:|---:|---:|---:|")
    found = {}
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": str(2 * BATCH)})
        for codec in flags.codecs:
            runs = [
                measured(flags, codec, cluster.bootstrap_servers, *more)
                for more in (("--inline",), ())
            ]
            found[codec] = runs
            cells = [run[part] for run in runs for part in ("cpu", "elapsed", "per_batch")]
            print(f"| {codec} | " + " | ".join(f"{each:.1f}" for each in cells) + " |", flush=True)
    if flags.json is not None:
        flags.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

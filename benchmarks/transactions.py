"""Measure transactions on localhost, as in KIP-1269's second table: Java's tool and aioidem.

    python benchmarks/transactions.py
    python benchmarks/transactions.py --in-flight 1,5 --rounds 5 --records 500000 --json rows.json

Records of 1000 bytes are sent as fast as possible to one partition of one real broker, with one
transactional id and a commit every three seconds. `kafka-producer-perf-test --transactional-id`
does this for Java, and this script for aioidem, in a process of its own. The two take turns; the
output has medians over the rounds.

How the two are kept comparable:

- The same batches (16 KiB, 5 ms of linger, which are Java's defaults), no compression, acks=all.
  aioidem seals batches at `batch.size` (late sealing off), because Java does; further rows have
  late sealing, which is the library's default.
- The same interval: from the first record after the warm-up to the answer to the last commit.
- Java refuses more than five requests in flight, so wider rows of aioidem are compared with its
  widest.
- One broker, patched to remember as many batches as the widest row has in flight. Its clients
  connect without the proxy, which would use CPU time, so no answer announces how many batches are
  remembered. `broker.dedup=range` makes aioidem ignore that, and limits its connection to that many
  requests.

Rejected: a loop of our own in Java (the KIP's figures are the tool's); latencies (at full speed
they measure the queue).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread

import aioidem
from aioidem._testing.kafka_install import KafkaInstall, install_kafka
from aioidem.errors import BufferFullError
from aioidem.testing import KafkaCluster

JAVA, OURS, LATE = "Java", "aioidem", "aioidem, sealing late"
CLIENTS = (JAVA, OURS, LATE)
WIDEST_OF_JAVA = 5
BATCHES = {"batch.size": "16384", "linger.ms": "5", "acks": "all", "enable.idempotence": "true"}
TRANSACTION = 3.0
MEGABYTE = 1 << 20
BETWEEN_YIELDS = 50
PATIENCE = 600.0
# The broker is under load for minutes: its heap is bounded, and deleted topics leave the disk soon.
BROKER = ("-Xms512m", "-Xmx512m", "-XX:-UsePerfData", "-Djava.awt.headless=true")
PROPERTIES = {"log.segment.delete.delay.ms": 1000}
# The heap size and the garbage collector of kafka-producer-perf-test.sh.
TOOL = (
    *("-Xmx512M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
PRINTED = re.compile(r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec")


async def send_all(flags: argparse.Namespace) -> float:
    """Make one run with aioidem; return the records per second after the warm-up."""
    options = {**BATCHES, "bootstrap.servers": flags.bootstrap, "transactional.id": flags.topic}
    options |= {
        "max.in.flight.requests.per.connection": str(flags.in_flight),
        "late.sealing": str(flags.child == LATE).lower(),
        "broker.dedup": "range" if int(flags.in_flight) > WIDEST_OF_JAVA else "window",
    }
    payload = os.urandom(flags.record_size // 2).hex().encode()
    config = aioidem.ProducerConfig.from_properties(options)
    async with aioidem.Producer(config=config) as producer:
        await producer.begin_transaction()
        began = start = time.perf_counter()
        for number in range(flags.records):
            if number == flags.warm_up:
                start = time.perf_counter()
            try:
                producer.send_nowait(flags.topic, payload)
            except BufferFullError:
                await producer.wait_for_room()
                producer.send_nowait(flags.topic, payload)
            if number % BETWEEN_YIELDS == 0:
                await anyio.lowlevel.checkpoint()
                if time.perf_counter() - began > TRANSACTION:
                    await producer.commit_transaction()
                    await producer.begin_transaction()
                    began = time.perf_counter()
        await producer.commit_transaction()
        counted: int = flags.records - flags.warm_up
        return counted / (time.perf_counter() - start)


def run_ours(flags: argparse.Namespace, client: str, run: Run) -> float:
    """Run `send_all` in a process of its own; return the records per second."""
    command = [sys.executable, __file__, "--child", client, "--in-flight", str(run.in_flight)]
    command += ["--bootstrap", run.bootstrap, "--topic", run.topic]
    command += ["--records", str(flags.records), "--warm-up", str(flags.warm_up)]
    return float(_printed([*command, "--record-size", str(flags.record_size)]))


def run_java(flags: argparse.Namespace, install: KafkaInstall, run: Run) -> float:
    """Run Kafka's own tool; return the records per second after the warm-up.

    Raises:
        RuntimeError: the tool printed something unexpected.
    """
    properties = BATCHES | {"max.in.flight.requests.per.connection": str(run.in_flight)}
    printed = _printed(
        [
            *(str(install.java), *TOOL, "-cp", install.class_path()),
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", run.bootstrap, "--topic", run.topic, "--throughput", "-1"),
            *("--num-records", str(flags.records), "--warmup-records", str(flags.warm_up)),
            *("--record-size", str(flags.record_size), "--transactional-id", run.topic),
            *("--transaction-duration-ms", str(round(1000 * TRANSACTION))),
            *("--command-property", *(f"{name}={value}" for name, value in properties.items())),
        ]
    )
    totals = [float(rate) for count, rate in PRINTED.findall(printed) if int(count) == run.counted]
    if len(totals) != 1:
        raise RuntimeError(f"ProducerPerformance printed {printed!r}")
    return totals[0]


def _printed(command: Sequence[str]) -> str:
    done = subprocess.run(  # noqa: S603 - this script, and Kafka's
        command, check=False, stdout=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Run:
    """One client's run; `counted` is the number of records that its rate is based on."""

    bootstrap: str
    topic: str
    in_flight: int
    counted: int


@dataclass(frozen=True, slots=True)
class Row:
    """The median of one client's rounds with one number of requests in flight."""

    client: str
    in_flight: int
    records_per_sec: float
    megabytes_per_sec: float
    rounds: int


async def measure(flags: argparse.Namespace) -> list[Row]:
    """Run all rounds with all clients, and return the medians."""
    install = install_kafka(flags.kafka)
    widths = [int(each) for each in flags.in_flight.split(",")]
    turns = [
        (width, client)
        for width in widths
        for client in flags.clients
        if client != JAVA or width <= WIDEST_OF_JAVA
    ]
    found: dict[tuple[int, str], list[float]] = {turn: [] for turn in turns}
    # The first run is not counted, because the broker's code is still being compiled.
    order = [(0, turns[-1]), *product(range(1, flags.rounds + 1), turns)]
    async with KafkaCluster(
        flags.kafka,
        retain=max(*widths, WIDEST_OF_JAVA),
        properties=PROPERTIES,
        jvm_options=BROKER,
    ) as cluster:
        for number, (width, client) in order:
            topic = f"{client.replace(', ', '-').replace(' ', '-')}-{width}-{number}"
            await cluster.create_topic(topic)
            run = Run(cluster.inner_servers, topic, width, flags.records - flags.warm_up)
            work = (
                partial(run_java, flags, install, run)
                if client == JAVA
                else partial(run_ours, flags, client, run)
            )
            rate = await anyio.to_thread.run_sync(work)
            await cluster.delete_topic(topic)
            if number:
                found[width, client].append(rate)
            told = f"round {number}: {width:3} in flight  {client:22} {rate:9,.0f} records/s"
            print(told, file=sys.stderr)
    size = flags.record_size / MEGABYTE
    medians = {turn: statistics.median(rates) for turn, rates in found.items()}
    return [
        Row(client, width, rate, rate * size, flags.rounds)
        for (width, client), rate in medians.items()
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Format a Markdown table that compares each row with Java's of the same or largest window."""
    java = {row.in_flight: row for row in rows if row.client == JAVA}
    lines = ["| in flight | client | records/s | MB/s | against Java |", "|---|---|---|---|---|"]
    for row in rows:
        base = java.get(row.in_flight) or (java[max(java)] if java else None)
        ratio = "-"
        if base is not None and base is not row:
            of = "" if base.in_flight == row.in_flight else f" (of {base.in_flight})"
            ratio = f"{row.records_per_sec / base.records_per_sec:.2f} x{of}"
        lines.append(
            f"| {row.in_flight} | {row.client} | {row.records_per_sec:,.0f} "
            f"| {row.megabytes_per_sec:.1f} | {ratio} |"
        )
    return lines


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the script's flags; those for child processes are hidden."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kafka", default="4.3.1", metavar="VERSION")
    parser.add_argument("--in-flight", default="1,5,10,20", metavar="N,N,...")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--records", type=int, default=200_000, metavar="N", help="of each run")
    parser.add_argument("--warm-up", type=int, default=20_000, metavar="N", help="of them")
    parser.add_argument("--record-size", type=int, default=1000, metavar="BYTES")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    for hidden in ("--child", "--bootstrap", "--topic"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if not 0 < flags.warm_up < flags.records:
        parser.error("--warm-up must be more than 0 and less than --records")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    flags = parse(argv)
    if flags.child:
        print(anyio.run(send_all, flags))
        return 0
    began = os.getloadavg()
    rows = anyio.run(measure, flags)
    print(
        f"Kafka {flags.kafka}, transactions of {TRANSACTION:g} s, {flags.records:,} records of "
        f"{flags.record_size} bytes, asyncio, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; medians of {flags.rounds}; "
        f"load average {began[0]:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    print("\n".join(table(rows)))
    if flags.json is not None:
        flags.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a window is worth on a long link, for aioidem and, when asked for, other clients.

    python benchmarks/long_link.py
    python benchmarks/long_link.py --aiokafka --confluent-kafka --kafka-python
    python benchmarks/long_link.py --all --rtt 80 --duration 10 --json long_link.json

Every client writes the same records through the same embedded cluster, one after the other, in one
process and one run: one partition, idempotence on, batches of 16 KiB. So the rows differ in the
client and in nothing else, and a slow machine slows them all.

How they are kept comparable:

* aioidem seals at `batch.size` (late sealing off), because the others do; `--late-sealing` adds
  rows with it on, which is the default of the library.
* Each client gets the most requests in flight it allows: aiokafka sends one batch per partition at
  a time, librdkafka and kafka-python refuse more than 5 with idempotence.
* Where batches are sealed, no client queues more than about two windows: what is queued when the
  time is over has to be sent too.
* Rates and spans are counted by the same code for all: the first batch is left out, the span is
  the broker's own count.

Rejected: a process per client (the cluster would have to be a third one, out of reach of its own
count of the span); records per second over the whole run (it counts connecting and closing).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from aioidem.broker import EmbeddedCluster
from aioidem.cli import render
from aioidem.cli.measure import RunLabel, RunResult, Tally
from aioidem.cli.perf import Interrupt, Target, loop_options, run_once
from aioidem.cli.plan import PerfPlan, UsageError, plan_perf
from aioidem.cli.screen import choose_screen
from aioidem.structs import DeliveryStatus

BATCH_SIZE = 16_384
PEER_IN_FLIGHT = 5
OURS = "aioidem"
LATE = "aioidem, sealing late"
CLOSE_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a peer."""

    bootstrap: str
    topic: str
    values: Sequence[bytes]
    duration: float
    in_flight: int

    @property
    def backlog(self) -> int:
        """Records that may be queued: two windows and a batch to spare."""
        batch = max(1, BATCH_SIZE // len(self.values[0]))
        return batch * (2 * self.in_flight + 2)


class Recorder:
    """A tally that other threads may tell; ends a peer's sending when the time is over."""

    def __init__(self, job: Job) -> None:
        self.tally = Tally(time.perf_counter())
        self._lock = threading.Lock()
        self._end = time.perf_counter() + job.duration
        self._last_ack = math.inf

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.perf_counter() >= self._end

    def queued(self) -> float:
        """A record was handed over; returns the time to give to `ended`."""
        with self._lock:
            self.tally.queued()
        return time.perf_counter()

    def ended(self, size: int, sent_at: float, error: BaseException | None) -> None:
        """A record came to its end, in whichever thread the client says so."""
        with self._lock:
            now = time.perf_counter()
            # These clients complete a batch in one go but tell nobody when it is complete. At
            # these round trips a pause means that the next answer is another batch's.
            if now - self._last_ack > 0.01:
                self.tally.first_batch_over()
            if error is None:
                self._last_ack = now
                self.tally.acknowledged(size, sent_at, now)
            else:
                self.tally.failed(DeliveryStatus.UNKNOWN, error, now)


async def run_aiokafka(job: Job) -> Tally:
    """aiokafka: one batch per partition in flight, the next one fills meanwhile."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap, enable_idempotence=True, max_batch_size=BATCH_SIZE
    )
    await producer.start()
    recorder = Recorder(job)
    room = anyio.Semaphore(job.backlog)

    def done(size: int, sent_at: float, future: Any) -> None:
        recorder.ended(size, sent_at, future.exception())
        room.release()

    try:
        index = 0
        while not recorder.over:
            await room.acquire()
            value = job.values[index % len(job.values)]
            index += 1
            sent_at = recorder.queued()
            future = await producer.send(job.topic, value)
            future.add_done_callback(partial(done, len(value), sent_at))
        await producer.flush()
    finally:
        await producer.stop()
    return recorder.tally


def run_confluent_kafka(job: Job) -> Tally:
    """confluent-kafka (librdkafka), driven from a thread."""
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": job.in_flight,
            "batch.size": BATCH_SIZE,
            "linger.ms": 0,
            "queue.buffering.max.messages": job.backlog,
            "partitioner": "consistent",
        }
    )
    producer.list_topics(job.topic, timeout=CLOSE_TIMEOUT)
    recorder = Recorder(job)

    def done(size: int, sent_at: float, error: Any, _message: Any) -> None:
        recorder.ended(size, sent_at, None if error is None else KafkaException(error))

    index = 0
    while not recorder.over:
        value = job.values[index % len(job.values)]
        sent_at = time.perf_counter()
        try:
            producer.produce(
                job.topic, value, partition=0, on_delivery=partial(done, len(value), sent_at)
            )
        except BufferError:
            producer.poll(0.01)
            continue
        recorder.queued()
        index += 1
        producer.poll(0)
    producer.flush(CLOSE_TIMEOUT)
    return recorder.tally


def run_kafka_python(job: Job) -> Tally:
    """kafka-python, driven from a thread."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        enable_idempotence=True,
        acks="all",
        max_in_flight_requests_per_connection=job.in_flight,
        batch_size=BATCH_SIZE,
        linger_ms=0,
    )
    producer.partitions_for(job.topic)
    recorder = Recorder(job)
    room = threading.BoundedSemaphore(job.backlog)

    def done(size: int, sent_at: float, outcome: Any) -> None:
        recorder.ended(size, sent_at, outcome if isinstance(outcome, BaseException) else None)
        room.release()

    try:
        index = 0
        while not recorder.over:
            if not room.acquire(timeout=0.1):
                continue
            value = job.values[index % len(job.values)]
            index += 1
            ended = partial(done, len(value), recorder.queued())
            producer.send(job.topic, value, partition=0).add_callback(ended).add_errback(ended)
        producer.flush(timeout=CLOSE_TIMEOUT)
    finally:
        producer.close(timeout=CLOSE_TIMEOUT)
    return recorder.tally


def in_thread(run: Callable[[Job], Tally]) -> Callable[[Job], Awaitable[Tally]]:
    """Run a blocking client beside the event loop, which serves the cluster."""

    async def start(job: Job) -> Tally:
        return await anyio.to_thread.run_sync(run, job)

    return start


@dataclass(frozen=True, slots=True)
class Peer:
    """Another client: its package, how to run it, and the most it will have in flight."""

    package: str
    module: str
    run: Callable[[Job], Awaitable[Tally]]
    in_flight: int

    @property
    def installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self.module) is not None


PEERS = (
    Peer("aiokafka", "aiokafka", run_aiokafka, 1),
    Peer("confluent-kafka", "confluent_kafka", in_thread(run_confluent_kafka), PEER_IN_FLIGHT),
    Peer("kafka-python", "kafka", in_thread(run_kafka_python), PEER_IN_FLIGHT),
)


@asynccontextmanager
async def long_link(plan: PerfPlan, topics: Sequence[str]) -> AsyncIterator[Target]:
    """An embedded cluster with the plan's round trip and these topics."""
    async with EmbeddedCluster(brokers=1, retain=plan.retain, rtt=plan.rtt) as cluster:
        for topic in topics:
            cluster.create_topic(topic, partitions=1)
        yield Target(
            cluster.bootstrap_servers,
            tuple(topics),
            connector=cluster.connector,
            rtt_ms=plan.rtt * 1000,
            max_span=lambda topic: cluster.max_span(topic, 0),
        )


async def measure(plans: Sequence[PerfPlan], peers: Sequence[Peer]) -> list[RunResult]:
    """Every row: aioidem at each window of each plan, then the peers."""
    results: list[RunResult] = []
    first = plans[0]
    ours = [(plan, in_flight) for plan in plans for in_flight in plan.in_flight]
    topics = [f"run-{index}" for index in range(len(ours) + len(peers))]
    with choose_screen() as screen:
        async with long_link(first, topics) as target:
            for (plan, in_flight), topic in zip(ours, topics, strict=False):
                row = await run_once(plan, target, topic, in_flight, screen, Interrupt())
                results.append(_named(row, plan))
            for peer, topic in zip(peers, topics[len(ours) :], strict=True):
                screen.begin(peer.package, first.duration)
                row = await run_peer(peer, first, target, topic)
                screen.end(peer.package, row)
                for line in render.failures(peer.package, row):
                    screen.trouble(line)
                results.append(row)
        screen.table(results)
    return results


def _named(row: RunResult, plan: PerfPlan) -> RunResult:
    """Our row under a name that says how it sealed."""
    if plan.properties["late.sealing"] == "false":
        return row
    return replace(row, label=replace(row.label, client=LATE))


async def run_peer(peer: Peer, plan: PerfPlan, target: Target, topic: str) -> RunResult:
    """One row of another client."""
    label = RunLabel(
        client=peer.package,
        version=version(peer.package),
        in_flight=peer.in_flight,
        record_size=plan.record_size,
    )
    duration = plan.duration or 0.0
    tally = await peer.run(Job(target.bootstrap, topic, plan.values, duration, peer.in_flight))
    span = None if target.max_span is None else target.max_span(topic)
    return tally.result(label, rtt_ms=target.rtt_ms, max_span=span)


def ratio_lines(results: Sequence[RunResult]) -> list[str]:
    """Each of our rows over each peer's, by steady rate."""
    ours = [row for row in results if row.label.client in (OURS, LATE)]
    peers = [row for row in results if row.label.client not in (OURS, LATE)]
    lines: list[str] = []
    for row in ours:
        ratios = [
            f"{row.steady_records_per_sec / peer.steady_records_per_sec:.1f} x {peer.label.client}"
            for peer in peers
            if row.steady_records_per_sec and peer.steady_records_per_sec
        ]
        if ratios:
            lines.append(
                f"{row.label.client}, {row.label.in_flight} in flight: {', '.join(ratios)}"
            )
    return lines


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags of this script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rtt", type=float, default=150.0, metavar="MS")
    parser.add_argument("--retain", type=int, default=20, metavar="N")
    parser.add_argument("--in-flight", default="1,5,20", metavar="N,N,...")
    parser.add_argument("--duration", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--record-size", type=int, default=1000, metavar="BYTES")
    parser.add_argument("--late-sealing", action="store_true", help="rows with it on, too")
    for peer in PEERS:
        parser.add_argument(f"--{peer.package}", action="append_const", dest="peers", const=peer)
    parser.add_argument("--all", action="store_true", help="every other client that is installed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE.html")
    return parser.parse_args(argv)


def peers_of(flags: argparse.Namespace) -> list[Peer]:
    """The other clients: those named, or with `--all` those installed.

    Raises:
        UsageError: a named one is not installed.
    """
    named: list[Peer] = list(dict.fromkeys(flags.peers or ()))
    missing = [peer.package for peer in named if not peer.installed]
    if missing:
        raise UsageError(f"not installed: pip install {' '.join(missing)}")
    if not flags.all:
        return named
    for peer in PEERS:
        if not peer.installed:
            print(f"left out, not installed: {peer.package}", file=sys.stderr)
    return [peer for peer in PEERS if peer.installed]


def plans_of(flags: argparse.Namespace) -> list[PerfPlan]:
    """Our rows: sealed at batch.size and, when asked for, late.

    Raises:
        UsageError: a flag is malformed or out of range.
    """
    sealings = ["late.sealing=false"] + ["late.sealing=true"] * flags.late_sealing
    return [
        plan_perf(
            rtt_ms=flags.rtt,
            retain=flags.retain,
            in_flight=flags.in_flight,
            duration=flags.duration,
            record_size=flags.record_size,
            producer_props=[sealing, f"batch.size={BATCH_SIZE}"],
            json_file=flags.json,
            report_file=flags.report,
        )
        for sealing in sealings
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every client had every record acknowledged."""
    flags = parse(argv)
    try:
        peers = peers_of(flags)
        plans = plans_of(flags)
    except UsageError as error:
        print(f"long_link.py: {error}", file=sys.stderr)
        return 2
    results = anyio.run(measure, plans, peers, backend_options=loop_options())
    for line in ratio_lines(results):
        print(line)
    if flags.json is not None:
        render.write_json(flags.json, results)
    if flags.report is not None:
        from aioidem.cli.report import write_report

        write_report(flags.report, results)
    return 0 if all(row.complete for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())

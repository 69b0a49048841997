"""What a window is worth on a long link, for aioidem and, when asked for, other clients.

    python benchmarks/long_link.py
    python benchmarks/long_link.py --kafka --all --late-sealing
    python benchmarks/long_link.py --aiokafka --rtt 80 --duration 10 --json long_link.json

Every client writes the same records, one after the other, in one run: one partition, idempotence
on, batches of 16 KiB, through the embedded cluster or, with `--kafka`, through real brokers behind
a proxy that delays: a stock one for windows up to 5 and the other clients, and one patched to
retain `--retain` batches for wider windows. The rows differ in the client and in nothing else, and
a slow machine slows them all.

How they are kept comparable:

* aioidem seals at `batch.size` (late sealing off), because the others do; `--late-sealing` adds
  rows with it on, which is the default of the library. They compare with `aiokafka-defaults`,
  which has neither idempotence nor acks=all.
* Each client gets the most requests in flight it allows: aiokafka sends one batch per partition at
  a time, Java, librdkafka and kafka-python refuse more than 5 with idempotence.
* Where batches are sealed, no client queues more than about two windows: what is queued when the
  time is over has to be sent too.
* Rates and spans are counted by the same code for all: the first batch is left out, the span is
  the embedded broker's own count, or the proxy's of requests under way.

Java's producer is a process of its own, and needs a JDK.

Rejected: a process per Python client (the cluster or the proxy would have to be a third one, out of
reach of its count of the span); records per second over the whole run (it counts connecting and
closing); kafka-producer-perf-test for Java (its rate includes both).
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
from itertools import accumulate
from pathlib import Path
from platform import python_version
from typing import Any

import anyio
import anyio.to_thread
from workers import JAVA, Work, Worker, WorkerError, has_compiler, java_worker

from aioidem.broker import EmbeddedCluster
from aioidem.cli import render
from aioidem.cli.measure import RunLabel, RunResult, Tally
from aioidem.cli.perf import Interrupt, Target, loop_options, run_once
from aioidem.cli.plan import PerfPlan, UsageError, plan_perf
from aioidem.cli.screen import choose_screen
from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from aioidem.testing.fault_proxy import Action, FaultProxy, FrameSeen
from aioidem.testing.kafka_install import install_kafka
from aioidem.testing.kafka_process import ProcessGuard

BATCH_SIZE = 16_384
PEER_IN_FLIGHT = 5
KAFKA = "4.3.1"
STOCK_WINDOW = 5
PRODUCE = 0
COARSE = 0.005
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
    kafka: str | None

    @property
    def backlog(self) -> int:
        """Records that may be queued: two windows and a batch to spare."""
        batch = max(1, BATCH_SIZE // len(self.values[0]))
        return batch * (2 * self.in_flight + 2)


class Recorder:
    """A tally that other threads may tell; ends a peer's sending when the time is over."""

    def __init__(self, job: Job) -> None:
        self._lock = threading.Lock()
        self._last_ack = math.inf
        self._duration = job.duration
        self.begin()

    def begin(self) -> None:
        """The time starts now."""
        self.tally = Tally(time.perf_counter())
        self._end = time.perf_counter() + self._duration

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


async def run_aiokafka(job: Job, **options: Any) -> Tally:
    """aiokafka: one batch per partition in flight, the next one fills meanwhile."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=job.bootstrap, **options)
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


def run_java(job: Job) -> Tally:
    """Java's producer, in a process of its own."""
    work = Work(
        bootstrap=job.bootstrap,
        topic=job.topic,
        warm=job.topic,
        size=len(job.values[0]),
        backlog=job.backlog,
        batch_size=BATCH_SIZE,
        deadline=CLOSE_TIMEOUT,
    )
    recorder = Recorder(job)
    sent_at: dict[int, float] = {}

    def listener(verb: str, number: int) -> None:
        if verb == "sent":
            sent_at[number] = recorder.queued()
        else:
            failed = WorkerError(f"record {number} failed") if verb == "failed" else None
            recorder.ended(work.size, sent_at.pop(number), failed)

    guard = ProcessGuard()
    try:
        with Worker(
            java_worker(install_kafka(job.kafka or KAFKA), work), guard, listener
        ) as worker:
            worker.until_ready(CLOSE_TIMEOUT)
            recorder.begin()
            worker.go()
            time.sleep(job.duration)
            worker.stop()
            worker.until_closed(CLOSE_TIMEOUT)
            return recorder.tally
    finally:
        guard.close()


def in_thread(run: Callable[[Job], Tally]) -> Callable[[Job], Awaitable[Tally]]:
    """Run a blocking client beside the event loop, which serves the cluster."""

    async def start(job: Job) -> Tally:
        return await anyio.to_thread.run_sync(run, job)

    return start


@dataclass(frozen=True, slots=True)
class Peer:
    """Another client: its package, how to run it, and the most it will have in flight."""

    name: str
    package: str
    module: str
    run: Callable[[Job], Awaitable[Tally]]
    in_flight: int

    def missing(self, kafka: str | None) -> str | None:
        """Why it cannot be run here, if so."""
        if self.name != JAVA:
            found = importlib.util.find_spec(self.module) is not None
            return None if found else f"not installed: pip install {self.package}"
        if kafka is None:
            return "Java's producer comes with --kafka"
        return None if has_compiler(install_kafka(kafka)) else "Java's producer needs a JDK"

    def version(self, kafka: str | None) -> str:
        """Of its package."""
        return kafka or "?" if self.name == JAVA else version(self.package)


PEERS = (
    Peer(
        "aiokafka",
        "aiokafka",
        "aiokafka",
        partial(run_aiokafka, enable_idempotence=True, max_batch_size=BATCH_SIZE),
        1,
    ),
    Peer("aiokafka-defaults", "aiokafka", "aiokafka", run_aiokafka, 1),
    Peer(
        "confluent-kafka",
        "confluent-kafka",
        "confluent_kafka",
        in_thread(run_confluent_kafka),
        PEER_IN_FLIGHT,
    ),
    Peer("kafka-python", "kafka-python", "kafka", in_thread(run_kafka_python), PEER_IN_FLIGHT),
    Peer(JAVA, JAVA, "", in_thread(run_java), PEER_IN_FLIGHT),
)


class FlightCount:
    """The most Produce requests that a client had under way at once, by what its proxy sees.

    The proxy sees a request when it is sent, and an answer half a round trip before it arrives;
    less a few milliseconds, because timers are coarse.
    """

    def __init__(self, proxy: FaultProxy) -> None:
        self._moves: list[tuple[float, int]] = []
        self._proxy = proxy
        proxy.on_request = proxy.on_answer = self._see

    def _see(self, seen: FrameSeen) -> Action | None:
        if seen.api_key == PRODUCE:
            delay = max(0.0, self._proxy.rtt / 2 - COARSE) if seen.answer else 0.0
            self._moves.append((seen.at + delay, -1 if seen.answer else 1))
        return None

    def take(self, _topic: str) -> int:
        """The count since the last call."""
        moves, self._moves = sorted(self._moves), []
        return max(accumulate(change for _, change in moves), default=0)


@dataclass(frozen=True, slots=True)
class Part:
    """Runs that share a cluster: plans with the windows to try, and other clients."""

    ours: Sequence[tuple[PerfPlan, int]]
    peers: Sequence[Peer]
    retain: int | None

    @property
    def topics(self) -> list[str]:
        """One for each run."""
        return [f"run-{index}" for index in range(len(self.ours) + len(self.peers))]


def parts_of(plans: Sequence[PerfPlan], peers: Sequence[Peer], kafka: str | None) -> list[Part]:
    """All of it, or with Kafka what a stock broker takes and what needs the patched one."""
    ours = [(plan, in_flight) for plan in plans for in_flight in plan.in_flight]
    retain = plans[0].retain
    if kafka is None:
        return [Part(ours, peers, retain)]
    narrow = [row for row in ours if row[1] <= STOCK_WINDOW]
    wide = [row for row in ours if row[1] > STOCK_WINDOW]
    parts = [Part(narrow, peers, None), Part(wide, (), retain)]
    return [part for part in parts if part.topics]


@asynccontextmanager
async def embedded(part: Part, rtt: float) -> AsyncIterator[Target]:
    """An embedded cluster."""
    async with EmbeddedCluster(brokers=1, retain=part.retain or STOCK_WINDOW, rtt=rtt) as cluster:
        for topic in part.topics:
            cluster.create_topic(topic, partitions=1)
        yield Target(
            cluster.bootstrap_servers,
            tuple(part.topics),
            connector=cluster.connector,
            rtt_ms=rtt * 1000,
            max_span=lambda topic: cluster.max_span(topic, 0),
        )


@asynccontextmanager
async def real(part: Part, rtt: float, kafka: str) -> AsyncIterator[Target]:
    """A real broker behind a proxy."""
    async with KafkaCluster(kafka, retain=part.retain, rtt=rtt) as cluster:
        for topic in part.topics:
            await cluster.create_topic(topic)
        yield Target(
            cluster.bootstrap_servers,
            tuple(part.topics),
            rtt_ms=rtt * 1000,
            max_span=FlightCount(cluster.proxy).take,
        )


async def measure(
    plans: Sequence[PerfPlan], peers: Sequence[Peer], kafka: str | None
) -> list[RunResult]:
    """Every row: aioidem at each window of each plan, and the peers."""
    results: list[RunResult] = []
    with choose_screen() as screen:
        for part in parts_of(plans, peers, kafka):
            rtt = plans[0].rtt
            cluster = embedded(part, rtt) if kafka is None else real(part, rtt, kafka)
            async with cluster as target:
                for (plan, in_flight), topic in zip(part.ours, part.topics, strict=False):
                    row = await run_once(plan, target, topic, in_flight, screen, Interrupt())
                    results.append(_named(row, plan))
                for peer, topic in zip(part.peers, part.topics[len(part.ours) :], strict=True):
                    screen.begin(peer.name, plans[0].duration)
                    row = await run_peer(peer, plans[0], target, topic, kafka)
                    screen.end(peer.name, row)
                    for line in render.failures(peer.name, row):
                        screen.trouble(line)
                    results.append(row)
        screen.table(results)
    return results


def _named(row: RunResult, plan: PerfPlan) -> RunResult:
    """Our row under a name that says how it sealed."""
    if plan.properties["late.sealing"] == "false":
        return row
    return replace(row, label=replace(row.label, client=LATE))


async def run_peer(
    peer: Peer, plan: PerfPlan, target: Target, topic: str, kafka: str | None
) -> RunResult:
    """One row of another client."""
    label = RunLabel(
        client=peer.name,
        version=peer.version(kafka),
        in_flight=peer.in_flight,
        record_size=plan.record_size,
    )
    duration = plan.duration or 0.0
    job = Job(target.bootstrap, topic, plan.values, duration, peer.in_flight, kafka)
    tally = await peer.run(job)
    span = None if target.max_span is None else target.max_span(topic)
    return tally.result(label, rtt_ms=target.rtt_ms, max_span=span)


def ratio_lines(results: Sequence[RunResult]) -> list[str]:
    """Each of our rows over each peer's, by steady rate."""
    ours = [row for row in results if row.label.client in (OURS, LATE)]
    peers = [row for row in results if row.label.client not in (OURS, LATE)]
    lines: list[str] = []
    for row in ours:
        ratios = [
            f"{row.steady_records_per_sec / peer.steady_records_per_sec:.2f} x {peer.label.client}"
            for peer in peers
            if row.steady_records_per_sec and peer.steady_records_per_sec
        ]
        if ratios:
            lines.append(
                f"{row.label.client}, {row.label.in_flight} in flight: {', '.join(ratios)}"
            )
    return lines


def markdown(results: Sequence[RunResult]) -> list[str]:
    """The rows as README has them: batches in flight as counted, rates against aiokafka's."""
    base = {row.label.client: row.steady_records_per_sec for row in results}.get("aiokafka")
    lines = [
        "| client | batches in flight | records/s | against aiokafka |",
        "|---|---|---|---|",
    ]
    for row in sorted(results, key=lambda row: row.steady_records_per_sec or 0.0):
        label, rate = row.label, row.steady_records_per_sec or 0.0
        flown = row.max_span or 0
        allowed = "" if flown >= label.in_flight else f" (of {label.in_flight} allowed)"
        against = f"{rate / base:.2f} x" if base else "-"
        name, _, how = label.client.partition(", ")
        client = ", ".join(filter(None, (f"{name} {label.version}", how)))
        lines.append(f"| {client} | {flown}{allowed} | {rate:,.1f} | {against} |")
    return lines


def described(flags: argparse.Namespace, results: Sequence[RunResult]) -> str:
    """What was run, with the versions of all parties."""
    versions = {row.label.client.partition(",")[0]: row.label.version for row in results}
    cluster = f"Kafka {flags.kafka}" if flags.kafka else "the embedded cluster"
    clients = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{cluster}, round trip {flags.rtt:g} ms; {clients}; Python {python_version()}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags of this script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rtt", type=float, default=150.0, metavar="MS")
    parser.add_argument("--retain", type=int, default=20, metavar="N")
    parser.add_argument("--in-flight", default="1,5,20", metavar="N,N,...")
    parser.add_argument("--duration", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--record-size", type=int, default=1000, metavar="BYTES")
    parser.add_argument("--late-sealing", action="store_true", help="rows with it on, too")
    parser.add_argument("--kafka", nargs="?", const=KAFKA, metavar="VERSION", help="real brokers")
    for peer in PEERS:
        name = peer.name.lower()
        parser.add_argument(f"--{name}", action="append_const", dest="peers", const=peer)
    parser.add_argument("--all", action="store_true", help="every other client that is installed")
    parser.add_argument("--markdown", action="store_true", help="the table as README has it, too")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE.html")
    return parser.parse_args(argv)


def peers_of(flags: argparse.Namespace) -> list[Peer]:
    """The other clients: those named, or with `--all` those installed.

    Raises:
        UsageError: a named one cannot be run.
    """
    named: list[Peer] = list(dict.fromkeys(flags.peers or ()))
    missing = {peer: peer.missing(flags.kafka) for peer in (PEERS if flags.all else named)}
    reasons = [reason for reason in missing.values() if reason is not None]
    if not flags.all and reasons:
        raise UsageError("; ".join(reasons))
    for reason in reasons:
        print(f"left out: {reason}", file=sys.stderr)
    return [peer for peer, reason in missing.items() if reason is None]


def plans_of(flags: argparse.Namespace) -> list[PerfPlan]:
    """Our rows: sealed at batch.size and, when asked for, late.

    Raises:
        UsageError: a flag is malformed or out of range.
    """
    plans = [_plan(flags, "false", flags.in_flight)]
    if flags.late_sealing:
        # With one batch in flight there is nothing to compare it with.
        wider = [number for number in flags.in_flight.split(",") if number.strip() != "1"]
        plans.append(_plan(flags, "true", ",".join(wider) or flags.in_flight))
    return plans


def _plan(flags: argparse.Namespace, late: str, in_flight: str) -> PerfPlan:
    return plan_perf(
        rtt_ms=flags.rtt,
        retain=flags.retain,
        in_flight=in_flight,
        duration=flags.duration,
        record_size=flags.record_size,
        producer_props=[f"late.sealing={late}", f"batch.size={BATCH_SIZE}"],
        json_file=flags.json,
        report_file=flags.report,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every client had every record acknowledged."""
    flags = parse(argv)
    try:
        peers = peers_of(flags)
        plans = plans_of(flags)
    except UsageError as error:
        print(f"long_link.py: {error}", file=sys.stderr)
        return 2
    results = anyio.run(measure, plans, peers, flags.kafka, backend_options=loop_options())
    print(described(flags, results))
    for line in [*ratio_lines(results), *(markdown(results) if flags.markdown else ())]:
        print(line)
    if flags.json is not None:
        render.write_json(flags.json, results)
    if flags.report is not None:
        from aioidem.cli.report import write_report

        write_report(flags.report, results)
    return 0 if all(row.complete for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())

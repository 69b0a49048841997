"""Measure what a window is worth on a long link, for aioidem and, on request, for other clients.

    python benchmarks/long_link.py
    python benchmarks/long_link.py --kafka --all --late-sealing --duration 10 --markdown
    python benchmarks/long_link.py --aiokafka --rtt 80 --duration 10 --json long_link.json

Every client writes the same records, one client after the other: one partition, idempotence on,
batches of 16 KiB, through the embedded cluster or, with `--kafka`, through real brokers behind a
proxy that delays. There is a stock broker for windows up to 5 and for the other clients, and one
patched to remember `--retain` batches for wider windows. The rows differ only in the client, and a
slow machine slows all of them down.

How the clients are kept comparable:

- aioidem seals batches at `batch.size` (late sealing off), because the others do. `--late-sealing`
  adds rows with it on, which is the library's default. They compare with `aiokafka-defaults`, which
  has neither idempotence nor acks=all.
- Each client gets the most requests in flight that it allows: aiokafka sends one batch per
  partition at a time; Java, librdkafka and kafka-python refuse more than 5 with idempotence.
- Without late sealing, no client queues more than about two windows of records, because at the end
  the queued records have to be sent, too.
- With `--kafka` each client has a process of its own, and the proxy stays in this one, so no client
  shares an interpreter with the link. Java's producer needs a JDK. On the embedded cluster they all
  run in this process, which also carries the broker's load.
- The same code computes all rates (`BurstTally`), from acknowledgements timed by the client's own
  process: whole bursts, from the end of the first one to the end of the last one before the time
  was over. With a window of five, a round trip is a burst of five batches. Counting from the first
  batch on would give a client four batches for nothing, and counting what is in flight at the end
  would penalise one whose backlog ends in a part of a window.
- A real broker that was just started is some milliseconds slower per request. So the first row is
  run once before all others, and that run is not in the table.
- The span is the embedded broker's own count, or the proxy's count of requests in flight.

Rejected: records per second over the whole run (it includes connecting and closing);
kafka-producer-perf-test for Java (its rate includes both); timing a client's records in the process
that reads its lines (that one also runs a proxy).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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

import aioidem
from aioidem._load import render
from aioidem._load.load import Workload, run_load
from aioidem._load.measure import RunLabel, RunResult, Tally
from aioidem._load.perf import Target, loop_options
from aioidem._load.plan import PerfPlan, plan_perf
from aioidem._load.screen import choose_screen
from aioidem._load.usage import UsageError
from aioidem._network.transport import Connector
from aioidem._testing.kafka_install import install_kafka
from aioidem._testing.kafka_process import ProcessGuard
from aioidem.broker import EmbeddedCluster
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, FaultProxy, FrameSeen, KafkaCluster

BATCH_SIZE = 16_384
PEER_IN_FLIGHT = 5
KAFKA = "4.3.1"
STOCK_WINDOW = 5
PRODUCE = 0
COARSE = 0.005
OURS = "aioidem"
LATE = "aioidem, sealing late"
AIOKAFKA, DEFAULTS = "aiokafka", "aiokafka-defaults"
CLOSE_TIMEOUT = 60.0
WARM_UP = "warm-up"
PAUSE = 0.01
"""The seconds without an acknowledgement after which a burst has ended.

At these round trips the next acknowledgement belongs to another answer.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one client, on one topic."""

    client: str
    bootstrap: str
    topic: str
    plan: PerfPlan
    in_flight: int
    kafka: str | None
    connector: Connector | None = None

    @property
    def values(self) -> Sequence[bytes]:
        """Return the values of the records, which are sent in turn."""
        return self.plan.values

    @property
    def duration(self) -> float:
        """Return for how many seconds to send."""
        return self.plan.duration or 0.0

    @property
    def backlog(self) -> int:
        """Return how many records may be queued: two windows plus two batches."""
        batch = max(1, BATCH_SIZE // len(self.values[0]))
        return batch * (2 * self.in_flight + 2)

    def tally(self, started: float) -> BurstTally:
        """Return a new tally for a client that starts at this time."""
        return BurstTally(started, self.duration, self.plan.rtt)


class BurstTally(Tally):
    """A tally whose rate counts only whole bursts of acknowledgements during the sending time.

    A burst ends with a pause, or after one round trip.
    """

    def __init__(self, started: float, duration: float, rtt: float) -> None:
        super().__init__(started)
        self._over = started + duration
        self._longest = max(rtt, PAUSE)
        self._begun = started
        self._latest: float | None = None
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def acknowledged(self, size: int, sent_at: float, now: float) -> None:
        """Count an acknowledged record, which may begin another burst."""
        if self._latest is None:
            self._begun = now
        elif now - self._latest > PAUSE or now - self._begun > self._longest:
            end = (self._latest, self.acked)
            if self._first is None:
                self._first = end
            elif self._latest <= self._over:
                self._last = end
            self._begun = now
        self._latest = now
        super().acknowledged(size, sent_at, now)

    @property
    def steady(self) -> float | None:
        """Return the records per second, or None after fewer than two bursts."""
        if self._first is None or self._last is None:
            return None
        (first, before), (last, acked) = self._first, self._last
        return (acked - before) / (last - first)


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a run: the tally, the rate, and the window if the client reports it."""

    tally: Tally
    steady: float | None
    window: int | None = None

    def printed(self) -> str:
        """Format the result for the parent process."""
        state = {"tally": self.tally.state(), "steady": self.steady, "window": self.window}
        return json.dumps(state)

    @classmethod
    def read(cls, text: str) -> Counted:
        """Parse the output of `printed`."""
        state = json.loads(text)
        return cls(Tally.merged([state["tally"]]), state["steady"], state["window"])


class Recorder:
    """A tally that any thread may update, and that knows when a client has to stop sending."""

    def __init__(self, job: Job) -> None:
        self._lock = threading.Lock()
        self._job = job
        self.begin(time.perf_counter())

    def begin(self, at: float) -> None:
        """Set the beginning of the measurement."""
        self.tally = self._job.tally(at)
        self._end = at + self._job.duration

    @property
    def over(self) -> bool:
        """Return whether the time is over."""
        return time.perf_counter() >= self._end

    @property
    def counted(self) -> Counted:
        """Return the result."""
        return Counted(self.tally, self.tally.steady)

    def queued(self) -> float:
        """Count a record that was handed to the client; return the time, for `ended`."""
        with self._lock:
            self.tally.queued()
        return time.perf_counter()

    def ended(self, size: int, sent_at: float, error: BaseException | None) -> None:
        """Count a record that has just ended; any thread may call this."""
        self.ended_at(time.perf_counter(), size, sent_at, error)

    def ended_at(self, now: float, size: int, sent_at: float, error: BaseException | None) -> None:
        """Count a record that ended at the given time."""
        with self._lock:
            if error is None:
                self.tally.acknowledged(size, sent_at, now)
            else:
                self.tally.failed(DeliveryStatus.UNKNOWN, error, now)


async def run_aioidem(job: Job) -> Counted:
    """Run aioidem with the load of `aioidem perf`."""
    config = job.plan.config(job.in_flight, job.bootstrap)
    if not config.late_sealing:
        # `aioidem perf` has a buffer of two windows. This adds two batches, as `Job.backlog` does,
        # because otherwise the next batch would wait for the loop that fills it.
        memory = config.buffer_memory * (job.in_flight + 1) // job.in_flight
        config = replace(config, buffer_memory=memory)
    async with aioidem.Producer(config=config, connector=job.connector) as producer:
        await producer.partitions_for(job.topic)
        tally = job.tally(time.perf_counter())
        work = Workload(
            topic=job.topic,
            values=job.values,
            num_records=None,
            duration=job.duration,
            throughput=math.inf,
            flush_timeout=CLOSE_TIMEOUT,
        )
        failure = await run_load(producer, work, tally, time.perf_counter)
        if failure is not None:
            tally.note_failure(failure)
        windows = [each.window for each in producer.statistics().partitions]
    return Counted(tally, tally.steady, max(windows, default=None))


async def run_aiokafka(job: Job, **options: Any) -> Counted:
    """Run aiokafka, which has one batch per partition in flight while it fills the next one."""
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
    return recorder.counted


def run_confluent_kafka(job: Job) -> Counted:
    """Run confluent-kafka (librdkafka), driven from a thread."""
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
    return recorder.counted


def run_kafka_python(job: Job) -> Counted:
    """Run kafka-python, driven from a thread."""
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
    return recorder.counted


def run_java(job: Job) -> Counted:
    """Run Java's producer, whose process measures the times itself."""
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

    def listener(verb: str, number: int, at: float | None) -> None:
        if verb == "sent" and at is not None:
            if not sent_at and not recorder.tally.records:
                recorder.begin(at)
            recorder.queued()
            sent_at[number] = at
        elif verb == "acked" and at is not None:
            recorder.ended_at(at, work.size, sent_at.pop(number), None)
        else:
            began = sent_at.pop(number)
            recorder.ended_at(began, work.size, began, WorkerError(f"record {number} failed"))

    guard = ProcessGuard()
    try:
        with Worker(
            java_worker(install_kafka(job.kafka or KAFKA), work), guard, listener
        ) as worker:
            worker.until_ready(CLOSE_TIMEOUT)
            worker.go()
            time.sleep(job.duration)
            worker.stop()
            worker.until_closed(CLOSE_TIMEOUT)
            return recorder.counted
    finally:
        guard.close()


def in_thread(run: Callable[[Job], Counted]) -> Callable[[Job], Awaitable[Counted]]:
    """Run a blocking client in a thread, next to the event loop that may serve the cluster."""

    async def start(job: Job) -> Counted:
        return await anyio.to_thread.run_sync(run, job)

    return start


@dataclass(frozen=True, slots=True)
class Peer:
    """Another client: its package, how to run it, and its limit of requests in flight."""

    name: str
    package: str
    module: str
    run: Callable[[Job], Awaitable[Counted]]
    in_flight: int

    def missing(self, kafka: str | None) -> str | None:
        """Return why the client cannot be run here, or None."""
        if self.name != JAVA:
            found = importlib.util.find_spec(self.module) is not None
            return None if found else f"not installed: pip install {self.package}"
        if kafka is None:
            return "Java's producer comes with --kafka"
        return None if has_compiler(install_kafka(kafka)) else "Java's producer needs a JDK"

    def version(self, kafka: str | None) -> str:
        """Return the version of the client's package."""
        return kafka or "?" if self.name == JAVA else version(self.package)


PEERS = (
    Peer(
        AIOKAFKA,
        "aiokafka",
        "aiokafka",
        partial(run_aiokafka, enable_idempotence=True, max_batch_size=BATCH_SIZE),
        1,
    ),
    Peer(DEFAULTS, "aiokafka", "aiokafka", run_aiokafka, 1),
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

RUNS: Mapping[str, Callable[[Job], Awaitable[Counted]]] = {
    OURS: run_aioidem,
    LATE: run_aioidem,
    **{peer.name: peer.run for peer in PEERS},
}


def run_child(job: Job) -> Counted:
    """Run a Python client in a process of its own, which is this script again.

    Raises:
        RuntimeError: the process failed.
    """
    plan = job.plan
    command = [sys.executable, __file__, "--child", job.client, "--bootstrap", job.bootstrap]
    command += ["--topic", job.topic, "--in-flight", str(job.in_flight)]
    command += ["--rtt", str(1000 * plan.rtt), "--retain", str(plan.retain)]
    command += ["--duration", str(job.duration), "--record-size", str(plan.record_size)]
    command += ["--late-sealing"] if job.client == LATE else []
    done = subprocess.run(  # noqa: S603 - this script
        command,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=job.duration + 4 * CLOSE_TIMEOUT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{job.client} ended with {done.returncode}: {done.stdout[-2000:]}")
    return Counted.read(done.stdout.splitlines()[-1])


async def be_child(flags: argparse.Namespace) -> Counted:
    """Run the client that `run_child` named, with the last of the plans."""
    plan = plans_of(flags)[-1]
    job = Job(flags.child, flags.bootstrap, flags.topic, plan, plan.in_flight[0], flags.kafka)
    return await RUNS[flags.child](job)


class FlightCount:
    """The most Produce requests that a client had in flight at once, as seen by its proxy.

    The proxy sees a request when the client sends it, and an answer half a round trip before the
    client gets it, less a few milliseconds, because timers are coarse.
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
        """Return the highest count since the last call."""
        moves, self._moves = sorted(self._moves), []
        return max(accumulate(change for _, change in moves), default=0)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one client, and its name and version in the table."""

    client: str
    version: str
    plan: PerfPlan
    in_flight: int

    @property
    def name(self) -> str:
        """Return the name of the run on the screen."""
        return f"{self.client}, {self.in_flight} in flight"


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that are run on the same cluster."""

    rows: Sequence[Row]
    retain: int | None

    @property
    def topics(self) -> list[str]:
        """Return the topics, one for each row."""
        return [f"run-{index}" for index in range(len(self.rows))]


def parts_of(plans: Sequence[PerfPlan], peers: Sequence[Peer], kafka: str | None) -> list[Part]:
    """Divide the rows by cluster: on real Kafka between a stock broker and a patched one."""
    ours = [
        Row(_our_name(plan), aioidem.__version__, plan, in_flight)
        for plan in plans
        for in_flight in plan.in_flight
    ]
    others = [Row(peer.name, peer.version(kafka), plans[0], peer.in_flight) for peer in peers]
    retain = plans[0].retain
    if kafka is None:
        return [Part([*ours, *others], retain)]
    narrow = [row for row in ours if row.in_flight <= STOCK_WINDOW]
    wide = [row for row in ours if row.in_flight > STOCK_WINDOW]
    return [part for part in (Part([*narrow, *others], None), Part(wide, retain)) if part.rows]


def _our_name(plan: PerfPlan) -> str:
    """Return aioidem's name in the table, which says how batches were sealed."""
    return OURS if plan.properties["late.sealing"] == "false" else LATE


@asynccontextmanager
async def embedded(part: Part, rtt: float, bandwidth: float | None) -> AsyncIterator[Target]:
    """Start an embedded cluster."""
    retain = part.retain or STOCK_WINDOW
    async with EmbeddedCluster(brokers=1, retain=retain, rtt=rtt, bandwidth=bandwidth) as cluster:
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
async def real(
    part: Part, rtt: float, bandwidth: float | None, kafka: str
) -> AsyncIterator[Target]:
    """Start a real broker behind a proxy."""
    async with KafkaCluster(kafka, retain=part.retain, rtt=rtt, bandwidth=bandwidth) as cluster:
        for topic in (WARM_UP, *part.topics):
            await cluster.create_topic(topic)
        yield Target(
            cluster.bootstrap_servers,
            tuple(part.topics),
            rtt_ms=rtt * 1000,
            max_span=FlightCount(cluster.proxy).take,
        )


async def measure(
    plans: Sequence[PerfPlan], peers: Sequence[Peer], kafka: str | None, bandwidth: float | None
) -> list[RunResult]:
    """Run every row: aioidem with each window of each plan, and the other clients.

    ``bandwidth`` is that of the link each way, in bytes per second; None is unlimited.
    """
    results: list[RunResult] = []
    with choose_screen() as screen:
        for part in parts_of(plans, peers, kafka):
            rtt = plans[0].rtt
            async with (
                embedded(part, rtt, bandwidth)
                if kafka is None
                else real(part, rtt, bandwidth, kafka)
            ) as target:
                if kafka is not None:
                    screen.begin(WARM_UP, part.rows[0].plan.duration)
                    screen.end(WARM_UP, await run_row(part.rows[0], target, WARM_UP, kafka))
                for row, topic in zip(part.rows, part.topics, strict=True):
                    screen.begin(row.name, row.plan.duration)
                    result = await run_row(row, target, topic, kafka)
                    screen.end(row.name, result)
                    for line in render.failures(row.name, result):
                        screen.trouble(line)
                    results.append(result)
        screen.table(results)
    return results


async def run_row(row: Row, target: Target, topic: str, kafka: str | None) -> RunResult:
    """Run the client of one row, and return its result."""
    label = RunLabel(
        client=row.client,
        version=row.version,
        in_flight=row.in_flight,
        record_size=row.plan.record_size,
    )
    job = Job(row.client, target.bootstrap, topic, row.plan, row.in_flight, kafka, target.connector)
    # Java's producer has its own process in any case.
    apart = kafka is not None and row.client != JAVA
    counted = await (in_thread(run_child) if apart else RUNS[row.client])(job)
    span = None if target.max_span is None else target.max_span(topic)
    result = counted.tally.result(label, window=counted.window, rtt_ms=target.rtt_ms, max_span=span)
    return replace(result, steady_records_per_sec=counted.steady)


def ratio_lines(results: Sequence[RunResult]) -> list[str]:
    """Compare each of aioidem's rows with each other client's, by steady rate."""
    ours = [row for row in results if row.label.client in (OURS, LATE)]
    peers = [row for row in results if row.label.client not in (OURS, LATE)]
    lines: list[str] = []
    for row in ours:
        ratios = [
            f"{row.steady_records_per_sec / peer.steady_records_per_sec:.3f} x {peer.label.client}"
            for peer in peers
            if row.steady_records_per_sec and peer.steady_records_per_sec
        ]
        if ratios:
            lines.append(
                f"{row.label.client}, {row.label.in_flight} in flight: {', '.join(ratios)}"
            )
    return lines


def markdown(results: Sequence[RunResult]) -> list[str]:
    """Format README's table, ordered by rate, and another one with the rows that README lacks.

    The batches in flight are as counted; rates are compared with aiokafka's.
    """
    base = {row.label.client: row.steady_records_per_sec for row in results}.get(AIOKAFKA)
    tables: list[list[tuple[float, str]]] = [[], []]
    for result in results:
        name, shown = _name(result.label)
        rate, flown = result.steady_records_per_sec, result.max_span or 0
        allowed = result.label.in_flight
        flight = f"{flown}" if flown >= allowed else f"{flown} (of {allowed} allowed)"
        shown_rate = "-" if rate is None else f"{rate:,.1f}"
        against = f"{rate / base:,.1f} x" if rate and base else "-"
        line = f"| {name} | {flight} | {shown_rate} | {against} |"
        tables[0 if shown else 1].append((rate or 0.0, line))
    lines = []
    for rows in filter(None, tables):
        lines += ["", "| client | batches in flight | records/s | against aiokafka |"]
        lines += ["|---|---|---|---|", *(line for _, line in sorted(rows))]
    return lines


def _name(label: RunLabel) -> tuple[str, bool]:
    """Return a row's name in README, and whether README has it."""
    width = label.in_flight
    short = ".".join(label.version.split(".")[:2])
    match label.client:
        case _ if label.client == OURS and width == STOCK_WINDOW:
            return f"aioidem, window {width} (every broker of today)", True
        case _ if label.client == OURS and width > STOCK_WINDOW:
            patched = f"KIP-1269; the broker patched to retain {width}"
            return f"aioidem, window {width} ({patched})", True
        case _ if label.client == OURS:
            return f"aioidem, window {width}", False
        case _ if label.client == LATE:
            name = f"aioidem, its defaults: window {width}, and batches grow while they wait"
            return name, width == STOCK_WINDOW
        case _ if label.client == DEFAULTS:
            return f"aiokafka {short}, its defaults (not idempotent)", True
        case _ if label.client == JAVA:
            return f"Java's producer {label.version}", True
    return f"{label.client} {short}", True


def described(flags: argparse.Namespace, results: Sequence[RunResult]) -> str:
    """Describe what was run, with the versions of all parties."""
    versions = {row.label.client.partition(",")[0]: row.label.version for row in results}
    cluster = f"Kafka {flags.kafka}" if flags.kafka else "the embedded cluster"
    clients = ", ".join(f"{name} {number}" for name, number in versions.items())
    mbit = "" if flags.mbit is None else f", {flags.mbit:g} Mbit/s"
    return f"{cluster}, round trip {flags.rtt:g} ms{mbit}; {clients}; Python {python_version()}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the script's flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rtt", type=float, default=150.0, metavar="MS")
    parser.add_argument("--mbit", type=float, metavar="MBIT", help="bandwidth each way, in Mbit/s")
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
    parser.add_argument("--markdown", action="store_true", help="README's table, too")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE.html")
    for hidden in ("--child", "--bootstrap", "--topic"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def peers_of(flags: argparse.Namespace) -> list[Peer]:
    """Return the other clients: those named, or with `--all` those installed.

    Raises:
        UsageError: a named client cannot be run.
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
    """Return aioidem's plans: sealing at batch.size and, on request, late sealing.

    Raises:
        UsageError: a flag is malformed or out of range.
    """
    plans = [_plan(flags, "false", flags.in_flight)]
    if flags.late_sealing:
        # No other client is compared with one batch in flight.
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
    """Measure and print; return 0 if every client had every record acknowledged."""
    flags = parse(argv)
    if flags.child is not None:
        print(anyio.run(be_child, flags, backend_options=loop_options()).printed())
        return 0
    try:
        peers = peers_of(flags)
        plans = plans_of(flags)
    except UsageError as error:
        print(f"long_link.py: {error}", file=sys.stderr)
        return 2
    if flags.mbit is not None and not 0 < flags.mbit < math.inf:
        print(f"long_link.py: --mbit {flags.mbit:g} is not above 0", file=sys.stderr)
        return 2
    bandwidth = None if flags.mbit is None else flags.mbit * 1e6 / 8
    results = anyio.run(
        measure, plans, peers, flags.kafka, bandwidth, backend_options=loop_options()
    )
    print(described(flags, results))
    for line in [*ratio_lines(results), *(markdown(results) if flags.markdown else ())]:
        print(line)
    if flags.json is not None:
        render.write_json(flags.json, results)
    if flags.report is not None:
        from aioidem._load.report import write_report

        write_report(flags.report, results)
    return 0 if all(row.complete for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())

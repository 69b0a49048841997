"""`aioidem perf`: measure a producer in one or more runs, one after the other, on one cluster.

The runs differ in the limit on requests in flight. Each run reports rates, latencies, and a
partition's span and window, which are numbers of batches. The *span* counts the batches from the
oldest one with an unknown outcome up to the newest one sent, both included. The *window* is the
limit on the span; the producer learns the window from the broker's answers (KIP-1269).

Invariants:

- Each run has its own producer and, on the embedded cluster, its own topic. So no run starts with
  the window that an earlier run has learned, or counts the batches of an earlier run.
- The first signal (SIGINT or SIGTERM) ends the current run, and keeps its measurements. Records in
  flight have `INTERRUPTED_CLOSE` seconds to get an outcome. The second signal ends everything at
  once.
- The flags were checked before (`plan`), and are not checked here. The outcomes are those that the
  producer reports. The span is counted by the broker on the embedded cluster, and otherwise by the
  producer.

Rejected: one producer for all runs, whose limit on requests in flight is changed in between (a run
would start with the window that the run before had learned); a new cluster per run (it takes time,
and changes nothing).
"""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.abc

from aioidem import __version__
from aioidem._config import ProducerConfig
from aioidem._load import render
from aioidem._load.load import Clock, Journal, LoadProducer, Workload, run_load
from aioidem._load.measure import RunLabel, RunResult, Tally
from aioidem._load.plan import PerfPlan
from aioidem._load.properties import load_files
from aioidem._load.screen import Screen, choose_screen
from aioidem._network.transport import Connector
from aioidem._producer.metrics import ProducerStatistics
from aioidem._producer.native import Producer
from aioidem.broker import EmbeddedCluster
from aioidem.errors import KafkaError

__all__ = [
    "Interrupt",
    "PerfOutcome",
    "PerfProducer",
    "Target",
    "loop_options",
    "open_target",
    "perf",
    "perform",
    "run_once",
    "run_tallied",
    "write_files",
]

INTERRUPTED_CLOSE = 5.0
"""How many seconds a run waits for records in flight after a signal or an error."""
_FLUSH_MARGIN = 10.0


class PerfProducer(LoadProducer, Protocol):
    """The methods of `aioidem.Producer` that a run uses."""

    async def start(self) -> object:
        """Connect to the cluster."""

    async def close(self, timeout: float | None = None) -> object:
        """Wait at most `timeout` seconds for every record's outcome, then release everything."""

    def statistics(self) -> ProducerStatistics:
        """Return the current counters, among them those of each partition's batches in flight."""
        ...


ProducerFactory = Callable[[ProducerConfig, Connector | None], PerfProducer]


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster and the topics that the runs write to.

    Attributes:
        topics: one per run.
        rtt_ms: the round trip of the embedded cluster's links; None on a real cluster.
        max_span: returns the largest span of a topic's partitions, as the broker counted it: the
            number of batches from the oldest without an answer to the newest; None on a real
            cluster.
    """

    bootstrap: str
    topics: tuple[str, ...]
    connector: Connector | None = None
    rtt_ms: float | None = None
    max_span: Callable[[str], int] | None = None


@dataclass(frozen=True, slots=True)
class PerfOutcome:
    """The results, and the number of the signal that ended the runs early, if one did."""

    results: tuple[RunResult, ...]
    signal_number: int | None = None

    @property
    def exit_status(self) -> int:
        """128 + the signal's number; without a signal 0 if all runs are complete, else 1."""
        if self.signal_number is not None:
            return 128 + self.signal_number
        return 0 if self.results and all(row.complete for row in self.results) else 1


class Interrupt:
    """The effect of signals: the first one cancels the current run, the second all runs."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.everything = anyio.CancelScope()
        self._run = anyio.CancelScope()

    async def watch(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Deliver each SIGINT and SIGTERM, until this task is cancelled."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                self.deliver(number)

    def deliver(self, number: int) -> None:
        """Cancel the current run at the first signal, and everything at the second."""
        if self.number is None:
            self.number = number
            self._run.cancel()
        else:
            self.everything.cancel()

    def run_scope(self) -> anyio.CancelScope:
        """Return a cancel scope for the next run, already cancelled if a signal came before."""
        self._run = anyio.CancelScope()
        if self.number is not None:
            self._run.cancel()
        return self._run


def perf(plan: PerfPlan) -> int:
    """Run the plan, show its results and write its files.

    Returns:
        The exit status.

    Raises:
        UsageError: a file that an option names cannot be used.
    """
    load_files(plan.config(plan.in_flight[0], plan.bootstrap or "localhost:9092"))
    with choose_screen(plan.reporting_interval) as screen:
        try:
            outcome = anyio.run(perform, plan, screen, backend_options=loop_options())
        except OSError as error:  # the embedded cluster found no port to listen on
            screen.trouble(f"aioidem perf: {error}")
            return 1
        if outcome.results:
            screen.table(outcome.results)
        written = write_files(plan, outcome.results, screen)
    return outcome.exit_status if written else outcome.exit_status or 1


def loop_options() -> dict[str, object]:
    """Return options for `anyio.run` that use uvloop if it is installed.

    asyncio's own event loop is a few per cent slower with many batches in flight.
    """
    return {"use_uvloop": importlib.util.find_spec("uvloop") is not None}


def write_files(plan: PerfPlan, results: Sequence[RunResult], screen: Screen) -> bool:
    """Write the files that the plan asks for, and return whether that succeeded.

    An error is shown on the screen.
    """
    try:
        if plan.json_file is not None:
            render.write_json(plan.json_file, results)
        if plan.report_file is not None:
            # Imported only here: the module needs plotly, which may be missing (extra `report`).
            from aioidem._load.report import write_report

            write_report(plan.report_file, results)
    except OSError as error:
        screen.trouble(f"aioidem perf: {error.filename or 'output'}: {error.strerror or error}")
        return False
    return True


async def perform(plan: PerfPlan, screen: Screen) -> PerfOutcome:
    """Make the runs of a plan, until a signal comes, and return their results.

    Raises:
        OSError: the embedded cluster cannot listen.
    """
    interrupt = Interrupt()
    results: list[RunResult] = []
    trouble: OSError | None = None
    async with anyio.create_task_group() as tasks:
        await tasks.start(interrupt.watch)
        with interrupt.everything:
            # The error is caught inside the task group, which would wrap it in an ExceptionGroup.
            try:
                async with open_target(plan) as target:
                    await _run_each(plan, target, screen, interrupt, results)
            except OSError as error:
                trouble = error
        tasks.cancel_scope.cancel()
    if trouble is not None:
        raise trouble
    return PerfOutcome(tuple(results), interrupt.number)


@asynccontextmanager
async def open_target(plan: PerfPlan) -> AsyncIterator[Target]:
    """Yield the servers that the plan names, or an embedded cluster with a new topic per run.

    Raises:
        OSError: the embedded cluster cannot listen.
    """
    if plan.bootstrap is not None:
        yield Target(plan.bootstrap, (plan.topic,) * len(plan.in_flight))
        return
    cluster = EmbeddedCluster(brokers=plan.brokers, retain=plan.retain, rtt=plan.rtt)
    async with cluster:
        topics = tuple(f"{plan.topic}-{run}" for run in range(1, len(plan.in_flight) + 1))
        for topic in topics:
            cluster.create_topic(topic, partitions=plan.partitions)

        def max_span(topic: str) -> int:
            return max(cluster.max_span(topic, index) for index in range(plan.partitions))

        yield Target(
            cluster.bootstrap_servers,
            topics,
            connector=cluster.connector,
            rtt_ms=plan.rtt * 1000,
            max_span=max_span,
        )


async def _run_each(
    plan: PerfPlan,
    target: Target,
    screen: Screen,
    interrupt: Interrupt,
    results: list[RunResult],
) -> None:
    for in_flight, topic in zip(plan.in_flight, target.topics, strict=True):
        result = await run_once(plan, target, topic, in_flight, screen, interrupt)
        results.append(result)
        # If a run sent no record, the cluster cannot be reached, and the next run would only wait
        # for it again.
        if interrupt.number is not None or result.records == 0:
            return


def _make_producer(config: ProducerConfig, connector: Connector | None) -> PerfProducer:
    return Producer(config=config, connector=connector)


async def run_once(
    plan: PerfPlan,
    target: Target,
    topic: str,
    in_flight: int,
    screen: Screen,
    interrupt: Interrupt,
    *,
    make_producer: ProducerFactory = _make_producer,
    clock: Clock = time.perf_counter,
) -> RunResult:
    """Make one run with a producer of its own; a KafkaError becomes the result's `failure`."""
    _, result = await run_tallied(
        plan, target, topic, in_flight, screen, interrupt, make_producer=make_producer, clock=clock
    )
    return result


async def run_tallied(
    plan: PerfPlan,
    target: Target,
    topic: str,
    in_flight: int,
    screen: Screen,
    interrupt: Interrupt,
    *,
    make_producer: ProducerFactory = _make_producer,
    clock: Clock = time.perf_counter,
    journal: Journal | None = None,
) -> tuple[Tally, RunResult]:
    """Make one run; return its result, and its tally to merge with those of other processes.

    If there is a journal, the journal makes the records, instead of the plan's values, and stores
    the outcome of each.
    """
    config = plan.config(in_flight, target.bootstrap)
    name = f"{in_flight} in flight"
    label = RunLabel(
        client="aioidem", version=__version__, in_flight=in_flight, record_size=plan.record_size
    )
    producer = make_producer(config, target.connector)
    tally = Tally(clock())
    clean = False
    with interrupt.run_scope():
        try:
            await producer.start()
            await producer.partitions_for(topic)
            tally = Tally(clock())
            clean = await _measured_load(
                plan, config, producer, topic, name, tally, screen, clock, journal
            )
        except KafkaError as error:
            tally.note_failure(error)
    statistics = producer.statistics()
    await _close(producer, None if clean else INTERRUPTED_CLOSE, tally)
    result = _result(label, tally, target, topic, statistics)
    _show(plan, name, result, statistics, screen)
    return tally, result


async def _measured_load(
    plan: PerfPlan,
    config: ProducerConfig,
    producer: PerfProducer,
    topic: str,
    name: str,
    tally: Tally,
    screen: Screen,
    clock: Clock,
    journal: Journal | None,
) -> bool:
    """Send the load while showing its progress; return whether it ended without an error."""
    work = Workload(
        topic=topic,
        values=plan.values,
        warmup_records=plan.warmup_records,
        num_records=plan.num_records,
        duration=plan.duration,
        throughput=plan.throughput,
        transaction_duration=plan.transaction_duration,
        # Longer than any record can take: a batch that was sent and not answered has
        # `request_timeout` more after its deadline. So `flush` ends because every record has an
        # outcome, and never by its timeout.
        flush_timeout=config.delivery_timeout + config.request_timeout + _FLUSH_MARGIN,
    )
    screen.begin(name, plan.num_records if plan.duration is None else plan.duration)
    failure: KafkaError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_show_progress, plan, name, tally, screen, clock)
        failure = await run_load(producer, work, tally, clock, journal)
        tasks.cancel_scope.cancel()
    if failure is not None:
        tally.note_failure(failure)
    return failure is None


async def _show_progress(
    plan: PerfPlan, name: str, tally: Tally, screen: Screen, clock: Clock
) -> None:
    while True:
        await anyio.sleep(screen.interval)
        progress = tally.progress(clock())
        done = progress.acked if plan.duration is None else min(progress.elapsed, plan.duration)
        screen.update(name, progress, done)


async def _close(producer: PerfProducer, timeout: float | None, tally: Tally) -> None:
    try:
        await producer.close(timeout=timeout)
    except KafkaError as error:
        tally.note_failure(error)


def _result(
    label: RunLabel, tally: Tally, target: Target, topic: str, statistics: ProducerStatistics
) -> RunResult:
    partitions = [entry for entry in statistics.partitions if entry.topic == topic]
    rtt_ms = target.rtt_ms
    if rtt_ms is None:
        measured = [entry.rtt for entry in statistics.connections if entry.rtt is not None]
        rtt_ms = 1000 * max(measured) if measured else None
    if target.max_span is not None:
        max_span: int | None = target.max_span(topic)
    else:
        max_span = max((entry.max_span for entry in partitions), default=None)
    return tally.result(
        label,
        window=max((entry.window for entry in partitions), default=None),
        rtt_ms=rtt_ms,
        max_span=max_span,
    )


def _show(
    plan: PerfPlan, name: str, result: RunResult, statistics: ProducerStatistics, screen: Screen
) -> None:
    screen.end(name, result)
    if result.after_warmup is not None:
        screen.note(render.warmup_line(name, result.after_warmup))
    elif plan.warmup_records:
        screen.note(render.cold_line(name, plan.warmup_records, result))
    if plan.print_metrics:
        for line in render.statistics_lines(statistics):
            screen.note(line)
    for line in render.failures(name, result):
        screen.trouble(f"aioidem perf: {line}")

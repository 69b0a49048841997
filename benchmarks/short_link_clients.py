"""The process of one Python client for one run of `short_link.py`.

    python benchmarks/short_link_clients.py '{"client": "aiokafka", "way": "await", ...}'

The argument has the fields of `short_link_job.Job`. The last line of the output is the figures as
JSON, or ``{"cannot": WHY}`` if the client cannot do what the job asks.

Each client is idempotent with acks=all, and otherwise uses its defaults. All of them send the same
records, look at the clock once per 1,000 queued records, and count each acknowledgement in a
callback where the client has one.

`paced` is an open loop: the records of each millisecond are due at its beginning, whether earlier
ones were acknowledged or not, and a latency counts from that time (so a client that stalls is
charged for the records that it kept waiting: no coordinated omission). How late the schedule itself
was kept is a figure of its own, because asyncio's timers round up to a millisecond.

Rejected: the adapters of `clients.py` (they print a line for each record, which costs more than
the client does); a histogram that is updated per record (likewise; it is filled at the end).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from short_link_job import CannotError, Figures, Job, Record

BULK = 10_000
TICK = 0.001
ENDING = 60.0
HIGHEST_US = 600_000_000
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}

Done = Callable[[BaseException | None], None]


class Load:
    """The counts of one measurement, and the times at which it begins and ends.

    `sent` is changed by the task that sends only, `acked` by the client's callbacks only, so that
    no lock is needed where these are in different threads.

    Args:
        warm_up: Seconds until the measurement begins.
        seconds: Seconds that it lasts.
        limit: How many records may be unacknowledged.
    """

    def __init__(self, warm_up: float, seconds: float, limit: int) -> None:
        self.sent = 0
        self.acked = 0
        self.error: BaseException | None = None
        self.latencies = array("d")
        self.begin = time.perf_counter() + warm_up
        self.end = self.begin + seconds
        self._limit = limit
        self._at_begin: tuple[float, float, int] | None = None
        self._at_end: tuple[float, float, int] | None = None

    def over(self) -> bool:
        """Return whether the time is over.

        The first call after the warm-up begins the measurement, and the first one that returns True
        ends it: what was sent before and is acknowledged during it makes up for what is still
        unacknowledged at its end.

        Raises:
            BaseException: The error of a record that failed.
        """
        if self.error is not None:
            raise self.error
        now = time.perf_counter()
        if self._at_begin is None and now >= self.begin:
            self._at_begin = self._now()
        if self._at_end is None and now >= self.end:
            self._at_end = self._now()
        return now >= self.end

    def _now(self) -> tuple[float, float, int]:
        return time.perf_counter(), time.process_time(), self.acked

    @property
    def full(self) -> bool:
        """Return whether as many records are unacknowledged as may be."""
        return self.sent - self.acked >= self._limit

    @property
    def half_full(self) -> bool:
        """Return whether more than half as many records are unacknowledged as may be."""
        return (self.sent - self.acked) * 2 > self._limit and self.error is None

    def done(self, outcome: Any) -> None:
        """Count a record by its future or delivery."""
        self.ended(outcome.exception())

    def ended(self, error: BaseException | None) -> None:
        """Count a record that was acknowledged, or keep the error of one that failed."""
        if error is not None:
            self.error = error
        self.acked += 1

    def timed(self, due: float, error: BaseException | None) -> None:
        """Count a record, with its latency since the time at which it was due."""
        if due >= self.begin:
            self.latencies.append(time.perf_counter() - due)
        self.ended(error)

    def result(self) -> tuple[int, float, float]:
        """Return the number of records, and the seconds and CPU seconds that they took.

        Raises:
            CannotError: No record was acknowledged during the measurement.
        """
        if self.error is not None:
            raise self.error
        began, cpu_before, before = self._at_begin or self._now()
        ended, cpu, acked = self._at_end or self._now()
        if acked == before:
            raise CannotError("no record was acknowledged within the measured time")
        return acked - before, ended - began, cpu - cpu_before


def _of_outcome(done: Done) -> Callable[[Any], None]:
    """Return a callback for a future or delivery that passes its error on to `done`."""

    def ended(outcome: Any) -> None:
        done(outcome.exception())

    return ended


class Client:
    """An adapter: how one client sends, in each of the ways."""

    package = ""
    awaits = True
    bulk_call = False

    def __init__(self, job: Job) -> None:
        self.job = job
        self.topic = job.topic
        self.records = job.records()

    def form(self) -> str:
        """Return which form of the client runs, where there are two."""
        return ""

    async def open(self) -> None:
        """Connect."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the client; every record has ended."""
        raise NotImplementedError

    async def send(self, value: bytes, key: bytes | None) -> None:
        """Send a record and wait until it is acknowledged."""
        raise NotImplementedError

    async def queue_chunk(self, load: Load) -> None:
        """Queue all of `records` once, each with a callback that counts it."""
        raise NotImplementedError

    async def queue_some(self, records: Sequence[Record], done: Done) -> None:
        """Queue these records with this callback."""
        raise NotImplementedError

    async def send_bulk(self, load: Load) -> None:
        """Hand a large number of records to the client in one call, and count them."""
        raise NotImplementedError

    async def turn(self, seconds: float = 0.0) -> None:
        """Let the client work, and its callbacks run."""
        await asyncio.sleep(seconds)

    async def flush(self) -> None:
        """Wait until every record has ended."""
        raise NotImplementedError


class Aioidem(Client):
    """aioidem's own API."""

    package = "aioidem"
    bulk_call = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import aioidem

        self._errors = aioidem.errors
        codec: Any = job.codec
        self._producer: Any = aioidem.Producer(job.bootstrap, compression_type=codec)
        several = BULK // len(self.records)
        self._values: list[Any] = [value for value, _ in self.records] * several
        self._table: Any = None
        if job.way == "table":
            self._table = _arrow_table(self.records * several, keyed=job.keyed)
        elif job.way == "bulk" and job.keyed:
            self._values = [aioidem.Record(value, key) for value, key in self.records] * several
        self._calls: deque[asyncio.Task[None]] = deque()

    def form(self) -> str:
        """Return whether the hot path is compiled."""
        import aioidem

        return str(aioidem.build_info().hot_path)

    async def open(self) -> None:
        """Connect."""
        await self._producer.start()

    async def close(self) -> None:
        """Close the producer."""
        await self._producer.close(ENDING)

    async def send(self, value: bytes, key: bytes | None) -> None:
        """Send a record and wait until it is acknowledged."""
        await self._producer.send(self.topic, value, key=key)

    async def queue_chunk(self, load: Load) -> None:
        """Queue all of `records` once."""
        send, topic, done = self._producer.send_nowait, self.topic, load.done
        for value, key in self.records:
            try:
                delivery = send(topic, value, key=key)
            except self._errors.BufferFullError:
                delivery = await self._when_there_is_room(value, key)
            delivery.add_done_callback(done)
        load.sent += len(self.records)

    async def _when_there_is_room(self, value: bytes, key: bytes | None) -> Any:
        while True:
            await self._producer.wait_for_room()
            with contextlib.suppress(self._errors.BufferFullError):
                return self._producer.send_nowait(self.topic, value, key=key)

    async def queue_some(self, records: Sequence[Record], done: Done) -> None:
        """Queue these records with this callback."""
        ended = _of_outcome(done)
        for value, key in records:
            try:
                delivery = self._producer.send_nowait(self.topic, value, key=key)
            except self._errors.BufferFullError:
                delivery = await self._when_there_is_room(value, key)
            delivery.add_done_callback(ended)

    async def send_bulk(self, load: Load) -> None:
        """Send 10,000 records in one call, of which two are open at a time."""

        async def call() -> None:
            if self._table is None:
                await self._producer.send_many(self.topic, self._values)
            else:
                key = "key" if self.job.keyed else None
                await self._producer.send_table(self.topic, self._table, key=key)
            load.acked += len(self._values)

        self._calls.append(asyncio.create_task(call()))
        load.sent += len(self._values)
        if len(self._calls) > 1:
            await self._calls.popleft()

    async def flush(self) -> None:
        """Wait until every record has ended."""
        while self._calls:
            await self._calls.popleft()
        await self._producer.flush(ENDING)


def _arrow_table(records: Sequence[Record], *, keyed: bool) -> Any:
    """Return the records as a table, whose making is not measured."""
    try:
        import pyarrow as pa
    except ImportError:
        raise CannotError("pyarrow is not installed") from None
    columns: dict[str, Any] = {"value": [value for value, _ in records]}
    if keyed:
        columns["key"] = [key for _, key in records]
    return pa.table(columns)


class Aiokafka(Client):
    """aiokafka, or aioidem's drop-in for it."""

    package = "aiokafka"
    bulk_call = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._producer: Any = None
        self._partitions: list[int] = []
        self._turn = 0

    def form(self) -> str:
        """Return whether the C extension is in use."""
        from aiokafka.record import default_records

        name = default_records.DefaultRecordBatchBuilder.__module__
        return "compiled" if "_crecords" in name else "pure"

    def _class(self) -> Any:
        from aiokafka import AIOKafkaProducer

        return AIOKafkaProducer

    async def open(self) -> None:
        """Connect."""
        codec = None if self.job.codec == "none" else self.job.codec
        self._producer = self._class()(
            bootstrap_servers=self.job.bootstrap, enable_idempotence=True, compression_type=codec
        )
        await self._producer.start()

    async def close(self) -> None:
        """Close the producer."""
        await self._producer.stop()

    async def send(self, value: bytes, key: bytes | None) -> None:
        """Send a record and wait until it is acknowledged."""
        await self._producer.send_and_wait(self.topic, value, key=key)

    async def queue_chunk(self, load: Load) -> None:
        """Queue all of `records` once."""
        send, topic, done = self._producer.send, self.topic, load.done
        for value, key in self.records:
            (await send(topic, value, key=key)).add_done_callback(done)
        load.sent += len(self.records)

    async def queue_some(self, records: Sequence[Record], done: Done) -> None:
        """Queue these records with this callback."""
        ended = _of_outcome(done)
        for value, key in records:
            future = await self._producer.send(self.topic, value, key=key)
            future.add_done_callback(ended)

    async def send_bulk(self, load: Load) -> None:
        """Fill one batch, send it to the next partition, and count its records when it ends."""
        if self.job.keyed:
            raise CannotError("send_batch takes the partition, so keys choose none")
        if not self._partitions:
            self._partitions = sorted(await self._producer.partitions_for(self.topic))
        batch, count = self._producer.create_batch(), 0
        for value, _ in self.records:
            if batch.append(key=None, value=value, timestamp=None) is None:
                break
            count += 1
        self._turn += 1
        partition = self._partitions[self._turn % len(self._partitions)]
        future = await self._producer.send_batch(batch, self.topic, partition=partition)

        def done(outcome: Any) -> None:
            load.error = outcome.exception() or load.error
            load.acked += count

        future.add_done_callback(done)
        load.sent += count

    async def flush(self) -> None:
        """Wait until every record has ended."""
        await self._producer.flush()


class DropIn(Aiokafka):
    """aioidem under aiokafka's names."""

    package = "aioidem"

    def form(self) -> str:
        """Return whether the hot path is compiled."""
        import aioidem

        return f"drop-in, {aioidem.build_info().hot_path}"

    def _class(self) -> Any:
        from aioidem.producer import AIOKafkaProducer

        return AIOKafkaProducer


def _librdkafka(job: Job) -> dict[str, Any]:
    return {
        "bootstrap.servers": job.bootstrap,
        "enable.idempotence": True,
        "compression.type": job.codec,
        "log_level": 0,
    }


class ConfluentKafka(Client):
    """confluent-kafka (librdkafka), whose callbacks run when the sending thread polls."""

    package = "confluent-kafka"
    awaits = False
    bulk_call = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._messages: list[dict[str, Any]] = [
            {"value": value, "key": key} if job.keyed else {"value": value}
            for value, key in self.records
        ] * (BULK // len(self.records))

    async def open(self) -> None:
        """Connect."""
        from confluent_kafka import KafkaException, Producer

        self._failure = KafkaException
        self._producer: Any = Producer(_librdkafka(self.job))
        self._producer.list_topics(self.topic, timeout=ENDING)

    async def close(self) -> None:
        """Close the producer."""
        self._producer.flush(ENDING)

    def _callback(self, load: Load) -> Callable[[Any, Any], None]:
        def done(error: Any, _message: Any) -> None:
            if error is not None:
                load.error = self._failure(error)
            load.acked += 1

        return done

    async def send(self, value: bytes, key: bytes | None) -> None:
        """Send a record and poll until it is acknowledged."""
        ended: list[Any] = []
        self._producer.produce(
            self.topic, value, key, on_delivery=lambda error, _message: ended.append(error)
        )
        while not ended:
            self._producer.poll(1.0)
        if ended[0] is not None:
            raise self._failure(ended[0])

    async def queue_chunk(self, load: Load) -> None:
        """Queue all of `records` once."""
        self._produce(self.records, self._callback(load))
        load.sent += len(self.records)

    async def queue_some(self, records: Sequence[Record], done: Done) -> None:
        """Queue these records with this callback."""

        def ended(error: Any, _message: Any) -> None:
            done(None if error is None else self._failure(error))

        self._produce(records, ended)

    def _produce(self, records: Sequence[Record], done: Callable[[Any, Any], None]) -> None:
        """Queue records, and serve the callbacks every 100 records and while there is no room."""
        produce, poll, topic = self._producer.produce, self._producer.poll, self.topic
        for index, (value, key) in enumerate(records, 1):
            while True:
                try:
                    produce(topic, value, key, on_delivery=done)
                except BufferError:
                    poll(0.01)
                    continue
                break
            if index % 100 == 0:
                poll(0)

    async def send_bulk(self, load: Load) -> None:
        """Hand over 10,000 messages in one call, and what did not fit again."""
        done, left = self._callback(load), self._messages
        while left:
            taken = self._producer.produce_batch(self.topic, left, on_delivery=done)
            load.sent += taken
            if taken < len(left):
                left = [each for each in left if each.pop("_error", None) is not None]
                self._producer.poll(0.01)
            else:
                break
        self._producer.poll(0)

    async def turn(self, seconds: float = 0.0) -> None:
        """Serve the callbacks for this time."""
        self._producer.poll(seconds)

    async def flush(self) -> None:
        """Wait until every record has ended."""
        self._producer.flush(ENDING)


class ConfluentAio(Client):
    """confluent-kafka's AIOProducer, which buffers 1,000 records or a second by default."""

    package = "confluent-kafka"

    async def open(self) -> None:
        """Connect."""
        try:
            from confluent_kafka.aio import AIOProducer
        except ImportError as error:
            raise CannotError("this version has no AIOProducer") from error
        self._producer: Any = AIOProducer(_librdkafka(self.job))

    async def close(self) -> None:
        """Close the producer."""
        await self._producer.close()

    async def send(self, value: bytes, key: bytes | None) -> None:
        """Send a record and wait until it is acknowledged."""
        await (await self._producer.produce(self.topic, value, key))

    async def queue_chunk(self, load: Load) -> None:
        """Queue all of `records` once."""
        produce, topic, done = self._producer.produce, self.topic, load.done
        for value, key in self.records:
            (await produce(topic, value, key)).add_done_callback(done)
        load.sent += len(self.records)

    async def queue_some(self, records: Sequence[Record], done: Done) -> None:
        """Queue these records with this callback."""
        ended = _of_outcome(done)
        for value, key in records:
            future = await self._producer.produce(self.topic, value, key)
            future.add_done_callback(ended)

    async def flush(self) -> None:
        """Wait until every record has ended."""
        await self._producer.flush()


class KafkaPython(Client):
    """kafka-python, whose callbacks run in its own thread."""

    package = "kafka-python"
    awaits = False

    async def open(self) -> None:
        """Connect."""
        from kafka import KafkaProducer

        codec = None if self.job.codec == "none" else self.job.codec
        self._producer: Any = KafkaProducer(
            bootstrap_servers=self.job.bootstrap,
            enable_idempotence=True,
            acks="all",
            compression_type=codec,
        )
        self._producer.partitions_for(self.topic)

    async def close(self) -> None:
        """Close the producer."""
        self._producer.close(timeout=ENDING)

    async def send(self, value: bytes, key: bytes | None) -> None:
        """Send a record and block until it is acknowledged."""
        self._producer.send(self.topic, value, key).get(timeout=ENDING)

    async def queue_chunk(self, load: Load) -> None:
        """Queue all of `records` once."""
        send, topic = self._producer.send, self.topic

        def done(_metadata: Any) -> None:
            load.acked += 1

        for value, key in self.records:
            future = send(topic, value, key)
            future.add_callback(done)
            future.add_errback(load.ended)
        load.sent += len(self.records)

    async def queue_some(self, records: Sequence[Record], done: Done) -> None:
        """Queue these records with this callback."""

        def ended(_metadata: Any) -> None:
            done(None)

        for value, key in records:
            future = self._producer.send(self.topic, value, key)
            future.add_callback(ended)
            future.add_errback(done)

    async def turn(self, seconds: float = 0.0) -> None:
        """Let the client's thread work."""
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else runs in this thread

    async def flush(self) -> None:
        """Wait until every record has ended."""
        self._producer.flush(timeout=ENDING)


ADAPTERS: dict[str, type[Client]] = {
    "aioidem": Aioidem,
    "aioidem-pure": Aioidem,
    "aioidem-drop-in": DropIn,
    "aiokafka": Aiokafka,
    "aiokafka-pure": Aiokafka,
    "confluent-kafka": ConfluentKafka,
    "confluent-aio": ConfluentAio,
    "kafka-python": KafkaPython,
}


async def run_await(client: Client, load: Load, tasks: int) -> None:
    """Send with several tasks, each of which awaits its record before it sends the next one."""
    if tasks > 1 and not client.awaits:
        raise CannotError("a record cannot be awaited in a task")

    async def sending(first: int) -> None:
        index = first
        while not load.over():
            value, key = client.records[index % len(client.records)]
            began = time.perf_counter() if tasks == 1 else 0.0
            await client.send(value, key)
            if began >= load.begin:
                load.latencies.append(time.perf_counter() - began)
            load.acked += 1
            index += 1

    await asyncio.gather(*(sending(number) for number in range(tasks)))


async def run_queue(client: Client, load: Load) -> None:
    """Queue records, and wait only while as many are unacknowledged as may be."""
    while not load.over():
        await client.queue_chunk(load)
        await _room(client, load)
    await client.flush()


async def run_bulk(client: Client, load: Load) -> None:
    """Hand over many records per call."""
    while not load.over():
        await client.send_bulk(load)
        await _room(client, load)
    await client.flush()


async def _room(client: Client, load: Load) -> None:
    await client.turn()
    if load.full:
        while load.half_full:
            await client.turn(TICK)


async def run_paced(client: Client, job: Job) -> tuple[Load, float, list[float]]:
    """Send at a fixed rate, from a schedule; return the counts, the rate and how late it was.

    Raises:
        CannotError: The client did not keep up with the schedule.
    """
    rate = job.rate
    if not rate:
        peak = Load(job.warm_up, job.seconds / 2, job.queued)
        await run_queue(client, peak)
        count, seconds, _ = peak.result()
        rate = count / seconds / 2
    load = Load(job.warm_up, job.seconds, sys.maxsize)
    start, late = time.perf_counter(), []
    ticks = round((job.warm_up + job.seconds) / TICK)
    for tick in range(ticks):
        due = start + tick * TICK
        load.over()
        await client.turn(max(0.0, due - time.perf_counter()))
        while (now := time.perf_counter()) < due:
            await client.turn(due - now)
        if now > due + job.seconds + ENDING / 2:
            raise CannotError(f"did not keep up with {rate:,.0f} records/s")
        late.append(now - due)
        until = int(rate * TICK * (tick + 1))
        records = client.records
        asked = [records[number % len(records)] for number in range(load.sent, until)]
        await client.queue_some(asked, partial(load.timed, due))
        load.sent = until
    await client.flush()
    return load, rate, late


def percentiles(seconds: array[float]) -> dict[str, float] | None:
    """Return the percentiles of these times in milliseconds."""
    from hdrh.histogram import HdrHistogram

    if not seconds:
        return None
    histogram = HdrHistogram(1, HIGHEST_US, 3)
    for each in seconds:
        histogram.record_value(min(HIGHEST_US, max(1, round(each * 1e6))))
    return {
        name: histogram.get_value_at_percentile(percent) / 1000
        for name, percent in PERCENTILES.items()
    }


def peak_rss() -> float:
    """Return the most memory that this process had, in 10^6 bytes.

    On Linux the figure of `getrusage` includes what the parent had before the `exec`, so that of
    the process's own memory map is used.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


async def run(job: Job) -> Figures:
    """Run the job's client, and return its figures."""
    client = ADAPTERS[job.client](job)
    await client.open()
    try:
        name = " ".join(filter(None, (version(client.package), client.form())))
        if job.way == "start":
            await client.send(*client.records[0])
            took = time.monotonic() - job.spawned
            return Figures(version=name, acked=1, first_ack_s=took, peak_rss_mb=peak_rss())
        if job.way == "idle":
            return await _idle(client, job, name)
        # The warm-up begins when the client has its producer id and its connections.
        await client.send(*client.records[0])
        note, asked, late = "", None, None
        load = Load(job.warm_up, job.seconds, job.queued)
        if job.way in ("await", "one"):
            await run_await(client, load, 1 if job.way == "one" else job.tasks)
        elif job.way == "queue" or (job.way in ("bulk", "table") and not client.bulk_call):
            await run_queue(client, load)
            note = "" if job.way == "queue" else "no bulk call: queues one by one"
        elif job.way in ("bulk", "table"):
            await run_bulk(client, load)
            if job.way == "table" and type(client) is not Aioidem:
                note = "no call for tables: its bulk call"
        else:
            load, asked, lateness = await run_paced(client, job)
            late = 1000 * sorted(lateness)[int(0.99 * len(lateness))]
        count, seconds, cpu = load.result()
        return Figures(
            version=name,
            acked=count,
            records_per_sec=count / seconds,
            cpu_us_per_record=1e6 * cpu / count,
            cpu_percent=100 * cpu / seconds,
            peak_rss_mb=peak_rss(),
            latency_ms=percentiles(load.latencies),
            late_ms=late,
            asked_rate=asked,
            note=note,
        )
    finally:
        await client.close()


async def _idle(client: Client, job: Job, name: str) -> Figures:
    await client.send(*client.records[0])
    await asyncio.sleep(job.warm_up)
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(job.seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - began)
    return Figures(version=name, acked=1, cpu_percent=100 * share, peak_rss_mb=peak_rss())


def _loop_factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    if not uvloop:
        return asyncio.new_event_loop
    from uvloop import new_event_loop

    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made


def main() -> int:
    """Run one job, and print its figures."""
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        print("usage: short_link_clients.py JOB, as JSON: short_link.py starts it", file=sys.stderr)
        return 0 if sys.argv[1:] == ["--help"] else 2
    job = Job(**json.loads(sys.argv[1]))
    # kio, whose schemas aioidem uses, imports hypothesis where it is installed: a third of a second
    # and 20 MB. Most installations do not have it.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    # The process ends in any case: a client must not wait for ever.
    limit = threading.Timer(2 * (job.warm_up + job.seconds) + 2 * ENDING, os._exit, (3,))
    limit.daemon = True
    limit.start()
    try:
        with asyncio.Runner(loop_factory=_loop_factory(job.uvloop)) as runner:
            print(json.dumps(asdict(_profiled(job, lambda: runner.run(run(job))))))
    except CannotError as error:
        print(json.dumps({"cannot": str(error)}))
    sys.stdout.flush()
    # Threads of a client that failed to close must not keep the process alive.
    os._exit(0)


def _profiled(job: Job, call: Callable[[], Figures]) -> Figures:
    if not job.profile:
        return call()
    import cProfile

    profile = cProfile.Profile()
    figures: Figures = profile.runcall(call)
    profile.dump_stats(job.profile)
    return figures


if __name__ == "__main__":
    sys.exit(main())

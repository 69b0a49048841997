"""The process of one Python client; `workers.py` starts it and defines the lines it prints.

    python benchmarks/clients.py aiokafka '{"bootstrap": "localhost:9092", "topic": "t", ...}'

Invariants: each client has the deadlines of the job, and otherwise its default settings plus
idempotence, acks=all, at most five requests in flight and no linger. One task sends the records,
in the order of their numbers. What a client reports is printed unchanged.

Rejected: one thread per client in a single process (a client that blocks the interpreter would
affect the others); one shared adapter with many switches (two of the clients are asyncio's, two
have threads of their own).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

from workers import Work

Done = Callable[[int | None, BaseException | None], None]
"""A callback for the offset or the error of a record, which any thread may call."""

# Errors that mean the broker refused the record itself, before anything was appended.
REFUSED = ("MessageSizeTooLarge", "MSG_SIZE_TOO_LARGE", "RecordTooLarge", "InvalidTimestamp")


class Client(Protocol):
    """A producer that writes to one partition."""

    package: str

    async def open(self) -> None:
        """Connect to the cluster."""

    async def send(self, topic: str, value: bytes, done: Done) -> None:
        """Queue a record; raise the client's error if the client refuses to queue the record."""

    async def start_at(self, topic: str, sequence: int) -> None:
        """Set the next sequence number of a partition to which nothing was written yet."""

    async def close(self) -> None:
        """Wait for the outcome of every record, and close the client."""


class Aioidem:
    """The adapter for aioidem."""

    package = "aioidem"

    def __init__(self, work: Work) -> None:
        from aioidem import Producer

        self._producer = Producer(
            work.bootstrap,
            delivery_timeout=work.deadline,
            max_block=work.deadline,
            request_timeout=work.request_timeout,
            batch_size=work.batch_size,
            client_id=self.package,
        )

    async def open(self) -> None:
        """Connect to the cluster."""
        await self._producer.start()

    async def send(self, topic: str, value: bytes, done: Done) -> None:
        """Queue a record."""
        from aioidem._producer.delivery import Delivery

        def ended(delivery: Delivery) -> None:
            error = delivery.exception()
            done(None if error is not None else delivery.metadata.offset, error)

        self._producer.send_nowait(topic, value, partition=0).add_done_callback(ended)

    async def start_at(self, topic: str, sequence: int) -> None:
        """Set the next sequence number of the partition."""
        await self._producer.partitions_for(topic)
        core = self._producer._core  # noqa: SLF001 - sending 2^31 records would take too long
        state = core._partitions.state(topic, 0)  # noqa: SLF001 - as above
        if core.current_identity is not None:
            state.adopt(core.current_identity)
        state.ledger.next = sequence

    async def close(self) -> None:
        """Close the client."""
        await self._producer.close()


class Aiokafka:
    """The adapter for aiokafka, which gives up a record after at most twice its request timeout."""

    package = "aiokafka"

    def __init__(self, work: Work) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(
            bootstrap_servers=work.bootstrap,
            enable_idempotence=True,
            max_batch_size=work.batch_size,
            request_timeout_ms=round(500 * work.deadline),
            client_id=self.package,
        )

    async def open(self) -> None:
        """Connect to the cluster."""
        await self._producer.start()

    async def send(self, topic: str, value: bytes, done: Done) -> None:
        """Queue a record."""
        future = await self._producer.send(topic, value, partition=0)

        def ended(outcome: asyncio.Future[Any]) -> None:
            error = outcome.exception()
            done(None if error is not None else outcome.result().offset, error)

        future.add_done_callback(ended)

    async def start_at(self, topic: str, sequence: int) -> None:
        """Set the next sequence number of the partition."""
        from aiokafka.structs import TopicPartition

        numbers = self._producer._txn_manager._sequence_numbers  # noqa: SLF001 - see Aioidem
        numbers[TopicPartition(topic, 0)] = sequence

    async def close(self) -> None:
        """Close the client."""
        await self._producer.stop()


class ConfluentKafka:
    """The adapter for confluent-kafka (librdkafka), with a thread that serves its callbacks."""

    package = "confluent-kafka"

    def __init__(self, work: Work) -> None:
        from confluent_kafka import Producer

        self._patience = work.patience
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": work.bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "linger.ms": 0,
                "batch.size": work.batch_size,
                "message.timeout.ms": round(1000 * work.deadline),
                "request.timeout.ms": round(1000 * work.request_timeout),
                "client.id": self.package,
                "log_level": 0,
            }
        )
        self._server = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self._over.is_set():
            self._producer.poll(0.05)

    async def open(self) -> None:
        """Connect to the cluster."""
        self._server.start()

    async def send(self, topic: str, value: bytes, done: Done) -> None:
        """Queue a record."""
        from confluent_kafka import KafkaException

        def ended(error: Any, message: Any) -> None:
            if error is None:
                done(message.offset(), None)
            else:
                done(None, KafkaException(error))

        self._producer.produce(topic, value, partition=0, on_delivery=ended)

    async def start_at(self, topic: str, sequence: int) -> None:
        """Raise NotImplementedError: librdkafka's sequence number cannot be set from outside."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the client."""
        self._producer.flush(self._patience)
        self._over.set()
        self._server.join()


class KafkaPython:
    """The adapter for kafka-python."""

    package = "kafka-python"

    def __init__(self, work: Work) -> None:
        self._work = work
        self._producer: Any = None

    async def open(self) -> None:
        """Connect to the cluster."""
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=self._work.bootstrap,
            enable_idempotence=True,
            acks="all",
            max_in_flight_requests_per_connection=5,
            linger_ms=0,
            batch_size=self._work.batch_size,
            delivery_timeout_ms=round(1000 * self._work.deadline),
            max_block_ms=round(1000 * self._work.deadline),
            request_timeout_ms=round(1000 * self._work.request_timeout),
            client_id=self.package,
        )

    async def send(self, topic: str, value: bytes, done: Done) -> None:
        """Queue a record."""
        future = self._producer.send(topic, value, partition=0)
        future.add_callback(lambda metadata: done(metadata.offset, None))
        future.add_errback(lambda error: done(None, error))

    async def start_at(self, topic: str, sequence: int) -> None:
        """Set the next sequence number of the partition."""
        from kafka import TopicPartition

        numbers = self._producer._transaction_manager._sequence_numbers  # noqa: SLF001 - as above
        numbers[TopicPartition(topic, 0)] = sequence

    async def close(self) -> None:
        """Close the client."""
        self._producer.close(timeout=self._work.patience)


CLIENTS: dict[str, Callable[[Work], Client]] = {
    each.package: each for each in (Aioidem, Aiokafka, ConfluentKafka, KafkaPython)
}


class Output:
    """The standard output, to which every thread may print lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        """Print one line."""
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def ended(self, number: int, offset: int | None, error: BaseException | None) -> None:
        """Print a record's outcome."""
        if error is None:
            self.say(f"acked {number} {-1 if offset is None else offset}")
            return
        status = getattr(getattr(error, "status", None), "name", None)
        refused = any(name in f"{type(error).__name__} {error}" for name in REFUSED)
        if refused if status is None else status == "NOT_WRITTEN":
            self.refused(number, error)
        else:
            self.say(f"failed {number} unknown {_one_line(error)}")

    def refused(self, number: int, error: BaseException) -> None:
        """Print that a record was not written: the client says so, or its `send` raised."""
        self.say(f"failed {number} not-written {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


class Orders:
    """The commands ``go`` and ``stop`` of the parent process, read in a thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stop = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() != "go":
                break
            self.go.set()
        self.stop.set()
        self.go.set()


def value_of(number: int, size: int) -> bytes:
    """Return a value of `size` bytes that begins with the record's number."""
    return f"{number:08d}".encode().ljust(size, b".")


async def drive(client: Client, work: Work, orders: Orders, output: Output) -> None:
    """Connect, warm up, send records from ``go`` to ``stop``, and close the client."""
    await client.open()
    try:
        await warm_up(client, work)
        if work.sequence:
            await client.start_at(work.topic, work.sequence)
        output.say(f"ready {version(client.package)}")
        await asyncio.to_thread(orders.go.wait)
        await send_all(client, work, orders, output)
    finally:
        await client.close()
    output.say("closed")


async def warm_up(client: Client, work: Work) -> None:
    """Send one record and wait until it is acknowledged."""
    loop = asyncio.get_running_loop()
    warm: asyncio.Future[None] = loop.create_future()

    def set_warm(error: BaseException | None) -> None:
        if error is None:
            warm.set_result(None)
        else:
            warm.set_exception(error)

    def done(_offset: int | None, error: BaseException | None) -> None:
        loop.call_soon_threadsafe(set_warm, error)

    await client.send(work.warm, value_of(0, work.size), done)
    await asyncio.wait_for(warm, work.deadline)


async def send_all(client: Client, work: Work, orders: Orders, output: Output) -> None:
    """Send records at the given rate until the command ``stop``."""
    start, number = time.monotonic(), 0
    while not orders.stop.is_set():
        number += 1
        wait = start + number / work.rate - time.monotonic()
        while wait > 0 and not orders.stop.is_set():
            await asyncio.sleep(min(wait, 0.1))
            wait = start + number / work.rate - time.monotonic()
        size = work.bigsize if number == work.big else work.size
        output.say(f"sent {number}")
        try:
            await client.send(work.topic, value_of(number, size), partial(output.ended, number))
        except Exception as error:  # noqa: BLE001 - any error of the client is reported
            output.refused(number, error)


def main() -> int:
    """Run one client until its parent process commands ``stop``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("client", choices=tuple(CLIENTS))
    parser.add_argument("work", help="what to do, as JSON: the fields of workers.Work")
    flags = parser.parse_args()
    work = Work(**json.loads(flags.work))
    output = Output()

    async def run() -> None:
        await drive(CLIENTS[flags.client](work), work, Orders(), output)

    asyncio.run(run())
    # Threads of a client that failed to close must not keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

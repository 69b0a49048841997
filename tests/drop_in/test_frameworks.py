"""Frameworks publish through aioidem: after `install()`, or with aioidem's producer directly.

A framework is imported inside its tests, because every pytest worker imports this file but only
some workers run those tests.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiokafka
import anyio
import anyio.to_thread
import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

import aioidem
import aioidem.integrations.aiokafka
import aioidem.partitioner
from aioidem._broker.intercept import RequestSeen
from aioidem.broker import EmbeddedCluster, ThreadedCluster

pytestmark = pytest.mark.anyio


@contextmanager
def not_ours() -> Iterator[None]:
    """Ignore the warnings of libraries that the frameworks import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def _installed() -> Iterator[None]:
    with aioidem.integrations.aiokafka.installed():
        yield


def watched(cluster: EmbeddedCluster) -> list[tuple[str | None, int, bool]]:
    """Return a list that gets the client id, acks and idempotence of each Produce from now on."""
    seen: list[tuple[str | None, int, bool]] = []

    def hook(request: RequestSeen) -> None:
        if request.api_key == 0:
            idempotent = all(batch.producer_id >= 0 for batch in request.batches)
            seen.append((request.client_id, request.request.acks, idempotent))

    cluster.intercept(hook)
    return seen


def stored(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    return [record for batch in cluster.batches(topic) for record in batch.records()]


@pytest.mark.usefixtures("_installed")
async def test_faststream_publishes_through_aioidem(cluster: EmbeddedCluster) -> None:
    with not_ours():
        import faststream.kafka
    cluster.create_topic("greetings")
    seen = watched(cluster)
    broker = faststream.kafka.KafkaBroker(
        cluster.bootstrap_servers, acks="all", enable_idempotence=True, logger=None
    )
    received: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @broker.subscriber("greetings", auto_offset_reset="earliest")
    async def handle(message: str) -> None:
        if not received.done():
            received.set_result(message)

    with anyio.fail_after(30):
        await broker.connect()
        sent = await broker.publish("hello", "greetings", key=b"k", headers={"h": "1"})
        assert type(sent).__module__ == "aiokafka.structs"
        await broker.publish_batch("a", "b", topic="greetings", partition=0)
        future = await broker.publish("later", "greetings", no_confirm=True)
        await future
        its_producer = broker.config.broker_config.producer
        closed = [its_producer.closed]
        await broker.stop()
        closed.append(its_producer.closed)
        assert closed == [False, True]
    records = stored(cluster, "greetings")
    assert [record.value for record in records] == [b"hello", b"a", b"b", b"later"]
    assert ("h", b"1") in records[0].headers
    assert {(acks, idempotent) for _, acks, idempotent in seen} == {(-1, True)}
    del handle


@pytest.mark.usefixtures("_installed")
async def test_faststream_with_its_own_defaults_works_too(cluster: EmbeddedCluster) -> None:
    with not_ours():
        import faststream.kafka
    cluster.create_topic("greetings")
    seen = watched(cluster)
    async with faststream.kafka.KafkaBroker(cluster.bootstrap_servers, logger=None) as broker:
        await broker.publish("hello", "greetings")
    assert [(acks, idempotent) for _, acks, idempotent in seen] == [(-1, False)]


@pytest.mark.usefixtures("_installed")
async def test_faststream_subscribes_with_a_group_and_resumes(cluster: EmbeddedCluster) -> None:
    """A message that one instance has acknowledged is not delivered to the next instance."""
    with not_ours():
        import faststream
        import faststream.kafka
    cluster.create_topic("orders", partitions=2)
    received: list[str] = []
    enough = asyncio.Event()

    async def run(count: int) -> None:
        """Publish `count` messages to one instance, and stop it when it has received them."""
        broker = faststream.kafka.KafkaBroker(cluster.bootstrap_servers, logger=None)
        before = len(received)
        enough.clear()

        @broker.subscriber(
            "orders",
            group_id="shop",
            auto_offset_reset="earliest",
            ack_policy=faststream.AckPolicy.ACK,
        )
        async def handle(message: str) -> None:
            received.append(message)
            if len(received) == before + count:
                enough.set()

        async with broker:
            await broker.start()
            for number in range(count):
                await broker.publish(f"order {before + number}", "orders", partition=number % 2)
            await enough.wait()
        del handle

    with anyio.fail_after(30):
        await run(4)
        await run(4)
    assert sorted(received) == [f"order {number}" for number in range(8)]
    committed = cluster.state.groups.committed("shop")
    assert sum(each.offset for each in committed.values()) == 8


@pytest.fixture
def cluster_in_thread() -> Iterator[ThreadedCluster]:
    """Provide a cluster in a thread, for clients that block the loop of the test."""
    with EmbeddedCluster.in_thread() as running:
        yield running


# taskiq passes an api_version, which makes aiokafka's own producer warn too.
@pytest.mark.filterwarnings("ignore:.*api_version:DeprecationWarning")
@pytest.mark.usefixtures("_installed")
async def test_taskiq_starts_kicks_through_aioidem_and_works(
    cluster_in_thread: ThreadedCluster,
) -> None:
    """taskiq starts, sends a task and receives it through aioidem.

    The admin client of taskiq blocks the test's event loop, so the cluster runs in a thread.
    """
    with not_ours():
        import taskiq_aio_kafka
        import taskiq_aio_kafka.broker
    assert taskiq_aio_kafka.broker.AIOKafkaProducer is (
        aioidem.integrations.aiokafka.AIOKafkaProducer
    )
    seen: list[tuple[int, bool]] = []

    def hook(request: RequestSeen) -> None:
        if request.api_key == 0:
            idempotent = all(batch.producer_id >= 0 for batch in request.batches)
            seen.append((request.request.acks, idempotent))

    with anyio.fail_after(30):
        await anyio.to_thread.run_sync(cluster_in_thread.intercept, hook)
        servers = await anyio.to_thread.run_sync(lambda: cluster_in_thread.bootstrap_servers)
        broker = taskiq_aio_kafka.AioKafkaBroker(servers)
        # taskiq's default partitioner is kafka-python's; in kafka-python 3.0 it is no function.
        broker.configure_producer(
            acks="all",
            enable_idempotence=True,
            partitioner=aioidem.partitioner.DefaultPartitioner(),
        )
        # taskiq's default assignor is kafka-python's; aiokafka refuses that of kafka-python 3.0.
        broker.configure_consumer(
            group_id="workers",
            auto_offset_reset="earliest",
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        )
        broker.is_worker_process = True

        @broker.task  # type: ignore[untyped-decorator]
        async def add(one: int, other: int) -> int:
            return one + other

        await broker.startup()
        await add.kiq(1, 2)
        listening = broker.listen()
        message = await anext(listening)
        await listening.aclose()
        await broker.shutdown()
        [record] = await anyio.to_thread.run_sync(cluster_in_thread.records, "taskiq_topic")
    assert b"add" in (record.value or b"")
    assert getattr(message, "data", message) == record.value
    assert seen == [(-1, True)]


async def post(port: int, path: str, body: bytes) -> str:
    """Send a POST request over a new connection, and return the response."""
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        try:
            while True:
                answer += await stream.receive()
        except anyio.EndOfStream:
            return answer.decode()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)
async def test_fastapi_under_uvicorn_needs_no_adapter(cluster: EmbeddedCluster) -> None:
    import fastapi
    import uvicorn

    cluster.create_topic("orders")

    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        async with aioidem.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers
        ) as app.state.producer:
            yield

    app = fastapi.FastAPI(lifespan=lifespan)

    async def order(request: Any) -> Any:
        sent = await app.state.producer.send_and_wait("orders", await request.body())
        return fastapi.responses.PlainTextResponse(f"stored at {sent.offset}")

    app.router.add_route("/orders", order, methods=["POST"])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    with anyio.fail_after(30):
        serving = asyncio.create_task(server.serve())
        while not server.started:
            assert not serving.done()
            await anyio.lowlevel.checkpoint()
        port = server.servers[0].sockets[0].getsockname()[1]
        answers = await asyncio.gather(*[post(port, "/orders", b"%d" % n) for n in range(10)])
        server.should_exit = True
        await serving
    assert sorted(int(answer.rpartition(" ")[2]) for answer in answers) == list(range(10))
    assert {record.value for record in stored(cluster, "orders")} == {b"%d" % n for n in range(10)}


@pytest.mark.usefixtures("_installed")
async def test_opentelemetrys_instrumentation_of_aiokafka_traces_it(
    cluster: EmbeddedCluster,
) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    with not_ours():
        from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor

    cluster.create_topic("t")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = AIOKafkaInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, client_id="traced"
        ) as producer:
            assert isinstance(producer, aioidem.AIOKafkaProducer)
            await producer.send_and_wait("t", b"x", b"k", headers=[("mine", b"1")])
            await producer.send_and_wait("t", b"y", partition=0)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    first, second = exporter.get_finished_spans()
    assert first.name == "t send"
    told = dict(first.attributes or {})
    assert told["messaging.client.id"] == "traced"
    assert told["messaging.destination.name"] == "t"
    assert "messaging.destination.partition.id" not in told
    assert dict(second.attributes or {})["messaging.destination.partition.id"] == "0"
    records = stored(cluster, "t")
    trace_id = format(first.context.trace_id, "032x").encode()
    [parent] = [value for name, value in records[0].headers if name == "traceparent"]
    assert trace_id in parent
    assert ("mine", b"1") in records[0].headers

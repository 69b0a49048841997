"""A connection opens while every thread that the program may have waits for a record.

A thread sends with `anyio.from_thread.run(producer.send, ...)`, or on asyncio with
`run_coroutine_threadsafe`. It then waits, perhaps for a connection that needs a thread: to look up
the broker's name, to read certificates, or for a step of SASL.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from aioidem import Producer
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from tests.security.tools import Authority, password
from tests.waiting import until

from .tools import ASYNCIO, REAL_LOOPS, bounded

pytestmark = pytest.mark.anyio

CA = Authority()
TLS: Mapping[str, Any] = {"security_protocol": "SSL", "ssl_truststore_certificates": CA.pem}
SCRAM: Mapping[str, Any] = password("SCRAM-SHA-256")
SETTINGS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "tls": ({"tls": CA.server("localhost", "127.0.0.1")}, TLS),
    "scram": ({"mechanisms": ("SCRAM-SHA-256",), "users": {"alice": "alice-secret"}}, SCRAM),
    "plaintext": ({}, {}),
    "networks": ({}, {"allowed_brokers": ["127.0.0.0/8"]}),
}
THREADS = 2


@asynccontextmanager
async def few_threads(work: Callable[[], object]) -> AsyncIterator[None]:
    """Let the program have two threads of each kind, and run `work` in all of them."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, THREADS
    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(THREADS):
                tasks.start_soon(anyio.to_thread.run_sync, work)
            yield
    finally:
        limiter.total_tokens = before


@REAL_LOOPS
@pytest.mark.parametrize("kind", SETTINGS)
@bounded(30)
async def test_a_producer_connects_while_all_threads_of_the_program_are_busy(
    kind: str, anyio_backend_name: str
) -> None:
    """To connect by a host name, with TLS or SASL, takes none of the program's threads."""
    brokers, options = SETTINGS[kind]
    begun, release = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        begun.release()
        assert release.wait(25)

    async with EmbeddedCluster(security=BrokerSecurity(**brokers)) as cluster:
        port = cluster.bootstrap_servers.rpartition(":")[2]
        producer = Producer(f"localhost:{port}", **options)
        async with few_threads(wait):
            try:
                busy = THREADS
                if anyio_backend_name == "asyncio":
                    loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(1)
                    loop.set_default_executor(executor)
                    loop.run_in_executor(None, wait)
                    busy += 1
                for _ in range(busy):
                    await until(lambda: begun.acquire(blocking=False), pause=0.001)
                with anyio.fail_after(20):
                    async with producer:
                        assert (await producer.send("t", b"x")).offset == 0
            finally:
                release.set()


@REAL_LOOPS
@bounded(60)
async def test_threads_that_send_do_not_keep_the_producer_from_its_broker() -> None:
    """All threads wait for their records; the broker restarts, and all records are written."""
    security = BrokerSecurity(mechanisms=("SCRAM-SHA-256",), users={"alice": "alice-secret"})
    async with EmbeddedCluster(security=security) as cluster:
        cluster.create_topic("t")
        producer = Producer(
            cluster.bootstrap_servers,
            **SCRAM,
            reconnect_backoff=0.01,
            request_timeout=10,
            delivery_timeout=20,
        )
        async with producer:
            await producer.send("t", b"first")
            await cluster.stop_broker(0)
            offsets: list[int] = []

            def send() -> None:
                metadata = anyio.from_thread.run(producer.send, "t", b"from a thread")
                offsets.append(metadata.offset)

            async with few_threads(send):
                await until(lambda: producer.statistics().records_queued == THREADS, pause=0.001)
                await cluster.start_broker(0)
            assert sorted(offsets) == [1, 2]


NEVER_CLOSED = """
import asyncio
import os
import sys

from aioidem import Producer

loop = asyncio.new_event_loop()


async def use() -> None:
    producer = Producer(sys.argv[1], compression_type="gzip", batch_size=1 << 17)
    await producer.start()
    await producer.send("t", os.urandom(1 << 16))
    await producer.dump_flight_record(sys.argv[2])
    print("used", flush=True)
    loop.stop()


task = loop.create_task(use())
loop.run_forever()
"""


@ASYNCIO
@bounded(40)
async def test_a_process_ends_though_its_loop_was_stopped_without_close(tmp_path: Path) -> None:
    """The threads that looked up a name, compressed a batch and wrote a file do not hold it up."""
    async with EmbeddedCluster() as cluster:
        bootstrap = f"localhost:{cluster.bootstrap_servers.rpartition(':')[2]}"
        command = [sys.executable, "-c", NEVER_CLOSED, bootstrap, str(tmp_path / "a.flight.gz")]
        with anyio.fail_after(20):  # an idle thread never ends by itself
            done = await anyio.run_process(command)
    assert done.stdout.split() == [b"used"]


MAIN_THREAD_ENDS = """
import asyncio
import os
import sys
import threading

from aioidem import Producer


async def use() -> None:
    while threading.main_thread().is_alive():
        await asyncio.sleep(0.001)
    async with Producer(sys.argv[1], compression_type="gzip", batch_size=1 << 17) as producer:
        print((await producer.send("t", os.urandom(1 << 16))).offset)


threading.Thread(target=lambda: asyncio.run(use())).start()
"""


@ASYNCIO
@bounded(40)
async def test_a_producer_works_on_when_the_main_thread_has_ended() -> None:
    """Python has ended every thread pool by then; names are looked up and batches compressed."""
    async with EmbeddedCluster() as cluster:
        bootstrap = f"localhost:{cluster.bootstrap_servers.rpartition(':')[2]}"
        with anyio.fail_after(20):
            done = await anyio.run_process([sys.executable, "-c", MAIN_THREAD_ENDS, bootstrap])
    assert done.stdout.split() == [b"0"]

"""Fixtures of the tests on Spark: one session with two threads, and one embedded cluster.

These tests are ``slow``: a JVM starts, and Spark's planning takes a second even for tiny jobs.
Spark's own Kafka source reads from the embedded brokers, so that most tests need no real ones.

Invariant: where Spark cannot run, a test is skipped with the reason; on CI it fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from aioidem._spark.session import SparkUnavailableError, open_session
from aioidem._spark.task_loop import TaskLoop
from aioidem.broker import EmbeddedCluster
from tests.ci import CI

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent
# PySpark does not close the sockets to its JVM over which it has read a job's result.
PYSPARK_FORGETS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:.*<socket:pytest.PytestUnraisableExceptionWarning",
)
_SECONDS = 240  # the first test starts a JVM, and may have to download jars


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and "on_kafka" not in item.path.parts:
            item.add_marker(pytest.mark.timeout(_SECONDS))
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.xdist_group("spark"))
                item.add_marker(pytest.mark.filterwarnings(*PYSPARK_FORGETS))


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder for Spark's event log, which is not compressed: tests search its text."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    """Start the Spark session of all tests, with Spark's Kafka source."""
    try:
        opened = open_session(
            "aioidem tests",
            master="local[2,2]",
            kafka=True,
            settings={
                "spark.sql.shuffle.partitions": "2",
                # Tests have a few hundred rows: so a task gets them in several record batches.
                "spark.sql.execution.arrow.maxRecordsPerBatch": "37",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": event_log.as_uri(),
                "spark.eventLog.compress": "false",
                # The JVM uses only its fast compiler (C1): jobs of a second are over before code
                # from the optimising compiler (C2) would pay.
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        )
        session = opened.__enter__()
    except SparkUnavailableError as error:
        if CI:
            raise
        pytest.skip(str(error))
    # PySpark's callback server opens its port here, once for all tests: if it opened the port in a
    # test, that test would leave a port open.
    from pyspark.java_gateway import ensure_callback_server_started

    start: Any = ensure_callback_server_started
    start(session.sparkContext._gateway)  # noqa: SLF001
    yield session
    opened.__exit__(None, None, None)


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """Run an event loop in a thread of its own, because Spark's calls block."""
    with start_blocking_portal() as running:
        yield running


@pytest.fixture(scope="session")
def cluster(portal: BlockingPortal) -> Iterator[EmbeddedCluster]:
    """Start an embedded broker that listens on a port."""
    with portal.wrap_async_context_manager(EmbeddedCluster(brokers=1)) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """Make a topic of two partitions for one test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=2)
    return name


@pytest.fixture
def loop() -> Iterator[TaskLoop]:
    """Start the event loop of a Python worker."""
    running = TaskLoop()
    yield running
    running.stop()


@pytest.fixture
def in_loop(portal: BlockingPortal) -> Callable[..., Any]:
    """Return a function that calls an async function in the cluster's event loop."""

    def call(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return portal.call(work, *arguments)

    return call

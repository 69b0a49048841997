"""What the tests on Spark share: one session of two threads, and one embedded cluster.

Those are ``slow``: a JVM starts, and Spark plans for a second what it does in a blink. Spark's own
Kafka source reads the embedded brokers, so that real ones are needed only where it says so.

Invariant: where Spark cannot be run a test is skipped with the reason, but on CI it fails.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from aioidem._spark.session import SparkUnavailableError, open_session
from aioidem.broker import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent
# Sockets to its JVM, whenever a job's result has been read.
PYSPARK_FORGETS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:.*<socket:pytest.PytestUnraisableExceptionWarning",
)
_SECONDS = 240  # the first one starts a JVM, and may download


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
    """The folder of what Spark records of itself, as text."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    """The session, with Spark's Kafka source."""
    try:
        opened = open_session(
            "aioidem tests",
            master="local[2,2]",
            kafka=True,
            settings={
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": event_log.as_uri(),
                "spark.eventLog.compress": "false",
                # Code that runs for a second is not worth the second compiler.
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        )
        session = opened.__enter__()
    except SparkUnavailableError as error:
        if os.environ.get("CI", "").lower() == "true":
            raise
        pytest.skip(str(error))
    # Its port is opened here once, and not by the test that first needs it.
    from pyspark.java_gateway import ensure_callback_server_started

    start: Any = ensure_callback_server_started
    start(session.sparkContext._gateway)  # noqa: SLF001
    yield session
    opened.__exit__(None, None, None)


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own: Spark's calls block."""
    with start_blocking_portal() as running:
        yield running


@pytest.fixture(scope="session")
def cluster(portal: BlockingPortal) -> Iterator[EmbeddedCluster]:
    """An embedded broker that listens on a port."""
    with portal.wrap_async_context_manager(EmbeddedCluster(brokers=1)) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """A topic of two partitions that nobody else has."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=2)
    return name


@pytest.fixture
def in_loop(portal: BlockingPortal) -> Callable[..., Any]:
    """Call an async function in the loop of the cluster."""

    def call(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return portal.call(work, *arguments)

    return call

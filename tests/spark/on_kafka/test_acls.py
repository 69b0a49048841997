"""The Spark sink needs exactly the documented ACLs, and a task names the one that is missing.

These tests do without Spark, because ACLs concern a task's producer and the broker only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

from aioidem._spark.marker import PREFIX, TaskIdentity
from aioidem._spark.open_transactions import end_transactions_of
from aioidem._spark.options import SinkOptions
from aioidem._spark.writing import Written, write_rows
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aioidem.testing import KafkaCluster
from tests.kafka.tools import allow, bounded
from tests.kafka.transactional import committed
from tests.security.tools import Authority
from tests.spark.tools import record_batch

pytestmark = pytest.mark.anyio

TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5
READ, WRITE = 3, 4
ROWS, MARKERS = "rows", "markers"
RULES = {
    "id": (TRANSACTIONAL_ID, WRITE, PREFIX),
    "group": (GROUP, READ, PREFIX),
    "rows": (TOPIC, WRITE, ROWS),
    "markers": (TOPIC, READ, MARKERS),
}
USERS = {name: f"{name}-secret" for name in ("all", *RULES)}


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 - gives the module one event loop
) -> AsyncIterator[KafkaCluster]:
    authority = Authority()
    security = KafkaSecurity(
        authority.identity("localhost").both,
        authority.pem,
        USERS,
        authorize=True,
        proxied="SASL_PLAINTEXT",
    )
    async with KafkaCluster(security=security) as running:
        for user in USERS:
            await allow(running, user, *(rule for name, rule in RULES.items() if name != user))
        for topic in (ROWS, MARKERS):
            await running.create_topic(topic)
        yield running


def options(cluster: KafkaCluster, user: str) -> SinkOptions:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{USERS[user]}";'
        ),
        "kafka.max.block.ms": "10000",
        "topic": ROWS,
        "marker.topic": MARKERS,
    }
    return SinkOptions.read(given, streaming=True)


async def write(cluster: KafkaCluster, user: str, **identity: Any) -> Written:
    """Write the 10 rows of a task as the user, whose name is also the id of the query."""
    rows = record_batch(ROWS, [b"%d" % number for number in range(10)])
    task = TaskIdentity(**{"query": user, "batch": 0, "task": 0, **identity})
    write_one = partial(write_rows, options(cluster, user), [rows], task)
    return await anyio.to_thread.run_sync(write_one)


@bounded(60)
async def test_what_the_page_says_is_enough(cluster: KafkaCluster) -> None:
    """The documented ACLs are enough for a task, for its next attempt, and for the driver."""
    assert await write(cluster, "all") == Written(10)
    assert await write(cluster, "all") == Written(10, skipped=True)
    assert await write(cluster, "all", batch=1) == Written(10)
    assert await end_transactions_of(options(cluster, "all"), "all") == ()


@pytest.mark.parametrize(
    ("missing", "kind", "told"),
    [
        ("id", TransactionalIdAuthorizationFailed, "WRITE on transactional ids with the prefix"),
        ("group", GroupAuthorizationFailedError, "READ on groups with the prefix"),
        ("rows", TopicAuthorizationFailedError, "WRITE on the topics of the rows"),
        ("markers", TopicAuthorizationFailedError, f"and READ on {MARKERS}"),
    ],
)
@bounded(60)
async def test_what_is_missing_is_named(
    cluster: KafkaCluster, missing: str, kind: type[KafkaError], told: str
) -> None:
    """The error of a task names the permission that is missing."""
    before = await committed(cluster, ROWS)
    with pytest.raises(KafkaError) as caught:
        await write(cluster, missing)
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    assert error is not None, repr(caught.value)
    [note] = caught.value.__notes__
    assert told in note
    assert "secret" not in note + str(caught.value)
    assert await committed(cluster, ROWS) == before

"""A request that is not authorised fails at once, and the error names the resource."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer
from aioidem._broker.entities import ZERO_MS, respond
from aioidem._broker.intercept import Action, Refuse, RequestSeen, Respond
from aioidem.broker import EmbeddedCluster
from aioidem.errors import (
    ClusterAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from .tools import bounded

pytestmark = pytest.mark.anyio

PRODUCE, INIT_PRODUCER_ID = 0, 22


@bounded(20)
async def test_a_topic_that_may_not_be_written_is_named_with_its_partition() -> None:
    """A record that may not be written is NOT_WRITTEN; its error names topic and partition."""

    def refuse(seen: RequestSeen) -> Action | None:
        denied = seen.api_key == PRODUCE and seen.batches[0].topic == "private"
        return Refuse(ErrorCode.topic_authorization_failed) if denied else None

    async with EmbeddedCluster() as cluster, Producer(cluster.bootstrap_servers) as producer:
        cluster.intercept(refuse)
        with pytest.raises(TopicAuthorizationFailedError, match="private-0") as caught:
            await producer.send("private", b"x")
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN
        assert (await producer.send("public", b"x")).offset == 0


@pytest.mark.parametrize(
    ("code", "kind", "named"),
    [
        (ErrorCode.cluster_authorization_failed, ClusterAuthorizationFailedError, "the cluster"),
        (
            ErrorCode.transactional_id_authorization_failed,
            TransactionalIdAuthorizationFailed,
            "the transactional id",
        ),
    ],
)
@bounded(20)
async def test_a_producer_id_that_is_refused_says_which_right_is_missing(
    code: ErrorCode, kind: type[Exception], named: str
) -> None:
    """The error of a refused producer ID names the missing permission."""

    def refuse(seen: RequestSeen) -> Action | None:
        if seen.api_key != INIT_PRODUCER_ID:
            return None
        values = {
            "throttle_time": ZERO_MS,
            "error_code": code,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        return Respond(respond(INIT_PRODUCER_ID, seen.api_version, values))

    async with EmbeddedCluster() as cluster:
        cluster.intercept(refuse)
        with pytest.raises(kind, match=f"WRITE on {named}"):
            await Producer(cluster.bootstrap_servers).start()

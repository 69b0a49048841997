"""The producer detects a broker that announces a window of 20 batches and remembers only five.

The producer detects this when a connection is lost and the broker refuses the retries. The
producer logs one warning, has at most five batches in flight to that broker from then on, and
loses no record. A restarted broker refuses such retries, too; the producer logs no warning about
that broker.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Literal

import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer
from aioidem._broker.intercept import Action, CloseConnection, Drop, RequestSeen, Rewrite
from aioidem._producer.delivery import Delivery
from aioidem.broker import EmbeddedCluster

from .tools import (
    ONE_EACH,
    PRODUCE,
    bounded,
    numbered,
    partition_of,
    producer_for,
    stored_values,
    virtual_time,
)

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]

RTT = 0.02
TWENTY = {"max_in_flight_requests_per_connection": 20, **ONE_EACH}


class Broker:
    """An interceptor that can announce a false window, and drop the next Produce answers.

    `says` is the window to announce, or None for the broker's own. `loses` is the number of answers
    to drop; the connection is closed in place of the last of them.
    """

    def __init__(self, says: int | None) -> None:
        self.says = says
        self.loses = 0
        self.refusals = 0

    def hook(self, seen: RequestSeen) -> Action | None:
        if seen.api_key != PRODUCE:
            return None
        if self.loses:
            self.loses -= 1
            lost = Drop(processed=True, silent=False)
            return lost if self.loses else CloseConnection(processed=True)
        return None if self.says is None or seen.api_version < 14 else Rewrite(self._lie)

    def _lie(self, answer: Any) -> Any:
        return dataclasses.replace(
            answer, responses=tuple(self._lie_of(topic) for topic in answer.responses)
        )

    def _lie_of(self, topic: Any) -> Any:
        codes = [part.error_code for part in topic.partition_responses]
        self.refusals += codes.count(ErrorCode.out_of_order_sequence_number)
        parts = tuple(
            dataclasses.replace(part, producer_state_batches_to_retain=self.says)
            if part.error_code == ErrorCode.none
            else part
            for part in topic.partition_responses
        )
        return dataclasses.replace(topic, partition_responses=parts)


async def lose(producer: Producer, broker: Broker, count: int, start: int) -> list[Delivery]:
    """Let the broker append `count` batches unanswered; wait until each batch has its outcome."""
    broker.loses = count
    deliveries = [producer.send_nowait("t", value) for value in numbered(count, start)]
    for delivery in deliveries:
        await delivery
    return deliveries


def accusations(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if "deduplicate" in r.getMessage()]


@bounded(60)
async def test_a_broker_that_says_20_and_keeps_5_is_reported_once_and_sent_5(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(says=20)
    async with EmbeddedCluster(retain=5, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(broker.hook)
        async with producer_for(cluster, **TWENTY) as producer:
            await producer.send_many("t", numbered(60))
            assert partition_of(producer).window == 20
            deliveries = await lose(producer, broker, 20, 60)
            assert broker.refusals
            assert {each.status for each in deliveries} == {DeliveryStatus.ACKED}
            while not accusations(caplog):
                # The producer warns only after new metadata has named the same leader again.
                await virtual_time(RTT)
            await producer.send_many("t", numbered(20, 80))
            assert partition_of(producer).window == 5
            assert "was seen to refuse a retry" in partition_of(producer).window_reason
            refused = broker.refusals
            await lose(producer, broker, 5, 100)
            assert broker.refusals == refused, "the broker remembers all that is now in flight"
            assert producer.statistics().epoch_bumps == 0
            assert producer.statistics().data_loss_events == 0
        assert stored_values(cluster) == numbered(105)
    [told] = accusations(caplog)
    assert told.levelno == logging.WARNING
    assert "says that it retains 20 batches" in told.getMessage()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@bounded(60)
async def test_a_broker_that_was_restarted_keeps_its_good_name(
    transport: Transport, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer logs no warning about a restarted broker, although the broker refuses retries.

    The broker does remember 20 batches per producer, as it announces. But after a restart it knows
    only the last batch of each producer.
    """
    broker = Broker(says=None)
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(broker.hook)
        async with producer_for(cluster, **TWENTY) as producer:
            await producer.send_many("t", numbered(60))
            broker.loses = 21
            deliveries = [producer.send_nowait("t", value) for value in numbered(20, 60)]
            while broker.loses > 1:
                await virtual_time(0.001)
            await cluster.stop_broker(0, clean=clean)
            await cluster.start_broker(0)
            broker.loses = 0
            for delivery in deliveries:
                await delivery
            await producer.send_many("t", numbered(20, 80))
            assert partition_of(producer).window == 20
        assert stored_values(cluster) == numbered(100)
    assert not accusations(caplog)

"""An observer receives the facts of each batch, and cannot disturb the producer."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer, SentBatch, SettledBatch, errors
from aioidem.broker import EmbeddedCluster, Refuse, RequestSeen

from .tools import PRODUCE, bounded

pytestmark = pytest.mark.anyio


@dataclass
class Memory:
    """An observer that keeps what it receives."""

    sent: list[SentBatch] = field(default_factory=list)
    settled: list[SettledBatch] = field(default_factory=list)
    waited: list[tuple[str, int | None, float]] = field(default_factory=list)

    def on_batch_sent(self, batch: SentBatch, /) -> None:
        self.sent.append(batch)

    def on_batch_settled(self, batch: SettledBatch, /) -> None:
        self.settled.append(batch)

    def on_waited(self, topic: str, partition: int | None, seconds: float, /) -> None:
        self.waited.append((topic, partition, seconds))


class Broken:
    """An observer that raises at every call."""

    def on_batch_sent(self, batch: SentBatch, /) -> None:
        raise RuntimeError(f"sent {batch.records}")

    def on_batch_settled(self, batch: SettledBatch, /) -> None:
        raise RuntimeError(f"settled {batch.records}")

    def on_waited(self, topic: str, partition: int | None, seconds: float, /) -> None:
        raise RuntimeError(f"waited {seconds} s for {topic}-{partition}")


@pytest.mark.parametrize("recorded", [0, 1_000], ids=["no flight recorder", "recorded"])
@bounded(20)
async def test_an_observer_receives_each_attempt_and_the_outcome(recorded: int) -> None:
    """A batch that is refused once is reported as sent twice, and as settled once."""
    async with EmbeddedCluster(rtt=0.1) as cluster:
        cluster.create_topic("t")
        refusals = [Refuse(ErrorCode.not_leader_or_follower)]

        def refuse_once(seen: RequestSeen) -> Refuse | None:
            return refusals.pop() if refusals and seen.api_key == PRODUCE else None

        cluster.intercept(refuse_once)
        memory = Memory()
        async with Producer(
            cluster.bootstrap_servers,
            connector=cluster.connector,
            observer=memory,
            flight_recorder=recorded,
        ) as producer:
            for _ in range(3):
                producer.send_nowait("t", b"value", partition=0)
    assert [(each.topic, each.partition, each.records) for each in memory.sent] == [("t", 0, 3)] * 2
    assert [each.attempt for each in memory.sent] == [1, 2]
    [settled] = memory.settled
    assert (settled.records, settled.status, settled.error) == (3, DeliveryStatus.ACKED, None)
    assert settled.queued_at <= memory.sent[0].sent_at < memory.sent[1].sent_at
    assert settled.sent_at == memory.sent[1].sent_at
    assert settled.settled_at >= memory.sent[1].sent_at


@bounded(20)
async def test_an_observer_receives_why_records_failed() -> None:
    """An observer receives the error of a record that was never in a batch, with partition -1."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        memory = Memory()
        async with Producer(
            cluster.bootstrap_servers, connector=cluster.connector, observer=memory
        ) as producer:
            with pytest.raises(errors.KafkaError) as caught:
                await producer.send("t", b"value", partition=7)
    [settled] = memory.settled
    assert (settled.topic, settled.partition, settled.records) == ("t", -1, 1)
    assert settled.status is caught.value.status is DeliveryStatus.NOT_WRITTEN
    assert isinstance(settled.error, type(caught.value))
    assert settled.sent_at is None
    assert memory.sent == []


@pytest.mark.parametrize("bad", [{1}, {0, 2}, {2, 3}])
@bounded(20)
async def test_a_record_that_is_refused_alone_was_sent_with_its_batch(bad: set[int]) -> None:
    """KIP-467: the others are sent again, and each refused record is settled for itself."""
    async with EmbeddedCluster(rtt=0.1) as cluster:
        cluster.create_topic("t", configs={"cleanup.policy": "compact"})
        memory = Memory()
        async with Producer(
            cluster.bootstrap_servers, connector=cluster.connector, observer=memory
        ) as producer:
            for number in range(4):
                key = None if number in bad else b"k"
                producer.send_nowait("t", b"value", key=key, partition=0)
    first, again = memory.sent
    assert (first.records, again.records) == (4, 4 - len(bad))
    refused = [each for each in memory.settled if each.error is not None]
    assert sum(each.records for each in refused) == len(bad)
    assert {each.sent_at for each in refused} == {first.sent_at}
    assert [each.sent_at for each in memory.settled if each.error is None] == [again.sent_at]


@bounded(20)
async def test_an_observer_that_raises_is_logged_and_disturbs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with Producer(
            cluster.bootstrap_servers, connector=cluster.connector, observer=Broken()
        ) as producer:
            with caplog.at_level(logging.ERROR, "aioidem"):
                assert [(await producer.send("t", b"v")).offset for _ in range(2)] == [0, 1]
    raised = [str(each.exc_info[1]) for each in caplog.records if each.exc_info]
    assert raised == ["sent 1", "settled 1"] * 2

"""Tools of this folder: the roles of brokers in a test, hooks on their proxies, and final checks.

Where a test expects a fault's error code, it looks for the code in the answers that the broker's
proxy has seen. So the test fails if its fault did not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from aioidem import Producer
from aioidem._broker.entities import from_ms
from aioidem._protocol.messages import (
    decode_request,
    decode_response,
    encode_request,
    response_type,
)
from aioidem.structs import DeliveryStatus
from aioidem.testing import (
    Action,
    Expectations,
    FrameSeen,
    Inspect,
    KafkaCluster,
    Rewrite,
    ValueId,
    parse_value,
)
from tests.kafka.tools import PRODUCE, History, judge, outcomes, records_of
from tests.kafka.world import until

METADATA: Final = 3
SAFE: Final = {"min.insync.replicas": 2}
"""A config under which an acknowledgement means that two replicas have the record."""

_DESCRIBE_PRODUCERS: Final = (61, 0)
_LENGTH_BYTES: Final = 4


class Parts(NamedTuple):
    """The broker that plays each part in a test.

    The active controller is a broker too. Tests that stop a replica must not stop the controller:
    two nodes of three have to agree on everything.
    """

    controller: int
    a: int
    b: int


async def cast(cluster: KafkaCluster) -> Parts:
    """Choose the three brokers of a test: the controller, and the two others as `a` and `b`."""
    controller = await cluster.controller()
    a, b = (each.node_id for each in cluster.brokers if each.node_id != controller)
    return Parts(controller, a, b)


class Answer(NamedTuple):
    """A broker's answer for one batch."""

    partition: int
    code: int
    base_offset: int
    leader: int
    """The new leader that the answer names (KIP-951), or -1."""


class Tap:
    """A hook on one broker's proxy, which records Produce answers and can disturb frames.

    `request` is called with the partitions of each Produce request, and returns the action on that
    request. `answer` is the action on each Produce answer, and `metadata` the action on each
    Metadata answer that names topics.
    """

    def __init__(self, cluster: KafkaCluster, broker: int) -> None:
        self.request: Callable[[Sequence[int]], Action | None] = lambda _: None
        self.answer: Action | None = None
        self.metadata: Action | None = None
        self.requests = 0
        self.answers: list[list[Answer]] = []
        self._proxy = cluster.proxies[broker]
        self._proxy.on_request = self._on_request
        self._proxy.on_answer = self._on_answer

    @property
    def said(self) -> list[tuple[int, bool]]:
        """The error code of each batch, in order, and whether a base offset came with it."""
        return [(each.code, each.base_offset >= 0) for batch in self.answers for each in batch]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked after each frame."""
        await self._proxy.until(condition)

    def _on_request(self, seen: FrameSeen) -> Action | None:
        return Inspect(self._asked) if seen.api_key == PRODUCE else None

    def _asked(self, payload: bytes) -> Action | None:
        request: Any = decode_request(payload)[1]
        self.requests += 1
        self._proxy.notify()
        return self.request([part.index for t in request.topic_data for part in t.partition_data])

    def _on_answer(self, seen: FrameSeen) -> Action | None:
        version = seen.api_version
        if seen.api_key == METADATA:
            return Inspect(lambda payload: self._named(version, payload))
        return Inspect(lambda payload: self._told(version, payload)) if not seen.api_key else None

    def _named(self, version: int, payload: bytes) -> Action | None:
        schema = response_type(METADATA, version)
        assert schema is not None
        response: Any = decode_response(schema, payload)[1]
        # An answer without topics only tells the producer the cluster id.
        return self.metadata if response.topics else None

    def _told(self, version: int, payload: bytes) -> Action | None:
        schema = response_type(PRODUCE, version)
        assert schema is not None
        response: Any = decode_response(schema, payload)[1]
        self.answers.append(
            [
                Answer(
                    part.index,
                    int(part.error_code),
                    int(part.base_offset),
                    int(part.current_leader.leader_id) if version >= 10 else -1,
                )
                for topic in response.responses
                for part in topic.partition_responses
            ]
        )
        self._proxy.notify()
        return self.answer


def patience(milliseconds: int) -> Rewrite:
    """Return an action that sets how long a broker waits for followers (the timeout in Produce).

    The producer sends its own request timeout, so it would close the connection before the broker
    answers REQUEST_TIMED_OUT.
    """

    def change(payload: bytes) -> bytes:
        header, request = decode_request(payload)
        entity: Any = request
        frame = encode_request(
            replace(entity, timeout=from_ms(milliseconds)),
            correlation_id=int(header.correlation_id),
            client_id=header.client_id,
        )
        return frame[_LENGTH_BYTES:]

    return Rewrite(change)


async def appended(cluster: KafkaCluster, broker: int, topic: str, last_sequence: int) -> None:
    """Wait until the replica at `broker` has the only producer's batches up to `last_sequence`."""
    place = {"name": topic, "partition_indexes": [0]}

    async def there() -> bool:
        answer = await cluster.ask(*_DESCRIBE_PRODUCERS, broker=broker, topics=[place])
        active = answer.topics[0].partitions[0].active_producers
        return any(int(each.last_sequence) >= last_sequence for each in active)

    await until(there)


async def through(*histories: History) -> None:
    """Send one more record for each history, and wait until those records have outcomes."""
    await outcomes([each for history in histories for each in history.send(1)])


def said_of(histories: Sequence[History]) -> Mapping[DeliveryStatus, int]:
    """Count the records by their outcome."""
    found = [each.status for history in histories for each in history.deliveries]
    return {status: found.count(status) for status in set(found)}


async def verdict(
    cluster: KafkaCluster,
    topic: str,
    histories: Sequence[History],
    lost: Collection[ValueId] = (),
) -> dict[int, list[int]]:
    """Compare the outcomes with the records that Kafka's dump tool reads from the leaders' disks.

    Returns, for each partition, the numbers of the send calls in the order of the log.
    """
    log = [
        record
        for partition, dump in (await cluster.dump_topic(topic)).items()
        for record in records_of(topic, partition, dump)
    ]
    assert judge(histories, log, Expectations(lost=frozenset(lost))) == []
    calls: dict[int, list[int]] = {}
    for record in log:
        value = parse_value(record.value)
        assert value is not None
        calls.setdefault(record.partition, []).append(value.call)
    return calls


async def all_there(
    cluster: KafkaCluster, topic: str, producer: Producer, *histories: History
) -> None:
    """Assert that each record is ACKED and stored once, in order, and that no epoch was bumped."""
    assert said_of(histories) == {
        DeliveryStatus.ACKED: sum(len(each.deliveries) for each in histories)
    }
    told = producer.statistics()
    assert (told.data_loss_events, told.epoch_bumps, told.records_queued) == (0, 0, 0)
    assert await verdict(cluster, topic, histories) == {
        each.rows[0].partition: list(range(len(each.rows))) for each in histories
    }

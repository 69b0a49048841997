"""Records that ended UNKNOWN on real brokers: `Producer.resolve` finds them, or says why it cannot.

In each incident the answers or the requests of a Produce request are lost until the record has
ended UNKNOWN, or the request is held back and reaches the broker later. The log, as Kafka's own
tool reads it when all is over, says what was true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from aioidem import Delivery, DeliveryStatus, Producer
from aioidem.errors import KafkaError
from aioidem.resolution import Resolution, UndecidedReason, Verdict
from aioidem.testing import Action, Drop, FrameSeen, Hold, KafkaCluster
from tests.kafka.tools import PRODUCE, bounded, outcomes
from tests.kafka.world import World, delete_records, forbid_reading, producer_of

pytestmark = pytest.mark.anyio

PARTITIONS = 7
IMPATIENT: dict[str, Any] = {"delivery_timeout": 2.5, "request_timeout": 1.0, "retry_backoff": 0.1}


def lose_answers(cluster: KafkaCluster) -> Callable[[], None]:
    """Let Produce requests be carried out, and lose their answers, until the result is called."""

    def hook(seen: FrameSeen) -> Action | None:
        return Drop() if seen.api_key == PRODUCE else None

    cluster.proxy.on_answer = hook
    return lambda: setattr(cluster.proxy, "on_answer", None)


def lose_requests(cluster: KafkaCluster) -> Callable[[], None]:
    """Lose Produce requests until the result is called."""

    def hook(seen: FrameSeen) -> Action | None:
        return Drop() if seen.api_key == PRODUCE else None

    cluster.proxy.on_request = hook
    return lambda: setattr(cluster.proxy, "on_request", None)


def hold_requests(cluster: KafkaCluster) -> Callable[[], None]:
    """Hold Produce requests back until the result is called; then they reach the broker."""
    held: list[Hold] = []

    def hook(seen: FrameSeen) -> Action | None:
        if seen.api_key != PRODUCE:
            return None
        held.append(Hold())
        return held[-1]

    cluster.proxy.on_request = hook

    def release() -> None:
        cluster.proxy.on_request = None
        for each in held:
            each.release()

    return release


async def doubtful(producer: Producer, topic: str) -> list[Delivery]:
    """Send one record to each partition, and wait until each has ended UNKNOWN."""
    sent = [
        producer.send_nowait(topic, b"doubtful", partition=number) for number in range(PARTITIONS)
    ]
    assert set(await outcomes(sent)) == {DeliveryStatus.UNKNOWN}
    return sent


async def offsets(cluster: KafkaCluster, topic: str) -> list[list[int]]:
    """Return the doubtful record's offsets in each partition's log, as Kafka's tool reads it."""
    logs = await cluster.dump_topic(topic)
    return [
        [
            record.offset
            for batch in logs[partition]
            for record in batch.records
            if record.payload == "doubtful"
        ]
        for partition in range(PARTITIONS)
    ]


async def each_resolved(sent: list[Delivery], timeout: float) -> list[Resolution]:
    """Ask for each delivery by itself, but for all of them at once."""
    found: dict[int, Resolution] = {}

    async def ask(number: int) -> None:
        found[number] = await sent[number].resolve(timeout)

    async with anyio.create_task_group() as tasks:
        for number in range(len(sent)):
            tasks.start_soon(ask, number)
    return [found[number] for number in range(len(sent))]


def judged(found: Resolution, there: list[int]) -> bool:
    """Return whether a verdict is right."""
    match found.verdict:
        case Verdict.WRITTEN:
            return there == [found.offset]
        case Verdict.ABSENT:
            return not there
    return True


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("cut", [lose_answers, lose_requests, hold_requests])
@bounded(120)
async def test_the_log_says_what_became_of_each_record(
    cluster: KafkaCluster,
    world: World,
    cut: Callable[[KafkaCluster], Callable[[], None]],
    first: bool,
) -> None:
    """No verdict is wrong, and each record is decided: WRITTEN at its offset, or ABSENT.

    The doubtful record is the first in its partition, or a later one. The first verdict comes
    before the producer has written again, the second one after that.
    """
    topic = f"resolve-{cut.__name__}-{first}".replace("_", "-")
    await cluster.create_topic(topic, partitions=PARTITIONS)
    async with producer_of(cluster, world, **IMPATIENT) as producer:
        if not first:
            await outcomes(
                producer.send_nowait(topic, b"before", partition=n) for n in range(PARTITIONS)
            )
        heal = cut(cluster)
        try:
            sent = await doubtful(producer, topic)
        finally:
            heal()
        early = await each_resolved(sent, timeout=3.0)
        after = [producer.send_nowait(topic, b"after", partition=n) for n in range(PARTITIONS)]
        assert set(await outcomes(after)) == {DeliveryStatus.ACKED}
        late = await producer.resolve(sent, timeout=30.0)
    there = await offsets(cluster, topic)
    assert all(map(judged, early, there))
    assert all(map(judged, late, there))
    assert {each.verdict for each in late} <= {Verdict.WRITTEN, Verdict.ABSENT}
    undecided = {UndecidedReason.NOT_FENCED, UndecidedReason.TIMED_OUT}  # of a slow machine
    assert {each.reason for each in early} <= {None, *undecided}
    if cut is not hold_requests:  # these may reach the broker before or after the fence
        certain = Verdict.WRITTEN if cut is lose_answers else Verdict.ABSENT
        assert {each.verdict for each in late} == {certain}


@bounded(60)
async def test_what_cannot_be_read_is_undecided(cluster: KafkaCluster, world: World) -> None:
    """Deleted records and a missing ACL are the reason, and nothing is guessed."""
    topic = "resolve-gone"
    await cluster.create_topic(topic)
    async with producer_of(cluster, world, **IMPATIENT) as producer:
        await producer.send(topic, b"before")
        heal = lose_answers(cluster)
        delivery = producer.send_nowait(topic, b"doubtful")
        with pytest.raises(KafkaError):
            await delivery
        heal()
        assert (await delivery.resolve(timeout=20.0)).verdict is Verdict.WRITTEN
        await producer.send(topic, b"after")
        await delete_records(cluster, topic)
        assert (await delivery.resolve(timeout=20.0)).reason is UndecidedReason.RETENTION
        await forbid_reading(cluster, topic)
        assert (await delivery.resolve(timeout=20.0)).reason is UndecidedReason.NO_PERMISSION

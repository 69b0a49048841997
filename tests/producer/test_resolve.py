"""A record that ended UNKNOWN is found in the log, or proved to be absent, or left undecided.

`tests/engine/test_log_search.py` tests the rule itself.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from typing import Any, Literal

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Delivery, DeliveryStatus, Producer, errors
from aioidem._admin.log_reading import resolve_incidents
from aioidem._broker.intercept import Action, CloseConnection, Drop, RequestSeen, Rewrite
from aioidem.broker import EmbeddedCluster
from aioidem.incident import Incident, incidents_from_json
from aioidem.resolution import Resolution, UndecidedReason, Verdict

from .tools import EVERY_WORLD, PRODUCE, ask, bounded, producer_for, virtual_time

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]

FETCH, METADATA, DELETE_RECORDS = 1, 3, 21
HOUR = 3600.0
IMPATIENT: dict[str, Any] = {"delivery_timeout": 3.0, "request_timeout": 1.0, "retry_backoff": 0.1}
HASTY: dict[str, Any] = {"delivery_timeout": 1.0, "request_timeout": 0.2, "retry_backoff": 0.1}


class Fate:
    """An interceptor that decides what becomes of Produce requests.

    `lose` is None to serve them, True to append the batches but drop all answers, and False to drop
    the requests.
    """

    def __init__(self) -> None:
        self.lose: bool | None = None
        self.denied: set[int] = set()
        self.served = 0

    def __call__(self, seen: RequestSeen) -> Action | None:
        if seen.api_key in self.denied:
            return Rewrite(_denied)
        if seen.api_key != PRODUCE or self.lose is None:
            return None
        self.served += 1
        return Drop(processed=self.lose)


def _denied(answer: Any) -> Any:
    """Return a Fetch answer as the broker sends it if the ACL READ is missing."""
    code = ErrorCode.topic_authorization_failed
    topics = tuple(
        dataclasses.replace(
            topic,
            partitions=tuple(
                dataclasses.replace(part, error_code=code, records=None)
                for part in topic.partitions
            ),
        )
        for topic in answer.responses
    )
    return dataclasses.replace(answer, responses=topics)


async def doubtful(
    cluster: EmbeddedCluster, producer: Producer, *, written: bool, values: int = 1
) -> list[Delivery]:
    """Send records of which the answers are lost until each has ended UNKNOWN.

    Args:
        cluster: the cluster.
        producer: the producer.
        written: whether the broker appends them.
        values: how many records.
    """
    fate = Fate()
    fate.lose = written
    cluster.intercept(fate)
    deliveries = [producer.send_nowait("t", b"doubtful %d" % n) for n in range(values)]
    for each in deliveries:
        with pytest.raises(errors.KafkaError):
            await each
        assert each.status is DeliveryStatus.UNKNOWN
    assert fate.served
    cluster.intercept(None)
    return deliveries


def stored_offset(cluster: EmbeddedCluster, value: bytes) -> int:
    """Return the offset at which the leader has a value; -1 if it has none."""
    found = [each.offset for each in cluster.records("t", 0) if each.value == value]
    assert len(found) < 2
    return found[0] if found else -1


@EVERY_WORLD
@bounded(60)
@pytest.mark.parametrize("written", [True, False])
async def test_the_log_says_what_no_answer_said(transport: Transport, written: bool) -> None:
    """A lost answer leaves the record UNKNOWN, and the log says at which offset it is, or absent.

    Absent is certain once the producer has written there again: brokers refuse a late copy then.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **HASTY) as producer:
            await producer.send("t", b"before")
            deliveries = await doubtful(cluster, producer, written=written, values=3)
            await producer.send("t", b"after")
            for number, each in enumerate(deliveries):
                found = await each.resolve(timeout=10.0)
                offset = stored_offset(cluster, b"doubtful %d" % number)
                assert (offset >= 0) is written
                assert found.verdict is (Verdict.WRITTEN if written else Verdict.ABSENT)
                assert found.offset == offset


@bounded(60)
async def test_while_a_copy_may_arrive_the_record_is_not_called_absent(
    transport: Transport,
) -> None:
    """Without a later batch of the producer, a request that a broker still holds would be appended.

    The answer comes as soon as there is a later batch.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=False)
            found = await delivery.resolve(timeout=5.0)
            assert found.reason is UndecidedReason.NOT_FENCED
            assert "Send another record" in found.detail
            answers: list[Resolution] = []

            async def resolve() -> None:
                answers.append(await delivery.resolve(timeout=30.0))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(resolve)
                await virtual_time(3.0)
                await producer.send("t", b"after")
            assert answers[0].verdict is Verdict.ABSENT


@bounded(60)
async def test_a_partition_that_waits_takes_no_time_from_others(transport: Transport) -> None:
    """Of two partitions, only the later one has a fence, and only its record is decided.

    The other one is read on until the timeout.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", partitions=2)
        async with producer_for(cluster, **HASTY) as producer:
            for partition in (0, 1):
                await producer.send("t", b"before", partition=partition)
            fate = Fate()
            fate.lose = False
            cluster.intercept(fate)
            failures: list[errors.KafkaError] = []
            for partition in (0, 1):
                with pytest.raises(errors.KafkaError) as caught:
                    await producer.send("t", b"doubtful", partition=partition)
                failures.append(caught.value)
            cluster.intercept(None)
            await producer.send("t", b"after", partition=1)
            waits, decided = await producer.resolve(failures, timeout=5.0)
            assert waits.reason is UndecidedReason.NOT_FENCED
            assert decided.verdict is Verdict.ABSENT


@bounded(60)
async def test_a_silent_broker_takes_no_time_from_the_partitions_of_others(
    transport: Transport,
) -> None:
    """However many partitions it leads: as many are read at once from each broker."""
    async with EmbeddedCluster(transport=transport, brokers=2) as cluster:
        cluster.create_topic("t", partitions=60)
        silent = [cluster.leader("t", partition) == 1 for partition in range(60)]
        assert sum(silent) == 30
        async with producer_for(cluster, **HASTY) as producer:
            fate = Fate()
            fate.lose = True
            cluster.intercept(fate)
            failures: list[errors.KafkaError] = []
            sent = [producer.send_nowait("t", b"x", partition=each) for each in range(60)]
            for delivery in sent:
                with pytest.raises(errors.KafkaError) as caught:
                    await delivery
                failures.append(caught.value)
            cluster.intercept(
                lambda seen: Drop() if (seen.broker_id, seen.api_key) == (1, FETCH) else None
            )
            # Those of the silent broker come first.
            failures.sort(key=lambda error: not silent[_incident(error).partition])
            found = await resolve_incidents(
                dataclasses.replace(producer.config, request_timeout=5.0, delivery_timeout=9.0),
                map(_incident, failures),
                timeout=5.0,
                wait_for_fence=False,
                connector=cluster.connector,
            )
            assert [each.verdict for each in found[30:]] == [Verdict.WRITTEN] * 30
            assert [each.reason for each in found[:30]] == [UndecidedReason.TIMED_OUT] * 30


def _incident(error: errors.KafkaError) -> Incident:
    assert error.incident is not None
    return error.incident


@bounded(60)
async def test_the_first_batch_of_a_partition_is_looked_for_by_time(transport: Transport) -> None:
    """No acknowledged record is before it, so the whole log is read, the recent part first."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            [delivery] = await doubtful(cluster, producer, written=True)
            error = delivery.exception()
            assert error is not None
            assert error.incident is not None
            assert error.incident.after is None
            [found] = await producer.resolve(error)
            assert (found.verdict, found.offset) == (Verdict.WRITTEN, 0)
            [other] = await doubtful(cluster, producer, written=False)
            await producer.send("t", b"after")
            assert (await other.resolve()).verdict is Verdict.ABSENT


@bounded(60)
async def test_a_closed_producer_can_still_ask(transport: Transport) -> None:
    """The log is read on connections of its own, so the producer need not run any more."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
        found = await delivery.resolve()
        assert (found.verdict, found.offset) == (Verdict.WRITTEN, 1)


@bounded(60)
async def test_of_a_call_with_many_records_the_failed_ones_are_looked_for(
    transport: Transport,
) -> None:
    """A list of deliveries, or the error of `send_many`, gives a resolution for each failed one."""
    fate = Fate()
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            acked = producer.send_nowait("t", b"before")
            await acked
            cluster.intercept(fate)
            fate.lose = True
            values = [b"%d" % number for number in range(5)]
            with pytest.raises(errors.PartialDeliveryError) as caught:
                await producer.send_many("t", values)
            cluster.intercept(None)
            found = await producer.resolve(caught.value)
            assert [each.offset for each in found] == [1, 2, 3, 4, 5]
            assert {each.verdict for each in found} == {Verdict.WRITTEN}
            again = await producer.resolve([acked, *caught.value.deliveries])
            assert again == found


@bounded(60)
async def test_a_known_outcome_needs_no_log(transport: Transport) -> None:
    """Acknowledged and refused records are known to be written and absent."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": "1000"})
        async with producer_for(cluster, **IMPATIENT) as producer:
            acked = producer.send_nowait("t", b"small")
            found = await acked.resolve()  # waits for the outcome
            assert (found.verdict, found.offset) == (Verdict.WRITTEN, 0)
            refused = producer.send_nowait("t", bytes(5000))
            assert (await refused.resolve()).verdict is Verdict.ABSENT
            with pytest.raises(errors.RecordError, match="no outcome"):
                await producer.resolve(errors.KafkaError("not a record's"))
            with pytest.raises(errors.RecordError, match="no outcome"):
                await producer.resolve([producer.send_nowait("t", b"pending")])


@bounded(60)
async def test_a_record_without_an_identity_is_undecided(transport: Transport) -> None:
    """With acks=0 nothing in the log identifies a batch."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, acks=0, enable_idempotence=False) as producer:
            found = await producer.send_nowait("t", b"x").resolve()
            assert found.reason is UndecidedReason.NO_IDENTITY


@bounded(60)
async def test_without_permission_to_read_nothing_is_decided(transport: Transport) -> None:
    """TOPIC_AUTHORIZATION_FAILED in a Fetch answer: the ACL READ is missing."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
            fate = Fate()
            fate.denied.add(FETCH)
            cluster.intercept(fate)
            found = await delivery.resolve()
            assert found.reason is UndecidedReason.NO_PERMISSION
            assert "t-0 may not be read" in found.detail
            cluster.intercept(None)
            assert (await delivery.resolve()).verdict is Verdict.WRITTEN


@bounded(60)
@pytest.mark.parametrize("first", [True, False])
async def test_a_deleted_log_decides_nothing(transport: Transport, first: bool) -> None:
    """If the place where a copy could be was deleted, its absence proves nothing."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            if not first:
                await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
            await producer.send("t", b"after")
            end = cluster.high_watermark("t")
            partition = {"partition_index": 0, "offset": end - 1}
            topics = [{"name": "t", "partitions": [partition]}]
            await ask(cluster, DELETE_RECORDS, 2, topics=topics, timeout=_seconds(5))
            found = await delivery.resolve()
            assert found.reason is UndecidedReason.RETENTION


@bounded(60)
async def test_a_recreated_topic_decides_nothing(transport: Transport) -> None:
    """The log of the old topic is gone; a topic that does not exist has none."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
            cluster.delete_topic("t")
            found = await delivery.resolve(timeout=20.0)
            assert found.reason is UndecidedReason.TOPIC_GONE
            assert "no topic 't'" in found.detail
            cluster.create_topic("t")
            found = await delivery.resolve()
            assert found.reason is UndecidedReason.TOPIC_GONE
            assert "another topic by now" in found.detail


@bounded(60)
async def test_a_log_that_lost_its_end_decides_nothing(transport: Transport) -> None:
    """After an unclean election a copy may be before the place where the reading would begin."""
    async with EmbeddedCluster(brokers=2, transport=transport) as cluster:
        cluster.create_topic("t", replication=2)
        async with producer_for(cluster, **IMPATIENT) as producer:
            leader = cluster.leader("t")
            other = 1 - leader
            await producer.send("t", b"first")
            cluster.shrink_isr("t", 0, other)
            cluster.pause_follower("t", 0, other)
            await producer.send("t", b"lost")
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=False)
            cluster.state.topics["t"].partitions[0].elect(other)
            found = await delivery.resolve(timeout=10.0)
            assert found.reason is UndecidedReason.TRUNCATED


@bounded(60)
async def test_a_new_leader_has_the_same_answer(transport: Transport) -> None:
    """The log is read from whoever leads; a reading that the election interrupts begins anew.

    Each request names the leader epoch, so that no page comes from another leader's log unnoticed.
    """
    async with EmbeddedCluster(brokers=2, transport=transport) as cluster:
        cluster.create_topic("t", replication=2)
        named: list[int] = []

        def move(seen: RequestSeen) -> Action | None:
            if seen.api_key == FETCH:
                named.append(seen.request.topics[0].partitions[0].current_leader_epoch)
                if len(named) == 1:
                    cluster.move_leader("t", 0, 1 - cluster.leader("t"))
            return None

        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
            cluster.intercept(move)
            before = cluster.leader_epoch("t")
            found = await delivery.resolve()
            assert (named[0], named[-1]) == (before, cluster.leader_epoch("t"))
            assert named[0] < named[-1]
            assert (found.verdict, found.offset) == (Verdict.WRITTEN, 1)


@bounded(60)
async def test_a_new_leader_that_is_silent_is_said_not_to_have_been_read(
    transport: Transport,
) -> None:
    """What the old leader had shown does not count any more, and nothing else is known."""
    async with EmbeddedCluster(brokers=2, transport=transport) as cluster:
        cluster.create_topic("t", replication=2)
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=False)
            read = 0

            def move(seen: RequestSeen) -> Action | None:
                nonlocal read
                if seen.api_key != FETCH:
                    return None
                read += 1
                if read == 1:
                    return None
                if read == 2:
                    cluster.move_leader("t", 0, 1 - cluster.leader("t"))
                    return None
                return Drop(processed=False)

            cluster.intercept(move)
            found = await delivery.resolve(timeout=1.0)
            assert found.reason is UndecidedReason.TIMED_OUT
            assert "t-0 was not read in time" in found.detail


@bounded(60)
async def test_a_cluster_that_does_not_answer_leaves_it_undecided_in_time(
    transport: Transport,
) -> None:
    """The timeout bounds the reading, and the detail has the last failure."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
            cluster.intercept(lambda seen: CloseConnection() if seen.api_key == FETCH else None)
            before = anyio.current_time()
            found = await delivery.resolve(timeout=7.0)
            assert anyio.current_time() - before == pytest.approx(7.0, abs=0.1)
            assert found.reason is UndecidedReason.TIMED_OUT
            assert "t-0 was not read in time: KafkaConnectionError" in found.detail


@bounded(60)
async def test_a_record_of_an_aborted_transaction_says_who_sees_it(transport: Transport) -> None:
    """An aborted record is in the log, and consumers of committed data do not see it."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, transactional_id="x", **IMPATIENT) as producer:
            async with producer.transaction():
                await producer.send("t", b"before")
            await producer.begin_transaction()
            [delivery] = await doubtful(cluster, producer, written=True)
            assert (await delivery.resolve(timeout=5.0)).committed is None
            await producer.abort_transaction()
            found = await delivery.resolve()
            assert (found.verdict, found.committed) == (Verdict.WRITTEN, False)
            assert "aborted" in found.detail


@bounded(60)
async def test_an_incident_can_be_resolved_by_another_process(transport: Transport) -> None:
    """A file of incidents is enough; a copy of the delivery is not, because it has no passwords."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **IMPATIENT) as producer:
            await producer.send("t", b"before")
            deliveries = await doubtful(cluster, producer, written=True, values=2)
            incidents: list[Incident] = []
            for each in deliveries:
                error = each.exception()
                assert error is not None
                assert error.incident is not None
                incidents += incidents_from_json(error.incident.to_json())
            config = producer.config
            with pytest.raises(errors.IllegalStateError, match="another process"):
                await pickle.loads(pickle.dumps(deliveries[0]._context)).resolver.resolve([], 1.0)  # noqa: S301, SLF001
        found = await resolve_incidents(
            config, incidents, timeout=10.0, wait_for_fence=False, connector=cluster.connector
        )
        assert [each.offset for each in found] == [1, 2]


@bounded(60)
@pytest.mark.parametrize("told", [None, HOUR])
async def test_the_option_says_after_which_time_brokers_forget_a_producer(
    transport: Transport, told: float | None
) -> None:
    """Its default is Kafka's, a day: then a batch of an hour ago still keeps late copies out."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **HASTY) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=False)
            await producer.send("t", b"after", timestamp=time.time() - HOUR)
            error = delivery.exception()
            assert error is not None
            incident = _incident(error)
            config = dataclasses.replace(producer.config, producer_id_expiration=told)
        [found] = await resolve_incidents(
            config, [incident], timeout=10.0, wait_for_fence=False, connector=cluster.connector
        )
        assert found.verdict is (Verdict.ABSENT if told is None else Verdict.UNDECIDED)
        assert found.reason is (None if told is None else UndecidedReason.FORGOTTEN)


def _seconds(count: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=count)


@EVERY_WORLD
@bounded(60)
async def test_a_partition_that_is_named_twice_is_looked_for_all_the_same(
    transport: Transport,
) -> None:
    """No metadata of a broker makes the call raise: an odd answer is read as far as it goes."""

    def twice(answer: Any) -> Any:
        [topic] = answer.topics
        doubled = dataclasses.replace(topic, partitions=topic.partitions * 2)
        return dataclasses.replace(answer, topics=(doubled,))

    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **HASTY) as producer:
            await producer.send("t", b"before")
            [delivery] = await doubtful(cluster, producer, written=True)
            error = delivery.exception()
            assert error is not None
            assert error.incident is not None
        cluster.intercept(lambda seen: Rewrite(twice) if seen.api_key == METADATA else None)
        [found] = await resolve_incidents(
            producer.config,
            [error.incident],
            timeout=10.0,
            wait_for_fence=False,
            connector=cluster.connector,
        )
        assert found.verdict is Verdict.WRITTEN

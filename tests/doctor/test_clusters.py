"""Each set-up of a cluster or topic that harms a producer is a finding, with an ordinary client."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import ZERO_MS, respond
from aioidem._broker.intercept import Action, Drop, RequestSeen, Respond, Rewrite
from aioidem._doctor.finding import FindingName as Name
from aioidem._doctor.finding import Severity
from aioidem.broker import EmbeddedCluster

from .setups import bad, config_answers, findings, replaced, rewriting

pytestmark = pytest.mark.anyio

PRODUCE, METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 3, 10, 22


# --- permissions ----------------------------------------------------------------------------------


def granting(operations: int) -> Any:
    """Return a hook that says what the client may do with each topic."""

    def change(answer: Any) -> Any:
        topics = (replaced(each, topic_authorized_operations=operations) for each in answer.topics)
        return replaced(answer, topics=tuple(topics))

    return rewriting(METADATA, change)


async def test_a_client_that_may_only_write() -> None:
    """READ that is missing is a note."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        cluster.intercept(granting(1 << 4 | 1 << 8))
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == set()
    assert found[Name.READ_NOT_GRANTED].severity is Severity.NOTE


async def test_a_client_that_may_not_write() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        cluster.intercept(granting(1 << 8))
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == {Name.WRITE_NOT_GRANTED}


async def test_a_topic_that_the_client_may_not_see() -> None:
    def hidden(answer: Any) -> Any:
        code = ErrorCode.topic_authorization_failed
        topics = (replaced(each, error_code=code, partitions=()) for each in answer.topics)
        return replaced(answer, topics=tuple(topics))

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        cluster.intercept(rewriting(METADATA, hidden))
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == {Name.TOPIC_NOT_VISIBLE}


@pytest.mark.parametrize(
    ("discovery", "why"),
    [
        ("auto", "5 batches of a partition may be in flight (KIP-1269, but what the topic retains"),
        ("on", "5 batches of a partition may be in flight (KIP-1269: perhaps more, which"),
        ("off", "5 batches of a partition may be in flight (window_discovery is off)"),
    ],
)
async def test_a_client_that_may_not_read_configs(discovery: str, why: str) -> None:
    """Without DESCRIBE_CONFIGS a window above five batches may be withheld, and more is unknown."""

    def denied(result: Any) -> Any:
        of_topic = int(result.resource_type) == 2
        code = "topic_authorization_failed" if of_topic else "cluster_authorization_failed"
        return replaced(result, error_code=ErrorCode[code], configs=())

    async with EmbeddedCluster(retain=20) as cluster:
        cluster.create_topic("t")
        cluster.intercept(config_answers(denied, denied))
        found = await findings(cluster.bootstrap_servers, "t", window_discovery=discovery)
    withheld = {Name.WINDOW_WITHHELD} if discovery == "auto" else set()
    assert bad(found) == {Name.CONFIGS_NOT_GRANTED} | withheld
    assert why in found[Name.WINDOW].seen
    assert found[Name.EXPIRATION_UNKNOWN].severity is Severity.NOTE


async def test_a_producer_id_that_is_refused() -> None:
    def refuse(seen: RequestSeen) -> Action | None:
        if seen.api_key != INIT_PRODUCER_ID:
            return None
        values = {
            "throttle_time": ZERO_MS,
            "error_code": ErrorCode.cluster_authorization_failed,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        return Respond(respond(INIT_PRODUCER_ID, seen.api_version, values))

    async with EmbeddedCluster() as cluster:
        cluster.intercept(refuse)
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == {Name.PRODUCER_ID_REFUSED}


async def test_a_transactional_id_that_is_refused() -> None:
    """The doctor does not initialise the id, which would fence a producer that runs."""
    asked = set()

    def denied(answer: Any) -> Any:
        code = ErrorCode.transactional_id_authorization_failed
        found = (replaced(each, error_code=code) for each in answer.coordinators)
        return replaced(answer, coordinators=tuple(found))

    def hook(seen: RequestSeen) -> Action | None:
        asked.add(getattr(seen.request, "transactional_id", None))
        return Rewrite(denied) if seen.api_key == FIND_COORDINATOR else None

    async with EmbeddedCluster(transaction_version=0) as cluster:
        cluster.intercept(hook)
        found = await findings(cluster.bootstrap_servers, transactional_id="orders-1")
    assert bad(found) == {Name.TRANSACTIONAL_ID_REFUSED}
    assert found[Name.TRANSACTIONS_V1].severity is Severity.NOTE
    assert asked == {None}


@pytest.mark.parametrize("passes_after", [3, None])
async def test_a_coordinator_that_is_not_there_yet_is_asked_for_again(
    passes_after: int | None,
) -> None:
    """Brokers create the coordinators' topic at the first question; they may be unable to."""
    asked = 0

    def not_yet(answer: Any) -> Any:
        code = ErrorCode.coordinator_not_available
        found = (replaced(each, error_code=code) for each in answer.coordinators)
        return replaced(answer, coordinators=tuple(found))

    def hook(seen: RequestSeen) -> Action | None:
        nonlocal asked
        if seen.api_key != FIND_COORDINATOR:
            return None
        asked += 1
        return Rewrite(not_yet) if passes_after is None or asked <= passes_after else None

    async with EmbeddedCluster() as cluster:
        cluster.intercept(hook)
        found = await findings(
            cluster.bootstrap_servers, transactional_id="orders-1", retry_backoff=0.01
        )
    assert bad(found) == (set() if passes_after else {Name.COORDINATOR_MISSING})
    assert asked == (4 if passes_after else 6)


async def test_with_a_transactional_id_no_permission_for_another_producer_id_is_needed() -> None:
    def hook(seen: RequestSeen) -> Action | None:
        asked.add(seen.api_key)
        return None

    asked: set[int] = set()
    async with EmbeddedCluster() as cluster:
        cluster.intercept(hook)
        await findings(cluster.bootstrap_servers, transactional_id="orders-1")
        assert INIT_PRODUCER_ID not in asked
        await findings(cluster.bootstrap_servers)
    assert INIT_PRODUCER_ID in asked


async def test_a_topic_that_does_not_exist_is_not_created() -> None:
    async with EmbeddedCluster() as cluster:
        found = await findings(cluster.bootstrap_servers, "typo")
        assert not cluster.state.topics
    assert bad(found) == {Name.TOPIC_NOT_FOUND}


# --- replicas -------------------------------------------------------------------------------------


async def test_a_partition_without_leader() -> None:
    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        await cluster.stop_broker(1)
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == {Name.NO_LEADER, Name.REPLICA_OFFLINE}
    assert "t: partition 1:" in found[Name.NO_LEADER].seen


async def test_a_leader_without_the_client_s_listener() -> None:
    """Kafka names no leader then, though all brokers run."""

    def unlisted(answer: Any) -> Any:
        code = ErrorCode.listener_not_found
        topics = tuple(
            replaced(
                topic,
                partitions=tuple(
                    replaced(part, error_code=code, leader_id=-1)
                    if part.partition_index == 1
                    else part
                    for part in topic.partitions
                ),
            )
            for topic in answer.topics
        )
        return replaced(answer, topics=topics)

    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.intercept(rewriting(METADATA, unlisted))
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == {Name.LISTENER_MISSING}
    assert found[Name.LISTENER_MISSING].seen.startswith("t: partition 1: the leader has no listen")


async def test_too_few_replicas_in_sync() -> None:
    async with EmbeddedCluster(brokers=3) as cluster:
        cluster.create_topic("t", replication=3, configs={"min.insync.replicas": "2"})
        cluster.shrink_isr("t", 0, 1)
        spare = await findings(cluster.bootstrap_servers, "t")
        cluster.shrink_isr("t", 0, 2)
        few = await findings(cluster.bootstrap_servers, "t")
        weak = await findings(cluster.bootstrap_servers, "t", acks=1, enable_idempotence=False)
    assert bad(spare) == {Name.NO_SPARE_REPLICA}
    assert bad(few) == {Name.TOO_FEW_IN_SYNC}
    assert bad(weak) == set()
    assert Name.WEAK_ACKS in weak


async def test_one_replica_in_sync_is_enough() -> None:
    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", replication=2)
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == set()
    assert Name.ONE_IN_SYNC_IS_ENOUGH in found


# --- the topic's and the brokers' configs ---------------------------------------------------------


async def test_batches_larger_than_the_topic_accepts() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": "10000"})
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == {Name.BATCH_OVER_LIMIT}
    assert "max.message.bytes=10000" in found[Name.BATCH_OVER_LIMIT].seen
    assert Name.RECORD_OVER_LIMIT in found


async def test_a_codec_that_makes_the_broker_recompress() -> None:
    def gzip(result: Any) -> Any:
        configs = (
            replaced(each, value="gzip") if each.name == "compression.type" else each
            for each in result.configs
        )
        return replaced(result, configs=tuple(configs))

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        cluster.intercept(config_answers(gzip))
        other = await findings(cluster.bootstrap_servers, "t", compression_type="zstd")
        same = await findings(cluster.bootstrap_servers, "t", compression_type="gzip")
    assert bad(other) == {Name.BROKER_RECOMPRESSES}
    assert bad(same) == set()


async def test_records_that_wait_longer_than_the_topic_accepts() -> None:
    configs = {"message.timestamp.before.max.ms": "60000", "cleanup.policy": "compact"}
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", configs=configs)
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == {Name.WAITING_TOO_OLD}
    assert Name.KEYS_NEEDED in found


async def test_producer_ids_that_expire_too_soon() -> None:
    """A producer id must outlive two delivery timeouts, and the option must not overstate it."""
    async with EmbeddedCluster(configs={"producer.id.expiration.ms": "200000"}) as cluster:
        found = await findings(cluster.bootstrap_servers)
        stated = await findings(cluster.bootstrap_servers, producer_id_expiration=400.0)
    assert bad(found) == {Name.SHORT_EXPIRATION}
    assert bad(stated) == {Name.SHORT_EXPIRATION, Name.EXPIRATION_OVERSTATED}


async def test_brokers_of_two_releases() -> None:
    async with EmbeddedCluster(brokers=2, produce_versions={0: 13, 1: 14}) as cluster:
        found = await findings(cluster.bootstrap_servers)
    assert bad(found) == set()
    assert found[Name.VERSIONS_DIFFER].severity is Severity.NOTE


# --- the rate -------------------------------------------------------------------------------------


async def test_a_rate_that_the_round_trip_does_not_allow() -> None:
    """The finding says which option would allow the rate."""
    async with EmbeddedCluster(rtt=0.02) as cluster:
        cluster.create_topic("t")
        found = await findings(
            cluster.bootstrap_servers, "t", rate=50e6, late_sealing=False, buffer_memory=1000000
        )
        grown = await findings(cluster.bootstrap_servers, "t", rate=50e6)
    assert bad(found) == {Name.RATE_NOT_REACHED, Name.BUFFER_TOO_SMALL}
    assert "batch_size=" in found[Name.RATE_NOT_REACHED].cure
    assert bad(grown) == set()


async def test_a_window_that_is_not_used() -> None:
    async with EmbeddedCluster(retain=20) as cluster:
        cluster.create_topic("t")
        found = await findings(cluster.bootstrap_servers, "t")
    assert bad(found) == set()
    assert "20" in found[Name.WINDOW].seen
    assert Name.IN_FLIGHT_BELOW_WINDOW in found


async def test_a_producer_without_idempotence_has_no_window() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        found = await findings(
            cluster.bootstrap_servers,
            "t",
            enable_idempotence=False,
            max_in_flight_requests_per_connection=9,
        )
    assert Name.WINDOW not in found
    assert "9 batches in flight" in found[Name.RATE].seen


# --- what is written with --write-to --------------------------------------------------------------


async def test_a_broker_that_keeps_as_many_batches_as_it_says() -> None:
    async with EmbeddedCluster(retain=8) as cluster:
        cluster.create_topic("t")
        found = await findings(cluster.bootstrap_servers, "t", write_to="t")
        assert cluster.log_end_offset("t") == 8
    assert bad(found) == set()
    assert "up to 8 back" in found[Name.RETAINED].seen


async def test_a_broker_that_keeps_fewer_batches_than_it_says() -> None:
    def boast(answer: Any) -> Any:
        topics = (
            replaced(
                topic,
                partition_responses=tuple(
                    replaced(each, producer_state_batches_to_retain=20)
                    for each in topic.partition_responses
                ),
            )
            for topic in answer.responses
        )
        return replaced(answer, responses=tuple(topics))

    async with EmbeddedCluster(retain=6) as cluster:
        cluster.create_topic("t")
        cluster.intercept(rewriting(PRODUCE, boast))
        found = await findings(cluster.bootstrap_servers, "t", write_to="t")
        assert cluster.log_end_offset("t") == 20
    assert bad(found) == {Name.FEWER_RETAINED}
    assert "up to 6 back and refused the one 7 back" in found[Name.FEWER_RETAINED].seen


async def test_a_broker_whose_clock_is_wrong() -> None:
    """The append time in an answer shows the clock of a broker."""
    configs = {"message.timestamp.type": "LogAppendTime"}
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", configs=configs)
        right = await findings(cluster.bootstrap_servers, "t", write_to="t")
        cluster.set_clock_offset(0, -300.0)
        wrong = await findings(cluster.bootstrap_servers, "t", write_to="t")
    assert bad(right) == set()
    assert Name.CLOCK in right
    assert bad(wrong) == {Name.CLOCK_SKEW}
    assert "behind this machine's" in wrong[Name.CLOCK_SKEW].seen


async def test_a_probe_that_is_refused() -> None:
    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", replication=2, configs={"min.insync.replicas": "2"})
        cluster.shrink_isr("t", 0, 1)
        found = await findings(cluster.bootstrap_servers, "t", write_to="t")
    assert bad(found) == {Name.TOO_FEW_IN_SYNC, Name.PROBE_FAILED}
    assert "NOT_ENOUGH_REPLICAS" in found[Name.PROBE_FAILED].seen


# --- time -----------------------------------------------------------------------------------------


async def test_an_examination_that_is_not_finished_in_time() -> None:
    """What was learned by then is reported, and what is missing is a finding."""

    def lose(seen: RequestSeen) -> Action | None:
        return Drop() if seen.api_key == INIT_PRODUCER_ID else None

    async with EmbeddedCluster(rtt=0.01) as cluster:
        cluster.intercept(lose)
        found = await findings(cluster.bootstrap_servers, timeout=0.6)
    assert Name.ROUND_TRIP in found
    assert bad(found) == {Name.NOT_FINISHED}

"""What readers see of transactions, what brokers remember of producers, and committed offsets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.virtual import START_MS, VirtualCluster, idempotent_batch

from .transactional import MODERN, OLD, UNCOMMITTED, Speech, Transactor, batch, fetch, values

OK = ErrorCode.none
DAY = 86_400.0


@pytest.fixture
def cluster() -> VirtualCluster:
    """Return one broker with topic ``t``."""
    made = VirtualCluster()
    made.state.topology.create_topic("t", partitions=1, replication=1)
    return made


def ready(cluster: VirtualCluster, name: str) -> Transactor:
    producer = Transactor(cluster, name)
    assert producer.init() is OK
    return producer


def latest(cluster: VirtualCluster, isolation: int, timestamp: int = -1) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    request = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": "t", "partitions": [part]}],
    }
    answer = cluster.client().ask(2, 7, request)
    return answer.topics[0].partitions[0].offset  # type: ignore[no-any-return]


# -- last stable offset ----------------------------------------------------------------------------


def test_the_oldest_open_transaction_holds_the_last_stable_offset(cluster: VirtualCluster) -> None:
    """The last stable offset is the first offset of the oldest open transaction."""
    cluster.client().produce(idempotent_batch(0))
    one, two = ready(cluster, "one"), ready(cluster, "two")
    one.produce(b"one")
    two.produce(b"two")
    two.end(commit=True)
    part = fetch(cluster)
    assert (part.high_watermark, part.last_stable_offset) == (4, 1)
    assert latest(cluster, 1) == 1
    assert latest(cluster, 0) == 4
    assert latest(cluster, 1, START_MS - 1) == 0
    one.end(commit=True)
    assert fetch(cluster).last_stable_offset == latest(cluster, 1) == 5
    assert values(fetch(cluster)) == [b"v", b"one", b"two"]


def test_an_uncommitted_marker_decides_nothing() -> None:
    """A marker above the high watermark does not raise the last stable offset."""
    cluster = VirtualCluster(brokers=2)
    cluster.state.topology.create_topic("t", partitions=1, replication=2)
    producer = ready(cluster, "tx")
    producer.produce(b"first")
    partition = cluster.state.topics["t"].partitions[0]
    partition.hold_high_watermark()
    producer.end(commit=True)
    assert fetch(cluster).last_stable_offset == 0
    partition.release_high_watermark()
    assert fetch(cluster).last_stable_offset == 2


def test_read_uncommitted_returns_everything_and_lists_no_aborts(
    cluster: VirtualCluster,
) -> None:
    """A Fetch with isolation level 0 returns everything, and lists no aborted transactions."""
    producer = ready(cluster, "tx")
    producer.produce(b"gone")
    part = fetch(cluster, isolation=UNCOMMITTED)
    assert values(part) == [b"gone"]
    producer.end(commit=False)
    part = fetch(cluster, isolation=UNCOMMITTED)
    assert part.aborted_transactions is None
    assert values(part) == [b"gone"]


def test_aborted_transactions_are_named_where_they_overlap(cluster: VirtualCluster) -> None:
    """A Fetch lists the aborted transactions that overlap the offsets that it returns."""
    one, two = ready(cluster, "one"), ready(cluster, "two")
    one.produce(b"a")  # offset 0
    two.produce(b"b")  # offset 1
    first, second = one.producer_id, two.producer_id
    one.end(commit=False)  # offset 2
    two.end(commit=False)  # offset 3
    one.produce(b"c")  # offset 4
    one.end(commit=True)  # offset 5

    def named(part: Entity) -> set[tuple[int, int]]:
        return {(a.producer_id, a.first_offset) for a in part.aborted_transactions}

    assert named(fetch(cluster)) == {(first, 0), (second, 1)}
    assert values(fetch(cluster)) == [b"c"]
    assert named(fetch(cluster, offset=3)) == {(second, 1)}
    assert named(fetch(cluster, offset=4)) == set()
    assert named(fetch(cluster, offset=6)) == set()


def test_of_what_a_reader_does_not_get_nothing_is_named(cluster: VirtualCluster) -> None:
    """A Fetch lists no aborted transaction that begins above the offsets that it returns."""
    one, two = ready(cluster, "one"), ready(cluster, "two")
    one.produce(b"a")
    first = one.producer_id
    one.end(commit=False)
    two.produce(b"b" * 500)
    two.end(commit=False)
    part = fetch(cluster, max_bytes=200)
    assert values(part) == []
    assert [each.producer_id for each in part.aborted_transactions] == [first]


def test_a_waiting_reader_is_served_by_the_marker(cluster: VirtualCluster) -> None:
    """A Fetch that waits for committed records is answered when the commit marker is written."""
    producer = ready(cluster, "tx")
    producer.produce(b"first")
    topic = cluster.state.topics["t"]
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    request = {
        "replica_id": -1,
        "max_wait": timedelta(seconds=30),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 1,
        "topics": [{"topic": "t", "topic_id": topic.id, "partitions": [part]}],
        "forgotten_topics_data": [],
    }
    reader = cluster.client()
    asked = reader.send(1, 12, request)
    assert reader.answer(asked) is None
    producer.end(commit=True)
    cluster.settle()
    answer = reader.answer(asked)
    assert answer is not None
    assert values(answer.responses[0].partitions[0]) == [b"first"]


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_aborted_and_what_is_open_survives_a_restart(
    cluster: VirtualCluster, clean: bool
) -> None:
    """A broker knows the aborted and the open transactions of its log after a restart."""
    one, two = ready(cluster, "one"), ready(cluster, "two")
    one.produce(b"gone")
    one.end(commit=False)
    two.produce(b"open")
    cluster.state.stop_broker(0, clean=clean)
    cluster.state.start_broker(0, clean=clean)
    assert values(fetch(cluster)) == []
    assert fetch(cluster).last_stable_offset == 2
    assert two.produce(b"more") is OK
    assert two.end(commit=True) is OK
    assert values(fetch(cluster)) == [b"open", b"more"]


def test_a_new_leader_knows_of_transactions_what_its_log_says() -> None:
    """A new leader knows the aborted and the open transactions of its log."""
    cluster = VirtualCluster(brokers=2)
    cluster.state.topology.create_topic("t", partitions=1, replication=2)
    partition = cluster.state.topics["t"].partitions[0]
    one, two = ready(cluster, "one"), ready(cluster, "two")
    one.produce(b"gone")
    one.end(commit=False)
    two.produce(b"open")
    cluster.state.move_leader(partition, 1)
    assert fetch(cluster).last_stable_offset == 2
    assert two.produce(b"more") is OK
    two.end(commit=True)
    assert values(fetch(cluster)) == [b"open", b"more"]


# -- what is remembered of producers ---------------------------------------------------------------


def known(cluster: VirtualCluster) -> list[Entity]:
    request = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = cluster.client().ask(61, 0, request)
    return list(answer.topics[0].partitions[0].active_producers)


def test_a_producer_with_an_open_transaction_is_not_forgotten(
    cluster: VirtualCluster,
) -> None:
    """A broker remembers a producer with an open transaction after the producer's expiry time."""
    cluster.state.topology.set_broker_configs(None, {"transaction.max.timeout.ms": str(10**9)})
    producer = Transactor(cluster, "tx")
    assert producer.init(timeout_ms=10**9) is OK
    old = batch(producer.producer_id, producer.epoch, 0, stamp_ms=START_MS - 90_000_000)
    assert cluster.client().produce(old, transactional_id="tx").error_code is OK
    cluster.client().produce(idempotent_batch(0, producer_id=77))
    cluster.run_until(2 * DAY)
    assert [each.producer_id for each in known(cluster)] == [producer.producer_id]
    assert known(cluster)[0].current_txn_start_offset == 0


def test_the_marker_is_what_an_ended_transactions_age_counts_from(
    cluster: VirtualCluster,
) -> None:
    """A producer whose transaction has ended expires one day after the transaction's marker."""
    cluster.state.topology.set_broker_configs(None, {"transaction.max.timeout.ms": str(10**9)})
    producer = Transactor(cluster, "tx")
    producer.init(timeout_ms=10**9)
    old = batch(producer.producer_id, producer.epoch, 0, stamp_ms=START_MS - 90_000_000)
    cluster.client().produce(old, transactional_id="tx")
    cluster.run_until(2 * DAY)
    producer.end(commit=True)
    [entry] = known(cluster)
    assert (entry.producer_epoch, entry.last_sequence) == (1, -1)
    assert (entry.current_txn_start_offset, entry.coordinator_epoch) == (-1, 0)
    assert entry.last_timestamp == cluster.wall_ms
    cluster.run_until(3 * DAY - 1000)
    assert len(known(cluster)) == 1
    cluster.run_until(3 * DAY + 700)
    assert known(cluster) == []


# -- offsets of groups -----------------------------------------------------------------------------


def committed(cluster: VirtualCluster, *, stable: bool = False, version: int = 8) -> Entity:
    topics = [{"name": "t", "partition_indexes": [0]}]
    request = {
        "group_id": "g",
        "topics": topics,
        "groups": [{"group_id": "g", "topics": topics}],
        "require_stable": stable,
    }
    answer = cluster.client().ask(9, version, request)
    found = answer.groups[0] if version >= 8 else answer
    return found.topics[0].partitions[0]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("speech", [OLD, MODERN], ids=["v1", "v2"])
def test_offsets_are_committed_with_the_transaction(
    cluster: VirtualCluster, speech: Speech, commit: bool
) -> None:
    """Offsets in a transaction become visible when it commits, and never if it aborts."""
    producer = Transactor(cluster, speech=speech)
    producer.init()
    if speech is OLD:
        assert producer.add_group() is OK
    assert producer.commit_offset(5) is OK
    assert committed(cluster).committed_offset == -1
    for version in (7, 8, 9):
        part = committed(cluster, stable=True, version=version)
        assert part.error_code is ErrorCode.unstable_offset_commit
        assert part.committed_offset == -1
    assert producer.end(commit=commit) is OK
    part = committed(cluster, stable=True)
    assert (part.error_code, part.committed_offset) == (OK, 5 if commit else -1)


def test_a_commit_that_was_asked_for_later_stays(cluster: VirtualCluster) -> None:
    """An OffsetCommit prevails over an earlier TxnOffsetCommit whose transaction commits later."""
    producer = ready(cluster, "tx")
    producer.commit_offset(5)
    part = {
        "partition_index": 0,
        "committed_offset": 9,
        "committed_leader_epoch": 0,
        "committed_metadata": "",
    }
    request = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": [part]}],
    }
    cluster.client().ask(8, 8, request)
    producer.end(commit=True)
    assert committed(cluster).committed_offset == 9


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.invalid_txn_state), (4, ErrorCode.transaction_abortable), (5, OK)],
)
def test_offsets_of_a_group_that_takes_no_part(
    cluster: VirtualCluster, version: int, code: ErrorCode
) -> None:
    """TxnOffsetCommit before v5 refuses a group that was not added; v5 adds the group itself."""
    producer = ready(cluster, "tx")
    assert producer.commit_offset(5, version=version) is code


def test_kip_447_a_generation_of_an_unknown_group_is_refused(cluster: VirtualCluster) -> None:
    """TxnOffsetCommit with a group generation is refused for an unknown group (KIP-447)."""
    producer = ready(cluster, "tx")
    assert producer.commit_offset(5, generation_id=1) is ErrorCode.illegal_generation
    assert producer.commit_offset(5) is OK


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({"generation_id": 4, "member_id": "m"}, OK),
        ({"generation_id": 4, "member_id": "s", "group_instance_id": "i"}, OK),
        ({"generation_id": 3, "member_id": "m"}, ErrorCode.illegal_generation),
        ({"generation_id": 4, "member_id": "x"}, ErrorCode.unknown_member_id),
        (
            {"generation_id": 4, "member_id": "m", "group_instance_id": "i"},
            ErrorCode.fenced_instance_id,
        ),
        (
            {"generation_id": 4, "member_id": "m", "group_instance_id": "x"},
            ErrorCode.unknown_member_id,
        ),
        # A request that names no member is not checked, because clients before KIP-447 name none.
        ({}, OK),
    ],
)
def test_kip_447_a_consumer_that_lost_its_place_is_fenced(
    cluster: VirtualCluster, member: dict[str, Any], code: ErrorCode
) -> None:
    """TxnOffsetCommit checks the member, its instance and the generation (KIP-447)."""
    cluster.state.groups.set_members("g", 4, {"m": None, "s": "i"})
    assert ready(cluster, "tx").commit_offset(5, **member) is code


def test_offsets_go_with_their_topic(cluster: VirtualCluster) -> None:
    """Deleting a topic deletes the offsets that were committed for it."""
    producer = ready(cluster, "tx")
    producer.commit_offset(5)
    producer.end(commit=True)
    cluster.state.delete_topic(cluster.state.topics["t"])
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    assert committed(cluster).committed_offset == -1


def test_a_group_is_asked_for_at_its_coordinator() -> None:
    """A broker that does not coordinate a group answers OffsetFetch with NOT_COORDINATOR."""
    cluster = VirtualCluster(brokers=2)
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    cluster.state.coordinators["g"] = 1
    topics = [{"name": "t", "partition_indexes": [0]}]
    request = {"groups": [{"group_id": "g", "topics": topics}], "require_stable": False}
    [group] = cluster.client(0).ask(9, 8, request).groups
    assert group.error_code is ErrorCode.not_coordinator
    old = cluster.client(0).ask(9, 1, {"group_id": "g", "topics": topics})
    assert old.topics[0].partitions[0].error_code is ErrorCode.not_coordinator


# -- ListTransactions ------------------------------------------------------------------------------


def listed(cluster: VirtualCluster, *states: str, **filters: Any) -> dict[str, str]:
    """Return the transactional ids that broker 0 lists, with their states."""
    request = {"state_filters": states, "producer_id_filters": [], **filters}
    answer = cluster.client().ask(66, 2, {"duration_filter": -1, **request})
    assert answer.error_code is OK
    return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


def test_transactional_ids_are_listed_with_their_states(cluster: VirtualCluster) -> None:
    """ListTransactions returns transactional ids with their states, and applies its filters."""
    assert listed(cluster) == {}
    open_, idle = ready(cluster, "open"), ready(cluster, "idle")
    open_.produce(b"v")
    assert listed(cluster) == {"open": "Ongoing", "idle": "Empty"}
    assert listed(cluster, "Ongoing") == {"open": "Ongoing"}
    assert listed(cluster, "CompleteAbort") == {}
    assert listed(cluster, producer_id_filters=[idle.producer_id]) == {"idle": "Empty"}
    assert listed(cluster, transactional_id_pattern="i.*") == {"idle": "Empty"}
    assert listed(cluster, "Ongoing", duration_filter=5_000) == {}
    cluster.run_until(6.0)
    assert listed(cluster, "Ongoing", duration_filter=5_000) == {"open": "Ongoing"}
    open_.end(commit=False)
    assert listed(cluster)["open"] == "CompleteAbort"


def test_each_coordinator_lists_its_own() -> None:
    """ListTransactions of a broker returns the transactional ids that it coordinates."""
    cluster = VirtualCluster(brokers=2)
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    names = [f"id-{number}" for number in range(8)]
    for name in names:
        ready(cluster, name)
    request: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    told = [
        {each.transactional_id for each in cluster.client(n).ask(66, 0, request).transaction_states}
        for n in (0, 1)
    ]
    assert all(told)
    assert not told[0] & told[1]
    assert told[0] | told[1] == set(names)


def test_what_cannot_be_listed_is_said(cluster: VirtualCluster) -> None:
    """ListTransactions names unknown states, and fails for a bad pattern or while ids load."""
    ready(cluster, "tx")
    request = {"state_filters": ["Dead", "dead"], "producer_id_filters": [], "duration_filter": -1}
    answer = cluster.client().ask(66, 2, request | {"transactional_id_pattern": "("})
    assert answer.error_code is ErrorCode.invalid_regular_expression
    assert answer.unknown_state_filters == ("dead",)
    cluster.state.coordinator_faults["tx"] = ErrorCode.coordinator_load_in_progress
    answer = cluster.client().ask(66, 2, request)
    assert answer.error_code is ErrorCode.coordinator_load_in_progress
    assert answer.transaction_states == ()

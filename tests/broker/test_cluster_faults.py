"""On a virtual clock, the embedded cluster shows the faults that were observed on Kafka 4.3.1.

A span is the number of a producer's batches from its oldest unresolved one (without a definite
answer) to its newest.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.partition import Partition
from aioidem._broker.virtual import (
    START_MS,
    VirtualClient,
    VirtualCluster,
    idempotent_batch,
    only_partition,
)
from aioidem._records import read_batches
from aioidem.broker import (
    AfterAppend,
    CloseConnection,
    Delay,
    Drop,
    Refuse,
    RefusedError,
    RequestSeen,
    Respond,
    RespondRaw,
    Rewrite,
)

from .transactional import UNCOMMITTED, fetch

NOT_LEADER = ErrorCode.not_leader_or_follower
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
DAY = 86_400.0


def make(
    brokers: int = 1, replication: int = 1, **options: Any
) -> tuple[VirtualCluster, Partition, VirtualClient]:
    cluster = VirtualCluster(brokers=brokers, **options)
    cluster.state.topology.create_topic("t", partitions=1, replication=replication)
    return cluster, cluster.state.topics["t"].partitions[0], cluster.client()


def offset_of(part: Entity) -> int:
    assert part.error_code == ErrorCode.none, part
    return int(part.base_offset)


def fill(client: VirtualClient, batches: int, *, start: int = 0, **options: Any) -> None:
    for sequence in range(start, batches):
        offset_of(client.produce(idempotent_batch(sequence), **options))


def end(partition: Partition, broker_id: int | None = None) -> int:
    replica = partition.replicas[partition.leader if broker_id is None else broker_id]
    return replica.log.end_offset


def last_sequence(client: VirtualClient) -> int | None:
    """Return the last sequence number of producer 7, as DescribeProducers answers it."""
    values = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    ((part,),) = [t.partitions for t in client.ask(61, 0, values).topics]
    assert part.error_code == ErrorCode.none
    found = {p.producer_id: p.last_sequence for p in part.active_producers}
    return found.get(7)


# -- high watermark --------------------------------------------------------------------------------


def test_acks_all_waits_for_the_high_watermark() -> None:
    """A Produce with acks=all is answered once the high watermark has passed its batch."""
    cluster, partition, client = make()
    partition.hold_high_watermark()
    sent = client.send_produce(idempotent_batch(0))
    cluster.run_until(10.0)
    assert client.answer(sent) is None
    assert end(partition) == 1
    partition.release_high_watermark()
    cluster.state.wake(partition)
    cluster.settle()
    assert offset_of(only_partition(client.answer(sent))) == 0


def test_request_timed_out_comes_after_the_requests_timeout_and_the_append_stays() -> None:
    """A Produce is answered REQUEST_TIMED_OUT after its timeout, and its batch stays in the log."""
    cluster, partition, client = make()
    partition.hold_high_watermark()
    part = client.produce(idempotent_batch(0), timeout_ms=5000)
    assert (part.error_code, part.base_offset) == (ErrorCode.request_timed_out, 0)
    assert cluster.now == 5.0
    assert end(partition) == 1
    partition.release_high_watermark()
    assert offset_of(client.produce(idempotent_batch(0))) == 0
    assert end(partition) == 1


def test_a_duplicate_waits_for_the_high_watermark_too_but_out_of_order_does_not() -> None:
    """The answer to a duplicate waits for the high watermark; an OUT_OF_ORDER answer does not.

    The broker retains five of the six batches. So it recognises the sixth as a duplicate, and
    refuses the first as out of order.
    """
    cluster, partition, client = make()
    fill(client, 6)
    partition.hold_high_watermark(at=2)
    partition.high_watermark = 2
    evicted = client.produce(idempotent_batch(0))
    assert evicted.error_code == OUT_OF_ORDER
    assert cluster.now == 0.0
    part = client.produce(idempotent_batch(5), timeout_ms=1000)
    assert (part.error_code, part.base_offset) == (ErrorCode.request_timed_out, 5)
    assert cluster.now == 1.0


def test_readers_see_nothing_above_the_high_watermark() -> None:
    """ListOffsets and Fetch end at a partition's high watermark, and not at its log end offset."""
    cluster, partition, client = make()
    fill(client, 2)
    partition.hold_high_watermark()
    client.produce(idempotent_batch(2), acks=1)
    values = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]},
        ],
    }
    ((part,),) = [t.partitions for t in client.ask(2, 5, values).topics]
    assert part.offset == 2
    for offset in (0, 2):
        assert end(partition) == 3
        read = fetch(cluster, offset, UNCOMMITTED)
        assert (read.error_code, read.high_watermark) == (ErrorCode.none, 2)
        assert [b.base_offset for b in read_batches(read.records)] == [0, 1][offset:]


def test_describe_producers_says_the_log_end_and_not_the_high_watermark() -> None:
    """DescribeProducers includes batches above the high watermark (KIP-664)."""
    _, partition, client = make()
    fill(client, 1)
    partition.hold_high_watermark()
    client.produce(idempotent_batch(1), acks=1)
    assert last_sequence(client) == 1


def test_a_request_waiting_for_the_high_watermark_keeps_what_is_behind_it_waiting() -> None:
    """A broker does not serve a request before the connection's earlier ones are answered."""
    cluster, partition, client = make()
    partition.hold_high_watermark()
    client.send_produce(idempotent_batch(0), timeout_ms=5000)
    behind = client.send_produce(idempotent_batch(1), acks=1)
    cluster.run_until(4.9)
    assert end(partition) == 1
    assert client.answer(behind) is None
    cluster.run_until(5.0)
    assert end(partition) == 2


# -- leaders ---------------------------------------------------------------------------------------


def test_not_leader_before_an_append_has_base_offset_minus_1_and_names_the_leader() -> None:
    """A NOT_LEADER_OR_FOLLOWER answer before the append has offset -1 and the leader (KIP-951)."""
    cluster, _, client = make(brokers=2)
    elsewhere = cluster.client(1)
    part = elsewhere.produce(idempotent_batch(0), version=12)
    assert (part.error_code, part.base_offset) == (NOT_LEADER, -1)
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (0, 0)
    answer = elsewhere.wait(elsewhere.send_produce(idempotent_batch(0), version=12))
    assert [n.node_id for n in answer.node_endpoints] == [0]
    assert offset_of(client.produce(idempotent_batch(0))) == 0


def test_leader_hints_come_with_v10_and_later_only() -> None:
    """Produce answers name the current leader from version 10 on (KIP-951)."""
    cluster, _, _ = make(brokers=2)
    part = cluster.client(1).produce(idempotent_batch(0), version=9)
    assert part.error_code == NOT_LEADER
    assert not hasattr(part, "current_leader")


def test_not_leader_after_an_append_keeps_the_base_offset() -> None:
    """A NOT_LEADER_OR_FOLLOWER answer after the append has the batch's base offset."""
    cluster, partition, client = make(brokers=2, replication=2)
    fill(client, 3)
    partition.hold_high_watermark()
    sent = client.send_produce(idempotent_batch(3))
    cluster.state.move_leader(partition, 1)
    cluster.settle()
    part = only_partition(client.answer(sent))
    assert (part.error_code, part.base_offset) == (NOT_LEADER, 3)
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 1)
    partition.release_high_watermark()
    assert offset_of(cluster.client(1).produce(idempotent_batch(3))) == 3
    assert end(partition) == 4


def test_a_batch_the_new_leader_never_got_is_cut_from_the_old_one() -> None:
    """A batch that the new leader lacks is truncated from the old leader's log."""
    cluster, partition, client = make(brokers=2, replication=2)
    fill(client, 2)
    partition.pause(1)
    sent = client.send_produce(idempotent_batch(2))
    assert (end(partition, 0), end(partition, 1)) == (3, 2)
    cluster.state.move_leader(partition, 1)
    cluster.settle()
    part = only_partition(client.answer(sent))
    assert (part.error_code, part.base_offset) == (NOT_LEADER, 2)
    assert (end(partition, 0), end(partition, 1)) == (2, 2)
    assert last_sequence(client) == 1, "the old leader's producer state was truncated with its log"
    assert offset_of(cluster.client(1).produce(idempotent_batch(2))) == 2


def test_a_leader_can_be_moved_to_a_broker_without_a_replica_and_takes_the_log_along() -> None:
    """Moving the leader to a broker without a replica moves the log there."""
    cluster, partition, client = make(brokers=3)
    fill(client, 7)
    cluster.state.move_leader(partition, 2)
    assert (partition.leader, partition.leader_epoch, list(partition.replicas)) == (2, 1, [2])
    new = cluster.client(2)
    assert offset_of(new.produce(idempotent_batch(6))) == 6
    assert client.produce(idempotent_batch(7)).error_code == NOT_LEADER
    assert offset_of(new.produce(idempotent_batch(7))) == 7
    batches = partition.replicas[2].log.batches
    assert [b.leader_epoch for b in batches] == [0] * 7 + [1]


def test_a_leader_that_moves_from_a_new_to_an_old_broker_remembers_5() -> None:
    """After its leader moves to a broker without KIP-1269, a partition remembers 5 batches."""
    cluster, partition, client = make(
        brokers=2, replication=2, retain=20, produce_versions={0: 14, 1: 13}
    )
    fill(client, 20, version=14)
    assert offset_of(client.produce(idempotent_batch(0), version=14)) == 0
    cluster.state.move_leader(partition, 1)
    old = cluster.client(1)
    assert old.produce(idempotent_batch(14)).error_code == OUT_OF_ORDER
    assert offset_of(old.produce(idempotent_batch(15))) == 15


@pytest.mark.parametrize("broker_id", [1, 9])
def test_a_leader_cannot_be_moved_to_a_broker_that_does_not_run(broker_id: int) -> None:
    """A broker that is stopped or does not exist cannot become the leader."""
    cluster, partition, _ = make(brokers=2, replication=2)
    cluster.state.stop_broker(1, clean=True)
    with pytest.raises(RefusedError):
        cluster.state.move_leader(partition, broker_id)
    assert (partition.leader, partition.leader_epoch) == (0, 0)


def test_a_leader_with_too_few_replicas_in_sync_refuses_before_the_append() -> None:
    """A leader with too few in-sync replicas refuses acks=all before the append."""
    cluster, partition, client = make(brokers=2, replication=2)
    cluster.state.topology.set_topic_configs(partition.topic, {"min.insync.replicas": "2"})
    partition.shrink_isr(1)
    part = client.produce(idempotent_batch(0))
    assert (part.error_code, part.base_offset) == (ErrorCode.not_enough_replicas, -1)
    assert offset_of(client.produce(idempotent_batch(0), acks=1)) == 0


def test_a_waiting_request_times_out_while_too_few_replicas_are_in_sync() -> None:
    """The high watermark stands still, so the request waits on, until enough are in sync again."""
    cluster, partition, client = make(brokers=2, replication=2)
    cluster.state.topology.set_topic_configs(partition.topic, {"min.insync.replicas": "2"})
    partition.pause(1)
    sent = client.send_produce(idempotent_batch(0), timeout_ms=5000)
    partition.shrink_isr(1)
    cluster.state.wake(partition)
    cluster.run_until(5.0)
    part = only_partition(client.answer(sent))
    assert (part.error_code, part.base_offset) == (ErrorCode.request_timed_out, 0)
    assert (end(partition), partition.high_watermark) == (1, 0)
    partition.resume(1)
    assert partition.high_watermark == 1
    assert offset_of(client.produce(idempotent_batch(0))) == 0


def test_readers_see_nothing_that_came_while_too_few_replicas_were_in_sync() -> None:
    """A record of acks=1 is taken by such a leader, and shown when enough are in sync again."""
    cluster, partition, client = make(brokers=2, replication=2)
    cluster.state.topology.set_topic_configs(partition.topic, {"min.insync.replicas": "2"})
    partition.pause(1)
    partition.shrink_isr(1)
    assert offset_of(client.produce(idempotent_batch(0), acks=1)) == 0
    assert partition.high_watermark == 0
    partition.resume(1)
    assert partition.high_watermark == 1


def test_replicas_lost_just_before_the_answer_are_answered_after_append() -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND comes if all had the batch, and one was lost since."""
    cluster, partition, client = make(brokers=2, replication=2)
    cluster.state.topology.set_topic_configs(partition.topic, {"min.insync.replicas": "2"})
    partition.pause(1)
    sent = client.send_produce(idempotent_batch(0))
    partition.resume(1)
    partition.shrink_isr(1)
    cluster.state.wake(partition)
    cluster.settle()
    part = only_partition(client.answer(sent))
    assert part.error_code == ErrorCode.not_enough_replicas_after_append
    assert part.base_offset == 0
    assert end(partition) == 1


def test_any_replica_answers_describe_producers_and_others_say_not_leader_or_follower() -> None:
    """Every replica answers DescribeProducers; other brokers answer NOT_LEADER_OR_FOLLOWER."""
    cluster, partition, client = make(brokers=3, replication=2)
    fill(client, 3)
    follower = cluster.client(1)
    assert last_sequence(follower) == 2
    partition.pause(1)
    client.produce(idempotent_batch(3), acks=1)
    assert (last_sequence(client), last_sequence(follower)) == (3, 2)
    stranger = cluster.client(2)
    values = {"topics": [{"name": "t", "partition_indexes": [0, 5]}]}
    ((here, unknown),) = [t.partitions for t in stranger.ask(61, 0, values).topics]
    assert here.error_code == NOT_LEADER
    assert unknown.error_code == ErrorCode.unknown_topic_or_partition


def test_a_topic_deleted_while_a_request_waits_is_unknown_with_the_base_offset_kept() -> None:
    """A Produce that waits while its topic is deleted gets UNKNOWN_TOPIC_OR_PARTITION."""
    cluster, partition, client = make()
    partition.hold_high_watermark()
    sent = client.send_produce(idempotent_batch(0), version=12)
    cluster.state.delete_topic(partition.topic)
    cluster.settle()
    part = only_partition(client.answer(sent))
    assert (part.error_code, part.base_offset) == (ErrorCode.unknown_topic_or_partition, 0)


# -- restarts --------------------------------------------------------------------------------------


def restart(cluster: VirtualCluster, broker_id: int, *, clean: bool) -> VirtualClient:
    cluster.state.stop_broker(broker_id, clean=clean)
    cluster.settle()
    cluster.state.start_broker(broker_id, clean=clean)
    cluster.settle()
    return cluster.client(broker_id)


def test_a_clean_restart_remembers_one_batch_per_producer() -> None:
    """After a clean restart a broker remembers only the last batch of each producer."""
    cluster, partition, client = make(retain=20)
    fill(client, 12)
    again = restart(cluster, 0, clean=True)
    assert partition.leader_epoch == 2
    assert [again.produce(idempotent_batch(s)).error_code for s in (0, 10)] == [OUT_OF_ORDER] * 2
    assert offset_of(again.produce(idempotent_batch(11))) == 11
    assert offset_of(again.produce(idempotent_batch(12))) == 12


def test_after_a_clean_restart_newest_first_finds_what_was_stored() -> None:
    """After a clean restart, resending batches newest first finds which ones were stored.

    Batches 0 to 6 were stored, and 7 to 11 were not. Resends of 0 (no longer remembered) and of 11
    to 8 (gaps) are refused, 7 is next in sequence and is appended, and 6 is a duplicate that gets
    its old offset.
    """
    cluster, _, client = make(retain=20)
    fill(client, 7)
    again = restart(cluster, 0, clean=True)
    answers = [again.produce(idempotent_batch(s)) for s in (0, 11, 10, 9, 8, 7, 6)]
    assert [a.error_code for a in answers[:5]] == [OUT_OF_ORDER] * 5
    assert [offset_of(a) for a in answers[5:]] == [7, 6]


def test_a_snapshot_is_loaded_without_those_that_have_expired_by_then() -> None:
    """A broker that loads a snapshot drops producers that expired while the broker was stopped."""
    cluster, partition, client = make()
    fill(client, 1)
    cluster.state.stop_broker(0, clean=True)
    cluster.run_until(DAY + 1)
    cluster.state.start_broker(0, clean=True)
    cluster.settle()
    assert last_sequence(cluster.client()) is None
    assert offset_of(cluster.client().produce(idempotent_batch(0))) == 1, "appended twice"
    assert end(partition) == 2


def test_a_kill_leaves_one_batch_too_because_recovery_goes_through_a_snapshot() -> None:
    """After a kill and recovery a broker remembers one batch per producer, as Kafka 4.3.1 does."""
    cluster, _, client = make(retain=20)
    fill(client, 25)
    again = restart(cluster, 0, clean=False)
    assert again.produce(idempotent_batch(23)).error_code == OUT_OF_ORDER
    assert offset_of(again.produce(idempotent_batch(24))) == 24
    assert offset_of(again.produce(idempotent_batch(25))) == 25


def test_a_stopped_leader_hands_over_and_catches_up_when_it_is_back() -> None:
    """A stopped leader hands leadership over, and catches up after its restart."""
    cluster, partition, client = make(brokers=2, replication=2)
    fill(client, 3)
    cluster.state.stop_broker(0, clean=False)
    cluster.settle()
    assert (partition.leader, partition.isr) == (1, [1])
    fill(cluster.client(1), 6, start=3)
    cluster.state.start_broker(0, clean=False)
    cluster.settle()
    assert partition.isr == [1, 0]
    assert end(partition, 0) == 6
    assert last_sequence(cluster.client(0)) == 5


def test_a_partition_without_a_running_replica_has_no_leader_and_says_so() -> None:
    """Metadata answers LEADER_NOT_AVAILABLE for a partition whose replicas are all stopped."""
    cluster, _, _ = make(brokers=2)
    cluster.state.stop_broker(0, clean=True)
    cluster.settle()
    values = {
        "topics": [{"topic_id": None, "name": "t"}],
        "include_topic_authorized_operations": False,
    }
    answer = cluster.client(1).ask(3, 12, values)
    assert [b.node_id for b in answer.brokers] == [1]
    (topic,) = answer.topics
    assert topic.partitions[0].leader_id == -1
    assert topic.partitions[0].error_code == ErrorCode.leader_not_available
    assert topic.partitions[0].offline_replicas == (0,)


def test_stopping_ends_connections_and_loses_what_is_queued() -> None:
    """Stopping a broker closes its connections and discards the requests queued on them."""
    cluster, partition, client = make(rtt=0.1)
    fill(client, 1)
    client.send_produce(idempotent_batch(1))
    cluster.state.stop_broker(0, clean=False)
    cluster.run_until(cluster.now + 1.0)
    assert cluster.deliveries[-1].close
    assert partition.replicas[0].log.end_offset == 1
    assert partition.spans.span() == 1
    with pytest.raises(ConnectionRefusedError):
        cluster.client()


# -- requests that outlive their connection --------------------------------------------------------


def test_a_request_read_before_its_client_hung_up_is_still_served() -> None:
    """A broker serves a request that it has read even if the client has closed the connection."""
    cluster, partition, client = make(rtt=1.0)
    client.send_produce(idempotent_batch(0))
    client.close()
    assert end(partition) == 0
    cluster.run_until(5.0)
    assert end(partition) == 1
    assert cluster.deliveries == []
    assert cluster.state.connections == []
    assert partition.spans.span() == 1, "no client got the answer"


def test_throttled_requests_are_appended_long_after_their_connection_closed() -> None:
    """A throttled broker still appends a connection's requests after the client has closed it."""
    cluster, partition, client = make()
    cluster.state.brokers[0].throttle = 30.0
    for sequence in range(5):
        client.send_produce(idempotent_batch(sequence))
    assert end(partition) == 1
    client.close()
    ends = []
    for now in (29.0, 31.0, 61.0, 91.0, 121.0):
        cluster.run_until(now)
        ends.append(end(partition))
    assert ends == [1, 2, 3, 4, 5]


def test_a_throttled_answer_carries_the_time_and_comes_at_once() -> None:
    """A throttled answer comes at once with the throttle time; the next request waits (KIP-219)."""
    cluster, _, client = make()
    cluster.state.brokers[0].throttle = 2.5
    answer = client.wait(client.send_produce(idempotent_batch(0)))
    assert answer.throttle_time.total_seconds() == 2.5
    assert cluster.now == 0.0
    offset_of(client.produce(idempotent_batch(1)))
    assert cluster.now == 2.5


def test_a_resend_and_its_late_original_are_stored_once() -> None:
    """A batch is stored once if a resend arrives before the delayed original."""
    cluster, partition, client = make(rtt=2.0)
    client.send_produce(idempotent_batch(0))
    client.close()
    again = cluster.client()
    again.connection.link.set_rtt(0.0)
    assert offset_of(again.produce(idempotent_batch(0))) == 0
    cluster.run_until(10.0)
    assert end(partition) == 1


# -- expiry ----------------------------------------------------------------------------------------


def test_state_expires_by_the_records_time_at_the_next_check_however_busy_the_producer() -> None:
    """Producer state expires by the last batch's timestamp, even for a busy producer (KIP-854)."""
    cluster, partition, client = make()
    old = START_MS - 25 * 3600 * 1000
    offset_of(client.produce(idempotent_batch(0)))
    data = idempotent_batch(1, timestamps_ms=[old])
    assert offset_of(client.produce(data)) == 1
    cluster.run_until(599.0)
    assert offset_of(client.produce(data)) == 1
    cluster.run_until(601.0)
    assert last_sequence(client) is None
    assert offset_of(client.produce(data)) == 2, "appended twice"
    assert end(partition) == 3


def test_an_idle_producer_expires_after_a_day() -> None:
    """An idle producer expires after a day, the default."""
    cluster, _, client = make()
    offset_of(client.produce(idempotent_batch(0)))
    cluster.run_until(DAY - 1)
    assert last_sequence(client) == 0
    cluster.run_until(DAY + 600)
    assert last_sequence(client) is None
    assert offset_of(client.produce(idempotent_batch(77))) == 1


def test_log_append_time_keeps_a_producer_of_old_records() -> None:
    """With LogAppendTime a producer of records with old timestamps does not expire."""
    cluster, partition, client = make()
    configs = {"message.timestamp.type": "LogAppendTime"}
    cluster.state.topology.set_topic_configs(partition.topic, configs)
    client.produce(idempotent_batch(0, timestamps_ms=[5]))
    cluster.run_until(3600.0)
    assert last_sequence(client) == 0


def test_expiry_goes_by_the_clock_of_each_broker_and_its_configs() -> None:
    """Each broker expires producers by its own clock and configs."""
    configs = {
        "producer.id.expiration.ms": "10000",
        "producer.id.expiration.check.interval.ms": "1000",
    }
    cluster, _, client = make(brokers=2, replication=2, configs=configs)
    client.produce(idempotent_batch(0))
    cluster.state.brokers[1].clock_offset_ms = 20_000
    cluster.run_until(1.5)
    assert (last_sequence(client), last_sequence(cluster.client(1))) == (0, None)
    cluster.run_until(11.0)
    assert last_sequence(client) is None


def test_a_late_caller_does_not_shift_the_checks() -> None:
    """Producers expire alike whether the clock advances second by second or in a single step."""
    ends = []
    for steps in (1, 2000):
        cluster, _, client = make(configs={"producer.id.expiration.ms": "900000"})
        client.produce(idempotent_batch(0))
        for step in range(1, steps + 1):
            cluster.run_until(2000.0 * step / steps)
        ends.append((last_sequence(client), offset_of(client.produce(idempotent_batch(5)))))
    assert ends == [(None, 1), (None, 1)]


def test_a_late_caller_gets_the_check_before_what_arrived_after_it() -> None:
    """A late expiry check is made before requests that arrived after its due time are served."""
    cluster, partition, client = make()
    old = idempotent_batch(0, timestamps_ms=[START_MS - 25 * 3600 * 1000])
    offset_of(client.produce(old))
    client.connection.link.set_rtt(2 * 700.0)
    client.send_produce(old)
    cluster.run_until(5000.0)
    assert end(partition) == 2, "forgotten at 600 s, appended again at 700 s"


# -- the hook that sees requests -------------------------------------------------------------------


def once(action: Any, *, api_key: int = 0) -> Any:
    """Return a hook that acts on the first request of one API."""
    seen: list[RequestSeen] = []

    def hook(request: RequestSeen) -> Any:
        if request.api_key != api_key:
            return None
        seen.append(request)
        return action if len(seen) == 1 else None

    return hook


def test_the_hook_sees_every_request_and_its_batches_when_their_turn_comes() -> None:
    """The hook gets a request, with its batches, when the broker is about to serve it."""
    cluster, _, client = make(rtt=2.0)
    seen: list[RequestSeen] = []
    cluster.state.interceptor = seen.append
    client.send_produce(idempotent_batch(3, 2, producer_id=9, epoch=4))
    assert seen == []
    cluster.run_until(1.0)
    (request,) = seen
    (batch,) = request.batches
    assert (request.api_key, request.api_version, request.client_id) == (0, 13, "virtual")
    assert (batch.topic, batch.partition, batch.producer_id) == ("t", 0, 9)
    assert (batch.producer_epoch, batch.base_sequence, batch.count) == (4, 3, 2)
    assert request.now == 1.0


def test_a_lost_answer_leaves_the_batch_stored_and_the_connection_silent() -> None:
    """Drop(processed=True) stores the batches, but the connection gets no answer from then on."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(Drop(processed=True))
    sent = [client.send_produce(idempotent_batch(s)) for s in range(3)]
    cluster.run_until(100.0)
    assert [client.answer(s) for s in sent] == [None] * 3
    assert end(partition) == 3
    assert partition.spans.span() == 3
    again = cluster.client()
    for sequence in range(3):
        assert offset_of(again.produce(idempotent_batch(sequence))) == sequence
    assert partition.spans.span() == 0


def test_a_lost_request_and_everything_behind_it_never_arrive() -> None:
    """Drop() discards the request and every later one on the connection."""
    cluster, partition, client = make(rtt=1.0)
    cluster.state.interceptor = once(Drop())
    for sequence in range(3):
        client.send_produce(idempotent_batch(sequence))
    cluster.run_until(100.0)
    assert end(partition) == 0
    assert partition.spans.span() == 3


def test_what_queues_behind_a_request_that_is_lost_is_lost_too() -> None:
    """Requests that were already queued behind a dropped one are discarded, too."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(Delay(1.0, then=Drop()))
    for sequence in range(3):
        client.send_produce(idempotent_batch(sequence))
    cluster.run_until(100.0)
    assert end(partition) == 0
    assert partition.spans.span() == 3
    assert client.connection.inbox == deque()


def test_an_answer_that_could_not_be_written_was_not_given() -> None:
    """A batch whose answer could not be delivered is unresolved, and counts in the span again."""
    cluster, partition, client = make()
    offset_of(client.produce(idempotent_batch(0)))
    assert partition.spans.span() == 0
    cluster.state.undelivered(cluster.deliveries[-1])
    assert partition.spans.span() == 1


def test_a_drop_that_is_not_silent_skips_one_answer() -> None:
    """Drop(silent=False) withholds one answer; the next request is answered."""
    cluster, _, client = make()
    cluster.state.interceptor = once(Drop(silent=False))
    first = client.send_produce(idempotent_batch(0))
    second = client.send_produce(idempotent_batch(0))
    assert client.answer(first) is None
    assert offset_of(only_partition(client.answer(second))) == 0


def test_refuse_appends_nothing_and_is_definite() -> None:
    """Refuse answers its error without an append; the batch is resolved and leaves the span."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(Refuse(NOT_LEADER))
    part = client.produce(idempotent_batch(0))
    assert (part.error_code, part.base_offset) == (NOT_LEADER, -1)
    assert end(partition) == 0
    assert partition.spans.span() == 0


def test_after_append_is_two_faced_and_keeps_the_batch_open() -> None:
    """AfterAppend stores the batch and answers an error, so the batch stays unresolved."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(AfterAppend(NOT_LEADER))
    part = client.produce(idempotent_batch(0))
    assert (part.error_code, part.base_offset) == (NOT_LEADER, 0)
    assert end(partition) == 1
    assert partition.spans.span() == 1
    offset_of(client.produce(idempotent_batch(0)))
    assert partition.spans.span() == 0


def test_a_refusal_for_some_partitions_leaves_the_others_alone() -> None:
    """Refuse with ``only`` refuses the partitions in ``only`` and serves the others."""
    cluster, _, client = make()
    elsewhere = frozenset({("t", 1)})
    cluster.state.interceptor = once(Refuse(NOT_LEADER, only=elsewhere))
    assert offset_of(client.produce(idempotent_batch(0))) == 0


def test_an_answer_can_be_rewritten_after_the_append() -> None:
    """Rewrite changes the answer after the append."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(Rewrite(lambda r: dataclasses.replace(r, responses=())))
    answer = client.wait(client.send_produce(idempotent_batch(0)))
    assert answer.responses == ()
    assert end(partition) == 1
    assert partition.spans.span() == 1, "an answer that leaves the partition out resolves no batch"


def test_an_answer_can_be_given_without_the_broker() -> None:
    """Respond sends the given answer, and the broker does not carry the request out."""
    cluster, partition, client = make()
    original = client.wait(client.send_produce(idempotent_batch(0)))
    cluster.state.interceptor = once(Respond(original))
    assert client.wait(client.send_produce(idempotent_batch(1))) == original
    assert end(partition) == 1


def test_raw_bytes_can_be_answered() -> None:
    """RespondRaw answers with the given bytes."""
    cluster, _, client = make()
    cluster.state.interceptor = once(RespondRaw(b"rubbish"))
    client.send_produce(idempotent_batch(0))
    assert cluster.deliveries[-1].frame == b"\x00\x00\x00\x07rubbish"


@pytest.mark.parametrize(("processed", "stored"), [(True, 1), (False, 0)])
def test_a_connection_can_be_closed_before_or_after_the_append(
    processed: bool, stored: int
) -> None:
    """CloseConnection closes the connection before the append, or after it with processed=True."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(CloseConnection(processed=processed))
    client.send_produce(idempotent_batch(0))
    client.send_produce(idempotent_batch(1))
    assert [d.close for d in cluster.deliveries] == [True]
    assert end(partition) == stored
    assert partition.spans.span() == 2


def test_a_delay_holds_up_the_connection_and_goes_on_with_the_next_action() -> None:
    """Delay holds up its connection for the given time, then applies the action in ``then``."""
    cluster, partition, client = make()
    cluster.state.interceptor = once(Delay(3.0, then=Refuse(NOT_LEADER)))
    first = client.send_produce(idempotent_batch(0))
    second = client.send_produce(idempotent_batch(0))
    cluster.run_until(2.9)
    assert client.answer(second) is None
    cluster.run_until(3.0)
    assert only_partition(client.answer(first)).error_code == NOT_LEADER
    assert offset_of(only_partition(client.answer(second))) == 0
    assert end(partition) == 1


# -- delivery times --------------------------------------------------------------------------------


def test_requests_are_pipelined_over_the_link() -> None:
    """Requests that are sent together over a delayed link arrive together."""
    cluster, partition, client = make(rtt=0.5)
    sent = [client.send_produce(idempotent_batch(s)) for s in range(5)]
    assert partition.spans.span() == 5, "batches count once read, before the delay"
    cluster.run_until(0.49)
    assert end(partition) == 5
    assert client.answer(sent[0]) is None
    assert partition.spans.span() == 5, "batches count until the answer is delivered"
    cluster.run_until(0.5)
    assert all(client.answer(s) is not None for s in sent)
    assert (partition.spans.span(), partition.spans.max_span()) == (0, 5)


def test_bandwidth_slows_large_requests_down() -> None:
    """A large request takes as long as its size divided by the bandwidth."""
    cluster, _, client = make(bandwidth=10_000.0)
    offset_of(client.produce(idempotent_batch(0, value=b"x" * 10_000)))
    assert 1.0 < cluster.now < 1.1


def test_a_late_caller_distorts_no_delay() -> None:
    """A delivery's due time does not depend on how late the cluster's clock is advanced."""
    cluster, _, client = make(rtt=0.5)
    client.send_produce(idempotent_batch(0))
    (delivery,) = cluster.run_until(60.0)
    assert delivery.due == 0.5


def test_nothing_is_due_when_nothing_was_sent() -> None:
    """A cluster without pending requests has no event scheduled."""
    cluster, _, client = make()
    assert cluster.state.next_due() is None
    offset_of(client.produce(idempotent_batch(0)))
    cluster.run_until(31.0)
    assert cluster.state.next_due() is None


def test_the_same_calls_give_the_same_cluster() -> None:
    """Clusters with the same seed and the same calls make the same deliveries."""

    def history() -> list[Any]:
        cluster, partition, client = make(brokers=3, replication=3, seed=5, rtt=0.1)
        fill(client, 3)
        cluster.state.move_leader(partition, 2)
        other = cluster.client(2)
        other.produce(idempotent_batch(3))
        pid = other.ask(22, 4, {"transactional_id": None, "transaction_timeout": timedelta(0)})
        return [
            cluster.state.cluster_id,
            partition.topic.id,
            pid.producer_id,
            [(d.due, d.correlation_id, d.response) for d in cluster.deliveries],
        ]

    assert history() == history()

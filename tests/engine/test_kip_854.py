"""A broker may forget a producer (KIP-854); a partition where it may have done so is *suspect*.

The first tests show what the embedded broker forgets, and when. The others show how the engine
treats a suspect partition. A success acknowledges its own batch only, and not the batches before
it. Batches in doubt are neither probed nor resent, but looked up in the log ("read back"). With
`in_doubt="resend"` the engine resends them, so that duplicates are possible.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.configs import BROKER_CONFIGS
from aioidem._broker.partition import Replica
from aioidem._broker.virtual import START_MS, VirtualClient, VirtualCluster, idempotent_batch
from aioidem._engine import ProducerCore, steps
from aioidem._engine.recovery import Rung
from aioidem._engine.suspicion import DEFAULT_EXPIRATION, Suspicion
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import assign_offsets
from aioidem.errors import ConfigError, UnsupportedVersionError

from .driver import (
    ACKED,
    INVALID_RECORD,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    Request,
    Rig,
    T,
    wait_until,
)

HOUR = 3600.0
DAY = 24 * HOUR
EXPIRATION = "producer.id.expiration.ms"
INTERVAL = "producer.id.expiration.check.interval.ms"


# -- the broker


def broker(**configs: str) -> tuple[VirtualCluster, VirtualClient, Replica]:
    cluster = VirtualCluster(configs={INTERVAL: "1000", **configs})
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    (replica,) = cluster.state.topics["t"].partitions[0].replicas.values()
    return cluster, cluster.client(), replica


def known(replica: Replica) -> set[int]:
    return {entry.producer_id for entry in replica.producers.entries()}


def test_a_producer_has_its_own_timeout_of_a_day_and_at_least_a_millisecond() -> None:
    """The broker's producer.id.expiration.ms is a day by default, and at least 1."""
    assert BROKER_CONFIGS[EXPIRATION].default == "86400000"
    BROKER_CONFIGS[EXPIRATION].check("1")
    with pytest.raises(ValueError, match="at least 1"):
        BROKER_CONFIGS[EXPIRATION].check("0")
    assert DEFAULT_EXPIRATION == DAY


def test_the_timeout_can_be_changed_while_the_broker_runs() -> None:
    """producer.id.expiration.ms can be changed while brokers run, for all or for one of them.

    A broker's own value counts before the cluster's, from its next check for expired producers on.
    """
    cluster, client, replica = broker()
    client.produce(idempotent_batch(0))
    cluster.run_until(60.0)
    assert known(replica) == {7}
    cluster.state.topology.set_broker_configs(cluster.state.brokers[0], {EXPIRATION: "100000"})
    cluster.run_until(90.0)
    assert known(replica) == {7}
    cluster.state.topology.set_broker_configs(None, {**cluster.state.configs, EXPIRATION: "5000"})
    cluster.run_until(95.0)
    assert known(replica) == {7}, "the broker's own config counts before the cluster's"
    cluster.state.topology.set_broker_configs(cluster.state.brokers[0], {})
    cluster.run_until(97.0)
    assert known(replica) == set()


def test_retention_of_its_last_write_does_not_forget_a_producer() -> None:
    """A broker remembers a producer even after retention has deleted the producer's last batch.

    Kafka behaves so since KIP-360, although KIP-854 says the opposite.
    """
    room = str(3 * len(idempotent_batch(0)))
    _, client, replica = broker(**{"log.retention.bytes": room})
    client.produce(idempotent_batch(0, producer_id=1))
    for sequence in range(3):
        client.produce(idempotent_batch(sequence, producer_id=2))
    assert replica.log.start_offset == 1
    assert known(replica) == {1, 2}
    [duplicate] = {client.produce(idempotent_batch(0, producer_id=1)).base_offset}
    assert duplicate == 0, "a resend of its batch is still a duplicate"


def test_a_broker_that_forgot_a_producer_does_not_say_so() -> None:
    """A broker that forgot a producer takes any sequence, and the same bytes a second time."""
    cluster, client, _ = broker(**{EXPIRATION: "5000"})
    answers = []
    for _ in range(2):
        part = client.produce(idempotent_batch(5))
        answers.append((ErrorCode(part.error_code), part.base_offset))
        cluster.run_until(cluster.now + 10.0)
    assert answers == [(ErrorCode.none, 0), (ErrorCode.none, 1)]


def test_the_last_batch_counts_by_its_newest_record() -> None:
    """A broker measures how long a producer has been idle by the last batch that it appended.

    The time runs from the newest timestamp in that batch, even if an earlier batch had a newer one.
    It does not run from the moment at which the broker appended the batch.
    """
    cluster, client, replica = broker()
    old = START_MS - int(25 * HOUR * 1000)
    client.produce(idempotent_batch(0))
    client.produce(idempotent_batch(1, timestamps_ms=[old, START_MS]))
    cluster.run_until(2.0)
    assert known(replica) == {7}
    client.produce(idempotent_batch(3, timestamps_ms=[old, old]))
    cluster.run_until(4.0)
    assert known(replica) == set()


# -- the engine


class DatedCore(ProducerCore):
    """A core with a wall clock that is `age` seconds ahead of the timestamps of `Rig`'s records."""

    age = 0.0
    stamp_ms: int | None = None

    def poll(self, now: float, wall_ms: float | None = None) -> list[steps.Step]:
        return super().poll(now, self.wall_ms(now) if wall_ms is None else wall_ms)

    def wall_ms(self, now: float) -> float:
        return 1_700_000_000_000 + (self.age + now - 1000.0) * 1000.0


class DatedRig(Rig):
    """A rig whose records are `age` seconds old, and in which the test answers reads of the log."""

    core: DatedCore

    def stamp(self) -> int:
        stamp_ms = self.core.stamp_ms
        return super().stamp() if stamp_ms is None else stamp_ms

    def __init__(self, age: float = 13 * HOUR, **options: Any) -> None:
        super().__init__(**options)
        self.core = DatedCore(self.config, random=random.Random(1).random)
        self.core.age = age
        self.hold = (steps.ReadBack,)
        self.told: dict[int, float] = {}

    def _perform(self, step: steps.Step) -> None:
        if isinstance(step, steps.DescribeBrokerConfig) and step.node_id in self.told:
            facts = BrokerFacts(expiration=self.told[step.node_id])
            self.core.on_answer(step, facts, self.now)
        else:
            super()._perform(step)

    def now_stamp(self) -> int:
        """Return the time of a broker's clock, in milliseconds since the epoch."""
        return int(self.core.wall_ms(self.now))

    def page(
        self, *stored: tuple[Request, int], code: int = 0, high_watermark: int | None = None
    ) -> None:
        """Answer the oldest held log read with the batches of `stored`: (request, offset) pairs."""
        step = self.held.pop(0)
        assert isinstance(step, steps.ReadBack)
        data = b"".join(
            assign_offsets(request.only.data, base_offset=offset, leader_epoch=0)
            for request, offset in stored
        )
        end = stored[-1][1] + 1 if stored else step.offset
        answer = ReadBackAnswer(code, end if high_watermark is None else high_watermark, data)
        self.core.on_answer(step, answer, self.now)
        self.collect()
        self.poll()


def dated(batches: int = 3, **options: Any) -> tuple[DatedRig, Sequence[Request]]:
    """Make a rig with record 0 acknowledged at offset 0, and batches 1 to `batches` in flight."""
    rig = DatedRig(**options)
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0], 0)
    rig.send(batches)
    return rig, rig.outstanding()


def doubted(batches: int = 3, **options: Any) -> tuple[DatedRig, Sequence[Request]]:
    """Make the rig of `dated`, and then lose its connection, so that its batches are in doubt."""
    rig, requests = dated(batches, **options)
    assert len(requests) == batches
    rig.lose()
    rig.tick(2.0)
    return rig, requests


def test_the_log_is_read_as_soon_as_the_new_leader_has_a_connection() -> None:
    """What is in doubt is looked at before its partition has its new route, so the engine polls on.

    Where nothing else wakes it, the batch would wait for its deadline.
    """
    rig = DatedRig(brokers=2, partitions=2)
    rig.leaders[T, 1] = (2, 0)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
        rig.ack(rig.outstanding()[0], 0)
    rig.tick(5.0)
    rig.send(1, partition=0)
    rig.move_leader(2, 1, seconds=0.0)
    rig.lose(rig.outstanding()[0].link)
    assert rig.core.wake_at == rig.now
    rig.poll()
    assert [type(step) for step in rig.held] == [steps.ReadBack]


@pytest.mark.parametrize(("age", "suspect"), [(12 * HOUR - 60, False), (12 * HOUR + 1, True)])
def test_records_older_than_half_the_expiration_make_a_partition_suspect(
    age: float, suspect: bool
) -> None:
    """Records older than half of the broker's producer id expiration make a partition suspect.

    Suspect means that the broker may have forgotten the producer. The other half is for clock skew
    and for the time of delivery.
    """
    rig, _ = dated(age=age)
    rig.poll()
    assert rig.state().suspicion.suspect is suspect


def test_a_partition_that_nothing_was_written_to_is_not_suspect() -> None:
    """A leader change carries no suspicion over, because there was none."""
    suspicion = Suspicion()
    assert not suspicion.suspect
    suspicion.leader_changed()
    assert not suspicion.assess(START_MS, DEFAULT_EXPIRATION, [])


@pytest.mark.parametrize(("appended_ms", "suspect"), [(0, True), (-1, False), (1000, False)])
def test_the_log_append_time_counts_if_the_answer_names_one_that_is_not_the_batch_s_own(
    appended_ms: int, suspect: bool
) -> None:
    """-1 means that it names none. The record was made at 1000 ms, and half of 1 s is the limit."""
    suspicion = Suspicion()
    suspicion.acked(1000, appended_ms)
    assert not suspicion.assess(500.0, 1.0, [])
    assert suspicion.assess(501.0, 1.0, []) is suspect
    assert suspicion.suspect is suspect
    assert suspicion.assess(1501.0, 1.0, [])


def test_a_clock_that_is_set_back_makes_new_records_old() -> None:
    """Records that are stamped after the producer's clock was set back make a partition suspect.

    The broker's clock was not set back. By that clock the new records are old, and the broker may
    forget a producer whose last record is old (found by seed 42715 of tests/simulated).
    """
    rig, (first,) = dated(1, age=0.0)
    rig.ack(first, 1)
    assert not rig.state().suspicion.suspect
    rig.core.age = -13 * HOUR
    rig.core.stamp_ms = rig.now_stamp()
    rig.send()
    rig.poll()
    assert rig.state().suspicion.suspect


def test_the_oldest_of_the_unresolved_counts_and_not_the_newest() -> None:
    """The oldest unresolved record decides whether a partition is suspect, not the newest.

    In a suspect partition the broker may have forgotten the producer. Here a batch whose record is
    13 hours old lies between two batches with new records.
    """
    rig = DatedRig(age=0.0)
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0], 0)
    rig.send()
    rig.poll()
    assert not rig.state().suspicion.suspect
    rig.core.stamp_ms = rig.now_stamp() - int(13 * HOUR * 1000)
    rig.send()
    rig.core.stamp_ms = None
    rig.send()
    rig.poll()
    assert rig.state().suspicion.suspect


@pytest.mark.parametrize(("ages", "suspect"), [((0, 13), True), ((13, 0), False)])
def test_the_batch_that_was_acknowledged_last_counts_and_not_the_newest(
    ages: tuple[int, int], suspect: bool
) -> None:
    """A leader counts its expiration from the batch that it appended last, however new others are.

    The ages are those of two acknowledged batches, in hours. A batch with a new record follows.
    """
    rig = DatedRig(age=0.0)
    rig.start()
    for offset, age in enumerate(ages):
        rig.core.stamp_ms = rig.now_stamp() - int(age * HOUR * 1000)
        rig.send()
        rig.ack(rig.outstanding()[0], offset)
    rig.core.stamp_ms = rig.now_stamp()
    rig.send()
    rig.poll()
    assert rig.state().suspicion.suspect is suspect


def test_log_append_time_cures_what_old_records_spoiled() -> None:
    """A partition is no longer suspect when a LogAppendTime shows that its broker sets the time."""
    for told, suspect in [(True, False), (False, True)]:
        rig, requests = dated(1)
        rig.ack(requests[0], 1, log_append_time_ms=rig.now_stamp() if told else -1)
        rig.core.stamp_ms = rig.now_stamp()
        rig.send()
        rig.poll()
        assert rig.state().suspicion.suspect is suspect


def test_log_append_time_vouches_for_what_is_unresolved() -> None:
    """Old records make no partition suspect if the broker replaces their timestamps.

    A partition is suspect if the broker may have forgotten the producer because its records are
    old. A LogAppendTime in an answer shows that the broker stamps batches with its own clock, so
    the batches after the acknowledged one get a later timestamp.
    """
    rig, requests = dated(1)
    rig.ack(requests[0], 1, log_append_time_ms=rig.now_stamp())
    rig.send()
    rig.lose()
    rig.tick(2.0)
    assert not rig.state().suspicion.suspect
    rig.ack(rig.outstanding()[0], 2, log_append_time_ms=rig.now_stamp())
    assert rig.statuses == [ACKED] * 3


def test_the_stamp_of_a_stored_copy_is_no_log_append_time() -> None:
    """A timestamp in the answer that equals the batch's own is not taken for a LogAppendTime.

    A broker answers a resend with the timestamp that it stored, even if that is a CreateTime.
    """
    rig, requests = dated(1, age=0.0)
    created = requests[0].only.batch.max_timestamp_ms
    rig.ack(requests[0], 1, log_append_time_ms=created)
    rig.core.stamp_ms = rig.now_stamp() - int(13 * HOUR * 1000)
    rig.send()
    rig.poll()
    assert rig.state().suspicion.suspect


def test_log_append_time_vouches_for_no_longer_than_the_broker_remembers() -> None:
    rig, requests = dated(1)
    rig.ack(requests[0], 1, log_append_time_ms=rig.now_stamp() - int(13 * HOUR * 1000))
    rig.core.stamp_ms = rig.now_stamp()
    rig.send()
    rig.poll()
    assert rig.state().suspicion.suspect


def test_a_later_success_acknowledges_nothing_below_it() -> None:
    """In a suspect partition error NONE for a batch does not acknowledge earlier batches in doubt.

    A leader that has forgotten the producer accepts any sequence, so it may lack the earlier batch.
    In a partition that is not suspect, the earlier batch is acknowledged too.
    """
    for age, below in [(0.0, ACKED), (13 * HOUR, PENDING)]:
        rig, (first, second, third) = dated(age=age)
        rig.fail(first, REQUEST_TIMED_OUT, poll=False)
        rig.ack(second, 7)
        assert (rig.outcomes[1].status, rig.outcomes[2].status) == (below, ACKED)
        rig.ack(third, 8)
        assert rig.outcomes[1].status is below


def test_what_is_in_doubt_is_read_and_not_resent() -> None:
    """Batches in doubt in a suspect partition are read back from the log, not resent.

    Reading begins after the last acknowledged offset; a batch that is found is ACKED.
    """
    rig, requests = doubted()
    assert not rig.outstanding(), "a resend could be appended a second time"
    (step,) = rig.held
    assert (step.offset, step.partition) == (1, 0)
    rig.page(*zip(requests, (1, 2, 3), strict=True))
    assert [(o.status, o.offset) for o in rig.outcomes[1:]] == [(ACKED, n) for n in (1, 2, 3)]
    assert rig.core.epoch_bumps == 0
    rig.assert_drained()


def test_what_is_not_found_in_the_log_is_unknown_and_a_bump() -> None:
    """Batches in doubt that are not found in the log end UNKNOWN, and the epoch is bumped.

    That a batch is not found proves nothing: its request may still wait in the broker.
    """
    rig, requests = doubted()
    rig.page((requests[0], 1))
    assert rig.statuses[1:] == [ACKED, UNKNOWN, UNKNOWN]
    rig.send()
    rig.tick(1.0)
    assert (rig.outstanding()[0].epoch, rig.outstanding()[0].sequence) == (1, 0)
    rig.ack_all()
    rig.assert_drained()


def test_the_log_is_read_page_by_page_up_to_the_high_watermark() -> None:
    """The log is read page by page up to the high watermark.

    Batches of other producers may lie between ours.
    """
    rig, requests = doubted(2)
    rig.page((requests[0], 1), high_watermark=50)
    assert rig.outcomes[1].status is ACKED
    (step,) = rig.held
    assert step.offset == 2
    rig.page((requests[1], 49), high_watermark=50)
    assert (rig.outcomes[2].status, rig.outcomes[2].offset) == (ACKED, 49)
    assert not rig.held
    rig.assert_drained()


def test_a_log_that_gives_no_records_is_not_read_on_when_nothing_is_in_doubt_any_more() -> None:
    """Its empty pages would keep what is refused later from being sent again."""
    rig, _ = doubted(1, delivery_timeout=40.0, request_timeout=10.0)
    while rig.outcomes[1].status is PENDING:
        rig.page(high_watermark=5)
        rig.tick(1.0)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.outcomes[1].at is not None
    assert rig.outcomes[1].at < 1045.0
    rig.page(high_watermark=5)
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
    rig.tick(1.0)
    assert not rig.held
    assert [each.sequence for each in rig.outstanding()] == [0]
    rig.ack_all()
    rig.assert_drained()


def test_what_was_refused_below_what_is_found_is_not_sent_again() -> None:
    """A refused batch below one that is found in the log ends NOT_WRITTEN (simulation seed 37036).

    The broker had forgotten the producer and accepted the later batch, so a retry of the refused
    one would come after it.
    """
    rig, (first, second) = dated(2)
    rig.fail(first, NOT_ENOUGH_REPLICAS, poll=False)
    rig.lose()
    rig.tick(2.0)
    assert not rig.outstanding(), "no batch is sent while the log is read"
    rig.page((second, 1))
    assert rig.statuses[1:] == [NOT_WRITTEN, ACKED]
    assert rig.core.counters.data_loss_events == 1
    rig.send()
    rig.tick(1.0)
    assert (rig.outstanding()[0].epoch, rig.outstanding()[0].sequence) == (1, 0)
    rig.ack_all()
    rig.assert_drained()


def test_what_was_refused_below_what_is_not_found_is_not_sent_again() -> None:
    """If a batch is not found in the log, an earlier refused one ends NOT_WRITTEN.

    The leader may have forgotten the producer, and so have taken the later batch without the
    earlier one, which would then come after it. What is queued behind goes on under a new epoch.
    """
    rig, (first, _) = dated(2)
    rig.fail(first, NOT_ENOUGH_REPLICAS, poll=False)
    rig.lose()
    rig.tick(2.0)
    rig.send()
    rig.page()
    assert rig.statuses[1:] == [NOT_WRITTEN, UNKNOWN, PENDING]
    assert "only out of order" in str(rig.outcomes[1].error)
    (after,) = rig.outstanding()
    assert (after.epoch, after.sequence) == (1, 0)
    rig.ack_all()
    rig.assert_drained()


def test_a_batch_of_another_epoch_with_the_same_sequence_is_not_ours() -> None:
    """A batch in the log is ours only if its producer id, epoch and base sequence all match."""
    rig, requests = doubted(1)
    step = rig.held.pop(0)
    other = idempotent_batch(
        requests[0].sequence, producer_id=requests[0].only.identity[0], epoch=5
    )
    stranger = idempotent_batch(requests[0].sequence, producer_id=99)
    data = assign_offsets(other, base_offset=1, leader_epoch=0) + assign_offsets(
        stranger, base_offset=2, leader_epoch=0
    )
    rig.core.on_answer(step, ReadBackAnswer(0, 3, data), rig.now)
    rig.collect()
    assert rig.outcomes[1].status is UNKNOWN


@pytest.mark.parametrize("own", [False, True])
def test_a_batch_that_is_found_has_the_append_time_that_the_log_names(own: bool) -> None:
    """The log says that it is the append time, also if it happens to be the batch's own time."""
    rig, (lost,) = dated(1)
    rig.fail(lost, NOT_ENOUGH_REPLICAS)  # so that the batch has had two attempts
    rig.tick(1.0)
    (request,) = rig.outstanding()
    rig.lose()
    rig.tick(2.0)
    appended = request.only.batch.max_timestamp_ms if own else rig.now_stamp()
    data = assign_offsets(
        request.only.data, base_offset=1, leader_epoch=0, log_append_time_ms=appended
    )
    rig.core.on_answer(rig.held.pop(0), ReadBackAnswer(0, 2, data), rig.now)
    rig.collect()
    assert rig.outcomes[1].status is ACKED
    told = rig.outcomes[1].settlement
    assert told is not None
    assert (told.attempts, told.base_offset, told.log_append_time_ms) == (2, 1, appended)


def test_a_batch_that_is_found_on_a_topic_with_create_time_has_no_append_time() -> None:
    rig, requests = doubted(1)
    rig.page((requests[0], 1))
    told = rig.outcomes[1].settlement
    assert told is not None
    assert told.log_append_time_ms == -1


def test_without_read_what_is_in_doubt_is_unknown_and_other_partitions_are_read() -> None:
    """A refused read ends the doubt of its partition, and not that of others on the connection."""
    rig = DatedRig(partitions=2)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
        rig.ack(rig.outstanding()[0], 0)
    for partition in (0, 1):
        rig.tick(5.0)
        rig.send(partition=partition)
        rig.fail(rig.outstanding()[0], REQUEST_TIMED_OUT)
        rig.tick(1.0)
        rig.page(code=TOPIC_AUTHORIZATION_FAILED if partition == 0 else 0)
        assert rig.outcomes[2 + partition].status is UNKNOWN
        assert not rig.held


def test_the_log_is_read_from_where_the_first_batch_in_doubt_may_be() -> None:
    """A batch that was acknowledged since lies after it."""
    rig, (first, second) = dated(2)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.ack(second, 2)
    rig.tick(1.0)
    (step,) = rig.held
    assert isinstance(step, steps.ReadBack)
    assert step.offset == 1
    rig.page((first, 1), (second, 2))
    assert rig.statuses == [ACKED] * 3
    assert rig.outcomes[1].offset == 1
    assert rig.core.epoch_bumps == 0


def test_an_old_batch_that_ended_unknown_may_be_what_the_leader_counts_from() -> None:
    """So an earlier batch in doubt is read back and not resent: its number may be forgotten.

    The old batch ends at its deadline, in flight, and may be the last one in the log. The earlier
    one has one request timeout more, because the leader has answered another partition since.
    """
    rig = DatedRig(
        age=0.0, partitions=2, request_timeout=30.0, delivery_timeout=40.0, max_request_size=400
    )
    rig.start()
    for partition in (1, 0):
        rig.send(partition=partition)
        rig.ack(rig.outstanding()[0], 0)
    route = rig.state().leadership.route
    assert route is not None
    rig.core.connections.links[route.link_id].throttle(15_000, rig.now)
    rig.core.stamp_ms = rig.now_stamp()
    rig.send(partition=0, poll=False)
    rig.send(2, partition=1, poll=False)  # so that each batch has a request of its own
    rig.core.stamp_ms = rig.now_stamp() - int(48 * HOUR * 1000)
    rig.send(partition=0, poll=False)
    rig.tick(15.1)
    first, other, old, *_ = rig.outstanding()
    assert [each.only.partition for each in (first, other, old)] == [0, 1, 0]
    rig.tick(5.0)
    rig.fail(first, REQUEST_TIMED_OUT)
    rig.tick(5.0)
    rig.ack(other)
    rig.tick(15.0)
    assert [rig.outcomes[number].status for number in (2, 5)] == [PENDING, UNKNOWN]
    rig.ack(old, 2)
    rig.tick(1.0)
    assert [type(step) for step in rig.held] == [steps.ReadBack]
    assert not [each for each in rig.outstanding() if each.only.partition == 0]


def test_without_any_acknowledged_offset_there_is_nowhere_to_read_from() -> None:
    rig = DatedRig()
    rig.start()
    rig.send()
    rig.lose()
    rig.tick(2.0)
    assert rig.statuses == [UNKNOWN]
    assert not rig.held


@pytest.mark.parametrize("code", [NOT_LEADER, ErrorCode.leader_not_available])
def test_a_leader_that_moved_meanwhile_is_asked_again(code: int) -> None:
    """The log is read again after a retriable refusal of Fetch."""
    rig, requests = doubted(1)
    rig.page(code=code)
    assert rig.outcomes[1].status is PENDING
    wait_until(rig, lambda: bool(rig.held))
    rig.page((requests[0], 1))
    assert rig.outcomes[1].status is ACKED


def test_a_leader_that_does_not_know_yet_what_is_committed_is_asked_again() -> None:
    """Its high watermark is below what was acknowledged, so its log goes on behind it.

    A leader that was just elected hears from its followers how far its log is committed.
    """
    rig, requests = dated(1, brokers=2)
    rig.move_leader(2, 1, seconds=0.1)
    rig.lose(requests[0].link)
    rig.tick(2.0)
    rig.page(high_watermark=0)
    assert rig.outcomes[1].status is PENDING
    assert not rig.held
    wait_until(rig, lambda: bool(rig.held))
    rig.page((requests[0], 1))
    assert (rig.outcomes[1].status, rig.outcomes[1].offset) == (ACKED, 1)
    rig.assert_drained()


def test_a_leader_that_is_known_to_be_deposed_is_not_asked_for_its_log() -> None:
    """It may lack what the new leader has, which is asked as soon as there is a connection."""
    rig, (request,) = dated(1, brokers=2)
    rig.down.add(2)
    rig.leaders[T, 0] = (2, 1)
    rig.fail(request, REQUEST_TIMED_OUT)
    rig.refresh(3.0)
    assert not rig.held
    rig.down.clear()
    wait_until(rig, lambda: bool(rig.held))
    (step,) = rig.held
    assert (rig.links[step.link_id].host, step.leader_epoch) == ("b2", 1)
    rig.page((request, 1))
    assert (rig.outcomes[1].status, rig.outcomes[1].offset) == (ACKED, 1)
    rig.assert_drained()


def test_a_page_of_a_leader_that_was_deposed_meanwhile_proves_nothing() -> None:
    """A batch that is not in it may be in the log of the new leader, which is not connected yet."""
    rig, (request,) = dated(1, brokers=2)
    rig.fail(request, REQUEST_TIMED_OUT)
    rig.tick(1.0)
    assert len(rig.held) == 1
    rig.down.add(2)
    rig.move_leader(2, 1)
    rig.page()
    assert rig.outcomes[1].status is PENDING
    assert not rig.held


def test_a_leader_that_never_knows_what_is_committed_is_asked_for_a_request_timeout() -> None:
    """It has lost what was acknowledged, and the partition's other records need not wait longer."""
    rig, requests = dated(1, brokers=2, request_timeout=3.0, delivery_timeout=100.0)
    rig.move_leader(2, 1, seconds=0.1)
    rig.lose(requests[0].link)
    rig.tick(2.0)
    rig.page(high_watermark=0)
    began = rig.now
    while rig.outcomes[1].status is PENDING:
        wait_until(rig, lambda: bool(rig.held))
        rig.page(high_watermark=0)
    assert rig.outcomes[1].status is UNKNOWN
    assert 3.0 <= rig.now - began < 4.0


def test_the_log_is_read_beyond_a_high_watermark_below_what_was_acknowledged() -> None:
    """The batches up to that high watermark are those that the leader knows to be committed."""
    rig, (first, second, third) = dated(3)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, REQUEST_TIMED_OUT, poll=False)
    rig.ack(third, 3)
    rig.tick(1.0)
    rig.page((first, 1), high_watermark=2)
    assert rig.statuses == [ACKED, ACKED, PENDING, ACKED]
    rig.page(high_watermark=2)
    assert rig.outcomes[2].status is PENDING
    wait_until(rig, lambda: bool(rig.held))
    assert rig.held[0].offset == 2
    rig.page((second, 2), (third, 3))
    assert rig.statuses == [ACKED] * 4
    rig.assert_drained()


# -- the first record after a long idle time


def idle(batches: int = 1, **options: Any) -> DatedRig:
    """Make a rig whose partition was idle for 13 hours, and then send batches of young records."""
    rig = DatedRig(age=0.0, **options)
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0], 0)
    rig.tick(2.0)
    rig.core.age = 13 * HOUR
    rig.core.stamp_ms = rig.now_stamp()
    rig.send(batches)
    return rig


def lost_after_idleness(**options: Any) -> DatedRig:
    """Make the rig of `idle` with one batch, lose its connection, and resend the batch."""
    rig = idle(**options)
    rig.lose()
    rig.tick(2.0)
    assert rig.sequences == [1]
    return rig


def test_the_only_batch_after_a_long_idle_time_is_resent() -> None:
    """It is the newest in the log or is missing there, and its own records are young."""
    rig = lost_after_idleness()
    assert rig.state().suspicion.suspect
    assert not rig.held
    rig.ack_all()
    rig.send()
    assert not rig.state().suspicion.suspect
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3
    assert rig.core.epoch_bumps == 0
    rig.assert_drained()


def test_batches_behind_the_first_one_after_a_long_idle_time_wait_for_it() -> None:
    rig = idle(3)
    assert rig.sequences == [1]
    rig.lose()
    rig.tick(2.0)
    assert rig.sequences == [1]
    rig.ack_all()
    rig.tick(0.1)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 4
    rig.assert_drained()


def test_the_only_batch_is_read_and_not_resent_again_if_the_leader_refuses_it() -> None:
    """OUT_OF_ORDER contradicts what was assumed: then the log is read, and nothing is resent."""
    rig = lost_after_idleness()
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    rig.tick(1.0)
    assert not rig.outstanding()
    [step] = rig.held
    assert (type(step), step.offset) == (steps.ReadBack, 1)
    rig.page()
    assert rig.statuses == [ACKED, UNKNOWN]


@pytest.mark.parametrize("connected", [True, False])
def test_the_only_batch_is_read_if_its_leader_changed(connected: bool) -> None:
    """Also if the new leader is connected already, and its memory known: nothing waits then."""
    partitions = 2 if connected else 1
    rig = DatedRig(age=0.0, brokers=2, partitions=partitions, producer_id_expiration=DAY)
    rig.leaders[T, 1] = (2, 0)
    rig.start()
    for partition in range(partitions):
        rig.send(partition=partition)
        rig.ack(rig.outstanding()[0], 0)
    rig.tick(2.0)
    rig.core.age = 13 * HOUR
    rig.core.stamp_ms = rig.now_stamp()
    rig.send(partition=0)
    rig.move_leader(2, 1, seconds=0.0)
    rig.lose(rig.outstanding()[0].link)
    rig.tick(1.0)
    assert not rig.outstanding()
    assert [type(step) for step in rig.held] == [steps.ReadBack]


def test_the_only_batch_is_read_if_one_before_it_ended_unknown_in_the_same_epoch() -> None:
    rig = idle(delivery_timeout=3.0, request_timeout=2.0, linger=0.0)
    rig.state().suspicion.given_up(rig.core.stamp_ms or 0)
    rig.lose()
    rig.tick(1.0)
    assert not rig.outstanding()
    assert [type(step) for step in rig.held] == [steps.ReadBack]


def test_the_only_batch_is_read_if_a_later_one_is_stored() -> None:
    """The leader counts from the later one, whose records are old, and takes second copies then."""
    rig = DatedRig()
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0], 0)
    rig.core.stamp_ms = rig.now_stamp()
    rig.send()
    rig.core.stamp_ms = None
    rig.send()
    young, old = rig.outstanding()
    rig.fail(young, REQUEST_TIMED_OUT, poll=False)
    rig.ack(old, 7)
    rig.lose()
    rig.tick(1.0)
    assert not rig.outstanding()
    assert {type(step) for step in rig.held} == {steps.ReadBack}


def test_a_rejected_batch_of_a_suspect_partition_is_sent_again_as_ever() -> None:
    """A rejected batch of a suspect partition is resent, because no copy of it can be anywhere."""
    rig, (first,) = dated(1)
    rig.fail(first, NOT_ENOUGH_REPLICAS)
    rig.tick(1.0)
    assert rig.sequences == [1]
    rig.ack_all()
    rig.assert_drained()


def test_a_suspect_partition_is_not_probed() -> None:
    """Batches in doubt of a suspect partition are looked up in the log, and not probed.

    A probe is a batch resent to learn whether it is stored. When it arrives, the leader may have
    forgotten the producer, and would append it.
    """
    rig, (first, second) = dated(2, age=0.0)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, OUT_OF_ORDER)
    rig.tick(1.0)
    (resent,) = rig.outstanding()
    rig.core.age = 13 * HOUR
    rig.fail(resent, OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.CLEAR
    assert not rig.outstanding()
    assert rig.held


def test_the_gate_of_a_suspect_partition_closes_when_nothing_is_outstanding() -> None:
    """A suspect partition sends a batch alone if nothing is outstanding 1 s after the last answer.

    That is, its first-ack gate closes, because the leader may have forgotten the producer by then.
    docs/decisions.md says why the gate does not close at once.
    """
    for age, together in [(0.0, 3), (13 * HOUR, 1)]:
        rig, requests = dated(1, age=age)
        rig.ack(requests[0], 1)
        rig.tick(0.5)
        rig.send(3)
        assert len(rig.outstanding()) == 3
        rig.ack_all()
        rig.tick(1.5)
        rig.send(3)
        assert len(rig.outstanding()) == together
        rig.ack_all()
        rig.assert_drained()


@pytest.mark.parametrize("moved", [True, False])
def test_a_leader_change_while_suspect_is_carried_over_until_the_new_leader_acknowledges(
    moved: bool,
) -> None:
    """A partition stays suspect until a leader acknowledges a batch with a fresh timestamp.

    The old records were found in its log, so they are what it counts from. Of a new leader nothing
    else shows that it knows the producer.
    """
    rig = DatedRig(age=0.0)
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0], 0)
    rig.core.stamp_ms = rig.now_stamp() - int(13 * HOUR * 1000)
    rig.send()
    (request,) = rig.outstanding()
    rig.poll()
    if moved:
        rig.move_leader(1, 1, seconds=0.1)
    rig.lose()
    rig.tick(2.0)
    rig.page((request, 1))
    assert rig.outcomes[1].status is ACKED
    rig.core.stamp_ms = rig.now_stamp()
    rig.send()
    rig.poll()
    assert rig.state().suspicion.suspect
    rig.ack(rig.outstanding()[0], 2)
    rig.send()
    rig.poll()
    assert not rig.state().suspicion.suspect


def test_another_identity_leaves_suspicion_behind() -> None:
    """Under a new epoch a partition is not suspect any more.

    A partition is suspect while its leader may have forgotten the producer. A new epoch begins at
    sequence 0, which the leader accepts in either case.
    """
    rig, _ = doubted(1)
    rig.page()
    rig.core.stamp_ms = rig.now_stamp()
    rig.send()
    rig.tick(1.0)
    assert rig.outstanding()[0].epoch == 1
    assert not rig.state().suspicion.suspect


def test_every_start_takes_a_new_producer_id() -> None:
    """Each producer without a transactional id requests a new producer id when it starts."""
    asked = []
    for _ in range(2):
        rig = DatedRig(age=0.0)
        rig.start()
        asked += [step for step in rig.asked if isinstance(step, steps.InitProducerId)]
    assert len(asked) == 2


# -- warnings


def test_the_cures_are_named_once() -> None:
    rig, _ = doubted()
    rig.page()
    rig.send(3)
    rig.lose()
    rig.tick(2.0)
    (warning,) = [event for event in rig.events if "record timestamps are" in event]
    for cure in ("transactional_id", "LogAppendTime", "raise producer.id.expiration.ms"):
        assert cure in warning


@pytest.mark.parametrize(("expiration", "warned"), [(239.0, True), (240.0, True), (240.5, False)])
def test_a_delivery_timeout_not_below_half_the_expiration_is_warned_of_once(
    expiration: float, warned: bool
) -> None:
    """One warning is given if the delivery timeout is not below half the producer id expiration.

    The expiration comes from the brokers or from the option `producer_id_expiration`.
    """
    told = DatedRig(age=0.0, brokers=2, partitions=2, delivery_timeout=120.0)
    told.told = {1: expiration, 2: expiration}
    told.leaders["t", 1] = (2, 0)
    told.start()
    for partition in (0, 1):
        told.send(partition=partition)
    given = DatedRig(age=0.0, producer_id_expiration=expiration).start()
    for rig in (told, given):
        rig.ack_all()
        assert sum("not below half" in event for event in rig.events) == warned


def test_the_shortest_memory_of_all_brokers_counts() -> None:
    """The shortest expiration of all brokers counts, because each broker has its own config."""
    rig = DatedRig(age=0.0, brokers=2, partitions=2)
    rig.told = {1: 5000.0, 2: 1000.0}
    rig.leaders["t", 1] = (2, 0)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
    assert rig.core.expiration == 1000.0


def test_the_option_counts_where_brokers_may_not_be_asked() -> None:
    rig = DatedRig(age=0.0, producer_id_expiration=HOUR)
    rig.start()
    rig.send()
    assert rig.core.expiration == HOUR
    assert not [step for step in rig.asked if isinstance(step, steps.DescribeBrokerConfig)]


# -- in_doubt="resend"


def test_resend_mode_resends_also_where_the_broker_may_have_forgotten() -> None:
    """With in_doubt="resend" batches are resent even if the broker may have forgotten the producer.

    By default the producer would look for the batches in the log instead. The oldest batch is
    resent first, with the same bytes. A duplicate is possible.
    """
    rig, requests = doubted(in_doubt="resend")
    assert not rig.held
    assert rig.sequences == [1]
    assert rig.outstanding()[0].only.data == requests[0].only.data
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.epoch_bumps == 0
    rig.assert_drained()


def test_resend_mode_takes_a_new_epoch_where_the_leader_refuses_and_may_have_forgotten() -> None:
    """A batch in doubt that a suspect leader refuses is resent once, and then under a new epoch.

    It would be refused in each round trip until its deadline otherwise, and no probe proves
    anything about a leader that may forget the producer at any time.
    """
    rig, _ = doubted(in_doubt="resend")
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    first = len(rig.everything) - 1
    rig.settle_down()
    written = [value for request in rig.everything[first:] for value in request.only.values]
    assert written == sorted(written, key=lambda value: value or b"")
    assert len(written) == 3
    assert rig.statuses == [ACKED] * 4
    assert rig.core.counters.data_loss_events == 0
    rig.assert_drained()


def renumbered() -> tuple[DatedRig, Request, Request]:
    """Make a rig whose two batches in doubt are in flight again, under a new epoch."""
    rig, _ = doubted(in_doubt="resend")
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()))
    rig.ack(rig.outstanding()[0])
    second, third = rig.outstanding()
    assert (second.epoch, second.sequence, third.sequence) == (1, 1, 2)
    return rig, second, third


@pytest.mark.parametrize("code", [NOT_LEADER, INVALID_RECORD])
def test_resend_mode_reports_a_success_above_what_was_refused_in_the_new_epoch(code: int) -> None:
    """A batch in doubt that has a new epoch is missing there if every attempt in it was refused.

    A leader that holds the producer's state would not accept a later batch of that epoch then.
    """
    rig, second, third = renumbered()
    rig.fail(second, code, poll=False)
    rig.ack(third)
    assert rig.core.counters.data_loss_events == 1
    rig.settle_down()
    assert rig.core.counters.data_loss_events == 1
    rig.assert_drained()


def test_resend_mode_takes_a_success_for_the_proof_of_a_doubt_in_the_new_epoch() -> None:
    """A batch in doubt that may have been appended in its new epoch is not missing there.

    A leader that holds the producer's state accepts a later batch of that epoch only after it.
    """
    rig, second, third = renumbered()
    rig.fail(second, REQUEST_TIMED_OUT, poll=False)
    rig.ack(third)
    assert rig.core.counters.data_loss_events == 0
    rig.settle_down()
    assert rig.statuses == [ACKED] * 4
    assert rig.core.counters.data_loss_events == 0
    rig.assert_drained()


def test_resend_mode_resends_under_a_new_epoch_what_no_probe_has_found() -> None:
    """With in_doubt="resend" batches that no probe has found are sent again under a new epoch.

    A probe is a batch resent with its old epoch, to learn whether the leader has stored it. Here
    the leader answers every probe OUT_OF_ORDER. One data loss is counted, and the records are
    written in order.
    """
    rig, _ = doubted(age=0.0, in_doubt="resend", request_timeout=10.0)
    while rig.state().ledger.identity == (4001, 0):
        wait_until(rig, lambda: bool(rig.outstanding()))
        if rig.outstanding()[0].epoch == 0:
            rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.core.counters.data_loss_events == 1
    assert rig.statuses[1:] == [PENDING] * 3
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    first = len(rig.everything) - 1
    rig.ack_all()
    written = [value for request in rig.everything[first:] for value in request.only.values]
    assert written == sorted(written, key=lambda value: value or b"")
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


def test_resend_mode_takes_new_numbers_again_for_what_was_never_sent_under_the_last() -> None:
    """Batches that were renumbered for a resend are renumbered again if the first one is refused.

    The first one is refused for good, and leaves a gap in the sequences. Only a leader without the
    producer's state would accept the batch after the gap. (This is with in_doubt="resend".)
    """
    rig, _ = doubted(age=0.0, in_doubt="resend", request_timeout=10.0)
    while rig.state().ledger.identity == (4001, 0):
        wait_until(rig, lambda: bool(rig.outstanding()))
        if rig.outstanding()[0].epoch == 0:
            rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.fail(rig.outstanding()[0], INVALID_RECORD)
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert (rig.outstanding()[0].epoch, rig.sequences) == (2, [0])
    rig.ack_all()
    assert rig.statuses[1:] == [UNKNOWN, ACKED, ACKED]
    rig.assert_drained()


def test_resend_mode_keeps_the_deadline() -> None:
    """With in_doubt="resend" too, a record without an answer ends UNKNOWN at its deadline."""
    rig, requests = doubted(1, age=0.0, in_doubt="resend", delivery_timeout=40.0)
    (request, *_) = requests
    wait_until(rig, lambda: rig.outcomes[1].status is not PENDING)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.outcomes[1].at == pytest.approx(request.sent_at + 40.0, abs=0.01)


def test_an_expiration_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        DatedRig(producer_id_expiration=0.0)


# -- the log cannot be read


def test_without_a_usable_version_of_fetch_old_records_in_doubt_end_unknown() -> None:
    """A resend may be stored twice, and only the log tells; it is asked once per connection."""
    rig, _ = doubted(2)
    step = rig.held.pop()
    rig.core.on_unsupported(step, UnsupportedVersionError("no version"), rig.now)
    rig.poll()
    assert not rig.core.connections.links[step.link_id].may_read
    rig.tick(5.0)
    assert rig.statuses == [ACKED, UNKNOWN, UNKNOWN]
    assert rig.held == []


@pytest.mark.parametrize("throttle_ms", [0, 3000])
def test_a_throttle_in_the_answer_to_a_read_holds_the_connection(throttle_ms: int) -> None:
    rig, _ = doubted(2)
    step = rig.held.pop()
    link = rig.core.connections.links[step.link_id]
    rig.core.on_answer(step, ReadBackAnswer(0, 1, b"", throttle_ms), rig.now)
    assert link.admits(rig.now) is (throttle_ms == 0)
    assert link.admits(rig.now + 3.1)


def test_a_retriable_refusal_of_a_read_is_tried_again_after_a_back_off_with_new_metadata() -> None:
    rig, _ = doubted(2, retry_backoff=4.0, retry_backoff_max=4.0)
    rig.tick(5.0)
    before = rig.core.metadata.requests
    rig.page(code=NOT_LEADER)
    assert rig.held == []
    rig.tick(3.5)
    assert rig.held == []
    assert rig.core.metadata.requests > before
    rig.tick(1.0)
    assert [type(step) for step in rig.held] == [steps.ReadBack]

"""The producer's identity and the sequences of a partition.

First `SequenceLedger` and `IdentityLedger` alone, then the engine that uses them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._engine.idempotence import (
    MAX_EPOCH,
    IdentityLedger,
    IdentityState,
    ProducerIdentity,
    SequenceLedger,
    wire_sequence,
)

from .driver import (
    ACKED,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_PRODUCER_ID,
    Rig,
    T,
    pipelined,
)


def test_sequences_count_records_from_zero() -> None:
    """A batch takes as many sequences as it has records."""
    ledger = SequenceLedger()
    assert [ledger.take(3), ledger.take(1), ledger.take(5)] == [0, 3, 4]
    assert ledger.next == 9


@pytest.mark.parametrize(
    ("counter", "wire"),
    [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 1, 1), (5 * 2**31 + 7, 7)],
)
def test_wire_sequences_wrap_to_zero(counter: int, wire: int) -> None:
    """After sequence 2^31 - 1 comes 0 (KAFKA-7693, franz-go v1.5.3, KafkaJS #1790).

    Sequence 2^31 - 1 itself is used, and none is negative, unlike with aiokafka's
    `increment_sequence_number`.
    """
    assert wire_sequence(counter) == wire


@given(st.integers(0, 2**70))
def test_a_wire_sequence_is_an_int32_that_is_not_negative(counter: int) -> None:
    assert 0 <= wire_sequence(counter) < 2**31
    assert (wire_sequence(counter + 1) - wire_sequence(counter)) % 2**31 == 1


def test_another_identity_starts_again_at_zero() -> None:
    ledger = SequenceLedger()
    ledger.take(10)
    ledger.adopt(ProducerIdentity(1, 1))
    assert (ledger.next, ledger.identity) == (0, ProducerIdentity(1, 1))


def test_a_bump_raises_the_epoch_by_one() -> None:
    """A bump keeps the producer id and raises its epoch by one."""
    ledger = IdentityLedger()
    ledger.ask()
    ledger.grant(7, 0)
    ledger.bump()
    assert ledger.current == ProducerIdentity(7, 1)
    assert ledger.bumps == 1


def test_the_last_epoch_gives_way_to_a_new_producer_id() -> None:
    """After epoch 32767 the ledger needs a new producer id (librdkafka #3720, Dekaf #3341)."""
    ledger = IdentityLedger()
    ledger.ask()
    ledger.grant(7, MAX_EPOCH - 1)
    ledger.bump()
    assert (ledger.current, ledger.state) == (ProducerIdentity(7, MAX_EPOCH), IdentityState.READY)
    ledger.bump()
    assert (ledger.current, ledger.state) == (None, IdentityState.ABSENT)
    ledger.bump()
    assert ledger.bumps == 2
    ledger.ask()
    ledger.bump()
    assert ledger.grant(8, 0) == ProducerIdentity(8, 0)


def test_the_coordinator_grants_identities_and_each_but_the_first_is_a_change() -> None:
    ledger = IdentityLedger()
    for bumps, identity in enumerate([(7, 0), (7, 1), (8, 0)]):
        ledger.renew(*identity)
        assert (ledger.current, ledger.state) == (identity, IdentityState.READY)
        assert ledger.bumps == bumps


def test_an_id_is_given_up_once() -> None:
    ledger = IdentityLedger()
    ledger.disown()
    assert (ledger.current, ledger.state, ledger.bumps) == (None, IdentityState.ABSENT, 0)
    ledger.ask()
    ledger.grant(7, 3)
    ledger.disown()
    ledger.disown()
    assert (ledger.current, ledger.state, ledger.bumps) == (None, IdentityState.ABSENT, 1)


def test_sequences_are_taken_at_drain_and_count_records() -> None:
    """Records take sequences when they are sent; those behind a closed first-ack gate have none."""
    rig = Rig(batch_size=1000, linger=0.01).start()
    rig.send(5)
    rig.tick(0.1)
    rig.send(3)
    rig.tick(0.1)
    assert rig.state().ledger.next == 5
    rig.ack(rig.outstanding()[0])
    rig.tick(0.1)
    assert rig.sequences == [5]
    assert rig.outstanding()[0].only.batch.count == 3


def test_nothing_is_sent_before_there_is_a_producer_id() -> None:
    """No Produce request is sent before InitProducerId is answered."""
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send(3)
    rig.tick(5.0)
    assert rig.everything == []
    rig.grant(rig.held[0], 9, 4)
    rig.poll()
    assert rig.outstanding()[0].only.identity == (9, 4)
    assert rig.sequences == [0]


def test_the_producer_id_is_asked_for_although_metadata_holds_the_only_slot() -> None:
    """InitProducerId is sent after the Metadata answer if the connection takes one request only.

    The two requests must not wait for each other.
    """
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.hold = (steps.FetchMetadata,)
    rig.core.accumulator.topic(T)
    rig.send()
    assert [type(step) for step in rig.asked] == [steps.OpenLink, steps.FetchMetadata]
    rig.hold = ()
    rig.answer_metadata(rig.held[0])
    rig.tick(1.0)
    assert any(isinstance(step, steps.InitProducerId) for step in rig.asked)
    rig.ack_all()
    rig.assert_drained()
    assert rig.statuses == [ACKED]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_server_error,
    ],
)
def test_a_producer_id_refused_retriably_is_asked_for_again(code: int) -> None:
    """InitProducerId is repeated after a retriable error."""
    from aioidem._protocol.producer_id import ProducerIdAnswer

    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send()
    for number in range(3):
        step = rig.held[number]
        rig.core.on_answer(step, ProducerIdAnswer(code, -1, -1), rig.now)
        rig.tick(3.0)
    rig.grant(rig.held[3], 5, 0)
    rig.ack_all()
    assert rig.statuses == [ACKED]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (5, -1), (-1, -1)])
def test_a_success_without_a_producer_id_is_an_error(producer_id: int, epoch: int) -> None:
    """InitProducerId is repeated if its answer has error NONE but no producer id or no epoch."""
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send()
    rig.grant(rig.held[0], producer_id, epoch)
    rig.tick(1.0)
    assert rig.everything == []
    rig.grant(rig.held[1], 5, 0)
    rig.poll()
    assert rig.outstanding()[0].only.identity == (5, 0)


def test_sequences_wrap_with_batches_in_flight_and_are_retried_in_order() -> None:
    """Batches are ordered by an unbounded counter, never by their sequences on the wire."""
    rig = Rig(batch_size=400).start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.jump(2**31 - 3)
    for _ in range(4):
        rig.send(2, poll=False)
        rig.poll()
    wires = [2**31 - 3, 2**31 - 1, 1, 3]
    assert rig.sequences == wires
    first, second, third, fourth = rig.outstanding()
    rig.fail(first, NOT_LEADER, poll=False)
    for later in (second, third, fourth):
        rig.fail(later, OUT_OF_ORDER, poll=False)
    rig.tick(1.0)
    resent = []
    while rig.outstanding():
        resent.append(rig.sequences[0])
        rig.ack(rig.outstanding()[0])
    assert resent == wires
    assert rig.statuses == [ACKED] * 9
    rig.assert_drained()


def test_a_batch_that_begins_right_at_the_wrap_has_sequence_zero() -> None:
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.jump(2**31)
    rig.send()
    assert rig.sequences == [0]
    rig.ack_all()
    rig.assert_drained()


def test_a_bump_renumbers_from_zero_what_was_refused_and_nothing_that_is_in_doubt() -> None:
    """A bump renumbers the refused batches from zero, once the batch in doubt is acknowledged.

    The batch in doubt is resent under its own epoch and sequence, because under others it could be
    written twice. Batches of the newer epoch wait for it, because they would fence its epoch.
    """
    rig, (first, second, third, fourth) = pipelined(4)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, TOPIC_AUTHORIZATION_FAILED, poll=False)
    for request in (third, fourth):
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    assert rig.core.epoch_bumps == 1
    (again,) = rig.outstanding()
    assert (again.epoch, again.sequence) == (0, 1)
    assert again.only.data == first.only.data
    rig.tick(1.0)
    assert rig.outstanding() == [again], "nothing is sent under the new epoch beside it"
    rig.ack_all()
    renumbered = [(r.epoch, r.sequence, r.only.values) for r in rig.everything[6:]]
    assert renumbered == [(1, 0, third.only.values), (1, 1, fourth.only.values)]
    assert rig.statuses == [ACKED, ACKED, NOT_WRITTEN, ACKED, ACKED]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_a_bump_renumbers_from_zero_what_was_refused_behind_a_failed_batch() -> None:
    """A bump renumbers the batches refused behind a failed one, from zero and in order."""
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, TOPIC_AUTHORIZATION_FAILED, poll=False)
    for request in (second, third):
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    renumbered = [(r.epoch, r.sequence, r.only.values) for r in rig.everything[4:]]
    assert renumbered == [(1, 0, second.only.values), (1, 1, third.only.values)]
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED, ACKED]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_unknown_producer_id_bumps_once_and_retries_what_was_refused() -> None:
    """UNKNOWN_PRODUCER_ID bumps the epoch once, and the refused batches are sent from sequence 0.

    Brokers before 2.5 forget a producer whose records retention has removed.
    """
    rig, requests = pipelined(3)
    for request in requests:
        rig.fail(request, UNKNOWN_PRODUCER_ID, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    again = [(r.epoch, r.sequence) for r in rig.everything[4:]]
    assert again == [(1, 0), (1, 1), (1, 2)]
    assert set(rig.statuses) == {ACKED}
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_out_of_order_with_nothing_in_doubt_is_a_loss_a_bump_and_a_retry() -> None:
    """OUT_OF_ORDER with no batch in doubt is data loss; refused batches are sent in a new epoch.

    The leader has lost an acknowledged batch. It never appended the refused ones, so their resends
    are no duplicates.
    """
    rig, (first, second) = pipelined(2)
    rig.fail(first, OUT_OF_ORDER, poll=False)
    rig.fail(second, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    assert [(r.epoch, r.sequence) for r in rig.everything[3:]] == [(1, 0), (1, 1)]
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 1
    rig.assert_drained()

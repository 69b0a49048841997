"""A batch that ends UNKNOWN leaves an incident: what identifies it in the log, and where to begin.

Records that cannot be in the log have none.
"""

from __future__ import annotations

from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.incident_of import incident_of as incident_of_batch
from aioidem._records import read_batches
from aioidem.errors import KafkaError
from aioidem.incident import Acknowledged, Incident
from aioidem.structs import TopicPartition

from .driver import (
    INVALID_RECORD,
    NOT_WRITTEN,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    Outcome,
    Request,
    Rig,
    T,
    pipelined,
    topic_id,
)


def incident_of(outcome: Outcome) -> Incident | None:
    assert isinstance(outcome.error, KafkaError)
    return outcome.error.incident


def lost_for_good(rig: Rig, request: Request) -> None:
    """Let a request end without a usable answer, and let the deadline pass."""
    rig.fail(request, REQUEST_TIMED_OUT)
    rig.leaders.clear()
    rig.tick(300.0)


def test_an_unknown_batch_is_identified_as_it_is_on_the_wire() -> None:
    """The incident has the batch's header, and the record acknowledged before it was sent."""
    rig, (only,) = pipelined(1)
    sent = only.only
    (header,) = read_batches(sent.data)
    lost_for_good(rig, only)
    assert rig.outcomes[1].status is UNKNOWN
    found = incident_of(rig.outcomes[1])
    assert found is not None
    assert (found.topic, found.partition, found.topic_id) == (T, 0, topic_id(T))
    assert (found.producer_id, found.producer_epoch) == sent.identity
    assert (found.base_sequence, found.count) == (sent.sequence, 1)
    assert (found.crc, found.codec) == (header.crc, header.codec)
    assert found.timestamp_ms == header.max_timestamp_ms
    first = rig.outcomes[0]
    producer_id, epoch = sent.identity
    assert found.after == Acknowledged(
        offset=first.offset, producer_id=producer_id, producer_epoch=epoch, last_sequence=0
    )
    assert not found.renumbered
    assert found.index is None


def test_what_was_acknowledged_after_the_first_sending_does_not_count() -> None:
    """A copy of the first attempt may be before a record that was acknowledged later."""
    rig, (first, second) = pipelined(2)
    rig.ack(first)
    rig.fail(second, REQUEST_TIMED_OUT)
    rig.tick(1.0)
    resent = rig.outstanding()[0]
    lost_for_good(rig, resent)
    found = incident_of(rig.outcomes[2])
    assert found is not None
    assert found.after is not None
    assert found.after.offset == rig.outcomes[0].offset < rig.outcomes[1].offset


def test_nothing_acknowledged_before_the_batch() -> None:
    """The first batch of a partition may be anywhere in the log."""
    rig = Rig().start()
    rig.send()
    lost_for_good(rig, rig.outstanding()[0])
    found = incident_of(rig.outcomes[0])
    assert found is not None
    assert found.after is None


def test_a_record_that_was_not_written_has_no_incident() -> None:
    """A refused batch is not in the log, and a record without a batch cannot be."""
    rig, (only,) = pipelined(1)
    rig.fail(only, INVALID_RECORD)
    rig.down.add(1)
    rig.lose()
    rig.send()
    rig.tick(300.0)
    assert [each.status for each in rig.outcomes[1:]] == [NOT_WRITTEN, NOT_WRITTEN]
    assert [incident_of(each) for each in rig.outcomes[1:]] == [None, None]


def test_without_idempotence_nothing_identifies_a_batch() -> None:
    """A batch without a producer id looks like any other."""
    rig = Rig(enable_idempotence=False).start()
    rig.send()
    lost_for_good(rig, rig.outstanding()[0])
    assert rig.outcomes[0].status is UNKNOWN
    assert incident_of(rig.outcomes[0]) is None


def test_a_batch_that_was_resent_under_a_new_identity_says_so() -> None:
    """With in_doubt="resend" a copy with the first identity may be in the log as well."""
    rig, (only,) = pipelined(1, in_doubt="resend")
    (batch,) = rig.state().batches.unresolved
    rig.fail(only, REQUEST_TIMED_OUT)
    batch.forsake()
    rig.state().adopt(ProducerIdentity(9, 0))
    found = incident_of_batch(batch, TopicPartition(T, 0), topic_id(T))
    assert found is not None
    assert (found.producer_id, found.renumbered, found.after) == (9, True, None)

"""The error of records that share an outcome: it names their partition, and what to do."""

from __future__ import annotations

import copy
import pickle

from aioidem import DeliveryStatus, errors
from aioidem._engine.outcome_error import outcome_error
from aioidem.incident import Incident

NOT_WRITTEN, UNKNOWN = DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN
INCIDENT = Incident(
    topic="t",
    partition=0,
    producer_id=1,
    producer_epoch=0,
    base_sequence=0,
    count=1,
    timestamp_ms=0,
)


def test_a_reason_that_many_partitions_share_names_each_in_its_own_copy() -> None:
    """The copy has the partition, the status and the cause; the reason stays as it is."""
    reason = errors.SaslAuthenticationFailed("h:1: the broker refused to authenticate")
    reason.__cause__ = cause = OSError()
    own = outcome_error(reason, "t-0", NOT_WRITTEN, None)
    assert str(own) == f"[Error 58] SaslAuthenticationFailed: t-0: {reason.args[0]}"
    assert (own.status, own.__cause__, own.incident) == (NOT_WRITTEN, cause, None)
    assert (reason.status, "t-0" in str(reason)) == (None, False)
    again = outcome_error(own, "t-0", NOT_WRITTEN, None)
    assert str(again) == str(own)


def test_an_error_of_records_that_may_be_written_says_how_to_find_out() -> None:
    """UNKNOWN names `resolve`, or says that nothing identifies the records."""
    reason = errors.ProducerClosed("the producer was closed.")
    own = outcome_error(reason, "t-0", UNKNOWN, INCIDENT)
    assert own.args[0] == (
        "t-0: the producer was closed. The records may be written. producer.resolve(error) or "
        "delivery.resolve() looks in the log"
    )
    assert own.incident is INCIDENT
    assert "nothing in the log identifies the records" in str(
        outcome_error(reason, "t-0", UNKNOWN, None)
    )


def test_the_text_survives_copies_and_pickles() -> None:
    """A copy for a single record, or in another process, says the same."""
    own = outcome_error(errors.broker_error(6), "t-0", UNKNOWN, INCIDENT)
    assert str(own).startswith("[Error 6] NotLeaderForPartitionError: t-0. The records may be")
    assert str(copy.copy(own)) == str(pickle.loads(pickle.dumps(own))) == str(own)  # noqa: S301

"""Produce answers with an error code that `classify` does not list.

It is a code of newer brokers (KIP-1279), or one that Kafka defines for other requests than Produce.
Such a code leaves the batch in doubt: it may have been written. The batch is retried until its
deadline only if the code is documented as retriable, or if the broker's message says that the cause
may pass. Otherwise the batch soon ends UNKNOWN, and its error has the number of the code.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.unlisted import may_pass
from aioidem._protocol.producer_id import ProducerIdAnswer

from .driver import ACKED, NOT_WRITTEN, OUT_OF_ORDER, PENDING, UNKNOWN, Rig, pipelined

READ_ONLY = 134
DOCUMENTED_AS_RETRIABLE = (
    ErrorCode.replica_not_available,
    ErrorCode.network_exception,
    ErrorCode.not_controller,
)
WORDS_OF_RETRY = (
    "The topic is being mirrored, please retry later.",
    "retriable: the mirror is catching up",
    "This is temporary; try again",
)
OTHER_WORDS = (None, "", "The topic is read-only.", "This error is not retriable.", "Do not retry.")


def attempts(rig: Rig, code: int, message: str | None = None, *, seconds: float = 60.0) -> int:
    """Refuse every request with this code for `seconds`, and count the requests."""
    refused = 0
    for _ in range(int(seconds / 0.5)):
        for request in rig.outstanding():
            rig.fail(request, code, error_message=message, poll=False)
            refused += 1
        rig.tick(0.5)
    return refused


def test_the_codes_that_kafka_documents_as_retriable_are_all_there() -> None:
    """By number, as the protocol guide of Kafka 4.3 lists them."""
    documented = {
        *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84),
        *(88, 89, 100, 103, 106, 122, 123, 133),
    }
    assert {code for code in map(int, ErrorCode) if may_pass(code, None)} == documented


@pytest.mark.parametrize(
    "code", [READ_ONLY, 999, ErrorCode.offset_out_of_range, ErrorCode.illegal_generation, 32767, -2]
)
def test_a_leader_that_never_took_anything_is_asked_once(code: int) -> None:
    rig = Rig().start()
    rig.send(1)
    assert attempts(rig, code, "The topic is read-only.", seconds=3.0) == 1
    (outcome,) = rig.outcomes
    assert outcome.status is UNKNOWN
    assert isinstance(outcome.error, errors.BrokerResponseError)
    assert outcome.error.errno == code
    assert str(code) in str(outcome.error)
    assert "The topic is read-only." in str(outcome.error)
    rig.send(1)
    rig.ack_all()
    assert rig.statuses == [UNKNOWN, ACKED]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_a_leader_that_knows_us_is_asked_by_the_ladder_and_no_longer() -> None:
    """If the leader has acknowledged before, the refused batch is resent once and ends UNKNOWN.

    Every copy of the batch was answered, so none can turn up in the log later.
    """
    rig, requests = pipelined(1)
    rig.fail(requests[0], READ_ONLY, error_message="The topic is read-only.")
    assert attempts(rig, READ_ONLY, "The topic is read-only.", seconds=2.0) == 1
    assert rig.statuses == [ACKED, UNKNOWN]
    error = rig.outcomes[1].error
    assert isinstance(error, errors.UnknownError)
    assert error.errno == READ_ONLY
    assert rig.core.counters.data_loss_events == 0
    rig.assert_drained()


def test_a_window_of_batches_ends_long_before_its_deadline() -> None:
    rig, requests = pipelined(5)
    for request in requests:
        rig.fail(request, READ_ONLY, poll=False)
    assert attempts(rig, READ_ONLY, seconds=5.0) == 5  # each batch is resent once
    assert rig.statuses == [ACKED, *[UNKNOWN] * 5]
    assert rig.core.counters.data_loss_events == 0
    rig.assert_drained()


def test_a_copy_that_may_still_be_on_its_way_has_a_second_pass() -> None:
    rig, requests = pipelined(1)
    rig.answer(requests[0], [])  # an answer without the batch's partition
    assert attempts(rig, READ_ONLY, seconds=10.0) == 2
    assert rig.statuses == [ACKED, PENDING]
    rig.tick(rig.config.request_timeout)
    rig.ack_all()  # by now the late copy has been appended
    assert rig.statuses == [ACKED, ACKED]
    rig.assert_drained()


def test_what_was_appended_all_the_same_is_proved_by_the_ladder() -> None:
    rig, requests = pipelined(3)
    for request in requests:
        rig.fail(request, READ_ONLY, poll=False)
    rig.settle_down(10.0)
    assert set(rig.statuses) == {ACKED}
    assert rig.core.epoch_bumps == 0
    rig.assert_drained()


def test_what_it_refused_is_asked_about_alone() -> None:
    """After an unknown code the batches in doubt are probed (resent) one at a time.

    The code may mean that the leader has lost the producer's state. A leader without this state
    accepts any first sequence.
    """
    rig, requests = pipelined(4)
    for request in requests:
        rig.fail(request, READ_ONLY, poll=False)
    rig.tick(1.0)
    for _ in range(4):
        assert len(rig.outstanding()) == 1
        rig.fail(rig.outstanding()[0], READ_ONLY)
    assert rig.statuses == [ACKED, *[UNKNOWN] * 4]
    rig.assert_drained()


def test_out_of_order_shows_state_again_and_what_follows_goes_in_company() -> None:
    rig, requests = pipelined(4)
    for request in requests:
        rig.fail(request, READ_ONLY, poll=False)
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.sequences == [3, 2, 1]
    rig.ack(rig.outstanding()[0])
    assert rig.statuses == [ACKED, ACKED, ACKED, ACKED, PENDING]
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


def test_a_success_after_it_implies_nothing_of_what_lies_below() -> None:
    """After an unknown code a success proves nothing about the batches sent before.

    The leader has lost the producer's state and so refuses three batches; then it accepts the
    newest of them as a first sequence. The other two were never written.
    """
    rig, requests = pipelined(3)
    for request in requests:
        rig.fail(request, READ_ONLY, poll=False)
    rig.tick(1.0)
    while any(status is PENDING for status in rig.statuses):
        for request in rig.outstanding():
            if request.epoch == 0 and request.sequence < 3:
                rig.fail(request, OUT_OF_ORDER, poll=False)
            else:
                rig.ack(request, poll=False)
        rig.tick(1.0)
    assert rig.statuses == [ACKED, UNKNOWN, UNKNOWN, ACKED]
    rig.assert_drained()


def test_a_success_of_what_was_on_its_way_implies_nothing_either() -> None:
    rig, requests = pipelined(2)
    rig.fail(requests[0], READ_ONLY, poll=False)
    rig.ack(requests[1])
    assert rig.statuses == [ACKED, PENDING, ACKED]
    (again,) = rig.outstanding()
    rig.fail(again, OUT_OF_ORDER)
    assert rig.statuses == [ACKED, UNKNOWN, ACKED]
    rig.assert_drained()


def test_in_doubt_resend_does_not_try_until_the_deadline_either() -> None:
    rig, requests = pipelined(1, in_doubt="resend")
    rig.fail(requests[0], READ_ONLY)
    assert attempts(rig, READ_ONLY) <= 4
    assert rig.statuses == [ACKED, UNKNOWN]


def test_without_idempotence_it_is_not_sent_again() -> None:
    """Without idempotence a batch that was refused with an unknown code is not sent again.

    The broker could not tell a second copy from the first.
    """
    rig = Rig(enable_idempotence=False).start()
    rig.send()
    rig.ack_all()
    rig.send()
    assert attempts(rig, READ_ONLY, seconds=5.0) == 1
    assert rig.statuses == [ACKED, UNKNOWN]


@pytest.mark.parametrize(
    ("code", "message"),
    [*((code, None) for code in DOCUMENTED_AS_RETRIABLE), *((999, w) for w in WORDS_OF_RETRY)],
)
def test_what_may_pass_is_tried_again(code: int, message: str | None) -> None:
    rig = Rig().start()
    rig.send(1)
    assert attempts(rig, code, message, seconds=20.0) > 4
    assert rig.statuses == [PENDING]
    rig.settle_down(10.0)
    assert rig.statuses == [ACKED]


@pytest.mark.parametrize("message", OTHER_WORDS)
def test_other_words_do_not_make_a_code_retriable(message: str | None) -> None:
    assert not may_pass(READ_ONLY, message)
    assert may_pass(ErrorCode.network_exception, message)


@pytest.mark.parametrize("message", WORDS_OF_RETRY)
def test_the_brokers_own_words_count(message: str) -> None:
    assert may_pass(READ_ONLY, message)


def test_a_producer_id_refused_by_an_unknown_code_is_an_error_at_once() -> None:
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send(2)
    step = rig.held.pop()
    refused = ProducerIdAnswer(READ_ONLY, -1, -1)
    rig.core.on_answer(step, refused, rig.now)
    rig.collect()
    assert rig.statuses == [NOT_WRITTEN, NOT_WRITTEN]
    error = rig.outcomes[0].error
    assert isinstance(error, errors.UnknownError)
    assert (error.errno, "InitProducerId" in str(error)) == (READ_ONLY, True)
    # A producer id that is granted later serves the records sent after that.
    rig.hold = ()
    rig.send()
    rig.settle_down(5.0)
    assert rig.statuses == [NOT_WRITTEN, NOT_WRITTEN, ACKED]

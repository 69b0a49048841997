"""The wire monitor reports each planted violation of a rule, and none in correct traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._records import build_batch
from aioidem.testing import (
    Anomaly,
    Outcome,
    ValueId,
    WireAnswer,
    WireBatch,
    WireMonitor,
    make_value,
)


class _Record:
    key, headers, timestamp_ms = None, (), 0

    def __init__(self, value: bytes) -> None:
        self.value = value


class Wire:
    """The traffic of a producer and a broker, reported to a `WireMonitor` step by step."""

    def __init__(self, **options: Any) -> None:
        self.monitor = WireMonitor(**options)
        self.requests = 0

    def send(
        self,
        sequence: int,
        count: int = 1,
        *,
        epoch: int = 0,
        pid: int = 7,
        connection: str = "a",
        tag: int = 0,
        partition: int = 0,
    ) -> int:
        first = sequence % 2**31
        values = [make_value(ValueId("p", "t", partition, tag + i)) for i in range(count)]
        built = build_batch(
            [_Record(value) for value in values],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=first,
        )
        self.requests += 1
        batch = WireBatch("t", partition, built.data)
        self.monitor.wrote(connection, self.requests, [batch])
        return self.requests

    def answer(
        self,
        request: int,
        code: int = ErrorCode.none,
        offset: int | None = None,
        *,
        retained: int | None = None,
        connection: str = "a",
        partition: int = 0,
    ) -> None:
        at = (0 if code == ErrorCode.none else -1) if offset is None else offset
        told = WireAnswer("t", partition, code, at, retained)
        self.monitor.answered(connection, request, [told])

    def opened(self, retained: int | None = None) -> None:
        """Send and acknowledge the first batch.

        Args:
            retained: the number of batches that the leader retains, as its answer says (KIP-1269).
        """
        self.answer(self.send(0), retained=retained)

    @property
    def found(self) -> list[Anomaly]:
        return [violation.anomaly for violation in self.monitor.violations]


def test_a_pipeline_within_its_window_is_clean() -> None:
    """A producer that keeps within its window causes no violation."""
    wire = Wire(max_in_flight=5)
    wire.opened()
    for request in [wire.send(n) for n in range(1, 6)]:
        wire.answer(request)
    assert wire.found == []
    assert wire.monitor.max_span == 5


def test_planted_overrun_of_the_default_window() -> None:
    """Six batches in flight exceed the default window of 5."""
    wire = Wire()
    wire.opened()
    for n in range(1, 7):
        wire.send(n)
    assert wire.found == [Anomaly.SPAN]


def test_a_window_of_twenty_is_used_and_not_overrun() -> None:
    """A leader that retains 20 batches allows a span of 20 batches, but not of 21."""
    wire = Wire()
    wire.opened(retained=20)
    for n in range(1, 21):
        wire.send(n)
    assert wire.found == []
    wire.send(21)
    assert wire.found == [Anomaly.SPAN]


def test_planted_count_instead_of_span() -> None:
    """The window bounds the span from the oldest batch in doubt, not the number outstanding.

    Batches 1 to 5 were answered REQUEST_TIMED_OUT, so none is outstanding, but all are in doubt.
    Batch 6 makes the span 6.
    """
    wire = Wire()
    wire.opened()
    requests = [wire.send(n) for n in range(1, 6)]
    for request in requests:
        wire.answer(request, ErrorCode.request_timed_out, 3)
    wire.answer(wire.send(1), ErrorCode.request_timed_out, 3)
    wire.send(6)
    assert Anomaly.SPAN in wire.found


def test_planted_twenty_after_the_field_was_absent() -> None:
    """An answer without the number of retained batches (KIP-1269) sets the window back to 5."""
    wire = Wire()
    wire.opened(retained=20)
    wire.answer(wire.send(1))
    for n in range(2, 8):
        wire.send(n)
    assert wire.found == [Anomaly.SPAN]


@pytest.mark.parametrize("how", ["leader", "connection"])
def test_planted_twenty_after_the_leader_or_the_connection_changed(how: str) -> None:
    """A new leader or a new connection sets the window back to 5."""
    wire = Wire()
    wire.opened(retained=20)
    connection = "a"
    if how == "leader":
        wire.monitor.leader_changed("t", 0)
    else:
        wire.monitor.lost("a")
        connection = "b"
    for n in range(1, 8):
        wire.send(n, connection=connection)
    assert Anomaly.SPAN in wire.found


def test_a_deposed_leaders_answer_teaches_nothing() -> None:
    """An answer that arrives after the leader changed does not change the window."""
    wire = Wire()
    wire.opened()
    late = wire.send(1)
    wire.monitor.leader_changed("t", 0)
    wire.answer(late, retained=20)
    wire.answer(wire.send(2))
    for n in range(3, 9):
        wire.send(n)
    assert wire.found == [Anomaly.SPAN]


def test_a_resend_is_not_bound_by_the_window() -> None:
    """Resends of batches in doubt may exceed the window."""
    wire = Wire()
    wire.opened(retained=20)
    for n in range(1, 21):
        wire.send(n)
    wire.monitor.lost("a")
    for n in range(1, 21):
        wire.answer(
            wire.send(n, connection="b"), ErrorCode.out_of_order_sequence_number, connection="b"
        )
    assert wire.found == []


def test_planted_company_before_the_first_acknowledgement() -> None:
    """Two batches in flight before a partition's first ack are a GATE violation (KAFKA-15591)."""
    wire = Wire()
    wire.send(0)
    wire.send(1)
    assert wire.found == [Anomaly.GATE]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out, ErrorCode.not_enough_replicas],
)
def test_planted_company_after_an_error(code: int) -> None:
    """Two batches in flight after an error, and before the next ack, are a GATE violation."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1), code)
    wire.send(1)
    wire.send(2)
    assert Anomaly.GATE in wire.found


@pytest.mark.parametrize("code", [999, ErrorCode.request_timed_out, ErrorCode.unknown_server_error])
def test_planted_company_after_an_answer_that_leaves_doubt_in_doubt(code: int) -> None:
    """After an error that leaves a batch in doubt, resending two batches at once violates GATE."""
    wire = Wire()
    wire.opened()
    sent = [wire.send(1), wire.send(2)]
    for request in sent:
        wire.answer(request, ErrorCode.request_timed_out)
    wire.answer(wire.send(1), code)
    wire.send(2)
    wire.send(1)
    assert wire.found == [Anomaly.GATE]


@pytest.mark.parametrize("code", [ErrorCode.invalid_timestamp, ErrorCode.invalid_record])
def test_what_a_known_code_refuses_for_good_may_be_asked_about_in_company(code: int) -> None:
    """After an answer that refuses a batch for good, batches in doubt may be resent together."""
    wire = Wire()
    wire.opened()
    sent = [wire.send(1), wire.send(2)]
    for request in sent:
        wire.answer(request, ErrorCode.request_timed_out)
    wire.answer(wire.send(1), code)
    wire.send(2)
    wire.send(1)
    assert wire.found == []


def test_probes_may_go_in_company_after_out_of_order() -> None:
    """After OUT_OF_ORDER_SEQUENCE_NUMBER, batches in doubt may be resent together."""
    wire = Wire()
    wire.opened()
    sent = [wire.send(n) for n in (1, 2, 3)]
    wire.monitor.lost("a")
    assert sent
    wire.answer(
        wire.send(1, connection="b"), ErrorCode.out_of_order_sequence_number, connection="b"
    )
    for n in (3, 2, 1):
        wire.send(n, connection="b")
    assert wire.found == []


@pytest.mark.parametrize("proved", [True, False])
def test_a_batch_that_is_proved_stored_is_no_company(proved: bool) -> None:
    """A success proves what was sent before it; an attempt at that may still be unanswered."""
    wire = Wire()
    wire.opened()
    assert [wire.send(n) for n in (1, 2, 3)]
    wire.monitor.lost("a")
    oldest = wire.send(1, connection="b")
    wire.answer(oldest, ErrorCode.out_of_order_sequence_number, connection="b")
    newest, left_out, _ = (wire.send(n, connection="b") for n in (3, 2, 1))
    if proved:
        wire.answer(newest, connection="b")
    wire.monitor.answered("b", left_out, [])
    wire.send(4, connection="b")
    assert wire.found == ([] if proved else [Anomaly.GATE])


def test_probes_may_go_in_company_after_out_of_order_for_a_batch_that_was_proved() -> None:
    """Only a leader with the producer's state sends it, whatever batch it is about."""
    wire = Wire()
    wire.opened()
    for n in (1, 2):
        wire.send(n)
    wire.answer(wire.send(3))
    wire.send(4)
    wire.monitor.lost("a")
    asked = wire.send(1, connection="b")
    wire.answer(asked, ErrorCode.out_of_order_sequence_number, connection="b")
    for n in (4, 1):
        wire.send(n, connection="b")
    assert wire.found == []


def test_planted_gap() -> None:
    """A new batch that leaves a gap in the sequences is a GAP violation."""
    wire = Wire()
    wire.opened()
    wire.send(2)
    assert wire.found == [Anomaly.GAP]


def test_planted_start_elsewhere_than_at_zero() -> None:
    """A first batch whose sequence is neither 0 nor in `first_sequences` is a GAP violation."""
    wire = Wire()
    wire.send(5)
    assert wire.found == [Anomaly.GAP]
    allowed = Wire(first_sequences={("t", 0): 5})
    allowed.send(5)
    assert allowed.found == []


def test_the_wrap_is_no_gap() -> None:
    """Sequence 0 after 2147483647 is no GAP violation."""
    wire = Wire(first_sequences={("t", 0): 2**31 - 3})
    wire.answer(wire.send(2**31 - 3, 2))
    wire.answer(wire.send(2**31 - 1, 2))
    wire.answer(wire.send(2**31 + 1, 1))
    assert wire.found == []


def test_planted_other_bytes_under_the_same_numbers() -> None:
    """A resend of the same sequences with other bytes is a CHANGED_RETRY violation."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1), ErrorCode.request_timed_out)
    wire.send(1, tag=50)
    assert wire.found == [Anomaly.CHANGED_RETRY]


def test_what_was_refused_whole_as_too_large_may_come_again_in_parts() -> None:
    """A batch that was refused as too large may be resent as smaller batches."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1, 4), ErrorCode.message_too_large)
    wire.answer(wire.send(1, 2))
    wire.answer(wire.send(3, 2, tag=2))
    wire.answer(wire.send(5))
    assert wire.found == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.transaction_abortable,
    ],
)
def test_what_a_coordinator_said_before_is_no_doubt(code: int) -> None:
    """An error of the transaction coordinator leaves no batch in doubt.

    The leader asks the coordinator before the leader appends the batch (KIP-890).
    """
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1, 4), code)
    wire.answer(wire.send(1, 4), ErrorCode.message_too_large)
    wire.answer(wire.send(1, 2))
    wire.answer(wire.send(3, 2, tag=2))
    assert wire.found == []


def test_planted_split_of_a_batch_in_doubt() -> None:
    """Splitting a batch that is in doubt is a CHANGED_RETRY violation."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1, 4), ErrorCode.request_timed_out)
    wire.answer(wire.send(1, 4), ErrorCode.message_too_large)
    wire.send(1, 2)
    assert wire.found == [Anomaly.CHANGED_RETRY]


def test_planted_parts_that_do_not_fill_the_whole() -> None:
    """Smaller batches that do not cover the refused batch's sequences are a GAP violation."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1, 4), ErrorCode.message_too_large)
    wire.answer(wire.send(1, 2))
    wire.send(4)
    assert wire.found == [Anomaly.GAP]


def test_a_new_epoch_after_everything_was_answered_is_clean() -> None:
    """A new epoch after all batches were answered causes no violation."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(1), ErrorCode.invalid_record)
    wire.answer(wire.send(0, epoch=1))
    assert wire.found == []


def test_planted_new_epoch_while_outstanding() -> None:
    """A new epoch while a batch is outstanding is an EPOCH_OVERLAP violation."""
    wire = Wire()
    wire.opened()
    wire.send(1)
    wire.send(0, epoch=1)
    assert Anomaly.EPOCH_OVERLAP in wire.found


def test_planted_new_epoch_while_in_doubt() -> None:
    """A batch of a new epoch while another is in doubt is an EPOCH_OVERLAP (librdkafka #4953)."""
    wire = Wire(outcome=lambda _value: Outcome.PENDING)
    wire.opened()
    wire.answer(wire.send(1, tag=9), ErrorCode.request_timed_out)
    wire.send(0, epoch=1)
    assert wire.found == [Anomaly.EPOCH_OVERLAP]


def test_what_was_given_up_does_not_hold_a_new_epoch() -> None:
    """A new epoch is allowed once the batches in doubt are settled as UNKNOWN."""
    wire = Wire(outcome=lambda _value: Outcome.UNKNOWN)
    wire.opened()
    wire.answer(wire.send(1), ErrorCode.request_timed_out)
    wire.send(0, epoch=1)
    assert wire.found == []


@pytest.mark.parametrize("outcome", [Outcome.ACKED, Outcome.UNKNOWN])
def test_doubt_that_was_settled_by_reading_the_log_bounds_nothing(outcome: Outcome) -> None:
    """A batch in doubt that the producer found by reading the log is resolved, and opens no span.

    The span is the number of batches from the oldest unresolved batch to the newest.
    """
    wire = Wire(outcome=lambda _value: outcome)
    wire.opened()
    for request in [wire.send(n) for n in range(1, 6)]:
        wire.answer(request, ErrorCode.request_timed_out)
    wire.send(6)
    assert wire.found == ([] if outcome is Outcome.ACKED else [Anomaly.SPAN])


def test_planted_return_to_an_old_epoch() -> None:
    """A batch of an older epoch after one of a newer epoch is an EPOCH_OVERLAP violation."""
    wire = Wire()
    wire.opened()
    wire.answer(wire.send(0, epoch=1))
    wire.send(1, epoch=0)
    assert Anomaly.EPOCH_OVERLAP in wire.found


def test_planted_epoch_that_goes_back() -> None:
    """A batch of epoch 0 after one of epoch 32767 is an EPOCH_OVERLAP violation."""
    wire = Wire()
    wire.answer(wire.send(0, epoch=32767))
    wire.send(0, epoch=0)
    assert wire.found == [Anomaly.EPOCH_OVERLAP]


def test_planted_second_route() -> None:
    """Batches of a partition outstanding on two connections violate TWO_ROUTES (aiokafka #228)."""
    wire = Wire()
    wire.opened()
    wire.send(1)
    wire.send(2, connection="b")
    assert Anomaly.TWO_ROUTES in wire.found


def test_planted_request_too_many_on_one_connection() -> None:
    """A request beyond ``max_in_flight`` on a connection is an IN_FLIGHT violation."""
    wire = Wire(max_in_flight=2)
    for partition in range(3):
        wire.send(0, partition=partition)
    assert wire.found == [Anomaly.IN_FLIGHT]


def test_a_request_that_never_left_leaves_no_doubt() -> None:
    """A request of which no byte was written leaves no batch in doubt."""
    wire = Wire(outcome=lambda _value: Outcome.PENDING)
    wire.opened()
    unwritten = wire.send(1)
    wire.monitor.lost("a", [unwritten])
    wire.send(0, epoch=1, connection="b")
    assert wire.found == []


def test_an_answer_that_omits_the_partition_leaves_it_in_doubt() -> None:
    """An answer that leaves out a partition leaves the partition's batch in doubt."""
    wire = Wire(outcome=lambda _value: Outcome.PENDING)
    wire.opened()
    wire.monitor.answered("a", wire.send(1, tag=3), [])
    wire.send(0, epoch=1)
    assert wire.found == [Anomaly.EPOCH_OVERLAP]


def test_a_recreated_topic_starts_a_new_account() -> None:
    """After a topic was deleted and created again, its sequences begin at 0."""
    wire = Wire()
    wire.opened()
    wire.send(1)
    wire.monitor.topic_recreated("t")
    wire.send(0, epoch=1)
    assert wire.found == []


def test_without_idempotence_there_are_no_sequences_to_watch() -> None:
    """Batches without a producer id have no sequences, and cause no violation."""
    wire = Wire()
    for n in range(8):
        wire.send(n, pid=-1)
    assert wire.found == []


# -- losses that the brokers' answers prove


class Watched(Wire):
    """A `Wire` whose records have the outcome PENDING until the test ends them with another."""

    def __init__(self, **options: Any) -> None:
        self.outcomes: dict[ValueId, Outcome] = {}
        super().__init__(outcome=lambda value: self.outcomes.get(value, Outcome.PENDING), **options)

    def end(self, outcome: Outcome, *tags: int) -> None:
        for tag in tags:
            self.outcomes[ValueId("p", "t", 0, tag)] = outcome

    def acked(self, count: int) -> None:
        """Send and acknowledge batches 0 to count - 1; batch N has one record with tag N."""
        for n in range(count):
            self.answer(self.send(n, tag=n), offset=n)
            self.end(Outcome.ACKED, n)

    @property
    def unreported(self) -> list[Anomaly]:
        return [violation.anomaly for violation in self.monitor.unreported_losses()]


def lost_by_offset(wire: Watched) -> None:
    wire.acked(3)
    wire.answer(wire.send(3, tag=3), offset=1)


def lost_by_hole(wire: Watched) -> None:
    wire.acked(2)
    first, second = wire.send(2, tag=2), wire.send(3, tag=3)
    wire.answer(first, ErrorCode.not_enough_replicas)
    wire.answer(second, offset=2)


def lost_by_gap(wire: Watched) -> None:
    wire.acked(2)
    wire.answer(wire.send(2, tag=2), ErrorCode.out_of_order_sequence_number)
    wire.send(0, epoch=1, tag=2)


def lost_by_probes(wire: Watched) -> None:
    wire.acked(2)
    wire.answer(wire.send(2, tag=2), ErrorCode.request_timed_out)
    wire.answer(wire.send(2, tag=2), ErrorCode.out_of_order_sequence_number)
    wire.monitor.refused("t", 0, ValueId("p", "t", 0, 2))


LOSSES = [lost_by_offset, lost_by_hole, lost_by_gap, lost_by_probes]


@pytest.mark.parametrize("lose", LOSSES)
def test_planted_loss_without_an_event(lose: Callable[[Watched], None]) -> None:
    """A loss that the answers prove is an EVENT violation unless a data-loss event reported it."""
    wire = Watched()
    lose(wire)
    assert wire.unreported == [Anomaly.EVENT]
    assert wire.monitor.losses_proved == 1
    wire.monitor.loss_reported("t", 0)
    assert wire.unreported == []


@pytest.mark.parametrize(
    ("given_up", "lost"), [(Outcome.UNKNOWN, []), (Outcome.NOT_WRITTEN, [Anomaly.EVENT])]
)
def test_a_hole_is_no_loss_where_a_batch_was_given_up_before_its_refusal(
    given_up: Outcome, lost: list[Anomaly]
) -> None:
    """A success after a batch that ended UNKNOWN in flight and was then refused proves no loss.

    A batch that ended NOT_WRITTEN was refused first, so the success after it does prove one.
    """
    wire = Watched()
    wire.acked(2)
    first, second = wire.send(2, tag=2), wire.send(3, tag=3)
    wire.end(given_up, 2)
    wire.answer(first, ErrorCode.invalid_record)
    wire.answer(second, offset=2)
    assert wire.unreported == lost


@pytest.mark.parametrize("given_up", [Outcome.NOT_WRITTEN, Outcome.UNKNOWN])
def test_behind_numbers_that_were_given_up_a_gap_is_no_loss(given_up: Outcome) -> None:
    """OUT_OF_ORDER proves no loss after an earlier batch ended NOT_WRITTEN or UNKNOWN."""
    wire = Watched()
    wire.acked(2)
    wire.answer(wire.send(2, tag=2), ErrorCode.request_timed_out)
    wire.end(given_up, 2)
    wire.answer(wire.send(3, tag=3), ErrorCode.out_of_order_sequence_number)
    wire.monitor.refused("t", 0, ValueId("p", "t", 0, 3))
    wire.send(0, epoch=1, tag=3)
    assert wire.unreported == []


def test_what_was_given_up_in_flight_and_answered_later_is_given_up() -> None:
    """OUT_OF_ORDER proves no loss after a batch ended UNKNOWN, even if an ack came afterwards."""
    wire = Watched()
    wire.acked(1)
    first, second = wire.send(1, tag=1), wire.send(2, tag=2)
    wire.end(Outcome.UNKNOWN, 1)
    wire.answer(first, offset=1)
    wire.answer(second, ErrorCode.out_of_order_sequence_number)
    wire.send(0, epoch=1, tag=2)
    assert wire.unreported == []


@pytest.mark.parametrize("trusting", [True, False])
def test_without_trust_in_base_offsets_a_move_may_have_come_after_the_append(
    trusting: bool,
) -> None:
    """If base offsets are not trusted, NOT_LEADER_OR_FOLLOWER proves no loss.

    Brokers send that error before and after an append, so the batch is in doubt.
    """
    wire = Watched(trust_base_offset=trusting)
    wire.acked(1)
    first, second = wire.send(1, tag=1), wire.send(2, tag=2)
    wire.answer(first, ErrorCode.not_leader_or_follower)
    wire.answer(second, offset=2)
    assert wire.unreported == ([Anomaly.EVENT] if trusting else [])


def test_a_leader_that_says_it_does_not_know_us_explains_the_gap() -> None:
    """After UNKNOWN_PRODUCER_ID a gap in the sequences proves no loss."""
    wire = Watched()
    wire.acked(2)
    first, second = wire.send(2, tag=2), wire.send(3, tag=3)
    wire.answer(first, ErrorCode.out_of_order_sequence_number)
    wire.answer(second, ErrorCode.unknown_producer_id)
    wire.send(0, epoch=1, tag=2)
    assert wire.unreported == []


@pytest.mark.parametrize("refused_first", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, ErrorCode.unknown_producer_id])
def test_another_writer_under_the_producer_id_explains_gaps_in_every_partition(
    code: int, refused_first: bool
) -> None:
    """After INVALID_PRODUCER_EPOCH in one partition, gaps prove no loss in any partition.

    After UNKNOWN_PRODUCER_ID they prove no loss only in the partition that was answered so.
    """
    wire = Watched()
    wire.acked(2)
    elsewhere, here = wire.send(0, tag=0, partition=1), wire.send(2, tag=2)
    if refused_first:
        wire.answer(here, ErrorCode.out_of_order_sequence_number)
    wire.answer(elsewhere, code, partition=1)
    if not refused_first:
        wire.answer(here, ErrorCode.out_of_order_sequence_number)
    wire.send(0, pid=8, tag=2)
    assert wire.unreported == ([] if code == ErrorCode.invalid_producer_epoch else [Anomaly.EVENT])


def test_under_the_next_producer_id_a_gap_is_a_loss_again() -> None:
    """Under a new producer id a gap proves a loss, even if others wrote under the former id."""
    wire = Watched()
    wire.answer(wire.send(0, tag=0), ErrorCode.invalid_producer_epoch)
    wire.answer(wire.send(0, pid=8, tag=0), offset=0)
    wire.end(Outcome.ACKED, 0)
    wire.answer(wire.send(1, pid=8, tag=1), ErrorCode.out_of_order_sequence_number)
    wire.send(0, pid=8, epoch=1, tag=1)
    assert wire.unreported == [Anomaly.EVENT]


def test_the_offset_of_an_older_copy_is_no_loss() -> None:
    """An earlier batch that is answered after a later one, with a lower offset, proves no loss."""
    wire = Watched()
    wire.acked(2)
    first, second = wire.send(2, tag=2), wire.send(3, tag=3)
    wire.answer(second, offset=3)
    wire.answer(first, offset=2)
    assert wire.unreported == []

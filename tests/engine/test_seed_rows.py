"""Every row of features.md C2 to C5 up to S4-23, and the test that shows it.

`ROWS` is the table: S1 (KIP-758), S2 (KIP-854), S3 (in-flight requests) and S4 (a producer's
idempotence). A test checks that each row is either in it, naming tests that exist, or in DESIGN.md
with the reason why not; and not in both. Rows that no other file covers are tested here, as is what
DescribeProducers may say (KIP-664). S0 (KIP-1269) has its table in `tests/producer`.

Where a row describes what brokers or clients no longer do (features.md C6), its test shows what
holds today, and DESIGN.md says how the two differ.
"""

from __future__ import annotations

import re

import pytest

from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.idempotence import SEQUENCE_MODULUS
from aioidem._engine.recovery import Rung
from aioidem._protocol.producers import ProducersAnswer
from tests.written import TESTS, files_of_tests, written_in

from .driver import (
    ACKED,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    UNKNOWN_PRODUCER_ID,
    UNSUPPORTED_VERSION,
    Rig,
    pipelined,
)

ROWS: dict[str, tuple[str, ...]] = {
    # KIP-758
    "S1-1": (
        "test_a_duplicate_inside_the_range_is_resolved_by_the_newest_batch",
        "test_a_duplicate_that_is_not_committed_yet_is_asked_again_and_never_given_up",
        "test_a_duplicate_of_a_rejected_batch_is_a_loss_of_state",
        "test_twenty_in_flight_survive_lost_answers_once_and_in_order",
    ),
    "S1-2": (
        "test_a_duplicate_inside_the_range_is_resolved_by_the_newest_batch",
        "test_a_success_without_an_offset_is_acknowledged_with_none",
    ),
    "S1-3": (
        "test_a_duplicate_inside_the_range_is_resolved_by_the_newest_batch",
        "test_a_duplicate_of_the_newest_batch_gets_its_offset",
    ),
    "S1-4": ("test_out_of_order_takes_the_ladder_and_does_not_loop",),
    "S1-5": (
        "test_sending_stops_when_the_sequences_in_flight_reach_the_range",
        "test_batches_of_many_records_never_reach_past_the_range",
        "test_the_range_a_broker_names_bounds_what_is_in_flight",
    ),
    "S1-6": (
        "test_the_range_is_the_brokers_and_the_default_until_it_is_told",
        "test_the_narrowest_range_of_all_brokers_counts",
    ),
    "S1-7": (
        "test_the_range_is_the_brokers_and_the_default_until_it_is_told",
        "test_no_broker_widens_the_range_past_half_of_all_sequences",
        "test_no_range_of_nothing_and_none_past_half_of_all_sequences",
    ),
    "S1-8": (
        "test_sequences_wrap_inside_the_range_without_a_new_epoch",
        "test_the_range_goes_across_the_wrap",
    ),
    "S1-9": ("test_only_the_next_sequence_is_appended",),
    "S1-10": (
        "test_below_the_newest_the_range_is_duplicate_without_an_offset_and_beyond_is_out_of_order",
        "test_the_range_goes_across_the_wrap",
        "test_what_the_broker_never_got_is_appended_while_the_rest_is_a_duplicate",
    ),
    "S1-11": ("test_a_duplicate_of_the_newest_batch_gets_its_offset",),
    "S1-12": (
        "test_a_config_name_alone_never_enters_the_mode",
        "test_it_names_its_range_and_another_broker_has_no_value_for_the_name",
        "test_a_producer_that_was_not_told_keeps_to_five_and_loses_nothing",
    ),
    "S1-13": ("test_sequences_wrap_inside_the_range_without_a_new_epoch",),
    "S1-14": ("test_in_range_mode_no_number_of_batches_binds_but_the_connections",),
    # KIP-854
    "S2-1": (
        "test_a_producer_has_its_own_timeout_of_a_day_and_at_least_a_millisecond",
        "test_the_timeout_can_be_changed_while_the_broker_runs",
        "test_the_last_batch_counts_by_its_newest_record",
        "test_expiry_goes_by_the_clock_of_each_broker_and_its_configs",
    ),
    "S2-2": (
        "test_who_was_forgotten_is_not_told",
        "test_a_later_success_acknowledges_nothing_below_it",
        "test_what_is_in_doubt_is_read_and_not_resent",
    ),
    "S2-3": ("test_a_producer_with_an_open_transaction_is_not_forgotten",),
    "S2-4": ("test_retention_of_its_last_write_does_not_forget_a_producer",),
    "S2-5": (
        "test_a_delivery_timeout_not_below_half_the_expiration_is_warned_of_once",
        "test_records_older_than_half_the_expiration_make_a_partition_suspect",
    ),
    "S2-7": (
        "test_every_start_takes_a_new_producer_id",
        "test_a_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch",
    ),
    "S2-8": (
        "test_the_marker_is_what_an_ended_transactions_age_counts_from",
        "test_in_v2_every_end_raises_the_epoch_and_sequences_begin_again",
        "test_in_v1_the_epoch_stays_and_sequences_go_on",
    ),
    # In-flight requests
    "S3-1": ("test_one_request_takes_one_batch_of_every_partition_that_is_ready_and_once",),
    "S3-2": ("test_every_way_a_request_can_end_reaches_its_record",),
    "S3-3": (
        "test_responses_are_delivered_in_order_with_their_headers",
        "test_wrong_correlation_id_ends_the_connection",
        "test_requests_are_pipelined_over_the_link",
    ),
    "S3-4": ("test_a_retry_goes_before_what_waits_and_is_on_its_way_once",),
    "S3-5": ("test_one_in_flight_without_idempotence_keeps_the_order",),
    "S3-6": ("test_only_several_in_flight_without_idempotence_can_change_the_order",),
    # Idempotence
    "S4-1": ("test_idempotence_and_all_acknowledgements_are_the_default", "test_defaults"),
    "S4-3": (
        "test_sequences_are_taken_at_drain_and_count_records",
        "test_numbers_are_taken_when_a_batch_is_sealed",
        "test_two_partitions_have_their_own_windows",
    ),
    "S4-4": (
        "test_a_bump_raises_the_epoch_by_one",
        "test_another_identity_starts_again_at_zero",
    ),
    "S4-5": (
        "test_a_duplicate_within_the_memory_gets_its_original_offset",
        "test_an_unknown_producer_may_begin_at_any_sequence",
        "test_an_unknown_producer_of_transactions_v2_must_begin_at_zero",
        "test_a_higher_epoch_begins_at_zero_and_forgets_the_old_one",
        "test_a_lower_epoch_is_fenced",
        "test_a_gap_is_out_of_order",
    ),
    "S4-6": (
        "test_a_snapshot_keeps_the_last_batch_of_each_producer",
        "test_a_replay_of_the_log_restores_the_whole_memory",
        "test_a_clean_restart_remembers_one_batch_per_producer",
    ),
    "S4-7": ("test_a_retriable_error_on_any_of_five_keeps_the_order",),
    "S4-8": (
        "test_an_unanswered_batch_expires_as_unknown_and_the_next_waits_for_a_bump",
        "test_a_success_within_the_grace_still_acknowledges",
    ),
    "S4-9": (
        "test_an_unanswered_batch_expires_as_unknown_and_the_next_waits_for_a_bump",
        "test_two_full_passes_of_refused_probes_end_in_unknown_and_one_bump",
    ),
    "S4-10": (
        "test_a_bump_renumbers_from_zero_what_was_refused_and_nothing_that_is_in_doubt",
        "test_a_permanent_error_below_a_doubtful_batch_does_not_renumber_the_doubtful",
    ),
    "S4-11": (
        "test_nothing_new_goes_while_anything_is_in_doubt_or_waits_for_its_retry",
        "test_a_doubtful_batch_keeps_its_partition_on_the_old_epoch",
    ),
    "S4-12": ("test_a_healthy_partition_finishes_under_the_old_epoch_and_adopts_lazily",),
    "S4-13": (
        "test_numbers_are_taken_when_a_batch_is_sealed",
        "test_what_was_never_sent_expires_as_not_written_and_takes_no_number",
    ),
    "S4-14": (
        "test_a_permanent_error_on_one_of_five_leaves_the_rest_delivered_in_order",
        "test_the_specific_error_is_told_with_the_records_that_spoiled_the_batch",
    ),
    "S4-15": (
        "test_a_retriable_error_on_the_first_is_retried_in_order_with_new_data_behind",
        "test_back_off_grows_and_ends_with_a_success",
    ),
    "S4-16": (
        "test_unknown_producer_id_bumps_once_and_retries_what_was_refused",
        "test_a_leader_that_lost_our_state_leaves_a_doubtful_batch_unknown",
    ),
    "S4-17": (
        "test_out_of_order_with_nothing_in_doubt_is_a_loss_a_bump_and_a_retry",
        "test_out_of_order_on_the_oldest_makes_the_rest_be_asked_newest_first",
        "test_an_out_of_order_storm_after_every_deadline_still_recovers",
    ),
    "S4-18": (
        "test_offsets_count_from_the_base_offset",
        "test_memory_is_given_back_by_every_way_to_end",
    ),
    "S4-19": (
        "test_a_duplicate_older_than_the_memory_is_out_of_order",
        "test_after_a_clean_restart_newest_first_finds_what_was_stored",
        "test_the_first_probe_that_succeeds_proves_all_below_and_the_rest_goes_in_order",
    ),
    "S4-20": ("test_the_last_epoch_gives_way_to_a_new_producer_id",),
    "S4-21": (
        "test_sequences_wrap_with_batches_in_flight_and_are_retried_in_order",
        "test_a_batch_that_begins_right_at_the_wrap_has_sequence_zero",
        "test_sequences_wrap_from_2147483647_to_0",
    ),
    "S4-22": ("test_unknown_producer_id_bumps_once_and_retries_what_was_refused",),
    "S4-23": (
        "test_what_the_broker_never_got_is_appended_by_the_retry",
        "test_what_the_broker_stored_is_acknowledged_by_the_retry_with_its_first_offset",
    ),
}

ALL = [
    f"S{seed}-{number}"
    for seed, last in ((1, 14), (2, 8), (3, 6), (4, 23))
    for number in range(1, last + 1)
]


def docstrings() -> dict[str, str]:
    """Every test of the files that name a row, and its docstring."""
    found: dict[str, str] = {}
    for path, text in files_of_tests():
        if re.search(r"\bS[1-4]-\d", text):
            for name, said in written_in(path).items():
                found[name] = f"{found.get(name, '')} {said}"  # two files may use one name
    return found


def excused() -> dict[str, str]:
    """DESIGN.md's rows without a test, and why."""
    text = (TESTS.parent / "DESIGN.md").read_text(encoding="utf-8")
    section = r"^## Seed rows without a test\n(.*?)(?=^## |\Z)"
    match = re.search(section, text, re.MULTILINE | re.DOTALL)
    assert match, "DESIGN.md has no such section"
    return dict(re.findall(r"^- \*\*(S\d-\d+)\*\* (.+)", match[1], re.MULTILINE))


def test_every_row_has_its_test_or_its_reason() -> None:
    assert sorted([*ROWS, *excused()]) == sorted(ALL)
    assert all(excused().values())


def test_every_test_that_the_table_names_exists() -> None:
    defined = {
        name for _, text in files_of_tests() for name in re.findall(r"\bdef (test_\w+)\(", text)
    }
    assert {name for names in ROWS.values() for name in names} <= defined


def test_a_test_of_each_row_names_it() -> None:
    said = docstrings()
    for row, names in ROWS.items():
        assert any(re.search(rf"\b{row}\b", said.get(name, "")) for name in names), row


# -- S3: in-flight requests


def test_one_request_takes_one_batch_of_every_partition_that_is_ready_and_once() -> None:
    """S3-1."""
    rig = Rig(partitions=4).start()
    for partition in range(4):
        rig.send(2, partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    assert sorted(part.partition for part in request.parts) == [0, 1, 2, 3]
    rig.poll()
    assert rig.outstanding() == [request], "what is in flight is not drained again"
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("success", ACKED),
        ("retriable", ACKED),
        ("not retriable", NOT_WRITTEN),
        ("version mismatch", NOT_WRITTEN),
        ("disconnect", ACKED),
        ("time-out", ACKED),
        ("time-outs until the deadline", UNKNOWN),
    ],
)
def test_every_way_a_request_can_end_reaches_its_record(end: str, status: object) -> None:
    """S3-2: and the next record is delivered in each case."""
    rig = Rig(request_timeout=5.0, delivery_timeout=20.0).start()
    (outcome,) = rig.send()
    (request,) = rig.outstanding()
    match end:
        case "retriable":
            rig.fail(request, NOT_ENOUGH_REPLICAS)
            assert outcome.status is PENDING
        case "not retriable":
            rig.fail(request, TOPIC_AUTHORIZATION_FAILED)
        case "version mismatch":
            rig.fail(request, UNSUPPORTED_VERSION)
        case "disconnect":
            rig.lose()
        case "time-out":
            rig.tick(6.0)
        case "time-outs until the deadline":
            rig.tick(30.0)
    rig.settle_down(5.0)
    assert outcome.status is status
    (after,) = rig.send()
    rig.settle_down(5.0)
    assert after.status is ACKED
    rig.assert_drained()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_retry_goes_before_what_waits_and_is_on_its_way_once(idempotent: bool) -> None:
    """S3-4: at the head without idempotence, in sequence order with it."""
    rig = Rig(enable_idempotence=idempotent, max_in_flight_requests_per_connection=2).start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.send(5)
    first, second = rig.outstanding()
    rig.fail(first, NOT_LEADER)
    if idempotent:
        rig.fail(second, OUT_OF_ORDER)
    else:
        rig.ack(second)
    rig.tick(1.0)
    again = rig.outstanding()[0]
    assert again.only.values == first.only.values
    values = [value for request in rig.outstanding() for value in request.only.values]
    assert len(values) == len(set(values))
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


def order_of_appends(*, idempotent: bool, in_flight: int) -> list[bytes | None]:
    """The log of a broker that refuses the second of ten batches once, and with idempotence what
    then is out of sequence.
    """
    rig = Rig(enable_idempotence=idempotent, max_in_flight_requests_per_connection=in_flight)
    rig.start()
    rig.send(10, poll=False)
    log: list[bytes | None] = []
    refused = False
    while PENDING in rig.statuses:
        rig.tick(0.5)
        if not rig.outstanding():
            continue
        request = rig.outstanding()[0]
        if len(log) == 1 and not refused:
            refused = True
            rig.fail(request, NOT_ENOUGH_REPLICAS, poll=False)
        elif idempotent and request.sequence != len(log):
            rig.fail(request, OUT_OF_ORDER, poll=False)
        else:
            log += request.only.values
            rig.ack(request, poll=False)
        assert rig.now < 2000.0
    assert set(rig.statuses) == {ACKED}
    assert len(log) == 10
    return log


def test_one_in_flight_without_idempotence_keeps_the_order() -> None:
    """S3-5: the batch that failed is the first again."""
    log = order_of_appends(idempotent=False, in_flight=1)
    assert log == sorted(log, key=lambda value: value or b"")


@pytest.mark.parametrize("in_flight", [1, 2, 5, 20])
@pytest.mark.parametrize("idempotent", [True, False])
def test_only_several_in_flight_without_idempotence_can_change_the_order(
    idempotent: bool, in_flight: int
) -> None:
    """S3-6: there, and nowhere else, a retry lands behind what was in flight with it."""
    log = order_of_appends(idempotent=idempotent, in_flight=in_flight)
    kept = log == sorted(log, key=lambda value: value or b"")
    assert kept is (idempotent or in_flight == 1)


# -- S4: idempotence


def test_idempotence_and_all_acknowledgements_are_the_default() -> None:
    """S4-1: and five in flight; more is no error any more (S0)."""
    config = ProducerConfig.build("h:1")
    assert (config.acks, config.enable_idempotence) == (-1, True)
    assert config.max_in_flight_requests_per_connection == 5
    wide = ProducerConfig.build("h:1", max_in_flight_requests_per_connection=20)
    assert wide.enable_idempotence


def test_a_bump_renumbers_from_zero_what_was_refused_and_nothing_that_is_in_doubt() -> None:
    """S4-10: "all in flight" would write what is in doubt a second time."""
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, TOPIC_AUTHORIZATION_FAILED, poll=False)
    for request in (second, third):
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    renumbered = [(r.epoch, r.sequence, r.only.values) for r in rig.everything[4:]]
    assert renumbered == [(1, 0, second.only.values), (1, 1, third.only.values)]
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED, ACKED]
    assert rig.core.identity.bumps == 1
    rig.assert_drained()


def test_nothing_new_goes_while_anything_is_in_doubt_or_waits_for_its_retry() -> None:
    """S4-11: while one is retried, one is in flight."""
    rig, requests = pipelined(3)
    rig.send(2)
    rig.lose()
    rig.tick(2.0)
    assert rig.sequences == [1]
    rig.send(2)
    assert rig.sequences == [1]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences[:2] == [2, 3]
    assert [r.only.values for r in rig.outstanding()[:2]] == [r.only.values for r in requests[1:3]]
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}


def test_unknown_producer_id_bumps_once_and_retries_what_was_refused() -> None:
    """S4-16, S4-22: retention removed all, a restart forgot the rest (brokers before 2.5)."""
    rig, requests = pipelined(3)
    for request in requests:
        rig.fail(request, UNKNOWN_PRODUCER_ID, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    again = [(r.epoch, r.sequence) for r in rig.everything[4:]]
    assert again == [(1, 0), (1, 1), (1, 2)]
    assert set(rig.statuses) == {ACKED}
    assert rig.core.identity.bumps == 1
    rig.assert_drained()


def test_out_of_order_with_nothing_in_doubt_is_a_loss_a_bump_and_a_retry() -> None:
    """S4-17: what the leader had acknowledged it does not have; nothing can be written twice."""
    rig, (first, second) = pipelined(2)
    rig.fail(first, OUT_OF_ORDER, poll=False)
    rig.fail(second, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    assert [(r.epoch, r.sequence) for r in rig.everything[3:]] == [(1, 0), (1, 1)]
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 1
    rig.assert_drained()


def test_what_the_broker_never_got_is_appended_by_the_retry() -> None:
    """S4-23, first case: the request was lost on its way."""
    rig, requests = pipelined(3)
    rig.lose()
    rig.tick(2.0)
    again = []
    for offset in (1, 2, 3):
        again.append(rig.outstanding()[0])
        rig.ack(again[-1], offset)
    assert [r.only.data for r in again] == [r.only.data for r in requests]
    assert [(o.status, o.offset) for o in rig.outcomes[1:]] == [(ACKED, n) for n in (1, 2, 3)]


def test_what_the_broker_stored_is_acknowledged_by_the_retry_with_its_first_offset() -> None:
    """S4-23, second case: the answer was lost on its way; others wrote meanwhile."""
    rig, (first, *_) = pipelined(1)
    rig.lose()
    rig.tick(2.0)
    (again,) = rig.outstanding()
    assert again.only.data == first.only.data
    rig.ack(again, 1)
    rig.send()
    rig.ack(rig.outstanding()[0], 90)
    assert [o.offset for o in rig.outcomes] == [0, 1, 90]
    assert rig.core.identity.bumps == 0


# -- DescribeProducers, which is a hint (KIP-664)


def asked(answer: ProducersAnswer, start: int = 1) -> Rig:
    """Five in doubt, the oldest was answered OUT_OF_ORDER, and the leader tells this."""
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    if start != 1:
        rig.jump(start)
    rig.send(5)
    rig.lose()
    rig.tick(2.0)
    rig.producers = answer
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    return rig


def told(epoch: int, last: int, producer_id: int = 4001) -> ProducersAnswer:
    return ProducersAnswer(0, {producer_id: (epoch, last)})


def test_a_hint_is_asked_first_and_alone_and_only_error_none_acknowledges() -> None:
    """attack.md 2: DescribeProducers runs ahead of the high watermark."""
    rig = asked(told(0, 3))
    assert rig.sequences == [3]
    assert rig.statuses[1:] == [PENDING] * 5
    rig.ack(rig.outstanding()[0], 30)
    assert rig.statuses[1:4] == [ACKED] * 3
    assert [o.offset for o in rig.outcomes[1:4]] == [-1, -1, 30]
    assert rig.sequences == [4, 5]
    rig.ack_all()
    rig.assert_drained()


@pytest.mark.parametrize(
    "answer",
    [
        told(1, 3),
        told(-1, 3),
        told(0, 99),
        told(0, 0),
        told(0, -1),
        told(0, 3, producer_id=4002),
        ProducersAnswer(0, {}),
        ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {}),
        ProducersAnswer(NOT_LEADER, {}),
    ],
    ids=["newer epoch", "no epoch", "higher", "lower", "-1", "another", "none", "denied", "moved"],
)
def test_whatever_names_no_batch_of_ours_is_ignored(answer: ProducersAnswer) -> None:
    """Another epoch's sequences mean other bytes; the probes then go newest first."""
    rig = asked(answer)
    assert rig.state().recovery.rung is Rung.PROBING
    assert rig.sequences == [5, 4, 3, 2, 1]
    assert rig.statuses[1:] == [PENDING] * 5


def test_a_followers_lie_is_never_a_verdict() -> None:
    """Any replica answers, also one that has what the leader does not: the probes decide."""
    rig = asked(told(0, 5))
    assert rig.sequences == [5]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.statuses[1:] == [PENDING] * 5
    assert rig.sequences == [4, 3, 2, 1]
    rig.ack(rig.outstanding()[2], 20)
    rig.tick(2.0)
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 0


def test_a_hint_across_the_wrap_is_compared_as_the_wire_has_it() -> None:
    rig = asked(told(0, 0), start=SEQUENCE_MODULUS - 2)
    assert rig.sequences == [0]
    assert rig.state().unresolved[2].base == SEQUENCE_MODULUS


def test_a_denied_question_is_not_asked_again_on_that_connection() -> None:
    rig = asked(ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {}))
    rig.ack(rig.outstanding()[0])
    rig.tick(1.0)
    rig.send(2)
    for request in rig.outstanding():
        rig.fail(request, 7, poll=False)
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.PROBING
    assert sum(isinstance(step, steps.AskProducers) for step in rig.asked) == 1

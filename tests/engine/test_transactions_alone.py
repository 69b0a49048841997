"""`Transactions` alone: which call to a coordinator is due, and what each answer changes."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine.coordinator import CallKind
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem.structs import DeliveryStatus

from .transactions_bench import FIRST_DELAY, HERE, TWO, V1, V2, Bench, offsets

BOTH = pytest.mark.parametrize("version", [V1, V2])
LOADING = ErrorCode.coordinator_load_in_progress
MOVED = ErrorCode.not_coordinator
FENCED = ErrorCode.producer_fenced
MAPPING = ErrorCode.invalid_producer_id_mapping
CONCURRENT = ErrorCode.concurrent_transactions
NO_STATE = ErrorCode.invalid_txn_state
NO_GROUP = ErrorCode.group_authorization_failed
BROKEN = errors.KafkaConnectionError("broken")
UNINITIALISED, INITIALISING = TransactionState.UNINITIALISED, TransactionState.INITIALISING
READY, OPEN = TransactionState.READY, TransactionState.OPEN
ABORTABLE, ABORTING = TransactionState.ABORTABLE, TransactionState.ABORTING
RENEWING, FATAL = TransactionState.RENEWING, TransactionState.FATAL

DUE: Final[list[tuple[CallKind, str]]] = [
    (CallKind.FIND, "seeking"),
    (CallKind.FIND, "seeking_group"),
    (CallKind.FIND, "committing without_coordinator"),
    (CallKind.FIND, "aborting without_coordinator"),
    (CallKind.FIND, "renewing without_coordinator"),
    (CallKind.INIT, "initialising"),
    (CallKind.INIT, "renewing"),
    (CallKind.ADD_PARTITIONS, "adding"),
    (CallKind.ADD_OFFSETS, "adding_group"),
    (CallKind.COMMIT_OFFSETS, "committing_offsets"),
    (CallKind.END, "committing"),
    (CallKind.END, "aborting"),
]
"""Every kind of call, and how to bring `Bench` to each state in which it is due."""
OF_V1 = (CallKind.ADD_PARTITIONS, CallKind.ADD_OFFSETS)
EVERY_CALL = pytest.mark.parametrize(
    ("version", "kind", "way"),
    [(v, *due) for v in (V1, V2) for due in DUE if v == V1 or due[0] not in OF_V1],
)


def bring(version: int, way: str) -> Bench:
    """Bring a new bench to a state."""
    bench = Bench(version)
    for step in way.split():
        getattr(bench, step)()
    return bench


def sent(version: int, kind: CallKind, way: str) -> tuple[Bench, Any]:
    """Bring a new bench to a state, and send the call that is due."""
    bench = bring(version, way)
    return bench, bench.call(kind)


# -- every call --------------------------------------------------------------------------------


@EVERY_CALL
def test_one_call_is_outstanding_at_a_time(version: int, kind: CallKind, way: str) -> None:
    bench, call = sent(version, kind, way)
    assert bench.next(99.0) is None
    assert bench.of.awaits is None
    bench.answer(call, LOADING)
    assert bench.of.awaits == FIRST_DELAY


@EVERY_CALL
def test_a_call_that_cannot_be_served_yet_is_made_again_after_a_delay_that_doubles(
    version: int, kind: CallKind, way: str
) -> None:
    bench, call = sent(version, kind, way)
    bench.answer(call, LOADING, 5.0)
    for due in (5.0 + FIRST_DELAY, 5.0 + 3 * FIRST_DELAY):
        assert bench.next(due - 0.01) is None
        again = bench.call(kind, due)
        assert (again.commit, again.partitions) == (call.commit, call.partitions)
        assert (again.offsets, again.coordinator) == (call.offsets, call.coordinator)
        bench.answer(again, LOADING, due)
    assert isinstance(bench.of.last_refusal, errors.CoordinatorLoadInProgressError)
    assert call.coordinator.in_words in str(bench.of.last_refusal)


@EVERY_CALL
def test_a_success_ends_the_delay_and_the_refusal(version: int, kind: CallKind, way: str) -> None:
    bench, call = sent(version, kind, way)
    bench.answer(call, LOADING, 5.0)
    bench.answer(bench.call(kind, 6.0), 0, 6.0)
    assert bench.of.last_refusal is None
    assert bench.of.retry_at == 0.0
    bench.of.on_lost(7.0, written=False)
    assert bench.of.retry_at == 0.0, "no call was outstanding"
    following = bench.next(0.0)
    if following is not None:
        bench.of.sent(following)
        bench.of.on_lost(7.0, written=False)
        assert bench.of.retry_at == 7.0 + FIRST_DELAY


@EVERY_CALL
def test_a_coordinator_that_moved_is_found_again(version: int, kind: CallKind, way: str) -> None:
    bench, call = sent(version, kind, way)
    bench.answer(call, MOVED, 5.0)
    assert bench.next(5.0) is None
    find = bench.call(CallKind.FIND, 5.0 + FIRST_DELAY)
    assert find.coordinator is call.coordinator
    bench.answer(find, 0, 6.0)
    assert call.coordinator.node_id == HERE
    if kind is not CallKind.FIND:
        assert bench.call(kind, 6.0).coordinator is call.coordinator


@EVERY_CALL
@pytest.mark.parametrize("written", [False, True])
def test_a_call_whose_connection_is_lost_is_made_again_by_way_of_the_coordinator(
    version: int, kind: CallKind, way: str, written: bool
) -> None:
    bench, call = sent(version, kind, way)
    bench.of.on_lost(5.0, written=written)
    assert call.coordinator.node_id is None
    assert bench.next(5.0) is None
    bench.answer(bench.call(CallKind.FIND, 5.0 + FIRST_DELAY), 0, 6.0)
    if kind is not CallKind.FIND:
        again = bench.call(kind, 6.0)
        assert (again.commit, again.coordinator) == (call.commit, call.coordinator)


@EVERY_CALL
def test_no_refusal_is_followed_by_the_same_call_at_once(
    version: int, kind: CallKind, way: str
) -> None:
    """Whatever the code is: it ends the call, or the call is made again after a delay."""
    for code in ErrorCode:
        bench, call = sent(version, kind, way)
        bench.answer(call, code or LOADING, 5.0)
        due = bench.next(5.0)
        if due is not None:  # the transaction is over, and another epoch is due
            assert kind is CallKind.END, code
            assert (due.kind, bench.state()) == (CallKind.INIT, RENEWING), code


@EVERY_CALL
def test_a_second_answer_changes_nothing(version: int, kind: CallKind, way: str) -> None:
    bench, call = sent(version, kind, way)
    bench.answer(call, LOADING)
    before = bench.state(), bench.identity, bench.of.retry_at
    for code in (0, LOADING, FENCED):
        bench.answer(call, code, 50.0)
        assert (bench.state(), bench.identity, bench.of.retry_at) == before


@BOTH
def test_an_api_that_no_broker_has_is_told_to_the_caller_of_init_and_ends_any_other(
    version: int,
) -> None:
    bench, _ = sent(version, CallKind.INIT, "initialising")
    bench.of.on_unsupported(BROKEN)
    assert (bench.state(), bench.of.cause) == (UNINITIALISED, BROKEN)
    assert bench.of.awaits is None
    bench.of.init()
    assert bench.of.cause is None
    bench.call(CallKind.INIT)
    bench, _ = sent(version, CallKind.COMMIT_OFFSETS, "committing_offsets")
    bench.of.on_unsupported(BROKEN)
    assert bench.state() is FATAL


# -- FindCoordinator and InitProducerId --------------------------------------------------------


def test_before_it_is_asked_to_a_producer_calls_nobody() -> None:
    bench = Bench()
    assert bench.state() is UNINITIALISED
    assert (bench.next(), bench.of.awaits) == (None, None)
    assert (bench.of.cause, bench.of.last_refusal) == (None, None)
    bench.of.init()
    assert bench.of.awaits == 0.0
    find = bench.call(CallKind.FIND)
    assert (find.coordinator.kind, find.coordinator.key) == (CoordinatorKey.TRANSACTION, "x")


def test_a_success_that_names_no_broker_is_followed_by_another_question() -> None:
    bench, find = sent(V1, CallKind.FIND, "seeking")
    bench.of.on_found(0, -1, 5.0)
    assert find.coordinator.node_id is None
    assert bench.next(5.0) is None
    assert bench.call(CallKind.FIND, 5.0 + FIRST_DELAY).coordinator is find.coordinator


def test_broker_0_can_be_the_coordinator_but_not_in_an_answer_with_an_error() -> None:
    bench, find = sent(V1, CallKind.FIND, "seeking")
    bench.of.on_found(LOADING, 0, 0.0)
    assert find.coordinator.node_id is None
    bench.call(CallKind.FIND, 1.0)
    bench.of.on_found(0, 0, 1.0)
    assert find.coordinator.node_id == 0


@pytest.mark.parametrize("state", ["initialising", "renewing"])
@pytest.mark.parametrize("answer", [(0, -1, 3), (0, 3, -1), (0, -1, -1)])
def test_a_success_without_an_identity_is_followed_by_another_question(
    state: str, answer: tuple[int, int, int]
) -> None:
    bench, _ = sent(V1, CallKind.INIT, state)
    before = bench.identity
    bench.of.on_init(*answer, 5.0)
    assert bench.identity == before
    assert bench.next(5.0) is None
    bench.call(CallKind.INIT, 5.0 + FIRST_DELAY)


def test_a_refusal_with_an_identity_grants_none() -> None:
    bench, _ = sent(V1, CallKind.INIT, "initialising")
    bench.of.on_init(LOADING, 7, 0, 0.0)
    assert bench.identity is None
    assert bench.state() is INITIALISING


@pytest.mark.parametrize("identity", [(0, 0), (0, 5), (5, 0), (2**62, 32767)])
def test_any_identity_is_taken(identity: tuple[int, int]) -> None:
    bench, _ = sent(V1, CallKind.INIT, "initialising")
    bench.of.on_init(0, *identity, 0.0)
    assert bench.identity == ProducerIdentity(*identity)
    assert bench.state() is READY


def test_an_identity_that_nobody_waits_for_is_not_taken() -> None:
    """The producer died while InitProducerId was outstanding."""
    bench, _ = sent(V1, CallKind.INIT, "initialising")
    bench.of.die(BROKEN)
    bench.of.on_init(0, 7, 0, 0.0)
    assert bench.identity is None
    assert bench.state() is FATAL


@BOTH
@pytest.mark.parametrize(("kind", "code"), [(CallKind.FIND, NO_GROUP), (CallKind.FIND, MAPPING)])
def test_a_code_that_asks_for_an_abort_ends_a_call_without_which_there_is_no_abort(
    version: int, kind: CallKind, code: int
) -> None:
    bench, call = sent(version, kind, "seeking")
    bench.answer(call, code)
    assert bench.state() is UNINITIALISED
    assert bench.of.cause is not None
    for way in ("aborting", "renewing", "committing"):
        bench, call = sent(version, kind, f"{way} without_coordinator")
        bench.answer(call, code)
        assert bench.state() is FATAL


@BOTH
def test_a_group_whose_coordinator_is_refused_makes_the_transaction_abortable(version: int) -> None:
    bench, call = sent(version, CallKind.FIND, "seeking_group")
    bench.answer(call, NO_GROUP)
    assert bench.state() is ABORTABLE
    assert isinstance(bench.of.cause, errors.GroupAuthorizationFailedError)
    assert not bench.of.offsets


@BOTH
def test_a_broker_that_is_lost_is_nobody_s_coordinator_any_more(version: int) -> None:
    bench = bring(version, "committing_offsets")
    bench.of.on_node_lost(HERE + 1)
    assert bench.of.coordinator.node_id == bench.of.coordinators["g"].node_id == HERE
    bench.of.on_node_lost(HERE)
    assert bench.of.coordinator.node_id is bench.of.coordinators["g"].node_id is None


def test_a_group_s_coordinator_that_was_told_is_not_sought() -> None:
    bench = bring(V2, "open")
    bench.of.learn_coordinator("g", 5)
    bench.of.commit_offsets(offsets())
    call = bench.call(CallKind.COMMIT_OFFSETS)
    assert (call.coordinator.node_id, call.coordinator.kind) == (5, CoordinatorKey.GROUP)
    bench.of.learn_coordinator("g", 6)
    assert call.coordinator.node_id == 6


# -- beginning, and what is added --------------------------------------------------------------


@pytest.mark.parametrize(("finalised", "version"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_the_protocol_is_v2_from_level_2_on(finalised: int, version: int) -> None:
    bench = Bench().ready()
    bench.of.begin(finalised)
    assert bench.of.version == version
    assert bench.of.gated is (version == V1)
    assert bench.of.produce_version(13) == (13 if version == V2 else 11)
    assert bench.of.produce_version(9) == 9


def test_in_v1_a_partition_is_admitted_once_the_coordinator_has_added_it() -> None:
    bench = Bench(V1).open()
    assert not bench.of.admits("t", 0)
    assert not bench.of.admits("t", 0)
    call = bench.call(CallKind.ADD_PARTITIONS)
    assert call.partitions == (("t", 0),)
    assert not bench.of.admits("t", 1)
    bench.of.on_partitions_added({("t", 0): 0}, 0.0)
    assert bench.of.admits("t", 0)
    assert bench.call(CallKind.ADD_PARTITIONS).partitions == (("t", 1),)


def test_in_v2_any_partition_is_admitted_and_counts_as_added() -> None:
    bench = Bench(V2).open()
    assert bench.of.admits("t", 0)
    assert bench.of.added == {("t", 0)}
    assert bench.next() is None


@BOTH
def test_no_partition_is_admitted_where_nothing_may_be_sent(version: int) -> None:
    for way in ("ready", "aborting", "renewing"):
        bench = bring(version, way)
        assert not bench.of.may_send
        assert not bench.of.admits("u", 0)
        assert ("u", 0) not in bench.of.added
    bench = bring(version, "committing")
    assert bench.of.may_send
    assert bench.of.admits(*TWO[0])


def test_a_partition_that_the_answer_leaves_out_is_added_again() -> None:
    bench, call = sent(V1, CallKind.ADD_PARTITIONS, "adding")
    bench.answer(call, 0, 5.0, TWO[:1])
    assert bench.next(5.0) is None
    assert bench.of.admits(*TWO[0])
    assert bench.call(CallKind.ADD_PARTITIONS, 6.0).partitions == TWO[1:]


def test_an_offset_that_the_answer_leaves_out_is_committed_again() -> None:
    bench, call = sent(V1, CallKind.COMMIT_OFFSETS, "committing_offsets")
    commit = call.offsets
    bench.answer(call, 0, 5.0, TWO[:1])
    assert list(commit.left) == list(TWO[1:])
    assert bench.of.offsets == [commit]
    bench.answer(bench.call(CallKind.COMMIT_OFFSETS, 6.0), 0, 6.0)
    assert not commit.left
    assert bench.of.offsets == []


def test_the_gravest_code_decides_and_names_its_partitions() -> None:
    bench, _ = sent(V1, CallKind.ADD_PARTITIONS, "adding")
    refused = {TWO[0]: LOADING, TWO[1]: ErrorCode.topic_authorization_failed}
    bench.of.on_partitions_added(refused, 0.0)
    assert bench.state() is ABORTABLE
    assert "t-1" in str(bench.of.last_refusal)
    assert "t-0" not in str(bench.of.last_refusal)


@pytest.mark.parametrize("count", [9, 10, 11, 13])
def test_a_refusal_names_at_most_ten_partitions(count: int) -> None:
    bench = Bench(V1).open()
    for partition in range(count):
        bench.of.admits("t", partition)
    call = bench.call(CallKind.ADD_PARTITIONS)
    bench.answer(call, LOADING, which=call.partitions)
    told = str(bench.of.last_refusal)
    assert told.count("t-") == min(count, 10)
    assert re.findall(r" and (\d+) more", told) == ([str(count - 10)] if count > 10 else [])


def test_the_same_offsets_of_the_same_member_are_one_commit() -> None:
    bench = bring(V2, "open")
    first = bench.of.commit_offsets(offsets())
    assert bench.of.commit_offsets(offsets()) is first
    others = [offsets(first=11), offsets(member="m"), offsets("h")]
    assert [bench.of.commit_offsets(other) for other in others] == others
    assert bench.of.offsets == [first, *others]
    assert bench.of.commit_offsets(offsets("h")) is others[2], "the last one of its group"
    again = offsets()
    assert bench.of.commit_offsets(again) is again, "others of the group would be committed after"
    assert bench.of.offsets == [first, *others, again]
    bench.found()
    assert bench.call(CallKind.COMMIT_OFFSETS).offsets is first


def test_in_v1_a_group_is_added_once_in_a_transaction_and_again_in_the_next_one() -> None:
    bench = bring(V1, "committing_offsets")
    bench.answer(bench.call(CallKind.COMMIT_OFFSETS), 0)
    bench.of.commit_offsets(offsets(first=20))
    bench.answer(bench.call(CallKind.COMMIT_OFFSETS), 0)
    bench.of.commit()
    bench.end()
    bench.of.begin(V1)
    bench.of.commit_offsets(offsets())
    bench.call(CallKind.ADD_OFFSETS)


@BOTH
def test_offsets_that_a_lost_commit_could_overwrite_are_not_committed(version: int) -> None:
    bench, _ = sent(version, CallKind.COMMIT_OFFSETS, "committing_offsets")
    bench.of.commit_offsets(offsets("h"))
    bench.of.on_lost(0.0, written=True)
    assert bench.state() is OPEN
    bench.of.commit_offsets(offsets())
    with pytest.raises(errors.AbortableTransactionError, match="group 'g'"):
        bench.of.commit_offsets(offsets(first=20))
    assert bench.of.offsets == []
    bench, _ = sent(version, CallKind.COMMIT_OFFSETS, "committing_offsets")
    bench.of.on_lost(0.0, written=False)
    bench.of.commit_offsets(offsets(first=20))
    assert bench.state() is OPEN


def test_offsets_that_are_taken_after_the_abort_began_are_no_news() -> None:
    bench, call = sent(V2, CallKind.COMMIT_OFFSETS, "committing_offsets")
    bench.of.abort()
    bench.answer(call, 0)
    assert call.offsets is not None
    assert not call.offsets.left
    assert bench.call(CallKind.END).commit is False


def test_a_lost_addition_of_a_group_overwrites_no_offsets() -> None:
    bench, _ = sent(V1, CallKind.ADD_OFFSETS, "adding_group")
    bench.of.on_lost(0.0, written=True)
    bench.of.commit_offsets(offsets(first=20))
    assert bench.state() is OPEN


def test_in_v2_offsets_that_wait_for_the_last_transaction_have_not_begun_this_one() -> None:
    bench, call = sent(V2, CallKind.COMMIT_OFFSETS, "committing_offsets")
    bench.answer(call, CONCURRENT)
    bench.of.abort()
    assert bench.next(9.0) is None
    assert bench.state() is READY


def test_the_next_transaction_knows_nothing_of_the_last_one() -> None:
    bench, _ = sent(V2, CallKind.COMMIT_OFFSETS, "committing_offsets")
    bench.of.on_lost(0.0, written=True)
    bench.of.abort()
    bench.finish(9.0)
    bench.of.begin(V2)
    assert bench.of.added == set()
    assert bench.of.offsets == []
    bench.of.commit_offsets(offsets(first=20))
    assert bench.state() is OPEN, "the lost commit cannot reach this transaction"
    bench = bring(V1, "adding")
    bench.of.abort()
    bench.finish(0.0)
    bench.of.begin(V1)
    bench.of.commit()
    assert bench.next() is None, "the partitions were wanted by the last one"
    assert bench.state() is READY


def test_the_next_transaction_begins_with_the_first_delay() -> None:
    for again in ("begin", "change_id"):
        bench, call = sent(V2, CallKind.FIND, "seeking_group")
        for now in (0.0, 10.0):
            bench.answer(call, LOADING, now)
            if not now:
                call = bench.call(CallKind.FIND, 10.0)
        bench.of.abort()
        assert bench.next(20.0) is None
        if again == "begin":
            bench.of.begin(V2)
            bench.of.commit_offsets(offsets("h"))
        else:
            bench.of.change_id("y")
        bench.answer(bench.call(CallKind.FIND, 20.0), LOADING, 20.0)
        assert bench.of.retry_at == 20.0 + FIRST_DELAY


# -- the end -----------------------------------------------------------------------------------


@BOTH
def test_a_commit_waits_for_every_record_and_for_every_batch(version: int) -> None:
    bench = bring(version, "committing")
    assert bench.next(delivered=False, quiet=True) is None
    assert bench.next(delivered=True, quiet=False) is None
    due = bench.next(delivered=True, quiet=True)
    assert due is not None
    assert (due.kind, due.commit) == (CallKind.END, True)


@BOTH
def test_a_commit_that_was_not_decided_can_be_aborted(version: int) -> None:
    bench = bring(version, "committing")
    bench.of.abort()
    assert bench.state() is ABORTING
    assert bench.call(CallKind.END).commit is False


@BOTH
def test_an_abort_waits_for_every_batch_only(version: int) -> None:
    bench = bring(version, "aborting")
    assert bench.next(delivered=True, quiet=False) is None
    due = bench.next(delivered=False, quiet=True)
    assert due is not None
    assert (due.kind, due.commit) == (CallKind.END, False)


@BOTH
@pytest.mark.parametrize("commits", [False, True])
def test_a_transaction_that_the_coordinator_cannot_know_ends_without_a_call(
    version: int, commits: bool
) -> None:
    bench = bring(version, "open")
    outcome = bench.of.commit() if commits else bench.of.abort()
    assert (outcome.committed, bench.next()) == (None, None)
    assert outcome.committed is commits
    assert bench.state() is READY


@pytest.mark.parametrize("kind", [CallKind.ADD_PARTITIONS, CallKind.ADD_OFFSETS])
def test_in_v1_what_was_sent_to_the_coordinator_may_have_begun_the_transaction(
    kind: CallKind,
) -> None:
    way = {CallKind.ADD_PARTITIONS: "adding", CallKind.ADD_OFFSETS: "adding_group"}[kind]
    bench, call = sent(V1, kind, way)
    bench.of.abort()
    bench.answer(call, NO_GROUP)
    assert bench.call(CallKind.END).commit is False


def test_what_was_not_sent_has_not_begun_the_transaction() -> None:
    bench = bring(V1, "adding")
    bench.of.abort()
    assert bench.next() is None
    assert bench.state() is READY


@BOTH
def test_a_coordinator_that_was_only_sought_knows_no_transaction(version: int) -> None:
    bench = bring(version, "open without_coordinator")
    bench.of.admits("t", 0)
    if version == V1:
        bench.found()
    bench.of.abort()
    assert bench.next() is None
    assert bench.state() is READY


def test_in_v2_a_write_begins_the_transaction_unless_the_last_one_is_still_ending() -> None:
    for code in (0, None, MOVED):
        bench = bring(V2, "open")
        bench.of.on_produced(CONCURRENT)
        bench.of.on_produced(code)
        bench.of.on_produced(CONCURRENT)
        bench.of.abort()
        bench.call(CallKind.END)
    bench = bring(V2, "open")
    bench.of.on_produced(CONCURRENT)
    bench.of.abort()
    assert bench.next() is None


def test_the_end_of_a_transaction_is_told_once() -> None:
    bench = bring(V1, "committing")
    outcome = bench.of.outcome
    assert bench.of.commit() is outcome, "a second caller takes the first one's place"
    bench.call(CallKind.END)
    assert bench.of.commit() is outcome
    bench.of.on_ended(0, -1, -1, 0.0)
    assert bench.of.commit() is outcome
    outcome.told = True
    with pytest.raises(errors.IllegalStateError, match="no transaction is open"):
        bench.of.commit()


def test_the_abort_of_a_transaction_is_told_once() -> None:
    bench = bring(V1, "aborting")
    outcome = bench.of.outcome
    assert bench.of.abort() is outcome
    bench.end()
    assert outcome.committed is False
    assert bench.of.abort() is outcome
    with pytest.raises(errors.IllegalStateError, match="no transaction is open"):
        bench.of.commit()
    outcome.told = True
    with pytest.raises(errors.IllegalStateError, match="no transaction is open"):
        bench.of.abort()


def test_a_commit_that_may_have_taken_place_cannot_be_aborted() -> None:
    bench = bring(V1, "committing")
    bench.call(CallKind.END)
    with pytest.raises(errors.IllegalStateError, match="may have taken place"):
        bench.of.abort()
    bench.of.on_ended(0, -1, -1, 0.0)
    with pytest.raises(errors.IllegalStateError, match="may have taken place"):
        bench.of.abort()


@pytest.mark.parametrize("answer", [(0, 1), (7, 1), (9, 0), (9, 5)])
def test_the_end_of_v2_grants_the_next_identity(answer: tuple[int, int]) -> None:
    bench = bring(V2, "committing")
    bench.of.renew()
    bench.end(0, answer)
    assert bench.identity == ProducerIdentity(*answer)
    assert bench.state() is READY


@pytest.mark.parametrize("answer", [(-1, 1), (7, -1), (-1, -1), (7, 0)])
def test_an_end_of_v2_without_a_new_identity_is_followed_by_a_request_for_one(
    answer: tuple[int, int],
) -> None:
    bench = bring(V2, "committing")
    bench.end(0, answer)
    assert bench.identity == ProducerIdentity(7, 0)
    assert bench.state() is RENEWING
    assert bench.of.outcome.committed is True
    bench.call(CallKind.INIT)
    bench.of.on_init(0, 7, 1, 0.0)
    bench.of.begin(V2)
    bench.of.commit()
    assert bench.next() is None
    assert bench.state() is READY, "the epoch is requested once"


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("again", [2, 3])
def test_an_epoch_that_is_granted_again_is_none(version: int, again: int) -> None:
    """Partitions that gave up numbers of an epoch wait for a newer one, and would for ever."""
    bench = bring(version, "ready")
    bench.of.begin(version)
    bench.of.renew()
    bench.of.commit()
    assert bench.next() is None, "nothing was written"
    bench.call(CallKind.INIT)
    bench.of.on_init(0, 7, 3, 0.0)
    bench.of.begin(version)
    bench.of.renew()
    bench.of.commit()
    assert bench.next() is None
    bench.call(CallKind.INIT)
    bench.of.on_init(0, 7, again, 5.0)
    assert bench.state() is RENEWING
    assert bench.identity == ProducerIdentity(7, 3)
    assert bench.next(5.0) is None, "it is requested again after a pause"
    bench.call(CallKind.INIT, 5.0 + FIRST_DELAY)
    bench.of.on_init(0, 7, 4, 6.0)
    assert (bench.state(), bench.identity) == (READY, ProducerIdentity(7, 4))


def test_the_end_of_v1_keeps_the_identity() -> None:
    bench = bring(V1, "committing")
    bench.end()
    assert bench.identity == ProducerIdentity(7, 0)
    assert bench.state() is READY
    assert bench.of.may_change_id


@BOTH
def test_an_end_that_comes_too_late_for_a_dead_producer_changes_nothing(version: int) -> None:
    bench = bring(version, "committing")
    bench.call(CallKind.END)
    bench.of.die(BROKEN)
    bench.of.on_ended(0, 7, 5, 0.0)
    assert bench.identity == ProducerIdentity(7, 0)
    assert bench.state() is FATAL


def test_a_transaction_that_the_coordinator_does_not_know_is_aborted() -> None:
    """A new epoch is requested if the transaction was known before, as another one can begin it."""
    bench = bring(V1, "aborting")
    bench.end(NO_STATE)
    assert bench.of.outcome.committed is False
    assert bench.state() is RENEWING, "the partitions were added, so it was known"
    bench = bring(V1, "aborting")
    bench.end(LOADING)
    bench.end(NO_STATE, now=9.0)
    assert (bench.of.last_refusal, bench.of.retry_at) == (None, 0.0)
    bench = bring(V1, "adding")
    bench.of.admits("t", 0)
    bench.answer(bench.call(CallKind.ADD_PARTITIONS), ErrorCode.topic_authorization_failed)
    bench.of.abort()
    bench.end(NO_STATE)
    assert bench.state() is READY, "nothing was ever confirmed"
    bench = bring(V2, "aborting")
    bench.end(NO_STATE)
    assert bench.state() is RENEWING


@pytest.mark.parametrize("offset", [False, True])
def test_a_group_that_was_added_or_an_offset_that_was_taken_confirms_the_transaction(
    offset: bool,
) -> None:
    bench = bring(V1, "seeking_group")
    if offset:
        bench = bring(V1, "committing_offsets")
        bench.answer(bench.call(CallKind.COMMIT_OFFSETS), 0, which=TWO[:1])
    bench.of.abort()
    bench.of.on_found(0, HERE, 0.0)
    call = bench.next(9.0)
    assert call is not None
    bench.of.sent(call)
    bench.of.on_ended(NO_STATE, -1, -1, 9.0)
    assert bench.state() is RENEWING


@pytest.mark.parametrize("taken", [(), TWO[:1]])
def test_in_v1_only_an_answer_without_an_error_confirms_the_transaction(
    taken: tuple[tuple[str, int], ...],
) -> None:
    bench, call = sent(V1, CallKind.ADD_PARTITIONS, "adding")
    codes = {which: 0 if which in taken else LOADING for which in TWO}
    bench.of.on_partitions_added(codes, 0.0)
    bench.of.abort()
    bench.of.sent(bench.next(9.0) or call)
    bench.of.on_ended(NO_STATE, -1, -1, 9.0)
    assert bench.state() is (RENEWING if taken else READY)


def test_an_abort_after_a_commit_in_doubt_is_not_taken_for_done() -> None:
    bench = bring(V2, "committing")
    bench.end(LOADING)
    bench.end(ErrorCode.transaction_abortable, now=9.0)
    assert bench.state() is ABORTABLE
    bench.of.abort()
    bench.call(CallKind.END, 99.0)
    bench.of.on_lost(99.0, written=True)
    bench.call(CallKind.FIND, 109.0)
    bench.of.on_found(0, HERE, 109.0)
    bench.end(NO_STATE, now=109.0)
    assert bench.state() is FATAL
    assert bench.of.cause is not None
    assert bench.of.cause.status is DeliveryStatus.UNKNOWN


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (LOADING, DeliveryStatus.UNKNOWN),
        (MOVED, DeliveryStatus.UNKNOWN),
        (CONCURRENT, DeliveryStatus.NOT_WRITTEN),
        (None, DeliveryStatus.NOT_WRITTEN),
        ("written", DeliveryStatus.UNKNOWN),
        ("unwritten", DeliveryStatus.NOT_WRITTEN),
    ],
)
@BOTH
def test_a_producer_that_dies_at_its_commit_tells_whether_it_may_have_taken_place(
    version: int, first: int | str | None, status: DeliveryStatus
) -> None:
    bench = bring(version, "committing")
    if isinstance(first, str):
        bench.call(CallKind.END)
        bench.of.on_lost(0.0, written=first == "written")
    elif first is not None:
        bench.end(first)
    bench.of.die(BROKEN)
    assert bench.of.cause is not None
    assert bench.of.cause is not BROKEN
    assert bench.of.cause.status is status


@BOTH
def test_a_producer_that_dies_while_end_is_outstanding_does_not_know_the_outcome(
    version: int,
) -> None:
    bench = bring(version, "committing")
    bench.call(CallKind.END)
    bench.of.die(BROKEN)
    assert bench.of.cause is not None
    assert bench.of.cause.status is DeliveryStatus.UNKNOWN
    for way, kind in (("aborting", CallKind.END), ("committing_offsets", CallKind.COMMIT_OFFSETS)):
        bench, _ = sent(version, kind, way)
        bench.of.die(BROKEN)
        assert bench.of.cause is not None
        assert bench.of.cause.status is BROKEN.status
        assert bench.of.offsets == []


@BOTH
def test_a_producer_that_dies_between_transactions_leaves_the_last_outcome_alone(
    version: int,
) -> None:
    bench = bring(version, "committing")
    bench.call(CallKind.END)
    bench.of.on_lost(0.0, written=True)
    bench.found(1.0)
    bench.end(0, (7, 1) if version == V2 else (-1, -1), 9.0)
    bench.of.die(BROKEN)
    assert bench.of.cause is not None
    assert bench.of.cause.status is BROKEN.status
    assert bench.of.outcome.committed is True
    first = bench.of.cause
    bench.of.die(errors.KafkaTimeoutError("later"))
    assert bench.of.cause is first


# -- another epoch -----------------------------------------------------------------------------


HARMFUL = pytest.mark.parametrize(
    ("kind", "way"),
    [
        (CallKind.ADD_PARTITIONS, "adding"),
        (CallKind.ADD_OFFSETS, "adding_group"),
        (CallKind.COMMIT_OFFSETS, "committing_offsets"),
        (CallKind.END, "committing"),
        (CallKind.END, "aborting"),
    ],
)


def lose(bench: Bench, *, written: bool) -> None:
    """Lose the outstanding call, and abort the transaction unless it is ending."""
    bench.of.on_lost(0.0, written=written)
    if bench.state() is OPEN:
        bench.of.abort()
    bench.finish(9.0)


@HARMFUL
def test_in_v1_a_written_call_without_an_answer_costs_an_epoch(kind: CallKind, way: str) -> None:
    for written, state in ((True, RENEWING), (False, READY)):
        bench, _ = sent(V1, kind, way)
        lose(bench, written=written)
        assert bench.state() is state
        assert bench.of.may_change_id is (state is READY)


@HARMFUL
def test_in_v1_a_later_call_without_an_answer_does_not_save_the_epoch(
    kind: CallKind, way: str
) -> None:
    bench, _ = sent(V1, kind, way)
    bench.of.on_lost(0.0, written=True)
    bench.call(CallKind.FIND, 1.0)
    lose(bench, written=True)
    assert bench.state() is RENEWING


@pytest.mark.parametrize(
    ("kind", "way"), [(CallKind.COMMIT_OFFSETS, "committing_offsets"), (CallKind.END, "committing")]
)
def test_in_v2_the_end_of_the_transaction_fences_a_call_without_an_answer(
    kind: CallKind, way: str
) -> None:
    bench, _ = sent(V2, kind, way)
    lose(bench, written=True)
    assert bench.state() is READY
    assert bench.identity == ProducerIdentity(7, 1)


def test_finding_a_coordinator_costs_no_epoch() -> None:
    bench, _ = sent(V1, CallKind.FIND, "seeking_group")
    lose(bench, written=True)
    assert bench.state() is READY


@BOTH
def test_a_transaction_that_needs_another_epoch_gets_it_once(version: int) -> None:
    bench = bring(version, "renewing")
    with pytest.raises(errors.IllegalStateError, match="the next epoch is being requested"):
        bench.of.begin(version)
    bench.answer(bench.call(CallKind.INIT), 0)
    assert bench.identity == ProducerIdentity(7, 9)
    assert bench.of.may_change_id
    bench.of.begin(version)
    bench.of.commit()
    assert bench.next() is None
    assert bench.state() is READY


def test_numbers_that_were_given_up_make_it_abortable_and_cost_an_epoch() -> None:
    bench = bring(V1, "writing")
    bench.of.on_numbers_given_up("t-0", "the log was truncated")
    assert bench.state() is ABORTABLE
    assert isinstance(bench.of.cause, errors.OutOfOrderSequenceNumber)
    assert "t-0: sequences" in str(bench.of.cause)
    assert "the log was truncated" in str(bench.of.cause)
    bench.of.abort()
    bench.finish(0.0)
    assert bench.state() is RENEWING


@pytest.mark.parametrize(
    ("version", "numbered", "state"),
    [(V1, True, RENEWING), (V1, False, READY), (V2, True, READY), (V2, False, READY)],
)
def test_between_transactions_a_recreated_topic_of_this_epoch_costs_one_at_once_in_v1(
    version: int, numbered: bool, state: TransactionState
) -> None:
    bench = bring(version, "ready")
    bench.of.begin(version)
    bench.of.commit()
    bench.finish(0.0)
    bench.of.on_topic_recreated("t", numbered=numbered)
    assert bench.state() is state
    assert bench.of.may_change_id is (version == V2 and not numbered), "an epoch is due"


@BOTH
@pytest.mark.parametrize(
    ("topic", "numbered", "state"),
    [("t", True, ABORTABLE), ("t", False, ABORTABLE), ("u", True, ABORTABLE), ("u", False, OPEN)],
)
def test_a_topic_that_was_written_to_and_is_recreated_makes_it_abortable(
    version: int, topic: str, numbered: bool, state: TransactionState
) -> None:
    bench = bring(version, "writing")
    bench.of.on_topic_recreated(topic, numbered=numbered)
    assert bench.state() is state


def test_partitions_of_a_recreated_topic_are_not_added_unless_they_are_still_needed() -> None:
    """The new topic may lack them; AddPartitionsToTxn would be refused for all others as well."""
    bench = bring(V1, "adding")
    bench.of.admits("u", 0)
    bench.of.on_topic_recreated("t", numbered=False)
    assert bench.call(CallKind.ADD_PARTITIONS).partitions == (("u", 0),)
    bench.of.on_partitions_added({("u", 0): 0}, 0.0)
    bench.of.admits(*TWO[0])
    assert bench.call(CallKind.ADD_PARTITIONS).partitions == (TWO[0],)


@BOTH
def test_the_first_reason_stays_and_is_gone_with_the_transaction(version: int) -> None:
    bench = bring(version, "writing")
    bench.of.commit_offsets(offsets())
    bench.of.fail(BROKEN)
    bench.of.fail(errors.KafkaTimeoutError("later"))
    assert (bench.of.cause, bench.of.offsets) == (BROKEN, [])
    with pytest.raises(errors.AbortableTransactionError, match="broken") as raised:
        bench.of.check()
    assert raised.value.__cause__ is BROKEN
    bench.of.abort()
    bench.finish(0.0)
    assert bench.of.cause is None
    bench.of.check()


# -- another producer id, and another transactional id -----------------------------------------


def rotated(code: int = 0) -> Bench:
    """Return a producer whose id was replaced by 9 at the end of its last transaction."""
    bench = bring(V2, "committing")
    bench.end(code, (9, 0))
    bench.of.begin(V2)
    bench.of.on_produced(CONCURRENT)
    return bench


def test_a_new_producer_id_is_not_known_before_the_last_transaction_is_completed() -> None:
    bench = rotated()
    assert bench.of.finishing(MAPPING, 0.0)
    assert not bench.of.finishing(FENCED, 0.0)
    bench.of.commit_offsets(offsets())
    bench.found()
    bench.answer(bench.call(CallKind.COMMIT_OFFSETS), MAPPING, 5.0)
    assert bench.state() is OPEN
    assert bench.next(5.0) is None
    bench.answer(bench.call(CallKind.COMMIT_OFFSETS, 6.0), ErrorCode.topic_authorization_failed)
    assert bench.state() is ABORTABLE
    bench = bring(V2, "committing")
    bench.end(0, (7, 1))
    assert not bench.of.finishing(MAPPING, 0.0), "only the epoch has changed"


def test_a_coordinator_that_does_not_know_a_new_producer_id_an_hour_later_has_forgotten_it() -> (
    None
):
    """Then there is no transaction to abort, and an identity is requested anew."""
    bench = rotated()
    assert bench.of.finishing(MAPPING, 3599.9)
    assert not bench.of.finishing(MAPPING, 3600.0)
    bench.of.on_produced(0)
    bench.of.abort()
    bench.end(MAPPING, now=3599.0)
    assert bench.state() is ABORTING
    bench.end(MAPPING, now=3602.0)
    assert bench.state() is RENEWING
    bench = rotated()
    bench.of.renew()
    bench.of.abort()
    assert bench.next(3600.0) is None, "nothing was begun that could be ended"
    assert bench.state() is RENEWING


def test_under_a_new_producer_id_the_last_transaction_is_ended_before_an_epoch_is_requested() -> (
    None
):
    bench = rotated()
    bench.of.renew()
    bench.of.abort()
    bench.end(0)
    assert bench.state() is RENEWING
    bench = rotated()
    bench.of.abort()
    assert bench.next() is None, "no epoch is needed"
    assert bench.state() is READY
    bench = bring(V2, "open")
    bench.of.renew()
    bench.of.abort()
    assert bench.next() is None, "the producer id is the same"
    assert bench.state() is RENEWING


def test_a_granted_identity_ends_the_rotation() -> None:
    bench = rotated()
    bench.of.renew()
    bench.of.abort()
    bench.end(0)
    bench.answer(bench.call(CallKind.INIT), 0)
    assert not bench.of.finishing(MAPPING, 0.0)


def test_another_transactional_id_is_sought_and_asked_as_by_a_new_producer() -> None:
    bench = bring(V2, "committing")
    bench.end(0, (9, 0))
    bench.of.learn_coordinator("g", 5)
    bench.of.change_id("y")
    assert bench.identity is None
    assert not bench.of.coordinators
    assert not bench.of.finishing(MAPPING, 0.0)
    find = bench.call(CallKind.FIND)
    assert (find.coordinator.kind, find.coordinator.key) == (CoordinatorKey.TRANSACTION, "y")
    bench.answer(find, LOADING, 5.0)
    assert bench.of.retry_at == 5.0 + FIRST_DELAY


@BOTH
def test_the_transactional_id_changes_only_between_transactions(version: int) -> None:
    for way in ("open", "committing", "aborting", "renewing", "initialising"):
        bench = bring(version, way)
        with pytest.raises(errors.IllegalStateError):
            bench.of.change_id("y")
        assert bench.of.transactional_id == "x"
    bench = bring(version, "ready")
    bench.of.renew()
    assert not bench.of.may_change_id
    with pytest.raises(errors.IllegalStateError, match="an epoch is due"):
        bench.of.change_id("y")


@pytest.mark.parametrize("way", ["seeking", "renewing", "committing", "aborting"])
def test_a_producer_that_died_raises_a_copy_of_the_reason(way: str) -> None:
    bench = bring(V1, way)
    bench.of.die(BROKEN)
    for call in (bench.of.check, bench.of.abort, bench.of.commit, lambda: bench.of.begin(V1)):
        with pytest.raises(errors.KafkaConnectionError, match="broken") as raised:
            call()
        assert raised.value is not bench.of.cause
    assert bench.next() is None
    assert bench.of.awaits is None


def test_a_partition_that_was_not_added_is_explained_by_the_last_answer() -> None:
    bench = Bench(V1).adding()
    named = "the coordinator of transactional id 'x' has not added the partition to the transaction"
    assert bench.of.not_added("t", 0) == named
    assert bench.of.not_added("t", 2) is None
    bench.answer(bench.call(CallKind.ADD_PARTITIONS), ErrorCode.coordinator_load_in_progress)
    told = bench.of.not_added("t", 0) or ""
    assert told.startswith(f"{named}; the last answer: [Error 14]")
    bench.answer(bench.call(CallKind.ADD_PARTITIONS, FIRST_DELAY * 2), ErrorCode.none)
    assert bench.of.not_added("t", 0) is None

"""The embedded cluster's transaction coordinator: v1 and v2, fencing, timeouts and moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.transaction import TransactionState
from aioidem._broker.transaction_coordinator import next_look
from aioidem._broker.virtual import VirtualCluster

from .transactional import ABORTABLE, MODERN, OLD, Speech, Transactor, batch, fetch, values

OK = ErrorCode.none
FENCED = ErrorCode.producer_fenced
STALE = ErrorCode.invalid_producer_epoch
BUSY = ErrorCode.concurrent_transactions
WRONG = ErrorCode.invalid_txn_state
BOTH = pytest.mark.parametrize("speech", [OLD, MODERN], ids=["v1", "v2"])


@pytest.fixture
def cluster() -> VirtualCluster:
    """Return a cluster of two brokers with topic ``t``, which has one partition on each broker."""
    made = VirtualCluster(brokers=2)
    made.state.topology.create_topic("t", partitions=2, replication=1)
    return made


def ready(cluster: VirtualCluster, speech: Speech = MODERN, name: str = "tx") -> Transactor:
    producer = Transactor(cluster, name, speech)
    assert producer.init() is OK
    return producer


def begun(cluster: VirtualCluster, speech: Speech = MODERN, name: str = "tx") -> Transactor:
    """Return a producer with an open transaction and one record in partition 0."""
    producer = ready(cluster, speech, name)
    if speech is not MODERN:
        assert producer.add() == {("t", 0): OK}
    assert producer.produce(b"first") is OK
    return producer


def state_of(cluster: VirtualCluster, name: str = "tx") -> TransactionState:
    known = cluster.state.transactions.find(name)
    assert known is not None
    return known.state


# -- commit and abort ------------------------------------------------------------------------------


@BOTH
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    cluster: VirtualCluster, speech: Speech
) -> None:
    """A reader of committed records gets committed records and no aborted ones."""
    producer = begun(cluster, speech)
    assert values(fetch(cluster)) == []
    assert producer.end(commit=False) is OK
    if speech is OLD:
        producer.add()
    assert producer.produce(b"second") is OK
    assert producer.end(commit=True) is OK
    assert values(fetch(cluster)) == [b"second"]
    assert state_of(cluster) is TransactionState.COMPLETE_COMMIT


def test_in_v1_the_epoch_stays_and_sequences_go_on(cluster: VirtualCluster) -> None:
    """In transactions v1 the epoch stays the same after a transaction and sequences go on."""
    producer = begun(cluster, OLD)
    before = producer.who
    assert producer.end(commit=True) is OK
    assert producer.who == before
    producer.add()
    assert producer.produce_at(1) is OK


def test_in_v2_every_end_raises_the_epoch_and_sequences_begin_again(
    cluster: VirtualCluster,
) -> None:
    """In transactions v2 every EndTxn raises the epoch, and sequences begin at 0 again."""
    producer = begun(cluster)
    assert producer.epoch == 0
    assert producer.end(commit=True) is OK
    assert producer.epoch == 1
    assert producer.produce_at(1) is ErrorCode.out_of_order_sequence_number
    assert producer.produce_at(0) is OK
    assert producer.end(commit=False) is OK
    assert producer.epoch == 2


def test_in_v2_a_late_batch_of_the_last_transaction_takes_no_part_in_the_next(
    cluster: VirtualCluster,
) -> None:
    """In transactions v2 a late batch of one transaction cannot join the next one (KIP-890)."""
    producer = begun(cluster)
    late = Transactor(cluster)
    late.producer_id, late.epoch = producer.producer_id, producer.epoch
    producer.end(commit=True)
    assert late.produce_at(1) is STALE
    producer.produce(b"next")
    assert late.produce_at(1) is STALE


def test_an_older_epoch_holds_up_nothing_of_the_present_one(cluster: VirtualCluster) -> None:
    """A refused batch of an older epoch does not delay batches of the current one (Kafka 4.3.1)."""
    producer = begun(cluster)
    late = Transactor(cluster)
    late.producer_id, late.epoch = producer.producer_id, producer.epoch
    producer.end(commit=True)
    assert producer.produce_at(0) is OK
    assert late.produce_at(0) is STALE
    assert producer.produce_at(1) is OK


def test_in_v2_out_of_epochs_means_a_new_producer_id(cluster: VirtualCluster) -> None:
    """In transactions v2 EndTxn gives a new producer id when the epochs are used up."""
    producer = ready(cluster)
    known = cluster.state.transactions.find("tx")
    assert known is not None
    known.epoch = producer.epoch = 32766
    old = producer.producer_id
    producer.produce()
    assert producer.end(commit=True) is OK
    assert producer.producer_id != old
    assert producer.epoch == 0
    # EndTxn again, as from a client that did not get the answer.
    again = Transactor(cluster)
    again.producer_id, again.epoch = old, 32766
    assert again.end(commit=True) is OK
    assert again.who == producer.who
    assert producer.produce() is OK


@pytest.mark.parametrize("commit", [True, False])
def test_in_v2_an_end_that_was_not_heard_of_is_answered_again(
    cluster: VirtualCluster, commit: bool
) -> None:
    """In transactions v2 a repeated EndTxn gets the same answer, and the opposite is refused."""
    producer = begun(cluster)
    deaf = Transactor(cluster)
    deaf.producer_id, deaf.epoch = producer.producer_id, producer.epoch
    assert producer.end(commit=commit) is OK
    assert deaf.end(commit=not commit) is WRONG
    assert deaf.end(commit=commit) is OK
    assert deaf.who == producer.who


def test_in_v2_a_producer_that_missed_the_end_gets_the_next_identity(
    cluster: VirtualCluster,
) -> None:
    """In v2 a producer that missed EndTxn's answer gets the new epoch from InitProducerId."""
    producer = begun(cluster)
    deaf = Transactor(cluster)
    deaf.producer_id, deaf.epoch = producer.producer_id, producer.epoch
    producer.end(commit=True)
    assert deaf.init(claim=True) is OK
    assert deaf.who == producer.who


@pytest.mark.parametrize("commit", [True, False])
def test_in_v1_an_end_that_was_not_heard_of_is_answered_again(
    cluster: VirtualCluster, commit: bool
) -> None:
    """In transactions v1 a repeated EndTxn gets the same answer, and the opposite is refused."""
    producer = begun(cluster, OLD)
    assert producer.end(commit=commit) is OK
    assert producer.end(commit=commit) is OK
    assert producer.end(commit=not commit) is WRONG


@pytest.mark.parametrize(
    ("speech", "commit", "code", "epoch"),
    [
        (OLD, True, WRONG, 0),
        (OLD, False, WRONG, 0),
        (MODERN, True, WRONG, 0),
        (MODERN, False, OK, 1),
    ],
)
def test_a_transaction_of_nothing_is_aborted_in_v2_only(
    cluster: VirtualCluster, speech: Speech, commit: bool, code: ErrorCode, epoch: int
) -> None:
    """EndTxn of a transaction without partitions is refused, except for an abort in v2."""
    producer = ready(cluster, speech)
    assert producer.end(commit=commit) is code
    assert producer.epoch == epoch


def test_a_marker_consumes_an_offset_and_reads_as_one(cluster: VirtualCluster) -> None:
    """A transaction marker takes one offset and is read back as a control batch."""
    producer = begun(cluster)
    producer.end(commit=True)
    producer.produce(b"next")
    [first, marker, second] = cluster.state.topics["t"].partitions[0].replicas[0].log.batches
    assert (first.base_offset, marker.base_offset, second.base_offset) == (0, 1, 2)
    assert marker.header.control
    assert marker.header.transactional
    assert (marker.header.producer_id, marker.header.producer_epoch) == (producer.producer_id, 1)
    assert marker.header.base_sequence == -1


def test_a_deleted_topic_does_not_keep_a_transaction_from_its_end(cluster: VirtualCluster) -> None:
    """A transaction ends even if one of its topics was deleted."""
    cluster.state.coordinators["tx"] = 1
    producer = begun(cluster)
    cluster.state.stop_broker(0, clean=True)
    cluster.state.delete_topic(cluster.state.topics["t"])
    assert producer.end(commit=True) is OK
    assert state_of(cluster) is TransactionState.COMPLETE_COMMIT


def test_end_txn_of_v2_never_completes_in_a_cluster_of_v1() -> None:
    """After EndTxn v5 in a cluster of v1 a transaction never completes, as in Kafka 4.3.1."""
    cluster = VirtualCluster(brokers=1, transaction_version=0)
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    producer = begun(cluster, OLD)
    assert producer.end(commit=True, version=5) is ErrorCode.unsupported_version
    cluster.run_until(3600.0)
    assert Transactor(cluster).init() is BUSY
    assert values(fetch(cluster)) == []


def test_a_write_in_v2_to_a_cluster_of_v1_is_the_last_of_its_id() -> None:
    """A Produce of transactions v2 at a v1 cluster makes its transactional id unusable."""
    cluster = VirtualCluster(brokers=1, transaction_version=0)
    cluster.state.topology.create_topic("t", partitions=2, replication=1)
    producer = ready(cluster)
    assert producer.produce() is ErrorCode.unsupported_version
    assert producer.produce() is BUSY
    assert producer.end(commit=True, version=4) is BUSY
    assert Transactor(cluster).init() is BUSY


# -- partitions ------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none(cluster: VirtualCluster) -> None:
    """AddPartitionsToTxn adds either all its partitions or none."""
    producer = ready(cluster, OLD)
    assert producer.add(("t", 0), ("t", 9)) == {
        ("t", 0): ErrorCode.operation_not_attempted,
        ("t", 9): ErrorCode.unknown_topic_or_partition,
    }
    assert state_of(cluster) is TransactionState.EMPTY
    assert producer.add(("t", 0), ("t", 1)) == {("t", 0): OK, ("t", 1): OK}
    assert state_of(cluster) is TransactionState.ONGOING


@pytest.mark.parametrize(
    ("speech", "code"),
    [(OLD, WRONG), (ABORTABLE, ErrorCode.transaction_abortable), (MODERN, OK)],
    ids=["v10", "v11", "v13"],
)
def test_a_batch_for_a_partition_that_takes_no_part(
    cluster: VirtualCluster, speech: Speech, code: ErrorCode
) -> None:
    """Produce v12 adds a batch's partition to the transaction; older versions refuse the batch."""
    producer = ready(cluster, speech)
    assert producer.produce() is code


def test_a_batch_of_an_unknown_producer_id_is_refused(cluster: VirtualCluster) -> None:
    """Requests with an unknown producer id are answered INVALID_PRODUCER_ID_MAPPING."""
    producer = ready(cluster)
    producer.producer_id += 1
    assert producer.produce() is ErrorCode.invalid_producer_id_mapping
    assert producer.end(commit=True) is ErrorCode.invalid_producer_id_mapping
    assert set(producer.add().values()) == {ErrorCode.invalid_producer_id_mapping}


def test_a_batch_outside_of_the_transaction_its_producer_has_open_is_refused(
    cluster: VirtualCluster,
) -> None:
    """A non-transactional batch is refused while its producer has a transaction open."""
    producer = begun(cluster)
    stray = batch(producer.producer_id, producer.epoch, 1, transactional=False)
    assert cluster.client().produce(stray).error_code is WRONG


def test_without_state_transactions_v2_begin_at_zero(cluster: VirtualCluster) -> None:
    """In transactions v2 a producer unknown to the partition must begin at sequence 0."""
    assert ready(cluster).produce_at(5) is ErrorCode.out_of_order_sequence_number


def test_in_v1_without_state_any_sequence_is_the_first(cluster: VirtualCluster) -> None:
    """In transactions v1 a producer unknown to the partition may begin at any sequence."""
    producer = ready(cluster, OLD)
    producer.add()
    assert producer.produce_at(5) is OK


@pytest.mark.parametrize("speech", [OLD, MODERN], ids=["v1", "v2"])
def test_a_batch_the_coordinator_put_off_is_not_overtaken(
    cluster: VirtualCluster, speech: Speech
) -> None:
    """A batch is not appended before an earlier one that was refused with a retriable error."""
    producer = ready(cluster, speech)
    if speech is OLD:
        producer.add()
    cluster.state.coordinator_faults["tx"] = ErrorCode.not_coordinator
    assert producer.produce_at(0) is ErrorCode.not_enough_replicas
    del cluster.state.coordinator_faults["tx"]
    assert producer.produce_at(1) is ErrorCode.out_of_order_sequence_number
    assert producer.produce_at(0) is OK
    assert producer.produce_at(1) is OK


# -- while markers are missing ---------------------------------------------------------------------


@BOTH
def test_while_it_is_being_ended_the_id_is_busy(cluster: VirtualCluster, speech: Speech) -> None:
    """Requests get CONCURRENT_TRANSACTIONS until the markers of the transaction are written."""
    producer = begun(cluster, speech)
    old = Transactor(cluster, speech=speech)
    old.producer_id, old.epoch = producer.producer_id, producer.epoch
    cluster.state.transactions.hold_markers()
    assert producer.end(commit=True) is OK
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT
    assert old.end(commit=True) is BUSY
    assert old.end(commit=False) is WRONG
    assert set(producer.add().values()) == {BUSY}
    assert producer.add_group() is BUSY
    assert Transactor(cluster).init() is BUSY
    put_off = BUSY if speech is MODERN else ErrorCode.not_enough_replicas
    assert producer.produce(partition=1) is put_off
    cluster.state.transactions.release_markers()
    assert values(fetch(cluster)) == [b"first"]
    assert Transactor(cluster).init() is OK


def test_markers_may_take_their_time(cluster: VirtualCluster) -> None:
    """Markers are written only after the cluster's ``marker_delay``."""
    producer = begun(cluster)
    cluster.state.transactions.marker_delay = 2.0
    producer.end(commit=True)
    assert producer.produce() is BUSY
    cluster.run_until(cluster.now + 2.1)
    assert producer.produce() is OK


def test_a_marker_waits_for_a_leader(cluster: VirtualCluster) -> None:
    """A marker for a partition without a leader is written once there is one."""
    producer = begun(cluster)
    cluster.state.coordinators["tx"] = 1
    cluster.state.stop_broker(0, clean=True)
    assert producer.end(commit=True) is OK
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT
    cluster.state.start_broker(0, clean=True)
    cluster.settle()
    assert state_of(cluster) is TransactionState.COMPLETE_COMMIT
    assert values(fetch(cluster)) == [b"first"]


def test_a_marker_that_was_lost_with_its_leader_is_written_again() -> None:
    """A marker that was lost with the partition's leader is written again by the new leader."""
    cluster = VirtualCluster(brokers=3)
    cluster.state.topology.create_topic("t", partitions=1, replication=2)
    cluster.state.coordinators["tx"] = 2
    producer = begun(cluster)
    partition = cluster.state.topics["t"].partitions[0]
    partition.pause(1)
    producer.end(commit=True)
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT
    cluster.state.stop_broker(0, clean=False)
    cluster.settle()
    assert state_of(cluster) is TransactionState.COMPLETE_COMMIT
    assert values(fetch(cluster)) == [b"first"]


# -- fencing and epochs ----------------------------------------------------------------------------


@BOTH
def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(
    cluster: VirtualCluster, speech: Speech
) -> None:
    """InitProducerId fences the id's previous producer and aborts that producer's transaction."""
    old = begun(cluster, speech)
    new = Transactor(cluster, speech=speech)
    assert new.init() is BUSY
    assert new.init() is OK
    assert (new.producer_id, new.epoch) == (old.producer_id, 2)
    assert values(fetch(cluster)) == []
    assert old.produce() is STALE
    assert set(old.add().values()) == {FENCED}
    assert old.end(commit=True) is FENCED
    assert old.commit_offset(1) is STALE
    assert old.init(claim=True) is FENCED


@pytest.mark.parametrize(
    ("api", "version", "code"),
    [
        (22, 3, STALE),
        (22, 4, FENCED),
        (24, 1, STALE),
        (24, 2, FENCED),
        (25, 1, STALE),
        (25, 2, FENCED),
        (26, 1, STALE),
        (26, 2, FENCED),
    ],
)
def test_versions_without_the_code_for_fenced_answer_an_old_epoch(
    cluster: VirtualCluster, api: int, version: int, code: ErrorCode
) -> None:
    """API versions before KIP-588 answer INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""
    old = ready(cluster, OLD)
    assert Transactor(cluster).init() is OK
    ask: dict[int, Callable[[], ErrorCode]] = {
        22: lambda: old.init(version, claim=True),
        24: lambda: old.add(version=version)["t", 0],
        25: lambda: old.add_group(version=version),
        26: lambda: old.end(commit=True, version=version),
    }
    assert ask[api]() is code


def test_kip_360_the_current_identity_gets_the_next_epoch_once(cluster: VirtualCluster) -> None:
    """InitProducerId with the current producer id and epoch raises the epoch once (KIP-360)."""
    producer = ready(cluster)
    deaf = Transactor(cluster)
    deaf.producer_id, deaf.epoch = producer.producer_id, producer.epoch
    assert producer.init(claim=True) is OK
    assert producer.epoch == 1
    # The same request again, as if the first answer had been lost.
    assert deaf.init(claim=True) is OK
    assert deaf.epoch == 1
    assert producer.init(claim=True) is OK
    assert producer.epoch == 2
    stale = Transactor(cluster)
    stale.producer_id, stale.epoch = producer.producer_id, 0
    assert stale.init(claim=True) is FENCED


def test_a_new_producer_of_a_transactional_id_fences_the_former_one(
    cluster: VirtualCluster,
) -> None:
    """A producer is fenced when another one initialises its transactional id."""
    first = ready(cluster)
    assert ready(cluster).epoch == 1
    assert first.init(claim=True) is FENCED


def test_a_fence_may_use_up_the_last_epoch(cluster: VirtualCluster) -> None:
    """Fencing may use the last epoch; the new producer then gets a new producer id."""
    producer = ready(cluster)
    known = cluster.state.transactions.find("tx")
    assert known is not None
    known.epoch = producer.epoch = 32766
    producer.produce()
    new = Transactor(cluster)
    assert new.init() is BUSY
    assert new.init() is OK
    assert new.producer_id != producer.producer_id


# -- timeouts (KIP-588) ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_the_coordinator_aborts_what_takes_too_long(version: int) -> None:
    """The coordinator aborts a transaction that is open for longer than its timeout (KIP-588)."""
    cluster = VirtualCluster(brokers=1, transaction_version=version)
    cluster.state.topology.create_topic("t", partitions=1, replication=1)
    speech = MODERN if version == 2 else OLD
    producer = Transactor(cluster, speech=speech)
    producer.init(timeout_ms=25_000)
    producer.add()
    producer.produce(b"lost")
    cluster.run_until(24.0)
    assert state_of(cluster) is TransactionState.ONGOING
    cluster.run_until(31.0)
    assert state_of(cluster) is TransactionState.COMPLETE_ABORT
    assert producer.produce(b"late") is STALE
    assert values(fetch(cluster)) == []
    if version == 0:
        assert producer.end(commit=True) is FENCED
        assert producer.init(claim=True) is FENCED
    else:
        # The abort raised the epoch. In v2 the answer to EndTxn tells the producer the new epoch.
        assert producer.end(commit=True) is WRONG
        assert producer.end(commit=False) is OK
        assert producer.produce(b"on time") is OK


def test_a_timeout_is_not_extended_by_what_is_added(cluster: VirtualCluster) -> None:
    """Adding partitions does not extend a transaction's timeout."""
    producer = begun(cluster)
    cluster.run_until(50.0)
    producer.produce(partition=1)
    cluster.run_until(71.0)
    assert state_of(cluster) is TransactionState.COMPLETE_ABORT


def test_a_transaction_that_was_ended_in_time_is_let_be(cluster: VirtualCluster) -> None:
    """A transaction that ended in time does not cause the next one to be aborted."""
    producer = begun(cluster)
    producer.end(commit=True)
    cluster.run_until(65.0)
    producer.produce(b"second")
    cluster.run_until(100.0)
    assert producer.end(commit=True) is OK
    assert values(fetch(cluster)) == [b"first", b"second"]
    assert cluster.state.next_due() is not None
    cluster.run_until(300.0)
    assert cluster.state.next_due() is None


# -- coordinators ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
    ],
)
def test_a_coordinator_that_does_not_answer(cluster: VirtualCluster, code: ErrorCode) -> None:
    """While a coordinator fails, requests get its error; afterwards the transaction can end."""
    producer = begun(cluster)
    cluster.state.coordinator_faults |= {"tx": code, "g": code}
    assert producer.end(commit=True) is code
    assert set(producer.add().values()) == {code}
    assert producer.add_group() is code
    assert producer.commit_offset(1) is code
    assert Transactor(cluster).init() is code
    assert producer.produce(partition=1) is ErrorCode.not_enough_replicas
    # Partition 0 is in the transaction already, so its leader does not ask the coordinator.
    assert producer.produce() is OK
    cluster.state.coordinator_faults.clear()
    assert producer.end(commit=True) is OK


def test_loading_is_answered_only_in_versions_that_know_it(cluster: VirtualCluster) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS is answered only in versions that know the code."""
    producer = ready(cluster, OLD)
    cluster.state.coordinator_faults["g"] = ErrorCode.coordinator_load_in_progress
    assert producer.commit_offset(1, version=1) is ErrorCode.coordinator_not_available
    assert producer.commit_offset(1, version=2) is ErrorCode.coordinator_load_in_progress


@BOTH
def test_a_coordinator_that_moves_or_restarts_knows_what_the_last_one_knew(
    cluster: VirtualCluster, speech: Speech
) -> None:
    """A coordinator that moves or restarts loses no transaction."""
    cluster.state.coordinators["tx"] = 1
    producer = begun(cluster, speech)
    first = cluster.state.coordinator_of("tx")
    cluster.state.stop_broker(1, clean=False)
    second = cluster.state.coordinator_of("tx")
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert producer.end(commit=True) is OK
    cluster.state.start_broker(1, clean=False)
    assert cluster.state.coordinator_of("tx") is first
    if speech is OLD:
        producer.add()
    assert producer.produce(b"second") is OK
    cluster.state.coordinators["tx"] = 0
    assert producer.end(commit=True) is OK
    assert values(fetch(cluster)) == [b"first", b"second"]


def test_a_coordinator_is_not_found_while_it_is_away(cluster: VirtualCluster) -> None:
    """FindCoordinator answers the error of a coordinator that is not available."""
    cluster.state.coordinator_faults["tx"] = ErrorCode.coordinator_not_available
    request = {"key": "tx", "key_type": 1, "coordinator_keys": ["tx", "other"]}
    [tx, other] = cluster.client().ask(10, 6, request).coordinators
    assert (tx.error_code, tx.node_id) == (ErrorCode.coordinator_not_available, -1)
    assert other.error_code is OK
    assert cluster.client().ask(10, 1, request).error_code is ErrorCode.coordinator_not_available


# -- the feature transaction.version ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "finalized"),
    [(0, {}), (1, {"transaction.version": 1}), (2, {"transaction.version": 2})],
)
@pytest.mark.parametrize("api_version", [3, 4])
def test_the_finalised_feature_says_which_protocol(
    version: int, finalized: dict[str, int], api_version: int
) -> None:
    """ApiVersions names the finalised level of ``transaction.version``, but omits level 0."""
    cluster = VirtualCluster(transaction_version=version)
    request = {"client_software_name": "c", "client_software_version": "1"}
    answer = cluster.client().ask(18, api_version, request)
    assert {f.name: f.max_version_level for f in answer.finalized_features} == finalized
    [supported] = answer.supported_features
    assert (supported.name, supported.max_version) == ("transaction.version", 2)


@pytest.mark.parametrize("interval", [0.1, 0.3, 0.7, 1.1, 10.0])
def test_a_look_at_what_timed_out_is_never_at_the_same_instant_again(interval: float) -> None:
    """The next check for timed-out transactions is always later than now, despite rounding.

    As 3 x 0.1 == 0.30000000000000004, a check could otherwise be due at the same time for ever on a
    virtual clock.
    """
    for number in range(20_000):
        now = number * interval
        assert now + interval / 2 < next_look(now, 0.0, interval) < now + interval * 1.5

"""What a producer does when its cluster changes, or another client uses its producer id."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.producer_id import ProducerIdAnswer
from aioidem._protocol.producers import ProducersAnswer

from .driver import (
    ACKED,
    INVALID_PRODUCER_EPOCH,
    MESSAGE_TOO_LARGE,
    NOT_WRITTEN,
    PENDING,
    UNKNOWN,
    LinkEnd,
    Rig,
    T,
    pipelined,
    topic_id,
    wait_until,
)


def carried(rig: Rig) -> None:
    """Lose every connection, and let every address lead to another cluster."""
    rig.cluster_id = "another"
    rig.ids[T] = topic_id(T, 7)
    for end in [end for end in rig.links.values() if end.open and not end.closed]:
        rig.lose(end, poll=False)


def opened(rig: Rig) -> list[LinkEnd]:
    return [end for end in rig.links.values() if end.open and not end.closed]


def told(rig: Rig, text: str) -> list[str]:
    return [event for event in rig.events if text in event]


# -- another cluster


def test_what_is_in_doubt_ends_unknown_and_the_rest_goes_on_under_a_new_producer_id() -> None:
    rig, requests = pipelined(5)
    rig.send(3)
    before = requests[0].only.identity
    carried(rig)
    wait_until(rig, lambda: rig.outcomes[1].status is UNKNOWN)
    rig.settle_down()
    assert rig.statuses == [ACKED, *[UNKNOWN] * 5, *[ACKED] * 3]
    there = rig.everything[-1].only
    assert there.identity[0] != before[0]
    assert there.where == (T, 0, topic_id(T, 7))
    error = rig.outcomes[1].error
    assert isinstance(error, errors.ClusterChangedError)
    assert "the cluster changed from cluster to another" in str(error)
    assert "b1:9092" in str(error)
    assert "the last bytes from cluster came" in str(error)
    assert len(told(rig, "the cluster changed")) == 1
    rig.assert_drained()


def test_under_fail_the_producer_ends() -> None:
    rig, _ = pipelined(5, on_cluster_change="fail")
    rig.send(3)
    carried(rig)
    wait_until(rig, lambda: PENDING not in rig.statuses)
    assert rig.statuses == [ACKED, *[UNKNOWN] * 5, *[NOT_WRITTEN] * 3]
    with pytest.raises(errors.ClusterChangedError) as refused:
        rig.send()
    assert refused.value.status is NOT_WRITTEN
    assert len(told(rig, "This producer ends")) == 1
    rig.tick(30.0)
    assert len(told(rig, "the cluster changed")) == 1
    assert all(request.sent_at < rig.now - 29.0 for request in rig.everything)
    rig.assert_drained()


def test_nothing_of_ours_goes_where_the_cluster_is_not_named_yet() -> None:
    """No batch is sent on a new connection before the broker has answered with its cluster's id.

    Here that is the id of the same cluster, so the producer keeps its producer id.
    """
    rig, _ = pipelined(3)
    rig.producers = ProducersAnswer(0, {})
    rig.hold = (steps.AskCluster, steps.FetchMetadata)
    sent = len(rig.everything)
    rig.lose()
    rig.tick(5.0)
    assert opened(rig)
    assert len(rig.everything) == sent
    rig.hold = (steps.InitProducerId,)
    for step in rig.held:
        if isinstance(step, steps.AskCluster):
            rig.core.on_answer(step, rig.cluster_id, rig.now)
        elif isinstance(step, steps.FetchMetadata):
            rig.answer_metadata(step)
    rig.settle_down()
    assert rig.statuses == [ACKED] * 4
    assert not any(isinstance(step, steps.InitProducerId) for step in rig.held)


def test_a_connection_that_leads_elsewhere_is_closed_and_the_producer_stays() -> None:
    """A connection to another cluster is closed; a producer that reaches its cluster stays there.

    Here the address of broker 2 was given to another cluster (KIP-1242), and is tried again after
    growing delays. Broker 1 is still reached, so the producer does not move.
    """
    rig = Rig(brokers=2, partitions=2)
    rig.leaders[T, 1] = (2, 0)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    rig.leads_to["b2"] = "another"
    [to_two] = [end for end in opened(rig) if end.host == "b2"]
    rig.lose(to_two)
    sent = len(rig.everything)
    here, there = rig.send(partition=0)[0], rig.send(partition=1)[0]
    rig.settle_down(20.0)
    assert (here.status, there.status) == (ACKED, PENDING)
    assert {request.link.host for request in rig.everything[sent:]} == {"b1"}
    assert len(told(rig, "leads to cluster another")) == 1
    tried = [end for end in rig.links.values() if end.host == "b2"]
    assert len(tried) <= 2 + 20.0 / rig.config.reconnect_backoff_max + 7, (
        "the address does not back off"
    )
    del rig.leads_to["b2"]
    rig.settle_down()
    assert there.status is ACKED
    assert not told(rig, "the cluster changed")


def test_two_clusters_behind_one_name_are_no_reason_to_move_while_one_is_reached() -> None:
    rig = Rig(brokers=2, partitions=2)
    rig.leaders[T, 1] = (2, 0)
    rig.start()
    rig.send(partition=1)
    rig.ack_all()
    for turn in range(7):
        rig.leads_to["b1"] = "another" if turn % 2 else "cluster"
        for end in [end for end in opened(rig) if end.host == "b1"]:
            rig.lose(end)
        rig.send(partition=0)
        rig.send(partition=1)
        rig.settle_down(5.0)
    assert rig.statuses == [ACKED] * 15
    assert not told(rig, "the cluster changed")


def test_a_bootstrap_connection_of_before_is_asked_again_where_its_name_leads() -> None:
    """The producer leaves an open bootstrap connection once all hosts lead to another cluster.

    That connection still leads to the old cluster, but no new connection does.
    """
    rig = Rig(brokers=2)
    rig.leaders[T, 0] = (2, 0)
    rig.hold = (steps.InitProducerId,)
    rig.core.accumulator.topic(T)
    rig.poll()
    [bootstrap] = [end for end in opened(rig) if end.host == "b1"]
    rig.kept[bootstrap.link_id] = "cluster"
    rig.cluster_id = "another"
    rig.hold = ()
    [step] = rig.held
    rig.grant(step, 7, 0)
    rig.send()
    rig.settle_down(5.0)
    assert bootstrap.closed
    assert rig.statuses == [ACKED]
    assert len(told(rig, "the cluster changed")) == 1


def test_a_name_that_flaps_costs_one_move_for_each_time_that_all_connections_are_lost() -> None:
    rig = Rig().start()
    for turn in range(6):
        rig.send()
        rig.ack_all()
        rig.cluster_id = f"cluster {turn}"
        rig.lose()
        rig.settle_down(5.0)
    assert len(told(rig, "the cluster changed")) == 6
    identities = [request.only.identity for request in rig.everything]
    assert len(set(identities)) == 6
    assert rig.statuses == [ACKED] * 6


def test_one_connection_that_comes_to_lead_elsewhere_is_left() -> None:
    """A connection is closed when a Metadata answer on it names another cluster than before.

    A proxy can switch an open connection to another cluster.
    """
    rig, requests = pipelined(3)
    rig.cluster_id = "another"
    rig.refresh()
    assert requests[0].link.closed
    rig.settle_down()
    assert rig.statuses == [ACKED, *[UNKNOWN] * 3]


def test_a_cluster_that_names_no_id_is_taken_for_the_known_one() -> None:
    rig, _ = pipelined(3)
    rig.cluster_id = None
    rig.lose()
    rig.settle_down()
    assert rig.statuses == [ACKED] * 4
    assert not [event for event in rig.events if "cluster" in event]


def test_records_go_along_in_call_order_to_the_partitions_that_are_there() -> None:
    rig = Rig(partitions=3).start()
    for number in range(9):
        rig.send(partition=number % 3, size=20, poll=False)
    for _ in range(6):
        rig.send(partition=None, size=20, poll=False)
    carried(rig)
    for partition in (1, 2):
        del rig.leaders[T, partition]
    rig.settle_down(70.0)
    on_zero = [rig.outcomes[number] for number in (0, 3, 6)]
    assert [outcome.status for outcome in on_zero] == [ACKED] * 3
    gone = [rig.outcomes[number] for number in (1, 2, 4, 5, 7, 8)]
    assert [outcome.status for outcome in gone] == [NOT_WRITTEN] * 6
    written = [o for o in rig.outcomes if o.status is ACKED]
    assert len(written) == 9
    assert [o.offset for o in written] == sorted(o.offset for o in written)


def test_what_waited_for_its_partition_is_not_overtaken_by_what_goes_along() -> None:
    """A record that waits for a partition is not overtaken by a later one moved to that partition.

    The first record waits until partition 2 exists. The later record has partition 1, until the
    cluster changes and the partitioner chooses partition 2 for it.
    """

    def last(_key: bytes | None, everything: Sequence[int], _led: Sequence[int]) -> int:
        return max(everything)

    rig = Rig(partitions=2, partitioner=last).start()
    rig.hold = (steps.FetchMetadata,)
    rig.leaders[T, 2] = (1, 0)
    early = rig.send(partition=2, size=20, poll=False)[0]
    late = rig.send(partition=None, size=20, poll=False)[0]
    carried(rig)
    rig.hold = ()
    rig.settle_down()
    assert (early.status, late.status) == (ACKED, ACKED)
    assert early.offset < late.offset


def test_nothing_learned_from_one_cluster_is_used_in_the_next() -> None:
    rig, requests = pipelined(20, version=14, max_in_flight_requests_per_connection=30)
    for request in requests:
        rig.ack(request, retained=20)
    rig.leaders[T, 0] = (1, 0)
    rig.next_offset = 0
    carried(rig)
    rig.send()
    rig.settle_down()
    state = rig.state()
    assert rig.statuses == [ACKED] * 22
    assert state.log.offset == 0
    assert state.window.limit == 5
    assert rig.core.counters.data_loss_events == 0


def test_a_leader_epoch_of_the_next_cluster_may_be_lower() -> None:
    rig = Rig(brokers=2)
    rig.leaders[T, 0] = (1, 50)
    rig.start()
    rig.send()
    rig.ack_all()
    rig.leaders[T, 0] = (2, 0)
    carried(rig)
    rig.send()
    rig.settle_down()
    assert rig.statuses == [ACKED] * 2
    assert rig.everything[-1].link.host == "b2"


@pytest.mark.parametrize("version", [1, 2])
def test_a_transactional_producer_ends(version: int) -> None:
    """A transactional producer ends when its cluster changes, and a pending commit is UNKNOWN.

    Its transaction, its fencing and its groups' offsets are in the cluster that it lost.
    """
    rig = Rig(transactional_id="tx", transaction_version=version).start()
    rig.begin()
    rig.send()
    rig.ack_all()
    rig.hold = (steps.EndTransaction,)
    rig.commit()
    rig.called(steps.EndTransaction)
    carried(rig)
    wait_until(rig, lambda: rig.txn is TransactionState.FATAL)
    cause = rig.transactions.cause
    assert isinstance(cause, errors.ClusterChangedError)
    assert cause.status is UNKNOWN, "the coordinator may have decided on the commit"


# -- INVALID_PRODUCER_EPOCH


def test_a_fenced_producer_asks_for_another_id_and_never_raises_the_epoch() -> None:
    rig, requests = pipelined(3)
    before = requests[0].only.identity
    for request in requests:
        rig.fail(request, INVALID_PRODUCER_EPOCH, poll=False)
    rig.settle_down()
    assert rig.statuses == [ACKED] * 4
    assert rig.everything[-1].only.identity == (before[0] + 1, 0)
    [event] = [event for event in rig.events if "another client" in event]
    assert f"another client writes under this producer's id, {before[0]}" in event


def test_doubt_elsewhere_under_that_id_can_not_be_resolved() -> None:
    """Batches in doubt end as UNKNOWN when another client turns out to use the producer id.

    The other client may have written the same sequences, so an answer could be about its records.
    """
    rig = Rig(brokers=2, partitions=2)
    rig.leaders[T, 1] = (2, 0)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    fenced, doubtful = rig.send(partition=0)[0], rig.send(2, partition=1)[0]
    to_zero = next(r for r in rig.outstanding() if r.only.partition == 0)
    to_one = next(r for r in rig.outstanding() if r.only.partition == 1)
    rig.lose(to_one.link, poll=False)
    before = to_zero.only.identity
    rig.fail(to_zero, INVALID_PRODUCER_EPOCH)
    assert doubtful.status is UNKNOWN
    assert "another client writes under" in str(doubtful.error)
    sent = len(rig.everything)
    rig.settle_down()
    assert fenced.status is ACKED
    assert {part.identity[0] for r in rig.everything[sent:] for part in r.parts} == {before[0] + 1}


def test_doubt_that_comes_after_the_fencing_ends_unknown_as_well() -> None:
    rig = Rig(brokers=2, partitions=2)
    rig.leaders[T, 1] = (2, 0)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    rig.send(partition=0)
    late = rig.send(partition=1)[0]
    to_zero = next(r for r in rig.outstanding() if r.only.partition == 0)
    to_one = next(r for r in rig.outstanding() if r.only.partition == 1)
    rig.fail(to_zero, INVALID_PRODUCER_EPOCH)
    rig.lose(to_one.link)
    assert late.status is UNKNOWN


def test_a_partition_that_has_another_id_already_is_left_alone() -> None:
    """INVALID_PRODUCER_EPOCH for a former producer id does not replace the present one.

    Two partitions get this answer for the old id, the second one after the new id was granted.
    """
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    for partition in (0, 1):
        rig.send(partition=partition)
    first, second = rig.outstanding()
    rig.fail(first, INVALID_PRODUCER_EPOCH)
    renewed = rig.core.identity.current
    assert renewed is not None
    rig.fail(second, INVALID_PRODUCER_EPOCH)
    rig.settle_down()
    assert rig.core.identity.current == renewed
    assert rig.statuses == [ACKED] * 4


# -- what a move to another cluster forgets, and when the producer does not move


def test_no_producer_id_is_asked_of_a_connection_that_has_not_named_its_cluster() -> None:
    """No producer id is requested on a connection whose broker has not named its cluster yet.

    The connection may lead to another cluster, whose ids mean nothing in ours.
    """
    rig = Rig(brokers=2)
    rig.leaders[T, 0] = (2, 0)
    rig.start()
    rig.send()
    rig.ack_all()
    rig.hold = (steps.AskCluster, steps.FetchMetadata, steps.InitProducerId)
    rig.send()
    rig.fail(rig.outstanding()[0], INVALID_PRODUCER_EPOCH, poll=False)  # a new id is wanted
    rig.lose()
    rig.tick(5.0)
    assert opened(rig)
    assert not [step for step in rig.held if isinstance(step, steps.InitProducerId)]


def test_the_producer_stays_while_a_connection_to_the_known_cluster_is_open() -> None:
    """The producer keeps its cluster if one of two new connections leads to that cluster.

    Both connections name their clusters before the engine decides. The connection that leads to
    another cluster is the first to do so.
    """
    both = 0
    for seed in range(12):
        rig = Rig(brokers=2, seed=seed)
        rig.leaders[T, 0] = (2, 0)
        rig.start()
        rig.send()
        rig.ack_all()
        rig.leads_to["b1"] = "another"
        rig.hold = (steps.AskCluster, steps.FetchMetadata)
        rig.lose()
        rig.send()
        rig.tick(3.0)
        links = rig.core.connections.links
        waiting = [step for step in rig.held if step.link_id in links]
        home = [step for step in waiting if rig.links[step.link_id].host == "b2"]
        away = [step for step in waiting if links[step.link_id].node_id < 0]
        rig.hold = ()
        if not (home and away):
            continue  # which addresses are tried first is up to chance
        both += 1
        for step in [*away, *home]:
            if isinstance(step, steps.AskCluster):
                there = rig.leads_to.get(rig.links[step.link_id].host, "cluster")
                rig.core.on_answer(step, there, rig.now)
            else:
                rig.answer_metadata(step)
        rig.settle_down()
        assert not told(rig, "the cluster changed"), f"seed {seed}"
        assert rig.statuses == [ACKED] * 2
    assert both


def test_a_size_that_the_old_cluster_refused_is_forgotten() -> None:
    rig = Rig(batch_size=1000, linger=0.1).start()
    rig.send()
    rig.tick(0.2)
    rig.ack_all()
    rig.send(3)
    rig.tick(0.2)
    rig.fail(rig.outstanding()[0], MESSAGE_TOO_LARGE)
    rig.settle_down()
    carried(rig)
    rig.settle_down()
    rig.send(3)
    rig.tick(0.2)
    assert [len(request.only.values) for request in rig.outstanding()] == [3]


def test_what_the_old_brokers_said_of_themselves_is_forgotten() -> None:
    rig = Rig()
    rig.facts = BrokerFacts(expiration=5.0)
    rig.start()
    rig.send()
    rig.ack_all()
    rig.settle_down()
    assert rig.core.expiration == 5.0
    node = rig.core.connections.nodes[1]
    rig.facts = BrokerFacts()
    carried(rig)
    rig.settle_down()
    assert rig.core.connections.nodes[1] is not node
    assert rig.core.expiration != 5.0


def test_a_producer_id_that_the_old_cluster_refused_is_not_refused_by_the_next_one() -> None:
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    (asked,) = rig.held
    rig.held.clear()
    denied = ProducerIdAnswer(ErrorCode.cluster_authorization_failed, -1, -1)
    rig.core.on_answer(asked, denied, rig.now)
    errors_before = rig.core.identity_error
    carried(rig)
    wait_until(rig, lambda: bool(told(rig, "the cluster changed")), 30.0)
    assert (errors_before is not None, rig.core.identity_error) == (True, None)
    rig.hold = ()
    (record,) = rig.send()
    rig.settle_down()
    assert record.status is ACKED

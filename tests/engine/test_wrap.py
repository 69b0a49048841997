"""Where numbers end: sequences that wrap to 0, and the last epoch of a producer id.

The simulated broker is that of `test_schedules`. It appends by Kafka's rules, so it stores what a
real log would hold.
"""

from __future__ import annotations

import pytest

from aioidem._engine import steps

from .driver import (
    ACKED,
    INVALID_RECORD,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    Request,
    Rig,
    T,
    wait_until,
)
from .test_schedules import Broker

WRAP = 2**31


def serve(rig: Rig, broker: Broker, request: Request) -> None:
    """Answer a request as the broker does."""
    code, offset = broker.append(request.only)
    told = broker.retain if code == NONE else None
    rig.answer(request, [rig.entry(request, request.only, code, offset, retained=told)])


def serve_all(rig: Rig, broker: Broker) -> None:
    """Answer all requests until every record is settled."""
    until, served = rig.now + 20.0, 0
    while rig.core.unsettled:
        assert rig.now < until, "the producer does not recover"
        while rig.outstanding():
            assert served < 1000, "the engine sends requests for ever"
            serve(rig, broker, rig.outstanding()[0])
            served += 1
        rig.tick(0.05)


def twenty(start: int) -> tuple[Rig, Broker, list[Request]]:
    """Make a rig with twenty batches of two records in flight, from sequence `start` % 2**31 on."""
    broker = Broker(20)
    rig = Rig(version=14, batch_size=400, max_in_flight_requests_per_connection=20).start()
    rig.send()
    serve(rig, broker, rig.outstanding()[0])
    rig.jump(start)
    (known,) = broker.known.values()
    known.next = start
    known.cache.clear()
    for _ in range(20):
        rig.send(2, poll=False)
        rig.poll()
    requests = rig.outstanding()
    assert rig.sequences == [(start + 2 * n) % WRAP for n in range(20)]
    assert rig.state().batches.span == 20
    return rig, broker, requests


@pytest.mark.parametrize("spans", [False, True], ids=["begins at the wrap", "spans the wrap"])
@pytest.mark.parametrize("place", [1, 7, 19], ids=["second", "eighth", "last"])
@pytest.mark.parametrize(
    "incident", ["refused", "one in the middle refused", "cut", "half stored", "stored", "restart"]
)
def test_twenty_in_flight_across_the_wrap_are_retried_in_order(
    incident: str, place: int, spans: bool
) -> None:
    """Twenty batches in flight across the wrap are delivered in order after an incident.

    The batch at `place` begins at sequence 0, or with `spans` has sequence 0 inside.
    """
    rig, broker, requests = twenty(WRAP - 2 * place - spans)
    if incident in {"refused", "one in the middle refused"}:
        refused = 0 if incident == "refused" else place - 1
        for number, request in enumerate(requests):
            if number == refused:
                rig.fail(request, NOT_ENOUGH_REPLICAS)
            else:
                serve(rig, broker, request)
    else:
        stored = {"cut": 0, "half stored": place + 1}.get(incident, 20)
        for request in requests[:stored]:
            assert broker.append(request.only)[0] == NONE
        if incident == "restart":
            broker.restart_cleanly()
        rig.lose()
    serve_all(rig, broker)
    assert set(rig.statuses) == {ACKED}
    numbers = [int(value[:8]) for value in broker.logs[0] if value is not None]
    assert numbers == list(range(41))
    assert all(outcome.offset in {outcome.number, -1} for outcome in rig.outcomes)
    assert (rig.core.epoch_bumps, rig.core.counters.data_loss_events) == (0, 0)
    assert all(0 <= request.sequence < WRAP for request in rig.everything)
    rig.assert_drained()


def test_the_last_epoch_gives_way_to_a_new_id_and_not_before_doubt_under_it_is_resolved() -> None:
    """A partition keeps the old producer id while it has a batch in doubt (librdkafka #3720).

    The epochs of the old id are used up. Partition 1 has a batch in doubt and stays with the old
    id, while partition 0 goes on under the new one.
    """
    rig = Rig(partitions=2)
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.grant(rig.held.pop(), 77, 32767)
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    doubtful = rig.send(partition=1)
    rig.fail(rig.outstanding()[0], REQUEST_TIMED_OUT)
    rig.send(4, partition=0)
    first, *behind = [r for r in rig.outstanding() if r.only.partition == 0]
    rig.fail(first, INVALID_RECORD, poll=False)
    for request in behind:
        rig.fail(request, OUT_OF_ORDER, poll=False)
    late = rig.send(partition=1)
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    (resend,) = rig.outstanding()
    assert (resend.only.partition, resend.only.identity) == (1, (77, 32767))
    rig.grant(rig.held.pop(), 78, 0)
    rig.tick(1.0)
    fresh = [r for r in rig.outstanding() if r is not resend]
    assert [(r.only.partition, r.only.identity, r.sequence) for r in fresh] == [(0, (78, 0), 0)]
    rig.ack(resend)
    assert doubtful[0].status is ACKED
    (after,) = [r for r in rig.outstanding() if r.only.partition == 1]
    assert (after.only.identity, after.sequence) == ((78, 0), 0)
    rig.ack_all()
    assert late[0].status is ACKED
    assert rig.statuses == [ACKED] * 3 + [NOT_WRITTEN] + [ACKED] * 4
    assert rig.core.epoch_bumps == 1
    assert not rig.held, "one incident requests no second new id"
    rig.assert_drained()


def test_an_id_that_runs_out_in_two_partitions_at_once_is_replaced_once() -> None:
    """An id that runs out in two partitions at once is replaced once (Dekaf #3341).

    A later incident bumps the epoch of the new id.
    """
    rig = Rig(partitions=2)
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.grant(rig.held.pop(), 77, 32767)
    for partition in (0, 1):
        rig.send(2, partition=partition)
    for request in rig.outstanding():
        rig.fail(request, INVALID_RECORD, poll=False)
    rig.tick(1.0)
    (asked,) = rig.held
    rig.grant(asked, 78, 0)
    rig.tick(1.0)
    assert {part.identity for r in rig.outstanding() for part in r.parts} == {(78, 0)}
    rig.fail(rig.outstanding()[0], INVALID_RECORD)
    rig.send(partition=0)
    rig.settle_down(2.0)
    assert rig.state(T, 0).ledger.identity == (78, 1)
    assert len(rig.held) == 1
    rig.assert_drained()

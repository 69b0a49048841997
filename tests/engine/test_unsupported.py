"""What becomes of a request that a broker has no usable version of: it is never sent."""

from __future__ import annotations

from typing import Any

from aioidem import errors
from aioidem._engine import steps
from aioidem.errors import UnsupportedVersionError

from .driver import ACKED, NOT_WRITTEN, OUT_OF_ORDER, PENDING, Rig, pipelined, wait_until

REFUSED = UnsupportedVersionError("the broker has no usable version")


def withdraw(rig: Rig, kind: type[Any]) -> Any:
    """Report that the only request of this kind that was held cannot be sent."""
    [step] = [each for each in rig.held if isinstance(each, kind)]
    rig.held.clear()
    rig.core.on_unsupported(step, REFUSED, rig.now)
    rig.poll()
    return step


def asked(rig: Rig, kind: type[Any]) -> int:
    return sum(isinstance(each, kind) for each in rig.asked)


def test_without_describe_configs_v14_is_not_used() -> None:
    rig = Rig(version=14)
    rig.hold = (steps.DescribeTopicConfig,)
    rig.start()
    rig.send()
    withdraw(rig, steps.DescribeTopicConfig)
    rig.send(2)
    assert {request.version for request in rig.everything} == {13}
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3
    rig.tick(3600.0)
    assert asked(rig, steps.DescribeTopicConfig) == 1
    assert any("does not offer DescribeConfigs" in event for event in rig.events)


def test_without_a_topic_limit_batches_stay_within_batch_size() -> None:
    rig = Rig(late_sealing=True, batch_size=100, linger=0.0)
    rig.hold = (steps.DescribeTopicLimit,)
    rig.start()
    rig.send(12)
    withdraw(rig, steps.DescribeTopicLimit)
    rig.settle_down()
    assert rig.statuses == [ACKED] * 12
    assert max(len(part.values) for request in rig.everything for part in request.parts) == 1


def test_without_describe_producers_batches_in_doubt_are_probed() -> None:
    """The request is an optimisation, and is not tried again on the same connection."""
    rig, _ = pipelined(3)
    rig.hold = (steps.AskProducers,)
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    step = withdraw(rig, steps.AskProducers)
    assert not rig.core.connections.links[step.link_id].knows_producers
    wait_until(rig, lambda: len(rig.outstanding()) == 3)
    for request in rig.outstanding():
        rig.ack(request)
    rig.settle_down()
    assert rig.statuses == [ACKED] * 4
    assert asked(rig, steps.AskProducers) == 1


def asking_for_a_producer_id() -> Rig:
    """Make a rig whose request for a producer id is held."""
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    return rig.start()


def test_without_a_producer_id_records_fail_and_the_reason_is_told() -> None:
    rig = asking_for_a_producer_id()
    rig.send()
    assert rig.statuses == [PENDING]
    withdraw(rig, steps.InitProducerId)
    assert rig.statuses == [NOT_WRITTEN]
    assert isinstance(rig.outcomes[0].error, errors.UnsupportedVersionError)
    assert rig.core.identity_error is REFUSED


def test_other_requests_are_tried_again_later() -> None:
    rig = Rig().start()
    rig.hold = (steps.FetchMetadata,)
    rig.refresh()
    withdraw(rig, steps.FetchMetadata)
    rig.hold = ()
    before = asked(rig, steps.FetchMetadata)
    rig.tick(10.0)
    assert asked(rig, steps.FetchMetadata) > before
    rig.send()
    rig.ack_all()
    assert rig.statuses == [ACKED]


def test_a_request_is_withdrawn_once() -> None:
    """A connection may be lost while its request is being encoded; it is not known any more."""
    rig = asking_for_a_producer_id()
    [step] = rig.held
    rig.lose()
    rig.send()
    rig.core.on_unsupported(step, REFUSED, rig.now)
    rig.poll()
    assert rig.statuses == [PENDING]
    assert rig.core.identity_error is None

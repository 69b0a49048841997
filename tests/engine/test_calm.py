"""`ProducerCore.poll` while records flow: it sends, and leaves out whatever is not due.

A poll that leaves all else out is called calm. A calm poll costs a part of a full one, so the flow
is fast; each event that makes something else due must end the calm, so nothing is left waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.cluster import NO_LEADER

from .driver import ACKED, NOT_LEADER, UNKNOWN_TOPIC_OR_PARTITION, Rig, T


def is_calm(rig: Rig) -> bool:
    """Poll the engine once; return whether it left out what a full poll does."""
    called = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        rig.core.poll(rig.now)
    finally:
        sys.setprofile(None)
    assert "ProduceRequests.send" in called
    full = {"RecordAccumulator.expire", "MetadataRequests.ask", "IdentityRequest.ask"}
    assert called & full in (set(), full)
    return not called & full


def flowing(**options: Any) -> Rig:
    """Return a producer that sends a record with each acknowledgement of the one before."""
    options = {"request_timeout": 10.0, "delivery_timeout": 120.0} | options
    rig = Rig(partitions=2, **options).start()
    if "transactional_id" in options:
        rig.begin()
    for _ in range(3):
        rig.send()
        rig.now += 0.1
        rig.ack(rig.outstanding()[0], poll=False)
    return rig


def test_an_acknowledgement_and_a_new_record_need_no_more_than_sending() -> None:
    rig = flowing()
    assert is_calm(rig)
    rig.send(poll=False)
    assert is_calm(rig)


def refuse(rig: Rig) -> None:
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_LEADER, poll=False)


def leave_out(rig: Rig) -> None:
    rig.send()
    rig.answer(rig.outstanding()[0], [], poll=False)


def come_to_the_time(rig: Rig) -> None:
    assert rig.core.wake_at is not None
    rig.now = rig.core.wake_at


def want_metadata(rig: Rig) -> None:
    rig.core.metadata.want()


def send_to_an_unknown_topic(rig: Rig) -> None:
    rig.send(topic="u", partition=None, poll=False)
    rig.core.metadata.wanted = False


def end(rig: Rig) -> None:
    rig.core.fatal(errors.KafkaConnectionError("over"))
    rig.core._calm = True  # noqa: SLF001 - as after the error of a partition, in an answer


def lose(rig: Rig) -> None:
    rig.lose(poll=False)
    rig.core.metadata.wanted = False


def open_a_connection(rig: Rig) -> None:
    rig.core.on_link_open(999, rig.version, rig.now)


def be_answered_otherwise(rig: Rig) -> None:
    rig.hold = (steps.FetchMetadata,)
    rig.refresh(0.0)
    (step,) = rig.held
    rig.poll()
    rig.answer_metadata(step)


@pytest.mark.parametrize(
    "happen",
    [
        refuse,
        leave_out,
        come_to_the_time,
        want_metadata,
        send_to_an_unknown_topic,
        end,
        lose,
        open_a_connection,
        be_answered_otherwise,
    ],
)
def test_what_makes_something_else_due_ends_the_calm(happen: Callable[[Rig], None]) -> None:
    rig = flowing()
    assert is_calm(rig)
    happen(rig)
    assert not is_calm(rig)


def test_the_calm_returns_with_the_next_poll() -> None:
    rig = flowing()
    rig.refresh(3.0)
    assert is_calm(rig)
    rig.core.on_link_open(999, rig.version, rig.now)
    assert not is_calm(rig)
    assert is_calm(rig)


@pytest.mark.parametrize(
    "options",
    [
        {"linger": 0.01},
        {"delivery_timeout": 10.0},
        {"transactional_id": "x", "transaction_version": 2},
    ],
    ids=["linger", "delivery timeout", "transactions"],
)
def test_a_producer_with_shorter_waits_is_never_calm(options: dict[str, Any]) -> None:
    """What waits less than a request timeout would be overlooked."""
    rig = flowing(**options)
    for _ in range(3):
        assert not is_calm(rig)


def test_all_that_flows_calmly_is_acknowledged() -> None:
    rig = flowing()
    rig.send(5)
    rig.ack_all()
    assert [record.status for record in rig.outcomes] == [ACKED] * 8


def test_a_poll_that_finds_that_no_leader_is_known_is_followed_by_one_that_asks() -> None:
    """It could not ask itself: metadata is requested before batches are sent."""
    rig = Rig(enable_idempotence=False, linger=0.0).start()
    rig.send()
    rig.ack_all()
    for partition in range(2):
        rig.leaders[T, partition] = (NO_LEADER, 1)
    rig.refresh()
    rig.topic_errors[T] = UNKNOWN_TOPIC_OR_PARTITION  # and no record waits for the topic
    rig.tick(10.0)
    assert not rig.core.metadata.wanted
    rig.send(poll=False)
    todo = rig.core.poll(rig.now)
    if not todo:
        assert rig.core.wake_at == rig.now
        todo = rig.core.poll(rig.now)
    assert [type(step) for step in todo] == [steps.FetchMetadata]
    assert rig.core.wake_at is not None
    assert rig.core.wake_at > rig.now

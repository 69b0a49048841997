"""The audit notices each sum and flag that does not agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import ProducerCore
from aioidem._engine.steps import SendProduce

from .audit import audit, finished, still_busy
from .schedule import Call, Schedule
from .world import World

CALLS = tuple(Call(0.1 * number, "t", 0, None, 20) for number in range(3))


def _only(core: ProducerCore) -> Any:
    (state,) = core.partitions.values()
    return state


def _link(core: ProducerCore) -> Any:
    return next(link for link in core.connections.links.values() if link.outstanding)


def _spoil_bytes(core: ProducerCore) -> None:
    _only(core).queue.bytes += 1


def _spoil_flush(core: ProducerCore) -> None:
    _only(core).queue.flushing = True


def _spoil_outstanding(core: ProducerCore) -> None:
    _only(core).batches.outstanding = 0


def _spoil_order(core: ProducerCore) -> None:
    _only(core).batches.unresolved *= 2


def _spoil_ordinal(core: ProducerCore) -> None:
    _only(core).batches.next_ordinal = 0


def _spoil_distance(core: ProducerCore) -> None:
    _only(core).batches.next_ordinal += 2


def _spoil_requests(core: ProducerCore) -> None:
    _link(core).window.outstanding -= 1


def _spoil_bytes_in_flight(core: ProducerCore) -> None:
    _link(core).bytes_in_flight += 1


def _spoil_connection(core: ProducerCore) -> None:
    core.connections.nodes[_link(core).node_id].down_since = 1.0


def _spoil_back_off(core: ProducerCore) -> None:
    _link(core).answered_at = 1.0
    core.connections.nodes[_link(core).node_id].backoff.failures = 1


def _spoil_wake(core: ProducerCore) -> None:
    link = _link(core)
    link.outstanding.clear()
    link.window.outstanding = link.bytes_in_flight = 0
    core.wake_at = 1e9


def _spoil_memory(core: ProducerCore) -> None:
    core.budget.release(core.budget.in_use)


def _spoil_identity(core: ProducerCore) -> None:
    inside: Any = core
    inside._identity_request.error = errors.KafkaError("refused")


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda _: None, []),
        (_spoil_bytes, ["bytes in its queue"]),
        (_spoil_flush, ["an empty queue, which waits"]),
        (_spoil_outstanding, ["1 batches in flight, not 0"]),
        (_spoil_order, ["has 2 batches in flight", "has batch 0 after 0", "bytes of records"]),
        (_spoil_ordinal, ["has batch 0, and 0 is next"]),
        (_spoil_distance, ["t-0 counts too many batches from (0, 0) to (3, 2)"]),
        (_spoil_requests, ["connection 2 waits for "]),
        (_spoil_bytes_in_flight, ["bytes in flight"]),
        (_spoil_connection, ["is connected, and counts as lost"]),
        (_spoil_back_off, ["answers, and 1 attempts count"]),
        (_spoil_wake, ["is idle, and nobody"]),
        (_spoil_memory, ["bytes of records are kept"]),
        (_spoil_identity, ["there is a producer id, and"]),
    ],
)
def test_what_does_not_agree_is_noticed(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[ProducerCore], None], wrong: list[str]
) -> None:
    world = World(Schedule(0, profile="audit", versions=(12,), calls=CALLS))
    found: list[str] = []

    def sent(_step: SendProduce) -> None:
        if not found:
            spoil(world.core)
            found.extend(audit(world.core))
            found.append("")

    monkeypatch.setattr(world.core.contents, "sent", sent)
    world.run()
    assert found.pop() == ""
    assert len(found) == len(wrong), found
    assert all(part in text for part, text in zip(wrong, found, strict=True)), found


def test_a_partition_that_has_nothing_to_do_is_dropped_by_the_next_poll() -> None:
    world = World(Schedule(0, profile="audit", versions=(12,), calls=CALLS))
    world.run()
    (state,) = world.core.partitions.values()
    inside: Any = world.core
    inside._partitions.busy[state] = None
    done = finished(world.core)
    assert done == [state]
    assert not list(still_busy(world.core, []))
    assert len(list(still_busy(world.core, done))) == 1

"""The audit: whether the sums and flags that an engine keeps agree with what they are about.

An engine keeps such sums so that a poll need not look at each record. One that is wrong may show
itself late, as a wait that nobody expects, or as room that is never given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from aioidem._engine import ProducerCore
from aioidem._engine.batch import BatchState
from aioidem._engine.links import Link, LinkState
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import Outcome
from aioidem._engine.settlement import Settlement
from aioidem.structs import DeliveryStatus

__all__ = ["audit", "finished", "left_over", "still_busy"]

_NO_OUTCOME = Outcome("", -1, DeliveryStatus.UNKNOWN)


def audit(core: ProducerCore) -> Iterator[str]:
    """Yield what does not agree in an engine between two polls."""
    inside: Any = core
    for state in inside._partitions:
        yield from _partition(state)
    for link in core.connections.links.values():
        yield from _link(link)
        yield from _idle(link, core)
    for node in core.connections.nodes.values():
        ready = node.link
        if ready is None or ready.state is not LinkState.READY:
            continue
        if node.down_since is not None:
            yield f"broker {node.node_id} is connected, and counts as lost"
        if ready.answered_at is not None and node.backoff.failures:
            yield f"broker {node.node_id} answers, and {node.backoff.failures} attempts count"
    yield from _memory(core)
    if core.identity.current is not None and inside._identity_request.error is not None:
        yield f"there is a producer id, and {inside._identity_request.error!r}"


def _memory(core: ProducerCore) -> Iterator[str]:
    """Compare the memory in use with that of the records without an outcome."""
    inside: Any = core
    if any(topic.unassigned for topic in core.accumulator.unplaced):
        return
    held = 0
    for state in inside._partitions:
        held += sum(item.charge() for item in state.queue.records)
        for batch in state.batches.unresolved:
            records = Settlement(_NO_OUTCOME, batch.records)
            held += records.size() + records.overhead()
    if core.budget.in_use < held:
        yield f"{held} bytes of records are kept, and {core.budget.in_use} count"


def _partition(state: PartitionState) -> Iterator[str]:
    queue, batches = state.queue, state.batches
    unresolved = batches.unresolved
    nbytes = sum(item.size for item in queue.records)
    if queue.bytes != nbytes:
        yield f"{state.where} has {nbytes} bytes in its queue, not {queue.bytes}"
    if not queue.records and (queue.blocked or queue.flushing):
        yield f"{state.where} has an empty queue, which waits to be sent"
    in_flight = sum(batch.state is BatchState.IN_FLIGHT for batch in unresolved)
    if batches.outstanding < in_flight:
        yield f"{state.where} has {in_flight} batches in flight, not {batches.outstanding}"
    for earlier, later in pairwise(unresolved):
        if earlier.ordinal >= later.ordinal:
            yield f"{state.where} has batch {later.ordinal} after {earlier.ordinal}"
    if unresolved and batches.next_ordinal <= unresolved[-1].ordinal:
        last, following = unresolved[-1].ordinal, batches.next_ordinal
        yield f"{state.where} has batch {last}, and {following} is next"
    yield from _distances(state)


def _distances(state: PartitionState) -> Iterator[str]:
    """Compare distances in batches with those in records, of which each batch has at least one.

    A producer that counts too many batches keeps fewer in flight than its window has room for.
    """
    batches, ledger = state.batches, state.ledger
    ours = [batch for batch in batches.unresolved if batch.identity == ledger.identity]
    if ledger.identity is None or not ours:
        return
    places = [(batch.ordinal, batch.base) for batch in ours]
    for earlier, later in pairwise([*places, (batches.next_ordinal, ledger.next)]):
        if later[0] - earlier[0] > later[1] - earlier[1]:
            yield f"{state.where} counts too many batches from {earlier} to {later}"


def _idle(link: Link, core: ProducerCore) -> Iterator[str]:
    """Compare when the engine wakes with when an idle connection is to be closed.

    One that the broker throttles is kept: a new one would evade the quota.
    """
    longest = core.config.connections_max_idle
    if link.state is not LinkState.READY or link.outstanding or longest is None:
        return
    due = max(link.last_progress + longest, link.throttled_until)
    if core.wake_at is None or core.wake_at > due:
        yield f"connection {link.link_id} is idle, and nobody will close it in time"


def finished(core: ProducerCore) -> list[PartitionState]:
    """Return the partitions that count as busy, and have nothing to do. A poll drops them."""
    inside: Any = core
    return [state for state in inside._partitions.busy if not state.active]


def still_busy(core: ProducerCore, before: list[PartitionState]) -> Iterator[str]:
    """Yield which of the partitions that were `finished` before a poll still count as busy."""
    for state in finished(core):
        if state in before:
            yield f"{state.where} has nothing to do, and counts as busy"


def left_over(core: ProducerCore) -> Iterator[str]:
    """Yield what an engine keeps although each record has its outcome."""
    inside: Any = core
    kept = [state for state in inside._partitions.retired if not state.active]
    if kept:
        yield f"{len(kept)} partitions of deleted topics are kept"


def _link(link: Link) -> Iterator[str]:
    outstanding = len(link.outstanding)
    if link.window.outstanding != outstanding:
        yield f"connection {link.link_id} waits for {outstanding}, not {link.window.outstanding}"
    nbytes = sum(request.nbytes for request in link.outstanding.values())
    if link.bytes_in_flight != nbytes:
        yield f"connection {link.link_id} has {nbytes} bytes in flight, not {link.bytes_in_flight}"

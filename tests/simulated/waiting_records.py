"""The judge of waiting records: a record that nothing holds back is sent in the poll that may.

A producer that lets it wait for the next event, or for its linger time after a flush, delivers it
all the same. Only the plain case is judged, in which no option and no state of the protocol can
forbid the batch: nothing of its partition is on its way or in doubt, and the connection to the
leader has no unanswered request.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioidem._engine import ProducerCore
from aioidem._engine.links import Link, LinkState
from aioidem._engine.partition import PartitionState

__all__ = ["held_back"]


def held_back(core: ProducerCore, now: float) -> Iterator[str]:
    """Yield the partitions that have a record to send after a poll, which nothing holds back.

    Args:
        core: The engine, just polled.
        now: The time of the poll, in seconds.
    """
    if core.config.transactional_id is not None or core.fatal_error is not None:
        return
    for state in core.partitions.values():
        ripe = _ripe(core, state, now)
        if ripe is None or state.batches.unresolved or state.batches.outstanding:
            continue
        if now < state.setbacks.retry_at:
            continue
        link = _free_link(core, state, now)
        if link is not None and _may_number(core, state):
            yield f"{state.where} has a record that {ripe}, and connection {link.link_id} is free"


def _ripe(core: ProducerCore, state: PartitionState, now: float) -> str | None:
    """Say why the first record of a queue need not linger; None if it may, or there is none."""
    queue, config = state.queue, core.config
    if not queue.records or queue.draft is not None or config.compression_type != "none":
        return None
    first = queue.records[0]
    if first.generation < core.accumulator.appender.generation:
        return "was queued before a flush"
    if now >= first.queued_at + config.linger:
        return "has lingered"
    return "fills a batch" if queue.bytes >= config.batch_size else None


def _free_link(core: ProducerCore, state: PartitionState, now: float) -> Link | None:
    """Return the connection to a partition's leader, if nothing is unanswered on it."""
    leader = core.cluster.leader_of(state.topic, state.partition)
    route = state.leadership.route
    if leader is None or route is None:
        return None
    if (route.leader_id, route.leader_epoch) != (leader.leader_id, leader.leader_epoch):
        return None
    link = core.connections.links.get(route.link_id)
    if link is None or link.state is not LinkState.READY or link.outstanding:
        return None
    if not link.identified or now < link.throttled_until or link.discovery.holds_up():
        return None
    return link


def _may_number(core: ProducerCore, state: PartitionState) -> bool:
    """Whether the partition has a producer id and epoch for its next batch."""
    if not state.idempotent:
        return True
    identity = core.identity.current
    return state.ledger.identity is identity is not None and not state.ledger.bump_wanted

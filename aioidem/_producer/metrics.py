"""What a producer is doing right now: frozen snapshots with a docstring per field. No registry, no
exporter.
"""

from __future__ import annotations

from dataclasses import dataclass

from aioidem._engine import ProducerCore
from aioidem._engine.connections import Connections
from aioidem._engine.links import Link, LinkState
from aioidem._engine.partition import PartitionState
from aioidem._engine.window_limit import window_reason
from aioidem.abc import NullProducerMetricsCollector, ProducerMetricsCollector

__all__ = [
    "ConnectionStatistics",
    "NullProducerMetricsCollector",  # aiokafka has the two in its module of this name
    "PartitionStatistics",
    "ProducerMetricsCollector",
    "ProducerStatistics",
    "snapshot",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """One partition that the producer has written to."""

    topic: str
    partition: int
    window: int
    """Batches the leader is known to deduplicate: the limit of the span (KIP-1269)."""
    window_reason: str
    """Why the window is what it is, in words: what the leader says, why it was not asked, or the
    option that binds instead. For people; its wording may change."""
    span: int
    """Batches from the oldest unresolved one to the newest sent, inclusive."""
    max_span: int
    """The widest span so far."""
    in_flight: int
    """Batches outstanding at the leader."""
    in_doubt: int
    """Batches that may have been appended and are being asked about."""
    pending_records: int
    """Records not sealed into a batch yet."""
    leader: int
    """Node id of the leader; -1 when there is none."""
    leader_epoch: int
    producer_epoch: int
    """The epoch this partition writes under; -1 before its first batch and without idempotence."""
    next_sequence: int
    """The next record's sequence, unwrapped."""
    acked_offset: int
    """The highest offset acknowledged; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """One connection."""

    node_id: int
    """Negative for a bootstrap address whose node id is not known yet."""
    host: str
    port: int
    connected: bool
    in_flight: int
    """Requests outstanding."""
    rtt: float | None
    """Smoothed seconds from a request to its answer; None before the first."""
    produce_version: int
    window_discovery: str
    """What is known of the broker and Produce v14, whose answers name windows: "answers in v14",
    "not offered", "not granted" (DESCRIBE_CONFIGS), "held back" (it did not answer v14, and is
    tried again), or a passing state. For people; its wording may change."""
    throttled_until: float
    """On the event loop's clock; 0.0 when never throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """A whole producer."""

    producer_id: int
    """-1 until the broker has given one, and without idempotence."""
    producer_epoch: int
    records_queued: int
    """Records without an outcome."""
    records_acked: int
    records_not_written: int
    records_unknown: int
    bytes_acked: int
    batches_sent: int
    """Batches written, resends included."""
    batches_retried: int
    batches_split: int
    epoch_bumps: int
    data_loss_events: int
    """How often a broker turned out to have lost acknowledged data, or this producer's state."""
    buffer_bytes_used: int
    buffer_waiters: int
    """Callers waiting for room."""
    partitions: tuple[PartitionStatistics, ...]
    connections: tuple[ConnectionStatistics, ...]


def snapshot(core: ProducerCore) -> ProducerStatistics:
    """The engine's state as plain data."""
    identity, counters, budget = core.current_identity, core.counters, core.budget
    partitions, connections = core.partitions, core.connections
    return ProducerStatistics(
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.epoch,
        records_queued=core.unsettled,
        records_acked=counters.records_acked,
        records_not_written=counters.records_not_written,
        records_unknown=counters.records_unknown,
        bytes_acked=counters.bytes_acked,
        batches_sent=counters.batches_sent,
        batches_retried=counters.batches_retried,
        batches_split=counters.batches_split,
        epoch_bumps=core.epoch_bumps,
        data_loss_events=counters.data_loss_events,
        buffer_bytes_used=budget.used,
        buffer_waiters=budget.waiting,
        partitions=tuple(_partition(core, state) for state in partitions.values()),
        connections=tuple(_connection(connections, link) for link in connections.links.values()),
    )


def _partition(core: ProducerCore, state: PartitionState) -> PartitionStatistics:
    cluster = core.cluster
    view = cluster.leader_of(state.topic, state.partition)
    identity = state.ledger.identity
    return PartitionStatistics(
        topic=state.topic,
        partition=state.partition,
        window=state.window.limit,
        window_reason=window_reason(state, core.link_of(state), core.config),
        span=state.span,
        max_span=state.window.max_span,
        in_flight=state.outstanding,
        in_doubt=state.in_doubt,
        pending_records=len(state.queue.records),
        leader=-1 if view is None else view.leader_id,
        leader_epoch=-1 if view is None else view.leader_epoch,
        producer_epoch=-1 if identity is None else identity.epoch,
        next_sequence=state.ledger.next,
        acked_offset=state.acked_offset,
    )


def _connection(connections: Connections, link: Link) -> ConnectionStatistics:
    node = connections.nodes[link.node_id]
    return ConnectionStatistics(
        node_id=link.node_id,
        host=node.host,
        port=node.port,
        connected=link.state is LinkState.READY,
        in_flight=link.window.outstanding,
        rtt=link.rtt,
        produce_version=link.produce_version,
        window_discovery=link.discovery.state.value,
        throttled_until=link.throttled_until,
    )

"""Snapshots of what a producer is doing: frozen dataclasses, without a registry or an exporter."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aioidem._engine import ProducerCore
from aioidem._engine.connections import Connections
from aioidem._engine.links import Link, LinkState
from aioidem._engine.partition import PartitionState
from aioidem._engine.samples import Distribution
from aioidem._engine.window_reason import window_reason
from aioidem._producer.metric_table import readings
from aioidem.abc import NullProducerMetricsCollector, ProducerMetricsCollector

__all__ = [
    "ConnectionStatistics",
    "LatencyStatistics",
    # This class and `ProducerMetricsCollector` are also here, because aiokafka has both in its
    # module `metrics` (not released yet).
    "NullProducerMetricsCollector",
    "PartitionStatistics",
    "ProducerMetricsCollector",
    "ProducerStatistics",
    "shaped",
    "snapshot",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """The state of one partition to which the producer has written."""

    topic: str
    partition: int
    window: int
    """How many batches the leader is known to deduplicate: the limit of `span` (KIP-1269)."""
    window_reason: str
    """Why the window has this size, in words: what the leader says, why it was not asked, or which
    option limits the batches instead. It is meant for people, and its wording may change."""
    span: int
    """How many batches lie between the oldest one without an outcome and the newest sent one,
    both included."""
    max_span: int
    """The largest `span` so far."""
    in_flight: int
    """How many batches were sent to the leader and are unanswered."""
    in_doubt: int
    """How many batches may or may not be in the log, because no answer has decided it yet."""
    pending_records: int
    """How many records are queued and not in a sealed batch yet."""
    leader: int
    """The leader's node id; -1 if there is no leader."""
    leader_epoch: int
    """The leader epoch; -1 if it is not known."""
    producer_epoch: int
    """The producer epoch of this partition's batches; -1 before the first batch and without
    idempotence."""
    next_sequence: int
    """The next record's sequence number, which is not reset to 0 after 2^31 - 1."""
    acked_offset: int
    """The highest acknowledged offset; -1 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """The state of one connection to a broker."""

    node_id: int
    """The broker's node id; negative for a bootstrap address whose node id is not known yet."""
    host: str
    port: int
    connected: bool
    in_flight: int
    """How many requests are unanswered."""
    rtt: float | None
    """The smoothed time from a request to its answer, in seconds; None before the first answer."""
    produce_version: int
    """The version of Produce requests on this connection."""
    window_discovery: str
    """Whether the broker's answers name windows, as Produce v14 does (KIP-1269): "answers in v14",
    "not offered", "not granted" (the ACL DESCRIBE_CONFIGS is missing), "held back" (it did not
    answer v14, which is tried again later), or a passing state. It is meant for people, and its
    wording may change."""
    throttled_until: float
    """When the broker's throttling ends, on the event loop's clock; 0.0 if it never throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStatistics:
    """Durations of the last 30 to 60 seconds, in seconds; percentiles are off by at most 1 %.

    Each is None if there was none.
    """

    average: float | None
    p50: float | None
    """Half of them were no longer."""
    p95: float | None
    p99: float | None
    p999: float | None
    """99.9 % of them were no longer."""
    largest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """The state of a producer, with its counters since the start."""

    producer_id: int
    """The producer id; -1 before a broker has given one and without idempotence."""
    producer_epoch: int
    """The producer epoch; -1 while `producer_id` is -1."""
    records_queued: int
    """How many records have no outcome yet."""
    records_acked: int
    records_not_written: int
    records_unknown: int
    bytes_acked: int
    batches_sent: int
    """How many batches were written to connections, retries included."""
    batches_retried: int
    batches_split: int
    epoch_bumps: int
    data_loss_events: int
    """How often a broker turned out to have lost acknowledged records or this producer's state."""
    buffer_bytes_used: int
    """The bytes of `buffer_memory` in use: records with their objects, and batches in flight."""
    buffer_waiters: int
    """How many calls wait for room in the buffer."""
    records_sent_per_second: float
    """Records sent per second, those sent again included, in the last 30 to 60 seconds; right after
    the start the sum is divided by 30 seconds, as in Java's metrics."""
    bytes_sent_per_second: float
    """Bytes of requests sent per second, over the same time."""
    errors_per_second: float
    """Records that failed per second, over the same time."""
    delivery_latency: LatencyStatistics
    """The time from a batch's first record to its acknowledgement; one duration for each batch."""
    request_latency: LatencyStatistics
    """The time until the answer to a Produce request."""
    partitions: tuple[PartitionStatistics, ...]
    connections: tuple[ConnectionStatistics, ...]


def shaped(core: ProducerCore, now: float) -> dict[str, dict[str, float]]:
    """Return all metrics, by group and by name, as kafka-python's producer does.

    Args:
        core: The producer's engine.
        now: The time on the event loop's clock, in seconds.
    """
    groups: dict[str, dict[str, float]] = {}
    for group, tags, metric, value in readings(core, now):
        name = f"{group.name}.{'-'.join(tags)}" if tags else group.name
        groups.setdefault(name, {})[metric.name] = value
    groups["kafka-metrics-count"] = {"count": float(1 + sum(map(len, groups.values())))}
    return groups


def snapshot(core: ProducerCore, now: float) -> ProducerStatistics:
    """Return the statistics of a producer, as plain data that does not change any more.

    Args:
        core: The producer's engine.
        now: The time on the event loop's clock, in seconds.
    """
    meters = core.meters
    meters.fold(now)
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
        buffer_bytes_used=budget.in_use,
        buffer_waiters=budget.waiting,
        records_sent_per_second=meters.per_request.rate(now),
        bytes_sent_per_second=meters.requests.rate(now),
        errors_per_second=meters.errors.rate(now),
        delivery_latency=_latency(meters.delivery, now),
        request_latency=_latency(meters.latency, now),
        partitions=tuple(_partition(core, state) for state in partitions.values()),
        connections=tuple(_connection(connections, link) for link in connections.links.values()),
    )


def _latency(durations: Distribution, now: float) -> LatencyStatistics:
    def known(value: float) -> float | None:
        return None if math.isnan(value) else value

    return LatencyStatistics(
        average=known(durations.average(now)),
        p50=known(durations.percentile(0.5, now)),
        p95=known(durations.percentile(0.95, now)),
        p99=known(durations.percentile(0.99, now)),
        p999=known(durations.percentile(0.999, now)),
        largest=known(durations.largest(now)),
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
        span=state.batches.span,
        max_span=state.window.max_span,
        in_flight=state.batches.outstanding,
        in_doubt=state.batches.in_doubt,
        pending_records=state.queue.count,
        leader=-1 if view is None else view.leader_id,
        leader_epoch=-1 if view is None else view.leader_epoch,
        producer_epoch=-1 if identity is None else identity.epoch,
        next_sequence=state.ledger.next,
        acked_offset=state.log.offset,
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

"""The table of all metrics: the name, the meaning and the source of each.

The names, units and meanings in the groups `producer-...` are those of Java's producer 4.3. The
groups `aioidem-...` have what Java's producer does not count.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from aioidem._engine import ProducerCore
from aioidem._engine.connections import Connections
from aioidem._engine.links import LinkState
from aioidem._engine.memory import ByteBudget
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.meters import Meters, NodeMeter, TopicMeter
from aioidem._engine.outcomes import Counters
from aioidem._engine.partition import PartitionState
from aioidem._engine.samples import Distribution, Sensor

__all__ = ["GROUPS", "Group", "Metric", "MetricKind", "Node", "Parts", "Reading", "readings"]

_S = TypeVar("_S")
_MS = 1e3
_NS = 1e9
_BATCH_HEADER = 61
"""The bytes of a batch's header, which Java counts as a part of each record's size."""


class MetricKind(enum.Enum):
    """How a metric's value changes."""

    COUNTER = "counter"
    """It is 0 when the producer is made, and never falls."""
    GAUGE = "gauge"
    """It rises and falls."""


class Metric(NamedTuple, Generic[_S]):
    """One metric of the things of one kind, such as topics."""

    name: str
    kind: MetricKind
    text: str
    """What the value is, with its unit."""
    unit: str
    """The unit in the notation of UCUM, with what is counted in braces: "ms", "By", "{record}/s".
    """
    read: Callable[[_S, float], float]
    """Returns the value; the arguments are the thing, and the time in seconds."""


class Parts(NamedTuple):
    """The parts of the engine that metrics are read from."""

    core: ProducerCore
    meters: Meters
    counters: Counters
    budget: ByteBudget
    metadata: MetadataRefresher
    connections: Connections


class Node(NamedTuple):
    """A broker, with the parts of the engine that know it."""

    parts: Parts
    node_id: int


def _counter(name: str, text: str, unit: str, read: Callable[[_S], float]) -> Metric[_S]:
    return Metric(name, MetricKind.COUNTER, text, unit, lambda thing, _: read(thing))


def _gauge(name: str, text: str, unit: str, read: Callable[[_S], float]) -> Metric[_S]:
    return Metric(name, MetricKind.GAUGE, text, unit, lambda thing, _: read(thing))


def _sum(
    name: str, what: str, unit: str, sensor: Callable[[_S], Sensor]
) -> tuple[Metric[_S], Metric[_S]]:
    """Return the rate and the total of the numbers that a sensor has recorded."""
    return _rated(
        _counter(f"{name}-total", what, unit, lambda thing: sensor(thing).total),
        lambda thing, now: sensor(thing).rate(now),
    )


def _count(
    name: str, what: str, unit: str, sensor: Callable[[_S], Sensor]
) -> tuple[Metric[_S], Metric[_S]]:
    """Return the rate and the total of how many numbers a sensor has recorded."""
    return _rated(
        _counter(f"{name}-total", what, unit, lambda thing: sensor(thing).count),
        lambda thing, now: sensor(thing).frequency(now),
    )


def _rated(total: Metric[_S], rate: Callable[[_S, float], float]) -> tuple[Metric[_S], Metric[_S]]:
    """Return a total whose name ends in `-total`, behind its rate per second."""
    name = total.name.removesuffix("total") + "rate"
    text, unit = f"{total.text}, per second", f"{total.unit}/s"
    return Metric(name, MetricKind.GAUGE, text, unit, rate), total


def _average(
    name: str, what: str, unit: str, sensor: Callable[[_S], Sensor], more: float = 0.0
) -> tuple[Metric[_S], Metric[_S]]:
    """Return the average and the largest of the numbers of the last minute."""
    scale = _MS if unit == "ms" else 1.0
    return (
        Metric(
            f"{name}-avg",
            MetricKind.GAUGE,
            f"average {what}",
            unit,
            lambda thing, now: sensor(thing).average(now) * scale + more,
        ),
        Metric(
            f"{name}-max",
            MetricKind.GAUGE,
            f"largest {what}",
            unit,
            lambda thing, now: sensor(thing).largest(now) * scale + more,
        ),
    )


def _ratio(name: str, what: str, sensor: Callable[[_S], Sensor]) -> Metric[_S]:
    return Metric(
        name,
        MetricKind.GAUGE,
        f"fraction of the time {what}",
        "1",
        lambda thing, now: sensor(thing).rate(now),
    )


def _nanoseconds(name: str, what: str, sensor: Callable[[_S], Sensor]) -> Metric[_S]:
    return _counter(name, f"{what}, in ns", "ns", lambda thing: sensor(thing).total * _NS)


def _spent(name: str, what: str) -> Metric[Parts]:
    return _counter(
        f"{name}-time-ns-total",
        f"time spent {what}, in ns",
        "ns",
        lambda parts: parts.meters.spent.get(name, 0.0) * _NS,
    )


def _of(pick: Callable[[Meters], Sensor]) -> Callable[[Parts], Sensor]:
    return lambda parts: pick(parts.meters)


def _core(read: Callable[[Parts], float]) -> Callable[[Parts], float]:
    """Return a function as it is; type checkers then know its argument."""
    return read


def _node(pick: Callable[[NodeMeter], Sensor]) -> Callable[[NodeMeter], Sensor]:
    """Return a function as it is; type checkers then know its argument."""
    return pick


def _topic(pick: Callable[[TopicMeter], Sensor]) -> Callable[[TopicMeter], Sensor]:
    """Return a function as it is; type checkers then know its argument."""
    return pick


def _percentiles(
    name: str, what: str, pick: Callable[[Meters], Distribution]
) -> Iterator[Metric[Parts]]:
    for share, suffix in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"), (0.999, "p999")):
        yield Metric(
            f"{name}-{suffix}",
            MetricKind.GAUGE,
            f"{100 * share:g} % of {what} were no longer, in ms",
            "ms",
            lambda parts, now, share=share: pick(parts.meters).percentile(share, now) * _MS,  # type: ignore[misc]
        )


def _metadata_age(parts: Parts, now: float) -> float:
    refreshed = parts.metadata.refreshed_at
    return math.nan if refreshed is None else now - refreshed


def _in_flight(parts: Parts) -> int:
    return sum(link.window.outstanding for link in parts.connections.links.values())


def _connected(parts: Parts) -> int:
    return sum(link.state is LinkState.READY for link in parts.connections.links.values())


# -- Java's ----------------------------------------------------------------------------------------

_PRODUCER: tuple[Metric[Parts], ...] = (
    *_average("batch-size", "size of a batch on the wire, in bytes", "By",
              _of(lambda m: m.batch_size)),
    *_count("batch-split", "batches that were split, because a broker refused their size",
            "{batch}", _of(lambda m: m.splits)),
    _gauge("buffer-available-bytes", "bytes of `buffer_memory` that are not in use",
           "By", lambda parts: max(0, parts.budget.capacity - parts.budget.in_use)),
    *_count("buffer-exhausted", "sends that found no room in the buffer (`BufferFullError`, or "
            "none within `max_block`)", "{send}", _of(lambda m: m.exhausted)),
    _gauge("buffer-total-bytes", "`buffer_memory`, in bytes", "By",
           lambda parts: parts.budget.capacity),
    _ratio("bufferpool-wait-ratio", "that calls waited for room in the buffer",
           _of(lambda m: m.room)),
    _nanoseconds("bufferpool-wait-time-ns-total", "time that calls waited for room in the buffer",
                 _of(lambda m: m.room)),
    Metric("compression-rate-avg", MetricKind.GAUGE,
           "average size of a batch's compressed records, per byte before compression",
           "1", lambda parts, now: parts.meters.compression.average(now)),
    *_count("connection-close", "connections that were closed", "{connection}",
            _of(lambda m: m.closed)),
    _gauge("connection-count", "connections that are open", "{connection}", _connected),
    *_count("connection-creation", "connections that were opened", "{connection}",
            _of(lambda m: m.opened)),
    *_count("failed-authentication", "connections whose authentication failed",
            "{connection}", _of(lambda m: m.refused)),
    *_count("failed-reauthentication", "connections whose SASL session could not be renewed",
            "{connection}", _of(lambda m: m.not_renewed)),
    _spent("flush", "in `flush`"),
    *_sum("incoming-byte", "bytes read from all brokers", "By", _of(lambda m: m.answers)),
    _ratio("io-ratio", "that the producer's task worked", _of(lambda m: m.work)),
    Metric("io-time-ns-avg", MetricKind.GAUGE, "average length of a turn of the producer's task, "
           "in ns", "ns", lambda parts, now: parts.meters.work.average(now) * _NS),
    _nanoseconds("io-time-ns-total", "time that the producer's task worked", _of(lambda m: m.work)),
    _ratio("io-wait-ratio", "that the producer's task waited", _of(lambda m: m.pauses)),
    Metric("io-wait-time-ns-avg", MetricKind.GAUGE, "average time between two turns of the "
           "producer's task, in ns", "ns",
           lambda parts, now: parts.meters.pauses.average(now) * _NS),
    _nanoseconds("io-wait-time-ns-total", "time that the producer's task waited",
                 _of(lambda m: m.pauses)),
    Metric("metadata-age", MetricKind.GAUGE, "seconds since the last metadata; NaN before it",
           "s", _metadata_age),
    _spent("metadata-wait", "waiting for a topic's metadata, by calls and by the first record"),
    Metric("network-io-rate", MetricKind.GAUGE, "requests and answers, per second",
           "{operation}/s", lambda parts, now: parts.meters.requests.frequency(now)
           + parts.meters.answers.frequency(now)),
    _counter("network-io-total", "requests and answers on all connections",
             "{operation}", lambda parts: parts.meters.requests.count + parts.meters.answers.count),
    *_sum("outgoing-byte", "bytes sent to all brokers", "By", _of(lambda m: m.requests)),
    *_average("produce-throttle-time", "time for which an answer to Produce throttled the "
              "producer, in ms", "ms", _of(lambda m: m.throttle)),
    *_average("reauthentication-latency", "time to renew a SASL session, in ms",
              "ms", _of(lambda m: m.renewed)),
    *_sum("record-error", "records that failed, without those of aborted transactions",
          "{record}", _of(lambda m: m.errors)),
    *_average("record-queue-time", "time from a batch's first record to the sending, in ms",
              "ms", _of(lambda m: m.queue_time)),
    *_sum("record-retry", "records that were sent again", "{record}", _of(lambda m: m.retries)),
    *_sum("record-send", "records that were sent, those sent again included",
          "{record}", _of(lambda m: m.per_request)),
    *_average("record-size", "size of a batch's largest record, in bytes, at most, and with the "
              "batch's header", "By", _of(lambda m: m.record_size), more=_BATCH_HEADER),
    Metric("records-per-request-avg", MetricKind.GAUGE, "average records in a Produce request",
           "{record}", lambda parts, now: parts.meters.per_request.average(now)),
    *_average("request-latency", "time until the answer to a Produce request, in ms",
              "ms", _of(lambda m: m.latency)),
    *_count("request", "requests sent", "{request}", _of(lambda m: m.requests)),
    *_average("request-size", "size of a request, in bytes", "By", _of(lambda m: m.requests)),
    _gauge("requests-in-flight", "requests without an answer yet", "{request}", _in_flight),
    *_count("response", "answers received", "{response}", _of(lambda m: m.answers)),
    *_count("select", "turns of the producer's task", "{turn}", _of(lambda m: m.work)),
    _counter("successful-authentication-no-reauth-total", "connections that were authenticated "
             "with SASL, as in Java's clients",
             "{connection}", _core(lambda parts: parts.meters.authenticated.count)),
    *_count("successful-authentication", "connections that were authenticated with SASL",
            "{connection}", _of(lambda m: m.authenticated)),
    *_count("successful-reauthentication", "SASL sessions that were renewed (KIP-368)",
            "{session}", _of(lambda m: m.renewed)),
    _spent("txn-abort", "in `abort_transaction`"),
    _spent("txn-begin", "in `begin_transaction`"),
    _spent("txn-commit", "in `commit_transaction`"),
    _spent("txn-init", "registering the transactional id"),
    _spent("txn-prepare", "preparing transactions (KIP-939), which aioidem does not do: 0"),
    _spent("txn-send-offsets", "in `send_offsets_to_transaction`"),
    _gauge("waiting-threads", "calls that wait for room in the buffer",
           "{call}", _core(lambda parts: parts.budget.waiting)),
)  # fmt: skip

_NODE: tuple[Metric[NodeMeter], ...] = (
    *_sum("incoming-byte", "bytes read from the broker", "By", _node(lambda node: node.received)),
    *_sum("outgoing-byte", "bytes sent to the broker", "By", _node(lambda node: node.sent)),
    *_average(
        "request-latency",
        "time until the broker's answer to a Produce request, in ms",
        "ms",
        _node(lambda node: node.latency),
    ),
    *_count("request", "requests sent to the broker", "{request}", _node(lambda node: node.sent)),
    *_average(
        "request-size",
        "size of a request to the broker, in bytes",
        "By",
        _node(lambda node: node.sent),
    ),
    *_count("response", "answers of the broker", "{response}", _node(lambda node: node.received)),
)

_TOPIC: tuple[Metric[TopicMeter], ...] = (
    *_sum(
        "byte",
        "bytes of the topic's batches that were sent",
        "By",
        _topic(lambda topic: topic.bytes),
    ),
    Metric(
        "compression-rate",
        MetricKind.GAUGE,
        "average size of a batch's compressed records, per byte before compression",
        "1",
        lambda topic, now: topic.compression.average(now),
    ),
    *_sum(
        "record-error",
        "records of the topic that failed",
        "{record}",
        _topic(lambda topic: topic.errors),
    ),
    *_sum(
        "record-retry",
        "records of the topic that were sent again",
        "{record}",
        _topic(lambda topic: topic.retries),
    ),
    *_sum(
        "record-send",
        "records of the topic that were sent",
        "{record}",
        _topic(lambda topic: topic.records),
    ),
)

# -- aioidem's own ---------------------------------------------------------------------------------


def _doubts(how: str, name: str, text: str) -> Metric[Parts]:
    return _counter(
        f"doubt-{name}-total",
        f"batches in doubt that {text}",
        "{batch}",
        lambda parts: parts.meters.doubts.get(how, 0),
    )


_OWN: tuple[Metric[Parts], ...] = (
    _gauge("batches-in-doubt", "batches that may or may not be in the log now", "{batch}",
           lambda parts: sum(state.batches.in_doubt for state in parts.core.partitions.values())),
    _counter("batch-send-total", "batches that were sent, those sent again included",
             "{batch}", lambda parts: parts.counters.batches_sent),
    _counter("batch-retry-total", "batches that were sent again",
             "{batch}", lambda parts: parts.counters.batches_retried),
    _gauge("buffer-used-bytes", "bytes of `buffer_memory` in use: records with their objects, and "
           "batches in flight", "By", lambda parts: parts.budget.in_use),
    _counter("byte-acked-total", "bytes of acknowledged records, before compression",
             "By", lambda parts: parts.counters.bytes_acked),
    _counter("data-loss-total", "times that a broker had lost acknowledged records or this "
             "producer's state", "{event}", lambda parts: parts.counters.data_loss_events),
    *_average("delivery-latency", "time from a batch's first record to its acknowledgement, in ms",
              "ms", _of(lambda m: m.delivery)),
    *_percentiles("delivery-latency", "the times from a batch's first record to its "
                  "acknowledgement", lambda m: m.delivery),
    _doubts("resend", "resent", "turned out to be stored when they were resent"),
    _doubts("probe", "probed", "turned out to be stored by probes, newest first"),
    _doubts("asked", "asked", "turned out to be stored after the leader named its newest batch"),
    _doubts("read back", "read-back", "were found by reading the log"),
    _doubts("unknown", "unknown", "were never resolved: their records ended UNKNOWN"),
    _counter("epoch-bump-total", "raises of the producer epoch",
             "{bump}", lambda parts: parts.core.epoch_bumps),
    *_average("first-ack-gate-time", "time that a partition had only one batch in flight, until "
              "the leader acknowledged it, in ms", "ms", _of(lambda m: m.gate)),
    _nanoseconds("first-ack-gate-time-ns-total", "time that partitions had only one batch in "
                 "flight, until the leader acknowledged it", _of(lambda m: m.gate)),
    _counter("record-acked-total", "records that ended ACKED",
             "{record}", lambda parts: parts.counters.records_acked),
    _counter("record-not-written-total",
             "records that ended NOT_WRITTEN, those of aborted transactions too",
             "{record}", lambda parts: parts.counters.records_not_written),
    _counter("record-unknown-total", "records that ended UNKNOWN",
             "{record}", lambda parts: parts.counters.records_unknown),
    _gauge("records-queued", "records without an outcome", "{record}",
           lambda parts: parts.core.unsettled),
    *_percentiles("request-latency", "the times until the answer to a Produce request",
                  lambda m: m.latency),
)  # fmt: skip


def _rtt(node: Node) -> float:
    times = [
        link.rtt
        for link in node.parts.connections.links.values()
        if link.node_id == node.node_id and link.rtt is not None
    ]
    return times[0] * _MS if times else math.nan


def _throttled(node: Node, now: float) -> float:
    links = node.parts.connections.links.values()
    untils = [link.throttled_until for link in links if link.node_id == node.node_id]
    return max(0.0, max(untils, default=0.0) - now) * _MS


def _throttle(node: Node) -> Sensor:
    return node.parts.meters.nodes[node.node_id].throttle


_OWN_NODE: tuple[Metric[Node], ...] = (
    _gauge("rtt", "smoothed round-trip time, in ms; NaN without an answer", "ms", _rtt),
    Metric(
        "throttled", MetricKind.GAUGE, "time until the throttling ends, in ms", "ms", _throttled
    ),
    *_average("throttle-time", "throttle time in an answer to Produce, in ms", "ms", _throttle),
    _nanoseconds("throttle-time-ns-total", "throttle times of the answers to Produce", _throttle),
)

_OWN_PARTITION: tuple[Metric[PartitionState], ...] = (
    _gauge(
        "batches-in-doubt",
        "batches that may or may not be in the log now",
        "{batch}",
        lambda state: state.batches.in_doubt,
    ),
    _gauge(
        "batches-in-flight",
        "batches without an answer yet",
        "{batch}",
        lambda state: state.batches.outstanding,
    ),
    _gauge(
        "records-queued", "records that are not in a batch yet", "{record}", lambda s: s.queue.count
    ),
    _gauge(
        "window-limit",
        "most batches that the leader is known to deduplicate (KIP-1269)",
        "{batch}",
        lambda state: state.window.limit,
    ),
    _gauge(
        "window-span",
        "batches from the oldest without an outcome to the newest sent one, both included",
        "{batch}",
        lambda state: state.batches.span,
    ),
    _gauge(
        "window-span-max", "largest span so far", "{batch}", lambda state: state.window.max_span
    ),
)

_OWN_ERROR: tuple[Metric[tuple[Parts, str]], ...] = (
    _counter(
        "record-error-total",
        "records that failed with errors of this class",
        "{record}",
        lambda thing: thing[0].meters.kinds.get(thing[1], 0),
    ),
)


class Group(NamedTuple):
    """The metrics of all things of one kind."""

    name: str
    tags: tuple[str, ...]
    """What tells the things apart, such as a topic's name."""
    text: str
    metrics: Sequence[Metric[object]]
    things: Callable[[Parts], Sequence[tuple[tuple[str, ...], object]]]
    """Returns each thing, with the values of its tags."""


def _group(
    name: str,
    tags: tuple[str, ...],
    text: str,
    metrics: Sequence[Metric[_S]],
    things: Callable[[Parts], Sequence[tuple[tuple[str, ...], _S]]],
) -> Group:
    return Group(name, tags, text, metrics, things)  # type: ignore[arg-type]


GROUPS: tuple[Group, ...] = (
    _group("producer-metrics", (), "the producer", _PRODUCER, lambda parts: [((), parts)]),
    _group(
        "producer-node-metrics",
        ("node-id",),
        "one broker; `node--1` is the first bootstrap address",
        _NODE,
        lambda parts: [((f"node-{number}",), node) for number, node in parts.meters.nodes.items()],
    ),
    _group(
        "producer-topic-metrics",
        ("topic",),
        "one topic",
        _TOPIC,
        lambda parts: [((name,), topic) for name, topic in parts.meters.topics.items()],
    ),
    _group("aioidem-metrics", (), "the producer", _OWN, lambda parts: [((), parts)]),
    _group(
        "aioidem-node-metrics",
        ("node-id",),
        "one broker",
        _OWN_NODE,
        lambda parts: [((f"node-{number}",), Node(parts, number)) for number in parts.meters.nodes],
    ),
    _group(
        "aioidem-partition-metrics",
        ("topic", "partition"),
        "one partition to which the producer has written",
        _OWN_PARTITION,
        lambda parts: [
            ((topic, str(number)), state)
            for (topic, number), state in parts.core.partitions.items()
        ],
    ),
    _group(
        "aioidem-error-metrics",
        ("error",),
        "one class of errors",
        _OWN_ERROR,
        lambda parts: [((kind,), (parts, kind)) for kind in parts.meters.kinds],
    ),
)
"""All groups, Java's first."""


class Reading(NamedTuple):
    """The value of one metric of one thing."""

    group: Group
    tags: tuple[str, ...]
    metric: Metric[object]
    value: float


def readings(core: ProducerCore, now: float) -> Iterator[Reading]:
    """Yield the value of every metric.

    Args:
        core: the producer's engine.
        now: seconds.
    """
    parts = Parts(core, core.meters, core.counters, core.budget, core.metadata, core.connections)
    parts.meters.fold(now)
    for group in GROUPS:
        for tags, thing in group.things(parts):
            for metric in group.metrics:
                yield Reading(group, tags, metric, float(metric.read(thing, now)))

"""Findings about batches in flight: the window, and the rate that it allows over this round trip.

The rate of one partition is bytes per batch x batches in flight / round trip. A connection has one
broker's partitions; its requests in flight are limited by an option, and the bytes of each request
too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from aioidem._doctor.facts import BrokerSeen, Facts, TopicSeen
from aioidem._doctor.finding import Finding, FindingName, Severity
from aioidem._doctor.permissions import DENIED
from aioidem._doctor.questions import PRODUCE_WITH_WINDOW, RETAIN
from aioidem._protocol.topic_limit import limit_of

__all__ = ["Reach", "has_window", "in_flight_findings", "reach_of", "window_at"]

_N = FindingName
_DEFAULT_WINDOW: Final = 5
_RECORD_MEMORY: Final = 450
"""The memory that a record takes besides its bytes, in bytes (the option buffer_memory)."""
_COPIES: Final = 1.5
"""Memory for records and their encoded batches, over the records alone: a third is for batches."""


class Reach(NamedTuple):
    """The bytes per second that a topic's partitions allow.

    Attributes:
        fixed: with batches of batch_size.
        grown: with the largest batches that the topic is known to accept.
        partitions: how many partitions have a leader whose round trip is known.
        longest: the longest round trip to one of the leaders, in seconds.
        in_flight: the most batches of one partition in flight.
    """

    fixed: float
    grown: float
    partitions: int
    longest: float
    in_flight: int


def in_flight_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about windows, rates and memory, topic by topic."""
    for topic in facts.topics:
        windows = {
            window_at(facts, broker, topic.name)
            for broker in facts.brokers
            if broker.produce is not None and _leads(topic, broker)
        }
        if not windows:
            continue
        if has_window(facts):
            yield _window(facts, topic, windows)
            yield from _withheld(facts, topic)
            yield from _below_window(facts, topic, max(windows))
        reach = reach_of(facts, topic)
        if reach is not None:
            yield from _rate(facts, topic, reach)
            yield from _buffer(facts, topic, reach)


def _leads(topic: TopicSeen, broker: BrokerSeen) -> bool:
    return any(part.leader == broker.node_id for part in topic.partitions)


def _tells_window(broker: BrokerSeen) -> bool:
    """Return whether the broker offers the Produce version that names the window (KIP-1269)."""
    return broker.produce is not None and broker.produce[1] >= PRODUCE_WITH_WINDOW


def has_window(facts: Facts) -> bool:
    """Return whether a window limits the batches of a partition, and not only the requests."""
    return facts.config.enable_idempotence and facts.config.broker_dedup == "window"


def window_at(facts: Facts, broker: BrokerSeen, topic: str) -> int:
    """Return how many batches of a partition may be in flight to this leader of the topic."""
    if not has_window(facts):
        return facts.config.max_in_flight_requests_per_connection
    configs = broker.topic_configs.get(topic)
    if not _tells_window(broker) or configs is None or facts.config.window_discovery == "off":
        return _DEFAULT_WINDOW
    return max(configs.number(RETAIN) or _DEFAULT_WINDOW, _DEFAULT_WINDOW)


def reach_of(facts: Facts, topic: TopicSeen) -> Reach | None:
    """Return what the topic's partitions allow; None if no leader's round trip is known."""
    config = facts.config
    most = config.max_in_flight_requests_per_connection
    grown_batch = _grown_batch(facts, topic)
    fixed = grown = longest = 0.0
    partitions = in_flight = 0
    for broker in facts.brokers:
        led = sum(part.leader == broker.node_id for part in topic.partitions)
        trip = broker.round_trip
        if not led or trip is None:
            continue
        trip = max(trip, 1e-6)
        span = min(window_at(facts, broker, topic.name), most)
        on_connection = most * config.max_request_size / trip
        fixed += min(led * span * config.batch_size / trip, on_connection)
        grown += min(led * span * grown_batch / trip, on_connection)
        partitions += led
        longest, in_flight = max(longest, trip), max(in_flight, span)
    return Reach(fixed, grown, partitions, longest, in_flight) if partitions else None


def _grown_batch(facts: Facts, topic: TopicSeen) -> int:
    """Return the largest batch that the producer builds for the topic, in bytes."""
    config = facts.config
    limits = [
        limit_of(each.values, config.compression_type) for each in facts.topic_configs(topic.name)
    ]
    if not config.late_sealing or not limits or None in limits:
        return config.batch_size
    least = min(each for each in limits if each is not None)
    return max(config.batch_size, min(least, config.max_request_size))


def _window(facts: Facts, topic: TopicSeen, windows: set[int]) -> Finding:
    said = " to ".join(str(each) for each in sorted({min(windows), max(windows)}))
    named = any(RETAIN in each.values for each in facts.topic_configs(topic.name))
    return Finding(
        _N.WINDOW,
        Severity.OK,
        f"{topic.name}: {said} batches of a partition may be in flight ({_why(facts, named)})",
    )


def _why(facts: Facts, named: bool) -> str:
    if facts.config.window_discovery == "off":
        return "window_discovery is off"
    if named:
        return f"KIP-1269: {RETAIN}"
    if not any(map(_tells_window, facts.brokers)):
        return "no KIP-1269"
    if facts.config.window_discovery == "on":
        return "KIP-1269: perhaps more, which the producer learns; --write-to shows it"
    return "KIP-1269, but what the topic retains is not told to this client"


def _withheld(facts: Facts, topic: TopicSeen) -> Iterator[Finding]:
    withheld = [
        broker
        for broker in facts.brokers
        if _tells_window(broker)
        and topic.name in broker.topic_configs
        and broker.topic_configs[topic.name].error_code in DENIED
    ]
    if withheld and facts.config.window_discovery == "auto":
        yield Finding(
            _N.WINDOW_WITHHELD,
            Severity.WARNING,
            f"{topic.name}: {', '.join(map(str, withheld))} may allow more than five batches in "
            "flight, and this client may not ask: DESCRIBE_CONFIGS on the topic is not granted",
            "Five batches of a partition are in flight at most.",
            "Grant DESCRIBE_CONFIGS on the topic, or set window_discovery to 'on' if every broker "
            "has KIP-1269.",
        )


def _below_window(facts: Facts, topic: TopicSeen, window: int) -> Iterator[Finding]:
    most = facts.config.max_in_flight_requests_per_connection
    if most < window:
        yield Finding(
            _N.IN_FLIGHT_BELOW_WINDOW,
            Severity.NOTE,
            f"{topic.name}: the window is {window}, and max_in_flight_requests_per_connection is "
            f"{most}",
            f"{most} of the {window} batches that a partition may have in flight are used at most.",
            f"Set max_in_flight_requests_per_connection to {window} or more.",
        )


def _rate(facts: Facts, topic: TopicSeen, reach: Reach) -> Iterator[Finding]:
    grows = reach.grown > reach.fixed
    sentence = (
        f"{topic.name}: {reach.partitions} partition{'s' if reach.partitions > 1 else ''}, "
        f"{reach.in_flight} batches in flight each, round trip {1000 * reach.longest:.1f} ms: "
        f"{_bytes(reach.fixed)}/s with batches of {_bytes(facts.config.batch_size)}"
    )
    if grows:
        sentence += f", {_bytes(reach.grown)}/s if batches grow while they wait"
    wanted = None if facts.wanted is None else facts.wanted.bytes_per_second
    if wanted is None or wanted <= reach.grown:
        if wanted is not None:
            sentence += f"; wanted: {_bytes(wanted)}/s"
        yield Finding(_N.RATE, Severity.OK, sentence)
        return
    yield Finding(
        _N.RATE_NOT_REACHED,
        Severity.WARNING,
        f"{sentence}; wanted: {_bytes(wanted)}/s",
        "Records wait longer and longer, until buffer_memory is full; then send() waits, and "
        "records may end NOT_WRITTEN at their delivery_timeout.",
        _cure(facts, topic, reach, wanted),
    )


def _cure(facts: Facts, topic: TopicSeen, reach: Reach, wanted: float) -> str:
    config = facts.config
    factor = wanted / reach.grown
    batch = math.ceil(_grown_batch(facts, topic) * factor / 1024) * 1024
    ways = [f"batch_size={batch}" + (", if the topic accepts it" if batch > 1_000_000 else "")]
    ways.append(f"{math.ceil(reach.partitions * factor)} partitions")
    window = math.ceil(reach.in_flight * factor)
    if config.max_in_flight_requests_per_connection <= reach.in_flight:
        ways.append(
            f"max_in_flight_requests_per_connection={window} with a window as large "
            f"({RETAIN}={window}, KIP-1269)"
        )
    else:
        ways.append(f"a window of {window} ({RETAIN}, KIP-1269)")
    if any(each.error_code in DENIED for each in facts.topic_configs(topic.name)):
        ways.insert(0, "DESCRIBE_CONFIGS on the topic, so that batches may grow")
    return f"One of these, or a part of several: {'; '.join(ways)}."


def _buffer(facts: Facts, topic: TopicSeen, reach: Reach) -> Iterator[Finding]:
    if facts.wanted is None:
        return
    in_the_air = facts.wanted.bytes_per_second * (reach.longest + facts.config.linger)
    size = facts.wanted.record_size
    objects = 1.0 if size is None else (size + _RECORD_MEMORY) / size
    needed = math.ceil(in_the_air * objects * _COPIES)
    if needed > facts.config.buffer_memory:
        yield Finding(
            _N.BUFFER_TOO_SMALL,
            Severity.WARNING,
            f"{topic.name}: {_bytes(facts.wanted.bytes_per_second)}/s over a round trip of "
            f"{1000 * reach.longest:.1f} ms keep {_bytes(needed)} in memory, and buffer_memory is "
            f"{_bytes(facts.config.buffer_memory)}",
            "The buffer is full before the first acknowledgement comes: send() waits, and the rate "
            "is not reached.",
            f"Set buffer_memory to {2 * needed} or more (twice what is in flight).",
        )


def _bytes(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"

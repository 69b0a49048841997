"""`aioidem broker`: an embedded cluster in the foreground, until a signal.

Invariants:

- The first line on standard output is the bootstrap address, flushed at once, so that a script can
  read it and start clients.
- SIGINT and SIGTERM end the command with status 0: a signal is the normal way to end the command.
- The flags are checked before anything listens.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from aioidem._config import validate_topic
from aioidem._load.plan import (
    DEFAULT_RETAIN,
    MAX_BROKERS,
    MAX_PARTITIONS,
    MAX_RETAIN,
    MAX_RTT_MS,
)
from aioidem._load.usage import UsageError, between, one_line
from aioidem.broker import EmbeddedCluster
from aioidem.errors import RecordError

__all__ = ["BrokerPlan", "TopicPlan", "parse_topic", "plan_broker", "serve"]

_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create before the bootstrap address is printed."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """The checked flags of one `aioidem broker`; `rtt` in seconds, `port` 0 for any free one."""

    brokers: int
    retain: int
    rtt: float
    port: int
    topics: tuple[TopicPlan, ...]


def parse_topic(text: str) -> TopicPlan:
    """Parse the value of `--topic`: `name:partitions`, or `name` for a topic with one partition.

    Raises:
        UsageError: the name is not legal for a topic, or the number is out of range.
    """
    name, colon, count = text.partition(":")
    try:
        validate_topic(name)
    except RecordError as error:
        raise UsageError(f"--topic: {one_line(error)}") from error
    partitions = int(count) if count.isascii() and count.isdecimal() and len(count) < 9 else 0
    if colon and not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"--topic: {text!r}: partitions are a number from 1 to {MAX_PARTITIONS}")
    return TopicPlan(name, partitions or 1)


def plan_broker(
    *,
    brokers: int = 1,
    retain: int = DEFAULT_RETAIN,
    rtt_ms: float = 0.0,
    port: int = 0,
    topics: Sequence[str] = (),
) -> BrokerPlan:
    """Check the flags of `aioidem broker`, and return the cluster that they describe.

    Raises:
        UsageError: a flag is out of range, or a topic is given twice.
    """
    between("--brokers", brokers, 1, MAX_BROKERS)
    between("--retain", retain, DEFAULT_RETAIN, MAX_RETAIN)
    between("--rtt", rtt_ms, 0.0, MAX_RTT_MS)
    # Brokers listen on consecutive ports, starting with this one.
    between("--port", port, 0, _MAX_PORT - brokers + 1)
    planned = tuple(parse_topic(topic) for topic in topics)
    names = [topic.name for topic in planned]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"--topic: {twice[0]} was given twice")
    return BrokerPlan(brokers=brokers, retain=retain, rtt=rtt_ms / 1000, port=port, topics=planned)


def serve(plan: BrokerPlan) -> int:
    """Run the cluster until SIGINT or SIGTERM comes.

    Returns:
        The exit status: 0.

    Raises:
        OSError: a port is taken.
        InternalError: a broker failed on a request, which was logged when it did.
    """
    anyio.run(_serve, plan)
    return 0


async def _serve(plan: BrokerPlan) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        ports = tuple(range(plan.port, plan.port + plan.brokers)) if plan.port else ()
        cluster = EmbeddedCluster(
            brokers=plan.brokers, retain=plan.retain, rtt=plan.rtt, ports=ports
        )
        async with cluster:
            for topic in plan.topics:
                cluster.create_topic(topic.name, partitions=topic.partitions)
            print(cluster.bootstrap_servers, flush=True)
            async for _ in signals:
                break

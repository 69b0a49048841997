"""Findings about replicas: leaders, replicas in sync, and what acks asks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kio.schema.errors import ErrorCode

from aioidem._doctor.facts import Facts, PartitionSeen, TopicSeen
from aioidem._doctor.finding import Finding, FindingName, Severity

__all__ = ["replica_findings"]

_N = FindingName
_MOST_NAMED = 10
_FIRST_BOUNDED = 10
"""The Produce version of Kafka 3.7, which counts min.insync.replicas up to the number of replicas.

Older brokers refuse acks=all where it is higher (KAFKA-15583).
"""


def replica_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about each topic's replicas, and about acks."""
    for topic in facts.topics:
        yield from _leaders(topic)
        yield from _offline(topic)
        yield from _unclean(facts, topic)
        if facts.config.acks == -1:
            yield from _in_sync(facts, topic)
    if facts.config.acks != -1:
        yield Finding(
            _N.WEAK_ACKS,
            Severity.NOTE,
            f"acks={facts.config.acks}",
            "Acknowledged records are lost with their leader before a follower has copied them, "
            "and retries may write records twice: there is no idempotence.",
            "Use acks=all, the default.",
        )


def _which(topic: TopicSeen, chosen: Callable[[PartitionSeen], bool]) -> str:
    """Return the chosen partitions in words; "" if there are none."""
    found = [part.partition for part in topic.partitions if chosen(part)]
    if not found:
        return ""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    kind = "partition" if len(found) == 1 else "partitions"
    return f"{topic.name}: {kind} {', '.join(map(str, found[:_MOST_NAMED]))}{more}"


def _leaders(topic: TopicSeen) -> Iterator[Finding]:
    if which := _which(topic, _without_listener):
        brokers = sorted({b for p in topic.partitions if _without_listener(p) for b in p.replicas})
        yield Finding(
            _N.LISTENER_MISSING,
            Severity.ERROR,
            f"{which}: the leader has no listener of the name that this client is connected to",
            "Records for them wait, and end NOT_WRITTEN at their delivery_timeout.",
            "Compare listeners and advertised.listeners of the brokers that have replicas, "
            f"{', '.join(map(str, brokers))}, with those of the bootstrap servers.",
        )
    if which := _which(topic, lambda part: part.leader < 0 and not _without_listener(part)):
        yield Finding(
            _N.NO_LEADER,
            Severity.ERROR,
            f"{which}: no leader",
            "Records for them wait, and end NOT_WRITTEN at their delivery_timeout.",
            "kafka-topics.sh --describe --unavailable-partitions, and start one of the replicas "
            "that were in sync last. An unclean election would lose records.",
        )


def _without_listener(part: PartitionSeen) -> bool:
    return part.error_code == ErrorCode.listener_not_found


def _offline(topic: TopicSeen) -> Iterator[Finding]:
    if which := _which(topic, lambda part: bool(part.offline)):
        brokers = sorted({each for part in topic.partitions for each in part.offline})
        yield Finding(
            _N.REPLICA_OFFLINE,
            Severity.WARNING,
            f"{which}: replicas are offline, on these brokers: {', '.join(map(str, brokers))}",
            "Fewer brokers can be lost before records are lost or writing stops.",
            "Start these brokers, or look for a failed disk in their logs.",
        )


def _unclean(facts: Facts, topic: TopicSeen) -> Iterator[Finding]:
    configs = facts.topic_configs(topic.name)
    if any(each.values.get("unclean.leader.election.enable") == "true" for each in configs):
        yield Finding(
            _N.UNCLEAN_ELECTION,
            Severity.WARNING,
            f"{topic.name}: unclean.leader.election.enable=true",
            "If no replica in sync is left, one that lacks the newest records becomes the leader: "
            "acknowledged records are lost.",
            "Set it to false where records matter more than availability.",
        )


def _in_sync(facts: Facts, topic: TopicSeen) -> Iterator[Finding]:
    numbers = [each.number("min.insync.replicas") for each in facts.topic_configs(topic.name)]
    known = [each for each in numbers if each is not None]
    if not known:
        yield from _single(topic)
        return
    least = max(known)

    def needed(part: PartitionSeen) -> int:
        leader = facts.broker(part.leader)
        bounded = leader is not None and (leader.produce or (0, 0))[1] >= _FIRST_BOUNDED
        return min(least, len(part.replicas)) if bounded else least

    if which := _which(topic, lambda part: part.leader >= 0 and len(part.in_sync) < needed(part)):
        yield Finding(
            _N.TOO_FEW_IN_SYNC,
            Severity.ERROR,
            f"{which}: fewer replicas are in sync than min.insync.replicas={least}",
            "Records are refused with NOT_ENOUGH_REPLICAS and retried, and end at their "
            "delivery_timeout.",
            "Start the brokers of the missing replicas, or find out why they lag "
            "(kafka-topics.sh --describe --under-min-isr-partitions).",
        )

    def without_spare(part: PartitionSeen) -> bool:
        return part.leader >= 0 and 1 < needed(part) == len(part.in_sync)

    if least > 1 and (which := _which(topic, without_spare)):
        yield Finding(
            _N.NO_SPARE_REPLICA,
            Severity.WARNING,
            f"{which}: exactly min.insync.replicas={least} replicas are in sync",
            "If one more broker stops, as in a rolling restart, records cannot be written.",
            "Start the brokers of the missing replicas; if there are no more replicas than "
            "min.insync.replicas, add one or lower that config.",
        )
    if least == 1 and (which := _which(topic, lambda part: len(part.replicas) > 1)):
        yield Finding(
            _N.ONE_IN_SYNC_IS_ENOUGH,
            Severity.NOTE,
            f"{which}: min.insync.replicas=1",
            "With the followers out of sync a record is acknowledged that only the leader has, and "
            "is lost with its disk.",
            "Set min.insync.replicas=2 on topics with three replicas.",
        )
    yield from _single(topic)


def _single(topic: TopicSeen) -> Iterator[Finding]:
    if which := _which(topic, lambda part: len(part.replicas) == 1):
        yield Finding(
            _N.ONE_REPLICA,
            Severity.NOTE,
            f"{which}: one replica",
            "Nothing can be written while its broker is down, and records are lost with its disk.",
            "Use three replicas where records matter.",
        )

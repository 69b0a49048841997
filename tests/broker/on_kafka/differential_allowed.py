"""All intended differences between the embedded broker and Apache Kafka, with their reasons.

In each world (version of Kafka) that an entry names, the scripts must meet the entry's difference,
so an entry whose difference has gone must be removed. The last entries are differences between
Kafka 3.9.1 and 4.3.1; the embedded broker behaves like 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from .differential import HANGING, Allowed, Difference
from .differential_steps import WORLDS

__all__ = ["ALLOWED"]

_EVERYWHERE: Final = frozenset(world.name for world in WORLDS)
_OLD: Final = frozenset({"3.9.1"})
_NEW: Final = _EVERYWHERE - _OLD
_PATCHED: Final = frozenset({"4.3.1-retains-20"})

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA = 0, 1, 2, 3
_FIND_COORDINATOR, _API_VERSIONS = 10, 18
_CREATE_TOPICS, _OFFSET_FOR_LEADER_EPOCH, _DESCRIBE_CONFIGS = 19, 23, 32
_WITH_CONFIGS: Final = (_CREATE_TOPICS, _DESCRIBE_CONFIGS)

_INSIDE: Final = (
    "no record, count 1",
    "count and delta 2 of 1",
    "count and delta 1 of 2",
    "that is none",
    "count 3",
    "codec 1 deltas",
    "codec 3 deltas",
    "codec 4 deltas",
)


def _at(
    *apis: int, path: str = "", label: str | Iterable[str] = ""
) -> Callable[[Difference], bool]:
    """Return a matcher of differences by API, part of the field's path and of the step's label."""
    labels = (label,) if isinstance(label, str) else tuple(label)

    def matches(found: Difference) -> bool:
        return (
            found.step.api in apis
            and path in found.path
            and any(each in found.step.label for each in labels)
        )

    return matches


def _only_kafka(*apis: int, path: str) -> Callable[[Difference], bool]:
    """Return a function that matches fields that only Kafka's answer has."""
    there = _at(*apis, path=path)
    return lambda found: found.ours == "nothing" and there(found)


def _any_of(
    *matches: Callable[[Difference], bool],
) -> Callable[[Difference], bool]:
    return lambda found: any(each(found) for each in matches)


def _hangs(found: Difference) -> bool:
    return found.real == HANGING and found.step.label == "bad: no records"


ALLOWED: Final[Sequence[Allowed]] = (
    Allowed(
        "APIs",
        "The embedded broker serves what a producer and its tests need; Kafka serves more.",
        _only_kafka(_API_VERSIONS, path=".api_keys."),
        _EVERYWHERE,
    ),
    Allowed(
        "features",
        "The embedded broker has transaction.version only; no other feature concerns a producer.",
        _at(_API_VERSIONS, path="ed_features"),
        _EVERYWHERE,
    ),
    Allowed(
        "transactions",
        "Kafka creates its coordinators at the first FindCoordinator, which these steps precede;"
        " the embedded coordinator is there from the start.",
        _at(_PRODUCE, label="transactional with an id"),
        _EVERYWHERE,
    ),
    Allowed(
        "inside of records",
        "The embedded broker reads a batch's header and not its records, which would take more time"
        " than everything else; so it accepts records that do not match the header, or that cannot"
        " be decompressed. Kafka answers INVALID_RECORD, or UNKNOWN_SERVER_ERROR for the latter.",
        _at(_PRODUCE, _FETCH, _LIST_OFFSETS, 61, label=_INSIDE),
        _EVERYWHERE,
    ),
    Allowed(
        "maximum timestamp",
        "The embedded broker takes the maximum timestamp from the header, for the same reason;"
        " Kafka computes it from the records.",
        _at(_PRODUCE, _FETCH, _LIST_OFFSETS, label=("lies", "a lie")),
        _EVERYWHERE,
    ),
    Allowed(
        "null records",
        "Kafka's handler fails on a null record set and never answers; the embedded broker answers"
        " INVALID_RECORD, so that a test ends.",
        _hangs,
        _EVERYWHERE,
    ),
    Allowed(
        "zero topic id",
        "Kafka's handler fails on a Metadata request for a topic with neither name nor id, so that"
        " no topic of the request is answered.",
        _at(_METADATA, label="neither name nor id"),
        _EVERYWHERE,
    ),
    Allowed(
        "deleted maximum timestamp",
        "Kafka deletes whole segments only, so the maximum timestamp of its first segment may be"
        " that of a record below the start of the log.",
        _at(_LIST_OFFSETS, path=".offset", label="maximum timestamp of a cut log"),
        _EVERYWHERE,
    ),
    Allowed(
        "fetch sessions",
        "The embedded broker has no fetch sessions: it answers session id 0, as a Kafka broker does"
        " when it has no room for another session.",
        _at(_FETCH, path=".session_id"),
        _EVERYWHERE,
    ),
    Allowed(
        "configs",
        "The embedded broker lists only configs that have an effect on it.",
        _only_kafka(*_WITH_CONFIGS, path=".configs."),
        _EVERYWHERE,
    ),
    Allowed(
        "retention.bytes",
        "The embedded broker keeps logs in memory, and so has a limit on their size by default.",
        _at(*_WITH_CONFIGS, path=".retention.bytes."),
        _EVERYWHERE,
    ),
    Allowed(
        "min.insync.replicas",
        "Kafka's controller sets it for the whole cluster where eligible leader replicas (KIP-966)"
        " are enabled.",
        _at(*_WITH_CONFIGS, path=".min.insync.replicas."),
        _NEW,
    ),
    Allowed(
        "the broker's own configs",
        "Kafka reads the configs of its start from a file; the embedded cluster describes those"
        " that it was made with as set for the whole cluster, and lets a client change them.",
        _at(_DESCRIBE_CONFIGS, path=".producer.id.expiration.check.interval.ms."),
        _EVERYWHERE,
    ),
    Allowed(
        "SaslHandshake v0",
        "After SaslHandshake v0 the tokens are sent without frames. No current client does so, and"
        " the embedded broker does not support it.",
        _at(_API_VERSIONS, path=".api_keys.17.min_version"),
        _EVERYWHERE,
    ),
    Allowed(
        "AddPartitionsToTxn v4 and v5",
        "Only Kafka's brokers send these versions, to each other; the embedded ones share memory.",
        _at(_API_VERSIONS, path=".api_keys.24.max_version"),
        _NEW,
    ),
    Allowed(
        "the patched broker's config",
        "The proxy before the patched broker adds it to DescribeConfigs as a default, and does not"
        " add it to CreateTopics.",
        _at(*_WITH_CONFIGS, path=".producer.state.batches.to.retain"),
        _PATCHED,
    ),
    Allowed(
        "versions of 3.9.1",
        "The embedded broker announces the versions of 4.3.1; that of Produce can be set.",
        _at(_API_VERSIONS, path="_version"),
        _OLD,
    ),
    Allowed(
        "message.timestamp.after.max.ms",
        "Since 4.0 the default is an hour (KIP-1030); before, any future timestamp was accepted.",
        _at(*_WITH_CONFIGS, path=".message.timestamp.after.max.ms"),
        _OLD,
    ),
    Allowed(
        "share groups of 3.9.1",
        "3.9.1 has no coordinator of share groups and answers COORDINATOR_NOT_AVAILABLE; 4.3.1 and"
        " the embedded broker answer INVALID_REQUEST, because the keys are not of a share group.",
        _at(_FIND_COORDINATOR, path=".error_code", label="v6 of kind 2"),
        _OLD,
    ),
    Allowed(
        "leader epoch after a kill",
        "If a killed broker returns before its session ends, 3.9.1's controller keeps the leader"
        " epoch; that of 4.3.1 begins a new one, as the embedded cluster does.",
        _any_of(
            _at(_METADATA, _LIST_OFFSETS, path=".leader_epoch", label="after being killed"),
            _at(_OFFSET_FOR_LEADER_EPOCH, label="after being killed"),
            _at(_FETCH, path=".records", label="after being killed"),
        ),
        _OLD,
    ),
)

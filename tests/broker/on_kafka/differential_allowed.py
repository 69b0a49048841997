"""All intended differences between the embedded broker and Apache Kafka, with their reasons.

The scripts must meet each entry in the worlds that it names, so that an entry which does not differ
any more has to be removed. The last entries are differences between Kafka 3.9.1 and 4.3.1; the
embedded broker behaves like 4.3.1.
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

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _API_VERSIONS = 0, 1, 2, 3, 18
_CREATE_TOPICS, _DESCRIBE_CONFIGS = 19, 32
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
    """Return a function that matches differences by API, part of the path and of the label."""
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
        "Only transaction.version is told: the others mean nothing to a producer.",
        _at(_API_VERSIONS, path="ed_features"),
        _EVERYWHERE,
    ),
    Allowed(
        "transactions",
        "Kafka has no coordinators before anybody has looked for one; the embedded one is asked.",
        _at(_PRODUCE, label="transactional with an id"),
        _EVERYWHERE,
    ),
    Allowed(
        "inside of records",
        "Records are not decoded (they need not be, for a good client, and it would take more time"
        " than all the rest), so nobody notices that they are not what the header says, or no"
        " records at all. Kafka: INVALID_RECORD, or UNKNOWN_SERVER_ERROR if it will not unpack.",
        _at(_PRODUCE, _FETCH, _LIST_OFFSETS, 61, label=_INSIDE),
        _EVERYWHERE,
    ),
    Allowed(
        "maximum timestamp",
        "For the same reason the header is believed where Kafka takes the maximum anew.",
        _at(_PRODUCE, _FETCH, _LIST_OFFSETS, label=("lies", "a lie")),
        _EVERYWHERE,
    ),
    Allowed(
        "null records",
        "Kafka's handler fails on a null record set and never answers. INVALID_RECORD helps more.",
        _hangs,
        _EVERYWHERE,
    ),
    Allowed(
        "zero topic id",
        "Metadata of a topic without name and id makes Kafka's handler fail as a whole.",
        _at(_METADATA, label="neither name nor id"),
        _EVERYWHERE,
    ),
    Allowed(
        "deleted maximum timestamp",
        "Kafka deletes whole segments, and the maximum timestamp of what is left of one may be that"
        " of a record below the start of the log.",
        _at(_LIST_OFFSETS, path=".offset", label="maximum timestamp of a cut log"),
        _EVERYWHERE,
    ),
    Allowed(
        "fetch sessions",
        "There are none: every answer says 0, as of a broker without room for one.",
        _at(_FETCH, path=".session_id"),
        _EVERYWHERE,
    ),
    Allowed(
        "configs",
        "A config that has no effect here is not named.",
        _only_kafka(*_WITH_CONFIGS, path=".configs."),
        _EVERYWHERE,
    ),
    Allowed(
        "retention.bytes",
        "Logs are in memory, so they are bounded by default.",
        _at(*_WITH_CONFIGS, path=".retention.bytes."),
        _EVERYWHERE,
    ),
    Allowed(
        "min.insync.replicas",
        "Kafka's controller sets it for the whole cluster when eligible leader replicas are on.",
        _at(*_WITH_CONFIGS, path=".min.insync.replicas."),
        _NEW,
    ),
    Allowed(
        "the broker's own configs",
        "What the embedded cluster is made with counts as set for the cluster, not in a file, and"
        " can be changed while it runs.",
        _at(_DESCRIBE_CONFIGS, path=".producer.id.expiration.check.interval.ms."),
        _EVERYWHERE,
    ),
    Allowed(
        "SaslHandshake v0",
        "Its tokens go without frames, and no client of today wants it.",
        _at(_API_VERSIONS, path=".api_keys.17.min_version"),
        _EVERYWHERE,
    ),
    Allowed(
        "AddPartitionsToTxn v4 and v5",
        "They are for brokers among themselves, and there is nothing between the embedded ones.",
        _at(_API_VERSIONS, path=".api_keys.24.max_version"),
        _NEW,
    ),
    Allowed(
        "the patched broker's config",
        "Its proxy names it in DescribeConfigs, as a default of its own, and not in CreateTopics.",
        _at(*_WITH_CONFIGS, path=".producer.state.batches.to.retain"),
        _PATCHED,
    ),
    Allowed(
        "versions of 3.9.1",
        "The embedded broker says the versions of 4.3.1; of Produce it says what it is told to.",
        _at(_API_VERSIONS, path="_version"),
        _OLD,
    ),
    Allowed(
        "message.timestamp.after.max.ms",
        "Since 4.0 it is an hour (KIP-1030); before, any stamp of the future was taken.",
        _at(*_WITH_CONFIGS, path=".message.timestamp.after.max.ms"),
        _OLD,
    ),
    Allowed(
        "leader epoch after a kill",
        "A killed broker that is back before anybody missed it led all the time for 3.9.1's"
        " controller; 4.3.1's begins a new leader epoch, as the embedded cluster does.",
        _any_of(
            _at(_METADATA, _LIST_OFFSETS, path=".leader_epoch", label="after being killed"),
            _at(_FETCH, path=".records", label="after being killed"),
        ),
        _OLD,
    ),
)

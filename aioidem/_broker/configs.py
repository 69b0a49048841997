"""Topic and broker configs: names, defaults, validation, and what an older broker knows.

KIP-1269 in this table: ``producer.state.batches.to.retain`` (topic; int, default 5, at least 5)
and ``log.producer.state.batches.to.retain`` (cluster or broker). A broker that speaks Produce v13
or less knows neither name: it does not describe them, refuses to set them, and retains 5 batches.
A broker of KIP-758 has ``max.in.flight.sequence.number.per.connection``; other brokers do not know
it.

Invariants
    Values are validated before anything is changed: all configs of one request are set, or none.

Rejected
    Accepting every name that Kafka has: a test that sets ``segment.ms`` and sees no effect learns
    nothing. Every topic config in this table has an effect, except ``retention.ms``, which is only
    stored. Broker configs differ because real brokers do: an unknown one is accepted, and described
    with the value null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError

__all__ = [
    "BROKER_CONFIGS",
    "CLUSTER_RETAIN",
    "DEFAULT_RETAIN",
    "RANGE_CONFIGS",
    "SEQUENCE_RANGE",
    "TOPIC_CONFIGS",
    "TOPIC_RETAIN",
    "ConfigType",
    "Definition",
    "TopicSettings",
    "known_to",
    "validate",
]

TOPIC_RETAIN: Final = "producer.state.batches.to.retain"
CLUSTER_RETAIN: Final = "log.producer.state.batches.to.retain"
SEQUENCE_RANGE: Final = "max.in.flight.sequence.number.per.connection"
DEFAULT_RETAIN: Final = 5
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class ConfigType:
    """Numbers of the config types in DescribeConfigs (KIP-226)."""

    BOOLEAN: Final = 1
    STRING: Final = 2
    INT: Final = 3
    LONG: Final = 5
    LIST: Final = 7


@dataclass(frozen=True, slots=True)
class Definition:
    """One config.

    Attributes:
        name: Kafka's name.
        type: Number of its type; see `ConfigType`.
        default: Value where none is set.
        check: Raises ValueError, with what is allowed, for any other value.
        documentation: Text of DescribeConfigs.
        broker_name: Broker config that a topic config takes its default from; None: there is none.
        read_only: Whether it can only be set when the broker starts.
        default_name: Its name as a default in DescribeConfigs; "": none; None: ``broker_name``.
    """

    name: str
    type: int
    default: str
    check: Callable[[str], None]
    documentation: str
    broker_name: str | None = None
    read_only: bool = False
    default_name: str | None = None


def _between(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("not a number") from None
        if number < low:
            raise ValueError(f"Value must be at least {low}")
        if number > high:
            raise ValueError(f"Value must be at most {high}")

    return check


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"String must be one of: {', '.join(allowed)}")

    return check


def _cleanup_policy(value: str) -> None:
    for part in value.split(","):
        _one_of("compact", "delete")(part.strip())


def _table(*definitions: Definition) -> dict[str, Definition]:
    return {d.name: d for d in definitions}


BROKER_CONFIGS: Final[Mapping[str, Definition]] = _table(
    Definition(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "true",
        _one_of("true", "false"),
        "Whether Metadata and Produce of an unknown topic create it.",
    ),
    Definition(
        "default.replication.factor",
        ConfigType.INT,
        "1",
        _between(1, 32767),
        "Replicas of a topic created without a number.",
    ),
    Definition(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        # Kafka's default is 3000, for groups of many members; its quickstart sets 0, too.
        "0",
        _between(0, _INT_MAX),
        "How long the first member of an empty group waits for others.",
    ),
    Definition(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        "1800000",
        _between(0, _INT_MAX),
        "Longest session timeout a member may ask for.",
    ),
    Definition(
        "group.max.size",
        ConfigType.INT,
        str(_INT_MAX),
        _between(1, _INT_MAX),
        "Most members of a group.",
    ),
    Definition(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        "6000",
        _between(0, _INT_MAX),
        "Shortest session timeout a member may ask for.",
    ),
    Definition(
        "log.message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "Whose clock stamps records.",
    ),
    Definition(
        CLUSTER_RETAIN,
        ConfigType.INT,
        str(DEFAULT_RETAIN),
        _between(DEFAULT_RETAIN, _INT_MAX),
        "Batches remembered per producer id and partition (KIP-1269).",
    ),
    Definition(
        "log.retention.bytes",
        ConfigType.LONG,
        str(256 * 1024 * 1024),
        _between(-1, _LONG_MAX),
        "Memory for the log of one partition; the oldest batches go beyond it.",
    ),
    Definition(
        "message.max.bytes",
        ConfigType.INT,
        "1048588",
        _between(0, _INT_MAX),
        "Largest record batch.",
    ),
    Definition(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        _between(1, _INT_MAX),
        "Replicas that must be in sync for acks=all.",
    ),
    Definition(
        "num.partitions",
        ConfigType.INT,
        "1",
        _between(1, _INT_MAX),
        "Partitions of a topic created without a number.",
    ),
    Definition(
        "producer.id.expiration.check.interval.ms",
        ConfigType.INT,
        "600000",
        _between(1, _INT_MAX),
        "How often producers are looked through for expired ones.",
    ),
    Definition(
        "producer.id.expiration.ms",
        ConfigType.INT,
        "86400000",
        _between(1, _INT_MAX),
        "Age of a producer's last batch at which it is forgotten (KIP-854).",
    ),
    Definition(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        "10000",
        _between(1, _INT_MAX),
        "How often transactions are looked through for those past their timeout.",
    ),
    Definition(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        "900000",
        _between(1, _INT_MAX),
        "Longest transaction timeout a producer may ask for.",
    ),
)

RANGE_CONFIGS: Final[Mapping[str, Definition]] = _table(
    Definition(
        SEQUENCE_RANGE,
        ConfigType.INT,
        "10000000",
        # With more than half of all sequences, "before" and "after" would mean the same.
        _between(1, 2**30),
        "How far below the last sequence a batch is taken for a duplicate (KIP-758).",
        read_only=True,
    ),
)
"""Configs that only a broker of KIP-758 has; their values are fixed when it is made."""

TOPIC_CONFIGS: Final[Mapping[str, Definition]] = _table(
    Definition(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        _cleanup_policy,
        "With compact, a record without a key is refused; nothing is compacted here.",
        default_name="log.cleanup.policy",
    ),
    Definition(
        "compression.type",
        ConfigType.STRING,
        "producer",
        _one_of("producer"),
        "This broker keeps the producer's codec.",
    ),
    Definition(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        _between(0, _INT_MAX),
        "Largest record batch.",
        "message.max.bytes",
    ),
    Definition(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "3600000",
        _between(0, _LONG_MAX),
        "How far a CreateTime may be ahead of the broker's clock.",
        default_name="log.message.timestamp.after.max.ms",
    ),
    Definition(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        str(_LONG_MAX),
        _between(0, _LONG_MAX),
        "How far a CreateTime may be behind the broker's clock.",
        default_name="log.message.timestamp.before.max.ms",
    ),
    Definition(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "Whose clock stamps records.",
        "log.message.timestamp.type",
    ),
    Definition(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        _between(1, _INT_MAX),
        "Replicas that must be in sync for acks=all.",
        "min.insync.replicas",
    ),
    Definition(
        TOPIC_RETAIN,
        ConfigType.INT,
        str(DEFAULT_RETAIN),
        _between(DEFAULT_RETAIN, _INT_MAX),
        "Batches remembered per producer id and partition (KIP-1269).",
        CLUSTER_RETAIN,
    ),
    Definition(
        "retention.bytes",
        ConfigType.LONG,
        str(256 * 1024 * 1024),
        _between(-1, _LONG_MAX),
        "Memory for the log of one partition; the oldest batches go beyond it.",
        "log.retention.bytes",
    ),
    Definition(
        "retention.ms",
        ConfigType.LONG,
        "604800000",
        _between(-1, _LONG_MAX),
        "Remembered only: logs are bounded by bytes here.",
        default_name="",
    ),
)


def known_to(definition: Definition, *, retains: bool) -> bool:
    """Return whether a broker knows this config; ``retains``: it implements KIP-1269."""
    return retains or definition.name not in (TOPIC_RETAIN, CLUSTER_RETAIN)


def validate(
    table: Mapping[str, Definition],
    values: Iterable[tuple[str, str | None]],
    *,
    retains: bool,
    unknown_allowed: bool = False,
) -> None:
    """Validate names and values.

    Raises:
        RefusedError: INVALID_CONFIG for the first name or value that a broker refuses.
    """
    for name, value in values:
        definition = table.get(name)
        if definition is None or not known_to(definition, retains=retains):
            if unknown_allowed:
                continue
            raise RefusedError(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
        if definition.read_only:
            raise RefusedError(ErrorCode.invalid_config, f"{name} cannot be changed while running")
        if value is None:
            raise RefusedError(ErrorCode.invalid_config, f"Null value not supported for: {name}")
        try:
            definition.check(value)
        except ValueError as reason:
            raise RefusedError(
                ErrorCode.invalid_config,
                f"Invalid value {value} for configuration {name}: {reason}",
            ) from None


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's configs, parsed once per change because every append reads them.

    ``retain`` is None where the topic leaves the number to the broker that has the replica.
    """

    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    min_insync_replicas: int
    retention_bytes: int
    compacted: bool
    deletes: bool
    retain: int | None

    @staticmethod
    def of(overrides: Mapping[str, str], cluster: Mapping[str, str]) -> TopicSettings:
        """Return the settings that follow from the topic's own configs and the cluster's."""

        def value(name: str) -> str:
            definition = TOPIC_CONFIGS[name]
            fallback = cluster.get(definition.broker_name or "", definition.default)
            return overrides.get(name, fallback)

        retention = int(value("retention.bytes"))
        return TopicSettings(
            max_message_bytes=int(value("max.message.bytes")),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            min_insync_replicas=int(value("min.insync.replicas")),
            retention_bytes=retention if retention >= 0 else _LONG_MAX,
            compacted="compact" in value("cleanup.policy"),
            deletes="delete" in value("cleanup.policy"),
            retain=int(overrides[TOPIC_RETAIN]) if TOPIC_RETAIN in overrides else None,
        )

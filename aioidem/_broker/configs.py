"""Topic and broker configs: names, defaults, validation, and which of them an older broker knows.

KIP-1269 adds two configs: ``producer.state.batches.to.retain`` of a topic (int, default 5, at least
5) and ``log.producer.state.batches.to.retain`` of a broker or the cluster. A broker whose highest
Produce version is 13 or less knows neither: it does not describe them, refuses to set them, and
retains 5 batches. Only a broker with KIP-758 knows
``max.in.flight.sequence.number.per.connection``.

Invariants
    Values are validated before anything is changed: all configs of one request are set, or none.

Rejected
    Accepting every topic config that Kafka has: a test would set ``segment.ms`` and not notice that
    it has no effect. Every topic config in this table has an effect, except ``retention.ms``, which
    is only stored. Unknown broker configs are accepted and described with the value null, as by a
    Kafka broker.
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
    """The definition of one config: its name, type and default, and which values are allowed.

    Attributes:
        name: Kafka's name.
        type: Number of the config's type; see `ConfigType`.
        default: Value of a config that is not set.
        check: Raises ValueError for a value that is not allowed; the message says what is allowed.
        documentation: Text with which DescribeConfigs describes the config.
        broker_name: Broker config that is the default of this topic config; None: there is none.
        read_only: Whether the config can be set only when the broker starts.
        default_name: Name under which DescribeConfigs lists the default as a synonym; "": it lists
            none; None: ``broker_name``.
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
        # Kafka's default is 3000 ms, for groups of many members; Kafka's quickstart sets 0 as well.
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
        # Sequences wrap at 2**31. With a range above half of that, one sequence could be both below
        # and above another one.
        _between(1, 2**30),
        "How far below the last sequence a batch is taken for a duplicate (KIP-758).",
        read_only=True,
    ),
)
"""Configs that only a broker with KIP-758 has; their values cannot be changed later."""

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
    """Return whether a broker knows a config; ``retains``: the broker implements KIP-1269."""
    return retains or definition.name not in (TOPIC_RETAIN, CLUSTER_RETAIN)


def validate(
    table: Mapping[str, Definition],
    values: Iterable[tuple[str, str | None]],
    *,
    retains: bool,
    unknown_allowed: bool = False,
) -> None:
    """Check configs that are to be set.

    Args:
        table: The configs that exist, by name.
        values: (name, value) of each config to be set.
        retains: Whether the broker implements KIP-1269.
        unknown_allowed: Whether to skip names that the broker does not know instead of refusing
            them.

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

    ``retain`` is ``producer.state.batches.to.retain``. It is None if the topic does not set it:
    each replica then remembers as many batches per producer as its broker's own config says.
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
        """Return a topic's settings: its own configs, else the cluster's, else the defaults."""

        def value(name: str) -> str:
            definition = TOPIC_CONFIGS[name]
            fallback = cluster.get(definition.broker_name or "", definition.default)
            return overrides.get(name, fallback)

        policy, retention = value("cleanup.policy"), int(value("retention.bytes"))
        return TopicSettings(
            max_message_bytes=int(value("max.message.bytes")),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            min_insync_replicas=int(value("min.insync.replicas")),
            retention_bytes=retention if retention >= 0 and "delete" in policy else _LONG_MAX,
            compacted="compact" in policy,
            deletes="delete" in policy,
            retain=int(overrides[TOPIC_RETAIN]) if TOPIC_RETAIN in overrides else None,
        )

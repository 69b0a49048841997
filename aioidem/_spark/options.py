"""Check the options of the Spark sink, and turn them into one frozen `SinkOptions`.

Invariants:

- Every mistake in options and columns is found on the driver, before a task starts, and is raised
  as `ConfigError` with the name of the option or column. Only values that the executors look up
  (`credentials.py`) are checked on the executors.
- The names are those of Spark's own Kafka sink: `kafka.bootstrap.servers`, `kafka.*` (producer
  properties by their Java names), `topic`, and the columns key, value, topic, partition, headers.
  The column `timestamp` is an addition.
- Nothing here needs Spark.

Rejected: ignoring unknown options, as Spark's sink does: a misspelt one can cost data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from aioidem._config import ProducerConfig, validate_topic
from aioidem._config.secret import without_frames
from aioidem._spark.credentials import look_up_named, stand_ins, take_named
from aioidem._spark.topic_options import NAME as TOPIC_OPTIONS
from aioidem._spark.topic_options import read_topic_options
from aioidem.errors import ConfigError, RecordError

__all__ = ["COLUMNS", "Mode", "SinkOptions", "check_columns"]

Mode = Literal["at-least-once", "exactly-once"]

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"

_KAFKA: Final = "kafka."
_OWN: Final = (
    "topic",
    TOPIC_OPTIONS,
    "mode",
    "identity",
    "marker",
    "marker.topic",
    "offsets.retention.minutes",
    "adaptive",
    "speculation",
    "includeheaders",
)
_TIMEOUT: Final = "transaction.timeout.ms"
# the broker's default for transaction.max.timeout.ms, 15 minutes
_DEFAULT_TIMEOUT: Final = "900000"
_RETENTION_MINUTES: Final = 7 * 24 * 60  # Kafka's default
_IDENTITY: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
# Spark adds these options to those of the user.
_IGNORED: Final = frozenset({"path", "checkpointlocation", "queryname"})

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""The types that each column may have, as Spark's `simpleString()` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write, the same for all of its tasks.

    Attributes:
        properties: the producer's properties, by their Java names.
        topic: the topic of all rows; None if each row names its own.
        mode: at-least-once or exactly-once, see `writing.py`.
        identity: the name of an exactly-once batch write; only one write may ever use a name.
        marker_topic: the topic for whose partition 0 the tasks commit their markers (`marker.py`).
        missing_ok: whether to write even if a marker is missing that should exist.
        retention: seconds for which the cluster keeps a group's offsets.
        adaptive: whether adaptive execution is allowed, in spite of its risk for exactly-once.
        speculation: whether speculative execution is allowed, in spite of its risk.
        named: further properties of the producer, with values `env:NAME` or `file:PATH`.
        headers: whether the column `headers` is sent.
        by_tasks: whether each task checks if the identity was used, because the driver has no
            credentials.
        topics: the properties of topics that have their own, by topic; see `of_topic`.
    """

    properties: Mapping[str, str] = field(repr=False)  # may contain passwords
    topic: str | None
    mode: Mode = AT_LEAST_ONCE
    identity: str | None = None
    marker_topic: str = ""
    missing_ok: bool = False
    retention: float = _RETENTION_MINUTES * 60.0
    adaptive: bool = False
    speculation: bool = False
    named: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_tasks: bool = False
    headers: bool = True
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    @without_frames
    def read(cls, options: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
        """Read Spark's options.

        Args:
            options: all options that were given.
            streaming: whether a stream is written. Then exactly-once is the default; for a batch
                write it is the default only if an identity is given.

        Raises:
            ConfigError: an option is unknown, missing or illegal.
        """
        kafka = {
            name.lower().removeprefix(_KAFKA): value
            for name, value in options.items()
            if name.lower().startswith(_KAFKA)
        }
        own = {name.lower(): value for name, value in options.items()}
        for name in own:
            if not name.startswith(_KAFKA) and name not in _OWN and name not in _IGNORED:
                known = ", ".join(_OWN)
                raise ConfigError(f"{name}: not an option of this sink: {known} or {_KAFKA}*")
        if "bootstrap.servers" not in kafka:
            raise ConfigError(f"{_KAFKA}bootstrap.servers: needed")
        if "transactional.id" in kafka:
            raise ConfigError(
                f"{_KAFKA}transactional.id: not an option: the sink chooses one per task"
            )
        topic = _topic("topic", own.get("topic"))
        given, named = take_named(kafka)
        read = cls(
            properties=given,
            topic=topic,
            mode=_mode(own, streaming=streaming),
            identity=_identity(own.get("identity"), streaming=streaming),
            marker_topic=_topic("marker.topic", own.get("marker.topic")) or topic or "",
            missing_ok=_word(own, "marker", "missing-ok"),
            retention=_minutes(own.get("offsets.retention.minutes")) * 60.0,
            adaptive=_word(own, "adaptive", "allow"),
            speculation=_word(own, "speculation", "allow"),
            named=named,
            by_tasks=bool(named) and "identity" in own,
            headers=_flag(own, "includeheaders"),
            topics=read_topic_options(own.get(TOPIC_OPTIONS)),
        )
        if read.mode == EXACTLY_ONCE:
            _check_exactly_once(read, streaming=streaming)
        checked = replace(read, properties=stand_ins(given, named))
        checked.config("checked")
        _check_topics(checked)
        return read

    def of_topic(self, topic: str) -> SinkOptions:
        """Return the options for the rows of one topic, with the topic's own properties."""
        own = self.topics.get(topic, {})
        return replace(self, properties={**self.properties, **own}, topics={})

    @without_frames
    def looked_up(self) -> SinkOptions:
        """Return the options with the values to which `named` refers; looking them up blocks.

        Raises:
            ConfigError: a value does not exist or is illegal; the message names its option.
        """
        values = {**self.properties, **look_up_named(self.named)}
        known = replace(self, properties=values, named={})
        known.config("checked")
        return known

    def config(self, transactional_id: str | None = None) -> ProducerConfig:
        """Return the configuration of a task's producer.

        The id is used only in the mode exactly-once; without it the producer has no transactions.
        """
        if self.mode == AT_LEAST_ONCE or transactional_id is None:
            return ProducerConfig.from_properties(self.properties)
        timeout = self.properties.get(_TIMEOUT, _DEFAULT_TIMEOUT)
        return ProducerConfig.from_properties(
            {
                # When it starts, the producer may have to wait until the transaction of an earlier
                # attempt has ended.
                "max.block.ms": timeout,
                **self.properties,
                _TIMEOUT: timeout,
                "transactional.id": transactional_id,
            }
        )


def _topic(option: str, topic: str | None) -> str | None:
    if topic is not None:
        try:
            validate_topic(topic)
        except RecordError as error:
            raise ConfigError(f"{option}: {error}") from error
    return topic


def _mode(own: Mapping[str, str], *, streaming: bool) -> Mode:
    mode = own.get("mode")
    if mode is None:
        return EXACTLY_ONCE if streaming or "identity" in own else AT_LEAST_ONCE
    if mode == EXACTLY_ONCE:
        return EXACTLY_ONCE
    if mode != AT_LEAST_ONCE:
        raise ConfigError(f"mode: {mode!r} is neither {AT_LEAST_ONCE} nor {EXACTLY_ONCE}")
    return AT_LEAST_ONCE


def _identity(identity: str | None, *, streaming: bool) -> str | None:
    if identity is None:
        return None
    if streaming:
        raise ConfigError(
            "identity: for batch writes only; a stream takes its identity from the checkpoint"
        )
    if not _IDENTITY.fullmatch(identity):
        raise ConfigError(
            f"identity: {identity!r} is not 1 to 200 characters that a topic's name may have"
        )
    return identity


def _check_exactly_once(options: SinkOptions, *, streaming: bool) -> None:
    if not streaming and options.identity is None:
        raise ConfigError(f"identity: needed for a batch write that is {EXACTLY_ONCE}")
    if not options.marker_topic:
        raise ConfigError("marker.topic: needed if each row names its topic")


def _check_topics(options: SinkOptions) -> None:
    """Check the properties of each topic that has its own, together with those of the write."""
    if options.topics and options.mode == EXACTLY_ONCE:
        raise ConfigError(
            f"{TOPIC_OPTIONS}: not in mode {EXACTLY_ONCE}, where one producer writes all rows of a"
            " task in one transaction; give the topic a write of its own"
        )
    for topic in options.topics:
        if options.topic not in (None, topic):
            raise ConfigError(f"{TOPIC_OPTIONS}: {topic}: all rows are for {options.topic}")
        try:
            options.of_topic(topic).config()
        except ConfigError as error:
            raise ConfigError(f"{TOPIC_OPTIONS}: {topic}: {error.args[0]}") from error


def _word(own: Mapping[str, str], option: str, word: str) -> bool:
    """Return whether an option was given; `word` is its only legal value."""
    if own.get(option, word) != word:
        raise ConfigError(f"{option}: {own[option]!r} is not {word!r}")
    return option in own


def _flag(own: Mapping[str, str], option: str) -> bool:
    """Return a flag that is true unless it is given as false."""
    given = own.get(option, "true").lower()
    if given not in ("true", "false"):
        raise ConfigError(f"{option}: {given!r} is neither true nor false")
    return given == "true"


def _minutes(text: str | None) -> int:
    if text is None:
        return _RETENTION_MINUTES
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise ConfigError(f"offsets.retention.minutes: {text!r} is not a number of minutes")
    return int(text)


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns to write.

    Args:
        columns: the type of each column, as Spark's `simpleString()` writes it, by column name.
        options: the options of the write; the option `topic` makes the column `topic` optional.

    Raises:
        ConfigError: a column is missing or unknown, or has a type that is not allowed for it.
    """
    for name, kind in columns.items():
        allowed = COLUMNS.get(name)
        if allowed is None:
            raise ConfigError(f"column {name}: not a column of this sink: {', '.join(COLUMNS)}")
        if kind not in allowed:
            raise ConfigError(f"column {name}: of type {kind}, not {' or '.join(allowed)}")
    if "value" not in columns:
        raise ConfigError("column value: needed")
    if options.topic is None and "topic" not in columns:
        raise ConfigError("topic: needed, as an option or as a column")

"""Findings about what this client may do; a permission that is missing is no failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeGuard

from kio.schema.errors import ErrorCode

from aioidem._doctor.facts import Facts, TopicSeen
from aioidem._doctor.finding import Finding, FindingName, Severity
from aioidem.errors import error_for_code

__all__ = ["DENIED", "RETRIABLE", "permission_findings"]

_N = FindingName
DENIED: Final = frozenset(
    {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
)
_MISSING: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
RETRIABLE: Final[frozenset[int]] = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)


def permission_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the producer id, the transactional id and each topic."""
    yield from _producer_id(facts)
    yield from _transactional_id(facts)
    for topic in facts.topics:
        yield from _topic(facts, topic)


def _code(code: int) -> str:
    return f"{error_for_code(code).message} (error code {code})"


def _refused(code: int | None) -> TypeGuard[int]:
    """Return whether a broker answered, and with an error that does not pass."""
    return not (code is None or code == ErrorCode.none or code in RETRIABLE)


def _producer_id(facts: Facts) -> Iterator[Finding]:
    code = facts.producer_id_error
    if not _refused(code):
        return
    yield Finding(
        _N.PRODUCER_ID_REFUSED,
        Severity.ERROR,
        f"InitProducerId was answered {_code(code)}",
        "An idempotent producer cannot start.",
        "Grant WRITE on any topic, or on brokers before Kafka 2.8 IDEMPOTENT_WRITE on the cluster "
        "(KIP-679).",
    )


def _transactional_id(facts: Facts) -> Iterator[Finding]:
    code = facts.transactional_error
    if code is not None and code in RETRIABLE:
        yield Finding(
            _N.COORDINATOR_MISSING,
            Severity.WARNING,
            f"FindCoordinator for the transactional id was answered {_code(code)}, several times",
            "A transactional producer waits for its coordinator, and its start fails after "
            "max_block.",
            "Check that transaction.state.log.replication.factor is not above the number of "
            "brokers, and that the partitions of __transaction_state have leaders.",
        )
    if not _refused(code):
        return
    yield Finding(
        _N.TRANSACTIONAL_ID_REFUSED,
        Severity.ERROR,
        f"FindCoordinator for the transactional id was answered {_code(code)}",
        "A transactional producer cannot start.",
        "Grant DESCRIBE and WRITE on the transactional id.",
    )


def _topic(facts: Facts, topic: TopicSeen) -> Iterator[Finding]:
    name = topic.name
    if topic.error_code in _MISSING:
        created = facts.config.allow_auto_create_topics
        yield Finding(
            _N.TOPIC_NOT_FOUND,
            Severity.WARNING if created else Severity.ERROR,
            f"{name}: no such topic",
            "Where auto.create.topics.enable is on, the first record creates it, with the default "
            "number of partitions; elsewhere records wait for max_block and end NOT_WRITTEN.",
            "Create the topic, or correct its name.",
        )
    elif topic.error_code in DENIED:
        yield Finding(
            _N.TOPIC_NOT_VISIBLE,
            Severity.ERROR,
            f"{name}: {_code(topic.error_code)}",
            "No record can be written to the topic.",
            "Grant WRITE on the topic, which includes DESCRIBE.",
        )
        return
    if topic.granted.write is False:
        yield Finding(
            _N.WRITE_NOT_GRANTED,
            Severity.ERROR,
            f"{name}: WRITE is not granted",
            "Records end NOT_WRITTEN with TopicAuthorizationFailedError.",
            "Grant WRITE on the topic.",
        )
    if topic.granted.read is False:
        yield Finding(
            _N.READ_NOT_GRANTED,
            Severity.NOTE,
            f"{name}: READ is not granted",
            "A batch in doubt that the broker may have forgotten (KIP-854) cannot be looked for in "
            "the log, and ends UNKNOWN; resolve() cannot look for UNKNOWN records either.",
            "Grant READ on the topic if that matters more than keeping producers from reading.",
        )
    if any(each.error_code in DENIED for each in facts.topic_configs(name)):
        yield Finding(
            _N.CONFIGS_NOT_GRANTED,
            Severity.WARNING if facts.config.late_sealing else Severity.NOTE,
            f"{name}: DESCRIBE_CONFIGS is not granted",
            f"Batches do not grow beyond batch_size ({facts.config.batch_size} B), because what "
            "the topic accepts is not known; the topic's limits are not checked here.",
            "Grant DESCRIBE_CONFIGS on the topic.",
        )

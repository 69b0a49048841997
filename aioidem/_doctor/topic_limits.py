"""Findings about a topic's configs: which batches and records it refuses, or changes."""

from __future__ import annotations

from collections.abc import Iterator

from aioidem._doctor.facts import Configs, Facts
from aioidem._doctor.finding import Finding, FindingName, Severity
from aioidem._protocol.topic_limit import MESSAGE_BYTES

__all__ = ["topic_limit_findings"]

_N = FindingName


def topic_limit_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the configs of each topic whose configs are known."""
    for topic in facts.topics:
        known = [each for each in facts.topic_configs(topic.name) if each.values]
        if known:
            yield from _sizes(facts, topic.name, known)
            yield from _codec(facts, topic.name, known[0])
            yield from _keys(topic.name, known[0])
            yield from _timestamps(facts, topic.name, known[0])


def _sizes(facts: Facts, topic: str, known: list[Configs]) -> Iterator[Finding]:
    limits = [each.number(MESSAGE_BYTES) for each in known]
    least = min((each for each in limits if each is not None), default=None)
    config = facts.config
    if least is None:
        return
    if config.batch_size > least:
        yield Finding(
            _N.BATCH_OVER_LIMIT,
            Severity.WARNING,
            f"{topic}: batch_size={config.batch_size}, max.message.bytes={least}",
            "A full batch that does not compress is refused, and sent again in parts.",
            f"Set batch_size to {least} or less, or raise max.message.bytes.",
        )
    if config.max_request_size > least:
        yield Finding(
            _N.RECORD_OVER_LIMIT,
            Severity.NOTE,
            f"{topic}: max_request_size={config.max_request_size}, max.message.bytes={least}",
            "A record between these sizes is accepted by send(), and refused by the broker a round "
            "trip later (MESSAGE_TOO_LARGE).",
            f"Set max_request_size to {least} if it is the only topic, or raise max.message.bytes.",
        )


def _codec(facts: Facts, topic: str, configs: Configs) -> Iterator[Finding]:
    ours = facts.config.compression_type
    theirs = configs.values.get("compression.type") or "producer"
    if theirs in ("producer", "uncompressed" if ours == "none" else ours):
        return
    yield Finding(
        _N.BROKER_RECOMPRESSES,
        Severity.WARNING,
        f"{topic}: compression.type={theirs}, and the producer's is {ours}",
        "The broker compresses every batch again, which costs its CPU and delays answers"
        + ("." if ours == "none" else ", and batches do not grow beyond batch_size."),
        f"Set compression_type to {'none' if theirs == 'uncompressed' else theirs}, or the "
        "topic's compression.type to producer.",
    )


def _keys(topic: str, configs: Configs) -> Iterator[Finding]:
    if "compact" in (configs.values.get("cleanup.policy") or ""):
        yield Finding(
            _N.KEYS_NEEDED,
            Severity.NOTE,
            f"{topic}: cleanup.policy={configs.values['cleanup.policy']}",
            "A record without a key is refused (INVALID_RECORD).",
            "Give every record a key.",
        )


def _timestamps(facts: Facts, topic: str, configs: Configs) -> Iterator[Finding]:
    if configs.values.get("message.timestamp.type") == "LogAppendTime":
        yield Finding(
            _N.BROKER_TIMESTAMPS,
            Severity.NOTE,
            f"{topic}: message.timestamp.type=LogAppendTime",
            "The broker replaces the records' timestamps by the time of the append.",
            "Nothing, if readers expect that.",
        )
        return
    before = configs.number("message.timestamp.before.max.ms")
    if before is not None and before < facts.config.delivery_timeout * 1000:
        yield Finding(
            _N.WAITING_TOO_OLD,
            Severity.WARNING,
            f"{topic}: message.timestamp.before.max.ms={before}, delivery_timeout="
            f"{facts.config.delivery_timeout:g} s",
            "A record that has waited longer than the former is refused (INVALID_TIMESTAMP) "
            "although its delivery_timeout has not passed.",
            "Raise message.timestamp.before.max.ms above delivery_timeout.",
        )

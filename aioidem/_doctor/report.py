"""Show the findings: as lines for people, or as one JSON object for programs.

Nothing here reads a secret: of the options, only the bootstrap servers and the security protocol
are shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any, Final

from aioidem._doctor.diagnosis import exit_status
from aioidem._doctor.facts import BrokerSeen, Facts, TopicSeen, shown
from aioidem._doctor.finding import Finding, Severity
from aioidem._load.usage import terminal_line
from aioidem._network.transport import address

__all__ = ["as_json", "as_object", "lines"]

_WIDTH: Final = 100
_INDENT: Final = " " * 9


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines that a person reads: each finding with what it costs and what to do."""
    for each in findings:
        yield from _wrapped(f"{each.severity.word:8} ", f"{each.seen} [{each.name.value}]")
        if each.severity > Severity.OK:
            yield from _wrapped(f"{_INDENT}cost: ", each.cost)
            yield from _wrapped(f"{_INDENT}do:   ", each.cure)
    counts = [
        f"{count} {severity.word}{'s' if count != 1 and severity.word != 'ok' else ''}"
        for severity in sorted(Severity, reverse=True)
        if (count := sum(each.severity is severity for each in findings))
    ]
    yield f"{', '.join(counts) or 'nothing was found'}"


def _wrapped(head: str, text: str) -> list[str]:
    """Break a text into lines of at most 100 characters, with `head` before the first."""
    return wrap(
        terminal_line(text),
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(facts: Facts, findings: list[Finding]) -> str:
    """Return the result as one JSON object, on one line; docs/doctor.md has its keys."""
    return json.dumps(as_object(facts, findings))


def as_object(facts: Facts, findings: list[Finding]) -> dict[str, Any]:
    """Return the result as plain data."""
    clusters = {each.cluster_id for each in facts.tried if each.cluster_id is not None}
    return {
        "bootstrap_servers": [address(*each) for each in facts.config.bootstrap_servers],
        "security_protocol": facts.config.security_protocol,
        "cluster_ids": sorted(clusters),
        "brokers": [_broker(each) for each in facts.brokers],
        "topics": [_topic(facts, each) for each in facts.topics],
        "clocks": [each._asdict() for each in facts.clocks],
        "findings": [
            {**each._asdict(), "name": each.name.value, "severity": each.severity.word}
            for each in findings
        ],
        "exit_status": exit_status(findings),
    }


def _broker(broker: BrokerSeen) -> dict[str, Any]:
    return {
        "node_id": broker.node_id,
        "address": shown(broker.place),
        "rack": broker.rack,
        "cluster_id": broker.cluster_id,
        "failure": None if broker.failure is None else broker.failure.text,
        "produce_versions": None if broker.produce is None else [*broker.produce],
        "features": dict(broker.features),
        "round_trip": broker.round_trip,
        "configs": {} if broker.configs is None else dict(broker.configs.values),
    }


def _topic(facts: Facts, topic: TopicSeen) -> dict[str, Any]:
    values = [each.values for each in facts.topic_configs(topic.name) if each.values]
    return {
        "name": topic.name,
        "error_code": topic.error_code,
        "read": topic.granted.read,
        "write": topic.granted.write,
        "configs": dict(values[0]) if values else {},
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": [*each.replicas],
                "in_sync": [*each.in_sync],
                "offline": [*each.offline],
            }
            for each in topic.partitions
        ],
    }

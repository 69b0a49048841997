"""Findings about what brokers remember of a producer, and about clocks (KIP-854).

A broker forgets a producer by the timestamps of its records, so clocks matter for that too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aioidem._doctor.facts import ClockSeen, Facts, ProbeSeen
from aioidem._doctor.finding import Finding, FindingName, Severity
from aioidem._doctor.permissions import DENIED
from aioidem._doctor.questions import EXPIRATION

__all__ = ["remembering_findings"]

_N = FindingName
_TOLERATED: Final = 1.0
"""The seconds by which clocks may differ besides the error of the measurement.

Hosts that run NTP differ by less than a tenth of that.
"""
_DEFAULT_EXPIRATION: Final = 86400.0
_WITNESSES: Final = 2
"""A refusal counts only after this many later batches, besides the newest, were recognised.

A broker that has just restarted recognises fewer, so such a refusal does not come from a restart.
"""


def remembering_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about expiry of producer ids, clocks, and what a probe has shown."""
    if facts.config.enable_idempotence:
        yield from _expiration(facts)
    yield from _clocks(facts)
    if facts.probe is not None:
        yield from _probe(facts.probe)


def _expiration(facts: Facts) -> Iterator[Finding]:
    answers = [each.configs for each in facts.brokers if each.configs is not None]
    values = [each.number(EXPIRATION) for each in answers]
    known = [each / 1000 for each in values if each is not None]
    option = facts.config.producer_id_expiration
    if known and option is not None and option > min(known):
        yield Finding(
            _N.EXPIRATION_OVERSTATED,
            Severity.WARNING,
            f"producer_id_expiration={option:g} s, and {EXPIRATION} is {min(known):g} s",
            "The producer trusts brokers to remember it for longer than they do: a batch in doubt "
            "could be written twice.",
            f"Set producer_id_expiration to {min(known):g} or less, or leave it out.",
        )
    if not known and option is None:
        if any(each.error_code in DENIED for each in answers):
            yield Finding(
                _N.EXPIRATION_UNKNOWN,
                Severity.NOTE,
                f"{EXPIRATION} cannot be read: DESCRIBE_CONFIGS on the cluster is not granted",
                "Kafka's default of one day is assumed. If it is set lower, a batch in doubt could "
                "be written twice.",
                "Ask an administrator, and set producer_id_expiration if it is not the default.",
            )
        return
    expiration = min(known) if known else (option or _DEFAULT_EXPIRATION)
    if facts.config.delivery_timeout >= expiration / 2:
        yield Finding(
            _N.SHORT_EXPIRATION,
            Severity.WARNING,
            f"delivery_timeout={facts.config.delivery_timeout:g} s, {EXPIRATION} is "
            f"{expiration:g} s",
            "A broker may forget the producer while batches are in doubt. They are looked for in "
            "the log (READ on the topic), or end UNKNOWN.",
            f"Lower delivery_timeout below {expiration / 2:g} s, or raise {EXPIRATION}.",
        )


def _clocks(facts: Facts) -> Iterator[Finding]:
    if not facts.clocks:
        if facts.reached:
            yield Finding(
                _N.CLOCK_UNKNOWN,
                Severity.NOTE,
                "no broker has named a time of day: DescribeQuorum (DESCRIBE on the cluster) is "
                "not granted or not offered",
                "If clocks differ, records may be refused for their timestamps or deleted early.",
                "Grant that, or let --write-to name a topic: answers about records have a time.",
            )
        return
    wrong = [each for each in facts.clocks if abs(each.ahead) - each.margin > _TOLERATED]
    if not wrong:
        said = ", ".join(map(_difference, facts.clocks))
        yield Finding(_N.CLOCK, Severity.OK, said)
        return
    behind_most = max(-each.ahead for each in wrong)
    refused = behind_most > _least_after(facts)
    yield Finding(
        _N.CLOCK_SKEW,
        Severity.ERROR if refused else Severity.WARNING,
        ", ".join(map(_difference, wrong)),
        (
            "Records are refused as too far in the future (message.timestamp.after.max.ms)."
            if refused
            else "Records may be refused for their timestamps, deleted early or late, and a broker "
            "may forget this producer early or late (KIP-854). Tokens may be refused."
        ),
        "Let NTP set the clocks of this machine and of the brokers.",
    )


def _least_after(facts: Facts) -> float:
    """Return how far ahead of the broker's clock a record may be in each topic, in seconds."""
    limits = [
        configs.number("message.timestamp.after.max.ms")
        for topic in facts.topics
        for configs in facts.topic_configs(topic.name)
        if configs.values.get("message.timestamp.type") != "LogAppendTime"
    ]
    return min((each / 1000 for each in limits if each is not None), default=float("inf"))


def _difference(clock: ClockSeen) -> str:
    way = "ahead of" if clock.ahead >= 0 else "behind"
    return (
        f"{clock.whose} is {abs(clock.ahead):.3f} s {way} this machine's "
        f"(within {clock.margin:.3f} s)"
    )


def _probe(probe: ProbeSeen) -> Iterator[Finding]:
    where = f"{probe.topic}-{probe.partition}" if probe.partition >= 0 else probe.topic
    if probe.written_twice is not None:
        yield Finding(
            _N.FEWER_RETAINED,
            Severity.ERROR,
            f"{where}: a batch that was sent again, {probe.written_twice - 1} batches behind the "
            "newest, was written a second time",
            "Retries are duplicates: the broker does not do what idempotence needs.",
            "Report it to the maker of the broker; a proxy between may change requests.",
        )
    elif probe.failure is not None:
        yield Finding(
            _N.PROBE_FAILED,
            Severity.WARNING,
            f"{where}: {probe.failure}",
            "Whether the broker remembers as many batches as it says is not known.",
            "Repair what the other findings say, and repeat it.",
        )
    elif probe.refused is None:
        yield Finding(
            _N.RETAINED,
            Severity.OK,
            f"{where}: the leader recognised batches up to {_reached(probe)} back, and says that "
            f"it remembers {probe.said}",
        )
    elif len(probe.recognised) < _WITNESSES:
        yield Finding(
            _N.PROBE_FAILED,
            Severity.WARNING,
            f"{where}: the leader refused the batch {probe.refused} back as out of order, and says "
            f"that it remembers {probe.said}",
            "It remembers fewer batches, or has restarted a moment ago: one try does not tell.",
            "Repeat it. If the answer is the same, do not use the broker for idempotent producers.",
        )
    else:
        yield Finding(
            _N.FEWER_RETAINED,
            Severity.WARNING,
            f"{where}: the leader says that it remembers {probe.said} batches, recognised those up "
            f"to {_reached(probe)} back and refused the one {probe.refused} back",
            "The producer finds out by itself, and uses a smaller window for some minutes each "
            "time; no record is lost or written twice.",
            "Check whether a proxy answers for the broker; report it to the maker of the broker.",
        )


def _reached(probe: ProbeSeen) -> int:
    return max(probe.recognised, default=1)

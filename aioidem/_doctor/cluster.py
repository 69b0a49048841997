"""Findings about the cluster as a whole: what its brokers can do, how far away they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from aioidem._doctor.facts import BrokerSeen, Facts
from aioidem._doctor.finding import Finding, FindingName, Severity
from aioidem._doctor.questions import PRODUCE_WITH_WINDOW

__all__ = ["cluster_findings"]

_N = FindingName
_SINCE: Final[Mapping[int, str]] = MappingProxyType(
    {
        3: "0.11",
        4: "1.0",
        5: "1.0",
        6: "2.0",
        7: "2.1",
        8: "2.4",
        9: "2.8",
        10: "3.7",
        11: "3.8",
        12: "4.0",
        13: "4.1",
    }
)
"""The release of Kafka that brought each Produce version.

Brokers do not say which release they are.
"""
_FIRST_WITH_LEADERS: Final = 10
_FIRST_OF_TRANSACTIONS_2: Final = 12


def cluster_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about all brokers together."""
    known = [each for each in facts.brokers if each.produce is not None]
    if known:
        yield _features(known)
        yield from _differ(known)
        yield from _transactions(facts, known)
    measured = [each for each in facts.brokers if each.round_trip is not None]
    if measured:
        yield _round_trips(facts, measured)
    if facts.unfinished:
        yield Finding(
            _N.NOT_FINISHED,
            Severity.WARNING,
            f"not finished in {facts.timeout:g} s: {'; '.join(facts.unfinished)}",
            "The findings are not complete.",
            "Repeat it with a longer --timeout; what is slow here is slow for the producer too.",
        )


def _highest(broker: BrokerSeen) -> int:
    return 0 if broker.produce is None else broker.produce[1]


def _release(version: int) -> str:
    if version >= PRODUCE_WITH_WINDOW:
        return f"newer than Kafka {_SINCE[max(_SINCE)]}"
    return f"Kafka {_SINCE.get(version, 'before 0.11')} or newer"


def _features(known: list[BrokerSeen]) -> Finding:
    lowest = min(map(_highest, known))
    level = min(each.features.get("transaction.version", 0) for each in known)
    has = {
        "KIP-1269 (names its window)": lowest >= PRODUCE_WITH_WINDOW,
        "KIP-890 (transactions v2)": level >= 2 and lowest >= _FIRST_OF_TRANSACTIONS_2,
        "KIP-951 (names a new leader)": lowest >= _FIRST_WITH_LEADERS,
        "KIP-714 (takes clients' metrics)": all(each.telemetry for each in known),
    }
    said = ", ".join(f"{name}: {'yes' if yes else 'no'}" for name, yes in has.items())
    count = "1 broker" if len(known) == 1 else f"{len(known)} brokers"
    return Finding(
        _N.FEATURES,
        Severity.OK,
        f"{count}, Produce v{lowest} ({_release(lowest)}); {said}",
    )


def _differ(known: list[BrokerSeen]) -> Iterator[Finding]:
    by_version: dict[int, list[str]] = {}
    for each in known:
        by_version.setdefault(_highest(each), []).append(str(each.node_id))
    if len(by_version) > 1:
        seen = "; ".join(
            f"Produce v{version}: brokers {', '.join(ids)}"
            for version, ids in sorted(by_version.items())
        )
        yield Finding(
            _N.VERSIONS_DIFFER,
            Severity.NOTE,
            seen,
            "Partitions on older brokers lack what newer ones have, such as a window of more than "
            "five batches (KIP-1269). A leader that moves takes its partition's window with it.",
            "Nothing during a rolling upgrade. Raise producer.state.batches.to.retain only when "
            "every broker has KIP-1269.",
        )


def _transactions(facts: Facts, known: list[BrokerSeen]) -> Iterator[Finding]:
    if facts.config.transactional_id is None:
        return
    levels = [each.features.get("transaction.version", 0) for each in known]
    if min(levels) < 2:
        yield Finding(
            _N.TRANSACTIONS_V1,
            Severity.NOTE,
            f"transaction.version is {min(levels)}",
            "Each partition is added to the transaction by a request of its own, and a late "
            "request of an old transaction can end up in the next one (KIP-890).",
            "On brokers of Kafka 4.0 or newer: kafka-features.sh upgrade --feature "
            "transaction.version=2",
        )


def _round_trips(facts: Facts, measured: list[BrokerSeen]) -> Finding:
    leaders = [each for each in measured if facts.leads(each.node_id)]
    which = "leaders" if leaders else "brokers"
    said = ", ".join(
        f"{each.node_id}: {1000 * (each.round_trip or 0):.1f} ms" for each in leaders or measured
    )
    return Finding(_N.ROUND_TRIP, Severity.OK, f"median round trip to the {which}: {said}")

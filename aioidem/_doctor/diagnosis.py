"""Turn the facts of an examination into findings, the worst first."""

from __future__ import annotations

from typing import Final

from aioidem._doctor.cluster import cluster_findings
from aioidem._doctor.connections import connection_findings
from aioidem._doctor.facts import Facts
from aioidem._doctor.finding import Finding, Severity
from aioidem._doctor.in_flight import in_flight_findings
from aioidem._doctor.permissions import permission_findings
from aioidem._doctor.remembering import remembering_findings
from aioidem._doctor.replicas import replica_findings
from aioidem._doctor.topic_limits import topic_limit_findings

__all__ = ["diagnose", "exit_status"]

_KINDS: Final = (
    connection_findings,
    cluster_findings,
    permission_findings,
    in_flight_findings,
    replica_findings,
    topic_limit_findings,
    remembering_findings,
)


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings; errors first, and within a severity in the order of the questions."""
    found = [finding for kind in _KINDS for finding in kind(facts)]
    return sorted(found, key=lambda finding: -finding.severity)


def exit_status(findings: list[Finding]) -> int:
    """Return the command's exit status: 1 with a warning or an error, else 0."""
    return int(any(each.severity >= Severity.WARNING for each in findings))

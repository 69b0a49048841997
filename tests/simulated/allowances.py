"""Which allowances a run needed: what is usually a violation, and was expected this time.

An allowance that no schedule needs hides nothing, and one that many schedules need hides much. So
`make soak` prints in how many schedules each was needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from aioidem.testing import Anomaly, Expectations, LogRecord, Row, Violation, check_history

from .schedule import Schedule

__all__ = ["FALSE_EVENT", "judge_history", "names_of"]

FALSE_EVENT = "a data-loss event, although nothing was lost"
"""The name of the allowance for schedules in which brokers forget, lie, or serve late copies."""


def names_of(schedule: Schedule) -> dict[Anomaly, str]:
    """Return the name of the allowance for each kind of anomaly that a history may have."""
    lost = "acknowledged, and lost by a broker"
    repeated = "deleted before the producer knew of it"
    if schedule.by_name:
        repeated = "a late copy in a recreated topic, below Produce v13"
    reordered = "UNKNOWN, and written after later records"
    if schedule.forgetful:
        repeated = "a late copy at a broker that forgot the producer"
    if schedule.options.get("in_doubt") == "resend":
        repeated = "written twice by in_doubt=resend"
    if not schedule.options.get("enable_idempotence", True):
        repeated = reordered = "no idempotence"
    return {
        Anomaly.LOST: lost,
        Anomaly.WRONG_OFFSET: lost,
        Anomaly.DUPLICATE: repeated,
        Anomaly.REORDERED: reordered,
    }


def judge_history(
    rows: Iterable[Row],
    log: Iterable[LogRecord],
    expect: Expectations,
    names: Mapping[Anomaly, str],
    used: Callable[[str], None],
) -> list[Violation]:
    """Return the violations in a history, as `check_history` does; report the allowances needed.

    Args:
        rows: One row per record that was sent.
        log: All records of all partitions, each partition in log order.
        expect: The anomalies that are not violations.
        names: For each kind of anomaly that `expect` allows, the name of the allowance.
        used: Is told the name of each allowance that was needed.
    """
    rows, log = list(rows), list(log)
    found = check_history(rows, log, expect)
    strictly = Counter(violation.anomaly for violation in check_history(rows, log))
    allowed = strictly - Counter(violation.anomaly for violation in found)
    for anomaly in allowed:
        used(names[anomaly])
    return found

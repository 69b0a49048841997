"""Kills: which broken rules of the engine the exploration notices, and in which space.

The changes that break a rule are those of `tests.simulated.mutants`, which were written for another
judge, and those of `rare_mutants`. A mutant is killed if a space that is fine without it shows
a violation with it.

No space asks for the rules about what is not in the model: offsets of groups in transactions,
callers that are cancelled, drafts, blocks of records, sizes that a topic does not tell, single
records that are refused, partitions that are missing, and what a broker says of its memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.simulated.mutants import MUTANTS
from tests.simulated.mutation import applied

from . import rare_mutants as _rare_mutants  # noqa: F401 - registers mutants
from .search import Found, explore
from .spaces import SPACES

__all__ = ["KILLED_IN", "broken", "show"]

_BY_SPACE = {
    "one remembered": (
        "count instead of span",
        "no first ack gate",
        "doubt cleared by a refusal",
        "timed out taken for a rejection",
        "lost request taken for unwritten",
        "missing partition taken for acknowledged",
        "implicit ack over a rejected predecessor",
        "no implicit ack",
        "out of order ends doubt",
        "out of order bumps and resends",
        "oldest asked for ever",
    ),
    "one more record": ("new batches pass what waits",),
    "late copies": ("one refused pass is enough",),
    "unwritten": ("connection window ignored",),
    "no word": ("not leader always a rejection", "unknown code taken for a rejection"),
    "asking the leader": (
        "acked from describe producers alone",
        "not written because describe producers did not show it",
    ),
    "asking one that lags": ("epoch of describe producers ignored",),
    "window of 20": ("span rule applied to resends",),
    "window that changes": (
        "twenty kept after a leader change",
        "absent field keeps twenty",
    ),
    "split": ("in doubt batch is split",),
    "wrap of sequences": ("wrap skips zero",),
    "refused for good": (
        "in doubt batch is renumbered",
        "written numbers used again after giving up",
        "no bump after giving up",
        "epoch adopted while outstanding",
        "old sequence kept under a new epoch",
    ),
    "last epoch": ("epoch past its end",),
    "usurped": ("epoch raised when fenced",),
    "new leaders without state": ("gate not reset on leader change",),
    "a leader that forgets after an error": ("gate not reset after an error",),
    "without idempotence": ("new leader not kept waiting",),
    "recreated once": ("recreated topic taken for the same",),
    "recreated after an election": ("leader of a deleted topic believed",),
    "topic unlisted": ("state forgotten when the topic vanishes",),
    "deadlines": (
        "expired doubt said to be not written",
        "sent batches never expire",
        "grace without end",
    ),
    "old records": (
        "blind resend where suspect",
        "expiry by idleness",
        "newest stamp instead of the last",
        "first page taken for the log",
    ),
    "old records of two epochs": ("read back whatever the epoch",),
    "another cluster": ("identity kept in another cluster", "doubt carried to another cluster"),
    "a stranger's broker": ("cluster taken for granted",),
    "unclean elections": ("no data loss event", "gap not reported"),
    "transactions v1": (
        "committed before all is delivered",
        "lost commit taken for done",
        "lost commit taken for failed",
        "no new epoch after a lost call",
    ),
    "healed transactions v1": (
        "no new epoch after a gap",
        "renewed as a stranger",
        "nothing to end",
        "aborted records are kept",
        "abort overtakes its batches",
        "written before it is added",
        "concurrent taken for fatal",
        "a moved coordinator is asked again",
        "calls overtake each other",
    ),
    "healed transactions v2": ("epoch of the end ignored",),
    "twin v1": ("fenced taken for a hiccup",),
    "expired transactions v1": ("failures do not doom",),
    "expired transactions v2": ("wrong state taken for committed",),
    "no word of an end v1": ("end refused taken for done", "unlisted end taken for refused"),
    "recreated topic in transactions": (
        "recreated topics begin again in the same epoch",
        "recreated topics doom no transaction",
    ),
    "old records and no word": ("implicit ack where suspect",),
}
KILLED_IN = {mutant: space for space, mutants in _BY_SPACE.items() for mutant in mutants}
"""For each mutant: the space that kills it, with as many faults as the space allows."""


def broken(
    mutant: str,
    space: str,
    *,
    faults: int | None = None,
    limit: int | None = None,
    workers: int = 1,
) -> Found:
    """Explore a space with a mutant in place.

    Raises:
        TypeError: the mutant does not fit what it replaces, so any world would notice it.
    """
    with applied(MUTANTS[mutant]):
        found = explore(SPACES[space], faults=faults, limit=limit, workers=workers)
    if found.violation is not None and "TypeError" in found.violation.what:
        raise TypeError(f"{mutant}: {found.violation.what}")
    return found


def show(mutants: Sequence[str], spaces: Sequence[str], limit: int | None, workers: int = 1) -> int:
    """Print for each mutant which space kills it; return the exit status of the command.

    Args:
        mutants: parts of the mutants' names; empty: all mutants.
        spaces: the names of the spaces to try, in this order; empty: those of `KILLED_IN`.
        limit: the most states to visit in each space.
        workers: how many processes share a search.
    """
    began = time.monotonic()
    names = [name for name in MUTANTS if not mutants or any(part in name for part in mutants)]
    killed = missed = 0
    for name in names:
        tried = spaces or ([KILLED_IN[name]] if name in KILLED_IN else [])
        verdict = _verdict(name, tried, limit, workers)
        killed += verdict is not None
        missed += verdict is None and bool(tried)
        other = "survived" if tried else "no space asks for this rule"
        sys.stdout.write(f"{name}: {verdict or other}\n")
        sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{len(names)} mutants, {killed} killed, {missed} survived, "
        f"{len(names) - killed - missed} not tried, {seconds:.0f} s\n"
    )
    return 1 if missed else 0


def _verdict(mutant: str, spaces: Sequence[str], limit: int | None, workers: int) -> str | None:
    for space in spaces:
        found = broken(mutant, space, limit=limit, workers=workers)
        if found.violation is not None:
            steps = len(found.violation.path)
            return f"{space}, {found.states} states, {steps} steps: {found.violation.what}"
    return None

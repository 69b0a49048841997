"""What must hold in every state of a world with transactions, and at its end.

- A record is committed once at most, and the committed records of a partition are in the order of
  the calls.
- A transaction that the caller was told is committed has all of its records in the log, and none of
  them aborted. One that the caller was told is aborted, or failed, has no record committed.
- While no marker is outstanding, all records of a transaction are committed, or none is.
  What was in the log of a deleted topic is gone with it.
- A record that is ACKED is in the log, at the offset that was told. One that is NOT_WRITTEN is not
  committed.
- Once a twin has its identity, nothing more of the engine is committed.
- No transaction stays open in a log of which the coordinator does not know.
- Where `Space.holds` has "all ended as wanted": each transaction of the script is committed, or
  aborted if the script says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from .coordinator import TransactionalLog
from .transactional_world import TWINS_RECORD, TransactionalWorld

__all__ = ["wrongs"]


def wrongs(world: TransactionalWorld, ended: bool) -> Iterator[str]:
    """Yield what is wrong in a world; `ended` says whether nothing more can happen in it."""
    yield from world.complaints
    committed = world.committed() - {TWINS_RECORD}
    for index, log in enumerate(world.logs):
        assert isinstance(log, TransactionalLog)
        yield from _wrong_log(world, index, log)
    yield from _untrue_outcomes(world, committed)
    yield from _untold_transactions(world, committed)
    if world.before_twin is not None and committed != world.before_twin:
        yield f"committed after a twin took over: {sorted(committed - world.before_twin)}"
    if world.core.sight.losses and not world.deleted:
        yield "the engine reports a loss, and nothing was lost"
    if ended and not world.settled:
        yield f"the engine waits for ever: {world.told}"
    if world.settled and "all ended as wanted" in world.space.holds:
        wanted = ["committed" if each > 0 else "aborted" for each in world.space.script]
        if world.told != wanted:
            yield f"the caller wanted {wanted}, and was told {world.told}"


def _wrong_log(world: TransactionalWorld, index: int, log: TransactionalLog) -> Iterator[str]:
    shown = [n for at, batch in log.entries if log.fates[at] == "commit" for n in batch.numbers]
    mine = [number for number in shown if number != TWINS_RECORD]
    if len(set(mine)) < len(mine):
        yield f"a record is committed twice: {mine}"
    if mine != sorted(mine):
        yield f"records are committed out of order: {mine}"
    known = world.coordinator
    unended = known.state == "ongoing" and index in known.partitions
    if log.open and not unended and index not in known.unmarked:
        yield f"a transaction is open in partition {index}, and nobody ends it"


def _untrue_outcomes(world: TransactionalWorld, committed: frozenset[int]) -> Iterator[str]:
    places: dict[int, set[int]] = {}
    for log in (*world.deleted, *world.logs):
        for offset, batch in log.entries:
            for place, number in enumerate(batch.numbers):
                places.setdefault(number, set()).add(offset + place)
    for number, (status, offset) in enumerate(world.outcomes):
        if status == "acked" and number not in places:
            yield f"record {number} is ACKED, and it is not in the log"
        elif status == "acked" and offset >= 0 and offset not in places[number]:
            yield f"record {number} is ACKED at {offset}, and it is at {places[number]}"
        if status == "not written" and number in committed:
            yield f"record {number} is NOT_WRITTEN, and it is committed"


def _untold_transactions(world: TransactionalWorld, committed: frozenset[int]) -> Iterator[str]:
    going = {
        number
        for log in world.logs
        if isinstance(log, TransactionalLog)
        for offset, batch in log.entries
        if log.fates[offset] in ("open", "commit")
        for number in batch.numbers
    }
    gone = {n for log in world.deleted for _, batch in log.entries for n in batch.numbers}
    for place in range(world.begun):
        records = {n for n, which in enumerate(world.transaction_of) if which == place} - gone
        told = world.told[place] if place < len(world.told) else ""
        shown = records & committed
        if told == "committed" and not records <= going:
            yield f"transaction {place} is committed, without {sorted(records - going)}"
        if told == "committed" and shown != records and not world.coordinator.marking:
            yield f"transaction {place} is committed, and nobody ends it"
        if told in ("aborted", "failed") and shown:
            yield f"transaction {place} is {told}, and {sorted(shown)} are committed"
        if shown and shown != records and not world.coordinator.marking:
            yield f"only {sorted(shown)} of transaction {place} are committed"

"""Other logs: what was read of a log, changed at random, to ask for more verdicts than a run needs.

A run shows few of the logs that `LogSearch` has to understand: markers of transactions, batches of
another client with the same identity, offsets that are missing, a topic that is another one, and
clocks at the very bound at which brokers forget. Such logs are made of one that was read, and each
verdict about them is compared with the one that `second_verdict` derives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from aioidem._engine.log_search import LogFacts, LoggedBatch, LogSearch, judge
from aioidem.incident import Incident
from aioidem.resolution import UndecidedReason

from .second_verdict import Reading, complaint_about

__all__ = ["complaints_about_other_logs"]

_OTHERS: Final = 6
"""How many other logs are made of one."""

_OTHER_TOPIC: Final = UUID(int=0x0DD)
_LAST: Final = (1 << 31) - 1
"""The largest sequence number."""

_AGES: Final = (0.0, 0.3, 0.499, 0.5, 0.501, 0.75, 0.999, 1.001, 3.0)
"""How old the producer's last batch is, as a share of the time after which brokers forget."""

_Log = tuple[Incident, Reading]


def complaints_about_other_logs(
    incident: Incident, reading: Reading, dice: Random
) -> Iterator[str]:
    """Yield what is wrong with the verdicts about other logs than the one that was read.

    Args:
        incident: The batch that is looked for.
        reading: What was read.
        dice: Chooses what is changed.
    """
    for _ in range(_OTHERS):
        other, changed = incident, reading
        for change in dice.sample(_CHANGES, dice.choice((1, 2, 2, 3, 4))):
            other, changed = change((other, changed), dice)
        search = None
        if changed.begin is not None:
            search = LogSearch(other, changed.begin)
            for page in _pages(changed.batches, dice):
                search.read(page)
        resolution = judge(other, search, changed.facts)
        complaint = complaint_about(resolution, other, changed)
        if complaint is not None:
            yield f"{complaint}: {resolution} of {changed}"


def _pages(batches: Sequence[LoggedBatch], dice: Random) -> Iterator[Sequence[LoggedBatch]]:
    at = 0
    while at < len(batches):
        size = dice.choice((1, 2, 50))
        yield batches[at : at + size]
        at += size


# -- what is changed -------------------------------------------------------------------------------


def _facts(log: _Log, **values: Any) -> _Log:
    incident, reading = log
    return incident, reading._replace(facts=reading.facts._replace(**values))


def _batches(log: _Log, batches: Sequence[LoggedBatch]) -> _Log:
    return log[0], log[1]._replace(batches=tuple(batches))


def _another_time(log: _Log, dice: Random) -> _Log:
    incident, reading = log
    own = [each for each in reading.batches if each.producer_id == incident.producer_id]
    facts: LogFacts = reading.facts
    newest = own[-1].max_timestamp_ms if own else facts.now_ms
    return _facts(log, now_ms=newest + facts.expiration * 1000.0 * dice.choice(_AGES))


def _another_start(log: _Log, dice: Random) -> _Log:
    places = {0, *(each.base_offset for each in log[1].batches)}
    places |= {each.last_offset + 1 for each in log[1].batches}
    return _facts(log, log_start=dice.choice(sorted(places)))


def _another_topic(log: _Log, dice: Random) -> _Log:
    if dice.random() < 0.3:
        return dataclasses.replace(log[0], topic_id=None), log[1]
    return _facts(log, topic_id=dice.choice((None, _OTHER_TOPIC)))


def _an_obstacle(log: _Log, dice: Random) -> _Log:
    why = dice.choice(list(UndecidedReason))
    return _facts(log, obstacle=why, detail=why.value)


def _nothing_read(log: _Log, dice: Random) -> _Log:
    incident, reading = _an_obstacle(log, dice)
    return incident, reading._replace(begin=None, batches=())


def _another_beginning(log: _Log, dice: Random) -> _Log:
    reading = log[1]
    if reading.begin is None or not reading.batches:
        return log
    from_there = dice.randrange(len(reading.batches))
    begin = reading.batches[from_there].base_offset
    return log[0], reading._replace(begin=begin, batches=reading.batches[from_there:])


def _a_gap(log: _Log, dice: Random) -> _Log:
    batches = list(log[1].batches)
    if len(batches) > 1:
        del batches[dice.randrange(len(batches))]
    return _batches(log, batches)


def _another_batch(log: _Log, dice: Random) -> _Log:
    """Change one batch: often so that it is the one that is looked for, or almost."""
    incident, batches = log[0], list(log[1].batches)
    if not batches:
        return log
    at = dice.randrange(len(batches))
    batch = batches[at]
    if dice.random() < 0.5:
        batch = batch._replace(
            producer_id=incident.producer_id,
            producer_epoch=incident.producer_epoch,
            base_sequence=incident.base_sequence,
            last_sequence=(incident.base_sequence + incident.count - 1) % (_LAST + 1),
            last_offset=batch.base_offset + incident.count - 1,
            crc=batch.crc if incident.crc is None else incident.crc,
            codec=batch.codec if incident.codec is None else incident.codec,
        )
        # The offsets of those that follow are later by as many.
        moved = batch.last_offset - batches[at].last_offset
        batches[at + 1 :] = [
            each._replace(
                base_offset=each.base_offset + moved, last_offset=each.last_offset + moved
            )
            for each in batches[at + 1 :]
        ]
    for name, values in dice.sample(
        (
            ("producer_id", (incident.producer_id, incident.producer_id + 1)),
            ("producer_epoch", [incident.producer_epoch + n for n in (-1, 0, 1)]),
            ("base_sequence", (incident.base_sequence, incident.base_sequence + 1)),
            ("last_sequence", [(incident.base_sequence + n) & _LAST for n in _AHEAD]),
            ("crc", (batch.crc + 1,)),
            ("codec", (0, 1, 4)),
            ("log_append", (True,)),
            ("transactional", (True,)),
        ),
        dice.choice((0, 1, 1, 2)),
    ):
        changed: dict[str, Any] = {name: dice.choice(values)}
        batch = batch._replace(**changed)
    batches[at] = batch
    return _batches(log, batches)


_AHEAD: Final = (-1, 0, 1, (1 << 30) - 1, 1 << 30, (1 << 30) + 1)


def _a_transaction(log: _Log, dice: Random) -> _Log:
    """Make the batches those of transactions, with markers behind some of them."""
    batches: list[LoggedBatch] = []
    moved = 0
    for each in log[1].batches:
        there = each._replace(
            base_offset=each.base_offset + moved,
            last_offset=each.last_offset + moved,
            transactional=True,
        )
        batches.append(there)
        if dice.random() < 0.3:
            moved += 1
            batches.append(
                there._replace(
                    base_offset=there.last_offset + 1,
                    last_offset=there.last_offset + 1,
                    producer_epoch=there.producer_epoch + dice.choice((0, 0, 1)),
                    base_sequence=-1,
                    last_sequence=-1,
                    control=True,
                    commits=dice.choice((True, False, None)),
                )
            )
    return _batches(log, batches)


def _another_incident(log: _Log, dice: Random) -> _Log:
    incident, reading = log
    name, value = dice.choice(
        (
            ("after", None),
            ("crc", None),
            ("codec", None),
            ("count", incident.count + 1),
            ("renumbered", not incident.renumbered),
            ("index", 0),
            ("producer_epoch", incident.producer_epoch + 1),
            ("base_sequence", (incident.base_sequence + 1) & _LAST),
            ("base_sequence", (incident.base_sequence - 1) & _LAST),
        )
    )
    changed: dict[str, Any] = {name: value}
    return dataclasses.replace(incident, **changed), reading


_CHANGES: Final[Sequence[Callable[[_Log, Random], _Log]]] = (
    _another_time,
    _another_start,
    _another_topic,
    _an_obstacle,
    _nothing_read,
    _another_beginning,
    _a_gap,
    _another_batch,
    _a_transaction,
    _another_incident,
)

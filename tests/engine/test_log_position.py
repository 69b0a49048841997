"""`LogPosition` alone: the end of a partition's log, and what an offset shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.log_position import LogPosition


def batch(ordinal: int, count: int = 2, last: int = 11) -> Batch:
    found: Any = SimpleNamespace(
        ordinal=ordinal, count=count, identity=ProducerIdentity(7, 0), wire_last=last
    )
    return cast("Batch", found)


def reached() -> LogPosition:
    """Return the position behind batch 3, whose two records have the offsets 20 and 21."""
    log = LogPosition()
    log.reach(batch(3), 20)
    return log


def test_the_newest_batch_and_the_last_offset_are_kept() -> None:
    log = LogPosition()
    assert (log.offset, log.ordinal, log.end) == (-1, -1, None)
    log.reach(batch(0), -1)
    assert (log.offset, log.ordinal, log.end) == (-1, 0, None)
    log.reach(batch(3), 20)
    assert (log.offset, log.ordinal) == (21, 3)
    assert log.end == (21, ProducerIdentity(7, 0), 11)
    log.reach(batch(2, last=9), 10)
    assert (log.offset, log.ordinal, log.end) == (21, 3, (21, ProducerIdentity(7, 0), 11))
    log.reach(batch(4, last=13), -1)
    assert (log.offset, log.ordinal) == (21, 4)
    first = LogPosition()
    first.reach(batch(0, count=1), 0)
    assert first.offset == 0


@pytest.mark.parametrize(
    ("ordinal", "offset", "wrong"),
    [(4, 22, False), (4, 21, True), (4, 0, True), (4, -1, False), (3, 21, False), (2, 5, False)],
)
def test_a_newer_batch_at_an_older_offset_shows_a_loss(
    ordinal: int, offset: int, wrong: bool
) -> None:
    assert reached().contradicts(batch(ordinal), offset) is wrong


@pytest.mark.parametrize(
    ("ordinal", "offset", "room"),
    [
        (6, -1, True),
        (6, 25, False),
        (6, 26, True),
        (2, 0, True),
        (3, 21, False),
        (3, 0, False),
    ],
)
def test_an_offset_leaves_room_for_batches_between(ordinal: int, offset: int, room: bool) -> None:
    """Of batches 3, 4 and 5 before it, 4 and 5 are newer than the known end, with two records."""
    between = [batch(3), batch(4), batch(5)]
    assert reached().leaves_room(batch(ordinal), offset, between) is room


def test_a_loss_is_reported_once() -> None:
    log = reached()
    assert not log.is_explained(batch(0))
    log.accept_loss(batch(5, last=15), 10)
    assert (log.offset, log.ordinal) == (11, 3)
    assert log.end == (11, ProducerIdentity(7, 0), 15)
    told = [log.is_explained(batch(each)) for each in (4, 5, 6)]
    assert told == [True, True, False]
    log.note_loss(batch(2))
    assert log.is_explained(batch(5)), "an older loss takes nothing away"
    log.renumber()
    assert (log.offset, log.ordinal) == (11, -1)
    assert not log.is_explained(batch(0))

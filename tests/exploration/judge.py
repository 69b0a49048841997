"""Judge: what must hold in every state of a world, and at its end.

Each promise has a name, so that a space can say which ones hold in it (`Space.holds`):

- *once*: no record is in the log twice.
- *in order*: the records of a partition are in the log in the order of the calls.
- *acked*: a record that is ACKED is in the log and committed, at the offset that the engine told.
- *not written*: a record that is NOT_WRITTEN is not in the log. As later states are judged too, it
  never gets there.
- *no alarm*: the engine reports no data loss, unless an unclean election has lost something. (Then
  what was lost does not count as untrue: *acked* is about the other records.)
- *loss told*: the engine reports a data loss if the offsets that it was told show one (a record has
  no higher offset than one before it), or if it begins its sequences again after one.
- *in time*: a record has its outcome within the delivery timeout and one request timeout.
- *all acked*: at the end every record is ACKED.

Whatever a space says, no batch breaks a rule of the wire (`World.complaints`), and the engine does
not wait for ever: no world ends before each record has an outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import transactional_judge
from .transactional_world import TransactionalWorld
from .world import World

__all__ = ["wrong"]


def wrong(world: World, *, ended: bool) -> str | None:
    """Return what is wrong in a world; None if nothing is.

    Args:
        world: the world.
        ended: whether nothing more can happen in it.
    """
    if isinstance(world, TransactionalWorld):
        return next(transactional_judge.wrongs(world, ended), None)
    return next(_wrongs(world, ended), None)


def _wrongs(world: World, ended: bool) -> Iterator[str]:
    holds = world.space.holds
    yield from world.complaints
    everything: list[int] = []
    for log in (*world.deleted, *world.logs):
        written = [number for _, batch in log.entries for number in batch.numbers]
        everything += written
        if written != sorted(written) and "in order" in holds:
            yield f"records are out of order: {written}"
    if len(set(everything)) < len(everything) and "once" in holds:
        yield f"a record is written twice: {everything}"
    yield from _untrue_outcomes(world, holds)
    alarmed = world.core.sight.losses > 0
    if "no alarm" in holds and alarmed and not any(log.lost for log in world.logs):
        yield "the engine reports a loss, and nothing was lost"
    if "loss told" in holds and not alarmed:
        yield from _untold_losses(world)
    if "in time" in holds:
        yield from _late_outcomes(world)
    if ended and not world.settled:
        yield f"the engine waits for ever: {_described(world)}"
    if ended and "all acked" in holds and any(status != "acked" for status, _ in world.outcomes):
        yield f"not every record is acknowledged: {_described(world)}"


def _untold_losses(world: World) -> Iterator[str]:
    step = world.space.partitions
    for partition in range(step):
        highest = -1
        for status, offset in world.outcomes[partition::step]:
            if status == "acked" and 0 <= offset <= highest:
                yield f"offset {offset} follows {highest}, and the engine reports no loss"
            highest = max(highest, offset)
    lost = any(world.outcomes[number][0] == "acked" for log in world.logs for number in log.lost)
    if lost and any(batch.epoch > world.space.epoch for batch in world.written.values()):
        yield "the sequences begin again after a loss, and the engine reports none"


def _late_outcomes(world: World) -> Iterator[str]:
    config = world.space.config
    longest = config.delivery_timeout + config.request_timeout
    for number, (status, _) in enumerate(world.outcomes):
        if status == "pending" and world.now > world.queued[number] + longest:
            yield f"record {number} has no outcome after {world.now - world.queued[number]:g} s"


def _untrue_outcomes(world: World, holds: frozenset[str]) -> Iterator[str]:
    places: dict[int, set[int]] = {}
    committed = set()
    lost = {number for log in world.logs for number in log.lost}
    for log in (*world.deleted, *world.logs):
        for offset, batch in log.entries:
            for place, number in enumerate(batch.numbers):
                places.setdefault(number, set()).add(offset + place)
                if offset + place < log.committed:
                    committed.add(number)
    for number, (status, offset) in enumerate(world.outcomes):
        if status == "acked" and "acked" in holds:
            if number in lost:
                continue
            if number not in committed:
                yield f"record {number} is ACKED, and it is not in the log"
            elif offset >= 0 and offset not in places[number]:
                yield f"record {number} is ACKED at {offset}, and it is at {places[number]}"
        if status == "not written" and number in places and "not written" in holds:
            yield f"record {number} is NOT_WRITTEN, and it is in the log"


def _described(world: World) -> str:
    return ", ".join(f"{number} {status}" for number, (status, _) in enumerate(world.outcomes))

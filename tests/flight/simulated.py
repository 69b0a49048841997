"""Flight records of simulated runs."""

from __future__ import annotations

from aioidem._flight.dump import Dump
from aioidem._flight.record import FlightRecord
from aioidem._flight.replay import Replay
from tests.simulated.schedule import Schedule
from tests.simulated.soak import quiet
from tests.simulated.world import Result, World

__all__ = ["flown", "replayed"]

_TICK = 1e-9


class _TickingWorld(World):
    """A world in which no two things happen at exactly the same time, as in the real one."""

    _at = 0.0
    _ticks = 0

    @property
    def now(self) -> float:
        """The time, which advances a little whenever somebody looks."""
        self._ticks += 1
        return self._at + self._ticks * _TICK

    @now.setter
    def now(self, at: float) -> None:
        self._at = at


def flown(schedule: Schedule, most: int) -> tuple[Result, bytes]:
    """Run a schedule; return the result, and a flight record of its last events, `most` at most."""
    with quiet():
        world = _TickingWorld(schedule, flight=most)
        result = world.run()
    assert world.flight is not None
    assert world.flight.failure is None
    return result, Dump(world.flight, "the run has ended", 0.0).encode()


def replayed(content: bytes) -> Replay:
    """Replay a flight record to its end."""
    replay = Replay(FlightRecord.decode(content))
    for _ in replay.run():
        pass
    return replay

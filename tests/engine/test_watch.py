"""What `OperatorWatch` finds in the engine; test_incidents.py has when a line is logged about it."""

from __future__ import annotations

from aioidem._log import LogLine, Phase

from .driver import Rig
from .test_doubt import doubted


def incidents(rig: Rig) -> list[tuple[LogLine, Phase]]:
    """Let the watch look now, and return the lines of incidents that it gives."""
    rig.core.outcomes.take_events()
    rig.core.watch.look(rig.now)
    events = rig.core.outcomes.take_events()
    return [(each.line, each.phase) for each in events if each.phase is not Phase.ONCE]


def test_batches_are_in_doubt_also_after_an_earlier_one_was_acknowledged() -> None:
    """The others are resent and not answered, so they are in doubt as long as before."""
    rig = doubted(3)
    rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 2
    rig.tick(0.5)
    assert incidents(rig) == [(LogLine.IN_DOUBT, Phase.BEGINS)]
    rig.ack_all()
    assert incidents(rig) == [(LogLine.IN_DOUBT, Phase.ENDS)]

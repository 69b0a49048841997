"""What `OperatorWatch` finds in the engine; test_incidents.py says when a line is logged."""

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


def test_the_partition_that_has_been_without_a_leader_for_longest_is_named() -> None:
    rig = Rig(partitions=2).start()
    rig.core.outcomes.take_events()
    for partition in (0, 1):
        rig.move_leader(-1, 1, partition=partition, seconds=0.5)
        rig.send(partition=partition)
        rig.tick(3.0)
    rig.core.watch.look(rig.now)
    (event,) = rig.core.outcomes.take_events()
    assert (event.line, event.phase) == (LogLine.LEADER_MISSING, Phase.BEGINS)
    assert event.text.startswith("t-0 and 1 more partition with waiting records: no leader")


def test_a_broker_that_throttles_no_more_is_no_condition() -> None:
    rig = Rig().start()
    link, *_ = rig.core.connections.links.values()
    link.throttle(5000, rig.now)
    assert link.throttle_at(rig.now) == 5.0
    link.throttle(0, rig.now)
    assert not link.throttle_at(rig.now)

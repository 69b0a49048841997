"""When the engine asks to be woken, while acknowledged batches are followed by new ones.

Then a poll keeps the time of the poll before. The rig compares that time with the exact one after
each poll; in these tests the exact time is the earlier one.
"""

from __future__ import annotations

import pytest

from .driver import UNKNOWN, Rig, T, pipelined


def test_a_connection_that_falls_idle_is_closed_on_time() -> None:
    """While a request is outstanding, the engine waits for `request_timeout`.

    When it is answered, the connection falls idle, and `connections_max_idle` may be shorter.
    """
    rig, requests = pipelined(1, connections_max_idle=5.0, request_timeout=30.0)
    end = requests[0].link
    rig.ack(requests[0])
    rig.tick(4.9)
    assert not end.closed
    rig.tick(0.2)
    assert end.closed


def test_a_record_that_is_seen_long_after_its_call_ends_at_its_deadline() -> None:
    """A deadline counts from the call, although a blocked event loop polls the engine later."""
    rig, _ = pipelined(1, request_timeout=30.0, delivery_timeout=31.0, metadata_max_age=300.0)
    rig.ack_all()
    refreshed_at = rig.core.metadata.refreshed_at
    assert refreshed_at is not None
    rig.tick(refreshed_at + 300.0 - 32.0 - rig.now)
    called_at = rig.now
    (record,) = rig.send(poll=False)
    rig.now += 5.0
    rig.tick(27.0)
    assert record.status is UNKNOWN
    assert record.at == pytest.approx(called_at + 31.0, abs=0.01)


def test_an_old_leader_is_given_up_sooner_when_round_trips_become_short() -> None:
    """A silent old leader has three round trips, by the latest estimate, which can fall."""
    rig, (first, silent) = pipelined(2, brokers=2, request_timeout=30.0)
    leader = rig.leaders[T, 1] = rig.leaders[T, 0]
    rig.move_leader(2, leader[1] + 1, seconds=0.5)
    rig.now += 10.0
    rig.ack(first)
    link = rig.core.connections.links[silent.link.link_id]
    assert link.rtt is not None
    before = 3.0 * link.rtt
    assert before > 3.5
    rig.send(partition=1)
    other = rig.outstanding()[-1]
    assert other.link is silent.link
    rig.now += 0.1
    rig.ack(other)
    rig.tick(2.5)
    assert silent.link.closed


def test_metadata_that_is_due_on_a_full_connection_is_requested_when_there_is_room() -> None:
    """A due Metadata request gets the first free place, though batches wait for it as well."""
    rig, requests = pipelined(5, max_in_flight_requests_per_connection=5, metadata_max_age=10.0)
    before = rig.core.metadata.requests
    rig.tick(10.1)
    rig.send(5)
    assert rig.core.metadata.requests == before
    rig.ack(requests[0])
    rig.poll()
    assert rig.core.metadata.requests == before + 1


def test_an_old_leader_that_owes_an_answer_to_what_has_ended_is_given_up_on_time() -> None:
    """Its batch ended UNKNOWN at the deadline, and nothing is unresolved; a record waits behind."""
    rig = Rig(brokers=2, request_timeout=30.0, delivery_timeout=40.0, metadata_max_age=3000.0)
    rig.start()
    rig.send()
    rig.ack_all()
    rig.leaders[T, 0] = (-1, 1)
    rig.refresh()
    (late,) = rig.send()
    sent_at = rig.now
    rig.tick(37.0)
    rig.leaders[T, 0] = (1, 2)
    rig.core.metadata.want()
    rig.tick(2.3)
    (owed,) = rig.outstanding()
    rig.send()
    rig.tick(sent_at + 40.1 - rig.now)
    assert late.status is UNKNOWN
    rig.leaders[T, 0] = (2, 3)
    rig.core.metadata.want()
    rig.tick(2.5)
    assert owed.link.closed
    assert rig.outstanding()[-1].link is not owed.link

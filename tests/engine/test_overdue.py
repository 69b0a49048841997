"""The words in which an error says what a record waits for, since when, and what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine.batch import BatchState
from aioidem._engine.overdue import (
    LeaderStatus,
    Trouble,
    batch_progress,
    last_failure,
    obstacle,
    overdue,
    queue_progress,
)
from aioidem._engine.reach import Reach, reason_of

from .driver import ACKED, NOT_ENOUGH_REPLICAS, PENDING, Rig

UP = LeaderStatus("broker 1 (b1:9092)", leads=True, down_since=None, attempts=0, error=None)
DOWN = UP._replace(down_since=90.0, attempts=3, error=OSError("refused"))
GONE = UP._replace(leads=False)
THROTTLED = (
    "no acknowledgement of the leader, broker 1 (b1:9092), which throttles this client (a quota) by"
    " up to 2.5 s, for 20.0 s"
)


def trouble(*reasons: str, since: float = 80.0) -> Trouble:
    found = Trouble(since)
    for each in reasons:
        found.add(each)
    return found


# -- what a partition waits for


@pytest.mark.parametrize(
    ("leader", "identified", "told"),
    [
        (UP, True, "no acknowledgement of the leader, broker 1 (b1:9092), for 20.0 s"),
        (UP, False, "the cluster has granted no producer id"),
        (
            UP._replace(throttle=2.5),
            True,
            THROTTLED,
        ),
        (UP._replace(throttle=2.5, not_added="not added"), True, "not added"),
        (
            DOWN._replace(not_added="not added"),
            False,
            "no connection to the leader, broker 1 (b1:9092), for 10.0 s and 3 attempts: refused",
        ),
        (
            DOWN._replace(attempts=1),
            True,
            "no connection to the leader, broker 1 (b1:9092), for 10.0 s and 1 attempt: refused",
        ),
        (
            DOWN._replace(error=None),
            True,
            "no connection to the leader, broker 1 (b1:9092), for 10.0 s and 3 attempts",
        ),
        (GONE, True, "no leader; last tried broker 1 (b1:9092)"),
        (
            GONE._replace(error=OSError("refused")),
            True,
            "no leader; last tried broker 1 (b1:9092): refused",
        ),
        (GONE._replace(name=None), True, "no leader"),
    ],
)
def test_what_a_partition_waits_for(leader: LeaderStatus, identified: bool, told: str) -> None:
    assert obstacle(trouble(), leader, 100.0, identified=identified) == told


def test_since_when_there_is_no_leader_and_nothing_without_a_failure() -> None:
    since = trouble()
    since.leaderless_since = 95.0
    assert obstacle(since, GONE._replace(name=None), 100.0) == "no leader for 5.0 s"
    assert obstacle(None, UP, 100.0) == "no acknowledgement of the leader, broker 1 (b1:9092)"


def test_the_last_failure_is_told_and_of_how_many() -> None:
    assert last_failure(None) == ""
    assert last_failure(trouble()) == ""
    assert last_failure(trouble("no")) == "; last failure: no"
    assert last_failure(trouble("no", "still no")) == "; last of 2 failures: still no"


def batch(state: BatchState, attempts: int, sent_at: float | None) -> Any:
    attempt = None if sent_at is None else SimpleNamespace(sent_at=sent_at)
    return SimpleNamespace(state=state, attempts=attempts, attempt=attempt)


def test_how_often_a_batch_was_sent_and_whether_an_answer_is_missing() -> None:
    assert batch_progress(batch(BatchState.SEALED, 0, None), 100.0) == "never sent"
    assert batch_progress(batch(BatchState.WAITING, 1, 99.0), 100.0) == "sent once"
    assert batch_progress(batch(BatchState.WAITING, 2, 99.0), 100.0) == "sent 2 times"
    assert batch_progress(batch(BatchState.IN_FLIGHT, 2, 99.0), 100.0) == (
        "sent 2 times, the last time 1.0 s ago without an answer yet"
    )


def test_why_queued_records_were_not_sent() -> None:
    assert queue_progress(0) == "never sent"
    behind = "never sent: waiting behind {} without an acknowledgement"
    assert queue_progress(1) == behind.format("a batch")
    assert queue_progress(2) == behind.format("2 batches")


# -- what to do about it


@pytest.mark.parametrize(
    ("leader", "advice"),
    [
        (GONE, "Check why no replica of the partition can lead it"),
        (
            DOWN._replace(error=errors.AuthenticationFailedError("no")),
            "Check this client's credentials, and where they come from",
        ),
        (
            DOWN,
            "Check whether broker 1 (b1:9092) runs and can be reached at that address from here",
        ),
        (UP._replace(throttle=0.5), "Send less, or raise this client's quota"),
        (UP, "Check the log of broker 1 (b1:9092), and whether it keeps up"),
    ],
)
def test_what_to_do(leader: LeaderStatus, advice: str) -> None:
    error = overdue("t-0", 2, 30.0, "sent once", "no word", trouble("no"), leader, in_doubt=False)
    assert str(error.args[0]) == (
        "t-0: 2 records not written in delivery_timeout (30 s): no word; sent once; last failure:"
        f" no. {advice}, or raise delivery_timeout"
    )


def test_records_that_may_be_in_the_log_are_called_so() -> None:
    error = overdue("t-0", 1, 30.0, "sent once", "no word", None, UP, in_doubt=True)
    assert "t-0: 1 record not acknowledged, perhaps written, in delivery_timeout" in str(error)


def test_the_cause_is_why_the_leader_cannot_be_reached_or_else_the_last_failure() -> None:
    """A copy of it, because a traceback would keep a closed connection in memory."""
    refused = errors.NotEnoughReplicasError("no")
    last = Trouble(80.0)
    last.add(refused)

    def cause(found: Trouble | None, leader: LeaderStatus) -> BaseException | None:
        told = overdue("t-0", 1, 30.0, "sent", "no word", found, leader, in_doubt=False)
        return told.__cause__

    assert cause(None, UP) is None
    assert cause(trouble("in words"), UP) is None
    assert cause(last, DOWN) is DOWN.error
    loading = errors.CoordinatorLoadInProgressError("loading")
    waits = UP._replace(not_added=f"not added: {loading}", refusal=loading)
    assert isinstance(cause(last, waits), errors.CoordinatorLoadInProgressError)
    copied = cause(last, UP)
    assert isinstance(copied, errors.NotEnoughReplicasError)
    assert copied is not refused


# -- since when no broker can be reached


def test_since_when_no_broker_can_be_reached_and_the_first_three_reasons() -> None:
    reach = Reach()
    assert reach.failure([], 1.0) is None
    reach.failed(10.0)
    closed = reach.failure([None], 12.5)
    assert closed is not None
    assert str(closed.args[0]) == (
        "no broker can be reached for 2.5 s and 1 attempt: the connections were closed"
    )
    assert closed.__cause__ is None
    reach.failed(11.0)
    several = [OSError(each) for each in ("a", "b", "a", "c")]
    told = reach.failure([None, *several], 12.5)
    assert told is not None
    assert str(told.args[0]) == "no broker can be reached for 2.5 s and 2 attempts: a; b; c"
    assert told.__cause__ is several[0]
    more = reach.failure([*several, OSError("d"), OSError("e")], 12.5)
    assert str(more).endswith(": a; b; c; 2 more")
    reach.up()
    assert reach.failure(several, 12.5) is None
    reach.failed(20.0)
    assert str(reach.failure([], 21.0)).endswith("1.0 s and 1 attempt: the connections were closed")


def test_the_reason_is_an_errors_text_without_its_class() -> None:
    assert reason_of(OSError("refused")) == "refused"
    assert reason_of(OSError(111, "refused")) == "111"
    assert reason_of(OSError()) == ""


# -- what all partitions wait for


def test_a_timeout_names_the_partition_whose_records_have_waited_longest() -> None:
    rig = Rig(partitions=3).start()
    assert rig.core.obstacle(rig.now) is None
    rig.send(partition=1)
    rig.tick(2.0)
    first = rig.core.obstacle(rig.now)
    assert str(first).startswith("KafkaError: t-1: 1 record without an outcome, the oldest queued")
    assert "2.0 s ago: no acknowledgement of the leader, broker 1" in str(first)
    assert "more partition" not in str(first)
    rig.send(2, partition=0)
    told = str(rig.core.obstacle(rig.now))
    assert told.startswith("KafkaError: t-1: 1 record")
    assert told.endswith("; 1 more partition waits")
    rig.send(partition=2)
    assert str(rig.core.obstacle(rig.now)).endswith("; 2 more partitions wait")
    rig.ack(next(each for each in rig.outstanding() if each.only.where[1] == 1))
    assert "t-0: 2 records without an outcome" in str(rig.core.obstacle(rig.now))


def test_nobody_waits_for_a_partition_that_only_lacks_an_answer() -> None:
    """Its records have ended, and the leader still owes the answer to their batch."""
    rig = Rig(partitions=2, delivery_timeout=10.0, request_timeout=10.0, linger=0.0).start()
    rig.send(partition=1)
    rig.send(partition=1)
    rig.tick(4.0)
    rig.ack(rig.outstanding()[0])
    (request,) = rig.outstanding()
    rig.tick(6.5)
    assert not rig.core.unsettled
    assert rig.core.connections.links[request.link.link_id].outstanding
    assert rig.core.obstacle(rig.now) is None


def test_the_cause_of_a_timeout_is_the_partitions_last_failure() -> None:
    rig = Rig().start()
    rig.send()
    told = rig.core.obstacle(rig.now)
    assert told is not None
    assert told.__cause__ is None
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
    told = rig.core.obstacle(rig.now)
    assert told is not None
    assert isinstance(told.__cause__, errors.NotEnoughReplicasError)
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED]


def test_if_no_broker_can_be_reached_the_timeout_says_that_first() -> None:
    rig = Rig().start()
    rig.send()
    rig.down.add(1)
    rig.lose()
    rig.tick(3.0)
    told = rig.core.obstacle(rig.now)
    assert isinstance(told, errors.KafkaConnectionError)
    assert "no broker can be reached for" in str(told)
    assert rig.statuses == [PENDING]

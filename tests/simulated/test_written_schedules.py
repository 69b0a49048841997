"""Schedules that were written to break the producer, each as a test.

Each is a `Schedule` written by hand, run through the engine, the Sender and the model of the
broker, and judged by the history checker and the wire monitor. Each test also asserts how the
records of its schedule must end.
"""

from __future__ import annotations

from typing import Any

import pytest

from aioidem.testing import Outcome

from .schedule import Call, Fault, Glitch, Schedule
from .world import Result, run

RTT = 0.1
FIRST = 0.65
"""When the first Produce request has left, in seconds.

Before it come TCP, ApiVersions, Metadata and InitProducerId; and then, on the leader's connection,
the request that asks for the cluster id.
"""

PIPELINED: dict[str, Any] = {
    "request_timeout": 2.0,
    "delivery_timeout": 60.0,
    "batch_size": 150,
    "late_sealing": False,
    "max_in_flight_requests_per_connection": 20,
    "window_discovery": "on",
    "retry_backoff": 0.01,
    "reconnect_backoff": 0.01,
}


def calls(count: int, *, every: float = 0.01, first: float = 0.0, age: float = 0.0) -> Any:
    return tuple(Call(first + i * every, "t", 0, None, 60, age) for i in range(count))


def schedule(**values: Any) -> Schedule:
    options = PIPELINED | values.pop("options", {})
    given: dict[str, Any] = {
        "retain": (20,),
        "versions": (14,),
        "rtt": RTT,
        "calls": calls(80),
        "profile": "attack",
    }
    return Schedule(0, options=options, **(given | values))


def clean(plan: Schedule) -> Result:
    result = run(plan, trace=True)
    assert not result.violations, "\n".join([*result.trace[-60:], *map(str, result.violations)])
    return result


def all_acked(result: Result) -> None:
    assert set(result.outcomes) == {Outcome.ACKED}


LATER = FIRST + 5 * RTT
"""A time well into the load, with twenty batches in flight."""


def test_not_leader_after_the_append_is_no_rejection() -> None:
    """A batch that was appended and then answered NOT_LEADER is acknowledged.

    The leader moves under load: the old one appended the batch, and waited for its followers.
    """
    result = clean(
        schedule(
            brokers=2,
            replication=2,
            retain=(20, 20),
            versions=(14, 14),
            faults=(
                Fault(LATER, "hold", ("t", 0, 0, 0.3)),
                Fault(LATER + 0.15, "move", ("t", 0, 1)),
            ),
        )
    )
    all_acked(result)
    assert result.bumps == 0


@pytest.mark.parametrize("code", [3, 6, 100])
def test_two_faced_codes_are_in_doubt_with_a_base_offset(code: int) -> None:
    alone = {"max_in_flight_requests_per_connection": 1}
    result = clean(schedule(options=alone, glitches=(Glitch(3, "after", (code, None)),)))
    all_acked(result)
    assert result.retries == 1


def test_a_two_faced_code_before_an_expiry_never_ends_not_written() -> None:
    """A batch that expires after NOT_LEADER with a base offset does not end NOT_WRITTEN.

    The base offset shows that the batch is in the log.
    """
    plan = schedule(
        options={"delivery_timeout": 2.1, "request_timeout": 2.0},
        faults=(Fault(LATER, "stall", (3.0, True)),),
        glitches=tuple(Glitch(n, "after", (6, None)) for n in range(8, 20)),
    )
    clean(plan)


@pytest.mark.parametrize("reads", [True, False])
def test_describe_producers_acknowledges_nothing(reads: bool) -> None:
    """A DescribeProducers answer acknowledges no batch.

    The leader that answers may still lose the end of its log, and with it the last batch.
    """
    result = clean(
        schedule(
            brokers=2,
            replication=2,
            retain=(20, 20),
            versions=(14, 14),
            grants_read=reads,
            faults=(
                Fault(LATER, "pause", ("t", 0, 1, 3.0)),
                Fault(LATER, "retain", ("t", 5)),
                Fault(LATER + 0.09, "cut", (0, 1.0, True, 0.0)),
                Fault(LATER + 0.8, "kill", (0, False, 3.0, True)),
            ),
        )
    )
    all_acked(result)


def test_a_request_appended_long_after_its_connection_was_closed() -> None:
    result = clean(schedule(glitches=(Glitch(12, "zombie", (90.0,)),)))
    all_acked(result)


def test_a_zombie_that_outlives_the_deadline_is_never_said_to_be_not_written() -> None:
    result = clean(
        schedule(
            options={"delivery_timeout": 2.1},
            glitches=tuple(Glitch(n, "zombie", (90.0,)) for n in range(5, 20)),
        )
    )
    assert result.unknown


def test_the_wrap_between_batches_in_doubt() -> None:
    result = clean(
        schedule(
            first_sequence=2**31 - 25,
            faults=(Fault(LATER, "kill", (0, True, 0.05, True)),),
        )
    )
    all_acked(result)


FORGETFUL = {
    "producer.id.expiration.ms": "60000",
    "producer.id.expiration.check.interval.ms": "20",
}


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("carried_out", [True, False])
def test_records_older_than_the_brokers_memory(reads: bool, carried_out: bool) -> None:
    """Records older than the broker's memory are never stored twice, nor acknowledged and lost."""
    result = clean(
        schedule(
            profile="forgetful",
            broker_configs=FORGETFUL,
            grants_read=reads,
            calls=calls(60, age=100.0),
            glitches=(Glitch(6, "drop", (carried_out, False)),),
        )
    )
    if reads and carried_out:
        assert result.outcomes[Outcome.ACKED]
    else:
        assert result.unknown


def test_the_last_batch_counts_and_not_the_newest_one() -> None:
    """The last appended batch, not the newest timestamp, says when a broker forgets a producer."""
    mixed = [Call(i * 0.02, "t", 0, None, 60, 100.0 if i % 2 else 0.0) for i in range(60)]
    clean(
        schedule(
            profile="forgetful",
            broker_configs=FORGETFUL,
            calls=tuple(mixed),
            options={"max_in_flight_requests_per_connection": 1},
            glitches=tuple(Glitch(n, "drop", (True, False)) for n in range(4, 30, 5)),
        )
    )


@pytest.mark.parametrize("cache", ["twenty", "five", "one"])
@pytest.mark.parametrize("reads", [True, False])
def test_twenty_in_doubt_resolve_within_eleven_round_trips(cache: str, reads: bool) -> None:
    """Twenty batches in doubt resolve within 11 round trips, whatever the broker remembers.

    A full window does not hold resends back, and the newest batches are probed (resent to see
    whether the broker has them) first.
    """
    cut = LATER + RTT
    faults: tuple[Fault, ...] = (Fault(cut, "cut", (0, 1.0, True, 0.0)),)
    if cache == "five":
        faults = (Fault(cut - 0.05, "retain", ("t", 5)), *faults)
    if cache == "one":
        faults = (*faults, Fault(cut + RTT, "kill", (0, True, 0.0, True)))
    plan = schedule(faults=faults, grants_read=reads, all_acked=True, round_trips=11)
    result = clean(plan)
    assert result.max_span == 20
    all_acked(result)


def test_a_success_over_a_rejected_batch_is_a_loss_of_state() -> None:
    """A success of a batch above a refused one does not show that the refused batch is stored.

    The leader forgot the producer between the two batches, so it accepted a gap.
    """
    clean(
        schedule(
            profile="forgetful",
            broker_configs=FORGETFUL,
            calls=calls(60, age=100.0),
            glitches=(Glitch(8, "refuse", (19, None)), Glitch(9, "refuse", (19, None))),
        )
    )


def test_the_gate_closes_under_every_new_leader() -> None:
    """A new leader gets one batch alone until it acknowledges one.

    If it got two at once, it might refuse the first and accept the second.
    """
    moves = tuple(Fault(LATER + i * 0.2, "move", ("t", 0, (i + 1) % 2)) for i in range(4))
    result = clean(
        schedule(
            brokers=2,
            replication=2,
            retain=(20, 20),
            versions=(14, 14),
            faults=moves,
            glitches=tuple(Glitch(n, "refuse", (6, None)) for n in (20, 30, 40)),
        )
    )
    all_acked(result)


@pytest.mark.parametrize("code", [10, 29, 32, 87])
def test_a_refusal_of_a_resend_says_nothing_of_the_first_copy(code: int) -> None:
    """A batch in doubt whose resend is refused for good is not split, and not NOT_WRITTEN.

    The eighth batch is stored, its answer is lost, and its resends, with the same bytes, are
    refused.
    """
    clean(
        schedule(
            glitches=(
                Glitch(7, "drop", (True, False)),
                *(Glitch(n, "refuse", (code, None)) for n in range(8, 12)),
            ),
        )
    )


def test_a_limit_lowered_under_batches_in_doubt() -> None:
    clean(
        schedule(
            faults=(
                Fault(LATER, "limit", ("t", 130, 5.0)),
                Fault(LATER, "cut", (0, 1.0, True, 0.0)),
            )
        )
    )


def test_a_limit_that_moves_splits_what_is_not_in_doubt() -> None:
    result = clean(
        schedule(
            options={"batch_size": 600, "linger": 0.05},
            faults=(Fault(LATER, "limit", ("t", 250, 30.0)),),
        )
    )
    all_acked(result)


def test_throttling_beyond_the_request_timeout() -> None:
    result = clean(
        schedule(
            options={"request_timeout": 1.0, "delivery_timeout": 90.0},
            faults=(Fault(LATER, "throttle", (0, 3.0, 2.0)),),
        )
    )
    all_acked(result)


def test_a_recreated_topic_gets_nothing_of_what_was_in_doubt() -> None:
    result = clean(
        schedule(
            faults=(
                Fault(LATER, "cut", (0, 1.0, True, 0.0)),
                Fault(LATER + 0.05, "recreate", ("t",)),
            )
        )
    )
    assert result.outcomes[Outcome.ACKED]


def test_a_leader_that_flaps_is_drained_by_leader_epoch() -> None:
    moves = tuple(Fault(LATER + i * 0.07, "move", ("t", 0, (i + 1) % 3)) for i in range(9))
    result = clean(
        schedule(brokers=3, replication=3, retain=(20,) * 3, versions=(14, 13, 14), faults=moves)
    )
    all_acked(result)


def test_a_silent_old_leader_does_not_hold_its_successor_for_long() -> None:
    """A silent former leader delays batches for the new leader by two seconds, not by 30.

    The topic has two partitions. The leader of partition 0 owes answers and never sends them, and
    partition 0 moves to the leader of partition 1. The producer learns of the move on its
    connection to the leader of partition 1. The request timeout is 30 seconds.
    """
    result = clean(
        schedule(
            brokers=2,
            replication=2,
            retain=(20, 20),
            versions=(14, 14),
            topics=(("t", 2),),
            calls=tuple(Call(i * 0.01, "t", i % 2, None, 60, 0.0) for i in range(160)),
            options={"request_timeout": 30.0, "delivery_timeout": 60.0, "metadata_max_age": 0.2},
            faults=(
                Fault(LATER, "cut", (0, 1.0, False, 0.0)),
                Fault(LATER + 0.01, "move", ("t", 0, 1)),
            ),
        )
    )
    all_acked(result)
    assert any("t-0 has a new leader, whose turn comes" in line for line in result.trace)
    assert result.took < 10


def test_what_is_in_doubt_is_resolved_before_a_new_epoch_is_adopted() -> None:
    """Batches in doubt are resolved before a new epoch is adopted (KAFKA-14034).

    A later batch is refused for good while an older one is in doubt.
    """
    clean(
        schedule(
            glitches=(Glitch(6, "after", (7, None)), Glitch(7, "refuse", (87, None))),
        )
    )


def test_two_refused_passes_with_copies_that_come_in_between() -> None:
    """The producer finds batches whose first copies are stored between two rounds of probes.

    The window shrank, so a broker refuses the probes (resends) of stored batches too. It serves the
    requests of the closed connection late, in a burst.
    """
    for waited in (0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        clean(
            schedule(
                options={"max_in_flight_requests_per_connection": 5, "request_timeout": 1.0},
                faults=(
                    Fault(LATER, "retain", ("t", 5)),
                    Fault(LATER + 0.04, "cut", (0, 1.0, True, 0.0)),
                ),
                glitches=(Glitch(9, "delay", (waited,)),),
            )
        )


def test_permanent_lack_of_replicas_starves_only_its_own_partition() -> None:
    both = tuple(Call(i * 0.01, "t", i % 2, None, 60) for i in range(60))
    result = clean(
        schedule(
            topics=(("t", 2),),
            calls=both,
            glitches=tuple(Glitch(n, "refuse", (19, (("t", 0),))) for n in range(12)),
        )
    )
    all_acked(result)

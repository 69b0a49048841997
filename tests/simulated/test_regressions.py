"""Defects that seeds of the simulation have found; each test is named for the broken rule.

A test runs either a small schedule that shows the defect, or the seed itself. "The judge" is the
checks at the end of a run: `check_history`, and those of `World._judge` or `Whole._judge`.
"""

from __future__ import annotations

import dataclasses

import pytest

from aioidem._engine.suspicion import Suspicion
from aioidem.testing import Anomaly, Outcome

from .perform import perform
from .schedule import Call, Fault, Glitch, Schedule, draw
from .soak import quiet, run_seed
from .test_written_schedules import clean, schedule
from .world import World, run


def test_no_record_overtakes_one_that_was_granted_room() -> None:
    """A record sent from a callback passes no record that waits for memory (seed 1)."""
    result = clean(
        schedule(
            options={"buffer_memory": 10_000, "max_in_flight_requests_per_connection": 1},
            callbacks=True,
            calls=tuple(Call(0.04, "t", 0, None, (90, 60, 150, 0)[i % 4]) for i in range(24)),
        )
    )
    assert set(result.outcomes) == {Outcome.ACKED}


def test_no_data_loss_is_reported_behind_numbers_that_were_given_up() -> None:
    """An expired batch that was never appended causes no data-loss event later (seed 1887).

    b1 expires in flight and is never appended; b2 is refused because of that gap.
    """
    result = clean(
        schedule(
            options={"request_timeout": 2.0, "delivery_timeout": 2.1, "window_discovery": "off"},
            calls=tuple(Call(0.6 + at, "t", 0, None, 60) for at in (0.0, 0.2, 0.4, 0.55)),
            glitches=(Glitch(2, "delay", (4.2,)),),
        )
    )
    assert result.unknown
    assert result.events == 0


def test_nothing_is_resent_before_the_broker_has_said_how_long_it_remembers() -> None:
    """No batch is resent before the broker has named its expiration (seed 6469).

    The connection was lost before DescribeConfigs was answered, and records old enough to be
    forgotten were resent under the assumed default of a day.
    """
    clean(
        schedule(
            profile="forgetful",
            broker_configs={
                "producer.id.expiration.ms": "60000",
                "producer.id.expiration.check.interval.ms": "10",
            },
            calls=(Call(0.6, "t", 0, None, 60, 100.0),),
            glitches=(Glitch(0, "drop", (True, False)),),
            faults=(Fault(0.71, "cut", (0, 1.0, True, 0.0)),),
        )
    )


def test_a_hole_that_a_forgetful_leader_left_is_not_closed_by_later_successes() -> None:
    """A later batch's success is no proof that a batch sent under suspicion is stored (seed 9268).

    A partition is suspect (its leader may have forgotten the producer) and has a full window in
    flight. The leader does forget the producer, one batch fails before its append, and the leader
    accepts the next batch above that hole. Then the suspicion ends. The success of a batch that is
    sent after that must not acknowledge the batch that is missing.
    """
    result = run(draw(9268))
    assert not result.violations, "\n".join(map(str, result.violations))


def test_a_batch_that_a_leader_without_state_refused_is_not_acknowledged_by_a_later_one() -> None:
    """A leader forgets the producer unnoticed, and the offsets show which success proves nothing.

    The producer takes the brokers' expiration for a day, and it is a minute. The tenth record is
    old, so the leader forgets the producer. It fails the eleventh without an append, and accepts
    the twelfth as a first one. The twelfth must not acknowledge the eleventh, for whose record the
    log has no room.
    """
    result = clean(
        schedule(
            profile="forgetful",
            broker_configs={
                "producer.id.expiration.ms": "60000",
                "producer.id.expiration.check.interval.ms": "5",
            },
            options={"producer_id_expiration": 86_400.0},
            calls=tuple(Call(1 + i * 0.05, "t", 0, None, 60, 100.0 * (i == 9)) for i in range(20)),
            glitches=(Glitch(10, "refuse", (56, None)),),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 19, Outcome.UNKNOWN: 1}
    assert result.events == 1


def _a_follower_that_lags_is_elected(acks: int, fault: Fault, *more: Call) -> World:
    """Make a world with one record in both logs, and a second one only in the old leader's.

    The second record is acknowledged by the old leader.
    """
    return World(
        schedule(
            profile="plain",
            brokers=2,
            replication=2,
            retain=(20, 20),
            versions=(14, 14),
            options={"enable_idempotence": False, "acks": acks},
            calls=(Call(0.0, "t", 0, None, 60), Call(0.7, "t", 0, None, 60), *more),
            faults=(Fault(0.65, "pause", ("t", 0, 1, 3.0)), fault),
        )
    )


_MOVE = Fault(0.9, "move", ("t", 0, 1))
_KILLS = [Fault(0.9, "kill", (0, clean, 1.0, True)) for clean in (True, False)]


@pytest.mark.parametrize("fault", [_MOVE, *_KILLS], ids=["move", "clean", "crash"])
def test_under_acks_1_a_clean_election_may_lose_what_was_acknowledged(fault: Fault) -> None:
    """Under acks=1 a clean election may lose an acknowledged record (seed 67687).

    acks=1 promises one copy of a record. The judge knows which election lost that copy, and accepts
    the data-loss event that the lower offset of a later record causes.
    """
    world = _a_follower_that_lags_is_elected(1, fault, Call(2.5, "t", 0, None, 60))
    result = world.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.outcomes) == {Outcome.ACKED}
    assert {value.call for value in world.lost} == {1}
    assert (result.lost, result.events) == (1, 1)


def test_under_acks_1_an_election_may_not_lose_what_was_committed() -> None:
    """Under acks=1 the judge reports brokers that lose a record below the high watermark."""
    world = _a_follower_that_lags_is_elected(1, _MOVE)
    elected = world.cluster.topics["t"].partitions[0].replicas[1]

    def forget() -> None:
        elected.log.truncate(0)

    world.at(world.start + 0.85, forget)
    violations = world.run().violations
    assert [violation.anomaly for violation in violations] == [Anomaly.LOST]
    assert "p/t-0#0" in violations[0].detail


@pytest.mark.parametrize("fault", [_MOVE, *_KILLS], ids=["move", "clean", "crash"])
def test_under_acks_all_the_same_election_loses_nothing_acknowledged(fault: Fault) -> None:
    """Under acks=all the election of a lagging follower loses no acknowledged record.

    The judge excuses no loss here.
    """
    world = _a_follower_that_lags_is_elected(-1, fault)
    result = world.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.outcomes) == {Outcome.ACKED}
    assert not world.lost


def test_no_broker_is_accused_while_it_still_serves_what_a_lost_connection_brought() -> None:
    """No smaller window is inferred while a broker still serves a lost connection's requests.

    Seeds 50601 and 50848: the window shrinks to 5, and a slow broker serves the requests of the
    lost connection while the same batches are resent on the next connection. If a resend was served
    before its first copy, the broker refused it as out of order, and the producer concluded that
    the broker had forgotten the batch.
    """
    result = clean(
        schedule(
            profile="ladder",
            brokers=2,
            grants_read=False,
            retain=(50, 50),
            versions=(14, 14),
            rtt=0.1,
            options={"max_in_flight_requests_per_connection": 50, "retry_backoff": 0.1},
            calls=(
                Call(0.244, "t", 0, None, 60),
                *(Call(1.2 + i * 0.002, "t", 0, None, 60) for i in range(24)),
            ),
            faults=(
                Fault(1.19, "retain", ("t", 5)),
                Fault(1.19, "throttle", (0, 0.04, 1.3)),
                Fault(1.249, "cut", (0, 1.0, True, 0.0)),
            ),
        )
    )
    assert set(result.outcomes) == {Outcome.ACKED}
    assert (result.retries > 5, result.convictions) == (True, 0)


@pytest.mark.parametrize("backend", ["", "asyncio", "trio"])
def test_late_copies_a_forgetful_broker_appends_again_are_all_known_to_the_judge(
    backend: str,
) -> None:
    """The judge allows every late copy that a forgetful broker appends again (seed 77153).

    Batches in doubt with fresh records are resent and acknowledged. Batches with old records make
    the broker forget the producer. Then the broker serves the requests that it had read from the
    closed connection, and appends their batches (the late copies) again. The defect was that
    `Whole._judge` allowed only the copies in the first of these requests.
    """
    fresh = tuple(Call(0.6 + i * 0.01, "t", 0, None, 60) for i in range(20))
    old = tuple(Call(2.0 + i * 0.01, "t", 0, None, 60, 100.0) for i in range(5))
    plan = schedule(
        backend=backend,
        profile="forgetful",
        broker_configs={
            "producer.id.expiration.ms": "60000",
            "producer.id.expiration.check.interval.ms": "20",
        },
        all_acked=True,
        calls=fresh + old,
        glitches=(Glitch(8, "zombie", (4.0,)),),
    )
    with quiet():
        result = perform(plan)
        elsewhere = perform(dataclasses.replace(plan, profile="attack"))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.outcomes) == {Outcome.ACKED}
    # Records are stored twice. The checks at the end of a run allow that only in the profile
    # "forgetful", so they report it in the profile "attack".
    assert [v.anomaly for v in elsewhere.violations].count(Anomaly.DUPLICATE) > 1


@pytest.mark.parametrize("grows", [0.29, 0.31, 0.33, 0.36])
def test_partitions_that_are_added_while_a_topic_is_made_anew_are_there_in_the_end(
    grows: float,
) -> None:
    """Partitions that are added while a topic is being recreated exist in the end (seed 53988).

    The topic does not exist for 0.05 s. The simulation dropped partitions that were added in that
    time, although the schedule claims that a record for one of them is acknowledged.
    """
    result = clean(
        schedule(
            all_acked=True,
            calls=(
                Call(0.0, "t", 0, None, 60),
                Call(0.29, "t", 0, None, 60),
                Call(grows + 0.001, "t", 2, None, 60),
            ),
            faults=(Fault(0.3, "recreate", ("t",)), Fault(grows, "grow", ("t", 3))),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 3}


def test_a_partition_that_a_topic_lacks_when_made_anew_is_refused() -> None:
    """A record for a partition that a recreated topic lacks is refused.

    No fault adds the partition here. In the test above a fault adds it, and the record is
    acknowledged.
    """
    result = clean(
        schedule(
            calls=(Call(0.0, "t", 0, None, 60), Call(0.311, "t", 2, None, 60)),
            faults=(Fault(0.3, "recreate", ("t",)),),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 1, Outcome.NOT_WRITTEN: 1}


def test_each_cluster_has_logs_of_its_own() -> None:
    """The judge compares the order of records within one cluster only (seed 11596).

    The first record goes to partition 0 of the second cluster, and a later record to partition 0 of
    the first cluster. The judge had taken these two partitions for one log.
    """
    result = run(draw(11596))
    assert not result.violations, "\n".join(map(str, result.violations))


def test_a_window_is_learnt_again_only_from_records_that_brokers_take() -> None:
    """No producer is expected to learn a window from records that brokers refuse (seed 54288).

    With the client's clock a day ahead, brokers answered every record with INVALID_TIMESTAMP. Such
    an answer does not say how many batches a broker retains, yet the run expected the producer to
    know that.
    """
    result = run(draw(54288))
    assert result.schedule.wide_at_end
    assert not result.violations, "\n".join(map(str, result.violations))


@pytest.mark.parametrize(
    ("seed", "shown"),
    [
        (6586, "a broker that hung up on v14 so often that the back-off is longer than a minute"),
        (7584, "records that expire, round after round, before the broker's answer can arrive"),
        (11505, "a garbled answer to the record before the last"),
        (53193, "an answer that was lost among the last records"),
    ],
)
def test_windows_are_judged_after_a_time_that_suffices_and_is_quiet(seed: int, shown: str) -> None:
    """A run checks whether the producer knows the brokers' windows only after a quiet time.

    In these seeds the check came before the producer could have learned how many batches the
    brokers retain (their windows).
    """
    result = run(draw(seed))
    assert result.schedule.wide_at_end
    assert not result.violations, f"{shown}: " + "\n".join(map(str, result.violations))


def test_a_batch_that_was_refused_because_it_never_came_accuses_no_broker() -> None:
    """A refusal of never stored batches is no proof that a broker forgot them (seed 53340).

    Of twelve batches in doubt the newest were never stored, and the broker recognised only older
    ones. The producer had concluded from the refusals that the broker had forgotten the newest.
    """
    result = run(draw(53340))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert not result.convictions


def test_an_unknown_code_does_not_show_that_the_leader_knows_us() -> None:
    """After an unknown error code, the producer probes batches in doubt one by one (seed 2837).

    An unknown code does not show that the leader still remembers the producer.
    """
    result = run(draw(2837))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.unknown == 0


_SHRINKS = Fault(0.678, "retain", ("t", 5))
_GROWS_BACK = Fault(1.024, "retain", ("t", 20))


@pytest.mark.parametrize(
    ("faults", "convictions"),
    [((_SHRINKS, _GROWS_BACK), 1), ((_SHRINKS,), 0)],
    ids=["shrunk and grown back", "shrunk"],
)
def test_a_memory_made_smaller_and_larger_while_asked_about_is_mistaken_for_a_lie(
    faults: tuple[Fault, ...], convictions: int
) -> None:
    """A broker whose window shrinks and grows again is accused of overstating it (seed 31887).

    The window was 5 while twenty batches were appended, and 20 again before they were probed. The
    producer cannot tell this broker from one that says 20 and keeps 5, and the mistake costs only
    throughput.
    """
    result = clean(
        schedule(
            profile="gentle",
            all_acked=True,
            calls=tuple(Call(0.16 + i * 0.003, "t", 0, None, 60) for i in range(22)),
            faults=faults,
            glitches=(Glitch(10, "drop", (True, True)),),
        )
    )
    assert set(result.outcomes) == {Outcome.ACKED}
    assert result.convictions == convictions


def test_what_was_never_sent_under_its_numbers_is_not_sent_over_a_hole() -> None:
    """Batches that were renumbered and never sent are not sent above a missing one (seed 31519).

    Batches in doubt were renumbered for a new producer id, and the first of them was refused for
    good. The second was sent with sequence 1 although the leader had no batch of that id yet.
    """
    keys = [*[b"k"] * 7, None, *[b"k"] * 3]
    result = clean(
        schedule(
            profile="resend",
            topic_configs={"cleanup.policy": "compact"},
            bad_records=True,
            first_epoch=32767,
            options={"in_doubt": "resend", "max_in_flight_requests_per_connection": 5},
            calls=tuple(Call(0.01 * i, "t", 0, key, 60) for i, key in enumerate(keys)),
            glitches=(Glitch(8, "zombie", (90.0,)),),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 10, Outcome.UNKNOWN: 1}
    assert result.bumps == 2


@pytest.mark.parametrize("told", [1, 7])
def test_a_leader_that_metadata_hides_for_a_while_is_believed_about_its_window(told: int) -> None:
    """The producer obeys a window in a Produce answer although metadata has no leader (seed 18797).

    The window is the number of batches that may be in flight. The engine had ignored a window that
    a Produce answer named while metadata named no leader for the partition. The next batches on
    that connection then exceeded the window.
    """
    result = clean(
        schedule(
            calls=(
                *(Call(at, "t", 0, None, 60) for at in (0.1, 0.78)),
                *(Call(1.0 + i * 0.01, "t", 0, None, 60) for i in range(20)),
            ),
            faults=(Fault(0.65, "leaderless", (1.0,)),),
            glitches=(Glitch(1, "refuse", (6, None)), Glitch(2, "absurd", (told,))),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 22}


def test_a_refusal_under_a_shared_producer_id_tells_of_no_loss() -> None:
    """OUT_OF_ORDER under a producer id that a stranger uses too is no data loss (seed 15195).

    One partition is answered INVALID_PRODUCER_EPOCH, another OUT_OF_ORDER for a batch that cannot
    have been appended. A stranger (another producer) that writes under the same id explains both
    answers: the producer reports that, takes another id, and reports no data loss.
    """
    calls = (
        *(Call(0.0, "t", index, None, 60) for index in (0, 1)),
        *(Call(1.2 + index * 0.01, "t", index, None, 60) for index in (0, 1)),
    )
    result = clean(
        schedule(
            topics=(("t", 2),),
            calls=calls,
            glitches=(Glitch(1, "fence", (47, (("t", 0),))), Glitch(2, "spurious", (45, None))),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 4}
    assert (result.events, result.bumps) == (0, 1)


@pytest.mark.parametrize(
    ("seed", "shown"),
    [
        (23453, "late copies of what ended UNKNOWN, under a producer id that nothing fences"),
        (55248, "a record sent when one expired that was itself sent when one expired"),
        (71237, "a record of another producer, whom nobody promised our delivery timeout"),
        (301153, "a value of a cancelled `send_many`, which waited for memory behind a later call"),
        (320581, "a success over a hole that a batch left which had expired in flight"),
        (802130, "a batch whose topic was recreated under its name before it was sent again"),
        (815709, "records behind a batch in doubt, which two passes of probes give up"),
        (427390, "another cluster's brokers, which gave stale answers with the first one's id"),
        (804653, "a later value of a `send_many`, which waits for room after the one before it"),
        (3527123, "batches in doubt below one with old records, of which no byte was written"),
        (3565027, "a late copy, under a used-up id, of a record that a broker had lost"),
        (535, "events that were counted while a line that counts them waited to be written"),
        (3702388, "a batch that is compressed, and ends where its size is guessed to be full"),
        (3727375, "a batch that ends where the brokers' range of sequences does (KIP-758)"),
        (3730127, "a long text of a broker, which is cut at a colon"),
        (3779083, "a leader that moved before its first answer, on trio"),
        (3790314, "a state that may be forgotten, as its records have the time of the append"),
        (3825986, "a batch that ends with another's refusal, whose own answers contradict it"),
        (3847529, "a producer id given up in a poll that only sends, and asked for in the next"),
        (812643, "the same on trio, with a buffer that a throttled broker empties slowly"),
        (3964273, "a zombie that is appended in the instant in which the judge looks, on trio"),
        (3978836, "a producer that is closed in the turn that shows a topic recreated"),
        (3890396, "what is due by the time of day, which counts whole milliseconds"),
        (4158103, "an old leader that is silent, while a part of an answer names the new one"),
        (4207139, "what a broker retains is seen one less where sequences wrap"),
    ],
)
def test_no_producer_is_accused_of_what_no_promise_covers(seed: int, shown: str) -> None:
    """The judge reports nothing that the producer has not promised to avoid."""
    result = run_seed(seed)
    assert not result.violations, f"{shown}: " + "\n".join(map(str, result.violations))


@pytest.mark.parametrize("seed", [809209, 814240])
def test_records_sent_to_a_broker_that_is_gone_do_not_extend_its_request_timeout(seed: int) -> None:
    """A connection is lost in silence, and records are sent on it now and then."""
    result = run_seed(seed)
    assert not result.violations, "\n".join(map(str, result.violations))


@pytest.mark.parametrize(
    ("seed", "shown"),
    [
        (816271, "a batch in doubt above many that wait to be renumbered, at a smaller window"),
    ],
)
def test_no_record_waits_for_its_deadline_where_nothing_hinders_it(seed: int, shown: str) -> None:
    """After the last fault every record ends within the bound of `progress`."""
    result = run_seed(seed)
    assert not result.violations, f"{shown}: " + "\n".join(map(str, result.violations))


def test_another_cluster_has_answered_no_v14_yet() -> None:
    """A broker whose number a broker of the last cluster had may be written to in v13 (720062).

    It hangs up on v14, which it has never answered; the judge remembered brokers by number alone.
    """
    result = clean(
        schedule(
            options={"window_discovery": "on"},
            calls=(Call(0.5, "t", 0, None, 60), Call(0.65, "t", 0, None, 60)),
            faults=(
                Fault(0.58, "cluster", (0.5, False, 0, 0.8)),
                Fault(0.7, "unheard", (0, 3, False)),
            ),
        )
    )
    assert result.outcomes == {Outcome.ACKED: 2}


def _old_record_without_an_answer(secret: float, backend: str = "") -> Schedule:
    """Draw brokers that do not tell how soon they forget, and then forget a record in doubt."""
    return schedule(
        backend=backend,
        options={"request_timeout": 2.0, "max_in_flight_requests_per_connection": 5},
        features=("old records",),
        broker_configs={
            "producer.id.expiration.ms": "40000",
            "producer.id.expiration.check.interval.ms": "10",
        },
        calls=(Call(0.5, "t", 0, None, 60), Call(4.0, "t", 0, None, 60, 38.8)),
        faults=(Fault(0.0, "secret", (secret,)),),
        glitches=(Glitch(1, "drop", (True, True)),),
    )


def test_who_may_not_read_the_expiration_may_write_twice() -> None:
    """Without DESCRIBE_CONFIGS a day is assumed, and a broker that remembers 40 s may append twice.

    The judge knew only of brokers that forget earlier than they had said (seed 399 of the swarm).
    """
    result = clean(_old_record_without_an_answer(60.0))
    assert result.outcomes == {Outcome.ACKED: 2}


@pytest.mark.parametrize("secret", [0.3, 60.0])
def test_the_whole_producer_may_not_read_the_expiration_either(secret: float) -> None:
    with quiet():
        result = perform(_old_record_without_an_answer(secret, "trio"))
    assert not result.violations, "\n".join(map(str, result.violations))


def test_who_has_read_the_expiration_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that resends to a leader that may have forgotten it writes twice, and is noticed.

    The brokers refused DescribeConfigs before, and then told their expiration.
    """
    monkeypatch.setattr(Suspicion, "forbids_resend", False)
    found = [each.anomaly for each in run(_old_record_without_an_answer(0.01)).violations]
    assert found == [Anomaly.DUPLICATE]


def test_records_of_one_call_stay_in_order_when_the_cluster_changes() -> None:
    """Records with keys that go along to another cluster are not reordered (seed 7553148).

    A call's records were spread over partitions as blocks, which were put into call order as wholes
    when the cluster changed, although records of one block lay between those of another.
    """
    result = run_seed(7553148)
    assert not result.violations, "\n".join(map(str, result.violations))


@pytest.mark.parametrize("seed", range(8))
def test_a_doubt_is_resolved_on_a_new_connection_without_other_events(seed: int) -> None:
    """The log is read back as soon as the new connection has named its cluster.

    What is in doubt was looked at before its partition had that connection. If nothing else
    happened, the producer looked again only at the delivery timeout. The seed decides whether the
    Sender takes a turn between two answers that come at the same time.
    """
    plan = schedule(
        brokers=2,
        replication=2,
        topics=(("t", 2),),
        retain=(20, 20),
        versions=(13, 13),
        broker_configs={"producer.id.expiration.ms": "1000000"},
        calls=(
            Call(0.0, "t", 0, None, 60),
            Call(0.0, "t", 1, None, 60),
            Call(1.5, "t", 1, None, 60, 3000.0),
        ),
        glitches=(Glitch(2, "drop", (True, False)),),
    )
    result = clean(dataclasses.replace(plan, seed=seed))
    assert result.outcomes == {Outcome.ACKED: 3}
    assert result.took < 3.0

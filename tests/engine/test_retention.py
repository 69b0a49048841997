"""A broker that says how many batches it retains to recognise duplicates, and retains fewer.

Some refusals of resent batches prove this; they convict the broker. The engine warns of a convicted
broker once, and uses a smaller window with it. Other refusals have innocent causes.
"""

from __future__ import annotations

import pytest

from aioidem._engine.retention import BrokerMemory, Disproof
from aioidem._protocol.producers import ProducersAnswer

from .driver import ACKED, OUT_OF_ORDER, PENDING, Request, Rig, T, pipelined

FORTY = {"max_in_flight_requests_per_connection": 40, "version": 14}
IN_DOUBT = 20


def cut_with_twenty(**options: object) -> Rig:
    """Make a rig with twenty batches in doubt, whose connection ended before any of their answers.

    The broker had named a window of 20 batches.
    """
    rig, _ = pipelined(IN_DOUBT, **{**FORTY, **options})
    rig.lose()
    rig.tick(0.5)
    assert rig.state().batches.in_doubt == IN_DOUBT
    return rig


def answer_as(
    rig: Rig, remembered: set[int], *, retained: int | None = 20, stored: int = IN_DOUBT
) -> None:
    """Answer every request as a broker that recognises duplicates of the sequences `remembered`.

    The broker has stored the batches up to sequence `stored`, and appends the next in sequence.
    """
    last = stored
    for _ in range(400):
        if not rig.outstanding():
            rig.tick(0.5)
        if not rig.outstanding():
            return
        request: Request = rig.outstanding()[0]
        if request.sequence in remembered:
            rig.ack(request, offset=request.sequence, retained=retained)
        elif request.sequence == last + 1:
            last += 1
            remembered.add(last)
            rig.ack(request, offset=last, retained=retained)
        else:
            rig.fail(request, OUT_OF_ORDER)
    raise AssertionError("the engine sends requests for ever")


def accusations(rig: Rig) -> list[str]:
    return [event for event in rig.events if "deduplicate" in event]


@pytest.mark.parametrize("granted", [False, True], ids=["without READ", "with READ"])
@pytest.mark.parametrize("kept", [3, 5, 7, 19])
def test_a_broker_that_keeps_fewer_than_it_says_is_noticed_and_reported_once(
    kept: int, granted: bool
) -> None:
    """A broker that retains fewer batches than it says gets a smaller window and one warning.

    The window is the number of batches that the broker was seen to deduplicate, but at least 5.
    """
    rig = cut_with_twenty()
    if granted:
        identity = rig.core.identity.current
        assert identity is not None
        rig.producers = ProducersAnswer(0, {identity.producer_id: (identity.epoch, IN_DOUBT)})
    answer_as(rig, set(range(IN_DOUBT - kept + 1, IN_DOUBT + 1)))
    assert PENDING not in rig.statuses
    assert set(rig.statuses) == {ACKED}
    [told] = accusations(rig)
    assert told.startswith("broker 1 says that it retains 20 batches")
    rig.send(60)
    rig.ack(rig.outstanding()[0], retained=20)
    assert rig.state().window.limit == max(5, kept)
    rig.ack_all()
    assert rig.core.counters.data_loss_events == 0
    assert rig.core.epoch_bumps == 0
    rig.assert_drained()


def test_what_is_sent_after_a_probe_does_not_make_its_refusal_an_older_one() -> None:
    """Batches sent after a probe do not count in the distance of the probe.

    A probe is a resend of a batch in doubt. Its distance is how many batches back its batch lies,
    counted from the newest batch that was sent before the probe. Probes are answered one by one,
    and each that the broker recognises as a duplicate makes room for new batches.
    """
    rig = cut_with_twenty()
    rig.send(60)
    answer_as(rig, set(range(9, 21)))
    assert set(rig.statuses) == {ACKED}
    [told] = accusations(rig)
    assert "was seen to deduplicate a retry 12 batches back and to refuse one 13" in told


def test_its_word_is_believed_again_after_a_while_and_the_warning_is_not_repeated() -> None:
    rig = cut_with_twenty()
    answer_as(rig, set(range(16, 21)))
    rig.tick(300.0)
    rig.send()
    rig.ack(rig.outstanding()[0], retained=20)
    assert rig.state().window.limit == 5
    rig.tick(500.0)
    rig.send()
    rig.ack(rig.outstanding()[0], retained=20)
    assert rig.state().window.limit == 20
    assert len(accusations(rig)) == 1


@pytest.mark.parametrize(
    "remembered",
    [
        {20},  # after a restart, clean or not, a broker remembers one batch of each producer
        {19, 20},  # after a restart it remembered 19, and then appended the probe of 20
        set(range(1, 21)),
    ],
    ids=["restarted", "restarted and appended", "honest"],
)
def test_no_broker_is_accused_of_what_a_restart_explains(remembered: set[int]) -> None:
    rig = cut_with_twenty()
    answer_as(rig, set(remembered))
    assert set(rig.statuses) == {ACKED}
    assert not accusations(rig)
    rig.send(2)
    rig.ack(rig.outstanding()[0], retained=20)
    assert rig.state().window.limit == 20


def test_what_was_never_stored_was_not_forgotten() -> None:
    """The refusal of a batch that was never stored does not convict the broker.

    The window shrank to 5, and 14 of the 20 batches were stored. While the probes are answered,
    newest first, the broker still serves one late copy (15), which pushes 10 out of its cache. It
    recognises 11 to 14, which is all that a broker that keeps 5 must recognise.
    """
    rig = cut_with_twenty()
    [first] = rig.outstanding()
    rig.fail(first, OUT_OF_ORDER)
    assert rig.sequences == list(range(IN_DOUBT, 0, -1)), "every batch is probed"
    for request in rig.outstanding():
        if request.sequence in range(11, 15):
            rig.ack(request, offset=request.sequence, retained=5)
        else:
            rig.fail(request, OUT_OF_ORDER)
    answer_as(rig, set(range(11, 16)), retained=5, stored=15)
    assert set(rig.statuses) == {ACKED}
    assert not accusations(rig)


def test_a_window_that_shrank_is_no_lie() -> None:
    """A broker that now claims to retain 5 batches is not convicted for forgetting older ones."""
    rig = cut_with_twenty()
    answer_as(rig, set(range(16, 21)), retained=None)
    assert set(rig.statuses) == {ACKED}
    assert not accusations(rig)


def test_a_leader_that_was_away_in_between_may_have_lost_them() -> None:
    """A broker is not convicted if its leader epoch has changed since it stored the batches.

    The broker may have lost the batches while another broker was the leader.
    """
    rig = cut_with_twenty()
    rig.leaders[T, 0] = (1, 2)
    answer_as(rig, set(range(16, 21)))
    assert set(rig.statuses) == {ACKED}
    assert not accusations(rig)


def test_what_was_sent_on_two_connections_before_proves_nothing() -> None:
    """Refusals of batches that were sent on two earlier connections do not convict a broker.

    The broker may have restarted between the two connections. After a restart a broker remembers
    only the last batch of each producer.
    """
    rig = cut_with_twenty()
    assert rig.sequences == [1]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert len(rig.outstanding()) == IN_DOUBT, "every batch is probed"
    rig.lose()
    rig.tick(0.5)
    answer_as(rig, set(range(16, 21)))
    assert set(rig.statuses) == {ACKED}
    assert not accusations(rig)


def test_the_other_partitions_of_that_broker_are_careful_too() -> None:
    rig = cut_with_twenty(partitions=2)
    answer_as(rig, set(range(14, 21)))
    assert len(accusations(rig)) == 1
    rig.send(partition=1)
    rig.ack(rig.outstanding()[0], retained=20)
    assert rig.state(partition=1).window.limit == 7


def test_a_limit_that_is_proved_again_and_again_lasts_at_most_a_day() -> None:
    """The first limit lasts ten minutes, each later one twice as long, up to 24 hours.

    Those are the times without the back-off's jitter of 20 %, whose factor is 1 here.
    """
    memory = BrokerMemory(lambda: 0.5)
    now, times = 0.0, []
    for _ in range(10):
        memory.disprove(Disproof(said=20, proved=7, refused=8), now)
        limited = [s for s in range(0, 90_000, 100) if memory.believed(20, now + s) == 7]
        times.append(limited[-1] + 100)
        now += 90_000.0
    assert times[:8] == [600 * 2**count for count in range(8)]
    assert times[8:] == [86_400, 86_400]

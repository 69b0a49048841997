"""Brokers that recognise a duplicate by a range of sequences: `broker_dedup="range"` (KIP-758).

Such a broker remembers only the last batch. It answers a duplicate of the last batch with error
NONE and its offset, any other sequence inside the range with DUPLICATE_SEQUENCE_NUMBER and no
offset, and a sequence outside of the range with OUT_OF_ORDER_SEQUENCE_NUMBER.
`tests/producer/test_kip_758.py` tests the producer with a broker of that kind; here the test gives
the answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from aioidem._engine import steps
from aioidem._engine.idempotence import SEQUENCE_MODULUS, ProducerIdentity
from aioidem._engine.partition import SEQUENCE_CAP
from aioidem._engine.recovery import Rung
from aioidem._protocol.broker_config import BrokerFacts

from .driver import (
    ACKED,
    DUPLICATE,
    NOT_LEADER,
    OUT_OF_ORDER,
    UNKNOWN,
    Request,
    Rig,
    Sent,
    pipelined,
    refuse_until,
    wait_until,
)

DEFAULT_RANGE = 10_000_000


class RangeRig(Rig):
    """A rig whose brokers name their range of sequences (a number) as a config.

    `told` is the range of all brokers, or the ranges by broker id, or None for brokers that name
    none.
    """

    def __init__(self, told: int | dict[int, int] | None = None, **options: Any) -> None:
        options.setdefault("broker_dedup", "range")
        options.setdefault("max_in_flight_requests_per_connection", 50)
        super().__init__(**options)
        self.told = told
        self.max_records = 0

    def _perform(self, step: steps.Step) -> None:
        if not isinstance(step, steps.DescribeBrokerConfig):
            super()._perform(step)
            return
        told = self.told.get(step.node_id) if isinstance(self.told, dict) else self.told
        facts = BrokerFacts(sequence_cap=told)
        self.core.on_answer(step, facts, self.now)

    def _check_span(self, part: Sent) -> None:
        """Check that unresolved records span no more sequences than the range, or are one batch."""
        state = self.state(part.topic, part.partition)
        records = state.ledger.next - state.batches.unresolved[0].base
        self.max_records = max(self.max_records, records)
        assert len(state.batches.unresolved) == 1 or records <= self.cap

    @property
    def cap(self) -> int:
        cap = self.state().window.sequence_cap
        assert cap is not None
        return cap


def running(told: int | None = None, **options: Any) -> RangeRig:
    """Make a rig whose first-ack gate is open, because record 0 is acknowledged."""
    rig = RangeRig(told, **options)
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    return rig


def doubted(count: int = 5, **options: Any) -> RangeRig:
    """Make a rig with `count` batches in doubt after a lost connection; the oldest is resent."""
    rig = running(**options)
    rig.send(count)
    rig.lose()
    rig.tick(2.0)
    assert rig.state().batches.in_doubt == count
    assert rig.sequences == [1]
    return rig


def probes_of(rig: Rig) -> dict[int, Request]:
    return {request.sequence: request for request in rig.outstanding()}


# -- what may be in flight


def test_in_range_mode_no_number_of_batches_binds_but_the_connections() -> None:
    """With `broker_dedup="range"` only the connection's limit bounds the batches in flight.

    The window of five batches is for brokers that recognise the last five batches as duplicates.
    """
    rig = running()
    rig.send(60)
    assert rig.sequences == list(range(1, 51))


def test_sending_stops_when_the_sequences_in_flight_reach_the_range() -> None:
    """Sending stops when unresolved sequences fill the range, until the oldest is resolved."""
    rig = running(told=10)
    rig.send(30)
    assert rig.sequences == list(range(1, 11))
    rig.ack(rig.outstanding()[3])
    assert rig.sequences == [1, 2, 3, *range(5, 11)], "the oldest batch still fills the range"
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [2, 3, *range(5, 12)]
    rig.ack_all()
    assert rig.max_records == 10
    rig.assert_drained()


@pytest.mark.parametrize("told", [1, 7, 10, 11])
def test_batches_of_many_records_never_reach_past_the_range(told: int) -> None:
    """Unresolved records never span more than the range, however many records a batch has.

    A broker answers OUT_OF_ORDER to a duplicate that is older than its range, and also to a batch
    after a gap in the sequences. So the producer could not tell one case from the other.
    """
    rig = running(told=told, batch_size=1000)
    rig.send(40, size=150)
    rig.ack_all()
    assert 1 <= rig.max_records <= told
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


def test_the_range_is_the_default_until_the_broker_names_its_own() -> None:
    """The range is 10,000,000 sequences until a DescribeConfigs answer names the broker's range."""
    assert running().cap == DEFAULT_RANGE
    assert running(told=12_345).cap == 12_345
    assert running(told=50_000_000).cap == 50_000_000, (
        "a broker may name a wider range than the default"
    )


@pytest.mark.parametrize("told", [SEQUENCE_CAP, SEQUENCE_CAP + 1, 10**18 - 1])
def test_no_broker_widens_the_range_past_half_of_all_sequences(told: int) -> None:
    """The range is 2^30 at most, so that a sequence is always either before or after another."""
    assert running(told=told).cap == SEQUENCE_CAP == 1 << 30


def test_the_narrowest_range_of_all_brokers_counts() -> None:
    """The narrowest range of all brokers counts, because a leader can move to any broker."""
    rig = RangeRig({1: 900, 2: 300}, brokers=2, partitions=2)
    rig.leaders["t", 1] = (2, 0)
    rig.start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    assert [rig.state("t", partition).window.sequence_cap for partition in (0, 1)] == [300, 300]


def test_a_config_name_alone_never_enters_the_mode() -> None:
    """Only the option `broker_dedup` turns range mode on, not a broker that names a range.

    Present brokers return any config that somebody has set, even one that they do not know.
    """
    rig = RangeRig(10, broker_dedup="window")
    rig.start()
    rig.send()
    assert rig.state().window.sequence_cap is None


def test_a_broker_in_range_mode_is_asked_although_the_expiration_is_given() -> None:
    """Brokers are asked for their range even if `producer_id_expiration` is set.

    Without range mode that option makes it needless to ask brokers for their configs.
    """
    assert running(told=77, producer_id_expiration=3600).cap == 77


# -- a duplicate


def test_a_duplicate_inside_the_range_is_resolved_by_the_newest_batch() -> None:
    """DUPLICATE acknowledges nothing; error NONE for the newest batch acknowledges all below it.

    A broker answers DUPLICATE without an offset, and before the batch is replicated. A duplicate of
    the newest batch is answered with error NONE and the batch's offset.
    """
    rig = doubted()
    rig.fail(rig.outstanding()[0], DUPLICATE)
    rig.tick(1.0)
    assert rig.state().recovery.rung is Rung.PROBING
    probes = probes_of(rig)
    assert list(probes) == [5, 4, 3, 2, 1]
    rig.ack(probes[5], 41)
    for sequence in (4, 3, 2, 1):
        rig.fail(probes[sequence], DUPLICATE)
    assert set(rig.statuses) == {ACKED}
    assert [outcome.offset for outcome in rig.outcomes[1:]] == [-1, -1, -1, -1, 41]
    assert rig.core.counters.data_loss_events == 0
    assert rig.core.epoch_bumps == 0
    rig.assert_drained()


def test_what_the_broker_never_got_is_appended_while_the_rest_is_a_duplicate() -> None:
    """Batches that the broker never got are appended, while those it has are answered DUPLICATE.

    Batches 1 to 3 arrived, 4 and 5 did not: 5 is ahead of the log, and 4 is the next in sequence.
    """
    rig = doubted()
    rig.fail(rig.outstanding()[0], DUPLICATE)
    rig.tick(1.0)
    probes = probes_of(rig)
    rig.fail(probes[5], OUT_OF_ORDER)
    rig.ack(probes[4], 40)
    for sequence in (3, 2, 1):
        rig.fail(probes[sequence], DUPLICATE)
    rig.tick(1.0)
    assert rig.sequences == [5]
    rig.ack(rig.outstanding()[0], 41)
    assert set(rig.statuses) == {ACKED}
    assert [outcome.offset for outcome in rig.outcomes[4:]] == [40, 41]
    rig.assert_drained()


def test_a_duplicate_that_is_not_committed_yet_is_asked_again_and_never_given_up() -> None:
    """A batch that is always answered DUPLICATE is resent again and again, and not given up."""
    rig = doubted(2)
    refuse_until(rig, lambda: rig.polls > 200, DUPLICATE)
    assert rig.state().batches.in_doubt == 2
    rig.settle_down()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 0


def test_a_duplicate_of_a_rejected_batch_is_a_loss_of_state() -> None:
    """DUPLICATE for a batch that was always refused is data loss, and the batch ends UNKNOWN.

    Its sequence is in the broker's range, so another batch was accepted under the same sequence.
    """
    rig = running()
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_LEADER)
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], DUPLICATE)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.core.counters.data_loss_events == 1
    rig.send()
    assert rig.outstanding()[0].epoch == 1


def test_out_of_order_takes_the_ladder_and_does_not_loop() -> None:
    """In range mode, batches that stay OUT_OF_ORDER end UNKNOWN after two passes of probes.

    At a true gap in the log, plain retries would be refused for ever.
    """
    rig = doubted(3)
    while rig.state().batches.unresolved:
        wait_until(rig, lambda: bool(rig.outstanding()))
        rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
        assert len(rig.everything) < 20
    assert rig.statuses[1:] == [UNKNOWN] * 3
    assert rig.core.counters.data_loss_events == 1
    # The oldest batch is resent once, and then all three in each of the two passes of probes.
    resent = [r.sequence for r in rig.everything[4:]]
    assert resent == [1, 3, 2, 1, 3, 2, 1]
    rig.send()
    rig.tick(2.0)
    assert (rig.outstanding()[0].epoch, rig.outstanding()[0].sequence) == (1, 0)


# -- the wrap


def test_sequences_wrap_inside_the_range_without_a_new_epoch() -> None:
    """After sequence 2147483647 comes 0, and the epoch stays.

    A bump at the wrap would abort transactions.
    """
    rig = running()
    rig.jump(SEQUENCE_MODULUS - 3)
    rig.send(6)
    assert rig.sequences == [
        SEQUENCE_MODULUS - 3,
        SEQUENCE_MODULUS - 2,
        SEQUENCE_MODULUS - 1,
        0,
        1,
        2,
    ]
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], DUPLICATE)
    rig.tick(1.0)
    assert rig.sequences[0] == 2, "the newest batch, behind the wrap, is probed first"
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.epoch_bumps == 0
    assert rig.core.identity.current == ProducerIdentity(4001, 0)


def test_the_span_of_unresolved_records_stays_below_its_cap() -> None:
    """No new batch is sent while the unresolved records together span 2^29 sequences."""
    rig, requests = pipelined(2, version=14)
    state = rig.state()
    state.ledger.next = state.batches.unresolved[0].base + 2**29
    rig.send(2)
    assert len(rig.outstanding()) == 2
    for request in requests:
        rig.ack(request)
    assert len(rig.outstanding()) >= 1
    rig.ack_all()
    rig.assert_drained()

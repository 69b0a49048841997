"""Each outcome is delivered once and in order, whatever callbacks do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aioidem._engine.record import Outcome, PendingRecord
from aioidem._engine.settlement import Settlement
from aioidem._producer.settled_records import SettledRecords
from aioidem.structs import DeliveryStatus


class ToldRecord(PendingRecord):
    """A record that passes its outcome on to `Told`."""

    __slots__ = ("told",)

    def __init__(self, told: Told) -> None:
        super().__init__(None, None, (), 0, None, 0)
        self.told = told

    def settle(self, outcome: Outcome, place: int) -> None:
        self.told.settle(outcome, place)


class Told:
    """Lists in `told` the records that got their outcome, in order.

    A record is named by the pair (number of its settlement, its index there). A settlement is one
    outcome and the records that share it. `then` maps such a pair to a function, which is called at
    the record's outcome, like a user's callback.
    """

    def __init__(self) -> None:
        self.settled: list[Settlement] = []
        self.announced: list[int] = []
        self.told: list[tuple[int, int]] = []
        self.then: dict[tuple[int, int], Callable[[], None]] = {}
        self.outcomes = SettledRecords(
            self._take, lambda s: self.announced.append(s.outcome.partition)
        )
        self.outcomes.at_once = 3
        self.outcomes.begin_turn()

    def _take(self) -> list[Settlement]:
        taken, self.settled = self.settled, []
        return taken

    def add(self, number: int, count: int, status: DeliveryStatus = DeliveryStatus.ACKED) -> None:
        """Add settlement `number` with `count` records, as the engine does."""
        outcome = Outcome("t", number, status)
        self.settled.append(Settlement(outcome, [ToldRecord(self) for _ in range(count)]))

    def settle(self, outcome: Outcome, index: int) -> None:
        """Note an outcome, and call the function that `then` has for the record."""
        place = outcome.partition, index
        self.told.append(place)
        if place in self.then:
            self.then.pop(place)()


def places(*counts: int) -> list[tuple[int, int]]:
    """Return (settlement's number, index) of each record; `counts` are the settlements' lengths."""
    return [(number, index) for number, count in enumerate(counts) for index in range(count)]


@pytest.mark.parametrize(
    ("counts", "turns"),
    [((1,), 1), ((3,), 1), ((1, 1, 1), 1), ((4,), 2), ((2, 2), 2), ((7, 1, 1), 3), ((3, 3), 2)],
)
def test_a_turn_tells_so_many_and_the_next_one_goes_on(counts: tuple[int, ...], turns: int) -> None:
    told = Told()
    for number, count in enumerate(counts):
        told.add(number, count)
    for turn in range(turns):
        assert told.outcomes.untold == sum(counts) - 3 * turn
        assert told.outcomes.tell() == (turn == turns - 1)
        assert told.told == places(*counts)[: 3 * (turn + 1)]
        told.outcomes.begin_turn()
    assert not told.outcomes.pending
    assert told.announced == list(range(len(counts)))


def test_what_is_not_told_yet_is_counted_by_outcome() -> None:
    """A flush counts it: for the callers these records have no outcome."""
    told = Told()
    assert told.outcomes.untold_by_status().total() == 0
    told.add(0, 5)
    told.add(1, 2, DeliveryStatus.UNKNOWN)
    expected = {DeliveryStatus.ACKED: 5, DeliveryStatus.UNKNOWN: 2}
    assert told.outcomes.untold_by_status() == expected
    assert not told.outcomes.tell()
    told.add(2, 1)
    assert told.outcomes.untold_by_status() == expected | {DeliveryStatus.ACKED: 3}


def test_a_turn_reports_no_more_than_its_share() -> None:
    told = Told()
    told.add(0, 3)
    assert told.outcomes.tell()
    told.add(1, 1)
    assert not told.outcomes.tell()
    told.outcomes.begin_turn()
    assert told.outcomes.tell()
    assert told.told == places(3, 1)


def test_all_at_once_tells_what_is_left_and_what_comes() -> None:
    told = Told()
    told.add(0, 8)
    assert not told.outcomes.tell()
    told.outcomes.all_at_once()
    assert told.outcomes.tell()
    told.add(1, 8)
    assert told.outcomes.tell()
    assert told.told == places(8, 8)


@pytest.mark.parametrize("at", range(5))
def test_a_callback_that_ends_everything_leaves_the_order_as_it_is(at: int) -> None:
    """A callback that has all outcomes delivered at once does not change their order.

    A callback does that if it starts an eager asyncio task that closes the producer.
    """
    told = Told()

    def end() -> None:
        told.add(2, 4)
        told.outcomes.all_at_once()
        assert not told.outcomes.tell(), "the outer call goes on delivering"

    told.then[places(5, 5)[at]] = end
    told.add(0, 5)
    told.add(1, 5)
    for _ in range(4):
        told.outcomes.tell()
        told.outcomes.begin_turn()
    assert told.told == places(5, 5, 4)


@pytest.mark.parametrize("at", range(6))
def test_a_delivery_that_raises_while_it_is_settled_stops_no_other(at: int) -> None:
    told = Told()

    def fail() -> None:
        raise ZeroDivisionError

    told.then[places(2, 4)[at]] = fail
    told.add(0, 2)
    told.add(1, 4)
    told.outcomes.at_once = 2
    for _ in range(at // 2):
        told.outcomes.begin_turn()
        told.outcomes.tell()
    told.outcomes.begin_turn()
    with pytest.raises(ZeroDivisionError):
        told.outcomes.tell()
    told.outcomes.all_at_once()
    assert told.outcomes.tell()
    assert told.told == places(2, 4)


def test_what_ends_the_program_is_raised_once_every_outcome_of_the_turn_is_delivered() -> None:
    told = Told()

    def end() -> None:
        raise KeyboardInterrupt

    for place in ((0, 0), (0, 1), (1, 3)):
        told.then[place] = end
    told.add(0, 2)
    told.add(1, 4)
    told.outcomes.all_at_once()
    with pytest.raises(KeyboardInterrupt):
        told.outcomes.tell()
    assert told.told == places(2, 4)
    assert told.outcomes.tell()

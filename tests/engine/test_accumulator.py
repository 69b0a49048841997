"""Records that wait: the queue of a partition, and the byte budget with its waiters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord
from aioidem._records import BATCH_OVERHEAD, build_batch, record_size_bound

# -- PartitionQueue


def record(
    size: int | None = None, *, deadline: float = 100.0, value: bytes = b"", stamp: int = 0
) -> PendingRecord:
    bound = record_size_bound(None, value, ()) if size is None else size
    made = PendingRecord(None, value, (), stamp, 0, bound)
    made.deadline = deadline
    return made


def filled(*sizes: int, now: float = 0.0) -> PartitionQueue:
    queue = PartitionQueue()
    for size in sizes:
        queue.append(record(value=b"v" * size), now)
    return queue


def test_a_batch_takes_records_in_order_until_it_is_full() -> None:
    queue = filled(100, 100, 100, 100)
    taken = queue.cut(BATCH_OVERHEAD + 250, 1000)
    assert len(taken) == 2
    assert len(queue.records) == 2
    assert queue.bytes == sum(r.size for r in queue.records)


def test_a_record_larger_than_the_batch_goes_alone() -> None:
    """A record larger than a batch makes a batch of its own, and no batch is empty."""
    queue = filled(5000, 10)
    assert len(queue.cut(1, 1000)) == 1
    assert len(queue.cut(1, 1000)) == 1
    assert queue.bytes == 0


def test_a_batch_takes_no_more_records_than_allowed() -> None:
    queue = filled(*[1] * 10)
    assert len(queue.cut(10_000, 3)) == 3


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 10**6)), min_size=1, max_size=60),
    st.integers(1, 3000),
)
def test_a_cut_never_exceeds_its_limit_and_loses_nothing(
    sizes: list[tuple[int, int]], limit: int
) -> None:
    queue = PartitionQueue()
    everything = [record(value=b"v" * size, stamp=stamp) for size, stamp in sizes]
    for each in everything:
        queue.append(each, 0.0)
    seen: list[PendingRecord] = []
    while queue.records:
        taken = queue.cut(limit, 1000)
        built = build_batch(taken)
        assert len(taken) == 1 or len(built.data) <= limit
        seen.extend(taken)
        assert queue.bytes == sum(r.size for r in queue.records)
    assert seen == everything


def test_small_records_fill_a_batch_closely() -> None:
    """A batch of small records is filled to 99 percent of its limit.

    The upper bounds of the sizes of small records add up to far more bytes than their batch has. So
    a batch that is cut by that sum takes far fewer records than fit.
    """
    queue = filled(*[10] * 2000)
    built = build_batch(queue.cut(16384, 10_000))
    assert len(built.data) > 0.99 * 16384


def test_ready_when_full_when_lingered_and_when_flushed() -> None:
    """A batch is ready when it is full, when its linger is over, and when it is flushed."""
    queue = filled(100, now=10.0)
    assert not queue.ready(10.5, linger=1.0, batch_size=1000)
    assert queue.ready(11.0, linger=1.0, batch_size=1000)
    assert queue.ready(10.5, linger=0.0, batch_size=1000)
    assert queue.ready(10.5, linger=1.0, batch_size=100)
    queue.flushing = True
    assert queue.ready(10.5, linger=1.0, batch_size=1000)
    assert not PartitionQueue().ready(99.0, linger=0.0, batch_size=1)


def test_linger_counts_from_the_first_record() -> None:
    queue = filled(10, now=10.0)
    queue.append(record(), 10.9)
    assert queue.ready(11.0, linger=1.0, batch_size=10_000)


def test_expiry_takes_the_records_whose_deadline_passed_and_no_other() -> None:
    queue = PartitionQueue()
    for deadline in (1.0, 2.0, 3.0):
        queue.append(record(deadline=deadline), 0.0)
    assert [r.deadline for r in queue.expire(2.0)] == [1.0, 2.0]
    assert queue.bytes == queue.records[0].size
    assert queue.expire(2.5) == []


@pytest.mark.parametrize("how", ["cut", "expire", "empty"])
def test_an_emptied_queue_forgets_that_it_was_blocked_or_flushed(how: str) -> None:
    queue = filled(10)
    queue.blocked = queue.flushing = True
    taking: dict[str, Callable[[], Sequence[PendingRecord]]] = {
        "cut": lambda: queue.cut(1000, 10),
        "expire": lambda: queue.expire(1000.0),
        "empty": queue.empty,
    }
    assert len(taking[how]()) == 1
    assert (queue.blocked, queue.flushing, queue.bytes) == (False, False, 0)


# -- ByteBudget


class Waiters:
    """The waiters of a byte budget, and those of them that were woken, in order."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.woken: list[MemoryWaiter] = []
        self.all: list[MemoryWaiter] = []

    def wait(self, size: int) -> MemoryWaiter:
        # `budget.wait` may call `wake` before it has returned the waiter; `box` is empty then.
        box: list[MemoryWaiter] = []
        early: list[bool] = []

        def wake() -> None:
            if box:
                self.woken.append(box[0])
            else:
                early.append(True)

        waiter = self.budget.wait(size, wake)
        box.append(waiter)
        self.woken.extend([waiter] * len(early))
        self.all.append(waiter)
        return waiter


def test_room_is_taken_and_given_back() -> None:
    budget = ByteBudget(100)
    assert budget.try_take(60)
    assert not budget.try_take(41)
    assert budget.try_take(40)
    budget.release(100)
    assert budget.used == 0


def test_waiters_are_served_first_come_first_served() -> None:
    """A small record behind a large one does not overtake it in the wait for memory."""
    budget = ByteBudget(100)
    budget.try_take(100)
    waiters = Waiters(budget)
    large, small = waiters.wait(80), waiters.wait(10)
    budget.release(50)
    assert waiters.woken == []
    assert not budget.try_take(1)
    budget.release(50)
    assert waiters.woken == [large]
    budget.claim(large)
    assert waiters.woken == [large, small]
    budget.claim(small)
    assert (budget.used, budget.waiting) == (90, 0)


def test_each_claim_wakes_the_next_one_that_fits() -> None:
    budget = ByteBudget(100)
    budget.try_take(100)
    waiters = Waiters(budget)
    for _ in range(5):
        waiters.wait(30)
    budget.release(100)
    for waiter in waiters.all[:3]:
        assert waiters.woken[-1] is waiter
        budget.claim(waiter)
    assert waiters.woken == waiters.all[:3]
    assert (budget.used, budget.waiting) == (90, 2)


def test_no_call_overtakes_a_waiter_that_was_granted_room() -> None:
    """No call takes memory while a waiter that was granted memory has not claimed it yet.

    Simulation seed 1 found a bug that let another task overtake such a waiter.
    """
    budget = ByteBudget(100)
    budget.try_take(100)
    waiters = Waiters(budget)
    first = waiters.wait(10)
    budget.release(100)
    assert first.granted
    assert not budget.try_take(1)
    budget.claim(first)
    budget.claim(first)
    assert budget.try_take(90)


def test_records_get_what_the_copies_of_batches_leave() -> None:
    """A part of the budget is kept for copies of batches; more copies take room from records."""
    budget = ByteBudget(100, 25)
    assert budget.try_take(70)
    assert not budget.try_take(6)
    budget.add_copy(20)  # within the part that is kept for them
    assert budget.try_take(5)
    budget.add_copy(40)  # there is no room for it, and it counts nevertheless
    assert (budget.in_use, budget.limit) == (135, 40)
    budget.release(40)
    waiters = Waiters(budget)
    waiter = waiters.wait(10)
    assert not waiter.granted  # records use 35 of the 40 that are left
    budget.drop_copy(20)
    assert waiter.granted


def lines_that_serve(count: int) -> int:
    """Count the lines of Python that run while `count` waiters are served."""
    budget = ByteBudget(1000)
    budget.try_take(1000)
    waiters = Waiters(budget)
    for _ in range(count):
        waiters.wait(100)
    ran = 0

    def on_line(_frame: object, event: str, _argument: object) -> Any:
        nonlocal ran
        ran += event == "line"
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        for waiter in waiters.all:
            budget.release(100)
            budget.claim(waiter)
    finally:
        sys.settrace(before)
    return ran


def test_a_waiter_costs_as_much_among_many_as_among_few() -> None:
    """Serving twice as many waiters takes at most 2.1 times as many lines of Python."""
    assert lines_that_serve(2000) < 2.1 * lines_that_serve(1000)


def test_ten_thousand_waiters_cost_one_wake_up_each() -> None:
    """A release wakes the waiter that it serves and no other."""
    count = 10_000
    budget = ByteBudget(1000)
    budget.try_take(1000)
    waiters = Waiters(budget)
    for _ in range(count):
        waiters.wait(100)
    for waiter in waiters.all:
        before = len(waiters.woken)
        budget.release(100)
        assert waiters.woken[before:] == [waiter]
        budget.claim(waiter)
    assert waiters.woken == waiters.all
    assert (budget.used, budget.waiting) == (1000, 0)


def test_ten_thousand_waiters_may_all_leave() -> None:
    budget = ByteBudget(1000)
    budget.try_take(1000)
    waiters = Waiters(budget)
    for _ in range(10_000):
        waiters.wait(100)
    for waiter in reversed(waiters.all):
        budget.abandon(waiter)
    assert budget.waiting == 0
    assert waiters.woken == []
    budget.release(1000)
    assert budget.used == 0
    assert budget.try_take(1000)


def test_leaving_before_the_grant_lets_the_next_one_in() -> None:
    """When the waiter at the head leaves before its grant, the next one that fits gets room."""
    budget = ByteBudget(100)
    budget.try_take(50)
    waiters = Waiters(budget)
    large, small = waiters.wait(80), waiters.wait(40)
    budget.abandon(large)
    assert waiters.woken == [small]
    budget.claim(small)
    assert (budget.used, budget.waiting) == (90, 0)


def test_leaving_after_the_grant_gives_the_room_back_once() -> None:
    budget = ByteBudget(100)
    budget.try_take(100)
    waiters = Waiters(budget)
    first, second = waiters.wait(100), waiters.wait(100)
    budget.release(100)
    assert first.granted
    budget.abandon(first)
    budget.abandon(first)
    assert waiters.woken == [first, second]
    assert budget.used == 100
    budget.abandon(second)
    assert (budget.used, budget.waiting) == (0, 0)


def test_leaving_twice_before_the_grant_counts_once() -> None:
    budget = ByteBudget(10)
    budget.try_take(10)
    waiters = Waiters(budget)
    first = waiters.wait(5)
    budget.abandon(first)
    budget.abandon(first)
    assert budget.waiting == 0


def test_a_record_larger_than_the_budget_passes_when_it_is_alone() -> None:
    budget = ByteBudget(100)
    assert budget.try_take(500)
    assert not budget.try_take(1)
    waiters = Waiters(budget)
    waiter = waiters.wait(300)
    budget.release(500)
    assert waiter.granted
    assert budget.used == 300


def test_closing_wakes_everyone_and_grants_nothing() -> None:
    """Closing the budget wakes every waiter and grants no memory."""
    budget = ByteBudget(10)
    budget.try_take(10)
    waiters = Waiters(budget)
    left = waiters.wait(5)
    budget.abandon(left)
    stayed = waiters.wait(5)
    assert list(budget.wake_all()) == [stayed]
    assert waiters.woken == [stayed]
    assert not stayed.granted
    budget.abandon(stayed)
    assert (budget.used, budget.waiting) == (10, 0)


def test_room_granted_before_closing_can_still_be_given_back() -> None:
    budget = ByteBudget(10)
    budget.try_take(10)
    waiters = Waiters(budget)
    granted, waiting = waiters.wait(5), waiters.wait(10)
    budget.release(10)
    assert list(budget.wake_all()) == [waiting]
    budget.abandon(granted)
    assert (budget.used, budget.waiting) == (0, 0)


def test_a_wake_up_that_claims_and_releases_is_granted_only_once() -> None:
    """A waiter is granted memory once, even if its wake-up callback claims and releases it."""
    budget = ByteBudget(100)
    budget.try_take(100)
    woken: list[str] = []
    box: list[MemoryWaiter] = []

    def give_back() -> None:
        woken.append("first")
        budget.claim(box[0])
        budget.release(60)

    box.append(budget.wait(60, give_back))
    budget.wait(60, lambda: woken.append("second"))
    budget.release(100)
    assert woken == ["first", "second"]
    assert (budget.used, budget.waiting) == (60, 1)


class BudgetMachine(RuleBasedStateMachine):
    """A byte budget whose memory is taken, waited for, claimed and released in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = ByteBudget(100)
        self.waiters = Waiters(self.budget)
        self.held: list[int] = []
        self.queue: list[MemoryWaiter] = []

    @rule(size=st.integers(1, 130))
    def take(self, size: int) -> None:
        fits = self.budget.used + size <= 100 or self.budget.used == 0
        taken = self.budget.try_take(size)
        assert taken is (fits and not self.queue)
        if taken:
            self.held.append(size)

    @rule(size=st.integers(1, 130))
    def wait(self, size: int) -> None:
        self.queue.append(self.waiters.wait(size))

    @precondition(lambda self: self.queue and self.queue[0].granted)
    @rule()
    def claim(self) -> None:
        waiter = self.queue.pop(0)
        self.held.append(waiter.size)
        self.budget.claim(waiter)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = self.queue.pop(data.draw(st.integers(0, len(self.queue) - 1)))
        self.budget.abandon(waiter)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.budget.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def counts_agree(self) -> None:
        budget = self.budget
        granted = [waiter.size for waiter in self.queue if waiter.granted]
        assert budget.used == sum(self.held) + sum(granted) >= 0
        assert budget.used <= 100 or len(self.held) + len(granted) == 1
        assert budget.waiting == len(self.queue)

    @invariant()
    def only_the_head_is_granted_room(self) -> None:
        assert not any(waiter.granted for waiter in self.queue[1:])

    @invariant()
    def nobody_waits_for_room_that_is_there(self) -> None:
        if self.queue and not self.queue[0].granted:
            assert self.budget.used
            assert self.budget.used + self.queue[0].size > 100

    @invariant()
    def each_is_woken_once(self) -> None:
        assert len({id(w) for w in self.waiters.woken}) == len(self.waiters.woken)
        assert all(w.granted for w in self.waiters.woken)


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=60)

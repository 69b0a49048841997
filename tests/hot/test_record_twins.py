"""What is done with each single record is the same, compiled and in pure Python.

Both forms queue, take, add up and settle the same records with the same results. The numbers of the
compiled form are numbers of C, so numbers at their ends are tested.
"""

# ruff: noqa: SLF001 - both forms have the same attributes, which the classes above them use

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_795_250_000_000
OVERHEAD = 20
GROUPS = (None, object())


def record_of(form: Any, size: int, stamp: int = NOW, group: object = None) -> Any:
    """Make a record; `memory` is a class attribute, as the engine's records have it."""
    kind = type("Record", (form.RecordFields,), {"__slots__": (), "memory": 100})
    return kind(None, b"v", (), stamp, None, size, group)


_SIZES = st.integers(OVERHEAD, 400)
_STAMPS = st.integers(NOW - 10_000, NOW + 10_000)
_RECORDS = st.lists(st.tuples(_SIZES, _STAMPS, st.sampled_from((0, 0, 0, 1))), max_size=40)


@given(_RECORDS, st.integers(0, 4_000), st.integers(1, 40), st.booleans())
def test_batches_are_cut_alike(
    compiled: Any, pure: Any, drawn: list[tuple[int, int, int]], room: int, most: int, whole: bool
) -> None:
    """Both forms take the same records for a batch, and squeeze the same further ones into it."""
    results = []
    for form in (compiled, pure):
        queue = deque(record_of(form, s, t, GROUPS[g]) for s, t, g in drawn)
        if not queue:
            assert form.take_fitting(queue, None, room, most, whole) == ([], 0)
            continue
        taken, size = form.take_fitting(queue, queue[0].group, room, most, whole)
        added = form.squeeze(queue, taken, size, room, most, OVERHEAD)
        results.append((len(taken), size, added, len(queue), [r.size for r in taken]))
        assert form.total_size(taken) == size + added
    assert results[:1] == results[1:]


def test_one_record_is_taken_even_if_it_does_not_fit(form: Any) -> None:
    """If the first record in the queue is too large for a batch, it is taken alone nevertheless."""
    queue = deque([record_of(form, 500), record_of(form, 10)])
    taken, size = form.take_fitting(queue, None, 100, 10, False)
    assert (len(taken), size, len(queue)) == (1, 500, 1)


def test_squeezed_records_fit(form: Any) -> None:
    """Records are added until the tighter bound is reached, and no further."""
    queue = deque(record_of(form, 121) for _ in range(20))
    taken, size = form.take_fitting(queue, None, 1_000, 100, False)
    assert (len(taken), size) == (8, 968)
    # Each of them takes 100 bytes of payload and 5 of varints: 9 take 945 bytes, 10 take 1,050.
    assert form.squeeze(queue, taken, size, 1_000, 100, 21) == 121
    assert (len(taken), len(queue)) == (9, 11)


def test_sizes_and_memory_are_added_up(form: Any) -> None:
    """A record takes its class's `memory`, and the given number of bytes for each header."""
    records = [record_of(form, 30) for _ in range(3)]
    records[1].headers = (("a", b""), ("b", None))
    records[2].headers = [("a", b"")]
    assert form.total_size(records) == 90
    assert form.total_overhead(records, 7) == 300 + 3 * 7
    assert form.total_size([]) == form.total_overhead([], 7) == 0


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_refused(compiled: Any, number: int) -> None:
    """A number that C cannot hold raises an error instead of becoming another one."""
    with pytest.raises(OverflowError):
        compiled.RecordFields(None, b"v", (), number, None, 10)


class Home:
    """A stand-in for a producer, which has an event loop and notes the argument of each `check`."""

    running_loop = staticmethod(asyncio.get_running_loop)

    def __init__(self) -> None:
        self.loop: object = None
        self.checked: list[bool] = []

    def check(self, awaits: bool) -> None:
        self.checked.append(awaits)


def delivery_class(form: Any) -> Any:
    """Make a class of deliveries that notes the calls of the methods that are seldom needed."""

    class Noted(form.DeliveryFields):  # type: ignore[misc]
        __slots__ = ()
        memory = 100
        calls: list[Any] = []  # noqa: RUF012 - one class per test

        def _look(self) -> None:
            self._looking = 1  # type: ignore[misc]

        def _failure(self) -> Any:
            self._look()
            return None if self._outcome is None else self._outcome.error

        def _failed(self, error: BaseException) -> None:
            if isinstance(error, KeyboardInterrupt):
                raise error
            self.calls.append(error)

        def _count_if_unseen(self, topic: str, error: Exception) -> None:
            self.calls.append((topic, error))

        def _wake(self, waiter: Any) -> None:
            self.calls.append(waiter)

    return Noted


def delivery_of(form: Any, siblings: Any = None) -> Any:
    return delivery_class(form)(
        b"k", b"v", (("a", b""),), NOW, 3, 30, SimpleNamespace(home=Home()), siblings
    )


ACKED = SimpleNamespace(error=None, topic="t")


def test_a_new_delivery_has_what_it_was_given(form: Any) -> None:
    """A new delivery has each argument as an attribute, and 0 in the numbers of the engine."""
    made = delivery_of(form)
    assert (made.key, made.value, made.headers) == (b"k", b"v", (("a", b""),))
    assert (made.timestamp_ms, made.partition, made.size, made.group) == (NOW, 3, 30, None)
    assert (made.deadline, made.queued_at, made.generation, made.ordinal) == (0.0, 0.0, 0, 0)
    assert (made.done(), made.exception()) == (False, None)


def test_a_settled_delivery_lets_go_of_its_payload_and_callbacks(form: Any) -> None:
    """A settled delivery keeps its outcome and place, but no key, value, headers or callbacks."""
    called: list[Any] = []
    made = delivery_of(form)
    made.add_done_callback(called.append)
    made.settle(ACKED, 7)
    assert called == [made]
    assert (made.done(), made._outcome, made._place) == (True, ACKED, 7)
    assert (made.key, made.value, made.headers, made._callbacks) == (None, None, (), None)


def test_several_callbacks_are_called_in_order(form: Any) -> None:
    """One that raises is reported, and the ones after it are called."""
    made, called, error = delivery_of(form), [], ValueError("a callback")

    def raising(_: object) -> None:
        raise error

    for callback in (lambda _: called.append(1), raising, lambda _: called.append(2)):
        made.add_done_callback(callback)
    made.settle(ACKED, 0)
    made.add_done_callback(lambda _: called.append(3))
    made.add_done_callback(raising)
    assert called == [1, 2, 3]
    assert made.calls == [error, error]


def test_a_callback_that_reads_a_cancelled_future_is_reported_as_any_other(form: Any) -> None:
    """What it raises is no Exception, and stops neither other callbacks nor other records."""
    records, error = [delivery_of(form) for _ in range(3)], asyncio.CancelledError()
    called: list[object] = []

    def raising(_: object) -> None:
        raise error

    for record in records:
        record.add_done_callback(raising)
    records[1].add_done_callback(called.append)
    form.settle_each(records, ACKED, 0, called.append)
    records[2].add_done_callback(raising)
    assert called == [records[1], 3]
    assert [len(record.calls) for record in records] == [1, 1, 2]


def test_what_ends_the_program_is_raised_once_the_other_callbacks_were_called(form: Any) -> None:
    made, called = delivery_of(form), []

    def raising(_: object) -> None:
        raise KeyboardInterrupt

    for callback in (raising, lambda _: called.append(1), raising, lambda _: called.append(2)):
        made.add_done_callback(callback)
    with pytest.raises(KeyboardInterrupt):
        made.settle(ACKED, 0)
    assert (called, made.calls, made.done()) == ([1, 2], [], True)


@pytest.mark.parametrize("odd", [None, (), (print,)])
def test_what_is_no_function_is_reported(form: Any, odd: Any) -> None:
    """A callback that cannot be called is an error of the caller, whatever it is."""
    made = delivery_of(form)
    made.add_done_callback(odd)
    made.settle(ACKED, 0)
    [error] = made.calls
    assert isinstance(error, TypeError)


@pytest.mark.parametrize("name", ["done", "exception", "add_done_callback"])
def test_users_read_the_same_help(compiled: Any, pure: Any, name: str) -> None:
    """A delivery's public methods have the same docstring in both forms."""
    twins = [getattr(form.DeliveryFields, name).__doc__ for form in (compiled, pure)]
    assert [inspect.cleandoc(text) for text in twins] == [inspect.cleandoc(twins[1])] * 2


def test_the_waiting_task_and_the_siblings_are_told_once(form: Any) -> None:
    """A delivery wakes its waiter, forgets it, and counts as done among its siblings."""
    told: list[int] = []
    made = delivery_of(form, SimpleNamespace(one_done=lambda: told.append(1)))
    made._waiter = "a waiter"
    made.settle(ACKED, 0)
    assert (made.calls, made._waiter, told) == (["a waiter"], None, [1])
    assert made._siblings is None  # they would keep the other deliveries of the call


def test_a_failure_is_counted_as_unseen(form: Any) -> None:
    """The method that counts unseen failures gets topic and error before callbacks run."""
    made, error = delivery_of(form), ValueError("x")
    made.settle(SimpleNamespace(error=error, topic="t"), 0)
    assert made.calls == [("t", error)]
    assert made.exception() is error


def test_a_callback_from_elsewhere_is_checked(form: Any) -> None:
    """On the producer's own loop nothing more is checked; without one, or on another, it is."""
    made = delivery_of(form)
    home = made._context.home
    made.add_done_callback(print)
    assert home.checked == [False]

    async def on_the_loop(own: bool) -> None:
        home.loop = asyncio.get_running_loop() if own else object()
        made.add_done_callback(print)

    asyncio.run(on_the_loop(own=True))
    assert home.checked == [False]
    asyncio.run(on_the_loop(own=False))
    assert home.checked == [False, False]


def test_settling_says_how_far_it_came(form: Any) -> None:
    """The last argument is called with the place after the last record, also after an error."""
    told: list[int] = []
    records = [delivery_of(form) for _ in range(3)]
    form.settle_each(records, ACKED, 5, told.append)
    assert ([r._place for r in records], told) == ([5, 6, 7], [8])
    form.settle_each([], ACKED, 5, told.append)
    assert told == [8, 5]

    class Stops(KeyboardInterrupt):
        pass

    def stopping(_: object) -> None:
        raise Stops

    records = [delivery_of(form) for _ in range(3)]
    records[1].add_done_callback(stopping)
    with pytest.raises(Stops):
        form.settle_each(records, ACKED, 0, told.append)
    assert told == [8, 5, 2]
    assert [r.done() for r in records] == [True, True, False]


# -- queueing --------------------------------------------------------------------------------------


class Queueing:
    """An `Appender` and `PlainSends` of one form, with what the producer gives them."""

    def __init__(self, form: Any) -> None:
        self.form = form
        self.made = delivery_class(form)
        self.woken: list[object] = []
        self.appended: list[Any] = []
        self.refusal: Exception | None = None
        self.meanwhile = 0
        self.effects = SimpleNamespace(fatal_error=None)
        self.queue = form.QueueFields()
        sticky = form.StickyFields()
        sticky.left = 300
        self.target = form.TargetFields(SimpleNamespace(queue=self.queue), sticky)
        self.targets: dict[str, Any] = {"t": self.target}
        self.appender = form.Appender(120.0, self.effects, self.targets, self.woken.append)
        self.life = SimpleNamespace(open_loop=None, clock=lambda: 50.0)
        self.budget = form.BudgetFields()
        self.budget.used, self.budget.limit = 10, 10_000
        self.wakeup = SimpleNamespace(raised=False, set=self._raise)
        self.sends = form.PlainSends(
            self.made, SimpleNamespace(home=Home()), asyncio.get_running_loop,
            self._wall_clock, self.life, self.budget, self._release, self._append,
            self.appender, {"t": None, "u": None}, self.wakeup, most=400, empty=22, memory=100,
        )  # fmt: skip

    def _wall_clock(self) -> float:
        # The clock is read while the record is made.
        self.budget.used += self.meanwhile
        return time.time()

    def _release(self, size: int) -> None:
        self.budget.used -= size

    def _raise(self) -> None:
        self.wakeup.raised = True

    def _append(self, topic: str, record: Any, now: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.appended.append((topic, record.size, now))

    def send(self, topic: Any = "t", value: Any = b"v" * 50) -> Any:
        """Call `PlainSends.queue` on a running event loop, the producer's unless it has one."""

        async def call() -> Any:
            if self.life.open_loop is None:
                self.life.open_loop = asyncio.get_running_loop()
            try:
                return self.sends.queue(topic, value)
            finally:
                self.life.open_loop = None

        return asyncio.run(call())


@pytest.fixture
def queueing(form: Any) -> Queueing:
    return Queueing(form)


def test_a_plain_record_goes_where_the_one_before_it_went(queueing: Queueing) -> None:
    """A plain record gets a number and deadline, takes memory, is queued, and wakes the sender."""
    first, second = queueing.send(), queueing.send(value=b"v" * 100)
    assert list(queueing.queue.records) == [first, second]
    assert (first.size, second.size, queueing.queue.bytes) == (72, 123, 195)
    assert (first.ordinal, second.ordinal, queueing.appender.ordinal) == (1, 2, 2)
    assert (first.deadline, first.queued_at, first.generation) == (170.0, 50.0, 0)
    assert queueing.target.sticky.left == 300 - 195
    assert queueing.budget.used == 10 + 195 + 2 * 100
    assert queueing.woken == [queueing.target.state]
    assert queueing.wakeup.raised
    assert queueing.appended == []
    assert type(first) is queueing.made
    assert abs(first.timestamp_ms - second.timestamp_ms) < 60_000


def test_where_a_partition_must_be_chosen_the_engine_does(queueing: Queueing) -> None:
    """Without a target, or when its partition has had its share of records, the engine appends."""
    assert queueing.send("u") is not None
    queueing.target.sticky.left = 0
    assert queueing.send() is not None
    assert queueing.appended == [("u", 72, 50.0), ("t", 72, 50.0)]
    assert queueing.appender.ordinal == 0  # the engine numbers these records itself
    assert not queueing.queue.records


def test_a_refusal_of_the_engine_returns_the_bytes(queueing: Queueing) -> None:
    """The error reaches the caller, and the buffer counts nothing for the record."""
    queueing.refusal = ValueError("refused")
    with pytest.raises(ValueError, match="refused"):
        queueing.send("u")
    assert queueing.budget.used == 10
    assert not queueing.wakeup.raised


def test_what_a_finaliser_queues_meanwhile_is_counted(queueing: Queueing) -> None:
    """Making a record may run the garbage collector, and a finaliser may send."""
    queueing.meanwhile = 500
    assert queueing.send() is not None
    assert queueing.budget.used == 10 + 500 + 72 + 100


def _full(each: Queueing) -> None:
    each.budget.limit = 10 + 72 + 99


def _waiting(each: Queueing) -> None:
    each.budget.waiting = 1


def _ended(each: Queueing) -> None:
    each.effects.fatal_error = ValueError("the end")


def _elsewhere(each: Queueing) -> None:
    each.life.open_loop = object()


@pytest.mark.parametrize("change", [_full, _waiting, _ended, _elsewhere])
def test_what_is_out_of_the_ordinary_queues_nothing(
    queueing: Queueing, change: Callable[[Queueing], None]
) -> None:
    """A full buffer, waiting callers, an ended producer or another loop: `queue` returns None."""
    change(queueing)
    assert queueing.send() is None
    assert (queueing.budget.used, queueing.appender.ordinal) == (10, 0)
    assert not queueing.queue.records


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        ("new", b"v"),
        ([], b"v"),
        ("t", None),
        ("t", "text"),
        ("t", bytearray(b"v")),
        ("t", b"v" * 401),
    ],
)
def test_other_arguments_queue_nothing(queueing: Queueing, topic: Any, value: Any) -> None:
    """A new topic, a value that is not bytes and one that is long return None."""
    assert queueing.send(topic, value) is None
    assert queueing.budget.used == 10


def test_without_a_running_loop_nothing_is_queued(queueing: Queueing) -> None:
    """A call from outside of any event loop returns None."""
    assert queueing.sends.queue("t", b"v") is None


@pytest.mark.parametrize(("name", "value"), [("key", b"k"), ("partition", 2)])
def test_a_record_that_chooses_its_partition_is_not_appended(
    queueing: Queueing, name: str, value: object
) -> None:
    """`Appender.append` leaves a record with a key or a partition as it is."""
    record = record_of(queueing.form, 30)
    setattr(record, name, value)
    assert not queueing.appender.append("t", record, 1.0)
    assert (record.ordinal, queueing.appender.ordinal) == (0, 0)
    queueing.appender.generation = 4
    queueing.appender.number(record, 1.0)
    assert (record.ordinal, record.generation, record.deadline) == (1, 4, 121.0)


def test_the_appender_knows_whether_the_producer_has_ended(queueing: Queueing) -> None:
    """`ended` is true from the fatal error on."""
    assert not queueing.appender.ended
    _ended(queueing)
    assert queueing.appender.ended


def test_a_copy_of_a_record_has_all_of_it(form: Any) -> None:
    """Copies have each attribute, so that states of the engine can be copied and compared."""
    record = form.RecordFields(b"k", b"v", (("a", b""),), NOW, 3, 30, "group")
    record.deadline, record.queued_at, record.generation, record.ordinal = 1.5, 2.5, 4, 5
    other = copy.deepcopy(record)
    names = form.RecordFields.__slots__
    assert [getattr(other, name) for name in names] == [getattr(record, name) for name in names]
    appender = copy.copy(Queueing(form).appender)
    assert set(form.Appender.__slots__) == {name for name in dir(appender) if name in _APPENDER}


_APPENDER = ("_effects", "_targets", "_timeout", "_wake", "generation", "ordinal")

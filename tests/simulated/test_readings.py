"""Tests of the judge of reading back: what may hide a batch, and which faults it notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import doubt
from aioidem._engine.classify import RETRIABLE_FETCH_ERRORS, RETRIABLE_TOPIC_ERRORS
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.links import Link
from aioidem._engine.log_lookup import LogLookup
from aioidem._engine.read_back import ReadBack
from aioidem._engine.requests import Outstanding
from aioidem._engine.steps import ReadBack as Page
from aioidem._engine.suspicion import Suspicion
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem.testing import Anomaly, ValueId

from .late_copies import LateCopies
from .perform import perform
from .readings import Readings
from .soak import quiet
from .swarm import draw_swarm

PLACE = "t", 0


class Read:
    """A judge of a partition that is sent on connection 1, and what it is told."""

    def __init__(self) -> None:
        self.link = 1
        self.awaited: set[int] = set()
        self.tokens = 0
        self.judge = Readings(lambda _: self.link, lambda _, token: token in self.awaited, 10.0)

    def ask(self, at: float, link: int = 1) -> Page:
        self.tokens += 1
        self.awaited.add(self.tokens)
        step = Page(link, self.tokens, *PLACE[:1], UUID(int=1), PLACE[1], 0)
        self.judge.asked(step, at)
        return step

    def answer(self, step: Page, code: int = 0, high_watermark: int = 5) -> None:
        self.awaited.remove(step.token)
        self.judge.heard(step, ReadBackAnswer(code, high_watermark, b""))

    def complaint(self, *offsets: int, doubted_at: float = 1.0, now: float = 3.0) -> str | None:
        return self.judge.complaint(PLACE, doubted_at, offsets, 1, now)


def test_a_batch_may_be_unknown_if_the_log_does_not_show_it() -> None:
    """It is above the high watermark of the last page, or not in the log."""
    read = Read()
    assert read.complaint() == "its leader's log was not read"
    read.answer(read.ask(1.0))
    assert read.complaint() is None
    assert read.complaint(5) is None
    assert read.complaint(4) == "it is at offset 4, below the high watermark 5"
    assert read.complaint(1) is None, "offset 1 was acknowledged before, so that is lost"


def test_a_page_must_be_asked_for_when_the_batch_is_in_doubt() -> None:
    read = Read()
    read.answer(read.ask(0.9))
    assert read.complaint() == "its leader's log was not read"


def test_a_page_that_is_awaited_must_come_first() -> None:
    read = Read()
    read.answer(read.ask(1.0))
    later = read.ask(2.0)
    assert read.complaint() == "its leader's log is being read"
    read.answer(later)
    assert read.complaint() is None


def test_a_page_of_another_connection_shows_nothing() -> None:
    """It may come from the old leader, and is neither awaited."""
    read = Read()
    read.answer(read.ask(1.0, link=2))
    assert read.complaint() == "its leader's log was not read"
    read.answer(read.ask(1.0))
    read.ask(2.0, link=2)
    assert read.complaint() is None


def test_a_leader_that_was_just_elected_may_not_know_what_is_committed() -> None:
    """It is asked again for a request timeout, and then it has lost what was acknowledged."""
    read = Read()
    read.answer(read.ask(1.0), high_watermark=1)
    assert read.complaint() == "its leader did not know yet what is committed"
    read.answer(read.ask(9.0), high_watermark=1)
    assert read.complaint(now=10.9) == "its leader did not know yet what is committed"
    assert read.complaint(now=11.0) is None
    read.answer(read.ask(10.0), high_watermark=2)
    assert read.complaint(now=10.9) is None


@pytest.mark.parametrize(
    ("code", "for_good"),
    [
        (ErrorCode.topic_authorization_failed, True),
        (ErrorCode.offset_out_of_range, True),
        (ErrorCode.not_leader_or_follower, False),
        (ErrorCode.kafka_storage_error, False),
        (ErrorCode.unknown_leader_epoch, False),
        (ErrorCode.unknown_topic_id, False),
        (ErrorCode.unknown_server_error, False),
    ],
)
def test_reading_may_fail_for_good(code: int, for_good: bool) -> None:
    read = Read()
    read.answer(read.ask(1.0), code)
    assert (read.complaint() is None) is for_good


def test_a_topic_that_may_not_be_read_stays_so_on_its_connection() -> None:
    read = Read()
    read.answer(read.ask(0.5), ErrorCode.topic_authorization_failed)
    assert read.complaint(doubted_at=2.0) is None
    read.link = 2
    assert read.complaint(doubted_at=2.0) == "its leader's log was not read"


# -- faults of the engine ---------------------------------------------------------------------


def _from_behind(patch: pytest.MonkeyPatch) -> None:
    """Read from the newest acknowledged offset on, which may be behind the batch."""

    def naive(self: LogLookup) -> int | None:
        return self._read_back.begin(self._log.offset)

    patch.setattr(LogLookup, "begin", naive)


def _any_page(patch: pytest.MonkeyPatch) -> None:
    """Take a page, an error or a loss of an earlier reading for one of the present reading."""
    patch.setattr(ReadBack, "takes", lambda _self, _token: True)


def _one_ends_all(patch: pytest.MonkeyPatch) -> None:
    """Read nothing more on a connection after one partition cannot be read."""
    heard = DoubtResolution.on_read_back

    def naive(
        self: DoubtResolution,
        link: Link,
        request: Outstanding,
        answer: ReadBackAnswer,
        now: float,
    ) -> None:
        if answer.error_code and answer.error_code not in RETRIABLE_FETCH_ERRORS:
            link.refuse_reading()
        heard(self, link, request, answer, now)

    patch.setattr(DoubtResolution, "on_read_back", naive)


def _for_good(patch: pytest.MonkeyPatch) -> None:
    """Take codes that pass for permanent ones."""
    patch.setattr(doubt, "RETRIABLE_FETCH_ERRORS", RETRIABLE_TOPIC_ERRORS)


def _empty_is_the_end(patch: pytest.MonkeyPatch) -> None:
    """Take an empty page for the end of the log."""
    patch.setattr(ReadBack, "owed", lambda _self, _high_watermark: None)


def _committed_is_known(patch: pytest.MonkeyPatch) -> None:
    """Take the high watermark of a leader that was just elected for the end of its log."""
    patch.setattr(ReadBack, "is_behind", lambda *_: False)


def _old_stamps_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Forget the timestamps of a batch that ended UNKNOWN."""
    patch.setattr(Suspicion, "given_up", lambda _self, _created_ms: None)


@pytest.mark.parametrize(
    ("fault", "seed", "anomaly"),
    [
        (_from_behind, 173, Anomaly.BASELESS),
        (_any_page, 2656, Anomaly.BASELESS),
        (_one_ends_all, 1060, Anomaly.BASELESS),
        (_for_good, 599, Anomaly.BASELESS),
        (_empty_is_the_end, 981, Anomaly.BASELESS),
        (_committed_is_known, 60701, Anomaly.BASELESS),
        (_old_stamps_forgotten, 7520, Anomaly.DUPLICATE),
    ],
)
def test_a_seed_shows_a_fault_of_reading(
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    anomaly: Anomaly,
) -> None:
    """The fault shows in a seed of the swarm, in which the engine does nothing wrong without it."""
    plan = draw_swarm(seed)
    with quiet():
        assert not perform(plan).violations
        fault(monkeypatch)
        found = {violation.anomaly for violation in perform(plan).violations}
    assert anomaly in found


# -- late copies ------------------------------------------------------------------------------


class Logs:
    """Logs, of which `LateCopies` sees how often they have each value."""

    def __init__(self, *values: ValueId) -> None:
        self.counts: dict[Any, int] = dict.fromkeys(values, 1)
        self.judge = LateCopies(lambda: dict(self.counts), matters=True)

    def append(self, value: ValueId) -> None:
        self.counts[value] = self.counts.get(value, 0) + 1


ONE, OTHER = ValueId("p", "t", 0, 1), ValueId("p", "t", 0, 2)


def test_a_duplicate_is_late_if_a_request_of_a_closed_connection_appended_it() -> None:
    logs = Logs(ONE)
    logs.judge.serving(lambda: {ONE}, late=True)
    logs.append(ONE)
    assert logs.judge.found() == {ONE}


def test_a_duplicate_is_not_late_if_the_producer_has_just_sent_it() -> None:
    """The late copy was the first one, or was recognised; the producer's own came after it."""
    logs = Logs(OTHER)
    logs.judge.serving(lambda: {ONE, OTHER}, late=True)
    logs.append(ONE)
    logs.judge.serving(lambda: {ONE, OTHER}, late=False)
    logs.append(ONE)
    logs.append(OTHER)
    assert logs.judge.found() == set()


@pytest.mark.parametrize("closed", [True, False])
def test_a_request_that_is_held_back_is_late_if_its_connection_was_closed(closed: bool) -> None:
    logs = Logs(ONE)
    held = logs.judge.holding(lambda: {ONE}, lambda: closed)
    logs.judge.serving(lambda: {OTHER}, late=False)
    logs.append(OTHER)
    logs.append(ONE)
    logs.judge.held_served(held)
    assert logs.judge.found() == ({ONE} if closed else set())


def test_the_producers_copy_is_not_taken_for_one_that_is_held_back() -> None:
    logs = Logs(ONE)
    held = logs.judge.holding(lambda: {ONE}, lambda: True)
    logs.judge.serving(lambda: {ONE}, late=False)
    logs.append(ONE)
    logs.judge.held_served(held)
    assert logs.judge.found() == set()


def test_a_held_copy_is_late_if_the_producers_came_before_something_else() -> None:
    """An answer, or an outcome, comes after the append of what was served on time."""
    logs = Logs(ONE)
    held = logs.judge.holding(lambda: {ONE}, lambda: True)
    logs.judge.serving(lambda: {ONE}, late=False)
    logs.judge.passed()
    logs.append(ONE)
    logs.judge.held_served(held)
    assert logs.judge.found() == {ONE}


def test_a_held_copy_is_late_if_it_is_appended_after_it_was_said_to_be_served() -> None:
    logs = Logs(ONE)
    held = logs.judge.holding(lambda: {ONE}, lambda: True)
    logs.judge.held_served(held)
    logs.append(ONE)
    assert logs.judge.found() == {ONE}


def test_a_held_copy_that_comes_after_the_producers_only_copy_is_late() -> None:
    """Nobody looks at the logs between the two."""
    logs = Logs()
    held = logs.judge.holding(lambda: {ONE}, lambda: True)
    logs.judge.serving(lambda: {ONE}, late=False)
    logs.append(ONE)
    logs.append(ONE)
    logs.judge.held_served(held)
    assert logs.judge.found() == {ONE}

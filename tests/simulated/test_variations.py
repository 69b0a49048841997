"""Tests of what few clusters and callers have, and of the judges that are there for it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.links import LinkState
from aioidem.testing import Outcome, Row, ValueId, make_value, parse_value

from .credentials import Credentials
from .missing import MissingPartitions
from .partitioner import Partitioner
from .perform import perform
from .sim_records import incompressible
from .size_questions import SizeQuestions
from .soak import run_odd
from .swarm import draw_odd, draw_varied
from .test_conduct import config
from .test_soak import nothing_is_wrong, seeds_are_right
from .variations import VARIATIONS
from .version_choice import VersionChoice

# -- schedules -------------------------------------------------------------------------------------


def test_every_variation_is_in_many_schedules() -> None:
    found = Counter(name for seed in range(200) for name in draw_odd(seed).features)
    rare = "one cluster only"  # only where host names lead to another one
    assert found[rare] > 5
    assert min(found[name] for name in VARIATIONS.keys() - {rare}) > 20
    without = [seed for seed in range(200) if VARIATIONS.keys().isdisjoint(draw_odd(seed).features)]
    assert len(without) < 20, without


@pytest.mark.parametrize("first", [0, 10])
def test_schedules_with_variations_show_nothing_wrong(first: int) -> None:
    seeds_are_right(range(first, first + 10), run_odd)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_further_schedules_with_variations_show_nothing_wrong() -> None:
    nothing_is_wrong(180, "--mix", "odd", first=20)


@pytest.mark.parametrize(
    ("seed", "idle", "shown"),
    [
        (9098, 0.35, "its time has come, whatever the sum of two times is rounded to"),
        (9112, 0.35, "the same, with records that would get no outcome"),
        (9066, 1.1, "its broker leads a partition with records to send later"),
        (9187, 2.3, "it is kept while its broker throttles"),
    ],
)
def test_an_idle_connection_is_closed_in_time(seed: int, idle: float, shown: str) -> None:
    schedule = draw_varied(seed)
    options = {**schedule.options, "connections_max_idle": idle}
    result = perform(dataclasses.replace(schedule, options=options))
    assert not result.violations, f"{shown}: " + "\n".join(map(str, result.violations))


def test_a_value_that_does_not_compress_is_known_by_its_bytes() -> None:
    value = ValueId("p", "t", 0, 3)
    data = incompressible(value, 300)
    assert len(data) == 300
    assert parse_value(data) == value
    assert data != make_value(value, 300)


# -- partitioners ----------------------------------------------------------------------------------


def outcome(status: Outcome, partition: int = -1) -> Row:
    row = Row(ValueId("p", "t", -1, 0), "t", partition, 0.0)
    row.outcome = status
    return row


def key_of(kind: int) -> bytes:
    """Return a key that the partitioner treats in one of its ways."""
    return next(key for n in range(1000) if crc32(key := b"%d" % n) % 12 == kind)


@pytest.mark.parametrize("kind", range(12))
def test_the_partitioner_of_a_schedule_chooses_what_its_judge_expects(kind: int) -> None:
    judge, key = Partitioner(4), key_of(kind)
    expected = judge.chosen(key)
    try:
        chosen = judge.choose(key, range(4), range(4))
    except ValueError:
        chosen = None
    named = chosen.__index__() if hasattr(chosen, "__index__") else -1
    assert (named if 0 <= named < 4 else None) == expected


def test_a_record_is_where_the_partitioner_says_or_nowhere() -> None:
    judge = Partitioner(4)
    good, bad = key_of(5), key_of(0)
    refused = errors.RecordError("the partitioner raised ValueError for topic 't'")
    place = judge.chosen(good)
    assert place is not None
    assert judge.complaint(good, outcome(Outcome.ACKED, place), None) is None
    assert judge.complaint(good, outcome(Outcome.ACKED, place + 1), None) is not None
    assert judge.complaint(good, outcome(Outcome.NOT_WRITTEN), refused) is not None
    assert judge.complaint(bad, outcome(Outcome.NOT_WRITTEN), refused) is None
    assert judge.complaint(bad, outcome(Outcome.ACKED, 0), None) is not None


# -- passwords -------------------------------------------------------------------------------------


def credentials() -> tuple[Credentials, Any, list[str]]:
    told: list[str] = []
    core: Any = SimpleNamespace(fatal_error=None, connections=SimpleNamespace(links={}))
    return Credentials(core, told.append), core, told


def refuse(judge: Credentials, *link_ids: int) -> None:
    for link_id in link_ids:
        judge.opens(link_id)
        judge.refused(link_id)


def test_the_fifth_refusal_in_a_row_ends_the_producer() -> None:
    judge, core, told = credentials()
    refuse(judge, 1, 2, 3, 4)
    judge.opened()
    refuse(judge, 5, 6, 7, 8)
    assert not told
    refuse(judge, 9)
    assert "goes on after 5" in told.pop()
    core.fatal_error = errors.SaslAuthenticationFailed("no")
    refuse(judge, 10)
    assert not told
    assert judge.given_up


def test_refusals_of_another_password_do_not_count() -> None:
    judge, core, told = credentials()
    refuse(judge, 1, 2, 3, 4)
    judge.opens(5)
    judge.renewed()
    judge.refused(5)
    refuse(judge, 6, 7, 8, 9)
    assert not told
    core.fatal_error = errors.SaslAuthenticationFailed("no")
    judge.refused(5)
    assert "gives up after 4" in told.pop()


def test_no_refusal_ends_the_producer_while_a_connection_is_up() -> None:
    judge, core, told = credentials()
    core.connections.links[7] = SimpleNamespace(state=LinkState.READY)
    refuse(judge, 1, 2, 3, 4, 5, 6)
    assert not told
    core.fatal_error = errors.SaslAuthenticationFailed("no")
    refuse(judge, 8)
    assert "gives up" in told.pop()


# -- versions --------------------------------------------------------------------------------------


def versions(mode: str) -> tuple[VersionChoice, list[str]]:
    told: list[str] = []
    return VersionChoice(config(window_discovery=mode), told.append), told


def link(discovery: Any) -> Any:
    return _Link(discovery)


class _Link:
    def __init__(self, discovery: Any) -> None:
        self.discovery = discovery
        self.closed = False


def request(version: int, token: int = 1) -> steps.SendProduce:
    topics = [steps.TopicData("t", UUID(int=1), [])]
    return steps.SendProduce(1, token, version, -1, 1000, None, topics)


def test_v14_is_used_at_once_if_the_user_says_that_brokers_have_it() -> None:
    judge, told = versions("on")
    there = link(object())
    judge.opened(there, 14)
    judge.sends(there, request(14), 0.0)
    assert not told
    judge.sends(there, request(13), 0.0)
    assert "v13 is used" in told.pop()
    judge.asks(there, 0.0)
    assert "asked" in told.pop()


def test_batches_wait_for_the_answer_that_says_whether_there_is_v14() -> None:
    judge, told = versions("auto")
    there = link(object())
    judge.opened(there, 14)
    judge.asks(there, 0.0)
    judge.sends(there, request(13), 0.1)
    judge.sends(there, request(14), 0.1)
    assert ["asked" in text for text in told] == [True, True]
    told.clear()
    judge.described(there, 0.2, named=True, failed=False)
    judge.sends(there, request(14), 0.2)
    assert not told


def test_after_a_refusal_v13_is_used_for_a_while_and_no_longer() -> None:
    judge, told = versions("on")
    there = link(object())
    judge.opened(there, 14)
    judge.sends(there, request(14), 0.0)
    judge.answered(there, 1, 0.0, refuses=True)
    judge.sends(there, request(13), 0.9)
    assert not told
    judge.sends(there, request(14, 2), 0.7)
    assert "v14 is used at 0.700" in told.pop()
    judge.sends(there, request(13), 1.3)
    assert "v13 is used at 1.300" in told.pop()
    judge.sends(there, request(14, 3), 1.3)
    assert not told


def test_two_connections_without_an_answer_are_enough() -> None:
    judge, told = versions("on")
    broker = object()
    for begin in (0.0, 1.0):
        there = link(broker)
        judge.opened(there, 14)
        judge.sends(there, request(14), begin)
        there.closed = True
        judge.look(begin)
    assert not told
    there = link(broker)
    judge.opened(there, 14)
    judge.sends(there, request(14), 1.5)
    assert "v14 is used at 1.500" in told.pop()


def test_a_broker_that_has_answered_in_v14_is_not_asked_again_after_two_such_connections() -> None:
    judge, told = versions("auto")
    broker = object()
    there = link(broker)
    judge.opened(there, 14)
    judge.asks(there, 0.0)
    judge.described(there, 0.0, named=True, failed=False)
    judge.sends(there, request(14), 0.0)
    judge.answered(there, 1, 0.0, refuses=False)
    there.closed = True
    judge.look(0.0)
    for begin in (1.0, 2.0):
        there = link(broker)
        judge.opened(there, 14)
        judge.asks(there, begin)
        there.closed = True
        judge.look(begin)
    assert not told
    there = link(broker)
    judge.opened(there, 14)
    judge.asks(there, 3.0)
    assert "was to be tried at once" in told.pop()


def test_a_question_that_failed_is_asked_again_after_a_wait() -> None:
    judge, told = versions("auto")
    there = link(object())
    judge.opened(there, 14)
    judge.asks(there, 0.0)
    judge.described(there, 0.0, named=False, failed=True)
    judge.sends(there, request(13), 0.5)
    assert not told
    judge.asks(there, 0.5)
    assert "asked whether it has v14 at 0.500" in told.pop()


def test_where_nobody_wants_a_window_v14_is_not_used_and_nobody_is_asked() -> None:
    judge, told = versions("off")
    there = link(object())
    judge.opened(there, 14)
    judge.sends(there, request(14), 0.0)
    assert "v14 is used" in told.pop()
    judge.asks(there, 0.0)
    assert "asked whether it has v14" in told.pop()


def test_a_broker_that_lacked_v14_meanwhile_may_get_it_at_once() -> None:
    judge, told = versions("on")
    broker = object()
    there = link(broker)
    judge.opened(there, 14)
    judge.sends(there, request(14), 0.0)
    judge.answered(there, 1, 0.0, refuses=True)
    judge.opened(link(broker), 13)
    again = link(broker)
    judge.opened(again, 14)
    judge.sends(again, request(14), 0.5)
    assert not told


def test_what_a_broker_has_refused_says_nothing_of_another_one() -> None:
    """As where a name leads to two clusters, whose brokers have the same numbers."""
    judge, told = versions("on")
    there, other = link(object()), link(object())
    for each in (there, other):
        judge.opened(each, 14)
    judge.sends(there, request(14), 0.0)
    judge.answered(there, 1, 0.0, refuses=True)
    judge.sends(other, request(14), 0.5)
    assert not told
    judge.sends(other, request(13), 0.5)
    assert "v13 is used at 0.500" in told.pop()


def test_a_refusal_that_comes_when_v14_is_due_again_may_be_one_of_it_or_not() -> None:
    """The engine may have begun to use it, and sent nothing in it yet: the broker throttled it."""
    judge, told = versions("on")
    there = link(object())
    judge.opened(there, 14)
    for token in (1, 2):
        judge.sends(there, request(14, token), 0.0)
    judge.answered(there, 1, 0.0, refuses=True)
    judge.answered(there, 2, 8.0, refuses=True)
    judge.sends(there, request(13), 8.5)
    judge.sends(there, request(14), 8.6)
    assert not told


@pytest.mark.parametrize("seed", [pytest.param(102513, id="denied after another cluster")])
def test_odd_schedules_that_were_wrong_are_right(seed: int) -> None:
    """What no broker has appended waits for its topic again in another cluster, and is denied."""
    seeds_are_right(range(seed, seed + 1), run_odd)


# -- topics that are denied ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "code", "ended", "wrong"),
    [
        (False, ErrorCode.topic_authorization_failed, 5.0, 0),
        (False, ErrorCode.topic_authorization_failed, 5.1, 1),
        (False, ErrorCode.leader_not_available, 9.0, 0),
        (True, ErrorCode.topic_authorization_failed, 9.0, 0),
    ],
)
def test_records_that_wait_for_partitions_end_when_their_topic_is_denied(
    known: bool, code: ErrorCode, ended: float, wrong: int
) -> None:
    rows = {row.value: row for row in [outcome(Outcome.PENDING)]}
    judge = MissingPartitions(rows)
    (row,) = rows.values()
    if known:
        judge.asked(1)
        judge.told(1, "t", frozenset({0}), 1.0)
    judge.queued(row.value)
    judge.described("t", code, 5.0)
    assert judge.denied("t", code)
    row.outcome, row.settled = Outcome.NOT_WRITTEN, ended
    assert len(judge.violations()) == wrong


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "wrong"), [([300, 700], 0), ([300, 701], 1), ([2000], 0), ([], 0)]
)
def test_the_batches_of_a_request_fit_into_it_together(sizes: list[int], wrong: int) -> None:
    told: list[str] = []
    SizeQuestions(config(max_request_size=1000), told.append).request(sizes)
    assert len(told) == wrong

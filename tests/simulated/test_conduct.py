"""Tests of the judges of conduct, batches, words, contents and lines: each notices its faults."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.incidents import Event
from aioidem._engine.record import Outcome
from aioidem._engine.settlement import Settlement
from aioidem._log import LogLine, Phase
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._records import build_batch, record_size_bound
from aioidem.structs import DeliveryStatus
from aioidem.testing import ValueId, make_value

from .conduct import Conduct
from .contents import Contents
from .filling import Filling
from .lines import Lines
from .wording import Wording, misworded

ODD = errors.ProtocolError("an answer to another request")
VALUES = [make_value(ValueId("p", "t", 0, number), 40) for number in range(4)]
SIZE = record_size_bound(None, VALUES[0], ())


def config(**options: Any) -> ProducerConfig:
    return ProducerConfig.build([("b0", 9092)], **options)


def produce(*values: bytes, version: int = 13, partition: int = 0) -> steps.SendProduce:
    records = [
        SimpleNamespace(key=None, headers=(), timestamp_ms=0, value=value) for value in values
    ]
    data = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0).data
    topics = [steps.TopicData("t", None, [(partition, data)])]
    return steps.SendProduce(1, 1, version, -1, 1000, None, topics)


# -- conduct ---------------------------------------------------------------------------------------


def conduct(in_doubt: bool = False) -> tuple[Conduct, list[str]]:
    told: list[str] = []
    return Conduct(lambda _: in_doubt, told.append), told


@pytest.mark.parametrize(
    "step", [steps.AskProducers(1, 1, "t", 0), steps.ReadBack(1, 1, "t", None, 0, 0)]
)
def test_a_leader_is_asked_only_about_a_doubt(step: steps.Step) -> None:
    judge, told = conduct(in_doubt=True)
    judge.acts(step)
    assert not told
    judge, told = conduct()
    judge.acts(step)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("named", "odd", "fits"),
    [
        ([0], None, True),
        ([], None, True),
        ([0], ODD, False),
        ([0, 0], None, False),
        ([1], None, False),
        ([0, 1], ODD, True),
    ],
)
def test_an_answer_names_each_partition_of_its_request_once(
    named: list[int], odd: errors.ProtocolError | None, fits: bool
) -> None:
    judge, told = conduct()
    parts = tuple(PartitionAnswer("t", None, partition, 0, 0) for partition in named)
    judge.produced(produce(VALUES[0]), ProduceAnswer(parts, 0), odd)
    assert (not told) is fits


# -- batches ---------------------------------------------------------------------------------------


def filling(batch_size: int) -> tuple[Filling, list[str]]:
    told: list[str] = []
    judge = Filling(config(batch_size=batch_size), told.append)
    judge.queued([ValueId("p", "t", 0, number) for number in range(4)], [SIZE] * 4)
    return judge, told


def test_a_batch_that_leaves_room_for_the_next_record_is_noticed() -> None:
    judge, told = filling(61 + 3 * SIZE)
    judge.sent(produce(*VALUES[:3]))
    judge.sent(produce(VALUES[3]))
    assert not told
    judge, told = filling(61 + 3 * SIZE)
    judge.sent(produce(*VALUES[:2]))
    assert len(told) == 1
    judge.sent(produce(*VALUES[:2]))
    assert len(told) == 1, "it is sent again as it was"


def test_a_full_batch_is_one_that_the_next_record_does_not_fit_into() -> None:
    judge, told = filling(60 + 3 * SIZE)
    judge.sent(produce(*VALUES[:2]))
    assert not told


def test_topics_with_a_smaller_limit_are_left_alone() -> None:
    judge, told = filling(61 + 3 * SIZE)
    judge.limited = True
    judge.sent(produce(VALUES[0]))
    assert not told


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("the window is 1 batches", "1 batches"),
        ("2 batch of t-0 in doubt", "2 batch"),
        ("t-0 and 1 more partitions", "1 more partitions"),
        ("t-0 and 2 more partition", "2 more partition"),
        ("0 broker left", "0 broker"),
        ("refused: None", "None"),
        ("no leader, for -0.1 s", "-0.1 s"),
        ("an answer.. Check it", ".."),
        ("an answer : .", ": ."),
    ],
)
def test_what_no_careful_writer_leaves(text: str, wrong: str) -> None:
    assert misworded(text) == wrong


@pytest.mark.parametrize(
    "text",
    [
        "1 batch of t-1 in doubt for 2.0 s; 20 batches before",
        "broker 2 (b2:9092) refused record 1 of its batch of 3 in attempt 2 (record 0: no key)",
        "topic 't' has 1 partition (0); there is no partition 4",
        "names 2 partition(s) more. producer.resolve(error) looks in the log",
        "a text that is cut ...",
    ],
)
def test_what_is_well_said(text: str) -> None:
    assert misworded(text) is None


def wording(tell: Callable[[Wording], None]) -> list[str]:
    told: list[str] = []
    judge = Wording(config(delivery_timeout=10.0, request_timeout=2.0, linger=0.0), told.append)
    tell(judge)
    judge.judge()
    return told


HELD = "window 5: broker 1 gets Produce v13 in place of v14 for a while: why. v14 is tried again "


@pytest.mark.parametrize(
    ("wait", "longest", "sent_after", "wrong"),
    [
        ("1.2", 300, 1.2, 0),
        ("1.2", 300, 1.1, 1),
        ("1.2", 15, 1.2, 1),
        ("1.4", 300, 2.0, 1),
    ],
)
def test_the_waits_that_are_told_are_kept(
    wait: str, longest: int, sent_after: float, wrong: int
) -> None:
    def tell(judge: Wording) -> None:
        told = f"{HELD}in {wait} s, then after waits that double up to about {longest} s"
        judge.told(Event(LogLine.WINDOW_WITHHELD, told), 100.0)
        judge.sent("broker 1", 13, 100.0)
        judge.sent("broker 2", 14, 100.0)
        judge.sent("broker 1", 14, 100.0 + sent_after)

    assert len(wording(tell)) == wrong


def test_that_v14_is_not_used_is_told_before_a_second_request_in_v13() -> None:
    def tell(judge: Wording) -> None:
        judge.refused_v14("broker 1")
        judge.sent("broker 1", 13, 100.0)
        judge.sent("broker 1", 13, 100.0)
        judge.sent("broker 2", 13, 101.0)

    assert not wording(tell)

    def told(judge: Wording) -> None:
        tell(judge)
        text = f"{HELD}in 1.0 s, then after waits that double up to about 300 s"
        judge.told(Event(LogLine.WINDOW_WITHHELD, text), 100.0)
        judge.sent("broker 1", 13, 101.0)
        judge.refused_v14("broker 1")
        judge.sent("broker 1", 13, 102.0)
        judge.sent("broker 1", 13, 103.0)

    assert not wording(told)

    def untold(judge: Wording) -> None:
        tell(judge)
        judge.sent("broker 1", 13, 101.0)
        judge.sent("broker 1", 13, 102.0)

    assert len(wording(untold)) == 1


@pytest.mark.parametrize(
    ("line", "phase", "text", "wrong"),
    [
        (LogLine.EPOCH_BUMPED, Phase.ONCE, "t-0: producer epoch bumped, because", 0),
        (LogLine.DATA_LOSS, Phase.ONCE, "t-0: producer epoch bumped, because", 1),
        (LogLine.DATA_LOSS, Phase.ONCE, "t-0: something else", 1),
        (LogLine.OTHER_CLUSTER, Phase.ONCE, "something else", 0),
        (LogLine.IN_DOUBT, Phase.ENDS, "no batch is in doubt any more, after 1.0 s", 0),
        (LogLine.THROTTLED, Phase.ENDS, "no batch is in doubt any more, after 1.0 s", 1),
    ],
)
def test_a_line_has_the_name_of_what_it_says(
    line: LogLine, phase: Phase, text: str, wrong: int
) -> None:
    event = Event(line, text, phase)
    assert len(wording(lambda judge: judge.told(event, 1.0))) == wrong


def settlement(
    text: str, count: int = 2, attempts: int = 1, status: DeliveryStatus = DeliveryStatus.UNKNOWN
) -> Settlement:
    error = errors.DeliveryTimeoutError(text)
    outcome = Outcome("t", 0, status, error=error, attempts=attempts)
    records: Any = [object()] * count
    return Settlement(outcome, records)


OVERDUE = (
    "t-0: {count} records {verdict} in delivery_timeout ({timeout} s): no acknowledgement of the "
    "leader, broker 1 (b1:9092); {sent}. Check the log of it. The records may be written. Look"
)


LEADERLESS = (
    "t-0: 2 records not acknowledged, perhaps written, in delivery_timeout (10 s): no leader{}; "
    "sent once. Check why no replica of the partition can lead it. The records may be written"
)


def overdue(
    count: int = 2,
    verdict: str = "not acknowledged, perhaps written,",
    timeout: str = "10",
    sent: str = "sent once",
) -> str:
    return OVERDUE.format(count=count, verdict=verdict, timeout=timeout, sent=sent)


def test_a_failure_since_the_last_success_is_told() -> None:
    text = overdue(sent="sent 2 times, without an answer; last of 2 failures: an attempt failed")
    for told, wrong in ((text, 0), (overdue(sent="sent 2 times"), 1)):
        made = settlement(told, attempts=2)

        def tell(judge: Wording, made: Settlement = made) -> None:
            judge.settled(made, 2, 50.0, failed=True)

        assert len(wording(tell)) == wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (overdue(), 0),
        (overdue(count=3), 1),
        (overdue(verdict="not written"), 1),
        (overdue(timeout="5"), 1),
        (overdue(sent="sent 2 times"), 1),
        (overdue(sent="never sent"), 1),
        (overdue().replace("Check the log of it", "Send less"), 1),
        (overdue(sent="sent once; last failure: [Error 6] NotLeader"), 1),
        (overdue().replace(" may be ", " are not "), 1),
        (LEADERLESS.format(""), 0),
        ("t-0: too late. The records may be written", 1),
    ],
)
def test_the_error_of_overdue_records_says_what_happened(text: str, wrong: int) -> None:
    assert len(wording(lambda judge: judge.settled(settlement(text), 1, 50.0))) == wrong


CREDENTIALS = "Check this client's credentials"


@pytest.mark.parametrize(
    ("obstacle", "advice", "wrong"),
    [
        ("no connection to the leader, ", CREDENTIALS, 0),
        ("no connection to the leader, ", "Check whether it runs", 1),
        ("no acknowledgement of the leader, ", CREDENTIALS, 0),
        ("no acknowledgement of the leader, ", "Check the log of it", 0),
        ("no acknowledgement of the leader, ", "Send less", 1),
    ],
)
def test_advice_after_a_refused_password(obstacle: str, advice: str, wrong: int) -> None:
    text = overdue().replace("no acknowledgement of the leader, ", obstacle)
    made = settlement(text.replace("Check the log of it", advice))
    assert made.outcome.error is not None
    made.outcome.error.__cause__ = errors.SaslAuthenticationFailed("no")
    assert len(wording(lambda judge: judge.settled(made, 1, 50.0))) == wrong


@pytest.mark.parametrize(("sinces", "wrong"), [([""] * 4, 1), (["", "", "", " for 3.0 s"], 0)])
def test_errors_say_since_when_there_is_no_leader(sinces: list[str], wrong: int) -> None:
    def tell(judge: Wording) -> None:
        for at, since in enumerate(sinces):
            judge.settled(settlement(LEADERLESS.format(since)), 1, 50.0 + at)

    assert len(wording(tell)) == wrong


def test_an_outcome_tells_how_often_its_batch_was_sent() -> None:
    def tell(judge: Wording) -> None:
        judge.settled(settlement(overdue(), attempts=2), None, 50.0)
        judge.settled(settlement(overdue(), attempts=2), 1, 51.0)

    assert len(wording(tell)) == 1


def refused(count: int, told: tuple[int, int], status: DeliveryStatus) -> Settlement:
    """Return the outcome of a batch of so many records, sent once, with a refusal as its error."""
    text = f"t-0: broker 1 (b1:9092) refused a batch of {told[0]} records in attempt {told[1]}"
    if status is DeliveryStatus.UNKNOWN:
        text += ". The records may be written"
    error = errors.broker_error(ErrorCode.invalid_record, text)
    records: Any = [object()] * count
    return Settlement(Outcome("t", 0, status, error=error, attempts=1), records)


@pytest.mark.parametrize(("count", "attempt", "wrong"), [(2, 1, 0), (3, 1, 1), (2, 2, 1)])
def test_a_refusal_names_its_batch_and_its_attempt(count: int, attempt: int, wrong: int) -> None:
    made = refused(2, (count, attempt), DeliveryStatus.NOT_WRITTEN)
    assert len(wording(lambda judge: judge.settled(made, 1, 50.0))) == wrong


@pytest.mark.parametrize(("at", "wrong"), [(50.0, 0), (49.0, 1)])
def test_what_ends_unknown_may_name_another_batch_that_ended_with_it(at: float, wrong: int) -> None:
    def tell(judge: Wording) -> None:
        judge.settled(refused(3, (4, 1), DeliveryStatus.UNKNOWN), 1, 50.0)
        judge.settled(refused(4, (4, 1), DeliveryStatus.UNKNOWN), 1, at)

    assert len(wording(tell)) == wrong


def test_the_first_wait_that_is_told_is_a_long_one_after_a_version_without_v14() -> None:
    text = f"{HELD}in 2.4 s, then after waits that double up to about 300 s"

    def tell(judge: Wording) -> None:
        judge.told(Event(LogLine.WINDOW_WITHHELD, text), 100.0)

    def tell_later(judge: Wording) -> None:
        judge.without_v14("broker 1")
        tell(judge)

    assert len(wording(tell)) == 1
    assert not wording(tell_later)


@pytest.mark.parametrize(
    ("code", "wrong"), [(ErrorCode.invalid_record, 0), (ErrorCode.not_leader_or_follower, 1)]
)
def test_records_are_not_given_up_for_a_code_that_may_pass(code: ErrorCode, wrong: int) -> None:
    text = "t-0: broker 1 (b1:9092) refused a batch of 2 records in attempt 1"
    error = errors.broker_error(code, text)
    outcome = Outcome("t", 0, DeliveryStatus.NOT_WRITTEN, error=error, attempts=1)
    records: Any = [object()] * 2
    assert len(wording(lambda judge: judge.settled(Settlement(outcome, records), 1, 5.0))) == wrong


def test_batches_of_the_callers_are_whole_and_by_themselves() -> None:
    ids = [ValueId("p", "t", 0, number) for number in range(4)]
    told: list[str] = []
    judge = Filling(config(batch_size=1000), told.append)
    judge.grouped(ids[:2], 61 + 2 * SIZE)
    judge.sent(produce(*VALUES[:2]))
    judge.sent(produce(*VALUES[2:]))
    assert not told
    judge.grouped(ids[2:], 1001)
    judge.sent(produce(VALUES[2]))
    assert not told, "it does not fit into one batch"
    for sent in (VALUES[1:3], VALUES[:1]):
        judge = Filling(config(batch_size=1000), told.append)
        judge.grouped(ids[:2], 61 + 2 * SIZE)
        told.clear()
        judge.sent(produce(*sent))
        assert len(told) == 1


# -- contents --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "headers", "timestamp_ms"),
    [(b"k", (), 0), (None, (("h", None),), 0), (None, (("h", b""),), 0), (None, (), 1)],
)
def test_another_key_header_or_time_is_noticed(
    key: bytes | None, headers: tuple[tuple[str, bytes | None], ...], timestamp_ms: int
) -> None:
    told: list[str] = []
    judge = Contents(told.append)
    judge.expect(ValueId("p", "t", 0, 0), None, (), 0)
    judge.sent(produce(VALUES[0], VALUES[1]))
    assert not told
    judge.expect(ValueId("p", "t", 0, 0), key, headers, timestamp_ms)
    judge.sent(produce(VALUES[0], VALUES[1]))
    assert len(told) == 1


# -- lines -----------------------------------------------------------------------------------------


class Log:
    """A judge of lines, and what it complains of."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lines = Lines(lambda: (0, 0, 0), self.told.append)

    def line(
        self,
        line: LogLine,
        phase: Phase = Phase.ONCE,
        at: float = 0.0,
        level: int | None = None,
        written: bool = True,
        **fields: object,
    ) -> None:
        event = Event(line, "a line", phase, level, fields)
        self.lines.logged(event)
        if written:
            self.lines.written(event, at)
        self.lines.took()


BUMPED = LogLine.EPOCH_BUMPED
NOTHING: dict[str, Any] = {"acked": 0, "not_written": 0, "unknown": 0}


def test_events_that_are_not_written_are_counted() -> None:
    log = Log()
    for number in range(BUMPED.burst + 2):
        log.line(BUMPED, written=number < BUMPED.burst)
    log.line(BUMPED, Phase.CONTINUES, 10.0, logging.INFO, count=2, seconds=10.0)
    log.lines.judge()
    assert not log.told
    log.line(BUMPED, written=False)
    log.line(BUMPED, Phase.CONTINUES, 30.0, logging.INFO, count=2, seconds=20.0)
    assert len(log.told) == 1


def test_more_lines_than_a_burst_are_noticed_and_fewer() -> None:
    log = Log()
    for _ in range(BUMPED.burst + 1):
        log.line(BUMPED, at=9.9)
    assert len(log.told) == 1
    log.line(BUMPED, at=19.9)
    assert len(log.told) == 1, "ten seconds later they are written again"
    few = Log()
    few.line(BUMPED, written=False)
    few.lines.judge()
    assert len(few.told) == 1


def test_a_line_that_counts_events_has_their_level_and_the_seconds_since_the_last() -> None:
    log = Log()
    for number in range(BUMPED.burst + 2):
        log.line(BUMPED, written=number < BUMPED.burst)
    log.line(BUMPED, Phase.CONTINUES, 10.0, logging.DEBUG, count=2, seconds=10.0)
    assert len(log.told) == 1
    log.line(BUMPED, written=False, at=25.0)
    log.line(BUMPED, Phase.CONTINUES, 30.0, logging.INFO, count=1, seconds=20.0)
    assert len(log.told) == 1
    log.line(BUMPED, written=False, at=45.0)
    log.line(BUMPED, Phase.CONTINUES, 50.0, logging.INFO, count=1, seconds=40.0)
    assert len(log.told) == 2


def test_an_epoch_is_bumped_at_info_only_if_an_incident_explains_it() -> None:
    log = Log()
    log.line(LogLine.NO_BROKER, Phase.BEGINS)
    log.line(BUMPED, level=logging.INFO)
    log.line(LogLine.NO_BROKER, Phase.ENDS, **NOTHING)
    log.line(BUMPED, at=10.0)
    assert not log.told
    log.line(BUMPED, at=20.0, level=logging.INFO)
    assert len(log.told) == 1


def test_lines_that_an_incident_goes_on_have_growing_intervals() -> None:
    log = Log()
    log.line(LogLine.NO_BROKER, Phase.BEGINS, 0.0, logging.INFO)
    log.line(LogLine.NO_BROKER, Phase.CONTINUES, 10.0, logging.INFO, **NOTHING)
    log.line(LogLine.NO_BROKER, Phase.CONTINUES, 29.0, logging.WARNING, **NOTHING)
    assert not log.told, "a warning comes when what explained the incident is over"
    log.line(LogLine.NO_BROKER, Phase.CONTINUES, 68.0, logging.INFO, **NOTHING)
    assert len(log.told) == 1
    log.line(LogLine.NO_BROKER, Phase.CONTINUES, 228.0, logging.WARNING, **NOTHING)
    assert len(log.told) == 2, "there was a warning already"

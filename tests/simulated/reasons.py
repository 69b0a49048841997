"""The judge of failures: whether the wire and the brokers explain why a record has failed.

A record may end UNKNOWN only if an attempt at it may have been appended. Besides, something must
have kept the producer from finding out whether it was: `Reasons.judge` names it. A record ends
NOT_WRITTEN before its deadline only if a broker refused it for good, if its partition does not
exist, or if the producer has ended.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.record import Outcome
from aioidem.errors import BrokerResponseError, KafkaTimeoutError, RecordError
from aioidem.structs import DeliveryStatus
from aioidem.testing import Row, ValueId

from .attempts import Attempts, Story

__all__ = ["Reasons", "lost_place"]

_SLACK = 0.001
_DATA_LOSS = re.compile(r"(\w+)-(\d+): data loss: ")
# What brokers answer to Produce. Any other code, known or not, tells a client nothing about the
# batch that it refuses.
_CODES = frozenset(
    {-1, 0, 2, 3, 5, 6, 7, 10, 14, 15, 16, 17, 18, 19, 20, 21, 29, 31, 32, 35, 42, 43, 44, 45, 46}
    | {47, 48, 49, 51, 53, 56, 59, 74, 75, 76, 87, 89, 90, 100, 103, 120, 129}
)
_ABOUT_PRODUCER_IDS = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.duplicate_sequence_number,
        ErrorCode.invalid_producer_epoch,
    }
)
_PASSES = frozenset({ErrorCode.request_timed_out, ErrorCode.not_enough_replicas})
_FORGOTTEN = frozenset({ErrorCode.unknown_producer_id, ErrorCode.invalid_producer_id_mapping})


class Reasons:
    """Names the reason for which a record ends UNKNOWN.

    Args:
        config: The producer's options.
        attempts: What the wire shows of each record.
        now: Returns the time, in seconds.
        wall_ms: Returns the time of day by the producer's clock, as if it were never set back, in
            milliseconds since the Unix epoch.
        expiration: After how many seconds brokers forget a producer, by its records' timestamps.
        append_ms: Returns the time with which brokers stamp records, in milliseconds since the Unix
            epoch; None if records keep the producer's timestamps.
    """

    def __init__(
        self,
        config: ProducerConfig,
        attempts: Attempts,
        now: Callable[[], float],
        wall_ms: Callable[[], float],
        expiration: float,
        append_ms: Callable[[], float] | None = None,
    ) -> None:
        self._config = config
        self._attempts = attempts
        self._now = now
        self._wall_ms = wall_ms
        self._expiration_ms = expiration * 1000
        self._append_ms = append_ms
        self.found: Counter[str] = Counter()
        """How many batches ended UNKNOWN, by reason."""
        self.closing = False
        """Whether the producer is being closed, so that what has no outcome gets one now."""
        self.recreated: dict[str, float] = {}
        """When an answer last showed that a topic was recreated, in seconds."""
        self.moved_at: float | None = None
        """When the producer last moved to another cluster, in seconds."""
        self.losses: dict[tuple[str, int], float] = {}
        """When the producer last reported a loss of a topic and partition, in seconds."""
        self.forgotten: Callable[[], bool] = lambda: False
        """Whether a leader has forgotten the producer together with deleted batches."""
        self.unread: Callable[[Row, Story, int], str | None] | None = None
        """Returns what is wrong if a record ends UNKNOWN because brokers may have forgotten the
        producer, though its leader's log could have shown it (`Readings`).
        """
        self.steady: Callable[[tuple[str, int]], bool] = lambda _: False
        """Whether a partition has had one leader only, and the producer's clock was never set."""
        self.refused_by_partitioner: Callable[[ValueId], bool] = lambda _: False
        """Whether the user's partitioner fails for a record."""
        self.denied: Callable[[str, int], bool] = lambda _topic, _code: False
        """Whether the last Metadata answer about a topic had this error code (`missing`)."""
        self.blocked_until: dict[ValueId, float] = {}
        """Until when a record may wait for metadata, in seconds, if its call has waited before."""
        self.moves = 0
        """How often the producer has moved to another cluster."""

    def logged(self, event: str) -> None:
        """Note an event that the producer reports to its operator."""
        place = lost_place(event)
        if place is not None:
            self.losses[place] = self._now()

    def judge_end(self, rows: Sequence[Row], outcome: Outcome) -> str | None:
        """Return a complaint if nothing explains the outcome that the records of a batch get."""
        match outcome.status:
            case DeliveryStatus.UNKNOWN:
                return self.judge(rows)
            case DeliveryStatus.NOT_WRITTEN:
                return self.judge_refusal(rows, outcome.error)
            case _:
                return None

    def judge(self, rows: Sequence[Row]) -> str | None:
        """Note why the records of a batch end UNKNOWN now; return a complaint if nothing does."""
        why, explained = self._why(rows)
        if not explained:
            return f"{rows[0].value}: {why}"
        self.found[why] += 1
        return None

    def judge_refusal(self, rows: Sequence[Row], error: Exception | None) -> str | None:
        """Return a complaint if nothing explains that the records of a batch end NOT_WRITTEN now.

        Args:
            rows: The records.
            error: The error that their callers get.
        """
        deadline = min(row.started for row in rows) + self._config.delivery_timeout
        over = self.closing or self._attempts.ended_at is not None
        if over or self._now() >= deadline - _SLACK:
            return None
        code = error.errno if isinstance(error, BrokerResponseError) else None
        if code == ErrorCode.unknown_topic_or_partition:
            return None  # `missing` judges that
        row = rows[0]
        if isinstance(error, RecordError) and self.refused_by_partitioner(row.value):
            return None
        story = self._attempts.of(row.value)
        unwritten = story is None or not story.may_be_written
        if unwritten and code is not None and not _retriable(code) and self.denied(row.topic, code):
            return None
        if story is None:
            until = self.blocked_until.get(row.value, row.started + self._config.max_block)
            waited = isinstance(error, KafkaTimeoutError) and self._now() >= until - _SLACK
            return None if waited else f"{row.value} was never sent, and has time left"
        if code == ErrorCode.out_of_order_sequence_number and self._attempts.overtook(story):
            return None
        answers = 0 if code is None else story.codes[code]
        if code == ErrorCode.unsupported_version:
            answers -= story.refused_v14  # it is sent again in v13
        if code is not None and answers > 0 and not _retriable(code):
            return None
        return f"{row.value} was answered with {dict(story.codes)} alone"

    def _why(self, rows: Sequence[Row]) -> tuple[str, bool]:
        now, row = self._now(), rows[0]
        if self._config.acks == 0:
            return "acks=0", True
        story = self._attempts.of(row.value)
        if story is None:
            return "it was never written to a socket", False
        if not story.may_be_written:
            return f"every attempt was refused before the append: {dict(story.codes)}", False
        if story.acked_at is not None and story.acked_at < now and not story.doubted_at:
            return "it was acknowledged", False
        if self.closing:
            return "the producer is closed", True
        if self._attempts.ended_at is not None:
            return "an answer has ended the producer", True
        deadline = min(row.started for row in rows) + self._config.delivery_timeout
        if now >= deadline - _SLACK:
            return "its deadline came while it was in doubt or unanswered", True
        if self.recreated.get(row.topic) == now:
            return "its topic was recreated", True
        if self.moved_at == now:
            return "the brokers' names lead to another cluster", True
        if self._attempts.fenced_at is not None and self._attempts.fenced_at >= story.sent_at:
            return "another client writes under its producer id", True
        if story.doubted_at is None:
            return "it is in flight, and not in doubt", False
        return self._refused(rows, story)

    def _refused(self, rows: Sequence[Row], story: Story) -> tuple[str, bool]:
        row = rows[0]
        if any(map(_unknown, story.codes)):
            return "it was refused with a code that no broker answers to Produce", True
        if story.contradicted:
            return "an answer said that it is stored, and that it is not", True
        if self.forgotten():
            return "the leader has forgotten the producer together with deleted batches", True
        codes = story.doubted_codes
        if not _FORGOTTEN.isdisjoint(codes):
            return "the leader had forgotten the producer", True
        if story.place in self.losses and codes[ErrorCode.out_of_order_sequence_number]:
            return "the leader has lost the producer's state with acknowledged records", True
        if not self._config.enable_idempotence and not _ABOUT_PRODUCER_IDS.isdisjoint(codes):
            return "it was refused as if it had a producer id", True
        if codes[ErrorCode.out_of_order_sequence_number] >= 2:
            return "two passes of probes were refused", True
        if codes[ErrorCode.out_of_order_sequence_number] and self._questioned(story):
            return "a success behind a code that no broker answers to Produce proved nothing", True
        if not all(map(_retriable, codes.keys() - {ErrorCode.out_of_order_sequence_number})):
            return "it was refused for good while it was in doubt", True
        stamps: list[float] = [self._attempts.oldest_stamp_ms(story.place)]
        if self._append_ms is not None:
            acked = self._attempts.last_acked(story.place)
            if acked is not None:  # it was stamped when it was appended, after it was sent
                stamps.append(self._append_ms() - (self._now() - acked.sent_at) * 1000)
        age_ms = self._wall_ms() - min(stamps)
        if age_ms >= self._expiration_ms / 2 and codes[ErrorCode.out_of_order_sequence_number]:
            # It forgot the producer, took a later batch, and so will not append this one again. Its
            # log could still show the batch: the engine does not look there.
            return "a leader that had forgotten the producer refused its resend", True
        if age_ms >= self._expiration_ms / 2:
            if self._is_young_and_alone(rows, story):
                return "the only batch without an outcome, young enough to be resent", False
            return self._forgotten(row, story)
        return f"in doubt, then {dict(codes)}, before {dict(story.codes)}", False

    def _forgotten(self, row: Row, story: Story) -> tuple[str, bool]:
        """Explain UNKNOWN by brokers that may have forgotten the producer, if no log shows it.

        Without an offset that was acknowledged before its first attempt, nothing says where in the
        log the record would be. Offsets from before a loss say nothing about the log of today.
        """
        why = "the brokers may have forgotten the producer"
        since = max(self.recreated.get(story.place[0], -math.inf), self.moved_at or -math.inf)
        lost_at = self.losses.get(story.place, -math.inf)
        after = self._attempts.known_offset(story, since, lost_at)
        if self.unread is None or after is None:
            return why, True
        complaint = self.unread(row, story, after)
        return (why, True) if complaint is None else (f"{why}, but {complaint}", False)

    def _is_young_and_alone(self, rows: Sequence[Row], story: Story) -> bool:
        """Whether brokers know a batch in doubt, if it is stored, though they may have forgotten.

        That is so if everything before it was acknowledged before it was first sent, nothing was
        sent after it, and its leader counts the expiration from its records. It is only said of a
        partition in which nothing else has happened.
        """
        odd = self.found or self._attempts.refusals.get(story.place, {}).keys() - _PASSES
        if odd or self.moved_at is not None or self.recreated or not self.steady(story.place):
            return False
        if not self._attempts.is_alone(rows[0].value):
            return False
        stamps = [each.stamp_ms for row in rows if (each := self._attempts.of(row.value))]
        now_ms = self._wall_ms()
        sent_ms = now_ms - (self._now() - story.sent_at) * 1000
        return now_ms <= min(max(stamps), sent_ms) + 0.4 * self._expiration_ms

    def _questioned(self, story: Story) -> bool:
        """Whether a code came, since it was sent, that may mean that the leader lost its state.

        It may have answered another batch. The success of a later batch then proves nothing about
        this one, which is resent by itself, once.
        """
        refusals = self._attempts.refusals.get(story.place, {})
        return any(_unknown(c) and at >= story.sent_at for c, at in refusals.items())


def lost_place(event: str) -> tuple[str, int] | None:
    """Return the topic and partition of a data-loss event; None if it is another event."""
    lost = _DATA_LOSS.match(event)
    return None if lost is None else (lost[1], int(lost[2]))


def _unknown(code: int) -> bool:
    return code not in _CODES


def _retriable(code: int) -> bool:
    return ErrorCode(code).retriable

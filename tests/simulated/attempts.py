"""What the wire shows of each record: whether it was sent, is awaited, is in doubt, or was refused.

A record is in doubt from the moment when an attempt at its batch ended without an answer, or with
one that brokers also send after the append. The account is kept by value and not by sequence
numbers, so it does not end when a batch gets another identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kio.schema.errors import ErrorCode

from aioidem.testing import ValueId, WireAnswer, WireBatch

from .decoding import records_in

__all__ = ["Attempts", "Story"]

_AT_ONCE = 100
_PER_PAUSE = 8
"""How often a record may be sent at all, and besides for each back-off in the time since."""
_FENCED = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping})
_ENDS_THE_PRODUCER = frozenset(
    {
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.producer_fenced,
    }
)


@dataclass(slots=True)
class Story:
    """What the wire shows of one record.

    Attributes:
        place: The topic and the partition.
        stamp_ms: The record's timestamp, in milliseconds since the Unix epoch.
        sent_at: When the record was first written to a socket, in seconds.
        attempts: How often that happened.
        outstanding: How many attempts are neither answered nor lost.
        doubted_at: When the record became in doubt, in seconds; None if it never was.
        acked_at: When an attempt was first answered NONE, in seconds; None if none was.
        offset: The base offset of its batch in that answer; -1 if it names none.
        codes: How often each error code answered an attempt.
        doubted_codes: The same, from the moment when the record was in doubt.
        contradicted: Whether an answer named an offset, and a code that shows that the batch has
            none. No broker says so; only the fault "after" does.
        refused_v14: How often an attempt in Produce v14 was answered UNSUPPORTED_VERSION.
    """

    place: tuple[str, int]
    stamp_ms: int
    sent_at: float
    attempts: int = 0
    outstanding: int = 0
    doubted_at: float | None = None
    acked_at: float | None = None
    offset: int = -1
    codes: Counter[int] = field(default_factory=Counter)
    doubted_codes: Counter[int] = field(default_factory=Counter)
    contradicted: bool = False
    refused_v14: int = 0

    @property
    def may_be_written(self) -> bool:
        """Whether some attempt may have been appended."""
        return bool(self.outstanding) or self.acked_at is not None or self.doubted_at is not None


class Attempts:
    """Keeps the `Story` of each record that a producer has written to a socket.

    Args:
        now: Returns the time, in seconds.
        before_append: The error codes that show, in an answer without a base offset, that the
            broker did not append the batch.
        pause: The shortest back-off, in seconds.
        storm: Is told in words of a record that is sent too often: without a back-off.
    """

    def __init__(
        self,
        now: Callable[[], float],
        before_append: Collection[int],
        *,
        pause: float = 0.1,
        storm: Callable[[str], None] | None = None,
    ) -> None:
        self._now = now
        self._before_append = before_append
        self._pause = pause
        self._storm = storm
        self.fenced_at: float | None = None
        """When an answer to any attempt last said that the producer id is not its own, in seconds.
        """
        self.ended_at: float | None = None
        """When a code first answered any attempt that ends the producer, in seconds."""
        self.refusals: dict[tuple[str, int], dict[int, float]] = {}
        """When each error code last answered an attempt, in seconds, by topic and partition."""
        self._stories: dict[ValueId, Story] = {}
        self._oldest: dict[tuple[str, int], int] = {}
        # The records of the newest batch of each partition.
        self._newest: dict[tuple[str, int], list[ValueId]] = {}
        self._requests: dict[object, dict[object, dict[tuple[str, int], list[ValueId]]]] = {}

    def of(self, value: ValueId) -> Story | None:
        """Return what the wire shows of a record; None if it was never written to a socket."""
        return self._stories.get(value)

    def was_in_doubt(self, place: tuple[str, int]) -> bool:
        """Return whether a record of a partition has ever been in doubt."""
        stories = self._stories.values()
        return any(s.place == place and s.doubted_at is not None for s in stories)

    def overtook(self, story: Story) -> bool:
        """Return whether a later record of a record's partition may be in the log."""
        return any(
            other.place == story.place and other.sent_at >= story.sent_at and other.may_be_written
            for other in self._stories.values()
            if other is not story
        )

    def is_alone(self, value: ValueId) -> bool:
        """Return whether all else in a record's partition was acknowledged before it was sent.

        No other batch was given to a socket after its batch, not even one of which no byte was
        written.
        """
        story = self._stories[value]
        batch = self._newest[story.place]
        return value in batch and all(
            other in batch or (each.acked_at is not None and each.acked_at <= story.sent_at)
            for other, each in self._stories.items()
            if each.place == story.place
        )

    def oldest_stamp_ms(self, place: tuple[str, int]) -> int:
        """Return the oldest timestamp that was ever given to a socket for a partition.

        It counts even if no byte was written: the engine is as careful about the records that it
        is about to send as about those that it has sent.
        """
        return self._oldest[place]

    def last_acked(self, place: tuple[str, int]) -> Story | None:
        """Return the story of a record that was acknowledged last in a partition, if any was."""
        acked = [
            (story.acked_at, -story.sent_at, story)
            for story in self._stories.values()
            if story.place == place and story.acked_at is not None
        ]
        return max(acked, key=itemgetter(0, 1))[2] if acked else None

    def known_offset(self, story: Story, since: float, lost_at: float) -> int | None:
        """Return the last offset that was acknowledged before a record was first sent, if any.

        Args:
            story: The story of the record.
            since: Since when the partition has its present log, in seconds.
            lost_at: When an answer last showed that the log has lost its end, in seconds. That
                answer names an offset of the log of today.
        """
        known = (
            other.offset
            for other in self._stories.values()
            if other.place == story.place
            and other.acked_at is not None
            and other.offset >= 0
            and since < other.acked_at < story.sent_at
            and other.acked_at >= lost_at
        )
        return max(known, default=None)

    def wrote(self, connection: object, request: object, batches: Sequence[WireBatch]) -> None:
        """Note that a Produce request was given to the socket."""
        carried = self._requests.setdefault(connection, {})[request] = {}
        for batch in batches:
            place = batch.topic, batch.partition
            values = carried[place] = []
            for value, record in records_in(batch.data):
                stamp_ms = record.timestamp_ms
                values.append(value)
                self._oldest[place] = min(stamp_ms, self._oldest.get(place, stamp_ms))
                story = self._stories.get(value)
                if story is None:
                    self._newest[place] = values
                    story = self._stories[value] = Story(place, stamp_ms, self._now())
                story.attempts += 1
                story.outstanding += 1
                if story.attempts > _AT_ONCE:
                    self._count(value, story)

    def answered(self, connection: object, request: object, answers: Sequence[WireAnswer]) -> None:
        """Note that an answer reached the producer; batches that it leaves out are in doubt."""
        left = self._requests.get(connection, {}).pop(request, {})
        for answer in answers:
            if answer.code in _FENCED:
                self.fenced_at = self._now()
            if answer.code in _ENDS_THE_PRODUCER and self.ended_at is None:
                self.ended_at = self._now()
            place = answer.topic, answer.partition
            if answer.code:
                self.refusals.setdefault(place, {})[answer.code] = self._now()
            for story in self._ended(left.pop(place, [])):
                self._answer(story, answer)
        self._doubt(left)

    def _count(self, value: ValueId, story: Story) -> None:
        """Report the first record that is sent too often."""
        since = self._now() - story.sent_at
        if self._storm is not None and story.attempts > _AT_ONCE + _PER_PAUSE * since / self._pause:
            self._storm(f"{value} was sent {story.attempts} times in {since:.3f} s")
            self._storm = None

    def refused_v14(self, values: Iterable[ValueId]) -> None:
        """Note that the records of a batch were answered UNSUPPORTED_VERSION in Produce v14."""
        for value in values:
            story = self._stories.get(value)
            if story is not None:
                story.refused_v14 += 1

    def lost(self, connection: object, unwritten: Collection[object] = ()) -> None:
        """Note that a connection has ended; of the requests `unwritten` no byte was written."""
        for request, carried in self._requests.pop(connection, {}).items():
            if request not in unwritten:
                self._doubt(carried)
                continue
            for values in carried.values():
                for value, story in zip(values, self._ended(values), strict=True):
                    story.attempts -= 1
                    if not story.attempts:
                        del self._stories[value]

    def _answer(self, story: Story, answer: WireAnswer) -> None:
        if not answer.code:
            if story.acked_at is None:
                story.acked_at, story.offset = self._now(), answer.base_offset
            return
        story.codes[answer.code] += 1
        if answer.base_offset >= 0:
            story.contradicted |= answer.code in self._before_append
        if story.doubted_at is not None:
            story.doubted_codes[answer.code] += 1
        elif answer.code not in self._before_append or answer.base_offset >= 0:
            story.doubted_at = self._now()

    def _doubt(self, carried: Mapping[tuple[str, int], Iterable[ValueId]]) -> None:
        for values in carried.values():
            for story in self._ended(values):
                if story.doubted_at is None:
                    story.doubted_at = self._now()

    def _ended(self, values: Iterable[ValueId]) -> Iterator[Story]:
        for value in values:
            story = self._stories[value]
            story.outstanding -= 1
            yield story

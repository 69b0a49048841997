"""The calls that give records to an accumulator, and where their records must be after a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aioidem import errors
from aioidem._engine.record import PendingRecord, RecordGroup
from aioidem._engine.record_block import Columns, RecordBlock
from aioidem._records import record_size_bound
from aioidem.structs import DeliveryStatus

from .accumulator_rows import TIMEOUT, TOPICS, AccumulatorRows
from .comparing import differs
from .made_batches import Nobody
from .placing import NOWHERE, SentRow, TopicRows, chosen_by_user

__all__ = ["AccumulatorCalls"]

_USERS_KEYS: Final = (
    *(None, None, None, b"k", b"kk", b"number"),
    *(b"no", b"far", b"text", b"float", b"end", b"end"),
)
"""Keys where a user's partitioner chooses; with those of the second line it fails."""


class AccumulatorCalls(AccumulatorRows):
    """An accumulator that callers give records to."""

    def _send(self) -> str | None:
        """Make a call of one record, of a block, or of a batch of the caller's."""
        dice, name = self._dice, self._dice.choice(TOPICS)
        chosen = dice.choice((None, None, 0, 1, 3, None if self._user_chooses else 0))
        match dice.randrange(4):
            case 0 if not self._user_chooses or chosen is not None:
                count = dice.choice((1, 2, 5, 30))
                records, block = self._block(count, chosen)
                return self._append(name, records, block, self._accumulator.append_block)
            case 1:
                group = RecordGroup(400)
                singles = [self._single(chosen or 0, group) for _ in range(dice.choice((1, 3)))]
            case _:
                singles = [self._single(chosen, None)]
        append = self._accumulator.append
        found = (self._append(name, [each], each, append) for each in singles)
        return next((wrong for wrong in found if wrong is not None), None)

    def _key(self) -> bytes | None:
        keys = _USERS_KEYS if self._user_chooses else (None, None, b"k", b"kk", b"kkkk")
        return self._dice.choice(keys)

    def _single(self, partition: int | None, group: RecordGroup | None) -> PendingRecord:
        key, value = self._key(), bytes(self._dice.choice((5, 60, 200)))
        size = record_size_bound(key, value, ())
        return PendingRecord(key, value, (), 7, partition, size, group)

    def _block(self, count: int, partition: int | None) -> tuple[list[PendingRecord], RecordBlock]:
        """Return the records of a new block one by one, and the block."""
        dice = self._dice
        values = tuple(bytes(dice.choice((5, 60))) for _ in range(count))
        keys = dice.choice((None, self._key(), tuple(self._key() for _ in range(count))))
        block = RecordBlock(Columns(values, keys, (), 7), Nobody(), partition)
        return [block.record(index) for index in range(count)], block

    def _append(
        self,
        name: str,
        records: Sequence[PendingRecord],
        item: PendingRecord,
        append: Callable[..., None],
    ) -> str | None:
        """Append an item to a topic, and return what is wrong then.

        Args:
            name: The topic.
            records: The records of the item, one by one.
            item: A single record, or a block.
            append: The accumulator's method for it.
        """
        deadline = self._now + TIMEOUT
        rows = [
            SentRow(
                *(self._ordinal + number, record.key, record.partition, record.size, self._now),
                *(deadline, self._generation),
            )
            for number, record in enumerate(records, 1)
        ]
        until = self._dice.choice((None, None, self._now + 2.0, self._now + 99.0))
        metadata = self._bench.metadata
        metadata.wanted = False
        raised: BaseException | None = None
        try:
            append(name, item, self._now, until)
        except (errors.KafkaError, KeyboardInterrupt) as error:
            raised = error
        block = isinstance(item, RecordBlock)
        return self._appended(name, rows, until, raised, block=block)

    def _appended(
        self,
        name: str,
        rows: list[SentRow],
        until: float | None,
        raised: BaseException | None,
        *,
        block: bool,
    ) -> str | None:
        """Return what is wrong after a call; note where its records wait."""
        if self._ended_by is not None:
            return _not_raised(raised, self._ended_by)
        self._ordinal += len(rows)
        if self._bench.door.shut:
            return _not_raised(raised, errors.IllegalOperation)
        topic = self._topics[name]
        wanted, topic.used = not topic.used, True
        for row in rows:
            row.asked = self._metadata_requests
            limit = row.called_at + self._config.max_block if until is None else until
            row.until = min(limit, row.deadline)
        wrong = None
        if topic.due:
            topic.due += rows
        elif topic.lacks(rows[0]):
            topic.waiting += rows
            wanted = True
        else:
            refusal = self._refusal(topic, rows[0])
            if refusal is not None:
                return _not_raised(raised, refusal)
            wrong = self._place(name, rows, block=block)
        wrong = wrong or differs("metadata is wanted", self._bench.metadata.wanted, wanted)
        return differs("raised by the call", raised, None) or wrong

    def _refusal(self, topic: TopicRows, row: SentRow) -> type[BaseException] | None:
        """Return the error that a record gets if the user's partitioner chooses no partition."""
        asked = self._user_chooses and row.partition is None
        if asked and chosen_by_user(row.key, topic.choices) == NOWHERE:
            return KeyboardInterrupt if row.key == b"end" else errors.RecordError
        return None

    def _place(self, name: str, rows: Sequence[SentRow], *, block: bool) -> str | None:
        """Note which partitions records are in now; return what is wrong with that."""
        landed = {
            record.ordinal: partition
            for (topic, partition), records in self._bench.queued()
            if topic == name
            for record in records
        }
        wrong = self._topics[name].misplaced(rows, landed, block=block, users=self._user_chooses)
        for row in rows:
            if row.ordinal not in landed:
                return f"record {row.ordinal} is in no queue, expected in that of a partition"
            where = name, landed[row.ordinal]
            self._queues.setdefault(where, []).append(row)
            if row.generation < self._generation:
                self._flushing.add(where)  # a flush waits for it already
        return wrong


def _not_raised(raised: BaseException | None, due: type[BaseException]) -> str | None:
    """Return what is wrong with the error of a call that has queued nothing."""
    status = getattr(raised, "status", DeliveryStatus.NOT_WRITTEN)
    told = type(raised), status
    return differs(f"raised ({raised!r})", told, (due, DeliveryStatus.NOT_WRITTEN))

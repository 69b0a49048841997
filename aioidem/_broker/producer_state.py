"""The producer state of one replica: the last N batches of each producer, and the sequence check.

N is how many batches per producer the broker is configured to retain. The rules of Kafka 4.3.1:

* A batch whose (epoch, first, last sequence) is among the remembered ones is a duplicate and is
  answered with its first offset.
* A batch with a lower epoch is refused with INVALID_PRODUCER_EPOCH. The first batch of a higher
  epoch must have sequence 0; if not, it is refused with OUT_OF_ORDER_SEQUENCE_NUMBER.
* Within an epoch each batch starts right after the last one; 0 follows 2147483647. Any other batch,
  including a duplicate that is no longer remembered, is refused with OUT_OF_ORDER_SEQUENCE_NUMBER.
  DUPLICATE_SEQUENCE_NUMBER is never sent.
* A broker with KIP-758 (``sequence_range``) remembers only the last batch, whose duplicate it
  answers with the offset. A batch that begins less than the range behind the last sequence is
  answered DUPLICATE_SEQUENCE_NUMBER without an offset, any other OUT_OF_ORDER_SEQUENCE_NUMBER.
* An unknown producer id may start at any sequence (KIP-360); with transactions v2 only at 0.
* While a broker asks the coordinator whether a transaction may begin in a partition, it keeps the
  lowest sequence that it has seen of the producer. It appends the batch with that sequence before
  any batch with a higher one (KIP-890).
* A producer gets the epoch of the marker that ends its transaction. With transactions v2 this epoch
  is new, so the producer's next batch begins at sequence 0.
* While a transaction is open in the partition, its producer may write only transactional batches,
  and does not expire.
* A producer expires when the broker's clock is ``producer.id.expiration.ms`` past the newest record
  timestamp of the batch that was appended *last* (KIP-854). Newer timestamps of earlier batches do
  not count, nor does the time of the last append. Retention and DeleteRecords do not make a
  producer expire sooner (KIP-360; KIP-854 says that they do, but Kafka has not implemented it).
* A restart leaves one batch per producer, because a producer snapshot contains no more. It leaves
  none if the whole log was removed, because the snapshot is removed with the log. The same holds
  after a crash: the log is replayed, a snapshot of the result is written, and the snapshot is read.

Rejected
    A fixed-size ring per producer: N can be changed at run time, and a lower N takes effect only
    with the next append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import MAX_SEQUENCE, BatchHeader, RefusedError, StoredBatch
from aioidem._broker.markers import COORDINATOR_EPOCH
from aioidem._broker.transaction_index import TransactionIndex

__all__ = ["ProducerEntry", "ProducerStates", "RememberedBatch"]


class RememberedBatch(NamedTuple):
    """What a replica remembers of one batch of a producer, to recognise a resent copy."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerEntry:
    """What one replica remembers of one producer.

    ``batches`` is oldest first; ``last_timestamp_ms`` is the newest record timestamp of the batch
    that was appended last.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp_ms", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[RememberedBatch] = deque()
        self.last_timestamp_ms = -1
        self.coordinator_epoch = -1

    def __repr__(self) -> str:
        return (
            f"<ProducerEntry pid={self.producer_id} epoch={self.epoch} last={self.last_sequence} "
            f"remembered={len(self.batches)}>"
        )

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record appended in this epoch; -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else -1


@dataclass(slots=True)
class _Verifying:
    """The lowest sequence seen of a producer while the coordinator is asked about a transaction."""

    epoch: int
    lowest: int
    zero_first: bool


class ProducerStates:
    """What one replica remembers of its producers: epoch, sequences and last batches of each."""

    __slots__ = ("_entries", "_verifying", "transactions")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self.transactions = TransactionIndex()
        # By producer id: the lowest sequence that has arrived while the coordinator is being asked
        # whether the producer's transaction may begin here. Kept until the transaction begins.
        self._verifying: dict[int, _Verifying] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """Return the entry of a producer; None if the producer is unknown."""
        return self._entries.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """Return the entries of all producers, in the order of their ids."""
        return [self._entries[pid] for pid in sorted(self._entries)]

    def in_transaction(self, header: BatchHeader) -> bool:
        """Return whether a batch's producer, in the batch's epoch, has an open transaction here."""
        entry = self._entries.get(header.producer_id)
        return (
            entry is not None
            and entry.epoch == header.producer_epoch
            and self.transactions.first_offset(header.producer_id) is not None
        )

    def verifying(self, header: BatchHeader, *, zero_first: bool = False) -> None:
        """Note that the coordinator is about to be asked whether a transaction may begin here.

        ``header`` is that of the batch that would begin the transaction. ``zero_first`` says
        whether an unknown producer must begin at sequence 0, as with transactions v2. If several
        batches of a producer wait for the coordinator, ``zero_first`` of the first batch counts, as
        in Kafka.

        Raises:
            RefusedError: INVALID_PRODUCER_EPOCH if the batch's epoch is lower than the producer's.
        """
        entry = self._entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise _too_old(entry, header)
        seen = self._verifying.setdefault(
            header.producer_id, _Verifying(header.producer_epoch, header.base_sequence, zero_first)
        )
        if header.producer_epoch > seen.epoch:
            seen.epoch, seen.lowest = header.producer_epoch, header.base_sequence
        elif header.producer_epoch == seen.epoch:
            seen.lowest = min(seen.lowest, header.base_sequence)

    def check(
        self,
        header: BatchHeader,
        *,
        sequence_range: int | None = None,
    ) -> RememberedBatch | None:
        """Check the epoch and the sequence of a batch that a client wants to append.

        Args:
            header: Header of the batch.
            sequence_range: How far below the last sequence a batch is refused as a duplicate
                (KIP-758), in records; None: the broker does not have KIP-758.

        Returns:
            The remembered batch of which the given one is a duplicate; None if the given batch may
            be appended.

        Raises:
            RefusedError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
                DUPLICATE_SEQUENCE_NUMBER.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            seen = self._verifying.get(header.producer_id)
            if seen is not None and seen.zero_first and header.base_sequence != 0:
                raise _out_of_order(header, "no state for this producer, which must begin at 0", -1)
            self._check_overtaken(header)
            return None
        duplicate = self._judge(entry, header, sequence_range)
        if duplicate is None and not header.transactional:
            self._check_outside(header)
        return duplicate

    def _judge(
        self, entry: ProducerEntry, header: BatchHeader, sequence_range: int | None
    ) -> RememberedBatch | None:
        if header.producer_epoch == entry.epoch:
            duplicate = _find(entry, header)
            if duplicate is None:
                self._check_overtaken(header)
            if duplicate is None and not _follows(entry.last_sequence, header.base_sequence):
                if sequence_range is not None:
                    _check_range(entry, header, sequence_range)
                raise _out_of_order(header, "not the next sequence", entry.last_sequence)
            return duplicate
        if header.producer_epoch < entry.epoch:
            raise _too_old(entry, header)
        self._check_overtaken(header)
        if header.base_sequence != 0:
            raise _out_of_order(header, "a new epoch begins at 0", entry.last_sequence)
        return None

    def _check_overtaken(self, header: BatchHeader) -> None:
        seen = self._verifying.get(header.producer_id)
        if seen is not None and header.base_sequence > seen.lowest:
            raise _out_of_order(header, f"{seen.lowest} was seen and is not here", -1)

    def _check_outside(self, header: BatchHeader) -> None:
        if self.transactions.first_offset(header.producer_id) is not None:
            raise RefusedError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} has a transaction open, this is no part of it",
            )

    def appended(self, batch: StoredBatch, retain: int) -> None:
        """Remember an appended batch; keep only the newest ``retain`` batches of its producer."""
        header = batch.header
        if header.producer_id < 0:
            return
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(
                header.producer_id, header.producer_epoch
            )
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        if header.transactional:
            self._verifying.pop(header.producer_id, None)
            self.transactions.appended(batch)
        if header.control:
            entry.last_timestamp_ms = header.max_timestamp_ms
            entry.coordinator_epoch = COORDINATOR_EPOCH
            return
        while len(entry.batches) >= retain:
            entry.batches.popleft()
        entry.last_timestamp_ms = header.max_timestamp_ms
        entry.batches.append(
            RememberedBatch(
                header.base_sequence,
                header.last_sequence,
                batch.base_offset,
                batch.last_offset,
                header.max_timestamp_ms,
            )
        )

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget producers whose last batch is at least ``expiration_ms`` old; return their ids.

        A producer with an open transaction is not forgotten.
        """
        gone = [
            pid
            for pid, e in self._entries.items()
            if now_ms - e.last_timestamp_ms >= expiration_ms
            and self.transactions.first_offset(pid) is None
        ]
        for pid in gone:
            del self._entries[pid]
        return gone

    def through_snapshot(self, *, of_empty_log: bool) -> None:
        """Reduce the state to what a producer snapshot file holds: the last batch of each producer.

        Nothing is kept if the log is empty (``of_empty_log``).
        """
        self._verifying.clear()
        if of_empty_log:
            self._entries.clear()
            self.transactions.clear()
        for entry in self._entries.values():
            while len(entry.batches) > 1:
                entry.batches.popleft()

    def recover(self, batches: Iterable[StoredBatch], retain: int) -> None:
        """Rebuild the state from ``batches`` after a crash.

        Producers without a batch in the log are kept, because Kafka's older snapshots have them.
        """
        known = dict(self._entries)
        self.rebuild(batches, retain)
        for producer_id, entry in known.items():
            self._entries.setdefault(producer_id, entry)

    def rebuild(self, batches: Iterable[StoredBatch], retain: int) -> None:
        """Forget everything and replay ``batches``: after a truncation, or on a new replica."""
        self._entries.clear()
        self.transactions.clear()
        self._verifying.clear()
        for batch in batches:
            self.appended(batch, retain)


def _find(entry: ProducerEntry, header: BatchHeader) -> RememberedBatch | None:
    first, last = header.base_sequence, header.last_sequence
    for known in reversed(entry.batches):
        if known.first_sequence == first and known.last_sequence == last:
            return known
    return None


def _follows(last: int, first: int) -> bool:
    return first == last + 1 or (first == 0 and last == MAX_SEQUENCE)


def _check_range(entry: ProducerEntry, header: BatchHeader, sequence_range: int) -> None:
    # Modulo 2^31, so that a range may wrap around.
    behind = (entry.last_sequence - header.base_sequence) % (MAX_SEQUENCE + 1)
    if behind < sequence_range:
        raise RefusedError(
            ErrorCode.duplicate_sequence_number,
            f"sequence {header.base_sequence} of producer {header.producer_id}: "
            f"{behind} behind the last one",
        )


def _too_old(entry: ProducerEntry, header: BatchHeader) -> RefusedError:
    return RefusedError(
        ErrorCode.invalid_producer_epoch,
        f"epoch {header.producer_epoch} of producer {header.producer_id} "
        f"is older than {entry.epoch}",
    )


def _out_of_order(header: BatchHeader, why: str, last: int) -> RefusedError:
    return RefusedError(
        ErrorCode.out_of_order_sequence_number,
        f"sequence {header.base_sequence} of producer {header.producer_id} "
        f"epoch {header.producer_epoch}: {why} (last sequence here: {last})",
    )

"""A partition of the model cluster: its log, and what its leader remembers of producers.

This model is written from the protocol alone. It shares no code with the engine, with the embedded
broker and with the code that builds and reads batches: a batch is a tuple of numbers here, which
`read_batch` takes from the bytes by itself. So a mistake that those parts share shows.

What the leader does with a batch, as Kafka does:

- A producer that it does not remember may begin with any sequence (KAFKA-15591).
- A batch that is among the newest `retains` batches of the producer is a duplicate: NONE, with the
  offset of the first copy.
- A batch of an older epoch is refused with INVALID_PRODUCER_EPOCH.
- Under a newer epoch the first sequence is 0; under the same epoch a sequence follows the last one.
  Any other is refused with OUT_OF_ORDER_SEQUENCE_NUMBER. 0 follows 2147483647.

A batch is committed once all replicas have it. `append` may leave it uncommitted: then the next
leader may lack it. Replicas hold the same log up to there, so a committed batch is never lost.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "INVALID_EPOCH",
    "INVALID_TIMESTAMP",
    "MESSAGE_TOO_LARGE",
    "NONE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_LEADER",
    "OUT_OF_ORDER",
    "REQUEST_TIMED_OUT",
    "STORAGE_ERROR",
    "UNKNOWN_TOPIC",
    "UNKNOWN_TOPIC_ID",
    "Answer",
    "PartitionLog",
    "Sent",
    "read_batch",
]

NONE = 0
UNKNOWN_TOPIC = 3
NOT_LEADER = 6
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
NOT_ENOUGH_REPLICAS = 19
OUT_OF_ORDER = 45
INVALID_EPOCH = 47
INVALID_TIMESTAMP = 32
STORAGE_ERROR = 56
UNKNOWN_TOPIC_ID = 100

_SEQUENCES = 2**31
_TRANSACTIONAL = 0x10
_HEADER = struct.Struct(">qiiBIhiqqqhii")


class Sent(NamedTuple):
    """A batch as it is on the wire; `numbers` identifies its records, each by a number."""

    producer_id: int
    epoch: int
    sequence: int
    numbers: tuple[int, ...]

    @property
    def last(self) -> int:
        """The sequence of the last record."""
        return (self.sequence + len(self.numbers) - 1) % _SEQUENCES


class Answer(NamedTuple):
    """What a leader answers: an error code, and the offset of the first record or -1."""

    code: int
    offset: int = -1


class _Remembered(NamedTuple):
    """What a leader remembers of one producer: (sequence, last sequence, offset) of batches."""

    epoch: int
    batches: tuple[tuple[int, int, int], ...]


class PartitionLog:
    """The log of one partition, its leader, and what the leader remembers.

    Args:
        retains: the number of batches that a leader remembers of each producer.
    """

    def __init__(self, retains: int) -> None:
        self.retains = retains
        self.leader = 1
        self.leader_epoch = 0
        self.entries: tuple[tuple[int, Sent], ...] = ()
        self.end = 0
        self.committed = 0
        self.remembered: dict[int, _Remembered] = {}
        # The numbers of the records that were committed, and lost by an unclean election.
        self.lost: frozenset[int] = frozenset()

    def append(self, batch: Sent, *, replicated: bool = True) -> Answer:
        """Append a batch, or recognise or refuse it; commit the log unless it is not replicated."""
        known = self.remembered.get(batch.producer_id)
        answer = self._judge(batch, known)
        if answer.code != NONE:
            return answer
        if answer.offset < 0:
            answer = Answer(NONE, self.end)
            self.entries += ((self.end, batch),)
            self.end += len(batch.numbers)
            self._remember(batch, answer.offset, known)
        if replicated:
            self.committed = self.end
        return answer

    def _judge(self, batch: Sent, known: _Remembered | None) -> Answer:
        if known is None or batch.producer_id < 0:
            return Answer(NONE)
        if batch.epoch < known.epoch:
            return Answer(INVALID_EPOCH)
        if batch.epoch > known.epoch:
            return Answer(OUT_OF_ORDER if batch.sequence else NONE)
        for sequence, last, offset in known.batches:
            if (sequence, last) == (batch.sequence, batch.last):
                return Answer(NONE, offset)
        last = known.batches[-1][1] if known.batches else -1
        follows = batch.sequence == (last + 1) % _SEQUENCES
        return Answer(NONE if follows else OUT_OF_ORDER)

    def _remember(self, batch: Sent, offset: int, known: _Remembered | None) -> None:
        earlier = known.batches if known is not None and known.epoch == batch.epoch else ()
        batches = (*earlier, (batch.sequence, batch.last, offset))
        self.remembered[batch.producer_id] = _Remembered(batch.epoch, batches[-self.retains :])

    def lose(self) -> None:
        """Lose the newest batch, though it is committed: the next leader does not have it."""
        offset, batch = self.entries[-1]
        self.committed = offset
        self.lost |= set(batch.numbers)

    def lead(self, broker: int, *, losing: bool = False, bare: bool = False) -> None:
        """Make another broker the leader.

        Args:
            broker: the new leader.
            losing: whether it lacks the batches that are not committed.
            bare: whether it has forgotten all producers.
        """
        self.leader = broker
        self.leader_epoch += 1
        if losing:
            self.entries = tuple(each for each in self.entries if each[0] < self.committed)
            self.end = self.committed
            self.remembered = {}
            for offset, batch in self.entries:
                self._remember(batch, offset, self.remembered.get(batch.producer_id))
        self.committed = self.end
        if bare:
            self.forget()

    def restart(self) -> None:
        """Restart the leader: it remembers the newest batch of each producer, and no other."""
        self.leader_epoch += 1
        self.committed = self.end
        for producer_id, known in self.remembered.items():
            self.remembered[producer_id] = known._replace(batches=known.batches[-1:])

    def forget(self) -> None:
        """Forget all producers, as a leader does when it holds them for expired."""
        self.remembered = {}

    def fill(self, records: int) -> None:
        """Append records of somebody else."""
        self.end += records
        self.committed = self.end

    def usurp(self) -> None:
        """Append a record of another client that uses the same producer ids, under newer epochs."""
        for producer_id, known in self.remembered.items():
            self.remembered[producer_id] = _Remembered(known.epoch + 1, ((0, 0, self.end),))
        self.fill(1)

    def raise_epoch(self, producer_id: int, epoch: int) -> None:
        """Note a newer epoch of a producer, under which it has no batch yet."""
        known = self.remembered.get(producer_id)
        if known is None or known.epoch < epoch:
            self.remembered[producer_id] = _Remembered(epoch, ())

    def state(self) -> tuple[object, ...]:
        """Return everything that the future depends on, as plain values."""
        return (
            self.retains,
            self.leader,
            self.leader_epoch,
            self.entries,
            self.end,
            self.committed,
            tuple(self.remembered.items()),
            tuple(sorted(self.lost)),
        )


@lru_cache(maxsize=4096)
def read_batch(data: bytes) -> Sent:
    """Read a batch of format v2 without compression, whose values are decimal numbers."""
    header = _HEADER.unpack_from(data)
    length, magic, attributes, count = header[1], header[3], header[5], header[12]
    assert length == len(data) - 12, "the batch has another length than it says"
    assert (magic, attributes & ~_TRANSACTIONAL) == (2, 0), "compressed, or of another format"
    numbers, at = [], _HEADER.size
    for _ in range(count):
        size, at = _varint(data, at)
        end = at + size
        _, at = _varint(data, at + 1)  # after the attributes: the timestamp's difference
        _, at = _varint(data, at)  # the offset's difference
        key, at = _varint(data, at)
        assert key == -1, "the records have no keys"
        value, at = _varint(data, at)
        numbers.append(int(data[at : at + value]))
        at = end
    assert at == len(data), "the batch has bytes behind its last record"
    return Sent(header[9], header[10], header[11], tuple(numbers))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at a position, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7

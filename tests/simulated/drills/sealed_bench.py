"""The bench of the sealer: one partition, its leader, and its records as rows.

The compression is made up: the share of the bytes that it leaves is drawn again and again. So the
sealer's estimate of that share is often wrong, as with real records of changing kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Final

from aioidem._config import CompressionType, ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch
from aioidem._engine.discovery import Discovery
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState
from aioidem._engine.retention import BrokerMemory
from aioidem._engine.sealing import Sealer
from aioidem._engine.steps import Compress
from aioidem._engine.topics import TopicState
from aioidem._records import BatchBody, Codec, NewRecord, build_body

from .comparing import unequal
from .queue_rows import Caller, Row, nbytes, waiting
from .sealed_limits import Limits, Share

__all__ = ["ENDLESS", "SealerBench", "link_to_leader"]

_IDENTITY: Final = ProducerIdentity(77, 3)
ENDLESS: Final = 1 << 30
"""More bytes, or records, than there ever are."""


@cache
def _config(
    batch_size: int, most: int, codec: CompressionType, transactional_id: str | None, *, late: bool
) -> ProducerConfig:
    return ProducerConfig.build(
        "b:1",
        batch_size=batch_size,
        max_request_size=most,
        compression_type=codec,
        transactional_id=transactional_id,
        late_sealing=late,
        request_timeout=20.0,
    )


def link_to_leader(config: ProducerConfig, random: Callable[[], float]) -> Link:
    """Return a new connection to broker 1."""
    return Link(1, 1, 5, 0.0, Discovery("broker 1", config, random), BrokerMemory(random))


class SealerBench:
    """A sealer with one partition, and the rows that wait in the partition's queue."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._config = _config(
            dice.choice((400, 1000, 4000)),
            dice.choice((2000, 100_000)),
            dice.choice(("none", "gzip", "gzip")),
            dice.choice((None, None, "x")),
            late=dice.random() < 0.8,
        )
        self._codec = Codec.from_name(self._config.compression_type)
        self._compresses = self._codec is not Codec.NONE
        self._sealer = Sealer(self._config)
        self._sealer.encode = self._encode
        self._drafts = self._sealer.drafts
        self._drafts.at_once = dice.choice((1, 2))
        if self._compresses:
            self._drafts.quick = dice.choice((500, 1500, 1e9, 1e9))
        self._caller = Caller(dice)
        self._topic = TopicState("t", self._config.batch_size, dice.random)
        self._link = link_to_leader(self._config, dice.random)
        self._state = PartitionState(
            "t", 0, None, idempotent=True, retry=Backoff(0.1, 1.0, dice.random), pause=30.0
        )
        self._identity = dice.choice((None, _IDENTITY, _IDENTITY))
        self._next = 0  # the next sequence
        if self._identity is not None:
            self._state.ledger.adopt(self._identity)
            self._next = dice.choice((0, (1 << 31) - 7))
            self._state.ledger.take(self._next)
        # How many sequences batches without an outcome may span (KIP-758).
        self._cap = dice.choice((ENDLESS, ENDLESS, 12)) if self._identity else ENDLESS
        if self._cap < ENDLESS:
            self._state.window.limit_records(self._cap)
        self._limits = Limits(self._config, self._topic, self._link)
        for _ in range(dice.choice((0, 6))):
            self._limits.learn(dice, 5.0)
        self._share = Share()
        self._see_good_compression()
        self._leaves = dice.choice((0.5, 0.9))  # the share that compression leaves
        self._now = 5.0
        self._rows: list[Row] = []
        self._blocked = self._flushing = False
        self._ordinal = 0
        self._open: list[Batch] = []  # the batches without an outcome
        self._under_way: list[Compress] = []
        # How many of the first records have a draft, which step compresses it, and the result.
        self._drafted = self._token = 0
        self._body: BatchBody | None = None

    def _encode(self, records: Sequence[NewRecord], codec: Codec, level: int | None) -> BatchBody:
        """Encode records, and leave a share of their bytes, as if a codec had done it."""
        if codec is not self._codec or level != self._config.compression_level:
            raise ValueError(f"not the codec of the producer: {codec} {level}")
        body = build_body(records)
        if self._compresses:
            data = bytes(1 + int(len(body.data) * self._leaves))
            first, latest = body.first_timestamp_ms, body.max_timestamp_ms
            body = BatchBody(data, codec, body.count, first, latest, body.uncompressed_size)
        return body

    def _encoded(self, rows: Sequence[Row]) -> BatchBody:
        """Return the body of a batch with the records of some rows."""
        return self._encode([row.record for row in rows], self._codec, None)

    def difference(self) -> str | None:
        """Return how the partition differs from what it must be; None if it does not."""
        queue = self._state.queue
        pairs: dict[str, tuple[object, object]] = {
            "records that wait": (waiting(queue.records), [row.ordinal for row in self._rows]),
            "bytes that wait": (queue.bytes, nbytes(self._rows)),
            "held back": (queue.blocked, self._blocked),
            "flushing": (queue.flushing, self._flushing),
            "has a draft": (queue.draft is not None, self._drafted > 0),
            "next sequence": (self._state.ledger.next, self._next),
            "next batch": (self._state.batches.next_ordinal, self._ordinal),
            "all compressions are under way": (
                self._drafts.full,
                len(self._under_way) >= self._drafts.at_once,
            ),
        }
        return unequal(pairs)

    # -- callers, and the leader

    def _append(self) -> str | None:
        for item, rows in self._caller.call(self._now):
            self._state.queue.append(item, self._now)
            self._rows += rows
        return None

    def _mark(self) -> str | None:
        """Flush the queue, and hold it back perhaps."""
        if self._rows and self._dice.random() < 0.3:
            self._state.queue.hold_back()
            self._blocked = True
        self._state.queue.flush()
        self._flushing = bool(self._rows)
        return None

    def _learn(self) -> str | None:
        """Learn how fast the connection is, what the leader accepts, or what compression leaves."""
        self._leaves = self._dice.choice((0.1, 0.5, 0.9, 1.1))
        self._see_good_compression()
        if self._cap < ENDLESS:
            self._cap = self._dice.choice((3, 12, 30))
            self._state.window.limit_records(self._cap)
        if self._compresses and self._rows:
            sizes = nbytes(self._rows), self._rows[0].size
            self._drafts.quick = self._dice.choice((500, 1500, 1e9, 1e9, *sizes))
        self._now += self._dice.choice((0.0, 1.0, 2000.0, 3600.0))
        self._limits.learn(self._dice, self._now)
        return None

    def _see_good_compression(self) -> None:
        """Learn from some batches that compression leaves nearly nothing."""
        for _ in range(self._dice.choice((0, 60, 160, 160))):
            self._learn_share(BatchBody(b"", self._codec, 9, 0, 0, 20_000))

    def _learn_share(self, body: BatchBody) -> None:
        """Learn what compression has left of some records."""
        self._sealer.learn("t", body)
        self._share.observe(body)

    def _empty(self) -> str | None:
        """Take all records out of the queue, perhaps."""
        if self._dice.random() < 0.5:
            self._state.queue.empty()
            self._rows = []
            self._blocked = self._flushing = False
            self._drafted = 0
        return None

    def _end(self) -> str | None:
        """End the oldest batch."""
        if self._open:
            self._state.batches.unresolved.remove(self._open.pop(0))
        return None

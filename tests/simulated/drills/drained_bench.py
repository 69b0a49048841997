"""An accumulator with four partitions of one topic, their leader, and their records as rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Final

from aioidem import errors
from aioidem._config import CompressionType, ProducerConfig
from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.classify import classify
from aioidem._engine.failed_attempts import Refusal
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import RecordBlock
from aioidem._engine.route import Route
from aioidem._engine.steps import Compress
from aioidem._protocol.produce import PartitionAnswer
from aioidem._records import BatchBody, Codec, build_body

from .accumulator_bench import Bench
from .comparing import differs, unequal
from .queue_rows import Caller, Row, ordinals, waiting
from .sealed_bench import link_to_leader
from .sealed_limits import Limits

__all__ = ["ENDLESS", "DrainBench", "Part"]

_LINGER: Final = 5.0
"""Seconds."""
_IDENTITY: Final = ProducerIdentity(77, 3)
_TOO_LARGE: Final = 10
_NOT_ENOUGH_REPLICAS: Final = 19
"""The error codes MESSAGE_TOO_LARGE and NOT_ENOUGH_REPLICAS."""
ENDLESS: Final = 1 << 20
"""More bytes than any batch here has."""


@cache
def _config(
    most: int, linger: float, codec: CompressionType, *, grows: bool, idempotent: bool
) -> ProducerConfig:
    return ProducerConfig.build(
        "b:1",
        batch_size=300,
        max_request_size=most,
        linger=linger,
        late_sealing=grows,
        delivery_timeout=20.0,
        request_timeout=10.0,
        compression_type=codec,
        enable_idempotence=idempotent,
    )


class Part:
    """One partition: what waits in its queue, and its batches without an outcome."""

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.rows: list[Row] = []
        # The batches without an outcome, oldest first, each with its records.
        self.open: list[tuple[Batch, list[Row]]] = []
        # Whether its next batch was held back, and whether a flush waits for its records.
        self.blocked = self.flushing = False
        # The compression of its first records, if it has begun, and whether it is over.
        self.draft: Compress | None = None
        self.compressed = False

    def take(self, count: int) -> list[Row]:
        """Take the first rows out of the queue."""
        taken, self.rows = self.rows[:count], self.rows[count:]
        if not self.rows:
            self.blocked = self.flushing = False
        self.draft, self.compressed = None, False
        return taken

    @property
    def flying(self) -> list[Batch]:
        """The batches that are in flight, oldest first."""
        return [batch for batch, _ in self.open if batch.state is BatchState.IN_FLIGHT]


class DrainBench:
    """An accumulator with the partitions of one topic, all of one leader."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        codec: CompressionType = dice.choice(("none", "none", "gzip"))
        self._config = config = _config(
            dice.choice((700, 1500, 100_000)),
            dice.choice((0.0, _LINGER)),
            codec,
            grows=dice.random() < 0.5,
            idempotent=dice.random() < 0.8,
        )
        self._codec = Codec.from_name(codec)
        self._bench = bench = Bench(config, dice)
        self._accumulator = bench.accumulator
        self._drafts = self._accumulator.drafts
        self._drafts.quick, self._drafts.at_once = 0, dice.choice((1, 2))
        if self._codec is Codec.NONE:
            self._drafts.quick = ENDLESS
        self._accumulator.encode_by(self._encode)
        # Whether the function given to `encode_by` was called in this step.
        self._encoded = False
        bench.describe("t", [1] * 4)
        self._link = link_to_leader(config, dice.random)
        self._limits = Limits(config, self._accumulator.topic("t"), self._link)
        self._caller = Caller(dice)
        self._now = 50.0
        self._parts = [Part(bench.partitions.state("t", index)) for index in range(4)]
        for part in self._parts:
            part.state.follow(Route(1, 1, 0))
            if config.enable_idempotence and dice.random() < 0.9:
                part.state.adopt(_IDENTITY)
        # The compressions that are under way, each of a partition's first records or of a batch.
        self._under_way: list[tuple[Compress, Part, Batch | None]] = []
        # Parts of divided batches that have been compressed.
        self._built: list[Batch] = []
        self._splits = 0

    def difference(self) -> str | None:
        """Return how the partitions differ from what they must be; None if they do not."""
        pairs: dict[str, tuple[object, object]] = {}
        for number, part in enumerate(self._parts):
            queue, unresolved = part.state.queue, part.state.batches.unresolved
            pairs |= {
                f"queue {number}": (waiting(queue.records), [r.ordinal for r in part.rows]),
                f"batches {number}": (unresolved, [batch for batch, _ in part.open]),
                f"held back {number}": (queue.blocked, part.blocked),
                f"flushing {number}": (queue.flushing, part.flushing),
                f"draft {number}": (queue.draft is not None, part.draft is not None),
            }
        queued = [row for part in self._parts for row in part.rows]
        sent = [row for part in self._parts for _, rows in part.open for row in rows]
        count = len(queued) + len(sent)
        numbered = any(part.state.ledger.next for part in self._parts)
        pairs |= {
            "unsettled": (self._accumulator.unsettled, count),
            "unsettled by topic": (
                self._accumulator.unsettled_by_topic(),
                {"t": count} if count else {},
            ),
            "when the oldest record was queued": (
                self._accumulator.first_queued_at,
                min((row.queued_at for row in queued + sent), default=float("inf")),
            ),
            "batches that were divided": (
                self._bench.outcomes.counters.batches_split,
                self._splits,
            ),
            "no more compressions may begin": (
                self._drafts.full,
                len(self._under_way) >= self._drafts.at_once,
            ),
            "a batch of t has the identity": (self._accumulator.numbered("t", _IDENTITY), numbered),
            "a batch of t has no identity": (self._accumulator.numbered("t", None), False),
        }
        return unequal(pairs)

    def taken_back(self) -> str | None:
        """Return what is wrong with the records that can go to another cluster or batch."""
        due = [
            row.ordinal
            for part in self._parts
            for row in (
                *(row for batch, rows in part.open if batch.due for row in rows),
                *part.rows,
            )
        ]
        for part in self._parts:
            for batch, rows in part.open:
                rest = self._accumulator.without(batch, {0})
                left = [] if rest is None else ordinals(rest.records)
                if left != [row.ordinal for row in rows[1:]]:
                    what = f"records of {batch} without the first one"
                    return differs(what, left, [row.ordinal for row in rows[1:]])
        told = waiting(self._accumulator.take_unwritten()["t"])
        return unequal({"records that can go to another cluster": (told, due)})

    # -- callers, the leader and time

    def append(self) -> str | None:
        """Make a call that queues records in some partition."""
        self._now += self._dice.choice((0.0, 0.0, 0.5, 5.0))
        part = self._dice.choice(self._parts)
        for item, rows in self._caller.call(self._now):
            item.partition = part.state.partition
            if isinstance(item, RecordBlock):
                self._accumulator.append_block("t", item, self._now)
            else:
                self._accumulator.append("t", item, self._now)
            part.rows += rows
        return None

    def _learn(self) -> str | None:
        """Learn something of the leader, or that a partition must wait."""
        self._now += self._dice.choice((0.0, 0.0, 4000.0))
        self._limits.learn(self._dice, self._now)
        if self._dice.random() < 0.5:
            self._dice.choice(self._parts).state.setbacks.wait_until(self._now + 0.5)
        return None

    def _encode(
        self, records: Sequence[PendingRecord], codec: Codec, level: int | None
    ) -> BatchBody:
        """Encode records, and note that the accumulator has asked for it."""
        self._encoded = True
        return build_body(records, codec, level)

    def _keep(self) -> str | None:
        """Let no batch be sent, or any; add a partition to the transaction, or take it out."""
        door = self._bench.door
        door.holds = self._dice.random() < 0.2
        if self._dice.random() < 0.5:
            door.kept ^= {("t", self._dice.randrange(4))}
        return None

    def _flush(self) -> str | None:
        """Begin a flush, which waits for all records that are queued."""
        self._accumulator.begin_flush()
        for part in self._parts:
            part.flushing = bool(part.rows)
        return None

    def _answer(self) -> str | None:
        """Acknowledge the oldest batch of a partition, lose its batches, or let it be refused."""
        parts = [part for part in self._parts if part.flying]
        if not parts:
            return None
        part = self._dice.choice(parts)
        flying, state, effects = part.flying, part.state, self._bench.effects
        if self._dice.random() < 0.3:
            for batch in flying:
                state.failures.on_lost(batch, written=False, now=self._now)
        elif self._dice.random() < 0.5 and len(flying) == 1:
            code = _NOT_ENOUGH_REPLICAS
            if flying[0].count > 1 and self._dice.random() < 0.8:
                code = _TOO_LARGE
                self._limits.refuse(len(flying[0].data), self._now)
            disposition = classify(code, -1)
            refusal = Refusal(disposition, errors.KafkaError("no"), {}, None)
            state.failures.on_error(flying[0], refusal, self._now, effects)
        else:
            answer = PartitionAnswer("t", None, state.partition, 0, -1)
            state.acknowledgements.on_ack(flying[0], answer, self._now, current=True, out=effects)
            part.open = [each for each in part.open if each[0] is not flying[0]]
        return None

    def _abandon(self) -> str | None:
        """End the records of a partition that has no batches."""
        part = self._dice.choice(self._parts)
        if part.open:
            return None
        part.state.endings.abandon(errors.KafkaConnectionError("gone"), self._bench.effects)
        part.take(len(part.rows))
        return None

    def _some(self) -> list[Part]:
        """Return one of the partitions, or all, in any order."""
        return self._dice.sample(self._parts, self._dice.choice((1, 4, 4)))

"""The drill of divided batches: the parts of one that was refused for its size, and their bytes.

A part gets its bytes when it is sent; a large one is compressed in a thread before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Final

from aioidem._config import CompressionType, ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import records_of
from aioidem._engine.sealing import Sealer
from aioidem._engine.steps import Compress
from aioidem._records import BATCH_OVERHEAD, BatchBody, Codec, add_header, build_body

from .comparing import differs, unequal
from .queue_rows import Caller, Row, ordinals
from .sealed_limits import division

__all__ = ["drill_divided", "stamped", "wrong_parts"]

_STEPS: Final = 12


def stamped(
    body: BatchBody, identity: ProducerIdentity | None, base: int, config: ProducerConfig
) -> bytes:
    """Return the bytes of a batch.

    Args:
        body: Its records.
        identity: The producer id and epoch; None if the producer is not idempotent.
        base: The sequence of the first record, of which 31 bits are on the wire.
        config: The producer's options.
    """
    return add_header(
        body,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.epoch,
        base_sequence=-1 if identity is None else base % (1 << 31),
        transactional=config.transactional_id is not None,
    )


def wrong_parts(
    parts: Sequence[Batch],
    batch: Batch,
    most: int,
    config: ProducerConfig,
    *,
    begun: bool = False,
) -> str | None:
    """Return what is wrong with the parts of a batch.

    Args:
        parts: The parts.
        batch: The batch that was divided.
        most: The most bytes that the leader accepts.
        config: The producer's options.
        begun: Whether the first part may have its bytes already. The others have none yet.
    """
    records = list(batch.records)
    counts = division(
        [record.size for record in records],
        config.batch_size,
        most,
        compresses=config.compression_type != "none",
    )
    if [part.count for part in parts] != counts:
        return differs("records of each part", [part.count for part in parts], counts)
    begins = [sum(counts[:n]) for n in range(len(counts))]
    chosen = [records[at : at + count] for at, count in zip(begins, counts, strict=True)]
    return unequal(
        {
            "records": ([ordinals(part.records) for part in parts], list(map(ordinals, chosen))),
            "bases": ([part.base for part in parts], [batch.base + at for at in begins]),
            "ordinals": (
                [part.ordinal for part in parts],
                [batch.ordinal + number for number in range(len(counts))],
            ),
            "parts have bytes before they are sent": (
                any(part.data for part in parts[begun:]),
                False,
            ),
            **{f"part {n}": (_facts(part), _due(batch, chosen[n])) for n, part in enumerate(parts)},
        }
    )


def _facts(part: Batch) -> tuple[object, ...]:
    """Return the identity, deadline and latest timestamp of a batch."""
    return part.identity, part.deadline, part.max_timestamp_ms


def _due(whole: Batch, records: Sequence[PendingRecord]) -> tuple[object, ...]:
    """Return the same, as it follows from the records of a part."""
    latest = max(record.timestamp_ms for record in records)
    return whole.identity, records[0].deadline, latest


@cache
def _config(
    batch_size: int, codec: CompressionType, transactional_id: str | None
) -> ProducerConfig:
    return ProducerConfig.build(
        "b:1",
        batch_size=batch_size,
        compression_type=codec,
        compression_level=2 if codec == "gzip" else None,
        transactional_id=transactional_id,
    )


def drill_divided(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the parts of a divided batch."""
    config = _config(
        dice.choice((100, 400, 4000)), dice.choice(("none", "gzip")), dice.choice((None, "x"))
    )
    rows: list[Row] = []
    items: list[PendingRecord] = []
    caller = Caller(dice)
    while len(rows) < 2:
        for item, its in caller.call(float(len(rows))):
            items.append(item)
            rows += its
    identity = dice.choice((None, ProducerIdentity(77, 3)))
    batch = Batch(
        ordinal=dice.randrange(3),
        records=records_of(items),
        data=b"refused",
        identity=identity,
        base=dice.choice((0, 9, (1 << 31) - 1)),
        deadline=50.0,
        max_timestamp_ms=max(row.record.timestamp_ms for row in rows),
    )
    drill = _PartsDrill(config, batch, dice)
    yield from drill.divide()
    for _ in range(_STEPS):
        action = dice.choice((drill.build, drill.build, drill.compressed, drill.without))
        wrong = action()
        if wrong is not None:
            yield f"{wrong} after {action.__name__}"
            return


class _PartsDrill:
    """The parts of a batch, which are built one after the other."""

    def __init__(self, config: ProducerConfig, batch: Batch, dice: Random) -> None:
        self._config = config
        self._dice = dice
        self._batch = batch
        self._codec = Codec.from_name(config.compression_type)
        self._sealer = Sealer(config)
        self._drafts = self._sealer.drafts
        self._drafts.at_once = 1
        self._state = PartitionState(
            "t", 0, None, idempotent=True, retry=Backoff(0.1, 1.0, dice.random), pause=30.0
        )
        self._unbuilt: list[Batch] = []
        # The part that is being compressed, in which step; the parts that have been compressed.
        self._compressing: tuple[Batch, Compress] | None = None
        self._ready: list[Batch] = []

    def divide(self) -> Iterator[str]:
        """Divide the batch, and yield what is wrong with the parts."""
        dice, sizes = self._dice, [record.size for record in self._batch.records]
        just = BATCH_OVERHEAD + sum(sizes[: dice.randrange(1, len(sizes))]) - dice.choice((0, 1))
        most = dice.choice((100, 400, 3000, just, just))
        self._unbuilt = self._sealer.split(self._state, self._batch, most)
        wrong = wrong_parts(self._unbuilt, self._batch, most, self._config)
        if wrong is not None:
            yield wrong
        if self._codec is not Codec.NONE:
            sizes = [sum(record.size for record in part.records) for part in self._unbuilt]
            self._drafts.quick = dice.choice((60, 300, *sizes))

    def build(self) -> str | None:
        """Build a part that is to be sent, or begin to compress it."""
        if not self._unbuilt:
            return None
        part = self._dice.choice(self._unbuilt)
        size = sum(record.size for record in part.records)
        quick = self._codec is Codec.NONE or size <= self._drafts.quick
        done = part in self._ready
        built = self._sealer.build(self._state, part)
        if built is not (quick or done):
            return differs(f"a part of {size} bytes has its bytes at once", built, quick or done)
        if not built:
            return self._begun(part)
        self._unbuilt.remove(part)
        body = build_body(list(part.records), self._codec, self._config.compression_level)
        data = stamped(body, part.identity, part.base, self._config)
        pairs: dict[str, tuple[object, object]] = {
            "data": (part.data, data),
            "compression": (part.compression, body.compression),
            "draft": (part.draft, None),
            "steps": (self._drafts.take_steps(), []),
        }
        return unequal(pairs)

    def _begun(self, part: Batch) -> str | None:
        """Return what is wrong if the compression of a part should have begun, or goes on."""
        steps = self._drafts.take_steps()
        if self._compressing is not None:
            return differs("compressions that begin", len(steps), 0)
        if len(steps) != 1:
            return differs("compressions that begin", len(steps), 1)
        (step,) = steps
        self._compressing = part, step
        pairs: dict[str, tuple[object, object]] = {
            "records": (ordinals(step.records), ordinals(part.records)),
            "codec": ((step.codec, step.level), (self._codec, self._config.compression_level)),
        }
        return unequal(pairs)

    def compressed(self) -> str | None:
        """Take the result of a compression."""
        if self._compressing is None:
            return None
        (part, step), self._compressing = self._compressing, None
        ended = self._drafts.end(step.token)
        if ended is None or ended[:2] != (self._state, part) or ended[2] is not part.draft:
            return f"what was compressed: told {ended}, expected {part}"
        ended[2].body = build_body(step.records, step.codec, step.level)
        self._ready.append(part)
        return None

    def without(self) -> str | None:
        """Leave out some records, and return what is wrong with the batch that has the others."""
        records = list(self._batch.records)
        culprits = {n for n in range(len(records)) if self._dice.random() < 0.5}
        if self._dice.random() < 0.1:
            culprits = set(range(len(records)))
        rebuilt = self._sealer.without(self._batch, culprits)
        left = [record for n, record in enumerate(records) if n not in culprits]
        if rebuilt is None or not left:
            if rebuilt is None and not left:
                return None
            return f"batch without {culprits}: told {rebuilt}, expected records {ordinals(left)}"
        pairs: dict[str, tuple[object, object]] = {
            "records": (ordinals(rebuilt.records), ordinals(left)),
            "bytes": (rebuilt.data, b""),
            "identity, deadline, latest time": (_facts(rebuilt), _due(self._batch, left)),
            "base, ordinal, count": (
                (rebuilt.base, rebuilt.ordinal, rebuilt.count),
                (self._batch.base, self._batch.ordinal, len(left)),
            ),
        }
        return unequal(pairs)

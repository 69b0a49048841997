"""EngineState: the state of an engine as plain data, without its records' contents.

A replay that does not begin with a new engine begins with such a state. It has everything that the
engine's decisions depend on: partitions, batches in flight, connections, requests, identity,
transactions and the cluster. It leaves out, or replaces:

- records: a batch has the number, sizes and times of its records; queues are empty, because the
  events that follow say which records leave them;
- outcomes on their way to callers, callers that wait for room, lines of the log, `OperatorWatch`,
  the numbers of metrics;
- the configuration, which a file has once, and functions of the user.

Rejected: a pickle of the engine, which is made ten times as fast, but whoever reads a file with a
pickle lets the file call functions. A file of plain data is read without calling anything that it
names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore
from aioidem._engine.batch import Batch
from aioidem._engine.draft import Draft
from aioidem._engine.drafts import Drafts
from aioidem._engine.memory import ByteBudget
from aioidem._engine.meters import Meters
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import PartitionState
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import RecordBlock, items_of
from aioidem._engine.sealing import Sealer
from aioidem._engine.topics import TopicState
from aioidem._engine.unassigned import UnassignedRecords
from aioidem._flight.plain import Reader, Writer, attributes_of
from aioidem._flight.stand_ins import Load, stand_ins
from aioidem._records import BATCH_OVERHEAD, BatchBody, Codec, add_header
from aioidem.errors import FlightRecordError
from aioidem.partitioner import DefaultPartitioner

__all__ = ["EngineState"]


class EngineState:
    """The state of an engine as plain data.

    Args:
        root: the reference to the engine in the table.
        things: the table of objects.
    """

    __slots__ = ("root", "things")

    def __init__(self, root: Any, things: list[Any]) -> None:
        self.root = root
        self.things = things

    @classmethod
    def of(cls, core: ProducerCore, draws: object) -> Self:
        """Describe an engine that is not in the middle of a call.

        Args:
            core: the engine.
            draws: the object that draws its random numbers.
        """
        named = {id(core.config): "config", id(core.watch): "watch", id(draws): "random"}
        named[id(core.meters)] = "meters"
        writer = Writer(_REPLACED, named, table=True)
        root = writer.value(core)
        return cls(root, writer.finish())

    def restore(self, config: ProducerConfig, random: Callable[[], float]) -> ProducerCore:
        """Make an engine that is in this state.

        Raises:
            FlightRecordError: the state is damaged, or this version of aioidem has other objects.
        """
        meters = Meters()
        meters.delivery_timeout = config.delivery_timeout
        named = {
            "config": config,
            "meters": meters,
            "watch": None,
            "random": random,
            "nothing": _nothing,
        }
        reader = Reader(named, self.things)
        try:
            core = reader.value(self.root)
            reader.finish()
            _revive(reader.made)
        except FlightRecordError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file may bring any of them about
            raise FlightRecordError(f"the flight record is damaged: {error!r:.200}") from None
        if not isinstance(core, ProducerCore):
            raise FlightRecordError("the flight record is damaged: its state is no engine")
        return core


def _nothing(*_: object) -> None:
    """Do nothing, in the place of a function of the user or of a waiting caller."""


def _attributes(thing: Any, **others: Any) -> dict[str, Any]:
    kind: Any = type(thing)
    names, loose = attributes_of(kind)
    values = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    if loose:
        values.update(vars(thing))
    return values | others


def _load_of(records: Sequence[PendingRecord], deadline: float, stamp_ms: int) -> Load:
    items = items_of(records)
    first, last = items[0], items[-1]
    size = sum(item.size for item in items)
    return Load(
        len(records),
        size,
        first.queued_at,
        last.queued_at,
        deadline,
        first.ordinal,
        last.ordinal + last.count - 1,
        stamp_ms,
        0,
    )


def _batch(batch: Batch) -> dict[str, Any]:
    load = _load_of(batch.records, batch.deadline, batch.max_timestamp_ms)
    return _attributes(batch, records=load)


def _draft(draft: Draft) -> dict[str, Any]:
    first = draft.items[0]
    load = _load_of(draft.records, first.deadline, first.timestamp_ms)
    return _attributes(draft, records=load, items=())


def _record(record: PendingRecord) -> dict[str, Any]:
    names = ("deadline", "generation", "ordinal", "partition", "queued_at", "size", "timestamp_ms")
    values = {name: getattr(record, name) for name in names}
    return values | {"group": None, "headers": (), "key": None, "value": None}


def _queue(queue: PartitionQueue) -> dict[str, Any]:
    return _attributes(queue, records=deque(), bytes=0)


def _unassigned(waiting: UnassignedRecords) -> dict[str, Any]:
    return _attributes(waiting, _waiting=deque(), due=deque())


def _topic(topic: TopicState) -> dict[str, Any]:
    # Records without a partition have metadata requested, as callers that wait for it do.
    waits = topic.waiting + topic.unassigned.waits
    return _attributes(topic, waiting=int(waits))


def _outcomes(outcomes: Outcomes) -> dict[str, Any]:
    return _attributes(
        outcomes, _settled=[], _flush_counts=[], _events=deque(maxlen=1000), on_failure=None
    )


def _budget(budget: ByteBudget) -> dict[str, Any]:
    return _attributes(budget, _waiters=deque(), _granted=None, waiting=0)


def _sealer(sealer: Sealer) -> dict[str, Any]:
    return _attributes(sealer, partitioner=DefaultPartitioner(), encode=None)


def _drafts(drafts: Drafts) -> dict[str, Any]:
    return _attributes(drafts, steps=[])


_REPLACED: dict[type, Callable[[Any], dict[str, Any]]] = {
    PendingRecord: _record,
    RecordBlock: _record,
    Batch: _batch,
    Draft: _draft,
    PartitionQueue: _queue,
    UnassignedRecords: _unassigned,
    TopicState: _topic,
    Outcomes: _outcomes,
    ByteBudget: _budget,
    Sealer: _sealer,
    Drafts: _drafts,
}


def _revive(made: Iterable[Any]) -> None:
    """Put stand-ins into the batches and drafts of a state."""
    owners: dict[int, tuple[int, PartitionQueue | None]] = {}
    drafts: list[Draft] = []
    batches: list[Batch] = []
    for thing in made:
        if isinstance(thing, PartitionState) and thing.queue.draft is not None:
            owners[id(thing.queue.draft)] = thing.partition, thing.queue
        elif isinstance(thing, Draft):
            drafts.append(thing)
        elif isinstance(thing, Batch):
            batches.append(thing)
    for batch in batches:
        batch.records = stand_ins(_checked(batch.records), 0)
        batch.data = _bytes_of(batch)
    for draft in drafts:
        partition, queue = owners.get(id(draft), (0, None))
        draft.records = draft.items = stand_ins(_checked(draft.records), partition)
        if queue is not None:
            queue.records.extend(draft.items)
            queue.bytes += draft.size


def _bytes_of(batch: Batch) -> bytes:
    """Return a batch's bytes, of which only the header and the length are right."""
    if len(batch.data) < BATCH_OVERHEAD:
        return batch.data
    stamp, size = batch.max_timestamp_ms, len(batch.data)
    body = BatchBody(bytes(size - BATCH_OVERHEAD), Codec.NONE, batch.count, stamp, stamp, size)
    if batch.identity is None:
        return add_header(body)
    who = batch.identity
    return add_header(
        body,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=batch.wire_base,
    )


def _checked(load: object) -> Load:
    if not isinstance(load, Load):
        raise FlightRecordError("the flight record is damaged: a batch has no records")
    return load

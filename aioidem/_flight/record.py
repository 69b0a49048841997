"""FlightRecord: a file of a flight recorder that was read and checked.

Whatever a file has, reading it ends with a `FlightRecord` or a `FlightRecordError`; nothing that it
names is imported or called, and it is not expanded to more than `MOST_EXPANDED` bytes.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, get_args

from aioidem._config import OPTIONS, ProducerConfig
from aioidem._engine.steps import Step
from aioidem._flight.dump import FORMAT, VERSION
from aioidem._flight.plain import Reader, tidy
from aioidem._flight.stand_ins import MOST_RECORDS, Load
from aioidem._flight.state import EngineState
from aioidem._protocol.metadata import MetadataUpdate, TopicUpdate
from aioidem.errors import FlightRecordError, KafkaError
from aioidem.incident import Incident, incidents_from_json

__all__ = ["FlightRecord", "SentBatch"]

MOST_EXPANDED: Final = 1 << 28
"""The most bytes of a file after decompression."""

_GZIP = 31  # zlib's window bits for the gzip format


class SentBatch(NamedTuple):
    """A batch that a poll sent."""

    partition: int
    """The number of the partition in `FlightRecord.partitions`."""
    link_id: int
    """The connection."""
    identity: tuple[int, int] | None
    """Producer id and epoch."""
    base: int
    """The sequence number of its first record, not yet modulo 2^31."""
    records: int
    attempts: int
    load: Load | None
    """Its records; None if nothing is known of them."""


class FlightRecord(NamedTuple):
    """A flight record that was read."""

    head: Mapping[str, Any]
    config: ProducerConfig
    partitions: tuple[tuple[str, int], ...]
    """The topics and partitions that were written to."""
    state: EngineState | None
    """The engine before the first event; None for a new engine."""
    asked: Mapping[int, Any]
    """By token: requests that were asked before the first event; no Produce requests."""
    events: tuple[tuple[Any, ...], ...]
    """What happened: the kind, then the values. A poll has its steps, and `SentBatch` objects."""
    queued: tuple[tuple[int, Load], ...]
    """By partition: the records that were still waiting in the queues at the end."""
    end: Mapping[str, Any]

    @property
    def incidents(self) -> list[Incident]:
        """What identifies the batches that ended UNKNOWN, for `aioidem resolve`.

        Raises:
            FlightRecordError: the file is damaged.
        """
        try:
            return incidents_from_json(json.dumps(self.head.get("incidents", [])))
        except ValueError as error:
            raise _damaged(str(error)) from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises:
            FlightRecordError: it cannot be read, is no flight record, or is damaged.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise FlightRecordError(f"{path}: {error.strerror or error}") from error
        return cls.decode(data)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the content of a file.

        Raises:
            FlightRecordError: it is no flight record, or is damaged.
        """
        try:
            return cls._of(list(_lines(data)))
        except FlightRecordError:
            raise
        except (KafkaError, RecursionError, MemoryError, *_WRONG) as error:
            raise _damaged(f"{type(error).__name__}: {tidy(str(error))[:200]}") from None

    @classmethod
    def _of(cls, lines: list[Any]) -> Self:
        if len(lines) < 3 or not isinstance(lines[0], dict) or lines[0].get("format") != FORMAT:
            raise FlightRecordError("this is no flight record of aioidem")
        head, state, *events, end = lines
        if head["version"] != VERSION:
            raise FlightRecordError(
                f"the flight record has version {head['version']!r:.20} of the format; this "
                f"aioidem reads version {VERSION}. aioidem {head.get('aioidem')!r:.40} wrote it"
            )
        if not isinstance(end, dict) or end.get("events") != len(events):
            raise FlightRecordError("the flight record is incomplete: it ends too early")
        partitions = tuple((str(topic), int(index)) for topic, index in head["partitions"])
        config = _config(head["options"])
        topics: list[TopicUpdate] = []
        read = tuple(_event(each, len(partitions), topics) for each in events)
        queued = tuple(_queued(each, len(partitions)) for each in end["end"]["queues"])
        engine = None if state is None else EngineState(*state)
        if engine is not None and not isinstance(engine.things, list):
            raise _damaged("its state is no table")
        asked = {step.token: step for step in Reader().value(head["asked"])}
        return cls(head, config, partitions, engine, asked, read, queued, end["end"])


_WRONG = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError)


def _damaged(why: str) -> FlightRecordError:
    return FlightRecordError(f"the flight record is damaged: {why}")


def _lines(data: bytes) -> Iterator[Any]:
    if data[:2] != b"\x1f\x8b":
        raise FlightRecordError("this is no flight record of aioidem: it is not compressed")
    inflater = zlib.decompressobj(_GZIP)
    try:
        text = inflater.decompress(data, MOST_EXPANDED)
    except zlib.error as error:
        raise _damaged(str(error)) from None
    if inflater.unconsumed_tail:
        raise _damaged(f"it has more than {MOST_EXPANDED} bytes")
    if not inflater.eof:
        raise FlightRecordError("the flight record is incomplete: it ends too early")
    for line in text.splitlines():
        yield json.loads(line)


def _config(options: Mapping[str, Any]) -> ProducerConfig:
    reader = Reader()
    values = {name: reader.value(each) for name, each in options.items() if name in OPTIONS}
    # How a connection is secured is of no matter to the engine, and has no credentials here.
    for name in ("sasl_mechanism", "security_protocol"):
        values.pop(name, None)
    return ProducerConfig(**values)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or math.isnan(value):
        raise _damaged(f"{value!r:.40} is no number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 62:
        raise _damaged(f"{value!r:.40} is no whole number")
    return value


def _error(value: Any) -> KafkaError:
    if not isinstance(value, KafkaError):
        raise _damaged(f"{value!r:.40} is no error of a producer")
    return value


def _known(value: Any, partitions: int) -> int:
    if not 0 <= _whole(value) < partitions:
        raise _damaged("it has more partitions, or topics, than it names")
    return int(value)


def _load(
    count: Any, size: Any, times: tuple[Any, ...], ordinals: tuple[Any, Any], more: tuple[Any, ...]
) -> Load:
    if not 0 < _whole(count) <= MOST_RECORDS:
        raise _damaged(f"a batch of {count} records")
    queued_at, filled_at, deadline = map(_number, times)
    ordinal, last = map(_whole, ordinals)
    stamp_ms, encoded, lead = map(_whole, more)
    size = _whole(size)
    return Load(count, size, queued_at, filled_at, deadline, ordinal, last, stamp_ms, encoded, lead)


def _queued(plain: Any, partitions: int) -> tuple[int, Load]:
    where, count, size, *times, ordinal, last = plain
    load = _load(count, size, tuple(times), (ordinal, last), (0, 0, 0))
    return _known(where, partitions), load


def _batch(plain: Any, partitions: int) -> SentBatch:
    where, link_id, who, base, count, attempts, deadline, stamp_ms, *records = plain
    if len(records) == 3:
        queued_at, ordinal, size = records
        filled_at, last, encoded, lead = queued_at, ordinal, 0, 0
    else:
        encoded, queued_at, ordinal, filled_at, last, items, size, lead = records
        last = _whole(last) + _whole(items) - 1
    times, ordinals = (queued_at, filled_at, deadline), (ordinal, last)
    load = _load(count, size, times, ordinals, (stamp_ms, encoded, lead))
    identity = None if who is None else (_whole(who[0]), _whole(who[1]))
    number, link_id = _known(where, partitions), _whole(link_id)
    base, count, attempts = map(_whole, (base, count, attempts))
    return SentBatch(number, link_id, identity, base, count, attempts, load)


def _step(plain: Any, reader: Reader) -> Any:
    match plain:
        case ["C", token, count, size, queued_at, ordinal]:
            numbers = map(_whole, (token, count, size))
            return ("C", *numbers, _number(queued_at), _whole(ordinal))
    step = reader.value(plain)
    if not isinstance(step, tuple) or not isinstance(step, get_args(Step)):
        raise _damaged("a step is no step")
    return step


_KINDS: Final[Mapping[str, tuple[Callable[[Any], Any] | None, ...]]] = {
    # None: any value. The others check it.
    "draw": (_number,),
    "crash": (_number, None, str),
    "answer": (_whole, None, _number),
    "compressed": (_whole, None),
    "unsupported": (None, None, _number),
    "open": (_whole, _whole, _number, _whole),
    "lost": (_whole, None, _number, None),
    "progress": (_whole, _number),
    "undecodable": (_whole, _whole, None, _number),
    "unanswered": (_whole, _whole, _number),
    "credentials": (),
    "fatal": (_error,),
    "close": (_number,),
    "flush": (_number,),
    "transaction": (str, None, _whole),
    "failed": (str, _whole, str, str, _whole, *(_number,) * 3, *(_whole,) * 3),
}


def _told(answer: MetadataUpdate, topics: list[TopicUpdate]) -> MetadataUpdate:
    """Return an answer with the topics that numbers stand for, and note those that are new."""
    told: list[TopicUpdate] = []
    written: Sequence[Any] = answer.topics
    for each in written:
        if isinstance(each, TopicUpdate):
            topics.append(each)
            told.append(each)
        else:
            told.append(topics[_known(each, len(topics))])
    return answer._replace(topics=tuple(told))


def _event(plain: Any, partitions: int, topics: list[TopicUpdate]) -> tuple[Any, ...]:
    kind, *values = plain
    reader = Reader()
    if kind == "poll":
        now, wall_ms, *decided = values
        wall = None if wall_ms is None else _number(wall_ms)
        if not decided:
            return ("poll", _number(now), wall, (), ())
        steps = tuple(_step(each, reader) for each in decided[0])
        batches = tuple(_batch(each, partitions) for each in decided[1])
        return ("poll", _number(now), wall, steps, batches)
    if kind == "transaction" and len(values) == 2:
        values.append(0)  # written before files said which records were queued before the call
    checks = _KINDS.get(kind) if isinstance(kind, str) else None
    if checks is None or len(checks) != len(values):
        raise _damaged(f"an event of the kind {kind!r:.40}")
    read = [reader.value(each) for each in values]
    if kind == "answer" and isinstance(read[1], MetadataUpdate):
        read[1] = _told(read[1], topics)
    pairs = zip(checks, read, strict=True)
    return (kind, *(each if check is None else check(each) for check, each in pairs))

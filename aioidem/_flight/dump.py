"""Dump: what a recorder had at one moment, and the file that is made of it.

A file is gzip-compressed JSON lines, UTF-8:

1. the head: format, version of the format, versions of aioidem and Python, the reason, the options;
2. the state of the engine before the first event; null for a new engine;
3. one line for each event: its kind, then its values (`_LINES` has the order of each kind); what
   metadata says of a topic is written once, and then a number stands for it (`_Topics`);
4. the end: what waits in the queues, the number of events, and the records' outcomes so far.

`Dump` is made at once, on the event loop; it only refers to the events. `Dump.write`, which takes
some 50 us for each event, may run in a thread: nothing that it reads changes any more.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from aioidem._build import __version__
from aioidem._config import OPTIONS, ProducerConfig
from aioidem._engine import ProducerCore
from aioidem._engine.partition import PartitionState
from aioidem._flight.plain import Writer
from aioidem._flight.recorder import Event, FlightRecorder, Segment, without_log
from aioidem._protocol.metadata import MetadataUpdate
from aioidem.errors import FlightRecordError

__all__ = ["FORMAT", "VERSION", "Dump", "file_name", "shown_options"]

FORMAT: Final = "aioidem-flight-record"
VERSION: Final = 2

_SHOWN: Final = frozenset(
    name for name in OPTIONS if not name.startswith(("sasl_", "ssl_", "flight_", "partitioner"))
) | {"sasl_mechanism"}
"""The options that a file has: no credential, path or function of the user is among them."""


def shown_options(config: ProducerConfig) -> dict[str, Any]:
    """Return the options that a flight record has, without secrets, by name."""
    return {name: getattr(config, name) for name in sorted(_SHOWN)}


class Dump:
    """What a recorder had at one moment.

    Args:
        recorder: the recorder; its engine is not in the middle of a call.
        reason: why the dump is made, in words.
        wall: seconds since the epoch.
    """

    def __init__(self, recorder: FlightRecorder, reason: str, wall: float) -> None:
        self.reason = reason
        self.wall = wall
        self._config = recorder.core.config
        self._segments: list[tuple[Segment, list[Event]]] = [
            (each, list(map(without_log, each.events)))
            for each in (recorder.before, recorder.latest)
            if each
        ]
        self._failure = recorder.failure
        self._limits = recorder.limits
        self._incidents = list(dict.fromkeys(recorder.incidents))
        self._end = _end_of(recorder.core)

    @property
    def events(self) -> int:
        """The number of events."""
        return sum(len(events) for _, events in self._segments)

    def save(self, path: str | os.PathLike[str], content: bytes | None = None) -> None:
        """Write the file, which only its owner may read.

        Args:
            path: where to.
            content: the result of `encode`; None makes it.

        Raises:
            FlightRecordError: the file cannot be written.
        """
        target = Path(path)
        try:
            part = target.with_name(f"{target.name}.part")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.encode() if content is None else content)
            part.replace(target)
        except OSError as error:
            raise FlightRecordError(
                f"the flight record cannot be written to {target}: {error.strerror}"
            ) from error
        except ValueError as error:  # it is no file's name: ".", or it has a NUL
            raise FlightRecordError(
                f"the flight record cannot be written to {os.fspath(path)!r}: {error}"
            ) from error

    def encode(self) -> bytes:
        """Return the content of the file."""
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as packed:
            for line in self._lines():
                packed.write(json.dumps(line, separators=(",", ":")).encode())
                packed.write(b"\n")
        return buffer.getvalue()

    def _lines(self) -> Iterator[Any]:
        segments = self._segments
        # A replay begins with the oldest segment whose state is known.
        while len(segments) > 1 and not segments[0][0].whole:
            segments = segments[1:]
        first = segments[0][0]
        partitions, topics = _Partitions(), _Topics()
        events = [each for _, some in segments for each in some]
        lines = [list(_plain_event(each, partitions, topics)) for each in events]
        end = _plain_end(self._end, partitions)
        writer = Writer()
        # In the state that a replay begins with, requests were asked whose answers follow.
        yield {
            "format": FORMAT,
            "version": VERSION,
            "aioidem": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
            "reason": self.reason,
            "wall": self.wall,
            "whole": first.whole,
            "from_start": first.whole and first.state is None,
            "failure": None if self._failure is None else type(self._failure).__name__,
            "limits": self._limits,
            "incidents": [json.loads(each.to_json()) for each in self._incidents],
            "asked": writer.value(list(first.asked.values())),
            "partitions": partitions.names,
            "options": {
                name: writer.value(value) for name, value in shown_options(self._config).items()
            },
        }
        yield None if first.state is None else [first.state.root, first.state.things]
        yield from lines
        yield {"end": end, "events": len(lines)}


class _Partitions:
    """Numbers for the partitions that events are about."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, state: PartitionState) -> int:
        """Return a partition's number."""
        where = state.topic, state.partition
        number = self._numbers.get(where)
        if number is None:
            number = self._numbers[where] = len(self.names)
            self.names.append(where)
        return number


class _Topics:
    """Numbers for what metadata has said of topics, in the order in which it is first written.

    A recorder has the same object in many answers, as long as nothing changes, and it may have
    thousands of partitions.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def numbered(self, answer: MetadataUpdate) -> MetadataUpdate:
        """Return an answer with a number in the place of each topic that was written before."""
        numbers = self._numbers
        topics: list[Any] = []
        for each in answer.topics:
            topics.append(numbers.get(id(each), each))
            numbers.setdefault(id(each), len(numbers))
        return answer._replace(topics=tuple(topics))


def _plain_event(event: Event, partitions: _Partitions, topics: _Topics) -> Iterator[Any]:
    kind, *values = event
    writer = Writer()
    yield kind
    if kind == "answer" and type(values[1]) is MetadataUpdate:
        values[1] = topics.numbered(values[1])
    if kind != "poll":
        yield from map(writer.value, values)
        return
    now, wall_ms, *decided = values
    yield now
    yield wall_ms
    if not decided:
        return
    steps: list[Any] = []
    batches: list[Any] = []
    for each in decided[0]:
        if type(each) is not tuple:
            steps.append(writer.value(each))
        elif each[0] == "C":
            steps.append(list(each))
        else:
            batches.append(_plain_batch(each, partitions))
    yield steps
    yield batches


def _plain_batch(fact: tuple[Any, ...], partitions: _Partitions) -> list[Any]:
    state, (link_id, identity, *numbers), first, *records = fact
    who = None if identity is None else [identity.producer_id, identity.epoch]
    more = first if not records else [first, *records]
    return [partitions.number(state), link_id, who, *numbers, *more]


def _end_of(core: ProducerCore) -> dict[str, Any]:
    """Return what the file's last line is made of."""
    queues = []
    states = list(core.partitions.values())
    for state in states:
        queue = state.queue
        if queue.records:
            first, last = queue.records[0], queue.records[-1]
            queues.append(
                (
                    state,
                    (queue.count, queue.bytes, first.queued_at, last.queued_at),
                    (first.deadline, first.ordinal),
                    last.ordinal + last.count - 1,
                )
            )
    counters = core.counters
    return {
        "queues": queues,
        "acked": counters.records_acked,
        "not_written": counters.records_not_written,
        "unknown": counters.records_unknown,
        "data_losses": counters.data_loss_events,
        "unsettled": core.unsettled,
    }


def _plain_end(end: Mapping[str, Any], partitions: _Partitions) -> dict[str, Any]:
    queues = [
        [partitions.number(state), *load, *first, last]
        for state, load, first, last in end["queues"]
    ]
    return {**end, "queues": queues}


def file_name(client_id: str, wall: float, number: int) -> str:
    """Return the name of a file for a dump."""
    safe = "".join(each if each.isalnum() or each in "-_." else "_" for each in client_id)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
    return f"{safe[:80]}-{stamp}-{os.getpid()}-{number}.flight.gz"

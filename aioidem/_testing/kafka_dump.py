"""Parse what Kafka's own tool DumpLogSegments prints about a partition's log.

The tool is a reader that shares no code with aioidem: only its printed text is parsed here.

Invariants
    Every line must be a batch, a record, empty, a file name or a starting offset. Any other line
    raises an error, so that a version of the tool that prints something else is noticed.
    Payloads are text, as the tool prints them. The tool does not preserve bytes that are not UTF-8,
    so tests send text (hexadecimal digits, for example).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from aioidem.errors import KafkaError

__all__ = ["DumpedBatch", "DumpedRecord", "LogDumpError", "parse_dump", "split_dumps"]

_BATCH: Final = re.compile(
    r"baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) "
    r"baseSequence: (?P<sequence>-?\d+) .*?producerId: (?P<pid>-?\d+) "
    r"producerEpoch: (?P<epoch>-?\d+) .*?isControl: (?P<control>\w+) .*?"
    r"compresscodec: (?P<codec>\w+) .*?isvalid: (?P<valid>\w+)"
)
_RECORD: Final = re.compile(
    r"\| offset: (?P<offset>\d+) .*?headerKeys: \[(?P<headers>.*?)\]"
    r"(?: key: (?P<key>.*?))?(?: payload: (?P<payload>.*))?"
    r"(?: endTxnMarker: (?P<marker>\w+) coordinatorEpoch: -?\d+)?"
)
_CHATTER: Final = re.compile(r"\s*$|Dumping |(Log )?[Ss]tarting offset: ")


class LogDumpError(KafkaError):
    """DumpLogSegments printed a line of an unknown kind, or found the log to be corrupt."""


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record of a dumped batch; ``key`` and ``payload`` are None if the tool printed none.

    ``marker`` is COMMIT or ABORT for a record that ends a transaction.
    """

    offset: int
    key: str | None
    payload: str | None
    header_keys: tuple[str, ...]
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One record batch of a dumped log: a batch of data or a control batch."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    codec: str
    control: bool
    records: tuple[DumpedRecord, ...]


def parse_dump(lines: Iterable[str]) -> tuple[DumpedBatch, ...]:
    """Parse the output of ``DumpLogSegments --print-data-log``.

    Raises:
        LogDumpError: A line is unknown, or a batch's checksum is wrong.
    """
    batches: list[tuple[re.Match[str], list[DumpedRecord]]] = []
    for line in lines:
        batch = _BATCH.match(line)
        record = _RECORD.fullmatch(line)
        if batch is not None:
            if batch["valid"] != "true":
                raise LogDumpError(f"DumpLogSegments found a corrupt batch: {line}")
            batches.append((batch, []))
        elif record is not None and batches:
            batches[-1][1].append(_record(record))
        elif not _CHATTER.match(line):
            raise LogDumpError(f"DumpLogSegments printed a line of an unknown kind: {line!r}")
    return tuple(_batch(match, records) for match, records in batches)


def split_dumps(lines: Iterable[str]) -> Mapping[str, list[str]]:
    """Split the output of DumpLogSegments for several partitions: return the lines by directory.

    Raises:
        LogDumpError: The text does not begin with the name of a file.
    """
    dumps: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if line.startswith("Dumping "):
            current = dumps.setdefault(PurePath(line.removeprefix("Dumping ")).parent.name, [])
        elif current is None:
            raise LogDumpError(f"DumpLogSegments began with {line!r}, not with a file name")
        else:
            current.append(line)
    return dumps


def _record(match: re.Match[str]) -> DumpedRecord:
    keys = tuple(match["headers"].split(",")) if match["headers"] else ()
    return DumpedRecord(int(match["offset"]), match["key"], match["payload"], keys, match["marker"])


def _batch(match: re.Match[str], records: list[DumpedRecord]) -> DumpedBatch:
    return DumpedBatch(
        base_offset=int(match["base"]),
        last_offset=int(match["last"]),
        count=int(match["count"]),
        base_sequence=int(match["sequence"]),
        producer_id=int(match["pid"]),
        producer_epoch=int(match["epoch"]),
        codec=match["codec"],
        control=match["control"] == "true",
        records=tuple(records),
    )

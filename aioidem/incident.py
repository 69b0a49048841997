"""Incident: what identifies a batch that ended UNKNOWN, so that it can be looked for in the log.

An incident names the batch as the log names it (producer id, epoch, first sequence number), where
to begin to read, and how to recognise the batch's bytes. It has no keys, values or headers, and no
secrets, so it may be written to a file and sent to somebody else. `Producer.resolve` and `aioidem
resolve` read the log and say whether the batch is in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

__all__ = ["Acknowledged", "Incident", "incidents_from_json", "incidents_to_json"]

_LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "partition": (0, 2**31 - 1),
    "producer_id": (0, 2**63 - 1),
    "producer_epoch": (0, 2**15 - 1),
    "base_sequence": (0, 2**31 - 1),
    "last_sequence": (0, 2**31 - 1),
    "count": (1, 2**31 - 1),
    "index": (0, 2**31 - 1),
    "crc": (0, 2**32 - 1),
    "codec": (0, 7),
    "offset": (0, 2**63 - 1),
    "timestamp_ms": (-1, 2**63 - 1),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The last record of a partition that was acknowledged before a batch was sent.

    Attributes:
        offset: its offset.
        producer_id: the producer id of its batch.
        producer_epoch: the producer epoch of its batch.
        last_sequence: its sequence number, which is the last one of its batch.
    """

    offset: int
    producer_id: int
    producer_epoch: int
    last_sequence: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A batch that ended UNKNOWN; the attribute `incident` of its records' errors.

    Attributes:
        topic: the topic's name.
        partition: the partition's number.
        producer_id: the producer id that the batch has in the log.
        producer_epoch: the producer epoch.
        base_sequence: the sequence number of the first record.
        count: the number of records.
        timestamp_ms: the newest timestamp of the records, in milliseconds since the Unix epoch.
        topic_id: the topic's id when the batch was sent; None if the broker named none (before
            Kafka 2.8).
        after: the last record of the partition that was acknowledged before the batch was first
            sent; a copy of the batch can only be after it. None if there was none.
        crc: the batch's checksum (CRC-32C) as it was sent; None if it is not known.
        codec: the number of the batch's compression codec as it was sent; None if it is not known.
        renumbered: whether the batch was sent under another identity before, which happens only
            with ``in_doubt="resend"``.
        index: the place of one record in the batch, from 0, if the incident is that of one record's
            error; None if it is that of the whole batch.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    timestamp_ms: int
    topic_id: UUID | None = None
    after: Acknowledged | None = None
    crc: int | None = None
    codec: int | None = None
    renumbered: bool = False
    index: int | None = None

    @property
    def batch(self) -> Incident:
        """The incident of the whole batch: the same for each of its records."""
        return self if self.index is None else dataclasses.replace(self, index=None)

    def of_record(self, index: int) -> Incident:
        """Return the incident of one record of the batch.

        Args:
            index: the record's place in the batch, from 0.
        """
        return dataclasses.replace(self, index=index)

    def to_json(self) -> str:
        """Return the incident as one JSON object, which `from_json` and `aioidem resolve` read."""
        import json

        return json.dumps(_to_object(self))

    @classmethod
    def from_json(cls, text: str) -> Incident:
        """Read an incident from the JSON object that `to_json` returned.

        Raises:
            ValueError: The text is no such object; the message names the field.
        """
        found = incidents_from_json(text)
        if len(found) != 1:
            raise _wrong(f"{len(found)} incidents instead of one")
        return found[0]


def incidents_to_json(incidents: Iterable[Incident]) -> str:
    """Return incidents as a JSON array with a line for each."""
    return "[\n" + ",\n".join(each.to_json() for each in incidents) + "\n]\n"


def incidents_from_json(text: str) -> list[Incident]:
    """Read the incidents of a file: a JSON object for each, one after the other or in an array.

    Raises:
        ValueError: The text is not JSON, or an object in it is no incident; the message names the
            place or the field.
    """
    import json
    import re

    # The text is never copied: it may have many incidents.
    decoder, found, not_blank = json.JSONDecoder(), list[Any](), re.compile(r"\S")
    begin = not_blank.search(text)
    while begin is not None:
        try:
            value, end = decoder.raw_decode(text, begin.start())
        except (ValueError, RecursionError) as error:
            raise _wrong(f"incidents: no JSON at character {begin.start()}") from error
        begin = not_blank.search(text, end)
        found += value if isinstance(value, list) else [value]
    return [_from_object(value, number) for number, value in enumerate(found, 1)]


def _to_object(incident: Incident) -> dict[str, Any]:
    values = {
        name: value for name, value in dataclasses.asdict(incident).items() if value is not None
    }
    if incident.topic_id is not None:
        values["topic_id"] = str(incident.topic_id)
    return values


def _from_object(value: object, number: int) -> Incident:
    where = f"incident {number}"
    values = _fields(Incident, value, where)
    after = values.get("after")
    if after is not None:
        values["after"] = Acknowledged(**_fields(Acknowledged, after, f"{where}: after"))
    if values.get("topic_id") is not None:
        try:
            values["topic_id"] = UUID(values["topic_id"])
        except (ValueError, AttributeError, TypeError) as error:
            raise _wrong(f"{where}: topic_id is no UUID") from error
    if not isinstance(values["topic"], str):
        raise _wrong(f"{where}: topic is no text")
    if not isinstance(values.get("renumbered", False), bool):
        raise _wrong(f"{where}: renumbered is neither true nor false")
    if values.get("index") is not None and values["index"] >= values["count"]:
        raise _wrong(f"{where}: index is not below count")
    return Incident(**values)


def _fields(kind: type[Any], value: object, where: str) -> dict[str, Any]:
    """Return the fields of a JSON object, whose names and numbers are checked."""
    if not isinstance(value, dict):
        raise _wrong(f"{where}: no JSON object")
    known = {each.name: each for each in dataclasses.fields(kind)}
    for name in value:
        if name not in known:
            raise _wrong(f"{where}: there is no field {str(name)[:40]!r}")
    for name, field in known.items():
        needed = field.default is dataclasses.MISSING
        if needed and value.get(name) is None:
            raise _wrong(f"{where}: the field {name} is missing")
        if value.get(name) is not None and name in _LIMITS:
            _check_number(value[name], name, where)
    return value


def _check_number(value: object, name: str, where: str) -> None:
    least, most = _LIMITS[name]
    if type(value) is not int or not least <= value <= most:
        raise _wrong(f"{where}: {name} is no number from {least} to {most}")


def _wrong(message: str) -> ValueError:
    return ValueError(message)

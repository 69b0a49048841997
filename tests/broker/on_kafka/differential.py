"""Send the same requests to Apache Kafka and to the embedded cluster, and compare the answers.

A `Step` is a request. What differs between two clusters (topic ids, producer ids, member ids) is a
placeholder in it. `Pair.do` sends steps to both brokers and compares the answers field by field,
with names in place of such ids. A difference is either listed as `Allowed`, with its reason, or the
test fails.

Invariants
    The steps of one `do` are pipelined on one connection, so a broker serves them in order.
    A step that may end the connection (``alone``, and every Produce with acks=0) is followed by an
    ApiVersions request, because whether the broker closes the connection is a part of its answer.
    Everything is compared except the wording of messages (only whether there is one), addresses,
    throttle times and the order of topics and partitions. A time within minutes of the present
    counts as "now"; the records' own timestamps are chosen outside of that range.

Rejected
    Comparing with recorded answers: a recording is of one version, and is not kept up to date.
    Sending through a client library: it would refuse to send most of these requests.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

import anyio
import crc32c
from anyio.abc import ByteStream
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import build
from aioidem._broker.versions import VERSIONS
from aioidem._network.transport import TcpConnector
from aioidem._protocol.codec import epoch_ms
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import (
    correlation_id_of,
    decode_response,
    encode_request,
    request_type,
    response_type,
)

__all__ = [
    "CLOSED",
    "HANGING",
    "SILENCE",
    "Allocated",
    "Allowed",
    "Answer",
    "Difference",
    "Member",
    "Pair",
    "Plain",
    "Side",
    "Step",
    "TopicId",
    "codes_of",
    "raw_batch",
]

CLOSED: Final = "the broker closed the connection"
SILENCE: Final = "no answer"
HANGING: Final = "no answer, and the connection stays open"
_SHOWN: Final = 100

_API_VERSIONS: Final = 18
_INIT_PRODUCER_ID: Final = 22
_MAX_ANSWER_BYTES: Final = 100 << 20
_ANSWER_SECONDS: Final = 10.0
_ENDS: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
_PIPELINED: Final = 64
# APIs whose answers name topic ids or producer ids, and whose requests may contain such ids.
_NAMING: Final = (3, 19, 22)
# APIs whose requests may contain member ids.
_OF_MEMBERS: Final = (8, 9, 11, 12, 13, 14, 28)
_NOW_MS: Final = 240_000
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOG_APPEND: Final = 0x08
_CONTROL: Final = 0x20

# Fields that are not compared: they depend on the machine, not on how the broker behaves.
_LEFT_OUT: Final = frozenset({"throttle_time", "host", "port", "documentation"})
# Of these fields only the presence is compared: texts and ids differ between clusters.
_WORDS: Final = frozenset({"error_message", "batch_index_error_message", "cluster_id"})
# Fields by which the items of a list are matched where the protocol promises no order.
_KEYS: Final = (
    ("api_key",),
    ("name", "topic_id"),
    ("topic_id",),
    ("topic", "topic_id"),
    ("topic",),
    ("name",),
    ("partition_index",),
    ("index",),
    ("partition",),
    ("resource_type", "resource_name"),
    ("producer_id",),
    ("member_id",),
    ("group_id",),
)

Answer: TypeAlias = bytes | str
"""An answer's frame without its length, or a text that says what happened instead of an answer."""
Plain: TypeAlias = Any
"""An answer in terms that do not differ by cluster: dicts, lists, numbers, text."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicId:
    """A placeholder in a step: the id of a topic; the topic `name` may have been made repeatedly.

    `made` selects one of these topics: 0 is the first, and -1 the last.
    """

    name: str
    made: int = -1


@dataclass(frozen=True, slots=True)
class Allocated:
    """A placeholder in a step: the producer id that the cluster gave out as `number`, from 0."""

    number: int


@dataclass(frozen=True, slots=True)
class Member:
    """A placeholder in a step: the member id that the cluster gave to the member called `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """A request to both brokers.

    `body` has the fields of the request, with placeholders. `answered` is False for a request
    without an answer. `alone` says that the request may end the connection. `seconds` is how long
    to wait for the answer, `label` names the step in differences, and `gives` is the name under
    which the member id in the answer is kept.
    """

    api: int
    version: int
    body: Mapping[str, Any]
    answered: bool = True
    alone: bool = False
    seconds: float = _ANSWER_SECONDS
    label: str = ""
    gives: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which the answer of Kafka differs from that of the embedded broker."""

    step: Step
    path: str
    real: Plain
    ours: Plain

    def __str__(self) -> str:
        what = self.step.label or f"API {self.step.api} v{self.step.version}"
        return f"{what}: {self.path}: Kafka {_short(self.real)}, embedded {_short(self.ours)}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """An intended difference, its reason, and the worlds (versions of Kafka) that must show it."""

    name: str
    reason: str
    matches: Callable[[Difference], bool]
    worlds: frozenset[str]


class Side:
    """One of the two clusters: a connection to its broker, and names for the cluster's ids."""

    def __init__(
        self,
        name: str,
        address: Callable[[], tuple[str, int]],
    ) -> None:
        """Set the cluster's name, and the function that returns its broker's present address."""
        self.name = name
        self._address = address
        self._members: dict[str, str] = {}
        self._stream: ByteStream | None = None
        self._splitter = FrameSplitter(_MAX_ANSWER_BYTES)
        self._frames: list[bytes] = []
        self._correlation = 0
        self._topics: dict[UUID, str] = {}
        self._ids: dict[str, list[UUID]] = {}
        self._allocated: list[int] = []

    def encode(self, step: Step) -> bytes:
        """Return the request as a frame with correlation id 0."""
        schema = request_type(step.api, min(step.version, _newest(step.api)))
        assert schema is not None
        return encode_request(
            build(schema, self._resolved(step.body)),
            correlation_id=0,
            client_id="differential",
            version=step.version,
        )

    async def run(self, steps: Sequence[Step], frames: Sequence[bytes] = ()) -> list[Answer]:
        """Run the steps; return for each its answer, or `CLOSED`, `SILENCE` or `HANGING`."""
        frames = frames or [self.encode(step) for step in steps]
        answers: list[Answer] = []
        waiting: list[tuple[Step, bytes]] = []
        for step, frame in zip(steps, frames, strict=True):
            if step.answered and not step.alone:
                waiting.append((step, frame))
                if len(waiting) < _PIPELINED:
                    continue
            answers += await self._together(waiting)
            waiting = []
            if not step.answered or step.alone:
                answers.append(await self._probed(step, frame))
        return answers + await self._together(waiting)

    def share(self, other: Side) -> None:
        """Use the same names for ids as another connection to the same cluster."""
        self._topics, self._ids = other._topics, other._ids
        self._allocated, self._members = other._allocated, other._members

    async def begin(self, step: Step) -> None:
        """Send a step without waiting for its answer, which `end` returns."""
        await self._send([self.encode(step)])

    async def end(self, step: Step) -> Answer:
        """Return the answer to the one step that `begin` sent."""
        try:
            return self._taken(step, await self._receive(step.seconds), self._correlation - 1)
        except TimeoutError:
            await self.hang_up()
            return HANGING
        except _ENDS:
            await self.hang_up()
            return CLOSED

    async def hang_up(self) -> None:
        """Close the connection; the next step opens a new one."""
        stream, self._stream = self._stream, None
        self._splitter, self._frames = FrameSplitter(_MAX_ANSWER_BYTES), []
        if stream is not None:
            await stream.aclose()

    def given(self, answer: Answer) -> int:
        """Return the producer id in an answer to InitProducerId, or -1 if it has none."""
        if not isinstance(answer, bytes):
            return -1
        schema = response_type(_INIT_PRODUCER_ID, 5)
        assert schema is not None
        response: Any = decode_response(schema, answer)[1]
        return int(response.producer_id)

    def allocated(self, number: int) -> int:
        """Return the producer id that the broker gave out as ``number``, counted from 0."""
        return self._allocated[number]

    def forget_allocated(self) -> None:
        """Forget the producer ids that were given out until now; the next one has number 0."""
        self._allocated.clear()

    async def _together(self, steps: Sequence[tuple[Step, bytes]]) -> list[Answer]:
        """Run pipelined steps; after one that ends the connection, go on with a new connection."""
        answers: list[Answer] = []
        while len(answers) < len(steps):
            rest = steps[len(answers) :]
            first = self._correlation
            try:
                await self._send([frame for _, frame in rest])
                for number, (step, _) in enumerate(rest):
                    answers.append(self._taken(step, await self._receive(), first + number))
            except TimeoutError:
                await self.hang_up()
                answers.append(HANGING)
            except _ENDS:
                await self.hang_up()
                answers.append(CLOSED)
        return answers

    async def _probed(self, step: Step, frame: bytes) -> Answer:
        """Run a step that may end the connection, and an ApiVersions that shows whether it did."""
        probe = Step(_API_VERSIONS, 0, {})
        first = self._correlation
        try:
            await self._send([frame, self.encode(probe)])
            answer: Answer = SILENCE
            if step.answered:
                answer = self._taken(step, await self._receive(step.seconds), first)
            self._taken(probe, await self._receive(), first + 1)
        except TimeoutError:
            await self.hang_up()
            return HANGING
        except _ENDS:
            await self.hang_up()
            return CLOSED
        return answer

    async def _send(self, frames: Iterable[bytes]) -> None:
        if self._stream is None:
            self._stream = await TcpConnector().connect(*self._address())
        data = []
        for frame in frames:
            data += [frame[:8], self._correlation.to_bytes(4, "big"), frame[12:]]
            self._correlation += 1
        await self._stream.send(b"".join(data))

    async def _receive(self, seconds: float = _ANSWER_SECONDS) -> bytes:
        assert self._stream is not None
        while not self._frames:
            with anyio.fail_after(seconds):
                data = await self._stream.receive(1 << 18)
            self._frames = list(reversed(list(self._splitter.feed(data))))
        return self._frames.pop()

    def _taken(self, step: Step, frame: bytes, correlation: int) -> bytes:
        assert correlation_id_of(frame) == correlation, f"{self.name} mixed up its answers"
        if step.api in _NAMING or step.gives:
            self._learn(step, self._decoded(step, frame))
        return frame

    def _decoded(self, step: Step, frame: bytes) -> Any:
        version = step.version
        if step.api == _API_VERSIONS and _first_code(frame) == ErrorCode.unsupported_version:
            version = 0  # a version that is too new is answered in version 0
        schema = response_type(step.api, version)
        assert schema is not None
        return decode_response(schema, frame)[1]

    # -- names for ids -----------------------------------------------------------------------------

    def plain(self, step: Step, answer: Answer) -> Plain:
        """Return an answer with names in place of the cluster's ids, ready to be compared."""
        return self._plain(self._decoded(step, answer), "") if isinstance(answer, bytes) else answer

    def translated(self, frame: bytes, other: Side) -> bytes:
        """Return a frame with this cluster's topic ids replaced by the other cluster's."""
        for name, ids in self._ids.items():
            for mine, theirs in zip(ids, other._ids.get(name, ()), strict=False):
                frame = frame.replace(mine.bytes, theirs.bytes)
        return frame

    def _resolved(self, value: Any) -> Any:
        match value:
            case TopicId(name, made):
                return self._ids[name][made]
            case Allocated(number):
                return self._allocated[number]
            case Member(name):
                return self._members[name]
            case dict():
                return {key: self._resolved(each) for key, each in value.items()}
            case list() | tuple():
                return [self._resolved(each) for each in value]
        return value

    def _learn(self, step: Step, answer: Any) -> None:
        if step.gives and answer.member_id:
            self._members[step.gives] = answer.member_id
        if step.api == 22:
            if answer.producer_id >= 0 and answer.producer_id not in self._allocated:
                self._allocated.append(answer.producer_id)
        elif step.api in (3, 19):
            for topic in answer.topics:
                known = getattr(topic, "topic_id", None)
                if known is not None and step.body.get("validate_only"):
                    self._topics[known] = "not made"
                elif known is not None and topic.name and known not in self._topics:
                    made = self._ids.setdefault(topic.name, [])
                    self._topics[known] = f"{topic.name}#{len(made)}"
                    made.append(known)

    def _plain(self, value: Any, name: str) -> Plain:
        if name in _WORDS:
            return value is not None
        if name == "records" and value is not None:
            return [_plain_batch(each) for each in _batches(bytes(value))]
        match value:
            case Enum():
                return value.name
            case datetime():
                return _moment(epoch_ms(value))
            case timedelta():
                return value // timedelta(milliseconds=1)
            case UUID():
                return self._topics.get(value, str(value))
            case tuple() | list():
                return _keyed([self._plain(each, "") for each in value])
        if dataclasses.is_dataclass(value):
            return {
                each.name: self._plain(getattr(value, each.name), each.name)
                for each in dataclasses.fields(value)
                if each.name not in _LEFT_OUT
            }
        if name == "producer_id" and value in self._allocated:
            return f"allocated {self._allocated.index(value)}"
        if name in ("member_id", "leader") and value:
            named = [each for each, known in self._members.items() if known == value]
            return " ".join(named) or _UUID.sub("(uuid)", value)
        return _moment(value) if name in ("timestamp", "last_timestamp") else value


@dataclass
class Pair:
    """Real Kafka and the embedded cluster, to which the same steps are sent."""

    world: str
    real: Side
    ours: Side
    allowed: Sequence[Allowed]
    steps: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    codes: set[str] = field(default_factory=set)
    unexpected: list[Difference] = field(default_factory=list)

    def start_over(self) -> None:
        """Reset the counts, so that tests that share two brokers do not depend on their order.

        Differences that were not reported yet, such as those of preparing the brokers, are kept.
        """
        self.steps = 0
        self.seen.clear()
        self.codes.clear()

    async def play(self, scripts: Iterable[Callable[[T], Awaitable[None]]], made: T) -> str:
        """Run scripts on both brokers after `start_over`; return the differences, by script."""
        self.start_over()
        wrong = []
        for script in scripts:
            await script(made)
            if differences := self.found():
                name = getattr(script, "__name__", repr(script))
                wrong.append(f"{name}\n{differences}")
        return "\n".join(wrong)

    async def do(self, *steps: Step) -> list[Answer]:
        """Send steps to both brokers, compare the answers, and return Kafka's."""
        real, ours = self.real, self.ours
        theirs = [real.encode(step) for step in steps]
        mine = [
            ours.encode(step)
            if step.api in _NAMING or step.api in _OF_MEMBERS
            else real.translated(frame, ours)
            for step, frame in zip(steps, theirs, strict=True)
        ]
        answers: dict[str, list[Answer]] = {}

        async def run(side: Side, frames: Sequence[bytes]) -> None:
            answers[side.name] = await side.run(steps, frames)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, real, theirs)
            tasks.start_soon(run, ours, mine)
        for step, said, told in zip(steps, answers[real.name], answers[ours.name], strict=True):
            self.compare(step, said, told)
        return answers[real.name]

    async def ask(self, step: Step) -> Plain:
        """Run one step on both brokers, and return Kafka's answer in plain terms."""
        [answer] = await self.do(step)
        return self.real.plain(step, answer)

    async def until(self, step: Step, holds: Callable[[Plain], bool], seconds: float = 20) -> None:
        """Repeat a step on each broker until ``holds`` is true of its answer; compare nothing.

        Raises:
            TimeoutError: a broker did not give such an answer within ``seconds``.
        """
        with anyio.fail_after(seconds):
            for side in (self.real, self.ours):
                while not holds(side.plain(step, (await side.run([step]))[0])):
                    pass

    async def hang_up(self) -> None:
        """Close the connections to both brokers."""
        for side in (self.real, self.ours):
            await side.hang_up()

    def report(self) -> str:
        """Return all differences that are not allowed, one per line."""
        return "\n".join(map(str, self.unexpected))

    def found(self) -> str:
        """Return the first `_SHOWN` differences that are not allowed, and forget all of them."""
        lines = [str(each) for each in self.unexpected]
        self.unexpected.clear()
        return "\n".join([*lines[:_SHOWN], *([f"... {len(lines)} in all"] * (len(lines) > _SHOWN))])

    def unused(self) -> list[str]:
        """Return the names of the differences that were expected of this Kafka, but not seen."""
        return [
            each.name
            for each in self.allowed
            if self.world in each.worlds and each.name not in self.seen
        ]

    def compare(self, step: Step, real: Answer, ours: Answer) -> None:
        """Note the differences between two answers, and Kafka's error codes; `do` calls this."""
        self.steps += 1
        theirs = self.real.plain(step, real)
        self.codes |= codes_of(theirs)
        if isinstance(real, bytes) and isinstance(ours, bytes):
            # Most answers are equal byte for byte; then the embedded broker's is not decoded.
            translated = self.real.translated(real, self.ours)
            if translated[4:] == ours[4:]:
                return
        for found in _differences(step, "", theirs, self.ours.plain(step, ours)):
            self._judge(found)

    def _judge(self, found: Difference) -> None:
        for each in self.allowed:
            if self.world in each.worlds and each.matches(found):
                self.seen[each.name] = self.seen.get(each.name, 0) + 1
                return
        self.unexpected.append(found)


# -- record batches --------------------------------------------------------------------------------


def raw_batch(
    producer: tuple[int, int, int] = (-1, -1, -1),
    values: Sequence[bytes] = (b"v",),
    *,
    stamps: Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    deltas: Sequence[int] | None = None,
    codec: int = 0,
    compress: Callable[[bytes], bytes] = bytes,
    base_offset: int = 0,
    magic: int = 2,
    attributes: int = 0,
    max_stamp: int | None = None,
    count: int | None = None,
    last_delta: int | None = None,
    length: int | None = None,
    crc: int | None = None,
    leader_epoch: int = -1,
) -> bytes:
    """Build a record batch of format v2, or, with wrong values in its header, an invalid one.

    Args:
        producer: The producer id, the producer epoch and the batch's first sequence.
        values: The records' values.
        stamps: The time of each record, or one for all, in epoch milliseconds.
        keys: The records' keys; None: no record has one.
        deltas: The records' offset deltas; None: 0, 1, 2 and so on.
        codec: The codec's number in the attributes.
        compress: Compresses the encoded records.
        base_offset: The batch's base offset.
        magic: The version of the format.
        attributes: Bits to set in the attributes besides the codec's.
        max_stamp: The newest time that the header states; None: the true one.
        count: The number of records that the header states; None: the true one.
        last_delta: The last offset delta that the header states; None: the true one.
        length: The batch's length that the header states; None: the true one.
        crc: The checksum that the header states; None: the true one.
        leader_epoch: The partition leader epoch.
    """
    times = list(stamps) if len(stamps) == len(values) else [stamps[0]] * len(values)
    base = times[0] if times else stamps[0]
    records = b"".join(
        _record(times[i] - base, deltas[i] if deltas else i, keys[i] if keys else None, values[i])
        for i in range(len(values))
    )
    body = compress(records)
    pid, epoch, sequence = producer
    behind_crc = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        len(values) - 1 if last_delta is None else last_delta,
        base,
        (max(times) if times else base) if max_stamp is None else max_stamp,
        pid,
        epoch,
        sequence,
        len(values) if count is None else count,
    )
    checked = behind_crc + body
    found = crc32c.crc32c(checked) if crc is None else crc
    size = 9 + len(checked) if length is None else length
    return struct.pack(">qiibI", base_offset, size, leader_epoch, magic, found) + checked


def _record(time_delta: int, delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"".join(
        (
            b"\x00",
            _varint(time_delta),
            _varint(delta),
            _varint(-1) if key is None else _varint(len(key)) + key,
            _varint(-1) if value is None else _varint(len(value)) + value,
            b"\x00",
        )
    )
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag & ~0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _batches(data: bytes) -> Iterable[bytes]:
    """Yield the complete batches; Kafka may cut the last one off at the size limit."""
    at = 0
    while len(data) - at >= _HEADER.size:
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if end > len(data):
            return
        yield data[at:end]
        at = end


def _plain_batch(data: bytes) -> Plain:
    head = list(_HEADER.unpack_from(data))
    if head[5] & _LOG_APPEND:
        head[4], head[8] = "unchecked", _moment(head[8])
    if head[5] & _CONTROL:
        head[4], head[7], head[8] = "unchecked", _moment(head[7]), _moment(head[8])
    return [*head, data[_HEADER.size :].hex()]


# -- comparison ------------------------------------------------------------------------------------


def codes_of(plain: Plain) -> set[str]:
    """Return the names of all error codes in an answer."""
    match plain:
        case dict():
            # CreateTopics answers a topic's config error code as a plain number, which is left out.
            codes = (each for name, each in plain.items() if name.endswith("error_code"))
            here = {each for each in codes if isinstance(each, str)}
            return here.union(*(codes_of(each) for each in plain.values()))
        case list():
            return set().union(*(codes_of(each) for each in plain))
    return set()


def _differences(step: Step, path: str, real: Plain, ours: Plain) -> Iterable[Difference]:
    if real == ours:
        return
    if isinstance(real, dict) and isinstance(ours, dict):
        for key in {**real, **ours}:
            yield from _differences(
                step, f"{path}.{key}", real.get(key, "nothing"), ours.get(key, "nothing")
            )
    elif isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for number, (theirs, mine) in enumerate(zip(real, ours, strict=True)):
            yield from _differences(step, f"{path}.{number}", theirs, mine)
    else:
        yield Difference(step, path, real, ours)


def _keyed(items: list[Plain]) -> Plain:
    """Return a list as a dict if its items have a key in `_KEYS`, so that order is ignored."""
    if not items or not isinstance(items[0], dict):
        return items
    for key in _KEYS:
        if all(name in items[0] for name in key):
            found = {" ".join(str(each[name]) for name in key): each for each in items}
            return found if len(found) == len(items) else items
    return items


def _moment(milliseconds: int) -> Plain:
    return "now" if abs(milliseconds - time.time() * 1000) < _NOW_MS else milliseconds


def _newest(api: int) -> int:
    return VERSIONS[api].last


def _first_code(frame: bytes) -> int:
    return int.from_bytes(frame[4:6], "big", signed=True)


def _short(value: Plain, limit: int = 400) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)})"

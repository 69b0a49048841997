"""The scripts: sequences of requests that are sent to both brokers, one script per subject."""

from __future__ import annotations

import dataclasses
import gzip
import uuid
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import lz4.frame
import zstandard

from .differential import Allocated, Step, TopicId, codes_of, raw_batch
from .differential_steps import TOPIC_RESOURCE, Bench

__all__ = ["CODECS", "HOUR_MS", "LAST", "NOWHERE", "SCRIPTS", "sequences"]

Script: TypeAlias = Callable[[Bench], Awaitable[None]]

LAST: Final = 2**31 - 1
NOWHERE: Final = uuid.UUID(int=12345)
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
BROKER_RESOURCE: Final = 4
CODECS: Final[dict[int, Callable[[bytes], bytes]]] = {
    0: bytes,
    1: gzip.compress,
    3: lz4.frame.compress,
    4: zstandard.ZstdCompressor().compress,
}
_producers = count(1_000_000)


class Writer:
    """One producer id that writes to one topic; calling it makes a Produce step."""

    def __init__(self, bench: Bench, topic: str, pid: int | None = None) -> None:
        self.bench = bench
        self.topic = topic
        self.pid = next(_producers) if pid is None else pid

    def batch(self, sequence: int, records: int = 1, epoch: int = 0, **options: Any) -> bytes:
        """Return the bytes of a batch of this producer."""
        values = options.pop("values", [b"v%d" % number for number in range(records)])
        stamps = options.pop("stamps", [self.bench.start_ms])
        return raw_batch((self.pid, epoch, sequence), values, stamps=stamps, **options)

    def __call__(self, sequence: int, records: int = 1, epoch: int = 0, **options: Any) -> Any:
        """Make a step that produces a batch."""
        names = ("partition", "acks", "version", "label", "transactional_id")
        how = {name: options.pop(name) for name in names if name in options}
        how.setdefault("label", f"{self.topic}: epoch {epoch} sequence {sequence} +{records}")
        return self.bench.produce(
            self.topic, self.batch(sequence, records, epoch, **options), **how
        )


def called(label: str, *steps: Step) -> list[Step]:
    """Return copies of the steps that have this label, which names them in differences."""
    return [dataclasses.replace(step, label=label) for step in steps]


async def sequences(b: Bench) -> None:
    """Produce duplicates, gaps, other epochs, wrapped sequences, and new producers' batches."""
    await b.topic("seq", 4)
    w = Writer(b, "seq")
    remembered = b.world.retain or 5
    await b.do(
        *(w(n) for n in range(30)),
        *(w(n) for n in range(30 - remembered - 2, 30)),
        *(w(n) for n in (31, 100, LAST, 0, 5)),
        w(30, 3),
        w(30),
        w(30, 2),
        w(31, 2),
        w(30, 4),
        w(30, 3),
        w(33),
        b.producers("seq"),
    )
    await b.do(
        w(0, epoch=1),
        w(34),
        w(34, epoch=1),
        w(1, epoch=1),
        w(0, epoch=1),
        w(5, epoch=3),
        w(2, epoch=3),
        w(0, epoch=3),
        w(2, epoch=1),
        w(1, epoch=3),
        w(0, epoch=32767),
        w(1, epoch=32767),
        b.producers("seq"),
    )
    wrap = Writer(b, "seq")
    await b.do(
        wrap(LAST - 2, 2),
        wrap(LAST, 3),
        wrap(2),
        wrap(LAST, 3),
        wrap(LAST - 2, 2),
        wrap(0),
        wrap(3),
        b.producers("seq"),
    )
    exact = Writer(b, "seq")
    await b.do(exact(LAST), exact(0), exact(LAST), exact(0), exact(1), exact(1, 2))
    stranger = Writer(b, "seq")
    await b.do(stranger(7), stranger(7), stranger(0), stranger(8), stranger(0, epoch=1))
    beginner = Writer(b, "seq")
    await b.do(
        beginner(0, partition=1), beginner(1, partition=2), beginner(1, partition=1), beginner(9)
    )
    odd = Writer(b, "seq", 0)
    await b.do(odd(0), odd(1), b.producers("seq"), b.producers("seq", 3))
    late = Writer(b, "seq")
    await b.do(
        late(0, epoch=5), late(1, epoch=5), late(2, epoch=4), late(0, epoch=4), late(2, epoch=5)
    )


async def plain_records(b: Bench) -> None:
    """Produce batches without a producer id, and between them those of an idempotent producer."""
    await b.topic("plain", 1)
    none = raw_batch(values=[b"a", b"b"], stamps=[b.start_ms])
    w = Writer(b, "plain")
    await b.do(
        b.produce("plain", none, acks=1),
        w(0),
        b.produce("plain", none),
        w(0),
        w(1),
        *(b.produce("plain", none, acks=0) for _ in range(3)),
        w(2, acks=0),
        w(2, acks=1),
        w(2, acks=0),
        w(9, acks=0),
        w(3, acks=1),
        b.fetch("plain", 0),
        b.producers("plain"),
    )


async def malformed(b: Bench) -> None:
    """Produce malformed batches, with a producer id and without, each to its own partition."""
    at = b.start_ms
    await b.topic("bad", 1)
    nothing = b.produce("bad", None, label="bad: no records")
    await b.do(dataclasses.replace(nothing, alone=True, seconds=1.0))
    for pid in (-1, 2_000_000):
        who = (pid, 0 if pid >= 0 else -1, 0 if pid >= 0 else -1)
        good = raw_batch(who, stamps=[at])
        longer = raw_batch(who, [b"a", b"b"], stamps=[at])
        both: dict[str, Any] = {"values": [b"a", b"b"]}
        bytes_of: dict[str, bytes] = {
            "empty": b"",
            "ten bytes": b"\x00" * 10,
            "12 zero bytes": b"\x00" * 12,
            "16 zero bytes": b"\x00" * 16,
            "17 zero bytes": b"\x00" * 17,
            "61 zero bytes": b"\x00" * 61,
            "80 bytes of ones": b"\xff" * 80,
            "two batches": good + good,
            "one byte more": good + b"\x00",
            "11 bytes more": good + b"\x00" * 11,
            "12 bytes more": good + b"\x00" * 12,
            "30 bytes more": good + b"\x00" * 30,
            "half a batch more": good + longer[:40],
            "one byte less": good[:-1],
            "header only": good[:61],
            "less than a header": good[:60],
        }
        cases: dict[str, dict[str, Any]] = {
            "crc": {"crc": 1},
            "magic 0": {"magic": 0},
            "magic 1": {"magic": 1},
            "magic 3": {"magic": 3},
            "magic -1": {"magic": -1},
            "base offset 1": {"base_offset": 1},
            "base offset 1, crc": {"base_offset": 1, "crc": 1},
            "base offset -1": {"base_offset": -1},
            "no record": {"values": []},
            "no record, count 1": {"values": [], "count": 1, "last_delta": 0},
            "count 2 of 1": {"count": 2},
            "count 0 of 1": {"count": 0},
            "count -1 of 1": {"count": -1},
            "count and delta 2 of 1": {"count": 2, "last_delta": 1},
            "count and delta 1 of 2": {**both, "count": 1, "last_delta": 0},
            "last delta 4": {"last_delta": 4},
            "last delta -1": {"last_delta": -1},
            "deltas 1, 0": {**both, "deltas": [1, 0]},
            "deltas 0, 0": {**both, "deltas": [0, 0]},
            "deltas 0, 5": {**both, "deltas": [0, 5]},
            "deltas 1, 2": {**both, "deltas": [1, 2]},
            "length too long": {"length": 500},
            "length too short": {"length": 40},
            "length 49": {"length": 49},
            "length 13": {"length": 13},
            "length 14": {"length": 14},
            "length 0": {"length": 0},
            "length -5": {"length": -5},
            "codec 5": {"codec": 5},
            "codec 7": {"codec": 7},
            "codec 5, crc": {"codec": 5, "crc": 1},
            "gzip that is none": {"codec": 1},
            "lz4 that is none": {"codec": 3},
            "zstd that is none": {"codec": 4},
            "control": {"attributes": 0x20},
            "transactional": {"attributes": 0x10},
            "transactional control": {"attributes": 0x30},
            "delete horizon": {"attributes": 0x40},
            "unused attribute": {"attributes": 0x80},
            "log append time": {"attributes": 0x08},
            "leader epoch 7": {"leader_epoch": 7},
        }
        for codec, compress in CODECS.items():
            packed = {**both, "codec": codec, "compress": compress}
            cases |= {
                f"codec {codec} deltas 1, 0": {**packed, "deltas": [1, 0]},
                f"codec {codec} deltas 0, 5": {**packed, "deltas": [0, 5]},
                f"codec {codec} count 3": {**packed, "count": 3, "last_delta": 2},
            }
        for label, case in cases.items():
            bytes_of[label] = raw_batch(who, **{"stamps": [at], **case})
        for producer in (
            (5, -1, 0),
            (5, 0, -1),
            (5, -1, -1),
            (-1, 0, 0),
            (-1, -1, 0),
            (-2, 0, 0),
            (5, 0, -2),
        ):
            bytes_of[f"producer {producer}"] = raw_batch(producer, stamps=[at])
        topic = f"bad{pid}"
        await b.topic(topic, len(bytes_of) + 1)
        for index, (label, data) in enumerate(bytes_of.items()):
            steps = (
                b.produce_to({topic: [(index, data), (len(bytes_of), good)]}),
                b.list_offsets(topic, -1, index),
                b.producers(topic, index),
                b.fetch(topic, 0, index),
            )
            await b.do(*called(f"{topic}: {label}", *steps))


async def codecs(b: Bench) -> None:
    """Produce batches of each codec in each Produce version."""
    await b.topic("codecs")
    for version in range(3, b.world.produce + 1):
        for codec, compress in CODECS.items():
            data = raw_batch(
                values=[b"x" * 100] * 3, stamps=[b.start_ms], codec=codec, compress=compress
            )
            label = f"codec {codec} in v{version}"
            await b.do(
                b.produce("codecs", data, version=version, label=label),
                b.produce("codecs", data[:-1], version=version, label=f"cut {label}"),
                b.produce("codecs", data, version=version, acks=1, label=label),
            )
    await b.do(b.fetch("codecs", 0), b.fetch("codecs", 7))


async def sizes(b: Bench) -> None:
    """Produce batches whose sizes are near ``max.message.bytes``."""
    await b.topic("sizes", configs={"max.message.bytes": "200"})
    w = Writer(b, "sizes")

    def sized(sequence: int, size: int, **options: Any) -> Any:
        empty = len(w.batch(sequence, values=[b"x" * 70]))
        return w(sequence, values=[b"x" * (70 + size - empty)], label=f"size {size}", **options)

    await b.do(
        sized(0, 200),
        sized(1, 201),
        sized(0, 200),
        sized(1, 201, crc=3),
        sized(1, 201, base_offset=1),
        sized(1, 199),
        sized(1, 150, crc=3),
        w(2, 3, codec=1, compress=gzip.compress),
    )
    await b.configure("sizes", "max.message.bytes", "100")
    await b.do(sized(1, 199), w(5), w(2, 3, codec=1, compress=gzip.compress))
    await b.configure("sizes", "max.message.bytes", "1000000")
    await b.do(sized(1, 199), w(5), b.producers("sizes"))


async def timestamps(b: Bench) -> None:
    """Produce all kinds of timestamps to topics with limits, without, and with LogAppendTime."""
    await b.topic("free", configs={"message.timestamp.after.max.ms": str(HOUR_MS)})
    await b.topic(
        "limited",
        configs={
            "message.timestamp.before.max.ms": str(HOUR_MS),
            "message.timestamp.after.max.ms": "1000",
        },
    )
    await b.topic("appended", configs={"message.timestamp.type": "LogAppendTime"})
    at = b.start_ms
    stamps: Sequence[Sequence[int]] = (
        [at],
        [at - 10, at, at - 5],
        [at + 2 * HOUR_MS],
        [at, at + 2 * HOUR_MS],
        [at - 2 * HOUR_MS],
        [at, at - 2 * HOUR_MS, at],
        [-1],
        [at, -1],
        [-1, at],
        [0],
        [-2],
        [-DAY_MS],
        [2**62],
        [-(2**62)],
    )
    for topic in ("free", "limited", "appended"):
        for codec in (0, 1):
            for each in stamps:
                data = raw_batch(
                    values=[b"t"] * len(each), stamps=each, codec=codec, compress=CODECS[codec]
                )
                label = f"{topic}: stamps {[s - at for s in each]} codec {codec}"
                await b.do(b.produce(topic, data, label=label))
        await b.do(b.list_offsets(topic, -1), b.fetch(topic, 0))
    w = Writer(b, "appended")
    await b.do(w(0), w(0), w(1), w(0), w(1), b.producers("appended"))
    v = Writer(b, "limited")
    old: dict[str, Any] = {"stamps": [at - 2 * HOUR_MS]}
    await b.do(v(0), v(0, **old), v(1, **old), v(1), v(5, **old), v(1, epoch=1, **old))
    lie: dict[str, Any] = {"values": [b"a", b"b"], "stamps": [at, at + 5]}
    await b.do(
        v(2, max_stamp=at + 2 * HOUR_MS, label="maximum stamp a lie upwards", **lie),
        v(2, max_stamp=at, label="maximum stamp a lie downwards", **lie),
    )
    await b.topic("lies")
    lies = [
        raw_batch(values=[b"a", b"b"], stamps=[at, at + 5], max_stamp=at + lie) for lie in (0, 100)
    ]
    await b.do(
        *called(
            "lies",
            *(b.produce("lies", data) for data in lies),
            b.list_offsets("lies", -3),
            b.list_offsets("lies", at + 3),
            b.fetch("lies", 0),
        )
    )


async def compacted(b: Bench) -> None:
    """Write records with and without keys to a compacted topic."""
    await b.topic("compacted", configs={"cleanup.policy": "compact"})
    await b.topic("both", configs={"cleanup.policy": "compact,delete"})
    for topic in ("compacted", "both"):
        w = Writer(b, topic)
        three: dict[str, Any] = {"values": [b"a", b"b", b"c"]}
        await b.do(
            w(0, keys=[b"k", b"k", b"l"], **three),
            w(3, keys=[b"k", None, None], **three),
            w(3, **three),
            w(3, keys=[b"k", None, b""], codec=1, compress=gzip.compress, **three),
            w(3, keys=[b"", b"", b""], codec=1, compress=gzip.compress, **three),
            b.list_offsets(topic, -1),
            b.delete_records(topic, 1),
            b.list_offsets(topic, -2),
        )


async def addresses(b: Bench) -> None:
    """Produce to unknown topics and partitions, to several at once, and with invalid acks."""
    await b.topic("here", 3)
    w = Writer(b, "here")
    for version in sorted(
        {3, 7, 9, 10, 11, 12, b.world.produce} - {*range(b.world.produce + 1, 20)}
    ):
        data = raw_batch(stamps=[b.start_ms])
        await b.do(
            b.produce_to({"nowhere": [(0, data)]}, version=version, label="unknown name")
            if version < 13
            else b.produce_to({NOWHERE: [(0, data)]}, version=version, label="unknown id"),
            b.produce("here", data, partition=3, version=version, label="partition 3 of 3"),
            b.produce("here", data, partition=-1, version=version, label="partition -1"),
            b.produce_to({}, version=version, label="no topics"),
            b.produce_to({"here": []}, version=version, label="no partitions"),
            b.produce("here", data, acks=2, version=version, label="acks 2"),
            b.produce("here", data, acks=-2, version=version, label="acks -2"),
            b.produce("here", data, partition=9, acks=2, version=version, label="acks 2 at 9"),
            b.produce("here", b"", acks=2, version=version, label="acks 2 of nothing"),
            b.produce("here", data, partition=9, acks=1, version=version, label="acks 1 at 9"),
            b.produce("here", data, partition=9, acks=0, version=version, label="acks 0 at 9"),
            b.produce("here", b"", partition=9, version=version, label="nothing at 9"),
            b.produce(
                "here", raw_batch(stamps=[1], crc=3), partition=9, version=version, label="crc at 9"
            ),
        )
    if b.world.produce >= 13:
        await b.do(b.produce_to({uuid.UUID(int=0): [(0, raw_batch(stamps=[1]))]}, label="zero id"))
    good, gap = w.batch(0), w.batch(7)
    big = w.batch(0, values=[b"x" * 1_100_000])
    await b.topic("there", 2)
    nowhere: Any = NOWHERE if b.world.produce >= 13 else "nowhere"
    await b.do(
        b.produce_to(
            {
                "here": [(0, good), (1, gap), (2, big), (5, good)],
                nowhere: [(0, good)],
                "there": [(0, good), (1, w.batch(0, crc=9))],
            },
            label="partial failure",
        ),
        b.produce_to(
            {
                "here": [(0, gap), (1, w.batch(8)), (2, good), (5, good)],
                nowhere: [(0, good)],
                "there": [(0, good), (1, good)],
            },
            label="partial failure again",
        ),
        b.produce_to({"here": [(1, gap), (0, good)]}, acks=0, label="acks 0, one in order"),
        b.produce_to(
            {"here": [(1, w.batch(99)), (0, w.batch(1))]}, acks=0, label="acks 0, one not"
        ),
        b.produce_to({"here": [(0, w.batch(2)), (0, w.batch(3))]}, label="a partition twice"),
        b.produce_to({"here": [(0, w.batch(4)), (7, w.batch(3))]}, acks=1, label="acks 1, partial"),
        *(b.list_offsets("here", -1, number) for number in range(3)),
        *(b.producers("here", number) for number in range(3)),
    )
    await b.do(
        w(9, transactional_id="tx", label="a transactional id without a transaction"),
        w(9, transactional_id="", label="an empty transactional id"),
        w(9, attributes=0x10, label="transactional, no id"),
        w(9, attributes=0x10, transactional_id="tx", label="transactional with an id"),
    )


async def metadata(b: Bench) -> None:
    """Request metadata by name, by id, of all topics, of unknown ones and of ones to be created."""
    await b.topic("m1", 2)
    await b.topic("m2")
    for version in range(b.world.metadata + 1):
        await b.do(
            b.metadata("m1", version=version),
            b.metadata("m1", "m2", "not-there", version=version)
            if version >= 4
            else b.metadata("m1", "m2", version=version),
            b.metadata("m1", "m1", version=version),
            b.metadata(version=version) if version >= 1 else b.metadata("m1", version=version),
            b.metadata("", version=version),
            b.metadata("bad name", version=version),
            b.metadata("..", version=version),
            b.metadata("x" * 250, version=version),
        )
    for version in range(8, b.world.metadata + 1):
        await b.do(b.metadata("m1", "not-there", "bad name", operations=True, version=version))
    for version in (12, 13):
        if version <= b.world.metadata:
            await b.do(
                b.metadata(TopicId("m1"), NOWHERE, operations=True, version=version),
                b.metadata(TopicId("m1"), version=version),
                b.metadata(NOWHERE, version=version),
                b.metadata(TopicId("m2"), NOWHERE, "m1", version=version),
                *called("neither name nor id", b.metadata(uuid.UUID(int=0), version=version)),
            )
    await b.do(*called("all topics, after being killed", b.metadata(everything=True)))
    await b.do(b.metadata("made-on-the-way", create=True))
    await b.known("made-on-the-way")
    await b.do(
        b.metadata("made-on-the-way", create=True),
        b.produce("made-on-the-way", raw_batch(stamps=[b.start_ms])),
    )


async def administration(b: Bench) -> None:
    """Create and delete topics, and create one again under its old name."""
    for version in range(2, 8):
        name = f"admin{version}"
        await b.do(
            b.create_topics({"name": name, "partitions": 2}, version=version),
            b.create_topics({"name": name, "partitions": 2}, version=version),
            b.create_topics({"name": f"{name}x"}, version=version, validate_only=True),
            b.create_topics({"name": f"{name}y", "partitions": 0}, version=version),
            b.create_topics({"name": f"{name}y", "partitions": -2}, version=version),
            b.create_topics({"name": f"{name}y", "replication": 2}, version=version),
            b.create_topics({"name": f"{name}y", "replication": 0}, version=version),
            b.create_topics({"name": f"{name}y", "replication": -2}, version=version),
            b.create_topics({"name": "bad name"}, version=version),
            b.create_topics({"name": ""}, version=version),
            b.create_topics({"name": "."}, version=version),
            b.create_topics({"name": "x" * 250}, version=version),
            b.create_topics({"name": f"{name}y", "configs": {"no.such": "1"}}, version=version),
            b.create_topics(
                {"name": f"{name}y", "configs": {"max.message.bytes": None}}, version=version
            ),
            b.create_topics(
                {"name": f"{name}y", "configs": {"max.message.bytes": "x"}}, version=version
            ),
            b.create_topics(
                {"name": f"{name}y", "configs": {"max.message.bytes": "-1"}}, version=version
            ),
            b.create_topics(
                {"name": f"{name}y", "configs": {"cleanup.policy": "nothing"}}, version=version
            ),
            b.create_topics(
                {"name": f"{name}y"}, {"name": f"{name}y"}, {"name": name}, version=version
            ),
            b.create_topics(
                {"name": f"{name}z", "partitions": -1, "replication": -1, "assignments": {0: [0]}},
                version=version,
            ),
            b.create_topics({"name": f"{name}y", "assignments": {0: [0]}}, version=version),
            b.create_topics(
                {"name": f"{name}y", "partitions": -1, "replication": -1, "assignments": {1: [0]}},
                version=version,
            ),
            b.create_topics(
                {"name": f"{name}y", "partitions": -1, "replication": -1, "assignments": {0: [7]}},
                version=version,
            ),
            b.create_topics(
                {
                    "name": f"{name}y",
                    "partitions": -1,
                    "replication": -1,
                    "assignments": {0: [0, 0]},
                },
                version=version,
            ),
            b.create_topics(
                {"name": f"{name}y", "partitions": -1, "replication": -1, "assignments": {0: []}},
                version=version,
            ),
        )
        if version >= 4:
            await b.do(
                b.create_topics(
                    {"name": f"{name}d", "partitions": -1, "replication": -1}, version=version
                )
            )
    await b.known("admin7d")
    await b.do(b.metadata("admin7", "admin7x", "admin7y", "admin7z", "admin7d"))
    for version in range(1, 7):
        await b.do(
            b.metadata(f"admin{max(version, 2)}"),
            b.delete_topics(f"admin{max(version, 2)}", version=version),
            b.delete_topics("not-there", "bad name", version=version),
            b.delete_topics("", version=version),
        )
    await b.do(b.delete_topics(NOWHERE), b.delete_topics(TopicId("admin7")))
    await b.gone("admin7")
    await b.do(
        b.delete_topics(TopicId("admin7")),
        b.delete_topics("admin7d", "admin7d"),
        b.delete_topics("admin7z", TopicId("admin7z")),
    )
    await b.do(b.delete_topics("admin7z"))
    await b.topic("again")
    w = Writer(b, "again")
    await b.do(w(0), w(1))
    await b.do(b.delete_topics("again"))
    await b.gone("again")
    await b.do(
        w(2),
        b.metadata(TopicId("again")),
        b.fetch("again", 0),
        b.list_offsets("again", -1),
        b.producers("again"),
        b.delete_records("again", 0),
    )
    await b.topic("again")
    first: Any = TopicId("again", 0)
    if b.world.produce >= 13:
        await b.do(b.produce_to({first: [(0, w.batch(2))]}, label="the old id"))
    await b.do(b.fetch(first, 0), b.metadata(first), w(2), w(0), b.producers("again"))


async def offsets(b: Bench) -> None:
    """Send ListOffsets and Fetch for offsets and times that a log has, and for others."""
    await b.topic("read", 2)
    at = b.start_ms
    w = Writer(b, "read")
    await b.do(
        b.list_offsets("read", -1),
        b.list_offsets("read", -2),
        b.list_offsets("read", -3),
        b.list_offsets("read", at),
        b.fetch("read", 0),
        b.fetch("read", 1),
    )
    await b.do(
        w(0, 3, stamps=[at, at + 10, at + 20]),
        w(3, 3, stamps=[at + 30, at + 90, at + 40]),
        w(6, 3, stamps=[at + 50, at + 60, at + 70]),
    )
    for version in range(1, b.world.list_offsets + 1):
        stamps = (*range(-8, 1), at, at + 5, at + 20, at + 35, at + 45, at + 90, at + 91)
        await b.do(*(b.list_offsets("read", stamp, version=version) for stamp in stamps))
    await b.do(
        b.list_offsets("read", -3),
        b.list_offsets("read", -4),
        b.list_offsets("read", -1, isolation=1),
        b.list_offsets("read", -1, 9),
        b.list_offsets("nowhere", -1),
        *(b.list_offsets("read", -1, leader_epoch=epoch) for epoch in (-1, 0, 1, 7)),
        *(b.list_offsets("read", -7, version=v) for v in (4, b.world.list_offsets)),
    )
    for version in range(4, b.world.fetch + 1):
        await b.do(
            *(b.fetch("read", offset, version=version) for offset in (0, 1, 4, 8, 9, 10, -1, 1000)),
            b.fetch("read", 0, 1, version=version),
            b.fetch("read", 0, 9, version=version),
            b.fetch("nowhere" if version < 13 else NOWHERE, 0, version=version),
            b.fetch("read", 0, version=version, isolation=1),
            b.fetch("read", 0, version=version, max_bytes=1),
            b.fetch("read", 4, version=version, max_bytes=150),
        )
        if version >= 9:
            await b.do(*(b.fetch("read", 0, version=version, leader_epoch=e) for e in (0, 1, 7)))
    await b.do(b.fetch("read", 0, session=(77, 5)), b.fetch("read", 0, session=(0, 0)))


async def deleted_records(b: Bench) -> None:
    """Delete records, and compare where the log starts and which producers are remembered."""
    await b.topic("cut", 2)
    w, v = Writer(b, "cut"), Writer(b, "cut")
    await b.do(v(0), v(1), w(0, 3), w(3, 3), w(6, 3))
    for version in range(3):
        await b.do(
            b.delete_records("cut", 1, version=version),
            b.delete_records("cut", 0, version=version),
            b.delete_records("cut", 12, version=version),
            b.delete_records("cut", -2, version=version),
            b.delete_records("cut", 0, 9, version=version),
            b.delete_records("nowhere", 0, version=version),
            b.delete_records("cut", 4, version=version),
            b.list_offsets("cut", -2),
        )
    await b.do(
        *(b.fetch("cut", offset) for offset in (0, 2, 3, 4, 5, 9)),
        b.list_offsets("cut", b.start_ms),
        b.list_offsets("cut", 0),
        *called("maximum timestamp of a cut log", b.list_offsets("cut", -3)),
        b.producers("cut"),
        v(1),
        v(5),
        v(0),
        w(6, 3),
        w(0, 3),
        b.delete_records("cut", -1),
        b.list_offsets("cut", -2),
        b.fetch("cut", 11),
        b.fetch("cut", 10),
        b.producers("cut"),
        w(6, 3),
        w(3, 3),
        w(10),
        v(3),
        v(2),
        w(9),
        b.delete_records("cut", -1, 1),
        b.fetch("cut", 11),
        b.producers("cut"),
    )


async def producer_ids(b: Bench) -> None:
    """Send InitProducerId without a transactional id and with an empty one."""
    for version in range(b.world.init_producer_id + 1):
        await b.do(
            b.init_producer_id(version=version),
            b.init_producer_id(version=version),
            b.init_producer_id(transactional_id="", version=version),
        )
        if version >= 3:
            await b.do(
                b.init_producer_id((Allocated(0), 0), version=version),
                b.init_producer_id((Allocated(0), 5), version=version),
                b.init_producer_id((Allocated(0), -1), version=version),
                b.init_producer_id((-1, 5), version=version),
                b.init_producer_id((10**15, 5), version=version),
                b.init_producer_id((Allocated(0), 32767), version=version),
            )


async def versions(b: Bench) -> None:
    """Send ApiVersions in every version, in unknown versions, and with malformed client names."""
    for version in range(b.world.api_versions + 1):
        await b.do(b.api_versions(version))
    for name in ("", " ", "a b", "-a", "a-", "a.b-c", "a_b", "é", "a\n"):
        await b.do(b.api_versions(3, name), b.api_versions(3, software=name))
    await b.do(b.api_versions(9), b.api_versions(99), b.api_versions(32767))


async def configs(b: Bench) -> None:
    """Describe and change configs, most of which both brokers know."""
    await b.topic("conf", configs={"max.message.bytes": "1000", "cleanup.policy": "delete"})
    names = [
        "max.message.bytes",
        "cleanup.policy",
        "message.timestamp.type",
        "retention.ms",
        "retention.bytes",
        "min.insync.replicas",
        "no.such.config",
    ]
    for version in range(1, 5):
        await b.do(
            b.describe_configs(TOPIC_RESOURCE, "conf", None, version=version),
            b.describe_configs(TOPIC_RESOURCE, "conf", names, version=version),
            b.describe_configs(TOPIC_RESOURCE, "conf", names, version=version, synonyms=False),
            b.describe_configs(TOPIC_RESOURCE, "conf", [], version=version),
            b.describe_configs(TOPIC_RESOURCE, "nowhere", names, version=version),
            b.describe_configs(TOPIC_RESOURCE, "bad name", names, version=version),
            b.describe_configs(
                BROKER_RESOURCE,
                "0",
                [
                    "message.max.bytes",
                    "producer.id.expiration.ms",
                    "producer.id.expiration.check.interval.ms",
                    "no.such",
                ],
                version=version,
            ),
            b.describe_configs(BROKER_RESOURCE, "", ["message.max.bytes"], version=version),
            b.describe_configs(BROKER_RESOURCE, "7", None, version=version),
            b.describe_configs(BROKER_RESOURCE, "x", None, version=version),
            b.describe_configs(99, "conf", None, version=version),
        )
    for version in (0, 1):

        def alter(
            *changes: tuple[str, int, str | None],
            name: str = "conf",
            kind: int = TOPIC_RESOURCE,
            version: int = version,
            **how: Any,
        ) -> Any:
            return b.alter_configs(kind, name, *changes, version=version, **how)

        await b.do(
            alter(("max.message.bytes", 0, "2000")),
            alter(("max.message.bytes", 0, "x")),
            alter(("max.message.bytes", 0, "-1")),
            alter(("max.message.bytes", 0, None)),
            alter(("max.message.bytes", 0, "3000"), validate_only=True),
            alter(("no.such.config", 0, "1")),
            alter(("no.such.config", 1, None)),
            alter(("max.message.bytes", 2, "1")),
            alter(("max.message.bytes", 9, "1")),
            alter(("cleanup.policy", 2, "compact")),
            alter(("cleanup.policy", 3, "compact")),
            alter(("cleanup.policy", 0, "nonsense")),
            alter(("retention.ms", 0, "5"), ("retention.ms", 0, "6")),
            alter(("retention.ms", 0, "5"), ("max.message.bytes", 0, "x")),
            alter(("retention.ms", 0, "5"), name="nowhere"),
            alter(("retention.ms", 0, "5"), name="bad name"),
            alter(("retention.ms", 1, None)),
            alter(("message.max.bytes", 0, "1000000"), name="7", kind=BROKER_RESOURCE),
            *(
                alter(("message.max.bytes", how, value), name=name, kind=BROKER_RESOURCE)
                for name in ("0", "")
                for how, value in ((0, "x"), (0, "-1"), (0, None), (2, "1"))
            ),
            alter(("retention.ms", 0, "5"), kind=99),
            alter(),
        )
        await b.settled()
        await b.do(b.describe_configs(TOPIC_RESOURCE, "conf", names))


async def restarts(b: Bench) -> None:
    """Compare what is remembered of producers after a clean stop and after a kill."""
    for name, clean in (("stopped", True), ("killed", False)):
        await b.topic(name, 4)
        w, v, x, y = (Writer(b, name) for _ in range(4))
        await b.do(*(w(n) for n in range(7)), v(0, 3), v(3, 3), v(0, epoch=1))
        await b.do(*(x(n, partition=1) for n in range(3)), b.delete_records(name, -1, 1))
        await b.do(*(x(n, partition=2) for n in range(3)), b.delete_records(name, 2, 2))
        await b.do(x(0, partition=3), y(0, partition=3), y(1, 3, partition=3))
        await b.do(b.delete_records(name, 3, 3), b.producers(name, 3))
        await b.checkpointed(name, {1: 3, 2: 2, 3: 3})
        await b.restart(clean=clean)
        await b.known(name)
        parts = range(4)
        again = (
            b.metadata(name),
            *(b.producers(name, number) for number in parts),
            *(b.list_offsets(name, stamp, number) for stamp in (-1, -2) for number in parts),
            *(b.epoch_end(name, epoch, number) for epoch in range(3) for number in parts),
            *(w(n) for n in (6, 5, 7, 6, 7)),
            v(0, 3),
            v(0, epoch=1),
            v(1, epoch=1),
            *(x(n, partition=1) for n in (2, 1, 3)),
            *(x(n, partition=2) for n in (2, 1, 3)),
            *(x(n, partition=3) for n in (0, 5, 1)),
            *(y(n, 3, partition=3) for n in (1, 0, 4)),
            *(b.producers(name, number) for number in parts),
            *(b.fetch(name, offset, number) for number in parts for offset in (0, 3)),
            *(b.epoch_end(name, epoch, number) for epoch in range(3) for number in parts),
            *(b.epoch_end(name, 0, current=current) for current in range(3)),
            *(b.list_offsets(name, stamp, number) for stamp in (-1, -2) for number in parts),
        )
        await b.do(*called(f"after being {name}", *again))


async def expiry(b: Bench) -> None:
    """Let a producer whose last batch is two days old expire, however new its other batches are.

    Each broker expires producers at its own next check, so the answers are compared before and
    after that, not during it.
    """
    await b.topic("old")
    w, v, x = Writer(b, "old"), Writer(b, "old"), Writer(b, "old")
    old: dict[str, Any] = {"stamps": [b.start_ms - 2 * DAY_MS]}
    listed = b.producers("old")

    async def forgotten() -> None:
        await b.pair.until(listed, lambda answer: str(v.pid) not in str(answer))

    await b.do(w(0), v(0), x(0, **old), x(1), v(1, **old))
    await forgotten()
    await b.do(listed, v(1), v(0), w(0), x(1), x(2), listed, v(2, **old))
    await forgotten()
    await b.do(listed, v(0), v(1), listed)


async def too_few_replicas(b: Bench) -> None:
    """Produce to a topic whose ``min.insync.replicas`` is above its number of replicas."""
    await b.topic("few", configs={"min.insync.replicas": "2"})
    w = Writer(b, "few")
    await b.do(w(0), w(0, acks=1), w(0), w(1, crc=3), w(1, acks=0), w(2, acks=1), b.fetch("few", 0))
    await b.configure("few", "min.insync.replicas", "1")
    await b.do(w(2), w(3))


async def others(b: Bench) -> None:
    """Send DescribeProducers for a topic and a partition that do not exist."""
    await b.do(b.producers("nowhere"))
    await b.topic("others")
    w = Writer(b, "others")
    await b.do(w(0), w(1), b.producers("others", 5))


async def leader_epochs(b: Bench) -> None:
    """Ask for the end of leader epochs that a partition has, does not have yet, and cannot have."""
    await b.topic("epochs", 2)
    w = Writer(b, "epochs")
    for version in range(2, 5):
        await b.do(
            *(b.epoch_end("epochs", epoch, version=version) for epoch in (0, 1, 7, -1, -2)),
            *(b.epoch_end("epochs", 0, current=each, version=version) for each in (0, 1, 7, -2)),
            b.epoch_end("epochs", 7, current=7, version=version),
            b.epoch_end("epochs", 0, 9, version=version),
            b.epoch_end("epochs", 0, 9, current=7, version=version),
            b.epoch_end("epochs", 0, -1, version=version),
            b.epoch_end("nowhere", 0, version=version),
            b.epoch_end("", 0, version=version),
            w(3 * (version - 2), 3),
        )
    await b.do(b.epoch_end("epochs", 0), b.delete_records("epochs", 4), b.epoch_end("epochs", 0))
    await b.do(b.delete_records("epochs", -1), b.epoch_end("epochs", 0), b.epoch_end("epochs", -1))


async def coordinators(b: Bench) -> None:
    """Look for the coordinators of groups and transactional ids, one by one and several at once.

    Kafka creates the topics of its coordinators at the first such request, so this script is last.
    """
    for kind in (0, 1):
        await b.pair.until(
            b.find_coordinator(kind, "any"), lambda answer: codes_of(answer) == {"none"}
        )
    for version in range(b.world.find_coordinator + 1):
        for kind in (0, 1, 2, 3, 7, -1) if version else (0,):
            steps = [
                b.find_coordinator(kind, key, version=version)
                for key in ("any", "another", "", "x" * 300, "a b")
            ]
            if version >= 4:
                steps += [
                    b.find_coordinator(kind, version=version),
                    b.find_coordinator(kind, "any", "", "another", version=version),
                    b.find_coordinator(kind, "any", "another", "any", version=version),
                ]
            await b.do(*called(f"FindCoordinator v{version} of kind {kind}", *steps))


async def cluster(b: Bench) -> None:
    """Describe the cluster, with the permitted operations, and ask it for its controllers."""
    for version in range(b.world.describe_cluster + 1):
        for operations in (False, True):
            for endpoint in (1, 2, 0, 7) if version else (1,):
                for fenced in (False, True) if version >= 2 else (False,):
                    label = f"v{version}, endpoint {endpoint}, {operations=}, {fenced=}"
                    await b.do(
                        b.describe_cluster(
                            operations=operations,
                            endpoint=endpoint,
                            fenced=fenced,
                            version=version,
                            label=f"DescribeCluster {label}",
                        )
                    )


SCRIPTS: Final[Sequence[Script]] = (
    restarts,  # first, because a killed broker is back sooner with fewer partitions
    sequences,
    plain_records,
    malformed,
    codecs,
    sizes,
    timestamps,
    compacted,
    addresses,
    metadata,
    administration,
    offsets,
    deleted_records,
    producer_ids,
    versions,
    configs,
    others,
    too_few_replicas,
    leader_epochs,
    cluster,
    expiry,
    coordinators,  # last, because the other scripts expect a Kafka that has no coordinators yet
)

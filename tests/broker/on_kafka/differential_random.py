"""Random requests from one seed: some that a correct client might send, some that none should.

`Chaos` guesses what the brokers remember of each producer, so that most batches have the next
sequence, or one near it. Answers to DescribeProducers correct the guesses now and then. The same
seed makes the same steps as long as Kafka gives the same answers.

Two kinds of batches are left to the scripts: those with timestamps so old that a broker expires the
producer, because each broker checks for that at its own times, and those whose records contradict
their headers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from .differential import Plain, Step, TopicId, raw_batch
from .differential_scripts import CODECS, HOUR_MS, LAST, NOWHERE
from .differential_steps import Bench

__all__ = ["Chaos"]

TOPICS: Final = {
    "any": {},
    "small": {
        "max.message.bytes": "300",
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": "1000",
    },
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "keyed": {"cleanup.policy": "compact,delete"},
}
PARTITIONS: Final = 2
PRODUCERS: Final = range(3_000_000, 3_000_006)
REMEMBERED: Final = 30
CHUNK: Final = 64

BROKEN: Final[Sequence[dict[str, Any]]] = (
    {"crc": 1},
    {"magic": 0},
    {"magic": 1},
    {"magic": 3},
    {"base_offset": 1},
    {"values": []},
    {"count": 7},
    {"last_delta": 9},
    {"length": 500},
    {"length": 10},
    {"length": 20},
    {"codec": 6},
    {"attributes": 0x20},
    {"attributes": 0x10},
    {"attributes": 0x08},
    {"leader_epoch": 9},
)


class Guess:
    """What a broker should remember of one producer in one partition."""

    __slots__ = ("epoch", "following", "sent")

    def __init__(self) -> None:
        self.epoch = 0
        self.following = 0
        self.sent: list[tuple[int, int, int, bytes]] = []


class Chaos:
    """A sender of random steps to one bench (a pair of brokers), drawn from one seed."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self._guesses: dict[tuple[str, int, int], Guess] = {}

    async def begin(self) -> None:
        """Create the topics of the random steps."""
        for name, configs in TOPICS.items():
            await self.bench.topic(name, PARTITIONS, configs)

    async def run(self, steps: int) -> None:
        """Run this many steps, pipelined in chunks, with DescribeProducers after each chunk."""
        for first in range(0, steps, CHUNK):
            chunk = [
                self._step(f"step {first + number}") for number in range(min(CHUNK, steps - first))
            ]
            topic, partition = self._place()
            await self.bench.do(*chunk)
            answer = await self.bench.pair.ask(self.bench.producers(topic, partition))
            self._correct(topic, partition, answer)
            if self.random.random() < 0.05:
                await self._reconfigure()

    def _step(self, name: str) -> Step:
        chosen = self._one_of(
            (80, self._produce),
            (4, self._produce_to_many),
            (4, self._fetch),
            (3, self._list_offsets),
            (2, self._metadata),
            (2, self._describe_producers),
            (1, self._init_producer_id),
            (1, self._delete_records),
        )
        step: Step = chosen(name)
        return step

    # -- Produce -----------------------------------------------------------------------------------

    def _produce(self, name: str) -> Step:
        topic, partition = self._place()
        kind, data = self._batch(topic, partition)
        return self.bench.produce(
            topic,
            data,
            partition=partition if self.random.random() < 0.98 else 7,
            acks=self._one_of((89, -1), (8, 1), (2, 0), (1, 2)),
            version=self._produce_version(),
            label=f"{name}: {kind}",
        )

    def _produce_to_many(self, name: str) -> Step:
        kinds = []
        topics: dict[Any, list[tuple[int, bytes | None]]] = {}
        last = b""
        # No partition occurs twice: Kafka would append one of its batches and answer for another.
        places = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
        for topic, partition in self.random.sample(places, self.random.randint(2, 5)):
            kind, data = self._batch(topic, partition)
            kinds.append(kind)
            topics.setdefault(topic, []).append((partition, data))
            last = data
        version = self._produce_version()
        if self.random.random() < 0.2:
            nowhere: Any = NOWHERE if version >= 13 else "nowhere"
            topics[nowhere] = [(0, last)]
        return self.bench.produce_to(
            topics,
            acks=self._one_of((9, -1), (1, 1)),
            version=version,
            label=f"{name}: {'; '.join(kinds)}",
        )

    def _batch(self, topic: str, partition: int) -> tuple[str, bytes]:
        """Return a description of a random batch, and its bytes."""
        draw = self.random
        pid = self._one_of((94, draw.choice(PRODUCERS)), (6, -1))
        if pid < 0:
            return f"{topic}-{partition} no producer", self._bytes(topic, (-1, -1, -1))
        guess = self._guesses.setdefault((topic, partition, pid), Guess())
        epoch, sequence, count = guess.epoch, guess.following, draw.choice((1, 1, 1, 2, 5))
        kind: str = self._one_of(
            (55, "next"),
            (14, "again"),
            (4, "other size"),
            (5, "gap"),
            (3, "behind"),
            (3, "old epoch"),
            (4, "new epoch"),
            (3, "new epoch not at 0"),
            (2, "jump"),
            (7, "broken"),
        )
        more: dict[str, Any] = {}
        if kind == "again" and guess.sent:
            epoch, sequence, count, data = draw.choice(guess.sent)
            return f"{topic}-{partition} {pid} again {epoch}/{sequence}+{count}", data
        if kind == "other size" and guess.sent:
            epoch, sequence, count, _ = draw.choice(guess.sent)
            count += 1
        elif kind == "gap":
            sequence = (sequence + draw.choice((1, 2, 100, LAST))) % (LAST + 1)
        elif kind == "behind":
            sequence = max(0, sequence - draw.randint(1, 40))
        elif kind == "old epoch":
            epoch = max(0, epoch - 1)
        elif kind == "new epoch":
            epoch, sequence = min(32767, epoch + draw.choice((1, 1, 5))), 0
        elif kind == "new epoch not at 0":
            epoch, sequence = min(32767, epoch + 1), sequence + 1
        elif kind == "jump":
            sequence = draw.choice((0, 1, LAST - 3, LAST - 1, LAST))
        elif kind == "broken":
            more = draw.choice(BROKEN)
        data = self._bytes(topic, (pid, epoch, sequence), count, **more)
        if kind in ("next", "new epoch") or (kind == "jump" and not guess.sent):
            guess.epoch = epoch
            guess.following = (sequence + count) % (LAST + 1)
            guess.sent = [*guess.sent[1 - REMEMBERED :], (epoch, sequence, count, data)]
        return f"{topic}-{partition} {pid} {kind} {epoch}/{sequence}+{count} {more or ''}", data

    def _bytes(
        self, topic: str, producer: tuple[int, int, int], records: int = 1, **more: Any
    ) -> bytes:
        draw, now = self.random, self.bench.start_ms
        size = self._one_of((95, draw.randint(0, 30)), (5, 300))
        stamp = now + draw.randint(-1000, 1000)
        if topic == "small":
            stamp += self._one_of((92, 0), (4, 2 * HOUR_MS), (4, -2 * HOUR_MS))
        codec = self._one_of((7, 0), (1, 1), (1, 3), (1, 4))
        keyed = topic != "keyed" or draw.random() < 0.95
        options: dict[str, Any] = {
            "values": [b"x" * size for _ in range(records)],
            "keys": [b"k" if keyed else None] * records,
            "stamps": [stamp + n for n in range(records)],
            "codec": codec,
            "compress": CODECS[codec],
            **more,
        }
        if "codec" in more:
            options["compress"] = bytes
        if not options["values"]:
            options["keys"] = []
        return raw_batch(producer, **options)

    def _produce_version(self) -> int:
        newest = self.bench.world.produce
        chosen: int = self._one_of((8, newest), (2, self.random.randint(3, newest)))
        return chosen

    # -- other requests ----------------------------------------------------------------------------

    def _fetch(self, name: str) -> Step:
        topic, partition = self._place()
        offset = self._one_of((8, self.random.randint(0, 400)), (1, -1), (1, 10**6))
        return self.bench.fetch(
            topic,
            offset,
            partition,
            version=self.random.randint(4, self.bench.world.fetch),
            max_bytes=self.random.choice((1, 100, 2000)),
            label=f"{name}: fetch {topic}-{partition} {offset}",
        )

    def _list_offsets(self, name: str) -> Step:
        topic, partition = self._place()
        stamp = self._one_of(
            (3, self.random.randint(-8, 0)),
            (2, self.bench.start_ms + self.random.randint(-1500, 1500)),
        )
        # Timestamp -3 is left out: Kafka may answer with a deleted record (see `ALLOWED`).
        stamp = -1 if stamp == -3 else stamp
        return self.bench.list_offsets(
            topic,
            stamp,
            partition,
            version=self.random.randint(1, self.bench.world.list_offsets),
            label=f"{name}: offset of {stamp} in {topic}-{partition}",
        )

    def _metadata(self, name: str) -> Step:
        topic = self.random.choice((*TOPICS, "nowhere"))
        version = self.random.randint(4, self.bench.world.metadata)
        by_id = version >= 12 and topic != "nowhere" and self.random.random() < 0.5
        wanted = TopicId(topic) if by_id else topic
        return self.bench.metadata(wanted, version=version, label=f"{name}: metadata {wanted}")

    def _describe_producers(self, name: str) -> Step:
        topic, partition = self._place()
        return self.bench.producers(topic, partition, label=f"{name}: producers of {topic}")

    def _init_producer_id(self, name: str) -> Step:
        version = self.random.randint(0, self.bench.world.init_producer_id)
        claimed = self._one_of((3, (-1, -1)), (1, (10**12, 3)), (1, (-1, 3)))
        return self.bench.init_producer_id(
            claimed if version >= 3 else (-1, -1), version=version, label=f"{name}: {claimed}"
        )

    def _delete_records(self, name: str) -> Step:
        topic, partition = self._place()
        offset = self._one_of((8, self.random.randint(0, 60)), (1, -1), (1, 10**6))
        return self.bench.delete_records(
            topic, offset, partition, label=f"{name}: delete below {offset}"
        )

    async def _reconfigure(self) -> None:
        size = self.random.choice(("200", "300", "400"))
        await self.bench.configure("small", "max.message.bytes", size)

    # -- helpers -----------------------------------------------------------------------------------

    def _place(self) -> tuple[str, int]:
        return self.random.choice(tuple(TOPICS)), self.random.randrange(PARTITIONS)

    def _one_of(self, *choices: tuple[int, Any]) -> Any:
        return self.random.choices([c for _, c in choices], [w for w, _ in choices])[0]

    def _correct(self, topic: str, partition: int, answer: Plain) -> None:
        active = answer["topics"][topic]["partitions"][str(partition)]["active_producers"]
        for producer in active.values() if active else ():
            guess = self._guesses.get((topic, partition, producer["producer_id"]))
            if guess is not None:
                guess.epoch = producer["producer_epoch"]
                guess.following = (producer["last_sequence"] + 1) % (LAST + 1)

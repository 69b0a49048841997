"""Random requests of a few transactional ids: mostly correct ones, often incorrect ones.

`TransactionalChaos` keeps a guess of each transactional id: its present and earlier identities
(producer id and epoch), the partitions and groups in its transaction, and the next sequence in each
partition. It sends one request at a time, and after each request that ends a transaction waits for
the markers, because until then answers depend on timing. The same seed makes the same steps as long
as Kafka's answers are the same.

At the end it reads everything that was written, in both isolation levels, first while transactions
are open and then without open ones.

Timeouts, members of groups, and clients of protocol v2 at a cluster of v1 occur only in the
scripts, not in this module.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

from .differential import Plain, Step, codes_of, raw_batch
from .differential_transactions import Transactions

__all__ = ["TransactionalChaos"]

Who: TypeAlias = tuple[int, int]

TOPIC: Final = "chaos"
PARTITIONS: Final = 3
GROUPS: Final = ("chaos-a", "chaos-b")
NAMES: Final = ("red", "green", "blue")
# Longer than a run: no transaction may time out, because each coordinator checks at its own times.
_TIMEOUT: Final = timedelta(minutes=15)
_TRANSACTIONAL: Final = 0x10
_REMEMBERED: Final = 12
_SECONDS: Final = 60.0


@dataclass
class Guess:
    """What the brokers should know of one transactional id."""

    name: str
    who: Who
    modern: bool
    past: list[Who] = field(default_factory=list)
    lost: bool = False
    partitions: set[int] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    following: dict[int, int] = field(default_factory=dict)
    sent: list[tuple[int, bytes]] = field(default_factory=list)

    def become(self, who: Who) -> None:
        """Take over the identity that a broker gave, with which no transaction is open yet."""
        self.lost = False
        if who != self.who:
            self.past.append(self.who)
            self.who = who
            self.following.clear()
        self.over()

    def over(self) -> None:
        """Forget the partitions and groups of the transaction, which has ended."""
        self.partitions.clear()
        self.groups.clear()


class TransactionalChaos:
    """A sender of random transactional steps to one bench (a pair of brokers), from one seed."""

    def __init__(self, transactions: Transactions, seed: int) -> None:
        self.t = transactions
        self.random = random.Random(seed)
        self._guesses: list[Guess] = []
        # Whether later epochs than the producer's, and batches that are not transactional, are
        # sent. Kafka 3.9.1 gets neither. It accepts a write of a later epoch into an open
        # transaction, and can then never end the transaction, because the marker has an older epoch
        # than the write. And it remembers the sequence of an older epoch, by which it then refuses
        # batches that are not transactional.
        self._later = transactions.b.world.kafka != "3.9.1"

    async def begin(self) -> None:
        """Create the topic, and an identity for each transactional id.

        The client of the last id speaks protocol v1, even if the cluster speaks v2.
        """
        await self.t.b.topic(TOPIC, PARTITIONS)
        for name in NAMES:
            who = await self.t.start(name, timeout=_TIMEOUT)
            self._guesses.append(Guess(name, who, self.t.modern and name != NAMES[-1]))

    async def run(self, steps: int) -> None:
        """Run this many steps, and then read all that can be read."""
        for number in range(steps):
            guess = self.random.choice(self._guesses)
            # A client of protocol v1 has to add partitions and groups before it writes to them.
            chosen = self._one_of(
                (48, self._produce),
                (3 if guess.modern else 10 if guess.partitions else 60, self._add),
                (2 if guess.modern else 8, self._add_group),
                (8 if guess.modern else 14 if guess.groups else 3, self._commit_offset),
                (14, self._end),
                (30 if guess.lost else 5, self._init),
                (2, self._list),
                (3, self._look),
            )
            await chosen(guess, f"step {number}")
        await self._read()
        for guess in self._guesses:
            await self._ask(guess, self.t.init(guess.name, timeout=_TIMEOUT), "the end")
            await self._settled(guess)
        await self._read("all ended: ")
        for group in GROUPS:
            await self._offsets(group)

    # -- requests ----------------------------------------------------------------------------------

    async def _produce(self, guess: Guess, name: str) -> None:
        kind = self._one_of(
            (62, "next"),
            (9, "again"),
            (6, "gap"),
            (4, "behind"),
            (6, "somebody else"),
            (5 if self._later else 0, "not transactional"),
            (3, "not added"),
            (2, "nameless"),
            (2, "misnamed"),
        )
        partition, who, spoken = self._partition(guess, kind), guess.who, self._modern(guess)
        if kind == "again" and guess.sent:
            partition, data = self.random.choice(guess.sent)
            await self._write(guess, name, kind, partition, data, spoken=spoken)
            return
        if kind == "somebody else":
            who = self._somebody(guess, later=self._later)
        sequence, count = guess.following.get(partition, 0), self._one_of((3, 1), (1, 2), (1, 5))
        if kind == "gap":
            sequence += self.random.choice((1, 2, 100))
        elif kind == "behind":
            sequence = max(0, sequence - self.random.randint(1, 8))
        data = raw_batch(
            (*who, sequence),
            [b"%s %d" % (name.encode(), number) for number in range(count)],
            stamps=[self.t.b.start_ms],
            attributes=0 if kind == "not transactional" else _TRANSACTIONAL,
        )
        kind = f"{kind} {who} {sequence}+{count}"
        if await self._write(guess, name, kind, partition, data, spoken=spoken) == {"none"}:
            guess.following[partition] = sequence + count
            guess.partitions.add(partition)
            guess.sent = [*guess.sent[1 - _REMEMBERED :], (partition, data)]

    async def _write(
        self, guess: Guess, name: str, kind: str, partition: int, data: bytes, *, spoken: bool
    ) -> set[str]:
        newest = self.t.b.world.produce if spoken else 11
        version = self._one_of((8, newest), (2, self.random.randint(12 if spoken else 3, newest)))
        called: str | None = guess.name
        if kind.startswith("nameless"):
            called = None
        elif kind.startswith("misnamed"):
            called = self.random.choice(("nobody", *NAMES))
        elif kind.startswith("not transactional"):
            called = self.random.choice((None, guess.name))
        step = self.t.b.produce(
            TOPIC,
            data,
            partition=partition,
            acks=self._one_of((9, -1), (1, 1)),
            version=version,
            transactional_id=called,
        )
        said = f"{name}: write {called} {kind} to {partition} v{version}"
        return codes_of(await self._ask(guess, step, said))

    async def _add(self, guess: Guess, name: str) -> None:
        who = self._who(guess)
        wanted: Mapping[str, Sequence[int]] = self._one_of(
            (8, {TOPIC: self.random.sample(range(PARTITIONS), self.random.randint(1, 2))}),
            (1, {TOPIC: [0, 9]}),
            (1, {TOPIC: [0], "nowhere": [0]}),
        )
        step = self.t.add(guess.name, who, wanted, self._one_of((7, 3), (1, 2), (1, 1), (1, 0)))
        answer = await self._ask(guess, step, name)
        if codes_of(answer) == {"none"}:
            guess.partitions.update(wanted[TOPIC])

    async def _add_group(self, guess: Guess, name: str) -> None:
        group, version = self.random.choice(GROUPS), self.random.randint(0, 4)
        await self._ask(guess, self.t.add_group(guess.name, self._who(guess), group, version), name)

    async def _commit_offset(self, guess: Guess, name: str) -> None:
        newest = 5 if self._modern(guess) else 4
        added = sorted(guess.groups)
        group = self.random.choice(added if added and self.random.random() < 0.7 else GROUPS)
        step = self.t.commit_offset(
            self._one_of((19, guess.name), (1, "nobody")),
            self._who(guess, later=self._later),
            group,
            self.random.randint(0, 1000),
            topic=TOPIC,
            partition=self._one_of((19, 0), (1, 9)),
            version=self._one_of((7, newest), (3, self.random.randint(0, newest))),
        )
        await self._ask(guess, step, name)

    async def _end(self, guess: Guess, name: str) -> None:
        who, commit = self._who(guess), self.random.random() < 0.6
        modern = self._modern(guess)
        version = 5 if modern else self._one_of((7, 4), (3, self.random.randint(0, 4)))
        for _ in range(self._one_of((8, 1), (2, 2))):
            step = self.t.end(guess.name, who, commit=commit, version=version)
            answer = await self._ask(guess, step, name)
            if answer["error_code"] == "none":
                given = self._given(answer) if version >= 5 else guess.who
                guess.become(given)
            await self._settled(guess)
            commit ^= self.random.random() < 0.2

    async def _init(self, guess: Guess, name: str) -> None:
        other = self.random.choice(self._guesses).who
        claim: Who = self._one_of(
            (12 if guess.lost else 4, (-1, -1)),
            (4, guess.who),
            (3, self._somebody(guess)),
            (1, (other[0], guess.who[1])),
            (1, (guess.who[0], -1)),
        )
        version = self.random.randint(0 if claim == (-1, -1) else 3, 5)
        step = self.t.init(guess.name, claim, version=version, timeout=_TIMEOUT)
        answer = await self._ask(guess, step, name)
        if answer["error_code"] == "none":
            guess.become(self._given(answer))
        elif answer["error_code"] == "producer_fenced" and claim == guess.who:
            guess.over()
        await self._settled(guess)

    async def _list(self, guess: Guess, name: str) -> None:
        await self._ask(guess, self.t.listed(guess.who), name)

    async def _look(self, _guess: Guess, name: str) -> None:
        partition = self.random.randrange(PARTITIONS)
        answer = await self.t.ask(self.t.b.producers(TOPIC, partition, label=f"{name}: producers"))
        active = answer["topics"][TOPIC]["partitions"][str(partition)]["active_producers"]
        for guess in self._guesses:
            for known in active.values() if active else ():
                if self._given(known) == guess.who:
                    guess.following[partition] = known["last_sequence"] + 1
        await self.t.look(TOPIC, partition=partition)

    async def _read(self, when: str = "") -> None:
        for partition in range(PARTITIONS):
            await self.t.look(TOPIC, partition=partition, when=when)

    async def _offsets(self, group: str) -> None:
        step = self.t.offsets(group, TOPIC, stable=True)
        # In 3.9.1 a group learns of a marker only after the coordinator has noted it as written.
        await self.t.b.pair.until(
            step, lambda answer: "unstable_offset_commit" not in str(answer), _SECONDS
        )
        await self.t.ask(step)

    # -- helpers -----------------------------------------------------------------------------------

    async def _ask(self, guess: Guess, step: Step, name: str) -> Plain:
        """Send a step; note in the guess if the answer says that the guess's identity is old."""
        step = dataclasses.replace(step, label=f"{name}: {step.label}" if step.label else name)
        answer = await self.t.ask(step)
        if str(guess.who) in step.label and codes_of(answer) & {
            "producer_fenced",
            "invalid_producer_epoch",
            "invalid_producer_id_mapping",
        }:
            guess.lost = True
        return answer

    async def _settled(self, guess: Guess) -> None:
        """Wait until all markers of the transactional id are written."""
        await self.t.b.pair.until(
            self.t.listed(guess.who), lambda answer: "'Prepare" not in str(answer), _SECONDS
        )

    def _given(self, answer: Plain) -> Who:
        producer = answer["producer_id"]
        if isinstance(producer, str):
            producer = self.t.b.pair.real.allocated(int(producer.removeprefix("allocated ")))
        return producer, answer["producer_epoch"]

    def _modern(self, guess: Guess) -> bool:
        """Return whether to use protocol v2 for this request."""
        return guess.modern if self.random.random() < 0.95 else self.t.modern and not guess.modern

    def _partition(self, guess: Guess, kind: str) -> int:
        others = set(range(PARTITIONS)) - guess.partitions
        fitting = others if kind == "not added" else guess.partitions
        anywhere = not fitting or (guess.modern and kind != "not added")
        return self.random.choice(range(PARTITIONS) if anywhere else sorted(fitting))

    def _who(self, guess: Guess, *, later: bool = True) -> Who:
        who: Who = self._one_of((82, guess.who), (18, self._somebody(guess, later=later)))
        return who

    def _somebody(self, guess: Guess, *, later: bool = True) -> Who:
        """Return a producer id and epoch other than the guess's.

        The epoch is later than any that is known only if ``later`` is true.
        """
        producer, epoch = guess.who
        other = self.random.choice(self._guesses).who
        who: Who = self._one_of(
            (6, (producer, max(0, epoch - 1))),
            (4, self.random.choice(guess.past[-4:] or [guess.who])),
            (2, (producer, epoch + 1)),
            (1, (producer, epoch + 2)),
            (1, (other[0], epoch)),
            (1, other),
        )
        known = {producer: epoch, other[0]: other[1]}
        return who if later else (who[0], min(who[1], known[who[0]]))

    def _one_of(self, *choices: tuple[int, Any]) -> Any:
        return self.random.choices([c for _, c in choices], [w for w, _ in choices])[0]

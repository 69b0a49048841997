"""Transactions on both brokers: protocols v1 and v2, requests in order and out of order.

Both brokers are first made to give out the same producer id, so that batches and requests have the
same bytes. A real coordinator needs time to write markers or to load; a request that it answers as
busy is repeated until it gives another answer, and only then are the answers compared.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

import anyio

from aioidem.broker import EmbeddedCluster
from aioidem.testing import KafkaCluster

from .differential import Allowed, Answer, Pair, Plain, Side, Step, codes_of, raw_batch
from .differential_steps import HOST, KAFKAS, SETTINGS, ZERO, Bench, World

__all__ = ["SCRIPTS", "TRANSACTIONAL_WORLDS", "TransactionalWorld", "transactional_bench"]

Script: TypeAlias = Callable[["Transactions"], Awaitable[None]]

_TRANSACTIONAL: Final = 0x10
_BUSY: Final = frozenset(
    {
        "concurrent_transactions",
        "coordinator_load_in_progress",
        "coordinator_not_available",
        "not_coordinator",
    }
)
# Seconds for which a request is repeated while its answer has a code in `_BUSY`; they suffice on a
# slow machine, too. `stay_busy` is for requests that get such an answer for ever.
_PATIENCE: Final = 60.0
_FOR_EVER: Final = frozenset({"concurrent_transactions"})
_FOR_A_WHILE: Final = 3.0
_TIMEOUT: Final = timedelta(seconds=60)
# In Kafka it is the partition that stores a group's offsets that takes part in a transaction, and
# not the group. With two partitions, each of the two groups in the random requests has its own.
_OFFSETS: Final = {"offsets.topic.num.partitions": "2"}
_SOON: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


@dataclass(frozen=True, eq=False)
class TransactionalWorld:
    """A real broker with a level of ``transaction.version``; from 2 on, clients use protocol v2."""

    world: World
    features: Mapping[str, int]
    level: int
    newest_end: int = 5  # the newest version of EndTxn and of TxnOffsetCommit


TRANSACTIONAL_WORLDS: Final = (
    TransactionalWorld(World("4.3.1", "4.3.1", None, 13, 18, 13, 11, 5, 6), {}, 2),
    TransactionalWorld(
        World("4.3.1-v1", "4.3.1", None, 13, 18, 13, 11, 5, 6), {"transaction.version": 0}, 0, 4
    ),
    TransactionalWorld(World("3.9.1", "3.9.1", None, 11, 17, 12, 9, 5, 6), {}, 0, 4),
)


class Transactions:
    """Transactional requests to both brokers, in the versions of transactions v1 or v2."""

    def __init__(self, bench: Bench, asked: TransactionalWorld) -> None:
        self.b = bench
        self.modern = asked.level >= 2
        self.newest_end = asked.newest_end
        # The request versions that a client uses with this cluster's transaction protocol.
        self.produce_version = bench.world.produce if self.modern else min(11, bench.world.produce)
        self.end_version = 5 if self.modern else 4
        self.commit_version = 5 if self.modern else 4

    async def ask(self, step: Step) -> Plain:
        """Send a step to both brokers until neither is busy, compare, and return Kafka's answer."""
        pair = self.b.pair
        real, ours = await self._both(step, self._unbusy)
        for side, answer in ((pair.real, real), (pair.ours, ours)):
            busy = codes_of(side.plain(step, answer)) & _BUSY
            assert not busy, f"{step.label}: {side.name} says {busy} after {_PATIENCE} s"
        pair.compare(step, real, ours)
        return pair.real.plain(step, real)

    async def stay_busy(self, step: Step) -> None:
        """Check that both brokers answer a step CONCURRENT_TRANSACTIONS for several seconds."""
        pair = self.b.pair
        real, ours = await self._both(step, self._kept_busy)
        for side, answer in ((pair.real, real), (pair.ours, ours)):
            assert codes_of(side.plain(step, answer)) == _FOR_EVER, f"{side.name}: {step.label}"
        pair.compare(step, real, ours)

    async def _both(
        self, step: Step, how: Callable[[Side, Step], Awaitable[Answer]]
    ) -> tuple[Answer, Answer]:
        answers: dict[str, Answer] = {}

        async def run(side: Side) -> None:
            answers[side.name] = await how(side, step)

        pair = self.b.pair
        async with anyio.create_task_group() as tasks:
            for side in (pair.real, pair.ours):
                tasks.start_soon(run, side)
        return answers[pair.real.name], answers[pair.ours.name]

    @staticmethod
    async def _unbusy(side: Side, step: Step) -> Answer:
        deadline = anyio.current_time() + _PATIENCE
        while True:
            [answer] = await side.run([step])
            late = anyio.current_time() > deadline
            if late or not codes_of(side.plain(step, answer)) & _BUSY:
                return answer

    @staticmethod
    async def _kept_busy(side: Side, step: Step) -> Answer:
        # Brokers also answer CONCURRENT_TRANSACTIONS while markers are written, but that takes less
        # than `_FOR_A_WHILE`. A coordinator that is loading answers with another code.
        deadline = anyio.current_time() + _FOR_A_WHILE
        while True:
            [answer] = await side.run([step])
            codes = codes_of(side.plain(step, answer))
            if anyio.current_time() > deadline or not codes & _BUSY:
                return answer

    async def decided(self, topic: str, partition: int = 0) -> None:
        """Wait until both brokers have no open transaction in a partition."""
        await self.b.pair.until(
            self.b.producers(topic, partition),
            lambda answer: not re.search(r"'current_txn_start_offset': \d", str(answer)),
        )

    async def all(self, *steps: Step) -> list[Plain]:
        """Run steps one after the other, and return Kafka's answers."""
        return [await self.ask(step) for step in steps]

    async def start(self, name: str, **options: Any) -> tuple[int, int]:
        """Initialise a transactional id; return its id and epoch, the same on both brokers."""
        await self._align()
        answer = await self.ask(self.init(name, **options))
        assert answer["error_code"] == "none"
        return self.b.pair.real.allocated(0), answer["producer_epoch"]

    async def _align(self) -> None:
        sides = (self.b.pair.real, self.b.pair.ours)
        step = self.b.init_producer_id()
        given = [-1, -2]
        while given[0] != given[1]:
            behind = given.index(min(given))
            [answer] = await sides[behind].run([step])
            given[behind] = sides[behind].given(answer)
        for side in sides:
            side.forget_allocated()

    # -- steps -------------------------------------------------------------------------------------

    def init(
        self,
        name: str,
        producer: tuple[int, int] = (-1, -1),
        *,
        version: int = 5,
        timeout: timedelta = _TIMEOUT,
        label: str = "",
    ) -> Step:
        """Make an InitProducerId request for a transactional id."""
        body = {
            "transactional_id": name,
            "transaction_timeout": timeout,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
        }
        return Step(22, version, body, label=label or f"init {name} {producer} v{version}")

    def write(
        self,
        name: str | None,
        producer: tuple[int, int],
        sequence: int,
        *,
        topic: str,
        partition: int = 0,
        version: int | None = None,
        transactional: bool = True,
        acks: int = -1,
        label: str = "",
    ) -> Step:
        """Make a Produce request with one record."""
        data = raw_batch(
            (*producer, sequence),
            [b"v%d" % sequence],
            stamps=[self.b.start_ms],
            attributes=_TRANSACTIONAL if transactional else 0,
        )
        version = self.produce_version if version is None else version
        return self.b.produce(
            topic,
            data,
            partition=partition,
            acks=acks,
            version=version,
            transactional_id=name,
            label=label or f"write {name} {producer} {sequence} to {topic}-{partition} v{version}",
        )

    def add(
        self,
        name: str,
        producer: tuple[int, int],
        partitions: Mapping[str, Sequence[int]],
        version: int = 3,
    ) -> Step:
        """Make an AddPartitionsToTxn request."""
        body = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [
                {"name": topic, "partitions": list(indexes)}
                for topic, indexes in partitions.items()
            ],
        }
        return Step(24, version, body, label=f"add {name} {producer} {partitions} v{version}")

    def add_group(self, name: str, producer: tuple[int, int], group: str, version: int = 4) -> Step:
        """Make an AddOffsetsToTxn request."""
        body = {**_who(name, producer), "group_id": group}
        return Step(25, version, body, label=f"add group {name} {producer} {group} v{version}")

    def commit_offset(
        self,
        name: str,
        producer: tuple[int, int],
        group: str,
        offset: int,
        *,
        topic: str,
        partition: int = 0,
        version: int | None = None,
        **member: Any,
    ) -> Step:
        """Make a TxnOffsetCommit request for one partition."""
        part = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": "m",
        }
        version = self.commit_version if version is None else version
        body = {
            **_who(name, producer),
            "group_id": group,
            "topics": [{"name": topic, "partitions": [part]}],
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            **member,
        }
        label = f"commit offset {name} {producer} {group} {offset} {member} v{version}"
        return Step(28, version, body, label=label)

    def offsets(self, group: str, topic: str, *, stable: bool, version: int = 8) -> Step:
        """Make an OffsetFetch request for one partition."""
        wanted = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        body = {**wanted, "groups": [wanted], "require_stable": stable}
        return Step(9, version, body, label=f"offsets of {group}, stable {stable} v{version}")

    def end(
        self,
        name: str,
        producer: tuple[int, int],
        *,
        commit: bool,
        version: int | None = None,
    ) -> Step:
        """Make an EndTxn request."""
        version = self.end_version if version is None else version
        body = {**_who(name, producer), "committed": commit}
        return Step(26, version, body, label=f"end {name} {producer} {commit} v{version}")

    def listed(
        self, producer: tuple[int, int], *states: str, version: int = 0, **filters: Any
    ) -> Step:
        """Make a ListTransactions request for one producer id; the brokers know others, too."""
        wanted = {"state_filters": list(states), "producer_id_filters": [producer[0]]}
        label = f"list {producer[0]} {states} {filters} v{version}"
        return Step(66, version, wanted | filters, label=label)

    def after(self, producer: tuple[int, int]) -> tuple[int, int]:
        """Return a producer's id and epoch after a successful EndTxn; v2 increments the epoch."""
        return (producer[0], producer[1] + 1) if self.modern else producer

    async def join(self, name: str, producer: tuple[int, int], topic: str) -> None:
        """Add partition 0 to the transaction, which protocol v1 requires before a write."""
        if not self.modern:
            await self.ask(self.add(name, producer, {topic: [0]}))

    async def look(
        self, topic: str, *, partition: int = 0, offset: int = 0, when: str = ""
    ) -> None:
        """Check that Fetch and DescribeProducers give the same answers on both clusters."""
        await self.all(
            self.b.producers(topic, partition, label=f"{when}producers of {topic}"),
            *(
                step
                for isolation in (0, 1)
                for step in (
                    self.b.fetch(
                        topic,
                        offset,
                        partition,
                        isolation=isolation,
                        label=f"{when}fetch {topic} from {offset} isolation {isolation}",
                    ),
                    self.b.list_offsets(
                        topic,
                        -1,
                        partition,
                        isolation=isolation,
                        label=f"{when}end of {topic} isolation {isolation}",
                    ),
                )
            ),
        )


def _who(name: str, producer: tuple[int, int]) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
    }


# -- scripts ---------------------------------------------------------------------------------------


async def commits_and_aborts(t: Transactions) -> None:
    """Commit and abort transactions one after the other, and compare what readers see."""
    await t.b.topic("ends", 1)
    p = await t.start("ends")
    sequence = 0
    for commit in (True, False, True, True, False):
        await t.join("ends", p, "ends")
        for _ in range(2):
            await t.ask(t.write("ends", p, sequence, topic="ends"))
            sequence += 1
        await t.look("ends")
        await t.ask(t.end("ends", p, commit=commit))
        if t.modern:
            sequence = 0
        p = t.after(p)
        await t.ask(t.add("ends", p, {"ends": [0]}))
        await t.ask(t.end("ends", p, commit=False))
        p = t.after(p)
        await t.ask(t.init("ends", p))
        p = (p[0], p[1] + 1)
        sequence = 0
        await t.look("ends")
    for offset in (1, 3, 4, 7):
        await t.look("ends", offset=offset)


async def ends_in_and_out_of_turn(t: Transactions) -> None:
    """Send EndTxn requests that end the open transaction, and others that cannot.

    The others come when no transaction is open, a second time, with the opposite result (abort
    after commit, or commit after abort), or with a wrong producer id or epoch.
    """
    await t.b.topic("turns", 1)
    for version in range(4, t.newest_end + 1):
        name = f"turns{version}"
        p = await t.start(name)
        wrong = [(p[0], p[1] + 1), (p[0], p[1] + 2), (p[0] + 7, p[1]), (p[0], 32766)]
        for commit in (True, False):
            await t.ask(t.end("nobody", p, commit=commit, version=version))
            await t.ask(t.end("", p, commit=commit, version=version))
            await t.ask(t.end(name, p, commit=True, version=version))
            for other in wrong:
                await t.ask(t.end(name, other, commit=commit, version=version))
            await t.ask(t.add(name, p, {"turns": [0]}))
            await t.ask(t.write(name, p, 0 if version == 5 else int(not commit), topic="turns"))
            for other in wrong:
                await t.ask(t.end(name, other, commit=commit, version=version))
            await t.ask(t.end(name, p, commit=commit, version=version))
            await t.ask(t.end(name, p, commit=commit, version=version))
            await t.ask(t.end(name, p, commit=not commit, version=version))
            for other in wrong[1:]:
                await t.ask(t.end(name, other, commit=commit, version=version))
            if version == 5:
                p = (p[0], p[1] + 1)
            await t.ask(t.end(name, p, commit=True, version=version))
            wrong = [(p[0], p[1] + 1), (p[0], p[1] + 2), (p[0] + 7, p[1]), (p[0], 32766)]
        answer = await t.ask(t.end(name, p, commit=False, version=version))
        if version == 5 and answer["error_code"] == "none":
            p = (p[0], p[1] + 1)
        await t.ask(t.end(name, p, commit=False, version=version))
    await t.look("turns")


async def identities(t: Transactions) -> None:
    """Send InitProducerId without an identity, and with a current, an older and an unknown one."""
    p = await t.start("ids")
    for version in (0, 2, 3, 4, 5):
        await t.ask(t.init("ids", version=version))
    p = (p[0], 5)
    for claim in ((p[0], 5), (p[0], 5), (p[0], 4), (p[0], 6), (p[0], 9), (p[0] + 1, 6), (p[0], 0)):
        for version in (3, 4):
            await t.ask(t.init("ids", claim, version=version))
    # The producer missed the answer to EndTxn.
    q = await t.start("deaf")
    await t.ask(t.add("deaf", q, {"ends": [0]}))
    await t.ask(t.end("deaf", q, commit=True))
    await t.ask(t.init("deaf", q))
    await t.ask(t.init("deaf", q))
    await t.all(
        t.init("ids", (p[0], -1)),
        t.init("ids", (-1, 3)),
        t.init("ids", (-1, -1), version=0),
        t.init("", (-1, -1)),
        t.init("long", timeout=timedelta(hours=1)),
        t.init("short", timeout=ZERO),
        t.init("long", timeout=timedelta(minutes=15)),
    )


async def fencing(t: Transactions) -> None:
    """Let a second producer initialise the transactional id while a transaction is open."""
    await t.b.topic("fence", 2)
    p = await t.start("fence")
    await t.join("fence", p, "fence")
    await t.ask(t.write("fence", p, 0, topic="fence"))
    answer = await t.ask(t.init("fence", label="the twin"))
    await t.look("fence")
    now = (p[0], answer["producer_epoch"])
    for other in (p, (p[0], p[1] + 1), (p[0], now[1] + 1)):
        for version in (1, 2):
            await t.ask(t.add("fence", other, {"fence": [0]}, version))
            await t.ask(t.add_group("fence", other, "gf", version))
            await t.ask(t.end("fence", other, commit=True, version=version))
        await t.ask(t.end("fence", other, commit=True, version=t.newest_end))
        await t.ask(t.write("fence", other, 1, topic="fence"))
        await t.ask(t.write("fence", other, 0, topic="fence", partition=1))
        for version in range(3, t.newest_end + 1):
            await t.ask(t.commit_offset("fence", other, "gf", 1, topic="fence", version=version))
        await t.ask(t.init("fence", other, version=4))
    await t.look("fence")


async def other_epochs_within(t: Transactions) -> None:
    """Write with an epoch that is not the one of the partition's open transaction."""
    await t.b.topic("within", 1)
    await t.start("within")
    answer = await t.ask(t.init("within"))
    p = (t.b.pair.real.allocated(0), answer["producer_epoch"])
    await t.join("within", p, "within")
    await t.ask(t.write("within", p, 0, topic="within"))
    older, later = (p[0], p[1] - 1), (p[0], p[1] + 1)
    for who, called in ((older, "an older epoch"), (later, "a later epoch")):
        for version in (9, 11):
            label = f"write of {called} v{version}"
            await t.ask(t.write("within", who, 5, topic="within", version=version, label=label))
    # A refused batch does not delay the batches after it. That holds even for a refused batch of an
    # older epoch with sequence 0.
    await t.ask(t.write("within", older, 0, topic="within", label="write of an older epoch at 0"))
    await t.ask(t.write("within", p, 1, topic="within"))
    await t.ask(t.end("within", p, commit=True))
    await t.decided("within")
    await t.look("within")


async def aborted_behind_an_open_one(t: Transactions) -> None:
    """Abort a transaction behind an open one: the last stable offset stays before both."""
    await t.b.topic("behind", 1)
    p = await t.start("open")
    # Some record must be stable, because in an empty answer Kafka lists no aborted transactions.
    await t.join("open", p, "behind")
    await t.ask(t.write("open", p, 0, topic="behind"))
    await t.ask(t.end("open", p, commit=True))
    await t.decided("behind")
    answer = await t.ask(t.init("open"))
    p = (p[0], answer["producer_epoch"])
    q = await t.start("aborted")
    for name, who in (("open", p), ("aborted", q)):
        await t.join(name, who, "behind")
        await t.ask(t.write(name, who, 0, topic="behind"))
    await t.ask(t.end("aborted", q, commit=False))
    await t.b.pair.until(t.listed(q), lambda answer: "'CompleteAbort'" in str(answer))
    await t.look("behind")
    await t.ask(t.end("open", p, commit=True))
    await t.decided("behind")
    await t.look("behind", when="all ended: ")


async def partitions(t: Transactions) -> None:
    """Add partitions that exist and that do not, and write to partitions that were not added."""
    await t.b.topic("parts", 3)
    p = await t.start("parts")
    await t.all(
        t.add("parts", p, {"parts": [0, 9]}),
        t.add("parts", p, {"parts": [0], "nowhere": [0]}),
        t.add("parts", p, {"parts": [0]}),
        t.add("parts", p, {"parts": [0]}, 0),
        t.add("", p, {"parts": [0]}),
        t.add("nobody", p, {"parts": [0]}),
        t.add("parts", (p[0] + 5, p[1]), {"parts": [0]}),
        t.write("parts", p, 0, topic="parts"),
        t.write("parts", p, 0, topic="parts"),
        t.write("parts", p, 5, topic="parts"),
        t.write("parts", p, 1, topic="parts", transactional=False),
        t.write(None, p, 1, topic="parts"),
        t.write("nobody", p, 1, topic="parts", partition=1),
        t.write("parts", p, 1, topic="parts"),
    )
    for version in (10, 11, 12, 13):
        if version <= t.produce_version:
            await t.ask(t.write("parts", p, 3, topic="parts", partition=1, version=version))
            await t.ask(t.write("parts", p, 0, topic="parts", partition=1, version=version))
            await t.ask(t.write("parts", p, 1, topic="parts", partition=1, version=version))
    await t.ask(t.end("parts", p, commit=True))
    after = t.after(p)
    await t.decided("parts")
    await t.decided("parts", 1)
    for version in (10, 11, 12, 13):
        if version <= t.produce_version:
            # No transaction is open here: write with the old epoch and the new one.
            for who in (p, after):
                await t.ask(t.write("parts", who, 0, topic="parts", version=version))
                await t.ask(t.write("parts", who, 2, topic="parts", version=version))
    for partition in range(2):
        await t.look("parts", partition=partition)


async def without_state(t: Transactions) -> None:
    """Write different first sequences to partitions that do not know the producer."""
    await t.b.topic("first", 3)
    p = await t.start("first")
    await t.ask(t.add("first", p, {"first": [0]}))
    await t.ask(t.write("first", p, 5, topic="first", version=11))
    await t.ask(t.write("first", p, 6, topic="first", version=11))
    if t.produce_version >= 12:
        await t.ask(t.write("first", p, 5, topic="first", partition=1, version=12))
        await t.ask(t.write("first", p, 0, topic="first", partition=1, version=12))
    await t.look("first")
    await t.look("first", partition=1)


async def offsets(t: Transactions) -> None:
    """Commit offsets within transactions, also as members and producers that may not do so."""
    await t.b.topic("offs", 1)
    p = await t.start("offs")
    for version in (0, 2, 3, 4):
        await t.ask(t.commit_offset("offs", p, "go", 1, topic="offs", version=version))
    await t.ask(t.offsets("go", "offs", stable=True))
    for number, commit in enumerate((True, False, True)):
        if not t.modern:
            await t.ask(t.add_group("offs", p, "go"))
        await t.all(
            t.commit_offset("offs", p, "go", 10 + number, topic="offs"),
            t.commit_offset("offs", p, "go", 10 + number, topic="offs", partition=9),
            t.commit_offset("offs", p, "go", 10, topic="offs", generation_id=3, member_id="x"),
            t.commit_offset("offs", p, "go", 10, topic="offs", member_id="x"),
            t.commit_offset("offs", p, "go", 10, topic="offs", group_instance_id="x"),
            t.commit_offset("offs", (p[0] + 9, p[1]), "go", 10, topic="offs"),
            t.commit_offset("nobody", p, "go", 10 + number, topic="offs"),
            t.offsets("go", "offs", stable=True),
            t.offsets("go", "offs", stable=False),
            t.offsets("go", "offs", stable=True, version=7),
            t.end("offs", p, commit=commit),
        )
        p = t.after(p)
        await t.ask(t.add("offs", p, {"offs": [0]}))
        await t.ask(t.offsets("go", "offs", stable=True))
        await t.ask(t.end("offs", p, commit=False))
        p = t.after(p)
    await t.ask(t.commit_offset("nobody", p, "go", 10, topic="offs"))
    # This later epoch is sent only after the transaction: within one, 3.9.1 accepts the request and
    # can then never end the transaction.
    await t.ask(t.commit_offset("offs", (p[0], p[1] + 1), "go", 10, topic="offs"))
    await t.ask(t.add_group("nobody", p, "go"))
    await t.ask(t.add_group("", p, "go"))


async def timeouts(t: Transactions) -> None:
    """Let the coordinator abort a transaction, and compare the answers that its producer gets."""
    await t.b.topic("late", 1)
    p = await t.start("late", timeout=timedelta(milliseconds=500))
    await t.join("late", p, "late")
    await t.ask(t.write("late", p, 0, topic="late"))
    await t.b.pair.until(
        t.b.list_offsets("late", -1, isolation=1),
        lambda answer: "'offset': 2" in str(answer),
    )
    await t.look("late")
    await t.ask(t.write("late", p, 1, topic="late"))
    await t.ask(t.end("late", p, commit=True))
    await t.ask(t.add("late", p, {"late": [0]}))
    await t.ask(t.init("late", p))
    await t.ask(t.end("late", p, commit=False))
    await t.look("late")


async def listing(t: Transactions) -> None:
    """List the transactional ids of a coordinator, by each filter."""
    await t.b.topic("listed", 1)
    p = await t.start("listed")
    await t.ask(t.listed(p))
    await t.join("listed", p, "listed")
    await t.ask(t.write("listed", p, 0, topic="listed"))
    for states in ((), ("Ongoing",), ("Empty", "CompleteCommit"), ("ongoing", "Dead", "Ongoing")):
        await t.ask(t.listed(p, *states))
    await t.ask(t.listed(p, version=1, duration_filter=-1))
    await t.ask(t.listed(p, version=1, duration_filter=3_600_000))
    if t.b.world.kafka != "3.9.1":
        for pattern in (None, "", "listed", "list", "l.*d", "L.*", "("):
            await t.ask(t.listed(p, version=2, transactional_id_pattern=pattern))
    await t.ask(t.end("listed", p, commit=True))
    p = t.after(p)
    await t.b.pair.until(t.listed(p), lambda answer: "'CompleteCommit'" in str(answer))


async def lowest_sequence(t: Transactions) -> None:
    """Repeat the last batch of a transaction in the next one, and continue after it."""
    await t.b.topic("low", 1)
    p = await t.start("low")
    await t.ask(t.add("low", p, {"low": [0]}))
    await t.ask(t.write("low", p, 0, topic="low", version=11))
    await t.ask(t.end("low", p, commit=True, version=4))
    await t.ask(t.add("low", p, {"low": [0]}))
    await t.all(
        *(t.write("low", p, number, topic="low", version=11) for number in (0, 1, 2, 1, 2)),
    )
    await t.look("low")


async def the_wrong_generation(t: Transactions) -> None:
    """Send requests of protocol v2 to a v1 cluster: the transactional id stays busy for ever."""
    if t.b.world.name != "4.3.1-v1":
        return
    await t.b.topic("wrong", 1)
    for name in ("wrong end", "wrong offsets", "wrong write"):
        p = await t.start(name)
        if name == "wrong end":
            await t.ask(t.add(name, p, {"wrong": [0]}))
            await t.ask(t.end(name, p, commit=True, version=5))
        elif name == "wrong offsets":
            await t.ask(t.commit_offset(name, p, "gw", 1, topic="wrong", version=5))
        else:
            await t.ask(t.write(name, p, 0, topic="wrong", version=12))
        await t.stay_busy(t.init(name))


SCRIPTS: Final[Sequence[Script]] = (
    commits_and_aborts,
    ends_in_and_out_of_turn,
    identities,
    fencing,
    other_epochs_within,
    aborted_behind_an_open_one,
    partitions,
    without_state,
    offsets,
    timeouts,
    listing,
    lowest_sequence,
    the_wrong_generation,
)


@asynccontextmanager
async def transactional_bench(
    asked: TransactionalWorld, allowed: Sequence[Allowed]
) -> AsyncIterator[Transactions]:
    """Start real Kafka and an embedded cluster, and yield `Transactions` on both."""
    world = asked.world
    async with (
        KafkaCluster(
            world.kafka, properties=SETTINGS | KAFKAS | _SOON | _OFFSETS, features=asked.features
        ) as kafka,
        EmbeddedCluster(
            produce_versions=world.produce,
            configs=SETTINGS | _SOON,
            transaction_version=2 if asked.level == 2 else 0,
        ) as embedded,
    ):
        pair = Pair(
            world.name,
            Side("real", lambda: (HOST, kafka.brokers[0].inner_port)),
            Side("ours", lambda: (HOST, embedded.state.running[0].port)),
            allowed,
        )
        made = Bench(world, pair, kafka, embedded)
        try:
            await made.get_ready()
            # Kafka creates the coordinators' topics at the first FindCoordinator.
            for kind in (0, 1):
                body = {"key_type": kind, "coordinator_keys": ["any"]}
                await pair.until(Step(10, 4, body), lambda answer: "'none'" in str(answer))
            yield Transactions(made, asked)
        finally:
            await pair.hang_up()

"""examples/consume_transform_produce.py copies each record once, even if members are killed."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import random
import textwrap
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import anyio
import pytest
from kio.schema.errors import ErrorCode

import aioidem
from aioidem._broker.intercept import Drop, RequestSeen
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.aiokafka import AIOKafkaProducer, group_metadata
from aioidem.integrations.aiokafka import committed as committed_offsets
from tests.waiting import until

from .suite import World
from .suite_transactions import committed

EXAMPLE = Path(__file__).parents[2] / "examples" / "consume_transform_produce.py"
NUMBERS, STEP = 1500, 150
OFFSET_FETCH, TXN_OFFSET_COMMIT = 9, 28
pytestmark = pytest.mark.anyio


def loaded() -> Any:
    """Import the example as a module."""
    specification = importlib.util.spec_from_file_location("example_of_copying", EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


async def fill(cluster: EmbeddedCluster, numbers: range) -> None:
    async with aioidem.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in numbers:
            await producer.send("numbers", b"%d" % number, partition=number % 3)


def member(example: Any, cluster: EmbeddedCluster, number: int) -> asyncio.Future[None]:
    """Run the example as one member of the group, until it is cancelled."""
    servers = cluster.bootstrap_servers
    running: asyncio.Future[None] = asyncio.ensure_future(
        example.run(servers, "numbers", "squares", group="g", number=number)
    )
    return running


async def copied(cluster: EmbeddedCluster) -> Counter[int]:
    world = World(None, cluster.bootstrap_servers, "squares")
    values = [value for partition in range(3) for value in await committed(world, partition)]
    return Counter(map(int, values))


WANTED = Counter(number**2 for number in range(NUMBERS))
# When aiokafka's consumer is cancelled while it connects, it leaves its connection unclosed.
FORGOTTEN = (
    "ignore:.*(AIOKafkaConnection|StreamWriter.__del__):pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.slow
@pytest.mark.filterwarnings(FORGOTTEN)
@pytest.mark.parametrize("version", [0, 2])
async def test_the_example_copies_once_whatever_is_killed(version: Any) -> None:
    """Each record is copied once although the task is killed and coordinators move at any step."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    rng = random.Random(seed)
    example = loaded()
    options: dict[str, Any] = {"brokers": 3, "rtt": 0.02, "transaction_version": version}
    async with EmbeddedCluster(transport="tcp", **options) as cluster:
        for topic in ("numbers", "squares"):
            cluster.create_topic(topic, partitions=3, replication=3)

        async def copy_and_be_killed() -> None:
            running = asyncio.ensure_future(
                example.run(
                    cluster.bootstrap_servers,
                    "numbers",
                    "squares",
                    group="g",
                    number=1,
                    partitions=(0, 1, 2),
                )
            )
            await asyncio.wait([running], timeout=rng.uniform(0.1, 0.8))
            cluster.move_coordinator(rng.choice(("g", "g-1")), rng.randrange(3))
            running.cancel()
            with suppress(asyncio.CancelledError, aiokafka.errors.KafkaError):
                await running

        with anyio.fail_after(50):
            for first in range(0, NUMBERS, STEP):
                await fill(cluster, range(first, first + STEP))
                await copy_and_be_killed()
            while sum((found := await copied(cluster)).values()) < NUMBERS:
                await copy_and_be_killed()
        assert found == WANTED


async def test_a_consumer_that_lost_its_partitions_copies_nothing() -> None:
    """Offsets that a consumer commits in an old generation of its group are refused (KIP-447)."""
    example = loaded()
    async with EmbeddedCluster(transport="tcp") as cluster:
        for topic in ("numbers", "squares"):
            cluster.create_topic(topic, partitions=3)
        await fill(cluster, range(NUMBERS))
        assigned = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers, group_id="g", enable_auto_commit=False
        )
        producer = example.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="g-1"
        )
        async with assigned, producer:
            assigned.assign([aiokafka.TopicPartition("numbers", each) for each in range(3)])
            await assigned.seek_to_beginning()
            # The group's only member is another consumer, as if a rebalance had removed `assigned`.
            cluster.set_group("g", 7, {"somebody": None})
            assert group_metadata(assigned) == ("g", -1, "", None)
            assigned._coordinator.generation = 6  # noqa: SLF001 - as if it had been a member
            assigned._coordinator.member_id = "somebody"  # noqa: SLF001
            copier = example.Copier(assigned, producer, "squares")
            assert await copier.copy_some() == 0
            assigned._coordinator.generation = 7  # noqa: SLF001
            while await copier.copy_some():
                pass
        assert await copied(cluster) == WANTED


async def test_committed_offsets_wait_until_no_transaction_can_change_them() -> None:
    """`committed_offsets` waits for an open transaction; its timeout error says so."""
    numbers = [aiokafka.TopicPartition("numbers", each) for each in range(3)]
    async with EmbeddedCluster(transport="tcp") as cluster:
        cluster.create_topic("numbers", partitions=3)
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="g-1"
        ) as producer:
            assert await committed_offsets(producer, "g", numbers) == {}
            cluster.hold_markers()
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({numbers[1]: 7, numbers[2]: 9}, "g")
            await producer.commit_transaction()
            with pytest.raises(aiokafka.errors.KafkaTimeoutError, match="an open transaction"):
                await committed_offsets(producer, "g", numbers, timeout_ms=1000)
            cluster.release_markers()
            found = await committed_offsets(producer, "g", numbers)
            assert found == {numbers[1]: 7, numbers[2]: 9}
            cluster.fail_coordinator("g", ErrorCode.group_authorization_failed)
            with pytest.raises(aiokafka.errors.GroupAuthorizationFailedError):
                await committed_offsets(producer, "g", numbers)


async def test_committed_offsets_without_any_answer_say_so() -> None:
    number = aiokafka.TopicPartition("numbers", 0)
    async with (
        EmbeddedCluster(transport="tcp") as cluster,
        AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        cluster.intercept(lambda _: Drop(processed=False, silent=True))
        with pytest.raises(aiokafka.errors.KafkaTimeoutError, match="first attempt had not"):
            await committed_offsets(producer, "g", [number], timeout_ms=50)


async def test_asking_for_committed_offsets_can_be_cancelled_at_any_step() -> None:
    """Cancelling `committed_offsets` at any step leaves no connection open.

    An open connection would show as a ResourceWarning, which is an error here.
    """
    number = aiokafka.TopicPartition("numbers", 0)
    async with EmbeddedCluster(transport="tcp") as cluster:
        cluster.create_topic("numbers")
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            steps = 0
            while True:
                asking = asyncio.ensure_future(committed_offsets(producer, "g", [number]))
                for _ in range(steps):
                    await asyncio.sleep(0)
                if asking.done():
                    break
                asking.cancel()
                await asyncio.wait([asking])
                steps += 1
            assert await asking == {}
            assert steps > 20
    gc.collect()


async def test_a_consumer_that_is_no_member_has_no_place() -> None:
    alone = aiokafka.AIOKafkaConsumer("t", group_id="g")
    with pytest.raises(TypeError, match="was not started"):
        group_metadata(alone)
    await alone.stop()


@pytest.mark.filterwarnings(FORGOTTEN)
async def test_members_of_a_group_share_the_partitions_and_copy_once() -> None:
    """Each record is copied once when a member joins the group and another one ends."""
    example = loaded()
    async with EmbeddedCluster(transport="tcp") as cluster:
        for topic in ("numbers", "squares"):
            cluster.create_topic(topic, partitions=3)

        async def until_copied(count: int) -> None:
            await until(lambda: len(cluster.records("squares")) >= count, pause=0.02)

        async def end(running: asyncio.Future[None]) -> None:
            running.cancel()
            with suppress(asyncio.CancelledError, aiokafka.errors.KafkaError):
                await running

        def members() -> int:
            group = cluster.state.groups.find("g")
            return 0 if group is None else len(group.members)

        with anyio.fail_after(45):
            one = member(example, cluster, 1)
            await fill(cluster, range(500))
            await until_copied(500)
            two = member(example, cluster, 2)
            await until(lambda: members() == 2, pause=0.02)
            await fill(cluster, range(500, 1000))
            await until_copied(1000)
            await end(one)
            await fill(cluster, range(1000, NUMBERS))
            await until_copied(NUMBERS)
            await end(two)
        found = Counter(int(record.value or b"") for record in cluster.records("squares"))
        assert found == WANTED


@pytest.mark.filterwarnings(FORGOTTEN)
async def test_a_member_waits_for_the_offsets_of_the_one_before_it() -> None:
    """A partition's new owner waits for the markers of the commit that its old owner began."""
    example = loaded()
    asked: list[int] = []

    def listen(seen: RequestSeen) -> None:
        waits = seen.api_key == OFFSET_FETCH and getattr(seen.request, "require_stable", False)
        if waits or (seen.api_key == TXN_OFFSET_COMMIT and "g-2" in str(seen.request)):
            asked.append(seen.api_key)

    async with EmbeddedCluster(transport="tcp") as cluster:
        for topic in ("numbers", "squares"):
            cluster.create_topic(topic, partitions=3)
        await fill(cluster, range(500))

        def decided() -> bool:
            of_one = cluster.state.transactions.find("g-1")
            return of_one is not None and of_one.ending

        with anyio.fail_after(45):
            cluster.hold_markers()
            one = member(example, cluster, 1)
            await until(decided, pause=0.02)
            one.cancel()
            cluster.intercept(listen)
            two = member(example, cluster, 2)
            # The new member must first ask for stable offsets; else it would copy records again.
            await until(lambda: bool(asked), pause=0.02)
            cluster.release_markers()
            await fill(cluster, range(500, NUMBERS))
            await until(lambda: len(cluster.records("squares")) >= NUMBERS, pause=0.02)
            two.cancel()
            await asyncio.wait([one, two])
        assert await copied(cluster) == WANTED


async def test_the_transactional_copy_of_the_readme_runs() -> None:
    """The README's example runs: the record and the group's offset are committed together."""
    text = (EXAMPLE.parent.parent / "README.md").read_text(encoding="utf-8")
    [block] = [each for each in text.split("```") if "send_offsets_to_transaction(" in each]
    lines = block.removeprefix("python\n").replace('"localhost:9092"', "servers")
    source = "async def run(servers):\n" + textwrap.indent(lines, "    ")
    names: dict[str, Any] = {"aioidem": aioidem, "Producer": aioidem.Producer}
    exec(compile(source, "README.md", "exec"), names)  # noqa: S102 - ours
    async with EmbeddedCluster(transport="tcp") as cluster:
        cluster.create_topic("in")
        cluster.create_topic("events")
        async with aioidem.Producer(cluster.bootstrap_servers) as producer:
            for _ in range(43):
                await producer.send("in", b"to be copied")
        with anyio.fail_after(20):
            await names["run"](cluster.bootstrap_servers)
            assert [each.value for each in cluster.records("events")] == [b"value"]
            consumer = aiokafka.AIOKafkaConsumer(
                "in", bootstrap_servers=cluster.bootstrap_servers, group_id="my-group"
            )
            async with consumer:
                assert (await consumer.getone()).offset == 42

"""A replay gives a real engine what was recorded, and sees it decide the same."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, Literal

import pytest
from anyio import to_thread

from aioidem import Producer, TopicPartition
from aioidem._flight.record import FlightRecord
from aioidem._flight.replay import Replay
from aioidem._producer.native import internals
from aioidem._protocol.metadata import BrokerAddress
from aioidem.broker import EmbeddedCluster
from aioidem.errors import FlightRecordError
from aioidem.testing import Anomaly
from tests.simulated.mutants import MUTANTS, applied
from tests.simulated.soak import drawn

from .simulated import flown, replayed

FROM_THE_START = 1_000_000
LATE = 150
"""With so few events kept, a replay begins with a state in the middle of the run."""

SEEDS = (1, 4, 5, 9, 18, 30, 41)
"""Runs of the simulation with faults: lost answers, moved leaders, forgotten producers, and (41) a
batch that gets other numbers.
"""

UNSENT = (16, 56)
"""Runs that end before a record is sent."""

SHORTENED = (119, 125)
"""Runs in which records expire while they are compressed together with later ones."""


@pytest.mark.parametrize("most", [FROM_THE_START, LATE])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_decides_what_was_decided(seed: int, most: int) -> None:
    """Each poll of a replay sends the batches and returns the steps of the recorded one."""
    _, content = flown(drawn(seed), most)
    record = FlightRecord.decode(content)
    assert (record.state is None) is (most == FROM_THE_START)
    replay = replayed(content)
    assert [str(each) for each in replay.differences] == []
    assert sum(len(each[4]) for each in record.events if each[0] == "poll")


@pytest.mark.parametrize("seed", UNSENT + SHORTENED)
def test_records_that_end_before_they_are_sent_are_replayed(seed: int) -> None:
    """They open connections and are compressed, and the replay decides both as recorded."""
    _, content = flown(drawn(seed), FROM_THE_START)
    record = FlightRecord.decode(content)
    assert any(each[0] == "failed" for each in record.events)
    assert [str(each) for each in replayed(content).differences] == []


@pytest.mark.parametrize(
    ("name", "seed", "anomaly", "said"),
    [
        ("twenty kept after a leader change", 236, Anomaly.SPAN, "the window is 5"),
        ("in doubt batch is renumbered", 3, Anomaly.EPOCH_OVERLAP, "got a new identity"),
    ],
)
def test_a_planted_bug_replays_to_the_same_violation(
    name: str, seed: int, anomaly: Anomaly, said: str
) -> None:
    """A record of an engine that breaks a rule replays to the same steps, and breaks it again.

    Without the bug, the engine decides something else, and breaks no rule.
    """
    mutant = MUTANTS[name]
    with applied(mutant):
        result, content = flown(drawn(seed), FROM_THE_START)
        broken = replayed(content)
    mended = replayed(content)
    assert anomaly in {each.anomaly for each in result.violations}
    assert broken.diverged == 0
    assert any(said in each.text for each in broken.violations)
    assert mended.violations == []
    assert mended.diverged


def transaction_calls_replayed_from(path: Path) -> list[tuple[Any, ...]]:
    """Return the calls about transactions that a file holds, after a replay that decides the same.

    It reads files: the first file that a process decodes looks for the classes it may name.
    """
    content = path.read_bytes()
    assert [str(each) for each in replayed(content).differences] == []
    events = FlightRecord.decode(content).events
    return [each[1:] for each in events if each[0] == "transaction"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])  # its clock tells all events apart
@pytest.mark.parametrize("version", [0, 2])
async def test_another_transactional_id_is_replayed(version: Literal[0, 2], tmp_path: Path) -> None:
    """A producer that has changed its transactional id replays to the same calls.

    So does one that was told the coordinator of a group.
    """
    path = tmp_path / "ids.flight.gz"
    async with EmbeddedCluster(transaction_version=version) as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        where = servers.split(":")[0], int(servers.split(":")[1])
        async with Producer(servers, transactional_id="x", flight_recorder=1_000_000) as producer:
            for name in ("y", "z"):
                async with producer.transaction():
                    await producer.send("t", name.encode())
                    internals(producer).learn_coordinator("g", BrokerAddress(0, *where))
                    await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
                await internals(producer).change_id(name, 30.0)
            await producer.dump_flight_record(path)
    called = await to_thread.run_sync(transaction_calls_replayed_from, path)
    assert [given for call, given, _ in called if call == "id"] == ["y", "z"]


async def four_transactions(path: Path, version: Literal[0, 2], *, known: bool) -> None:
    """Have a producer write four transactions, and check that a replay decides the same.

    Args:
        path: The flight record.
        version: That of transactions.
        known: Whether the topic is known before the first record.
    """
    async with EmbeddedCluster(transaction_version=version) as cluster:
        cluster.create_topic("t", partitions=2)
        async with Producer(
            cluster.bootstrap_servers, transactional_id="x", flight_recorder=1_000_000
        ) as producer:
            if known:
                await producer.partitions_for("t")
            for _ in range(3):
                await producer.begin_transaction()
                for partition in (1, 0, 1):
                    producer.send_nowait("t", b"v", partition=partition)
                await producer.commit_transaction()
            await producer.begin_transaction()
            producer.send_nowait("t", b"v")
            await producer.abort_transaction()
            await producer.dump_flight_record(path)
    calls = await to_thread.run_sync(transaction_calls_replayed_from, path)
    assert [before for call, _, before in calls if call == "begin"] == [0, 3, 6, 9]
    assert [before for call, _, before in calls if call in ("commit", "abort")] == [3, 6, 9, 10]


@pytest.mark.anyio
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("known", [True, False])
async def test_records_are_replayed_in_the_transaction_that_they_belong_to(
    known: bool, version: Literal[0, 2], tmp_path: Path
) -> None:
    """They are queued before the commit, which follows at once, also if their topic is new.

    The clock of uvloop stands still meanwhile.
    """
    await four_transactions(tmp_path / "calls.flight.gz", version, known=known)


class CoarseLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves ten times a second."""

    def time(self) -> float:
        """Return the time in seconds, rounded down to a tenth."""
        return math.floor(super().time() * 10.0) / 10.0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": CoarseLoop})])
@pytest.mark.parametrize("version", [0, 2])
async def test_records_of_several_transactions_may_be_queued_at_one_time(
    version: Literal[0, 2], tmp_path: Path
) -> None:
    await four_transactions(tmp_path / "calls.flight.gz", version, known=True)


def test_a_replay_is_run_once() -> None:
    """The engine of a replay cannot be used again."""
    _, content = flown(drawn(4), LATE)
    replay = Replay(FlightRecord.decode(content))
    list(replay.run())
    with pytest.raises(FlightRecordError, match="once"):
        next(replay.run())

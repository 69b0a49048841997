"""A file that is damaged, or made by an attacker, ends in one kind of error and does nothing."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from aioidem import Producer
from aioidem._flight import plain
from aioidem._flight.record import FlightRecord
from aioidem._flight.replay import Replay
from aioidem.broker import EmbeddedCluster
from aioidem.errors import FlightRecordError
from tests.simulated.soak import drawn

from .simulated import flown, replayed

SEED = 20261124


def packed(lines: list[Any]) -> bytes:
    """Return the content of a file with these lines."""
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def lines_of(content: bytes) -> list[Any]:
    """Return the lines of a file."""
    return [json.loads(line) for line in gzip.decompress(content).splitlines()]


def tried(content: bytes) -> None:
    """Read and replay a file; nothing but a FlightRecordError may come of it."""
    with contextlib.suppress(FlightRecordError):
        for _ in Replay(FlightRecord.decode(content)).run():
            pass


@pytest.fixture(scope="module")
def content() -> bytes:
    """Make a flight record that begins with a state."""
    return flown(drawn(4), 150)[1]


def test_each_cut_and_each_changed_byte_is_a_clear_error(content: bytes) -> None:
    """A file that was cut off or changed anywhere is refused, or is another valid file."""
    chance = random.Random(SEED)
    for _ in range(60):
        end = chance.randrange(len(content))
        with pytest.raises(FlightRecordError):
            FlightRecord.decode(content[:end])
        changed = bytearray(content)
        changed[end] ^= 1 << chance.randrange(8)
        tried(bytes(changed))


def test_changed_values_are_refused_or_replayed(content: bytes) -> None:
    """Whatever value stands in the place of another one, there is no traceback and no hang."""
    chance = random.Random(SEED)
    lines = lines_of(content)
    others: list[Any] = [None, -1, 1 << 70, 1e308, "x", [], {}, ["r", 0], ["b", 1 << 40], True]
    for _ in range(60):
        changed = json.loads(json.dumps(lines))
        line = chance.choice([1, 1, chance.randrange(len(changed))])
        swap(changed[line], chance.choice(others), chance)
        tried(packed(changed))


def swap(value: Any, other: Any, chance: random.Random) -> None:
    """Put a value in the place of another one somewhere in a JSON value."""
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value or ())))
        if not places or not isinstance(value, dict | list):
            return
        place = chance.choice(places)
        if not isinstance(value[place], dict | list) or not value[place] or chance.random() < 0.2:
            value[place] = other
            return
        value = value[place]


@pytest.mark.parametrize(
    "value",
    [
        ["i", "os.system", {}],
        ["i", "builtins.eval", {}],
        ["n", "subprocess.Popen", "true"],
        ["e", "_engine.batch.BatchState", "__class__"],
        ["m", ["i", "_engine.backoff.Backoff", {}], "__init__.__globals__"],
        ["m", ["l"], "append"],
        ["i", "_engine.backoff.Backoff", {"__class__": 1}],
        ["i", "_engine.core.ProducerCore", {"poll": 1}],
        ["c", "_engine.core.ProducerCore"],
        ["$", "builtins"],
        ["b", 1 << 40],
        ["x", "SystemExit"],
        ["a", "u", [1]],
        ["r", 7],
        [[]],
        {"i": 1},
    ],
)
def test_a_value_that_names_what_is_not_the_engines_is_refused(value: Any) -> None:
    """A file can name classes of the engine only, with the attributes that these have."""
    with pytest.raises(FlightRecordError):
        plain.Reader().value(value)


def test_deep_values_and_large_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither nesting nor compression makes a small file take much memory."""
    deep: Any = 1
    for _ in range(60):
        deep = ["l", deep]
    with pytest.raises(FlightRecordError):
        plain.Reader().value(deep)
    with pytest.raises(FlightRecordError):
        FlightRecord.decode(gzip.compress(b"[" * 100_000))
    monkeypatch.setattr("aioidem._flight.record.MOST_EXPANDED", 1000)
    with pytest.raises(FlightRecordError, match="more than 1000 bytes"):
        FlightRecord.decode(gzip.compress(b" " * 100_000))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no flight record"),
        (b"PK\x03\x04", "no flight record"),
        (gzip.compress(b"{}"), "no flight record"),
        (gzip.compress(b"[1]\n[2]\n[3]"), "no flight record"),
        (gzip.compress(b'\xff{"'), "damaged"),
    ],
    ids=["empty", "zip", "object", "numbers", "garbage"],
)
def test_another_file_is_named_as_such(data: bytes, said: str) -> None:
    """A file of another kind is said to be no flight record."""
    with pytest.raises(FlightRecordError, match=said):
        FlightRecord.decode(data)


@pytest.mark.parametrize("number", [-1, 1 << 20, 0.5, None, True])
def test_a_number_for_a_topic_that_was_not_written_before_is_damage(number: Any) -> None:
    lines = lines_of(flown(drawn(4), 100_000)[1])
    topics = ["t", number]
    for event in lines[2:]:
        match event:
            case ["answer", _, ["n", "_protocol.metadata.MetadataUpdate", *values], _]:
                (place,) = [i for i, each in enumerate(values) if "TopicUpdate" in json.dumps(each)]
                event[2][2 + place] = topics
                break
    with pytest.raises(FlightRecordError, match="damaged"):
        FlightRecord.decode(packed(lines))


def test_a_file_of_another_version_says_who_wrote_it(content: bytes) -> None:
    """The error for a newer format names the version of aioidem that wrote the file."""
    lines = lines_of(content)
    lines[0] |= {"version": 3, "aioidem": "9.9"}
    with pytest.raises(FlightRecordError, match=r"version 3 .* '9.9' wrote it"):
        FlightRecord.decode(packed(lines))


def is_read_without_the_place_of_calls(path: Path) -> None:
    """Check that a file is read, and replays the same, if its calls do not say that place."""
    lines = lines_of(path.read_bytes())
    calls = [line for line in lines if isinstance(line, list) and line[0] == "transaction"]
    assert [len(call) for call in calls] == [4] * len(calls)
    for call in calls:
        del call[3]
    content = packed(lines)
    events = FlightRecord.decode(content).events
    assert [each[3] for each in events if each[0] == "transaction"] == [0] * len(calls)
    assert [str(each) for each in replayed(content).differences] == []


@pytest.mark.anyio
async def test_a_file_without_the_place_of_calls_about_transactions_is_read(tmp_path: Path) -> None:
    """Such files were written before a call said how many records were queued before it."""
    path = tmp_path / "calls.flight.gz"
    async with (
        EmbeddedCluster(transport="memory") as cluster,
        Producer(
            cluster.bootstrap_servers, connector=cluster.connector, transactional_id="x"
        ) as producer,
    ):
        async with producer.transaction():
            await producer.send("t", b"v")
        await producer.dump_flight_record(path)
    await to_thread.run_sync(is_read_without_the_place_of_calls, path)

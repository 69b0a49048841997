"""Measure the cost of a record on localhost: aioidem and aiokafka in turns, on one real broker.

    python benchmarks/localhost.py
    python benchmarks/localhost.py --rounds 5 --seconds 5 --uvloop --json localhost.json

Records of 100 bytes go to four partitions. Both clients are idempotent and otherwise use their
defaults. Each run has a process of its own, in turns: A B C A B C ... There are three ways of
sending:

- `await`: several tasks (`--tasks`), each of which sends a record, awaits its acknowledgement, and
  sends the next one: `await aioidem.Producer.send()`, `await AIOKafkaProducer.send_and_wait()`.
- `one`: the same with a single task, so that every record is a request of its own.
- `queue`: one task queues records and awaits only room in the buffer: `send_nowait()`, `await
  AIOKafkaProducer.send()`. At most `--queued` records are unacknowledged.

aiokafka runs twice: as installed, with its C extension, and without it (`AIOKAFKA_NO_EXTENSIONS`),
because aioidem is not compiled yet.

The output is acknowledged records per second and the client's CPU time per record, as medians over
the rounds. On two cores the broker takes its share; CPU time per record does not depend on that.
`--profile FILE` profiles aioidem instead: it prints each module's share of the time, and writes
FILE for pstats. The profiler makes many small calls look more expensive than they are.

Rejected: one process for both (each would collect the other's garbage); the cluster's proxy in
between (a third process that uses CPU time); a mean (one slow round would decide).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib.util
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import aioidem
from aioidem.testing import KafkaCluster

PARTITIONS = 4
RECORD = bytes(range(100))
WARM_UP = 1.0
CLIENTS = ("aioidem", "aiokafka", "aiokafka-pure")
WAYS = ("await", "one", "queue")
ENDING = 60.0

Task = Coroutine[Any, Any, None]


class Load:
    """The count of acknowledgements during one measurement, and when the measurement ends."""

    def __init__(self, seconds: float, limit: int) -> None:
        self.acked = 0
        self.open = 0
        self.begin = time.perf_counter() + WARM_UP
        self.end = self.begin + seconds
        self._limit = limit
        self._room = asyncio.Event()
        self._at_begin: tuple[float, float, int] | None = None

    def over(self) -> bool:
        """Return whether the measurement is over; the first call after the warm-up starts it."""
        now = time.perf_counter()
        if self._at_begin is None and now >= self.begin:
            self._at_begin = (now, time.process_time(), self.acked)
        return now >= self.end

    def result(self) -> tuple[float, float]:
        """Return records per second, and CPU seconds per record."""
        if self._at_begin is None:
            raise RuntimeError("not one record after the warm-up")
        began, cpu, acked = self._at_begin
        count = self.acked - acked
        return count / (time.perf_counter() - began), (time.process_time() - cpu) / max(1, count)

    async def room(self) -> None:
        """Wait, if the limit of open records was reached, until only half as many are open."""
        if self.open >= self._limit:
            self._room.clear()
            await self._room.wait()

    def done(self, outcome: Any) -> None:
        """Count a queued record that was acknowledged, or raise the error of one that failed."""
        if outcome.exception() is not None:
            raise outcome.exception()
        self.acked += 1
        self.open -= 1
        if self.open * 2 == self._limit:
            self._room.set()


async def aioidem_load(way: str, bootstrap: str, topic: str, load: Load, tasks: int) -> None:
    """Run the load with aioidem in its default settings."""
    async with aioidem.Producer(bootstrap) as producer:

        async def sending() -> None:
            while not load.over():
                await producer.send(topic, RECORD)
                load.acked += 1

        async def queueing() -> None:
            while not load.over():
                try:
                    delivery = producer.send_nowait(topic, RECORD)
                except aioidem.errors.BufferFullError:
                    await producer.wait_for_room()
                    continue
                delivery.add_done_callback(load.done)
                load.open += 1
                await load.room()
            await producer.flush(ENDING)

        await asyncio.gather(*_tasks(way, tasks, sending, queueing))


def _tasks(
    way: str, tasks: int, sending: Callable[[], Task], queueing: Callable[[], Task]
) -> list[Task]:
    if way == "queue":
        return [queueing()]
    return [sending() for _ in range(1 if way == "one" else tasks)]


async def aiokafka_load(way: str, bootstrap: str, topic: str, load: Load, tasks: int) -> None:
    """Run the load with aiokafka, idempotent and otherwise in its default settings."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:

        async def sending() -> None:
            while not load.over():
                await producer.send_and_wait(topic, RECORD)
                load.acked += 1

        async def queueing() -> None:
            while not load.over():
                future = await producer.send(topic, RECORD)
                future.add_done_callback(load.done)
                load.open += 1
                await load.room()
            await producer.flush()

        await asyncio.gather(*_tasks(way, tasks, sending, queueing))
    finally:
        await producer.stop()


def child(flags: argparse.Namespace) -> int:
    """Run one client once, and print its figures as JSON."""
    run = aioidem_load if flags.child == "aioidem" else aiokafka_load

    async def measured() -> tuple[float, float]:
        load = Load(flags.seconds, flags.queued)
        await asyncio.wait_for(
            run(flags.way, flags.bootstrap, flags.topic, load, flags.tasks), flags.seconds + ENDING
        )
        return load.result()

    profile = cProfile.Profile() if flags.profile else None
    with asyncio.Runner(loop_factory=_loop_factory(flags.uvloop)) as runner:
        if profile is not None:
            profile.enable()
        rate, cpu = runner.run(measured())
        if profile is not None:
            profile.disable()
            profile.dump_stats(flags.profile)
            print("\n".join(shares(pstats.Stats(profile))), file=sys.stderr)
    print(json.dumps([rate, cpu]))
    return 0


def shares(stats: pstats.Stats) -> list[str]:
    """Return each module's share of the time that was not spent waiting."""
    seconds: dict[str, float] = {}
    waiting = ("select", "poll")
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        if not any(f"method '{each}'" in name for each in waiting):
            where = _module(file, name)
            seconds[where] = seconds.get(where, 0.0) + own
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return [f"{100 * own / total:5.1f} %  {where}" for where, own in ranked[:20]]


def _module(file: str, name: str) -> str:
    if file == "~":
        return "the socket" if "_socket" in name else "built-in functions"
    parts = Path(file).with_suffix("").parts
    for package in ("aioidem", "asyncio", "anyio", "uvloop"):
        if package in parts:
            first = len(parts) - 1 - parts[::-1].index(package)
            return package if package != "aioidem" else "/".join(parts[first:])
    return "this script" if parts[-1] == Path(__file__).stem else "other libraries"


def _loop_factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    if not uvloop:
        return asyncio.new_event_loop
    from uvloop import new_event_loop

    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians over the rounds of one client with one way of sending."""

    client: str
    way: str
    records_per_sec: float
    cpu_us_per_record: float
    rounds: int


async def measure(flags: argparse.Namespace) -> list[Figures]:
    """Run all rounds with all clients, and return the medians."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    async with KafkaCluster(flags.kafka) as cluster:
        for turn in range(flags.rounds):
            for way in flags.ways:
                for client in flags.clients:
                    topic = f"{way}-{client}-{turn}"
                    await cluster.create_topic(topic, partitions=PARTITIONS)
                    # The clients connect without the proxy, which would need CPU time, too.
                    run = partial(_run_child, flags, client, way, cluster.inner_servers, topic)
                    figures = await anyio.to_thread.run_sync(run)
                    found.setdefault((client, way), []).append(figures)
                    print(
                        f"round {turn + 1}: {way:5}  {client:13} {figures[0]:9,.0f} records/s "
                        f"{1e6 * figures[1]:7.1f} us of CPU per record",
                        file=sys.stderr,
                    )
                    await cluster.delete_topic(topic)
    return [
        Figures(
            client,
            way,
            statistics.median(rate for rate, _ in runs),
            statistics.median(1e6 * cpu for _, cpu in runs),
            len(runs),
        )
        for (client, way), runs in found.items()
    ]


def _run_child(
    flags: argparse.Namespace, client: str, way: str, bootstrap: str, topic: str
) -> tuple[float, float]:
    command = [sys.executable, __file__, "--child", client.removesuffix("-pure"), "--way", way]
    command += ["--bootstrap", bootstrap, "--topic", topic, "--seconds", str(flags.seconds)]
    command += ["--tasks", str(flags.tasks), "--queued", str(flags.queued)]
    command += ["--uvloop"] if flags.uvloop else []
    command += ["--profile", str(flags.profile)] if flags.profile else []
    pure = {"AIOKAFKA_NO_EXTENSIONS": "1"} if client.endswith("-pure") else {}
    done = subprocess.run(  # noqa: S603 - this script
        command,
        check=False,
        stdout=subprocess.PIPE,
        env={**os.environ, **pure},
        timeout=flags.seconds + 2 * ENDING,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{client} ended with {done.returncode}")
    rate, cpu = json.loads(done.stdout)
    return rate, cpu


def table(figures: Sequence[Figures]) -> list[str]:
    """Format a Markdown table that compares each row with aiokafka without its extension."""
    lines = [
        "| sending | client | records/s | CPU per record | against aiokafka without extension |",
        "|---|---|---|---|---|",
    ]
    base = {each.way: each for each in figures if each.client == "aiokafka-pure"}
    for each in sorted(figures, key=lambda row: (row.way, CLIENTS.index(row.client))):
        against = base.get(each.way)
        ratio = "-"
        if against is not None and against is not each:
            ratio = (
                f"{each.records_per_sec / against.records_per_sec:.2f} x the rate, "
                f"{each.cpu_us_per_record / against.cpu_us_per_record:.2f} x the CPU"
            )
        lines.append(
            f"| {each.way} | {_title(each.client)} | {each.records_per_sec:,.0f} "
            f"| {each.cpu_us_per_record:.1f} us | {ratio} |"
        )
    return lines


def _title(client: str) -> str:
    if client == "aioidem":
        return f"aioidem {aioidem.__version__}"
    name = f"aiokafka {version('aiokafka')}"
    return f"{name}, extension disabled" if client.endswith("-pure") else name


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the script's flags; those for child processes are hidden."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kafka", default="4.3.1", metavar="VERSION")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each run")
    parser.add_argument("--tasks", type=int, default=1000, metavar="N")
    parser.add_argument("--queued", type=int, default=20_000, metavar="N")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--uvloop", action="store_true", help="both on uvloop, not asyncio's loop")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of aioidem; slows it down")
    for hidden in ("--child", "--way", "--bootstrap", "--topic"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.profile and not flags.child:
        flags.clients, flags.rounds, flags.ways = ("aioidem",), 1, flags.ways[:1]
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    flags = parse(argv)
    if flags.child:
        return child(flags)
    if importlib.util.find_spec("aiokafka") is None:
        print("localhost.py: not installed: pip install aiokafka", file=sys.stderr)
        return 2
    figures = anyio.run(measure, flags)
    print(
        f"Kafka {flags.kafka}, {PARTITIONS} partitions, records of {len(RECORD)} bytes, "
        f"{flags.tasks} tasks or {flags.queued} queued, {'uvloop' if flags.uvloop else 'asyncio'}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores; medians of {flags.rounds}"
    )
    print("\n".join(table(figures)))
    if flags.json is not None:
        flags.json.write_text(json.dumps([asdict(each) for each in figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

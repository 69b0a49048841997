"""Measure what a record costs on a short link: all clients by turns, in one run, on one broker.

    python benchmarks/short_link.py
    python benchmarks/short_link.py --scenarios queue bulk+1000B await+10000tasks --rounds 5
    python benchmarks/short_link.py --scenarios all --json all.json
    python benchmarks/short_link.py --list

Each run of a client is a process of its own, in turns: A B C A B C ... All of them write to the
same topic of one real broker, without a proxy, with idempotence and acks=all and otherwise with
their defaults. aioidem runs three times: as installed, in pure Python (`AIOIDEM_NO_EXTENSIONS`),
and under aiokafka's names; aiokafka with and without its C extension (`AIOKAFKA_NO_EXTENSIONS`).

A figure is the median over the rounds, with the lowest and the highest. CPU time is that of the
client's process with all of its threads, so unlike the rate it does not depend on the broker's
share of the cores. A client that cannot do what a scenario asks, or that fails, is in the table
with the reason.

`--embedded` uses the embedded broker, in this process: it shows that everything works, but the
broker is then what is measured. `--profile FILE` profiles one client (aioidem, unless `--clients`
names another one) in the first scenario; a profiler makes small calls look more expensive.

The exit status is 0 if every client that was to run did, 1 if one failed, and 2 for bad arguments
or a machine that is not quiet (`--busy` measures all the same, and the tables say so).

Rejected: one process for all clients (each would collect the other's garbage); the cluster's proxy
in between (another process that uses CPU time); means (one slow round would decide).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pstats
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from machine import Machine
from profile_shares import shares
from short_link_job import Figures, Job
from short_link_report import Report, Row, Table, has_place, into_document, markdown, picture
from short_link_scenarios import (
    CLIENTS,
    GROUPS,
    LONG,
    MEANINGS,
    Scenario,
    ScenarioError,
    scenarios,
)
from workers import JAVA, has_compiler

import aioidem
from aioidem._testing.kafka_install import KafkaInstall, install_kafka
from aioidem._testing.kafka_process import ProcessGuard
from aioidem.broker import EmbeddedCluster
from aioidem.testing import KafkaCluster, KafkaInstallError

HERE = Path(__file__).parent
KAFKA = "4.3.1"
ENDING = 180.0
START_UP = 1.5
WIDE = 100
"""From how many partitions on a topic is kept for all rounds."""
MODULES = {
    "aiokafka": "aiokafka",
    "aiokafka-pure": "aiokafka",
    "confluent-kafka": "confluent_kafka",
    "confluent-aio": "confluent_kafka",
    "kafka-python": "kafka",
}
PURE = {
    "aioidem-pure": {"AIOIDEM_NO_EXTENSIONS": "1"},
    "aiokafka-pure": {"AIOKAFKA_NO_EXTENSIONS": "1"},
}


class Broker(Protocol):
    """What the runs need of a cluster."""

    @property
    def servers(self) -> str:
        """Return ``host:port``."""
        ...

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        ...

    async def delete(self, topic: str) -> None:
        """Delete a topic."""
        ...


class Real:
    """One real broker, which clients reach past its proxy."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.servers = cluster.inner_servers

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        await self._cluster.create_topic(topic, partitions=partitions)

    async def delete(self, topic: str) -> None:
        """Delete a topic."""
        await self._cluster.delete_topic(topic)


class Embedded:
    """The embedded broker, which shares this process with nothing but the runner."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self.servers = cluster.bootstrap_servers

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._cluster.create_topic(topic, partitions=partitions)

    async def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._cluster.delete_topic(topic)


@asynccontextmanager
async def broker(flags: argparse.Namespace) -> AsyncIterator[Broker]:
    """Start the broker that all runs use."""
    if flags.embedded:
        async with EmbeddedCluster(brokers=1) as embedded:
            yield Embedded(embedded)
    else:
        # A deleted topic is to free its disk space before the next one fills it.
        properties = {"log.segment.delete.delay.ms": 1000}
        async with KafkaCluster(flags.kafka, properties=properties) as cluster:
            yield Real(cluster)


def missing(client: str, flags: argparse.Namespace) -> str | None:
    """Return why a client cannot be run at all, or None."""
    if client == JAVA:
        try:
            if not has_compiler(_install(flags.kafka)):
                return "needs a JDK"
        except KafkaInstallError as error:
            return f"needs Kafka's jars: {error}"
    elif client in MODULES and find_spec(MODULES[client]) is None:
        return f"the package {client.removesuffix('-pure')} is not installed"
    return None


@cache
def _install(kafka: str) -> KafkaInstall:
    return install_kafka(kafka)


def command(job: Job, kafka: str) -> list[str]:
    """Return the command that runs a job."""
    if job.client != JAVA:
        return [sys.executable, str(HERE / "short_link_clients.py"), json.dumps(asdict(job))]
    install = _install(kafka)
    return [
        *(str(install.java), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
        *("-cp", install.class_path(), str(HERE / "ShortLinkProducer.java")),
        *(f"{name}={value}" for name, value in asdict(job).items()),
    ]


def run_child(job: Job, kafka: str, guard: ProcessGuard) -> Row:
    """Run a job in a process of its own, which is killed if it does not end in time."""
    job = Job(**{**asdict(job), "spawned": time.monotonic()})
    row = Row(client=job.client)
    process = subprocess.Popen(  # noqa: S603 - our own scripts
        command(job, kafka),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **PURE.get(job.client, {})},
    )
    guard.watch_group(process.pid)
    try:
        printed, complaints = process.communicate(timeout=2 * (job.warm_up + job.seconds) + ENDING)
    except subprocess.TimeoutExpired:
        row.failed = "did not end in time, and was killed"
        return row
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        guard.forget_group(process.pid)
    lines = printed.splitlines()
    if process.returncode != 0 or not lines:
        said = [line.strip() for line in complaints.splitlines() if line.strip()]
        row.failed = (said or [f"ended with {process.returncode}"])[-1][:200]
        return row
    found: dict[str, Any] = json.loads(lines[-1])
    if "cannot" in found:
        row.cannot = found["cannot"]
    else:
        row.rounds.append(Figures(**found))
    return row


async def measure(flags: argparse.Namespace, report: Report) -> None:
    """Run all rounds of all scenarios with all clients, and add their figures to the report."""
    short = [each for each in flags.chosen if each.way != LONG]
    tables = {each.name: Table(scenario=each) for each in flags.chosen}
    report.tables = list(tables.values())
    guard = ProcessGuard()
    try:
        if short:
            async with broker(flags) as target:
                kept: set[str] = set()
                for turn in range(flags.rounds):
                    for scenario in short:
                        topic = await _topic(target, scenario, turn, kept)
                        await _turn(flags, target, tables[scenario.name], topic, turn, guard)
                        if topic not in kept:
                            await target.delete(topic)
        for scenario in flags.chosen:
            if scenario.way == LONG:
                await anyio.to_thread.run_sync(
                    partial(_long_link, flags, tables[scenario.name], guard),
                    abandon_on_cancel=True,
                )
    finally:
        guard.close()


async def _topic(target: Broker, scenario: Scenario, turn: int, kept: set[str]) -> str:
    """Create the topic of one round, and return its name.

    A topic of many partitions is created once and kept, because of what `_touch` costs there.
    """
    wide = scenario.partitions >= WIDE
    topic = f"{scenario.partitions}-partitions" if wide else scenario.name.replace("+", "-")
    topic = topic if wide else f"{topic}-{turn}"
    if topic not in kept:
        await target.create(topic, scenario.partitions)
        await _touch(target.servers, topic, scenario.partitions)
    if wide:
        kept.add(topic)
    return topic


async def _touch(servers: str, topic: str, partitions: int) -> None:
    """Write two batches of 16 kB to each partition of a new topic.

    The first batches of a partition take a broker up to 50 ms, because it creates and maps the
    files of the log. Otherwise a client that writes to more partitions would pay for those files.
    """
    producer = aioidem.Producer(servers, delivery_timeout=ENDING, request_timeout=ENDING / 2)
    async with producer:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for each in range(partitions):
                    group.start_soon(partial(producer.send, topic, bytes(16_000), partition=each))


async def _turn(
    flags: argparse.Namespace,
    target: Broker,
    table: Table,
    topic: str,
    turn: int,
    guard: ProcessGuard,
) -> None:
    """Run one scenario once with each client that was able to run it so far."""
    scenario = table.scenario
    for client in flags.clients:
        row = table.row(client)
        if row.cannot or row.failed:
            continue
        row.cannot = missing(client, flags) or ""
        if row.cannot:
            continue
        job = Job(
            client=client,
            way=scenario.way,
            bootstrap=target.servers,
            topic=topic,
            size=scenario.size,
            keyed=scenario.keyed,
            codec=scenario.codec,
            tasks=scenario.tasks,
            queued=flags.queued,
            warm_up=flags.warm_up,
            seconds=flags.seconds,
            rate=flags.rate,
            uvloop=flags.uvloop,
            profile=str(flags.profile or ""),
        )
        found = await anyio.to_thread.run_sync(
            run_child, job, flags.kafka, guard, abandon_on_cancel=True
        )
        row.add(found)
        print(f"round {turn + 1}, {scenario.name}: {found.line()}", file=sys.stderr)


def _long_link(flags: argparse.Namespace, table: Table, guard: ProcessGuard) -> None:
    """Run `long_link.py` with the scenario's link, and add its rows to the table."""
    scenario = table.scenario
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        words = [sys.executable, str(HERE / "long_link.py"), "--all", "--late-sealing"]
        words += ["--rtt", str(scenario.rtt), "--in-flight", "1,5,20", "--json", str(path)]
        words += ["--duration", str(flags.link_seconds)]
        words += ["--mbit", str(scenario.mbit)] if scenario.mbit else []
        words += [] if flags.embedded else ["--kafka", flags.kafka]
        print(f"{scenario.name}: {shlex.join(words[1:])}", file=sys.stderr)
        process = subprocess.Popen(  # noqa: S603 - our own script
            words, stdout=subprocess.DEVNULL, start_new_session=True
        )
        guard.watch_group(process.pid)
        try:
            process.wait(timeout=20 * (flags.link_seconds + 10) + 2 * ENDING)
        except subprocess.TimeoutExpired:
            table.failed = "long_link.py did not end in time, and was killed"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            guard.forget_group(process.pid)
        if not table.failed and process.returncode != 0:
            table.failed = f"long_link.py ended with {process.returncode}"
        if path.exists():
            table.links = json.loads(path.read_text(encoding="utf-8"))


def estimate(flags: argparse.Namespace) -> float:
    """Return how many seconds the run will take, roughly."""
    once = START_UP + flags.warm_up + flags.seconds
    cost = {"start": START_UP, "paced": once + flags.warm_up + flags.seconds / 2}
    short = [each for each in flags.chosen if each.way != LONG]
    runs = sum(cost.get(each.way, once) for each in short) * len(flags.clients) * flags.rounds
    links = (len(flags.chosen) - len(short)) * (60 + 12 * (flags.link_seconds + 2))
    return float(20 + runs + links)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the script's flags; `chosen` has the scenarios.

    Bad ones end the program with a message and exit status 2.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", nargs="+", default=["default"], metavar="NAME")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS, metavar="CLIENT")
    parser.add_argument("--list", action="store_true", help="the names of scenarios and clients")
    parser.add_argument("--rounds", type=_count, default=3, metavar="N")
    parser.add_argument("--seconds", type=_positive, default=2.0, metavar="S", help="of each run")
    parser.add_argument("--warm-up", type=_not_negative, default=1.0, metavar="S")
    parser.add_argument("--queued", type=_count, default=20_000, metavar="N")
    parser.add_argument(
        "--rate", type=_not_negative, default=0.0, metavar="N",
        help="records per second for `paced`, the same for all; 0: half of each client's peak",
    )  # fmt: skip
    parser.add_argument("--link-seconds", type=_positive, default=5.0, metavar="S")
    parser.add_argument("--kafka", default=KAFKA, metavar="VERSION")
    parser.add_argument("--embedded", action="store_true", help="the embedded broker instead")
    parser.add_argument("--uvloop", action="store_true", help="asyncio's clients on uvloop")
    parser.add_argument("--busy", action="store_true", help="measure on a busy machine, too")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="replace its tables")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing: format a JSON")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of one client")
    flags = parser.parse_args(argv)
    try:
        flags.chosen = scenarios(flags.scenarios)
    except ScenarioError as error:
        parser.error(f"{error} (--list shows the names)")
    for path in filter(None, (flags.json, flags.picture, flags.document, flags.profile)):
        if not path.parent.is_dir():
            parser.error(f"{path}: there is no folder {path.parent}")
    if flags.document is not None and not has_place(flags.document):
        parser.error(f"--document {flags.document}: no such page with a place for the tables")
    if flags.read is not None and not flags.read.is_file():
        parser.error(f"--read {flags.read}: no such file")
    if flags.profile:
        flags.clients = ("aioidem",) if flags.clients is CLIENTS else flags.clients[:1]
        flags.rounds, flags.chosen = 1, flags.chosen[:1]
        if flags.clients[0] == JAVA or flags.chosen[0].way == LONG:
            parser.error("--profile: only a run of a Python client can be profiled")
    return flags


def listing() -> list[str]:
    """Return the lines of `--list`."""
    lines = [f"{way:9}  {meaning}" for way, meaning in MEANINGS.items()]
    lines += ["", "variations, joined by +: 1000B  keys  32p  100tasks  gzip snappy lz4 zstd"]
    lines += [f"of {LONG}: 150ms  100Mbit", "", f"clients: {' '.join(CLIENTS)}", ""]
    return lines + [f"group {name}: {' '.join(names)}" for name, names in GROUPS.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    flags = parse(argv)
    if flags.list:
        print("\n".join(listing()))
        return 0
    if flags.read is not None:
        try:
            report = Report.read(json.loads(flags.read.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            print(f"short_link.py: {flags.read} is none of its files: {error!r}", file=sys.stderr)
            return 2
    else:
        machine = Machine.here()
        if not machine.quiet:
            print(f"short_link.py: {machine.complaint()}", file=sys.stderr)
            if not flags.busy:
                print("short_link.py: --busy measures all the same", file=sys.stderr)
                return 2
        report = Report(
            machine=machine,
            broker="the embedded broker" if flags.embedded else f"Kafka {flags.kafka}",
            command=shlex.join(["python", "benchmarks/short_link.py", *(argv or sys.argv[1:])]),
            rounds=flags.rounds,
            seconds=flags.seconds,
        )
        print(f"about {estimate(flags) / 60:.0f} minutes", file=sys.stderr)
        anyio.run(measure, flags, report)
    print("\n".join(markdown(report)))
    if flags.json is not None:
        flags.json.write_text(json.dumps(report.state(), indent=1) + "\n", encoding="utf-8")
    if flags.picture is not None:
        picture(report, flags.picture)
    if flags.document is not None:
        into_document(report, flags.document)
    if flags.profile is not None and flags.read is None:
        print("\n".join(shares(pstats.Stats(str(flags.profile)))))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())

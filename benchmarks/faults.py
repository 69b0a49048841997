"""The same faults for every client, at the same time and on the same broker, and what came of it.

    python benchmarks/faults.py
    python benchmarks/faults.py --faults clean-restart --clients aioidem Java --json faults.json

Each client is a process of its own (`workers.py`), idempotent, with at most five requests in
flight, and writes small records at an even rate to one partition of its own. The link is 50 ms
long, so that some of them are always under way. Then the fault comes, to all of them at once:

* lost-response: three times a batch is appended and its answer lost with the connection.
* clean-restart: answers are held back until the windows are full of appended batches; then the
  broker is restarted (SIGTERM). It comes back remembering one batch of each producer.
* broker-down: the broker is killed, and started again after a minute: twice a record's deadline.
* leader-move: of three brokers another one becomes the leader, and then the third.
* oversized: one record in the middle is larger than the topic takes.
* wrap: sequence numbers run over 2^31. They are made to start just below, from inside of the
  client; librdkafka cannot be reached.

In the end every client gets the time it needs, but not more than its own deadline and some
seconds. Where a fault did not reach a client (no answer of its was lost, no leader it wrote to had
moved, its sequence numbers began elsewhere), its note says so: that row shows nothing. What it said
of each record is held against the log as Kafka's own tool prints it:

* lost: acknowledged and not in the log. duplicated: copies too many. reordered: in the log behind
  a record handed over later. hung: not settled within the client's own deadline and twelve
  seconds, or never.
* not written, unknown: failures by what the client says of them. Only aioidem says it; of the
  others a record that the broker itself refused, or that the call did not queue, is `not written`,
  all else is `unknown`.

Invariants: every wait is bounded, and nothing is left behind. The exit status is 0 if aioidem lost,
duplicated and reordered nothing, and nothing of it hung.

Rejected: one client after the other (a minute's outage for each, and never the same one).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from clients import CLIENTS
from workers import JAVA, Work, Worker, WorkerError, java_worker, python_worker

from aioidem._protocol.messages import decode_response, response_type
from aioidem._testing.kafka_dump import DumpedBatch
from aioidem._testing.kafka_install import install_kafka
from aioidem._testing.kafka_process import ProcessGuard
from aioidem.testing import Action, Cut, Drop, FrameSeen, Inspect, KafkaCluster

ALL_CLIENTS = (*CLIENTS, JAVA)
OURS = "aioidem"
TOLERANCE = 12.0
"""Seconds beyond a client's deadline: one request timeout, which aioidem's own terms grant."""

_PRODUCE = 0
_NOT_LEADER = 6
_LOSSES = 3
_RTT = 0.05
_READY_SECONDS = 60.0
_CLOSING_SECONDS = 10.0
_DIGITS = 8
_SEQUENCES = 2**31
_HEADINGS = (
    *("fault", "client", "sent", "acknowledged", "not written", "unknown", "lost", "duplicated"),
    *("reordered", "hung", "longest wait", "the most frequent failure; notes"),
)


@dataclass(slots=True)
class Stage:
    """A cluster with the clients at work.

    `patience` and `pause`: how long to wait for answers to be lost, and after that. `checks`: what
    to note of a client in the end, if anything: above all that the fault did not reach it.
    """

    cluster: KafkaCluster
    workers: Mapping[str, Worker]
    down: float
    topic: Callable[[str], str] = field(default=str)
    patience: float = 10.0
    pause: float = 1.0
    checks: list[Callable[[str], str | None]] = field(default_factory=list)

    def topics(self) -> list[str]:
        """The clients' topics."""
        return [self.topic(client) for client in self.workers]

    def notes(self, client: str) -> list[str]:
        """What there is to note of a client."""
        return [note for check in self.checks if (note := check(client)) is not None]

    async def lose_answers(self) -> set[str]:
        """Each client loses one answer to a Produce request, and its connection; those that did."""
        waiting = set(self.workers)

        def cut(seen: FrameSeen) -> Action | None:
            if seen.api_key != _PRODUCE or seen.client_id not in waiting:
                return None
            waiting.discard(seen.client_id)
            return Cut(reset=True)

        self.cluster.proxy.on_answer = cut
        with anyio.move_on_after(self.patience):
            await self.cluster.proxy.until(lambda: not waiting)
        self.cluster.proxy.on_answer = None
        return set(self.workers) - waiting

    def hold_answers(self) -> Counter[str | None]:
        """No answer to a Produce request arrives any more; returns a count of them, by client."""
        held: Counter[str | None] = Counter()

        def drop(seen: FrameSeen) -> Action | None:
            if seen.api_key != _PRODUCE:
                return None
            held[seen.client_id] += 1
            return Drop(silent=False)

        self.cluster.proxy.on_answer = drop
        return held

    def count_refusals(self) -> Counter[str | None]:
        """From now on, how often each client is answered NOT_LEADER."""
        refused: Counter[str | None] = Counter()

        def look(seen: FrameSeen, payload: bytes) -> None:
            schema = response_type(_PRODUCE, seen.api_version)
            if schema is None:
                raise WorkerError(f"{seen.client_id} is answered in unknown words: {seen}")
            response: Any = decode_response(schema, payload)[1]
            refused[seen.client_id] += sum(
                int(part.error_code) == _NOT_LEADER
                for topic in response.responses
                for part in topic.partition_responses
            )

        def see(seen: FrameSeen) -> Action | None:
            return Inspect(partial(look, seen)) if seen.api_key == _PRODUCE else None

        for proxy in self.cluster.proxies:
            proxy.on_answer = see
        return refused


async def lost_response(stage: Stage) -> None:
    """Three answers of each client."""
    lost: Counter[str] = Counter()

    def check(client: str) -> str | None:
        if not lost[client]:
            return "no answer was lost"
        return None if lost[client] == _LOSSES else f"{lost[client]} of {_LOSSES} answers were lost"

    stage.checks.append(check)
    for _ in range(_LOSSES):
        lost.update(await stage.lose_answers())
        await anyio.sleep(stage.pause)


async def clean_restart(stage: Stage) -> None:
    """With windows full of batches that are appended and not acknowledged."""
    held = stage.hold_answers()
    stage.checks.append(lambda client: None if held[client] else "no answer was held back")
    await anyio.sleep(0.5)
    await stage.cluster.terminate()
    stage.cluster.proxy.on_answer = None
    await stage.cluster.start()


async def broker_down(stage: Stage) -> None:
    """For longer than records live."""
    await stage.cluster.kill()
    await anyio.sleep(stage.down)
    await stage.cluster.start()


async def leader_move(stage: Stage) -> None:
    """Twice, each topic in turn."""
    brokers = len(stage.cluster.brokers)
    refused = stage.count_refusals()
    stage.checks.append(
        lambda client: (
            f"{refused[client]} x NOT_LEADER" if refused[client] else "never answered NOT_LEADER"
        )
    )
    for _ in range(2):
        for topic in stage.topics():
            leader = await stage.cluster.leader(topic)
            await stage.cluster.move_leader(topic, 0, (leader + 1) % brokers)
        await anyio.sleep(stage.pause)


async def nothing(_stage: Stage) -> None:
    """The records themselves are the fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table for each client."""

    name: str
    act: Callable[[Stage], Awaitable[None]]
    brokers: int = 1
    configs: Mapping[str, int] = field(default_factory=dict)
    big: int = -1
    sequence: int = 0


FAULTS = (
    Fault("lost-response", lost_response),
    Fault("clean-restart", clean_restart),
    Fault("broker-down", broker_down),
    Fault("oversized", nothing, configs={"max.message.bytes": 20_000}, big=100),
    Fault("wrap", nothing, sequence=_SEQUENCES - 100),
    Fault("leader-move", leader_move, brokers=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one client's records under one fault."""

    fault: str
    client: str
    version: str
    sent: int
    acked: int
    not_written: int
    unknown: int
    lost: int
    duplicated: int
    reordered: int
    hung: int
    longest: float
    note: str

    @property
    def clean(self) -> bool:
        """Nothing lost, duplicated or reordered, and nothing hung."""
        return not (self.lost or self.duplicated or self.reordered or self.hung or not self.acked)


def unreached(fault: Fault, worker: Worker, log: Sequence[DumpedBatch]) -> list[str]:
    """What shows that a fault which lies in the records themselves did not happen."""
    notes = []
    if fault.big >= 0:
        if fault.big not in worker.records:
            notes.append("the large record was not sent")
        elif fault.big in numbers(log):
            notes.append("the topic took the large record")
    if fault.sequence:
        first = log[0].base_sequence if log else None
        if first != fault.sequence:
            notes.append(f"sequence numbers began at {first}")
        elif len(worker.records) <= _SEQUENCES - fault.sequence:
            notes.append("too few records for the numbers to wrap")
    return notes


def numbers(log: Sequence[DumpedBatch]) -> list[int]:
    """The numbers of the records in a log, in its order."""
    return [
        int((record.payload or "")[:_DIGITS])
        for batch in log
        if not batch.control
        for record in batch.records
    ]


def judge(
    fault: str,
    client: str,
    worker: Worker,
    log: Sequence[int],
    deadline: float,
    notes: Sequence[str] = (),
) -> Verdict:
    """Hold what a client said against the log, a list of records' numbers."""
    records = dict(worker.records)
    now = time.monotonic()
    waits = {number: (each.ended or now) - each.at for number, each in records.items()}
    counts = Counter(each.outcome for each in records.values())
    acked = {number for number, each in records.items() if each.outcome == "acked"}
    refused = {number for number, each in records.items() if each.outcome == "not-written"}
    there = Counter(log)
    told = list(notes)
    if wrong := len(refused & there.keys()):
        told.append(f"{wrong} said to be not written are in the log")
    found = dict(enumerate(log))
    strayed = [
        number
        for number in acked
        if (at := records[number].offset) >= 0 and found.get(at) != number
    ]
    if strayed:
        told.append(f"{len(strayed)} acknowledged at another record's offset")
    reasons = Counter(each.reason for each in records.values() if each.reason)
    if reasons:
        told.append(_short(reasons.most_common(1)[0][0]))
    return Verdict(
        fault=fault,
        client=client,
        version=worker.version,
        sent=len(records),
        acked=len(acked),
        not_written=len(refused),
        unknown=counts["unknown"],
        lost=len(acked - there.keys()),
        duplicated=sum(there.values()) - len(there),
        reordered=_reordered(log),
        hung=sum(
            each.ended is None or waits[number] > deadline + TOLERANCE
            for number, each in records.items()
        ),
        longest=max(waits.values(), default=0.0),
        note="; ".join(told),
    )


def _reordered(log: Sequence[int]) -> int:
    """Records whose first copy comes behind that of one handed over later."""
    late, highest = 0, -1
    for number in dict.fromkeys(log):
        late += number < highest
        highest = max(highest, number)
    return late


def _short(text: str, length: int = 90) -> str:
    text = text.replace("|", "/")
    return text if len(text) <= length else f"{text[: length - 3]}..."


class Experiment:
    """Runs faults on one cluster."""

    def __init__(self, flags: argparse.Namespace, cluster: KafkaCluster) -> None:
        self._flags = flags
        self._cluster = cluster

    async def run(self, fault: Fault) -> list[Verdict]:
        """One fault for all clients at once."""
        verdicts: list[Verdict] = []
        guard = await anyio.to_thread.run_sync(ProcessGuard)
        try:
            with ExitStack() as exits:
                workers = await self._connected(fault, guard, exits, verdicts)
                stage = Stage(self._cluster, workers, self._flags.down, partial(_topic, fault))
                if workers:
                    await self._suffer(fault, stage)
                verdicts += await self._judged(fault, stage)
        finally:
            await anyio.to_thread.run_sync(guard.close)
        return sorted(verdicts, key=lambda each: ALL_CLIENTS.index(each.client))

    async def _connected(
        self, fault: Fault, guard: ProcessGuard, exits: ExitStack, verdicts: list[Verdict]
    ) -> dict[str, Worker]:
        """The workers that are; those that are not get a verdict that says so."""
        workers: dict[str, Worker] = {}

        async def connect(client: str) -> None:
            try:
                worker = exits.enter_context(Worker(self._command(fault, client), guard))
                await anyio.to_thread.run_sync(worker.until_ready, _READY_SECONDS)
                workers[client] = worker
            except WorkerError as error:
                verdicts.append(_absent(fault, client, error))

        for client in self._flags.clients:
            topic = _topic(fault, client)
            await self._cluster.create_topic(topic, configs=fault.configs)
            await self._cluster.create_topic(f"warm-{topic}")
        async with anyio.create_task_group() as tasks:
            for client in self._flags.clients:
                tasks.start_soon(connect, client)
        return workers

    async def _suffer(self, fault: Fault, stage: Stage) -> None:
        workers = stage.workers
        for worker in workers.values():
            worker.go()
        await anyio.sleep(self._flags.seconds)
        await fault.act(stage)
        await anyio.sleep(self._flags.seconds)
        for worker in workers.values():
            worker.stop()
        limit = self._flags.deadline + TOLERANCE + _CLOSING_SECONDS
        async with anyio.create_task_group() as tasks:
            for worker in workers.values():
                tasks.start_soon(anyio.to_thread.run_sync, worker.until_closed, limit)
        for proxy in self._cluster.proxies:
            proxy.on_answer = None

    async def _judged(self, fault: Fault, stage: Stage) -> list[Verdict]:
        """A verdict on each client; the logs are read at the same time, each by a tool in Java."""
        logs: dict[str, Sequence[DumpedBatch]] = {}

        async def read(client: str) -> None:
            logs[client] = await self._cluster.dump_log(stage.topic(client))

        async with anyio.create_task_group() as tasks:
            for client in stage.workers:
                tasks.start_soon(read, client)
        verdicts = []
        for client, worker in stage.workers.items():
            notes = [*stage.notes(client), *unreached(fault, worker, logs[client])]
            found = numbers(logs[client])
            verdict = judge(fault.name, client, worker, found, self._flags.deadline, notes)
            print(f"{fault.name}: {client}: {verdict.note or 'no failures'}", file=sys.stderr)
            verdicts.append(verdict)
        return verdicts

    def _command(self, fault: Fault, client: str) -> list[str]:
        topic = _topic(fault, client)
        work = Work(
            bootstrap=self._cluster.bootstrap_servers,
            topic=topic,
            # A partition that was written to has its sequence numbers already.
            warm=f"warm-{topic}",
            rate=self._flags.rate,
            big=fault.big,
            bigsize=100_000,
            sequence=fault.sequence,
            deadline=self._flags.deadline,
            request_timeout=min(10.0, self._flags.deadline / 3),
            patience=round(self._flags.deadline + TOLERANCE + 3),
        )
        if client != JAVA:
            return python_worker(client, work)
        return java_worker(install_kafka(self._flags.kafka), work, {"client.id": JAVA})


def _topic(fault: Fault, client: str) -> str:
    return f"{fault.name}-{client}"


def _absent(fault: Fault, client: str, error: WorkerError) -> Verdict:
    counts = dict.fromkeys(
        ("sent", "acked", "not_written", "unknown", "lost", "duplicated", "reordered", "hung"), 0
    )
    reason = "not reachable" if "NotImplementedError" in str(error) else str(error)
    return Verdict(
        fault=fault.name, client=client, version="?", longest=0.0, note=_short(reason), **counts
    )


async def measure(flags: argparse.Namespace) -> list[Verdict]:
    """Every fault, on clusters of the sizes they need."""
    verdicts: list[Verdict] = []
    faults = [each for each in FAULTS if each.name in flags.faults]
    for brokers in sorted({each.brokers for each in faults}):
        async with KafkaCluster(flags.kafka, brokers=brokers, rtt=_RTT) as cluster:
            experiment = Experiment(flags, cluster)
            for fault in faults:
                if fault.brokers == brokers:
                    verdicts += await experiment.run(fault)
    return verdicts


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """As Markdown."""
    lines = [
        f"| {' | '.join(_HEADINGS)} |",
        "|---" * len(_HEADINGS) + "|",
    ]
    for each in verdicts:
        if not each.sent:
            lines.append(f"| {each.fault} | {each.client} |" + " - |" * 9 + f" {each.note} |")
            continue
        bad = [_loud(n) for n in (each.lost, each.duplicated, each.reordered, each.hung)]
        lines.append(
            f"| {each.fault} | {each.client} | {each.sent} | {each.acked} | {each.not_written} "
            f"| {each.unknown} | {' | '.join(bad)} | {each.longest:.1f} s | {each.note} |"
        )
    return lines


def _loud(count: int) -> str:
    return f"**{count}**" if count else "0"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags of this script."""
    names = [each.name for each in FAULTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", nargs="+", choices=names, default=names)
    parser.add_argument("--clients", nargs="+", choices=ALL_CLIENTS, default=list(ALL_CLIENTS))
    parser.add_argument("--kafka", default="4.3.1", metavar="VERSION")
    parser.add_argument("--rate", type=float, default=50.0, metavar="N", help="records per second")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="before and after")
    parser.add_argument("--down", type=float, default=60.0, metavar="S", help="of broker-down")
    parser.add_argument("--deadline", type=float, default=30.0, metavar="S", help="of a record")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    flags = parse(argv)
    verdicts = anyio.run(measure, flags)
    versions = {each.client: each.version for each in verdicts if each.sent}
    print(
        f"Kafka {flags.kafka}, {', '.join(f'{name} {v}' for name, v in versions.items())}, "
        f"Python {platform.python_version()}; {flags.rate:g} records/s, deadline "
        f"{flags.deadline:g} s, link {1000 * _RTT:g} ms, broker down for {flags.down:g} s"
    )
    print("\n".join(table(verdicts)))
    if flags.json is not None:
        flags.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=1) + "\n")
    return 0 if all(each.clean for each in verdicts if each.client == OURS) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Cause the same faults for every client, at the same time and on one broker; compare outcomes.

    python benchmarks/faults.py
    python benchmarks/faults.py --faults clean-restart --clients aioidem Java --json faults.json

Each client has a process of its own (`workers.py`), is idempotent with at most five requests in
flight, and writes small records at an even rate to one partition of its own. The link has a
round-trip time of 50 ms, so that some records are always in flight. Then the fault happens to all
clients at once:

- lost-response: three times a batch is appended, and its answer and the connection are lost.
- clean-restart: answers are held back until the windows are full of appended batches, then the
  broker is restarted (SIGTERM). Afterwards it remembers one batch of each producer.
- broker-down: the broker is killed, and started again after a minute, twice a record's deadline.
- leader-move: of three brokers a second one becomes the leader, and then the third.
- oversized: one record in the middle is larger than the topic accepts.
- wrap: sequence numbers pass 2^31. They are set to start just below, through the client's private
  attributes; librdkafka has no such way.

At the end every client gets the time it needs, up to its own deadline plus some seconds. If a fault
did not reach a client (none of its answers was lost, no leader it wrote to had moved, its sequence
numbers began elsewhere), its note says so, and its row shows nothing. The client's reports are
compared with the log as Kafka's own tool prints it:

- lost: acknowledged, but not in the log. duplicated: superfluous copies. reordered: in the log
  after a record that was sent later. hung: no outcome within the client's own deadline plus
  twelve seconds, or never.
- not written, unknown: failures, by what the client says of them. Only aioidem distinguishes these.
  For the others a record is `not written` if the broker refused the record itself or the call did
  not queue it, and `unknown` otherwise.

Invariants: every wait is bounded, and no process is left behind. The exit status is 0 if aioidem
lost, duplicated and reordered no record, and none of its records hung.

Rejected: one client after the other (an outage of a minute for each, and never the same one).
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
"""The seconds that a client gets beyond its deadline; aioidem may use one request timeout."""

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
    """One experiment: a cluster, and the clients that write to it.

    `patience` is how many seconds to wait until answers are lost, and `pause` how many seconds to
    wait after that. Each of the `checks` returns a note about a client at the end, above all that
    the fault did not reach the client.
    """

    cluster: KafkaCluster
    workers: Mapping[str, Worker]
    down: float
    topic: Callable[[str], str] = field(default=str)
    patience: float = 10.0
    pause: float = 1.0
    checks: list[Callable[[str], str | None]] = field(default_factory=list)

    def topics(self) -> list[str]:
        """Return the topics to which the clients write."""
        return [self.topic(client) for client in self.workers]

    def notes(self, client: str) -> list[str]:
        """Return the notes of all checks about a client."""
        return [note for check in self.checks if (note := check(client)) is not None]

    async def lose_answers(self) -> set[str]:
        """Lose one answer to a Produce request of each client; return the clients that lost one."""
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
        """Drop all answers to Produce requests from now on; return their counts by client."""
        held: Counter[str | None] = Counter()

        def drop(seen: FrameSeen) -> Action | None:
            if seen.api_key != _PRODUCE:
                return None
            held[seen.client_id] += 1
            return Drop(silent=False)

        self.cluster.proxy.on_answer = drop
        return held

    def count_refusals(self) -> Counter[str | None]:
        """Count NOT_LEADER_OR_FOLLOWER answers from now on; return their counts by client."""
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
    """Lose three answers to Produce requests of each client."""
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
    """Restart the broker while the windows are full of appended, unacknowledged batches."""
    held = stage.hold_answers()
    stage.checks.append(lambda client: None if held[client] else "no answer was held back")
    await anyio.sleep(0.5)
    await stage.cluster.terminate()
    stage.cluster.proxy.on_answer = None
    await stage.cluster.start()


async def broker_down(stage: Stage) -> None:
    """Kill the broker, and start it again after longer than a record's deadline."""
    await stage.cluster.kill()
    await anyio.sleep(stage.down)
    await stage.cluster.start()


async def leader_move(stage: Stage) -> None:
    """Move the leader of each topic twice."""
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
    """Do nothing, because the records themselves cause the fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault; the table of results has one row for each fault and client."""

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
    """The outcomes of one client's records under one fault."""

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
        """Return whether a record was acknowledged, and none lost, repeated, reordered or hung."""
        return not (self.lost or self.duplicated or self.reordered or self.hung or not self.acked)


def unreached(fault: Fault, worker: Worker, log: Sequence[DumpedBatch]) -> list[str]:
    """Return notes about a fault of the records themselves that did not happen."""
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
    """Return the numbers of the records in a log, in log order."""
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
    """Compare a client's reports with the log, which is given as a list of record numbers."""
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
    """Count the records whose first copy is behind that of a record that was sent later."""
    late, highest = 0, -1
    for number in dict.fromkeys(log):
        late += number < highest
        highest = max(highest, number)
    return late


def _short(text: str, length: int = 90) -> str:
    text = text.replace("|", "/")
    return text if len(text) <= length else f"{text[: length - 3]}..."


class Experiment:
    """The faults on one cluster."""

    def __init__(self, flags: argparse.Namespace, cluster: KafkaCluster) -> None:
        self._flags = flags
        self._cluster = cluster

    async def run(self, fault: Fault) -> list[Verdict]:
        """Cause one fault for all clients at once."""
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
        """Connect the clients and return their workers; one that fails gets a verdict instead."""
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
        """Read the logs concurrently, each with a Java tool, and judge each client."""
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
            # The first record goes to another topic: it would fix the sequence numbers of its
            # partition.
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
    """Cause every chosen fault, on clusters of the sizes that the faults need."""
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
    """Format the verdicts as a Markdown table."""
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
    """Parse the script's flags."""
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
    """Run the experiment and print the table."""
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

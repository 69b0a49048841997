"""Random schedules of transactions against a small cluster: what is reported is what happened.

`Cluster` has Kafka's rules for a coordinator, two partition leaders and a group, in transactions v1
and v2, and shares no code with the engine. A schedule draws what becomes of each request:
it is carried out and answered, refused, carried out but answered by a coordinator that is moving,
lost with its connection before or after, or left behind and carried out later. Transactions time
out, markers are late, coordinators move, and in some seeds a second producer (a twin) takes the
transactional id over.

The test then reads the logs as a read_committed consumer. A committed transaction is there once and
whole, with its offsets. A commit that was reported UNKNOWN is there whole or not at all, and
nothing else is there. Call order is kept, and a producer that was not fenced goes on. `pytest -k
seed7` replays a seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.transactions import Outcome as TransactionOutcome
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.add_offsets import AddOffsetsAnswer
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer
from aioidem._protocol.txn_offset_commit import TxnOffsetCommitAnswer
from aioidem.structs import DeliveryStatus

from .driver import (
    ACKED,
    CALLS,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    LOADING,
    NONE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER,
    OUT_OF_ORDER,
    PENDING,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    TRANSACTION_ABORTABLE,
    LinkEnd,
    Outcome,
    Request,
    Rig,
    Sent,
    T,
)

# The four seeds after the range found two bugs: a late copy of older offsets overwrote newer ones,
# and a producer id was fenced before its coordinator knew that id.
SEEDS = [*range(200), 1952, 6016, 6026, 21329]
V1, V2 = 1, 2
INVALID_PRODUCER_ID_MAPPING = ErrorCode.invalid_producer_id_mapping
UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error
LAST_EPOCH = 32766
GROUP = "g"
EMPTY, ONGOING, ENDING, ENDED = "empty", "ongoing", "ending", "ended"


class RefusedError(Exception):
    """A refusal by the cluster, with the error code that is answered."""

    def __init__(self, code: int) -> None:
        self.code = code


class Identity(NamedTuple):
    producer_id: int
    epoch: int


class Coordinator:
    """The coordinator's state of the only transactional id."""

    def __init__(self, cluster: Cluster, first_epoch: int) -> None:
        self.cluster = cluster
        self.identity = Identity(4001, first_epoch - 1)
        self.previous = Identity(-1, -1)
        self.following: Identity | None = None
        self.last_epoch = -1
        self.state = EMPTY
        self.commit = False
        self.targets: set[int | str] = set()
        # Whether the coordinator raised the epoch by itself, so that the producer may be fenced.
        self.fenced = False

    def init(self, claimed: Identity | None) -> Identity:
        if claimed is not None and self.identity.epoch >= 0:
            known = claimed.producer_id == self.identity.producer_id
            if not known and claimed != self.previous:
                raise RefusedError(PRODUCER_FENCED)
        if self.state == ONGOING:
            self.fence()
        if self.state == ENDING:
            raise RefusedError(CONCURRENT_TRANSACTIONS)
        now = self.identity
        if now.epoch >= LAST_EPOCH and claimed in (None, now):
            self.previous, self.identity = now, Identity(now.producer_id + 1000, 0)
        elif claimed is None or claimed.epoch == now.epoch:
            self.last_epoch = -1 if claimed is None else now.epoch
            self.identity = Identity(now.producer_id, now.epoch + 1)
        elif claimed.epoch != self.last_epoch and claimed != self.previous:
            raise RefusedError(PRODUCER_FENCED)
        self.fenced = self.fenced or claimed is None
        self.state = EMPTY
        return self.identity

    def fence(self) -> None:
        """Abort the ongoing transaction; in v1 that fences its producer."""
        if not self.cluster.v2:
            self.identity = Identity(self.identity.producer_id, self.identity.epoch + 1)
            self.last_epoch = -1
            self.fenced = True
        self.prepare(commit=False, raises=self.cluster.v2)

    def check(self, identity: Identity) -> None:
        if identity.producer_id != self.identity.producer_id:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        if identity.epoch != self.identity.epoch:
            raise RefusedError(PRODUCER_FENCED)
        if self.state == ENDING:
            raise RefusedError(CONCURRENT_TRANSACTIONS)

    def add(self, identity: Identity, targets: set[int | str]) -> None:
        self.check(identity)
        if self.state != ONGOING:
            self.targets = set()
        self.state = ONGOING
        self.targets |= targets

    def verify(self, identity: Identity, target: int | str) -> None:
        self.check(identity)
        if self.state != ONGOING or target not in self.targets:
            raise RefusedError(TRANSACTION_ABORTABLE)

    def end(self, who: Identity, *, commit: bool, raises: bool) -> Identity:
        now = self.identity
        if raises:
            again = who == Identity(now.producer_id, now.epoch - 1) or (
                who == self.previous and who.epoch == LAST_EPOCH and now.epoch == 0
            )
        else:
            again = False
        if who.producer_id != now.producer_id and not again:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        may = (
            again and self.state in (ENDING, ENDED)
            if raises and (again or self.state == ENDING)
            else who == now
        )
        if not may:
            raise RefusedError(PRODUCER_FENCED)
        if self.state == ENDING:
            raise RefusedError(
                CONCURRENT_TRANSACTIONS if commit is self.commit else INVALID_TXN_STATE
            )
        if self.state == ONGOING:
            self.prepare(commit=commit, raises=raises)
        elif self.state == ENDED and self.commit is commit and (again or not raises):
            pass
        elif raises and not commit and not again:
            self.targets = set()
            self.prepare(commit=False, raises=True)
        else:
            raise RefusedError(INVALID_TXN_STATE)
        return self.following or self.identity

    def prepare(self, *, commit: bool, raises: bool) -> None:
        now = self.identity
        if raises:
            self.last_epoch = now.epoch
            if now.epoch >= LAST_EPOCH:
                self.previous = now
                self.following = Identity(now.producer_id + 1000, 0)
            self.identity = Identity(now.producer_id, now.epoch + 1)
        self.state, self.commit = ENDING, commit
        self.finish()

    def write_marker(self) -> None:
        if self.state == ENDING and self.targets:
            self.cluster.mark(self.targets.pop(), self.identity, commit=self.commit)
        self.finish()

    def finish(self) -> None:
        if self.state == ENDING and not self.targets:
            self.state = ENDED
            self.identity = self.following or self.identity
            self.following = None


class Entry:
    """What one partition, or the group, knows of one producer id."""

    def __init__(self) -> None:
        self.epoch = -1
        self.next = 0
        self.cache: deque[tuple[int, int]] = deque(maxlen=5)
        self.open = False


class Record(NamedTuple):
    producer_id: int
    value: bytes | None
    commit: bool | None = None


class Cluster:
    """A cluster of one coordinator, two partitions and one group."""

    def __init__(self, *, v2: bool, first_epoch: int) -> None:
        self.v2 = v2
        self.coordinator = Coordinator(self, first_epoch)
        self.logs: dict[int, list[Record]] = {0: [], 1: []}
        self.known: dict[tuple[int | str, int], Entry] = {}
        self.waiting: dict[int, int] = {}
        self.group = -1

    def admit(self, target: int | str, who: Identity, *, implicit: bool) -> Entry:
        entry = self.known.setdefault((target, who.producer_id), Entry())
        if not (entry.open and entry.epoch == who.epoch):
            try:
                if implicit:
                    self.coordinator.add(who, {target})
                else:
                    self.coordinator.verify(who, target)
            except RefusedError as refusal:
                if refusal.code == PRODUCER_FENCED:
                    raise RefusedError(INVALID_PRODUCER_EPOCH) from None
                raise
        if who.epoch < entry.epoch:
            raise RefusedError(INVALID_PRODUCER_EPOCH)
        return entry

    def produce(self, part: Sent, version: int) -> int:
        """Append a batch, and return its base offset."""
        who, log = Identity(*part.identity), self.logs[part.partition]
        entry = self.admit(part.partition, who, implicit=version >= 12)
        if who.epoch > entry.epoch:
            if part.sequence != 0 and (entry.epoch >= 0 or version >= 12):
                raise RefusedError(OUT_OF_ORDER)
            entry.epoch, entry.next = who.epoch, part.sequence
            entry.cache.clear()
        for sequence, offset in entry.cache:
            if sequence == part.sequence:
                return offset
        if part.sequence != entry.next:
            raise RefusedError(OUT_OF_ORDER)
        offset = len(log)
        log.extend(Record(who.producer_id, value) for value in part.values)
        entry.cache.append((part.sequence, offset))
        entry.next = part.sequence + part.batch.count
        entry.open = True
        return offset

    def commit_offset(self, who: Identity, offset: int, *, implicit: bool) -> None:
        entry = self.admit(GROUP, who, implicit=implicit)
        entry.epoch, entry.open = who.epoch, True
        self.waiting[who.producer_id] = offset

    def mark(self, target: int | str, who: Identity, *, commit: bool) -> None:
        entry = self.known.setdefault((target, who.producer_id), Entry())
        if who.epoch > entry.epoch:
            entry.next = 0
            entry.cache.clear()
        entry.epoch, entry.open = max(entry.epoch, who.epoch), False
        if isinstance(target, int):
            self.logs[target].append(Record(who.producer_id, None, commit))
            return
        offset = self.waiting.pop(who.producer_id, None)
        if commit and offset is not None:
            self.group = offset

    def visible(self, partition: int) -> list[bytes | None]:
        """Return the values that a read_committed consumer reads from a partition."""
        shown: list[tuple[int, bytes | None]] = []
        held: dict[int, list[tuple[int, bytes | None]]] = {}
        for offset, record in enumerate(self.logs[partition]):
            waiting = held.setdefault(record.producer_id, [])
            if record.commit is None:
                waiting.append((offset, record.value))
                continue
            if record.commit:
                shown.extend(waiting)
            waiting.clear()
        return [value for _, value in sorted(shown)]


class Transaction:
    """One transaction as its caller saw it."""

    def __init__(self, outcome: TransactionOutcome) -> None:
        self.outcome = outcome
        self.records: list[Outcome] = []
        self.offset: int | None = None
        self.status: DeliveryStatus | None = None


class Zombies:
    """Requests that a closed connection left in a broker, which carries them out later."""

    def __init__(self, requests: list[Request | Any], due: int) -> None:
        self.requests = requests
        self.due = due


class Schedule:
    """One random schedule: a rig, a cluster, and the faults between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.version = pick([V1, V2])
        first_epoch = pick([0, 0, LAST_EPOCH - 2]) if self.version == V2 else 0
        self.cluster = Cluster(v2=self.version == V2, first_epoch=first_epoch)
        self.rig = Rig(
            partitions=2,
            brokers=2,
            seed=seed,
            transactional_id="x",
            transaction_version=self.version if self.version == V2 else 0,
            batch_size=pick([200, 400]),
            max_in_flight_requests_per_connection=pick([1, 2, 5]),
            delivery_timeout=pick([8.0, 20.0, 60.0]),
            request_timeout=5.0,
        )
        self.rig.leaders[T, 1] = (2, 0)
        self.rig.hold = CALLS
        self.faulty = pick([0.05, 0.2, 0.4])
        self.twins = pick([True, False, False, False])
        self.timeouts = pick([True, False, False, False])
        # `zombies`: requests of lost connections, which brokers still carry out. `steps`: the
        # number of steps so far.
        self.zombies: list[Zombies] = []
        self.steps = 0
        self.transactions: list[Transaction] = []
        self.offset = 0
        self.died: errors.KafkaError | None = None
        self.rig.start()

    # -- the caller

    def act(self) -> None:
        rig, pick = self.rig, self.random
        try:
            match rig.txn:
                case TransactionState.READY:
                    rig.begin()
                    self.transactions.append(Transaction(rig.transactions.outcome))
                case TransactionState.OPEN:
                    self.within(pick.random())
                case TransactionState.COMMITTING if pick.random() < 0.05:
                    rig.abort()
                case TransactionState.ABORTABLE:
                    rig.abort()
                case TransactionState.FATAL:
                    self.bury()
        except errors.AbortableTransactionError:
            assert rig.txn is TransactionState.ABORTABLE

    def within(self, chance: float) -> None:
        rig, now = self.rig, self.transactions[-1]
        if chance < 0.5:
            count, partition = self.random.randint(1, 4), self.random.randint(0, 1)
            now.records += rig.send(count, partition=partition)
        elif chance < 0.65:
            self.offset += 1
            now.offset = self.offset
            rig.offsets(self.offset, group=GROUP)
        elif chance < 0.85:
            rig.commit()
        else:
            rig.abort()

    def bury(self) -> None:
        """Keep the fatal error; an undecided last transaction gets that error's status."""
        if self.died is None:
            self.died = self.rig.transactions.cause
            assert self.died is not None
            if self.transactions and self.transactions[-1].outcome.committed is None:
                self.transactions[-1].status = self.died.status

    # -- the network

    def step(self) -> None:
        self.steps += 1
        for each in [zombies for zombies in self.zombies if zombies.due <= self.steps]:
            self.carry_out(each.requests.pop(0))
            each.due += self.random.choice([0, 0, 20])
        self.zombies = [each for each in self.zombies if each.requests]
        chance = self.random.random()
        if chance < 0.25:
            self.act()
        elif chance < 0.55:
            self.serve_produce()
        elif chance < 0.75:
            self.serve_call()
        elif chance < 0.75 + 0.2 * self.faulty:
            self.lose_any()
        elif chance < 0.88:
            self.cluster.coordinator.write_marker()
        elif chance < 0.89:
            self.rig.coordinator = self.random.choice([1, 2])
        elif chance < 0.895 and self.timeouts and self.cluster.coordinator.state == ONGOING:
            self.cluster.coordinator.fence()
        elif self.twins and chance < (0.93 if self.rig.txn is TransactionState.DECIDING else 0.897):
            self.twin()
        else:
            self.rig.tick(self.random.choice([0.0, 0.05, 0.3, 2.0]))

    def twin(self) -> None:
        try:
            self.cluster.coordinator.init(None)
        except RefusedError:
            return

    def fault(self) -> bool:
        return self.random.random() < self.faulty

    def serve_produce(self) -> None:
        waiting: dict[int, Request] = {}
        for request in self.rig.outstanding():
            waiting.setdefault(request.link.link_id, request)
        if not waiting:
            return
        request = self.random.choice(list(waiting.values()))
        entries = []
        for part in request.parts:
            if self.fault() and self.random.random() < 0.5:
                code: int = self.random.choice([NOT_LEADER, NOT_ENOUGH_REPLICAS, LOADING])
                entries.append(self.rig.entry(request, part, code))
                continue
            try:
                code, offset = NONE, self.cluster.produce(part, request.version)
            except RefusedError as refusal:
                code, offset = refusal.code, -1
            if code == NONE and self.fault() and self.random.random() < 0.3:
                code = self.random.choice([REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND])
                offset = -1
            entries.append(self.rig.entry(request, part, code, offset))
        self.rig.answer(request, entries)

    def serve_call(self) -> None:
        call = self.rig.calling
        if call is None:
            return
        rig = self.rig
        away = int(rig.links[call.link_id].host[1:]) != rig.coordinator
        if isinstance(call, steps.FindCoordinator):
            node = rig.brokers[rig.coordinator]
            self.tell(call, CoordinatorAnswer(NONE, node.node_id, node.host, node.port))
        elif away:
            self.tell(call, answer_of(call, NOT_COORDINATOR))
        elif self.fault() and self.random.random() < 0.3:
            self.lose(rig.links[call.link_id])
        elif self.fault() and self.random.random() < 0.5:
            codes = [LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS]
            self.tell(call, answer_of(call, self.random.choice(codes)))
        else:
            answer = self.carry_out(call)
            if self.fault() and self.random.random() < 0.5:
                codes = [
                    LOADING,
                    COORDINATOR_NOT_AVAILABLE,
                    NOT_COORDINATOR,
                    REQUEST_TIMED_OUT,
                    UNKNOWN_SERVER_ERROR,
                ]
                answer = answer_of(call, self.random.choice(codes))
            elif isinstance(call, steps.AddPartitions) and not answer.error_codes[T, 0]:
                rig.added.update(call.partitions)
            self.tell(call, answer)

    def tell(self, call: Any, answer: Any) -> None:
        if isinstance(answer, ProducerIdAnswer) and not answer.error_code and not self.transactions:
            # The producer's own InitProducerId has succeeded, so the producer has the newest epoch,
            # and no epoch raised earlier fences it any more.
            self.cluster.coordinator.fenced = False
        self.rig.forget_call(call.link_id)
        self.rig.core.on_answer(call, answer, self.rig.now)
        self.rig.collect()
        self.rig.poll()

    def carry_out(self, asked: Request | Any) -> Any:
        """Carry a request out in the cluster, and return the answer, which may get lost."""
        if isinstance(asked, Request):
            for part in asked.parts:
                try:
                    self.cluster.produce(part, asked.version)
                except RefusedError:
                    continue
            return None
        try:
            return self.carry_out_call(asked)
        except RefusedError as refusal:
            return answer_of(asked, refusal.code)

    def carry_out_call(self, call: Any) -> Any:
        coordinator = self.cluster.coordinator
        if isinstance(call, steps.InitTransactions):
            had = call.existing
            claimed = None if had is None else Identity(had.producer_id, had.producer_epoch)
            return ProducerIdAnswer(NONE, *coordinator.init(claimed))
        who = Identity(call.who.producer_id, call.who.producer_epoch)
        match call:
            case steps.AddPartitions(_, _, _, partitions):
                coordinator.add(who, {index for _, index in partitions})
            case steps.AddOffsets(_, _, _, group):
                coordinator.add(who, {group})
            case steps.CommitOffsets(_, _, _, _, offsets, v2):
                (offset,) = (each.offset for each in offsets.values())
                self.cluster.commit_offset(who, offset, implicit=v2)
            case steps.EndTransaction(_, _, _, commit, v2):
                following = coordinator.end(who, commit=commit, raises=v2)
                return EndTxnAnswer(NONE, *(following if v2 else (-1, -1)))
        return answer_of(call, NONE)

    def lose_any(self) -> None:
        ends = [end for end in self.rig.links.values() if end.open and not end.closed]
        if ends:
            self.lose(self.random.choice(ends))

    def lose(self, end: LinkEnd) -> None:
        """Lose a connection; some of its requests are carried out, now or later, others never."""
        owed: list[Request | Any] = [r for r in self.rig.outstanding() if r.link is end]
        call = self.rig.calling
        if call is not None and call.link_id == end.link_id:
            owed.append(call)
        arrived = self.random.randint(0, len(owed))
        for each in owed[:arrived]:
            if not isinstance(each, steps.FindCoordinator):
                self.carry_out(each)
        left = [each for each in owed[arrived:] if not isinstance(each, steps.FindCoordinator)]
        late = bool(left) and self.random.choice([True, False])
        if late:
            due = self.steps + self.random.choice([0, 5, 20, 60])
            self.zombies.append(Zombies(left, due))
        unwritten = [] if late else owed[arrived:][self.random.randint(0, 1) :]
        self.rig.lose(end, unwritten=unwritten)

    # -- the end

    def settle(self) -> None:
        """End the faults, and let a producer that was not fenced commit one more transaction."""
        rig = self.rig
        self.faulty = 0.0
        self.timeouts = self.twins = False
        for each in self.zombies:
            for request in each.requests:
                self.carry_out(request)
        self.serve_until(
            lambda: (
                rig.txn is TransactionState.FATAL
                or (rig.txn is TransactionState.READY and not rig.core.unsettled)
            ),
            200.0,
        )
        if rig.txn is TransactionState.READY:
            rig.begin()
            last = Transaction(rig.transactions.outcome)
            self.transactions.append(last)
            last.records += [*rig.send(partition=0), *rig.send(partition=1)]
            rig.commit()
            # Earlier transactions must not hold this one up until a deadline: 5 s are enough.
            self.serve_until(lambda: last.outcome.committed is not None, 5.0)
            between = (TransactionState.READY, TransactionState.FATAL)
            self.serve_until(lambda: rig.txn in between, 20.0)
        if rig.txn is TransactionState.FATAL:
            self.bury()
        coordinator = self.cluster.coordinator
        while coordinator.state in (ONGOING, ENDING):
            if coordinator.state == ONGOING:
                coordinator.fence()
            coordinator.write_marker()

    def serve_until(self, condition: Callable[[], bool], seconds: float) -> None:
        until = self.rig.now + seconds
        while not condition() and self.rig.now < until:
            if self.rig.txn is TransactionState.OPEN:
                self.rig.commit()
            elif self.rig.txn is TransactionState.ABORTABLE:
                self.rig.abort()
            self.serve_produce()
            self.serve_call()
            self.cluster.coordinator.write_marker()
            self.rig.tick(0.02)

    def judge(self) -> None:
        fenced = self.cluster.coordinator.fenced
        if self.died is None:
            assert self.rig.txn is TransactionState.READY, (
                f"the producer does not go on: {self.rig.txn}"
            )
        else:
            assert fenced, f"the producer ended and was not fenced: {self.died!r}"
        assert PENDING not in self.rig.statuses
        seen = {index: self.cluster.visible(index) for index in (0, 1)}
        expected: dict[int, list[bytes | None]] = {0: [], 1: []}
        offset = -1
        for each in self.transactions:
            if self.happened(each, seen):
                offset = each.offset if each.offset is not None else offset
                for record in each.records:
                    assert record.settlement is not None
                    expected[record.settlement.partition].append(value_of(record))
        assert seen == expected
        assert self.cluster.group == offset

    def happened(self, each: Transaction, seen: dict[int, list[bytes | None]]) -> bool:
        """Return whether a transaction was committed.

        The producer's report decides. If the producer reported UNKNOWN, the logs and the group's
        offset decide.
        """
        if each.outcome.committed is not None:
            assert not each.outcome.committed or all(r.status is ACKED for r in each.records)
            return each.outcome.committed
        if each.status is not DeliveryStatus.UNKNOWN:
            return False
        if each.records:
            return any(value_of(each.records[0]) in values for values in seen.values())
        return each.offset is not None and self.cluster.group == each.offset


def value_of(record: Outcome) -> bytes:
    return (b"%08d" % record.number).ljust(150, b".")


def answer_of(call: Any, code: int) -> Any:
    match call:
        case steps.InitTransactions():
            return ProducerIdAnswer(code, -1, -1)
        case steps.AddPartitions(_, _, _, partitions):
            return AddPartitionsAnswer(dict.fromkeys([*partitions, (T, 0)], code))
        case steps.AddOffsets():
            return AddOffsetsAnswer(code)
        case steps.CommitOffsets(_, _, _, _, offsets):
            return TxnOffsetCommitAnswer(dict.fromkeys(offsets, code))
        case _:
            return EndTxnAnswer(code)


def run(seed: int, length: int = 500) -> Schedule:
    schedule = Schedule(seed)
    for _ in range(length):
        schedule.step()
    schedule.settle()
    schedule.judge()
    return schedule


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_whatever_happens_to_a_transaction_what_is_reported_is_true(seed: int) -> None:
    run(seed)

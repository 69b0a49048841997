"""Drive `ProducerCore` without I/O: a `Rig` performs its steps, and the test gives the answers.

A step is what the engine wants done, such as opening a connection or sending a request. `Rig`
performs the steps without a socket. It answers connections, Metadata,
InitProducerId, DescribeConfigs and the calls to coordinators at once; a test that names a type of
step in `hold` answers those steps itself. Produce requests pile up in `Rig.requests` until the test
acknowledges, refuses or loses them. Time is `Rig.now` and moves only when the test moves it. A test
moves leaders with `Rig.move_leader`, loses connections with `Rig.lose`, and with a transactional id
calls `Rig.begin` before it sends.

In every test the rig checks these rules:

- A retry is byte-identical.
- The span of first sends (from the oldest unacknowledged batch to the newest sent one) stays within
  the window.
- A connection never has more requests outstanding than allowed.
- No batch has an older epoch than an earlier batch of its partition.
- A record is settled exactly once.

With a transactional id the rig also checks these rules:

- There is one call to a coordinator at a time.
- EndTxn is sent only when no batch is outstanding, and EndTxn(commit) only when every record is
  acknowledged.
- A batch is sent only in an open transaction, and in a Produce version of the transaction's
  protocol. In transactions v1 it is sent only to a partition that was added to the transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID, uuid5

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore, steps
from aioidem._engine.discovery import Discovery
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import Outcome as SharedOutcome
from aioidem._engine.record import PendingRecord
from aioidem._engine.retention import BrokerMemory
from aioidem._engine.transactions import OffsetCommit, Transactions, TransactionState
from aioidem._engine.transactions import Outcome as TransactionOutcome
from aioidem._log import LogLine
from aioidem._protocol.add_offsets import AddOffsetsAnswer
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate, PartitionUpdate, TopicUpdate
from aioidem._protocol.produce import LeaderNode, PartitionAnswer, ProduceAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer
from aioidem._protocol.producers import ProducersAnswer
from aioidem._protocol.topic_config import TopicConfig
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset, TxnOffsetCommitAnswer
from aioidem._records import build_body, read_batches, record_size_bound
from aioidem.errors import KafkaConnectionError, KafkaError
from aioidem.structs import DeliveryStatus

NONE = ErrorCode.none
CORRUPT_MESSAGE = ErrorCode.corrupt_message
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition
NOT_LEADER = ErrorCode.not_leader_or_follower
REQUEST_TIMED_OUT = ErrorCode.request_timed_out
LOADING = ErrorCode.coordinator_load_in_progress
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available
NOT_COORDINATOR = ErrorCode.not_coordinator
MESSAGE_TOO_LARGE = ErrorCode.message_too_large
NOT_ENOUGH_REPLICAS = ErrorCode.not_enough_replicas
NOT_ENOUGH_REPLICAS_AFTER_APPEND = ErrorCode.not_enough_replicas_after_append
TOPIC_AUTHORIZATION_FAILED = ErrorCode.topic_authorization_failed
CLUSTER_AUTHORIZATION_FAILED = ErrorCode.cluster_authorization_failed
INVALID_TIMESTAMP = ErrorCode.invalid_timestamp
UNSUPPORTED_VERSION = ErrorCode.unsupported_version
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
DUPLICATE = ErrorCode.duplicate_sequence_number
INVALID_PRODUCER_EPOCH = ErrorCode.invalid_producer_epoch
INVALID_TXN_STATE = ErrorCode.invalid_txn_state
CONCURRENT_TRANSACTIONS = ErrorCode.concurrent_transactions
KAFKA_STORAGE_ERROR = ErrorCode.kafka_storage_error
UNKNOWN_PRODUCER_ID = ErrorCode.unknown_producer_id
INVALID_RECORD = ErrorCode.invalid_record
PRODUCER_FENCED = ErrorCode.producer_fenced
UNKNOWN_TOPIC_ID = ErrorCode.unknown_topic_id
TRANSACTION_ABORTABLE = ErrorCode.transaction_abortable

ACKED = DeliveryStatus.ACKED
NOT_WRITTEN = DeliveryStatus.NOT_WRITTEN
UNKNOWN = DeliveryStatus.UNKNOWN
PENDING = DeliveryStatus.PENDING

T = "t"
CALLS = (
    steps.FindCoordinator,
    steps.InitTransactions,
    steps.AddPartitions,
    steps.AddOffsets,
    steps.CommitOffsets,
    steps.EndTransaction,
)
Log = tuple[str, int, UUID | None]
Identity = tuple[int, int]
_NAMESPACE = UUID(int=0xA101DE)


SAYS = {
    LogLine.DATA_LOSS: ": data loss: ",
    LogLine.EPOCH_BUMPED: ": producer epoch bumped, because ",
    LogLine.TRANSACTION_FAILED: ": the transaction must be aborted: ",
    LogLine.PRODUCER_ID_SHARED: "another client",
    LogLine.STATE_EXPIRED: ": record timestamps are more than half of ",
    LogLine.SHORT_EXPIRATION: ") is not below half of ",
    LogLine.TOPIC_RECREATED: " was deleted and recreated: ",
    LogLine.CLUSTER_CHANGED: "the cluster changed from ",
    LogLine.OTHER_CLUSTER: " leads to cluster ",
    LogLine.FEWER_RETAINED: "it was seen to deduplicate a retry ",
    LogLine.LIMIT_UNKNOWN: ": its batches stay within batch_size ",
    LogLine.WINDOW_WITHHELD: "window 5: ",
    LogLine.WINDOW_SOURCE: "KIP-1269",
    LogLine.WINDOW_CHANGED: ": the window is ",
}
"""What the text of each line of the engine's log says."""


def topic_id(name: str, generation: int = 0) -> UUID:
    """Return the id of a topic by name; each recreation of the topic adds 1 to `generation`."""
    return uuid5(_NAMESPACE, f"{name}/{generation}")


class Outcome:
    """The sink of one record, which keeps the record's outcome and fails if it is settled twice."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.status = PENDING
        self.offset = -1
        self.error: Exception | None = None
        self.settlement: SharedOutcome | None = None
        self.at: float | None = None

    def settle(self, settlement: SharedOutcome, index: int) -> None:
        assert self.status is PENDING, f"record {self.number} is settled twice"
        self.settlement = settlement
        self.status = settlement.status
        self.error = settlement.error
        self.offset = settlement.base_offset + index if settlement.base_offset >= 0 else -1
        if settlement.status is NOT_WRITTEN:
            assert settlement.error is not None
        if settlement.error is not None:
            assert getattr(settlement.error, "status", None) is settlement.status

    def __repr__(self) -> str:
        return f"<record {self.number} {self.status.value} @{self.offset}>"


class SinkRecord(PendingRecord):
    """A record that passes its outcome on to a sink."""

    __slots__ = ("sink",)

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None,
        size: int,
        sink: Outcome,
    ) -> None:
        super().__init__(key, value, headers, timestamp_ms, partition, size)
        self.sink = sink

    def settle(self, outcome: SharedOutcome, place: int) -> None:
        self.sink.settle(outcome, place)


class Sent:
    """One batch of a Produce request, decoded from the bytes that the engine built."""

    def __init__(self, topic: steps.TopicData, partition: int, data: bytes) -> None:
        self.topic = topic.name
        self.partition = partition
        # A recreated topic is another log under the same name, so the topic id identifies the log
        # too.
        self.where = (topic.name, partition, topic.topic_id)
        self.data = data
        (self.batch,) = read_batches(data)
        assert self.batch.crc_ok()

    @property
    def identity(self) -> tuple[int, int]:
        return self.batch.producer_id, self.batch.producer_epoch

    @property
    def epoch(self) -> int:
        return self.batch.producer_epoch

    @property
    def sequence(self) -> int:
        return self.batch.base_sequence

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.batch.records()]

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.partition} seq {self.sequence} epoch {self.epoch}>"


class Request:
    """A Produce request that the engine has sent, with its connection and the time."""

    def __init__(self, step: steps.SendProduce, link: LinkEnd, sent_at: float) -> None:
        self.step = step
        self.link = link
        self.sent_at = sent_at
        self.done = False
        self.parts = [
            Sent(topic, index, data) for topic in step.topics for index, data in topic.partitions
        ]

    @property
    def version(self) -> int:
        return self.step.version

    @property
    def only(self) -> Sent:
        (part,) = self.parts
        return part

    @property
    def sequence(self) -> int:
        return self.only.sequence

    @property
    def epoch(self) -> int:
        return self.only.epoch

    def __repr__(self) -> str:
        return f"<request {self.step.token} on link {self.link.link_id}: {self.parts}>"


class LinkEnd:
    """The broker's side of one connection."""

    def __init__(self, step: steps.OpenLink) -> None:
        self.link_id = step.link_id
        self.host = step.host
        self.port = step.port
        self.open = False
        self.closed = False
        self.outstanding = 0


class Rig:
    """A `ProducerCore` and the simulated cluster around it.

    Args:
        brokers: how many brokers there are; their ids count from 1, and broker 1 leads every
            partition of `T`.
        partitions: how many partitions topic `T` has.
        version: the highest Produce version that the brokers offer.
        seed: the seed of the engine's random source.
        transaction_version: the transaction version that the brokers have finalised.
        coordinator: the id of the broker that coordinates every transactional id and every group.
        options: options of `ProducerConfig`.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        partitions: int = 1,
        version: int = 13,
        seed: int = 1,
        transaction_version: int = 0,
        coordinator: int = 1,
        **options: Any,
    ) -> None:
        options.setdefault("batch_size", 200)
        options.setdefault("late_sealing", False)
        self.config = ProducerConfig.build("b1:9092", **options)
        self.core = ProducerCore(self.config, random=random.Random(seed).random)
        self.now = 1000.0
        self.version = version
        self.brokers = {n: BrokerAddress(n, f"b{n}", 9092) for n in range(1, brokers + 1)}
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {
            (T, index): (1, 0) for index in range(partitions)
        }
        self.ids: dict[str, UUID | None] = {}
        # `cluster_id` is the id of the cluster that answers at every host, except at the hosts in
        # `leads_to`, which maps a host to the id of the cluster that answers there instead.
        self.cluster_id: str | None = "cluster"
        self.leads_to: dict[str, str | None] = {}
        # By link id: the cluster that still answers on an open connection although another cluster
        # answers at its host by now.
        self.kept: dict[int, str] = {}
        self.topic_errors: dict[str, int] = {}
        self.next_pid = 4000
        self.links: dict[int, LinkEnd] = {}
        self.requests: list[Request] = []
        self.everything: list[Request] = []
        self.outcomes: list[Outcome] = []
        self._unsettled = 0  # of `outcomes`; none of them can be settled twice
        self.events: list[str] = []
        self.asked: list[steps.Step] = []
        # Steps of these types are put into `held` for the test to answer.
        self.hold: tuple[type[Any], ...] = ()
        self.held: list[Any] = []
        self.names_config = True
        self.config_error = NONE
        # The `max.message.bytes` that DescribeConfigs answers; None if its answer lacks the config.
        self.topic_limit: int | None = None
        self.facts = BrokerFacts()
        self.next_offset = 0
        # The answer to DescribeProducers; by default the producer has no READ permission.
        self.producers = ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {})
        self.down: set[int] = set()
        self._bytes: dict[tuple[Log, Identity, int], bytes] = {}
        self._highest: dict[Log, Identity] = {}
        self._rewritable: set[tuple[Log, Identity, int]] = set()
        # By partition and identity: the sequences of first sends in order, and those that are
        # acknowledged. From them the rig counts the span by itself.
        self._first_sends: dict[tuple[Log, Identity], list[int]] = {}
        self._proved: dict[tuple[Log, Identity], set[int]] = {}
        # By partition and identity: the sequence of the first batch that was sent, and the offset
        # at which a leader stores it, whether it is known to be stored or not.
        self._firsts: dict[tuple[Log, Identity], int] = {}
        self._begins: dict[tuple[Log, Identity], int] = {}
        self.max_span = 0
        # The identity when outcomes were last collected, and how often it was another one then.
        self._identity: ProducerIdentity | None = None
        self._changes = 0
        self._split = False
        self.polls = 0
        self.transaction_version = transaction_version
        self.coordinator = coordinator
        # The unanswered call to a coordinator, and the partitions added to the transaction (v1).
        self.calling: Any = None
        self.added: set[tuple[str, int]] = set()

    # -- the caller's side

    def send(
        self,
        count: int = 1,
        *,
        topic: str = T,
        partition: int | None = 0,
        size: int = 150,
        key: bytes | None = None,
        poll: bool = True,
        block_until: float | None = None,
        value: bytes | None = None,
    ) -> list[Outcome]:
        """Append records of about `size` bytes, and poll the engine unless `poll` is False.

        One record fills a batch at the rig's batch_size of 200. A `value` replaces the generated
        ones, which compress well.
        """
        made = []
        for _ in range(count):
            outcome = Outcome(len(self.outcomes))
            body = (b"%08d" % outcome.number).ljust(size, b".") if value is None else value
            room = record_size_bound(key, body, ())
            record = SinkRecord(key, body, (), self.stamp(), partition, room, outcome)
            assert self.core.budget.try_take(record.charge())
            try:
                self.core.accumulator.append(topic, record, self.now, block_until)
            except KafkaError:
                self.core.budget.release(record.charge())
                raise
            self.outcomes.append(outcome)
            self._unsettled += 1
            made.append(outcome)
        if poll:
            self.poll()
        return made

    def stamp(self) -> int:
        """Return the timestamp of the next record, in milliseconds since the epoch."""
        return 1_700_000_000_000

    def start(self) -> Rig:
        """Bring the engine up: connected, with metadata of topic `T` and a producer id."""
        self.core.accumulator.topic(T)
        self.poll()
        self.tick(1.0)
        return self

    # -- time

    def tick(self, seconds: float) -> None:
        """Let time pass, and poll the engine only at the times at which it asked to be woken.

        It is polled once at the beginning too, because every event is followed by a poll.
        """
        self.poll()
        until = self.now + seconds
        for _ in range(10_000):
            at = self.core.wake_at
            if at is None or at > until:
                break
            assert at > self.now - 1e-9, (
                f"the engine asks at {self.now} to be woken in the past, at {at}"
            )
            self.now = max(at, self.now) + 1e-6
            self.poll()
        else:
            raise AssertionError("the engine polls for ever")
        self.now = max(self.now, until)

    def poll(self) -> None:
        """Poll the engine and perform its steps until it has nothing more to do at this time."""
        for _ in range(1000):
            self.polls += 1
            calm = self.core._is_calm(self.now)  # noqa: SLF001
            todo = self.core.poll(self.now)
            self._check_wake()
            self.collect()
            if not todo:
                if calm:
                    self._check_calm()
                return
            for step in todo:
                self._perform(step)
            self.collect()
        raise AssertionError("the engine never comes to rest")

    def _check_wake(self) -> None:
        """Assert that the engine asks to be woken no later than it has something to do.

        `ProducerCore.poll` computes that time only if the time of the poll before may be too late.
        """
        core = self.core
        exact = core._next_wake(core._partitions.active(), self.now)  # noqa: SLF001
        if exact is not None:
            assert core.wake_at is not None
            assert core.wake_at <= exact

    def _check_calm(self) -> None:
        """Assert that a calm poll has left out nothing that was due, or asks for another poll."""
        core = self.core
        if core.wake_at is not None and core.wake_at <= self.now:
            return
        wake_at, core._calm = core.wake_at, False  # noqa: SLF001
        for step in core.poll(self.now):
            # Calm or not, this is asked one poll after a batch was held back.
            assert isinstance(step, steps.DescribeTopicLimit)
            self._perform(step)
        assert not core.outcomes.peek_settled()
        assert not core.outcomes.has_events
        core.wake_at = wake_at

    def collect(self) -> None:
        """Take settlements and events from the engine, and hand outcomes to the records' sinks."""
        for settlement in self.core.outcomes.take_settled():
            error = settlement.outcome.error
            if settlement.outcome.status is UNKNOWN and error is not None:
                assert "in the log" in str(error)  # every such error says how to find out
            for index, record in enumerate(settlement.records):
                assert isinstance(record, SinkRecord)
                record.settle(settlement.outcome, index)
                record.sink.at = self.now
                self._unsettled -= 1
        for event in self.core.outcomes.take_events():
            assert SAYS[event.line] in event.text, event
            self.events.append(event.text)
        current = self.core.identity.current
        if current != self._identity:
            self._changes += self._identity is not None
            self._identity = current
        assert self.core.epoch_bumps == self._changes
        budget = self.core.budget
        assert budget.used >= 0 <= budget.copies
        assert self.core.unsettled == self._unsettled

    # -- steps

    def _perform(self, step: steps.Step) -> None:
        self.asked.append(step)
        if isinstance(step, CALLS):
            self._check_call(step)
        if isinstance(step, self.hold):
            self.held.append(step)
            return
        match step:
            case steps.OpenLink():
                self._open(step)
            case steps.CloseLink(link_id, _):
                self.links[link_id].closed = True
                for request in self.outstanding():
                    if request.link.link_id == link_id:
                        request.done = True
                self._forget_done()
                self.forget_call(link_id)
            case steps.SendProduce():
                self._take_produce(step)
            case steps.FetchMetadata():
                self.answer_metadata(step)
            case steps.AskCluster(link_id):
                self.core.on_answer(step, self.leads(link_id, self.cluster_id), self.now)
            case steps.InitProducerId():
                self.next_pid += 1
                self.grant(step, self.next_pid, 0)
            case steps.DescribeTopicConfig():
                self.core.on_answer(step, self.described(), self.now)
            case steps.DescribeTopicLimit():
                self.core.on_answer(step, self.topic_limit, self.now)
            case steps.DescribeBrokerConfig():
                self.core.on_answer(step, self.facts, self.now)
            case steps.Compress():
                self.compressed(step)
            case steps.AskProducers():
                self.core.on_answer(step, self.producers, self.now)
            case _:
                assert isinstance(step, CALLS), f"the rig does not know this step: {step}"
                self.answer_call(step, poll=False)

    def compressed(self, step: steps.Compress) -> None:
        """Compress the records of a `Compress` step, and give the engine the result."""
        body = build_body(step.records, step.codec, step.level)
        self.core.on_compressed(step.token, body)

    def described(self) -> TopicConfig:
        """Return the brokers' answer to DescribeConfigs of a topic."""
        return TopicConfig(self.config_error, self.names_config and not self.config_error)

    def _open(self, step: steps.OpenLink) -> None:
        end = self.links[step.link_id] = LinkEnd(step)
        node = int(step.host[1:])
        if node in self.down:
            end.closed = True
            self.core.on_link_lost(step.link_id, KafkaConnectionError("refused"), self.now)
        else:
            self.opened(step)

    def opened(self, step: steps.OpenLink, version: int | None = None) -> None:
        """Report to the engine that the connection of an OpenLink step is open."""
        end = self.links.setdefault(step.link_id, LinkEnd(step))
        end.open = True
        self.core.on_link_open(
            step.link_id,
            self.version if version is None else version,
            self.now,
            self.transaction_version,
        )

    def metadata(self, topics: Iterable[str]) -> MetadataUpdate:
        """Return the Metadata answer that the cluster gives for these topics at this time."""
        updates = []
        for name in topics:
            led = {i: leader for (topic, i), leader in self.leaders.items() if topic == name}
            code = self.topic_errors.get(name, 0 if led else UNKNOWN_TOPIC_OR_PARTITION)
            parts = () if code else tuple(PartitionUpdate(i, *at) for i, at in sorted(led.items()))
            identity = None if code else self.ids.get(name, topic_id(name))
            updates.append(TopicUpdate(name, identity, code, parts))
        return MetadataUpdate(self.cluster_id, tuple(self.brokers.values()), tuple(updates))

    def answer_metadata(self, step: steps.FetchMetadata) -> None:
        update = self.metadata(step.topics)
        there = self.leads(step.link_id, update.cluster_id)
        update = update._replace(cluster_id=there)
        self.core.on_answer(step, update, self.now)

    def leads(self, link_id: int, usual: str | None) -> str | None:
        """Return the id of the cluster that a connection leads to."""
        return self.kept.get(link_id, self.leads_to.get(self.links[link_id].host, usual))

    def grant(self, step: steps.InitProducerId, producer_id: int, epoch: int) -> None:
        answer = ProducerIdAnswer(0, producer_id, epoch)
        self.core.on_answer(step, answer, self.now)

    def refresh(self, seconds: float = 3.0) -> None:
        """Make the engine fetch metadata, as soon as its back-off allows."""
        self.core.metadata.want()
        self.tick(seconds)

    def move_leader(
        self, leader: int, epoch: int, *, partition: int = 0, seconds: float = 3.0
    ) -> None:
        """Elect another leader, and let the engine fetch metadata within `seconds`."""
        self.leaders[T, partition] = (leader, epoch)
        self.refresh(seconds)

    # -- Produce

    def _take_produce(self, step: steps.SendProduce) -> None:
        end = self.links[step.link_id]
        assert end.open
        assert not end.closed
        request = Request(step, end, self.now)
        self.requests.append(request)
        self.everything.append(request)
        if self.config.transactional_id is not None:
            self._check_transactional(step, self.core.transactions)
        if step.acks != 0:
            limit = self.config.max_in_flight_requests_per_connection
            waiting = sum(r.link is end for r in self.outstanding())
            assert waiting <= limit, f"{waiting} requests are outstanding on one connection"
        seen = set()
        for part in request.parts:
            assert (part.topic, part.partition) not in seen, "a request names a partition twice"
            seen.add((part.topic, part.partition))
            self._check_batch(part)

    def _check_batch(self, part: Sent) -> None:
        if not self.config.enable_idempotence:
            assert part.identity == (-1, -1)
            return
        where = part.where
        key = (where, part.identity, part.sequence)
        self._firsts.setdefault((where, part.identity), part.sequence)
        if key not in self._bytes:
            self._check_span(part)
        known = self._bytes.setdefault(key, part.data)
        if known != part.data:
            assert key in self._rewritable, (
                f"this retry has other bytes than the first attempt: {part}"
            )
            self._bytes[key] = part.data
        self._rewritable.discard(key)
        newest = self._highest.setdefault(where, part.identity)
        assert part.identity >= newest, (
            f"this batch has an older identity than one sent before: {part}"
        )
        if part.identity > newest:
            self._highest[where] = part.identity
            older = [
                p
                for r in self.outstanding()
                for p in r.parts
                if p.where == where and p.identity < part.identity
            ]
            assert not older, f"{part} is sent while {older} of an older identity are outstanding"
        state = self.state(part.topic, part.partition)
        if part.identity > newest and self.config.in_doubt == "fail":
            assert not state.batches.in_doubt

    def _check_span(self, part: Sent) -> None:
        line = (part.where, part.identity)
        sends = self._first_sends.setdefault(line, [])
        sends.append(part.sequence)
        proved = self._proved.setdefault(line, set())
        oldest = next(n for n, sent in enumerate(sends) if sent not in proved)
        span = len(sends) - oldest
        self.max_span = max(self.max_span, span)
        limit = self.state(part.topic, part.partition).window.limit
        if len(sends) > 1 and not self._split:
            assert span <= limit, f"the span is {span} at a window of {limit}: {part}"

    def _prove(self, part: Sent) -> None:
        line = (part.where, part.identity)
        sends = self._first_sends.get(line, [])
        if part.sequence in sends:
            self._proved[line].update(sends[: sends.index(part.sequence) + 1])

    def outstanding(self) -> list[Request]:
        """Return the Produce requests that are not answered yet, oldest first."""
        return [request for request in self.requests if not request.done]

    def _forget_done(self) -> None:
        self.requests = [request for request in self.requests if not request.done]

    def finish(self, request: Request) -> None:
        assert not request.done, "the test answered a request twice"
        request.done = True
        self._forget_done()

    def answer(
        self,
        request: Request,
        entries: Iterable[PartitionAnswer],
        *,
        throttle: float = 0.0,
        leaders: tuple[LeaderNode, ...] = (),
        poll: bool = True,
    ) -> Exception | None:
        """Answer a Produce request with these entries, which need not match its batches."""
        self.finish(request)
        entries = tuple(entries)
        for entry in entries:
            for part in request.parts:
                if entry.error_code == NONE and entry.partition == part.partition:
                    self._prove(part)
        error = self.core.on_answer(
            request.step,
            ProduceAnswer(entries, int(throttle * 1000), leaders),
            self.now,
        )
        if error is not None:
            request.link.closed = True
            for other in self.outstanding():
                if other.link is request.link:
                    other.done = True
            self._forget_done()
        self.collect()
        if poll:
            self.poll()
        return error

    def entry(
        self, request: Request, part: Sent, code: int = NONE, offset: int = -1, **more: Any
    ) -> PartitionAnswer:
        """Build an entry of a Produce answer, which names the topic by id if v13 or newer."""
        by_id = request.version >= 13
        identity = next(t.topic_id for t in request.step.topics if t.name == part.topic)
        return PartitionAnswer(
            None if by_id else part.topic,
            identity if by_id else None,
            part.partition,
            code,
            offset,
            **more,
        )

    def ack(
        self, request: Request, offset: int | None = None, *, poll: bool = True, **more: Any
    ) -> None:
        """Answer every batch with NONE, at the given offset or where a leader would put it."""
        entries = []
        for part in request.parts:
            at = self._place(part, offset)
            self.next_offset = max(self.next_offset, at + part.batch.count)
            entries.append(self.entry(request, part, NONE, at, **more))
        self.answer(request, entries, poll=poll)

    def _place(self, part: Sent, offset: int | None) -> int:
        """Return the offset of a batch, which leaves room for all batches sent before it.

        The first batch under an identity follows all that was acknowledged before.
        """
        line = (part.where, part.identity)
        behind = (part.sequence - self._firsts.get(line, part.sequence)) % (1 << 31)
        if offset is not None:
            self._begins[line] = offset - behind
        return self._begins.setdefault(line, self.next_offset) + behind

    def fail(
        self, request: Request, code: int, offset: int = -1, *, poll: bool = True, **more: Any
    ) -> None:
        """Answer every batch of a request with the same error code."""
        if code in {MESSAGE_TOO_LARGE, ErrorCode.record_list_too_large}:
            self._split = True
            for part in request.parts:
                self._rewritable.add((part.where, part.identity, part.sequence))
        self.answer(
            request,
            [self.entry(request, part, code, offset, **more) for part in request.parts],
            poll=poll,
        )

    def ack_all(self) -> None:
        """Acknowledge outstanding requests, and those sent meanwhile, until none is left."""
        self.poll()
        for _ in range(10_000):
            if not self.outstanding():
                return
            self.ack(self.outstanding()[0])
        raise AssertionError("the engine sends requests for ever")

    def settle_down(self, seconds: float = 30.0) -> None:
        """Acknowledge every request for `seconds`, while time passes and timers fire."""
        until = self.now + seconds
        while self.now < until:
            self.ack_all()
            at = self.core.wake_at
            self.tick(min(until - self.now, max(0.001, (at or until) - self.now)))
        self.ack_all()

    def lose(
        self,
        end: LinkEnd | None = None,
        *,
        unwritten: Iterable[Any] = (),
        poll: bool = True,
    ) -> None:
        """Lose a connection and its unanswered requests; by default that of the Produce requests.

        The requests and steps in `unwritten` were not written to the socket, not even in part.
        """
        if end is None:
            end = self.produce_link()
        never = [each.step.token if isinstance(each, Request) else each.token for each in unwritten]
        self.forget_call(end.link_id)
        for request in self.outstanding():
            if request.link is end:
                request.done = True
        self._forget_done()
        end.closed = True
        self.core.on_link_lost(end.link_id, KafkaConnectionError("reset"), self.now, never)
        self.collect()
        if poll:
            self.poll()

    def produce_link(self) -> LinkEnd:
        """Return an open connection: that of the latest Produce request, else the newest.

        A Produce request does not count if its connection is closed.
        """
        for request in reversed(self.everything):
            if not request.link.closed:
                return request.link
        return [end for end in self.links.values() if end.open and not end.closed][-1]

    def jump(self, sequence: int, *, partition: int = 0) -> None:
        """Set the partition's next sequence, as if all lower sequences had been written.

        `sequence` is the engine's counter, which is unbounded; on the wire it wraps to 0 at 2^31.
        """
        state = self.state(T, partition)
        assert not state.batches.unresolved
        state.ledger.next = sequence
        self._bytes.clear()
        self._first_sends.clear()
        self._firsts.clear()
        self._begins.clear()
        self._proved.clear()

    # -- transactions

    @property
    def transactions(self) -> Transactions:
        transactions = self.core.transactions
        assert transactions is not None
        return transactions

    @property
    def txn(self) -> TransactionState:
        """The state of the producer's transaction."""
        return self.transactions.state

    @property
    def identity(self) -> Identity:
        """The producer id and the epoch that the engine holds."""
        identity = self.core.identity.current
        assert identity is not None
        return identity.producer_id, identity.epoch

    def begin(self) -> Rig:
        self.core.coordination.begin()
        self.added.clear()
        self.poll()
        return self

    def commit(self) -> TransactionOutcome:
        outcome = self.core.coordination.commit()
        self.poll()
        return outcome

    def abort(self) -> TransactionOutcome:
        outcome = self.core.coordination.abort()
        self.poll()
        return outcome

    def change_id(self, transactional_id: str) -> Rig:
        """Take another transactional id."""
        self.core.coordination.change_id(transactional_id)
        self.poll()
        return self

    def offsets(self, offset: int = 1, *, group: str = "g", partitions: int = 1) -> OffsetCommit:
        """Add a consumer group's offsets to the transaction."""
        wanted = {("in", index): TxnOffset(offset) for index in range(partitions)}
        commit = self.transactions.commit_offsets(OffsetCommit(GroupMember(group), wanted))
        self.poll()
        return commit

    def called(self, kind: type[Any]) -> Any:
        """Return the call to a coordinator that awaits an answer, after checking its type."""
        assert isinstance(self.calling, kind), f"{self.calling} is no {kind.__name__}"
        assert self.calling in self.held
        return self.calling

    def answer_call(self, step: Any, code: int = NONE, *, poll: bool = True, **more: Any) -> None:
        """Answer a call to a coordinator.

        `code` is the answer for every partition or offset that the call names; `more` sets further
        fields of the answer.
        """
        answer: Any
        identity = self.core.identity.current
        given = (-1, -1) if identity is None else tuple(identity)
        match step:
            case steps.FindCoordinator():
                node = self.brokers[self.coordinator]
                answer = CoordinatorAnswer(code, node.node_id, node.host, node.port)
                if code:
                    answer = CoordinatorAnswer(code, -1, "", -1)
            case steps.InitTransactions():
                self.next_pid += identity is None
                granted = (self.next_pid, 0) if identity is None else (given[0], given[1] + 1)
                answer = ProducerIdAnswer(code, *((-1, -1) if code else granted))
            case steps.AddPartitions(_, _, _, partitions):
                codes = more.pop("codes", dict.fromkeys(partitions, code))
                self.added.update(which for which in partitions if codes.get(which) == NONE)
                answer = AddPartitionsAnswer(codes)
            case steps.AddOffsets():
                answer = AddOffsetsAnswer(code)
            case steps.CommitOffsets(_, _, _, _, offsets):
                answer = TxnOffsetCommitAnswer(more.pop("codes", dict.fromkeys(offsets, code)))
            case steps.EndTransaction(_, _, _, _, v2):
                following = (given[0], given[1] + 1) if v2 and not code else (-1, -1)
                answer = EndTxnAnswer(code, *more.pop("identity", following))
            case _:
                raise AssertionError(f"this step is no call to a coordinator: {step}")
        answer = answer._replace(throttle_ms=more.pop("throttle_ms", 0))
        assert not more, more
        self.forget_call(step.link_id)
        self.core.on_answer(step, answer, self.now)
        self.collect()
        if poll:
            self.poll()

    def forget_call(self, link_id: int) -> None:
        """Forget a connection's held call, because it was answered or the connection is lost."""
        if self.calling is not None and self.calling.link_id == link_id:
            if self.calling in self.held:
                self.held.remove(self.calling)
            self.calling = None

    def lose_call(self, *, written: bool = True, poll: bool = True) -> None:
        """Lose the connection that carries the held call (a request to a coordinator)."""
        call = self.calling
        assert call in self.held
        self.lose(self.links[call.link_id], unwritten=() if written else (call,), poll=poll)

    def _check_call(self, step: Any) -> None:
        assert self.calling is None, f"{step} is sent while {self.calling} is not answered"
        self.calling = step
        if not isinstance(step, steps.EndTransaction):
            return
        assert not self.outstanding(), f"EndTxn is sent while {self.outstanding()} are not answered"
        assert step.v2 is (self.transactions.version == 2)
        if step.commit:
            assert self.core.unsettled == 0
            assert not any(state.batches.in_doubt for state in self.core.partitions.values())

    def _check_transactional(self, step: steps.SendProduce, transactions: Transactions) -> None:
        assert step.transactional_id == self.transactions.transactional_id
        assert transactions.may_send
        assert (step.version >= 12) is (transactions.version == 2)
        for topic in step.topics:
            for index, _ in topic.partitions:
                assert transactions.version == 2 or (topic.name, index) in self.added

    # -- what tests look at

    def state(self, topic: str = T, partition: int = 0) -> PartitionState:
        return self.core.partitions[topic, partition]

    @property
    def sequences(self) -> list[int]:
        """The base sequences of all outstanding batches, in the order of sending."""
        return [part.sequence for request in self.outstanding() for part in request.parts]

    @property
    def statuses(self) -> list[DeliveryStatus]:
        return [outcome.status for outcome in self.outcomes]

    def assert_drained(self) -> None:
        """Assert that each record has its outcome and that no memory or request is left over."""
        core = self.core
        assert core.unsettled == 0
        assert core.budget.in_use == 0
        assert core.budget.waiting == 0
        for state in core.partitions.values():
            assert not state.batches.unresolved
            assert state.queue.bytes == 0
            assert not state.queue.records
        assert not self.outstanding()
        for state in core.partitions.values():
            assert state.batches.outstanding == 0
        for link in core.connections.links.values():
            assert link.window.outstanding == len(link.outstanding)
            assert link.bytes_in_flight == 0
        counters = core.counters
        assert counters.records_acked == self.statuses.count(ACKED)
        assert counters.records_not_written == self.statuses.count(NOT_WRITTEN)
        assert counters.records_unknown == self.statuses.count(UNKNOWN)


def made_link() -> Link:
    """Make a new link to broker 1."""
    config = ProducerConfig.build("b1:9092")
    chance = random.Random(1).random
    return Link(1, 1, 5, 0.0, Discovery("broker 1", config, chance), BrokerMemory(chance))


def pipelined(batches: int = 5, **options: Any) -> tuple[Rig, list[Request]]:
    """Make a rig with `batches` batches of one record in flight, with sequences 1 to `batches`.

    Record 0 is acknowledged. That opens the first-ack gate, which allows one batch in flight until
    the leader has acknowledged a batch.
    """
    rig = Rig(**options).start()
    rig.send()
    rig.ack(rig.outstanding()[0], retained=batches if batches > 5 else None)
    rig.send(batches)
    assert rig.sequences == list(range(1, batches + 1))
    return rig, rig.outstanding()


def wait_until(rig: Rig, condition: Callable[[], bool], seconds: float = 200.0) -> None:
    """Let time pass until the condition holds, for at most `seconds`."""
    until = rig.now + seconds
    while not condition():
        assert rig.now < until, "the condition did not come true in time"
        at = rig.core.wake_at
        assert at is not None, "the engine does not ask to be woken"
        rig.tick(max(at - rig.now, 1e-6))


def refuse_until_bumped(rig: Rig) -> None:
    """Answer every request by OUT_OF_ORDER, at intervals, until the engine raises the epoch."""
    for _ in range(200):
        if rig.core.epoch_bumps:
            break
        for request in rig.outstanding():
            rig.fail(request, OUT_OF_ORDER)
        rig.tick(0.25)
    assert rig.core.epoch_bumps == 1


def refuse_until(rig: Rig, condition: Callable[[], bool], code: int, seconds: float = 60.0) -> None:
    """Answer every request at once with this error code, until the condition holds."""
    until = rig.now + seconds
    while not condition():
        assert rig.now < until, "the condition did not come true in time"
        for request in rig.outstanding():
            rig.fail(request, code)
        at = rig.core.wake_at
        assert at is not None
        rig.tick(max(at - rig.now, 1e-6))

"""ProducerCore: composes the engine's parts and turns their state into steps.

`poll(now)` answers "what should be done now?" as a list of `Step`s and sets `wake_at`, the latest
moment to ask again. The `on_*` methods take in what happened. Whoever drives it resolves
`take_settled()` and logs `take_events()` outside of the engine, so that a user's callback can never
run in the middle of a decision.

Invariants
- Every record appended is settled exactly once: ACKED, NOT_WRITTEN or UNKNOWN.
- A request is outstanding on exactly one link; when that link is gone its batches are in doubt,
  unless the driver says that the write never began.
- Answers are matched by (link, token) and then by what that request carried. What an answer omits
  is in doubt; what it invents or repeats closes the connection.

Rejected: one object per broker that owns its partitions (franz-go's sink). A leader move would have
to carry state from one owner to another in the middle of its life; here a partition only changes
its route.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.accumulator import ByteBudget, PendingRecord, Settlement
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.classify import Action, classify
from aioidem._engine.cluster import NO_LEADER, ClusterView, TopicView
from aioidem._engine.cluster_change import carried_records, changed, id_is_shared, misrouted
from aioidem._engine.connections import Connections
from aioidem._engine.coordinator import CallKind
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW
from aioidem._engine.flushing import FlushCount
from aioidem._engine.idempotence import IdentityLedger, IdentityState, ProducerIdentity
from aioidem._engine.links import Entry, Link, Outstanding, RequestKind
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.partition import SEQUENCE_CAP, PartitionState, Route
from aioidem._engine.read_back import written_batches
from aioidem._engine.recovery import Rung
from aioidem._engine.refusals import culprits, too_large
from aioidem._engine.retention import Disproof
from aioidem._engine.sealing import Sealer
from aioidem._engine.suspicion import DEFAULT_EXPIRATION
from aioidem._engine.topics import TopicState
from aioidem._engine.transactions import (
    V2,
    Call,
    Outcome,
    Transactions,
    TransactionState,
)
from aioidem._engine.unassigned import SLICE, Assigning
from aioidem._engine.unlisted import may_pass
from aioidem._protocol.add_offsets import AddOffsetsAnswer
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.messages import printable
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer, TransactionalIdentity
from aioidem._protocol.producers import ProducersAnswer
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._protocol.topic_config import TopicConfig
from aioidem._protocol.txn_offset_commit import TxnOffsetCommitAnswer
from aioidem._records import BATCH_OVERHEAD
from aioidem.structs import DeliveryStatus

__all__ = ["Counters", "ProducerCore"]

DEFAULT_SEQUENCE_CAP = 10_000_000
"""KIP-758's default range of sequences."""

_OLD_LEADER_SILENCE = 2.0
"""Seconds without a byte from a deposed leader after which its successor is not kept waiting."""

_SUSPECT_WARNING = (
    "{partition.topic}-{partition.partition}: record timestamps are more than half of the brokers' "
    "producer.id.expiration.ms ({seconds:g} s) old, so a broker may have forgotten this producer "
    "(KIP-854): after a lost answer such records are read back, and end UNKNOWN if that is not "
    "possible. Cures: a transactional id, message.timestamp.type=LogAppendTime, a larger expiration"
)

_UNTOLD_WARNING = (
    "broker {link.node_id} does not tell max.message.bytes of a topic, or stores its batches "
    "compressed anew, so they do not grow beyond batch_size ({size} bytes) there: a larger one "
    "whose answer is lost might never be taken. Cures: DESCRIBE_CONFIGS on the topic for this "
    "principal, the topic's compression.type as the producer's, or a larger batch_size"
)

_RETRIABLE_TOPIC_ERRORS = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.replica_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_server_error,
    }
)
_PRODUCE_WITH_TOPIC_IDS = 13
_MOST_BATCHES = 1_000
"""Batches in one Produce request: what its answer settles is done in one piece."""
_LAST_PRODUCE_OF_V1 = 11
"""The highest Produce version that does not add its partitions to the transaction (KIP-890)."""
_PASSING = frozenset({ErrorCode.none, ErrorCode.unknown_server_error})
"""A success without an id, and an error that names no reason: asked again."""
_IDENTITY_REFUSED = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.transactional_id_authorization_failed,
    }
)
_NEEDED_FOR_IDENTITY: dict[int, str] = {
    ErrorCode.cluster_authorization_failed: (
        "a producer id needs IDEMPOTENT_WRITE on the cluster, or WRITE on some topic"
    ),
    ErrorCode.transactional_id_authorization_failed: (
        "a producer id needs WRITE on the transactional id {!r}"
    ),
}


class Counters:
    """What happened so far, in numbers."""

    __slots__ = (
        "batches_retried",
        "batches_sent",
        "batches_split",
        "bytes_acked",
        "data_loss_events",
        "records_acked",
        "records_not_written",
        "records_unknown",
    )

    def __init__(self) -> None:
        self.batches_sent = 0
        self.batches_retried = 0
        self.batches_split = 0
        self.bytes_acked = 0
        self.data_loss_events = 0
        self.records_acked = 0
        self.records_not_written = 0
        self.records_unknown = 0


class _Accusation(NamedTuple):
    """A verdict on a broker's memory that waits for metadata."""

    state: PartitionState
    route: Route
    disproof: Disproof
    at: float


class ProducerCore:
    """The whole engine of one producer.

    Args:
        config: validated options.
        random: uniform numbers from [0, 1); the only source of chance.
    """

    def __init__(self, config: ProducerConfig, *, random: Callable[[], float]) -> None:
        self.config = config
        self.idempotent = config.enable_idempotence
        self.budget = ByteBudget(config.buffer_memory)
        self.identity = IdentityLedger()
        self.cluster = ClusterView()
        self.counters = Counters()
        self.topics: dict[str, TopicState] = {}
        self.partitions: dict[tuple[str, int], PartitionState] = {}
        self.connections = Connections(config, random)
        self.fatal_error: errors.KafkaError | None = None
        self.wake_at: float | None = None
        self.expiration = config.producer_id_expiration or DEFAULT_EXPIRATION
        self._expirations: dict[int, float] = {}
        self._closed = False
        self._sequence_cap = DEFAULT_SEQUENCE_CAP if config.broker_dedup == "range" else None
        self._sequence_caps: dict[int, int] = {}
        self._warned_suspect = False
        self._warned_untold = False
        self._read_back_later: list[tuple[PartitionState, Link, int]] = []
        self._appended = 0
        self._home_heard_at = 0.0
        self.generation = 0
        # Those of the flushes that somebody waits for.
        self.flush_counts: list[FlushCount] = []
        self.metadata = MetadataRefresher(config.metadata_max_age, self._new_backoff(random))
        self.identity_error: errors.KafkaError | None = None
        # None without a transactional id.
        self.transactions: Transactions | None = None
        self.transaction_version = 0
        if config.transactional_id is not None:
            self.transactions = Transactions(
                config.transactional_id, self.identity, self._new_backoff(random)
            )
            self.transactions.init()
        self._random = random
        self._sealer = Sealer(config)
        self._unsettled: dict[int, int] = {}
        self._retired: list[PartitionState] = []
        self._assigning = Assigning()
        self.assigned_at_once = SLICE
        self._settled: list[Settlement] = []
        # Batches as they are sent, for whoever observes: None while nobody does.
        self.dispatched: list[Entry] | None = None
        self._events: deque[str] = deque(maxlen=1000)
        self._notes: deque[str] = deque(maxlen=1000)
        self._accused: list[_Accusation] = []
        self._steps: list[steps.Step] = []
        self._next_link_id = 1
        self._next_token = 1
        self._turn = 0
        self._wall_ahead: float | None = None
        self._identity_at = 0.0
        self._identity_backoff = self._new_backoff(random)
        if config.producer_id_expiration is not None:
            self._warn_of_short_memory()

    def _new_backoff(self, random: Callable[[], float]) -> Backoff:
        return Backoff(self.config.retry_backoff, self.config.retry_backoff_max, random)

    # -- the caller's side -------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState:
        """The state of a topic by name, made on first use.

        Asks for metadata when the topic is new.
        """
        state = self.topics.get(name)
        if state is None:
            state = self.topics[name] = TopicState(name, self.config.batch_size, self._random)
            self.metadata.want()
        return state

    def append(
        self,
        topic_name: str,
        record: PendingRecord,
        now: float,
        block_until: float | None = None,
    ) -> None:
        """Queue a record whose bytes were taken from `budget` already. From here on it will be
        settled.

        `block_until`: when the caller's `max_block` ends, which may have begun before; None: it
        begins now.

        Raises:
            KafkaError: the fatal error this producer ended with, or `RecordError` for what its
                partitioner did; the record is not queued.
        """
        if self.fatal_error is not None:
            error = copy.copy(self.fatal_error)
            error.status = DeliveryStatus.NOT_WRITTEN  # whatever became of a transaction
            raise error
        if self._closed:
            raise errors.ProducerClosed("the producer is closed")
        if self.transactions is not None:
            self.transactions.need_open()
        topic = self.topic(topic_name)
        record.deadline = now + self.config.delivery_timeout
        record.generation = self.generation
        self._appended += 1
        record.ordinal = self._appended
        behind = topic.unassigned.due
        if behind or not self._assign(topic, record, now):
            if block_until is None:
                block_until = now + self.config.max_block
            until = min(block_until, record.deadline)
            if behind:
                topic.unassigned.follow(until, self.metadata.requests, record)
            else:
                topic.unassigned.wait(until, self.metadata.requests, record)
                self.metadata.want()
        self._unsettled[self.generation] = self._unsettled.get(self.generation, 0) + 1

    def _assign(self, topic: TopicState, record: PendingRecord, now: float) -> bool:
        """Put a record into its partition's queue, if metadata knows that partition."""
        views = self.cluster.partitions(topic.name)
        if views is None:
            return False
        index = record.partition
        if index is None:
            index = self._choose_partition(topic, record)
        elif index not in views:
            return False
        queue = self.partition(topic.name, index).queue
        queue.append(record, now)
        if record.generation < self.generation:
            queue.flushing = True  # a flush began while it waited for its partition
        return True

    def _choose_partition(self, topic: TopicState, record: PendingRecord) -> int:
        view = self.cluster.topics[topic.name]
        if record.key is None and self.config.partitioner is None:
            return topic.sticky.choose(record.size, view)
        everything = view.everything
        try:
            chosen = self._sealer.partitioner(record.key, everything, view.available or everything)
        except Exception as error:
            # The caller's code: it may run long after his call, where nobody else would catch it.
            raise errors.RecordError(f"the partitioner raised {error!r}") from error
        if not isinstance(chosen, int) or chosen not in view.leaders:
            raise errors.RecordError(f"the partitioner chose {chosen!r}, which is no partition")
        return chosen

    def partition(self, topic: str, index: int) -> PartitionState:
        """The state of a partition, made on first use."""
        state = self.partitions.get((topic, index))
        if state is None:
            view = self.cluster.topics.get(topic)
            state = self.partitions[topic, index] = PartitionState(
                topic,
                index,
                None if view is None else view.topic_id,
                idempotent=self.idempotent,
                retry=self._new_backoff(self._random),
                pause=self.config.request_timeout,
                resend=self.config.in_doubt == "resend",
                sequence_cap=self._sequence_cap,
                transactional=self.transactions is not None,
            )
        return state

    @property
    def assigning(self) -> bool:
        """Whether records are being given partitions: what is refused may be a part of it."""
        return bool(self._assigning)

    @property
    def unsettled(self) -> int:
        """Records that have no outcome yet."""
        return sum(self._unsettled.values())

    def unsettled_by_topic(self) -> dict[str, int]:
        """How many records of each topic have no outcome yet. May be called by a finaliser."""
        counts = {
            name: len(topic.unassigned)
            for name, topic in list(self.topics.items())
            if topic.unassigned
        }
        for state in [*self.partitions.values(), *self._retired]:
            left = len(state.queue.records) + sum(len(b.records) for b in list(state.unresolved))
            if left:
                counts[state.topic] = counts.get(state.topic, 0) + left
        return counts

    def begin_flush(self) -> int:
        """End lingering for what is queued; the generation whose records `flushed` waits for."""
        for state in self.partitions.values():
            state.queue.flushing = bool(state.queue.records)
        self.generation += 1
        return self.generation - 1

    def flushed(self, generation: int) -> bool:
        """Whether every record up to that generation has its outcome."""
        return all(count == 0 or g > generation for g, count in self._unsettled.items())

    def close(self, now: float) -> list[steps.Step]:
        """End everything now: what is unsettled becomes NOT_WRITTEN or UNKNOWN, every connection is
        closed.
        """
        self._closed = True
        self._abandon(
            self.fatal_error
            or errors.ProducerClosed("the producer was closed before the record was acknowledged")
        )
        closing: list[steps.Step] = []
        for link in list(self.connections.links.values()):
            self._drop(link, None, now)
            closing.append(steps.CloseLink(link.link_id, "the producer is closing"))
        for _ in self.budget.wake_all():
            pass
        return closing

    def _abandon(self, error: errors.KafkaError) -> None:
        for state in [*self.partitions.values(), *self._retired]:
            state.abandon(error, self)
        for topic in self.topics.values():
            records = [each.record for each in topic.unassigned.take()]
            self._refuse(topic.name, records, copy.copy(error))

    def _refuse(self, topic: str, records: list[PendingRecord], error: errors.KafkaError) -> None:
        """Settle records that never got a partition."""
        if records:
            error.status = DeliveryStatus.NOT_WRITTEN
            self.settle(Settlement(topic, -1, records, DeliveryStatus.NOT_WRITTEN, error=error))

    # -- transactions ------------------------------------------------------------------------------

    def begin_transaction(self, transactions: Transactions) -> None:
        """Begin one, in the protocol that the cluster has finalised. Raises as `Transactions.begin`
        does.
        """
        transactions.begin(self.transaction_version)
        for state in self.partitions.values():
            state.close_gate()

    def commit_transaction(self, transactions: Transactions) -> Outcome:
        """Deliver what is queued, then commit. Returns and raises as `Transactions.commit` does."""
        outcome = transactions.commit()
        self.begin_flush()
        return outcome

    def abort_transaction(self, transactions: Transactions) -> Outcome:
        """Settle what is queued, then abort. Returns and raises as `Transactions.abort` does."""
        outcome = transactions.abort()
        self._follow_transactions()
        return outcome

    def _follow_transactions(self) -> None:
        """Let records and the producer share the transaction's fate."""
        transactions = self.transactions
        if transactions is None:
            return
        match transactions.state:
            case TransactionState.FATAL if transactions.cause is not None:
                self.fatal(transactions.cause)
            case TransactionState.UNINITIALISED:
                self.identity_error = transactions.cause
            case TransactionState.ABORTABLE:
                doomed = errors.AbortableTransactionError(
                    f"its transaction can only be aborted: {transactions.cause}"
                )
                doomed.__cause__ = transactions.cause
                self._abort_records(doomed, DeliveryStatus.UNKNOWN)
            case TransactionState.ABORTING:
                self._abort_records(errors.TransactionAborted("its transaction was aborted"), None)
            case _ if transactions.outcome.committed is False and self.unsettled:
                aborted = errors.TransactionAborted("its transaction was aborted")
                self._abort_records(aborted, DeliveryStatus.NOT_WRITTEN)

    def _abort_records(self, error: errors.KafkaError, doubt: DeliveryStatus | None) -> None:
        for state in [*self.partitions.values(), *self._retired]:
            if state.active:
                state.abort(error, doubt, self)
        for topic in self.topics.values():
            records = [each.record for each in topic.unassigned.take()]
            self._refuse(topic.name, records, copy.copy(error))

    def _call_coordinator(self, now: float) -> None:
        """Ask a coordinator what the transaction needs next, if anything."""
        transactions = self.transactions
        if transactions is None or self.metadata.refreshed_at is None:
            return
        call = transactions.next_call(
            now, quiet=transactions.ending and self._quiet(), delivered=self.unsettled == 0
        )
        self._follow_transactions()
        if call is None:
            return
        link = self._link_for(call, now)
        if link is None or not link.admits(now):
            return
        request = self._register(link, RequestKind.COORDINATION, now)
        transactions.sent(call)
        self._steps.append(self._step_for(transactions, call, link.link_id, request.token))

    def _quiet(self) -> bool:
        return not any(state.outstanding for state in [*self.partitions.values(), *self._retired])

    def _link_for(self, call: Call, now: float) -> Link | None:
        node_id = call.coordinator.node_id
        if call.kind is CallKind.FIND or node_id is None:
            return self.connections.any(now, self._steps)
        if node_id not in self.connections.nodes:
            call.coordinator.node_id = None  # forgotten meanwhile: it is sought anew
        link = self.connections.to(node_id, now, self._steps)
        return link if link is not None and link.identified else None

    def _step_for(
        self, transactions: Transactions, call: Call, link_id: int, token: int
    ) -> steps.Step:
        name = transactions.transactional_id
        if call.kind is CallKind.FIND:
            return steps.FindCoordinator(
                link_id, token, call.coordinator.kind, call.coordinator.key
            )
        identity = self.identity.current
        who = None if identity is None else TransactionalIdentity(name, *identity)
        if call.kind is CallKind.INIT:
            timeout_ms = round(self.config.transaction_timeout * 1000)
            return steps.InitTransactions(link_id, token, name, timeout_ms, who)
        if who is None:
            raise errors.InternalError(f"{call.kind.value} without a producer id")
        v2 = transactions.version >= V2
        if call.kind is CallKind.END:
            return steps.EndTransaction(link_id, token, who, call.commit, v2)
        if call.offsets is None:
            return steps.AddPartitions(link_id, token, who, call.partitions)
        if call.kind is CallKind.ADD_OFFSETS:
            return steps.AddOffsets(link_id, token, who, call.offsets.group.group_id)
        left = dict(call.offsets.left)
        return steps.CommitOffsets(link_id, token, who, call.offsets.group, left, v2)

    # -- Effects (what partitions ask of us) -------------------------------------------------------

    def settle(self, settlement: Settlement) -> None:
        """Account for an outcome; the driver tells the sinks."""
        count = len(settlement.records)
        size = 0
        for record in settlement.records:
            size += record.size
            self._unsettled[record.generation] -= 1
        for flush in self.flush_counts:
            flush.add(settlement)
        if len(self._unsettled) > 1:
            for generation in [g for g, n in self._unsettled.items() if n == 0]:
                del self._unsettled[generation]
        if settlement.status is DeliveryStatus.ACKED:
            self.counters.records_acked += count
            self.counters.bytes_acked += size
        elif settlement.status is DeliveryStatus.NOT_WRITTEN:
            self.counters.records_not_written += count
        else:
            self.counters.records_unknown += count
        if self.transactions is not None and settlement.status is not DeliveryStatus.ACKED:
            error = settlement.error
            self.transactions.fail(error if isinstance(error, errors.KafkaError) else None)
        self._settled.append(settlement)
        self.budget.release(size)

    def refresh_metadata(self) -> None:
        """Ask for metadata at the next chance."""
        self.metadata.want()

    def bump(self, partition: PartitionState) -> None:
        """One incident, one bump: a partition still on an older epoch only has to adopt the newer
        one.
        """
        if self.transactions is not None:
            # The coordinator's to do, at the end of the transaction, which can only be aborted.
            self.transactions.renew()
            self.transactions.fail(errors.OutOfOrderSequenceNumber("sequences were given up"))
        elif partition.ledger.identity == self.identity.current:
            self.identity.bump()
            self._events.append(f"{partition.topic}-{partition.partition}: producer epoch bumped")

    def disown(self, partition: PartitionState, error: errors.KafkaError) -> None:
        """Somebody else writes under our producer id: no partition may go on with it."""
        shared = partition.ledger.identity
        if shared is None:
            return
        told = id_is_shared(error, partition, shared.producer_id)
        for state in [*self.partitions.values(), *self._retired]:
            identity = state.ledger.identity
            if identity is not None and identity.producer_id == shared.producer_id:
                state.disown(told, self)
        current = self.identity.current
        if current is not None and current.producer_id == shared.producer_id:
            self.identity.disown()
            self._events.append(f"{told.args[0]}: this one takes a new producer id")

    def data_loss(self, partition: PartitionState, reason: str) -> None:
        """Report that a broker lost acknowledged data, or our state."""
        self.counters.data_loss_events += 1
        if self.transactions is not None:
            # What was lost may be of the open transaction, which must not be committed in part.
            self.transactions.fail(errors.OutOfOrderSequenceNumber(f"data loss: {reason}"))
        self._events.append(f"{partition.topic}-{partition.partition}: data loss: {reason}")

    def fatal(self, error: errors.KafkaError) -> None:
        """End the producer for good; what is unsettled is settled in the next poll."""
        if self.transactions is not None:
            self.transactions.die(error)
            error = self.transactions.cause or error
        if self.fatal_error is None:
            self.fatal_error = error

    def doom(self, partition: PartitionState, error: errors.KafkaError) -> None:
        """The open transaction can only be aborted."""
        if self.transactions is not None:
            self.transactions.fail(error)
            self._events.append(
                f"{partition.topic}-{partition.partition}: the transaction must be aborted: {error}"
            )

    def disprove(self, partition: PartitionState, disproof: Disproof, now: float) -> None:
        """Its leader remembers fewer batches than it says, unless it was deposed in between: that
        metadata from now on will tell.
        """
        if partition.route is not None:
            self._accused.append(_Accusation(partition, partition.route, disproof, now))
            self.metadata.want()

    def _convict(self, asked_at: float, now: float) -> None:
        """Metadata that was asked for at that time has come: judge what is older."""
        due = [each for each in self._accused if each.at <= asked_at]
        self._accused = [each for each in self._accused if each.at > asked_at]
        for state, route, disproof, _ in due:
            view = self.cluster.leader_of(state.topic, state.partition)
            node = self.connections.nodes.get(route.leader_id)
            here = view is not None and (view.leader_id, view.leader_epoch) == route[1:]
            if not here or node is None:
                continue
            if node.memory.disprove(disproof, now):
                self._events.append(
                    f"broker {route.leader_id} says that it retains {disproof.said} batches per "
                    f"producer and partition, and was seen to deduplicate {disproof.proved} and "
                    f"not {disproof.refused} ({state.topic}-{state.partition}): no more than "
                    f"{node.memory.limit} are sent ahead there for a while; no record is harmed "
                    "(is something between that answers for it?)"
                )

    def without(self, batch: Batch, culprits: Collection[int]) -> Batch | None:
        """Rebuild a batch without the records it was refused for."""
        return self._sealer.without(batch, culprits)

    # -- the driver's side: outcomes ---------------------------------------------------------------

    def take_settled(self) -> list[Settlement]:
        """Outcomes since the last call, in order."""
        settled, self._settled = self._settled, []
        return settled

    def take_events(self) -> list[str]:
        """What an operator should read: data loss, bumps, recreated topics."""
        events = list(self._events)
        self._events.clear()
        return events

    def take_notes(self) -> list[str]:
        """What an operator may want to know, and need not act on: how windows are found."""
        notes = list(self._notes)
        self._notes.clear()
        return notes

    def bootstrap_failure(self) -> errors.KafkaError | None:
        """Why no broker can be reached, once every bootstrap address was tried in vain."""
        if self.metadata.refreshed_at is not None:
            return None
        return self.connections.bootstrap_failure()

    # -- the driver's side: steps ------------------------------------------------------------------

    def poll(self, now: float, wall_ms: float | None = None) -> list[steps.Step]:
        """What to do now. Sets `wake_at`.

        `wall_ms`: milliseconds since the epoch, by the clock that stamps records. Without it
        nothing is taken to be too old for a broker to remember (KIP-854).
        """
        self._steps = []
        if wall_ms is not None:
            # A clock that is set back stamps records that are old by a broker: the most advanced
            # one that was ever seen counts.
            ahead = wall_ms - now * 1000.0
            if self._wall_ahead is None or ahead > self._wall_ahead:
                self._wall_ahead = ahead
        self._follow_transactions()
        self._leave_strangers(now)
        if self.fatal_error is not None:
            self._abandon(self.fatal_error)
        if self._assigning:
            self._assign_due(now)
        self._close_overdue(now)
        self._expire(now)
        active = [state for state in self.partitions.values() if state.active]
        for state in active:
            self._close_silent_leader(state, now)
        pages, self._read_back_later = self._read_back_later, []
        for state, link, offset in pages:
            if link.link_id in self.connections.links:
                self._read_back(state, link, offset, now)
        for state in active:
            self._prepare(state, now)
        self._request_metadata(now)
        self._ask_clusters(now)
        self._request_identity(now)
        self._call_coordinator(now)
        self._send_batches(active, now)
        self._call_coordinator(now)  # for partitions that are to be added first
        for link in self.connections.spare(now):
            self._steps.append(steps.CloseLink(link.link_id, "idle"))
            self._drop(link, None, now)
        self.wake_at = self._next_wake(active, now)
        return self._steps

    def _close_overdue(self, now: float) -> None:
        for link, reason in self.connections.overdue(now):
            self._steps.append(steps.CloseLink(link.link_id, reason))
            self._drop(link, errors.KafkaConnectionError(reason), now)

    def _drop(
        self,
        link: Link,
        error: Exception | None,
        now: float,
        unwritten: Collection[int] = (),
    ) -> None:
        """Account for a connection that is gone: what it owed is in doubt."""
        if link.identified:
            self._home_heard_at = max(self._home_heard_at, link.last_progress)
        if self.transactions is not None:
            self.transactions.on_node_lost(link.node_id)
        for request in self.connections.drop(link, error, now):
            self._lose_request(request, written=request.token not in unwritten, now=now)

    def _expire(self, now: float) -> None:
        for state in [*self.partitions.values(), *self._retired]:
            if state.active:
                link = (
                    None if state.route is None else self.connections.links.get(state.route.link_id)
                )
                answered = None if link is None else link.answered_at
                state.expire(now, self.config.request_timeout, answered, self)
        self._retired = [state for state in self._retired if state.active]
        for topic in self.topics.values():
            expired = topic.unassigned.expire(now)
            if expired:
                self._refuse(topic.name, expired, self.unassigned_error(topic))

    def unassigned_error(self, topic: TopicState) -> errors.KafkaError:
        """Why a record got no partition in time."""
        if self.cluster.partitions(topic.name) is not None:
            return errors.UnknownTopicOrPartitionError(
                f"topic {topic.name!r}: the partition is not known, and no metadata came within "
                f"max_block ({self.config.max_block:g} s) that was asked for after the record"
            )
        if topic.error_code:
            return errors.broker_error(topic.error_code, f"topic {topic.name!r} (waited max.block)")
        return errors.KafkaTimeoutError(
            f"no metadata for topic {topic.name!r} within max.block ({self.config.max_block:g} s)"
        )

    def _prepare(self, state: PartitionState, now: float) -> None:
        """Let a partition take the decisions that waited, and adopt a newer identity if it may."""
        link = None
        if state.route is not None:
            link = self.connections.links.get(state.route.link_id)
        if self.transactions is not None:
            state.gated = self.transactions.version < V2
        elif self.idempotent and self._wall_ahead is not None:
            # A broker keeps the state of a producer whose transaction is open.
            state.suspicion.assess(
                self._wall_ahead + now * 1000.0, self.expiration, state.unresolved
            )
        state.advance(
            now,
            self,
            throttled=0.0 if link is None else link.last_throttle,
            may_ask=link is not None and link.knows_producers,
        )
        if state.must_not_resend and not self._warned_suspect:
            self._warned_suspect = True
            self._events.append(_SUSPECT_WARNING.format(partition=state, seconds=self.expiration))
        if link is not None:
            self._ask_leader(state, link, now)
        if self.idempotent and self.identity.current is not None:
            state.adopt(self.identity.current)

    def _ask_leader(self, state: PartitionState, link: Link, now: float) -> None:
        """Put the question that a partition has to its leader, if it has one."""
        if state.wants_producers and link.admits(now):
            state.recovery.asked = True
            request = self._register(link, RequestKind.DESCRIBE_PRODUCERS, now, state)
            self._steps.append(
                steps.AskProducers(link.link_id, request.token, state.topic, state.partition)
            )
        elif state.wants_read_back and link.admits(now) and now >= state.retry_at:
            offset = state.begin_read_back() if link.may_read else None
            if offset is None:
                state.give_up_doubt(self)
            else:
                self._read_back(state, link, offset, now)

    def _read_back(self, state: PartitionState, link: Link, offset: int, now: float) -> None:
        request = self._register(link, RequestKind.READ_BACK, now, state)
        self._steps.append(
            steps.ReadBack(
                link.link_id,
                request.token,
                state.topic,
                state.topic_id,
                state.partition,
                offset,
            )
        )

    def _close_silent_leader(self, state: PartitionState, now: float) -> None:
        """A deposed leader that owes answers and is silent holds up its successor: close it."""
        link, at = self._silent_at(state)
        if link is not None and at is not None and now >= at:
            reason = f"leadership of {state.topic}-{state.partition} moved, and it is silent"
            self._steps.append(steps.CloseLink(link.link_id, reason))
            self._drop(link, errors.KafkaConnectionError(reason), now)

    def _silent_at(self, state: PartitionState) -> tuple[Link | None, float | None]:
        route = state.route
        if not state.outstanding or route is None:
            return None, None
        view = self.cluster.leader_of(state.topic, state.partition)
        link = self.connections.links.get(route.link_id)
        if view is None or link is None or view.leader_epoch <= route.leader_epoch:
            return None, None
        since = max(link.last_progress, link.throttled_until)
        return link, since + max(3.0 * (link.rtt or 0.0), _OLD_LEADER_SILENCE)

    # metadata and identity

    def _request_metadata(self, now: float) -> None:
        if not self.metadata.due(now):
            return
        link = self.connections.any(now, self._steps, identified=False)
        if link is None:
            return
        self.metadata.sent()
        link.asked_cluster = True
        request = self._register(link, RequestKind.METADATA, now)
        self._steps.append(
            steps.FetchMetadata(
                link.link_id,
                request.token,
                tuple(sorted(self.topics)),
                self.config.allow_auto_create_topics,
            )
        )

    def _ask_clusters(self, now: float) -> None:
        """Once per connection: which cluster does it lead to? Metadata that was asked for there
        tells it as well.
        """
        for link in self.connections.links.values():
            if not link.asked_cluster and link.admits(now):
                link.asked_cluster = True
                request = self._register(link, RequestKind.CLUSTER, now)
                self._steps.append(steps.AskCluster(link.link_id, request.token))

    def _request_identity(self, now: float) -> None:
        if (
            not self.idempotent
            or self.transactions is not None
            or self.identity.state is not IdentityState.ABSENT
            or now < self._identity_at
        ):
            return
        if self.metadata.refreshed_at is None:
            return
        link = self.connections.any(now, self._steps)
        if link is None:
            return
        self.identity.ask()
        request = self._register(link, RequestKind.INIT_PRODUCER_ID, now)
        self._steps.append(steps.InitProducerId(link.link_id, request.token))

    def _register(
        self,
        link: Link,
        kind: RequestKind,
        now: float,
        subject: PartitionState | None = None,
        topic_limit: BatchLimit | None = None,
    ) -> Outstanding:
        request = Outstanding(self._next_token, kind, now, subject=subject, topic_limit=topic_limit)
        self._next_token += 1
        link.add(request)
        return request

    # produce

    def _send_batches(self, active: list[PartitionState], now: float) -> None:
        by_link: dict[int, list[PartitionState]] = {}
        self._turn += 1
        offset = self._turn % len(active) if active else 0
        # Every poll starts with another partition, so that a full connection starves none of them.
        for state in [*active[offset:], *active[:offset]]:
            link = self._route(state, now)
            if link is not None:
                by_link.setdefault(link.link_id, []).append(state)
        for link_id, states in by_link.items():
            self._send_on(self.connections.links[link_id], states, now)
        for state in active:
            queue = state.queue
            if not queue.blocked and queue.ready(
                now, linger=self.config.linger, batch_size=self.config.batch_size
            ):
                queue.blocked = True

    def _route(self, state: PartitionState, now: float) -> Link | None:
        """Find the connection to a partition's leader, if the partition may use it now."""
        view = self.cluster.leader_of(state.topic, state.partition)
        if view is None or view.leader_id == NO_LEADER:
            self.metadata.want()
            return None
        link = self.connections.to(view.leader_id, now, self._steps)
        if link is None:
            if view.leader_id not in self.connections.nodes:
                self.metadata.want()
            return None
        if link.identified and not state.follow(
            Route(link.link_id, view.leader_id, view.leader_epoch)
        ):
            return None
        self._discover(link, state, now)
        self._ask_about_itself(link, now)
        self._ask_limit(link, state, now)
        if not link.identified:
            # It may lead to another cluster, where our producer id is somebody else's.
            return None
        if link.limits.of(state.topic).awaited:
            # What was refused for its size is cut to the limit when that is told.
            return None
        if state.in_doubt and self._awaits_memory(link):
            # Whether a resend can be a duplicate depends on how long this broker remembers us.
            return None
        return None if link.discovery.holds_up else link

    def _discover(self, link: Link, state: PartitionState, now: float) -> None:
        """Find out whether the broker may be spoken to in Produce v14, when that is due."""
        discovery = link.discovery
        if discovery.due(now) and link.admits(now) and discovery.begin():
            request = self._register(link, RequestKind.DESCRIBE_CONFIGS, now, state)
            self._steps.append(steps.DescribeTopicConfig(link.link_id, request.token, state.topic))
        finding = discovery.take_finding()
        if finding is not None:
            (self._events if finding.warning else self._notes).append(finding.text)

    def _ask_about_itself(self, link: Link, now: float) -> None:
        """Once per connection: when does this broker forget producers (KIP-854)?"""
        if link.asked_broker or not self.idempotent or not link.admits(now) or link.node_id < 0:
            return
        link.asked_broker = True
        if self.config.producer_id_expiration is None or self.config.broker_dedup == "range":
            request = self._register(link, RequestKind.BROKER_CONFIG, now)
            self._steps.append(
                steps.DescribeBrokerConfig(link.link_id, request.token, link.node_id)
            )

    def _ask_limit(self, link: Link, state: PartitionState, now: float) -> None:
        """Ask how large a batch of a topic may be, where one could grow or was refused."""
        limit = link.limits.of(state.topic)
        growth = self.config.late_sealing and state.queue.blocked
        if (
            limit.wants(now, self.config.metadata_max_age, growth=growth)
            and link.limits.may_ask
            and link.admits(now)
        ):
            limit.ask(now)
            request = self._register(link, RequestKind.TOPIC_LIMIT, now, topic_limit=limit)
            self._steps.append(steps.DescribeTopicLimit(link.link_id, request.token, state.topic))

    def _awaits_memory(self, link: Link) -> bool:
        return link.node_id not in self._expirations and any(
            request.kind is RequestKind.BROKER_CONFIG for request in link.outstanding.values()
        )

    def _send_on(self, link: Link, states: list[PartitionState], now: float) -> None:
        while link.admits(now):
            chosen: list[Entry] = []
            room = self.config.max_request_size
            for state in states:
                batch = self._next_batch(state, link, now, room, alone=not chosen)
                if batch is None:
                    continue
                state.send(batch, now)
                chosen.append(Entry(state, batch))
                room -= len(batch.data)
                if room < self.config.batch_size or len(chosen) == _MOST_BATCHES:
                    break
            if not chosen:
                return
            self._write(link, chosen, now)
            turn = len(chosen) if len(chosen) == _MOST_BATCHES else 1
            states = [*states[turn:], *states[:turn]] if len(states) > 1 else states

    def _next_batch(
        self, state: PartitionState, link: Link, now: float, room: int, *, alone: bool
    ) -> Batch | None:
        """A resend, else a new batch, else nothing.

        It fits into the `room` bytes left in a request, unless it is `alone` in it.
        """
        if self.transactions is not None and not self.transactions.may_send:
            return None
        batch = state.next_resend(now)
        if batch is not None:
            batch = self._cut_down(state, batch, link, now)
            return batch if alone or len(batch.data) <= room else None
        if self.idempotent and state.ledger.identity is None:
            return None
        if not state.queue.records or now < state.retry_at or not state.may_send_new():
            return None
        if not state.queue.ready(now, linger=self.config.linger, batch_size=self.config.batch_size):
            return None
        if not alone and state.queue.records[0].size + BATCH_OVERHEAD > room:
            return None
        if self.transactions is not None and not self.transactions.admits(
            state.topic, state.partition
        ):
            return None
        batch = self._sealer.seal(state, self.topics[state.topic], link, now, room)
        state.enlist(batch)
        return batch

    def _cut_down(self, state: PartitionState, batch: Batch, link: Link, now: float) -> Batch:
        """The first part of a batch that its topic refused for its size, or the batch itself."""
        if not batch.oversized:
            return batch
        topic = self.topics[state.topic]
        told = link.limits.of(state.topic).told
        limit = self.config.max_request_size if told is None else told
        most = topic.ceiling(limit, now, told)
        if len(batch.data) <= most:
            return batch
        parts = self._sealer.split(state, batch, most)
        state.replace(batch, parts)
        self.counters.batches_split += 1
        return parts[0]

    def _write(self, link: Link, chosen: list[Entry], now: float) -> None:
        version = link.produce_version
        if self.transactions is not None and self.transactions.version < V2:
            version = min(version, _LAST_PRODUCE_OF_V1)
        topics: dict[str, steps.TopicData] = {}
        entries: dict[tuple[str, int], Entry] = {}
        names: dict[UUID, str] = {}
        nbytes = records = 0
        for entry in chosen:
            state, batch = entry
            data = topics.get(state.topic)
            if data is None:
                topic_id = self._view(state)
                data = topics[state.topic] = steps.TopicData(state.topic, topic_id, [])
                if topic_id is None:
                    version = min(version, _PRODUCE_WITH_TOPIC_IDS - 1)
                else:
                    names[topic_id] = state.topic
            data.partitions.append((state.partition, batch.data))
            entries[state.topic, state.partition] = entry
            nbytes += len(batch.data)
            records += batch.count
            self.counters.batches_sent += 1
            self.counters.batches_retried += batch.attempts > 1
        if self.dispatched is not None:
            self.dispatched.extend(chosen)
        request = Outstanding(
            self._next_token,
            RequestKind.PRODUCE,
            now,
            entries=entries,
            names=names,
            nbytes=nbytes,
            version=version,
        )
        self._next_token += 1
        link.add(request)
        self._steps.append(
            steps.SendProduce(
                link.link_id,
                request.token,
                version,
                self.config.acks,
                int(self.config.request_timeout * 1000),
                self.config.transactional_id,
                list(topics.values()),
                records,
            )
        )

    def _view(self, state: PartitionState) -> UUID | None:
        view = self.cluster.topics.get(state.topic)
        return None if view is None else view.topic_id

    # time

    def _next_wake(self, active: list[PartitionState], now: float) -> float | None:
        """The earliest moment at which a poll could do something that it could not do now."""
        return min(self._wakes(active, now), default=None)

    def _wakes(self, active: list[PartitionState], now: float) -> Iterator[float]:
        yield from self.connections.wakes(now)
        yield from self._retry_wakes(now)
        if self._assigning:
            yield now
        for topic in self.topics.values():
            end = topic.unassigned.next_end()
            if end is not None:
                yield end
        for state in [*active, *self._retired]:
            yield from self._partition_wakes(state, now)

    def _retry_wakes(self, now: float) -> Iterator[float]:
        due = self.metadata.due_at()
        if due is not None and due > now:
            yield due
        if self.transactions is not None:
            retry_at = self.transactions.awaits
            if retry_at is not None and retry_at > now:
                yield retry_at
        if (
            self.idempotent
            and self.identity.state is IdentityState.ABSENT
            and self._identity_at > now
        ):
            yield self._identity_at

    def _partition_wakes(self, state: PartitionState, now: float) -> Iterator[float]:
        deadline = state.next_deadline(now, self.config.request_timeout)
        if deadline is not None:
            yield deadline
        if state.retry_at > now:
            yield state.retry_at
        if state.recovery.rung is Rung.PROBING and state.recovery.pass_not_before > now:
            yield state.recovery.pass_not_before
        queue = state.queue
        _, silent_at = self._silent_at(state)
        if silent_at is not None:
            yield silent_at
        if queue.records:
            lingers_until = queue.records[0].queued_at + self.config.linger
            if lingers_until > now:
                yield lingers_until

    # -- the driver's side: what happened ----------------------------------------------------------

    def on_link_open(
        self, link_id: int, produce_version: int, now: float, transaction_version: int = 0
    ) -> None:
        """A connection is up.

        `produce_version` is the highest that the broker and we both speak; `transaction_version`
        what the cluster has finalised, as this broker knows it.
        """
        self.transaction_version = transaction_version
        link = self.connections.links.get(link_id)
        if link is None:
            return
        self.connections.opened(link, produce_version, now)

    def on_link_lost(
        self, link_id: int, error: Exception | None, now: float, unwritten: Collection[int] = ()
    ) -> None:
        """A connection ended, or never came up.

        `unwritten`: tokens of which no byte was written.
        """
        link = self.connections.links.get(link_id)
        if link is not None:
            self._drop(link, error, now, frozenset(unwritten))
            self.metadata.want()
            refusal = self.connections.shut_out(error)
            if refusal is not None:
                self.fatal(refusal)

    def _lose_request(self, request: Outstanding, *, written: bool, now: float) -> None:
        match request.kind:
            case RequestKind.PRODUCE:
                if written and self.transactions is not None:
                    self.transactions.on_produced(None)
                for state, batch in request.entries.values():
                    state.on_lost(batch, written=written, now=now)
            case RequestKind.METADATA:
                self.metadata.failed(now)
            case RequestKind.INIT_PRODUCER_ID:
                self._identity_failed(now)
            case RequestKind.DESCRIBE_PRODUCERS:
                if request.subject is not None:
                    request.subject.on_producers(None)
            case RequestKind.READ_BACK:
                if request.subject is not None:
                    request.subject.end_read_back()
            case RequestKind.COORDINATION:
                if self.transactions is not None:
                    self.transactions.on_lost(now, written=written)
            case (
                RequestKind.DESCRIBE_CONFIGS
                | RequestKind.BROKER_CONFIG
                | RequestKind.TOPIC_LIMIT
                | RequestKind.CLUSTER
            ):
                pass  # asked again on the next connection, if `Connections.drop` lets it

    def on_progress(self, link_id: int, now: float) -> None:
        """Bytes moved on a connection, either way."""
        link = self.connections.links.get(link_id)
        if link is not None:
            link.last_progress = now

    def on_written_unanswered(self, link_id: int, token: int, now: float) -> None:
        """A Produce request under acks=0 was given to the socket: no answer will come, its outcome
        is UNKNOWN.
        """
        link = self.connections.links.get(link_id)
        request = None if link is None else link.withdraw(token)
        if request is None:
            return
        for state, batch in request.entries.values():
            state.on_unanswered(batch, now, self)

    def on_undecodable(self, link_id: int, version: int, error: Exception, now: float) -> None:
        """An answer could not be decoded; the driver closes the connection."""
        link = self.connections.links.get(link_id)
        if link is None:
            return
        if version >= PRODUCE_WITH_WINDOW:
            link.discovery.refused("its answer in v14 could not be decoded", now)
        self._drop(link, error, now)

    def on_produce_answer(
        self, link_id: int, token: int, answer: ProduceAnswer, now: float
    ) -> errors.ProtocolError | None:
        """A Produce request was answered. An error is returned when the answer can not be one to
        this request.
        """
        link = self.connections.links.get(link_id)
        request = None if link is None else link.take(token, now)
        if link is None or request is None:
            return None
        link.throttle(answer.throttle_ms, now)
        if request.version >= PRODUCE_WITH_WINDOW:
            self._hear_v14(link, answer, now)
        if answer.leaders:
            # Of those that lead what was asked about: a broker could name new ones each time.
            named = {part.leader_id for part in answer.partitions}
            self.cluster.add_brokers(
                BrokerAddress(leader.node_id, leader.host, leader.port)
                for leader in answer.leaders
                if leader.node_id in named
            )
            self.connections.learn(self.cluster.brokers.values())
        left = dict(request.entries)
        odd = 0
        for part in answer.partitions:
            name = part.topic
            if name is None and part.topic_id is not None:
                name = request.names.get(part.topic_id)
            entry = None if name is None else left.pop((name, part.partition), None)
            if entry is None:
                odd += 1
            else:
                self._on_partition_answer(entry, link, request, part, now)
        for state, batch in left.values():
            if self.transactions is not None:
                self.transactions.on_produced(None)
            state.on_lost(batch, written=True, now=now)
            self.metadata.want()
        if not odd:
            return None
        error = errors.ProtocolError(
            f"a Produce answer names {odd} partition(s) that its request did not carry, or "
            "names one twice"
        )
        self._drop(link, error, now)
        return error

    def _hear_v14(self, link: Link, answer: ProduceAnswer, now: float) -> None:
        if any(part.error_code == ErrorCode.unsupported_version for part in answer.partitions):
            link.discovery.refused("it answered UNSUPPORTED_VERSION", now)
        else:
            link.discovery.answered()

    def _on_partition_answer(
        self, entry: Entry, link: Link, request: Outstanding, part: PartitionAnswer, now: float
    ) -> None:
        state, batch = entry
        if self.transactions is not None:
            self.transactions.on_produced(part.error_code)
        limit = link.limits.of(state.topic)
        if not part.error_code:
            limit.accept(len(batch.data))
            if link.memory.limit is not None:
                part = part._replace(retained=link.memory.believed(part.retained, now))
            state.on_ack(batch, part, now, current=self._is_current(state), out=self)
            return
        disposition = classify(
            part.error_code,
            part.base_offset,
            trust_base_offset=self.config.trust_base_offset,
            message=part.error_message,
        )
        if (
            part.error_code == ErrorCode.unsupported_version
            and request.version >= PRODUCE_WITH_WINDOW
        ):
            disposition = disposition._replace(
                action=classify(ErrorCode.leader_not_available, -1).action
            )
        if self.transactions is not None and self.transactions.finishing(part.error_code):
            disposition = disposition._replace(
                action=classify(ErrorCode.concurrent_transactions, -1).action
            )
        error, where = _broker_error(state, part), f"{state.topic}-{state.partition}"
        if disposition.action is Action.SPLIT:
            if not batch.in_doubt:
                self.topics[state.topic].too_large(len(batch.data), now)
            limit.refuse(len(batch.data))
            error = too_large(where, part, len(batch.data), batch.count, limit.told)
        self.cluster.hint(state.topic, state.partition, part.leader_id, part.leader_epoch)
        named = culprits(where, part, batch.count)
        state.on_error(batch, disposition, error, now, self, named)

    def _is_current(self, state: PartitionState) -> bool:
        """Whether nobody newer is known than the leader a partition's answers come from. One that
        metadata does not name for a while, under the same epoch, goes on over the same connection.
        """
        view = self.cluster.leader_of(state.topic, state.partition)
        route = state.route
        return (
            view is not None
            and route is not None
            and view.leader_epoch == route.leader_epoch
            and view.leader_id in (route.leader_id, NO_LEADER)
        )

    def on_topic_config(self, link_id: int, token: int, answer: TopicConfig, now: float) -> None:
        """DescribeConfigs of a topic was answered."""
        link = self.connections.links.get(link_id)
        request = None if link is None else link.take(token, now)
        if link is None or request is None or request.subject is None:
            return
        link.discovery.described(
            answer.error_code, named=answer.names_window, topic=request.subject.topic, now=now
        )

    def on_topic_limit(self, link_id: int, token: int, told: int | None, now: float) -> None:
        """DescribeConfigs was answered: how large a batch of the topic may be, in bytes; None where
        the broker does not say.
        """
        link = self.connections.links.get(link_id)
        request = None if link is None else link.take(token, now)
        if link is None or request is None or request.topic_limit is None:
            return
        request.topic_limit.tell(told)
        if told is None and self.config.late_sealing and not self._warned_untold:
            self._warned_untold = True
            self._events.append(_UNTOLD_WARNING.format(link=link, size=self.config.batch_size))

    def on_broker_config(self, link_id: int, token: int, facts: BrokerFacts, now: float) -> None:
        """A broker told what it tells of itself."""
        link = self.connections.links.get(link_id)
        if link is None or link.take(token, now) is None:
            return
        if facts.expiration is not None and self.config.producer_id_expiration is None:
            # Brokers may differ: the shortest memory counts.
            told = self._expirations
            told[link.node_id] = facts.expiration
            known, self.expiration = self.expiration, min(told.values())
            if len(told) == 1 or self.expiration < known:
                self._warn_of_short_memory()
        if self.config.broker_dedup == "range" and facts.sequence_cap is not None:
            # Brokers may differ: the narrowest range counts, for partitions yet to come too.
            self._sequence_caps[link.node_id] = facts.sequence_cap
            self._sequence_cap = min(SEQUENCE_CAP, *self._sequence_caps.values())
            for state in self.partitions.values():
                state.sequence_cap = self._sequence_cap

    def _warn_of_short_memory(self) -> None:
        if self.idempotent and self.config.delivery_timeout >= self.expiration / 2:
            self._events.append(
                f"delivery_timeout ({self.config.delivery_timeout:g} s) is not below half of the "
                f"brokers' producer.id.expiration.ms ({self.expiration:g} s): retries may outlive "
                "what they know of this producer (KIP-854)"
            )

    def on_producers(self, link_id: int, token: int, answer: ProducersAnswer, now: float) -> None:
        """DescribeProducers was answered; a refusal means that it is not asked again here."""
        link = self.connections.links.get(link_id)
        request = None if link is None else link.take(token, now)
        if link is None or request is None or request.subject is None:
            return
        link.throttle(answer.throttle_ms, now)
        state = request.subject
        if answer.error_code:
            link.knows_producers = answer.error_code in _RETRIABLE_TOPIC_ERRORS
            state.on_producers(None)
            return
        identity = state.ledger.identity
        known = None if identity is None else answer.last_sequences.get(identity.producer_id)
        state.on_producers(known)

    def on_read_back(self, link_id: int, token: int, answer: ReadBackAnswer, now: float) -> None:
        """A page of the log came.

        Raises:
            ProtocolError: its batches are malformed; the driver closes the connection.
        """
        link = self.connections.links.get(link_id)
        request = None if link is None else link.take(token, now)
        if link is None or request is None or request.subject is None:
            return
        link.throttle(answer.throttle_ms, now)
        state = request.subject
        if answer.error_code:
            state.end_read_back()
            if answer.error_code in _RETRIABLE_TOPIC_ERRORS:
                self.metadata.want()
                state.retry_at = now + self.config.retry_backoff
            else:
                link.may_read = False
            return
        if self._wall_ahead is None or not state.must_not_resend:
            state.end_read_back()
            return
        batches = written_batches(answer.records)
        following = state.on_read_back(batches, answer.high_watermark, self)
        if following is not None:
            self._read_back_later.append((state, link, following))

    def on_producer_id(
        self, link_id: int, token: int, answer: ProducerIdAnswer, now: float
    ) -> None:
        """InitProducerId was answered.

        A success without an id counts as a failure to be retried.
        """
        link = self.connections.links.get(link_id)
        if link is None or link.take(token, now) is None:
            return
        link.throttle(answer.throttle_ms, now)
        if (
            answer.error_code == ErrorCode.none
            and answer.producer_id >= 0
            and answer.producer_epoch >= 0
        ):
            self.identity.grant(answer.producer_id, answer.producer_epoch)
            self._identity_backoff.reset()
            self.identity_error = None
            return
        self._identity_failed(now)
        code = answer.error_code
        if code in _IDENTITY_REFUSED or not (code in _PASSING or may_pass(code)):
            # Not fatal (KAFKA-13668): the grant may come back, but what waits now is told at once.
            wanted = _NEEDED_FOR_IDENTITY.get(answer.error_code, "InitProducerId")
            self.identity_error = errors.broker_error(
                answer.error_code, wanted.format(self.config.transactional_id)
            )
            self._abandon(self.identity_error)

    def on_coordination(
        self,
        link_id: int,
        token: int,
        answer: CoordinatorAnswer
        | ProducerIdAnswer
        | AddPartitionsAnswer
        | AddOffsetsAnswer
        | TxnOffsetCommitAnswer
        | EndTxnAnswer,
        now: float,
    ) -> None:
        """A coordinator answered, or another broker told which one it is."""
        link = self.connections.links.get(link_id)
        transactions = self.transactions
        if link is None or transactions is None or link.take(token, now) is None:
            return
        link.throttle(answer.throttle_ms, now)
        match answer:
            case CoordinatorAnswer(code, node_id, host, port):
                if code == ErrorCode.none and node_id >= 0:
                    named = BrokerAddress(node_id, host, port)
                    self.connections.learn([*self.cluster.brokers.values(), named])
                transactions.on_found(code, node_id, now)
            case ProducerIdAnswer(code, producer_id, epoch):
                transactions.on_init(code, producer_id, epoch, now)
            case AddPartitionsAnswer(codes):
                transactions.on_partitions_added(codes, now)
            case AddOffsetsAnswer(code):
                transactions.on_group_added(code, now)
            case TxnOffsetCommitAnswer(codes):
                transactions.on_offsets_committed(codes, now)
            case EndTxnAnswer(code, producer_id, epoch):
                transactions.on_ended(code, producer_id, epoch, now)
        self._follow_transactions()

    def on_unsupported(
        self, link_id: int, token: int, error: errors.KafkaError, now: float
    ) -> None:
        """The broker does not offer an API at all, in any version that we speak; nothing was
        written.
        """
        link = self.connections.links.get(link_id)
        request = None if link is None else link.withdraw(token)
        if link is None or request is None:
            return
        if request.kind is RequestKind.DESCRIBE_CONFIGS:
            link.discovery.unsupported()
        elif request.topic_limit is not None:
            request.topic_limit.tell(None)
        elif request.kind is RequestKind.DESCRIBE_PRODUCERS:
            link.knows_producers = False
            self._lose_request(request, written=False, now=now)
        elif request.kind is RequestKind.READ_BACK:
            link.may_read = False
            self._lose_request(request, written=False, now=now)
        elif request.kind is RequestKind.COORDINATION and self.transactions is not None:
            self.transactions.on_unsupported(error)
            self._follow_transactions()
        elif request.kind is not RequestKind.BROKER_CONFIG:
            self._lose_request(request, written=False, now=now)
            if request.kind is RequestKind.INIT_PRODUCER_ID:
                self.identity_error = error
                self._abandon(error)

    def _identity_failed(self, now: float) -> None:
        self.identity.refuse()
        self._identity_at = now + self._identity_backoff.next_delay()

    def merge_of(self, link_id: int, token: int, update: MetadataUpdate) -> MetadataMerge | None:
        """The merge of a long Metadata answer, to be done in pieces before `on_metadata` is called
        with it. None: `on_metadata` will not take it, or not as it is.
        """
        link = self.connections.links.get(link_id)
        view = self.cluster
        if link is None or token not in link.outstanding:
            return None
        if None not in (view.cluster_id, update.cluster_id) and (
            view.cluster_id != update.cluster_id
        ):
            return None
        return MetadataMerge(view, update, self.topics)

    def on_metadata(
        self,
        link_id: int,
        token: int,
        update: MetadataUpdate,
        now: float,
        merge: MetadataMerge | None = None,
    ) -> None:
        """A Metadata request was answered; `merge` is what `merge_of` gave for the answer."""
        link = self.connections.links.get(link_id)
        request = None if link is None else link.take(token, now)
        if link is None or request is None:
            return
        link.throttle(update.throttle_ms, now)
        if not self._identify(link, update.cluster_id):
            self.metadata.failed(now)
            return
        # What nobody asked about is not kept: a broker could name new topics with each answer.
        if merge is None or merge.view is not self.cluster:
            merge = MetadataMerge(self.cluster, update, self.topics)
        result = merge.finish()
        self.connections.learn(self.cluster.brokers.values())
        self._convict(request.sent_at, now)
        told = {topic.name for topic in merge.topics if not topic.error_code and topic.partitions}
        for name in result.recreated:
            self._recreate(name)
        for name, state in self.topics.items():
            state.error_code = result.failed.get(name, 0)
            state.refused = None
            if name in told:
                state.described_by = self.metadata.requests
            if state.error_code and state.error_code not in _RETRIABLE_TOPIC_ERRORS:
                self._fail_topic(state)
        for name, state in self.topics.items():
            if self.cluster.partitions(name) is not None:
                self._assigning.add(state)
        self._assign_due(now)
        missing = any(
            state.unassigned.waits or (state.waiting and self.cluster.partitions(name) is None)
            for name, state in self.topics.items()
        )
        self.metadata.answered(
            now, enough=bool(update.brokers) and not missing and not result.leaderless
        )

    def on_cluster(self, link_id: int, token: int, cluster_id: str | None, now: float) -> None:
        """A connection told which cluster it leads to."""
        link = self.connections.links.get(link_id)
        if link is not None and link.take(token, now) is not None:
            self._identify(link, cluster_id)

    # another cluster: see `cluster_change`

    def _identify(self, link: Link, cluster_id: str | None) -> bool:
        """Take in where a connection leads to; whether that is the known cluster."""
        view = self.cluster
        if view.cluster_id is None:
            view.cluster_id = cluster_id
        at_home = cluster_id is None or cluster_id == view.cluster_id
        self.connections.identified(link, cluster_id, at_home=at_home)
        return at_home

    def _leave_strangers(self, now: float) -> None:
        """Close connections that lead to another cluster, or move there with the bootstrap."""
        home = self.cluster.cluster_id
        for link in self.connections.strangers(home):
            if link.link_id not in self.connections.links:
                continue  # dropped with the one before it
            if home is None or link.cluster_id is None or self.fatal_error is not None:
                return
            node = self.connections.nodes[link.node_id]
            address = f"{node.host}:{node.port}"
            alone = not link.outstanding and not self.connections.at_home(home)
            if node.node_id < 0 and alone:
                self._move(link, home, link.cluster_id, address, now)
                return
            name = "a bootstrap server" if node.node_id < 0 else f"broker {node.node_id}"
            error = misrouted(name, address, home, link.cluster_id)
            if node.misrouted_to != link.cluster_id:
                node.misrouted_to = link.cluster_id
                self._events.append(str(error.args[0]))
            self._steps.append(steps.CloseLink(link.link_id, str(error.args[0])))
            self._drop(link, error, now)
            self.metadata.want()
            for older in self.connections.bootstrap_only():
                # It was opened before addresses moved, perhaps: where does its name lead now?
                reason = "the brokers it names are not where it says"
                self._steps.append(steps.CloseLink(older.link_id, reason))
                self._drop(older, None, now)

    def _move(self, link: Link, was: str, to: str, address: str, now: float) -> None:
        """The known cluster is gone, and the bootstrap leads to another one: forget the old one,
        and take what was never written along, if the user wants that.
        """
        for other in [each for each in self.connections.links.values() if each is not link]:
            self._steps.append(steps.CloseLink(other.link_id, "it leads to a cluster that is left"))
            self._drop(other, None, now)
        error = changed(was, to, address, now - self._home_heard_at)
        if self.config.on_cluster_change == "fail" or self.transactions is not None:
            self._events.append(f"{error.args[0]}: this producer ends")
            self.fatal(error)
            return
        self._events.append(
            f"{error.args[0]}: what is in doubt ends UNKNOWN, what was never written goes to the "
            "new cluster under a new producer id"
        )
        states = list(self.partitions.values())
        carried: dict[str, list[PendingRecord]] = {
            name: carried_records(s for s in states if s.topic == name) for name in self.topics
        }
        self._forget_cluster(to)
        for state in [*states, *self._retired]:
            state.abandon(error, self)
        self.partitions.clear()
        self._retired.clear()
        self._read_back_later.clear()
        for name, topic in self.topics.items():
            topic.forget_cluster()
            longest = now + self.config.max_block
            waiting = [each.record for each in topic.unassigned.take()]
            for record in [*carried[name], *waiting]:
                until = min(longest, record.deadline)
                topic.unassigned.wait(until, self.metadata.requests, record)
            topic.unassigned.put_in_order()

    def _forget_cluster(self, to: str) -> None:
        self.cluster = ClusterView()
        self.cluster.cluster_id = to
        self.connections.forget_cluster()
        self.identity.disown()
        self.identity_error = None
        self._identity_at = 0.0
        self.metadata.want()
        self._accused.clear()
        self._expirations.clear()
        self.expiration = self.config.producer_id_expiration or DEFAULT_EXPIRATION
        self._sequence_caps.clear()
        self._sequence_cap = DEFAULT_SEQUENCE_CAP if self.config.broker_dedup == "range" else None

    def _fail_topic(self, topic: TopicState) -> None:
        error = errors.broker_error(topic.error_code, f"topic {topic.name!r}")
        topic.refused = error
        records = [each.record for each in topic.unassigned.take()]
        self._refuse(topic.name, records, copy.copy(error))

    def _assign_due(self, now: float) -> None:
        """Give records that waited for metadata their partitions: as many as one poll may, the rest
        in the next ones.
        """
        missing: dict[tuple[str, int], list[PendingRecord]] = {}
        for topic, each in self._assigning.take(self.assigned_at_once):
            try:
                if self._assign(topic, each.record, now):
                    continue
            except errors.RecordError as error:
                self._refuse(topic.name, [each.record], error)
                continue
            partition = each.record.partition
            if partition is not None and topic.described_by > each.asked:
                missing.setdefault((topic.name, partition), []).append(each.record)
            else:
                topic.unassigned.wait(*each)
                self.metadata.want()
        for where, records in missing.items():
            self._refuse(where[0], records, self.missing_partition(*where))

    def missing_partition(self, topic: str, partition: int) -> errors.KafkaError:
        """A known topic does not have a partition."""
        count = len(self.cluster.partitions(topic) or ())
        has = "1 partition (0)" if count == 1 else f"{count} partitions (0 to {count - 1})"
        return errors.UnknownTopicOrPartitionError(
            f"topic {topic!r} has {has}; there is no partition {partition}"
        )

    def _recreate(self, name: str) -> None:
        """A topic was deleted and made anew: the old id's doubts are never asked about, the new id
        starts afresh.
        """
        view: TopicView = self.cluster.topics[name]
        before = self.identity.current
        self._events.append(f"{name}: the topic was recreated")
        states = [state for state in self.partitions.values() if state.topic == name]
        if any(state.partition not in view.leaders for state in states):
            self._assign_anew(self.topics[name], states)
        for old in states:
            del self.partitions[name, old.partition]
            # What was never appended is as good as never sent: it goes to the topic of that name.
            queued = carried_records([old])
            old.abandon(errors.UnknownTopicId("the topic was deleted and recreated"), self)
            if old.outstanding:
                self._retired.append(old)
            if old.partition not in view.leaders:
                continue
            fresh = self.partition(name, old.partition)
            fresh.topic_id = view.topic_id
            for record in queued:
                fresh.queue.append(record, record.deadline - self.config.delivery_timeout)
        if self.transactions is not None:
            self.transactions.on_topic_gone(name)
        elif self.idempotent and self.identity.current == before:
            self.identity.bump()  # unless what was given up has brought one already

    def _assign_anew(self, topic: TopicState, states: list[PartitionState]) -> None:
        """There are fewer partitions than before: what may go elsewhere does, the rest is refused
        with this Metadata answer.
        """
        # All of them, those of partitions that are still there too: what comes from elsewhere must
        # not end up behind later calls, whose deadlines are later.
        for record in carried_records(states):
            topic.unassigned.wait(record.deadline, 0, record)
        topic.unassigned.put_in_order()

    def link_of(self, state: PartitionState) -> Link | None:
        """The connection that a partition is written on, if it is open."""
        return None if state.route is None else self.connections.links.get(state.route.link_id)

    @property
    def current_identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use, for statistics."""
        return self.identity.current


def _broker_error(state: PartitionState, part: PartitionAnswer) -> errors.KafkaError:
    detail = part.error_message or ""
    if part.record_errors:
        named = ", ".join(f"record {i}: {text or 'refused'}" for i, text in part.record_errors[:10])
        detail = f"{detail} ({named})" if detail else named
    text = printable(detail)
    where = f"{state.topic}-{state.partition}"
    return errors.broker_error(part.error_code, f"{where}: {text}" if text else where)

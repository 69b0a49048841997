"""RecordAccumulator: where records wait from `send()` until they are drained into requests.

`append` queues a record on its partition, or with its topic while metadata does not know the
partition. `drain` takes the batches for the next Produce request of a connection: first batches to
be resent, then new ones, which are cut from the head of a partition's queue.

Invariants
- Every record appended is settled exactly once: ACKED, NOT_WRITTEN or UNKNOWN.
- Records of a partition stay in call order, and so do those that wait for a partition.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.assigning import SLICE, Assigning
from aioidem._engine.batch import Batch
from aioidem._engine.cluster import ClusterView
from aioidem._engine.cluster_change import carried_records
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.record import Outcome, PendingRecord
from aioidem._engine.record_block import BLOCK, RecordBlock
from aioidem._engine.requests import Entry
from aioidem._engine.sealing import Sealer
from aioidem._engine.settlement import Settlement
from aioidem._engine.spreading import spread
from aioidem._engine.sticky_target import StickyTarget
from aioidem._engine.topics import TopicState
from aioidem._engine.transactions import Transactions
from aioidem._hot import Appender
from aioidem._records import BATCH_OVERHEAD, BatchBody, Codec
from aioidem.structs import DeliveryStatus

__all__ = ["MOST_BATCHES", "RecordAccumulator"]

MOST_BATCHES = 1_000
"""The most batches in one Produce request. It bounds the work for one answer, which is done in one
piece.
"""

_ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)
"""Exceptions of the user's code that go on to the caller, because the program has to end."""


class RecordAccumulator:
    """The records of one producer that have no outcome yet.

    A batch is in doubt if an attempt to send it is over, and the broker may have appended it. A
    generation is the records that were queued between two flushes.

    Args:
        config: validated options.
        random: returns uniform numbers from [0, 1), for the choice of partitions.
        cluster: the view of the cluster, for the partitions of topics.
        metadata: requests metadata when a topic or a partition is not known.
        partitions: the states of all partitions.
        outcomes: receives the outcomes of records.
        effects: has the fatal error, once the producer has ended.
        transactions: decide whether records may be appended and sent.
    """

    def __init__(
        self,
        config: ProducerConfig,
        random: Callable[[], float],
        cluster: ClusterView,
        metadata: MetadataRefresher,
        partitions: Partitions,
        outcomes: Outcomes,
        effects: Effects,
        transactions: Transactions,
    ) -> None:
        self._config = config
        self._random = random
        self._cluster = cluster
        self._metadata = metadata
        self._partitions = partitions
        self._targets = partitions.targets
        self.appender = Appender(config.delivery_timeout, effects, self._targets, partitions.wake)
        self._outcomes = outcomes
        self._effects = effects
        self._transactions = transactions
        self._sealer = Sealer(config)
        self.drafts = self._sealer.drafts
        self._assigning = Assigning()
        self._closed = False
        # How many records that `appender` has numbered were not queued, because of an error.
        self._refused = 0
        self._has_targets = config.partitioner is None and config.transactional_id is None
        self.topics: dict[str, TopicState] = {}
        # The topics that have records without a partition. A topic may stay here for a while after
        # its last record got a partition.
        self.unplaced: dict[TopicState, None] = {}
        self.assigned_at_once = SLICE

    # -- appending ---------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState:
        """Return the state of a topic; for a new name, create it and request metadata."""
        state = self.topics.get(name)
        if state is None:
            state = self.topics[name] = TopicState(name, self._config.batch_size, self._random)
            self._metadata.want_unnamed()
        return state

    def append(
        self,
        topic_name: str,
        record: PendingRecord,
        now: float,
        block_until: float | None = None,
    ) -> None:
        """Queue a record whose bytes the caller has taken from the memory budget.

        If no exception is raised, the record will be settled once.

        Args:
            topic_name: the topic to write to.
            record: the record.
            now: seconds.
            block_until: until when the record may wait for metadata, in seconds; None: `max_block`
            from now. The caller gives an earlier time if it has waited for memory before.

        Raises:
            KafkaError: the error that ended the producer, a `RecordError` if the partitioner
            failed, or an error of `Transactions.need_open`. The record was not queued.
        """
        if self._closed or self._effects.fatal_error is not None:
            raise self._why_ended()
        if self.appender.append(topic_name, record, now):
            return
        self.appender.number(record, now)
        record.queued_at = 0.0
        try:
            self._append(topic_name, record, now, block_until)
        except BaseException as error:
            self._refused += 1
            _not_written(error)
            raise

    def append_block(
        self,
        topic_name: str,
        block: RecordBlock,
        now: float,
        block_until: float | None = None,
    ) -> None:
        """Queue the records of a block, whose bytes the caller has taken from the memory budget.

        If no exception is raised, each of them will be settled once. A producer with a partitioner
        of its own gets blocks only for a partition that the caller has chosen.

        Args:
            topic_name: the topic to write to.
            block: at least one record.
            now: seconds.
            block_until: as for `append`.

        Raises:
            KafkaError: as for `append`. None of the records was queued.
        """
        if self._closed or self._effects.fatal_error is not None:
            raise self._why_ended()
        self.appender.number(block, now)
        block.begin_at(block.ordinal)
        count = block.count
        self.appender.ordinal += count - 1
        block.queued_at = 0.0
        try:
            self._append(topic_name, block, now, block_until)
        except BaseException as error:
            self._refused += count
            _not_written(error)
            raise

    def _append(
        self, topic_name: str, record: PendingRecord, now: float, block_until: float | None
    ) -> None:
        """Queue a record on its partition, or among the topic's unassigned records.

        A record is unassigned until its partition is known.
        """
        self._transactions.need_open()
        topic = self.topic(topic_name)
        behind = topic.unassigned.due
        place = self._place if record.group is BLOCK else self._assign
        if not behind and place(topic, record, now):
            if self._has_targets and record.key is None and record.partition is None:
                self._aim(topic)
            return
        self.unplaced[topic] = None
        if block_until is None:
            block_until = now + self._config.max_block
        until = min(block_until, record.deadline)
        if behind:
            topic.unassigned.follow(until, self._metadata.requests, record)
        else:
            topic.unassigned.wait(until, self._metadata.requests, record)
            self._metadata.want()

    def _aim(self, topic: TopicState) -> None:
        """Direct the next records without a key to the partition that was chosen just now."""
        index = topic.sticky.current
        # The topic may have lost the partition: it was recreated, or the cluster is another one.
        if index is not None and index in self._cluster.topics[topic.name].leaders:
            state = self._partitions.state(topic.name, index)
            self._targets[topic.name] = StickyTarget(state, topic.sticky)

    def _why_ended(self) -> errors.KafkaError:
        if self._effects.fatal_error is None:
            status = DeliveryStatus.NOT_WRITTEN
            return errors.ProducerClosed("the producer is closed", status=status)
        error = copy.copy(self._effects.fatal_error)
        # The fatal error's own status may be the outcome of a commit; a record that is refused
        # here is never written.
        error.status = DeliveryStatus.NOT_WRITTEN
        return error

    def _place(self, topic: TopicState, item: PendingRecord, now: float) -> bool:
        """Queue a record or a block; return False if metadata lacks the topic or the partition."""
        if item.partition is not None or not isinstance(item, RecordBlock):
            return self._assign(topic, item, now)
        if self._cluster.partitions(topic.name) is None:
            return False
        for index, part in spread(item, topic.sticky, self._cluster.topics[topic.name]):
            part.partition = index
            self._assign(topic, part, now)
            # The caller chose no partition. If the producer moves to another cluster, the record's
            # partition is chosen again there.
            part.partition = None
        return True

    def _assign(self, topic: TopicState, record: PendingRecord, now: float) -> bool:
        """Put a record into its partition's queue; return False if metadata lacks the partition."""
        views = self._cluster.partitions(topic.name)
        if views is None:
            return False
        index = record.partition
        if index is None:
            index = self._choose_partition(topic, record)
        elif index not in views:
            return False
        state = self._partitions.state(topic.name, index)
        if not state.queue.records:
            self._partitions.wake(state)
        self._enqueue(state, record, now)
        return True

    def _enqueue(self, state: PartitionState, record: PendingRecord, queued_at: float) -> None:
        """Put a record into a queue, and end lingering there if a flush already waits for it."""
        state.queue.append(record, queued_at)
        if record.generation < self.appender.generation:
            state.queue.hurry()

    def _called_at(self, record: PendingRecord) -> float:
        """Return the time of the call, from which the linger time and the deadline count."""
        return record.deadline - self._config.delivery_timeout

    def _choose_partition(self, topic: TopicState, record: PendingRecord) -> int:
        if record.key is None and self._config.partitioner is None:
            return topic.sticky.choose(record.size, self._cluster.topics[topic.name])
        return self.ask_partitioner(topic.name, record.key)

    def ask_partitioner(self, name: str, key: bytes | None) -> int:
        """Return the partition that the partitioner, or aiokafka's rule, chooses for a key.

        Args:
            name: a topic that metadata has.
            key: the key, or None.

        Raises:
            RecordError: the partitioner raised an exception, or chose no partition of the topic.
            KeyboardInterrupt, SystemExit: the partitioner raised it, and the program has to end.
        """
        view = self._cluster.topics[name]
        everything = view.everything
        try:
            chosen = self._sealer.partitioner(key, everything, view.available or everything)
        except _ENDS_PROGRAM:
            raise
        except BaseException as error:
            # The partitioner is the user's code. It may run long after `send` has returned, and
            # then its exception would reach the engine's loop, where nothing catches it. A
            # `CancelledError` may come from `result()` of a cancelled future: it cancels no task.
            raise errors.RecordError(_raised(error, name)) from error
        if chosen.__class__ is int and chosen in view.leaders:
            return chosen
        index = _number(chosen)
        if index not in view.leaders:
            raise errors.RecordError(
                f"the partitioner chose {_chosen(chosen)}, which is none of the "
                f"{len(everything)} partitions of topic {name!r}"
            )
        return index

    @property
    def assigning(self) -> bool:
        """Whether records that waited for metadata are still to be assigned to partitions.

        While there are any, `assign_due` may still refuse some, because their topic lacks the
        partition that they name.
        """
        return bool(self._assigning)

    @property
    def first_queued_at(self) -> float:
        """When the oldest record without an outcome was queued, in seconds; infinity if none is."""
        timeout = self._config.delivery_timeout
        placed = (state.oldest for state in self._partitions.busy)
        unplaced = (topic.unassigned.first_queued_at(timeout) for topic in self.unplaced)
        return min(min(placed, default=math.inf), min(unplaced, default=math.inf))

    def assign_known(self, now: float) -> None:
        """Assign partitions to waiting records if their topic is in the latest metadata.

        This call assigns as many of these records as one `assign_due` does. Later calls of
        `assign_due` assign the rest.
        """
        self._targets.clear()
        for name, state in self.topics.items():
            if self._cluster.partitions(name) is not None:
                waited = state.unassigned.waited(now, self._config.delivery_timeout)
                if waited:
                    self._outcomes.meters.spend("metadata-wait", waited)
                self._assigning.add(state)
        self.assign_due()

    def assign_due(self) -> None:
        """Assign partitions to records that waited for metadata.

        One call assigns at most `assigned_at_once` records; later calls assign the rest.

        Raises:
            KeyboardInterrupt, SystemExit: the partitioner raised it. Its record is refused, and all
            that were taken before have been dealt with.
        """
        missing: dict[tuple[str, int], list[PendingRecord]] = {}
        try:
            for topic, each in self._assigning.take(self.assigned_at_once):
                if self._place_due(topic, each.record):
                    continue
                partition = each.record.partition
                if partition is not None and topic.described_by > each.asked:
                    missing.setdefault((topic.name, partition), []).append(each.record)
                else:
                    topic.unassigned.wait(*each)
                    self._metadata.want()
        finally:
            for where, records in missing.items():
                self._refuse(where[0], records, self.missing_partition(*where))

    def _place_due(self, topic: TopicState, record: PendingRecord) -> bool:
        """Queue or refuse a record or a block; return False if metadata lacks its partition."""
        try:
            return self._place(topic, record, self._called_at(record))
        except errors.RecordError as error:
            self._refuse(topic.name, [record], error)
        except _ENDS_PROGRAM as error:
            # The record was taken out already, so nobody else could give it an outcome.
            self._refuse(topic.name, [record], errors.RecordError(_raised(error, topic.name)))
            raise
        return True

    # -- draining ----------------------------------------------------------------------------------

    def drain(self, link: Link, states: Collection[PartitionState], now: float) -> list[Entry]:
        """Take the batches of the next Produce request on a connection.

        Args:
            link: the connection.
            states: the partitions that may use the connection, in the order of their turn.
            now: seconds.

        Returns:
            At most one batch of each partition, and as many as fit into a request; empty if no
            batch is due.
        """
        chosen: list[Entry] = []
        if not self._transactions.may_send:
            return chosen
        room = self._config.max_request_size
        for state in states:
            batch = self._next_batch(state, link, now, room, alone=not chosen)
            if batch is None:
                continue
            state.send(batch, now)
            chosen.append((state, batch))
            room -= len(batch.data)
            if room < self._config.batch_size or len(chosen) == MOST_BATCHES:
                break
        return chosen

    def _next_batch(
        self, state: PartitionState, link: Link, now: float, room: int, *, alone: bool
    ) -> Batch | None:
        """Return the batch of a partition to be sent now: one to be resent, or else a new one.

        None if there is neither, or if the batch does not fit into the request.

        Args:
            state: the partition.
            link: the connection to its leader.
            now: seconds.
            room: the bytes left in the request, into which the batch must fit.
            alone: whether the request is empty so far. If so, a resent batch may exceed `room`, and
            so may a new batch with a single record.
        """
        batch = state.next_resend(now)
        if batch is not None:
            batch = self._cut_down(state, batch, link, now)
            if not batch.data and not self._sealer.build(state, batch):
                return None
            return batch if alone or len(batch.data) <= room else None
        if not self._may_seal(state, now):
            return None
        if not alone and state.queue.first_size + BATCH_OVERHEAD > room:
            return None
        batch = self._sealer.seal(state, self.topics[state.topic], link, now, room, alone=alone)
        if batch is not None:
            state.enlist(batch)
        return batch

    def _may_seal(self, state: PartitionState, now: float) -> bool:
        """Return whether a new batch may be made of a partition's queued records now.

        Whether the connection admits another request is not checked.
        """
        config, queue = self._config, state.queue
        if config.enable_idempotence and state.ledger.identity is None:
            return False
        if not queue.records or now < state.setbacks.retry_at or not state.may_send_new():
            return False
        if not queue.ready(now, linger=config.linger, batch_size=config.batch_size):
            return False
        return self._transactions.admits(state.topic, state.partition)

    def prepare(self, link: Link, states: Collection[PartitionState], now: float) -> None:
        """Begin to compress new batches before the connection admits the next request.

        If batches were compressed only then, each request would carry just the one batch that is
        ready, and on a connection with a long round trip few batches would be in flight.

        Args:
            link: the connection.
            states: the partitions that may use the connection, in the order of their turn.
            now: seconds.
        """
        if not self.drafts.needed or not self._transactions.may_send:
            return
        for state in states:
            if self.drafts.full:
                return
            if state.queue.draft is None and self._may_seal(state, now):
                self._sealer.prepare(state, self.topics[state.topic], link, now)

    def _cut_down(self, state: PartitionState, batch: Batch, link: Link, now: float) -> Batch:
        """Return a batch to be resent; if it was refused for its size, split it first.

        The first part is returned then, and the parts take the batch's place in the partition.
        """
        if not batch.oversized:
            return batch
        topic = self.topics[state.topic]
        told = link.limits.of(state.topic).told
        limit = self._config.max_request_size if told is None else told
        most = topic.ceiling(limit, now, told)
        if len(batch.data) <= most:
            return batch
        parts = self._sealer.split(state, batch, most)
        state.batches.replace(batch, parts)
        self._outcomes.counters.batches_split += 1
        self._outcomes.meters.splits.record(1, now)
        return parts[0]

    def hold_back(self, states: Collection[PartitionState], now: float) -> None:
        """Mark partitions whose next batch is ready but could not be sent, so that it may grow."""
        config = self._config
        for state in states:
            queue = state.queue
            if not queue.records or queue.blocked or queue.draft is not None:
                continue
            if queue.ready(now, linger=config.linger, batch_size=config.batch_size):
                queue.hold_back()

    def on_compressed(self, token: int, result: BatchBody | errors.KafkaError) -> None:
        """Take the result of a `Compress` step.

        If it is an error, the records are settled as NOT_WRITTEN with that error. The result is
        ignored if the records have ended, or were given to another partition, since the step.
        """
        ended = self.drafts.end(token)
        if ended is None:
            return
        state, owner, draft = ended
        if isinstance(result, BatchBody):
            draft.body = result
            if not isinstance(owner, Batch):
                self._sealer.learn(state.topic, result)
        elif isinstance(owner, Batch):
            state.endings.drop(owner, result, self._effects)
        else:
            records = state.queue.cut_draft(draft)
            state.endings.settle_records(records, DeliveryStatus.NOT_WRITTEN, result, self._effects)

    def encode_by(
        self, encode: Callable[[Sequence[PendingRecord], Codec, int | None], BatchBody]
    ) -> None:
        """Encode records by another function than `build_body`, whose arguments it gets."""
        self._sealer.encode = encode

    def without(self, batch: Batch, culprits: Collection[int]) -> Batch | None:
        """Rebuild a batch without the records at the indexes `culprits`; None if none is left."""
        return self._sealer.without(batch, culprits)

    # -- what has no outcome yet -------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """The number of records that have no outcome yet."""
        return self.appender.ordinal - self._refused - self._outcomes.settled

    def unsettled_by_topic(self) -> dict[str, int]:
        """Return the number of records without an outcome, by topic.

        A finaliser may call this while other code changes the queues, so copies are iterated over.
        """
        counts = {
            name: len(topic.unassigned)
            for name, topic in list(self.topics.items())
            if topic.unassigned
        }
        for state in self._partitions:
            left = state.queue.count + sum(len(b.records) for b in list(state.batches.unresolved))
            if left:
                counts[state.topic] = counts.get(state.topic, 0) + left
        return counts

    def begin_flush(self) -> int:
        """End lingering for queued records, and close the present generation.

        Returns:
            The closed generation: a flush waits for its records and those of earlier generations.
        """
        self._partitions.flush()
        closed = self.appender.generation
        self._outcomes.close_generation(closed, self.unsettled)
        self.appender.generation = closed + 1
        return closed

    # -- a topic is recreated, or the cluster changes ----------------------------------------------

    def numbered(self, name: str, identity: ProducerIdentity | None) -> bool:
        """Return whether batches of a topic have had sequence numbers under an identity."""
        ledgers = [state.ledger for state in self._partitions.of(name)]
        return any(ledger.identity == identity and ledger.next for ledger in ledgers)

    def recreate(self, name: str) -> None:
        """Replace the partition states of a topic that was deleted and recreated.

        Batches that may have been appended under the old topic id end UNKNOWN. Records that were
        never appended go to the new topic of the same name.
        """
        view = self._cluster.topics[name]
        states = self._partitions.of(name)
        if any(state.partition not in view.leaders for state in states):
            # The new topic has fewer partitions, so some records need another partition. A queue
            # must be in the order of calls, because it expires from its head. So all records are
            # assigned again in that order, even those whose partition still exists. Records for
            # which the caller chose a missing partition are refused then.
            topic = self.topics[name]
            unassigned = topic.unassigned
            self.unplaced[topic] = None
            for record in carried_records(states):
                unassigned.wait(record.deadline, 0, record)
            unassigned.put_in_order()
        for old in states:
            queued = carried_records([old])
            self._partitions.retire(
                old, errors.UnknownTopicId(f"{old.where}: the topic was deleted and recreated")
            )
            if old.partition in view.leaders:
                fresh = self._partitions.succeed(old)
                for record in queued:
                    self._enqueue(fresh, record, self._called_at(record))

    def take_unwritten(self) -> dict[str, list[PendingRecord]]:
        """Take back all records that were never appended, by topic: the cluster has changed."""
        return {name: carried_records(self._partitions.of(name)) for name in self.topics}

    def carry(self, unwritten: dict[str, list[PendingRecord]], now: float) -> None:
        """Let all records that were never appended wait for the metadata of another cluster.

        Each record waits until its deadline, and for `max_block` at most if it had no partition.

        Args:
            unwritten: the result of `take_unwritten`.
            now: seconds.
        """
        longest = now + self._config.max_block
        for name, topic in self.topics.items():
            topic.forget_cluster()
            self.unplaced[topic] = None
            waiting = topic.unassigned.take()
            for record in unwritten[name]:
                topic.unassigned.wait(record.deadline, self._metadata.requests, record)
            for until, _, record in waiting:
                # Those that wait for their deadline had a partition, in an earlier cluster.
                ends = until if until >= record.deadline else min(longest, record.deadline)
                topic.unassigned.wait(ends, self._metadata.requests, record)
            topic.unassigned.put_in_order()

    # -- records that end without a partition ------------------------------------------------------

    def close(self) -> None:
        """Accept no more records."""
        self._closed = True
        self._targets.clear()

    def abandon(self, error: errors.KafkaError) -> None:
        """Settle all records of the producer now with the given error."""
        self._partitions.abandon(error)
        self._refuse_unassigned(error)

    def abort(self, error: errors.KafkaError, doubt: DeliveryStatus | None) -> None:
        """Settle queued records and batches not in flight: the transaction is or will be aborted.

        Args:
            error: the error that the records get.
            doubt: the outcome of batches in doubt; None leaves them unsettled until the end of the
            transaction decides their outcome.
        """
        self._partitions.abort(error, doubt)
        self._refuse_unassigned(error)

    def _refuse_unassigned(self, error: errors.KafkaError) -> None:
        for topic in self.unplaced:
            records = [each.record for each in topic.unassigned.take()]
            self._refuse(topic.name, records, copy.copy(error))
        self.unplaced.clear()

    def _refuse(self, topic: str, records: list[PendingRecord], error: errors.KafkaError) -> None:
        """Settle records that have no partition as NOT_WRITTEN."""
        if records:
            error.status = DeliveryStatus.NOT_WRITTEN
            outcome = Outcome(topic, -1, DeliveryStatus.NOT_WRITTEN, error=error)
            self._outcomes.settle(Settlement.of_items(outcome, records))

    def expire(self, now: float) -> None:
        """Settle records and batches that are past their deadline."""
        self._partitions.expire(now)
        for topic in list(self.unplaced) if self.unplaced else ():
            expired = topic.unassigned.expire(now)
            if expired:
                error = self.unassigned_error(topic, now, queued=True)
                self._refuse(topic.name, expired, error)
            if not topic.unassigned:
                del self.unplaced[topic]

    def refuse_topic(self, topic: TopicState) -> None:
        """Settle the records that wait for a topic that the cluster permanently refuses."""
        error = topic.refuse()
        records = [each.record for each in topic.unassigned.take()]
        self._refuse(topic.name, records, copy.copy(error))

    def awaits(self, now: float) -> float | None:
        """Return when a record without a partition is tried again or expires, in seconds.

        None if every record has a partition.
        """
        if self._assigning:
            return now
        first: float | None = None
        for topic in self.unplaced:
            end = topic.unassigned.next_end()
            if end is not None and (first is None or end < first):
                first = end
        return first

    def unassigned_error(
        self, topic: TopicState, now: float, *, queued: bool = False
    ) -> errors.KafkaError:
        """Return the error of a record that got no partition in time.

        Args:
            topic: the record's topic.
            now: seconds.
            queued: whether the record was queued, so that its delivery timeout counts as well.
        """
        limit, seconds = "max_block", self._config.max_block
        if queued and self._config.delivery_timeout < seconds:
            limit, seconds = "delivery_timeout", self._config.delivery_timeout
        within = f"{limit} ({seconds:g} s)"
        if self._cluster.partitions(topic.name) is not None:
            return errors.UnknownTopicOrPartitionError(
                f"topic {topic.name!r}: the last metadata does not have the record's partition, "
                f"and no newer metadata came within {within}. Check the "
                "partition's number, and whether the brokers are reachable"
            )
        if topic.error_code:
            return errors.broker_error(
                topic.error_code,
                f"topic {topic.name!r}: metadata still had this error after {within}. Check the "
                "topic's name, and whether it has been created",
            )
        unreachable = self._partitions.unreachable(now)
        because = "" if unreachable is None else f": {unreachable.args[0]}"
        error = errors.KafkaTimeoutError(
            f"topic {topic.name!r}: no metadata came within {within}{because}. "
            "Check whether the brokers are reachable"
        )
        error.__cause__ = unreachable
        return error

    def missing_partition(self, topic: str, partition: int) -> errors.KafkaError:
        """Return the error for a record sent to a partition that its topic does not have."""
        count = len(self._cluster.partitions(topic) or ())
        has = "1 partition (0)" if count == 1 else f"{count} partitions (0 to {count - 1})"
        return errors.UnknownTopicOrPartitionError(
            f"topic {topic!r} has {has}; there is no partition {partition}"
        )


def _number(chosen: Any) -> int:
    """Return an integer of any type, such as numpy's, as an int; -1 for anything else."""
    try:
        return operator.index(chosen)
    except _ENDS_PROGRAM:
        raise
    except BaseException:  # noqa: BLE001 - the object is the user's
        return -1


def _raised(error: BaseException, topic: str) -> str:
    """Say that the partitioner raised an error, without its text: that may have the record's key.

    The error of a delivery that nobody looks at is logged, and no line of the log has a key.
    """
    return f"the partitioner raised {type(error).__name__} for topic {topic!r}"


def _chosen(chosen: object) -> str:
    """Name what the partitioner returned: a number of 32 bits itself, of anything else the type."""
    number = _number(chosen)
    if (isinstance(chosen, int) or number >= 0) and abs(number) < 1 << 31:
        return str(number)
    return f"a value of type {type(chosen).__name__}"


def _not_written(error: BaseException) -> None:
    """Note in an error that was made just now that the record was not queued because of it."""
    if isinstance(error, errors.KafkaError):
        error.status = DeliveryStatus.NOT_WRITTEN

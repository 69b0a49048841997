"""Partitions: the state of every partition of a producer, and the actions on all of them.

Of thousands of partitions that a producer has written to, a few may have something to do (`busy`).
`ProducerCore.poll` looks only at those. A partition becomes busy when a record is queued on it
(`wake`), and ceases to be busy in the first `poll` that finds nothing to do for it.

When a topic was deleted and recreated, the states of its old partitions are retired: new states
begin for the new topic id, and each old one stays until its last outstanding request has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._engine.cluster_change import id_is_shared
from aioidem._engine.connections import Connections
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.links import Link
from aioidem._engine.overdue import LeaderStatus
from aioidem._engine.partition import PartitionState
from aioidem._engine.sticky_target import StickyTarget
from aioidem.structs import DeliveryStatus

__all__ = ["Partitions"]

_SEQUENCE_RANGE = 10_000_000
"""The range of sequences that a KIP-758 broker deduplicates by default, in records."""


class Partitions:
    """The states of all partitions of one producer.

    A batch is in doubt if an attempt to send it is over, and the broker may have appended it.

    Args:
        config: validated options.
        random: returns uniform numbers from [0, 1), for back-offs.
        cluster: the view of the cluster, for topic ids.
        connections: the connections to leaders; a partition's route names one of them.
        effects: the object to which all partitions report, for example outcomes of records.
    """

    def __init__(
        self,
        config: ProducerConfig,
        random: Callable[[], float],
        cluster: ClusterView,
        connections: Connections,
        effects: Effects,
    ) -> None:
        self._config = config
        self._random = random
        self._cluster = cluster
        self._connections = connections
        self._links = connections.links
        self._effects = effects
        self._sequence_cap: int | None = None
        self.assume_sequence_range()
        self._gated = True
        # The number of transactions begun so far. A partition without records is told the number
        # when its next record is queued.
        self._transaction = 0
        self.live: dict[tuple[str, int], PartitionState] = {}
        # Every live state that has something to do, and perhaps some that have just finished.
        self.busy: dict[PartitionState, None] = {}
        # By topic: the partition that its next records without a key go to.
        self.targets: dict[str, StickyTarget] = {}
        # States of topics that were deleted, while their requests are outstanding.
        self.retired: list[PartitionState] = []

    def state(self, topic: str, index: int) -> PartitionState:
        """Return the state of a partition; it is created on first use."""
        state = self.live.get((topic, index))
        return self._make(topic, index) if state is None else state

    def _make(self, topic: str, index: int) -> PartitionState:
        config = self._config
        view = self._cluster.topics.get(topic)
        state = self.live[topic, index] = PartitionState(
            topic,
            index,
            None if view is None else view.topic_id,
            idempotent=config.enable_idempotence,
            retry=Backoff(config.retry_backoff, config.retry_backoff_max, self._random),
            pause=config.request_timeout,
            resend=config.in_doubt == "resend",
            sequence_cap=self._sequence_cap,
            transactional=config.transactional_id is not None,
        )
        return state

    def __iter__(self) -> Iterator[PartitionState]:
        """Iterate over the states of all partitions; retired ones come last."""
        return iter([*self.live.values(), *self.retired])

    def wake(self, state: PartitionState) -> None:
        """Make a partition busy, because a record is about to be queued on it."""
        if state in self.busy:
            return
        self.busy[state] = None
        state.setbacks.forget()  # what failed before is not what this record waits for
        state.begin_transaction(self._transaction, gated=self._gated)

    def served(self, state: PartitionState) -> None:
        """Put a partition behind the other busy ones: a batch of it is being sent.

        If a connection admits only some batches at a time, the partition that has waited longest is
        next, as in Java's producer.
        """
        del self.busy[state]
        self.busy[state] = None

    def active(self) -> list[PartitionState]:
        """Return the states that have something to do, except those of deleted topics.

        They come in the order of their turn (`served`). States that have nothing to do are removed
        from `busy`.
        """
        # This is `PartitionState.active`, which takes longer for each state than all of the rest.
        active = [
            state
            for state in self.busy
            if state.queue.records or state.batches.unresolved or state.batches.outstanding
        ]
        if len(active) < len(self.busy):
            self.busy = dict.fromkeys(active)
        return active

    @property
    def quiet(self) -> bool:
        """Whether no batch of any partition is outstanding."""
        return not any(state.batches.outstanding for state in self._unfinished())

    def _unfinished(self) -> list[PartitionState]:
        """Return the state of each partition that may have unsettled records, retired ones last.

        A retired state is that of a partition of a deleted topic.
        """
        return [*self.busy, *self.retired]

    def link_of(self, state: PartitionState) -> Link | None:
        """Return the connection of a partition's route; None without a route or if it is closed."""
        route = state.leadership.route
        return None if route is None else self._links.get(route.link_id)

    # -- actions on all partitions

    def flush(self) -> None:
        """Make the records that are queued now ready to be sent: a flush ends their linger time."""
        for state in self.busy:
            state.queue.flush()

    def begin_transaction(self, *, gated: bool) -> None:
        """Close the first-ack gates, so that each leader must show its producer state again.

        A closed gate permits one batch in flight per partition until error NONE comes.

        Args:
            gated: whether first-ack gates apply in this transaction.
        """
        self._gated = gated
        self._transaction += 1
        for state in self.busy:
            state.begin_transaction(self._transaction, gated=gated)

    def expire(self, now: float) -> None:
        """Settle records and batches past their deadline; drop retired states that are finished."""
        for state in [*self.busy, *self.retired]:
            if state.deadlines.past(now):
                link = self.link_of(state)
                answered = None if link is None else link.answered_at
                state.deadlines.expire(
                    now,
                    self._config.request_timeout,
                    self._config.delivery_timeout,
                    answered,
                    self.leader_status(state, now),
                    self._effects,
                )
        if self.retired:
            self.retired = [state for state in self.retired if state.active]

    def leader_status(self, state: PartitionState, now: float) -> LeaderStatus:
        """Return which broker leads a partition, and whether it can be reached.

        Args:
            state: the partition.
            now: seconds.
        """
        view = self._cluster.leader_of(state.topic, state.partition)
        leads = view is not None and view.leader_id != NO_LEADER
        node_id = view.leader_id if view is not None and leads else None
        route = state.leadership.route
        if node_id is None and route is not None:
            node_id = route.leader_id
        node = None if node_id is None else self._connections.nodes.get(node_id)
        if node is None:
            return LeaderStatus(
                None if node_id is None else f"broker {node_id}", leads, None, 0, None
            )
        not_added = self._effects.not_added(state.topic, state.partition)
        return LeaderStatus(
            f"broker {node_id} ({node.address})",
            leads,
            node.down_since,
            node.backoff.failures,
            node.last_error,
            0.0 if node.link is None else node.link.throttle_at(now),
            not_added,
            None if not_added is None else self._effects.refusal,
        )

    def unreachable(self, now: float) -> errors.KafkaConnectionError | None:
        """Return why no broker can be reached, and since when; None if one can be."""
        return self._connections.unreachable(now)

    def obstacle(self, now: float) -> errors.KafkaError | None:
        """Return what the unsettled records wait for, as the cause of a call's timeout.

        It names the partition whose records have waited longest. None if no record waits.
        """
        unreachable = self.unreachable(now)
        if unreachable is not None:
            return unreachable
        waiting = [(state.oldest, state) for state in self.busy if state.unsettled]
        if not waiting:
            return None
        oldest, state = min(waiting, key=lambda each: each[0])
        leader = self.leader_status(state, now)
        more = len(waiting) - 1
        others = "1 more partition waits" if more == 1 else f"{more} more partitions wait"
        records = "1 record" if state.unsettled == 1 else f"{state.unsettled} records"
        error = errors.KafkaError(
            f"{state.where}: {records} without an outcome, the oldest queued "
            f"{now - oldest:.1f} s ago: {state.deadlines.obstacle(leader, now)}"
            + (f"; {others}" if more else "")
        )
        trouble = state.setbacks.trouble
        failure = None if trouble is None else trouble.last
        error.__cause__ = failure if isinstance(failure, Exception) else leader.error
        return error

    def abandon(self, error: errors.KafkaError) -> None:
        """Settle all records and batches of all partitions with the given error."""
        for state in self._unfinished():
            state.endings.abandon(error, self._effects)

    def abort(self, error: errors.KafkaError, doubt: DeliveryStatus | None) -> None:
        """Settle queued records and batches not in flight: the transaction is or will be aborted.

        Args:
            error: the error that the records get.
            doubt: the outcome of batches in doubt; None leaves them unsettled until the end of the
            transaction decides their outcome.
        """
        for state in self._unfinished():
            if state.active:
                state.endings.abort(error, doubt, self._effects)

    def assume_sequence_range(self) -> None:
        """Limit how many sequences unresolved batches may span, if `broker_dedup` is "range".

        The limit is the range of sequences that brokers deduplicate by default (KIP-758). It
        applies to partitions that are used for the first time after this call. With any other value
        of the option there is no limit.
        """
        self._sequence_cap = _SEQUENCE_RANGE if self._config.broker_dedup == "range" else None

    def limit_span(self, sequence_cap: int) -> None:
        """Limit how many sequences (records) a partition's unresolved batches may have (KIP-758).

        Args:
            sequence_cap: the limit, for each present and future partition.
        """
        self._sequence_cap = sequence_cap
        for state in self.live.values():
            state.window.limit_records(sequence_cap)

    def disown(
        self, partition: PartitionState, error: errors.KafkaError, identity: IdentityLedger
    ) -> str | None:
        """Give up a producer id because another client writes under it.

        Args:
            partition: the partition whose answer showed the other client.
            error: the error of that answer.
            identity: the producer's identity, given up if it still has the shared producer id.

        Returns:
            A message for the operator if this producer must request a new id; None otherwise.
        """
        shared = partition.ledger.identity
        if shared is None:
            return None
        told = id_is_shared(error, partition, shared.producer_id)
        for state in self:
            held = state.ledger.identity
            if held is not None and held.producer_id == shared.producer_id:
                state.endings.disown(told, self._effects)
        current = identity.current
        if current is None or current.producer_id != shared.producer_id:
            return None
        identity.disown(shared=True)
        return f"{told.args[0]}. This producer requests a new id; batches in doubt end UNKNOWN"

    # -- when a topic is deleted or the cluster changes

    def of(self, topic: str) -> list[PartitionState]:
        """Return the states of a topic's partitions."""
        return [state for state in self.live.values() if state.topic == topic]

    def holds(self, state: PartitionState) -> bool:
        """Return whether a partition's state was not retired, so that its topic still exists.

        What an answer says about a deleted topic, such as who leads it, is not true of the topic
        that has its name now.
        """
        return self.live.get((state.topic, state.partition)) is state

    def retire(self, old: PartitionState, error: errors.KafkaError) -> None:
        """Settle all records of a deleted topic's partition, and retire the partition's state.

        A retired state is kept until its last outstanding batch is answered or lost.
        """
        self.targets.clear()
        del self.live[old.topic, old.partition]
        self.busy.pop(old, None)
        old.endings.abandon(error, self._effects)
        if old.batches.outstanding:
            self.retired.append(old)

    def succeed(self, old: PartitionState) -> PartitionState:
        """Create a partition's state under its topic's new id, and return it.

        Args:
            old: the partition's state under the old topic id.
        """
        fresh = self._make(old.topic, old.partition)
        self.wake(fresh)
        return fresh

    def forget_cluster(self, error: errors.KafkaError) -> None:
        """Fail all records with `error` and forget all partitions, on a move to another cluster."""
        self.abandon(error)
        self.targets.clear()
        self.live.clear()
        self.busy.clear()
        self.retired.clear()

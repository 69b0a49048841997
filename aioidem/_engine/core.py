"""ProducerCore: the engine, which takes every decision of the producer and does no I/O.

Its driver is the Sender, or in tests a simulation. `poll(now)` returns what the driver should do
now as a list of `Step`s (requests, connections to open and so on), and sets `wake_at`, the time by
which it must be called again. `on_answer` receives a broker's answer to a step. The other `on_*`
methods receive what happened to connections. The driver takes the outcomes (`take_settled`) and the
messages for the operator (`take_events`) outside of the engine, so that a user's callback never
runs in the middle of a decision.

What happens to a record: `RecordAccumulator.append` queues it; `RecordAccumulator.drain` puts it
into a batch, which `ProduceRequests.send` puts into a request; `ProduceRequests.on_answer` gives
the partition's answer to its `PartitionState`, which reports the outcome to `Outcomes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.accusations import Accusations
from aioidem._engine.backoff import Backoff
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.cluster import ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.coordination import Coordination
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.links import Leaving
from aioidem._engine.lost_links import LostLinks
from aioidem._engine.memory import COPIES_SHARE, ByteBudget
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.metadata_requests import MetadataRequests
from aioidem._engine.no_transactions import NoCoordination, transactions_of
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.produce import ProduceRequests
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import RequestKind
from aioidem._engine.watch import OperatorWatch
from aioidem._records import BatchBody

__all__ = ["ProducerCore"]


class ProducerCore:
    """One producer's engine: it takes every decision of the producer, and does no I/O.

    Args:
        config: validated options.
        random: returns uniform numbers from [0, 1); the engine's only random source.
        choice: returns such numbers for the choice of partitions of records without a key; None
        takes `random`. A flight recorder keeps the numbers of `random` only, because it knows which
        partition each record went to.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        random: Callable[[], float],
        choice: Callable[[], float] | None = None,
    ) -> None:
        def backoff() -> Backoff:
            return Backoff(config.retry_backoff, config.retry_backoff_max, random)

        self.config = config
        self.wake_at: float | None = None
        # Whether nothing has happened since the last poll but that records were queued and Produce
        # requests were answered (`_is_calm`).
        self._calm = False
        # Whether all that a queued record or its batch waits for takes a request timeout or longer.
        self._only_timeouts = (
            config.linger <= 0
            and config.delivery_timeout > config.request_timeout
            and config.transactional_id is None
        )
        # Parts that hold state; they never call the parts that are created below.
        self.budget = ByteBudget(config.buffer_memory, config.buffer_memory // COPIES_SHARE)
        self.cluster = ClusterView()
        self.connections = Connections(config, random)
        self.identity = IdentityLedger()
        self.metadata = MetadataRefresher(config.metadata_max_age, backoff())
        self.transactions = transactions_of(config, self.identity, backoff())
        self.outcomes = Outcomes(self.budget, self.transactions)
        self.counters = self.outcomes.counters
        self.meters = self.outcomes.meters
        self.meters.delivery_timeout = config.delivery_timeout
        self._requests = RequestLedger(self.connections, self.budget)
        accusations = Accusations()
        self._effects = Effects(
            self.outcomes, self.metadata, self.identity, self.transactions, accusations
        )
        # Parts that act; each is created after the parts that it uses.
        self._partitions = Partitions(config, random, self.cluster, self.connections, self._effects)
        # For observers only: the state of each partition, and the connection that it uses.
        self.partitions, self.link_of = self._partitions.live, self._partitions.link_of
        self.accumulator = RecordAccumulator(
            config,
            choice or random,
            self.cluster,
            self.metadata,
            self._partitions,
            self.outcomes,
            self._effects,
            self.transactions,
        )
        self._drafts = self.accumulator.drafts
        self._inquiries = BrokerInquiries(config, self._partitions, self._requests, self.outcomes)
        self._identity_request = IdentityRequest(
            config, self.identity, self.metadata, self._requests, backoff()
        )
        transactional = config.transactional_id is not None
        self.coordination = (Coordination if transactional else NoCoordination)(
            config,
            self.transactions,
            self.identity,
            self._identity_request,
            self.cluster,
            self.connections,
            self.metadata,
            self._partitions,
            self.accumulator,
            self._requests,
            self._effects,
        )
        self._metadata_requests = MetadataRequests(
            config,
            self.cluster,
            self.connections,
            self.metadata,
            accusations,
            self.accumulator,
            self._requests,
            self.identity,
            self.outcomes,
            self.transactions,
        )
        self._doubt = DoubtResolution(
            config,
            self.cluster,
            self.connections,
            self._inquiries,
            self._requests,
            self.outcomes,
            self._effects,
        )
        self.produce = ProduceRequests(
            config,
            self.cluster,
            self.connections,
            self.accumulator,
            self._partitions,
            self._inquiries,
            self._requests,
            self.identity,
            self.outcomes,
            self._effects,
            self.transactions,
        )
        self._home = HomeCluster(
            config,
            self.cluster,
            self.connections,
            self._partitions,
            self.accumulator,
            self.identity,
            self._identity_request,
            self._inquiries,
            self._doubt,
            accusations,
            self.outcomes,
            self._effects,
        )
        self._lost = LostLinks(
            self.connections,
            self._requests,
            self._home,
            self.transactions,
            self.produce,
            self.metadata,
            self._identity_request,
        )

        self.watch = OperatorWatch(
            self.cluster,
            self.connections,
            self._partitions,
            self.budget,
            self.outcomes,
            self.accumulator,
        )

    # -- the order of a poll -----------------------------------------------------------------------

    def poll(self, now: float, wall_ms: float | None = None) -> list[steps.Step]:
        """Decide what to do now, and set `wake_at`.

        Args:
            now: seconds on a monotonic clock.
            wall_ms: milliseconds since the Unix epoch, by the clock that stamps records. Without it
            the engine assumes that no broker has forgotten the producer (KIP-854).

        Returns:
            The steps to perform, in this order.
        """
        todo = self._requests.begin_poll()  # the parts called below add their steps to this list
        if now >= self.meters.due_at:
            self.meters.fold(now)
        calm = self._is_calm(now)
        self._doubt.see_clock(wall_ms, now)
        if not calm:
            self._end_overdue(now)
        active = self._partitions.active()
        if not calm:
            for leaving in self._doubt.silent_leaders(active, now):
                self._lost.leave(leaving, now)
            self._doubt.read_on(now)
        for state in active:
            self._doubt.prepare(state, now)
            identity = self.identity.current
            if identity is not None and state.ledger.identity is not identity:
                state.adopt(identity)
        if not calm:
            self._metadata_requests.ask(now)
            self._metadata_requests.ask_clusters(now)
            self._identity_request.ask(now)
            self.coordination.call(now)
        unmet = calm or self.metadata.wanted
        self.produce.send(active, now)
        spare: Sequence[Leaving] = ()
        if not calm:
            # This adds partitions that `send` found outside the transaction.
            self.coordination.call(now)
            spare = self.connections.spare(now)
            for leaving in spare:
                self._lost.leave(leaving, now)
        if not calm or not self._may_sleep_on(todo, active, now):
            self.wake_at = self._next_wake(active, now)
        self._calm, self.produce.refused = calm or not self._has_unasked(now), False
        if calm:
            found = self.metadata.wanted or self.identity.current is None
        else:
            found = not unmet and self.metadata.wanted and self.metadata.due(now)
        if found or spare or self.produce.take_rerouted():
            # This calm poll has decided something that only a full one can act on. Or `send` has
            # found that a leader is not known, after metadata could be requested. Or what is in
            # doubt was looked at before its partition had a connection to ask on. Or an idle
            # connection was closed whose broker leads a partition with records to send later.
            self.wake_at = now
        if self._drafts.steps:
            todo += self._drafts.take_steps()
        return todo

    def _end_overdue(self, now: float) -> None:
        """Leave connections that are not to be used any more, and settle records that are over."""
        self.meters.now = now
        self.coordination.follow()
        if self.connections.astray:
            for leaving in self._home.leave_strangers(now):
                self._lost.leave(leaving, now)
        if self._effects.fatal_error is not None:
            self.accumulator.abandon(self._effects.fatal_error)
        if self.accumulator.unplaced and self.accumulator.assigning:
            self.accumulator.assign_due()
        if self.wake_at is not None and now >= self.wake_at:
            # Before `wake_at` no request times out: requests are only added in polls, and what
            # happens between two polls only puts their timeouts off.
            for leaving in self.connections.overdue(now):
                self._lost.leave(leaving, now)
        self.accumulator.expire(now)

    def close(self, now: float) -> list[steps.Step]:
        """Settle every record now, and return the steps that close every connection.

        Records without an outcome become NOT_WRITTEN or UNKNOWN.
        """
        todo = self._requests.begin_poll()
        self.accumulator.close()
        self.accumulator.abandon(
            self._effects.fatal_error
            or errors.ProducerClosed("the producer was closed before the record was acknowledged")
        )
        for link in list(self.connections.links.values()):
            self._lost.leave(Leaving(link, "the producer is closing", None), now)
        for _ in self.budget.wake_all():
            pass
        return todo

    def _is_calm(self, now: float) -> bool:
        """Return whether this poll has nothing to do but to send batches of queued records.

        That is so while acknowledged batches are followed by new ones, nothing else happens, and
        `wake_at` has not come, the first time at which something is due by itself.
        """
        return (
            self._calm
            and self._only_timeouts
            and self.wake_at is not None
            and now < self.wake_at
            and not self.produce.refused
            and not self.metadata.wanted
            and not self.accumulator.unplaced
            and self.identity.current is not None
            and not self._partitions.retired
            and not self._doubt.old_leaders_owe
            and self._effects.fatal_error is None
        )

    def _has_unasked(self, now: float) -> bool:
        """Return whether a question is due that no connection had room for.

        It is asked as soon as a request is answered, so the next poll may not leave it out.
        """
        if self.metadata.due(now) or self._doubt.reads_on():
            return True
        return any(not link.asked_cluster for link in self.connections.links.values())

    def _may_sleep_on(
        self, todo: list[steps.Step], active: list[PartitionState], now: float
    ) -> bool:
        """Return whether the last `wake_at` is early enough after a calm poll.

        It is if nothing that was added since is due before. To poll too early does no harm, so
        `wake_at` need not be the exact time.
        """
        wake_at, config = self.wake_at, self.config
        if wake_at is None or now + config.request_timeout < wake_at or self.metadata.wanted:
            return False
        grace, linger = config.request_timeout, config.linger
        for state in active:
            if state.deadlines.next_wake(now, grace, linger) < wake_at or not state.untroubled():
                return False
            if not state.batches.outstanding and state.batches.unresolved:
                return False  # what is in doubt may have a turn of its own (`turns_at`)
        idle_after = config.connections_max_idle or math.inf
        for link in self.connections.links.values():
            if now < link.throttled_until:
                return False
            if not link.outstanding and link.last_progress + idle_after < wake_at:
                return False
        for step in todo:  # noqa: SIM110 - as in `Deadlines.past`
            if type(step) is not steps.SendProduce:
                return False
        return True

    def _next_wake(self, active: list[PartitionState], now: float) -> float | None:
        """Return the first time at which a poll can do something that it cannot do now, or None."""
        first = self.connections.next_wake(now)
        retries = (self.metadata.due_at(), self.transactions.awaits, self._identity_request.awaits)
        for at in retries:
            if at is not None and now < at < first:
                first = at
        at = self.accumulator.awaits(now)
        if at is not None and at < first:
            first = at
        grace, linger = self.config.request_timeout, self.config.linger
        for state in self._partitions.retired:
            # Nothing waits for what the leader of a deleted topic owes.
            at = state.deadlines.next_wake(now, grace, linger)
            if at < first:
                first = at
        for state in active:
            at = state.deadlines.next_wake(now, grace, linger)
            if at < first:
                first = at
            if state.batches.outstanding:
                at_doubt = self._doubt.awaits(state)
            elif state.batches.unresolved:
                at_doubt = self._doubt.turns_at(state, now)
            else:
                continue
            if at_doubt is not None and at_doubt < first:
                first = at_doubt
        return None if first == math.inf else first

    # -- what happened -----------------------------------------------------------------------------

    def on_answer(
        self, step: steps.Request, answer: Any, now: float, merge: MetadataMerge | None = None
    ) -> errors.ProtocolError | None:
        """Handle the answer to a step.

        Args:
            step: the request.
            answer: the broker's answer as plain data, of the type that belongs to the step.
            now: seconds.
            merge: for a long Metadata answer, the result of `merge_of`.

        Returns:
            An error if a Produce answer does not fit its request. The driver must then close the
            connection; the engine has already dropped it, so `on_link_lost` need not be called.

        Raises:
            ProtocolError: the answer is malformed. The driver must close the connection, and report
            its end by `on_link_lost`.
        """
        self.meters.now = now
        if type(step) is not steps.SendProduce:
            self._calm = False
        answered = self._requests.answered(step.link_id, step.token, now)
        if answered is None:
            return None  # when the connection ended, the loss of this request was handled
        link, request = answered
        match step:
            case steps.SendProduce():
                odd = self.produce.on_answer(link, request, answer, now)
                if odd is not None:
                    self._calm = False
                    self._lost.drop(link, odd, now)
                return odd
            case steps.FetchMetadata():
                self._metadata_requests.on_metadata(link, request, answer, now, merge)
            case steps.AskCluster():
                self._metadata_requests.on_cluster(link, answer)
            case steps.InitProducerId():
                refused = self._identity_request.on_answer(link, answer, now)
                if refused is not None:
                    self.accumulator.abandon(refused)
            case steps.DescribeTopicConfig():
                self._inquiries.on_topic_config(link, step.topic, answer, now)
            case steps.DescribeTopicLimit() if request.topic_limit is not None:
                self._inquiries.on_topic_limit(link, request.topic_limit, answer, now)
            case steps.DescribeBrokerConfig():
                self._inquiries.on_broker_config(link.node_id, answer)
            case steps.AskProducers() if request.subject is not None:
                self._doubt.on_producers(link, request.subject, answer, now)
            case steps.ReadBack():
                self._doubt.on_read_back(link, request, answer, now)
            case steps.FindCoordinator():
                self.coordination.on_coordinator(link, answer, now)
            case steps.InitTransactions():
                self.coordination.on_identity(link, answer, now)
            case steps.AddPartitions():
                self.coordination.on_partitions_added(link, answer, now)
            case steps.AddOffsets():
                self.coordination.on_group_added(link, answer, now)
            case steps.CommitOffsets():
                self.coordination.on_offsets_committed(link, answer, now)
            case steps.EndTransaction():
                self.coordination.on_ended(link, answer, now)
        return None

    def on_compressed(self, token: int, result: BatchBody | errors.KafkaError) -> None:
        """Take the result of a `Compress` step: the records, or why they cannot be compressed."""
        self._calm = False
        self.accumulator.on_compressed(token, result)

    def merge_of(self, step: steps.Request, answer: Any) -> MetadataMerge | None:
        """Return the object that merges a Metadata answer into the view of the cluster.

        The result is None for an answer of another kind. The driver calls this for a long answer.
        It then runs the merge in pieces, and passes both the answer and the object to `on_answer`.
        """
        if isinstance(step, steps.FetchMetadata):
            return self._metadata_requests.merge_of(answer)
        return None

    def on_unsupported(self, step: steps.Request, error: errors.KafkaError, now: float) -> None:
        """Withdraw a request that was not sent, because the broker supports no usable version."""
        self._calm = False
        withdrawn = self._requests.withdrawn(step.link_id, step.token)
        if withdrawn is None:
            return
        link, request = withdrawn
        match request.kind:
            case RequestKind.DESCRIBE_CONFIGS:
                link.discovery.unsupported()
            case RequestKind.TOPIC_LIMIT if request.topic_limit is not None:
                request.topic_limit.tell(None, now)
            case RequestKind.COORDINATION:
                self.coordination.on_unsupported(error)
            case RequestKind.DESCRIBE_PRODUCERS:
                link.note_producers(worth_asking=False)
                self._lost.lose(request, written=False, now=now)
            case RequestKind.READ_BACK:
                link.refuse_reading()
                self._lost.lose(request, written=False, now=now)
            case RequestKind.INIT_PRODUCER_ID:
                self._lost.lose(request, written=False, now=now)
                self._identity_request.report(error)
                self.accumulator.abandon(error)
            case _:
                self._lost.lose(request, written=False, now=now)

    def on_link_open(
        self, link_id: int, produce_version: int, now: float, transaction_version: int = 0
    ) -> None:
        """Note that a connection is up.

        Args:
            link_id: the id in the `OpenLink` step.
            produce_version: the highest Produce version that client and broker both support.
            now: seconds.
            transaction_version: the finalised level of `transaction.version`, as this broker names
            it.
        """
        self._calm = False
        link = self.connections.links.get(link_id)
        if link is not None:
            link.transaction_version = transaction_version
            link.latencies = self.meters.nodes[link.node_id].latencies
            self.connections.opened(link, produce_version, now)

    def on_link_lost(
        self, link_id: int, error: Exception | None, now: float, unwritten: Collection[int] = ()
    ) -> None:
        """Note that a connection ended, or could not be opened.

        Args:
            link_id: the id in the `OpenLink` step.
            error: why it ended; None if the broker closed it without an error.
            now: seconds.
            unwritten: tokens of the requests of which no byte was written.
        """
        self._calm = False
        link = self.connections.links.get(link_id)
        if link is not None:
            self._lost.drop(link, error, now, frozenset(unwritten))
            self.metadata.want()
            refusal = self.connections.shut_out(error)
            if refusal is not None:
                self._effects.fatal(refusal)

    def on_progress(self, link_id: int, now: float) -> None:
        """Note that bytes were read from or written to a connection."""
        link = self.connections.links.get(link_id)
        if link is not None:
            link.progress(now)

    def on_undecodable(self, link_id: int, version: int, error: Exception, now: float) -> None:
        """Account for a Produce answer that cannot be decoded; the driver closes the connection.

        Args:
            link_id: the id in the `OpenLink` step.
            version: the Produce version of the request.
            error: why the answer cannot be decoded.
            now: seconds.
        """
        self._calm = False
        link = self.connections.links.get(link_id)
        if link is None:
            return
        if version >= PRODUCE_WITH_WINDOW:
            link.discovery.refused("its answer in v14 could not be decoded", now)
        self._lost.drop(link, error, now)

    def on_new_credentials(self) -> None:
        """Note that connections which are opened from now on use another name or password."""
        self.connections.forgive()

    def fatal(self, error: errors.KafkaError) -> None:
        """End the producer for good; the next poll settles the records without an outcome."""
        self._calm = False
        self._effects.fatal(error)

    # -- what is seen from outside -----------------------------------------------------------------

    @property
    def fatal_error(self) -> errors.KafkaError | None:
        """The error that ended the producer for good; None while sends may succeed."""
        return self._effects.fatal_error

    @property
    def identity_error(self) -> errors.KafkaError | None:
        """Why the cluster refuses to grant a producer id; None if it does not."""
        return self._identity_request.error

    @property
    def current_identity(self) -> ProducerIdentity | None:
        """The producer id and epoch in use."""
        return self.identity.current

    @property
    def epoch_bumps(self) -> int:
        """How often the producer changed its epoch or its producer id."""
        return self.identity.bumps

    @property
    def expiration(self) -> float:
        """Seconds after which brokers forget a producer (KIP-854); a default until they answer."""
        return self._inquiries.expiration

    @property
    def unsettled(self) -> int:
        """The number of records that have no outcome yet."""
        return self.accumulator.unsettled

    def obstacle(self, now: float) -> errors.KafkaError | None:
        """Return what the unsettled records wait for, as the cause of a call's timeout, or None."""
        return self._partitions.obstacle(now)

    @property
    def knows_cluster(self) -> bool:
        """Whether a Metadata request has been answered."""
        return self.metadata.refreshed_at is not None

    def bootstrap_state(self, now: float) -> str:
        """Return the state of each bootstrap address, and since when."""
        return self.connections.bootstrap_state(now)

    def bootstrap_failure(self) -> errors.KafkaError | None:
        """Return why no broker can be reached; None until every bootstrap address has failed."""
        return None if self.knows_cluster else self.connections.bootstrap_failure()

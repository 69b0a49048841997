"""ProduceRequests: sends batches in Produce requests, and handles the answers.

Invariants
- A request is outstanding on exactly one link (connection). When the link ends, the batches of the
  request are in doubt (perhaps appended), unless no byte of the request was written.
- Answers are matched with the contents of their request. A partition that an answer leaves out is
  in doubt; an answer that names other partitions, or one twice, closes the connection.

Rejected: one object per broker that owns its partitions (franz-go's sink). When a leader moves,
state would have to be carried from one owner to another in the middle of its life; here a partition
only changes its route.
"""

from __future__ import annotations

from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.classify import Action, classify
from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW
from aioidem._engine.effects import Effects
from aioidem._engine.failed_attempts import Refusal
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.links import Link
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.refusals import culprits, refusal_error, too_large
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Entry, Outstanding, RequestKind
from aioidem._engine.route import Route
from aioidem._engine.steps import SendProduce, TopicData
from aioidem._engine.transactions import Transactions
from aioidem._log import LogLine
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer

__all__ = ["ProduceRequests"]

_PRODUCE_WITH_TOPIC_IDS = 13
_UNSUPPORTED_VERSION = int(ErrorCode.unsupported_version)
_ABOUT_PRODUCER_IDS = frozenset(
    {Action.OUT_OF_ORDER, Action.DUPLICATE, Action.NO_STATE, Action.FENCED}
)
"""What a refusal can say about a producer id. If a batch has none, there is nothing to recover."""


class ProduceRequests:
    """The Produce requests of one producer: what each of them carries, and what its answer means.

    A request goes to one broker. It carries batches of partitions that this broker leads, at most
    one of each partition.

    A batch is in doubt if an attempt to send it is over, and the broker may have appended it.

    Args:
        config: validated options.
        cluster: the view of the cluster, for leaders.
        connections: the connections to leaders.
        accumulator: the records and batches to send.
        partitions: the states of all partitions.
        inquiries: the questions that leaders are asked about their configuration.
        requests: records outstanding requests, and has the Sender send them.
        identity: the producer id and epoch, given up if another client uses it.
        outcomes: receives counts, and events for the operator.
        effects: the object to which partitions report what concerns the whole producer.
        transactions: are informed of each answer.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterView,
        connections: Connections,
        accumulator: RecordAccumulator,
        partitions: Partitions,
        inquiries: BrokerInquiries,
        requests: RequestLedger,
        identity: IdentityLedger,
        outcomes: Outcomes,
        effects: Effects,
        transactions: Transactions,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._connections = connections
        self._accumulator = accumulator
        self._partitions = partitions
        self._inquiries = inquiries
        self._requests = requests
        self._identity = identity
        self._outcomes = outcomes
        self._meters = outcomes.meters
        self._effects = effects
        self._transactions = transactions
        self._timeout_ms = int(config.request_timeout * 1000)
        # Whether a batch was refused, or left out of an answer, since the last poll.
        self.refused = False
        # Whether a partition with something to resolve has got a new route since `take_rerouted`.
        self._rerouted = False
        # The batches sent since the last `take_dispatched`; None if `observe` was not called.
        self._dispatched: list[Entry] | None = None

    # -- sending -----------------------------------------------------------------------------------

    def send(self, active: list[PartitionState], now: float) -> None:
        """Send due batches of these partitions, up to the limits on what may be in flight."""
        if len(active) > 1:
            self._send_all(active, now)
        elif active:
            link = self._route(active[0], now)
            if link is not None:
                self._send_on(link, active, now)
        self._accumulator.hold_back(active, now)

    def _send_all(self, active: list[PartitionState], now: float) -> None:
        """Send the due batches of several partitions, grouped by connection."""
        by_link: dict[Link, list[PartitionState]] = {}
        for state in active:
            link = self._route(state, now)
            if link is not None:
                by_link.setdefault(link, []).append(state)
        for link, states in by_link.items():
            self._send_on(link, states, now)

    def take_rerouted(self) -> bool:
        """Return whether a partition with something to resolve got a new route since the last call.

        Its doubt can then be resolved on the new connection, if the engine polls again.
        """
        rerouted, self._rerouted = self._rerouted, False
        return rerouted

    def _route(self, state: PartitionState, now: float) -> Link | None:
        """Return the connection to a partition's leader, if the partition may use it now."""
        view = self._cluster.leader_of(state.topic, state.partition)
        if view is None or view.leader_id == NO_LEADER:
            state.setbacks.leaderless(now)
            self._effects.refresh_metadata()
            return None
        state.setbacks.led()
        link = self._requests.link_to(view.leader_id, now)
        if link is None:
            if view.leader_id not in self._connections.nodes:
                self._effects.refresh_metadata()
            return None
        if link.identified:
            there = (link.link_id, view.leader_id, view.leader_epoch)
            if there != state.leadership.route:
                if not state.follow(Route(*there)):
                    return None
                self._rerouted |= not state.untroubled()
        limit = link.limits.of(state.topic)
        self._inquiries.ask(link, state, limit, now)
        if not link.identified:
            # The broker has not named its cluster yet. Nothing is sent until then, because in
            # another cluster the producer id may belong to another producer.
            return None
        if limit.awaited():
            # A batch was refused for its size, and the leader was asked for the topic's limit. Wait
            # for the answer, because the batch is split into parts that the limit allows.
            return None
        if (
            state.batches.unresolved
            and state.batches.in_doubt
            and self._inquiries.awaits_memory(link)
        ):
            # The broker was asked how long it keeps a producer's state. Wait for the answer: if the
            # broker may have dropped the state, a resent batch could be appended a second time.
            return None
        return None if link.discovery.holds_up() else link

    def _send_on(self, link: Link, states: list[PartitionState], now: float) -> None:
        while link.admits(now):
            chosen = self._accumulator.drain(link, states, now)
            if not chosen:
                return
            self._write(link, chosen, now)
            if not _any_waits(states):
                return
            if len(states) > 1:
                served = {state: None for state, _ in chosen}
                states = [*(state for state in states if state not in served), *served]
        self._accumulator.prepare(link, states, now)

    def _write(self, link: Link, chosen: list[Entry], now: float) -> None:
        version = self._transactions.produce_version(link.produce_version)
        topics: dict[str, TopicData] = {}
        entries: dict[tuple[str, int], Entry] = {}
        names: dict[UUID, str] = {}
        nbytes = records = 0
        counters = self._outcomes.counters
        for entry in chosen:
            state, batch = entry
            data = topics.get(state.topic)
            if data is None:
                topic_id = self._topic_id(state)
                data = topics[state.topic] = TopicData(state.topic, topic_id, [])
                if topic_id is None:
                    version = min(version, _PRODUCE_WITH_TOPIC_IDS - 1)
                else:
                    names[topic_id] = state.topic
            data.partitions.append((state.partition, batch.data))
            entries[state.topic, state.partition] = entry
            self._partitions.served(state)
            nbytes += len(batch.data)
            records += batch.count
            counters.batches_retried += batch.attempts > 1
        counters.batches_sent += len(chosen)
        self._meters.sent(chosen, records, now)
        if self._dispatched is not None:
            self._dispatched.extend(chosen)
        token = self._requests.next_token()
        self._requests.carry(
            link,
            Outstanding(
                token,
                RequestKind.PRODUCE,
                now,
                entries=entries,
                names=names,
                nbytes=nbytes,
                version=version,
            ),
        )
        config = self._config
        self._requests.add(
            SendProduce(
                link.link_id,
                token,
                version,
                config.acks,
                self._timeout_ms,
                self._transactions.transactional_id or None,
                list(topics.values()),
                records,
            )
        )

    def _topic_id(self, state: PartitionState) -> UUID | None:
        view = self._cluster.topics.get(state.topic)
        return None if view is None else view.topic_id

    def observe(self) -> list[Entry]:
        """Begin to keep each batch that is sent, and return the list of them.

        They are taken out by `take_dispatched`, or by whoever clears the list.
        """
        self._dispatched = []
        return self._dispatched

    def take_dispatched(self) -> list[Entry]:
        """Take out the batches sent since the last call; none unless `observe` was called."""
        if not self._dispatched:
            return []
        dispatched, self._dispatched = self._dispatched, []
        return dispatched

    # -- answers -----------------------------------------------------------------------------------

    def on_answer(
        self, link: Link, request: Outstanding, answer: ProduceAnswer, now: float
    ) -> errors.ProtocolError | None:
        """Handle the answer to a Produce request.

        Returns:
            An error if this cannot be the answer to the request: its connection must be closed.
        """
        link.throttle(answer.throttle_ms, now)
        if link.last_throttle:
            self._meters.nodes[link.node_id].throttles.append(link.last_throttle)
        if request.version >= PRODUCE_WITH_WINDOW:
            self._hear_v14(link, answer, now)
        if answer.leaders:
            self._learn_leaders(answer)
        left = request.entries.copy()
        odd = 0
        for part in answer.partitions:
            name = part.topic
            if name is None and part.topic_id is not None:
                name = request.names.get(part.topic_id)
            entry = None if name is None else left.pop((name, part.partition), None)
            if entry is None:
                odd += 1
            else:
                self._on_partition(entry, link, request, part, now)
        for state, batch in left.values():
            self.refused = True
            self._transactions.on_produced(None)
            state.failures.on_lost(batch, written=True, now=now)
            self._effects.refresh_metadata()
        if not odd:
            return None
        return errors.ProtocolError(
            f"a Produce answer names {odd} partition(s) that its request did not carry, or "
            "names one twice"
        )

    def _hear_v14(self, link: Link, answer: ProduceAnswer, now: float) -> None:
        for part in answer.partitions:
            if part.error_code == _UNSUPPORTED_VERSION:
                link.discovery.refused("it answered UNSUPPORTED_VERSION", now)
                return
        link.discovery.answered()

    def _learn_leaders(self, answer: ProduceAnswer) -> None:
        # A broker is kept only if the answer names it as the leader of a partition. Otherwise a
        # faulty broker could fill the memory with new ones in each answer.
        named = {part.leader_id for part in answer.partitions}
        self._cluster.add_brokers(
            BrokerAddress(leader.node_id, leader.host, leader.port)
            for leader in answer.leaders
            if leader.node_id in named
        )
        self._connections.learn(self._cluster.brokers.values())

    def _on_partition(
        self, entry: Entry, link: Link, request: Outstanding, part: PartitionAnswer, now: float
    ) -> None:
        state, batch = entry
        self._transactions.on_produced(part.error_code)
        if not part.error_code:
            if not self._partitions.retired or self._partitions.holds(state):
                link.limits.of(state.topic).accept(len(batch.data))
            if link.memory.limit is not None:
                part = part._replace(retained=link.memory.believed(part.retained, now))
            state.acknowledgements.on_ack(
                batch, part, now, current=self._is_current(state), out=self._effects
            )
            return
        self.refused = True
        refusal = self._refusal(entry, link, request, part, now)
        if self._partitions.holds(state):
            self._cluster.hint(state.topic, state.partition, part.leader_id, part.leader_epoch)
        if state.failures.on_error(batch, refusal, now, self._effects):
            event = self._partitions.disown(state, refusal.error, self._identity)
            if event is not None:
                self._outcomes.event(LogLine.PRODUCER_ID_SHARED, event)

    def _refusal(
        self, entry: Entry, link: Link, request: Outstanding, part: PartitionAnswer, now: float
    ) -> Refusal:
        """Return what the error code of an answer means for the batch that was answered."""
        state, batch = entry
        code = part.error_code
        disposition = classify(
            code,
            part.base_offset,
            trust_base_offset=self._config.trust_base_offset,
            message=part.error_message,
        )
        if code == _UNSUPPORTED_VERSION and request.version >= PRODUCE_WITH_WINDOW:
            disposition = disposition._replace(action=Action.RETRY)  # the retry is sent in v13
        if self._transactions.finishing(code, now):
            disposition = disposition._replace(action=Action.RETRY)
        if not state.idempotent and disposition.action in _ABOUT_PRODUCER_IDS:
            disposition = disposition._replace(action=Action.FAIL)
        node = self._connections.nodes.get(link.node_id)
        broker = f"broker {link.node_id}" + ("" if node is None else f" ({node.address})")
        error = refusal_error(state.where, part, batch.count, batch.attempts, broker)
        if disposition.action is Action.SPLIT:
            limit = link.limits.of(state.topic)
            if self._partitions.holds(state):  # not of a topic that was deleted since
                if not batch.in_doubt:
                    self._accumulator.topics[state.topic].too_large(len(batch.data), now)
                limit.refuse(len(batch.data))
            error = too_large(state.where, part, len(batch.data), batch.count, limit.told, broker)
        named = culprits(state.where, part, batch.count, batch.attempts, broker)
        innocent = self._accumulator.without(batch, named) if named else None
        return Refusal(disposition, error, named, innocent)

    def _is_current(self, state: PartitionState) -> bool:
        """Return whether a partition's route leads to the newest known leader and leader epoch.

        The route counts as current, too, if the metadata has the leader epoch of the route and
        names no leader.
        """
        view = self._cluster.leader_of(state.topic, state.partition)
        route = state.leadership.route
        return (
            view is not None
            and route is not None
            and view.leader_epoch == route.leader_epoch
            and view.leader_id in (route.leader_id, NO_LEADER)
        )

    def on_written_unanswered(self, link_id: int, token: int, now: float) -> None:
        """Settle the batches of a written request as UNKNOWN: under acks=0 no answer comes.

        Args:
            link_id: the id of the connection on which the request was written.
            token: the token of the request.
            now: seconds.
        """
        self._meters.now = now
        withdrawn = self._requests.withdrawn(link_id, token)
        if withdrawn is not None:
            for state, batch in withdrawn[1].entries.values():
                state.failures.on_unanswered(batch, now, self._effects)

    def on_lost(self, request: Outstanding, *, written: bool, now: float) -> None:
        """Handle a request that gets no answer: if it was written, its batches are in doubt.

        Args:
            request: the request.
            written: whether the broker may have received it.
            now: seconds.
        """
        if written:
            self._transactions.on_produced(None)
        for state, batch in request.entries.values():
            state.failures.on_lost(batch, written=written, now=now)


def _any_waits(states: list[PartitionState]) -> bool:
    for state in states:  # noqa: SIM110 - `any` takes three times as long
        if state.waits():
            return True
    return False

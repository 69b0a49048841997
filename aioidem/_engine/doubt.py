"""DoubtResolution: finds out whether batches in doubt are stored, when a resend cannot show it.

A batch is in doubt if it may or may not be in the log. A partition that has batches in doubt waits
until all its batches in flight are answered or lost. Then the next `ProducerCore.poll` decides what
to do about the doubt: resend some batches, ask the leader, or give up. The leader is asked in one
of two ways. DescribeProducers (KIP-664) names the last sequence of the producer id. Fetch reads the
log itself, if a resend could be appended twice because the leader may have forgotten the producer
(KIP-854).

A deposed leader may keep silent about batches in flight to it. The partition sends nothing to the
new leader before those batches are answered or lost, so the deposed leader is disconnected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aioidem._config import ProducerConfig
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.classify import RETRIABLE_FETCH_ERRORS, RETRIABLE_TOPIC_ERRORS
from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.effects import Effects
from aioidem._engine.links import Leaving, Link
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import PartitionState
from aioidem._engine.read_back import written_batches
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import AskProducers, ReadBack
from aioidem._log import LogLine
from aioidem._protocol.producers import ProducersAnswer
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem.errors import KafkaConnectionError

__all__ = ["DoubtResolution"]

_OLD_LEADER_SILENCE = 2.0
"""How many seconds a partition's old leader may send nothing before it is disconnected.

The limit is three round trips if they take longer. The new leader gets no batches until the old one
has answered or is disconnected.
"""
# The clock that stamps records counts milliseconds: so much later, in seconds, it has moved on.
_CLOCK_TICK = 0.001
# The end of the committed log, if its leader does not know it: behind each offset.
_NOT_TOLD = 1 << 63

_SUSPECT_WARNING = (
    "{partition.topic}-{partition.partition}: record timestamps are more than half of the brokers' "
    "producer.id.expiration.ms ({seconds:g} s) old, so a broker may have forgotten this producer "
    "(KIP-854): after a lost answer such records are read back, and end UNKNOWN if that is not "
    "possible. Set a transactional_id, set message.timestamp.type=LogAppendTime on the topic, or "
    "raise producer.id.expiration.ms"
)


class DoubtResolution:
    """Asks leaders about batches in doubt, and disconnects old leaders that are silent.

    Args:
        config: validated options.
        cluster: the view of the cluster, for leaders.
        connections: the connections on which batches are sent.
        inquiries: holds the time after which brokers forget producers.
        requests: registers requests, and passes them to the Sender through `ProducerCore.poll`.
        outcomes: receives events for the operator.
        effects: receives what must change outside of the partition, such as the producer's epoch.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterView,
        connections: Connections,
        inquiries: BrokerInquiries,
        requests: RequestLedger,
        outcomes: Outcomes,
        effects: Effects,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._links = connections.links
        self._inquiries = inquiries
        self._requests = requests
        self._outcomes = outcomes
        self._effects = effects
        # Milliseconds by which the clock that stamps records is ahead of the engine's clock. None
        # until `see_clock` gets a time; before that no broker is assumed to have forgotten the
        # producer.
        self._wall_ahead: float | None = None
        self._warned_suspect = False
        self.old_leaders_owe = False
        """Whether an old leader owed answers when `silent_leaders` last looked."""
        self._next_pages: list[tuple[PartitionState, Link, int]] = []

    def see_clock(self, wall_ms: float | None, now: float) -> None:
        """Record the time by the clock that stamps records, in milliseconds since 1970."""
        if wall_ms is not None:
            # The broker compares record timestamps with its own clock. If the clock that stamps
            # records is set back, the broker finds the new timestamps too old. So the largest
            # difference between that clock and the engine's clock is kept: with it, the engine's
            # clock gives an estimate of the broker's clock that is not set back.
            ahead = wall_ms - now * 1000.0
            if self._wall_ahead is None or ahead > self._wall_ahead:
                self._wall_ahead = ahead

    def prepare(self, state: PartitionState, now: float) -> None:
        """Let a partition take the decisions that are due, and ask its leader what it has stored.

        Decisions wait until no batch of the partition is outstanding.
        """
        if self._wall_ahead is not None:
            state.assess_memory(self._wall_ahead + now * 1000.0, self._inquiries.expiration)
        if state.untroubled():
            return
        route = state.leadership.route
        link = None if route is None else self._links.get(route.link_id)
        state.ladder.advance(
            now,
            self._effects,
            throttled=0.0 if link is None else link.last_throttle,
            may_ask=link is not None and link.knows_producers,
        )
        if state.suspicion.forbids_resend and not self._warned_suspect:
            self._warned_suspect = True
            self._outcomes.event(
                LogLine.STATE_EXPIRED,
                _SUSPECT_WARNING.format(partition=state, seconds=self._inquiries.expiration),
            )
        if link is not None and not self._is_deposed(state):
            self._ask_leader(state, link, now)

    def _ask_leader(self, state: PartitionState, link: Link, now: float) -> None:
        """Send a partition's leader DescribeProducers or Fetch, if the partition needs it."""
        if state.ladder.wants_producers and link.admits(now):
            state.recovery.ask()
            token = self._requests.register(link, RequestKind.DESCRIBE_PRODUCERS, now, state)
            self._requests.add(AskProducers(link.link_id, token, state.topic, state.partition))
        elif state.lookup.wanted and link.admits(now) and now >= state.setbacks.retry_at:
            offset = state.lookup.begin() if link.may_read else None
            if offset is None:
                state.lookup.give_up_doubt(self._effects)
            else:
                self._read(state, link, offset, now)

    def _is_deposed(self, state: PartitionState) -> bool:
        """Return whether the partition has another leader than that of its route, or a new epoch.

        Its log is that of a follower, and may lack what the new leader has.
        """
        view = self._cluster.leader_of(state.topic, state.partition)
        route = state.leadership.route
        if view is None or route is None:
            return False
        return view.leader_epoch != route.leader_epoch or view.leader_id not in (
            route.leader_id,
            NO_LEADER,
        )

    # -- reading the log back

    def reads_on(self) -> bool:
        """Return whether a next page of a log is still to be requested."""
        return bool(self._next_pages)

    def read_on(self, now: float) -> None:
        """Request the pages of the log that follow those received since the last poll."""
        if not self._next_pages:
            return
        pages, self._next_pages = self._next_pages, []
        for state, link, offset in pages:
            if state.read_back.offset != offset:
                continue  # the reading has ended since
            if link.closed or not state.batches.in_doubt:
                state.lookup.end()
            elif link.admits(now) and now >= state.setbacks.retry_at:
                self._read(state, link, offset, now)
            else:
                self._next_pages.append((state, link, offset))

    def _read(self, state: PartitionState, link: Link, offset: int, now: float) -> None:
        token = self._requests.register(link, RequestKind.READ_BACK, now, state)
        state.read_back.asked(token)
        route = state.leadership.route
        self._requests.add(
            ReadBack(
                link.link_id,
                token,
                state.topic,
                state.topic_id,
                state.partition,
                offset,
                -1 if route is None else route.leader_epoch,
            )
        )

    def on_read_back(
        self, link: Link, request: Outstanding, answer: ReadBackAnswer, now: float
    ) -> None:
        """Handle a page of a partition's log, if that log is still read there.

        A page that the partition's old leader owed says nothing about the log of the new one.

        Raises:
            ProtocolError: the batches of the page are malformed; the Sender closes the connection.
        """
        link.throttle(answer.throttle_ms, now)
        state = request.subject
        if state is None or not state.read_back.takes(request.token):
            return
        if answer.error_code:
            if answer.error_code in RETRIABLE_FETCH_ERRORS:
                self._effects.refresh_metadata()
                state.lookup.end(now + self._config.retry_backoff)
            else:
                state.lookup.give_up_doubt(self._effects)
            return
        doubtful = state.suspicion.forbids_resend and state.batches.in_doubt
        if self._wall_ahead is None or not doubtful or self._is_deposed(state):
            state.lookup.end()
            return
        end, patience = answer.high_watermark, self._config.request_timeout
        if state.read_back.is_behind(end, state.log.offset, now, patience):
            end = _NOT_TOLD
        page = written_batches(answer.records)
        owed = None if page else state.read_back.owed(end)
        if owed is not None:
            # The broker sends no records now, perhaps because the client has reached its quota, or
            # because the page is not known to be committed. To begin again would use up the quota,
            # so the same page is requested again.
            state.setbacks.wait_until(now + self._config.retry_backoff)
            self._next_pages.append((state, link, owed))
            return
        following = state.lookup.take_page(page, end, self._effects)
        if following is not None:
            self._next_pages.append((state, link, following))

    def forget_cluster(self) -> None:
        """Stop reading logs: the producer moves to another cluster."""
        self._next_pages.clear()

    # -- DescribeProducers

    def on_producers(
        self, link: Link, state: PartitionState, answer: ProducersAnswer, now: float
    ) -> None:
        """Record the last sequence that a leader has stored for the producer id.

        If the leader answers with a permanent error, DescribeProducers is not sent on this
        connection again.
        """
        link.throttle(answer.throttle_ms, now)
        if answer.error_code:
            link.note_producers(worth_asking=answer.error_code in RETRIABLE_TOPIC_ERRORS)
            state.ladder.on_producers(None)
            return
        identity = state.ledger.identity
        known = None if identity is None else answer.last_sequences.get(identity.producer_id)
        state.ladder.on_producers(known)

    # -- old leaders

    def silent_leaders(self, states: Iterable[PartitionState], now: float) -> Iterator[Leaving]:
        """Yield connections to old leaders that owe answers to batches, but have become silent."""
        self.old_leaders_owe = False
        for state in states:
            if not state.batches.outstanding:
                continue
            link, at = self._silent_at(state)
            if link is None or at is None:
                continue
            self.old_leaders_owe = True
            if now >= at:
                reason = (
                    f"{state.where} has a new leader, whose turn comes when broker {link.node_id}, "
                    "the old leader, has answered; it has sent nothing since "
                    f"{now - link.last_progress:.1f} s"
                )
                yield Leaving(link, reason, KafkaConnectionError(reason))

    def _silent_at(self, state: PartitionState) -> tuple[Link | None, float | None]:
        route = state.leadership.route
        if route is None or not state.batches.outstanding:
            return None, None
        view = self._cluster.leader_of(state.topic, state.partition)
        link = self._links.get(route.link_id)
        if view is None or link is None or view.leader_epoch <= route.leader_epoch:
            return None, None
        since = max(link.last_progress, link.throttled_until)
        return link, since + max(3.0 * (link.rtt or 0.0), _OLD_LEADER_SILENCE)

    def turns_at(self, state: PartitionState, now: float) -> float | None:
        """Return when the leader of a batch in doubt may have forgotten the producer (KIP-854).

        Returns:
            The time in seconds, from which on the batch is read back; None if nothing is in doubt,
            or if that time has come.
        """
        due_ms = state.suspicion.due_ms
        if due_ms is None or self._wall_ahead is None or not state.batches.in_doubt:
            return None
        at = (due_ms - self._wall_ahead) / 1000.0 + _CLOCK_TICK
        known = state.suspicion.suspect and not state.suspicion.exempt
        return at if now < at and not known else None

    def awaits(self, state: PartitionState) -> float | None:
        """Return when a partition stops waiting for its old leader, if that leader stays silent.

        Returns:
            The time in seconds; None if the partition waits for no old leader.
        """
        return self._silent_at(state)[1]

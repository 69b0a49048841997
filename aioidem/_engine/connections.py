"""Connections: decides which brokers to connect to, and which connection a request uses.

A connection to a leader is opened when there is something to send to it. A request that any broker
can answer goes to the connection with the fewest outstanding requests. A new connection is opened
for it if there is none, or if every connection is still being opened to an address that failed
before. The address of the new connection is drawn at random among those that failed least often.
Bootstrap addresses are always included, so that the cluster is found again even if all its brokers
have moved (KIP-899). After a connection failed or was lost, its address is not used again until an
exponential back-off with jitter has passed.

Invariants: there is at most one link (connection) per node (address) at a time; when a link is
dropped, its outstanding requests are returned exactly once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW
from aioidem._engine.links import Leaving, Link, LinkEvent, LinkState, Node
from aioidem._engine.reach import Reach, reason_of
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._protocol.metadata import BrokerAddress

__all__ = ["Connections"]

_MOST_NODES = 1000
"""The number of nodes above which those that metadata no longer names are dropped.

Without a bound, a broker that invents new nodes in each answer would fill the memory.
"""

_REFUSALS = 5
"""The number of refused authentications in a row after which the password is taken as wrong.

Refusals by different brokers are counted together. The password is the one in the configuration.
"""


class Connections:
    """The broker addresses (nodes) of the cluster, and the connections (links) to them."""

    __slots__ = (
        "_config",
        "_first_to_count",
        "_next_link_id",
        "_random",
        "_refused",
        "astray",
        "links",
        "nodes",
        "reach",
    )

    def __init__(self, config: ProducerConfig, random: Callable[[], float]) -> None:
        self._config = config
        self._random = random
        self._next_link_id = 1
        self._refused = 0
        # The first connection that uses the present credentials.
        self._first_to_count = 1
        self.reach = Reach()
        # Whether a connection may lead to a cluster that is not the producer's.
        self.astray = False
        self.links: dict[int, Link] = {}
        self.nodes: dict[int, Node] = {}
        for number, (host, port) in enumerate(config.bootstrap_servers, start=1):
            self._add(-number, host, port)

    def _add(self, node_id: int, host: str, port: int) -> None:
        self.nodes[node_id] = Node(node_id, host, port, self._config, self._random)

    def learn(self, brokers: Iterable[BrokerAddress]) -> None:
        """Record the addresses of all brokers that metadata names now."""
        brokers = list(brokers)
        if len(self.nodes) > _MOST_NODES:
            self._forget({broker.node_id for broker in brokers})
        for broker in brokers:
            node = self.nodes.get(broker.node_id)
            if node is None:
                self._add(broker.node_id, broker.host, broker.port)
            elif (node.host, node.port) != (broker.host, broker.port):
                # An open connection stays until it fails; the next one goes to the new address.
                node.host, node.port = broker.host, broker.port
                node.retry_at = 0.0

    def _forget(self, but: set[int]) -> None:
        """Drop the nodes that metadata does not name any more.

        Called only when there are more than `_MOST_NODES` nodes. Fewer are kept, because their
        back-off and the facts about their brokers are useful if metadata names them again.
        """
        self.nodes = {
            node_id: node
            for node_id, node in self.nodes.items()
            if node_id < 0 or node_id in but or node.link is not None
        }

    # -- choosing -----------------------------------------------------------------------------

    def any(self, now: float, out: list[steps.Step], *, identified: bool = True) -> Link | None:
        """Return a connection for a request that any broker can answer; open one if there is none.

        Args:
            now: seconds.
            out: receives an `OpenLink` step if a connection is to be opened.
            identified: whether the connection's broker must have named its cluster.
        """
        ready = [
            link
            for link in self.links.values()
            if link.admits(now) and (link.identified or not identified)
        ]
        if ready:
            # Brokers from metadata are preferred to bootstrap addresses: connections to bootstrap
            # addresses are closed once a broker from metadata is connected.
            return min(
                ready,
                key=lambda link: (
                    not link.identified,
                    link.node_id < 0,
                    link.window.outstanding,
                ),
            )
        while all(self._in_vain(link) for link in self.links.values()):
            if not self._open_somewhere(now, out):
                break
        return None

    def _in_vain(self, link: Link) -> bool:
        """Return whether a link is still being opened to an address that failed the last time.

        Such a link must not keep `any` from trying another address: the host may never come back,
        and while records wait for it, an attempt to connect to it is almost always under way.
        """
        failures = self.nodes[link.node_id].backoff.failures
        return link.state is LinkState.CONNECTING and failures > 0

    def _open_somewhere(self, now: float, out: list[steps.Step]) -> bool:
        """Begin to open a connection; return False if every address has one or is in back-off."""
        candidates = [
            node for node in self.nodes.values() if node.link is None and now >= node.retry_at
        ]
        if not candidates:
            return False
        fewest = min(node.backoff.failures for node in candidates)
        best = [node for node in candidates if node.backoff.failures == fewest]
        self._open(best[int(self._random() * len(best)) % len(best)], now, out)
        return True

    def to(self, node_id: int, now: float, out: list[steps.Step]) -> Link | None:
        """Return the connection to a broker; None if it is not ready.

        If there is no connection, begin to open one, unless a back-off forbids that yet.
        """
        node = self.nodes.get(node_id)
        if node is None:
            return None
        if node.link is None and now >= node.retry_at:
            self._open(node, now, out)
        link = node.link
        return link if link is not None and link.state is LinkState.READY else None

    def _open(self, node: Node, now: float, out: list[steps.Step]) -> None:
        link = Link(
            self._next_link_id,
            node.node_id,
            self._config.max_in_flight_requests_per_connection,
            now,
            node.discovery,
            node.memory,
        )
        link.knows_producers = not node.question_lost
        link.limits.may_ask = not node.limit_lost
        self._next_link_id += 1
        node.link = link
        self.links[link.link_id] = link
        out.append(steps.OpenLink(link.link_id, node.host, node.port))

    # -- life ---------------------------------------------------------------------------------

    def opened(self, link: Link, produce_version: int, now: float) -> None:
        """Note that a connection is up.

        Args:
            link: the connection.
            produce_version: the highest Produce version that client and broker both support.
            now: seconds.
        """
        link.opened(min(produce_version, PRODUCE_WITH_WINDOW - 1), now)
        self.nodes[link.node_id].down_since = None
        self.reach.up()
        self._refused = 0
        link.discovery.opened(produce_version)

    def identified(self, link: Link, cluster_id: str | None, *, at_home: bool) -> None:
        """Record which cluster a connection leads to.

        Only a connection to the known cluster resets the back-off of its address.

        Args:
            link: the connection.
            cluster_id: the cluster that its broker names; None if it names none.
            at_home: whether that is the cluster that the producer writes to.
        """
        link.identify(cluster_id)
        node = self.nodes[link.node_id]
        if at_home:
            node.backoff.reset()
            node.last_error = node.misrouted_to = None
        else:
            self.astray = True

    def strangers(self, home: str | None) -> list[Link]:
        """Return the connections that lead to a cluster other than the known one.

        Args:
            home: id of the known cluster.
        """
        strangers = [
            link
            for link in self.links.values()
            if link.identified and link.cluster_id is not None and link.cluster_id != home
        ]
        self.astray = bool(strangers)
        return strangers

    def at_home(self, home: str | None) -> bool:
        """Return whether any connection leads to the known cluster, whose id is `home`."""
        return any(
            link.identified and (link.cluster_id is None or link.cluster_id == home)
            for link in self.links.values()
        )

    def bootstrap_only(self) -> list[Link]:
        """Return the ready connections if all of them lead to bootstrap addresses, else none."""
        links = [link for link in self.links.values() if link.state is LinkState.READY]
        return links if all(link.node_id < 0 for link in links) else []

    def forget_cluster(self) -> None:
        """Forget the brokers of the old cluster, but not the bootstrap addresses."""
        self.nodes = {n: node for n, node in self.nodes.items() if n < 0}

    def overdue(self, now: float) -> Sequence[Leaving]:
        """Return the connections to close because their oldest request has timed out."""
        timeout, longest = self._config.request_timeout, self._config.delivery_timeout
        due: list[Link] = []
        for link in self.links.values():
            if link.outstanding:
                at = link.timeout_at(timeout, longest)
                if at is not None and now >= at:
                    due.append(link)
        if not due:
            return ()
        reason = f"no answer within request_timeout ({timeout:g} s)"
        return [Leaving(link, reason, errors.KafkaConnectionError(reason)) for link in due]

    def spare(self, now: float) -> Sequence[Leaving]:
        """Return the connections to close because they are not needed.

        These are the idle ones, and those to bootstrap addresses once a broker from metadata is
        connected. One that the broker throttles is kept: a new one would evade the quota.
        """
        quiet = [
            link
            for link in self.links.values()
            if not link.outstanding
            and link.state is LinkState.READY
            and now >= link.throttled_until
        ]
        if not quiet:
            return ()
        idle_after = self._config.connections_max_idle
        proper = any(
            link.node_id >= 0 and link.state is LinkState.READY and link.identified
            for link in self.links.values()
        )
        return [
            Leaving(link, "idle", None)
            for link in quiet
            if (proper and link.node_id < 0)
            or (idle_after is not None and now >= link.last_progress + idle_after)
        ]

    def drop(self, link: Link, error: Exception | None, now: float) -> list[Outstanding]:
        """Remove a connection that ended, and return its outstanding requests, oldest first.

        Args:
            link: the connection.
            error: why it ended; None if it was closed without an error.
            now: seconds.
        """
        never_up = link.state is LinkState.CONNECTING
        link.move(LinkEvent.LOST)
        del self.links[link.link_id]
        node = self.nodes[link.node_id]
        if node.link is link:
            node.link = None
        if error is not None or never_up:
            node.last_error = error
            if node.down_since is None:
                node.down_since = now
            if not any(each.state is LinkState.READY for each in self.links.values()):
                self.reach.failed(now)
            node.retry_at = now + node.backoff.next_delay()
        refused = isinstance(error, errors.AuthenticationFailedError)
        if refused and link.link_id >= self._first_to_count:
            # A refused certificate does not count towards `_REFUSALS`: certificates are read again
            # for each connection, so the certificate may be another one the next time.
            self._refused += not isinstance(error, errors.SslAuthenticationError)
        if not never_up:
            owed = link.outstanding.values()
            link.discovery.lost(
                v14_unanswered=any(r.version >= PRODUCE_WITH_WINDOW for r in owed), now=now
            )
            kinds = {request.kind for request in owed}
            node.question_lost = RequestKind.DESCRIBE_PRODUCERS in kinds
            node.limit_lost = RequestKind.TOPIC_LIMIT in kinds
        return list(link.outstanding.values())

    def forgive(self) -> None:
        """Note that the next connections use other credentials, which nobody has refused yet.

        Those that are being opened may have shown a broker the former ones already.
        """
        self._refused = 0
        self._first_to_count = self._next_link_id

    def shut_out(self, error: Exception | None) -> errors.AuthenticationFailedError | None:
        """Return the error if the brokers refuse the producer's credentials for good, else None.

        The result is None while a connection is up, before five refusals in a row, and for
        credentials that may differ the next time: those from a callable or a Kerberos ticket, and
        certificates, which are read again for each connection.
        """
        up = any(link.state is LinkState.READY for link in self.links.values())
        if up or self._refused < _REFUSALS or self._config.sasl_password is None:
            return None
        if isinstance(error, errors.SslAuthenticationError):
            return None
        return error if isinstance(error, errors.AuthenticationFailedError) else None

    def unreachable(self, now: float) -> errors.KafkaConnectionError | None:
        """Return why no broker can be reached, and since when; None if one can be."""
        return self.reach.failure((node.last_error for node in self.nodes.values()), now)

    def bootstrap_state(self, now: float) -> str:
        """Return the state of each bootstrap address, and since when, until one is known to answer.

        Args:
            now: seconds.
        """
        found = []
        for node in self.nodes.values():
            if node.node_id >= 0:
                continue
            if node.link is None:
                error = node.last_error
                why = "" if error is None else f": {reason_of(error)}"
                since = "" if node.down_since is None else f" for {now - node.down_since:.1f} s"
                state = f"no connection{since}{why}"
            elif node.link.state is LinkState.READY:
                state = f"connected, no answer for {now - node.link.last_progress:.1f} s"
            else:
                state = f"no greeting answered for {now - node.link.last_progress:.1f} s"
            found.append(f"{node.address}: {state}")
        return "; ".join(found)

    def bootstrap_failure(self) -> errors.KafkaError | None:
        """Return why no broker can be reached; None until every bootstrap address has failed.

        A refused authentication or a configuration error is returned at once.
        """
        failures = [node.last_error for node in self.nodes.values() if node.node_id < 0]
        for each in failures:
            # All bootstrap servers get the same credentials and certificates, so a refusal by one
            # of them is final.
            if isinstance(each, errors.AuthenticationFailedError | errors.ConfigError):
                # The copy has no traceback. Its cause, which is the same, keeps its own traceback,
                # which shows where a user's callable (for passwords or tokens) failed.
                return copy.copy(each)
        if any(error is None for error in failures):
            return None
        return self._none_answers([each for each in failures if each is not None])

    def _none_answers(self, failures: Sequence[Exception]) -> errors.KafkaError:
        """Return one error for all bootstrap addresses, with the reason why each of them failed.

        Its ``__cause__`` holds the errors of the operating system.
        """
        tried = ", ".join(node.address for node in self.nodes.values() if node.node_id < 0)
        reasons = "; ".join(map(reason_of, failures))
        named = next((e for e in failures if isinstance(e, errors.NotKafkaError)), failures[0])
        # Copied, because the constructor of a user's class of error may take something else.
        known = named if isinstance(named, errors.KafkaError) else errors.KafkaConnectionError()
        failure = copy.copy(known)
        failure.args = (f"Unable to bootstrap from {tried}: {reasons}",)
        below = [each.__cause__ or each for each in failures]
        failure.__cause__ = (
            below[0] if len(below) == 1 else BaseExceptionGroup("for each bootstrap address", below)
        )
        return failure

    def next_wake(self, now: float) -> float:
        """Return when a connection or an address needs attention, in seconds; infinity: never."""
        first = math.inf
        config = self._config
        for link in self.links.values():
            at = None
            if link.outstanding:
                at = link.timeout_at(config.request_timeout, config.delivery_timeout)
            elif link.state is LinkState.READY and config.connections_max_idle is not None:
                at = max(link.last_progress + config.connections_max_idle, link.throttled_until)
            if at is not None and at < first:
                first = at
            if now < link.throttled_until < first:
                first = link.throttled_until
        for node in self.nodes.values():
            if node.link is None and now < node.retry_at < first:
                first = node.retry_at
        return first

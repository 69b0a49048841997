"""What is known from outside of an engine, derived from what has happened to it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.core import ProducerCore
from aioidem._engine.links import LinkState
from aioidem._engine.requests import Outstanding
from aioidem._engine.suspicion import DEFAULT_EXPIRATION
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.broker_config import BrokerFacts
from aioidem.structs import DeliveryStatus

from .turned_answers import HOME
from .turned_bench import Engines

__all__ = ["Facts", "digest", "wrong_after_withdrawal"]

_REFUSALS: Final = 5
"""After so many refusals in a row a password counts as wrong, which ends the producer."""


class Facts:
    """What has happened to an engine, and what it must say of itself."""

    def __init__(self, pair: Engines) -> None:
        self._pair = pair
        self._wrong: list[str] = []
        # What has ended the producer; and whether something else may have ended it.
        self._fatal: errors.KafkaError | None = None
        self._may_be_fatal = False
        # Whether the home cluster is known; by broker, for how many seconds it remembers producers.
        self._known = False
        self._expirations: dict[int, float] = {}
        # How many connections in a row were refused; the first one that counts, since credentials
        # were renewed; and the newest connection.
        self._refusals = 0
        self._first_to_count = 0
        self._newest = 0

    def expect(self, what: str, told: object, expected: object) -> None:
        """Note what is wrong, if something is not what it must be."""
        if told != expected:
            self._wrong.append(f"{what}: {told!r}, not {expected!r}")

    # -- what happens ------------------------------------------------------------------------------

    def opened(self, number: int, version: int, level: int) -> None:
        """Note that a connection is up, and look at what the engine has noted."""
        core = self._pair.core
        link = core.connections.links[number]
        self._refusals = 0
        self.expect(f"connection {number}", link.state, LinkState.READY)
        told = link.plain_version, link.transaction_version
        self.expect("its versions of Produce and of transactions", told, (min(version, 13), level))
        latencies = core.meters.nodes[link.node_id].latencies
        self.expect(
            "it notes its latencies for the metrics", link.latencies is latencies, expected=True
        )

    def lost(self, number: int, error: Exception | None) -> None:
        """Note that a connection has ended, and look at what the engine has noted."""
        core = self._pair.core
        self._newest = max(self._newest, number)
        self.expect(
            f"lost connection {number} is there", number in core.connections.links, expected=False
        )
        self.expect("metadata is wanted after a loss", core.metadata.wanted, expected=True)
        if not isinstance(error, errors.AuthenticationFailedError):
            return
        self._refusals += number >= self._first_to_count
        up = any(link.state is LinkState.READY for link in core.connections.links.values())
        secret = core.config.sasl_password is not None
        if secret and not up and self._refusals >= _REFUSALS:
            self.fatal(error)

    def renewed(self) -> None:
        """Note that the next connections use other credentials."""
        self._refusals = 0
        self._first_to_count = max([self._newest, *self._pair.links]) + 1

    def answered(self, step: steps.Request, answer: Any) -> None:
        """Note what an answer says."""
        if isinstance(step, steps.FetchMetadata):
            self._known |= answer.cluster_id == HOME
        if isinstance(answer, BrokerFacts) and answer.expiration is not None:
            self._expirations[step.node_id] = answer.expiration  # type: ignore[union-attr]

    def fatal(self, error: errors.KafkaError) -> None:
        """Note what has ended the producer; the first reason counts."""
        if self._fatal is None and not self._may_be_fatal:
            self._fatal = error

    def may_be_fatal(self) -> None:
        """Note that the producer may have ended for another reason."""
        self._may_be_fatal |= self._fatal is None

    def refused(self, error: object) -> None:
        """Look at the error with which a record was refused."""
        core, status = self._pair.core, getattr(error, "status", None)
        if core.fatal_error is not None:
            self.expect("a record after the end", type(error), type(core.fatal_error))
            self.expect("its status", str(status), "DeliveryStatus.NOT_WRITTEN")

    def wait_for_room(self) -> tuple[list[int], list[int]]:
        """Let callers wait for more room than there is; return who is woken, and who waits."""
        woken: list[int] = []
        waiting: list[int] = []
        budget = self._pair.core.budget
        if budget.try_take(1):
            waiting += (1, 2)
            for number in waiting:
                budget.wait(budget.capacity, partial(woken.append, number))
            self.expect("who waits for room", (woken, budget.waiting), ([], 2))
        return woken, waiting

    # -- what the engine says ----------------------------------------------------------------------

    def wrong(self) -> Iterator[str]:
        """Yield what the engine says of itself against what has happened."""
        pair, core, expect = self._pair, self._pair.core, self.expect
        self._newest = max([self._newest, *pair.links])
        unsettled = len(pair.unsettled)
        expect("records without an outcome", core.unsettled, unsettled)
        expect("changes of the identity", core.epoch_bumps, pair.changes)
        counted = core.counters
        for status, count in (
            (DeliveryStatus.ACKED, counted.records_acked),
            (DeliveryStatus.NOT_WRITTEN, counted.records_not_written),
            (DeliveryStatus.UNKNOWN, counted.records_unknown),
        ):
            rows = [row for row in pair.rows if row.status is status]
            expect(f"{status.value} records counted", count, len(rows))
        expect("metrics are summed up in time", core.meters.due_at > pair.polled_at, expected=True)
        expect("delivery timeout", core.meters.delivery_timeout, pair.config.delivery_timeout)
        expect("the cluster is known", core.knows_cluster, self._known)
        expect("seconds that brokers remember", core.expiration, self._expiration())
        if not self._may_be_fatal:
            expect("what has ended it", str(core.fatal_error), str(self._fatal))
        if core.fatal_error is not None:
            expect("records after the end", unsettled, 0)
        expect("open connections", sorted(core.connections.links), sorted(pair.links))
        owed = [token for link in core.connections.links.values() for token in link.outstanding]
        expect("requests without an answer", sorted(owed), sorted(pair.waiting))
        flying = [
            sum(len(data) for topic in step.topics for _, data in topic.partitions)
            for step in pair.waiting.values()
            if isinstance(step, steps.SendProduce)
        ]
        expect("bytes of requests", core.budget.copies, sum(flying))
        if not unsettled:
            expect("bytes of records", core.budget.used, 0)
        self._look_at_words(core)
        for (topic, index), state in core.partitions.items():
            out = [
                step.token
                for step in pair.waiting.values()
                if isinstance(step, steps.SendProduce)
                for data in step.topics
                if (data.name, data.topic_id) == (topic, state.topic_id)
                if any(number == index for number, _ in data.partitions)
            ]
            expect(f"batches of {topic}-{index} in flight", state.batches.outstanding, len(out))
        yield from self._wrong

    def _expiration(self) -> float:
        said = self._pair.config.producer_id_expiration
        if said is not None:
            return said
        return min(self._expirations.values(), default=DEFAULT_EXPIRATION)

    def _look_at_words(self, core: ProducerCore) -> None:
        """Look at what a caller is told whose call takes too long."""
        now, up = self._pair.now, any(self._pair.links.values())
        obstacle = core.obstacle(now)
        busy = any(state.unsettled for state in core.partitions.values())
        if up:
            self.expect("an obstacle is told", obstacle is not None, busy)
        if obstacle is not None and up:
            named = "without an outcome" in str(obstacle)
            self.expect(f"{obstacle} names records without an outcome", named, expected=True)
        if self._known:
            self.expect("a failure of all servers", core.bootstrap_failure(), None)
        state = core.bootstrap_state(now)
        servers = [f"{host}:{port}: " in state for host, port in core.config.bootstrap_servers]
        self.expect(f"all servers are named in {state!r}", all(servers), expected=True)
        failed = core.connections.bootstrap_failure()
        if not self._known:
            self.expect("the failure of all servers", repr(core.bootstrap_failure()), repr(failed))


def digest(core: ProducerCore) -> object:
    """Return what may not change when nothing happens."""
    links = [
        (link.link_id, link.state, [*link.outstanding], link.last_progress, link.throttled_until)
        for link in core.connections.links.values()
    ]
    kept = core.metadata.wanted, core.metadata.in_flight, core.fatal_error, core.identity_error
    return links, kept, core.unsettled, core.epoch_bumps, core.transactions.state


def wrong_after_withdrawal(
    core: ProducerCore, step: steps.Request, asked: Outstanding, error: errors.KafkaError
) -> Iterator[str]:
    """Yield what the engine has not noted of a request that was not sent, for lack of a version.

    Args:
        core: the engine.
        step: the request.
        asked: what the engine kept of it.
        error: why it was not sent.
    """
    link = core.connections.links[step.link_id]
    if step.token in link.outstanding:
        yield f"{step} was withdrawn, and still waits for an answer"
    right = True
    match step:
        case steps.DescribeTopicConfig():
            right = "does not offer DescribeConfigs" in link.discovery.reason
        case steps.DescribeTopicLimit():
            limit = asked.topic_limit
            right = limit is not None and limit.told is None and limit.unused
        case steps.AskProducers():
            right = not link.knows_producers
        case steps.ReadBack():
            right = not link.may_read
        case steps.InitProducerId():
            right = core.identity_error is error and not core.unsettled
            right &= core.current_identity is None
        case steps.FetchMetadata():
            right = core.metadata.wanted and not core.metadata.in_flight
        case steps.FindCoordinator() | steps.InitTransactions() | steps.EndTransaction():
            right = core.transactions.state is not TransactionState.OPEN
        case _:
            pass
    if not right:
        yield f"{step} was withdrawn for lack of a version, and the engine has not taken note"

"""The acting parts of a producer's engine, for drills that call each of them by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

from aioidem._config import ProducerConfig
from aioidem._engine.accusations import Accusations
from aioidem._engine.batch import Batch
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.core import ProducerCore
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.metadata_requests import MetadataRequests
from aioidem._engine.partitions import Partitions
from aioidem._engine.produce import ProduceRequests
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import Step
from aioidem._protocol.metadata import BrokerAddress
from aioidem._records import build_batch

__all__ = ["EngineParts", "act", "addresses", "whole_batch"]


def addresses(count: int) -> list[BrokerAddress]:
    """Return the addresses of some brokers, which count from 0."""
    return [BrokerAddress(node_id, f"b{node_id}", 9092) for node_id in range(count)]


def act(
    dice: Random,
    checked: Sequence[Callable[[], str | None]],
    events: Sequence[Callable[[], None]],
) -> str | None:
    """Do one of several things at random, and return what is wrong with it; None if nothing is.

    Args:
        dice: chooses.
        checked: actions that are compared with what they should do.
        events: what happens besides.
    """
    at = dice.randrange(len(checked) + len(events))
    if at < len(checked):
        return checked[at]()
    events[at - len(checked)]()
    return None


@cache
def _bytes_of(count: int, identity: ProducerIdentity, base: int, stamp_ms: int) -> bytes:
    records = [PendingRecord(None, b"v", (), stamp_ms, None, 10) for _ in range(count)]
    return bytes(
        build_batch(
            records,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=base,
        ).data
    )


def whole_batch(
    identity: ProducerIdentity, ordinal: int, base: int, count: int = 1, stamp_ms: int = 0
) -> Batch:
    """Return a sealed batch of some records with its bytes, which was not sent."""
    records = [PendingRecord(None, b"v", (), stamp_ms, None, 10) for _ in range(count)]
    return Batch(
        ordinal=ordinal,
        records=records,
        data=_bytes_of(count, identity, base, stamp_ms),
        identity=identity,
        base=base,
        deadline=1e9,
        max_timestamp_ms=stamp_ms,
    )


class EngineParts:
    """The parts of one engine, made anew so that a drill can call them in any order.

    They share the view of the cluster, the connections and the outcomes of a `ProducerCore`, which
    itself does nothing.
    """

    def __init__(self, config: ProducerConfig, draw: Callable[[], float]) -> None:
        core = ProducerCore(config, random=draw)
        core.outcomes.take_events()  # its own parts have told something already
        self.core = core
        self.cluster, self.connections = core.cluster, core.connections
        self.outcomes, self.identity = core.outcomes, core.identity
        self.metadata, self.transactions = core.metadata, core.transactions
        self.accusations = Accusations()
        self.requests = RequestLedger(core.connections, core.budget)
        self.effects = Effects(
            core.outcomes, core.metadata, core.identity, core.transactions, self.accusations
        )
        self.partitions = Partitions(config, draw, core.cluster, core.connections, self.effects)
        self.accumulator = RecordAccumulator(
            config,
            draw,
            core.cluster,
            core.metadata,
            self.partitions,
            core.outcomes,
            self.effects,
            core.transactions,
        )
        self.inquiries = BrokerInquiries(config, self.partitions, self.requests, core.outcomes)
        self.questions = MetadataRequests(
            config,
            core.cluster,
            core.connections,
            core.metadata,
            self.accusations,
            self.accumulator,
            self.requests,
            core.identity,
            core.outcomes,
            core.transactions,
        )
        self.doubt = DoubtResolution(
            config,
            core.cluster,
            core.connections,
            self.inquiries,
            self.requests,
            core.outcomes,
            self.effects,
        )
        self.produce = ProduceRequests(
            config,
            core.cluster,
            core.connections,
            self.accumulator,
            self.partitions,
            self.inquiries,
            self.requests,
            core.identity,
            core.outcomes,
            self.effects,
            core.transactions,
        )

    def grant(self, producer_id: int, epoch: int) -> ProducerIdentity:
        """Grant the producer an identity."""
        self.identity.renew(producer_id, epoch)
        return ProducerIdentity(producer_id, epoch)

    def connect(self, node_id: int, version: int, now: float, *, home: bool = True) -> Link | None:
        """Open a connection to a broker; return None if there is one, or none may be opened yet.

        Args:
            node_id: the broker.
            version: the highest Produce version that it supports.
            now: seconds.
            home: whether the broker names its cluster at once.
        """
        self.requests.begin_poll()
        before = len(self.connections.links)
        self.requests.link_to(node_id, now)
        if len(self.connections.links) == before:
            return None
        link = list(self.connections.links.values())[-1]
        self.connections.opened(link, version, now)
        if home:
            self.connections.identified(link, self.cluster.cluster_id, at_home=True)
        return link

    def lose(self, link: Link, now: float, error: Exception | None = None) -> None:
        """End a connection, and account for its requests as `LostLinks` does."""
        for request in self.connections.drop(link, error, now):
            self.requests.lost(request)
            self._lost(request, now)

    def _lost(self, request: Outstanding, now: float) -> None:
        """Tell the part that made a request that its answer is lost."""
        state = request.subject
        if request.kind is RequestKind.PRODUCE:
            self.produce.on_lost(request, written=True, now=now)
        elif request.kind is RequestKind.METADATA:
            self.metadata.failed(now)
        elif state is None:
            return
        elif request.kind is RequestKind.DESCRIBE_PRODUCERS:
            state.ladder.on_producers(None)
        elif state.read_back.takes(request.token):
            state.lookup.end()

    def poll(self) -> list[Step]:
        """Begin a new list of steps, and return it; the next steps are added to it."""
        return self.requests.begin_poll()

"""Connect to a cluster as a producer would, and gather facts about it.

The bootstrap servers come first: every IP address of every name, twice, because several clusters
may be behind one name. One that answers names the brokers and the topics. Then every broker is
asked at the address that it advertises, all at once, and after them one broker what needs a single
answer: a producer id, the coordinator, the controller's clock. The probe, which writes, comes last.

Invariants: facts are kept as they are learned, so that an examination that runs out of time returns
what it has, and says what it has not finished.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import anyio

from aioidem._admin.asking import Place
from aioidem._config import ProducerConfig
from aioidem._doctor.facts import (
    BrokerSeen,
    ClockSeen,
    Configs,
    Facts,
    Failure,
    FailureKind,
    TopicSeen,
    Tried,
    WantedRate,
    shown,
)
from aioidem._doctor.permissions import RETRIABLE
from aioidem._doctor.probing import Probe
from aioidem._doctor.questions import (
    MetadataSeen,
    configs_asked,
    configs_seen,
    metadata_asked,
    metadata_seen,
    quorum_asked,
    quorum_clock,
)
from aioidem._doctor.session import Bounds, Session, visit
from aioidem._protocol.find_coordinator import (
    CoordinatorKey,
    coordinator_answer,
    coordinator_request,
)
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.producer_id import producer_id_answer, producer_id_request
from aioidem._protocol.versions import ApiKey

__all__ = ["Wanted", "examine"]

_MOST_ADDRESSES: Final = 8
"""The most IP addresses of one name that are tried."""
_MOST_AT_ONCE: Final = 32
_MOST_BROKERS: Final = 300
"""The most brokers that are asked: a cluster has fewer, but a hostile one may name any number."""
_ROUND_TRIPS: Final = 5
_COORDINATOR_ATTEMPTS: Final = 6
_TELEMETRY: Final = 71
"""GetTelemetrySubscriptions (KIP-714), which a broker offers if it takes clients' metrics."""


class Wanted(NamedTuple):
    """What the user wants to be examined.

    Attributes:
        config: the producer's options.
        topics: the topics that it writes to.
        rate: the rate that it has to reach, if one is given.
        write_to: the topic that may be written to, for the probe; None: nothing is written.
        timeout: seconds for the whole examination.
    """

    config: ProducerConfig
    topics: tuple[str, ...] = ()
    rate: WantedRate | None = None
    write_to: str | None = None
    timeout: float = 30.0


async def examine(wanted: Wanted, wall_clock: Callable[[], float] = time.time) -> Facts:
    """Gather facts about a cluster, for at most `wanted.timeout` seconds.

    Args:
        wanted: what to examine.
        wall_clock: returns seconds since the epoch.

    Raises:
        ConfigError: A file of the TLS options cannot be loaded.
    """
    examination = _Examination(wanted, wall_clock)
    with anyio.move_on_after(wanted.timeout):
        await examination.run()
    return examination.facts()


class _Examination:
    def __init__(self, wanted: Wanted, wall_clock: Callable[[], float]) -> None:
        self._wanted = wanted
        self._config = wanted.config
        self._wall_clock = wall_clock
        self._bounds = Bounds.of(wanted.config, wanted.timeout)
        self._tried: list[Tried] = []
        self._metadata: MetadataSeen | None = None
        self._brokers: dict[int, BrokerSeen] = {}
        self._producer_id_error: int | None = None
        self._transactional_error: int | None = None
        self._clocks: list[ClockSeen] = []
        self._probe: Probe | None = None
        self._running: list[str] = []

    def facts(self) -> Facts:
        """Return what is known now."""
        clocks = [*self._clocks]
        if self._probe is not None and self._probe.clock is not None:
            clocks.append(self._probe.clock)
        return Facts(
            config=self._config,
            tried=(*self._tried,),
            brokers=tuple(self._brokers[each] for each in sorted(self._brokers)),
            topics=self._topics,
            wanted=self._wanted.rate,
            producer_id_error=self._producer_id_error,
            transactional_error=self._transactional_error,
            clocks=(*clocks,),
            probe=None if self._probe is None else self._probe.seen,
            unfinished=(*self._running,),
            timeout=self._wanted.timeout,
        )

    @property
    def _topics(self) -> tuple[TopicSeen, ...]:
        """The topics that the user named, as the cluster described them."""
        described = () if self._metadata is None else self._metadata.topics
        return tuple(each for each in described if each.name in self._wanted.topics)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Note what is being done; it counts as unfinished if it is cancelled."""
        self._running.append(name)
        yield
        self._running.remove(name)

    async def run(self) -> None:
        """Ask everything, in the order that the module's docstring gives."""
        async with anyio.create_task_group() as tasks:
            for host, port in self._config.bootstrap_servers:
                tasks.start_soon(self._bootstrap, Place(host, port))
        found = self._metadata
        if found is None:
            return
        # Leaders of the topics come first.
        named = sorted(found.brokers, key=lambda each: not self._leads_any(each.node_id))
        for each in named[:_MOST_BROKERS]:
            seen = BrokerSeen(each.node_id, Place(each.host, each.port), each.rack)
            self._brokers[each.node_id] = seen
        limit = anyio.CapacityLimiter(_MOST_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for each in named[:_MOST_BROKERS]:
                tasks.start_soon(self._broker, each, limit)
        if len(named) > _MOST_BROKERS:
            self._running.append(f"{len(named) - _MOST_BROKERS} more brokers")
        server = self._answering()
        if server is None:
            return
        questions = f"questions to {shown(server)}"
        with self._step(questions):
            failure = await visit(self._config, server, self._bounds, self._single_questions)
        if failure is not None:
            self._running.append(f"{questions} ({failure.text})")
        if self._wanted.write_to is not None:
            with self._step(f"the records written to {self._wanted.write_to}"):
                await self._write_to(self._wanted.write_to, server)

    def _leads_any(self, node: int) -> bool:
        return any(_leads(each, node) for each in self._topics)

    def _answering(self) -> Place | None:
        """Return the address of a broker that answers: of the cluster, or else of the bootstrap."""
        brokers = [each.place for each in self._brokers.values() if each.failure is None]
        servers = [each.place for each in self._tried if each.failure is None]
        return next(iter((*brokers, *servers)), None)

    # -- bootstrap servers -------------------------------------------------------------------------

    async def _bootstrap(self, place: Place) -> None:
        with self._step(f"bootstrap server {shown(place)}"):
            try:
                with anyio.fail_after(self._bounds.opening):
                    addresses = await _addresses(place)
            except (OSError, ValueError) as error:  # TimeoutError is an OSError
                kind = FailureKind.NAME_NOT_KNOWN
                text = f"{shown(place)}: {getattr(error, 'strerror', None) or 'no answer of DNS'}"
                self._tried.append(Tried(place, None, failure=Failure(kind, text)))
                return
            async with anyio.create_task_group() as tasks:
                for each in addresses[:_MOST_ADDRESSES]:
                    tasks.start_soon(self._try_twice, place, each)

    async def _try_twice(self, place: Place, address: str) -> None:
        for _ in range(2):
            tried = await self._try(place, address)
            self._tried.append(tried)
            if tried.failure is not None:
                return

    async def _try(self, place: Place, address: str) -> Tried:
        clusters: list[str | None] = []

        async def use(session: Session) -> None:
            make = partial(metadata_asked, topics=self._wanted.topics)
            seen = metadata_seen(await session.ask(ApiKey.METADATA, make))
            clusters.append(seen.cluster_id)
            if self._metadata is None:
                self._metadata = seen

        failure = await visit(self._config, place, self._bounds, use, address=address)
        return Tried(place, address, clusters[0] if clusters else None, failure)

    # -- brokers -----------------------------------------------------------------------------------

    async def _broker(self, named: BrokerAddress, limit: anyio.CapacityLimiter) -> None:
        place, node = Place(named.host, named.port), named.node_id
        async with limit:
            with self._step(f"broker {node} ({shown(place)})"):
                failure = await visit(
                    self._config, place, self._bounds, partial(self._ask_broker, node)
                )
        if failure is not None:
            self._learn(node, failure=failure)

    def _learn(self, node: int, **news: Any) -> None:
        self._brokers[node] = self._brokers[node]._replace(**news)

    async def _ask_broker(self, node: int, session: Session) -> None:
        versions = session.versions
        self._learn(
            node,
            produce=versions.offered.get(ApiKey.PRODUCE),
            features=versions.features,
            telemetry=_TELEMETRY in versions.offered,
        )
        trips: list[float] = []
        for _ in range(_ROUND_TRIPS):
            make = partial(metadata_asked, topics=())
            seen = metadata_seen(await session.ask(ApiKey.METADATA, make))
            trips.append(session.round_trip)
            self._learn(node, cluster_id=seen.cluster_id, round_trips=(*trips,))
        if not versions.supports(ApiKey.DESCRIBE_CONFIGS):
            return
        led = [each.name for each in self._topics if _leads(each, node)]
        asked = await session.ask(
            ApiKey.DESCRIBE_CONFIGS, partial(configs_asked, node_id=node, topics=led)
        )
        own, topics = configs_seen(asked)
        self._learn(node, configs=own, topic_configs=topics)

    # -- questions with a single answer ------------------------------------------------------------

    async def _single_questions(self, session: Session) -> None:
        config, versions = self._config, session.versions
        key = config.transactional_id
        # With its transactional id, InitProducerId would fence a producer that runs; without it,
        # brokers may want another permission than the producer needs.
        idempotent = config.enable_idempotence and key is None
        if idempotent and versions.supports(ApiKey.INIT_PRODUCER_ID):
            version = versions.choose(ApiKey.INIT_PRODUCER_ID)
            answer = await session.ask(
                ApiKey.INIT_PRODUCER_ID, lambda _: producer_id_request(version)
            )
            self._producer_id_error = producer_id_answer(answer).error_code
        if key is not None and versions.supports(ApiKey.FIND_COORDINATOR):
            await self._find_coordinator(session, key)
        if versions.supports(ApiKey.DESCRIBE_QUORUM):
            sent_at = self._wall_clock()
            answer = await session.ask(ApiKey.DESCRIBE_QUORUM, quorum_asked)
            self._note_clock(quorum_clock(answer), sent_at, self._wall_clock())

    async def _find_coordinator(self, session: Session, key: str) -> None:
        """Ask for the transaction coordinator, again while the answer is an error that passes.

        The first time in a cluster, brokers first have to create the coordinators' topic.
        """
        config, version = self._config, session.versions.choose(ApiKey.FIND_COORDINATOR)
        pause = config.retry_backoff
        for attempt in range(_COORDINATOR_ATTEMPTS):
            if attempt:
                await anyio.sleep(pause)
                pause = min(2 * pause, config.retry_backoff_max)
            answer = await session.ask(
                ApiKey.FIND_COORDINATOR,
                lambda _: coordinator_request(version, key, CoordinatorKey.TRANSACTION),
            )
            self._transactional_error = coordinator_answer(answer, key).error_code
            if self._transactional_error not in RETRIABLE:
                return

    def _note_clock(
        self, controller: tuple[int, float] | None, sent_at: float, answered_at: float
    ) -> None:
        if controller is None:
            return
        node, seconds = controller
        # The time is in milliseconds, and was taken between the request and the answer.
        margin = (answered_at - sent_at) / 2 + 0.001
        whose = f"the clock of the active controller ({node})"
        self._clocks.append(ClockSeen(whose, seconds - (sent_at + answered_at) / 2, margin))

    async def _write_to(self, topic: str, server: Place) -> None:
        configs: Mapping[str, Configs] = {}
        for broker in self._brokers.values():
            configs = {**broker.topic_configs, **configs}
        known = configs.get(topic, Configs())
        self._probe = Probe(self._config, topic, known, self._bounds, self._wall_clock)
        await self._probe.run(server)


def _leads(topic: TopicSeen, node: int) -> bool:
    return any(part.leader == node for part in topic.partitions)


async def _addresses(place: Place) -> list[str]:
    """Return the IP addresses of a host name, each once, in the resolver's order.

    Raises:
        OSError: The name cannot be looked up.
        ValueError: The name cannot be encoded for DNS.
    """
    found = await anyio.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))

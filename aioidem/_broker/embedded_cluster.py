"""EmbeddedCluster: a Kafka cluster in this process.

It is for tests and demos, not for production. Logs are in RAM and bounded: if a partition's log is
larger than ``retention.bytes`` (256 MiB by default), its oldest batches are deleted. Every client
that may connect may do everything, and nothing survives the process. `ClusterState` decides what
clients see; `ClusterServer` has the connections, and `ClusterControls` what a test can do to the
cluster.

Invariants
    Leaving the ``async with`` ends every connection and listener.
    A request that a broker fails on ends its own connection only. It is logged at once, and raised
    when the ``async with`` is left, so that no test passes that met a defect of this package.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from aioidem._broker.batch import RefusedError
from aioidem._broker.configs import BROKER_CONFIGS
from aioidem._broker.controls import ClusterControls
from aioidem._broker.link import can_be
from aioidem._broker.requests import Pending
from aioidem._broker.security import BrokerSecurity
from aioidem._broker.server import ClusterServer
from aioidem._broker.state import ClusterState
from aioidem._broker.threaded import ThreadedCluster
from aioidem._broker.topology import FIRST_RETAINING_VERSION
from aioidem.errors import ConfigError, InternalError

__all__ = ["EmbeddedCluster"]

logger = logging.getLogger("aioidem.broker")


class EmbeddedCluster(ClusterControls):
    """A Kafka cluster in this process that real clients can use. It belongs to one event loop.

    ``async with EmbeddedCluster() as cluster:`` starts the brokers; `bootstrap_servers` is where
    they listen. Broker ids are 0, 1, ...; while all brokers run, partition p of a new topic is led
    by broker p mod ``brokers``.

    Args:
        brokers: How many brokers.
        retain: How many batches brokers remember per producer and partition (KIP-1269), at least 5.
            Give one number for all brokers, or a mapping by broker id.
        rtt: Round-trip time of every connection, in seconds.
        bandwidth: Bandwidth of every connection each way, in bytes per second; None:
            unlimited.
        produce_versions: Highest Produce version, one for all brokers or a mapping by broker id.
            With 13 and less a broker does not know KIP-1269: it remembers 5 batches, whatever is
            configured.
        sequence_range: Brokers implement KIP-758 with this range: they remember one batch, answer
            DUPLICATE_SEQUENCE_NUMBER to a batch that begins less than the range behind the last
            sequence, and speak Produce v13 at most. None: they do not know KIP-758.
        transaction_version: Level of the feature ``transaction.version``, by which clients choose
            the transaction protocol: 2 for KIP-890 (Kafka 4), 0 for the protocol before it. At
            level 2 brokers serve both protocols.
        transport: "tcp" on 127.0.0.1, or "memory" (clients then use `connector`).
        ports: TCP ports by broker; 0 takes a free one.
        auto_create_topics: Create a topic when a client asks for the Metadata of an unknown one.
        default_partitions: Partitions of a topic that is created without their number.
        default_replication: Replicas of a topic that is created without their number.
        configs: Cluster-wide broker configs by their Kafka names.
        seed: Seed of cluster id and topic ids. Two clusters with different seeds differ in these
            ids, but both hand out the same producer ids, as two real clusters do.
        security: TLS and SASL of every broker; None: every connection is accepted.
        wall_clock: Returns seconds since the epoch, for timestamps and expiry.

    Raises:
        ConfigError: No broker would start with the given values.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        retain: int | Mapping[int, int] = 5,
        rtt: float = 0.0,
        bandwidth: float | None = None,
        produce_versions: int | Mapping[int, int] = FIRST_RETAINING_VERSION,
        sequence_range: int | None = None,
        transaction_version: Literal[0, 1, 2] = 2,
        transport: Literal["tcp", "memory"] = "tcp",
        ports: Sequence[int] = (),
        auto_create_topics: bool = True,
        default_partitions: int = 1,
        default_replication: int = 1,
        configs: Mapping[str, str] | None = None,
        seed: int = 0,
        security: BrokerSecurity | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        settings = {
            "auto.create.topics.enable": "true" if auto_create_topics else "false",
            "num.partitions": str(default_partitions),
            "default.replication.factor": str(default_replication),
            **(configs or {}),
        }
        if brokers < 1 or not can_be((rtt,), bandwidth):
            raise ConfigError(
                f"brokers={brokers}, rtt={rtt}, bandwidth={bandwidth}: brokers must be 1 or "
                "more, rtt finite and 0 or more, and bandwidth more than 0, or None"
            )
        try:
            self._state = ClusterState(
                brokers=brokers,
                retain=retain,
                produce_versions=produce_versions,
                configs={
                    name: value
                    for name, value in settings.items()
                    if name not in BROKER_CONFIGS or value != BROKER_CONFIGS[name].default
                },
                rtt=rtt,
                bandwidth=bandwidth,
                seed=seed,
                encode=True,
                sequence_range=sequence_range,
                security=security,
                transaction_version=transaction_version,
            )
        except RefusedError as refusal:
            raise ConfigError(refusal.message) from None
        self._server = ClusterServer(
            self._state,
            transport=transport,
            ports=ports,
            security=security or BrokerSecurity(),
            wall_clock=wall_clock,
        )
        self._stopped_clean: dict[int, bool] = {}
        self._state.on_failure = self._on_failure
        self._failure: InternalError | None = None

    @classmethod
    def in_thread(cls, **options: Any) -> ThreadedCluster:
        """Return a cluster that runs in a thread of its own, for clients that block their thread.

        ``with EmbeddedCluster.in_thread() as cluster:`` starts the brokers. The returned object has
        the methods of this class, as plain functions that any thread may call.

        Args:
            options: Options of this class. A wrong value is reported when the cluster starts.

        Raises:
            TypeError: There is no such option.
        """
        inspect.signature(cls).bind(**options)
        return ThreadedCluster(functools.partial(cls, **options))

    def __repr__(self) -> str:
        state = "running" if self._server.running else "not running"
        return (
            f"<EmbeddedCluster {state} brokers={len(self._state.brokers)} "
            f"topics={len(self._state.topics)}>"
        )

    async def __aenter__(self) -> Self:
        """Start every broker."""
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop every broker at once; clients see their connections end.

        Raises:
            InternalError: A broker failed on a request. It is not raised if the ``async with``
                block itself raised an exception.
        """
        await self._server.aclose()
        failure, self._failure = self._failure, None
        if failure is not None and error is None:
            raise failure

    def _on_failure(self, pending: Pending, error: Exception) -> None:
        request = f"{type(pending.request).__name__} v{pending.api_version}"
        text = (
            f"broker {pending.connection.broker_id} failed on a {request} of the client "
            f"{pending.client_id!r}, and ended its connection: {error!r}. Unless a hook of "
            "`intercept` made the answer, this is a defect of aioidem.broker: please report it"
        )
        logger.error("%s", text, exc_info=error)
        if self._failure is None:
            self._failure = InternalError(text)
            self._failure.__cause__ = error

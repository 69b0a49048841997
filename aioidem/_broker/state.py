"""The simulated Kafka cluster, without sockets: its brokers, topics and connections.

`ClusterServer` connects it to sockets for the embedded cluster of tests and demos, and
`VirtualCluster` runs it on a virtual clock. It is a discrete-event machine with time as an
argument. Requests go in with `ClusterState.submit`, time goes in with `ClusterState.advance`, and
what is due for the clients comes out of `advance` as `Delivery` objects in order; `next_due` says
when to call again. There is no event loop, no clock and no randomness but the seed: the same calls
give the same deliveries.

Times: ``now`` is in seconds on any monotonic scale, ``wall_ms`` is the brokers' wall clock in
milliseconds since the epoch.

`ClusterState` extends `Cluster`, on which the handlers of requests work. It adds `RequestChannel`,
through which requests and answers pass, and `ProducerExpiry`. It also makes the changes that
concern several of these parts, such as stopping a broker.

Invariants
    Expired producers are looked for at fixed intervals. Such a check comes before every event that
    is due later than the check.

Memory: the cluster is for tests and demos, so logs are in RAM, once for all replicas, and bounded
by ``retention.bytes`` (256 MiB per partition unless set). Producer state is bounded only by its
expiry, and the queue of a connection only by how many requests its client sends without waiting.

Rejected
    A task per request, which sleeps until its answer is due: simulations on a virtual clock would
    then need a scheduler of tasks, and the same seed would not always give the same run.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.configs import DEFAULT_RETAIN
from aioidem._broker.entities import Entity
from aioidem._broker.partition import Partition
from aioidem._broker.producer_expiry import ProducerExpiry
from aioidem._broker.request_channel import RequestChannel
from aioidem._broker.requests import Connection, Delivery
from aioidem._broker.security import BrokerSecurity
from aioidem._broker.topology import FIRST_RETAINING_VERSION, Broker, Topology
from aioidem._broker.verdicts import note_read, note_unanswered
from aioidem._broker.versions import announced, serves

__all__ = ["ClusterState"]


class ClusterState(Cluster):
    """All brokers of one cluster and everything they remember, with their connections.

    Args:
        brokers: How many brokers; their ids are 0, 1, ...
        retain: ``log.producer.state.batches.to.retain``, of all brokers or by broker id.
        produce_versions: Highest Produce version, of all brokers or by broker id; with 14 and up a
            broker implements KIP-1269.
        configs: Further cluster-wide broker configs.
        rtt: Round-trip time of each new connection, in seconds.
        bandwidth: Bandwidth of each new connection, in bytes per second each way; None: unlimited.
        seed: Seed of the cluster id and the topic ids.
        encode: Encode each answer when it is made, and not when it is due to the client. On a link
            with a bandwidth that is always done, because the delay depends on the answer's size.
        sequence_range: Brokers implement KIP-758 with this range, in records: they remember one
            batch of a producer, and speak Produce v13 at most. None: brokers recognise a retry by
            the last batches of a producer, which they remember.
        security: How clients authenticate; None: every connection is accepted.
        transaction_version: Level of the feature ``transaction.version``: 2 for KIP-890, else 0 or
            1.
        first_connection_id: Id of the first connection; the next ones count up from it.

    Raises:
        RefusedError: INVALID_CONFIG for a config value with which no broker would start.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        retain: int | Mapping[int, int] = DEFAULT_RETAIN,
        produce_versions: int | Mapping[int, int] = FIRST_RETAINING_VERSION,
        configs: Mapping[str, str] | None = None,
        rtt: float = 0.0,
        bandwidth: float | None = None,
        seed: int = 0,
        encode: bool = False,
        sequence_range: int | None = None,
        security: BrokerSecurity | None = None,
        transaction_version: int = 2,
        first_connection_id: int = 1,
    ) -> None:
        topology = Topology(
            brokers=brokers,
            retain=retain,
            produce_versions=produce_versions,
            configs=configs,
            seed=seed,
            sequence_range=sequence_range,
        )
        super().__init__(
            topology,
            transaction_version=transaction_version,
            rtt=rtt,
            bandwidth=bandwidth,
            security=security,
        )
        self._expiry = ProducerExpiry(topology, self.schedule)
        self._channel = RequestChannel(self, encode=encode, first_id=first_connection_id)

    # -- time and traffic ------------------------------------------------------------------------

    def connect(self, broker_id: int) -> Connection:
        """Open a connection to a broker.

        Raises:
            ConnectionRefusedError: The broker is stopped.
        """
        if not self.brokers[broker_id].online:
            raise ConnectionRefusedError(f"broker {broker_id} is stopped")
        return self._channel.connect(broker_id)

    def submit(
        self,
        connection: Connection,
        request: Entity,
        *,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        now: float,
        wall_ms: int,
        size: int = 0,
    ) -> None:
        """Take a request that was read from a socket; its answer comes out of `advance`.

        Args:
            connection: Connection it was read from.
            request: Body of the request, as kio's entity.
            api_key: API in the header.
            api_version: Version in the header.
            correlation_id: Correlation id in the header.
            client_id: Client id in the header.
            now: When it was read, in seconds; it reaches the broker after the link's delay.
            wall_ms: The wall clock at ``now``, in ms since the epoch.
            size: Bytes of the frame, for links with a bandwidth.
        """
        self._set_clock(now, wall_ms)
        self._channel.submit(
            connection,
            request,
            api_key=api_key,
            api_version=api_version,
            correlation_id=correlation_id,
            client_id=client_id,
            now=now,
            size=size,
        )

    def disconnect(self, connection: Connection) -> None:
        """Note that the client closed a connection; requests that were read are still served."""
        self._channel.disconnect(connection)

    def advance(self, now: float, wall_ms: int) -> list[Delivery]:
        """Carry out the events that are due by ``now``, and return the deliveries, in order.

        Args:
            now: The time, in seconds.
            wall_ms: The wall clock at ``now``, in ms since the epoch.
        """
        self._set_clock(now, wall_ms)
        self.schedule.run_until(now, self._expiry.check)
        return self._channel.take_deliveries()

    def forget_expired_producers(self) -> None:
        """Let each broker forget its expired producers now, and not when its next check is due."""
        self._expiry.forget(self.schedule.now)

    def next_due(self) -> float | None:
        """Return when the next event is due, in seconds; None if no event is scheduled."""
        return self.schedule.next_due()

    def undelivered(self, delivery: Delivery) -> None:
        """Note that an answer could not be written: the client learns nothing about its batches."""
        if delivery.pending is not None:
            note_read(delivery.pending.items)
            note_unanswered(delivery.pending.items)

    @property
    def connections(self) -> list[Connection]:
        """Return the open connections, and the closed ones with requests still to be served."""
        return self._channel.connections

    def _set_clock(self, now: float, wall_ms: int) -> None:
        self.schedule.set_wall_clock(now, wall_ms)
        self._expiry.begin(now)

    @staticmethod
    def announced(broker: Broker) -> list[tuple[int, int, int]]:
        """Return (API key, first version, last version) of each API that a broker announces."""
        return announced(broker)

    @staticmethod
    def serves(broker: Broker, api_key: int, version: int) -> bool:
        """Return whether a broker answers this request; if not, it closes the connection."""
        return serves(broker, api_key, version)

    # -- changes of the cluster; each is made at the time of the last `advance` -------------------

    def move_leader(self, partition: Partition, broker_id: int) -> None:
        """Make a broker the leader: by election if it has a replica, else by reassignment.

        Produce requests that wait for followers at the old leader are answered
        NOT_LEADER_OR_FOLLOWER, with the base offset at which their batch was appended.

        Raises:
            RefusedError: PREFERRED_LEADER_NOT_AVAILABLE if the broker does not run.
        """
        broker = self.brokers.get(broker_id)
        if broker is None or not broker.online:
            raise RefusedError(
                ErrorCode.preferred_leader_not_available, f"broker {broker_id} does not run"
            )
        if broker_id == partition.leader:
            return
        if broker_id in partition.replicas:
            partition.elect(broker_id)
        else:
            partition.reassign(broker_id)
        self.wake(partition)

    def stop_broker(self, broker_id: int, *, clean: bool) -> None:
        """Stop a broker: connections end, queued requests are lost, leadership moves if it can.

        Args:
            broker_id: Id of the broker.
            clean: Hand leadership over before connections end, and reduce the producer state to
                what a snapshot of it holds: one remembered batch per producer.
        """
        broker = self.brokers[broker_id]
        coordinated = [g for g in self.groups.all() if self.coordinator_of(g.name) is broker]
        broker.online = False
        for partition in self.topology.partitions():
            partition.broker_stopped(broker_id)
            if clean:
                self.purgatory.try_now(partition)
            replica = partition.replicas.get(broker_id)
            if replica is not None and clean:
                replica.pass_through_snapshot()
        for connection in self.connections:
            if connection.broker_id == broker_id:
                self._channel.end(connection)
        for partition in self.topology.partitions():
            self.wake(partition)
        for group in coordinated:
            self.rebalances.move(group)

    def move_coordinator(self, key: str, broker_id: int) -> None:
        """Make a broker the coordinator of a transactional id or a group."""
        before = self.coordinator_of(key)
        self.coordinators[key] = broker_id
        group = self.groups.find(key)
        if group is not None and self.coordinator_of(key) is not before:
            self.rebalances.move(group)

    def start_broker(self, broker_id: int, *, clean: bool) -> None:
        """Start a broker again; ``clean`` says how it was stopped.

        After a crash the producer state is rebuilt from the log and then reduced to what a snapshot
        holds (one batch per producer), as in Kafka (measured with 4.3.1 and 3.9.1).
        """
        broker = self.brokers[broker_id]
        broker.online = True
        for partition in self.topology.partitions():
            replica = partition.replicas.get(broker_id)
            if replica is not None:
                if not clean:
                    retain = partition.retain_on(broker_id)
                    replica.producers.recover(replica.log.batches, retain)
                    replica.pass_through_snapshot()
                # Expired producers are dropped when a snapshot is loaded, not when it is written.
                replica.producers.expire(self.wall_ms(broker), self._expiry.expiration_ms(broker))
            partition.broker_started(broker_id)
            self.wake(partition)

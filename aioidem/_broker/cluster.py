"""The state that the brokers of one cluster share, and that the handlers of requests work on.

A `Cluster` is composed of `Topology` (brokers, topics and configs), `Schedule` (events and time),
`Purgatory` (requests that wait), and the coordinators of groups and transactions. It knows no
connection and no API; `ClusterState` adds those.
"""

from __future__ import annotations

from collections.abc import Callable

from aioidem._broker.group_coordinator import GroupCoordinator
from aioidem._broker.group_rebalance import Rebalances
from aioidem._broker.intercept import Interceptor
from aioidem._broker.partition import Partition, Topic
from aioidem._broker.purgatory import Purgatory
from aioidem._broker.requests import Pending
from aioidem._broker.schedule import Schedule
from aioidem._broker.security import BrokerSecurity
from aioidem._broker.topology import Broker, Topology
from aioidem._broker.transaction_coordinator import TransactionCoordinator

__all__ = ["Cluster"]


class Cluster:
    """All brokers of one cluster and everything they remember, without their connections.

    Args:
        topology: Brokers, topics, configs and producer ids.
        transaction_version: Level of the feature ``transaction.version``: 2 for KIP-890, else 0 or
            1.
        rtt: Round-trip time of each new connection, in seconds.
        bandwidth: Bandwidth of each new connection, in bytes per second each way; None: unlimited.
        security: How clients authenticate; None: every connection is accepted.

    Attributes:
        topology: Brokers, topics, configs and producer ids.
        schedule: The events that are due at a later time, and the present time.
        purgatory: The requests that cannot be answered yet.
        transactions: The transaction coordinator.
        groups: The group coordinator.
        rebalances: Serves the requests by which members join and leave groups.
        interceptor: The hook that sees each request before it is served; None: no hook.
        on_failure: Is told a request whose handler raised, and the exception, after the request's
            connection was ended; None: the exception is raised where time advances.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        transaction_version: int,
        rtt: float,
        bandwidth: float | None,
        security: BrokerSecurity | None,
    ) -> None:
        self.topology = topology
        self.schedule = Schedule()
        self.purgatory = Purgatory(self.schedule)
        self.groups = GroupCoordinator(self.schedule)
        self.rebalances = Rebalances(self.groups, topology, self.schedule)
        self.transactions = TransactionCoordinator(
            topology, self.schedule, self.groups, transaction_version, appended=self.wake
        )
        self.rtt = rtt
        self.bandwidth = bandwidth
        self.security = security
        self.interceptor: Interceptor | None = None
        self.on_failure: Callable[[Pending, Exception], None] | None = None
        # Short names for objects of the topology.
        self.brokers = topology.brokers
        self.topics = topology.topics
        self.coordinators = topology.coordinators
        self.coordinator_faults = topology.coordinator_faults
        self.cluster_id = topology.cluster_id

    @property
    def now(self) -> float:
        """Return the cluster's time, in seconds (monotonic): when the present event was due."""
        return self.schedule.now

    def wall_ms(self, broker: Broker) -> int:
        """Return a broker's wall clock at `now`, in ms since the epoch."""
        return broker.wall_ms(self.schedule.wall_now_ms)

    # -- what the cluster is made of: see `Topology` ----------------------------------------------

    @property
    def configs(self) -> dict[str, str]:
        """Return the cluster-wide broker configs."""
        return self.topology.configs

    @property
    def running(self) -> list[Broker]:
        """Return the brokers that run, in the order of their ids."""
        return self.topology.running

    def coordinator_of(self, key: str) -> Broker | None:
        """Return the broker that coordinates this group or transactional id; None if none runs."""
        return self.topology.coordinator_of(key)

    # -- changes ----------------------------------------------------------------------------------

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic; requests that wait for it are answered UNKNOWN_TOPIC_OR_PARTITION."""
        self.topology.forget_topic(topic)
        self.groups.forget_topic(topic.name)
        for partition in topic.partitions:
            partition.deleted = True
            self.wake(partition)

    def wake(self, partition: Partition) -> None:
        """Retry requests and transaction markers that wait for a change of this partition."""
        self.purgatory.wake(partition)
        if self.transactions.waits_for_partitions:
            self.schedule.later(0.0, lambda _now: self.transactions.write_markers())

"""A working Kafka cluster in this process, for tests and demos: `EmbeddedCluster`.

    async with EmbeddedCluster(brokers=2, rtt=0.15, retain=20) as cluster:
        cluster.create_topic("t", partitions=1, configs={"producer.state.batches.to.retain": "20"})
        ...                                # any Kafka client, at cluster.bootstrap_servers
        assert cluster.max_span("t", 0) <= 20

``max_span`` returns the largest span that any producer ever had: the number of batches from its
oldest one without a definite answer to its newest one, both counted.
`ThreadedCluster` runs the cluster in a thread of its own, for clients that block; `ClusterState` is
the cluster without sockets, tasks and clock. `BrokerSecurity` adds TLS and SASL.
"""

from __future__ import annotations

from aioidem._broker.batch import RefusedError
from aioidem._broker.controls import ClusterControls
from aioidem._broker.embedded_cluster import EmbeddedCluster
from aioidem._broker.intercept import (
    Action,
    AfterAppend,
    BatchSeen,
    CloseConnection,
    Delay,
    Drop,
    Interceptor,
    Refuse,
    RequestSeen,
    Respond,
    RespondRaw,
    Rewrite,
)
from aioidem._broker.requests import Connection, Delivery
from aioidem._broker.security import BrokerSecurity
from aioidem._broker.state import ClusterState
from aioidem._broker.stored import StoredRecord
from aioidem._broker.threaded import ThreadedCluster
from aioidem._broker.topology import Broker
from aioidem._records import ReadRecord
from aioidem._records.reader import RecordBatch

__all__ = [
    "Action",
    "AfterAppend",
    "BatchSeen",
    "Broker",
    "BrokerSecurity",
    "CloseConnection",
    "ClusterControls",
    "ClusterState",
    "Connection",
    "Delay",
    "Delivery",
    "Drop",
    "EmbeddedCluster",
    "Interceptor",
    "ReadRecord",
    "RecordBatch",
    "Refuse",
    "RefusedError",
    "RequestSeen",
    "Respond",
    "RespondRaw",
    "Rewrite",
    "StoredRecord",
    "ThreadedCluster",
]

"""One broker of a `KafkaCluster`: its process, its ports, and the properties it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aioidem._testing.fault_proxy import FaultProxy
from aioidem._testing.kafka_process import KafkaProcess

__all__ = ["HOST", "KafkaBroker", "small_broker_properties"]

HOST: Final = "127.0.0.1"
"""Address that brokers, controllers and proxies listen at."""


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """One broker: its process, and the proxy through which clients reach it.

    Attributes:
        node_id: Id of the broker in its cluster.
        port: Port of the listener behind the proxy. This listener advertises the proxy's address.
        inner_port: Port of the listener that brokers use among themselves. This listener advertises
            its own address.
        secure_ports: Ports of the listeners that `KafkaSecurity` adds, by listener name. Each of
            them advertises its own address.
        folder: Directory of the broker's logs.
        process: The broker's process.
        proxy: The proxy in front of the broker.
    """

    node_id: int
    port: int
    inner_port: int
    secure_ports: Mapping[str, int]
    folder: Path
    process: KafkaProcess
    proxy: FaultProxy

    @property
    def running(self) -> bool:
        """Return whether the broker's process runs, paused or not."""
        return self.process.running

    @property
    def paused(self) -> bool:
        """Return whether the process is stopped by SIGSTOP: it answers nothing until SIGCONT."""
        return self.process.paused


def small_broker_properties(brokers: int) -> dict[str, Any]:
    """Return server properties that make brokers small and quick to start.

    Other properties keep Kafka's defaults.

    Args:
        brokers: How many brokers the cluster has.
    """
    copies = min(brokers, 3)
    return {
        "process.roles": "broker,controller",
        "inter.broker.listener.name": "INNER",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "default.replication.factor": copies,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        # A killed broker is fenced after this time, and only then can it register again when it is
        # restarted. Kafka's default: 9 s.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # Kafka's default, 128 MiB, would be half of the heap that `KafkaCluster` gives a broker.
        "log.cleaner.dedupe.buffer.size": 2 << 20,
    }

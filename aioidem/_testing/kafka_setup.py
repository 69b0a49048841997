"""The ports, properties, storage and patched class with which a `KafkaCluster` starts its brokers.

Each broker is a controller too (KRaft). Its files are in the folder of the cluster, which the
caller makes and removes.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from aioidem._testing.broker_patch import write_patch
from aioidem._testing.fault_proxy import FaultProxy
from aioidem._testing.kafka_broker import HOST, KafkaBroker, small_broker_properties
from aioidem._testing.kafka_install import KafkaInstall, java_environment
from aioidem._testing.kafka_process import KafkaProcess, reserve_port
from aioidem._testing.kafka_retention import RetentionFace
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem._testing.kafka_tools import KafkaJava

__all__ = ["BrokerPorts", "KafkaSetup", "by_broker", "new_cluster_id"]


class BrokerPorts(NamedTuple):
    """The TCP ports that one broker listens on.

    ``client`` is the port behind the proxy, ``inner`` the port for other brokers, ``controller``
    the port of the controller, and ``secure`` has the ports of `KafkaSecurity.listeners`, in order.
    """

    client: int
    inner: int
    controller: int
    secure: tuple[int, ...]

    @classmethod
    def reserve(cls, secure: int) -> Self:
        """Reserve free ports, ``secure`` of them for the listeners of `KafkaSecurity`."""
        client, inner, controller, *more = (reserve_port() for _ in range(3 + secure))
        return cls(client, inner, controller, tuple(more))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSetup:
    """The options of a `KafkaCluster` with which its brokers are started.

    Attributes:
        brokers: How many brokers.
        cluster_id: Id that the storage is formatted with.
        retain: How many batches a patched broker remembers, by broker id; other brokers are not
            patched.
        security: Certificates, users and permissions, with further listeners for TLS and SASL.
        properties: Server properties of all brokers; they override the ones chosen here.
        features: Feature levels to finalise when the storage is formatted.
    """

    brokers: int
    cluster_id: str
    retain: Mapping[int, int]
    security: KafkaSecurity | None
    properties: Mapping[str, str | int] = field(repr=False)  # may contain passwords
    features: Mapping[str, int]

    def reserve_ports(self) -> list[BrokerPorts]:
        """Reserve and return the ports of all brokers, in the order of the broker ids."""
        secure = 0 if self.security is None else len(self.security.listeners)
        return [BrokerPorts.reserve(secure) for _ in range(self.brokers)]

    def retention(self, node_id: int) -> RetentionFace | None:
        """Return what the proxy of a patched broker announces; None for a stock broker."""
        batches = self.retain.get(node_id)
        return None if batches is None else RetentionFace(batches)

    def make_broker(
        self,
        java: KafkaJava,
        folder: Path,
        node_id: int,
        ports: Sequence[BrokerPorts],
        proxy: FaultProxy,
    ) -> KafkaBroker:
        """Write a broker's properties and patched class; return the broker, which is not started.

        Args:
            java: How to start Java.
            folder: Folder of the cluster.
            node_id: Id of the broker.
            ports: Ports of all brokers, in the order of the brokers' ids.
            proxy: The proxy in front of this broker.
        """
        own, logs = ports[node_id], folder / f"broker-{node_id}"
        file = _properties_file(folder, node_id)
        settings = self._settings(folder, node_id, ports, proxy) | {"log.dirs": logs}
        settings |= self.properties
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        process = KafkaProcess(
            [*java.command(*self._patch(java.install, folder, node_id)), "kafka.Kafka", str(file)],
            folder / f"broker-{node_id}.log",
            java.guard,
            java_environment(),
        )
        names = () if self.security is None else self.security.listeners
        secure = dict(zip(names, own.secure, strict=True))
        return KafkaBroker(node_id, own.client, own.inner, secure, logs, process, proxy)

    def format_arguments(self, folder: Path, node_id: int) -> tuple[str, ...]:
        """Return the arguments of ``kafka.tools.StorageTool`` that format a broker's storage."""
        file = str(_properties_file(folder, node_id))
        users = [] if self.security is None else self.security.format_arguments()
        levels = [word for f in self.features.items() for word in ("--feature", f"{f[0]}={f[1]}")]
        return ("format", "-t", self.cluster_id, "-c", file, *users, *levels)

    def storage_kind(self, version: str) -> bytes | None:
        """Return a digest of what decides how a broker's storage is formatted; None with security.

        It is a digest because properties may contain passwords.
        """
        if self.security is not None:
            return None
        decisive = version, sorted(self.properties.items()), sorted(self.features.items())
        return hashlib.sha256(repr(decisive).encode()).digest()

    def _settings(
        self, folder: Path, node_id: int, ports: Sequence[BrokerPorts], proxy: FaultProxy
    ) -> dict[str, object]:
        own = ports[node_id]
        added = "" if self.security is None else self.security.added(own.secure)
        inner = f"INNER://{HOST}:{own.inner}"
        controller = f"CONTROLLER://{HOST}:{own.controller}"
        voters = [f"{i}@{HOST}:{each.controller}" for i, each in enumerate(ports)]
        return small_broker_properties(self.brokers) | {
            "node.id": node_id,
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"CLIENT://{HOST}:{own.client},{inner},{controller}{added}",
            "advertised.listeners": f"CLIENT://{proxy.address},{inner}{added}",
            **({} if self.security is None else self.security.settings(folder)),
        }

    def _patch(self, install: KafkaInstall, folder: Path, node_id: int) -> list[Path]:
        """Write the patched class of a broker in `retain`; return its directory.

        The list is empty for a broker that is not patched.
        """
        if node_id not in self.retain:
            return []
        patch = folder / f"patch-{node_id}"
        write_patch(install.jar("kafka-storage"), patch, self.retain[node_id])
        return [patch]


def _properties_file(folder: Path, node_id: int) -> Path:
    return folder / f"broker-{node_id}.properties"


def by_broker(retain: int | Mapping[int, int] | None, brokers: int) -> dict[int, int]:
    """Return how many batches each broker remembers, by id; a single number is for all brokers."""
    if retain is None:
        return {}
    return dict.fromkeys(range(brokers), retain) if isinstance(retain, int) else dict(retain)


def new_cluster_id() -> str:
    """Return a random cluster id; it does not begin with "-", so no tool takes it for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text

"""What an examination has seen, as plain data; `diagnosis` turns it into findings.

Times are in seconds and sizes in bytes, except in the values of configs, which are as brokers send
them. Text from a broker is printable already.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from aioidem._admin.asking import Place
from aioidem._config import ProducerConfig
from aioidem._network.transport import address

__all__ = [
    "BrokerSeen",
    "ClockSeen",
    "Configs",
    "Facts",
    "Failure",
    "FailureKind",
    "Granted",
    "PartitionSeen",
    "ProbeSeen",
    "TopicSeen",
    "Tried",
    "WantedRate",
    "shown",
]


class FailureKind(Enum):
    """Why a connection could not be opened or used."""

    NAME_NOT_KNOWN = "the host name cannot be looked up"
    REFUSED = "the connection was refused"
    UNREACHABLE = "there is no way to the host"
    NO_ANSWER = "nothing answered in time"
    HUNG_UP = "the peer closed the connection"
    HUNG_UP_ON_REQUEST = "the peer answered ApiVersions, and closed the connection after that"
    NOT_KAFKA = "the peer does not speak Kafka"
    SPEAKS_TLS = "the peer speaks TLS"
    SPEAKS_PLAINTEXT = "the peer speaks Kafka without TLS"
    TOO_OLD = "there is no common version of an API"
    NOT_ALLOWED = "allowed_brokers does not allow the address"
    TLS_UNTRUSTED = "no trusted authority has signed the certificate"
    TLS_HOST_NAME = "the certificate is for another host"
    TLS_OUT_OF_DATE = "the certificate has expired, or is not valid yet"
    TLS_CLIENT_CERTIFICATE = "the broker does not accept this client's certificate, or wants one"
    TLS_FAILED = "the TLS handshake failed"
    WITHOUT_SASL = "the listener does not use SASL"
    SASL_MECHANISM = "the broker does not offer the SASL mechanism"
    SASL_REFUSED = "authentication failed"
    IDENTITY_PROVIDER = "the token endpoint gave no token"
    OTHER = "another error"


class Failure(NamedTuple):
    """Why a connection failed: the kind, and the error's own words."""

    kind: FailureKind
    text: str


class Tried(NamedTuple):
    """One connection to a bootstrap server.

    ``address`` is the IP address, or None if the name could not be looked up. ``cluster_id`` is
    None if the connection failed, or if the broker names none.
    """

    place: Place
    address: str | None
    cluster_id: str | None = None
    failure: Failure | None = None


class Configs(NamedTuple):
    """The answer to DescribeConfigs of one resource: an error code (0: none), and the values."""

    error_code: int = 0
    values: Mapping[str, str | None] = MappingProxyType({})

    def number(self, name: str) -> int | None:
        """Return a config's value as an integer; None if it is missing or is none."""
        try:
            return int(self.values.get(name) or "")
        except ValueError:
            return None


class BrokerSeen(NamedTuple):
    """One broker that the cluster names.

    Attributes:
        node_id: its id.
        place: the address that it advertises.
        rack: its rack, if it has one.
        failure: why it could not be asked; None if it answered.
        cluster_id: the cluster that the address leads to.
        produce: the lowest and highest version of Produce that it offers.
        features: the finalized features, such as ``transaction.version``.
        telemetry: whether it takes clients' metrics (KIP-714).
        round_trips: measured round trips.
        configs: its own configs; None if it did not answer that question.
        topic_configs: the configs of the topics of which it leads partitions.
    """

    node_id: int
    place: Place
    rack: str | None = None
    failure: Failure | None = None
    cluster_id: str | None = None
    produce: tuple[int, int] | None = None
    features: Mapping[str, int] = MappingProxyType({})
    telemetry: bool = False
    round_trips: tuple[float, ...] = ()
    configs: Configs | None = None
    topic_configs: Mapping[str, Configs] = MappingProxyType({})

    @property
    def round_trip(self) -> float | None:
        """The median of the measured round trips; None without any."""
        if not self.round_trips:
            return None
        return sorted(self.round_trips)[len(self.round_trips) // 2]

    def __str__(self) -> str:
        return f"broker {self.node_id} ({shown(self.place)})"


class PartitionSeen(NamedTuple):
    """One partition; ``leader`` is -1 if there is none; ``error_code`` is that of its Metadata."""

    partition: int
    leader: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


class Granted(NamedTuple):
    """What a client may do with a topic (KIP-430); None where the broker does not say."""

    read: bool | None = None
    write: bool | None = None


class TopicSeen(NamedTuple):
    """One topic that the user named; ``error_code`` is that of its Metadata (0: none)."""

    name: str
    error_code: int = 0
    partitions: tuple[PartitionSeen, ...] = ()
    granted: Granted = Granted()


class ClockSeen(NamedTuple):
    """How far a clock of the cluster is ahead of this machine's, and how exact that is, in seconds.

    ``whose`` says in words whose clock it is.
    """

    whose: str
    ahead: float
    margin: float


class ProbeSeen(NamedTuple):
    """What the records showed that were written with ``--write-to``.

    Attributes:
        topic: the topic.
        partition: the partition.
        said: how many batches of a producer the leader says that it remembers; 5 if it says
            nothing.
        recognised: the distances from the newest batch, which has 1, of the resent batches that the
            leader recognised.
        refused: the distance of the resent batch that it refused as out of order; None: it refused
            none.
        written_twice: the distance of the resent batch that it appended again; None: none.
        failure: why the probe ended early; None if it did not.
    """

    topic: str
    partition: int
    said: int
    recognised: tuple[int, ...] = ()
    refused: int | None = None
    written_twice: int | None = None
    failure: str | None = None


class WantedRate(NamedTuple):
    """The rate that the user wants, in bytes per second, and a record's size if it is given."""

    bytes_per_second: float
    record_size: int | None = None


class Facts(NamedTuple):
    """All that an examination has seen.

    Attributes:
        config: the producer's options.
        tried: the connections to the bootstrap servers.
        brokers: the brokers that the cluster names.
        topics: the topics that the user named.
        wanted: the rate that the user wants, if one was given.
        producer_id_error: the error code of InitProducerId; None if it was not asked or answered.
        transactional_error: the error code of FindCoordinator for the transactional id; likewise.
        clocks: clocks of the cluster.
        probe: what the written records showed; None without ``--write-to``.
        unfinished: what was not finished in time, in words.
        timeout: the time that the examination had.
    """

    config: ProducerConfig
    tried: tuple[Tried, ...] = ()
    brokers: tuple[BrokerSeen, ...] = ()
    topics: tuple[TopicSeen, ...] = ()
    wanted: WantedRate | None = None
    producer_id_error: int | None = None
    transactional_error: int | None = None
    clocks: tuple[ClockSeen, ...] = ()
    probe: ProbeSeen | None = None
    unfinished: tuple[str, ...] = ()
    timeout: float = 0.0

    @property
    def reached(self) -> bool:
        """Whether a bootstrap server answered."""
        return any(each.failure is None for each in self.tried)

    def broker(self, node_id: int) -> BrokerSeen | None:
        """Return the broker with this id; None if the cluster does not name it."""
        return next((each for each in self.brokers if each.node_id == node_id), None)

    def leads(self, node_id: int) -> bool:
        """Return whether the broker leads a partition of the named topics."""
        return any(part.leader == node_id for topic in self.topics for part in topic.partitions)

    def topic_configs(self, topic: str) -> tuple[Configs, ...]:
        """Return what the leaders of the topic's partitions answered about its configs."""
        return tuple(
            each.topic_configs[topic] for each in self.brokers if topic in each.topic_configs
        )


def shown(place: Place) -> str:
    """Return an address as ``host:port``."""
    return address(place.host, place.port)

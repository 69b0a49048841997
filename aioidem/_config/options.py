"""The table of options: what values each one accepts, what it means, and its other names.

Everything that shows options to users is made from this table: the help of `ProducerConfig` and
`Producer`; the help of aioidem's `AIOKafkaProducer` about `MoreOptions`, the arguments that
aiokafka's producer does not have; and docs/options.md. The keys are native names: snake_case, times
in seconds, sizes in bytes. Under Java's and aiokafka's names times are milliseconds. The defaults
are those of `ProducerConfig`'s fields, in the same order.

Users read these texts more often than anything else in the project. Each consists of complete
sentences and says the unit, what happens at the limits, and the KIP if there is one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypedDict

from aioidem._config.addresses import Addresses, Places
from aioidem._config.kinds import (
    Acks,
    Choice,
    Count,
    Flag,
    Function,
    Hidden,
    Instance,
    Kind,
    Pem,
    Seconds,
    Text,
)
from aioidem._config.secret import Secret
from aioidem._config.security import SaslMechanism, SecurityProtocol, TokenProvider
from aioidem.partitioner import Partitioner

__all__ = [
    "OPTIONS",
    "SECTIONS",
    "SOURCES_OF_SECRETS",
    "BrokerDedup",
    "CompressionType",
    "InDoubt",
    "OnClusterChange",
    "Option",
    "ProducerOptions",
    "WindowDiscovery",
]

CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
WindowDiscovery = Literal["auto", "on", "off"]
InDoubt = Literal["fail", "resend"]
OnClusterChange = Literal["continue", "fail"]
BrokerDedup = Literal["window", "range"]


class Option(NamedTuple):
    """One option of the producer: its values, its meaning and its names.

    Args:
        kind: The values that the option accepts.
        text: What the option means, for users. The text calls other options by their native names.
        java: The name of the property; None if a property cannot express the value.
        aiokafka: The name of the argument of aiokafka's producer; None if aiokafka has none.
        own: True if Java's producer has no such property: `java` is our name, in Java's style.
    """

    kind: Kind
    text: str
    java: str | None = None
    aiokafka: str | None = None
    own: bool = False


_CLUSTER: Final = {
    "bootstrap_servers": Option(
        Addresses(),
        "The brokers that are asked first which brokers the cluster has. One that answers is "
        "enough; several help while one of them is down. Duplicates are dropped.",
        "bootstrap.servers",
        "bootstrap_servers",
    ),
    "client_id": Option(
        Text(),
        "The name under which brokers log this producer and count its quotas. By default each "
        "producer of a process gets a name of its own, aioidem-producer-N with N from 1 on.",
        "client.id",
        "client_id",
    ),
}

_GUARANTEES: Final = {
    "acks": Option(
        Acks(),
        "How many replicas must store a batch before the leader answers. -1 (or 'all'): every "
        "replica that is in sync. 1: the leader only; an acknowledged record is lost if the leader "
        "goes away before a follower has copied it, even in a clean election. 0: the leader does "
        "not answer, and no record is ever reported as ACKED.",
        "acks",
        "acks",
    ),
    "enable_idempotence": Option(
        Flag(),
        "Whether batches carry a producer id and sequence numbers, so that the broker recognises a "
        "retry and stores each record once (KIP-98). It requires acks=-1.",
        "enable.idempotence",
        "enable_idempotence",
    ),
    "transactional_id": Option(
        Text(nullable=True),
        "The producer's identity across restarts. If it is given, every record belongs to a "
        "transaction (KIP-98), and starting the producer fences an older one that has the same id. "
        "It requires enable_idempotence. None means no transactions.",
        "transactional.id",
        "transactional_id",
    ),
    "transaction_timeout": Option(
        Seconds(),
        "The time in seconds after which the coordinator aborts a transaction that was neither "
        "committed nor aborted. The cluster refuses more than its transaction.max.timeout.ms: "
        "start() then raises InvalidTransactionTimeout. It has no effect without a "
        "transactional_id.",
        "transaction.timeout.ms",
        "transaction_timeout_ms",
    ),
}

_BATCHES: Final = {
    "compression_type": Option(
        Choice(("none", "gzip", "snappy", "lz4", "zstd")),
        "The codec that compresses each batch. snappy needs the extra aioidem[snappy]; the others "
        "are always installed.",
        "compression.type",
        "compression_type",
    ),
    "compression_level": Option(
        Count(-131072, 22, nullable=True),
        "The codec's level (KIP-390): 1 to 9 for gzip, 1 to 17 for lz4, -131072 to 22 for zstd. "
        "A higher level compresses more and takes longer. None is the codec's own default, and the "
        "only value for none and snappy. Java's properties compression.gzip.level, "
        "compression.lz4.level and compression.zstd.level are accepted as well; only the one of "
        "the codec in use counts.",
        "compression.level",
        own=True,
    ),
    "batch_size": Option(
        Count(1),
        "The size in bytes, before compression, at which a batch is full. A larger record is sent "
        "in a batch of its own. The value may exceed max_request_size, which counts bytes after "
        "compression.",
        "batch.size",
        "max_batch_size",
    ),
    "linger": Option(
        Seconds(positive=False),
        "The time in seconds for which a batch that is not full waits for more records. With 0 a "
        "batch is sent as soon as its partition's window has room.",
        "linger.ms",
        "linger_ms",
    ),
    "late_sealing": Option(
        Flag(),
        "Whether a partition's next batch may outgrow batch_size while the partition's window is "
        "full. It then grows up to the topic's max.message.bytes, which the producer must be "
        "allowed to read (the ACL DESCRIBE_CONFIGS on the topic), and up to max_request_size. "
        "Without that right batches stay within batch_size.",
        "late.sealing",
        own=True,
    ),
    "max_request_size": Option(
        Count(1),
        "The size in bytes of the largest Produce request, and therefore of the largest record. A "
        "larger record raises MessageSizeTooLargeError at the call.",
        "max.request.size",
        "max_request_size",
    ),
    "partitioner": Option(
        Function(),
        "The function that chooses the partition of a record that was sent without one. None "
        "hashes the key as Java does (murmur2); records without a key stay with one partition for "
        "a batch and then change to another (KIP-794).",
        aiokafka="partitioner",
    ),
}

_TIME_AND_MEMORY: Final = {
    "buffer_memory": Option(
        Count(1),
        "The memory in bytes that records without an outcome may take. A record counts with its "
        "bytes and about 450 more for its object (100 in send_many), and 128 for each header, "
        "until it has its outcome. A third is kept for the encoded batches in flight; if they "
        "take more, records get less. While there is no room, send() waits for up to max_block, "
        "and send_nowait() raises BufferFullError.",
        "buffer.memory",
    ),
    "max_block": Option(
        Seconds(positive=False),
        "The time in seconds for which a call may wait for room in the buffer and for metadata, "
        "both together; after it the call raises KafkaTimeoutError. It also limits start() and the "
        "calls of a transaction. With 0 a call that would have to wait fails at once.",
        "max.block.ms",
    ),
    "delivery_timeout": Option(
        Seconds(),
        "The time in seconds by which each record has an outcome, counted from the moment when it "
        "was queued (KIP-91). A record that is not acknowledged by then fails with "
        "DeliveryTimeoutError; if its batch is in doubt, the outcome may come one request_timeout "
        "later. The value must be at least linger + request_timeout.",
        "delivery.timeout.ms",
    ),
    "request_timeout": Option(
        Seconds(),
        "The time in seconds that a broker may take to answer a request. After it the connection "
        "is closed, and the request is retried on a new one.",
        "request.timeout.ms",
        "request_timeout_ms",
    ),
    "retry_backoff": Option(
        Seconds(positive=False),
        "The pause in seconds before the first retry of a request. It doubles with each further "
        "retry, up to retry_backoff_max, and varies by 20 % at random (KIP-580).",
        "retry.backoff.ms",
        "retry_backoff_ms",
    ),
    "retry_backoff_max": Option(
        Seconds(positive=False),
        "The longest pause in seconds between two retries (KIP-580). It must not be below "
        "retry_backoff.",
        "retry.backoff.max.ms",
    ),
}

_PIPELINING: Final = {
    "max_in_flight_requests_per_connection": Option(
        Count(1, None),
        "The number of requests that may be unanswered on one connection. It has no upper limit, "
        "with or without idempotence: how many batches of one partition may be in flight is "
        "limited by a window for each partition (KIP-1269).",
        "max.in.flight.requests.per.connection",
    ),
    "window_discovery": Option(
        Choice(("auto", "on", "off")),
        "Whether to learn from brokers how many batches of a partition may be in flight "
        "(KIP-1269). 'auto': from brokers that offer Produce v14 and know the KIP's topic config. "
        "'on': from every broker that offers Produce v14. 'off': from none. A partition whose "
        "broker says nothing has a window of five batches.",
        "window.discovery",
        own=True,
    ),
    "broker_dedup": Option(
        Choice(("window", "range")),
        "How brokers recognise a retry. 'window': they remember each producer's last batches, as "
        "Apache Kafka does. 'range': they remember a range of sequence numbers (KIP-758), and no "
        "window limits the batches in flight.",
        "broker.dedup",
        own=True,
    ),
    "in_doubt": Option(
        Choice(("fail", "resend")),
        "What happens to a batch that may or may not be in the log, when no broker can tell. "
        "'fail': its records end UNKNOWN. 'resend': it is sent once more, as Java does, which may "
        "store it twice.",
        "in.doubt",
        own=True,
    ),
    "trust_base_offset": Option(
        Flag(),
        "Whether NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID without a "
        "base offset prove that the batch was not stored. That is true of Apache Kafka. With False "
        "such a batch is in doubt; use it for brokers of another make whose behaviour is unknown.",
        "trust.base.offset",
        own=True,
    ),
    "producer_id_expiration": Option(
        Seconds(nullable=True),
        "The time in seconds after which brokers forget an idle producer id: their setting "
        "producer.id.expiration.ms (KIP-854). None reads it from the brokers, which needs the ACL "
        "DESCRIBE_CONFIGS on the cluster; pass it where that is not allowed.",
        "producer.id.expiration.ms",
        own=True,
    ),
    "on_cluster_change": Option(
        Choice(("continue", "fail")),
        "What happens when the bootstrap servers lead to a cluster with another cluster id, and "
        "the old one is gone. Batches in doubt end UNKNOWN in either case. 'continue': records "
        "that were never written go to the new cluster, under a new producer id. 'fail': they end "
        "NOT_WRITTEN, and the producer ends with ClusterChangedError. A transactional producer "
        "always fails.",
        "on.cluster.change",
        own=True,
    ),
}

_FLIGHT: Final = {
    "flight_recorder": Option(
        Count(0, 10_000_000),
        "How many of the last events the flight recorder keeps in memory, about 0.5 kB each: what "
        "the producer was told and what it decided, without payloads, keys, headers and "
        "credentials. A file of them replays an incident (`aioidem replay`). 0 turns it off.",
        "flight.recorder",
        own=True,
    ),
    "flight_record_directory": Option(
        Text(nullable=True),
        "A directory in which a flight record is written when a record ends UNKNOWN, data is lost "
        "or the producer ends with an error: at most one a minute, and ten in all. It must exist "
        "and be writable when the producer is made.",
        "flight.record.directory",
        own=True,
    ),
    "flight_record_callback": Option(
        Instance("a callable of (reason, content) or None", "__call__"),
        "A function that gets such a flight record as bytes, with the reason as text. It is called "
        "in a thread of its own, and may block.",
    ),
    "flight_record_signal": Option(
        Choice(("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT"), nullable=True),
        "A signal at which a flight record is written, too, however lately one was. Python handles "
        "signals in the main thread, so the producer must be started there. A handler that the "
        "program has set is called as well, and is back when the producer ends. Not on Windows.",
        "flight.record.signal",
        own=True,
    ),
}

_CONNECTIONS: Final = {
    "reconnect_backoff": Option(
        Seconds(positive=False),
        "The pause in seconds before the first attempt to connect again to a broker. It doubles "
        "with each further attempt, up to reconnect_backoff_max, and varies by 20 % at random "
        "(KIP-144).",
        "reconnect.backoff.ms",
    ),
    "reconnect_backoff_max": Option(
        Seconds(positive=False),
        "The longest pause in seconds between two attempts to connect to a broker (KIP-144). It "
        "must not be below reconnect_backoff.",
        "reconnect.backoff.max.ms",
    ),
    "connection_setup_timeout": Option(
        Seconds(),
        "The time in seconds that connecting to a broker may take, with TLS, authentication and "
        "the first exchange (KIP-601).",
        "socket.connection.setup.timeout.ms",
    ),
    "connections_max_idle": Option(
        Seconds(nullable=True),
        "The time in seconds after which an unused connection is closed. None keeps it open.",
        "connections.max.idle.ms",
        "connections_max_idle_ms",
    ),
    "metadata_max_age": Option(
        Seconds(),
        "The time in seconds after which metadata is asked for again even if nothing has failed.",
        "metadata.max.age.ms",
        "metadata_max_age_ms",
    ),
    "max_frame_bytes": Option(
        Count(1024),
        "The size in bytes of the largest response that is accepted; a broker that announces a "
        "larger one is disconnected. Most kinds of response have a smaller limit of their own. "
        "Metadata may use all of it: the default is enough for about 400,000 partitions with three "
        "replicas each.",
        "max.frame.bytes",
        own=True,
    ),
    "allowed_brokers": Option(
        Places(),
        "Where brokers may be: host names, domains (*.example.org) and networks (10.1.0.0/16). "
        "A cluster tells its clients which addresses to connect to; with this option the producer "
        "connects to none but these and bootstrap_servers. None allows every address.",
        "allowed.brokers",
        own=True,
    ),
    "allow_auto_create_topics": Option(
        Flag(),
        "Whether asking for a topic's metadata may create the topic, where the broker has "
        "auto.create.topics.enable.",
        "allow.auto.create.topics",
        own=True,
    ),
}

_TLS: Final = {
    "security_protocol": Option(
        Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
        "How connections are secured. SSL and SASL_SSL encrypt them with TLS; SASL_PLAINTEXT and "
        "SASL_SSL authenticate with SASL.",
        "security.protocol",
        "security_protocol",
    ),
    "ssl_context": Option(
        Instance("an ssl.SSLContext or None", "wrap_bio", ssl.SSLContext),
        "A TLS context of your own, instead of the other ssl_ options. A connection below TLS 1.2 "
        "is refused even if the context allows it. None makes a context from those options.",
        aiokafka="ssl_context",
    ),
    "ssl_truststore_location": Option(
        Pem(),
        "The path of a PEM file with the certificate authorities to trust. None trusts those of "
        "the operating system.",
        "ssl.truststore.location",
    ),
    "ssl_truststore_certificates": Option(
        Pem(),
        "The certificate authorities to trust, as PEM text (KIP-651), instead of a file.",
        "ssl.truststore.certificates",
    ),
    "ssl_truststore_type": Option(
        Choice(("PEM",)),
        "The format of the trust store. Only PEM is read; keytool -exportcert -rfc converts the "
        "formats that only Java reads.",
        "ssl.truststore.type",
    ),
    "ssl_keystore_location": Option(
        Pem(),
        "The path of a PEM file with this client's private key and certificate chain, for brokers "
        "that ask for a certificate (mutual TLS). It is read again for each connection, so that a "
        "renewed certificate is used without a restart. None presents no certificate.",
        "ssl.keystore.location",
    ),
    "ssl_keystore_certificate_chain": Option(
        Pem(),
        "This client's certificate chain, as PEM text (KIP-651), instead of a file. It requires "
        "ssl_keystore_key.",
        "ssl.keystore.certificate.chain",
    ),
    "ssl_keystore_key": Option(
        Hidden(),
        "This client's private key, as PEM text (KIP-651), instead of a file. It requires "
        "ssl_keystore_certificate_chain.",
        "ssl.keystore.key",
    ),
    "ssl_keystore_type": Option(
        Choice(("PEM",)),
        "The format of the key store. Only PEM is read.",
        "ssl.keystore.type",
    ),
    "ssl_key_password": Option(
        Hidden(),
        "The password of this client's private key. None if the key is not encrypted.",
        "ssl.key.password",
    ),
    "ssl_endpoint_identification_algorithm": Option(
        Choice(("https", "")),
        "How a broker's certificate is checked against its host name. 'https': the certificate "
        "must name the host. An empty text turns the check off: then anybody with a certificate of "
        "a trusted authority can pose as a broker.",
        "ssl.endpoint.identification.algorithm",
    ),
}

_SASL: Final = {
    "sasl_mechanism": Option(
        Choice(
            ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"),
            nullable=True,
        ),
        "The SASL mechanism that authenticates this client. No other one is used, whatever the "
        "broker offers. security_protocol SASL_PLAINTEXT and SASL_SSL require it. OAUTHBEARER with "
        "client credentials needs the extra aioidem[oauth], AWS_MSK_IAM aioidem[aws], and GSSAPI "
        "aioidem[gssapi].",
        "sasl.mechanism",
        "sasl_mechanism",
    ),
    "sasl_username": Option(
        Text(nullable=True),
        "The user name for PLAIN and SCRAM. Among properties it may be given in sasl.jaas.config "
        "instead.",
        "sasl.username",
        "sasl_plain_username",
        own=True,
    ),
    "sasl_password": Option(
        Hidden(),
        "The password for PLAIN and SCRAM. Among properties it may be given in sasl.jaas.config "
        "instead.",
        "sasl.password",
        "sasl_plain_password",
        own=True,
    ),
    "sasl_credentials": Option(
        Instance("a callable or None", "__call__"),
        "A function, async or not, that returns (user name, password) for PLAIN and SCRAM, instead "
        "of sasl_username and sasl_password. It is called each time a connection authenticates.",
    ),
    "sasl_allow_plaintext": Option(
        Flag(),
        "Whether PLAIN, OAUTHBEARER and AWS_MSK_IAM may be used over SASL_PLAINTEXT, and a token "
        "endpoint over http:. Anybody who can read the network traffic can then use the "
        "credentials.",
        "sasl.allow.plaintext",
        own=True,
    ),
    "sasl_oauth_token_provider": Option(
        Instance("an object with a method token(), a callable, or None", "token"),
        "An object with a method token(), or a function, async or not, that returns the bearer "
        "token for OAUTHBEARER. It is called each time a connection authenticates; see "
        "aioidem.abc.AbstractTokenProvider.",
        aiokafka="sasl_oauth_token_provider",
    ),
    "sasl_oauthbearer_token_endpoint_url": Option(
        Text(nullable=True),
        "The URL, with https:, of the endpoint that gives out tokens for OAUTHBEARER in exchange "
        "for the client id and the client secret (KIP-768), instead of a "
        "sasl_oauth_token_provider.",
        "sasl.oauthbearer.token.endpoint.url",
    ),
    "sasl_oauthbearer_client_id": Option(
        Text(nullable=True),
        "The client id that is sent to the token endpoint (KIP-768). It requires "
        "sasl_oauthbearer_token_endpoint_url and sasl_oauthbearer_client_secret.",
        "sasl.oauthbearer.client.credentials.client.id",
    ),
    "sasl_oauthbearer_client_secret": Option(
        Hidden(),
        "The client secret that is sent to the token endpoint (KIP-768). It requires "
        "sasl_oauthbearer_token_endpoint_url and sasl_oauthbearer_client_id.",
        "sasl.oauthbearer.client.credentials.client.secret",
    ),
    "sasl_oauthbearer_scope": Option(
        Text(nullable=True),
        "The scope that the token endpoint is asked for (KIP-768). None leaves the choice to the "
        "endpoint.",
        "sasl.oauthbearer.scope",
    ),
    "sasl_aws_region": Option(
        Text(nullable=True),
        "The AWS region for AWS_MSK_IAM. None takes it from the broker's host name, or else from "
        "botocore's configuration.",
        "sasl.aws.region",
        own=True,
    ),
    "sasl_aws_session": Option(
        Instance("a botocore Session or None", "get_credentials"),
        "The botocore session that has the credentials for AWS_MSK_IAM. None makes a session that "
        "searches where botocore searches by default.",
    ),
    "sasl_kerberos_service_name": Option(
        Text(),
        "The name of the brokers' Kerberos service for GSSAPI: their principals are "
        "service/host@REALM.",
        "sasl.kerberos.service.name",
        "sasl_kerberos_service_name",
    ),
    "sasl_kerberos_domain_name": Option(
        Text(nullable=True),
        "The host in the principal of the brokers' Kerberos service for GSSAPI. None is the host "
        "that the producer connects to.",
        aiokafka="sasl_kerberos_domain_name",
    ),
}

SECTIONS: Final[Mapping[str, Mapping[str, Option]]] = MappingProxyType(
    {
        "Cluster": _CLUSTER,
        "Guarantees": _GUARANTEES,
        "Batches": _BATCHES,
        "Memory and time": _TIME_AND_MEMORY,
        "Batches in flight": _PIPELINING,
        "Connections and metadata": _CONNECTIONS,
        "Flight recorder": _FLIGHT,
        "TLS": _TLS,
        "SASL": _SASL,
    }
)
"""The options by native name, under the headings of the documentation."""

OPTIONS: Final[Mapping[str, Option]] = MappingProxyType(
    {name: option for section in SECTIONS.values() for name, option in section.items()}
)
"""The options by native name."""


SOURCES_OF_SECRETS: Final = frozenset(
    {"sasl_credentials", "sasl_oauth_token_provider", "sasl_aws_session"}
)
"""Options whose values give secrets. Who mistakes one passes the secret itself, so no message and
no `repr` shows what was passed.
"""


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of `Producer` and `ProducerConfig.build`; see `ProducerConfig`."""

    client_id: str
    acks: int | Literal["all"]
    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout: float
    compression_type: CompressionType
    compression_level: int | None
    batch_size: int
    linger: float
    late_sealing: bool
    max_request_size: int
    buffer_memory: int
    max_block: float
    delivery_timeout: float
    request_timeout: float
    max_in_flight_requests_per_connection: int
    window_discovery: WindowDiscovery
    trust_base_offset: bool
    in_doubt: InDoubt
    on_cluster_change: OnClusterChange
    broker_dedup: BrokerDedup
    producer_id_expiration: float | None
    retry_backoff: float
    retry_backoff_max: float
    reconnect_backoff: float
    reconnect_backoff_max: float
    connection_setup_timeout: float
    connections_max_idle: float | None
    metadata_max_age: float
    max_frame_bytes: int
    allowed_brokers: str | Sequence[str] | None
    allow_auto_create_topics: bool
    flight_recorder: int
    flight_record_directory: str | None
    flight_record_callback: Callable[[str, bytes], object] | None
    flight_record_signal: str | None
    partitioner: Partitioner | None
    security_protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_truststore_type: Literal["PEM"]
    ssl_keystore_location: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | Secret[str] | None
    ssl_keystore_type: Literal["PEM"]
    ssl_key_password: str | Secret[str] | None
    ssl_endpoint_identification_algorithm: Literal["https", ""]
    sasl_mechanism: SaslMechanism | None
    sasl_username: str | None
    sasl_password: str | Secret[str] | None
    sasl_credentials: Callable[[], object] | None
    sasl_allow_plaintext: bool
    sasl_oauth_token_provider: TokenProvider | Callable[[], object] | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | Secret[str] | None
    sasl_oauthbearer_scope: str | None
    sasl_aws_region: str | None
    sasl_aws_session: object | None
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None

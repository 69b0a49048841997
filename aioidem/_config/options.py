"""The producer's options: one frozen dataclass, validated once, under three families of names.

Each option is one field. The `_Option` in its annotation names it in Java's properties and among
aiokafka's keyword arguments and says what values it takes, so the three families cannot drift
apart. Native names are snake_case, with times in seconds (float) and sizes in bytes; times under
Java's and aiokafka's names are in milliseconds.

Invariants:

- A `ProducerConfig` that exists is valid, however it was made (``build``, ``from_properties``, the
  constructor, ``dataclasses.replace``): everything is checked in ``__post_init__``.
- Nothing is corrected in silence. A value out of range, an unknown name and a contradiction are a
  `ConfigError` that names the option, its value and what is allowed. Values change form only:
  ``"all"`` becomes -1, ``"h1:9092,h2"`` a tuple of addresses, whole seconds a float.
- No upper limit on ``max_in_flight_requests_per_connection``, idempotent or not (KIP-1269).

Rejected: pydantic (a dependency for thirty fields); giving up idempotence when another option
contradicts it, as Java's producer may (a promise nobody took back is lost in silence); an error for
``batch_size`` above ``max_request_size`` (it counts bytes before compression, so it may well fit).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import ipaddress
import itertools
import re
import reprlib
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal, Protocol, Self, TypedDict, Unpack, get_type_hints

from aioidem._config.jaas import JaasError, read_jaas
from aioidem._config.secret import Secret, in_utf8, without_frames
from aioidem._config.security import SaslMechanism, SecurityProtocol, TokenProvider, complaints
from aioidem.errors import ConfigError, RecordError
from aioidem.partitioner import Partitioner

__all__ = [
    "BrokerDedup",
    "CompressionType",
    "InDoubt",
    "OnClusterChange",
    "ProducerConfig",
    "ProducerOptions",
    "WindowDiscovery",
    "validate_topic",
]

CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
WindowDiscovery = Literal["auto", "on", "off"]
InDoubt = Literal["fail", "resend"]
OnClusterChange = Literal["continue", "fail"]
BrokerDedup = Literal["window", "range"]

_INT32_MAX: Final = 2**31 - 1
_DEFAULT_PORT: Final = 9092
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_HOST: Final = re.compile(r"[^\s/@,:\[\]]+")
_CLIENT_NUMBERS: Final = itertools.count(1)

# Java's limits, so that a level moves over with its property. Codecs not named here have no levels.
_LEVELS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
)
# The module each codec needs, and what to install for it.
_CODEC_LIBRARIES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "snappy": ("cramjam", "aioidem[snappy]"),
        "lz4": ("lz4", "lz4"),
        "zstd": ("zstandard", "zstandard"),
    }
)


class _Refused(Exception):  # noqa: N818 - not an error yet: the caller knows the option's name
    """A kind does not take a value. Becomes a ConfigError where the option's name is known."""


class _Kind(Protocol):
    """What values an option takes. A property's value is text, and its times are milliseconds."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words, for native values."""
        ...

    @property
    def allowed_text(self) -> str:
        """What is allowed, in words, for a property's text."""
        ...

    def accept(self, value: object) -> object:
        """Return the value in its one form. Raises _Refused."""
        ...

    def parse(self, text: str) -> object:
        """Return a property's text as a value for ``accept``. Raises _Refused."""
        ...


def _whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise _Refused
    return int(text)


@dataclasses.dataclass(frozen=True, slots=True)
class _Flag:
    """True or False; in a property "true" or "false" in any case, as Java has it."""

    allowed: str = "True or False"
    allowed_text: str = "true or false"

    def accept(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise _Refused
        return value

    def parse(self, text: str) -> bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise _Refused from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Count:
    """A whole number within bounds, None where ``nullable``."""

    low: int
    high: int | None = _INT32_MAX
    nullable: bool = False

    @property
    def allowed(self) -> str:
        bounds = f"of at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
        return f"a whole number {bounds}{' or None' if self.nullable else ''}"

    @property
    def allowed_text(self) -> str:
        return self.allowed.removesuffix(" or None")

    def accept(self, value: object) -> int | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < self.low:
            raise _Refused
        if self.high is not None and value > self.high:
            raise _Refused
        return value

    def parse(self, text: str) -> int:
        return _whole_number(text)


@dataclasses.dataclass(frozen=True, slots=True)
class _Seconds:
    """A time in seconds. Kafka's times are an int32 of milliseconds, which is the upper bound."""

    positive: bool = True
    nullable: bool = False

    @property
    def allowed(self) -> str:
        bounds = "above 0, at most" if self.positive else "from 0 to"
        none = " or None" if self.nullable else ""
        return f"a number of seconds {bounds} {_INT32_MAX / 1000}{none}"

    @property
    def allowed_text(self) -> str:
        off = ", or -1 for none" if self.nullable else ""
        return f"a whole number of milliseconds {int(self.positive)} to {_INT32_MAX}{off}"

    def accept(self, value: object) -> float | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _Refused
        if not 0 <= value <= _INT32_MAX / 1000 or (self.positive and value == 0):  # NaN fails too
            raise _Refused
        return float(value)

    def parse(self, text: str) -> float | None:
        milliseconds = _whole_number(text)
        if milliseconds == -1 and self.nullable:
            return None
        return milliseconds / 1000


@dataclasses.dataclass(frozen=True, slots=True)
class _Text:
    """Text that fits a string of the protocol (int16 length), None where ``nullable``."""

    nullable: bool = False

    @property
    def allowed(self) -> str:
        return f"a string of 1 to 32767 bytes in UTF-8{' or None' if self.nullable else ''}"

    @property
    def allowed_text(self) -> str:
        return self.allowed.removesuffix(" or None")

    def accept(self, value: object) -> str | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, str):
            raise _Refused
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise _Refused from None
        if not 1 <= size <= 32767:
            raise _Refused
        return value

    def parse(self, text: str) -> str:
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class _Pem:
    """A path or PEM text of any length, or None."""

    allowed: str = "a string that is not empty, or None"
    allowed_text: str = "a text that is not empty"

    def accept(self, value: object) -> str | None:
        if value is None or (isinstance(value, str) and value):
            return value
        raise _Refused

    def parse(self, text: str) -> str:
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class _Hidden:
    """A secret, kept as a `Secret` and never quoted; or None."""

    allowed: str = "a string in UTF-8 or aioidem._config.secret.Secret of one, not empty, or None"
    allowed_text: str = "a text in UTF-8 that is not empty"

    def accept(self, value: object) -> Secret[str] | None:
        if value is None:
            return None
        if not isinstance(value, str | Secret):
            raise _Refused
        return _readable(Secret(value))

    def parse(self, text: str) -> Secret[str]:
        return _readable(Secret(text))


def _readable(secret: Secret[str]) -> Secret[str]:
    """The same, if it is text that has a form in UTF-8: the error of what has none shows it."""
    text = secret.reveal()
    if not isinstance(text, str) or not text or not in_utf8(text):
        raise _Refused
    return secret


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """One of a few words, the same in every family of names; None where ``nullable``."""

    words: tuple[str, ...]
    nullable: bool = False

    @property
    def allowed(self) -> str:
        none = " or None" if self.nullable else ""
        return f"one of {', '.join(map(repr, self.words))}{none}"

    @property
    def allowed_text(self) -> str:
        return "one of " + ", ".join(word or "(empty)" for word in self.words)

    def accept(self, value: object) -> str | None:
        if value is None and self.nullable:
            return None
        if not isinstance(value, str) or value not in self.words:
            raise _Refused
        return value

    def parse(self, text: str) -> str:
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class _Acks:
    """How many replicas must have a batch before it is answered; "all" and -1 are the same."""

    allowed: str = "'all' (or -1), 1 or 0"
    allowed_text: str = "all (or -1), 1 or 0"

    def accept(self, value: object) -> int:
        if value == "all":
            return -1
        if not isinstance(value, int) or isinstance(value, bool) or value not in {-1, 0, 1}:
            raise _Refused
        return value

    def parse(self, text: str) -> str | int:
        return text if text == "all" else _whole_number(text)


@dataclasses.dataclass(frozen=True, slots=True)
class _Addresses:
    """Where to ask for the cluster first: at least one address, duplicates dropped."""

    allowed: str = (
        "'host:port' (port 1 to 65535, 9092 when left out, IPv6 as '[::1]:9092'), several joined "
        "by commas or in a list, or (host, port) pairs"
    )
    allowed_text: str = "host:port[,host:port...] (port 1 to 65535, IPv6 as [::1]:9092)"

    def accept(self, value: object) -> tuple[tuple[str, int], ...]:
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or isinstance(entries, bytes | Mapping):
            raise _Refused
        addresses = [address for entry in entries for address in self._read(entry)]
        if not addresses:
            raise _Refused
        return tuple(dict.fromkeys(addresses))

    def parse(self, text: str) -> str:
        return text

    def _read(self, entry: object) -> list[tuple[str, int]]:
        if isinstance(entry, str):
            parts = [part.strip() for part in entry.split(",")]
            return [_address(part) for part in parts if part]
        match entry:
            case (str() as host, int() as port) if not isinstance(port, bool):
                return [_checked_address(host, port, ipv6=":" in host)]
            case _:
                raise _Refused


def _address(text: str) -> tuple[str, int]:
    """Read "host", "host:port", "[v6]" or "[v6]:port"."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise _Refused
        return _checked_address(host, _port(rest[1:]) if rest else _DEFAULT_PORT, ipv6=True)
    host, colon, port = text.partition(":")
    return _checked_address(host, _port(port) if colon else _DEFAULT_PORT, ipv6=False)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise _Refused
    return int(text)


def _checked_address(host: str, port: int, *, ipv6: bool) -> tuple[str, int]:
    bare = host.replace(":", "") if ipv6 else host
    if not _HOST.fullmatch(bare) or not 1 <= port <= 65535:
        raise _Refused
    return host, port


@dataclasses.dataclass(frozen=True, slots=True)
class _Places:
    """Host names, domains and networks, or None for all."""

    allowed: str = (
        "host names, domains as '*.example.org' and networks as '10.1.0.0/16', joined by commas "
        "or in a list, or None"
    )
    allowed_text: str = "host names, *.domains and networks, joined by commas"

    def accept(self, value: object) -> tuple[str, ...] | None:
        if value is None:
            return None
        entries = value.split(",") if isinstance(value, str) else value
        if not isinstance(entries, Iterable) or isinstance(entries, bytes | Mapping):
            raise _Refused
        places = tuple(each.strip() if isinstance(each, str) else "" for each in entries)
        if not places or not all(_is_place(each) for each in places):
            raise _Refused
        return places

    def parse(self, text: str) -> str:
        return text


def _is_place(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        name = text.removeprefix("*.")
        return _HOST.fullmatch(name) is not None and "*" not in name
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class _Function:
    """Something to call, or None for the built-in choice. Has no text form."""

    allowed: str = "a callable (see aioidem.partitioner.Partitioner) or None"
    allowed_text: str = "nothing: it has no text form"

    def accept(self, value: object) -> object:
        if value is not None and not callable(value):
            raise _Refused
        return value

    def parse(self, text: str) -> object:  # noqa: ARG002 - the protocol's name
        raise _Refused


@dataclasses.dataclass(frozen=True, slots=True)
class _Instance:
    """An object with a method (of its type, if that is given), or None. Has no text form."""

    allowed: str
    method: str
    type: type | None = None
    allowed_text: str = "nothing: it has no text form"

    def accept(self, value: object) -> object:
        if value is None:
            return None
        fits = callable(getattr(value, self.method, None)) or callable(value)
        if not fits or (self.type is not None and not isinstance(value, self.type)):
            raise _Refused
        return value

    def parse(self, text: str) -> object:  # noqa: ARG002 - the protocol's name
        raise _Refused


@dataclasses.dataclass(frozen=True, slots=True)
class _Option:
    """An option's values, and its other names: Java's property and aiokafka's keyword argument."""

    kind: _Kind
    java: str | None = None
    aiokafka: str | None = None


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of ``Producer`` and ``ProducerConfig.build``; see `ProducerConfig`."""

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


def _next_client_id() -> str:
    return f"aioidem-producer-{next(_CLIENT_NUMBERS)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Every option of a producer, checked. Times are seconds, sizes bytes.

    Raises ConfigError when an option has an illegal value or contradicts another one.
    """

    bootstrap_servers: Annotated[
        tuple[tuple[str, int], ...],
        _Option(_Addresses(), "bootstrap.servers", "bootstrap_servers"),
    ]
    """Where to ask for the cluster first. Never empty."""

    client_id: Annotated[str, _Option(_Text(), "client.id", "client_id")] = dataclasses.field(
        default_factory=_next_client_id
    )
    """The name brokers log and count quotas under; ``aioidem-producer-N`` when not given."""

    acks: Annotated[int, _Option(_Acks(), "acks", "acks")] = -1
    """-1: all replicas in sync; 1: the leader, and an ACKED record that no follower has copied yet
    goes with it, also in a clean election; 0: nobody, and no record is ever called ACKED."""

    enable_idempotence: Annotated[
        bool, _Option(_Flag(), "enable.idempotence", "enable_idempotence")
    ] = True
    """Number batches so that a retry is never written twice (KIP-98). Needs ``acks=-1``."""

    transactional_id: Annotated[
        str | None, _Option(_Text(nullable=True), "transactional.id", "transactional_id")
    ] = None
    """The producer's identity across restarts. Given, the producer is transactional."""

    transaction_timeout: Annotated[
        float, _Option(_Seconds(), "transaction.timeout.ms", "transaction_timeout_ms")
    ] = 60.0
    """After how long the coordinator aborts a transaction by itself."""

    compression_type: Annotated[
        CompressionType,
        _Option(
            _Choice(("none", "gzip", "snappy", "lz4", "zstd")),
            "compression.type",
            "compression_type",
        ),
    ] = "none"
    """The codec of new batches."""

    compression_level: Annotated[
        int | None, _Option(_Count(-131072, 22, nullable=True), "compression.level")
    ] = None
    """The codec's level, None for its default. gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22
    (KIP-390). Among properties also ``compression.<codec>.level``, heeded for the codec in use."""

    batch_size: Annotated[int, _Option(_Count(1), "batch.size", "max_batch_size")] = 16384
    """A batch is full at this size, counted before compression. May exceed ``max_request_size``."""

    linger: Annotated[float, _Option(_Seconds(positive=False), "linger.ms", "linger_ms")] = 0.0
    """How long a batch that is not full may wait for more records."""

    late_sealing: Annotated[bool, _Option(_Flag(), "late.sealing")] = True
    """Let a partition's next batch outgrow ``batch_size`` while its window is full, as far as the
    topic is known to take it: that needs DESCRIBE_CONFIGS on the topic.
    """

    max_request_size: Annotated[int, _Option(_Count(1), "max.request.size", "max_request_size")] = (
        1048576
    )
    """The largest produce request, and so the largest record."""

    buffer_memory: Annotated[int, _Option(_Count(1), "buffer.memory")] = 33554432
    """Room for records that are not settled yet. Without room ``send`` waits."""

    max_block: Annotated[float, _Option(_Seconds(positive=False), "max.block.ms")] = 60.0
    """How long ``send`` may wait for room and metadata together."""

    delivery_timeout: Annotated[float, _Option(_Seconds(), "delivery.timeout.ms")] = 120.0
    """By when each record is settled, counted from when ``send`` has queued it (KIP-91): the wait
    for room before that is ``max_block``'s. At least ``linger`` + ``request_timeout``."""

    request_timeout: Annotated[
        float, _Option(_Seconds(), "request.timeout.ms", "request_timeout_ms")
    ] = 30.0
    """How long a silent broker is waited for before its connection is closed."""

    max_in_flight_requests_per_connection: Annotated[
        int, _Option(_Count(1, None), "max.in.flight.requests.per.connection")
    ] = 5
    """Requests outstanding on one connection. Not limited to 5 (KIP-1269): each partition has a
    window of its own."""

    window_discovery: Annotated[
        WindowDiscovery, _Option(_Choice(("auto", "on", "off")), "window.discovery")
    ] = "auto"
    """Learn from brokers how many batches per partition may be in flight (KIP-1269). "auto": from
    brokers that offer Produce v14 and name the KIP's topic config; "on": from all that offer v14;
    "off": never, 5 always."""

    trust_base_offset: Annotated[bool, _Option(_Flag(), "trust.base.offset")] = True
    """Believe that NOT_LEADER_OR_FOLLOWER and UNKNOWN_TOPIC_* without a base offset precede the
    append. True of Apache Kafka; set False for brokers of which it is not known."""

    in_doubt: Annotated[InDoubt, _Option(_Choice(("fail", "resend")), "in.doubt")] = "fail"
    """What becomes of a batch nobody can tell the fate of. "fail": its records end UNKNOWN.
    "resend": it is sent once more, which may write it twice (what Java does)."""

    on_cluster_change: Annotated[
        OnClusterChange, _Option(_Choice(("continue", "fail")), "on.cluster.change")
    ] = "continue"
    """What happens when the bootstrap servers lead to another cluster (another cluster id) and the
    old one is gone. What is in doubt ends UNKNOWN in either case. "continue": what was never
    written goes to the new cluster, under a new producer id. "fail": it ends NOT_WRITTEN, and the
    producer ends with ``ClusterChangedError``, as a transactional one always does."""

    broker_dedup: Annotated[BrokerDedup, _Option(_Choice(("window", "range")), "broker.dedup")] = (
        "window"
    )
    """How brokers know a retry: by their last batches, or by a range of sequences (KIP-758)."""

    producer_id_expiration: Annotated[
        float | None, _Option(_Seconds(nullable=True), "producer.id.expiration.ms")
    ] = None
    """The brokers' setting of that name (KIP-854), for when they may not be asked. None: ask."""

    retry_backoff: Annotated[
        float, _Option(_Seconds(positive=False), "retry.backoff.ms", "retry_backoff_ms")
    ] = 0.1
    """The pause before a first retry; it doubles up to ``retry_backoff_max`` (KIP-580)."""

    retry_backoff_max: Annotated[
        float, _Option(_Seconds(positive=False), "retry.backoff.max.ms")
    ] = 1.0
    """The longest pause between retries. Not below ``retry_backoff``."""

    reconnect_backoff: Annotated[
        float, _Option(_Seconds(positive=False), "reconnect.backoff.ms")
    ] = 0.05
    """The pause before a first reconnect; it doubles up to ``reconnect_backoff_max``."""

    reconnect_backoff_max: Annotated[
        float, _Option(_Seconds(positive=False), "reconnect.backoff.max.ms")
    ] = 1.0
    """The longest pause between reconnects. Not below ``reconnect_backoff``."""

    connection_setup_timeout: Annotated[
        float, _Option(_Seconds(), "socket.connection.setup.timeout.ms")
    ] = 10.0
    """How long connecting and the first exchange with a broker may take."""

    connections_max_idle: Annotated[
        float | None,
        _Option(_Seconds(nullable=True), "connections.max.idle.ms", "connections_max_idle_ms"),
    ] = 540.0
    """Close a connection unused for so long. None: never."""

    metadata_max_age: Annotated[
        float, _Option(_Seconds(), "metadata.max.age.ms", "metadata_max_age_ms")
    ] = 300.0
    """Ask for metadata anew after so long, even without a reason."""

    max_frame_bytes: Annotated[int, _Option(_Count(1024), "max.frame.bytes")] = 16 * 1024 * 1024
    """Bytes of the largest response accepted. A peer that announces more is not waited for. Most
    kinds of response have a smaller limit of their own; Metadata may have all of it, which are some
    400,000 partitions of the topics that are written to, with three replicas each.
    """

    allowed_brokers: Annotated[tuple[str, ...] | None, _Option(_Places(), "allowed.brokers")] = None
    """Where brokers may be: host names, domains (``*.example.org``) and networks
    (``10.1.0.0/16``). A cluster tells its clients where to connect; one that must not reach
    everything from here is kept to these, and to ``bootstrap_servers``. None: anywhere.
    """

    allow_auto_create_topics: Annotated[bool, _Option(_Flag(), "allow.auto.create.topics")] = True
    """Whether asking for a topic's metadata may create it, where the broker does that."""

    partitioner: Annotated[Partitioner | None, _Option(_Function(), aiokafka="partitioner")] = None
    """Chooses partitions. None: by the key's hash; without a key, sticky per batch (KIP-794)."""

    security_protocol: Annotated[
        SecurityProtocol,
        _Option(
            _Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
            "security.protocol",
            "security_protocol",
        ),
    ] = "PLAINTEXT"
    """Whether connections are encrypted (SSL), and authenticated with SASL."""

    ssl_context: Annotated[
        ssl.SSLContext | None,
        _Option(
            _Instance("an ssl.SSLContext or None", "wrap_bio", ssl.SSLContext),
            aiokafka="ssl_context",
        ),
    ] = None
    """Everything about TLS at once, instead of the ``ssl_`` options below. Below TLS 1.2 nothing is
    spoken, whatever it allows."""

    ssl_truststore_location: Annotated[str | None, _Option(_Pem(), "ssl.truststore.location")] = (
        None
    )
    """A PEM file of the certificate authorities to trust. None: the system's."""

    ssl_truststore_certificates: Annotated[
        str | None, _Option(_Pem(), "ssl.truststore.certificates")
    ] = None
    """The same, as PEM text (KIP-651)."""

    ssl_truststore_type: Annotated[
        Literal["PEM"], _Option(_Choice(("PEM",)), "ssl.truststore.type")
    ] = "PEM"
    """Java's other types are not read: ``keytool -exportcert -rfc`` makes PEM of them."""

    ssl_keystore_location: Annotated[str | None, _Option(_Pem(), "ssl.keystore.location")] = None
    """A PEM file of this client's private key and its certificates, for brokers that ask (mTLS).
    Read anew for each connection."""

    ssl_keystore_certificate_chain: Annotated[
        str | None, _Option(_Pem(), "ssl.keystore.certificate.chain")
    ] = None
    """The certificates, as PEM text. Needs ``ssl_keystore_key``."""

    ssl_keystore_key: Annotated[Secret[str] | None, _Option(_Hidden(), "ssl.keystore.key")] = None
    """The private key, as PEM text."""

    ssl_keystore_type: Annotated[
        Literal["PEM"], _Option(_Choice(("PEM",)), "ssl.keystore.type")
    ] = "PEM"
    """Likewise."""

    ssl_key_password: Annotated[Secret[str] | None, _Option(_Hidden(), "ssl.key.password")] = None
    """Of the private key, if it is encrypted."""

    ssl_endpoint_identification_algorithm: Annotated[
        Literal["https", ""],
        _Option(_Choice(("https", "")), "ssl.endpoint.identification.algorithm"),
    ] = "https"
    """"https": the certificate must name the broker's host. Empty: any host of a trusted authority
    may pose as a broker."""

    sasl_mechanism: Annotated[
        SaslMechanism | None,
        _Option(
            _Choice(
                (
                    "PLAIN",
                    "SCRAM-SHA-256",
                    "SCRAM-SHA-512",
                    "OAUTHBEARER",
                    "AWS_MSK_IAM",
                    "GSSAPI",
                ),
                nullable=True,
            ),
            "sasl.mechanism",
            "sasl_mechanism",
        ),
    ] = None
    """The one mechanism that is used; never another, whatever a broker offers."""

    sasl_username: Annotated[
        str | None, _Option(_Text(nullable=True), "sasl.username", "sasl_plain_username")
    ] = None
    """For PLAIN and SCRAM. In properties also in ``sasl.jaas.config``, as the others below."""

    sasl_password: Annotated[
        Secret[str] | None, _Option(_Hidden(), "sasl.password", "sasl_plain_password")
    ] = None
    """For PLAIN and SCRAM."""

    sasl_credentials: Annotated[
        Callable[[], object] | None,
        _Option(_Instance("a callable or None", "__call__")),
    ] = None
    """Instead of both: called for each exchange, async or not, it returns (user name, password)."""

    sasl_allow_plaintext: Annotated[bool, _Option(_Flag(), "sasl.allow.plaintext")] = False
    """Allow PLAIN, OAUTHBEARER and AWS_MSK_IAM over SASL_PLAINTEXT, and a token endpoint over http:
    whoever listens can then use the credentials."""

    sasl_oauth_token_provider: Annotated[
        TokenProvider | Callable[[], object] | None,
        _Option(
            _Instance("an object with a method token(), a callable, or None", "token"),
            aiokafka="sasl_oauth_token_provider",
        ),
    ] = None
    """For OAUTHBEARER: asked for a token at each exchange, async or not. See `aioidem.abc`."""

    sasl_oauthbearer_token_endpoint_url: Annotated[
        str | None, _Option(_Text(nullable=True), "sasl.oauthbearer.token.endpoint.url")
    ] = None
    """For OAUTHBEARER: where to get tokens with the client credentials below (KIP-768)."""

    sasl_oauthbearer_client_id: Annotated[
        str | None,
        _Option(_Text(nullable=True), "sasl.oauthbearer.client.credentials.client.id"),
    ] = None
    """Who asks there."""

    sasl_oauthbearer_client_secret: Annotated[
        Secret[str] | None,
        _Option(_Hidden(), "sasl.oauthbearer.client.credentials.client.secret"),
    ] = None
    """And its password."""

    sasl_oauthbearer_scope: Annotated[
        str | None, _Option(_Text(nullable=True), "sasl.oauthbearer.scope")
    ] = None
    """What is asked for; None leaves it to the provider."""

    sasl_aws_region: Annotated[str | None, _Option(_Text(nullable=True), "sasl.aws.region")] = None
    """For AWS_MSK_IAM. None: what the broker's name says, else botocore's."""

    sasl_aws_session: Annotated[
        object | None,
        _Option(_Instance("a botocore Session or None", "get_credentials")),
    ] = None
    """For AWS_MSK_IAM: where the credentials are from. None: botocore's default search."""

    sasl_kerberos_service_name: Annotated[
        str, _Option(_Text(), "sasl.kerberos.service.name", "sasl_kerberos_service_name")
    ] = "kafka"
    """For GSSAPI: the brokers' service, before their host names."""

    sasl_kerberos_domain_name: Annotated[
        str | None, _Option(_Text(nullable=True), aiokafka="sasl_kerberos_domain_name")
    ] = None
    """For GSSAPI: the host of the service, if it is not the one connected to."""

    def __post_init__(self) -> None:
        """Check each option, then all of them together. Raises ConfigError."""
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            try:
                accepted = option.kind.accept(value)
            except _Refused:
                raise _illegal(name, value, option.kind.allowed) from None
            if accepted is not value:
                object.__setattr__(self, name, accepted)
        self._check_guarantees()
        self._check_times()
        self._check_compression()
        for complaint in complaints(self):
            raise ConfigError(complaint)

    @classmethod
    @without_frames
    def build(
        cls,
        bootstrap_servers: str | Sequence[str] | Sequence[tuple[str, int]],
        **options: Unpack[ProducerOptions],
    ) -> Self:
        """Return the configuration for native names (seconds, bytes).

        ``bootstrap_servers``: "host:port", several of them joined by commas or in a sequence, or
        (host, port) pairs; the port is 9092 when left out. Raises ConfigError, also for a name
        that is not an option.
        """
        for name in options:
            if name not in _OPTIONS:
                raise _unknown(name, tuple(_OPTIONS))
        # The annotations say what a finished config holds; __post_init__ takes the looser forms.
        values: dict[str, object] = {"bootstrap_servers": bootstrap_servers, **options}
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    @without_frames
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return the configuration for Java's property names and text values (milliseconds, bytes).

        ``{"bootstrap.servers": "h:9092", "linger.ms": "5"}``. Options that Java lacks have names
        in its style: ``late.sealing``, ``window.discovery``. Raises ConfigError, also for a name
        that is not a property, for a value that is not a string, and without bootstrap.servers.
        """
        values: dict[str, object] = {}
        for name, text in _one_level(properties).items():
            if name == _JAAS:
                continue
            if name not in _BY_PROPERTY:
                raise _unknown(name, tuple(_BY_PROPERTY))
            field = _BY_PROPERTY[name]
            values[field] = _read_property(name, text, _OPTIONS[field].kind)
        values |= _jaas(properties, values)
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap.servers is required: host:port[,host:port...]")
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    @without_frames
    def from_keywords(cls, keywords: Mapping[str, object]) -> Self:
        """Return the configuration for the drop-in's names: aiokafka's, and for what aiokafka
        lacks Java's in snake_case (``delivery_timeout_ms``).

        Times are milliseconds, int or float; all else is as for ``build``. Raises ConfigError, also
        for a name that is not one of them.
        """
        values: dict[str, object] = {}
        for name, value in keywords.items():
            if name not in _BY_KEYWORD:
                raise _unknown(name, tuple(_BY_KEYWORD))
            field = _BY_KEYWORD[name]
            values[field] = _read_keyword(name, value, _OPTIONS[field].kind)
        return cls(**values)  # type: ignore[arg-type]

    def _check_guarantees(self) -> None:
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError(
                f"{_both('transactional_id')}={self.transactional_id!r} needs idempotence: "
                f"expected {_both('enable_idempotence')} not to be False"
            )
        if self.enable_idempotence and self.acks != -1:
            raise ConfigError(
                f"{_both('acks')}={self.acks}: expected 'all' with idempotence, which is on by "
                "default; pass enable_idempotence=False to give up its guarantees"
            )

    def _check_times(self) -> None:
        least = self.linger + self.request_timeout
        if self.delivery_timeout < least - 1e-6:  # sums of binary fractions are not exact
            raise ConfigError(
                f"{_both('delivery_timeout')}={self.delivery_timeout}: expected at least linger + "
                f"request_timeout = {self.linger} + {self.request_timeout} seconds"
            )
        for name in ("retry_backoff", "reconnect_backoff"):
            first, longest = getattr(self, name), getattr(self, f"{name}_max")
            if first > longest:
                raise ConfigError(
                    f"{_both(name)}={first}: expected at most {_both(f'{name}_max')}={longest} "
                    "(seconds)"
                )

    def _check_compression(self) -> None:
        codec, level = self.compression_type, self.compression_level
        library, install = _CODEC_LIBRARIES.get(codec, (None, None))
        if library is not None and importlib.util.find_spec(library) is None:
            raise ConfigError(
                f"compression_type={codec!r} needs the package {library}: pip install '{install}'"
            )
        if level is None:
            return
        if codec not in _LEVELS:
            raise ConfigError(f"compression_level={level}: expected None, {codec} has no levels")
        low, high = _LEVELS[codec]
        if not low <= level <= high:
            raise _illegal("compression_level", level, f"{low} to {high} for {codec}")


# The generated constructor's arguments are passwords, too.
ProducerConfig.__init__ = without_frames(ProducerConfig.__init__)  # type: ignore[method-assign]


def _options() -> Mapping[str, _Option]:
    """Collect the table from the annotations, in the fields' order."""
    hints = get_type_hints(ProducerConfig, include_extras=True)
    return MappingProxyType({name: hint.__metadata__[0] for name, hint in hints.items()})


_OPTIONS: Final = _options()
_BY_PROPERTY: Final[Mapping[str, str]] = MappingProxyType(
    {option.java: name for name, option in _OPTIONS.items() if option.java is not None}
)

_BY_KEYWORD: Final[Mapping[str, str]] = MappingProxyType(
    {
        option.aiokafka or (option.java or name).replace(".", "_"): name
        for name, option in _OPTIONS.items()
    }
)


_JAAS: Final = "sasl.jaas.config"


def _jaas(properties: Mapping[str, str], others: Mapping[str, object]) -> Mapping[str, object]:
    """Read the options in Java's login configuration. Nothing of it is ever quoted."""
    if _JAAS not in properties:
        return {}
    problem = "a text"
    try:
        options = read_jaas(properties[_JAAS])
    except (JaasError, TypeError) as error:
        problem = str(error) if isinstance(error, JaasError) else problem
    else:
        for field in options:
            if field in others:
                raise ConfigError(f"{_both(field)} is given twice: also in {_JAAS}")
        return {
            field: Secret(text) if isinstance(_OPTIONS[field].kind, _Hidden) else text
            for field, text in options.items()
        }
    raise ConfigError(f"{_JAAS}: expected {problem}")


def _one_level(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Resolve Java's names of the compression level: only the one of the codec in use counts."""
    codec = properties.get("compression.type", "none")
    levels = {f"compression.{name}.level": name for name in _LEVELS}
    resolved: dict[str, str] = {}
    for name, text in properties.items():
        if name not in levels:
            resolved[name] = text
        elif levels[name] == codec:
            resolved["compression.level"] = text
    return resolved


def _read_property(name: str, text: object, kind: _Kind) -> object:
    if not isinstance(text, str):
        raise _illegal(name, text, f"a string: {kind.allowed_text}")
    try:
        return kind.accept(kind.parse(text.strip()))
    except _Refused:
        raise _illegal(name, text, kind.allowed_text) from None


def _read_keyword(name: str, value: object, kind: _Kind) -> object:
    if not isinstance(kind, _Seconds):
        return value
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return kind.accept(value / 1000)
        return kind.accept(value)
    except (_Refused, OverflowError):
        raise _illegal(name, value, kind.allowed_text) from None


def _illegal(name: str, value: object, allowed: str) -> ConfigError:
    field = _BY_PROPERTY.get(name) or _BY_KEYWORD.get(name) or name
    hidden = field in _OPTIONS and isinstance(_OPTIONS[field].kind, _Hidden)
    shown = "***" if hidden else reprlib.repr(value)
    return ConfigError(f"{name}={shown}: expected {allowed}")


def _both(name: str) -> str:
    """Name an option so that it is recognised whichever family of names it was given under."""
    java = _OPTIONS[name].java
    return name if java is None or java == name else f"{name} ({java})"


_ALIKE: Final = 0.75
"""How alike two names must be for one to be meant by the other: "client.dns.lookup" is no
"client.id".
"""
_NEEDLESS: Final = MappingProxyType(
    {
        "retries": "records are retried until {}: set that",
        "client.dns.lookup": "every address of a host is tried already: leave it out",
    }
)
"""Java's properties for which there is nothing to set here, and why."""


def _unknown(name: str, known: tuple[str, ...]) -> ConfigError:
    """Say what was probably meant: the same option's name in this family, or the nearest one."""
    for native, option in _OPTIONS.items():
        here = native if native in known else option.java
        if name in {native, option.java, option.aiokafka} and here in known:
            return ConfigError(f"unknown option {name!r}: write {here!r}, {_unit(option, here)}")
    if name in _NEEDLESS:
        deadline = "delivery_timeout" if "delivery_timeout" in known else "delivery.timeout.ms"
        return ConfigError(f"unknown option {name!r}: {_NEEDLESS[name].format(deadline)}")
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
    if nearest:
        return ConfigError(f"unknown option {name!r}: did you mean {nearest[0]!r}?")
    return ConfigError(f"unknown option {name!r}: expected one of {', '.join(known)}")


def _unit(option: _Option, name: str) -> str:
    return option.kind.allowed if name in _OPTIONS else option.kind.allowed_text


def validate_topic(name: str) -> None:
    """Check a topic's name by Kafka's rules.

    1 to 249 characters of ``a-z A-Z 0-9 . _ -``, and neither "." nor "..". Raises RecordError.
    """
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise RecordError(
            f"topic {reprlib.repr(name)}: expected 1 to 249 characters of a-z, A-Z, 0-9, '.', '_', "
            "'-', and neither '.' nor '..'"
        )

"""ProducerConfig: every option of a producer as one frozen dataclass, checked when it is made.

Invariants:

- A `ProducerConfig` that exists is valid, however it was made (``build``, ``from_properties``, the
  constructor, ``dataclasses.replace``): everything is checked in ``__post_init__``.
- No value is corrected silently. A value out of range, an unknown name and a contradiction raise a
  `ConfigError` that names the option, its value and what is allowed. Values change form only:
  ``"all"`` becomes -1, ``"h1:9092,h2"`` a tuple of addresses, whole seconds a float.
- ``max_in_flight_requests_per_connection`` has no upper limit, idempotent or not (KIP-1269).

Rejected: pydantic (a dependency for sixty fields); turning idempotence off when another option
contradicts it, as Java's producer may (the caller would lose a guarantee without noticing); an
error for ``batch_size`` above ``max_request_size`` (it counts bytes before compression, so it may
well fit).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, Self, Unpack

from aioidem._config.compression import compression_complaints
from aioidem._config.kinds import RefusedValue
from aioidem._config.names import illegal, unknown
from aioidem._config.options import (
    OPTIONS,
    BrokerDedup,
    CompressionType,
    InDoubt,
    OnClusterChange,
    ProducerOptions,
    WindowDiscovery,
)
from aioidem._config.quoting import quoted
from aioidem._config.reading import read_keywords, read_properties
from aioidem._config.secret import Secret, without_frames
from aioidem._config.security import (
    SaslMechanism,
    SecurityProtocol,
    TokenProvider,
    security_complaints,
)
from aioidem._config.wording import (
    Spelling,
    argument,
    assigned,
    duration,
    named,
    spelled,
    unit,
)
from aioidem.errors import ConfigError
from aioidem.partitioner import Partitioner

__all__ = ["ProducerConfig"]

_CLIENT_NUMBERS: Final = itertools.count(1)


def _next_client_id() -> str:
    return f"aioidem-producer-{next(_CLIENT_NUMBERS)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Every option of a producer, checked. Times are in seconds, sizes in bytes.

    Make one with `build` (native names), `from_properties` (Java's names) or the constructor, and
    change a copy with `dataclasses.replace`. Every way checks all options.

    Raises:
        ConfigError: An option has an illegal value or contradicts another one.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = dataclasses.field(default_factory=_next_client_id)

    acks: int = -1
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout: float = 60.0

    compression_type: CompressionType = "none"
    compression_level: int | None = None
    batch_size: int = 16384
    linger: float = 0.0
    late_sealing: bool = True
    max_request_size: int = 1048576
    partitioner: Partitioner | None = None

    buffer_memory: int = 33554432
    max_block: float = 60.0
    delivery_timeout: float = 120.0
    request_timeout: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0

    max_in_flight_requests_per_connection: int = 5
    window_discovery: WindowDiscovery = "auto"
    broker_dedup: BrokerDedup = "window"
    in_doubt: InDoubt = "fail"
    trust_base_offset: bool = True
    producer_id_expiration: float | None = None
    on_cluster_change: OnClusterChange = "continue"

    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    connection_setup_timeout: float = 10.0
    connections_max_idle: float | None = 540.0
    metadata_max_age: float = 300.0
    max_frame_bytes: int = 16777216
    allowed_brokers: tuple[str, ...] | None = None
    allow_auto_create_topics: bool = True

    flight_recorder: int = 10000
    flight_record_directory: str | None = None
    flight_record_callback: Callable[[str, bytes], object] | None = None
    flight_record_signal: str | None = None

    security_protocol: SecurityProtocol = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    ssl_truststore_location: str | None = None
    ssl_truststore_certificates: str | None = None
    ssl_truststore_type: Literal["PEM"] = "PEM"
    ssl_keystore_location: str | None = None
    ssl_keystore_certificate_chain: str | None = None
    ssl_keystore_key: Secret[str] | None = None
    ssl_keystore_type: Literal["PEM"] = "PEM"
    ssl_key_password: Secret[str] | None = None
    ssl_endpoint_identification_algorithm: Literal["https", ""] = "https"

    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: Secret[str] | None = None
    sasl_credentials: Callable[[], object] | None = dataclasses.field(default=None, repr=False)
    sasl_allow_plaintext: bool = False
    sasl_oauth_token_provider: TokenProvider | Callable[[], object] | None = dataclasses.field(
        default=None, repr=False
    )
    sasl_oauthbearer_token_endpoint_url: str | None = dataclasses.field(default=None, repr=False)
    sasl_oauthbearer_client_id: str | None = None
    sasl_oauthbearer_client_secret: Secret[str] | None = None
    sasl_oauthbearer_scope: str | None = None
    sasl_aws_region: str | None = None
    sasl_aws_session: object | None = dataclasses.field(default=None, repr=False)
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_domain_name: str | None = None

    def __post_init__(self) -> None:
        """Check each option, then all of them together.

        Raises:
            ConfigError: An option has an illegal value or contradicts another one.
        """
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            try:
                accepted = option.kind.accept(value)
            except RefusedValue:
                raise illegal(argument(name), value, option.kind.allowed) from None
            if accepted is not value:
                object.__setattr__(self, name, accepted)
        for complaint in _complaints(self):
            raise ConfigError(complaint)

    @classmethod
    @without_frames
    def build(
        cls,
        bootstrap_servers: str | Sequence[str] | Sequence[tuple[str, int]],
        **options: Unpack[ProducerOptions],
    ) -> Self:
        """Return the configuration with these options; times are in seconds, sizes in bytes.

        Args:
            bootstrap_servers: "host:port", several of them joined by commas or in a sequence, or
                (host, port) pairs; the port is 9092 when left out.
            options: Options by the names of the attributes of this class.

        Raises:
            ConfigError: A name is not an option, a value is illegal, or two contradict each other.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown(name, tuple(OPTIONS))
        # The fields' types are those of a finished config; __post_init__ also accepts other forms,
        # such as "h1:9092,h2" for a tuple of addresses.
        values: dict[str, object] = {"bootstrap_servers": bootstrap_servers, **options}
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    @without_frames
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return the configuration for Java's properties: strings, with times in milliseconds.

        An example is ``{"bootstrap.servers": "h:9092", "linger.ms": "5"}``. Options that Java lacks
        have names in its style: ``late.sealing``, ``window.discovery``.

        Args:
            properties: Java's names and the values as text; sizes are bytes.

        Raises:
            ConfigError: bootstrap.servers is missing, a name is not a property, a value is illegal
                or not a string, or two options contradict each other.
        """
        values = read_properties(properties)
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap.servers is required: host:port[,host:port...]")
        with spelled(Spelling.PROPERTY):
            return cls(**values)  # type: ignore[arg-type]

    @classmethod
    @without_frames
    def from_keywords(cls, keywords: Mapping[str, object]) -> Self:
        """Return the configuration for arguments of `AIOKafkaProducer`, with times in milliseconds.

        Args:
            keywords: Values by aiokafka's names, and by Java's in snake_case
                (``delivery_timeout_ms``) for options that aiokafka lacks. Times may be int or
                float; all other values are as for `build`.

        Raises:
            ConfigError: A name is not an argument, a value is illegal, or two values contradict
                each other.
        """
        values = read_keywords(keywords)
        with spelled(Spelling.KEYWORD):
            return cls(**values)  # type: ignore[arg-type]


# The arguments of the generated constructor may be passwords, which no traceback may show.
ProducerConfig.__init__ = without_frames(ProducerConfig.__init__)  # type: ignore[method-assign]


def _complaints(config: ProducerConfig) -> Iterator[str]:
    """Yield a sentence for each contradiction between options."""
    yield from _about_guarantees(config)
    yield from _about_times(config)
    yield from _about_flight(config)
    yield from compression_complaints(config.compression_type, config.compression_level)
    yield from security_complaints(config, argument)


def _about_guarantees(config: ProducerConfig) -> Iterator[str]:
    if config.transactional_id is not None and not config.enable_idempotence:
        yield (
            f"{named('transactional_id')}={config.transactional_id!r} needs idempotence: "
            f"expected {named('enable_idempotence')} not to be False"
        )
    if config.enable_idempotence and config.acks != -1:
        yield (
            f"{assigned('acks', config.acks)}: expected 'all' with "
            f"{assigned('enable_idempotence', True)}, which is also the default; pass "
            f"{assigned('enable_idempotence', False)} to give up its guarantees"
        )


def _about_flight(config: ProducerConfig) -> Iterator[str]:
    for name in ("flight_record_directory", "flight_record_callback", "flight_record_signal"):
        if getattr(config, name) is not None and not config.flight_recorder:
            yield (
                f"{named(name)}={getattr(config, name)!r}: expected {named('flight_recorder')} "
                "not to be 0, which records nothing"
            )
    yield from _about_flight_signal(config)
    directory = config.flight_record_directory
    if directory is None:
        return
    wanted = _unmet_by_directory(directory)
    if wanted is not None:
        yield f"{named('flight_record_directory')}={quoted(directory)}: expected {wanted}"


def _unmet_by_directory(path: str) -> str | None:
    """Return what a directory for files must be and this path is not, or None.

    Asks the file system, which takes microseconds unless it is remote, once for each producer.
    """
    from pathlib import Path  # here, because few programs set the option

    try:
        exists = Path(path).is_dir()
    except OSError:  # the name is too long, or a directory above may not be looked into
        exists = False
    if not exists:
        return "a directory that exists"
    if not os.access(path, os.W_OK | os.X_OK):
        return "a directory in which this process may create files"
    return None


def _about_flight_signal(config: ProducerConfig) -> Iterator[str]:
    name = config.flight_record_signal
    if name is None:
        return
    given = f"{named('flight_record_signal')}={name!r}"
    if not hasattr(signal, name):
        yield f"{given}: this platform has no such signal: expected None"
    if config.flight_record_directory is None and config.flight_record_callback is None:
        yield (
            f"{given}: expected {named('flight_record_directory')} or "
            f"{named('flight_record_callback')}, which say where to"
        )


def _about_times(config: ProducerConfig) -> Iterator[str]:
    least = config.linger + config.request_timeout
    if config.delivery_timeout < least - 1e-6:  # sums of binary fractions are not exact
        yield (
            f"{named('delivery_timeout')}={duration(config.delivery_timeout)}: expected at least "
            f"{named('linger')} + {named('request_timeout')} = {duration(config.linger)} + "
            f"{duration(config.request_timeout)} {unit()}"
        )
    for name in ("retry_backoff", "reconnect_backoff"):
        first, longest = getattr(config, name), getattr(config, f"{name}_max")
        if first > longest:
            yield (
                f"{named(name)}={duration(first)}: expected at most {named(f'{name}_max')}="
                f"{duration(longest)} ({unit()})"
            )

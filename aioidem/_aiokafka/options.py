"""The meaning of the arguments of `AIOKafkaProducer`, and what happens if one is left out.

aiokafka keeps the order of a partition's records in every mode, because it never has two requests
to one broker in flight. `AIOKafkaProducer` keeps the order too, with five requests in flight where
that is safe. The rules:

- Without `acks` and `enable_idempotence`: `acks="all"` and idempotence. aiokafka's defaults are
  acks=1 and no idempotence. With those, a leader that fails can lose records that it has
  acknowledged, retries write duplicates, and only one request in flight keeps the order.
- With `acks=0` or `acks=1`: no idempotence, because brokers allow it with "all" only, and one
  request in flight, which keeps the order.
- With a `transactional_id`: idempotence, even with `enable_idempotence=False`, as in aiokafka.
  Frameworks pass False as their own default.
- With `enable_idempotence=False`: no idempotence. `acks` is still "all" unless it is passed.
- Without `max_block_ms`: `request_timeout_ms`, which is how long aiokafka lets `send` wait.
- Without `delivery_timeout_ms`: 120 s, or linger and request timeout together if that is more.
- Without `sasl_mechanism`: PLAIN if the protocol is a SASL one, as in aiokafka. If it is not, the
  sasl_ arguments are ignored, as in aiokafka, but with a warning.
- Without `sasl_allow_plaintext`: `SASL_PLAINTEXT` with PLAIN or OAUTHBEARER is allowed, as in
  aiokafka, but with a warning.

Invariant: nothing else that was passed is changed. Contradictory arguments raise `ConfigError`
(a ValueError), and an unknown argument raises TypeError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, get_args

from aioidem._config import (
    BrokerDedup,
    InDoubt,
    OnClusterChange,
    ProducerConfig,
    Secret,
    SecurityProtocol,
    WindowDiscovery,
    add_section,
    keyword_help,
)
from aioidem._log import LogLine, write
from aioidem.errors import ConfigError

__all__ = ["OMITTED", "MoreOptions", "Omitted", "check_serializer", "config_from"]

_DELIVERY_TIMEOUT_MS: Final = 120_000
_RETRY_BACKOFF_MAX_MS: Final = 1_000
_READABLE: Final = ("PLAIN", "OAUTHBEARER")
_SASL: Final = (
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)


class MoreOptions(TypedDict, total=False):
    """The arguments of `AIOKafkaProducer` that aiokafka does not have. Times are in milliseconds.

    The descriptions are copied from `ProducerConfig`. Where they mention another option, they use
    its name in `ProducerConfig`: what they call `linger` is `linger_ms` here.
    """

    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: float
    buffer_memory: int
    max_block_ms: float
    compression_level: int | None
    late_sealing: bool
    window_discovery: WindowDiscovery
    trust_base_offset: bool
    in_doubt: InDoubt
    on_cluster_change: OnClusterChange
    broker_dedup: BrokerDedup
    producer_id_expiration_ms: float | None
    retry_backoff_max_ms: float
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    socket_connection_setup_timeout_ms: float
    max_frame_bytes: int
    allowed_brokers: str | Sequence[str] | None
    allow_auto_create_topics: bool
    flight_recorder: int
    flight_record_directory: str | None
    flight_record_callback: Callable[[str, bytes], object] | None
    flight_record_signal: str | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_truststore_type: Literal["PEM"]
    ssl_keystore_location: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | Secret[str] | None
    ssl_keystore_type: Literal["PEM"]
    ssl_key_password: str | Secret[str] | None
    ssl_endpoint_identification_algorithm: Literal["https", ""]
    sasl_credentials: Callable[[], object] | None
    sasl_allow_plaintext: bool
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | Secret[str] | None
    sasl_oauthbearer_scope: str | None
    sasl_aws_region: str | None
    sasl_aws_session: object | None


_OWN_DEFAULTS: Final = {
    "max_in_flight_requests_per_connection": "5, or 1 without idempotence",
    "delivery_timeout_ms": "120000, or linger_ms + request_timeout_ms if that is more",
    "max_block_ms": "the value of request_timeout_ms",
    "retry_backoff_max_ms": "1000, or retry_backoff_ms if that is more",
    "sasl_allow_plaintext": (
        "True for PLAIN and OAUTHBEARER if SASL_PLAINTEXT is passed, with a warning; else False"
    ),
}
"""The drop-in's defaults, in words, where they differ from those of `ProducerConfig`."""

add_section(
    MoreOptions,
    "Arguments",
    functools.partial(keyword_help, MoreOptions.__annotations__, _OWN_DEFAULTS),
)


class Omitted:
    """The default of an argument for which None and False are values that a caller may pass."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<omitted>"


OMITTED: Final = Omitted()


def _omitted(value: object) -> bool:
    # Frameworks pass aiokafka's own marker for "not passed", which is a bare object().
    return isinstance(value, Omitted) or type(value) is object


def config_from(arguments: Mapping[str, Any], more: Mapping[str, Any]) -> ProducerConfig:
    """Return the configuration for the constructor's arguments.

    Args:
        arguments: All arguments that aiokafka has too; `OMITTED` if not passed.
        more: The arguments of `MoreOptions` that were passed.

    Raises:
        ConfigError: A value is illegal, or two contradict each other.
        TypeError: An argument is unknown.
    """
    for name in more:
        if name not in MoreOptions.__annotations__:
            raise TypeError(f"AIOKafkaProducer() got an unexpected keyword argument {name!r}")
    if arguments["security_protocol"] not in get_args(SecurityProtocol):
        # This is aiokafka's message, unchanged because users match its text. It does not mention
        # the SASL protocols, which are legal too.
        raise ConfigError("`security_protocol` should be SSL or PLAINTEXT")
    given = {name: value for name, value in arguments.items() if not _omitted(value)}
    given.update(more)
    if given["client_id"] is None:
        del given["client_id"]
    if given["compression_type"] is None:
        given["compression_type"] = "none"
    _choose_guarantees(given)
    _choose_times(given)
    _choose_sasl(given)
    return ProducerConfig.from_keywords(given)


def _choose_guarantees(given: dict[str, Any]) -> None:
    if given["transactional_id"] is not None:
        given["enable_idempotence"] = True
    acks = given.setdefault("acks", "all")
    idempotent = given.setdefault("enable_idempotence", acks in ("all", -1))
    given.setdefault("max_in_flight_requests_per_connection", 5 if idempotent else 1)


def _choose_times(given: dict[str, Any]) -> None:
    request_timeout, backoff = given["request_timeout_ms"], given["retry_backoff_ms"]
    given.setdefault("max_block_ms", request_timeout)
    given.setdefault("retry_backoff_max_ms", _at_least(_RETRY_BACKOFF_MAX_MS, backoff))
    given.setdefault(
        "delivery_timeout_ms",
        _at_least(_DELIVERY_TIMEOUT_MS, given["linger_ms"], request_timeout),
    )


def _at_least(usual: float, *parts: object) -> float:
    """Return ``usual``, or the sum of ``parts`` if that is more; all are in milliseconds.

    A part that is not a number counts as 0: `ProducerConfig` refuses that argument later.
    """
    return max(usual, sum(part for part in parts if isinstance(part, int | float)))


def _choose_sasl(given: dict[str, Any]) -> None:
    protocol = given["security_protocol"]
    if protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        _leave_out_sasl(given)
        return
    if "sasl_allow_plaintext" in given or protocol == "SASL_SSL":
        return
    asks_elsewhere = given.get("sasl_oauthbearer_token_endpoint_url") is not None
    if given["sasl_mechanism"] in _READABLE and not asks_elsewhere:
        write(
            LogLine.CREDENTIALS_READABLE,
            f"{given['sasl_mechanism']} over SASL_PLAINTEXT shows the credentials to anybody who "
            "can read the network traffic; SASL_SSL does not",
        )
        given["sasl_allow_plaintext"] = True


def _leave_out_sasl(given: dict[str, Any]) -> None:
    """Remove the sasl_ arguments, which are not used without SASL, and log a warning.

    aiokafka ignores them too, so that the same arguments work for brokers with and without SASL.
    """
    unused = [name for name in _SASL if given[name] is not None]
    for name in _SASL:
        del given[name]
    if given.pop("sasl_mechanism") != "PLAIN" or unused:  # PLAIN is aiokafka's default
        write(
            LogLine.SASL_UNUSED,
            f"the sasl_ arguments are not used: security_protocol is {given['security_protocol']}",
        )


def check_serializer(name: str, serializer: object) -> None:
    """Check that a serialiser is a callable or None.

    Raises:
        ConfigError: The serialiser is neither.
    """
    if serializer is not None and not callable(serializer):
        raise ConfigError(f"{name}={serializer!r}: expected a callable or None")

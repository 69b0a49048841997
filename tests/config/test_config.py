"""The configuration: what it accepts as options and as Java's properties, and its errors."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import math
import os
import pickle
import pydoc
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given
from hypothesis import strategies as st

from aioidem import Producer
from aioidem._aiokafka.options import MoreOptions
from aioidem._config import ProducerConfig, ProducerOptions, validate_topic
from aioidem._config.kinds import Seconds
from aioidem._config.names import BY_KEYWORD, BY_PROPERTY
from aioidem._config.options import OPTIONS, SOURCES_OF_SECRETS
from aioidem.errors import ConfigError, RecordError
from aioidem.partitioner import DefaultPartitioner

_FIELDS = {field.name: field for field in dataclasses.fields(ProducerConfig)}
_IN_FLIGHT = "max_in_flight_requests_per_connection"
_PEMS = [
    *("ssl_truststore_location", "ssl_truststore_certificates", "ssl_keystore_location"),
    "ssl_keystore_certificate_chain",
]
_HIDDEN = [
    *("ssl_keystore_key", "ssl_key_password", "sasl_password", "sasl_oauthbearer_client_secret"),
]
_OBJECTS = [
    *("ssl_context", "sasl_credentials", "sasl_oauth_token_provider", "sasl_aws_session"),
    "flight_record_callback",
]
_SASL_TEXTS = [
    *("sasl_username", "sasl_oauthbearer_token_endpoint_url", "sasl_oauthbearer_client_id"),
    *("sasl_oauthbearer_scope", "sasl_aws_region", "sasl_kerberos_domain_name"),
]


def _build(**options: Any) -> ProducerConfig:
    """Build a configuration from options of any name and type, as untyped callers can."""
    return ProducerConfig.build(**{"bootstrap_servers": "h", **options})


def _properties(properties: Mapping[str, str]) -> ProducerConfig:
    return ProducerConfig.from_properties({"bootstrap.servers": "h", **properties})


# --- defaults -------------------------------------------------------------------------------------


def test_defaults() -> None:
    """Each option has its documented default."""
    config = ProducerConfig.build("broker:9092", client_id="c")
    assert dataclasses.asdict(config) == {
        "bootstrap_servers": (("broker", 9092),),
        "client_id": "c",
        "acks": -1,
        "enable_idempotence": True,
        "transactional_id": None,
        "transaction_timeout": 60.0,
        "compression_type": "none",
        "compression_level": None,
        "batch_size": 16384,
        "linger": 0.0,
        "late_sealing": True,
        "max_request_size": 1048576,
        "buffer_memory": 33554432,
        "max_block": 60.0,
        "delivery_timeout": 120.0,
        "request_timeout": 30.0,
        "max_in_flight_requests_per_connection": 5,
        "window_discovery": "auto",
        "trust_base_offset": True,
        "in_doubt": "fail",
        "on_cluster_change": "continue",
        "broker_dedup": "window",
        "producer_id_expiration": None,
        "retry_backoff": 0.1,
        "retry_backoff_max": 1.0,
        "reconnect_backoff": 0.05,
        "reconnect_backoff_max": 1.0,
        "connection_setup_timeout": 10.0,
        "connections_max_idle": 540.0,
        "metadata_max_age": 300.0,
        "allowed_brokers": None,
        "max_frame_bytes": 16777216,
        "allow_auto_create_topics": True,
        "flight_recorder": 10000,
        "flight_record_directory": None,
        "flight_record_signal": None,
        "partitioner": None,
        "security_protocol": "PLAINTEXT",
        "ssl_truststore_type": "PEM",
        "ssl_keystore_type": "PEM",
        "ssl_endpoint_identification_algorithm": "https",
        "sasl_allow_plaintext": False,
        "sasl_kerberos_service_name": "kafka",
        **dict.fromkeys([*_PEMS, *_HIDDEN, *_OBJECTS, *_SASL_TEXTS, "sasl_mechanism"]),
    }


def test_each_producer_gets_a_client_id_of_its_own() -> None:
    """Without client_id, each configuration gets a different client id."""
    first, second = ProducerConfig.build("h"), ProducerConfig.build("h")
    assert first.client_id.startswith("aioidem-producer-")
    assert first.client_id != second.client_id


# --- KIP-1269 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [6, 20, 1000, 10**12])
@pytest.mark.parametrize("kind", [{"enable_idempotence": True}, {"transactional_id": "tx"}])
def test_no_config_error_above_5_for_idempotent_and_transactional_producers(
    in_flight: int, kind: dict[str, Any]
) -> None:
    """More than 5 requests in flight are accepted for idempotent and transactional producers."""
    assert getattr(_build(**{_IN_FLIGHT: in_flight}, **kind), _IN_FLIGHT) == in_flight


def test_no_config_error_above_5_among_properties() -> None:
    """More than 5 requests in flight are accepted as a property, too."""
    properties = {"max.in.flight.requests.per.connection": "20", "transactional.id": "tx"}
    assert getattr(_properties(properties), _IN_FLIGHT) == 20


@pytest.mark.parametrize("in_flight", [0, -1])
def test_in_flight_is_at_least_1(in_flight: int) -> None:
    with pytest.raises(ConfigError, match=rf"{_IN_FLIGHT}={in_flight}: expected .*at least 1"):
        _build(**{_IN_FLIGHT: in_flight})


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_as", "addresses"),
    [
        ("h", [("h", 9092)]),
        ("h:1", [("h", 1)]),
        ("h:1,h2", [("h", 1), ("h2", 9092)]),
        (" h:1 , h2:65535 ,", [("h", 1), ("h2", 65535)]),
        (["h:1", "h2"], [("h", 1), ("h2", 9092)]),
        (("h:1,h2", "h3"), [("h", 1), ("h2", 9092), ("h3", 9092)]),
        ([("h", 1), ("::1", 2)], [("h", 1), ("::1", 2)]),
        ("[::1]:7,[fe80::1%eth0]", [("::1", 7), ("fe80::1%eth0", 9092)]),
        ("h:1,h:1,h", [("h", 1), ("h", 9092)]),
        ("under_score.example-1:9", [("under_score.example-1", 9)]),
    ],
)
def test_addresses_are_taken_in_every_usual_form(
    given_as: Any, addresses: list[tuple[str, int]]
) -> None:
    """Bootstrap addresses may be a text or a list, with or without ports, IPv4 or IPv6."""
    assert _build(bootstrap_servers=given_as).bootstrap_servers == tuple(addresses)


@pytest.mark.parametrize(
    "given_as",
    [
        *("", ",", " ", "h:", "h:0", "h:65536", "h:-1", "h:x", "h: 9", "h:9:9", ":9", "h:٣"),
        *("::1", "[::1", "[::1]9", "[]:9", "[h]:9", "PLAINTEXT://h:9", "h/x", "u@h:1", "h h:1"),
        *(None, 5, b"h:9", [], {}, {"h": 9}, ["h", None], [("h", "9")], [("h", True)]),
        *([("h", 1, 2)], [("h", 0)], [("", 9)], [("::/", 9)]),
    ],
)
def test_what_is_no_address_is_refused(given_as: Any) -> None:
    """An illegal bootstrap address, for example one with port 0, raises ConfigError."""
    with pytest.raises(ConfigError, match=r"bootstrap_servers=.*: expected 'host:port'"):
        _build(bootstrap_servers=given_as)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True), st.integers(1, 65535)
        ),
        min_size=1,
        unique=True,
    )
)
def test_addresses_are_read_back_in_order(addresses: list[tuple[str, int]]) -> None:
    """Bootstrap addresses keep their order."""
    text = ",".join(f"{host}:{port}" for host, port in addresses)
    assert ProducerConfig.build(text).bootstrap_servers == tuple(addresses)
    assert ProducerConfig.build(addresses).bootstrap_servers == tuple(addresses)


@given(st.text())
def test_any_text_as_address_is_taken_or_refused_with_config_error(text: str) -> None:
    """Any text as bootstrap_servers is accepted, or raises ConfigError."""
    try:
        addresses = ProducerConfig.build(text).bootstrap_servers
    except ConfigError:
        return
    assert addresses
    assert all(host and 1 <= port <= 65535 for host, port in addresses)


# --- single options -------------------------------------------------------------------------------

_SECONDS_FROM_0 = [
    *("linger", "max_block", "retry_backoff", "retry_backoff_max"),
    *("reconnect_backoff", "reconnect_backoff_max"),
]
_SECONDS_ABOVE_0 = [
    *("transaction_timeout", "delivery_timeout", "request_timeout", "producer_id_expiration"),
    *("connection_setup_timeout", "connections_max_idle", "metadata_max_age"),
]
_COUNTS = ["batch_size", "max_request_size", "buffer_memory", _IN_FLIGHT, "max_frame_bytes"]
_FLAGS = [
    *("enable_idempotence", "late_sealing", "trust_base_offset", "allow_auto_create_topics"),
    "sasl_allow_plaintext",
]
_CHOICES = [
    *("compression_type", "window_discovery", "in_doubt", "broker_dedup", "security_protocol"),
    *("ssl_truststore_type", "ssl_keystore_type", "on_cluster_change"),
]
_TEXTS = [
    *("client_id", "transactional_id", "sasl_kerberos_service_name", "flight_record_directory"),
    *_SASL_TEXTS,
]


def _refused() -> list[tuple[str, Any]]:
    """Return pairs of an option and a value that it must refuse for the value's range or type."""
    rows: list[tuple[str, Any]] = []
    times: list[Any] = [-1, -0.001, math.nan, math.inf, -math.inf, 2**31, 10**400, "1", True, b""]
    rows += [(name, value) for name in _SECONDS_FROM_0 + _SECONDS_ABOVE_0 for value in times]
    rows += [(name, value) for name in _SECONDS_ABOVE_0 for value in (0, 0.0)]
    rows += [(name, None) for name in _SECONDS_FROM_0]
    counts: list[Any] = [0, -1, 1.0, "5", True, None]
    rows += [(name, value) for name in _COUNTS for value in counts]
    flags: list[Any] = [1, 0, "true", None]
    words: list[Any] = ["", "ON", "x", None, True, []]
    texts: list[Any] = ["", 5, b"x", "é" * 16384, "\ud800"]
    rows += [(name, 2**31) for name in _COUNTS if name != _IN_FLIGHT]
    rows += [(name, value) for name in _FLAGS for value in flags]
    rows += [(name, value) for name in _CHOICES for value in words]
    rows += [(name, value) for name in _TEXTS for value in texts]
    rows += [(name, value) for name in _PEMS + _HIDDEN for value in ("", 5, b"x", True)]
    rows += [(name, value) for name in _OBJECTS for value in (5, "x", object())]
    rows += [("sasl_mechanism", value) for value in ("plain", "", True)]
    rows += [("ssl_endpoint_identification_algorithm", value) for value in ("HTTPS", None)]
    rows += [("client_id", None), ("max_frame_bytes", 1023)]
    rows += [("flight_record_signal", value) for value in ("", "SIGKILL", "sigusr1", 10, True)]
    rows += [("flight_recorder", value) for value in (-1, 1.0, "5", True, None, 10**8)]
    rows += [("acks", value) for value in (2, -2, True, False, "1", "ALL", None, 1.0)]
    rows += [("partitioner", value) for value in (5, "murmur2", object())]
    rows += [("allowed_brokers", value) for value in ("", "a b", "*", "10.0.0.0/33", 5, [5], b"h")]
    rows += [("compression_level", value) for value in (True, "3", 1.5, 23, -131073)]
    return rows


@pytest.mark.parametrize("name", sorted({name for name, _ in _refused()}))
def test_a_bad_value_is_refused_naming_option_value_and_what_is_allowed(name: str) -> None:
    """The error for a bad value names the option, the value and what is allowed."""
    for value in [bad for each, bad in _refused() if each == name]:
        is_refused(name, value)


@pytest.mark.parametrize("name", ["linger", "batch_size", "acks", "client_id"])
def test_a_number_that_python_writes_to_nobody_is_refused_too(name: str) -> None:
    """Python raises ValueError where an integer of more than 4,300 digits is to become text."""
    for value in (10**5_000, (10**5_000,)):
        with pytest.raises(ConfigError, match=rf"{name}=.*<an int of 16610 bits>.*: expected "):
            _build(**{name: value})
        with pytest.raises(RecordError, match=r"topic .*<an int of 16610 bits>.*: expected "):
            validate_topic(value)  # type: ignore[arg-type]


def is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        _build(**{name: value})
    text = str(caught.value)
    assert text.startswith(f"ConfigError: {name}=")
    assert ": expected " in text
    assert len(text) < 300
    if name in SOURCES_OF_SECRETS:
        assert text.startswith(f"ConfigError: {name}=<{type(value).__name__}>: ")
    elif name in _HIDDEN:
        assert text.startswith(f"ConfigError: {name}=***: ")
    elif not isinstance(value, str | int) or len(str(value)[:30]) < 20:
        assert repr(value)[:10] in text


def test_every_option_is_among_those_tested_for_bad_values() -> None:
    """`_refused` has bad values for every option except bootstrap_servers."""
    tested = {name for name, _ in _refused()}
    assert tested | {"bootstrap_servers"} == set(_FIELDS)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("acks", "all", -1),
        ("acks", -1, -1),
        ("linger", 1, 1.0),
        ("linger", 0, 0.0),
        ("max_block", 0, 0.0),
        ("flight_recorder", 0, 0),
        ("delivery_timeout", 2147483.647, 2147483.647),
        ("connections_max_idle", None, None),
        ("producer_id_expiration", 86400, 86400.0),
        ("batch_size", 1, 1),
        ("batch_size", 2**31 - 1, 2**31 - 1),
        ("max_request_size", 1, 1),
        ("transactional_id", "é", "é"),
        ("window_discovery", "off", "off"),
        ("partitioner", len, len),
    ],
)
def test_values_at_the_edges_are_taken(name: str, value: Any, kept: Any) -> None:
    """The smallest and the largest allowed values are accepted."""
    taken = getattr(_build(**{name: value}), name)
    assert taken == kept
    assert type(taken) is type(kept)


def test_a_batch_may_be_larger_than_a_request_because_it_counts_before_compression() -> None:
    """batch_size may exceed max_request_size, because it limits the size before compression."""
    config = _build(batch_size=4 << 20, max_request_size=1 << 20, compression_type="gzip")
    assert config.batch_size > config.max_request_size


# --- unknown names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lingr", "did you mean 'linger'?"),
        ("deliverytimeout", "did you mean 'delivery_timeout'?"),
        ("linger_ms", "write 'linger', a number of seconds"),
        ("linger.ms", "write 'linger', a number of seconds"),
        ("max_batch_size", "write 'batch_size', a whole number"),
        ("zzz", "all options are listed in docs/options.md and help("),
        ("retries", "records are retried until delivery_timeout: set that"),
        ("send_buffer_bytes", "the operating system sizes the buffers of sockets"),
        ("ssl_keystore_password", "the key store is a PEM file; if its private key is encry"),
    ],
)
def test_an_unknown_option_is_refused_with_what_was_probably_meant(name: str, hint: str) -> None:
    """The error for an unknown option says what to write instead, or where options are."""
    with pytest.raises(ConfigError) as caught:
        _build(**{name: 1})
    assert f"unknown option {name!r}: {hint}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("linger", "write 'linger.ms', a whole number of milliseconds"),
        ("batch_size", "write 'batch.size', a whole number"),
        ("max.in.flight.request.per.connection", "mean 'max.in.flight.requests.per.connection'?"),
        ("zzz", "all options are listed in docs/options.md and help("),
        ("retries", "records are retried until delivery.timeout.ms: set that"),
        ("client.dns.lookup", "every address of a host is tried already: leave it out"),
        ("key.serializer", "keys and values are bytes here: serialize them before you send"),
        ("value.serializer", "keys and values are bytes here: serialize them before you send"),
        ("partitioner.class", "partitions are chosen as Java does: leave it out"),
        ("interceptor.classes", "there are no interceptors: wrap send()"),
        ("metrics.recording.level", "every metric is always recorded: leave it out"),
        ("send.buffer.bytes", "the operating system sizes the buffers of sockets"),
        ("receive.buffer.bytes", "the operating system sizes the buffers of sockets"),
        ("ssl.protocol", "TLS 1.2 or later: leave it out"),
        ("ssl.truststore.password", "a PEM file of certificates, which has no password"),
        ("ssl.keystore.password", "is encrypted, its password is ssl.key.password"),
    ],
)
def test_an_unknown_property_is_refused_with_what_was_probably_meant(name: str, hint: str) -> None:
    """The error for an unknown property says what to write instead, or where they are."""
    with pytest.raises(ConfigError, match=r"unknown option") as caught:
        _properties({name: "1"})
    assert hint in str(caught.value)


def test_the_drop_ins_user_is_sent_to_the_drop_ins_arguments() -> None:
    """The error for an unknown argument of `AIOKafkaProducer` uses and lists its names."""
    for name, hint in (
        ("zzz", "listed in docs/aiokafka.md and help(aioidem.AIOKafkaProducer)"),
        ("retries", "until delivery_timeout_ms: set that"),
    ):
        with pytest.raises(ConfigError) as caught:
            ProducerConfig.from_keywords({"bootstrap_servers": "h", name: 1})
        assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("name", ["client.dns.lookup", "retries", "client.telemetry.push"])
def test_no_option_is_suggested_that_means_something_else(name: str) -> None:
    """The error for an unknown property does not suggest a similar name with another meaning."""
    with pytest.raises(ConfigError) as caught:
        _properties({name: "1"})
    assert "did you mean" not in str(caught.value)


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("idempotence", [{}, {"enable_idempotence": True}])
def test_weak_acks_with_idempotence_are_refused_with_the_way_out(
    acks: int, idempotence: dict[str, bool]
) -> None:
    """Idempotence with acks other than all is refused; the error says how to turn it off."""
    with pytest.raises(ConfigError, match=rf"acks={acks}: .*pass enable_idempotence=False"):
        _build(acks=acks, **idempotence)
    assert _build(acks=acks, enable_idempotence=False).acks == acks


@pytest.mark.parametrize("idempotence", [{}, {"enable.idempotence": "true"}])
def test_weak_acks_among_properties_are_refused_in_javas_spelling(
    idempotence: dict[str, str],
) -> None:
    """The way out is a property that can be given as it is written; the default is named as such.

    A property given explicitly is not called the default.
    """
    with pytest.raises(ConfigError) as caught:
        _properties({"acks": "1", **idempotence})
    assert "acks=1: expected 'all' with enable.idempotence=true, which is also the def" in str(
        caught.value
    )
    assert "pass enable.idempotence=false" in str(caught.value)
    assert _properties({"acks": "1", "enable.idempotence": "false"}).acks == 1


def test_contradicting_times_are_shown_as_the_caller_wrote_them() -> None:
    """Java's properties and the drop-in's arguments are named as such, in milliseconds."""
    with pytest.raises(ConfigError, match=r" delivery\.timeout\.ms=1: .* 30000 milliseconds$"):
        _properties({"delivery.timeout.ms": "1"})
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_keywords({"bootstrap_servers": "h", "delivery_timeout_ms": 1})
    assert str(caught.value).endswith(
        "delivery_timeout_ms=1: expected at least linger_ms + request_timeout_ms = 0 + 30000 "
        "milliseconds"
    )
    with pytest.raises(ConfigError, match=r"delivery_timeout .*=1\.0: .* seconds$"):
        _build(delivery_timeout=1)  # the spelling does not outlast the call that set it


def test_a_transactional_id_without_idempotence_is_refused() -> None:
    """A transactional_id with enable_idempotence=False is refused."""
    with pytest.raises(ConfigError, match=r"transactional_id .*'tx'.*enable_idempotence"):
        _build(transactional_id="tx", enable_idempotence=False)


def test_a_delivery_timeout_below_linger_plus_request_timeout_is_refused() -> None:
    """A delivery_timeout shorter than linger + request_timeout is refused, as in Java."""
    with pytest.raises(ConfigError, match=r"delivery_timeout .*=30\.0: expected at least linger"):
        _build(delivery_timeout=30, request_timeout=30, linger=0.5)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_delivery_timeout_of_exactly_linger_plus_request_timeout_is_taken(
    linger_ms: int, request_ms: int
) -> None:
    _build(
        linger=linger_ms / 1000,
        request_timeout=request_ms / 1000,
        delivery_timeout=(linger_ms + request_ms) / 1000,
    )


@pytest.mark.parametrize("name", [b"linger.ms", 5, None])
def test_the_name_of_a_property_is_a_string(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown option .*: expected a name, a string"):
        _properties({name: "5"})


def test_a_directory_that_cannot_take_a_flight_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must exist, be a directory and be writable before the record is needed."""
    file = tmp_path / "file"
    file.touch()
    for wrong in (tmp_path / "missing", file, f"{tmp_path}\0", tmp_path / ("x" * 300)):
        with pytest.raises(ConfigError, match=r"flight_record_directory .*: expected a directory"):
            _build(flight_record_directory=str(wrong))
    with pytest.raises(ConfigError, match=r" flight\.record\.directory=.*a directory that exists"):
        _properties({"flight.record.directory": str(file)})
    _build(flight_record_directory=str(tmp_path))
    # Root may write everywhere, whatever a directory's mode is.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="in which this process may create files"):
        _build(flight_record_directory=str(tmp_path))


def test_a_place_for_flight_records_contradicts_a_recorder_that_is_off(tmp_path: Path) -> None:
    """Nothing would ever be written: the error names flight_recorder."""
    for place in ({"flight_record_directory": str(tmp_path)}, {"flight_record_callback": print}):
        with pytest.raises(ConfigError, match=r"expected flight_recorder .*not to be 0"):
            _build(flight_recorder=0, **place)


@pytest.mark.parametrize("name", ["retry_backoff", "reconnect_backoff"])
def test_a_first_pause_above_the_longest_is_refused(name: str) -> None:
    """The option retry_backoff is refused above retry_backoff_max; likewise reconnect_backoff."""
    with pytest.raises(ConfigError, match=rf"{name} .*=2\.0: expected at most {name}_max"):
        _build(**{name: 2, f"{name}_max": 1})
    _build(**{name: 1, f"{name}_max": 1})


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 0), ("gzip", 10), ("lz4", 0), ("lz4", 18), ("none", 1), ("snappy", 1)],
)
def test_a_level_the_codec_does_not_have_is_refused(codec: str, level: int) -> None:
    """A compression level that the codec does not have is refused."""
    with pytest.raises(ConfigError, match=rf"compression_level={level}: expected .*{codec}"):
        _build(compression_type=codec, compression_level=level)


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 1), ("gzip", 9), ("lz4", 1), ("lz4", 17), ("zstd", -131072), ("zstd", 22)],
)
def test_the_levels_of_each_codec_are_taken(codec: str, level: int) -> None:
    assert _build(compression_type=codec, compression_level=level).compression_level == level


@pytest.mark.parametrize(
    ("codec", "library", "install"),
    [
        ("snappy", "cramjam", r"aioidem\[snappy\]"),
        ("lz4", "lz4", "lz4"),
        ("zstd", "zstandard", "z"),
    ],
)
def test_a_codec_whose_library_is_missing_is_refused_naming_what_to_install(
    codec: str, library: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error for a codec without its library names what to install."""
    monkeypatch.setitem(sys.modules, library, None)  # importing the module then fails
    with pytest.raises(ConfigError, match=rf"'{codec}' needs .*{library}: pip install '{install}"):
        _build(compression_type=codec)


# --- properties -----------------------------------------------------------------------------------


def test_properties_are_read_in_milliseconds_and_as_text() -> None:
    """The values of properties are texts, and times among them are in milliseconds."""
    config = _properties(
        {
            "linger.ms": "5",
            "delivery.timeout.ms": " 60000 ",
            "acks": "all",
            "enable.idempotence": "TRUE",
            "max.in.flight.requests.per.connection": "20",
            "batch.size": "32768",
            "late.sealing": "false",
            "window.discovery": "on",
            "connections.max.idle.ms": "-1",
            "compression.type": "zstd",
        }
    )
    assert config.linger == 0.005
    assert config.delivery_timeout == 60.0
    assert config.acks == -1
    assert config.enable_idempotence is True
    assert getattr(config, _IN_FLIGHT) == 20
    assert config.batch_size == 32768
    assert config.late_sealing is False
    assert config.window_discovery == "on"
    assert config.connections_max_idle is None
    assert config.compression_type == "zstd"


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("linger.ms", "5.5", "a whole number of milliseconds 0 to 2147483647"),
        ("linger.ms", "-1", "a whole number of milliseconds 0 to 2147483647"),
        ("linger.ms", "", "a whole number"),
        ("linger.ms", "1_0", "a whole number"),
        ("linger.ms", "9" * 5000, "a whole number"),
        ("request.timeout.ms", "0", "a whole number of milliseconds 1 to"),
        ("connections.max.idle.ms", "-2", "or -1 for none"),
        ("acks", "2", "all (or -1), 1 or 0"),
        ("acks", "quorum", "all (or -1), 1 or 0"),
        ("late.sealing", "yes", "true or false"),
        ("batch.size", "0", "a whole number 1 to 2147483647"),
        ("window.discovery", "maybe", "one of auto, on, off"),
        ("client.id", "", "a string of 1 to 32767 bytes"),
        ("bootstrap.servers", "h:x", "host:port"),
    ],
)
def test_a_bad_property_is_refused_under_its_own_name_and_in_its_own_unit(
    name: str, text: str, allowed: str
) -> None:
    """The error for a property's bad value names the property, and uses the property's own unit."""
    with pytest.raises(ConfigError) as caught:
        _properties({name: text})
    assert str(caught.value).startswith(f"ConfigError: {name}=")
    assert ": expected " in str(caught.value)
    assert allowed in str(caught.value)


def test_a_property_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"linger\.ms=5: expected a string"):
        _properties({"linger.ms": 5})  # type: ignore[dict-item]


def test_properties_without_addresses_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is required"):
        ProducerConfig.from_properties({})


def test_javas_level_properties_count_for_the_codec_in_use_only() -> None:
    """Java's property for the level of a codec is ignored if another codec, or none, is in use."""
    levels = {"compression.gzip.level": "9", "compression.zstd.level": "3"}
    # Properties of a file keep the blanks at the end of their lines.
    assert _properties({"compression.type": "gzip ", **levels}).compression_level == 9
    assert _properties({**levels, "compression.type": "zstd"}).compression_level == 3
    assert _properties({**levels, "compression.type": "gzip"}).compression_level == 9
    assert _properties({**levels, "compression.type": "lz4"}).compression_level is None
    assert _properties(levels).compression_level is None


def test_a_level_under_two_names_is_refused() -> None:
    """compression.level and Java's property of the codec in use are one option."""
    both = {"compression.type": "gzip", "compression.level": "1", "compression.gzip.level": "9"}
    with pytest.raises(ConfigError, match=r"given twice: also as compression\.gzip\.level$"):
        _properties(both)
    assert _properties({**both, "compression.type": "lz4"}).compression_level == 1


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_any_properties_are_taken_or_refused_with_config_error(properties: dict[str, str]) -> None:
    """Any properties make a configuration, or raise ConfigError."""
    try:
        ProducerConfig.from_properties({"bootstrap.servers": "h", **properties})
    except ConfigError:
        return
    assert set(properties) <= set(BY_PROPERTY)


@given(st.data())
def test_any_text_for_any_property_is_taken_or_refused_with_config_error(
    data: st.DataObject,
) -> None:
    """Any text as a property's value is accepted, or raises ConfigError."""
    name = data.draw(st.sampled_from(sorted(BY_PROPERTY)))
    text = data.draw(st.one_of(st.text(), st.integers().map(str), st.sampled_from(["true", "all"])))
    with contextlib.suppress(ConfigError):
        _properties({name: text})


@given(st.integers(0, 2**31 - 1))
def test_a_time_is_the_same_in_seconds_and_in_milliseconds(milliseconds: int) -> None:
    """A time in seconds as an option equals the same time in milliseconds as a property."""
    times = {"max_block": milliseconds / 1000}
    assert _properties({"max.block.ms": str(milliseconds)}).max_block == _build(**times).max_block


# --- one table of names ---------------------------------------------------------------------------


def test_the_typed_options_are_the_fields_but_the_addresses() -> None:
    """The TypedDict of options has every field of the configuration except for the addresses."""
    hints = get_type_hints(ProducerOptions)
    fields = get_type_hints(ProducerConfig)
    assert set(hints) == set(fields) - {"bootstrap_servers"}
    looser = {"acks", "allowed_brokers", *_HIDDEN}
    assert {name: hint for name, hint in hints.items() if name not in looser} == {
        name: hint for name, hint in fields.items() if name not in {"bootstrap_servers", *looser}
    }


def test_property_names_are_unique_and_java_styled() -> None:
    """Property names are unique, in lower case, and without underscores."""
    names = [option.java for option in OPTIONS.values() if option.java]
    # Seven options have no Java name: six take objects; sasl_kerberos_domain_name is aiokafka's.
    assert len(set(names)) == len(names) == len(_FIELDS) - 7
    assert all(name == name.lower() and "_" not in name for name in names)


def test_aiokafka_names_are_arguments_of_its_producer() -> None:
    """Each aiokafka name in the table of options is an argument of aiokafka's producer."""
    theirs = set(inspect.signature(AIOKafkaProducer).parameters)
    names = [option.aiokafka for option in OPTIONS.values() if option.aiokafka]
    assert len(set(names)) == len(names)
    assert set(names) <= theirs


def test_the_table_has_the_fields_in_their_order() -> None:
    """The table of options has the fields of the configuration, in the same order."""
    assert list(OPTIONS) == list(_FIELDS)


@pytest.mark.parametrize("documented", [ProducerConfig, Producer], ids=lambda cls: cls.__name__)
def test_help_shows_every_option_with_its_values_default_and_javas_name(
    documented: type,
) -> None:
    """`help` of ProducerConfig and Producer shows each option's values, default and Java name."""
    text = inspect.getdoc(documented) or ""
    for name, option in OPTIONS.items():
        if documented is Producer and name == "bootstrap_servers":
            continue  # the addresses are a separate argument
        entry = _entry(text, name)
        assert _flat(option.text) in entry, name
        assert f"Allowed: {option.kind.allowed}." in entry, name
        field = _FIELDS[name]
        if field.default is not dataclasses.MISSING:
            assert f"Default: {field.default!r}." in entry, name
        assert option.java is None or f": {option.java}" in entry, name


@pytest.mark.parametrize("documented", [ProducerConfig, Producer])
def test_pydoc_and_subclasses_show_the_options(documented: type) -> None:
    """pydoc and subclasses show the options, although the text is made only when it is read."""
    text = inspect.getdoc(documented) or ""
    assert "\n    delivery_timeout" in text
    assert inspect.getdoc(types.new_class("Sub", (documented,))) == text
    rendered = pydoc.plain(pydoc.render_doc(documented))
    assert _flat(text) in _flat(rendered.replace("\n |", "\n"))


def test_importing_writes_no_help() -> None:
    """Importing aioidem does not make the help text of the options, because that takes time."""
    script = """
import textwrap
def fill(*args, **kwargs):
    raise NotImplementedError
textwrap.fill = fill
import aioidem
try:
    aioidem.ProducerConfig.__doc__
except NotImplementedError:
    print("written when it is read")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout == "written when it is read\n"


def test_help_of_the_drop_ins_own_arguments_shows_each_in_milliseconds() -> None:
    """`help(MoreOptions)` shows the drop-in's own arguments and defaults, times in milliseconds."""
    text = inspect.getdoc(MoreOptions) or ""
    for name in MoreOptions.__annotations__:
        entry = _entry(text, name)
        assert "Allowed: " in entry, name
        assert "Default: " in entry, name
        assert f"In ProducerConfig: {BY_KEYWORD[name]}." in entry, name
        assert ("milliseconds" in entry) == name.endswith("_ms"), name
        assert "in seconds" not in entry, name
    assert "Default: the value of request_timeout_ms." in _entry(text, "max_block_ms")
    assert "Default: 50." in _entry(text, "reconnect_backoff_ms")


@pytest.mark.parametrize("name", OPTIONS)
def test_an_options_text_is_sentences_that_name_the_unit(name: str) -> None:
    """An option's help text is in sentences, and says "in seconds" exactly if it is a time."""
    option = OPTIONS[name]
    assert option.text[0].isupper()
    assert option.text.endswith(".")
    assert len(option.text.split()) >= 8
    assert isinstance(option.kind, Seconds) == ("in seconds" in option.text)


def _entry(text: str, name: str) -> str:
    """Return the part of a docstring that describes an option, as one line."""
    body = text.split(f"\n    {name}:\n", 1)[1]
    lines = itertools.takewhile(lambda line: line.startswith(" " * 8), body.splitlines())
    return _flat("\n".join(lines))


def _flat(text: str) -> str:
    return " ".join(text.split())


# --- as a value -----------------------------------------------------------------------------------


def test_a_config_cannot_be_changed() -> None:
    """A configuration is immutable."""
    config = ProducerConfig.build("h")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.linger = 1.0  # type: ignore[misc]


def test_a_changed_copy_is_checked_again() -> None:
    """A changed copy of a configuration is validated like a new one."""
    config = ProducerConfig.build("h")
    assert dataclasses.replace(config, linger=1).linger == 1.0
    with pytest.raises(ConfigError, match="acks=1"):
        dataclasses.replace(config, acks=1)


def test_a_config_survives_pickling() -> None:
    config = _build(partitioner=DefaultPartitioner(), linger=0.5)
    again = pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
    assert dataclasses.replace(again, partitioner=None) == dataclasses.replace(
        config, partitioner=None
    )


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t", "a.b_c-D9", "...", "x" * 249, "__consumer_offsets"])
def test_legal_topic_names_pass(name: str) -> None:
    validate_topic(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "a\n", "t\x00", "tøpic", "a:b", None, 5, b"t"]
)
def test_illegal_topic_names_are_refused(name: Any) -> None:
    with pytest.raises(RecordError, match=r"topic .*: expected 1 to 249 characters"):
        validate_topic(name)


@given(st.text(max_size=260))
def test_a_topic_name_passes_exactly_by_kafkas_rules(name: str) -> None:
    """A topic name is accepted exactly if Kafka's rules permit it."""
    letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    legal = 1 <= len(name) <= 249 and set(name) <= letters and name not in {".", ".."}
    if legal:
        validate_topic(name)
    else:
        with pytest.raises(RecordError):
            validate_topic(name)


def test_idempotence_and_all_acknowledgements_are_the_default() -> None:
    """Idempotence, acks=all and five requests in flight are the defaults; more are allowed."""
    config = ProducerConfig.build("h:1")
    assert (config.acks, config.enable_idempotence) == (-1, True)
    assert config.max_in_flight_requests_per_connection == 5
    wide = ProducerConfig.build("h:1", max_in_flight_requests_per_connection=20)
    assert wide.enable_idempotence

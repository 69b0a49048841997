"""The drop-in's arguments: what omitted ones mean, and what passed ones become."""

from __future__ import annotations

import logging
from typing import Any

import aiokafka.abc
import aiokafka.helpers
import aiokafka.producer.producer
import pytest

from aioidem import AIOKafkaProducer, errors
from aioidem._aiokafka.options import config_from
from aioidem._config import ProducerConfig
from aioidem.abc import AbstractTokenProvider
from aioidem.helpers import create_ssl_context
from aioidem.partitioner import DefaultPartitioner


def config(**arguments: Any) -> ProducerConfig:
    return AIOKafkaProducer(**arguments)._config  # noqa: SLF001 - nothing public shows it all


def test_a_producer_may_be_made_before_there_is_a_loop() -> None:
    found = config()
    assert found.bootstrap_servers == (("localhost", 9092),)
    assert found.client_id.startswith("aioidem-producer-")


def test_nothing_said_of_guarantees_means_all_of_them() -> None:
    found = config()
    assert (found.acks, found.enable_idempotence) == (-1, True)
    assert found.max_in_flight_requests_per_connection == 5


@pytest.mark.parametrize(
    ("arguments", "acks", "idempotent", "in_flight"),
    [
        ({"acks": "all"}, -1, True, 5),
        ({"acks": -1}, -1, True, 5),
        ({"acks": 1}, 1, False, 1),
        ({"acks": 0}, 0, False, 1),
        ({"enable_idempotence": False}, -1, False, 1),
        ({"enable_idempotence": False, "acks": 1}, 1, False, 1),
        ({"enable_idempotence": True}, -1, True, 5),
        ({"acks": 1, "max_in_flight_requests_per_connection": 5}, 1, False, 5),
        ({"max_in_flight_requests_per_connection": 20}, -1, True, 20),
        # Frameworks pass `_missing`, which means in aiokafka that the argument was omitted.
        ({"acks": aiokafka.producer.producer._missing}, -1, True, 5),  # noqa: SLF001
    ],
)
def test_passed_guarantees_are_taken_as_meant_and_keep_the_order(
    arguments: dict[str, Any], acks: int, idempotent: bool, in_flight: int
) -> None:
    found = config(**arguments)
    assert (found.acks, found.enable_idempotence) == (acks, idempotent)
    assert found.max_in_flight_requests_per_connection == in_flight


def test_times_are_milliseconds() -> None:
    found = config(
        metadata_max_age_ms=1000,
        request_timeout_ms=2000,
        linger_ms=3,
        retry_backoff_ms=4,
        connections_max_idle_ms=5000,
        delivery_timeout_ms=6000,
        max_block_ms=7000,
    )
    assert (found.metadata_max_age, found.request_timeout, found.linger) == (1.0, 2.0, 0.003)
    assert (found.retry_backoff, found.connections_max_idle) == (0.004, 5.0)
    assert (found.delivery_timeout, found.max_block) == (6.0, 7.0)
    assert config(connections_max_idle_ms=None).connections_max_idle is None


@pytest.mark.parametrize(
    ("arguments", "delivery", "block", "backoff_max"),
    [
        ({}, 120.0, 40.0, 1.0),
        ({"request_timeout_ms": 1000}, 120.0, 1.0, 1.0),
        ({"request_timeout_ms": 300_000}, 300.0, 300.0, 1.0),
        ({"request_timeout_ms": 119_000, "linger_ms": 5000}, 124.0, 119.0, 1.0),
        ({"retry_backoff_ms": 5000}, 120.0, 40.0, 5.0),
    ],
)
def test_limits_that_aiokafka_lacks_never_contradict_what_was_passed(
    arguments: dict[str, Any], delivery: float, block: float, backoff_max: float
) -> None:
    found = config(**arguments)
    assert (found.delivery_timeout, found.max_block) == (delivery, block)
    assert found.retry_backoff_max == backoff_max


def test_sizes_codecs_and_partitioners_are_passed_on() -> None:
    found = config(compression_type="zstd", compression_level=3, max_batch_size=9, buffer_memory=99)
    assert (found.compression_type, found.compression_level) == ("zstd", 3)
    assert (found.batch_size, found.buffer_memory) == (9, 99)
    assert isinstance(found.partitioner, DefaultPartitioner)
    assert config(partitioner=None).partitioner is None


@pytest.mark.parametrize(
    "bad",
    [
        {"acks": 2},
        {"acks": True},
        {"linger_ms": -1},
        {"linger_ms": "5"},
        {"request_timeout_ms": "40000"},
        {"request_timeout_ms": 10**400},
        {"max_batch_size": 0},
        {"client_id": 5},
        {"key_serializer": "json"},
        {"value_serializer": b""},
        {"partitioner": 7},
        {"compression_type": "rar"},
        {"bootstrap_servers": ""},
        {"bootstrap_servers": "host:port"},
        {"delivery_timeout_ms": 1000},
        {"acks": 1, "transactional_id": "t"},
        {"transactional_id": 5},
        {"transaction_timeout_ms": "60000"},
        {"ssl_context": create_ssl_context()},
    ],
)
def test_illegal_values_are_value_errors_that_name_the_argument(bad: dict[str, Any]) -> None:
    name = next(iter(bad))
    with pytest.raises(ValueError, match=rf"\b{name}\b") as caught:
        config(**bad)
    assert isinstance(caught.value, errors.ConfigError)


@pytest.mark.parametrize(
    ("mechanism", "arguments", "told"),
    [
        ("PLAIN", {}, "PLAIN needs sasl_plain_username and sasl_plain_password"),
        ("PLAIN", {"sasl_plain_password": "p"}, "PLAIN needs sasl_plain_username and "),
        ("GSSAPI", {"sasl_plain_username": "me"}, "sasl_plain_username is given, which GSSAPI"),
        ("OAUTHBEARER", {}, "sasl_oauthbearer_client_credentials_client_id, "),
    ],
)
def test_an_error_about_credentials_names_the_arguments(
    mechanism: str, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(errors.ConfigError, match=told):
        config(security_protocol="SASL_SSL", sasl_mechanism=mechanism, **arguments)


def test_an_error_about_a_time_suggests_what_is_taken() -> None:
    with pytest.raises(errors.ConfigError, match=r"a number of milliseconds .* or None$"):
        config(connections_max_idle_ms=-1)
    assert config(connections_max_idle_ms=None).connections_max_idle is None
    assert config(connections_max_idle_ms=1.5).connections_max_idle == 0.0015


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        config(retries=5)


def test_a_transactional_id_means_idempotence_even_if_that_is_off() -> None:
    """A transactional id means idempotence even if a framework passes its own default, False."""
    made = config(transactional_id="t", enable_idempotence=False, transaction_timeout_ms=1500)
    assert (made.transactional_id, made.transaction_timeout) == ("t", 1.5)
    assert (made.enable_idempotence, made.acks) == (True, -1)
    assert made.max_in_flight_requests_per_connection == 5
    assert config().transactional_id is None


class OurProvider(AbstractTokenProvider):
    async def token(self) -> str:
        return "token"


class TheirProvider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return "token"


@pytest.mark.parametrize("provider", [OurProvider(), TheirProvider()])
def test_token_providers_of_both_packages_are_taken(provider: Any) -> None:
    found = config(
        security_protocol="SASL_SSL",
        ssl_context=aiokafka.helpers.create_ssl_context(),
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
    )
    assert found.sasl_oauth_token_provider == provider
    assert provider.extensions() == {}


def test_a_token_provider_must_give_tokens() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AbstractTokenProvider()  # type: ignore[abstract]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_passwords_are_passed_on_and_never_shown(mechanism: str) -> None:
    producer = AIOKafkaProducer(
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_plain_username="user",
        sasl_plain_password="hunter2",
    )
    found = producer._config  # noqa: SLF001
    assert (found.sasl_mechanism, found.sasl_username) == (mechanism, "user")
    assert found.sasl_password is not None
    assert found.sasl_password.reveal() == "hunter2"
    assert "hunter2" not in repr(producer) + repr(found) + repr(vars(producer))


def test_plain_without_tls_is_taken_as_meant_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arguments: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_plain_username": "user",
        "sasl_plain_password": "hunter2",
    }
    with caplog.at_level(logging.WARNING, "aioidem"):
        assert config(**arguments).sasl_mechanism == "PLAIN"
    assert "shows the credentials to anybody who can read the network" in caplog.text
    assert "hunter2" not in caplog.text
    with pytest.raises(ValueError, match="sasl_allow_plaintext"):
        config(**arguments, sasl_allow_plaintext=False)


def test_sasl_arguments_without_sasl_are_left_out_as_by_aiokafka_but_not_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "aioidem"):
        assert config().sasl_mechanism is None
        assert not caplog.records
        found = config(sasl_mechanism="SCRAM-SHA-512", sasl_plain_password="hunter2")
    assert (found.sasl_mechanism, found.sasl_password) == (None, None)
    assert "the sasl_ arguments are not used" in caplog.text


def test_a_configuration_says_which_argument_has_no_place() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'linger_ms'"):
        config_from({}, {"linger_ms": 5})
    with pytest.raises(errors.ConfigError, match="did you mean 'linger_ms'"):
        ProducerConfig.from_keywords({"bootstrap_servers": "h", "linger_m": 5})

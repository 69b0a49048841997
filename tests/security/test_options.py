"""Security options are obeyed or refused, and no secret is quoted."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import ssl
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._config import ProducerConfig
from aioidem._config.jaas import JaasError, read_jaas
from aioidem._config.secret import Secret
from aioidem.errors import ConfigError

from .tools import password, sasl

_SCRAM = password("SCRAM-SHA-256", word="canary")
_PLAIN = {**_SCRAM, "sasl_mechanism": "PLAIN", "sasl_allow_plaintext": False}
_OIDC = {
    "sasl_oauthbearer_token_endpoint_url": "https://idp/token",
    "sasl_oauthbearer_client_id": "me",
    "sasl_oauthbearer_client_secret": "canary",
}
_TLS = {"security_protocol": "SSL"}
_KRB = importlib.util.find_spec("gssapi") is None


def _build(**options: Any) -> ProducerConfig:
    return ProducerConfig.build(**{"bootstrap_servers": "h", **options})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        # Credentials or certificates that the protocol would not use.
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism is given: expected .* SASL_SSL"),
        ({**_SCRAM, "security_protocol": "SSL"}, "is given: expected .* SASL_SSL"),
        ({"ssl_context": ssl.create_default_context()}, "ssl_context is given: expected .* SSL"),
        ({**_SCRAM, "ssl_truststore_location": "ca.pem"}, "ssl_truststore_location is given"),
        ({**_SCRAM, "sasl_aws_region": "eu"}, "sasl_aws_region .*SCRAM-SHA-256 does not use"),
        (sasl("OAUTHBEARER", sasl_username="alice", **_OIDC), "sasl_username .*does not use"),
        # A required option is missing.
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        (sasl("PLAIN"), "needs sasl_username and sasl_password"),
        (sasl("SCRAM-SHA-512", sasl_username="alice"), "needs sasl_username and sasl_password"),
        (sasl("OAUTHBEARER"), "needs sasl_oauth_token_provider"),
        (sasl("OAUTHBEARER", sasl_oauthbearer_client_id="me"), "must be given together"),
        ({**_TLS, "ssl_keystore_key": "canary"}, "must be given together"),
        ({**_TLS, "ssl_key_password": "canary"}, "ssl_key_password is given, and no key"),
        # Two options contradict one another.
        ({**_SCRAM, "sasl_credentials": lambda: None}, "both given"),
        (sasl("OAUTHBEARER", sasl_oauth_token_provider=lambda: "", **_OIDC), "not both"),
        (
            {**_TLS, "ssl_truststore_location": "a", "ssl_truststore_certificates": "b"},
            "both given",
        ),
        (
            {
                **_TLS,
                "ssl_keystore_location": "a",
                "ssl_keystore_key": "canary",
                "ssl_keystore_certificate_chain": "c",
            },
            "both given",
        ),
        (
            {**_TLS, "ssl_context": ssl.create_default_context(), "ssl_keystore_location": "a"},
            "both given",
        ),
        # Without TLS, an eavesdropper could read these credentials and use them.
        (_PLAIN, "shows the credentials"),
        ({**sasl("OAUTHBEARER", **_OIDC), "sasl_allow_plaintext": False}, "shows the credentials"),
        ({**sasl("AWS_MSK_IAM"), "sasl_allow_plaintext": False}, "shows the credentials"),
        (
            {
                **sasl("OAUTHBEARER", **_OIDC),
                "security_protocol": "SASL_SSL",
                "sasl_allow_plaintext": False,
                "sasl_oauthbearer_token_endpoint_url": "http://idp/token",
            },
            "must begin with https:",
        ),
        (
            sasl("OAUTHBEARER", **{**_OIDC, "sasl_oauthbearer_token_endpoint_url": "file:///x"}),
            "must begin with https:",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(options: Mapping[str, Any], complaint: str) -> None:
    """Security options that contradict one another or are incomplete are refused."""
    with pytest.raises(ConfigError, match=complaint) as caught:
        _build(**options)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        _SCRAM,
        {**_PLAIN, "security_protocol": "SASL_SSL"},
        {**_PLAIN, "sasl_allow_plaintext": True},
        {**_SCRAM, "sasl_allow_plaintext": False},  # allowed, as SCRAM never sends the password
        sasl("PLAIN", sasl_credentials=lambda: ("a", "b")),
        sasl("OAUTHBEARER", **_OIDC),
        sasl("OAUTHBEARER", sasl_oauth_token_provider=lambda: ""),
        sasl("AWS_MSK_IAM", sasl_aws_region="eu-west-1"),
        {**_TLS, "ssl_context": ssl.create_default_context()},
        {**_TLS, "ssl_keystore_certificate_chain": "c", "ssl_keystore_key": "k"},
        _TLS,
    ],
)
def test_what_is_whole_is_taken(options: Mapping[str, Any]) -> None:
    """Complete and consistent security options are accepted."""
    _build(**options)


@pytest.mark.skipif(not _KRB, reason="gssapi is installed")
def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    """If the package gssapi is missing, the error names the extra that installs it."""
    with pytest.raises(ConfigError, match=r"needs the package gssapi: pip install 'aioidem\[gss"):
        _build(**sasl("GSSAPI"))


def test_a_config_shows_no_secret_and_takes_none_along() -> None:
    """A configuration with a password does not show it, and cannot be pickled."""
    config = _build(**_SCRAM)
    assert config.sasl_password == Secret("canary")
    assert "canary" not in repr(config)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(config)


# --- Java's properties ----------------------------------------------------------------------------


def _properties(**more: str) -> ProducerConfig:
    names = {name.replace("_", "."): text for name, text in more.items()}
    return ProducerConfig.from_properties({"bootstrap.servers": "h", **names})


def test_a_java_configuration_moves_over() -> None:
    """Java's properties for SASL and TLS, with a login configuration, are read as in Java."""
    config = _properties(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_jaas_config="org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="al\\"ice" password="s3;cr=et";',
        ssl_truststore_type="PEM",
        ssl_truststore_location="/ca.pem",
        ssl_endpoint_identification_algorithm="",
    )
    assert (config.sasl_username, config.sasl_password) == ('al"ice', Secret("s3;cr=et"))
    assert config.ssl_truststore_location == "/ca.pem"
    assert config.ssl_endpoint_identification_algorithm == ""


def test_client_credentials_may_be_in_the_login_configuration() -> None:
    config = _properties(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://idp/token",
        sasl_jaas_config="org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        "required clientId=me clientSecret='canary' scope=\"a b\" ;",
    )
    assert config.sasl_oauthbearer_client_secret == Secret("canary")
    assert (config.sasl_oauthbearer_client_id, config.sasl_oauthbearer_scope) == ("me", "a b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "canary",
        "PlainLoginModule required canary",
        'PlainLoginModule required username="canary',
        'PlainLoginModule required username="canary"; PlainLoginModule required;',
        'com.example.OwnLoginModule required password="canary";',
        'PlainLoginModule required username="a" password="canary" colour="canary";',
        # A password that contains a blank but is not in quotes.
        "PlainLoginModule required username=a password=my canary=1;",
    ],
)
def test_a_login_configuration_that_cannot_be_read_is_not_quoted(text: str) -> None:
    """A malformed login configuration is refused without being quoted."""
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: expected") as caught:
        _properties(sasl_jaas_config=text)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "password"),
    [
        ("'s3 c=r;et'", "s3 c=r;et"),
        ("'al\"ice'", 'al"ice'),
        ('"it\'s"', "it's"),
        (r"'it\'s'", "it's"),
        (r'"x\ty\101z\\\7"', "x\tyAz\\\x07"),
        (r'"\377\400"', "\xff\x200"),
        ("''", ""),
        ("bare", "bare"),
    ],
)
def test_quotes_and_escapes_are_javas(written: str, password: str) -> None:
    """`StreamTokenizer`, with which Kafka reads the entry, takes both quotes and C's escapes."""
    entry = f"PlainLoginModule REQUIRED username='u' password={written};"
    assert read_jaas(entry) == {"sasl_username": "u", "sasl_password": password}


@pytest.mark.parametrize(
    ("option", "passed"),
    [
        ("sasl_credentials", ("alice", "canary")),
        ("sasl_oauth_token_provider", "canary"),
        ("sasl_aws_session", ("AKIA", "canary")),
    ],
)
def test_a_secret_in_place_of_what_gives_it_is_not_quoted(option: str, passed: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{option}=<(tuple|str)>: expected ") as caught:
        ProducerConfig.build("h:1", security_protocol="SASL_SSL", **{option: passed})
    assert "canary" not in str(caught.value)


def test_an_error_that_the_program_was_handling_keeps_its_traceback() -> None:
    """Only the frames of the library are removed, which may hold a password."""

    def configure_anew() -> None:
        try:
            int("x")
        except ValueError:
            ProducerConfig.build("h:1", linger=-1)

    with pytest.raises(ConfigError) as caught:
        configure_anew()
    original = caught.value.__context__
    assert isinstance(original, ValueError)
    assert original.__traceback__ is not None


def test_no_source_of_a_secret_is_in_the_repr_of_a_config() -> None:
    """A `functools.partial` shows its arguments."""
    config = ProducerConfig.build(
        "h:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_credentials=functools.partial(dict, canary="canary"),
    )
    assert "canary" not in repr(config)


def test_an_option_of_javas_that_is_not_known_here_is_named() -> None:
    """An unknown option in a login configuration is refused by name."""
    with pytest.raises(ConfigError, match="serviceName; useKeyTab is not one of them"):
        _properties(sasl_jaas_config="Krb5LoginModule required serviceName=k useKeyTab=true;")


def test_a_name_given_twice_is_refused() -> None:
    """A user name in both a property and the login configuration is refused."""
    with pytest.raises(ConfigError, match="given twice"):
        _properties(
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_jaas_config='PlainLoginModule required username="a" password="b";',
        )


def test_javas_key_stores_are_refused_by_name() -> None:
    """Java's key stores (JKS) are refused, and the error names the supported type, PEM."""
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.type='JKS': expected one of PEM"):
        _properties(security_protocol="SSL", ssl_truststore_type="JKS")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text is read as a login configuration, or refused with JaasError."""
    try:
        read_jaas(text)
    except JaasError:
        return


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_and_password_survive_quoting(name: str, word: str) -> None:
    """Any name and password are read unchanged from a quoted login configuration."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    read = read_jaas(
        f"a.PlainLoginModule required username={quoted(name)} password={quoted(word)};"
    )
    assert read == {"sasl_username": name, "sasl_password": word}

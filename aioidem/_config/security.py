"""The rules between the security options: which of them contradict one another.

The principle: every given option takes effect, or is refused with an error. Credentials are never
ignored because ``security_protocol`` was forgotten, TLS is never left out, and no credentials that
an eavesdropper could use are sent in plaintext unless ``sasl_allow_plaintext`` is set.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, Protocol

__all__ = ["SaslMechanism", "SecurityProtocol", "TokenProvider", "security_complaints"]

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal[
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"
]

_PASSWORD: Final = ("sasl_username", "sasl_password", "sasl_credentials")
_OIDC: Final = (
    "sasl_oauthbearer_token_endpoint_url",
    "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_secret",
)
_OAUTH: Final = ("sasl_oauth_token_provider", *_OIDC, "sasl_oauthbearer_scope")
_AWS: Final = ("sasl_aws_region", "sasl_aws_session")
_KERBEROS: Final = ("sasl_kerberos_domain_name",)
_TLS: Final = (
    "ssl_context",
    "ssl_truststore_location",
    "ssl_truststore_certificates",
    "ssl_keystore_location",
    "ssl_keystore_certificate_chain",
    "ssl_keystore_key",
    "ssl_key_password",
)
_OWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "PLAIN": _PASSWORD,
        "SCRAM-SHA-256": _PASSWORD,
        "SCRAM-SHA-512": _PASSWORD,
        "OAUTHBEARER": _OAUTH,
        "AWS_MSK_IAM": _AWS,
        "GSSAPI": _KERBEROS,
    }
)
_READABLE: Final = frozenset({"PLAIN", "OAUTHBEARER", "AWS_MSK_IAM"})
_LIBRARIES: Final = {"AWS_MSK_IAM": ("botocore", "aws"), "GSSAPI": ("gssapi", "gssapi")}


class TokenProvider(Protocol):
    """An object that gives bearer tokens, as `aioidem.abc.AbstractTokenProvider` does."""

    @property
    def token(self) -> Callable[[], object]:
        """The method, async or not, that returns a token for each connection that authenticates."""
        ...


class _SecurityOptions(Protocol):
    """The options that this module reads as attributes; `_given` reads further options by name."""

    @property
    def security_protocol(self) -> SecurityProtocol: ...
    @property
    def ssl_context(self) -> object | None: ...
    @property
    def ssl_truststore_location(self) -> str | None: ...
    @property
    def ssl_truststore_certificates(self) -> str | None: ...
    @property
    def ssl_keystore_location(self) -> str | None: ...
    @property
    def sasl_mechanism(self) -> SaslMechanism | None: ...
    @property
    def sasl_credentials(self) -> object | None: ...
    @property
    def sasl_allow_plaintext(self) -> bool: ...
    @property
    def sasl_oauth_token_provider(self) -> object | None: ...
    @property
    def sasl_oauthbearer_token_endpoint_url(self) -> str | None: ...


def security_complaints(
    config: _SecurityOptions, called: Callable[[str], str] = str
) -> Iterator[str]:
    """Yield a sentence for each contradiction between security options; none quotes a secret.

    Args:
        config: The options.
        called: Returns the caller's name of the option with a native name.
    """
    yield from _about_tls(config)
    if not config.security_protocol.startswith("SASL_"):
        given = _given(config, ("sasl_mechanism", *_PASSWORD, *_OAUTH, *_AWS, *_KERBEROS))
        yield from (
            f"{called(name)} is given: expected security_protocol SASL_SSL or SASL_PLAINTEXT, not "
            f"{config.security_protocol}"
            for name in given
        )
    elif config.sasl_mechanism is None:
        mechanisms = ", ".join(_OWN)
        yield f"security_protocol={config.security_protocol!r} needs sasl_mechanism: {mechanisms}"
    else:
        yield from _about_sasl(config, config.sasl_mechanism, called)


def _given(config: _SecurityOptions, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(config, name) is not None]


def _about_tls(config: _SecurityOptions) -> Iterator[str]:
    given = _given(config, _TLS)
    if config.security_protocol not in {"SSL", "SASL_SSL"}:
        yield from (
            f"{name} is given: expected security_protocol SSL or SASL_SSL, not "
            f"{config.security_protocol}"
            for name in given
        )
        return
    if config.ssl_context is not None and len(given) > 1:
        yield (
            f"ssl_context and {given[1]} are both given: give one of them, because the context has "
            "its own certificates and key"
        )
    texts = _given(config, ("ssl_keystore_certificate_chain", "ssl_keystore_key"))
    if len(texts) == 1:
        yield "ssl_keystore_certificate_chain and ssl_keystore_key must be given together"
    if texts and config.ssl_keystore_location is not None:
        yield f"ssl_keystore_location and {texts[0]} are both given"
    keys = {"ssl_context", "ssl_keystore_location", "ssl_keystore_key"}
    if "ssl_key_password" in given and keys.isdisjoint(given):
        yield "ssl_key_password is given, and no key: ssl_keystore_location or ssl_keystore_key"
    if config.ssl_truststore_location and config.ssl_truststore_certificates:
        yield "ssl_truststore_location and ssl_truststore_certificates are both given"


def _about_sasl(
    config: _SecurityOptions, mechanism: str, called: Callable[[str], str]
) -> Iterator[str]:
    everything = {name for names in _OWN.values() for name in names}
    strange = sorted(everything - set(_OWN[mechanism]))
    yield from (
        f"{called(name)} is given, which {mechanism} does not use"
        for name in _given(config, tuple(strange))
    )
    plaintext = config.security_protocol == "SASL_PLAINTEXT"
    if plaintext and mechanism in _READABLE and not config.sasl_allow_plaintext:
        yield (
            f"sasl_mechanism={mechanism!r} over SASL_PLAINTEXT shows the credentials to anybody "
            "who can read the network traffic: expected SASL_SSL, or sasl_allow_plaintext=True "
            "(sasl.allow.plaintext)"
        )
    library, extra = _LIBRARIES.get(mechanism, (None, ""))
    if library is not None and importlib.util.find_spec(library) is None:
        yield f"{mechanism} needs the package {library}: pip install 'aioidem[{extra}]'"
    if _OWN[mechanism] is _PASSWORD:
        yield from _about_password(config, mechanism, called)
    if mechanism == "OAUTHBEARER":
        yield from _about_token(config, called)


def _about_password(
    config: _SecurityOptions, mechanism: str, called: Callable[[str], str]
) -> Iterator[str]:
    pair = _given(config, ("sasl_username", "sasl_password"))
    if config.sasl_credentials is not None and pair:
        yield f"sasl_credentials and {called(pair[0])} are both given"
    if config.sasl_credentials is None and len(pair) < 2:
        name, password = called("sasl_username"), called("sasl_password")
        yield f"{mechanism} needs {name} and {password}, or sasl_credentials"


def _about_token(config: _SecurityOptions, called: Callable[[str], str]) -> Iterator[str]:
    given = _given(config, _OIDC)
    all_of_them = ", ".join(map(called, _OIDC))
    if (config.sasl_oauth_token_provider is not None) == bool(given):
        yield (
            "OAUTHBEARER needs sasl_oauth_token_provider, or the client credentials "
            f"{all_of_them}; not both"
        )
    elif given and len(given) < len(_OIDC):
        yield f"{all_of_them} must be given together"
    elif config.sasl_oauthbearer_token_endpoint_url is not None:
        yield from _about_endpoint(config, config.sasl_oauthbearer_token_endpoint_url, called)


def _about_endpoint(
    config: _SecurityOptions, endpoint: str, called: Callable[[str], str]
) -> Iterator[str]:
    from urllib.parse import urlsplit  # only here, because few programs have such a URL

    try:
        url = urlsplit(endpoint)
        whole = bool(url.hostname) and url.port != 0
    except ValueError:  # also raised by `port`, which urlsplit has not parsed yet
        yield "sasl_oauthbearer_token_endpoint_url is not a URL"
        return
    scheme = url.scheme
    if "@" in url.netloc:
        yield (
            "sasl_oauthbearer_token_endpoint_url has a user name or password in it, which "
            f"logs would show: expected {called('sasl_oauthbearer_client_id')} and "
            f"{called('sasl_oauthbearer_client_secret')}"
        )
    elif scheme != "https" and not (scheme == "http" and config.sasl_allow_plaintext):
        yield (
            "sasl_oauthbearer_token_endpoint_url must begin with https:, or with http: and "
            "sasl_allow_plaintext=True"
        )
    elif not whole:
        yield "sasl_oauthbearer_token_endpoint_url has no host, or port 0"

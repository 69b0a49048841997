"""Make the SASL mechanism that the options name, with the credentials that are valid now.

Invariants: each authentication looks the credentials up again. If the user has set a callable as an
option, each authentication calls the callable. Otherwise it uses the name and password of the last
`set_credentials`, or else those of the options. An exception of the callable becomes an
AuthenticationFailedError, unless it is a `KafkaError` already; so does a CancelledError of what it
awaited. A password or token that the callable returns is wrapped in `Secret` at once. The module of
a mechanism, with its library, is imported when the mechanism is first used, because each producer
uses at most one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from aioidem._config import ProducerConfig
from aioidem._config.secret import Secret, in_utf8
from aioidem._network.cancellation import ends_task
from aioidem.errors import AuthenticationFailedError, ConfigError, KafkaError

if TYPE_CHECKING:
    from aioidem._network.sasl.mechanism import Mechanism
    from aioidem._network.sasl.oidc import ClientCredentials

__all__ = ["SaslClient", "sasl_client"]

_PASSWORD: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})


def sasl_client(config: ProducerConfig) -> SaslClient | None:
    """Make the `SaslClient` of a producer; return None if its options do not ask for SASL."""
    return SaslClient(config) if config.security_protocol.startswith("SASL_") else None


class SaslClient:
    """The source of SASL mechanisms and credentials that all connections of one producer share."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.name: str = config.sasl_mechanism or ""
        self._username = config.sasl_username
        self._password = config.sasl_password
        self._oidc = _oidc(config)

    def __repr__(self) -> str:
        return f"<SaslClient {self.name}>"

    @property
    def source(self) -> str:
        """What the credentials come from, for messages."""
        if self._oidc is not None:
            return f"a token from {self._oidc.shown}"
        callables = "sasl_credentials", "sasl_oauth_token_provider"
        return next((each for each in callables if getattr(self._config, each)), "the credentials")

    def set_credentials(self, username: str, password: str | Secret[str]) -> None:
        """Use this user name and password from the next authentication on.

        Raises:
            ConfigError: The mechanism does not use passwords, the credentials come from a callable,
                or one of the two arguments is empty or not a text that UTF-8 can encode.
        """
        if self.name not in _PASSWORD or self._config.sasl_credentials is not None:
            raise ConfigError(
                f"{self.name}: user name and password are not options of this producer"
            )
        if not _usable(username) or not _usable(password):
            raise ConfigError(
                "user name and password: expected two texts, not empty, that UTF-8 can encode"
            )
        self._username, self._password = username, Secret(password)

    async def mechanism(self, host: str) -> Mechanism:
        """Make the SASL mechanism for one authentication to this broker.

        Raises:
            AuthenticationFailedError: There are no credentials, or none that can be used.
            KafkaConnectionError: The credentials cannot be fetched at the moment.
        """
        match self.name:
            case "PLAIN":
                from aioidem._network.sasl.plain import Plain

                return Plain(*await self._credentials())
            case "SCRAM-SHA-256" | "SCRAM-SHA-512":
                from aioidem._network.sasl.scram import Scram

                return Scram(self.name, *await self._credentials())
            case "OAUTHBEARER":
                from aioidem._network.sasl.oauthbearer import OAuthBearer

                return OAuthBearer(*await self._token())
            case "AWS_MSK_IAM":
                from aioidem._network.sasl.aws_msk_iam import AwsMskIam

                return AwsMskIam(
                    host,
                    session=self._config.sasl_aws_session,
                    region=self._config.sasl_aws_region,
                    user_agent=self._config.client_id,
                )
            case _:
                from aioidem._network.sasl.gssapi import Gssapi, kerberos_context

                service = self._config.sasl_kerberos_service_name
                domain = self._config.sasl_kerberos_domain_name or host
                return Gssapi(lambda: kerberos_context(service, domain))

    def refused(self, mechanism: Mechanism) -> None:
        """Note that a broker has refused the credentials that this mechanism has shown."""
        if self._oidc is None:
            return
        from aioidem._network.sasl.oauthbearer import OAuthBearer

        if isinstance(mechanism, OAuthBearer):
            self._oidc.refused(mechanism.token)

    async def _credentials(self) -> tuple[str, Secret[str]]:
        if self._config.sasl_credentials is None:
            return self._username or "", self._password or Secret("")
        given = await self._ask(self._config.sasl_credentials, "sasl_credentials")
        match given:
            case (str() as username, str() | Secret() as password):
                return username, Secret(cast("str", password))
        del given  # it may contain a password
        raise AuthenticationFailedError("sasl_credentials did not return (name, password)")

    async def _token(self) -> tuple[Secret[str], Mapping[str, str]]:
        if self._oidc is not None:
            return await self._oidc.token(), {}
        provider: Any = self._config.sasl_oauth_token_provider
        token = _hidden(
            await self._ask(getattr(provider, "token", provider), "sasl_oauth_token_provider")
        )
        if token is None:
            raise AuthenticationFailedError("sasl_oauth_token_provider did not return a string")
        extensions = getattr(provider, "extensions", None)
        more = await self._ask(extensions, "extensions()") if callable(extensions) else {}
        return token, cast("Mapping[str, str]", more)

    @staticmethod
    async def _ask(function: Callable[[], object], name: str) -> object:
        """Call the user's callable and return its result, awaited if it is awaitable."""
        try:
            given = function()
            return await cast("Awaitable[object]", given) if inspect.isawaitable(given) else given
        except KafkaError as error:
            # A copy, whose text gets the broker's address: the callable may raise this one again.
            raise copy.copy(error) from error
        except BaseException as error:
            if ends_task(error):
                raise
            raise AuthenticationFailedError(f"{name} raised {type(error).__name__}") from error


def _usable(given: object) -> bool:
    """Return whether `given` is a text, plain or in a `Secret`, not empty and legal in UTF-8."""
    text = given.reveal() if isinstance(given, Secret) else given
    return isinstance(text, str) and bool(text) and in_utf8(text)


def _hidden(given: object) -> Secret[str] | None:
    """Return a text wrapped in `Secret`, or None for anything else."""
    return Secret(cast("str", given)) if isinstance(given, str | Secret) else None


def _oidc(config: ProducerConfig) -> ClientCredentials | None:
    url, secret = config.sasl_oauthbearer_token_endpoint_url, config.sasl_oauthbearer_client_secret
    if url is None or secret is None:
        return None
    from aioidem._network.sasl.oidc import ClientCredentials

    return ClientCredentials(
        url,
        config.sasl_oauthbearer_client_id or "",
        secret,
        scope=config.sasl_oauthbearer_scope,
        timeout=config.connection_setup_timeout,
    )

"""Unusable credentials, and failing sources of credentials, raise AuthenticationFailedError only.

Every exception that a mechanism meets while it makes its message becomes that error. So the
producer's background task goes on, and no secret is shown, although for example a
`UnicodeEncodeError` contains the whole password.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest
from botocore.exceptions import ClientError

from aioidem import Producer
from aioidem._broker.security import MECHANISMS, BrokerSecurity
from aioidem._config import ProducerConfig
from aioidem.broker import EmbeddedCluster
from aioidem.errors import AuthenticationFailedError, ConfigError

from .test_canary import CANARY, Ear, frames_of
from .test_oidc import gives, provider
from .tools import bounded, log_in, sasl

pytestmark = pytest.mark.anyio

NOT_UTF_8 = f"{CANARY}\ud800"
TOKEN = base64.b64encode(CANARY.encode()).decode()


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio only, because the errors' texts do not depend on the event loop."""
    return "asyncio"


class Tokens:
    """A provider of tokens whose extensions a test chooses."""

    def __init__(self, extensions: object) -> None:
        self._extensions = extensions

    def token(self) -> str:
        return TOKEN

    def extensions(self) -> object:
        if isinstance(self._extensions, Exception):
            raise self._extensions
        return self._extensions


class NoRole:
    """A botocore session whose role may not be assumed."""

    def get_credentials(self) -> NoReturn:
        answer: Any = {"Error": {"Code": "AccessDenied", "Message": "no"}}
        raise ClientError(answer, "AssumeRole")


UNUSABLE = {
    "password that is not UTF-8": sasl("PLAIN", sasl_credentials=lambda: ("me", NOT_UTF_8)),
    "name that is not UTF-8": sasl("PLAIN", sasl_credentials=lambda: ("me\ud800", CANARY)),
    "SCRAM, not UTF-8": sasl("SCRAM-SHA-256", sasl_credentials=lambda: ("me", NOT_UTF_8)),
    "token as bytes": sasl("OAUTHBEARER", sasl_oauth_token_provider=CANARY.encode),
    "token in a dict": sasl("OAUTHBEARER", sasl_oauth_token_provider=lambda: {"t": CANARY}),
    "extensions raise": sasl("OAUTHBEARER", sasl_oauth_token_provider=Tokens(ValueError("x"))),
    "extensions in a list": sasl("OAUTHBEARER", sasl_oauth_token_provider=Tokens([1])),
    "extension of a number": sasl("OAUTHBEARER", sasl_oauth_token_provider=Tokens({"a": 1})),
    "number as extension": sasl("OAUTHBEARER", sasl_oauth_token_provider=Tokens({1: "a"})),
    "no role": sasl("AWS_MSK_IAM", sasl_aws_session=NoRole()),
}


@pytest.mark.parametrize("options", UNUSABLE.values(), ids=UNUSABLE)
@bounded(20)
async def test_credentials_that_fail_are_an_authentication_that_failed(
    options: Mapping[str, Any],
) -> None:
    """Credentials from which no SASL message can be made raise only AuthenticationFailedError."""
    ear = Ear()
    config = ProducerConfig.build("h", **options)
    with ear.listening():
        async with EmbeddedCluster(security=BrokerSecurity(mechanisms=MECHANISMS)) as cluster:
            with pytest.raises(AuthenticationFailedError) as caught:
                await log_in(cluster.connector, cluster.bootstrap_servers, config)
    ear.hear("aioidem")
    ear.hear_error(caught.value)
    for name, variables in frames_of(caught.value):
        ear.hear(name, *variables.values())
    ear.check(CANARY, TOKEN)


OPENID = {
    "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:9/token",
    "sasl_oauthbearer_client_id": "me",
    "sasl_oauthbearer_client_secret": CANARY,
}


@pytest.mark.parametrize(
    "options",
    [
        sasl("PLAIN", sasl_username="me", sasl_password=NOT_UTF_8),
        sasl("OAUTHBEARER", **{**OPENID, "sasl_oauthbearer_client_secret": NOT_UTF_8}),
        sasl("OAUTHBEARER", **{**OPENID, "sasl_oauthbearer_token_endpoint_url": "http://"}),
        sasl("OAUTHBEARER", **{**OPENID, "sasl_oauthbearer_token_endpoint_url": "http://h:77777"}),
    ],
    ids=["password", "client secret", "URL without a host", "port of a URL"],
)
def test_what_can_never_be_sent_is_refused_as_an_option(options: Mapping[str, Any]) -> None:
    """Credentials that no message can contain are refused when the configuration is made."""
    ear = Ear()
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.build("h", **options)
    ear.hear_error(caught.value)
    ear.hear("aioidem")
    ear.check(CANARY)


@bounded(20)
async def test_what_stands_behind_the_question_mark_of_a_url_is_not_said() -> None:
    """The query of a token endpoint's URL, which may contain a key, is not shown."""
    ear = Ear()
    with provider(gives(b"", 503)) as (url, _):
        options = {**OPENID, "sasl_oauthbearer_token_endpoint_url": f"{url}?key={CANARY}"}
        config = ProducerConfig.build("h", **sasl("OAUTHBEARER", **options))
        async with EmbeddedCluster(security=BrokerSecurity(mechanisms=MECHANISMS)) as cluster:
            with pytest.raises(Exception, match="HTTP status 503") as caught:
                await log_in(cluster.connector, cluster.bootstrap_servers, config)
    ear.hear("aioidem", str(caught.value), caught.value.args)
    ear.check(CANARY)


@pytest.mark.parametrize(
    ("username", "password"),
    [
        (1, CANARY),
        ("", CANARY),
        ("me", CANARY.encode()),
        ("me", None),
        ("me", ""),
        ("me", NOT_UTF_8),
    ],
)
def test_new_credentials_that_are_none_are_refused_at_once(username: Any, password: Any) -> None:
    """Unusable new credentials are refused when they are set, not hours later at the renewal."""
    ear = Ear()
    producer = Producer("h", **sasl("PLAIN", sasl_username="me", sasl_password="old"))
    with pytest.raises(ConfigError, match="two texts") as caught:
        producer.set_sasl_credentials(username, password)
    ear.hear("aioidem")
    ear.hear_error(caught.value)
    ear.check(CANARY)

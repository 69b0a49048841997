"""Helpers of the security tests: new certificates, tokens, and matching options."""

from __future__ import annotations

import base64
import functools
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import anyio
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import sasl_client
from aioidem._network.transport import Connector

P = ParamSpec("P")
T = TypeVar("T")

USERS = {"alice": "alice-secret", "bob": "bob-secret"}


def bounded(
    seconds: float,
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Make a test fail if it takes longer than `seconds`."""

    def decorate(test: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(test)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with anyio.fail_after(seconds):
                return await test(*args, **kwargs)

        return run

    return decorate


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, as PEM; the key is in PKCS #8, which Java reads."""

    key: str
    chain: str

    @property
    def both(self) -> str:
        return self.key + self.chain

    @classmethod
    def of(cls, certificate: trustme.LeafCert) -> Identity:
        key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
        return cls(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            "".join(each.bytes().decode() for each in certificate.cert_chain_pems),
        )


class Authority:
    """A certificate authority that only the test trusts."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.pem = self._ca.cert_pem.bytes().decode()

    def identity(self, *names: str, **more: Any) -> Identity:
        """Make a certificate for these hosts or e-mail addresses."""
        return Identity.of(self._ca.issue_cert(*names, **more))

    def server(self, *names: str, clients: bool = False, **more: Any) -> ssl.SSLContext:
        """Make a broker's TLS context for these hosts; ``clients`` requires client certificates."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(*names, **more).configure_cert(context)
        if clients:
            self._ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def token(expires: float, subject: str = "alice", **claims: Any) -> str:
    """Make an unsigned token that Kafka's validator for tests accepts; `expires` is a Unix time."""
    parts = {"alg": "none"}, {"sub": subject, "iat": expires - 7200, "exp": expires, **claims}
    head, payload = (
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts
    )
    return f"{head}.{payload}."


class AwsSession:
    """A stand-in for a botocore session, with the methods that the producer calls."""

    def __init__(self, access_key: str, secret_key: str, session_token: str | None = None) -> None:
        from botocore.credentials import Credentials

        self._credentials = Credentials(access_key, secret_key, session_token)

    def __reduce__(self) -> str:
        raise TypeError("botocore's cannot be pickled either")

    def get_credentials(self) -> Any:
        return self._credentials

    def get_config_variable(self, name: str) -> str:
        assert name == "region"
        return "eu-west-1"


def sasl(mechanism: str, **options: Any) -> Mapping[str, Any]:
    """Return the options for SASL without TLS."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_allow_plaintext": True,
        **options,
    }


def password(mechanism: str, name: str = "alice", word: str = "alice-secret") -> Mapping[str, Any]:
    """Return the options for a mechanism with passwords, without TLS."""
    return sasl(mechanism, sasl_username=name, sasl_password=word)


async def log_in(connector: Connector, servers: str, config: ProducerConfig) -> Connection:
    """Open a connection, and authenticate on it as a producer with this configuration does."""
    host, _, port = servers.partition(":")
    return await Connection.open(
        connector,
        host,
        int(port),
        client_id="me",
        setup_timeout=10,
        max_frame_bytes=1 << 20,
        sasl=sasl_client(config),
    )

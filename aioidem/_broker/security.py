"""Security of the embedded brokers: TLS, and SASL with every mechanism but GSSAPI.

Nothing here does IO, except for the TLS handshake of a stream. The mechanisms share no code with
those of aioidem's producer. SCRAM uses the server of the package scramp. The signature of
AWS_MSK_IAM is computed with HMAC alone. OAUTHBEARER accepts unsigned tokens with ``sub`` and
``exp``, as Kafka's validator for tests does.

Invariants
    Before a client has authenticated, its connection may send only ApiVersions and the SASL
    requests. The same holds while it authenticates again, and after the end of its session
    (KIP-368).
    A client that authenticates again must keep its mechanism and principal, and must not do so
    twice within a second.

This is for tests: passwords are kept in memory as plain text, and every authenticated client may do
everything.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeGuard
from urllib.parse import quote

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from scramp import ScramException, ScramMechanism

__all__ = ["MECHANISMS", "BrokerSecurity", "SaslRefusedError", "SaslSession", "signature"]

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")

_HANDSHAKE, _API_VERSIONS, _AUTHENTICATE = 17, 18, 36
_BETWEEN_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 10.0
_LATEST: Final = 253402300800
"""The year 10000, in seconds since the epoch."""


class SaslRefusedError(Exception):
    """The client failed to authenticate; the message is sent to the client."""


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """How clients connect to the brokers of an embedded cluster, and how they authenticate.

    Args:
        tls: TLS context with the brokers' certificate; its ``verify_mode`` says whether clients
            need a certificate. None: plaintext.
        mechanisms: SASL mechanisms that the brokers offer; empty: no SASL.
        users: Passwords by user name, or secret keys by access key for AWS_MSK_IAM.
        max_session: Seconds after which a client has to authenticate again
            (``connections.max.reauth.ms``); None: never.
        scram_iterations: Iterations of the hash that derives SCRAM's keys from a password.
    """

    tls: ssl.SSLContext | None = None
    mechanisms: tuple[str, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_session: float | None = None
    scram_iterations: int = 4096

    async def shield(self, stream: ByteStream) -> ByteStream | None:
        """Return the stream wrapped in TLS, or as it is without TLS.

        None means that the handshake failed; the stream is closed then.
        """
        if self.tls is None:
            return stream
        with anyio.move_on_after(_HANDSHAKE_SECONDS), suppress(ssl.SSLError, *_STREAM_ENDED):
            # With `standard_compatible=True`, closing the stream would send a close_notify, and
            # that would have to wait for the task that reads from the stream.
            return await TLSStream.wrap(
                stream, server_side=True, ssl_context=self.tls, standard_compatible=False
            )
        await anyio.aclose_forcefully(stream)
        return None


_STREAM_ENDED: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


class SaslSession:
    """The authentication of one connection: the client's principal, and when its session ends."""

    __slots__ = ("_begun_at", "_exchange", "_mechanism", "_security", "expires_at", "principal")

    def __init__(self, security: BrokerSecurity) -> None:
        self._security = security
        self._exchange: _Server | None = None
        self._mechanism: str | None = None
        self._begun_at: float | None = None
        self.principal: str | None = None
        self.expires_at: float | None = None

    def admits(self, api_key: int, now: float) -> bool:
        """Return whether a request of this API may be served at ``now`` (seconds).

        If not, the broker closes the connection.
        """
        if api_key in {_HANDSHAKE, _AUTHENTICATE}:
            return True
        if self._exchange is not None:
            return False
        if self.principal is None:
            return api_key == _API_VERSIONS
        return self.expires_at is None or now < self.expires_at

    def begin(self, mechanism: str, now: float) -> bool:
        """Serve SaslHandshake.

        Return False if the client began to authenticate again less than a second ago: the broker
        then closes the connection.

        Raises:
            SaslRefusedError: The mechanism is not offered, or is not the client's earlier one.
        """
        again = self.principal is not None
        if again and self._begun_at is not None and now - self._begun_at < _BETWEEN_SECONDS:
            return False
        if mechanism not in self._security.mechanisms:
            raise SaslRefusedError(mechanism)
        if again:
            self._begun_at = now
            if mechanism != self._mechanism:
                raise SaslRefusedError("the mechanism cannot be changed")
        self._mechanism = mechanism
        self._exchange = _SERVERS[mechanism](self._security)
        return True

    def step(self, message: bytes, now: float, wall: float) -> tuple[bytes, float]:
        """Serve SaslAuthenticate: return the reply, and the length of the session in seconds.

        The length is 0 while the exchange goes on, and for a session without end. ``now`` is on the
        cluster's monotonic clock, and ``wall`` the time since the epoch, both in seconds.

        Raises:
            SaslRefusedError: The client failed to authenticate, or may not send this now.
        """
        if self._exchange is None:
            raise SaslRefusedError("SaslHandshake comes first")
        answer = self._exchange.step(message, wall)
        if self._exchange.principal is None:
            return answer, 0.0
        if self.principal not in {None, self._exchange.principal}:
            raise SaslRefusedError("Cannot change principals during re-authentication")
        self.principal = self._exchange.principal
        ends = [self._security.max_session, self._exchange.lifetime]
        lifetime = min((each for each in ends if each is not None), default=0.0)
        self.expires_at = now + lifetime if lifetime else None
        self._exchange = None
        return answer, lifetime


class _Server(ABC):
    """The broker's side of one SASL exchange; ``principal`` is set when the exchange is over.

    ``lifetime`` is the number of seconds for which the credentials stay valid; None: for ever.
    """

    def __init__(self) -> None:
        self.principal: str | None = None
        self.lifetime: float | None = None

    @abstractmethod
    def step(self, message: bytes, wall: float, /) -> bytes:
        """Return the answer to a message of the client.

        Raises:
            SaslRefusedError: The client failed to authenticate.
        """


class _PlainServer(_Server):
    def __init__(self, security: BrokerSecurity) -> None:
        super().__init__()
        self._users = security.users

    def step(self, message: bytes, _wall: float, /) -> bytes:
        parts = message.decode().split("\0")
        if (
            len(parts) != 3
            or self._users.get(parts[1]) != parts[2]
            or parts[0] not in {"", parts[1]}
        ):
            raise SaslRefusedError("Authentication failed: Invalid username or password")
        self.principal = parts[1]
        return b""


class _ScramServer(_Server):
    def __init__(self, security: BrokerSecurity, *, name: str) -> None:
        super().__init__()
        self._user = ""
        self._mechanism = ScramMechanism(name)
        self._iterations = security.scram_iterations
        self._users = security.users
        self._server = self._mechanism.make_server(self._keys)

    def _keys(self, user: str) -> Any:
        self._user = user
        password = self._users.get(user)
        if password is None:
            return None
        return self._mechanism.make_auth_info(password, iteration_count=self._iterations)

    def step(self, message: bytes, _wall: float, /) -> bytes:
        server = self._server
        try:
            if server.stage is None:
                server.set_client_first(message.decode())
                first: str = server.get_server_first()
                return first.encode()
            server.set_client_final(message.decode())
            final: str = server.get_server_final()
        except ScramException:
            raise SaslRefusedError(
                f"Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism.name}"
            ) from None
        self.principal = self._user
        return final.encode()


class _OAuthServer(_Server):
    def __init__(self, _security: BrokerSecurity) -> None:
        super().__init__()
        self._refused = False

    def step(self, message: bytes, wall: float, /) -> bytes:
        if self._refused:
            raise SaslRefusedError('{"status":"invalid_token"}')
        claims = _claims(message)
        expires = None if claims is None else claims.get("exp")
        if claims is None or not _is_time(expires) or expires <= wall:
            self._refused = True
            return b'{"status":"invalid_token"}'
        self.principal = str(claims["sub"])
        self.lifetime = expires - wall
        return b""


def _is_time(value: object) -> TypeGuard[float]:
    """Return whether a claim is a number of seconds since the epoch, before the year 10000."""
    return isinstance(value, int | float) and 0 <= value < _LATEST


def _claims(message: bytes) -> dict[str, Any] | None:
    """Return the claims of the unsigned token in an OAUTHBEARER message; None without a token."""
    parts = message.decode().split("\x01")
    if parts[0] != "n,," or not parts[1].startswith("auth=Bearer ") or parts[-2:] != ["", ""]:
        return None
    try:
        _, payload, signature = parts[1].removeprefix("auth=Bearer ").split(".")
        claims: Any = json.loads(base64.urlsafe_b64decode(payload + "=="))
    except ValueError:
        return None
    if not isinstance(claims, dict) or signature or not claims.get("sub"):
        return None
    return claims


class _AwsServer(_Server):
    def __init__(self, security: BrokerSecurity) -> None:
        super().__init__()
        self._keys = security.users

    def step(self, message: bytes, _wall: float, /) -> bytes:
        fields = json.loads(message)
        if not isinstance(fields, dict) or not all(isinstance(v, str) for v in fields.values()):
            raise SaslRefusedError("not a message of the mechanism")
        access_key = fields["x-amz-credential"].split("/")[0]
        secret = self._keys.get(access_key)
        if secret is None or not hmac.compare_digest(
            signature(fields, secret), fields["x-amz-signature"]
        ):
            raise SaslRefusedError("Access denied")
        self.principal = access_key
        return json.dumps({"version": fields["version"], "request-id": "embedded"}).encode()


def signature(fields: Mapping[str, str], secret: str) -> str:
    """Return the SigV4 signature of the request that an AWS_MSK_IAM message describes."""
    names = {
        "action": "Action",
        "x-amz-algorithm": "X-Amz-Algorithm",
        "x-amz-credential": "X-Amz-Credential",
        "x-amz-date": "X-Amz-Date",
        "x-amz-expires": "X-Amz-Expires",
        "x-amz-security-token": "X-Amz-Security-Token",
        "x-amz-signedheaders": "X-Amz-SignedHeaders",
    }
    query = "&".join(
        sorted(
            f"{quote(names[name], safe='')}={quote(value, safe='-_.~')}"
            for name, value in fields.items()
            if name in names
        )
    )
    nothing = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{query}\nhost:{fields['host']}\n\nhost\n{nothing}"
    scope = fields["x-amz-credential"].split("/")[1:]
    to_sign = "\n".join(
        (
            "AWS4-HMAC-SHA256",
            fields["x-amz-date"],
            "/".join(scope),
            hashlib.sha256(request.encode()).hexdigest(),
        )
    )
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, to_sign.encode(), "sha256").hexdigest()


_SERVERS: Final[Mapping[str, Callable[[BrokerSecurity], _Server]]] = {
    "PLAIN": _PlainServer,
    "SCRAM-SHA-256": partial(_ScramServer, name="SCRAM-SHA-256"),
    "SCRAM-SHA-512": partial(_ScramServer, name="SCRAM-SHA-512"),
    "OAUTHBEARER": _OAuthServer,
    "AWS_MSK_IAM": _AwsServer,
}

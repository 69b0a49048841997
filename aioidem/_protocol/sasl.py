"""SaslHandshake and SaslAuthenticate: requests that carry a SASL mechanism's messages (KIP-152).

Invariants: an error code other than NONE raises `AuthenticationFailedError`, and the broker's text
in it is escaped and shortened. A session's lifetime (KIP-368) is a plausible number of seconds, or
None if the session does not end.

Rejected: SaslHandshake v0, after which brokers older than 1.0 expect bare SASL messages without a
header; treating an error code as retriable (no code says that the broker will accept the same
credentials later).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import printable, request_type
from aioidem._protocol.versions import ApiKey
from aioidem.errors import AuthenticationFailedError, broker_error, error_for_code

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "SaslAnswer",
    "authenticate_answer",
    "authenticate_request",
    "check_handshake",
    "handshake_request",
]

_CHECK = "Check this client's credentials and sasl_mechanism, and whether the broker has this user"
_SHORTEST, _LONGEST = 0.1, 30 * 86400.0
"""The bounds, in seconds, to which a broker's session lifetime is clamped.

A shorter lifetime would mean constant authentication.
"""


@dataclass(frozen=True, slots=True)
class SaslAnswer:
    """The broker's answer to one SASL message."""

    challenge: bytes = field(repr=False)
    """The next message for the mechanism."""
    lifetime: float | None
    """The seconds until the broker requires a new authentication; None means never."""


def handshake_request(mechanism: str) -> RequestPayload:
    """Make the request that names the SASL mechanism, and so begins an authentication."""
    schema: Any = request_type(ApiKey.SASL_HANDSHAKE, 1)
    entity: RequestPayload = schema(mechanism=mechanism)
    return entity


def check_handshake(response: Any, mechanism: str) -> None:
    """Check the answer to `handshake_request`.

    Raises:
        AuthenticationFailedError: The broker does not offer the mechanism, or does not use SASL.
    """
    code = int(response.error_code)
    if code == ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(printable(each, 40) for each in response.mechanisms[:20]) or "none"
        raise broker_error(code, f"the broker does not offer {mechanism}, but {offered}")
    if code == ErrorCode.illegal_sasl_state:
        raise broker_error(
            code, "this listener does not use SASL: its protocol is PLAINTEXT or SSL"
        )
    if code:
        raise _refused(code, f"the broker refused the mechanism {mechanism}")


def authenticate_request(version: int, message: bytes) -> RequestPayload:
    """Make the request that carries one message of the mechanism."""
    schema: Any = request_type(ApiKey.SASL_AUTHENTICATE, version)
    entity: RequestPayload = schema(auth_bytes=message)
    return entity


def authenticate_answer(response: Any) -> SaslAnswer:
    """Read the answer to `authenticate_request`.

    Raises:
        AuthenticationFailedError: The broker refused, with `SaslAuthenticationFailed` if the
            credentials are wrong.
    """
    code = int(response.error_code)
    if code:
        said = printable(response.error_message or "no reason given")
        text = f"the broker refused to authenticate: {said.rstrip('.')}. {_CHECK}"
        raise _refused(code, text)
    asked: timedelta = getattr(response, "session_lifetime", timedelta(0))
    seconds = asked.total_seconds()
    lifetime = min(max(seconds, _SHORTEST), _LONGEST) if seconds > 0 else None
    return SaslAnswer(response.auth_bytes, lifetime)


def _refused(code: int, text: str) -> AuthenticationFailedError:
    error = broker_error(code, text)
    if isinstance(error, AuthenticationFailedError):
        return error
    return AuthenticationFailedError(f"{text} ({error_for_code(code).message}, error code {code})")

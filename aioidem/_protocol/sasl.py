"""SaslHandshake and SaslAuthenticate: the frames around a SASL mechanism's messages (KIP-152).

Invariants: an error code other than NONE is an `AuthenticationFailedError`, and what the broker
says with it is escaped and cut; a session's lifetime (KIP-368) is a sane number of seconds, or None
for one that does not end.

Rejected: SaslHandshake v0, which is followed by bare SASL messages without a header (brokers before
1.0); an error code that is retriable here (none says that the same credentials will do later).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem._protocol.messages import printable, request_type
from aioidem._protocol.versions import ApiKey
from aioidem.errors import AuthenticationFailedError, broker_error, error_for_code

__all__ = [
    "SaslAnswer",
    "authenticate_answer",
    "authenticate_request",
    "check_handshake",
    "handshake_request",
]

_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_SHORTEST, _LONGEST = 0.1, 30 * 86400.0
"""Seconds of a session that are believed: a shorter one would keep us authenticating."""


@dataclass(frozen=True, slots=True)
class SaslAnswer:
    """What the broker answered to one message."""

    challenge: bytes = field(repr=False)
    """For the mechanism."""
    lifetime: float | None
    """Seconds until the broker wants to be authenticated to again; None: never."""


def handshake_request(mechanism: str) -> RequestPayload:
    """Names the mechanism, once per exchange."""
    schema: Any = request_type(ApiKey.SASL_HANDSHAKE, 1)
    entity: RequestPayload = schema(mechanism=mechanism)
    return entity


def check_handshake(response: Any, mechanism: str) -> None:
    """Take the answer to it.

    :raises AuthenticationFailedError: the broker does not offer the mechanism, or no SASL at all.
    """
    code = int(response.error_code)
    if code == _UNSUPPORTED_MECHANISM:
        offered = ", ".join(printable(each, 40) for each in response.mechanisms[:20]) or "none"
        raise broker_error(code, f"the broker does not offer {mechanism}, but {offered}")
    if code == _ILLEGAL_STATE:
        raise broker_error(code, "this listener wants no SASL: its protocol is PLAINTEXT or SSL")
    if code:
        raise _refused(code, f"the broker refused the mechanism {mechanism}")


def authenticate_request(version: int, message: bytes) -> RequestPayload:
    """Carries one message of the mechanism."""
    schema: Any = request_type(ApiKey.SASL_AUTHENTICATE, version)
    entity: RequestPayload = schema(auth_bytes=message)
    return entity


def authenticate_answer(response: Any) -> SaslAnswer:
    """Take the answer to it.

    :raises AuthenticationFailedError: the broker refused; `SaslAuthenticationFailed` for the
        credentials.
    """
    code = int(response.error_code)
    if code:
        said = printable(response.error_message or "no reason given")
        raise _refused(code, f"the broker refused to authenticate: {said}")
    asked: timedelta = getattr(response, "session_lifetime", timedelta(0))
    seconds = asked.total_seconds()
    lifetime = min(max(seconds, _SHORTEST), _LONGEST) if seconds > 0 else None
    return SaslAnswer(response.auth_bytes, lifetime)


def _refused(code: int, text: str) -> AuthenticationFailedError:
    error = broker_error(code, text)
    if isinstance(error, AuthenticationFailedError):
        return error
    return AuthenticationFailedError(f"{text} ({error_for_code(code).message}, error code {code})")

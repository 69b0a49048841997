"""Find out from an exception why a connection failed."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from aioidem._doctor.facts import Failure, FailureKind
from aioidem._load.usage import one_line
from aioidem.errors import (
    AuthenticationFailedError,
    BrokerNotAllowedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NotKafkaError,
    SslAuthenticationError,
    UnsupportedSaslMechanismError,
)

__all__ = ["failure_of"]

_K = FailureKind
_REFUSED: Final = frozenset({errno.ECONNREFUSED})
_NO_WAY: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}
)
# OpenSSL's numbers of reasons why a certificate is not accepted: X509_V_ERR_*.
_OUT_OF_DATE: Final = frozenset({9, 10})
_OTHER_HOST: Final = frozenset({62, 64})
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 24, 27})
_FROM_PROVIDER: Final = "no token from "
"""Begins what `_network.sasl.oidc` says of a token endpoint, which is no broker."""
# Parts of the names of the TLS alerts with which a broker refuses the client's certificate.
_ABOUT_OURS: Final = ("CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
_ABOUT_OURS_TOO: Final = ("ALERT_CERTIFICATE", "ALERT_UNSUPPORTED_CERTIFICATE")


def failure_of(error: KafkaError) -> Failure:
    """Return why a connection failed.

    Which protocol a peer speaks that does not speak Kafka, an exception does not say: NOT_KAFKA.
    """
    text = one_line(error)
    return Failure(_K.IDENTITY_PROVIDER if _FROM_PROVIDER in text else _kind(error), text)


def _kind(error: KafkaError) -> FailureKind:
    match error:
        case SslAuthenticationError():
            return _tls_kind(error)
        case IllegalSaslStateError():
            return _K.WITHOUT_SASL
        case UnsupportedSaslMechanismError():
            return _K.SASL_MECHANISM
        case AuthenticationFailedError():
            return _K.SASL_REFUSED
        case BrokerNotAllowedError():
            return _K.NOT_ALLOWED
        case NotKafkaError():
            return _K.NOT_KAFKA
        case IncompatibleBrokerVersion():
            return _K.TOO_OLD
        case KafkaTimeoutError():
            return _K.NO_ANSWER
        case KafkaConnectionError():
            return _network_kind(error)
        case _:
            return _K.OTHER


def _network_kind(error: BaseException) -> FailureKind:
    """Return the kind by the operating system's reason; if there are several, the likeliest."""
    kinds = {_by_system(each) for each in _causes(error)}
    for kind in (_K.NAME_NOT_KNOWN, _K.REFUSED, _K.UNREACHABLE, _K.NO_ANSWER):
        if kind in kinds:
            return kind
    return _K.HUNG_UP


def _by_system(error: BaseException) -> FailureKind | None:
    if isinstance(error, socket.gaierror):
        return _K.NAME_NOT_KNOWN
    if isinstance(error, TimeoutError):
        return _K.NO_ANSWER
    number = error.errno if isinstance(error, OSError) else None
    if number in _REFUSED:
        return _K.REFUSED
    return _K.UNREACHABLE if number in _NO_WAY else None


def _tls_kind(error: BaseException) -> FailureKind:
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return _by_verification(each.verify_code)
        reason = (each.reason or "") if isinstance(each, ssl.SSLError) else ""
        if any(part in reason for part in (*_ABOUT_OURS, *_ABOUT_OURS_TOO)):
            return _K.TLS_CLIENT_CERTIFICATE
    return _K.TLS_FAILED


def _by_verification(code: int) -> FailureKind:
    if code in _OTHER_HOST:
        return _K.TLS_HOST_NAME
    if code in _OUT_OF_DATE:
        return _K.TLS_OUT_OF_DATE
    return _K.TLS_UNTRUSTED if code in _UNTRUSTED else _K.TLS_FAILED


def _causes(error: BaseException | None, depth: int = 8) -> Iterator[BaseException]:
    """Yield the error, and what has caused it."""
    if error is None or depth == 0:
        return
    yield error
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each, depth - 1)
    yield from _causes(error.__cause__, depth - 1)
    if error.__cause__ is None:
        yield from _causes(error.__context__, depth - 1)

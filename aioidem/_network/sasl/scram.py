"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), by the library scramp, with extra limits.

What scramp checks (version 1.5.0, read and tested): the server's nonce begins with ours, is longer
and printable; every attribute is present, in order, once; ``m=`` is refused; base64 is strict;
there are at least 4096 iterations; the salt has 12 bytes; the server's signature is compared in
constant time; the methods are called in order. Added here: at most 1,000,000 iterations (scramp
would compute ten million, which takes many seconds of one core) and messages of bounded size.
A broker that reports success without its signature is refused: `Scram.next` returns None,
which ends the exchange, only after it has verified the signature.

Kafka hashes the password's bytes unchanged, whereas RFC 5802 and scramp normalise the password
(SASLprep). So every Apache Kafka broker would reject a password that normalisation changes. Such a
password is refused here, where the error can give the reason.

Exceptions of scramp are not chained, because their frames hold the password.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from scramp import ScramClient, ScramException
from scramp.utils import saslprep

from aioidem._config.secret import Secret
from aioidem._protocol.messages import printable
from aioidem.errors import AuthenticationFailedError

__all__ = ["MAX_ITERATIONS", "Scram"]

T = TypeVar("T")

MAX_ITERATIONS: Final = 1_000_000
"""The most iterations that a broker may ask for; librdkafka has the same limit (about 1 s)."""

_LONGEST: Final = 4096
_ITERATIONS: Final = re.compile(r"(?:^|,)i=0*(\d*)")


class Scram:
    """One SASL exchange with the mechanism SCRAM.

    Args:
        name: "SCRAM-SHA-256" or "SCRAM-SHA-512".
        username: The user name.
        password: The password.
        nonce: The client's nonce, for tests; None makes a random one.

    Raises:
        AuthenticationFailedError: SCRAM cannot use the user name or the password.
    """

    blocking = True  # deriving the key takes as many iterations as the broker asks for

    def __init__(
        self, name: str, username: str, password: Secret[str], nonce: str | None = None
    ) -> None:
        self.name = name
        self.principal = username
        changed = self._checked(
            lambda: (
                saslprep(password.reveal()) != password.reveal() or saslprep(username) != username
            )
        )
        if changed or not password:
            raise AuthenticationFailedError(
                f"{name}: the user name or password is empty or changes when it is normalised "
                "(SASLprep), which Kafka does not do"
            )
        self._client = self._checked(
            lambda: ScramClient([name], username, password.reveal(), c_nonce=nonce)
        )
        self._turn = 0

    def first(self) -> bytes:
        """Return the message that names the user."""
        message: str = self._checked(self._client.get_client_first)
        return message.encode()

    def next(self, challenge: bytes) -> bytes | None:
        """Return the client's proof; then None, once the broker's signature was verified."""
        self._turn += 1
        message = self._text(challenge)
        if self._turn == 1:
            self._check_iterations(message)
            self._checked(lambda: self._client.set_server_first(message))
            proof: str = self._checked(self._client.get_client_final)
            return proof.encode()
        self._checked(lambda: self._client.set_server_final(message))
        return None

    def _text(self, challenge: bytes) -> str:
        try:
            if 0 < len(challenge) <= _LONGEST:
                return challenge.decode()
        except UnicodeDecodeError:
            pass
        raise AuthenticationFailedError(
            f"{self.name}: the broker's message of {len(challenge)} bytes is none of SCRAM; "
            "it has not proved that it knows the password"
        )

    def _check_iterations(self, message: str) -> None:
        for digits in _ITERATIONS.findall(message):
            if len(digits) > 7 or int(digits or 0) > MAX_ITERATIONS:
                raise AuthenticationFailedError(
                    f"{self.name}: the broker asks for more than {MAX_ITERATIONS} iterations"
                )

    def _checked(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except ScramException as error:
            reason = printable(str(error))  # scramp's message may contain text from the broker
        raise AuthenticationFailedError(f"{self.name}: {reason}")

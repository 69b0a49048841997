"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), through scramp, with bounds of our own.

What scramp checks (1.5.0, read and tested): the server's nonce extends ours and is longer, and is
printable; attributes are there, in order, once; ``m=`` is refused; base64 is strict; at least 4096
iterations; the salt has 12 bytes; the server's signature is compared in constant time; the order of
calls. What is added here: at most 1,000,000 iterations (scramp computes ten million, many seconds
of a core) and messages of bounded size; success that comes without the server's signature is
refused, because `next` never says that it is over before the signature was verified.

Kafka hashes the password's bytes as they are; RFC 5802 normalises it (SASLprep), and so does
scramp. For passwords that normalising changes the two differ and no broker of Apache Kafka would
take them, so they are refused here, where the reason can be named.

The exceptions of scramp are not chained: their frames hold the password.
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
"""About a second of one core; librdkafka's bound as well."""

_LONGEST: Final = 4096
_ITERATIONS: Final = re.compile(r"(?:^|,)i=0*(\d*)")


class Scram:
    """One exchange.

    :param name: "SCRAM-SHA-256" or "SCRAM-SHA-512".
    :param nonce: ours, for tests; None: a random one.
    :raises AuthenticationFailedError: the name or password cannot be used with SCRAM.
    """

    blocking = True  # a key is derived, in as many rounds as the broker asks for

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
        """Names the user."""
        message: str = self._checked(self._client.get_client_first)
        return message.encode()

    def next(self, challenge: bytes) -> bytes | None:
        """The proof; then, once the broker has proved that it knows the password too, None."""
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
            reason = printable(str(error))  # it may quote the broker
        raise AuthenticationFailedError(f"{self.name}: {reason}")

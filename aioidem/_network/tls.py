"""TLS: a connector that wraps another one's streams, and the context the options describe.

Invariants:

- The certificate is checked against the host name the cluster advertises (an address matches an IP
  SAN only, a trailing dot does not count, no reverse look-up), unless an option says otherwise.
- TLS 1.2 at least, also with a caller's context.
- Certificates and keys are read anew for each connection, in a thread: files that were replaced are
  the ones used. An encrypted key without a password fails; OpenSSL would ask on the terminal.
- The end of the stream without close_notify is a lost connection, as any end of a stream of frames
  is: nobody can cut a conversation short and have it pass for whole.
- A peer that does not speak TLS is named.

Rejected: Java's JKS stores (PKCS #12 and JKS need a library of their own; `keytool` exports PEM).
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from aioidem._config import ProducerConfig
from aioidem._network.tls_probe import answers_plaintext
from aioidem._network.transport import Connector, address
from aioidem.errors import (
    AuthenticationFailedError,
    ConfigError,
    InternalError,
    KafkaConnectionError,
    NotKafkaError,
    SslAuthenticationError,
)

__all__ = ["OneAtATime", "TlsConnector", "client_context", "secured", "tls_failure"]

_NOT_TLS: Final = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "UNEXPECTED_MESSAGE",
        "UNKNOWN_PROTOCOL",
    }
)
_NEW_ENOUGH: Final = frozenset({"TLSv1.2", "TLSv1.3"})
_LOST: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


def secured(connector: Connector, config: ProducerConfig) -> Connector:
    """The connector, with TLS around its streams where the configuration has them.

    :raises ConfigError: a file cannot be read or does not hold what it should.
    """
    if config.security_protocol not in {"SSL", "SASL_SSL"}:
        return connector
    # What cannot be loaded is told now, not at the first connection; but for a key given as text,
    # which takes a file to be made, and a loop may be running here.
    if config.ssl_keystore_key is None:
        client_context(config)
    else:
        _trusting(config)
    return TlsConnector(connector, lambda: client_context(config))


def client_context(config: ProducerConfig) -> ssl.SSLContext:
    """The caller's context, or one made of the files and texts of the configuration. It blocks.

    :raises ConfigError: a file cannot be read or does not hold what it should.
    """
    if config.ssl_context is not None:
        return config.ssl_context
    context = _trusting(config)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.check_hostname = config.ssl_endpoint_identification_algorithm != ""
    mine = config.ssl_keystore_location
    texts = "ssl_keystore_key, ssl_keystore_certificate_chain"
    with _told(texts if mine is None else f"ssl_keystore_location={mine!r}", _IDENTITY):
        _load_identity(context, config)
    return context


_AUTHORITIES: Final = "the certificates of authorities"
_IDENTITY: Final = (
    "a private key and the chain of its certificate, with ssl_key_password if it is encrypted"
)


def _trusting(config: ProducerConfig) -> ssl.SSLContext:
    file, text = config.ssl_truststore_location, config.ssl_truststore_certificates
    named = "ssl_truststore_certificates" if file is None else f"ssl_truststore_location={file!r}"
    with _told(named, _AUTHORITIES):
        return ssl.create_default_context(cafile=file, cadata=text)
    raise InternalError("a failure to load certificates was not raised")


@contextmanager
def _told(option: str, expected: str) -> Iterator[None]:
    """Name the option, and never what it holds, if that cannot be loaded."""
    try:
        yield
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = "the key is another certificate's"
        else:
            problem = f"expected PEM with {expected}"
            problem += f" ({error.reason})" if error.reason else ""
    except (OSError, ValueError, TypeError) as error:  # TypeError: text that is not ASCII
        strerror = error.strerror if isinstance(error, OSError) else None
        problem = strerror or f"expected PEM with {expected}"
    else:
        return
    # The chain is left out: its frames may hold the key.
    raise ConfigError(f"{option} cannot be loaded: {problem}")


def _load_identity(context: ssl.SSLContext, config: ProducerConfig) -> None:
    def password() -> str:
        return config.ssl_key_password.reveal() if config.ssl_key_password is not None else ""

    if config.ssl_keystore_location is not None:
        context.load_cert_chain(config.ssl_keystore_location, password=password)
    elif config.ssl_keystore_certificate_chain is not None and config.ssl_keystore_key is not None:
        # The library takes files only: one that none but this user can read, for this moment.
        with tempfile.TemporaryDirectory() as folder:
            chain = Path(folder, "chain.pem")
            chain.touch(mode=0o600)
            chain.write_text(
                f"{config.ssl_keystore_key.reveal()}\n{config.ssl_keystore_certificate_chain}\n"
            )
            context.load_cert_chain(os.fspath(chain), password=password)


class TlsConnector:
    """Opens streams with another connector and shakes hands on them.

    :param make_context: called in a thread for each connection.
    """

    __slots__ = ("_inner", "_make_context")

    def __init__(self, inner: Connector, make_context: Callable[[], ssl.SSLContext]) -> None:
        self._inner = inner
        self._make_context = make_context

    async def connect(self, host: str, port: int) -> ByteStream:
        """See `Connector.connect`.

        :raises SslAuthenticationError: one side does not accept the other's certificate or version.
        :raises NotKafkaError: the peer does not speak TLS.
        """
        context = await anyio.to_thread.run_sync(self._make_context)
        stream = await self._inner.connect(host, port)
        try:
            return await self._shake_hands(stream, context, host)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)
            where = address(host, port)
            if isinstance(error, AuthenticationFailedError):
                raise SslAuthenticationError(f"{where}: {error.args[0]}") from None
            if not isinstance(error, (*_LOST, ssl.CertificateError)):
                raise
            failure = tls_failure(error)
            if failure is not None:
                raise type(failure)(f"{where}: {failure.args[0]}") from error
            if await answers_plaintext(self._inner, host, port):
                raise NotKafkaError(
                    f"{where}: the peer does not speak TLS, but plaintext Kafka; the listener's "
                    "protocol is PLAINTEXT or SASL_PLAINTEXT"
                ) from error
            raise KafkaConnectionError(f"{where}: it hung up in the TLS handshake") from error

    @staticmethod
    async def _shake_hands(stream: ByteStream, context: ssl.SSLContext, host: str) -> ByteStream:
        # A name with the root's dot is the same name, but certificates are made without.
        secured = await TLSStream.wrap(
            OneAtATime(stream),
            server_side=False,
            hostname=host.removesuffix("."),
            ssl_context=context,
        )
        version = secured.extra(TLSAttribute.tls_version)  # noqa: S610 - not Django's
        if version not in _NEW_ENOUGH:
            raise SslAuthenticationError(
                f"the broker speaks {version}; TLSv1.2 is the oldest taken"
            )
        return secured


def tls_failure(error: BaseException) -> SslAuthenticationError | NotKafkaError | None:
    """What is wrong, if TLS itself says it: in the handshake, or with TLS 1.3 just after it."""
    reason: Any = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(reason, ssl.SSLCertVerificationError):
        return SslAuthenticationError(
            f"the broker's certificate is not accepted: {reason.verify_message}"
        )
    if isinstance(reason, ssl.SSLEOFError | ssl.SSLSyscallError | ssl.SSLZeroReturnError):
        return None
    if not isinstance(reason, ssl.SSLError) or "EOF" in (reason.reason or ""):
        return None
    if reason.reason in _NOT_TLS:
        return NotKafkaError(f"the peer does not speak TLS ({reason.reason})")
    return SslAuthenticationError(f"TLS failed: {reason.reason or reason}")


class OneAtATime(ByteStream):
    """Lets one send wait for another: TLS may answer its peer while a request is being written."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._sending = anyio.Lock()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Bytes of the peer."""
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Returns when they were taken, after those of every earlier call."""
        async with self._sending:
            await self._stream.send(item)

    async def send_eof(self) -> None:
        """The peer reads the end after what was sent."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the stream."""
        return self._stream.extra_attributes

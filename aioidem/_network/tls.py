"""TLS for the streams to brokers, and the `ssl.SSLContext` for it.

`TlsConnector` opens its streams with another `Connector` (TCP, as a rule), and encrypts them.

Invariants:

- The certificate is checked against the host name that the cluster advertises, unless an option
  turns the check off. An IP address matches an IP address in the certificate only (its SAN), a
  trailing dot of the name is ignored, and there is no reverse look-up.
- TLS 1.2 is the oldest version accepted, even if the caller's own context allows older ones.
- Certificates and keys are read again for each connection, in a thread, so replaced files take
  effect. A file system that hangs takes no longer than opening a connection may take. An encrypted
  key without a password is an error; OpenSSL alone would prompt on the terminal.
- The end of a stream always counts as a lost connection, whether the peer sent close_notify or not,
  so an attacker who cuts the connection cannot make the data look complete.
- If the peer does not speak TLS, the error says so.

Rejected: Java's key stores (JKS and PKCS #12 need a library of their own; `keytool` exports PEM).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from aioidem._config import ProducerConfig
from aioidem._network.threads import OwnThreads
from aioidem._network.tls_probe import answers_plaintext
from aioidem._network.transport import Connector, address
from aioidem.errors import (
    AuthenticationFailedError,
    ConfigError,
    KafkaConnectionError,
    NotKafkaError,
    SslAuthenticationError,
)

__all__ = ["OneAtATime", "TlsConnector", "client_context", "secured", "tls_failure"]

_THREADS: Final = OwnThreads("reading certificates and keys")
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
    """Return the connector, with TLS around its streams if the configuration asks for it.

    Raises:
        ConfigError: A file cannot be read, or does not contain what the option needs.
    """
    if config.security_protocol not in {"SSL", "SASL_SSL"}:
        return connector
    # Files are loaded once now, so that a mistake is reported here and not at the first connection.
    # A key given as text is not loaded now: it would have to be written to a file, which would
    # block an event loop that may be running.
    if config.ssl_keystore_key is None:
        client_context(config)
    else:
        _trusting(config)
    return TlsConnector(connector, lambda: client_context(config))


def client_context(config: ProducerConfig) -> ssl.SSLContext:
    """Return the user's `ssl_context`, or make one from the configured files and texts.

    Reading files blocks.

    Raises:
        ConfigError: A file cannot be read, or does not contain what the option needs.
    """
    if config.ssl_context is not None:
        return config.ssl_context
    context = _trusting(config)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.check_hostname = config.ssl_endpoint_identification_algorithm != ""
    mine = config.ssl_keystore_location
    texts = "ssl_keystore_key, ssl_keystore_certificate_chain"
    named = texts if mine is None else f"ssl_keystore_location={mine!r}"
    _loaded(named, _IDENTITY, partial(_load_identity, context, config))
    return context


_T = TypeVar("_T")
_AUTHORITIES: Final = "the certificates of authorities"
_IDENTITY: Final = (
    "a private key and the chain of its certificate, with ssl_key_password if it is encrypted"
)


def _trusting(config: ProducerConfig) -> ssl.SSLContext:
    file, text = config.ssl_truststore_location, config.ssl_truststore_certificates
    named = "ssl_truststore_certificates" if file is None else f"ssl_truststore_location={file!r}"
    load = partial(ssl.create_default_context, cafile=file, cadata=text)
    return _loaded(named, _AUTHORITIES, load)


def _loaded(option: str, expected: str, load: Callable[[], _T]) -> _T:
    """Load something; a failure is a ConfigError that names the option, never its content.

    Its cause and its context are None: the frames of their tracebacks may hold the key.
    """
    try:
        return load()
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = "the key does not belong to the certificate"
        else:
            problem = f"expected PEM with {expected}"
            problem += f" ({error.reason})" if error.reason else ""
    except (OSError, ValueError, TypeError) as error:  # TypeError: the text is not ASCII
        strerror = error.strerror if isinstance(error, OSError) else None
        problem = strerror or f"expected PEM with {expected}"
    raise ConfigError(f"{option} cannot be loaded: {problem}")


def _load_identity(context: ssl.SSLContext, config: ProducerConfig) -> None:
    def password() -> str:
        return config.ssl_key_password.reveal() if config.ssl_key_password is not None else ""

    if config.ssl_keystore_location is not None:
        context.load_cert_chain(config.ssl_keystore_location, password=password)
    elif config.ssl_keystore_certificate_chain is not None and config.ssl_keystore_key is not None:
        # OpenSSL's binding loads keys from files only. So the text is written to a file that only
        # this user can read, and that is removed at once.
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            chain = Path(folder, "chain.pem")
            chain.touch(mode=0o600)
            chain.write_text(
                f"{config.ssl_keystore_key.reveal()}\n{config.ssl_keystore_certificate_chain}\n",
                encoding="utf-8",
            )
            context.load_cert_chain(os.fspath(chain), password=password)


class TlsConnector:
    """A connector that opens streams with another connector and makes the TLS handshake on them.

    Args:
        inner: The connector that opens the streams.
        make_context: Makes the TLS context; called in a thread for each connection.
    """

    __slots__ = ("_inner", "_make_context")

    def __init__(self, inner: Connector, make_context: Callable[[], ssl.SSLContext]) -> None:
        self._inner = inner
        self._make_context = make_context

    async def connect(self, host: str, port: int) -> ByteStream:
        """Open a stream to this address; see `Connector.connect`.

        Raises:
            SslAuthenticationError: The client or the broker does not accept the other's certificate
                or TLS version.
            NotKafkaError: The peer does not speak TLS.
            KafkaConnectionError: The address cannot be reached, or the connection ended in the
                handshake.
        """
        context = await _THREADS.run(self._make_context)
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
            raise KafkaConnectionError(
                f"{where}: the peer closed the connection in the TLS handshake"
            ) from error

    @staticmethod
    async def _shake_hands(stream: ByteStream, context: ssl.SSLContext, host: str) -> ByteStream:
        # A trailing dot marks the DNS root; certificates are issued for the name without it.
        secured = await TLSStream.wrap(
            OneAtATime(stream),
            server_side=False,
            hostname=host.removesuffix("."),
            ssl_context=context,
        )
        version = secured.extra(TLSAttribute.tls_version)  # noqa: S610 - not Django's
        if version not in _NEW_ENOUGH:
            raise SslAuthenticationError(
                f"the broker speaks {version}; TLSv1.2 is the oldest version accepted"
            )
        return secured


def tls_failure(error: BaseException) -> SslAuthenticationError | NotKafkaError | None:
    """Return the error to raise if TLS itself has failed, else None.

    Args:
        error: What the handshake or a later `receive` has raised. It can be `receive`, because with
            TLS 1.3 the server may reject our certificate after the handshake.
    """
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
    """A stream that carries out one `send` at a time.

    Two tasks may send at once: one that writes a request, and one that reads and for which TLS has
    to send a message of its own.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._sending = anyio.Lock()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes from the peer."""
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Send bytes after those of every earlier call; return when the stream has taken them."""
        async with self._sending:
            await self._stream.send(item)

    async def send_eof(self) -> None:
        """Tell the peer that no more data follows."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The attributes of the wrapped stream."""
        return self._stream.extra_attributes

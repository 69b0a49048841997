"""Make a TLS context from files, as aiokafka's module of the same name does.

Invariant: a context made here verifies the broker's certificate and host name, and no argument
turns that off. To connect without verification, make an `ssl.SSLContext` yourself.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from os import PathLike

__all__ = ["create_ssl_context"]

_Path = str | bytes | PathLike[str] | PathLike[bytes]
_Password = str | bytes | bytearray


def create_ssl_context(
    *,
    cafile: _Path | None = None,
    capath: _Path | None = None,
    cadata: str | bytes | bytearray | memoryview | None = None,
    certfile: _Path | None = None,
    keyfile: _Path | None = None,
    password: Callable[[], _Password] | _Password | None = None,
) -> ssl.SSLContext:
    """Return a TLS context for `security_protocol="SSL"` or `"SASL_SSL"`.

    The call reads files and therefore blocks: make it before the event loop is busy.

    Args:
        cafile: A PEM file of the certificate authorities to trust. Without `cafile`, `capath` and
            `cadata` those of the operating system are trusted.
        capath: A directory of such files, named as by ``openssl rehash``.
        cadata: The authorities as PEM text or DER bytes.
        certfile: A PEM file of this client's certificate and its chain, for brokers that ask for
            one.
        keyfile: A PEM file of the certificate's private key, if it is not in `certfile`.
        password: The private key's password, or a function that returns it.

    Raises:
        OSError: A file cannot be read.
        ssl.SSLError: A file does not contain valid certificates, or the key does not match.
    """
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH, cafile=cafile, capath=capath, cadata=cadata
    )
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context

"""What aiokafka has in its module of this name: a TLS context from files.

Invariant: a context made here verifies the broker's certificate and its host name; there is no
argument that turns either off. Who must do without makes an `ssl.SSLContext` of his own.
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
    """A context for `security_protocol="SSL"` or `"SASL_SSL"`.

    Reads files: call it before the event loop has work to do.

    Args:
        cafile: certificate authorities to trust, PEM; the system's without `cafile`, `capath` and
            `cadata`.
        capath: a directory of such files.
        cadata: the same, read already: PEM text or DER bytes.
        certfile: this client's certificate and its chain, PEM, for brokers that ask for one.
        keyfile: its private key, if that is not in `certfile`.
        password: of the private key.

    Raises:
        OSError: a file cannot be read. ssl.SSLError: it is not what it should be.
    """
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH, cafile=cafile, capath=capath, cadata=cadata
    )
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context

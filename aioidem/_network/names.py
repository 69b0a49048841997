"""Look up the IP addresses of a host name, in a thread that is not one of the program's.

asyncio looks names up in the threads of its default executor, and trio in those that anyio gives
the program. The program may keep all of these busy, with calls that wait for a record that waits
for the connection (see `threads.py`).

Invariant: a cancelled look-up ends at once. Its thread goes on until the system's resolver answers,
and the answer is dropped.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Any, Final

import anyio

from aioidem._network.threads import OwnThreads

__all__ = ["addresses_of"]

_THREADS: Final = OwnThreads("looking up host names")


async def addresses_of(host: str, port: int) -> list[str]:
    """Return a host's IP addresses for TCP, in the system's order; an IPv6 zone is a number.

    Raises:
        OSError: The name cannot be looked up, or it has no address that can be used.
        ValueError: The name cannot be encoded for DNS.
    """
    if host.isascii():
        look_up = partial(socket.getaddrinfo, host.encode(), port, type=socket.SOCK_STREAM)
        found: list[Any] = await _THREADS.run(look_up)
    else:
        # anyio encodes the name for DNS (IDNA 2008), with a library that is not ours to import.
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Where IPv6 is disabled, the system may list such addresses as numbers that nobody can use.
    usable = [_text(*each[4]) for each in found if isinstance(each[4][0], str)]
    if not usable:
        raise OSError(f"{host} has no address that can be used")
    return list(dict.fromkeys(usable))


def _text(ip: str, _port: int, _flow: int = 0, zone: int = 0) -> str:
    return f"{ip.partition('%')[0]}%{zone}" if zone else ip

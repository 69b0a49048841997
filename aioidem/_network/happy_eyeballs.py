"""Connect over TCP to whichever address of a host answers first (Happy Eyeballs, RFC 8305).

`anyio.connect_tcp` does the same for a host name. But it looks the name up in a thread that the
program may keep busy (see `names.py`), so here the addresses are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from anyio.abc import SocketStream

__all__ = ["connect_to_first"]

_DELAY: Final = 0.25
"""How many seconds an attempt is alone before the next address is tried beside it."""


async def connect_to_first(addresses: Sequence[str], port: int) -> SocketStream:
    """Return a stream to the first of these IP addresses that accepts the connection.

    The first IPv6 address is tried first and the first IPv4 address second. The next address is
    tried when an attempt has failed, or has taken a quarter of a second. The other attempts end
    when one has succeeded.

    Raises:
        OSError: No address accepts the connection. Several failures are its cause, as a group.
    """
    if len(addresses) == 1:
        return await anyio.connect_tcp(addresses[0], port)
    connected: list[SocketStream] = []
    failures: list[OSError] = []

    async def attempt(ip: str, over: anyio.Event) -> None:
        try:
            stream = await anyio.connect_tcp(ip, port)
        except OSError as error:
            cause = error.__cause__  # anyio says only that all attempts have failed
            failures.append(cause if isinstance(cause, OSError) else error)
        else:
            if connected:
                await anyio.aclose_forcefully(stream)
            else:
                connected.append(stream)
                attempts.cancel_scope.cancel()
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as attempts:
            for ip in _in_order(addresses):
                over = anyio.Event()
                attempts.start_soon(attempt, ip, over)
                with anyio.move_on_after(_DELAY):
                    await over.wait()
    except BaseException:
        for stream in connected:
            await anyio.aclose_forcefully(stream)
        raise
    if connected:
        return connected[0]
    raise OSError("no address accepts the connection") from ExceptionGroup(
        "multiple connection attempts failed", failures
    )


def _in_order(addresses: Sequence[str]) -> Sequence[str]:
    first = {":" in ip: ip for ip in reversed(addresses)}  # of each family
    preferred = [first[family] for family in (True, False) if family in first]
    return [*preferred, *(ip for ip in addresses if ip not in preferred)]

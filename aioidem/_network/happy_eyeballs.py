"""Connect over TCP to whichever address of a host answers first (Happy Eyeballs, RFC 8305).

`anyio.connect_tcp` does the same for a host name. But it looks the name up in a thread that the
program may keep busy (see `names.py`), so here the addresses are given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio
from anyio.abc import ByteStream, SocketStream

__all__ = ["connect_to_first", "race"]

S = TypeVar("S", bound=ByteStream)
E = TypeVar("E", bound=Exception)

_DELAY: Final = 0.25
"""How many seconds an attempt is alone before the next address is tried beside it."""


async def connect_to_first(addresses: Sequence[str], port: int) -> SocketStream:
    """Return a stream to the first of these IP addresses that accepts the connection.

    Raises:
        OSError: No address accepts the connection. Several failures are its cause, as a group.
    """

    async def connect(ip: str) -> SocketStream:
        return await anyio.connect_tcp(ip, port)

    if len(addresses) == 1:
        return await connect(addresses[0])
    failures: list[OSError] = []
    connected = await race(addresses, connect, OSError, failures)
    if connected:
        return connected[0]
    # anyio says only that all attempts have failed; the cause says why.
    causes = [e.__cause__ if isinstance(e.__cause__, OSError) else e for e in failures]
    raise OSError("no address accepts the connection") from ExceptionGroup(
        "multiple connection attempts failed", causes
    )


async def race(
    addresses: Sequence[str],
    connect: Callable[[str], Awaitable[S]],
    expected: type[E],
    failures: list[E],
) -> list[S]:
    """Connect to these IP addresses, and return a list of the first stream, empty if there is none.

    The first IPv6 address is tried first and the first IPv4 address second. The next address is
    tried when an attempt has failed, or has taken a quarter of a second. The other attempts end
    when one has succeeded.

    Args:
        addresses: The IP addresses.
        connect: Opens a stream to one of them.
        expected: The exceptions of `connect` that are failures to connect.
        failures: Receives these exceptions.
    """
    connected: list[S] = []

    async def attempt(ip: str, over: anyio.Event) -> None:
        try:
            stream = await connect(ip)
        except expected as error:
            failures.append(error)
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
    return connected


def _in_order(addresses: Sequence[str]) -> Sequence[str]:
    first = {":" in ip: ip for ip in reversed(addresses)}  # of each family
    preferred = [first[family] for family in (True, False) if family in first]
    return [*preferred, *(ip for ip in addresses if ip not in preferred)]

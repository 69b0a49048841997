"""Examine an embedded cluster, and rewrite its answers into those of a broken set-up."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from aioidem._broker.intercept import Action, RequestSeen, Rewrite
from aioidem._config import ProducerConfig
from aioidem._doctor.diagnosis import diagnose
from aioidem._doctor.examination import Wanted, examine
from aioidem._doctor.facts import WantedRate
from aioidem._doctor.finding import Finding, FindingName, Severity

Findings = Mapping[FindingName, Finding]


async def findings(
    servers: str,
    *topics: str,
    rate: float | None = None,
    write_to: str | None = None,
    timeout: float = 20.0,
    **options: Any,
) -> Findings:
    """Examine the servers, and return the worst finding of each name."""
    wanted = Wanted(
        config=ProducerConfig.build(servers, **options),
        topics=topics,
        rate=None if rate is None else WantedRate(rate),
        write_to=write_to,
        timeout=timeout,
    )
    with anyio.fail_after(30):
        found = diagnose(await examine(wanted))
    by_name: dict[FindingName, Finding] = {}
    for each in found:
        by_name.setdefault(each.name, each)
    return by_name


def bad(found: Findings) -> set[FindingName]:
    """Return the names of the findings that are worse than a note."""
    return {name for name, each in found.items() if each.severity >= Severity.WARNING}


def rewriting(
    api_key: int, change: Callable[[Any], Any], broker: int | None = None
) -> Callable[[RequestSeen], Action | None]:
    """Return a hook that changes the answers of one API, of one broker or of all."""

    def hook(seen: RequestSeen) -> Action | None:
        wanted = seen.api_key == api_key and broker in (None, seen.broker_id)
        return Rewrite(change) if wanted else None

    return hook


def replaced(entity: Any, **values: Any) -> Any:
    """Return a kio entity with other values."""
    return dataclasses.replace(entity, **values)


def config_answers(
    topic: Callable[[Any], Any] = lambda result: result,
    broker: Callable[[Any], Any] = lambda result: result,
) -> Callable[[RequestSeen], Action | None]:
    """Return a hook that changes the results of DescribeConfigs for topics and for brokers."""

    def change(answer: Any) -> Any:
        results = (
            topic(each) if int(each.resource_type) == 2 else broker(each) for each in answer.results
        )
        return replaced(answer, results=tuple(results))

    return rewriting(32, change)


@asynccontextmanager
async def peer(handle: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Yield the address of a listener on 127.0.0.1, whose connections `handle` serves."""
    multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = multi.listeners[0]
    assert isinstance(listener, SocketListener)

    async def run(stream: SocketStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream, OSError):
                await handle(stream)

    async with multi, anyio.create_task_group() as tasks:
        tasks.start_soon(multi.serve, run)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"  # noqa: S610
        tasks.cancel_scope.cancel()


async def closed_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with multi:
        port: int = multi.listeners[0].extra(SocketAttribute.local_port)  # noqa: S610
        return port

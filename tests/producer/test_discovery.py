"""The producer goes back to Produce v14 soon after lost connections or missing permissions.

A broker of KIP-1269 names in Produce v14 how many batches it retains. If connections end before the
first answer in v14, or DescribeConfigs is refused, the producer uses v13 for a while, but must not
use it for ever. The tests assert counts, and times on a virtual clock.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Literal

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem._broker.intercept import Action, CloseConnection, RequestSeen, Rewrite
from aioidem.broker import EmbeddedCluster

from .tools import (
    DESCRIBE_CONFIGS,
    ONE_EACH,
    PRODUCE,
    Tap,
    bounded,
    numbered,
    partition_of,
    producer_for,
    stored_values,
    virtual_time,
)

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]
Discovery = pytest.mark.parametrize("discovery", ["on", "auto"])

RTT = 0.02
IN_FLIGHT = {"max_in_flight_requests_per_connection": 50, **ONE_EACH}


def cutting(connections: int) -> Callable[[RequestSeen], Action | None]:
    """Return a hook that closes the first `connections` connections at their first Produce."""
    cut: set[int] = set()

    def cut_one(seen: RequestSeen) -> Action | None:
        if seen.api_key == PRODUCE and len(cut) < connections:
            cut.add(seen.connection_id)
            return CloseConnection(processed=False)
        return None

    return cut_one


async def sent_until_wide(producer: Producer, seconds: float) -> tuple[float, int]:
    """Send records one after the other until the window is 20; fail after `seconds`.

    Returns the (virtual) seconds that it took, and the number of records.
    """
    start, count = anyio.current_time(), 0
    while anyio.current_time() < start + seconds:
        await producer.send("t", b"more")
        count += 1
        if partition_of(producer).window == 20:
            return anyio.current_time() - start, count
        await virtual_time(0.1)
    raise AssertionError(f"the window is {partition_of(producer).window} after {seconds} s")


@Discovery
@bounded(60)
async def test_two_connections_cut_before_their_first_answer_cost_a_known_broker_nothing(
    transport: Transport, discovery: str
) -> None:
    """If a broker has answered v14 before, the producer keeps to v14 when connections are cut."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster, connector=tap, window_discovery=discovery, **IN_FLIGHT
        ) as producer:
            await producer.send_many("t", numbered(60))
            assert partition_of(producer).window == 20
            cluster.intercept(cutting(4))
            await producer.send_many("t", numbered(100, 60))
            assert partition_of(producer).window == 20
        assert tap.versions(PRODUCE).count(13) == 0
        assert stored_values(cluster) == numbered(160)


@Discovery
@bounded(60)
async def test_two_connections_cut_before_any_answer_cost_a_new_broker_a_second(
    transport: Transport, discovery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If a new broker closes two connections on v14, the producer tries v14 again after a second.

    Some brokers close connections on v14, so the producer uses v13 for that second, and then tries
    v14 on the open connection.
    """
    caplog.set_level(logging.INFO, logger="aioidem")
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(cutting(2))
        tap = Tap(cluster.connector)
        async with producer_for(
            cluster, connector=tap, window_discovery=discovery, **IN_FLIGHT
        ) as producer:
            await producer.send("t", b"more")
            partition, wires = partition_of(producer), len(tap.wires)
            assert partition.window == 5
            assert "2 connections" in partition.window_reason
            seconds, _ = await sent_until_wide(producer, 5.0)
            assert seconds < 3.0
            assert len(tap.wires) == wires, "v14 is tried on the open connection"
            assert partition_of(producer).window_reason == "broker 0 retains 20 batches"
    told = [r for r in caplog.records if "2 connections" in r.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]


@Discovery
@bounded(600)
async def test_a_broker_that_hangs_up_on_v14_again_and_again_is_found_when_it_heals(
    transport: Transport, discovery: str
) -> None:
    """Produce v14 is tried ever less often; with `window_discovery="on"` at least every 15 s."""
    hung_up: list[float] = []
    healed = False

    def hang_up(seen: RequestSeen) -> Action | None:
        if seen.api_key == PRODUCE and seen.api_version == 14 and not healed:
            hung_up.append(anyio.current_time())
            return CloseConnection(processed=False)
        return None

    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(hang_up)
        async with producer_for(cluster, window_discovery=discovery, **IN_FLIGHT) as producer:
            until = anyio.current_time() + 120.0
            while anyio.current_time() < until:
                await producer.send("t", b"more")
                await virtual_time(0.5)
            assert 5 <= len(hung_up) <= 20
            healed = True
            limit = 20.0 if discovery == "on" else 200.0
            seconds, _ = await sent_until_wide(producer, limit)
            assert seconds < limit


def denied(answer: Any) -> Any:
    """Turn an answer to DescribeConfigs into a refusal for lack of permission."""
    refused = [
        dataclasses.replace(each, error_code=ErrorCode.topic_authorization_failed, configs=())
        for each in answer.results
    ]
    return dataclasses.replace(answer, results=tuple(refused))


@bounded(120)
async def test_a_right_that_is_granted_later_is_found_without_a_reconnect(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="aioidem")
    granted = False
    asked = 0

    def refuse(seen: RequestSeen) -> Action | None:
        nonlocal asked
        if seen.api_key != DESCRIBE_CONFIGS or seen.request.resources[0].resource_type != 2:
            return None
        asked += 1
        return None if granted else Rewrite(denied)

    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.intercept(refuse)
        tap = Tap(cluster.connector)
        async with producer_for(cluster, connector=tap, **IN_FLIGHT) as producer:
            until = anyio.current_time() + 30.0
            while anyio.current_time() < until:
                await producer.send("t", b"more")
                await virtual_time(0.5)
            wires = len(tap.wires)
            assert 3 <= asked <= 8, "the config is asked for ever less often"
            partition = partition_of(producer)
            assert partition.window == 5
            assert "DESCRIBE_CONFIGS" in partition.window_reason
            [leader] = [c for c in producer.statistics().connections if c.node_id == 0]
            assert leader.window_discovery == "not granted"
            granted = True
            await sent_until_wide(producer, 60.0)
            assert len(tap.wires) == wires
    told = [r for r in caplog.records if "DESCRIBE_CONFIGS" in r.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING], "the refusal is warned of once"


@bounded(20)
async def test_statistics_say_which_limit_binds(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="aioidem")
    async with EmbeddedCluster(
        brokers=2, retain=20, produce_versions={0: 14, 1: 13}, transport=transport
    ) as cluster:
        cluster.create_topic("t", partitions=2)
        async with producer_for(cluster, max_in_flight_requests_per_connection=7) as producer:
            for partition in (0, 1):
                await producer.send("t", b"v", partition=partition)
            first, second = (partition_of(producer, "t", each) for each in (0, 1))
            assert first.window == 20
            assert first.window_reason == (
                "limited by max_in_flight_requests_per_connection (7); broker 0 retains 20 batches"
            )
            assert second.window == 5
            assert second.window_reason == "broker 1 does not offer Produce v14"
            await producer.send_many("t", numbered(50), partition=0)
        async with producer_for(cluster, window_discovery="off") as producer:
            await producer.send("t", b"v", partition=0)
            assert partition_of(producer).window_reason == "window_discovery is off"
        async with producer_for(cluster, enable_idempotence=False) as producer:
            await producer.send("t", b"v", partition=0)
            assert "enable_idempotence is off" in partition_of(producer).window_reason
    lines = [r.getMessage() for r in caplog.records if "does not offer Produce v14" in r.message]
    assert len(lines) == 1

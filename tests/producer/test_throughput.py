"""Throughput of one partition over a link of 150 ms grows with the window as the model says.

The model is the acceptance criterion of the project: one partition moves window x batch bytes per
round trip. The tests run the load of `aioidem perf`, and so check the numbers of `make demo`, too.

On a virtual clock computing takes no time, so that the measured rate equals the model's on any
machine. benchmarks/window.py measures on the wall clock, where computing takes time, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import anyio
import pytest

from aioidem._load.measure import RunResult
from aioidem._load.perf import Interrupt, Target, run_once
from aioidem._load.plan import plan_perf
from aioidem._load.screen import choose_screen
from aioidem.broker import EmbeddedCluster

from .tools import ASYNCIO, bounded, partition_of, producer_for

pytestmark = pytest.mark.anyio

RTT = 0.15
RECORD, BATCH = 1000, 16384
WINDOWS = (1, 5, 20)
# A batch of 16 KiB holds 16 records of 1000 bytes with their overhead: 16 x 1009 + 61 bytes.
RECORDS_PER_BATCH = 16


def model(window: int) -> float:
    """Return the ideal records per second: one window of full batches per round trip of `RTT`."""
    return window * RECORDS_PER_BATCH / RTT


def whole_rounds(window: int) -> int:
    """Return the number of records in one first batch and 20 full windows (3 s at 150 ms each)."""
    return RECORDS_PER_BATCH * (1 + 20 * window)


def plan(**flags: Any) -> Any:
    """Return the plan of an `aioidem perf` over a link of `RTT`; `flags` are options of perf."""
    props = [f"batch.size={BATCH}", *flags.pop("producer_props", [])]
    return plan_perf(
        rtt_ms=RTT * 1000, retain=20, record_size=RECORD, producer_props=props, **flags
    )


async def measure(
    cluster: EmbeddedCluster, in_flight: int, topic: str, clock: Callable[[], float], **flags: Any
) -> RunResult:
    """Run perf once on a new topic of this cluster."""
    cluster.create_topic(topic)
    target = Target(
        cluster.bootstrap_servers,
        (topic,),
        connector=cluster.connector,
        rtt_ms=RTT * 1000,
        max_span=cluster.max_span,
    )
    screen = choose_screen()  # the end of a screen waits for the reader of the output
    return await run_once(plan(**flags), target, topic, in_flight, screen, Interrupt(), clock=clock)


def steady(result: RunResult) -> float:
    """Return the steady rate of a run, after checking that every record was acknowledged."""
    assert result.complete, result.failure
    assert result.steady_records_per_sec is not None
    return result.steady_records_per_sec


def sealed(**flags: Any) -> dict[str, Any]:
    """Return the flags of a run without late sealing: no batch outgrows `batch.size`."""
    return {"producer_props": ["late.sealing=false"], **flags}


@bounded(120)
async def test_one_partition_moves_window_times_batch_per_round_trip(
    transport: Literal["tcp", "memory"],
) -> None:
    """At windows of 1, 5 and 20 the rate after the first acknowledgement is that of `model`."""
    async with EmbeddedCluster(retain=20, rtt=RTT, transport=transport) as cluster:
        for window in WINDOWS:
            flags = sealed(num_records=whole_rounds(window))
            result = await measure(cluster, window, f"t{window}", anyio.current_time, **flags)
            assert result.max_span == window
            assert steady(result) == pytest.approx(model(window), rel=0.001)


@ASYNCIO
@bounded(60)
async def test_over_tcp_the_window_is_filled_and_not_passed(
    transport: Literal["tcp", "memory"],
) -> None:
    """On real sockets the span reaches the window (1, 5 or 20) and is never larger.

    The span is the number of batches from the oldest unresolved one to the newest, as the broker
    counts them (`EmbeddedCluster.span`). The rate on real sockets is measured by
    benchmarks/window.py.
    """
    async with EmbeddedCluster(retain=20, rtt=RTT / 3, transport=transport) as cluster:
        for window in WINDOWS:
            flags = sealed(num_records=RECORDS_PER_BATCH * (1 + 4 * window))
            result = await measure(cluster, window, f"t{window}", anyio.current_time, **flags)
            assert result.complete, result.failure
            assert result.max_span == window


@bounded(120)
async def test_late_sealing_at_window_5_moves_at_least_10_times_the_sealed_figure(
    transport: Literal["tcp", "memory"],
) -> None:
    """With a window of 5, late sealing sends at least ten times as fast as sealing at `batch.size`.

    Records that come while the window is full leave together in one larger batch. So the higher
    rate needs neither a wider window (KIP-1269) nor tuning.
    """
    async with EmbeddedCluster(rtt=RTT, transport=transport) as cluster:
        few = sealed(num_records=3_000)
        cut = steady(await measure(cluster, 5, "sealed", anyio.current_time, **few))
        late = await measure(cluster, 5, "late", anyio.current_time, num_records=30_000)
        assert steady(late) >= 10 * cut
        assert (late.window, late.max_span) == (5, 5)


@pytest.mark.parametrize("bandwidth", [8_000.0, 32_000.0])
@bounded(600)
async def test_late_sealing_makes_progress_on_a_thin_link_with_a_short_request_timeout(
    transport: Literal["tcp", "memory"], bandwidth: float
) -> None:
    """Late sealing makes progress on a thin link, without any batch being resent.

    A batch that grew to a megabyte would take longer than request_timeout, and be resent for ever.
    """
    async with EmbeddedCluster(rtt=RTT, bandwidth=bandwidth, transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, request_timeout=5.0, delivery_timeout=400.0) as producer:
            count = int(bandwidth * 60 / RECORD)
            started = anyio.current_time()
            await producer.send_many("t", [bytes(RECORD)] * count)
            took = anyio.current_time() - started
            assert producer.statistics().batches_retried == 0
            assert partition_of(producer).max_span <= 5
        assert len(cluster.batches("t")) < count
        # The link is kept busy: records that fill the link for 60 seconds take at most 70.
        assert took <= 70.0
